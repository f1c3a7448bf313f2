/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds of several hosts: processes that say they are on different ones, shared memory inside each
 * and tcp over the loopback between them.
 */
#include "support.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"
#include "transport/hosts.h"
#include "transport/bootstrap/bootstrap.h"
#include "tests/support/support.h"

#define RANKS_MAX 8u
#define SECOND_NS 1000000000ull
/* It takes a few milliseconds, but machines that run tests are busy. */
#define SOON_NS (300 * SECOND_NS) /* half of the time-out: the wait ended before it */

/* Which ranks share a host, and how the world is made. */
typedef struct shape {
    uint32_t size;
    uint32_t per_host;
    const char *transport; /* WEFT_TRANSPORT */
    rank_fn fn;
    void *user;
    uint32_t killed; /* rank whose death by SIGKILL is expected, or UINT32_MAX */
} shape_t;

/* Of worlds of other shapes. */
static const uint8_t *host_map; /* [size] the host of each rank, or NULL */
static uint32_t victims;        /* bits of ranks whose death is expected */

static char folder[64];

static test_memory_t memory; /* of all ranks */

typedef enum joining { JOINS, STOPS, FAILS, COMES_LATE, STOPS_FIRST, LOOKS, PAUSES } joining_t;

/* A rank that does something where it begins to join its host, or (STOPS_FIRST) to tell where it is;
 * LOOKS: it ends its wait as soon as the records lead from rank late to rank cause. PAUSES: it
 * comes when rank 0 waits, and stops when it has joined. */
typedef struct joining_rank {
    weft_allocator_t allocator; /* its user is this */
    joining_t how;
    uint32_t late, cause;
    wefti_endpoint_t *endpoint; /* of the world, as soon as it is allocated */
    bool begins;                /* to join its host */
} joining_rank_t;

static joining_rank_t *joining; /* of this process, or NULL */

static int knows_the_cause(void *user)
{
    char text[64];
    (void)user;
    if (joining->how == PAUSES && joining->begins) {
        joining->how = JOINS;
        raise(SIGSTOP);
    }
    return joining->how == LOOKS && joining->endpoint != NULL &&
           wefti_waits_causes(joining->endpoint, &joining->late, 1, text, sizeof text) ==
               joining->cause;
}

static int make_folder(void **state)
{
    test_memory_init(&memory);
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/weft-hosts-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : 1;
}

static int drop_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static weft_status_t open_hosts_rank(const shape_t *shape, uint32_t rank, const char *address,
                                     wefti_settings_t *settings, wefti_endpoint_t **out_endpoint)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    wefti_job_t job = {.rank = rank, .world_size = shape->size, .secret_bytes = 16};
    snprintf(job.launcher, sizeof job.launcher, "test");
    snprintf(job.address, sizeof job.address, "%s", address);
    memcpy(job.secret, "sixteen letters!", 16);
    *settings = test_settings();
    settings->connect_timeout_ns = 300 * SECOND_NS;
    settings->link_timeout_ns = 120 * SECOND_NS;
    settings->sockets = 2;
    settings->fallback = WEFTI_FALLBACK_TCP;
    snprintf(settings->transport, sizeof settings->transport, "%s", shape->transport);
    snprintf(settings->host_id, sizeof settings->host_id, "host-%u",
             host_map != NULL ? host_map[rank] : rank / shape->per_host);
    snprintf(settings->ifname, sizeof settings->ifname, "lo");
    wefti_endpoint_params_t params = {
        .rank = rank,
        .world_size = shape->size,
        .address = job.address,
        .job = &job,
        .settings = settings,
        .log = &log,
        .allocator = joining != NULL ? &joining->allocator : &memory.allocator,
        .interrupt = {joining != NULL ? knows_the_cause : NULL, NULL}};
    return wefti_endpoint_open(&params, out_endpoint);
}

/* In a child. */
static void be_rank(const shape_t *shape, uint32_t rank, const char *address)
{
    wefti_endpoint_t *endpoint;
    wefti_settings_t settings;
    if (open_hosts_rank(shape, rank, address, &settings, &endpoint) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, weft_last_error());
        _exit(100);
    }
    int result = shape->fn(endpoint, shape->user);
    wefti_endpoint_close(endpoint);
    _exit(result);
}

static void run_hosts(const shape_t *shape)
{
    static unsigned counter;
    char address[128];
    pid_t pids[RANKS_MAX];
    int results[RANKS_MAX];
    snprintf(address, sizeof address, "file://%s/meet-%u", folder, counter++);
    fflush(NULL);
    for (uint32_t r = 0; r < shape->size; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            be_rank(shape, r, address);
        }
    }
    for (uint32_t r = 0; r < shape->size; r++) {
        results[r] = wait_for(pids[r]);
    }
    unlink(address + strlen("file://"));
    for (uint32_t r = 0; r < shape->size; r++) {
        bool killed = r == shape->killed || (victims >> r & 1) != 0;
        assert_int_equal(results[r], killed ? -SIGKILL : 0);
    }
}

static wefti_signal_t *own_signal(wefti_endpoint_t *endpoint, size_t offset)
{
    return (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
}

/* ---- who is where ---- */

static int knows_its_hosts(wefti_endpoint_t *endpoint, void *user)
{
    const shape_t *shape = user;
    uint32_t per_host = shape->per_host;
    size_t offset;
    char name[32], reason[128];
    EXPECT(endpoint->host_count == endpoint->world_size / per_host);
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        char host[32];
        bool near = r / per_host == endpoint->rank / per_host;
        snprintf(host, sizeof host, "host-%u", r / per_host);
        EXPECT(endpoint->host_of[r] == r / per_host);
        EXPECT(strcmp(endpoint->host_names[endpoint->host_of[r]], host) == 0);
        EXPECT(wefti_endpoint_direct(endpoint, r) == near);
        EXPECT((endpoint->region_of[r] != NULL) == near);
        EXPECT(near || endpoint->control[r]->pid == 0);
        wefti_endpoint_describe(endpoint, r, name, sizeof name, reason, sizeof reason);
        EXPECT(strcmp(name, r == endpoint->rank ? "self" : near ? "shm" : "tcp") == 0);
        EXPECT(near || strstr(reason, "other host") != NULL);
    }
    EXPECT(endpoint->caps == (WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL));
    /* All of them are on this machine, and its processors are shared. */
    EXPECT(endpoint->local_rank_count == endpoint->world_size);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_two_by_two(void **state)
{
    (void)state;
    shape_t shape = {4, 2, "auto", knows_its_hosts, NULL, UINT32_MAX};
    shape.user = &shape;
    run_hosts(&shape);
}

static int is_plain_shm(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    EXPECT(strcmp(endpoint->ops->name, "shm") == 0);
    EXPECT(endpoint->host_count == 1);
    EXPECT(endpoint->ops->progress == wefti_mapped_nothing);
    EXPECT(endpoint->caps & WEFTI_CAP_DIRECT);
    size_t offset;
    for (uint32_t round = 0; round < 3; round++) {
        EXPECT(wefti_region_alloc(endpoint, 100000, &offset) == WEFT_OK);
        endpoint->region_of[endpoint->rank][offset] = (uint8_t)(endpoint->rank + 1);
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            EXPECT(endpoint->region_of[r][offset] == r + 1);
        }
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_one_host_is_shm(void **state)
{
    (void)state;
    const shape_t shape = {3, 3, "auto", is_plain_shm, NULL, UINT32_MAX};
    run_hosts(&shape);
}

static int every_rank_a_host(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    EXPECT(endpoint->host_count == endpoint->world_size);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        EXPECT(endpoint->host_of[r] == r);
        for (uint32_t other = 0; other < r; other++) {
            EXPECT(strcmp(endpoint->host_names[r], endpoint->host_names[other]) != 0);
        }
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_without_shm(void **state)
{
    (void)state;
    const shape_t shape = {3, 3, "tcp", every_rank_a_host, NULL, UINT32_MAX};
    run_hosts(&shape);
}

static void test_hosts_shm_only_is_refused(void **state)
{
    (void)state;
    const shape_t shape = {2, 1, "shm", NULL, NULL, UINT32_MAX};
    char address[128];
    pid_t pids[2];
    snprintf(address, sizeof address, "file://%s/refused", folder);
    fflush(NULL);
    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            wefti_endpoint_t *endpoint;
            wefti_settings_t settings;
            weft_status_t status = open_hosts_rank(&shape, r, address, &settings, &endpoint);
            bool named = strstr(weft_last_error(), "host host-0") != NULL &&
                         strstr(weft_last_error(), "host host-1") != NULL;
            if (status != WEFT_ERR_UNSUPPORTED || !named) {
                fprintf(stderr, "rank %u: status %d, %s\n", r, status, weft_last_error());
            }
            _exit(status == WEFT_ERR_UNSUPPORTED && named ? 0 : 1);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(wait_for(pids[r]), 0);
    }
    unlink(address + strlen("file://"));
}

static void test_hosts_unix_address_means_shm(void **state)
{
    (void)state;
    wefti_endpoint_t *endpoint;
    wefti_settings_t settings = test_settings();
    snprintf(settings.transport, sizeof settings.transport, "tcp");
    assert_int_equal(open_rank(0, 2, "unix:@weft-test-nowhere", NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "WEFT_TRANSPORT=tcp"));
}

/* ---- traffic ---- */

#define STRESS_SLOT ((size_t)300 << 10)
#define STRESS_LANES 3u

/* Everybody puts blocks of random sizes to everybody on several lanes; every block is checked, and
 * its place used again when its reader has said so. */
static int everybody_puts(wefti_endpoint_t *endpoint, void *user)
{
    uint64_t seed = *(const uint64_t *)user;
    uint32_t n = endpoint->world_size, rank = endpoint->rank, rounds = 12;
    size_t offset, places = (size_t)n * STRESS_LANES;
    size_t counters = places * 2 * sizeof(wefti_signal_line_t), base = counters;
    uint8_t *data = malloc(STRESS_SLOT);
    uint64_t *sends = calloc(places, sizeof *sends), *receives = calloc(places, sizeof *receives);
    EXPECT(data != NULL && sends != NULL && receives != NULL);
    EXPECT(wefti_region_alloc(endpoint, base + places * STRESS_SLOT, &offset) == WEFT_OK);
    for (size_t i = 0; i < places; i++) {
        uint32_t peer = (uint32_t)(i / STRESS_LANES), lane = (uint32_t)(i % STRESS_LANES);
        sends[i] = seed + 1 + (rank * n + peer) * 7 + lane;
        receives[i] = seed + 1 + (peer * n + rank) * 7 + lane;
    }
    for (uint32_t round = 1; round <= rounds; round++) {
        for (size_t i = 0; i < places; i++) {
            uint32_t peer = (uint32_t)(i / STRESS_LANES), lane = (uint32_t)(i % STRESS_LANES);
            size_t mine = (size_t)rank * STRESS_LANES + lane;
            wefti_signal_t *room = own_signal(endpoint, offset + (places + i) * sizeof *room);
            EXPECT(wefti_wait_signal(endpoint, room, round - 1, "room", NULL, NULL) == WEFT_OK);
            uint64_t dice = test_next_random(&sends[i]);
            size_t bytes = dice % 8 == 0 ? (size_t)(dice >> 8) % STRESS_SLOT : (dice >> 8) % 3000;
            for (size_t at = 0; at < bytes; at++) {
                data[at] = (uint8_t)(dice + at * 13 + (at >> 9));
            }
            EXPECT(wefti_put(endpoint, peer, offset + base + mine * STRESS_SLOT, data, bytes,
                             lane) == WEFT_OK);
            memset(data, 0xee, bytes);
            EXPECT(wefti_signal_peer(endpoint, peer, offset + mine * sizeof *room, round, lane) ==
                   WEFT_OK);
        }
        for (size_t i = 0; i < places; i++) {
            uint32_t peer = (uint32_t)(i / STRESS_LANES), lane = (uint32_t)(i % STRESS_LANES);
            size_t mine = (size_t)rank * STRESS_LANES + lane;
            wefti_signal_t *here = own_signal(endpoint, offset + i * sizeof *here);
            EXPECT(wefti_wait_signal(endpoint, here, round, "data", NULL, NULL) == WEFT_OK);
            uint64_t dice = test_next_random(&receives[i]);
            size_t bytes = dice % 8 == 0 ? (size_t)(dice >> 8) % STRESS_SLOT : (dice >> 8) % 3000;
            const uint8_t *got = endpoint->region_of[rank] + offset + base + i * STRESS_SLOT;
            for (size_t at = 0; at < bytes; at++) {
                EXPECT(got[at] == (uint8_t)(dice + at * 13 + (at >> 9)));
            }
            EXPECT(wefti_signal_peer(endpoint, peer, offset + (places + mine) * sizeof *here, round,
                                     lane) == WEFT_OK);
        }
    }
    free(receives);
    free(sends);
    free(data);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_put_stress(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)getpid() * 2654435761u;
    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    const shape_t shape = {4, 2, "auto", everybody_puts, &seed, UINT32_MAX};
    run_hosts(&shape);
}

/* Lent data is read until it is given back, and no longer. */
static int lends(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t n = endpoint->world_size, next = (endpoint->rank + 1) % n;
    size_t bytes = (size_t)3 << 20, offset;
    uint8_t *data = malloc(bytes);
    wefti_signal_t lent = {0};
    EXPECT(wefti_region_alloc(endpoint, bytes + 4096, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= 4; round++) {
        memset(data, (int)(endpoint->rank * 16 + round), bytes);
        EXPECT(wefti_put_zero_copy(endpoint, next, offset + 4096, data, bytes, 2, &lent) ==
               WEFT_OK);
        EXPECT(wefti_signal_peer(endpoint, next, offset, round, 2) == WEFT_OK);
        EXPECT(wefti_wait_signal(endpoint, &lent, 0, "what is lent", NULL, NULL) == WEFT_OK);
        memset(data, 0xee, bytes);
        EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), round, "data", NULL,
                                 NULL) == WEFT_OK);
        const uint8_t *got = endpoint->region_of[endpoint->rank] + offset + 4096;
        for (size_t at = 0; at < bytes; at++) {
            EXPECT(got[at] == ((endpoint->rank + n - 1) % n) * 16 + round);
        }
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    }
    wefti_link_stats_t stats;
    wefti_endpoint_link_stats(endpoint, next, &stats);
    EXPECT(wefti_endpoint_direct(endpoint, next) || stats.bytes_sent >= 4 * bytes);
    free(data);
    return 0;
}

static void test_hosts_lend(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", lends, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* The last thing a rank does is to send: all of it arrives although the rank is gone. */
static int sends_and_leaves(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset, bytes = (size_t)8 << 20;
    EXPECT(wefti_region_alloc(endpoint, bytes + 4096, &offset) == WEFT_OK);
    if (endpoint->rank == 0) {
        uint8_t *data = malloc(bytes);
        memset(data, 0x5a, bytes);
        EXPECT(wefti_put(endpoint, 1, offset + 4096, data, bytes, 0) == WEFT_OK);
        EXPECT(wefti_signal_peer(endpoint, 1, offset, 1, 0) == WEFT_OK);
        free(data);
        return 0;
    }
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), 1, "data", NULL, NULL) ==
           WEFT_OK);
    for (size_t at = 0; at < bytes; at++) {
        EXPECT(endpoint->region_of[1][offset + 4096 + at] == 0x5a);
    }
    return 0;
}

static void test_hosts_close_flushes(void **state)
{
    (void)state;
    const shape_t shape = {2, 1, "auto", sends_and_leaves, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Rank 0 sleeps in the kernel, outside of the library, while what comes for it is received. */
static int receives_in_the_background(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    wefti_signal_t *signal = own_signal(endpoint, offset);
    if (endpoint->rank == 0) {
        uint64_t until = wefti_now_ns() + 300 * SECOND_NS;
        while (atomic_load(&signal->value) == 0 && wefti_now_ns() < until) {
            atomic_fetch_add(&signal->waiters, 1);
            wefti_futex_wait(&signal->value, 0, SECOND_NS);
            atomic_fetch_sub(&signal->waiters, 1);
        }
        EXPECT(atomic_load(&signal->value) == 1);
        EXPECT(wefti_signal_peer(endpoint, 1, offset, 1, 0) == WEFT_OK);
    } else {
        EXPECT(wefti_signal_peer(endpoint, 0, offset, 1, 0) == WEFT_OK);
        EXPECT(wefti_wait_signal(endpoint, signal, 1, "an answer", NULL, NULL) == WEFT_OK);
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_background_progress(void **state)
{
    (void)state;
    const shape_t shape = {2, 1, "auto", receives_in_the_background, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Every growth is reachable at once, and what was there before stays. */
static int grows(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    size_t offsets[6];
    for (uint32_t step = 0; step < 6; step++) {
        size_t bytes = (size_t)40000 << step;
        EXPECT(wefti_region_alloc(endpoint, bytes, &offsets[step]) == WEFT_OK);
        for (uint32_t peer = 0; peer < n; peer++) {
            uint32_t word = rank * 100 + step;
            size_t at = offsets[step] + bytes - 4096 + rank * sizeof word;
            EXPECT(wefti_put(endpoint, peer, at, &word, sizeof word, 1) == WEFT_OK);
            EXPECT(wefti_signal_peer(endpoint, peer, offsets[0] + rank * 128u, step + 1, 1) ==
                   WEFT_OK);
        }
        for (uint32_t from = 0; from < n; from++) {
            EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offsets[0] + from * 128u),
                                     step + 1, "word", NULL, NULL) == WEFT_OK);
            for (uint32_t before = 0; before <= step; before++) {
                uint32_t word;
                size_t end = offsets[before] + ((size_t)40000 << before) - 4096;
                memcpy(&word, endpoint->region_of[rank] + end + from * sizeof word, sizeof word);
                EXPECT(word == from * 100 + before);
            }
        }
    }
    size_t too_many;
    EXPECT(wefti_region_alloc(endpoint, (size_t)1 << 40, &too_many) == WEFT_ERR_NO_MEMORY);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_region_growth(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", grows, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Local failures become everybody's, with the world's numbers. */
static int agrees(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    weft_status_t own =
        endpoint->rank == 3 ? wefti_error(WEFT_ERR_NO_MEMORY, "no room at all") : WEFT_OK;
    EXPECT(wefti_endpoint_agree(endpoint, own) == WEFT_ERR_NO_MEMORY);
    EXPECT(strcmp(weft_last_error(), "rank 3: no room at all") == 0);
    /* agreed on again, as where a host's ranks come first: the rank is named once */
    EXPECT(wefti_endpoint_agree(endpoint, WEFT_ERR_NO_MEMORY) == WEFT_ERR_NO_MEMORY);
    EXPECT(strcmp(weft_last_error(), "rank 3: no room at all") == 0);
    EXPECT(wefti_endpoint_agree(endpoint, WEFT_OK) == WEFT_OK);
    uint32_t all[RANKS_MAX];
    for (uint32_t round = 0; round < 50; round++) {
        uint32_t mine = endpoint->rank * 1000 + round;
        EXPECT(wefti_endpoint_all_gather(endpoint, &mine, sizeof mine, all) == WEFT_OK);
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            EXPECT(all[r] == r * 1000 + round);
        }
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_agree(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", agrees, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Timeouts among the ranks of one host have the world's numbers, too. */
static int waits_among_its_host(wefti_endpoint_t *endpoint, void *user)
{
    static wefti_settings_t settings;
    wefti_signal_t never = {0};
    (void)user;
    if (endpoint->rank < 2) {
        return 0;
    }
    if (endpoint->rank == 2) {
        settings = *endpoint->inner->settings;
        settings.timeout_ns = 50000000ull;
        endpoint->inner->settings = &settings;
        EXPECT(wefti_endpoint_barrier(endpoint->inner) == WEFT_ERR_TIMEOUT);
    } else { /* until the other one ends the world */
        EXPECT(wefti_wait_signal(endpoint, &never, 1, "nothing", NULL, NULL) == WEFT_ERR_TIMEOUT);
    }
    EXPECT(strstr(weft_last_error(),
                  "rank 2 waited 0.05 s in a control all-gather; late: rank 3") != NULL);
    return 0;
}

static void test_hosts_timeout_within(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", waits_among_its_host, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* In an all-gather ranks wait for their neighbours. The one that is named is not one of those that
 * wait themselves. */
static int names_the_cause(wefti_endpoint_t *endpoint, void *user)
{
    static wefti_settings_t settings;
    (void)user;
    settings = *endpoint->settings;
    settings.timeout_ns = 4000000000ull;
    endpoint->settings = &settings;
    if (endpoint->rank == 3) {
        while (wefti_endpoint_check(endpoint) == WEFT_OK) {
            wefti_sleep_ns(1000000);
        }
    } else {
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_TIMEOUT);
    }
    EXPECT(strstr(weft_last_error(), "waited 4 s in a control all-gather; late: rank 3;") != NULL);
    return 0;
}

static void test_hosts_name_the_cause(void **state)
{
    (void)state;
    const shape_t shape = {5, 1, "tcp", names_the_cause, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* ---- all-gathers by hosts ---- */

static uint8_t byte_of(uint32_t rank, size_t at)
{
    return (uint8_t)(rank * 31 + at * 7 + (at >> 8));
}

static int gathers_pieces(wefti_endpoint_t *endpoint)
{
    static const size_t sizes[] = {
        1, 0, 7, WEFTI_PIECE_BYTES, WEFTI_PIECE_BYTES + 1, 3 * WEFTI_PIECE_BYTES - 5};
    uint32_t n = endpoint->world_size;
    uint8_t *send = malloc(3 * WEFTI_PIECE_BYTES), *recv = malloc(n * 3 * WEFTI_PIECE_BYTES);
    EXPECT(send != NULL && recv != NULL);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t bytes = sizes[s], wrong = 0;
        for (size_t at = 0; at < bytes; at++) {
            send[at] = byte_of(endpoint->rank, at + s);
        }
        memset(recv, 0xee, n * bytes);
        EXPECT(wefti_endpoint_all_gather(endpoint, send, bytes, recv) == WEFT_OK);
        for (size_t at = 0; at < n * bytes; at++) {
            wrong += recv[at] != byte_of((uint32_t)(at / bytes), at % bytes + s);
        }
        EXPECT(wrong == 0);
    }
    free(recv);
    free(send);
    return 0;
}

static int gathers_by_host(wefti_endpoint_t *endpoint, void *user)
{
    char text[32];
    (void)user;
    EXPECT(((wefti_hosts_t *)endpoint)->gather != NULL);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        snprintf(text, sizeof text, "host-%u", host_map[r]);
        EXPECT(strcmp(endpoint->host_names[endpoint->host_of[r]], text) == 0);
    }
    EXPECT(gathers_pieces(endpoint) == 0);
    for (uint32_t r = 0; r < endpoint->world_size; r++) { /* each rank fails once */
        snprintf(text, sizeof text, "rank %u cannot", r);
        weft_status_t own =
            r == endpoint->rank ? wefti_error(WEFT_ERR_UNSUPPORTED, "%s", text) : WEFT_OK;
        EXPECT(wefti_endpoint_agree(endpoint, own) == WEFT_ERR_UNSUPPORTED);
        EXPECT(strstr(weft_last_error(), text) != NULL);
        EXPECT(wefti_endpoint_agree(endpoint, WEFT_OK) == WEFT_OK);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(wefti_endpoint_all_gather(endpoint, text, SIZE_MAX / endpoint->world_size + 2, text) ==
           WEFT_ERR_INVALID_ARGUMENT); /* the product of both is small */
    return 0;
}

/* Hosts of different sizes, also of one rank, whose ranks do not follow each other. */
static void test_hosts_gather_by_host(void **state)
{
    static const uint8_t maps[][RANKS_MAX] = {
        {0, 1, 0, 2, 1, 0, 2}, {0, 0, 0, 0, 0, 0, 1}, {2, 1, 1, 0, 1, 3, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        host_map = maps[i];
        run_hosts(&(shape_t){7, 0, "auto", gathers_by_host, NULL, UINT32_MAX});
    }
    host_map = NULL;
}

/* Ranks that die while they wait in an all-gather, of which another rank keeps them. */
typedef struct deaths {
    uint32_t victims;        /* bits of ranks */
    uint32_t late;           /* comes when they are about to die */
    bool near;               /* while they wait for ranks of their host, else for other hosts */
    _Atomic uint32_t opened; /* ranks that have their endpoint */
    _Atomic uint32_t dying;  /* bits of ranks */
} deaths_t;

static wefti_endpoint_t *own_endpoint; /* of this process */
static uint32_t own_epoch;             /* all-gathers of its host before */

static bool dies_waiting(void *user)
{
    deaths_t *deaths = user;
    const wefti_hosts_t *hosts = (const wefti_hosts_t *)own_endpoint;
    const wefti_endpoint_t *inner = hosts->base.inner;
    uint32_t rank, position;
    bool here = deaths->near || inner->rank != 0
                    ? inner->gather_epoch - own_epoch == (deaths->near ? 1 : 2)
                    : wefti_overlay_gather_waits(hosts->overlay, &rank, &position);
    if (!here) {
        return false;
    }
    atomic_fetch_or(&deaths->dying, 1u << hosts->base.rank);
    while (atomic_load(&deaths->dying) != deaths->victims) {
        sched_yield();
    }
    raise(SIGKILL);
    return false;
}

static int gathers_while_some_die(wefti_endpoint_t *endpoint, void *user)
{
    deaths_t *deaths = user;
    uint32_t rank = endpoint->rank, all[RANKS_MAX];
    weft_status_t status;
    bool named = false;
    own_endpoint = endpoint;
    own_epoch = endpoint->inner->gather_epoch;
    if ((deaths->victims >> rank & 1) != 0) {
        wefti_endpoint_while_waiting(endpoint, dies_waiting, deaths);
    }
    atomic_fetch_add(&deaths->opened, 1);
    while (atomic_load(&deaths->opened) != endpoint->world_size ||
           (rank == deaths->late && atomic_load(&deaths->dying) != deaths->victims)) {
        wefti_sleep_ns(1000000);
    }
    do { /* the victims may have sent their parts */
        status = wefti_endpoint_all_gather(endpoint, &rank, sizeof rank, all);
    } while (status == WEFT_OK);
    EXPECT(status == WEFT_ERR_PEER_DIED);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        char who[24];
        snprintf(who, sizeof who, "rank %u ", r);
        named =
            named || ((deaths->victims >> r & 1) != 0 && strstr(weft_last_error(), who) != NULL);
    }
    EXPECT(named && strstr(weft_last_error(), "died") != NULL);
    return 0;
}

static void test_hosts_deaths_in_a_gather(void **state)
{
    static const uint8_t map[] = {0, 0, 0, 1, 1, 1, 2};
    const deaths_t cases[] = {
        {.victims = 1u << 1, .late = 2, .near = true},
        {.victims = 1u << 3, .late = 4, .near = true}, /* the first rank of a host */
        {.victims = 1u << 0, .late = 4},               /* the same, among those of hosts */
        {.victims = 1u << 3, .late = 1},
        {.victims = 1u << 4, .late = 1}, /* while it waits for what the first one gets */
        {.victims = 1u << 6, .late = 1}, /* a host of one rank */
        {.victims = 7u << 3, .late = 1}, /* a whole host */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        deaths_t *deaths =
            mmap(NULL, sizeof *deaths, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(deaths != MAP_FAILED);
        *deaths = cases[i];
        host_map = map;
        victims = deaths->victims;
        run_hosts(&(shape_t){7, 0, "auto", gathers_while_some_die, deaths, UINT32_MAX});
        munmap(deaths, sizeof *deaths);
    }
    host_map = NULL;
    victims = 0;
}

#define SHORT_NS 20000000ull

/* Rank 1 waits for rank 0 of its host for longer than its time-out. */
typedef struct patience {
    _Atomic bool over;
    uint64_t began_ns;
} patience_t;

static bool looks_at_the_clock(void *user)
{
    patience_t *patience = user;
    if (wefti_now_ns() - patience->began_ns > 3 * SHORT_NS) {
        atomic_store(&patience->over, true);
    }
    return false;
}

static int waits_while_others_move(wefti_endpoint_t *endpoint, void *user)
{
    static _Atomic uint64_t moved_ns;
    patience_t *patience = user;
    if (endpoint->rank == 1) { /* as if something went on all the time */
        ((wefti_hosts_t *)endpoint)->inner_settings.timeout_ns = SHORT_NS;
        moved_ns = wefti_now_ns() + 600 * SECOND_NS;
        endpoint->inner->gather_moved_ns = &moved_ns;
        patience->began_ns = wefti_now_ns();
        wefti_endpoint_while_waiting(endpoint, looks_at_the_clock, patience);
    }
    while (endpoint->rank == 0 && !atomic_load(&patience->over)) {
        wefti_sleep_ns(1000000);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    moved_ns = 1; /* nothing does any more */
    while (endpoint->rank == 0 && wefti_endpoint_check(endpoint) == WEFT_OK) {
        wefti_sleep_ns(1000000);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_TIMEOUT);
    EXPECT(strstr(weft_last_error(), "rank 1 waited 0.02 s in ") != NULL &&
           strstr(weft_last_error(), "late: rank 0") != NULL);
    return 0;
}

static void test_hosts_deadline_from_the_last_move(void **state)
{
    static const uint8_t map[] = {0, 0, 1};
    (void)state;
    patience_t *patience =
        mmap(NULL, sizeof *patience, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(patience != MAP_FAILED);
    host_map = map;
    run_hosts(&(shape_t){3, 0, "auto", waits_while_others_move, patience, UINT32_MAX});
    host_map = NULL;
    munmap(patience, sizeof *patience);
}

/* ---- ends ---- */

/* Waits for what never comes; returns the status that ended the wait, and how long it took. */
/* ---- a rank that does not join the other one of its host ---- */

static void *joining_alloc(void *user, size_t bytes)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)joining->endpoint;
    bool begins = bytes == wefti_transport_shm.endpoint_bytes;
    wefti_wait_t list[WEFTI_WAITS];
    (void)user;
    if ((begins && joining->how == STOPS) ||
        (joining->how == STOPS_FIRST && hosts != NULL && hosts->overlay != NULL)) {
        raise(SIGSTOP);
    }
    while (begins && (joining->how == COMES_LATE || joining->how == PAUSES) &&
           wefti_waits_read(joining->endpoint, 0, list) == 0) { /* until rank 0 has posted */
        wefti_overlay_progress(hosts->overlay);
    }
    if (begins) { /* other threads, which allocate as well, begin later */
        joining->begins = true;
    }
    void *block = begins && joining->how == FAILS ? NULL : malloc(bytes);
    if (bytes == wefti_transport_hosts.endpoint_bytes && joining->endpoint == NULL) {
        joining->endpoint = block;
    }
    return block;
}

static void *joining_realloc(void *user, void *block, size_t old_bytes, size_t bytes)
{
    (void)user, (void)old_bytes;
    return realloc(block, bytes);
}

static void joining_free(void *user, void *block)
{
    (void)user;
    free(block);
}

static int join_as(const shape_t *shape, uint32_t rank, const char *address, weft_status_t expected,
                   const char *text)
{
    wefti_endpoint_t *endpoint;
    wefti_settings_t settings;
    weft_status_t status = open_hosts_rank(shape, rank, address, &settings, &endpoint);
    /* Records of the world continue the numbers of those from before. */
    bool posted = status < 0 || rank != 0 || endpoint->control[0]->waits.generation > 0;
    bool good = status == expected && posted && strstr(weft_last_error(), text) != NULL;
    if (!good) {
        fprintf(stderr, "rank %u: %d: %s\n", rank, status, weft_last_error());
    }
    wefti_endpoint_close(endpoint);
    return good ? 0 : 1;
}

static void start_joining(const shape_t *shape, const joining_rank_t *ranks, char *address,
                          pid_t *pids, weft_status_t status, const char *text)
{
    snprintf(address, 128, "file://%s/joining", folder);
    fflush(NULL);
    for (uint32_t r = 0; r < shape->size; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            joining_rank_t own = ranks[r];
            own.allocator = (weft_allocator_t){
                .alloc = joining_alloc, .realloc = joining_realloc, .free = joining_free};
            joining = &own;
            _exit(join_as(shape, r, address, status, text));
        }
    }
}

/* Two ranks per host. Ranks that do not stop get the status. */
static void run_joining(uint32_t size, const joining_rank_t *ranks, weft_status_t status,
                        const char *text)
{
    const shape_t shape = {size, 2, "auto", NULL, NULL, UINT32_MAX};
    char address[128];
    pid_t pids[RANKS_MAX];
    start_joining(&shape, ranks, address, pids, status, text);
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].how != STOPS && ranks[r].how != STOPS_FIRST) {
            assert_int_equal(wait_for(pids[r]), 0);
        }
    }
    for (uint32_t r = 0; r < size; r++) {
        if (ranks[r].how == STOPS || ranks[r].how == STOPS_FIRST) {
            kill(pids[r], SIGKILL);
            assert_int_equal(wait_for(pids[r]), -SIGKILL);
        }
    }
    unlink(address + strlen("file://"));
}

static void test_hosts_joining_names_the_cause(void **state)
{
    const joining_rank_t among_its_host[] = {
        {.how = JOINS}, {.how = STOPS}, {.how = LOOKS, .late = 0, .cause = 1}};
    const joining_rank_t before[] = {{.how = LOOKS, .late = 2, .cause = 3},
                                     {.how = JOINS},
                                     {.how = JOINS},
                                     {.how = STOPS_FIRST}};
    (void)state;
    run_joining(3, among_its_host, WEFT_ERR_ABORTED, "rank 2 was interrupted");
    run_joining(4, before, WEFT_ERR_ABORTED, "rank 0 was interrupted");
}

/* Rank 2 dies, and rank 0 tells rank 1, which has not heard of it: not that rank 0 has given up. */
static void test_hosts_joining_names_the_dead(void **state)
{
    const joining_rank_t ranks[] = {
        {.how = JOINS}, {.how = PAUSES}, {.how = STOPS}, {.how = JOINS}};
    const shape_t shape = {4, 3, "auto", NULL, NULL, UINT32_MAX};
    char address[128];
    pid_t pids[RANKS_MAX];
    int stopped;
    (void)state;
    start_joining(&shape, ranks, address, pids, WEFT_ERR_PEER_DIED, "rank 2 (host host-0");
    for (uint32_t r = 1; r <= 2; r++) {
        assert_int_equal(waitpid(pids[r], &stopped, WUNTRACED), pids[r]);
        assert_true(WIFSTOPPED(stopped));
    }
    kill(pids[2], SIGKILL);
    assert_int_equal(wait_for(pids[2]), -SIGKILL);
    assert_int_equal(wait_for(pids[0]), 0);
    kill(pids[1], SIGCONT);
    assert_int_equal(wait_for(pids[1]), 0);
    assert_int_equal(wait_for(pids[3]), 0);
    unlink(address + strlen("file://"));
}

static void test_hosts_joining_fails_at_once(void **state)
{
    const joining_rank_t ranks[] = {{.how = FAILS}, {.how = STOPS}, {.how = JOINS}};
    (void)state;
    run_joining(3, ranks, WEFT_ERR_NO_MEMORY, "rank 0: out of memory");
}

static void test_hosts_joining_keeps_numbers(void **state)
{
    const joining_rank_t ranks[] = {{.how = JOINS}, {.how = COMES_LATE}, {.how = JOINS}};
    (void)state;
    run_joining(3, ranks, WEFT_OK, "");
}

static weft_status_t wait_for_nothing(wefti_endpoint_t *endpoint, uint64_t *out_ns)
{
    wefti_signal_t never = {0};
    uint64_t start = wefti_now_ns();
    weft_status_t status = wefti_wait_signal(endpoint, &never, 1, "nothing", NULL, NULL);
    *out_ns = wefti_now_ns() - start;
    return status;
}

/* One rank learns that all others are past everything that they had to do with it. */
static int tell(wefti_endpoint_t *endpoint, uint32_t one)
{
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    EXPECT(wefti_signal_peer(endpoint, one, offset + endpoint->rank * 128u, 1, 0) == WEFT_OK);
    for (uint32_t r = 0; endpoint->rank == one && r < endpoint->world_size; r++) {
        EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset + r * 128u), 1, "a word",
                                 NULL, NULL) == WEFT_OK);
    }
    return 0;
}

static int hears_of_abort(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint64_t took_ns;
    EXPECT(tell(endpoint, 1) == 0);
    if (endpoint->rank == 1) {
        wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, "the well is dry");
    }
    EXPECT(wait_for_nothing(endpoint, &took_ns) == WEFT_ERR_ABORTED);
    EXPECT(strcmp(weft_last_error(), "the well is dry") == 0);
    EXPECT(took_ns < SOON_NS);
    return 0;
}

static void test_hosts_abort(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", hears_of_abort, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* So that all links are in use. */
static int hello_to_all(wefti_endpoint_t *endpoint, size_t *out_offset)
{
    uint32_t n = endpoint->world_size;
    EXPECT(wefti_region_alloc(endpoint, 4096, out_offset) == WEFT_OK);
    for (uint32_t peer = 0; peer < n; peer++) {
        EXPECT(wefti_signal_peer(endpoint, peer, *out_offset + endpoint->rank * 128u, 1, 0) ==
               WEFT_OK);
    }
    for (uint32_t from = 0; from < n; from++) {
        EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, *out_offset + from * 128u), 1,
                                 "hello", NULL, NULL) == WEFT_OK);
    }
    return 0;
}

static int hears_of_death(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint64_t took_ns;
    size_t offset;
    uint32_t n = endpoint->world_size;
    EXPECT(hello_to_all(endpoint, &offset) == 0);
    EXPECT(tell(endpoint, n - 1) == 0);
    if (endpoint->rank == n - 1) {
        kill(getpid(), SIGKILL);
    }
    EXPECT(wait_for_nothing(endpoint, &took_ns) == WEFT_ERR_PEER_DIED);
    char who[32];
    snprintf(who, sizeof who, "rank %u (host host-1", n - 1);
    EXPECT(strstr(weft_last_error(), who) != NULL && strstr(weft_last_error(), "died") != NULL);
    EXPECT(took_ns < SOON_NS);
    /* And once more: the reason stays. */
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_PEER_DIED);
    return 0;
}

static void test_hosts_killed_rank_is_named(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", hears_of_death, NULL, 3};
    run_hosts(&shape);
}

/* A rank that leaves is no death, but whoever waits for it at a barrier learns that it left. */
static int one_leaves(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 3) {
        return 0;
    }
    weft_status_t status = wefti_endpoint_barrier(endpoint);
    EXPECT(status == WEFT_ERR_PEER_DIED);
    EXPECT(strstr(weft_last_error(), "rank 3") != NULL &&
           strstr(weft_last_error(), "left") != NULL);
    return 0;
}

static void test_hosts_left_rank_is_named(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", one_leaves, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Ranks 0 and 3 of 8 hear each other's news from ranks between them, which leave first. */
static int two_stay(wefti_endpoint_t *endpoint, void *user)
{
    static const uint32_t between[2][5] = {{1, 2, 4, 6, 7}, {1, 2, 4, 5, 7}};
    uint32_t rank = endpoint->rank, other = 3 - rank;
    uint64_t took_ns;
    size_t offset;
    EXPECT(hello_to_all(endpoint, &offset) == 0);
    (void)user;
    if (rank != 0 && rank != 3) {
        return 0;
    }
    for (uint32_t i = 0; i < 5; i++) {
        const wefti_control_t *control = endpoint->control[between[rank == 3][i]];
        uint64_t end = wefti_now_ns() + 300 * SECOND_NS;
        while (atomic_load(&control->left) == 0 && wefti_now_ns() < end) {
            wefti_endpoint_progress(endpoint);
        }
        EXPECT(atomic_load(&control->left) != 0);
    }
    EXPECT(wefti_signal_peer(endpoint, other, offset + rank * 128u, 2, 0) == WEFT_OK);
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset + other * 128u), 2, "a word",
                             NULL, NULL) == WEFT_OK);
    if (rank == 0) {
        wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, "no more");
        return 0;
    }
    EXPECT(wait_for_nothing(endpoint, &took_ns) < 0);
    EXPECT(took_ns < SOON_NS);
    return 0;
}

static void test_hosts_left_alone(void **state)
{
    (void)state;
    const shape_t shape = {8, 1, "auto", two_stay, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Waits end when all others are gone. */
static int all_others_leave(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint64_t took_ns;
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank != 0) {
        return 0;
    }
    EXPECT(wait_for_nothing(endpoint, &took_ns) == WEFT_ERR_PEER_DIED);
    EXPECT(strstr(weft_last_error(), "left") != NULL);
    EXPECT(took_ns < 5 * SECOND_NS);
    return 0;
}

static void test_hosts_deserted(void **state)
{
    (void)state;
    const shape_t shape = {3, 1, "auto", all_others_leave, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* A forked child cannot use the endpoint, gives back its copy, and disturbs nobody. */
static int forks(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    uint32_t other = (endpoint->rank + 2) % endpoint->world_size;
    EXPECT(wefti_region_alloc(endpoint, 8192, &offset) == WEFT_OK);
    EXPECT(wefti_signal_peer(endpoint, other, offset, 1, 0) == WEFT_OK);
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), 1, "first", NULL, NULL) ==
           WEFT_OK);
    pid_t pid = fork();
    if (pid == 0) {
        uint32_t word = 1;
        int wrong = wefti_endpoint_check(endpoint) != WEFT_ERR_STATE;
        wrong += wefti_put(endpoint, other, offset, &word, sizeof word, 0) != WEFT_ERR_STATE;
        wrong += wefti_signal_peer(endpoint, other, offset, 9, 0) != WEFT_ERR_STATE;
        wrong += wefti_endpoint_barrier(endpoint) != WEFT_ERR_STATE;
        wefti_endpoint_progress(endpoint);
        wefti_endpoint_yield_progress(endpoint);
        wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, "not for the others");
        wefti_endpoint_close(endpoint);
        _exit(wrong);
    }
    EXPECT(pid > 0 && wait_for(pid) == 0);
    EXPECT(wefti_signal_peer(endpoint, other, offset, 2, 0) == WEFT_OK);
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), 2, "second", NULL, NULL) ==
           WEFT_OK);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_fork(void **state)
{
    (void)state;
    const shape_t shape = {4, 2, "auto", forks, NULL, UINT32_MAX};
    run_hosts(&shape);
}

/* Worlds come and go in one process; nothing stays open. */
static int puts_a_little(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    uint8_t data[10000] = {1};
    EXPECT(wefti_region_alloc(endpoint, 20000, &offset) == WEFT_OK);
    EXPECT(wefti_put(endpoint, 1 - endpoint->rank, offset + 4096, data, sizeof data, 3) == WEFT_OK);
    EXPECT(wefti_signal_peer(endpoint, 1 - endpoint->rank, offset, 1, 3) == WEFT_OK);
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), 1, "data", NULL, NULL) ==
           WEFT_OK);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_hosts_leave_nothing_behind(void **state)
{
    (void)state;
    const shape_t shape = {2, 1, "auto", puts_a_little, NULL, UINT32_MAX};
    char address[2][128];
    pid_t pids[2];
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(address[i], sizeof address[i], "file://%s/again-%u", folder, i);
    }
    fflush(NULL);
    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            int before = open_fd_count(), result = 0;
            for (uint32_t i = 0; i < 2; i++) {
                wefti_endpoint_t *endpoint;
                wefti_settings_t settings;
                if (open_hosts_rank(&shape, r, address[i], &settings, &endpoint) < 0) {
                    fprintf(stderr, "rank %u: %s\n", r, weft_last_error());
                    _exit(100);
                }
                result += puts_a_little(endpoint, NULL);
                wefti_endpoint_close(endpoint);
            }
            if (open_fd_count() != before || memory.live_blocks != 0) {
                fprintf(stderr, "rank %u: %d descriptors, %d before; %lld allocations\n", r,
                        open_fd_count(), before, (long long)memory.live_blocks);
                _exit(1);
            }
            _exit(result);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(wait_for(pids[r]), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        unlink(address[i] + strlen("file://"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_two_by_two),
        cmocka_unit_test(test_hosts_one_host_is_shm),
        cmocka_unit_test(test_hosts_without_shm),
        cmocka_unit_test(test_hosts_shm_only_is_refused),
        cmocka_unit_test(test_hosts_unix_address_means_shm),
        cmocka_unit_test(test_hosts_put_stress),
        cmocka_unit_test(test_hosts_lend),
        cmocka_unit_test(test_hosts_close_flushes),
        cmocka_unit_test(test_hosts_background_progress),
        cmocka_unit_test(test_hosts_region_growth),
        cmocka_unit_test(test_hosts_agree),
        cmocka_unit_test(test_hosts_timeout_within),
        cmocka_unit_test(test_hosts_name_the_cause),
        cmocka_unit_test(test_hosts_gather_by_host),
        cmocka_unit_test(test_hosts_deaths_in_a_gather),
        cmocka_unit_test(test_hosts_deadline_from_the_last_move),
        cmocka_unit_test(test_hosts_joining_names_the_cause),
        cmocka_unit_test(test_hosts_joining_names_the_dead),
        cmocka_unit_test(test_hosts_joining_fails_at_once),
        cmocka_unit_test(test_hosts_joining_keeps_numbers),
        cmocka_unit_test(test_hosts_abort),
        cmocka_unit_test(test_hosts_killed_rank_is_named),
        cmocka_unit_test(test_hosts_left_rank_is_named),
        cmocka_unit_test(test_hosts_left_alone),
        cmocka_unit_test(test_hosts_deserted),
        cmocka_unit_test(test_hosts_fork),
        cmocka_unit_test(test_hosts_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
