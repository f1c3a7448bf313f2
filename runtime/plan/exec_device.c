/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay on any device other than the CPU: all records are handed to the device's queues, which
 * order them by counters; the host only waits, watching the other ranks.
 */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

#include <sched.h>
#include <string.h>

#define CHECK_EVERY 64u /* polls between two looks at the other ranks */

static weft_status_t late(const weft_session_t *session)
{
    return wefti_error(WEFT_ERR_TIMEOUT, "rank %u: waited %.3g s for device \"%s\" (WEFT_TIMEOUT)",
                       session->endpoint->rank,
                       (double)session->endpoint->settings->timeout_ns * 1e-9,
                       session->context->device->ops->name);
}

/* watch: the queue may wait for other ranks. */
static weft_status_t drain(weft_session_t *session, weft_queue_t *queue, bool watch)
{
    const weft_device_ops_t *ops = session->context->device->ops;
    uint64_t timeout_ns = session->context->settings.timeout_ns;
    uint64_t deadline_ns = timeout_ns != 0 ? wefti_now_ns() + timeout_ns : UINT64_MAX;
    for (uint32_t polls = 1;; polls++) {
        weft_status_t status = ops->query(queue);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        if (polls % CHECK_EVERY == 0) {
            WEFT_RETURN_IF_ERROR(watch ? wefti_endpoint_check(session->endpoint) : WEFT_OK);
            if (wefti_now_ns() > deadline_ns) {
                return late(session);
            }
        }
        sched_yield();
    }
}

weft_status_t wefti_session_drain(weft_session_t *session, weft_queue_t *queue)
{
    return drain(session, queue, true);
}

weft_status_t wefti_session_await(weft_session_t *session, weft_queue_t *queue, weft_queue_t *other,
                                  const _Atomic uint32_t *seen, uint32_t target)
{
    const weft_device_ops_t *ops = session->context->device->ops;
    uint64_t timeout_ns = session->context->settings.timeout_ns;
    uint64_t deadline_ns = timeout_ns != 0 ? wefti_now_ns() + timeout_ns : UINT64_MAX;
    for (uint32_t polls = 1;; polls++) {
        /* acquire: what the queue has copied before is visible */
        uint32_t value = atomic_load_explicit(seen, memory_order_acquire);
        if (wefti_signal_reached(value, target)) {
            return WEFT_OK;
        }
        if (polls % CHECK_EVERY == 0) {
            weft_status_t status = ops->query(other);
            status = status < 0 ? status : ops->query(queue);
            status = status < 0 ? status : wefti_endpoint_check(session->endpoint);
            if (status < 0) {
                return status;
            }
            if (wefti_now_ns() > deadline_ns) {
                return late(session);
            }
        }
        wefti_endpoint_progress(session->endpoint);
        sched_yield();
    }
}

weft_status_t wefti_exec_device_open(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    if (session->plan->bits == WEFT_BITS_CPU && (device->ops->caps & WEFT_DEVICE_CPU_BITS) == 0) {
        wefti_log(&session->context->log, WEFT_LOG_LEVEL_INFO,
                  "device \"%s\": f32 results have bits of its own, not those of the CPU, for "
                  "which the plan was compiled",
                  device->ops->name);
    }
    WEFT_RETURN_IF_ERROR(device->ops->queue_create(device, &session->copy_queue));
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        WEFT_RETURN_IF_ERROR(device->ops->queue_create(device, &session->queues[i]));
    }
    return WEFT_OK;
}

uint32_t wefti_exec_device_queue_count(const weft_session_t *session)
{
    return session->plan->stream_count * (session->staged ? 2 : 1);
}

static weft_queue_t *queue_at(const weft_session_t *session, uint32_t i)
{
    const uint32_t streams = session->plan->stream_count;
    return i < streams ? session->queues[i] : session->staged_streams[i - streams].in;
}

/* A timeline has rows of the queues if the device keeps their times. */
weft_status_t wefti_exec_device_profile(weft_session_t *session)
{
    const uint32_t count = wefti_exec_device_queue_count(session);
    wefti_history_t *histories = wefti_arena_array(&session->arena, count + 1u, sizeof *histories);
    WEFT_RETURN_IF_NO_MEMORY(histories);
    for (uint32_t i = 0; i < count; i++) {
        weft_status_t status = session->context->device->ops->profile(queue_at(session, i), "");
        if (status == WEFT_ERR_UNSUPPORTED) {
            return WEFT_OK;
        }
        WEFT_RETURN_IF_ERROR(status);
        histories[i].capacity = WEFTI_HISTORY_TRACE;
        histories[i].entries =
            wefti_arena_array(&session->arena, WEFTI_HISTORY_TRACE, sizeof *histories[i].entries);
        WEFT_RETURN_IF_NO_MEMORY(histories[i].entries);
    }
    session->queue_histories = histories;
    return WEFT_OK;
}

void wefti_exec_device_label(const weft_session_t *session, uint32_t stream, const char *name)
{
    const uint32_t count = wefti_exec_device_queue_count(session);
    for (uint32_t i = stream; session->queue_histories != NULL && i < count;
         i += session->plan->stream_count) {
        session->context->device->ops->profile(queue_at(session, i), name);
    }
}

void wefti_exec_device_remember(weft_session_t *session)
{
    weft_command_t commands[64];
    size_t count = 0;
    const uint32_t queues = wefti_exec_device_queue_count(session);
    for (uint32_t i = 0; session->queue_histories != NULL && i < queues;) {
        if (session->context->device->ops->profile_take(
                queue_at(session, i), commands, sizeof commands / sizeof *commands, &count) < 0 ||
            count == 0) {
            i++;
            continue;
        }
        for (size_t c = 0; c < count; c++) {
            bool kernel = strcmp(commands[c].name, "kernel") == 0;
            wefti_history_entry_t entry = {.start_ns = commands[c].start_ns,
                                           .end_ns = commands[c].end_ns,
                                           .name = commands[c].label,
                                           .command = commands[c].name,
                                           .run = (uint32_t)session->run_count,
                                           .step = (uint32_t)session->step_now,
                                           .kind =
                                               kernel ? WEFTI_HISTORY_KERNEL : WEFTI_HISTORY_OTHER};
            wefti_history_add(&session->queue_histories[i], &entry);
        }
    }
}

void wefti_exec_device_close(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    /* After an error a queue may wait for what never comes. */
    bool failed = wefti_fault_get(&session->fault) < 0;
    for (uint32_t i = 0; session->queues != NULL && i < session->plan->stream_count; i++) {
        if (session->queues[i] != NULL && failed) {
            device->ops->cancel(session->queues[i]);
        }
        if (session->queues[i] != NULL) {
            device->ops->queue_destroy(session->queues[i]);
        }
    }
    if (session->copy_queue != NULL) {
        device->ops->queue_destroy(session->copy_queue);
    }
}

static weft_status_t enqueue_all(weft_session_t *session, wefti_bound_program_t *program)
{
    const weft_device_ops_t *ops = session->context->device->ops;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        for (uint32_t j = 0; j < program->streams[i].count; j++) {
            const wefti_record_t *record = &program->streams[i].records[j];
            wefti_exec_device_label(session, i, record->name);
            weft_status_t status =
                wefti_record_enqueue(record, program->epoch, ops, session->queues[i]);
            if (status < 0) {
                return wefti_error_prefix(status, "rank %u: enqueue \"%s\"",
                                          session->endpoint->rank, record->name);
            }
            if (record->flags & WEFTI_RECORD_FUSION_COPY) {
                session->cursors[i].copied_bytes += record->copy.size_bytes;
            }
        }
        WEFT_RETURN_IF_ERROR(ops->flush(session->queues[i]));
    }
    return WEFT_OK;
}

weft_status_t wefti_exec_device_run(weft_session_t *session, wefti_bound_program_t *program)
{
    const weft_device_ops_t *ops = session->context->device->ops;
    uint32_t count = session->plan->stream_count;
    uint64_t start_ns = wefti_now_ns();
    weft_status_t status = enqueue_all(session, program);
    for (uint32_t i = 0; i < count && status >= 0; i++) {
        status = wefti_session_drain(session, session->queues[i]);
        wefti_history_entry_t entry = {.start_ns = start_ns,
                                       .end_ns = wefti_now_ns(),
                                       .name = "run",
                                       .run = (uint32_t)session->run_count,
                                       .step = (uint32_t)session->step_now,
                                       .kind = WEFTI_HISTORY_OTHER};
        wefti_history_add(&session->cursors[i].history, &entry);
    }
    if (status < 0) {
        wefti_session_fail(session, status);
        for (uint32_t i = 0; i < count; i++) {
            ops->cancel(session->queues[i]);
        }
        return wefti_fault_get(&session->fault);
    }
    /* what happens inside the device is its own affair: only the whole is known */
    float step_ms = (float)(wefti_now_ns() - start_ns) * 1e-6f;
    session->run_times = (wefti_step_times_t){step_ms, step_ms, 0, 0};
    return WEFT_OK;
}

weft_status_t wefti_session_copy(weft_session_t *session, void *dst, const void *src, size_t bytes)
{
    if (session->context->device == NULL) {
        memcpy(dst, src, bytes);
        return WEFT_OK;
    }
    const weft_device_ops_t *ops = session->context->device->ops;
    dst = wefti_staged_address(session, dst);
    src = wefti_staged_address(session, src);
    WEFT_RETURN_IF_ERROR(ops->copy(session->copy_queue, dst, src, bytes));
    WEFT_RETURN_IF_ERROR(ops->flush(session->copy_queue));
    /* the caller's memory is in use until the copy is done */
    return drain(session, session->copy_queue, false);
}
