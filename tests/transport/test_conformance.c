/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suite over every transport: a world of one, threads, threads on simulated hosts, processes of
 * one host, processes of several over the loopback, all of them with rules around that delay and
 * reorder, and cards for RDMA where there are any.
 */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define JITTER "jitter:*-*:60us"

static const uint32_t apart[] = {0, 1, 2, 3, 4, 5, 6, 7}, uneven[] = {7, 3, 3, 7, 3, 1, 7, 1};

typedef struct fabric {
    const char *name;
    bool processes;
    const uint32_t *host_of; /* threads on simulated hosts */
    uint64_t max_delay_ns;
    const char *hook, *transport;
    uint32_t ranks_per_host;
    uint32_t sizes[6]; /* of worlds; ended by 0 */
} fabric_t;

static const fabric_t fabrics[] = {
    {"null", true, NULL, 0, NULL, NULL, 0, {1}},
    {"null, hooked", true, NULL, 0, JITTER, NULL, 0, {1}},
    {"inproc", false, NULL, 0, NULL, NULL, 0, {1, 3, 8}},
    {"inproc, simulated hosts", false, apart, 0, NULL, NULL, 0, {4}},
    {"inproc, simulated hosts that reorder", false, apart, 60000, NULL, NULL, 0, {2, 5}},
    {"inproc, uneven simulated hosts", false, uneven, 200000, NULL, NULL, 0, {8}},
    {"inproc, hooked", false, NULL, 0, JITTER, NULL, 0, {3}},
    {"inproc, simulated hosts, hooked", false, uneven, 20000, JITTER ";seed:7", NULL, 0, {5}},
    {"shm", true, NULL, 0, NULL, NULL, 0, {2, 5, 9}},
    {"shm, hooked", true, NULL, 0, JITTER, NULL, 0, {3}},
    {"hosts over tcp", true, NULL, 0, NULL, "tcp", 1, {2, 4}},
    {"hosts of two, tcp between", true, NULL, 0, NULL, "shm,tcp", 2, {5}},
    {"hosts over tcp, hooked", true, NULL, 0, JITTER, "tcp", 1, {3}},
};
#define FABRICS (sizeof fabrics / sizeof fabrics[0])

static uint64_t seed;

const char *conform_missing(const wefti_endpoint_t *endpoint, const conform_t *conform,
                            uint32_t needs)
{
    const uint64_t puts = WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL;
    bool direct = endpoint->host_count == 1;
    if ((needs & NEEDS_DIRECT) && (!direct || !(endpoint->caps & WEFTI_CAP_DIRECT))) {
        return "not all ranks map each other's memory";
    }
    if ((needs & NEEDS_PUT) && (endpoint->caps & puts) != puts) {
        return "its links do not put";
    }
    if ((needs & NEEDS_PROCESSES) && !conform->processes) {
        return "its ranks are threads";
    }
    if ((needs & NEEDS_PEERS) && endpoint->world_size < 2) {
        return "a world of one";
    }
    if ((needs & NEEDS_THREE) && endpoint->world_size < 3) {
        return "too small a world";
    }
    return NULL;
}

static int run_case(wefti_endpoint_t *endpoint, const conform_t *conform, const conform_case_t *one)
{
    const char *missing = conform_missing(endpoint, conform, one->needs);
    if (missing != NULL) {
        if (endpoint->rank == 0) {
            fprintf(stderr, "    skipped: %s: %s\n", one->name, missing);
        }
        return 0;
    }
    int result = one->fn(endpoint, conform);
    if (result != 0) {
        fprintf(stderr, "    rank %u: %s\n", endpoint->rank, one->name);
    }
    return result;
}

/* All cases after which the world is whole. */
static int run_living(wefti_endpoint_t *endpoint, void *user)
{
    const conform_case_t *lists[] = {conform_world_cases, conform_put_cases};
    for (uint32_t list = 0; list < 2; list++) {
        for (const conform_case_t *one = lists[list]; one->fn != NULL; one++) {
            int result = run_case(endpoint, user, one);
            if (result != 0) {
                wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, "a check failed");
                return result;
            }
            EXPECT(endpoint->block_count == 0); /* cases give back what they take */
        }
    }
    return 0;
}

static int run_ending(wefti_endpoint_t *endpoint, void *user)
{
    const conform_t *conform = user;
    wefti_endpoint_barrier(endpoint); /* nobody is still joining; it may be over already */
    return run_case(endpoint, conform, &conform_end_cases[conform->which]);
}

static void run(const fabric_t *fabric, uint32_t size, rank_fn fn, conform_t *conform,
                uint32_t killed)
{
    wefti_hub_links_t links = {fabric->host_of, seed, fabric->max_delay_ns};
    world_t world = {.size = size,
                     .fn = fn,
                     .user = conform,
                     .settings = test_settings(),
                     .links = fabric->host_of != NULL ? &links : NULL,
                     .hook = fabric->hook,
                     .transport = fabric->transport,
                     .ranks_per_host = fabric->ranks_per_host,
                     .killed = killed};
    fabric->processes ? run_processes(&world) : run_threads(&world);
}

static void run_fabric(const fabric_t *fabric)
{
    int fds = open_fd_count();
    for (uint32_t s = 0; s < 6 && fabric->sizes[s] != 0; s++) {
        uint32_t size = fabric->sizes[s];
        conform_t conform = {seed + s, fabric->processes, 0};
        print_message("  %s, %u rank%s\n", fabric->name, size, size == 1 ? "" : "s");
        run(fabric, size, run_living, &conform, 0);
        for (; conform_end_cases[conform.which].fn != NULL; conform.which++) {
            print_message("    %s\n", conform_end_cases[conform.which].name);
            run(fabric, size, run_ending, &conform,
                fabric->processes ? conform_killed(&conform_end_cases[conform.which], size) : 0);
        }
    }
    assert_int_equal(open_fd_count(), fds);
}

static void test_conformance(void **state)
{
    run_fabric(*state);
}

/* Whether two ranks reach each other by RDMA; prints why not. */
static int reaches_by_verbs(wefti_endpoint_t *endpoint, void *user)
{
    char name[32], reason[160];
    (void)user;
    wefti_endpoint_describe(endpoint, 1 - endpoint->rank, name, sizeof name, reason, sizeof reason);
    if (strcmp(name, "verbs") != 0 && endpoint->rank == 0) {
        fprintf(stderr, "  %s: %s\n", name, reason);
    }
    return strcmp(name, "verbs") == 0 ? 0 : 1;
}

static bool have_verbs(void)
{
    char folder[] = "/tmp/weft-transport-XXXXXX", address[64];
    world_t world = {.size = 2,
                     .fn = reaches_by_verbs,
                     .settings = test_settings(),
                     .transport = "verbs,tcp",
                     .ranks_per_host = 1};
    pid_t pids[2];
    bool have = true;
    assert_non_null(mkdtemp(folder));
    snprintf(address, sizeof address, "file://%s/meet", folder);
    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = fork_rank(&world, r, address);
    }
    for (uint32_t r = 0; r < 2; r++) {
        have = wait_for(pids[r]) == 0 && have;
    }
    unlink(address + strlen("file://"));
    rmdir(folder);
    return have;
}

static void test_conformance_of_verbs(void **state)
{
    /* One world: an emulated machine takes minutes for more. rdma_world has 2 and 4 ranks. */
    static const fabric_t verbs = {"hosts over verbs", true, NULL, 0, NULL, "verbs,tcp", 1, {3}};
    (void)state;
    if (!have_verbs()) {
        print_message("skipped: no RDMA device (the test rdma runs this in an emulated machine)\n");
        skip();
    }
    run_fabric(&verbs);
}

/* Where the time of a wait ends, everywhere alike. */
static int times_out(wefti_endpoint_t *endpoint, void *user)
{
    wefti_signal_t never = {0};
    size_t offset;
    (void)user;
    EXPECT(wefti_region_alloc(endpoint, sizeof never, &offset) == WEFT_OK);
    EXPECT(wefti_wait_signal(endpoint, &never, 1, "the answer", NULL, NULL) == WEFT_ERR_TIMEOUT);
    EXPECT(strstr(weft_last_error(), "the answer") != NULL);
    EXPECT(atomic_load(&never.waiters) == 0);
    /* Who leaves first would be another reason for the other one. */
    weft_status_t status = wefti_signal_peer(endpoint, 1 - endpoint->rank, offset, 1, 0);
    while (status == WEFT_OK || status == WEFT_ERR_TIMEOUT) {
        status = wefti_wait_signal(endpoint, conform_signal(endpoint, offset), 1, "the other one",
                                   NULL, NULL);
        if (status == WEFT_OK) {
            break;
        }
    }
    EXPECT(status == WEFT_OK);
    return 0;
}

static void test_waits_time_out(void **state)
{
    (void)state;
    world_t world = {.size = 2, .fn = times_out, .settings = test_settings()};
    world.settings.timeout_ns = 2000000000ull; /* which joining must not take */
    run_threads(&world);
    run_processes(&world);
    world.transport = "tcp";
    run_processes(&world);
}

/* WEFT_TEST_FABRIC=name runs what begins so alone: "verbs" in an emulated machine. */
static bool is_wanted(const char *name)
{
    const char *wanted = getenv("WEFT_TEST_FABRIC");
    return wanted == NULL || strncmp(name, wanted, strlen(wanted)) == 0;
}

int main(void)
{
    struct CMUnitTest tests[FABRICS + 2];
    size_t count = 0;
    const char *text = getenv("WEFT_TEST_SEED");
    seed = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)time(NULL) * 2654435761u + 1;
    print_message("WEFT_TEST_SEED=%llu\n", (unsigned long long)seed);
    alarm(540); /* a hang is a failure */
    for (size_t i = 0; i < FABRICS; i++) {
        if (is_wanted(fabrics[i].name)) {
            tests[count++] = (struct CMUnitTest){.name = fabrics[i].name,
                                                 .test_func = test_conformance,
                                                 .initial_state = (void *)(uintptr_t)&fabrics[i]};
        }
    }
    if (is_wanted("verbs")) {
        tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_conformance_of_verbs);
    }
    if (is_wanted("timeouts")) {
        tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_waits_time_out);
    }
    return _cmocka_run_group_tests("conformance", tests, count, NULL, NULL);
}
