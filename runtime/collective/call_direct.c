/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving data in place, where peers reach it: one pass over it and no copies. Posting an address
 * says that the send buffer is ready and the receive buffer may be written; a rank that is done
 * with its peers' memory says so, and a call ends when all have.
 */
#include <string.h>

#include "runtime/group/attach.h"
#include "runtime/base/copy.h"
#include "runtime/base/error.h"
#include "runtime/collective/call.h"
#include "runtime/interpreter/interpreter.h"

#define LINE_BYTES 64u
#define CHUNK_BYTES ((size_t)64 << 10) /* stays in the second-level cache */

static bool reach_all_of(weft_context_t *context, const void *address, uint64_t bytes,
                         uint64_t *out_offset)
{
    uint32_t lead, trail;
    if (bytes == 0) {
        *out_offset = 0;
        return true;
    }
    return wefti_memory_reach(context, address, (size_t)bytes, out_offset, &lead, &trail) &&
           lead == 0 && trail == 0;
}

/* Pages at the ends of an adopted buffer may be missing: the most that is missing of either. */
static bool reach_all_reduce(wefti_call_t *call, wefti_posting_t *posting)
{
    weft_context_t *context = call->group->context;
    uint32_t lead, trail, recv_lead, recv_trail;
    size_t bytes = (size_t)call->longest;
    if (!wefti_memory_reach(context, call->send, bytes, &posting->at.send, &lead, &trail) ||
        !wefti_memory_reach(context, call->recv, bytes, &posting->at.recv, &recv_lead,
                            &recv_trail)) {
        return false;
    }
    posting->at.lead = lead > recv_lead ? lead : recv_lead;
    posting->at.trail = trail > recv_trail ? trail : recv_trail;
    call->ends.lead = (posting->at.lead + call->elem_bytes - 1) / call->elem_bytes;
    call->ends.trail = (posting->at.trail + call->elem_bytes - 1) / call->elem_bytes;
    return true;
}

/* Where every peer finds its block: number and bytes, for both paths. */
static void post_table(const wefti_call_t *call, wefti_posting_t *posting)
{
    uint32_t n = call->group->size;
    uint64_t *table = (uint64_t *)(void *)posting->data;
    for (uint32_t r = 0; r < n; r++) {
        table[2 * r] = call->counts[r] * call->elem_bytes;
        table[2 * r + 1] = call->counts[n + r] * call->elem_bytes;
    }
    posting->at.longest = call->longest;
}

bool wefti_call_reach(wefti_call_t *call, wefti_posting_t *posting)
{
    weft_context_t *context = call->group->context;
    posting->at.lead = posting->at.trail = 0;
    if (call->op == WEFT_COLLECTIVE_ALL_REDUCE) {
        return reach_all_reduce(call, posting);
    }
    /* In place, peers of an all-to-all would read what is overwritten. */
    if (call->op == WEFT_COLLECTIVE_BARRIER ||
        (call->op == WEFT_COLLECTIVE_ALL_TO_ALL && call->send == call->recv)) {
        return false;
    }
    if (call->op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        post_table(call, posting);
    }
    /* Peers write what a broadcast, a reduction to the root and a gather receive; they read what all
     * but a gather send. */
    wefti_buffer_shape_t send = wefti_call_send_shape(call), recv = wefti_call_recv_shape(call);
    bool reads = call->op != WEFT_COLLECTIVE_GATHER;
    bool writes = wefti_collective_rooted(call->op) && call->op != WEFT_COLLECTIVE_SCATTER;
    return (!reads || reach_all_of(context, call->send, wefti_shape_elems(&send) * call->elem_bytes,
                                   &posting->at.send)) &&
           (!writes ||
            reach_all_of(context, call->recv, wefti_shape_elems(&recv) * call->elem_bytes,
                         &posting->at.recv));
}

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
        return call->send + from;
    }
    const wefti_posting_t *posting = wefti_posting_of(group, rank, call->number);
    return wefti_memory_of_peer(group, rank, posting->at.send + from, bytes);
}

static uint8_t *recv_of(const wefti_call_t *call, uint32_t rank, uint64_t from, uint64_t bytes)
{
    const weft_group_t *group = call->group;
    if (rank == group->rank) {
        return call->recv + from;
    }
    const wefti_posting_t *posting = wefti_posting_of(group, rank, call->number);
    return wefti_memory_of_peer(group, rank, posting->at.recv + from, bytes);
}

void wefti_call_share(const wefti_call_t *call, uint32_t rank, uint64_t *begin, uint64_t *end)
{
    const weft_group_t *group = call->group;
    uint64_t unit = LINE_BYTES / call->elem_bytes;
    uint64_t units = (*end - *begin + unit - 1) / unit;
    uint64_t each = (units + group->size - 1) / group->size * unit;
    uint64_t from = *begin + each * rank;
    from = from < *end ? from : *end;
    *begin = from;
    *end = *end - from < each ? *end : from + each;
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

static weft_status_t move_share(wefti_call_t *call, uint32_t rank)
{
    const weft_group_t *group = call->group;
    void **destinations = group->calls->destinations;
    uint64_t begin = call->ends.lead, end = call->count - call->ends.trail;
    wefti_call_share(call, rank, &begin, &end);
    uint64_t from = begin * call->elem_bytes, bytes = (end - begin) * call->elem_bytes;
    if (bytes == 0) {
        return WEFT_OK;
    }
    weft_status_t status = collect_sources(call, from, bytes);
    for (uint32_t r = 0; status == WEFT_OK && r < group->size; r++) {
        destinations[r] = recv_of(call, r, from, bytes);
        if (destinations[r] == NULL) {
            return bad_address(call, r);
        }
    }
    return status == WEFT_OK ? wefti_call_reduce(call, group->size, end - begin) : status;
}

static weft_status_t move_all_reduce(wefti_call_t *call)
{
    return (call->flags & WEFTI_POSTED_HELPS) != 0 ? wefti_call_all_reduce_helping(call, move_share)
                                                   : move_share(call, call->group->rank);
}

static weft_status_t move_reduce(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    uint64_t begin = 0, end = call->count;
    wefti_call_share(call, group->rank, &begin, &end);
    uint64_t from = begin * call->elem_bytes, bytes = (end - begin) * call->elem_bytes;
    if (bytes == 0) {
        return WEFT_OK;
    }
    weft_status_t status = collect_sources(call, from, bytes);
    if (status < 0) {
        return status;
    }
    group->calls->destinations[0] = recv_of(call, call->root, from, bytes);
    return group->calls->destinations[0] == NULL ? bad_address(call, call->root)
                                                 : wefti_call_reduce(call, 1, end - begin);
}

static weft_status_t move_reduce_scatter(wefti_call_t *call, uint64_t from, uint64_t count)
{
    weft_group_t *group = call->group;
    if (count == 0) {
        return WEFT_OK;
    }
    weft_status_t status = collect_sources(call, from, count * call->elem_bytes);
    group->calls->destinations[0] = call->recv;
    return status == WEFT_OK ? wefti_call_reduce(call, 1, count) : status;
}

static void place(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (bytes > 0 && to != from) {
        wefti_copy(to, from, (size_t)bytes);
    }
}

/* Every rank copies its share from the root to all ranks, so all copy the same amount. */
static weft_status_t move_broadcast(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint64_t begin = 0, end = call->count;
    wefti_call_share(call, group->rank, &begin, &end);
    uint64_t last = end * call->elem_bytes;
    for (uint64_t at = begin * call->elem_bytes; at < last; at += CHUNK_BYTES) {
        size_t bytes = last - at < CHUNK_BYTES ? (size_t)(last - at) : CHUNK_BYTES;
        const uint8_t *from = send_of(call, call->root, at, bytes);
        for (uint32_t i = 0; i < group->size; i++) {
            uint32_t r = (group->rank + i) % group->size;
            uint8_t *to = recv_of(call, r, at, bytes);
            if (to == NULL || from == NULL) {
                return bad_address(call, to == NULL ? r : call->root);
            }
            place(to, from, bytes);
        }
    }
    return WEFT_OK;
}

static weft_status_t move_all_gather(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint32_t n = group->size;
    const uint64_t *counts = call->op == WEFT_COLLECTIVE_ALL_GATHER_V ? call->counts + 2 * n : NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = (group->rank + i) % n;
        uint64_t bytes = (counts != NULL ? counts[r] : call->count) * call->elem_bytes;
        uint64_t to = counts != NULL ? counts[n + r] * call->elem_bytes : r * bytes;
        const uint8_t *from = send_of(call, r, 0, bytes);
        if (from == NULL && bytes > 0) {
            return bad_address(call, r);
        }
        place(call->recv + to, from, bytes);
    }
    return WEFT_OK;
}

static weft_status_t move_all_to_all(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint64_t bytes = call->count * call->elem_bytes;
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t r = (group->rank + i) % group->size;
        const uint8_t *from = send_of(call, r, group->rank * bytes, bytes);
        if (from == NULL) {
            return bad_address(call, r);
        }
        place(call->recv + r * bytes, from, bytes);
    }
    return WEFT_OK;
}

weft_status_t wefti_call_check_table(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint32_t n = group->size;
    for (uint32_t r = 0; r < n; r++) {
        const wefti_posting_t *posting = wefti_posting_of(group, r, call->number);
        const uint64_t *table = (const uint64_t *)(const void *)posting->data;
        uint64_t expected = call->counts[2 * n + r] * call->elem_bytes;
        if (table[2 * group->rank] != expected) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "AllToAllV: rank %u sends %llu bytes to rank %u, which expects %llu bytes",
                group->ranks[r], (unsigned long long)table[2 * group->rank],
                group->ranks[group->rank], (unsigned long long)expected);
        }
    }
    return WEFT_OK;
}

static weft_status_t move_all_to_all_v(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint32_t n = group->size;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = (group->rank + i) % n;
        const wefti_posting_t *posting = wefti_posting_of(group, r, call->number);
        const uint64_t *table = (const uint64_t *)(const void *)posting->data;
        uint64_t bytes = call->counts[2 * n + r] * call->elem_bytes;
        const uint8_t *from = send_of(call, r, table[2 * group->rank + 1], bytes);
        if (from == NULL && bytes > 0) {
            return bad_address(call, r);
        }
        place(call->recv + call->counts[3 * n + r] * call->elem_bytes, from, bytes);
    }
    return WEFT_OK;
}

static weft_status_t move_gather(wefti_call_t *call)
{
    uint64_t bytes = call->count * call->elem_bytes;
    uint8_t *to = recv_of(call, call->root, call->group->rank * bytes, bytes);
    if (to == NULL) {
        return bad_address(call, call->root);
    }
    place(to, call->send, bytes);
    return WEFT_OK;
}

static weft_status_t move_scatter(wefti_call_t *call)
{
    uint64_t bytes = call->count * call->elem_bytes;
    const uint8_t *from = send_of(call, call->root, call->group->rank * bytes, bytes);
    if (from == NULL) {
        return bad_address(call, call->root);
    }
    place(call->recv, from, bytes);
    return WEFT_OK;
}

weft_status_t wefti_call_move(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint32_t n = group->size;
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return move_all_reduce(call);
    case WEFT_COLLECTIVE_REDUCE:
        return move_reduce(call);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return move_reduce_scatter(call, group->rank * call->count * call->elem_bytes, call->count);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return move_reduce_scatter(call, call->counts[n + group->rank] * call->elem_bytes,
                                   call->counts[group->rank]);
    case WEFT_COLLECTIVE_BROADCAST:
        return move_broadcast(call);
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return move_all_gather(call);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return move_all_to_all(call);
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return move_all_to_all_v(call);
    case WEFT_COLLECTIVE_GATHER:
        return move_gather(call);
    case WEFT_COLLECTIVE_SCATTER:
        return move_scatter(call);
    default:
        return wefti_error(WEFT_ERR_INTERNAL, "%s: not implemented by the direct path",
                           weft_collective_name(call->op));
    }
}
