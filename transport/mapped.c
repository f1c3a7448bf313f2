/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a backend in whose worlds all control blocks and regions are mapped. */
#include "transport/transport.h"

#include <stdio.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

/* The barrier's waits know whom they wait for, so a rank that left is found at once. */
typedef struct barrier_wait {
    wefti_endpoint_t *endpoint;
    uint32_t peer;
    uint32_t epoch;
} barrier_wait_t;

static weft_status_t barrier_poll(void *user)
{
    barrier_wait_t *wait = user;
    wefti_endpoint_meanwhile(wait->endpoint);
    wefti_control_t *control = wait->endpoint->control[wait->peer];
    if (atomic_load_explicit(&control->left, memory_order_acquire) == 0 ||
        wefti_signal_has_reached(&control->barrier.signal, wait->epoch)) {
        return WEFT_OK;
    }
    /* Whoever ended the world did so before it left: its reason goes first. */
    weft_status_t status = wefti_endpoint_check(wait->endpoint);
    if (status < 0) {
        return status;
    }
    return wefti_error(WEFT_ERR_PEER_DIED,
                       "rank %u left the world while rank %u was waiting for it in a barrier",
                       wait->peer, wait->endpoint->rank);
}

weft_status_t wefti_mapped_barrier(wefti_endpoint_t *endpoint)
{
    uint32_t epoch = ++endpoint->barrier_epoch;
    wefti_signal_post(&endpoint->control[endpoint->rank]->barrier.signal, epoch);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        char what[48];
        snprintf(what, sizeof what, "rank %u in a barrier", r);
        barrier_wait_t wait = {endpoint, r, epoch};
        weft_status_t status = wefti_wait_signal(endpoint, &endpoint->control[r]->barrier.signal,
                                                 epoch, what, barrier_poll, &wait);
        if (status < 0) {
            /* The others would wait for an epoch that this rank will not complete. */
            wefti_endpoint_abort(endpoint, status, weft_last_error());
            return status;
        }
    }
    return WEFT_OK;
}

void wefti_mapped_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    (void)endpoint, (void)status, (void)text;
}

void wefti_mapped_nothing(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
}

weft_status_t wefti_mapped_all_alive(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
    return WEFT_OK;
}

void wefti_mapped_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                           char *reason, size_t reason_bytes)
{
    (void)peer;
    snprintf(name, name_bytes, "%s", endpoint->ops->name);
    snprintf(reason, reason_bytes, "%s", "");
}

void wefti_mapped_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    (void)endpoint, (void)peer, (void)out; /* zero already */
}

void wefti_mapped_bind_progress(wefti_endpoint_t *endpoint, const uint32_t *cpus,
                                uint32_t cpu_count)
{
    (void)endpoint, (void)cpus, (void)cpu_count;
}
