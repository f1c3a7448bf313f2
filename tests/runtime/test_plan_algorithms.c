/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans with any algorithm: the MLP trains to the same bits with every all-reduce and broadcast
 * that keeps the order of ranks, inline and with a thread, in small work memory, over links that
 * only put. What cannot be honoured is an error on all ranks.
 */
#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/session.h"
#include "tests/faults/network.h"

#define MAX_WORLD 5u
#define STEPS 3u
#define BATCH 2
#define MODEL WEFT_SOURCE_DIR "/samples/models/mlp.onnx"

typedef struct rank {
    weft_context_params_t params;
    weft_plan_t *plan;
    const weft_algorithm_t *wanted; /* of this rank only */
    const weft_registry_t *registry;
    uint32_t sessions; /* one after the other */
    weft_status_t status;
    char message[512];
    char digest[65];
    uint32_t interpreted, schedules; /* collectives; different schedules of their uses */
    pthread_t thread;
} rank_t;

/* Uses whose schedule no earlier use has. */
static uint32_t count_schedules(const weft_session_t *session)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->run_slots; i++) {
        bool shared = session->runs[i].run == NULL;
        for (uint32_t k = 0; k < i && !shared; k++) {
            shared =
                session->runs[k].run != NULL && wefti_run_schedule(session->runs[k].run)->steps ==
                                                    wefti_run_schedule(session->runs[i].run)->steps;
        }
        count += !shared;
    }
    return count;
}

static weft_status_t train_once(rank_t *rank, const weft_session_params_t *params,
                                weft_session_t **out_session)
{
    weft_status_t status = weft_session_create(params, out_session);
    for (uint32_t i = 0; status >= 0 && i < rank->plan->collective_count; i++) {
        rank->interpreted += (*out_session)->interpreted[i];
    }
    rank->schedules = status >= 0 ? count_schedules(*out_session) : 0;
    for (uint32_t step = 0; step < STEPS && status >= 0; step++) {
        status = support_feed(*out_session, rank->plan, (uint32_t)rank->params.rank, step);
        status = status >= 0 ? weft_session_step(*out_session) : status;
    }
    return status >= 0 ? weft_session_param_digest(*out_session, rank->digest) : status;
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
    params.registry = rank->registry;
    if (status >= 0 && rank->wanted != NULL) {
        context->wanted.algorithm[rank->wanted->op] = rank->wanted;
    }
    for (uint32_t i = 0; i < rank->sessions && status >= 0; i++) {
        weft_session_destroy(session); /* its memory is the next one's */
        session = NULL;
        rank->interpreted = 0;
        status = train_once(rank, &params, &session);
    }
    rank->status = status;
    snprintf(rank->message, sizeof(rank->message), "%s", status < 0 ? weft_last_error() : "");
    weft_session_destroy(session);
    weft_context_release(context);
    return NULL;
}

typedef struct options {
    uint32_t world;
    weft_progress_t progress;
    const char *algorithm;          /* WEFT_ALGO, or NULL */
    const char *staging;            /* WEFT_STAGING_BYTES, or NULL */
    const uint32_t *host_of;        /* ranks on different hosts put; or NULL */
    const weft_algorithm_t *rank_1; /* what rank 1 alone asks for, or NULL */
    const weft_registry_t *registry;
} options_t;

static void run_ranks(weft_plan_t *plan, const options_t *options, rank_t *ranks)
{
    weft_hub_t *hub = NULL;
    assert_int_equal(weft_hub_create(options->world, &hub), WEFT_OK);
    if (options->host_of != NULL) {
        wefti_hub_links_t links = {options->host_of, 17, 20000};
        assert_int_equal(wefti_hub_hide(hub, &links), WEFT_OK);
    }
    if (options->algorithm != NULL) {
        setenv("WEFT_ALGO", options->algorithm, 1);
    }
    if (options->staging != NULL) {
        setenv("WEFT_STAGING_BYTES", options->staging, 1);
    }
    for (uint32_t r = 0; r < options->world; r++) {
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.rank = (int32_t)r;
        params.world_size = (int32_t)options->world;
        params.hub = hub;
        params.progress = options->progress;
        ranks[r] = (rank_t){.params = params,
                            .plan = plan,
                            .wanted = r == 1 ? options->rank_1 : NULL,
                            .registry = options->registry,
                            .sessions = options->host_of != NULL ? 3 : 1};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < options->world; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    unsetenv("WEFT_ALGO");
    unsetenv("WEFT_STAGING_BYTES");
    weft_hub_destroy(hub);
}

static uint32_t schedules; /* of the sessions that train() made */

/* Trains and gives back how many collectives were interpreted; every rank's digest is the same. */
static uint32_t train(weft_plan_t *plan, const options_t *options, char digest[65])
{
    rank_t ranks[MAX_WORLD];
    run_ranks(plan, options, ranks);
    for (uint32_t r = 0; r < options->world; r++) {
        if (ranks[r].status != WEFT_OK) {
            print_error("%s, rank %u: %s\n", options->algorithm, r, ranks[r].message);
        }
        assert_int_equal(ranks[r].status, WEFT_OK);
        assert_string_equal(ranks[r].digest, ranks[0].digest);
        assert_int_equal(ranks[r].schedules, ranks[0].schedules);
    }
    schedules = ranks[0].schedules;
    strcpy(digest, ranks[0].digest);
    return ranks[0].interpreted;
}

static weft_plan_t *compile(uint32_t world, const char *bucket)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = MODEL;
    params.world_size = world;
    params.batch = BATCH;
    params.bucket = bucket;
    if (weft_compile(&params, &plan) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

static void test_every_algorithm_trains_to_the_same_bits(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static const uint32_t worlds[] = {3};
#else
    static const uint32_t worlds[] = {2, 3, 5};
#endif
    static const weft_collective_t ops[] = {WEFT_COLLECTIVE_ALL_REDUCE, WEFT_COLLECTIVE_BROADCAST};
    const weft_algorithm_t *algorithm;
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        char expected[65], digest[65], asked[64];
        uint32_t tried = 0, interpreted = 0;
        weft_plan_t *plan = compile(worlds[w], w == 0 ? "none" : "bytes:512K");
        options_t plain = {.world = worlds[w], .algorithm = "mesh"};
        assert_int_equal(train(plan, &plain, expected), 0); /* as records */
        for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
            weft_algo_params_t params = {.struct_size = sizeof params,
                                         .op = algorithm->op,
                                         .group_size = worlds[w],
                                         .in_place = 1};
            if ((algorithm->op != ops[0] && algorithm->op != ops[1]) ||
                algorithm->eligible(&params) != NULL) {
                continue;
            }
            snprintf(asked, sizeof asked, "%s=%s", weft_collective_name(algorithm->op),
                     algorithm->name);
            options_t options = {.world = worlds[w],
                                 .progress =
                                     tried % 2 == 0 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD,
                                 .algorithm = asked,
                                 .staging = tried % 3 == 1 ? "16K" : NULL};
            interpreted += train(plan, &options, digest) > 0;
            assert_string_equal(digest, expected);
            tried++;
        }
        print_message("%u ranks: %u algorithms, %u interpreted\n", worlds[w], tried, interpreted);
        assert_true(tried >= 6 && interpreted >= 2);
        weft_plan_release(plan);
    }
}

static void test_plans_run_over_links_that_put(void **state)
{
    (void)state;
    static const uint32_t hosts[2][5] = {{0, 1, 2, 3, 4}, {0, 0, 1, 1, 2}};
    static const char *const asked[] = {NULL, "AllReduce=halving-doubling"};
    char expected[65], digest[65];
    weft_plan_t *plan = compile(5, "bytes:512K");
    options_t plain = {.world = 5};
    train(plan, &plain, expected);
    for (uint32_t i = 0; i < 2; i++) {
        options_t options = {.world = 5,
                             .progress = i == 0 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD,
                             .algorithm = asked[i],
                             .host_of = hosts[i]};
        assert_int_equal(train(plan, &options, digest), plan->collective_count);
        assert_string_equal(digest, expected);
        print_message("%u schedules for %u collectives\n", schedules, plan->collective_count);
        assert_true(schedules < plan->collective_count);
    }
    weft_plan_release(plan);
}

/* The first of the plan's list that runs here: not one of another order, nor one nobody knows. */
static void test_the_first_of_the_list_that_runs_is_taken(void **state)
{
    (void)state;
    static wefti_plan_algorithm_t list[] = {{.name = "nobody's"},
                                            {.name = "ring"},
                                            {.name = "mesh", .capabilities = 1ull << 60},
                                            {.name = "halving-doubling"},
                                            {.name = "mesh"}};
    char expected[65], digest[65];
    weft_plan_t *plan = compile(3, "bytes:512K");
    options_t plain = {.world = 3};
    train(plan, &plain, expected);
    uint32_t changed = 0;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        if (plan->collectives[i].op == WEFT_COLLECTIVE_ALL_REDUCE) {
            plan->collectives[i].algorithms = list;
            plan->collectives[i].algorithm_count = 5;
            changed++;
        }
    }
    assert_int_equal(train(plan, &plain, digest), changed);
    assert_string_equal(digest, expected);
    rank_t ranks[MAX_WORLD];
    plan->collectives[0].algorithm_count = 3;
    run_ranks(plan, &plain, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(ranks[r].message, "none of its 3 algorithms can run"));
    }
    weft_plan_release(plan);
}

static const char *any_params(const weft_algo_params_t *params)
{
    (void)params;
    return NULL;
}

static void lane_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->lanes = 3;
    out->phases = 3;
    out->blocks = 3 * params->group_size;
}

/* A mesh for each third of the vector, side by side; each lane waits for all before it ends. */
static void build_lanes(const weft_algo_params_t *params, weft_schedule_builder_t *builder)
{
    uint32_t n = params->group_size;
    for (uint32_t lane = 0; lane < 3; lane++) {
        uint32_t block = lane * n + params->rank;
        weft_place_t from = {0, n, WEFT_ALGO_BUFFER_SEND, block, 1};
        weft_place_t to = {0, n, WEFT_ALGO_BUFFER_RECV, block, 1};
        weft_schedule_post(builder, lane, 1);
        weft_schedule_wait(builder, lane, 0, n, lane, 1, 0);
        weft_schedule_reduce(builder, lane, &to, 1, &from, 1, (weft_blocks_t){block, 1, 1}, 1);
        weft_schedule_post(builder, lane, 2);
        for (uint32_t theirs = 3; theirs-- > 0;) {
            weft_schedule_wait(builder, lane, 0, n, theirs, 2, 0);
        }
    }
}

static void build_hasty(const weft_algo_params_t *params, weft_schedule_builder_t *builder)
{
    weft_place_t from = {0, params->group_size, WEFT_ALGO_BUFFER_SEND, params->rank, 1};
    weft_place_t to = {0, params->group_size, WEFT_ALGO_BUFFER_RECV, params->rank, 1};
    weft_schedule_reduce(builder, 0, &to, 1, &from, 1, (weft_blocks_t){params->rank, 1, 1}, 1);
    weft_schedule_post(builder, 0, 2);
    weft_schedule_wait(builder, 0, 0, params->group_size, 0, 2, 0);
}

/* An algorithm of the caller's, of several lanes: some wait while others go on. */
static void test_lanes_of_a_callers_algorithm_go_on_by_themselves(void **state)
{
    (void)state;
    static const weft_algorithm_t lanes = {WEFT_ALGO_ABI_VERSION,
                                           WEFT_COLLECTIVE_ALL_REDUCE,
                                           "lanes",
                                           "",
                                           any_params,
                                           lane_resources,
                                           build_lanes};
    static wefti_plan_algorithm_t list[] = {{.name = "lanes"}};
    weft_algo_params_t params = {.struct_size = sizeof params, .group_size = 3, .in_place = 1};
    weft_registry_t *registry;
    char expected[65], digest[65];
    weft_plan_t *plan = compile(3, "bytes:512K");
    options_t options = {.world = 3};
    if (weft_algorithm_verify(&lanes, &params) < 0) {
        fail_msg("%s", weft_last_error());
    }
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    assert_int_equal(weft_registry_add_algorithm(registry, &lanes), WEFT_OK);
    train(plan, &options, expected);
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        if (plan->collectives[i].op == WEFT_COLLECTIVE_ALL_REDUCE) {
            plan->collectives[i].algorithms = list;
        }
    }
    options.registry = registry;
    for (int progress = WEFT_PROGRESS_INLINE; progress <= WEFT_PROGRESS_THREAD; progress++) {
        options.progress = (weft_progress_t)progress;
        assert_true(train(plan, &options, digest) > 1);
        assert_string_equal(digest, expected);
    }
    /* The same without its first wait reads what is not there yet: proved before anybody runs it.
     */
    static const weft_algorithm_t hasty = {WEFT_ALGO_ABI_VERSION,
                                           WEFT_COLLECTIVE_ALL_REDUCE,
                                           "hasty",
                                           "",
                                           any_params,
                                           lane_resources,
                                           build_hasty};
    rank_t ranks[MAX_WORLD];
    list[0].name = "hasty";
    assert_int_equal(weft_registry_add_algorithm(registry, &hasty), WEFT_OK);
    run_ranks(plan, &options, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(ranks[r].message, "hasty: verification failed"));
    }
    list[0].name = "lanes";
    weft_plan_release(plan);
    weft_registry_destroy(registry);
}

static void test_what_cannot_be_honoured_is_an_error_everywhere(void **state)
{
    (void)state;
    rank_t ranks[MAX_WORLD];
    weft_plan_t *plan = compile(3, "one");
    options_t ring = {.world = 3, .algorithm = "AllReduce=ring"};
    run_ranks(plan, &ring, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(ranks[r].message, "WEFT_ALGO selects AllReduce algorithm \"ring\""));
    }
    options_t different = {.world = 3,
                           .rank_1 = wefti_algorithm_find(WEFT_COLLECTIVE_ALL_REDUCE, "doubling")};
    run_ranks(plan, &different, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, WEFT_ERR_MISMATCH);
        assert_non_null(strstr(ranks[r].message, "different algorithms"));
    }
    options_t tiny = {.world = 3, .algorithm = "AllReduce=doubling", .staging = "4K"};
    run_ranks(plan, &tiny, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, WEFT_OK);
    }
    weft_plan_release(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_trains_to_the_same_bits),
        cmocka_unit_test(test_plans_run_over_links_that_put),
        cmocka_unit_test(test_the_first_of_the_list_that_runs_is_taken),
        cmocka_unit_test(test_lanes_of_a_callers_algorithm_go_on_by_themselves),
        cmocka_unit_test(test_what_cannot_be_honoured_is_an_error_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
