/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that number ranks by placement: what crosses hosts and racks, wherever ranks are. */
#include <string.h>

#include <weft/status.h>

#include "ops/algo/table.h"
#include "tests/support/support.h"

#define RANKS 16u

/* Four hosts of four ranks, in turns; hosts of two racks, in turns. */
static const uint32_t turns[RANKS] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
static const uint32_t rack_turns[RANKS] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
static const uint32_t rows[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
static const uint32_t rack_rows[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};

static weft_algo_params_t params_of(weft_collective_t op, const uint32_t *host_of,
                                    const uint32_t *rack_of)
{
    return (weft_algo_params_t){.struct_size = sizeof(weft_algo_params_t),
                                .op = op,
                                .group_size = RANKS,
                                .order = WEFT_ORDER_ANY,
                                .host_of = host_of,
                                .host_of_count = host_of != NULL ? 4 : 0,
                                .rack_of = rack_of};
}

static wefti_schedule_t *build(const char *name, const weft_algo_params_t *params)
{
    wefti_schedule_t *schedules;
    const weft_algorithm_t *algorithm = wefti_algorithm_find(params->op, name);
    assert_non_null(algorithm);
    assert_int_equal(wefti_schedules_build(algorithm, params, NULL, &schedules), WEFT_OK);
    return schedules;
}

typedef struct crossing {
    uint32_t pairs; /* of ranks in different parts, of which one reads from the other */
    uint64_t blocks;
} crossing_t;

static crossing_t count_crossing(const char *name, const weft_algo_params_t *params,
                                 const uint32_t *part_of)
{
    uint8_t seen[RANKS][RANKS] = {{0}};
    crossing_t found = {0};
    wefti_schedule_t *schedules = build(name, params);
    for (uint32_t r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < schedules[r].step_count; i++) {
            const wefti_step_t *step = &schedules[r].steps[i];
            bool moves = step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE;
            for (uint32_t s = 0; moves && s < step->move.source_count; s++) {
                const wefti_operand_t *at = &schedules[r].operands[step->move.operand + s];
                for (uint32_t from = at->rank; from < at->rank + at->rank_count; from++) {
                    bool apart = part_of[from] != part_of[r];
                    found.pairs += apart && !seen[from][r];
                    found.blocks += apart ? step->move.count : 0;
                    seen[from][r] = 1;
                }
            }
        }
    }
    wefti_schedules_free(NULL, schedules, RANKS);
    return found;
}

static void test_ring_crosses_each_pair_of_hosts_once(void **state)
{
    (void)state;
    const weft_collective_t ops[] = {WEFT_COLLECTIVE_ALL_REDUCE, WEFT_COLLECTIVE_ALL_GATHER,
                                     WEFT_COLLECTIVE_REDUCE_SCATTER};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        weft_algo_params_t params = params_of(ops[i], turns, NULL);
        assert_int_equal(count_crossing("ring", &params, turns).pairs, 4);
        params.host_of = rows;
        params.rack_of = rack_rows;
        assert_int_equal(count_crossing("ring", &params, rows).pairs, 4);
        assert_int_equal(count_crossing("ring", &params, rack_rows).pairs, 2);
        params.host_of = turns;
        params.rack_of = rack_turns;
        assert_int_equal(count_crossing("ring", &params, turns).pairs, 4);
        assert_int_equal(count_crossing("ring", &params, rack_turns).pairs, 2);
    }
}

static void test_trees_follow_hosts(void **state)
{
    (void)state;
    const weft_collective_t ops[] = {WEFT_COLLECTIVE_BROADCAST, WEFT_COLLECTIVE_REDUCE,
                                     WEFT_COLLECTIVE_GATHER, WEFT_COLLECTIVE_SCATTER};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        weft_algo_params_t params = params_of(ops[i], turns, NULL);
        params.root = 6;
        assert_int_equal(count_crossing("binomial", &params, turns).pairs, 3);
    }
}

/* Whatever the placement, as much crosses hosts as if their ranks were consecutive. */
static void test_all_that_number_ranks_cross_as_consecutive_ranks_do(void **state)
{
    (void)state;
    const weft_algorithm_t *algorithm;
    uint32_t count = 0;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        weft_algo_params_t in_turns = params_of(algorithm->op, turns, NULL);
        weft_algo_params_t in_rows = params_of(algorithm->op, rows, NULL);
        weft_algo_resources_t resources = {0};
        wefti_algorithm_resources(algorithm, &in_turns, &resources);
        if (!resources.by_placement) {
            continue;
        }
        crossing_t a = count_crossing(algorithm->name, &in_turns, turns);
        crossing_t b = count_crossing(algorithm->name, &in_rows, rows);
        assert_int_equal(a.pairs, b.pairs);
        assert_int_equal(a.blocks, b.blocks);
        count++;
    }
    assert_true(count >= 20);
}

static void assert_same_schedules(const char *name, const weft_algo_params_t *a,
                                  const weft_algo_params_t *b)
{
    wefti_schedule_t *left = build(name, a), *right = build(name, b);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(left[r].step_count, right[r].step_count);
        assert_memory_equal(left[r].steps, right[r].steps,
                            left[r].step_count * sizeof *left[r].steps);
        assert_int_equal(left[r].operand_count, right[r].operand_count);
        assert_memory_equal(left[r].operands, right[r].operands,
                            left[r].operand_count * sizeof *left[r].operands);
    }
    wefti_schedules_free(NULL, left, RANKS);
    wefti_schedules_free(NULL, right, RANKS);
}

/* A promised order is that of ranks, and bits are those of any other placement. */
static void test_a_promised_order_keeps_the_numbers_of_ranks(void **state)
{
    (void)state;
    weft_algo_params_t placed = params_of(WEFT_COLLECTIVE_REDUCE, turns, rack_turns);
    weft_algo_params_t alone = params_of(WEFT_COLLECTIVE_REDUCE, NULL, NULL);
    placed.order = alone.order = WEFT_ORDER_TREE;
    assert_same_schedules("binomial", &placed, &alone);
    placed.op = alone.op = WEFT_COLLECTIVE_ALL_REDUCE;
    assert_same_schedules("halving-doubling", &placed, &alone);
    assert_same_schedules("doubling", &placed, &alone);
}

static void test_consecutive_ranks_keep_their_numbers(void **state)
{
    (void)state;
    /* Hosts are runs of ranks, however they are numbered. */
    static const uint32_t backwards[RANKS] = {3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0};
    weft_algo_params_t placed = params_of(WEFT_COLLECTIVE_ALL_REDUCE, backwards, NULL);
    weft_algo_params_t alone = params_of(WEFT_COLLECTIVE_ALL_REDUCE, NULL, NULL);
    assert_same_schedules("ring", &placed, &alone);
    assert_same_schedules("halving-doubling", &placed, &alone);
}

static void test_a_rack_out_of_range_is_refused(void **state)
{
    (void)state;
    static const uint32_t wrong[RANKS] = {16};
    weft_algo_params_t params = params_of(WEFT_COLLECTIVE_ALL_REDUCE, turns, wrong);
    const weft_algorithm_t *ring = wefti_algorithm_find(params.op, "ring");
    wefti_schedule_t schedule;
    assert_int_equal(wefti_schedule_build(ring, &params, NULL, &schedule),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(weft_last_error(), "rack_of: rank 0: invalid rack 16");
}

/* Over put links between the hosts, and in place: the schedules of ranks are what is proved. */
static void test_schedules_in_turns_are_proved(void **state)
{
    (void)state;
    const weft_algorithm_t *algorithm;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        weft_algo_params_t params = params_of(algorithm->op, turns, rack_turns);
        weft_algo_resources_t resources = {0};
        wefti_algorithm_resources(algorithm, &params, &resources);
        params.root = params.peer = 9;
        params.in_place = wefti_collective_of(algorithm->op)->in_place;
        if (resources.by_placement && weft_algorithm_verify(algorithm, &params) != WEFT_OK) {
            fail_msg("%s", weft_last_error());
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_crosses_each_pair_of_hosts_once),
        cmocka_unit_test(test_trees_follow_hosts),
        cmocka_unit_test(test_all_that_number_ranks_cross_as_consecutive_ranks_do),
        cmocka_unit_test(test_a_promised_order_keeps_the_numbers_of_ranks),
        cmocka_unit_test(test_consecutive_ranks_keep_their_numbers),
        cmocka_unit_test(test_a_rack_out_of_range_is_refused),
        cmocka_unit_test(test_schedules_in_turns_are_proved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
