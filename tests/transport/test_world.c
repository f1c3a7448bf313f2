/* SPDX-License-Identifier: Apache-2.0 */
/* What worlds do beside what every transport must: test_conformance.c. */
#include "support.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_garbled_abort_record),
        cmocka_unit_test(test_world_single_needs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
