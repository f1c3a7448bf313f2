/* SPDX-License-Identifier: Apache-2.0 */
/* All-gather, barrier, regions and waits over worlds of many sizes, as threads and as processes. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/error.h"

#define BIG_BYTES 200000u

static int gather_and_barrier(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t n = endpoint->world_size;
    uint64_t all[64];
    for (uint32_t round = 0; round < 20; round++) {
        uint64_t own = endpoint->rank * 1000u + round;
        EXPECT(wefti_endpoint_all_gather(endpoint, &own, sizeof own, all) == WEFT_OK);
        for (uint32_t r = 0; r < n; r++) {
            EXPECT(all[r] == r * 1000u + round);
        }
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    }
    EXPECT(wefti_endpoint_all_gather(endpoint, NULL, 0, NULL) == WEFT_OK);
    /* Larger than any socket's buffer: goes in pieces. */
    uint8_t *part = malloc(BIG_BYTES), *whole = malloc((size_t)BIG_BYTES * n);
    memset(part, (int)endpoint->rank + 1, BIG_BYTES);
    EXPECT(wefti_endpoint_all_gather(endpoint, part, BIG_BYTES, whole) == WEFT_OK);
    for (size_t i = 0; i < (size_t)BIG_BYTES * n; i++) {
        EXPECT(whole[i] == i / BIG_BYTES + 1);
    }
    free(part);
    free(whole);
    return 0;
}

/* Ranks write a number that all others saw written before the barrier: nobody passes it early. */
static int barrier_orders(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    uint32_t n = endpoint->world_size;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= 50; round++) {
        *(uint32_t *)(void *)(endpoint->region_of[endpoint->rank] + offset) = round;
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
        for (uint32_t r = 0; r < n; r++) {
            EXPECT(*(uint32_t *)(void *)(endpoint->region_of[r] + offset) == round);
        }
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    }
    return 0;
}

static uint8_t pattern(uint32_t writer, uint32_t owner, size_t i)
{
    return (uint8_t)(writer * 37 + owner * 11 + i % 251 + 1);
}

/* Every rank writes its slice of every peer's memory, everyone reads all of its own. */
static int region_is_shared(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t n = endpoint->world_size;
    size_t slice = 1000, a, b, c, d;
    EXPECT(wefti_region_alloc(endpoint, n * slice, &a) == WEFT_OK);
    EXPECT(a % 4096 == 0);
    uint8_t *own = endpoint->region_of[endpoint->rank];
    for (size_t i = 0; i < n * slice; i++) {
        EXPECT(own[a + i] == 0);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < slice; i++) {
            endpoint->region_of[r][a + endpoint->rank * slice + i] = pattern(endpoint->rank, r, i);
        }
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    /* Growing keeps what was there, and where. */
    EXPECT(wefti_region_alloc(endpoint, 3u << 20, &b) == WEFT_OK);
    EXPECT(wefti_region_alloc(endpoint, 5u << 20, &c) == WEFT_OK);
    EXPECT(endpoint->region_of[endpoint->rank] == own);
    EXPECT(b >= a + n * slice && c >= b + (3u << 20));
    size_t offsets[3] = {a, b, c}, all[64][3];
    EXPECT(wefti_endpoint_all_gather(endpoint, offsets, sizeof offsets, all) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        EXPECT(memcmp(all[r], offsets, sizeof offsets) == 0);
        for (size_t i = 0; i < slice; i++) {
            EXPECT(own[a + r * slice + i] == pattern(r, endpoint->rank, i));
        }
    }
    /* Freed memory comes back zeroed, at the same place everywhere. */
    memset(own + b, 0xff, 3u << 20);
    size_t used = endpoint->region_used_bytes;
    wefti_region_free(endpoint, b);
    EXPECT(endpoint->region_used_bytes == used - (3u << 20));
    EXPECT(wefti_region_alloc(endpoint, 2u << 20, &d) == WEFT_OK);
    EXPECT(d == b);
    for (size_t i = 0; i < 2u << 20; i++) {
        EXPECT(own[d + i] == 0);
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static int region_refuses(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset = 7;
    /* Too much for the reserved range. */
    EXPECT(wefti_region_alloc(endpoint, 65u << 20, &offset) == WEFT_ERR_NO_MEMORY);
    EXPECT(strstr(weft_last_error(), "WEFT_RESERVE_BYTES") != NULL);
    EXPECT(wefti_region_alloc(endpoint, SIZE_MAX - 5, &offset) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_region_alloc(endpoint, 0, &offset) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(offset == 7);
    if (endpoint->world_size > 1) {
        EXPECT(wefti_region_alloc(endpoint, 4096 + endpoint->rank * 4096, &offset) ==
               WEFT_ERR_MISMATCH);
        EXPECT(strstr(weft_last_error(), "rank 0 asks for 4096 bytes, rank 1 for 8192") != NULL);
    }
    /* The world goes on. */
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    EXPECT(offset == 0);
    return 0;
}

/* A token goes round through signals in shared memory; whoever waits sleeps most of the time. */
static int ring_of_signals(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    uint32_t n = endpoint->world_size, next = (endpoint->rank + 1) % n;
    EXPECT(wefti_region_alloc(endpoint, sizeof(wefti_signal_t), &offset) == WEFT_OK);
    wefti_signal_t *own = (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
    wefti_signal_t *theirs = (wefti_signal_t *)(void *)(endpoint->region_of[next] + offset);
    for (uint32_t round = 1; round <= 200; round++) {
        if (endpoint->rank == 0) {
            wefti_signal_post(theirs, round);
        }
        EXPECT(wefti_wait_signal(endpoint, own, round, "the token", NULL, NULL) == WEFT_OK);
        if (endpoint->rank != 0) {
            wefti_signal_post(theirs, round);
        }
    }
    EXPECT(atomic_load(&own->waiters) == 0);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static int gather_mismatch(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint64_t own[2] = {0}, all[64];
    size_t bytes = endpoint->rank == 1 ? 16 : 8;
    EXPECT(wefti_endpoint_all_gather(endpoint, own, bytes, all) == WEFT_ERR_MISMATCH);
    EXPECT(strstr(weft_last_error(), "16") != NULL && strstr(weft_last_error(), "8") != NULL);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_MISMATCH);
    return 0;
}

static int abort_reaches_all(wefti_endpoint_t *endpoint, void *user)
{
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, sizeof(wefti_signal_t), &offset) == WEFT_OK);
    wefti_signal_t *own = (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
    uint64_t start = wefti_now_ns();
    if (endpoint->rank == 0) {
        wefti_endpoint_abort(endpoint, WEFT_ERR_MISMATCH, "bucket 3: f32 against f16");
        EXPECT(wefti_endpoint_check(endpoint) == WEFT_ERR_MISMATCH);
    } else if (endpoint->rank == 1) {
        EXPECT(wefti_wait_signal(endpoint, own, 1, "what never comes", NULL, NULL) ==
               WEFT_ERR_MISMATCH);
    } else if (endpoint->rank % 2 == 0) {
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_MISMATCH);
    } else {
        uint8_t byte = 0, all[64];
        EXPECT(wefti_endpoint_all_gather(endpoint, &byte, 1, all) == WEFT_ERR_MISMATCH);
    }
    EXPECT(strcmp(weft_last_error(), "bucket 3: f32 against f16") == 0);
    EXPECT(wefti_now_ns() - start < 1000000000ull);
    (void)user;
    return 0;
}

static weft_status_t count_down(void *user)
{
    int *left = user;
    return --*left > 0 ? WEFT_OK : wefti_error(WEFT_ERR_FORMAT, "enough");
}

static int poll_is_called(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    int left = 100;
    wefti_signal_t *never = aligned_alloc(128, sizeof *never);
    memset(never, 0, sizeof *never);
    EXPECT(wefti_wait_signal(endpoint, never, 1, "nothing", count_down, &left) == WEFT_ERR_FORMAT);
    EXPECT(left == 0 && atomic_load(&never->waiters) == 0);
    free(never);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static int times_out(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    wefti_signal_t never = {0};
    if (endpoint->rank == 0) {
        EXPECT(wefti_wait_signal(endpoint, &never, 1, "the answer", NULL, NULL) ==
               WEFT_ERR_TIMEOUT);
        EXPECT(strstr(weft_last_error(), "the answer") != NULL);
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* Leaving early is told from dying: a barrier that waits for a rank that left says so. */
static int one_leaves(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    if (endpoint->rank == 1) {
        return 0;
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_PEER_DIED);
    EXPECT(strstr(weft_last_error(), "rank 1 left the world") != NULL);
    return 0;
}

/* A peer may write anything into a control block: it ends the world, and nothing else. */
static int garbled_abort_record(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 0) {
        wefti_control_t *control = endpoint->control[1];
        memset(control->abort_text, 'x', sizeof control->abort_text);
        control->abort_status = 12345;
        control->abort_rank = 4000000000u;
        atomic_store(&control->abort_state, 2);
        control = endpoint->control[2];
        atomic_store(&control->abort_state, 1); /* and never finished */
        return 0;
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_ABORTED);
    EXPECT(strlen(weft_last_error()) < WEFTI_ABORT_TEXT_BYTES);
    EXPECT((weft_last_error()[0] == 'x') == (endpoint->rank == 1));
    return 0;
}

static const rank_fn functions[] = {gather_and_barrier, barrier_orders,  region_is_shared,
                                    region_refuses,     ring_of_signals, abort_reaches_all,
                                    poll_is_called};

static void test_world_threads(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 8, 9};
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            if (functions[f] == abort_reaches_all && sizes[s] == 1) {
                continue;
            }
            run_threads(
                &(world_t){.size = sizes[s], .fn = functions[f], .settings = test_settings()});
        }
    }
}

static void test_world_processes(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 5, 9};
    int fds = open_fd_count();
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            if (functions[f] == abort_reaches_all && sizes[s] == 1) {
                continue;
            }
            run_processes(
                &(world_t){.size = sizes[s], .fn = functions[f], .settings = test_settings()});
        }
    }
    assert_int_equal(open_fd_count(), fds);
}

static void run_both(uint32_t size, rank_fn fn, uint64_t timeout_ns)
{
    world_t world = {.size = size, .fn = fn, .settings = test_settings()};
    world.settings.timeout_ns = timeout_ns;
    run_threads(&world);
    run_processes(&world);
}

static void test_world_gather_mismatch(void **state)
{
    (void)state;
    run_both(3, gather_mismatch, 60000000000ull);
}

static void test_world_garbled_abort_record(void **state)
{
    (void)state;
    world_t world = {.size = 3, .fn = garbled_abort_record, .settings = test_settings()};
    run_processes(&world);
}

static void test_world_wait_times_out(void **state)
{
    (void)state;
    /* Long enough for the others' barrier, which waits meanwhile, on a busy machine. */
    world_t world = {.size = 1, .fn = times_out, .settings = test_settings()};
    world.settings.timeout_ns = 100000000ull;
    run_threads(&world);
    run_processes(&world);
}

static void test_world_rank_leaves(void **state)
{
    (void)state;
    run_both(3, one_leaves, 60000000000ull);
}

static void test_world_single_needs_nothing(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint;
    assert_int_equal(open_rank(0, 1, NULL, NULL, &settings, &endpoint), WEFT_OK);
    assert_string_equal(endpoint->ops->name, "null");
    assert_int_equal(region_is_shared(endpoint, NULL), 0);
    wefti_endpoint_close(endpoint);
    assert_int_equal(open_rank(2, 2, "unix:@x", NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(open_rank(0, 0, "unix:@x", NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(open_rank(0, 2, NULL, NULL, &settings, &endpoint), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(open_rank(0, 2, "tcp://x", NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_null(endpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_threads),
        cmocka_unit_test(test_world_processes),
        cmocka_unit_test(test_world_gather_mismatch),
        cmocka_unit_test(test_world_garbled_abort_record),
        cmocka_unit_test(test_world_wait_times_out),
        cmocka_unit_test(test_world_rank_leaves),
        cmocka_unit_test(test_world_single_needs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
