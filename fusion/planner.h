/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where buckets begin and end, exactly. Gradients 1..n become ready at r_1 <= r_2 <= ... and have
 * s_j bytes; a bucket of m bytes takes T(m) on the one channel, which carries out buckets in order:
 *
 *     F(j) = min over i < j of max(F(i), r_j) + T(s_i+1 + ... + s_j)
 *
 * is when j gradients can be done at the earliest. F(n) is the optimum. It splits too much: it
 * sends whenever the channel is idle. Chosen are the fewest buckets that end within 0.1 % of it. No
 * schedule of the channel ends before the maximum over j of r_j + T(s_j + ... + s_n), the lower
 * bound: bytes that are ready from j on must be sent after r_j. Where several tensors are copied to
 * lie side by side, a bucket of one costs less than T, and the optimum is chosen: fewer buckets are
 * not cheaper then. All in integers, so every rank decides the same. Optimum, choice and bound are
 * part of every plan, not of its structure digest.
 */
#ifndef WEFT_FUSION_PLANNER_H
#define WEFT_FUSION_PLANNER_H

#include <weft/passes.h>

#include "runtime/base/memory.h"

/* T, as a host compiler gives it, too: the minimum of pieces, or, where there are points, what they
 * say (irregular: need not be concave, nor even rise). */
typedef weft_bucket_piece_t wefti_bucket_piece_t;
typedef weft_bucket_point_t wefti_bucket_point_t;
typedef weft_bucket_cost_t wefti_bucket_cost_t;

typedef struct wefti_plan_item {
    uint64_t ready_ps; /* never less than the item's before it */
    uint64_t bytes;
} wefti_plan_item_t;

typedef struct wefti_planner_params {
    const wefti_plan_item_t *items;
    uint32_t item_count; /* at least 1 */
    wefti_bucket_cost_t cost;
    const wefti_bucket_cost_t *alone; /* of a bucket of one item, never above cost; NULL: cost */
    uint64_t cap_bytes;               /* of a bucket; 0: none. No item may be larger */
    /* [item]: the first item that may share a bucket with it, never less than the one before; NULL:
     * all may. */
    const uint32_t *first_with;
} wefti_planner_params_t;

typedef struct wefti_bucket_plan {
    uint32_t bucket_count;
    uint32_t *ends;                 /* [bucket_count] item behind the bucket's last one */
    uint32_t optimum_count;         /* how many buckets reach the optimum */
    uint64_t optimum_ps, chosen_ps; /* when the last bucket is done */
    uint64_t lower_bound_ps;        /* of any schedule on one channel, contiguous or not */
} wefti_bucket_plan_t;

/*
 * O(nK) per layer for K pieces (n items and the chosen number of buckets), O(n^2) for points.
 * WEFT_ERR_INVALID_ARGUMENT when an item is larger than the cap, or times cannot be counted.
 */
weft_status_t wefti_plan_buckets(const wefti_planner_params_t *params, wefti_arena_t *arena,
                                 wefti_bucket_plan_t *out_plan);
/* T(bytes). */
uint64_t wefti_bucket_cost_ps(const wefti_bucket_cost_t *cost, uint64_t bytes);
/* When given buckets are done: for other policies, to compare. finish_ps[bucket] may be NULL. */
uint64_t wefti_buckets_finish_ps(const wefti_planner_params_t *params, const uint32_t *ends,
                                 uint32_t bucket_count, uint64_t *finish_ps);
/*
 * The merge rule of MG-WFBP (Shi, Chu, Li: "MG-WFBP: Efficient Data Communication for Distributed
 * Synchronous SGD Algorithms", INFOCOM 2019): a bucket waits for the next gradient when that is
 * ready within alpha of the time at which the bucket could start. Returns the number of buckets;
 * ends has room for item_count.
 */
uint32_t wefti_buckets_merge_rule(const wefti_planner_params_t *params, uint32_t *ends);

#endif
