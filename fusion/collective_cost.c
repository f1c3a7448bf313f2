/* SPDX-License-Identifier: Apache-2.0 */
/* From the table of costs to what the planner wants: time by bytes of one all-reduce. */
#include <math.h>

#include "fusion/fusion.h"
#include "runtime/base/error.h"

/* Predicting runs the schedules of all ranks; time grows slowly with them on one host. */
#define MOST_RANKS 64u
#define LOW_BYTES 4096.0
#define HIGH_BYTES ((double)(1u << 24))
#define POINT_FIRST 6u /* 64 bytes */
#define POINT_LAST 32u /* 4 GiB */

static uint64_t as_ps(double ns)
{
    return ns < 0 ? 0 : ns > 1e12 ? (uint64_t)1000000000000000 : (uint64_t)llround(ns * 1e3);
}

static weft_algo_params_t all_reduce_params(uint32_t world_size)
{
    return (weft_algo_params_t){.struct_size = sizeof(weft_algo_params_t),
                                .op = WEFT_OP_ALL_REDUCE,
                                .group_size = world_size < MOST_RANKS ? world_size : MOST_RANKS,
                                .in_place = 1,
                                .order = WEFT_ORDER_TREE};
}

static wefti_counts_t floats(double bytes)
{
    return (wefti_counts_t){.elem_count = (uint64_t)(bytes / 4), .elem_bytes = 4};
}

/* The line through two predictions: schedules are affine in bytes but for rounding to cache lines.
 */
static weft_status_t add_piece(const wefti_costs_t *costs, const weft_algo_params_t *params,
                               const weft_algorithm_t *algorithm, wefti_bucket_piece_t *out)
{
    weft_status_t status;
    double low, high;
    wefti_counts_t few = floats(LOW_BYTES), many = floats(HIGH_BYTES);
    WEFT_TRY(status, wefti_cost_predict(costs, algorithm, params, &few, &low), fail);
    WEFT_TRY(status, wefti_cost_predict(costs, algorithm, params, &many, &high), fail);
    double beta = high > low ? (high - low) / (HIGH_BYTES - LOW_BYTES) : 0;
    *out = (wefti_bucket_piece_t){as_ps(low - beta * LOW_BYTES), as_ps(beta * 1024)};
fail:
    return status;
}

static weft_status_t add_points(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    wefti_bucket_point_t *points =
        wefti_arena_array(arena, POINT_LAST - POINT_FIRST + 1, sizeof(*points));
    if (points == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t k = POINT_FIRST; k <= POINT_LAST; k++) {
        wefti_candidate_t candidates[WEFTI_MAX_CANDIDATES];
        uint32_t count;
        wefti_counts_t counts = floats((double)(1ull << k));
        weft_status_t status = wefti_cost_choose(costs, params, &counts, NULL, candidates, &count);
        if (status < 0) {
            return status;
        }
        points[k - POINT_FIRST] =
            (wefti_bucket_point_t){1ull << k, as_ps(candidates[0].predicted_ns)};
    }
    out_cost->points = points;
    out_cost->point_count = POINT_LAST - POINT_FIRST + 1;
    return WEFT_OK;
}

static bool is_measured(const wefti_costs_t *costs, const weft_algo_params_t *params)
{
    for (size_t i = 0; i < costs->measured_count; i++) {
        const wefti_measured_cost_t *item = &costs->measured[i];
        if (item->op == params->op && item->ranks == params->group_size && item->hosts == 1 &&
            !item->plain) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_collective_cost(const wefti_costs_t *costs, uint32_t world_size,
                                    wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    weft_algo_params_t params = all_reduce_params(world_size);
    const weft_algorithm_t *algorithm;
    wefti_bucket_piece_t *pieces = wefti_arena_array(arena, WEFTI_MAX_CANDIDATES, sizeof(*pieces));
    *out_cost = (wefti_bucket_cost_t){.pieces = pieces};
    if (pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (world_size == 1) {
        out_cost->piece_count = 1; /* nothing to send */
        return WEFT_OK;
    }
    if (is_measured(costs, &params)) {
        return add_points(costs, &params, arena, out_cost);
    }
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op == params.op && algorithm->eligible(&params) == NULL &&
            out_cost->piece_count < WEFTI_MAX_CANDIDATES) {
            weft_status_t status =
                add_piece(costs, &params, algorithm, &pieces[out_cost->piece_count++]);
            if (status < 0) {
                return status;
            }
        }
    }
    return WEFT_OK;
}
