/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which captured calls use memory that earlier ones write, or write what earlier ones read. The
 * ends of all buffers cut memory into segments; for each of them the last writer and its readers
 * since are known while the calls are walked through in order.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

typedef struct range {
    uintptr_t begin, end; /* equal: nothing */
} range_t;

typedef struct access {
    range_t read, write;
} access_t;

typedef struct reader {
    uint32_t call, next; /* entry + 1 */
} reader_t;

typedef struct segment {
    uint32_t writer;  /* call + 1 */
    uint32_t readers; /* entry + 1 of the first */
} segment_t;

typedef struct finder {
    const weft_capture_t *capture;
    wefti_arena_t arena;
    uintptr_t *ends;
    size_t end_count;
    segment_t *segments;
    reader_t *readers;
    size_t reader_count, reader_capacity;
    uint32_t *listed; /* by call: the last call that has a conflict with it, + 1 */
    wefti_conflict_t *conflicts;
    size_t count, capacity;
} finder_t;

/* From the first to the last block, which need not lie side by side. */
static range_t range_of(const void *address, weft_dtype_t dtype, const wefti_buffer_shape_t *shape)
{
    uint64_t first = shape->counts != NULL ? UINT64_MAX : 0, last = wefti_shape_elems(shape);
    if (address == NULL || last == 0) {
        return (range_t){0, 0};
    }
    for (uint32_t r = 0; shape->counts != NULL && r < shape->blocks; r++) {
        uint64_t at = shape->counts[shape->blocks + r];
        first = shape->counts[r] > 0 && at < first ? at : first;
    }
    uintptr_t begin = (uintptr_t)address;
    size_t elem_bytes = weft_dtype_size_bytes(dtype);
    return (range_t){begin + first * elem_bytes, begin + last * elem_bytes};
}

static access_t access_of(const weft_group_t *group, const wefti_batched_t *call)
{
    const wefti_request_t *q = &call->request;
    wefti_buffer_shape_t send = wefti_send_shape(q->op, group->rank, q->root, group->size, q->count,
                                                 call->counts),
                         recv = wefti_recv_shape(q->op, group->rank, q->root, group->size, q->count,
                                                 call->counts);
    return (access_t){range_of(q->send, q->dtype, &send), range_of(q->recv, q->dtype, &recv)};
}

static int compare_ends(const void *a, const void *b)
{
    const uintptr_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Place of an end among all ends. */
static size_t find_end(const finder_t *f, uintptr_t end)
{
    size_t low = 0, high = f->end_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (f->ends[middle] < end) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static weft_status_t collect_ends(finder_t *f, access_t *accesses)
{
    uint32_t n = f->capture->call_count;
    f->ends = wefti_arena_array(&f->arena, 4 * (size_t)n, sizeof *f->ends);
    f->segments = wefti_arena_array(&f->arena, 4 * (size_t)n, sizeof *f->segments);
    f->listed = wefti_arena_array(&f->arena, n, sizeof *f->listed);
    if (f->ends == NULL || f->segments == NULL || f->listed == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    size_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        accesses[i] = access_of(f->capture->group, &f->capture->calls[i].batched);
        f->ends[count++] = accesses[i].read.begin;
        f->ends[count++] = accesses[i].read.end;
        f->ends[count++] = accesses[i].write.begin;
        f->ends[count++] = accesses[i].write.end;
    }
    qsort(f->ends, count, sizeof *f->ends, compare_ends);
    for (size_t i = 0; i < count; i++) {
        if (f->end_count == 0 || f->ends[f->end_count - 1] != f->ends[i]) {
            f->ends[f->end_count++] = f->ends[i];
        }
    }
    return WEFT_OK;
}

static weft_status_t add_conflict(finder_t *f, uint32_t before, uint32_t call)
{
    if (before == call || f->listed[before] == call + 1) {
        return WEFT_OK;
    }
    f->listed[before] = call + 1;
    weft_status_t status = wefti_array_reserve(f->arena.allocator, &f->conflicts, &f->capacity,
                                               f->count + 1, sizeof *f->conflicts);
    if (status == WEFT_OK) {
        f->conflicts[f->count++] = (wefti_conflict_t){before, call};
    }
    return status;
}

static weft_status_t read_segments(finder_t *f, uint32_t call, const range_t *range)
{
    for (size_t s = find_end(f, range->begin); s < find_end(f, range->end); s++) {
        segment_t *segment = &f->segments[s];
        if (segment->writer != 0) {
            WEFT_RETURN_IF_ERROR(add_conflict(f, segment->writer - 1, call));
        }
        WEFT_RETURN_IF_ERROR(wefti_array_reserve(f->arena.allocator, &f->readers,
                                                 &f->reader_capacity, f->reader_count + 1,
                                                 sizeof *f->readers));
        f->readers[f->reader_count++] = (reader_t){call, segment->readers};
        segment->readers = (uint32_t)f->reader_count;
    }
    return WEFT_OK;
}

static weft_status_t write_segments(finder_t *f, uint32_t call, const range_t *range)
{
    for (size_t s = find_end(f, range->begin); s < find_end(f, range->end); s++) {
        segment_t *segment = &f->segments[s];
        for (uint32_t r = segment->readers; r != 0; r = f->readers[r - 1].next) {
            WEFT_RETURN_IF_ERROR(add_conflict(f, f->readers[r - 1].call, call));
        }
        if (segment->writer != 0) {
            WEFT_RETURN_IF_ERROR(add_conflict(f, segment->writer - 1, call));
        }
        *segment = (segment_t){call + 1, 0};
    }
    return WEFT_OK;
}

weft_status_t wefti_capture_conflicts(const weft_capture_t *capture, wefti_conflict_t **out,
                                      size_t *out_count)
{
    weft_status_t status;
    finder_t f = {.capture = capture};
    wefti_arena_init(&f.arena, capture->context->allocator, 0);
    access_t *accesses = wefti_arena_array(&f.arena, capture->call_count, sizeof *accesses);
    if (accesses == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    WEFT_TRY(status, collect_ends(&f, accesses), done);
    for (uint32_t i = 0; i < capture->call_count; i++) {
        WEFT_TRY(status, read_segments(&f, i, &accesses[i].read), done);
        WEFT_TRY(status, write_segments(&f, i, &accesses[i].write), done);
    }
    *out = f.conflicts;
    *out_count = f.count;
    f.conflicts = NULL;
done:
    wefti_free(f.arena.allocator, f.conflicts);
    wefti_free(f.arena.allocator, f.readers);
    wefti_arena_deinit(&f.arena);
    return status;
}
