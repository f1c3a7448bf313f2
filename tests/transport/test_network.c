/* SPDX-License-Identifier: Apache-2.0 */
/* The network between simulated hosts itself; what all transports do is in test_conformance.c. */
#include "support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define CONTROL_BYTES 4096u

static wefti_signal_t *own_signal(wefti_endpoint_t *endpoint, size_t offset)
{
    return (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
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

static void test_abort_passes_the_network(void **state)
{
    (void)state;
    static const uint32_t apart[] = {0, 1, 2, 3, 4};
    wefti_hub_links_t links = {.host_of = apart, .seed = 9, .max_delay_ns = 1000000};
    run_threads(&(world_t){
        .size = 5, .fn = abort_passes_the_network, .settings = test_settings(), .links = &links});
}

/* Nothing is put where there is no region yet. */
static int refuses_without_region(wefti_endpoint_t *endpoint, void *user)
{
    uint8_t byte = 0;
    (void)user;
    EXPECT(wefti_put(endpoint, 0, 0, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    return 0;
}

static void test_put_needs_a_region(void **state)
{
    (void)state;
    run_threads(&(world_t){.size = 1, .fn = refuses_without_region, .settings = test_settings()});
}

/* The network does reorder: otherwise tests over it would show nothing. */
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
    world_t world = {.size = 2,
                     .fn = watch_order,
                     .user = &overtaken,
                     .settings = test_settings(),
                     .links = &links};
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
        cmocka_unit_test(test_put_needs_a_region),
        cmocka_unit_test(test_abort_passes_the_network),
        cmocka_unit_test(test_network_reorders_lanes),
        cmocka_unit_test(test_hub_hides_before_ranks_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
