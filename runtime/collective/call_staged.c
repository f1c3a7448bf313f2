/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving data through memory that the group owns.
 *
 *   path posting  it came with the call slots
 *   path staged   anything else: through the staging buffers, round after round
 *
 * The areas of a rank hold what it shows its peers of one round: of its one block the same piece to
 * all, or for each peer a piece of that peer's block. A call slot is one round. Two staging areas
 * take turns: a rank fills one for the second time only after all peers have published the round in
 * between, so are done with the first. Users' buffers are never touched by peers here. All parts of
 * a round are staged before any of it is taken, and blocks advance side by side, which is what lets
 * calls be in place.
 */
#include "runtime/base/error.h"
#include "runtime/collective/call_move.h"
#include "runtime/collective/fused.h"

#define LINE_BYTES 64u
/* A reduction in two shots moves less where there are more ranks than two, but waits twice. */
#define TWO_SHOT_MIN_BYTES 32768u
#define PIPELINE_MIN_BYTES ((size_t)16 << 10)
#define PIPELINE_MAX_BYTES ((size_t)128 << 10)

/* One block for all peers, or one for each. */
static bool is_shared(const wefti_call_t *call)
{
    return wefti_call_op(call)->send.extent != WEFT_EXTENT_BLOCKS;
}

static uint64_t piece_at(uint64_t bytes, uint64_t at, size_t piece_bytes)
{
    return at >= bytes ? 0 : bytes - at < piece_bytes ? bytes - at : piece_bytes;
}

bool wefti_call_fits_posting(const wefti_call_t *call)
{
    return call->area_bytes <= WEFTI_SLOT_DATA - wefti_fused_list_bytes(call) &&
           call->request.op != WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

bool wefti_call_stages_two_shots(const wefti_call_t *call)
{
    return call->request.op == WEFT_COLLECTIVE_ALL_REDUCE && call->group->size > 2 &&
           call->longest >= TWO_SHOT_MIN_BYTES;
}

/* ---- areas ---- */

static uint8_t *staging_of(const wefti_call_t *call, uint32_t rank)
{
    const weft_group_t *group = call->group;
    return wefti_group_staging(group, rank) + (group->calls->area & 1u) * group->staging.half_bytes;
}

static const uint8_t *area_of(const wefti_call_t *call, uint32_t rank)
{
    return (call->flags & WEFTI_POSTED_DATA) != 0
               ? wefti_call_slot_area(call, wefti_call_slot_of(call->group, rank, call->number))
               : staging_of(call, rank);
}

/* The sources of a reduction: own data, and skip bytes into the areas of peers. */
static void find_sources(const wefti_call_t *call, const uint8_t *own, size_t skip)
{
    const weft_group_t *group = call->group;
    for (uint32_t r = 0; r < group->size; r++) {
        group->calls->sources[r] = r == group->rank ? own : area_of(call, r) + skip;
    }
}

/* Two-shot: rank owner's shard of the round at hand. */
static wefti_block_t shard(const wefti_call_t *call, uint32_t owner)
{
    size_t piece_bytes = call->staged.piece_bytes;
    uint64_t at = (call->staged.round * call->group->size + owner) * piece_bytes;
    return (wefti_block_t){at, piece_at(call->longest, at, piece_bytes)};
}

/* Of block, the piece of the round at hand. */
static wefti_block_t piece_of(const wefti_call_t *call, wefti_block_t block)
{
    uint64_t at = call->staged.round * call->staged.piece_bytes;
    return (wefti_block_t){block.at + at, piece_at(block.bytes, at, call->staged.piece_bytes)};
}

void wefti_call_stage(const wefti_call_t *call, uint8_t *area)
{
    const weft_group_t *group = call->group;
    bool two_shot = call->staged.two_shot;
    if (group->size == 1) {
        return;
    }
    if (is_shared(call) && !two_shot) {
        wefti_block_t piece = piece_of(call, wefti_call_send_block(call, group->rank));
        wefti_call_copy(area, call->request.send + piece.at, piece.bytes);
        return;
    }
    for (uint32_t i = 1; i < group->size; i++) {
        uint32_t to = wefti_group_nth_peer(group, i);
        wefti_block_t piece =
            two_shot ? shard(call, to) : piece_of(call, wefti_call_send_block(call, to));
        wefti_call_copy(area + to * call->staged.piece_bytes, call->request.send + piece.at,
                        piece.bytes);
    }
}

static weft_status_t take_reduced(wefti_call_t *call, size_t skip)
{
    const weft_group_t *group = call->group;
    if (!wefti_side_is_on(wefti_call_op(call)->recv, group->rank == call->request.root)) {
        return WEFT_OK;
    }
    wefti_block_t block = wefti_call_send_block(call, group->rank);
    wefti_block_t own = piece_of(call, block);
    if (own.bytes == 0) {
        return WEFT_OK;
    }
    find_sources(call, call->request.send + own.at, skip);
    group->calls->destinations[0] = call->request.recv + (own.at - block.at);
    return wefti_call_reduce(call, 1, own.bytes);
}

/* What this rank gets in a round, out of all areas. */
static weft_status_t take(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    size_t skip = is_shared(call) ? 0 : group->rank * call->staged.piece_bytes;
    if (wefti_call_op(call)->reduces) {
        return take_reduced(call, skip);
    }
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t from = wefti_group_nth_peer(group, i);
        wefti_block_t to = piece_of(call, wefti_call_recv_block(call, from));
        if (to.bytes > 0) {
            const uint8_t *source =
                i == 0 ? call->request.send + piece_of(call, wefti_call_send_block(call, from)).at
                       : area_of(call, from) + skip;
            wefti_call_copy(call->request.recv + to.at, source, to.bytes);
        }
    }
    return WEFT_OK;
}

/* Two-shot all-reduce: this rank's shard of the round to recv and to its own area; */
static weft_status_t reduce_shard(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    wefti_block_t own = shard(call, group->rank);
    size_t skip = group->rank * call->staged.piece_bytes;
    if (own.bytes == 0) {
        return WEFT_OK;
    }
    find_sources(call, call->request.send + own.at, skip);
    group->calls->destinations[0] = call->request.recv + own.at;
    group->calls->destinations[1] = staging_of(call, group->rank) + skip;
    return wefti_call_reduce(call, 2, own.bytes);
}

/* then those of the others. */
static void take_results(wefti_call_t *call)
{
    for (uint32_t i = 1; i < call->group->size; i++) {
        uint32_t from = wefti_group_nth_peer(call->group, i);
        wefti_block_t to = shard(call, from);
        wefti_call_copy(call->request.recv + to.at,
                        staging_of(call, from) + from * call->staged.piece_bytes, to.bytes);
    }
}

/* ---- data in call slots ---- */

static void name_algorithm(const wefti_call_t *call)
{
    if (call->request.op == WEFT_COLLECTIVE_ALL_REDUCE && !call->staged.two_shot) {
        call->group->calls->algorithm = "one-shot";
    }
}

static bool posting_takes(const wefti_call_t *call)
{
    return (call->flags & WEFTI_POSTED_DATA) != 0;
}

static weft_status_t posting_start(wefti_call_t *call)
{
    name_algorithm(call);
    wefti_call_complete(call);
    return take(call);
}

/* ---- staging ---- */

static void publish_round(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_signal_publish(&group->channels[group->rank]->staged.signal, ++group->calls->staged);
    call->unsettled |= WEFTI_UNSETTLED_ROUND;
}

static void stage_round(wefti_call_t *call)
{
    call->group->calls->area++;
    wefti_call_stage(call, staging_of(call, call->group->rank));
    publish_round(call);
    call->peer = 1;
    call->state = WEFTI_CALL_ROUND;
}

weft_status_t wefti_call_stage_ends(wefti_call_t *call)
{
    uint64_t lead = call->ends.lead * call->elem_bytes, trail = call->ends.trail * call->elem_bytes;
    WEFT_RETURN_IF_ERROR(wefti_group_commit_staging(call->group, (size_t)(lead + trail)));
    call->group->calls->area++;
    uint8_t *area = staging_of(call, call->group->rank);
    wefti_call_copy(area, call->request.send, lead);
    wefti_call_copy(area + lead, call->request.send + call->longest - trail, trail);
    publish_round(call);
    return WEFT_OK;
}

weft_status_t wefti_call_take_ends(wefti_call_t *call)
{
    uint64_t lead = call->ends.lead * call->elem_bytes, trail = call->ends.trail * call->elem_bytes;
    uint64_t last = call->longest - trail;
    find_sources(call, call->request.send, 0);
    call->group->calls->destinations[0] = call->request.recv;
    WEFT_RETURN_IF_ERROR(wefti_call_reduce(call, 1, lead));
    find_sources(call, call->request.send + last, lead);
    call->group->calls->destinations[0] = call->request.recv + last;
    return wefti_call_reduce(call, 1, trail);
}

static bool staged_takes(const wefti_call_t *call)
{
    (void)call;
    return true;
}

static weft_status_t plan_rounds(wefti_call_t *call)
{
    uint32_t n = call->group->size;
    size_t room = call->group->staging.half_bytes;
    call->staged.two_shot = wefti_call_stages_two_shots(call);
    uint32_t areas = is_shared(call) && !call->staged.two_shot ? 1 : n;
    uint64_t part = call->staged.two_shot ? call->longest / n + 1 : call->longest | 1;
    room /= areas;
    if (part < room) { /* one round, in no more memory than it needs */
        size_t needed = wefti_align_up((size_t)part, LINE_BYTES);
        room = needed < room ? needed : room;
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
            call->group->staging.half_bytes);
    }
    uint64_t per_round =
        call->staged.two_shot ? n * (uint64_t)call->staged.piece_bytes : call->staged.piece_bytes;
    call->staged.rounds = call->longest / per_round + (call->longest % per_round != 0);
    return wefti_group_commit_staging(call->group, areas * call->staged.piece_bytes);
}

static weft_status_t staged_start(wefti_call_t *call)
{
    if (call->group->put_peer_count > 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "staged path: requires ranks that map each other's memory");
    }
    WEFT_RETURN_IF_ERROR(plan_rounds(call));
    name_algorithm(call);
    if (call->staged.rounds > 0) {
        stage_round(call);
    } else {
        wefti_call_complete(call);
    }
    return WEFT_OK;
}

/* Two-shot: the second half of a round brings the reduced shards. */
static weft_status_t to_results(wefti_call_t *call)
{
    WEFT_RETURN_IF_ERROR(reduce_shard(call));
    publish_round(call);
    call->peer = 1;
    call->state = WEFTI_CALL_RESULTS;
    return WEFT_OK;
}

/* Whether this rank takes what rank r staged, or r what this one will overwrite in the next round.
 * After the last round that waits until all have come to the next call. */
static bool awaits(const wefti_call_t *call, uint32_t r)
{
    const wefti_collective_t *op = wefti_call_op(call);
    bool mine = call->group->rank == call->request.root, theirs = r == call->request.root;
    if (!op->rooted) {
        return true;
    }
    return (wefti_side_is_on(op->send, theirs) && wefti_side_is_on(op->recv, mine)) ||
           (wefti_side_is_on(op->send, mine) && wefti_side_is_on(op->recv, theirs) &&
            call->staged.round + 1 < call->staged.rounds);
}

static weft_status_t staged_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status = wefti_call_see_signals(call, offsetof(wefti_channel_t, staged),
                                                  call->group->calls->staged, awaits, out_blocked);
    if (status != WEFT_OK) {
        return status;
    }
    if (call->staged.two_shot && call->state == WEFTI_CALL_ROUND) {
        return to_results(call);
    }
    if (call->state == WEFTI_CALL_RESULTS) {
        take_results(call);
    } else {
        WEFT_RETURN_IF_ERROR(take(call));
    }
    if (++call->staged.round == call->staged.rounds) {
        wefti_call_complete(call);
    } else {
        stage_round(call);
    }
    return WEFT_OK;
}

/* Advance is never asked of path posting: such a call ends as it starts. */
const wefti_path_t wefti_path_posting = {"posting", posting_takes, posting_start, staged_advance};
const wefti_path_t wefti_path_staged = {"staged", staged_takes, staged_start, staged_advance};
