/* SPDX-License-Identifier: Apache-2.0 */
#include "support_ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void support_rank_check(bool condition, const char *text, const char *file, int line)
{
    if (!condition) {
        fprintf(stderr, "%s:%d: %s is false; last error: %s\n", file, line, text,
                weft_last_error());
        fflush(NULL);
        _exit(1); /* the other ranks would wait */
    }
}

void support_rank_ok(weft_status_t status, const char *text, const char *file, int line)
{
    support_rank_check(status == WEFT_OK, text, file, line);
}

static _Atomic uint64_t allocations;

static void *count_alloc(void *user, size_t bytes)
{
    (void)user;
    atomic_fetch_add(&allocations, 1);
    return malloc(bytes);
}

static void *count_realloc(void *user, void *ptr, size_t old_bytes, size_t bytes)
{
    (void)user;
    (void)old_bytes;
    atomic_fetch_add(&allocations, 1);
    return realloc(ptr, bytes);
}

static void count_free(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

uint64_t support_rank_allocations(void)
{
    return atomic_load(&allocations);
}

typedef struct rank_thread {
    weft_hub_t *hub;
    char address[64];
    rank_fn run;
    rank_world_t world;
    pthread_t thread;
} rank_thread_t;

static void *rank_main(void *user)
{
    rank_thread_t *rank = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank->world.rank;
    params.world_size = (int32_t)rank->world.size;
    params.hub = rank->hub;
    static const weft_allocator_t allocator = {count_alloc, count_realloc, count_free, NULL};
    params.allocator = &allocator;
    params.address = rank->hub == NULL ? rank->address : NULL;
    RANK_OK(weft_context_create(&params, &rank->world.context));
    RANK_OK(weft_group_create_world(rank->world.context, &rank->world.group));
    rank->run(&rank->world);
    weft_group_destroy(rank->world.group);
    weft_context_release(rank->world.context);
    return NULL;
}

/*
 * WEFT_TEST_HOSTS=n puts every n ranks on a simulated host of their own, with a network between
 * them that delays by up to WEFT_TEST_DELAY_NS, with WEFT_TEST_SEED: so whole test programs run
 * over put links.
 */
static bool hosts_from_environment(uint32_t size, uint32_t *host_of, wefti_hub_links_t *links)
{
    const char *hosts = getenv("WEFT_TEST_HOSTS"), *delay = getenv("WEFT_TEST_DELAY_NS");
    const char *seed = getenv("WEFT_TEST_SEED");
    uint32_t each = hosts != NULL ? (uint32_t)strtoul(hosts, NULL, 10) : 0;
    if (each == 0) {
        return false;
    }
    for (uint32_t r = 0; r < size; r++) {
        host_of[r] = r / each;
    }
    links->host_of = host_of;
    links->seed = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    links->max_delay_ns = delay != NULL ? strtoull(delay, NULL, 10) : 0;
    return true;
}

void support_rank_threads(uint32_t size, rank_fn run, void *user)
{
    uint32_t host_of[256];
    wefti_hub_links_t links = {0};
    RANK_CHECK(size <= sizeof host_of / sizeof host_of[0]);
    bool hides = hosts_from_environment(size, host_of, &links);
    support_rank_threads_over(size, run, user, hides ? &links : NULL);
}

void support_rank_threads_over(uint32_t size, rank_fn run, void *user,
                               const wefti_hub_links_t *links)
{
    weft_hub_t *hub = NULL;
    rank_thread_t *ranks = calloc(size, sizeof *ranks);
    RANK_CHECK(ranks != NULL);
    RANK_OK(weft_hub_create(size, &hub));
    if (links != NULL) {
        RANK_OK(wefti_hub_hide(hub, links));
    }
    for (uint32_t r = 0; r < size; r++) {
        ranks[r].hub = hub;
        ranks[r].run = run;
        ranks[r].world = (rank_world_t){NULL, NULL, r, size, user};
        RANK_CHECK(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    free(ranks);
}

bool support_rank_processes(uint32_t size, rank_fn run, void *user)
{
    static unsigned int serial;
    unsigned int number = serial++;
    bool good = true;
    fflush(NULL);
    pid_t *pids = calloc(size, sizeof *pids);
    RANK_CHECK(pids != NULL);
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork();
        RANK_CHECK(pids[r] >= 0);
        if (pids[r] == 0) {
            rank_thread_t rank = {.run = run, .world = {NULL, NULL, r, size, user}};
            snprintf(rank.address, sizeof rank.address, "unix:@weft-test-%d-%u", (int)getppid(),
                     number);
            rank_main(&rank);
            fflush(NULL);
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < size; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    free(pids);
    return good;
}

uint64_t support_next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

uint64_t support_seed(void)
{
    static uint64_t seed;
    if (seed == 0) {
        const char *text = getenv("WEFT_TEST_SEED");
        seed = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)time(NULL) * 2654435761u + 1;
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    }
    return seed;
}
