/* SPDX-License-Identifier: Apache-2.0 */
/* An algorithm from outside, with two lanes, through the public interface; and what it is thought
 * to cost. */
#include <string.h>

#include <weft/weft.h>

#include "ops/cost/cost.h"
#include "tests/support/support.h"

/* Mesh all-gather: the main lane takes peers at even distances, the side lane those at odd ones. */
static const char *eligible(const weft_algo_params_t *params)
{
    return params->group_size >= 2 ? NULL : "it wants company";
}

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->lanes = 2;
    out->phases = 2;
}

static void take(const weft_algo_params_t *params, weft_schedule_builder_t *b, uint32_t lane,
                 uint32_t distance)
{
    uint32_t r = params->rank, peer = (r + distance) % params->group_size;
    weft_place_t to = {r, 1, WEFT_ALGO_BUFFER_RECV, peer, 1},
                 from = {peer, 1, WEFT_ALGO_BUFFER_SEND, peer, 1};
    weft_schedule_wait(b, lane, peer, 1, 0, 1, 0);
    weft_schedule_copy(b, lane, to, from, (weft_blocks_t){peer, 1, 1});
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    weft_schedule_post(b, 0, 1);
    for (uint32_t distance = params->in_place ? 1 : 0; distance < n; distance++) {
        take(params, b, distance % 2, distance);
    }
    weft_schedule_post(b, 0, 2);
    weft_schedule_post(b, 1, 2);
    weft_schedule_wait(b, 0, 0, n, 0, 2, 0);
    weft_schedule_wait(b, 0, 0, n, 1, 2, 0);
}

/* The same without waiting for the side lanes of the others. */
static void build_hasty(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    weft_schedule_post(b, 0, 1);
    for (uint32_t distance = params->in_place ? 1 : 0; distance < n; distance++) {
        take(params, b, distance % 2, distance);
    }
    weft_schedule_post(b, 0, 2);
    weft_schedule_wait(b, 0, 0, n, 0, 2, 0);
}

static weft_algorithm_t two_lanes(void)
{
    return (weft_algorithm_t){WEFT_ALGO_ABI_VERSION,
                              WEFT_COLLECTIVE_ALL_GATHER,
                              "two-lanes",
                              "peers taken by two lanes",
                              eligible,
                              resources,
                              build};
}

static void test_custom_algorithm_is_proved(void **state)
{
    (void)state;
    weft_algorithm_t algorithm = two_lanes();
    for (uint32_t n = 2; n <= 9; n++) {
        for (uint32_t in_place = 0; in_place < 2; in_place++) {
            weft_algo_params_t params = {.struct_size = sizeof params,
                                         .op = WEFT_COLLECTIVE_ALL_GATHER,
                                         .group_size = n,
                                         .in_place = in_place};
            if (weft_algorithm_verify(&algorithm, &params) < 0) {
                fail_msg("%s", weft_last_error());
            }
        }
    }
}

static void test_custom_algorithm_that_is_wrong_is_told_why(void **state)
{
    (void)state;
    weft_algorithm_t algorithm = two_lanes();
    weft_algo_params_t params = {
        .struct_size = sizeof params, .op = WEFT_COLLECTIVE_ALL_GATHER, .group_size = 4};
    algorithm.build = build_hasty;
    assert_int_equal(weft_algorithm_verify(&algorithm, &params), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "AllGather two-lanes, 4 ranks"));
    assert_non_null(strstr(weft_last_error(), "while rank "));
    params.group_size = 1;
    assert_int_equal(weft_algorithm_verify(&algorithm, &params), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "it wants company"));
    params.group_size = UINT32_MAX;
    assert_int_equal(weft_algorithm_verify(&algorithm, &params), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_algorithm_verify(NULL, &params), WEFT_ERR_INVALID_ARGUMENT);
}

static void test_registry_finds_added_and_built_in_algorithms(void **state)
{
    (void)state;
    weft_registry_t *registry;
    weft_algorithm_t algorithm = two_lanes(), broken = two_lanes();
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    assert_null(weft_registry_find_algorithm(registry, WEFT_COLLECTIVE_ALL_GATHER, "two-lanes"));
    assert_int_equal(weft_registry_add_algorithm(registry, &algorithm), WEFT_OK);
    assert_ptr_equal(
        weft_registry_find_algorithm(registry, WEFT_COLLECTIVE_ALL_GATHER, "two-lanes"),
        &algorithm);
    assert_null(weft_registry_find_algorithm(registry, WEFT_COLLECTIVE_ALL_REDUCE, "two-lanes"));
    assert_non_null(weft_registry_find_algorithm(registry, WEFT_COLLECTIVE_ALL_GATHER, "ring"));
    assert_non_null(weft_registry_find_algorithm(NULL, WEFT_COLLECTIVE_ALL_GATHER, "ring"));
    assert_int_equal(weft_registry_add_algorithm(registry, &algorithm), WEFT_ERR_INVALID_ARGUMENT);
    broken.name = "ring"; /* built in */
    assert_int_equal(weft_registry_add_algorithm(registry, &broken), WEFT_ERR_INVALID_ARGUMENT);
    broken.name = "other";
    broken.abi_version++;
    assert_int_equal(weft_registry_add_algorithm(registry, &broken), WEFT_ERR_UNSUPPORTED);
    broken.build = NULL;
    assert_int_equal(weft_registry_add_algorithm(registry, &broken), WEFT_ERR_INVALID_ARGUMENT);
    weft_registry_destroy(registry);
}

/* Lanes of a rank share its processor: two of them are not twice as quick. */
static void test_custom_lanes_share_a_processor(void **state)
{
    (void)state;
    weft_algorithm_t algorithm = two_lanes();
    const weft_algorithm_t *mesh =
        weft_registry_find_algorithm(NULL, WEFT_COLLECTIVE_ALL_GATHER, "mesh");
    weft_algo_params_t params = {
        .struct_size = sizeof params, .op = WEFT_COLLECTIVE_ALL_GATHER, .group_size = 4};
    wefti_counts_t counts = {.elem_count = 1000000, .elem_bytes = 4};
    wefti_costs_t costs;
    double own = 0, one = 0;
    wefti_costs_default(&costs, NULL);
    assert_int_equal(wefti_cost_predict(&costs, &algorithm, &params, &counts, &own), WEFT_OK);
    assert_int_equal(wefti_cost_predict(&costs, mesh, &params, &counts, &one), WEFT_OK);
    assert_true(own > one * 0.95 && own < one * 1.1);
    wefti_costs_deinit(&costs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_custom_lanes_share_a_processor),
        cmocka_unit_test(test_custom_algorithm_is_proved),
        cmocka_unit_test(test_custom_algorithm_that_is_wrong_is_told_why),
        cmocka_unit_test(test_registry_finds_added_and_built_in_algorithms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
