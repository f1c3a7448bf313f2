/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of elements, tests of elements, and gradients: one row per operator. Of a gradient, a
 * is dY and b is X or Y; where a slope jumps, it is that of torch. Functions without a loop for f32
 * of their own are computed in double precision, by operations that are the same everywhere.
 */
#include "ops/compute/elementwise.h"

#include <math.h>
#include <string.h>

#include "ops/compute/functions.h"
#include "ops/compute/fused.h"
#include "ops/compute/math_f32.h"
#include "ops/compute/own_kernels.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define CLAMP(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))
#define SIGMOID(x) (1.0f / (1.0f + wefti_exp_f32(-(x))))
/* exp(x) - 1, also of small x. */
#define EXPM1(x) (wefti_tanh_f32(0.5f * (x)) * (wefti_exp_f32(x) + 1.0f))
#define SOFTPLUS(x) ((float)wefti_softplus((double)(x)))
#define SQRT_HALF 0.70710678f
#define GELU(x) (0.5f * (x) * (1.0f + wefti_erf_f32((x)*SQRT_HALF)))
/* The normal distribution, and x times its density. */
#define GELU_SLOPE(x)                                                                              \
    (0.5f * (1.0f + wefti_erf_f32((x)*SQRT_HALF)) +                                                \
     (x) * (wefti_exp_of_negative_f32(-0.5f * (x) * (x)) * 0.39894228f))
#define GELU_INNER(x) wefti_tanh_f32(0.79788456f * ((x) + 0.044715f * ((x) * (x) * (x))))
#define GELU_TANH(x) (0.5f * (x) * (1.0f + GELU_INNER(x)))
#define GELU_TANH_SLOPE(x)                                                                         \
    (0.5f * (1.0f + GELU_INNER(x)) + 0.5f * (x) * (1.0f - GELU_INNER(x) * GELU_INNER(x)) *         \
                                         0.79788456f * (1.0f + 0.134145f * (x) * (x)))

/* NaN stays NaN. */
#define SIGN(x) ((x) > 0 ? 1 : (x) < 0 ? -1 : (x))

#define F32(name, expression) WEFTI_ELEMENTWISE_F32(name##_f32, float, expression);
#define F64(name, expression) WEFTI_ELEMENTWISE_LOOP(name##_f64, double, double, expression)
#define I64(name, expression) WEFTI_ELEMENTWISE_LOOP(name##_i64, int64_t, int64_t, expression)
/* In double precision for both floating types. */
#define WIDE(name, function) F32(name, (float)function((double)a)) F64(name, function(a))

F32(relu, a <= 0.0f ? 0.0f : a) /* NaN stays NaN; -0 becomes 0 */
F64(relu, a <= 0.0 ? 0.0 : a)
I64(relu, a <= 0 ? 0 : a)
F32(relu_grad, b > 0.0f ? a : 0.0f)
F32(tanh, wefti_tanh_f32(a))
F32(tanh_grad, a *(1.0f - b * b))
F32(sigmoid, SIGMOID(a))
F64(sigmoid, 1.0 / (1.0 + wefti_exp(-a)))
F32(sigmoid_grad, a *((1.0f - b) * b))
F32(hard_sigmoid, CLAMP(p0 *a + p1, 0.0f, 1.0f))
F32(hard_sigmoid_grad, b <= 0.0f || b >= 1.0f ? 0.0f : p0 * a)
F32(hard_swish, a *CLAMP(a *(1.0f / 6.0f) + 0.5f, 0.0f, 1.0f))
F32(hard_swish_grad, b<-3.0f ? 0.0f : b> 3.0f ? a : a *(b *(1.0f / 3.0f) + 0.5f))
F32(neg, -a)
F64(neg, -a)
I64(neg, (int64_t)(0 - (uint64_t)a))
F32(abs, __builtin_fabsf(a))
F64(abs, __builtin_fabs(a))
I64(abs, a < 0 ? (int64_t)(0 - (uint64_t)a) : a)
F32(abs_grad, a *SIGN(b))
F32(sign, SIGN(a))
F64(sign, SIGN(a))
I64(sign, SIGN(a))
F32(floor, __builtin_floorf(a))
F64(floor, __builtin_floor(a))
F32(ceil, __builtin_ceilf(a))
F64(ceil, __builtin_ceil(a))
F32(round, __builtin_rintf(a)) /* halves to even */
F64(round, __builtin_rint(a))
F32(exp, wefti_exp_f32(a))
F64(exp, wefti_exp(a))
F32(log, wefti_log_f32(a))
F64(log, wefti_log_any(a))
F32(sqrt, __builtin_sqrtf(a))
F64(sqrt, __builtin_sqrt(a))
F32(sqrt_grad, a *(0.5f / b))
F32(reciprocal, 1.0f / a)
F64(reciprocal, 1.0 / a)
F32(reciprocal_grad, -a *(b *b))
F32(erf, wefti_erf_f32(a))
F32(erf_grad, a *(1.12837917f * wefti_exp_of_negative_f32(-(b * b))))
F32(gelu, GELU(a))
F32(gelu_grad, a *GELU_SLOPE(b))
F32(gelu_tanh, GELU_TANH(a))
F32(gelu_tanh_grad, a *GELU_TANH_SLOPE(b))
WIDE(cos, wefti_cos)
F32(cos_grad, -a *(float)wefti_sin((double)b))
WIDE(sin, wefti_sin)
F32(sin_grad, a *(float)wefti_cos((double)b))
WIDE(tan, wefti_tan)
F32(tan_grad, (float)((double)a / (wefti_cos((double)b) * wefti_cos((double)b))))
WIDE(acos, wefti_acos)
F32(acos_grad, -a / __builtin_sqrtf((1.0f - b) * (1.0f + b)))
WIDE(asin, wefti_asin)
F32(asin_grad, a / __builtin_sqrtf((1.0f - b) * (1.0f + b)))
WIDE(atan, wefti_atan)
F32(atan_grad, a / (1.0f + b * b))
WIDE(cosh, wefti_cosh)
F32(cosh_grad, a *(float)wefti_sinh((double)b))
WIDE(sinh, wefti_sinh)
F32(sinh_grad, a *(float)wefti_cosh((double)b))
WIDE(acosh, wefti_acosh)
F32(acosh_grad, a / __builtin_sqrtf((b - 1.0f) * (b + 1.0f)))
WIDE(asinh, wefti_asinh)
F32(asinh_grad, a / __builtin_sqrtf(b * b + 1.0f))
WIDE(atanh, wefti_atanh)
F32(atanh_grad, a / ((1.0f - b) * (1.0f + b)))
F32(elu, a < 0.0f ? p0 * EXPM1(a) : a)
F32(elu_grad, b < 0.0f ? a * (p0 * wefti_exp_f32(b)) : a)
F32(selu, p1 *(a <= 0.0f ? p0 * EXPM1(a) : a))
F32(selu_grad, a *(p1 *(b <= 0.0f ? p0 * wefti_exp_f32(b) : 1.0f)))
F32(celu, a < 0.0f ? p0 * EXPM1(a / p0) : a)
F32(celu_grad, b < 0.0f ? a * wefti_exp_f32(b / p0) : a)
F32(leaky_relu, a < 0.0f ? p0 * a : a)
F32(leaky_relu_grad, b > 0.0f ? a : p0 * a)
F32(thresholded_relu, a > p0 ? a : 0.0f)
F32(thresholded_relu_grad, b > p0 ? a : 0.0f)
F32(shrink, a<-p0 ? a + p1 : a> p0 ? a - p1 : 0.0f)
I64(shrink, (double)a<-p0 ? (double)a + p1 : (double)a> p0 ? (double)a - p1 : 0.0)
F32(softplus, SOFTPLUS(a))
WEFTI_ELEMENTWISE_LOOP(softplus_f64, double, double, wefti_softplus(a))
F32(softplus_grad, a *SIGMOID(b))
F32(softsign, a / (1.0f + __builtin_fabsf(a)))
F32(softsign_grad, a / ((1.0f + __builtin_fabsf(b)) * (1.0f + __builtin_fabsf(b))))
F32(mish, a *wefti_tanh_f32(SOFTPLUS(a)))
F32(mish_grad,
    a *(wefti_tanh_f32(SOFTPLUS(b)) +
        b * SIGMOID(b) * (1.0f - wefti_tanh_f32(SOFTPLUS(b)) * wefti_tanh_f32(SOFTPLUS(b)))))
F32(swish, a / (1.0f + wefti_exp_f32(-(p0 * a))))
F32(swish_grad, a *(SIGMOID(p0 *b) * (1.0f + p0 * b * (1.0f - SIGMOID(p0 * b)))))
I64(bitwise_not, ~a)

/* Tests: the result is bool. */
#define TEST(name, expression)                                                                     \
    WEFTI_ELEMENTWISE_F32(name##_f32, uint8_t, expression);                                        \
    WEFTI_ELEMENTWISE_LOOP(name##_f64, double, uint8_t, expression)
TEST(is_nan, a != a)
TEST(is_inf, (a == INFINITY && p1 != 0) || (a == -INFINITY && p0 != 0))
WEFTI_ELEMENTWISE_LOOP(not_bool, uint8_t, uint8_t, !a)

typedef wefti_elementwise_number_t number_t;
static const number_t hard_sigmoid[2] = {{"alpha", 0.2f}, {"beta", 0.5f}};
static const number_t alpha_1[2] = {{"alpha", 1.0f}}, alpha_001[2] = {{"alpha", 0.01f}};
static const number_t selu[2] = {{"alpha", 1.67326319f}, {"gamma", 1.05070102f}};
static const number_t shrink[2] = {{"lambd", 0.5f}, {"bias", 0.0f}};
static const number_t infinities[2] = {{"detect_negative", 1.0f}, {"detect_positive", 1.0f}};

#define L_F32(name)                                                                                \
    {                                                                                              \
        .f32 = name##_f32                                                                          \
    }
#define L_FLOATS(name)                                                                             \
    {                                                                                              \
        .f32 = name##_f32, .f64 = name##_f64                                                       \
    }
#define L_NUMBERS(name)                                                                            \
    {                                                                                              \
        .f32 = name##_f32, .f64 = name##_f64, .i64 = name##_i64                                    \
    }
#define L_TESTS(name)                                                                              \
    {                                                                                              \
        .f32 = name##_f32, .f64 = name##_f64, .tests = true                                        \
    }

/* ROW(domain, operator, tensors, numbers, loops) */
#define FUNCTIONS(ROW)                                                                             \
    ROW("", "Relu", 1, NULL, L_NUMBERS(relu))                                                      \
    ROW("com.microsoft", "ReluGrad", 2, NULL, L_F32(relu_grad))                                    \
    ROW("", "Tanh", 1, NULL, L_F32(tanh))                                                          \
    ROW("weft", "TanhGrad", 2, NULL, L_F32(tanh_grad))                                             \
    ROW("", "Sigmoid", 1, NULL, L_FLOATS(sigmoid))                                                 \
    ROW("weft", "SigmoidGrad", 2, NULL, L_F32(sigmoid_grad))                                       \
    ROW("", "HardSigmoid", 1, hard_sigmoid, L_F32(hard_sigmoid))                                   \
    ROW("weft", "HardSigmoidGrad", 2, hard_sigmoid, L_F32(hard_sigmoid_grad))                      \
    ROW("", "HardSwish", 1, NULL, L_F32(hard_swish))                                               \
    ROW("weft", "HardSwishGrad", 2, NULL, L_F32(hard_swish_grad))                                  \
    ROW("", "Neg", 1, NULL, L_NUMBERS(neg))                                                        \
    ROW("", "Abs", 1, NULL, L_NUMBERS(abs))                                                        \
    ROW("weft", "AbsGrad", 2, NULL, L_F32(abs_grad))                                               \
    ROW("", "Sign", 1, NULL, L_NUMBERS(sign))                                                      \
    ROW("", "Floor", 1, NULL, L_FLOATS(floor))                                                     \
    ROW("", "Ceil", 1, NULL, L_FLOATS(ceil))                                                       \
    ROW("", "Round", 1, NULL, L_FLOATS(round))                                                     \
    ROW("", "Exp", 1, NULL, L_FLOATS(exp))                                                         \
    ROW("", "Log", 1, NULL, L_FLOATS(log))                                                         \
    ROW("", "Sqrt", 1, NULL, L_FLOATS(sqrt))                                                       \
    ROW("weft", "SqrtGrad", 2, NULL, L_F32(sqrt_grad))                                             \
    ROW("", "Reciprocal", 1, NULL, L_FLOATS(reciprocal))                                           \
    ROW("weft", "ReciprocalGrad", 2, NULL, L_F32(reciprocal_grad))                                 \
    ROW("", "Erf", 1, NULL, L_F32(erf))                                                            \
    ROW("weft", "ErfGrad", 2, NULL, L_F32(erf_grad))                                               \
    ROW("", "Gelu", 1, NULL, L_F32(gelu))                                                          \
    ROW("weft", "GeluGrad", 2, NULL, L_F32(gelu_grad))                                             \
    ROW("", "Cos", 1, NULL, L_FLOATS(cos))                                                         \
    ROW("weft", "CosGrad", 2, NULL, L_F32(cos_grad))                                               \
    ROW("", "Sin", 1, NULL, L_FLOATS(sin))                                                         \
    ROW("weft", "SinGrad", 2, NULL, L_F32(sin_grad))                                               \
    ROW("", "Tan", 1, NULL, L_FLOATS(tan))                                                         \
    ROW("weft", "TanGrad", 2, NULL, L_F32(tan_grad))                                               \
    ROW("", "Acos", 1, NULL, L_FLOATS(acos))                                                       \
    ROW("weft", "AcosGrad", 2, NULL, L_F32(acos_grad))                                             \
    ROW("", "Asin", 1, NULL, L_FLOATS(asin))                                                       \
    ROW("weft", "AsinGrad", 2, NULL, L_F32(asin_grad))                                             \
    ROW("", "Atan", 1, NULL, L_FLOATS(atan))                                                       \
    ROW("weft", "AtanGrad", 2, NULL, L_F32(atan_grad))                                             \
    ROW("", "Cosh", 1, NULL, L_FLOATS(cosh))                                                       \
    ROW("weft", "CoshGrad", 2, NULL, L_F32(cosh_grad))                                             \
    ROW("", "Sinh", 1, NULL, L_FLOATS(sinh))                                                       \
    ROW("weft", "SinhGrad", 2, NULL, L_F32(sinh_grad))                                             \
    ROW("", "Acosh", 1, NULL, L_FLOATS(acosh))                                                     \
    ROW("weft", "AcoshGrad", 2, NULL, L_F32(acosh_grad))                                           \
    ROW("", "Asinh", 1, NULL, L_FLOATS(asinh))                                                     \
    ROW("weft", "AsinhGrad", 2, NULL, L_F32(asinh_grad))                                           \
    ROW("", "Atanh", 1, NULL, L_FLOATS(atanh))                                                     \
    ROW("weft", "AtanhGrad", 2, NULL, L_F32(atanh_grad))                                           \
    ROW("", "Elu", 1, alpha_1, L_F32(elu))                                                         \
    ROW("weft", "EluGrad", 2, alpha_1, L_F32(elu_grad))                                            \
    ROW("", "Selu", 1, selu, L_F32(selu))                                                          \
    ROW("weft", "SeluGrad", 2, selu, L_F32(selu_grad))                                             \
    ROW("", "Celu", 1, alpha_1, L_F32(celu))                                                       \
    ROW("weft", "CeluGrad", 2, alpha_1, L_F32(celu_grad))                                          \
    ROW("", "LeakyRelu", 1, alpha_001, L_F32(leaky_relu))                                          \
    ROW("weft", "LeakyReluGrad", 2, alpha_001, L_F32(leaky_relu_grad))                             \
    ROW("", "ThresholdedRelu", 1, alpha_1, L_F32(thresholded_relu))                                \
    ROW("weft", "ThresholdedReluGrad", 2, alpha_1, L_F32(thresholded_relu_grad))                   \
    ROW("", "Shrink", 1, shrink, {.f32 = shrink_f32 COMMA.i64 = shrink_i64})                       \
    ROW("", "Softplus", 1, NULL, L_FLOATS(softplus))                                               \
    ROW("weft", "SoftplusGrad", 2, NULL, L_F32(softplus_grad))                                     \
    ROW("", "Softsign", 1, NULL, L_F32(softsign))                                                  \
    ROW("weft", "SoftsignGrad", 2, NULL, L_F32(softsign_grad))                                     \
    ROW("", "Mish", 1, NULL, L_F32(mish))                                                          \
    ROW("weft", "MishGrad", 2, NULL, L_F32(mish_grad))                                             \
    ROW("", "Swish", 1, alpha_1, L_F32(swish))                                                     \
    ROW("weft", "SwishGrad", 2, alpha_1, L_F32(swish_grad))                                        \
    ROW("", "BitwiseNot", 1, NULL, {.i64 = bitwise_not_i64})                                       \
    ROW("", "IsNaN", 1, NULL, L_TESTS(is_nan))                                                     \
    ROW("", "IsInf", 1, infinities, L_TESTS(is_inf))                                               \
    ROW("", "Not", 1, NULL, {.boolean = not_bool COMMA.tests = true})

typedef struct row {
    const char *op;
    uint32_t tensors;
    const number_t *numbers;
    wefti_elementwise_loops_t loops;
} row_t;
#define COMMA ,
#define ROW_OF(space, name, count, list, ...) {name, count, list, __VA_ARGS__},
/* The last ones are those with the value tanh of attribute approximate. */
static const row_t rows[] = {
    FUNCTIONS(ROW_OF){"Gelu:tanh", 1, NULL, L_F32(gelu_tanh)},
    {"GeluGrad:tanh", 2, NULL, L_F32(gelu_tanh_grad)},
};

static const row_t *find_row(const char *op)
{
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        if (strcmp(rows[i].op, op) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static const row_t *row_of(const weft_node_desc_t *node)
{
    const row_t *row = find_row(node->op);
    if (strcmp(weft_node_attr_string(node, "approximate", "none"), "tanh") == 0) {
        row = find_row(row != NULL && row->tensors == 1 ? "Gelu:tanh" : "GeluGrad:tanh");
    }
    return row;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    const row_t *row = row_of(node);
    return row == NULL ? wefti_error(WEFT_ERR_UNSUPPORTED, "unknown operator '%s'", node->op)
                       : wefti_elementwise_prepare(node, env, row->tensors, row->numbers,
                                                   &row->loops, out_state, out_scratch_bytes);
}

bool wefti_function_step(const weft_node_desc_t *node, wefti_fused_step_t *out_step)
{
    const row_t *row = row_of(node);
    if (row == NULL || row->loops.f32 == NULL || row->loops.tests) {
        return false;
    }
    *out_step = (wefti_fused_step_t){.name = row->op, .tensors = row->tensors};
    wefti_elementwise_numbers(node, row->numbers, out_step->numbers);
    return true;
}

bool wefti_function_loop(const char *name, weft_isa_t isa, wefti_fused_loop_t *out_loop)
{
    const row_t *row = find_row(name);
    if (row == NULL || row->loops.f32 == NULL || row->loops.tests) {
        return false;
    }
    *out_loop = (wefti_fused_loop_t){.same = row->loops.f32[isa], .tensors = row->tensors};
    return true;
}

#define KERNEL_OF(space, name, ...) WEFTI_KERNEL_VALUE(space, name, prepare, wefti_elementwise_run),
static const weft_kernel_t kernels[] = {FUNCTIONS(KERNEL_OF)};

wefti_kernel_family_t wefti_kernels_functions(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
