/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving data through memory that the group owns. Two areas per rank take turns: a rank fills one
 * for the second time only after all peers have published the round in between, so are done with
 * the first. Users' buffers are never touched by peers here. All parts of a round are staged before
 * any of it is taken, and blocks advance side by side, which is what lets calls be in place.
 */
#include <string.h>

#include "runtime/base/copy.h"
#include "runtime/base/error.h"
#include "runtime/collective/fused.h"

#define LINE_BYTES 64u
/* A reduction in two shots moves less where there are more ranks than two, but waits twice. */
#define TWO_SHOT_MIN_BYTES 32768u
#define PIPELINE_MIN_BYTES ((size_t)16 << 10)
#define PIPELINE_MAX_BYTES ((size_t)128 << 10)

/* Part of this rank's send or receive buffer. */
typedef struct block {
    uint64_t at, bytes;
} block_t;

/* One block for all peers, or one for each. */
static bool is_shared(const wefti_call_t *call)
{
    return wefti_call_op(call)->send.extent != WEFT_EXTENT_BLOCKS;
}

/* What this rank has for rank to. */
static block_t send_block(const wefti_call_t *call, uint32_t to)
{
    const weft_group_t *group = call->group;
    const wefti_collective_t *op = wefti_call_op(call);
    uint64_t bytes = call->count * call->elem_bytes;
    if (op->rooted && !wefti_side_is_on(op->send, group->rank == call->root)) {
        return (block_t){0, 0};
    }
    bool blocks = op->send.extent == WEFT_EXTENT_BLOCKS;
    if (op->variable) {
        uint32_t n = group->size;
        const uint64_t *counts = blocks ? call->counts + to : call->counts + 2 * n + group->rank;
        return (block_t){blocks ? counts[n] * call->elem_bytes : 0, counts[0] * call->elem_bytes};
    }
    return (block_t){blocks ? to * bytes : 0, bytes};
}

/* Where what comes from rank from goes. */
static block_t recv_block(const wefti_call_t *call, uint32_t from)
{
    const weft_group_t *group = call->group;
    const wefti_collective_t *op = wefti_call_op(call);
    uint64_t bytes = call->count * call->elem_bytes;
    if (op->rooted && (!wefti_side_is_on(op->send, from == call->root) ||
                       !wefti_side_is_on(op->recv, group->rank == call->root))) {
        return (block_t){0, 0};
    }
    bool blocks = op->recv.extent == WEFT_EXTENT_BLOCKS;
    if (op->variable && blocks) {
        const uint64_t *counts = call->counts + 2 * group->size + from;
        return (block_t){counts[group->size] * call->elem_bytes, counts[0] * call->elem_bytes};
    }
    return (block_t){blocks ? from * bytes : 0, bytes};
}

static uint64_t piece_at(uint64_t bytes, uint64_t at, size_t piece_bytes)
{
    return at >= bytes ? 0 : bytes - at < piece_bytes ? bytes - at : piece_bytes;
}

static void copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (bytes > 0 && to != from) {
        wefti_copy(to, from, (size_t)bytes);
    }
}

void wefti_call_measure(wefti_call_t *call)
{
    uint32_t n = call->group->size;
    call->longest = call->count;
    if (wefti_call_op(call)->variable) {
        const uint64_t *counts = wefti_shared_counts(call->op, n, call->counts);
        for (uint32_t r = 0; r < n; r++) {
            call->longest = counts[r] > call->longest ? counts[r] : call->longest;
        }
    }
    call->longest *= call->elem_bytes;
    uint64_t blocks = is_shared(call) ? 1 : n;
    call->area_bytes =
        call->longest > WEFTI_POSTING_DATA ? SIZE_MAX : (size_t)(blocks * call->longest);
}

bool wefti_call_fits_posting(const wefti_call_t *call)
{
    return call->area_bytes <= WEFTI_POSTING_DATA - wefti_fused_list_bytes(call) &&
           call->op != WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

bool wefti_call_stages_two_shots(const wefti_call_t *call)
{
    return call->op == WEFT_COLLECTIVE_ALL_REDUCE && call->group->size > 2 &&
           call->longest >= TWO_SHOT_MIN_BYTES;
}

weft_status_t wefti_call_plan_rounds(wefti_call_t *call)
{
    uint32_t n = call->group->size;
    size_t room = call->group->layout.staging_bytes;
    call->ends.lead = call->ends.trail = 0;
    call->staged.two_shot = wefti_call_stages_two_shots(call);
    if (!is_shared(call) || call->staged.two_shot) {
        room /= n;
    }
    if (wefti_call_op(call)->send.holder == WEFT_HOLDER_ROOT) {
        /* One way only: in pieces, the root fills one half while the others empty the other. */
        size_t piece =
            call->longest / 2 < PIPELINE_MAX_BYTES ? (size_t)call->longest / 2 : PIPELINE_MAX_BYTES;
        piece = wefti_align_up(piece > PIPELINE_MIN_BYTES ? piece : PIPELINE_MIN_BYTES, LINE_BYTES);
        room = piece < room ? piece : room;
    }
    call->staged.piece_bytes = room / LINE_BYTES * LINE_BYTES;
    if (call->staged.piece_bytes == 0) {
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "staging buffers too small for %u ranks: %zu bytes; increase WEFT_STAGING_BYTES", n,
            call->group->layout.staging_bytes);
    }
    uint64_t per_round =
        call->staged.two_shot ? n * (uint64_t)call->staged.piece_bytes : call->staged.piece_bytes;
    call->staged.rounds = call->longest / per_round + (call->longest % per_round != 0);
    return WEFT_OK;
}

/* Two-shot: rank owner's shard of the round at hand. */
static uint64_t shard(const wefti_call_t *call, uint32_t owner, uint64_t *out_bytes)
{
    uint64_t at = (call->staged.round * call->group->size + owner) * call->staged.piece_bytes;
    *out_bytes = piece_at(call->longest, at, call->staged.piece_bytes);
    return at;
}

void wefti_call_stage(const wefti_call_t *call, uint8_t *area, uint64_t round, size_t piece_bytes)
{
    const weft_group_t *group = call->group;
    uint64_t at = round * piece_bytes;
    if (group->size == 1) {
        return;
    }
    if (is_shared(call) && !call->staged.two_shot) {
        block_t block = send_block(call, group->rank);
        copy(area, call->send + block.at + at, piece_at(block.bytes, at, piece_bytes));
        return;
    }
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t to = (group->rank + i) % group->size;
        uint64_t bytes;
        if (call->staged.two_shot) {
            at = shard(call, to, &bytes);
            copy(area + to * piece_bytes, call->send + at, bytes);
        } else {
            block_t block = send_block(call, to);
            bytes = piece_at(block.bytes, at, piece_bytes);
            copy(area + to * piece_bytes, call->send + block.at + at, bytes);
        }
    }
}

static weft_status_t take_reduced(wefti_call_t *call, wefti_area_fn area, uint64_t at,
                                  size_t piece_bytes)
{
    weft_group_t *group = call->group;
    if (!wefti_side_is_on(wefti_call_op(call)->recv, group->rank == call->root)) {
        return WEFT_OK;
    }
    block_t own = send_block(call, group->rank);
    uint64_t bytes = piece_at(own.bytes, at, piece_bytes);
    if (bytes == 0) {
        return WEFT_OK;
    }
    size_t skip = is_shared(call) ? 0 : group->rank * piece_bytes;
    for (uint32_t r = 0; r < group->size; r++) {
        group->calls->sources[r] =
            r == group->rank ? call->send + own.at + at : area(call, r) + skip;
    }
    group->calls->destinations[0] = call->recv + at;
    return wefti_call_reduce(call, 1, bytes / call->elem_bytes);
}

weft_status_t wefti_call_take(wefti_call_t *call, wefti_area_fn area, uint64_t round,
                              size_t piece_bytes)
{
    const weft_group_t *group = call->group;
    uint64_t at = round * piece_bytes;
    if (wefti_call_op(call)->reduces) {
        return take_reduced(call, area, at, piece_bytes);
    }
    size_t skip = is_shared(call) ? 0 : group->rank * piece_bytes;
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t from = (group->rank + i) % group->size;
        block_t to = recv_block(call, from);
        uint64_t bytes = piece_at(to.bytes, at, piece_bytes);
        if (bytes > 0) {
            const uint8_t *source = i == 0 ? call->send + send_block(call, group->rank).at + at
                                           : area(call, from) + skip;
            copy(call->recv + to.at + at, source, bytes);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_call_reduce_shard(wefti_call_t *call, wefti_area_fn area)
{
    weft_group_t *group = call->group;
    uint64_t bytes;
    uint64_t at = shard(call, group->rank, &bytes);
    size_t skip = group->rank * call->staged.piece_bytes;
    if (bytes == 0) {
        return WEFT_OK;
    }
    for (uint32_t r = 0; r < group->size; r++) {
        group->calls->sources[r] = r == group->rank ? call->send + at : area(call, r) + skip;
    }
    group->calls->destinations[0] = call->recv + at;
    group->calls->destinations[1] = wefti_staging_of(group, group->rank) + skip;
    return wefti_call_reduce(call, 2, bytes / call->elem_bytes);
}

void wefti_call_take_results(wefti_call_t *call, wefti_area_fn area)
{
    const weft_group_t *group = call->group;
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t from = (group->rank + i) % group->size;
        uint64_t bytes;
        uint64_t at = shard(call, from, &bytes);
        copy(call->recv + at, area(call, from) + from * call->staged.piece_bytes, bytes);
    }
}

void wefti_call_stage_ends(const wefti_call_t *call, uint8_t *area)
{
    uint64_t lead = call->ends.lead * call->elem_bytes, trail = call->ends.trail * call->elem_bytes;
    copy(area, call->send, lead);
    copy(area + lead, call->send + call->longest - trail, trail);
}

weft_status_t wefti_call_take_ends(wefti_call_t *call, wefti_area_fn area)
{
    weft_group_t *group = call->group;
    uint64_t lead = call->ends.lead * call->elem_bytes, trail = call->ends.trail * call->elem_bytes;
    weft_status_t status = WEFT_OK;
    for (uint32_t end = 0; status == WEFT_OK && end < 2; end++) {
        uint64_t at = end == 0 ? 0 : call->longest - trail;
        for (uint32_t r = 0; r < group->size; r++) {
            group->calls->sources[r] =
                r == group->rank ? call->send + at : area(call, r) + (end == 0 ? 0 : lead);
        }
        group->calls->destinations[0] = call->recv + at;
        status = wefti_call_reduce(call, 1, (end == 0 ? lead : trail) / call->elem_bytes);
    }
    return status;
}
