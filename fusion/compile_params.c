/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the parameters of a compile: the table of options (options.c), then checks beyond it. */
#include "fusion/compile.h"

#include <string.h>

#include "fusion/options.h"
#include "ops/op_defs.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

static void read_optimizer(const weft_compile_params_t *params, wefti_optimizer_params_t *out)
{
    *out = (wefti_optimizer_params_t){.beta1 = params->beta1, .beta2 = params->beta2};
    while (strcmp(wefti_optimizers[out->kind].name, params->optimizer) != 0) {
        out->kind++; /* options.c allows names of the table only */
    }
    out->lr = params->lr != 0 ? params->lr : wefti_optimizers[out->kind].lr;
    out->epsilon = params->epsilon != 0 ? params->epsilon : wefti_optimizers[out->kind].epsilon;
    out->momentum = params->momentum;
    out->weight_decay = params->weight_decay;
    out->no_decay = params->no_decay;
    out->schedule = params->lr_schedule;
    out->schedule_steps = params->lr_steps;
    out->warmup_steps = params->warmup_steps;
    out->min_lr = params->min_lr;
    out->gamma = params->lr_gamma;
}

/* Settings that an optimizer does not have are not ignored. */
static weft_status_t check_optimizer(const weft_compile_params_t *given, wefti_optimizer_t kind)
{
    const wefti_optimizer_row_t *row = &wefti_optimizers[kind];
    const struct {
        const char *name;
        double value;
        bool is_read;
    } settings[] = {{"beta1", given->beta1, row->state_count == 2},
                    {"beta2", given->beta2, row->state_count == 2},
                    {"epsilon", given->epsilon, row->epsilon != 0}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (settings[i].value != 0 && !settings[i].is_read) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, settings[i].name,
                                     "must not be set with optimizer %s, which does not read it",
                                     row->name);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_shapes(const weft_compile_params_t *params)
{
    if (params->shape_count > 0 && params->shapes == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                 "is NULL, but shape_count is %u", params->shape_count);
    }
    for (uint32_t i = 0; i < params->shape_count; i++) {
        const weft_input_shape_t *shape = &params->shapes[i];
        if (shape->name == NULL) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                     "name of entry %u is NULL", i);
        }
        if (shape->rank > WEFT_MAX_DIMS) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                     "input '%s': too many dimensions: %u, limit %d", shape->name,
                                     shape->rank, WEFT_MAX_DIMS);
        }
        for (uint32_t j = 0; j < shape->rank; j++) {
            if (shape->dims[j] < 1) {
                return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                         "input '%s': dimension %u must be at least 1: %lld",
                                         shape->name, j, (long long)shape->dims[j]);
            }
        }
    }
    return WEFT_OK;
}

/* Ranks that compute one batch together. */
static weft_status_t check_multiple(const weft_compile_params_t *p, const char *name, uint32_t n)
{
    return p->world_size % n == 0 ? WEFT_OK
                                  : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                                      "must be a multiple of %s: %u, %s %u", name,
                                                      p->world_size, name, n);
}

static weft_status_t check_tensor_parallel(const weft_compile_params_t *p)
{
    if (p->tensor_parallel <= 1) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(check_multiple(p, "tensor_parallel", p->tensor_parallel));
    if (p->tensor_parallel != p->world_size && p->order != NULL &&
        strncmp(p->order, "blocks", 6) == 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "tensor_parallel",
                                 "excludes order %s: collectives are of groups of ranks", p->order);
    }
    const struct {
        bool set;
        const char *name, *why;
    } others[] = {
        {p->shard_optimizer, "shard_optimizer", "shards are of parameters that all ranks have"},
        {p->global_micro_batches > 0, "global_micro_batches", "not every rank has a batch"},
        {p->sync_batch_norm, "sync_batch_norm", "its statistics are of all ranks"},
        {p->grads_path != NULL, "grads_path", "a file has whole gradients, a rank has parts"},
        {!p->infer && strcmp(p->optimizer, "lamb") == 0, "optimizer lamb",
         "it needs norms of whole parameters, and ranks have parts"},
        {p->split_batch, "split_batch", "ranks compute one batch together"},
        {p->emit_path != NULL, "emit_path", "one file cannot hold the weights of several ranks"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].set) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "tensor_parallel",
                                     "excludes %s: %s", others[i].name, others[i].why);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_pipeline(const weft_compile_params_t *p)
{
    if (p->pipeline <= 1) {
        return p->pipeline_micro_batches <= 1
                   ? WEFT_OK
                   : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "pipeline_micro_batches",
                                       "requires at least 2 stages: %u, pipeline %u",
                                       p->pipeline_micro_batches, p->pipeline);
    }
    WEFT_RETURN_IF_ERROR(check_multiple(p, "pipeline", p->pipeline));
    if (p->pipeline_micro_batches > 1 &&
        (p->batch == 0 || p->batch % p->pipeline_micro_batches != 0)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "pipeline_micro_batches",
                                 "must divide batch, which must be set: %u, batch %lld",
                                 p->pipeline_micro_batches, (long long)p->batch);
    }
    const struct {
        bool set;
        const char *name, *why;
    } others[] = {
        {p->tensor_parallel > 1, "tensor_parallel", "ranks have stages, or parts of all stages"},
        {p->shard_optimizer, "shard_optimizer", "shards are of parameters that all ranks have"},
        {p->global_micro_batches > 0, "global_micro_batches", "not every rank has a batch"},
        {p->accumulate > 1, "accumulate", "set pipeline_micro_batches, which overlaps the stages"},
        {p->sync_batch_norm, "sync_batch_norm", "its statistics are of all ranks"},
        {p->grads_path != NULL, "grads_path", "gradients of a file have no stages"},
        {p->emit_path != NULL, "emit_path", "a file does not say which ranks are which stage"},
        {p->split_batch, "split_batch", "ranks compute one batch together"},
        {p->order != NULL && strncmp(p->order, "blocks", 6) == 0, "order blocks",
         "collectives are of groups of ranks"},
        {p->in_flight > 0, "in_flight", "the order of the stages bounds what is in flight"},
        {p->arena_limit > 0, "arena_limit", "the order of operators is that of the stages"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].set) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "pipeline", "excludes %s: %s",
                                     others[i].name, others[i].why);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_recompute(const weft_compile_params_t *p)
{
    return p->recompute != NULL && strcmp(p->recompute, "auto") == 0 && p->arena_limit == 0
               ? wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "recompute",
                                   "auto requires arena_limit: it recomputes as little as fits")
               : WEFT_OK;
}

/* What one row cannot say: the number of ranks divides the batch, and is that of models. */
static weft_status_t check_ranks(const weft_compile_params_t *p)
{
    WEFT_RETURN_IF_ERROR(check_tensor_parallel(p));
    WEFT_RETURN_IF_ERROR(check_pipeline(p));
    WEFT_RETURN_IF_ERROR(check_recompute(p));
    if (p->split_batch && p->batch % p->world_size != 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "split_batch",
                                 "batch must be a multiple of world_size: %lld, world_size %u",
                                 (long long)p->batch, p->world_size);
    }
    if (p->rank_model_count > 0 && p->rank_models == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "rank_models",
                                 "is NULL, but rank_model_count is %u", p->rank_model_count);
    }
    if (p->rank_model_count > 0 && p->rank_model_count != p->world_size) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "rank_models",
                                 "must be one model per rank: %u models, world_size %u",
                                 p->rank_model_count, p->world_size);
    }
    for (uint32_t r = 0; r < p->rank_model_count; r++) {
        if (p->rank_models[r] == NULL) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "rank_models", "entry %u is NULL",
                                     r);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_schedule(const weft_compile_params_t *p)
{
    bool drops = strcmp(p->lr_schedule, "step") == 0;
    if (drops && p->lr_steps == 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "lr_steps",
                                 "must be set with lr_schedule step");
    }
    if (!drops && p->lr_steps > 0 && p->warmup_steps >= p->lr_steps) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "warmup_steps",
                                 "must be below lr_steps: %u, lr_steps %u", p->warmup_steps,
                                 p->lr_steps);
    }
    return WEFT_OK;
}

/* Neighbours compute one batch, in parts or in stages; ranks that many apart have equal weights. */
void wefti_compile_set_mesh(wefti_compiler_t *c, const char *inner, uint32_t size)
{
    c->axes[WEFTI_GROUP_DATA - 1] = (wefti_axis_t){"data", c->params.world_size / size, size};
    c->axes[WEFTI_GROUP_TENSOR - 1] = (wefti_axis_t){inner, size, 1};
    c->mesh = (wefti_mesh_t){c->axes, 2};
}

/* One batch in parts needs no mesh, unless gradients go through buckets for another reason. */
static void read_mesh(wefti_compiler_t *c)
{
    uint32_t parts = c->params.tensor_parallel;
    if (parts > 1 && (parts < c->params.world_size || c->params.accumulate > 1 ||
                      strcmp(c->params.wire, "f32") != 0)) {
        wefti_compile_set_mesh(c, "tensor", parts);
    }
    if (c->params.pipeline > 1) {
        wefti_compile_set_mesh(c, "stage", c->params.pipeline);
        c->place_group = WEFTI_GROUP_STAGE;
    }
}

/* Multi-device annotations divide a model for inference, unless tensor_parallel is 1. */
static weft_status_t read_devices(wefti_compiler_t *c)
{
    weft_compile_params_t *p = &c->params;
    if (!p->infer || c->compiled.known || p->rank_model_count > 0 || p->tensor_parallel == 1) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(
        wefti_onnx_devices(p->model_path, p->tensor_parallel, &c->arena, &c->devices));
    const uint32_t shards = c->devices.count, devices = shards * c->devices.replicas;
    if (devices == 0) {
        return WEFT_OK;
    }
    const char *what =
        p->pipeline > 1 ? "excludes pipeline"
        : p->tensor_parallel > 1 && p->tensor_parallel != devices && p->tensor_parallel != shards
            ? "differs from tensor_parallel"
        : p->world_size % devices != 0 ? "must divide world_size"
                                       : NULL;
    if (what != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: device configuration '%s': num_devices %u %s %u; set "
                           "tensor_parallel 1 to ignore the annotations of the model",
                           p->model_path, c->devices.configuration, devices, what,
                           p->pipeline > 1          ? p->pipeline
                           : p->tensor_parallel > 1 ? p->tensor_parallel
                                                    : p->world_size);
    }
    p->tensor_parallel = shards;
    p->world_size = p->world_size == 0 ? devices : p->world_size;
    return WEFT_OK;
}

weft_status_t wefti_compile_read_params(wefti_compiler_t *c, const weft_compile_params_t *params)
{
    if (params == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "params is NULL");
    }
    c->params = (weft_compile_params_t)WEFT_COMPILE_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &c->params));
    c->allocator = c->params.allocator;
    c->log = (wefti_log_t){c->params.log, c->params.log_user,
                           c->params.log == NULL ? WEFT_LOG_LEVEL_WARN : WEFT_LOG_LEVEL_DEBUG};
    wefti_arena_init(&c->arena, c->allocator, 0);
    if (c->params.rank_model_count > 0 && c->params.rank_models != NULL) {
        c->params.model_path = c->params.rank_models[0];
    }
    if (c->params.model_path == NULL || c->params.model_path[0] == '\0') {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "model_path", "must be set");
    }
    WEFT_RETURN_IF_ERROR(wefti_compiled_params(&c->params, &c->arena, &c->compiled));
    c->given = c->params;
    if (c->params.topology_path != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_compile_read_topology(c));
    }
    WEFT_RETURN_IF_ERROR(read_devices(c));
    if (c->params.world_size == 0) {
        c->params.world_size =
            c->params.pipeline > 1 ? c->params.pipeline : c->params.tensor_parallel;
    }
    if (c->params.world_size == 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size", "must be set");
    }
    WEFT_RETURN_IF_ERROR(wefti_options_complete(&c->params));
    WEFT_RETURN_IF_ERROR(check_ranks(&c->params));
    read_mesh(c);
    WEFT_RETURN_IF_ERROR(check_shapes(&c->params));
    WEFT_RETURN_IF_ERROR(check_schedule(&c->params));
    read_optimizer(&c->params, &c->optimizer);
    WEFT_RETURN_IF_ERROR(check_optimizer(&c->given, c->optimizer.kind));
    WEFT_RETURN_IF_ERROR(wefti_read_gradient_params(&c->params, &c->gradient_params));
    c->optimizer.divisor = c->gradient_params.divisor;
    c->optimizer.clip_norm = c->gradient_params.clip_norm;
    WEFT_RETURN_IF_ERROR(wefti_policy_parse(c->params.bucket, &c->arena, &c->policy));
    uint64_t unit = WEFTI_PLAN_ALIGNMENT;
    unit *= c->params.shard_optimizer ? c->params.world_size : 1;
    unit *= c->gradient_params.wire == WEFT_DTYPE_BF16 ? 2 : 1;
    if (unit > WEFTI_PLAN_ALIGNMENT) { /* padded to whole shards, a bucket still keeps to the cap */
        wefti_policy_round_cap(&c->policy, unit);
    }
    if (c->params.topology_path != NULL) {
        /* has loaded them, and put its links in */
    } else if (c->params.costs_path != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_costs_load(&c->costs, c->params.costs_path, c->allocator));
    } else {
        wefti_costs_default(&c->costs, c->allocator);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_rules_read(&c->params, c->place, &c->mesh, &c->compiled, &c->arena, &c->rules));
    c->rules.described = c->world.ranks > 0 ? &c->described : NULL;
    const wefti_axis_t *data = c->mesh.axis_count > 0 ? &c->axes[WEFTI_GROUP_DATA - 1] : NULL;
    uint32_t reducers = data != NULL ? data->size : c->params.world_size;
    const wefti_rules_t *rules = &c->rules;
    if (data != NULL) {
        WEFT_RETURN_IF_ERROR(
            wefti_rules_of_axis(&c->rules, data, c->params.world_size, &c->arena, &rules));
    }
    c->rates = c->world.ranks > 0 ? wefti_rates_of(&c->costs, c->world.hosts, c->world.largest_host,
                                                   c->world.largest_host_cores)
                                  : wefti_rates_of(&c->costs, 1, c->params.world_size, 0);
    if (c->params.profile_path != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_profile_load(c->params.profile_path, &c->arena, &c->profile));
    }
    WEFT_RETURN_IF_ERROR(
        wefti_collective_cost(&c->costs, reducers, rules, &c->profile, &c->arena, &c->bucket_cost));
    c->sharded = c->params.shard_optimizer && c->params.world_size > 1;
    if (c->sharded) {
        WEFT_RETURN_IF_ERROR(wefti_shard_cost(&c->costs, c->params.world_size, &c->rules,
                                              &c->profile, &c->arena, &c->shard_cost));
    }
    if (c->params.registry == NULL || c->params.ops_path != NULL) {
        WEFT_RETURN_IF_ERROR(weft_registry_create(c->allocator, &c->own_registry));
        WEFT_RETURN_IF_ERROR(wefti_registry_add_defs(c->own_registry, c->params.registry));
        c->params.registry = c->own_registry;
    }
    if (c->params.ops_path != NULL) {
        WEFT_RETURN_IF_ERROR(weft_registry_load_ops(c->own_registry, c->params.ops_path));
    }
    return WEFT_OK;
}
