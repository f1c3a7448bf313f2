/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path attached: moving plain memory between processes in one copy, by cross-memory attach. Call
 * slots carry the addresses of buffers in their own process. As on path direct, a published slot
 * means that the send buffer is ready and the receive buffer may be written, and a call ends when
 * all peers are done. Copies go straight to where they belong; what is reduced is read, piece by
 * piece, into this rank's staging buffers, which stay in cache and which no rank reads during such
 * a call.
 */
#include "runtime/base/error.h"
#include "runtime/collective/call_move.h"
#include "runtime/group/attach.h"

#define LINE_BYTES 64u
#define PIECE_MIN_BYTES ((size_t)8 << 10)
#define PIECE_MAX_BYTES ((size_t)128 << 10)

bool wefti_call_post_addresses(const wefti_call_t *call, wefti_call_slot_t *slot)
{
    const weft_group_t *group = call->group;
    wefti_addresses_t *addresses = wefti_call_slot_addresses(slot);
    if (!group->attach || call->own || call->request.op == WEFT_COLLECTIVE_BARRIER ||
        (call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL &&
         call->request.send == call->request.recv)) {
        return false;
    }
    if (group->context->settings.attach != WEFTI_ATTACH_ALWAYS && !wefti_call_wants_attach(call)) {
        return false;
    }
    addresses->send = (uint64_t)(uintptr_t)call->request.send;
    addresses->recv = (uint64_t)(uintptr_t)call->request.recv;
    return true;
}

static weft_status_t fetch(wefti_call_t *call, uint32_t rank, uint64_t from, void *to,
                           uint64_t bytes)
{
    wefti_call_slot_t *slot = wefti_call_slot_of(call->group, rank, call->number);
    uint64_t address = wefti_call_slot_addresses(slot)->send + from;
    return wefti_attach_move(call->group, rank, address, to, bytes, false);
}

static weft_status_t push(wefti_call_t *call, uint32_t rank, uint64_t to, const void *from,
                          uint64_t bytes)
{
    wefti_call_slot_t *slot = wefti_call_slot_of(call->group, rank, call->number);
    uint64_t address = wefti_call_slot_addresses(slot)->recv + to;
    return wefti_attach_move(call->group, rank, address, (void *)(uintptr_t)from, bytes, true);
}

/* Two staging halves: no rank reads them during such a call. */
static uint8_t *own_staging(const weft_group_t *group)
{
    return wefti_group_staging(group, group->rank);
}

/* Bytes of each rank that are reduced at once: all of them fit this rank's staging buffers. */
static size_t reduced_piece_bytes(const weft_group_t *group)
{
    size_t piece = 2 * group->staging.half_bytes / group->size / LINE_BYTES * LINE_BYTES;
    return piece < PIECE_MAX_BYTES ? piece : PIECE_MAX_BYTES;
}

/* A piece at most. */
static weft_status_t reduce_piece(wefti_call_t *call, uint64_t from, uint64_t bytes, void *to)
{
    weft_group_t *group = call->group;
    size_t piece_bytes = reduced_piece_bytes(group);
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        uint8_t *room = own_staging(group) + r * piece_bytes;
        group->calls->sources[r] = room;
        WEFT_RETURN_IF_ERROR(fetch(call, r, from, room, bytes));
    }
    group->calls->sources[group->rank] = call->request.send + from;
    group->calls->destinations[0] = to;
    return wefti_call_reduce(call, 1, bytes);
}

static weft_status_t reduce(wefti_call_t *call, uint64_t from, uint64_t bytes, void *to)
{
    size_t piece_bytes = reduced_piece_bytes(call->group);
    for (uint64_t at = 0; at < bytes; at += piece_bytes) {
        uint64_t piece = bytes - at < piece_bytes ? bytes - at : piece_bytes;
        WEFT_RETURN_IF_ERROR(reduce_piece(call, from + at, piece, (uint8_t *)to + at));
    }
    return WEFT_OK;
}

static const wefti_access_t access = {fetch, push, reduce, true};

/* All-reduce and reduce: every rank reduces its share and gives it to all, or to the root. */
static weft_status_t reduce_share(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    bool all = call->request.op == WEFT_COLLECTIVE_ALL_REDUCE;
    bool keeps = all || group->rank == call->request.root;
    size_t piece_bytes = reduced_piece_bytes(group);
    uint8_t *spare = own_staging(group) + group->rank * piece_bytes;
    wefti_block_t share = wefti_call_share(call, group->rank);
    uint64_t last = share.at + share.bytes;
    for (uint64_t at = share.at; at < last; at += piece_bytes) {
        uint64_t bytes = last - at < piece_bytes ? last - at : piece_bytes;
        void *to = keeps ? call->request.recv + at : spare;
        WEFT_RETURN_IF_ERROR(reduce_piece(call, at, bytes, to));
        for (uint32_t i = 1; i < group->size; i++) {
            uint32_t r = wefti_group_nth_peer(group, i);
            if (all || r == call->request.root) {
                WEFT_RETURN_IF_ERROR(push(call, r, at, to, bytes));
            }
        }
    }
    return WEFT_OK;
}

/* Every rank takes its share from the root, and gives it to the others. */
static weft_status_t broadcast(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    uint32_t root = call->request.root;
    wefti_block_t share = wefti_call_share(call, group->rank);
    WEFT_RETURN_IF_ERROR(wefti_call_take_block(call, &access, root, share.at, share));
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        if (r != root) {
            WEFT_RETURN_IF_ERROR(
                push(call, r, share.at, call->request.recv + share.at, share.bytes));
        }
    }
    if (group->rank == root) { /* the shares of the others also */
        wefti_call_copy(call->request.recv, call->request.send, call->longest);
    }
    return WEFT_OK;
}

static weft_status_t move(wefti_call_t *call)
{
    switch (call->request.op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE:
        return reduce_share(call);
    case WEFT_COLLECTIVE_BROADCAST:
        return broadcast(call);
    default:
        return wefti_call_move_blocks(call, &access);
    }
}

static bool takes(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    return (call->flags & WEFTI_POSTED_ATTACHABLE) != 0 &&
           (!wefti_collective_reduces(call->request.op) ||
            reduced_piece_bytes(group) >= PIECE_MIN_BYTES);
}

static weft_status_t start(wefti_call_t *call)
{
    call->ends.lead = call->ends.trail = 0;
    if (wefti_collective_reduces(call->request.op)) {
        WEFT_RETURN_IF_ERROR(wefti_group_commit_work(
            call->group, call->group->size * reduced_piece_bytes(call->group)));
    }
    WEFT_RETURN_IF_ERROR(move(call));
    wefti_call_publish_done(call);
    call->peer = 1;
    call->state = WEFTI_CALL_MOVING;
    return WEFT_OK;
}

const wefti_path_t wefti_path_attached = {"attached", takes, start, wefti_call_await_done};
