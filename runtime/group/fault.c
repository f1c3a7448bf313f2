/* SPDX-License-Identifier: Apache-2.0 */
/* The first error of a group: found by one rank, returned by all. */
#include "runtime/group/mirror.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/batch.h"
#include "runtime/interpreter/interpreter.h"

#define WHAT_REDUCTION (0xfull << 16)
#define WHAT_ROOT (0xffffull << WEFTI_WHAT_ROOT_SHIFT)
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
    /* This rank's record first: a second writer adopts what the first one wrote. */
    bool first = write_down(group->channels[group->rank], status, text);
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t r = (group->rank + i) % group->size;
        if (!wefti_group_puts(group, r)) {
            write_down(group->channels[r], status, text);
        }
    }
    if (first) { /* else the rank that was first notifies them */
        wefti_mirror_abort(group);
    }
    for (uint32_t r = 0; r < group->size; r++) {
        wake(group, r);
    }
    return wefti_group_check_lasting(group);
}

/* State of the abort record; 1 only if its writer has stopped writing it. */
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
        wefti_fault_set(&group->fault, WEFT_ERR_ABORTED,
                        "another rank reported an error on the group");
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

/* "all_reduce": what the function is called, without its prefix. */
static const char *function_name(uint64_t what)
{
    return wefti_collective_function((weft_collective_t)(what & 0xff));
}

/* What follows the name: " with 16 x f32 (sum, root 1)"; hidden: bits of what that need not be
 * told. */
static void arguments_text(uint64_t what, uint64_t count, uint64_t hidden, char *out, size_t bytes)
{
    weft_collective_t value = (weft_collective_t)(what & 0xff);
    const wefti_collective_t *op = wefti_collective_of(value);
    const char *dtype = weft_dtype_name((weft_dtype_t)(what >> 8 & 0xff));
    char notes[80] = "";
    size_t used = 0;
    if (op->reduces && (hidden & WHAT_REDUCTION) == 0) {
        used = (size_t)snprintf(notes, sizeof notes, ", %s",
                                weft_reduction_name((weft_reduction_t)(what >> 16 & 0xf)));
    }
    if (op->rooted && value != WEFT_COLLECTIVE_SEND_RECV && (hidden & WHAT_ROOT) == 0) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", root %u",
                                 (unsigned int)(what >> WEFTI_WHAT_ROOT_SHIFT & 0xffff));
    }
    if (wefti_collective_has_shared_counts(value)) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", counts %016llx",
                                 (unsigned long long)count);
    }
    if (value == WEFT_COLLECTIVE_BARRIER) {
        out[0] = '\0';
        return;
    }
    if ((what & WEFTI_WHAT_FUSED) != 0 || op->variable) {
        snprintf(out, bytes, " of %s", dtype);
    } else { /* count is a block's where a rank gives one to each */
        bool blocks = op->send.extent == WEFT_EXTENT_BLOCKS;
        snprintf(out, bytes, " with %llu x %s%s", (unsigned long long)count, dtype,
                 blocks ? " per rank" : "");
    }
    size_t end = strlen(out);
    snprintf(out + end, bytes - end, "%s%s%s%s", used > 0 ? " (" : "", used > 0 ? notes + 2 : "",
             used > 0 ? ")" : "", what & WEFTI_WHAT_FUSED ? ", fused calls of a batch" : "");
}

const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer)
{
    size_t used = (size_t)snprintf(buffer, 40, "%s", function_name(what));
    arguments_text(what, count, 0, buffer + used, 160 - used);
    return buffer;
}

typedef struct side { /* of a disagreement */
    uint32_t rank;    /* in the world */
    uint64_t what, count;
} side_t;

/* "rank 1 called all_reduce with 2048 x f32, rank 0 with 1024 x f32": what they have in common is
 * said once, if at all. */
static void difference_text(const weft_group_t *group, const side_t *high, const side_t *low,
                            char *out, size_t bytes)
{
    uint64_t differs = high->what ^ low->what;
    bool same_op = (differs & 0xff) == 0;
    uint64_t hidden = 0;
    if (same_op) {
        hidden =
            (differs & WHAT_REDUCTION ? 0 : WHAT_REDUCTION) | (differs & WHAT_ROOT ? 0 : WHAT_ROOT);
    }
    char high_text[240], low_text[240];
    arguments_text(high->what, high->count, hidden, high_text, 160);
    arguments_text(low->what, low->count, hidden, low_text, 160);
    if ((differs & WEFTI_WHAT_SELECTION_MASK) != 0) {
        wefti_select_text(group->context, high->what, high_text + strlen(high_text), 80);
        wefti_select_text(group->context, low->what, low_text + strlen(low_text), 80);
    }
    snprintf(out, bytes, "rank %u called %s%s, rank %u%s%s%s", high->rank,
             function_name(high->what), high_text, low->rank, same_op ? "" : " called ",
             same_op ? "" : function_name(low->what), low_text);
}

weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_debt_t *own, uint32_t peer)
{
    const wefti_posting_t *theirs = wefti_posting_of(group, peer, own->number);
    bool first = group->rank < peer;
    if (own->what & theirs->what & WEFTI_WHAT_FUSED) {
        const wefti_posting_t *mine = wefti_posting_of(group, group->rank, own->number);
        char where[160], text[160];
        if (wefti_fused_difference(first ? mine : theirs, first ? group->rank : peer,
                                   first ? theirs : mine, first ? peer : group->rank, where,
                                   sizeof where)) {
            wefti_error(WEFT_ERR_MISMATCH, "batch: ranks submitted different calls, %s: %s",
                        wefti_what_text(own->what, own->count, text), where);
            return wefti_group_fail(group, WEFT_ERR_MISMATCH);
        }
    }
    const side_t ours = {group->ranks[group->rank], own->what, own->count};
    const side_t other = {group->ranks[peer], theirs->what, theirs->count};
    char text[600];
    /* The higher rank first, so that both sides report the same text. */
    difference_text(group, first ? &other : &ours, first ? &ours : &other, text, sizeof text);
    wefti_error(WEFT_ERR_MISMATCH, "%s", text);
    return wefti_group_fail(group, WEFT_ERR_MISMATCH);
}
