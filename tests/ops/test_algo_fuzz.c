/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Authors who emit nonsense: random steps, and good algorithms with a few steps changed. Whatever
 * it is, verifying, predicting and resolving end, with a message where something is wrong; and what
 * is proved does only what its buffers have room for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cost/cost.h"
#include "support_emitter.h"
#include "tests/support/support.h"

#define CASES 3000

typedef struct tally {
    uint32_t proved, refused, ineligible;
} tally_t;

static void expect_verdict(weft_status_t status, tally_t *tally)
{
    assert_true(status == WEFT_OK || status == WEFT_ERR_INVALID_ARGUMENT ||
                status == WEFT_ERR_UNSUPPORTED);
    assert_true(status == WEFT_OK || weft_last_error()[0] != '\0');
    tally->proved += status == WEFT_OK;
    tally->refused += status == WEFT_ERR_INVALID_ARGUMENT;
    tally->ineligible += status == WEFT_ERR_UNSUPPORTED;
}

static void predict_and_resolve(const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                                uint64_t elems)
{
    wefti_costs_t costs;
    wefti_counts_t counts = {.elem_count = elems, .elem_bytes = 4};
    double ns = -1;
    uint64_t lengths[EMITTER_MAX_RANKS * EMITTER_MAX_RANKS];
    for (uint32_t i = 0; i < EMITTER_MAX_RANKS * EMITTER_MAX_RANKS; i++) {
        lengths[i] = elems % (i + 2);
    }
    counts.counts = lengths;
    wefti_costs_default(&costs, NULL);
    weft_status_t status = wefti_cost_predict(&costs, algorithm, params, &counts, &ns);
    assert_true(status != WEFT_OK || ns >= 0);
    wefti_costs_deinit(&costs);
}

static void run_kind(emitter_kind_t kind, uint64_t first_seed, tally_t *tally)
{
    for (uint32_t i = 0; i < CASES; i++) {
        emitter_t emitter;
        weft_algorithm_t algorithm;
        weft_algo_params_t params;
        emitter_init(&emitter, kind, first_seed + i, &algorithm, &params);
        emitter_use(&emitter);
        expect_verdict(weft_algorithm_verify(&algorithm, &params), tally);
        predict_and_resolve(&algorithm, &params, i % 5 * 77);
    }
}

static void test_algo_fuzz_random_steps(void **state)
{
    (void)state;
    tally_t tally = {0};
    uint64_t seed = 1234567;
    printf("seed %llu\n", (unsigned long long)seed);
    run_kind(EMITTER_RANDOM, seed, &tally);
    printf("random: %u proved, %u refused, %u not eligible\n", tally.proved, tally.refused,
           tally.ineligible);
    assert_true(tally.refused > CASES / 2);
}

static void test_algo_fuzz_mutants(void **state)
{
    (void)state;
    tally_t tally = {0};
    uint64_t seed = 7654321;
    printf("seed %llu\n", (unsigned long long)seed);
    run_kind(EMITTER_MUTANT, seed, &tally);
    printf("mutants: %u proved, %u refused, %u not eligible\n", tally.proved, tally.refused,
           tally.ineligible);
    /* Some changes are harmless, most are not. */
    assert_true(tally.proved > 20 && tally.refused > CASES / 2);
}

/* Says something else at every call: ranks do not even agree on lanes. */
static void test_algo_fuzz_impure(void **state)
{
    (void)state;
    tally_t tally = {0};
    run_kind(EMITTER_IMPURE, 424242, &tally);
    assert_int_equal(tally.proved + tally.refused + tally.ineligible, CASES);
}

/* Without end: limits stop it. */
static void test_algo_fuzz_too_much(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < EMITTER_EXCESSES; which++) {
        emitter_t emitter;
        weft_algorithm_t algorithm;
        weft_algo_params_t params;
        emitter_init(&emitter, EMITTER_EXCESS, which, &algorithm, &params);
        emitter_use(&emitter);
        weft_status_t status = weft_algorithm_verify(&algorithm, &params);
        if (status != WEFT_ERR_INVALID_ARGUMENT && status != WEFT_ERR_UNSUPPORTED) {
            fail_msg("excess %u: %d", which, (int)status);
        }
        predict_and_resolve(&algorithm, &params, 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_algo_fuzz_random_steps),
        cmocka_unit_test(test_algo_fuzz_mutants),
        cmocka_unit_test(test_algo_fuzz_impure),
        cmocka_unit_test(test_algo_fuzz_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
