/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on equal shapes: Relu, Tanh and their gradients. Layouts do not matter, all are equal.
 */
#include "ops/compute/own_kernels.h"

#include "ops/compute/math_f32.h"
#include "ops/compute/support.h"
#include "runtime/base/error.h"

typedef void (*loop_fn)(const float *a, const float *b, float *y, int64_t count);

typedef struct {
    loop_fn loop;
    int64_t count;
} state_t;

/* NaN stays NaN; -0 becomes 0. */
WEFTI_INLINE void relu_body(const float *a, const float *b, float *y, int64_t count)
{
    (void)b;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = a[i] <= 0.0f ? 0.0f : a[i];
    }
}

WEFTI_INLINE void relu_grad_body(const float *a, const float *b, float *y, int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float dy = a[i]; /* read first: a branch around the load would keep it from vectorising */
        y[i] = b[i] > 0.0f ? dy : 0.0f;
    }
}

WEFTI_INLINE void tanh_forward_body(const float *a, const float *b, float *y, int64_t count)
{
    (void)b;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = wefti_tanh_f32(a[i]);
    }
}

WEFTI_INLINE void tanh_grad_body(const float *a, const float *b, float *y, int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = a[i] * (1.0f - b[i] * b[i]);
    }
}

#define PARAMS (const float *a, const float *b, float *y, int64_t count)
#define ARGS (a, b, y, count)
WEFTI_CLONES(relu, PARAMS, ARGS);
WEFTI_CLONES(relu_grad, PARAMS, ARGS);
WEFTI_CLONES(tanh_forward, PARAMS, ARGS);
WEFTI_CLONES(tanh_grad, PARAMS, ARGS);

static weft_status_t prepare(const weft_node_desc_t *node, uint32_t inputs, loop_fn loop,
                             void **out_state, size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    for (uint32_t i = 0; i < inputs; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, i));
        if (!wefti_same_shape(&node->inputs[i], &node->outputs[0])) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "input %u and the output differ in shape or layout", i);
        }
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->loop = loop;
    state->count = weft_tensor_elem_count(&node->outputs[0]);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t run_unary(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    state->loop(call->inputs[0], NULL, call->outputs[0], state->count);
    return WEFT_OK;
}

static weft_status_t run_binary(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    state->loop(call->inputs[0], call->inputs[1], call->outputs[0], state->count);
    return WEFT_OK;
}

#define PREPARE(name, inputs, loop)                                                                \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)                         \
    {                                                                                              \
        return prepare(node, inputs, loop[wefti_kernel_isa(env)], out_state, out_scratch_bytes);   \
    }
PREPARE(prepare_relu, 1, relu)
PREPARE(prepare_tanh, 1, tanh_forward)
PREPARE(prepare_relu_grad, 2, relu_grad)
PREPARE(prepare_tanh_grad, 2, tanh_grad)

WEFTI_KERNEL(wefti_kernel_relu, "", "Relu", prepare_relu, run_unary);
WEFTI_KERNEL(wefti_kernel_tanh, "", "Tanh", prepare_tanh, run_unary);
WEFTI_KERNEL(wefti_kernel_relu_grad, "com.microsoft", "ReluGrad", prepare_relu_grad, run_binary);
WEFTI_KERNEL(wefti_kernel_tanh_grad, "weft", "TanhGrad", prepare_tanh_grad, run_binary);
