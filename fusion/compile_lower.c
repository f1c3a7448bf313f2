/* SPDX-License-Identifier: Apache-2.0 */
/* From the graph after all passes to a plan: lower, seal, verify. */
#include "fusion/compile.h"

#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/plan/check_kernels.h"
#include "runtime/base/device_plugin.h"
#include "runtime/base/error.h"

/* With shard_parameters: an all-gather and a reduce-scatter. */
#define SHARDED_IN_FLIGHT 2u

/* Of parameters, in a warning. */
#define NAMES_SHOWN 4u

/* The evaluation model is an opaque section of the plan. */
static weft_status_t add_eval_model(wefti_compiler_t *c, weft_plan_t *plan)
{
    wefti_onnx_import_params_t params = {.path = c->params.model_path,
                                         .loss = c->params.loss,
                                         .compiled =
                                             c->compiled.known ? c->compiled.properties : NULL,
                                         .compiled_count = c->compiled.count};
    void *bytes = NULL;
    size_t size = 0;
    bool fixed = false;
    if (c->graph->loss == WEFTI_NONE) {
        return WEFT_OK; /* a graph with gradients and without a loss: nothing says what it makes */
    }
    if (c->compiled.known) {
        params.loss = c->graph->values[c->graph->loss].name;
    }
    /* What the plan trains is left out of it; other weights, which no gradient reaches, stay in. */
    const char **trained = wefti_arena_array(&c->arena, plan->buffer_count, sizeof(*trained));
    WEFT_RETURN_IF_NO_MEMORY(trained);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM) {
            trained[params.trained_count++] = plan->buffers[i].name;
        }
    }
    params.trained = trained;
    WEFT_RETURN_IF_ERROR(
        wefti_onnx_eval_model(&params, c->allocator, c->params.registry, &bytes, &size, &fixed));
    if (fixed && !c->compiled.known) { /* a compiled graph has one batch size anyway */
        wefti_log(&c->log, WEFT_LOG_LEVEL_WARN,
                  "the evaluation model is for the batch size in the file only: %s",
                  weft_last_error());
    }
    plan->eval_model = wefti_arena_memdup(&plan->arena, bytes, size);
    plan->eval_model_bytes = size;
    wefti_free(c->allocator, bytes);
    return plan->eval_model == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* Training does not need it: a model without one trains, and saving it reports why it cannot. */
static weft_status_t try_eval_model(wefti_compiler_t *c, weft_plan_t *plan)
{
    weft_status_t status = add_eval_model(c, plan);
    if (status >= 0 || status == WEFT_ERR_NO_MEMORY) {
        return status;
    }
    plan->no_eval_model = wefti_arena_strdup(&plan->arena, weft_last_error());
    WEFT_RETURN_IF_NO_MEMORY(plan->no_eval_model);
    wefti_log(&c->log, WEFT_LOG_LEVEL_WARN,
              "no evaluation model, so the trained model cannot be saved as ONNX: %s",
              plan->no_eval_model);
    return WEFT_OK;
}

/* A warning that names the first parameters that are chosen. */
static void warn(const wefti_compiler_t *c, bool (*chosen)(const wefti_parameter_t *),
                 const char *what, const char *advice)
{
    wefti_text_t names;
    uint32_t count = 0;
    wefti_text_init(&names, c->allocator);
    for (uint32_t i = 0; i < c->graph->parameter_count; i++) {
        const wefti_parameter_t *parameter = &c->graph->parameters[i];
        if (chosen(parameter) && count++ < NAMES_SHOWN) {
            wefti_text_add(&names, count > 1 ? ", " : "");
            wefti_text_add_printable(&names, parameter->name);
        }
    }
    if (count > 0) {
        wefti_log(&c->log, WEFT_LOG_LEVEL_WARN, "%s: %u %s: %s%s; %s", c->model->path, count, what,
                  names.data != NULL ? names.data : "", count > NAMES_SHOWN ? ", .." : "", advice);
    }
    wefti_text_deinit(&names);
}

static bool is_guessed(const wefti_parameter_t *parameter)
{
    return parameter->guess && parameter->trained;
}

static bool is_left_out(const wefti_parameter_t *parameter)
{
    return parameter->guess && !parameter->trained;
}

static bool is_folded(const wefti_parameter_t *parameter)
{
    return parameter->folded && parameter->trained;
}

static bool is_missing(const wefti_parameter_t *parameter)
{
    return parameter->value == WEFTI_NONE;
}

/* Fine-tuning with the statistics of the file is legitimate, training with them by mistake is not. */
static void warn_of_fixed_norms(const wefti_compiler_t *c)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->graph->parameter_count; i++) {
        const wefti_parameter_t *parameter = &c->graph->parameters[i];
        count += parameter->trained ? parameter->fixed_norms : 0;
    }
    if (count > 0) {
        wefti_log(&c->log, WEFT_LOG_LEVEL_WARN,
                  "%s: %u BatchNormalization node%s in evaluation form: parameters are trained, "
                  "statistics stay fixed; set training_form to update them",
                  c->model->path, count, count == 1 ? "" : "s");
    }
}

/* The list of what is trained: a parameter that no gradient reaches is a constant by now. */
static weft_status_t add_parameters(wefti_compiler_t *c, weft_plan_t *plan)
{
    wefti_graph_t *graph = c->graph;
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        wefti_parameter_t *parameter = &graph->parameters[i];
        if (parameter->trained && graph->values[parameter->value].kind != WEFTI_VALUE_PARAM) {
            parameter->trained = parameter->guess = false;
            parameter->why = "no gradient reaches it";
        }
    }
    warn(c, is_guessed, "trained by a guess", "set train or freeze");
    warn(c, is_left_out, "not trained by a guess", "set train or freeze");
    warn(c, is_folded, "computed by the exporter, as when it folds BatchNormalization",
         "export with training=TrainingMode.TRAINING to train the layers as they are");
    warn(c, is_missing, "missing, folded or merged by the exporter",
         "export with optimize=False to train all parameters");
    warn_of_fixed_norms(c);
    plan->parameter_count = graph->parameter_count;
    return wefti_parameters_of_plan(graph->parameters, graph->parameter_count, &plan->arena,
                                    &plan->parameters);
}

static weft_status_t add_recomputed(const wefti_compiler_t *c, weft_plan_t *plan)
{
    plan->recomputed = wefti_arena_memdup(&plan->arena, c->recomputed,
                                          c->recomputed_count * sizeof(*c->recomputed));
    plan->recomputed_count = c->recomputed_count;
    plan->kept_arena_bytes = c->recomputed_count > 0 ? c->kept_arena_bytes : 0;
    for (uint32_t i = 0; i < plan->recomputed_count && plan->recomputed != NULL; i++) {
        plan->recomputed[i].name = wefti_arena_strdup(&plan->arena, c->recomputed[i].name);
    }
    return plan->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t use_inference(wefti_compiler_t *c, wefti_lower_params_t *params)
{
    uint32_t count = c->place_group != 0 ? 0 : c->params.rank_model_count; /* joined: one graph */
    const wefti_graph_t **graphs = wefti_arena_array(&c->arena, count, sizeof(*graphs));
    WEFT_RETURN_IF_NO_MEMORY(graphs);
    for (uint32_t r = 0; r < count; r++) {
        graphs[r] = c->models[r].graph;
    }
    params->infer = true;
    params->policy = params->optimizer = "none";
    params->forecast = NULL;
    params->flags = c->params.split_batch ? WEFTI_PLAN_SPLIT_BATCH : 0;
    params->rank_graphs = graphs;
    params->rank_graph_count = count;
    return WEFT_OK;
}

uint32_t wefti_compile_in_flight(const wefti_compiler_t *c)
{
    bool gathers = c->sharded && c->params.shard_parameters != 0;
    return c->params.in_flight == 0 && gathers ? SHARDED_IN_FLIGHT : c->params.in_flight;
}

weft_status_t wefti_compile_lower_params(wefti_compiler_t *c, wefti_lower_params_t *params)
{
    const char *slash = strrchr(c->params.model_path, '/');
    *params =
        (wefti_lower_params_t){.world_size = c->params.world_size,
                               .policy = c->params.bucket,
                               .optimizer = c->params.optimizer,
                               .model_name = slash == NULL ? c->params.model_path : slash + 1,
                               .forecast = c->compiled.known ? NULL : &c->forecast,
                               .bucket_cost = &c->bucket_cost,
                               .shard = c->sharded,
                               .decouple = c->sharded && c->params.decouple,
                               .fuse = wefti_compile_may_fuse(c),
                               .shard_cost = c->sharded ? &c->shard_cost : NULL,
                               .gradients = c->gradient_params,
                               .in_flight = wefti_compile_in_flight(c),
                               .costs = &c->costs,
                               .rates = &c->rates,
                               .rules = &c->rules,
                               .rank_data = c->params.rank_model_count > 0 ||
                                            c->params.tensor_parallel > 1 || c->place_group != 0,
                               .mesh = c->mesh,
                               .data_group = c->mesh.axis_count > 0 ? WEFTI_GROUP_DATA : 0,
                               .place_group = c->place_group,
                               .allocator = c->allocator};
    return c->params.infer ? use_inference(c, params) : WEFT_OK;
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

/* Every node has a kernel: for each of the devices that are named, or for the CPU. */
static weft_status_t check_kernels(const wefti_compiler_t *c, weft_plan_t *plan)
{
    const char *names = c->params.device;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < wefti_device_names(names) && status >= 0; i++) {
        weft_device_t *device;
        WEFT_RETURN_IF_ERROR(wefti_device_open_of(names, i, &device));
        status =
            wefti_plan_check_kernels(plan, c->params.registry, device != NULL ? device->ops : NULL,
                                     c->allocator, c->params.model_path);
        bool own = device != NULL && (device->ops->caps & WEFT_DEVICE_CPU_BITS) == 0;
        plan->bits = own ? WEFT_BITS_DEVICE : plan->bits;
        weft_device_close(device);
    }
    plan->device = wefti_arena_strdup(&plan->arena, names);
    return status < 0 || plan->device != NULL ? status : WEFT_ERR_NO_MEMORY;
}

/* Updates by themselves: not by what a step touches in between, as the forecast of the step has
 * them. */
static weft_status_t predict_kernels(const wefti_compiler_t *c, weft_plan_t *plan)
{
    wefti_arena_t scratch;
    weft_status_t status = WEFT_OK;
    wefti_arena_init(&scratch, c->allocator, 0);
    for (uint32_t i = 0; i < plan->kernel_count && status == WEFT_OK; i++) {
        wefti_plan_kernel_t *kernel = &plan->kernels[i];
        const weft_op_def_t *def =
            weft_registry_find_op(c->params.registry, kernel->domain, kernel->op, kernel->version);
        double ns = 0;
        if (!wefti_profile_kernel_ns(&c->profile, kernel->name, &ns) && def != NULL) {
            weft_node_desc_t desc;
            status = wefti_plan_kernel_desc(plan, i, &scratch, &desc);
            ns = status == WEFT_OK ? wefti_op_predict_ns(def, &desc, &c->rates) : 0;
        }
        kernel->predicted_ps = ns > 0 ? ns < 1e12 ? (uint64_t)(ns * 1e3) : 1000000000000000ull : 0;
    }
    wefti_arena_deinit(&scratch);
    return status;
}

weft_status_t wefti_compile_lower(wefti_compiler_t *c, weft_plan_t **out_plan)
{
    weft_status_t status;
    weft_plan_t *plan = NULL;
    wefti_lower_params_t params;
    WEFT_TRY(status, wefti_graph_verify(c->graph), fail);
    if (!c->params.infer) {
        WEFT_TRY(status, wefti_compile_predict_step(c), fail);
    }
    WEFT_TRY(status, wefti_compile_lower_params(c, &params), fail);
    WEFT_TRY(status, wefti_lower(c->graph, &params, &plan), fail);
    WEFT_TRY(status, wefti_rules_give_files(&c->rules, plan), fail);
    WEFT_TRY(status, check_limit(c, plan), fail);
    WEFT_TRY(status, check_kernels(c, plan), fail);
    WEFT_TRY(status, predict_kernels(c, plan), fail);
    if (!c->params.infer) {
        WEFT_TRY(status, add_parameters(c, plan), fail);
        WEFT_TRY(status, add_recomputed(c, plan), fail);
        WEFT_TRY(status, try_eval_model(c, plan), fail);
    }
    WEFT_TRY(status, wefti_plan_seal(plan), fail);
    WEFT_TRY(status, wefti_plan_verify(plan, c->params.registry), fail);
    if (c->emit != NULL) {
        WEFT_TRY(status,
                 wefti_compiled_write(&c->given, &c->rules, c->graph, plan, &c->arena, c->emit),
                 fail);
    }
    if (c->compiled.known) {
        wefti_compiled_compare(&c->compiled, plan, &c->log);
    }
    wefti_log(&c->log, WEFT_LOG_LEVEL_DEBUG, "%u kernels, %u collectives, arena of %llu bytes",
              plan->kernel_count, plan->collective_count, (unsigned long long)plan->arena_bytes);
    *out_plan = plan;
    return WEFT_OK;
fail:
    weft_plan_release(plan);
    return status;
}
