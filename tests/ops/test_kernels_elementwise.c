/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise operators, broadcasting and SumTo against double precision and brute force; fused
 * operators against single ones. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"

static const int64_t sizes[] = {0, 1, 7, 16, 33, 1000};

static float special(int64_t i)
{
    static const float values[] = {0.0f,   -0.0f,   INFINITY, -INFINITY, NAN,
                                   1e-40f, -1e-40f, 88.0f,    -9.1f};
    return values[i % 9];
}

static void test_relu_and_its_gradient(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        op_case_t c = case_make("", "Relu", 14), g = case_make("com.microsoft", "ReluGrad", 1);
        float *x = case_input(&c, DIMS(sizes[s]));
        random_fill(x, sizes[s], -1.0f, 1.0f);
        for (int64_t i = 0; i < 9 && i < sizes[s]; i++) {
            x[sizes[s] - 1 - i] = special(i);
        }
        assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        case_run_in_place(&c);
        float *dy = case_input(&g, DIMS(sizes[s]));
        random_fill(dy, sizes[s], -1.0f, 1.0f);
        memcpy(case_input(&g, DIMS(sizes[s])), c.out[0], (size_t)sizes[s] * 4);
        assert_int_equal(case_infer(&g, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&g);
        case_run_in_place(&g);
        for (int64_t i = 0; i < sizes[s]; i++) {
            float y = ((float *)c.out[0])[i];
            assert_true(isnan(x[i]) ? isnan(y) : y == (x[i] > 0 ? x[i] : 0.0f) && !signbit(y));
            assert_true(((float *)g.out[0])[i] == (x[i] > 0 ? dy[i] : 0.0f));
        }
        case_free(&c);
        case_free(&g);
    }
}

static void test_tanh_is_accurate(void **state)
{
    const int64_t count = 100003;
    op_case_t c = case_make("", "Tanh", 13);
    (void)state;
    float *x = case_input(&c, DIMS(count));
    for (int64_t i = 0; i < count; i++) {
        x[i] = i < 9 ? special(i) : (float)((double)(i - 9) / (double)count * 24.0 - 12.0);
    }
    for (int64_t i = 0; i < 1000; i++) { /* small ones too: powers from 2^-30 up */
        x[20 + i] = ldexpf(random_float(-1.0f, 1.0f), -(int)(i % 31));
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_in_place(&c);
    for (int64_t i = 0; i < count; i++) {
        double want = tanh((double)x[i]), got = ((float *)c.out[0])[i];
        /* Five units in the last place, of denormals one. */
        if (!(fabs(got - want) <= 5.0 * 1.2e-7 * fabs(want) + 1.5e-45) && !isnan(want)) {
            fail_msg("tanh(%.9g) is %.9g, expected %.9g", (double)x[i], got, want);
        }
        assert_true(isnan(want) == isnan(got));
        assert_true(isnan(got) || signbit(got) == signbit(want));
        assert_true(!(fabsf(x[i]) >= 9.1f) || fabs(got) == 1.0);
    }
    case_free(&c);
}

static void test_tanh_gradient_is_the_slope(void **state)
{
    op_case_t c = case_make("", "Tanh", 13), g = case_make("weft", "TanhGrad", 1);
    (void)state;
    float *x = case_input(&c, DIMS(5, 7));
    random_fill(x, 35, -2.0f, 2.0f);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    float *dy = case_input(&g, DIMS(5, 7));
    random_fill(dy, 35, -1.0f, 1.0f);
    memcpy(case_input(&g, DIMS(5, 7)), c.out[0], 35 * 4);
    assert_int_equal(case_infer(&g, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&g);
    case_run_in_place(&g);
    for (int64_t i = 0; i < 35; i++) {
        assert_close(((float *)g.out[0])[i], finite_difference(&c, 0, i, dy, 1e-2f), 2e-4, "dX", i);
    }
    case_free(&c);
    case_free(&g);
}

/* y of a kernel at points up to 12, against double precision. */
static void check_function(const char *op, int32_t version, double (*want)(double))
{
    const int64_t count = 10007;
    op_case_t c = case_make("", op, version);
    float *x = case_input(&c, DIMS(count));
    for (int64_t i = 0; i < count; i++) {
        x[i] = i < 9 ? special(i) : (float)((double)(i - 9) / (double)count * 24.0 - 12.0);
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_in_place(&c);
    for (int64_t i = 0; i < count; i++) {
        double y = (double)(float)want((double)x[i]), got = ((float *)c.out[0])[i];
        if (isnan(y) ? !isnan(got) : !(fabs(got - y) <= 4e-7 * fabs(y) + 1e-7) && got != y) {
            fail_msg("%s(%.9g) is %.9g, expected %.9g", op, (double)x[i], got, y);
        }
    }
    case_free(&c);
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double hard_sigmoid(double x)
{
    return isnan(x) ? x : fmax(0.0, fmin(1.0, (double)0.2f * x + 0.5));
}

static double hard_swish(double x)
{
    return isnan(x) || x == -INFINITY ? NAN : x * fmax(0.0, fmin(1.0, x / 6.0 + 0.5));
}

static double reciprocal_of(double x)
{
    return 1.0 / x;
}

static double elu(double x)
{
    return x < 0.0 ? expm1(x) : x;
}

static double softplus(double x)
{
    return x > 30.0 ? x : log1p(exp(x));
}

static double softsign(double x)
{
    return x / (1.0 + fabs(x));
}

static double mish(double x)
{
    return x * tanh(softplus(x));
}

static double swish(double x)
{
    return x * sigmoid(x);
}

static void test_functions_are_accurate(void **state)
{
    static const struct {
        const char *op;
        int32_t version;
        double (*want)(double);
    } rows[] = {
        {"Sigmoid", 13, sigmoid},
        {"HardSigmoid", 6, hard_sigmoid},
        {"HardSwish", 14, hard_swish},
        {"Abs", 13, fabs},
        {"Floor", 13, floor},
        {"Ceil", 13, ceil},
        {"Round", 11, rint},
        {"Reciprocal", 13, reciprocal_of},
        {"Log", 13, log},
        {"Sin", 7, sin},
        {"Cos", 7, cos},
        {"Tan", 7, tan},
        {"Asin", 7, asin},
        {"Acos", 7, acos},
        {"Atan", 7, atan},
        {"Sinh", 9, sinh},
        {"Cosh", 9, cosh},
        {"Asinh", 9, asinh},
        {"Acosh", 9, acosh},
        {"Atanh", 9, atanh},
        {"Elu", 6, elu},
        {"Softplus", 1, softplus},
        {"Softsign", 1, softsign},
        {"Mish", 18, mish},
        {"Swish", 24, swish},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_function(rows[i].op, rows[i].version, rows[i].want);
    }
}

/* Narrow types have the results of the wide ones, integers modulo their range. */
static void test_narrow_types(void **state)
{
    static const char *const ops[] = {"Add", "Mul", "Div", "Mod", "Max", "Min"};
    static const int8_t a[] = {100, -100, -5, 126, -128}, b[] = {100, 3, -3, -2, -1};
    (void)state;
    for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
        op_case_t c = case_make("", ops[o], 14);
        memcpy(case_input_typed(&c, WEFT_DTYPE_I8, WEFT_LAYOUT_PLAIN, DIMS(5)), a, 5);
        memcpy(case_input_typed(&c, WEFT_DTYPE_I8, WEFT_LAYOUT_PLAIN, DIMS(5)), b, 5);
        assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        for (int i = 0; i < 5; i++) {
            int x = a[i], y = b[i], rest = x % y;
            int want = o == 0   ? x + y
                       : o == 1 ? x * y
                       : o == 2 ? x / y
                       : o == 3 ? (rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest)
                       : o == 4 ? (x > y ? x : y)
                                : (x < y ? x : y);
            assert_int_equal(((int8_t *)c.out[0])[i], (int8_t)want);
        }
        case_free(&c);
    }
}

/* Offset of output index (as digits) in an operand of shape dims, broadcasting; plain layout. */
static int64_t broadcast_offset(const weft_tensor_desc_t *t, const weft_tensor_desc_t *y,
                                int64_t index)
{
    int64_t offset = 0, stride = 1;
    for (uint32_t i = 0; i < t->rank; i++) { /* from the last dimension */
        int64_t digit = index % y->dims[y->rank - 1 - i];
        index /= y->dims[y->rank - 1 - i];
        if (t->dims[t->rank - 1 - i] != 1) {
            offset += digit * stride;
        }
        stride *= t->dims[t->rank - 1 - i];
    }
    return offset;
}

static void check_binary(const int64_t *a_dims, const int64_t *b_dims)
{
    static const char *const ops[] = {"Add", "Sub", "Mul", "Div"};
    for (int o = 0; o < 4; o++) {
        op_case_t c = case_make("", ops[o], 14);
        float *a = case_input(&c, a_dims), *b = case_input(&c, b_dims);
        random_fill(a, case_count(&c.inputs[0]), -1.0f, 1.0f);
        random_fill(b, case_count(&c.inputs[1]), -1.0f, 1.0f);
        assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        case_run_in_place(&c);
        for (int64_t i = 0; i < case_count(&c.outputs[0]); i++) {
            float x = a[broadcast_offset(&c.inputs[0], &c.outputs[0], i)];
            float y = b[broadcast_offset(&c.inputs[1], &c.outputs[0], i)];
            float want = o == 0 ? x + y : o == 1 ? x - y : o == 2 ? x * y : x / y;
            assert_true(((float *)c.out[0])[i] == want);
        }
        case_free(&c);
    }
}

static void test_binary_broadcasts(void **state)
{
    (void)state;
    check_binary(DIMS(3, 5), DIMS(3, 5));
    check_binary(DIMS(64, 33), DIMS(33));
    check_binary(DIMS(33), DIMS(64, 33));
    check_binary(DIMS(7, 1), DIMS(1, 9));
    check_binary(DIMS(2, 3, 4, 5), DIMS(3, 1, 1));
    check_binary(DIMS(2, 1, 4, 1), DIMS(3, 1, 5));
    check_binary(DIMS(4, 5), SCALAR);
    check_binary(SCALAR, SCALAR);
    check_binary(DIMS(0, 3), DIMS(3));
    check_binary(DIMS(2, 3, 1, 2, 1, 2, 1, 3), DIMS(1, 3, 2, 1, 2, 1, 2, 3));
}

static void test_binary_accepts_channels_last(void **state)
{
    op_case_t c = case_make("", "Add", 14);
    (void)state;
    float *a = case_input_typed(&c, WEFT_DTYPE_F32, WEFT_LAYOUT_CHANNELS_LAST, DIMS(2, 3, 4, 5));
    float *b = case_input(&c, DIMS(3, 1, 1));
    random_fill(a, 120, -1.0f, 1.0f);
    random_fill(b, 3, -1.0f, 1.0f);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_CHANNELS_LAST), WEFT_OK);
    case_run(&c);
    for (int64_t i = 0; i < 120; i++) {
        assert_true(((float *)c.out[0])[i] == a[i] + b[i % 3]);
    }
    case_free(&c);
}

static void check_sum_to(weft_layout_t layout, const int64_t *from, const int64_t *to)
{
    double want[4096] = {0};
    op_case_t c = case_make("weft", "SumTo", 1);
    float *x = case_input_typed(&c, WEFT_DTYPE_F32, layout, from);
    int64_t count = case_count(&c.inputs[0]);
    random_fill(x, count, -1.0f, 1.0f);
    case_ints(&c, "shape", to);
    assert_int_equal(case_infer(&c, 1, layout), WEFT_OK);
    case_run(&c);
    assert_true(case_count(&c.outputs[0]) <= 4096);
    weft_tensor_desc_t plain = c.inputs[0];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i;
        if (layout == WEFT_LAYOUT_CHANNELS_LAST) {
            const int64_t *d = plain.dims;
            at = offset4(&c.inputs[0], i / (d[1] * d[2] * d[3]), i / (d[2] * d[3]) % d[1],
                         i / d[3] % d[2], i % d[3]);
        }
        want[broadcast_offset(&c.outputs[0], &plain, i)] += x[at];
    }
    for (int64_t i = 0; i < case_count(&c.outputs[0]); i++) {
        assert_close(((float *)c.out[0])[i], want[i], 1e-5, "sum", i);
    }
    case_free(&c);
}

static void test_sum_to_undoes_broadcasting(void **state)
{
    (void)state;
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(64, 512), DIMS(512));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(64, 10), DIMS(10));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(1, 70), DIMS(70));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(5, 70), DIMS(5, 1));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(5, 70), SCALAR);
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(5, 70), DIMS(5, 70));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(2, 3, 4, 5), DIMS(3, 1, 1));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(2, 3, 4, 5), DIMS(2, 1, 4, 1));
    check_sum_to(WEFT_LAYOUT_PLAIN, DIMS(0, 6), DIMS(6));
    check_sum_to(WEFT_LAYOUT_CHANNELS_LAST, DIMS(2, 3, 4, 5), DIMS(1, 3, 1, 1));
}

/* The result of one operator, as the input of the next one. */
static float *run_one(const char *domain, const char *op, const weft_tensor_desc_t *dims,
                      const float *a, const weft_tensor_desc_t *b_dims, const float *b,
                      const char *approximate, int64_t count)
{
    op_case_t c = case_make(domain, op, 20);
    float *result = malloc((size_t)(count ? count : 1) * sizeof(*result));
    int64_t shape[WEFT_MAX_DIMS + 1];
    for (int i = 0; i < (b == NULL ? 1 : 2); i++) {
        const weft_tensor_desc_t *d = i == 0 ? dims : b_dims;
        memcpy(shape, d->dims, sizeof(d->dims));
        shape[d->rank] = -2;
        memcpy(case_input(&c, shape), i == 0 ? a : b,
               (size_t)weft_tensor_elem_count(d) * sizeof(float));
    }
    if (approximate != NULL) {
        case_string(&c, "approximate", approximate);
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(case_run_isa(&c, WEFT_ISA_PORTABLE), WEFT_OK);
    memcpy(result, c.out[0], (size_t)count * sizeof(*result));
    case_free(&c);
    return result;
}

/* ((x + b) of Gelu, plus r, times s) of Relu, where b, r and s have the shapes that occur. */
static void check_fused(const int64_t *x_dims, const int64_t *b_dims, const int64_t *r_dims)
{
    static const char *const steps[] = {"Add", "Gelu:tanh", "Add", "Mul", "LeakyRelu"};
    const int64_t *operands = DIMS(0, 1, 4, -1, 5, 2, 6, 3, 7, -1), *results = DIMS(4, 0);
    static const float numbers[] = {0, 0, 0, 0, 0, 0, 0, 0, 0.25f, 0};
    op_case_t c = case_make("weft", "Fused", 1);
    float *in[4] = {case_input(&c, x_dims), case_input(&c, b_dims), case_input(&c, r_dims),
                    case_input(&c, SCALAR)};
    for (int i = 0; i < 4; i++) {
        random_fill(in[i], weft_tensor_elem_count(&c.inputs[i]), -2.0f, 2.0f);
    }
    c.attrs[c.attr_count++] = (weft_attr_t){
        .name = "steps", .type = WEFT_ATTR_TYPE_STRINGS, .count = 5, .strings = steps};
    case_ints(&c, "operands", operands);
    case_ints(&c, "results", results);
    c.attrs[c.attr_count++] = (weft_attr_t){
        .name = "numbers", .type = WEFT_ATTR_TYPE_FLOATS, .count = 10, .floats = numbers};
    assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_in_place(&c);
    case_run_threads(&c, 3);
    const weft_tensor_desc_t *x = &c.inputs[0];
    const int64_t n = weft_tensor_elem_count(x);
    float *sum = run_one("", "Add", x, in[0], &c.inputs[1], in[1], NULL, n);
    float *gelu = run_one("", "Gelu", x, sum, NULL, NULL, "tanh", n);
    float *more = run_one("", "Add", x, gelu, &c.inputs[2], in[2], NULL, n);
    float *product = run_one("", "Mul", x, more, &c.inputs[3], in[3], NULL, n);
    for (int64_t i = 0; i < n; i++) {
        const float want = product[i] < 0.0f ? 0.25f * product[i] : product[i];
        assert_memory_equal(&((float *)c.out[0])[i], &want, sizeof(want));
    }
    assert_memory_equal(c.out[1], sum, (size_t)n * sizeof(float));
    free(sum);
    free(gelu);
    free(more);
    free(product);
    case_free(&c);
}

/* |x| + b without elements. */
static void check_fused_empty(void)
{
    static const char *const steps[] = {"Abs", "Add"};
    op_case_t c = case_make("weft", "Fused", 1);
    case_input(&c, DIMS(5, 2, 0, 3));
    case_input(&c, DIMS(3));
    c.attrs[c.attr_count++] = (weft_attr_t){
        .name = "steps", .type = WEFT_ATTR_TYPE_STRINGS, .count = 2, .strings = steps};
    case_ints(&c, "operands", DIMS(0, -1, 2, 1));
    case_ints(&c, "results", DIMS(1));
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_free(&c);
}

static void round_all(float *x, int64_t count, weft_dtype_t half)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = half == WEFT_DTYPE_F16 ? wefti_f16_to_f32(wefti_f16_from_f32(x[i]))
                                      : wefti_bf16_to_f32(wefti_bf16_from_f32(x[i]));
    }
}

/* Input in the half type; out_wide: the same in f32. */
static void half_input(op_case_t *c, weft_dtype_t half, const int64_t *dims, float **out_wide)
{
    uint16_t *x = case_input_typed(c, half, WEFT_LAYOUT_PLAIN, dims);
    const int64_t n = weft_tensor_elem_count(&c->inputs[c->input_count - 1]);
    float *wide = malloc((size_t)(n ? n : 1) * sizeof(*wide));
    random_fill(wide, n, -2.0f, 2.0f);
    for (int64_t i = 0; i < n; i++) {
        x[i] = half == WEFT_DTYPE_F16 ? wefti_f16_from_f32(wide[i]) : wefti_bf16_from_f32(wide[i]);
    }
    round_all(wide, n, half);
    *out_wide = wide;
}

/* Gelu of the rounded sum x + b; that in f32 times s, rounded. The sum is an output also. */
static void check_fused_halves(weft_dtype_t half, const int64_t *x_dims, const int64_t *b_dims)
{
    static const char *const steps[] = {"Add", "Gelu:tanh", "Cast", "Mul", "Cast"};
    const char *name = weft_dtype_name(half), *const types[] = {name, name, "float32", "float32",
                                                                name};
    float *x, *b;
    op_case_t c = case_make("weft", "Fused", 1);
    half_input(&c, half, x_dims, &x);
    half_input(&c, half, b_dims, &b);
    float *s = case_input(&c, x_dims);
    const int64_t n = weft_tensor_elem_count(&c.inputs[0]);
    random_fill(s, n, -2.0f, 2.0f);
    c.attrs[c.attr_count++] = (weft_attr_t){
        .name = "steps", .type = WEFT_ATTR_TYPE_STRINGS, .count = 5, .strings = steps};
    c.attrs[c.attr_count++] = (weft_attr_t){
        .name = "types", .type = WEFT_ATTR_TYPE_STRINGS, .count = 5, .strings = types};
    case_ints(&c, "operands", DIMS(0, 1, 3, -1, 4, -1, 5, 2, 6, -1));
    case_ints(&c, "results", DIMS(4, 0));
    assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_threads(&c, 3);
    weft_tensor_desc_t wide[2] = {c.inputs[0], c.inputs[1]};
    wide[0].dtype = wide[1].dtype = WEFT_DTYPE_F32;
    float *sum = run_one("", "Add", &wide[0], x, &wide[1], b, NULL, n);
    round_all(sum, n, half);
    float *gelu = run_one("", "Gelu", &wide[0], sum, NULL, NULL, "tanh", n);
    round_all(gelu, n, half);
    float *product = run_one("", "Mul", &wide[0], gelu, &wide[0], s, NULL, n);
    const float *results[] = {product, sum};
    for (int64_t i = 0; i < 2 * n; i++) {
        const float y = results[i / n][i % n];
        const uint16_t want =
            half == WEFT_DTYPE_F16 ? wefti_f16_from_f32(y) : wefti_bf16_from_f32(y);
        assert_int_equal(((uint16_t *)c.out[i / n])[i % n], want);
    }
    free(x);
    free(b);
    free(sum);
    free(gelu);
    free(product);
    case_free(&c);
}

static void test_fused_rounds_results_of_half_types(void **state)
{
    (void)state;
    check_fused_halves(WEFT_DTYPE_BF16, DIMS(7), DIMS(7));
    check_fused_halves(WEFT_DTYPE_F16, DIMS(7), DIMS(1));
    check_fused_halves(WEFT_DTYPE_F16, DIMS(90, 768), DIMS(768));
    check_fused_halves(WEFT_DTYPE_BF16, DIMS(3, 7, 600), DIMS(7, 1));
    check_fused_halves(WEFT_DTYPE_BF16, DIMS(2, 300, 5), DIMS(300, 5));
    check_fused_halves(WEFT_DTYPE_F16, DIMS(2, 300, 5), DIMS(300, 1));
}

static void test_fused_has_the_bits_of_its_steps(void **state)
{
    (void)state;
    check_fused_empty();
    check_fused(DIMS(7), DIMS(7), DIMS(1));
    check_fused(DIMS(0, 5), DIMS(5), DIMS(0, 5));
    check_fused(DIMS(3, 70), DIMS(70), DIMS(3, 70));
    check_fused(DIMS(90, 768), DIMS(768), DIMS(90, 768));
    check_fused(DIMS(3, 7, 600), DIMS(7, 1), DIMS(3, 1, 600));
    check_fused(DIMS(2, 5, 9, 40), DIMS(5, 1, 1), DIMS(2, 5, 1, 1));
    check_fused(DIMS(2, 300, 5), DIMS(300, 5), DIMS(2, 1, 5));
}

static void test_fused_refuses_what_it_cannot_execute(void **state)
{
    static const char *const unknown[] = {"Softmax"}, *const relu[] = {"Relu"};
    const int64_t *first = DIMS(0, -1), *late = DIMS(1, -1), *zero = DIMS(0), *one = DIMS(1);
    const struct {
        const char *const *steps;
        const int64_t *operands, *results;
        weft_status_t expected;
    } rows[] = {{unknown, first, zero, WEFT_ERR_UNSUPPORTED},
                {relu, late, zero, WEFT_ERR_INVALID_ARGUMENT},
                {relu, first, one, WEFT_ERR_INVALID_ARGUMENT},
                {relu, first, zero, WEFT_OK}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        op_case_t c = case_make("weft", "Fused", 1);
        random_fill(case_input(&c, DIMS(4)), 4, -1.0f, 1.0f);
        c.attrs[c.attr_count++] = (weft_attr_t){
            .name = "steps", .type = WEFT_ATTR_TYPE_STRINGS, .count = 1, .strings = rows[i].steps};
        case_ints(&c, "operands", rows[i].operands);
        case_ints(&c, "results", rows[i].results);
        case_output(&c, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(4));
        assert_int_equal(case_run_isa(&c, 0), rows[i].expected);
        case_free(&c);
    }
}

static void test_shapes_that_differ_are_refused(void **state)
{
    op_case_t c = case_make("", "Relu", 14), f = case_make("weft", "SumTo", 1);
    (void)state;
    case_input(&c, DIMS(4));
    case_output(&c, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(5));
    assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_UNSUPPORTED);
    case_input(&f, DIMS(4, 3));
    case_output(&f, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(2));
    assert_int_equal(case_run_isa(&f, 0), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
    case_free(&f);
}

/* Inputs of BatchNormTraining, or of its gradient: tensors with pixels, then four by channel. */
static op_case_t make_norm(const char *op, weft_dtype_t dtype, const int64_t *dims,
                           const void *const *pixels, int tensors, const float *channel)
{
    op_case_t c = case_make("weft", op, 1);
    for (int i = 0; i < tensors; i++) {
        void *x = case_input_typed(&c, dtype, WEFT_LAYOUT_PLAIN, dims);
        memcpy(x, pixels[i], (size_t)case_count(&c.inputs[i]) * weft_dtype_size_bytes(dtype));
    }
    while (c.input_count < 5) {
        memcpy(case_input(&c, DIMS(dims[1])), channel, (size_t)dims[1] * sizeof(*channel));
    }
    return c;
}

static op_case_t make_of_two(const char *domain, const char *op, weft_dtype_t dtype,
                             const int64_t *dims, const void *a, const void *b)
{
    op_case_t c = case_make(domain, op, 14);
    const void *const both[] = {a, b};
    for (int i = 0; i < 2 && both[i] != NULL; i++) {
        void *x = case_input_typed(&c, dtype, WEFT_LAYOUT_PLAIN, dims);
        memcpy(x, both[i], (size_t)case_count(&c.inputs[i]) * weft_dtype_size_bytes(dtype));
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    return c;
}

static void assert_same(const op_case_t *a, const op_case_t *b, uint32_t output)
{
    assert_memory_equal(a->out[output], b->out[output],
                        (size_t)case_count(&a->outputs[output]) *
                            weft_dtype_size_bytes(a->outputs[output].dtype));
}

/* BatchNormalization that adds and is a Relu has the bits of the three operators, and its gradient
 * those of ReluGrad and the gradient; also rows of a few pixels, and half types. */
static void check_fused_norm(weft_dtype_t dtype, const int64_t *dims)
{
    enum { MOST = 3 * 37 * 60 };
    static float x[3][MOST], channel[64];
    static uint16_t halves[3][MOST];
    const void *pixels[3];
    for (int i = 0; i < 3; i++) {
        random_fill(x[i], MOST, -1.0f, 1.0f);
        for (int k = 0; k < MOST; k++) {
            halves[i][k] = wefti_bf16_from_f32(x[i][k]);
        }
        pixels[i] = dtype == WEFT_DTYPE_F32 ? (const void *)x[i] : halves[i];
    }
    random_fill(channel, 64, 0.5f, 1.0f);
    op_case_t fused = make_norm("BatchNormTraining", dtype, dims, pixels, 1, channel);
    op_case_t norm = make_norm("BatchNormTraining", dtype, dims, pixels, 1, channel);
    memcpy(case_input_typed(&fused, dtype, WEFT_LAYOUT_PLAIN, dims), pixels[1],
           (size_t)case_count(&fused.inputs[0]) * weft_dtype_size_bytes(dtype));
    case_string(&fused, "activation", "Relu");
    assert_int_equal(case_infer(&fused, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(case_infer(&norm, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&fused);
    case_run(&norm);
    op_case_t sum = make_of_two("", "Add", dtype, dims, norm.out[0], pixels[1]);
    op_case_t relu = make_of_two("", "Relu", dtype, dims, sum.out[0], NULL);
    assert_same(&fused, &relu, 0);

    op_case_t masked =
        make_of_two("com.microsoft", "ReluGrad", dtype, dims, pixels[2], relu.out[0]);
    const void *single[] = {masked.out[0], pixels[0]}, *both[] = {pixels[2], pixels[0]};
    op_case_t grad = make_norm("BatchNormGrad", dtype, dims, single, 2, channel);
    op_case_t gated = make_norm("BatchNormGrad", dtype, dims, both, 2, channel);
    memcpy(case_input_typed(&gated, dtype, WEFT_LAYOUT_PLAIN, dims), relu.out[0],
           (size_t)case_count(&gated.inputs[0]) * weft_dtype_size_bytes(dtype));
    assert_int_equal(case_infer(&grad, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(case_infer(&gated, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&grad);
    case_run(&gated);
    case_run_in_place(&gated);
    for (uint32_t i = 0; i < 3; i++) {
        assert_same(&grad, &gated, i);
    }
    op_case_t *const all[] = {&fused, &norm, &sum, &relu, &masked, &grad, &gated};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        case_free(all[i]);
    }
}

static void test_normalization_adds_and_is_a_relu(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        check_fused_norm(half ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32, DIMS(3, 37, 6, 10));
        check_fused_norm(half ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32, DIMS(3, 37, 2, 2));
        check_fused_norm(half ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32, DIMS(2, 1, 60, 50));
    }
}

/* Pow, or PowGrad, of X by one exponent, or by as many that are equal. */
static op_case_t make_power(const float *x, const float *dy, int64_t count, float exponent,
                            bool scalar)
{
    op_case_t c = dy == NULL ? case_make("", "Pow", 13) : case_make("weft", "PowGrad", 1);
    if (dy != NULL) {
        memcpy(case_input(&c, DIMS(count)), dy, (size_t)count * sizeof(*dy));
    }
    memcpy(case_input(&c, DIMS(count)), x, (size_t)count * sizeof(*x));
    float *e = scalar ? case_input(&c, DIMS(1)) : case_input(&c, DIMS(count));
    for (int64_t i = 0; i < (scalar ? 1 : count); i++) {
        e[i] = exponent;
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    return c;
}

static void test_powers_have_the_same_bits_one_by_one(void **state)
{
    (void)state;
    static const float exponents[] = {0.3f, -1.5f,    4.0f,      5.0f,  -3.0f, -4.0f,
                                      2.5f, 1e30f,    -0x1p53f,  7e-9f, 0.0f,  -0.0f,
                                      1.0f, INFINITY, -INFINITY, NAN};
    static const float special[] = {0.0f,  -0.0f,       1.0f,      -1.0f,   INFINITY, -INFINITY,
                                    NAN,   1e-45f,      -1e-45f,   3.4e38f, -3.4e38f, 1.5f,
                                    -2.0f, 1.41421356f, 0x1p-126f, 4.0f};
    float x[333], dy[333];
    random_fill(x, 333, -30.0f, 60.0f);
    random_fill(dy, 333, -1.0f, 2.0f);
    memcpy(x + 20, special, sizeof special);
    for (size_t i = 0; i < sizeof exponents / sizeof exponents[0]; i++) {
        for (int gradient = 0; gradient < 2; gradient++) {
            const float *d = gradient ? dy : NULL;
            op_case_t one = make_power(x, d, 333, exponents[i], true);
            op_case_t many = make_power(x, d, 333, exponents[i], false);
            for (int k = 0; k < 333; k++) {
                const float a = ((const float *)one.out[0])[k], b = ((const float *)many.out[0])[k];
                assert_true(memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b));
            }
            case_free(&one);
            case_free(&many);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relu_and_its_gradient),
        cmocka_unit_test(test_tanh_is_accurate),
        cmocka_unit_test(test_tanh_gradient_is_the_slope),
        cmocka_unit_test(test_functions_are_accurate),
        cmocka_unit_test(test_narrow_types),
        cmocka_unit_test(test_binary_broadcasts),
        cmocka_unit_test(test_binary_accepts_channels_last),
        cmocka_unit_test(test_sum_to_undoes_broadcasting),
        cmocka_unit_test(test_fused_has_the_bits_of_its_steps),
        cmocka_unit_test(test_fused_rounds_results_of_half_types),
        cmocka_unit_test(test_fused_refuses_what_it_cannot_execute),
        cmocka_unit_test(test_shapes_that_differ_are_refused),
        cmocka_unit_test(test_normalization_adds_and_is_a_relu),
        cmocka_unit_test(test_powers_have_the_same_bits_one_by_one),
    };
    random_seed(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
