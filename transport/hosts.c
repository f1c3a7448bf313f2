/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world whose ranks may be on several hosts: shm among the ranks of each host (the inner
 * endpoint), link drivers between ranks of different hosts, and an overlay that carries what all
 * must know. When it turns out that all are on one host, what remains is shm.
 */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "transport/deadlock.h"

static wefti_hosts_t *hosts_of(wefti_endpoint_t *endpoint)
{
    return (wefti_hosts_t *)endpoint;
}

weft_status_t wefti_hosts_end_world(wefti_endpoint_t *endpoint, weft_status_t status)
{
    weft_status_t known = wefti_endpoint_check(endpoint);
    status = known < 0 ? known : status;
    wefti_endpoint_abort(endpoint, status, weft_last_error());
    return status;
}

static weft_status_t hosts_check_peers(wefti_endpoint_t *endpoint)
{
    wefti_endpoint_t *inner = endpoint->inner;
    WEFT_RETURN_IF_ERROR(inner != NULL ? inner->ops->check_peers(inner) : WEFT_OK);
    return wefti_hosts_check_suspects(hosts_of(endpoint));
}

static weft_status_t hosts_check_all_peers(wefti_endpoint_t *endpoint)
{
    wefti_endpoint_t *inner = endpoint->inner;
    WEFT_RETURN_IF_ERROR(inner != NULL ? inner->ops->check_all_peers(inner) : WEFT_OK);
    return wefti_hosts_check_suspects(hosts_of(endpoint));
}

/* ---- memory ---- */

static weft_status_t inner_grow(wefti_hosts_t *hosts, size_t bytes, bool later)
{
    wefti_endpoint_t *endpoint = &hosts->base, *inner = endpoint->inner;
    if (bytes <= inner->region_bytes) {
        return WEFT_OK; /* an earlier growth had come so far when a driver refused it */
    }
    weft_status_t status = inner->ops->region_grow(inner, bytes, later);
    if (status < 0) {
        /* If the inner endpoint has ended the world, other hosts do not know. */
        weft_status_t ended = wefti_endpoint_check(endpoint);
        if (ended < 0) {
            wefti_endpoint_abort(endpoint, ended, weft_last_error());
        }
        return ended < 0 ? ended : status;
    }
    atomic_store_explicit(&inner->region_bytes, bytes, memory_order_relaxed);
    for (uint32_t i = 0; i < inner->world_size; i++) {
        uint32_t r = hosts->world_of[i];
        if (endpoint->region_of[r] == NULL) { /* calls in flight may be looking */
            endpoint->region_of[r] = inner->region_of[i];
        }
    }
    return WEFT_OK;
}

static weft_status_t hosts_region_grow(wefti_endpoint_t *endpoint, size_t bytes, bool later)
{
    wefti_hosts_t *hosts = hosts_of(endpoint);
    size_t from = endpoint->region_bytes;
    weft_status_t status = wefti_endpoint_agree(endpoint, inner_grow(hosts, bytes, later));
    return status < 0 ? status : wefti_hosts_links_grow(hosts, from, bytes);
}

static weft_status_t hosts_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    return endpoint->inner->ops->region_commit(endpoint->inner, offset, bytes);
}

static weft_status_t hosts_region_map(wefti_endpoint_t *endpoint, size_t offset, size_t bytes,
                                      void *address)
{
    return endpoint->inner->ops->region_map(endpoint->inner, offset, bytes, address);
}

/* ---- opening and closing ---- */

/* Private control blocks for all ranks, from before the rendezvous; ranks of other hosts keep them.
 */
static weft_status_t make_blocks(wefti_hosts_t *hosts)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    uint32_t count = endpoint->world_size;
    const weft_allocator_t *allocator = endpoint->allocator;
    hosts->peers = wefti_alloc(allocator, count * sizeof *hosts->peers);
    hosts->local_of = wefti_alloc(allocator, count * sizeof *hosts->local_of);
    hosts->world_of = wefti_alloc(allocator, count * sizeof *hosts->world_of);
    hosts->via = wefti_alloc(allocator, count * sizeof *hosts->via);
    WEFT_RETURN_IF_NO_MEMORY(hosts->peers != NULL && hosts->local_of != NULL &&
                             hosts->world_of != NULL && hosts->via != NULL);
    for (uint32_t r = 0; r < count; r++) {
        endpoint->control[r] = &hosts->peers[r].control;
        hosts->local_of[r] = WEFTI_HOSTS_FAR;
        atomic_init(&hosts->via[r], WEFTI_HOSTS_NONE);
    }
    endpoint->control[endpoint->rank]->pid = (uint32_t)getpid();
    return WEFT_OK;
}

static void *answer(void *user, bool relays, uint32_t turn, size_t *out_bytes)
{
    const wefti_endpoint_t *endpoint = &((wefti_hosts_t *)user)->base;
    return endpoint->answer != NULL ? endpoint->answer(endpoint, relays, turn, out_bytes) : NULL;
}

static weft_status_t open_overlay(wefti_hosts_t *hosts, const wefti_endpoint_params_t *params)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    wefti_job_t job = {.rank = params->rank, .world_size = params->world_size};
    if (params->job == NULL) {
        if (strlen(params->address) >= sizeof job.address) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address is too long: %zu characters",
                               strlen(params->address));
        }
        snprintf(job.launcher, sizeof job.launcher, "arguments");
        snprintf(job.address, sizeof job.address, "%s", params->address);
    }
    wefti_overlay_params_t overlay = {
        .job = params->job != NULL ? params->job : &job,
        .settings = endpoint->settings,
        .log = endpoint->log,
        .allocator = endpoint->allocator,
        .interrupt = endpoint->interrupt,
        .user = hosts,
        .received = wefti_hosts_received,
        .left = wefti_hosts_left,
        .died = wefti_hosts_died,
        .answer = answer,
    };
    WEFT_RETURN_IF_ERROR(wefti_hosts_key(endpoint->settings, overlay.host_key));
    return wefti_overlay_open(&overlay, &hosts->overlay);
}

/* Asked while this rank opens its endpoint: others may have ended the world. What they report of
 * their waits goes on to the next ranks. */
static int ended(void *user)
{
    wefti_hosts_t *hosts = user;
    wefti_overlay_progress(hosts->overlay);
    return wefti_endpoint_check(&hosts->base) < 0;
}

static weft_status_t open_inner(wefti_hosts_t *hosts, const char *address, uint32_t local_count)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    hosts->inner_settings = *endpoint->settings;
    /* All of them exist: one that does not join now has died. */
    if (hosts->inner_settings.connect_timeout_ns != 0) {
        hosts->inner_settings.timeout_ns = hosts->inner_settings.connect_timeout_ns;
    }
    const wefti_endpoint_params_t params = {
        .rank = hosts->local_of[endpoint->rank],
        .world_size = local_count,
        .address = address,
        .settings = &hosts->inner_settings,
        .log = endpoint->log,
        .allocator = endpoint->allocator,
        .numbers = hosts->world_of,
        .outer = endpoint,
        .host_name = endpoint->host_count > 1
                         ? endpoint->host_names[endpoint->host_of[endpoint->rank]]
                         : NULL,
        .interrupt = {ended, hosts},
    };
    weft_status_t status = wefti_endpoint_open(&params, &endpoint->inner);
    hosts->inner_settings.timeout_ns = endpoint->settings->timeout_ns;
    if (status == WEFT_OK) {
        endpoint->inner->gather_moved_ns = wefti_overlay_moved(hosts->overlay);
        return wefti_hosts_gather_begin(hosts);
    }
    if (status == WEFT_ERR_NO_MEMORY) {
        wefti_error_prefix(status, "rank %u", endpoint->rank);
    }
    /* Without agreeing on it: a rank that does not join its host may not come to that either. */
    return wefti_hosts_end_world(endpoint, status);
}

/*
 * From here on this rank writes where the ranks of its host will read. They may be past the next
 * barrier, and read there, while this rank still waits in it.
 */
static void take_own_block(wefti_hosts_t *hosts)
{
    wefti_endpoint_t *endpoint = &hosts->base, *inner = endpoint->inner;
    wefti_control_t *before = &hosts->peers[endpoint->rank].control;
    wefti_control_t *own = inner->control[hosts->local_of[endpoint->rank]];
    /* Other hosts drop records that are older than the last ones they got. */
    wefti_waits_store(&own->waits,
                      atomic_load_explicit(&before->waits.generation, memory_order_relaxed), NULL,
                      0);
    endpoint->control[endpoint->rank] = own;
    /* Whatever has ended the world was written into the block of before. */
    weft_status_t status = wefti_fault_get(&before->abort);
    if (status < 0) {
        wefti_endpoint_abort_here(endpoint, status, weft_last_error());
    }
}

/* From here on the ranks of this host share their control blocks. */
static weft_status_t take_blocks(wefti_hosts_t *hosts)
{
    wefti_endpoint_t *endpoint = &hosts->base, *inner = endpoint->inner;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (hosts->local_of[r] != WEFTI_HOSTS_FAR) {
            endpoint->control[r] = inner->control[hosts->local_of[r]];
        } else {
            endpoint->caps &= ~WEFTI_CAP_DIRECT;
        }
    }
    return wefti_endpoint_check(endpoint);
}

wefti_endpoint_t *wefti_hosts_detach_inner(wefti_endpoint_t *endpoint)
{
    wefti_endpoint_t *inner = endpoint->inner;
    inner->settings = endpoint->settings;
    inner->numbers = NULL; /* the same as in the world */
    inner->outer = NULL;
    inner->gather_moved_ns = NULL;
    inner->interrupt = endpoint->interrupt;
    inner->host_names = endpoint->host_names;
    endpoint->host_names = NULL;
    endpoint->inner = NULL;
    return inner;
}

static weft_status_t hosts_open(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params)
{
    wefti_hosts_t *hosts = hosts_of(endpoint);
    char address[64];
    uint32_t local_count = 1;
    weft_status_t status;
    hosts->epoll_fd = hosts->event_fd = -1;
    pthread_mutex_init(&hosts->lock, NULL);
    WEFT_TRY(status, make_blocks(hosts), done);
    WEFT_TRY(status, open_overlay(hosts, params), done);
    endpoint->world_key =
        wefti_hash_bytes(WEFTI_HASH_START, wefti_overlay_key(hosts->overlay), WEFTI_LINK_KEY_BYTES);
    WEFT_TRY(status, wefti_hosts_group(hosts, address, &local_count), done);
    WEFT_TRY(status, open_inner(hosts, address, local_count), done);
    take_own_block(hosts);
    if (endpoint->host_count > 1) { /* else all ranks have met in the inner endpoint */
        WEFT_TRY(status, wefti_endpoint_barrier(endpoint), done);
    }
    WEFT_TRY(status, take_blocks(hosts), done);
    if (endpoint->host_count == 1) {
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_hosts_links_open(hosts), done);
    if (wefti_overlay_listen(hosts->overlay, endpoint->ask_name) < 0) {
        endpoint->ask_name[0] = '\0'; /* weft ps does without */
    }
    status = wefti_endpoint_agree(endpoint, wefti_hosts_thread_start(hosts));
    endpoint->inner->interrupt = endpoint->interrupt; /* the thread makes progress now */
done:
    return status;
}

static void hosts_close(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = hosts_of(endpoint);
    const weft_allocator_t *allocator = endpoint->allocator;
    bool forked = !wefti_endpoint_owned(endpoint);
    wefti_hosts_thread_stop(hosts, forked);
    /* The goodbye first, so that a connection that closes is no death. */
    if (hosts->overlay != NULL) {
        wefti_overlay_close(hosts->overlay, forked);
    }
    wefti_hosts_links_close(hosts, forked);
    wefti_endpoint_close(endpoint->inner);
    endpoint->inner = NULL;
    if (!forked) {
        pthread_mutex_destroy(&hosts->lock);
    }
    wefti_hosts_gather_end(hosts);
    wefti_free(allocator, (void *)hosts->via);
    wefti_free(allocator, hosts->firsts);
    wefti_free(allocator, hosts->world_of);
    wefti_free(allocator, hosts->local_of);
    wefti_free(allocator, hosts->peers);
}

const wefti_transport_ops_t wefti_transport_hosts = {
    .name = "hosts",
    .caps = WEFTI_CAP_DIRECT | WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL,
    .endpoint_bytes = sizeof(wefti_hosts_t),
    .open = hosts_open,
    .close = hosts_close,
    .all_gather = wefti_hosts_all_gather,
    .any = wefti_hosts_any,
    .region_grow = hosts_region_grow,
    .region_commit = hosts_region_commit,
    .region_map = hosts_region_map,
    .check_peers = hosts_check_peers,
    .check_all_peers = hosts_check_all_peers,
    .put = wefti_hosts_put,
    .signal = wefti_hosts_signal,
    .flush = wefti_hosts_flush,
    .aborted = wefti_hosts_aborted,
    .progress = wefti_hosts_progress,
    .yield_progress = wefti_hosts_yield_progress,
    .describe = wefti_hosts_describe,
    .link_stats = wefti_hosts_link_stats,
    .bind_progress = wefti_hosts_bind_progress,
    .waits_posted = wefti_hosts_waits_posted,
    .error_noted = wefti_hosts_error_noted,
    .refusal_changed = wefti_hosts_refusal_changed,
    .gave_up = wefti_hosts_gave_up,
    .control_sent = wefti_hosts_control_sent,
};
