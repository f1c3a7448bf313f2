/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links that break, or are not there for all: a better driver than tcp is made up, out of tcp
 * itself, which breaks when it is told to.
 */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/links.h"

#define SECOND_NS 1000000000ull

/* One rank per process. */
static wefti_link_driver_t best;
static wefti_link_params_t best_params;
static uint32_t without_best = UINT32_MAX; /* this rank has none */
static uint32_t cannot_grow = UINT32_MAX;  /* this rank's registers no memory */

const wefti_link_driver_t *const wefti_link_drivers[] = {&best, &wefti_link_tcp, NULL};

static weft_status_t best_open(const wefti_link_params_t *params, void **out_driver, void *out_card)
{
    if (params->rank == without_best) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "no such card");
    }
    best_params = *params;
    return wefti_link_tcp.open(params, out_driver, out_card);
}

static weft_status_t best_grow(void *driver, uint8_t *base, size_t from, size_t to, void *out_key)
{
    if (best_params.rank == cannot_grow) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "the card has no room");
    }
    return wefti_link_tcp.grow(driver, base, from, to, out_key);
}

static bool dead; /* as far as the driver knows */

static weft_status_t best_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                                 uint32_t lane)
{
    return dead ? wefti_error(WEFT_ERR_PEER_DIED, "somebody closed it")
                : wefti_link_tcp.signal(driver, peer, offset, value, lane);
}

typedef struct options {
    uint32_t size;
    uint32_t fallback;
    rank_fn fn;
} options_t;

static char folder[64];
static char logged[4096];

static void keep_log(void *user, weft_log_level_t level, const char *line)
{
    (void)user;
    size_t used = strlen(logged);
    if (level <= WEFT_LOG_LEVEL_WARN) {
        snprintf(logged + used, sizeof logged - used, "%s\n", line);
    }
}

static int be_rank(const options_t *options, uint32_t rank, const char *address)
{
    static const wefti_log_t log = {.fn = keep_log, .level = WEFT_LOG_LEVEL_WARN};
    wefti_job_t job = {.rank = rank, .world_size = options->size, .secret_bytes = 16};
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint;
    snprintf(job.address, sizeof job.address, "%s", address);
    memcpy(job.secret, "sixteen letters!", 16);
    settings.connect_timeout_ns = 300 * SECOND_NS;
    settings.link_timeout_ns = 120 * SECOND_NS;
    settings.sockets = 1;
    settings.fallback = options->fallback;
    snprintf(settings.transport, sizeof settings.transport, "auto");
    snprintf(settings.host_id, sizeof settings.host_id, "host-%u", rank);
    snprintf(settings.ifname, sizeof settings.ifname, "lo");
    wefti_endpoint_params_t params = {.rank = rank,
                                      .world_size = options->size,
                                      .address = job.address,
                                      .job = &job,
                                      .settings = &settings,
                                      .log = &log};
    if (wefti_endpoint_open(&params, &endpoint) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, weft_last_error());
        return 100;
    }
    int result = options->fn(endpoint, NULL);
    wefti_endpoint_close(endpoint);
    return result;
}

static void run(const options_t *options)
{
    static unsigned counter;
    char address[128];
    pid_t pids[8];
    snprintf(address, sizeof address, "file://%s/meet-%u", folder, counter++);
    fflush(NULL);
    for (uint32_t r = 0; r < options->size; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            _exit(be_rank(options, r, address));
        }
    }
    int results[8];
    for (uint32_t r = 0; r < options->size; r++) {
        results[r] = wait_for(pids[r]);
    }
    unlink(address + strlen("file://"));
    for (uint32_t r = 0; r < options->size; r++) {
        assert_int_equal(results[r], 0);
    }
}

static int make_folder(void **state)
{
    (void)state;
    best = wefti_link_tcp;
    best.name = "best";
    best.open = best_open;
    best.grow = best_grow;
    best.signal = best_signal;
    snprintf(folder, sizeof folder, "/tmp/weft-fallback-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : 1;
}

static int drop_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static const char *way_to(wefti_endpoint_t *endpoint, uint32_t peer, char *reason, size_t bytes)
{
    static char name[32];
    wefti_endpoint_describe(endpoint, peer, name, sizeof name, reason, bytes);
    return name;
}

/* A word from everybody to everybody; 0, or the line that failed. */
static int exchange(wefti_endpoint_t *endpoint, size_t offset, uint32_t round)
{
    for (uint32_t peer = 0; peer < endpoint->world_size; peer++) {
        uint32_t word = endpoint->rank * 1000 + round;
        size_t place = offset + endpoint->rank * 256u;
        EXPECT(wefti_put(endpoint, peer, place + 128 + (round & 1) * 8, &word, sizeof word, 4) ==
               WEFT_OK);
        EXPECT(wefti_signal_peer(endpoint, peer, place, round, 4) == WEFT_OK);
    }
    for (uint32_t from = 0; from < endpoint->world_size; from++) {
        uint8_t *place = endpoint->region_of[endpoint->rank] + offset + from * 256u;
        uint32_t word;
        EXPECT(wefti_wait_signal(endpoint, (wefti_signal_t *)(void *)place, round, "a word", NULL,
                                 NULL) == WEFT_OK);
        memcpy(&word, place + 128 + (round & 1) * 8, sizeof word);
        EXPECT(word == from * 1000 + round);
    }
    return 0;
}

static int await_faults(wefti_endpoint_t *endpoint, uint32_t count)
{
    uint64_t end = wefti_now_ns() + 300 * SECOND_NS;
    while (atomic_load(&endpoint->link_faults) < count) {
        wefti_endpoint_progress(endpoint);
        EXPECT(wefti_now_ns() < end);
    }
    return 0;
}

static int goes_on_over_tcp(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    char reason[200];
    uint32_t at = 0, rank = endpoint->rank;
    wefti_link_fault_t fault;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    EXPECT(exchange(endpoint, offset, 1) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        EXPECT(r == rank || strcmp(way_to(endpoint, r, reason, sizeof reason), "best") == 0);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (rank == 2) {
        best_params.broken(best_params.owner, 1, false, "somebody stumbled over it");
        EXPECT(wefti_signal_peer(endpoint, 1, offset + 3072, 1, 4) == WEFT_OK);
    }
    if (rank == 1) { /* what comes over the other path comes after the news */
        uint8_t *place = endpoint->region_of[rank] + offset + 3072;
        EXPECT(wefti_wait_signal(endpoint, (wefti_signal_t *)(void *)place, 1, "a signal", NULL,
                                 NULL) == WEFT_OK);
        EXPECT(atomic_load(&endpoint->link_faults) == 1);
    }
    /* Everybody learns of it, once. */
    EXPECT(await_faults(endpoint, 1) == 0);
    EXPECT(wefti_endpoint_link_fault(endpoint, &at, &fault));
    EXPECT(!wefti_endpoint_link_fault(endpoint, &at, &fault));
    EXPECT(fault.ranks[0] == 1 && fault.ranks[1] == 2);
    /* Either end may have told first, and each its own reason. */
    EXPECT(strstr(fault.text, "the best link between rank 1 (host host-1) and rank 2 (host host-2) "
                              "broke: ") == fault.text);
    EXPECT(rank != 2 || strstr(fault.text, "somebody stumbled over it") != NULL);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        bool between = (rank == 1 && r == 2) || (rank == 2 && r == 1);
        const char *name = way_to(endpoint, r, reason, sizeof reason);
        EXPECT(r == rank || strcmp(name, between ? "tcp" : "best") == 0);
        EXPECT(!between || strstr(reason, "best link between") != NULL);
    }
    EXPECT((strstr(logged, "continue over tcp") != NULL) == (rank == 1 || rank == 2));
    EXPECT(exchange(endpoint, offset, 2) == 0);
    /* The same again says nothing new. */
    if (rank == 1) {
        best_params.broken(best_params.owner, 2, false, "and again");
    }
    EXPECT(exchange(endpoint, offset, 3) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(atomic_load(&endpoint->link_faults) == 1);
    return 0;
}

static void test_fallback_to_tcp(void **state)
{
    (void)state;
    run(&(options_t){3, WEFTI_FALLBACK_TCP, goes_on_over_tcp});
}

/* ---- a call that begins while another thread tells of the fault ---- */

static _Atomic bool telling, may_tell;

void __real_wefti_overlay_flood(wefti_overlay_t *overlay, uint32_t kind, const void *data,
                                size_t bytes);
void __wrap_wefti_overlay_flood(wefti_overlay_t *overlay, uint32_t kind, const void *data,
                                size_t bytes);
void __wrap_wefti_overlay_flood(wefti_overlay_t *overlay, uint32_t kind, const void *data,
                                size_t bytes)
{
    while (atomic_load(&telling) && !atomic_load(&may_tell)) {
        sched_yield();
    }
    __real_wefti_overlay_flood(overlay, kind, data, bytes);
}

static void *breaks_link(void *unused)
{
    (void)unused;
    best_params.broken(best_params.owner, 1, false, "it is cut");
    return NULL;
}

static int has_switched_after_flush(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    char reason[200];
    pthread_t breaker;
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 0) {
        atomic_store(&telling, true);
        EXPECT(pthread_create(&breaker, NULL, breaks_link, NULL) == 0);
    }
    EXPECT(await_faults(endpoint, 1) == 0);
    EXPECT(wefti_endpoint_flush(endpoint));
    const char *way = way_to(endpoint, 1 - endpoint->rank, reason, sizeof reason);
    if (endpoint->rank == 0) {
        atomic_store(&may_tell, true);
        EXPECT(pthread_join(breaker, NULL) == 0);
    }
    EXPECT(strcmp(way, "tcp") == 0);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_fallback_before_the_next_call(void **state)
{
    (void)state;
    run(&(options_t){2, WEFTI_FALLBACK_TCP, has_switched_after_flush});
}

static int stays_broken(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    uint32_t word = 1, other = 1 - endpoint->rank;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    EXPECT(exchange(endpoint, offset, 1) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 0) {
        best_params.broken(best_params.owner, 1, false, "it is cut");
    }
    EXPECT(await_faults(endpoint, 1) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(wefti_put(endpoint, other, offset, &word, sizeof word, 4) == WEFT_ERR_LINK);
    /* The other end may have heard first that the connection ended. */
    EXPECT(strstr(weft_last_error(), "it is cut") != NULL ||
           strstr(weft_last_error(), "broke: ") != NULL);
    EXPECT(strstr(weft_last_error(), "host host-0") != NULL);
    EXPECT(strstr(weft_last_error(), "host host-1") != NULL);
    EXPECT(wefti_signal_peer(endpoint, other, offset, 2, 4) == WEFT_ERR_LINK);
    /* The world goes on: other ranks may do without this link. */
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    return 0;
}

static void test_fallback_off(void **state)
{
    (void)state;
    run(&(options_t){2, WEFTI_FALLBACK_OFF, stays_broken});
}

static int some_have_it(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    char reason[200];
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        bool both = endpoint->rank != without_best && r != without_best;
        EXPECT(r == endpoint->rank ||
               strcmp(way_to(endpoint, r, reason, sizeof reason), both ? "best" : "tcp") == 0);
    }
    EXPECT(exchange(endpoint, offset, 1) == 0);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_fallback_driver_missing_on_one(void **state)
{
    (void)state;
    without_best = 1;
    run(&(options_t){3, WEFTI_FALLBACK_TCP, some_have_it});
    without_best = UINT32_MAX;
}

static int cannot_register(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_ERR_NO_MEMORY);
    EXPECT(strcmp(weft_last_error(), "rank 1: best: the card has no room") == 0);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_fallback_registration_fails(void **state)
{
    (void)state;
    cannot_grow = 1;
    run(&(options_t){2, WEFTI_FALLBACK_TCP, cannot_register});
    cannot_grow = UINT32_MAX;
}

/* A driver that takes a peer for dead is believed, unless the peer says that it left. */
static int is_taken_for_dead(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    wefti_signal_t never = {0};
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 0) {
        best_params.broken(best_params.owner, 1, true, "its host does not answer");
        dead = true; /* whoever sends does not say what died: whoever waits does */
        EXPECT(wefti_signal_peer(endpoint, 1, offset, 1, 4) == WEFT_OK);
    }
    EXPECT(wefti_wait_signal(endpoint, &never, 1, "nothing", NULL, NULL) == WEFT_ERR_PEER_DIED);
    EXPECT(strcmp(weft_last_error(), "rank 1 (host host-1) died: its host does not answer") == 0);
    return 0;
}

static void test_fallback_dead_host(void **state)
{
    (void)state;
    run(&(options_t){3, WEFTI_FALLBACK_TCP, is_taken_for_dead});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fallback_to_tcp),
        cmocka_unit_test(test_fallback_before_the_next_call),
        cmocka_unit_test(test_fallback_off),
        cmocka_unit_test(test_fallback_driver_missing_on_one),
        cmocka_unit_test(test_fallback_registration_fails),
        cmocka_unit_test(test_fallback_dead_host),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
