/* SPDX-License-Identifier: Apache-2.0 */
/* Whole compiles of the sample models: what the plan promises is checked from the outside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/graph_text.h>

#include "fusion/fusion.h"
#include "tests/support/support.h"

#define MODEL(name) WEFT_SOURCE_DIR "/samples/models/" name

static const char *const models[] = {MODEL("mlp.onnx"), MODEL("lenet.onnx")};
static const char *const policies[] = {
    "bytes:25M",     "bytes:64K",        "bytes:7000", "index:1,3", "index:0,4",
    "percent:60,40", "percent:25,25,50", "one",        "none",      "bytes:25M,time:100us",
};
static const char *const optimizers[] = {"sgd", "momentum", "adam"};
enum { MODELS = 2, POLICIES = 10, OPTIMIZERS = 3 };

static weft_plan_t *compile(const char *model, const char *policy, const char *optimizer,
                            uint32_t world)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = model;
    params.world_size = world;
    params.batch = 64;
    params.bucket = policy;
    params.optimizer = optimizer;
    if (weft_compile(&params, &plan) < 0) {
        fail_msg("%s, %s, %s: %s", model, policy, optimizer, weft_last_error());
    }
    return plan;
}

/* Every 64 bytes of the arena remember which buffer was written there last; inputs are there from
 * the start. */
typedef struct shadow {
    const weft_plan_t *plan;
    uint32_t *last;
} shadow_t;

static void write_buffer(shadow_t *shadow, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &shadow->plan->buffers[id];
    for (uint64_t at = 0; at < buffer->size_bytes; at += 64) {
        shadow->last[(buffer->offset_bytes + at) / 64] = id;
    }
}

static bool overlaps(const wefti_plan_buffer_t *a, const wefti_plan_buffer_t *b)
{
    return a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

/* All bytes of the buffer come from writing it, and not from one who took its memory too early. */
static void read_buffer(const shadow_t *shadow, uint32_t id, const char *reader)
{
    const wefti_plan_buffer_t *buffer = &shadow->plan->buffers[id];
    for (uint64_t at = 0; at < buffer->size_bytes; at += 64) {
        uint32_t found = shadow->last[(buffer->offset_bytes + at) / 64];
        bool good = found == id;
        if (buffer->kind == WEFTI_BUFFER_RANGE) {
            good = found == WEFTI_PLAN_NONE || found == id ||
                   overlaps(buffer, &shadow->plan->buffers[found]) ||
                   shadow->plan->buffers[found].kind == WEFTI_BUFFER_RANGE;
        } else if (!good && found != WEFTI_PLAN_NONE) {
            good = shadow->plan->buffers[found].kind == WEFTI_BUFFER_RANGE &&
                   overlaps(&shadow->plan->buffers[found], buffer);
        }
        if (!good) {
            fail_msg("%s reads %s after its memory was given to %s", reader, buffer->name,
                     found == WEFTI_PLAN_NONE ? "nobody" : shadow->plan->buffers[found].name);
        }
    }
}

static void run_stream(shadow_t *shadow, const wefti_plan_stream_program_t *stream)
{
    const weft_plan_t *plan = shadow->plan;
    for (uint32_t i = 0; i < stream->step_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[stream->steps[i].index];
        if (stream->steps[i].kind != WEFTI_STEP_KERNEL) {
            continue;
        }
        for (uint32_t j = 0; j < kernel->input_count; j++) {
            if (kernel->inputs[j] != WEFTI_PLAN_NONE) {
                read_buffer(shadow, kernel->inputs[j], kernel->name);
            }
        }
        for (uint32_t j = 0; j < kernel->output_count; j++) {
            if (kernel->outputs[j] != WEFTI_PLAN_NONE) {
                write_buffer(shadow, kernel->outputs[j]);
            }
        }
    }
}

static void check_memory_contents(const weft_plan_t *plan, const char *program)
{
    shadow_t shadow = {plan, malloc((plan->arena_bytes / 64 + 1) * sizeof(uint32_t))};
    assert_non_null(shadow.last);
    memset(shadow.last, 0xff, (plan->arena_bytes / 64 + 1) * sizeof(uint32_t));
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        wefti_buffer_kind_t kind = plan->buffers[b].kind;
        if (kind == WEFTI_BUFFER_PARAM || kind == WEFTI_BUFFER_STATE ||
            kind == WEFTI_BUFFER_CONST || kind == WEFTI_BUFFER_INPUT ||
            kind == WEFTI_BUFFER_SCALAR) {
            write_buffer(&shadow, b);
        }
    }
    run_stream(&shadow, &wefti_plan_program(plan, program)->streams[0]);
    for (uint32_t b = 0; b < plan->binding_count; b++) {
        if (plan->bindings[b].role == WEFT_BINDING_ROLE_LOSS ||
            plan->bindings[b].role == WEFT_BINDING_ROLE_LOGITS) {
            read_buffer(&shadow, plan->bindings[b].buffer, "the caller");
        }
    }
    free(shadow.last);
}

/* Position of a step in a stream, or UINT32_MAX. */
static uint32_t find_step(const wefti_plan_stream_program_t *stream, wefti_step_kind_t kind,
                          uint32_t index)
{
    for (uint32_t i = 0; i < stream->step_count; i++) {
        if (stream->steps[i].kind == kind && stream->steps[i].index == index) {
            return i;
        }
    }
    return UINT32_MAX;
}

/* The event that makes a bucket start is recorded right behind the last kernel that writes one of
 * its members; the event recorded behind it is waited for before anything reads or writes there
 * again. */
static void check_bucket_events(const weft_plan_t *plan, uint32_t bucket)
{
    const wefti_plan_program_t *step = wefti_plan_program(plan, "step");
    const wefti_plan_stream_program_t *compute = &step->streams[0], *comm = &step->streams[1];
    const wefti_plan_buffer_t *range = &plan->buffers[plan->collectives[bucket].buffer];
    uint32_t at = find_step(comm, WEFTI_STEP_COLLECTIVE, bucket), from, start, done, last_write = 0;
    assert_true(at != UINT32_MAX && at > 0 && at + 1 < comm->step_count);
    /* Pieces of a tensor start by the same event. */
    for (from = at - 1; comm->steps[from].kind != WEFTI_STEP_WAIT; from--) {
        assert_true(from > 0);
        if (comm->steps[from].kind == WEFTI_STEP_COLLECTIVE) {
            assert_int_equal(plan->collectives[comm->steps[from].index].members[0],
                             plan->collectives[bucket].members[0]);
        }
    }
    assert_int_equal(comm->steps[at + 1].kind, WEFTI_STEP_RECORD);
    start = find_step(compute, WEFTI_STEP_RECORD, comm->steps[from].index);
    done = find_step(compute, WEFTI_STEP_WAIT, comm->steps[at + 1].index);
    assert_true(start != UINT32_MAX && done != UINT32_MAX && start < done);
    for (uint32_t i = 0; i < compute->step_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[compute->steps[i].index];
        bool touches = false, writes = false;
        if (compute->steps[i].kind != WEFTI_STEP_KERNEL) {
            continue;
        }
        for (uint32_t j = 0; j < kernel->input_count; j++) {
            touches |= kernel->inputs[j] != WEFTI_PLAN_NONE &&
                       overlaps(&plan->buffers[kernel->inputs[j]], range);
        }
        for (uint32_t j = 0; j < kernel->output_count; j++) {
            writes |= kernel->outputs[j] != WEFTI_PLAN_NONE &&
                      overlaps(&plan->buffers[kernel->outputs[j]], range);
        }
        assert_true(!(touches || writes) || i < start || i > done);
        last_write = writes ? i : last_write;
    }
    /* Only records lie between the last writer and the record. */
    for (uint32_t i = last_write + 1; i < start; i++) {
        assert_int_equal(compute->steps[i].kind, WEFTI_STEP_RECORD);
    }
}

/* Every 64 bytes of a parameter are updated once, and only behind their last reader. */
static void check_updates_come_last(const weft_plan_t *plan)
{
    const wefti_plan_stream_program_t *compute = &wefti_plan_program(plan, "step")->streams[0];
    uint8_t *updated = calloc(plan->arena_bytes / 64 + 1, 1);
    assert_non_null(updated);
    for (uint32_t i = 0; i < compute->step_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[compute->steps[i].index];
        if (compute->steps[i].kind != WEFTI_STEP_KERNEL) {
            continue;
        }
        for (uint32_t j = 0; j < kernel->input_count; j++) {
            const wefti_plan_buffer_t *in =
                kernel->inputs[j] == WEFTI_PLAN_NONE ? NULL : &plan->buffers[kernel->inputs[j]];
            for (uint64_t at = 0; in != NULL && at < in->size_bytes; at += 64) {
                assert_int_equal(updated[(in->offset_bytes + at) / 64], 0);
            }
        }
        for (uint32_t j = 0; kernel->phase == WEFTI_PHASE_UPDATE && j < kernel->output_count; j++) {
            const wefti_plan_buffer_t *out = &plan->buffers[kernel->outputs[j]];
            for (uint64_t at = 0; at < out->size_bytes; at += 64) {
                updated[(out->offset_bytes + at) / 64] = 1;
            }
        }
    }
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        const wefti_plan_buffer_t *param = &plan->buffers[b];
        for (uint64_t at = 0; param->kind == WEFTI_BUFFER_PARAM && at < param->size_bytes;
             at += 64) {
            assert_int_equal(updated[(param->offset_bytes + at) / 64], 1);
        }
    }
    free(updated);
}

static void check_plan(const weft_plan_t *plan)
{
    uint64_t kept = 0;
    assert_int_equal(plan->fusion_copied_bytes, 0);
    if ((double)plan->arena_bytes > 1.25 * (double)plan->live_bytes) {
        fail_msg("arena %llu, live %llu", (unsigned long long)plan->arena_bytes,
                 (unsigned long long)plan->live_bytes);
    }
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        wefti_buffer_kind_t kind = plan->buffers[b].kind;
        kept +=
            kind == WEFTI_BUFFER_PARAM || kind == WEFTI_BUFFER_GRAD || kind == WEFTI_BUFFER_STATE
                ? plan->buffers[b].size_bytes
                : 0;
    }
    assert_true(plan->live_bytes >= kept);
    check_memory_contents(plan, "step");
    check_memory_contents(plan, "eval");
    check_updates_come_last(plan);
    for (uint32_t c = 0; c < plan->collective_count; c++) {
        if (plan->collectives[c].op == WEFT_COLLECTIVE_ALL_REDUCE) {
            check_bucket_events(plan, c);
        }
    }
}

/* Gradients and states lie as their parameters do, and ranks could share every region equally. */
static void check_regions(const weft_plan_t *plan)
{
    const wefti_plan_buffer_t *first[4] = {NULL};
    for (uint32_t b = plan->buffer_count; b-- > 0;) {
        if (plan->buffers[b].kind <= WEFTI_BUFFER_STATE) {
            first[plan->buffers[b].kind] = &plan->buffers[b];
        }
    }
    assert_int_equal(
        (first[WEFTI_BUFFER_GRAD]->offset_bytes - first[WEFTI_BUFFER_PARAM]->offset_bytes) %
            (64 * plan->world_size),
        0);
    if (first[WEFTI_BUFFER_STATE] != NULL) {
        assert_int_equal(
            first[WEFTI_BUFFER_STATE]->offset_bytes - first[WEFTI_BUFFER_GRAD]->offset_bytes,
            first[WEFTI_BUFFER_GRAD]->offset_bytes - first[WEFTI_BUFFER_PARAM]->offset_bytes);
    }
}

static void test_compile_keeps_its_promises(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        for (int p = 0; p < POLICIES; p++) {
            weft_plan_t *plan =
                compile(models[m], policies[p], optimizers[p % OPTIMIZERS], 1 + (uint32_t)p);
            check_plan(plan);
            check_regions(plan);
            weft_plan_release(plan);
        }
    }
}

static uint32_t bucket_count(const weft_plan_t *plan)
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < plan->collective_count; c++) {
        count += plan->collectives[c].op == WEFT_COLLECTIVE_ALL_REDUCE;
    }
    return count;
}

/* Caps that cut inside tensors: no bucket is above, every gradient is in buckets exactly once (the
 * plan's verifier has proved it; here the payload is summed), every bucket has its update. */
static void test_compile_never_exceeds_the_cap(void **state)
{
    unsigned seed = (unsigned)time(NULL);
    (void)state;
    print_message("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < (TEST_SANITIZED ? 8 : 24); round++) {
        uint64_t cap = 2048 + (uint64_t)rand() % (round % 2 ? 5000 : 900000), grads = 0,
                 reduced = 0;
        char policy[32];
        weft_plan_t *plan;
        uint32_t updates = 0;
        snprintf(policy, sizeof(policy), "bytes:%u", (unsigned)cap);
        plan = compile(models[round / 2 % MODELS], policy, optimizers[round % OPTIMIZERS], 2);
        for (uint32_t b = 0; b < plan->buffer_count; b++) {
            grads += plan->buffers[b].kind == WEFTI_BUFFER_GRAD
                         ? (plan->buffers[b].size_bytes + 63) / 64 * 64
                         : 0;
        }
        for (uint32_t k = 0; k < plan->kernel_count; k++) {
            updates += plan->kernels[k].phase == WEFTI_PHASE_UPDATE;
        }
        for (uint32_t c = 0; c < plan->collective_count; c++) {
            const wefti_plan_collective_t *bucket = &plan->collectives[c];
            if (bucket->op == WEFT_COLLECTIVE_ALL_REDUCE) {
                assert_true(plan->buffers[bucket->buffer].size_bytes <= cap);
                reduced += plan->buffers[bucket->buffer].size_bytes;
            }
        }
        assert_int_equal(grads, reduced);
        assert_int_equal(updates, bucket_count(plan));
        if (round / 2 % MODELS == 0) { /* fc1.weight; fc1.bias and the broadcast follow */
            assert_non_null(
                strstr(plan->collectives[plan->collective_count - 3].reason, " of fc1.weight"));
        }
        if (cap > 100000 || round < 2) {
            check_plan(plan);
        }
        weft_plan_release(plan);
    }
}

/* A mask is only for the gradient. */
static void test_compile_evaluates_without_masks(void **state)
{
    weft_plan_t *plan = compile(models[1], "one", "sgd", 2);
    const wefti_plan_stream_program_t *steps[2] = {&wefti_plan_program(plan, "step")->streams[0],
                                                   &wefti_plan_program(plan, "eval")->streams[0]};
    uint32_t masks[2] = {0, 0}, plain[2] = {0, 0};
    (void)state;
    for (int p = 0; p < 2; p++) {
        for (uint32_t i = 0; i < steps[p]->step_count; i++) {
            const char *op = steps[p]->steps[i].kind == WEFTI_STEP_KERNEL
                                 ? plan->kernels[steps[p]->steps[i].index].op
                                 : "";
            masks[p] += strcmp(op, "MaxPoolMask") == 0;
            plain[p] += strcmp(op, "MaxPool") == 0;
        }
    }
    assert_true(masks[0] > 0 && plain[0] == 0);
    assert_true(masks[1] == 0 && plain[1] == masks[0]);
    weft_plan_release(plan);
}

static void test_compile_makes_the_buckets_asked_for(void **state)
{
    static const struct {
        int model;
        const char *policy;
        uint32_t buckets, first_members;
    } rows[] = {
        {0, "one", 1, 6},       {0, "none", 6, 1},      {0, "index:0,4", 3, 1},
        {0, "index:1,3", 3, 2}, {0, "bytes:25M", 1, 6}, {0, "percent:30,70", 2, 4},
        {1, "one", 1, 10},      {1, "none", 10, 1},     {1, "index:0,4,8", 4, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        weft_plan_t *plan = compile(models[rows[i].model], rows[i].policy, "momentum", 2);
        uint32_t updates = 0;
        for (uint32_t k = 0; k < plan->kernel_count; k++) {
            updates += plan->kernels[k].phase == WEFTI_PHASE_UPDATE;
        }
        print_message("%s: %u buckets, first: %s\n", rows[i].policy, bucket_count(plan),
                      plan->collectives[0].reason);
        assert_int_equal(bucket_count(plan), rows[i].buckets);
        assert_int_equal(plan->collectives[0].member_count, rows[i].first_members);
        assert_int_equal(updates, rows[i].buckets); /* one update for each bucket */
        weft_plan_release(plan);
    }
}

static void test_compile_gives_the_same_digest_again(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        for (int p = 0; p < POLICIES; p += TEST_SANITIZED ? 3 : 1) {
            weft_plan_t *a = compile(models[m], policies[p], "adam", 3),
                        *b = compile(models[m], policies[p], "adam", 3);
            assert_memory_equal(&a->structure_digest, &b->structure_digest,
                                sizeof(a->structure_digest));
            assert_memory_equal(&a->weights_digest, &b->weights_digest, sizeof(a->weights_digest));
            weft_plan_release(a);
            weft_plan_release(b);
        }
    }
}

/* Changing the policy moves no memory: parameters, gradients and states lie where they lay. */
static void test_compile_moves_no_memory_with_the_policy(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        weft_plan_t *one = compile(models[m], "one", "momentum", 2);
        for (int p = 0; p < POLICIES; p += TEST_SANITIZED ? 3 : 1) {
            weft_plan_t *plan = compile(models[m], policies[p], "momentum", 2);
            assert_int_equal(plan->arena_bytes, one->arena_bytes);
            assert_int_equal(plan->live_bytes, one->live_bytes);
            for (uint32_t b = 0;
                 b < one->buffer_count && one->buffers[b].kind != WEFTI_BUFFER_RANGE; b++) {
                assert_int_equal(plan->buffers[b].kind, one->buffers[b].kind);
                assert_int_equal(plan->buffers[b].offset_bytes, one->buffers[b].offset_bytes);
            }
            weft_plan_release(plan);
        }
        weft_plan_release(one);
    }
}

/* What peers, files and callers see has the plain layout, whatever activations have. */
static void test_compile_keeps_plain_what_others_see(void **state)
{
    weft_plan_t *plan = compile(models[1], "one", "sgd", 2);
    (void)state;
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[b];
        bool one_channel = buffer->kind == WEFTI_BUFFER_INPUT && buffer->dims[1] == 1;
        assert_true(buffer->kind == WEFTI_BUFFER_TEMP || one_channel ||
                    buffer->layout == WEFT_LAYOUT_PLAIN);
    }
    weft_plan_release(plan);
}

static void expect_error(const weft_compile_params_t *params, weft_status_t status,
                         const char *says)
{
    weft_plan_t *plan = (weft_plan_t *)params;
    assert_int_equal(weft_compile(params, &plan), status);
    assert_null(plan);
    if (strstr(weft_last_error(), says) == NULL || strchr(weft_last_error(), '\n') != NULL) {
        fail_msg("\"%s\" does not say \"%s\"", weft_last_error(), says);
    }
}

static void test_compile_names_the_wrong_parameter(void **state)
{
    weft_compile_params_t good = WEFT_COMPILE_PARAMS_INIT, bad;
    weft_input_shape_t shape = {"image", 2, {4, 0}};
    (void)state;
    good.model_path = models[0];
    good.world_size = 2;
    good.batch = 4;
    bad = good, bad.world_size = 0,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "world_size: must be set");
    bad = good, bad.batch = -3,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT,
                 "batch: must be a whole number between 1 and 2147483647: -3");
    bad = good, bad.optimizer = "adadelta",
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT,
                 "optimizer: must be sgd, momentum, adam, adamw, lamb or adagrad: adadelta");
    bad = good, bad.lr = -1,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "lr: must be a number above 0: -1");
    bad = good, bad.bucket = "two",
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "bucket: unknown policy 'two'");
    bad = good, bad.bucket = "index:2,77",
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "position 77");
    bad = good, bad.shapes = &shape, bad.shape_count = 1,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "shapes: input 'image'");
    bad = good, bad.model_path = NULL,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "model_path: must be set");
    bad = good, bad.model_path = "/nowhere/x.onnx",
    expect_error(&bad, WEFT_ERR_NOT_FOUND, "/nowhere/x.onnx");
    bad = good, bad.model_path = WEFT_SOURCE_DIR "/tests/fusion/test_compile.c",
    expect_error(&bad, WEFT_ERR_FORMAT, "test_compile.c");
    bad = good, bad.tensor_parallel = 3,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT,
                 "world_size: must be a multiple of tensor_parallel: 2, tensor_parallel 3");
    bad = good, bad.world_size = 4, bad.tensor_parallel = 2, bad.order = "blocks:2,2",
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "tensor_parallel: excludes order blocks:2,2");
    bad = good, bad.tensor_parallel = 2, bad.shard_optimizer = 1,
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT,
                 "tensor_parallel: excludes shard_optimizer: shards are of parameters that all");
    bad = good, bad.world_size = 4, bad.tensor_parallel = 2, bad.optimizer = "lamb",
    expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT,
                 "tensor_parallel: excludes optimizer lamb: it needs norms of whole parameters");
    bad = good, bad.struct_size = 0, expect_error(&bad, WEFT_ERR_INVALID_ARGUMENT, "struct_size");
}

typedef struct reader {
    const weft_registry_t *registry;
    uint32_t texts;
} reader_t;

static void read_back(void *user, const weft_pass_report_t *report)
{
    reader_t *reader = user;
    weft_graph_t *graph = NULL;
    if (report->graph_text != NULL) {
        if (weft_graph_from_text(report->graph_text, reader->registry, &graph) < 0) {
            fail_msg("after %s: %s\n%s", report->name, weft_last_error(), report->graph_text);
        }
        weft_graph_destroy(graph);
        reader->texts++;
    }
}

/* The graph after each pass is valid, has the types that inference gives it, and reads back. */
static void test_compile_prints_graphs_that_read_back(void **state)
{
    weft_registry_t *registry;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    for (int form = 0; form < 2 * 7; form++) {
        reader_t reader = {.registry = registry};
        weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
        weft_plan_t *plan;
        params.model_path = models[form % 2];
        params.world_size = 2;
        params.batch = 4;
        params.print_after = "all";
        params.verify_each = 1;
        params.on_pass = read_back;
        params.on_pass_user = &reader;
        params.optimizer = optimizers[form % 3];
        params.shard_optimizer = form / 2 == 1;
        params.decouple = form / 2 == 2;
        params.accumulate = form / 2 == 3 ? 2 : 0;
        params.clip_norm = form / 2 == 4 ? 1.0 : 0;
        params.infer = form / 2 == 5;
        params.shard_parameters = form / 2 == 6;
        if (params.infer) {
            params.optimizer = NULL;
        }
        CHECK(weft_compile(&params, &plan));
        weft_plan_release(plan);
        assert_true(reader.texts > 3);
    }
    weft_registry_destroy(registry);
}

static void test_open_batch(void **state)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    weft_input_shape_t shape = {"image", 4, {6, 1, 28, 28}};
    weft_plan_t *plan;
    (void)state;
    params.model_path = models[0];
    params.world_size = 2;
    params.open_batch = 3;
    assert_int_equal(weft_compile(&params, &plan), WEFT_OK);
    assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
    assert_int_equal(info.batch, 3);
    weft_plan_release(plan);
    params.batch = 4; /* said is said */
    assert_int_equal(weft_compile(&params, &plan), WEFT_OK);
    assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
    assert_int_equal(info.batch, 4);
    weft_plan_release(plan);
    params.batch = 0; /* as by the shape of another input */
    params.shapes = &shape;
    params.shape_count = 1;
    assert_int_equal(weft_compile(&params, &plan), WEFT_OK);
    assert_int_equal(weft_plan_get_info(plan, &info), WEFT_OK);
    assert_int_equal(info.batch, 6);
    weft_plan_release(plan);
    params.shape_count = 0;
    params.open_batch = 0;
    expect_error(&params, WEFT_ERR_INVALID_ARGUMENT, "shapes: no size for dimension 0");
    params.open_batch = -3;
    expect_error(&params, WEFT_ERR_INVALID_ARGUMENT,
                 "open_batch: must be a whole number between 1 and 2147483647: -3");
}

#define PARTS WEFT_SOURCE_DIR "/samples/tensor_parallel/"

static void fail_every_allocation(int mode)
{
    static const char *const rank_models[] = {PARTS "block.rank0.onnx", PARTS "block.rank1.onnx"};
    test_memory_t memory;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan;
    uint64_t total;
    params.model_path = models[0];
    params.world_size = 2;
    params.batch = 4;
    params.bucket = "none";
    params.shard_optimizer = mode == 1;
    params.decouple = mode == 2;
    params.accumulate = mode == 2 ? 2 : 0;
    params.shard_parameters = mode == 5;
    if (mode == 3 || mode == 4) {
        params.model_path = PARTS "whole.onnx";
        params.bucket = NULL;
        params.infer = 1;
        params.split_batch = mode == 3;
        params.rank_models = rank_models;
        params.rank_model_count = mode == 4 ? 2 : 0;
    }
    params.allocator = &memory.allocator;
    test_memory_init(&memory);
    assert_int_equal(weft_compile(&params, &plan), WEFT_OK);
    weft_plan_release(plan);
    assert_int_equal(memory.live_blocks, 0);
    total = memory.requests;
    print_message("%llu allocations\n", (unsigned long long)total);
    /* Modes share most of their code: under sanitizers each takes every third one, from another. */
    for (uint64_t i = TEST_SANITIZED ? mode % 3 : 0; i < total; i += TEST_SANITIZED ? 3 : 1) {
        test_memory_fail(&memory, i, UINT64_MAX);
        if (weft_compile(&params, &plan) != WEFT_ERR_NO_MEMORY) {
            fail_msg("allocation %llu of %llu: %s", (unsigned long long)i,
                     (unsigned long long)total, weft_last_error());
        }
        assert_null(plan);
        assert_int_equal(memory.live_blocks, 0);
    }
}

static void test_compile_survives_every_failing_allocation(void **state)
{
    (void)state;
    /* whole, swept, decoupled updates; inference of a split batch, and of a model per rank; sharded
     * parameters */
    for (int mode = 0; mode <= 5; mode++) {
        fail_every_allocation(mode);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile_keeps_its_promises),
        cmocka_unit_test(test_compile_never_exceeds_the_cap),
        cmocka_unit_test(test_compile_evaluates_without_masks),
        cmocka_unit_test(test_compile_makes_the_buckets_asked_for),
        cmocka_unit_test(test_compile_gives_the_same_digest_again),
        cmocka_unit_test(test_compile_moves_no_memory_with_the_policy),
        cmocka_unit_test(test_compile_keeps_plain_what_others_see),
        cmocka_unit_test(test_compile_names_the_wrong_parameter),
        cmocka_unit_test(test_compile_prints_graphs_that_read_back),
        cmocka_unit_test(test_open_batch),
        cmocka_unit_test(test_compile_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
