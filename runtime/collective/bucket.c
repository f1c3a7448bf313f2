/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/bucket.h"

#include <string.h>

#include <weft/memory.h>

#include "runtime/collective/agree.h"
#include "runtime/collective/call.h"
#include "runtime/stream/stream.h"

#define LINE_BYTES 64u

static uint64_t end_of(const wefti_bucket_t *bucket, uint32_t part)
{
    return part + 1 < bucket->part_count ? bucket->parts[part + 1].at : bucket->count;
}

/* The part with element at of the bucket; parts without elements are skipped. */
static uint32_t part_at(const wefti_bucket_t *bucket, uint32_t part, uint64_t at)
{
    while (end_of(bucket, part) <= at) {
        part++;
    }
    return part;
}

/* ---- pieces ---- */

typedef struct cutter {
    const wefti_bucket_t *bucket;
    wefti_bucket_piece_t *out;
    uint32_t count;
    /* small runs that wait to be packed together */
    uint32_t part, runs;
    uint64_t first, elems;
} cutter_t;

static void add_piece(cutter_t *c, uint32_t part, uint64_t first, uint64_t count, bool packed)
{
    if (c->out != NULL) {
        c->out[c->count] = (wefti_bucket_piece_t){c->bucket, first, count, part, packed};
    }
    c->count++;
}

static void flush(cutter_t *c)
{
    if (c->elems > 0) {
        add_piece(c, c->part, c->first, c->elems, c->runs > 1);
    }
    c->runs = 0;
    c->elems = 0;
}

/* Even pieces; whole cache lines where that keeps to the limit. */
static void add_large(cutter_t *c, uint32_t part, uint64_t first, uint64_t count, uint64_t most)
{
    const uint64_t pieces = count / most + (count % most != 0);
    const uint64_t even = (count + pieces - 1) / pieces;
    const uint64_t lines = wefti_align_up(even, LINE_BYTES / c->bucket->elem_bytes);
    const uint64_t each = lines <= most ? lines : even;
    flush(c);
    for (uint64_t at = 0; at < count; at += each) {
        add_piece(c, part, first + at, count - at < each ? count - at : each, false);
    }
}

uint32_t wefti_bucket_cut(const wefti_bucket_t *bucket, const uint8_t *continues,
                          uint64_t most_bytes, wefti_bucket_piece_t *out)
{
    const uint64_t packed = WEFTI_BUCKET_PIECE_BYTES / bucket->elem_bytes;
    const uint64_t most = most_bytes / bucket->elem_bytes;
    cutter_t c = {.bucket = bucket, .out = out};
    for (uint32_t i = 0, next; i < bucket->part_count; i = next) {
        for (next = i + 1;
             next < bucket->part_count && continues != NULL && continues[next] != 0;) {
            next++;
        }
        const uint64_t first = bucket->parts[i].at, count = end_of(bucket, next - 1) - first;
        if (count * bucket->elem_bytes >= WEFTI_BUCKET_LARGE_BYTES || count > most) {
            add_large(&c, i, first, count, most);
            continue;
        }
        if (c.elems + count > packed) {
            flush(&c);
        }
        if (c.runs++ == 0) {
            c.part = i;
            c.first = first;
        }
        c.elems += count;
    }
    flush(&c);
    return c.count;
}

bool wefti_bucket_part_continues(const wefti_bucket_t *bucket, uint32_t i)
{
    const wefti_bucket_part_t *before = &bucket->parts[i - 1], *part = &bucket->parts[i];
    const size_t bytes = (size_t)(part->at - before->at) * bucket->elem_bytes;
    return part->send == before->send + bytes && part->recv == before->recv + bytes;
}

bool wefti_bucket_piece_is_range(const wefti_bucket_piece_t *piece)
{
    const wefti_bucket_t *bucket = piece->bucket;
    const uint64_t stop = piece->first + piece->count;
    const uint32_t first = part_at(bucket, piece->part, piece->first);
    const wefti_bucket_part_t *before = &bucket->parts[first];
    for (uint32_t i = first + 1; i < bucket->part_count && bucket->parts[i].at < stop; i++) {
        const wefti_bucket_part_t *part = &bucket->parts[i];
        const size_t bytes = (size_t)(part->at - before->at) * bucket->elem_bytes;
        if (end_of(bucket, i) == part->at) {
            continue; /* without elements */
        }
        if (part->send != before->send + bytes || part->recv != before->recv + bytes) {
            return false;
        }
        before = part;
    }
    return true;
}

/* ---- copies ---- */

static uint8_t *place_of(const wefti_bucket_t *bucket, uint32_t part, uint64_t at, bool recv)
{
    const wefti_bucket_part_t *p = &bucket->parts[part];
    const uint8_t *begin = recv ? p->recv : p->send;
    return (uint8_t *)(uintptr_t)begin + (at - p->at) * bucket->elem_bytes;
}

/* The next range of one part from element at of the bucket on; returns its elements. */
static uint64_t next_range(const wefti_bucket_piece_t *piece, uint64_t at, uint32_t *part)
{
    const uint64_t stop = piece->first + piece->count;
    *part = part_at(piece->bucket, *part, at);
    const uint64_t end = end_of(piece->bucket, *part);
    return (end < stop ? end : stop) - at;
}

static weft_status_t move(const wefti_bucket_piece_t *piece, bool into_buffer)
{
    uint32_t part = piece->part;
    for (uint64_t at = piece->first, count; at < piece->first + piece->count; at += count) {
        count = next_range(piece, at, &part);
        uint8_t *tensor = place_of(piece->bucket, part, at, !into_buffer);
        uint8_t *buffer = piece->bucket->buffer + (at - piece->first) * piece->bucket->elem_bytes;
        memcpy(into_buffer ? buffer : tensor, into_buffer ? tensor : buffer,
               (size_t)count * piece->bucket->elem_bytes);
    }
    return WEFT_OK;
}

static weft_status_t pack(void *piece)
{
    return move(piece, true);
}

static weft_status_t unpack(void *piece)
{
    return move(piece, false);
}

/* A device executes no host functions in a queue's order: copies, as many as there is room for. */
static weft_status_t enqueue_copies(const wefti_bucket_piece_t *piece, uint64_t *done,
                                    weft_stream_t *stream, bool into_buffer)
{
    uint32_t part = piece->part;
    while (*done < piece->count) {
        const uint64_t at = piece->first + *done, count = next_range(piece, at, &part);
        uint8_t *tensor = place_of(piece->bucket, part, at, !into_buffer);
        uint8_t *buffer = piece->bucket->buffer + *done * piece->bucket->elem_bytes;
        weft_status_t status =
            weft_stream_copy(stream, into_buffer ? buffer : tensor, into_buffer ? tensor : buffer,
                             (size_t)count * piece->bucket->elem_bytes);
        if (status != WEFT_OK) {
            return status;
        }
        *done += count;
    }
    *done = 0;
    return WEFT_OK;
}

static weft_status_t start_move(wefti_bucket_piece_t *piece, wefti_bucket_cursor_t *cursor,
                                const weft_group_t *group, weft_stream_t *stream)
{
    const bool into_buffer = cursor->phase == WEFTI_BUCKET_PACK;
    if (!piece->packed) {
        return WEFT_OK;
    }
    if (group->context->device != NULL) {
        return enqueue_copies(piece, &cursor->at, stream, into_buffer);
    }
    return stream == NULL ? move(piece, into_buffer)
                          : weft_stream_launch_host(stream, into_buffer ? pack : unpack, piece);
}

/* ---- handing over ---- */

static weft_status_t start_call(const wefti_bucket_piece_t *piece, weft_group_t *group,
                                weft_stream_t *stream)
{
    const wefti_bucket_t *bucket = piece->bucket;
    const uint8_t *send = bucket->buffer;
    uint8_t *recv = bucket->buffer;
    if (!piece->packed) {
        const uint32_t part = part_at(bucket, piece->part, piece->first);
        send = place_of(bucket, part, piece->first, false);
        recv = place_of(bucket, part, piece->first, true);
    }
    return weft_all_reduce(send, recv, piece->count, bucket->dtype, bucket->reduction, group,
                           stream);
}

weft_status_t wefti_bucket_advance(const wefti_bucket_t *bucket, wefti_bucket_cursor_t *cursor,
                                   weft_group_t *group, weft_stream_t *stream)
{
    wefti_bucket_piece_t *piece = &bucket->pieces[cursor->piece];
    weft_status_t status = cursor->phase == WEFTI_BUCKET_CALL
                               ? start_call(piece, group, stream)
                               : start_move(piece, cursor, group, stream);
    if (status != WEFT_OK) {
        return status;
    }
    if (cursor->phase == WEFTI_BUCKET_UNPACK) {
        cursor->piece++;
        cursor->phase = WEFTI_BUCKET_PACK;
    } else {
        cursor->phase++;
    }
    return WEFT_OK;
}

/* ---- what it runs on ---- */

weft_status_t wefti_bucket_runner_init(wefti_bucket_runner_t *runner, weft_group_t *group,
                                       weft_stream_t *stream, const char *name)
{
    *runner = (wefti_bucket_runner_t){.group = group, .stream = stream};
    if (stream == NULL) {
        weft_stream_params_t params = {sizeof params, name, WEFT_STREAM_INLINE, 0};
        WEFT_RETURN_IF_ERROR(weft_stream_create(group->context, &params, &runner->stream));
        runner->owns_stream = true;
    }
    wefti_bucket_runner_mark(runner);
    return WEFT_OK;
}

static weft_status_t alloc_buffer(wefti_bucket_runner_t *runner, size_t bytes)
{
    weft_context_t *context = runner->group->context;
    void *buffer = NULL;
    weft_status_t status = WEFT_OK;
    if (runner->group->whole_world) { /* otherwise other ranks would have to take part */
        status = weft_mem_alloc(context, bytes, &buffer);
        runner->reachable = status == WEFT_OK;
    } else if (context->device != NULL) {
        status = weft_device_alloc(context, bytes, &buffer);
    } else {
        buffer = wefti_alloc(context->allocator, bytes);
        status = buffer != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    runner->buffer = buffer;
    return status;
}

weft_status_t wefti_bucket_runner_alloc(wefti_bucket_runner_t *runner, size_t bytes)
{
    return wefti_group_agree(runner->group, alloc_buffer(runner, bytes));
}

void wefti_bucket_runner_mark(wefti_bucket_runner_t *runner)
{
    /* relaxed: this thread enqueues */
    runner->target = atomic_load_explicit(&runner->stream->tail.signal.value, memory_order_relaxed);
}

weft_status_t wefti_bucket_wait_some(const wefti_bucket_runner_t *runner, weft_stream_t *stream,
                                     const char *what)
{
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_acquire);
    uint32_t target = atomic_load_explicit(&stream->tail.signal.value, memory_order_relaxed);
    if (stream == runner->stream && !wefti_signal_reached(done, runner->target)) {
        target = runner->target; /* what a program enqueued after it does not count */
    }
    return wefti_stream_wait(runner->group->context, NULL, stream, done + (target - done + 1) / 2,
                             what);
}

void wefti_bucket_runner_leave(wefti_bucket_runner_t *runner, const char *what, bool together)
{
    wefti_group_leave_stream(runner->group, runner->stream, runner->target, what);
    /* Peers that did not get here may still access the buffer, so it is never reused. */
    bool parted = together && weft_barrier(runner->group, NULL) >= 0;
    if (!parted && (runner->reachable || runner->group->attach)) {
        runner->buffer = NULL;
    }
}

void wefti_bucket_runner_deinit(wefti_bucket_runner_t *runner)
{
    weft_context_t *context = runner->group->context;
    if (runner->owns_stream) {
        weft_stream_destroy(runner->stream);
    }
    if (runner->reachable) {
        weft_mem_free(context, runner->buffer);
    } else if (context->device != NULL) {
        weft_device_free(context, runner->buffer);
    } else {
        wefti_free(context->allocator, runner->buffer);
    }
}
