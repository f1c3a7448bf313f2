/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for calls: to the end, once more for a stream, for everything a group has in flight. */
#include "runtime/base/error.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_steps.h"
#include "runtime/stream/stream.h"

#define CHECK_NS 10000000ull

/* Why a call cannot continue: a broken link does not stop a call that performs link recovery. The
 * time-out of another rank ends the wait of this one also. */
static weft_status_t check(const wefti_call_t *call)
{
    weft_status_t status = call->state == WEFTI_CALL_RECOVERING
                               ? wefti_group_check_lasting(call->group)
                               : wefti_group_check(call->group);
    if (status == WEFT_ERR_TIMEOUT) {
        wefti_call_gave_up(call);
    }
    return status;
}

static bool is_broken(const wefti_call_t *call)
{
    return call->state == WEFTI_CALL_RECOVERING ? wefti_group_ended(call->group)
                                                : wefti_group_broken(call->group);
}

static weft_status_t look_for_departed(wefti_call_t *call)
{
    /* relaxed: it only says that looking is worth its while */
    bool some = atomic_load_explicit(&call->group->endpoint->departed, memory_order_relaxed);
    return some ? wefti_group_departed(call, wefti_now_ns()) : WEFT_OK;
}

/* A rank that it waits for has left the world, or some rank broke the group. WEFT_AGAIN: is_ready.
 */
static weft_status_t look(void *user)
{
    wefti_call_t *call = user;
    if (is_broken(call)) {
        return check(call);
    }
    if (call->group->endpoint->settings->late_ns != 0) {
        wefti_group_report_late(call, wefti_now_ns());
    }
    WEFT_RETURN_IF_ERROR(look_for_departed(call));
    return wefti_call_is_ready(call) ? WEFT_AGAIN : WEFT_OK;
}

/*
 * The same while inline streams make progress: for a call that waits for an earlier one, which may
 * be on such a stream, and for every wait of a user's thread, since other ranks may need the work
 * on these streams before they reach this call.
 */
static weft_status_t look_and_progress(void *user)
{
    wefti_call_t *call = user;
    wefti_context_progress(call->group->context);
    return look(user);
}

static bool describe(void *call, wefti_wait_t *out)
{
    return wefti_call_describe(call, out);
}

static weft_status_t wait_for(wefti_call_t *call, wefti_waits_t waits,
                              const wefti_blocked_t *blocked)
{
    weft_group_t *group = call->group;
    bool progresses =
        waits == WEFTI_WAITS_ON_CALLER || blocked->signal == &group->calls->completed.signal;
    weft_status_t status = wefti_wait_signal_described(
        group->endpoint, blocked->signal, blocked->target, "a collective",
        progresses ? look_and_progress : look, describe, call);
    if (status == WEFT_AGAIN) {
        return WEFT_OK;
    }
    if (status < 0 && is_broken(call)) {
        return check(call); /* the rank that recorded the error may have left since */
    }
    if (status == WEFT_ERR_TIMEOUT) {
        return wefti_group_late(call, status);
    }
    if (status < 0 && wefti_fault_get(&group->fault) == WEFT_OK) {
        wefti_group_fail(group, status);
    }
    return status < 0 ? check(call) : status;
}

weft_status_t wefti_call_run(wefti_call_t *call, wefti_waits_t waits)
{
    wefti_blocked_t blocked = {0};
    for (;;) {
        weft_status_t status = wefti_call_advance(call, &blocked);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        status = wait_for(call, waits, &blocked);
        if (status < 0) {
            wefti_call_give_up(call, status);
            return status;
        }
    }
}

weft_status_t wefti_call_poll(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = wefti_call_advance(call, out_blocked);
    if (status != WEFT_IN_PROGRESS) {
        return status;
    }
    if (out_blocked->signal == &group->calls->completed.signal) {
        out_blocked->signal = NULL; /* the group may go while somebody sleeps on it */
    }
    uint64_t now = wefti_now_ns();
    uint64_t timeout_ns = group->endpoint->settings->timeout_ns;
    if (call->wait.since_ns == 0) {
        call->wait.since_ns = call->wait.checked_ns = now;
    }
    wefti_group_report_late(call, now);
    if (is_broken(call)) {
        status = check(call);
    } else if (timeout_ns != 0 && now - call->wait.since_ns > timeout_ns) {
        status = wefti_group_late(call, WEFT_ERR_TIMEOUT);
    } else if (now - call->wait.checked_ns > CHECK_NS) {
        call->wait.checked_ns = now;
        wefti_endpoint_deserted(group->endpoint); /* notes whether some rank has left */
        status = check(call);
        status = status == WEFT_OK ? look_for_departed(call) : status;
        if (status == WEFT_OK) {
            status = wefti_waits_ended(group->endpoint, describe, call);
            status = status < 0 ? wefti_group_fail(group, status) : status;
        }
        status = status == WEFT_OK ? WEFT_IN_PROGRESS : status;
    }
    if (status < 0) {
        wefti_call_give_up(call, status);
    }
    return status;
}

void wefti_group_leave_stream(weft_group_t *group, weft_stream_t *stream, uint32_t target,
                              const char *what)
{
    weft_status_t status = wefti_stream_wait(group->context, NULL, stream, target, what);
    if (status < 0) { /* too late, or somebody died: what is left only ends when that is known */
        wefti_fault_set(&stream->fault, status, weft_last_error());
        wefti_group_fail(group, status);
    }
    /* acquire: the stream's thread is done with the memory that its work used */
    while (!wefti_signal_has_reached(&stream->done.signal, target)) {
        wefti_streams_progress(group->context, NULL);
        wefti_signal_await(group->endpoint, &stream->done.signal, target, 0, 1000000);
    }
}

weft_status_t wefti_group_drain(weft_group_t *group)
{
    wefti_signal_t *completed = &group->calls->completed.signal;
    uint32_t issued = group->calls->issued;
    wefti_local_wait_t wait = {.endpoint = group->endpoint,
                               .signal = completed,
                               .target = issued,
                               .what = "the calls of a group to end"};
    weft_status_t status = WEFT_OK;
    while (status == WEFT_OK && !wefti_signal_has_reached(completed, issued)) {
        wefti_streams_progress(group->context, NULL);
        status = wefti_group_check(group);
        if (status == WEFT_OK) {
            wefti_signal_await(group->endpoint, completed, issued, 0, 1000000);
            wefti_waits_look_local(&wait);
        }
    }
    wefti_waits_end_local(&wait);
    return status;
}
