/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/pipeline.h"

#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/compute/halves.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"
#include "runtime/base/sync.h"

static bool holds_gradients(const wefti_compiler_t *c)
{
    return wefti_graph_has_gradients(c->graph);
}

static bool lacks_gradients(const wefti_compiler_t *c)
{
    return !wefti_graph_has_gradients(c->graph);
}

static bool has_rank_models(const wefti_compiler_t *c)
{
    return c->params.rank_model_count > 1;
}

static bool divides_products(const wefti_compiler_t *c)
{
    return c->params.tensor_parallel > 1;
}

static bool has_stages(const wefti_compiler_t *c)
{
    return c->params.pipeline > 1;
}

static bool divides_batch(const wefti_compiler_t *c)
{
    return has_stages(c) && c->params.pipeline_micro_batches > 1;
}

static bool splits_batch(const wefti_compiler_t *c)
{
    return c->params.split_batch != 0;
}

static bool narrows(const wefti_compiler_t *c)
{
    bool half = strcmp(c->params.precision, "f32") != 0;
    for (uint32_t v = 0; v < c->graph->value_count && !c->params.infer && !half; v++) {
        half = c->graph->values[v].kind == WEFTI_VALUE_PARAM &&
               wefti_is_half(c->graph->values[v].type.dtype) && lacks_gradients(c);
    }
    return half;
}

static bool smooths(const wefti_compiler_t *c)
{
    return c->params.label_smoothing > 0;
}

static bool synchronizes(const wefti_compiler_t *c)
{
    return c->params.sync_batch_norm != 0 && c->params.world_size > 1;
}

static bool clips(const wefti_compiler_t *c)
{
    return c->optimizer.clip_norm > 0;
}

/* Training keeps the order of the graph unless there is a bound. */
static bool schedules(const wefti_compiler_t *c)
{
    return c->params.arena_limit == 0 && !has_stages(c) &&
           (c->params.infer || c->params.in_flight > 0);
}

static bool recomputes(const wefti_compiler_t *c)
{
    return c->params.recompute != NULL && strcmp(c->params.recompute, "auto") != 0;
}

static bool limits_arena(const wefti_compiler_t *c)
{
    return c->params.arena_limit > 0;
}

/* A compiled graph has programs, unless an older Weft wrote it. */
static bool lacks_programs(const wefti_compiler_t *c)
{
    return !c->compiled.known ||
           wefti_onnx_property(c->compiled.properties, c->compiled.count, "program.step") == NULL;
}

static bool sums(const wefti_compiler_t *c)
{
    return c->gradient_params.divisor > 0 && lacks_programs(c);
}

static bool rounds(const wefti_compiler_t *c)
{
    return c->gradient_params.wire == WEFT_DTYPE_BF16 && lacks_programs(c);
}

static bool shards(const wefti_compiler_t *c)
{
    return c->sharded && lacks_programs(c);
}

static bool decouples(const wefti_compiler_t *c)
{
    return shards(c) && c->params.decouple;
}

static bool shards_parameters(const wefti_compiler_t *c)
{
    return shards(c) && c->params.shard_parameters != 0;
}

static bool emits(const wefti_compiler_t *c)
{
    return c->params.emit_path != NULL;
}

#define TRAINING WEFTI_PASS_TRAINING
#define INFERENCE WEFTI_PASS_INFERENCE
#define BOTH (TRAINING | INFERENCE)
#define COMPILED WEFTI_PASS_COMPILED
#define MODELS WEFTI_PASS_MODELS

static const wefti_pass_t passes[] = {
    {"normalize-collectives", "collectives of the model take one form", BOTH | MODELS, NULL,
     wefti_apply_normalize_collectives},
    {"given-gradients", "finds gradients that the model contains", TRAINING, NULL,
     wefti_apply_given_gradients},
    {"parameters", "decides which initializers are trained", TRAINING, NULL,
     wefti_apply_parameters},
    {"bind-shapes", "dimensions of inputs become numbers", BOTH | MODELS, NULL,
     wefti_apply_bind_shapes},
    {"fold", "infers all types and evaluates operators on constants", BOTH | MODELS, NULL,
     wefti_apply_fold},
    {"expand", "operators that ONNX defines by others become these", BOTH | MODELS, NULL,
     wefti_apply_expand},
    {"tidy-collectives", "collectives absorb divisions and transpositions", BOTH | MODELS, NULL,
     wefti_apply_tidy_collectives},
    {"settle-gradients", "each given gradient becomes a tensor of its own", TRAINING,
     holds_gradients, wefti_apply_settle_gradients},
    {"expand-dropout", "decides which Dropout operators drop", BOTH | MODELS, NULL,
     wefti_apply_expand_dropout},
    {"label-smoothing", "losses of smoothed labels", TRAINING, smooths,
     wefti_apply_label_smoothing},
    {"inference-form", "removes the loss and unused operators", INFERENCE | MODELS, NULL,
     wefti_apply_inference_form},
    {"compare-models", "the models of ranks differ only in contents, or are joined", INFERENCE,
     has_rank_models, wefti_apply_compare_models},
    {"check-micro-batches", "samples of a batch that is divided do not meet", INFERENCE,
     divides_batch, wefti_apply_check_micro_batches},
    {"tensor-parallel", "divides products and their weights over ranks", INFERENCE,
     divides_products, wefti_apply_tensor_parallel},
    {"split-batch", "scatters inputs and gathers outputs of rank 0", INFERENCE, splits_batch,
     wefti_apply_split_batch},
    {"tensor-training", "divides products and their parameters over ranks", TRAINING,
     divides_products, wefti_apply_tensor_training},
    {"fuse-attention", "softmax between two products becomes attention by blocks", BOTH, NULL,
     wefti_apply_fuse_attention},
    {"precision", "half types where they serve, conversions between", BOTH, narrows,
     wefti_apply_precision},
    {"pipeline", "divides the operators into stages, and the batch into micro-batches", BOTH,
     has_stages, wefti_apply_pipeline},
    {"differentiate", "appends the backward pass", TRAINING, lacks_gradients,
     wefti_apply_differentiate},
    {"tensor-gradients", "gradients cross from whole values to parts, and back", TRAINING,
     divides_products, wefti_apply_tensor_gradients},
    {"stage-outputs", "every rank gets the outputs", BOTH, has_stages, wefti_apply_stage_outputs},
    {"sync-batchnorm", "statistics of BatchNormalization are those of all ranks", TRAINING,
     synchronizes, wefti_apply_sync_batch_norm},
    {"absorb-transposes", "products read and write transposed matrices in place", BOTH, NULL,
     wefti_apply_absorb_transposes},
    {"convert-again", "the backward pass converts weights to half types again", TRAINING, NULL,
     wefti_apply_convert_again},
    {"fuse-normalization", "BatchNormalization adds residuals and is the Relu after it", TRAINING,
     NULL, wefti_apply_fuse_normalization},
    {"fuse-elementwise", "element-wise operators in one pass over the data", BOTH, NULL,
     wefti_apply_fuse_elementwise},
    {"insert-collectives", "an AllReduce on every local gradient", TRAINING, NULL,
     wefti_apply_insert_collectives},
    {"bucket", "fuses collectives into buckets, splits large ones", BOTH, NULL, wefti_apply_bucket},
    {"pack", "reduce-scatters and all-gathers of several tensors become those of one", BOTH, NULL,
     wefti_apply_pack},
    {"clip", "the scale that bounds the norm of all gradients", TRAINING, clips, wefti_apply_clip},
    {"optimizer", "an update per parameter", TRAINING, NULL, wefti_apply_optimizer},
    {"recompute", "named activations are computed again in the backward pass", TRAINING, recomputes,
     wefti_apply_recompute},
    {"schedule", "list scheduling", BOTH, schedules, wefti_apply_schedule},
    {"stage-order", "stages work on micro-batches at the same time", BOTH, divides_batch,
     wefti_apply_stage_order},
    {"fit-arena", "schedules and lowers repeatedly until the plan fits arena_limit", BOTH,
     limits_arena, wefti_apply_fit_arena},
    {"accumulate", "partial sums of micro-batches, and the programs that add to them",
     TRAINING | COMPILED, sums, wefti_apply_accumulate},
    {"wire", "rounds gradients, not running statistics, to bf16 before they are reduced",
     TRAINING | COMPILED, rounds, wefti_apply_wire},
    {"shard", "reduce-scatter, update of a shard and all-gather per bucket", TRAINING | COMPILED,
     shards, wefti_apply_shard},
    {"shard-parameters", "all-gathers of weights per pass, so that ranks keep shards",
     TRAINING | COMPILED, shards_parameters, wefti_apply_shard_parameters},
    {"fuse-updates", "one update per bucket; reduce-update-gather where it costs less",
     TRAINING | COMPILED, lacks_programs, wefti_apply_fuse_updates},
    {"programs", "orders a step; programs init, step and eval", BOTH | COMPILED, lacks_programs,
     wefti_apply_programs},
    {"decouple", "all-gathers of weights at the start of the next step; program flush",
     TRAINING | COMPILED, decouples, wefti_apply_decouple},
    {"emit-onnx", "keeps the graph for emit_path", BOTH | COMPILED, emits, wefti_apply_emit_onnx},
    {"layout", "channels-last activations where they are faster", BOTH | COMPILED, NULL,
     wefti_apply_layout},
};

const wefti_pass_t *wefti_passes(size_t *out_count)
{
    *out_count = sizeof(passes) / sizeof(passes[0]);
    return passes;
}

static bool is(const char *name, const wefti_pass_t *pass)
{
    return name != NULL && strcmp(name, pass->name) == 0;
}

static bool applies(const wefti_compiler_t *c, const wefti_pass_t *pass)
{
    wefti_pass_when_t needed = c->params.infer ? INFERENCE : TRAINING;
    needed |= c->compiled.known ? COMPILED : 0;
    return (pass->when & needed) == needed && (pass->enabled == NULL || pass->enabled(c));
}

static weft_status_t verify(const wefti_compiler_t *c, const wefti_pass_t *pass)
{
    weft_status_t status = wefti_graph_verify(c->graph);
    return status >= 0 || status == WEFT_ERR_NO_MEMORY
               ? status
               : wefti_error_prefix(WEFT_ERR_INTERNAL, "pass '%s' made an invalid graph",
                                    pass->name);
}

static weft_status_t run_pass(wefti_compiler_t *c, const wefti_pass_t *pass)
{
    weft_status_t status = WEFT_OK;
    uint32_t count = (pass->when & MODELS) != 0 ? c->model_count : 1;
    for (uint32_t i = 0; i < count && status >= 0; i++) {
        c->model = &c->models[i];
        c->graph = c->model->graph;
        status = c->model->inputs_only ? WEFT_OK : pass->run(c);
        if (status >= 0 && c->params.verify_each && !c->model->inputs_only) {
            status = verify(c, pass);
        }
        if (status < 0 && (pass->when & MODELS) != 0) {
            wefti_error_in_model(c, c->model, status);
        }
    }
    c->model = &c->models[0];
    c->graph = c->model->graph;
    return status;
}

/* A pass that print_after or stop_after names must run. */
static weft_status_t check_skipped(const wefti_compiler_t *c, const wefti_pass_t *pass)
{
    const char *field = is(c->params.stop_after, pass)    ? "stop_after"
                        : is(c->params.print_after, pass) ? "print_after"
                                                          : NULL;
    return field == NULL
               ? WEFT_OK
               : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, field,
                                   "pass '%s' does not run with these parameters", pass->name);
}

static weft_status_t check_name(const char *field, const char *name, const wefti_pass_t *rows,
                                size_t count)
{
    wefti_suggestion_t near = {.word = name};
    for (size_t i = 0; i < count; i++) {
        if (name == NULL || is(name, &rows[i])) {
            return WEFT_OK;
        }
        wefti_suggestion_offer(&near, rows[i].name);
    }
    return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, field, "unknown pass '%s'%s%s%s", name,
                             near.best != NULL ? "; did you mean '" : "",
                             near.best != NULL ? near.best : "", near.best != NULL ? "'?" : "");
}

static weft_status_t check_names(const wefti_compiler_t *c, const wefti_pass_t *rows, size_t count)
{
    const char *print = c->params.print_after;
    weft_status_t status = check_name("stop_after", c->params.stop_after, rows, count);
    if (status >= 0 && print != NULL && strcmp(print, "all") != 0) {
        status = check_name("print_after", print, rows, count);
    }
    return status;
}

weft_status_t wefti_pipeline_report(wefti_compiler_t *c, const char *name, uint32_t nodes_before,
                                    uint64_t start_ns, bool with_text)
{
    weft_pass_report_t report = {.struct_size = sizeof(report),
                                 .name = name,
                                 .nodes_before = nodes_before,
                                 .nodes_after = c->graph->order_count,
                                 .duration_ns = wefti_now_ns() - start_ns};
    wefti_text_t text;
    if (c->params.on_pass == NULL) {
        return WEFT_OK;
    }
    wefti_text_init(&text, c->allocator);
    if (with_text) {
        wefti_graph_to_text(c->graph, 16, &text);
        report.graph_text = text.data;
    }
    bool failed = text.failed;
    if (!failed) {
        c->params.on_pass(c->params.on_pass_user, &report);
    }
    wefti_text_deinit(&text);
    return failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t run_rest(wefti_compiler_t *c)
{
    const wefti_pass_t *rows = c->rest;
    size_t count = c->rest_count;
    weft_status_t status = wefti_pipeline_run(c, rows, count);
    c->rest = rows; /* the rows that ran have set their own */
    c->rest_count = count;
    return status;
}

weft_status_t wefti_pipeline_run(wefti_compiler_t *c, const wefti_pass_t *rows, size_t count)
{
    const char *print = c->params.print_after;
    bool print_all = print != NULL && strcmp(print, "all") == 0, stop = false;
    weft_status_t status = check_names(c, rows, count);
    for (size_t i = 0; i < count && status >= 0 && !stop; i++) {
        uint32_t nodes = c->graph->order_count;
        uint64_t start_ns = wefti_now_ns();
        if (!applies(c, &rows[i])) {
            status = check_skipped(c, &rows[i]);
            continue;
        }
        stop = is(c->params.stop_after, &rows[i]);
        c->run_rest = run_rest;
        c->rest = &rows[i + 1];
        c->rest_count = count - i - 1;
        WEFT_TRY(status, run_pass(c, &rows[i]), done);
        status = wefti_pipeline_report(c, rows[i].name, nodes, start_ns,
                                       print_all || stop || is(print, &rows[i]));
    }
done:
    return status;
}

void weft_compile_visit_passes(weft_pass_visit_fn visit, void *user)
{
    for (size_t i = 0; visit != NULL && i < sizeof(passes) / sizeof(passes[0]); i++) {
        const weft_pass_info_t info = {.name = passes[i].name,
                                       .summary = passes[i].summary,
                                       .training = (passes[i].when & TRAINING) != 0,
                                       .inference = (passes[i].when & INFERENCE) != 0};
        if (visit(&info, user) != 0) {
            return;
        }
    }
}
