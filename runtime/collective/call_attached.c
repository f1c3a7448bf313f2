/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving plain memory between processes in one copy, by cross-memory attach. Postings carry the
 * buffers' addresses in their own process. As in place (call_direct.c), posting says that the send
 * buffer is ready and the receive buffer may be written, and a call ends when all peers are done.
 * Copies go straight to where they belong; what is reduced is read, piece by piece, into this
 * rank's staging buffers, which stay in cache and which no rank reads during such a call.
 */
#include <string.h>

#include "runtime/group/attach.h"
#include "runtime/base/copy.h"
#include "runtime/base/error.h"
#include "runtime/collective/call.h"

#define LINE_BYTES 64u
#define NEVER UINT64_MAX
#define PIECE_MIN_BYTES ((size_t)8 << 10)
#define PIECE_MAX_BYTES ((size_t)128 << 10)

/*
 * Of what one rank moves at once, bytes from which on that pays: below, a system call and the
 * kernel's look at every page cost more than a second copy. Measured: two ranks on a core each;
 * four and eight on two cores, where what all ranks get alike is quicker out of one staged copy.
 */
static uint64_t least_bytes(const wefti_call_t *call, bool may_spin)
{
    const weft_group_t *group = call->group;
    bool pair = group->size == 2;
    uint64_t many = may_spin ? (uint64_t)512 << 10 : NEVER;
    if (group->context->settings.attach == WEFTI_ATTACH_ALWAYS) {
        return call->op == WEFT_COLLECTIVE_BARRIER ? NEVER : 0;
    }
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return pair ? 64u << 10 : many;
    case WEFT_COLLECTIVE_REDUCE:
        return pair ? 16u << 10 : many;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return pair ? 1u << 20 : many;
    case WEFT_COLLECTIVE_BROADCAST:
        return pair ? 8u << 10 : many;
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return pair ? 16u << 10 : many;
    case WEFT_COLLECTIVE_ALL_TO_ALL:
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
    case WEFT_COLLECTIVE_GATHER:
    case WEFT_COLLECTIVE_SCATTER:
        return pair ? 16u << 10 : 64u << 10;
    default:
        return NEVER;
    }
}

bool wefti_call_post_addresses(const wefti_call_t *call, wefti_posting_t *posting)
{
    const weft_group_t *group = call->group;
    wefti_addresses_t *addresses = wefti_posting_addresses(posting);
    if (!group->attach || (call->op == WEFT_COLLECTIVE_ALL_TO_ALL && call->send == call->recv) ||
        least_bytes(call, group->endpoint->may_spin) == NEVER) {
        return false;
    }
    addresses->send = (uint64_t)(uintptr_t)call->send;
    addresses->recv = (uint64_t)(uintptr_t)call->recv;
    return true;
}

static weft_status_t fetch(wefti_call_t *call, uint32_t rank, uint64_t from, void *to,
                           uint64_t bytes)
{
    wefti_posting_t *posting = wefti_posting_of(call->group, rank, call->number);
    uint64_t address = wefti_posting_addresses(posting)->send + from;
    return wefti_attach_move(call->group, rank, address, to, bytes, false);
}

static weft_status_t push(wefti_call_t *call, uint32_t rank, uint64_t to, const void *from,
                          uint64_t bytes)
{
    wefti_posting_t *posting = wefti_posting_of(call->group, rank, call->number);
    uint64_t address = wefti_posting_addresses(posting)->recv + to;
    return wefti_attach_move(call->group, rank, address, (void *)(uintptr_t)from, bytes, true);
}

/* Copies a block of rank's send buffer to this rank's memory. */
static weft_status_t take(wefti_call_t *call, uint32_t rank, uint64_t from, uint64_t to,
                          uint64_t bytes)
{
    if (rank != call->group->rank) {
        return fetch(call, rank, from, call->recv + to, bytes);
    }
    if (bytes > 0 && call->recv + to != call->send + from) {
        wefti_copy(call->recv + to, call->send + from, (size_t)bytes);
    }
    return WEFT_OK;
}

/* Bytes of each rank that are reduced at once: all of them fit this rank's staging buffers. */
static size_t reduced_piece_bytes(const weft_group_t *group)
{
    size_t piece = 2 * group->layout.staging_bytes / group->size / LINE_BYTES * LINE_BYTES;
    return piece < PIECE_MAX_BYTES ? piece : PIECE_MAX_BYTES;
}

/* Bytes [from, from + bytes) of all ranks' send buffers, a piece at most, to destination. */
static weft_status_t reduce_piece(wefti_call_t *call, uint64_t from, size_t bytes,
                                  void *destination)
{
    weft_group_t *group = call->group;
    uint8_t *room = (uint8_t *)group->channels[group->rank] + group->layout.staging;
    size_t piece_bytes = reduced_piece_bytes(group);
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 1; status == WEFT_OK && i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        group->calls->sources[r] = room + r * piece_bytes;
        status = fetch(call, r, from, room + r * piece_bytes, bytes);
    }
    if (status < 0) {
        return status;
    }
    group->calls->sources[group->rank] = call->send + from;
    group->calls->destinations[0] = destination;
    return wefti_call_reduce(call, 1, bytes / call->elem_bytes);
}

/* Every rank reduces its share and gives it to those who want it: all, or the root. */
static weft_status_t move_shared_reduction(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    bool all = call->op == WEFT_COLLECTIVE_ALL_REDUCE;
    bool keeps = all || group->rank == call->root;
    size_t piece_bytes = reduced_piece_bytes(group);
    uint8_t *spare =
        (uint8_t *)group->channels[group->rank] + group->layout.staging + group->rank * piece_bytes;
    uint64_t begin = 0, end = call->count;
    weft_status_t status = WEFT_OK;
    wefti_call_share(call, group->rank, &begin, &end);
    uint64_t last = end * call->elem_bytes;
    for (uint64_t at = begin * call->elem_bytes; status == WEFT_OK && at < last;
         at += piece_bytes) {
        size_t bytes = last - at < piece_bytes ? (size_t)(last - at) : piece_bytes;
        void *to = keeps ? call->recv + at : spare;
        status = reduce_piece(call, at, bytes, to);
        for (uint32_t i = 1; status == WEFT_OK && i < group->size; i++) {
            uint32_t r = wefti_group_nth_peer(group, i);
            if (all || r == call->root) {
                status = push(call, r, at, to, bytes);
            }
        }
    }
    return status;
}

static weft_status_t move_reduce_scatter(wefti_call_t *call, uint64_t from, uint64_t bytes)
{
    size_t piece_bytes = reduced_piece_bytes(call->group);
    weft_status_t status = WEFT_OK;
    for (uint64_t at = 0; status == WEFT_OK && at < bytes; at += piece_bytes) {
        size_t piece = bytes - at < piece_bytes ? (size_t)(bytes - at) : piece_bytes;
        status = reduce_piece(call, from + at, piece, call->recv + at);
    }
    return status;
}

/* Every rank takes its share from the root, and gives it to the others. */
static weft_status_t move_broadcast(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    uint64_t begin = 0, end = call->count;
    wefti_call_share(call, group->rank, &begin, &end);
    uint64_t at = begin * call->elem_bytes, bytes = (end - begin) * call->elem_bytes;
    weft_status_t status = take(call, call->root, at, at, bytes);
    for (uint32_t i = 1; status == WEFT_OK && i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        if (r != call->root) {
            status = push(call, r, at, call->recv + at, bytes);
        }
    }
    if (group->rank == call->root && call->recv != call->send) {
        memcpy(call->recv, call->send, (size_t)call->longest); /* the others' shares, too */
    }
    return status;
}

/* From rank's send buffer at from to this rank's receive buffer at to. */
typedef struct block {
    uint64_t from, to, bytes;
} block_t;

static block_t block_of(const wefti_call_t *call, uint32_t rank)
{
    const weft_group_t *group = call->group;
    uint32_t n = group->size;
    uint64_t bytes = call->count * call->elem_bytes;
    const uint64_t *expected = call->counts != NULL ? call->counts + 2 * n : NULL;
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_GATHER:
        return (block_t){0, rank * bytes, bytes};
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return (block_t){0, expected[n + rank] * call->elem_bytes,
                         expected[rank] * call->elem_bytes};
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return (block_t){group->rank * bytes, rank * bytes, bytes};
    default: { /* all-to-all-v */
        const wefti_posting_t *posting = wefti_posting_of(group, rank, call->number);
        const uint64_t *table = (const uint64_t *)(const void *)posting->data;
        return (block_t){table[2 * group->rank + 1], expected[n + rank] * call->elem_bytes,
                         expected[rank] * call->elem_bytes};
    }
    }
}

static weft_status_t move_blocks(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK && i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        block_t block = block_of(call, r);
        status = take(call, r, block.from, block.to, block.bytes);
    }
    return status;
}

/*
 * Gather and scatter: of a block between root and leaf the leaf moves all but one of size parts and
 * the root that one, so that both move as much as the other.
 */
static uint64_t part_of_leaf(const wefti_call_t *call, uint64_t bytes)
{
    return bytes - bytes / call->group->size / LINE_BYTES * LINE_BYTES;
}

static weft_status_t move_gather(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    uint64_t bytes = call->count * call->elem_bytes, part = part_of_leaf(call, bytes);
    if (group->rank != call->root) {
        return push(call, call->root, group->rank * bytes, call->send, part);
    }
    weft_status_t status = take(call, call->root, 0, group->rank * bytes, bytes);
    for (uint32_t i = 1; status == WEFT_OK && i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        status = take(call, r, part, r * bytes + part, bytes - part);
    }
    return status;
}

static weft_status_t move_scatter(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    uint64_t bytes = call->count * call->elem_bytes, part = part_of_leaf(call, bytes);
    if (group->rank != call->root) {
        return take(call, call->root, group->rank * bytes, 0, part);
    }
    weft_status_t status = take(call, call->root, group->rank * bytes, 0, bytes);
    for (uint32_t i = 1; status == WEFT_OK && i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        status = push(call, r, part, call->send + r * bytes + part, bytes - part);
    }
    return status;
}

static weft_status_t move(wefti_call_t *call)
{
    uint32_t n = call->group->size, rank = call->group->rank;
    uint64_t bytes = call->count * call->elem_bytes;
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE:
        return move_shared_reduction(call);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return move_reduce_scatter(call, rank * bytes, bytes);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return move_reduce_scatter(call, call->counts[n + rank] * call->elem_bytes,
                                   call->counts[rank] * call->elem_bytes);
    case WEFT_COLLECTIVE_BROADCAST:
        return move_broadcast(call);
    case WEFT_COLLECTIVE_GATHER:
        return move_gather(call);
    case WEFT_COLLECTIVE_SCATTER:
        return move_scatter(call);
    default:
        return move_blocks(call);
    }
}

static bool attached_takes(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    bool shared = wefti_collective_is_vector(call->op);
    uint64_t bytes = shared ? call->longest / group->size : call->longest;
    return (call->flags & WEFTI_POSTED_ATTACHABLE) != 0 && bytes >= least_bytes(call, true) &&
           (!wefti_collective_reduces(call->op) || reduced_piece_bytes(group) >= PIECE_MIN_BYTES);
}

static weft_status_t attached_start(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    weft_status_t status = move(call);
    if (status < 0) {
        return status;
    }
    wefti_signal_publish(&group->channels[group->rank]->done.signal, call->number);
    call->unsettled |= WEFTI_UNSETTLED_DONE;
    call->peer = 1;
    call->state = WEFTI_CALL_MOVING;
    return WEFT_OK;
}

static weft_status_t attached_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status =
        wefti_call_see_signals(call, offsetof(wefti_channel_t, done), call->number, out_blocked);
    if (status == WEFT_OK) {
        wefti_call_complete(call);
    }
    return status;
}

const wefti_path_t wefti_path_attached = {
    "attached",      attached_takes,         attached_start,          attached_advance,
    wefti_path_mesh, wefti_path_never_ready, wefti_path_lends_nothing};
