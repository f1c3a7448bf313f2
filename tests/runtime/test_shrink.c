/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that go on without the ranks that died, and with ranks that join. */
#include "support.h"

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
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 16u
#define COUNT 1000u

/* ---- ranks that are processes, of which some die ---- */

typedef struct scene {
    uint32_t ranks;
    const char *hosts; /* "aab": simulated hosts, tcp between them; NULL: one host, shm */
    uint32_t deadly;   /* bits of ranks that are killed */
    void (*act)(struct scene *scene, uint32_t rank);
    uint32_t variant;
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
    fflush(NULL);
    for (uint32_t r = 0; r < scene->ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
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

int main(void)
{
    setenv("WEFT_SECRET", "of no consequence", 1);
    setenv("WEFT_IFNAME", "lo", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shrink_by_any_rank),
        cmocka_unit_test(test_shrink_over_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
