/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers reach: parts of the region, and adopted pages that were mapped over by parts of
 * it. */
#include <weft/memory.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/group/group.h"

#define PAGE_BYTES ((uintptr_t)4096)

weft_status_t weft_mem_alloc(weft_context_t *context, size_t bytes, void **out_address)
{
    WEFT_CHECK_OUT(out_address);
    WEFT_CHECK_ARG(context);
    size_t offset;
    if (bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "bytes: must be at least 1: 0");
    }
    weft_status_t status = wefti_region_alloc(context->memory, bytes, &offset);
    if (status == WEFT_OK) {
        *out_address = context->memory->region_of[context->endpoint->rank] + offset;
    }
    return status;
}

weft_status_t weft_mem_free(weft_context_t *context, void *address)
{
    WEFT_CHECK_ARG(context);
    wefti_endpoint_t *endpoint = context->memory;
    if (address == NULL || !wefti_endpoint_owned(endpoint)) {
        return WEFT_OK;
    }
    size_t offset = (size_t)((uint8_t *)address - endpoint->region_of[endpoint->rank]);
    if (wefti_region_has(endpoint, offset)) {
        wefti_region_free(endpoint, offset);
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address: %p was not allocated by weft_mem_alloc",
                       address);
}

weft_status_t weft_mem_keep(weft_context_t *context)
{
    WEFT_CHECK_ARG(context);
    if (context->one_process || context->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "context: memory of a %s is always freed with the context",
                           context->one_process ? "hub" : "device");
    }
    wefti_region_keep(context->endpoint);
    return WEFT_OK;
}

/* What is registered at address. Another thread may unregister meanwhile, so it is a copy. */
static bool find(weft_context_t *context, const void *address, wefti_adopted_t *out)
{
    wefti_eager_t *eager = context->eager;
    bool found = false;
    if (eager == NULL) {
        return false;
    }
    pthread_mutex_lock(&eager->adopted_lock);
    for (size_t i = 0; !found && i < eager->adopted_count; i++) {
        *out = eager->adopted[i];
        found = out->address == address;
    }
    pthread_mutex_unlock(&eager->adopted_lock);
    return found;
}

static void forget(wefti_eager_t *eager, const void *address)
{
    size_t kept = 0;
    pthread_mutex_lock(&eager->adopted_lock);
    for (size_t i = 0; i < eager->adopted_count; i++) {
        if (eager->adopted[i].address != address) {
            eager->adopted[kept++] = eager->adopted[i];
        }
    }
    /* relaxed: as those who look without the lock say */
    __atomic_store_n(&eager->adopted_count, kept, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&eager->adopted_lock);
}

/* Room in the region for the longest of all ranks' pages. */
static weft_status_t take_region(weft_context_t *context, wefti_adopted_t *adopted)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint64_t own = (uint64_t)(adopted->end - adopted->begin), longest = 0;
    uint64_t *all = wefti_alloc(context->allocator, endpoint->world_size * sizeof *all);
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status == WEFT_OK) {
        status = wefti_endpoint_all_gather(endpoint, &own, sizeof own, all);
    }
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        longest = all[r] > longest ? all[r] : longest;
    }
    wefti_free(context->allocator, all);
    if (status == WEFT_OK && longest > 0) {
        status = wefti_region_alloc(endpoint, longest, &adopted->offset);
        adopted->held = status == WEFT_OK;
    }
    return status;
}

static weft_status_t map_over(weft_context_t *context, const wefti_adopted_t *adopted)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    size_t bytes = (size_t)(adopted->end - adopted->begin);
    if (bytes == 0) {
        return WEFT_OK;
    }
    memcpy(endpoint->region_of[endpoint->rank] + adopted->offset, adopted->begin, bytes);
    return endpoint->ops->region_map(endpoint, adopted->offset, bytes, adopted->begin);
}

/* Private memory with the same contents moves over the shared pages in one step. */
static weft_status_t map_back(const wefti_adopted_t *adopted)
{
    size_t bytes = (size_t)(adopted->end - adopted->begin);
    if (bytes == 0) {
        return WEFT_OK;
    }
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, errno,
                                 "unregister: cannot map %zu bytes of private memory", bytes);
    }
    memcpy(copy, adopted->begin, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, adopted->begin) == MAP_FAILED) {
        weft_status_t status =
            wefti_error_errno(WEFT_ERR_SYSTEM, errno, "unregister: mremap failed");
        munmap(copy, bytes);
        return status;
    }
    return WEFT_OK;
}

/* Ranks that share an address space, or a world of one, reach everything already. */
static bool reaches_all(const weft_context_t *context)
{
    return context->one_process || context->endpoint->world_size == 1;
}

static weft_status_t check_range(weft_context_t *context, const uint8_t *address, size_t bytes)
{
    wefti_adopted_t other;
    if (address == NULL) {
        return wefti_error_null("weft_mem_register", "address");
    }
    if (bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "bytes: must be at least 1: 0");
    }
    if (bytes > SIZE_MAX - (uintptr_t)address) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "bytes: the range exceeds the address space: %zu bytes at %p", bytes,
                           (const void *)address);
    }
    if (find(context, address, &other)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address: %p is already registered",
                           (const void *)address);
    }
    return WEFT_OK;
}

weft_status_t weft_mem_register(weft_context_t *context, void *address, size_t bytes)
{
    WEFT_CHECK_ARG(context);
    wefti_eager_t *eager = NULL;
    if (context->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "context: cannot register host memory with device \"%s\"",
                           context->device->ops->name);
    }
    wefti_endpoint_t *endpoint = context->endpoint;
    weft_status_t status = wefti_eager_get(context, &eager);
    if (status == WEFT_OK) {
        status = check_range(context, address, bytes);
    }
    if (status == WEFT_OK) {
        pthread_mutex_lock(&eager->adopted_lock);
        status = wefti_array_reserve(context->allocator, &eager->adopted, &eager->adopted_capacity,
                                     eager->adopted_count + 1, sizeof *eager->adopted);
        pthread_mutex_unlock(&eager->adopted_lock);
    }
    wefti_adopted_t adopted = {.address = address, .bytes = bytes};
    if (!reaches_all(context)) {
        status = wefti_endpoint_agree(endpoint, status);
    }
    if (status < 0) {
        return status;
    }
    uintptr_t begin = ((uintptr_t)address + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    uintptr_t end = ((uintptr_t)address + bytes) & ~(PAGE_BYTES - 1);
    adopted.begin = (uint8_t *)address + (begin - (uintptr_t)address);
    adopted.end = end > begin ? adopted.begin + (end - begin) : adopted.begin;
    if (!reaches_all(context)) {
        status = take_region(context, &adopted);
        if (status < 0) {
            return status;
        }
        status = map_over(context, &adopted);
        /* No rank may touch a peer's pages before they are mapped. */
        weft_status_t agreed = wefti_endpoint_agree(endpoint, status);
        if (agreed < 0) {
            if (status == WEFT_OK) {
                map_back(&adopted);
            }
            if (adopted.held) {
                wefti_region_free(endpoint, adopted.offset);
            }
            return agreed;
        }
    }
    pthread_mutex_lock(&eager->adopted_lock);
    eager->adopted[eager->adopted_count] = adopted;
    __atomic_store_n(&eager->adopted_count, eager->adopted_count + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&eager->adopted_lock);
    return WEFT_OK;
}

weft_status_t weft_mem_unregister(weft_context_t *context, void *address)
{
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(address);
    wefti_adopted_t adopted;
    if (!wefti_endpoint_owned(context->endpoint)) { /* a forked child has not inherited the pages */
        return wefti_endpoint_check(context->endpoint);
    }
    if (!find(context, address, &adopted)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address: %p is not registered", address);
    }
    if (!reaches_all(context)) {
        weft_status_t status = map_back(&adopted);
        if (status < 0) {
            return status;
        }
    }
    forget(context->eager, address);
    if (adopted.held) {
        wefti_region_free(context->endpoint, adopted.offset);
    }
    return WEFT_OK;
}

/* Part of [address, end) lies within adopted pages. */
static bool reach_adopted(const wefti_adopted_t *adopted, const uint8_t *address,
                          const uint8_t *end, uint64_t *out_offset, uint32_t *out_lead,
                          uint32_t *out_trail)
{
    const uint8_t *from = address > adopted->begin ? address : adopted->begin;
    const uint8_t *to = end < adopted->end ? end : adopted->end;
    /* Only where no more than the partial pages at the ends is missing. */
    if (from >= to || (uintptr_t)(from - address) >= PAGE_BYTES ||
        (uintptr_t)(end - to) >= PAGE_BYTES) {
        return false;
    }
    *out_lead = (uint32_t)(from - address);
    *out_trail = (uint32_t)(end - to);
    /* Where address would be, if the pages before it had been adopted, too; wraps like addresses.
     */
    *out_offset = adopted->offset + (uint64_t)((uintptr_t)address - (uintptr_t)adopted->begin);
    return true;
}

bool wefti_memory_reach(weft_context_t *context, const void *address, size_t bytes,
                        uint64_t *out_offset, uint32_t *out_lead, uint32_t *out_trail)
{
    const wefti_endpoint_t *endpoint = context->endpoint;
    const uint8_t *begin = address;
    uint64_t offset = (uint64_t)((uintptr_t)begin - (uintptr_t)endpoint->region_of[endpoint->rank]);
    *out_lead = *out_trail = 0;
    *out_offset = offset;
    size_t limit = __atomic_load_n(&endpoint->region_bytes, __ATOMIC_RELAXED);
    if (offset < limit && bytes <= limit - offset) {
        return true;
    }
    wefti_eager_t *eager = context->eager;
    bool reached = false;
    /* relaxed: what this call uses was registered before it was issued */
    if (__atomic_load_n(&eager->adopted_count, __ATOMIC_RELAXED) == 0) {
        return false;
    }
    pthread_mutex_lock(&eager->adopted_lock);
    for (size_t i = 0; i < eager->adopted_count && !reached; i++) {
        const wefti_adopted_t *adopted = &eager->adopted[i];
        if (reaches_all(context)) {
            /* registered: everything of it counts, where it lies; but puts go to the region only */
            reached = (endpoint->caps & WEFTI_CAP_DIRECT) != 0 &&
                      begin >= adopted->begin - PAGE_BYTES &&
                      begin + bytes <= adopted->end + PAGE_BYTES;
        } else {
            reached = reach_adopted(adopted, begin, begin + bytes, out_offset, out_lead, out_trail);
        }
    }
    pthread_mutex_unlock(&eager->adopted_lock);
    return reached;
}

uint8_t *wefti_memory_of_peer(const weft_group_t *group, uint32_t rank, uint64_t offset,
                              uint64_t bytes)
{
    const wefti_endpoint_t *endpoint = group->endpoint;
    uint8_t *base = group->bases[rank];
    if (base == NULL) {
        return NULL; /* over a put link */
    }
    if (!group->context->one_process) {
        size_t limit = __atomic_load_n(&endpoint->region_bytes, __ATOMIC_RELAXED);
        if (offset > limit || bytes > limit - offset) {
            return NULL;
        }
    }
    return (uint8_t *)((uintptr_t)base + (uintptr_t)offset);
}
