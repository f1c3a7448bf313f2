/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans on devices whose memory other ranks do not reach: of several hosts, or without
 * WEFT_DEVICE_PEER_DIRECT. Ranks reach a mirror of the arena in host memory, where the interpreter
 * runs all collectives; kernels and copies run in queues of the device, on an arena of its own.
 *
 *   device arena   KERNEL KERNEL ..                                   KERNEL ..
 *                        | the range that is sent         the result ^
 *                        v                                           |
 *   mirror               SCHEDULE: links between ranks --------------+
 *
 * Records are bound with addresses of the mirror, which wefti_staged_open replaces. Streams are run
 * as on the CPU (exec_host.c): a stream waits for its queue before it signals another one.
 */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

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

weft_status_t wefti_staged_open(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    void *address = NULL;
    size_t bytes = session->plan->arena_bytes > 0 ? session->plan->arena_bytes : 1;
    WEFT_RETURN_IF_ERROR(device->ops->mem_alloc(device, bytes, &address));
    session->device_arena = address;
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
    if (session->device_arena != NULL && wefti_endpoint_owned(session->endpoint)) {
        session->context->device->ops->mem_free(session->context->device, session->device_arena);
    }
}

/* ---- while a stream runs ---- */

static weft_queue_t *queue_of(const weft_session_t *session, const wefti_cursor_t *cursor)
{
    return session->queues[cursor - session->cursors];
}

weft_status_t wefti_staged_drain(weft_session_t *session, const wefti_cursor_t *cursor)
{
    return session->staged ? wefti_session_drain(session, queue_of(session, cursor)) : WEFT_OK;
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

weft_status_t wefti_staged_move(weft_session_t *session, const wefti_cursor_t *cursor,
                                const wefti_bound_run_t *bound, bool out)
{
    if (!session->staged) {
        return WEFT_OK;
    }
    const weft_device_ops_t *ops = session->context->device->ops;
    const wefti_bound_group_t *group = bound->group;
    weft_queue_t *queue = queue_of(session, cursor);
    size_t bytes = out ? bound->send_bytes : bound->recv_bytes;
    uint8_t *mirror = session->endpoint->region_of[session->endpoint->rank] +
                      bound->offsets[out ? group->rank : group->axis.size + group->rank];
    void *there = wefti_staged_address(session, mirror);
    wefti_exec_device_label(session, (uint32_t)(cursor - session->cursors),
                            cursor->records[cursor->next].name);
    if (bytes > 0) {
        WEFT_RETURN_IF_ERROR(ops->copy(queue, out ? mirror : there, out ? there : mirror, bytes));
        WEFT_RETURN_IF_ERROR(ops->flush(queue));
    }
    return wefti_session_drain(session, queue);
}
