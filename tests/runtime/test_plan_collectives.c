/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective that a plan may hold, in place and not, at places that differ by rank, with
 * every algorithm that can do it, as records, interpreted, over links that only put and on cards.
 * Plans hold many collectives at once; each rank computes what it must get by itself. Under
 * WEFT_CHECK=results a wrong result of any of them is found.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_cards.h"
#include "support_damage.h"
#include "support_ranks.h"

#include "ops/algo/table.h"
#include "runtime/plan/bind.h"
#include "tests/support/support.h"

#define MAX_WORLD 67u
#define MAX_CASES 96u
#define STEPS 3u
#define UNIT 16u /* 4-byte elements of 64 bytes */

typedef struct example {
    weft_collective_t op;
    weft_reduction_t reduction;
    weft_dtype_t dtype; /* of 4 bytes */
    uint32_t root, divisor;
    uint64_t count; /* of one block */
    bool in_place, strided;
    const weft_algorithm_t *algorithm;
    uint32_t source, buffer, base[2]; /* buffers; GRAD buffers that they lie in */
} example_t;

typedef struct suite {
    uint32_t world, count;
    example_t examples[MAX_CASES];
    weft_plan_t *plan;
    uint32_t expect_interpreted; /* UINT32_MAX: some */
    const char *order;           /* of reductions; NULL: tree */
} suite_t;

static bool is_among(weft_collective_t op, const weft_collective_t *ops, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ops[i] == op) {
            return true;
        }
    }
    return false;
}

static uint32_t send_blocks(const example_t *e, uint32_t world)
{
    static const weft_collective_t many[] = {WEFT_COLLECTIVE_REDUCE_SCATTER,
                                             WEFT_COLLECTIVE_SCATTER, WEFT_COLLECTIVE_ALL_TO_ALL};
    return is_among(e->op, many, 3) ? world : 1;
}

static uint32_t recv_blocks(const example_t *e, uint32_t world)
{
    static const weft_collective_t many[] = {WEFT_COLLECTIVE_ALL_GATHER, WEFT_COLLECTIVE_GATHER,
                                             WEFT_COLLECTIVE_ALL_TO_ALL};
    return is_among(e->op, many, 3) ? world : 1;
}

/* --- plans --------------------------------------------------------------------------------- */

static uint32_t add_buffer(weft_plan_t *plan, wefti_buffer_kind_t kind, weft_dtype_t dtype,
                           uint64_t offset, uint64_t count, uint64_t stride_bytes)
{
    uint32_t index = plan->buffer_count++;
    plan->buffers[index] =
        (wefti_plan_buffer_t){.name = wefti_arena_printf(&plan->arena, "buffer %u", index),
                              .kind = kind,
                              .dtype = dtype,
                              .rank = 1,
                              .dims = {(int64_t)count},
                              .offset_bytes = offset,
                              .rank_stride_bytes = stride_bytes,
                              .size_bytes = count * 4};
    return index;
}

/* A GRAD buffer of count elements at the arena's end. */
static uint32_t add_region(weft_plan_t *plan, weft_dtype_t dtype, uint64_t count)
{
    uint64_t offset = plan->arena_bytes;
    plan->arena_bytes += wefti_align_up(count * 4, WEFTI_PLAN_ALIGNMENT);
    return add_buffer(plan, WEFTI_BUFFER_GRAD, dtype, offset, count, 0);
}

/* Side 0 is what is sent, 1 what comes; where it is a block of the other side, or lies at a place
 * of the rank's own, it is a range with a stride. */
static void place(weft_plan_t *plan, example_t *e, uint32_t world)
{
    uint32_t blocks[2] = {send_blocks(e, world), recv_blocks(e, world)};
    uint32_t views[2];
    uint64_t block_bytes = e->count * 4;
    if (e->in_place) {
        uint32_t longer = blocks[1] >= blocks[0];
        e->base[0] = e->base[1] = add_region(plan, e->dtype, e->count * blocks[longer]);
        views[longer] = e->base[0];
        views[!longer] = blocks[0] == blocks[1] ? e->base[0]
                                                : add_buffer(plan, WEFTI_BUFFER_RANGE, e->dtype,
                                                             plan->buffers[e->base[0]].offset_bytes,
                                                             e->count, block_bytes);
    } else {
        for (uint32_t side = 0; side < 2; side++) {
            bool strided = e->strided && blocks[side] == 1;
            e->base[side] = add_region(plan, e->dtype, e->count * (strided ? world : blocks[side]));
            views[side] = strided ? add_buffer(plan, WEFTI_BUFFER_RANGE, e->dtype,
                                               plan->buffers[e->base[side]].offset_bytes, e->count,
                                               block_bytes)
                                  : e->base[side];
        }
    }
    e->source = views[0];
    e->buffer = views[1];
}

static void add_collective(suite_t *suite, weft_plan_t *plan, uint32_t index)
{
    example_t *e = &suite->examples[index];
    uint32_t world = suite->world;
    place(plan, e, world);
    wefti_plan_algorithm_t *list = wefti_arena_array(&plan->arena, 1, sizeof(*list));
    uint32_t *members = wefti_arena_array(&plan->arena, 1, sizeof(*members));
    list[0].name = e->algorithm->name;
    members[0] = e->base[1];
    plan->collectives[index] = (wefti_plan_collective_t){
        .name = wefti_arena_printf(&plan->arena, "%s %u by %s%s%s", weft_collective_name(e->op),
                                   index, e->algorithm->name, e->in_place ? ", in place" : "",
                                   e->strided ? ", strided" : ""),
        .op = e->op,
        .reduction = e->reduction,
        .dtype = e->dtype,
        .root = e->root,
        .buffer = e->buffer,
        .source = e->source,
        .elem_count = e->op == WEFT_COLLECTIVE_BARRIER ? 0 : e->count,
        .divisor = e->divisor,
        .update = WEFTI_PLAN_NONE,
        .order = suite->order != NULL ? suite->order : "tree",
        .member_count = 1,
        .members = members,
        .algorithm_count = 1,
        .algorithms = list,
        .reason = "test"};
}

static void make_plan(suite_t *suite)
{
    weft_plan_t *plan;
    assert_int_equal(wefti_plan_create(NULL, &plan), WEFT_OK);
    wefti_arena_t *arena = &plan->arena;
    plan->model_name = plan->policy = plan->optimizer = "test";
    plan->world_size = suite->world;
    plan->batch = 1;
    plan->buffers = wefti_arena_array(arena, 4 * MAX_CASES, sizeof(*plan->buffers));
    plan->collectives = wefti_arena_array(arena, MAX_CASES, sizeof(*plan->collectives));
    plan->collective_count = suite->count;
    plan->stream_count = 1;
    plan->streams = wefti_arena_array(arena, 1, sizeof(*plan->streams));
    plan->streams[0] = (wefti_plan_stream_t){"comm", 1};
    plan->program_count = 1;
    plan->programs = wefti_arena_array(arena, 1, sizeof(*plan->programs));
    plan->programs[0].name = "step";
    plan->programs[0].streams = wefti_arena_array(arena, 1, sizeof(wefti_plan_stream_program_t));
    wefti_plan_stream_program_t *program = plan->programs[0].streams;
    program->steps = wefti_arena_array(arena, MAX_CASES, sizeof(*program->steps));
    for (uint32_t i = 0; i < suite->count; i++) {
        add_collective(suite, plan, i);
        program->steps[program->step_count++] = (wefti_plan_step_t){WEFTI_STEP_COLLECTIVE, i};
    }
    plan->live_bytes = plan->arena_bytes;
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    suite->plan = plan;
}

/* --- what every rank has and must get -------------------------------------------------------- */

typedef union element {
    float f32;
    int32_t i32;
    uint32_t bits;
} element_t;

static element_t value_of(const example_t *e, uint32_t index, uint32_t rank, uint32_t step,
                          uint64_t at)
{
    uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull + rank * 7919 + step * 104729 + index * 31;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    element_t value;
    if (e->dtype == WEFT_DTYPE_F32) {
        value.f32 = (float)(int64_t)(x % 200001) / 7777.0f - 12.0f;
    } else {
        value.i32 = (int32_t)(x % 200001) - 100000;
    }
    return value;
}

static element_t add(const example_t *e, element_t a, element_t b)
{
    element_t sum;
    if (e->dtype == WEFT_DTYPE_F32) {
        sum.f32 =
            e->reduction == WEFT_REDUCTION_MAX ? (a.f32 > b.f32 ? a.f32 : b.f32) : a.f32 + b.f32;
    } else {
        sum.i32 =
            e->reduction == WEFT_REDUCTION_MAX ? (a.i32 > b.i32 ? a.i32 : b.i32) : a.i32 + b.i32;
    }
    return sum;
}

static element_t tree(const example_t *e, const element_t *values, uint32_t count)
{
    uint32_t left = 1;
    if (count == 1) {
        return values[0];
    }
    while (left * 2 < count) {
        left *= 2;
    }
    return add(e, tree(e, values, left), tree(e, values + left, count - left));
}

static element_t reduced(const suite_t *suite, uint32_t index, uint32_t step, uint64_t at)
{
    const example_t *e = &suite->examples[index];
    element_t values[MAX_WORLD];
    for (uint32_t r = 0; r < suite->world; r++) {
        values[r] = value_of(e, index, r, step, at);
    }
    element_t sum = tree(e, values, suite->world);
    uint32_t divisor = e->divisor != 0 ? e->divisor : suite->world;
    if (e->reduction == WEFT_REDUCTION_AVG && e->dtype == WEFT_DTYPE_F32) {
        bool power = (divisor & (divisor - 1)) == 0;
        sum.f32 = power ? sum.f32 * (1.0f / (float)divisor) : sum.f32 / (float)divisor;
    } else if (e->reduction == WEFT_REDUCTION_AVG) {
        sum.i32 /= (int32_t)divisor;
    }
    return sum;
}

/* Element at of what rank gets; false: it gets nothing. */
static bool expected(const suite_t *suite, uint32_t index, uint32_t rank, uint32_t step,
                     uint64_t at, element_t *out)
{
    const example_t *e = &suite->examples[index];
    uint32_t block = (uint32_t)(at / e->count);
    uint64_t in_block = at % e->count;
    switch (e->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        *out = reduced(suite, index, step, at);
        return true;
    case WEFT_COLLECTIVE_REDUCE:
        *out = reduced(suite, index, step, at);
        return rank == e->root;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        *out = reduced(suite, index, step, rank * e->count + at);
        return true;
    case WEFT_COLLECTIVE_BROADCAST:
        *out = value_of(e, index, e->root, step, at);
        return true;
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_GATHER:
        *out = value_of(e, index, block, step, in_block);
        return e->op == WEFT_COLLECTIVE_ALL_GATHER || rank == e->root;
    case WEFT_COLLECTIVE_SCATTER:
        *out = value_of(e, index, e->root, step, rank * e->count + at);
        return true;
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        *out = value_of(e, index, block, step, rank * e->count + in_block);
        return true;
    default:
        return false;
    }
}

static uint64_t address(weft_session_t *session, uint32_t buffer, uint32_t rank)
{
    return wefti_session_offset(&session->plan->buffers[buffer], rank);
}

static void fill(const suite_t *suite, weft_session_t *session, uint32_t rank, uint32_t step)
{
    for (uint32_t i = 0; i < suite->count; i++) {
        const example_t *e = &suite->examples[i];
        uint64_t count = e->count * send_blocks(e, suite->world);
        element_t *data = malloc(count * sizeof(*data));
        for (uint64_t at = 0; at < count; at++) {
            data[at] = value_of(e, i, rank, step, at);
        }
        RANK_OK(wefti_session_copy(session, session->base + address(session, e->source, rank), data,
                                   count * 4));
        free(data);
    }
}

static void check(const suite_t *suite, weft_session_t *session, uint32_t rank, uint32_t step)
{
    for (uint32_t i = 0; i < suite->count; i++) {
        const example_t *e = &suite->examples[i];
        uint64_t count = e->count * recv_blocks(e, suite->world);
        element_t *data = malloc(count * sizeof(*data)), want;
        RANK_OK(wefti_session_copy(session, data, session->base + address(session, e->buffer, rank),
                                   count * 4));
        for (uint64_t at = 0; at < count; at++) {
            if (expected(suite, i, rank, step, at, &want) && want.bits != data[at].bits) {
                fprintf(stderr, "%s: %u ranks, rank %u, step %u: element %llu of %llu differs\n",
                        suite->plan->collectives[i].name, suite->world, rank, step,
                        (unsigned long long)at, (unsigned long long)count);
                RANK_CHECK(false);
            }
        }
        free(data);
    }
}

static weft_status_t open_session(const rank_world_t *world, weft_session_t **out_session)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = ((const suite_t *)world->user)->plan;
    return weft_session_create(&params, out_session);
}

static void run_rank(rank_world_t *world)
{
    const suite_t *suite = world->user;
    weft_session_t *session = NULL;
    uint32_t interpreted = 0;
    RANK_OK(open_session(world, &session));
    for (uint32_t i = 0; i < suite->count; i++) {
        interpreted += session->interpreted[i];
    }
    RANK_CHECK(suite->expect_interpreted == UINT32_MAX ? interpreted > 0
                                                       : interpreted == suite->expect_interpreted);
    for (uint32_t step = 0; step < STEPS; step++) {
        fill(suite, session, world->rank, step);
        RANK_OK(weft_session_step(session));
        check(suite, session, world->rank, step);
    }
    weft_session_destroy(session);
}

/* --- suites ---------------------------------------------------------------------------------- */

static const weft_collective_t operators[] = {
    WEFT_COLLECTIVE_ALL_REDUCE, WEFT_COLLECTIVE_BROADCAST,  WEFT_COLLECTIVE_REDUCE_SCATTER,
    WEFT_COLLECTIVE_ALL_GATHER, WEFT_COLLECTIVE_REDUCE,     WEFT_COLLECTIVE_GATHER,
    WEFT_COLLECTIVE_SCATTER,    WEFT_COLLECTIVE_ALL_TO_ALL, WEFT_COLLECTIVE_BARRIER,
};

static bool reduces(weft_collective_t op)
{
    return op == WEFT_COLLECTIVE_ALL_REDUCE || op == WEFT_COLLECTIVE_REDUCE_SCATTER ||
           op == WEFT_COLLECTIVE_REDUCE;
}

/* Only lanes without scratch: what a card does. */
static bool fits(const weft_algorithm_t *algorithm, const weft_algo_params_t *params, bool plain)
{
    weft_algo_resources_t resources = {0};
    if (algorithm->eligible(params) != NULL) {
        return false;
    }
    algorithm->resources(params, &resources);
    return !plain || (resources.lanes <= 1 && resources.scratch_slots == 0);
}

/* Every algorithm of every operator, in place and not; the rest varies. */
static void make_suite_in(suite_t *suite, uint32_t world, bool plain, const char *order)
{
    static const weft_reduction_t reductions[] = {WEFT_REDUCTION_SUM, WEFT_REDUCTION_AVG,
                                                  WEFT_REDUCTION_MAX, WEFT_REDUCTION_AVG};
    *suite = (suite_t){.world = world, .order = order};
    for (uint32_t o = 0; o < sizeof operators / sizeof operators[0]; o++) {
        const weft_algorithm_t *algorithm;
        for (size_t a = 0; (algorithm = wefti_algorithm_at(a)) != NULL; a++) {
            for (uint32_t in_place = 0; in_place < 2 && algorithm->op == operators[o]; in_place++) {
                uint32_t i = suite->count;
                weft_algo_params_t params = {.struct_size = sizeof params,
                                             .op = operators[o],
                                             .group_size = world,
                                             .root = i % world,
                                             .order = order != NULL ? WEFT_ORDER_ANY : 0,
                                             .in_place = in_place};
                if (!fits(algorithm, &params, plain)) {
                    continue;
                }
                example_t e = {.op = operators[o],
                               .dtype = i % 5 == 3 ? WEFT_DTYPE_I32 : WEFT_DTYPE_F32,
                               .reduction = reduces(operators[o]) ? reductions[i / 2 % 4] : 0,
                               .divisor = i % 3 == 0 ? 6 : 0,
                               .root = i % world,
                               .count = UNIT * (1 + i % 7),
                               .in_place = in_place && operators[o] != WEFT_COLLECTIVE_BARRIER,
                               .strided = !in_place && i % 4 < 2,
                               .algorithm = algorithm};
                e.count += !e.in_place && !e.strided ? 1 + i % 5 : 0; /* any length */
                e.count += i % 6 == 0 ? UNIT * 150 : 0;
                assert_true(suite->count < MAX_CASES);
                suite->examples[suite->count++] = e;
            }
        }
    }
    make_plan(suite);
}

static void make_suite(suite_t *suite, uint32_t world, bool plain)
{
    make_suite_in(suite, world, plain, NULL);
}

static uint32_t count_scratch(const suite_t *suite)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < suite->count && suite->world > 1; i++) {
        const example_t *e = &suite->examples[i];
        weft_algo_params_t params = {.struct_size = sizeof params,
                                     .op = e->op,
                                     .group_size = suite->world,
                                     .root = e->root,
                                     .in_place = e->op == WEFT_COLLECTIVE_BARRIER || e->in_place};
        count += !fits(e->algorithm, &params, true);
    }
    return count;
}

static void test_every_operator_over_shared_memory(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 8};
    for (uint32_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        suite_t suite;
        make_suite(&suite, worlds[w], false);
        suite.expect_interpreted = count_scratch(&suite);
        print_message("%u ranks: %u collectives, %u interpreted\n", suite.world, suite.count,
                      suite.expect_interpreted);
        setenv("WEFT_PROGRESS", w % 2 == 0 ? "inline" : "thread", 1);
        support_rank_threads(suite.world, run_rank, &suite);
        unsetenv("WEFT_PROGRESS");
        weft_plan_release(suite.plan);
    }
}

static void test_every_operator_between_processes(void **state)
{
    (void)state;
    suite_t suite;
    make_suite(&suite, 3, false);
    suite.expect_interpreted = count_scratch(&suite);
    assert_true(support_rank_processes_too(suite.world, run_rank, &suite));
    weft_plan_release(suite.plan);
}

static void test_every_operator_over_links_that_put(void **state)
{
    (void)state;
    static const uint32_t hosts[2][MAX_WORLD] = {{0, 1, 2, 3, 4}, {0, 0, 1, 1, 2}};
    static const uint32_t worlds[] = {3, 5};
    for (uint32_t w = 0; w < 2; w++) {
        suite_t suite;
        wefti_hub_links_t links = {hosts[w], 11 + w, 10000};
        make_suite(&suite, worlds[w], false);
        suite.expect_interpreted = suite.count;
        support_rank_threads_over(suite.world, run_rank, &suite, &links);
        weft_plan_release(suite.plan);
    }
}

static void test_cards_do_what_is_one_lane(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 4; world += world == 1 ? 2 : 1) {
        suite_t suite;
        make_suite(&suite, world, true);
        assert_true(suite.count >= 8);
        support_card_contexts(world, run_rank, &suite);
        weft_plan_release(suite.plan);
    }
}

static void expect_refusal(rank_world_t *world)
{
    weft_session_t *session = NULL;
    RANK_CHECK(open_session(world, &session) == WEFT_ERR_UNSUPPORTED);
    RANK_CHECK(strstr(weft_last_error(), "is not supported in plans") != NULL);
}

static void test_what_plans_cannot_say_is_refused(void **state)
{
    (void)state;
    static const weft_collective_t unknown[] = {WEFT_COLLECTIVE_ALL_GATHER_V,
                                                WEFT_COLLECTIVE_SEND_RECV};
    for (uint32_t i = 0; i < 2; i++) {
        suite_t suite = {.world = 2, .count = 1};
        suite.examples[0] = (example_t){.op = unknown[i],
                                        .dtype = WEFT_DTYPE_F32,
                                        .count = UNIT,
                                        .algorithm = wefti_algorithm_at(0)};
        make_plan(&suite);
        support_rank_threads(2, expect_refusal, &suite);
        weft_plan_release(suite.plan);
    }
}

static void expect_card_refusal(rank_world_t *world)
{
    weft_session_t *session = NULL;
    RANK_CHECK(open_session(world, &session) == WEFT_ERR_UNSUPPORTED);
    RANK_CHECK(strstr(weft_last_error(), "one lane and no scratch") != NULL);
}

static void test_cards_refuse_what_needs_scratch(void **state)
{
    (void)state;
    suite_t suite = {.world = 2, .count = 1};
    suite.examples[0] =
        (example_t){.op = WEFT_COLLECTIVE_ALL_TO_ALL,
                    .dtype = WEFT_DTYPE_F32,
                    .count = UNIT,
                    .in_place = true,
                    .algorithm = wefti_algorithm_find(WEFT_COLLECTIVE_ALL_TO_ALL, "pairwise")};
    make_plan(&suite);
    support_card_contexts(2, expect_card_refusal, &suite);
    weft_plan_release(suite.plan);
}

/* --- WEFT_CHECK ------------------------------------------------------------------------------ */

static void run_checked(rank_world_t *world)
{
    const suite_t *suite = world->user;
    weft_session_t *session = NULL;
    RANK_OK(open_session(world, &session));
    weft_status_t status = WEFT_OK;
    for (uint32_t step = 0; step < STEPS && status == WEFT_OK; step++) {
        fill(suite, session, world->rank, step);
        status = weft_session_step(session);
    }
    const char *name = damaged == UINT32_MAX ? "" : suite->plan->collectives[damaged].name;
    bool named = damaged == UINT32_MAX || strstr(weft_last_error(), name) != NULL;
    if (status != (damaged == UINT32_MAX ? WEFT_OK : WEFT_ERR_MISMATCH) || !named) {
        fprintf(stderr, "damaged \"%s\": %s\n", name, weft_last_error());
        RANK_CHECK(false);
    }
    weft_session_destroy(session);
}

/* More ranks than a check looks at in one run. */
static void make_large_suite(suite_t *suite)
{
    static const weft_collective_t ops[] = {WEFT_COLLECTIVE_REDUCE_SCATTER, WEFT_COLLECTIVE_REDUCE,
                                            WEFT_COLLECTIVE_ALL_TO_ALL, WEFT_COLLECTIVE_GATHER};
    *suite = (suite_t){.world = MAX_WORLD, .count = 4};
    for (uint32_t i = 0; i < 4; i++) {
        const weft_algorithm_t *algorithm;
        for (size_t a = 0; (algorithm = wefti_algorithm_at(a))->op != ops[i]; a++) {
        }
        suite->examples[i] = (example_t){
            .op = ops[i], .dtype = WEFT_DTYPE_F32, .count = UNIT, .algorithm = algorithm};
    }
    make_plan(suite);
}

static void test_checks_find_every_wrong_result(void **state)
{
    (void)state;
    static const char *const orders[] = {NULL, "any"};
    setenv("WEFT_CHECK", "results", 1);
    setenv("WEFT_LOG", "error", 1);
    setenv("WEFT_RESERVE_BYTES", "256M", 1); /* of 67 ranks in one process */
    for (uint32_t o = 0; o < 3; o++) {
        suite_t suite;
        if (o == 2) {
            make_large_suite(&suite);
        } else {
            make_suite_in(&suite, 3, false, orders[o]);
        }
        for (uint32_t i = 0; i <= suite.count; i++) {
            if (i == suite.count || suite.examples[i].op != WEFT_COLLECTIVE_BARRIER) {
                damaged = i == suite.count ? UINT32_MAX : i;
                support_rank_threads(suite.world, run_checked, &suite);
            }
        }
        weft_plan_release(suite.plan);
    }
    unsetenv("WEFT_RESERVE_BYTES");
    unsetenv("WEFT_LOG");
    unsetenv("WEFT_CHECK");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operator_over_shared_memory),
        cmocka_unit_test(test_every_operator_between_processes),
        cmocka_unit_test(test_every_operator_over_links_that_put),
        cmocka_unit_test(test_cards_do_what_is_one_lane),
        cmocka_unit_test(test_what_plans_cannot_say_is_refused),
        cmocka_unit_test(test_cards_refuse_what_needs_scratch),
        cmocka_unit_test(test_checks_find_every_wrong_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
