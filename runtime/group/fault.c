/* SPDX-License-Identifier: Apache-2.0 */
/* The first error of a group, found by one rank and returned by all; links that broke. */
#include "runtime/group/mirror.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/interpreter/interpreter.h"

/* A put over a broken link may fail before its rank has learned why. */
#define HEARSAY_NS 2000000000ull

/* ---- broken links ---- */

static bool is_member(const weft_group_t *group, uint32_t world_rank)
{
    for (uint32_t r = 0; r < group->size; r++) {
        if (group->ranks[r] == world_rank) {
            return true;
        }
    }
    return false;
}

void wefti_link_notice(weft_group_t *group)
{
    wefti_group_link_t *link = &group->link;
    wefti_link_fault_t fault;
    uint32_t seen = atomic_load_explicit(&link->seen, memory_order_relaxed), at = seen;
    while (wefti_endpoint_link_fault(group->endpoint, &at, &fault)) {
        if (is_member(group, fault.ranks[0]) && is_member(group, fault.ranks[1])) {
            link->epoch++;
            snprintf(link->text, sizeof link->text, "%s", fault.text);
            /* before seen, so that a reader that finds nothing new finds the group broken */
            atomic_store_explicit(&link->broken, 1, memory_order_release);
        }
    }
    if (at != seen) { /* more than they are when the group was made: then they come later */
        atomic_store_explicit(&link->seen, at, memory_order_release);
    }
}

weft_status_t wefti_link_check(weft_group_t *group)
{
    wefti_group_link_t *link = &group->link;
    weft_status_t status = WEFT_OK;
    if (group->put_peer_count == 0) {
        return WEFT_OK;
    }
    pthread_mutex_lock(&link->lock);
    wefti_link_notice(group);
    if (atomic_load_explicit(&link->broken, memory_order_relaxed) != 0) {
        status = wefti_error_adopt(WEFT_ERR_LINK, link->text);
    }
    pthread_mutex_unlock(&link->lock);
    if (status < 0 && !group->recovers) {
        wefti_fault_set(&group->fault, status, weft_last_error()); /* no other path: it stays */
        return wefti_fault_get(&group->fault);
    }
    return status;
}

/* After a put failed: looks for the reason for a while. */
static weft_status_t await_reason(weft_group_t *group)
{
    uint64_t end = wefti_now_ns() + HEARSAY_NS;
    weft_status_t status;
    while ((status = wefti_link_check(group)) == WEFT_OK && group->put_peer_count > 0 &&
           wefti_now_ns() < end) {
        wefti_endpoint_progress(group->endpoint);
        wefti_sleep_ns(100000);
    }
    return status;
}

/* ---- the first error ---- */

/* Counters of schedules, a line or two each. A thread that goes to sleep just now is not lost:
 * sleepers look now and then. */
static void wake_area(uint8_t *area, uint32_t world_size)
{
    size_t bytes = wefti_run_area_bytes(world_size, wefti_area_lanes(world_size));
    for (size_t at = 0; at < bytes; at += WEFTI_ARRIVAL_BYTES) {
        wefti_signal_t *signal = (wefti_signal_t *)(void *)(area + at);
        if (atomic_load_explicit(&signal->waiters, memory_order_relaxed) != 0) {
            wefti_futex_wake_all(&signal->value);
        }
    }
}

static void wake(const weft_group_t *group, uint32_t rank)
{
    wefti_channel_t *channel = group->channels[rank];
    wefti_futex_wake_all(&channel->slots[0].signal.value);
    wefti_futex_wake_all(&channel->slots[1].signal.value);
    wefti_futex_wake_all(&channel->staged.signal.value);
    wefti_futex_wake_all(&channel->done.signal.value);
    if (!wefti_group_puts(group, rank)) { /* mirrors have none */
        wake_area((uint8_t *)channel + group->layout.area, group->endpoint->world_size);
        for (uint32_t i = 0; wefti_group_is_hosted(group) && i < group->layout.meet_boxes; i++) {
            wefti_futex_wake_all(&wefti_meet_box(group, rank, i)->came.signal.value);
        }
    }
    for (uint32_t i = 0; i < group->size; i++) {
        wefti_mailbox_t *mailbox = wefti_mailbox_of(group, rank, i);
        wefti_futex_wake_all(&mailbox->posted.signal.value);
        wefti_futex_wake_all(&mailbox->consumed.signal.value);
    }
}

static weft_status_t fail(weft_group_t *group, weft_status_t status, bool notifies)
{
    char text[WEFTI_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", weft_last_error());
    if (!wefti_endpoint_owned(group->endpoint)) {
        return status;
    }
    if (status == WEFT_ERR_LINK && await_reason(group) < 0) {
        return wefti_group_check(group); /* all ranks hear of it, or have: nothing to write down */
    }
    if (wefti_link_broken(group) && status != WEFT_ERR_TIMEOUT && status != WEFT_ERR_ABORTED &&
        wefti_link_check(group) < 0) { /* what came may not be what was sent */
        return wefti_group_check(group);
    }
    if (status == WEFT_ERR_PEER_DIED) {
        wefti_endpoint_add_cause(group->endpoint, text, sizeof text);
    }
    wefti_error_adopt(status, text);
    /* This rank's record first: a second writer adopts what the first one wrote. */
    bool first = wefti_fault_set(&group->channels[group->rank]->abort, status, text);
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t r = (group->rank + i) % group->size;
        if (!wefti_group_puts(group, r)) {
            wefti_fault_set(&group->channels[r]->abort, status, text);
        }
    }
    wefti_endpoint_note_error(group->endpoint, status, text);
    if (first && notifies) { /* else the rank that was first notifies them */
        wefti_mirror_abort(group, status, text);
    }
    for (uint32_t r = 0; r < group->size; r++) {
        wake(group, r);
    }
    return wefti_group_check_lasting(group);
}

weft_status_t wefti_group_fail(weft_group_t *group, weft_status_t status)
{
    return fail(group, status, true);
}

weft_status_t wefti_group_fail_here(weft_group_t *group, weft_status_t status)
{
    return fail(group, status, false);
}

weft_status_t wefti_group_check(weft_group_t *group)
{
    weft_status_t status = wefti_group_check_lasting(group);
    return status == WEFT_OK && wefti_link_broken(group) ? wefti_link_check(group) : status;
}

weft_status_t wefti_group_check_lasting(weft_group_t *group)
{
    weft_status_t status = wefti_fault_get(&group->fault);
    if (status < 0) {
        return status;
    }
    if (!wefti_endpoint_owned(group->endpoint)) {
        return wefti_endpoint_check(group->endpoint);
    }
    status = wefti_fault_get(&group->channels[group->rank]->abort);
    const wefti_channel_t *mirror = status == WEFT_OK ? wefti_mirror_alarmed(group) : NULL;
    if (mirror != NULL) {
        status = wefti_fault_get(&mirror->abort);
    }
    if (status == WEFT_OK) {
        status = wefti_endpoint_check(group->endpoint);
    }
    bool noted = status < 0 && wefti_fault_set(&group->fault, status, weft_last_error());
    if (status < 0) {
        wefti_endpoint_note_error(group->endpoint, status, weft_last_error());
    }
    if (noted && status == WEFT_ERR_TIMEOUT) { /* of what is destroyed next, also other groups */
        wefti_endpoint_lose_patience(group->endpoint);
    }
    return wefti_fault_get(&group->fault);
}
