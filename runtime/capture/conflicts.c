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
    struct reader *next;
    uint32_t call;
} reader_t;

typedef struct segment {
    uint32_t writer; /* call + 1 */
    reader_t *readers;
} segment_t;

typedef struct finder {
    const weft_capture_t *capture;
    wefti_arena_t arena;
    uintptr_t *ends;
    size_t end_count;
    segment_t *segments;
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
    const uintptr_t *at = bsearch(&end, f->ends, f->end_count, sizeof end, compare_ends);
    return (size_t)(at - f->ends);
}

static weft_status_t collect_ends(finder_t *f, access_t *accesses)
{
    uint32_t n = f->capture->call_count;
    f->ends = wefti_arena_array(&f->arena, 4 * (size_t)n, sizeof *f->ends);
    f->segments = wefti_arena_array(&f->arena, 4 * (size_t)n, sizeof *f->segments);
    f->listed = wefti_arena_array(&f->arena, n, sizeof *f->listed);
    WEFT_RETURN_IF_NO_MEMORY(!f->arena.failed);
    size_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        accesses[i] = access_of(f->capture->runner.group, &f->capture->calls[i].batched);
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
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(f->arena.allocator, &f->conflicts, &f->capacity,
                                             f->count + 1, sizeof *f->conflicts));
    f->conflicts[f->count++] = (wefti_conflict_t){before, call};
    return WEFT_OK;
}

static weft_status_t access_segments(finder_t *f, uint32_t call, const range_t *range, bool writes)
{
    const size_t end = find_end(f, range->end);
    for (size_t s = find_end(f, range->begin); s < end; s++) {
        segment_t *segment = &f->segments[s];
        if (segment->writer != 0) {
            WEFT_RETURN_IF_ERROR(add_conflict(f, segment->writer - 1, call));
        }
        if (writes) {
            for (const reader_t *reader = segment->readers; reader != NULL; reader = reader->next) {
                WEFT_RETURN_IF_ERROR(add_conflict(f, reader->call, call));
            }
            *segment = (segment_t){call + 1, NULL};
        } else {
            reader_t *reader = wefti_arena_alloc(&f->arena, sizeof *reader);
            WEFT_RETURN_IF_NO_MEMORY(reader != NULL);
            *reader = (reader_t){segment->readers, call};
            segment->readers = reader;
        }
    }
    return WEFT_OK;
}

static weft_status_t find(finder_t *f)
{
    const uint32_t n = f->capture->call_count;
    access_t *accesses = wefti_arena_array(&f->arena, n, sizeof *accesses);
    WEFT_RETURN_IF_NO_MEMORY(accesses != NULL);
    WEFT_RETURN_IF_ERROR(collect_ends(f, accesses));
    for (uint32_t i = 0; i < n; i++) {
        WEFT_RETURN_IF_ERROR(access_segments(f, i, &accesses[i].read, false));
        WEFT_RETURN_IF_ERROR(access_segments(f, i, &accesses[i].write, true));
    }
    return WEFT_OK;
}

weft_status_t wefti_capture_conflicts(const weft_capture_t *capture, wefti_conflict_t **out,
                                      size_t *out_count)
{
    finder_t f = {.capture = capture};
    wefti_arena_init(&f.arena, capture->context->allocator, 0);
    weft_status_t status = find(&f);
    wefti_arena_deinit(&f.arena);
    *out = f.conflicts;
    *out_count = f.count;
    return status;
}
