/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of two tensors, element by element with broadcasting: arithmetic, comparisons, logic,
 * and Max, Min, Sum and Mean of any number of tensors. The table below has one row per operator and
 * one loop per type. Integers wrap around.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/fused.h"
#include "ops/compute/support.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

typedef wefti_broadcast_fn inner_fn;
#define PARAMS (const void *va, int64_t sa, const void *vb, int64_t sb, void *vy, int64_t count)
#define ARGS (va, sa, vb, sb, vy, count)

/* A loop over elements of type in; a and b are the elements in expression. */
#define LOOP(name, in, out, expression)                                                            \
    static void name PARAMS                                                                        \
    {                                                                                              \
        const in *pa = va, *pb = vb;                                                               \
        out *y = vy;                                                                               \
        for (int64_t i = 0; i < count; i++) {                                                      \
            in a = pa[i * sa], b = pb[i * sb];                                                     \
            y[i] = (out)(expression);                                                              \
        }                                                                                          \
    }

/* f32 is the type of activations: its loops are compiled per instruction set. */
#define LOOP_F32(name, expression)                                                                 \
    WEFTI_INLINE void name##_body PARAMS                                                           \
    {                                                                                              \
        const float *pa = va, *pb = vb;                                                            \
        float *y = vy;                                                                             \
        if (sa == 1 && sb == 1) {                                                                  \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                float a = pa[i], b = pb[i];                                                        \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else if (sa == 1 && sb == 0) {                                                           \
            float b = pb[0];                                                                       \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                float a = pa[i];                                                                   \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else if (sa == 0 && sb == 1) {                                                           \
            float a = pa[0];                                                                       \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                float b = pb[i];                                                                   \
                y[i] = expression;                                                                 \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < count; i++) {                                                  \
                float a = pa[i * sa], b = pb[i * sb];                                              \
                y[i] = expression;                                                                 \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    WEFTI_CLONES(name, PARAMS, ARGS);

#define NUMBERS(name, floating, signed_, unsigned_)                                                \
    LOOP_F32(name##_f32, floating)                                                                 \
    LOOP(name##_f64, double, double, floating)                                                     \
    LOOP(name##_i64, int64_t, int64_t, signed_)                                                    \
    LOOP(name##_u64, uint64_t, uint64_t, unsigned_)
#define WRAP(a, operation, b) ((uint64_t)(a)operation(uint64_t)(b))
NUMBERS(add, a + b, WRAP(a, +, b), a + b)
NUMBERS(sub, a - b, WRAP(a, -, b), a - b)
NUMBERS(mul, a *b, WRAP(a, *, b), a *b)
/* run() has checked the divisors of integers. */
NUMBERS(div, a / b, b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b, a / b)
NUMBERS(prelu, a < 0 ? a * b : a, a < 0 ? WRAP(a, *, b) : (uint64_t)a, ((void)b, a))

/* The sign of the divisor, or with fmod that of the dividend. */
static inline int64_t remainder_i64(int64_t a, int64_t b)
{
    int64_t rest = b == -1 ? 0 : a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
static inline double remainder_f64(double a, double b)
{
    double rest = fmod(a, b);
    if (rest == 0.0) {
        return copysign(0.0, b);
    }
    return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
LOOP_F32(mod_f32, (float)remainder_f64((double)a, (double)b))
LOOP(mod_f64, double, double, remainder_f64(a, b))
LOOP(mod_i64, int64_t, int64_t, remainder_i64(a, b))
LOOP(mod_u64, uint64_t, uint64_t, a % b)
LOOP_F32(fmod_f32, (float)fmod((double)a, (double)b))
LOOP(fmod_f64, double, double, fmod(a, b))
LOOP(fmod_i64, int64_t, int64_t, b == -1 ? 0 : a % b)

/* NaN wins, in either place. */
#define EXTREME(name, compare)                                                                     \
    NUMBERS(name, (a compare b || a != a) ? a : b, a compare b ? a : b, a compare b ? a : b)
EXTREME(max, >)
EXTREME(min, <)

#define COMPARE(name, compare)                                                                     \
    LOOP(name##_f32_one, float, uint8_t, a compare b)                                              \
    static const inner_fn name##_f32[3] = {name##_f32_one, name##_f32_one, name##_f32_one};        \
    LOOP(name##_f64, double, uint8_t, a compare b)                                                 \
    LOOP(name##_i64, int64_t, uint8_t, a compare b)                                                \
    LOOP(name##_u64, uint64_t, uint8_t, a compare b)
COMPARE(equal, ==)
COMPARE(less, <)
COMPARE(less_equal, <=)
LOOP(equal_bool, uint8_t, uint8_t, !a == !b)
LOOP(and_bool, uint8_t, uint8_t, a &&b)
LOOP(or_bool, uint8_t, uint8_t, a || b)
LOOP(xor_bool, uint8_t, uint8_t, !a != !b)

#define BITS(name, operator) LOOP(name##_u64, uint64_t, uint64_t, a operator b)
BITS(bits_and, &)
BITS(bits_or, |)
BITS(bits_xor, ^)
LOOP(shift_left_u64, uint64_t, uint64_t, b < 64 ? a << b : 0)
LOOP(shift_right_u64, uint64_t, uint64_t, b < 64 ? a >> b : 0)
/* A count that is negative or too large leaves copies of the sign bit. */
LOOP(shift_right_i64, int64_t, int64_t, a >> (b >= 0 && b < 64 ? b : 63))

/* The result is bool; the loop is of (B, A); integers are divided; the result is divided by the
 * number of inputs. */
enum { COMPARES = 1, SWAPS = 2, DIVIDES = 4, MEAN = 8 };
#define L_NUMBERS(name) name##_f32, name##_f64, name##_i64, name##_u64, NULL
#define L_BOOL(name) NULL, NULL, NULL, NULL, name
#define L_BITS(name) NULL, NULL, name, name, NULL

/* ROW(operator, form, flags, loops); form is fmod or a direction, if the operator has several */
#define BROADCAST(ROW)                                                                             \
    ROW("Add", "", 0, L_NUMBERS(add))                                                              \
    ROW("Sum", "", 0, L_NUMBERS(add))                                                              \
    ROW("Mean", "", MEAN, add_f32, add_f64, NULL, NULL, NULL)                                      \
    ROW("Sub", "", 0, L_NUMBERS(sub))                                                              \
    ROW("Mul", "", 0, L_NUMBERS(mul))                                                              \
    ROW("Div", "", DIVIDES, L_NUMBERS(div))                                                        \
    ROW("Mod", "", DIVIDES, L_NUMBERS(mod))                                                        \
    ROW("PRelu", "", 0, L_NUMBERS(prelu))                                                          \
    ROW("Max", "", 0, L_NUMBERS(max))                                                              \
    ROW("Min", "", 0, L_NUMBERS(min))                                                              \
    ROW("Equal", "", COMPARES, equal_f32, equal_f64, equal_i64, equal_u64, equal_bool)             \
    ROW("Less", "", COMPARES, L_NUMBERS(less))                                                     \
    ROW("LessOrEqual", "", COMPARES, L_NUMBERS(less_equal))                                        \
    ROW("Greater", "", COMPARES | SWAPS, L_NUMBERS(less))                                          \
    ROW("GreaterOrEqual", "", COMPARES | SWAPS, L_NUMBERS(less_equal))                             \
    ROW("And", "", COMPARES, L_BOOL(and_bool))                                                     \
    ROW("Or", "", COMPARES, L_BOOL(or_bool))                                                       \
    ROW("Xor", "", COMPARES, L_BOOL(xor_bool))                                                     \
    ROW("BitwiseAnd", "", 0, L_BITS(bits_and_u64))                                                 \
    ROW("BitwiseOr", "", 0, L_BITS(bits_or_u64))                                                   \
    ROW("BitwiseXor", "", 0, L_BITS(bits_xor_u64))                                                 \
    ROW("BitShift", "LEFT", 0, L_BITS(shift_left_u64))

typedef struct row {
    const char *op, *form;
    uint32_t flags;
    const inner_fn *f32;             /* by instruction set; also of f16 and bf16 */
    inner_fn f64, i64, u64, boolean; /* i64: also of narrower integers */
} row_t;
#define ROW_OF(...) {__VA_ARGS__},
static const row_t rows[] = {
    BROADCAST(ROW_OF){"Mod", "fmod", DIVIDES, fmod_f32, fmod_f64, fmod_i64, mod_u64, NULL},
    {"BitShift", "RIGHT", 0, NULL, NULL, shift_right_i64, shift_right_u64, NULL},
};

/* The first pass computes (input 0, input 1), each further one (result so far, next input). */
typedef struct {
    inner_fn inner;
    size_t in_bytes, out_bytes; /* of an element */
    int64_t out_count, b_count;
    weft_dtype_t in, out;
    bool widens;  /* inner is a loop of a wider type */
    bool divides; /* input 1 has divisors that are integers */
    bool swaps;
    float mean; /* the number of inputs to divide by, or 0 */
    uint32_t pass_count, threads;
    weft_isa_t isa;
    wefti_nest_t passes[];
} binary_t;

static inner_fn find_loop(const row_t *row, weft_dtype_t dtype, weft_isa_t isa)
{
    switch (wefti_wide_dtype(dtype)) {
    case WEFT_DTYPE_F32:
        return row->f32 != NULL ? row->f32[isa] : NULL;
    case WEFT_DTYPE_F64:
        return row->f64;
    case WEFT_DTYPE_I64:
        return row->i64;
    case WEFT_DTYPE_U64:
        return row->u64;
    case WEFT_DTYPE_BOOL:
        return row->boolean;
    default:
        return NULL;
    }
}

static const row_t *find_row(const weft_node_desc_t *node)
{
    const char *form = weft_node_attr_int(node, "fmod", 0) != 0 ? "fmod" : "";
    form = weft_node_attr_string(node, "direction", form);
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        if (strcmp(rows[i].op, node->op) == 0 && strcmp(rows[i].form, form) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static weft_status_t check_types(const weft_node_desc_t *node, const row_t *row)
{
    weft_dtype_t dtype = WEFT_DTYPE_NONE;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    for (uint32_t i = 0; i < node->input_count || i == 0; i++) {
        const weft_tensor_desc_t *x = wefti_infer_input(node, i);
        WEFT_RETURN_IF_ERROR(wefti_need_known(x, "input", i));
        dtype = i == 0 ? x->dtype : dtype;
        if (x->dtype != dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs have types %s and %s",
                               weft_dtype_name(dtype), weft_dtype_name(x->dtype));
        }
    }
    if (node->outputs[0].dtype != ((row->flags & COMPARES) != 0 ? WEFT_DTYPE_BOOL : dtype)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the result has type %s",
                           weft_dtype_name(node->outputs[0].dtype));
    }
    return WEFT_OK;
}

static weft_status_t fill_pass(const weft_node_desc_t *node, uint32_t second, wefti_nest_t *nest)
{
    int64_t a[WEFT_MAX_DIMS], b[WEFT_MAX_DIMS];
    uint32_t order[WEFT_MAX_DIMS];
    const weft_tensor_desc_t *y = &node->outputs[0];
    const weft_tensor_desc_t *first = second > 1 ? y : &node->inputs[0];
    WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(first, y, "input 0", a));
    WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(&node->inputs[second], y, "an input", b));
    wefti_memory_order(y, order);
    wefti_nest_init(nest);
    for (uint32_t d = 0; d < y->rank; d++) {
        wefti_nest_add(nest, y->dims[order[d]], a[order[d]], b[order[d]]);
    }
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    const row_t *row = find_row(node);
    weft_status_t status = WEFT_OK;
    if (row == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: unknown form", node->op);
    }
    WEFT_RETURN_IF_ERROR(check_types(node, row));
    weft_dtype_t dtype = node->inputs[0].dtype;
    inner_fn inner = find_loop(row, dtype, wefti_kernel_isa(env));
    if (inner == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s has no kernel for type %s", row->op,
                           weft_dtype_name(dtype));
    }
    uint32_t pass_count = node->input_count - 1; /* one input only is copied */
    if (pass_count == 0 && !wefti_same_shape(&node->inputs[0], &node->outputs[0])) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "the input and the output differ in layout");
    }
    binary_t *state = wefti_state_alloc(sizeof(*state) + pass_count * sizeof(state->passes[0]));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; status >= 0 && i < pass_count; i++) {
        status = fill_pass(node, i + 1, &state->passes[i]);
    }
    if (status < 0) {
        wefti_state_free(state);
        return status;
    }
    const bool floating = (WEFT_DTYPE_BIT(dtype) & WEFTI_BIT_FLOATS) != 0;
    state->inner = inner;
    state->in = dtype;
    state->out = node->outputs[0].dtype;
    state->widens = wefti_wide_dtype(dtype) != dtype;
    state->swaps = (row->flags & SWAPS) != 0;
    state->mean = (row->flags & MEAN) != 0 ? (float)node->input_count : 0.0f;
    state->pass_count = pass_count;
    state->threads = wefti_kernel_threads(env);
    state->isa = wefti_kernel_isa(env);
    state->in_bytes = weft_dtype_size_bytes(dtype);
    state->out_bytes = weft_dtype_size_bytes(state->out);
    state->out_count = weft_tensor_elem_count(&node->outputs[0]);
    if ((row->flags & DIVIDES) != 0 && node->input_count > 1 && !floating) {
        state->divides = true;
        state->b_count = weft_tensor_elem_count(&node->inputs[1]);
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static bool has_zero(const binary_t *state, const char *b)
{
    static const char zero[8] = {0};
    for (int64_t i = 0; i < state->b_count; i++) {
        if (memcmp(b + (size_t)i * state->in_bytes, zero, state->in_bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* Elements from x on with a stride, as the wide type; the stride of the result is 1 or 0. */
static int64_t widen(const binary_t *s, const char *x, int64_t stride, int64_t count,
                     wefti_wide_t *out)
{
    if (stride == 1 || stride == 0) {
        wefti_widen(s->isa, s->in, x, stride == 1 ? count : 1, out);
        return stride;
    }
    wefti_wide_t one;
    const bool wide = wefti_wide_dtype(s->in) == WEFT_DTYPE_I64;
    for (int64_t i = 0; i < count; i++) {
        wefti_widen(s->isa, s->in, x + i * stride * (int64_t)s->in_bytes, 1, &one);
        if (wide) {
            out->i64[i] = one.i64[0];
        } else {
            out->f32[i] = one.f32[0];
        }
    }
    return 1;
}

static void run_row(const binary_t *s, const char *a, int64_t sa, const char *b, int64_t sb,
                    char *y, int64_t count)
{
    if (!s->widens) {
        s->inner(a, sa, b, sb, y, count);
        return;
    }
    for (int64_t at = 0; at < count; at += WEFTI_WIDE_BLOCK) {
        int64_t size = (int64_t)s->in_bytes, left = count - at;
        int64_t part = left < WEFTI_WIDE_BLOCK ? left : WEFTI_WIDE_BLOCK;
        wefti_wide_t p, q, z;
        int64_t sp = widen(s, a + at * sa * size, sa, part, &p);
        int64_t sq = widen(s, b + at * sb * size, sb, part, &q);
        char *to = y + at * (int64_t)s->out_bytes;
        if (s->in != s->out) { /* a comparison */
            s->inner(&p, sp, &q, sq, to, part);
        } else {
            s->inner(&p, sp, &q, sq, &z, part);
            wefti_narrow(s->isa, s->out, &z, part, to);
        }
    }
}

/* One pass over both tensors. */
typedef struct {
    const binary_t *state;
    const wefti_nest_t *nest;
    const char *a, *b;
    char *y;
} pass_t;

/* A range of the outermost dimension. */
static void run_range(const void *job, wefti_range_t range)
{
    const pass_t *p = job;
    const binary_t *s = p->state;
    wefti_nest_t nest = *p->nest;
    const uint32_t last = nest.rank - 1;
    const int64_t size = (int64_t)s->in_bytes, row = s->out_count / nest.dims[0];
    const char *a = p->a + size * nest.a[0] * range.from;
    const char *b = p->b + size * nest.b[0] * range.from;
    char *y = p->y + (int64_t)s->out_bytes * row * range.from;
    wefti_nest_at_t at = {0};
    nest.dims[0] = range.to - range.from;
    do {
        if (s->swaps) {
            run_row(s, b + size * at.b, nest.b[last], a + size * at.a, nest.a[last], y,
                    nest.dims[last]);
        } else {
            run_row(s, a + size * at.a, nest.a[last], b + size * at.b, nest.b[last], y,
                    nest.dims[last]);
        }
        y += (int64_t)s->out_bytes * nest.dims[last];
    } while (wefti_nest_next(&nest, &at));
}

static void run_pass(const binary_t *state, const wefti_nest_t *nest, const char *a, const char *b,
                     char *y)
{
    const pass_t pass = {state, nest, a, b, y};
    wefti_parallel_for(state->threads, nest->dims[0],
                       wefti_grain_rows(state->out_count / nest->dims[0]), run_range, &pass);
}

/* Mean: the sum divided by the number of inputs. */
static void divide(const binary_t *s, char *y)
{
    wefti_wide_t wide;
    for (int64_t i = 0; s->out == WEFT_DTYPE_F64 && i < s->out_count; i++) {
        ((double *)y)[i] /= (double)s->mean;
    }
    for (int64_t i = 0; s->out == WEFT_DTYPE_F32 && i < s->out_count; i++) {
        ((float *)y)[i] /= s->mean;
    }
    for (int64_t i = 0; s->widens && i < s->out_count; i++, y += s->out_bytes) {
        wefti_widen(s->isa, s->out, y, 1, &wide);
        wide.f32[0] /= s->mean;
        wefti_narrow(s->isa, s->out, &wide, 1, y);
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const binary_t *state = call->state;
    if (state->divides && has_zero(state, call->inputs[1])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "division of integers by zero");
    }
    if (state->out_count > 0 && state->pass_count == 0 && call->outputs[0] != call->inputs[0]) {
        memcpy(call->outputs[0], call->inputs[0], (size_t)state->out_count * state->in_bytes);
    }
    for (uint32_t i = 0; i < state->pass_count && state->out_count > 0; i++) {
        const char *a = i == 0 ? call->inputs[0] : call->outputs[0];
        run_pass(state, &state->passes[i], a, call->inputs[i + 1], call->outputs[0]);
    }
    if (state->mean > 1.0f) {
        divide(state, call->outputs[0]);
    }
    return WEFT_OK;
}

/* Floats in, floats out, from two operands. */
static bool is_step(const row_t *row)
{
    return row != NULL && row->f32 != NULL && row->form[0] == '\0' &&
           (row->flags & (COMPARES | MEAN)) == 0;
}

bool wefti_broadcast_step(const weft_node_desc_t *node, wefti_fused_step_t *out_step)
{
    const row_t *row = find_row(node);
    if (!is_step(row) || node->input_count != 2) {
        return false;
    }
    *out_step = (wefti_fused_step_t){.name = row->op, .tensors = 2, .broadcasts = true};
    return true;
}

bool wefti_broadcast_loop(const char *name, weft_isa_t isa, wefti_fused_loop_t *out_loop)
{
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        if (strcmp(rows[i].op, name) == 0 && is_step(&rows[i])) {
            *out_loop = (wefti_fused_loop_t){.broadcast = rows[i].f32[isa], .tensors = 2};
            return true;
        }
    }
    return false;
}

#define KERNEL_OF(name, ...) WEFTI_KERNEL_VALUE("", name, prepare, run),
static const weft_kernel_t kernels[] = {BROADCAST(KERNEL_OF)};

wefti_kernel_family_t wefti_kernels_broadcast(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
