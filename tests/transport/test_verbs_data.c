/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and signals of the verbs driver over a NIC made of memory: bytes, order, flow, doorbells.
 */
#include "verbs_world.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNTERS 4096u /* bytes at the front of regions */
#define SLOT ((size_t)1 << 20)
#define PATIENCE_NS 300000000000ull /* real devices of an emulated machine on a busy one */

static uint64_t new_seed(void)
{
    const char *text = getenv("WEFT_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) | 1;
    print_message("WEFT_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static weft_status_t put(verbs_world_t *world, uint32_t from, uint32_t to, size_t offset,
                         const void *data, size_t bytes, uint32_t lane, wefti_signal_t *in_use)
{
    return wefti_link_verbs.put(world->ranks[from].driver, to, offset, data, bytes, lane, in_use);
}

static weft_status_t signal_to(verbs_world_t *world, uint32_t from, uint32_t to, size_t offset,
                               uint32_t value, uint32_t lane)
{
    return wefti_link_verbs.signal(world->ranks[from].driver, to, offset, value, lane);
}

static uint32_t value_of(verbs_world_t *world, uint32_t rank, size_t offset)
{
    return atomic_load(&verbs_counter(world, rank, offset)->value);
}

/* Sizes around everything that has an end: inline data, chunks, the pool, chains, pieces. */
static size_t some_size(uint64_t *state)
{
    static const size_t around[] = {8,      200,    256,        4096,           32768,
                                    131072, 300000, 8u * 32768, (size_t)1 << 19};
    size_t size = around[test_next_random(state) % (sizeof around / sizeof around[0])];
    size_t less = test_next_random(state) % 3;
    return test_next_random(state) % 2 == 0 ? 1 + test_next_random(state) % size : size - less;
}

/* One message: a few puts and a signal, checked when the signal is there. Data of puts without
 * zero-copy is overwritten at once. */
static void exchange(verbs_world_t *world, uint32_t from, uint32_t to, uint32_t round,
                     uint64_t *state, uint8_t *scratch)
{
    uint32_t lane = (uint32_t)(test_next_random(state) % WEFTI_LINK_LANES);
    size_t counter = ((size_t)from * 16 + 8 * (lane % 2)) * 8;
    size_t slot = COUNTERS + from * SLOT, own = COUNTERS + (size_t)(VERBS_RANKS + to) % 7 * SLOT;
    size_t at = test_next_random(state) % 64;
    size_t bytes = some_size(state);
    bool zero_copy = test_next_random(state) % 2 == 0, in_region = test_next_random(state) % 2 == 0;
    uint8_t *data = in_region ? world->ranks[from].region + own + (5 + from) % 7 : scratch;
    wefti_signal_t in_use = {0};
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(round * 7 + from * 3 + i * 13 + (i >> 9));
    }
    assert_int_equal(put(world, from, to, slot + at, data, bytes, lane, zero_copy ? &in_use : NULL),
                     WEFT_OK);
    if (!zero_copy) {
        memset(data, 0xee, bytes);
    }
    uint32_t value = value_of(world, to, counter) + 1;
    assert_int_equal(signal_to(world, from, to, counter, value, lane), WEFT_OK);
    for (uint64_t end = wefti_now_ns() + PATIENCE_NS; value_of(world, to, counter) != value;) {
        assert_true(wefti_now_ns() < end);
        verbs_world_turn(world);
    }
    const uint8_t *got = world->ranks[to].region + slot + at;
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) {
        wrong += got[i] != (uint8_t)(round * 7 + from * 3 + i * 13 + (i >> 9));
    }
    assert_int_equal(wrong, 0);
    for (uint64_t end = wefti_now_ns() + PATIENCE_NS; atomic_load(&in_use.value) != 0;) {
        assert_true(wefti_now_ns() < end);
        verbs_world_turn(world);
    }
}

/* Any size, zero-copy or not, from the region or not, over the ends of registered pieces. */
static void test_puts_land_before_their_signal(void **state)
{
    uint64_t seed = new_seed();
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        verbs_world_t world;
        verbs_world_init(&world, variant < 2 ? 2 : 3);
        nic.lazy = variant % 2 == 1;
        nic.seed = seed;
        nic.max_msg_sz = variant == 3 ? 65536 : 8u << 20;
        uint8_t *scratch = malloc(SLOT);
        assert_int_equal(verbs_world_open(&world), WEFT_OK);
        for (size_t to = 196608 + 65536 * variant; to < VERBS_REGION; to += to / 2) {
            assert_int_equal(verbs_world_grow(&world, to & ~(size_t)4095), WEFT_OK);
        }
        assert_int_equal(verbs_world_grow(&world, VERBS_REGION), WEFT_OK);
        for (uint32_t round = 0; round < 40; round++) {
            uint32_t from = (uint32_t)(test_next_random(&seed) % world.size);
            uint32_t to =
                (from + 1 + (uint32_t)(test_next_random(&seed) % (world.size - 1))) % world.size;
            exchange(&world, from, to, round, &seed, scratch);
        }
        verbs_world_flush(&world);
        assert_int_equal(nic.not_ready, 0);
        free(scratch);
        verbs_world_close(&world);
    }
}

/* Values wrap, jump further than an immediate says, come again; more counters than are known. */
static void test_counters_take_any_value(void **state)
{
    verbs_world_t world;
    uint64_t seed = new_seed();
    uint32_t expected[512] = {0};
    (void)state;
    verbs_world_init(&world, 2);
    nic.lazy = true;
    nic.seed = seed;
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    assert_int_equal(verbs_world_grow(&world, 65536), WEFT_OK);
    for (uint32_t i = 0; i < 512; i++) {
        expected[i] = UINT32_MAX - 40000;
        atomic_store(&verbs_counter(&world, 1, (size_t)i * 128)->value, expected[i]);
    }
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t i = (uint32_t)(test_next_random(&seed) % (round % 2 == 0 ? 512 : 4));
        uint32_t step = (uint32_t)(test_next_random(&seed) % (round % 8 == 0 ? 200000 : 3));
        uint32_t back = round % 5 == 0 ? 2 : 0; /* an old value changes nothing */
        expected[i] += step;
        assert_int_equal(
            signal_to(&world, 0, 1, (size_t)i * 128, expected[i], i % WEFTI_LINK_LANES), WEFT_OK);
        assert_int_equal(
            signal_to(&world, 0, 1, (size_t)i * 128, expected[i] - back, i % WEFTI_LINK_LANES),
            WEFT_OK);
        if (round % 3 == 0) {
            verbs_world_turn(&world);
        }
    }
    verbs_world_flush(&world);
    for (uint32_t i = 0; i < 512; i++) {
        assert_int_equal(value_of(&world, 1, (size_t)i * 128), expected[i]);
    }
    verbs_world_close(&world);
}

/* A receiver that does not look, queues as short as can be: nothing blocks, nothing finds no
 * receive, nothing is lost, and order is kept. */
static void test_senders_never_wait(void **state)
{
    (void)state;
    for (uint32_t shorter = 0; shorter < 2; shorter++) {
        verbs_world_t world;
        verbs_world_init(&world, 2);
        world.settings.verbs.queue_pairs = 1;
        nic.max_qp_wr = shorter ? 12 : 1024;
        uint8_t *data = calloc(1, SLOT);
        assert_int_equal(verbs_world_open(&world), WEFT_OK);
        assert_int_equal(verbs_world_grow(&world, VERBS_REGION), WEFT_OK);
        for (uint32_t i = 1; i <= 1000; i++) {
            uint64_t word = i;
            size_t at = COUNTERS + (size_t)i * 8;
            assert_int_equal(put(&world, 0, 1, at, &word, sizeof word, 3, NULL), WEFT_OK);
            if (i % 200 == 0) { /* more than the pool holds */
                memset(data, (int)(i / 200), SLOT);
                assert_int_equal(put(&world, 0, 1, i / 200 * SLOT, data, SLOT, 3, NULL), WEFT_OK);
                assert_int_equal(put(&world, 0, 1, (i / 200 + 1) * SLOT, data, SLOT, 3, NULL),
                                 WEFT_OK);
            }
            assert_int_equal(signal_to(&world, 0, 1, 64, i, 3), WEFT_OK);
        }
        uint32_t seen = 0;
        for (uint64_t end = wefti_now_ns() + PATIENCE_NS; seen < 1000;) {
            assert_true(wefti_now_ns() < end);
            verbs_world_turn(&world);
            seen = value_of(&world, 1, 64);
            uint64_t word = 0;
            memcpy(&word, world.ranks[1].region + COUNTERS + (size_t)seen * 8, sizeof word);
            assert_int_equal(word, seen);
        }
        assert_int_equal(world.ranks[1].region[5 * SLOT], 5);
        assert_int_equal(world.ranks[1].region[7 * SLOT - 1], 5);
        assert_int_equal(world.ranks[1].region[5 * SLOT - 1], 4);
        verbs_world_flush(&world);
        assert_int_equal(nic.not_ready, 0);
        wefti_link_stats_t stats;
        wefti_link_verbs.stats(world.ranks[0].driver, 1, &stats);
        assert_int_equal(stats.bytes_sent, 8000 + 10 * SLOT);
        assert_int_equal(stats.messages_sent, 1000 + 1000 + 10); /* signals, puts */
        assert_true(stats.busy_ns > 0);
        wefti_link_verbs.stats(world.ranks[1].driver, 0, &stats);
        assert_int_equal(stats.messages_received, 1000);
        free(data);
        verbs_world_close(&world);
    }
}

#ifndef VERBS_NIC_IS_REAL
/* A put and its signal are one request once the counter is known; a batch is one doorbell; small
 * data asks for no completion. */
static void test_batches_ring_once(void **state)
{
    verbs_world_t world;
    uint64_t words[10] = {0};
    (void)state;
    verbs_world_init(&world, 2);
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    assert_int_equal(verbs_world_grow(&world, VERBS_REGION), WEFT_OK);
    assert_int_equal(signal_to(&world, 0, 1, 64, 1, 2), WEFT_OK);
    verbs_world_flush(&world);

    uint32_t requests = nic.requests, bells = nic.calls[NIC_POST_SEND];
    assert_int_equal(put(&world, 0, 1, 8192, words, 8, 2, NULL), WEFT_OK);
    assert_int_equal(nic.requests, requests);
    assert_int_equal(signal_to(&world, 0, 1, 64, 2, 2), WEFT_OK);
    assert_int_equal(nic.requests, requests + 1);
    assert_int_equal(nic.calls[NIC_POST_SEND], bells + 1);

    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(put(&world, 0, 1, 8192 + 64 * i, &words[i], 8, 2, NULL), WEFT_OK);
    }
    assert_int_equal(signal_to(&world, 0, 1, 64, 3, 2), WEFT_OK);
    assert_int_equal(nic.requests, requests + 11);
    assert_int_equal(nic.immediates, 3);
    assert_int_equal(nic.calls[NIC_POST_SEND], bells + 2);
    verbs_world_turn(&world);
    assert_int_equal(value_of(&world, 1, 64), 3);
    assert_int_equal(nic.requests, requests + 11);

    /* What nobody signals goes out as soon as somebody looks. */
    words[0] = 77;
    assert_int_equal(put(&world, 0, 1, 16384, words, 8, 2, NULL), WEFT_OK);
    verbs_world_turn(&world);
    assert_int_equal(nic.requests, requests + 12);
    assert_memory_equal(world.ranks[1].region + 16384, words, 8);
    verbs_world_flush(&world);
    verbs_world_close(&world);
}

/* Lent memory of the region is sent from where it is; a put ends at the device's longest message.
 */
static void test_lent_puts_are_not_copied(void **state)
{
    verbs_world_t world;
    wefti_signal_t in_use = {0};
    uint32_t peer = 0;
    (void)state;
    verbs_world_init(&world, 2);
    nic.max_msg_sz = 1u << 20;
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    assert_int_equal(verbs_world_grow(&world, VERBS_REGION), WEFT_OK);
    uint8_t *data = world.ranks[0].region + ((size_t)4 << 20);
    nic.held = true;
    memset(data, 1, (size_t)3 << 20);
    assert_int_equal(put(&world, 0, 1, 4096, data, (size_t)3 << 20, 0, &in_use), WEFT_OK);
    assert_int_equal(signal_to(&world, 0, 1, 64, 1, 0), WEFT_OK);
    assert_int_equal(nic.requests, 4);
    verbs_world_turn(&world);
    assert_true((int32_t)atomic_load(&in_use.value) < 0);
    assert_false(wefti_link_verbs.flushed(world.ranks[0].driver, &peer));
    assert_int_equal(peer, 1);
    memset(data, 2, (size_t)3 << 20); /* what a copy would not see */
    nic.held = false;
    verbs_world_flush(&world);
    assert_int_equal(atomic_load(&in_use.value), 0);
    assert_int_equal(world.ranks[1].region[4096 + ((size_t)3 << 20) - 1], 2);
    verbs_world_close(&world);
}

/* Who sleeps on the descriptor is woken by what comes after arm, and is told of what came before.
 */
static void test_armed_sleepers_wake(void **state)
{
    verbs_world_t world;
    (void)state;
    verbs_world_init(&world, 2);
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    assert_int_equal(verbs_world_grow(&world, VERBS_REGION), WEFT_OK);
    void *sleeper = world.ranks[1].driver;
    struct pollfd poller = {.fd = wefti_link_verbs.poll_fd(sleeper), .events = POLLIN};
    for (uint32_t i = 1; i < 6; i++) {
        while (!wefti_link_verbs.arm(sleeper)) {
        }
        assert_int_equal(poll(&poller, 1, 0), 0);
        assert_int_equal(signal_to(&world, 0, 1, 64, 2 * i - 1, 1), WEFT_OK);
        assert_int_equal(poll(&poller, 1, 1000), 1);
        assert_true(wefti_link_verbs.progress(sleeper));
        assert_int_equal(value_of(&world, 1, 64), 2 * i - 1);
        /* It comes before the next arm: no event, so arm must see it. */
        while (!wefti_link_verbs.arm(sleeper)) {
        }
        assert_int_equal(signal_to(&world, 0, 1, 64, 2 * i, 1), WEFT_OK);
        assert_int_equal(signal_to(&world, 0, 1, 128, i, 1), WEFT_OK);
        assert_false(wefti_link_verbs.arm(sleeper));
        assert_int_equal(value_of(&world, 1, 128), i);
    }
    verbs_world_flush(&world);
    verbs_world_close(&world);
}

#endif

/* ---- two threads a rank ---- */

typedef struct talker {
    verbs_world_t *world;
    uint32_t rank, lane, failures;
} talker_t;

static void *talk(void *argument)
{
    talker_t *talker = argument;
    verbs_world_t *world = talker->world;
    uint32_t peer = 1 - talker->rank;
    size_t counter = 256 + talker->lane * 128, slot = COUNTERS + talker->lane * 65536;
    uint8_t *data = malloc(40000);
    for (uint32_t round = 1; round <= 60; round++) {
        size_t bytes = round % 10 == 0 ? 40000 : 64;
        uint8_t *place = world->ranks[talker->rank].region + slot;
        memset(data, (int)(round + talker->rank), bytes);
        talker->failures +=
            put(world, talker->rank, peer, slot, data, bytes, talker->lane, NULL) < 0;
        talker->failures +=
            signal_to(world, talker->rank, peer, counter, 2 * round - 1, talker->lane) < 0;
        wefti_signal_t *own = verbs_counter(world, talker->rank, counter);
        while (!wefti_signal_reached(atomic_load(&own->value), 2 * round - 1)) {
            wefti_link_verbs.progress(world->ranks[talker->rank].driver);
        }
        talker->failures += place[bytes - 1] != (uint8_t)(round + peer);
        talker->failures +=
            signal_to(world, talker->rank, peer, counter, 2 * round, talker->lane) < 0;
        while (!wefti_signal_reached(atomic_load(&own->value), 2 * round)) {
            wefti_link_verbs.progress(world->ranks[talker->rank].driver);
        }
    }
    free(data);
    return NULL;
}

static void test_threads_share_a_driver(void **state)
{
    verbs_world_t world;
    talker_t talkers[4];
    pthread_t threads[4];
    (void)state;
    verbs_world_init(&world, 2);
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    assert_int_equal(verbs_world_grow(&world, VERBS_REGION), WEFT_OK);
    for (uint32_t i = 0; i < 4; i++) {
        talkers[i] = (talker_t){&world, i % 2, i / 2, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, talk, &talkers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(talkers[i].failures, 0);
    }
    verbs_world_flush(&world);
    verbs_world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_puts_land_before_their_signal),
        cmocka_unit_test(test_counters_take_any_value),
        cmocka_unit_test(test_senders_never_wait),
#ifndef VERBS_NIC_IS_REAL
        cmocka_unit_test(test_batches_ring_once),
        cmocka_unit_test(test_lent_puts_are_not_copied),
        cmocka_unit_test(test_armed_sleepers_wake),
#endif
        cmocka_unit_test(test_threads_share_a_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
