/* SPDX-License-Identifier: Apache-2.0 */
/* Add, Sub, Mul and Div with broadcasting. */
#include "ops/compute/own_kernels.h"

#include "ops/compute/support.h"
#include "runtime/base/error.h"

typedef enum { OP_ADD, OP_SUB, OP_MUL, OP_DIV } op_t;

/* The innermost loop; a stride of 0 repeats one element. y has stride 1. */
typedef void (*inner_fn)(const float *a, int64_t sa, const float *b, int64_t sb, float *y,
                         int64_t count);

WEFTI_INLINE float apply(op_t op, float a, float b)
{
    return op == OP_ADD ? a + b : op == OP_SUB ? a - b : op == OP_MUL ? a * b : a / b;
}

WEFTI_INLINE void inner(op_t op, const float *a, int64_t sa, const float *b, int64_t sb, float *y,
                        int64_t count)
{
    if (sa == 1 && sb == 1) {
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = apply(op, a[i], b[i]);
        }
    } else if (sa == 1 && sb == 0) {
        float value = b[0];
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = apply(op, a[i], value);
        }
    } else if (sa == 0 && sb == 1) {
        float value = a[0];
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = apply(op, value, b[i]);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            y[i] = apply(op, a[i * sa], b[i * sb]);
        }
    }
}

#define PARAMS (const float *a, int64_t sa, const float *b, int64_t sb, float *y, int64_t count)
#define ARGS (a, sa, b, sb, y, count)
WEFTI_INLINE void add_body PARAMS
{
    inner(OP_ADD, a, sa, b, sb, y, count);
}
WEFTI_INLINE void sub_body PARAMS
{
    inner(OP_SUB, a, sa, b, sb, y, count);
}
WEFTI_INLINE void mul_body PARAMS
{
    inner(OP_MUL, a, sa, b, sb, y, count);
}
WEFTI_INLINE void div_body PARAMS
{
    inner(OP_DIV, a, sa, b, sb, y, count);
}
WEFTI_CLONES(add, PARAMS, ARGS);
WEFTI_CLONES(sub, PARAMS, ARGS);
WEFTI_CLONES(mul, PARAMS, ARGS);
WEFTI_CLONES(div, PARAMS, ARGS);

typedef struct {
    wefti_nest_t nest;
    inner_fn inner;
} binary_t;

/* The stride of from for each dimension of to, 0 where it is broadcast. */
static weft_status_t broadcast_strides(const weft_tensor_desc_t *from, const weft_tensor_desc_t *to,
                                       const char *what, int64_t *out_strides)
{
    int64_t strides[WEFT_MAX_DIMS];
    if (from->rank > to->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s has more dimensions than the result",
                           what);
    }
    wefti_strides(from, strides);
    for (uint32_t d = 0; d < to->rank; d++) {
        uint32_t skipped = to->rank - from->rank;
        int64_t size = d < skipped ? 1 : from->dims[d - skipped];
        if (size != 1 && size != to->dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s cannot be broadcast to the result",
                               what);
        }
        out_strides[d] = size == 1 ? 0 : strides[d - skipped];
    }
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, inner_fn loop, void **out_state,
                             size_t *out_scratch_bytes)
{
    int64_t a[WEFT_MAX_DIMS], b[WEFT_MAX_DIMS];
    uint32_t order[WEFT_MAX_DIMS];
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    const weft_tensor_desc_t *y = &node->outputs[0];
    WEFT_RETURN_IF_ERROR(broadcast_strides(&node->inputs[0], y, "input 0", a));
    WEFT_RETURN_IF_ERROR(broadcast_strides(&node->inputs[1], y, "input 1", b));
    binary_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_memory_order(y, order);
    wefti_nest_init(&state->nest);
    for (uint32_t d = 0; d < y->rank; d++) {
        wefti_nest_add(&state->nest, y->dims[order[d]], a[order[d]], b[order[d]]);
    }
    state->inner = loop;
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t run_binary(const weft_kernel_call_t *call)
{
    const binary_t *state = call->state;
    const wefti_nest_t *nest = &state->nest;
    const float *a = call->inputs[0], *b = call->inputs[1];
    float *y = call->outputs[0];
    uint32_t last = nest->rank - 1;
    wefti_nest_at_t at = {0};
    if (nest->empty) {
        return WEFT_OK;
    }
    do {
        state->inner(a + at.a, nest->a[last], b + at.b, nest->b[last], y, nest->dims[last]);
        y += nest->dims[last];
    } while (wefti_nest_next(nest, &at));
    return WEFT_OK;
}

#define PREPARE(name, loop)                                                                        \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)                         \
    {                                                                                              \
        return prepare(node, loop[wefti_kernel_isa(env)], out_state, out_scratch_bytes);           \
    }
PREPARE(prepare_add, add)
PREPARE(prepare_sub, sub)
PREPARE(prepare_mul, mul)
PREPARE(prepare_div, div)

WEFTI_KERNEL(wefti_kernel_add, "", "Add", prepare_add, run_binary);
WEFTI_KERNEL(wefti_kernel_sub, "", "Sub", prepare_sub, run_binary);
WEFTI_KERNEL(wefti_kernel_mul, "", "Mul", prepare_mul, run_binary);
WEFTI_KERNEL(wefti_kernel_div, "", "Div", prepare_div, run_binary);
