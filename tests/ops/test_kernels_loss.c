/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, cross entropy and its gradient against double precision and finite differences. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct {
    int64_t n, c, inner; /* inner 0: no further dimension */
    const char *reduction;
    bool weighted, narrow;
    int64_t ignored; /* -1000: attribute absent */
    float smoothing; /* as in torch.nn.CrossEntropyLoss */
} loss_t;

#define NO_IGNORE -1000

static const loss_t losses[] = {
    {64, 10, 0, "mean", false, false, NO_IGNORE, 0},
    {64, 10, 0, "sum", false, true, NO_IGNORE, 0},
    {7, 33, 0, "none", true, false, NO_IGNORE, 0},
    {1, 1, 0, "mean", false, false, NO_IGNORE, 0},
    {9, 2, 0, "mean", true, true, 1, 0},
    {9, 5, 0, "mean", true, false, 2, 0},
    {9, 5, 4, "mean", true, false, -100, 0},
    {3, 4, 6, "none", false, true, 0, 0},
    {3, 4, 6, "sum", true, false, NO_IGNORE, 0},
    {0, 4, 0, "sum", false, false, NO_IGNORE, 0},
    {64, 10, 0, "mean", false, false, NO_IGNORE, 0.1f},
    {9, 5, 4, "mean", true, false, -100, 0.25f},
    {3, 4, 6, "none", true, true, 0, 0.5f},
};

static void set_label(void *labels, bool narrow, int64_t i, int64_t label)
{
    if (narrow) {
        ((int32_t *)labels)[i] = (int32_t)label;
    } else {
        ((int64_t *)labels)[i] = label;
    }
}

static int64_t get_label(const void *labels, bool narrow, int64_t i)
{
    return narrow ? ((const int32_t *)labels)[i] : ((const int64_t *)labels)[i];
}

static void add_attrs(op_case_t *c, const loss_t *l)
{
    case_string(c, "reduction", l->reduction);
    if (l->ignored != NO_IGNORE) {
        case_int(c, "ignore_index", l->ignored);
    }
    if (l->smoothing != 0) {
        case_float(c, "label_smoothing", l->smoothing);
    }
}

static int64_t rows_of(const loss_t *l)
{
    return l->n * (l->inner == 0 ? 1 : l->inner);
}

static const int64_t *shape(const loss_t *l, bool with_classes, int64_t *dims)
{
    int d = 0;
    dims[d++] = l->n;
    if (with_classes) {
        dims[d++] = l->c;
    }
    if (l->inner > 0) {
        dims[d++] = l->inner;
    }
    dims[d] = -2;
    return dims;
}

static op_case_t make_loss(const loss_t *l)
{
    bool smooth = l->smoothing != 0;
    op_case_t c = case_make(smooth ? "weft" : "", "SoftmaxCrossEntropyLoss", smooth ? 1 : 13);
    int64_t dims[4];
    float *x = case_input(&c, shape(l, true, dims));
    random_fill(x, case_count(&c.inputs[0]), -4.0f, 4.0f);
    void *labels = case_input_typed(&c, l->narrow ? WEFT_DTYPE_I32 : WEFT_DTYPE_I64,
                                    WEFT_LAYOUT_PLAIN, shape(l, false, dims));
    for (int64_t i = 0; i < rows_of(l); i++) {
        bool ignore = l->ignored != NO_IGNORE && i % 3 == 1;
        set_label(labels, l->narrow, i, ignore ? l->ignored : random_below((uint32_t)l->c));
    }
    if (l->weighted) {
        random_fill(case_input(&c, DIMS(l->c)), l->c, 0.5f, 2.0f);
    }
    add_attrs(&c, l);
    return c;
}

/* The formula of the ONNX documentation in double. want_log: [n, c, inner]; want: one per row. */
static double reference(const loss_t *l, const op_case_t *c, double *want_log, double *want)
{
    int64_t inner = l->inner == 0 ? 1 : l->inner;
    const float *x = c->in[0], *weights = l->weighted ? c->in[2] : NULL;
    double total = 0, weight_total = 0;
    for (int64_t row = 0; row < rows_of(l); row++) {
        int64_t first = row / inner * l->c * inner + row % inner;
        int64_t label = get_label(c->in[1], l->narrow, row);
        double sum = 0, top = -INFINITY;
        for (int64_t k = 0; k < l->c; k++) {
            top = fmax(top, x[first + k * inner]);
        }
        for (int64_t k = 0; k < l->c; k++) {
            sum += exp(x[first + k * inner] - top);
        }
        for (int64_t k = 0; k < l->c; k++) {
            want_log[first + k * inner] = x[first + k * inner] - top - log(sum);
        }
        bool ignore = l->ignored != NO_IGNORE && label == l->ignored;
        double weight = ignore ? 0 : weights == NULL ? 1 : weights[label];
        want[row] = ignore ? 0 : -(1 - l->smoothing) * weight * want_log[first + label * inner];
        for (int64_t k = 0; k < l->c && !ignore; k++) {
            want[row] -= l->smoothing / (double)l->c * (weights == NULL ? 1 : weights[k]) *
                         want_log[first + k * inner];
        }
        total += want[row];
        weight_total += weight;
    }
    return strcmp(l->reduction, "mean") == 0 ? total / weight_total : total;
}

static void test_loss_follows_the_formula(void **state)
{
    static double want_log[4096], want[4096];
    (void)state;
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        const loss_t *l = &losses[i];
        op_case_t c = make_loss(l);
        assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        case_run_in_place(&c);
        double total = reference(l, &c, want_log, want);
        for (int64_t k = 0; k < case_count(&c.outputs[1]); k++) {
            assert_close(((float *)c.out[1])[k], want_log[k], 1e-6, "log_prob", k);
        }
        for (int64_t k = 0; k < case_count(&c.outputs[0]); k++) {
            bool none = strcmp(l->reduction, "none") == 0;
            assert_close(((float *)c.out[0])[k], none ? want[k] : total, 1e-6, "loss", k);
        }
        float first = case_count(&c.outputs[0]) > 0 ? ((float *)c.out[0])[0] : 0;
        c.outputs[1].dtype = WEFT_DTYPE_NONE; /* the second output is optional: same loss */
        c.output_count = 1;
        case_run(&c);
        if (case_count(&c.outputs[0]) > 0) {
            assert_memory_equal(&first, c.out[0], sizeof(first));
        }
        c.output_count = 2;
        case_free(&c);
    }
}

static void test_gradient_matches_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        const loss_t *l = &losses[i];
        op_case_t f = make_loss(l),
                  g = case_make("com.microsoft", "SoftmaxCrossEntropyLossGrad", 1);
        int64_t dims[4];
        bool none = strcmp(l->reduction, "none") == 0;
        assert_int_equal(case_infer(&f, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&f);
        float *dloss = case_input(&g, none ? shape(l, false, dims) : SCALAR);
        random_fill(dloss, case_count(&g.inputs[0]), 0.5f, 1.5f);
        int64_t count = case_count(&f.inputs[0]);
        memcpy(case_input(&g, shape(l, true, dims)), f.out[1], (size_t)count * 4);
        weft_dtype_t type = l->narrow ? WEFT_DTYPE_I32 : WEFT_DTYPE_I64;
        memcpy(case_input_typed(&g, type, WEFT_LAYOUT_PLAIN, shape(l, false, dims)), f.in[1],
               (size_t)rows_of(l) * weft_dtype_size_bytes(type));
        if (l->weighted) {
            memcpy(case_input(&g, DIMS(l->c)), f.in[2], (size_t)l->c * 4);
        }
        add_attrs(&g, l);
        assert_int_equal(case_infer(&g, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&g);
        case_run_in_place(&g);
        for (int64_t k = 0; k < count; k++) {
            double want = finite_difference(&f, 0, k, dloss, 2e-2f);
            assert_close(((float *)g.out[0])[k], want, 1e-3, "dLogits", k);
        }
        case_free(&f);
        case_free(&g);
    }
}

static void test_labels_outside_are_an_error(void **state)
{
    static const int64_t bad[] = {-1, 10, INT32_MAX, INT32_MIN};
    const loss_t l = {4, 10, 0, "mean", true, false, -100, 0};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        op_case_t c = make_loss(&l),
                  g = case_make("com.microsoft", "SoftmaxCrossEntropyLossGrad", 1);
        int64_t dims[4];
        set_label(c.in[1], false, 2, bad[i]);
        assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
        assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_last_error(), "position 2"));
        *case_input(&g, SCALAR) = 1.0f;
        random_fill(case_input(&g, shape(&l, true, dims)), 40, -3.0f, -1.0f);
        memcpy(case_input_typed(&g, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(4)), c.in[1], 32);
        assert_int_equal(case_infer(&g, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        assert_int_equal(case_run_isa(&g, 0), WEFT_ERR_INVALID_ARGUMENT);
        case_free(&c);
        case_free(&g);
    }
}

static void check_softmax(const char *op, int32_t version, const int64_t *dims, int64_t axis,
                          int64_t outer, int64_t length, int64_t inner)
{
    op_case_t c = case_make("", op, version);
    float *x = case_input(&c, dims);
    random_fill(x, case_count(&c.inputs[0]), -80.0f, 80.0f);
    case_int(&c, "axis", axis);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_in_place(&c);
    for (int64_t o = 0; o < outer * inner; o++) {
        const float *row = x + o / inner * length * inner + o % inner;
        const float *got = (float *)c.out[0] + (row - x);
        double sum = 0, top = -INFINITY;
        for (int64_t k = 0; k < length; k++) {
            top = fmax(top, row[k * inner]);
        }
        for (int64_t k = 0; k < length; k++) {
            sum += exp(row[k * inner] - top);
        }
        for (int64_t k = 0; k < length; k++) {
            double want = row[k * inner] - top - log(sum);
            want = strcmp(op, "Softmax") == 0 ? exp(want) : want;
            assert_close(got[k * inner], want, 5e-7, op, k);
        }
    }
    case_free(&c);
}

static void test_softmax(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *op = i == 0 ? "Softmax" : "LogSoftmax";
        check_softmax(op, 13, DIMS(5, 10), -1, 5, 10, 1);
        check_softmax(op, 13, DIMS(5, 100), 0, 1, 5, 100);
        check_softmax(op, 13, DIMS(2, 3, 17), 1, 2, 3, 17);
        check_softmax(op, 11, DIMS(2, 3, 17), 1, 2, 51, 1); /* the older meaning: rows of 51 */
        check_softmax(op, 13, DIMS(1, 1), 1, 1, 1, 1);
    }
}

static void test_nan_and_infinity(void **state)
{
    op_case_t c = case_make("", "Softmax", 13);
    (void)state;
    float *x = case_input(&c, DIMS(3, 3));
    const float values[9] = {0, NAN, 1, -INFINITY, 0, 0, -INFINITY, -INFINITY, 5};
    memcpy(x, values, sizeof(values));
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    const float *y = c.out[0];
    assert_true(isnan(y[0]) && isnan(y[1]) && isnan(y[2]));
    assert_true(y[3] == 0.0f && y[4] == 0.5f && y[5] == 0.5f);
    assert_true(y[6] == 0.0f && y[7] == 0.0f && y[8] == 1.0f);
    case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_follows_the_formula),
        cmocka_unit_test(test_gradient_matches_finite_differences),
        cmocka_unit_test(test_labels_outside_are_an_error),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_nan_and_infinity),
    };
    random_seed(5);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
