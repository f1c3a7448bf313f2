/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded updates: where shards and states lie, what waits for what, and what is left whole. */
#include <stdio.h>
#include <string.h>

#include "fusion/fusion.h"
#include "tests/support/support.h"
#include "tests/support/support_lower.h"

#define MODEL(name) WEFT_SOURCE_DIR "/samples/models/" name

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    uint32_t lr;
    wefti_lower_params_t params;
} fixture_t;

static const float contents[4096];

static uint32_t add_value(wefti_graph_t *graph, const char *name, wefti_value_kind_t kind,
                          int64_t elems)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {elems}};
    uint32_t value;
    type.data = kind == WEFTI_VALUE_PARAM ? contents : NULL;
    type.rank = kind == WEFTI_VALUE_SCALAR ? 0 : 1;
    assert_int_equal(wefti_graph_add_value(graph, name, kind, &type, &value), WEFT_OK);
    return value;
}

static uint32_t add_op(fixture_t *f, const char *op, const uint32_t *inputs, uint32_t count,
                       wefti_phase_t phase)
{
    uint32_t node;
    wefti_node_params_t params = {.domain = phase == WEFTI_PHASE_COMM ? "weft" : "",
                                  .op = op,
                                  .inputs = inputs,
                                  .input_count = count,
                                  .output_count = 1,
                                  .phase = phase};
    if (wefti_graph_add_node(f->graph, &params, &node) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return f->graph->nodes[node].outputs[0];
}

static uint32_t relu(fixture_t *f, uint32_t input, wefti_phase_t phase)
{
    return add_op(f, "Relu", &input, 1, phase);
}

static int setup(void **state)
{
    static fixture_t fixture;
    fixture = (fixture_t){.params = {.world_size = 2,
                                     .policy = "one",
                                     .optimizer = "momentum",
                                     .model_name = "test",
                                     .shard = true}};
    assert_int_equal(weft_registry_create(NULL, &fixture.registry), WEFT_OK);
    assert_int_equal(wefti_graph_create(NULL, fixture.registry, 0, &fixture.graph), WEFT_OK);
    fixture.lr = add_value(fixture.graph, "lr", WEFTI_VALUE_SCALAR, 1);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *fixture = *state;
    wefti_graph_destroy(fixture->graph);
    weft_registry_destroy(fixture->registry);
    return 0;
}

static void add_update(fixture_t *f, const char *name, uint32_t param, uint32_t reduced,
                       int64_t elems, float decay)
{
    const weft_attr_t attr = {.name = "weight_decay", .type = WEFT_ATTR_TYPE_FLOAT, .f = decay};
    char state_name[64];
    uint32_t node, state, inputs[4] = {param, reduced, 0, f->lr};
    wefti_node_params_t params = {.domain = "weft",
                                  .op = "Momentum",
                                  .inputs = inputs,
                                  .input_count = 4,
                                  .output_count = 2,
                                  .phase = WEFTI_PHASE_UPDATE,
                                  .attrs = &attr,
                                  .attr_count = 1};
    snprintf(state_name, sizeof(state_name), "%s_momentum", name);
    inputs[2] = state = add_value(f->graph, state_name, WEFTI_VALUE_STATE, elems);
    f->graph->values[state].state_of = param;
    assert_int_equal(wefti_graph_add_node(f->graph, &params, &node), WEFT_OK);
}

/* A gradient of a parameter, its all-reduce and its update; returns the reduced gradient. */
static uint32_t add_training(fixture_t *f, const char *name, uint32_t param, int64_t elems,
                             float decay)
{
    uint32_t grad = relu(f, param, WEFTI_PHASE_BACKWARD);
    uint32_t reduced = add_op(f, "AllReduce", &grad, 1, WEFTI_PHASE_COMM);
    const weft_attr_t avg = {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "avg"};
    assert_int_equal(wefti_graph_set_attr(f->graph, f->graph->values[reduced].producer, &avg),
                     WEFT_OK);
    f->graph->values[reduced].grad_of = param;
    add_update(f, name, param, reduced, elems, decay);
    return reduced;
}

static uint32_t add_trained(fixture_t *f, const char *name, int64_t elems, float decay)
{
    uint32_t param = add_value(f->graph, name, WEFTI_VALUE_PARAM, elems);
    add_training(f, name, param, elems, decay);
    return param;
}

static void fuse(fixture_t *f)
{
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    wefti_policy_t policy = {.kind = WEFTI_POLICY_ONE};
    wefti_bucket_params_t params = {.policy = &policy};
    weft_edit_list_t *edits;
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_graph_view(f->graph, &arena, &view), WEFT_OK);
    assert_int_equal(wefti_pass_bucket(&view, &params, &edits, NULL), WEFT_OK);
    assert_int_equal(wefti_graph_apply(f->graph, edits), WEFT_OK);
    weft_edit_list_destroy(edits);
    wefti_arena_deinit(&arena);
}

static void split(fixture_t *f, uint32_t reduced, uint32_t parts)
{
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_SPLIT,
                        .op_a = f->graph->values[reduced].producer,
                        .parts = parts,
                        .text = "is for a test"};
    weft_edit_list_t *edits;
    assert_int_equal(weft_edit_list_create(NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edit_list_add(edits, &edit), WEFT_OK);
    assert_int_equal(wefti_graph_apply(f->graph, edits), WEFT_OK);
    weft_edit_list_destroy(edits);
}

/* A plan that is proved. */
static weft_plan_t *lower(fixture_t *f)
{
    weft_plan_t *plan = NULL;
    if (test_lower(f->graph, &f->params, &plan) < 0 || wefti_plan_seal(plan) < 0 ||
        wefti_plan_verify(plan, f->registry) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

/* Steps as text: k kernel, w wait, r record; of a collective s reduce-scatter, g all-gather, u one
 * with update, c another. */
static const char *steps_as_text(const weft_plan_t *plan, const char *program, uint32_t stream,
                                 char text[64])
{
    const wefti_plan_stream_program_t *steps = &wefti_plan_program(plan, program)->streams[stream];
    uint32_t i;
    for (i = 0; i < steps->step_count && i < 63; i++) {
        const wefti_plan_step_t *step = &steps->steps[i];
        text[i] = " k rw"[step->kind];
        if (step->kind == WEFTI_STEP_COLLECTIVE) {
            const wefti_plan_collective_t *c = &plan->collectives[step->index];
            text[i] = c->op == WEFT_COLLECTIVE_REDUCE_SCATTER ? 's'
                      : c->op == WEFT_COLLECTIVE_ALL_GATHER   ? 'g'
                      : c->update != WEFTI_PLAN_NONE          ? 'u'
                                                              : 'c';
        }
    }
    text[i] = '\0';
    return text;
}

static void expect_steps(const weft_plan_t *plan, const char *program, const char *compute,
                         const char *comm)
{
    char text[64];
    assert_string_equal(steps_as_text(plan, program, 0, text), compute);
    assert_string_equal(steps_as_text(plan, program, 1, text), comm);
}

static const wefti_plan_buffer_t *buffer_of(const weft_plan_t *plan, const char *name)
{
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (strcmp(plan->buffers[b].name, name) == 0) {
            return &plan->buffers[b];
        }
    }
    fail_msg("no buffer %s", name);
    return NULL;
}

static const wefti_plan_kernel_t *update_of(const weft_plan_t *plan, uint32_t index)
{
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        if (plan->kernels[k].phase == WEFTI_PHASE_UPDATE && index-- == 0) {
            return &plan->kernels[k];
        }
    }
    fail_msg("too few updates");
    return NULL;
}

static void expect_range(const weft_plan_t *plan, uint32_t buffer, uint64_t offset, uint64_t size,
                         uint64_t stride)
{
    const wefti_plan_buffer_t *range = &plan->buffers[buffer];
    assert_int_equal(range->offset_bytes, offset);
    assert_int_equal(range->size_bytes, size);
    assert_int_equal(range->rank_stride_bytes, stride);
}

static void test_shards_are_scattered_updated_and_gathered(void **state)
{
    fixture_t *f = *state;
    const wefti_plan_collective_t *scatter, *gather;
    const wefti_plan_kernel_t *update;
    weft_plan_t *plan;
    uint64_t params, grads;
    add_trained(f, "a", 16, 0.5f);
    add_trained(f, "b", 5, 0.5f);
    add_trained(f, "c", 33, 0.5f); /* five units in all: padded to six */
    fuse(f);
    plan = lower(f);
    assert_int_equal(plan->flags, WEFTI_PLAN_SHARDED);
    expect_steps(plan, "step", "kkkrwkr", "wsrwg");
    expect_steps(plan, "init", "", "c");
    scatter = &plan->collectives[0], gather = &plan->collectives[1];
    params = buffer_of(plan, "a")->offset_bytes;
    grads = plan->buffers[scatter->members[0]].offset_bytes;
    expect_range(plan, scatter->source, grads, 384, 0);
    expect_range(plan, scatter->buffer, grads, 192, 192);
    expect_range(plan, gather->source, params, 192, 192);
    expect_range(plan, gather->buffer, params, 384, 0);
    assert_int_equal(scatter->elem_count, 48);
    assert_int_equal(gather->elem_count, 48);
    assert_int_equal(gather->member_count, 3);
    assert_string_equal(scatter->reason, "one bucket for all gradients; "
                                         "each rank reduces and updates 192 B of it");
    update = update_of(plan, 0);
    assert_int_equal(update->inputs[0], gather->source);
    assert_int_equal(update->inputs[1], scatter->buffer);
    assert_string_equal(plan->buffers[update->inputs[2]].name, "bucket 0 momentum");
    assert_int_equal(plan->buffers[update->inputs[2]].kind, WEFTI_BUFFER_STATE);
    assert_int_equal(plan->buffers[update->inputs[2]].size_bytes, 192);
    assert_int_equal(update->outputs[0], update->inputs[0]);
    weft_plan_release(plan);
}

/* Forward reads c, then a, then b; their buckets come in the order a, b, c. */
static void test_decoupled_weights_come_in_the_order_of_their_first_readers(void **state)
{
    static const char *const due[] = {"c", "a", "b"};
    fixture_t *f = *state;
    uint32_t p[3], sum, pair[2];
    const wefti_plan_stream_program_t *comm;
    weft_plan_t *plan;
    p[0] = add_value(f->graph, "a", WEFTI_VALUE_PARAM, 32);
    p[1] = add_value(f->graph, "b", WEFTI_VALUE_PARAM, 32);
    p[2] = add_value(f->graph, "c", WEFTI_VALUE_PARAM, 32);
    sum = relu(f, p[2], WEFTI_PHASE_FORWARD);
    for (uint32_t i = 0; i < 2; i++) {
        pair[0] = sum, pair[1] = p[i];
        sum = add_op(f, "Add", pair, 2, WEFTI_PHASE_FORWARD);
    }
    assert_int_equal(wefti_graph_add_output(f->graph, sum), WEFT_OK);
    for (uint32_t i = 0; i < 3; i++) {
        add_training(f, (const char *[]){"a", "b", "c"}[i], p[i], 32, 0.5f);
    }
    f->params.decouple = true;
    plan = lower(f);
    assert_int_equal(plan->flags, WEFTI_PLAN_SHARDED | WEFTI_PLAN_DECOUPLED);
    expect_steps(plan, "step", "wkwkwkkrkrkrwkwkwk", "grgrgrwsrwsrwsr");
    expect_steps(plan, "flush", "", "ggg");
    expect_steps(plan, "eval", "kkk", "");
    comm = &wefti_plan_program(plan, "step")->streams[1];
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t member = plan->collectives[comm->steps[2 * i].index].members[0];
        assert_string_equal(plan->buffers[member].name, due[i]);
    }
    weft_plan_release(plan);
}

/* The first micro-batch of a step gathers, if its program is not that of others too; flush does
 * else. */
static void test_decoupled_weights_come_under_the_first_micro_batch(void **state)
{
    static const struct {
        uint32_t accumulate;
        const char *compute, *comm;
    } rows[] = {{2, "wkk", "gr"}, {3, "wkk", "gr"}, {4, "kk", ""}};
    fixture_t *f = *state;
    uint32_t a = add_value(f->graph, "a", WEFTI_VALUE_PARAM, 32);
    f->graph->loss = relu(f, a, WEFTI_PHASE_FORWARD);
    add_training(f, "a", a, 32, 0.5f);
    f->params.decouple = true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        f->params.gradients.accumulate = rows[i].accumulate;
        weft_plan_t *plan = lower(f);
        expect_steps(plan, "micro_step", rows[i].compute, rows[i].comm);
        if (rows[i].accumulate > 2) {
            expect_steps(plan, "micro_step.1", "kkk", "");
        }
        expect_steps(plan, "step", "kkkrwk", "wsr");
        expect_steps(plan, "flush", "", "g");
        weft_plan_release(plan);
    }
}

/* A fused bucket writes weights, so it is issued after their last reader, which comes after the
 * gradient; the next bucket is issued before it. */
static void test_a_sweep_waits_for_the_last_reader(void **state)
{
    fixture_t *f = *state;
    uint32_t a = add_value(f->graph, "a", WEFTI_VALUE_PARAM, 32);
    uint32_t b = add_value(f->graph, "b", WEFTI_VALUE_PARAM, 32);
    const wefti_plan_collective_t *sweep;
    const wefti_plan_stream_program_t *comm;
    weft_plan_t *plan;
    add_training(f, "a", a, 32, 0.5f);
    add_training(f, "b", b, 32, 0.5f);
    relu(f, a, WEFTI_PHASE_BACKWARD);
    f->params.fuse = true;
    plan = lower(f);
    expect_steps(plan, "step", "kkrkr", "wuwu");
    comm = &wefti_plan_program(plan, "step")->streams[1];
    assert_int_equal(comm->steps[1].index, 0);
    assert_int_equal(comm->steps[3].index, 1);
    assert_true(buffer_of(plan, "b")->offset_bytes < buffer_of(plan, "a")->offset_bytes);
    sweep = &plan->collectives[1];
    assert_int_equal(sweep->op, WEFT_COLLECTIVE_ALL_REDUCE);
    expect_range(plan, sweep->source, plan->buffers[sweep->members[0]].offset_bytes, 128, 0);
    expect_range(plan, sweep->buffer, buffer_of(plan, "a")->offset_bytes, 128, 0);
    assert_int_equal(plan->kernels[sweep->update].phase, WEFTI_PHASE_UPDATE);
    expect_range(plan, plan->kernels[sweep->update].inputs[0], buffer_of(plan, "a")->offset_bytes,
                 64, 64);
    weft_plan_release(plan);
}

/* What is predicted decides, and is said. */
static void test_a_sweep_is_chosen_by_cost(void **state)
{
    static const struct {
        uint64_t all_reduce_ps;
        const char *comm, *says;
    } rows[] = {
        /* a shard of 128 bytes: 38.4 and 64 ns of updating */
        {100000, "wu",
         "each rank reduces, updates and sends 128 B of it: fused reduce-update-gather "
         "0.1 us, three passes 0.2 us"},
        {900000, "wsrwg",
         "each rank reduces and updates 128 B of it; fused reduce-update-gather "
         "0.9 us, three passes 0.2 us"},
    };
    fixture_t *f = *state;
    add_trained(f, "a", 64, 0.5f);
    f->params.fuse = true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const wefti_bucket_piece_t reduce = {rows[i].all_reduce_ps, 0}, part = {50000, 0};
        const wefti_bucket_cost_t all_reduce = {.pieces = &reduce, .piece_count = 1};
        const wefti_shard_cost_t apart = {{.pieces = &part, .piece_count = 1},
                                          {.pieces = &part, .piece_count = 1}};
        char text[64];
        weft_plan_t *plan;
        f->params.bucket_cost = &all_reduce;
        f->params.shard_cost = &apart;
        plan = lower(f);
        assert_string_equal(steps_as_text(plan, "step", 1, text), rows[i].comm);
        if (strstr(plan->collectives[0].reason, rows[i].says) == NULL) {
            fail_msg("%s", plan->collectives[0].reason);
        }
        weft_plan_release(plan);
    }
}

/* What others read, or what is not updated alike, is all-reduced and updated by everybody. */
static void test_what_cannot_be_sharded_stays_whole(void **state)
{
    static const char *const says[] = {"not sharded: its updates are not one",
                                       "is read by more than its update", "is an output of"};
    fixture_t *f = *state;
    for (int i = 0; i < 3; i++) {
        uint32_t param, reduced;
        weft_plan_t *plan;
        assert_int_equal(teardown(state) + setup(state), 0);
        param = add_value(f->graph, "a", WEFTI_VALUE_PARAM, 40);
        reduced = add_training(f, "a", param, 40, 0.5f);
        if (i == 0) {
            add_trained(f, "b", 24, 0.25f);
            fuse(f);
        } else if (i == 1) {
            relu(f, reduced, WEFTI_PHASE_BACKWARD);
        } else {
            assert_int_equal(wefti_graph_add_output(f->graph, reduced), WEFT_OK);
            f->graph->loss = relu(f, param, WEFTI_PHASE_FORWARD); /* what eval computes */
        }
        add_trained(f, "last", 128, 0.5f);
        plan = lower(f);
        assert_int_equal(plan->collectives[0].op, WEFT_COLLECTIVE_ALL_REDUCE);
        assert_int_equal(plan->collectives[0].update, WEFTI_PLAN_NONE);
        if (strstr(plan->collectives[0].reason, says[i]) == NULL) {
            fail_msg("%s", plan->collectives[0].reason);
        }
        assert_int_equal(plan->collectives[1].op, WEFT_COLLECTIVE_REDUCE_SCATTER);
        assert_int_equal(buffer_of(plan, "bucket 1 momentum")->size_bytes, 256);
        if (i == 0) { /* tensor by tensor */
            assert_int_equal(buffer_of(plan, "a_momentum")->size_bytes, 160);
        }
        weft_plan_release(plan);
    }
}

static void test_pieces_have_shards_of_their_own(void **state)
{
    static const uint64_t begins[] = {0, 128, 384}, sizes[] = {128, 256, 256};
    fixture_t *f = *state;
    weft_plan_t *plan;
    uint32_t param = add_value(f->graph, "a", WEFTI_VALUE_PARAM, 16 * 9 + 1); /* 10 units */
    split(f, add_training(f, "a", param, 16 * 9 + 1, 0.5f), 3);
    plan = lower(f);
    expect_steps(plan, "step", "krwkrwkrwkr", "wsrsrsrwgwgwg");
    for (uint32_t i = 0; i < 3; i++) {
        const wefti_plan_collective_t *scatter = &plan->collectives[i];
        const wefti_plan_buffer_t *grad = &plan->buffers[scatter->members[0]];
        const wefti_plan_kernel_t *update = update_of(plan, i);
        expect_range(plan, scatter->source, grad->offset_bytes + begins[i], sizes[i], 0);
        assert_int_equal(update->inputs[1], scatter->buffer);
        assert_int_equal(plan->buffers[update->inputs[2]].size_bytes, sizes[i] / 2);
        assert_int_equal(plan->buffers[update->inputs[2]].offset_bytes,
                         buffer_of(plan, "bucket 0 momentum")->offset_bytes + begins[i] / 2);
    }
    weft_plan_release(plan);
    f->params.fuse = true;
    plan = lower(f);
    expect_steps(plan, "step", "kr", "wuuu");
    weft_plan_release(plan);
    f->params.world_size = 6; /* two shards for all ranks, three pieces */
    plan = lower(f);
    expect_steps(plan, "step", "krwkwkwk", "wcrcrcr");
    assert_non_null(strstr(plan->collectives[0].reason, "smaller than one shard per rank"));
    weft_plan_release(plan);
}

static weft_plan_t *compile(const char *model, uint32_t world, const char *bucket,
                            const char *optimizer, int mode)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan = NULL;
    params.model_path = model;
    params.world_size = world;
    params.batch = 4;
    params.bucket = bucket;
    params.optimizer = optimizer;
    params.shard_optimizer = mode == 1;
    params.decouple = mode == 2;
    if (weft_compile(&params, &plan) < 0) { /* verified */
        fail_msg("%s, %u ranks, %s: %s", model, world, bucket, weft_last_error());
    }
    return plan;
}

static uint64_t state_bytes(const weft_plan_t *plan)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        bytes += plan->buffers[b].kind == WEFTI_BUFFER_STATE ? plan->buffers[b].size_bytes : 0;
    }
    return bytes;
}

/* All gradients' buckets are of whole shards, keep to the cap, and states are divided by ranks but
 * for the padding. */
static void check_compiled(const weft_plan_t *plan, const weft_plan_t *whole, uint64_t cap)
{
    uint32_t buckets = 0;
    uint64_t unit = 64ull * plan->world_size;
    for (uint32_t c = 0; c < plan->collective_count; c++) {
        const wefti_plan_collective_t *at = &plan->collectives[c];
        if (at->op == WEFT_COLLECTIVE_BROADCAST || at->op == WEFT_COLLECTIVE_ALL_GATHER) {
            continue;
        }
        const wefti_plan_buffer_t *source = &plan->buffers[at->source];
        if (source->dtype == WEFT_DTYPE_I64) {
            continue; /* squares of norms */
        }
        assert_true(at->op == WEFT_COLLECTIVE_REDUCE_SCATTER || at->update != WEFTI_PLAN_NONE);
        assert_int_equal(source->size_bytes % unit, 0);
        assert_true(cap == 0 || source->size_bytes <= (cap < unit ? unit : cap));
        buckets++;
    }
    uint64_t most =
        (state_bytes(whole) + 2 * (uint64_t)whole->buffer_count * 64) / plan->world_size;
    assert_true(buckets > 0);
    assert_in_range(state_bytes(plan) * plan->world_size, state_bytes(whole),
                    most * plan->world_size + 2 * unit * buckets);
    assert_true(plan->arena_bytes <= whole->arena_bytes + 4 * unit * buckets);
}

static void test_sample_models_compile_sharded(void **state)
{
    static const char *const models[] = {MODEL("mlp.onnx"), MODEL("lenet.onnx")};
    static const char *const optimizers[] = {"sgd", "momentum", "adam", "lamb"};
    static const struct {
        const char *bucket;
        uint64_t cap;
    } rows[] = {{"auto", 0}, {"auto:8K", 8192},    {"bytes:10000", 10000}, {"bytes:64", 64},
                {"none", 0}, {"percent:60,40", 0}, {"index:0,2,5", 0},     {"one", 0}};
    (void)state;
    for (uint32_t i = 0; i < 48; i++) {
        uint32_t world = 2 + i % 5, row = i % 8;
        const char *model = models[rows[row].cap == 64 ? 1 : i % 2];
        const char *optimizer = optimizers[i / 8 % 4];
        if (rows[row].cap == 64 && i > 8) {
            continue; /* thousands of pieces: once is enough */
        }
        weft_plan_t *whole = compile(model, world, rows[row].bucket, optimizer, 0);
        for (int mode = 1; mode <= 2; mode++) {
            weft_plan_t *plan = compile(model, world, rows[row].bucket, optimizer, mode);
            check_compiled(plan, whole, rows[row].cap);
            weft_plan_release(plan);
        }
        weft_plan_release(whole);
    }
}

static void test_one_rank_has_nothing_to_shard(void **state)
{
    weft_plan_t *whole = compile(MODEL("mlp.onnx"), 1, "auto", "adam", 0);
    (void)state;
    for (int mode = 1; mode <= 2; mode++) {
        weft_plan_t *plan = compile(MODEL("mlp.onnx"), 1, "auto", "adam", mode);
        assert_memory_equal(&plan->structure_digest, &whole->structure_digest,
                            sizeof(plan->structure_digest));
        weft_plan_release(plan);
    }
    weft_plan_release(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_shards_are_scattered_updated_and_gathered, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_decoupled_weights_come_in_the_order_of_their_first_readers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_decoupled_weights_come_under_the_first_micro_batch,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_sweep_waits_for_the_last_reader, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_sweep_is_chosen_by_cost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_sharded_stays_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pieces_have_shards_of_their_own, setup, teardown),
        cmocka_unit_test(test_sample_models_compile_sharded),
        cmocka_unit_test(test_one_rank_has_nothing_to_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
