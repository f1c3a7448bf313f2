/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links that break under groups: what is in flight ends with an error that names the link, on all
 * ranks, and calls after that work again. Ranks stay in step by the count of their calls.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "support_ranks.h"

#include "runtime/group/group.h"
#include "tests/faults/hook.h"
#include "tests/support/support.h"

#define MAX_RANKS 8u
#define MAX_CALLS 64u

static const uint32_t apart[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint32_t two_by_three[MAX_RANKS] = {0, 0, 0, 1, 1, 1};
static const uint32_t uneven[MAX_RANKS] = {4, 1, 1, 4, 1, 9, 9, 1};

typedef struct plan {
    const char *rules;
    uint32_t calls;
    uint64_t count; /* elements */
    bool streams;
    uint32_t failed[MAX_RANKS], last_failed[MAX_RANKS]; /* by rank */
} plan_t;

static void attach(rank_world_t *world, const char *text)
{
    wefti_hook_rules_t rules;
    RANK_OK(wefti_hook_parse(text, &rules));
    RANK_OK(wefti_hook_attach(world->context->endpoint, &rules));
}

static float value_of(uint32_t call, uint32_t rank, uint64_t i)
{
    return (float)((call * 31 + rank * 7 + i) % 1000);
}

/* One of several operators, by the call's number; checked. */
static weft_status_t call_one(rank_world_t *world, uint32_t call, uint64_t count, float *x)
{
    uint32_t n = world->size, root = call % n;
    weft_status_t status;
    for (uint64_t i = 0; i < count; i++) {
        x[i] = value_of(call, world->rank, i);
    }
    if (call % 3 == 0) {
        status = weft_broadcast(x, x, count, WEFT_DTYPE_F32, root, world->group, NULL);
    } else if (call % 3 == 1) {
        status =
            weft_all_reduce(x, x, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    } else {
        memcpy(x + world->rank * count, x, count * sizeof *x);
        status =
            weft_all_gather(x + world->rank * count, x, count, WEFT_DTYPE_F32, world->group, NULL);
    }
    for (uint64_t i = 0; status == WEFT_OK && i < count; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < n; r++) {
            sum += value_of(call, r, i);
            RANK_CHECK(call % 3 != 2 || x[r * count + i] == value_of(call, r, i));
        }
        RANK_CHECK(call % 3 != 1 || x[i] == sum);
        RANK_CHECK(call % 3 != 0 || x[i] == value_of(call, root, i));
    }
    return status;
}

static void run_calls(rank_world_t *world)
{
    plan_t *plan = world->user;
    float *x = calloc((size_t)plan->count * world->size + 1, sizeof *x);
    attach(world, plan->rules);
    for (uint32_t call = 1; call <= plan->calls; call++) {
        weft_status_t status = call_one(world, call, plan->count, x);
        if (status == WEFT_ERR_LINK) {
            RANK_CHECK(strstr(weft_last_error(), "the link between rank") != NULL);
            plan->failed[world->rank]++;
            plan->last_failed[world->rank] = call;
        } else {
            RANK_OK(status);
        }
    }
    RANK_OK(weft_group_status(world->group));
    free(x);
}

/* Every rank saw an error, and the last one was the same call for all. */
static void check_in_step(const plan_t *plan, uint32_t size, uint32_t least)
{
    for (uint32_t r = 0; r < size; r++) {
        assert_true(plan->failed[r] >= least && plan->failed[r] <= least * 3);
        assert_int_equal(plan->last_failed[r], plan->last_failed[0]);
        assert_true(plan->last_failed[r] < plan->calls);
    }
}

static void test_calls_go_on_after_a_fault(void **state)
{
    (void)state;
    static const struct {
        uint32_t size;
        const uint32_t *host_of;
        uint32_t from, to;
        uint32_t first_from, first_to; /* hosted groups use links between first ranks for certain */
    } shapes[] = {{2, apart, 0, 1, 0, 1},
                  {3, apart, 2, 1, 2, 1},
                  {6, two_by_three, 1, 4, 0, 3},
                  {8, uneven, 5, 3, 5, 0}};
    bool hosted = getenv("WEFT_TEST_MESH_RANKS") != NULL;
    static const uint64_t counts[] = {3, 900, 9000};
    uint64_t random = support_seed();
    for (uint32_t shape = 0; shape < 4; shape++) {
        for (uint32_t i = 0; i < 6; i++) {
            char rules[64];
            plan_t plan = {.rules = rules, .calls = 16, .count = counts[i % 3]};
            uint32_t at = 1 + (uint32_t)(test_next_random(&random) % 9);
            wefti_hub_links_t links = {.host_of = shapes[shape].host_of,
                                       .seed = test_next_random(&random),
                                       .max_delay_ns = i * 20000};
            snprintf(rules, sizeof rules, "break:%u-%u:%u",
                     hosted ? shapes[shape].first_from : shapes[shape].from,
                     hosted ? shapes[shape].first_to : shapes[shape].to, at);
            support_rank_threads_over(shapes[shape].size, run_calls, &plan, &links);
            check_in_step(&plan, shapes[shape].size, 1);
        }
    }
}

/* Two links, one soon after the other, and one that breaks while the group is mended. */
static void test_faults_upon_faults(void **state)
{
    (void)state;
    static const char *const rules[] = {"break:0-1:5;break:2-0:6", "break:0-1:5;break:0-1:6",
                                        "break:1-2:4;break:0-1:9;break:2-1:7",
                                        "break:0-2:1;break:1-0:1;break:2-1:1"};
    for (uint32_t i = 0; i < 4; i++) {
        for (uint64_t seed = 1; seed < 6; seed++) {
            plan_t plan = {.rules = rules[i], .calls = 40, .count = 700};
            wefti_hub_links_t links = {
                .host_of = apart, .seed = seed, .max_delay_ns = seed * 30000};
            support_rank_threads_over(3, run_calls, &plan, &links);
            for (uint32_t r = 0; r < 3; r++) {
                assert_true(plan.failed[r] >= 1);
                assert_int_equal(plan.last_failed[r], plan.last_failed[0]);
                assert_true(plan.last_failed[r] < plan.calls);
            }
        }
    }
}

/* ---- streams ---- */

static weft_status_t enqueue(rank_world_t *world, weft_stream_t *stream, uint32_t count, float *x)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        x[i] = (float)(world->rank + i);
        status = weft_all_reduce(x + i, x + i, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                                 stream);
    }
    return status;
}

static void run_streams(rank_world_t *world)
{
    plan_t *plan = world->user;
    float x[16];
    weft_stream_t *stream = NULL;
    weft_status_t status = WEFT_OK;
    attach(world, plan->rules);
    /* Whoever gets the error starts over with a new stream; a few rounds, and all are whole. */
    for (uint32_t round = 1, good = 0; good < 3; round++) {
        RANK_CHECK(round < 20);
        if (stream == NULL) {
            RANK_OK(weft_stream_create(world->context, NULL, &stream));
        }
        status = enqueue(world, stream, 8, x);
        weft_status_t waited = weft_stream_synchronize(stream);
        status = status == WEFT_OK ? waited : status;
        if (status == WEFT_OK) {
            good++;
            for (uint32_t i = 0; i < 8; i++) {
                RANK_CHECK(x[i] == (float)(world->size * i + world->size * (world->size - 1) / 2));
            }
            continue;
        }
        good = 0;
        RANK_CHECK(status == WEFT_ERR_LINK);
        plan->failed[world->rank]++;
        weft_stream_destroy(stream);
        stream = NULL;
    }
    weft_stream_destroy(stream);
}

static void test_streams_end_with_the_error(void **state)
{
    (void)state;
    static const char *const progress[] = {"inline", "thread"};
    for (uint32_t p = 0; p < 2; p++) {
        setenv("WEFT_PROGRESS", progress[p], 1);
        for (uint64_t seed = 1; seed < 6; seed++) {
            char rules[32];
            plan_t plan = {.rules = rules};
            wefti_hub_links_t links = {
                .host_of = apart, .seed = seed, .max_delay_ns = seed * 20000};
            snprintf(rules, sizeof rules, "break:0-1:%u", (unsigned)(seed * 3));
            support_rank_threads_over(3, run_streams, &plan, &links);
            for (uint32_t r = 0; r < 3; r++) {
                assert_true(plan.failed[r] >= 1);
            }
        }
    }
    unsetenv("WEFT_PROGRESS");
}

/* ---- other groups, sends, no fallback ---- */

static void run_groups(rank_world_t *world)
{
    weft_group_t *pair = NULL, *later = NULL;
    float x = 1;
    RANK_OK(weft_group_split(world->group, world->rank / 2, 0, &pair)); /* 0 1 | 2 3 */
    RANK_OK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, pair, NULL));
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_OK(weft_context_barrier(world->context)); /* it is over everywhere */
    if (world->rank == 0) {
        RANK_OK(wefti_fault_break_link(world->context->endpoint, 1,
                                       "the link between rank 0 and rank 1 is cut"));
    }
    RANK_OK(weft_context_barrier(world->context));
    x = 1; /* the pair without the link goes on, the other one and the world end once */
    weft_status_t status =
        weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, pair, NULL);
    RANK_CHECK(status == (world->rank < 2 ? WEFT_ERR_LINK : WEFT_OK));
    RANK_CHECK(weft_group_status(pair) == status);
    RANK_CHECK(weft_group_status(world->group) == WEFT_ERR_LINK);
    RANK_CHECK(strstr(weft_last_error(), "rank 0 and rank 1 is cut") != NULL);
    /* A group that is made now knows nothing of it. */
    RANK_OK(weft_group_duplicate(world->group, &later));
    x = 2;
    RANK_OK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, later, NULL));
    RANK_CHECK(x == 8);
    RANK_CHECK(weft_barrier(world->group, NULL) == WEFT_ERR_LINK);
    RANK_OK(weft_barrier(world->group, NULL));
    x = 3;
    RANK_OK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, pair, NULL));
    RANK_CHECK(x == 6);
    weft_group_destroy(pair);
    weft_group_destroy(later);
}

static void test_only_groups_with_the_link_fail(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 5, .max_delay_ns = 30000};
    support_rank_threads_over(4, run_groups, NULL, &links);
}

/* A piece that was sent and not received is lost: both ends repeat it. */
static void run_pairs(rank_world_t *world)
{
    float data[5000], got[5000];
    uint32_t peer = 1 - world->rank;
    for (uint32_t i = 0; i < 5000; i++) {
        data[i] = (float)(world->rank * 10000 + i);
    }
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_OK(weft_context_barrier(world->context)); /* it is over everywhere */
    if (world->rank == 0) {
        RANK_OK(
            weft_send(data, 1, WEFT_DTYPE_F32, peer, world->group, NULL)); /* into the mailbox */
        RANK_OK(wefti_fault_break_link(world->context->endpoint, 1, "the link is cut"));
    }
    RANK_OK(weft_context_barrier(world->context));
    RANK_CHECK(weft_barrier(world->group, NULL) == WEFT_ERR_LINK);
    RANK_OK(weft_batch_begin(world->group));
    RANK_OK(weft_send(data, 5000, WEFT_DTYPE_F32, peer, world->group, NULL));
    RANK_OK(weft_recv(got, 5000, WEFT_DTYPE_F32, peer, world->group, NULL));
    RANK_OK(weft_batch_end(world->group, NULL));
    for (uint32_t i = 0; i < 5000; i++) {
        RANK_CHECK(got[i] == (float)(peer * 10000 + i));
    }
}

static void test_sends_begin_anew(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 6, .max_delay_ns = 30000};
    support_rank_threads_over(2, run_pairs, NULL, &links);
}

static void run_no_fallback(rank_world_t *world)
{
    plan_t *plan = world->user;
    float x[900] = {1};
    weft_status_t status = WEFT_OK;
    attach(world, plan->rules);
    for (uint32_t call = 0; call < 20 && status == WEFT_OK; call++) {
        status = weft_all_reduce(x, x, 900, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_LINK);
    RANK_CHECK(strstr(weft_last_error(), "the link between rank 0 and rank 1 broke") != NULL);
    for (uint32_t call = 0; call < 3; call++) { /* it stays so, and nobody waits */
        status = weft_all_reduce(x, x, 900, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
        RANK_CHECK(status == WEFT_ERR_LINK);
    }
    RANK_OK(weft_context_barrier(world->context)); /* the world goes on */
}

static void test_without_fallback_the_group_stays_broken(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 7, .max_delay_ns = 30000};
    plan_t plan = {.rules = "break:1-0:7"};
    setenv("WEFT_FALLBACK", "off", 1);
    support_rank_threads_over(3, run_no_fallback, &plan, &links);
    unsetenv("WEFT_FALLBACK");
}

/* A rank that never calls again is named by those who mend. */
static void run_late(rank_world_t *world)
{
    float x = 1;
    weft_status_t status = WEFT_OK;
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_OK(weft_context_barrier(world->context)); /* it is over everywhere */
    if (world->rank == 0) {
        RANK_OK(wefti_fault_break_link(world->context->endpoint, 1, "the link is cut"));
    }
    RANK_OK(weft_context_barrier(world->context));
    if (world->rank == 2) {
        while ((status = weft_group_status(world->group)) == WEFT_ERR_LINK) {
            wefti_sleep_ns(1000000);
        }
    } else {
        status = weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
        RANK_CHECK(status == WEFT_ERR_LINK);
        status = weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "late: rank 2") != NULL);
}

static void test_mending_waits_for_all(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 8, .max_delay_ns = 30000};
    setenv("WEFT_TIMEOUT", "2", 1);
    support_rank_threads_over(3, run_late, NULL, &links);
    unsetenv("WEFT_TIMEOUT");
}

/* A rank that gives the group up instead ends it for those who recover it. */
static void run_given_up(rank_world_t *world)
{
    float x = 1;
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_OK(weft_context_barrier(world->context)); /* it is over everywhere */
    if (world->rank == 0) {
        RANK_OK(wefti_fault_break_link(world->context->endpoint, 1, "the link is cut"));
    }
    RANK_OK(weft_context_barrier(world->context));
    if (world->rank == 2) {
        RANK_CHECK(weft_group_status(world->group) == WEFT_ERR_LINK);
        weft_group_destroy(world->group);
        world->group = NULL;
        RANK_OK(weft_context_barrier(world->context)); /* it does not leave the world */
        return;
    }
    weft_status_t status;
    do { /* once for the link */
        status = weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    } while (status == WEFT_ERR_LINK);
    RANK_CHECK(status == WEFT_ERR_ABORTED);
    RANK_CHECK(strstr(weft_last_error(), "rank 2 destroyed a group") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "the link is cut") != NULL);
    RANK_OK(weft_context_barrier(world->context));
}

static void test_destroying_ends_recovery(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 9, .max_delay_ns = 30000};
    support_rank_threads_over(3, run_given_up, NULL, &links);
}

static void *hear_later(void *user)
{
    rank_world_t *world = user;
    const wefti_link_fault_t fault = {.ranks = {0, 1}, .driver = "test", .text = "it broke"};
    wefti_sleep_ns(200000000);
    (void)wefti_endpoint_note_fault(world->context->endpoint, &fault);
    return NULL;
}

/* One rank knows of a fault, the other does not yet: the new group has it behind it on both. */
static void run_hearsay(rank_world_t *world)
{
    weft_group_t *group;
    pthread_t thread;
    const wefti_link_fault_t fault = {.ranks = {0, 1}, .driver = "test", .text = "it broke"};
    weft_group_destroy(world->group);
    world->group = NULL;
    if (world->rank == 0) {
        RANK_OK(wefti_endpoint_note_fault(world->context->endpoint, &fault));
    }
    RANK_OK(weft_context_barrier(world->context));
    if (world->rank == 1) {
        RANK_CHECK(pthread_create(&thread, NULL, hear_later, world) == 0);
    }
    RANK_OK(weft_group_create_world(world->context, &group));
    RANK_CHECK(world->context->endpoint->link_faults == 1);
    if (world->rank == 1) {
        pthread_join(thread, NULL);
    }
    RANK_OK(weft_group_status(group));
    weft_group_destroy(group);
}

static void test_new_groups_know_all_faults(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 10, .max_delay_ns = 30000};
    support_rank_threads_over(2, run_hearsay, NULL, &links);
}

/* ---- sessions ---- */

/* Trains from the start; the status of the first step that failed. */
static weft_status_t train(rank_world_t *world, const training_t *training, weft_session_t *session)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t step = 0; step < training->steps && status == WEFT_OK; step++) {
        float x[SUPPORT_INPUTS];
        support_inputs(world->rank, step, x);
        RANK_OK(weft_session_set_input(session, "x", x, sizeof x));
        status = weft_session_step(session);
    }
    return status;
}

/* Whoever gets the error makes a new session, and so do the others: together. */
static void run_sessions(rank_world_t *world)
{
    const training_t *training = world->user;
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    char expected[65], digest[65], rules[64];
    RANK_OK(support_registry(true, &registry));
    RANK_OK(support_plan(training, false, &plan));
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = plan;
    params.registry = registry;
    snprintf(rules, sizeof rules, "break:1-2:%u;break:0-1:60", 30 + training->buckets * 7);
    attach(world, rules);
    world->context->log = (wefti_log_t){support_quiet, NULL, WEFT_LOG_LEVEL_ERROR};
    uint32_t failed = 0;
    for (uint8_t good = 0; !good;) {
        weft_session_t *session = NULL;
        uint8_t all[8];
        weft_status_t status = weft_session_create(&params, &session);
        bool made = status == WEFT_OK;
        status = made ? train(world, training, session) : status;
        if (status != WEFT_OK) {
            RANK_CHECK(status == WEFT_ERR_LINK);
            RANK_CHECK(strstr(weft_last_error(), "the link between rank") != NULL);
            RANK_CHECK(!made || weft_session_step(session) == WEFT_ERR_LINK); /* it stays so */
            failed++;
        } else {
            RANK_OK(weft_session_param_digest(session, digest));
        }
        good = status == WEFT_OK;
        RANK_OK(weft_context_all_gather(world->context, &good, 1, all));
        for (uint32_t r = 0; r < world->size; r++) {
            good = good && all[r];
        }
        weft_session_destroy(session);
    }
    support_expect(training, expected);
    RANK_CHECK(strcmp(digest, expected) == 0);
    RANK_CHECK(failed > 0);
    weft_plan_release(plan);
    weft_registry_destroy(registry);
}

static void test_a_new_session_goes_on(void **state)
{
    (void)state;
    static const support_mode_t modes[] = {SUPPORT_WHOLE, SUPPORT_SHARDED, SUPPORT_DECOUPLED};
    static const char *const progress[] = {"inline", "thread"};
    for (uint32_t i = 0; i < 6; i++) {
        training_t training = {.world = 3, .steps = 8, .buckets = 1 + i % 3, .mode = modes[i % 3]};
        wefti_hub_links_t links = {.host_of = apart, .seed = i, .max_delay_ns = 20000};
        setenv("WEFT_PROGRESS", progress[i / 3], 1);
        support_rank_threads_over(3, run_sessions, &training, &links);
    }
    unsetenv("WEFT_PROGRESS");
}

/* A rank of another host that leaves before the others are done: none of them waits until
 * WEFT_TIMEOUT. */
static void run_session_left(rank_world_t *world)
{
    const training_t *training = world->user;
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    weft_session_t *session = NULL;
    RANK_OK(support_registry(true, &registry));
    RANK_OK(support_plan(training, false, &plan));
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = plan;
    params.registry = registry;
    world->context->log = (wefti_log_t){support_quiet, NULL, WEFT_LOG_LEVEL_ERROR};
    RANK_OK(weft_session_create(&params, &session));
    if (world->rank != 1) {
        uint64_t begin = wefti_now_ns();
        weft_status_t status = train(world, training, session);
        RANK_CHECK(status == WEFT_ERR_PEER_DIED);
        RANK_CHECK(wefti_now_ns() - begin < 300000000000ull); /* the deadline is ten minutes */
    }
    weft_session_destroy(session);
    weft_plan_release(plan);
    weft_group_leave(world->group);
    weft_context_release(world->context);
    weft_registry_destroy(registry);
    world->group = NULL;
    world->context = NULL;
}

static void test_session_with_a_rank_that_left(void **state)
{
    (void)state;
    static const char *const progress[] = {"inline", "thread"};
    for (uint32_t i = 0; i < 2; i++) {
        training_t training = {.world = 3, .steps = 8, .buckets = 2, .mode = SUPPORT_WHOLE};
        wefti_hub_links_t links = {.host_of = apart, .seed = 77, .max_delay_ns = 20000};
        setenv("WEFT_PROGRESS", progress[i], 1);
        support_rank_threads_over(3, run_session_left, &training, &links);
    }
    unsetenv("WEFT_PROGRESS");
}

/* ---- who is late ---- */

typedef struct lines {
    char text[4096];
    uint32_t count;
} lines_t;

static void keep_line(void *user, weft_log_level_t level, const char *line)
{
    lines_t *lines = user;
    if (level == WEFT_LOG_LEVEL_WARN) {
        lines->count++;
        size_t used = strlen(lines->text);
        snprintf(lines->text + used, sizeof lines->text - used, "%s\n", line);
    }
}

static void keep_lines(rank_world_t *world, lines_t *lines)
{
    world->context->log = (wefti_log_t){keep_line, lines, WEFT_LOG_LEVEL_WARN};
}

static void run_warned(rank_world_t *world)
{
    lines_t lines = {"", 0};
    uint32_t counts[3];
    float x = 1;
    RANK_OK(weft_context_barrier(world->context));
    keep_lines(world, &lines);
    if (world->rank == 1) { /* this is what it is late by */
        wefti_sleep_ns(250000000);
    }
    RANK_OK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    world->context->log = (wefti_log_t){NULL, NULL, WEFT_LOG_LEVEL_WARN};
    RANK_OK(weft_context_all_gather(world->context, &lines.count, sizeof lines.count, counts));
    if (world->rank !=
        1) { /* not at every look, and by one of the others unless it was very late */
        RANK_CHECK(counts[0] + counts[2] >= 1 && lines.count <= 5);
    }
    if (world->rank != 1 && lines.count > 0) {
        RANK_CHECK(strstr(lines.text, "in all_reduce with 1 x f32 (sum) (call ") != NULL);
        RANK_CHECK(strstr(lines.text, "; late: rank ") != NULL);
    }
}

static void run_slow_link(rank_world_t *world)
{
    lines_t lines = {"", 0};
    enum { COUNT = 600000 };
    float *x = calloc(COUNT * 3ul, sizeof *x);
    keep_lines(world, &lines);
    attach(world, "rate:0-2:3M;rate:2-0:3M;rate:*-*:200M");
    RANK_OK(weft_all_gather(x, x + COUNT * 0ul, 0, WEFT_DTYPE_F32, world->group, NULL));
    RANK_OK(weft_all_gather(x + world->rank * (size_t)COUNT, x, COUNT, WEFT_DTYPE_F32, world->group,
                            NULL));
    if (world->rank != 1) {
        char expected[64];
        snprintf(expected, sizeof expected, "link to rank %u runs at", 2 - world->rank);
        RANK_CHECK(strstr(lines.text, "late: rank") != NULL);
        RANK_CHECK(strstr(lines.text, expected) != NULL);
    }
    RANK_OK(weft_barrier(world->group, NULL));
    world->context->log = (wefti_log_t){NULL, NULL, WEFT_LOG_LEVEL_WARN};
    free(x);
}

static void test_late_ranks_are_reported(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 9, .max_delay_ns = 1000};
    setenv("WEFT_LATE", "0.06", 1);
    support_rank_threads(3, run_warned, NULL);
    support_rank_threads_over(3, run_warned, NULL, &links);
    support_rank_threads_over(3, run_slow_link, NULL, &links);
    unsetenv("WEFT_LATE");
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    setenv("WEFT_STAGING_BYTES", "64K", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_go_on_after_a_fault),
        cmocka_unit_test(test_faults_upon_faults),
        cmocka_unit_test(test_streams_end_with_the_error),
        cmocka_unit_test(test_only_groups_with_the_link_fail),
        cmocka_unit_test(test_sends_begin_anew),
        cmocka_unit_test(test_without_fallback_the_group_stays_broken),
        cmocka_unit_test(test_mending_waits_for_all),
        cmocka_unit_test(test_destroying_ends_recovery),
        cmocka_unit_test(test_new_groups_know_all_faults),
        cmocka_unit_test(test_a_new_session_goes_on),
        cmocka_unit_test(test_session_with_a_rank_that_left),
        cmocka_unit_test(test_late_ranks_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
