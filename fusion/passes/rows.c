/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fusion/pipeline.c whose passes are in graph/. */
#include "fusion/passes/passes.h"

#include <string.h>

#include "fusion/passes/schedule_graph.h"
#include "runtime/base/error.h"

weft_status_t wefti_apply_normalize_collectives(wefti_compiler_t *c)
{
    weft_status_t status =
        wefti_graph_normalize_collectives(c->graph, c->params.world_size, c->params.infer != 0);
    return status < 0 ? wefti_error_prefix(status, "%s", c->model->path) : WEFT_OK;
}

weft_status_t wefti_apply_given_gradients(wefti_compiler_t *c)
{
    weft_status_t status;
    uint32_t found = 0;
    const wefti_gradient_map_t *map = NULL;
    if (c->params.grads_path != NULL) {
        WEFT_TRY(status, wefti_grads_map_load(c->params.grads_path, &c->arena, &c->gradients),
                 fail);
        map = &c->gradients;
    }
    status = wefti_graph_find_gradients(c->graph, map, &found);
    if (status < 0) {
        return wefti_error_prefix(status, "%s", c->model->path);
    }
    if (found > 0) {
        return wefti_graph_use_gradients(c->graph, &c->log);
    }
    return c->graph->loss == WEFTI_NONE ? wefti_error_no_loss(c->model->path) : WEFT_OK;
fail:
    return status;
}

weft_status_t wefti_apply_bind_shapes(wefti_compiler_t *c)
{
    weft_status_t status;
    bool opened = false;
    wefti_shape_override_t *shapes =
        wefti_arena_array(&c->arena, c->params.shape_count, sizeof(*shapes));
    if (shapes == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < c->params.shape_count; i++) {
        shapes[i] = (wefti_shape_override_t){.name = c->params.shapes[i].name,
                                             .rank = c->params.shapes[i].rank};
        memcpy(shapes[i].dims, c->params.shapes[i].dims, sizeof(shapes[i].dims));
    }
    WEFT_TRY(status,
             wefti_graph_bind_open_shapes(c->graph, c->model->batch, c->params.open_batch, shapes,
                                          c->params.shape_count, &opened),
             fail);
    if (opened) {
        wefti_log(&c->log, WEFT_LOG_WARN, "%s: symbolic batch size: compiled for %lld %s",
                  c->model->path, (long long)c->graph->batch,
                  c->graph->batch == 1 ? "sample per rank" : "samples per rank");
    }
    status = wefti_graph_check_gradients(c->graph);
fail:
    return status;
}

weft_status_t wefti_apply_tidy_collectives(wefti_compiler_t *c)
{
    return wefti_graph_tidy_collectives(c->graph, c->params.world_size);
}

weft_status_t wefti_apply_settle_gradients(wefti_compiler_t *c)
{
    return wefti_graph_settle_gradients(c->graph);
}

weft_status_t wefti_apply_inference_form(wefti_compiler_t *c)
{
    return wefti_graph_prepare_inference(c->graph);
}

weft_status_t wefti_apply_compare_models(wefti_compiler_t *c)
{
    const wefti_graph_t **graphs = wefti_arena_array(&c->arena, c->model_count, sizeof(*graphs));
    for (uint32_t r = 0; graphs != NULL && r < c->model_count; r++) {
        graphs[r] = c->models[r].graph;
    }
    return graphs == NULL
               ? WEFT_ERR_NO_MEMORY
               : wefti_graph_compare_ranks(graphs, c->params.rank_models, c->model_count);
}

weft_status_t wefti_apply_split_batch(wefti_compiler_t *c)
{
    weft_status_t status =
        wefti_graph_split_batch(c->graph, c->models[1].graph, c->params.world_size);
    wefti_graph_destroy(c->models[1].graph);
    c->models[1].graph = NULL;
    return status;
}

weft_status_t wefti_apply_differentiate(wefti_compiler_t *c)
{
    return wefti_graph_differentiate(c->graph);
}

weft_status_t wefti_apply_clip(wefti_compiler_t *c)
{
    return wefti_graph_add_clip(c->graph, &c->optimizer, &c->clip_scale);
}

weft_status_t wefti_apply_optimizer(wefti_compiler_t *c)
{
    return wefti_graph_add_optimizer(c->graph, &c->optimizer, c->clip_scale);
}

weft_status_t wefti_apply_schedule(wefti_compiler_t *c)
{
    wefti_lower_params_t lower;
    wefti_schedule_options_t options = {.profile = &c->profile,
                                        .rates = &c->rates,
                                        .cost = &c->bucket_cost,
                                        .in_flight = c->params.in_flight,
                                        .arena_limit = c->params.arena_limit,
                                        .lower = &lower,
                                        .arena = &c->arena,
                                        .log = &c->log};
    weft_status_t status = wefti_compile_lower_params(c, &lower);
    return status < 0 ? status : wefti_schedule_graph(c->graph, &options);
}

weft_status_t wefti_apply_fit_arena(wefti_compiler_t *c)
{
    return wefti_apply_schedule(c);
}

weft_status_t wefti_apply_emit_onnx(wefti_compiler_t *c)
{
    return wefti_onnx_emit_begin(c->graph, c->allocator, &c->emit);
}

weft_status_t wefti_apply_layout(wefti_compiler_t *c)
{
    return wefti_pass_layout(c->graph);
}

weft_status_t wefti_apply_programs(wefti_compiler_t *c)
{
    wefti_lower_params_t lower;
    weft_status_t status = wefti_compile_lower_params(c, &lower);
    if (status >= 0) {
        const wefti_program_params_t params = wefti_program_params(&lower);
        status = wefti_pass_programs(c->graph, &params);
    }
    return status;
}
