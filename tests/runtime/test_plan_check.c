/* SPDX-License-Identifier: Apache-2.0 */
/* WEFT_CHECK=results in plans: a result that one rank got wrong is found at the end of the step. */
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support_damage.h"

static const support_mode_t modes[] = {SUPPORT_WHOLE, SUPPORT_SHARDED, SUPPORT_DECOUPLED,
                                       SUPPORT_SWEEP};

static void train(const training_t *training, outcome_t *outcomes)
{
    memset(outcomes, 0, training->world * sizeof *outcomes);
    support_run_threads(training, outcomes);
}

static void test_plan_check_finds_nothing_where_nothing_is(void **state)
{
    static const char *const checks[] = {"results", "results:3"};
    outcome_t outcomes[3];
    (void)state;
    damaged = UINT32_MAX;
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
    static const char *const checks[] = {"results", "results:2", "off"};
    outcome_t outcomes[3];
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        const training_t training = {
            .world = 3, .steps = 6, .buckets = 2, .mode = modes[i / 3], .quiet = true};
        damaged = 1;
        damaged_run = 2;
        setenv("WEFT_CHECK", checks[i % 3], 1);
        train(&training, outcomes);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(outcomes[r].status, i % 3 < 2 ? WEFT_ERR_MISMATCH : WEFT_OK);
            assert_true(i % 3 == 2 || strstr(outcomes[r].message, "in collective \"") != NULL);
        }
    }
    damaged = UINT32_MAX;
    unsetenv("WEFT_CHECK");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_check_finds_nothing_where_nothing_is),
        cmocka_unit_test(test_plan_check_names_the_collective),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
