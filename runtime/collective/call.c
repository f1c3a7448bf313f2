/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a call. */
#include "runtime/base/error.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/recorder.h"
#include "runtime/interpreter/interpreter.h"

/* Wakes who sleeps on what the call published. */
static void settle(weft_group_t *group, uint32_t number, uint32_t unsettled)
{
    wefti_channel_t *own = group->channels[group->rank];
    wefti_fence();
    if (unsettled & WEFTI_UNSETTLED_POSTING) {
        wefti_signal_settle(&own->slots[number & 1].signal);
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

void wefti_call_finish(wefti_call_t *call, weft_status_t status)
{
    weft_group_t *group = call->group;
    uint32_t number = call->number, unsettled = call->unsettled;
    if (wefti_call_runs_schedule(call)) { /* after an error: the caller gets its buffers back */
        wefti_run_settle(call->schedule.run);
    }
    call->unsettled = 0;
    if (status == WEFT_OK) {
        wefti_call_note_retry(call, true);
    }
    call->state = WEFTI_CALL_DONE;
    wefti_call_record_end(call, status);
    /* From here on another thread may have the place in the ring for a call of its own. */
    wefti_signal_publish(&group->calls->completed.signal, call->order);
    settle(group, number, unsettled);
}

void wefti_call_give_up(wefti_call_t *call, weft_status_t status)
{
    if (status == WEFT_ERR_LINK) {
        wefti_recovery_note(call);
    }
    wefti_call_finish(call, status);
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
