/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models, compiled in ways that must not change a bit: bucket policies, updates of shards,
 * late and early gathers, bounds on what is in flight. Each step is trained on two ranks, and all
 * ranks of all ways must have the same parameters. Plans must pass the verifier, which compiling
 * asks.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support_ranks.h"
#include "tests/graph/support_onnx.h"

#define WIDTH 10 /* and classes */
#define STEPS 2u
#define MODELS 12u
#define MOST_VALUES 32u

typedef struct way {
    const char *bucket;
    int shard, decouple;
    uint32_t in_flight;
} way_t;

static const way_t ways[] = {
    {"one", 0, 0, 0},       {"none", 0, 0, 0},          {"auto", 0, 0, 0},
    {"bytes:256", 0, 0, 1}, {"percent:30,70", 0, 0, 2}, {"mgwfbp", 1, 0, 0},
    {"bytes:512", 1, 1, 0}, {"none", 1, 1, 2},          {"none", 2, 0, 1},
    {"bytes:512", 2, 0, 0}, {"auto", 2, 0, 3},
};
#define WAYS (sizeof ways / sizeof ways[0])

typedef struct job {
    weft_plan_t *plan;
    char expected[65], got[65];
} job_t;

static void add_weights(wire_t *graph, const char *name, uint32_t rank, uint64_t *random)
{
    float values[WIDTH * WIDTH];
    size_t count = rank == 2 ? WIDTH * WIDTH : WIDTH;
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((int)(test_next_random(random) % 64) - 32) / 64.0f;
    }
    wire_t tensor = onnx_tensor(name, ONNX_FLOAT, rank, (int64_t[]){WIDTH, WIDTH}, values,
                                count * sizeof *values);
    wire_message(graph, 5, &tensor);
}

/* Products with weights and bias, element-wise operators, sums of any two values before: what is
 * made last is the sum of all that nobody has read. Some weights are used twice. */
static wire_t random_model(uint64_t *random)
{
    wire_t graph = {0};
    char names[MOST_VALUES][16] = {"image"}, inputs[64];
    bool read[MOST_VALUES] = {false};
    uint32_t count = 1, weights = 0, ops = 4 + (uint32_t)(test_next_random(random) % 10);
    for (uint32_t i = 0; i < ops; i++) {
        uint32_t a = (uint32_t)(test_next_random(random) % count);
        uint32_t b = (uint32_t)(test_next_random(random) % count);
        uint32_t kind = i == 0 ? 0 : (uint32_t)(test_next_random(random) % 5);
        snprintf(names[count], sizeof names[0], "v%u", i);
        read[a] = true;
        if (kind <= 1) {
            uint32_t which =
                weights > 0 && test_next_random(random) % 4 == 0 ? weights - 1 : weights++;
            snprintf(inputs, sizeof inputs, "%s,w%u,b%u", names[a], which, which);
            onnx_node(&graph, "Gemm", NULL, inputs, names[count], NULL);
        } else if (kind == 2) {
            snprintf(inputs, sizeof inputs, "%s,%s", names[a], names[b]);
            read[b] = true;
            onnx_node(&graph, "Add", NULL, inputs, names[count], NULL);
        } else {
            onnx_node(&graph, kind == 3 ? "Tanh" : "Relu", NULL, names[a], names[count], NULL);
        }
        count++;
    }
    char last[16] = "";
    for (uint32_t i = 0, sums = 0; i < count; i++) {
        if (read[i]) {
            continue;
        }
        if (last[0] != '\0') {
            char next[16];
            snprintf(next, sizeof next, "s%u", sums++);
            snprintf(inputs, sizeof inputs, "%s,%s", last, names[i]);
            onnx_node(&graph, "Add", NULL, inputs, next, NULL);
            memcpy(last, next, sizeof last);
        } else {
            memcpy(last, names[i], sizeof last);
        }
    }
    snprintf(inputs, sizeof inputs, "%s,label", last);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "ce", inputs, "loss", NULL);
    wire_string(&graph, 2, "random");
    for (uint32_t i = 0; i < weights; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        add_weights(&graph, name, 2, random);
        snprintf(name, sizeof name, "b%u", i);
        add_weights(&graph, name, 1, random);
    }
    onnx_value(&graph, 11, "image", ONNX_FLOAT, 2, (int64_t[]){-1, WIDTH});
    onnx_value(&graph, 11, "label", ONNX_INT64, 1, (int64_t[]){-1});
    onnx_value(&graph, 12, "loss", ONNX_FLOAT, 0, NULL);
    return onnx_model(&graph, 13);
}

static void train(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    char digest[65];
    RANK_OK(weft_session_create(&params, &session));
    for (uint32_t step = 0; step < STEPS; step++) {
        RANK_OK(support_feed(session, job->plan, world->rank, step));
        RANK_OK(weft_session_step(session));
    }
    RANK_OK(weft_session_param_digest(session, digest));
    if (job->expected[0] != '\0') {
        RANK_CHECK(strcmp(digest, job->expected) == 0);
    } else if (world->rank == 0) {
        memcpy(job->got, digest, sizeof digest);
    }
    weft_session_destroy(session);
}

static weft_plan_t *compile(const char *model, const way_t *way)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = model;
    params.world_size = 2;
    params.batch = 3;
    params.bucket = way->bucket;
    params.shard_optimizer = way->shard == 1;
    params.shard_parameters = way->shard == 2;
    params.decouple = way->decouple;
    params.in_flight = way->in_flight;
    if (weft_compile(&params, &plan) != WEFT_OK) {
        /* A percentage of too few gradients is the one thing that may be refused. */
        if (strncmp(way->bucket, "percent", 7) != 0) {
            fail_msg("%s: %s", way->bucket, weft_last_error());
        }
        plan = NULL;
    }
    return plan;
}

static void test_random_models_train_to_the_same_bits(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    char path[] = "/tmp/weft_random_XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_true(fd >= 0);
    close(fd);
    for (uint32_t m = 0; m < MODELS; m++) {
        wire_t model = random_model(&random);
        job_t job = {0};
        write_file(path, model.data, model.size);
        wire_free(&model);
        for (size_t w = 0; w < WAYS; w++) {
            job.plan = compile(path, &ways[w]);
            if (job.plan != NULL) {
                support_rank_threads(2, train, &job);
                weft_plan_release(job.plan);
            }
            if (job.expected[0] == '\0') {
                memcpy(job.expected, job.got, sizeof job.got);
            }
        }
    }
    unlink(path);
}

int main(void)
{
    setenv("WEFT_THREADS", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_models_train_to_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
