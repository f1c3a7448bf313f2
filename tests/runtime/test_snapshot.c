/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of real plans: the ranks that are left hold everything, whichever rank is missing, in
 * whatever way state is sharded, on every kind of link and device, and may be of any number.
 */
#include "support.h"

#include "support_cards.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 4u
#define MAX_RANKS 4u
#define GONE UINT32_MAX
#define MLP WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx"
#define LENET WEFT_SOURCE_DIR "/tests/data/torch_lenet_avgpool_batch4.onnx"

typedef enum where { THREADS, HOSTS, CARDS } where_t;

typedef struct kind {
    const char *model, *optimizer, *bucket;
    bool shard, decouple, parameters;
    where_t where;
} kind_t;

typedef struct job {
    weft_plan_t *plan;
    uint32_t until;       /* steps in all */
    uint32_t ahead;       /* bits of ranks that have taken one more version than the others */
    bool restores, empty; /* begins with a restore, which finds no version */
    bool lost;            /* which finds no whole version */
    weft_snapshot_t *snapshots[MAX_RANKS]; /* [rank] */
    char digests[STEPS + 1][65];           /* of rank 0, after each step */
} job_t;

static weft_plan_t *compile(const kind_t *kind, uint32_t world)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = kind->model;
    params.world_size = world;
    params.optimizer = kind->optimizer;
    params.bucket = kind->bucket;
    params.shard_optimizer = kind->shard;
    params.decouple = kind->decouple;
    params.shard_parameters = kind->parameters;
    if (weft_compile(&params, &plan) < 0) {
        print_error("%s\n", weft_last_error());
        fail();
    }
    return plan;
}

static void run(job_t *job, const kind_t *kind, rank_fn run_rank, uint32_t world)
{
    static const uint32_t host_of[] = {0, 0, 1, 1};
    const wefti_hub_links_t links = {host_of, 7, 10000};
    job->plan = compile(kind, world);
    if (kind->where == CARDS) {
        support_card_contexts(world, run_rank, job);
    } else {
        support_rank_threads_over(world, run_rank, job, kind->where == HOSTS ? &links : NULL);
    }
    weft_plan_release(job->plan);
    job->plan = NULL;
}

static void take_digest(job_t *job, weft_session_t *session, uint32_t rank, uint64_t step)
{
    char digest[65];
    support_digest_state(session, digest);
    if (rank == 0) {
        memcpy(job->digests[step], digest, sizeof digest);
    }
}

static void expect_nothing(job_t *job, rank_world_t *world, weft_session_t *session)
{
    char before[65], after[65];
    support_digest_state(session, before);
    RANK_CHECK(weft_snapshot_restore(job->snapshots[world->rank], session, world->group, NULL) ==
               WEFT_ERR_NOT_FOUND);
    RANK_CHECK(strstr(weft_last_error(), job->lost ? "the shards of rank" : "empty") != NULL);
    support_digest_state(session, after);
    RANK_CHECK(strcmp(before, after) == 0);
}

/* The steps done. */
static uint32_t restore(job_t *job, rank_world_t *world, weft_session_t *session)
{
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    weft_snapshot_info_t held = WEFT_SNAPSHOT_INFO_INIT;
    double lr = 0;
    RANK_OK(weft_snapshot_restore(job->snapshots[world->rank], session, world->group, &info));
    RANK_OK(weft_session_get_scalar(session, "lr", &lr));
    RANK_CHECK(info.seed == 11 && info.sample == 32 * info.step && info.epoch == 3);
    RANK_CHECK(lr > 0.124 && lr < 0.126);
    RANK_OK(weft_snapshot_get_info(job->snapshots[world->rank], &held));
    RANK_CHECK(held.step == info.step && held.versions >= 1 && held.memory_bytes > 0);
    take_digest(job, session, world->rank, info.step);
    return (uint32_t)info.step;
}

static void train(rank_world_t *world)
{
    job_t *job = world->user;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    uint32_t first = 0;
    bool groups = world->group == NULL; /* cards have contexts only */
    if (groups) {
        RANK_OK(weft_group_create_world(world->context, &world->group));
    }
    RANK_OK(weft_session_create(&params, &session));
    if (job->empty || job->lost) {
        expect_nothing(job, world, session);
    } else if (job->restores) {
        first = restore(job, world, session);
    } else {
        RANK_OK(weft_session_set_scalar(session, "lr", 0.125));
    }
    for (uint32_t step = first; step < job->until; step++) {
        weft_checkpoint_info_t info = {.struct_size = sizeof info, .seed = 11, .epoch = 3};
        info.sample = 32ul * (step + 1);
        RANK_OK(support_feed(session, job->plan, world->rank, step));
        RANK_OK(weft_session_step(session));
        take_digest(job, session, world->rank, step + 1);
        RANK_OK(weft_snapshot_take(job->snapshots[world->rank], session, world->group, &info));
    }
    weft_session_destroy(session);
    if (groups) {
        weft_group_destroy(world->group);
        world->group = NULL;
    }
}

static void create_snapshots(job_t *job, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        assert_int_equal(weft_snapshot_create(&job->snapshots[r]), WEFT_OK);
    }
}

static void destroy_snapshots(job_t *job)
{
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        weft_snapshot_destroy(job->snapshots[r]);
    }
}

/* Trains kind on world ranks; then the ranks of the list, or new ones (GONE), continue as next. */
static void check(const kind_t *kind, uint32_t world, const kind_t *next, const uint32_t *left,
                  uint32_t count, bool lost)
{
    job_t before = {.until = STEPS - 1}, after = {.restores = true, .lost = lost};
    create_snapshots(&before, world);
    run(&before, kind, train, world);
    for (uint32_t i = 0; i < count; i++) {
        if (left[i] == GONE) {
            assert_int_equal(weft_snapshot_create(&after.snapshots[i]), WEFT_OK);
        } else {
            after.snapshots[i] = before.snapshots[left[i]];
            before.snapshots[left[i]] = NULL;
        }
    }
    run(&after, next, train, count);
    if (!lost) {
        assert_string_equal(after.digests[STEPS - 1], before.digests[STEPS - 1]);
    }
    destroy_snapshots(&before);
    destroy_snapshots(&after);
}

static const kind_t kinds[] = {
    {.model = MLP, .optimizer = "adam"},
    {.model = MLP, .optimizer = "adam", .shard = true},
    {.model = MLP, .optimizer = "adam", .parameters = true, .bucket = "bytes:300"},
    {.model = MLP, .optimizer = "momentum", .decouple = true, .bucket = "none"},
    {.model = LENET, .optimizer = "momentum", .shard = true},
};
#define KINDS (sizeof kinds / sizeof *kinds)

static void test_any_rank_may_die(void **state)
{
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        for (uint32_t dead = 0; dead < 3; dead += TEST_SANITIZED ? 2 : 1) {
            const uint32_t left[] = {dead == 0, dead == 2 ? 1 : 2};
            check(&kinds[k], 3, &kinds[k], left, 2, false);
        }
    }
}

static void test_two_that_are_no_neighbours_may_die(void **state)
{
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        check(&kinds[k], 4, &kinds[k], (const uint32_t[]){3, 1}, 2, false);
    }
    check(&kinds[1], 2, &kinds[1], (const uint32_t[]){1}, 1, false);
}

static void test_neighbours_lose_shards_only(void **state)
{
    (void)state;
    check(&kinds[0], 4, &kinds[0], (const uint32_t[]){2}, 1, false);
    check(&kinds[1], 4, &kinds[1], (const uint32_t[]){0, 3}, 2, true);
    check(&kinds[2], 3, &kinds[2], (const uint32_t[]){2}, 1, true);
}

static void test_over_put_links_and_on_cards(void **state)
{
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        kind_t kind = kinds[k];
        for (kind.where = HOSTS; kind.where <= CARDS; kind.where++) {
            check(&kind, 4, &kind, (const uint32_t[]){0, 2, 3}, 3, false);
        }
    }
}

static void test_plans_may_differ_and_new_ranks_join(void **state)
{
    (void)state;
    for (size_t k = 0; k < 4; k++) {
        const kind_t *other = &kinds[k < 3 ? 2 - k : 3];
        check(&kinds[k], 3, other, (const uint32_t[]){GONE, 2, 0, GONE}, 4, false);
        check(&kinds[k], 2, other, (const uint32_t[]){1, 0, GONE}, 3, false);
    }
}

/* Ranks that have ended their step when another dies hold one version more. */
static void take_some(rank_world_t *world)
{
    job_t *job = world->user;
    weft_snapshot_t *spare = NULL;
    weft_session_t *session = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    bool ahead = (job->ahead >> world->rank & 1u) != 0;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_set_scalar(session, "lr", 0.125));
    RANK_OK(weft_snapshot_create(&spare));
    for (uint32_t step = 0; step < STEPS; step++) {
        weft_checkpoint_info_t info = {.struct_size = sizeof info, .seed = 11, .epoch = 3};
        info.sample = 32ul * (step + 1);
        RANK_OK(support_feed(session, job->plan, world->rank, step));
        RANK_OK(weft_session_step(session));
        take_digest(job, session, world->rank, step + 1);
        RANK_OK(weft_snapshot_take(step + 1 < STEPS || ahead ? job->snapshots[world->rank] : spare,
                                   session, world->group, &info));
    }
    weft_snapshot_destroy(spare);
    weft_session_destroy(session);
}

static void test_ranks_agree_on_the_newest_version_of_all(void **state)
{
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        for (uint32_t ahead = 0; ahead < 8; ahead += TEST_SANITIZED ? 5 : 1) {
            job_t before = {.ahead = ahead}, after = {.restores = true};
            create_snapshots(&before, 3);
            run(&before, &kinds[k], take_some, 3);
            /* Rank 1 dies. Unsharded, one rank that is ahead is enough. */
            bool newest = k == 0 ? (ahead & 5u) != 0 : (ahead & 5u) == 5u;
            after.snapshots[0] = before.snapshots[0];
            after.snapshots[1] = before.snapshots[2];
            before.snapshots[0] = before.snapshots[2] = NULL;
            run(&after, &kinds[k], train, 2);
            uint32_t step = newest ? STEPS : STEPS - 1;
            assert_string_equal(after.digests[step], before.digests[step]);
            destroy_snapshots(&before);
            destroy_snapshots(&after);
        }
    }
}

/* Rank after rank dies, with steps between. */
static void test_one_after_the_other(void **state)
{
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        job_t jobs[3] = {{.until = 2}, {.until = STEPS, .restores = true}, {.restores = true}};
        create_snapshots(&jobs[0], 4);
        run(&jobs[0], &kinds[k], train, 4);
        weft_snapshot_destroy(jobs[0].snapshots[3]);
        memcpy(jobs[1].snapshots, jobs[0].snapshots, 3 * sizeof(void *));
        run(&jobs[1], &kinds[k], train, 3);
        assert_string_equal(jobs[1].digests[2], jobs[0].digests[2]);
        weft_snapshot_destroy(jobs[1].snapshots[0]);
        memcpy(jobs[2].snapshots, jobs[1].snapshots + 1, 2 * sizeof(void *));
        run(&jobs[2], &kinds[k], train, 2);
        assert_string_equal(jobs[2].digests[STEPS], jobs[1].digests[STEPS]);
        destroy_snapshots(&jobs[2]);
    }
}

static void gather(rank_world_t *world)
{
    job_t *job = world->user;
    RANK_OK(weft_snapshot_gather(job->snapshots[world->rank], world->group));
}

/* Rank 0 dies; the others give each other everything, and any one of them continues. */
static void test_every_rank_may_leave_after_a_gather(void **state)
{
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        for (uint32_t one = TEST_SANITIZED ? 1 + (uint32_t)k % 3 : 1; one < 4;
             one += TEST_SANITIZED ? 3 : 1) {
            job_t before = {.until = STEPS}, left = {0}, after = {.restores = true};
            create_snapshots(&before, 4);
            run(&before, &kinds[k], train, 4);
            memcpy(left.snapshots, before.snapshots + 1, 3 * sizeof(void *));
            run(&left, &kinds[k], gather, 3);
            after.snapshots[0] = before.snapshots[one];
            before.snapshots[one] = NULL;
            run(&after, &kinds[k], train, 1);
            assert_string_equal(after.digests[STEPS], before.digests[STEPS]);
            destroy_snapshots(&before);
            destroy_snapshots(&after);
        }
    }
}

static void test_an_empty_one_changes_nothing(void **state)
{
    job_t job = {.empty = true};
    (void)state;
    create_snapshots(&job, 2);
    run(&job, &kinds[1], train, 2);
    destroy_snapshots(&job);
}

static void misuse(rank_world_t *world)
{
    job_t *job = world->user;
    weft_snapshot_t *snapshot = job->snapshots[world->rank];
    weft_session_t *session = NULL;
    weft_group_t *other = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_group_split(world->group, 0, -(int64_t)world->rank, &other));
    RANK_CHECK(weft_snapshot_take(snapshot, session, other, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_snapshot_restore(snapshot, session, other, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_snapshot_restore(snapshot, session, world->group, NULL) == WEFT_ERR_FORMAT);
    RANK_CHECK(strstr(weft_last_error(), "snapshot: has ") != NULL);
    weft_group_destroy(other);
    weft_session_destroy(session);
}

static void test_mistakes(void **state)
{
    job_t job = {.until = 1};
    (void)state;
    create_snapshots(&job, 2);
    run(&job, &kinds[1], train, 2);
    run(&job, &kinds[4], misuse, 2);
    destroy_snapshots(&job);
}

/* Of one rank, in any call: all ranks hear of it at once, and what they have taken remains. */
static void one_passes_another_group(rank_world_t *world)
{
    job_t *job = world->user;
    weft_snapshot_t *snapshot = job->snapshots[world->rank];
    weft_session_t *session = NULL;
    weft_group_t *other = NULL;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_snapshot_info_t held = WEFT_SNAPSHOT_INFO_INIT;
    params.context = world->context;
    params.plan = job->plan;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_group_split(world->group, 0, -(int64_t)world->rank, &other));
    for (uint32_t call = 0; call < 5; call++) {
        weft_group_t *group = call % 2 == 0 && world->rank == 1 ? other : world->group;
        weft_status_t status = weft_snapshot_take(snapshot, session, group, NULL);
        RANK_CHECK(status == (call % 2 == 0 ? WEFT_ERR_INVALID_ARGUMENT : WEFT_OK));
        RANK_CHECK(status == WEFT_OK || strstr(weft_last_error(), "rank 1") != NULL ||
                   world->rank == 1);
    }
    RANK_OK(weft_snapshot_get_info(snapshot, &held));
    RANK_CHECK(held.versions == 2);
    weft_group_destroy(other);
    weft_session_destroy(session);
}

static void test_one_passes_another_group(void **state)
{
    job_t job = {.until = 0};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        create_snapshots(&job, 2);
        run(&job, &kinds[i], one_passes_another_group, 2);
        destroy_snapshots(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_rank_may_die),
        cmocka_unit_test(test_two_that_are_no_neighbours_may_die),
        cmocka_unit_test(test_neighbours_lose_shards_only),
        cmocka_unit_test(test_over_put_links_and_on_cards),
        cmocka_unit_test(test_plans_may_differ_and_new_ranks_join),
        cmocka_unit_test(test_ranks_agree_on_the_newest_version_of_all),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_every_rank_may_leave_after_a_gather),
        cmocka_unit_test(test_an_empty_one_changes_nothing),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_one_passes_another_group),
    };
    setenv("WEFT_THREADS", "1", 1); /* ranks are threads already */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
