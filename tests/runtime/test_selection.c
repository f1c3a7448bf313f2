/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries a collective out: asked for by name, by the cost table, by the order of reductions;
 * refused; asked for differently by different ranks; built once; and what fails on the way.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support_collectives.h"

#include "ops/algo/table.h"
#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "runtime/collective/call.h"
#include "runtime/collective/schedule_cache.h"
#include "tests/support/support.h"

static bool last_was(const weft_group_t *group, const char *path, const char *algorithm)
{
    return strcmp(weft_group_last_path(group), path) == 0 &&
           strcmp(weft_group_last_algorithm(group), algorithm) == 0;
}

static bool needs_hosts(const weft_algorithm_t *algorithm)
{
    weft_algo_params_t alone = {.struct_size = sizeof alone,
                                .op = algorithm->op,
                                .group_size = 2,
                                .peer = 1,
                                .order = WEFT_ORDER_ANY};
    return wefti_algorithm_reason(algorithm, &alone) != NULL;
}

/* ---- refused ---- */

static void run_refused(rank_world_t *world)
{
    static const uint64_t counts[] = {0, 1, 100, 5000, 100000};
    weft_group_t *g = world->group;
    weft_stream_t *stream = NULL;
    float *x = calloc(100000, sizeof *x);
    RANK_CHECK(x != NULL);
    RANK_CHECK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "rong") ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strstr(weft_last_error(), "rong") != NULL);
    RANK_CHECK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_SEND_RECV, "direct") ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_set_algorithm(g, (weft_collective_t)99, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_set_algorithm(NULL, WEFT_COLLECTIVE_ALL_REDUCE, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    static const char *const names[] = {"ring", "hierarchical"};
    for (uint32_t i = 0; i < 2; i++) {
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, names[i]));
        for (uint32_t c = 0; c < 5; c++) {
            RANK_CHECK(weft_all_reduce(x, x, counts[c], WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g,
                                       NULL) == WEFT_ERR_UNSUPPORTED);
            RANK_CHECK(strstr(weft_last_error(), "AllReduce") != NULL &&
                       strstr(weft_last_error(), names[i]) != NULL &&
                       strstr(weft_last_error(), i == 0 ? "order" : "host") != NULL);
        }
        RANK_OK(weft_all_gather(x, x, 0, WEFT_DTYPE_F32, g, NULL)); /* the group is whole */
    }
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_all_reduce(x, x, 100, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, stream));
    RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_UNSUPPORTED);
    weft_stream_destroy(stream);
    RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, NULL));
    RANK_OK(weft_all_reduce(x, x, 100, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    free(x);
}

static void test_refused(void **state)
{
    (void)state;
    for (int checked = 0; checked < 2; checked++) {
        setenv("WEFT_CHECK", checked ? "results" : "off", 1);
        support_rank_threads(3, run_refused, NULL);
        assert_true(support_rank_processes(2, run_refused, NULL));
    }
    unsetenv("WEFT_CHECK");
}

static void run_bad_orders(rank_world_t *world)
{
    weft_group_t *g = world->group;
    const uint32_t few[] = {1, 1}, none[] = {3, 0}, good[] = {1, 2};
    RANK_CHECK(weft_group_set_order(g, (weft_order_t)7, NULL, 0) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_set_order(g, WEFT_ORDER_BLOCKS, NULL, 0) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_set_order(g, WEFT_ORDER_BLOCKS, few, 2) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_set_order(g, WEFT_ORDER_BLOCKS, none, 2) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_set_order(g, WEFT_ORDER_BLOCKS, good, 9) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_order(g) == WEFT_ORDER_TREE);
    RANK_OK(weft_group_set_order(g, WEFT_ORDER_BLOCKS, good, 2));
    RANK_CHECK(weft_group_order(g) == WEFT_ORDER_BLOCKS);
    weft_group_t *same = NULL, *part = NULL;
    RANK_OK(weft_group_duplicate(g, &same));
    RANK_OK(weft_group_split(g, world->rank > 0, 0, &part));
    RANK_CHECK(weft_group_order(same) == WEFT_ORDER_BLOCKS);
    RANK_CHECK(weft_group_order(part) == WEFT_ORDER_TREE);
    weft_group_destroy(same);
    weft_group_destroy(part);
    RANK_OK(weft_group_set_order(g, WEFT_ORDER_ANY, NULL, 0));
    RANK_OK(weft_group_split(g, world->rank > 0, 0, &part));
    RANK_CHECK(weft_group_order(part) == WEFT_ORDER_ANY);
    weft_group_destroy(part);
}

static void test_orders_are_checked_and_inherited(void **state)
{
    (void)state;
    support_rank_threads(3, run_bad_orders, NULL);
}

/* ---- orders ---- */

typedef struct order_case {
    uint32_t count, sizes[4];
    bool subtrees; /* then the executors know it */
} order_case_t;

/* In the tree over blocks of the trees inside them; f32 so that partial sums need no rounding. */
static void expect_blocks(const order_case_t *order, const uint8_t *const *sources, uint64_t count,
                          float *out)
{
    float *partial[4];
    const void *tops[4];
    uint32_t first = 0;
    for (uint32_t b = 0; b < order->count; b++) {
        const void *members[SUPPORT_MAX_RANKS];
        partial[b] = malloc((count + 1) * sizeof(float));
        RANK_CHECK(partial[b] != NULL);
        for (uint32_t i = 0; i < order->sizes[b]; i++) {
            members[i] = sources[first + i];
        }
        first += order->sizes[b];
        void *to = partial[b];
        weft_reduce_t inner = {members,        order->sizes[b],    &to, 1, count,
                               WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0};
        RANK_OK(wefti_reduce(&inner, WEFT_ISA_PORTABLE));
        tops[b] = partial[b];
    }
    void *to = out;
    weft_reduce_t outer = {tops,           order->count,       &to, 1, count,
                           WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0};
    RANK_OK(wefti_reduce(&outer, WEFT_ISA_PORTABLE));
    for (uint32_t b = 0; b < order->count; b++) {
        free(partial[b]);
    }
}

static void run_blocks(rank_world_t *world)
{
    static const uint64_t counts[] = {1, 33, 1000, 20000};
    const order_case_t *order = world->user;
    weft_group_t *g = world->group;
    one_rank_t one;
    support_one_init(&one, world, true, 1);
    float *expected = (float *)(void *)one.expected;
    RANK_OK(weft_group_set_order(g, WEFT_ORDER_BLOCKS, order->sizes, order->count));
    for (uint32_t c = 0; c < 4; c++) {
        uint64_t count = counts[c];
        for (uint32_t r = 0; r < world->size; r++) {
            for (uint64_t i = 0; i < count; i++) {
                uint64_t x = support_mix(count * 131 + r * 7919 + i);
                ((float *)(void *)one.sources[r])[i] = (float)(int64_t)(x % 2000001) / 7777 - 100;
            }
        }
        memcpy(one.send, one.sources[world->rank], count * sizeof(float));
        expect_blocks(order, (const uint8_t *const *)one.sources, count, expected);
        RANK_OK(weft_all_reduce(one.send, one.recv, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g,
                                NULL));
        RANK_CHECK(memcmp(one.recv, expected, count * sizeof(float)) == 0);
        RANK_CHECK((strcmp(weft_group_last_path(g), "schedule") != 0) == order->subtrees);
        uint32_t root = (uint32_t)count % world->size;
        RANK_OK(weft_reduce(one.send, one.recv, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, root, g,
                            NULL));
        RANK_CHECK(world->rank != root || memcmp(one.recv, expected, count * sizeof(float)) == 0);
        uint64_t each = count / world->size;
        RANK_OK(weft_reduce_scatter(one.send, one.recv, each, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g,
                                    NULL));
        RANK_CHECK(memcmp(one.recv, expected + each * world->rank, each * sizeof(float)) == 0);
        /* what reduces nothing does not mind */
        RANK_OK(weft_broadcast(one.send, one.recv, count, WEFT_DTYPE_F32, root, g, NULL));
        RANK_CHECK(strcmp(weft_group_last_path(g), "schedule") != 0);
        RANK_CHECK(memcmp(one.recv, one.sources[root], count * sizeof(float)) == 0);
    }
    support_one_deinit(&one);
}

static void test_blocks(void **state)
{
    (void)state;
    order_case_t cases[] = {{2, {2, 3, 0, 0}, false},
                            {3, {1, 3, 1, 0}, false},
                            {4, {1, 2, 1, 3}, false},
                            {2, {4, 2, 0, 0}, true},
                            {1, {3, 0, 0, 0}, true}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t n = 0;
        for (uint32_t b = 0; b < cases[i].count; b++) {
            n += cases[i].sizes[b];
        }
        support_rank_threads(n, run_blocks, &cases[i]);
    }
}

/* ---- built once ---- */

/* Of all ranks: schedules built, and how often the cost table was asked. Linked in place of the
 * library's functions (--wrap). */
static _Atomic uint32_t builds, choices;

weft_status_t __real_wefti_run_create(const weft_algorithm_t *algorithm,
                                      const weft_algo_params_t *params, const wefti_links_t *links,
                                      const weft_allocator_t *allocator, wefti_run_t **out_run);
weft_status_t __wrap_wefti_run_create(const weft_algorithm_t *algorithm,
                                      const weft_algo_params_t *params, const wefti_links_t *links,
                                      const weft_allocator_t *allocator, wefti_run_t **out_run);
weft_status_t __wrap_wefti_run_create(const weft_algorithm_t *algorithm,
                                      const weft_algo_params_t *params, const wefti_links_t *links,
                                      const weft_allocator_t *allocator, wefti_run_t **out_run)
{
    builds++;
    return __real_wefti_run_create(algorithm, params, links, allocator, out_run);
}

weft_status_t __real_wefti_cost_choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                       const wefti_counts_t *counts, const wefti_choice_t *choice,
                                       wefti_candidate_t out[WEFTI_MAX_CANDIDATES],
                                       uint32_t *out_count);
weft_status_t __wrap_wefti_cost_choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                       const wefti_counts_t *counts, const wefti_choice_t *choice,
                                       wefti_candidate_t out[WEFTI_MAX_CANDIDATES],
                                       uint32_t *out_count);
weft_status_t __wrap_wefti_cost_choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                       const wefti_counts_t *counts, const wefti_choice_t *choice,
                                       wefti_candidate_t out[WEFTI_MAX_CANDIDATES],
                                       uint32_t *out_count)
{
    choices++;
    return __real_wefti_cost_choose(costs, params, counts, choice, out, out_count);
}

static void run_twice(rank_world_t *world)
{
    weft_group_t *g = world->group;
    const weft_algorithm_t *algorithm;
    one_rank_t one;
    uint64_t allocations = 0;
    uint32_t built = 0, chosen = 0;
    support_one_init(&one, world, true, 1);
    RANK_OK(weft_group_set_order(g, WEFT_ORDER_ANY, NULL, 0));
    /* every place of the ring must have had a call of a V form */
    for (uint32_t i = 0; i < WEFTI_CALLS; i++) {
        support_call(&one, WEFT_COLLECTIVE_ALL_GATHER_V, 10, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, 0,
                     false);
    }
    for (uint32_t round = 0; round < 3; round++) {
        if (round == 1) {
            RANK_OK(weft_barrier(g, NULL));
            built = builds;
            chosen = choices;
            allocations = support_rank_allocations();
            RANK_OK(weft_barrier(g, NULL));
        }
        for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
            bool few = algorithm->op == WEFT_COLLECTIVE_SEND_RECV;
            if (few || needs_hosts(algorithm)) {
                continue;
            }
            RANK_OK(weft_group_set_algorithm(g, algorithm->op, algorithm->name));
            for (uint32_t c = 0; c < 3; c++) { /* other sizes are not other schedules */
                one.seed = 1;
                support_call(&one, algorithm->op, c * 700 + round, WEFT_DTYPE_F64,
                             WEFT_REDUCTION_SUM, 0, false);
                support_call(&one, algorithm->op, c * 9 + 1, WEFT_DTYPE_I16, WEFT_REDUCTION_SUM, 0,
                             false);
            }
            RANK_OK(weft_group_set_algorithm(g, algorithm->op, NULL));
            support_call(&one, algorithm->op, 100, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, 0, false);
        }
    }
    RANK_OK(weft_barrier(g, NULL));
    RANK_CHECK(built > 20 && builds == built);
    RANK_CHECK(choices == chosen);
    RANK_CHECK(support_rank_allocations() == allocations);
    RANK_OK(weft_barrier(g, NULL));
    support_one_deinit(&one);
}

static void test_second_call_builds_nothing(void **state)
{
    (void)state;
    support_rank_threads(4, run_twice, NULL);
}

/* More schedules than are kept: the least used go, and come again. */
static void run_many(rank_world_t *world)
{
    static const char *const names[] = {"binomial", "chain", "scatter-gather", "mesh as schedule"};
    weft_group_t *g = world->group;
    one_rank_t one;
    support_one_init(&one, world, false, 1);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_BROADCAST, names[i]));
            for (uint32_t root = 0; root < world->size; root++) {
                support_call(&one, WEFT_COLLECTIVE_BROADCAST, 100, WEFT_DTYPE_F32,
                             WEFT_REDUCTION_SUM, root, false);
                support_call(&one, WEFT_COLLECTIVE_BROADCAST, 100, WEFT_DTYPE_F32,
                             WEFT_REDUCTION_SUM, root, true);
            }
        }
    }
    RANK_OK(weft_barrier(g, NULL));
    RANK_CHECK(builds > WEFTI_SCHEDULES * world->size);
    support_one_deinit(&one);
}

static void test_more_schedules_than_are_kept(void **state)
{
    (void)state;
    builds = 0;
    support_rank_threads(9, run_many, NULL);
}

/* ---- in place on some ranks only ---- */

static void run_mixed(rank_world_t *world)
{
    static const struct {
        weft_collective_t op;
        const char *name;
    } cases[] = {{WEFT_COLLECTIVE_ALL_REDUCE, "doubling"},
                 {WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling"},
                 {WEFT_COLLECTIVE_ALL_GATHER, "bruck"},
                 {WEFT_COLLECTIVE_ALL_GATHER, "ring"},
                 {WEFT_COLLECTIVE_ALL_GATHER_V, "doubling"},
                 {WEFT_COLLECTIVE_ALL_TO_ALL, "pairwise"},
                 {WEFT_COLLECTIVE_ALL_TO_ALL, "bruck"},
                 {WEFT_COLLECTIVE_REDUCE_SCATTER, "halving"},
                 {WEFT_COLLECTIVE_REDUCE_SCATTER, NULL},
                 {WEFT_COLLECTIVE_REDUCE_SCATTER_V, NULL}};
    weft_group_t *g = world->group;
    bool in_place = world->rank % 2 == 0;
    for (uint32_t reached = 0; reached < 2; reached++) {
        one_rank_t one;
        support_one_init(&one, world, reached, 1);
        for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            RANK_OK(weft_group_set_algorithm(g, cases[i].op, cases[i].name));
            support_call(&one, cases[i].op, 5, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0, in_place);
            support_call(&one, cases[i].op, 3001, WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, 0, in_place);
            RANK_CHECK(cases[i].name == NULL || last_was(g, "schedule", cases[i].name));
        }
        support_one_deinit(&one);
    }
}

static void test_in_place_on_some_ranks(void **state)
{
    (void)state;
    support_rank_threads(3, run_mixed, NULL);
    assert_true(support_rank_processes(4, run_mixed, NULL));
}

/* ---- what the executors are asked for by name ---- */

static void run_names(rank_world_t *world)
{
    weft_group_t *g = world->group;
    for (uint32_t reached = 0; reached < 2; reached++) {
        one_rank_t one;
        support_one_init(&one, world, reached, 1);
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "mesh"));
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 2, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0,
                     false);
        RANK_CHECK(last_was(g, reached ? "direct" : "schedule", "mesh"));
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 100000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                     0, false);
        RANK_CHECK(strcmp(weft_group_last_algorithm(g), "mesh") == 0);
        RANK_CHECK(strcmp(weft_group_last_path(g), "schedule") != 0);
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "one-shot"));
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 2, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0,
                     false);
        RANK_CHECK(last_was(g, "posting", "one-shot"));
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 100000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                     0, false);
        RANK_CHECK(last_was(g, "schedule", "one-shot"));
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_GATHER, "mesh"));
        support_call(&one, WEFT_COLLECTIVE_ALL_GATHER, 2, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0,
                     false);
        RANK_CHECK(last_was(g, "posting", "mesh"));
        RANK_OK(weft_group_set_order(g, WEFT_ORDER_ANY, NULL, 0));
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "ring"));
        one.seed = 1;
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 2, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, 0,
                     false);
        RANK_CHECK(last_was(g, "schedule", "ring (order any)"));
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "doubling"));
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 2, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, 0,
                     false);
        RANK_CHECK(last_was(g, "schedule", "doubling"));
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, NULL));
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_GATHER, NULL));
        RANK_OK(weft_group_set_order(g, WEFT_ORDER_TREE, NULL, 0));
        support_one_deinit(&one);
    }
}

static void test_executors_by_name(void **state)
{
    (void)state;
    support_rank_threads(3, run_names, NULL);
}

/* By the built-in table everything stays with the executors. */
static void run_default(rank_world_t *world)
{
    weft_group_t *g = world->group;
    for (uint32_t reached = 0; reached < 2; reached++) {
        one_rank_t one;
        support_one_init(&one, world, reached, 1);
        for (uint32_t op = WEFT_COLLECTIVE_ALL_REDUCE; op <= WEFT_COLLECTIVE_BARRIER; op++) {
            for (uint64_t count = 1; count < 60000 && op != WEFT_COLLECTIVE_SEND_RECV; count *= 7) {
                support_call(&one, (weft_collective_t)op, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                             0, false);
                RANK_CHECK(strcmp(weft_group_last_path(g), "schedule") != 0);
                RANK_CHECK(strcmp(weft_group_last_algorithm(g), "mesh") == 0 ||
                           strcmp(weft_group_last_algorithm(g), "one-shot") == 0);
            }
        }
        support_one_deinit(&one);
    }
}

static void test_executors_by_default(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 8; n += n == 2 ? 1 : 5) {
        support_rank_threads(n, run_default, NULL);
    }
}

/* ---- settings ---- */

static void run_wanted(rank_world_t *world)
{
    const char *const *names = world->user; /* of AllReduce and AllGather */
    one_rank_t one;
    support_one_init(&one, world, true, 1);
    for (uint32_t i = 0; i < 2; i++) {
        weft_collective_t op = i == 0 ? WEFT_COLLECTIVE_ALL_REDUCE : WEFT_COLLECTIVE_ALL_GATHER;
        support_call(&one, op, 1000, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, 0, false);
        RANK_CHECK(strcmp(weft_group_last_algorithm(world->group), names[i]) == 0);
    }
    support_one_deinit(&one);
}

static weft_status_t create_alone(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    params.rank = 0;
    params.world_size = 1;
    weft_status_t status = weft_context_create(&params, &context);
    if (status == WEFT_OK) {
        status = weft_group_create_world(context, &group);
    }
    char text[256];
    snprintf(text, sizeof text, "%s", weft_last_error());
    weft_group_destroy(group);
    weft_context_release(context);
    return status == WEFT_OK ? WEFT_OK : wefti_error(status, "%s", text);
}

static void test_settings_choose(void **state)
{
    (void)state;
    static const char *const doubling[] = {"doubling", "doubling"},
                             *const mesh[] = {"mesh", "mesh"},
                             *const both[] = {"halving-doubling", "bruck"},
                             *const ring[] = {"ring (order any)", "ring"};
    setenv("WEFT_ALGO", "doubling", 1);
    support_rank_threads(3, run_wanted, (void *)(uintptr_t)doubling);
    setenv("WEFT_ALGO", "AllReduce=halving-doubling,AllGather=bruck", 1);
    support_rank_threads(3, run_wanted, (void *)(uintptr_t)both);
    setenv("WEFT_ALGO", "ring", 1);
    setenv("WEFT_ORDER", "any", 1);
    support_rank_threads(3, run_wanted, (void *)(uintptr_t)ring);
    unsetenv("WEFT_ORDER");
    static const char *const wrong[] = {"rong", "AllReduce=rong", "AllReduced=ring", "ring,",
                                        ",",    "AllReduce=",     "AllToAll=ring"};
    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("WEFT_ALGO", wrong[i], 1);
        weft_status_t status = create_alone();
        if (i == 3) { /* a comma at the end is no mistake */
            assert_int_equal(status, WEFT_OK);
        } else {
            assert_int_equal(status, WEFT_ERR_INVALID_ARGUMENT);
            assert_non_null(strstr(weft_last_error(), "WEFT_ALGO"));
        }
    }
    unsetenv("WEFT_ALGO");
    setenv("WEFT_ORDER", "blocks:2,2", 1);
    assert_int_equal(create_alone(), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "WEFT_ORDER"));
    unsetenv("WEFT_ORDER");
    support_rank_threads(3, run_wanted, (void *)(uintptr_t)mesh);
}

static void write_costs(const char *path, double alpha_ns)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(
        file,
        "{\"format\": 1, \"name\": \"test\", \"measured\": [{\"op\": \"AllGather\", "
        "\"algorithm\": \"ring\", \"ranks\": 3, \"hosts\": 1, \"alpha_ns\": %g, "
        "\"beta_ns_per_byte\": 0}, {\"op\": \"AllReduce\", \"algorithm\": \"halving-doubling\", "
        "\"ranks\": 3, \"hosts\": 1, \"alpha_ns\": 1, \"beta_ns_per_byte\": 0}]}\n",
        alpha_ns);
    fclose(file);
}

/* Ranks of one world whose tables differ. */
static void test_cost_tables(void **state)
{
    (void)state;
    static const char *const quick[] = {"halving-doubling", "ring"};
    char path[64];
    snprintf(path, sizeof path, "/tmp/weft-test-costs-%d", (int)getpid());
    write_costs(path, 1);
    setenv("WEFT_COSTS", path, 1);
    support_rank_threads(3, run_wanted, (void *)(uintptr_t)quick);
    for (uint32_t differ = 0; differ < 2; differ++) {
        pid_t pids[2];
        int good = 0;
        for (int r = 0; r < 2; r++) {
            pids[r] = fork();
            assert_true(pids[r] >= 0);
            if (pids[r] == 0) {
                char own[80], address[80];
                snprintf(own, sizeof own, "%s-%d", path, r);
                snprintf(address, sizeof address, "unix:@weft-test-costs-%d-%u", (int)getppid(),
                         differ);
                write_costs(own, differ ? r + 1 : 1);
                setenv("WEFT_COSTS", own, 1); /* paths may differ, contents not */
                weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
                weft_context_t *context = NULL;
                params.rank = r;
                params.world_size = 2;
                params.address = address;
                weft_status_t status = weft_context_create(&params, &context);
                bool right = differ ? status == WEFT_ERR_MISMATCH &&
                                          strstr(weft_last_error(), "WEFT_COSTS") != NULL
                                    : status == WEFT_OK;
                weft_context_release(context);
                unlink(own);
                _exit(right ? 0 : 1);
            }
        }
        for (int r = 0; r < 2; r++) {
            int status = 1;
            assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
            good += status == 0;
        }
        assert_int_equal(good, 2);
    }
    unlink(path);
    assert_true(create_alone() < 0); /* the file is gone */
    assert_non_null(strstr(weft_last_error(), "WEFT_COSTS"));
    unsetenv("WEFT_COSTS");
}

/* An all-to-all-v of which some ranks send little, which executors do, and one much, which a schedule
 * does: all ranks select by the longest block of any. */
static void run_uneven(rank_world_t *world)
{
    enum { LITTLE = 16, MUCH = 5000, RANKS = 3 };
    const weft_algorithm_t *pairwise =
        wefti_algorithm_find(WEFT_COLLECTIVE_ALL_TO_ALL_V, "pairwise");
    const weft_algorithm_t *(*by_cost)[2] =
        world->group->calls->selection.by_cost[WEFT_COLLECTIVE_ALL_TO_ALL_V][2];
    for (uint32_t size = 0; size < 64; size++) { /* as a cost table might have it */
        by_cost[size][0] = by_cost[size][1] = size < 10 ? &wefti_executors : pairwise;
    }
    float *send = calloc(RANKS * MUCH, sizeof *send), *recv = calloc(RANKS * MUCH, sizeof *recv);
    RANK_CHECK(send != NULL && recv != NULL);
    for (uint32_t much = 0; much <= RANKS; much++) { /* this rank sends much to the next one */
        uint64_t out[RANKS], in[RANKS];
        for (uint32_t r = 0; r < RANKS; r++) {
            out[r] = world->rank == much && r == (much + 1) % RANKS ? MUCH : LITTLE;
            in[r] = r == much && world->rank == (much + 1) % RANKS ? MUCH : LITTLE;
        }
        for (uint32_t i = 0; i < RANKS * MUCH; i++) {
            send[i] = (float)world->rank;
        }
        RANK_OK(
            weft_all_to_all_v(send, out, NULL, recv, in, NULL, WEFT_DTYPE_F32, world->group, NULL));
        RANK_CHECK(last_was(world->group, much < RANKS ? "schedule" : "staged",
                            much < RANKS ? "pairwise" : "mesh"));
        for (uint64_t r = 0, at = 0; r < RANKS; at += in[r++]) {
            RANK_CHECK(recv[at] == (float)r && recv[at + in[r] - 1] == (float)r);
        }
    }
    free(send);
    free(recv);
}

static void test_uneven_blocks(void **state)
{
    (void)state;
    setenv("WEFT_TIMEOUT", "60", 1);
    setenv("WEFT_ATTACH", "off", 1);
    support_rank_threads(3, run_uneven, NULL);
    assert_true(support_rank_processes(3, run_uneven, NULL));
    unsetenv("WEFT_ATTACH");
    unsetenv("WEFT_TIMEOUT");
}

/* ---- ranks that ask for different things ---- */

typedef struct wish {
    weft_collective_t op;
    const char *algorithm; /* NULL: by cost */
    weft_order_t order;
    uint32_t first_block; /* WEFT_ORDER_BLOCKS: ranks of the first of two */
    uint64_t count;
} wish_t;

static wish_t random_wish(uint64_t *state, uint32_t size)
{
    static const uint64_t counts[] = {0, 1, 16, 600, 3000, 20000};
    static const weft_collective_t ops[] = {WEFT_COLLECTIVE_ALL_REDUCE, WEFT_COLLECTIVE_ALL_GATHER,
                                            WEFT_COLLECTIVE_BROADCAST,
                                            WEFT_COLLECTIVE_REDUCE_SCATTER};
    const weft_algorithm_t *algorithms[16];
    uint32_t count = 0;
    wish_t wish = {.op = ops[test_next_random(state) % 4]};
    const weft_algorithm_t *algorithm;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op == wish.op && !needs_hosts(algorithm)) {
            algorithms[count++] = algorithm;
        }
    }
    wish.count = counts[test_next_random(state) % 6];
    wish.order = (weft_order_t)(test_next_random(state) % 3);
    wish.first_block =
        wish.order == WEFT_ORDER_BLOCKS ? 1 + (uint32_t)(test_next_random(state) % (size - 1)) : 0;
    if (test_next_random(state) % 3 != 0) {
        wish.algorithm = algorithms[test_next_random(state) % count]->name;
    }
    return wish;
}

static bool same_wish(const wish_t *a, const wish_t *b)
{
    bool same = a->op == b->op && a->order == b->order && a->first_block == b->first_block &&
                a->count == b->count && (a->algorithm == NULL) == (b->algorithm == NULL);
    return same && (a->algorithm == NULL || strcmp(a->algorithm, b->algorithm) == 0);
}

static weft_status_t call_as(const wish_t *wish, weft_group_t *group, void *send, void *recv)
{
    uint32_t n = weft_group_size(group);
    uint32_t blocks[2] = {wish->first_block, n - wish->first_block};
    weft_status_t status = weft_group_set_order(group, wish->order, blocks, 2);
    if (status == WEFT_OK) {
        status = weft_group_set_algorithm(group, wish->op, wish->algorithm);
    }
    if (status != WEFT_OK) {
        return status; /* the others may have found out before this rank comes */
    }
    switch (wish->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(send, recv, wish->count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group,
                               NULL);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send, recv, wish->count, WEFT_DTYPE_F32, group, NULL);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(send, recv, wish->count, WEFT_DTYPE_F32, 0, group, NULL);
    default:
        return weft_reduce_scatter(send, recv, wish->count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                                   group, NULL);
    }
}

#define CASES_PER_WORLD 100u

static void run_disagreements(rank_world_t *world)
{
    uint64_t state = *(uint64_t *)world->user, bytes = 3 * 20000 * sizeof(float);
    void *send = NULL;
    RANK_OK(weft_mem_alloc(world->context, bytes, &send));
    void *recv = malloc(bytes);
    RANK_CHECK(recv != NULL);
    memset(send, 0, bytes);
    for (uint32_t i = 0; i < CASES_PER_WORLD; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        wish_t right = random_wish(&state, world->size), wrong = right;
        while (same_wish(&right, &wrong)) { /* mostly everything else is alike */
            wish_t other = random_wish(&state, world->size);
            uint64_t what = test_next_random(&state) % 4;
            wrong = what == 0 ? other : right;
            if (what == 1) {
                wrong.order = other.order;
                wrong.first_block = other.first_block;
            } else if (what > 1 && other.op == right.op) {
                wrong.algorithm = other.algorithm;
            }
        }
        uint32_t victim = (uint32_t)(test_next_random(&state) % world->size);
        uint32_t good_calls = (uint32_t)(test_next_random(&state) % 3);
        weft_status_t status = WEFT_OK;
        for (uint32_t k = 0; k < good_calls && status != WEFT_ERR_MISMATCH; k++) {
            /* A rank still waiting in a good call learns there that others disagree about the next.
             */
            status = call_as(&right, group, send, recv);
            RANK_CHECK(status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED ||
                       status == WEFT_ERR_MISMATCH);
        }
        if (status != WEFT_ERR_MISMATCH) {
            status = call_as(world->rank == victim ? &wrong : &right, group, send, recv);
        }
        if (status == WEFT_OK) { /* a root that only sends may be gone by then: it learns now */
            status = weft_barrier(group, NULL);
        }
        char text[32];
        snprintf(text, sizeof text, "rank %u", victim);
        RANK_CHECK(status == WEFT_ERR_MISMATCH);
        RANK_CHECK(strstr(weft_last_error(), text) != NULL);
        RANK_CHECK(weft_barrier(group, NULL) == WEFT_ERR_MISMATCH);
        weft_group_destroy(group);
    }
    RANK_OK(weft_mem_free(world->context, send));
    free(recv);
}

static void test_disagreement(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "32K", 1);
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t seed = (uint64_t)time(NULL) * 1000003 + i;
        print_message("seed %llu\n", (unsigned long long)seed);
        support_rank_threads(2 + i % 2, run_disagreements, &seed);
    }
    unsetenv("WEFT_STAGING_BYTES");
}

/* Both sides are named, with what they asked for. */
static void run_names_both(rank_world_t *world)
{
    static const struct {
        wish_t of[2];
        const char *texts[2];
    } cases[] = {
        {{{WEFT_COLLECTIVE_ALL_GATHER, "ring", WEFT_ORDER_TREE, 0, 100},
          {WEFT_COLLECTIVE_ALL_GATHER, "bruck", WEFT_ORDER_TREE, 0, 100}},
         {"by ring", "by bruck"}},
        {{{WEFT_COLLECTIVE_ALL_GATHER, NULL, WEFT_ORDER_TREE, 0, 1},
          {WEFT_COLLECTIVE_ALL_GATHER, "bruck", WEFT_ORDER_TREE, 0, 1}},
         {"with 1 x f32", "by bruck"}},
        {{{WEFT_COLLECTIVE_ALL_REDUCE, NULL, WEFT_ORDER_TREE, 0, 1},
          {WEFT_COLLECTIVE_ALL_REDUCE, NULL, WEFT_ORDER_ANY, 0, 1}},
         {"with 1 x f32", "order any"}},
        {{{WEFT_COLLECTIVE_ALL_REDUCE, NULL, WEFT_ORDER_BLOCKS, 1, 1},
          {WEFT_COLLECTIVE_ALL_REDUCE, NULL, WEFT_ORDER_BLOCKS, 2, 1}},
         {"order blocks", "order blocks"}},
    };
    float send[400] = {0}, recv[400];
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        RANK_CHECK(call_as(&cases[i].of[world->rank == 2], group, send, recv) == WEFT_ERR_MISMATCH);
        RANK_CHECK(strstr(weft_last_error(), cases[i].texts[0]) != NULL);
        RANK_CHECK(strstr(weft_last_error(), cases[i].texts[1]) != NULL);
        RANK_CHECK(strstr(weft_last_error(), "rank 2") != NULL);
        weft_group_destroy(group);
    }
}

static void test_disagreement_names_both(void **state)
{
    (void)state;
    support_rank_threads(3, run_names_both, NULL);
}

/* In 16 bits of the signature the built-in names are all different. */
static void test_names_do_not_collide(void **state)
{
    (void)state;
    const weft_algorithm_t *a, *b;
    for (size_t i = 0; (a = wefti_algorithm_at(i)) != NULL; i++) {
        for (size_t k = 0; k < i; k++) {
            b = wefti_algorithm_at(k);
            assert_true(strcmp(a->name, b->name) == 0 ||
                        wefti_select_hash(a->name) != wefti_select_hash(b->name));
        }
    }
}

/* ---- results are compared, streams ---- */

static bool damages; /* rank 1's result of one call */

/* Linked in place of the library's function (--wrap). */
void __real_wefti_call_post_check(wefti_call_t *call);
void __wrap_wefti_call_post_check(wefti_call_t *call);
void __wrap_wefti_call_post_check(wefti_call_t *call)
{
    if (damages && call->group->rank == 1 && call->order == 3) {
        call->request.recv[4 * 1234] ^= 1;
    }
    __real_wefti_call_post_check(call);
}

static void run_damaged(rank_world_t *world)
{
    weft_group_t *g = world->group;
    float *x = calloc(5000, sizeof *x);
    RANK_CHECK(x != NULL);
    RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "doubling"));
    RANK_OK(weft_all_reduce(x, x, 5000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    RANK_OK(weft_all_reduce(x, x, 7, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    RANK_CHECK(weft_all_reduce(x, x, 5000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL) ==
               WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "call 3") != NULL);
    RANK_CHECK(strcmp(weft_group_last_path(g), "schedule") == 0);
    free(x);
}

/* Sums in another order have other bits, and are not damaged. */
static void run_other_order(rank_world_t *world)
{
    float x[300], y[100];
    RANK_OK(weft_group_set_order(world->group, WEFT_ORDER_ANY, NULL, 0));
    RANK_OK(weft_group_set_algorithm(world->group, WEFT_COLLECTIVE_REDUCE_SCATTER, "ring"));
    for (uint32_t k = 0; k < 50; k++) {
        for (uint32_t i = 0; i < 300; i++) {
            x[i] = (float)(i + k + 1) / (float)(3 + 7 * world->rank);
        }
        RANK_OK(
            weft_reduce_scatter(x, y, 100, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    }
}

static void test_damaged_result(void **state)
{
    (void)state;
    setenv("WEFT_CHECK", "results", 1);
    support_rank_threads(3, run_other_order, NULL);
    damages = true;
    support_rank_threads(3, run_damaged, NULL);
    damages = false;
    unsetenv("WEFT_CHECK");
}

static void run_streams(rank_world_t *world)
{
    static const weft_stream_flags_t ways[] = {WEFT_STREAM_INLINE, WEFT_STREAM_THREAD};
    static const uint64_t big = 40000;
    weft_group_t *g = world->group, *other = NULL;
    float *x = malloc(big * sizeof *x), *y = malloc(big * sizeof *y);
    RANK_CHECK(x != NULL && y != NULL);
    RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling"));
    RANK_OK(weft_group_duplicate(g, &other)); /* asks for the same */
    for (uint32_t way = 0; way < 2; way++) {
        weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
        params.name = "comm";
        params.flags = ways[way];
        weft_stream_t *a = NULL, *b = NULL;
        RANK_OK(weft_stream_create(world->context, &params, &a));
        RANK_OK(weft_stream_create(world->context, &params, &b));
        for (uint64_t i = 0; i < big; i++) {
            x[i] = y[i] = (float)(i % 100);
        }
        for (uint32_t k = 0; k < 5; k++) {
            RANK_OK(weft_all_reduce(x, x, big, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, g, a));
            RANK_OK(weft_all_reduce(y, y, big, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, other, b));
        }
        RANK_OK(
            weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, NULL)); /* waits for those */
        RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling"));
        RANK_OK(weft_stream_synchronize(a));
        RANK_OK(weft_stream_synchronize(b));
        for (uint64_t i = 0; i < big; i++) {
            RANK_CHECK(x[i] == (float)(i % 100) && y[i] == x[i]);
        }
        RANK_CHECK(last_was(g, "schedule", "halving-doubling"));
        RANK_CHECK(last_was(other, "schedule", "halving-doubling"));
        weft_stream_destroy(a);
        weft_stream_destroy(b);
    }
    weft_group_destroy(other);
    free(x);
    free(y);
}

static void test_streams(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "32K", 1);
    support_rank_threads(3, run_streams, NULL);
    assert_true(support_rank_processes(2, run_streams, NULL));
    unsetenv("WEFT_STAGING_BYTES");
}

/* ---- what fails on the way ---- */

/* Rank 1 dies in the middle of a schedule that runs in many chunks. */
static void run_death(rank_world_t *world)
{
    static const uint64_t count = 400000;
    weft_group_t *g = world->group;
    weft_stream_t *stream = NULL;
    float *x = calloc(count, sizeof *x), *y = calloc(count * world->size, sizeof *y);
    RANK_CHECK(x != NULL && y != NULL);
    RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_GATHER, "ring"));
    RANK_OK(weft_all_gather(x, y, 100, WEFT_DTYPE_F32, g, NULL));
    if (world->rank == 1) {
        RANK_OK(weft_stream_create(world->context, NULL, &stream));
        RANK_OK(weft_all_gather(x, y, count, WEFT_DTYPE_F32, g, stream));
        wefti_call_t *call = &g->calls->ring[g->calls->issued & (WEFTI_CALLS - 1)];
        while (call->state < WEFTI_CALL_MOVING) {
            weft_status_t status = weft_stream_query(stream);
            RANK_CHECK(status == WEFT_OK || status == WEFT_IN_PROGRESS);
        }
        _exit(0); /* without leaving */
    }
    uint64_t start = wefti_now_ns();
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < 2 && status == WEFT_OK; i++) { /* it may have got through the first */
        status = weft_all_gather(x, y, count, WEFT_DTYPE_F32, g, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_PEER_DIED);
    RANK_CHECK(strstr(weft_last_error(), "rank 1") != NULL);
    RANK_CHECK(wefti_now_ns() - start < 300000000000ull);
    free(x);
    free(y);
}

static void test_death(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "32K", 1);
    assert_true(support_rank_processes(3, run_death, NULL));
    unsetenv("WEFT_STAGING_BYTES");
}

/* Rank 1 stays in the middle of a schedule: the others say who is late, and it learns. */
static void run_stuck(rank_world_t *world)
{
    static const uint64_t count = 400000;
    weft_group_t *g = world->group;
    float *x = calloc(count, sizeof *x), *y = calloc(count * world->size, sizeof *y);
    weft_status_t status;
    RANK_CHECK(x != NULL && y != NULL);
    RANK_OK(weft_group_set_algorithm(g, WEFT_COLLECTIVE_ALL_GATHER, "ring"));
    if (world->rank == 1) {
        weft_stream_t *stream = NULL;
        RANK_OK(weft_stream_create(world->context, NULL, &stream));
        RANK_OK(weft_all_gather(x, y, count, WEFT_DTYPE_F32, g, stream));
        const wefti_call_t *call = &g->calls->ring[g->calls->issued & (WEFTI_CALLS - 1)];
        while (call->state < WEFTI_CALL_MOVING) {
            status = weft_stream_query(stream);
            RANK_CHECK(status == WEFT_OK || status == WEFT_IN_PROGRESS);
        }
        while ((status = weft_group_status(g)) == WEFT_OK) { /* but does not go on */
            sched_yield();
        }
        weft_stream_destroy(stream);
    } else {
        status = WEFT_OK;
        for (uint32_t i = 0; i < 2 && status == WEFT_OK; i++) { /* it may have got far */
            status = weft_all_gather(x, y, count, WEFT_DTYPE_F32, g, NULL);
        }
    }
    RANK_CHECK(status == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "late: rank 1") != NULL);
    free(x);
    free(y);
}

static void test_stuck_rank(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "32K", 1);
    setenv("WEFT_TIMEOUT", "2", 1);
    support_rank_threads(2, run_stuck, NULL);
    unsetenv("WEFT_TIMEOUT");
    unsetenv("WEFT_STAGING_BYTES");
}

/* Ranks of which one's allocator fails from a request on. */
typedef struct poor_rank {
    weft_hub_t *hub;
    uint32_t rank;
    uint64_t fail_from;
    const char *algorithm;
    weft_status_t status;
    char text[256];
    pthread_t thread;
} poor_rank_t;

static void *run_poor(void *user)
{
    poor_rank_t *poor = user;
    test_memory_t memory;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    float x[3000] = {0};
    test_memory_init(&memory);
    params.rank = (int32_t)poor->rank;
    params.world_size = 2;
    params.hub = poor->hub;
    params.allocator = &memory.allocator;
    RANK_OK(weft_context_create(&params, &context));
    RANK_OK(weft_group_create_world(context, &group));
    /* the other rank may have failed by now */
    poor->status = weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE, poor->algorithm);
    test_memory_fail(&memory, UINT64_MAX, poor->fail_from);
    if (poor->status == WEFT_OK) {
        poor->status = weft_all_reduce(x, x, 3000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL);
    }
    if (poor->status == WEFT_OK) { /* the other may fail after this rank was done */
        poor->status = weft_barrier(group, NULL);
    }
    snprintf(poor->text, sizeof poor->text, "%s", weft_last_error());
    test_memory_fail(&memory, UINT64_MAX, UINT64_MAX);
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

/* No memory on one rank, wherever it happens: all ranks get an error, or none. NULL: the cost table
 * is asked. */
static void test_memory_that_runs_out(void **state)
{
    (void)state;
    static const char *const names[] = {"doubling", NULL};
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t failures = 0;
        for (uint64_t from = 0; from < 1000; from += 1 + from / 16) {
            poor_rank_t ranks[2];
            weft_hub_t *hub = NULL;
            assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
            for (uint32_t r = 0; r < 2; r++) {
                ranks[r] = (poor_rank_t){.hub = hub,
                                         .rank = r,
                                         .fail_from = r == 1 ? from : UINT64_MAX,
                                         .algorithm = names[i]};
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_poor, &ranks[r]), 0);
            }
            for (uint32_t r = 0; r < 2; r++) {
                pthread_join(ranks[r].thread, NULL);
            }
            weft_hub_destroy(hub);
            assert_int_equal(ranks[0].status, ranks[1].status);
            if (ranks[0].status == WEFT_OK) {
                break;
            }
            assert_int_equal(ranks[0].status, WEFT_ERR_NO_MEMORY);
            failures++;
        }
        assert_true(failures > 5);
    }
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_orders_are_checked_and_inherited),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_second_call_builds_nothing),
        cmocka_unit_test_setup_teardown(test_more_schedules_than_are_kept, support_add_schedules,
                                        support_remove_schedules),
        cmocka_unit_test(test_in_place_on_some_ranks),
        cmocka_unit_test(test_executors_by_name),
        cmocka_unit_test(test_executors_by_default),
        cmocka_unit_test(test_settings_choose),
        cmocka_unit_test(test_cost_tables),
        cmocka_unit_test(test_uneven_blocks),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_disagreement_names_both),
        cmocka_unit_test(test_names_do_not_collide),
        cmocka_unit_test(test_damaged_result),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_stuck_rank),
        cmocka_unit_test(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
