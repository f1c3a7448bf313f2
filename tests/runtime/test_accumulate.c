/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-batches, gradients that travel as bf16, and clipping, against a replay: the gradients of
 * each micro-batch are taken from a plan for one rank and one micro-batch, then summed along the
 * in-order tree, rounded, divided and applied by loops written out here. Weights must agree in
 * every bit, however buckets are cut and whoever updates them.
 */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "support_ranks.h"

#define STEPS 2u
#define BATCH 2
#define LR 0.05
#define MODEL WEFT_SOURCE_DIR "/samples/models/lenet.onnx"
#define MAX_LEAVES 8u

/* One way to train, and what came out on rank 0. */
typedef struct run {
    uint32_t world, accumulate, global_micro_batches;
    const char *wire, *bucket;
    double clip;
    bool shard_optimizer, decouple;
    weft_plan_t *plan;
    float *weights; /* all parameters, one behind the other, in the order of their names */
    size_t count;
    float norm[STEPS], loss;
} run_t;

static void compile_run(run_t *run)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = MODEL;
    params.world_size = run->world;
    params.batch = BATCH;
    params.optimizer = "sgd";
    params.lr = LR;
    params.bucket = run->bucket;
    params.wire = run->wire;
    params.clip_norm = run->clip;
    params.shard_optimizer = run->shard_optimizer;
    params.decouple = run->decouple;
    params.accumulate = run->global_micro_batches > 0 ? 0 : run->accumulate;
    params.global_micro_batches = run->global_micro_batches;
    if (weft_compile(&params, &run->plan) < 0) {
        fail_msg("%u ranks: %s", run->world, weft_last_error());
    }
}

/* Parameters lie in the order of their buckets, which policies decide: here by name. */
static size_t place_of(const weft_session_t *session, size_t index)
{
    const char *name, *other;
    weft_tensor_desc_t desc;
    size_t at = 0;
    RANK_OK(weft_session_param_info(session, index, &name, &desc));
    for (size_t i = 0; i < weft_session_param_count(session); i++) {
        RANK_OK(weft_session_param_info(session, i, &other, &desc));
        at += strcmp(other, name) < 0 ? (size_t)weft_tensor_elem_count(&desc) : 0;
    }
    return at;
}

static size_t count_of(const weft_session_t *session, size_t index)
{
    const char *name;
    weft_tensor_desc_t desc;
    RANK_OK(weft_session_param_info(session, index, &name, &desc));
    return (size_t)weft_tensor_elem_count(&desc);
}

static size_t total_of(const weft_session_t *session)
{
    size_t count = 0;
    for (size_t i = 0; i < weft_session_param_count(session); i++) {
        count += count_of(session, i);
    }
    return count;
}

static void read_weights(weft_session_t *session, float *weights)
{
    for (size_t i = 0; i < weft_session_param_count(session); i++) {
        RANK_OK(weft_session_get_param(session, i, weights + place_of(session, i),
                                       count_of(session, i) * sizeof(float)));
    }
}

static void open_session(const rank_world_t *world, weft_plan_t *plan, weft_session_t **out_session)
{
    weft_session_params_t params = {
        .struct_size = sizeof(params), .context = world->context, .plan = plan};
    RANK_OK(weft_session_create(&params, out_session));
}

/* Trains; rank 0 stores what came out. Micro-batch j of all ranks is fed as that, whoever runs it.
 */
static void train_rank(rank_world_t *world)
{
    run_t *run = world->user;
    weft_session_t *session = NULL;
    float loss = 0;
    open_session(world, run->plan, &session);
    for (uint32_t step = 0; step < STEPS; step++) {
        float norm = 0;
        for (uint32_t i = 0; i < run->accumulate; i++) {
            RANK_CHECK(weft_session_micro_count(session) == i);
            RANK_OK(support_feed(session, run->plan, world->rank * run->accumulate + i, step));
            RANK_OK(i + 1 < run->accumulate ? weft_session_micro_step(session)
                                            : weft_session_step(session));
        }
        if (run->clip > 0) {
            RANK_OK(weft_session_get_output(session, "grad_norm", &norm, sizeof(norm), NULL));
        }
        RANK_OK(weft_session_get_output(session, "loss", &loss, sizeof(loss), NULL));
        if (world->rank == 0) {
            run->norm[step] = norm;
            run->loss = loss;
        }
    }
    float *weights = malloc(total_of(session) * sizeof(float));
    RANK_CHECK(weights != NULL);
    read_weights(session, weights); /* on all ranks: a decoupled plan gathers them */
    if (world->rank == 0) {
        run->weights = weights;
        run->count = total_of(session);
    } else {
        free(weights);
    }
    weft_session_destroy(session);
}

static void train(run_t *run)
{
    compile_run(run);
    support_rank_threads(run->world, train_rank, run);
    weft_plan_release(run->plan);
}

/* The in-order tree over count values that lie stride apart, split at the largest power of two. */
static float tree(const float *values, size_t stride, uint32_t count)
{
    uint32_t split = 1;
    if (count == 1) {
        return values[0];
    }
    while (split * 2 < count) {
        split *= 2;
    }
    return tree(values, stride, split) + tree(values + split * stride, stride, count - split);
}

static float round_half(float x)
{
    return wefti_bf16_to_f32(wefti_bf16_from_f32(x));
}

/* What the update is given of one element: leaves lie count apart. */
static float reduce(const run_t *run, const float *leaves, size_t count)
{
    bool half = run->wire != NULL && strcmp(run->wire, "bf16") == 0;
    float ranks[MAX_LEAVES], sum;
    for (uint32_t r = 0; r < run->world; r++) {
        ranks[r] = tree(leaves + r * run->accumulate * count, count, run->accumulate);
        ranks[r] = half ? round_half(ranks[r]) : ranks[r];
    }
    sum = tree(ranks, 1, run->world);
    sum = half ? round_half(sum) : sum;
    return sum / (float)(run->world * run->accumulate);
}

static void take_leaf(weft_session_t *session, const float *weights, float *leaf)
{
    for (size_t i = 0; i < weft_session_param_count(session); i++) {
        RANK_OK(weft_session_set_param(session, i, weights + place_of(session, i),
                                       count_of(session, i) * sizeof(float)));
    }
    RANK_OK(weft_session_step(session));
    for (size_t i = 0; i < weft_session_param_count(session); i++) {
        RANK_OK(weft_session_get_gradient(session, i, leaf + place_of(session, i),
                                          count_of(session, i) * sizeof(float)));
    }
}

/* The replay, on one rank with a plan of its own; run->weights and norm are what is expected. */
static void replay_rank(rank_world_t *world)
{
    run_t *run = world->user;
    weft_session_t *session = NULL;
    uint32_t leaf_count = run->world * run->accumulate;
    open_session(world, run->plan, &session);
    size_t count = run->count = total_of(session);
    float *leaves = malloc(count * leaf_count * sizeof(float));
    float *weights = run->weights = malloc(count * sizeof(float));
    RANK_CHECK(leaves != NULL && weights != NULL && leaf_count <= MAX_LEAVES);
    read_weights(session, weights);
    for (uint32_t step = 0; step < STEPS; step++) {
        long double squares = 0;
        float scale = 1;
        for (uint32_t j = 0; j < leaf_count; j++) {
            RANK_OK(support_feed(session, run->plan, j, step));
            take_leaf(session, weights, leaves + j * count);
        }
        for (size_t i = 0; i < count; i++) {
            leaves[i] = reduce(run, leaves + i, count);
            squares += (long double)leaves[i] * (long double)leaves[i];
        }
        run->norm[step] = (float)sqrtl(squares);
        if (run->clip > 0 && sqrtl(squares) > run->clip) {
            scale = (float)(run->clip / sqrtl(squares));
        }
        for (size_t i = 0; i < count; i++) {
            float change = (float)LR * (leaves[i] * scale);
            weights[i] = weights[i] - change;
        }
    }
    free(leaves);
    weft_session_destroy(session);
}

static void replay(const run_t *like, run_t *out)
{
    run_t one = {.world = 1, .accumulate = 1, .bucket = "one"};
    compile_run(&one);
    *out = *like;
    out->plan = one.plan;
    support_rank_threads(1, replay_rank, out);
    weft_plan_release(one.plan);
}

static void expect_equal(const run_t *got, const run_t *want)
{
    assert_int_equal(got->count, want->count);
    for (size_t i = 0; i < got->count; i++) {
        if (memcmp(&got->weights[i], &want->weights[i], sizeof(float)) != 0) {
            fail_msg("%u ranks, %u micro-batches, wire %s, bucket %s%s: weight %zu is %.9g, not "
                     "%.9g",
                     got->world, got->accumulate, got->wire == NULL ? "f32" : got->wire,
                     got->bucket,
                     got->decouple          ? ", decoupled"
                     : got->shard_optimizer ? ", sharded"
                                            : "",
                     i, (double)got->weights[i], (double)want->weights[i]);
        }
    }
}

/* All ways to cut and share the work that give the same numbers. */
static void check_all_ways(const run_t *like, const run_t *want)
{
    static const char *const buckets[] = {"one", "auto:20K", "bytes:100K"};
    for (int way = 0; way < 3; way++) {
        run_t run = *like;
        run.bucket = buckets[way];
        run.shard_optimizer = way == 1;
        run.decouple = way == 2;
        train(&run);
        expect_equal(&run, want);
        free(run.weights);
    }
}

static void test_micro_batches_are_summed_along_the_tree(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {1, 5}, {2, 1}, {2, 3}, {3, 2}, {2, 4}};
    (void)state;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        run_t like = {.world = shapes[s][0], .accumulate = shapes[s][1]}, want;
        replay(&like, &want);
        check_all_ways(&like, &want);
        free(want.weights);
    }
}

static void test_one_tree_for_any_number_of_ranks(void **state)
{
    static const uint32_t worlds[] = {1, 2, 4, 8};
    run_t like = {.world = 8, .accumulate = 1, .global_micro_batches = 8}, want;
    (void)state;
    replay(&like, &want);
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        like.world = worlds[i];
        like.accumulate = 8 / worlds[i];
        check_all_ways(&like, &want);
    }
    free(want.weights);
}

static void test_gradients_travel_as_bf16(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {2, 1}, {2, 3}, {4, 2}};
    (void)state;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        run_t like = {.world = shapes[s][0], .accumulate = shapes[s][1], .wire = "bf16"}, want;
        replay(&like, &want);
        check_all_ways(&like, &want);
        free(want.weights);
    }
}

/* The replay's norm is rounded elsewhere, so its scale may be a bit off: weights are close, and
 * equal among themselves. */
static void test_clipping_keeps_the_norm(void **state)
{
    static const uint32_t worlds[] = {1, 2, 4};
    run_t like = {.world = 4,
                  .accumulate = 1,
                  .global_micro_batches = 4,
                  .clip = 0.25,
                  .bucket = "one"},
          want, first;
    (void)state;
    replay(&like, &want);
    first = like;
    train(&first);
    assert_true(first.norm[0] > 0.25f);
    for (uint32_t step = 0; step < STEPS; step++) {
        assert_true(fabsf(first.norm[step] - want.norm[step]) <= 1e-6f * want.norm[step]);
    }
    for (size_t i = 0; i < first.count; i++) {
        assert_true(fabsf(first.weights[i] - want.weights[i]) <= 1e-7f);
    }
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        like.world = worlds[i];
        like.accumulate = 4 / worlds[i];
        check_all_ways(&like, &first);
    }
    free(first.weights);
    free(want.weights);
    /* A norm that is never reached changes nothing. */
    like = (run_t){.world = 2, .accumulate = 2, .clip = 1e6, .wire = "bf16"};
    replay(&like, &want);
    check_all_ways(&like, &want);
    free(want.weights);
}

/* One rank's image is infinite: nobody's weights are numbers any more, and everybody knows. */
static void feed_infinity(rank_world_t *world)
{
    run_t *run = world->user;
    weft_session_t *session = NULL;
    void *image;
    size_t bytes;
    float norm = 0;
    open_session(world, run->plan, &session);
    RANK_OK(support_feed(session, run->plan, world->rank, 0));
    RANK_OK(weft_session_input_memory(session, "image", &image, &bytes));
    if (world->rank == 1) {
        ((float *)image)[300] = INFINITY;
    }
    RANK_OK(weft_session_step(session));
    RANK_OK(weft_session_get_output(session, "grad_norm", &norm, sizeof(norm), NULL));
    RANK_CHECK(isnan(norm));
    float *weights = malloc(total_of(session) * sizeof(float));
    RANK_CHECK(weights != NULL);
    read_weights(session, weights);
    for (size_t i = 0; i < total_of(session); i++) {
        RANK_CHECK(isnan(weights[i]));
    }
    free(weights);
    weft_session_destroy(session);
}

static void test_a_norm_that_is_none_spoils_all_weights(void **state)
{
    (void)state;
    for (int sharded = 0; sharded < 2; sharded++) {
        run_t run = {.world = 2, .accumulate = 1, .clip = 1, .shard_optimizer = sharded};
        compile_run(&run);
        support_rank_threads(2, feed_infinity, &run);
        weft_plan_release(run.plan);
    }
}

static void wrong_calls(rank_world_t *world)
{
    run_t *run = world->user;
    weft_session_t *session = NULL;
    open_session(world, run->plan, &session);
    RANK_CHECK(weft_session_step(session) == WEFT_ERR_STATE); /* two micro-batches come first */
    RANK_OK(weft_session_micro_step(session));
    RANK_OK(weft_session_micro_step(session));
    RANK_CHECK(weft_session_micro_step(session) == WEFT_ERR_STATE);
    RANK_OK(weft_session_step(session));
    RANK_CHECK(weft_session_micro_count(session) == 0);
    weft_session_destroy(session);
}

static void test_calls_out_of_order_are_refused(void **state)
{
    run_t run = {.world = 1, .accumulate = 3};
    (void)state;
    compile_run(&run);
    support_rank_threads(1, wrong_calls, &run);
    weft_plan_release(run.plan);
}

static void test_bad_parameters_are_named(void **state)
{
    static const struct {
        uint32_t world, accumulate, global_micro_batches;
        const char *wire;
        double clip;
        const char *message;
    } cases[] = {
        {4, 0, 6, NULL, 0, "so that each rank sums one subtree: 6, world_size 4"},
        {2, 0, 6, NULL, 0, "so that each rank sums one subtree: 6, world_size 2"},
        {2, 2, 4, NULL, 0, "global_micro_batches: excludes accumulate: "},
        {1, 0, 0, "f16", 0, "wire: must be f32 or bf16: f16"},
        {1, 0, 0, NULL, -1, "clip_norm: must be a number above 0: -1"},
        {1, 0, 0, NULL, 1e-60, "clip_norm: must be a number above 0: 1e-60"},
        {1, 1u << 30, 0, NULL, 0, "accumulate: must be a whole number between 1 and 16777216"},
        {2, 1u << 24, 0, NULL, 0, "too many micro-batches: 16777216 on each of 2 ranks"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
        weft_plan_t *plan = NULL;
        params.model_path = MODEL;
        params.batch = BATCH;
        params.world_size = cases[i].world;
        params.accumulate = cases[i].accumulate;
        params.global_micro_batches = cases[i].global_micro_batches;
        params.wire = cases[i].wire;
        params.clip_norm = cases[i].clip;
        assert_int_equal(weft_compile(&params, &plan), WEFT_ERR_INVALID_ARGUMENT);
        assert_null(plan);
        if (strstr(weft_last_error(), cases[i].message) == NULL) {
            fail_msg("%s", weft_last_error());
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches_are_summed_along_the_tree),
        cmocka_unit_test(test_one_tree_for_any_number_of_ranks),
        cmocka_unit_test(test_gradients_travel_as_bf16),
        cmocka_unit_test(test_clipping_keeps_the_norm),
        cmocka_unit_test(test_a_norm_that_is_none_spoils_all_weights),
        cmocka_unit_test(test_calls_out_of_order_are_refused),
        cmocka_unit_test(test_bad_parameters_are_named),
    };
    setenv("WEFT_THREADS", "1", 1); /* ranks are threads already */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
