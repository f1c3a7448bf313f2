/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that go on without the ranks that died, and with ranks that join. */
#include "support.h"

#include "runtime/group/group.h"
#include "support_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 16u
#define COUNT 1000u

/* ---- ranks that are processes, of which some die ---- */

/* Of all processes of the test. */
typedef struct shared {
    _Atomic uint32_t gone_on, late_done;
    _Atomic uint32_t progress[RANKS_MAX], generation, left, stop;
    _Atomic int32_t child; /* that outlives a rank */
} shared_t;

static shared_t *all; /* of a test */

typedef struct scene {
    uint32_t ranks;
    const char *hosts; /* "aab": simulated hosts, tcp between them; NULL: one host, shm */
    uint32_t deadly;   /* bits of ranks that are killed */
    void (*act)(struct scene *scene, uint32_t rank);
    uint32_t variant;
    shared_t *shared;
    weft_context_t *context; /* of this rank, and the group of its world */
    weft_group_t *group;
} scene_t;

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;) {
        pause();
    }
}

static void join(scene_t *scene, uint32_t rank, const char *address)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)scene->ranks;
    params.address = address;
    if (scene->hosts != NULL) {
        const char host[] = {'h', '-', scene->hosts[rank], '\0'};
        setenv("WEFT_HOST_ID", host, 1);
    }
    RANK_OK(weft_context_create(&params, &scene->context));
    RANK_OK(weft_group_create_world(scene->context, &scene->group));
}

/* True when the ranks that are not deadly ended well, and the others by SIGKILL. */
static bool play(scene_t *scene)
{
    static unsigned int serial;
    char address[96];
    pid_t pids[RANKS_MAX];
    bool good = true;
    snprintf(address, sizeof address,
             scene->hosts != NULL ? "file:///tmp/weft-shrink-%d-%u" : "unix:@weft-shrink-%d-%u",
             (int)getpid(), serial++);
    scene->shared = all;
    memset(all, 0, sizeof *all);
    fflush(NULL);
    for (uint32_t r = 0; r < scene->ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            join(scene, r, address);
            scene->act(scene, r);
            weft_group_destroy(scene->group);
            weft_context_release(scene->context);
            fflush(NULL);
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < scene->ranks; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!((scene->deadly >> r & 1) != 0 ? killed : ended)) {
            print_error("rank %u ended with status 0x%x\n", r, (unsigned)status);
            good = false;
        }
    }
    if (scene->hosts != NULL) {
        unlink(address + strlen("file://"));
    }
    return good;
}

/* ---- what survivors check ---- */

static uint32_t bits(uint32_t mask)
{
    return (uint32_t)__builtin_popcount(mask);
}

/* The group has the members of mask, in their order, and works. */
static void check_group(weft_group_t *group, uint32_t mask)
{
    weft_context_t *context = weft_group_context(group);
    static int32_t in[COUNT], out[COUNT];
    uint32_t size = weft_group_size(group), rank = weft_group_rank(group), last = 0;
    RANK_CHECK(size == bits(mask));
    for (uint32_t r = 0; r < size; r++) {
        uint32_t member = weft_context_member(context, weft_group_world_rank(group, r));
        RANK_CHECK((mask >> member & 1) != 0 && (r == 0 || member > last));
        last = member;
    }
    uint32_t own = weft_context_member(context, weft_context_rank(context));
    RANK_CHECK(own == weft_context_member(context, weft_group_world_rank(group, rank)));
    for (uint32_t i = 0; i < COUNT; i++) {
        in[i] = (int32_t)(1u << own);
    }
    for (uint32_t times = 0; times < 3; times++) {
        RANK_OK(weft_all_reduce(in, out, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL));
        for (uint32_t i = 0; i < COUNT; i++) {
            RANK_CHECK(out[i] == (int32_t)mask);
        }
    }
    RANK_OK(weft_context_barrier(context));
}

/* Calls until one fails; a deadly rank dies at some call. */
static void reduce_until_broken(scene_t *scene, weft_group_t *group, bool dies, uint32_t after)
{
    static int32_t in[COUNT], out[COUNT];
    weft_status_t status = WEFT_OK;
    (void)scene;
    for (uint32_t i = 0; status == WEFT_OK; i++) {
        if (dies && i == after) {
            die();
        }
        status = weft_all_reduce(in, out, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL);
    }
    if (dies) { /* another deadly rank was faster */
        die();
    }
    RANK_CHECK(status == WEFT_ERR_PEER_DIED || status == WEFT_ERR_ABORTED);
}

static void replace_by(scene_t *scene, weft_group_t *next)
{
    weft_context_t *context = weft_group_context(next);
    weft_context_retain(context);
    weft_group_destroy(scene->group);
    weft_context_release(scene->context);
    scene->group = next;
    scene->context = context;
}

static uint32_t all_of(const scene_t *scene)
{
    return (1u << scene->ranks) - 1;
}

/* ---- scenes ---- */

/* Some ranks die at once. */
static void some_die(scene_t *scene, uint32_t rank)
{
    weft_group_t *next = NULL;
    reduce_until_broken(scene, scene->group, (scene->deadly >> rank & 1) != 0, 5);
    RANK_OK(weft_group_shrink(scene->group, &next));
    check_group(next, all_of(scene) & ~scene->deadly);
    RANK_CHECK(weft_context_generation(weft_group_context(next)) > 0);
    RANK_CHECK(weft_group_status(scene->group) < 0);
    replace_by(scene, next);
    check_group(scene->group, all_of(scene) & ~scene->deadly);
}

static void test_shrink_by_any_rank(void **state)
{
    (void)state;
    const uint32_t deadly[] = {1, 2, 8, 3, 9, 14, 7};
    for (uint32_t i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        scene_t scene = {.ranks = 4, .deadly = deadly[i], .act = some_die};
        assert_true(play(&scene));
    }
}

static void test_shrink_over_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *hosts;
        uint32_t deadly;
    } worlds[] = {{"abcd", 1}, {"aabb", 2}, {"aabb", 1}, {"aabb", 3}, {"abab", 8}, {"abcd", 6}};
    for (uint32_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        scene_t scene = {
            .ranks = 4, .hosts = worlds[i].hosts, .deadly = worlds[i].deadly, .act = some_die};
        assert_true(play(&scene));
    }
}

static void parent_dies(scene_t *scene, uint32_t rank)
{
    if ((scene->deadly >> rank & 1) != 0) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        atomic_store(&scene->shared->child, (int32_t)child);
    }
    some_die(scene, rank);
}

/* A rank is gone although its forked child lives; the other one could not go on without it. */
static void test_shrink_without_a_living_child(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 2, .hosts = "ab", .deadly = 1, .act = parent_dies};
    setenv("WEFT_TIMEOUT", "100", 1);
    bool good = play(&scene);
    unsetenv("WEFT_TIMEOUT");
    if (atomic_load(&all->child) > 0) {
        kill((pid_t)atomic_load(&all->child), SIGKILL);
    }
    assert_true(good);
}

#define SWAP_STEPS                                                                                 \
    "<step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" "       \
    "hasdep=\"0\"/>"                                                                               \
    "<step s=\"1\" type=\"r\" dstbuf=\"s\" dstoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" "       \
    "hasdep=\"0\"/>"                                                                               \
    "<step s=\"2\" type=\"re\" srcbuf=\"s\" srcoff=\"0\" dstbuf=\"i\" dstoff=\"0\" cnt=\"1\" "     \
    "depid=\"-1\" "                                                                                \
    "deps=\"-1\" hasdep=\"0\"/>"

static void check_pair(weft_group_t *pair)
{
    int32_t in = 1 << weft_group_rank(pair), out = 0;
    RANK_OK(weft_all_reduce(&in, &out, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, pair, NULL));
    RANK_CHECK(out == 3 && strncmp(weft_group_last_algorithm(pair), "swap-", 5) == 0);
}

/* Two ranks swap their vectors and add. */
static const char swap_file[] =
    "<algo name=\"swap\" nchunksperloop=\"1\" ngpus=\"2\" coll=\"allreduce\" inplace=\"1\">"
    "<gpu id=\"0\" i_chunks=\"1\" o_chunks=\"0\" s_chunks=\"1\">"
    "<tb id=\"0\" send=\"1\" recv=\"1\" chan=\"0\">" SWAP_STEPS "</tb></gpu>"
    "<gpu id=\"1\" i_chunks=\"1\" o_chunks=\"0\" s_chunks=\"1\">"
    "<tb id=\"0\" send=\"0\" recv=\"0\" chan=\"0\">" SWAP_STEPS "</tb></gpu></algo>";

static char swap_path[64];

/* The new group keeps the algorithm of a file that the former context had loaded. */
static void pair_has_a_file(scene_t *scene, uint32_t rank)
{
    weft_group_t *pair = NULL, *next = NULL;
    RANK_OK(weft_group_split(scene->group, rank < 2 ? 0 : WEFT_COLOR_NONE, 0, &pair));
    if (pair != NULL) {
        RANK_OK(weft_group_set_algorithm(pair, WEFT_COLLECTIVE_ALL_REDUCE, swap_path));
        check_pair(pair);
    }
    reduce_until_broken(scene, scene->group, rank == 2, 5);
    RANK_OK(weft_group_shrink(pair, &next));
    weft_group_destroy(pair);
    replace_by(scene, next);
    check_group(next, 3);
    check_pair(next);
}

static void test_shrink_keeps_the_algorithm_of_a_file(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 3, .deadly = 4, .act = pair_has_a_file};
    strcpy(swap_path, "/tmp/weft_shrink_XXXXXX.xml");
    int fd = mkstemps(swap_path, 4);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, swap_file, strlen(swap_file)), strlen(swap_file));
    close(fd);
    bool good = play(&scene);
    unlink(swap_path);
    assert_true(good);
}

/* ---- deaths while the survivors agree ---- */

static void *die_later(void *user)
{
    usleep(*(uint32_t *)user);
    die();
    return NULL;
}

/* All deadly ranks but the first one die some time after they have begun to shrink. */
static void some_die_meanwhile(scene_t *scene, uint32_t rank)
{
    bool deadly = (scene->deadly >> rank & 1) != 0, first = deadly;
    uint32_t delay_us = scene->variant * (rank + 1) % 7919 * 2;
    uint32_t left = all_of(scene) & ~scene->deadly;
    pthread_t thread;
    for (uint32_t r = 0; r < rank; r++) {
        first = first && (scene->deadly >> r & 1) == 0;
    }
    reduce_until_broken(scene, scene->group, first, 5);
    if (deadly) {
        RANK_CHECK(pthread_create(&thread, NULL, die_later, &delay_us) == 0);
    }
    do {
        weft_group_t *next = NULL;
        RANK_OK(weft_group_shrink(scene->group, &next));
        replace_by(scene, next);
        if (weft_group_size(next) > bits(left)) {
            reduce_until_broken(scene, scene->group, false, 0);
        }
    } while (weft_group_size(scene->group) > bits(left));
    check_group(scene->group, left);
}

static void test_shrink_while_more_die(void **state)
{
    (void)state;
    static const char *const hosts[] = {NULL, NULL, "aabbcc"};
    uint32_t seed = (uint32_t)support_seed();
    for (uint32_t i = 0; i < 12; i++) {
        scene_t scene = {.ranks = 6,
                         .hosts = hosts[i % 3],
                         .deadly = i % 2 == 0 ? 0x7 : 0x2c,
                         .act = some_die_meanwhile,
                         .variant = seed + i * 101};
        if (!play(&scene)) {
            fail_msg("seed %u, world %u", seed, i);
        }
    }
}

/* Rank 0 has left the world of the survivors again before rank 1 has its group there. */
static void one_shrinks_again(scene_t *scene, uint32_t rank)
{
    weft_context_t *first = NULL, *second = NULL;
    weft_group_t *next = NULL;
    reduce_until_broken(scene, scene->group, rank == 2, 5);
    if (rank == 0) {
        RANK_OK(weft_context_shrink(scene->context, &first));
        weft_context_shrink(first, &second); /* meets rank 1, which shrinks once more */
        die();
    }
    RANK_OK(weft_group_shrink(scene->group, &next));
    check_group(next, 2);
    replace_by(scene, next);
}

static void test_shrink_that_another_rank_repeats(void **state)
{
    (void)state;
    static const char *const hosts[] = {NULL, "aab"};
    for (uint32_t i = 0; i < 2; i++) {
        scene_t scene = {.ranks = 3, .hosts = hosts[i], .deadly = 5, .act = one_shrinks_again};
        assert_true(play(&scene));
    }
}

/* A rank whose group has been made passes that; another one still passes the group before it. */
static void groups_have_the_same_survivors(scene_t *scene, uint32_t rank)
{
    weft_group_t *all_ranks = NULL, *some = NULL, *next = NULL;
    int64_t key = -(int64_t)rank;
    RANK_OK(weft_group_split(scene->group, 0, key, &all_ranks));
    RANK_OK(weft_group_split(scene->group, rank == 2, key, &some));
    reduce_until_broken(scene, scene->group, rank == 2, 5);
    RANK_OK(weft_group_shrink(rank == 1 ? all_ranks : some, &next));
    RANK_CHECK(weft_group_size(next) == 3);
    for (uint32_t r = 0; r < 3; r++) {
        static const uint32_t members[] = {3, 1, 0};
        RANK_CHECK(weft_context_member(weft_group_context(next), weft_group_world_rank(next, r)) ==
                   members[r]);
    }
    int32_t in = 1 << rank, out = 0;
    RANK_OK(weft_all_reduce(&in, &out, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, next, NULL));
    RANK_CHECK(out == 0xb);
    weft_group_destroy(all_ranks);
    weft_group_destroy(some);
    replace_by(scene, next);
}

static void test_shrink_of_groups_with_the_same_survivors(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 4, .deadly = 4, .act = groups_have_the_same_survivors};
    assert_true(play(&scene));
}

/* ---- several groups ---- */

static void halves_shrink(scene_t *scene, uint32_t rank)
{
    weft_group_t *half = NULL, *next = NULL, *world = NULL;
    uint32_t own = rank & 1, mask = (own == 0 ? 0x15u : 0x2au) & ~scene->deadly;
    weft_group_params_t params = WEFT_GROUP_PARAMS_INIT;
    params.parent = scene->group;
    params.color = own;
    params.key = -(int64_t)rank;
    params.staging_bytes = (uint64_t)16 << 20;
    RANK_OK(weft_group_create(scene->context, &params, &half));
    RANK_OK(weft_group_set_order(half, WEFT_ORDER_ANY, NULL, 0));
    reduce_until_broken(scene, scene->group, (scene->deadly >> rank & 1) != 0, 5);
    RANK_OK(weft_group_shrink(half, &next));
    RANK_CHECK(weft_group_size(next) == bits(mask));
    RANK_CHECK(weft_group_order(next) == WEFT_ORDER_ANY);
    RANK_CHECK(next->staging.half_bytes == (size_t)8 << 20);
    weft_context_t *context = weft_group_context(next);
    for (uint32_t r = 0; r < weft_group_size(next); r++) { /* in the order of the half */
        uint32_t member = weft_context_member(context, weft_group_world_rank(next, r));
        RANK_CHECK((mask >> member & 1) != 0);
        RANK_CHECK(r == 0 ||
                   member < weft_context_member(context, weft_group_world_rank(next, r - 1)));
    }
    int32_t in = 1 << rank, out = 0;
    RANK_OK(weft_all_reduce(&in, &out, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, next, NULL));
    RANK_CHECK(out == (int32_t)mask);
    RANK_OK(weft_group_create_world(context, &world));
    check_group(world, all_of(scene) & ~scene->deadly);
    weft_group_destroy(half);
    weft_group_destroy(world);
    replace_by(scene, next);
}

static void test_shrink_several_groups(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 6, .deadly = 0x9, .act = halves_shrink};
    assert_true(play(&scene));
}

/* Half of the ranks pass the world, the others a part of it. */
static void groups_differ(scene_t *scene, uint32_t rank)
{
    weft_group_t *part = NULL, *next = NULL;
    RANK_OK(weft_group_split(scene->group, rank / 2, 0, &part));
    weft_status_t status = weft_group_shrink(rank < 2 ? scene->group : part, &next);
    RANK_CHECK(status == WEFT_ERR_MISMATCH && next == NULL);
    RANK_CHECK(strstr(weft_last_error(), "rank 0 passed a group of which 4 ranks are left, and 2 "
                                         "of them passed it") != NULL);
    weft_group_destroy(part);
}

static void test_shrink_needs_equal_groups(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 4, .act = groups_differ};
    assert_true(play(&scene));
}

/* ---- what was made before ---- */

static void objects_end(scene_t *scene, uint32_t rank)
{
    static int32_t in[COUNT], out[COUNT];
    weft_stream_t *stream = NULL, *later = NULL;
    weft_event_t *event = NULL;
    weft_fuser_t *fuser = NULL;
    weft_group_t *next = NULL, *duplicate = NULL;
    weft_context_t *again = NULL;
    void *memory = NULL, *none = NULL;
    RANK_OK(weft_stream_create(scene->context, NULL, &stream));
    RANK_OK(weft_event_create(scene->context, &event));
    RANK_OK(weft_fuser_create(scene->group, NULL, &fuser));
    RANK_OK(weft_mem_alloc(scene->context, 1 << 20, &memory));
    /* A rank that is done with it may die or shrink the world before another one is. */
    weft_status_t made = weft_group_duplicate(scene->group, &duplicate);
    RANK_CHECK(made == WEFT_OK || made == WEFT_ERR_PEER_DIED || made == WEFT_ERR_ABORTED);
    if ((scene->deadly >> rank & 1) != 0) {
        die();
    }
    for (uint32_t i = 0; i < 8; i++) {
        weft_status_t status = weft_all_reduce(in, out, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                                               made == WEFT_OK ? duplicate : scene->group, stream);
        RANK_CHECK(status == WEFT_OK || status == WEFT_ERR_PEER_DIED || status == WEFT_ERR_ABORTED);
    }
    weft_event_record(event, stream);
    RANK_OK(weft_group_shrink(scene->group, &next));
    check_group(next, all_of(scene) & ~scene->deadly);
    RANK_CHECK(weft_stream_synchronize(stream) < 0);
    RANK_CHECK(weft_context_barrier(scene->context) < 0);
    RANK_CHECK(weft_mem_alloc(scene->context, 4096, &none) < 0);
    memset(memory, 1, 1 << 20); /* it stays until its context is released */
    /* The world of before has been replaced; that of now has not. */
    RANK_CHECK(weft_context_shrink(scene->context, &again) == WEFT_ERR_STATE && again == NULL);
    RANK_OK(weft_stream_create(weft_group_context(next), NULL, &later));
    RANK_OK(weft_all_reduce(in, out, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, next, later));
    RANK_OK(weft_stream_synchronize(later));
    weft_stream_destroy(later);
    for (uint32_t i = 0; i < 5; i++) { /* in an order of its own on each rank */
        switch ((i * 2 + rank + scene->variant) % 5) {
        case 0:
            weft_stream_destroy(stream);
            break;
        case 1:
            weft_event_destroy(event);
            break;
        case 2:
            weft_fuser_destroy(fuser);
            break;
        case 3:
            weft_group_destroy(duplicate);
            break;
        default:
            weft_mem_free(scene->context, memory);
        }
    }
    replace_by(scene, next);
    check_group(scene->group, all_of(scene) & ~scene->deadly);
}

static void test_shrink_and_objects_of_before(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        scene_t scene = {.ranks = 4,
                         .hosts = i == 1 ? "aabb" : NULL,
                         .deadly = 1u << i % 4,
                         .act = objects_end,
                         .variant = i};
        assert_true(play(&scene));
    }
}

/* ---- ranks that live but do not come ---- */

static void one_stays_away(scene_t *scene, uint32_t rank)
{
    weft_group_t *next = NULL;
    if (rank == scene->variant) { /* comes when the others have gone on without it */
        while (atomic_load(&scene->shared->gone_on) == 0) {
            usleep(1000);
        }
        RANK_CHECK(weft_group_shrink(scene->group, &next) == WEFT_ERR_TIMEOUT && next == NULL);
        RANK_CHECK(strstr(weft_last_error(), "of 3 ranks that live did not agree") != NULL);
        atomic_store(&scene->shared->late_done, 1);
        return;
    }
    RANK_OK(weft_group_shrink(scene->group, &next));
    check_group(next, all_of(scene) & ~(1u << scene->variant));
    atomic_store(&scene->shared->gone_on, 1);
    while (atomic_load(&scene->shared->late_done) == 0) { /* they live, so it finds them */
        usleep(1000);
    }
    replace_by(scene, next);
}

static void test_shrink_leaves_late_ranks_behind(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 3, .act = one_stays_away};
    setenv("WEFT_TIMEOUT", "4", 1);
    bool good = play(&scene);
    unsetenv("WEFT_TIMEOUT");
    assert_true(good);
}

/* ---- worlds that shrink and grow again and again, under load ---- */

typedef struct changing {
    shared_t *shared;
    const char *kind; /* of address */
    const char *hosts;
    uint32_t full;
} changing_t;

static void changing_address(const changing_t *changing, uint32_t generation, char *out,
                             size_t bytes)
{
    snprintf(out, bytes, "%s-%d-%u", changing->kind, (int)getppid(), generation);
}

static uint32_t open_descriptors(void)
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    RANK_CHECK(folder != NULL);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* Several calls at once; WEFT_OK and *out_stop when all ranks have been told to stop. */
static weft_status_t work(weft_group_t *group, weft_stream_t *const streams[2], bool stops,
                          bool *out_stop)
{
    static int64_t in[4][COUNT], out[4][COUNT];
    weft_context_t *context = weft_group_context(group);
    int64_t sum = 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < weft_group_size(group); r++) {
        sum += weft_context_member(context, r);
    }
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t j = 0; j < COUNT; j++) {
            in[i][j] = weft_context_member(context, weft_context_rank(context)) + j;
        }
        in[i][0] = stops;
    }
    for (uint32_t i = 0; i < 4 && status >= 0; i++) {
        status = weft_all_reduce(in[i], out[i], COUNT >> i, WEFT_DTYPE_I64, WEFT_REDUCTION_SUM,
                                 group, streams[i % 2]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        weft_status_t ended = weft_stream_synchronize(streams[i]);
        status = status < 0 ? status : ended;
    }
    if (status < 0) {
        return status;
    }
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t j = 1; j < COUNT >> i; j++) {
            RANK_CHECK(out[i][j] == sum + (int64_t)j * weft_group_size(group));
        }
    }
    *out_stop = out[0][0] > 0;
    return WEFT_OK;
}

static void changing_rank(const changing_t *changing, uint32_t slot, uint32_t rank,
                          const char *address)
{
    shared_t *shared = changing->shared;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    scene_t own = {.ranks = changing->full};
    uint32_t descriptors = 0;
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)changing->full;
    params.address = address;
    if (changing->hosts != NULL) {
        const char host[] = {'h', '-', changing->hosts[slot], '\0'};
        setenv("WEFT_HOST_ID", host, 1);
    }
    RANK_OK(weft_context_create(&params, &own.context));
    RANK_OK(weft_group_create_world(own.context, &own.group));
    for (bool stop = false; !stop;) {
        char where[96];
        weft_stream_t *streams[2];
        weft_group_t *next = NULL;
        RANK_OK(weft_stream_create(own.context, NULL, &streams[0]));
        RANK_OK(weft_stream_create(own.context, NULL, &streams[1]));
        while (!stop && work(own.group, streams, atomic_load(&shared->stop) != 0, &stop) >= 0) {
            atomic_fetch_add(&shared->progress[slot], 1);
        }
        weft_stream_destroy(streams[0]);
        if (!stop) {
            RANK_OK(weft_group_shrink(own.group, &next));
            weft_stream_destroy(streams[1]); /* of the former world */
            replace_by(&own, next);
        } else {
            weft_stream_destroy(streams[1]);
        }
        if (stop || weft_group_size(own.group) != atomic_load(&shared->left)) {
            continue; /* not all that the test has killed are gone */
        }
        uint32_t generation = weft_context_generation(own.context);
        changing_address(changing, generation, where, sizeof where);
        atomic_store(&shared->generation, generation);
        params = (weft_context_params_t)WEFT_CONTEXT_PARAMS_INIT;
        params.world_size = (int32_t)changing->full;
        params.address = where;
        RANK_OK(weft_group_grow(own.group, &params, &next));
        replace_by(&own, next);
        /* On one host rank 0 has a socket to each rank, the others have one to rank 0. */
        uint32_t links = weft_context_rank(own.context) == 0 ? changing->full - 2 : 0;
        uint32_t now = open_descriptors() - (changing->hosts == NULL ? links : 0);
        descriptors = descriptors == 0 ? now : descriptors;
        /* Sockets between hosts are opened when they are first used. */
        RANK_CHECK(now <= descriptors + (changing->hosts != NULL ? 12 + changing->full : 0));
    }
    weft_group_destroy(own.group);
    weft_context_release(own.context);
}

static pid_t start_changing(const changing_t *changing, uint32_t slot, uint32_t rank,
                            const char *address)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        changing_rank(changing, slot, rank, address);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

/* Waits until a condition holds; a rank that ends meanwhile has failed. */
#define AWAIT(condition, pids, count)                                                              \
    while (!(condition)) {                                                                         \
        for (uint32_t awaited = 0; awaited < (count); awaited++) {                                 \
            int ended = 0;                                                                         \
            if ((pids)[awaited] > 0 && waitpid((pids)[awaited], &ended, WNOHANG) != 0) {           \
                fail_msg("rank in slot %u ended with status 0x%x", awaited, (unsigned)ended);      \
            }                                                                                      \
        }                                                                                          \
        usleep(500);                                                                               \
    }

static bool all_go_on(const changing_t *changing, const uint32_t *since)
{
    for (uint32_t i = 0; i < changing->full; i++) {
        if (atomic_load(&changing->shared->progress[i]) < since[i] + 2) {
            return false;
        }
    }
    return true;
}

static void change(const changing_t *changing, uint32_t cycles)
{
    shared_t *shared = changing->shared;
    uint32_t full = changing->full, seed = (uint32_t)support_seed() | 1;
    pid_t pids[RANKS_MAX];
    char address[96];
    memset(shared, 0, sizeof *shared);
    snprintf(address, sizeof address, "%s-%d-start", changing->kind, (int)getpid());
    for (uint32_t i = 0; i < full; i++) {
        pids[i] = start_changing(changing, i, i, address);
    }
    for (uint32_t cycle = 0; cycle < cycles; cycle++) {
        uint32_t since[RANKS_MAX], victims[2];
        for (uint32_t i = 0; i < full; i++) {
            since[i] = atomic_load(&shared->progress[i]);
        }
        AWAIT(all_go_on(changing, since), pids, full);
        seed = seed * 1664525u + 1013904223u;
        uint32_t count = 1 + (seed >> 20) % 2;
        victims[0] = (seed >> 8) % full;
        victims[1] = (victims[0] + 1 + (seed >> 12) % (full - 1)) % full;
        atomic_store(&shared->generation, 0);
        atomic_store(&shared->left, full - count);
        for (uint32_t i = 0; i < count; i++) {
            kill(pids[victims[i]], SIGKILL);
            waitpid(pids[victims[i]], NULL, 0);
            pids[victims[i]] = 0;
        }
        AWAIT(atomic_load(&shared->generation) != 0, pids, full);
        snprintf(address, sizeof address, "%s-%d-%u", changing->kind, (int)getpid(),
                 atomic_load(&shared->generation));
        for (uint32_t i = 0; i < count; i++) {
            pids[victims[i]] = start_changing(changing, victims[i], full - count + i, address);
        }
    }
    uint32_t since[RANKS_MAX];
    for (uint32_t i = 0; i < full; i++) {
        since[i] = atomic_load(&shared->progress[i]);
    }
    AWAIT(all_go_on(changing, since), pids, full);
    atomic_store(&shared->stop, 1);
    for (uint32_t i = 0; i < full; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        assert_int_equal(status, 0);
    }
}

/* WEFT_TEST_CYCLES=1000 by hand. */
static uint32_t cycles_or(uint32_t usual)
{
    const char *text = getenv("WEFT_TEST_CYCLES");
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : usual;
}

static void test_shrink_and_grow_under_load(void **state)
{
    (void)state;
    changing_t changing = {.shared = all, .kind = "unix:@weft-changing", .full = 4};
    change(&changing, cycles_or(20));
}

static void test_shrink_and_grow_over_hosts(void **state)
{
    (void)state;
    changing_t changing = {
        .shared = all, .kind = "file:///tmp/weft-changing", .hosts = "aabb", .full = 4};
    change(&changing, cycles_or(8));
}

/* ---- ranks that are threads ---- */

/* A thread dies by leaving the world. */
static void thread_leaves(rank_world_t *world)
{
    const uint32_t *leaver = world->user;
    static const uint32_t all_ranks = 0xf;
    weft_stream_t *stream = NULL;
    int32_t in = 1 << world->rank, out = 0;
    weft_status_t status = WEFT_OK;
    RANK_OK(weft_all_reduce(&in, &out, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group, NULL));
    if (world->rank == *leaver) {
        weft_group_leave(world->group);
        weft_context_release(world->context);
        world->group = NULL;
        world->context = NULL;
        return;
    }
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    while (status == WEFT_OK) {
        status =
            weft_all_reduce(&in, &out, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group, stream);
        status = status < 0 ? status : weft_stream_synchronize(stream);
    }
    uint32_t left = all_ranks & ~(1u << *leaver);
    for (uint32_t i = 0; i < 3; i++) { /* also where nobody has left */
        weft_group_t *next = NULL;
        RANK_OK(weft_group_shrink(world->group, &next));
        weft_context_t *context = weft_group_context(next);
        weft_context_retain(context);
        weft_group_destroy(world->group);
        weft_context_release(world->context);
        world->group = next;
        world->context = context;
        RANK_CHECK(weft_group_size(next) == bits(left));
        RANK_OK(weft_all_reduce(&in, &out, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, next, NULL));
        RANK_CHECK(out == (int32_t)left);
        RANK_OK(weft_context_barrier(context));
    }
    weft_stream_destroy(stream);
}

static void test_shrink_by_threads(void **state)
{
    (void)state;
    for (uint32_t leaver = 0; leaver < 4; leaver += 3) {
        support_rank_threads(4, thread_leaves, &leaver);
    }
}

/* ---- worlds that do not grow ---- */

static weft_status_t grow(scene_t *scene, const char *address, int32_t size, weft_group_t **out)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.world_size = size;
    params.address = address;
    return weft_group_grow(scene->group, &params, out);
}

static int always(void *user)
{
    (void)user;
    return 1;
}

static void growing_fails(scene_t *scene, uint32_t rank)
{
    char address[96], other[96];
    weft_group_t *next = NULL;
    snprintf(address, sizeof address, "unix:@weft-no-growth-%d", (int)getppid());
    snprintf(other, sizeof other, "unix:@weft-no-growth-%d-%u", (int)getppid(), rank);
    RANK_CHECK(grow(scene, address, (int32_t)scene->ranks, &next) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(strstr(weft_last_error(), "world_size: must be more than the 2 ranks") != NULL);
    RANK_CHECK(grow(scene, NULL, 3, &next) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(grow(scene, other, 3, &next) == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "passed different addresses") != NULL);
    RANK_CHECK(grow(scene, address, 3 + (int32_t)rank, &next) == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "rank 0 passed world_size 3, rank 1 passed 4") != NULL);
    check_group(scene->group, 3);
    RANK_CHECK(grow(scene, address, 3, &next) == WEFT_ERR_TIMEOUT && next == NULL);
    RANK_CHECK(strstr(weft_last_error(), "missing ranks: 2") != NULL);
    check_group(scene->group, 3);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.world_size = 3;
    params.address = address;
    params.interrupt = rank == 0 ? always : NULL; /* of this call only */
    RANK_CHECK(weft_group_grow(scene->group, &params, &next) == WEFT_ERR_ABORTED && next == NULL);
    RANK_CHECK(strstr(weft_last_error(), "rank 0 was interrupted") != NULL);
    check_group(scene->group, 3);
    if (rank == 1) { /* it dies while the world waits for a rank that joins */
        die();
    }
    RANK_CHECK(grow(scene, address, 3, &next) < 0 && next == NULL);
    RANK_OK(weft_group_shrink(scene->group, &next));
    check_group(next, 1);
    replace_by(scene, next);
}

static void test_world_that_does_not_grow(void **state)
{
    (void)state;
    scene_t scene = {.ranks = 2, .deadly = 2, .act = growing_fails};
    setenv("WEFT_TIMEOUT", "3", 1);
    bool good = play(&scene);
    unsetenv("WEFT_TIMEOUT");
    assert_true(good);
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
        cmocka_unit_test(test_shrink_by_any_rank),
        cmocka_unit_test(test_shrink_over_hosts),
        cmocka_unit_test(test_shrink_keeps_the_algorithm_of_a_file),
        cmocka_unit_test(test_shrink_without_a_living_child),
        cmocka_unit_test(test_shrink_while_more_die),
        cmocka_unit_test(test_shrink_that_another_rank_repeats),
        cmocka_unit_test(test_shrink_of_groups_with_the_same_survivors),
        cmocka_unit_test(test_shrink_several_groups),
        cmocka_unit_test(test_shrink_needs_equal_groups),
        cmocka_unit_test(test_shrink_and_objects_of_before),
        cmocka_unit_test(test_shrink_leaves_late_ranks_behind),
        cmocka_unit_test(test_shrink_and_grow_under_load),
        cmocka_unit_test(test_shrink_and_grow_over_hosts),
        cmocka_unit_test(test_shrink_by_threads),
        cmocka_unit_test(test_world_that_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
