/* SPDX-License-Identifier: Apache-2.0 */
/* What worlds do beside what every transport must: test_conformance.c. */
#include "support.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/error.h"

/* A peer may write anything into a control block: it ends the world, and nothing else. */
static int garbled_abort_record(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    if (endpoint->rank == 0) {
        wefti_control_t *control = endpoint->control[1];
        memset(control->abort.text, 'x', sizeof control->abort.text);
        control->abort.status = 12345;
        atomic_store(&control->abort.state, 2);
        control = endpoint->control[2];
        atomic_store(&control->abort.state, 1); /* and never finished */
        return 0;
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_ABORTED);
    EXPECT(strlen(weft_last_error()) < WEFTI_ERROR_TEXT_BYTES);
    EXPECT((weft_last_error()[0] == 'x') == (endpoint->rank == 1));
    return 0;
}

static void test_world_garbled_abort_record(void **state)
{
    (void)state;
    world_t world = {.size = 3, .fn = garbled_abort_record, .settings = test_settings()};
    run_processes(&world);
}

static void test_world_single_needs_nothing(void **state)
{
    (void)state;
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint;
    assert_int_equal(open_rank(0, 1, NULL, NULL, &settings, &endpoint), WEFT_OK);
    assert_string_equal(endpoint->ops->name, "null");
    wefti_endpoint_close(endpoint);
    assert_int_equal(open_rank(2, 2, "unix:@x", NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(open_rank(0, 0, "unix:@x", NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(open_rank(0, 2, NULL, NULL, &settings, &endpoint), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(endpoint);
}

/* Pages of shared memory that this process has mapped. */
static long shared_pages(void)
{
    long total = 0, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    int read = file != NULL ? fscanf(file, "%ld %ld %ld", &total, &resident, &shared) : 0;
    if (file != NULL) {
        fclose(file);
    }
    return read == 3 ? shared : -1;
}

#define CROWD_BYTES ((size_t)16 << 20)

/* The work of mapping the memory of all ranks on each is quadratic. */
static int maps_on_demand(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    long before = shared_pages();
    EXPECT(!endpoint->may_spin);
    EXPECT(wefti_region_alloc(endpoint, CROWD_BYTES, &offset) == WEFT_OK);
    long mapped = shared_pages() - before;
    EXPECT(before >= 0 && mapped < (long)(2 * CROWD_BYTES / 4096));
    uint32_t next = (endpoint->rank + 1) % endpoint->world_size;
    endpoint->region_of[next][offset + CROWD_BYTES - 1] = 1; /* it is there when it is used */
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_world_shared_cores_map_on_demand(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++) {
        if (CPU_ISSET(cpu, &before)) {
            CPU_SET(cpu, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    run_processes(&(world_t){.size = 6, .fn = maps_on_demand, .settings = test_settings()});
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_shared_cores_map_on_demand),
        cmocka_unit_test(test_world_garbled_abort_record),
        cmocka_unit_test(test_world_single_needs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
