/* SPDX-License-Identifier: Apache-2.0 */
/* Which Dropout drops, what it becomes, and what is refused. */
#include "tests/graph/support_graph.h"
#include "fusion/passes/passes.h"

#include <string.h>

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    uint32_t x, w; /* an input and a parameter, both [3, 4] */
} fixture_t;

static void start(fixture_t *f)
{
    f->graph = test_graph(&f->registry);
    f->x = test_input(f->graph, "x", DIMS(3, 4));
    f->w = test_param(f->graph, "w", DIMS(3, 4));
}

static void finish(fixture_t *f)
{
    test_graph_free(f->graph, f->registry);
}

static uint32_t scalar(fixture_t *f, const char *name, weft_dtype_t dtype, const void *data)
{
    return test_value(f->graph, name, WEFTI_VALUE_CONST, dtype, (const int64_t[]){0}, data);
}

/* Dropout of opset 13; ratio and mode may be WEFTI_NONE. */
static uint32_t dropout(fixture_t *f, uint32_t x, uint32_t ratio, uint32_t mode, uint32_t outputs)
{
    uint32_t inputs[] = {x, ratio, mode, UINT32_MAX - 1};
    return test_node_outputs(f->graph, "", "Dropout", NULL, inputs, outputs, NULL, 0);
}

static uint32_t old_dropout(fixture_t *f, uint32_t x, float ratio, int32_t version)
{
    weft_attr_t attr = ATTR_FLOAT("ratio", ratio);
    uint32_t node;
    wefti_node_params_t params = {.domain = "",
                                  .op = "Dropout",
                                  .version = version,
                                  .inputs = &x,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .attrs = &attr,
                                  .attr_count = 1};
    CHECK(wefti_graph_add_node(f->graph, &params, &node));
    return node;
}

static void expect_mask_node(const fixture_t *f, uint32_t id, float ratio, int64_t salt,
                             uint32_t inputs)
{
    const wefti_node_t *node = &f->graph->nodes[id];
    assert_string_equal(node->def->domain, "weft");
    assert_string_equal(node->def->name, "DropoutMask");
    assert_true(wefti_node_attr(node, "ratio")->f == ratio);
    assert_int_equal(wefti_node_attr(node, "salt")->i, salt);
    assert_int_equal(node->attr_count, 2);
    assert_int_equal(node->input_count, inputs);
    static const char *const names[] = {NULL, "seed", "step", "rank"};
    for (uint32_t i = 1; i < inputs; i++) {
        const wefti_value_t *value = &f->graph->values[node->inputs[i]];
        assert_string_equal(value->name, names[i]);
        assert_int_equal(value->kind, WEFTI_VALUE_SCALAR);
    }
}

static void training_forms(void **state)
{
    static const uint16_t half = 0x3400, bfloat = 0x3e80; /* 0.25 */
    static const double f64 = 0.25;
    static const float f32 = 0.25f;
    static const uint8_t on = 1;
    fixture_t f;
    (void)state;
    start(&f);
    uint32_t mode = scalar(&f, "on", WEFT_DTYPE_BOOL, &on);
    const uint32_t ratios[] = {
        scalar(&f, "r64", WEFT_DTYPE_F64, &f64), scalar(&f, "r32", WEFT_DTYPE_F32, &f32),
        scalar(&f, "r16", WEFT_DTYPE_F16, &half), scalar(&f, "rb16", WEFT_DTYPE_BF16, &bfloat)};
    uint32_t nodes[8];
    for (uint32_t i = 0; i < 4; i++) {
        nodes[i] = dropout(&f, f.x, ratios[i], mode, 1 + i % 2);
    }
    nodes[4] = dropout(&f, f.x, WEFTI_NONE, mode, 1);
    nodes[5] = old_dropout(&f, f.x, 0.75f, 7);
    nodes[6] = old_dropout(&f, f.x, 0.125f, 11);
    nodes[7] = dropout(&f, f.w, WEFTI_NONE, mode, 1); /* of a parameter: ranks agree on it */
    CHECK(wefti_pass_expand_dropout(f.graph, false));
    for (uint32_t i = 0; i < 4; i++) {
        expect_mask_node(&f, nodes[i], 0.25f, i, 4);
    }
    expect_mask_node(&f, nodes[4], 0.5f, 4, 4);
    expect_mask_node(&f, nodes[5], 0.75f, 5, 4);
    expect_mask_node(&f, nodes[6], 0.125f, 6, 4);
    expect_mask_node(&f, nodes[7], 0.5f, 7, 3);
    CHECK(wefti_graph_verify(f.graph));
    CHECK(wefti_pass_expand_dropout(f.graph, false)); /* once is enough */
    expect_mask_node(&f, nodes[7], 0.5f, 7, 3);
    finish(&f);
}

static void inference_forms(void **state)
{
    static const uint8_t off = 0;
    static const float ratio = 3.0f; /* of no meaning here */
    fixture_t f;
    (void)state;
    start(&f);
    uint32_t mode = scalar(&f, "off", WEFT_DTYPE_BOOL, &off);
    uint32_t fed = test_input(f.graph, "fed", DIMS(1));
    uint32_t nodes[] = {dropout(&f, f.x, WEFTI_NONE, WEFTI_NONE, 1),
                        dropout(&f, f.x, scalar(&f, "r", WEFT_DTYPE_F32, &ratio), mode, 2),
                        dropout(&f, f.x, fed, mode, 1)};
    CHECK(wefti_pass_expand_dropout(f.graph, false));
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(f.graph->nodes[nodes[i]].def->name, "Dropout");
        assert_int_equal(f.graph->nodes[nodes[i]].input_count, 1);
    }
    assert_int_equal(wefti_graph_find_value(f.graph, "seed"), WEFTI_NONE);
    CHECK(wefti_graph_verify(f.graph));
    finish(&f);
}

static void refusals(void **state)
{
    static const float ratios[] = {-0.5f, 1.0f, 2.0f, __builtin_nanf("")};
    static const uint8_t on = 1;
    fixture_t f;
    (void)state;
    for (int i = 0; i < 4; i++) {
        for (int old = 0; old < 2; old++) {
            start(&f);
            uint32_t mode = scalar(&f, "on", WEFT_DTYPE_BOOL, &on);
            uint32_t ratio = scalar(&f, "r", WEFT_DTYPE_F32, &ratios[i]);
            if (old) {
                old_dropout(&f, f.x, ratios[i], 10);
            } else {
                dropout(&f, f.x, ratio, mode, 1);
            }
            test_expect_error(wefti_pass_expand_dropout(f.graph, false), WEFT_ERR_INVALID_ARGUMENT,
                              "at least 0 and below 1");
            finish(&f);
        }
    }
    start(&f);
    uint32_t mode =
        test_value(f.graph, "mode", WEFTI_VALUE_INPUT, WEFT_DTYPE_BOOL, (const int64_t[]){0}, NULL);
    dropout(&f, f.x, WEFTI_NONE, mode, 1);
    test_expect_error(wefti_pass_expand_dropout(f.graph, false), WEFT_ERR_UNSUPPORTED,
                      "training_mode must be a constant");
    finish(&f);
    start(&f);
    dropout(&f, f.x, test_input(f.graph, "r", (const int64_t[]){0}),
            scalar(&f, "on", WEFT_DTYPE_BOOL, &on), 1);
    test_expect_error(wefti_pass_expand_dropout(f.graph, false), WEFT_ERR_UNSUPPORTED,
                      "ratio must be a constant");
    finish(&f);
    start(&f);
    uint32_t node = dropout(&f, f.x, WEFTI_NONE, scalar(&f, "on", WEFT_DTYPE_BOOL, &on), 2);
    CHECK(wefti_graph_add_output(f.graph, f.graph->nodes[node].outputs[1]));
    test_expect_error(wefti_pass_expand_dropout(f.graph, false), WEFT_ERR_UNSUPPORTED,
                      "readers of the mask");
    finish(&f);
    start(&f);
    test_input(f.graph, "seed", DIMS(2));
    old_dropout(&f, f.x, 0.5f, 7);
    test_expect_error(wefti_pass_expand_dropout(f.graph, false), WEFT_ERR_UNSUPPORTED,
                      "tensor 'seed': the name is reserved for a scalar input of the plan");
    finish(&f);
}

/* Dropout and Adam count the same steps; a tensor of the model called "rank" steps aside. */
static void scalars_are_shared(void **state)
{
    fixture_t f;
    (void)state;
    start(&f);
    uint32_t y = test_node(f.graph, "Mul", "rank", INPUTS(f.x, f.w), NULL, 0);
    y = f.graph->nodes[old_dropout(&f, y, 0.5f, 7)].outputs[0];
    y = f.graph->nodes[old_dropout(&f, y, 0.5f, 7)].outputs[0];
    test_loss(f.graph, y, DIMS(3));
    CHECK(wefti_pass_expand_dropout(f.graph, false));
    CHECK(wefti_graph_differentiate(f.graph));
    wefti_optimizer_params_t params = {
        .kind = WEFTI_OPTIMIZER_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    CHECK(wefti_pass_optimizer(f.graph, &params, WEFTI_NONE));
    CHECK(wefti_graph_sort(f.graph));
    CHECK(wefti_graph_verify(f.graph));
    uint32_t scalars = 0, grads = 0;
    for (uint32_t i = 0; i < f.graph->value_count; i++) {
        scalars += f.graph->values[i].kind == WEFTI_VALUE_SCALAR;
    }
    for (uint32_t i = 0; i < f.graph->order_count; i++) {
        const wefti_node_t *node = &f.graph->nodes[f.graph->order[i]];
        if (strcmp(node->def->name, "DropoutGrad") == 0) {
            uint32_t mask = node->inputs[1];
            assert_int_equal(f.graph->values[mask].type.dtype, WEFT_DTYPE_U8);
            assert_int_equal(f.graph->values[mask].producer_output, 1);
            grads++;
        }
    }
    assert_int_equal(scalars, 4); /* lr, step, seed, rank */
    assert_int_equal(grads, 2);
    finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_forms),
        cmocka_unit_test(inference_forms),
        cmocka_unit_test(refusals),
        cmocka_unit_test(scalars_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
