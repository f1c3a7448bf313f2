/* SPDX-License-Identifier: Apache-2.0 */
/* Relu, Tanh, Sigmoid, HardSigmoid, HardSwish and Clip with their gradients. */
#include "ops/compute/elementwise.h"

#include <float.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/own_kernels.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Of a gradient: a is dY; b is Y or X. Where a slope jumps, it is that of torch. */
#define SIGMOID(x) (1.0f / (1.0f + wefti_exp_f32(-(x))))
#define CLAMP(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))
static const wefti_elementwise_number_t hard_sigmoid[2] = {{"alpha", 0.2f}, {"beta", 0.5f}};

/* NaN stays NaN; -0 becomes 0. */
WEFTI_ELEMENTWISE(wefti_kernel_relu, "", "Relu", 1, NULL, a <= 0.0f ? 0.0f : a);
WEFTI_ELEMENTWISE(wefti_kernel_relu_grad, "com.microsoft", "ReluGrad", 2, NULL,
                  b > 0.0f ? a : 0.0f);
WEFTI_ELEMENTWISE(wefti_kernel_tanh, "", "Tanh", 1, NULL, wefti_tanh_f32(a));
WEFTI_ELEMENTWISE(wefti_kernel_tanh_grad, "weft", "TanhGrad", 2, NULL, a *(1.0f - b * b));
WEFTI_ELEMENTWISE(wefti_kernel_sigmoid, "", "Sigmoid", 1, NULL, SIGMOID(a));
WEFTI_ELEMENTWISE(wefti_kernel_sigmoid_grad, "weft", "SigmoidGrad", 2, NULL, a *((1.0f - b) * b));
WEFTI_ELEMENTWISE(wefti_kernel_hard_sigmoid, "", "HardSigmoid", 1, hard_sigmoid,
                  CLAMP(p0 *a + p1, 0.0f, 1.0f));
WEFTI_ELEMENTWISE(wefti_kernel_hard_sigmoid_grad, "weft", "HardSigmoidGrad", 2, hard_sigmoid,
                  b <= 0.0f || b >= 1.0f ? 0.0f : p0 * a);
WEFTI_ELEMENTWISE(wefti_kernel_hard_swish, "", "HardSwish", 1, NULL,
                  a *CLAMP(a *(1.0f / 6.0f) + 0.5f, 0.0f, 1.0f));
WEFTI_ELEMENTWISE(wefti_kernel_hard_swish_grad, "weft", "HardSwishGrad", 2, NULL,
                  b<-3.0f ? 0.0f : b> 3.0f ? a : a *(b *(1.0f / 3.0f) + 0.5f));

/* Clip and its gradient: bounds are attributes, or scalars after the tensors. */
static const wefti_elementwise_number_t bounds[2] = {{"min", -FLT_MAX}, {"max", FLT_MAX}};
WEFTI_ELEMENTWISE_LOOP(clip, CLAMP(a, p0, p1));
/* The slope at a bound is 0, as of Relu. */
WEFTI_ELEMENTWISE_LOOP(clip_grad, b <= p0 || b >= p1 ? 0.0f : a);

typedef struct {
    wefti_elementwise_t base;
    bool given[2]; /* the bound is an input */
} clip_t;

static weft_status_t prepare_clip(const weft_node_desc_t *node, uint32_t tensors,
                                  wefti_elementwise_fn loop, void **out_state,
                                  size_t *out_scratch_bytes)
{
    void *base;
    for (uint32_t i = 0; i < 2; i++) {
        const weft_tensor_desc_t *bound = wefti_infer_input(node, tensors + i);
        if (bound != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_need_f32(node, tensors + i));
            if (weft_tensor_elem_count(bound) != 1) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "input %u must be a scalar", tensors + i);
            }
        }
    }
    clip_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status =
        wefti_elementwise_prepare(node, tensors, bounds, loop, &base, out_scratch_bytes);
    if (status < 0) {
        wefti_state_free(state);
        return status;
    }
    state->base = *(const wefti_elementwise_t *)base;
    wefti_state_free(base);
    for (uint32_t i = 0; i < 2; i++) {
        state->given[i] = wefti_infer_input(node, tensors + i) != NULL;
    }
    *out_state = state;
    return WEFT_OK;
}

static weft_status_t run_clip(const weft_kernel_call_t *call)
{
    const clip_t *state = call->state;
    const wefti_elementwise_t *s = &state->base;
    float p[2] = {s->p[0], s->p[1]};
    for (uint32_t i = 0; i < 2; i++) {
        p[i] = state->given[i] ? *(const float *)call->inputs[s->tensors + i] : p[i];
    }
    s->loop(call->inputs[0], call->inputs[s->tensors - 1], p, call->outputs[0], s->count);
    return WEFT_OK;
}

static weft_status_t prepare_clip_forward(const weft_node_desc_t *node,
                                          const weft_kernel_env_t *env, void **out_state,
                                          size_t *out_scratch_bytes)
{
    return prepare_clip(node, 1, clip_loop[wefti_kernel_isa(env)], out_state, out_scratch_bytes);
}

static weft_status_t prepare_clip_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                       void **out_state, size_t *out_scratch_bytes)
{
    return prepare_clip(node, 2, clip_grad_loop[wefti_kernel_isa(env)], out_state,
                        out_scratch_bytes);
}

WEFTI_KERNEL(wefti_kernel_clip, "", "Clip", prepare_clip_forward, run_clip);
WEFTI_KERNEL(wefti_kernel_clip_grad, "weft", "ClipGrad", prepare_clip_grad, run_clip);
