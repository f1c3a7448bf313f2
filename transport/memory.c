/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of address space that memory is put into step by step, and the memfds behind shared ones.
 */
#include "transport/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/machine/machine.h"

#define HUGE_BYTES ((size_t)2 << 20)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Address space only: aligned to a huge page, so that huge pages can be used where there are any.
 */
static uint8_t *reserve_aligned(size_t bytes)
{
    size_t padded;
    if (!wefti_add_size(bytes, HUGE_BYTES, &padded)) {
        return NULL;
    }
    uint8_t *raw =
        mmap(NULL, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        return NULL;
    }
    uint8_t *base = (uint8_t *)wefti_align_up((uintptr_t)raw, HUGE_BYTES);
    if (base > raw) {
        munmap(raw, (size_t)(base - raw));
    }
    if (base + bytes < raw + padded) {
        munmap(base + bytes, (size_t)(raw + padded - (base + bytes)));
    }
    return base;
}

weft_status_t wefti_range_map(wefti_range_t *range, int fd, size_t bytes)
{
    char text[32];
    bytes &= ~(size_t)(WEFTI_PAGE_BYTES - 1);
    uint8_t *base = bytes > 0 ? reserve_aligned(bytes) : NULL;
    if (base != NULL && fd >= 0 &&
        mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) ==
            MAP_FAILED) {
        munmap(base, bytes);
        base = NULL;
    }
    if (base == NULL) {
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "cannot reserve %s of address space; lower WEFT_RESERVE_BYTES or raise ulimit -v",
            wefti_format_bytes(bytes, text));
    }
    if (fd >= 0) {
        /* A forked child's stores would reach the arena. */
        madvise(base, bytes, MADV_DONTFORK);
    }
    madvise(base, bytes, MADV_HUGEPAGE);
    range->base = base;
    range->bytes = bytes;
    return WEFT_OK;
}

void wefti_range_unmap(wefti_range_t *range)
{
    if (range->base != NULL) {
        munmap(range->base, range->bytes);
        range->base = NULL;
    }
}

/* Reads and writes back one word per page: what MADV_POPULATE_WRITE does, for kernels before 5.14.
 */
static void touch(uint8_t *begin, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += WEFTI_PAGE_BYTES) {
        _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)(begin + at);
        atomic_fetch_add_explicit(word, 0, memory_order_relaxed);
    }
}

void wefti_range_populate(const wefti_range_t *range, size_t from, size_t to)
{
    if (to > from && madvise(range->base + from, to - from, MADV_POPULATE_WRITE) != 0 &&
        errno == EINVAL) {
        touch(range->base + from, to - from);
    }
}

weft_status_t wefti_range_commit(const wefti_range_t *range, const wefti_endpoint_t *endpoint,
                                 size_t from, size_t to)
{
    WEFT_RETURN_IF_ERROR(wefti_memory_check(to - from, endpoint->world_size));
    wefti_binding_prefer_near(range->base + from, to - from);
    wefti_range_populate(range, from, to);
    return WEFT_OK;
}

weft_status_t wefti_range_grow(wefti_range_t *range, const wefti_endpoint_t *endpoint, size_t bytes,
                               bool later)
{
    char text[32];
    if (range->base == NULL) {
        WEFT_RETURN_IF_ERROR(wefti_range_map(range, -1, endpoint->settings->reserve_bytes));
    }
    size_t from = endpoint->region_bytes;
    if (mprotect(range->base + from, bytes - from, PROT_READ | PROT_WRITE) != 0) {
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, errno, "out of memory: cannot grow by %s",
                                 wefti_format_bytes(bytes - from, text));
    }
    return later ? WEFT_OK : wefti_range_commit(range, endpoint, from, bytes);
}

/* "[advise]": huge pages come by page fault on advised ranges, but not by fallocate. */
static bool huge_by_fault(void)
{
    char line[128];
    return wefti_read_line(line, sizeof line,
                           "/sys/kernel/mm/transparent_hugepage/shmem_enabled") &&
           strstr(line, "[advise]") != NULL;
}

/*
 * fallocate and ftruncate beyond RLIMIT_FSIZE raise SIGXFSZ in the calling thread, which would end
 * the process: it is held back meanwhile and taken away if it was ours.
 */
static int resize_quietly(int fd, size_t from, size_t to, bool only_length)
{
    sigset_t xfsz, previous, pending;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &xfsz, &previous);
    sigpending(&pending);
    bool was_pending = sigismember(&pending, SIGXFSZ) == 1;
    int result;
    do {
        result = only_length ? ftruncate(fd, (off_t)to)
                             : fallocate(fd, 0, (off_t)from, (off_t)(to - from));
    } while (result != 0 && errno == EINTR);
    int error_number = result == 0 ? 0 : errno;
    if (error_number == EFBIG && !was_pending) {
        const struct timespec at_once = {0, 0};
        while (sigtimedwait(&xfsz, NULL, &at_once) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return error_number;
}

static weft_status_t no_room(int error_number, size_t bytes)
{
    char text[32];
    return wefti_error_errno(
        WEFT_ERR_NO_MEMORY, error_number, "out of shared memory: cannot grow by %s%s",
        wefti_format_bytes(bytes, text),
        error_number == EFBIG ? "; raise the file size limit (ulimit -f)" : "");
}

weft_status_t wefti_memfd_extend(int fd, size_t bytes)
{
    int error_number = resize_quietly(fd, 0, bytes, true);
    return error_number == 0 ? WEFT_OK : no_room(error_number, bytes);
}

weft_status_t wefti_memfd_commit(int fd, size_t at, const wefti_range_t *range, size_t from,
                                 size_t to)
{
    wefti_binding_prefer_near(range->base + from, to - from); /* before there are any pages */
    if (huge_by_fault()) {
        madvise(range->base + from, to - from, MADV_POPULATE_WRITE); /* best effort */
    }
    int error_number = resize_quietly(fd, at + from, at + to, false);
    if (error_number != 0) {
        return no_room(error_number, to - from);
    }
    wefti_range_populate(range, from, to);
    return WEFT_OK;
}

weft_status_t wefti_memfd_create(const char *name, size_t bytes, int *out_fd)
{
    *out_fd = -1;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "memfd_create failed");
    }
    int error_number = bytes > 0 ? resize_quietly(fd, 0, bytes, false) : 0;
    if (error_number == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        error_number = errno;
    }
    if (error_number != 0) {
        close(fd);
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, error_number,
                                 "out of shared memory: cannot allocate %zu bytes", bytes);
    }
    *out_fd = fd;
    return WEFT_OK;
}

weft_status_t wefti_memfd_map_over(int fd, size_t offset, size_t bytes, void *address)
{
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
             (off_t)offset) == MAP_FAILED) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot register %zu bytes at %p", bytes,
                                 address);
    }
    madvise(address, bytes, MADV_DONTFORK);
    return WEFT_OK;
}

weft_status_t wefti_region_map_unsupported(wefti_endpoint_t *endpoint, size_t offset, size_t bytes,
                                           void *address)
{
    (void)offset;
    (void)address;
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "transport %s cannot register existing memory: %zu bytes",
                       endpoint->ops->name, bytes);
}

/* Adds what is still free under the control group's limit, if there is one. */
static uint64_t cgroup_available(void)
{
    char line[64];
    unsigned long long limit, used;
    if (!wefti_cgroup_read("memory.max", line, sizeof line) || sscanf(line, "%llu", &limit) != 1 ||
        !wefti_cgroup_read("memory.current", line, sizeof line) ||
        sscanf(line, "%llu", &used) != 1) {
        return UINT64_MAX;
    }
    return limit > used ? limit - used : 0;
}

static uint64_t machine_available(void)
{
    char line[128];
    unsigned long long available = 0, swap = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return UINT64_MAX;
    }
    bool found = false;
    while (fgets(line, sizeof line, file) != NULL) {
        found |= sscanf(line, "MemAvailable: %llu", &available) == 1;
        sscanf(line, "SwapFree: %llu", &swap);
    }
    fclose(file);
    return found ? (available + swap) * 1024 : UINT64_MAX;
}

weft_status_t wefti_memory_check(size_t bytes, uint32_t count)
{
    uint64_t machine = machine_available();
    uint64_t group = cgroup_available();
    uint64_t available = machine < group ? machine : group;
    size_t total;
    char need_text[32], have_text[32];
    if (wefti_mul_size(bytes, count, &total) && total <= available) {
        return WEFT_OK;
    }
    return wefti_error(
        WEFT_ERR_NO_MEMORY, "out of memory: cannot allocate %s on each of %u ranks: %s available",
        wefti_format_bytes(bytes, need_text), count, wefti_format_bytes(available, have_text));
}
