/* SPDX-License-Identifier: Apache-2.0 */
/* The whole way from a model to a plan. */
#include "fusion/compile.h"

#include <string.h>

#include "fusion/passes/schedule_graph.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

/* The evaluation model is an opaque section of the plan. */
static weft_status_t add_eval_model(wefti_compiler_t *c, weft_plan_t *plan)
{
    weft_status_t status;
    wefti_onnx_import_params_t params = {.path = c->params.model_path,
                                         .loss = c->params.loss,
                                         .compiled =
                                             c->compiled.known ? c->compiled.properties : NULL,
                                         .compiled_count = c->compiled.count};
    void *bytes = NULL;
    size_t size = 0;
    if (c->graph->loss == WEFTI_NONE) {
        return WEFT_OK; /* a graph with gradients and without a loss: nothing says what it makes */
    }
    if (c->compiled.known) {
        params.loss = c->graph->values[c->graph->loss].name;
    }
    /* What the plan trains is left out of it; other weights, which no gradient reaches, stay in. */
    const char **trained = wefti_arena_array(&c->arena, plan->buffer_count, sizeof(*trained));
    if (trained == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM) {
            trained[params.trained_count++] = plan->buffers[i].name;
        }
    }
    params.trained = trained;
    WEFT_TRY(status,
             wefti_onnx_eval_model(&params, c->allocator, c->params.registry, &bytes, &size), fail);
    plan->eval_model = wefti_arena_memdup(&plan->arena, bytes, size);
    plan->eval_model_bytes = size;
    wefti_free(c->allocator, bytes);
    return plan->eval_model == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
fail:
    return status;
}

static void use_inference(wefti_compiler_t *c, wefti_lower_params_t *params)
{
    params->infer = true;
    params->policy = params->optimizer = "none";
    params->forecast = NULL;
    params->flags = c->params.split_batch ? WEFTI_PLAN_SPLIT_BATCH : 0;
    params->rank_graphs = (const wefti_graph_t *const *)c->rank_graphs;
    params->rank_graph_count = c->params.rank_model_count;
}

static void read_lower_params(wefti_compiler_t *c, wefti_lower_params_t *params)
{
    const char *slash = strrchr(c->params.model_path, '/');
    *params = (wefti_lower_params_t){.world_size = c->params.world_size,
                                     .policy = c->params.bucket,
                                     .optimizer = c->params.optimizer,
                                     .model_name = slash == NULL ? c->params.model_path : slash + 1,
                                     .forecast = c->compiled.known ? NULL : &c->forecast,
                                     .bucket_cost = &c->bucket_cost,
                                     .shard = c->sharded,
                                     .decouple = c->sharded && c->params.decouple,
                                     .sweep = wefti_compile_may_sweep(c),
                                     .shard_cost = c->sharded ? &c->shard_cost : NULL,
                                     .gradients = c->gradient_params,
                                     .in_flight = c->params.in_flight,
                                     .costs = &c->costs,
                                     .rates = &c->rates,
                                     .place = c->place,
                                     .allocator = c->allocator};
    if (c->params.infer) {
        use_inference(c, params);
    }
}

/* List scheduling: of inference always, of training where a bound asks for it. */
static weft_status_t order_graph(wefti_compiler_t *c)
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
    bool asked = c->params.in_flight > 0 || c->params.arena_limit > 0;
    if (c->compiled.known || (!c->params.infer && !asked)) {
        return WEFT_OK;
    }
    read_lower_params(c, &lower);
    return wefti_schedule_graph(c->graph, &options);
}

static weft_status_t check_limit(const wefti_compiler_t *c, const weft_plan_t *plan)
{
    char text[2][32];
    if (c->params.arena_limit == 0 || plan->arena_bytes <= c->params.arena_limit) {
        return WEFT_OK;
    }
    wefti_format_bytes(c->params.arena_limit, text[0]);
    wefti_format_bytes(plan->arena_bytes, text[1]);
    return wefti_error_field(WEFT_ERR_UNSUPPORTED, "arena_limit",
                             "%s is too small: the plan needs %s", text[0], text[1]);
}

static weft_status_t finish_plan(wefti_compiler_t *c, weft_plan_t **out_plan)
{
    weft_status_t status;
    weft_plan_t *plan = NULL;
    wefti_lower_params_t params;
    read_lower_params(c, &params);
    WEFT_TRY(status, wefti_lower(c->graph, &params, &plan), fail);
    WEFT_TRY(status, check_limit(c, plan), fail);
    if (!c->params.infer) {
        WEFT_TRY(status, add_eval_model(c, plan), fail);
    }
    WEFT_TRY(status, wefti_plan_seal(plan), fail);
    WEFT_TRY(status, wefti_plan_verify(plan, c->params.registry), fail);
    if (c->emit != NULL) {
        WEFT_TRY(status, wefti_compiled_write(&c->given, c->graph, plan, &c->arena, c->emit), fail);
    }
    if (c->compiled.known) {
        wefti_compiled_compare(&c->compiled, plan, &c->log);
    }
    *out_plan = plan;
    return WEFT_OK;
fail:
    weft_plan_release(plan);
    return status;
}

/* Copies the graph for emit_path, before memory and kernels are planned. */
static weft_status_t begin_emit(wefti_compiler_t *c)
{
    if (c->params.emit_path == NULL) {
        return WEFT_OK;
    }
    if (c->params.rank_model_count > 0) {
        return wefti_error_field(
            WEFT_ERR_UNSUPPORTED, "emit_path",
            "excludes rank_models: one file cannot hold the weights of several models");
    }
    return wefti_onnx_emit_begin(c->graph, c->allocator, &c->emit);
}

static weft_status_t compile_inference(wefti_compiler_t *c, weft_plan_t **out_plan)
{
    weft_status_t status;
    if (c->compiled.known) {
        WEFT_TRY(status, wefti_compile_import_compiled(c), fail);
    } else if (c->params.rank_model_count > 0) {
        WEFT_TRY(status, wefti_compile_import_ranks(c), fail);
    } else if (c->params.split_batch) {
        WEFT_TRY(status, wefti_compile_import_share(c), fail);
    } else {
        WEFT_TRY(status,
                 wefti_compile_import_graph(c, c->params.model_path, c->params.batch, &c->graph),
                 fail);
        WEFT_TRY(status, wefti_graph_prepare_inference(c->graph), fail);
    }
    WEFT_TRY(status, order_graph(c), fail);
    WEFT_TRY(status, begin_emit(c), fail);
    WEFT_TRY(status, wefti_pass_layout(c->graph), fail);
    WEFT_TRY(status, wefti_graph_verify(c->graph), fail);
    WEFT_TRY(status, finish_plan(c, out_plan), fail);
fail:
    return status;
}

/* Forward, backward, buckets and updates. */
static weft_status_t make_training_graph(wefti_compiler_t *c)
{
    weft_status_t status;
    WEFT_TRY(status,
             wefti_compile_import_graph(c, c->params.model_path, c->params.batch, &c->graph), fail);
    if (c->graph->loss == WEFTI_NONE && !wefti_graph_has_gradients(c->graph)) {
        return wefti_error_no_loss(c->params.model_path);
    }
    WEFT_TRY(status, wefti_graph_differentiate(c->graph), fail);
    WEFT_TRY(status, wefti_compile_insert_and_fuse(c), fail);
    WEFT_TRY(status, wefti_graph_add_optimizer(c->graph, &c->optimizer), fail);
fail:
    return status;
}

static weft_status_t compile(wefti_compiler_t *c, weft_plan_t **out_plan)
{
    weft_status_t status;
    WEFT_TRY(status, c->compiled.known ? wefti_compile_import_compiled(c) : make_training_graph(c),
             fail);
    WEFT_TRY(status, order_graph(c), fail);
    WEFT_TRY(status, begin_emit(c), fail);
    WEFT_TRY(status, wefti_pass_layout(c->graph), fail);
    WEFT_TRY(status, wefti_graph_verify(c->graph), fail);
    WEFT_TRY(status, wefti_compile_predict_step(c), fail);
    WEFT_TRY(status, finish_plan(c, out_plan), fail);
    wefti_log(&c->log, WEFT_LOG_DEBUG, "%u kernels, %u collectives, arena of %llu bytes",
              (*out_plan)->kernel_count, (*out_plan)->collective_count,
              (unsigned long long)(*out_plan)->arena_bytes);
fail:
    return status;
}

weft_status_t weft_compile(const weft_compile_params_t *params, weft_plan_t **out_plan)
{
    WEFT_CHECK_OUT(out_plan);
    WEFT_CHECK_ARG(params);
    weft_status_t status;
    wefti_compiler_t c = {0};
    WEFT_TRY(status, wefti_compile_read_params(&c, params), done);
    status = c.params.infer ? compile_inference(&c, out_plan) : compile(&c, out_plan);
done:
    wefti_onnx_emit_destroy(c.emit);
    wefti_graph_destroy(c.graph); /* before the registry whose definitions it uses */
    for (uint32_t r = 0; c.rank_graphs != NULL && r < c.params.rank_model_count; r++) {
        if (c.rank_graphs[r] != c.graph) {
            wefti_graph_destroy(c.rank_graphs[r]);
        }
    }
    weft_registry_destroy(c.own_registry);
    wefti_costs_deinit(&c.costs);
    wefti_arena_deinit(&c.arena);
    return status;
}
