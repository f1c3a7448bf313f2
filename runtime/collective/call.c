/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a call, and what its paths share. */
#include "runtime/base/error.h"
#include "runtime/collective/recorder.h"

/* Wakes who sleeps on what the call published. */
static void settle(weft_group_t *group, uint32_t number, uint32_t unsettled)
{
    wefti_channel_t *own = group->channels[group->rank];
    wefti_fence();
    if (unsettled & WEFTI_UNSETTLED_POSTING) {
        wefti_signal_settle(&own->postings[number & 1].signal);
    }
    if (unsettled & WEFTI_UNSETTLED_ROUND) {
        wefti_signal_settle(&own->staged.signal);
    }
    if (unsettled & WEFTI_UNSETTLED_DONE) {
        wefti_signal_settle(&own->done.signal);
    }
    wefti_signal_settle(&group->calls->completed.signal);
}

void wefti_call_settle(wefti_call_t *call)
{
    settle(call->group, call->number, call->unsettled);
    call->unsettled = 0;
}

void wefti_call_finish(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    uint32_t number = call->number, unsettled = call->unsettled;
    if (call->state == WEFTI_CALL_MOVING) { /* after an error */
        call->path->abandon(call);
    }
    call->unsettled = 0;
    call->state = WEFTI_CALL_DONE;
    /* From here on another thread may have the place in the ring for a call of its own. */
    wefti_signal_publish(&group->calls->completed.signal, call->order);
    settle(group, number, unsettled);
}

void wefti_call_give_up(wefti_call_t *call, weft_status_t status)
{
    if (status == WEFT_ERR_LINK) {
        wefti_recovery_note(call);
    }
    wefti_call_finish(call);
}

/* ---- for paths ---- */

const char *wefti_path_mesh(const wefti_call_t *call)
{
    (void)call;
    return "mesh";
}

bool wefti_path_never_ready(const wefti_call_t *call)
{
    (void)call;
    return false;
}

void wefti_path_lends_nothing(wefti_call_t *call)
{
    (void)call;
}

void wefti_call_complete(wefti_call_t *call)
{
    call->state = wefti_call_is_checked(call) ? WEFTI_CALL_CHECK : WEFTI_CALL_DONE;
}

weft_status_t wefti_call_see_signals(wefti_call_t *call, size_t signal_offset, uint32_t target,
                                     wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    for (; call->peer < group->size; call->peer++) {
        uint32_t r = wefti_group_nth_peer(group, call->peer);
        wefti_signal_t *signal =
            (wefti_signal_t *)(void *)((uint8_t *)group->channels[r] + signal_offset);
        if (!wefti_signal_comes_soon(group->endpoint, signal, target)) {
            return wefti_call_blocked_on(signal, target, out_blocked);
        }
    }
    return WEFT_OK;
}

/* ---- while calls are recorded ---- */

weft_status_t wefti_recorder_check(const weft_group_t *group, const char *call)
{
    return group->calls->recorder == NULL
               ? WEFT_OK
               : wefti_error(WEFT_ERR_STATE, "group: cannot %s while a %s is open", call,
                             group->calls->recorder->ops->name);
}

weft_status_t wefti_recorder_no_pairs(weft_group_t *group, const wefti_pair_t *pair)
{
    (void)pair;
    return wefti_recorder_check(group, "send or receive");
}
