/* SPDX-License-Identifier: Apache-2.0 */
/* Proofs by symmetry say no more than running all ranks does, and refuse what is wrong. */
#include <stdio.h>
#include <string.h>

#include <weft/status.h>

#include "ops/algo/algorithms.h"
#include "ops/algo/sweep.h"
#include "ops/algo/symmetry.h"
#include "tests/support/support.h"

#ifndef MUTANTS
#define MUTANTS 300u /* of each algorithm */
#endif

static weft_status_t prove(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    uint64_t steps = 0, accesses = 0;
    return wefti_symmetry_prove(algorithm, params, NULL, 0, &steps, &accesses);
}

static weft_status_t run_all_ranks(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params)
{
    wefti_schedule_t *schedules;
    weft_status_t status = wefti_schedules_build(algorithm, params, NULL, &schedules);
    status = status >= 0 ? wefti_schedules_verify(params, schedules, NULL, NULL, NULL) : status;
    if (schedules != NULL) {
        wefti_schedules_free(NULL, schedules, params->group_size);
    }
    return status;
}

static bool is_proved(weft_collective_t op, const char *name, uint32_t ranks, weft_order_t order)
{
    weft_algo_params_t params = {
        .struct_size = sizeof params, .op = op, .group_size = ranks, .order = order};
    const weft_algorithm_t *algorithm = wefti_algorithm_find(op, name);
    assert_non_null(algorithm);
    weft_status_t status = prove(algorithm, &params);
    assert_true(status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED);
    return status == WEFT_OK;
}

static void test_what_is_symmetric_is_proved(void **state)
{
    (void)state;
    static const struct {
        weft_collective_t op;
        const char *name;
        weft_order_t order;
        bool power_of_two;
    } cases[] = {
        {WEFT_COLLECTIVE_ALL_REDUCE, "ring", WEFT_ORDER_ANY, false},
        {WEFT_COLLECTIVE_REDUCE_SCATTER, "ring", WEFT_ORDER_ANY, false},
        {WEFT_COLLECTIVE_REDUCE_SCATTER_V, "ring", WEFT_ORDER_ANY, false},
        {WEFT_COLLECTIVE_ALL_GATHER, "ring", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_ALL_GATHER_V, "ring", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_ALL_GATHER, "bruck", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_ALL_TO_ALL, "bruck", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_ALL_GATHER, "log-step", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_REDUCE_SCATTER, "log-step", WEFT_ORDER_ANY, false},
        {WEFT_COLLECTIVE_ALL_TO_ALL, "pairwise", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_ALL_TO_ALL_V, "pairwise", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_BARRIER, "dissemination", WEFT_ORDER_TREE, false},
        {WEFT_COLLECTIVE_ALL_REDUCE, "doubling", WEFT_ORDER_TREE, true},
        {WEFT_COLLECTIVE_ALL_REDUCE, "doubling", WEFT_ORDER_ANY, true},
        {WEFT_COLLECTIVE_ALL_REDUCE, "mesh", WEFT_ORDER_TREE, true},
        {WEFT_COLLECTIVE_REDUCE_SCATTER, "mesh", WEFT_ORDER_TREE, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint32_t n = 2; n <= 33; n++) {
            bool expected = !cases[i].power_of_two || (n & (n - 1)) == 0;
            if (is_proved(cases[i].op, cases[i].name, n, cases[i].order) != expected) {
                fail_msg("%s %s of %u ranks: %s", weft_collective_name(cases[i].op), cases[i].name,
                         n, weft_last_error());
            }
        }
    }
    assert_false(is_proved(WEFT_COLLECTIVE_BROADCAST, "binomial", 8, WEFT_ORDER_TREE));
}

/* Every algorithm, order and place: a proof by symmetry is never more than one of all ranks. */
static void test_proofs_agree_with_those_of_all_ranks(void **state)
{
    (void)state;
    const weft_algorithm_t *algorithm;
    uint32_t proved = 0;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        for (uint32_t n = 2; n <= 9; n++) {
            for (uint32_t which = 0; which < 4; which++) {
                weft_algo_params_t params = {.struct_size = sizeof params,
                                             .op = algorithm->op,
                                             .group_size = n,
                                             .peer = 1,
                                             .order = which / 2 ? WEFT_ORDER_ANY : WEFT_ORDER_TREE,
                                             .in_place = which % 2};
                if (wefti_algo_params_check(&params) < 0 ||
                    wefti_algorithm_reason(algorithm, &params) != NULL ||
                    prove(algorithm, &params) < 0) {
                    continue;
                }
                assert_int_equal(run_all_ranks(algorithm, &params), WEFT_OK);
                proved++;
            }
        }
    }
    assert_true(proved > 200);
}

/* ---- what is wrong ---- */

typedef enum fault {
    NO_FAULT,
    NO_LAST_WAIT,    /* the next run overwrites what the neighbour reads */
    WAITS_TOO_EARLY, /* for a phase that is not posted before */
    WRONG_BLOCK,
    SKIPS_WAIT, /* reads before the neighbour has it */
    ONE_RANK,   /* differs: rank 3 copies in another order */
    FAULTS,
} fault_t;

static fault_t fault;

static const char *eligible(const weft_algo_params_t *params)
{
    (void)params;
    return NULL;
}

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = params->group_size;
}

/* An all-gather by a ring. */
static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size, r = params->rank, left = (r + n - 1) % n;
    weft_schedule_post(b, 0, 1);
    wefti_copy_own(params, b, wefti_one(r));
    for (uint32_t s = 1; s < n; s++) {
        uint32_t block = (r + n - s) % n;
        uint32_t from = fault == WRONG_BLOCK && s == 2 ? (block + 1) % n : block;
        weft_place_t to = wefti_at(r, WEFT_ALGO_BUFFER_RECV, block);
        if (fault != SKIPS_WAIT || s != 2) {
            wefti_wait(b, left, fault == WAITS_TOO_EARLY ? s + 1 : s);
        }
        weft_schedule_copy(
            b, 0, to, wefti_at(left, s == 1 ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV, from),
            wefti_one(block));
        if (fault == ONE_RANK && r == 3 && s == 1) {
            weft_schedule_copy(b, 0, to, wefti_at(left, WEFT_ALGO_BUFFER_SEND, block),
                               wefti_one(block));
        }
        weft_schedule_post(b, 0, s + 1);
    }
    if (fault != NO_LAST_WAIT) {
        wefti_wait(b, (r + 1) % n, n);
    }
}

static void test_faults_are_not_proved(void **state)
{
    (void)state;
    static const weft_algorithm_t ring = {WEFT_ALGO_ABI_VERSION,
                                          WEFT_COLLECTIVE_ALL_GATHER,
                                          "test",
                                          "test",
                                          eligible,
                                          resources,
                                          build};
    weft_algo_params_t params = {.struct_size = sizeof params, .op = ring.op, .group_size = 6};
    static const char *const messages[FAULTS] = {
        [NO_LAST_WAIT] = "a write is not ordered after earlier accesses",
        [WAITS_TOO_EARLY] = "every rank waits for phase 2 before it posts it",
        [WRONG_BLOCK] = "lengths differ",
        [SKIPS_WAIT] = "a read is not ordered after a write",
        [ONE_RANK] = "rank 3 is not the image of rank 0"};
    for (fault = NO_FAULT; fault < FAULTS; fault++) {
        assert_int_equal(prove(&ring, &params), fault == NO_FAULT ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
        if (fault != NO_FAULT && strstr(weft_last_error(), messages[fault]) == NULL) {
            fail_msg("fault %d: %s", (int)fault, weft_last_error());
        }
    }
}

/* An all-reduce that exchanges with the rank xor 1, 2, 4, but adds its own sum first. */
static void two_sums(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = wefti_log2_ceil(params->group_size) + 1;
    out->scratch_slots = out->phases;
    out->scratch_sets = 2;
}

static void add_own_first(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t r = params->rank, levels = wefti_log2_ceil(params->group_size);
    weft_place_t own = wefti_at(r, WEFT_ALGO_BUFFER_SEND, 0);
    weft_place_t sum = wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, 0);
    weft_schedule_reduce(b, 0, &sum, 1, &own, 1, wefti_one(0), 0);
    weft_schedule_post(b, 0, 1);
    for (uint32_t k = 0; k < levels; k++) {
        bool last = k + 1 == levels;
        const weft_place_t sources[] = {wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, k),
                                        wefti_at(r ^ 1u << k, WEFT_ALGO_BUFFER_SCRATCH, k)};
        sum = last ? wefti_at(r, WEFT_ALGO_BUFFER_RECV, 0)
                   : wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, k + 1);
        wefti_wait(b, r ^ 1u << k, k + 1);
        weft_schedule_reduce(b, 0, &sum, 1, sources, 2, wefti_one(0), last);
        weft_schedule_post(b, 0, k + 2);
    }
}

static void test_an_order_of_its_own_on_each_rank_is_not_proved(void **state)
{
    (void)state;
    static const weft_algorithm_t own_first = {
        WEFT_ALGO_ABI_VERSION, WEFT_COLLECTIVE_ALL_REDUCE, "test", "test", eligible, two_sums,
        add_own_first};
    weft_algo_params_t params = {.struct_size = sizeof params, .op = own_first.op, .group_size = 8};
    for (int order = WEFT_ORDER_TREE; order <= WEFT_ORDER_ANY; order += 2) {
        params.order = (weft_order_t)order;
        assert_int_equal(prove(&own_first, &params), WEFT_ERR_UNSUPPORTED);
        assert_int_equal(run_all_ranks(&own_first, &params), WEFT_ERR_INVALID_ARGUMENT);
    }
}

/* Parts that blocks of a vector do not have: images of them lie outside the buffers. */
static void parts_of_shards(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->blocks = params->group_size;
    out->phases = out->parts = 2;
}

static void add_parts(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size, r = params->rank;
    weft_schedule_post(b, 0, 1);
    wefti_wait_all(b, params, 1);
    for (uint32_t block = 0; block < n; block++) {
        uint32_t image = (block / 2 + r) % n * 2 + block % 2;
        weft_place_t sum = wefti_at(r, WEFT_ALGO_BUFFER_RECV, image), sources[4];
        for (uint32_t i = 0; i < n; i++) {
            sources[i] = wefti_at((r + i) % n, WEFT_ALGO_BUFFER_SEND, image);
        }
        weft_schedule_reduce(b, 0, &sum, 1, sources, n, wefti_one(image), 1);
    }
    weft_schedule_post(b, 0, 2);
    wefti_wait_all(b, params, 2);
}

static void test_parts_of_shards_are_not_proved(void **state)
{
    (void)state;
    static const weft_algorithm_t parts = {WEFT_ALGO_ABI_VERSION,
                                           WEFT_COLLECTIVE_ALL_REDUCE,
                                           "test",
                                           "test",
                                           eligible,
                                           parts_of_shards,
                                           add_parts};
    weft_algo_params_t params = {
        .struct_size = sizeof params, .op = parts.op, .group_size = 4, .order = WEFT_ORDER_ANY};
    assert_int_equal(prove(&parts, &params), WEFT_ERR_UNSUPPORTED);
    assert_string_equal(weft_last_error(), "it has parts of shards of a vector");
    assert_int_equal(run_all_ranks(&parts, &params), WEFT_ERR_INVALID_ARGUMENT);
}

/* ---- mutants ---- */

typedef enum change {
    DROP_STEP,
    SWAP_STEPS,
    OTHER_PHASE,
    OTHER_RUN,
    OTHER_RANK, /* turned or mirrored by so much */
    OTHER_BLOCK,
    OTHER_NAME,
    FEWER_BLOCKS,
    OTHER_FLAGS,
    SWAP_OPERANDS,
    CHANGES,
} change_t;

static struct {
    const weft_algorithm_t *inner;
    change_t change;
    uint32_t step, operand, by;
    bool mirrored, moves_blocks;
    uint32_t only; /* rank; RANKS_ALL: all */
} mutant;

#define RANKS_ALL UINT32_MAX

static uint32_t moved_rank(const weft_algo_params_t *params, uint32_t rank)
{
    uint32_t n = params->group_size, other = rank ^ mutant.by;
    return mutant.mirrored ? (other < n ? other : rank) : (rank + mutant.by) % n;
}

static uint32_t moved_block(const weft_algo_params_t *params, uint32_t block)
{
    return mutant.moves_blocks ? moved_rank(params, block % params->group_size) : block + mutant.by;
}

static void change_move(const weft_algo_params_t *params, wefti_schedule_t *schedule,
                        wefti_step_t *step)
{
    uint32_t count = step->move.source_count + (uint32_t)step->move.destination_count;
    wefti_operand_t *operands = &schedule->operands[step->move.operand];
    wefti_operand_t *at = &operands[mutant.operand % count], kept = *at;
    switch (mutant.change) {
    case OTHER_RANK:
        at->rank = at->rank_count == 1 ? moved_rank(params, at->rank) : at->rank;
        break;
    case OTHER_BLOCK:
        at->block =
            at->buffer == WEFTI_SCRATCH ? at->block ^ mutant.by : moved_block(params, at->block);
        break;
    case OTHER_NAME:
        step->move.first = moved_block(params, step->move.first);
        break;
    case FEWER_BLOCKS:
        step->move.count -= step->move.count > 1;
        break;
    case OTHER_FLAGS:
        step->flags ^= WEFTI_STEP_FINISH;
        break;
    case SWAP_OPERANDS:
        *at = operands[0];
        operands[0] = kept;
        break;
    default:
        break;
    }
}

static void change_step(const weft_algo_params_t *params, wefti_schedule_t *schedule)
{
    size_t k = mutant.step % schedule->step_count, left = schedule->step_count - k - 1;
    wefti_step_t *step = &schedule->steps[k], kept = *step;
    if (mutant.change == DROP_STEP) {
        memmove(step, step + 1, left * sizeof *step);
        schedule->step_count--;
    } else if (mutant.change == SWAP_STEPS && left > 0) {
        *step = step[1];
        step[1] = kept;
    } else if (step->op == WEFTI_DO_WAIT && mutant.change == OTHER_PHASE) {
        step->wait.phase -= step->wait.phase > 1;
    } else if (step->op == WEFTI_DO_WAIT && mutant.change == OTHER_RUN) {
        step->wait.back++;
    } else if (step->op == WEFTI_DO_WAIT && mutant.change == OTHER_RANK) {
        step->wait.first_rank = step->wait.rank_count == 1
                                    ? moved_rank(params, step->wait.first_rank)
                                    : step->wait.first_rank;
    } else if (step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE) {
        change_move(params, schedule, step);
    }
}

static void mutant_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    mutant.inner->resources(params, out);
}

static void build_mutant(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    mutant.inner->build(params, b);
    if (b->schedule->step_count > 0 && (mutant.only == RANKS_ALL || mutant.only == params->rank)) {
        change_step(params, b->schedule);
    }
}

/* One step changed on all ranks alike, or on one: what is proved is correct. */
static void test_mutants_that_are_proved_are_correct(void **state)
{
    (void)state;
    const weft_algorithm_t *algorithm;
    uint64_t seed = 20261128;
    uint32_t proved = 0, refused = 0;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        weft_algorithm_t own = *algorithm;
        own.eligible = eligible;
        own.resources = mutant_resources;
        own.build = build_mutant;
        for (uint32_t tries = 0; tries < MUTANTS; tries++) {
            uint64_t chance = test_next_random(&seed) >> 8;
            weft_algo_params_t params = {.struct_size = sizeof params,
                                         .op = algorithm->op,
                                         .group_size = 2 + chance % 8,
                                         .peer = 1,
                                         .order =
                                             chance >> 3 & 1 ? WEFT_ORDER_ANY : WEFT_ORDER_TREE,
                                         .in_place = chance >> 4 & 1};
            if (wefti_collective_rooted(params.op) || wefti_algo_params_check(&params) < 0 ||
                wefti_algorithm_reason(algorithm, &params) != NULL) {
                continue;
            }
            mutant.inner = algorithm;
            mutant.change = (change_t)((chance >> 5) % CHANGES);
            mutant.step = chance >> 10 & 31;
            mutant.operand = chance >> 15 & 3;
            mutant.by = 1 + (chance >> 17) % 3;
            mutant.mirrored = chance >> 20 & 1;
            mutant.moves_blocks = (chance >> 21 & 3) != 0;
            mutant.only = chance >> 23 & 3 ? RANKS_ALL : (chance >> 25) % params.group_size;
            if (prove(&own, &params) < 0) {
                refused++;
            } else if (run_all_ranks(&own, &params) < 0) {
                fail_msg("%s %s of %u ranks, change %d of step %u: proved, but %s",
                         weft_collective_name(params.op), algorithm->name, params.group_size,
                         (int)mutant.change, mutant.step, weft_last_error());
            } else {
                proved++;
            }
        }
    }
    print_message("mutants: %u proved, %u refused\n", proved, refused);
    assert_true(proved > 50 && refused > 50);
}

/* Large groups are proved by symmetry or counted as left out. */
static void test_large_groups_are_proved_or_left_out(void **state)
{
    (void)state;
    wefti_sweep_t sweep = {.op = WEFT_COLLECTIVE_ALL_GATHER, .algorithm = "bruck", .cell_limit = 1};
    assert_int_equal(wefti_sweep_size(&sweep, 5000), WEFT_OK);
    assert_int_equal(sweep.proved, 2);
    assert_int_equal(sweep.by_symmetry, 2);
    assert_int_equal(sweep.left_out, 0);
    sweep =
        (wefti_sweep_t){.op = WEFT_COLLECTIVE_BROADCAST, .algorithm = "binomial", .cell_limit = 1};
    assert_int_equal(wefti_sweep_size(&sweep, 5000), WEFT_OK);
    assert_int_equal(sweep.proved, 0);
    assert_true(sweep.left_out > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_symmetric_is_proved),
        cmocka_unit_test(test_proofs_agree_with_those_of_all_ranks),
        cmocka_unit_test(test_faults_are_not_proved),
        cmocka_unit_test(test_an_order_of_its_own_on_each_rank_is_not_proved),
        cmocka_unit_test(test_parts_of_shards_are_not_proved),
        cmocka_unit_test(test_mutants_that_are_proved_are_correct),
        cmocka_unit_test(test_large_groups_are_proved_or_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
