/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WEFT_CHECK=results: after a call, ranks post what its result can be compared with. For finding
 * memory that somebody else writes to, or a machine that computes wrongly.
 *
 *   EQUAL     all ranks have the same result     digests of pieces of it
 *   MOVED     blocks go from rank to rank        a digest of each block, taken before it was sent
 *   REDUCED   each rank reduces another part     a window of each part, taken before the call; the
 *                                                rank that has the part reduces the window again
 *
 * Digests go to all ranks, also in a hosted group: it opens all links then.
 *
 * The window is elsewhere in every call. What is taken before a call is kept beside the ring.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_move.h"
#include "runtime/collective/call_steps.h"
#include "runtime/group/mirror.h"

#define WORDS ((uint64_t)(WEFTI_SLOT_DATA / sizeof(uint64_t)))

static wefti_check_t check_of(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    const wefti_collective_t *op = wefti_collective_of(call->request.op);
    if (op->send.extent == WEFT_EXTENT_NOTHING) {
        return WEFTI_CHECK_EMPTY;
    }
    bool fits = group->size <= WORDS;
    if (op->recv.holder == WEFT_HOLDER_ALL && op->send.extent != WEFT_EXTENT_BLOCKS) {
        return fits || !op->variable ? WEFTI_CHECK_EQUAL : WEFTI_CHECK_EMPTY;
    }
    if (!fits || group->size == 1) {
        return WEFTI_CHECK_EMPTY;
    }
    return op->reduces ? WEFTI_CHECK_REDUCED : WEFTI_CHECK_MOVED;
}

/* Whose turn it is follows from the count of calls alone: not from order, which also counts the
 * sends and receives of this rank, nor from arguments, which may be wrong here only. */
wefti_check_t wefti_call_choose_check(const wefti_call_t *call)
{
    uint32_t every = call->group->context->settings.check_every;
    return every == 0 || ++call->group->calls->turns % every != 0 ? WEFTI_CHECK_NOTHING
                                                                  : check_of(call);
}

/* ---- what is compared ---- */

/* EQUAL: elements [*out_first, *out_first + *out_count) of the result are piece number index. */
static uint64_t piece(const wefti_call_t *call, uint64_t index, uint64_t *out_first,
                      uint64_t *out_count)
{
    uint32_t n = call->group->size;
    if (wefti_collective_is_variable(call->request.op)) {
        *out_count = index < n ? call->counts[2 * n + index] : 0;
        *out_first = index < n ? call->counts[3 * n + index] : 0;
        return n;
    }
    uint64_t total =
        wefti_collective_gathers(call->request.op) ? call->request.count * n : call->request.count;
    uint64_t each = (total + WORDS - 1) / WORDS;
    each = each > 64 ? each : 64;
    *out_first = index * each < total ? index * each : total;
    *out_count = total - *out_first < each ? total - *out_first : each;
    return (total + each - 1) / each;
}

static bool is_whole(const wefti_call_t *call) /* REDUCED: one rank has all of it */
{
    return wefti_collective_is_vector(call->request.op);
}

/* REDUCED: bytes of a call slot for the window of one part. */
static size_t room(const wefti_call_t *call)
{
    return is_whole(call) ? WEFTI_SLOT_DATA : WEFTI_SLOT_DATA / call->group->size / 8 * 8;
}

/* REDUCED: the window of a part. number: the call's own, not that of its check. */
static wefti_block_t window(const wefti_call_t *call, wefti_block_t part, uint32_t number)
{
    uint64_t elems = part.bytes / call->elem_bytes, most = room(call) / call->elem_bytes;
    uint64_t count = elems < most ? elems : most;
    uint64_t first = wefti_hash_word(WEFTI_HASH_START, number) % (elems - count + 1);
    return (wefti_block_t){part.at + first * call->elem_bytes, count * call->elem_bytes};
}

/* ---- before the call ---- */

static uint8_t *kept(const wefti_call_t *call)
{
    const wefti_calls_t *calls = call->group->calls;
    return calls->kept + (size_t)(call - calls->ring) * WEFTI_SLOT_DATA;
}

static void keep_digests(const wefti_call_t *call, uint64_t *digests)
{
    bool blocks = wefti_call_op(call)->send.extent == WEFT_EXTENT_BLOCKS;
    for (uint32_t to = 0; to < call->group->size; to++) {
        wefti_block_t block = wefti_call_send_block(call, to);
        digests[to] =
            block.bytes == 0 ? 0
            : to == 0 || blocks
                ? wefti_hash_memory(WEFTI_HASH_START, call->request.send + block.at, block.bytes)
                : digests[0];
    }
}

void wefti_call_keep_for_check(const wefti_call_t *call)
{
    uint8_t *to = kept(call);
    if (call->check == WEFTI_CHECK_MOVED) {
        keep_digests(call, (uint64_t *)(void *)to);
    } else if (call->check == WEFTI_CHECK_REDUCED) {
        uint32_t parts = is_whole(call) ? 1 : call->group->size;
        for (uint32_t owner = 0; owner < parts; owner++, to += room(call)) {
            wefti_block_t part = window(call, wefti_call_send_block(call, owner), call->number);
            if (part.bytes > 0) {
                memcpy(to, call->request.send + part.at, (size_t)part.bytes);
            }
        }
    }
}

/* ---- after the call ---- */

static void publish(wefti_call_t *call, wefti_call_slot_t *own, size_t bytes)
{
    own->what = call->what;
    own->count = call->posted_count;
    wefti_call_slot_publish(call->group, own, call->number, bytes);
}

void wefti_call_skip_check(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_deferred_t *deferred = &group->calls->deferred;
    if (!deferred->open) { /* all call slots were read */
        *deferred = (wefti_deferred_t){.open = true,
                                       .number = call->number,
                                       .peer = group->size,
                                       .what = call->what,
                                       .count = call->posted_count};
    }
    deferred->follows = true;
    call->check = WEFTI_CHECK_EMPTY;
    call->state = WEFTI_CALL_DONE;
}

void wefti_call_post_check(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, call->number);
    size_t bytes = WEFTI_SLOT_DATA;
    if (call->check == WEFTI_CHECK_EQUAL) {
        uint64_t *digests = (uint64_t *)(void *)own->data;
        uint64_t first, count, pieces = piece(call, 0, &first, &count);
        for (uint64_t i = 0; i < pieces; i++) {
            piece(call, i, &first, &count);
            const uint8_t *at =
                count > 0 ? call->request.recv + first * call->elem_bytes : own->data;
            digests[i] = wefti_hash_memory(WEFTI_HASH_START, at, count * call->elem_bytes);
        }
        bytes = (size_t)pieces * sizeof *digests;
    } else {
        bytes = call->check == WEFTI_CHECK_MOVED ? group->size * sizeof(uint64_t) : bytes;
        memcpy(own->data, kept(call), bytes);
    }
    publish(call, own, bytes);
}

static const uint8_t *posted_by(const wefti_call_t *call, uint32_t rank)
{
    return wefti_call_slot_of(call->group, rank, call->number)->data;
}

static const char *call_text(const wefti_call_t *call, char text[200])
{
    char what[160];
    snprintf(text, 200, "call %u of the group, %s", call->order,
             wefti_what_text(call->what, call->posted_count, what));
    return text;
}

static weft_status_t compare_equal(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    const uint64_t *own = (const uint64_t *)(const void *)posted_by(call, group->rank);
    for (uint32_t k = 1; k < group->size; k++) {
        uint32_t peer = wefti_group_nth_peer(group, k);
        const uint64_t *theirs = (const uint64_t *)(const void *)posted_by(call, peer);
        uint64_t first, count, pieces = piece(call, 0, &first, &count);
        for (uint64_t i = 0; i < pieces; i++) {
            if (own[i] != theirs[i]) {
                uint32_t low = group->rank < peer ? group->rank : peer;
                char text[200];
                piece(call, i, &first, &count);
                return wefti_error(WEFT_ERR_MISMATCH,
                                   "%s: results of ranks %u and %u differ in elements %llu to %llu",
                                   call_text(call, text), low, group->rank + peer - low,
                                   (unsigned long long)first,
                                   (unsigned long long)(first + count - 1));
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t compare_moved(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    for (uint32_t from = 0; from < group->size; from++) {
        wefti_block_t block = wefti_call_recv_block(call, from);
        const uint64_t *sent = (const uint64_t *)(const void *)posted_by(call, from);
        if (block.bytes > 0 && wefti_hash_memory(WEFTI_HASH_START, call->request.recv + block.at,
                                                 block.bytes) != sent[group->rank]) {
            char text[200];
            uint64_t first = block.at / call->elem_bytes;
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "%s: elements %llu to %llu of rank %u's result are not what rank %u sent",
                call_text(call, text), (unsigned long long)first,
                (unsigned long long)(first + block.bytes / call->elem_bytes - 1), group->rank,
                from);
        }
    }
    return WEFT_OK;
}

static weft_status_t compare_reduced(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    if (!wefti_side_is_on(wefti_call_op(call)->recv, group->rank == call->request.root)) {
        return WEFT_OK;
    }
    wefti_block_t part = wefti_call_send_block(call, group->rank);
    wefti_block_t compared = window(call, part, call->number - 1);
    size_t at = is_whole(call) ? 0 : group->rank * room(call);
    for (uint32_t r = 0; r < group->size; r++) {
        group->calls->sources[r] = posted_by(call, r) + at;
    }
    const weft_reduce_t reduce = {.sources = group->calls->sources,
                                  .source_count = group->size,
                                  .elem_count = compared.bytes / call->elem_bytes,
                                  .dtype = call->request.dtype,
                                  .reduction = call->request.reduction};
    const uint8_t *result = call->request.recv + (compared.at - part.at);
    const wefti_selection_t *selection = &group->calls->selection;
    bool any_order = selection->params.order == WEFT_ORDER_ANY || !selection->executors_reduce;
    uint64_t first;
    WEFT_RETURN_IF_ERROR(wefti_reduce_compare(&reduce, result, any_order, &first));
    if (first < reduce.elem_count) {
        char text[200];
        return wefti_error(
            WEFT_ERR_MISMATCH,
            "%s: element %llu of rank %u's result is not the reduction of what ranks sent",
            call_text(call, text),
            (unsigned long long)((compared.at - part.at) / call->elem_bytes + first), group->rank);
    }
    return WEFT_OK;
}

weft_status_t wefti_call_compare(wefti_call_t *call)
{
    switch (call->check) {
    case WEFTI_CHECK_EQUAL:
        return compare_equal(call);
    case WEFTI_CHECK_MOVED:
        return compare_moved(call);
    case WEFTI_CHECK_REDUCED:
        return compare_reduced(call);
    default:
        return WEFT_OK;
    }
}
