/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which program a session runs when: micro-batches by the binary counter, the numbers they are
 * told, steps that are not due, weights that are gathered before they are read, programs that are
 * not there. The plan's kernels only write down that they ran.
 */
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"

#include "runtime/plan/session.h"
#include "tests/support/support.h"

enum { RANK, STEP, LOG, BUFFERS };
enum { LAST, AT_RANK, AT_STEP, FLUSHES, RUNS, LOGGED };
#define FLUSH 90u
#define EVAL 91u
#define WHOLE 92u /* the program step */

/* inputs: the scalars rank and step; output: the log, in place */
static weft_status_t run_note(const weft_kernel_call_t *call)
{
    const uint32_t *number = call->state;
    float *log = call->outputs[0];
    log[LAST] = (float)*number;
    log[AT_RANK] = *(const float *)call->inputs[0];
    log[AT_STEP] = *(const float *)call->inputs[1];
    log[FLUSHES] += *number == FLUSH ? 1 : 0;
    log[RUNS] += 1;
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    uint32_t *number = malloc(sizeof(*number));
    RANK_CHECK(number != NULL);
    *number = (uint32_t)weft_node_attr_int(node, "number", 0);
    *out_state = number;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static const weft_kernel_t note = {.abi_version = WEFT_KERNEL_ABI_VERSION,
                                   .domain = "test",
                                   .op = "Note",
                                   .since_version = 1,
                                   .prepare = prepare,
                                   .run = run_note,
                                   .destroy = free};

static void add_program(weft_plan_t *plan, const char *name, uint32_t number)
{
    static uint32_t inputs[] = {RANK, STEP}, outputs[] = {LOG};
    uint32_t index = plan->kernel_count++;
    wefti_plan_kernel_t *kernel = &plan->kernels[index];
    *kernel = (wefti_plan_kernel_t){.name = name,
                                    .domain = "test",
                                    .op = "Note",
                                    .version = 1,
                                    .input_count = 2,
                                    .output_count = 1,
                                    .attr_count = 1,
                                    .inputs = inputs,
                                    .outputs = outputs};
    kernel->attrs = wefti_arena_array(&plan->arena, 1, sizeof(weft_attr_t));
    kernel->attrs[0] = (weft_attr_t){.name = "number", .type = WEFT_ATTR_TYPE_INT, .i = number};
    wefti_plan_program_t *program = &plan->programs[plan->program_count++];
    program->name = name;
    program->streams = wefti_arena_array(&plan->arena, 1, sizeof(*program->streams));
    program->streams[0].steps = wefti_arena_array(&plan->arena, 1, sizeof(wefti_plan_step_t));
    program->streams[0].steps[0] = (wefti_plan_step_t){WEFTI_STEP_KERNEL, index};
    program->streams[0].step_count = 1;
}

static weft_plan_t *make_plan(uint32_t world, uint32_t accumulate, uint32_t flags)
{
    static const char *const names[] = {"rank", "step", "log"};
    weft_plan_t *plan;
    assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
    wefti_arena_t *arena = &plan->arena;
    plan->model_name = plan->policy = plan->optimizer = "test";
    plan->world_size = world;
    plan->accumulate = accumulate;
    plan->flags = flags;
    plan->buffer_count = BUFFERS;
    plan->buffers = wefti_arena_array(arena, BUFFERS, sizeof(*plan->buffers));
    plan->bindings = wefti_arena_array(arena, BUFFERS, sizeof(*plan->bindings));
    plan->binding_count = BUFFERS;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        plan->buffers[i] =
            (wefti_plan_buffer_t){.name = names[i],
                                  .kind = i == LOG ? WEFTI_BUFFER_OUTPUT : WEFTI_BUFFER_SCALAR,
                                  .dtype = WEFT_DTYPE_F32,
                                  .rank = i == LOG,
                                  .dims = {i == LOG ? LOGGED : 0},
                                  .offset_bytes = 64 * i,
                                  .size_bytes = (i == LOG ? LOGGED : 1) * sizeof(float)};
        plan->bindings[i] = (wefti_plan_binding_t){
            names[i], i == LOG ? WEFT_BINDING_ROLE_OUTPUT : WEFT_BINDING_ROLE_SCALAR, i};
    }
    plan->arena_bytes = plan->live_bytes = 64 * BUFFERS;
    plan->stream_count = 1;
    plan->streams = wefti_arena_array(arena, 1, sizeof(*plan->streams));
    plan->streams[0].name = "compute";
    plan->kernels = wefti_arena_array(arena, 8, sizeof(*plan->kernels));
    plan->programs = wefti_arena_array(arena, 8, sizeof(*plan->programs));
    return plan;
}

typedef struct script {
    weft_plan_t *plan;
    weft_registry_t *registry;
    void (*run)(weft_session_t *session, rank_world_t *world);
} script_t;

static void run_rank(rank_world_t *world)
{
    const script_t *script = world->user;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = script->plan;
    params.registry = script->registry;
    weft_session_t *session = NULL;
    RANK_OK(weft_session_create(&params, &session));
    script->run(session, world);
    weft_session_destroy(session);
}

static void play(weft_plan_t *plan, void (*run)(weft_session_t *session, rank_world_t *world))
{
    script_t script = {.plan = plan, .run = run};
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    assert_int_equal(weft_registry_create(NULL, &script.registry), WEFT_OK);
    assert_int_equal(weft_registry_add_kernel(script.registry, &note), WEFT_OK);
    support_rank_threads(plan->world_size, run_rank, &script);
    weft_registry_destroy(script.registry);
    weft_plan_release(plan);
}

static void expect(weft_session_t *session, uint32_t last, float rank, float step, float flushes)
{
    float log[LOGGED];
    RANK_OK(weft_session_get_output(session, "log", log, sizeof(log), NULL));
    RANK_CHECK(log[LAST] == (float)last);
    RANK_CHECK(rank < 0 || log[AT_RANK] == rank);
    RANK_CHECK(step < 0 || log[AT_STEP] == step);
    RANK_CHECK(log[FLUSHES] == flushes);
}

static void refuse(weft_status_t status, const char *what)
{
    RANK_CHECK(status == WEFT_ERR_STATE && strstr(weft_last_error(), what) != NULL);
}

/* Five micro-batches: 0, 1, 2 fold what the counter says, the last is the step. */
static void count_to_five(weft_session_t *session, rank_world_t *world)
{
    static const uint32_t folds[] = {0, 1, 0, 2};
    for (uint32_t step = 1; step <= 3; step++) {
        for (uint32_t i = 0; i < 4; i++) {
            refuse(weft_session_step(session),
                   "is not the last of its step; call weft_session_micro_step");
            RANK_CHECK(weft_session_micro_count(session) == i);
            RANK_OK(weft_session_micro_step(session));
            expect(session, folds[i], (float)(world->rank * 5 + i), (float)step, 0);
        }
        RANK_CHECK(weft_session_micro_count(session) == 4);
        refuse(weft_session_micro_step(session), "call weft_session_step");
        RANK_OK(weft_session_step(session));
        expect(session, WHOLE, (float)(world->rank * 5 + 4), (float)step, 0);
        RANK_CHECK(weft_session_micro_count(session) == 0);
    }
    RANK_OK(weft_session_flush(session)); /* nothing is behind */
    expect(session, WHOLE, -1, 3, 0);
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    RANK_OK(weft_session_get_stats(session, &stats));
    RANK_CHECK(stats.steps == 3);
}

static void test_micro_batches_fold_by_the_binary_counter(void **state)
{
    (void)state;
    weft_plan_t *plan = make_plan(2, 5, 0);
    add_program(plan, "micro_step", 0);
    add_program(plan, "micro_step.1", 1);
    add_program(plan, "micro_step.2", 2);
    add_program(plan, "step", WHOLE);
    play(plan, count_to_five);
}

static void miss_a_program(weft_session_t *session, rank_world_t *world)
{
    (void)world;
    RANK_OK(weft_session_micro_step(session));
    refuse(weft_session_micro_step(session), "no program for micro-batch 2 of 3");
    refuse(weft_session_eval(session), "no program \"eval\"");
}

static void test_programs_that_are_not_there_are_named(void **state)
{
    (void)state;
    weft_plan_t *plan = make_plan(1, 3, 0);
    add_program(plan, "micro_step", 0);
    add_program(plan, "step", WHOLE);
    play(plan, miss_a_program);
}

static void do_not_accumulate(weft_session_t *session, rank_world_t *world)
{
    refuse(weft_session_micro_step(session), "1 micro-batch");
    RANK_OK(weft_session_step(session));
    expect(session, WHOLE, (float)world->rank, 1, 0);
    RANK_OK(weft_session_eval(session));
    expect(session, EVAL, (float)world->rank, 1, 0);
}

static void test_a_plan_without_micro_batches_has_none(void **state)
{
    (void)state;
    weft_plan_t *plan = make_plan(3, 1, 0);
    add_program(plan, "step", WHOLE);
    add_program(plan, "eval", EVAL);
    play(plan, do_not_accumulate);
}

static void read_after_steps(weft_session_t *session, rank_world_t *world)
{
    (void)world;
    RANK_OK(weft_session_eval(session)); /* before the first step nothing is behind */
    expect(session, EVAL, -1, -1, 0);
    RANK_OK(weft_session_step(session));
    RANK_OK(weft_session_step(session)); /* gathers by itself */
    expect(session, WHOLE, -1, 2, 0);
    RANK_OK(weft_session_eval(session));
    expect(session, EVAL, -1, 2, 1);
    RANK_OK(weft_session_eval(session)); /* once is enough */
    expect(session, EVAL, -1, 2, 1);
    RANK_OK(weft_session_step(session));
    RANK_OK(weft_session_flush(session));
    expect(session, FLUSH, -1, 3, 2);
    RANK_OK(weft_session_flush(session));
    char digest[65];
    RANK_OK(weft_session_param_digest(session, digest));
    expect(session, FLUSH, -1, 3, 2);
}

static void test_weights_left_behind_are_gathered_before_they_are_read(void **state)
{
    (void)state;
    weft_plan_t *plan = make_plan(2, 1, WEFTI_PLAN_SHARDED | WEFTI_PLAN_DECOUPLED);
    add_program(plan, "step", WHOLE);
    add_program(plan, "flush", FLUSH);
    add_program(plan, "eval", EVAL);
    play(plan, read_after_steps);
}

static void gather_for_micro_batches(weft_session_t *session, rank_world_t *world)
{
    (void)world;
    for (uint32_t step = 1; step <= 3; step++) {
        RANK_OK(weft_session_micro_step(session)); /* which has no collectives to do it with */
        expect(session, 0, -1, (float)step, (float)(step - 1));
        RANK_OK(weft_session_step(session));
        expect(session, WHOLE, -1, (float)step, (float)(step - 1));
    }
}

static void test_weights_left_behind_are_gathered_for_the_first_micro_batch(void **state)
{
    (void)state;
    weft_plan_t *plan = make_plan(2, 2, WEFTI_PLAN_SHARDED | WEFTI_PLAN_DECOUPLED);
    add_program(plan, "micro_step", 0);
    add_program(plan, "step", WHOLE);
    add_program(plan, "flush", FLUSH);
    play(plan, gather_for_micro_batches);
}

static void miss_flush(weft_session_t *session, rank_world_t *world)
{
    (void)world;
    RANK_OK(weft_session_step(session));
    refuse(weft_session_flush(session), "no program \"flush\"");
}

static void test_a_decoupled_plan_without_flush_says_so(void **state)
{
    (void)state;
    weft_plan_t *plan = make_plan(1, 1, WEFTI_PLAN_DECOUPLED);
    add_program(plan, "step", WHOLE);
    play(plan, miss_flush);
}

static void expect_no_memory(rank_world_t *world)
{
    const script_t *script = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = script->plan;
    RANK_CHECK(weft_session_create(&params, &session) == WEFT_ERR_NO_MEMORY && session == NULL);
    RANK_CHECK(strstr(weft_last_error(), "this host has") != NULL);
}

/* A file of a kilobyte can claim any arena, which would be touched until the host has no memory. */
static void test_an_arena_that_no_host_has_is_refused(void **state)
{
    (void)state;
    script_t script = {.plan = make_plan(2, 1, 0)};
    script.plan->arena_bytes = script.plan->live_bytes = (uint64_t)1 << 48;
    support_rank_threads(2, expect_no_memory, &script);
    weft_plan_release(script.plan);
}

#define WEIGHTS 24u

/* Rank r's weights are 1000 r and on; what all have begins at 500000. */
static void read_weights(weft_session_t *session, rank_world_t *world)
{
    float weights[WEIGHTS], shared[WEIGHTS];
    const wefti_plan_buffer_t *constant = &session->plan->buffers[BUFFERS + 1];
    RANK_CHECK(weft_session_param_count(session) == 1);
    RANK_OK(weft_session_get_param(session, 0, weights, sizeof(weights)));
    RANK_OK(wefti_session_copy(session, shared, session->base + constant->offset_bytes,
                               sizeof(shared)));
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        RANK_CHECK(weights[i] == (float)(1000 * world->rank + i));
        RANK_CHECK(shared[i] == (float)(500000 + i));
    }
}

static void test_ranks_have_weights_of_their_own(void **state)
{
    (void)state;
    static float contents[4][32]; /* of three ranks, and what all have */
    for (uint32_t i = 0; i < 4 * 32; i++) {
        contents[i / 32][i % 32] =
            (float)(i / 32 == 3 ? 500000 + i % 32 : 1000 * (i / 32) + i % 32);
    }
    weft_plan_t *plan = make_plan(3, 1, WEFTI_PLAN_RANK_DATA);
    wefti_plan_buffer_t *all = wefti_arena_array(&plan->arena, BUFFERS + 2, sizeof(*all));
    memcpy(all, plan->buffers, BUFFERS * sizeof(*all));
    plan->buffers = all;
    for (uint32_t i = 0; i < 2; i++) {
        all[BUFFERS + i] =
            (wefti_plan_buffer_t){.name = i == 0 ? "weights" : "constant",
                                  .kind = i == 0 ? WEFTI_BUFFER_PARAM : WEFTI_BUFFER_CONST,
                                  .dtype = WEFT_DTYPE_F32,
                                  .rank = 1,
                                  .dims = {WEIGHTS},
                                  .offset_bytes = plan->arena_bytes,
                                  .size_bytes = WEIGHTS * sizeof(float),
                                  .data_offset_bytes = i == 0 ? 0 : 3 * sizeof(contents[0]),
                                  .rank_data_stride_bytes = i == 0 ? sizeof(contents[0]) : 0};
        plan->arena_bytes += 128;
    }
    plan->buffer_count = BUFFERS + 2;
    plan->live_bytes = plan->arena_bytes;
    plan->weights = (const uint8_t *)contents;
    plan->weights_bytes = sizeof(contents);
    add_program(plan, "init", 0); /* which gives nobody anything */
    add_program(plan, "step", WHOLE);
    play(plan, read_weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches_fold_by_the_binary_counter),
        cmocka_unit_test(test_programs_that_are_not_there_are_named),
        cmocka_unit_test(test_a_plan_without_micro_batches_has_none),
        cmocka_unit_test(test_weights_left_behind_are_gathered_before_they_are_read),
        cmocka_unit_test(test_weights_left_behind_are_gathered_for_the_first_micro_batch),
        cmocka_unit_test(test_a_decoupled_plan_without_flush_says_so),
        cmocka_unit_test(test_an_arena_that_no_host_has_is_refused),
        cmocka_unit_test(test_ranks_have_weights_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
