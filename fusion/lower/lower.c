/* SPDX-License-Identifier: Apache-2.0 */
/* From the finished graph to a plan: runs the parts that lower.h lists. */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

static weft_status_t copy_cost(weft_plan_t *plan, weft_bucket_cost_t *cost)
{
    cost->pieces =
        wefti_arena_memdup(&plan->arena, cost->pieces, cost->piece_count * sizeof(*cost->pieces));
    cost->points =
        wefti_arena_memdup(&plan->arena, cost->points, cost->point_count * sizeof(*cost->points));
    return cost->pieces != NULL && cost->points != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* The forecast lives in the compiler's arena; the plan outlives that. */
static weft_status_t copy_forecast(weft_plan_t *plan, const wefti_plan_forecast_t *forecast)
{
    if (forecast == NULL) {
        return WEFT_OK;
    }
    plan->forecast = *forecast;
    plan->forecast.costs =
        forecast->costs != NULL ? wefti_arena_strdup(&plan->arena, forecast->costs) : NULL;
    plan->forecast.rows = wefti_arena_memdup(&plan->arena, forecast->rows,
                                             forecast->row_count * sizeof(*forecast->rows));
    plan->forecast.gradients =
        wefti_arena_array(&plan->arena, forecast->gradient_count, sizeof(*forecast->gradients));
    if (plan->forecast.rows == NULL || plan->forecast.gradients == NULL ||
        (forecast->costs != NULL && plan->forecast.costs == NULL)) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < forecast->gradient_count; i++) {
        plan->forecast.gradients[i] = forecast->gradients[i];
        plan->forecast.gradients[i].name =
            wefti_arena_strdup(&plan->arena, forecast->gradients[i].name);
        WEFT_RETURN_IF_NO_MEMORY(plan->forecast.gradients[i].name);
    }
    WEFT_RETURN_IF_ERROR(copy_cost(plan, &plan->forecast.cost));
    return copy_cost(plan, &plan->forecast.alone); /* rows' names are literals */
}

static bool gathers(const wefti_buckets_t *buckets)
{
    bool any = false;
    for (uint32_t b = 0; b < buckets->count; b++) {
        any = any || buckets->list[b].gathered;
    }
    return any;
}

static weft_status_t describe_plan(wefti_lowering_t *l)
{
    weft_plan_t *plan = l->plan;
    plan->world_size = l->params->world_size;
    const wefti_mesh_t *mesh = &l->params->mesh;
    wefti_axis_t *axes = wefti_arena_array(&plan->arena, mesh->axis_count + 1u, sizeof(*axes));
    WEFT_RETURN_IF_NO_MEMORY(axes);
    for (uint32_t i = 0; i < mesh->axis_count; i++) {
        axes[i] = mesh->axes[i];
    }
    plan->mesh = (wefti_mesh_t){axes, mesh->axis_count};
    plan->data_group = l->params->data_group;
    plan->place_group = l->params->place_group;
    plan->batch = l->graph->batch;
    plan->kind = l->params->infer ? WEFT_PLAN_KIND_INFERENCE : WEFT_PLAN_KIND_TRAINING;
    plan->flags |= l->params->flags;
    plan->flags |= l->params->rank_data ? WEFTI_PLAN_RANK_DATA : 0;
    plan->flags |= l->buckets->shards > 1 ? WEFTI_PLAN_SHARDED : 0;
    plan->flags |= wefti_graph_find_program(l->graph, "flush") != NULL ? WEFTI_PLAN_DECOUPLED : 0;
    plan->flags |= gathers(l->buckets) ? WEFTI_PLAN_SHARDED_PARAMETERS : 0;
    plan->accumulate = l->params->gradients.accumulate > 1 ? l->params->gradients.accumulate : 1;
    plan->global_micro_batches = l->params->gradients.leaves;
    plan->clip_norm = l->params->gradients.clip_norm;
    plan->fusion_copied_bytes = 0; /* kernels write gradients where their bucket lies */
    plan->model_name = wefti_arena_strdup(&plan->arena, l->params->model_name);
    plan->policy = wefti_arena_strdup(&plan->arena, l->params->policy);
    plan->optimizer = wefti_arena_strdup(&plan->arena, l->params->optimizer);
    const wefti_plan_place_t *place = l->params->rules != NULL ? l->params->rules->place : NULL;
    if (place != NULL) {
        plan->topology = wefti_arena_strdup(&plan->arena, place->summary);
        plan->placement = wefti_arena_strdup(&plan->arena, place->digest);
    }
    WEFT_RETURN_IF_NO_MEMORY(plan->topology && plan->placement && plan->model_name &&
                             plan->policy && plan->optimizer);
    return copy_forecast(plan, l->params->forecast);
}

static weft_status_t lower(wefti_lowering_t *l)
{
    wefti_order_t order = {0};
    wefti_buckets_t buckets = {0};
    wefti_folds_t folds = {0};
    wefti_buffers_t buffers = {0};
    wefti_regions_t regions = {0};
    wefti_ranges_t ranges = {0};
    wefti_kernels_t kernels = {0};
    l->order = &order;
    l->buckets = &buckets;
    l->folds = &folds;
    l->buffers = &buffers;
    l->regions = &regions;
    l->ranges = &ranges;
    l->kernels = &kernels;
    uint32_t *places;
    WEFT_RETURN_IF_ERROR(wefti_graph_places(l->graph, &l->arena, &places));
    l->places = l->params->place_group == 0 ? NULL : places;
    WEFT_RETURN_IF_ERROR(wefti_lower_order(l, &order));
    WEFT_RETURN_IF_ERROR(wefti_lower_buckets(l, &buckets));
    WEFT_RETURN_IF_ERROR(describe_plan(l));
    WEFT_RETURN_IF_ERROR(wefti_lower_find_folds(l, &folds));
    WEFT_RETURN_IF_ERROR(wefti_lower_create_buffers(l, &buffers));
    WEFT_RETURN_IF_ERROR(wefti_lower_regions(l, &regions));
    WEFT_RETURN_IF_ERROR(wefti_lower_activations(l, &ranges));
    WEFT_RETURN_IF_ERROR(wefti_lower_kernels(l, &kernels));
    WEFT_RETURN_IF_ERROR(wefti_lower_collectives(l));
    WEFT_RETURN_IF_ERROR(wefti_lower_programs(l));
    return wefti_lower_data(l);
}

weft_status_t wefti_lower(const wefti_graph_t *graph, const wefti_lower_params_t *params,
                          weft_plan_t **out_plan)
{
    wefti_lowering_t l = {.graph = graph, .params = params};
    l.fold = weft_registry_find_op(graph->registry, "weft", "TreeFold", 1);
    *out_plan = NULL;
    wefti_arena_init(&l.arena, params->allocator, 0);
    weft_status_t status = wefti_plan_create(params->allocator, &l.plan);
    if (status >= 0) {
        status = lower(&l);
    }
    if (status >= 0) {
        *out_plan = l.plan;
    } else {
        weft_plan_release(l.plan);
    }
    wefti_arena_deinit(&l.arena);
    return status;
}
