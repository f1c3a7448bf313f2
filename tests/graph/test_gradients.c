/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every gradient rule against central differences of the loss, executed by the real kernels.
 * Elements that stand on a kink (of Relu or MaxPool) are left out; most must remain.
 */
#include "fusion/passes/passes.h"
#include "tests/graph/support_graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/graph/support_interpreter.h"

#define CHECKS_PER_PARAM 24
#define STEP 1e-2f

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    test_random_t random;
    bool zeros; /* every fourth element of a parameter is 0 */
} fixture_t;

static void start(fixture_t *f)
{
    f->zeros = false;
    f->graph = test_graph(&f->registry);
    f->random.state = test_seed();
}

static double loss_at(test_interpreter_t *interpreter)
{
    test_interpreter_run(interpreter, WEFTI_PHASE_FORWARD);
    float loss;
    memcpy(&loss, interpreter->buffers[interpreter->graph->loss], sizeof(loss));
    return (double)loss;
}

/* Slope and bend of the loss around an element: central difference, and right minus left
 * difference. */
typedef struct slope {
    double central, bend;
} slope_t;

static slope_t measure(test_interpreter_t *interpreter, float *element, float step)
{
    float at = *element;
    double here = loss_at(interpreter);
    *element = at + step;
    double above = loss_at(interpreter), up = (double)*element - (double)at;
    *element = at - step;
    double below = loss_at(interpreter), down = (double)at - (double)*element;
    *element = at;
    return (slope_t){(above - below) / (up + down), (above - here) / up - (here - below) / down};
}

/* On a smooth stretch half the step keeps the slope and halves the bend; a kink breaks one of both.
 */
static bool is_smooth(slope_t coarse, slope_t fine, double allowed)
{
    return fabs(coarse.central - fine.central) <= 0.6 * allowed &&
           fabs(coarse.bend - 2 * fine.bend) <= 0.6 * allowed;
}

/* Adds to how many elements were tried and how many could be compared. */
static void check_param(fixture_t *f, test_interpreter_t *interpreter, uint32_t param,
                        uint32_t grad, uint32_t *tried, uint32_t *checked)
{
    const wefti_value_t *value = &f->graph->values[param];
    uint32_t count = (uint32_t)weft_tensor_elem_count(&value->type);
    uint32_t tries = count < CHECKS_PER_PARAM ? count : CHECKS_PER_PARAM;
    float *elements = interpreter->buffers[param];
    const float *gradient = interpreter->buffers[grad];
    for (uint32_t i = 0; i < tries; i++) {
        uint32_t at = tries == count ? i : test_random_below(&f->random, count);
        slope_t coarse = measure(interpreter, &elements[at], STEP);
        slope_t fine = measure(interpreter, &elements[at], STEP / 2);
        double allowed = 1.5e-3 + 1e-2 * fabs(fine.central);
        if (!is_smooth(coarse, fine, allowed)) {
            continue;
        }
        double error = fabs((double)gradient[at] - fine.central);
        if (error > allowed) {
            print_error("%s[%u]: gradient %g, difference %g\n", value->name, at,
                        (double)gradient[at], fine.central);
        }
        assert_true(error <= allowed);
        ++*checked;
    }
    *tried += tries;
}

/* Fills inputs and parameters, differentiates, and compares all gradients. Labels lie below
 * classes. */
static void check_and_free(fixture_t *f, uint32_t classes)
{
    wefti_graph_t *graph = f->graph;
    CHECK(wefti_pass_expand_dropout(graph, false));
    CHECK(wefti_graph_expand(graph));
    CHECK(wefti_graph_differentiate(graph));
    CHECK(wefti_graph_verify(graph));
    test_interpreter_t interpreter;
    test_interpreter_init(&interpreter, graph);
    for (uint32_t i = 0; i < graph->value_count; i++) {
        const wefti_value_t *value = &graph->values[i];
        int64_t count = weft_tensor_elem_count(&value->type);
        bool filled = value->kind == WEFTI_VALUE_PARAM || value->kind == WEFTI_VALUE_INPUT;
        for (int64_t k = 0; filled && k < count; k++) {
            if (value->type.dtype == WEFT_DTYPE_I64) {
                ((int64_t *)interpreter.buffers[i])[k] = test_random_below(&f->random, classes);
            } else {
                float number = test_random_float(&f->random);
                ((float *)interpreter.buffers[i])[k] = f->zeros && k % 4 == 0 ? 0.0f : number;
            }
        }
    }
    test_interpreter_run(&interpreter, WEFTI_PHASE_BACKWARD);
    uint32_t gradients = 0, tried = 0, checked = 0;
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].grad_of != WEFTI_NONE) {
            char name[128];
            snprintf(name, sizeof(name), "%s_grad", graph->values[graph->values[i].grad_of].name);
            assert_string_equal(graph->values[i].name, name);
            check_param(f, &interpreter, graph->values[i].grad_of, i, &tried, &checked);
            gradients++;
        }
    }
    uint32_t params = 0;
    for (uint32_t i = 0; i < graph->value_count; i++) {
        params += graph->values[i].kind == WEFTI_VALUE_PARAM;
    }
    assert_true(gradients > 0);
    assert_true(checked * 2 > tried);
    assert_int_equal(gradients, params);
    test_interpreter_deinit(&interpreter);
    test_graph_free(graph, f->registry);
}

/* A loss over any tensor: rows of its last dimension (all of it for vectors and scalars) are
 * scores. */
static void finish_with_loss(fixture_t *f, uint32_t y)
{
    const weft_tensor_desc_t *type = &f->graph->values[y].type;
    int64_t count = weft_tensor_elem_count(type);
    int64_t columns =
        type->rank > 1 && type->dims[type->rank - 1] > 1 ? type->dims[type->rank - 1] : count;
    int64_t shape[] = {count / columns, columns};
    if (columns == 1) { /* a score against a fixed 0 */
        uint32_t one = test_ints(f->graph, "one", 2, (const int64_t[]){1, 1});
        uint32_t zero = test_param(f->graph, "zero", DIMS(1, 2));
        y = test_node(f->graph, "Add", "pair",
                      INPUTS(test_node(f->graph, "Reshape", "flat", INPUTS(y, one), NULL, 0), zero),
                      NULL, 0);
        uint32_t twice = test_param(f->graph, "twice", DIMS(1, 2));
        y = test_node(f->graph, "Mul", "scores", INPUTS(y, twice), NULL, 0);
        shape[0] = 1;
        columns = 2;
    } else {
        uint32_t to = test_ints(f->graph, "to", 2, shape);
        y = test_node(f->graph, "Reshape", "scores", INPUTS(y, to), NULL, 0);
    }
    test_loss(f->graph, y, DIMS(shape[0]));
    check_and_free(f, (uint32_t)columns);
}

static void gemm(void **state)
{
    (void)state;
    for (int trans = 0; trans < 4; trans++) {
        for (int form = 0; form < 5; form++) {
            fixture_t f;
            start(&f);
            bool ta = trans & 1, tb = trans & 2;
            uint32_t a = test_param(f.graph, "a", ta ? DIMS(4, 3) : DIMS(3, 4));
            uint32_t b = test_param(f.graph, "b", tb ? DIMS(5, 4) : DIMS(4, 5));
            weft_attr_t attrs[] = {ATTR_INT("transA", ta), ATTR_INT("transB", tb),
                                   ATTR_FLOAT("alpha", 0.75f),
                                   ATTR_FLOAT("beta", form == 0 ? 1.0f : 1.5f)};
            uint32_t c = WEFTI_NONE;
            if (form < 4) {
                c = test_param(f.graph, "c",
                               form == 0   ? DIMS(5)
                               : form == 1 ? DIMS(3, 5)
                               : form == 2 ? DIMS(3, 1)
                                           : DIMS(1));
            }
            uint32_t y = form < 4 ? test_node(f.graph, "Gemm", "y", INPUTS(a, b, c), attrs, 4)
                                  : test_node(f.graph, "Gemm", "y", INPUTS(a, b), attrs, 4);
            finish_with_loss(&f, y);
        }
    }
}

static void matmul(void **state)
{
    (void)state;
    static const int64_t shapes[][2][6] = {
        {{3, 4}, {4, 5}},          {{2, 3, 4}, {4, 5}}, {{2, 3, 4}, {2, 4, 5}}, {{3, 4}, {2, 4, 5}},
        {{2, 1, 3, 4}, {3, 4, 2}}, {{4}, {4, 5}},       {{3, 4}, {4}},          {{4}, {2, 4, 5}},
        {{2, 3, 4}, {4}},          {{4}, {4}},          {{1, 3, 4}, {2, 4, 3}},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        fixture_t f;
        start(&f);
        uint32_t a = test_param(f.graph, "a", shapes[i][0]),
                 b = test_param(f.graph, "b", shapes[i][1]);
        finish_with_loss(&f, test_node(f.graph, "MatMul", "y", INPUTS(a, b), NULL, 0));
    }
}

static void broadcast_binary(void **state)
{
    (void)state;
    static const char *const ops[] = {"Add", "Sub", "Mul"};
    static const int64_t shapes[][2][5] = {
        {{3, 4}, {3, 4}},    {{3, 4}, {4}}, {{3, 1}, {4}},
        {{2, 3, 4}, {3, 1}}, {{1}, {2, 3}}, {{2, 1, 3}, {1, 4, 1}},
    };
    for (size_t op = 0; op < 3; op++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            fixture_t f;
            start(&f);
            uint32_t a = test_param(f.graph, "a", shapes[i][0]),
                     b = test_param(f.graph, "b", shapes[i][1]);
            finish_with_loss(&f, test_node(f.graph, ops[op], "y", INPUTS(a, b), NULL, 0));
        }
    }
}

/* By numbers that are not near zero. */
static void division(void **state)
{
    (void)state;
    static const float two = 2.0f;
    static const int64_t shapes[][2][5] = {{{3, 4}, {3, 4}}, {{2, 3, 4}, {3, 1}}, {{1}, {2, 3}}};
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .data = &two};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        fixture_t f;
        uint32_t c;
        start(&f);
        uint32_t a = test_param(f.graph, "a", shapes[i][0]),
                 b = test_param(f.graph, "b", shapes[i][1]);
        assert_int_equal(wefti_graph_add_value(f.graph, "two", WEFTI_VALUE_CONST, &type, &c),
                         WEFT_OK);
        b = test_node(f.graph, "Tanh", "small", INPUTS(b), NULL, 0);
        b = test_node(f.graph, "Add", "large", INPUTS(b, c), NULL, 0);
        finish_with_loss(&f, test_node(f.graph, "Div", "y", INPUTS(a, b), NULL, 0));
    }
}

static void unary(void **state)
{
    (void)state;
    static const char *const ops[] = {"Relu",      "Tanh",      "Identity",  "Flatten",
                                      "Transpose", "Sigmoid",   "HardSwish", "HardSigmoid",
                                      "ReduceSum", "ReduceMean"};
    for (size_t op = 0; op < sizeof(ops) / sizeof(ops[0]); op++) {
        fixture_t f;
        start(&f);
        uint32_t a = test_param(f.graph, "a", DIMS(2, 3, 4));
        finish_with_loss(&f, test_node(f.graph, ops[op], "y", INPUTS(a), NULL, 0));
    }
}

/* Bounds as attributes and as inputs, of which one is absent. */
static void clip(void **state)
{
    static const float high = 0.5f;
    (void)state;
    for (int form = 0; form < 2; form++) {
        fixture_t f;
        start(&f);
        const weft_attr_t attrs[] = {ATTR_FLOAT("min", -0.25f), ATTR_FLOAT("max", 0.5f)};
        uint32_t a = test_param(f.graph, "a", DIMS(4, 6));
        uint32_t y;
        if (form == 0) {
            y = test_node(f.graph, "HardSigmoid", "h", INPUTS(a),
                          (weft_attr_t[]){ATTR_FLOAT("alpha", 0.75f), ATTR_FLOAT("beta", 0.25f)},
                          2);
            wefti_node_params_t node = {.domain = "",
                                        .op = "Clip",
                                        .version = 6,
                                        .inputs = &y,
                                        .input_count = 1,
                                        .output_count = 1,
                                        .attrs = attrs,
                                        .attr_count = 2};
            uint32_t id;
            assert_int_equal(wefti_graph_add_node(f.graph, &node, &id), WEFT_OK);
            y = f.graph->nodes[id].outputs[0];
        } else {
            weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .data = &high};
            uint32_t bound;
            assert_int_equal(
                wefti_graph_add_value(f.graph, "high", WEFTI_VALUE_CONST, &type, &bound), WEFT_OK);
            y = test_node(f.graph, "Clip", "y", INPUTS(a, WEFTI_NONE, bound), NULL, 0);
        }
        finish_with_loss(&f, y);
    }
}

static void reductions(void **state)
{
    (void)state;
    static const char *const ops[] = {"ReduceSum",       "ReduceMean",      "ReduceMax",
                                      "ReduceMin",       "ReduceL1",        "ReduceL2",
                                      "ReduceSumSquare", "ReduceLogSumExp", "ReduceProd"};
    static const int64_t lists[][2] = {{0, -1}, {1, 2}, {-2, -2}};
    for (int form = 0; form < 54; form++) {
        fixture_t f;
        start(&f);
        const int64_t *list = lists[form / 18];
        uint32_t axes = test_ints(f.graph, "axes", list[0] == list[1] ? 1 : 2, list);
        const weft_attr_t attrs[] = {ATTR_INT("keepdims", form / 9 & 1)};
        uint32_t a = test_param(f.graph, "a", DIMS(2, 3, 4));
        f.zeros = form % 9 == 8;
        finish_with_loss(&f, test_node(f.graph, ops[form % 9], "y", INPUTS(a, axes), attrs, 1));
    }
}

/* One part has no gradient, one is there twice. */
static void concat(void **state)
{
    (void)state;
    for (int64_t axis = -2; axis < 2; axis++) {
        fixture_t f;
        start(&f);
        const weft_attr_t attrs[] = {ATTR_INT("axis", axis)};
        bool rows = axis == 0 || axis == -2;
        uint32_t x = test_input(f.graph, "x", DIMS(2, 3));
        uint32_t a = test_param(f.graph, "a", rows ? DIMS(4, 3) : DIMS(2, 5));
        uint32_t b = test_param(f.graph, "b", DIMS(2, 3));
        uint32_t t = test_node(f.graph, "Tanh", "t", INPUTS(b), NULL, 0);
        finish_with_loss(&f, test_node(f.graph, "Concat", "y", INPUTS(b, a, x, t, b), attrs, 1));
    }
}

static void shapes(void **state)
{
    (void)state;
    fixture_t f;
    start(&f);
    uint32_t a = test_param(f.graph, "a", DIMS(2, 1, 6));
    uint32_t to = test_ints(f.graph, "target", 4, (const int64_t[]){2, 2, -1, 1});
    uint32_t axes = test_ints(f.graph, "axes", 1, (const int64_t[]){3});
    uint32_t y = test_node(f.graph, "Reshape", "r", INPUTS(a, to), NULL, 0);
    y = test_node(f.graph, "Squeeze", "s", INPUTS(y, axes), NULL, 0);
    y = test_node(f.graph, "Unsqueeze", "u", INPUTS(y, axes), NULL, 0);
    weft_attr_t perm[] = {ATTR_INTS("perm", 4, 1, 3, 2, 0)};
    y = test_node(f.graph, "Transpose", "t", INPUTS(y), perm, 1);
    finish_with_loss(&f, y);
}

static void conv(void **state)
{
    (void)state;
    const struct {
        int64_t x[6], w[6];
        weft_attr_t attrs[4];
        uint32_t attr_count;
        bool bias;
    } cases[] = {
        {{2, 3, 6, 6}, {4, 3, 3, 3}, {ATTR_INTS("pads", 4, 1, 1, 1, 1)}, 1, true},
        {{2, 3, 7, 6},
         {4, 3, 3, 2},
         {ATTR_INTS("strides", 2, 2, 1), ATTR_INTS("pads", 4, 0, 1, 1, 0)},
         2,
         true},
        {{1, 4, 5, 5},
         {6, 2, 3, 3},
         {ATTR_INT("group", 2), ATTR_INTS("pads", 4, 1, 1, 1, 1)},
         2,
         false},
        {{1, 2, 7, 7}, {3, 2, 3, 3}, {ATTR_INTS("dilations", 2, 2, 2)}, 1, true},
        {{1, 2, 6, 6},
         {2, 2, 3, 3},
         {ATTR_STRING("auto_pad", "SAME_UPPER"), ATTR_INTS("strides", 2, 2, 2)},
         2,
         false},
        {{2, 4, 4, 3, 3},
         {4, 2, 3, 2, 2},
         {ATTR_INT("group", 2), ATTR_INTS("pads", 6, 1, 0, 1, 1, 1, 0),
          ATTR_INTS("strides", 3, 2, 1, 1), ATTR_INTS("dilations", 3, 1, 2, 1)},
         4,
         true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_t f;
        start(&f);
        uint32_t x = test_param(f.graph, "x", cases[i].x), w = test_param(f.graph, "w", cases[i].w);
        uint32_t y = cases[i].bias
                         ? test_node(f.graph, "Conv", "y",
                                     INPUTS(x, w, test_param(f.graph, "b", DIMS(cases[i].w[0]))),
                                     cases[i].attrs, cases[i].attr_count)
                         : test_node(f.graph, "Conv", "y", INPUTS(x, w), cases[i].attrs,
                                     cases[i].attr_count);
        finish_with_loss(&f, y);
    }
}

static void pooling(void **state)
{
    (void)state;
    const struct {
        const char *op;
        weft_attr_t attrs[5];
        uint32_t attr_count;
    } cases[] = {
        {"MaxPool", {ATTR_INTS("kernel_shape", 2, 2, 2), ATTR_INTS("strides", 2, 2, 2)}, 2},
        {"MaxPool",
         {ATTR_INTS("kernel_shape", 2, 3, 3), ATTR_INTS("strides", 2, 2, 1),
          ATTR_INTS("pads", 4, 1, 1, 1, 1)},
         3},
        {"AveragePool", {ATTR_INTS("kernel_shape", 2, 2, 2), ATTR_INTS("strides", 2, 2, 2)}, 2},
        {"AveragePool",
         {ATTR_INTS("kernel_shape", 2, 3, 2), ATTR_INTS("strides", 2, 1, 2),
          ATTR_INTS("pads", 4, 1, 0, 1, 1), ATTR_INT("count_include_pad", 1)},
         4},
        {"AveragePool",
         {ATTR_INTS("kernel_shape", 2, 3, 3), ATTR_INTS("strides", 2, 2, 2),
          ATTR_INTS("pads", 4, 1, 1, 1, 1), ATTR_INT("ceil_mode", 1)},
         4},
        {"GlobalAveragePool", {{0}}, 0},
        {"GlobalAveragePool", {{.count = 3}}, 0},
        {"MaxPool",
         {ATTR_INTS("kernel_shape", 3, 2, 3, 2), ATTR_INTS("strides", 3, 1, 2, 2),
          ATTR_INTS("pads", 6, 1, 0, 0, 0, 1, 1)},
         3},
        {"AveragePool",
         {ATTR_INTS("kernel_shape", 3, 3, 2, 2), ATTR_INTS("strides", 3, 2, 1, 2),
          ATTR_INTS("pads", 6, 1, 0, 1, 0, 1, 0), ATTR_INT("ceil_mode", 1)},
         4},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_t f;
        start(&f);
        const bool volume = cases[i].attrs[0].count == 3;
        uint32_t x = test_param(f.graph, "x", volume ? DIMS(2, 3, 3, 4, 4) : DIMS(2, 3, 6, 6));
        uint32_t s = test_param(f.graph, "s", volume ? DIMS(1, 3, 1, 1, 1) : DIMS(1, 3, 1, 1));
        uint32_t scaled = test_node(f.graph, "Mul", "scaled", INPUTS(x, s), NULL, 0);
        finish_with_loss(&f, test_node(f.graph, cases[i].op, "y", INPUTS(scaled), cases[i].attrs,
                                       cases[i].attr_count));
    }
}

static void conv_transpose(void **state)
{
    (void)state;
    const weft_attr_t group = ATTR_INT("group", 2), strides = ATTR_INTS("strides", 2, 2, 3),
                      pads = ATTR_INTS("pads", 4, 1, 0, 0, 1);
    const weft_attr_t sets[][4] = {
        {ATTR_INT("group", 1)},
        {strides, pads, ATTR_INTS("output_padding", 2, 1, 2), group},
        {ATTR_INTS("dilations", 2, 2, 3), pads, ATTR_INTS("kernel_shape", 2, 3, 2)},
        {strides, ATTR_STRING("auto_pad", "SAME_UPPER")},
        {strides, ATTR_INTS("output_shape", 2, 9, 7)},
        {ATTR_INTS("strides", 3, 2, 1, 2), ATTR_INTS("pads", 6, 1, 0, 0, 0, 1, 1),
         ATTR_INTS("output_padding", 3, 1, 0, 1), group},
    };
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        fixture_t f;
        start(&f);
        uint32_t count = 1;
        while (count < 4 && sets[i][count].name != NULL) {
            count++;
        }
        const bool volume = i == 5;
        uint32_t x = test_param(f.graph, "x", volume ? DIMS(2, 4, 3, 2, 3) : DIMS(2, 4, 4, 3));
        uint32_t w = test_param(f.graph, "w", volume ? DIMS(4, 2, 3, 2, 2) : DIMS(4, 2, 3, 2));
        uint32_t b = test_param(f.graph, "b", DIMS(i == 1 || volume ? 4 : 2));
        finish_with_loss(&f,
                         test_node(f.graph, "ConvTranspose", "y", INPUTS(x, w, b), sets[i], count));
    }
}

/* Both forms; rows that are short and long. Statistics of the batch are gradients of the running
 * ones, which the loss does not depend on. */
static void batch_norm(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {{6, 3}, {2, 3, 2, 2}, {2, 3, 5, 5}};
    for (int form = 0; form < 6; form++) {
        fixture_t f;
        start(&f);
        const weft_attr_t attrs[] = {ATTR_FLOAT("epsilon", 0.01f),
                                     ATTR_INT("training_mode", form & 1)};
        float zero[3] = {0.1f, -0.2f, 0.0f}, one[3] = {1.0f, 0.5f, 2.0f};
        uint32_t x = test_param(f.graph, "x", shapes[form / 2]);
        uint32_t scale = test_param(f.graph, "scale", DIMS(3)),
                 b = test_param(f.graph, "b", DIMS(3));
        uint32_t mean =
            test_value(f.graph, "mean", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(3), zero);
        uint32_t var = test_value(f.graph, "var", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(3), one);
        finish_with_loss(&f, test_node(f.graph, "BatchNormalization", "y",
                                       INPUTS(x, scale, b, mean, var), attrs, 2));
    }
}

static void pad(void **state)
{
    (void)state;
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        fixture_t f;
        start(&f);
        const weft_attr_t attrs[] = {ATTR_STRING("mode", modes[i])};
        uint32_t x = test_param(f.graph, "x", DIMS(1, 2, 3, 3));
        uint32_t pads = test_ints(f.graph, "pads", 8, (const int64_t[]){0, 0, 1, 2, 0, 1, 0, 1});
        finish_with_loss(&f, test_node(f.graph, "Pad", "y", INPUTS(x, pads), attrs, 1));
    }
}

static void cross_entropy(void **state)
{
    (void)state;
    static const char *const reductions[] = {"mean", "sum"};
    for (int form = 0; form < 8; form++) {
        fixture_t f;
        start(&f);
        bool weighted = form & 2, spatial = form & 4;
        uint32_t x = test_param(f.graph, "x", spatial ? DIMS(2, 4, 3) : DIMS(6, 4));
        uint32_t label = test_value(f.graph, "label", WEFTI_VALUE_INPUT, WEFT_DTYPE_I64,
                                    spatial ? DIMS(2, 3) : DIMS(6), NULL);
        uint32_t weights = test_value(f.graph, "weights", WEFTI_VALUE_CONST, WEFT_DTYPE_F32,
                                      DIMS(4), (const float[]){0.5f, 1.0f, 2.0f, 0.25f});
        weft_attr_t attrs[] = {ATTR_STRING("reduction", reductions[form & 1]),
                               ATTR_INT("ignore_index", 1)};
        uint32_t loss = weighted ? test_node(f.graph, "SoftmaxCrossEntropyLoss", "l",
                                             INPUTS(x, label, weights), attrs, 2)
                                 : test_node(f.graph, "SoftmaxCrossEntropyLoss", "l",
                                             INPUTS(x, label), attrs, 2);
        f.graph->loss = loss;
        f.graph->values[loss].flags |= WEFTI_VALUE_LOSS;
        check_and_free(&f, 4);
    }
}

/* Shared weights, a skip connection, gradients that only pass through, and a chain of everything of
 * LeNet. */
static void shared_and_skipped(void **state)
{
    (void)state;
    fixture_t f;
    start(&f);
    uint32_t x = test_input(f.graph, "x", DIMS(3, 4)), w = test_param(f.graph, "w", DIMS(4, 4));
    uint32_t p = test_param(f.graph, "p", DIMS(3, 4)), q = test_param(f.graph, "q", DIMS(3, 4));
    uint32_t a = test_node(f.graph, "MatMul", "a", INPUTS(x, w), NULL, 0);
    a = test_node(f.graph, "Add", "pa", INPUTS(p, a), NULL, 0);
    a = test_node(f.graph, "Add", "qa", INPUTS(a, q), NULL, 0);
    uint32_t b = test_node(f.graph, "MatMul", "b",
                           INPUTS(test_node(f.graph, "Tanh", "t", INPUTS(a), NULL, 0), w), NULL, 0);
    uint32_t c = test_node(f.graph, "Add", "skip", INPUTS(a, b), NULL, 0);
    c = test_node(f.graph, "Mul", "square", INPUTS(c, c), NULL, 0);
    c = test_node(f.graph, "Add", "again", INPUTS(c, p), NULL, 0);
    finish_with_loss(&f, c);
}

static void parts(void **state)
{
    static const uint8_t bits[] = {1, 0, 0, 1};
    fixture_t f;
    (void)state;
    start(&f);
    wefti_graph_t *g = f.graph;
    weft_attr_t axis[] = {ATTR_INT("axis", 1)};
    /* Rows 1 and -2 (which is 2) twice; row 0 never. */
    uint32_t rows = test_ints(g, "rows", 5, (const int64_t[]){1, -2, 3, 2, 1});
    uint32_t table = test_param(g, "table", DIMS(4, 6));
    uint32_t x = test_node(g, "Gather", "x", INPUTS(table, rows), NULL, 0);
    uint32_t columns = test_ints(g, "columns", 3, (const int64_t[]){4, 0, 4});
    uint32_t y = test_node(g, "Gather", "y", INPUTS(x, columns), axis, 1);
    y = test_node(g, "Add", "z",
                  INPUTS(y, test_node(g, "Slice", "steps",
                                      INPUTS(x, test_ints(g, "from", 2, (const int64_t[]){-1, 5}),
                                             test_ints(g, "to", 2, (const int64_t[]){-9, 0}),
                                             test_ints(g, "axes", 2, (const int64_t[]){0, 1}),
                                             test_ints(g, "step", 2, (const int64_t[]){-1, -2})),
                                      NULL, 0)),
                  NULL, 0);
    uint32_t sizes = test_ints(g, "sizes", 3, (const int64_t[]){1, 3, 2});
    uint32_t split =
        test_node_outputs(g, "", "Split", "split", INPUTS(x, sizes), 3, axis, 1); /* 0, 2: unread */
    y = test_node(g, "Mul", "m", INPUTS(y, g->nodes[split].outputs[1]), NULL, 0);
    uint32_t wide = test_ints(g, "wide", 3, (const int64_t[]){2, 5, 1});
    y = test_node(g, "Expand", "e", INPUTS(y, wide), NULL, 0);
    uint32_t choice =
        test_value(g, "choice", WEFTI_VALUE_CONST, WEFT_DTYPE_BOOL, DIMS(2, 2, 1, 1), bits);
    y = test_node(g, "Where", "w", INPUTS(choice, y, test_param(g, "other", DIMS(5, 1))), NULL, 0);
    weft_attr_t same[] = {ATTR_INT("to", 1)};
    finish_with_loss(&f, test_node(g, "Cast", "c", INPUTS(y), same, 1));
}

/* Selections and replacements by index, where some elements are selected twice; running sums,
 * copies, triangles, the largest elements. */
static void indexed(void **state)
{
    static const int64_t places[] = {1, -1, 0, 1, 2, 2}, tuples[] = {3, 0, -1, 1, 3, 0};
    (void)state;
    static const char *const reductions_of[] = {"mul", "max", "min"};
    for (int form = 0; form < 16; form++) {
        fixture_t f;
        start(&f);
        wefti_graph_t *g = f.graph;
        const weft_attr_t axis[] = {ATTR_INT("axis", 1)};
        const weft_attr_t adds[] = {ATTR_STRING("reduction", "add")};
        const weft_attr_t sums[] = {ATTR_INT("exclusive", form & 1),
                                    ATTR_INT("reverse", form >> 1)};
        uint32_t p = test_param(g, "p", DIMS(4, 3));
        uint32_t elements =
            test_value(g, "places", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(2, 3), places);
        uint32_t pairs =
            test_value(g, "tuples", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(3, 2), tuples);
        const bool slices = form == 5 || form == 6 || (form > 9 && form % 2 == 0);
        uint32_t other = form < 5 || form == 9
                             ? WEFTI_NONE
                             : test_param(g, "other", slices ? DIMS(3) : DIMS(2, 3));
        uint32_t y;
        if (form > 9) {
            const weft_attr_t attrs[] = {ATTR_STRING("reduction", reductions_of[(form - 10) / 2]),
                                         axis[0]};
            f.zeros = form < 12;
            y = test_node(g, slices ? "ScatterND" : "ScatterElements", "y",
                          INPUTS(p, slices ? pairs : elements, other), attrs, slices ? 1 : 2);
        } else if (form < 4) {
            y = test_node(g, "CumSum", "y", INPUTS(p, test_ints(g, "at", 1, (const int64_t[]){-2})),
                          sums, 2);
        } else if (form == 4) {
            y = test_node(g, "GatherElements", "y", INPUTS(p, elements), axis, 1);
        } else if (form == 5) {
            const weft_attr_t batch[] = {ATTR_INT("batch_dims", 1)};
            uint32_t columns = test_value(g, "columns", WEFTI_VALUE_CONST, WEFT_DTYPE_I64,
                                          DIMS(4, 1), (const int64_t[]){2, 0, -1, 1});
            y = test_node(g, "GatherND", "y", INPUTS(p, pairs), NULL, 0);
            y = test_node(g, "Mul", "z", INPUTS(y, other), NULL, 0);
            y = test_node(g, "Concat", "both",
                          INPUTS(y, test_node(g, "GatherND", "b", INPUTS(p, columns), batch, 1)),
                          (const weft_attr_t[]){ATTR_INT("axis", 0)}, 1);
        } else if (form == 6) {
            y = test_node(g, "ScatterND", "y", INPUTS(p, pairs, other), adds, 1);
        } else if (form == 7) {
            y = test_node(g, "ScatterElements", "y", INPUTS(p, elements, other), adds, 1);
        } else if (form == 8) {
            uint32_t one = test_value(g, "one", WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(2, 1),
                                      (const int64_t[]){2, 0});
            y = test_node(g, "ScatterND", "y", INPUTS(p, one, other), NULL, 0);
        } else {
            uint32_t k = test_ints(g, "k", 1, (const int64_t[]){2});
            uint32_t top = test_node_outputs(g, "", "TopK", "top", INPUTS(p, k), 2, NULL, 0);
            uint32_t repeats = test_ints(g, "repeats", 2, (const int64_t[]){3, 2});
            y = test_node(g, "Tile", "t", INPUTS(g->nodes[top].outputs[0], repeats), NULL, 0);
            y = test_node(g, "Trilu", "y", INPUTS(y), NULL, 0);
        }
        finish_with_loss(&f, y);
    }
}

/* Resize in all modes, and blocks of pixels. */
static void resampled(void **state)
{
    static const float scales[] = {1.0f, 1.0f, 1.6f, 0.7f};
    static const float roi[] = {0.0f, 0.0f, 0.3f, -0.2f, 1.0f, 1.0f, 0.9f, 0.7f};
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    (void)state;
    for (int form = 0; form < 12; form++) {
        fixture_t f;
        start(&f);
        wefti_graph_t *g = f.graph;
        uint32_t x = test_param(g, "x", DIMS(2, 4, 3, 5)), y;
        const weft_attr_t attrs[] = {
            ATTR_STRING("mode", modes[form % 3]),
            ATTR_STRING("coordinate_transformation_mode",
                        form < 3 ? "half_pixel" : "align_corners"),
        };
        const weft_attr_t block[] = {ATTR_INT("blocksize", 2), ATTR_STRING("mode", "CRD")};
        if (form < 6) {
            uint32_t by =
                test_value(g, "scales", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(4), scales);
            y = test_node(g, "Resize", "y", INPUTS(x, WEFTI_NONE, by), attrs, 2);
        } else if (form >= 8) { /* before opset 11; antialias; a part of X and what is outside */
            uint32_t by =
                test_value(g, "scales", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(4), scales);
            uint32_t part = test_value(g, "roi", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(8), roi);
            uint32_t node, inputs[] = {x, form == 8 ? by : part, by};
            const weft_attr_t more[] = {
                ATTR_STRING("mode", modes[form == 8    ? 2
                                          : form == 10 ? 2
                                                       : 1]),
                ATTR_STRING("coordinate_transformation_mode",
                            form == 11 ? "tf_crop_and_resize" : "half_pixel"),
                ATTR_INT("antialias", form < 11),
            };
            wefti_node_params_t params = {.op = "Resize",
                                          .version = form == 8 ? 10 : 18,
                                          .inputs = inputs,
                                          .input_count = form == 8 ? 2 : 3,
                                          .output_count = 1,
                                          .attrs = more,
                                          .attr_count = form == 8 ? 1 : 3};
            CHECK(wefti_graph_add_node(g, &params, &node));
            y = g->nodes[node].outputs[0];
        } else {
            y = test_node(g, "DepthToSpace", "y", INPUTS(x), block, form == 6 ? 1 : 2);
            y = test_node(g, "Mul", "z", INPUTS(y, test_param(g, "w", DIMS(6, 10))), NULL, 0);
        }
        finish_with_loss(&f, y);
    }
}

/* Operators that become others. */
static void expanded(void **state)
{
    static const char *const equations[] = {"ij,kj->ik", "bij,bjk", "...ij,jk->k...i", "ij->j",
                                            "...ii,i->...i"};
    static const uint8_t seen[] = {1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0}; /* a query sees no key */
    (void)state;
    for (int form = 0; form < 15; form++) {
        fixture_t f;
        start(&f);
        wefti_graph_t *g = f.graph;
        uint32_t x = form < 10 ? test_param(g, "x", DIMS(2, 4, 3, 2)) : WEFTI_NONE, y;
        const weft_attr_t groups[] = {ATTR_INT("num_groups", 2)};
        const weft_attr_t causal[] = {ATTR_INT("is_causal", form & 1), ATTR_FLOAT("softcap", 2.0f),
                                      ATTR_INT("q_num_heads", 4), ATTR_INT("kv_num_heads", 2)};
        if (form < 4) {
            const char *op = form == 0 ? "InstanceNormalization" : "GroupNormalization";
            const int64_t *channels = DIMS(form == 3 ? 2 : 4);
            const uint32_t inputs[] = {x, test_param(g, "scale", channels),
                                       test_param(g, "bias", channels)};
            wefti_node_params_t params = {.op = op,
                                          .version = form == 3 ? 18 : 0,
                                          .inputs = inputs,
                                          .input_count = 3,
                                          .output_count = 1,
                                          .attrs = groups,
                                          .attr_count = form == 0 ? 0 : 1};
            uint32_t node;
            CHECK(wefti_graph_add_node(g, &params, &node));
            y = g->nodes[node].outputs[0];
            y = test_node(g, "Mul", "square", INPUTS(y, y), NULL, 0);
        } else if (form < 8) {
            uint32_t mask =
                test_value(g, "seen", WEFTI_VALUE_CONST, WEFT_DTYPE_BOOL, DIMS(3, 4), seen);
            uint32_t key = test_param(g, "key", DIMS(2, 2, 4, 2));
            uint32_t value = test_param(g, "value", DIMS(2, 2, 4, 3));
            y = test_node(g, "Attention", "y", INPUTS(x, key, value, form < 6 ? mask : WEFTI_NONE),
                          causal, form < 7 ? 2 : 1);
        } else if (form == 8) {
            y = test_node(g, "RMSNormalization", "y", INPUTS(x, test_param(g, "s", DIMS(2))), NULL,
                          0);
        } else if (form == 9) {
            uint32_t cosines = test_param(g, "cosines", DIMS(2, 3, 1));
            y = test_node(g, "RotaryEmbedding", "y",
                          INPUTS(x, cosines, test_param(g, "sines", DIMS(2, 3, 1))), NULL, 0);
        } else {
            const weft_attr_t equation[] = {ATTR_STRING("equation", equations[form - 10])};
            uint32_t a = test_param(g, "a",
                                    form == 10 || form == 13 ? DIMS(3, 4)
                                    : form == 14             ? DIMS(2, 4, 4)
                                                             : DIMS(2, 3, 4));
            uint32_t b = form == 13   ? WEFTI_NONE
                         : form == 14 ? test_param(g, "b", DIMS(4))
                         : form == 10 ? test_param(g, "b", DIMS(5, 4))
                         : form == 11 ? test_param(g, "b", DIMS(2, 4, 5))
                                      : test_param(g, "b", DIMS(4, 5));
            y = test_node(g, "Einsum", "y", form == 13 ? INPUTS(a) : INPUTS(a, b), equation, 1);
            y = form == 13 ? test_node(g, "Mul", "z", INPUTS(y, a), NULL, 0) : y;
        }
        finish_with_loss(&f, y);
    }
}

/* Operators of com.microsoft that become those of ONNX. */
static void optimized(void **state)
{
    static const struct {
        const char *op;
        uint32_t rows;       /* inputs with an element per element of a row */
        bool skip;           /* input 1 is a skip, and output 3 the sum */
        int64_t w[4];        /* input 1 of a product: rank and shape */
        int exchange, alpha; /* transA of a product; 1: has attribute alpha */
    } forms[] = {
        {"Gelu", 0, false, {0}, 0, 0},
        {"BiasGelu", 1, false, {0}, 0, 0},
        {"FastGelu", 0, false, {0}, 0, 0},
        {"FastGelu", 1, false, {0}, 0, 0},
        {"QuickGelu", 0, false, {0}, 0, 1},
        {"SimplifiedLayerNormalization", 1, false, {0}, 0, 0},
        {"SkipLayerNormalization", 1, true, {0}, 0, 0},
        {"SkipLayerNormalization", 3, true, {0}, 0, 0},
        {"SkipSimplifiedLayerNormalization", 2, true, {0}, 0, 0},
        {"FusedMatMul", 0, false, {2, 5, 3}, 1, 1},
        {"FusedMatMul", 0, false, {3, 2, 5, 4}, 0, 1},
    };
    static const char *const names[] = {"a", "b", "c"};
    static const bool absent[] = {false, true, true, false};
    (void)state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        fixture_t f;
        start(&f);
        wefti_graph_t *g = f.graph;
        const bool product = forms[i].w[0] > 0;
        const weft_attr_t attrs[] = {ATTR_FLOAT("alpha", 0.75f),
                                     ATTR_INT("transA", forms[i].exchange), ATTR_INT("transB", 1)};
        uint32_t inputs[5] = {test_param(g, "x", DIMS(2, 3, 4))}, node;
        wefti_node_params_t params = {.domain = "com.microsoft",
                                      .op = forms[i].op,
                                      .name = "y",
                                      .inputs = inputs,
                                      .input_count = 1,
                                      .output_count = forms[i].skip ? 4 : 1,
                                      .output_absent = absent,
                                      .attrs = attrs,
                                      .attr_count = product          ? 3
                                                    : forms[i].alpha ? 1
                                                                     : 0};
        if (product) {
            const int64_t *w = forms[i].w;
            inputs[params.input_count++] =
                test_param(g, "w", w[0] == 2 ? DIMS(w[1], w[2]) : DIMS(w[1], w[2], w[3]));
        } else if (forms[i].skip) {
            inputs[params.input_count++] = test_param(g, "skip", DIMS(3, 4));
        }
        for (uint32_t k = 0; k < forms[i].rows; k++) {
            inputs[params.input_count++] = test_param(g, names[k], DIMS(4));
        }
        CHECK(wefti_graph_add_node(g, &params, &node));
        uint32_t y = g->nodes[node].outputs[0];
        y = forms[i].skip ? test_node(g, "Mul", "z", INPUTS(y, g->nodes[node].outputs[3]), NULL, 0)
                          : y;
        finish_with_loss(&f, y);
    }
}

/* Functions of positive numbers (exp(p)) and of any; form: attribute approximate. */
static void functions(void **state)
{
    static const struct {
        const char *op, *form;
        int domain; /* 0: all numbers, 1: positive, 2: above 1, 3: between -1 and 1 */
    } rows[] = {
        {"Neg", NULL, 0},       {"Exp", NULL, 0},        {"Log", NULL, 1},
        {"Sqrt", NULL, 1},      {"Reciprocal", NULL, 1}, {"Erf", NULL, 0},
        {"Gelu", NULL, 0},      {"Gelu", "tanh", 0},     {"Abs", NULL, 0},
        {"Cos", NULL, 0},       {"Sin", NULL, 0},        {"Atan", NULL, 0},
        {"Elu", NULL, 0},       {"Selu", NULL, 0},       {"Celu", NULL, 0},
        {"LeakyRelu", NULL, 0}, {"Softplus", NULL, 0},   {"Softsign", NULL, 0},
        {"Mish", NULL, 0},      {"Swish", NULL, 0},      {"ThresholdedRelu", NULL, 1},
        {"Tan", NULL, 0},       {"Cosh", NULL, 0},       {"Sinh", NULL, 0},
        {"Asinh", NULL, 0},     {"Acosh", NULL, 2},      {"Asin", NULL, 3},
        {"Acos", NULL, 3},      {"Atanh", NULL, 3},
    };
    static const float exponents[] = {2, 3, 0.5f, -0.5f, -1, 1, 1.75f, 0};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fixture_t f;
        start(&f);
        const weft_attr_t approximate = ATTR_STRING("approximate", rows[i].form);
        uint32_t p = test_param(f.graph, "p", DIMS(4, 5));
        uint32_t positive = test_node(f.graph, "Exp", "e", INPUTS(p), NULL, 0);
        const float one_and_half = 1.5f;
        uint32_t shift =
            test_value(f.graph, "shift", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(1), &one_and_half);
        uint32_t x = rows[i].domain == 1 || rows[i].domain == 2 ? positive : p;
        x = rows[i].domain == 2 ? test_node(f.graph, "Add", "x", INPUTS(x, shift), NULL, 0)
            : rows[i].domain == 3
                ? test_node(f.graph, "Div", "x",
                            INPUTS(test_node(f.graph, "Tanh", "t", INPUTS(x), NULL, 0), shift),
                            NULL, 0)
                : x;
        uint32_t y = test_node(f.graph, rows[i].op, "y", INPUTS(x), &approximate,
                               rows[i].form != NULL ? 1 : 0);
        uint32_t exponent = test_value(f.graph, "exponent", WEFTI_VALUE_CONST, WEFT_DTYPE_F32,
                                       DIMS(1), &exponents[i % 8]);
        uint32_t z = test_node(f.graph, "Pow", "z", INPUTS(positive, exponent), NULL, 0);
        uint32_t flat = test_node(f.graph, i % 2 ? "Sign" : "Floor", "flat", INPUTS(p), NULL, 0);
        z = test_node(f.graph, "Add", "stairs", INPUTS(z, flat), NULL, 0);
        finish_with_loss(&f, test_node(f.graph, "Add", "sum", INPUTS(y, z), NULL, 0));
    }
}

/* Operators of several tensors that broadcast; an input may be there twice. */
static void several(void **state)
{
    static const char *const ops[] = {"Max", "Min", "Sum", "Mean", "PRelu"};
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        fixture_t f;
        start(&f);
        uint32_t p = test_param(f.graph, "p", DIMS(4, 5)), q = test_param(f.graph, "q", DIMS(5));
        uint32_t y = i == 4 ? test_node(f.graph, ops[i], "y", INPUTS(p, q), NULL, 0)
                            : test_node(f.graph, ops[i], "y",
                                        INPUTS(q, p, test_param(f.graph, "r", DIMS(4, 1)), p,
                                               test_param(f.graph, "s", DIMS(4, 5))),
                                        NULL, 0);
        finish_with_loss(&f, y);
    }
}

/* Softmax in both forms, and rows of one and of several dimensions. */
static void rows(void **state)
{
    static const char *const ops[] = {"Softmax", "LogSoftmax", "LayerNormalization"};
    (void)state;
    for (int i = 0; i < 12; i++) {
        fixture_t f;
        start(&f);
        int kind = i % 3, axis = i / 3 % 2 + 1;
        wefti_graph_t *g = f.graph;
        const weft_attr_t attrs[] = {ATTR_INT("axis", axis)};
        uint32_t p = test_param(g, "p", DIMS(3, 4, 5));
        uint32_t scale = test_param(g, "scale", axis == 1 ? DIMS(4, 5) : DIMS(5)), node, y;
        if (kind == 2) {
            uint32_t bias =
                i < 6 ? test_param(g, "bias", axis == 1 ? DIMS(4, 5) : DIMS(5)) : WEFTI_NONE;
            y = test_node(g, ops[2], "y", INPUTS(p, scale, bias), attrs, 1);
        } else {
            const uint32_t inputs[] = {p};
            wefti_node_params_t params = {.op = ops[kind],
                                          .version = i < 6 ? 13 : 11,
                                          .inputs = inputs,
                                          .input_count = 1,
                                          .output_count = 1,
                                          .attrs = attrs,
                                          .attr_count = 1};
            CHECK(wefti_graph_add_node(g, &params, &node));
            y = test_node(g, "Mul", "scaled", INPUTS(g->nodes[node].outputs[0], scale), NULL, 0);
        }
        finish_with_loss(&f, test_node(g, "Mul", "twice", INPUTS(y, y), NULL, 0));
    }
}

/* Masks stay as they are while seed, step and rank do. */
static void dropout(void **state)
{
    static const float ratio = 0.375f;
    static const uint8_t on = 1, off = 0;
    (void)state;
    fixture_t f;
    start(&f);
    wefti_graph_t *g = f.graph;
    uint32_t share = test_value(g, "r", WEFTI_VALUE_CONST, WEFT_DTYPE_F32, DIMS(1), &ratio);
    uint32_t yes = test_value(g, "on", WEFTI_VALUE_CONST, WEFT_DTYPE_BOOL, DIMS(1), &on);
    uint32_t no = test_value(g, "off", WEFTI_VALUE_CONST, WEFT_DTYPE_BOOL, DIMS(1), &off);
    uint32_t x = test_input(g, "x", DIMS(5, 8));
    x = test_node(g, "Dropout", "input", INPUTS(x, share, yes), NULL, 0); /* no gradient */
    uint32_t w = test_node(g, "Dropout", "connections",
                           INPUTS(test_param(g, "w", DIMS(8, 6)), share, yes), NULL, 0);
    uint32_t y = test_node(g, "MatMul", "y", INPUTS(x, w), NULL, 0);
    y = test_node(g, "Dropout", "hidden",
                  INPUTS(test_node(g, "Tanh", "t", INPUTS(y), NULL, 0), share, yes), NULL, 0);
    y = test_node(g, "Dropout", "never", INPUTS(y, share, no), NULL, 0);
    y = test_node(g, "Add", "z", INPUTS(y, test_param(g, "b", DIMS(5, 6))), NULL, 0);
    finish_with_loss(&f, test_node(g, "Dropout", "last", INPUTS(y, share, yes), NULL, 0));
}

static void lenet(void **state)
{
    (void)state;
    fixture_t f;
    start(&f);
    weft_attr_t two[] = {ATTR_INTS("kernel_shape", 2, 2, 2), ATTR_INTS("strides", 2, 2, 2)};
    weft_attr_t trans[] = {ATTR_INT("transB", 1)}, padded[] = {ATTR_INTS("pads", 4, 1, 1, 1, 1)};
    wefti_graph_t *g = f.graph;
    uint32_t y = test_input(g, "x", DIMS(2, 1, 8, 8));
    y = test_node(g, "Conv", "c1",
                  INPUTS(y, test_param(g, "w1", DIMS(3, 1, 3, 3)), test_param(g, "b1", DIMS(3))),
                  padded, 1);
    y = test_node(g, "MaxPool", "m1", INPUTS(test_node(g, "Tanh", "r1", INPUTS(y), NULL, 0)), two,
                  2);
    y = test_node(g, "Conv", "c2",
                  INPUTS(y, test_param(g, "w2", DIMS(4, 3, 3, 3)), test_param(g, "b2", DIMS(4))),
                  NULL, 0);
    y = test_node(g, "AveragePool", "m2", INPUTS(test_node(g, "Relu", "r2", INPUTS(y), NULL, 0)),
                  two, 2);
    y = test_node(g, "Flatten", "f", INPUTS(y), NULL, 0);
    y = test_node(g, "Gemm", "fc",
                  INPUTS(y, test_param(g, "w3", DIMS(5, 4)), test_param(g, "b3", DIMS(5))), trans,
                  1);
    finish_with_loss(&f, y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm),
        cmocka_unit_test(matmul),
        cmocka_unit_test(broadcast_binary),
        cmocka_unit_test(division),
        cmocka_unit_test(unary),
        cmocka_unit_test(clip),
        cmocka_unit_test(reductions),
        cmocka_unit_test(concat),
        cmocka_unit_test(shapes),
        cmocka_unit_test(conv),
        cmocka_unit_test(pooling),
        cmocka_unit_test(conv_transpose),
        cmocka_unit_test(batch_norm),
        cmocka_unit_test(pad),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(parts),
        cmocka_unit_test(functions),
        cmocka_unit_test(expanded),
        cmocka_unit_test(optimized),
        cmocka_unit_test(resampled),
        cmocka_unit_test(indexed),
        cmocka_unit_test(several),
        cmocka_unit_test(rows),
        cmocka_unit_test(dropout),
        cmocka_unit_test(lenet),
        cmocka_unit_test(shared_and_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
