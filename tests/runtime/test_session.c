/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_trained(const training_t *training, const outcome_t *outcomes)
{
    char digest[65];
    support_expect(training, digest);
    for (uint32_t r = 0; r < training->world; r++) {
        if (outcomes[r].status != WEFT_OK) {
            print_error("world %u rank %u: %s\n", training->world, r, outcomes[r].message);
        }
        assert_int_equal(outcomes[r].status, WEFT_OK);
        assert_string_equal(outcomes[r].digest, digest);
        assert_int_equal(outcomes[r].stats.steps, training->steps);
        assert_int_equal(outcomes[r].stats.fusion_copied_bytes, 0);
        assert_int_equal(outcomes[r].stats.scratch_bytes, 128);
    }
}

static void test_session_trains_to_the_computed_bits(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 8};
    outcome_t outcomes[8];
    (void)state;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        for (int progress = WEFT_PROGRESS_INLINE; progress <= WEFT_PROGRESS_THREAD; progress++) {
            training_t training = {.world = worlds[i],
                                   .steps = 6,
                                   .buckets = 1 + (uint32_t)i % SUPPORT_PARAMS,
                                   .progress = (weft_progress_t)progress};
            support_run_threads(&training, outcomes);
            expect_trained(&training, outcomes);
            bool one = worlds[i] == 1;
            assert_int_equal(outcomes[0].stats.inline_progress, progress == WEFT_PROGRESS_INLINE);
            assert_true(one || outcomes[0].stats.comm_ms_p50 > 0);
            assert_true(outcomes[0].stats.step_ms_p50 >= outcomes[0].stats.compute_ms_p50);
        }
    }
}

static void test_session_bits_do_not_depend_on_buckets_streams_and_isa(void **state)
{
    outcome_t outcomes[3];
    (void)state;
    for (uint32_t buckets = 1; buckets <= SUPPORT_PARAMS; buckets++) {
        training_t training = {.world = 3,
                               .steps = 4,
                               .buckets = buckets,
                               .streams = buckets % 2 ? 1 : 2,
                               .isa = (int)buckets % 4 - 1,
                               .progress = WEFT_PROGRESS_AUTO};
        support_run_threads(&training, outcomes);
        expect_trained(&training, outcomes);
    }
}

static void test_session_trains_over_shared_memory(void **state)
{
    outcome_t outcomes[4];
    (void)state;
    for (int progress = WEFT_PROGRESS_INLINE; progress <= WEFT_PROGRESS_THREAD; progress++) {
        training_t training = {.world = progress == WEFT_PROGRESS_INLINE ? 2 : 4,
                               .steps = 20,
                               .buckets = 3,
                               .progress = (weft_progress_t)progress};
        support_run_processes(&training, outcomes);
        expect_trained(&training, outcomes);
    }
}

static void test_session_trains_on_the_fake_card(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3};
    outcome_t outcomes[3];
    (void)state;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        training_t training = {.world = worlds[i], .steps = 4, .buckets = 2, .card = true};
        support_run_threads(&training, outcomes);
        expect_trained(&training, outcomes);
    }
}

static void test_session_after_session_starts_afresh(void **state)
{
    outcome_t outcomes[3];
    (void)state;
    for (int card = 0; card < 2; card++) {
        training_t training = {.world = 3,
                               .steps = 3,
                               .buckets = 2,
                               .repeats = 4,
                               .progress = card ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD,
                               .card = card == 1};
        support_run_threads(&training, outcomes);
        expect_trained(&training, outcomes);
    }
}

typedef struct lines {
    int stopped, history, failed;
} lines_t;

static void count_lines(void *user, weft_log_level_t level, const char *line)
{
    lines_t *lines = user;
    lines->stopped += level == WEFT_LOG_LEVEL_WARN && strstr(line, "stopped at gradient 0") != NULL;
    lines->history += level == WEFT_LOG_LEVEL_DEBUG && strstr(line, "run 4 kernel loss 0") != NULL;
    lines->failed += level == WEFT_LOG_LEVEL_INFO && strstr(line, "not a number") != NULL;
}

static void test_session_failure_prints_the_last_records(void **state)
{
    lines_t lines = {0, 0, 0};
    outcome_t outcome = {0};
    training_t training = {.world = 1, .steps = 3, .buckets = 1, .bad_kernel_rank = 1};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    (void)state;
    params.rank = 0;
    params.world_size = 1;
    params.log = count_lines;
    params.log_user = &lines;
    training.bad_step = 2;
    setenv("WEFT_LOG", "debug", 1);
    support_rank(&training, &params, &outcome);
    unsetenv("WEFT_LOG");
    assert_int_equal(outcome.status, WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(lines.stopped, 1);
    assert_int_equal(lines.failed, 1);
    /* run 1 is init, so run 4 is the third step, whose loss kernel ran before the gradient failed
     */
    assert_int_equal(lines.history, 1);
}

/* Everybody fails with the same status, and every message holds both words. */
static void expect_failed(const training_t *training, const outcome_t *outcomes,
                          weft_status_t status, const char *word, const char *other_word)
{
    for (uint32_t r = 0; r < training->world; r++) {
        if (outcomes[r].status == WEFT_IN_PROGRESS) {
            continue; /* died */
        }
        if (outcomes[r].status != status || strstr(outcomes[r].message, word) == NULL ||
            strstr(outcomes[r].message, other_word) == NULL) {
            print_error("rank %u: status %s: %s\n", r, weft_status_name(outcomes[r].status),
                        outcomes[r].message);
        }
        assert_int_equal(outcomes[r].status, status);
        assert_non_null(strstr(outcomes[r].message, word));
        assert_non_null(strstr(outcomes[r].message, other_word));
        assert_string_equal(outcomes[r].digest, "");
    }
}

static void test_session_refuses_different_plans(void **state)
{
    outcome_t outcomes[3];
    training_t training = {.world = 3, .steps = 1, .buckets = 1, .other_plan_rank = 2 + 1};
    (void)state;
    support_run_threads(&training, outcomes);
    expect_failed(&training, outcomes, WEFT_ERR_MISMATCH, "rank 0 has", "rank 2 has");
    assert_string_equal(outcomes[0].message, outcomes[2].message);
}

static void test_session_refuses_another_world(void **state)
{
    outcome_t outcomes[2];
    training_t training = {.world = 2, .steps = 1, .buckets = 1, .wrong_world = true};
    (void)state;
    support_run_threads(&training, outcomes);
    expect_failed(&training, outcomes, WEFT_ERR_INVALID_ARGUMENT, "compiled for 3 ranks",
                  "world size is 2");
}

static void test_session_names_a_missing_kernel(void **state)
{
    outcome_t outcomes[2];
    training_t training = {.world = 2, .steps = 1, .buckets = 1, .no_kernel_rank = 1 + 1};
    (void)state;
    support_run_threads(&training, outcomes);
    expect_failed(&training, outcomes, WEFT_ERR_NOT_FOUND, "test.Update", "update 0");
}

static void test_session_kernel_error_reaches_every_rank(void **state)
{
    outcome_t outcomes[3];
    (void)state;
    for (int progress = WEFT_PROGRESS_INLINE; progress <= WEFT_PROGRESS_THREAD; progress++) {
        for (int card = 0; card < 2; card++) {
            training_t training = {.world = 3,
                                   .steps = 5,
                                   .buckets = 2,
                                   .progress = (weft_progress_t)progress,
                                   .card = card == 1,
                                   .bad_kernel_rank = 1 + 1,
                                   .bad_step = 2,
                                   .quiet = true,
                                   .shrinks = true};
            support_run_threads(&training, outcomes);
            expect_failed(&training, outcomes, WEFT_ERR_INVALID_ARGUMENT, "not a number",
                          card ? "" : "rank 1: kernel \"gradient 0\"");
            for (uint32_t r = 0; r < 3; r++) {
                /* a rank that still polls its card for the end of the step before may lose that one
                 * too */
                assert_true(outcomes[r].stats.steps == 2 || (card && outcomes[r].stats.steps == 1));
                assert_true(outcomes[r].late_ms < 300000);
                /* and every later call says the same */
                assert_int_equal((int64_t)outcomes[r].after, WEFT_ERR_INVALID_ARGUMENT);
                assert_int_equal(outcomes[r].left, 3);
            }
        }
    }
}

static void test_session_killed_rank_is_named_in_time(void **state)
{
    outcome_t outcomes[3];
    (void)state;
    for (int progress = WEFT_PROGRESS_INLINE; progress <= WEFT_PROGRESS_THREAD; progress++) {
        training_t training = {.world = 3,
                               .steps = 5,
                               .buckets = 2,
                               .progress = (weft_progress_t)progress,
                               .dead_rank = 2 + 1,
                               .bad_step = 3,
                               .quiet = true};
        support_run_processes(&training, outcomes);
        expect_failed(&training, outcomes, WEFT_ERR_PEER_DIED, "rank 2", "");
        assert_int_equal(outcomes[2].status, WEFT_IN_PROGRESS);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(outcomes[r].late_ms < 300000);
            assert_int_equal((int64_t)outcomes[r].after, WEFT_ERR_PEER_DIED);
        }
    }
}

/* A session of a world of one, for the calls around steps. */
typedef struct alone {
    weft_context_t *context;
    weft_registry_t *registry;
    weft_plan_t *plan;
    weft_session_t *session;
} alone_t;

static void alone_open(alone_t *alone)
{
    training_t training = {.world = 1, .buckets = 2};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    assert_int_equal(weft_context_create(&params, &alone->context), WEFT_OK);
    assert_int_equal(support_registry(true, &alone->registry), WEFT_OK);
    assert_int_equal(support_plan(&training, false, &alone->plan), WEFT_OK);
    weft_session_params_t session = WEFT_SESSION_PARAMS_INIT;
    session.context = alone->context;
    session.plan = alone->plan;
    session.registry = alone->registry;
    assert_int_equal(weft_session_create(&session, &alone->session), WEFT_OK);
}

static void alone_close(alone_t *alone)
{
    weft_session_destroy(alone->session);
    weft_plan_release(alone->plan);
    weft_registry_destroy(alone->registry);
    weft_context_release(alone->context);
}

static void test_session_inputs_scalars_and_outputs(void **state)
{
    alone_t alone;
    void *memory = NULL;
    size_t bytes = 0;
    float loss = 0, x[SUPPORT_INPUTS] = {2, 3};
    weft_tensor_desc_t desc;
    (void)state;
    alone_open(&alone);
    weft_session_t *session = alone.session;
    assert_int_equal(weft_session_set_input(session, "y", x, sizeof(x)), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_last_error(), "\"y\""));
    assert_int_equal(weft_session_set_input(session, "x", x, 4), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_session_set_input(session, "x", x, sizeof(x)), WEFT_OK);
    assert_int_equal(weft_session_input_memory(session, "x", &memory, &bytes), WEFT_OK);
    assert_int_equal(bytes, sizeof(x));
    assert_memory_equal(memory, x, sizeof(x));
    assert_int_equal(weft_session_set_scalar(session, "momentum", 1), WEFT_ERR_NOT_FOUND);
    double value = -1;
    assert_int_equal(weft_session_get_scalar(session, "momentum", &value), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_session_set_scalar(session, "lr", 0.25), WEFT_OK);
    assert_int_equal(weft_session_get_scalar(session, "lr", &value), WEFT_OK);
    assert_true(value == 0.25);
    assert_int_equal(weft_session_set_scalar(session, "lr", 0), WEFT_OK);

    /* loss is sum(x) * w0[0] + step; w0[0] is -0.5 and does not move at a rate of 0 */
    for (int step = 1; step <= 3; step++) {
        assert_int_equal(weft_session_step(session), WEFT_OK);
        assert_int_equal(weft_session_get_output(session, "loss", &loss, sizeof(loss), &desc),
                         WEFT_OK);
        assert_true(loss == -2.5f + (float)step);
    }
    assert_int_equal(desc.rank, 0);
    assert_int_equal(desc.dtype, WEFT_DTYPE_F32);
    assert_int_equal(weft_session_get_output(session, "total", &loss, sizeof(loss), NULL), WEFT_OK);
    assert_int_equal(weft_session_get_output(session, "total", &loss, 3, NULL),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_session_get_output(session, "logits", &loss, 4, NULL),
                     WEFT_ERR_NOT_FOUND);
    ((float *)memory)[0] = 4;
    assert_int_equal(weft_session_eval(session), WEFT_OK);
    assert_int_equal(weft_session_get_output(session, "loss", &loss, sizeof(loss), NULL), WEFT_OK);
    assert_true(loss == -3.5f + 3);
    alone_close(&alone);
}

static void test_session_parameters(void **state)
{
    alone_t alone;
    const char *name = NULL;
    weft_tensor_desc_t desc;
    float w1[7];
    (void)state;
    alone_open(&alone);
    assert_int_equal(weft_session_param_count(alone.session), SUPPORT_PARAMS);
    assert_int_equal(weft_session_param_info(alone.session, 1, &name, &desc), WEFT_OK);
    assert_string_equal(name, "w1");
    assert_int_equal(desc.rank, 1);
    assert_int_equal(desc.dims[0], 7);
    assert_int_equal(weft_session_get_param(alone.session, 1, w1, sizeof(w1)), WEFT_OK);
    assert_true(w1[0] == 11.0f / 101.0f - 0.5f);
    assert_int_equal(weft_session_get_param(alone.session, 1, w1, 4), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_session_param_info(alone.session, 5, &name, &desc),
                     WEFT_ERR_INVALID_ARGUMENT);
    alone_close(&alone);
}

static void test_session_refuses_bad_params(void **state)
{
    weft_session_t *session = (weft_session_t *)state;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_session_stats_t stats = {0};
    assert_int_equal(weft_session_create(NULL, &session), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(session);
    assert_int_equal(weft_session_create(&params, &session), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "context"));
    weft_session_destroy(NULL);
    alone_t alone;
    alone_open(&alone);
    assert_int_equal(weft_session_get_stats(alone.session, &stats), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_session_write_trace(alone.session, "/nowhere"), WEFT_ERR_STATE);
    assert_int_equal(weft_session_write_profile(alone.session, "/nowhere"), WEFT_ERR_STATE);
    assert_non_null(strstr(weft_last_error(), "without a trace"));
    alone_close(&alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_trains_over_shared_memory), /* forks: before any thread */
        cmocka_unit_test(test_session_killed_rank_is_named_in_time),
        cmocka_unit_test(test_session_trains_to_the_computed_bits),
        cmocka_unit_test(test_session_bits_do_not_depend_on_buckets_streams_and_isa),
        cmocka_unit_test(test_session_trains_on_the_fake_card),
        cmocka_unit_test(test_session_after_session_starts_afresh),
        cmocka_unit_test(test_session_failure_prints_the_last_records),
        cmocka_unit_test(test_session_refuses_different_plans),
        cmocka_unit_test(test_session_refuses_another_world),
        cmocka_unit_test(test_session_names_a_missing_kernel),
        cmocka_unit_test(test_session_kernel_error_reaches_every_rank),
        cmocka_unit_test(test_session_inputs_scalars_and_outputs),
        cmocka_unit_test(test_session_parameters),
        cmocka_unit_test(test_session_refuses_bad_params),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
