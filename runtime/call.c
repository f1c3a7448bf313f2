/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One collective in flight.
 *
 *   ISSUED   the calls before it are done: post number, signature and either data or addresses
 *   POSTED   every peer's posting: the same signature, or the group is broken; all know now what
 * all have: data in the postings    -> take it                                        -> DONE
 *            memory peers reach      -> move it in place, say done                     -> FINAL
 *            anything else           -> through the staging buffers, round after round -> STAGING
 *   FINAL    every peer is done with this rank's memory
 *
 * Nothing here blocks: a state that cannot go on says which signal it needs.
 */
#include "runtime/group.h"

#include <sched.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/stream.h"

#define TRIES 400u             /* looks at a peer's flag before a call counts as blocked */
#define DIRECT_MIN_BYTES 2048u /* from here on one copy less is worth one more signal */
#define CHECK_NS 10000000ull

static bool reached(const wefti_signal_t *signal, uint32_t target)
{
    /* acquire: what the poster wrote before is visible */
    return wefti_signal_reached(atomic_load_explicit(&signal->value, memory_order_acquire), target);
}

/* Most waits end within a line's way between two cores: no pause, which costs as much. */
static bool comes_soon(const weft_group_t *group, const wefti_signal_t *signal, uint32_t target)
{
    uint32_t tries = group->endpoint->may_spin ? TRIES : 1;
    for (uint32_t i = 0; i < tries; i++) {
        if (reached(signal, target)) {
            return true;
        }
    }
    return false;
}

static weft_status_t blocked_on(wefti_signal_t *signal, uint32_t target, wefti_blocked_t *out)
{
    out->signal = signal;
    out->target = target;
    return WEFT_IN_PROGRESS;
}

/* Wakes who sleeps on what this call published; see wefti_fence. */
static void settle(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_channel_t *own = group->channels[group->rank];
    wefti_fence();
    if (call->posted) {
        wefti_signal_settle(wefti_posting_signal(&own->postings[call->number & 1]));
    }
    if (call->published_round) {
        wefti_signal_settle(&own->staged);
    }
    if (call->published_done) {
        wefti_signal_settle(&own->done);
    }
    wefti_signal_settle(&group->completed);
    call->posted = call->published_round = call->published_done = false;
}

static void finish(wefti_call_t *call)
{
    call->state = WEFTI_CALL_DONE;
    wefti_signal_publish(&call->group->completed, call->order);
    settle(call);
}

static void publish_round(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_signal_publish(&group->channels[group->rank]->staged, ++group->staged);
    call->published_round = true;
}

static uint8_t *posting_area(wefti_posting_t *posting, size_t bytes)
{
    return bytes <= WEFTI_POSTING_TINY ? posting->tiny : posting->data;
}

static void post(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_posting_t *own = wefti_posting_of(group, group->rank, call->number);
    uint32_t direct_min =
        group->endpoint->may_spin ? DIRECT_MIN_BYTES : WEFTI_POSTING_DATA; /* fewer switches */
    bool fits = wefti_call_fits_posting(call);
    call->flags = 0;
    if (!fits || call->longest >= direct_min) {
        call->flags = wefti_call_reach(call, own) ? WEFTI_POSTED_REACHABLE : 0;
    }
    if (fits && call->flags == 0) {
        wefti_call_stage(call, posting_area(own, call->area_bytes), 0, call->longest);
        call->flags = WEFTI_POSTED_DATA;
    }
    own->what = call->what | (uint64_t)call->flags << WEFTI_WHAT_FLAGS_SHIFT;
    own->count = call->posted_count;
    wefti_signal_publish(wefti_posting_signal(own), call->number);
    call->posted = true;
    call->peer = 1;
    call->state = WEFTI_CALL_POSTED;
    /* Small enough that all ranks post data, whatever their memory is. */
    call->certain = fits && call->longest < direct_min;
}

/* All-reduce: what all ranks can show of the buffers is done in place, the rest through staging. */
static void merge_ends(wefti_call_t *call, const wefti_posting_t *posting)
{
    uint64_t lead = (posting->at.lead + call->elem_bytes - 1) / call->elem_bytes;
    uint64_t trail = (posting->at.trail + call->elem_bytes - 1) / call->elem_bytes;
    call->lead = lead > call->lead ? lead : call->lead;
    call->trail = trail > call->trail ? trail : call->trail;
}

static bool same_call(const wefti_debt_t *own, const wefti_posting_t *theirs)
{
    return ((theirs->what ^ own->what) & ~WEFTI_WHAT_FLAGS_MASK) == 0 &&
           theirs->count == own->count;
}

static uint32_t nth_peer(const weft_group_t *group, uint32_t n)
{
    uint32_t r = group->rank + n;
    return r < group->size ? r : r - group->size;
}

/* Whether this rank cannot go on without rank r's posting. */
static bool needs(const wefti_call_t *call, uint32_t r)
{
    if (!call->certain) {
        return true;
    }
    switch (call->op) {
    case WEFT_OP_BROADCAST:
    case WEFT_OP_SCATTER:
        return r == call->root;
    case WEFT_OP_REDUCE:
    case WEFT_OP_GATHER:
        return call->group->rank == call->root;
    default:
        return true;
    }
}

static weft_status_t see_postings(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    wefti_debt_t own = {false, call->number, 1, call->what, call->posted_count};
    for (; call->peer < group->size; call->peer++) {
        uint32_t r = nth_peer(group, call->peer);
        if (!needs(call, r)) {
            continue; /* seen before the next call */
        }
        wefti_posting_t *theirs = wefti_posting_of(group, r, call->number);
        wefti_signal_t *signal = wefti_posting_signal(theirs);
        if (!comes_soon(group, signal, call->number)) {
            return blocked_on(signal, call->number, out_blocked);
        }
        if (!same_call(&own, theirs)) {
            return wefti_group_mismatch(group, &own, r);
        }
        call->flags &= (uint32_t)(theirs->what >> WEFTI_WHAT_FLAGS_SHIFT) & 0xffu;
        if (call->op == WEFT_OP_ALL_TO_ALL_V) {
            call->longest = theirs->at.longest > call->longest ? theirs->at.longest : call->longest;
        }
        if ((call->flags & WEFTI_POSTED_REACHABLE) && call->op == WEFT_OP_ALL_REDUCE) {
            merge_ends(call, theirs);
        }
    }
    own.open = call->certain && (call->op == WEFT_OP_BROADCAST || call->op == WEFT_OP_SCATTER ||
                                 call->op == WEFT_OP_REDUCE || call->op == WEFT_OP_GATHER);
    group->debt = own;
    return WEFT_OK;
}

/* The postings of the call before that nobody has looked at yet. */
static weft_status_t pay_debt(weft_group_t *group, wefti_blocked_t *out_blocked)
{
    wefti_debt_t *debt = &group->debt;
    for (; debt->peer < group->size; debt->peer++) {
        uint32_t r = nth_peer(group, debt->peer);
        wefti_posting_t *theirs = wefti_posting_of(group, r, debt->number);
        if (!comes_soon(group, wefti_posting_signal(theirs), debt->number)) {
            return blocked_on(wefti_posting_signal(theirs), debt->number, out_blocked);
        }
        if (!same_call(debt, theirs)) {
            return wefti_group_mismatch(group, debt, r);
        }
    }
    debt->open = false;
    return WEFT_OK;
}

static const uint8_t *area_in_posting(const wefti_call_t *call, uint32_t rank)
{
    return posting_area(wefti_posting_of(call->group, rank, call->number), call->area_bytes);
}

static const uint8_t *area_in_staging(const wefti_call_t *call, uint32_t rank)
{
    return wefti_staging_of(call->group, rank);
}

static void stage_round(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    group->area++;
    wefti_call_stage(call, wefti_staging_of(group, group->rank), call->round, call->piece_bytes);
    publish_round(call);
    call->peer = 1;
    call->state = WEFTI_CALL_STAGING;
}

/* The data is where it belongs. */
static void complete(wefti_call_t *call)
{
    call->state = wefti_call_is_checked(call) ? WEFTI_CALL_CHECK : WEFTI_CALL_DONE;
}

static weft_status_t start_direct(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    if (call->lead + call->trail > 0) {
        group->area++;
        wefti_call_stage_ends(call, wefti_staging_of(group, group->rank));
        publish_round(call);
    }
    weft_status_t status = wefti_call_move(call);
    if (status < 0) {
        return wefti_group_fail(group, status);
    }
    wefti_signal_publish(&group->channels[group->rank]->done, call->number);
    call->published_done = true;
    call->peer = 1;
    call->state = WEFTI_CALL_FINAL;
    return WEFT_OK;
}

static bool ends_fit(const wefti_call_t *call)
{
    uint64_t ends = call->lead + call->trail;
    return ends <= call->count && ends * call->elem_bytes <= call->group->layout.staging_bytes;
}

/* Everybody's posting was seen: all ranks decide the same. */
static weft_status_t choose_path(wefti_call_t *call)
{
    weft_status_t status = WEFT_OK;
    if (call->op == WEFT_OP_ALL_TO_ALL_V) {
        status = wefti_call_check_table(call);
    }
    if (status < 0) {
        return wefti_group_fail(call->group, status);
    }
    if (call->flags & WEFTI_POSTED_DATA) {
        call->group->path = "posting";
        status = wefti_call_take(call, area_in_posting, 0, call->longest);
        complete(call);
    } else if ((call->flags & WEFTI_POSTED_REACHABLE) && ends_fit(call)) {
        call->group->path = "direct";
        return start_direct(call);
    } else {
        call->group->path = "staged";
        status = wefti_call_plan_rounds(call);
        complete(call);
        if (status == WEFT_OK && call->rounds > 0) {
            stage_round(call);
        }
    }
    return status < 0 ? wefti_group_fail(call->group, status) : WEFT_OK;
}

/* Waits for a signal of every peer; target is the same for all. */
static weft_status_t see_signals(wefti_call_t *call, size_t signal_offset, uint32_t target,
                                 wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    for (; call->peer < group->size; call->peer++) {
        uint32_t r = nth_peer(group, call->peer);
        wefti_signal_t *signal =
            (wefti_signal_t *)(void *)((uint8_t *)group->channels[r] + signal_offset);
        if (!comes_soon(group, signal, target)) {
            return blocked_on(signal, target, out_blocked);
        }
    }
    return WEFT_OK;
}

static weft_status_t take_round(wefti_call_t *call)
{
    weft_status_t status = WEFT_OK;
    if (call->two_shot && call->state == WEFTI_CALL_STAGING) {
        status = wefti_call_reduce_shard(call, area_in_staging);
        if (status < 0) {
            return wefti_group_fail(call->group, status);
        }
        publish_round(call);
        call->peer = 1;
        call->state = WEFTI_CALL_RESULTS;
        return WEFT_OK;
    }
    if (call->two_shot) {
        wefti_call_take_results(call, area_in_staging);
    } else {
        status = wefti_call_take(call, area_in_staging, call->round, call->piece_bytes);
    }
    if (status < 0) {
        return wefti_group_fail(call->group, status);
    }
    if (++call->round == call->rounds) {
        complete(call);
    } else {
        stage_round(call);
    }
    return WEFT_OK;
}

static weft_status_t see_digests(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    for (; call->peer < group->size; call->peer++) {
        uint32_t r = nth_peer(group, call->peer);
        wefti_signal_t *signal = wefti_posting_signal(wefti_posting_of(group, r, call->number));
        if (!comes_soon(group, signal, call->number)) {
            return blocked_on(signal, call->number, out_blocked);
        }
        weft_status_t status = wefti_call_compare_digests(call, r);
        if (status < 0) {
            return wefti_group_fail(group, status);
        }
    }
    return WEFT_OK;
}

static weft_status_t advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = WEFT_OK;
    switch (call->state) {
    case WEFTI_CALL_ISSUED:
        if (!reached(&group->completed, call->order - 1)) {
            return blocked_on(&group->completed, call->order - 1, out_blocked);
        }
        if (call->pair_count > 0) {
            status = wefti_pairs_advance(call, out_blocked);
            call->state = status == WEFT_OK ? WEFTI_CALL_DONE : call->state;
            return status;
        }
        status = group->debt.open ? pay_debt(group, out_blocked) : WEFT_OK;
        if (status == WEFT_OK) {
            post(call);
        }
        return status;
    case WEFTI_CALL_POSTED:
        status = see_postings(call, out_blocked);
        return status == WEFT_OK ? choose_path(call) : status;
    case WEFTI_CALL_STAGING:
    case WEFTI_CALL_RESULTS:
        status = see_signals(call, offsetof(wefti_channel_t, staged), group->staged, out_blocked);
        return status == WEFT_OK ? take_round(call) : status;
    case WEFTI_CALL_FINAL:
        status = see_signals(call, offsetof(wefti_channel_t, done), call->number, out_blocked);
        if (status == WEFT_OK && call->lead + call->trail > 0) {
            status = wefti_call_take_ends(call, area_in_staging);
        }
        if (status == WEFT_OK) {
            complete(call);
        }
        return status;
    case WEFTI_CALL_CHECK:
        status = group->debt.open ? pay_debt(group, out_blocked) : WEFT_OK;
        if (status == WEFT_OK) {
            settle(call); /* the former posting's sleepers, before number moves on */
            call->number++;
            wefti_call_post_digests(call);
            call->posted = true;
            call->peer = 1;
            call->state = WEFTI_CALL_COMPARE;
        }
        return status;
    case WEFTI_CALL_COMPARE:
        status = see_digests(call, out_blocked);
        call->state = status == WEFT_OK ? WEFTI_CALL_DONE : call->state;
        return status;
    case WEFTI_CALL_FREE:
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
        if (call->posted | call->published_round | call->published_done) {
            settle(call);
        }
    } else {
        finish(call);
    }
    return status;
}

void wefti_call_drop(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    if (call->state == WEFTI_CALL_DONE) {
        return;
    }
    /* Its peers wait for it, and the group's later calls are in its order. */
    wefti_error(WEFT_ERR_ABORTED, "rank %u: the stream of a call is broken",
                group->ranks[group->rank]);
    wefti_group_fail(group, WEFT_ERR_ABORTED);
    finish(call);
}

/* The rank whose channel signal lies in has left the world, or some rank broke the group. */
static weft_status_t look(void *user)
{
    wefti_call_t *call = user;
    weft_group_t *group = call->group;
    return wefti_group_broken(group) ? wefti_group_check(group) : WEFT_OK;
}

/* The same for a call that waits for one before it, which may be on an inline stream. */
static weft_status_t look_and_progress(void *user)
{
    wefti_call_t *call = user;
    wefti_streams_progress(call->group->context, NULL);
    return look(user);
}

static weft_status_t wait_for(wefti_call_t *call, const wefti_blocked_t *blocked)
{
    weft_group_t *group = call->group;
    bool local = blocked->signal == &group->completed;
    weft_status_t status =
        wefti_wait_signal(group->endpoint, blocked->signal, blocked->target, "a collective",
                          local ? look_and_progress : look, call);
    if (status < 0 && wefti_group_broken(group)) {
        return wefti_group_check(group); /* whoever wrote that down may have left since */
    }
    if (status == WEFT_ERR_TIMEOUT) {
        return wefti_group_late(call, status);
    }
    if (status < 0 && wefti_fault_set(&group->fault, status, weft_last_error())) {
        wefti_group_fail(group, status);
    }
    return status < 0 ? wefti_group_check(group) : status;
}

weft_status_t wefti_call_run(wefti_call_t *call)
{
    wefti_blocked_t blocked = {0};
    for (;;) {
        weft_status_t status = wefti_call_advance(call, &blocked);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        status = wait_for(call, &blocked);
        if (status < 0) {
            finish(call);
            return status;
        }
    }
}

weft_status_t wefti_call_poll(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    weft_status_t status = wefti_call_advance(call, out_blocked);
    if (status != WEFT_IN_PROGRESS) {
        return status;
    }
    if (out_blocked->signal == &group->completed) {
        out_blocked->signal = NULL; /* the group may go while somebody sleeps on it */
    }
    uint64_t now = wefti_now_ns();
    uint64_t timeout_ns = group->endpoint->settings->timeout_ns;
    if (call->since_ns == 0) {
        call->since_ns = call->checked_ns = now;
    }
    if (wefti_group_broken(group)) {
        status = wefti_group_check(group);
    } else if (timeout_ns != 0 && now - call->since_ns > timeout_ns) {
        status = wefti_group_late(call, WEFT_ERR_TIMEOUT);
    } else if (now - call->checked_ns > CHECK_NS) {
        call->checked_ns = now;
        status = wefti_group_check(group);
        status = status == WEFT_OK ? WEFT_IN_PROGRESS : status;
    }
    if (status < 0) {
        finish(call);
    }
    return status;
}

weft_status_t wefti_group_drain(weft_group_t *group)
{
    while (!reached(&group->completed, group->issued)) {
        wefti_streams_progress(group->context, NULL);
        weft_status_t status = wefti_group_check(group);
        if (status < 0) {
            return status;
        }
        wefti_signal_sleep(&group->completed, group->issued, 0, 1000000);
    }
    return WEFT_OK;
}

weft_status_t wefti_call_reserve(weft_group_t *group, weft_stream_t *stream,
                                 wefti_call_t **out_call)
{
    weft_status_t status = WEFT_OK;
    if (group == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "group is NULL");
    }
    if (stream != NULL && stream->context != group->context) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "stream \"%s\" belongs to another context than the group", stream->name);
    }
    if (!wefti_endpoint_owned(group->endpoint) ||
        atomic_load_explicit(&group->fault.state, memory_order_relaxed) != 0 ||
        wefti_group_broken(group)) {
        status = wefti_group_check(group);
        if (status < 0) {
            return status;
        }
    }
    uint32_t order = group->issued + 1;
    /* acquire: the ring's place is free, and its last user has finished with it */
    uint32_t completed = atomic_load_explicit(&group->completed.value, memory_order_acquire);
    if (order - completed > WEFTI_CALLS) {
        return WEFT_AGAIN;
    }
    wefti_call_t *call = &group->calls[order & (WEFTI_CALLS - 1)];
    call->group = group;
    call->order = order;
    call->state = WEFTI_CALL_ISSUED;
    call->lead = call->trail = 0;
    call->round = 0;
    call->since_ns = 0;
    call->two_shot = false;
    call->pair_count = 0;
    *out_call = call;
    return WEFT_OK;
}

static void issue(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    group->issued = call->order;
    if (call->pair_count == 0) {
        call->number = ++group->number;
        group->number += wefti_call_is_checked(call); /* the digests have a number of their own */
    }
}

weft_status_t wefti_call_submit(wefti_call_t *call, weft_stream_t *stream)
{
    wefti_slot_t *slot;
    if (stream == NULL) {
        issue(call);
        return wefti_call_run(call);
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_COLLECTIVE;
    slot->record.name = "collective";
    slot->record.collective.call = call;
    issue(call);
    atomic_fetch_add_explicit(&call->group->references, 1, memory_order_relaxed);
    return wefti_stream_commit(stream, slot);
}

void wefti_call_leave_stream(wefti_call_t *call)
{
    wefti_group_release(call->group);
}
