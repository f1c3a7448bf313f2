/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a backend in whose worlds all control blocks and regions are mapped. */
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

typedef struct gather_wait {
    wefti_endpoint_t *endpoint;
    uint32_t peer;
    uint32_t epoch;
    uint32_t kind; /* wefti_control_kind_t */
    uint64_t since_ns;
} gather_wait_t;

static bool describe(void *user, wefti_wait_t *out)
{
    const gather_wait_t *wait = user;
    const wefti_endpoint_t *endpoint = wait->endpoint;
    out->kind = WEFTI_WAIT_CONTROL;
    out->channel = WEFTI_WAIT_WORLD;
    out->number = wait->epoch;
    out->since_ns = wait->since_ns;
    snprintf(out->text, sizeof out->text, "%s", wefti_control_name(wait->kind));
    for (uint32_t r = 0; r < endpoint->world_size && out->late_count < WEFTI_WAIT_RANKS; r++) {
        if (!wefti_signal_has_reached(&endpoint->control[r]->gathered, wait->epoch)) {
            out->late[out->late_count++] = r;
        }
    }
    return !wefti_signal_has_reached(&endpoint->control[wait->peer]->gathered, wait->epoch);
}

/* The wait is for one rank, so its departure is found at once. */
static weft_status_t poll_peer(void *user)
{
    gather_wait_t *wait = user;
    wefti_endpoint_t *endpoint = wait->endpoint;
    wefti_endpoint_meanwhile(endpoint);
    wefti_control_t *control = endpoint->control[wait->peer];
    if (!wefti_endpoint_has_left(endpoint, wait->peer) ||
        wefti_signal_has_reached(&control->gathered, wait->epoch)) {
        return WEFT_OK;
    }
    /* A rank that ends the world does so before it leaves: its reason goes first. If it has not
     * mapped this rank's record, it wrote only its own. */
    WEFT_RETURN_IF_ERROR(wefti_endpoint_check(endpoint));
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&control->abort));
    return wefti_error(WEFT_ERR_PEER_DIED,
                       "rank %u left the world while rank %u was waiting for it in a control "
                       "all-gather or barrier",
                       wefti_endpoint_number(endpoint, wait->peer),
                       wefti_endpoint_number(endpoint, endpoint->rank));
}

static weft_status_t await_piece(wefti_endpoint_t *endpoint, uint32_t peer, uint32_t epoch)
{
    wefti_signal_t *gathered = &endpoint->control[peer]->gathered;
    if (wefti_signal_has_reached(gathered, epoch)) {
        return WEFT_OK;
    }
    char what[64];
    snprintf(what, sizeof what, "rank %u in a control all-gather or barrier",
             wefti_endpoint_number(endpoint, peer));
    gather_wait_t wait = {endpoint, peer, epoch, wefti_control_kind(), wefti_now_ns()};
    return wefti_wait_signal_described(endpoint, gathered, epoch, what, poll_peer, describe, &wait);
}

static wefti_mapped_control_t *mapped_of(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    return (wefti_mapped_control_t *)(void *)endpoint->control[rank];
}

/* Publishes this rank's piece from byte at on and copies those of all ranks to recv. */
static weft_status_t gather_piece(wefti_endpoint_t *endpoint, const uint8_t *send, size_t bytes,
                                  uint8_t *recv, size_t at)
{
    uint32_t epoch = ++endpoint->gather_epoch, half = epoch % 2;
    size_t piece = bytes - at < WEFTI_PIECE_BYTES ? bytes - at : WEFTI_PIECE_BYTES;
    wefti_mapped_control_t *own = mapped_of(endpoint, endpoint->rank);
    own->control.gather_bytes[half] = bytes;
    own->control.gather_kind[half] = wefti_control_kind();
    if (piece > 0) {
        memcpy(own->pieces[half], send + at, piece);
    }
    wefti_signal_post(&own->control.gathered, epoch);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        const wefti_mapped_control_t *peer = mapped_of(endpoint, r);
        WEFT_RETURN_IF_ERROR(await_piece(endpoint, r, epoch));
        if (peer->control.gather_kind[half] != wefti_control_kind()) {
            return wefti_control_mismatch(endpoint, r, peer->control.gather_kind[half]);
        }
        if (peer->control.gather_bytes[half] != bytes) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "control all-gather: size mismatch: rank %u has %llu bytes, rank %u "
                               "has %zu bytes",
                               wefti_endpoint_number(endpoint, r),
                               (unsigned long long)peer->control.gather_bytes[half],
                               wefti_endpoint_number(endpoint, endpoint->rank), bytes);
        }
        if (piece > 0) {
            memcpy(recv + r * bytes + at, peer->pieces[half], piece);
        }
    }
    return WEFT_OK;
}

/*
 * Two pieces per rank are enough: a rank publishes piece k + 2 only after it saw all ranks at k +
 * 1, and a rank is at k + 1 only after it copied all pieces k.
 */
weft_status_t wefti_mapped_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                      void *recv)
{
    weft_status_t status;
    size_t at = 0;
    do { /* once if there are no bytes: that is a barrier */
        status = gather_piece(endpoint, send, bytes, recv, at);
        at += WEFTI_PIECE_BYTES;
    } while (status == WEFT_OK && at < bytes);
    if (status < 0) {
        /* The others would wait for pieces that this rank will not publish. */
        wefti_endpoint_abort(endpoint, status, weft_last_error());
    }
    return status;
}

void wefti_mapped_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    (void)endpoint, (void)status, (void)text;
}

void wefti_mapped_nothing(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
}

bool wefti_mapped_control_sent(wefti_endpoint_t *endpoint, uint32_t number)
{
    return wefti_signal_has_reached(&endpoint->control[endpoint->rank]->gathered, number);
}

bool wefti_mapped_flush(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
    return true;
}

weft_status_t wefti_mapped_all_alive(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
    return WEFT_OK;
}

void wefti_mapped_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                           char *reason, size_t reason_bytes)
{
    bool threads = endpoint->control[peer]->pid == endpoint->control[endpoint->rank]->pid;
    snprintf(name, name_bytes, "%s", endpoint->ops->name);
    snprintf(reason, reason_bytes, "%s", threads ? "" : "processes of one host");
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
