/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of two tensors, element by element with broadcasting: arithmetic, comparisons, logic,
 * and Max and Min of any number of tensors. The table below has one row per operator and one loop
 * per type. Integers wrap around.
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* The innermost loop; a stride of 0 repeats one element. y has stride 1. */
typedef void (*inner_fn)(const void *a, int64_t sa, const void *b, int64_t sb, void *y,
                         int64_t count);
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

#define ARITHMETIC(name, floating, unsigned_)                                                      \
    LOOP_F32(name##_f32, floating)                                                                 \
    LOOP(name##_f64, double, double, floating)                                                     \
    LOOP(name##_i64, uint64_t, uint64_t, unsigned_)                                                \
    LOOP(name##_i32, uint32_t, uint32_t, unsigned_)
ARITHMETIC(add, a + b, a + b)
ARITHMETIC(sub, a - b, a - b)
ARITHMETIC(mul, a *b, a *b)
LOOP_F32(div_f32, a / b)
LOOP(div_f64, double, double, a / b)
/* run() has checked the divisors. */
LOOP(div_i64, int64_t, int64_t, b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b)
LOOP(div_i32, int32_t, int32_t, b == -1 ? (int32_t)(0 - (uint32_t)a) : a / b)

/* NaN wins, in either place. */
#define EXTREME(name, compare)                                                                     \
    LOOP_F32(name##_f32, (a compare b || a != a) ? a : b)                                          \
    LOOP(name##_f64, double, double, (a compare b || a != a) ? a : b)                              \
    LOOP(name##_i64, int64_t, int64_t, a compare b ? a : b)                                        \
    LOOP(name##_i32, int32_t, int32_t, a compare b ? a : b)
EXTREME(max, >)
EXTREME(min, <)

#define COMPARE(name, compare)                                                                     \
    LOOP(name##_f32, float, uint8_t, a compare b)                                                  \
    LOOP(name##_f64, double, uint8_t, a compare b)                                                 \
    LOOP(name##_i64, int64_t, uint8_t, a compare b)                                                \
    LOOP(name##_i32, int32_t, uint8_t, a compare b)
COMPARE(equal, ==)
COMPARE(less, <)
COMPARE(less_equal, <=)
LOOP(equal_bool, uint8_t, uint8_t, !a == !b)
LOOP(and_bool, uint8_t, uint8_t, a &&b)
LOOP(or_bool, uint8_t, uint8_t, a || b)
LOOP(xor_bool, uint8_t, uint8_t, !a != !b)

typedef struct row {
    const char *op;
    const inner_fn *f32; /* by instruction set */
    inner_fn f64, i64, i32, boolean;
    bool compares; /* the result is bool */
    bool swaps;    /* the loop is of (B, A) */
    bool divides;
} row_t;

static const inner_fn equal_f32_all[3] = {equal_f32, equal_f32, equal_f32};
static const inner_fn less_f32_all[3] = {less_f32, less_f32, less_f32};
static const inner_fn less_equal_f32_all[3] = {less_equal_f32, less_equal_f32, less_equal_f32};

#define NUMBERS(name) name##_f32, name##_f64, name##_i64, name##_i32
static const row_t rows[] = {
    {"Add", NUMBERS(add), NULL, false, false, false},
    {"Sub", NUMBERS(sub), NULL, false, false, false},
    {"Mul", NUMBERS(mul), NULL, false, false, false},
    {"Div", NUMBERS(div), NULL, false, false, true},
    {"Max", NUMBERS(max), NULL, false, false, false},
    {"Min", NUMBERS(min), NULL, false, false, false},
    {"Equal", equal_f32_all, equal_f64, equal_i64, equal_i32, equal_bool, true, false, false},
    {"Less", less_f32_all, less_f64, less_i64, less_i32, NULL, true, false, false},
    {"LessOrEqual", less_equal_f32_all, less_equal_f64, less_equal_i64, less_equal_i32, NULL, true,
     false, false},
    {"Greater", less_f32_all, less_f64, less_i64, less_i32, NULL, true, true, false},
    {"GreaterOrEqual", less_equal_f32_all, less_equal_f64, less_equal_i64, less_equal_i32, NULL,
     true, true, false},
    {"And", NULL, NULL, NULL, NULL, and_bool, true, false, false},
    {"Or", NULL, NULL, NULL, NULL, or_bool, true, false, false},
    {"Xor", NULL, NULL, NULL, NULL, xor_bool, true, false, false},
};

/* The first pass computes (input 0, input 1), each further one (result so far, next input). */
typedef struct {
    inner_fn inner;
    size_t in_bytes, out_bytes; /* of an element */
    int64_t out_count, b_count;
    weft_dtype_t checks; /* I64 or I32: input 1 has divisors of this type */
    bool swaps, alone;   /* alone: there is one input */
    uint32_t pass_count;
    wefti_nest_t passes[];
} binary_t;

static inner_fn find_loop(const row_t *row, weft_dtype_t dtype, weft_isa_t isa)
{
    switch (dtype) {
    case WEFT_DTYPE_F32:
        return row->f32 != NULL ? row->f32[isa] : NULL;
    case WEFT_DTYPE_F64:
        return row->f64;
    case WEFT_DTYPE_I64:
        return row->i64;
    case WEFT_DTYPE_I32:
        return row->i32;
    case WEFT_DTYPE_BOOL:
        return row->boolean;
    default:
        return NULL;
    }
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
    if (node->outputs[0].dtype != (row->compares ? WEFT_DTYPE_BOOL : dtype)) {
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
    const row_t *row = NULL;
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < WEFTI_COUNT(rows); i++) {
        row = strcmp(rows[i].op, node->op) == 0 ? &rows[i] : row;
    }
    if (row == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "unknown operator '%s'", node->op);
    }
    WEFT_RETURN_IF_ERROR(check_types(node, row));
    weft_dtype_t dtype = node->inputs[0].dtype;
    inner_fn inner = find_loop(row, dtype, wefti_kernel_isa(env));
    if (inner == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s has no kernel for type %s", row->op,
                           weft_dtype_name(dtype));
    }
    /* One input only (Max, Min): the maximum with itself. */
    uint32_t pass_count = node->input_count > 1 ? node->input_count - 1 : 1;
    binary_t *state = wefti_state_alloc(sizeof(*state) + pass_count * sizeof(state->passes[0]));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; status >= 0 && i < pass_count; i++) {
        status = fill_pass(node, node->input_count > 1 ? i + 1 : 0, &state->passes[i]);
    }
    if (status < 0) {
        wefti_state_free(state);
        return status;
    }
    state->inner = inner;
    state->swaps = row->swaps;
    state->pass_count = pass_count;
    state->alone = node->input_count == 1;
    state->in_bytes = weft_dtype_size_bytes(dtype);
    state->out_bytes = weft_dtype_size_bytes(node->outputs[0].dtype);
    state->out_count = weft_tensor_elem_count(&node->outputs[0]);
    if (row->divides && node->input_count > 1 &&
        (dtype == WEFT_DTYPE_I64 || dtype == WEFT_DTYPE_I32)) {
        state->checks = dtype;
        state->b_count = weft_tensor_elem_count(&node->inputs[1]);
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static bool has_zero(const binary_t *state, const void *b)
{
    bool zero = false;
    for (int64_t i = 0; i < state->b_count; i++) {
        zero |= state->checks == WEFT_DTYPE_I64 ? ((const int64_t *)b)[i] == 0
                                                : ((const int32_t *)b)[i] == 0;
    }
    return zero;
}

static void run_pass(const binary_t *state, const wefti_nest_t *nest, const char *a, const char *b,
                     char *y)
{
    uint32_t last = nest->rank - 1;
    int64_t size = (int64_t)state->in_bytes;
    wefti_nest_at_t at = {0};
    do {
        if (state->swaps) {
            state->inner(b + size * at.b, nest->b[last], a + size * at.a, nest->a[last], y,
                         nest->dims[last]);
        } else {
            state->inner(a + size * at.a, nest->a[last], b + size * at.b, nest->b[last], y,
                         nest->dims[last]);
        }
        y += (int64_t)state->out_bytes * nest->dims[last];
    } while (wefti_nest_next(nest, &at));
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const binary_t *state = call->state;
    if (state->checks != WEFT_DTYPE_NONE && has_zero(state, call->inputs[1])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Div: division of integers by zero");
    }
    for (uint32_t i = 0; i < state->pass_count && state->out_count > 0; i++) {
        const char *a = i == 0 ? call->inputs[0] : call->outputs[0];
        run_pass(state, &state->passes[i], a, call->inputs[state->alone ? 0 : i + 1],
                 call->outputs[0]);
    }
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_add, "", "Add", prepare, run);
WEFTI_KERNEL(wefti_kernel_sub, "", "Sub", prepare, run);
WEFTI_KERNEL(wefti_kernel_mul, "", "Mul", prepare, run);
WEFTI_KERNEL(wefti_kernel_div, "", "Div", prepare, run);
WEFTI_KERNEL(wefti_kernel_max, "", "Max", prepare, run);
WEFTI_KERNEL(wefti_kernel_min, "", "Min", prepare, run);
WEFTI_KERNEL(wefti_kernel_equal, "", "Equal", prepare, run);
WEFTI_KERNEL(wefti_kernel_less, "", "Less", prepare, run);
WEFTI_KERNEL(wefti_kernel_less_or_equal, "", "LessOrEqual", prepare, run);
WEFTI_KERNEL(wefti_kernel_greater, "", "Greater", prepare, run);
WEFTI_KERNEL(wefti_kernel_greater_or_equal, "", "GreaterOrEqual", prepare, run);
WEFTI_KERNEL(wefti_kernel_and, "", "And", prepare, run);
WEFTI_KERNEL(wefti_kernel_or, "", "Or", prepare, run);
WEFTI_KERNEL(wefti_kernel_xor, "", "Xor", prepare, run);
