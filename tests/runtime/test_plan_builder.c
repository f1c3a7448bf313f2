/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that a program builds itself: sessions run them, files hold them, wrong ones are named. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"

#include "tests/support/support.h"

#define RANKS 3u
#define STEPS 4u
#define RATE 0.25

enum { W_COUNT = 12, B_COUNT = 5 };

/* What most tests begin with. */
typedef struct draft {
    weft_plan_builder_t *builder;
    uint32_t compute, comm, w, b, grad_w, grad_b, state_w, state_b, x, y, rate;
    uint32_t kernels[5], bucket, ready, done;
} draft_t;

static const float weights[W_COUNT] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static uint32_t add(draft_t *d, const char *name, weft_buffer_kind_t kind, int64_t count,
                    const void *data)
{
    weft_plan_buffer_params_t params = WEFT_PLAN_BUFFER_PARAMS_INIT;
    uint32_t id = UINT32_MAX;
    params.name = name;
    params.kind = kind;
    params.desc = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_F32, .rank = count > 0};
    params.desc.dims[0] = count;
    params.desc.data = data;
    params.default_value = RATE;
    RANK_OK(weft_plan_builder_add_buffer(d->builder, &params, &id));
    return id;
}

static uint32_t kernel(draft_t *d, const char *domain, const char *op, int32_t version,
                       const uint32_t *inputs, uint32_t input_count, const uint32_t *outputs,
                       uint32_t output_count)
{
    static const weft_attr_t momentum = {
        .name = "momentum", .type = WEFT_ATTR_TYPE_FLOAT, .f = 0.0f};
    weft_plan_kernel_params_t params = WEFT_PLAN_KERNEL_PARAMS_INIT;
    uint32_t id = UINT32_MAX;
    bool updates = strcmp(op, "Momentum") == 0;
    params.domain = domain;
    params.op = op;
    params.version = version;
    params.phase = updates ? WEFT_PLAN_PHASE_UPDATE : WEFT_PLAN_PHASE_FORWARD;
    params.inputs = inputs;
    params.input_count = input_count;
    params.outputs = outputs;
    params.output_count = output_count;
    params.attrs = &momentum;
    params.attr_count = updates;
    RANK_OK(weft_plan_builder_add_kernel(d->builder, &params, &id));
    return id;
}

static void begin(draft_t *d, weft_plan_kind_t kind, uint32_t ranks,
                  const weft_registry_t *registry)
{
    weft_plan_builder_params_t params = WEFT_PLAN_BUILDER_PARAMS_INIT;
    params.name = "built";
    params.world_size = ranks;
    params.kind = kind;
    params.registry = registry;
    *d = (draft_t){0};
    RANK_OK(weft_plan_builder_create(&params, &d->builder));
    RANK_OK(weft_plan_builder_add_stream(d->builder, "compute", &d->compute));
    RANK_OK(weft_plan_builder_add_stream(d->builder, "comm", &d->comm));
    RANK_CHECK(d->compute == 0 && d->comm == 1);
}

static void append(draft_t *d, const char *program, uint32_t k)
{
    RANK_OK(weft_plan_builder_append_kernel(d->builder, program, d->compute, d->kernels[k]));
}

/* y = w * w; gradients: w * x, and a copy of 5 of its elements' kind. Two weights, one bucket. */
static void draft_training(draft_t *d, uint32_t ranks, const weft_registry_t *registry)
{
    begin(d, WEFT_PLAN_KIND_TRAINING, ranks, registry);
    d->grad_b = add(d, "grad b", WEFT_BUFFER_KIND_GRAD, B_COUNT, NULL);
    d->w = add(d, "w", WEFT_BUFFER_KIND_PARAM, W_COUNT, weights);
    d->x = add(d, "x", WEFT_BUFFER_KIND_INPUT, W_COUNT, NULL);
    uint32_t z = add(d, "z", WEFT_BUFFER_KIND_INPUT, B_COUNT, NULL);
    d->b = add(d, "b", WEFT_BUFFER_KIND_PARAM, B_COUNT, NULL);
    d->state_w = add(d, "w momentum", WEFT_BUFFER_KIND_STATE, W_COUNT, NULL);
    d->state_b = add(d, "b momentum", WEFT_BUFFER_KIND_STATE, B_COUNT, NULL);
    d->rate = add(d, "lr", WEFT_BUFFER_KIND_SCALAR, 0, NULL);
    d->y = add(d, "y", WEFT_BUFFER_KIND_OUTPUT, W_COUNT, NULL);
    d->grad_w = add(d, "grad w", WEFT_BUFFER_KIND_GRAD, W_COUNT, NULL);
    d->kernels[0] = kernel(d, "", "Mul", 14, (uint32_t[]){d->w, d->w}, 2, &d->y, 1);
    d->kernels[1] = kernel(d, "", "Abs", 13, &d->x, 1, &d->grad_w, 1);
    d->kernels[2] = kernel(d, "", "Abs", 13, &z, 1, &d->grad_b, 1);
    d->kernels[3] =
        kernel(d, "weft", "Momentum", 1, (uint32_t[]){d->w, d->grad_w, d->state_w, d->rate}, 4,
               (uint32_t[]){d->w, d->state_w}, 2);
    d->kernels[4] =
        kernel(d, "weft", "Momentum", 1, (uint32_t[]){d->b, d->grad_b, d->state_b, d->rate}, 4,
               (uint32_t[]){d->b, d->state_b}, 2);
    weft_plan_collective_params_t bucket = WEFT_PLAN_COLLECTIVE_PARAMS_INIT;
    uint32_t members[] = {d->grad_w, d->grad_b};
    bucket.name = "bucket 0";
    bucket.reduction = WEFT_REDUCTION_AVG;
    bucket.sends = members;
    bucket.send_count = 2;
    RANK_OK(weft_plan_builder_add_collective(d->builder, &bucket, &d->bucket));
    RANK_OK(weft_plan_builder_add_event(d->builder, &d->ready));
    RANK_OK(weft_plan_builder_add_event(d->builder, &d->done));
}

static void finish_training(draft_t *d, bool waits)
{
    for (uint32_t k = 0; k < 3; k++) {
        append(d, "step", k);
    }
    RANK_OK(weft_plan_builder_append_record(d->builder, "step", d->compute, d->ready));
    RANK_OK(weft_plan_builder_append_wait(d->builder, "step", d->comm, d->ready));
    RANK_OK(weft_plan_builder_append_collective(d->builder, "step", d->comm, d->bucket));
    RANK_OK(weft_plan_builder_append_record(d->builder, "step", d->comm, d->done));
    if (waits) {
        RANK_OK(weft_plan_builder_append_wait(d->builder, "step", d->compute, d->done));
    }
    append(d, "step", 3);
    append(d, "step", 4);
    append(d, "eval", 0);
}

/* x on rank r is r + 1, so that the mean is 2. */
static void train(rank_world_t *world)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session = NULL;
    float x[W_COUNT], w[W_COUNT], b[B_COUNT], y[W_COUNT];
    params.context = world->context;
    params.plan = world->user;
    RANK_OK(weft_session_create(&params, &session));
    for (int i = 0; i < W_COUNT; i++) {
        x[i] = -(float)(world->rank + 1);
    }
    RANK_OK(weft_session_set_input(session, "x", x, sizeof x));
    RANK_OK(weft_session_set_input(session, "z", x, B_COUNT * sizeof *x));
    for (uint32_t step = 1; step <= STEPS; step++) {
        RANK_OK(weft_session_step(session));
        RANK_OK(weft_session_get_param(session, 0, w, sizeof w));
        RANK_OK(weft_session_get_param(session, 1, b, sizeof b));
        for (int i = 0; i < W_COUNT; i++) {
            RANK_CHECK(w[i] == weights[i] - (float)(2 * RATE * step));
            RANK_CHECK(i >= B_COUNT || b[i] == -(float)(2 * RATE * step));
        }
    }
    RANK_OK(weft_session_eval(session));
    RANK_OK(weft_session_get_output(session, "y", y, sizeof y, NULL));
    RANK_CHECK(y[3] == w[3] * w[3]);
    weft_session_destroy(session);
}

static void test_training(void **state)
{
    char path[64];
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL, *loaded = NULL;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT, again = WEFT_PLAN_INFO_INIT;
    draft_t d;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    draft_training(&d, RANKS, registry);
    finish_training(&d, true);
    RANK_OK(weft_plan_builder_finish(d.builder, &plan));
    assert_int_equal(weft_plan_builder_finish(d.builder, &loaded), WEFT_ERR_STATE);
    assert_null(loaded);
    assert_int_equal(weft_plan_builder_add_event(d.builder, &d.ready), WEFT_ERR_STATE);
    weft_plan_builder_destroy(d.builder);
    support_rank_threads(RANKS, train, plan);

    snprintf(path, sizeof path, "/tmp/weft-test-builder-%d", (int)getpid());
    assert_int_equal(weft_plan_save(plan, path), WEFT_OK);
    assert_int_equal(weft_plan_load(path, registry, &loaded), WEFT_OK);
    unlink(path);
    assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
    assert_int_equal(weft_plan_get_info(loaded, &again), WEFT_OK);
    assert_string_equal(info.structure_digest, again.structure_digest);
    assert_int_equal(info.bucket_count, 1);
    assert_int_equal(info.has_eval, 1);
    support_rank_threads(RANKS, train, loaded);
    weft_plan_release(loaded);
    weft_plan_release(plan);
    weft_registry_destroy(registry);
}

/* ---- every collective ---- */

typedef struct example {
    weft_collective_t op;
    int64_t sent, received; /* elements, for RANKS ranks; received 0: in place */
} example_t;

static const example_t examples[] = {
    {WEFT_COLLECTIVE_ALL_REDUCE, 4, 4}, {WEFT_COLLECTIVE_ALL_REDUCE, 4, 0},
    {WEFT_COLLECTIVE_BROADCAST, 4, 4},  {WEFT_COLLECTIVE_REDUCE_SCATTER, 6, 2},
    {WEFT_COLLECTIVE_ALL_GATHER, 2, 6}, {WEFT_COLLECTIVE_REDUCE, 4, 4},
    {WEFT_COLLECTIVE_GATHER, 2, 6},     {WEFT_COLLECTIVE_SCATTER, 6, 2},
    {WEFT_COLLECTIVE_ALL_TO_ALL, 6, 6},
};
#define EXAMPLES (sizeof examples / sizeof *examples)

/* Element i of what rank r sends is 100 r + i; the root is rank 1. */
static float expected(const example_t *example, uint32_t rank, int64_t i)
{
    switch (example->op) {
    case WEFT_COLLECTIVE_BROADCAST:
        return (float)(100 + i);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return (float)(300 + 3 * (2 * rank + i));
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_GATHER:
        return (float)(100 * (i / 2) + i % 2);
    case WEFT_COLLECTIVE_SCATTER:
        return (float)(100 + 2 * rank + i);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return (float)(100 * (i / 2) + 2 * rank + i % 2);
    default:
        return (float)(300 + 3 * i);
    }
}

static void run_examples(rank_world_t *world)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session = NULL;
    float x[6], y[6];
    char name[16];
    params.context = world->context;
    params.plan = world->user;
    RANK_OK(weft_session_create(&params, &session));
    for (int i = 0; i < 6; i++) {
        x[i] = (float)(100 * world->rank + (uint32_t)i);
    }
    for (size_t e = 0; e < EXAMPLES; e++) {
        snprintf(name, sizeof name, "x%zu", e);
        RANK_OK(weft_session_set_input(session, name, x, (size_t)examples[e].sent * sizeof *x));
    }
    RANK_OK(weft_session_step(session));
    for (size_t e = 0; e < EXAMPLES; e++) {
        int64_t count = examples[e].received > 0 ? examples[e].received : examples[e].sent;
        bool rooted =
            examples[e].op == WEFT_COLLECTIVE_REDUCE || examples[e].op == WEFT_COLLECTIVE_GATHER;
        snprintf(name, sizeof name, "y%zu", e);
        RANK_OK(weft_session_get_output(session, name, y, (size_t)count * sizeof *y, NULL));
        for (int64_t i = 0; i < count && (!rooted || world->rank == 1); i++) {
            RANK_CHECK(y[i] == expected(&examples[e], world->rank, i));
        }
    }
    weft_session_destroy(session);
}

/* Inputs are copied first: collectives in place write what they read. */
static void test_collectives(void **state)
{
    weft_plan_t *plan = NULL;
    draft_t d;
    uint32_t event;
    (void)state;
    begin(&d, WEFT_PLAN_KIND_INFERENCE, RANKS, NULL);
    RANK_OK(weft_plan_builder_add_event(d.builder, &event));
    for (size_t e = 0; e < EXAMPLES; e++) {
        char name[16];
        weft_plan_collective_params_t params = WEFT_PLAN_COLLECTIVE_PARAMS_INIT;
        uint32_t collective, send;
        bool in_place = examples[e].received == 0;
        snprintf(name, sizeof name, "x%zu", e);
        uint32_t x = add(&d, name, WEFT_BUFFER_KIND_INPUT, examples[e].sent, NULL);
        snprintf(name, sizeof name, in_place ? "y%zu" : "t%zu", e);
        send = add(&d, name, in_place ? WEFT_BUFFER_KIND_OUTPUT : WEFT_BUFFER_KIND_TEMP,
                   examples[e].sent, NULL);
        snprintf(name, sizeof name, "y%zu", e);
        params.op = examples[e].op;
        params.root = examples[e].op == WEFT_COLLECTIVE_BROADCAST ||
                      examples[e].op == WEFT_COLLECTIVE_REDUCE ||
                      examples[e].op == WEFT_COLLECTIVE_GATHER ||
                      examples[e].op == WEFT_COLLECTIVE_SCATTER;
        params.sends = &send;
        params.send_count = 1;
        params.algorithms = e % 2 == 0 ? "mesh" : NULL;
        if (!in_place) {
            params.recv = add(&d, name, WEFT_BUFFER_KIND_OUTPUT, examples[e].received, NULL);
        }
        RANK_OK(weft_plan_builder_add_collective(d.builder, &params, &collective));
        uint32_t copy = kernel(&d, "", "Abs", 13, &x, 1, &send, 1);
        RANK_OK(weft_plan_builder_append_kernel(d.builder, "step", d.compute, copy));
    }
    RANK_OK(weft_plan_builder_append_record(d.builder, "step", d.compute, event));
    RANK_OK(weft_plan_builder_append_wait(d.builder, "step", d.comm, event));
    for (uint32_t e = 0; e < EXAMPLES; e++) {
        RANK_OK(weft_plan_builder_append_collective(d.builder, "step", d.comm, e));
    }
    RANK_OK(weft_plan_builder_finish(d.builder, &plan));
    weft_plan_builder_destroy(d.builder);
    support_rank_threads(RANKS, run_examples, plan);
    weft_plan_release(plan);
}

/* ---- wrong plans ---- */

static void expect_wrong(draft_t *d, weft_status_t wanted, const char *text)
{
    weft_plan_t *plan = NULL;
    weft_status_t status = weft_plan_builder_finish(d->builder, &plan);
    if (status != wanted || strstr(weft_last_error(), text) == NULL) {
        fail_msg("expected %d and '%s': %d and '%s'", (int)wanted, text, (int)status,
                 weft_last_error());
    }
    assert_null(plan);
    weft_plan_builder_destroy(d->builder);
}

static void test_wrong_plans(void **state)
{
    weft_registry_t *registry = NULL;
    draft_t d;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);

    draft_training(&d, 2, registry); /* reads gradients while they are reduced */
    finish_training(&d, false);
    expect_wrong(&d, WEFT_ERR_FORMAT, "grad");

    draft_training(&d, 2, registry); /* nothing reduces them */
    append(&d, "step", 1);
    append(&d, "step", 2);
    append(&d, "step", 3);
    append(&d, "step", 4);
    RANK_OK(weft_plan_builder_append_record(d.builder, "step", d.compute, d.ready));
    RANK_OK(weft_plan_builder_append_record(d.builder, "step", d.compute, d.done));
    expect_wrong(&d, WEFT_ERR_FORMAT, "grad");

    draft_training(&d, 2, registry);
    kernel(&d, "weft", "NoSuchOperator", 1, &d.x, 1, &d.y, 1);
    finish_training(&d, true);
    expect_wrong(&d, WEFT_ERR_UNSUPPORTED, "NoSuchOperator");

    draft_training(&d, 2, registry); /* another shape than the operator gives */
    kernel(&d, "", "Abs", 13, &d.b, 1, &d.y, 1);
    finish_training(&d, true);
    expect_wrong(&d, WEFT_ERR_FORMAT, "another type or shape");

    draft_training(&d, 2, registry);
    kernel(&d, "", "Abs", 13, (uint32_t[]){1000}, 1, &d.y, 1);
    finish_training(&d, true);
    expect_wrong(&d, WEFT_ERR_FORMAT, "an operand is no buffer");

    draft_training(&d, 2, registry);
    finish_training(&d, true);
    RANK_OK(weft_plan_builder_append_kernel(d.builder, "eval", d.comm, 1000));
    expect_wrong(&d, WEFT_ERR_FORMAT, "a step names what does not exist");

    draft_training(&d, 2, registry);
    finish_training(&d, true);
    RANK_OK(weft_plan_builder_append_wait(d.builder, "eval", d.comm, d.ready));
    expect_wrong(&d, WEFT_ERR_FORMAT, "a wait is never satisfied");

    draft_training(&d, 2, registry);
    finish_training(&d, true);
    append(&d, "other", 0);
    expect_wrong(&d, WEFT_ERR_FORMAT, "unexpected programs");

    begin(&d, WEFT_PLAN_KIND_INFERENCE, 2, registry);
    expect_wrong(&d, WEFT_ERR_FORMAT, "missing program 'step'");
    weft_registry_destroy(registry);
}

static void expect_field(weft_status_t status, const char *field)
{
    assert_int_equal(status, WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(weft_last_error_field(), field);
}

static void test_wrong_arguments(void **state)
{
    weft_plan_builder_params_t params = WEFT_PLAN_BUILDER_PARAMS_INIT;
    weft_plan_buffer_params_t buffer = WEFT_PLAN_BUFFER_PARAMS_INIT;
    weft_plan_collective_params_t collective = WEFT_PLAN_COLLECTIVE_PARAMS_INIT;
    weft_plan_kernel_params_t node = WEFT_PLAN_KERNEL_PARAMS_INIT;
    weft_attr_t attr = {.name = "a", .type = WEFT_ATTR_TYPE_TENSOR};
    weft_plan_builder_t *builder = NULL;
    weft_plan_t *plan = NULL;
    draft_t d;
    uint32_t id;
    (void)state;
    params.world_size = 0;
    expect_field(weft_plan_builder_create(&params, &builder), "world_size");
    params.world_size = 2;
    params.kind = (weft_plan_kind_t)7;
    expect_field(weft_plan_builder_create(&params, &builder), "kind");
    assert_null(builder);

    draft_training(&d, 2, NULL);
    buffer.desc = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_NONE};
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "desc");
    buffer.desc = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {-1}};
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "desc");
    buffer.desc.dims[0] = INT64_MAX / 2;
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "desc");
    buffer.desc.dims[0] = W_COUNT + 1;
    buffer.kind = (weft_buffer_kind_t)9;
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "kind");
    buffer.kind = WEFT_BUFFER_KIND_TEMP;
    buffer.reuses = 1 + d.y; /* which is smaller */
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "reuses");
    buffer.reuses = 1 + d.w;
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "reuses");
    buffer.reuses = 1000;
    expect_field(weft_plan_builder_add_buffer(d.builder, &buffer, &id), "reuses");

    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "sends");
    collective.sends = (uint32_t[]){d.grad_w, d.w};
    collective.send_count = 2;
    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "sends");
    collective.sends = (uint32_t[]){d.grad_w, 1000};
    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "sends");
    collective.sends = (uint32_t[]){d.grad_w, d.grad_b};
    collective.op = WEFT_COLLECTIVE_ALL_GATHER;
    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "sends");
    collective.op = WEFT_COLLECTIVE_ALL_GATHER_V;
    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "op");
    collective.op = (weft_collective_t)99;
    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "op");
    collective.op = WEFT_COLLECTIVE_ALL_REDUCE;
    collective.recv = d.y;
    expect_field(weft_plan_builder_add_collective(d.builder, &collective, &id), "recv");

    assert_int_equal(weft_plan_builder_add_kernel(d.builder, &node, &id),
                     WEFT_ERR_INVALID_ARGUMENT);
    node.op = "Abs";
    node.attrs = &attr;
    node.attr_count = 1;
    expect_field(weft_plan_builder_add_kernel(d.builder, &node, &id), "attrs");
    attr = (weft_attr_t){.name = "a", .type = WEFT_ATTR_TYPE_INTS, .count = 1};
    expect_field(weft_plan_builder_add_kernel(d.builder, &node, &id), "attrs");
    assert_int_equal(weft_plan_builder_append_kernel(d.builder, "step", 2, 0),
                     WEFT_ERR_INVALID_ARGUMENT);
    for (int i = 2; i < 64; i++) {
        RANK_OK(weft_plan_builder_add_stream(d.builder, "more", &id));
    }
    assert_int_equal(weft_plan_builder_add_stream(d.builder, "more", &id),
                     WEFT_ERR_INVALID_ARGUMENT);
    finish_training(&d, true); /* none of this was added */
    RANK_OK(weft_plan_builder_finish(d.builder, &plan));
    weft_plan_release(plan);
    weft_plan_builder_destroy(d.builder);
}

/* A temporary in the memory of one that is no longer read, and one that is. */
static void test_reused_memory(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        weft_plan_buffer_params_t params = WEFT_PLAN_BUFFER_PARAMS_INIT;
        weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
        weft_plan_t *plan = NULL;
        draft_t d;
        begin(&d, WEFT_PLAN_KIND_INFERENCE, 1, NULL);
        d.x = add(&d, "x", WEFT_BUFFER_KIND_INPUT, 16, NULL);
        uint32_t a = add(&d, "a", WEFT_BUFFER_KIND_TEMP, 16, NULL), b;
        d.y = add(&d, "y", WEFT_BUFFER_KIND_OUTPUT, 16, NULL);
        params.name = "b";
        params.desc = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {16}};
        params.reuses = 1 + a;
        RANK_OK(weft_plan_builder_add_buffer(d.builder, &params, &b));
        uint32_t c = add(&d, "c", WEFT_BUFFER_KIND_TEMP, 16, NULL);
        d.kernels[0] = kernel(&d, "", "Abs", 13, &d.x, 1, &a, 1);
        d.kernels[1] = kernel(&d, "", "Neg", 13, &a, 1, &c, 1);
        d.kernels[2] = kernel(&d, "", "Abs", 13, &c, 1, &b, 1);
        d.kernels[3] = kernel(&d, "", "Mul", 14, (uint32_t[]){wrong ? a : c, b}, 2, &d.y, 1);
        for (uint32_t k = 0; k < 4; k++) {
            append(&d, "step", k);
        }
        if (wrong) {
            expect_wrong(&d, WEFT_ERR_FORMAT, "a");
            continue;
        }
        RANK_OK(weft_plan_builder_finish(d.builder, &plan));
        weft_plan_builder_destroy(d.builder);
        assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
        assert_int_equal(info.arena_bytes, 4 * 64);
        weft_plan_release(plan);
    }
}

/* A smaller temporary in the memory of an output: before the output is written, and after it. */
static void test_kept_outputs(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        weft_plan_buffer_params_t params = WEFT_PLAN_BUFFER_PARAMS_INIT;
        weft_plan_t *plan = NULL;
        draft_t d;
        begin(&d, WEFT_PLAN_KIND_INFERENCE, 1, NULL);
        params.name = "t";
        params.desc = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {16}};
        params.reuses = 1; /* there is no buffer yet */
        expect_field(weft_plan_builder_add_buffer(d.builder, &params, &d.x), "reuses");
        d.x = add(&d, "x", WEFT_BUFFER_KIND_INPUT, 16, NULL);
        d.y = add(&d, "y", WEFT_BUFFER_KIND_OUTPUT, 64, NULL);
        d.w = add(&d, "w", WEFT_BUFFER_KIND_INPUT, 64, NULL);
        uint32_t z = add(&d, "z", WEFT_BUFFER_KIND_OUTPUT, 16, NULL), t;
        params.reuses = 1 + d.y;
        RANK_OK(weft_plan_builder_add_buffer(d.builder, &params, &t));
        d.kernels[wrong ? 0 : 2] = kernel(&d, "", "Abs", 13, &d.w, 1, &d.y, 1);
        d.kernels[wrong ? 1 : 0] = kernel(&d, "", "Abs", 13, &d.x, 1, &t, 1);
        d.kernels[wrong ? 2 : 1] = kernel(&d, "", "Neg", 13, &t, 1, &z, 1);
        for (uint32_t k = 0; k < 3; k++) {
            append(&d, "step", k);
        }
        if (wrong) {
            expect_wrong(&d, WEFT_ERR_FORMAT, "(y) is an output whose memory is used");
            continue;
        }
        RANK_OK(weft_plan_builder_finish(d.builder, &plan));
        weft_plan_builder_destroy(d.builder);
        weft_plan_release(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),      cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_wrong_plans),   cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_reused_memory), cmocka_unit_test(test_kept_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
