/* SPDX-License-Identifier: Apache-2.0 */
/* Faults planted into proved schedules: each is caught, and the message says who, where and why. */
#include <stdio.h>
#include <string.h>

#include <weft/status.h>

#include "ops/algo/lower.h"
#include "ops/algo/simulate.h"
#include "ops/algo/table.h"
#include "tests/support/support.h"

#define RANKS 5u

static const uint32_t hosts[] = {2, 3};
static const uint32_t apart[RANKS] = {0, 1, 2, 3, 4}; /* memory of each rank */

typedef struct fixture {
    weft_algo_params_t params;
    wefti_schedule_t *schedules;
    wefti_links_t links;
} fixture_t;

static void begin_with(fixture_t *f, const weft_algorithm_t *algorithm, bool put)
{
    f->links = (wefti_links_t){put ? apart : NULL, NULL};
    if (wefti_schedules_build(algorithm, &f->params, NULL, &f->schedules) < 0 ||
        (put && wefti_schedules_lower(&f->params, &f->links, NULL, f->schedules) < 0) ||
        wefti_schedules_verify(&f->params, f->schedules, &f->links, NULL, NULL) < 0) {
        fail_msg("%s", weft_last_error());
    }
}

static fixture_t begin(weft_collective_t op, const char *name, bool put)
{
    fixture_t f = {.params = {.op = op,
                              .group_size = RANKS,
                              .root = 1,
                              .peer = 2,
                              .order = WEFT_ORDER_ANY,
                              .host_sizes = hosts,
                              .host_count = 2}};
    const weft_algorithm_t *algorithm = wefti_algorithm_find(op, name);
    static const uint32_t host_of[] = {0, 1, 2, 3}, rack_of[] = {0, 0, 1, 1};
    assert_non_null(algorithm);
    if (algorithm->eligible(&f.params) != NULL) { /* it needs racks */
        f.params.host_count = 0;
        f.params.group_size = f.params.host_of_count = 4;
        f.params.host_of = host_of;
        f.params.rack_of = rack_of;
    }
    if (algorithm->eligible(&f.params) != NULL) {
        fail_msg("%s is not eligible", name);
    }
    f.params.order = WEFT_ORDER_TREE;
    if (algorithm->eligible(&f.params) != NULL) {
        f.params.order = WEFT_ORDER_ANY;
    }
    begin_with(&f, algorithm, put);
    /* The links point into the structure that is returned: set again by who keeps it. */
    return f;
}

/* Step number nth (from 0) of the kind on rank. */
static wefti_step_t *find(fixture_t *f, uint32_t rank, wefti_step_op_t op, uint32_t nth)
{
    for (size_t i = 0; i < f->schedules[rank].step_count; i++) {
        if (f->schedules[rank].steps[i].op == op && nth-- == 0) {
            return &f->schedules[rank].steps[i];
        }
    }
    fail_msg("rank %u has no such step", rank);
    return NULL;
}

static wefti_operand_t *operand(fixture_t *f, uint32_t rank, const wefti_step_t *step, uint32_t nth)
{
    return &f->schedules[rank].operands[step->move.operand + nth];
}

static void expect(fixture_t *f, const char *where, const char *why)
{
    assert_int_equal(wefti_schedules_verify(&f->params, f->schedules, &f->links, NULL, NULL),
                     WEFT_ERR_INVALID_ARGUMENT);
    const char *message = weft_last_error();
    if (strstr(message, where) == NULL || strstr(message, why) == NULL) {
        fail_msg("'%s' does not say '%s' and '%s'", message, where, why);
    }
    wefti_schedules_free(NULL, f->schedules, f->params.group_size);
    f->schedules = NULL;
}

static void drop(wefti_step_t *step)
{
    step->op = 0; /* no step: skipped */
}

static void test_wrong_data_is_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_TO_ALL, "mesh", false);
    operand(&f, 3, find(&f, 3, WEFTI_DO_COPY, 1), 0)->block = 2;
    expect(&f, "rank 3", "received block 4 is 4[2], not 4[3]");

    f = begin(WEFT_COLLECTIVE_BROADCAST, "binomial", false);
    drop(find(&f, 2, WEFTI_DO_COPY, 0));
    expect(&f, "rank 3, lane 0, step 1", "which was never written");

    f = begin(WEFT_COLLECTIVE_BROADCAST, "mesh", false);
    drop(find(&f, 4, WEFTI_DO_COPY, 0));
    expect(&f, "rank 4", "received block 0 is nothing, not 1[0]");

    f = begin(WEFT_COLLECTIVE_SCATTER, "mesh",
              false); /* the root's copy to itself goes into the wrong buffer */
    *operand(&f, 1, find(&f, 1, WEFTI_DO_COPY, 0), 1) = (wefti_operand_t){1, 1, 3, 1, WEFTI_SEND};
    expect(&f, "rank 1, lane 0", "has another length");
}

static void test_wrong_reduction_order_is_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "doubling", false);
    wefti_step_t *step = find(&f, 2, WEFTI_DO_REDUCE, 1);
    wefti_operand_t left = *operand(&f, 2, step, 0);
    *operand(&f, 2, step, 0) = *operand(&f, 2, step, 1);
    *operand(&f, 2, step, 1) = left;
    expect(&f, "received block 0", "+ (3[0] + 2[0]))");

    /* under order=any a rank counted twice is still wrong */
    f = begin(WEFT_COLLECTIVE_REDUCE_SCATTER, "ring", false);
    step = find(&f, 2, WEFTI_DO_REDUCE, 3);
    *operand(&f, 2, step, 1) = *operand(&f, 2, step, 0);
    expect(&f, "rank 2", "received block 2");
}

static void test_rounding_too_early_or_twice_is_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "mesh", false);
    find(&f, 4, WEFTI_DO_REDUCE, 0)->flags = 0;
    expect(&f, "rank 4, lane 0, step 2", "stores a partial sum in a user buffer");

    f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "doubling", false);
    find(&f, 0, WEFTI_DO_REDUCE, 1)->flags = WEFTI_STEP_FINISH;
    expect(&f, "rank 0", "stores a final result among partial sums");

    f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling", false);
    wefti_step_t *copy = find(&f, 0, WEFTI_DO_COPY, 0);
    copy->op = WEFTI_DO_REDUCE;
    copy->flags = WEFTI_STEP_FINISH;
    expect(&f, "rank 0", "reduces a final result again");

    f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling", false);
    operand(&f, 0, find(&f, 0, WEFTI_DO_COPY, 0), 1)->buffer = WEFTI_SCRATCH;
    expect(&f, "rank 0", "copy between partial sums and elements of a user buffer");
}

static void test_races_are_caught(void **state)
{
    (void)state;
    /* reads before the other is ready */
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_GATHER, "mesh", false);
    drop(find(&f, 2, WEFTI_DO_WAIT, 0));
    expect(&f, "rank 2, lane 0, step 3 (copy send[3] of rank 3 -> recv[3] of rank 2)",
           "while rank 3 may be writing it");

    /* returns while others still read: the next run's writes are the user's */
    f = begin(WEFT_COLLECTIVE_ALL_GATHER, "mesh", false);
    drop(find(&f, 2, WEFTI_DO_WAIT, 4));
    expect(&f, "rank 2", "while rank ");

    /* a slot is used again too early: one set of scratch where two are needed */
    f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "one-shot", false);
    for (uint32_t r = 0; r < RANKS; r++) {
        f.schedules[r].resources.scratch_sets = 1;
    }
    expect(&f, "run 1", "writes scratch[0]");

    /* the post comes before what it publishes */
    f = begin(WEFT_COLLECTIVE_BROADCAST, "binomial", false);
    wefti_step_t *copy = find(&f, 2, WEFTI_DO_COPY, 0);
    wefti_step_t kept = copy[0];
    copy[0] = copy[1];
    copy[1] = kept;
    expect(&f, "rank 3", "recv[0] of rank 2");
}

static void test_waiting_for_ever_is_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_GATHER, "mesh", false);
    drop(find(&f, 3, WEFTI_DO_POST, 0));
    expect(&f, "rank 1, lane 0", "deadlock: rank 3, lane 0, is in run 0 at wait for phase 2");

    f = begin(WEFT_COLLECTIVE_ALL_GATHER, "ring",
              false); /* each waits for what comes after its own wait */
    for (uint32_t r = 0; r < RANKS; r++) {
        find(&f, r, WEFTI_DO_WAIT, 0)->wait.phase = 2;
    }
    expect(&f, "rank 0, lane 0, step 2", "deadlock");

    f = begin(WEFT_COLLECTIVE_ALL_GATHER, "ring", true);
    find(&f, 2, WEFTI_DO_AWAIT, 1)->signal.index = 99;
    expect(&f, "rank 2", "deadlock");

    f = begin(WEFT_COLLECTIVE_ALL_GATHER, "ring", false);
    find(&f, 4, WEFTI_DO_POST, 2)->post.phase = 1;
    expect(&f, "rank 4", "phases must increase");
}

static void test_accesses_outside_are_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "mesh", false);
    operand(&f, 1, find(&f, 1, WEFTI_DO_REDUCE, 0), 0)->block = 5;
    expect(&f, "rank 1, lane 0, step 2",
           "block 5 is outside the send buffer of rank 0, which has 0 to 4");

    f = begin(WEFT_COLLECTIVE_GATHER, "binomial", false);
    find(&f, 1, WEFTI_DO_COPY, 2)->move.count += 100;
    expect(&f, "rank 1", "is outside the ");

    f = begin(WEFT_COLLECTIVE_REDUCE, "binomial", false);
    operand(&f, 2, find(&f, 2, WEFTI_DO_REDUCE, 0), 1)->buffer = WEFTI_RECV;
    expect(&f, "rank 2", "rank 3 has no recv buffer");

    f = begin(WEFT_COLLECTIVE_ALL_GATHER_V, "bruck", false);
    find(&f, 3, WEFTI_DO_COPY, 1)->move.first = 1;
    expect(&f, "rank 3", "has the length of block 4, expected block 1");

    f = begin(WEFT_COLLECTIVE_ALL_GATHER, "mesh", false);
    operand(&f, 1, find(&f, 1, WEFTI_DO_COPY, 2), 1)->buffer = WEFTI_STAGE;
    expect(&f, "rank 1", "rank 1 has no stage buffer");
}

static void test_links_are_respected(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_GATHER, "mesh", false);
    f.links.memory_of = apart;
    expect(&f, "rank 0, lane 0", "counter of rank 1, but the link between them has no loads");

    f = begin(WEFT_COLLECTIVE_ALL_GATHER, "mesh", true);
    wefti_step_t *put = find(&f, 1, WEFTI_DO_PUT, 0);
    put->op = WEFTI_DO_COPY;
    expect(&f, "rank 1", "accesses the memory of rank 4, but the link");

    uint8_t hidden[RANKS] = {0, 0, 1, 0, 0};
    f = begin(WEFT_COLLECTIVE_BROADCAST, "chain", false);
    f.links.hidden = hidden;
    expect(&f, "rank 3", "accesses a user buffer of rank 2");
}

static void test_puts_that_may_not_have_landed_are_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_REDUCE, "mesh", true);
    uint32_t caught = 0, tried = 0;
    for (size_t i = 0; i < f.schedules[2].step_count; i++) {
        wefti_step_t *step = &f.schedules[2].steps[i];
        if (step->op != WEFTI_DO_AWAIT || step->flags != WEFTI_SIGNAL_DATA) {
            continue;
        }
        step->op = 0;
        tried++;
        assert_true(wefti_schedules_verify(&f.params, f.schedules, &f.links, NULL, NULL) < 0);
        caught += strstr(weft_last_error(), "may not have finished putting it") != NULL ||
                  strstr(weft_last_error(), "never written") != NULL;
        step->op = WEFTI_DO_AWAIT;
    }
    assert_int_equal(caught, tried);
    assert_int_equal(tried, RANKS - 1); /* shards to reduce; results come with the last signal */
    drop(find(&f, 2, WEFTI_DO_SIGNAL, 0));
    expect(&f, "rank 4", "signal 3 of rank 2, which sends only 2");
}

/* A legal, odd all-reduce: rank 1 also overwrites rank 0's result with its own. */
static const char *two_ranks(const weft_algo_params_t *params)
{
    return params->group_size == 2 ? NULL : "it is made for two ranks";
}

static void odd_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 2;
}

static void odd_build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t r = params->rank;
    weft_place_t all = {0, 2, WEFT_ALGO_BUFFER_SEND, 0, 1};
    weft_place_t to[2] = {{r, 1, WEFT_ALGO_BUFFER_RECV, 0, 1}, {0, 1, WEFT_ALGO_BUFFER_RECV, 0, 1}};
    weft_schedule_post(b, 0, 1);
    weft_schedule_wait(b, 0, 1 - r, 1, 0, 1, 0);
    if (r == 0) {
        weft_schedule_reduce(b, 0, to, 1, &all, 1, (weft_blocks_t){0, 1, 1}, 1);
        weft_schedule_post(b, 0, 2);
        weft_schedule_wait(b, 0, 1, 1, 0, 2, 0);
    } else {
        weft_schedule_wait(b, 0, 0, 1, 0, 2, 0);
        weft_schedule_reduce(b, 0, to, 2, &all, 1, (weft_blocks_t){0, 1, 1}, 1);
        weft_schedule_post(b, 0, 2);
    }
}

static const weft_algorithm_t odd = {WEFT_ALGO_ABI_VERSION,
                                     WEFT_COLLECTIVE_ALL_REDUCE,
                                     "odd",
                                     "rank 1 has the last word",
                                     two_ranks,
                                     odd_resources,
                                     odd_build};

static void test_put_to_a_repeatable_output_is_caught(void **state)
{
    (void)state;
    fixture_t f = {.params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 2}};
    f.links.memory_of = apart;
    assert_int_equal(wefti_schedules_build(&odd, &f.params, NULL, &f.schedules), WEFT_OK);
    assert_int_equal(wefti_schedules_lower(&f.params, &f.links, NULL, f.schedules), WEFT_OK);
    if (wefti_schedules_verify(&f.params, f.schedules, &f.links, NULL, NULL) < 0) {
        fail_msg("%s", weft_last_error());
    }
    wefti_step_t *reduce = find(&f, 0, WEFTI_DO_REDUCE, 0);
    assert_int_equal(reduce->flags & WEFTI_STEP_REPEATABLE, 0); /* lowering saw the put */
    assert_true(find(&f, 1, WEFTI_DO_REDUCE, 0)->flags & WEFTI_STEP_REPEATABLE);
    reduce->flags |= WEFTI_STEP_REPEATABLE;
    expect(&f, "rank 1", "put into the output of a reduction that may be repeated");
}

static void test_barrier_that_lets_through_is_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_BARRIER, "dissemination", false);
    drop(find(&f, 3, WEFTI_DO_WAIT, 1));
    expect(&f, "rank 3", "leaves the barrier before it knows that rank ");
}

static void test_different_resources_are_caught(void **state)
{
    (void)state;
    fixture_t f = begin(WEFT_COLLECTIVE_ALL_GATHER, "ring", false);
    f.schedules[4].resources.phases++;
    expect(&f, "ranks 4 and 0", "request different resources");
}

/* Whatever moves data is needed: leaving any such step out is caught, on every algorithm. */
static void test_no_move_can_be_left_out(void **state)
{
    (void)state;
    uint32_t tried = 0;
    const weft_algorithm_t *algorithm;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        for (int put = 0; put < 2; put++) {
            fixture_t f = begin(algorithm->op, algorithm->name, put);
            for (uint32_t rank = 0; rank < f.params.group_size; rank++) {
                for (size_t s = 0; s < f.schedules[rank].step_count; s++) {
                    wefti_step_t *step = &f.schedules[rank].steps[s];
                    wefti_step_t kept = *step;
                    if (kept.op < WEFTI_DO_COPY || kept.op > WEFTI_DO_PUT) {
                        continue;
                    }
                    drop(step);
                    if (wefti_schedules_verify(&f.params, f.schedules, &f.links, NULL, NULL) >= 0) {
                        fail_msg("%s %s: rank %u needs no step %zu",
                                 weft_collective_name(algorithm->op), algorithm->name, rank, s);
                    }
                    *step = kept;
                    tried++;
                }
            }
            wefti_schedules_free(NULL, f.schedules, f.params.group_size);
        }
    }
    assert_true(tried > 2000);
}

static void bad_lane(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    (void)params;
    weft_schedule_post(b, 1, 1);
}

static void bad_phase(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    (void)params;
    weft_schedule_post(b, 0, 3);
}

static void bad_rank(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    weft_schedule_wait(b, 0, 1, params->group_size, 0, 1, 0);
}

static void bad_place(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    weft_place_t place = {params->group_size, 1, WEFT_ALGO_BUFFER_SEND, 0, 1};
    weft_schedule_copy(b, 0, place, place, (weft_blocks_t){0, 1, 1});
}

static void test_authors_are_told_what_is_wrong(void **state)
{
    (void)state;
    const struct {
        void (*build)(const weft_algo_params_t *params, weft_schedule_builder_t *b);
        const char *text;
    } rows[] = {{bad_lane, "lane is out of range"},
                {bad_phase, "post: phase is out of range"},
                {bad_rank, "wait: rank is outside the group"},
                {bad_place, "data movement: rank is outside the group"}};
    weft_algo_params_t params = {.op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 2};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_algorithm_t algorithm = odd;
        wefti_schedule_t *schedules;
        algorithm.build = rows[i].build;
        assert_int_equal(wefti_schedules_build(&algorithm, &params, NULL, &schedules),
                         WEFT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_last_error(), rows[i].text));
        assert_non_null(strstr(weft_last_error(), "AllReduce odd"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_data_is_caught),
        cmocka_unit_test(test_wrong_reduction_order_is_caught),
        cmocka_unit_test(test_rounding_too_early_or_twice_is_caught),
        cmocka_unit_test(test_races_are_caught),
        cmocka_unit_test(test_waiting_for_ever_is_caught),
        cmocka_unit_test(test_accesses_outside_are_caught),
        cmocka_unit_test(test_links_are_respected),
        cmocka_unit_test(test_puts_that_may_not_have_landed_are_caught),
        cmocka_unit_test(test_put_to_a_repeatable_output_is_caught),
        cmocka_unit_test(test_barrier_that_lets_through_is_caught),
        cmocka_unit_test(test_different_resources_are_caught),
        cmocka_unit_test(test_no_move_can_be_left_out),
        cmocka_unit_test(test_authors_are_told_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
