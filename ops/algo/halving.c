/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recursive halving with growing distance, and recursive doubling back, for any group size.
 *
 * Blocks are dealt out over a virtual power of two 2^K >= n. In a subtree of 2^k ranks from base,
 * the sum of block b belongs to rank base + b mod 2^k; where that rank does not exist, to the one
 * 2^(k-1) lower, and so on. Joining two subtrees, the owner in the larger one also owns, or its
 * counterpart does, the sum in either, so every join is one read from one peer:
 *
 *   n = 4   level 0: 0<->1, 2<->3 (half of the blocks)   level 1: 0<->2, 1<->3 (a quarter)
 *
 * Distances grow, so that sums follow the in-order tree over ranks. A shard vector is numbered in
 * reversed bits, which makes every set of blocks one range.
 */
#include "ops/algo/algorithms.h"
#include "ops/algo/schedule.h"

typedef struct halving {
    const weft_algo_params_t *params;
    weft_schedule_builder_t *b;
    uint32_t n, levels;
    bool ranges; /* blocks are shards of a vector, in reversed bits; else block b goes to rank b */
} halving_t;

static bool is_power_of_two(uint32_t n)
{
    return (n & (n - 1)) == 0;
}

static uint32_t reverse_bits(uint32_t value, uint32_t bits)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < bits; i++) {
        out = out << 1 | (value >> i & 1);
    }
    return out;
}

/* Levels that the subtree of 2^level from base really has: without right halves outside the group.
 */
static uint32_t real_level(const halving_t *h, uint32_t base, uint32_t level)
{
    while (level > 0 && base + (1u << (level - 1)) >= h->n) {
        level--;
    }
    return level;
}

/* Who owns blocks of this residue in the subtree of 2^level from base. */
static uint32_t owner(const halving_t *h, uint32_t base, uint32_t level, uint32_t residue)
{
    uint32_t at = residue & ((1u << level) - 1);
    while (base + at >= h->n) {
        level--;
        at = residue & ((1u << level) - 1);
    }
    return base + at;
}

/* Residues that rank owns in any subtree from base are this far apart: their lowest bits are those
 * of its distance from base. */
static uint32_t residue_step(uint32_t rank, uint32_t base)
{
    uint32_t step = 1;
    while (step <= rank - base) {
        step *= 2;
    }
    return step;
}

/* Blocks with this residue modulo 2^level, as indices of a user's buffer. */
static weft_blocks_t blocks_of(const halving_t *h, uint32_t residue, uint32_t level)
{
    if (h->ranges) {
        uint32_t count = 1u << (h->levels - level);
        return (weft_blocks_t){reverse_bits(residue, level) * count, 1, count};
    }
    uint32_t step = 1u << level;
    return (weft_blocks_t){residue, step, residue < h->n ? (h->n - residue - 1) / step + 1 : 0};
}

/* First scratch slot of the sums of a level, 1 <= level < levels. */
static uint32_t region_of(const halving_t *h, uint32_t level)
{
    uint32_t copies = is_power_of_two(h->n) ? 1 : 2; /* a rank may own a second residue */
    uint32_t slot = 0;
    for (uint32_t k = 1; k < level; k++) {
        slot += copies << (h->levels - k);
    }
    return slot;
}

/*
 * Where rank keeps the sums of its subtree (2^level ranks from base) for the blocks of residue
 * modulo 2^of_level, of_level >= level.
 */
static weft_place_t sums_at(const halving_t *h, uint32_t rank, uint32_t base, uint32_t level,
                            uint32_t residue, uint32_t of_level)
{
    uint32_t real = real_level(h, base, level);
    weft_blocks_t blocks = blocks_of(h, residue, of_level);
    if (real == 0) {
        return (weft_place_t){rank, 1, WEFT_ALGO_BUFFER_SEND, blocks.first, blocks.step};
    }
    uint32_t main = residue & ((1u << real) - 1);
    uint32_t slot = region_of(h, real);
    slot += base + main == rank ? 0 : 1u << (h->levels - real);
    if (h->ranges) {
        slot += blocks.first - reverse_bits(main, real) * (1u << (h->levels - real));
        return (weft_place_t){rank, 1, WEFT_ALGO_BUFFER_SCRATCH, slot, 1};
    }
    slot += (residue - main) >> real;
    return (weft_place_t){rank, 1, WEFT_ALGO_BUFFER_SCRATCH, slot, 1u << (of_level - real)};
}

/* Where the finished sums go. */
static weft_place_t result_at(const halving_t *h, weft_blocks_t blocks)
{
    uint32_t rank = h->params->op == WEFT_COLLECTIVE_REDUCE ? h->params->root : h->params->rank;
    return (weft_place_t){rank, 1, WEFT_ALGO_BUFFER_RECV, blocks.first, blocks.step};
}

/* Joins the two halves of rank's subtree of 2^(level + 1). */
static void join(const halving_t *h, uint32_t base, uint32_t level)
{
    uint32_t r = h->params->rank;
    uint32_t right = base + (1u << level);
    bool last = level + 1 == h->levels;
    uint32_t step = residue_step(r, base);
    for (uint32_t residue = r - base; residue < 2u << level; residue += step) {
        if (owner(h, base, level + 1, residue) != r) {
            continue;
        }
        weft_blocks_t blocks = blocks_of(h, residue, level + 1);
        if (blocks.count == 0) {
            continue;
        }
        uint32_t low = owner(h, base, level, residue);
        uint32_t high = owner(h, right, level, residue);
        weft_place_t sources[2] = {sums_at(h, low, base, level, residue, level + 1),
                                   sums_at(h, high, right, level, residue, level + 1)};
        weft_place_t sum =
            last ? result_at(h, blocks) : sums_at(h, r, base, level + 1, residue, level + 1);
        wefti_wait(h->b, low == r ? high : low, level + 1);
        weft_schedule_reduce(h->b, 0, &sum, 1, sources, 2, blocks, last);
    }
}

/* Phases 1 .. levels + 1: the sums of level k are there at phase k + 1. */
static void reduce_scatter_phase(const halving_t *h)
{
    weft_schedule_post(h->b, 0, 1);
    if (h->params->op == WEFT_COLLECTIVE_REDUCE && h->n > 1) {
        wefti_wait(h->b, h->params->root, 1); /* its receive buffer may be written */
    }
    for (uint32_t k = 0; k < h->levels; k++) {
        uint32_t base = (h->params->rank >> (k + 1)) << (k + 1);
        if (base + (1u << k) < h->n) {
            join(h, base, k);
        }
        weft_schedule_post(h->b, 0, k + 2);
    }
}

/* From 2^levels downwards: every subtree's owners fetch what the owners in the larger one have. */
static void all_gather_phase(const halving_t *h, uint32_t phase)
{
    uint32_t r = h->params->rank;
    bool complete = h->params->op == WEFT_COLLECTIVE_BROADCAST && r == h->params->root;
    for (uint32_t k = h->levels; k-- > 0; phase++) {
        uint32_t base = (r >> (k + 1)) << (k + 1);
        uint32_t own_base = (r >> k) << k;
        uint32_t step = residue_step(r, own_base);
        for (uint32_t residue = r - own_base; residue < 2u << k && base + (1u << k) < h->n;
             residue += step) {
            uint32_t from = owner(h, base, k + 1, residue);
            bool wanted = !complete && from != r && owner(h, own_base, k, residue) == r;
            if (!wanted) {
                continue;
            }
            weft_blocks_t blocks = blocks_of(h, residue, k + 1);
            if (blocks.count == 0) {
                continue;
            }
            wefti_wait(h->b, from, phase);
            weft_schedule_copy(
                h->b, 0, (weft_place_t){r, 1, WEFT_ALGO_BUFFER_RECV, blocks.first, blocks.step},
                (weft_place_t){from, 1, WEFT_ALGO_BUFFER_RECV, blocks.first, blocks.step}, blocks);
        }
        weft_schedule_post(h->b, 0, phase + 1);
    }
    wefti_wait_all(h->b, h->params, phase);
}

static halving_t halving_of(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    return (halving_t){params, b, params->group_size, wefti_log2_ceil(params->group_size),
                       wefti_collective_is_vector(params->op)};
}

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    halving_t h = halving_of(params, NULL);
    bool reduces = wefti_collective_reduces(params->op);
    out->blocks = 1u << h.levels;
    out->scratch_slots = reduces && h.levels > 1 ? region_of(&h, h.levels) : 0;
    out->phases = params->op == WEFT_COLLECTIVE_ALL_REDUCE ? 2 * h.levels + 1 : h.levels + 1;
    if (params->op == WEFT_COLLECTIVE_BROADCAST) {
        out->phases++;
    }
    out->by_placement = 1;
}

static void all_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    halving_t h = halving_of(params, b);
    if (h.n == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    reduce_scatter_phase(&h);
    all_gather_phase(&h, h.levels + 1);
}

/* Reduce writes its sums straight into the root's copy. */
static void reduce_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    halving_t h = halving_of(params, b);
    if (h.n == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    reduce_scatter_phase(&h);
    wefti_wait_all(b, params, h.levels + 1);
}

static void all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    halving_t h = halving_of(params, b);
    wefti_copy_own(params, b, wefti_one(params->rank));
    weft_schedule_post(b, 0, 1);
    all_gather_phase(&h, 1);
}

/* Scatter and all-gather: every rank takes the shards it owns in the whole tree from the root. */
static void broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    halving_t h = halving_of(params, b);
    uint32_t r = params->rank;
    if (r == params->root) {
        weft_schedule_post(b, 0, 1);
        wefti_copy_own(params, b, (weft_blocks_t){0, 1, 1u << h.levels});
    } else {
        wefti_wait(b, params->root, 1);
    }
    uint32_t step = residue_step(r, 0);
    for (uint32_t residue = r; residue < 1u << h.levels && r != params->root; residue += step) {
        if (owner(&h, 0, h.levels, residue) == r) {
            weft_blocks_t blocks = blocks_of(&h, residue, h.levels);
            weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_RECV, blocks.first),
                               wefti_at(params->root, WEFT_ALGO_BUFFER_SEND, blocks.first), blocks);
        }
    }
    weft_schedule_post(b, 0, 2);
    all_gather_phase(&h, 2);
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling",
                    "sums of halves at growing distance, then doubling back", wefti_needs_tree,
                    resources, all_reduce),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER, "halving", "sums of halves at growing distance",
                    wefti_needs_tree, resources, reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER_V, "halving",
                    "sums of halves at growing distance", wefti_needs_tree, resources,
                    reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE, "halving", "sums of halves, written to the root",
                    wefti_needs_tree, resources, reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER, "doubling", "blocks double at shrinking distance",
                    wefti_always_eligible, resources, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER_V, "doubling", "blocks double at shrinking distance",
                    wefti_always_eligible, resources, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BROADCAST, "scatter-gather",
                    "shards from the root, then doubling", wefti_always_eligible, resources,
                    broadcast),
};
WEFTI_ALGORITHM_LIST(wefti_halving_algorithms, table);
