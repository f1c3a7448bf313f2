/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region allocator: first fit over a sorted list of live blocks. Every rank runs it on the same
 * requests in the same order, and frees its blocks when it likes: a new one goes where there is
 * room on all ranks. Each rank says where it would put it; where they differ, all look again from
 * the highest of these places on. Ranks that have freed the same blocks agree at once.
 */
#include "transport/transport.h"

#include <pthread.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "transport/endpoint.h"
#include "transport/world.h"

/* Host memory grows in place by at least this. */
#define GROW_BYTES ((size_t)64 << 10)

typedef struct request {
    uint64_t bytes, offset;
    int32_t no_memory; /* this rank could not even make its list longer */
    int32_t pad;
} request_t;

/* Where the next block goes, at from or above it. */
static size_t first_fit(wefti_endpoint_t *endpoint, size_t bytes, size_t from)
{
    size_t offset = from;
    pthread_mutex_lock(&endpoint->blocks_lock);
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
    pthread_mutex_unlock(&endpoint->blocks_lock);
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

static weft_status_t grow(wefti_endpoint_t *endpoint, size_t end, bool later)
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
        return wefti_device_side_grow(endpoint, end);
    }
    size_t bytes = wefti_align_up(end, GROW_BYTES);
    bytes = bytes < reserve ? bytes : reserve;
    weft_status_t status = endpoint->ops->region_grow(endpoint, bytes, later);
    if (status == WEFT_OK) { /* calls in flight may be looking */
        atomic_store_explicit(&endpoint->region_bytes, bytes, memory_order_relaxed);
    }
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
        return wefti_device_side_zero(endpoint, address, dirty);
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
    if (offset + bytes > endpoint->region_fresh_bytes) {
        endpoint->region_fresh_bytes = offset + bytes;
    }
}

/* Memory of it is there at once, or later. */
static weft_status_t allocate(wefti_endpoint_t *endpoint, size_t bytes, bool later,
                              size_t *out_offset)
{
    weft_status_t status;
    request_t own = {.bytes = bytes};
    size_t aligned = bytes <= SIZE_MAX / 2 ? wefti_align_up(bytes, WEFTI_PAGE_BYTES) : 0;
    uint64_t lowest = 0, highest = 0;
    pthread_mutex_lock(&endpoint->blocks_lock);
    own.no_memory =
        wefti_array_reserve(endpoint->allocator, &endpoint->blocks, &endpoint->block_capacity,
                            endpoint->block_count + 1, sizeof *endpoint->blocks) < 0;
    pthread_mutex_unlock(&endpoint->blocks_lock);
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
    status = grow(endpoint, end, later);
    if (status < 0) {
        return status;
    }
    /* Also the point from which on peers may write here. */
    status = wefti_endpoint_agree(endpoint, clear(endpoint, (size_t)own.offset, aligned));
    if (status < 0) {
        return status;
    }
    pthread_mutex_lock(&endpoint->blocks_lock);
    insert_block(endpoint, (size_t)own.offset, aligned);
    pthread_mutex_unlock(&endpoint->blocks_lock);
    *out_offset = (size_t)own.offset;
    return WEFT_OK;
}

weft_status_t wefti_region_alloc(wefti_endpoint_t *endpoint, size_t bytes, size_t *out_offset)
{
    return allocate(endpoint, bytes, false, out_offset);
}

weft_status_t wefti_region_reserve(wefti_endpoint_t *endpoint, size_t bytes, size_t *out_offset)
{
    return allocate(endpoint, bytes, true, out_offset);
}

weft_status_t wefti_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    return endpoint->ops->region_commit(endpoint, offset, bytes);
}

void wefti_region_keep(wefti_endpoint_t *endpoint)
{
    for (; endpoint != NULL; endpoint = endpoint->inner) {
        endpoint->region_kept = true;
    }
}

/* The block that offset lies in, or NULL; under the lock. */
static wefti_region_block_t *find(wefti_endpoint_t *endpoint, size_t offset)
{
    for (size_t i = 0; i < endpoint->block_count; i++) {
        wefti_region_block_t *block = &endpoint->blocks[i];
        if (offset >= block->offset && offset - block->offset < block->bytes) {
            return block;
        }
    }
    return NULL;
}

bool wefti_region_find(wefti_endpoint_t *endpoint, size_t offset, wefti_region_block_t *out)
{
    if (!wefti_endpoint_owned(endpoint)) {
        return false; /* where the lock may be held for ever; and the region is not the child's */
    }
    pthread_mutex_lock(&endpoint->blocks_lock);
    const wefti_region_block_t *block = find(endpoint, offset);
    if (block != NULL) {
        *out = *block;
    }
    pthread_mutex_unlock(&endpoint->blocks_lock);
    return block != NULL;
}

bool wefti_region_free(wefti_endpoint_t *endpoint, size_t offset)
{
    if (!wefti_endpoint_owned(endpoint)) {
        return true; /* as in wefti_region_find: the parent's */
    }
    pthread_mutex_lock(&endpoint->blocks_lock);
    wefti_region_block_t *block = find(endpoint, offset);
    bool found = block != NULL && block->offset == offset;
    if (found) {
        wefti_region_block_t *end = endpoint->blocks + endpoint->block_count--;
        memmove(block, block + 1, (size_t)(end - (block + 1)) * sizeof *block);
    }
    pthread_mutex_unlock(&endpoint->blocks_lock);
    return found;
}
