/* SPDX-License-Identifier: Apache-2.0 */
/* WEFT_CHECK=results in plans: a result that one rank got wrong is found at the end of the step. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ops/reduce/reduce.h"
#include "support.h"

static _Atomic uint32_t reductions;
#define PER_STEP 6u        /* reductions: one per bucket and rank */
static uint32_t damaged;   /* the first one whose result differs between ranks; 0: none */
static bool damages_parts; /* reductions with one result, but for those of the check itself */
#define CHECK_STRIDE 64u   /* between the copies that the check reduces */

/* Linked in place of the library's function (--wrap). */
weft_status_t __real_wefti_reduce(const weft_reduce_t *args, weft_isa_t isa);
weft_status_t __wrap_wefti_reduce(const weft_reduce_t *args, weft_isa_t isa);
weft_status_t __wrap_wefti_reduce(const weft_reduce_t *args, weft_isa_t isa)
{
    weft_status_t status = __real_wefti_reduce(args, isa);
    if (args->destination_count > 1) {
        uint32_t number = atomic_fetch_add(&reductions, 1) + 1;
        if (damaged != 0 && number >= damaged && (number - damaged) % PER_STEP == 0) {
            *(uint8_t *)args->destinations[1] ^= 1;
        }
    }
    bool by_check = args->source_count > 1 &&
                    (uintptr_t)args->sources[1] - (uintptr_t)args->sources[0] == CHECK_STRIDE;
    if (damages_parts && args->destination_count == 1 && !by_check) {
        for (uint64_t i = 0; i < args->elem_count; i++) {
            ((uint8_t *)args->destinations[0])[4 * i] ^= 1;
        }
    }
    return status;
}

static void train(const training_t *training, outcome_t *outcomes)
{
    atomic_store(&reductions, 0);
    memset(outcomes, 0, training->world * sizeof *outcomes);
    support_run_threads(training, outcomes);
}

static void test_plan_check_finds_nothing_where_nothing_is(void **state)
{
    static const support_mode_t modes[] = {SUPPORT_WHOLE, SUPPORT_SHARDED, SUPPORT_DECOUPLED,
                                           SUPPORT_SWEEP};
    static const char *const checks[] = {"results", "results:3"};
    outcome_t outcomes[3];
    (void)state;
    damaged = 0;
    for (uint32_t i = 0; i < 8; i++) {
        const training_t training = {.world = 3, .steps = 5, .buckets = 2, .mode = modes[i / 2]};
        char digest[65];
        setenv("WEFT_CHECK", checks[i % 2], 1);
        support_expect(&training, digest);
        train(&training, outcomes);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(outcomes[r].status, WEFT_OK);
            assert_string_equal(outcomes[r].digest, digest);
        }
    }
    unsetenv("WEFT_CHECK");
}

static void test_plan_check_names_the_collective(void **state)
{
    const training_t training = {
        .world = 3, .steps = 6, .buckets = 2, .mode = SUPPORT_WHOLE, .quiet = true};
    outcome_t outcomes[3];
    (void)state;
    damaged = PER_STEP + 2;
    for (int check = 0; check < 3; check++) {
        setenv("WEFT_CHECK", check == 0 ? "results" : check == 1 ? "results:2" : "off", 1);
        train(&training, outcomes);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(outcomes[r].status, check < 2 ? WEFT_ERR_MISMATCH : WEFT_OK);
            assert_true(check == 2 ||
                        strstr(outcomes[r].message, "results of ranks 0 and") != NULL);
            assert_true(check == 2 || strstr(outcomes[r].message, "collective \"") != NULL);
        }
    }
    unsetenv("WEFT_CHECK");
}

/* Each rank has a part of a reduction, which the windows of all ranks are compared with. */
static void test_plan_check_finds_wrong_parts(void **state)
{
    const training_t training = {
        .world = 3, .steps = 2, .buckets = 2, .mode = SUPPORT_SHARDED, .quiet = true};
    outcome_t outcomes[3];
    (void)state;
    damaged = 0;
    damages_parts = true;
    for (int check = 0; check < 2; check++) {
        setenv("WEFT_CHECK", check == 0 ? "results" : "off", 1);
        train(&training, outcomes);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(outcomes[r].status, check == 0 ? WEFT_ERR_MISMATCH : WEFT_OK);
            assert_true(check == 1 ||
                        strstr(outcomes[r].message, "of rank 0's result is not the reduction of "
                                                    "what ranks sent in collective \"") != NULL);
        }
    }
    damages_parts = false;
    unsetenv("WEFT_CHECK");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_check_finds_nothing_where_nothing_is),
        cmocka_unit_test(test_plan_check_names_the_collective),
        cmocka_unit_test(test_plan_check_finds_wrong_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
