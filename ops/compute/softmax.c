/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and LogSoftmax along an axis; the row's maximum is subtracted first. */
#include "ops/compute/own_kernels.h"

#include <math.h>

#include "ops/compute/softmax_row.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

typedef struct {
    int64_t outer, length, inner;
    bool logarithm, f64;
    weft_isa_t isa;
    uint32_t threads;
} state_t;

WEFTI_INLINE void softmax_body(const state_t *s, int64_t rows, const float *x, float *y,
                               float *scratch)
{
    for (int64_t o = 0; o < rows; o++, x += s->length * s->inner, y += s->length * s->inner) {
        for (int64_t i = 0; i < s->inner; i++) {
            if (s->inner == 1) {
                wefti_log_softmax_row(x, y, scratch, s->length, s->logarithm);
                continue;
            }
            float *row = scratch + s->length;
            for (int64_t k = 0; k < s->length; k++) {
                row[k] = x[k * s->inner + i];
            }
            wefti_log_softmax_row(row, row, scratch, s->length, s->logarithm);
            for (int64_t k = 0; k < s->length; k++) {
                y[k * s->inner + i] = row[k];
            }
        }
    }
}
WEFTI_CLONES(softmax, (const state_t *s, int64_t rows, const float *x, float *y, float *scratch),
             (s, rows, x, y, scratch));

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const int64_t at = range.from * s->length * s->inner;
    softmax[s->isa](s, range.to - range.from, (const float *)call->inputs[0] + at,
                    (float *)call->outputs[0] + at,
                    (float *)call->scratch + range.part * 2 * s->length);
}

/* Of f64, for which there is no fast form. */
static void run_f64(const state_t *s, const double *x, double *y)
{
    const int64_t inner = s->inner;
    for (int64_t o = 0; o < s->outer; o++, x += s->length * inner, y += s->length * inner) {
        for (int64_t i = 0; i < inner; i++) {
            double largest = -INFINITY, sum = 0.0;
            for (int64_t k = 0; k < s->length; k++) {
                const double value = x[k * inner + i];
                largest = value > largest || isnan(value) ? value : largest;
            }
            for (int64_t k = 0; k < s->length; k++) {
                sum += exp(x[k * inner + i] - largest);
            }
            for (int64_t k = 0; k < s->length; k++) {
                const double value = x[k * inner + i] - largest;
                y[k * inner + i] = s->logarithm ? value - log(sum) : exp(value) / sum;
            }
        }
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    if (s->f64) {
        run_f64(s, call->inputs[0], call->outputs[0]);
        return WEFT_OK;
    }
    wefti_parallel_for(s->threads, s->outer, wefti_grain_rows(s->length * s->inner), run_range,
                       call);
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             bool logarithm, void **out_state, size_t *out_scratch_bytes)
{
    state_t made = {
        .logarithm = logarithm, .isa = wefti_kernel_isa(env), .threads = wefti_kernel_threads(env)};
    made.f64 = node->inputs[0].dtype == WEFT_DTYPE_F64 && node->outputs[0].dtype == WEFT_DTYPE_F64;
    if (!made.f64) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
        WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    }
    if (!wefti_same_shape(&node->inputs[0], &node->outputs[0]) ||
        node->inputs[0].layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "Softmax: input and output must have one shape, in plain layout");
    }
    WEFT_RETURN_IF_ERROR(wefti_softmax_axis(node, &made.outer, &made.length, &made.inner));
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = made;
    *out_state = state;
    *out_scratch_bytes = made.f64 ? 0 : made.threads * 2 * (size_t)made.length * sizeof(float);
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

WEFTI_KERNEL(wefti_kernel_softmax, "", "Softmax", prepare_softmax, run);
WEFTI_KERNEL(wefti_kernel_log_softmax, "", "LogSoftmax", prepare_log, run);
