/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks keep a call waiting: for a warning after WEFT_LATE, and for the error in the end, or
 * when one has left. */
#include "runtime/group/mirror.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_meet.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/collective/schedule_cache.h"

/* The peer whose signal it is: in its channel, or in the own one, where it signals over a put link;
 * size: none. */
static uint32_t poster_of(const weft_group_t *group, const wefti_signal_t *signal)
{
    const uint8_t *area = (const uint8_t *)group->channels[group->rank] + group->layout.area;
    for (uint32_t r = 0; r < group->size; r++) {
        size_t bytes =
            wefti_group_puts(group, r) ? group->layout.mirror_bytes : group->layout.total_bytes;
        if (r != group->rank &&
            ((uintptr_t)signal - (uintptr_t)group->channels[r] < bytes ||
             (group->calls->schedules != NULL &&
              wefti_run_arrives_from(&group->calls->schedules->counters, area, r, signal)))) {
            return r;
        }
    }
    return group->size;
}

static bool has_posted(const weft_group_t *group, uint32_t rank, uint32_t number)
{
    wefti_call_slot_t *slot = wefti_call_slot_of(group, rank, number);
    return wefti_signal_has_reached(&slot->signal, number);
}

/* Whether the call waits for r to post it, or, in a hosted group, for what r passes on. */
static bool awaits_posting(const wefti_call_t *call, uint32_t r, uint32_t number)
{
    const weft_group_t *group = call->group;
    bool host;
    if (!wefti_group_is_hosted(group)) {
        return !has_posted(group, r, number);
    }
    bool all_slots = group->calls->deferred.open || call->state == WEFTI_CALL_COMPARE ||
                     (call->state == WEFTI_CALL_POSTED && wefti_meet_is_over(group) &&
                      wefti_call_needs_all_slots(call));
    return all_slots ? !has_posted(group, r, number)
                     : call->state == WEFTI_CALL_POSTED && wefti_meet_awaits(group, r, &host);
}

#define LATE_RANKS 32u

/* " 3 5": those that keep the call waiting in the end; *out_first: one of them, in the world, or
 * UINT32_MAX. */
static void late_ranks(const wefti_call_t *call, char *late, size_t bytes, uint32_t *out_first)
{
    const weft_group_t *group = call->group;
    uint32_t number = group->calls->deferred.open ? group->calls->deferred.number : call->number;
    uint32_t ranks[LATE_RANKS], count = 0;
    late[0] = '\0';
    *out_first = UINT32_MAX;
    if (call->state == WEFTI_CALL_RECOVERING) {
        wefti_recovery_late(group, late, bytes);
        return;
    }
    for (uint32_t i = 0; i < call->pairs.count && count < LATE_RANKS; i++) {
        if (!wefti_pair_is_done(&call->pairs.list[i])) {
            ranks[count++] = group->ranks[call->pairs.list[i].peer];
        }
    }
    for (uint32_t r = 0; call->pairs.count == 0 && r < group->size && count < LATE_RANKS; r++) {
        if (awaits_posting(call, r, number)) {
            ranks[count++] = group->ranks[r];
        }
    }
    uint32_t poster = count == 0 ? poster_of(group, call->wait.signal) : group->size;
    if (poster != group->size) {
        ranks[count++] = group->ranks[poster];
    }
    *out_first = wefti_waits_causes(group->endpoint, ranks, count, late, bytes);
}

static void describe(const wefti_call_t *call, uint64_t waited_ns, char *text, size_t bytes)
{
    const weft_group_t *group = call->group;
    char what[160], late[200], facts[200];
    uint32_t first;
    late_ranks(call, late, sizeof late, &first);
    wefti_endpoint_late_facts(group->endpoint, first, facts, sizeof facts);
    snprintf(text, bytes,
             "rank %u waited %.3g s in %s; late: rank%s%s; timeout (WEFT_TIMEOUT) exceeded",
             group->ranks[group->rank], (double)waited_ns * 1e-9,
             call->state == WEFTI_CALL_RECOVERING ? "recovery from a link failure"
                                                  : wefti_call_text(call, what),
             late[0] != '\0' ? late : " unknown", facts);
}

bool wefti_call_is_ready(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    switch (call->state) {
    case WEFTI_CALL_RECOVERING: /* another link broke meanwhile: recovery begins again */
        return atomic_load_explicit(&group->endpoint->link_faults, memory_order_relaxed) >
               atomic_load_explicit(&group->link.seen, memory_order_relaxed);
    case WEFTI_CALL_PAIRS:
        return wefti_pairs_ready(call);
    default:
        return wefti_call_runs_schedule(call) && wefti_run_ready(call->schedule.run);
    }
}

static void add_late(wefti_wait_t *wait, const weft_group_t *group, uint32_t r)
{
    if (wait->late_count < WEFTI_WAIT_RANKS) {
        wait->late[wait->late_count++] = group->ranks[r];
    }
}

/* Any of them lets the call go on, which is of kind DATA: they are only reported. */
static void add_late_of_lanes(const wefti_call_t *call, wefti_wait_t *wait)
{
    const weft_group_t *group = call->group;
    uint32_t ranks[WEFTI_MAX_LANES], count = 0;
    bool known = wefti_run_late(call->schedule.run, ranks, &count);
    for (uint32_t i = 0; known && i < count; i++) {
        bool listed = ranks[i] == group->ranks[group->rank];
        for (uint32_t l = 0; l < wait->late_count; l++) {
            listed = listed || wait->late[l] == ranks[i];
        }
        if (!listed && wait->late_count < WEFTI_WAIT_RANKS) {
            wait->late[wait->late_count++] = ranks[i];
        }
    }
}

/* Ranks that have to come before the call can go on. */
static void add_all_late(const wefti_call_t *call, wefti_wait_t *wait)
{
    const weft_group_t *group = call->group;
    if (call->wait.signal == &group->calls->completed.signal) {
        wait->kind = WEFTI_WAIT_LOCAL;
        wait->number = call->number;
        add_late(wait, group, group->rank);
        return; /* the rest belongs to the call that goes first */
    }
    wait->number = group->calls->deferred.open ? group->calls->deferred.number : call->number;
    wait->kind = WEFTI_WAIT_DATA;
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        const wefti_pair_t *pair = &call->pairs.list[i];
        if (wefti_pair_is_done(pair)) {
            continue;
        }
        if (wait->late_count == 0 && pair->blocked.signal != NULL) {
            wait->kind = pair->sends ? WEFTI_WAIT_SEND : WEFTI_WAIT_RECV;
            wait->number = pair->blocked.target;
            wait->waiter = group->rank;
        }
        if (wait->late_count < WEFTI_WAIT_RANKS) {
            wait->came[wait->late_count] = pair->sends ? WEFTI_WAIT_SEND : WEFTI_WAIT_RECV;
        }
        add_late(wait, group, pair->peer);
    }
    if (call->pairs.count == 0 && wefti_call_runs_schedule(call)) {
        add_late_of_lanes(call, wait);
        return;
    }
    if (call->pairs.count > 0 || call->state == WEFTI_CALL_RECOVERING) {
        return;
    }
    bool meets = wefti_group_is_hosted(group) && call->state == WEFTI_CALL_POSTED &&
                 !group->calls->deferred.open && !wefti_meet_is_over(group);
    if (meets) {
        wefti_meet_describe(group, wait);
    }
    for (uint32_t r = 0; r < group->size && !meets; r++) {
        if (awaits_posting(call, r, wait->number)) {
            wait->kind = WEFTI_WAIT_CALL;
            add_late(wait, group, r);
        }
    }
    uint32_t poster = wait->late_count == 0 ? poster_of(group, call->wait.signal) : group->size;
    if (poster != group->size) {
        add_late(wait, group, poster);
    }
}

bool wefti_call_describe(wefti_call_t *call, wefti_wait_t *out)
{
    char what[160];
    if (call->wait.signal == NULL ||
        wefti_signal_has_reached(call->wait.signal, call->wait.target) ||
        wefti_call_is_ready(call)) {
        return false;
    }
    out->since_ns = call->wait.since_ns;
    out->channel = call->group->channel;
    add_all_late(call, out);
    snprintf(out->text, sizeof out->text, "%s (call %u of group %u)",
             call->pairs.count > 0 ? "send or receive" : wefti_call_text(call, what), call->order,
             out->channel);
    return true;
}

void wefti_call_gave_up(const wefti_call_t *call)
{
    wefti_wait_t wait = {0};
    add_all_late(call, &wait);
    if (wait.kind != WEFTI_WAIT_LOCAL) {
        wefti_waits_gave_up(call->group->endpoint, wait.late, wait.late_count);
    }
}

weft_status_t wefti_group_late(wefti_call_t *call, weft_status_t status)
{
    char text[WEFTI_ERROR_TEXT_BYTES];
    describe(call, call->group->endpoint->settings->timeout_ns, text, sizeof text);
    wefti_call_gave_up(call);
    wefti_error_adopt(status, text);
    return wefti_group_fail(call->group, status);
}

void wefti_group_report_late(wefti_call_t *call, uint64_t now)
{
    wefti_wait_t wait = {0};
    uint64_t late_ns = call->group->endpoint->settings->late_ns;
    uint64_t since = call->wait.late_since_ns;
    if (since == 0) { /* the whole call counts, also where its data trickles in */
        call->wait.late_since_ns = now;
    } else if (late_ns != 0 && now - since >= late_ns && wefti_call_describe(call, &wait)) {
        uint32_t poster = poster_of(call->group, call->wait.signal);
        if (wait.late_count == 0 && poster != call->group->size) { /* one of several */
            add_late(&wait, call->group, poster);
        }
        wefti_endpoint_report_late(call->group->endpoint, &wait, now - since);
    }
}

/*
 * Whether the call waits for rank r of its group: for its slot, its side of a pair, or its signal.
 * Asked when r is known to have left: what it left for others has come then.
 */
static bool waits_for(const wefti_call_t *call, uint32_t r)
{
    const weft_group_t *group = call->group;
    if (call->pairs.count > 0) {
        for (uint32_t i = 0; i < call->pairs.count && !wefti_pairs_ready(call); i++) {
            if (call->pairs.list[i].peer == r && !wefti_pair_is_done(&call->pairs.list[i])) {
                return true;
            }
        }
        return false;
    }
    uint32_t number = group->calls->deferred.open ? group->calls->deferred.number : call->number;
    return awaits_posting(call, r, number) ||
           (call->wait.signal != NULL &&
            !wefti_signal_has_reached(call->wait.signal, call->wait.target) &&
            poster_of(group, call->wait.signal) == r);
}

weft_status_t wefti_group_departed(wefti_call_t *call, uint64_t now)
{
    weft_group_t *group = call->group;
    uint32_t r = 0;
    if (call->state == WEFTI_CALL_RECOVERING ||
        !wefti_signal_has_reached(&group->calls->completed.signal, call->order - 1)) {
        return WEFT_OK; /* calls before it say what is wrong with them */
    }
    while (r < group->size &&
           (r == group->rank || !wefti_endpoint_has_left(group->endpoint, group->ranks[r]) ||
            !waits_for(call, r))) {
        r++;
    }
    if (r == group->size) {
        call->wait.departed_since_ns = 0;
        return WEFT_OK;
    }
    if (call->wait.departed_since_ns == 0) {
        call->wait.departed_since_ns = now;
    }
    if (wefti_group_puts(group, r) && now - call->wait.departed_since_ns < WEFTI_ARRIVES_NS) {
        return WEFT_OK;
    }
    /* a rank that breaks the group does so before it leaves */
    WEFT_RETURN_IF_ERROR(wefti_group_check(group));
    char what[160];
    wefti_error(WEFT_ERR_PEER_DIED, "rank %u left the world while rank %u was waiting for it in %s",
                group->ranks[r], group->ranks[group->rank], wefti_call_text(call, what));
    return wefti_group_fail(group, WEFT_ERR_PEER_DIED);
}
