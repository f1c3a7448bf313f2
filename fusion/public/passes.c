/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of weft_compile for a host compiler: its view and parameters are checked, then the
 * same code runs. */
#include <weft/passes.h>

#include "fusion/fusion.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#define MAX_TIME_NS 1000000000000000000ull

uint64_t weft_op_predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node)
{
    WEFT_CHECK_ARG_OR(def, 0);
    WEFT_CHECK_ARG_OR(node, 0);
    double ns = wefti_op_predict_ns(def, node, NULL);
    return ns > 0 && ns < 1e18 ? (uint64_t)ns : ns > 0 ? MAX_TIME_NS : 0;
}

weft_status_t weft_pass_ready_times(const weft_graph_view_t *view, const uint64_t *op_ns,
                                    uint64_t *ready_ns)
{
    WEFT_CHECK_ARG(view);
    WEFT_CHECK_ARG(ready_ns);
    wefti_arena_t arena;
    uint64_t now = 0;
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_view_read(&view, &arena, NULL);
    for (uint32_t i = 0; status == WEFT_OK && i < view->order_count; i++) {
        uint64_t ns = op_ns != NULL ? op_ns[view->order[i]] : 0;
        now = ns < MAX_TIME_NS - now ? now + ns : MAX_TIME_NS;
        ready_ns[view->order[i]] = now;
    }
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t weft_pass_insert_collectives(const weft_graph_view_t *view,
                                           const weft_allocator_t *allocator,
                                           weft_edit_list_t **out_edits)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    wefti_arena_t arena;
    wefti_arena_init(&arena, allocator, 0);
    weft_status_t status = wefti_view_read(&view, &arena, NULL);
    status =
        status == WEFT_OK ? wefti_pass_insert_collectives(view, 0, allocator, out_edits) : status;
    wefti_arena_deinit(&arena);
    return status;
}

/* ---- buckets ---- */

static weft_status_t check_cost(const weft_bucket_cost_t *cost)
{
    if ((cost->piece_count > 0 && cost->pieces == NULL) ||
        (cost->point_count > 0 && cost->points == NULL) ||
        (cost->piece_count == 0 && cost->point_count == 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "cost: pieces or points must be set");
    }
    return WEFT_OK;
}

static weft_status_t costs_of_table(const weft_bucket_params_t *params, wefti_arena_t *arena,
                                    wefti_bucket_cost_t *out_cost, wefti_shard_cost_t *out_shard)
{
    static const wefti_profile_t nothing_measured = {0};
    weft_status_t status;
    wefti_costs_t costs = {0};
    if (params->world_size == 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                 "must be at least 1 where cost is NULL: 0");
    }
    if (params->costs_path != NULL) {
        WEFT_TRY(status, wefti_costs_load(&costs, params->costs_path, params->allocator), done);
    } else {
        wefti_costs_default(&costs, params->allocator);
    }
    WEFT_TRY(
        status,
        wefti_collective_cost(&costs, params->world_size, NULL, &nothing_measured, arena, out_cost),
        done);
    status =
        wefti_shard_cost(&costs, params->world_size, NULL, &nothing_measured, arena, out_shard);
done:
    wefti_costs_deinit(&costs);
    return status;
}

/* What the host set, else the table. An all-reduce is a reduce-scatter and an all-gather: where
 * only its cost is set, each has half of it. */
static weft_status_t read_costs(const weft_bucket_params_t *params, wefti_arena_t *arena,
                                wefti_bucket_cost_t *out_cost, wefti_shard_cost_t *out_shard)
{
    const weft_bucket_cost_t *const given[] = {params->cost, params->reduce_scatter_cost,
                                               params->all_gather_cost};
    wefti_bucket_cost_t *const out[] = {out_cost, &out_shard->reduce_scatter,
                                        &out_shard->all_gather};
    if (given[0] == NULL) {
        WEFT_RETURN_IF_ERROR(costs_of_table(params, arena, out_cost, out_shard));
    }
    for (size_t i = 0; i < 3; i++) {
        if (given[i] != NULL) {
            *out[i] = *given[i];
            WEFT_RETURN_IF_ERROR(check_cost(out[i]));
        } else if (given[0] != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_bucket_cost_scale(out_cost, 0.5, arena, out[i]));
        }
    }
    return WEFT_OK;
}

static void write_forecast(const wefti_plan_forecast_t *from, weft_bucket_forecast_t *to)
{
    weft_bucket_forecast_t own = {.bucket_count = from->chosen_count,
                                  .optimum_count = from->optimum_count,
                                  .ready_ps = from->ready_ps,
                                  .chosen_ps = from->chosen_ps,
                                  .optimum_ps = from->optimum_ps,
                                  .lower_bound_ps = from->lower_bound_ps,
                                  .comm_ps = from->comm_ps};
    wefti_report_write(to, &own, sizeof own);
}

weft_status_t weft_pass_bucket(const weft_graph_view_t *view, const weft_bucket_params_t *params,
                               weft_edit_list_t **out_edits, weft_bucket_forecast_t *out_forecast)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    WEFT_CHECK_ARG(params);
    weft_status_t status;
    wefti_arena_t arena;
    wefti_policy_t policy;
    wefti_bucket_cost_t cost;
    wefti_shard_cost_t shard_cost;
    wefti_plan_forecast_t forecast = {0};
    weft_bucket_params_t own_params = WEFT_BUCKET_PARAMS_INIT;
    status = WEFTI_PARAMS_READ(params, &own_params);
    status = status < 0 ? status : wefti_report_check("out_forecast", out_forecast);
    if (status < 0) {
        return status;
    }
    params = &own_params;
    wefti_arena_init(&arena, params->allocator, 0);
    WEFT_TRY(status, wefti_view_read(&view, &arena, NULL), done);
    WEFT_TRY(status,
             wefti_policy_parse(params->policy != NULL ? params->policy : "auto", &arena, &policy),
             done);
    WEFT_TRY(status, read_costs(params, &arena, &cost, &shard_cost), done);
    wefti_bucket_params_t own = {.policy = &policy,
                                 .ready_ns = params->ready_ns,
                                 .cost = &cost,
                                 .allocator = params->allocator,
                                 .forecast_arena = &arena,
                                 .shard_cost = &shard_cost};
    WEFT_TRY(status, wefti_pass_bucket(view, &own, out_edits, &forecast), done);
    write_forecast(&forecast, out_forecast);
done:
    wefti_arena_deinit(&arena);
    return status;
}
