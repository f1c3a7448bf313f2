/* SPDX-License-Identifier: Apache-2.0 */
/* Constant folding: each rule with numbers worked out by hand, what exporters write, and what must
 * not fold. */
#include "tests/graph/support_graph.h"

#include <string.h>

static void expect_ints(const wefti_graph_t *graph, uint32_t value, uint32_t count,
                        const int64_t *expected)
{
    const wefti_value_t *at = &graph->values[value];
    assert_int_equal(at->kind, WEFTI_VALUE_CONST);
    assert_int_equal(at->type.dtype, WEFT_DTYPE_I64);
    assert_int_equal(weft_tensor_elem_count(&at->type), count);
    for (uint32_t i = 0; i < count; i++) {
        int64_t element;
        memcpy(&element, (const char *)at->type.data + i * sizeof(element), sizeof(element));
        assert_int_equal(element, expected[i]);
    }
}

#define INTS(...) ((const int64_t[]){__VA_ARGS__})

/* x.view(x.size(0), -1) as torch writes it: Shape, Gather, Unsqueeze, Concat, Reshape. */
static void exporters_view(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    graph->defer_inference = true;
    uint32_t x = test_input(graph, "x", DIMS(-1, 3, 4));
    uint32_t zero = test_value(graph, "zero", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, NULL, INTS(0));
    uint32_t axis = test_ints(graph, "axis", 1, INTS(0)),
             rest = test_ints(graph, "rest", 1, INTS(-1));
    uint32_t shape = test_node(graph, "Shape", "shape", INPUTS(x), NULL, 0);
    uint32_t size = test_node(graph, "Gather", "size", INPUTS(shape, zero), NULL, 0);
    uint32_t list = test_node(graph, "Unsqueeze", "list", INPUTS(size, axis), NULL, 0);
    weft_attr_t attrs[] = {ATTR_INT("axis", 0)};
    uint32_t target = test_node(graph, "Concat", "target", INPUTS(list, rest), attrs, 1);
    uint32_t y = test_node(graph, "Reshape", "y", INPUTS(x, target), NULL, 0);
    CHECK(wefti_graph_bind_shapes(graph, 32, NULL, 0));
    CHECK(wefti_graph_verify(graph));
    expect_ints(graph, shape, 3, INTS(32, 3, 4));
    expect_ints(graph, target, 2, INTS(32, -1));
    assert_int_equal(graph->order_count, 1);
    assert_int_equal(graph->values[y].type.dims[0], 32);
    assert_int_equal(graph->values[y].type.dims[1], 12);
    test_graph_free(graph, registry);
}

static void movement(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t m = test_value(graph, "m", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(2, 3),
                            INTS(1, 2, 3, 4, 5, 6));
    uint32_t pick = test_ints(graph, "pick", 2, INTS(2, -3));
    weft_attr_t axis1[] = {ATTR_INT("axis", 1)};
    uint32_t columns = test_node(graph, "Gather", "columns", INPUTS(m, pick), axis1, 1);
    uint32_t wide = test_node(graph, "Concat", "wide", INPUTS(m, columns), axis1, 1);
    uint32_t starts = test_ints(graph, "starts", 2, INTS(-1, 3)),
             ends = test_ints(graph, "ends", 2, INTS(-100, 0));
    uint32_t axes = test_ints(graph, "axes", 2, INTS(0, 1)),
             steps = test_ints(graph, "steps", 2, INTS(-1, -2));
    uint32_t back =
        test_node(graph, "Slice", "back", INPUTS(wide, starts, ends, axes, steps), NULL, 0);
    uint32_t flat = test_node(graph, "Flatten", "flat", INPUTS(back), NULL, 0);
    uint32_t same = test_node(graph, "Identity", "same", INPUTS(flat), NULL, 0);
    CHECK(wefti_graph_fold_constants(graph));
    CHECK(wefti_graph_verify(graph));
    expect_ints(graph, columns, 4, INTS(3, 1, 6, 4));
    expect_ints(graph, wide, 10, INTS(1, 2, 3, 3, 1, 4, 5, 6, 6, 4));
    expect_ints(graph, back, 4, INTS(6, 5, 3, 2)); /* rows 1, 0; columns 3, 1 */
    expect_ints(graph, same, 4, INTS(6, 5, 3, 2));
    assert_int_equal(graph->order_count, 0);
    test_graph_free(graph, registry);
}

static void arithmetic_and_casts(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t a =
        test_value(graph, "a", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(2, 1), INTS(10, -7));
    uint32_t b = test_ints(graph, "b", 3, INTS(2, 3, -4));
    uint32_t sum = test_node(graph, "Add", "sum", INPUTS(a, b), NULL, 0);
    uint32_t difference = test_node(graph, "Sub", "difference", INPUTS(a, b), NULL, 0);
    uint32_t product = test_node(graph, "Mul", "product", INPUTS(a, b), NULL, 0);
    weft_attr_t to_float[] = {ATTR_INT("to", 1)}, to_int[] = {ATTR_INT("to", 7)};
    uint32_t f = test_node(graph, "Cast", "f", INPUTS(b), to_float, 1);
    uint32_t half =
        test_value(graph, "half", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, NULL, (const float[]){0.5f});
    uint32_t scaled = test_node(graph, "Mul", "scaled", INPUTS(f, half), NULL, 0);
    uint32_t whole = test_node(graph, "Cast", "whole", INPUTS(scaled), to_int, 1);
    CHECK(wefti_graph_fold_constants(graph));
    expect_ints(graph, sum, 6, INTS(12, 13, 6, -5, -4, -11));
    expect_ints(graph, difference, 6, INTS(8, 7, 14, -9, -10, -3));
    expect_ints(graph, product, 6, INTS(20, 30, -40, -14, -21, 28));
    expect_ints(graph, whole, 3, INTS(1, 1, -2));
    test_graph_free(graph, registry);
}

static void what_does_not_fold(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t p =
        test_value(graph, "p", WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, DIMS(1), (const float[]){1.0f});
    uint32_t trained = test_node(graph, "Identity", "trained", INPUTS(p), NULL, 0);
    uint32_t big = test_ints(graph, "big", 1, INTS(INT64_MAX)),
             one = test_ints(graph, "one", 1, INTS(1));
    uint32_t overflow = test_node(graph, "Add", "overflow", INPUTS(big, one), NULL, 0);
    uint32_t outside = test_node(graph, "Gather", "outside", INPUTS(one, big), NULL, 0);
    int64_t zeros[3000] = {0};
    uint32_t many = test_ints(graph, "many", 3000, zeros);
    weft_attr_t axis[] = {ATTR_INT("axis", 0)};
    uint32_t more = test_node(graph, "Concat", "more", INPUTS(many, many), axis, 1);
    float huge = 3e30f;
    uint32_t h = test_value(graph, "h", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(1), &huge);
    weft_attr_t to_int[] = {ATTR_INT("to", 7)};
    uint32_t cast = test_node(graph, "Cast", "cast", INPUTS(h), to_int, 1);
    CHECK(wefti_graph_fold_constants(graph));
    const uint32_t kept[] = {trained, overflow, outside, more, cast};
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        assert_int_equal(graph->values[kept[i]].kind, WEFTI_VALUE_NODE);
    }
    assert_int_equal(graph->order_count, 5);
    test_graph_free(graph, registry);
}

/* Dimensions whose product overflows although there are no elements. */
static void hostile_dimensions(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64,
                               .rank = 4,
                               .dims = {INT64_MAX, INT64_MAX, 0, 2},
                               .data = "01234567"};
    uint32_t x;
    CHECK(wefti_graph_add_value(graph, "x", WEFTI_VALUE_CONST, &type, &x));
    uint32_t none = test_value(graph, "none", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(1), INTS(0));
    weft_attr_t axis[] = {ATTR_INT("axis", 2)};
    test_node(graph, "Gather", "g", INPUTS(x, none), axis, 1);
    test_node(graph, "Shape", "s", INPUTS(x), NULL, 0);
    test_node(graph, "Identity", "i", INPUTS(x), NULL, 0);
    CHECK(wefti_graph_fold_constants(graph));
    test_graph_free(graph, registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exporters_view),       cmocka_unit_test(movement),
        cmocka_unit_test(arithmetic_and_casts), cmocka_unit_test(what_does_not_fold),
        cmocka_unit_test(hostile_dimensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
