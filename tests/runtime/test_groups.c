/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, their streams, adopted memory, and what happens when ranks disagree, are late, or die. */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support_ranks.h"

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "runtime/collective/call.h"
#include "tests/support/support.h"

/* The sum over a group's ranks of their world rank + 1. */
static void check_sum(weft_group_t *group, weft_stream_t *stream)
{
    float value[3] = {0}, expected = 0;
    for (uint32_t r = 0; r < weft_group_size(group); r++) {
        expected += (float)weft_group_world_rank(group, r) + 1;
    }
    uint32_t own = weft_group_world_rank(group, weft_group_rank(group));
    value[0] = value[1] = value[2] = (float)own + 1;
    RANK_OK(weft_all_reduce(value, value, 3, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, stream));
    if (stream != NULL) {
        RANK_OK(weft_stream_synchronize(stream));
    }
    RANK_CHECK(value[0] == expected && value[2] == expected);
}

static void run_splits(rank_world_t *world)
{
    weft_group_t *halves = NULL, *quarter = NULL, *twin = NULL, *some = NULL, *none = NULL;
    RANK_CHECK(weft_group_size(world->group) == world->size);
    RANK_CHECK(weft_group_rank(world->group) == world->rank);
    /* odd and even, in reverse order */
    RANK_OK(weft_group_split(world->group, world->rank % 2, -(int64_t)world->rank, &halves));
    RANK_CHECK(weft_group_world_rank(halves, weft_group_rank(halves)) == world->rank);
    RANK_CHECK(weft_group_world_rank(halves, 0) > weft_group_world_rank(halves, 1));
    RANK_CHECK(weft_group_world_rank(halves, 99) == UINT32_MAX);
    check_sum(halves, NULL);
    /* a split of a split, and duplicates */
    RANK_OK(weft_group_split(halves, weft_group_rank(halves) / 2, 0, &quarter));
    check_sum(quarter, NULL);
    RANK_OK(weft_group_duplicate(quarter, &twin));
    check_sum(twin, NULL);
    check_sum(quarter, NULL);
    check_sum(halves, NULL);
    check_sum(world->group, NULL);
    uint32_t list[] = {4, 1, 3};
    RANK_OK(weft_group_create_ranks(world->group, list, 3, &some));
    RANK_CHECK((some != NULL) == (world->rank == 4 || world->rank == 1 || world->rank == 3));
    if (some != NULL) {
        RANK_CHECK(weft_group_world_rank(some, 0) == 4);
        check_sum(some, NULL);
    }
    RANK_OK(weft_group_split(world->group, world->rank == 0 ? WEFT_COLOR_NONE : 7, 0, &none));
    RANK_CHECK((none == NULL) == (world->rank == 0));
    weft_group_destroy(some);
    weft_group_destroy(quarter);
    check_sum(twin, NULL);
    weft_group_destroy(halves);
    check_sum(twin, NULL);
    weft_group_destroy(twin);
    weft_group_destroy(none);
}

static void test_groups_split(void **state)
{
    (void)state;
    support_rank_threads(6, run_splits, NULL);
    assert_true(support_rank_processes_too(5, run_splits, NULL));
}

/* More groups than one pool holds, made and destroyed over and over. */
static void run_many(rank_world_t *world)
{
    weft_group_t *groups[40] = {NULL};
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t i = round % 3; i < 40; i += 3) {
            weft_group_destroy(groups[i]);
            groups[i] = NULL;
            RANK_OK(weft_group_split(world->group, (world->rank + i) % 2, 0, &groups[i]));
        }
        check_sum(groups[round % 3], NULL);
        check_sum(groups[39 - (39 - round % 3) % 3], NULL);
    }
    for (uint32_t i = 0; i < 40; i++) {
        weft_group_destroy(groups[i]);
    }
}

static void test_groups_reuse_channels(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "16K", 1);
    support_rank_threads(4, run_many, NULL);
    unsetenv("WEFT_STAGING_BYTES");
}

/* ---- ranks that make a group in different ways ---- */

typedef enum way {
    WAY_WORLD,
    WAY_SPLIT,
    WAY_DUPLICATE,
    WAY_DUPLICATE_OTHER, /* whose ranks are in another order */
    WAY_RANKS,
    WAY_RANKS_TURNED,
    WAY_COUNT,
} way_t;
static const char *const way_names[] = {"group_create_world", "group_split",
                                        "group_duplicate",    "group_duplicate",
                                        "group_create_ranks", "group_create_ranks"};

static weft_status_t make_group(way_t way, weft_context_t *context, weft_group_t *parent,
                                weft_group_t *other, weft_group_t **out_group)
{
    static const uint32_t ranks[] = {0, 1, 2}, turned[] = {2, 1, 0};
    switch (way) {
    case WAY_WORLD:
        return weft_group_create_world(context, out_group);
    case WAY_SPLIT:
        return weft_group_split(parent, 0, -(int64_t)weft_group_rank(parent), out_group);
    case WAY_DUPLICATE:
        return weft_group_duplicate(parent, out_group);
    case WAY_DUPLICATE_OTHER:
        return weft_group_duplicate(other, out_group);
    case WAY_RANKS:
        return weft_group_create_ranks(parent, ranks, 3, out_group);
    default:
        return weft_group_create_ranks(parent, turned, 3, out_group);
    }
}

/* The rank odd makes it in another way than the others: all of them are told who did what. */
static void check_ways(way_t way, way_t other_way, uint32_t odd, weft_context_t *context,
                       weft_group_t *parent, weft_group_t *other)
{
    char text[80];
    uint32_t rank = weft_group_rank(parent);
    uint32_t high = odd == 0 ? 1 : odd; /* the first rank that differs from rank 0 */
    weft_group_t *group = NULL;
    weft_status_t status =
        make_group(rank == odd ? other_way : way, context, parent, other, &group);
    RANK_CHECK(status == WEFT_ERR_MISMATCH && group == NULL);
    snprintf(text, sizeof text, "rank %u called %s", weft_group_world_rank(parent, high),
             way_names[odd == 0 ? way : other_way]);
    RANK_CHECK(strncmp(weft_last_error(), text, strlen(text)) == 0);
    snprintf(text, sizeof text, ", rank %u", weft_group_world_rank(parent, 0));
    RANK_CHECK(strstr(weft_last_error(), text) != NULL);
    RANK_CHECK(strstr(weft_last_error(), way_names[odd == 0 ? other_way : way]) != NULL);
    check_sum(parent, NULL); /* and nothing is broken */
}

static void run_ways(rank_world_t *world)
{
    weft_group_t *turned = NULL, *part = NULL, *group = NULL;
    RANK_OK(weft_group_split(world->group, 0, -(int64_t)world->rank, &turned));
    RANK_OK(weft_group_split(world->group, world->rank == 0 ? WEFT_COLOR_NONE : 0, 0, &part));
    uint32_t odd = 0;
    for (way_t way = 0; way < WAY_COUNT; way++) {
        for (way_t other = way + 1; other < WAY_COUNT; other++, odd++) {
            check_ways(way, other, odd % world->size, world->context, world->group, turned);
            bool in_part =
                way != WAY_WORLD && way != WAY_DUPLICATE_OTHER && other != WAY_DUPLICATE_OTHER;
            if (in_part && part != NULL) {
                check_ways(way, other, odd % weft_group_size(part), world->context, part, NULL);
            }
        }
    }
    for (way_t way = 0; way < WAY_COUNT; way++) { /* together it works */
        RANK_OK(make_group(way, world->context, world->group, turned, &group));
        if (group != NULL) {
            check_sum(group, NULL);
        }
        weft_group_destroy(group);
    }
    /* A group inherits the order: so it is a part of how it is made. */
    if (world->rank == 2) {
        RANK_OK(weft_group_set_order(turned, WEFT_ORDER_ANY, NULL, 0));
    }
    RANK_CHECK(weft_group_duplicate(turned, &group) == WEFT_ERR_MISMATCH && group == NULL);
    RANK_CHECK(strstr(weft_last_error(), "order and algorithms") != NULL);
    weft_group_destroy(part);
    weft_group_destroy(turned);
}

static void test_groups_made_in_different_ways(void **state)
{
    (void)state;
    support_rank_threads(4, run_ways, NULL);
    assert_true(support_rank_processes_too(4, run_ways, NULL));
}

/* Groups made of one that has as many calls in flight as there may be. */
static void run_full_parent(rank_world_t *world)
{
    weft_group_t *part = NULL, *made[2] = {NULL, NULL};
    weft_stream_t *stream = NULL;
    float x[64];
    RANK_OK(weft_group_split(world->group, world->rank % 2, 0, &part));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    for (uint32_t way = 0; way < 2; way++) {
        weft_status_t status = WEFT_OK;
        /* the calls of some ranks are all in flight when they make the group, of others none */
        for (uint32_t i = 0; i < 64 && status == WEFT_OK; i++) {
            x[i] = (float)i;
            status = weft_all_reduce(&x[i], &x[i], 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, part,
                                     world->rank < 2 ? stream : NULL);
        }
        RANK_OK(status);
        RANK_OK(way == 0 ? weft_group_duplicate(part, &made[way])
                         : weft_group_split(part, 0, 0, &made[way]));
        RANK_OK(weft_stream_synchronize(stream));
        for (uint32_t i = 0; i < 64; i++) {
            RANK_CHECK(x[i] == (float)(i * weft_group_size(part)));
        }
        check_sum(made[way], NULL);
    }
    weft_group_destroy(made[0]);
    weft_group_destroy(made[1]);
    weft_stream_destroy(stream);
    weft_group_destroy(part);
    check_sum(world->group, NULL);
}

/* Nothing lets the calls go on. */
static void run_stuck_parent(rank_world_t *world)
{
    weft_group_t *part = NULL, *made = NULL;
    weft_stream_t *stream = NULL;
    weft_notify_t *notify = NULL;
    float x[64] = {0};
    RANK_OK(weft_group_split(world->group, world->rank == 2, 0, &part));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_notify_create(world->context, &notify));
    if (world->rank < 2) {
        RANK_OK(weft_notify_wait(notify, stream));
        for (uint32_t i = 0; i < 64; i++) {
            RANK_OK(
                weft_all_reduce(&x[i], &x[i], 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, part, stream));
        }
        weft_status_t status = weft_group_duplicate(part, &made);
        /* the calls of who has waited in vain are cancelled, which the other may learn first */
        RANK_CHECK(status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_ABORTED);
        RANK_CHECK(made == NULL);
    }
    weft_notify_destroy(notify);
    weft_stream_destroy(stream);
    weft_group_destroy(part);
}

static void test_groups_of_a_full_parent(void **state)
{
    (void)state;
    support_rank_threads(5, run_full_parent, NULL);
    assert_true(support_rank_processes_too(3, run_full_parent, NULL));
    setenv("WEFT_TIMEOUT", "1", 1);
    support_rank_threads(3, run_stuck_parent, NULL);
    unsetenv("WEFT_TIMEOUT");
}

/* What the library itself calls to make groups, captures and fusers does not take the algorithms
 * that the program asked for, which may not be eligible. */
static void run_asking_parent(rank_world_t *world)
{
    static const weft_collective_t ops[] = {WEFT_COLLECTIVE_ALL_GATHER, WEFT_COLLECTIVE_ALL_REDUCE,
                                            WEFT_COLLECTIVE_BROADCAST,
                                            WEFT_COLLECTIVE_ALL_GATHER_V};
    weft_group_t *parent = NULL, *child = NULL;
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    float x = 1;
    RANK_OK(weft_group_duplicate(world->group, &parent));
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++) { /* not for ranks of one host */
        RANK_OK(weft_group_set_algorithm(parent, ops[i], "hierarchical"));
    }
    RANK_OK(weft_group_set_algorithm(parent, WEFT_COLLECTIVE_ALL_REDUCE, "ring")); /* no tree */
    RANK_OK(weft_group_duplicate(parent, &child));
    RANK_CHECK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, child, NULL) ==
               WEFT_ERR_UNSUPPORTED); /* that of a child still does */
    weft_group_destroy(child);
    RANK_OK(weft_group_split(parent, world->rank % 2, 0, &child));
    weft_group_destroy(child);
    RANK_OK(weft_capture_begin(parent, &params));
    RANK_OK(weft_barrier(parent, NULL));
    RANK_OK(weft_capture_end(parent, &capture));
    weft_capture_destroy(capture);
    weft_group_destroy(parent);
}

static void test_groups_of_a_parent_that_asks(void **state)
{
    (void)state;
    support_rank_threads(3, run_asking_parent, NULL);
}

static void run_bad_arguments(rank_world_t *world)
{
    weft_group_t *group = NULL;
    float x[4] = {0};
    uint32_t twice[] = {0, 0}, beyond[] = {0, 9};
    weft_group_t *g = world->group;
    RANK_CHECK(weft_group_create_ranks(g, twice, 2, &group) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_create_ranks(g, beyond, 2, &group) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_create_named("", 1, 0, NULL, &group) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_create_named("a b", 1, 0, NULL, &group) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_create_named("a", 2, 2, NULL, &group) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_all_reduce(NULL, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strstr(weft_last_error(), "send") != NULL);
    RANK_CHECK(weft_all_reduce(x, x, 4, WEFT_DTYPE_BOOL, WEFT_REDUCTION_SUM, g, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, (weft_reduction_t)9, g, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_all_reduce(x, x, UINT64_MAX / 2, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_broadcast(x, x, 4, WEFT_DTYPE_F32, 9, g, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strstr(weft_last_error(), "root") != NULL);
    RANK_CHECK(weft_send(x, 4, WEFT_DTYPE_F32, world->rank, g, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, NULL, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_batch_end(g, NULL) == WEFT_ERR_STATE);
    RANK_CHECK(weft_mem_free(world->context, x) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_unregister(world->context, x) == WEFT_ERR_INVALID_ARGUMENT);
    check_sum(g, NULL); /* nothing of it did harm */
}

static void test_bad_arguments(void **state)
{
    (void)state;
    support_rank_threads(2, run_bad_arguments, NULL);
}

static weft_status_t add_one(void *user)
{
    *(float *)user += 1;
    return WEFT_OK;
}

/* Calls among other work on a stream, in its order, and on two streams with two groups. */
static void on_streams(rank_world_t *world, weft_stream_flags_t flags)
{
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = "comm";
    params.flags = flags;
    weft_stream_t *a = NULL, *b = NULL;
    weft_group_t *other = NULL;
    weft_event_t *event = NULL;
    static const uint64_t big = 200000;
    float *x = calloc(big, sizeof *x), *y = calloc(big, sizeof *y);
    RANK_CHECK(x != NULL && y != NULL);
    RANK_OK(weft_stream_create(world->context, &params, &a));
    RANK_OK(weft_stream_create(world->context, &params, &b));
    RANK_OK(weft_group_duplicate(world->group, &other));
    RANK_OK(weft_event_create(world->context, &event));
    check_sum(world->group, a);
    for (uint32_t i = 0; i < 20; i++) {
        float before = x[0];
        RANK_OK(weft_stream_launch_host(a, add_one, &x[0]));
        RANK_OK(weft_all_reduce(x, y, big, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, a));
        RANK_OK(weft_event_record(event, a));
        RANK_OK(weft_stream_wait_event(b, event));
        RANK_OK(weft_broadcast(y, x, 1, WEFT_DTYPE_F32, 0, other, b));
        RANK_OK(weft_stream_synchronize(b));
        RANK_CHECK(y[0] == (before + 1) * (float)world->size && x[0] == y[0]);
        x[0] = 1;
    }
    RANK_OK(weft_stream_synchronize(a));
    /* both groups in flight at once, and one waiting behind the other on the calling thread */
    RANK_OK(weft_all_reduce(x, x, big, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, world->group, a));
    RANK_OK(weft_all_reduce(y, y, big, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, other, b));
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_OK(weft_stream_synchronize(b));
    RANK_OK(weft_stream_synchronize(a));
    weft_group_destroy(other);
    weft_event_destroy(event);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    free(x);
    free(y);
}

static void run_streams(rank_world_t *world)
{
    on_streams(world, WEFT_STREAM_INLINE);
    on_streams(world, WEFT_STREAM_THREAD);
}

static void test_streams(void **state)
{
    (void)state;
    support_rank_threads(3, run_streams, NULL);
    assert_true(support_rank_processes_too(2, run_streams, NULL));
}

/* After the first round of each kind nothing is allocated, whatever the path. */
static void run_without_allocating(rank_world_t *world)
{
    static const uint64_t sizes[] = {1, 3000, 100000};
    uint64_t counts[2] = {100, 200};
    weft_stream_t *stream = NULL;
    void *shared = NULL;
    float *x = calloc(200000, sizeof *x), *y = calloc(200000, sizeof *y);
    uint64_t before = 0;
    RANK_CHECK(x != NULL && y != NULL);
    RANK_OK(weft_mem_alloc(world->context, 400000 * sizeof *x, &shared));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    for (uint32_t round = 0; round < 200; round++) {
        RANK_OK(weft_barrier(world->group, NULL));
        if (round == 100) { /* every place of the ring has had every kind of call */
            before = support_rank_allocations();
        }
        RANK_OK(weft_barrier(world->group, NULL));
        float *at = round % 2 == 0 ? x : shared;
        uint64_t count = sizes[round % 3];
        RANK_OK(
            weft_all_reduce(at, at, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
        RANK_OK(weft_all_gather(at, y, count, WEFT_DTYPE_F32, world->group, stream));
        counts[0] = counts[1] = 100;
        RANK_OK(weft_all_to_all_v(at, counts, NULL, y, counts, NULL, WEFT_DTYPE_F32, world->group,
                                  stream));
        RANK_OK(weft_stream_synchronize(stream));
        RANK_OK(weft_batch_begin(world->group));
        RANK_OK(weft_send(at, count, WEFT_DTYPE_F32, 1 - world->rank, world->group, NULL));
        RANK_OK(weft_recv(y, count, WEFT_DTYPE_F32, 1 - world->rank, world->group, NULL));
        RANK_OK(weft_batch_end(world->group, NULL));
    }
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_CHECK(support_rank_allocations() == before);
    RANK_OK(weft_barrier(world->group, NULL));
    weft_stream_destroy(stream);
    RANK_OK(weft_mem_free(world->context, shared));
    free(x);
    free(y);
}

static void test_calls_do_not_allocate(void **state)
{
    (void)state;
    support_rank_threads(2, run_without_allocating, NULL);
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Rank 1 comes 0.4 s late: who waits for it, by any way of waiting, sleeps. */
static void run_patience(rank_world_t *world)
{
    weft_stream_params_t threaded = WEFT_STREAM_PARAMS_INIT;
    threaded.name = "comm";
    threaded.flags = WEFT_STREAM_THREAD;
    for (uint32_t way = 0; way < 3; way++) {
        weft_stream_t *stream = NULL;
        float x = 1;
        if (way > 0) {
            RANK_OK(weft_stream_create(world->context, way == 1 ? NULL : &threaded, &stream));
        }
        RANK_OK(weft_barrier(world->group, NULL));
        if (world->rank == 1) {
            struct timespec nap = {0, 400000000};
            nanosleep(&nap, NULL);
        }
        uint64_t start = thread_cpu_ns();
        RANK_OK(
            weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, stream));
        RANK_OK(stream != NULL ? weft_stream_synchronize(stream) : WEFT_OK);
        RANK_CHECK(thread_cpu_ns() - start < 40000000ull);
        weft_stream_destroy(stream);
    }
}

static void test_waiting_sleeps(void **state)
{
    (void)state;
    support_rank_threads(2, run_patience, NULL);
}

/* Many calls at once: the group says when it is full, and none is lost. */
static void run_pipeline(rank_world_t *world)
{
    weft_stream_t *stream = NULL;
    float x[300];
    uint32_t issued = 0, again = 0;
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    for (uint32_t i = 0; i < 300; i++) {
        x[i] = (float)i;
    }
    while (issued < 300) {
        weft_status_t status = weft_all_reduce(&x[issued], &x[issued], 1, WEFT_DTYPE_F32,
                                               WEFT_REDUCTION_SUM, world->group, stream);
        RANK_CHECK(status == WEFT_OK || status == WEFT_AGAIN);
        issued += status == WEFT_OK;
        if (status == WEFT_AGAIN) {
            again++;
            RANK_OK(weft_stream_synchronize(stream));
        }
    }
    RANK_OK(weft_stream_synchronize(stream));
    for (uint32_t i = 0; i < 300; i++) {
        RANK_CHECK(x[i] == (float)(i * world->size));
    }
    RANK_CHECK(again >= 3);
    weft_stream_destroy(stream);
}

static void test_calls_in_flight(void **state)
{
    (void)state;
    support_rank_threads(2, run_pipeline, NULL);
}

/* Adopted pages: contents stay, calls on them are in place, partial pages come out right too. */
static void run_adopted(rank_world_t *world)
{
    static const size_t sizes[] = {100, 5000, 100000, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t count = sizes[i] / sizeof(float);
        /* another phase within the page, and another length, on every rank */
        uint8_t *raw = malloc(sizes[i] + 8192 + world->rank * 4096);
        RANK_CHECK(raw != NULL);
        float *x = (float *)(void *)(raw + 64 * (world->rank + 1));
        for (size_t k = 0; k < count; k++) {
            x[k] = (float)(k % 1000) + (float)world->rank;
        }
        RANK_OK(weft_mem_register(world->context, x, sizes[i] + world->rank * 4096));
        RANK_CHECK(weft_mem_register(world->context, x, 10) == WEFT_ERR_INVALID_ARGUMENT ||
                   world->size == 0);
        for (uint32_t round = 0; round < 3; round++) {
            RANK_OK(weft_all_reduce(x, x, count, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, world->group,
                                    NULL));
            RANK_OK(weft_barrier(world->group, NULL));
        }
        for (size_t k = 0; k < count; k++) {
            RANK_CHECK(x[k] == (float)(k % 1000) + (float)(world->size - 1) / 2);
        }
        RANK_OK(weft_mem_unregister(world->context, x));
        RANK_CHECK(x[count - 1] == (float)((count - 1) % 1000) + (float)(world->size - 1) / 2);
        free(raw);
    }
}

static void test_adopted_memory(void **state)
{
    (void)state;
    support_rank_threads(2, run_adopted, NULL);
    assert_true(support_rank_processes_too(2, run_adopted, NULL));
    assert_true(support_rank_processes_too(3, run_adopted, NULL));
}

/* A child of a rank: every call is an error, and nothing of it reaches the others. */
static void run_fork(rank_world_t *world)
{
    float x = 1, y = 1;
    weft_stream_t *stream;
    check_sum(world->group, NULL);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_all_reduce(&y, &y, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, stream));
    pid_t child = fork();
    if (child == 0) { /* with a call in flight that it must not go on with */
        weft_group_t *group = NULL;
        weft_stream_t *second = NULL;
        bool good = weft_stream_synchronize(stream) == WEFT_ERR_STATE &&
                    weft_stream_create(world->context, NULL, &second) == WEFT_ERR_STATE &&
                    weft_stream_query(stream) != WEFT_OK &&
                    weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                                    NULL) == WEFT_ERR_STATE &&
                    weft_group_duplicate(world->group, &group) < 0 &&
                    strstr(weft_last_error(), "forked") != NULL;
        weft_stream_destroy(stream);
        weft_group_destroy(world->group);
        weft_context_release(world->context);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    RANK_CHECK(waitpid(child, &status, 0) == child);
    RANK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    RANK_OK(weft_stream_synchronize(stream));
    RANK_CHECK(y == (float)world->size);
    weft_stream_destroy(stream);
    check_sum(world->group, NULL);
}

static void test_forked_child(void **state)
{
    (void)state;
    assert_true(support_rank_processes(2, run_fork, NULL));
}

static void run_named(rank_world_t *world)
{
    weft_group_t *group = NULL;
    char name[64];
    snprintf(name, sizeof name, "test.%d", (int)getppid());
    RANK_OK(weft_group_create_named(name, world->size, world->rank, NULL, &group));
    RANK_CHECK(weft_group_context(group) != world->context);
    check_sum(group, NULL);
    check_sum(world->group, NULL);
    weft_group_destroy(group);
}

static void test_named_group(void **state)
{
    (void)state;
    assert_true(support_rank_processes(3, run_named, NULL));
}

/* --- disagreement ------------------------------------------------------------------------- */

typedef struct signature {
    uint32_t op, dtype, reduction, root;
    uint64_t count;
} signature_t;

static bool is_rooted(uint32_t op)
{
    return op == 1 || op == 4 || op == 5 || op == 6;
}

static bool is_reducing(uint32_t op)
{
    return op == 0 || op == 2 || op == 4;
}

static weft_status_t call(const signature_t *s, void *send, void *recv, weft_group_t *group)
{
    weft_dtype_t dtype = (weft_dtype_t)s->dtype;
    weft_reduction_t reduction = (weft_reduction_t)s->reduction;
    switch (s->op) {
    case 0:
        return weft_all_reduce(send, recv, s->count, dtype, reduction, group, NULL);
    case 1:
        return weft_broadcast(send, recv, s->count, dtype, s->root, group, NULL);
    case 2:
        return weft_reduce_scatter(send, recv, s->count, dtype, reduction, group, NULL);
    case 3:
        return weft_all_gather(send, recv, s->count, dtype, group, NULL);
    case 4:
        return weft_reduce(send, recv, s->count, dtype, reduction, s->root, group, NULL);
    case 5:
        return weft_gather(send, recv, s->count, dtype, s->root, group, NULL);
    case 6:
        return weft_scatter(send, recv, s->count, dtype, s->root, group, NULL);
    case 7:
        return weft_all_to_all(send, recv, s->count, dtype, group, NULL);
    default:
        return weft_barrier(group, NULL);
    }
}

static signature_t random_signature(uint64_t *state)
{
    static const uint64_t counts[] = {0, 1, 3, 16, 500, 3000, 20000};
    signature_t s = {.op = (uint32_t)(test_next_random(state) % 9)};
    s.dtype = 1 + (uint32_t)(test_next_random(state) % 12);
    s.reduction = is_reducing(s.op) ? (uint32_t)(test_next_random(state) % 5) : 0;
    s.root = is_rooted(s.op) ? (uint32_t)(test_next_random(state) % 2) : 0;
    s.count = counts[test_next_random(state) % 7];
    if (s.op == 8) {
        s.count = 0;
        s.dtype = WEFT_DTYPE_U8;
    }
    return s;
}

static bool differ(const signature_t *a, const signature_t *b)
{
    return memcmp(a, b, sizeof *a) != 0;
}

#define CASES_PER_WORLD 100u

static void run_disagreements(rank_world_t *world)
{
    uint64_t state = *(uint64_t *)world->user, shared_bytes = 3 * 20000 * 8 + 64;
    void *send = NULL, *recv = NULL;
    RANK_OK(weft_mem_alloc(world->context, shared_bytes, &send));
    recv = malloc(shared_bytes);
    RANK_CHECK(recv != NULL);
    for (uint32_t i = 0; i < CASES_PER_WORLD; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        signature_t right = random_signature(&state), wrong = random_signature(&state);
        uint32_t victim = (uint32_t)(test_next_random(&state) % world->size);
        uint32_t good_calls = (uint32_t)(test_next_random(&state) % 3);
        while (!differ(&right, &wrong)) {
            wrong = random_signature(&state);
        }
        weft_status_t status = WEFT_OK;
        for (uint32_t k = 0; k < good_calls && status == WEFT_OK; k++) {
            /* A rank still waiting in a good call learns there that others disagree about the next.
             */
            status = call(&right, send, recv, group);
        }
        uint64_t start = wefti_now_ns();
        if (status == WEFT_OK) {
            status = call(world->rank == victim ? &wrong : &right, send, recv, group);
        }
        if (status == WEFT_OK) { /* a rank that only sends may be gone by then: it learns now */
            status = weft_barrier(group, NULL);
        }
        char text[32];
        snprintf(text, sizeof text, "rank %u", victim);
        RANK_CHECK(status == WEFT_ERR_MISMATCH);
        RANK_CHECK(strstr(weft_last_error(), text) != NULL);
        RANK_CHECK(wefti_now_ns() - start < 300000000000ull);
        RANK_CHECK(weft_barrier(group, NULL) == WEFT_ERR_MISMATCH); /* it stays broken */
        RANK_CHECK(weft_group_status(group) == WEFT_ERR_MISMATCH);
        weft_group_destroy(group);
    }
    check_sum(world->group, NULL); /* others are not */
    RANK_OK(weft_mem_free(world->context, send));
    free(recv);
}

static void test_disagreement(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "16K", 1);
    for (uint32_t i = 0; i < 10; i++) {
        uint64_t seed = (uint64_t)time(NULL) * 1000003 + i;
        print_message("seed %llu\n", (unsigned long long)seed);
        support_rank_threads(2 + i % 2, run_disagreements, &seed);
    }
    unsetenv("WEFT_STAGING_BYTES");
}

/* A call on a stream whose group breaks: the stream tells, and may outlive the group. */
static void run_broken_stream(rank_world_t *world)
{
    weft_stream_params_t threaded = WEFT_STREAM_PARAMS_INIT;
    threaded.name = "comm";
    threaded.flags = WEFT_STREAM_THREAD;
    for (uint32_t way = 0; way < 2; way++) {
        weft_group_t *group = NULL;
        weft_stream_t *stream = NULL;
        float x[8] = {0};
        RANK_OK(weft_group_duplicate(world->group, &group));
        RANK_OK(weft_stream_create(world->context, way == 0 ? NULL : &threaded, &stream));
        RANK_OK(weft_all_reduce(x, x, 4 + world->rank, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group,
                                stream));
        weft_status_t second =
            weft_all_reduce(x, x, 8, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, stream);
        RANK_CHECK(second == WEFT_OK || second == WEFT_ERR_MISMATCH);
        if (world->rank == 0) {
            weft_group_destroy(group); /* with calls on the stream that have not ended */
            group = NULL;
        }
        RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_MISMATCH);
        RANK_CHECK(weft_stream_query(stream) == WEFT_ERR_MISMATCH);
        weft_group_destroy(group);
        weft_stream_destroy(stream);
    }
    check_sum(world->group, NULL);
}

static void test_broken_stream(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        support_rank_threads(2, run_broken_stream, NULL);
    }
}

/* Also where the ring's place had a call before that all ranks refused, which leaves groups whole.
 */
static void run_mixed_counts(rank_world_t *world)
{
    uint64_t out[2] = {5, 5}, in[2] = {5, 5};
    uint8_t send[32] = {0}, recv[32];
    float x = 1;
    if (world->user != NULL) {
        RANK_OK(weft_group_set_algorithm(world->group, WEFT_COLLECTIVE_ALL_REDUCE, "ring"));
        RANK_CHECK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                                   NULL) == WEFT_ERR_UNSUPPORTED);
        for (uint32_t i = 1; i < WEFTI_CALLS; i++) {
            RANK_OK(weft_barrier(world->group, NULL));
        }
    }
    if (world->rank == 1) {
        in[0] = 6; /* rank 0 sends 5 */
    }
    weft_status_t status =
        weft_all_to_all_v(send, out, NULL, recv, in, NULL, WEFT_DTYPE_U8, world->group, NULL);
    if (status == WEFT_OK) {
        status = weft_barrier(world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
}

static void run_mixed_pair(rank_world_t *world)
{
    float x[4] = {1, 2, 3, 4};
    weft_status_t status = world->rank == 0
                               ? weft_send(x, 4, WEFT_DTYPE_F32, 1, world->group, NULL)
                               : weft_recv(x, 3, WEFT_DTYPE_F32, 0, world->group, NULL);
    if (status == WEFT_OK) {
        status = weft_barrier(world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(),
                      "rank 0 called send with 4 x f32, rank 1 recv with 3 x f32") != NULL);
}

static void test_disagreement_on_counts(void **state)
{
    (void)state;
    support_rank_threads(2, run_mixed_counts, NULL);
    support_rank_threads(2, run_mixed_counts, state);
    support_rank_threads(2, run_mixed_pair, NULL);
}

/* What is done to a result before it is checked. */
static struct damage {
    bool on;
    uint32_t call, rank;
    size_t at; /* byte */
} damage;

/* Linked in place of the library's function (--wrap). */
void __real_wefti_call_post_check(wefti_call_t *call);
void __wrap_wefti_call_post_check(wefti_call_t *call);
void __wrap_wefti_call_post_check(wefti_call_t *call)
{
    if (damage.on && call->group->rank == damage.rank && call->order == damage.call) {
        call->request.recv[damage.at] ^= 1;
    }
    __real_wefti_call_post_check(call);
}

/* WEFT_CHECK=results: the first call and range that differ are named; nothing else is. */
static void run_damaged(rank_world_t *world)
{
    float *x = calloc(3 * 5000, sizeof *x), *y = calloc(3 * 5000, sizeof *y);
    uint64_t counts[3] = {10, 0, 4000};
    RANK_CHECK(x != NULL && y != NULL);
    for (uint32_t i = 0; i < 5000; i++) {
        x[i] = (float)(i + world->rank);
    }
    RANK_OK(weft_all_reduce(x, y, 5000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_OK(weft_broadcast(x, y, 3, WEFT_DTYPE_F32, 1, world->group, NULL));
    RANK_OK(weft_all_gather(x, y, 5000, WEFT_DTYPE_F32, world->group, NULL));
    RANK_OK(weft_all_gather_v(x, y, counts, NULL, WEFT_DTYPE_F32, world->group, NULL));
    RANK_OK(
        weft_reduce_scatter(x, y, 1000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_OK(weft_broadcast(x, y, 0, WEFT_DTYPE_F32, 1, world->group, NULL));
    weft_status_t status =
        weft_all_reduce(x, x, 5000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "call 7") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "elements 1216 to 1279") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "1 ") != NULL);
    free(x);
    free(y);
}

static void test_damaged_result(void **state)
{
    (void)state;
    setenv("WEFT_CHECK", "results", 1);
    damage = (struct damage){true, 7, 1, 4 * 1234};
    support_rank_threads(3, run_damaged, NULL);
    assert_true(support_rank_processes_too(3, run_damaged, NULL));
    damage.on = false;
    unsetenv("WEFT_CHECK");
}

/* Operators whose result is another one on every rank. */
static const weft_collective_t parted[] = {
    WEFT_COLLECTIVE_REDUCE,       WEFT_COLLECTIVE_REDUCE_SCATTER, WEFT_COLLECTIVE_REDUCE_SCATTER_V,
    WEFT_COLLECTIVE_GATHER,       WEFT_COLLECTIVE_SCATTER,        WEFT_COLLECTIVE_ALL_TO_ALL,
    WEFT_COLLECTIVE_ALL_TO_ALL_V,
};
#define PARTED (sizeof parted / sizeof *parted)

/* Reductions small enough for the window to be all of it. */
static weft_status_t call_parted(weft_collective_t op, weft_group_t *group, const float *x,
                                 float *y)
{
    static const uint64_t counts[3] = {700, 2, 5000};
    const uint64_t to[3] = {10, 20, 5000};
    const weft_dtype_t type = WEFT_DTYPE_F32;
    const weft_reduction_t sum = WEFT_REDUCTION_SUM;
    uint32_t rank = weft_group_rank(group);
    const uint64_t from[3] = {to[rank], to[rank], to[rank]};
    switch (op) {
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(x, y, 1500, type, sum, 1, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(x, y, 600, type, sum, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(x, y, counts, NULL, type, sum, group, NULL);
    case WEFT_COLLECTIVE_GATHER:
        return weft_gather(x, y, 1500, type, 1, group, NULL);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(x, y, 1500, type, 0, group, NULL);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(x, y, 1500, type, group, NULL);
    default:
        return weft_all_to_all_v(x, to, NULL, y, from, NULL, type, group, NULL);
    }
}

static void run_parted(rank_world_t *world)
{
    float *x = calloc(3 * 5000, sizeof *x), *y = calloc(3 * 5000, sizeof *y);
    RANK_CHECK(x != NULL && y != NULL);
    for (uint32_t i = 0; i < 3 * 5000; i++) {
        x[i] = (float)(i % 1000 + world->rank);
    }
    x[3] = NAN;
    for (uint32_t i = 0; i < PARTED; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        for (uint32_t k = 1; k < damage.call; k++) {
            RANK_OK(call_parted(parted[i], group, x, y));
        }
        weft_status_t status = call_parted(parted[i], group, x, y);
        if (damage.on) {
            /* Ranks that saw nothing wrong learn it later. */
            RANK_CHECK(status == WEFT_ERR_MISMATCH || world->rank != damage.rank);
            while (status == WEFT_OK) {
                status = weft_barrier(group, NULL);
            }
            RANK_CHECK(status == WEFT_ERR_MISMATCH);
            RANK_CHECK(strstr(weft_last_error(), "call 3 of the group") != NULL);
            RANK_CHECK(strstr(weft_last_error(), "of rank 1's result") != NULL);
        } else {
            RANK_OK(status);
        }
        weft_group_destroy(group);
    }
    free(x);
    free(y);
}

/* The damage is found whatever the operator; and nothing where there is none. */
static void test_damaged_parts(void **state)
{
    (void)state;
    setenv("WEFT_CHECK", "results", 1);
    for (int on = 0; on < 2; on++) {
        damage = (struct damage){on == 1, 3, 1, 4};
        support_rank_threads(3, run_parted, NULL);
        assert_true(support_rank_processes_too(3, run_parted, NULL));
    }
    setenv("WEFT_CHECK", "results:3", 1);
    support_rank_threads(3, run_parted, NULL);
    damage.on = false;
    unsetenv("WEFT_CHECK");
}

/* Sends are calls of two ranks: the others check the same collectives, in the same places. */
static void run_checked_after_sends(rank_world_t *world)
{
    enum { COUNT = 20000 };
    int32_t *x = calloc(3 * COUNT, sizeof *x), *y = calloc(COUNT, sizeof *y), sent = 0;
    RANK_CHECK(x != NULL && y != NULL);
    for (int32_t i = 0; i < 3 * COUNT; i++) {
        x[i] = i + (int32_t)world->rank;
    }
    for (int round = 0; round < 6; round++) {
        if (world->rank == 0) {
            RANK_OK(weft_send(&sent, 1, WEFT_DTYPE_I32, 1, world->group, NULL));
        } else if (world->rank == 1) {
            RANK_OK(weft_recv(&sent, 1, WEFT_DTYPE_I32, 0, world->group, NULL));
        }
        RANK_OK(weft_reduce_scatter(x, y, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group,
                                    NULL));
        RANK_CHECK(y[COUNT - 1] == 3 * (((int32_t)world->rank + 1) * COUNT - 1) + 3);
        RANK_OK(weft_barrier(world->group, NULL));
    }
    free(x);
    free(y);
}

static void test_checked_after_sends(void **state)
{
    (void)state;
    setenv("WEFT_CHECK", "results", 1);
    support_rank_threads(3, run_checked_after_sends, NULL);
    setenv("WEFT_CHECK", "results:2", 1);
    support_rank_threads(3, run_checked_after_sends, NULL);
    unsetenv("WEFT_CHECK");
}

/* One rank calls nothing: the others say who is late, and it learns. */
static void run_late(rank_world_t *world)
{
    float x = 1;
    weft_status_t status;
    if (world->rank == 1) {
        while ((status = weft_group_status(world->group)) == WEFT_OK) {
            struct timespec nap = {0, 1000000};
            nanosleep(&nap, NULL);
        }
    } else {
        status = weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "late: rank 1") != NULL);
}

static weft_status_t rest(void *user)
{
    struct timespec nap = {0, 300000000};
    (void)user;
    nanosleep(&nap, NULL);
    return WEFT_OK;
}

/* So does a wait for a stream, which began before the call: the call's deadline comes first. */
static void run_late_on_streams(rank_world_t *world)
{
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    weft_stream_t *stream = NULL;
    float x = 1;
    params.flags = world->rank == 0 ? WEFT_STREAM_INLINE : WEFT_STREAM_THREAD;
    if (world->rank == 1) {
        run_late(world);
        return;
    }
    RANK_OK(weft_stream_create(world->context, &params, &stream));
    RANK_OK(weft_stream_launch_host(stream, rest, NULL));
    RANK_OK(weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, stream));
    RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "late: rank 1") != NULL);
    weft_stream_destroy(stream);
}

static void test_late_rank(void **state)
{
    (void)state;
    setenv("WEFT_TIMEOUT", "2", 1);
    support_rank_threads(3, run_late, NULL);
    support_rank_threads(3, run_late_on_streams, NULL);
    unsetenv("WEFT_TIMEOUT");
}

/* A rank that leaves too early: those that need it are told, in whatever they wait; others go on.
 */
static void run_early_leave(rank_world_t *world)
{
    const uint32_t *variant = world->user;
    static const uint32_t others[] = {0, 2};
    float x[4] = {1, 1, 1, 1};
    weft_group_t *rest;
    weft_stream_t *stream;
    RANK_OK(weft_group_create_ranks(world->group, others, 2, &rest));
    if (world->rank == 1) {
        weft_group_leave(world->group);
        weft_context_release(world->context);
        world->group = NULL;
        world->context = NULL;
        return;
    }
    uint64_t begin = wefti_now_ns();
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    weft_status_t status = WEFT_ERR_PEER_DIED;
    if (*variant == 3) {
        weft_group_destroy(world->group); /* which has nobody to wait for */
        world->group = NULL;
    } else if (*variant == 0) {
        status = weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    } else if (*variant == 1) {
        status = weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, stream);
        status = status == WEFT_OK ? weft_stream_synchronize(stream) : status;
    } else if (world->rank == 0) {
        status = weft_recv(x, 4, WEFT_DTYPE_F32, 1, world->group, NULL);
    } else {
        status = weft_barrier(world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_PEER_DIED);
    RANK_CHECK(*variant == 3 || strstr(weft_last_error(), "rank 1 ") != NULL);
    RANK_CHECK(wefti_now_ns() - begin < 300000000000ull); /* the deadline is ten minutes */
    x[0] = 1;
    RANK_OK(weft_all_reduce(x, x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, rest, NULL));
    RANK_CHECK(x[0] == 2);
    weft_stream_destroy(stream);
    weft_group_destroy(rest);
}

/* Ranks 1 and 2 disagree in a group without rank 0, and leave. Rank 0, which waits for them in
 * another one, learns why. */
static void run_leave_after_error(rank_world_t *world)
{
    static const uint32_t pair[] = {1, 2};
    float x[2] = {0};
    weft_group_t *group;
    RANK_OK(weft_group_create_ranks(world->group, pair, 2, &group));
    if (world->rank == 0) {
        RANK_CHECK(weft_barrier(world->group, NULL) == WEFT_ERR_PEER_DIED);
        RANK_CHECK(strstr(weft_last_error(), "had an error before: rank 2 called all_reduce") !=
                   NULL);
        return;
    }
    RANK_CHECK(weft_all_reduce(x, x, world->rank, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group,
                               NULL) == WEFT_ERR_MISMATCH);
    weft_group_destroy(group);
    weft_group_leave(world->group);
    weft_context_release(world->context);
    world->group = NULL;
    world->context = NULL;
}

static void test_leave_after_error(void **state)
{
    (void)state;
    support_rank_threads(3, run_leave_after_error, NULL);
    assert_true(support_rank_processes_too(3, run_leave_after_error, NULL));
}

static void test_early_leave(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        support_rank_threads(3, run_early_leave, &variant);
        assert_true(support_rank_processes_too(3, run_early_leave, &variant));
    }
}

static void run_death(rank_world_t *world)
{
    float x[3000] = {1};
    check_sum(world->group, NULL);
    if (world->rank == 1) { /* what it has sent may go down with it, so the others have it first */
        RANK_OK(weft_recv(x, 1, WEFT_DTYPE_F32, 0, world->group, NULL));
        RANK_OK(weft_recv(x, 1, WEFT_DTYPE_F32, 2, world->group, NULL));
        _exit(0); /* without leaving */
    }
    weft_status_t sent = weft_send(x, 1, WEFT_DTYPE_F32, 1, world->group, NULL);
    RANK_CHECK(sent == WEFT_OK || sent == WEFT_ERR_PEER_DIED);
    uint64_t start = wefti_now_ns();
    weft_status_t status =
        weft_all_reduce(x, x, 3000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    RANK_CHECK(status == WEFT_ERR_PEER_DIED);
    RANK_CHECK(strstr(weft_last_error(), "rank 1") != NULL);
    RANK_CHECK(wefti_now_ns() - start < 300000000000ull);
}

static void test_death(void **state)
{
    (void)state;
    assert_true(support_rank_processes(3, run_death, NULL));
}

/* More elements than 32 bits count, over staging: only as many pages as the range is touched for.
 */
static void run_huge(rank_world_t *world)
{
    uint64_t count = (1ull << 31) + 5;
    uint8_t *x = calloc(count, 1);
    RANK_CHECK(x != NULL);
    x[count - 1] = world->rank == 0 ? 42 : 0;
    RANK_OK(weft_broadcast(x, x, count, WEFT_DTYPE_U8, 0, world->group, NULL));
    RANK_CHECK(x[count - 1] == 42 && x[count / 2] == 0);
    free(x);
}

static void test_more_than_32_bits(void **state)
{
    (void)state;
    if (sysconf(_SC_AVPHYS_PAGES) > (8l << 30) / sysconf(_SC_PAGESIZE) &&
        getenv("WEFT_TEST_HUGE") != NULL) {
        support_rank_threads(2, run_huge, NULL);
    } else {
        print_message(
            "skipped: WEFT_TEST_HUGE=1 is not set, or less than 8 GiB of memory are free\n");
        skip();
    }
}

#define LATE_FLOATS 5000u /* too many to post: ranks write into each other's memory */

typedef struct late {
    _Atomic uint32_t issued, broken, over;
} late_t;

static void wait_for(_Atomic uint32_t *flag)
{
    while (atomic_load(flag) == 0) {
        sched_yield();
    }
}

static weft_status_t hold_stream(void *user)
{
    wait_for(user);
    return WEFT_OK;
}

/* Rank 0 gives up a call that rank 1 gets to only then: its memory is its own again. */
static void run_given_up(rank_world_t *world)
{
    static const weft_stream_params_t threaded = {sizeof threaded, "late", WEFT_STREAM_THREAD, 0};
    late_t *late = world->user;
    weft_stream_t *stream = NULL;
    float *x = NULL;
    RANK_OK(weft_mem_alloc(world->context, LATE_FLOATS * sizeof *x, (void **)&x));
    for (uint32_t i = 0; i < LATE_FLOATS; i++) {
        x[i] = 1.0f;
    }
    RANK_OK(weft_stream_create(world->context, world->rank == 1 ? &threaded : NULL, &stream));
    if (world->rank == 1) {
        RANK_OK(weft_stream_launch_host(stream, hold_stream, &late->broken));
    } else {
        wait_for(&late->issued);
    }
    RANK_OK(weft_all_reduce(x, x, LATE_FLOATS, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                            stream));
    if (world->rank == 1) {
        atomic_store(&late->issued, 1);
        RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_ABORTED);
        atomic_store(&late->over, 1);
    } else {
        RANK_CHECK(weft_stream_query(stream) == WEFT_IN_PROGRESS); /* it has posted */
        wefti_error(WEFT_ERR_ABORTED, "given up");
        wefti_group_fail(world->group, WEFT_ERR_ABORTED);
        RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_ABORTED);
        memset(x, 0, LATE_FLOATS * sizeof *x);
        atomic_store(&late->broken, 1);
        wait_for(&late->over);
    }
    for (uint32_t i = 0; i < LATE_FLOATS; i++) {
        RANK_CHECK(x[i] == (float)world->rank);
    }
    weft_stream_destroy(stream);
}

static void test_given_up_calls_write_nothing(void **state)
{
    (void)state;
    late_t late = {0};
    support_rank_threads(2, run_given_up, &late);
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_split),
        cmocka_unit_test(test_groups_reuse_channels),
        cmocka_unit_test(test_groups_made_in_different_ways),
        cmocka_unit_test(test_groups_of_a_full_parent),
        cmocka_unit_test(test_groups_of_a_parent_that_asks),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_calls_in_flight),
        cmocka_unit_test(test_calls_do_not_allocate),
        cmocka_unit_test(test_waiting_sleeps),
        cmocka_unit_test(test_adopted_memory),
        cmocka_unit_test(test_forked_child),
        cmocka_unit_test(test_named_group),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_broken_stream),
        cmocka_unit_test(test_disagreement_on_counts),
        cmocka_unit_test(test_early_leave),
        cmocka_unit_test(test_leave_after_error),
        cmocka_unit_test(test_damaged_result),
        cmocka_unit_test(test_damaged_parts),
        cmocka_unit_test(test_checked_after_sends),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_given_up_calls_write_nothing),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_more_than_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
