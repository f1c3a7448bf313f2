/* SPDX-License-Identifier: Apache-2.0 */
/* The whole way from a model to a plan. Messages name parameters as the command line spells them.
 */
#include <math.h>
#include <string.h>

#include "fusion/fusion.h"
#include "fusion/schedule_graph.h"
#include "graph/onnx.h"
#include "ops/op_defs.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

#define DEFAULT_BUCKET "auto"
#define DEFAULT_OPTIMIZER "momentum"
#define MAX_WORLD_SIZE 65536u

/* What a compile needs and gives back at the end. */
typedef struct compiler {
    weft_compile_params_t params; /* defaults filled in */
    const weft_allocator_t *allocator;
    wefti_log_t log;
    weft_registry_t *own_registry;
    wefti_arena_t arena;
    wefti_policy_t policy;
    wefti_costs_t costs;
    wefti_profile_t profile;
    wefti_bucket_cost_t bucket_cost;
    bool sharded;                  /* updates are: there is more than one rank to do them */
    wefti_shard_cost_t shard_cost; /* where they are */
    wefti_plan_forecast_t forecast;
    wefti_optimizer_params_t optimizer;
    wefti_gradient_params_t gradient_params;
    uint64_t micro_batches_ns;      /* what those before a step's last one are predicted to take */
    wefti_gradient_map_t gradients; /* of --grads */
    weft_compile_params_t given;    /* before defaults were filled in */
    wefti_compiled_t compiled;      /* the model is a compiled graph */
    wefti_onnx_emit_t *emit;        /* of --emit-onnx */
    wefti_graph_t *graph;
    wefti_graph_t **rank_graphs; /* several models: one per rank, the first being graph */
} compiler_t;

static weft_status_t read_optimizer(const weft_compile_params_t *params,
                                    wefti_optimizer_params_t *out)
{
    static const char *const names[] = {"sgd", "momentum", "adam"};
    static const wefti_optimizer_t kinds[] = {WEFTI_OPTIMIZER_SGD, WEFTI_OPTIMIZER_MOMENTUM,
                                              WEFTI_OPTIMIZER_ADAM};
    *out = (wefti_optimizer_params_t){.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    for (size_t i = 0;; i++) {
        if (i == sizeof(names) / sizeof(names[0])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "--optimizer %s: not known; use sgd, momentum or adam",
                               params->optimizer);
        }
        if (strcmp(params->optimizer, names[i]) == 0) {
            out->kind = kinds[i];
            break;
        }
    }
    if (!isfinite(params->lr) || params->lr < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--lr %g: must be a number above 0",
                           params->lr);
    }
    if (!isfinite(params->momentum) || params->momentum < 0 || params->momentum >= 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "momentum %g: must be at least 0 and below 1",
                           params->momentum);
    }
    if (!isfinite(params->weight_decay) || params->weight_decay < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "weight_decay %g: must not be negative",
                           params->weight_decay);
    }
    out->lr = params->lr != 0 ? params->lr : out->kind == WEFTI_OPTIMIZER_ADAM ? 0.001 : 0.05;
    out->momentum = params->momentum != 0 ? params->momentum : 0.9;
    out->weight_decay = params->weight_decay;
    return WEFT_OK;
}

static weft_status_t check_shapes(const weft_compile_params_t *params)
{
    if (params->shape_count > 0 && params->shapes == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "shapes is NULL, but shape_count is %u",
                           params->shape_count);
    }
    for (uint32_t i = 0; i < params->shape_count; i++) {
        const weft_input_shape_t *shape = &params->shapes[i];
        if (shape->name == NULL || shape->rank > WEFT_MAX_DIMS) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--shape %s: at most %u dimensions",
                               shape->name == NULL ? "(no name)" : shape->name, WEFT_MAX_DIMS);
        }
        for (uint32_t j = 0; j < shape->rank; j++) {
            if (shape->dims[j] < 1) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "--shape %s: dimension %u is %lld, it must be at least 1",
                                   shape->name, j, (long long)shape->dims[j]);
            }
        }
    }
    return WEFT_OK;
}

/* Everything that makes sense only one way: for inference, or for training. */
static weft_status_t check_inference(const weft_compile_params_t *p)
{
    const char *training = p->loss != NULL        ? "--loss"
                           : p->optimizer != NULL ? "--optimizer"
                           : p->lr != 0           ? "--lr"
                           : p->momentum != 0     ? "--momentum"
                           : p->weight_decay != 0 ? "--weight-decay"
                           : p->bucket != NULL    ? "--bucket"
                           : p->shard_optimizer   ? "--shard-optimizer"
                           : p->decouple          ? "--decouple"
                           : p->accumulate > 0    ? "--accumulate"
                           : p->shards > 0        ? "--shards"
                           : p->wire != NULL      ? "--wire"
                           : p->clip_norm != 0    ? "--clip"
                           : p->grads_path        ? "--grads"
                                                  : NULL;
    if (!p->infer && (p->split_batch || p->rank_model_count > 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s without --infer",
                           p->split_batch ? "--split-batch" : "several models");
    }
    if (p->infer && training != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s is for training: --infer excludes it",
                           training);
    }
    if (p->split_batch && p->rank_model_count > 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "--split-batch takes one model, which all ranks run");
    }
    if (p->split_batch && p->batch == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "--split-batch needs --batch, that of all ranks together");
    }
    if (p->split_batch && p->batch % p->world_size != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "--batch %lld: with --split-batch it is the batch of all ranks "
                           "together, a multiple of --world %u",
                           (long long)p->batch, p->world_size);
    }
    if (p->rank_model_count > 0 &&
        (p->rank_models == NULL || p->rank_model_count != p->world_size)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%u models for --world %u: give one model, or one per rank",
                           p->rank_model_count, p->world_size);
    }
    for (uint32_t r = 0; r < p->rank_model_count; r++) {
        if (p->rank_models[r] == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the model of rank %u is NULL", r);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_params(compiler_t *c, const weft_compile_params_t *params)
{
    weft_status_t status;
    size_t size;
    if (params == NULL || params->struct_size < sizeof(params->struct_size)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "params is NULL or its struct_size is not set");
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
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "no model is given");
    }
    WEFT_TRY(status, wefti_compiled_params(&c->params, &c->arena, &c->compiled), fail);
    c->given = c->params;
    if (c->params.world_size == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "--world N is missing (--world 0: must be between 1 and %u)",
                           MAX_WORLD_SIZE);
    }
    if (c->params.world_size > MAX_WORLD_SIZE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--world %u: must be between 1 and %u",
                           c->params.world_size, MAX_WORLD_SIZE);
    }
    if (c->params.batch < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--batch %lld: must be at least 1",
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
    if (c->params.costs_path != NULL) {
        WEFT_TRY(status, wefti_costs_load(&c->costs, c->params.costs_path, c->allocator), fail);
    } else {
        wefti_costs_default(&c->costs, c->allocator);
    }
    if (c->params.profile_path != NULL) {
        WEFT_TRY(status, wefti_profile_load(c->params.profile_path, &c->arena, &c->profile), fail);
    }
    WEFT_TRY(status,
             wefti_collective_cost(&c->costs, c->params.world_size, &c->profile, &c->arena,
                                   &c->bucket_cost),
             fail);
    c->sharded = c->params.shard_optimizer && c->params.world_size > 1;
    c->optimizer.sharded = c->sharded;
    if (c->sharded) {
        WEFT_TRY(status,
                 wefti_shard_cost(&c->costs, c->params.world_size, &c->profile, &c->arena,
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

/* Operators of unknown effect keep others apart: who does not know that wonders about the buckets.
 */
static void name_fences(const compiler_t *c, const wefti_graph_t *graph, const char *path)
{
    uint32_t count = 0;
    const wefti_node_t *first = NULL;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if ((node->def->effects & WEFT_EFFECT_UNKNOWN) != 0) {
            first = first != NULL ? first : node;
            count++;
        }
    }
    if (first != NULL) {
        wefti_log(
            &c->log, WEFT_LOG_WARN,
            "%s: %u operator%s of unknown effect, node '%s' (%s.%s) %s, that nothing is moved "
            "across; if it has none, say so with --ops",
            path, count, count == 1 ? "" : "s", first->name, first->def->domain, first->def->name,
            count == 1 ? "is it" : "is the first");
    }
}

/* A model with its shapes bound. */
static weft_status_t import_graph(compiler_t *c, const char *path, int64_t batch,
                                  wefti_graph_t **out_graph)
{
    weft_status_t status;
    wefti_graph_t *graph = NULL;
    wefti_onnx_import_params_t params = {.path = path,
                                         .loss = c->params.loss,
                                         .loss_optional = c->params.infer != 0,
                                         .world_size = c->params.world_size,
                                         .infer = c->params.infer != 0};
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
    if (c->params.grads_path != NULL) {
        WEFT_TRY(status, wefti_grads_map_load(c->params.grads_path, &c->arena, &c->gradients),
                 fail);
        params.gradients = &c->gradients;
    }
    WEFT_TRY(status, wefti_onnx_import(&params, c->allocator, c->params.registry, &graph), fail);
    name_fences(c, graph, path);
    if (wefti_graph_has_gradients(graph)) {
        WEFT_TRY(status, wefti_graph_use_gradients(graph, &c->log), fail);
    }
    WEFT_TRY(status, wefti_graph_bind_shapes(graph, batch, shapes, c->params.shape_count), fail);
    WEFT_TRY(status, wefti_graph_tidy_collectives(graph, c->params.world_size), fail);
    WEFT_TRY(status, wefti_graph_settle_gradients(graph), fail);
    wefti_log(&c->log, WEFT_LOG_DEBUG, "%s: %u operators imported", path, graph->order_count);
    *out_graph = graph;
    return WEFT_OK;
fail:
    wefti_graph_destroy(graph);
    return status;
}

/* A graph that was compiled before, up to what depends on layouts. */
static weft_status_t import_compiled(compiler_t *c)
{
    weft_status_t status;
    wefti_onnx_import_params_t params = {.path = c->params.model_path,
                                         .compiled = c->compiled.properties,
                                         .compiled_count = c->compiled.count};
    WEFT_TRY(status, wefti_onnx_import(&params, c->allocator, c->params.registry, &c->graph), fail);
    if (wefti_graph_has_gradients(c->graph) != !c->params.infer) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: a compiled graph for %s, but %s",
                           c->params.model_path, c->params.infer ? "inference" : "training",
                           c->params.infer ? "it trains" : "it trains nothing");
    }
    status = wefti_graph_infer_shapes(c->graph);
fail:
    return status;
}

/* Applies what a pass answered. */
static weft_status_t apply(compiler_t *c, weft_edit_list_t *edits)
{
    weft_status_t status = wefti_graph_apply(c->graph, edits);
    wefti_log(&c->log, WEFT_LOG_DEBUG, "%zu edits", weft_edit_list_count(edits));
    weft_edit_list_destroy(edits);
    return status;
}

/* Whether a collective may update what it reduces: f32, with nothing to compute in between. */
static bool may_sweep(const compiler_t *c)
{
    return c->sharded && !c->params.decouple && c->gradient_params.wire == WEFT_DTYPE_F32 &&
           c->gradient_params.clip_norm == 0;
}

/* What the comm stream spends on a bucket. Of a sharded one that is a sweep, the update included,
 * or the reduce-scatter alone: updates and gathers come later. */
static weft_status_t planned_cost(compiler_t *c, wefti_bucket_cost_t *out_cost)
{
    double states = c->optimizer.kind == WEFTI_OPTIMIZER_ADAM       ? 2
                    : c->optimizer.kind == WEFTI_OPTIMIZER_MOMENTUM ? 1
                                                                    : 0;
    *out_cost = c->sharded ? c->shard_cost.reduce_scatter : c->bucket_cost;
    return may_sweep(c) ? wefti_bucket_cost_add(&c->bucket_cost,
                                                (1 + 2 * states) / c->params.world_size *
                                                    WEFTI_UPDATE_NS_PER_BYTE,
                                                &c->arena, out_cost)
                        : WEFT_OK;
}

/* In bf16 half as much travels. */
static weft_status_t wire_cost(compiler_t *c, wefti_bucket_cost_t *cost)
{
    wefti_bucket_cost_t whole = *cost;
    return c->gradient_params.wire == WEFT_DTYPE_BF16
               ? wefti_bucket_cost_shrink(&whole, 0.5, &c->arena, cost)
               : WEFT_OK;
}

/* Gradients are reduced behind a step's last micro-batch: those before it take as long each. */
static void add_micro_batches(compiler_t *c, uint64_t *ready_ns)
{
    uint64_t last = 0, most = 1000000000000000ull, before;
    for (uint32_t i = 0; i < c->graph->order_count; i++) {
        uint64_t ready = ready_ns[c->graph->order[i]];
        last = ready > last ? ready : last;
    }
    if (__builtin_mul_overflow(last, c->gradient_params.accumulate - 1, &before) || before > most) {
        before = most;
    }
    for (uint32_t i = 0; i < c->graph->order_count && last < most; i++) {
        ready_ns[c->graph->order[i]] += before;
    }
    c->micro_batches_ns = before;
}

static weft_status_t insert_and_fuse(compiler_t *c)
{
    weft_status_t status;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    weft_edit_list_t *edits = NULL;
    uint64_t *ready_ns = NULL;
    WEFT_TRY(status, wefti_graph_view(c->graph, &c->arena, &view), fail);
    WEFT_TRY(status, wefti_pass_insert_collectives(&view, c->allocator, &edits), fail);
    WEFT_TRY(status, apply(c, edits), fail);
    WEFT_TRY(status, wefti_graph_view(c->graph, &c->arena, &view), fail);
    WEFT_TRY(status, wefti_predict_ready(c->graph, &c->profile, &c->arena, &ready_ns), fail);
    add_micro_batches(c, ready_ns);
    wefti_bucket_cost_t cost;
    WEFT_TRY(status, planned_cost(c, &cost), fail);
    WEFT_TRY(status, wire_cost(c, &cost), fail);
    wefti_bucket_params_t params = {&c->policy, ready_ns, &cost, c->allocator, &c->arena};
    WEFT_TRY(status, wefti_pass_bucket(&view, &params, &edits, &c->forecast), fail);
    WEFT_TRY(status, apply(c, edits), fail);
fail:
    return status;
}

/* All kernels of a step, updates included, of which a rank has its share; sweeps count theirs as
 * communication. */
static weft_status_t predict_step(compiler_t *c)
{
    weft_status_t status = WEFT_OK;
    uint64_t *ready_ns = NULL, before = 0, updates = 0;
    if (c->profile.known) {
        c->forecast.compute_ps = (uint64_t)(c->profile.compute_ns * 1e3);
    } else if (c->graph->order_count > 0) {
        WEFT_TRY(status, wefti_predict_ready(c->graph, &c->profile, &c->arena, &ready_ns), fail);
        for (uint32_t i = 0; i < c->graph->order_count; i++) {
            uint32_t id = c->graph->order[i];
            updates += c->graph->nodes[id].phase == WEFTI_PHASE_UPDATE ? ready_ns[id] - before : 0;
            before = ready_ns[id];
        }
        before -= c->sharded ? updates : 0;
        before += c->sharded && !may_sweep(c) ? updates / c->params.world_size : 0;
        c->forecast.compute_ps =
            (before < 1000000000000000ull ? before : 1000000000000000ull) * 1000;
    }
    c->forecast.compute_ps += c->micro_batches_ns * 1000;
fail:
    return status;
}

/* The evaluation model is an opaque section of the plan. */
static weft_status_t add_eval_model(compiler_t *c, weft_plan_t *plan)
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

static void use_inference(compiler_t *c, wefti_lower_params_t *params)
{
    params->infer = true;
    params->policy = params->optimizer = "none";
    params->forecast = NULL;
    params->flags = c->params.split_batch ? WEFTI_PLAN_SPLIT_BATCH : 0;
    params->rank_graphs = (const wefti_graph_t *const *)c->rank_graphs;
    params->rank_graph_count = c->params.rank_model_count;
}

static void read_lower_params(compiler_t *c, wefti_lower_params_t *params)
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
                                     .sweep = may_sweep(c),
                                     .shard_cost = c->sharded ? &c->shard_cost : NULL,
                                     .gradients = c->gradient_params,
                                     .in_flight = c->params.in_flight,
                                     .costs = &c->costs,
                                     .allocator = c->allocator};
    if (c->params.infer) {
        use_inference(c, params);
    }
}

/* List scheduling: of inference always, of training where a bound asks for it. */
static weft_status_t order_graph(compiler_t *c)
{
    wefti_lower_params_t lower;
    wefti_schedule_options_t options = {.profile = &c->profile,
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

static weft_status_t check_limit(const compiler_t *c, const weft_plan_t *plan)
{
    char text[2][32];
    if (c->params.arena_limit == 0 || plan->arena_bytes <= c->params.arena_limit) {
        return WEFT_OK;
    }
    wefti_format_bytes(c->params.arena_limit, text[0]);
    wefti_format_bytes(plan->arena_bytes, text[1]);
    return wefti_error(WEFT_ERR_UNSUPPORTED, "--arena-limit %s: the plan needs %s", text[0],
                       text[1]);
}

static weft_status_t finish_plan(compiler_t *c, weft_plan_t **out_plan)
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

/* The graphs of all ranks; the first is the one that is compiled. */
static weft_status_t import_rank_models(compiler_t *c)
{
    uint32_t count = c->params.rank_model_count;
    c->rank_graphs = wefti_arena_array(&c->arena, count, sizeof(*c->rank_graphs));
    if (c->rank_graphs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < count; r++) {
        weft_status_t status =
            import_graph(c, c->params.rank_models[r], c->params.batch, &c->rank_graphs[r]);
        if (status >= 0) {
            status = wefti_graph_prepare_inference(c->rank_graphs[r]);
        }
        if (status < 0) {
            return wefti_error_prefix(status, "the model of rank %u", r);
        }
    }
    c->graph = c->rank_graphs[0];
    return wefti_graph_compare_ranks((const wefti_graph_t *const *)c->rank_graphs,
                                     c->params.rank_models, count);
}

/* The graph for a rank's share of the batch, between the operators that give and gather it. */
static weft_status_t import_share(compiler_t *c)
{
    weft_status_t status;
    wefti_graph_t *whole = NULL;
    int64_t batch = c->params.batch;
    WEFT_TRY(status, import_graph(c, c->params.model_path, batch / c->params.world_size, &c->graph),
             fail);
    WEFT_TRY(status, wefti_graph_prepare_inference(c->graph), fail);
    WEFT_TRY(status, import_graph(c, c->params.model_path, batch, &whole), fail);
    WEFT_TRY(status, wefti_graph_prepare_inference(whole), fail);
    WEFT_TRY(status, wefti_graph_split_batch(c->graph, whole, c->params.world_size), fail);
fail:
    wefti_graph_destroy(whole);
    return status;
}

/* The graph as it is before memory and kernels are thought of. */
static weft_status_t begin_emit(compiler_t *c)
{
    if (c->params.emit_path == NULL) {
        return WEFT_OK;
    }
    if (c->params.rank_model_count > 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "--emit-onnx: one file cannot hold the weights of several models");
    }
    return wefti_onnx_emit_begin(c->graph, c->allocator, &c->emit);
}

static weft_status_t compile_inference(compiler_t *c, weft_plan_t **out_plan)
{
    weft_status_t status;
    if (c->compiled.known) {
        WEFT_TRY(status, import_compiled(c), fail);
    } else if (c->params.rank_model_count > 0) {
        WEFT_TRY(status, import_rank_models(c), fail);
    } else if (c->params.split_batch) {
        WEFT_TRY(status, import_share(c), fail);
    } else {
        WEFT_TRY(status, import_graph(c, c->params.model_path, c->params.batch, &c->graph), fail);
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
static weft_status_t make_training_graph(compiler_t *c)
{
    weft_status_t status;
    WEFT_TRY(status, import_graph(c, c->params.model_path, c->params.batch, &c->graph), fail);
    if (c->graph->loss == WEFTI_NONE && !wefti_graph_has_gradients(c->graph)) {
        return wefti_error(
            WEFT_ERR_NOT_FOUND,
            "%s: no loss node; export the model with its loss, or name it with --loss",
            c->params.model_path);
    }
    WEFT_TRY(status, wefti_graph_differentiate(c->graph), fail);
    WEFT_TRY(status, insert_and_fuse(c), fail);
    WEFT_TRY(status, wefti_graph_add_optimizer(c->graph, &c->optimizer), fail);
fail:
    return status;
}

static weft_status_t compile(compiler_t *c, weft_plan_t **out_plan)
{
    weft_status_t status;
    WEFT_TRY(status, c->compiled.known ? import_compiled(c) : make_training_graph(c), fail);
    WEFT_TRY(status, order_graph(c), fail);
    WEFT_TRY(status, begin_emit(c), fail);
    WEFT_TRY(status, wefti_pass_layout(c->graph), fail);
    WEFT_TRY(status, wefti_graph_verify(c->graph), fail);
    WEFT_TRY(status, predict_step(c), fail);
    WEFT_TRY(status, finish_plan(c, out_plan), fail);
    wefti_log(&c->log, WEFT_LOG_DEBUG, "%u kernels, %u collectives, arena of %llu bytes",
              (*out_plan)->kernel_count, (*out_plan)->collective_count,
              (unsigned long long)(*out_plan)->arena_bytes);
fail:
    return status;
}

weft_status_t weft_compile(const weft_compile_params_t *params, weft_plan_t **out_plan)
{
    weft_status_t status;
    compiler_t c = {0};
    if (out_plan == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "out_plan is NULL");
    }
    *out_plan = NULL;
    WEFT_TRY(status, read_params(&c, params), done);
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
