/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: to a file and back, digests, explanations, and what files that lie get to hear. */
#include "ops/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/plan/plan_internal.h"
#include "tests/support/support.h"

enum {
    W,
    B,
    GRAD_W,
    GRAD_B,
    STATE_W,
    STATE_B,
    X,
    LR,
    SHAPE,
    HIDDEN,
    LOGITS,
    ALL_GRADS,
    ALL_PARAMS,
    BUFFERS,
};
enum { GEMM, RELU, DW, DB, UPDATE_W, UPDATE_B, KERNELS };

typedef struct fixture {
    weft_plan_t *plan;
    char path[64];
} fixture_t;

static void *take(weft_plan_t *plan, size_t count, size_t bytes)
{
    void *array = wefti_arena_array(&plan->arena, count, bytes);
    assert_non_null(array);
    return array;
}

/* Placed behind everything before it. */
static void set_buffer(weft_plan_t *plan, uint32_t id, const char *name, wefti_buffer_kind_t kind,
                       int64_t d0, int64_t d1)
{
    wefti_plan_buffer_t *buffer = &plan->buffers[id];
    *buffer = (wefti_plan_buffer_t){.name = name, .kind = kind, .dtype = WEFT_DTYPE_F32};
    buffer->rank = d1 ? 2 : d0 ? 1 : 0;
    buffer->dims[0] = d0;
    buffer->dims[1] = d1;
    buffer->size_bytes = (uint64_t)((d0 ? d0 : 1) * (d1 ? d1 : 1)) * 4;
    buffer->offset_bytes = plan->arena_bytes;
    plan->arena_bytes += wefti_plan_padded_bytes(buffer->size_bytes);
}

static void set_kernel(weft_plan_t *plan, uint32_t id, const char *domain, const char *op,
                       int32_t version, uint32_t phase, const uint32_t *inputs,
                       uint32_t input_count, const uint32_t *outputs, uint32_t output_count)
{
    wefti_plan_kernel_t *kernel = &plan->kernels[id];
    *kernel = (wefti_plan_kernel_t){
        .name = op, .domain = domain, .op = op, .version = version, .phase = phase};
    kernel->input_count = input_count;
    kernel->output_count = output_count;
    kernel->inputs = wefti_arena_memdup(&plan->arena, inputs, input_count * sizeof *inputs);
    kernel->outputs = wefti_arena_memdup(&plan->arena, outputs, output_count * sizeof *outputs);
}

static void set_attr(weft_plan_t *plan, uint32_t kernel, weft_attr_t attr)
{
    plan->kernels[kernel].attr_count = 1;
    plan->kernels[kernel].attrs = wefti_arena_memdup(&plan->arena, &attr, sizeof attr);
}

static void set_collective(weft_plan_t *plan, uint32_t id, weft_collective_t op, uint32_t buffer,
                           uint32_t first)
{
    wefti_plan_collective_t *collective = &plan->collectives[id];
    uint32_t *members = take(plan, 2, sizeof *members);
    wefti_plan_algorithm_t *algorithm = take(plan, 1, sizeof *algorithm);
    members[0] = first;
    members[1] = first + 1;
    *algorithm = (wefti_plan_algorithm_t){"mesh", 1, 1000};
    *collective = (wefti_plan_collective_t){
        .name = op == WEFT_COLLECTIVE_ALL_REDUCE ? "bucket 0" : "weights",
        .op = op,
        .reduction = WEFT_REDUCTION_AVG,
        .dtype = WEFT_DTYPE_F32,
        .buffer = buffer,
        .source = buffer,
        .update = WEFTI_PLAN_NONE,
        .elem_count = plan->buffers[buffer].size_bytes / 4,
        .order = "tree",
        .member_count = 2,
        .members = members,
        .algorithm_count = 1,
        .algorithms = algorithm,
        .reason = "the last one",
    };
}

static void set_steps(weft_plan_t *plan, uint32_t program, uint32_t stream,
                      const wefti_plan_step_t *steps, uint32_t count)
{
    plan->programs[program].streams[stream] = (wefti_plan_stream_program_t){
        count, wefti_arena_memdup(&plan->arena, steps, count * sizeof *steps)};
}

static void fill_buffers(weft_plan_t *plan)
{
    static const int64_t shape[] = {4};
    float *weights = take(plan, 48, sizeof *weights);
    for (int i = 0; i < 16; i++) {
        weights[i] = (float)i;
    }
    memcpy(weights + 32, shape, sizeof shape);
    plan->weights = (const uint8_t *)weights;
    plan->weights_bytes = 48 * sizeof *weights;
    plan->eval_model = (const uint8_t *)"model";
    plan->eval_model_bytes = 5;
    plan->buffer_count = BUFFERS;
    plan->buffers = take(plan, BUFFERS, sizeof *plan->buffers);
    set_buffer(plan, W, "w", WEFTI_BUFFER_PARAM, 4, 3);
    set_buffer(plan, B, "b", WEFTI_BUFFER_PARAM, 4, 0);
    set_buffer(plan, GRAD_W, "grad.w", WEFTI_BUFFER_GRAD, 4, 3);
    set_buffer(plan, GRAD_B, "grad.b", WEFTI_BUFFER_GRAD, 4, 0);
    set_buffer(plan, STATE_W, "w.momentum", WEFTI_BUFFER_STATE, 4, 3);
    set_buffer(plan, STATE_B, "b.momentum", WEFTI_BUFFER_STATE, 4, 0);
    set_buffer(plan, X, "x", WEFTI_BUFFER_INPUT, 2, 3);
    set_buffer(plan, LR, "lr", WEFTI_BUFFER_SCALAR, 0, 0);
    set_buffer(plan, SHAPE, "shape", WEFTI_BUFFER_CONST, 2, 0);
    set_buffer(plan, HIDDEN, "hidden", WEFTI_BUFFER_TEMP, 2, 4);
    set_buffer(plan, LOGITS, "logits", WEFTI_BUFFER_OUTPUT, 2, 4);
    uint64_t arena_bytes = plan->arena_bytes;
    set_buffer(plan, ALL_GRADS, "bucket 0", WEFTI_BUFFER_RANGE, 20, 0);
    set_buffer(plan, ALL_PARAMS, "params", WEFTI_BUFFER_RANGE, 20, 0);
    plan->arena_bytes = arena_bytes;
    plan->buffers[ALL_GRADS].offset_bytes = plan->buffers[GRAD_W].offset_bytes;
    plan->buffers[ALL_PARAMS].offset_bytes = plan->buffers[W].offset_bytes;
    plan->buffers[LOGITS].offset_bytes = plan->buffers[HIDDEN].offset_bytes; /* in place */
    plan->buffers[B].data_offset_bytes = 48;
    plan->buffers[SHAPE].data_offset_bytes = 128;
    plan->buffers[LR].default_value = 0.05;
}

static void fill_kernels(weft_plan_t *plan)
{
    static const int64_t four[] = {4};
    plan->kernel_count = KERNELS;
    plan->kernels = take(plan, KERNELS, sizeof *plan->kernels);
    set_kernel(plan, GEMM, "", "Gemm", 13, 0, (uint32_t[]){X, W, B}, 3, (uint32_t[]){HIDDEN}, 1);
    set_attr(plan, GEMM, (weft_attr_t){.name = "transB", .type = WEFT_ATTR_TYPE_INT, .i = 1});
    set_kernel(plan, RELU, "", "Relu", 14, 0, (uint32_t[]){HIDDEN}, 1, (uint32_t[]){LOGITS}, 1);
    set_kernel(plan, DW, "", "Gemm", 13, 1, (uint32_t[]){LOGITS, X}, 2, (uint32_t[]){GRAD_W}, 1);
    set_attr(plan, DW, (weft_attr_t){.name = "transA", .type = WEFT_ATTR_TYPE_INT, .i = 1});
    set_kernel(plan, DB, "weft", "SumTo", 1, 1, (uint32_t[]){LOGITS}, 1, (uint32_t[]){GRAD_B}, 1);
    set_attr(plan, DB,
             (weft_attr_t){.name = "shape", .type = WEFT_ATTR_TYPE_INTS, .count = 1, .ints = four});
    set_kernel(plan, UPDATE_W, "weft", "Momentum", 1, 3, (uint32_t[]){W, GRAD_W, STATE_W, LR}, 4,
               (uint32_t[]){W, STATE_W}, 2);
    set_attr(plan, UPDATE_W,
             (weft_attr_t){.name = "momentum", .type = WEFT_ATTR_TYPE_FLOAT, .f = 0.9f});
    set_kernel(plan, UPDATE_B, "weft", "Momentum", 1, 3, (uint32_t[]){B, GRAD_B, STATE_B, LR}, 4,
               (uint32_t[]){B, STATE_B}, 2);
}

static void fill_programs(weft_plan_t *plan)
{
    static const char *const names[] = {"init", "step", "eval"};
    static const wefti_plan_step_t init[] = {{WEFTI_STEP_COLLECTIVE, 1}};
    static const wefti_plan_step_t compute[] = {
        {WEFTI_STEP_KERNEL, GEMM},     {WEFTI_STEP_KERNEL, RELU},    {WEFTI_STEP_KERNEL, DW},
        {WEFTI_STEP_KERNEL, DB},       {WEFTI_STEP_RECORD, 0},       {WEFTI_STEP_WAIT, 1},
        {WEFTI_STEP_KERNEL, UPDATE_W}, {WEFTI_STEP_KERNEL, UPDATE_B}};
    static const wefti_plan_step_t comm[] = {
        {WEFTI_STEP_WAIT, 0}, {WEFTI_STEP_COLLECTIVE, 0}, {WEFTI_STEP_RECORD, 1}};
    plan->stream_count = 2;
    plan->streams = take(plan, 2, sizeof *plan->streams);
    plan->streams[0] = (wefti_plan_stream_t){"compute", 0};
    plan->streams[1] = (wefti_plan_stream_t){"comm", 1};
    plan->event_count = 2;
    plan->program_count = 3;
    plan->programs = take(plan, 3, sizeof *plan->programs);
    for (uint32_t i = 0; i < 3; i++) {
        plan->programs[i].name = names[i];
        plan->programs[i].streams = take(plan, 2, sizeof(wefti_plan_stream_program_t));
    }
    set_steps(plan, 0, 1, init, 1);
    set_steps(plan, 1, 0, compute, 8);
    set_steps(plan, 1, 1, comm, 3);
    set_steps(plan, 2, 0, compute, 2);
}

/* Two ranks, one linear layer, one bucket. */
static weft_plan_t *make_plan(void)
{
    static const wefti_plan_binding_t bindings[] = {{"x", WEFT_BINDING_ROLE_INPUT, X},
                                                    {"lr", WEFT_BINDING_ROLE_SCALAR, LR},
                                                    {"logits", WEFT_BINDING_ROLE_LOGITS, LOGITS}};
    weft_plan_t *plan;
    assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
    plan->model_name = "tiny";
    plan->world_size = 2;
    plan->batch = 2;
    plan->policy = "one";
    plan->optimizer = "momentum";
    fill_buffers(plan);
    fill_kernels(plan);
    plan->collective_count = 2;
    plan->collectives = take(plan, 2, sizeof *plan->collectives);
    set_collective(plan, 0, WEFT_COLLECTIVE_ALL_REDUCE, ALL_GRADS, GRAD_W);
    set_collective(plan, 1, WEFT_COLLECTIVE_BROADCAST, ALL_PARAMS, W);
    fill_programs(plan);
    plan->binding_count = 3;
    plan->bindings = wefti_arena_memdup(&plan->arena, bindings, sizeof bindings);
    plan->live_bytes = 3 * 64 + 32;
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    return plan;
}

static int setup(void **out)
{
    fixture_t *fixture = calloc(1, sizeof *fixture);
    fixture->plan = make_plan();
    snprintf(fixture->path, sizeof fixture->path, "/tmp/weft-test-plan-%d", (int)getpid());
    *out = fixture;
    return 0;
}

static int teardown(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_release(fixture->plan);
    unlink(fixture->path);
    free(fixture);
    return 0;
}

static void assert_verifies(const weft_plan_t *plan)
{
    if (wefti_plan_verify(plan, NULL) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
}

static void test_plan_survives_file(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *loaded;
    assert_verifies(fixture->plan);
    assert_int_equal(weft_plan_save(fixture->plan, fixture->path), WEFT_OK);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &loaded), WEFT_OK);
    assert_memory_equal(&loaded->structure_digest, &fixture->plan->structure_digest, 32);
    assert_memory_equal(&loaded->weights_digest, &fixture->plan->weights_digest, 32);
    assert_string_equal(loaded->model_name, "tiny");
    assert_string_equal(loaded->buffers[STATE_W].name, "w.momentum");
    assert_string_equal(loaded->kernels[DB].attrs[0].name, "shape");
    assert_int_equal(loaded->kernels[DB].attrs[0].ints[0], 4);
    assert_string_equal(loaded->collectives[0].reason, "the last one");
    assert_int_equal(loaded->collectives[0].algorithms[0].predicted_ps, 1000);
    /* Sections are aligned and stay in the mapping. */
    assert_int_equal((loaded->weights - loaded->mapping.data) % 64, 0);
    assert_int_equal((loaded->eval_model - loaded->mapping.data) % 64, 0);
    assert_true(loaded->eval_model + loaded->eval_model_bytes ==
                loaded->mapping.data + loaded->mapping.size_bytes);
    assert_memory_equal(loaded->weights, fixture->plan->weights, fixture->plan->weights_bytes);
    weft_plan_retain(loaded);
    weft_plan_release(loaded);
    weft_plan_release(loaded);
    weft_plan_release(NULL);
}

/* What the planner of buckets was given, for pages; costs that are none are left out. */
static void test_plan_keeps_what_the_planner_was_given(void **in)
{
    fixture_t *fixture = *in;
    static const weft_bucket_piece_t pieces[] = {{1000, 20}, {3000, 10}};
    weft_bucket_point_t points[] = {{64, 5000}, {4096, 4000}};
    wefti_plan_forecast_gradient_t gradients[] = {{"grad.b", 10, 64, 64, 0},
                                                  {"grad.w", 20, 128, 64, 9}};
    weft_plan_t *loaded;
    fixture->plan->kernels[DW].predicted_ps = 7000;
    fixture->plan->forecast = (wefti_plan_forecast_t){.gradient_count = 2,
                                                      .gradients = gradients,
                                                      .cost = {.pieces = pieces, .piece_count = 2},
                                                      .alone = {.points = points, .point_count = 2},
                                                      .cap_bytes = 4096};
    for (int bad = 0; bad < 2; bad++) {
        points[1].bytes = bad ? 64 : 4096;
        assert_int_equal(weft_plan_save(fixture->plan, fixture->path), WEFT_OK);
        assert_int_equal(weft_plan_load(fixture->path, NULL, &loaded), WEFT_OK);
        const wefti_plan_forecast_t *forecast = &loaded->forecast;
        assert_int_equal(loaded->kernels[DW].predicted_ps, 7000);
        assert_int_equal(forecast->cap_bytes, 4096);
        assert_int_equal(forecast->cost.piece_count, 2);
        assert_memory_equal(forecast->cost.pieces, pieces, sizeof pieces);
        assert_int_equal(forecast->alone.point_count, bad ? 0 : 2);
        assert_int_equal(forecast->gradients[1].bytes, 128);
        assert_int_equal(forecast->gradients[1].unit_bytes, 64);
        assert_int_equal(forecast->gradients[1].first_with, 1); /* not after itself */
        weft_plan_release(loaded);
    }
    fixture->plan->forecast = (wefti_plan_forecast_t){0};
}

static void test_plan_digest_ignores_names_only(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *plan = fixture->plan;
    wefti_digest_t before = plan->structure_digest;
    plan->model_name = "another";
    plan->policy = "bytes:25M"; /* the same buckets by another policy are the same plan */
    plan->buffers[W].name = "weight";
    plan->kernels[0].name = "first";
    plan->collectives[0].reason = "";
    plan->collectives[0].algorithms[0].predicted_ps = 7;
    plan->streams[0].name = "s";
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    assert_memory_equal(&plan->structure_digest, &before, 32);
    plan->kernels[UPDATE_W].attrs[0].f = 0.8f;
    assert_int_equal(weft_plan_save(plan, fixture->path), WEFT_ERR_STATE);
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    assert_memory_not_equal(&plan->structure_digest, &before, 32);
}

static void test_plan_info_counts_buckets(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    assert_int_equal(weft_plan_get_info(fixture->plan, &info), WEFT_OK);
    assert_int_equal(info.bucket_count, 1);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(strlen(info.structure_digest), 64);
    info.struct_size = 0;
    assert_int_equal(weft_plan_get_info(fixture->plan, &info), WEFT_ERR_INVALID_ARGUMENT);
}

static void test_plan_explains_itself(void **in)
{
    fixture_t *fixture = *in;
    static const char *const wanted[] = {
        "2 ranks, batch 2",   "policy one",          "grad.w",       "avg f32", "algorithm mesh",
        "why: the last one",  "comm (communicates)", "step 8 steps", "arena",   "100.0%",
        "grad?b???c\xc3\xa9",
    };
    static const char *const keys[] = {
        "\"world\": 2",
        "\"bytes\": 64",
        "\"elem_count\": 20",
        "\"param_bytes\": 64",
        "\"gradient_bytes\": 64",
        "\"state_bytes\": 64",
        "\"activation_bytes\": 32",
        "\"fusion_copied_bytes\": 0",
        "\"stream\": \"comm\"",
        "\"policy\": \"one\"",
        "\"grad\\u001bb\\u009b\\ufffd\\ufffdc\xc3\xa9\"",
    };
    char *text;
    fixture->plan->buffers[GRAD_B].name = "grad\x1b"
                                          "b\xc2\x9b\xff\x80"
                                          "c\xc3\xa9"; /* hostile names drive no terminal */
    assert_int_equal(weft_plan_explain(fixture->plan, (weft_format_t)7, &text),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(weft_last_error(),
                        "weft_plan_explain: invalid format 7: expected 0 (text) or 1 (JSON)");
    assert_int_equal(weft_plan_explain(fixture->plan, WEFT_FORMAT_TEXT, &text), WEFT_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!strstr(text, wanted[i])) {
            fail_msg("no \"%s\" in:\n%s", wanted[i], text);
        }
    }
    free(text);
    assert_int_equal(weft_plan_explain(fixture->plan, WEFT_FORMAT_JSON, &text), WEFT_OK);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!strstr(text, keys[i])) {
            fail_msg("no %s in:\n%s", keys[i], text);
        }
    }
    free(text);
}

/* Shape rules of the real operators. */
static void test_plan_verifies_against_registry(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *plan = fixture->plan;
    weft_registry_t *registry;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    if (wefti_plan_verify(plan, registry) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    plan->kernels[GEMM].attrs[0].i = 0; /* [2,3] x [4,3] does not multiply */
    assert_true(wefti_plan_verify(plan, registry) < 0);
    plan->kernels[GEMM].attrs[0].i = 1;
    plan->kernels[DW].outputs[0] = GRAD_B; /* would write past its end */
    assert_int_equal(wefti_plan_verify(plan, registry), WEFT_ERR_FORMAT);
    plan->kernels[DW].outputs[0] = GRAD_W;
    plan->kernels[GEMM].inputs[2] = LOGITS; /* where the result goes */
    assert_int_equal(wefti_plan_verify(plan, registry), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_last_error(), "overwrites an input"));
    plan->kernels[GEMM].inputs[2] = B;
    plan->kernels[RELU].op = "Nonsense";
    assert_int_equal(wefti_plan_verify(plan, registry), WEFT_ERR_UNSUPPORTED);
    plan->kernels[RELU].op = "Relu";
    plan->kernels[GEMM].input_count = 1;
    assert_int_equal(wefti_plan_verify(plan, registry), WEFT_ERR_FORMAT);
    weft_registry_destroy(registry);
}

static void expect_refused(const weft_plan_t *plan, const char *message)
{
    assert_int_equal(wefti_plan_verify(plan, NULL), WEFT_ERR_FORMAT);
    if (!strstr(weft_last_error(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", weft_last_error(), message);
    }
}

#define REFUSES(place, value, message)                                                             \
    do {                                                                                           \
        __typeof__(place) kept_ = (place);                                                         \
        (place) = (value);                                                                         \
        expect_refused(plan, message);                                                             \
        (place) = kept_;                                                                           \
    } while (0)

static void test_plan_refuses_what_is_wrong(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *plan = fixture->plan;
    wefti_plan_buffer_t *b = plan->buffers;
    wefti_plan_collective_t *c = plan->collectives;
    wefti_plan_stream_program_t *step = plan->programs[1].streams;
    REFUSES(plan->world_size, 0, "world size");
    REFUSES(plan->stream_count, 0, "streams");
    REFUSES(plan->stream_count, 1000, "streams");
    REFUSES(plan->kind, (weft_plan_kind_t)3, "unknown kind");
    REFUSES(plan->kind, WEFT_PLAN_KIND_INFERENCE, "programs");
    REFUSES(plan->flags, 1u << 9, "unknown flags");
    REFUSES(plan->flags, WEFTI_PLAN_SPLIT_BATCH, "another kind");
    REFUSES(plan->flags, WEFTI_PLAN_RANK_DATA | WEFTI_PLAN_SHARDED, "shards of common ones");
    REFUSES(plan->flags, WEFTI_PLAN_DECOUPLED, "not sharded");
    REFUSES(plan->flags, WEFTI_PLAN_DECOUPLED | WEFTI_PLAN_SHARDED, "missing program 'flush'");
    REFUSES(plan->accumulate, 0, "micro-batches");
    REFUSES(plan->accumulate, 3, "program for 0 folds");
    REFUSES(plan->global_micro_batches, 3, "global_micro_batches is not");
    REFUSES(plan->clip_norm, -1.0, "clip");
    REFUSES(plan->clip_norm, 0.0 / 0.0, "clip");
    REFUSES(plan->arena_bytes, 64, "arena size");
    REFUSES(b[GRAD_W].rank_stride_bytes, 32, "multiple of 64");
    REFUSES(b[GRAD_W].rank_stride_bytes, UINT64_MAX - 63, "arena size");
    REFUSES(b[LOGITS].rank_stride_bytes, 128, "arena size");
    REFUSES(b[GRAD_W].rank_stride_bytes, 64, "overlap");
    REFUSES(b[X].rank_stride_bytes, 64, "one place");
    REFUSES(b[W].rank_stride_bytes, 64, "one place");
    REFUSES(plan->collectives[0].group, 1, "no such group");
    REFUSES(plan->data_group, 1, "data_group");
    REFUSES(b[SHAPE].rank_data_stride_bytes, 64, "weights section");
    REFUSES(b[SHAPE].rank_data_stride_bytes, UINT64_MAX, "weights section");
    REFUSES(b[SHAPE].rank_data_stride_bytes, 16, "the plan's do not");
    REFUSES(b[X].rank_data_stride_bytes, 16, "no contents");
    REFUSES(b[W].kind, (wefti_buffer_kind_t)11, "unknown kind");
    REFUSES(b[W].range, 1, "parameters are not sharded");
    REFUSES(b[W].whole_offset_bytes, WEFTI_PLAN_NOWHERE, "parameters are not sharded");
    REFUSES(b[W].offset_bytes, WEFTI_PLAN_NOWHERE, "arena size");
    REFUSES(plan->flags, WEFTI_PLAN_SHARDED_PARAMETERS, "updates are not");
    REFUSES(b[W].dtype, (weft_dtype_t)77, "unknown dtype");
    REFUSES(b[W].layout, WEFT_LAYOUT_CHANNELS_LAST, "layout");
    REFUSES(b[W].dims[0], 5, "its shape has");
    REFUSES(b[W].dims[0], -1, "its shape has");
    REFUSES(b[W].dims[0], INT64_MAX, "its shape has");
    REFUSES(b[W].rank, 9, "dimensions");
    REFUSES(b[W].offset_bytes, 8, "multiple of 64");
    REFUSES(b[X].offset_bytes, UINT64_MAX - 63, "arena size");
    REFUSES(b[W].data_offset_bytes, UINT64_MAX - 8, "weights section");
    REFUSES(b[X].offset_bytes, b[LR].offset_bytes, "overlap");
    REFUSES(b[LOGITS].offset_bytes, b[W].offset_bytes, "overlap");
    REFUSES(b[LR].default_value, 1.0 / 0.0, "scalar");
    REFUSES(plan->kernels[RELU].inputs[0], BUFFERS, "operand");
    REFUSES(plan->kernels[RELU].outputs[0], SHAPE, "writes a constant");
    REFUSES(plan->kernels[RELU].phase, 9, "phase");
    REFUSES(plan->kernels[GEMM].attrs[0].type, WEFT_ATTR_TYPE_TENSOR, "attribute");
    REFUSES(c[0].op, (weft_collective_t)77, "unknown operator");
    REFUSES(c[0].op, WEFT_COLLECTIVE_BARRIER, "unknown operator");
    REFUSES(c[0].op, WEFT_COLLECTIVE_ALL_GATHER_V, "unknown operator");
    REFUSES(c[0].op, WEFT_COLLECTIVE_REDUCE_SCATTER, "element count");
    REFUSES(c[0].source, BUFFERS, "no such buffer");
    REFUSES(c[0].source, X, "element count");
    REFUSES(c[1].divisor, 2, "divisor");
    REFUSES(c[0].update, UPDATE_W, "by somebody else");
    REFUSES(c[0].update, KERNELS, "no kernel");
    REFUSES(c[0].reduction, (weft_reduction_t)5, "reduction");
    REFUSES(c[0].dtype, WEFT_DTYPE_F64, "dtype");
    REFUSES(c[0].group, 1, "group");
    REFUSES(c[1].root, 2, "root");
    REFUSES(c[0].buffer, BUFFERS, "buffer");
    REFUSES(c[0].order, "many", "order");
    REFUSES(c[0].order, "blocks:1,2", "order");
    REFUSES(c[1].order, "any", "order");
    REFUSES(c[0].elem_count, 21, "element count");
    REFUSES(c[0].elem_count, UINT64_MAX / 2, "element count");
    REFUSES(c[0].algorithm_count, 0, "algorithm");
    REFUSES(c[0].members[1], BUFFERS, "member");
    REFUSES(c[0].members[1], B, "kind");
    REFUSES(c[0].members[1], GRAD_W, "follow");
    REFUSES(c[0].member_count, 1, "end");
    REFUSES(plan->event_count, 1, "does not exist");
    REFUSES(plan->event_count, UINT32_MAX, "events");
    REFUSES(step[0].steps[0].index, KERNELS, "does not exist");
    REFUSES(step[0].steps[0].kind, (wefti_step_kind_t)5, "kind");
    REFUSES(step[0].steps[5].index, 0, "event of its own");
    REFUSES(step[1].steps[2].index, 0, "recorded twice");
    REFUSES(step[1].steps[1], ((wefti_plan_step_t){WEFTI_STEP_WAIT, 1}), "of its own");
    REFUSES(step[1].steps[0].kind, WEFTI_STEP_COLLECTIVE, "reduced twice");
    REFUSES(step[1].step_count, 0, "never satisfied");
    REFUSES(step[0].steps[4], ((wefti_plan_step_t){WEFTI_STEP_WAIT, 1}), "never satisfied");
    REFUSES(step[0].steps[0], ((wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, 0}), "several streams");
    REFUSES(step[1].steps[1].index, 1, "not reduced");
    REFUSES(plan->programs[2].streams[0].steps[0], ((wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, 0}),
            "communicates");
    REFUSES(plan->programs[0].name, "step", "missing");
    REFUSES(plan->programs[0].name, "begin", "missing");
    REFUSES(b[ALL_GRADS].offset_bytes, b[GRAD_B].offset_bytes, "a range covers");
    REFUSES(b[ALL_PARAMS].dtype, WEFT_DTYPE_I32, "a range covers");
    REFUSES(b[B].dtype, WEFT_DTYPE_I32, "a range covers");
    REFUSES(b[GRAD_B].kind, WEFTI_BUFFER_STATE, "a range covers");
    REFUSES(step[0].steps[5], ((wefti_plan_step_t){WEFTI_STEP_KERNEL, DW}), "before it is reduced");
    REFUSES(step[0].steps[5], ((wefti_plan_step_t){WEFTI_STEP_KERNEL, UPDATE_W}),
            "before it is reduced");
    REFUSES(plan->programs[0].streams[1].step_count, 0, "not broadcast to all ranks");
    REFUSES(step[1].steps[0], ((wefti_plan_step_t){WEFTI_STEP_KERNEL, GEMM}), "another stream");
    REFUSES(step[0].steps[0], ((wefti_plan_step_t){WEFTI_STEP_KERNEL, RELU}),
            "before it is written");
    REFUSES(step[0].steps[2], ((wefti_plan_step_t){WEFTI_STEP_KERNEL, RELU}), "something else");
    REFUSES(step[0].steps[3], ((wefti_plan_step_t){WEFTI_STEP_KERNEL, DW}), "before it is written");
    REFUSES(plan->bindings[0].role, (weft_binding_role_t)7, "role");
    REFUSES(plan->bindings[0].buffer, BUFFERS, "buffer");
    REFUSES(plan->bindings[0].buffer, W, "kind");
    REFUSES(plan->bindings[0].name, "lr", "taken");
    assert_verifies(plan);
}

static void write_file(const char *path, const uint8_t *data, size_t bytes)
{
    wefti_piece_t piece = {data, bytes};
    assert_int_equal(wefti_file_write(path, &piece, 1), WEFT_OK);
}

static const wefti_axis_t axes[] = {{"data", 2, 2}, {"tensor", 2, 1}};

/* Pairs of ranks with weights of their own; gradients are averaged over two pairs. */
static void add_mesh(weft_plan_t *plan)
{
    plan->world_size = 4;
    plan->mesh = (wefti_mesh_t){axes, 2};
    plan->flags |= WEFTI_PLAN_RANK_DATA;
    plan->data_group = 1;
    plan->collectives[0].group = 1;
    plan->programs++; /* init */
    plan->program_count--;
}

/* Groups of ranks: plans with a mesh are files of a feature, explained, and checked. */
static void test_plan_with_a_mesh(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *plan = fixture->plan, *loaded;
    static const wefti_axis_t bad[] = {{"x", 0, 1}, {"x", 1, 0}, {"x", 3, 1}, {"x", 1u << 31, 2}};
    char *text;
    wefti_digest_t without = plan->structure_digest;
    plan->world_size = 4;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        plan->mesh = (wefti_mesh_t){&bad[i], 1};
        expect_refused(plan, "size and stride of an axis do not divide the ranks");
    }
    plan->mesh = (wefti_mesh_t){axes, WEFTI_MAX_AXES + 1};
    expect_refused(plan, "too many axes");
    plan->mesh = (wefti_mesh_t){axes, 2};
    plan->world_size = 6;
    expect_refused(plan, "do not divide the ranks");
    add_mesh(plan);
    REFUSES(plan->data_group, 3, "no such data_group");
    REFUSES(plan->data_group, 2, "data_group is not the outermost axis");
    REFUSES(plan->flags, 0, "data_group is not the outermost axis");
    REFUSES(plan->collectives[0].group, 2, "is not reduced");
    REFUSES(plan->collectives[0].group, 3, "no such group");
    REFUSES(plan->collectives[1].group, 3, "no such group");
    REFUSES(plan->collectives[0].root, 2, "no such root");
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    assert_verifies(plan);
    assert_memory_not_equal(&plan->structure_digest, &without, sizeof without);
    assert_int_equal(weft_plan_save(plan, fixture->path), WEFT_OK);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &loaded), WEFT_OK);
    assert_int_equal(loaded->mesh.axis_count, 2);
    assert_string_equal(loaded->mesh.axes[0].name, "data");
    assert_int_equal(loaded->mesh.axes[0].stride, 2);
    assert_int_equal(loaded->collectives[0].group, 1);
    assert_int_equal(weft_plan_explain(loaded, WEFT_FORMAT_TEXT, &text), WEFT_OK);
    assert_non_null(strstr(text, "mesh: data 2 x tensor 2\n"));
    assert_non_null(strstr(text, "along data"));
    free(text);
    weft_plan_release(loaded);
}

/* Kernels that only the ranks of one place run: nobody else has what they write, and a collective of
 * them is of ranks of that place. */
static void test_plan_with_places(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *plan = fixture->plan, *loaded;
    uint32_t places[] = {DW, DB, UPDATE_W, UPDATE_B};
    char *text;
    add_mesh(plan);
    plan->collective_count = 1;
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    wefti_digest_t without = plan->structure_digest;
    REFUSES(plan->place_group, 3, "no such place_group");
    REFUSES(plan->kernels[GEMM].place, 1, "no such place 1");
    REFUSES(plan->collectives[0].place, 1, "no such place 1");
    plan->place_group = 2;
    REFUSES(plan->kernels[GEMM].place, 3, "no such place 3");
    REFUSES(plan->kernels[GEMM].place, 1, "is read where it was not written");
    REFUSES(plan->kernels[RELU].place, 2, "is read where it was not written");
    REFUSES(plan->kernels[UPDATE_W].place, 2, "is read where it was not written");
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        plan->kernels[places[i]].place = 2;
    }
    expect_refused(plan, "is read where it was not written");
    plan->collectives[0].place = 2;
    expect_refused(plan, "is read where it was not written"); /* the weights, in the next step */
    plan->kernels[GEMM].place = plan->kernels[RELU].place = 2;
    expect_refused(plan, "an output that only ranks of place 2 have");
    plan->binding_count--;
    plan->buffers[LOGITS].kind = WEFTI_BUFFER_TEMP;
    REFUSES(plan->collectives[0].group, 0, "its group has ranks of other places");
    REFUSES(plan->collectives[0].group, 2, "its group has ranks of other places");
    REFUSES(plan->collectives[0].place, 1, "is read where it was not written");
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    assert_verifies(plan);
    assert_memory_not_equal(&plan->structure_digest, &without, sizeof without);
    assert_int_equal(weft_plan_save(plan, fixture->path), WEFT_OK);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &loaded), WEFT_OK);
    assert_int_equal(loaded->place_group, 2);
    assert_int_equal(loaded->kernels[DW].place, 2);
    assert_int_equal(loaded->collectives[0].place, 2);
    assert_int_equal(weft_plan_explain(loaded, WEFT_FORMAT_TEXT, &text), WEFT_OK);
    assert_non_null(strstr(text, "tensor 0: 0 kernels, 8 B of weights"));
    assert_non_null(strstr(text, "tensor 1: 6 kernels, 72 B of weights"));
    free(text);
    weft_plan_release(loaded);
}

static void test_plan_load_names_what_is_wrong(void **in)
{
    fixture_t *fixture = *in;
    weft_plan_t *plan = (weft_plan_t *)1;
    wefti_mapping_t file;
    assert_int_equal(weft_plan_load("/nonexistent/plan", NULL, &plan), WEFT_ERR_NOT_FOUND);
    assert_null(plan);
    assert_non_null(strstr(weft_last_error(), "/nonexistent/plan"));
    write_file(fixture->path, (const uint8_t *)"", 0);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &plan), WEFT_ERR_FORMAT);
    assert_int_equal(weft_plan_save(fixture->plan, fixture->path), WEFT_OK);
    assert_int_equal(wefti_file_map(fixture->path, &file), WEFT_OK);
    uint8_t *copy = malloc(file.size_bytes);
    memcpy(copy, file.data, file.size_bytes);
    write_file(fixture->path, copy, file.size_bytes - 1);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &plan), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_last_error(), "truncated"));
    copy[8]++; /* a newer format */
    write_file(fixture->path, copy, file.size_bytes);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &plan), WEFT_ERR_UNSUPPORTED);
    copy[8]--;
    copy[20] = 1; /* a feature from the future */
    write_file(fixture->path, copy, file.size_bytes);
    assert_int_equal(weft_plan_load(fixture->path, NULL, &plan), WEFT_ERR_UNSUPPORTED);
    free(copy);
    wefti_file_unmap(&file);
}

/* Every bit of the file and every length: a status, or a plan that verified. Digests catch most of
 * it. */
static void test_plan_survives_bit_flips_of_file(void **in)
{
    fixture_t *fixture = *in;
    wefti_mapping_t file;
    size_t accepted = 0;
    assert_int_equal(weft_plan_save(fixture->plan, fixture->path), WEFT_OK);
    assert_int_equal(wefti_file_map(fixture->path, &file), WEFT_OK);
    for (size_t bit = 0; bit <= file.size_bytes * 8; bit++) {
        /* At its exact size, so that reading behind the end is seen; first truncations, then flips.
         */
        for (int truncates = 0; truncates < 2; truncates++) {
            size_t bytes = truncates ? bit / 8 : file.size_bytes;
            weft_plan_t *plan;
            if (truncates ? bit % 8 != 0 : bit == file.size_bytes * 8) {
                continue;
            }
            uint8_t *copy = malloc(bytes ? bytes : 1);
            memcpy(copy, file.data, bytes);
            if (!truncates) {
                copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
            assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
            weft_status_t status = wefti_plan_decode(plan, copy, bytes);
            if (status == WEFT_OK) {
                assert_verifies(plan); /* only names can have changed */
                accepted++;
            }
            weft_plan_release(plan);
            free(copy);
        }
    }
    assert_true(accepted > 0);
    wefti_file_unmap(&file);
}

static uint64_t state;

/* The structure without its digest: damage reaches the decoder and the verifier. */
static void test_plan_survives_random_structure(void **in)
{
    fixture_t *fixture = *in;
    const char *seed = getenv("WEFT_TEST_SEED");
    const uint8_t *data;
    size_t bytes, verified = 0, refused = 0;
    wefti_arena_t arena;
    weft_registry_t *registry;
    state = seed ? strtoull(seed, NULL, 0) : 0x9e3779b97f4a7c15ull;
    print_message("seed %llu\n", (unsigned long long)state);
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    wefti_arena_init(&arena, NULL, 0);
    add_mesh(fixture->plan);
    assert_int_equal(wefti_plan_encode_structure(fixture->plan, &arena, &data, &bytes), WEFT_OK);
    for (size_t round = 0; round < bytes * 8 + 6000; round++) {
        uint8_t *copy = malloc(bytes);
        weft_plan_t *plan;
        char *text;
        memcpy(copy, data, bytes);
        if (round < bytes * 8) {
            copy[round / 8] ^= (uint8_t)(1u << round % 8);
        } else {
            for (uint64_t i = test_next_random(&state) % 4; i < 4; i++) {
                copy[test_next_random(&state) % bytes] = (uint8_t)test_next_random(&state);
            }
        }
        assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
        weft_status_t status = wefti_plan_decode_structure(plan, copy, bytes);
        plan->weights = fixture->plan->weights;
        plan->weights_bytes = fixture->plan->weights_bytes;
        if (status == WEFT_OK && wefti_plan_verify(plan, registry) == WEFT_OK) {
            assert_int_equal(weft_plan_explain(plan, (weft_format_t)(round % 2), &text), WEFT_OK);
            free(text);
            assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
            verified++;
        } else {
            refused++;
        }
        weft_plan_release(plan);
        free(copy);
    }
    print_message("%zu verified, %zu refused\n", verified, refused);
    assert_true(verified > 0 && refused > verified);
    wefti_arena_deinit(&arena);
    weft_registry_destroy(registry);
}

/* Two bytes of file per message must not become gigabytes. */
static void test_plan_bounds_amplification(void **in)
{
    (void)in;
    size_t bytes = (size_t)4 << 20;
    uint8_t *data = malloc(bytes);
    weft_plan_t *plan;
    for (size_t i = 0; i < bytes; i += 2) {
        data[i] = 9 << 3 | 2; /* buffers: an empty message */
        data[i + 1] = 0;
    }
    assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
    weft_status_t status = wefti_plan_decode_structure(plan, data, bytes);
    assert_int_equal(status, WEFT_ERR_NO_MEMORY);
    assert_non_null(strstr(weft_last_error(), "limit"));
    assert_true(plan->arena.used_bytes <= 33 * bytes);
    weft_plan_release(plan);
    free(data);
}

static weft_status_t decode(const weft_allocator_t *allocator, void *user)
{
    const wefti_mapping_t *file = user;
    weft_plan_t *plan;
    weft_status_t status = wefti_plan_create(allocator, &plan);
    if (status == WEFT_OK) {
        status = wefti_plan_decode(plan, file->data, file->size_bytes);
    }
    if (status == WEFT_OK) {
        status = wefti_plan_verify(plan, NULL);
    }
    weft_plan_release(plan);
    return status;
}

static void test_plan_survives_lack_of_memory(void **in)
{
    fixture_t *fixture = *in;
    wefti_mapping_t file;
    assert_int_equal(weft_plan_save(fixture->plan, fixture->path), WEFT_OK);
    assert_int_equal(wefti_file_map(fixture->path, &file), WEFT_OK);
    assert_true(test_memory_sweep(decode, &file) > 10);
    wefti_file_unmap(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plan_survives_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_digest_ignores_names_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_info_counts_buckets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_explains_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_verifies_against_registry, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_refuses_what_is_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_with_a_mesh, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_with_places, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_keeps_what_the_planner_was_given, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_plan_load_names_what_is_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_survives_bit_flips_of_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_survives_random_structure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_survives_lack_of_memory, setup, teardown),
        cmocka_unit_test(test_plan_bounds_amplification),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
