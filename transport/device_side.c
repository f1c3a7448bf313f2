/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's memory beside host memory: ranks with a card have two regions, one on the host, for
 * what the ranks' processors tell each other, and one on the card. The second is an endpoint of its
 * own that shares everything else (world, control blocks, liveness) with the first.
 */
#include "transport/transport.h"

#include <string.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"
#include "transport/world.h"

static weft_status_t side_open(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params)
{
    (void)params;
    return wefti_error(WEFT_ERR_INTERNAL,
                       "rank %u: a device endpoint cannot be opened without its host endpoint",
                       endpoint->rank);
}

static void side_close(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
}

static weft_status_t side_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                     void *recv)
{
    return endpoint->host->ops->all_gather(endpoint->host, send, bytes, recv);
}

static weft_status_t side_region_grow(wefti_endpoint_t *endpoint, size_t bytes)
{
    (void)bytes;
    return wefti_error(WEFT_ERR_INTERNAL, "rank %u: device memory cannot grow", endpoint->rank);
}

static weft_status_t side_check_peers(wefti_endpoint_t *endpoint)
{
    return endpoint->host->ops->check_peers(endpoint->host);
}

static weft_status_t side_put(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                              const void *data, size_t bytes, uint32_t lane, wefti_signal_t *in_use)
{
    (void)offset, (void)data, (void)bytes, (void)lane, (void)in_use;
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "unsupported put from the host to rank %u's device '%s'", peer,
                       endpoint->device->ops->name);
}

static weft_status_t side_signal(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                 uint32_t value, uint32_t lane)
{
    (void)value;
    return side_put(endpoint, peer, offset, NULL, 0, lane, NULL);
}

static void side_bind_progress(wefti_endpoint_t *endpoint, const uint32_t *cpus, uint32_t cpu_count)
{
    endpoint->host->ops->bind_progress(endpoint->host, cpus, cpu_count);
}

static weft_status_t side_barrier(wefti_endpoint_t *endpoint)
{
    return wefti_endpoint_barrier(endpoint->host);
}

static void side_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    endpoint->host->ops->aborted(endpoint->host, status, text);
}

static void side_progress(wefti_endpoint_t *endpoint)
{
    wefti_endpoint_progress(endpoint->host);
}

static void side_yield_progress(wefti_endpoint_t *endpoint)
{
    wefti_endpoint_yield_progress(endpoint->host);
}

static void side_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                          char *reason, size_t reason_bytes)
{
    wefti_endpoint_describe(endpoint->host, peer, name, name_bytes, reason, reason_bytes);
}

static void side_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    wefti_endpoint_link_stats(endpoint->host, peer, out);
}

static const wefti_transport_ops_t side_ops = {
    .abi_version = WEFTI_TRANSPORT_ABI_VERSION,
    .name = "device",
    .caps = WEFTI_CAP_DIRECT,
    .endpoint_bytes = sizeof(wefti_endpoint_t),
    .open = side_open,
    .close = side_close,
    .all_gather = side_all_gather,
    .region_grow = side_region_grow,
    .region_map = wefti_region_map_unsupported,
    .check_peers = side_check_peers,
    .put = side_put,
    .signal = side_signal,
    .flush = wefti_flush_direct,
    .barrier = side_barrier,
    .aborted = side_aborted,
    .progress = side_progress,
    .yield_progress = side_yield_progress,
    .describe = side_describe,
    .link_stats = side_link_stats,
    .bind_progress = side_bind_progress,
};

weft_status_t wefti_endpoint_device_side(wefti_endpoint_t *host, weft_device_t *device,
                                         wefti_endpoint_t **out_side)
{
    uint32_t count = host->world_size;
    wefti_endpoint_t *side = wefti_alloc(host->allocator, sizeof *side);
    *out_side = NULL;
    if (side == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *side = *host; /* control blocks, verdicts, settings and the owner's word are the host's */
    side->ops = &side_ops;
    side->host = host;
    side->device = device;
    side->caps &= device->ops->caps & WEFT_DEVICE_PEER_DIRECT ? ~0ull : ~WEFTI_CAP_DIRECT;
    side->region_bytes = side->region_used_bytes = side->region_fresh_bytes = 0;
    side->blocks = NULL;
    side->block_count = side->block_capacity = 0;
    side->region_of = wefti_alloc(host->allocator, count * sizeof *side->region_of);
    side->peer_caps = wefti_alloc(host->allocator, count * sizeof *side->peer_caps);
    if (side->region_of == NULL || side->peer_caps == NULL) {
        wefti_endpoint_device_side_close(side);
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < count; r++) {
        side->peer_caps[r] = host->peer_caps[r] & side->caps;
    }
    *out_side = side;
    return WEFT_OK;
}

void wefti_endpoint_device_side_close(wefti_endpoint_t *side)
{
    if (side == NULL) {
        return;
    }
    if (side->region_of != NULL && wefti_endpoint_owned(side)) {
        wefti_region_release(side);
    }
    wefti_free(side->allocator, side->blocks);
    wefti_free(side->allocator, side->region_of);
    wefti_free(side->allocator, side->peer_caps);
    wefti_free(side->allocator, side);
}
