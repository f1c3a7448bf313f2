/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link between two ranks of a group broke, and both live: what was on its way over it is lost.
 * Every rank hears of it from its endpoint. Whatever call it has in flight ends with WEFT_ERR_LINK,
 * or its next one does. The call after that recovers the group:
 *
 *   flush   nothing that this rank sent to the group's memory is on its way any more; says so to
 *           all, with the number of the last call that failed here
 *   reset   when all have said so, nobody writes to the own channel, which becomes as new; says so
 *   go on   when all have said that: calls after the last one that failed anywhere work again, and
 *           those up to it end with the error on all ranks
 *
 * So calls of the ranks stay in step by their count, failed ones counted, and the last one that
 * fails is the same on all ranks. What is said are counters in the other ranks' channels, which
 * only grow: their epochs are the faults of the group. Where a further link breaks meanwhile it all
 * begins again, under the next epoch.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_aside.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/schedule_cache.h"
#include "runtime/group/mirror.h"

#define LANE WEFTI_LANE_CHANNEL

enum { STEP_FLUSH = 0, STEP_FLUSHED, STEP_FRESH, STEP_RESET };

/* This rank's record of what world_rank reports, or of what this rank reports there. */
static wefti_recovery_report_t *report_of(const weft_group_t *group, uint32_t world_rank)
{
    uint8_t *own = (uint8_t *)group->channels[group->rank];
    return (wefti_recovery_report_t *)(void *)(own + group->layout.reports +
                                               world_rank * sizeof(wefti_recovery_report_t));
}

void wefti_link_init(weft_group_t *group, uint32_t fault_count)
{
    atomic_store_explicit(&group->link.seen, fault_count, memory_order_relaxed);
    for (uint32_t r = 0; group->put_peer_count > 0 && r < group->size; r++) {
        wefti_recovery_report_t *report = report_of(group, group->ranks[r]);
        /* relaxed: peers learn later that they may use the group */
        atomic_store_explicit(&report->flushed.value, 0, memory_order_relaxed);
        atomic_store_explicit(&report->reset.value, 0, memory_order_relaxed);
    }
}

/* The last number that the call has; it has more than one where its result is compared. */
static uint32_t last_number(const wefti_call_t *call)
{
    bool posts_none = call->check == WEFTI_CHECK_EMPTY;
    return wefti_call_is_checked(call) && (posts_none || call->state < WEFTI_CALL_COMPARE)
               ? call->number + 1
               : call->number;
}

void wefti_recovery_note(wefti_call_t *call)
{
    wefti_recovery_t *recovery = &call->group->calls->recovery;
    if (!wefti_link_broken(call->group)) {
        return; /* the group has recovered: the calls of other ranks end there also */
    }
    /* Sends and receives have no number: what was issued with them ends with them. */
    uint32_t last = call->pairs.count == 0
                        ? last_number(call)
                        : atomic_load_explicit(&call->group->calls->number, memory_order_relaxed);
    if (!recovery->told || !wefti_signal_reached(recovery->failed, last)) {
        recovery->failed = last;
    }
    recovery->told = true;
}

/* ---- recovery ---- */

/* Tells all peers by a counter of this rank's record there; failed, unless NULL, arrives before. */
static weft_status_t say_to_all(const weft_group_t *group, size_t counter, const uint32_t *failed)
{
    wefti_endpoint_t *endpoint = group->endpoint;
    uint32_t epoch = group->calls->recovery.epoch;
    size_t own = group->channel_offset + group->layout.reports +
                 endpoint->rank * sizeof(wefti_recovery_report_t);
    size_t at = own + offsetof(wefti_recovery_report_t, failed) + (epoch & 1u) * sizeof *failed;
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t peer = group->ranks[wefti_group_nth_peer(group, i)];
        if (failed != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_put(endpoint, peer, at, failed, sizeof *failed, LANE));
        }
        WEFT_RETURN_IF_ERROR(wefti_signal_peer(endpoint, peer, own + counter, epoch, LANE));
    }
    return WEFT_OK;
}

/* Blocked until all peers have said so. */
static weft_status_t hear_all(weft_group_t *group, size_t at, wefti_blocked_t *out_blocked)
{
    wefti_recovery_t *recovery = &group->calls->recovery;
    for (; recovery->peer < group->size; recovery->peer++) {
        uint32_t r = wefti_group_nth_peer(group, recovery->peer);
        wefti_signal_t *signal =
            (wefti_signal_t *)(void *)((uint8_t *)report_of(group, group->ranks[r]) + at);
        if (!wefti_signal_comes_soon(group->endpoint, signal, recovery->epoch)) {
            return wefti_call_blocked_on(signal, recovery->epoch, out_blocked);
        }
    }
    recovery->peer = 1;
    return WEFT_OK;
}

/* Everything that calls keep between them, as in a new group. */
static void reset(weft_group_t *group)
{
    wefti_recovery_t *recovery = &group->calls->recovery;
    recovery->fail_until = recovery->failed;
    for (uint32_t r = 0; r < group->size; r++) {
        if (r != group->rank) {
            uint32_t theirs = report_of(group, group->ranks[r])->failed[recovery->epoch & 1u];
            recovery->fail_until =
                wefti_signal_reached(theirs, recovery->fail_until) ? theirs : recovery->fail_until;
        }
    }
    wefti_group_reset_channel(group, recovery->fail_until);
    wefti_schedules_destroy(group);
    group->calls->staged = group->calls->area = 0;
    group->calls->deferred = (wefti_deferred_t){0};
    group->calls->meeting.count = 0;
    memset(group->calls->sent, 0, group->size * sizeof *group->calls->sent);
    memset(group->calls->received, 0, group->size * sizeof *group->calls->received);
    wefti_asides_drop_unfinished(group);
    recovery->owes = true;
}

/* Whether no further link broke meanwhile; if so it is whole. */
static bool is_whole(weft_group_t *group)
{
    wefti_group_link_t *link = &group->link;
    wefti_recovery_t *recovery = &group->calls->recovery;
    pthread_mutex_lock(&link->lock);
    wefti_link_notice(group);
    bool whole = link->epoch == recovery->epoch;
    if (whole) {
        atomic_store_explicit(&link->broken, 0, memory_order_relaxed);
    }
    pthread_mutex_unlock(&link->lock);
    return whole;
}

static weft_status_t begin(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_recovery_t *recovery = &group->calls->recovery;
    /* Calls behind this one are on streams, some of which broke: they all end with the error. */
    uint32_t issued = atomic_load_explicit(&group->calls->number, memory_order_relaxed);
    if (issued != last_number(call) && call->pairs.count == 0) {
        recovery->failed = issued;
    }
    wefti_endpoint_flush(group->endpoint);
    recovery->peer = 1;
    return say_to_all(group, offsetof(wefti_recovery_report_t, flushed), &recovery->failed);
}

/* One step after the other. */
static weft_status_t recover(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    wefti_group_link_t *link = &group->link;
    wefti_recovery_t *recovery = &group->calls->recovery;
    pthread_mutex_lock(&link->lock);
    wefti_link_notice(group);
    if (recovery->epoch != link->epoch) {
        recovery->epoch = link->epoch;
        recovery->step = STEP_FLUSH;
    }
    pthread_mutex_unlock(&link->lock);
    if (recovery->step == STEP_FLUSH) {
        WEFT_RETURN_IF_ERROR(begin(call));
        recovery->step = STEP_FLUSHED;
    }
    if (recovery->step == STEP_FLUSHED) {
        weft_status_t status =
            hear_all(group, offsetof(wefti_recovery_report_t, flushed), out_blocked);
        if (status != WEFT_OK) {
            return status;
        }
        reset(group);
        recovery->step = STEP_FRESH;
    }
    if (recovery->step == STEP_FRESH) { /* said again, where it could not be */
        WEFT_RETURN_IF_ERROR(say_to_all(group, offsetof(wefti_recovery_report_t, reset), NULL));
        recovery->step = STEP_RESET;
    }
    return hear_all(group, offsetof(wefti_recovery_report_t, reset), out_blocked);
}

weft_status_t wefti_recovery_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    wefti_group_link_t *link = &group->link;
    wefti_recovery_t *recovery = &group->calls->recovery;
    WEFT_RETURN_IF_ERROR(wefti_group_check_lasting(group));
    weft_status_t status = wefti_link_check(group);
    if (status != WEFT_ERR_LINK || !recovery->told || group->fault.state != 0) {
        return status; /* nothing of this group; or this is the call that ends with it */
    }
    call->state = WEFTI_CALL_RECOVERING;
    do {
        status = recover(call, out_blocked);
    } while (status == WEFT_OK && !is_whole(group));
    if (status < 0) {
        call->state = WEFTI_CALL_ISSUED;
        return wefti_group_fail(group, status);
    }
    if (status == WEFT_OK) {
        call->state = WEFTI_CALL_ISSUED;
        recovery->told = false;
        atomic_store_explicit(&recovery->order,
                              atomic_load_explicit(&group->calls->issued, memory_order_relaxed),
                              memory_order_relaxed);
        wefti_log(&group->context->log, WEFT_LOG_LEVEL_INFO,
                  "rank %u: group of %u ranks recovered from a link failure: %s",
                  group->ranks[group->rank], group->size, link->text);
    }
    return status;
}

weft_status_t wefti_recovery_admit(wefti_call_t *call)
{
    wefti_group_link_t *link = &call->group->link;
    wefti_recovery_t *recovery = &call->group->calls->recovery;
    if (call->pairs.count > 0) {
        return WEFT_OK;
    }
    if (wefti_signal_reached(recovery->fail_until, call->number)) {
        pthread_mutex_lock(&link->lock);
        weft_status_t status = wefti_error_adopt(WEFT_ERR_LINK, link->text);
        pthread_mutex_unlock(&link->lock);
        return status;
    }
    recovery->owes = false;
    return WEFT_OK;
}

bool wefti_recovery_excuses(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    const wefti_recovery_t *recovery = &group->calls->recovery;
    if (wefti_link_broken(group)) {
        return true;
    }
    if (call->pairs.count > 0) {
        uint32_t order = atomic_load_explicit(&recovery->order, memory_order_relaxed);
        return wefti_signal_reached(order, call->order);
    }
    return recovery->owes && wefti_signal_reached(recovery->fail_until, call->number);
}

void wefti_recovery_late(const weft_group_t *group, char *text, size_t bytes)
{
    const wefti_recovery_t *recovery = &group->calls->recovery;
    size_t used = 0;
    bool resets = recovery->step == STEP_RESET;
    for (uint32_t r = 0; r < group->size && used + 24 < bytes; r++) {
        wefti_recovery_report_t *report = report_of(group, group->ranks[r]);
        const wefti_signal_t *signal = resets ? &report->reset : &report->flushed;
        if (r != group->rank && !wefti_signal_has_reached(signal, recovery->epoch)) {
            used += (size_t)snprintf(text + used, bytes - used, " %u", group->ranks[r]);
        }
    }
}
