/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a stream's records on the calling thread until something is not there yet. */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

void wefti_cursor_begin(wefti_cursor_t *cursor, const wefti_stream_records_t *records,
                        uint32_t epoch, uint64_t run, uint64_t step)
{
    cursor->records = records->records;
    cursor->count = records->count;
    cursor->next = 0;
    cursor->wait_next = 0;
    cursor->epoch = epoch;
    cursor->run = run;
    cursor->step = step;
    cursor->blocked_since_ns = 0;
    cursor->busy_ns = cursor->blocked_ns = cursor->comm_ns = 0;
}

wefti_signal_t *wefti_cursor_blocked_on(const wefti_cursor_t *cursor, uint32_t *out_target)
{
    const wefti_record_t *record = &cursor->records[cursor->next];
    if (record->kind == WEFTI_RECORD_SCHEDULE) {
        *out_target = record->schedule.bound->blocked.target;
        return record->schedule.bound->blocked.signal;
    }
    *out_target = cursor->epoch * record->wait.stride + record->wait.offset;
    return record->wait.signals[cursor->wait_next];
}

static void remember(wefti_cursor_t *cursor, const wefti_record_t *record,
                     wefti_history_kind_t kind, uint64_t start_ns, uint64_t end_ns)
{
    wefti_history_entry_t entry = {.start_ns = start_ns,
                                   .end_ns = end_ns,
                                   .name = record->name,
                                   .bytes = record->bytes,
                                   .run = (uint32_t)cursor->run,
                                   .step = (uint32_t)cursor->step,
                                   .event = record->event,
                                   .kind = kind};
    wefti_history_add(&cursor->history, &entry);
}

/* True once everything record waits for was reached. */
static bool wait_reached(wefti_cursor_t *cursor, const wefti_record_t *record)
{
    uint32_t target = cursor->epoch * record->wait.stride + record->wait.offset;
    while (cursor->wait_next < record->wait.count) {
        /* acquire: what the poster wrote before posting is visible to the records that follow */
        uint32_t value = atomic_load_explicit(&record->wait.signals[cursor->wait_next]->value,
                                              memory_order_acquire);
        if (!wefti_signal_reached(value, target)) {
            return false;
        }
        cursor->wait_next++;
    }
    cursor->wait_next = 0;
    return true;
}

static weft_status_t advance_wait(wefti_cursor_t *cursor, const wefti_record_t *record)
{
    if ((record->flags & WEFTI_RECORD_FIRST) && cursor->collective_since_ns == 0) {
        cursor->collective_since_ns = wefti_now_ns();
    }
    if (!wait_reached(cursor, record)) {
        if (cursor->blocked_since_ns == 0) {
            cursor->blocked_since_ns = wefti_now_ns();
        }
        return WEFT_IN_PROGRESS;
    }
    bool event = (record->flags & WEFTI_RECORD_EVENT) != 0;
    if (cursor->blocked_since_ns != 0 || event) {
        uint64_t now = wefti_now_ns();
        uint64_t since = cursor->blocked_since_ns != 0 ? cursor->blocked_since_ns : now;
        cursor->blocked_ns += now - since;
        cursor->blocked_since_ns = 0;
        if (event) {
            remember(cursor, record, WEFTI_HISTORY_WAIT, since, now);
        }
    }
    return WEFT_OK;
}

static wefti_history_kind_t kind_of(const wefti_record_t *record)
{
    return record->kind == WEFTI_RECORD_KERNEL    ? WEFTI_HISTORY_KERNEL
           : (record->flags & WEFTI_RECORD_EVENT) ? WEFTI_HISTORY_SIGNAL
                                                  : WEFTI_HISTORY_OTHER;
}

static weft_status_t advance_run(weft_session_t *session, wefti_cursor_t *cursor,
                                 const wefti_record_t *record)
{
    uint64_t start_ns = wefti_now_ns();
    weft_isa_t isa = session->context->settings.isa;
    weft_status_t status = WEFT_OK;
    if (record->kind == WEFTI_RECORD_SIGNAL) { /* others may look at what the device has written */
        status = wefti_staged_drain(session, cursor);
    }
    if (status >= 0) {
        status = record->kind == WEFTI_RECORD_SWEEP ? wefti_sweep_run(record->sweep.sweep, isa)
                 : wefti_staged_enqueues(session, record)
                     ? wefti_staged_enqueue(session, cursor, record)
                     : wefti_record_run(record, cursor->epoch, isa);
    }
    if (status < 0) {
        return wefti_error_prefix(status, "rank %u: %s \"%s\"", session->endpoint->rank,
                                  record->kind == WEFTI_RECORD_KERNEL ? "kernel" : "collective",
                                  record->name);
    }
    if (record->flags & WEFTI_RECORD_FIRST) {
        cursor->collective_since_ns = start_ns;
    }
    if (record->kind == WEFTI_RECORD_SIGNAL && !(record->flags & WEFTI_RECORD_EVENT)) {
        return WEFT_OK;
    }
    uint64_t end_ns = wefti_now_ns();
    if (record->kind != WEFTI_RECORD_KERNEL) {
        cursor->busy_ns += end_ns - start_ns;
    }
    if (record->flags & WEFTI_RECORD_FUSION_COPY) {
        cursor->copied_bytes += record->copy.size_bytes;
    }
    remember(cursor, record, kind_of(record), start_ns, end_ns);
    return WEFT_OK;
}

static weft_status_t advance_schedule(weft_session_t *session, wefti_cursor_t *cursor,
                                      const wefti_record_t *record)
{
    uint64_t start_ns = wefti_now_ns();
    if (cursor->blocked_since_ns != 0) {
        cursor->blocked_ns += start_ns - cursor->blocked_since_ns;
    }
    weft_status_t status = WEFT_OK;
    if (!record->schedule.bound->started && (record->flags & WEFTI_RECORD_FIRST) != 0) {
        cursor->collective_since_ns = start_ns;
    }
    if (!record->schedule.bound->started) {
        status = wefti_staged_start(session, cursor, record->schedule.bound);
    }
    status = status < 0 ? status : wefti_bound_run_advance(record->schedule.bound);
    if (status == WEFT_OK) {
        status = wefti_staged_finish(session, cursor, record->schedule.bound);
    }
    if (status < 0) {
        return wefti_error_prefix(status, "rank %u: collective \"%s\"", session->endpoint->rank,
                                  record->name);
    }
    uint64_t end_ns = wefti_now_ns();
    cursor->busy_ns += end_ns - start_ns;
    cursor->blocked_since_ns = status == WEFT_IN_PROGRESS ? end_ns : 0;
    return status;
}

weft_status_t wefti_cursor_advance(weft_session_t *session, wefti_cursor_t *cursor, bool one_kernel)
{
    while (cursor->next < cursor->count) {
        const wefti_record_t *record = &cursor->records[cursor->next];
        weft_status_t status =
            record->kind == WEFTI_RECORD_SCHEDULE ? advance_schedule(session, cursor, record)
            : record->kind == WEFTI_RECORD_WAIT   ? advance_wait(cursor, record)
                                                  : advance_run(session, cursor, record);
        if (status != WEFT_OK) {
            return status;
        }
        if (record->flags & WEFTI_RECORD_LAST) {
            uint64_t now = wefti_now_ns();
            cursor->comm_ns += now - cursor->collective_since_ns;
            remember(cursor, record, WEFTI_HISTORY_COLLECTIVE, cursor->collective_since_ns, now);
            cursor->collective_since_ns = 0;
        }
        cursor->next++;
        if (one_kernel && record->kind == WEFTI_RECORD_KERNEL && cursor->next < cursor->count) {
            return WEFT_AGAIN;
        }
    }
    return wefti_staged_drain(session, cursor);
}
