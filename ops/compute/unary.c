/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of one tensor and their gradients: one row per operator, one loop per type. Tensors
 * have one shape and one layout. In loops of gradients a is dY and b is X or Y.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef void (*loop_fn)(const void *a, const void *b, void *y, int64_t count);
#define PARAMS (const void *va, const void *vb, void *vy, int64_t count)

#define LOOP_F32(name, expression)                                                                 \
    WEFTI_INLINE void name##_body PARAMS                                                           \
    {                                                                                              \
        const float *pa = va, *pb = vb;                                                            \
        float *y = vy;                                                                             \
        WEFTI_INDEPENDENT                                                                          \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const float a = pa[i], b = pb[i];                                                      \
            (void)b;                                                                               \
            y[i] = expression;                                                                     \
        }                                                                                          \
    }                                                                                              \
    WEFTI_CLONES(name, PARAMS, (va, vb, vy, count));

/* Other types than f32, without gradients. */
#define LOOP(name, type, expression)                                                               \
    static void name PARAMS                                                                        \
    {                                                                                              \
        const type *pa = va;                                                                       \
        type *y = vy;                                                                              \
        (void)vb;                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const type a = pa[i];                                                                  \
            y[i] = (type)(expression);                                                             \
        }                                                                                          \
    }

/* sin(x), or cos(x) with turn 1: x less its multiple of pi / 2, then a Taylor polynomial. Beyond
 * 1e6, where few elements are, the library's function. */
static inline double sine(double x, int turn)
{
    if (!(fabs(x) < 1e6)) {
        return turn ? cos(x) : sin(x);
    }
    double n = floor(x * 0.63661977236758134 + 0.5);
    double r = (x - n * 1.5707963267948966) - n * 6.123233995736766e-17, z = r * r;
    int64_t quarter = ((int64_t)n + turn) & 3;
    double s = 1.0, c = 1.0; /* of z: from the last term of each series */
    for (int k = 19; k > 1; k -= 2) {
        s = 1.0 - s * z / (k * (k - 1));
        c = 1.0 - c * z / ((k - 1) * (k - 2));
    }
    double value = (quarter & 1) != 0 ? c : s * r;
    return quarter >= 2 ? -value : value;
}

static inline float log_f32(float x)
{
    return x != x || x < 0.0f ? NAN
           : x == 0.0f        ? -INFINITY
           : x == INFINITY    ? INFINITY
                              : (float)wefti_log((double)x);
}

#define SQRT_HALF 0.70710678f
#define GELU(x) (0.5f * (x) * (1.0f + wefti_erf_f32((x)*SQRT_HALF)))
/* The normal distribution, and x times its density. */
#define GELU_SLOPE(x)                                                                              \
    (0.5f * (1.0f + wefti_erf_f32((x)*SQRT_HALF)) +                                                \
     (x) * (wefti_exp_f32(-0.5f * (x) * (x)) * 0.39894228f))
#define GELU_INNER(x) wefti_tanh_f32(0.79788456f * ((x) + 0.044715f * ((x) * (x) * (x))))
#define GELU_TANH(x) (0.5f * (x) * (1.0f + GELU_INNER(x)))
#define GELU_TANH_SLOPE(x)                                                                         \
    (0.5f * (1.0f + GELU_INNER(x)) + 0.5f * (x) * (1.0f - GELU_INNER(x) * GELU_INNER(x)) *         \
                                         0.79788456f * (1.0f + 0.134145f * (x) * (x)))

LOOP_F32(neg_f32, -a)
LOOP(neg_f64, double, -a)
LOOP(neg_i64, uint64_t, 0 - a)
LOOP(neg_i32, uint32_t, 0 - a)
LOOP_F32(exp_f32, wefti_exp_f32(a))
LOOP(exp_f64, double, wefti_exp(a))
LOOP_F32(log_f32_all, log_f32(a))
LOOP_F32(sqrt_f32, __builtin_sqrtf(a))
LOOP(sqrt_f64, double, __builtin_sqrt(a))
LOOP_F32(sqrt_grad_f32, a *(0.5f / b))
LOOP_F32(reciprocal_f32, 1.0f / a)
LOOP(reciprocal_f64, double, 1.0 / a)
LOOP_F32(reciprocal_grad_f32, -a *(b *b))
LOOP_F32(erf_f32, wefti_erf_f32(a))
LOOP_F32(erf_grad_f32, a *(1.12837917f * wefti_exp_f32(-(b * b))))
LOOP_F32(gelu_f32, GELU(a))
LOOP_F32(gelu_grad_f32, a *GELU_SLOPE(b))
LOOP_F32(gelu_tanh_f32, GELU_TANH(a))
LOOP_F32(gelu_tanh_grad_f32, a *GELU_TANH_SLOPE(b))
LOOP_F32(cos_f32, (float)sine((double)a, 1))
LOOP(cos_f64, double, sine(a, 1))
LOOP_F32(sin_f32, (float)sine((double)a, 0))
LOOP(sin_f64, double, sine(a, 0))

typedef struct row {
    const char *op;
    uint32_t inputs;
    const loop_fn *f32; /* by instruction set */
    loop_fn f64, i64, i32;
    const loop_fn *tanh; /* f32, where attribute approximate is tanh */
} row_t;
static const row_t rows[] = {
    {"Neg", 1, neg_f32, neg_f64, neg_i64, neg_i32, NULL},
    {"Exp", 1, exp_f32, exp_f64, NULL, NULL, NULL},
    {"Log", 1, log_f32_all, NULL, NULL, NULL, NULL},
    {"Sqrt", 1, sqrt_f32, sqrt_f64, NULL, NULL, NULL},
    {"SqrtGrad", 2, sqrt_grad_f32, NULL, NULL, NULL, NULL},
    {"Reciprocal", 1, reciprocal_f32, reciprocal_f64, NULL, NULL, NULL},
    {"ReciprocalGrad", 2, reciprocal_grad_f32, NULL, NULL, NULL, NULL},
    {"Erf", 1, erf_f32, NULL, NULL, NULL, NULL},
    {"ErfGrad", 2, erf_grad_f32, NULL, NULL, NULL, NULL},
    {"Gelu", 1, gelu_f32, NULL, NULL, NULL, gelu_tanh_f32},
    {"GeluGrad", 2, gelu_grad_f32, NULL, NULL, NULL, gelu_tanh_grad_f32},
    {"Cos", 1, cos_f32, cos_f64, NULL, NULL, NULL},
    {"Sin", 1, sin_f32, sin_f64, NULL, NULL, NULL},
};

typedef struct {
    loop_fn loop;
    int64_t count;
    uint32_t inputs;
} state_t;

static loop_fn find_loop(const weft_node_desc_t *node, weft_dtype_t dtype, weft_isa_t isa,
                         uint32_t *out_inputs)
{
    const char *form = weft_node_attr_string(node, "approximate", "none");
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        const row_t *row = &rows[i];
        if (strcmp(row->op, node->op) == 0) {
            *out_inputs = row->inputs;
            const loop_fn *f32 =
                row->tanh != NULL && strcmp(form, "tanh") == 0 ? row->tanh : row->f32;
            return dtype == WEFT_DTYPE_F32   ? f32[isa]
                   : dtype == WEFT_DTYPE_F64 ? row->f64
                   : dtype == WEFT_DTYPE_I64 ? row->i64
                   : dtype == WEFT_DTYPE_I32 ? row->i32
                                             : NULL;
        }
    }
    return NULL;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    uint32_t inputs = 1;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *y = &node->outputs[0];
    loop_fn loop = find_loop(node, y->dtype, wefti_kernel_isa(env), &inputs);
    if (loop == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for type %s", node->op,
                           weft_dtype_name(y->dtype));
    }
    for (uint32_t i = 0; i < inputs; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
        if (node->inputs[i].dtype != y->dtype || !wefti_same_shape(&node->inputs[i], y)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "input %u and the output differ in type, shape or layout", i);
        }
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (state_t){loop, weft_tensor_elem_count(y), inputs};
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    s->loop(call->inputs[0], call->inputs[s->inputs - 1], call->outputs[0], s->count);
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_neg, "", "Neg", prepare, run);
WEFTI_KERNEL(wefti_kernel_exp, "", "Exp", prepare, run);
WEFTI_KERNEL(wefti_kernel_log, "", "Log", prepare, run);
WEFTI_KERNEL(wefti_kernel_sqrt, "", "Sqrt", prepare, run);
WEFTI_KERNEL(wefti_kernel_sqrt_grad, "weft", "SqrtGrad", prepare, run);
WEFTI_KERNEL(wefti_kernel_reciprocal, "", "Reciprocal", prepare, run);
WEFTI_KERNEL(wefti_kernel_reciprocal_grad, "weft", "ReciprocalGrad", prepare, run);
WEFTI_KERNEL(wefti_kernel_erf, "", "Erf", prepare, run);
WEFTI_KERNEL(wefti_kernel_erf_grad, "weft", "ErfGrad", prepare, run);
WEFTI_KERNEL(wefti_kernel_gelu, "", "Gelu", prepare, run);
WEFTI_KERNEL(wefti_kernel_gelu_grad, "weft", "GeluGrad", prepare, run);
WEFTI_KERNEL(wefti_kernel_cos, "", "Cos", prepare, run);
WEFTI_KERNEL(wefti_kernel_sin, "", "Sin", prepare, run);
