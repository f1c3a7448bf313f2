/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective against an oracle in plain C: ranks 1 to 9, all types and reductions, sizes
 * around every path's limits, in place and not, memory that peers reach and memory that they do
 * not.
 */
#include <unistd.h>

#include "support_collectives.h"
#include "tests/support/support.h"

typedef struct sweep {
    bool registered;
    uint64_t *counts;
    uint32_t count_count;
    uint32_t seed;
    bool all_types;
} sweep_t;

static void run_all(one_rank_t *one, uint64_t count, weft_dtype_t dtype, weft_reduction_t reduction)
{
    uint32_t n = one->world->size;
    if (reduction != WEFT_REDUCTION_SUM) { /* the other operators do not know it */
        support_call(one, WEFT_COLLECTIVE_ALL_REDUCE, count, dtype, reduction, 0, count % 2 != 0);
        support_call(one, WEFT_COLLECTIVE_REDUCE, count, dtype, reduction, n - 1, count % 2 == 0);
        support_call(one, WEFT_COLLECTIVE_REDUCE_SCATTER, count, dtype, reduction, 0,
                     count % 2 != 0);
        return;
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        for (uint32_t op = WEFT_COLLECTIVE_ALL_REDUCE; op <= WEFT_COLLECTIVE_BARRIER; op++) {
            uint32_t root =
                op == WEFT_COLLECTIVE_GATHER || op == WEFT_COLLECTIVE_SCATTER ? n / 2 : n - 1;
            if (op == WEFT_COLLECTIVE_SEND_RECV) {
                support_exchange(one, count, dtype);
            } else {
                support_call(one, (weft_collective_t)op, count, dtype, reduction, root, in_place);
            }
        }
    }
}

static void run_sweep(rank_world_t *world)
{
    const sweep_t *sweep = world->user;
    one_rank_t one;
    support_one_init(&one, world, sweep->registered, sweep->seed);
    for (uint32_t c = 0; c < sweep->count_count; c++) {
        uint64_t count = sweep->counts[c];
        for (uint32_t t = WEFT_DTYPE_F64; t <= (sweep->all_types ? WEFT_DTYPE_U8 : WEFT_DTYPE_F32);
             t++) {
            for (uint32_t k = WEFT_REDUCTION_SUM;
                 k <= (sweep->all_types ? WEFT_REDUCTION_MAX : WEFT_REDUCTION_SUM); k++) {
                run_all(&one, count, (weft_dtype_t)t, (weft_reduction_t)k);
            }
        }
    }
    support_one_deinit(&one);
}

static uint64_t small_counts[] = {1026, 0, 1, 7}; /* the first two under sanitizers */
static uint64_t large_counts[] = {3, 4097, 515, 20011};

static void test_every_type_and_reduction(void **state)
{
    (void)state;
    for (int registered = 0; registered < 2; registered++) {
        sweep_t sweep = {registered, small_counts, TEST_SANITIZED ? 2 : 4, 1, true};
        support_rank_threads(3, run_sweep, &sweep);
    }
}

static void test_every_group_size(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= SUPPORT_MAX_RANKS; n += TEST_SANITIZED ? 3 : 1) {
        for (int registered = 0; registered < 2; registered++) {
            sweep_t sweep = {registered, large_counts, n < 5 ? 4 : 2, n * 100, false};
            support_rank_threads(n, run_sweep, &sweep);
        }
    }
}

static void test_processes(void **state)
{
    (void)state;
    for (uint32_t n = TEST_SANITIZED ? 4 : 2; n <= 4; n += 2) {
        for (int registered = 0; registered < 2; registered++) {
            sweep_t sweep = {registered, large_counts, 4, n * 1000, false};
            assert_true(support_rank_processes_too(n, run_sweep, &sweep));
        }
    }
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_and_reduction),
        cmocka_unit_test(test_every_group_size),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
