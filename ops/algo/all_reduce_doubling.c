/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recursive doubling over the in-order tree, for any group size.
 *
 * At level k the ranks of a subtree of 2^k all hold its sum; each reads the sum of the neighbouring
 * subtree from one of its ranks:
 *
 *   level 0   0-1  2-3  4-5  6        level 1   (01)-(23)  (45)-(6)        level 2   (0123)-(456)
 *
 * A subtree without a right neighbour passes its sum on. Sums of a level stay where they are, for
 * others may still be reading; two sets of scratch let runs follow one another without a last wait,
 * since every run depends on every rank's having finished the one before.
 */
#include "ops/algo/algorithms.h"

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    uint32_t levels = wefti_log2_ceil(params->group_size);
    out->phases = levels + 1;
    out->scratch_slots = levels;
    out->scratch_sets = 2;
    out->by_placement = 1;
}

/* Where rank keeps the sum of its subtree of 2^level: the slot of the last level that added
 * anything. */
static uint32_t slot_of(uint32_t rank, uint32_t level, uint32_t n)
{
    while (level > 0) {
        uint32_t right = ((rank >> level) << level) + (1u << (level - 1));
        if (right < n) {
            return level;
        }
        level--;
    }
    return 0;
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    uint32_t levels = wefti_log2_ceil(n);
    if (n == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    weft_place_t own = wefti_at(r, WEFT_ALGO_BUFFER_SEND, 0);
    weft_place_t sum = wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, 0);
    weft_schedule_reduce(b, 0, &sum, 1, &own, 1, wefti_one(0), 0);
    weft_schedule_post(b, 0, 1);
    for (uint32_t k = 0; k < levels; k++) {
        uint32_t base = (r >> (k + 1)) << (k + 1);
        uint32_t right = base + (1u << k);
        bool last = k + 1 == levels;
        if (right < n) {
            uint32_t right_size = n - right < 1u << k ? n - right : 1u << k;
            uint32_t peer = r < right ? right + (r - base) % right_size : r - (1u << k);
            weft_place_t mine = wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, slot_of(r, k, n));
            weft_place_t theirs = wefti_at(peer, WEFT_ALGO_BUFFER_SCRATCH, slot_of(peer, k, n));
            weft_place_t sources[2] = {r < right ? mine : theirs, r < right ? theirs : mine};
            sum = last ? wefti_at(r, WEFT_ALGO_BUFFER_RECV, 0)
                       : wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, k + 1);
            wefti_wait(b, peer, k + 1);
            weft_schedule_reduce(b, 0, &sum, 1, sources, 2, wefti_one(0), last);
        }
        if (!last) {
            weft_schedule_post(b, 0, k + 2);
        }
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_REDUCE, "doubling",
                    "sums of subtrees are exchanged in log2 n steps", wefti_needs_tree, resources,
                    build),
};
WEFTI_ALGORITHM_LIST(wefti_doubling_algorithms, table);
