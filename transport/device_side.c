/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's memory next to host memory: ranks with a device have two regions. The one on the host
 * holds what the ranks' processors exchange. The one on the device belongs to a second endpoint,
 * which shares everything else (world, control blocks, liveness, backend) with the first.
 */
#include "transport/transport.h"

#include <sched.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "transport/endpoint.h"

/* Device memory cannot grow in place, so it is taken once. */
#define DEVICE_MIN_BYTES ((size_t)256 << 20)
#define ZERO_PIECE_BYTES ((size_t)1 << 20)

typedef struct offer {
    uint8_t handle[64];
    uint64_t bytes;
} offer_t;

static void release(wefti_endpoint_t *endpoint)
{
    const weft_device_ops_t *ops = endpoint->device->ops;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (endpoint->region_of[r] != NULL && r != endpoint->rank) {
            ops->mem_unimport(endpoint->device, endpoint->region_of[r]);
        }
    }
    if (endpoint->region_of[endpoint->rank] != NULL) {
        ops->mem_free(endpoint->device, endpoint->region_of[endpoint->rank]);
    }
    memset(endpoint->region_of, 0, endpoint->world_size * sizeof *endpoint->region_of);
    endpoint->region_bytes = 0;
}

/* Takes what it can get, from generous to just enough. */
static weft_status_t take(wefti_endpoint_t *endpoint, size_t bytes, offer_t *offer)
{
    weft_device_t *device = endpoint->device;
    size_t reserve = endpoint->settings->reserve_bytes & ~(size_t)(WEFTI_PAGE_BYTES - 1);
    size_t want = bytes <= DEVICE_MIN_BYTES / 2 ? DEVICE_MIN_BYTES : 2 * bytes;
    want = want < reserve ? want : reserve;
    void *address = NULL;
    weft_status_t status;
    for (;;) {
        status = device->ops->mem_alloc(device, want, &address);
        if (status == WEFT_OK || want == bytes) {
            break;
        }
        want = want / 2 > bytes ? wefti_align_up(want / 2, WEFTI_PAGE_BYTES) : bytes;
    }
    if (status < 0) {
        char text[32];
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: device %s cannot allocate %s",
                           device->ops->name, wefti_format_bytes(bytes, text));
    }
    endpoint->region_of[endpoint->rank] = address;
    offer->bytes = want;
    return device->ops->mem_export(device, address, offer->handle);
}

static weft_status_t import_all(wefti_endpoint_t *endpoint, const offer_t *offers)
{
    size_t least = SIZE_MAX;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        least = offers[r].bytes < least ? (size_t)offers[r].bytes : least;
        if (r == endpoint->rank || !wefti_endpoint_direct(endpoint, r)) {
            continue; /* the own, or a card of another host */
        }
        void *address = NULL;
        weft_status_t status =
            endpoint->device->ops->mem_import(endpoint->device, offers[r].handle, &address);
        if (status < 0) {
            return wefti_error_prefix(status, "cannot import the memory of rank %u", r);
        }
        endpoint->region_of[r] = address;
    }
    endpoint->region_bytes = least;
    return WEFT_OK;
}

weft_status_t wefti_device_side_grow(wefti_endpoint_t *endpoint, size_t bytes)
{
    if (endpoint->region_of[endpoint->rank] != NULL) {
        char need[32], have[32];
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "out of device memory: %s required, but the first allocation of %s cannot grow",
            wefti_format_bytes(bytes, need), wefti_format_bytes(endpoint->region_bytes, have));
    }
    offer_t own = {0};
    offer_t *offers = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof own);
    weft_status_t status = offers == NULL ? WEFT_ERR_NO_MEMORY : take(endpoint, bytes, &own);
    status = wefti_endpoint_agree(endpoint, status);
    if (status == WEFT_OK) {
        status = wefti_endpoint_all_gather(endpoint, &own, sizeof own, offers);
    }
    if (status == WEFT_OK) {
        status = wefti_endpoint_agree(endpoint, import_all(endpoint, offers));
    }
    wefti_free(endpoint->allocator, offers);
    if (status < 0) {
        release(endpoint);
    }
    return status;
}

weft_status_t wefti_device_side_zero(wefti_endpoint_t *endpoint, uint8_t *address, size_t bytes)
{
    const weft_device_ops_t *ops = endpoint->device->ops;
    weft_queue_t *queue = NULL;
    uint8_t *zeros = wefti_alloc(endpoint->allocator, ZERO_PIECE_BYTES);
    weft_status_t status =
        zeros == NULL ? WEFT_ERR_NO_MEMORY : ops->queue_create(endpoint->device, &queue);
    for (size_t at = 0; status == WEFT_OK && at < bytes; at += ZERO_PIECE_BYTES) {
        size_t piece = bytes - at < ZERO_PIECE_BYTES ? bytes - at : ZERO_PIECE_BYTES;
        status = ops->copy(queue, address + at, zeros, piece);
    }
    if (status == WEFT_OK && (status = ops->flush(queue)) == WEFT_OK) {
        while ((status = ops->query(queue)) == WEFT_IN_PROGRESS) {
            sched_yield();
        }
    }
    if (queue != NULL) {
        ops->queue_destroy(queue);
    }
    wefti_free(endpoint->allocator, zeros);
    return status;
}

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
    side->device = device;
    side->caps &= device->ops->caps & WEFT_DEVICE_PEER_DIRECT ? ~0ull : ~WEFTI_CAP_DIRECT;
    side->host_caps &= side->caps;
    side->region_bytes = side->region_fresh_bytes = 0;
    pthread_mutex_init(&side->blocks_lock, NULL);
    side->blocks = NULL;
    side->block_count = side->block_capacity = 0;
    side->region_of = wefti_alloc(host->allocator, count * sizeof *side->region_of);
    if (side->region_of == NULL) {
        wefti_endpoint_device_side_close(side);
        return WEFT_ERR_NO_MEMORY;
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
        release(side);
    }
    pthread_mutex_destroy(&side->blocks_lock);
    wefti_free(side->allocator, side->blocks);
    wefti_free(side->allocator, side->region_of);
    wefti_free(side->allocator, side);
}
