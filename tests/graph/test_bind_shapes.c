/* SPDX-License-Identifier: Apache-2.0 */
/* --batch and --shape: what is bound, what is refused, and which place the message names. */
#include "tests/graph/support_graph.h"

#include <string.h>

/* x [dim, 6] and label [label_dim]; Reshape to [target, -1], Gemm to 3 classes, loss. 0 in target
 * copies. */
typedef struct model {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    uint32_t x, label, y;
} model_t;

static model_t make_model(int64_t x_dim, const char *x_name, int64_t label_dim,
                          const char *label_name, int64_t target)
{
    model_t m;
    m.graph = test_graph(&m.registry);
    m.graph->defer_inference = true;
    m.x = test_input(m.graph, "x", DIMS(x_dim, 6));
    m.graph->values[m.x].dim_names[0] = x_name;
    uint32_t to = test_ints(m.graph, "to", 2, (const int64_t[]){target, -1});
    m.y = test_node(m.graph, "Reshape", "reshape", INPUTS(m.x, to), NULL, 0);
    m.y = test_node(m.graph, "MatMul", "fc", INPUTS(m.y, test_param(m.graph, "w", DIMS(6, 3))),
                    NULL, 0);
    uint32_t loss = test_loss(m.graph, m.y, DIMS(label_dim));
    m.label = m.graph->label;
    m.graph->values[m.label].dim_names[0] = label_name;
    m.graph->defer_inference = false;
    assert_int_equal(m.graph->values[loss].type.dtype, WEFT_DTYPE_NONE);
    return m;
}

static void batch_table(void **state)
{
    (void)state;
    static const struct {
        int64_t x_dim;
        const char *x_name;
        int64_t label_dim;
        const char *label_name;
        int64_t target, batch;
        const char *error; /* NULL: works */
    } cases[] = {
        {-1, "N", -1, "N", 0, 64, NULL},  /* symbolic */
        {-1, "N", -1, NULL, 0, 64, NULL}, /* an unnamed dimension is the batch too */
        {-1, NULL, -1, NULL, 0, 64, NULL},
        {4, NULL, 4, NULL, 0, 64, NULL}, /* a fixed one is replaced on all that share it */
        {4, NULL, 4, NULL, 0, 0, NULL},  /* and kept without --batch */
        {4, NULL, 4, NULL, 4, 4, NULL},  /* what the constant says is fine */
        {4, NULL, 4, NULL, 4, 64,
         "'reshape' (Reshape): target shape holds the exported batch size: 4, batch is 64"},
        {4, NULL, 5, NULL, 0, 64, "'loss' (SoftmaxCrossEntropyLoss)"},
        {-1, "N", 4, NULL, 0, 64, "'loss' (SoftmaxCrossEntropyLoss)"},
        {-1, "N", -1, "N", 5, 64, "'reshape' (Reshape)"}, /* 384 is no multiple of 5 */
        {-1, "N", -1, "N", 4, 64, "'fc' (MatMul)"}, /* 4 x 96: the first node that cannot be */
        {-1, "N", -1, "M", 0, 64,
         "batch: ambiguous: the first dimensions of inputs 'x' and 'label' are 'N' and 'M'"},
        {-1, "N", -1, "N", 0, 0,
         "shapes: no size for dimension 0 ('N') of input 'x'; set the shape of the input, or "
         "batch"},
        {4, NULL, 4, NULL, 0, -1, "batch: must not be negative: -1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        model_t m = make_model(cases[i].x_dim, cases[i].x_name, cases[i].label_dim,
                               cases[i].label_name, cases[i].target);
        weft_status_t status = wefti_graph_bind_shapes(m.graph, cases[i].batch, NULL, 0);
        if (cases[i].error) {
            test_expect_error(status, WEFT_ERR_INVALID_ARGUMENT, cases[i].error);
        } else {
            CHECK(status);
            CHECK(wefti_graph_verify(m.graph));
            int64_t batch = cases[i].batch ? cases[i].batch : 4;
            assert_int_equal(m.graph->batch, batch);
            assert_int_equal(m.graph->values[m.x].type.dims[0], batch);
            assert_int_equal(m.graph->values[m.label].type.dims[0], batch);
            assert_int_equal(m.graph->values[m.y].type.dims[0], batch);
            assert_int_equal(m.graph->values[m.y].type.dims[1], 3);
        }
        test_graph_free(m.graph, m.registry);
    }
}

static void graphs_with_gradients_need_a_symbol(void **state)
{
    (void)state;
    for (int symbolic = 0; symbolic < 2; symbolic++) {
        model_t m = make_model(symbolic ? -1 : 4, "N", symbolic ? -1 : 4, "N", 0);
        uint32_t w = wefti_graph_find_value(m.graph, "w");
        uint32_t grad = test_node(m.graph, "Identity", "w_grad", INPUTS(w), NULL, 0);
        m.graph->values[grad].grad_of = w;
        weft_status_t status = wefti_graph_bind_shapes(m.graph, 64, NULL, 0);
        if (symbolic) {
            CHECK(status);
        } else {
            test_expect_error(status, WEFT_ERR_INVALID_ARGUMENT,
                              "is fixed to 4 in a graph with gradients");
        }
        test_graph_free(m.graph, m.registry);
        m = make_model(4, "N", 4, "N", 0);
        w = wefti_graph_find_value(m.graph, "w");
        grad = test_node(m.graph, "Identity", "w_grad", INPUTS(w), NULL, 0);
        m.graph->values[grad].grad_of = w;
        CHECK(wefti_graph_bind_shapes(m.graph, 4, NULL, 0)); /* nothing changes */
        test_graph_free(m.graph, m.registry);
    }
}

static void overrides(void **state)
{
    (void)state;
    model_t m = make_model(-1, "N", -1, "N", 0);
    wefti_shape_override_t shape = {"x", 2, {7, 6}};
    CHECK(wefti_graph_bind_shapes(m.graph, 0, &shape, 1)); /* the label's N follows */
    assert_int_equal(m.graph->values[m.label].type.dims[0], 7);
    assert_int_equal(m.graph->batch, 7);
    test_graph_free(m.graph, m.registry);

    m = make_model(-1, "N", -1, "N", 0);
    shape.name = "y";
    test_expect_error(wefti_graph_bind_shapes(m.graph, 0, &shape, 1), WEFT_ERR_INVALID_ARGUMENT,
                      "no input 'y'; its inputs: 'x', 'label'");
    shape = (wefti_shape_override_t){"x", 1, {7}};
    test_expect_error(wefti_graph_bind_shapes(m.graph, 0, &shape, 1), WEFT_ERR_INVALID_ARGUMENT,
                      "input 'x': 1 dimensions, the model has 2");
    shape = (wefti_shape_override_t){"x", 2, {0, 6}};
    test_expect_error(wefti_graph_bind_shapes(m.graph, 0, &shape, 1), WEFT_ERR_INVALID_ARGUMENT,
                      "dimension 0 must be at least 1: 0");
    shape = (wefti_shape_override_t){"x", 2, {7, 6}};
    test_expect_error(wefti_graph_bind_shapes(m.graph, 8, &shape, 1), WEFT_ERR_INVALID_ARGUMENT,
                      "'N': conflicting sizes 7 and 8");
    test_graph_free(m.graph, m.registry);
}

/* An input in front of the data does not hide the batch; shapes that leave no room for it are
 * refused. */
static void batch_is_found(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t mask = test_input(graph, "mask", DIMS(1, 6)), x = test_input(graph, "x", DIMS(4, 6));
    test_loss(graph, test_node(graph, "Mul", "y", INPUTS(x, mask), NULL, 0), DIMS(4));
    CHECK(wefti_graph_bind_shapes(graph, 9, NULL, 0));
    assert_int_equal(graph->values[mask].type.dims[0], 1);
    assert_int_equal(graph->values[x].type.dims[0], 9);
    assert_int_equal(graph->values[graph->label].type.dims[0], 9);
    wefti_shape_override_t shapes[] = {{"mask", 2, {1, 6}}, {"x", 2, {7, 6}}, {"label", 1, {7}}};
    test_expect_error(wefti_graph_bind_shapes(graph, 8, shapes, 3), WEFT_ERR_INVALID_ARGUMENT,
                      "batch: no input with a first dimension of 8");
    CHECK(wefti_graph_bind_shapes(graph, 7, shapes, 3));
    test_graph_free(graph, registry);
}

static void too_large_is_refused(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    int64_t half = INT64_C(1) << 31;
    uint32_t a = test_input(graph, "a", DIMS(half, 1)), b = test_input(graph, "b", DIMS(1, half));
    test_node(graph, "Mul", "m", INPUTS(a, b), NULL, 0);
    test_expect_error(wefti_graph_bind_shapes(graph, 0, NULL, 0), WEFT_ERR_UNSUPPORTED,
                      "'m' (Mul): output 'm' is too large");
    test_graph_free(graph, registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_table),
        cmocka_unit_test(graphs_with_gradients_need_a_symbol),
        cmocka_unit_test(overrides),
        cmocka_unit_test(batch_is_found),
        cmocka_unit_test(too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
