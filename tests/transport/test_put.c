/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Put and signal over every transport that says it can: a world of one, threads, threads on
 * simulated hosts whose network delays and reorders, processes.
 */
#include "support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define CONTROL_BYTES 4096u
#define SLOT_BYTES 65536u

typedef struct plan {
    uint64_t seed;
    uint32_t rounds;
} plan_t;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint8_t pattern(uint32_t from, uint32_t to, uint64_t round, size_t i)
{
    return (uint8_t)(from * 31 + to * 17 + round * 101 + i * 7 + (i >> 8));
}

static wefti_signal_t *own_signal(wefti_endpoint_t *endpoint, size_t offset)
{
    return (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
}

/* Flags say what slots hold, links what region_of does. */
static int caps_are_true(wefti_endpoint_t *endpoint, void *user)
{
    const wefti_hub_links_t *links = user;
    size_t offset;
    bool all = true;
    EXPECT(endpoint->ops->put != NULL && endpoint->ops->signal != NULL &&
           endpoint->ops->flush != NULL);
    EXPECT(wefti_region_alloc(endpoint, 64, &offset) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        bool direct = links == NULL || links->host_of[r] == links->host_of[endpoint->rank];
        EXPECT(wefti_endpoint_direct(endpoint, r) == direct);
        EXPECT((endpoint->region_of[r] != NULL) == direct);
        EXPECT((endpoint->peer_caps[r] & (WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL)) ==
               (WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL));
        EXPECT((endpoint->caps & ~endpoint->peer_caps[r]) == 0);
        all = all && direct;
    }
    EXPECT(((endpoint->caps & WEFTI_CAP_DIRECT) != 0) == all);
    EXPECT(endpoint->local_rank_count == endpoint->world_size);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* What was put before a signal is there when the signal is; sleepers wake. Slots are used again as
 * soon as their reader says so. */
static int puts_come_before_signals(wefti_endpoint_t *endpoint, void *user)
{
    const plan_t *plan = user;
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    uint32_t next = (rank + 1) % n, before = (rank + n - 1) % n;
    uint64_t send_state = plan->seed * 2 + 1 + rank, recv_state = plan->seed * 2 + 1 + before;
    size_t offset;
    uint8_t *data = malloc(SLOT_BYTES);
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES + 2 * SLOT_BYTES, &offset) == WEFT_OK);
    wefti_signal_t *arrived = own_signal(endpoint, offset);
    wefti_signal_t *consumed = own_signal(endpoint, offset + 128);
    for (uint32_t round = 1; round <= plan->rounds; round++) {
        size_t slot = offset + CONTROL_BYTES + (round & 1) * SLOT_BYTES;
        /* The slot's last reader is done with it. */
        EXPECT(wefti_wait_signal(endpoint, consumed, round < 2 ? 0 : round - 2, "room", NULL,
                                 NULL) == WEFT_OK);
        for (uint32_t put = 0; put < 3; put++) { /* side by side, at odd places */
            size_t at = put * 20000 + (size_t)(next_random(&send_state) % 64);
            size_t bytes = (size_t)(next_random(&send_state) % 19000);
            for (size_t i = 0; i < bytes; i++) {
                data[i] = pattern(rank, next, round * 3 + put, i);
            }
            EXPECT(wefti_put(endpoint, next, slot + at, data, bytes, 3) == WEFT_OK);
            memset(data, 0xee, bytes); /* it may be used again at once */
        }
        EXPECT(wefti_signal_peer(endpoint, next, offset, round, 3) == WEFT_OK);
        EXPECT(wefti_wait_signal(endpoint, arrived, round, "data", NULL, NULL) == WEFT_OK);
        for (uint32_t put = 0; put < 3; put++) {
            size_t at = put * 20000 + (size_t)(next_random(&recv_state) % 64);
            size_t bytes = (size_t)(next_random(&recv_state) % 19000);
            const uint8_t *got = endpoint->region_of[rank] + slot + at;
            for (size_t i = 0; i < bytes; i++) {
                EXPECT(got[i] == pattern(before, rank, round * 3 + put, i));
            }
        }
        EXPECT(wefti_signal_peer(endpoint, before, offset + 128, round, 5) == WEFT_OK);
    }
    free(data);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* All ranks to all ranks on all lanes at once: a counter and a word per sender and lane. */
static int lanes_keep_apart(wefti_endpoint_t *endpoint, void *user)
{
    const plan_t *plan = user;
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    size_t offset, counters = (size_t)n * WEFTI_LINK_LANES * sizeof(wefti_signal_t);
    EXPECT(wefti_region_alloc(endpoint, counters * 2, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= plan->rounds; round++) {
        for (uint32_t i = 0; i < n * WEFTI_LINK_LANES; i++) {
            uint32_t to = i % n, lane = (i / n + round) % WEFTI_LINK_LANES;
            size_t mine = ((size_t)rank * WEFTI_LINK_LANES + lane) * sizeof(wefti_signal_t);
            uint64_t word = (uint64_t)round << 32 | lane << 8 | rank;
            EXPECT(wefti_put(endpoint, to, offset + counters + mine + (round & 1) * 64, &word,
                             sizeof word, lane) == WEFT_OK);
            EXPECT(wefti_signal_peer(endpoint, to, offset + mine, round, lane) == WEFT_OK);
        }
        for (uint32_t i = 0; i < n * WEFTI_LINK_LANES; i++) {
            uint32_t from = i / WEFTI_LINK_LANES, lane = i % WEFTI_LINK_LANES;
            size_t at = (size_t)i * sizeof(wefti_signal_t);
            uint64_t word;
            EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset + at), round, "a lane",
                                     NULL, NULL) == WEFT_OK);
            memcpy(&word, endpoint->region_of[rank] + offset + counters + at + (round & 1) * 64,
                   sizeof word);
            EXPECT(word == ((uint64_t)round << 32 | lane << 8 | from));
        }
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* Counters pass 2^32, are never lowered, and come one after the other. */
static int counters_wrap(wefti_endpoint_t *endpoint, void *user)
{
    const plan_t *plan = user;
    uint32_t next = (endpoint->rank + 1) % endpoint->world_size;
    uint32_t start = UINT32_MAX - plan->rounds / 2;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES, &offset) == WEFT_OK);
    wefti_signal_t *own = own_signal(endpoint, offset);
    atomic_store(&own->value, start);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t i = 1; i <= plan->rounds; i++) {
        EXPECT(wefti_signal_peer(endpoint, next, offset, start + i, 1) == WEFT_OK);
        EXPECT(wefti_signal_peer(endpoint, next, offset, start + i - 1, 1) == WEFT_OK);
    }
    uint32_t last = start;
    while (last != start + plan->rounds) {
        EXPECT(wefti_wait_signal(endpoint, own, last + 1, "one more", NULL, NULL) == WEFT_OK);
        uint32_t now = atomic_load(&own->value);
        EXPECT(now - last <= plan->rounds && now != last);
        last = now;
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(atomic_load(&own->value) == start + plan->rounds);
    return 0;
}

/* After a flush and a barrier everything is there, signals or not. */
static int flush_lands_all(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    size_t offset, each = 3001;
    EXPECT(wefti_region_alloc(endpoint, n * each, &offset) == WEFT_OK);
    uint8_t *data = malloc(each);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < each; i++) {
            data[i] = pattern(rank, r, 0, i);
        }
        EXPECT(wefti_put(endpoint, r, offset + rank * each, data, each, r % WEFTI_LINK_LANES) ==
               WEFT_OK);
    }
    free(data);
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < each; i++) {
            EXPECT(endpoint->region_of[rank][offset + r * each + i] == pattern(r, rank, 0, i));
        }
    }
    return 0;
}

/* Megabytes at once, and a rank that leaves right after: what it sent arrives. */
static int large_and_last(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t n = endpoint->world_size, rank = endpoint->rank, next = (rank + 1) % n;
    size_t offset, bytes = (1u << 20) + 13;
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES + bytes, &offset) == WEFT_OK);
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = pattern(rank, next, 1, i);
    }
    EXPECT(wefti_put(endpoint, next, offset + CONTROL_BYTES, data, bytes, 0) == WEFT_OK);
    free(data);
    EXPECT(wefti_signal_peer(endpoint, next, offset, 1, 0) == WEFT_OK);
    if (rank == 0 && n > 1) {
        return 0;
    }
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), 1, "data", NULL, NULL) ==
           WEFT_OK);
    const uint8_t *got = endpoint->region_of[rank] + offset + CONTROL_BYTES;
    for (size_t i = 0; i < bytes; i++) {
        EXPECT(got[i] == pattern((rank + n - 1) % n, rank, 1, i));
    }
    return 0;
}

static int refuses(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t peer = endpoint->world_size - 1;
    size_t offset, end;
    uint8_t byte = 0;
    EXPECT(wefti_put(endpoint, peer, 0, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT); /* no region */
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    end = endpoint->region_bytes;
    EXPECT(wefti_put(endpoint, peer, end, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, 8, &byte, SIZE_MAX - 4, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, SIZE_MAX, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(strstr(weft_last_error(), "whose region has") != NULL);
    EXPECT(wefti_put(endpoint, peer + 1, 0, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, 0, &byte, 1, WEFTI_LINK_LANES) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, 0, NULL, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, end, NULL, 0, 0) == WEFT_OK); /* nothing, at the very end */
    EXPECT(wefti_signal_peer(endpoint, peer, offset + 4, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_signal_peer(endpoint, peer, end, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_signal_peer(endpoint, peer, end - 4, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_signal_peer(endpoint, peer + 1, offset, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* Aborts come through control blocks, whatever the network does. */
static int abort_passes_the_network(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES, &offset) == WEFT_OK);
    if (endpoint->rank == 0) {
        wefti_endpoint_abort(endpoint, WEFT_ERR_MISMATCH, "enough");
    }
    EXPECT(wefti_wait_signal(endpoint, own_signal(endpoint, offset), 1, "nothing", NULL, NULL) ==
           WEFT_ERR_MISMATCH);
    EXPECT(strcmp(weft_last_error(), "enough") == 0);
    return 0;
}

static const struct {
    rank_fn fn;
    uint32_t rounds;
} cases[] = {
    {puts_come_before_signals, 20}, {lanes_keep_apart, 4}, {counters_wrap, 60},
    {flush_lands_all, 1},           {large_and_last, 1},   {refuses, 1},
};
#define CASES (sizeof cases / sizeof cases[0])

static void test_put_on_one_host(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 5};
    for (size_t c = 0; c < CASES; c++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            plan_t plan = {.seed = 1 + s, .rounds = cases[c].rounds};
            world_t world = {sizes[s], cases[c].fn, &plan, test_settings(), NULL, NULL};
            run_threads(&world);
            run_processes(&world);
        }
    }
}

static void test_put_flags(void **state)
{
    (void)state;
    static const uint32_t hosts[] = {0, 1, 0, 1, 2};
    wefti_hub_links_t links = {.host_of = hosts, .seed = 1};
    world_t world = {1, caps_are_true, NULL, test_settings(), NULL, NULL};
    run_processes(&world);
    world.size = 5;
    run_threads(&world);
    run_processes(&world);
    world.links = world.user = &links;
    run_threads(&world);
}

/* All on hosts of their own, and two hosts of uneven size. */
static void test_put_between_simulated_hosts(void **state)
{
    (void)state;
    static const uint32_t apart[] = {0, 1, 2, 3, 4}, uneven[] = {7, 3, 3, 7, 3};
    static const uint64_t delays[] = {0, 20000, 300000};
    for (size_t c = 0; c < CASES; c++) {
        for (uint64_t seed = 1; seed <= 6; seed++) {
            wefti_hub_links_t links = {.host_of = seed & 1 ? apart : uneven,
                                       .seed = seed,
                                       .max_delay_ns = delays[seed % 3]};
            plan_t plan = {.seed = seed, .rounds = cases[c].rounds};
            uint32_t size = seed % 2 == 0 ? 5 : seed == 1 ? 2 : 3;
            world_t world = {size, cases[c].fn, &plan, test_settings(), NULL, &links};
            print_message("case %zu, seed %u\n", c, (unsigned)seed);
            run_threads(&world);
        }
    }
    wefti_hub_links_t links = {.host_of = apart, .seed = 9, .max_delay_ns = 1000000};
    world_t world = {5, abort_passes_the_network, NULL, test_settings(), NULL, &links};
    run_threads(&world);
}

/* The network does reorder: otherwise the tests above would show nothing. */
static int watch_order(wefti_endpoint_t *endpoint, void *user)
{
    _Atomic uint32_t *overtaken = user;
    uint32_t next = 1 - endpoint->rank;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= 50; round++) {
        for (uint32_t lane = 0; lane < 8; lane++) {
            EXPECT(wefti_put(endpoint, next, offset, &lane, sizeof lane, lane) == WEFT_OK);
        }
        wefti_endpoint_flush(endpoint);
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
        uint32_t last;
        memcpy(&last, endpoint->region_of[endpoint->rank] + offset, sizeof last);
        atomic_fetch_add(overtaken, last != 7);
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    }
    return 0;
}

static void test_network_reorders_lanes(void **state)
{
    (void)state;
    static const uint32_t apart[] = {0, 1};
    _Atomic uint32_t overtaken = 0;
    wefti_hub_links_t links = {.host_of = apart, .seed = 5, .max_delay_ns = 100000};
    world_t world = {2, watch_order, &overtaken, test_settings(), NULL, &links};
    run_threads(&world);
    assert_true(atomic_load(&overtaken) > 50);
    atomic_store(&overtaken, 0);
    links.max_delay_ns = 0;
    run_threads(&world);
    assert_int_equal(atomic_load(&overtaken), 0);
}

static void *join_and_leave(void *argument)
{
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint = NULL;
    if (open_rank(1, 2, NULL, argument, &settings, &endpoint) == WEFT_OK) {
        wefti_endpoint_close(endpoint);
    }
    return NULL;
}

/* Hosts are told to a hub before its ranks meet, and hold for its next worlds. */
static void test_hub_hides_before_ranks_meet(void **state)
{
    (void)state;
    static const uint32_t apart[] = {0, 1};
    wefti_hub_links_t links = {.host_of = apart};
    wefti_settings_t settings = test_settings();
    weft_hub_t *hub;
    assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
    assert_int_equal(wefti_hub_hide(hub, &links), WEFT_OK);
    for (int world = 0; world < 2; world++) {
        pthread_t other;
        wefti_endpoint_t *endpoint;
        assert_int_equal(pthread_create(&other, NULL, join_and_leave, hub), 0);
        assert_int_equal(open_rank(0, 2, NULL, hub, &settings, &endpoint), WEFT_OK);
        assert_false(wefti_endpoint_direct(endpoint, 1));
        assert_int_equal(wefti_hub_hide(hub, &links), WEFT_ERR_STATE);
        wefti_endpoint_close(endpoint);
        pthread_join(other, NULL);
    }
    /* A child has no network, and may give its copy back. */
    pid_t child = fork();
    if (child == 0) {
        weft_hub_destroy(hub);
        _exit(0);
    }
    assert_int_equal(wait_for(child), 0);
    weft_hub_destroy(hub);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_flags),
        cmocka_unit_test(test_put_on_one_host),
        cmocka_unit_test(test_put_between_simulated_hosts),
        cmocka_unit_test(test_network_reorders_lanes),
        cmocka_unit_test(test_hub_hides_before_ranks_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
