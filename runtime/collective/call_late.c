/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks keep a call waiting: for a warning after WEFT_LATE, and for the error in the end, or
 * when one has left. */
#include "runtime/group/mirror.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_late.h"
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

/* " 3 5"; *out_first: one of them, in the world, or UINT32_MAX. */
static void late_ranks(const wefti_call_t *call, char *late, size_t bytes, uint32_t *out_first)
{
    const weft_group_t *group = call->group;
    uint32_t number = group->calls->deferred.open ? group->calls->deferred.number : call->number;
    size_t used = 0;
    late[0] = '\0';
    *out_first = UINT32_MAX;
    if (call->state == WEFTI_CALL_RECOVERING) {
        wefti_recovery_late(group, late, bytes);
        return;
    }
    if (call->pairs.count > 0) {
        *out_first = group->ranks[call->pairs.list[0].peer];
        snprintf(late, bytes, " %u", *out_first);
        return;
    }
    for (uint32_t r = 0; r < group->size && used + 24 < bytes; r++) {
        if (!has_posted(group, r, number)) {
            *out_first = used == 0 ? group->ranks[r] : *out_first;
            used += (size_t)snprintf(late + used, bytes - used, " %u", group->ranks[r]);
        }
    }
    uint32_t poster = used == 0 ? poster_of(group, call->wait.signal) : group->size;
    if (poster != group->size) {
        *out_first = group->ranks[poster];
        snprintf(late, bytes, " %u", *out_first);
    }
}

static void describe(const wefti_call_t *call, uint64_t waited_ns, char *text, size_t bytes)
{
    const weft_group_t *group = call->group;
    char what[160], late[200], facts[200];
    uint32_t first;
    late_ranks(call, late, sizeof late, &first);
    wefti_endpoint_late_facts(group->endpoint, first, facts, sizeof facts);
    snprintf(text, bytes, "rank %u waited %.3g s in %s; late: rank%s%s", group->ranks[group->rank],
             (double)waited_ns * 1e-9,
             call->state == WEFTI_CALL_RECOVERING
                 ? "recovery from a link failure"
                 : wefti_what_text(call->what, call->posted_count, what),
             late[0] != '\0' ? late : " unknown", facts);
}

weft_status_t wefti_group_late(wefti_call_t *call, weft_status_t status)
{
    char text[WEFTI_ERROR_TEXT_BYTES];
    describe(call, call->group->endpoint->settings->timeout_ns, text, sizeof text);
    wefti_error_adopt(status, text);
    return wefti_group_fail(call->group, status);
}

void wefti_group_report_late(wefti_call_t *call, uint64_t now)
{
    if (call->wait.late_since_ns == 0) {
        call->wait.late_since_ns = now;
    } else if (wefti_endpoint_reports_late(call->group->endpoint, now - call->wait.late_since_ns)) {
        char text[WEFTI_ERROR_TEXT_BYTES];
        describe(call, now - call->wait.late_since_ns, text, sizeof text);
        wefti_log(&call->group->context->log, WEFT_LOG_LEVEL_WARN, "%s", text);
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
    return !has_posted(group, r, number) ||
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
                group->ranks[r], group->ranks[group->rank],
                wefti_what_text(call->what, call->posted_count, what));
    return wefti_group_fail(group, WEFT_ERR_PEER_DIED);
}
