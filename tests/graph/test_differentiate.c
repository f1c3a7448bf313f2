/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of backward passes and updates: text form, order of readiness, refusals, lack of
 * memory. */
#include "tests/graph/support_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "tests/graph/support_interpreter.h"
#include "tests/support/support_text.h"

/* x [4, 6] -> Gemm 5 -> Relu -> Gemm 3 -> loss. */
static void build_mlp(wefti_graph_t *graph)
{
    weft_attr_t trans[] = {ATTR_INT("transB", 1)};
    uint32_t y = test_input(graph, "x", DIMS(4, 6));
    uint32_t w1 = test_param(graph, "w1", DIMS(5, 6)), b1 = test_param(graph, "b1", DIMS(5));
    uint32_t w2 = test_param(graph, "w2", DIMS(3, 5)), b2 = test_param(graph, "b2", DIMS(3));
    y = test_node(graph, "Gemm", "h", INPUTS(y, w1, b1), trans, 1);
    y = test_node(graph, "Relu", "a", INPUTS(y), NULL, 0);
    y = test_node(graph, "Gemm", "scores", INPUTS(y, w2, b2), trans, 1);
    test_loss(graph, y, DIMS(4));
}

static const wefti_optimizer_params_t momentum = {
    .kind = WEFTI_OPTIMIZER_MOMENTUM, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.0};

static weft_status_t differentiate_and_update(wefti_graph_t *graph, void *user)
{
    CHECK(wefti_graph_differentiate(graph));
    CHECK(wefti_pass_optimizer(graph, user, WEFTI_NONE));
    return wefti_graph_sort(graph);
}

static void mlp_in_text(void **state)
{
    wefti_optimizer_params_t params = momentum;
    (void)state;
    test_pass(differentiate_and_update, &params,
              "input %x : f32[4,6]\n"
              "param %w1 : f32[5,6]\n"
              "param %b1 : f32[5]\n"
              "param %w2 : f32[3,5]\n"
              "param %b2 : f32[3]\n"
              "input %label : i64[4] label\n"
              "%h = Gemm(%x, %w1, %b1) {transB=1}\n"
              "%a = Relu(%h)\n"
              "%scores = Gemm(%a, %w2, %b2) {transB=1} : logits\n"
              "%loss = SoftmaxCrossEntropyLoss(%scores, %label) : loss\n"
              "output %loss\n",
              "input %x : f32[4,6]\n"
              "param %w1 : f32[5,6]\n"
              "param %b1 : f32[5]\n"
              "param %w2 : f32[3,5]\n"
              "param %b2 : f32[3]\n"
              "input %label : i64[4] label\n"
              "const %loss_grad : f32[] = 1\n"
              "scalar %lr : f32[] = 0.05\n"
              "state %w2_momentum : f32[3,5] of %w2\n"
              "state %b2_momentum : f32[3] of %b2\n"
              "state %w1_momentum : f32[5,6] of %w1\n"
              "state %b1_momentum : f32[5] of %b1\n"
              "%h = Gemm(%x, %w1, %b1) {transB=1} : f32[4,5]\n"
              "%a = Relu(%h) : f32[4,5]\n"
              "%scores = Gemm(%a, %w2, %b2) {transB=1} : f32[4,3] logits\n"
              "%loss, %loss_1 = SoftmaxCrossEntropyLoss(%scores, %label) : f32[] loss, f32[4,3]\n"
              "backward %scores_grad = com.microsoft::SoftmaxCrossEntropyLossGrad(%loss_grad, "
              "%loss_1, %label) : f32[4,3] as loss/grad\n"
              "backward %w2_grad = Gemm(%scores_grad, %a) {alpha=1.0, transA=1, transB=0} : "
              "f32[3,5] grad(%w2) as scores/grad\n"
              "backward %b2_grad = weft::SumTo(%scores_grad) {shape=[3]} : f32[3] grad(%b2) as "
              "scores/grad.2\n"
              "backward %a_grad = Gemm(%scores_grad, %w2) {alpha=1.0, transA=0, transB=0} : "
              "f32[4,5] as scores/grad.3\n"
              "backward %h_grad = com.microsoft::ReluGrad(%a_grad, %a) : f32[4,5] as a/grad\n"
              "backward %w1_grad = Gemm(%h_grad, %x) {alpha=1.0, transA=1, transB=0} : f32[5,6] "
              "grad(%w1) as h/grad\n"
              "backward %b1_grad = weft::SumTo(%h_grad) {shape=[5]} : f32[5] grad(%b1) as "
              "h/grad.2\n"
              "update %w2_new, %w2_momentum_new = weft::Momentum(%w2, %w2_grad, %w2_momentum, "
              "%lr) {weight_decay=0.0, momentum=0.9} : f32[3,5], f32[3,5] as w2/update\n"
              "update %b2_new, %b2_momentum_new = weft::Momentum(%b2, %b2_grad, %b2_momentum, "
              "%lr) {weight_decay=0.0, momentum=0.9} : f32[3], f32[3] as b2/update\n"
              "update %w1_new, %w1_momentum_new = weft::Momentum(%w1, %w1_grad, %w1_momentum, "
              "%lr) {weight_decay=0.0, momentum=0.9} : f32[5,6], f32[5,6] as w1/update\n"
              "update %b1_new, %b1_momentum_new = weft::Momentum(%b1, %b1_grad, %b1_momentum, "
              "%lr) {weight_decay=0.0, momentum=0.9} : f32[5], f32[5] as b1/update\n"
              "output %loss\n");
}

static void unreached_parameters_are_constants(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    build_mlp(graph);
    uint32_t alone = test_param(graph, "alone", DIMS(3));
    uint32_t aside = test_param(graph, "aside", DIMS(3));
    test_node(graph, "Relu", "unused", INPUTS(aside), NULL, 0);
    graph->values[alone].type.data = graph->values[aside].type.data = "0123456789abc";
    CHECK(wefti_graph_differentiate(graph));
    assert_int_equal(graph->values[alone].kind, WEFTI_VALUE_CONST);
    assert_int_equal(graph->values[aside].kind, WEFTI_VALUE_CONST);
    CHECK(wefti_graph_verify(graph));
    test_graph_free(graph, registry);
}

static void refusals(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2, 3)), w = test_param(graph, "w", DIMS(3));
    test_expect_error(wefti_graph_differentiate(graph), WEFT_ERR_INVALID_ARGUMENT, "no loss");
    uint32_t y = test_node(graph, "Shrink", "wave",
                           INPUTS(test_node(graph, "Add", "s", INPUTS(x, w), NULL, 0)), NULL, 0);
    test_loss(graph, y, DIMS(2));
    test_expect_error(wefti_graph_differentiate(graph), WEFT_ERR_UNSUPPORTED,
                      "node 'wave' (Shrink)");
    assert_non_null(strstr(weft_last_error(), "Gemm, GlobalAveragePool"));
    test_expect_error(wefti_pass_optimizer(graph, &momentum, WEFTI_NONE), WEFT_ERR_INVALID_ARGUMENT,
                      "no gradients");
    graph->loss = y;
    test_expect_error(wefti_graph_differentiate(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "loss 'wave': must be one floating-point number, got ");
    test_graph_free(graph, registry);

    graph = test_graph(&registry);
    x = test_input(graph, "x", DIMS(2, 3));
    test_loss(graph, x, DIMS(2));
    test_expect_error(wefti_graph_differentiate(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "does not depend on any parameter");
    test_graph_free(graph, registry);
}

/* y = x + left right, where the product is over nothing; DIMS cannot say 0. */
static void parameters_without_elements(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {1, 0}};
    uint32_t x = test_input(graph, "x", DIMS(2, 3)), w = test_param(graph, "w", DIMS(3)), sides[2];
    CHECK(wefti_graph_add_value(graph, "left", WEFTI_VALUE_PARAM, &type, &sides[0]));
    type.dims[0] = 0;
    type.dims[1] = 3;
    CHECK(wefti_graph_add_value(graph, "right", WEFTI_VALUE_PARAM, &type, &sides[1]));
    uint32_t y = test_node(graph, "Add", "s", INPUTS(x, w), NULL, 0);
    uint32_t product = test_node(graph, "MatMul", "m", INPUTS(sides[0], sides[1]), NULL, 0);
    test_loss(graph, test_node(graph, "Add", "y", INPUTS(y, product), NULL, 0), DIMS(2));
    test_expect_error(wefti_graph_differentiate(graph), WEFT_ERR_UNSUPPORTED,
                      "parameter 'left': no elements");
    test_graph_free(graph, registry);

    graph = test_graph(&registry); /* out of the loss's reach it does no harm */
    x = test_input(graph, "x", DIMS(2, 3));
    w = test_param(graph, "w", DIMS(3));
    CHECK(wefti_graph_add_value(graph, "left", WEFTI_VALUE_PARAM, &type, &sides[0]));
    test_loss(graph, test_node(graph, "Add", "s", INPUTS(x, w), NULL, 0), DIMS(2));
    CHECK(wefti_graph_differentiate(graph));
    assert_int_equal(graph->values[sides[0]].kind, WEFTI_VALUE_CONST);
    CHECK(wefti_graph_verify(graph));
    test_graph_free(graph, registry);
}

/* An operator of somebody's own domain: y = a^2 b, with a gradient operator that gets everything.
 */
static weft_status_t infer_like_first(weft_node_desc_t *node)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        node->outputs[i] = node->inputs[node->input_count > 2 ? i + 1 : 0];
    }
    return WEFT_OK;
}

static void generic_rule(void **state)
{
    (void)state;
    static const weft_op_def_t square = {.domain = "mine",
                                         .name = "SquareMul",
                                         .since_version = 1,
                                         .inputs_min = 2,
                                         .inputs_max = 2,
                                         .outputs_min = 1,
                                         .outputs_max = 1,
                                         .infer = infer_like_first,
                                         .in_place = {-1, -1, -1, -1},
                                         .grad = "SquareMulGrad",
                                         .doc = "a a b"};
    static const weft_op_def_t grad = {.domain = "mine",
                                       .name = "SquareMulGrad",
                                       .since_version = 1,
                                       .inputs_min = 4,
                                       .inputs_max = 4,
                                       .outputs_min = 2,
                                       .outputs_max = 2,
                                       .infer = infer_like_first,
                                       .in_place = {-1, -1, -1, -1},
                                       .doc = "dY, a, b, y"};
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    CHECK(weft_registry_add_op(registry, &square));
    CHECK(weft_registry_add_op(registry, &grad));
    uint32_t x = test_input(graph, "x", DIMS(2, 3)), w = test_param(graph, "w", DIMS(2, 3));
    weft_attr_t attrs[] = {ATTR_INT("kept", 7)};
    uint32_t node = test_node_outputs(graph, "mine", "SquareMul", "sq", INPUTS(x, w), 1, attrs, 1);
    uint32_t y = graph->nodes[node].outputs[0];
    test_loss(graph, y, DIMS(2));
    CHECK(wefti_graph_differentiate(graph));
    CHECK(wefti_graph_verify(graph));
    const wefti_node_t *back = &graph->nodes[graph->node_count - 1];
    assert_string_equal(back->def->name, "SquareMulGrad");
    assert_string_equal(graph->values[back->inputs[0]].name, "sq_grad");
    assert_int_equal(back->inputs[1], x);
    assert_int_equal(back->inputs[2], w);
    assert_int_equal(back->inputs[3], y);
    assert_int_equal(back->outputs[0], WEFTI_NONE); /* the data wants no gradient */
    assert_int_equal(graph->values[back->outputs[1]].grad_of, w);
    assert_int_equal(wefti_node_attr(back, "kept")->i, 7);
    test_graph_free(graph, registry);
}

/* 20,000 layers differentiate, get their updates and are sorted in far less than quadratic time. */
static void deep_chain(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t y = test_input(graph, "x", DIMS(2, 3));
    uint64_t start = test_cpu_ns();
    for (int i = 0; i < 20000; i++) {
        y = test_node(graph, "Add", "a", INPUTS(y, test_param(graph, "b", DIMS(3))), NULL, 0);
        y = test_node(graph, "Tanh", "t", INPUTS(y), NULL, 0);
    }
    test_loss(graph, y, DIMS(2));
    CHECK(wefti_graph_differentiate(graph));
    CHECK(wefti_pass_optimizer(graph, &momentum, WEFTI_NONE));
    CHECK(wefti_graph_sort(graph));
    CHECK(wefti_graph_verify(graph));
    uint64_t took_ns = test_cpu_ns() - start;
    print_message("%u nodes in %.0f ms\n", graph->order_count, (double)took_ns / 1e6);
    assert_int_equal(graph->order_count, 20000 * 5 + 2);
    assert_true(took_ns < 10000000000u);
    test_graph_free(graph, registry);
}

/* A few steps with each optimizer lower the loss, and update memory in place. */
static void optimizers_train(void **state)
{
    (void)state;
    test_random_t random = {test_seed()};
    for (int kind = WEFTI_OPTIMIZER_SGD; kind < WEFTI_OPTIMIZER_COUNT; kind++) {
        weft_registry_t *registry;
        wefti_graph_t *graph = test_graph(&registry);
        wefti_optimizer_params_t params = {.kind = (wefti_optimizer_t)kind,
                                           .lr = 0.1,
                                           .momentum = 0.9,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .epsilon = 1e-8};
        build_mlp(graph);
        CHECK(wefti_graph_differentiate(graph));
        CHECK(wefti_pass_optimizer(graph, &params, WEFTI_NONE));
        CHECK(wefti_graph_verify(graph));
        test_interpreter_t interpreter;
        test_interpreter_init(&interpreter, graph);
        for (uint32_t i = 0; i < graph->value_count; i++) {
            int64_t count = weft_tensor_elem_count(&graph->values[i].type);
            wefti_value_kind_t what = graph->values[i].kind;
            for (int64_t k = 0; k < count && i != graph->label && what <= WEFTI_VALUE_PARAM &&
                                what != WEFTI_VALUE_NODE;
                 k++) {
                ((float *)interpreter.buffers[i])[k] = test_random_float(&random);
            }
            if (what == WEFTI_VALUE_SCALAR) {
                ((float *)interpreter.buffers[i])[0] = (float)graph->values[i].default_value;
            }
        }
        float first = 0, last = 0;
        for (int step = 0; step < 20; step++) {
            uint32_t number = wefti_graph_find_value(graph, "step");
            if (number != WEFTI_NONE) {
                ((float *)interpreter.buffers[number])[0] = (float)(step + 1);
            }
            test_interpreter_run(&interpreter, WEFTI_PHASE_UPDATE);
            last = *(float *)interpreter.buffers[graph->loss];
            first = step == 0 ? last : first;
        }
        assert_true(isfinite(last) && last < 0.6f * first);
        test_interpreter_deinit(&interpreter);
        test_graph_free(graph, registry);
    }
}

static weft_status_t build_and_differentiate(const weft_allocator_t *allocator, void *registry)
{
    static const char text[] = "input %x : f32[2,2]\n"
                               "param %w : f32[2,2]\n"
                               "input %l : i64[2]\n"
                               "%y = MatMul(%x, %w)\n"
                               "%z = Dropout@7(%y)\n"
                               "%loss = SoftmaxCrossEntropyLoss(%z, %l) : loss\n";
    wefti_graph_t *graph;
    weft_status_t status =
        wefti_graph_from_text(text, sizeof(text) - 1, allocator, registry, &graph);
    if (status < 0 || (status = wefti_graph_bind_shapes(graph, 2, NULL, 0)) < 0 ||
        (status = wefti_graph_differentiate(graph)) < 0 ||
        (status = wefti_pass_optimizer(graph, &momentum, WEFTI_NONE)) < 0 ||
        (status = wefti_graph_sort(graph)) < 0) {
        goto done;
    }
    status = wefti_graph_verify(graph);
done:
    wefti_graph_destroy(graph);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    weft_registry_t *registry;
    (void)state;
    CHECK(weft_registry_create(NULL, &registry));
    assert_true(test_memory_sweep(build_and_differentiate, registry) > 10);
    weft_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_in_text),
        cmocka_unit_test(unreached_parameters_are_constants),
        cmocka_unit_test(refusals),
        cmocka_unit_test(parameters_without_elements),
        cmocka_unit_test(generic_rule),
        cmocka_unit_test(optimizers_train),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(deep_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
