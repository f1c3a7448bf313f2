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
        if (!resources.by_placement || wefti_algorithm_reason(algorithm, &in_turns) != NULL) {
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

/* ---- levels ---- */

static bool has_levels(const weft_algorithm_t *algorithm)
{
    return strncmp(algorithm->name, "levels-", 7) == 0;
}

/* Racks of `hosts` hosts with `each` ranks, whose ranks, hosts and racks are mixed up. */
static uint32_t mix_up(uint32_t each, uint32_t hosts, uint32_t racks, uint32_t *host_of,
                       uint32_t *rack_of)
{
    uint32_t n = each * hosts * racks;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t place = r * 5 % n; /* 5 divides no n below */
        host_of[r] = place / each;
        rack_of[r] = racks - 1 - place / (each * hosts);
    }
    return n;
}

/* All rows, in place and not, over shared memory and put links: same results on all ranks. Programs
 * may copy an algorithm. */
static void test_levels_are_proved(void **state)
{
    static const uint32_t shapes[][3] = {{1, 2, 2}, {2, 2, 2}, {2, 3, 2}, {3, 2, 3}, {1, 3, 4}};
    uint32_t host_of[24], rack_of[24], count = 0;
    const weft_algorithm_t *algorithm;
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        uint32_t n = mix_up(shapes[s][0], shapes[s][1], shapes[s][2], host_of, rack_of);
        for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
            weft_algo_params_t params = params_of(algorithm->op, host_of, rack_of);
            weft_algorithm_t copy = *algorithm;
            params.group_size = n;
            params.host_of_count = shapes[s][1] * shapes[s][2];
            bool both = wefti_collective_of(algorithm->op)->in_place;
            for (params.in_place = 0; has_levels(algorithm) && params.in_place <= both;
                 params.in_place++) {
                if (weft_algorithm_verify(&copy, &params) != WEFT_OK) {
                    fail_msg("%s", weft_last_error());
                }
                count++;
            }
        }
    }
    assert_int_equal(count, 5 * 2 * 9);
}

/* Blocks that enter racks, of as many as all ranks have: (racks - 1) of each, twice for an
 * all-reduce, once where two racks read each other's sums whole. */
static void test_levels_cross_racks_with_the_fewest_blocks(void **state)
{
    (void)state;
    weft_algo_params_t params = params_of(WEFT_COLLECTIVE_ALL_REDUCE, turns, rack_turns);
    params.pieces = 1;
    assert_int_equal(count_crossing("levels-sss", &params, rack_turns).blocks, 2 * RANKS);
    assert_int_equal(count_crossing("levels-ssw", &params, rack_turns).blocks, 2 * RANKS / 2);
    assert_int_equal(count_crossing("levels-lww", &params, rack_turns).pairs, 2 * 2);
    assert_int_equal(count_crossing("levels-lww", &params, turns).pairs, 2 * 4);
    params.op = WEFT_COLLECTIVE_REDUCE_SCATTER;
    assert_int_equal(count_crossing("levels-sss", &params, rack_turns).blocks, RANKS);
    params.op = WEFT_COLLECTIVE_ALL_GATHER;
    assert_int_equal(count_crossing("levels-sss", &params, rack_turns).blocks, RANKS);
    /* Between the hosts of all racks: each block of a host for each other host. */
    assert_int_equal(count_crossing("hierarchical", &params, rack_turns).blocks, 2 * RANKS);
}

static void test_levels_need_a_regular_placement(void **state)
{
    (void)state;
    static const uint32_t uneven[RANKS] = {0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    static const uint32_t one_more[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t one[RANKS] = {0};
    const struct {
        const uint32_t *host_of, *rack_of;
        weft_order_t order;
        const char *reason;
    } rows_of[] = {
        {rows, rack_rows, WEFT_ORDER_ANY, NULL},
        {rows, rack_rows, WEFT_ORDER_TREE, "it cannot realise the group's reduction order"},
        {rows, NULL, WEFT_ORDER_ANY, "the group is in one rack, or its racks are not known"},
        {NULL, NULL, WEFT_ORDER_ANY, "the group is in one rack, or its racks are not known"},
        {rows, one, WEFT_ORDER_ANY, "the group is in one rack"},
        {rows, rows, WEFT_ORDER_ANY, "each of its racks has one host"},
        {uneven, rack_rows, WEFT_ORDER_ANY, "its hosts have different numbers of ranks"},
        {rows, one_more, WEFT_ORDER_ANY, "its racks have different numbers of hosts"},
    };
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
        weft_algo_params_t params =
            params_of(WEFT_COLLECTIVE_ALL_REDUCE, rows_of[i].host_of, rows_of[i].rack_of);
        params.order = rows_of[i].order;
        const char *reason =
            wefti_algorithm_reason(wefti_algorithm_find(params.op, "levels-sss"), &params);
        assert_true((reason == NULL) == (rows_of[i].reason == NULL));
        if (reason != NULL) {
            assert_string_equal(reason, rows_of[i].reason);
        }
    }
    /* An all-gather has no order. */
    weft_algo_params_t gather = params_of(WEFT_COLLECTIVE_ALL_GATHER, rows, rack_rows);
    gather.order = WEFT_ORDER_TREE;
    assert_null(wefti_algorithm_reason(wefti_algorithm_find(gather.op, "levels-sss"), &gather));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_are_proved),
        cmocka_unit_test(test_levels_cross_racks_with_the_fewest_blocks),
        cmocka_unit_test(test_levels_need_a_regular_placement),
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
