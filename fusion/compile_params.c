/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a compile. Messages name them as the command line spells them. */
#include "fusion/compile.h"

#include <math.h>
#include <string.h>

#include "ops/op_defs.h"
#include "runtime/base/error.h"

#define DEFAULT_BUCKET "auto"
#define DEFAULT_OPTIMIZER "momentum"
#define MAX_WORLD_SIZE 65536u

static weft_status_t read_optimizer(const weft_compile_params_t *params,
                                    wefti_optimizer_params_t *out)
{
    static const char *const names[] = {"sgd", "momentum", "adam"};
    static const wefti_optimizer_t kinds[] = {WEFTI_OPTIMIZER_SGD, WEFTI_OPTIMIZER_MOMENTUM,
                                              WEFTI_OPTIMIZER_ADAM};
    *out = (wefti_optimizer_params_t){.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    for (size_t i = 0;; i++) {
        if (i == sizeof(names) / sizeof(names[0])) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "optimizer",
                                     "unknown optimizer '%s'; expected sgd, momentum or adam",
                                     params->optimizer);
        }
        if (strcmp(params->optimizer, names[i]) == 0) {
            out->kind = kinds[i];
            break;
        }
    }
    if (!isfinite(params->lr) || params->lr < 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "lr", "must be above 0 and finite: %g",
                                 params->lr);
    }
    if (!isfinite(params->momentum) || params->momentum < 0 || params->momentum >= 1) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "momentum",
                                 "must be at least 0 and below 1: %g", params->momentum);
    }
    if (!isfinite(params->weight_decay) || params->weight_decay < 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "weight_decay",
                                 "must be at least 0 and finite: %g", params->weight_decay);
    }
    out->lr = params->lr != 0 ? params->lr : out->kind == WEFTI_OPTIMIZER_ADAM ? 0.001 : 0.05;
    out->momentum = params->momentum != 0 ? params->momentum : 0.9;
    out->weight_decay = params->weight_decay;
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

/* Parameters that are only for inference, or only for training. */
static weft_status_t check_inference(const weft_compile_params_t *p)
{
    const char *training = p->loss != NULL               ? "loss"
                           : p->optimizer != NULL        ? "optimizer"
                           : p->lr != 0                  ? "lr"
                           : p->momentum != 0            ? "momentum"
                           : p->weight_decay != 0        ? "weight_decay"
                           : p->bucket != NULL           ? "bucket"
                           : p->shard_optimizer          ? "shard_optimizer"
                           : p->decouple                 ? "decouple"
                           : p->accumulate > 0           ? "accumulate"
                           : p->global_micro_batches > 0 ? "global_micro_batches"
                           : p->wire != NULL             ? "wire"
                           : p->clip_norm != 0           ? "clip_norm"
                           : p->grads_path               ? "grads_path"
                                                         : NULL;
    if (!p->infer && (p->split_batch || p->rank_model_count > 0)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT,
                                 p->split_batch ? "split_batch" : "rank_models", "requires infer");
    }
    if (p->infer && training != NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, training,
                                 "only for training, but infer is set");
    }
    if (p->split_batch && p->rank_model_count > 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "split_batch",
                                 "excludes rank_models: all ranks run one model");
    }
    if (p->split_batch && p->batch == 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "split_batch",
                                 "requires batch, the samples of all ranks together");
    }
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

weft_status_t wefti_error_under_field(weft_status_t status, const char *name)
{
    return wefti_error_field(status, name, "%s", weft_last_error());
}

weft_status_t wefti_compile_read_params(wefti_compiler_t *c, const weft_compile_params_t *params)
{
    weft_status_t status;
    size_t size;
    if (params == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "params is NULL");
    }
    if (params->struct_size < sizeof(params->struct_size)) {
        return wefti_error_struct_size("params");
    }
    /* An older caller's struct is shorter: what it lacks is zero, the default. */
    size = params->struct_size < sizeof(c->params) ? params->struct_size : sizeof(c->params);
    memcpy(&c->params, params, size);
    c->allocator = c->params.allocator;
    c->log = (wefti_log_t){c->params.log, c->params.log_user,
                           c->params.log == NULL ? WEFT_LOG_WARN : WEFT_LOG_DEBUG};
    wefti_arena_init(&c->arena, c->allocator, 0);
    if (c->params.rank_model_count > 0 && c->params.rank_models != NULL) {
        c->params.model_path = c->params.rank_models[0];
    }
    if (c->params.model_path == NULL || c->params.model_path[0] == '\0') {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "model_path", "must be set");
    }
    WEFT_TRY(status, wefti_compiled_params(&c->params, &c->arena, &c->compiled), fail);
    c->given = c->params;
    if (c->params.topology_path != NULL) {
        WEFT_TRY(status, wefti_compile_read_topology(c), fail);
    }
    if (c->params.world_size == 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                 "must be set, between 1 and %u", MAX_WORLD_SIZE);
    }
    if (c->params.world_size > MAX_WORLD_SIZE) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                 "must be between 1 and %u: %u", MAX_WORLD_SIZE,
                                 c->params.world_size);
    }
    if (c->params.batch < 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "batch", "must not be negative: %lld",
                                 (long long)c->params.batch);
    }
    WEFT_TRY(status, check_inference(&c->params), fail);
    c->params.optimizer = c->params.optimizer == NULL ? DEFAULT_OPTIMIZER : c->params.optimizer;
    c->params.bucket = c->params.bucket == NULL ? DEFAULT_BUCKET : c->params.bucket;
    WEFT_TRY(status, check_shapes(&c->params), fail);
    WEFT_TRY(status, read_optimizer(&c->params, &c->optimizer), fail);
    WEFT_TRY(status, wefti_read_gradient_params(&c->params, &c->gradient_params), fail);
    c->optimizer.divisor = c->gradient_params.divisor;
    c->optimizer.clip_norm = c->gradient_params.clip_norm;
    WEFT_TRY(status, wefti_policy_parse(c->params.bucket, &c->arena, &c->policy), fail);
    if (c->params.decouple) {
        c->params.shard_optimizer = 1;
    }
    uint64_t unit = WEFTI_PLAN_ALIGNMENT;
    unit *= c->params.shard_optimizer ? c->params.world_size : 1;
    unit *= c->gradient_params.wire == WEFT_DTYPE_BF16 ? 2 : 1;
    if (unit > WEFTI_PLAN_ALIGNMENT) { /* padded to whole shards, a bucket still keeps to the cap */
        wefti_policy_round_cap(&c->policy, unit);
    }
    if (c->params.topology_path != NULL) {
        /* has loaded them, and put its links in */
    } else if (c->params.costs_path != NULL) {
        WEFT_TRY(status, wefti_costs_load(&c->costs, c->params.costs_path, c->allocator), fail);
    } else {
        wefti_costs_default(&c->costs, c->allocator);
    }
    c->rates = wefti_rates_of(&c->costs, c->params.world_size, c->place);
    if (c->params.profile_path != NULL) {
        WEFT_TRY(status, wefti_profile_load(c->params.profile_path, &c->arena, &c->profile), fail);
    }
    WEFT_TRY(status,
             wefti_collective_cost(&c->costs, c->params.world_size, c->place, &c->profile,
                                   &c->arena, &c->bucket_cost),
             fail);
    c->sharded = c->params.shard_optimizer && c->params.world_size > 1;
    c->optimizer.sharded = c->sharded;
    if (c->sharded) {
        WEFT_TRY(status,
                 wefti_shard_cost(&c->costs, c->params.world_size, c->place, &c->profile, &c->arena,
                                  &c->shard_cost),
                 fail);
    }
    if (c->params.registry == NULL || c->params.ops_path != NULL) {
        WEFT_TRY(status, weft_registry_create(c->allocator, &c->own_registry), fail);
        WEFT_TRY(status, wefti_registry_add_defs(c->own_registry, c->params.registry), fail);
        c->params.registry = c->own_registry;
    }
    if (c->params.ops_path != NULL) {
        WEFT_TRY(status, weft_registry_load_ops(c->own_registry, c->params.ops_path), fail);
    }
fail:
    return status;
}
