/* SPDX-License-Identifier: Apache-2.0 */
/* Poolings against brute force over windows, gradients against finite differences, both layouts. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct {
    int64_t n, c, h, w;
    int64_t kernel[2], stride[2], dilation[2], pads[4];
    int64_t ceil_mode, include_pad;
    int64_t out[2]; /* expected; from onnx 1.12's shape inference and torch for ceil_mode */
} pool_t;

static const pool_t pools[] = {
    {64, 6, 28, 28, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 0, 0, {14, 14}}, /* LeNet */
    {2, 16, 10, 10, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 0, 1, {5, 5}},
    {3, 2, 7, 9, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 0, 0, {3, 4}}, /* one left over */
    {1, 2, 4, 71, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 0, 0, {2, 35}},
    {1, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}, 0, 0, {1, 1}},
    {2, 3, 7, 9, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 0, 0, {4, 5}},
    {2, 3, 7, 9, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 0, 1, {4, 5}},
    {1, 5, 7, 8, {3, 2}, {1, 1}, {1, 1}, {2, 0, 1, 1}, 0, 0, {8, 8}},
    {1, 2, 6, 6, {2, 2}, {2, 2}, {1, 1}, {1, 1, 0, 0}, 1, 1, {4, 4}},
    {1, 2, 4, 4, {3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 1, 0, {2, 2}},
    {1, 2, 5, 5, {2, 2}, {3, 3}, {1, 1}, {0, 0, 0, 0}, 1, 0, {2, 2}},
    {1, 3, 9, 9, {2, 3}, {1, 2}, {2, 3}, {1, 2, 1, 2}, 0, 0, {9, 4}},
    {1, 1, 1, 300, {1, 5}, {1, 1}, {1, 1}, {0, 2, 0, 2}, 0, 0, {1, 300}},
    {1, 200, 3, 3, {2, 2}, {1, 1}, {1, 1}, {0, 0, 0, 0}, 0, 0, {2, 2}},
    {0, 3, 4, 4, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 0, 0, {2, 2}},
};

static void add_attrs(op_case_t *c, const pool_t *p)
{
    bool dilated = p->dilation[0] != 1 || p->dilation[1] != 1;
    case_ints(c, "kernel_shape", DIMS(p->kernel[0], p->kernel[1]));
    case_ints(c, "strides", DIMS(p->stride[0], p->stride[1]));
    case_ints(c, "pads", DIMS(p->pads[0], p->pads[1], p->pads[2], p->pads[3]));
    case_int(c, "ceil_mode", p->ceil_mode);
    case_int(c, "count_include_pad", p->include_pad);
    if (dilated) {
        case_ints(c, "dilations", DIMS(p->dilation[0], p->dilation[1]));
    }
}

typedef struct {
    double best, sum;
    int64_t tap, inside, padded;
} window_t;

/* Looks at one window the slow way. */
static window_t look(const pool_t *p, const weft_tensor_desc_t *t, const float *x, int64_t n,
                     int64_t c, int64_t oy, int64_t ox)
{
    window_t result = {-INFINITY, 0, -1, 0, 0};
    for (int64_t ky = 0; ky < p->kernel[0]; ky++) {
        for (int64_t kx = 0; kx < p->kernel[1]; kx++) {
            int64_t iy = oy * p->stride[0] - p->pads[0] + ky * p->dilation[0];
            int64_t ix = ox * p->stride[1] - p->pads[1] + kx * p->dilation[1];
            result.padded += iy < p->h + p->pads[2] && ix < p->w + p->pads[3];
            if (iy < 0 || iy >= p->h || ix < 0 || ix >= p->w) {
                continue;
            }
            double value = x[offset4(t, n, c, iy, ix)];
            result.inside++;
            result.sum += value;
            if (result.tap < 0 || value > result.best || (isnan(value) && !isnan(result.best))) {
                result.best = value;
                result.tap = ky * p->kernel[1] + kx;
            }
        }
    }
    return result;
}

static void fill_tied(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)random_below(5) - 3.0f; /* many equal maxima */
    }
}

static void check_forward(const pool_t *p, weft_layout_t layout)
{
    op_case_t m = case_make("weft", "MaxPoolMask", 1), a = case_make("", "AveragePool", 19);
    const int64_t *dims = DIMS(p->n, p->c, p->h, p->w);
    float *x = case_input_typed(&m, WEFT_DTYPE_F32, layout, dims);
    fill_tied(x, case_count(&m.inputs[0]));
    memcpy(case_input_typed(&a, WEFT_DTYPE_F32, layout, dims), x,
           (size_t)case_count(&m.inputs[0]) * sizeof(*x));
    add_attrs(&m, p);
    add_attrs(&a, p);
    assert_int_equal(case_infer(&m, 2, layout), WEFT_OK);
    assert_int_equal(case_infer(&a, 1, layout), WEFT_OK);
    assert_int_equal(m.outputs[0].dims[2], p->out[0]);
    assert_int_equal(m.outputs[0].dims[3], p->out[1]);
    case_run(&m);
    case_run(&a);
    for (int64_t i = 0; i < case_count(&m.outputs[0]); i++) {
        int64_t ox = i % p->out[1], oy = i / p->out[1] % p->out[0];
        int64_t c = i / (p->out[0] * p->out[1]) % p->c, n = i / (p->out[0] * p->out[1] * p->c);
        int64_t at = offset4(&m.outputs[0], n, c, oy, ox);
        window_t w = look(p, &m.inputs[0], x, n, c, oy, ox);
        assert_true(((float *)m.out[0])[at] == (float)w.best);
        assert_int_equal(((uint8_t *)m.out[1])[at], w.tap);
        assert_close(((float *)a.out[0])[at],
                     w.sum / (double)(p->include_pad ? w.padded : w.inside), 1e-6, "mean", at);
    }
    op_case_t plain = m; /* MaxPool proper gives the same maxima */
    plain.domain = "";
    plain.op = "MaxPool";
    plain.version = 12;
    plain.output_count = 1;
    float *kept = plain.out[0];
    float copy[4] = {0};
    size_t some = case_count(&m.outputs[0]) < 4 ? (size_t)case_count(&m.outputs[0]) : 4;
    memcpy(copy, kept, some * sizeof(*copy));
    case_run(&plain);
    assert_memory_equal(copy, plain.out[0], some * sizeof(*copy));
    case_free(&m);
    case_free(&a);
}

static void test_pools_match_brute_force(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
        check_forward(&pools[i], WEFT_LAYOUT_PLAIN);
        check_forward(&pools[i], WEFT_LAYOUT_CHANNELS_LAST);
    }
}

/* Distinct values with gaps well above the step, so that no maximum changes. */
static void fill_distinct(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(i * 7919 % 104729) / 1000.0f;
    }
}

static void check_gradient(const pool_t *p, weft_layout_t layout, bool max)
{
    op_case_t f = case_make(max ? "weft" : "", max ? "MaxPoolMask" : "AveragePool", max ? 1 : 19);
    op_case_t g = case_make("weft", max ? "MaxPoolGrad" : "AveragePoolGrad", 1);
    const int64_t *dims = DIMS(p->n, p->c, p->h, p->w);
    float *x = case_input_typed(&f, WEFT_DTYPE_F32, layout, dims);
    fill_distinct(x, case_count(&f.inputs[0]));
    add_attrs(&f, p);
    assert_int_equal(case_infer(&f, max ? 2 : 1, layout), WEFT_OK);
    case_run(&f);
    const int64_t *out = DIMS(p->n, p->c, p->out[0], p->out[1]);
    float *dy = case_input_typed(&g, WEFT_DTYPE_F32, layout, out);
    random_fill(dy, case_count(&g.inputs[0]), -1.0f, 1.0f);
    if (max) {
        memcpy(case_input_typed(&g, WEFT_DTYPE_U8, layout, out), f.out[1],
               (size_t)case_count(&g.inputs[0]));
    }
    add_attrs(&g, p);
    case_ints(&g, "input_shape", dims);
    assert_int_equal(case_infer(&g, 1, layout), WEFT_OK);
    case_run(&g);
    /* Every window's share arrives: the sums agree; and each of some elements has the right slope.
     */
    int64_t count = case_count(&f.inputs[0]);
    for (int64_t k = 0; k < 60 && count > 0; k++) {
        int64_t i = count <= 60 ? k % count : random_below((uint32_t)count);
        double want = finite_difference(&f, 0, i, dy, max ? 4e-4f : 0.5f);
        assert_close(((float *)g.out[0])[i], want, max ? 2e-2 : 2e-4, "dX", i);
    }
    case_free(&f);
    case_free(&g);
}

static void test_gradients_match_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 1; i < sizeof(pools) / sizeof(pools[0]); i++) {
        for (int layout = WEFT_LAYOUT_PLAIN; layout <= WEFT_LAYOUT_CHANNELS_LAST; layout++) {
            check_gradient(&pools[i], (weft_layout_t)layout, true);
            check_gradient(&pools[i], (weft_layout_t)layout, false);
        }
    }
}

static void test_one_dimensional_and_same_padding(void **state)
{
    op_case_t c = case_make("", "MaxPool", 12);
    (void)state;
    float *x = case_input(&c, DIMS(1, 1, 6));
    for (int i = 0; i < 6; i++) {
        x[i] = (float)(i == 2 ? 9 : i);
    }
    case_ints(&c, "kernel_shape", DIMS(3));
    case_ints(&c, "strides", DIMS(2));
    case_string(&c, "auto_pad", "SAME_LOWER");
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(c.outputs[0].dims[2], 3);
    case_run(&c); /* one element of padding, at the beginning */
    assert_true(((float *)c.out[0])[0] == 1.0f && ((float *)c.out[0])[1] == 9.0f &&
                ((float *)c.out[0])[2] == 5.0f);
    case_free(&c);
}

static void test_max_pool_propagates_nan(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        op_case_t c = case_make("", "MaxPool", 12);
        float *x = case_input(&c, DIMS(1, 1, 2, 2));
        for (int i = 0; i < 4; i++) {
            x[i] = i == at ? NAN : (float)i;
        }
        case_ints(&c, "kernel_shape", DIMS(2, 2));
        assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        assert_true(isnan(((float *)c.out[0])[0]));
        case_free(&c);
    }
}

static void test_hostile_mask_stays_inside(void **state)
{
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        op_case_t g = case_make("weft", "MaxPoolGrad", 1);
        const pool_t *p = &pools[3];
        const int64_t *out = DIMS(p->n, p->c, p->out[0], p->out[1]);
        float *dy = case_input_typed(&g, WEFT_DTYPE_F32, (weft_layout_t)layout, out);
        int64_t count = case_count(&g.inputs[0]);
        random_fill(dy, count, -1.0f, 1.0f);
        uint8_t *mask = case_input_typed(&g, WEFT_DTYPE_U8, (weft_layout_t)layout, out);
        for (int64_t i = 0; i < count; i++) {
            mask[i] = (uint8_t)random_below(256);
        }
        add_attrs(&g, p);
        case_ints(&g, "input_shape", DIMS(p->n, p->c, p->h, p->w));
        assert_int_equal(case_infer(&g, 1, (weft_layout_t)layout), WEFT_OK);
        case_run(&g); /* the sanitizer and malloc's checks are the judge */
        case_free(&g);
    }
}

static void test_window_without_input_has_no_maximum(void **state)
{
    /* Dilation lets both taps fall into the padding; nothing may be read there. */
    (void)state;
    for (uint32_t outputs = 1; outputs <= 2; outputs++) { /* with Indices: another kernel */
        for (int bytes = 0; bytes < 2; bytes++) {
            op_case_t c = case_make("", "MaxPool", 12);
            weft_dtype_t dtype = bytes != 0 ? WEFT_DTYPE_I8 : WEFT_DTYPE_F32;
            void *x = case_input_typed(&c, dtype, WEFT_LAYOUT_PLAIN, DIMS(1, 1, 1, 1));
            if (bytes != 0) {
                *(int8_t *)x = -3;
            } else {
                *(float *)x = 3.0f;
            }
            case_ints(&c, "kernel_shape", DIMS(2, 2));
            case_ints(&c, "dilations", DIMS(2, 2));
            case_ints(&c, "pads", DIMS(1, 1, 1, 1));
            assert_int_equal(case_infer(&c, outputs, WEFT_LAYOUT_PLAIN), WEFT_OK);
            case_run(&c);
            assert_true(bytes != 0 ? ((int8_t *)c.out[0])[0] == INT8_MIN
                                   : ((float *)c.out[0])[0] == -INFINITY);
            case_free(&c);
        }
    }
}

static void test_global_average(void **state)
{
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        op_case_t c = case_make("", "GlobalAveragePool", 1);
        float *x = case_input_typed(&c, WEFT_DTYPE_F32, (weft_layout_t)layout, DIMS(3, 5, 7, 9));
        random_fill(x, 945, -1.0f, 1.0f);
        assert_int_equal(case_infer(&c, 1, (weft_layout_t)layout), WEFT_OK);
        case_run(&c);
        for (int64_t i = 0; i < 15; i++) {
            double sum = 0;
            for (int64_t k = 0; k < 63; k++) {
                sum += x[offset4(&c.inputs[0], i / 5, i % 5, k / 9, k % 9)];
            }
            assert_close(((float *)c.out[0])[i], sum / 63, 1e-6, "mean", i);
        }
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools_match_brute_force),
        cmocka_unit_test(test_gradients_match_finite_differences),
        cmocka_unit_test(test_one_dimensional_and_same_padding),
        cmocka_unit_test(test_max_pool_propagates_nan),
        cmocka_unit_test(test_hostile_mask_stays_inside),
        cmocka_unit_test(test_window_without_input_has_no_maximum),
        cmocka_unit_test(test_global_average),
    };
    random_seed(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
