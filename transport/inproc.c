/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process: regions and control blocks are plain memory of the hub.
 */
#include "transport/hub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "transport/world.h"

static void no_state(wefti_hub_fabric_t *fabric)
{
    (void)fabric;
}

static wefti_hub_fabric_t direct = {&wefti_transport_inproc, no_state, no_state};

weft_status_t weft_hub_create(uint32_t world_size, weft_hub_t **out_hub)
{
    WEFT_CHECK_OUT(out_hub);
    pthread_condattr_t attributes;
    if (world_size == 0 || world_size > WEFTI_MAX_WORLD) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid world size %u: must be between 1 and %u", world_size,
                           WEFTI_MAX_WORLD);
    }
    weft_hub_t *hub = wefti_alloc(NULL, sizeof *hub);
    size_t seats_bytes = world_size * sizeof *hub->seats;
    wefti_hub_seat_t *seats = aligned_alloc(_Alignof(wefti_hub_seat_t), seats_bytes);
    if (hub == NULL || seats == NULL) {
        wefti_free(NULL, hub);
        free(seats);
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot allocate a hub for %u ranks",
                           world_size);
    }
    memset(seats, 0, seats_bytes);
    hub->seats = seats;
    hub->world_size = world_size;
    hub->first = hub;
    hub->fabric = &direct;
    pthread_mutex_init(&hub->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&hub->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out_hub = hub;
    return WEFT_OK;
}

weft_status_t wefti_hub_set_fabric(weft_hub_t *hub, wefti_hub_fabric_t *fabric)
{
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&hub->lock);
    if (hub->joined_count > 0) {
        status = wefti_error(WEFT_ERR_STATE, "the ranks of this hub have already joined");
    } else {
        wefti_hub_fabric_t *former = hub->fabric;
        hub->fabric = fabric;
        fabric = former;
    }
    pthread_mutex_unlock(&hub->lock);
    fabric->destroy(fabric);
    return status;
}

/* The world is over; the hub is as new. Called with the lock held. */
static void reset(weft_hub_t *hub)
{
    hub->fabric->ended(hub->fabric);
    for (uint32_t r = 0; r < hub->world_size; r++) {
        wefti_range_unmap(&hub->seats[r].range);
    }
    memset(hub->seats, 0, hub->world_size * sizeof *hub->seats);
    hub->joined_count = 0;
    hub->complete = false;
    hub->failure = WEFT_OK;
    pthread_cond_broadcast(&hub->changed);
}

void weft_hub_destroy(weft_hub_t *hub)
{
    if (hub == NULL) {
        return;
    }
    while (hub->next != NULL) {
        weft_hub_t *successor = hub->next;
        hub->next = successor->next;
        successor->next = NULL;
        weft_hub_destroy(successor);
    }
    reset(hub);
    hub->fabric->destroy(hub->fabric);
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub->seats);
    wefti_free(NULL, hub);
}

weft_hub_t *wefti_endpoint_hub(wefti_endpoint_t *endpoint)
{
    bool thread = endpoint->ops != &wefti_transport_null && endpoint->ops != &wefti_transport_shm &&
                  endpoint->ops != &wefti_transport_hosts;
    return thread ? wefti_hub_of(endpoint) : NULL;
}

weft_status_t wefti_hub_successor(weft_hub_t *hub, uint32_t generation, uint32_t world_size,
                                  weft_hub_t **out_hub)
{
    weft_hub_t *first = hub->first;
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&first->lock);
    weft_hub_t *found = first->next;
    while (found != NULL && found->generation != generation) {
        found = found->next;
    }
    if (found == NULL && (status = weft_hub_create(world_size, &found)) == WEFT_OK) {
        found->first = first;
        found->generation = generation;
        found->next = first->next;
        first->next = found;
    }
    pthread_mutex_unlock(&first->lock);
    *out_hub = found;
    return status;
}

/* All ranks have left a successor. */
static void successor_destroy(weft_hub_t *hub)
{
    weft_hub_t *first = hub->first;
    pthread_mutex_lock(&first->lock);
    weft_hub_t **link = &first->next;
    while (*link != hub) {
        link = &(*link)->next;
    }
    *link = hub->next;
    hub->next = NULL;
    pthread_mutex_unlock(&first->lock);
    weft_hub_destroy(hub);
}

/* Waits for a change, at most one slice; called with the lock held. False: the deadline has passed.
 */
static bool wait_slice(weft_hub_t *hub, uint64_t deadline)
{
    uint64_t now = wefti_now_ns();
    if (now >= deadline) {
        return false;
    }
    uint64_t left = deadline - now;
    uint64_t end = now + (left < WEFTI_SLICE_NS ? left : WEFTI_SLICE_NS);
    struct timespec at = {.tv_sec = (time_t)(end / 1000000000ull),
                          .tv_nsec = (long)(end % 1000000000ull)};
    pthread_cond_timedwait(&hub->changed, &hub->lock, &at);
    return true;
}

/* The first reason wins; everyone who is joining returns it. */
static void fail_join(weft_hub_t *hub, weft_status_t status)
{
    if (hub->failure == WEFT_OK) {
        hub->failure = status;
        snprintf(hub->failure_text, sizeof hub->failure_text, "%s", weft_last_error());
        pthread_cond_broadcast(&hub->changed);
    }
}

static weft_status_t missing_error(const weft_hub_t *hub)
{
    char names[160] = "";
    size_t used = 0;
    for (uint32_t r = 0; r < hub->world_size && used + 16 < sizeof names; r++) {
        if (!hub->seats[r].joined) {
            used += (size_t)snprintf(names + used, sizeof names - used, " %u", r);
        }
    }
    return wefti_error(WEFT_ERR_TIMEOUT,
                       "not all of %u ranks joined before the timeout; missing ranks:%s",
                       hub->world_size, names);
}

/* Takes this rank's place. An old world that is ending is waited for. Called with the lock held. */
static weft_status_t take_place(weft_hub_t *hub, wefti_endpoint_t *endpoint,
                                const wefti_endpoint_params_t *params, uint64_t deadline)
{
    while ((hub->complete && hub->present_count < hub->world_size) || hub->failure != WEFT_OK) {
        if (!wait_slice(hub, deadline)) {
            return wefti_error(
                WEFT_ERR_TIMEOUT,
                "ranks of the hub's previous world did not leave before the timeout");
        }
    }
    if (params->world_size != hub->world_size) {
        weft_status_t status =
            wefti_error(WEFT_ERR_MISMATCH, "world size mismatch: rank %u has %u, the hub has %u",
                        params->rank, params->world_size, hub->world_size);
        if (hub->present_count > 0 && !hub->complete) {
            fail_join(hub, status);
        }
        return status;
    }
    wefti_hub_seat_t *seat = &hub->seats[params->rank];
    if (seat->joined) {
        weft_status_t status = wefti_error(
            WEFT_ERR_MISMATCH, "duplicate rank %u: two threads have the same rank", params->rank);
        if (!hub->complete) {
            fail_join(hub, status);
        }
        return status;
    }
    seat->joined = true;
    seat->endpoint = endpoint;
    seat->control.control.pid = (uint32_t)getpid();
    hub->joined_count++;
    hub->present_count++;
    hub->complete = hub->joined_count == hub->world_size;
    pthread_cond_broadcast(&hub->changed);
    return WEFT_OK;
}

static weft_status_t inproc_open(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params)
{
    weft_hub_t *hub = params->hub;
    uint64_t deadline = wefti_endpoint_deadline(endpoint);
    pthread_mutex_lock(&hub->lock);
    weft_status_t status = take_place(hub, endpoint, params, deadline);
    if (status == WEFT_OK) {
        ((wefti_hub_endpoint_t *)endpoint)->hub = hub;
        while (!hub->complete && hub->failure == WEFT_OK) {
            if (!wait_slice(hub, deadline)) {
                fail_join(hub, missing_error(hub));
            } else if (wefti_interrupted(&endpoint->interrupt)) {
                fail_join(hub, wefti_interrupt_error(endpoint->rank));
            }
        }
        if (!hub->complete) {
            status = wefti_error_adopt(hub->failure, hub->failure_text);
        }
    }
    pthread_mutex_unlock(&hub->lock);
    for (uint32_t r = 0; status == WEFT_OK && r < hub->world_size; r++) {
        endpoint->control[r] = &hub->seats[r].control.control;
    }
    return status;
}

static void inproc_close(wefti_endpoint_t *endpoint)
{
    weft_hub_t *hub = wefti_hub_of(endpoint);
    if (hub == NULL || !wefti_endpoint_owned(endpoint)) {
        return; /* a child may have been forked while another thread held the lock */
    }
    pthread_mutex_lock(&hub->lock);
    hub->seats[endpoint->rank].endpoint = NULL;
    bool ended = --hub->present_count == 0;
    bool last = ended && hub->complete && hub->first != hub;
    if (ended) {
        reset(hub);
    }
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    if (last) {
        successor_destroy(hub);
    }
}

static weft_status_t inproc_region_grow(wefti_endpoint_t *endpoint, size_t bytes, bool later)
{
    weft_hub_t *hub = wefti_hub_of(endpoint);
    weft_status_t status =
        wefti_range_grow(&hub->seats[endpoint->rank].range, endpoint, bytes, later);
    status = wefti_endpoint_agree(endpoint, status);
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        bool own_host = endpoint->host_of[r] == endpoint->host_of[endpoint->rank];
        if (endpoint->region_of[r] == NULL && own_host) { /* calls in flight may be looking */
            endpoint->region_of[r] = hub->seats[r].range.base;
        }
    }
    return status;
}

static weft_status_t inproc_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    const wefti_range_t *range = &wefti_hub_of(endpoint)->seats[endpoint->rank].range;
    return wefti_range_commit(range, endpoint, offset, offset + bytes);
}

const wefti_transport_ops_t wefti_transport_inproc = {
    .name = "inproc",
    .endpoint_bytes = sizeof(wefti_hub_endpoint_t),
    .open = inproc_open,
    .close = inproc_close,
    .region_grow = inproc_region_grow,
    .region_commit = inproc_region_commit,
    .region_map = wefti_region_map_unsupported,
    .check_peers = wefti_mapped_all_alive,
    .check_all_peers = wefti_mapped_all_alive,
    WEFTI_TRANSPORT_MAPPED,
};
