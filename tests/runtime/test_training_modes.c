/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One model, one global batch of four micro-batches, compiled in every way that must not change a
 * bit: ranks that do one, two or four micro-batches each; whole, sharded and decoupled updates; in
 * memory that ranks share, over links that only put, between processes, inline and with threads.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/session.h"
#include "support_ranks.h"

#define MODEL WEFT_SOURCE_DIR "/samples/models/mlp.onnx"
#define MICRO_BATCHES 4u
#define STEPS 2u

typedef struct way {
    const char *name;
    uint32_t world;
    int shard; /* 1: updates, 2: parameters */
    int decouple;
    const char *bucket;
    const uint32_t *host_of; /* ranks of different hosts only put; NULL: memory is shared */
    weft_progress_t progress;
    bool processes;
} way_t;

typedef struct job {
    weft_plan_t *plan;
    char expected[65]; /* empty: rank 0 of the first way says */
    char first[65];
    bool reads; /* evaluates after every step */
} job_t;

static weft_plan_t *compile(const way_t *way, double clip, const char *wire, const char *precision)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = MODEL;
    params.world_size = way->world;
    params.batch = 2;
    params.bucket = way->bucket;
    params.global_micro_batches = MICRO_BATCHES;
    params.shard_optimizer = way->shard == 1;
    params.shard_parameters = way->shard == 2;
    params.decouple = way->decouple;
    params.clip_norm = clip;
    params.wire = wire;
    params.precision = precision;
    if (weft_compile(&params, &plan) != WEFT_OK) {
        fail_msg("%s: %s", way->name, weft_last_error());
    }
    return plan;
}

static void train(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    uint32_t mine = MICRO_BATCHES / world->size;
    char digest[65];
    RANK_OK(weft_session_create(&params, &session));
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < mine; i++) {
            RANK_OK(support_feed(session, job->plan, world->rank * mine + i, step));
            RANK_OK(i + 1 < mine ? weft_session_micro_step(session) : weft_session_step(session));
        }
        if (job->reads) {
            RANK_OK(weft_session_eval(session));
        }
    }
    RANK_OK(weft_session_param_digest(session, digest));
    if (job->expected[0] != '\0') {
        RANK_CHECK(strcmp(digest, job->expected) == 0);
    } else if (world->rank == 0) {
        strcpy(job->first, digest);
    }
    weft_session_destroy(session);
}

static void go(const way_t *way, job_t *job)
{
    print_message("%s, %u ranks\n", way->name, way->world);
    setenv("WEFT_PROGRESS", way->progress == WEFT_PROGRESS_THREAD ? "thread" : "inline", 1);
    if (way->processes) {
        assert_true(support_rank_processes(way->world, train, job));
    } else if (way->host_of != NULL) {
        wefti_hub_links_t links = {way->host_of, 5, 10000};
        support_rank_threads_over(way->world, train, job, &links);
    } else {
        support_rank_threads(way->world, train, job);
    }
    unsetenv("WEFT_PROGRESS");
    strcpy(job->expected, job->first);
}

static const uint32_t apart[] = {0, 1, 2, 3}, pairs[] = {0, 0, 1, 1};

static const way_t ways[] = {
    {"alone", 1, 0, 0, "one", NULL, WEFT_PROGRESS_INLINE, false},
    {"whole", 2, 0, 0, "bytes:300K", NULL, WEFT_PROGRESS_THREAD, false},
    {"whole", 4, 0, 0, "auto", NULL, WEFT_PROGRESS_INLINE, false},
    {"sharded", 1, 1, 0, "one", NULL, WEFT_PROGRESS_INLINE, false},
    {"sharded", 2, 1, 0, "bytes:300K", NULL, WEFT_PROGRESS_INLINE, false},
    {"sharded", 4, 1, 0, "none", NULL, WEFT_PROGRESS_THREAD, false},
    {"sharded, processes", 2, 1, 0, "auto", NULL, WEFT_PROGRESS_THREAD, true},
    {"sharded, over puts", 2, 1, 0, "auto", apart, WEFT_PROGRESS_INLINE, false},
    {"sharded, two hosts", 4, 1, 0, "one", pairs, WEFT_PROGRESS_THREAD, false},
    {"decoupled", 2, 1, 1, "bytes:300K", NULL, WEFT_PROGRESS_THREAD, false},
    {"decoupled", 4, 1, 1, "auto", NULL, WEFT_PROGRESS_INLINE, false},
    {"decoupled, processes", 4, 1, 1, "bytes:300K", NULL, WEFT_PROGRESS_INLINE, true},
    {"decoupled, over puts", 2, 1, 1, "auto", apart, WEFT_PROGRESS_THREAD, false},
    {"decoupled, two hosts", 4, 1, 1, "bytes:300K", pairs, WEFT_PROGRESS_INLINE, false},
    {"parameters", 2, 2, 0, "bytes:300K", NULL, WEFT_PROGRESS_THREAD, false},
    {"parameters", 4, 2, 0, "none", NULL, WEFT_PROGRESS_INLINE, false},
    {"parameters, processes", 4, 2, 0, "bytes:300K", NULL, WEFT_PROGRESS_THREAD, true},
    {"parameters, over puts", 2, 2, 0, "auto", apart, WEFT_PROGRESS_INLINE, false},
    {"parameters, two hosts", 4, 2, 0, "bytes:300K", pairs, WEFT_PROGRESS_THREAD, false},
};
#define WAYS (sizeof ways / sizeof ways[0])

static uint32_t count_sweeps(const weft_plan_t *plan)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        count += plan->collectives[i].update != WEFTI_PLAN_NONE;
    }
    return count;
}

static void test_no_way_changes_a_bit(void **state)
{
    (void)state;
    job_t job = {0};
    for (size_t i = 0; i < WAYS; i++) {
        job.plan = compile(&ways[i], 0, NULL, NULL);
        bool may_sweep = ways[i].shard == 1 && !ways[i].decouple && ways[i].world > 1;
        assert_int_equal(count_sweeps(job.plan) > 0, may_sweep);
        job.reads = i % 3 == 2;
        go(&ways[i], &job);
        weft_plan_release(job.plan);
    }
}

static void test_no_way_changes_a_bit_of_clipped_steps(void **state)
{
    (void)state;
    job_t job = {0};
    for (size_t i = 0; i < WAYS; i += i == 0 ? 2 : 3) {
        job.plan = compile(&ways[i], 0.25, NULL, NULL);
        go(&ways[i], &job);
        weft_plan_release(job.plan);
    }
}

/* What travels as bf16 is rounded by each rank, so only ways of as many ranks agree. */
static void test_no_way_changes_a_bit_of_what_travels_as_bf16(void **state)
{
    (void)state;
    job_t job = {0};
    for (size_t i = 0; i < WAYS; i++) {
        if (ways[i].world == 2 && !ways[i].processes) {
            job.plan = compile(&ways[i], 0, "bf16", NULL);
            go(&ways[i], &job);
            weft_plan_release(job.plan);
        }
    }
}

/* Weights are f32 on all ranks, and so are sums of gradients. */
static void test_no_way_changes_a_bit_in_bf16(void **state)
{
    (void)state;
    job_t job = {0};
    for (size_t i = 0; i < WAYS; i += i == 0 ? 2 : 4) {
        job.plan = compile(&ways[i], 0, NULL, "bf16");
        job.reads = i % 3 == 2;
        go(&ways[i], &job);
        weft_plan_release(job.plan);
    }
}

int main(void)
{
    setenv("WEFT_THREADS", "1", 1); /* of kernels: what is watched here is between ranks */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_way_changes_a_bit),
        cmocka_unit_test(test_no_way_changes_a_bit_of_clipped_steps),
        cmocka_unit_test(test_no_way_changes_a_bit_of_what_travels_as_bf16),
        cmocka_unit_test(test_no_way_changes_a_bit_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
