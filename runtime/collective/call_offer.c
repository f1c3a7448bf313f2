/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank posts of its buffers: whether peers reach what they need of them; where
 * every rank finds its block of an all-to-all-v; and, for calls that may run as a schedule, whether
 * the buffers are in place and peers reach all of them.
 */
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/call_move.h"

/* Peers reach all of a buffer. */
static bool reach(const wefti_call_t *call, const void *address, uint64_t bytes,
                  uint64_t *out_offset)
{
    uint32_t lead = 0, trail = 0;
    *out_offset = 0;
    return bytes == 0 || (wefti_memory_reach(call->group->context, address, (size_t)bytes,
                                             out_offset, &lead, &trail) &&
                          lead == 0 && trail == 0);
}

/* Bytes of the whole send and receive buffer. */
static void buffer_bytes(const wefti_call_t *call, uint64_t *out_send, uint64_t *out_recv)
{
    wefti_buffer_shape_t send = wefti_call_send_shape(call), recv = wefti_call_recv_shape(call);
    *out_send = wefti_shape_elems(&send) * call->elem_bytes;
    *out_recv = wefti_shape_elems(&recv) * call->elem_bytes;
}

/* ---- what the operator needs ---- */

/* All-reduce: what all ranks can show of the buffers is done in place, the rest through staging. */
static void merge_ends(wefti_call_t *call, const wefti_call_slot_t *slot)
{
    uint64_t lead = (slot->at.lead + call->elem_bytes - 1) / call->elem_bytes;
    uint64_t trail = (slot->at.trail + call->elem_bytes - 1) / call->elem_bytes;
    call->ends.lead = lead > call->ends.lead ? lead : call->ends.lead;
    call->ends.trail = trail > call->ends.trail ? trail : call->ends.trail;
}

/* Pages at the ends of an adopted buffer may be missing: the most that is missing of either. */
static bool reach_all_reduce(wefti_call_t *call, wefti_call_slot_t *slot)
{
    weft_context_t *context = call->group->context;
    uint32_t lead, trail, recv_lead, recv_trail;
    size_t bytes = (size_t)call->longest;
    if (!wefti_memory_reach(context, call->request.send, bytes, &slot->at.send, &lead, &trail) ||
        !wefti_memory_reach(context, call->request.recv, bytes, &slot->at.recv, &recv_lead,
                            &recv_trail)) {
        return false;
    }
    slot->at.lead = lead > recv_lead ? lead : recv_lead;
    slot->at.trail = trail > recv_trail ? trail : recv_trail;
    merge_ends(call, slot);
    return true;
}

static void post_table(const wefti_call_t *call, wefti_call_slot_t *slot)
{
    uint32_t n = call->group->size;
    uint64_t *table = (uint64_t *)(void *)slot->data;
    for (uint32_t r = 0; r < n; r++) {
        table[2 * r] = call->counts[r] * call->elem_bytes;
        table[2 * r + 1] = call->counts[n + r] * call->elem_bytes;
    }
    slot->at.longest = call->longest;
}

weft_status_t wefti_call_check_table(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    for (uint32_t r = 0; r < group->size; r++) {
        uint64_t sent = wefti_call_table(call, r)[2 * group->rank];
        uint64_t expected = wefti_call_recv_block(call, r).bytes;
        if (sent != expected) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "AllToAllV: rank %u sends %llu bytes to rank %u, which expects %llu bytes",
                group->ranks[r], (unsigned long long)sent, group->ranks[group->rank],
                (unsigned long long)expected);
        }
    }
    return WEFT_OK;
}

bool wefti_call_reach(wefti_call_t *call, wefti_call_slot_t *slot)
{
    const wefti_request_t *request = &call->request;
    uint64_t send_bytes, recv_bytes;
    slot->at.lead = slot->at.trail = 0;
    if (request->op == WEFT_COLLECTIVE_ALL_REDUCE) {
        return reach_all_reduce(call, slot);
    }
    /* In place, peers of an all-to-all would read what is overwritten. */
    if (request->op == WEFT_COLLECTIVE_BARRIER ||
        (request->op == WEFT_COLLECTIVE_ALL_TO_ALL && request->send == request->recv)) {
        return false;
    }
    if (request->op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        post_table(call, slot);
    }
    /* Peers write what a broadcast, a reduction to the root and a gather receive; they read what
     * all but a gather send. */
    bool reads = request->op != WEFT_COLLECTIVE_GATHER;
    bool writes = wefti_collective_rooted(request->op) && request->op != WEFT_COLLECTIVE_SCATTER;
    buffer_bytes(call, &send_bytes, &recv_bytes);
    return (!reads || reach(call, request->send, send_bytes, &slot->at.send)) &&
           (!writes || reach(call, request->recv, recv_bytes, &slot->at.recv));
}

/* ---- what schedules need ---- */

uint64_t wefti_call_alias_at(const wefti_call_t *call, uint32_t rank)
{
    uint64_t at = wefti_collective_has_shared_counts(call->request.op)
                      ? wefti_call_blocks(call)[call->group->size + rank]
                      : wefti_in_place_elems(call->request.op, rank, call->request.count);
    return at * call->elem_bytes;
}

bool wefti_call_is_in_place(const wefti_call_t *call)
{
    const wefti_request_t *request = &call->request;
    uint64_t at = wefti_call_alias_at(call, call->group->rank);
    return wefti_collective_scatters(request->op) ? request->send + at == request->recv
                                                  : request->recv + at == request->send;
}

/* If the block of this rank that lies in both buffers has no elements, the call is both. */
static uint32_t place_flags(const wefti_call_t *call)
{
    const wefti_collective_t *op = wefti_collective_of(call->request.op);
    bool is_root = call->group->rank == call->request.root;
    uint64_t count = wefti_collective_has_shared_counts(call->request.op)
                         ? wefti_call_blocks(call)[call->group->rank]
                         : call->request.count;
    if (op->variable && !op->in_place) {
        return WEFTI_POSTED_OUT_OF_PLACE;
    }
    if (count == 0 || !wefti_side_is_on(op->send, is_root) ||
        !wefti_side_is_on(op->recv, is_root)) {
        return WEFTI_POSTED_IN_PLACE | WEFTI_POSTED_OUT_OF_PLACE;
    }
    return wefti_call_is_in_place(call) ? WEFTI_POSTED_IN_PLACE : WEFTI_POSTED_OUT_OF_PLACE;
}

/* Peers of an all-to-all-v put blocks where the matrix says: one after the other. */
static bool is_packed(const wefti_buffer_shape_t *shape)
{
    uint64_t next = 0;
    for (uint32_t r = 0; r < shape->blocks; r++) {
        if (shape->counts[shape->blocks + r] != next) {
            return false;
        }
        next += shape->counts[r];
    }
    return true;
}

void wefti_call_post_places(const wefti_call_t *call, wefti_call_slot_t *slot)
{
    if (wefti_collective_has_shared_counts(call->request.op)) {
        uint32_t n = call->group->size;
        slot->at.longest = wefti_hash_words(wefti_call_blocks(call) + n, n);
    }
}

uint32_t wefti_call_offer(wefti_call_t *call, wefti_call_slot_t *slot)
{
    uint64_t send_bytes, recv_bytes, send, recv;
    uint32_t flags = place_flags(call);
    if (call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        wefti_buffer_shape_t shape = wefti_call_recv_shape(call);
        if (!is_packed(&shape)) {
            return flags;
        }
    }
    buffer_bytes(call, &send_bytes, &recv_bytes);
    if (reach(call, call->request.send, send_bytes, &send) &&
        reach(call, call->request.recv, recv_bytes, &recv)) {
        slot->at.send = send;
        slot->at.recv = recv;
        flags |= WEFTI_POSTED_OPEN;
    }
    return flags;
}

void wefti_call_merge_offer(wefti_call_t *call, const wefti_call_slot_t *theirs)
{
    const wefti_call_slot_t *own = wefti_call_slot_of(call->group, call->group->rank, call->number);
    weft_collective_t op = call->request.op;
    /* Peers' blocks are looked for where the own ones are; of an all-gather-v only by schedules. */
    if (wefti_collective_has_shared_counts(op) && theirs->at.longest != own->at.longest) {
        uint32_t paths = WEFTI_POSTED_REACHABLE | WEFTI_POSTED_ATTACHABLE;
        call->flags &= ~(WEFTI_POSTED_OPEN | (wefti_collective_scatters(op) ? paths : 0));
    }
    if (op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        call->longest = theirs->at.longest > call->longest ? theirs->at.longest : call->longest;
    }
    if ((call->flags & WEFTI_POSTED_REACHABLE) && op == WEFT_COLLECTIVE_ALL_REDUCE) {
        merge_ends(call, theirs);
    }
}
