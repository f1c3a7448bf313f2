/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Levels of a regular placement: ranks of a host, hosts of a rack, racks. At each level a rank
 * exchanges with its peers, which differ from it in their number at that level only:
 *
 *   number    host 0: 0 1   host 1: 2 3      host 2: 4 5   host 3: 6 7
 *             '------- rack 0 --------'      '------- rack 1 --------'
 *   rank 0    1 in its host, 2 in its rack, 4 in the other rack
 *
 * Sums go up, level by level; results come down again. At each level they do so in one of these
 * ways:
 *
 *   whole     each peer reads the others' sums of all blocks: nothing is left to gather, the fewest
 *             steps
 *   scatter   each peer reduces a part of the blocks and gathers the others on the way down: the
 *             fewest bytes
 *   leader    the first peer reduces all, and the others copy its results: the fewest messages at
 *             the levels above, where only leaders are left
 *
 * A row of the table is a way for each level; to choose a row by size is to choose these. Lanes
 * take turns between hosts, so that one lane's sums cross racks while the next one's cross hosts.
 *
 * Ranks are numbered by placement (by_placement). Sums begin at another peer in each part, so
 * reductions need order=any.
 */
#include "ops/algo/algorithms.h"
#include "ops/algo/placement.h"
#include "ops/algo/schedule.h"

#define TOP (WEFTI_LEVELS - 1u)

typedef enum way { WHOLE, SCATTER, LEADER } way_t;

typedef struct composition {
    way_t way[WEFTI_LEVELS];
    uint32_t lanes; /* several: SCATTER in hosts, since turns need posts of all ranks */
} composition_t;

/* The schedule of one rank, lane by lane. */
typedef struct levels {
    const weft_algo_params_t *params;
    weft_schedule_builder_t *b;
    const composition_t *how;
    bool vector;
    uint32_t lanes, lane, phase; /* phase: posted last */
    uint32_t size[WEFTI_LEVELS], stride[WEFTI_LEVELS];
    uint32_t own[WEFTI_LEVELS];             /* the rank's number at the level */
    weft_blocks_t blocks[WEFTI_LEVELS + 1]; /* that the rank deals with from a level on */
    uint32_t slot[WEFTI_LEVELS + 1];        /* of scratch, where its sums of them begin */
    uint32_t slots;
} levels_t;

/* What users send is never reduced whole: peers would write, in place, what others are reading. */
static way_t way_at(const levels_t *v, uint32_t level)
{
    way_t way = v->how->way[level];
    return v->stride[level] == 1 && way == WHOLE ? SCATTER : way;
}

/* Of the blocks at a level, those of peer i. Shards of a vector are numbered so that a part is one
 * range; blocks of ranks are dealt out in turns. */
static weft_blocks_t part_of(const levels_t *v, uint32_t level, uint32_t i)
{
    weft_blocks_t blocks = v->blocks[level];
    if (way_at(v, level) != SCATTER) {
        blocks.count *= way_at(v, level) == WHOLE || i == 0;
        return blocks;
    }
    blocks.count /= v->size[level];
    blocks.first += i * blocks.step * (v->vector ? blocks.count : 1);
    blocks.step *= v->vector ? 1 : v->size[level];
    return blocks;
}

static uint32_t scattered(const levels_t *v, uint32_t level)
{
    return way_at(v, level) == SCATTER ? v->size[level] : 1;
}

static void begin_lane(levels_t *v, uint32_t lane)
{
    uint32_t count = 1;
    for (uint32_t level = 0; level < WEFTI_LEVELS; level++) {
        count *= scattered(v, level);
    }
    v->lane = lane;
    v->phase = 0;
    v->blocks[0] = v->vector ? (weft_blocks_t){lane * count, 1, count}
                             : (weft_blocks_t){lane, v->lanes, count};
    for (uint32_t level = 0; level < TOP; level++) {
        bool sums = v->size[level] > 1 && wefti_collective_reduces(v->params->op);
        count /= scattered(v, level);
        v->slot[level + 1] = v->slots;
        v->slots += sums ? count : 0;
    }
    for (uint32_t level = 0; level < WEFTI_LEVELS; level++) {
        v->blocks[level + 1] = part_of(v, level, v->own[level]);
    }
}

/* b is NULL: for resources, which do not depend on the rank. */
static levels_t levels_of(const weft_algo_params_t *params, const composition_t *how,
                          weft_schedule_builder_t *b)
{
    levels_t v = {.params = params, .b = b, .how = how};
    uint32_t stride = 1;
    (void)wefti_placement_levels(params, v.size); /* it was eligible */
    v.vector = wefti_collective_is_vector(params->op);
    v.lanes = params->pieces > 0 && params->pieces < how->lanes ? params->pieces : how->lanes;
    v.lanes = wefti_collective_is_variable(params->op) ? 1 : v.lanes;
    for (uint32_t level = 0; level < WEFTI_LEVELS; level++) {
        v.stride[level] = stride;
        v.own[level] = b != NULL ? params->rank / stride % v.size[level] : 0;
        stride *= v.size[level];
    }
    if (b != NULL && stride != params->group_size) {
        b->status = WEFT_ERR_NO_MEMORY;
    }
    return v;
}

static uint32_t peer(const levels_t *v, uint32_t level, uint32_t i)
{
    return v->params->rank + (i - v->own[level]) * v->stride[level];
}

static void post(levels_t *v)
{
    weft_schedule_post(v->b, v->lane, ++v->phase);
}

/* Posts what crosses hosts or racks, after what the lane before posted has arrived here. */
static void post_in_turn(levels_t *v)
{
    if (v->lane > 0) {
        weft_schedule_wait(v->b, v->lane, v->params->rank, 1, v->lane - 1, v->phase + 2, 0);
    }
    post(v);
}

static void wait_peer(const levels_t *v, uint32_t level, uint32_t i, uint32_t phase)
{
    weft_schedule_wait(v->b, v->lane, peer(v, level, i), 1, v->lane, phase, 0);
}

static void wait_peers(const levels_t *v, uint32_t level, uint32_t phase)
{
    if (v->stride[level] == 1) {
        weft_schedule_wait(v->b, v->lane, peer(v, level, 0), v->size[level], v->lane, phase, 0);
        return;
    }
    for (uint32_t i = 1; i < v->size[level]; i++) {
        wait_peer(v, level, wefti_next(v->own[level], i, v->size[level]), phase);
    }
}

static weft_place_t in_buffer(uint32_t rank, weft_algo_buffer_t buffer, weft_blocks_t blocks)
{
    return (weft_place_t){rank, 1, buffer, blocks.first, blocks.step};
}

/* Sums that a level begins with, on this rank or a peer of that level: they have the same blocks.
 * At the first level they are what users send, also where hosts have one rank. */
static weft_place_t sums_at(const levels_t *v, uint32_t rank, uint32_t level, weft_blocks_t blocks)
{
    const weft_blocks_t *all = &v->blocks[level];
    if (v->stride[level] == 1) {
        return in_buffer(rank, WEFT_ALGO_BUFFER_SEND, blocks);
    }
    return (weft_place_t){rank, 1, WEFT_ALGO_BUFFER_SCRATCH,
                          v->slot[level] + (blocks.first - all->first) / all->step,
                          blocks.step / all->step};
}

/* Up. Peers that all reduce the same blocks do so in the same order. */
static void reduce_level(levels_t *v, uint32_t level)
{
    uint32_t size = v->size[level], rank = v->params->rank;
    uint32_t begin = way_at(v, level) == WHOLE ? 0 : v->own[level];
    weft_blocks_t blocks = v->blocks[level + 1];
    if (blocks.count == 0) {
        v->phase++; /* the leader posts it */
        return;
    }
    weft_place_t *sources = wefti_alloc(NULL, size * sizeof *sources);
    if (sources == NULL) {
        v->b->status = WEFT_ERR_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < size; i++) {
        sources[i] = sums_at(v, peer(v, level, wefti_next(begin, i, size)), level, blocks);
    }
    weft_place_t to = level == TOP ? in_buffer(rank, WEFT_ALGO_BUFFER_RECV, blocks)
                                   : sums_at(v, rank, level + 1, blocks);
    wait_peers(v, level, v->phase);
    weft_schedule_reduce(v->b, v->lane, &to, 1, sources, size, blocks, level == TOP);
    wefti_free(NULL, sources);
    if (level == 0) {
        post_in_turn(v);
    } else {
        post(v);
    }
}

/* Down: the parts of the peers. */
static void gather_level(levels_t *v, uint32_t level)
{
    uint32_t rank = v->params->rank;
    bool sent = wefti_collective_gathers(v->params->op) && level == TOP;
    for (uint32_t i = 1; i < v->size[level]; i++) {
        uint32_t from = wefti_next(v->own[level], i, v->size[level]);
        weft_blocks_t blocks = part_of(v, level, from);
        if (blocks.count > 0) {
            weft_algo_buffer_t buffer = sent ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV;
            wait_peer(v, level, from, v->phase);
            weft_schedule_copy(v->b, v->lane, in_buffer(rank, WEFT_ALGO_BUFFER_RECV, blocks),
                               in_buffer(peer(v, level, from), buffer, blocks), blocks);
        }
    }
    post(v);
}

static void begin_lane_with_input(levels_t *v, uint32_t lane)
{
    begin_lane(v, lane);
    bool gathers = wefti_collective_gathers(v->params->op);
    weft_blocks_t own = v->blocks[WEFTI_LEVELS];
    if (gathers && !v->params->in_place) {
        weft_schedule_copy(v->b, lane, in_buffer(v->params->rank, WEFT_ALGO_BUFFER_RECV, own),
                           in_buffer(v->params->rank, WEFT_ALGO_BUFFER_SEND, own), own);
    }
    if (gathers || v->size[0] == 1) {
        post_in_turn(v);
    } else {
        post(v);
    }
}

static void run_lane(levels_t *v, uint32_t lane)
{
    bool up = wefti_collective_reduces(v->params->op);
    bool down = !wefti_collective_scatters(v->params->op);
    uint32_t read[WEFTI_LEVELS] = {0}; /* the phase after which peers read no user's buffer here */
    begin_lane_with_input(v, lane);
    for (uint32_t level = 0; level < WEFTI_LEVELS && up; level++) {
        if (v->size[level] > 1) {
            reduce_level(v, level);
            read[level] = v->stride[level] == 1 ? v->phase : 0;
        }
    }
    for (uint32_t level = WEFTI_LEVELS; level-- > 0 && down;) {
        if (v->size[level] > 1 && way_at(v, level) != WHOLE) {
            gather_level(v, level);
            read[level] = v->phase;
        }
    }
    for (uint32_t level = 0; level < WEFTI_LEVELS; level++) {
        if (read[level] > 0 && v->blocks[level + 1].count > 0) {
            wait_peers(v, level, read[level]);
        }
    }
}

static void find_resources(const weft_algo_params_t *params, const composition_t *how,
                           weft_algo_resources_t *out)
{
    levels_t v = levels_of(params, how, NULL);
    for (uint32_t lane = 0; lane < v.lanes; lane++) {
        begin_lane(&v, lane);
    }
    out->lanes = v.lanes;
    out->blocks = v.lanes * v.blocks[0].count;
    out->parts = v.vector ? 0 : v.lanes;
    out->scratch_slots = v.slots;
    /* With two sets no rank waits until its peers have read its sums: they have, once their sums of
     * the run between are here. */
    out->scratch_sets = 2;
    out->phases = 1;
    for (uint32_t level = 0; level < WEFTI_LEVELS; level++) {
        out->phases += v.size[level] > 1 ? 1 + (v.vector && way_at(&v, level) != WHOLE) : 0;
    }
    out->by_placement = 1;
}

static void build_lanes(const weft_algo_params_t *params, const composition_t *how,
                        weft_schedule_builder_t *b)
{
    levels_t v = levels_of(params, how, b);
    for (uint32_t lane = 0; lane < v.lanes && b->status >= 0; lane++) {
        run_lane(&v, lane);
    }
}

static const char *eligible(const weft_algo_params_t *params)
{
    uint32_t size[WEFTI_LEVELS];
    const char *reason = wefti_placement_levels(params, size);
    return reason == NULL && wefti_collective_reduces(params->op) ? wefti_needs_any(params)
                                                                  : reason;
}

/* The ways of each row, from the inside; its name has their first letters. */
#define ROWS(X)                                                                                    \
    X(ALL_REDUCE, lww, LEADER, WHOLE, WHOLE, 1,                                                    \
      "leaders of hosts, then whole between hosts and racks")                                      \
    X(ALL_REDUCE, lsw, LEADER, SCATTER, WHOLE, 1,                                                  \
      "leaders of hosts, scattered over hosts, whole between racks")                               \
    X(ALL_REDUCE, lss, LEADER, SCATTER, SCATTER, 1,                                                \
      "leaders of hosts, scattered over hosts and racks")                                          \
    X(ALL_REDUCE, ssw, SCATTER, SCATTER, WHOLE, 4,                                                 \
      "in pieces, scattered over ranks and hosts, whole between racks")                            \
    X(ALL_REDUCE, sss, SCATTER, SCATTER, SCATTER, 2,                                               \
      "in pieces, scattered over ranks, hosts and racks: the fewest bytes")                        \
    X(REDUCE_SCATTER, sss, SCATTER, SCATTER, SCATTER, 2,                                           \
      "inside hosts, then inside racks, then between racks")                                       \
    X(REDUCE_SCATTER_V, sss, SCATTER, SCATTER, SCATTER, 1,                                         \
      "inside hosts, then inside racks, then between racks")                                       \
    X(ALL_GATHER, sss, SCATTER, SCATTER, SCATTER, 2,                                               \
      "between racks, then inside racks, then inside hosts")                                       \
    X(ALL_GATHER_V, sss, SCATTER, SCATTER, SCATTER, 1,                                             \
      "between racks, then inside racks, then inside hosts")

/* Each row has functions of its own, which a copy of the algorithm shares. */
#define FUNCTIONS(op, ways, host, hosts, racks, lanes, doc)                                        \
    static const composition_t op##_##ways = {{host, hosts, racks}, lanes};                        \
    static void resources_##op##_##ways(const weft_algo_params_t *params,                          \
                                        weft_algo_resources_t *out)                                \
    {                                                                                              \
        find_resources(params, &op##_##ways, out);                                                 \
    }                                                                                              \
    static void build_##op##_##ways(const weft_algo_params_t *params, weft_schedule_builder_t *b)  \
    {                                                                                              \
        build_lanes(params, &op##_##ways, b);                                                      \
    }
#define ALGORITHM(op, ways, host, hosts, racks, lanes, doc)                                        \
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_##op, "levels-" #ways, doc, eligible, resources_##op##_##ways, \
                    build_##op##_##ways),

ROWS(FUNCTIONS)
static const weft_algorithm_t table[] = {ROWS(ALGORITHM)};
WEFTI_ALGORITHM_LIST(wefti_levels_algorithms, table);
