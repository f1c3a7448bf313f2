/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path direct: moving data in place, where peers reach it: one pass over it and no copies. Posting
 * an address says that the send buffer is ready and the receive buffer may be written; a rank that
 * is done with its peers' memory says so, and a call ends when all have.
 *
 * Where ranks outnumber cores, every wait for a rank costs a change of processes. So in an
 * all-reduce the first rank that runs on a core does the shares of those that would run there after
 * it, which then find the call done: one change less for each of them, and no core idles while
 * another has work.
 */
#include "runtime/base/error.h"
#include "runtime/collective/call_move.h"
#include "runtime/interpreter/interpreter.h"

#define CHUNK_BYTES ((size_t)64 << 10) /* stays in the second-level cache */
#define HELP_MIN_BYTES 3072u /* below, data in call slots needs as many turns, and less besides */

/* ---- the memory of peers ---- */

static weft_status_t bad_address(const wefti_call_t *call, uint32_t rank)
{
    return wefti_group_bad_address(call->group->ranks[rank]);
}

/* bytes at from in rank's send buffer; this rank's own is used in place. */
static const uint8_t *send_of(const wefti_call_t *call, uint32_t rank, uint64_t from,
                              uint64_t bytes)
{
    const weft_group_t *group = call->group;
    if (rank == group->rank) {
        return call->request.send + from;
    }
    const wefti_call_slot_t *slot = wefti_call_slot_of(group, rank, call->number);
    return wefti_memory_of_peer(group, rank, slot->at.send + from, bytes);
}

static uint8_t *recv_of(const wefti_call_t *call, uint32_t rank, uint64_t from, uint64_t bytes)
{
    const weft_group_t *group = call->group;
    if (rank == group->rank) {
        return call->request.recv + from;
    }
    const wefti_call_slot_t *slot = wefti_call_slot_of(group, rank, call->number);
    return wefti_memory_of_peer(group, rank, slot->at.recv + from, bytes);
}

static weft_status_t fetch(wefti_call_t *call, uint32_t rank, uint64_t from, void *to,
                           uint64_t bytes)
{
    const uint8_t *source = send_of(call, rank, from, bytes);
    if (source == NULL) {
        return bad_address(call, rank);
    }
    wefti_call_copy(to, source, bytes);
    return WEFT_OK;
}

static weft_status_t push(wefti_call_t *call, uint32_t rank, uint64_t to, const void *from,
                          uint64_t bytes)
{
    uint8_t *destination = recv_of(call, rank, to, bytes);
    if (destination == NULL) {
        return bad_address(call, rank);
    }
    wefti_call_copy(destination, from, bytes);
    return WEFT_OK;
}

static weft_status_t collect_sources(wefti_call_t *call, uint64_t from, uint64_t bytes)
{
    const weft_group_t *group = call->group;
    const void **sources = group->calls->sources;
    for (uint32_t r = 0; r < group->size; r++) {
        sources[r] = send_of(call, r, from, bytes);
        if (sources[r] == NULL) {
            return bad_address(call, r);
        }
    }
    return WEFT_OK;
}

static weft_status_t reduce(wefti_call_t *call, uint64_t from, uint64_t bytes, void *to)
{
    if (bytes == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(collect_sources(call, from, bytes));
    call->group->calls->destinations[0] = to;
    return wefti_call_reduce(call, 1, bytes);
}

static const wefti_access_t access = {fetch, push, reduce, false};

/* ---- operators whose vector ranks share ---- */

/* All-reduce and reduce: rank's share, from all ranks to all, or to the root. */
static weft_status_t reduce_share(wefti_call_t *call, uint32_t rank)
{
    const weft_group_t *group = call->group;
    bool all = call->request.op == WEFT_COLLECTIVE_ALL_REDUCE;
    uint32_t first = all ? 0 : call->request.root, count = all ? group->size : 1;
    wefti_block_t share = wefti_call_share(call, rank);
    if (share.bytes == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(collect_sources(call, share.at, share.bytes));
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *to = recv_of(call, first + i, share.at, share.bytes);
        if (to == NULL) {
            return bad_address(call, first + i);
        }
        group->calls->destinations[i] = to;
    }
    return wefti_call_reduce(call, count, share.bytes);
}

/* Every rank copies its share from the root to all ranks, so all copy the same amount. */
static weft_status_t broadcast(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    wefti_block_t share = wefti_call_share(call, group->rank);
    uint64_t last = share.at + share.bytes;
    for (uint64_t at = share.at; at < last; at += CHUNK_BYTES) {
        size_t bytes = last - at < CHUNK_BYTES ? (size_t)(last - at) : CHUNK_BYTES;
        const uint8_t *from = send_of(call, call->request.root, at, bytes);
        if (from == NULL) {
            return bad_address(call, call->request.root);
        }
        for (uint32_t i = 0; i < group->size; i++) {
            uint32_t r = wefti_group_nth_peer(group, i);
            WEFT_RETURN_IF_ERROR(push(call, r, at, from, bytes));
        }
    }
    return WEFT_OK;
}

/* ---- helping ---- */

uint32_t wefti_call_offer_help(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    /* Done would not say any more that a rank has staged its ends. */
    bool whole = call->ends.lead + call->ends.trail == 0;
    return call->request.op == WEFT_COLLECTIVE_ALL_REDUCE && !group->endpoint->may_spin &&
                   group->size > 2 && call->longest >= HELP_MIN_BYTES && whole
               ? WEFTI_POSTED_HELPS
               : 0;
}

/* True for one rank of all that ask. */
static bool claim(wefti_channel_t *channel, uint32_t number)
{
    uint32_t before = atomic_load_explicit(&channel->claimed, memory_order_relaxed);
    /* relaxed: that all have posted was acquired before; done publishes the work */
    return before != number &&
           atomic_compare_exchange_strong_explicit(&channel->claimed, &before, number,
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* All shares that no rank has claimed; says done for their ranks. */
static weft_status_t reduce_helping(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        wefti_channel_t *channel = group->channels[r];
        if (wefti_group_broken(group)) {
            return wefti_group_check(group);
        }
        if (claim(channel, call->number)) {
            WEFT_RETURN_IF_ERROR(reduce_share(call, r));
            wefti_signal_post(&channel->done.signal, call->number);
        }
    }
    /* What is left is at work on other cores, and soon done: giving this one up takes longer. */
    uint32_t left = WEFTI_TRIES;
    for (uint32_t r = 0; r < group->size && left > 0; r++) {
        while (!wefti_signal_has_reached(&group->channels[r]->done.signal, call->number) &&
               --left > 0) {
        }
    }
    return WEFT_OK;
}

/* ---- the path ---- */

static bool takes(const wefti_call_t *call)
{
    uint64_t ends = call->ends.lead + call->ends.trail;
    return (call->flags & WEFTI_POSTED_REACHABLE) != 0 && call->group->put_peer_count == 0 &&
           ends <= call->request.count &&
           ends * call->elem_bytes <= call->group->staging.half_bytes;
}

static weft_status_t move(wefti_call_t *call)
{
    switch (call->request.op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE:
        return reduce_share(call, call->group->rank);
    case WEFT_COLLECTIVE_BROADCAST:
        return broadcast(call);
    default:
        return wefti_call_move_blocks(call, &access);
    }
}

static weft_status_t start(wefti_call_t *call)
{
    if (call->ends.lead + call->ends.trail > 0) {
        WEFT_RETURN_IF_ERROR(wefti_call_stage_ends(call));
    }
    bool helps = (call->flags & WEFTI_POSTED_HELPS) != 0;
    WEFT_RETURN_IF_ERROR(helps ? reduce_helping(call) : move(call));
    if (!helps) { /* else whoever did a share has said so, and the own one is waited for, too */
        wefti_call_publish_done(call);
    }
    call->peer = helps ? 0 : 1;
    call->state = WEFTI_CALL_MOVING;
    return WEFT_OK;
}

static weft_status_t advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status = wefti_call_await_done(call, out_blocked);
    if (status == WEFT_OK && call->ends.lead + call->ends.trail > 0) {
        status = wefti_call_take_ends(call);
    }
    return status;
}

const wefti_path_t wefti_path_direct = {"direct", takes, start, advance};
