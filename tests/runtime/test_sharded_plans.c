/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans whose ranks update their own shard only: by reduce-scatter and all-gather, with the gather
 * left for the next step, and in one sweep. All of them train to the bits that are computed
 * directly, over everything that ranks may be connected by; and what fails on one rank ends all.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"

#define MAX_WORLD 8u

static const support_mode_t modes[] = {SUPPORT_SHARDED, SUPPORT_DECOUPLED, SUPPORT_SWEEP};
static const char *const mode_names[] = {"whole", "sharded", "decoupled", "sweep"};
#define MODES (sizeof modes / sizeof modes[0])

static void check(const training_t *training, const outcome_t *outcomes)
{
    char expected[65];
    support_expect(training, expected);
    for (uint32_t r = 0; r < training->world; r++) {
        if (outcomes[r].status != WEFT_OK || strcmp(outcomes[r].digest, expected) != 0) {
            print_error("%s, %u ranks, %u buckets, %u streams, rank %u: %s\n",
                        mode_names[training->mode], training->world, training->buckets,
                        training->streams, r, outcomes[r].message);
        }
        assert_int_equal(outcomes[r].status, WEFT_OK);
        assert_string_equal(outcomes[r].digest, expected);
        assert_int_equal(outcomes[r].stats.fusion_copied_bytes, 0);
    }
}

static void train(const training_t *training)
{
    outcome_t outcomes[MAX_WORLD];
    support_run_threads(training, outcomes);
    check(training, outcomes);
}

static void test_the_verifier_takes_what_is_run_here(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (uint32_t world = 1; world <= MAX_WORLD; world++) {
            training_t training = {.world = world,
                                   .buckets = 1 + world % SUPPORT_PARAMS,
                                   .streams = world % 2,
                                   .mode = modes[m]};
            weft_plan_t *plan = NULL;
            assert_int_equal(support_plan(&training, false, &plan), WEFT_OK);
            if (wefti_plan_verify(plan, NULL) != WEFT_OK) {
                fail_msg("%s, %u ranks: %s", mode_names[modes[m]], world, weft_last_error());
            }
            weft_plan_release(plan);
        }
    }
}

static void test_shards_give_the_bits_of_whole_updates(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        for (size_t m = 0; m < MODES; m++) {
            for (uint32_t i = 0; i < 4; i++) {
                training_t training = {.world = worlds[w],
                                       .steps = 3,
                                       .buckets = i % 2 == 0 ? 1 + (uint32_t)w % 3 : 5,
                                       .streams = i == 3 ? 1 : 0,
                                       .mode = modes[m],
                                       .divisor = i == 1 ? 7 : 0,
                                       .reads = i == 2,
                                       .progress =
                                           i == 0 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD};
                train(&training);
            }
        }
    }
}

static void test_shards_between_processes(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (uint32_t world = 2; world <= 4; world++) {
            outcome_t outcomes[MAX_WORLD];
            training_t training = {.world = world,
                                   .steps = 4,
                                   .buckets = world,
                                   .mode = modes[m],
                                   .reads = world == 3,
                                   .progress =
                                       world == 2 ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_INLINE};
            support_run_processes(&training, outcomes);
            check(&training, outcomes);
        }
    }
}

/* The sweep becomes the two collectives that it is made of. */
static void test_shards_over_links_that_put(void **state)
{
    (void)state;
    static const uint32_t hosts[2][MAX_WORLD] = {{0, 1, 2, 3, 4}, {0, 0, 1, 1, 2}};
    for (size_t m = 0; m < MODES; m++) {
        for (uint32_t i = 0; i < 2; i++) {
            training_t training = {.world = 3 + 2 * i,
                                   .steps = 3,
                                   .buckets = 2,
                                   .mode = modes[m],
                                   .divisor = 4,
                                   .host_of = hosts[i],
                                   .progress =
                                       i == 0 ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_INLINE};
            train(&training);
        }
    }
}

static void test_shards_on_cards(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (uint32_t world = 1; world <= 3; world++) {
            training_t training = {.world = world,
                                   .steps = 3,
                                   .buckets = 2,
                                   .mode = modes[m],
                                   .divisor = 5,
                                   .reads = world == 2,
                                   .card = true};
            train(&training);
        }
    }
}

static void test_sessions_of_sharded_plans_follow_one_another(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        training_t training = {
            .world = 3, .steps = 2, .buckets = 2, .mode = modes[m], .repeats = 3};
        train(&training);
    }
}

static void test_a_kernel_that_fails_ends_all_ranks(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        outcome_t outcomes[MAX_WORLD];
        training_t training = {.world = 3,
                               .steps = 4,
                               .buckets = 2,
                               .mode = modes[m],
                               .bad_kernel_rank = 2,
                               .bad_step = 2,
                               .quiet = true};
        support_run_threads(&training, outcomes);
        for (uint32_t r = 0; r < training.world; r++) {
            assert_true(outcomes[r].status < 0);
            assert_non_null(strstr(outcomes[r].message, "x[0] is not a number"));
            assert_true((int64_t)outcomes[r].after < 0);
        }
    }
}

static void test_a_rank_that_dies_ends_all_ranks(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        outcome_t outcomes[MAX_WORLD];
        training_t training = {.world = 3,
                               .steps = 4,
                               .buckets = 2,
                               .mode = modes[m],
                               .dead_rank = 3,
                               .bad_step = 1,
                               .quiet = true};
        support_run_processes(&training, outcomes);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_PEER_DIED);
            assert_true(outcomes[r].late_ms < 300000);
        }
    }
}

static void test_a_missing_update_is_named(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        outcome_t outcomes[MAX_WORLD];
        training_t training = {.world = 2,
                               .steps = 1,
                               .buckets = 1,
                               .mode = modes[m],
                               .no_kernel_rank = 1,
                               .quiet = true};
        support_run_threads(&training, outcomes);
        assert_int_equal(outcomes[0].status, WEFT_ERR_NOT_FOUND);
        assert_non_null(strstr(outcomes[0].message, "Update"));
        assert_true(outcomes[1].status < 0);
    }
}

static void test_another_algorithm_than_the_sweeps_is_refused(void **state)
{
    (void)state;
    outcome_t outcomes[MAX_WORLD];
    training_t training = {
        .world = 2, .steps = 1, .buckets = 1, .mode = SUPPORT_SWEEP, .quiet = true};
    setenv("WEFT_ALGO", "AllReduce=doubling", 1);
    support_run_threads(&training, outcomes);
    unsetenv("WEFT_ALGO");
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(outcomes[r].message, "only algorithm mesh supports a fused update"));
    }
}

typedef struct broken {
    weft_plan_t *plan;
    weft_registry_t *registry;
    const char *what;
} broken_t;

static void refuse(rank_world_t *world)
{
    const broken_t *broken = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = broken->plan;
    params.registry = broken->registry;
    RANK_CHECK(weft_session_create(&params, &session) == WEFT_ERR_FORMAT);
    RANK_CHECK(strstr(weft_last_error(), broken->what) != NULL);
}

/* The verifier would find these; a plan that was made by hand may not have been verified. */
static void test_updates_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        broken_t broken = {0};
        training_t training = {.world = 2, .buckets = 1, .mode = SUPPORT_SWEEP};
        assert_int_equal(support_plan(&training, false, &broken.plan), WEFT_OK);
        assert_int_equal(support_registry(true, &broken.registry), WEFT_OK);
        wefti_plan_collective_t *bucket = &broken.plan->collectives[1];
        uint32_t *inputs = broken.plan->kernels[bucket->update].inputs;
        if (i == 0) { /* never sees the gradients */
            inputs[1] = inputs[0];
            broken.what = "does not read the gradients and write the parameters";
        } else if (i == 1) { /* of everybody, not of a shard */
            inputs[1] = bucket->source;
            broken.what = "does not have the length of a shard";
        } else {
            bucket->elem_count--;
            broken.what = "with equal shards";
        }
        support_rank_threads(2, refuse, &broken);
        weft_registry_destroy(broken.registry);
        weft_plan_release(broken.plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_verifier_takes_what_is_run_here),
        cmocka_unit_test(test_shards_give_the_bits_of_whole_updates),
        cmocka_unit_test(test_shards_between_processes),
        cmocka_unit_test(test_shards_over_links_that_put),
        cmocka_unit_test(test_shards_on_cards),
        cmocka_unit_test(test_sessions_of_sharded_plans_follow_one_another),
        cmocka_unit_test(test_a_kernel_that_fails_ends_all_ranks),
        cmocka_unit_test(test_a_rank_that_dies_ends_all_ranks),
        cmocka_unit_test(test_a_missing_update_is_named),
        cmocka_unit_test(test_another_algorithm_than_the_sweeps_is_refused),
        cmocka_unit_test(test_updates_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
