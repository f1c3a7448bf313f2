/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says of its buffers in the posting of a call that may run as a schedule: whether they
 * are in place, and whether peers reach all of them.
 */
#include "runtime/base/hash.h"
#include "runtime/collective/call.h"

/* Where the block that an in-place call shares begins, from the longer buffer's begin. */
uint64_t wefti_call_alias_at(const wefti_call_t *call, uint32_t rank)
{
    uint64_t at = wefti_collective_has_shared_counts(call->op)
                      ? wefti_call_blocks(call)[call->group->size + rank]
                      : wefti_in_place_elems(call->op, rank, call->count);
    return at * call->elem_bytes;
}

/* The in-place rule of the operator holds for this rank's buffers. */
bool wefti_call_is_in_place(const wefti_call_t *call)
{
    uint64_t at = wefti_call_alias_at(call, call->group->rank);
    return wefti_collective_scatters(call->op) ? call->send + at == call->recv
                                               : call->recv + at == call->send;
}

/* If the block of this rank that lies in both buffers has no elements, the call is both. */
static uint32_t place_flags(const wefti_call_t *call)
{
    const wefti_collective_t *op = wefti_collective_of(call->op);
    bool is_root = call->group->rank == call->root;
    uint64_t count = wefti_collective_has_shared_counts(call->op)
                         ? wefti_call_blocks(call)[call->group->rank]
                         : call->count;
    if (op->variable && !op->in_place) {
        return WEFTI_POSTED_OUT_OF_PLACE;
    }
    if (count == 0 || !wefti_side_is_on(op->send, is_root) ||
        !wefti_side_is_on(op->recv, is_root)) {
        return WEFTI_POSTED_IN_PLACE | WEFTI_POSTED_OUT_OF_PLACE;
    }
    return wefti_call_is_in_place(call) ? WEFTI_POSTED_IN_PLACE : WEFTI_POSTED_OUT_OF_PLACE;
}

/* Bytes of the whole send and receive buffer; UINT64_MAX: peers cannot know how it is laid out. */
static void buffer_bytes(const wefti_call_t *call, uint64_t *out_send, uint64_t *out_recv)
{
    wefti_buffer_shape_t send = wefti_call_send_shape(call), recv = wefti_call_recv_shape(call);
    *out_send = wefti_shape_elems(&send) * call->elem_bytes;
    *out_recv = wefti_shape_elems(&recv) * call->elem_bytes;
    if (call->op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        uint64_t next = 0; /* blocks are put where the matrix says */
        for (uint32_t r = 0; r < recv.blocks; r++) {
            *out_recv = recv.counts[recv.blocks + r] == next ? *out_recv : UINT64_MAX;
            next += recv.counts[r];
        }
    }
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

uint32_t wefti_call_offer(wefti_call_t *call, wefti_posting_t *posting)
{
    uint64_t send_bytes, recv_bytes, send, recv;
    uint32_t flags = place_flags(call);
    if (wefti_collective_has_shared_counts(call->op)) {
        uint32_t n = call->group->size;
        posting->at.longest = wefti_hash_words(wefti_call_blocks(call) + n, n);
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
    if (wefti_collective_has_shared_counts(call->op) && theirs->at.longest != own->at.longest) {
        call->flags &= ~WEFTI_POSTED_OPEN;
    }
}
