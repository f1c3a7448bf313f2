/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pow and PowGrad. An exponent of one element is looked at in every call: 2, 3, 0.5 and the like are
 * products and roots. The rest is computed in double precision; of one exponent and f32, as vectors.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef struct {
    wefti_nest_t nest; /* a: X, b: the exponent, c: dY */
    weft_dtype_t base, exponent;
    int64_t count;
    bool scalar; /* one exponent, and X has the shape of Y */
    weft_isa_t isa;
} state_t;

typedef enum { SQUARE, CUBE, ROOT, INVERSE_ROOT, INVERSE, SAME, GENERAL } form_t;

#define POWER(name, expression, slope)                                                             \
    case name:                                                                                     \
        if (dy == NULL) {                                                                          \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                float a = x[i];                                                                    \
                (void)a;                                                                           \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else {                                                                                   \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                float a = x[i];                                                                    \
                (void)a;                                                                           \
                y[i] = dy[i] * (slope);                                                            \
            }                                                                                      \
        }                                                                                          \
        break;

/* y = x^e, or dy e x^(e-1). */
WEFTI_INLINE void fixed_body(form_t form, const float *x, const float *dy, float *y, int64_t count)
{
    switch (form) {
        POWER(SQUARE, a * a, 2.0f * a)
        POWER(CUBE, a * a * a, 3.0f * (a * a))
        POWER(ROOT, __builtin_sqrtf(a), 0.5f / __builtin_sqrtf(a))
        POWER(INVERSE_ROOT, 1.0f / __builtin_sqrtf(a), -0.5f / (a * __builtin_sqrtf(a)))
        POWER(INVERSE, 1.0f / a, -1.0f / (a * a))
        POWER(SAME, a, 1.0f)
    case GENERAL:
        break;
    }
}
WEFTI_CLONES(fixed, (form_t form, const float *x, const float *dy, float *y, int64_t count),
             (form, x, dy, y, count));

/* x^e of a finite e other than 0, with the bits of wefti_pow, which has branches. */
typedef struct {
    double e, of_zero, of_infinity;
    double of_negative; /* the factor: 1, or NaN if e is not whole */
    uint64_t sign;      /* what an odd e keeps of x */
} exponent_t;

WEFTI_INLINE double power(float base, const exponent_t *p)
{
    const double x = (double)base, a = x < 0.0 ? -x : x;
    double y = wefti_exp(p->e * wefti_log(a > 0.0 && a < INFINITY ? a : 1.0));
    y = a == 0.0 ? p->of_zero : y;
    y = a == INFINITY ? p->of_infinity : y;
    y = wefti_f64_from_bits(wefti_f64_bits(y) | (wefti_f64_bits(x) & p->sign));
    y = x < 0.0 && a < INFINITY ? y * p->of_negative : y;
    return x == x ? y : NAN;
}

/* y = x^e, or dy factor x^e. */
WEFTI_INLINE void powers_body(const exponent_t *exponent, const float *x, const float *dy,
                              double factor, float *y, int64_t count)
{
    const exponent_t p = *exponent;
    if (dy == NULL) {
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = (float)power(x[i], &p);
        }
    } else {
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = (float)((double)dy[i] * (factor * power(x[i], &p)));
        }
    }
}
WEFTI_CLONES(powers,
             (const exponent_t *exponent, const float *x, const float *dy, double factor, float *y,
              int64_t count),
             (exponent, x, dy, factor, y, count));

/* One exponent for all elements; false: it is 0 or not finite. */
static bool run_powers(const state_t *s, double e, const float *x, const float *dy, float *y)
{
    const double used = dy == NULL ? e : e - 1.0;
    if (used == 0.0 || e == 0.0 || !isfinite(e)) {
        return false;
    }
    const bool small = used < 0x1p53 && used > -0x1p53;
    const bool whole = !small || (double)(int64_t)used == used;
    const bool odd = small && whole && ((int64_t)used & 1) != 0;
    const exponent_t p = {.e = used,
                          .of_zero = used < 0.0 ? INFINITY : 0.0,
                          .of_infinity = used < 0.0 ? 0.0 : INFINITY,
                          .of_negative = whole ? 1.0 : NAN,
                          .sign = odd ? (uint64_t)1 << 63 : 0};
    powers[s->isa](&p, x, dy, e, y, s->count);
    return true;
}

static double number(weft_dtype_t dtype, const void *data, int64_t index)
{
    switch (dtype) {
    case WEFT_DTYPE_F32:
        return (double)((const float *)data)[index];
    case WEFT_DTYPE_F64:
        return ((const double *)data)[index];
    case WEFT_DTYPE_I32:
        return (double)((const int32_t *)data)[index];
    case WEFT_DTYPE_U32:
        return (double)((const uint32_t *)data)[index];
    case WEFT_DTYPE_U64:
        return (double)((const uint64_t *)data)[index];
    default:
        return (double)((const int64_t *)data)[index];
    }
}

static form_t form_of(double exponent)
{
    return exponent == 2.0    ? SQUARE
           : exponent == 3.0  ? CUBE
           : exponent == 0.5  ? ROOT
           : exponent == -0.5 ? INVERSE_ROOT
           : exponent == -1.0 ? INVERSE
           : exponent == 1.0  ? SAME
                              : GENERAL;
}

/* Integers wrap; 1 / 0 is 0. */
static int64_t integer_power(int64_t base, double exponent)
{
    uint64_t result = 1, factor = (uint64_t)base;
    if (exponent < 0.0) {
        return base == 1 ? 1 : base == -1 ? ((int64_t)exponent % 2 != 0 ? -1 : 1) : 0;
    }
    for (uint64_t e = exponent < 0x1p63 ? (uint64_t)exponent : 0; e != 0; e >>= 1) {
        result *= (e & 1) != 0 ? factor : 1;
        factor *= factor;
    }
    return (int64_t)result;
}

static void put(const state_t *s, const void *x, int64_t a, double e, void *y, int64_t i)
{
    switch (s->base) {
    case WEFT_DTYPE_F32:
        ((float *)y)[i] = (float)wefti_pow((double)((const float *)x)[a], e);
        break;
    case WEFT_DTYPE_F64:
        ((double *)y)[i] = wefti_pow(((const double *)x)[a], e);
        break;
    case WEFT_DTYPE_I32:
        ((int32_t *)y)[i] = (int32_t)integer_power(((const int32_t *)x)[a], e);
        break;
    default:
        ((int64_t *)y)[i] = integer_power(((const int64_t *)x)[a], e);
        break;
    }
}

/* All elements one by one; dy: NULL for the forward operator. */
static void general(const state_t *s, const void *x, const void *exponents, const float *dy,
                    void *y)
{
    const wefti_nest_t *n = &s->nest;
    uint32_t last = n->rank - 1;
    int64_t at_y = 0;
    wefti_nest_at_t at = {0};
    do {
        for (int64_t i = 0; i < n->dims[last]; i++, at_y++) {
            int64_t a = at.a + i * n->a[last];
            double e = number(s->exponent, exponents, at.b + i * n->b[last]);
            if (dy == NULL) {
                put(s, x, a, e, y, at_y);
            } else {
                double slope =
                    e == 0.0 ? 0.0 : e * wefti_pow((double)((const float *)x)[a], e - 1.0);
                ((float *)y)[at_y] = (float)((double)dy[at.c + i * n->c[last]] * slope);
            }
        }
    } while (wefti_nest_next(n, &at));
}

static weft_status_t run_any(const state_t *s, const void *x, const void *exponents,
                             const float *dy, void *y)
{
    form_t form = GENERAL;
    if (s->nest.empty) {
        return WEFT_OK;
    }
    if (s->scalar && s->base == WEFT_DTYPE_F32) {
        form = form_of(number(s->exponent, exponents, 0));
    }
    if (form != GENERAL) {
        fixed[s->isa](form, x, dy, y, s->count);
    } else if (!s->scalar || s->base != WEFT_DTYPE_F32 ||
               !run_powers(s, number(s->exponent, exponents, 0), x, dy, y)) {
        general(s, x, exponents, dy, y);
    }
    return WEFT_OK;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    return run_any(call->state, call->inputs[0], call->inputs[1], NULL, call->outputs[0]);
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    return run_any(call->state, call->inputs[1], call->inputs[2], call->inputs[0],
                   call->outputs[0]);
}

static bool is_number(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_I64 ||
           dtype == WEFT_DTYPE_I32;
}

static bool is_exponent(weft_dtype_t dtype)
{
    return is_number(dtype) || dtype == WEFT_DTYPE_U32 || dtype == WEFT_DTYPE_U64;
}

/* x: which input is X; the exponent is the next one, dY the one before it. */
static weft_status_t prepare_any(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                 uint32_t x_index, void **out_state, size_t *out_scratch_bytes)
{
    int64_t a[WEFT_MAX_DIMS], b[WEFT_MAX_DIMS], c[WEFT_MAX_DIMS] = {0};
    uint32_t order[WEFT_MAX_DIMS];
    for (uint32_t i = 0; i < x_index + 2; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
    }
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *x = &node->inputs[x_index], *e = x + 1, *y = &node->outputs[0];
    if (!is_number(x->dtype) || !is_exponent(e->dtype) || y->dtype != x->dtype) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for types %s and %s", node->op,
                           weft_dtype_name(x->dtype), weft_dtype_name(e->dtype));
    }
    WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(x, y, "X", a));
    WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(e, y, "the exponent", b));
    if (x_index > 0) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 1));
        WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(&node->inputs[0], y, "dY", c));
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_memory_order(y, order);
    wefti_nest_init(&state->nest);
    for (uint32_t i = 0; i < y->rank; i++) {
        uint32_t d = order[i];
        wefti_nest_add3(&state->nest, y->dims[d], a[d], b[d], c[d]);
    }
    state->base = x->dtype;
    state->exponent = e->dtype;
    state->count = weft_tensor_elem_count(y);
    state->scalar = weft_tensor_elem_count(e) == 1 && wefti_same_shape(x, y) &&
                    (x_index == 0 || wefti_same_shape(&node->inputs[0], y));
    state->isa = wefti_kernel_isa(env);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    return prepare_any(node, env, 0, out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare_any(node, env, 1, out_state, out_scratch_bytes);
}

WEFTI_KERNEL(wefti_kernel_pow, "", "Pow", prepare, run);
WEFTI_KERNEL(wefti_kernel_pow_grad, "weft", "PowGrad", prepare_grad, run_grad);
