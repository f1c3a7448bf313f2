/* SPDX-License-Identifier: Apache-2.0 */
/* The first error of a group: found by one rank, returned by all. */
#include "runtime/mirror.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/batch.h"
#include "runtime/interpreter.h"

#define WRITING_NS 500000000ull /* after which a record that is being written is given up */

/* True when it is this rank's record that is there now. */
static bool write_down(wefti_channel_t *channel, weft_status_t status, const char *text)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(&channel->abort.state, &none, 1,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return false;
    }
    channel->abort.status = status;
    snprintf(channel->abort.text, sizeof channel->abort.text, "%s", text);
    /* release: the record is complete before anybody reads it */
    atomic_store_explicit(&channel->abort.state, 2, memory_order_release);
    return true;
}

/* Counters of schedules, a line each. Sleepers look for themselves now and then: whoever comes
 * just now is not lost. */
static void wake_area(uint8_t *area, uint32_t world_size)
{
    size_t bytes = wefti_run_area_bytes(world_size, wefti_area_lanes(world_size));
    for (size_t at = 0; at < bytes; at += sizeof(wefti_signal_t)) {
        wefti_signal_t *signal = (wefti_signal_t *)(void *)(area + at);
        if (atomic_load_explicit(&signal->waiters, memory_order_relaxed) != 0) {
            wefti_futex_wake_all(&signal->value);
        }
    }
}

static void wake(const weft_group_t *group, uint32_t rank)
{
    wefti_channel_t *channel = group->channels[rank];
    wefti_futex_wake_all(&wefti_posting_signal(&channel->postings[0])->value);
    wefti_futex_wake_all(&wefti_posting_signal(&channel->postings[1])->value);
    wefti_futex_wake_all(&channel->staged.value);
    wefti_futex_wake_all(&channel->done.value);
    if (!wefti_group_puts(group, rank)) { /* mirrors have none */
        wake_area((uint8_t *)channel + group->layout.area, group->endpoint->world_size);
    }
    for (uint32_t i = 0; i < group->size; i++) {
        wefti_mailbox_t *mailbox = wefti_mailbox_of(group, rank, i);
        wefti_futex_wake_all(&mailbox->posted.value);
        wefti_futex_wake_all(&mailbox->consumed.value);
    }
}

/* Takes over what some rank wrote into this rank's record, or its own; it is a peer's text, so not
 * trusted. */
static weft_status_t adopt(weft_group_t *group, const wefti_channel_t *channel)
{
    char text[WEFTI_ABORT_TEXT_BYTES];
    memcpy(text, channel->abort.text, sizeof text);
    text[sizeof text - 1] = '\0';
    int32_t status = channel->abort.status;
    if (status >= 0 || status < WEFT_ERR_LINK) {
        status = WEFT_ERR_ABORTED;
    }
    wefti_fault_set(&group->fault, (weft_status_t)status, text);
    return wefti_fault_get(&group->fault);
}

weft_status_t wefti_group_fail(weft_group_t *group, weft_status_t status)
{
    char text[WEFTI_ABORT_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", weft_last_error());
    if (!wefti_endpoint_owned(group->endpoint)) {
        return status;
    }
    if (status == WEFT_ERR_LINK && wefti_link_await(group) < 0) {
        return wefti_group_check(group); /* all ranks hear of it, or have: nothing to write down */
    }
    if (wefti_link_broken(group) && status != WEFT_ERR_TIMEOUT && status != WEFT_ERR_ABORTED &&
        wefti_link_check(group) < 0) { /* what came may not be what was sent */
        return wefti_group_check(group);
    }
    wefti_error_adopt(status, text);
    /* The own record first: whoever comes second adopts what the first one wrote. */
    bool first = write_down(group->channels[group->rank], status, text);
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t r = (group->rank + i) % group->size;
        if (!wefti_group_puts(group, r)) {
            write_down(group->channels[r], status, text);
        }
    }
    if (first) { /* else whoever was tells them */
        wefti_mirror_abort(group);
    }
    for (uint32_t r = 0; r < group->size; r++) {
        wake(group, r);
    }
    return wefti_group_check_lasting(group);
}

/* Of the abort record; 1 only where whoever writes it has stopped doing so. */
static uint32_t state_of(const wefti_channel_t *channel)
{
    /* acquire pairs with the release in write_down */
    uint32_t state = atomic_load_explicit(&channel->abort.state, memory_order_acquire);
    if (state == 1) { /* a few hundred bytes, but the writer may have lost its core */
        uint64_t end = wefti_now_ns() + WRITING_NS;
        while (state == 1 && wefti_now_ns() < end) {
            sched_yield();
            state = atomic_load_explicit(&channel->abort.state, memory_order_acquire);
        }
    }
    return state;
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
    const wefti_channel_t *own = group->channels[group->rank];
    uint32_t state = state_of(own);
    if (state == 1) {
        wefti_fault_set(&group->fault, WEFT_ERR_ABORTED, "another rank broke the group");
        return wefti_fault_get(&group->fault);
    }
    const wefti_channel_t *record = state != 0 ? own : wefti_mirror_alarmed(group);
    if (record != NULL) {
        return adopt(group, record);
    }
    status = wefti_endpoint_check(group->endpoint);
    if (status < 0) {
        wefti_fault_set(&group->fault, status, weft_last_error());
    }
    return status;
}

const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer)
{
    weft_collective_t op = (weft_collective_t)(what & 0xff);
    const char *name = weft_collective_name(op);
    const char *dtype = weft_dtype_name((weft_dtype_t)(what >> 8 & 0xff));
    const char *reduction = weft_reduction_name((weft_reduction_t)(what >> 16 & 0xf));
    unsigned long long n = count;
    unsigned int root = (unsigned int)(what >> WEFTI_WHAT_ROOT_SHIFT & 0xffff);
    if (what & WEFTI_WHAT_FUSED) {
        snprintf(buffer, 160, "%s(%s, %s, root %u), several of a batch", name, dtype, reduction,
                 root);
        return buffer;
    }
    switch (op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_REDUCE_SCATTER:
        snprintf(buffer, 160, "%s(%s, %s, %llu elements)", name, dtype, reduction, n);
        break;
    case WEFT_OP_REDUCE:
        snprintf(buffer, 160, "%s(%s, %s, %llu elements, root %u)", name, dtype, reduction, n,
                 root);
        break;
    case WEFT_OP_BROADCAST:
    case WEFT_OP_GATHER:
    case WEFT_OP_SCATTER:
        snprintf(buffer, 160, "%s(%s, %llu elements, root %u)", name, dtype, n, root);
        break;
    case WEFT_OP_REDUCE_SCATTER_V:
        snprintf(buffer, 160, "%s(%s, %s, counts %016llx)", name, dtype, reduction, n);
        break;
    case WEFT_OP_ALL_GATHER_V:
        snprintf(buffer, 160, "%s(%s, counts %016llx)", name, dtype, n);
        break;
    case WEFT_OP_ALL_TO_ALL_V:
        snprintf(buffer, 160, "%s(%s)", name, dtype);
        break;
    case WEFT_OP_BARRIER:
        snprintf(buffer, 160, "%s", name);
        break;
    default:
        snprintf(buffer, 160, "%s(%s, %llu elements)", name, dtype, n);
        break;
    }
    return buffer;
}

weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_debt_t *own, uint32_t peer)
{
    const wefti_posting_t *theirs = wefti_posting_of(group, peer, own->number);
    char own_text[240], their_text[240];
    wefti_what_text(own->what, own->count, own_text);
    wefti_what_text(theirs->what, theirs->count, their_text);
    if (((own->what ^ theirs->what) & WEFTI_WHAT_SELECTION_MASK) != 0) {
        wefti_select_text(group->context, own->what, own_text + strlen(own_text), 80);
        wefti_select_text(group->context, theirs->what, their_text + strlen(their_text), 80);
    }
    /* The lower rank first, so that both sides say the same. */
    bool first = group->rank < peer;
    if (own->what & theirs->what & WEFTI_WHAT_FUSED) {
        const wefti_posting_t *mine = wefti_posting_of(group, group->rank, own->number);
        char where[160];
        if (wefti_fused_difference(first ? mine : theirs, first ? group->rank : peer,
                                   first ? theirs : mine, first ? peer : group->rank, where,
                                   sizeof where)) {
            wefti_error(WEFT_ERR_MISMATCH, "ranks of a group disagree in a batch, %s: %s", own_text,
                        where);
            return wefti_group_fail(group, WEFT_ERR_MISMATCH);
        }
    }
    wefti_error(WEFT_ERR_MISMATCH, "ranks of a group disagree: rank %u calls %s, rank %u calls %s",
                first ? group->rank : peer, first ? own_text : their_text,
                first ? peer : group->rank, first ? their_text : own_text);
    return wefti_group_fail(group, WEFT_ERR_MISMATCH);
}
