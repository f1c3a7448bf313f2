/* SPDX-License-Identifier: Apache-2.0 */
/* The whole way without files: the MLP compiled, bound and trained, on the CPU and on the fake
 * card, to one digest. */
#include "support.h"

#include "support_fake_card.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORLD 2u
#define STEPS 3u
#define BATCH 4
#define MODEL WEFT_SOURCE_DIR "/samples/models/mlp.onnx"

typedef struct mlp_rank {
    weft_context_params_t params;
    weft_plan_t *plan;
    weft_status_t status;
    char message[512];
    char digest[65];
    float loss[STEPS];
    pthread_t thread;
} mlp_rank_t;

static void *rank_main(void *user)
{
    mlp_rank_t *rank = user;
    weft_context_t *context = NULL;
    weft_session_t *session = NULL;
    weft_status_t status = weft_context_create(&rank->params, &context);
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = context;
    params.plan = rank->plan;
    if (status >= 0) {
        status = weft_session_create(&params, &session);
    }
    for (uint32_t step = 0; step < STEPS && status >= 0; step++) {
        uint32_t batches = rank->plan->accumulate;
        for (uint32_t i = 0; i < batches && status >= 0; i++) {
            status =
                support_feed(session, rank->plan, (uint32_t)rank->params.rank * batches + i, step);
            status = status < 0        ? status
                     : i + 1 < batches ? weft_session_micro_step(session)
                                       : weft_session_step(session);
        }
        status = status >= 0 ? weft_session_get_output(session, "loss", &rank->loss[step],
                                                       sizeof(float), NULL)
                             : status;
        if (status >= 0 && step == 1) { /* weights are read between steps, and then trained on */
            status = weft_session_eval(session);
        }
    }
    if (status >= 0) {
        status = weft_session_param_digest(session, rank->digest);
    }
    rank->status = status;
    snprintf(rank->message, sizeof(rank->message), "%s", status < 0 ? weft_last_error() : "");
    weft_session_destroy(session);
    weft_context_release(context);
    return NULL;
}

/* Trains and gives back rank 0's digest; every rank's must be the same. */
static void train(weft_plan_t *plan, weft_progress_t progress, bool card, char digest[65])
{
    mlp_rank_t ranks[WORLD];
    weft_hub_t *hub = NULL;
    assert_int_equal(weft_hub_create(WORLD, &hub), WEFT_OK);
    for (uint32_t r = 0; r < WORLD; r++) {
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.rank = (int32_t)r;
        params.world_size = WORLD;
        params.hub = hub;
        params.progress = progress;
        if (card) {
            assert_int_equal(fake_card_create(&params.device), WEFT_OK);
        }
        ranks[r] = (mlp_rank_t){.params = params, .plan = plan};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    for (uint32_t r = 0; r < WORLD; r++) {
        if (ranks[r].status != WEFT_OK) {
            print_error("rank %u: %s\n", r, ranks[r].message);
        }
        assert_int_equal(ranks[r].status, WEFT_OK);
        assert_string_equal(ranks[r].digest, ranks[0].digest);
        assert_true(ranks[r].loss[0] > 0.5f && ranks[r].loss[0] < 10.0f);
        if (card) {
            assert_int_equal(fake_card_destroy(ranks[r].params.device), 0);
        }
    }
    strcpy(digest, ranks[0].digest);
}

enum { WHOLE, SHARDED, DECOUPLED };

/* more: what else the plan is compiled with, or NULL. */
static weft_plan_t *compile(const char *bucket, int updates, const weft_compile_params_t *more)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    if (more != NULL) {
        params = *more;
    }
    params.model_path = MODEL;
    params.world_size = WORLD;
    params.batch = BATCH;
    params.bucket = bucket;
    params.optimizer = "adam";
    params.shard_optimizer = updates == SHARDED;
    params.decouple = updates == DECOUPLED;
    weft_status_t status = weft_compile(&params, &plan);
    if (status != WEFT_OK) {
        print_error("%s\n", weft_last_error());
    }
    assert_int_equal(status, WEFT_OK);
    return plan;
}

static void test_mlp_trains_to_the_same_bits_everywhere(void **state)
{
    static const struct {
        const char *policy;
        int updates;
    } rows[] = {{"one", WHOLE},      {"none", WHOLE},          {"bytes:512K", WHOLE},
                {"auto", SHARDED},   {"bytes:512K", SHARDED},  {"none", SHARDED},
                {"none", DECOUPLED}, {"bytes:512K", DECOUPLED}};
    char expected[65], digest[65];
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    size_t stride = 3; /* one row of each kind: sanitizers are ten times slower */
#else
    size_t stride = 1;
#endif
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i += stride) {
        weft_plan_t *plan = compile(rows[i].policy, rows[i].updates, NULL);
        train(plan, WEFT_PROGRESS_INLINE, false, digest);
        if (i == 0) {
            strcpy(expected, digest);
        }
        assert_string_equal(digest, expected);
        train(plan, WEFT_PROGRESS_THREAD, false, digest);
        assert_string_equal(digest, expected);
        train(plan, WEFT_PROGRESS_INLINE, true, digest);
        assert_string_equal(digest, expected);
        weft_plan_release(plan);
    }
}

static void test_micro_batches_train_to_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        char expected[65] = "", digest[65];
        weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
        params.accumulate = 3;
        params.clip_norm = 0.1;
        params.wire = half ? "bf16" : "f32";
        for (int updates = WHOLE; updates <= DECOUPLED; updates++) {
            weft_plan_t *plan = compile("bytes:512K", updates, &params);
            train(plan, WEFT_PROGRESS_INLINE, updates == SHARDED, digest); /* one on cards */
            if (updates == WHOLE) {
                strcpy(expected, digest);
            }
            assert_string_equal(digest, expected);
            train(plan, WEFT_PROGRESS_THREAD, updates == WHOLE, digest);
            assert_string_equal(digest, expected);
            weft_plan_release(plan);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp_trains_to_the_same_bits_everywhere),
        cmocka_unit_test(test_micro_batches_train_to_the_same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
