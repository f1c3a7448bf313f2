/* SPDX-License-Identifier: Apache-2.0 */
#include "support_ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "tests/faults/hook.h"
#include "tests/support/support.h"

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

static test_memory_t memory; /* of all ranks */

uint64_t support_rank_allocations(void)
{
    return memory.requests;
}

/* WEFT_TEST_MESH_RANKS=n: larger groups on several hosts are hosted (wefti_mesh_ranks). */
static void limit_from_environment(void)
{
    const char *text = getenv("WEFT_TEST_MESH_RANKS");
    if (text != NULL && text[0] != '\0') {
        wefti_mesh_ranks = (uint32_t)strtoul(text, NULL, 10);
    }
}

typedef struct rank_thread {
    weft_hub_t *hub;
    char address[128];
    rank_fn run;
    rank_world_t world;
    pthread_t thread;
} rank_thread_t;

const weft_registry_t *support_ranks_registry;

/* WEFT_TEST_HOOK puts rules around all ranks' endpoints: tests/faults/hook.h. */
static void hook_from_environment(weft_context_t *context)
{
    const char *text = getenv("WEFT_TEST_HOOK");
    if (text != NULL && text[0] != '\0') {
        wefti_hook_rules_t rules;
        RANK_OK(wefti_hook_parse(text, &rules));
        RANK_OK(wefti_hook_attach(context->endpoint, &rules));
    }
}

static void *rank_main(void *user)
{
    rank_thread_t *rank = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank->world.rank;
    params.world_size = (int32_t)rank->world.size;
    params.hub = rank->hub;
    params.allocator = &memory.allocator;
    params.registry = support_ranks_registry;
    params.address = rank->hub == NULL ? rank->address : NULL;
    RANK_OK(weft_context_create(&params, &rank->world.context));
    hook_from_environment(rank->world.context);
    RANK_OK(weft_group_create_world(rank->world.context, &rank->world.group));
    rank->run(&rank->world);
    weft_group_destroy(rank->world.group);
    weft_context_release(rank->world.context);
    return NULL;
}

/*
 * WEFT_TEST_TRANSPORT=tcp: ranks meet through a file and are hosts of their own, with sockets
 * between them. Ranks that are processes share a host by n where WEFT_TEST_HOSTS=n, or by equal letters where it is a list such as aab.
 */
static bool uses_sockets(void)
{
    const char *transport = getenv("WEFT_TEST_TRANSPORT");
    if (transport == NULL || transport[0] == '\0') {
        return false;
    }
    setenv("WEFT_TRANSPORT", transport, 1);
    setenv("WEFT_SECRET", "of no consequence", 0);
    setenv("WEFT_IFNAME", "lo", 0);
    return true;
}

static void new_address(char *address, size_t bytes)
{
    static unsigned int serial;
    if (uses_sockets()) {
        snprintf(address, bytes, "file:///tmp/weft-test-%d-%u", (int)getpid(), serial++);
    } else {
        snprintf(address, bytes, "unix:@weft-test-%d-%u", (int)getpid(), serial++);
    }
}

static void forget_address(const char *address)
{
    if (strncmp(address, "file://", 7) == 0) {
        unlink(address + 7);
    }
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
    bool hides = !uses_sockets() && hosts_from_environment(size, host_of, &links);
    support_rank_threads_over(size, run, user, hides ? &links : NULL);
}

void support_rank_threads_over(uint32_t size, rank_fn run, void *user,
                               const wefti_hub_links_t *links)
{
    weft_hub_t *hub = NULL;
    char address[128] = "";
    rank_thread_t *ranks = calloc(size, sizeof *ranks);
    RANK_CHECK(ranks != NULL);
    limit_from_environment();
    test_memory_init(&memory);
    if (links == NULL && uses_sockets()) {
        new_address(address, sizeof address);
    } else {
        RANK_OK(weft_hub_create(size, &hub));
    }
    if (links != NULL) {
        RANK_OK(wefti_hub_hide(hub, links));
    }
    for (uint32_t r = 0; r < size; r++) {
        ranks[r].hub = hub;
        snprintf(ranks[r].address, sizeof ranks[r].address, "%s", address);
        ranks[r].run = run;
        ranks[r].world = (rank_world_t){NULL, NULL, r, size, user};
        RANK_CHECK(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    forget_address(address);
    free(ranks);
}

static void share_hosts(uint32_t rank)
{
    const char *hosts = getenv("WEFT_TEST_HOSTS");
    uint32_t each = hosts != NULL ? (uint32_t)strtoul(hosts, NULL, 10) : 0;
    bool listed = hosts != NULL && each == 0 && rank < strlen(hosts);
    char name[32];
    if ((each > 0 || listed) && uses_sockets()) {
        if (listed) {
            snprintf(name, sizeof name, "host-%c", hosts[rank]);
        } else {
            snprintf(name, sizeof name, "host-%u", rank / each);
        }
        setenv("WEFT_HOST_ID", name, 1);
        setenv("WEFT_TRANSPORT", "auto", 1);
    }
}

bool support_rank_processes(uint32_t size, rank_fn run, void *user)
{
    char address[128];
    bool good = true;
    limit_from_environment();
    test_memory_init(&memory);
    new_address(address, sizeof address);
    fflush(NULL);
    pid_t *pids = calloc(size, sizeof *pids);
    RANK_CHECK(pids != NULL);
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork();
        RANK_CHECK(pids[r] >= 0);
        if (pids[r] == 0) {
            rank_thread_t rank = {.run = run, .world = {NULL, NULL, r, size, user}};
            snprintf(rank.address, sizeof rank.address, "%s", address);
            share_hosts(r);
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
    forget_address(address);
    free(pids);
    return good;
}

bool support_rank_processes_too(uint32_t size, rank_fn run, void *user)
{
    return TEST_THREAD_SANITIZER || support_rank_processes(size, run, user);
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

/* ---- sessions of ranks ---- */

static uint64_t mix(uint64_t sum, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    for (size_t k = 0; k < bytes; k++) {
        sum = (sum ^ from[k]) * 1099511628211u;
    }
    return sum;
}

void support_digest_state(weft_session_t *session, char digest[65])
{
    uint64_t sum = 0;
    size_t params = weft_session_param_count(session);
    for (size_t i = 0; i < params + weft_session_state_count(session); i++) {
        weft_tensor_desc_t desc;
        const char *name = NULL;
        RANK_OK(i < params ? weft_session_param_info(session, i, &name, &desc)
                           : weft_session_state_info(session, i - params, &name, &desc));
        size_t bytes = (size_t)weft_tensor_elem_count(&desc) * weft_dtype_size_bytes(desc.dtype);
        uint8_t *data = malloc(bytes + 1);
        RANK_CHECK(data != NULL);
        RANK_OK(i < params ? weft_session_get_param(session, i, data, bytes)
                           : weft_session_get_state(session, i - params, data, bytes));
        sum += mix(mix(1469598103934665603u, name, strlen(name)), data, bytes);
        free(data);
    }
    snprintf(digest, 65, "%016llx", (unsigned long long)sum);
}
