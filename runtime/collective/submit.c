/* SPDX-License-Identifier: Apache-2.0 */
/* A call's place in the ring of its group, and how it gets there. */
#include "runtime/collective/submit.h"

#include <stdio.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_steps.h"

/* why: its stream has failed with that, and its message is the calling thread's. */
static weft_status_t drop(wefti_call_t *call, weft_status_t why)
{
    char reason[WEFTI_ERROR_TEXT_BYTES];
    snprintf(reason, sizeof reason, "%s", weft_last_error());
    weft_group_t *group = call->group;
    if (call->state == WEFTI_CALL_DONE) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_group_check_lasting(group);
    if (status == WEFT_OK && group->put_peer_count > 0) {
        /* The group may be recovered by a call before this one: only then is it known what this one
         * is to others. */
        if (!wefti_signal_has_reached(&group->calls->completed.signal, call->order - 1)) {
            return WEFT_IN_PROGRESS;
        }
        if (wefti_recovery_excuses(call)) {
            wefti_call_give_up(call, WEFT_ERR_LINK);
            return WEFT_OK;
        }
    }
    /* Its peers wait for it, and the group's later calls are in its order. What broke the group or
     * the world is the reason, where something did, else what broke the stream. */
    if (status == WEFT_OK) {
        status = wefti_error(wefti_error_is_shared(why) ? why : WEFT_ERR_ABORTED,
                             "rank %u: call cancelled: its stream has failed: %s",
                             group->ranks[group->rank], reason);
    }
    wefti_group_fail(group, status);
    wefti_call_finish(call, status);
    return WEFT_OK;
}

weft_status_t wefti_call_reserve(weft_group_t *group, weft_stream_t *stream,
                                 wefti_call_t **out_call)
{
    WEFT_RETURN_IF_ERROR(wefti_stream_check_context(stream, group->context));
    if (!wefti_endpoint_owned(group->endpoint) ||
        atomic_load_explicit(&group->fault.state, memory_order_relaxed) != 0 ||
        wefti_group_ended(group)) {
        weft_status_t status = wefti_group_check_lasting(group);
        if (status < 0 && wefti_endpoint_owned(group->endpoint)) {
            wefti_flight_note_failed(&group->context->flight, &group->calls->flight, status);
        }
        WEFT_RETURN_IF_ERROR(status);
    }
    uint32_t order = atomic_load_explicit(&group->calls->issued, memory_order_relaxed) + 1;
    /* acquire: the ring's place is free, and its last user has finished with it */
    uint32_t completed =
        atomic_load_explicit(&group->calls->completed.signal.value, memory_order_acquire);
    if (order - completed > WEFTI_CALLS) {
        return WEFT_AGAIN;
    }
    wefti_call_t *call = &group->calls->ring[order & (WEFTI_CALLS - 1)];
    call->order = order;
    call->state = WEFTI_CALL_ISSUED;
    call->ends.lead = call->ends.trail = 0;
    call->staged.round = 0;
    call->wait.since_ns = call->wait.late_since_ns = call->wait.departed_since_ns = 0;
    call->staged.two_shot = false;
    call->pairs.count = 0;
    call->check = WEFTI_CHECK_NOTHING;
    call->refuses = false;
    call->fused = NULL;
    *out_call = call;
    return WEFT_OK;
}

/* relaxed stores: the call that recovers the group was issued later */
static void issue(wefti_call_t *call, const weft_stream_t *stream)
{
    wefti_calls_t *calls = call->group->calls;
    weft_collective_t op = call->request.op;
    atomic_store_explicit(&calls->issued, call->order, memory_order_relaxed);
    if (call->pairs.count == 0) {
        call->own = calls->own;
        call->schedule.wanted = calls->own ? NULL : calls->selection.wanted.algorithm[op];
        call->what |= calls->own || call->refuses ? 0 : calls->selection.what[op];
        call->check = (uint8_t)wefti_call_choose_check(call);
        call->number = atomic_load_explicit(&calls->number, memory_order_relaxed) + 1;
        /* a check has a number of its own */
        atomic_store_explicit(&calls->number, call->number + wefti_call_is_checked(call),
                              memory_order_relaxed);
    }
    wefti_call_note_retry(call, false);
    wefti_call_record(call, stream);
}

weft_status_t wefti_call_submit(wefti_call_t *call, weft_stream_t *stream)
{
    return call->group->calls->submit(call, stream);
}

/* ---- on a stream, which holds a reference to the group ---- */

/* group: of a call that has ended with status, or is still in flight. */
static weft_status_t let_go(weft_group_t *group, weft_status_t status)
{
    if (status != WEFT_IN_PROGRESS) {
        wefti_group_release(group);
    }
    return status;
}

static weft_status_t run_on_stream(void *user)
{
    wefti_call_t *call = user;
    return let_go(call->group, wefti_call_run(call, WEFTI_WAITS_ON_STREAM));
}

static weft_status_t poll_on_stream(void *user, wefti_blocked_t *out_blocked)
{
    wefti_call_t *call = user;
    return let_go(call->group, wefti_call_poll(call, out_blocked));
}

static weft_status_t drop_on_stream(void *user, weft_status_t why)
{
    wefti_call_t *call = user;
    return let_go(call->group, drop(call, why));
}

/* Before its first poll nothing is known of what it waits for. */
static bool describe_on_stream(void *user, wefti_wait_t *out)
{
    wefti_call_t *call = user;
    return call->wait.since_ns != 0 && wefti_call_describe(call, out);
}

static const wefti_opaque_ops_t stream_ops = {run_on_stream, poll_on_stream, drop_on_stream,
                                              wefti_opaque_not_enqueued, describe_on_stream};

weft_status_t wefti_call_submit_host(wefti_call_t *call, weft_stream_t *stream)
{
    wefti_slot_t *slot;
    if (stream == NULL) {
        issue(call, stream);
        return wefti_call_run(call, WEFTI_WAITS_ON_CALLER);
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_OPAQUE;
    slot->record.name = "collective";
    slot->record.opaque.ops = &stream_ops;
    slot->record.opaque.user = call;
    issue(call, stream);
    atomic_fetch_add_explicit(&call->group->references, 1, memory_order_relaxed);
    return wefti_stream_commit(stream, slot);
}
