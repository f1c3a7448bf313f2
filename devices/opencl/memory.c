/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device, found by address.
 *
 *   shared   A device of type CPU computes in host memory: blocks are pages of one file without a
 *            name, which other ranks of the host map as well, and buffers use these pages.
 *   else     A block is a buffer and a range of addresses that nothing is mapped at, which only
 *            name the bytes of the buffer. Other ranks cannot reach it.
 *
 * Counters are many and small: they lie side by side in slabs.
 */
#include "devices/opencl/opencl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)4096)
#define UNIT_BYTES ((size_t)128) /* of a slab: a counter on a line of its own */
#define UNITS 512u

/* Part of a handle: where the file is. */
typedef struct handle {
    uint64_t magic;
    int32_t process, file;
    uint64_t offset, bytes;
} handle_t;
#define MAGIC 0x77656674636c3031ull
_Static_assert(sizeof(handle_t) <= 64, "a handle has 64 bytes");

struct cl_slab {
    cl_slab_t *next;
    uint8_t *begin;
    uint32_t used_count;
    uint8_t used[UNITS];
};

static size_t round_up(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
}

/* The first block that ends after address. */
static size_t find(const cl_device_t *device, const uint8_t *address)
{
    size_t low = 0, high = device->block_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const cl_block_t *block = &device->blocks[middle];
        if (block->begin + block->bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static weft_status_t insert(cl_device_t *device, const cl_block_t *block)
{
    if (device->block_count == device->block_capacity) {
        size_t capacity = 2 * device->block_capacity + 16;
        cl_block_t *blocks = realloc(device->blocks, capacity * sizeof *blocks);
        if (blocks == NULL) {
            return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: list of blocks");
        }
        device->blocks = blocks;
        device->block_capacity = capacity;
    }
    size_t at = find(device, block->begin);
    memmove(&device->blocks[at + 1], &device->blocks[at],
            (device->block_count - at) * sizeof *block);
    device->blocks[at] = *block;
    device->block_count++;
    return WEFT_OK;
}

/*
 * Addresses for bytes, and an unused page, as calls on memory that lies side by side become one:
 * pages of a file, or, if file is -1, names only. NULL: there is no room.
 */
static uint8_t *map_addresses(size_t bytes, int file, uint64_t offset)
{
    size_t whole = round_up(bytes);
    uint8_t *begin = mmap(NULL, whole + PAGE_BYTES, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) {
        return NULL;
    }
    if (file >= 0 && mmap(begin, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                          (off_t)offset) == MAP_FAILED) {
        munmap(begin, whole + PAGE_BYTES);
        return NULL;
    }
    return begin;
}

static void release(const cl_device_t *device, const cl_block_t *block)
{
    if (block->memory != NULL) {
        clReleaseMemObject(block->memory);
    }
    munmap(block->begin, round_up(block->bytes) + PAGE_BYTES);
    if (device->shared && !block->imported && !block->foreign) {
        fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)block->file_offset, (off_t)block->bytes);
    }
}

static weft_status_t no_room(const cl_device_t *device, size_t bytes)
{
    return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: cannot allocate %zu bytes on device %s",
                   bytes, device->name);
}

/* The buffer of a block whose addresses are there. */
static weft_status_t make_buffer(cl_device_t *device, cl_block_t *block)
{
    cl_int code;
    uint32_t zero = 0;
    block->memory = clCreateBuffer(device->context,
                                   CL_MEM_READ_WRITE | (device->shared ? CL_MEM_USE_HOST_PTR : 0),
                                   block->bytes, device->shared ? block->begin : NULL, &code);
    if (code == CL_SUCCESS && !device->shared) {
        code = clEnqueueFillBuffer(device->copies, block->memory, &zero, sizeof zero, 0,
                                   block->bytes, 0, NULL, NULL);
        code = code == CL_SUCCESS ? clFinish(device->copies) : code;
    }
    return code == CL_SUCCESS ? WEFT_OK : no_room(device, block->bytes);
}

static weft_status_t add_block(cl_device_t *device, size_t bytes, cl_block_t *out)
{
    cl_block_t block = {.bytes = round_up(bytes), .file_offset = device->file_bytes};
    if (bytes > SIZE_MAX / 2 || block.bytes > (uint64_t)INT64_MAX - device->file_bytes) {
        return no_room(device, bytes);
    }
    if (device->shared && ftruncate(device->file, (off_t)(device->file_bytes + block.bytes)) != 0) {
        return no_room(device, bytes);
    }
    block.begin = map_addresses(block.bytes, device->shared ? device->file : -1, block.file_offset);
    if (block.begin == NULL) {
        return no_room(device, bytes);
    }
    device->file_bytes += device->shared ? block.bytes : 0;
    weft_status_t status = make_buffer(device, &block);
    status = status == WEFT_OK ? insert(device, &block) : status;
    if (status < 0) {
        release(device, &block);
        return status;
    }
    *out = block;
    return WEFT_OK;
}

/* ---- counters ---- */

static weft_status_t zero_unit(cl_device_t *device, uint8_t *unit)
{
    static const uint8_t zeros[UNIT_BYTES];
    const cl_block_t *block = &device->blocks[find(device, unit)];
    if (device->shared) {
        memset(unit, 0, UNIT_BYTES);
        return WEFT_OK;
    }
    cl_int code =
        clEnqueueWriteBuffer(device->copies, block->memory, CL_TRUE, (size_t)(unit - block->begin),
                             UNIT_BYTES, zeros, 0, NULL, NULL);
    return code == CL_SUCCESS ? WEFT_OK : cl_fail_code(device, "cannot zero memory", code);
}

static weft_status_t take_unit(cl_device_t *device, uint8_t **out_unit)
{
    cl_slab_t *slab = device->slabs;
    while (slab != NULL && slab->used_count == UNITS) {
        slab = slab->next;
    }
    if (slab == NULL) {
        cl_block_t block;
        weft_status_t status = add_block(device, UNITS * UNIT_BYTES, &block);
        slab = status == WEFT_OK ? calloc(1, sizeof *slab) : NULL;
        if (slab == NULL) { /* an unused block stays until the device is closed */
            return status == WEFT_OK ? no_room(device, UNIT_BYTES) : status;
        }
        slab->begin = block.begin;
        slab->next = device->slabs;
        device->slabs = slab;
    }
    uint32_t unit = 0;
    while (slab->used[unit]) {
        unit++;
    }
    *out_unit = slab->begin + unit * UNIT_BYTES;
    weft_status_t status = zero_unit(device, *out_unit);
    slab->used[unit] = status == WEFT_OK;
    slab->used_count += status == WEFT_OK;
    return status;
}

static bool give_unit_back(cl_device_t *device, const uint8_t *address)
{
    for (cl_slab_t *slab = device->slabs; slab != NULL; slab = slab->next) {
        if (address >= slab->begin && (size_t)(address - slab->begin) < UNITS * UNIT_BYTES) {
            slab->used[(size_t)(address - slab->begin) / UNIT_BYTES] = 0;
            slab->used_count--;
            return true;
        }
    }
    return false;
}

static void remove_block(cl_device_t *device, size_t at)
{
    release(device, &device->blocks[at]);
    memmove(&device->blocks[at], &device->blocks[at + 1],
            (--device->block_count - at) * sizeof *device->blocks);
}

/* ---- the table's functions ---- */

weft_status_t cl_mem_alloc(weft_device_t *base, size_t bytes, void **out_address)
{
    cl_device_t *device = (cl_device_t *)base;
    weft_status_t status;
    uint8_t *unit = NULL;
    cl_block_t block = {0};
    pthread_mutex_lock(&device->lock);
    if (bytes <= UNIT_BYTES) {
        status = take_unit(device, &unit);
    } else {
        status = add_block(device, bytes, &block);
    }
    pthread_mutex_unlock(&device->lock);
    if (status == WEFT_OK) {
        *out_address = bytes <= UNIT_BYTES ? unit : block.begin;
    }
    return status;
}

void cl_mem_free(weft_device_t *base, void *address)
{
    cl_device_t *device = (cl_device_t *)base;
    if (address == NULL) {
        return;
    }
    pthread_mutex_lock(&device->lock);
    device->frees++;
    size_t at = find(device, address);
    if (!give_unit_back(device, address) && at < device->block_count &&
        device->blocks[at].begin == address) {
        remove_block(device, at);
    }
    pthread_mutex_unlock(&device->lock);
}

weft_status_t cl_mem_export(weft_device_t *base, void *address, uint8_t out_handle[64])
{
    cl_device_t *device = (cl_device_t *)base;
    handle_t handle = {.magic = MAGIC, .process = (int32_t)getpid(), .file = device->file};
    memset(out_handle, 0, 64);
    if (!device->shared) { /* without WEFT_DEVICE_PEER_DIRECT nobody imports it */
        return WEFT_OK;
    }
    pthread_mutex_lock(&device->lock);
    size_t at = find(device, address);
    bool found = at < device->block_count && device->blocks[at].begin == address;
    if (found) {
        handle.offset = device->blocks[at].file_offset;
        handle.bytes = device->blocks[at].bytes;
    }
    pthread_mutex_unlock(&device->lock);
    if (!found) {
        return cl_fail(WEFT_ERR_INVALID_ARGUMENT, "device %s: %p is not the start of an allocation",
                       device->name, address);
    }
    memcpy(out_handle, &handle, sizeof handle);
    return WEFT_OK;
}

static weft_status_t map_file(const handle_t *handle, uint8_t **out_begin)
{
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->process, (int)handle->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return cl_fail(WEFT_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    }
    bool fits = fstat(file, &found) == 0 && handle->bytes > 0 &&
                handle->offset <= (uint64_t)found.st_size &&
                handle->bytes <= (uint64_t)found.st_size - handle->offset;
    *out_begin = fits ? map_addresses((size_t)handle->bytes, file, handle->offset) : NULL;
    close(file);
    return *out_begin != NULL
               ? WEFT_OK
               : cl_fail(WEFT_ERR_SYSTEM, "%s: cannot map %llu bytes at %llu", path,
                         (unsigned long long)handle->bytes, (unsigned long long)handle->offset);
}

weft_status_t cl_mem_import(weft_device_t *base, const uint8_t bytes[64], void **out_address)
{
    cl_device_t *device = (cl_device_t *)base;
    handle_t handle;
    uint8_t *begin = NULL;
    memcpy(&handle, bytes, sizeof handle);
    if (!device->shared || handle.magic != MAGIC) {
        return cl_fail(WEFT_ERR_UNSUPPORTED, "device %s: memory of a device of another kind",
                       device->name);
    }
    weft_status_t status = map_file(&handle, &begin);
    if (status < 0) {
        return status;
    }
    cl_block_t block = {.begin = begin, .bytes = (size_t)handle.bytes, .imported = true};
    pthread_mutex_lock(&device->lock);
    status = make_buffer(device, &block);
    status = status == WEFT_OK ? insert(device, &block) : status;
    if (status < 0) {
        release(device, &block);
    }
    pthread_mutex_unlock(&device->lock);
    if (status == WEFT_OK) {
        *out_address = begin;
    }
    return status;
}

void cl_mem_unimport(weft_device_t *device, void *address)
{
    cl_mem_free(device, address);
}

/* ---- buffers as the driver knows them ---- */

weft_status_t cl_mem_handle(weft_device_t *base, const void *address, void **out_handle,
                            uint64_t *out_offset_bytes)
{
    cl_device_t *device = (cl_device_t *)base;
    cl_place_t place;
    weft_status_t status = cl_place_need(device, address, 1, "address", &place);
    if (status == WEFT_OK) {
        *out_handle = place.memory;
        *out_offset_bytes = place.offset;
    }
    return status;
}

/* A buffer of the program gets addresses that only name its bytes. */
static weft_status_t add_foreign(cl_device_t *device, cl_mem memory, size_t bytes,
                                 uint8_t **out_begin)
{
    cl_block_t block = {.begin = map_addresses(bytes, -1, 0),
                        .bytes = bytes,
                        .memory = memory,
                        .foreign = true,
                        .wraps = 1};
    if (block.begin == NULL) {
        return no_room(device, bytes);
    }
    *out_begin = block.begin;
    clRetainMemObject(memory);
    weft_status_t status = insert(device, &block);
    if (status < 0) {
        release(device, &block);
    }
    return status;
}

weft_status_t cl_mem_wrap(weft_device_t *base, void *handle, uint64_t bytes, void **out_address)
{
    cl_device_t *device = (cl_device_t *)base;
    cl_mem memory = handle;
    cl_context context = NULL;
    size_t size = 0, at = 0;
    weft_status_t status = WEFT_OK;
    uint8_t *begin = NULL;
    if (clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof context, (void *)&context, NULL) !=
            CL_SUCCESS ||
        clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof size, &size, NULL) != CL_SUCCESS) {
        return cl_fail(WEFT_ERR_INVALID_ARGUMENT, "device %s: %p is not a cl_mem", device->name,
                       handle);
    }
    if (context != device->context) {
        return cl_fail(WEFT_ERR_UNSUPPORTED,
                       "device %s: the buffer belongs to another cl_context: make it in that of "
                       "memory of the device (CL_MEM_CONTEXT)",
                       device->name);
    }
    if (size < bytes) {
        return cl_fail(WEFT_ERR_INVALID_ARGUMENT,
                       "device %s: the buffer has %zu bytes: expected at least %llu", device->name,
                       size, (unsigned long long)bytes);
    }
    pthread_mutex_lock(&device->lock);
    while (at < device->block_count && device->blocks[at].memory != memory) {
        at++;
    }
    if (at < device->block_count) {
        device->blocks[at].wraps++;
        begin = device->blocks[at].begin;
    } else {
        status = add_foreign(device, memory, size, &begin);
    }
    pthread_mutex_unlock(&device->lock);
    if (status == WEFT_OK) {
        *out_address = begin;
    }
    return status;
}

void cl_mem_unwrap(weft_device_t *base, void *address)
{
    cl_device_t *device = (cl_device_t *)base;
    pthread_mutex_lock(&device->lock);
    device->frees++;
    size_t at = find(device, address);
    if (at < device->block_count && device->blocks[at].begin == address &&
        device->blocks[at].wraps > 0 && --device->blocks[at].wraps == 0 &&
        device->blocks[at].foreign) {
        remove_block(device, at);
    }
    pthread_mutex_unlock(&device->lock);
}

/* ---- places ---- */

cl_place_t cl_place_of(cl_device_t *device, const void *address)
{
    const uint8_t *byte = address;
    cl_place_t place = {0};
    pthread_mutex_lock(&device->lock);
    size_t at = find(device, byte);
    if (at < device->block_count && device->blocks[at].begin <= byte) {
        const cl_block_t *block = &device->blocks[at];
        place.memory = block->memory;
        place.offset = (size_t)(byte - block->begin);
        place.room = block->bytes - place.offset;
        place.host = device->shared && !block->foreign ? block->begin + place.offset : NULL;
    }
    pthread_mutex_unlock(&device->lock);
    return place;
}

weft_status_t cl_place_need(cl_device_t *device, const void *address, size_t bytes,
                            const char *what, cl_place_t *out_place)
{
    *out_place = cl_place_of(device, address);
    if (out_place->room == 0) {
        return cl_fail(WEFT_ERR_INVALID_ARGUMENT, "device %s: %s %p is not memory of the device",
                       device->name, what, address);
    }
    if (out_place->room < bytes) {
        return cl_fail(WEFT_ERR_INVALID_ARGUMENT,
                       "device %s: %s %p: %zu bytes exceed its allocation by %zu", device->name,
                       what, address, bytes, bytes - out_place->room);
    }
    return WEFT_OK;
}

weft_status_t cl_memory_open(cl_device_t *device)
{
    if (device->shared) {
        device->file = memfd_create("weft opencl", MFD_CLOEXEC);
        if (device->file < 0) {
            return cl_fail(WEFT_ERR_SYSTEM, "device %s: memfd_create failed: %s", device->name,
                           strerror(errno));
        }
    }
    return WEFT_OK;
}

void cl_memory_close(cl_device_t *device)
{
    for (size_t i = 0; i < device->block_count; i++) {
        release(device, &device->blocks[i]);
    }
    while (device->slabs != NULL) {
        cl_slab_t *next = device->slabs->next;
        free(device->slabs);
        device->slabs = next;
    }
    free(device->blocks);
    if (device->file >= 0) {
        close(device->file);
    }
}
