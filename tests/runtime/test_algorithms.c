/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operator by every algorithm that is asked for by name, against the oracle of the
 * collectives' test; what is asked for and cannot be had; ranks that ask for different things;
 * schedules that are built once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support_collectives.h"

#include "ops/algo/table.h"
#include "runtime/collective/call.h"
#include "runtime/collective/schedule_cache.h"
#include "tests/support/support.h"

#if defined(__has_feature)
#define CLANG_SANITIZES (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define CLANG_SANITIZES 0
#endif
/* Sanitizers are ten times slower: fewer group sizes are enough for them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || CLANG_SANITIZES
#define SIZE_STEP 4u
#else
#define SIZE_STEP 1u
#endif

typedef enum memory_mode {
    MEMORY_REACHED = 0,
    MEMORY_PLAIN = 1,
    MEMORY_MIXED = 2, /* of every second rank */
    MEMORY_MODES = 3,
} memory_mode_t;

typedef struct sweep {
    memory_mode_t memory;
    const uint64_t *counts;
    uint32_t count_count;
    bool all_types;
    uint64_t seed;
} sweep_t;

/* The path that the last call took was the interpreter's, by algorithm. */
static void check_ran(const weft_group_t *group, const weft_algorithm_t *algorithm)
{
    const char *name = weft_group_last_algorithm(group);
    if (group->size > 1) { /* with oneself all are the same */
        RANK_CHECK(strcmp(weft_group_last_path(group), "schedule") == 0);
        RANK_CHECK(strncmp(name, algorithm->name, strlen(algorithm->name)) == 0);
    }
}

/* Sums of what the oracle fills in are exact in these types, whatever the order. */
static bool is_exact(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F64 ||
           (dtype != WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_F16 && dtype != WEFT_DTYPE_BF16);
}

static void run_one(one_rank_t *one, const weft_algorithm_t *algorithm, uint64_t count,
                    weft_dtype_t dtype, weft_reduction_t reduction)
{
    weft_group_t *group = one->world->group;
    uint32_t n = one->world->size;
    bool any = weft_group_order(group) == WEFT_ORDER_ANY;
    for (int in_place = 0; in_place < 2; in_place++) {
        if (any) { /* no data of any bits at all */
            one->seed += one->seed % 3 == 2;
        }
        support_call(one, algorithm->op, count, dtype, reduction, (uint32_t)(count % n), in_place);
        check_ran(group, algorithm);
    }
}

static void run_algorithm(one_rank_t *one, const sweep_t *sweep, const weft_algorithm_t *algorithm)
{
    weft_group_t *group = one->world->group;
    bool any = weft_group_order(group) == WEFT_ORDER_ANY;
    RANK_OK(weft_group_set_algorithm(group, algorithm->op, algorithm->name));
    for (uint32_t c = 0; c < sweep->count_count; c++) {
        for (uint32_t t = WEFT_DTYPE_F64; t <= WEFT_DTYPE_U8; t++) {
            weft_dtype_t dtype = (weft_dtype_t)t;
            if (sweep->all_types ? any && !is_exact(dtype)
                                 : dtype != WEFT_DTYPE_F64 && (any || dtype != WEFT_DTYPE_F32)) {
                continue;
            }
            run_one(one, algorithm, sweep->counts[c], dtype, WEFT_REDUCTION_SUM);
            if (sweep->all_types && wefti_collective_reduces(algorithm->op) && !any) {
                for (uint32_t k = WEFT_REDUCTION_SUM + 1; k <= WEFT_REDUCTION_MAX; k++) {
                    run_one(one, algorithm, sweep->counts[c], dtype, (weft_reduction_t)k);
                }
            }
        }
    }
    RANK_OK(weft_group_set_algorithm(group, algorithm->op, NULL));
}

static void run_sweep(rank_world_t *world)
{
    const sweep_t *sweep = world->user;
    const weft_algorithm_t *algorithm;
    one_rank_t one;
    support_one_init(&one, world, sweep->memory != MEMORY_PLAIN, sweep->seed);
    uint8_t *plain = malloc(SUPPORT_ROOM), *reached = one.send;
    RANK_CHECK(plain != NULL);
    if (sweep->memory == MEMORY_MIXED && world->rank % 2 != 0) {
        one.send = plain;
    }
    for (int order = WEFT_ORDER_TREE; order <= WEFT_ORDER_ANY; order += WEFT_ORDER_ANY) {
        RANK_OK(weft_group_set_order(world->group, (weft_order_t)order, NULL, 0));
        for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
            weft_algo_params_t params;
            wefti_select_params(world->group, algorithm->op, 0, &params);
            algorithm = support_as_schedule(algorithm);
            params.order = WEFT_ORDER_TREE;
            bool tree = algorithm->eligible(&params) == NULL;
            params.order = (weft_order_t)order;
            if (algorithm->op == WEFT_COLLECTIVE_SEND_RECV ||
                algorithm->eligible(&params) != NULL || (order == WEFT_ORDER_ANY && tree)) {
                continue;
            }
            run_algorithm(&one, sweep, algorithm);
        }
    }
    RANK_OK(weft_barrier(world->group, NULL)); /* nobody reads what goes away now */
    one.send = reached;
    support_one_deinit(&one);
    free(plain);
}

static const uint64_t every_count[] = {0, 1, 3, 515, 4097};
static const uint64_t large_groups[] = {3, 1027};
static const uint64_t few_counts[] = {1, 77};

/* Staging of 16 KiB: the larger calls go in chunks. */
static void test_every_algorithm(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "32K", 1);
    for (uint32_t n = 1; n <= SUPPORT_MAX_RANKS; n += SIZE_STEP) {
        for (uint32_t memory = 0; memory < MEMORY_MODES; memory++) {
            bool small = n < 5 && SIZE_STEP == 1;
            sweep_t sweep = {(memory_mode_t)memory, small ? every_count : large_groups,
                             small ? 5 : 2, false, n * 10};
            if (memory != MEMORY_MIXED || n == 3 || n == 5) {
                support_rank_threads(n, run_sweep, &sweep);
            }
        }
    }
    unsetenv("WEFT_STAGING_BYTES");
}

static void test_every_type(void **state)
{
    (void)state;
    for (uint32_t memory = 0; memory < 2; memory++) {
        sweep_t sweep = {(memory_mode_t)memory, few_counts, 2, true, 3};
        support_rank_threads(3, run_sweep, &sweep);
    }
}

static void test_processes(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "32K", 1);
    for (uint32_t memory = 0; memory < 2; memory++) {
        sweep_t sweep = {(memory_mode_t)memory, every_count, 5, false, 7};
        assert_true(support_rank_processes_too(4, run_sweep, &sweep));
    }
    unsetenv("WEFT_STAGING_BYTES");
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm),
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, support_add_schedules, support_remove_schedules);
}
