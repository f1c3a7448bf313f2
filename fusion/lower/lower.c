/* SPDX-License-Identifier: Apache-2.0 */
/* From the finished graph to a plan: runs the parts that lower.h lists. */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

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
        plan->forecast.gradients[i].ready_ps = forecast->gradients[i].ready_ps;
        plan->forecast.gradients[i].name =
            wefti_arena_strdup(&plan->arena, forecast->gradients[i].name);
        if (plan->forecast.gradients[i].name == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    return WEFT_OK; /* rows' names are literals */
}

static weft_status_t describe_plan(wefti_lowering_t *l)
{
    weft_plan_t *plan = l->plan;
    plan->world_size = l->params->world_size;
    plan->batch = l->graph->batch;
    plan->kind = l->params->infer ? WEFT_PLAN_KIND_INFERENCE : WEFT_PLAN_KIND_TRAINING;
    plan->flags |= l->params->flags;
    plan->flags |= l->params->rank_graph_count > 0 ? WEFTI_PLAN_RANK_DATA : 0;
    plan->flags |= l->shards > 1 ? WEFTI_PLAN_SHARDED : 0;
    plan->flags |= wefti_graph_find_program(l->graph, "flush") != NULL ? WEFTI_PLAN_DECOUPLED : 0;
    plan->accumulate = l->params->gradients.accumulate > 1 ? l->params->gradients.accumulate : 1;
    plan->global_micro_batches = l->params->gradients.leaves;
    plan->clip_norm = l->params->gradients.clip_norm;
    plan->fusion_copied_bytes = 0; /* kernels write gradients where their bucket lies */
    plan->model_name = wefti_arena_strdup(&plan->arena, l->params->model_name);
    plan->policy = wefti_arena_strdup(&plan->arena, l->params->policy);
    plan->optimizer = wefti_arena_strdup(&plan->arena, l->params->optimizer);
    if (l->params->place != NULL) {
        plan->topology = wefti_arena_strdup(&plan->arena, l->params->place->summary);
        plan->placement = wefti_arena_strdup(&plan->arena, l->params->place->digest);
    }
    if (plan->topology == NULL || plan->placement == NULL || plan->model_name == NULL ||
        plan->policy == NULL || plan->optimizer == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    return copy_forecast(plan, l->params->forecast);
}

/* What runs in a step, in a micro-batch or in a flush, and what runs in its place in another
 * program. */
static weft_status_t find_order(wefti_lowering_t *l)
{
    const wefti_graph_t *graph = l->graph;
    bool *runs = wefti_arena_array(&l->arena, graph->node_count, sizeof(*runs));
    l->order = wefti_lower_map(l, graph->order_count);
    l->variant_of = wefti_lower_map(l, graph->node_count);
    l->next_variant = wefti_lower_map(l, graph->node_count);
    l->variant_kernel = wefti_lower_map(l, graph->node_count);
    if (runs == NULL || l->order == NULL || l->variant_of == NULL || l->next_variant == NULL ||
        l->variant_kernel == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t p = 0; p < graph->program_count; p++) {
        const wefti_program_t *program = &graph->programs[p];
        bool steps = strcmp(program->name, "init") != 0 && strcmp(program->name, "eval") != 0;
        for (uint32_t i = 0; steps && i < program->node_count; i++) {
            runs[program->nodes[i]] = true;
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i], of = wefti_graph_variant_of(graph, id);
        if (of != WEFTI_NONE) {
            l->next_variant[id] = l->variant_of[of];
            l->variant_of[of] = id;
        } else if (runs[id]) {
            l->order[l->order_count++] = id;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower(const wefti_graph_t *graph, const wefti_lower_params_t *params,
                          weft_plan_t **out_plan)
{
    weft_status_t status;
    wefti_lowering_t l = {.graph = graph, .params = params};
    l.shards = params->shard ? params->world_size : 1;
    l.fold_def = weft_registry_find_op(graph->registry, "weft", "TreeFold", 1);
    *out_plan = NULL;
    wefti_arena_init(&l.arena, params->allocator, 0);
    WEFT_TRY(status, wefti_plan_create(params->allocator, &l.plan), done);
    WEFT_TRY(status, describe_plan(&l), done);
    WEFT_TRY(status, find_order(&l), done);
    WEFT_TRY(status, wefti_lower_order(&l), done);
    WEFT_TRY(status, wefti_lower_memory(&l), done);
    WEFT_TRY(status, wefti_lower_kernels(&l), done);
    WEFT_TRY(status, wefti_lower_programs(&l), done);
    WEFT_TRY(status, wefti_lower_data(&l), done);
    *out_plan = l.plan;
    l.plan = NULL;
done:
    weft_plan_release(l.plan);
    wefti_arena_deinit(&l.arena);
    return status;
}
