/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nobody is busy while there is nothing to do: processor time of ranks (processes, with all their
 * threads) that wait for a late one, in every kind of wait, and of ranks between calls whose
 * streams live on. The late rank's nap is the idle time that is measured, the one place where a
 * test sleeps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "support.h"
#include "support_cards.h"
#include "tests/support/support.h"

#define IDLE_NS 100000000
#define SETTLE_NS 10000000 /* from the call to the sleep, at the first attempt */
#define ATTEMPTS 6 /* on a busy machine ranks get there late; who spins does so every time */
#define BIG ((uint64_t)1 << 20) /* elements: through the staging buffers, many rounds */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MOST 0.10 /* of the idle time: what the sanitizer itself does is in it */
#else
#define MOST 0.05 /* a hundred naps cost up to 3 % on slow machines; spinning costs all of it */
#endif

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void nap(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* What a rank has at hand; every case leaves it as it was. */
typedef struct scene {
    rank_world_t *world;
    clockid_t clock; /* of this rank's processor time, which rank 0 reads */
    weft_stream_t *inside, *thread, *other;
    weft_event_t *event;
    weft_notify_t *notify;
    int32_t *small, *big;
    weft_session_t *session;
} scene_t;

typedef struct idle_case {
    const char *name;
    weft_status_t (*run)(scene_t *scene); /* on every rank; rank 0 comes late */
} idle_case_t;

static weft_status_t reduce(scene_t *scene, int32_t *data, uint64_t count, weft_stream_t *stream)
{
    return weft_all_reduce(data, data, count, WEFT_DTYPE_I32, WEFT_REDUCTION_MAX,
                           scene->world->group, stream);
}

static weft_status_t wait_small(scene_t *scene)
{
    return reduce(scene, scene->small, 8, NULL);
}

static weft_status_t wait_big(scene_t *scene)
{
    return reduce(scene, scene->big, BIG, NULL);
}

static weft_status_t wait_scheduled(scene_t *scene)
{
    weft_group_t *group = scene->world->group;
    RANK_OK(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling"));
    RANK_OK(reduce(scene, scene->big, BIG, NULL));
    return weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE, NULL);
}

static weft_status_t wait_inline_stream(scene_t *scene)
{
    RANK_OK(reduce(scene, scene->small, 8, scene->inside));
    return weft_stream_synchronize(scene->inside);
}

static weft_status_t wait_thread_stream(scene_t *scene)
{
    RANK_OK(reduce(scene, scene->small, 8, scene->thread));
    return weft_stream_synchronize(scene->thread);
}

static weft_status_t wait_event(scene_t *scene)
{
    RANK_OK(reduce(scene, scene->big, BIG, scene->thread));
    RANK_OK(weft_event_record(scene->event, scene->thread));
    return weft_event_synchronize(scene->event);
}

/* A stream that waits for a stream that waits for a rank. */
static weft_status_t wait_notify(scene_t *scene)
{
    RANK_OK(weft_notify_wait(scene->notify, scene->other));
    RANK_OK(reduce(scene, scene->small, 8, scene->thread));
    RANK_OK(weft_notify_record(scene->notify, scene->thread));
    return weft_stream_synchronize(scene->other);
}

static weft_status_t wait_receive(scene_t *scene)
{
    weft_group_t *group = scene->world->group;
    if (scene->world->rank != 0) {
        return weft_recv(scene->small, 8, WEFT_DTYPE_I32, 0, group, NULL);
    }
    for (uint32_t r = 1; r < scene->world->size; r++) {
        RANK_OK(weft_send(scene->small, 8, WEFT_DTYPE_I32, r, group, NULL));
    }
    return WEFT_OK;
}

static weft_status_t wait_world(scene_t *scene)
{
    return weft_context_barrier(scene->world->context);
}

static weft_status_t wait_destroy(scene_t *scene)
{
    weft_group_destroy(scene->world->group);
    return weft_group_create_world(scene->world->context, &scene->world->group);
}

static weft_status_t wait_memory(scene_t *scene)
{
    void *memory = NULL;
    RANK_OK(weft_mem_alloc(scene->world->context, 100, &memory));
    return weft_mem_free(scene->world->context, memory);
}

/* All ranks nap: threads of streams and whatever else there is has nothing to do. */
static weft_status_t wait_nothing(scene_t *scene)
{
    if (scene->world->rank != 0) {
        nap(IDLE_NS);
    }
    return WEFT_OK;
}

static const idle_case_t cases[] = {
    {"a small all-reduce", wait_small},
    {"a large all-reduce", wait_big},
    {"a schedule", wait_scheduled},
    {"an inline stream", wait_inline_stream},
    {"a stream with a thread", wait_thread_stream},
    {"an event", wait_event},
    {"a notify", wait_notify},
    {"a receive", wait_receive},
    {"the world's barrier", wait_world},
    {"a group's end", wait_destroy},
    {"memory", wait_memory},
    {"nothing", wait_nothing},
};

static clockid_t clock_of_process(void)
{
    clockid_t clock = 0;
    RANK_CHECK(clock_getcpuclockid(getpid(), &clock) == 0);
    return clock;
}

static void open_scene(scene_t *scene, rank_world_t *world)
{
    weft_stream_params_t threaded = WEFT_STREAM_PARAMS_INIT;
    threaded.name = "thread";
    threaded.flags = WEFT_STREAM_THREAD;
    *scene = (scene_t){.world = world, .clock = clock_of_process()};
    scene->small = calloc(8, sizeof(int32_t));
    scene->big = calloc(BIG, sizeof(int32_t));
    RANK_CHECK(scene->small != NULL && scene->big != NULL);
    RANK_OK(weft_stream_create(world->context, NULL, &scene->inside));
    RANK_OK(weft_stream_create(world->context, &threaded, &scene->thread));
    RANK_OK(weft_stream_create(world->context, &threaded, &scene->other));
    RANK_OK(weft_event_create(world->context, &scene->event));
    RANK_OK(weft_notify_create(world->context, &scene->notify));
}

static void close_scene(scene_t *scene)
{
    weft_stream_destroy(scene->inside);
    weft_stream_destroy(scene->thread);
    weft_stream_destroy(scene->other);
    weft_event_destroy(scene->event);
    weft_notify_destroy(scene->notify);
    free(scene->small);
    free(scene->big);
}

/* What share of the time that rank 0 naps the busiest of the other ranks uses a processor. */
static double busiest(uint32_t size, const clockid_t *clocks, long settle_ns)
{
    double spent[64], most = 0;
    nap(settle_ns);
    double begin = seconds(CLOCK_MONOTONIC);
    for (uint32_t r = 1; r < size; r++) {
        spent[r] = seconds(clocks[r]);
    }
    nap(IDLE_NS);
    double idle = seconds(CLOCK_MONOTONIC) - begin;
    for (uint32_t r = 1; r < size; r++) {
        double share = (seconds(clocks[r]) - spent[r]) / idle;
        most = share > most ? share : most;
    }
    return most;
}

static void measure(scene_t *scene, const idle_case_t *idle, double limit)
{
    weft_context_t *context = scene->world->context;
    clockid_t clocks[64];
    double most = 1, shares[64];
    RANK_OK(weft_context_all_gather(context, &scene->clock, sizeof *clocks, clocks));
    RANK_OK(idle->run(scene)); /* builds what is built once */
    for (int attempt = 0; attempt < ATTEMPTS && most > limit; attempt++) {
        RANK_OK(weft_context_barrier(context));
        if (scene->world->rank == 0) {
            most = busiest(scene->world->size, clocks, SETTLE_NS << attempt);
        }
        RANK_OK(idle->run(scene));
        RANK_OK(weft_context_all_gather(context, &most, sizeof most, shares));
        most = shares[0];
    }
    if (most > limit && scene->world->rank == 0) {
        fprintf(stderr, "waiting in %s: %.1f %% busy\n", idle->name, most * 100);
    }
    RANK_CHECK(most <= limit);
}

static void run_cases(rank_world_t *world)
{
    scene_t scene;
    open_scene(&scene, world);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        measure(&scene, &cases[i], MOST);
    }
    close_scene(&scene);
}

static void test_idle_ranks_are_not_busy(void **state)
{
    static const char *const attach[] = {"off", "always"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("WEFT_ATTACH", attach[i], 1);
        bool idle = support_rank_processes(2, run_cases, NULL);
        unsetenv("WEFT_ATTACH"); /* not for the tests after this one */
        assert_true(idle);
    }
}

static weft_status_t wait_step(scene_t *scene)
{
    return weft_session_step(scene->session);
}

/* Training, whose threads for communication live between steps. */
static void run_session(rank_world_t *world)
{
    static const idle_case_t step = {"a step", wait_step}, nothing = {"no step", wait_nothing};
    training_t training = {.world = world->size, .buckets = 3};
    scene_t scene = {.world = world, .clock = clock_of_process()};
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    RANK_OK(support_registry(true, &registry));
    RANK_OK(support_plan(&training, false, &plan));
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = plan;
    params.registry = registry;
    RANK_OK(weft_session_create(&params, &scene.session));
    measure(&scene, &step, MOST);
    measure(&scene, &nothing, MOST);
    weft_session_destroy(scene.session);
    weft_plan_release(plan);
    weft_registry_destroy(registry);
}

static void test_idle_sessions(void **state)
{
    static const char *const progress[] = {"inline", "thread"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("WEFT_PROGRESS", progress[i], 1);
        assert_true(support_rank_processes(2, run_session, NULL));
        assert_true(support_rank_processes(4, run_session, NULL));
    }
    unsetenv("WEFT_PROGRESS");
}

/* However long they may spin: where ranks outnumber cores, they do not at all. */
static void test_idle_ranks_outnumber_cores(void **state)
{
    (void)state;
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    uint32_t size = (uint32_t)CPU_COUNT(&cpus) + 1;
    if (size > 32) {
        print_message("skipped: more than 31 processors\n");
        skip();
    }
    setenv("WEFT_SPIN_US", "10000000", 1);
    bool idle = support_rank_processes(size, run_cases, NULL);
    unsetenv("WEFT_SPIN_US"); /* not for the tests after this one */
    assert_true(idle);
}

/* A card wakes nobody, so it is looked at now and then. Ranks are threads here. */
static void run_card(rank_world_t *world)
{
    static const idle_case_t reduction = {"an all-reduce on a card", wait_small};
    scene_t scene = {.world = world};
    RANK_CHECK(pthread_getcpuclockid(pthread_self(), &scene.clock) == 0);
    RANK_OK(weft_device_alloc(world->context, 64, (void **)&scene.small));
    measure(&scene, &reduction, 2 * MOST);
    RANK_OK(weft_device_free(world->context, scene.small));
}

static void test_idle_on_a_card(void **state)
{
    (void)state;
    support_card_threads(3, run_card, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_ranks_are_not_busy),
        cmocka_unit_test(test_idle_ranks_outnumber_cores),
        cmocka_unit_test(test_idle_sessions),
        cmocka_unit_test(test_idle_on_a_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
