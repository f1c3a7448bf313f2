/* SPDX-License-Identifier: Apache-2.0 */
/* Replays: units go to a stream one after the other, by a state machine that never blocks. */
#include <stdio.h>
#include <string.h>

#include <weft/memory.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

/* ---- handing over ---- */

/* One step of a unit. WEFT_AGAIN: the stream or the group is full. */
static weft_status_t advance(weft_capture_t *capture, wefti_capture_cursor_t *k)
{
    weft_status_t status = WEFT_OK;
    const wefti_capture_unit_t *unit = &capture->units[k->unit];
    if (k->gradual && k->member < unit->member_count) { /* the stream goes on with its data */
        const wefti_captured_t *call = unit->members[k->member];
        status = call->has_event ? weft_stream_wait_event(k->stream, call->event) : WEFT_OK;
        k->member += status == WEFT_OK;
    } else if (k->has_run) {
        status = k->gradual ? weft_event_record(unit->event, k->stream) : WEFT_OK;
        if (status == WEFT_OK) {
            *k = (wefti_capture_cursor_t){
                .stream = k->stream, .gradual = k->gradual, .unit = k->unit + 1};
        }
    } else if (unit->reason == NULL) {
        status = wefti_request_submit(&unit->members[0]->batched, capture->runner.group, k->stream);
        k->has_run = status == WEFT_OK;
    } else {
        status = wefti_bucket_advance(&unit->bucket, &k->bucket, capture->runner.group, k->stream);
        k->has_run = k->bucket.piece == unit->bucket.piece_count;
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
    if (k->gradual) {
        wefti_bucket_runner_mark(&capture->runner);
    }
    return status;
}

static weft_status_t wait_some(const weft_capture_t *capture, weft_stream_t *stream)
{
    return wefti_bucket_wait_some(&capture->runner, stream, "a replay of a capture");
}

/* All that can go, however long it takes. */
static weft_status_t pump_all(weft_capture_t *capture, wefti_capture_cursor_t *k)
{
    weft_status_t status;
    while ((status = pump(capture, k)) == WEFT_AGAIN) {
        WEFT_RETURN_IF_ERROR(wait_some(capture, k->stream));
    }
    return status;
}

/* The others wait for what this rank does not send; that no rank can run a call they know alike. */
static weft_status_t broken(weft_capture_t *capture, weft_status_t status)
{
    return status != WEFT_ERR_UNSUPPORTED ? wefti_group_fail(capture->runner.group, status)
                                          : status;
}

/* ---- at once ---- */

/* stream goes on after the last replay: the next one uses the same buffers. */
static weft_status_t follow_replay(weft_capture_t *capture, weft_stream_t *stream)
{
    weft_status_t status = WEFT_OK;
    if (stream == capture->last_stream) {
        return WEFT_OK;
    }
    while ((status = weft_stream_wait_event(stream, capture->over)) == WEFT_AGAIN) {
        WEFT_RETURN_IF_ERROR(wait_some(capture, stream));
    }
    return status;
}

static weft_status_t check(weft_capture_t *capture)
{
    return wefti_group_check_lasting(capture->runner.group); /* its calls recover broken links */
}

weft_status_t weft_capture_launch(weft_capture_t *capture, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(capture);
    WEFT_RETURN_IF_ERROR(check(capture));
    if (capture->active) {
        return wefti_error(WEFT_ERR_STATE, "capture: a replay by weft_capture_ready is in "
                                           "progress; finish it with weft_capture_wait");
    }
    WEFT_RETURN_IF_ERROR(wefti_stream_check_context(stream, capture->context));
    const bool waits = stream == NULL;
    if (waits) {
        WEFT_RETURN_IF_ERROR(weft_event_synchronize(capture->over));
        stream = capture->context->device != NULL ? capture->runner.stream : NULL;
    } else {
        WEFT_RETURN_IF_ERROR(follow_replay(capture, stream));
    }
    wefti_capture_cursor_t k = {.stream = stream};
    weft_status_t status = pump_all(capture, &k);
    if (status < 0) {
        return broken(capture, status);
    }
    if (stream != NULL && waits) {
        wefti_bucket_runner_mark(&capture->runner);
        status = weft_stream_synchronize(stream);
    } else if (stream != NULL) {
        do { /* full: behind what it has there will be room */
            status = weft_event_record(capture->over, stream);
        } while (status == WEFT_AGAIN && wait_some(capture, stream) == WEFT_OK);
        capture->last_stream = stream;
    }
    capture->info.replays += status == WEFT_OK;
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
    capture->last_stream = capture->runner.stream;
    capture->info.replays++;
}

static weft_status_t begin_replay(weft_capture_t *capture)
{
    for (uint32_t i = 0; i < capture->unit_count; i++) {
        capture->units[i].missing = capture->units[i].member_count;
    }
    for (uint32_t i = 0; i < capture->call_count; i++) {
        wefti_captured_t *call = &capture->calls[i];
        call->is_ready = call->is_waited = call->has_event = false;
    }
    weft_stream_t *stream = capture->runner.stream;
    if (stream != capture->last_stream) { /* a launch that is under way uses the same buffers */
        weft_status_t status = weft_stream_wait_event(stream, capture->over);
        if (status != WEFT_OK) {
            return status;
        }
    }
    capture->cursor = (wefti_capture_cursor_t){.stream = stream, .gradual = true};
    capture->waited = 0;
    capture->active = true;
    return WEFT_OK;
}

static weft_status_t mark_event(weft_capture_t *capture, wefti_captured_t *call,
                                weft_stream_t *stream)
{
    if (call->event == NULL) {
        WEFT_RETURN_IF_ERROR(weft_event_create(capture->context, &call->event));
    }
    weft_status_t status = weft_event_record(call->event, stream);
    call->has_event = status == WEFT_OK;
    return status;
}

weft_status_t weft_capture_ready(weft_capture_t *capture, uint32_t call, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(capture);
    WEFT_RETURN_IF_ERROR(check_call(capture, call));
    WEFT_RETURN_IF_ERROR(wefti_stream_check_context(stream, capture->context));
    wefti_captured_t *entry = &capture->calls[call];
    if (capture->active && entry->is_ready) {
        char text[160];
        wefti_capture_describe(capture, entry, text, sizeof text);
        return wefti_error(WEFT_ERR_STATE, "%s, is already ready in this replay", text);
    }
    weft_status_t status = capture->active ? WEFT_OK : begin_replay(capture);
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
            if (!at->members[i]->is_ready) {
                wefti_capture_describe(capture, at->members[i], text, sizeof text);
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
    WEFT_RETURN_IF_ERROR(check_call(capture, call));
    wefti_captured_t *entry = &capture->calls[call];
    if (!capture->active) {
        return wefti_error(WEFT_ERR_STATE,
                           "capture: no replay is in progress; start one with weft_capture_ready");
    }
    WEFT_RETURN_IF_ERROR(hand_over(capture, entry->unit));
    weft_event_t *event = capture->units[entry->unit].event;
    weft_status_t status =
        stream != NULL ? weft_stream_wait_event(stream, event) : weft_event_synchronize(event);
    if (status == WEFT_OK) {
        note_waited(capture, entry);
    }
    return status;
}

weft_status_t weft_capture_wait_all(weft_capture_t *capture)
{
    WEFT_CHECK_ARG(capture);
    WEFT_RETURN_IF_ERROR(check(capture));
    if (capture->active) {
        WEFT_RETURN_IF_ERROR(hand_over(capture, capture->unit_count - 1));
    }
    WEFT_RETURN_IF_ERROR(weft_event_synchronize(capture->over));
    if (capture->active) {
        end_replay(capture);
    }
    return WEFT_OK;
}
