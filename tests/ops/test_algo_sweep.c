/* SPDX-License-Identifier: Apache-2.0 */
/* Every built-in algorithm, proved for every small group and some larger ones. */
#include <stdio.h>
#include <string.h>

#include <weft/status.h>

#include "ops/algo/sweep.h"
#include "tests/support/support.h"

static void prove_sizes(const uint32_t *sizes, size_t count, wefti_sweep_links_t links,
                        uint64_t least)
{
    wefti_sweep_t sweep = {.links = links};
    for (size_t i = 0; i < count; i++) {
        if (wefti_sweep_size(&sweep, sizes[i]) < 0) {
            fail_msg("%s", weft_last_error());
        }
    }
    assert_true(sweep.proved >= least);
    assert_int_equal(sweep.left_out, 0);
    assert_true(sweep.steps > sweep.proved);
    print_message("%llu cases, %llu steps, %llu accesses\n", (unsigned long long)sweep.proved,
                  (unsigned long long)sweep.steps, (unsigned long long)sweep.accesses);
}

/* Checked code is several times slower, and has nothing new to say of larger groups. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MOST_RANKS 8u
#define SOME_LARGER                                                                                \
    {                                                                                              \
        32, 33                                                                                     \
    }
#else
#define MOST_RANKS 17u
#define SOME_LARGER                                                                                \
    {                                                                                              \
        32, 33, 64                                                                                 \
    }
#endif

static void test_sweep_proves_every_small_group(void **state)
{
    (void)state;
    uint32_t sizes[MOST_RANKS];
    for (uint32_t i = 0; i < MOST_RANKS; i++) {
        sizes[i] = i + 1;
    }
    prove_sizes(sizes, MOST_RANKS, WEFTI_SWEEP_ALL, MOST_RANKS < 17 ? 2500 : 10000);
}

static void test_sweep_proves_groups_of_32_33_64(void **state)
{
    (void)state;
    const uint32_t sizes[] = SOME_LARGER;
    prove_sizes(sizes, sizeof sizes / sizeof *sizes, WEFTI_SWEEP_MIXED, 600);
}

static uint64_t count_cases(const uint32_t *root)
{
    wefti_sweep_t sweep = {
        .op = WEFT_COLLECTIVE_BROADCAST, .algorithm = "hierarchical", .root = root};
    assert_int_equal(wefti_sweep_size(&sweep, 8), WEFT_OK);
    return sweep.proved;
}

/* A plan's schedule is proved for its own root, which may be none of those that stand for all. */
static void test_sweep_proves_the_root_that_is_asked_for(void **state)
{
    (void)state;
    const uint32_t first = 0, second = 1, last = 7, other = 5, none = 8;
    assert_true(count_cases(&other) > 0);
    assert_int_equal(count_cases(&none), 0);
    assert_int_equal(count_cases(NULL),
                     count_cases(&first) + count_cases(&second) + count_cases(&last));
}

/* The same bits need the same tree: who cannot follow the order must say so. */
static void test_order_decides_who_is_eligible(void **state)
{
    (void)state;
    const uint32_t uneven[] = {3, 5}, halves[] = {4, 4};
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 8};
    const struct {
        const char *name;
        bool tree, halves, uneven;
    } rows[] = {
        {"mesh", true, true, true},      {"one-shot", true, true, true},
        {"doubling", true, true, false}, {"halving-doubling", true, true, false},
        {"ring", false, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const weft_algorithm_t *algorithm = wefti_algorithm_find(params.op, rows[i].name);
        assert_non_null(algorithm);
        params.order = WEFT_ORDER_TREE;
        assert_int_equal(algorithm->eligible(&params) == NULL, rows[i].tree);
        params.order = WEFT_ORDER_ANY;
        assert_null(algorithm->eligible(&params));
        params.order = WEFT_ORDER_BLOCKS;
        params.order_size_count = 2;
        params.order_sizes = halves;
        assert_int_equal(algorithm->eligible(&params) == NULL, rows[i].halves);
        params.order_sizes = uneven;
        assert_int_equal(algorithm->eligible(&params) == NULL, rows[i].uneven);
    }
}

static void test_every_operator_has_algorithms_with_unique_names(void **state)
{
    (void)state;
    for (int op = WEFT_COLLECTIVE_ALL_REDUCE; op <= WEFT_COLLECTIVE_BARRIER; op++) {
        int count = 0;
        const weft_algorithm_t *algorithm;
        for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
            count += (int)algorithm->op == op;
            assert_ptr_equal(wefti_algorithm_find(algorithm->op, algorithm->name), algorithm);
            assert_true(strlen(algorithm->doc) > 10);
        }
        assert_true(count >= 1);
    }
    assert_null(wefti_algorithm_find(WEFT_COLLECTIVE_BARRIER, "ring"));
    assert_string_equal(weft_collective_name(WEFT_COLLECTIVE_REDUCE_SCATTER_V), "ReduceScatterV");
    assert_string_equal(weft_collective_name((weft_collective_t)77), "unknown");
}

static void expect_error(const weft_algo_params_t *params, const char *algorithm, const char *text)
{
    wefti_schedule_t *schedules;
    const weft_algorithm_t *found = wefti_algorithm_find(params->op, algorithm);
    assert_non_null(found);
    assert_true(wefti_schedules_build(found, params, NULL, &schedules) < 0);
    assert_null(schedules);
    if (strstr(weft_last_error(), text) == NULL) {
        fail_msg("'%s' does not say '%s'", weft_last_error(), text);
    }
}

static void test_build_names_what_is_wrong(void **state)
{
    (void)state;
    const uint32_t sizes[] = {2, 1};
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_BROADCAST, .group_size = 4, .root = 4};
    expect_error(&params, "mesh", "root 4");
    params.group_size = 0;
    expect_error(&params, "mesh", "group size 0");
    params.group_size = UINT32_MAX;
    expect_error(&params, "mesh", "group size 4294967295");
    params = (weft_algo_params_t){.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 4};
    expect_error(&params, "ring", "reduction order");
    params.order = WEFT_ORDER_BLOCKS;
    params.order_sizes = sizes;
    params.order_size_count = 2;
    expect_error(&params, "mesh", "sum to 3 ranks, but the group has 4");
    params =
        (weft_algo_params_t){.op = WEFT_COLLECTIVE_ALL_TO_ALL_V, .group_size = 4, .in_place = 1};
    expect_error(&params, "mesh", "in place");
    params = (weft_algo_params_t){
        .op = WEFT_COLLECTIVE_SEND_RECV, .group_size = 4, .root = 2, .peer = 2};
    expect_error(&params, "direct", "both sender and receiver");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep_proves_every_small_group),
        cmocka_unit_test(test_sweep_proves_groups_of_32_33_64),
        cmocka_unit_test(test_sweep_proves_the_root_that_is_asked_for),
        cmocka_unit_test(test_order_decides_who_is_eligible),
        cmocka_unit_test(test_every_operator_has_algorithms_with_unique_names),
        cmocka_unit_test(test_build_names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
