/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says of its buffers in the posting of a call that may run as a schedule: whether they
 * are in place, and whether peers reach all of them.
 */
#include "runtime/call.h"

bool wefti_call_is_variable(const wefti_call_t *call)
{
    return call->op == WEFT_OP_ALL_GATHER_V || call->op == WEFT_OP_REDUCE_SCATTER_V;
}

/* Counts and displacements of AllGatherV or ReduceScatterV, [2 * size]. */
const uint64_t *wefti_call_blocks(const wefti_call_t *call)
{
    return call->op == WEFT_OP_ALL_GATHER_V ? call->counts + 2 * call->group->size : call->counts;
}

/* Where the block that an in-place call shares begins, from the longer buffer's begin. */
uint64_t wefti_call_alias_at(const wefti_call_t *call, uint32_t rank)
{
    switch (call->op) {
    case WEFT_OP_ALL_GATHER_V:
    case WEFT_OP_REDUCE_SCATTER_V:
        return wefti_call_blocks(call)[call->group->size + rank] * call->elem_bytes;
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_REDUCE_SCATTER:
    case WEFT_OP_GATHER:
    case WEFT_OP_SCATTER:
        return rank * call->count * call->elem_bytes;
    default:
        return 0;
    }
}

static bool has_send(const wefti_call_t *call)
{
    return (call->op != WEFT_OP_BROADCAST && call->op != WEFT_OP_SCATTER) ||
           call->group->rank == call->root;
}

static bool has_recv(const wefti_call_t *call)
{
    return (call->op != WEFT_OP_REDUCE && call->op != WEFT_OP_GATHER) ||
           call->group->rank == call->root;
}

/* The block of this rank that lies in both buffers when in place has no elements. */
static bool shares_nothing(const wefti_call_t *call)
{
    uint64_t count =
        wefti_call_is_variable(call) ? wefti_call_blocks(call)[call->group->rank] : call->count;
    return count == 0 || call->op == WEFT_OP_ALL_TO_ALL_V || call->op == WEFT_OP_BARRIER;
}

/* The in-place rule of the operator holds for this rank's buffers. */
bool wefti_call_is_in_place(const wefti_call_t *call)
{
    uint64_t at = wefti_call_alias_at(call, call->group->rank);
    bool sends_more = call->op == WEFT_OP_REDUCE_SCATTER || call->op == WEFT_OP_REDUCE_SCATTER_V ||
                      call->op == WEFT_OP_SCATTER;
    return sends_more ? call->send + at == call->recv : call->recv + at == call->send;
}

static uint32_t place_flags(const wefti_call_t *call)
{
    if (call->op == WEFT_OP_ALL_TO_ALL_V) {
        return WEFTI_POSTED_OUT_OF_PLACE;
    }
    if (shares_nothing(call) || !has_send(call) || !has_recv(call)) {
        return WEFTI_POSTED_IN_PLACE | WEFTI_POSTED_OUT_OF_PLACE;
    }
    return wefti_call_is_in_place(call) ? WEFTI_POSTED_IN_PLACE : WEFTI_POSTED_OUT_OF_PLACE;
}

/* Bytes of the whole send and receive buffer; UINT64_MAX: peers cannot know how it is laid out. */
static void buffer_bytes(const wefti_call_t *call, uint64_t *out_send, uint64_t *out_recv)
{
    uint32_t n = call->group->size;
    uint64_t bytes = call->count * call->elem_bytes, all = bytes * n;
    bool sends_all = call->op == WEFT_OP_REDUCE_SCATTER || call->op == WEFT_OP_SCATTER ||
                     call->op == WEFT_OP_ALL_TO_ALL;
    bool gets_all = call->op == WEFT_OP_ALL_GATHER || call->op == WEFT_OP_GATHER ||
                    call->op == WEFT_OP_ALL_TO_ALL;
    *out_send = sends_all ? all : bytes;
    *out_recv = gets_all ? all : bytes;
    if (wefti_call_is_variable(call)) {
        const uint64_t *blocks = wefti_call_blocks(call);
        uint64_t own = blocks[call->group->rank] * call->elem_bytes;
        uint64_t rest = wefti_call_extent(blocks, blocks + n, n) * call->elem_bytes;
        *out_send = call->op == WEFT_OP_ALL_GATHER_V ? own : rest;
        *out_recv = call->op == WEFT_OP_ALL_GATHER_V ? rest : own;
    } else if (call->op == WEFT_OP_ALL_TO_ALL_V) {
        const uint64_t *counts = call->counts;
        *out_send = wefti_call_extent(counts, counts + n, n) * call->elem_bytes;
        *out_recv = wefti_call_extent(counts + 2 * n, counts + 3 * n, n) * call->elem_bytes;
        for (uint32_t r = 1; r < n; r++) { /* blocks are put where the matrix says */
            if (counts[3 * n + r] != counts[3 * n + r - 1] + counts[2 * n + r - 1]) {
                *out_recv = UINT64_MAX;
            }
        }
        *out_recv = counts[3 * n] == 0 ? *out_recv : UINT64_MAX;
    }
    *out_send = has_send(call) ? *out_send : 0;
    *out_recv = has_recv(call) ? *out_recv : 0;
}

static bool reach(wefti_call_t *call, const void *address, uint64_t bytes, uint64_t *out_offset)
{
    uint32_t lead = 0, trail = 0;
    *out_offset = 0;
    return bytes == 0 || (bytes != UINT64_MAX &&
                          wefti_memory_reach(call->group->context, address, (size_t)bytes,
                                             out_offset, &lead, &trail) &&
                          lead == 0 && trail == 0);
}

static uint64_t hash_displacements(const wefti_call_t *call)
{
    const uint64_t *at = wefti_call_blocks(call) + call->group->size;
    uint64_t hash = 14695981039346656037ull;
    for (uint32_t r = 0; r < call->group->size; r++) {
        hash = (hash ^ at[r]) * 1099511628211ull;
        hash ^= hash >> 29;
    }
    return hash;
}

uint32_t wefti_call_offer(wefti_call_t *call, wefti_posting_t *posting)
{
    uint64_t send_bytes, recv_bytes, send, recv;
    uint32_t flags = place_flags(call);
    if (wefti_call_is_variable(call)) {
        posting->at.longest = hash_displacements(call);
    }
    buffer_bytes(call, &send_bytes, &recv_bytes);
    if (reach(call, call->send, send_bytes, &send) && reach(call, call->recv, recv_bytes, &recv)) {
        posting->at.send = send;
        posting->at.recv = recv;
        flags |= WEFTI_POSTED_OPEN;
    }
    return flags;
}

void wefti_call_merge_offer(wefti_call_t *call, const wefti_posting_t *theirs)
{
    const wefti_posting_t *own = wefti_posting_of(call->group, call->group->rank, call->number);
    /* Peers' blocks are looked for where the own ones are. */
    if (wefti_call_is_variable(call) && theirs->at.longest != own->at.longest) {
        call->flags &= ~WEFTI_POSTED_OPEN;
    }
}
