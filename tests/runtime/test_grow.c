/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that join a world: strangers, several at once, some that contradict each other or die
 * on the way; and what was made before the world grew. */
#include "support.h"

#include "support_ranks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 1000u

/* Of all processes of the test. */
typedef struct shared {
    _Atomic uint32_t refused; /* ranks that could not join */
    _Atomic uint32_t done;    /* ranks that have done without one that died */
} shared_t;

static shared_t *all;

typedef struct scene {
    const char *kind;  /* of addresses */
    const char *hosts; /* a letter per rank: simulated hosts; NULL: one host */
} scene_t;

static const scene_t kinds[] = {
    {.kind = "unix:@weft-grow"},
    {.kind = "file:///tmp/weft-grow", .hosts = "abab"},
};

/* Where the world meets for the nth time. */
static weft_context_params_t where(const scene_t *scene, uint32_t nth, int32_t rank, uint32_t size)
{
    static char address[96];
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    snprintf(address, sizeof address, "%s-%d-%u", scene->kind, (int)getppid(), nth);
    params.address = address;
    params.rank = rank;
    params.world_size = (int32_t)size;
    return params;
}

static weft_status_t enter(const scene_t *scene, uint32_t nth, uint32_t rank, uint32_t size,
                           weft_group_t **out)
{
    weft_context_params_t params = where(scene, nth, (int32_t)rank, size);
    weft_context_t *context = NULL;
    *out = NULL;
    if (scene->hosts != NULL) {
        const char host[] = {'h', '-', scene->hosts[rank], '\0'};
        setenv("WEFT_HOST_ID", host, 1);
    }
    weft_status_t status = weft_context_create(&params, &context);
    status = status < 0 ? status : weft_group_create_world(context, out);
    if (status < 0) {
        weft_context_release(context);
    }
    return status;
}

static weft_status_t grow(const scene_t *scene, uint32_t nth, uint32_t size, weft_group_t *group,
                          weft_group_t **out)
{
    weft_context_params_t params = where(scene, nth, -1, size);
    weft_status_t status = weft_group_grow(group, &params, out);
    if (status == WEFT_OK) {
        weft_context_retain(weft_group_context(*out)); /* leave releases it */
    }
    return status;
}

static void leave(weft_group_t *group)
{
    weft_context_t *context = group != NULL ? weft_group_context(group) : NULL;
    weft_group_destroy(group);
    weft_context_release(context);
}

/* A sum of the ranks' bits. */
static weft_status_t use(weft_group_t *group)
{
    static int32_t in[COUNT], out[COUNT];
    int32_t expected = (1 << weft_group_size(group)) - 1;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < COUNT; i++) {
        in[i] = 1 << weft_group_rank(group);
    }
    for (uint32_t times = 0; times < 3 && status == WEFT_OK; times++) {
        status = weft_all_reduce(in, out, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL);
        for (uint32_t i = 0; i < COUNT && status == WEFT_OK; i++) {
            RANK_CHECK(out[i] == expected);
        }
    }
    return status == WEFT_OK ? weft_context_barrier(weft_group_context(group)) : status;
}

static pid_t start(const scene_t *scene, void (*act)(const scene_t *, uint32_t), uint32_t rank)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        act(scene, rank);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

static bool ends_well(pid_t pid)
{
    int status = 0;
    return waitpid(pid, &status, 0) == pid && status == 0;
}

/* Joins, works with the others, and leaves. */
static void join_first(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    RANK_OK(enter(scene, 1, rank, 4, &group));
    RANK_OK(use(group));
    leave(group);
}

static void remove_files(const scene_t *scene)
{
    for (uint32_t nth = 0; nth < 4 && scene->hosts != NULL; nth++) {
        char path[96];
        snprintf(path, sizeof path, "%s-%d-%u", scene->kind + strlen("file://"), (int)getpid(),
                 nth);
        unlink(path);
    }
}

/* ---- joining ---- */

static void grow_by_two(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL, *next = NULL;
    RANK_OK(enter(scene, 0, rank, 2, &group));
    RANK_OK(grow(scene, 1, 4, group, &next));
    RANK_OK(use(next));
    RANK_OK(use(group)); /* the former world goes on */
    leave(next);
    leave(group);
}

static void test_two_join_at_once(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        pid_t pids[4];
        for (uint32_t r = 0; r < 4; r++) {
            pids[r] = start(&kinds[k], r < 2 ? grow_by_two : join_first, r);
        }
        for (uint32_t r = 0; r < 4; r++) {
            assert_true(ends_well(pids[r]));
        }
        remove_files(&kinds[k]);
    }
}

/* After all have left the grown world, the former one grows again. */
static void grow_twice(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL, *next = NULL;
    weft_context_t *shrunk = NULL;
    RANK_OK(enter(scene, 0, rank, 2, &group));
    RANK_OK(grow(scene, 1, 4, group, &next));
    RANK_OK(use(next));
    weft_group_t *refused = NULL;
    RANK_CHECK(grow(scene, 2, 3, group, &refused) == WEFT_ERR_STATE && refused == NULL);
    RANK_CHECK(strstr(weft_last_error(), "rank 0: the context's world of generation 0 has been "
                                         "replaced by that of generation 1; use") != NULL);
    leave(next);
    RANK_CHECK(weft_context_shrink(weft_group_context(group), &shrunk) == WEFT_ERR_STATE);
    RANK_CHECK(strstr(weft_last_error(), "it can only grow") != NULL);
    RANK_OK(grow(scene, 2, 3, group, &next));
    RANK_OK(use(next));
    RANK_OK(use(group));
    RANK_CHECK(weft_context_generation(weft_group_context(next)) == 2);
    RANK_CHECK(weft_context_member(weft_group_context(next), 2) == 4); /* 2 and 3 were others */
    leave(next);
    leave(group);
}

static void join_again(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    RANK_OK(enter(scene, 2, rank - 2, 3, &group));
    RANK_OK(use(group));
    leave(group);
}

static void test_grow_again(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        pid_t pids[5];
        for (uint32_t r = 0; r < 5; r++) {
            pids[r] = start(&kinds[k], r < 2 ? grow_twice : r < 4 ? join_first : join_again, r);
        }
        for (uint32_t r = 0; r < 5; r++) {
            assert_true(ends_well(pids[r]));
        }
        remove_files(&kinds[k]);
    }
}

static void join_with_another_secret(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    setenv("WEFT_SECRET", "something else", 1);
    RANK_CHECK(enter(scene, 1, rank, 4, &group) < 0 && group == NULL);
    RANK_CHECK(strstr(weft_last_error(), "secret") != NULL);
    atomic_fetch_add(&all->refused, 1);
}

/* A process with another secret is told so; the world waits for the right one. */
static void test_a_wrong_secret(void **state)
{
    (void)state;
    const scene_t *scene = &kinds[1];
    pid_t pids[4];
    atomic_store(&all->refused, 0);
    pids[0] = start(scene, grow_by_two, 0);
    pids[1] = start(scene, grow_by_two, 1);
    pids[2] = start(scene, join_first, 2);
    pid_t wrong = start(scene, join_with_another_secret, 3);
    assert_true(ends_well(wrong));
    assert_int_equal(atomic_load(&all->refused), 1);
    pids[3] = start(scene, join_first, 3);
    for (uint32_t r = 0; r < 4; r++) {
        assert_true(ends_well(pids[r]));
    }
    remove_files(scene);
}

/* Two processes are rank 2, and nobody is rank 3. */
static void grow_in_vain(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL, *next = NULL;
    RANK_OK(enter(scene, 0, rank, 2, &group));
    weft_status_t status = grow(scene, 1, 4, group, &next);
    RANK_CHECK(status == WEFT_ERR_MISMATCH && next == NULL);
    RANK_CHECK(strstr(weft_last_error(), "rank 2") != NULL);
    RANK_OK(use(group));
    RANK_OK(grow(scene, 2, 3, group, &next));
    RANK_OK(use(next));
    leave(group);
    leave(next);
}

static void join_twice(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    RANK_CHECK(enter(scene, 1, rank, 4, &group) < 0 && group == NULL);
    atomic_fetch_add(&all->refused, 1);
}

static void join_second(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    RANK_OK(enter(scene, 2, rank, 3, &group));
    RANK_OK(use(group));
    leave(group);
}

static void test_two_with_one_number(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        pid_t pids[5];
        for (uint32_t i = 0; i < 4; i++) {
            pids[i] = start(&kinds[k], i < 2 ? grow_in_vain : join_twice, i < 2 ? i : 2);
        }
        pids[4] = start(&kinds[k], join_second, 2);
        for (uint32_t i = 0; i < 5; i++) {
            assert_true(ends_well(pids[i]));
        }
        remove_files(&kinds[k]);
    }
}

/* Rank 0 fails before rank 1 can have found it: rank 1 does not look for it any longer. */
static void grow_nowhere(const scene_t *scene, uint32_t rank)
{
    static const scene_t nowhere = {.kind = "file:///tmp/weft-grow-no-folder/x"};
    weft_group_t *group = NULL, *next = NULL;
    RANK_OK(enter(scene, 0, rank, 3, &group));
    for (uint32_t i = 0; i < 2; i++) {
        weft_status_t status = grow(&nowhere, 1, 4, group, &next);
        RANK_CHECK(status < 0 && status != WEFT_ERR_TIMEOUT && next == NULL);
        RANK_CHECK(strstr(weft_last_error(), "weft-grow-no-folder") != NULL);
        RANK_OK(use(group));
    }
    leave(group);
}

static void test_where_no_rank_can_meet(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        pid_t pids[3];
        for (uint32_t r = 0; r < 3; r++) {
            pids[r] = start(&kinds[k], grow_nowhere, r);
        }
        for (uint32_t r = 0; r < 3; r++) {
            assert_true(ends_well(pids[r]));
        }
        remove_files(&kinds[k]);
    }
}

/* ---- ranks that die while they join ---- */

/* Whatever becomes of that, the world is whole, and grows when another process joins. */
static void grow_with_the_dying(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL, *next = NULL, *left = NULL;
    RANK_OK(enter(scene, 0, rank, 2, &group));
    weft_status_t status = grow(scene, 1, 3, group, &next);
    RANK_CHECK((status == WEFT_OK) == (next != NULL));
    RANK_CHECK(next != NULL || strstr(weft_last_error(), "rank 2") != NULL);
    while (status == WEFT_OK) {
        status = use(next);
    }
    RANK_CHECK(status == WEFT_ERR_PEER_DIED || status == WEFT_ERR_ABORTED ||
               (status == WEFT_ERR_MISMATCH && next == NULL)); /* the other one came sooner */
    RANK_OK(use(group));
    if (next != NULL) {
        RANK_OK(weft_group_shrink(next, &left));
        RANK_OK(use(left));
        weft_context_retain(weft_group_context(left));
        leave(next);
        leave(group);
        group = left;
    }
    atomic_fetch_add(&all->done, 1);
    RANK_OK(grow(scene, 2, 3, group, &next));
    RANK_OK(use(next));
    leave(next);
    leave(group);
}

static void join_and_die(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    if (enter(scene, 1, rank, 3, &group) == WEFT_OK) {
        RANK_OK(use(group));
    }
    kill(getpid(), SIGKILL);
}

static void test_one_dies_while_it_joins(void **state)
{
    (void)state;
    uint64_t random = support_seed() | 1;
    for (uint32_t i = 0; i < 8; i++) {
        const scene_t *scene = &kinds[i % 2];
        pid_t pids[3];
        atomic_store(&all->done, 0);
        for (uint32_t r = 0; r < 3; r++) {
            pids[r] = start(scene, r < 2 ? grow_with_the_dying : join_and_die, r);
        }
        usleep((useconds_t)(test_next_random(&random) % 20000)); /* anywhere on its way */
        kill(pids[2], SIGKILL);
        waitpid(pids[2], NULL, 0);
        /* Unless the others have noticed, they wait for another one. */
        pids[2] = start(scene, join_and_die, 2);
        while (atomic_load(&all->done) < 2) {
            assert_int_equal(waitpid(pids[0], NULL, WNOHANG), 0);
            assert_int_equal(waitpid(pids[1], NULL, WNOHANG), 0);
            usleep(500);
        }
        kill(pids[2], SIGKILL);
        waitpid(pids[2], NULL, 0);
        pids[2] = start(scene, join_second, 2);
        for (uint32_t r = 0; r < 3; r++) {
            assert_true(ends_well(pids[r]));
        }
        remove_files(scene);
    }
}

/* ---- what was made before ---- */

static const training_t training = {.world = 2, .steps = 4, .buckets = 3, .mode = SUPPORT_SHARDED};

typedef struct objects {
    weft_registry_t *registry;
    weft_plan_t *plan;
    weft_session_t *session;
    weft_capture_t *capture;
    weft_stream_t *stream;
    float data[COUNT];
} objects_t;

static void make_objects(weft_group_t *group, objects_t *out)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    RANK_OK(support_registry(true, &out->registry));
    RANK_OK(support_plan(&training, false, &out->plan));
    params.context = weft_group_context(group);
    params.plan = out->plan;
    params.registry = out->registry;
    RANK_OK(weft_session_create(&params, &out->session));
    RANK_OK(weft_stream_create(params.context, NULL, &out->stream));
    RANK_OK(weft_capture_begin(group, NULL));
    RANK_OK(weft_all_reduce(out->data, out->data, COUNT, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group,
                            NULL));
    RANK_OK(weft_capture_end(group, &out->capture));
}

static void use_objects(objects_t *objects, uint32_t rank, uint32_t step)
{
    float x[SUPPORT_INPUTS];
    support_inputs(rank, step, x);
    RANK_OK(weft_session_set_input(objects->session, "x", x, sizeof x));
    RANK_OK(weft_session_step(objects->session));
    for (uint32_t i = 0; i < COUNT; i++) {
        objects->data[i] = (float)(rank + step);
    }
    RANK_OK(weft_capture_launch(objects->capture, step % 2 == 0 ? objects->stream : NULL));
    RANK_OK(weft_stream_synchronize(objects->stream));
    for (uint32_t i = 0; i < COUNT; i++) {
        RANK_CHECK(objects->data[i] == (float)(2 * step + 1));
    }
}

/* On all ranks of the new world: a stream of the former one, and a plan for its number of ranks. */
static void refuse_objects(weft_group_t *next, weft_stream_t *stream)
{
    static int32_t in[COUNT], out[COUNT];
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    weft_session_t *session = NULL;
    RANK_CHECK(weft_all_reduce(in, out, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, next, stream) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strstr(weft_last_error(), "belongs to another context than the group") != NULL);
    RANK_OK(support_registry(true, &registry));
    RANK_OK(support_plan(&training, false, &plan));
    params.context = weft_group_context(next);
    params.plan = plan;
    params.registry = registry;
    RANK_CHECK(weft_session_create(&params, &session) < 0 && session == NULL);
    RANK_CHECK(strstr(weft_last_error(), "compiled for 2 ranks, world size is 4") != NULL);
    weft_plan_release(plan);
    weft_registry_destroy(registry);
}

static void join_without_objects(const scene_t *scene, uint32_t rank)
{
    weft_group_t *group = NULL;
    RANK_OK(enter(scene, 1, rank, 4, &group));
    refuse_objects(group, NULL);
    RANK_OK(use(group));
    leave(group);
}

/* They work on in the former world, and are refused in the new one. */
static void grow_with_objects(const scene_t *scene, uint32_t rank)
{
    static objects_t objects;
    char digest[65] = "", expected[65];
    weft_group_t *group = NULL, *next = NULL;
    weft_stream_t *stream = NULL;
    RANK_OK(enter(scene, 0, rank, 2, &group));
    make_objects(group, &objects);
    use_objects(&objects, rank, 0);
    use_objects(&objects, rank, 1);
    RANK_OK(grow(scene, 1, 4, group, &next));
    RANK_OK(weft_stream_create(weft_group_context(next), NULL, &stream));
    use_objects(&objects, rank, 2);
    RANK_CHECK(weft_capture_launch(objects.capture, stream) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strstr(weft_last_error(), "another context") != NULL);
    refuse_objects(next, objects.stream);
    use_objects(&objects, rank, 3);
    RANK_OK(weft_session_param_digest(objects.session, digest));
    support_expect(&training, expected);
    RANK_CHECK(strcmp(digest, expected) == 0);
    RANK_OK(use(next));
    weft_stream_destroy(stream);
    weft_capture_destroy(objects.capture);
    weft_session_destroy(objects.session);
    weft_stream_destroy(objects.stream);
    weft_plan_release(objects.plan);
    weft_registry_destroy(objects.registry);
    leave(group);
    leave(next);
}

static void test_objects_of_the_former_world(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        pid_t pids[4];
        for (uint32_t r = 0; r < 4; r++) {
            pids[r] = start(&kinds[k], r < 2 ? grow_with_objects : join_without_objects, r);
        }
        for (uint32_t r = 0; r < 4; r++) {
            assert_true(ends_well(pids[r]));
        }
        remove_files(&kinds[k]);
    }
}

int main(void)
{
    setenv("WEFT_SECRET", "of no consequence", 1);
    setenv("WEFT_IFNAME", "lo", 1);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        return 1;
    }
    cmocka_set_test_filter(getenv("WEFT_TEST_FILTER"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_join_at_once),
        cmocka_unit_test(test_grow_again),
        cmocka_unit_test(test_a_wrong_secret),
        cmocka_unit_test(test_two_with_one_number),
        cmocka_unit_test(test_where_no_rank_can_meet),
        cmocka_unit_test(test_one_dies_while_it_joins),
        cmocka_unit_test(test_objects_of_the_former_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
