/* SPDX-License-Identifier: Apache-2.0 */
/* Replays: units go to a stream one after the other, by a state machine that never blocks. */
#include <stdio.h>
#include <string.h>

#include <weft/memory.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

/* ---- handing over ---- */

/* The stream goes on when the members' data is there. */
static weft_status_t await_members(weft_capture_t *capture, wefti_capture_cursor_t *k,
                                   const wefti_capture_unit_t *unit)
{
    for (; k->gradual && k->member < unit->member_count; k->member++) {
        const wefti_captured_t *call = &capture->calls[unit->members[k->member]];
        weft_status_t status =
            call->has_event ? weft_stream_wait_event(k->stream, call->event) : WEFT_OK;
        if (status != WEFT_OK) {
            return status;
        }
    }
    k->member = 0;
    return WEFT_OK;
}

/* A phase of a piece; *out_last: it was the unit's last one. */
static weft_status_t start_calls(weft_capture_t *capture, wefti_capture_cursor_t *k,
                                 const wefti_capture_unit_t *unit, bool *out_last)
{
    weft_status_t status;
    if (!unit->is_bucket) {
        const wefti_captured_t *call = &capture->calls[unit->members[0]];
        status = wefti_request_submit(&call->batched, capture->group, k->stream);
        *out_last = true;
    } else {
        status = wefti_bucket_advance(&unit->bucket, &k->bucket, capture->group, k->stream);
        *out_last = k->bucket.piece == unit->bucket.piece_count;
    }
    return status;
}

/* WEFT_OK: a phase is complete; WEFT_AGAIN: the stream or the group is full. */
static weft_status_t advance(weft_capture_t *capture, wefti_capture_cursor_t *k)
{
    weft_status_t status = WEFT_OK;
    bool last = true;
    wefti_capture_unit_t *unit = &capture->units[k->unit];
    switch (k->phase) {
    case WEFTI_CAPTURE_WAITS:
        status = await_members(capture, k, unit);
        break;
    case WEFTI_CAPTURE_RUN:
        status = start_calls(capture, k, unit, &last);
        break;
    case WEFTI_CAPTURE_RECORD:
        status = k->gradual ? weft_event_record(unit->event, k->stream) : WEFT_OK;
        if (status == WEFT_OK) {
            k->unit++;
            k->bucket = (wefti_bucket_cursor_t){0};
            k->phase = WEFTI_CAPTURE_WAITS;
        }
        return status;
    }
    if (status == WEFT_OK && last) {
        k->phase++;
    }
    return status;
}

/* As far as it goes: WEFT_OK, or WEFT_AGAIN while the stream or the group is full. */
static weft_status_t pump(weft_capture_t *capture, wefti_capture_cursor_t *k)
{
    weft_status_t status = WEFT_OK;
    while (k->unit < capture->unit_count && (!k->gradual || capture->units[k->unit].missing == 0)) {
        status = advance(capture, k);
        if (status != WEFT_OK) {
            break;
        }
    }
    if (k->stream != NULL && k->gradual) {
        capture->target = atomic_load_explicit(&k->stream->tail.signal.value, memory_order_relaxed);
    }
    return status;
}

/* Until the stream has done some of what it has. */
static weft_status_t wait_some(weft_capture_t *capture, weft_stream_t *stream)
{
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_acquire);
    uint32_t tail = atomic_load_explicit(&stream->tail.signal.value, memory_order_relaxed);
    if (done == tail) { /* what the group is full of is on other streams */
        wefti_streams_progress(capture->context, NULL);
        return wefti_group_check(capture->group);
    }
    return wefti_stream_wait(capture->context, NULL, stream, done + (tail - done + 1) / 2,
                             "a replay of a capture");
}

/* All that can go, however long it takes. */
static weft_status_t pump_all(weft_capture_t *capture, wefti_capture_cursor_t *k)
{
    weft_status_t status;
    while ((status = pump(capture, k)) == WEFT_AGAIN) {
        status = wait_some(capture, k->stream);
        if (status < 0) {
            break;
        }
    }
    return status;
}

/* The others wait for what this rank does not send; that no rank can run a call they know alike. */
static weft_status_t broken(weft_capture_t *capture, weft_status_t status)
{
    return status != WEFT_ERR_UNSUPPORTED ? wefti_group_fail(capture->group, status) : status;
}

/* ---- at once ---- */

/* Behind the last replay: the next one uses the same buffers, the capture's own among them. */
static weft_event_t *last_replay(const weft_capture_t *capture)
{
    return capture->was_gradual ? capture->units[capture->unit_count - 1].event : capture->over;
}

/* stream goes on behind the last replay. */
static weft_status_t follow_replay(weft_capture_t *capture, weft_stream_t *stream)
{
    weft_status_t status;
    while ((status = weft_stream_wait_event(stream, last_replay(capture))) == WEFT_AGAIN) {
        status = wait_some(capture, stream);
        if (status < 0) {
            break;
        }
    }
    return status;
}

static weft_status_t check(weft_capture_t *capture)
{
    return wefti_group_check_lasting(capture->group); /* its calls recover broken links */
}

weft_status_t weft_capture_launch(weft_capture_t *capture, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(capture);
    weft_status_t status = check(capture);
    if (status < 0) {
        return status;
    }
    if (capture->active) {
        return wefti_error(WEFT_ERR_STATE, "capture: a replay by weft_capture_ready is in "
                                           "progress; finish it with weft_capture_wait");
    }
    WEFT_TRY(status, wefti_stream_check_context(stream, capture->context), fail);
    bool waits = stream == NULL;
    if (waits) {
        WEFT_TRY(status, weft_event_synchronize(last_replay(capture)), fail);
        stream = capture->context->device != NULL ? capture->stream : NULL;
    } else if (stream != capture->last_stream) {
        WEFT_TRY(status, follow_replay(capture, stream), fail);
    }
    wefti_capture_cursor_t k = {.stream = stream};
    status = pump_all(capture, &k);
    if (status < 0) {
        return broken(capture, status);
    }
    if (stream != NULL && waits) {
        capture->target = atomic_load_explicit(&stream->tail.signal.value, memory_order_relaxed);
        WEFT_TRY(status, weft_stream_synchronize(stream), fail);
    } else if (stream != NULL) {
        do { /* full: behind what it has there will be room */
            status = weft_event_record(capture->over, stream);
        } while (status == WEFT_AGAIN && wait_some(capture, stream) == WEFT_OK);
        capture->last_stream = stream;
        capture->was_gradual = false;
    }
    capture->info.replays += status == WEFT_OK;
fail:
    return status;
}

/* ---- call by call ---- */

static weft_status_t check_call(weft_capture_t *capture, uint32_t call)
{
    weft_status_t status = check(capture);
    if (status == WEFT_OK && call >= capture->call_count) {
        status =
            wefti_error(WEFT_ERR_INVALID_ARGUMENT, "call: invalid index %u: %u calls were captured",
                        call, capture->call_count);
    }
    return status;
}

static void end_replay(weft_capture_t *capture)
{
    capture->active = false;
    capture->was_gradual = true;
    capture->last_stream = capture->stream;
    capture->info.replays++;
}

static weft_status_t begin_replay(weft_capture_t *capture)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < capture->unit_count; i++) {
        capture->units[i].missing = capture->units[i].member_count;
    }
    for (uint32_t i = 0; i < capture->call_count; i++) {
        wefti_captured_t *call = &capture->calls[i];
        call->is_ready = call->is_waited = call->has_event = false;
    }
    /* A launch that is still under way uses the same buffers. */
    WEFT_TRY(status, weft_stream_wait_event(capture->stream, capture->over), fail);
    if (status == WEFT_AGAIN) {
        return status;
    }
    capture->cursor = (wefti_capture_cursor_t){.stream = capture->stream, .gradual = true};
    capture->waited = 0;
    capture->active = true;
fail:
    return status;
}

static weft_status_t mark_event(weft_capture_t *capture, wefti_captured_t *call,
                                weft_stream_t *stream)
{
    weft_status_t status = WEFT_OK;
    if (call->event == NULL) {
        status = weft_event_create(capture->context, &call->event);
    }
    status = status == WEFT_OK ? weft_event_record(call->event, stream) : status;
    call->has_event = status == WEFT_OK;
    return status;
}

weft_status_t weft_capture_ready(weft_capture_t *capture, uint32_t call, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(capture);
    weft_status_t status = check_call(capture, call);
    if (status < 0) {
        return status;
    }
    wefti_captured_t *entry = &capture->calls[call];
    status = wefti_stream_check_context(stream, capture->context);
    if (status < 0) {
        return status;
    }
    if (capture->active && entry->is_ready) {
        char text[160];
        wefti_capture_describe(entry, call, text, sizeof text);
        return wefti_error(WEFT_ERR_STATE, "%s, is already ready in this replay", text);
    }
    if (!capture->active) {
        status = begin_replay(capture);
    }
    if (status == WEFT_OK && stream != NULL) {
        status = mark_event(capture, entry, stream);
    }
    if (status != WEFT_OK) {
        return status;
    }
    entry->is_ready = true;
    capture->units[entry->unit].missing--;
    status = pump(capture, &capture->cursor);
    if (status < 0) {
        return broken(capture, status);
    }
    wefti_streams_progress(capture->context, NULL); /* an inline stream goes on as far as it can */
    return WEFT_OK;                                 /* full: later calls hand the rest over */
}

/* Units up to this one are handed over, or it is said what is missing for that. */
static weft_status_t hand_over(weft_capture_t *capture, uint32_t unit)
{
    char text[160];
    for (uint32_t u = capture->cursor.unit; u <= unit; u++) {
        const wefti_capture_unit_t *at = &capture->units[u];
        for (uint32_t i = 0; at->missing > 0 && i < at->member_count; i++) {
            const wefti_captured_t *call = &capture->calls[at->members[i]];
            if (!call->is_ready) {
                wefti_capture_describe(call, at->members[i], text, sizeof text);
                return wefti_error(WEFT_ERR_STATE,
                                   "%s, is not ready, and runs %s the call waited for; pass it to "
                                   "weft_capture_ready first",
                                   text, u == unit ? "with" : "before");
            }
        }
    }
    weft_status_t status = pump_all(capture, &capture->cursor);
    return status < 0 ? broken(capture, status) : status;
}

static void note_waited(weft_capture_t *capture, wefti_captured_t *call)
{
    capture->waited += !call->is_waited;
    call->is_waited = true;
    if (capture->waited == capture->call_count) {
        end_replay(capture);
    }
}

weft_status_t weft_capture_wait(weft_capture_t *capture, uint32_t call, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(capture);
    weft_status_t status = check_call(capture, call);
    if (status < 0) {
        return status;
    }
    wefti_captured_t *entry = &capture->calls[call];
    if (!capture->active) {
        return wefti_error(WEFT_ERR_STATE,
                           "capture: no replay is in progress; start one with weft_capture_ready");
    }
    WEFT_TRY(status, hand_over(capture, entry->unit), fail);
    weft_event_t *event = capture->units[entry->unit].event;
    if (stream != NULL) {
        status = weft_stream_wait_event(stream, event);
    } else {
        status = weft_event_synchronize(event);
    }
    if (status == WEFT_OK) {
        note_waited(capture, entry);
    }
fail:
    return status;
}

weft_status_t weft_capture_wait_all(weft_capture_t *capture)
{
    WEFT_CHECK_ARG(capture);
    weft_status_t status = check(capture);
    if (status < 0) {
        return status;
    }
    if (!capture->active) {
        return weft_event_synchronize(last_replay(capture));
    }
    WEFT_TRY(status, hand_over(capture, capture->unit_count - 1), fail);
    WEFT_TRY(status, weft_event_synchronize(capture->units[capture->unit_count - 1].event), fail);
    end_replay(capture);
fail:
    return status;
}
