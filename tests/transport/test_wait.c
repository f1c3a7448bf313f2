/* SPDX-License-Identifier: Apache-2.0 */
/* The wait policy: which of spinning, yielding and sleeping happens when; no lost wake-ups. */
#include "support.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

static _Atomic uint32_t yields;
static _Atomic bool yields_are_free; /* do nothing, so that waits go on to sleep */

/* In place of libc's: counts. */
int sched_yield(void)
{
    atomic_fetch_add(&yields, 1);
    return atomic_load(&yields_are_free) ? 0 : (int)syscall(SYS_sched_yield);
}

static wefti_endpoint_t *open_alone(wefti_settings_t *settings)
{
    wefti_endpoint_t *endpoint;
    assert_int_equal(open_rank(0, 1, NULL, NULL, settings, &endpoint), WEFT_OK);
    return endpoint;
}

typedef struct poster {
    wefti_signal_t *signal;
    int calls, post_at;
} poster_t;

static weft_status_t post_at_call(void *user)
{
    poster_t *poster = user;
    if (++poster->calls == poster->post_at) {
        wefti_signal_post(poster->signal, 1);
    }
    return WEFT_OK;
}

static void test_wait_spins_without_system_calls(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    settings.spin_ns = 10000000000ull;
    wefti_endpoint_t *endpoint = open_alone(&settings);
    wefti_signal_t signal = {0};
    poster_t poster = {&signal, 0, 5};
    assert_true(endpoint->may_spin);
    atomic_store(&yields, 0);
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 1, "x", post_at_call, &poster), WEFT_OK);
    assert_int_equal(poster.calls, 5);
    assert_int_equal(atomic_load(&yields), 0);
    /* Already there: nothing is called at all. */
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 1, "x", post_at_call, &poster), WEFT_OK);
    assert_int_equal(poster.calls, 5);
    wefti_endpoint_close(endpoint);
}

/* As soon as a yield takes long. */
static void test_wait_sleeps_next_to_other_programs(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint = open_alone(&settings);
    wefti_signal_t signal = {0};
    poster_t poster = {&signal, 0, 3};
    endpoint->may_spin = false;
    wefti_wait_away_ns = 0;
    atomic_store(&yields, 0);
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 1, "x", post_at_call, &poster), WEFT_OK);
    assert_int_equal(atomic_load(&yields), 1);
    wefti_wait_away_ns = UINT64_MAX;
    wefti_endpoint_close(endpoint);
}

static weft_status_t work_at_call(void *user)
{
    nanosleep(&(struct timespec){.tv_nsec = 15000000}, NULL);
    return post_at_call(user);
}

/* What the caller does in between, such as kernels of inline streams, is no other program. */
static void test_wait_yields_next_to_own_work(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint = open_alone(&settings);
    wefti_signal_t signal = {0};
    poster_t poster = {&signal, 0, 3};
    endpoint->may_spin = false;
    wefti_wait_away_ns = 10000000;
    atomic_store(&yields_are_free, true);
    atomic_store(&yields, 0);
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 1, "x", work_at_call, &poster), WEFT_OK);
    assert_true(atomic_load(&yields) >= 3);
    atomic_store(&yields_are_free, false);
    wefti_wait_away_ns = UINT64_MAX;
    wefti_endpoint_close(endpoint);
}

static void test_wait_yields_when_cores_are_shared(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    settings.spin_ns = UINT64_MAX / 2; /* would last for ever */
    wefti_endpoint_t *endpoint = open_alone(&settings);
    wefti_signal_t signal = {0};
    poster_t poster = {&signal, 0, 3};
    endpoint->may_spin = false;
    atomic_store(&yields, 0);
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 1, "x", post_at_call, &poster), WEFT_OK);
    assert_true(atomic_load(&yields) >= 2 && atomic_load(&yields) <= 64);
    wefti_endpoint_close(endpoint);
}

static void test_wait_counters_wrap(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    settings.timeout_ns = 1000000;
    wefti_endpoint_t *endpoint = open_alone(&settings);
    wefti_signal_t signal = {0};
    wefti_signal_post(&signal, 3);
    assert_int_equal(wefti_wait_signal(endpoint, &signal, UINT32_MAX - 5, "x", NULL, NULL),
                     WEFT_OK);
    wefti_signal_post(&signal, UINT32_MAX - 5);
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 3, "the third", NULL, NULL),
                     WEFT_ERR_TIMEOUT);
    assert_non_null(strstr(weft_last_error(), "rank 0 waited 0.001 s for the third"));
    assert_int_equal(atomic_load(&signal.waiters), 0);
    wefti_endpoint_close(endpoint);
}

/* Knows from a moment on why the wait is in vain, as one whose peers left a reason and went. */
static weft_status_t fail_from(void *user)
{
    const uint64_t *moment = user;
    return wefti_now_ns() < *moment ? WEFT_OK : wefti_error(WEFT_ERR_MISMATCH, "the reason");
}

static void test_wait_asks_the_caller_before_it_gives_up(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    settings.timeout_ns = 20000000;
    wefti_endpoint_t *endpoint = open_alone(&settings);
    wefti_signal_t signal = {0};
    uint64_t moment = wefti_now_ns() + settings.timeout_ns;
    assert_int_equal(wefti_wait_signal(endpoint, &signal, 1, "x", fail_from, &moment),
                     WEFT_ERR_MISMATCH);
    assert_string_equal(weft_last_error(), "the reason");
    wefti_endpoint_close(endpoint);
}

#define ROUNDS 5000u

/* Two ranks wake each other from sleep all the time: a lost wake-up would cost a whole slice. */
static int wake_each_other(wefti_endpoint_t *endpoint, void *user)
{
    _Atomic uint32_t *slow = user;
    size_t offset;
    endpoint->may_spin = false;
    EXPECT(wefti_region_alloc(endpoint, sizeof(wefti_signal_t), &offset) == WEFT_OK);
    wefti_signal_t *own = (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
    wefti_signal_t *other =
        (wefti_signal_t *)(void *)(endpoint->region_of[1 - endpoint->rank] + offset);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint64_t start = wefti_now_ns();
        if (endpoint->rank == round % 2) {
            wefti_signal_post(other, round);
        } else {
            EXPECT(wefti_wait_signal(endpoint, own, round, "the other", NULL, NULL) == WEFT_OK);
        }
        if (wefti_now_ns() - start > 40000000ull) {
            atomic_fetch_add(slow, 1);
        }
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* Rank 1 has given up waiting for rank 2 when rank 0 asks who keeps rank 1. */
static int ask_for_causes(wefti_endpoint_t *endpoint, void *user)
{
    const uint32_t one = 1, two = 2;
    char text[64];
    (void)user;
    if (endpoint->rank == 1) {
        wefti_waits_gave_up(endpoint, &two, 1);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 0) {
        EXPECT(wefti_waits_causes(endpoint, &one, 1, text, sizeof text) == 2);
        EXPECT(strcmp(text, " 2") == 0);
        /* earlier than this rank can have begun to wait: that was another wait */
        atomic_store(&endpoint->control[1]->waits.vain_ns,
                     wefti_now_ns() - endpoint->settings->timeout_ns - 1);
        EXPECT(wefti_waits_causes(endpoint, &one, 1, text, sizeof text) == 1);
    }
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 1;
}

static void test_wait_names_no_rank_that_gave_up(void **state)
{
    (void)state;
    const world_t world = {.size = 3, .fn = ask_for_causes, .settings = test_settings()};
    run_threads(&world);
}

static void test_wait_loses_no_wakeup(void **state)
{
    (void)state;
    _Atomic uint32_t slow = 0;
    atomic_store(&yields_are_free, true);
    run_threads(
        &(world_t){.size = 2, .fn = wake_each_other, .user = &slow, .settings = test_settings()});
    atomic_store(&yields_are_free, false);
    /* Some may be slow because the machine is busy. */
    assert_true(atomic_load(&slow) < ROUNDS / 100);
}

int main(void)
{
    wefti_wait_away_ns = UINT64_MAX; /* however busy the machine is */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wait_spins_without_system_calls),
        cmocka_unit_test(test_wait_yields_when_cores_are_shared),
        cmocka_unit_test(test_wait_counters_wrap),
        cmocka_unit_test(test_wait_asks_the_caller_before_it_gives_up),
        cmocka_unit_test(test_wait_names_no_rank_that_gave_up),
        cmocka_unit_test(test_wait_loses_no_wakeup),
        cmocka_unit_test(test_wait_yields_next_to_own_work),
        cmocka_unit_test(test_wait_sleeps_next_to_other_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
