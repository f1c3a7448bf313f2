/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models, numbers of ranks, policies, optimizers and what becomes of gradients: sharded and
 * decoupled updates leave the bits of whole ones, whatever has to be padded or cut.
 */
#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"
#include "tests/graph/support_layers.h"

#define CASES 60u
#define STEPS 2u
#define MAX_WORLD 6u

enum { WHOLE, SHARDED, DECOUPLED, MODES };

typedef struct random_case {
    layers_shape_t shape;
    uint32_t world, accumulate;
    const char *optimizer, *wire;
    char bucket[32];
    double clip, decay;
    weft_progress_t progress;
} random_case_t;

static uint64_t state_of_random;

static uint32_t below(uint32_t limit)
{
    return (uint32_t)(test_next_random(&state_of_random) >> 33) % limit;
}

static random_case_t draw(void)
{
    static const char *const optimizers[] = {"sgd", "momentum", "adam"};
    random_case_t c = {.shape = {1 + below(4), 10 + below(50), below(2)},
                       .world = 2 + below(MAX_WORLD - 1),
                       .accumulate = below(3) == 0 ? 1 + below(5) : 1,
                       .optimizer = optimizers[below(3)],
                       .wire = below(4) == 0 ? "bf16" : NULL,
                       .clip = below(4) == 0 ? 0.05 : 0,
                       .decay = below(2) == 0 ? 0.01 : 0,
                       .progress = below(2) == 0 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD};
    switch (below(4)) {
    case 0:
        snprintf(c.bucket, sizeof c.bucket, "auto:%u", 64 + below(8000));
        break;
    case 1:
        snprintf(c.bucket, sizeof c.bucket, "bytes:%u", 256 + below(20000));
        break;
    case 2:
        snprintf(c.bucket, sizeof c.bucket, "index:%u", below(2 * c.shape.layers));
        break;
    default:
        snprintf(c.bucket, sizeof c.bucket, "%s", below(2) == 0 ? "none" : "one");
        break;
    }
    return c;
}

static weft_plan_t *compile(const random_case_t *c, const char *model, int mode)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = model;
    params.world_size = c->world;
    params.batch = 2;
    params.bucket = c->bucket;
    params.optimizer = c->optimizer;
    params.weight_decay = c->decay;
    params.accumulate = c->accumulate;
    params.wire = c->wire;
    params.clip_norm = c->clip;
    params.shard_optimizer = mode == SHARDED;
    params.decouple = mode == DECOUPLED;
    if (weft_compile(&params, &plan) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

typedef struct rank {
    weft_context_params_t params;
    weft_plan_t *plan;
    const random_case_t *drawn;
    weft_status_t status;
    char message[512], digest[65];
    pthread_t thread;
} rank_t;

static weft_status_t train_step(rank_t *rank, weft_session_t *session, uint32_t step)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t micro = 0; micro < rank->drawn->accumulate && status >= 0; micro++) {
        bool last = micro + 1 == rank->drawn->accumulate;
        status = support_feed(session, rank->plan, (uint32_t)rank->params.rank, 10 * step + micro);
        if (status >= 0) {
            status = last ? weft_session_step(session) : weft_session_micro_step(session);
        }
    }
    return status;
}

static void *rank_main(void *user)
{
    rank_t *rank = user;
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
        status = train_step(rank, session, step);
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

static void train(const random_case_t *c, weft_plan_t *plan, char digest[65])
{
    rank_t ranks[MAX_WORLD];
    weft_hub_t *hub = NULL;
    assert_int_equal(weft_hub_create(c->world, &hub), WEFT_OK);
    for (uint32_t r = 0; r < c->world; r++) {
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.rank = (int32_t)r;
        params.world_size = c->world;
        params.hub = hub;
        params.progress = c->progress;
        ranks[r] = (rank_t){.params = params, .plan = plan, .drawn = c};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < c->world; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    for (uint32_t r = 0; r < c->world; r++) {
        if (ranks[r].status != WEFT_OK) {
            fail_msg("rank %u: %s", r, ranks[r].message);
        }
        assert_string_equal(ranks[r].digest, ranks[0].digest);
    }
    memcpy(digest, ranks[0].digest, sizeof ranks[0].digest);
}

static void check(const random_case_t *c, const char *model)
{
    char digests[MODES][65];
    for (int mode = 0; mode < MODES; mode++) {
        weft_plan_t *plan = compile(c, model, mode);
        train(c, plan, digests[mode]);
        weft_plan_release(plan);
        if (strcmp(digests[mode], digests[WHOLE]) != 0) {
            fail_msg("%s: %u layers of %u, %u ranks, %s, %s, %u micro-batches, wire %s, clip %g",
                     mode == SHARDED ? "sharded" : "decoupled", c->shape.layers, c->shape.width,
                     c->world, c->optimizer, c->bucket, c->accumulate, c->wire ? c->wire : "f32",
                     c->clip);
        }
    }
}

static void test_shards_of_random_models_have_the_bits_of_whole_ones(void **state)
{
    (void)state;
    state_of_random = support_seed();
    for (uint32_t i = 0; i < CASES; i++) {
        random_case_t c = draw();
        wire_t bytes = onnx_layers(&c.shape);
        char model[] = "/tmp/weft_shards_XXXXXX";
        int fd = mkstemp(model);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, bytes.data, bytes.size), bytes.size);
        close(fd);
        wire_free(&bytes);
        check(&c, model);
        unlink(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_of_random_models_have_the_bits_of_whole_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
