/* SPDX-License-Identifier: Apache-2.0 */
/* What the paths share: blocks and shares of a call, reductions, waiting for peers. */
#include "runtime/collective/call_move.h"

#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "runtime/collective/call_steps.h"

#define LINE_BYTES 64u

/* ---- blocks ---- */

wefti_block_t wefti_call_send_block(const wefti_call_t *call, uint32_t to)
{
    const weft_group_t *group = call->group;
    const wefti_collective_t *op = wefti_call_op(call);
    uint64_t bytes = call->request.count * call->elem_bytes;
    if (op->rooted && !wefti_side_is_on(op->send, group->rank == call->request.root)) {
        return (wefti_block_t){0, 0};
    }
    bool blocks = op->send.extent == WEFT_EXTENT_BLOCKS;
    if (op->variable) {
        uint32_t n = group->size;
        const uint64_t *counts = blocks ? call->counts + to : call->counts + 2 * n + group->rank;
        return (wefti_block_t){blocks ? counts[n] * call->elem_bytes : 0,
                               counts[0] * call->elem_bytes};
    }
    return (wefti_block_t){blocks ? to * bytes : 0, bytes};
}

wefti_block_t wefti_call_recv_block(const wefti_call_t *call, uint32_t from)
{
    const weft_group_t *group = call->group;
    const wefti_collective_t *op = wefti_call_op(call);
    uint64_t bytes = call->request.count * call->elem_bytes;
    if (op->rooted && (!wefti_side_is_on(op->send, from == call->request.root) ||
                       !wefti_side_is_on(op->recv, group->rank == call->request.root))) {
        return (wefti_block_t){0, 0};
    }
    bool blocks = op->recv.extent == WEFT_EXTENT_BLOCKS;
    if (op->variable && blocks) {
        const uint64_t *counts = call->counts + 2 * group->size + from;
        return (wefti_block_t){counts[group->size] * call->elem_bytes,
                               counts[0] * call->elem_bytes};
    }
    return (wefti_block_t){blocks ? from * bytes : 0, bytes};
}

wefti_block_t wefti_call_share(const wefti_call_t *call, uint32_t rank)
{
    uint32_t n = call->group->size;
    uint64_t at = call->ends.lead * call->elem_bytes;
    uint64_t end = (call->request.count - call->ends.trail) * call->elem_bytes;
    uint64_t lines = (end - at + LINE_BYTES - 1) / LINE_BYTES;
    uint64_t each = (lines + n - 1) / n * LINE_BYTES;
    at += each * rank;
    at = at < end ? at : end;
    return (wefti_block_t){at, end - at < each ? end - at : each};
}

/* ---- reductions ---- */

weft_status_t wefti_call_reduce(wefti_call_t *call, uint32_t destination_count, uint64_t bytes)
{
    const weft_group_t *group = call->group;
    const wefti_calls_t *calls = group->calls;
    weft_reduce_t args = {
        .sources = calls->sources,
        .source_count = group->size,
        .destinations = calls->destinations,
        .destination_count = destination_count,
        .elem_count = bytes >> __builtin_ctz(call->elem_bytes),
        .dtype = call->request.dtype,
        .reduction = call->request.reduction,
    };
    return wefti_reduce(&args, group->context->settings.isa);
}

/* ---- waiting, the end ---- */

weft_status_t wefti_call_see_signals(wefti_call_t *call, size_t signal_offset, uint32_t target,
                                     wefti_awaits_fn awaits, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    for (; call->peer < group->size; call->peer++) {
        uint32_t r = wefti_group_nth_peer(group, call->peer);
        wefti_signal_t *signal =
            (wefti_signal_t *)(void *)((uint8_t *)group->channels[r] + signal_offset);
        if ((awaits == NULL || awaits(call, r)) &&
            !wefti_signal_comes_soon(group->endpoint, signal, target)) {
            return wefti_call_blocked_on(signal, target, out_blocked);
        }
    }
    return WEFT_OK;
}

void wefti_call_publish_done(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_signal_publish(&group->channels[group->rank]->done.signal, call->number);
    call->unsettled |= WEFTI_UNSETTLED_DONE;
}

void wefti_call_complete(wefti_call_t *call)
{
    wefti_timed_t *timed = &call->group->calls->timed;
    if (timed->trial != NULL) {
        wefti_timed_end(timed);
    }
    call->state = wefti_call_is_checked(call) ? WEFTI_CALL_CHECK : WEFTI_CALL_DONE;
}

weft_status_t wefti_call_await_done(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status = wefti_call_see_signals(call, offsetof(wefti_channel_t, done),
                                                  call->number, NULL, out_blocked);
    if (status == WEFT_OK) {
        wefti_call_complete(call);
    }
    return status;
}

/* ---- blocks of peers that are reached ---- */

weft_status_t wefti_call_take_block(wefti_call_t *call, const wefti_access_t *access, uint32_t rank,
                                    uint64_t from, wefti_block_t to)
{
    if (to.bytes == 0) {
        return WEFT_OK;
    }
    if (rank != call->group->rank) {
        return access->fetch(call, rank, from, call->request.recv + to.at, to.bytes);
    }
    wefti_call_copy(call->request.recv + to.at, call->request.send + from, to.bytes);
    return WEFT_OK;
}

/* Where rank's block for this rank begins in rank's send buffer. */
static uint64_t place_of(const wefti_call_t *call, uint32_t rank)
{
    uint32_t own = call->group->rank;
    if (call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        return wefti_call_table(call, rank)[2 * own + 1];
    }
    return wefti_collective_exchanges(call->request.op)
               ? own * call->request.count * call->elem_bytes
               : 0;
}

static weft_status_t take_blocks(wefti_call_t *call, const wefti_access_t *access)
{
    for (uint32_t i = 0; i < call->group->size; i++) {
        uint32_t r = wefti_group_nth_peer(call->group, i);
        WEFT_RETURN_IF_ERROR(wefti_call_take_block(call, access, r, place_of(call, r),
                                                   wefti_call_recv_block(call, r)));
    }
    return WEFT_OK;
}

/* Gather and scatter: the leaf moves the begin of the block between it and the root. */
static uint64_t part_of_leaf(const wefti_call_t *call, const wefti_access_t *access)
{
    uint64_t bytes = call->request.count * call->elem_bytes;
    return access->root_moves ? bytes - bytes / call->group->size / LINE_BYTES * LINE_BYTES : bytes;
}

static weft_status_t move_gather(wefti_call_t *call, const wefti_access_t *access)
{
    const weft_group_t *group = call->group;
    uint32_t root = call->request.root;
    uint64_t bytes = call->request.count * call->elem_bytes, part = part_of_leaf(call, access);
    if (group->rank != root) {
        return access->push(call, root, group->rank * bytes, call->request.send, part);
    }
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        uint64_t from = i == 0 ? 0 : part;
        wefti_block_t to = {r * bytes + from, bytes - from};
        WEFT_RETURN_IF_ERROR(wefti_call_take_block(call, access, r, from, to));
    }
    return WEFT_OK;
}

static weft_status_t move_scatter(wefti_call_t *call, const wefti_access_t *access)
{
    const weft_group_t *group = call->group;
    uint32_t root = call->request.root;
    uint64_t bytes = call->request.count * call->elem_bytes, part = part_of_leaf(call, access);
    wefti_block_t own = {0, group->rank == root ? bytes : part};
    WEFT_RETURN_IF_ERROR(wefti_call_take_block(call, access, root, group->rank * bytes, own));
    for (uint32_t i = 1; group->rank == root && part < bytes && i < group->size; i++) {
        uint32_t r = wefti_group_nth_peer(group, i);
        WEFT_RETURN_IF_ERROR(
            access->push(call, r, part, call->request.send + r * bytes + part, bytes - part));
    }
    return WEFT_OK;
}

weft_status_t wefti_call_move_blocks(wefti_call_t *call, const wefti_access_t *access)
{
    wefti_block_t block;
    switch (call->request.op) {
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        block = wefti_call_send_block(call, call->group->rank);
        return access->reduce(call, block.at, block.bytes, call->request.recv);
    case WEFT_COLLECTIVE_GATHER:
        return move_gather(call, access);
    case WEFT_COLLECTIVE_SCATTER:
        return move_scatter(call, access);
    default:
        return take_blocks(call, access);
    }
}
