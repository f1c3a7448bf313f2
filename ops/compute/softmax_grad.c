/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Softmax, dX = Y (dY - sum(dY Y)), and LogSoftmax, dX = dY - exp(Y) sum(dY). */
#include "ops/compute/own_kernels.h"

#include "ops/compute/math_f32.h"
#include "ops/compute/sum_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

typedef struct {
    int64_t outer, length, inner;
    bool logarithm;
    weft_isa_t isa;
    uint32_t threads;
} state_t;

/* dx may be dy; terms: scratch of count floats. */
WEFTI_INLINE void grad_row(const float *dy, const float *y, float *dx, float *terms, int64_t count,
                           bool logarithm)
{
    if (logarithm) {
        float sum = wefti_sum_f32(dy, count);
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            dx[i] = dy[i] - wefti_exp_f32(y[i]) * sum;
        }
        return;
    }
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        terms[i] = dy[i] * y[i];
    }
    float sum = wefti_sum_f32(terms, count);
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        dx[i] = (dy[i] - sum) * y[i];
    }
}

WEFTI_INLINE void grad_body(const state_t *s, int64_t rows, const float *dy, const float *y,
                            float *dx, float *scratch)
{
    int64_t n = s->length, block = s->length * s->inner;
    float *a = scratch + n, *b = a + n;
    for (int64_t o = 0; o < rows; o++, dy += block, y += block, dx += block) {
        if (s->inner == 1) {
            grad_row(dy, y, dx, scratch, n, s->logarithm);
            continue;
        }
        for (int64_t i = 0; i < s->inner; i++) {
            for (int64_t k = 0; k < n; k++) {
                a[k] = dy[k * s->inner + i];
                b[k] = y[k * s->inner + i];
            }
            grad_row(a, b, a, scratch, n, s->logarithm);
            for (int64_t k = 0; k < n; k++) {
                dx[k * s->inner + i] = a[k];
            }
        }
    }
}
WEFTI_CLONES(grad,
             (const state_t *s, int64_t rows, const float *dy, const float *y, float *dx,
              float *scratch),
             (s, rows, dy, y, dx, scratch));

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const int64_t at = range.from * s->length * s->inner;
    grad[s->isa](s, range.to - range.from, (const float *)call->inputs[0] + at,
                 (const float *)call->inputs[1] + at, (float *)call->outputs[0] + at,
                 (float *)call->scratch + range.part * 3 * s->length);
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    wefti_parallel_for(s->threads, s->outer, wefti_grain_rows(s->length * s->inner), run_range,
                       call);
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             bool logarithm, void **out_state, size_t *out_scratch_bytes)
{
    state_t made = {
        .logarithm = logarithm, .isa = wefti_kernel_isa(env), .threads = wefti_kernel_threads(env)};
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    if (!wefti_same_shape(&node->inputs[0], &node->outputs[0]) ||
        !wefti_same_shape(&node->inputs[1], &node->outputs[0]) ||
        node->inputs[0].layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "gradient of Softmax: all tensors must have one shape, in plain layout");
    }
    WEFT_RETURN_IF_ERROR(wefti_softmax_axis(node, &made.outer, &made.length, &made.inner));
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = made;
    *out_state = state;
    *out_scratch_bytes = made.threads * 3 * (size_t)made.length * sizeof(float);
    return WEFT_OK;
}

static weft_status_t prepare_softmax(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, false, out_state, out_scratch_bytes);
}

static weft_status_t prepare_log(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                 void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, true, out_state, out_scratch_bytes);
}

WEFTI_KERNEL(wefti_kernel_softmax_grad, "weft", "SoftmaxGrad", prepare_softmax, run);
WEFTI_KERNEL(wefti_kernel_log_softmax_grad, "weft", "LogSoftmaxGrad", prepare_log, run);
