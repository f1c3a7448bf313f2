/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that run as they are: prepared, compared over ranks, with their batch split. */
#include <string.h>

#include "tests/graph/support_graph.h"
#include "fusion/passes/passes.h"

/* x [batch, 4] -> Gemm with w [4, 3] -> Relu "y". */
static wefti_graph_t *small(weft_registry_t **out_registry, int64_t batch, const float *w,
                            const char *last)
{
    static const float zeros[12];
    wefti_graph_t *graph = test_graph(out_registry);
    uint32_t x = test_input(graph, "x", DIMS(batch, 4));
    uint32_t weights = test_value(graph, "w", WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, DIMS(4, 3),
                                  w != NULL ? w : zeros);
    uint32_t a = test_node(graph, "MatMul", "a", INPUTS(x, weights), NULL, 0);
    CHECK(wefti_graph_add_output(graph, test_node(graph, last, "y", INPUTS(a), NULL, 0)));
    return graph;
}

static weft_status_t compare(const wefti_graph_t *a, const wefti_graph_t *b)
{
    const wefti_graph_t *graphs[] = {a, b};
    const char *const labels[] = {"first.onnx", "second.onnx"};
    return wefti_pass_compare_models(graphs, labels, 2);
}

static void test_only_contents_may_differ(void **state)
{
    static const float ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    weft_registry_t *ra, *rb, *rc, *rd;
    wefti_graph_t *a = small(&ra, 2, NULL, "Relu"), *b = small(&rb, 2, ones, "Relu");
    wefti_graph_t *c = small(&rc, 2, NULL, "Tanh"), *d = small(&rd, 3, NULL, "Relu");
    (void)state;
    CHECK(compare(a, b));
    test_expect_error(compare(a, c), WEFT_ERR_INVALID_ARGUMENT,
                      "first.onnx has '%y = Relu(%a) : f32[2,3]");
    assert_non_null(strstr(weft_last_error(), "second.onnx has '%y = Tanh(%a) : f32[2,3]"));
    test_expect_error(compare(a, d), WEFT_ERR_INVALID_ARGUMENT, "f32[3,3]");
    test_value(b, "more", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(1), ones);
    test_expect_error(compare(a, b), WEFT_ERR_INVALID_ARGUMENT, "'4 tensors'");
    b->opset = 16;
    test_expect_error(compare(a, b), WEFT_ERR_INVALID_ARGUMENT, "'opset 16'");
    b->opset = a->opset;
    test_graph_free(a, ra);
    test_graph_free(b, rb);
    test_graph_free(c, rc);
    test_graph_free(d, rd);
}

static void test_other_outputs_are_found(void **state)
{
    weft_registry_t *ra, *rb;
    wefti_graph_t *a = small(&ra, 2, NULL, "Relu"), *b = small(&rb, 2, NULL, "Relu");
    (void)state;
    CHECK(wefti_graph_add_output(b, wefti_graph_find_value(b, "a")));
    test_expect_error(compare(a, b), WEFT_ERR_INVALID_ARGUMENT, "1 outputs");
    b->outputs[0] = b->outputs[1];
    b->output_count = 1;
    test_expect_error(compare(a, b), WEFT_ERR_INVALID_ARGUMENT, "output 0 a");
    test_graph_free(a, ra);
    test_graph_free(b, rb);
}

static void test_outputs_without_a_maker(void **state)
{
    static const float contents[12];
    weft_registry_t *registry;
    wefti_graph_t *graph = small(&registry, 2, NULL, "Relu");
    uint32_t x = wefti_graph_find_value(graph, "x");
    uint32_t unread =
        test_value(graph, "unread", WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, DIMS(12), contents);
    (void)state;
    CHECK(wefti_graph_add_output(graph, x));
    CHECK(wefti_pass_inference_form(graph));
    CHECK(wefti_graph_verify(graph));
    assert_int_equal(graph->output_count, 2);
    const wefti_value_t *output = &graph->values[graph->outputs[1]];
    assert_int_equal(output->kind, WEFTI_VALUE_NODE);
    assert_string_equal(graph->nodes[output->producer].def->name, "Identity");
    assert_int_equal(graph->nodes[output->producer].inputs[0], x);
    assert_int_equal(graph->values[unread].kind, WEFTI_VALUE_CONST); /* stored only if read */
    assert_int_equal(graph->values[wefti_graph_find_value(graph, "w")].kind, WEFTI_VALUE_PARAM);
    test_graph_free(graph, registry);
}

static void test_a_loss_is_forgotten(void **state)
{
    weft_registry_t *registry;
    wefti_graph_t *graph = small(&registry, 2, NULL, "Relu");
    (void)state;
    test_loss(graph, graph->outputs[0], DIMS(2));
    uint32_t loss = graph->loss, label = graph->label;
    assert_true((graph->values[loss].flags & WEFTI_VALUE_LOSS) != 0);
    CHECK(wefti_pass_inference_form(graph));
    CHECK(wefti_graph_verify(graph));
    assert_int_equal(graph->loss, WEFTI_NONE);
    assert_int_equal(graph->values[loss].flags, WEFTI_VALUE_OUTPUT);
    assert_int_equal(graph->values[label].flags, 0);
    test_graph_free(graph, registry);
}

static void test_the_batch_is_split(void **state)
{
    weft_registry_t *rs, *rw;
    wefti_graph_t *share = small(&rs, 2, NULL, "Relu"), *whole = small(&rw, 6, NULL, "Relu");
    (void)state;
    CHECK(wefti_pass_split_batch(share, whole, 3));
    CHECK(wefti_graph_verify(share));
    uint32_t x = wefti_graph_find_value(share, "x"), y = share->outputs[0];
    assert_int_equal(share->values[x].type.dims[0], 6);
    assert_string_equal(share->nodes[share->order[0]].def->name, "Scatter");
    assert_int_equal(share->values[wefti_graph_find_value(share, "x.share")].type.dims[0], 2);
    assert_string_equal(share->values[y].name, "y");
    assert_int_equal(share->values[y].type.dims[0], 6);
    assert_string_equal(share->nodes[share->values[y].producer].def->name, "Gather");
    assert_int_equal(share->values[wefti_graph_find_value(share, "y.share")].type.dims[0], 2);
    assert_int_equal(share->output_count, 1);
    test_graph_free(share, rs);
    test_graph_free(whole, rw);
}

/* What has no batch is rank 0's on all ranks; alone a rank needs nobody. */
static void test_what_has_no_batch(void **state)
{
    weft_registry_t *rs, *rw;
    wefti_graph_t *graphs[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        graphs[i] = test_graph(i == 0 ? &rs : &rw);
        uint32_t x = test_input(graphs[i], "x", DIMS(i == 0 ? 2 : 4, 3));
        uint32_t shift = test_input(graphs[i], "shift", DIMS(3));
        CHECK(wefti_graph_add_output(graphs[i],
                                     test_node(graphs[i], "Add", "y", INPUTS(x, shift), NULL, 0)));
    }
    CHECK(wefti_pass_split_batch(graphs[0], graphs[1], 1));
    assert_int_equal(graphs[0]->order_count, 1);
    CHECK(wefti_pass_split_batch(graphs[0], graphs[1], 2));
    uint32_t shift = wefti_graph_find_value(graphs[0], "shift.share");
    assert_string_equal(graphs[0]->nodes[graphs[0]->values[shift].producer].def->name, "Broadcast");
    test_graph_free(graphs[0], rs);
    test_graph_free(graphs[1], rw);
}

static void test_what_cannot_be_split(void **state)
{
    const weft_attr_t perm = ATTR_INTS("perm", 2, 1, 0);
    weft_registry_t *rs, *rw;
    wefti_graph_t *graphs[2];
    (void)state;
    for (int form = 0; form < 2; form++) {
        for (int i = 0; i < 2; i++) {
            int64_t batch = i == 0 ? 2 : 4;
            graphs[i] = test_graph(i == 0 ? &rs : &rw);
            uint32_t x = test_input(graphs[i], "x", form == 0 ? DIMS(batch, 3) : DIMS(3, batch));
            CHECK(wefti_graph_add_output(
                graphs[i], test_node(graphs[i], "Transpose", "y", INPUTS(x), &perm, 1)));
        }
        test_expect_error(wefti_pass_split_batch(graphs[0], graphs[1], 2), WEFT_ERR_UNSUPPORTED,
                          form == 0 ? "not the first dimension of output 'y'"
                                    : "not the first dimension of input 'x'");
        test_graph_free(graphs[0], rs);
        test_graph_free(graphs[1], rw);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_contents_may_differ),
        cmocka_unit_test(test_other_outputs_are_found),
        cmocka_unit_test(test_outputs_without_a_maker),
        cmocka_unit_test(test_a_loss_is_forgotten),
        cmocka_unit_test(test_the_batch_is_split),
        cmocka_unit_test(test_what_has_no_batch),
        cmocka_unit_test(test_what_cannot_be_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
