/* SPDX-License-Identifier: Apache-2.0 */
/* From the table of costs to the planner's input: time by bytes of one collective over a range. */
#include <math.h>

#include "fusion/fusion.h"
#include "fusion/simulate/simulate.h"
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

/* Bytes of the whole range, of which some operators count a block for each rank. */
static wefti_counts_t floats(const weft_algo_params_t *params, double bytes)
{
    double blocks = wefti_collective_is_vector(params->op) ? 1 : params->group_size;
    return (wefti_counts_t){.elem_count = (uint64_t)(bytes / 4 / blocks), .elem_bytes = 4};
}

/* The line through two predictions: schedules are affine in bytes but for rounding to cache lines.
 */
static weft_status_t add_piece(const wefti_costs_t *costs, sim_group_t *described,
                               const weft_algo_params_t *params, const weft_algorithm_t *algorithm,
                               wefti_bucket_piece_t *out)
{
    double low, high;
    wefti_counts_t few = floats(params, LOW_BYTES), many = floats(params, HIGH_BYTES);
    if (described != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_sim_predict(described, algorithm, params, &few, &low));
        WEFT_RETURN_IF_ERROR(wefti_sim_predict(described, algorithm, params, &many, &high));
    } else {
        WEFT_RETURN_IF_ERROR(wefti_cost_predict(costs, algorithm, params, &few, &low));
        WEFT_RETURN_IF_ERROR(wefti_cost_predict(costs, algorithm, params, &many, &high));
    }
    double beta = high > low ? (high - low) / (HIGH_BYTES - LOW_BYTES) : 0;
    *out = (wefti_bucket_piece_t){as_ps(low - beta * LOW_BYTES), as_ps(beta * 1024)};
    return WEFT_OK;
}

static weft_status_t add_points(const wefti_costs_t *costs, sim_group_t *described,
                                const weft_algo_params_t *params, wefti_arena_t *arena,
                                wefti_bucket_cost_t *out_cost)
{
    const wefti_choice_t choice = {.planned = true,
                                   .predict = described != NULL ? wefti_sim_predict : NULL,
                                   .predict_user = described};
    wefti_bucket_point_t *points =
        wefti_arena_array(arena, POINT_LAST - POINT_FIRST + 1, sizeof(*points));
    if (points == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t k = POINT_FIRST; k <= POINT_LAST; k++) {
        wefti_candidate_t candidates[WEFTI_MAX_CANDIDATES];
        uint32_t count;
        wefti_counts_t counts = floats(params, (double)(1ull << k));
        weft_status_t status =
            wefti_cost_choose(costs, params, &counts, &choice, candidates, &count);
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
        if (item->op == params->op && item->ranks == params->group_size &&
            item->hosts == (params->host_of != NULL ? params->host_of_count : 1) && !item->plain) {
            return true;
        }
    }
    return false;
}

static double piece_ps(const wefti_bucket_piece_t *piece, uint32_t log_bytes)
{
    return (double)piece->alpha_ps +
           (double)piece->beta_ps_per_kib * (double)(1ull << log_bytes) / 1024;
}

/* Pieces than which another one is quicker at every size. */
static void drop_slower(wefti_bucket_piece_t *pieces, uint32_t *inout_count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *inout_count; i++) {
        bool slower = false;
        for (uint32_t k = 0; k < *inout_count; k++) {
            bool there = k < kept || k > i; /* those between were dropped or moved */
            slower |= there &&
                      piece_ps(&pieces[k], POINT_FIRST) <= piece_ps(&pieces[i], POINT_FIRST) &&
                      piece_ps(&pieces[k], POINT_LAST) <= piece_ps(&pieces[i], POINT_LAST);
        }
        if (!slower) {
            pieces[kept++] = pieces[i];
        }
    }
    *inout_count = kept;
}

/* One piece for each algorithm that may run, or for the one that the rules fix. */
static weft_status_t add_pieces(const wefti_costs_t *costs, sim_group_t *described,
                                const weft_algo_params_t *params, const weft_algorithm_t *fixed,
                                wefti_bucket_piece_t *pieces, uint32_t *inout_count)
{
    const weft_algorithm_t *algorithm;
    bool only = fixed != NULL && wefti_algorithm_reason(fixed, params) == NULL;
    for (size_t i = 0; (algorithm = only ? fixed : wefti_algorithm_at(i)) != NULL; i++) {
        if (only && i > 0) {
            break;
        }
        if (algorithm->op != params->op || wefti_algorithm_reason(algorithm, params) != NULL ||
            *inout_count == WEFTI_MAX_CANDIDATES) {
            continue;
        }
        weft_status_t status =
            add_piece(costs, described, params, algorithm, &pieces[*inout_count]);
        *inout_count += status >= 0;
        if (status < 0 && (status != WEFT_ERR_UNSUPPORTED || described == NULL)) {
            return status;
        }
    }
    if (described != NULL) { /* some are slower than the planner can count */
        drop_slower(pieces, inout_count);
    }
    return WEFT_OK;
}

/* The table with the links of the cluster: the slowest NIC, and the latency between hosts. */
static wefti_costs_t with_links(const wefti_costs_t *costs, const sim_world_t *world)
{
    wefti_costs_t own = *costs;
    double slowest = INFINITY;
    for (uint32_t nic = 0; nic < world->part_count[SIM_NIC_OUT]; nic++) {
        double rate = world->rate[SIM_NIC_OUT][nic];
        slowest = rate > 0 && rate < slowest ? rate : slowest;
    }
    if (!isinf(slowest)) {
        own.level[WEFTI_LEVEL_NET] =
            (wefti_link_cost_t){world->latency_ns[SIM_IN_RACK], 1 / slowest};
    }
    return own;
}

static weft_status_t from_table(const wefti_costs_t *costs, weft_collective_t op,
                                uint32_t world_size, const wefti_rules_t *rules,
                                wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    sim_group_t *described = rules != NULL ? rules->described : NULL;
    bool all = described != NULL || world_size < MOST_RANKS;
    weft_algo_params_t params = wefti_rules_params(rules, op, all ? world_size : MOST_RANKS, true);
    const weft_algorithm_t *fixed = wefti_rules_fixed(rules, op, world_size);
    wefti_bucket_piece_t *pieces = wefti_arena_array(arena, WEFTI_MAX_CANDIDATES, sizeof(*pieces));
    *out_cost = (wefti_bucket_cost_t){.pieces = pieces};
    if (pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (is_measured(costs, &params) &&
        (fixed == NULL || wefti_algorithm_reason(fixed, &params) != NULL)) {
        return add_points(costs, described, &params, arena, out_cost);
    }
    WEFT_RETURN_IF_ERROR(
        add_pieces(costs, described, &params, fixed, pieces, &out_cost->piece_count));
    if (out_cost->piece_count == 0 && described != NULL) { /* as for a part of the ranks */
        params =
            wefti_rules_params(rules, op, world_size < MOST_RANKS ? world_size : MOST_RANKS, true);
        const wefti_costs_t own = with_links(costs, described->world);
        return add_pieces(&own, NULL, &params, fixed, pieces, &out_cost->piece_count);
    }
    return WEFT_OK;
}

weft_status_t wefti_bucket_cost_scale(const wefti_bucket_cost_t *cost, double factor,
                                      wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    *out_cost = *cost;
    wefti_bucket_piece_t *pieces =
        wefti_arena_memdup(arena, cost->pieces, cost->piece_count * sizeof(*pieces));
    wefti_bucket_point_t *points = wefti_arena_array(arena, cost->point_count, sizeof(*points));
    if (pieces == NULL || points == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t k = 0; k < cost->piece_count; k++) {
        pieces[k] =
            (wefti_bucket_piece_t){as_ps((double)pieces[k].alpha_ps * factor * 1e-3),
                                   as_ps((double)pieces[k].beta_ps_per_kib * factor * 1e-3)};
    }
    for (uint32_t k = 0; k < cost->point_count; k++) {
        points[k] = (wefti_bucket_point_t){cost->points[k].bytes,
                                           as_ps((double)cost->points[k].ps * factor * 1e-3)};
    }
    out_cost->pieces = pieces;
    out_cost->points = points;
    return WEFT_OK;
}

weft_status_t wefti_bucket_cost_add(const wefti_bucket_cost_t *cost, double ns, double ns_per_byte,
                                    wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    weft_status_t status = wefti_bucket_cost_scale(cost, 1, arena, out_cost);
    for (uint32_t k = 0; status >= 0 && k < out_cost->piece_count; k++) {
        wefti_bucket_piece_t *piece = (wefti_bucket_piece_t *)&out_cost->pieces[k];
        piece->alpha_ps += as_ps(ns);
        piece->beta_ps_per_kib += as_ps(ns_per_byte * 1024);
    }
    for (uint32_t k = 0; status >= 0 && k < out_cost->point_count; k++) {
        wefti_bucket_point_t *point = (wefti_bucket_point_t *)&out_cost->points[k];
        point->ps += as_ps(ns + ns_per_byte * (double)point->bytes);
    }
    return status;
}

weft_status_t wefti_bucket_cost_shrink(const wefti_bucket_cost_t *cost, double share,
                                       wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    weft_status_t status = wefti_bucket_cost_scale(cost, 1, arena, out_cost);
    for (uint32_t k = 0; status >= 0 && k < out_cost->piece_count; k++) {
        wefti_bucket_piece_t *piece = (wefti_bucket_piece_t *)&out_cost->pieces[k];
        piece->beta_ps_per_kib = as_ps((double)piece->beta_ps_per_kib * share * 1e-3);
    }
    for (uint32_t k = 0; status >= 0 && k < out_cost->point_count; k++) {
        wefti_bucket_point_t *point = (wefti_bucket_point_t *)&out_cost->points[k];
        double bytes = (double)point->bytes / share;
        point->bytes = bytes < 0x1p63 ? (uint64_t)bytes : (uint64_t)1 << 63;
    }
    return status;
}

/* A world of one rank. */
static const wefti_bucket_piece_t no_time = {0, 0};
static const wefti_bucket_cost_t nothing_to_send = {.pieces = &no_time, .piece_count = 1};

/* By how much the profile's calls took longer than the table says: of all their times together. */
static double profile_factor(const wefti_bucket_cost_t *cost, const wefti_profile_t *profile)
{
    double measured = profile->comm_ns * 1e3, predicted = 0;
    for (uint32_t i = 0; i < profile->collective_count; i++) {
        predicted += (double)wefti_bucket_cost_ps(cost, profile->collectives[i].bytes);
    }
    return predicted > 0 && measured > 0 ? measured / predicted : 1;
}

weft_status_t wefti_collective_cost(const wefti_costs_t *costs, uint32_t world_size,
                                    const wefti_rules_t *rules, const wefti_profile_t *profile,
                                    wefti_arena_t *arena, wefti_bucket_cost_t *out_cost)
{
    wefti_bucket_cost_t table;
    if (world_size == 1) {
        *out_cost = nothing_to_send;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(
        from_table(costs, WEFT_COLLECTIVE_ALL_REDUCE, world_size, rules, arena, &table));
    return wefti_bucket_cost_scale(&table, profile_factor(&table, profile), arena, out_cost);
}

weft_status_t wefti_shard_cost(const wefti_costs_t *costs, uint32_t world_size,
                               const wefti_rules_t *rules, const wefti_profile_t *profile,
                               wefti_arena_t *arena, wefti_shard_cost_t *out_cost)
{
    wefti_bucket_cost_t table, *const out[] = {&out_cost->reduce_scatter, &out_cost->all_gather};
    static const weft_collective_t ops[] = {WEFT_COLLECTIVE_REDUCE_SCATTER,
                                            WEFT_COLLECTIVE_ALL_GATHER};
    double factor;
    if (world_size == 1) {
        *out[0] = *out[1] = nothing_to_send;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(
        from_table(costs, WEFT_COLLECTIVE_ALL_REDUCE, world_size, rules, arena, &table));
    factor = profile_factor(&table, profile);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        WEFT_RETURN_IF_ERROR(from_table(costs, ops[i], world_size, rules, arena, &table));
        WEFT_RETURN_IF_ERROR(wefti_bucket_cost_scale(&table, factor, arena, out[i]));
    }
    return WEFT_OK;
}
