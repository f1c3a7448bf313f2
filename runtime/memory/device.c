/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the context's device that is this rank's alone; copies that wait; what an address is.
 */
#include "runtime/memory/memory.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/device_plugin.h"

#define CHECK_EVERY 64u /* polls between two looks at the other ranks */
#define ALIGNMENT 64u
#define DLPACK_CPU 1

static weft_status_t check_context(weft_context_t *context)
{
    return wefti_endpoint_owned(context->endpoint) ? WEFT_OK
                                                   : wefti_endpoint_check(context->endpoint);
}

/* ---- allocations ---- */

/* What weft_device_alloc handed out. */
typedef struct block {
    uint8_t *address;
    size_t bytes;
} block_t;

/* Part of a context. */
typedef struct memory {
    block_t *blocks;
    size_t count, capacity;
    bool kept;            /* blocks stay when the context goes, and so does the device */
    weft_queue_t *queue;  /* of copies that wait, from the first one on */
    pthread_mutex_t lock; /* guards all of it */
} memory_t;

/* The block that has address, or NULL. */
static block_t *find_block(const memory_t *memory, const uint8_t *address)
{
    for (size_t i = 0; i < memory->count; i++) {
        block_t *block = &memory->blocks[i];
        if (address >= block->address && (size_t)(address - block->address) < block->bytes) {
            return block;
        }
    }
    return NULL;
}

static weft_status_t take(weft_context_t *context, size_t bytes, void **out_address)
{
    if (context->device != NULL) {
        weft_status_t status = context->device->ops->mem_alloc(context->device, bytes, out_address);
        return status == WEFT_OK && *out_address == NULL ? WEFT_ERR_NO_MEMORY : status;
    }
    if (bytes > WEFTI_ADDRESS_SPACE) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "out of memory: cannot allocate %zu bytes: exceeds the address space",
                           bytes);
    }
    void *address = aligned_alloc(ALIGNMENT, wefti_align_up(bytes, ALIGNMENT));
    if (address == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "out of memory: cannot allocate %zu bytes on device cpu", bytes);
    }
    memset(address, 0, bytes);
    *out_address = address;
    return WEFT_OK;
}

static void give_back(weft_context_t *context, void *address)
{
    if (context->device != NULL) {
        context->device->ops->mem_free(context->device, address);
    } else {
        free(address);
    }
}

static void memory_init(weft_context_t *context, void *part)
{
    (void)context;
    pthread_mutex_init(&((memory_t *)part)->lock, NULL);
}

static void memory_deinit(weft_context_t *context, void *part)
{
    memory_t *memory = part;
    /* In a forked child the queue's threads are not there; memory of a device is the parent's. */
    bool owned = context->endpoint != NULL && wefti_endpoint_owned(context->endpoint);
    for (size_t i = 0; i < memory->count; i++) {
        if ((owned && !memory->kept) || context->device == NULL) {
            give_back(context, memory->blocks[i].address);
        }
    }
    if (memory->queue != NULL && owned) {
        context->device->ops->queue_destroy(memory->queue);
    }
    wefti_free(context->allocator, memory->blocks);
    pthread_mutex_destroy(&memory->lock);
}

static bool memory_in_use(weft_context_t *context, void *part)
{
    memory_t *memory = part;
    if (memory->count > 0) {
        return true;
    }
    if (memory->queue != NULL) {
        context->device->ops->queue_destroy(memory->queue);
        memory->queue = NULL;
    }
    return false;
}

/* NULL: out of memory. */
static memory_t *memory_of(weft_context_t *context)
{
    static const wefti_part_ops_t ops = {sizeof(memory_t), memory_init, memory_deinit,
                                         memory_in_use};
    return wefti_part_get(context, WEFTI_PART_DEVICE_MEMORY, &ops);
}

weft_status_t weft_device_alloc(weft_context_t *context, size_t bytes, void **out_address)
{
    WEFT_CHECK_OUT(out_address);
    WEFT_CHECK_ARG(context);
    WEFT_RETURN_IF_ERROR(check_context(context));
    if (bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "bytes: must be at least 1: 0");
    }
    memory_t *memory = memory_of(context);
    void *address = NULL;
    WEFT_RETURN_IF_NO_MEMORY(memory);
    pthread_mutex_lock(&memory->lock);
    weft_status_t status =
        wefti_array_reserve(context->allocator, &memory->blocks, &memory->capacity,
                            memory->count + 1, sizeof *memory->blocks);
    status = status == WEFT_OK ? take(context, bytes, &address) : status;
    if (status == WEFT_OK) {
        memory->blocks[memory->count++] = (block_t){address, bytes};
        *out_address = address;
    }
    pthread_mutex_unlock(&memory->lock);
    return status;
}

weft_status_t weft_device_free(weft_context_t *context, void *address)
{
    WEFT_CHECK_ARG(context);
    WEFT_RETURN_IF_ERROR(check_context(context));
    if (address == NULL) {
        return WEFT_OK;
    }
    memory_t *memory = memory_of(context);
    WEFT_RETURN_IF_NO_MEMORY(memory);
    pthread_mutex_lock(&memory->lock);
    block_t *block = find_block(memory, address);
    bool found = block != NULL && block->address == address;
    if (found) {
        *block = memory->blocks[--memory->count];
        give_back(context, address);
    }
    pthread_mutex_unlock(&memory->lock);
    return found ? WEFT_OK
                 : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "address: %p was not allocated by weft_device_alloc", address);
}

weft_status_t weft_mem_keep(weft_context_t *context)
{
    WEFT_CHECK_ARG(context);
    if (context->one_process) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "context: memory of a hub is always freed with the context");
    }
    if (context->device == NULL) {
        wefti_region_keep(context->endpoint);
        return WEFT_OK;
    }
    memory_t *memory = memory_of(context);
    WEFT_RETURN_IF_NO_MEMORY(memory);
    if (!memory->kept && !wefti_device_retain(context->device)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "context: memory of device \"%s\", which the program passed, is always "
                           "freed with the context",
                           context->device->ops->name);
    }
    memory->kept = true;
    return WEFT_OK;
}

/* ---- the driver's names ---- */

weft_status_t weft_mem_get_handle(weft_context_t *context, const void *address,
                                  weft_mem_handle_t *out_handle)
{
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(address);
    WEFT_CHECK_ARG(out_handle);
    WEFT_RETURN_IF_ERROR(check_context(context));
    WEFT_RETURN_IF_ERROR(wefti_report_check("out_handle", out_handle));
    weft_mem_handle_t handle = {.handle = (void *)(uintptr_t)address, .dlpack_type = DLPACK_CPU};
    if (context->device != NULL) {
        const weft_device_ops_t *ops = context->device->ops;
        WEFT_RETURN_IF_ERROR(
            ops->mem_handle(context->device, address, &handle.handle, &handle.offset_bytes));
        handle.dlpack_type = ops->dlpack_type;
        handle.dlpack_index = ops->dlpack_index;
    }
    wefti_report_write(out_handle, &handle, sizeof handle);
    return WEFT_OK;
}

weft_status_t weft_mem_wrap(weft_context_t *context, void *handle, uint64_t bytes,
                            void **out_address)
{
    WEFT_CHECK_OUT(out_address);
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(handle);
    WEFT_RETURN_IF_ERROR(check_context(context));
    if (bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "bytes: must be at least 1: 0");
    }
    if (context->device != NULL) {
        /* relaxed: who uses the addresses in a call has them from here */
        atomic_store_explicit(&context->wraps, true, memory_order_relaxed);
        return context->device->ops->mem_wrap(context->device, handle, bytes, out_address);
    }
    *out_address = handle;
    return WEFT_OK;
}

weft_status_t weft_mem_unwrap(weft_context_t *context, void *address)
{
    WEFT_CHECK_ARG(context);
    WEFT_RETURN_IF_ERROR(check_context(context));
    if (context->device != NULL && address != NULL) {
        context->device->ops->mem_unwrap(context->device, address);
    }
    return WEFT_OK;
}

/* ---- copies that wait ---- */

static weft_status_t wait_done(weft_context_t *context, weft_queue_t *queue)
{
    const weft_device_ops_t *ops = context->device->ops;
    uint64_t timeout_ns = context->settings.timeout_ns;
    uint64_t start_ns = wefti_now_ns();
    for (uint32_t polls = 1;; polls++) {
        weft_status_t status = ops->query(queue);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        if (polls % CHECK_EVERY == 0) {
            WEFT_RETURN_IF_ERROR(wefti_endpoint_check(context->endpoint));
            if (timeout_ns != 0 && wefti_now_ns() - start_ns > timeout_ns) {
                return wefti_error(WEFT_ERR_TIMEOUT,
                                   "rank %u: waited %.3g s for device \"%s\" (WEFT_TIMEOUT)",
                                   context->endpoint->rank, (double)timeout_ns * 1e-9, ops->name);
            }
        }
        sched_yield();
    }
}

/* Ends what is queued, so that the caller's memory is not touched any more. */
static void give_up(const weft_device_ops_t *ops, memory_t *memory)
{
    ops->cancel(memory->queue);
    while (ops->query(memory->queue) == WEFT_IN_PROGRESS) {
        sched_yield();
    }
    ops->queue_destroy(memory->queue);
    memory->queue = NULL;
}

weft_status_t wefti_device_fill(const weft_device_ops_t *ops, weft_queue_t *queue, void *dst,
                                const void *pattern, size_t bytes)
{
    uint8_t *to = dst;
    size_t filled = bytes < WEFTI_FILL_BYTES ? bytes : WEFTI_FILL_BYTES;
    weft_status_t status = ops->copy(queue, to, pattern, filled);
    /* What is there already is the source of the rest. */
    while (status == WEFT_OK && filled < bytes) {
        size_t piece = bytes - filled < filled ? bytes - filled : filled;
        status = ops->copy(queue, to + filled, to, piece);
        filled += piece;
    }
    return status;
}

/* src NULL: a fill. */
static weft_status_t run_and_wait(weft_context_t *context, void *dst, const void *src,
                                  uint8_t value, size_t bytes)
{
    const weft_device_ops_t *ops = context->device->ops;
    memory_t *memory = memory_of(context);
    uint8_t pattern[WEFTI_FILL_BYTES];
    weft_status_t status = WEFT_OK;
    WEFT_RETURN_IF_NO_MEMORY(memory);
    memset(pattern, value, sizeof pattern);
    pthread_mutex_lock(&memory->lock);
    if (memory->queue == NULL) {
        status = ops->queue_create(context->device, &memory->queue);
        memory->queue = status < 0 ? NULL : memory->queue;
    }
    if (status == WEFT_OK) {
        status = src != NULL ? ops->copy(memory->queue, dst, src, bytes)
                             : wefti_device_fill(ops, memory->queue, dst, pattern, bytes);
        status = status == WEFT_OK ? ops->flush(memory->queue) : status;
        status = status == WEFT_OK ? wait_done(context, memory->queue) : status;
        if (status < 0) {
            char text[WEFTI_ERROR_TEXT_BYTES];
            snprintf(text, sizeof text, "%s", weft_last_error());
            give_up(ops, memory);
            wefti_error_adopt(status, text);
        }
    }
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static bool overlap(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    return a < b ? (size_t)(b - a) < bytes : (size_t)(a - b) < bytes;
}

weft_status_t weft_mem_copy(weft_context_t *context, void *dst, const void *src, size_t bytes)
{
    WEFT_CHECK_ARG(context);
    WEFT_RETURN_IF_ERROR(check_context(context));
    if (bytes == 0) {
        return WEFT_OK;
    }
    WEFT_CHECK_ARG(dst);
    WEFT_CHECK_ARG(src);
    if (overlap(dst, src, bytes)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "dst, src: the ranges overlap: %p, %p, %zu bytes", dst, src, bytes);
    }
    if (context->device != NULL) {
        return run_and_wait(context, dst, src, 0, bytes);
    }
    memcpy(dst, src, bytes);
    return WEFT_OK;
}

weft_status_t weft_mem_fill(weft_context_t *context, void *dst, uint8_t value, size_t bytes)
{
    WEFT_CHECK_ARG(context);
    WEFT_RETURN_IF_ERROR(check_context(context));
    if (bytes == 0) {
        return WEFT_OK;
    }
    WEFT_CHECK_ARG(dst);
    if (context->device != NULL) {
        return run_and_wait(context, dst, NULL, value, bytes);
    }
    memset(dst, value, bytes);
    return WEFT_OK;
}

/* ---- what an address is ---- */

static bool find_peer(const weft_context_t *context, const uint8_t *address, weft_mem_info_t *info)
{
    wefti_endpoint_t *endpoint = context->memory;
    const uint8_t *base = endpoint->region_of[endpoint->rank];
    size_t offset = (size_t)((uintptr_t)address - (uintptr_t)base);
    wefti_region_block_t block;
    if (base == NULL || !wefti_region_find(endpoint, offset, &block)) {
        return false;
    }
    info->kind = WEFT_MEM_KIND_PEER;
    info->base = endpoint->region_of[endpoint->rank] + block.offset;
    info->bytes = block.bytes;
    return true;
}

static bool find_device(weft_context_t *context, const uint8_t *address, weft_mem_info_t *info)
{
    memory_t *memory = wefti_part_find(context, WEFTI_PART_DEVICE_MEMORY);
    if (memory == NULL) {
        return false;
    }
    pthread_mutex_lock(&memory->lock);
    const block_t *block = find_block(memory, address);
    if (block != NULL) {
        info->kind = WEFT_MEM_KIND_DEVICE;
        info->base = block->address;
        info->bytes = block->bytes;
    }
    pthread_mutex_unlock(&memory->lock);
    return block != NULL;
}

weft_status_t weft_mem_query(weft_context_t *context, const void *address,
                             weft_mem_info_t *out_info)
{
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(address);
    WEFT_CHECK_ARG(out_info);
    WEFT_RETURN_IF_ERROR(check_context(context));
    WEFT_RETURN_IF_ERROR(wefti_report_check("out_info", out_info));
    weft_mem_info_t info = {.host_access = 1};
    wefti_registered_t registered;
    if (find_device(context, address, &info) || find_peer(context, address, &info)) {
        info.host_access = wefti_context_host_reaches(context);
    } else if (wefti_memory_registered(context, address, true, &registered)) {
        info.kind = WEFT_MEM_KIND_REGISTERED;
        info.base = registered.address;
        info.bytes = registered.bytes;
    }
    wefti_report_write(out_info, &info, sizeof info);
    return WEFT_OK;
}
