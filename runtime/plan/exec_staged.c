/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans on devices whose memory other ranks do not reach: of several hosts, or without
 * WEFT_DEVICE_PEER_DIRECT. Ranks reach a mirror of the arena in host memory, where the interpreter
 * runs all collectives; kernels and copies run in queues of the device, on an arena of its own.
 *
 *   device arena   KERNEL KERNEL ..                          KERNEL ..
 *                   queue | out: chunk 0 1 2 ..               ^ waits for the last chunk in
 *                         v                                   |
 *   mirror              SCHEDULE of chunk 0, 1, 2 ..          |
 *                                 | links between ranks       |
 *                                 '--> in: chunk 0 1 2 .. ----' (a queue of its own)
 *
 * While the interpreter runs a chunk, the queues copy later ones out and earlier ones in. A
 * collective of one chunk stays in the stream's queue.
 *
 * Records are bound with addresses of the mirror, which wefti_staged_open replaces. Streams are run
 * as on the CPU (exec_host.c): a stream waits for its queue before it signals another one.
 */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

#define LINE_BYTES 64u
#define LINE_WORDS (LINE_BYTES / sizeof(uint32_t))
/*
 * A chunk costs some 50 us for its commands and its turn of the schedule, and the first one out and
 * the last one in overlap with nothing. Of 34 MB over links of 0.5 to 12 GB/s chunks of 1 MiB took
 * the least time; of 256 KiB and 4 MiB up to a third more.
 */
size_t wefti_staged_chunk_bytes = (size_t)1 << 20;

/* Whether this rank's device and those of all others reach each other's memory. */
static bool reaches_all(const wefti_endpoint_t *endpoint)
{
    bool reaches = true;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        reaches = reaches && (r == endpoint->rank || wefti_endpoint_direct(endpoint, r));
    }
    return reaches;
}

weft_status_t wefti_staged_choose(weft_session_t *session)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    if (session->context->device == NULL || endpoint->world_size == 1) {
        return WEFT_OK;
    }
    uint32_t own = !reaches_all(endpoint);
    uint32_t *all = wefti_alloc(session->allocator, endpoint->world_size * sizeof *all);
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    status = status < 0 ? status : wefti_endpoint_all_gather(endpoint, &own, sizeof own, all);
    for (uint32_t r = 0; r < endpoint->world_size && status >= 0; r++) {
        session->staged = session->staged || all[r] != 0;
    }
    wefti_free(session->allocator, all);
    session->endpoint = session->staged ? session->context->endpoint : endpoint;
    return status;
}

static void translate(const weft_session_t *session, const void *const *addresses, uint32_t count)
{
    void **own = (void **)(uintptr_t)addresses; /* arrays that bind made for this record */
    for (uint32_t i = 0; i < count; i++) {
        own[i] = wefti_staged_address(session, own[i]);
    }
}

static void translate_record(const weft_session_t *session, wefti_record_t *record)
{
    if (record->kind == WEFTI_RECORD_KERNEL) {
        translate(session, record->kernel.call.inputs, record->kernel.input_count);
        translate(session, (const void *const *)record->kernel.call.outputs,
                  record->kernel.output_count);
    } else if (record->kind == WEFTI_RECORD_COPY) {
        record->copy.dst = wefti_staged_address(session, record->copy.dst);
        record->copy.src = wefti_staged_address(session, record->copy.src);
    } else if (record->kind == WEFTI_RECORD_REDUCE) {
        translate(session, record->reduce.sources, record->reduce.source_count);
        translate(session, (const void *const *)record->reduce.destinations,
                  record->reduce.destination_count);
    }
}

static weft_status_t open_streams(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    const uint32_t count = session->plan->stream_count;
    session->staged_streams =
        wefti_arena_array(&session->arena, count + 1u, sizeof *session->staged_streams);
    WEFT_RETURN_IF_NO_MEMORY(session->staged_streams);
    for (uint32_t i = 0; i < count; i++) {
        wefti_staged_stream_t *stream = &session->staged_streams[i];
        void *counters = NULL;
        WEFT_RETURN_IF_ERROR(device->ops->mem_alloc(device, 2 * LINE_BYTES, &counters));
        stream->counters = counters;
        WEFT_RETURN_IF_ERROR(device->ops->queue_create(device, &stream->in));
    }
    return WEFT_OK;
}

weft_status_t wefti_staged_open(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    void *address = NULL;
    size_t bytes = session->plan->arena_bytes > 0 ? session->plan->arena_bytes : 1;
    WEFT_RETURN_IF_ERROR(device->ops->mem_alloc(device, bytes, &address));
    session->device_arena = address;
    WEFT_RETURN_IF_ERROR(open_streams(session));
    for (uint32_t p = 0; p < session->plan->program_count; p++) {
        for (uint32_t s = 0; s < session->plan->stream_count; s++) {
            const wefti_stream_records_t *stream = &session->programs[p].streams[s];
            for (uint32_t i = 0; i < stream->count; i++) {
                translate_record(session, &stream->records[i]);
            }
        }
    }
    return WEFT_OK;
}

void wefti_staged_close(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    if (session->device_arena == NULL || !wefti_endpoint_owned(session->endpoint)) {
        return;
    }
    for (uint32_t i = 0; session->staged_streams != NULL && i < session->plan->stream_count; i++) {
        wefti_staged_stream_t *stream = &session->staged_streams[i];
        if (stream->in != NULL) {
            device->ops->queue_destroy(stream->in);
        }
        device->ops->mem_free(device, stream->counters);
    }
    device->ops->mem_free(device, session->device_arena);
}

/* ---- while a stream runs ---- */

static weft_queue_t *queue_of(const weft_session_t *session, const wefti_cursor_t *cursor)
{
    return session->queues[cursor - session->cursors];
}

weft_status_t wefti_staged_drain(weft_session_t *session, const wefti_cursor_t *cursor)
{
    if (!session->staged) {
        return WEFT_OK;
    }
    /* First what the queue may wait for: if that fails it never goes on. */
    WEFT_RETURN_IF_ERROR(
        wefti_session_drain(session, session->staged_streams[cursor - session->cursors].in));
    return wefti_session_drain(session, queue_of(session, cursor));
}

bool wefti_staged_enqueues(const weft_session_t *session, const wefti_record_t *record)
{
    return session->staged &&
           (record->kind == WEFTI_RECORD_KERNEL || record->kind == WEFTI_RECORD_COPY ||
            record->kind == WEFTI_RECORD_REDUCE);
}

weft_status_t wefti_staged_enqueue(weft_session_t *session, const wefti_cursor_t *cursor,
                                   const wefti_record_t *record)
{
    const weft_device_ops_t *ops = session->context->device->ops;
    weft_queue_t *queue = queue_of(session, cursor);
    wefti_exec_device_label(session, (uint32_t)(cursor - session->cursors), record->name);
    WEFT_RETURN_IF_ERROR(wefti_record_enqueue(record, cursor->epoch, ops, queue));
    return ops->flush(queue);
}

/* ---- chunks of a collective ---- */

uint64_t wefti_staged_chunk(weft_collective_t op, weft_dtype_t dtype, uint32_t n)
{
    const uint64_t line = LINE_BYTES / weft_dtype_size_bytes(dtype);
    const uint64_t blocks = wefti_collective_is_vector(op) ? 1 : n;
    const uint64_t elems = wefti_staged_chunk_bytes / weft_dtype_size_bytes(dtype) / blocks;
    /* blocks that algorithms cut a vector into are whole lines */
    const uint64_t unit = wefti_collective_is_vector(op) ? line * n : line;
    return elems > unit ? elems / unit * unit : unit;
}

static uint64_t elem_count_of(const wefti_bound_run_t *bound)
{
    return bound->call.counts.elem_count;
}

static bool is_one_chunk(const wefti_bound_run_t *bound)
{
    return elem_count_of(bound) <= bound->call.chunk;
}

/* Elements [at, at + count) of every block that this rank sends, or receives, between mirror and
 * device. */
static weft_status_t copy_chunk(const wefti_staged_run_t *staged, weft_queue_t *queue, bool out,
                                uint64_t at, uint64_t count)
{
    const weft_session_t *session = staged->session;
    const weft_device_ops_t *ops = session->context->device->ops;
    const wefti_bound_run_t *bound = staged->bound;
    const wefti_bound_group_t *group = bound->group;
    const size_t elem_bytes = weft_dtype_size_bytes(bound->call.dtype);
    const uint64_t *offsets = bound->offsets;
    uint8_t *region = session->endpoint->region_of[session->endpoint->rank];
    const uint32_t blocks = out ? bound->send_blocks : bound->recv_blocks;
    uint8_t *begin = region + offsets[out ? group->rank : group->axis.size + group->rank];
    for (uint32_t b = 0; b < blocks && count > 0; b++) {
        uint8_t *block = begin + b * (size_t)elem_count_of(bound) * elem_bytes;
        if (!out && blocks > 1 && bound->send_blocks == 1 &&
            block == region + offsets[group->rank]) {
            continue; /* in place: what this rank has sent */
        }
        uint8_t *mirror = block + at * elem_bytes;
        void *there = wefti_staged_address(session, mirror);
        WEFT_RETURN_IF_ERROR(ops->copy(queue, out ? mirror : there, out ? there : mirror,
                                       (size_t)count * elem_bytes));
    }
    return WEFT_OK;
}

/* All chunks follow each other out; after each the queue shows the host how many there were. */
static weft_status_t send_chunks(wefti_staged_run_t *staged, wefti_staged_stream_t *stream)
{
    const weft_session_t *session = staged->session;
    const weft_device_ops_t *ops = session->context->device->ops;
    weft_queue_t *queue = session->queues[staged->stream];
    const uint64_t total = elem_count_of(staged->bound), chunk = staged->bound->call.chunk;
    for (uint64_t at = 0; at < total; at += chunk) {
        uint64_t left = total - at;
        WEFT_RETURN_IF_ERROR(copy_chunk(staged, queue, true, at, left < chunk ? left : chunk));
        WEFT_RETURN_IF_ERROR(ops->signal(queue, &stream->counters[0], ++stream->out));
        WEFT_RETURN_IF_ERROR(
            ops->copy(queue, (void *)&stream->seen, &stream->counters[0], sizeof stream->seen));
        WEFT_RETURN_IF_ERROR(ops->flush(queue));
    }
    return WEFT_OK;
}

/* Later chunks are on their way out meanwhile. */
static weft_status_t begin_chunk(wefti_run_hooks_t *hooks, uint64_t at, uint64_t count)
{
    const wefti_staged_run_t *staged = (wefti_staged_run_t *)hooks;
    const wefti_staged_stream_t *stream = &staged->session->staged_streams[staged->stream];
    const uint64_t chunk = staged->bound->call.chunk;
    const uint32_t target = staged->out_before + (uint32_t)((at + count + chunk - 1) / chunk);
    return wefti_session_await(staged->session, staged->session->queues[staged->stream], stream->in,
                               &stream->seen, target);
}

static weft_status_t end_chunk(wefti_run_hooks_t *hooks, uint64_t at, uint64_t count)
{
    const wefti_staged_run_t *staged = (wefti_staged_run_t *)hooks;
    const weft_session_t *session = staged->session;
    weft_queue_t *queue = is_one_chunk(staged->bound) ? session->queues[staged->stream]
                                                      : session->staged_streams[staged->stream].in;
    WEFT_RETURN_IF_ERROR(copy_chunk(staged, queue, false, at, count));
    return session->context->device->ops->flush(queue);
}

weft_status_t wefti_staged_start(weft_session_t *session, const wefti_cursor_t *cursor,
                                 wefti_bound_run_t *bound)
{
    if (!session->staged) {
        return WEFT_OK;
    }
    const uint32_t index = (uint32_t)(cursor - session->cursors);
    wefti_staged_stream_t *stream = &session->staged_streams[index];
    bound->staged = (wefti_staged_run_t){.hooks = {begin_chunk, end_chunk},
                                         .session = session,
                                         .bound = bound,
                                         .stream = index,
                                         .out_before = stream->out};
    bound->call.hooks = &bound->staged.hooks;
    wefti_exec_device_label(session, index, cursor->records[cursor->next].name);
    return send_chunks(&bound->staged, stream);
}

weft_status_t wefti_staged_finish(weft_session_t *session, const wefti_cursor_t *cursor,
                                  const wefti_bound_run_t *bound)
{
    if (!session->staged || is_one_chunk(bound) || bound->recv_blocks == 0) {
        return WEFT_OK;
    }
    const weft_device_ops_t *ops = session->context->device->ops;
    wefti_staged_stream_t *stream = &session->staged_streams[cursor - session->cursors];
    uint32_t *counter = &stream->counters[LINE_WORDS];
    WEFT_RETURN_IF_ERROR(ops->signal(stream->in, counter, ++stream->ins));
    WEFT_RETURN_IF_ERROR(ops->flush(stream->in));
    WEFT_RETURN_IF_ERROR(ops->wait(queue_of(session, cursor), counter, stream->ins));
    return ops->flush(queue_of(session, cursor));
}
