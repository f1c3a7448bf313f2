/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region allocator: first fit over a sorted list of live blocks. Every rank runs it on the same
 * requests in the same order, and frees its blocks when it likes: a new one goes where there is
 * room on all ranks. Each rank says where it would put it; where they differ, all look again from
 * the highest of these places on. Ranks that have freed the same blocks agree at once.
 */
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "transport/endpoint.h"
#include "transport/world.h"

/* Host memory grows in place by at least this; device memory cannot grow, so it is taken once. */
#define GROW_BYTES ((size_t)64 << 10)
#define DEVICE_MIN_BYTES ((size_t)256 << 20)
#define ZERO_PIECE_BYTES ((size_t)1 << 20)

typedef struct request {
    uint64_t bytes, offset;
    int32_t no_memory; /* this rank could not even make its list longer */
    int32_t pad;
} request_t;

typedef struct device_offer {
    uint8_t handle[64];
    uint64_t bytes;
} device_offer_t;

/* Of an endpoint that is only looked at, too. */
static pthread_mutex_t *lock_of(const wefti_endpoint_t *endpoint)
{
    return (pthread_mutex_t *)(uintptr_t)&endpoint->blocks_lock;
}

/* Where the next block goes, at from or above it. */
static size_t first_fit(const wefti_endpoint_t *endpoint, size_t bytes, size_t from)
{
    size_t offset = from;
    pthread_mutex_lock(lock_of(endpoint));
    for (size_t i = 0; i < endpoint->block_count; i++) {
        const wefti_region_block_t *block = &endpoint->blocks[i];
        size_t end = block->offset + block->bytes;
        if (end <= offset) {
            continue;
        }
        if (block->offset >= offset && block->offset - offset >= bytes) {
            break;
        }
        offset = end;
    }
    pthread_mutex_unlock(lock_of(endpoint));
    return offset;
}

static weft_status_t compare_requests(const wefti_endpoint_t *endpoint, const request_t *requests,
                                      uint64_t *out_lowest, uint64_t *out_highest)
{
    *out_lowest = *out_highest = requests[0].offset;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        const request_t *a = &requests[0], *b = &requests[r];
        if (b->no_memory) {
            return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory on rank %u: list of regions", r);
        }
        if (a->bytes != b->bytes) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "region allocation: size mismatch: rank 0 requests %llu bytes, rank "
                               "%u requests %llu",
                               (unsigned long long)a->bytes, r, (unsigned long long)b->bytes);
        }
        *out_lowest = b->offset < *out_lowest ? b->offset : *out_lowest;
        *out_highest = b->offset > *out_highest ? b->offset : *out_highest;
    }
    if (requests[0].bytes == 0 || requests[0].bytes > SIZE_MAX / 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid region size: %llu bytes",
                           (unsigned long long)requests[0].bytes);
    }
    return WEFT_OK;
}

/* All ranks compare what they are about to do. */
static weft_status_t exchange_requests(wefti_endpoint_t *endpoint, const request_t *own,
                                       uint64_t *out_lowest, uint64_t *out_highest)
{
    request_t *requests = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *requests);
    if (requests == NULL) {
        /* The others wait for this rank's request; without it they must not go on. */
        wefti_endpoint_abort(endpoint, WEFT_ERR_NO_MEMORY, weft_last_error());
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = wefti_endpoint_all_gather(endpoint, own, sizeof *own, requests);
    if (status == WEFT_OK) {
        status = compare_requests(endpoint, requests, out_lowest, out_highest);
    }
    wefti_free(endpoint->allocator, requests);
    return status;
}

/* Takes what it can get, from generous to just enough: device memory cannot grow in place. */
static weft_status_t device_take(wefti_endpoint_t *endpoint, size_t bytes, device_offer_t *offer)
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

static weft_status_t device_import(wefti_endpoint_t *endpoint, const device_offer_t *offers)
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

static weft_status_t device_grow(wefti_endpoint_t *endpoint, size_t bytes)
{
    if (endpoint->region_of[endpoint->rank] != NULL) {
        char need[32], have[32];
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "out of device memory: %s required, but the first allocation of %s cannot grow",
            wefti_format_bytes(bytes, need), wefti_format_bytes(endpoint->region_bytes, have));
    }
    device_offer_t own = {0};
    size_t table_bytes = endpoint->world_size * sizeof own;
    device_offer_t *offers = wefti_alloc(endpoint->allocator, table_bytes);
    weft_status_t status = offers == NULL ? WEFT_ERR_NO_MEMORY : device_take(endpoint, bytes, &own);
    status = wefti_endpoint_agree(endpoint, status);
    if (status == WEFT_OK) {
        status = wefti_endpoint_all_gather(endpoint, &own, sizeof own, offers);
    }
    if (status == WEFT_OK) {
        status = wefti_endpoint_agree(endpoint, device_import(endpoint, offers));
    }
    wefti_free(endpoint->allocator, offers);
    if (status < 0) {
        wefti_region_release(endpoint);
    }
    return status;
}

void wefti_region_release(wefti_endpoint_t *endpoint)
{
    if (endpoint->device == NULL) {
        return;
    }
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

static weft_status_t grow(wefti_endpoint_t *endpoint, size_t end)
{
    if (end <= endpoint->region_bytes) {
        return WEFT_OK;
    }
    size_t reserve = endpoint->settings->reserve_bytes & ~(size_t)(WEFTI_PAGE_BYTES - 1);
    if (end > reserve) {
        char need[32], have[32];
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "out of reserved memory: %s required, %s reserved; raise WEFT_RESERVE_BYTES",
            wefti_format_bytes(end, need), wefti_format_bytes(reserve, have));
    }
    if (endpoint->device != NULL) {
        return device_grow(endpoint, end);
    }
    size_t bytes = wefti_align_up(end, GROW_BYTES);
    bytes = bytes < reserve ? bytes : reserve;
    weft_status_t status = endpoint->ops->region_grow(endpoint, bytes);
    if (status == WEFT_OK) { /* calls in flight may be looking */
        atomic_store_explicit(&endpoint->region_bytes, bytes, memory_order_relaxed);
    }
    return status;
}

static weft_status_t device_zero(wefti_endpoint_t *endpoint, uint8_t *address, size_t bytes)
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
    if (status == WEFT_OK) {
        status = ops->flush(queue);
    }
    while (status == WEFT_OK || status == WEFT_IN_PROGRESS) {
        status = ops->query(queue);
        if (status == WEFT_OK) {
            break;
        }
        sched_yield();
    }
    if (queue != NULL) {
        ops->queue_destroy(queue);
    }
    wefti_free(endpoint->allocator, zeros);
    return status;
}

/* Clears what an earlier owner may have left; memory above region_fresh_bytes is zero already. */
static weft_status_t clear(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    if (offset >= endpoint->region_fresh_bytes) {
        return WEFT_OK;
    }
    size_t dirty = endpoint->region_fresh_bytes - offset;
    dirty = dirty < bytes ? dirty : bytes;
    uint8_t *address = endpoint->region_of[endpoint->rank] + offset;
    if (endpoint->device != NULL) {
        return device_zero(endpoint, address, dirty);
    }
    memset(address, 0, dirty);
    return WEFT_OK;
}

static void insert_block(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    wefti_region_block_t *blocks = endpoint->blocks;
    size_t index = endpoint->block_count;
    while (index > 0 && blocks[index - 1].offset > offset) {
        blocks[index] = blocks[index - 1];
        index--;
    }
    blocks[index] = (wefti_region_block_t){offset, bytes};
    endpoint->block_count++;
    endpoint->region_used_bytes += bytes;
    if (offset + bytes > endpoint->region_fresh_bytes) {
        endpoint->region_fresh_bytes = offset + bytes;
    }
}

weft_status_t wefti_region_alloc(wefti_endpoint_t *endpoint, size_t bytes, size_t *out_offset)
{
    weft_status_t status;
    request_t own = {.bytes = bytes};
    size_t aligned = bytes <= SIZE_MAX / 2 ? wefti_align_up(bytes, WEFTI_PAGE_BYTES) : 0;
    uint64_t lowest = 0, highest = 0;
    pthread_mutex_lock(lock_of(endpoint));
    own.no_memory =
        wefti_array_reserve(endpoint->allocator, &endpoint->blocks, &endpoint->block_capacity,
                            endpoint->block_count + 1, sizeof *endpoint->blocks) < 0;
    pthread_mutex_unlock(lock_of(endpoint));
    do { /* the highest place only grows, and there is room above all blocks: it ends */
        own.offset = first_fit(endpoint, aligned, (size_t)highest);
        status = exchange_requests(endpoint, &own, &lowest, &highest);
        if (status < 0) {
            return status;
        }
    } while (lowest != highest);
    size_t end;
    if (!wefti_add_size((size_t)own.offset, aligned, &end)) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "%zu bytes exceed the address space", bytes);
    }
    /* The same on all ranks up to here, and grow agrees inside where ranks can differ. */
    status = grow(endpoint, end);
    if (status < 0) {
        return status;
    }
    /* Also the point from which on peers may write here. */
    status = wefti_endpoint_agree(endpoint, clear(endpoint, (size_t)own.offset, aligned));
    if (status < 0) {
        return status;
    }
    pthread_mutex_lock(lock_of(endpoint));
    insert_block(endpoint, (size_t)own.offset, aligned);
    pthread_mutex_unlock(lock_of(endpoint));
    *out_offset = (size_t)own.offset;
    return WEFT_OK;
}

void wefti_region_keep(wefti_endpoint_t *endpoint)
{
    for (; endpoint != NULL; endpoint = endpoint->inner) {
        endpoint->region_kept = true;
    }
}

bool wefti_region_find(const wefti_endpoint_t *endpoint, size_t offset, wefti_region_block_t *out)
{
    bool found = false;
    if (!wefti_endpoint_owned(endpoint)) {
        return false; /* as in wefti_region_free; and the region is not the child's */
    }
    pthread_mutex_lock(lock_of(endpoint));
    for (size_t i = 0; !found && i < endpoint->block_count; i++) {
        *out = endpoint->blocks[i];
        found = offset >= out->offset && offset - out->offset < out->bytes;
    }
    pthread_mutex_unlock(lock_of(endpoint));
    return found;
}

bool wefti_region_has(const wefti_endpoint_t *endpoint, size_t offset)
{
    wefti_region_block_t block;
    return wefti_region_find(endpoint, offset, &block) && block.offset == offset;
}

void wefti_region_free(wefti_endpoint_t *endpoint, size_t offset)
{
    bool found = false;
    if (!wefti_endpoint_owned(endpoint)) {
        return; /* a forked child, where the lock may be held for ever */
    }
    pthread_mutex_lock(lock_of(endpoint));
    for (size_t i = 0; !found && i < endpoint->block_count; i++) {
        if (endpoint->blocks[i].offset == offset) {
            endpoint->region_used_bytes -= endpoint->blocks[i].bytes;
            endpoint->block_count--;
            memmove(&endpoint->blocks[i], &endpoint->blocks[i + 1],
                    (endpoint->block_count - i) * sizeof *endpoint->blocks);
            found = true;
        }
    }
    pthread_mutex_unlock(lock_of(endpoint));
    if (!found) {
        wefti_log(endpoint->log, WEFT_LOG_LEVEL_ERROR,
                  "rank %u: cannot free offset %zu: no region starts there", endpoint->rank,
                  offset);
    }
}
