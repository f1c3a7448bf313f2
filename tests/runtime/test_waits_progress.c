/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inline stream goes on while its rank waits in something that all ranks do: one rank has a call
 * on such a stream and goes on to the next thing, the others call without a stream first. They come
 * to that thing only if the first rank's wait there moves its stream on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support_ranks.h"
#include "tests/support/support.h"

#define MOST 60000u /* elements: many rounds of the staging buffers */

typedef struct scene {
    rank_world_t *world;
    weft_group_t *parent, *doomed;
    weft_stream_t *stream, *other;
    float *data;
    void *registered;
    weft_registry_t *registry;
    weft_plan_t *plan;
    weft_session_t *session;
} scene_t;

static void wait_barrier(scene_t *scene)
{
    RANK_OK(weft_context_barrier(scene->world->context));
}

static void wait_all_gather(scene_t *scene)
{
    uint64_t own[100] = {scene->world->rank}, all[100 * 8];
    RANK_OK(weft_context_all_gather(scene->world->context, own, sizeof own, all));
}

static void wait_create_world(scene_t *scene)
{
    weft_group_t *group = NULL;
    RANK_OK(weft_group_create_world(scene->world->context, &group));
    weft_group_leave(group);
}

static void wait_duplicate(scene_t *scene)
{
    weft_group_t *group = NULL;
    RANK_OK(weft_group_duplicate(scene->parent, &group));
    weft_group_leave(group);
}

static void wait_split(scene_t *scene)
{
    weft_group_t *group = NULL;
    RANK_OK(weft_group_split(scene->parent, 0, 0, &group));
    weft_group_leave(group);
}

static void wait_create_ranks(scene_t *scene)
{
    static const uint32_t ranks[] = {1, 0};
    weft_group_t *group = NULL;
    RANK_OK(weft_group_create_ranks(scene->parent, ranks, 2, &group));
    weft_group_leave(group);
}

static void wait_alloc(scene_t *scene)
{
    void *memory = NULL;
    RANK_OK(weft_mem_alloc(scene->world->context, (size_t)20 << 20, &memory)); /* grows */
    RANK_OK(weft_mem_free(scene->world->context, memory));
}

static void wait_register(scene_t *scene)
{
    RANK_OK(weft_mem_register(scene->world->context, scene->registered, 65536));
}

static void wait_destroy(scene_t *scene)
{
    weft_group_destroy(scene->doomed);
    scene->doomed = NULL;
}

static void wait_call(scene_t *scene)
{
    RANK_OK(weft_barrier(scene->parent, NULL));
}

static void wait_pair(scene_t *scene)
{
    uint32_t rank = scene->world->rank;
    float x = 1;
    if (rank == 0) {
        RANK_OK(weft_recv(&x, 1, WEFT_DTYPE_F32, 1, scene->parent, NULL));
    } else if (rank == 1) {
        RANK_OK(weft_send(&x, 1, WEFT_DTYPE_F32, 0, scene->parent, NULL));
    }
}

static void wait_stream(scene_t *scene)
{
    RANK_OK(weft_barrier(scene->parent, scene->other));
    RANK_OK(weft_stream_synchronize(scene->other));
}

static void wait_event(scene_t *scene)
{
    weft_event_t *event = NULL;
    RANK_OK(weft_event_create(scene->world->context, &event));
    RANK_OK(weft_barrier(scene->parent, scene->other));
    RANK_OK(weft_event_record(event, scene->other));
    RANK_OK(weft_event_synchronize(event));
    weft_event_destroy(event);
}

static void wait_session(scene_t *scene)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session = NULL;
    params.context = scene->world->context;
    params.plan = scene->plan;
    params.registry = scene->registry;
    RANK_OK(weft_session_create(&params, &session));
    weft_session_destroy(session);
}

static void wait_step(scene_t *scene)
{
    RANK_OK(weft_session_step(scene->session));
}

static const struct {
    const char *name;
    void (*wait)(scene_t *scene);
} waits[] = {
    {"context_barrier", wait_barrier},
    {"context_all_gather", wait_all_gather},
    {"group_create_world", wait_create_world},
    {"group_duplicate", wait_duplicate},
    {"group_split", wait_split},
    {"group_create_ranks", wait_create_ranks},
    {"mem_alloc", wait_alloc},
    {"mem_register", wait_register},
    {"group_destroy", wait_destroy},
    {"barrier", wait_call},
    {"recv", wait_pair},
    {"stream_synchronize", wait_stream},
    {"event_synchronize", wait_event},
    {"session_create", wait_session},
    {"session_step", wait_step},
};

static void reduce(scene_t *scene, uint64_t count, weft_stream_t *stream)
{
    for (uint64_t i = 0; i < count; i++) {
        scene->data[i] = (float)(scene->world->rank + i % 100);
    }
    RANK_OK(weft_all_reduce(scene->data, scene->data, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                            scene->world->group, stream));
}

static void check_sums(const scene_t *scene, uint64_t count)
{
    uint32_t n = scene->world->size;
    for (uint64_t i = 0; i < count; i++) {
        RANK_CHECK(scene->data[i] == (float)(n * (n - 1) / 2 + n * (i % 100)));
    }
}

static void open_session(scene_t *scene)
{
    training_t training = {.world = scene->world->size, .buckets = 3};
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    RANK_OK(support_registry(true, &scene->registry));
    RANK_OK(support_plan(&training, false, &scene->plan));
    params.context = scene->world->context;
    params.plan = scene->plan;
    params.registry = scene->registry;
    RANK_OK(weft_session_create(&params, &scene->session));
}

static void close_session(scene_t *scene)
{
    weft_session_destroy(scene->session);
    weft_plan_release(scene->plan);
    weft_registry_destroy(scene->registry);
}

static void run_waits(rank_world_t *world)
{
    static const uint64_t counts[] = {5, MOST};
    scene_t scene = {.world = world, .data = malloc(MOST * sizeof(float))};
    size_t page = 4096;
    RANK_CHECK(scene.data != NULL && posix_memalign(&scene.registered, page, 65536) == 0);
    memset(scene.registered, 0, 65536);
    RANK_OK(weft_stream_create(world->context, NULL, &scene.stream));
    RANK_OK(weft_stream_create(world->context, NULL, &scene.other));
    RANK_OK(weft_group_duplicate(world->group, &scene.parent));
    open_session(&scene);
    for (size_t w = 0; w < sizeof waits / sizeof *waits; w++) {
        for (uint32_t c = 0; c < 2; c++) {
            if (waits[w].wait == wait_register && c > 0) {
                RANK_OK(weft_mem_unregister(world->context, scene.registered));
            }
            RANK_OK(weft_group_duplicate(world->group, &scene.doomed));
            if (getenv("WEFT_TEST_NAMES") != NULL && world->rank == 0) {
                fprintf(stderr, "%s\n", waits[w].name);
            }
            bool first = world->rank == (w + c) % 2;
            reduce(&scene, counts[c], first ? scene.stream : NULL);
            waits[w].wait(&scene);
            RANK_OK(weft_stream_synchronize(scene.stream));
            check_sums(&scene, counts[c]);
            weft_group_destroy(scene.doomed);
        }
    }
    close_session(&scene);
    RANK_OK(weft_mem_unregister(world->context, scene.registered));
    weft_group_destroy(scene.parent);
    weft_stream_destroy(scene.stream);
    weft_stream_destroy(scene.other);
    free(scene.registered);
    free(scene.data);
}

static const char *const progress[] = {"inline", "thread"};

static void test_threads(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("WEFT_PROGRESS", progress[i], 1);
        support_rank_threads(2, run_waits, NULL);
        support_rank_threads(3, run_waits, NULL);
    }
}

static void test_processes(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("WEFT_PROGRESS", progress[i], 1);
        assert_true(support_rank_processes_too(2, run_waits, NULL));
        assert_true(support_rank_processes_too(3, run_waits, NULL));
    }
}

static void test_hosts(void **state)
{
    (void)state;
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    setenv("WEFT_TEST_HOSTS", "aab", 1);
    assert_true(support_rank_processes_too(3, run_waits, NULL));
    setenv("WEFT_TEST_HOSTS", "ab", 1);
    assert_true(support_rank_processes_too(2, run_waits, NULL));
}

int main(void)
{
    setenv("WEFT_TIMEOUT", "120", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
