/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank says of a call before anything moves, and what it learns from the others. */
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_meet.h"
#include "runtime/collective/call_move.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/fused.h"
#include "runtime/group/mirror.h"

#define DIRECT_MIN_BYTES 2048u   /* from here on one copy less is worth one more signal */
#define REFRESH_CALLS (1u << 24) /* counters lag by no more */

/* Of a block, from where on moving it in place is tried although it fits a call slot. */
static uint64_t least_direct(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    if (group->put_peer_count > 0) {
        return UINT64_MAX; /* there is no direct */
    }
    if (group->endpoint->may_spin) {
        return DIRECT_MIN_BYTES;
    }
    /* One more signal is one more change of processes, unless ranks help each other. */
    return wefti_call_offer_help(call) != 0 ? 0 : WEFTI_SLOT_DATA;
}

/* Of the call slot's data. */
static size_t posted_bytes(const wefti_call_t *call)
{
    size_t list_bytes = wefti_fused_list_bytes(call);
    if (call->flags & WEFTI_POSTED_DATA) {
        return list_bytes + (call->area_bytes > WEFTI_SLOT_TINY ? call->area_bytes : 0);
    }
    /* The table. */
    return call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V
               ? call->group->size * 2 * sizeof(uint64_t)
               : list_bytes;
}

/*
 * Only some paths say done, or claim shares. Counters that calls of other paths leave alone would
 * fall behind by half their range, and then count as ahead. This rank's calls before are over, so
 * no other rank writes these counters until it has posted.
 */
static void refresh_counters(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_channel_t *own = group->channels[group->rank];
    /* a call has one number, or two where it is checked: none of these steps over both */
    if ((call->number & (REFRESH_CALLS - 1)) > 1) {
        return;
    }
    wefti_signal_publish(&own->done.signal, call->number - 1);
    /* relaxed: published with the call slot */
    atomic_store_explicit(&own->claimed, call->number - 1, memory_order_relaxed);
    if (!wefti_group_is_hosted(group)) { /* whose ranks do not look at each other's */
        wefti_mirror_done(group, call->number - 1);
        return;
    }
    /* Few calls put their slots into mirrors. A peer may have put that of this call already. */
    for (uint32_t i = 0; i < group->put_peer_count; i++) {
        wefti_channel_t *mirror = group->channels[group->put_peers[i]];
        wefti_signal_raise(&mirror->slots[0].signal, call->number - 1);
        wefti_signal_raise(&mirror->slots[1].signal, call->number - 1);
    }
}

/* Known from earlier calls of this size: executors carry it out, whatever the memory is. An
 * all-to-all-v has its size from all call slots only. */
static bool only_executors(const wefti_call_t *call)
{
    uint32_t elem = (uint32_t)__builtin_ctz(call->elem_bytes);
    uint32_t size = 63u - (uint32_t)__builtin_clzll(call->longest | call->elem_bytes);
    const weft_algorithm_t *const *by_cost =
        call->group->calls->selection.by_cost[call->request.op][elem][size];
    return by_cost[0] == &wefti_executors && by_cost[1] == &wefti_executors &&
           call->schedule.wanted == NULL && call->request.op != WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

void wefti_call_publish(wefti_call_t *call, size_t data_bytes)
{
    weft_group_t *group = call->group;
    wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, call->number);
    refresh_counters(call);
    if (!wefti_group_is_hosted(group) || wefti_call_needs_all_slots(call)) {
        wefti_call_slot_publish(group, own, call->number, data_bytes);
    } else {
        wefti_signal_publish(&own->signal, call->number);
    }
    if (wefti_group_is_hosted(group)) {
        wefti_meet_begin(group, call->number, false);
    }
    call->unsettled |= WEFTI_UNSETTLED_POSTING;
    call->peer = 1;
    call->state = WEFTI_CALL_POSTED;
}

/* In a hosted group, what needs the slots or the buffers of ranks on other hosts is out of the
 * question: data goes by a schedule, which opens the links that it needs. A call without data has
 * none. */
static void keep_to_schedules(wefti_call_t *call)
{
    const uint32_t kept = WEFTI_POSTED_DATA | WEFTI_POSTED_IN_PLACE | WEFTI_POSTED_OUT_OF_PLACE;
    if (wefti_group_is_hosted(call->group) && !wefti_call_needs_all_slots(call)) {
        call->flags &= kept;
    }
}

weft_status_t wefti_call_post(wefti_call_t *call)
{
    bool may_post = true;
    call->schedule.possible = false;
    if (!only_executors(call)) {
        WEFT_RETURN_IF_ERROR(wefti_call_consider(call, &may_post));
    }
    weft_group_t *group = call->group;
    wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, call->number);
    uint64_t direct_min = least_direct(call);
    bool hosted = wefti_group_is_hosted(group);
    uint64_t most = hosted ? 0 : group->calls->slot_bytes;
    bool fits = may_post && call->longest <= most && wefti_call_fits_posting(call);
    if (call->fused != NULL) {
        wefti_fused_pack(call);
        wefti_fused_post(call, own);
    }
    if (wefti_call_is_checked(call)) {
        wefti_call_keep_for_check(call);
    }
    call->flags = 0;
    if (!fits || call->longest >= direct_min) {
        call->flags =
            wefti_call_reach(call, own) ? WEFTI_POSTED_REACHABLE | wefti_call_offer_help(call) : 0;
    }
    if (!fits && wefti_call_post_addresses(call, own)) {
        call->flags |= WEFTI_POSTED_ATTACHABLE;
    }
    if (fits && call->flags == 0) {
        call->staged.piece_bytes = (size_t)call->longest; /* one round */
        wefti_call_stage(call, wefti_call_slot_area(call, own));
        call->flags = WEFTI_POSTED_DATA;
    } else {
        wefti_call_post_places(call, own);
        if (call->schedule.possible || group->put_peer_count > 0) { /* peers may put into it */
            WEFT_RETURN_IF_ERROR(
                wefti_group_commit_work(group, wefti_call_work_bytes(call, call->longest)));
        }
        call->flags |= call->schedule.possible ? wefti_call_offer(call, own) : 0;
    }
    if (call->flags != WEFTI_POSTED_DATA || hosted) { /* else data may be in its place */
        own->at.selection = group->calls->selection.digest[call->request.op];
    }
    keep_to_schedules(call);
    own->what = call->what | (uint64_t)call->flags << WEFTI_WHAT_FLAGS_SHIFT;
    own->count = call->posted_count;
    size_t bytes = posted_bytes(call);
    if (group->put_peer_count > 0 && !hosted) {
        group->calls->shape_at = wefti_align_up(bytes, 64);
    }
    if (call->posted_count > WEFTI_COUNT_MASK && !wefti_call_op(call)->variable) {
        bytes = wefti_call_post_shape(call, own, bytes);
    }
    wefti_call_publish(call, bytes);
    /* Small enough that all ranks post data, whatever their memory is. */
    call->certain = fits && call->longest < direct_min && !hosted;
    return WEFT_OK;
}

/* ---- a rank that refuses the call ---- */

/* The call is over here, and ranks may not have come to it. */
static void defer(wefti_call_t *call)
{
    call->group->calls->deferred = (wefti_deferred_t){.open = true,
                                                      .follows = wefti_call_is_checked(call),
                                                      .number = call->number,
                                                      .peer = 1,
                                                      .what = call->what,
                                                      .count = call->posted_count};
    call->check = wefti_call_is_checked(call) ? WEFTI_CHECK_EMPTY : WEFTI_CHECK_NOTHING;
}

void wefti_call_post_refusal(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, call->number);
    own->what = call->what;
    own->count = call->posted_count;
    memcpy(own->data, group->calls->refusals[call - group->calls->ring], WEFTI_REFUSAL_BYTES);
    wefti_call_publish(call, WEFTI_REFUSAL_BYTES);
    if (!wefti_group_is_hosted(group)) { /* there it passes on what other hosts know */
        defer(call);
        call->state = WEFTI_CALL_DONE;
    }
}

weft_status_t wefti_call_refused(wefti_call_t *call, uint32_t r, uint64_t count, const char *text)
{
    const weft_group_t *group = call->group;
    weft_status_t status = (weft_status_t) - (int64_t)(count & INT8_MAX);
    if (!wefti_group_is_hosted(group)) {
        defer(call);
    } else if (wefti_call_is_checked(call)) {
        wefti_call_skip_check(call);
    }
    call->state = WEFTI_CALL_REFUSED;
    return wefti_error(status < 0 ? status : WEFT_ERR_INVALID_ARGUMENT, "rank %u: %.*s",
                       group->ranks[r], (int)WEFTI_REFUSAL_BYTES - 1, text);
}

/* ---- what others posted ---- */

static bool same_call(const wefti_deferred_t *own, const wefti_call_slot_t *theirs)
{
    return ((theirs->what ^ own->what) & ~WEFTI_WHAT_FLAGS_MASK) == 0 &&
           theirs->count == own->count;
}

/* All of what was asked for, which what has but a digest of. */
static bool same_selection(const wefti_call_t *call, const wefti_call_slot_t *theirs)
{
    const weft_group_t *group = call->group;
    const wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, call->number);
    uint32_t flags = (uint32_t)((own->what | theirs->what) >> WEFTI_WHAT_FLAGS_SHIFT);
    return (flags & WEFTI_POSTED_DATA) != 0 || theirs->at.selection == own->at.selection;
}

/* Whether this rank cannot go on without rank r's call slot. */
static bool needs(const wefti_call_t *call, uint32_t r)
{
    const wefti_collective_t *op = wefti_call_op(call);
    if (!op->rooted || !call->certain) {
        return true;
    }
    return wefti_side_is_on(op->send, r == call->request.root) &&
           wefti_side_is_on(op->recv, call->group->rank == call->request.root);
}

/* In a hosted group: what ranks agreed on. */
static weft_status_t see_meeting(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = wefti_meet_advance(group, out_blocked);
    if (status != WEFT_OK) {
        return status < 0 ? wefti_group_fail(group, status) : status;
    }
    const wefti_meet_record_t *met = wefti_meet_result(group);
    for (uint32_t i = 0; i < 2 && met->sides[i].rank != WEFTI_MEET_NONE; i++) {
        const wefti_meet_side_t *side = &met->sides[i];
        if (side->what == WEFTI_WHAT_REFUSED && call->refuses) { /* its caller has the error */
            call->state = WEFTI_CALL_DONE;
            if (wefti_call_is_checked(call)) {
                wefti_call_skip_check(call);
            }
            return WEFT_OK;
        }
        if (side->what == WEFTI_WHAT_REFUSED) {
            return wefti_call_refused(call, side->rank, side->count, (const char *)met->data[i]);
        }
    }
    call->flags &= met->flags;
    return wefti_meet_mismatch(group, met);
}

weft_status_t wefti_call_see_postings(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    if (wefti_group_is_hosted(group)) {
        weft_status_t status = see_meeting(call, out_blocked);
        if (status != WEFT_OK || call->refuses || !wefti_call_needs_all_slots(call)) {
            return status;
        }
    }
    wefti_deferred_t own = {
        .number = call->number, .peer = 1, .what = call->what, .count = call->posted_count};
    for (; call->peer < group->size; call->peer++) {
        uint32_t r = wefti_group_nth_peer(group, call->peer);
        if (!needs(call, r)) {
            continue; /* seen before the next call */
        }
        wefti_call_slot_t *theirs = wefti_call_slot_of(group, r, call->number);
        wefti_signal_t *signal = &theirs->signal;
        if (!wefti_signal_comes_soon(group->endpoint, signal, call->number)) {
            return wefti_call_blocked_on(signal, call->number, out_blocked);
        }
        if (!same_call(&own, theirs) ||
            ((call->what & WEFTI_WHAT_SELECTION_MASK) != 0 && !same_selection(call, theirs))) {
            return theirs->what == WEFTI_WHAT_REFUSED
                       ? wefti_call_refused(call, r, theirs->count, (const char *)theirs->data)
                       : wefti_group_mismatch(group, &own, r);
        }
        call->flags &= (uint32_t)(theirs->what >> WEFTI_WHAT_FLAGS_SHIFT) & 0xffu;
        if ((call->flags & WEFTI_POSTED_DATA) == 0) {
            wefti_call_merge_offer(call, theirs);
        }
    }
    own.open = call->certain && wefti_call_op(call)->rooted;
    group->calls->deferred = own;
    return WEFT_OK;
}

/* The sequence number of a check that does not come. */
static void post_second(weft_group_t *group)
{
    wefti_deferred_t *deferred = &group->calls->deferred;
    deferred->follows = false;
    deferred->number++;
    deferred->peer = 1;
    wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, deferred->number);
    own->what = deferred->what;
    own->count = deferred->count;
    wefti_call_slot_publish(group, own, deferred->number, 0);
    wefti_fence();
    wefti_signal_settle(&own->signal);
}

static weft_status_t see_deferred(weft_group_t *group, wefti_blocked_t *out_blocked)
{
    wefti_deferred_t *deferred = &group->calls->deferred;
    for (; deferred->peer < group->size; deferred->peer++) {
        uint32_t r = wefti_group_nth_peer(group, deferred->peer);
        wefti_call_slot_t *theirs = wefti_call_slot_of(group, r, deferred->number);
        if (!wefti_signal_comes_soon(group->endpoint, &theirs->signal, deferred->number)) {
            return wefti_call_blocked_on(&theirs->signal, deferred->number, out_blocked);
        }
        bool refused = deferred->what == WEFTI_WHAT_REFUSED || theirs->what == WEFTI_WHAT_REFUSED;
        if (!same_call(deferred, theirs) && !refused) {
            return wefti_group_mismatch(group, deferred, r);
        }
        deferred->refused = deferred->refused || refused;
    }
    return WEFT_OK;
}

weft_status_t wefti_call_check_deferred(weft_group_t *group, wefti_blocked_t *out_blocked)
{
    weft_status_t status = see_deferred(group, out_blocked);
    if (status == WEFT_OK && group->calls->deferred.follows) {
        post_second(group);
        status = see_deferred(group, out_blocked);
    }
    group->calls->deferred.open = status != WEFT_OK;
    return status;
}
