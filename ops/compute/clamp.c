/* SPDX-License-Identifier: Apache-2.0 */
/* Clip and its gradient: bounds are attributes, or scalars after the tensors. */
#include "ops/compute/elementwise.h"

#include <float.h>

#include "ops/compute/own_kernels.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* NaN stays NaN; the upper bound wins. */
#define RAISED(x, type) ((x) < p0 ? (type)p0 : (x))
#define CLAMP(x, type) (RAISED(x, type) > p1 ? (type)p1 : RAISED(x, type))
WEFTI_ELEMENTWISE_F32(clip_f32, float, CLAMP(a, float));
WEFTI_ELEMENTWISE_LOOP(clip_f64, double, double, CLAMP(a, double))
WEFTI_ELEMENTWISE_LOOP(clip_i64, int64_t, int64_t, CLAMP(a, int64_t))
/* The slope at a bound is 0, as of Relu. */
WEFTI_ELEMENTWISE_F32(clip_grad_f32, float, b <= p0 || b >= p1 ? 0.0f : a);
static const wefti_elementwise_loops_t clip = {.f32 = clip_f32, .f64 = clip_f64, .i64 = clip_i64};
static const wefti_elementwise_loops_t clip_grad = {.f32 = clip_grad_f32};

static const wefti_elementwise_number_t limits[2] = {{"min", -FLT_MAX}, {"max", FLT_MAX}};

typedef struct {
    wefti_elementwise_t base;
    bool given[2]; /* the bound is an input */
} clip_t;

static weft_status_t prepare_clip(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  uint32_t tensors, const wefti_elementwise_loops_t *loops,
                                  void **out_state, size_t *out_scratch_bytes)
{
    void *base;
    for (uint32_t i = 0; i < 2; i++) {
        const weft_tensor_desc_t *bound = wefti_infer_input(node, tensors + i);
        if (bound != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_need_known(bound, "input", tensors + i));
            if (weft_tensor_elem_count(bound) != 1 || bound->dtype != node->inputs[0].dtype) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "input %u must be a scalar of type %s",
                                   tensors + i, weft_dtype_name(node->inputs[0].dtype));
            }
        }
    }
    clip_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status =
        wefti_elementwise_prepare(node, env, tensors, limits, loops, &base, out_scratch_bytes);
    if (status < 0) {
        wefti_state_free(state);
        return status;
    }
    state->base = *(const wefti_elementwise_t *)base;
    wefti_state_free(base);
    for (uint32_t i = 0; i < 2; i++) {
        state->given[i] = wefti_infer_input(node, tensors + i) != NULL;
        if (state->base.in == WEFT_DTYPE_F64 && weft_node_attr(node, limits[i].attr) == NULL) {
            state->base.p[i] = i == 0 ? -DBL_MAX : DBL_MAX;
        }
    }
    *out_state = state;
    return WEFT_OK;
}

static double number(weft_dtype_t dtype, const void *x)
{
    wefti_wide_t wide;
    if (wefti_wide_dtype(dtype) != dtype) {
        wefti_widen(WEFT_ISA_PORTABLE, dtype, x, 1, &wide);
        x = &wide;
    }
    switch (wefti_wide_dtype(dtype)) {
    case WEFT_DTYPE_F32:
        return (double)*(const float *)x;
    case WEFT_DTYPE_F64:
        return *(const double *)x;
    default:
        return (double)*(const int64_t *)x;
    }
}

static weft_status_t run_clip(const weft_kernel_call_t *call)
{
    const clip_t *state = call->state;
    wefti_elementwise_t bounded = state->base;
    weft_kernel_call_t inner = *call;
    for (uint32_t i = 0; i < 2; i++) {
        bounded.p[i] =
            state->given[i] ? number(bounded.in, call->inputs[bounded.tensors + i]) : bounded.p[i];
    }
    inner.state = &bounded;
    return wefti_elementwise_run(&inner);
}

static weft_status_t prepare_forward(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     void **out_state, size_t *out_scratch_bytes)
{
    return prepare_clip(node, env, 1, &clip, out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare_clip(node, env, 2, &clip_grad, out_state, out_scratch_bytes);
}

WEFTI_KERNEL(wefti_kernel_clip, "", "Clip", prepare_forward, run_clip);
WEFTI_KERNEL(wefti_kernel_clip_grad, "weft", "ClipGrad", prepare_grad, run_clip);
