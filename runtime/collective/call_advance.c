/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of a collective in flight, and which path it takes. */
#include "runtime/base/error.h"
#include "runtime/collective/call_move.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/fused.h"

/* In the order in which they are asked; the last takes everything. */
static const wefti_path_t *const paths[] = {&wefti_path_posting, &wefti_path_schedule,
                                            &wefti_path_direct, &wefti_path_attached,
                                            &wefti_path_staged};

/* All ranks' call slots were seen: all ranks decide the same. */
static weft_status_t choose_path(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    const wefti_path_t *const *path = paths;
    call->schedule.algorithm = NULL;
    if (call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        WEFT_RETURN_IF_ERROR(wefti_call_check_table(call));
    }
    if (call->schedule.possible) {
        WEFT_RETURN_IF_ERROR(wefti_call_settle_algorithm(call));
    }
    /* A peer that gave the call up may have freed what it posted. */
    bool looks = (call->flags & WEFTI_POSTED_DATA) == 0 || group->put_peer_count > 0;
    if (looks && wefti_group_broken(group)) {
        WEFT_RETURN_IF_ERROR(wefti_group_check(group));
    }
    while (!(*path)->takes(call)) {
        path++;
    }
    call->path = *path;
    group->calls->path = (*path)->name;
    group->calls->algorithm = "mesh";
    if (group->calls->timed.trial != NULL) {
        wefti_timed_begin(&group->calls->timed, call->path == &wefti_path_attached);
    }
    return (*path)->start(call);
}

static weft_status_t compare(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    size_t signal =
        offsetof(wefti_channel_t, slots[0].signal) + (call->number & 1) * sizeof(wefti_call_slot_t);
    weft_status_t status = wefti_call_see_signals(call, signal, call->number, NULL, out_blocked);
    if (status == WEFT_OK) {
        status = wefti_call_compare(call);
    }
    return status < 0 ? wefti_group_fail(call->group, status) : status;
}

/* ISSUED and RECOVERING: the calls before this one are done, and no link is broken any more. */
static weft_status_t await_turn(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = WEFT_OK;
    if (!wefti_signal_has_reached(&group->calls->completed.signal, call->order - 1)) {
        return wefti_call_blocked_on(&group->calls->completed.signal, call->order - 1, out_blocked);
    }
    if (wefti_link_broken(group)) {
        status = wefti_recovery_advance(call, out_blocked);
    }
    return status == WEFT_OK && group->calls->recovery.owes ? wefti_recovery_admit(call) : status;
}

static weft_status_t begin(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = await_turn(call, out_blocked);
    if (status == WEFT_OK && call->pairs.count > 0) {
        call->state = WEFTI_CALL_PAIRS;
        return WEFT_OK;
    }
    if (status == WEFT_OK && group->calls->deferred.open) {
        status = wefti_call_check_deferred(group, out_blocked);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (call->refuses) {
        wefti_call_post_refusal(call);
        return WEFT_OK;
    }
    status = wefti_call_post(call);
    return status < 0 ? wefti_group_fail(group, status) : status;
}

static weft_status_t exchange_pairs(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    /* What came may not be what was sent. */
    weft_status_t status = wefti_link_broken(group) ? wefti_group_check(group) : WEFT_OK;
    if (status == WEFT_OK) {
        status = wefti_pairs_advance(call, out_blocked);
    }
    call->state = status == WEFT_OK ? WEFTI_CALL_DONE : call->state;
    return status;
}

/* To the slot for digests. */
static void next_slot(wefti_call_t *call)
{
    wefti_call_settle(call); /* the former call slot's sleepers, before number moves on */
    call->number++;
    call->unsettled |= WEFTI_UNSETTLED_POSTING;
}

static weft_status_t post_check(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = WEFT_OK;
    if (call->check == WEFTI_CHECK_EMPTY) {
        wefti_call_skip_check(call);
        return WEFT_OK;
    }
    if (group->calls->deferred.open) {
        status = wefti_call_check_deferred(group, out_blocked);
        if (status == WEFT_OK && group->calls->deferred.refused) { /* which posts no digests */
            wefti_call_skip_check(call);
            return WEFT_OK;
        }
    }
    if (status == WEFT_OK) {
        next_slot(call);
        wefti_call_post_check(call);
        call->peer = 1;
        call->state = WEFTI_CALL_COMPARE;
    }
    return status;
}

static weft_status_t advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status = WEFT_OK;
    switch (call->state) {
    case WEFTI_CALL_ISSUED:
    case WEFTI_CALL_RECOVERING:
        return begin(call, out_blocked);
    case WEFTI_CALL_PAIRS:
        return exchange_pairs(call, out_blocked);
    case WEFTI_CALL_POSTED:
        status = wefti_call_see_postings(call, out_blocked);
        if (status != WEFT_OK || call->state == WEFTI_CALL_DONE) {
            return status;
        }
        status = choose_path(call);
        if (call->state == WEFTI_CALL_REFUSED) {
            if (wefti_call_is_checked(call)) {
                wefti_call_skip_check(call);
            }
            return status;
        }
        return status < 0 ? wefti_group_fail(call->group, status) : status;
    case WEFTI_CALL_MOVING:
    case WEFTI_CALL_ROUND:
    case WEFTI_CALL_RESULTS:
        status = call->path->advance(call, out_blocked);
        return status < 0 ? wefti_group_fail(call->group, status) : status;
    case WEFTI_CALL_CHECK:
        return post_check(call, out_blocked);
    case WEFTI_CALL_COMPARE:
        status = compare(call, out_blocked);
        call->state = status == WEFT_OK ? WEFTI_CALL_DONE : call->state;
        return status;
    case WEFTI_CALL_FREE:
    case WEFTI_CALL_REFUSED:
    case WEFTI_CALL_DONE:
        break;
    }
    return WEFT_OK;
}

weft_status_t wefti_call_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status;
    do {
        status = advance(call, out_blocked);
    } while (status == WEFT_OK && call->state != WEFTI_CALL_DONE);
    if (status == WEFT_IN_PROGRESS) {
        call->wait.signal = out_blocked->signal;
        call->wait.target = out_blocked->target;
        wefti_call_record_blocked(call);
        if (call->unsettled != 0) {
            wefti_call_settle(call);
        }
    } else {
        if (status == WEFT_OK && wefti_link_broken(call->group)) { /* something may be missing */
            status = wefti_link_check(call->group);
        }
        if (status == WEFT_OK && call->fused != NULL) {
            wefti_fused_unpack(call);
        }
        wefti_call_give_up(call, status);
    }
    return status;
}
