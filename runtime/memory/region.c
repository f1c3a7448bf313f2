/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers reach: parts of the region, and registered pages that were mapped over by parts
 * of it. */
#include "runtime/memory/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

#define PAGE_BYTES ((uintptr_t)4096)

weft_status_t weft_mem_alloc(weft_context_t *context, size_t bytes, void **out_address)
{
    WEFT_CHECK_OUT(out_address);
    WEFT_CHECK_ARG(context);
    size_t offset;
    if (bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "bytes: must be at least 1: 0");
    }
    WEFTI_IN_CONTROL(context->endpoint, MEM_ALLOC);
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
    uintptr_t base = (uintptr_t)endpoint->region_of[endpoint->rank];
    if (address == NULL || wefti_region_free(endpoint, (size_t)((uintptr_t)address - base))) {
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address: %p was not allocated by weft_mem_alloc",
                       address);
}

/* ---- the list ---- */

/* Part of a context. */
typedef struct registry {
    wefti_registered_t *list;
    _Atomic size_t count; /* a call in flight looks without the lock whether there is any */
    size_t capacity;
    pthread_mutex_t lock; /* calls in flight look while the list changes */
} registry_t;

static void registry_init(weft_context_t *context, void *part)
{
    (void)context;
    pthread_mutex_init(&((registry_t *)part)->lock, NULL);
}

static void registry_deinit(weft_context_t *context, void *part)
{
    registry_t *registry = part;
    pthread_mutex_destroy(&registry->lock);
    wefti_free(context->allocator, registry->list);
}

static registry_t *find_registry(const weft_context_t *context)
{
    return wefti_part_find(context, WEFTI_PART_REGISTERED);
}

static size_t count_of(const registry_t *registry)
{
    /* relaxed: what a call uses was registered before it was issued */
    return registry != NULL ? atomic_load_explicit(&registry->count, memory_order_relaxed) : 0;
}

static void set_count(registry_t *registry, size_t count)
{
    atomic_store_explicit(&registry->count, count, memory_order_relaxed);
}

bool wefti_memory_registered(const weft_context_t *context, const void *address, bool inside,
                             wefti_registered_t *out)
{
    registry_t *registry = find_registry(context);
    bool found = false;
    if (registry == NULL) {
        return false;
    }
    pthread_mutex_lock(&registry->lock);
    for (size_t i = 0; !found && i < count_of(registry); i++) {
        *out = registry->list[i];
        uintptr_t offset = (uintptr_t)address - (uintptr_t)out->address;
        found = offset < (inside ? out->bytes : 1);
    }
    pthread_mutex_unlock(&registry->lock);
    return found;
}

/* Room for one more. */
static weft_status_t reserve(weft_context_t *context, registry_t **out_registry)
{
    static const wefti_part_ops_t ops = {sizeof(registry_t), registry_init, registry_deinit,
                                         wefti_part_always_in_use};
    registry_t *registry = wefti_part_get(context, WEFTI_PART_REGISTERED, &ops);
    *out_registry = registry;
    if (registry == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    pthread_mutex_lock(&registry->lock);
    weft_status_t status =
        wefti_array_reserve(context->allocator, &registry->list, &registry->capacity,
                            count_of(registry) + 1, sizeof *registry->list);
    pthread_mutex_unlock(&registry->lock);
    return status;
}

static void add(registry_t *registry, const wefti_registered_t *registered)
{
    pthread_mutex_lock(&registry->lock);
    registry->list[count_of(registry)] = *registered;
    set_count(registry, count_of(registry) + 1);
    pthread_mutex_unlock(&registry->lock);
}

static void forget(registry_t *registry, const uint8_t *address)
{
    pthread_mutex_lock(&registry->lock);
    size_t count = count_of(registry);
    for (size_t i = 0; i < count; i++) {
        if (registry->list[i].address == address) {
            registry->list[i] = registry->list[count - 1];
            set_count(registry, count - 1);
            break;
        }
    }
    pthread_mutex_unlock(&registry->lock);
}

/* ---- pages that peers map ---- */

/* Room in the region for the longest of all ranks' pages. */
static weft_status_t take_region(weft_context_t *context, wefti_registered_t *registered)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint64_t own = (uint64_t)(registered->end - registered->begin), longest = 0;
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
    return status == WEFT_OK && longest > 0
               ? wefti_region_alloc(endpoint, longest, &registered->offset)
               : status;
}

static weft_status_t map_over(weft_context_t *context, const wefti_registered_t *registered)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    size_t bytes = (size_t)(registered->end - registered->begin);
    if (bytes == 0) {
        return WEFT_OK;
    }
    memcpy(endpoint->region_of[endpoint->rank] + registered->offset, registered->begin, bytes);
    return endpoint->ops->region_map(endpoint, registered->offset, bytes, registered->begin);
}

/* Private memory with the same contents moves over the shared pages in one step. */
static weft_status_t map_back(const wefti_registered_t *registered)
{
    size_t bytes = (size_t)(registered->end - registered->begin);
    if (bytes == 0) {
        return WEFT_OK;
    }
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, errno,
                                 "unregister: cannot map %zu bytes of private memory", bytes);
    }
    memcpy(copy, registered->begin, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, registered->begin) ==
        MAP_FAILED) {
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
    wefti_registered_t other;
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
    if (wefti_memory_registered(context, address, false, &other)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address: %p is already registered",
                           (const void *)address);
    }
    return WEFT_OK;
}

/* Takes the pages' place in the region and maps it over them. Collective. */
static weft_status_t share_pages(weft_context_t *context, wefti_registered_t *registered)
{
    WEFT_RETURN_IF_ERROR(take_region(context, registered));
    weft_status_t status = map_over(context, registered);
    /* No rank may touch a peer's pages before they are mapped. */
    weft_status_t agreed = wefti_endpoint_agree(context->endpoint, status);
    if (agreed < 0) {
        if (status == WEFT_OK) {
            map_back(registered);
        }
        wefti_region_free(context->endpoint, registered->offset);
    }
    return agreed;
}

weft_status_t weft_mem_register(weft_context_t *context, void *address, size_t bytes)
{
    WEFT_CHECK_ARG(context);
    WEFTI_IN_CONTROL(context->endpoint, MEM_REGISTER);
    registry_t *registry = NULL;
    if (context->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "context: cannot register host memory with device \"%s\"",
                           context->device->ops->name);
    }
    weft_status_t status = check_range(context, address, bytes);
    if (status == WEFT_OK) {
        status = reserve(context, &registry);
    }
    if (!reaches_all(context)) {
        status = wefti_endpoint_agree(context->endpoint, status);
    }
    WEFT_RETURN_IF_ERROR(status);
    uintptr_t from = (uintptr_t)address;
    uintptr_t begin = (from + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    uintptr_t end = (from + bytes) & ~(PAGE_BYTES - 1);
    wefti_registered_t registered = {.address = address, .bytes = bytes, .offset = SIZE_MAX};
    registered.begin = registered.address + (begin - from);
    registered.end = end > begin ? registered.begin + (end - begin) : registered.begin;
    if (!reaches_all(context)) {
        WEFT_RETURN_IF_ERROR(share_pages(context, &registered));
    }
    add(registry, &registered);
    return WEFT_OK;
}

weft_status_t weft_mem_unregister(weft_context_t *context, void *address)
{
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(address);
    wefti_registered_t registered;
    if (!wefti_endpoint_owned(context->endpoint)) { /* a forked child has not inherited the pages */
        return wefti_endpoint_check(context->endpoint);
    }
    if (!wefti_memory_registered(context, address, false, &registered)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address: %p is not registered", address);
    }
    if (!reaches_all(context)) {
        WEFT_RETURN_IF_ERROR(map_back(&registered));
    }
    forget(find_registry(context), address);
    wefti_region_free(context->endpoint, registered.offset);
    return WEFT_OK;
}

/* Part of [address, end) lies within registered pages. */
static bool reach_pages(const wefti_registered_t *registered, const uint8_t *address,
                        const uint8_t *end, uint64_t *out_offset, uint32_t *out_lead,
                        uint32_t *out_trail)
{
    const uint8_t *from = address > registered->begin ? address : registered->begin;
    const uint8_t *to = end < registered->end ? end : registered->end;
    /* Only where no more than the partial pages at the ends is missing. */
    if (from >= to || (uintptr_t)(from - address) >= PAGE_BYTES ||
        (uintptr_t)(end - to) >= PAGE_BYTES) {
        return false;
    }
    *out_lead = (uint32_t)(from - address);
    *out_trail = (uint32_t)(end - to);
    /* Where address would be, if the pages before it were registered; wraps like addresses. */
    *out_offset =
        registered->offset + (uint64_t)((uintptr_t)address - (uintptr_t)registered->begin);
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
    size_t limit = atomic_load_explicit(&endpoint->region_bytes, memory_order_relaxed);
    if (offset < limit && bytes <= limit - offset) {
        return true;
    }
    registry_t *registry = find_registry(context);
    bool reached = false;
    if (count_of(registry) == 0) {
        return false;
    }
    pthread_mutex_lock(&registry->lock);
    for (size_t i = 0; i < count_of(registry) && !reached; i++) {
        const wefti_registered_t *registered = &registry->list[i];
        if (reaches_all(context)) {
            /* registered: everything of it counts, where it lies; but puts go to the region only */
            reached = (endpoint->caps & WEFTI_CAP_DIRECT) != 0 &&
                      begin >= registered->begin - PAGE_BYTES &&
                      begin + bytes <= registered->end + PAGE_BYTES;
        } else {
            reached =
                reach_pages(registered, begin, begin + bytes, out_offset, out_lead, out_trail);
        }
    }
    pthread_mutex_unlock(&registry->lock);
    return reached;
}
