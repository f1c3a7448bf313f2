/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "fusion/fusion.h"
#include "tests/support/support.h"

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
} fixture_t;

static int setup(void **state)
{
    static fixture_t fixture;
    assert_int_equal(weft_registry_create(NULL, &fixture.registry), WEFT_OK);
    assert_int_equal(wefti_graph_create(NULL, fixture.registry, 0, &fixture.graph), WEFT_OK);
    fixture.graph->opset = 17;
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *fixture = *state;
    wefti_graph_destroy(fixture->graph);
    weft_registry_destroy(fixture->registry);
    return 0;
}

static uint32_t add_input(wefti_graph_t *graph, const char *name, int64_t channels)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 4, .dims = {8, channels, 16, 16}};
    uint32_t value;
    assert_int_equal(wefti_graph_add_value(graph, name, WEFTI_VALUE_INPUT, &type, &value), WEFT_OK);
    return value;
}

/* An operator of one output; windows are 2 x 2. */
static uint32_t add_op(wefti_graph_t *graph, const char *op, const uint32_t *inputs, uint32_t count)
{
    static const int64_t two[] = {2, 2};
    const weft_attr_t window = {
        .name = "kernel_shape", .type = WEFT_ATTR_INTS, .count = 2, .ints = two};
    uint32_t node;
    wefti_node_params_t params = {.domain = "",
                                  .op = op,
                                  .version = 17,
                                  .inputs = inputs,
                                  .input_count = count,
                                  .output_count = 1,
                                  .attrs = &window,
                                  .attr_count = strstr(op, "Pool") != NULL};
    if (wefti_graph_add_node(graph, &params, &node) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return graph->nodes[node].outputs[0];
}

static weft_layout_t layout_of(const wefti_graph_t *graph, uint32_t value)
{
    return graph->values[value].type.layout;
}

static void run_pass(wefti_graph_t *graph)
{
    assert_int_equal(wefti_pass_layout(graph), WEFT_OK);
    if (wefti_graph_verify(graph) < 0) {
        fail_msg("%s", weft_last_error());
    }
}

static void test_layout_takes_pools_of_many_channels(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = add_input(graph, "x", 32), nodes = graph->order_count;
    uint32_t a = add_op(graph, "MaxPool", &x, 1), b = add_op(graph, "Relu", &a, 1);
    uint32_t c = add_op(graph, "AveragePool", &b, 1), d = add_op(graph, "Flatten", &c, 1);
    run_pass(graph);
    assert_int_equal(layout_of(graph, a), WEFT_LAYOUT_CHANNELS_LAST);
    assert_int_equal(layout_of(graph, b), WEFT_LAYOUT_CHANNELS_LAST);
    assert_int_equal(layout_of(graph, c), WEFT_LAYOUT_CHANNELS_LAST);
    assert_int_equal(layout_of(graph, d), WEFT_LAYOUT_PLAIN);
    /* The input itself stays as the caller knows it; a Reshape runs first and turns it. */
    assert_int_equal(layout_of(graph, x), WEFT_LAYOUT_PLAIN);
    assert_int_equal(graph->order_count, nodes + 5);
    assert_string_equal(graph->nodes[graph->order[0]].def->name, "Reshape");
    assert_int_equal(layout_of(graph, graph->nodes[graph->order[0]].outputs[0]),
                     WEFT_LAYOUT_CHANNELS_LAST);
}

static void test_layout_leaves_what_would_not_gain(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = add_input(graph, "x", 2), y = add_input(graph, "y", 64);
    uint32_t few = add_op(graph, "MaxPool", &x, 1), no_window = add_op(graph, "Relu", &y, 1);
    uint32_t count = graph->order_count;
    run_pass(graph);
    assert_int_equal(layout_of(graph, few), WEFT_LAYOUT_PLAIN);
    assert_int_equal(layout_of(graph, no_window), WEFT_LAYOUT_PLAIN);
    assert_int_equal(graph->order_count, count);
}

/* Windows that do not overlap are quick in plain layout. */
static void test_layout_leaves_pairs_plain(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    static const int64_t two[] = {2, 2}, none[] = {0, 0, 0, 0};
    const weft_attr_t attrs[] = {
        {.name = "kernel_shape", .type = WEFT_ATTR_INTS, .count = 2, .ints = two},
        {.name = "strides", .type = WEFT_ATTR_INTS, .count = 2, .ints = two},
        {.name = "pads", .type = WEFT_ATTR_INTS, .count = 4, .ints = none}};
    uint32_t x = add_input(graph, "x", 32), node;
    wefti_node_params_t params = {.domain = "",
                                  .op = "MaxPool",
                                  .version = 17,
                                  .inputs = &x,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .attrs = attrs,
                                  .attr_count = 3};
    assert_int_equal(wefti_graph_add_node(graph, &params, &node), WEFT_OK);
    run_pass(graph);
    assert_int_equal(layout_of(graph, graph->nodes[node].outputs[0]), WEFT_LAYOUT_PLAIN);
}

static void test_layout_respects_who_needs_plain(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = add_input(graph, "x", 32), y = add_input(graph, "y", 32),
             z = add_input(graph, "z", 32);
    weft_tensor_desc_t one = {.dtype = WEFT_DTYPE_F32, .rank = 3, .dims = {32, 1, 1}};
    uint32_t pair[2], a, b, c;
    a = add_op(graph, "MaxPool", &x, 1);
    add_op(graph, "Transpose", &a, 1); /* knows plain only */
    pair[0] = b = add_op(graph, "MaxPool", &y, 1);
    assert_int_equal(wefti_graph_add_value(graph, "bias", WEFTI_VALUE_PARAM, &one, &pair[1]),
                     WEFT_OK);
    add_op(graph, "Add", pair, 2); /* broadcasts */
    c = add_op(graph, "MaxPool", &z, 1);
    assert_int_equal(wefti_graph_add_output(graph, c), WEFT_OK); /* read by the caller */
    graph->values[c].flags |= WEFTI_VALUE_OUTPUT;
    run_pass(graph);
    assert_int_equal(layout_of(graph, a), WEFT_LAYOUT_PLAIN);
    assert_int_equal(layout_of(graph, b), WEFT_LAYOUT_PLAIN);
    assert_int_equal(layout_of(graph, c), WEFT_LAYOUT_PLAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layout_takes_pools_of_many_channels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layout_leaves_what_would_not_gain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layout_leaves_pairs_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layout_respects_who_needs_plain, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
