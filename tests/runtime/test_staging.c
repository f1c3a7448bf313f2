/* SPDX-License-Identifier: Apache-2.0 */
/* Staging buffers: as large as asked for, by setting or by group, with memory when a call needs it.
 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/group/group.h"
#include "support_ranks.h"
#include "tests/support/support.h"

#define STAGING_BYTES ((size_t)200 << 20)
#define POOL_BYTES ((size_t)64 << 20) /* more than all the rest of the channels of a pool */

/* Memory of part index of count equal ones of a file. */
static size_t memory_of_part(int fd, uint64_t index, uint64_t count)
{
    struct stat info;
    RANK_CHECK(fstat(fd, &info) == 0);
    off_t at = (off_t)(index * ((uint64_t)info.st_size / count));
    off_t end = at + (off_t)((uint64_t)info.st_size / count);
    size_t bytes = 0;
    while (at < end && (at = lseek(fd, at, SEEK_DATA)) >= 0 && at < end) {
        off_t hole = lseek(fd, at, SEEK_HOLE);
        bytes += (size_t)((hole < end ? hole : end) - at);
        at = hole;
    }
    return bytes;
}

/* Of this rank's region, one of per_host in a file; 0: over sockets it may have another name, or
 * none. */
static size_t region_bytes(const rank_world_t *world, uint32_t per_host)
{
    size_t most = 0;
    DIR *folder = opendir("/proc/self/fd");
    RANK_CHECK(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[64] = "";
        if (readlinkat(dirfd(folder), entry->d_name, name, sizeof name - 1) > 0 &&
            strstr(name, "memfd:weft-region") != NULL) {
            size_t bytes = memory_of_part(atoi(entry->d_name), world->rank % per_host, per_host);
            most = bytes > most ? bytes : most;
        }
    }
    closedir(folder);
    return most;
}

/* Plain memory, which goes through staging. */
static void sum(weft_group_t *group, size_t count, const char *path)
{
    int32_t *data = malloc(count * sizeof *data);
    RANK_CHECK(data != NULL);
    for (size_t i = 0; i < count; i++) {
        data[i] = (int32_t)i;
    }
    RANK_OK(weft_all_reduce(data, data, count, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_CHECK(path == NULL || strcmp(weft_group_last_path(group), path) == 0);
    for (size_t i = 0; i < count; i++) {
        RANK_CHECK(data[i] == (int32_t)i * (int32_t)weft_group_size(group));
    }
    free(data);
}

static void run_on_demand(rank_world_t *world)
{
    size_t before = region_bytes(world, world->size);
    RANK_CHECK(before < POOL_BYTES);
    sum(world->group, 4, "posting");
    RANK_CHECK(region_bytes(world, world->size) == before);
    sum(world->group, (size_t)1 << 19, "staged");
    size_t after = region_bytes(world, world->size);
    RANK_CHECK(before == 0 || (after > before && after < before + ((size_t)8 << 20)));
    sum(world->group, (size_t)3 << 20, "staged");
    sum(world->group, (size_t)1 << 19, "staged");
    weft_group_t *group = NULL;
    RANK_OK(weft_group_duplicate(world->group, &group));
    sum(group, 100000, "staged");
    weft_group_destroy(group);
    RANK_CHECK(region_bytes(world, world->size) < POOL_BYTES);
}

/* Schedules take what calls of their size need, not all that they may take. */
static void run_on_demand_over_hosts(rank_world_t *world)
{
    size_t count = (size_t)1 << 16, before = region_bytes(world, 2);
    RANK_CHECK(before > 0 && before < POOL_BYTES);
    sum(world->group, count, "schedule");
    size_t after = region_bytes(world, 2);
    RANK_CHECK(after < before + ((size_t)8 << 20));
    uint64_t counts[4]; /* to each rank and from it; less with the last one */
    uint8_t *send = calloc(world->size, count), *recv = calloc(world->size, count);
    for (uint32_t r = 0; r < world->size; r++) {
        counts[r] = world->rank == world->size - 1 || r == world->size - 1 ? 5 : count;
        memset(send + r * count, (int)(1 + world->rank), count);
    }
    uint64_t at[4] = {0, count, 2 * count, 3 * count};
    RANK_OK(
        weft_all_to_all_v(send, counts, at, recv, counts, at, WEFT_DTYPE_U8, world->group, NULL));
    for (uint32_t r = 0; r < world->size; r++) {
        RANK_CHECK(recv[at[r]] == 1 + r && recv[at[r] + counts[r] - 1] == 1 + r);
    }
    free(send);
    free(recv);
    RANK_CHECK(region_bytes(world, 2) < before + ((size_t)8 << 20));
    sum(world->group, (size_t)4 << 20, "schedule"); /* what a larger call takes, */
    size_t large = region_bytes(world, 2);
    RANK_CHECK(large > after);
    sum(world->group, (size_t)4 << 20, "schedule"); /* the next one uses */
    RANK_CHECK(region_bytes(world, 2) == large);
}

static void test_staging_takes_memory_on_demand_over_hosts(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "200M", 1);
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    setenv("WEFT_TEST_HOSTS", "2", 1); /* ranks per host, which reach each other's memory */
    assert_true(support_rank_processes(4, run_on_demand_over_hosts, NULL));
    unsetenv("WEFT_TEST_HOSTS");
    unsetenv("WEFT_TEST_TRANSPORT");
    unsetenv("WEFT_TRANSPORT"); /* which the other one has set */
    unsetenv("WEFT_STAGING_BYTES");
}

static void test_staging_takes_memory_on_demand(void **state)
{
    (void)state;
    setenv("WEFT_STAGING_BYTES", "200M", 1);
    setenv("WEFT_ATTACH", "off", 1);
    assert_true(support_rank_processes_too(3, run_on_demand, NULL));
    support_rank_threads(2, run_on_demand, NULL);
    unsetenv("WEFT_ATTACH");
    unsetenv("WEFT_STAGING_BYTES");
}

static weft_status_t make(rank_world_t *world, weft_group_t *parent, uint64_t staging_bytes,
                          uint32_t color, weft_group_t **out_group)
{
    weft_group_params_t params = WEFT_GROUP_PARAMS_INIT;
    params.parent = parent;
    params.color = color;
    params.key = -(int64_t)world->rank;
    params.staging_bytes = staging_bytes;
    return weft_group_create(world->context, &params, out_group);
}

static void run_by_group(rank_world_t *world)
{
    static const uint64_t sizes[] = {1, 4096, 100001, (uint64_t)8 << 20, 0, STAGING_BYTES};
    weft_group_t *groups[6], *half = NULL, *none = NULL;
    for (int i = 0; i < 6; i++) {
        RANK_OK(make(world, NULL, sizes[i], 0, &groups[i]));
        RANK_CHECK(weft_group_rank(groups[i]) == world->size - 1 - world->rank);
    }
    for (int i = 0; i < 6; i++) {
        weft_group_t *same = NULL, *all = NULL;
        RANK_OK(weft_group_duplicate(groups[i], &same));
        RANK_CHECK(same->staging.half_bytes == groups[i]->staging.half_bytes);
        RANK_OK(weft_group_split(same, 0, 0, &all));
        RANK_CHECK(all->staging.half_bytes == groups[i]->staging.half_bytes);
        weft_group_destroy(all);
        weft_group_destroy(same);
        sum(groups[i], (size_t)1 << 18, NULL);
        sum(groups[5 - i], 5000, NULL);
        sum(world->group, 70000, NULL);
    }
    RANK_OK(make(world, groups[3], (uint64_t)8 << 20, world->rank % 2, &half));
    sum(half, (size_t)1 << 18, NULL);
    weft_group_destroy(half);
    RANK_OK(make(world, groups[0], 0, world->rank == 0 ? 0 : WEFT_COLOR_NONE, &none));
    RANK_CHECK((none != NULL) == (world->rank == 0));
    weft_group_destroy(none);
    for (int i = 0; i < 6; i++) {
        weft_group_destroy(groups[i]);
    }
    sum(world->group, 70000, NULL);
}

static void test_staging_by_group(void **state)
{
    (void)state;
    assert_true(support_rank_processes_too(4, run_by_group, NULL));
    setenv("WEFT_ATTACH", "off", 1);
    assert_true(support_rank_processes_too(2, run_by_group, NULL));
    unsetenv("WEFT_ATTACH");
    support_rank_threads(3, run_by_group, NULL);
}

static void run_disagreement(rank_world_t *world)
{
    weft_group_t *group = NULL;
    uint64_t bytes = world->rank == 1 ? 65536 : 131072;
    RANK_CHECK(make(world, NULL, bytes, 0, &group) == WEFT_ERR_MISMATCH && group == NULL);
    RANK_CHECK(strstr(weft_last_error(), "65536 bytes of staging") != NULL);
    RANK_CHECK(make(world, NULL, UINT64_MAX, 0, &group) == WEFT_ERR_NO_MEMORY && group == NULL);
    RANK_CHECK(make(world, NULL, (uint64_t)1 << 50, 0, &group) == WEFT_ERR_NO_MEMORY);
    RANK_OK(make(world, NULL, 65536, 0, &group));
    sum(group, 70000, NULL);
    weft_group_destroy(group);
}

static void test_staging_that_ranks_disagree_on(void **state)
{
    (void)state;
    assert_true(support_rank_processes(3, run_disagreement, NULL));
}

/* ---- rooted operators ---- */

#define ROOTED_RANKS 4u
#define ROOTED_STAGING 65536u
#define ROOTED_MOST 30000u /* elements of a block: several rounds, also of a root's pieces */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROOTED_CALLS 60u
#else
#define ROOTED_CALLS 200u
#endif

typedef struct rooted {
    pthread_t threads[ROOTED_RANKS];
    _Atomic uint32_t started, ended;
} rooted_t;

static int32_t rooted_value(uint32_t call, uint32_t from, uint32_t to, uint64_t i)
{
    return (int32_t)(call * 1000003u + from * 7919u + to * 104729u + (uint32_t)i);
}

/* One call, with the same draws on all ranks: group's ranks are numbered by it. */
static void call_rooted(weft_group_t *group, uint32_t call, uint64_t *draws, int32_t *send,
                        int32_t *recv)
{
    uint32_t n = weft_group_size(group), rank = weft_group_rank(group);
    uint32_t root = (uint32_t)(test_draw(draws, n)), op = (uint32_t)test_draw(draws, 5);
    uint64_t count = test_draw(draws, 4) == 0 ? 1 + test_draw(draws, 64)
                                              : 4096 + test_draw(draws, ROOTED_MOST - 4096);
    bool blocks = op == 3; /* of scatter's root, one for each */
    for (uint32_t to = 0; to < (blocks ? n : 1); to++) {
        for (uint64_t i = 0; i < count; i++) {
            send[to * count + i] = rooted_value(call, rank, blocks ? to : 0, i);
        }
    }
    memset(recv, 0x55, n * count * sizeof *recv);
    if (op == 0) {
        RANK_OK(weft_broadcast(send, recv, count, WEFT_DTYPE_I32, root, group, NULL));
    } else if (op == 1) {
        RANK_OK(
            weft_reduce(send, recv, count, WEFT_DTYPE_I32, WEFT_REDUCTION_MAX, root, group, NULL));
    } else if (op == 2) {
        RANK_OK(weft_gather(send, recv, count, WEFT_DTYPE_I32, root, group, NULL));
    } else if (op == 3) {
        RANK_OK(weft_scatter(send, recv, count, WEFT_DTYPE_I32, root, group, NULL));
    } else {
        RANK_OK(weft_all_gather(send, recv, count, WEFT_DTYPE_I32, group, NULL));
    }
    RANK_CHECK(count <= 64 || strcmp(weft_group_last_path(group), "staged") == 0);
    bool gathers = op == 2 || op == 4;
    for (uint32_t b = 0; b < (gathers ? n : 1); b++) {
        uint32_t from = gathers ? b : op == 1 ? n - 1 : root;
        for (uint64_t i = 0; i < count; i++) {
            int32_t expected = rooted_value(call, from, op == 3 ? rank : 0, i);
            if ((op == 1 || op == 2) && rank != root) {
                expected = 0x55555555;
            }
            RANK_CHECK(recv[b * count + i] == expected);
        }
    }
}

static void run_rooted(rank_world_t *world)
{
    rooted_t *rooted = world->user;
    uint32_t calls = ROOTED_CALLS;
    uint64_t draws = support_seed();
    int32_t *send = malloc(world->size * ROOTED_MOST * sizeof *send);
    int32_t *recv = malloc(world->size * ROOTED_MOST * sizeof *recv);
    weft_group_t *groups[2];
    RANK_CHECK(send != NULL && recv != NULL);
    rooted->threads[world->rank] = pthread_self();
    for (uint32_t g = 0; g < 2; g++) {
        RANK_OK(make(world, NULL, ROOTED_STAGING, 0, &groups[g]));
    }
    atomic_fetch_add(&rooted->started, 1);
    for (uint32_t i = 0; i < calls; i++) {
        if (i == calls / 2) { /* as late ranks still read what the last call staged */
            weft_group_destroy(groups[0]);
            RANK_OK(make(world, NULL, ROOTED_STAGING, 0, &groups[0]));
        }
        call_rooted(groups[test_draw(&draws, 2)], i, &draws, send, recv);
    }
    atomic_fetch_add(&rooted->ended, 1);
    while (atomic_load(&rooted->ended) < world->size) { /* signals come to threads that exist */
        sched_yield();
    }
    while (atomic_load(&rooted->ended) == world->size) {
        sched_yield();
    }
    weft_group_destroy(groups[0]);
    weft_group_destroy(groups[1]);
    free(send);
    free(recv);
}

static void be_late(int number)
{
    (void)number;
    nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
}

/* Stops ranks wherever they are, also between what they wait for and what they then read. */
static void *disturb(void *user)
{
    rooted_t *rooted = user;
    uint64_t draws = support_seed() + 1;
    while (atomic_load(&rooted->started) < ROOTED_RANKS) {
        sched_yield();
    }
    while (atomic_load(&rooted->ended) < ROOTED_RANKS) {
        pthread_kill(rooted->threads[test_draw(&draws, ROOTED_RANKS)], SIGUSR1);
        nanosleep(&(struct timespec){.tv_nsec = (long)test_draw(&draws, 200000)}, NULL);
    }
    atomic_fetch_add(&rooted->ended, 1);
    return NULL;
}

/* Ranks return before others have read what they staged: the next call must not overwrite it. */
static void test_staging_of_rooted_calls(void **state)
{
    struct sigaction late = {.sa_handler = be_late, .sa_flags = SA_RESTART}, former;
    pthread_t thread;
    (void)state;
    support_seed(); /* before there are threads */
    sigaction(SIGUSR1, &late, &former);
    setenv("WEFT_ATTACH", "off", 1);
    for (int checked = 0; checked < 2; checked++) {
        rooted_t rooted = {0};
        setenv("WEFT_CHECK", checked ? "results" : "off", 1);
        assert_int_equal(pthread_create(&thread, NULL, disturb, &rooted), 0);
        support_rank_threads(ROOTED_RANKS, run_rooted, &rooted);
        pthread_join(thread, NULL);
    }
    unsetenv("WEFT_CHECK");
    unsetenv("WEFT_ATTACH");
    sigaction(SIGUSR1, &former, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_staging_takes_memory_on_demand),
        cmocka_unit_test(test_staging_takes_memory_on_demand_over_hosts),
        cmocka_unit_test(test_staging_by_group),
        cmocka_unit_test(test_staging_that_ranks_disagree_on),
        cmocka_unit_test(test_staging_of_rooted_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
