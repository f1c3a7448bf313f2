/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNormalization and its gradient, a row of X at a time: xh = (x - mean) / deviation, and
 * y = scale xh + bias. Sums have the fixed shape of sum_f32.h; dScale and dBias add up rows in
 * order.
 *
 *   dx = (g - mean(g) - xh mean(g xh)) / deviation, where g = dy scale
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/sum_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef struct {
    int64_t rows, length;
    float epsilon;
    uint32_t input_count, output_count;
    weft_isa_t isa;
} state_t;

/* terms: scratch of length floats. mean and inverse: one element per row, or NULL. */
WEFTI_INLINE void forward_body(const state_t *s, const float *x, const float *scale,
                               const float *bias, float *y, float *mean, float *inverse,
                               float *terms)
{
    float count = (float)s->length;
    for (int64_t r = 0; r < s->rows; r++, x += s->length, y += s->length) {
        float middle = wefti_sum_f32(x, s->length) / count;
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < s->length; i++) {
            terms[i] = (x[i] - middle) * (x[i] - middle);
        }
        float variance = wefti_sum_f32(terms, s->length) / count;
        float inv = 1.0f / __builtin_sqrtf(variance + s->epsilon);
        if (bias != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < s->length; i++) {
                y[i] = ((x[i] - middle) * inv) * scale[i] + bias[i];
            }
        } else {
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < s->length; i++) {
                y[i] = ((x[i] - middle) * inv) * scale[i];
            }
        }
        if (mean != NULL) {
            mean[r] = middle;
        }
        if (inverse != NULL) {
            inverse[r] = inv;
        }
    }
}
WEFTI_CLONES(forward,
             (const state_t *s, const float *x, const float *scale, const float *bias, float *y,
              float *mean, float *inverse, float *terms),
             (s, x, scale, bias, y, mean, inverse, terms));

/* dx, dscale or dbias may be NULL; the latter begin at 0. terms: scratch of 2 length floats. */
WEFTI_INLINE void backward_body(const state_t *s, const float *dy, const float *x,
                                const float *scale, const float *mean, const float *inverse,
                                float *dx, float *dscale, float *dbias, float *terms)
{
    float count = (float)s->length, *products = terms + s->length;
    for (int64_t r = 0; r < s->rows; r++, dy += s->length, x += s->length) {
        float middle = mean[r], inv = inverse[r];
        if (dx != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < s->length; i++) {
                terms[i] = dy[i] * scale[i];
                products[i] = terms[i] * ((x[i] - middle) * inv);
            }
            float a = wefti_sum_f32(terms, s->length) / count;
            float b = wefti_sum_f32(products, s->length) / count;
            float *d = dx + r * s->length;
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < s->length; i++) {
                d[i] = (terms[i] - a - ((x[i] - middle) * inv) * b) * inv;
            }
        }
        if (dscale != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < s->length; i++) {
                dscale[i] += dy[i] * ((x[i] - middle) * inv);
            }
        }
        if (dbias != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < s->length; i++) {
                dbias[i] += dy[i];
            }
        }
    }
}
WEFTI_CLONES(backward,
             (const state_t *s, const float *dy, const float *x, const float *scale,
              const float *mean, const float *inverse, float *dx, float *dscale, float *dbias,
              float *terms),
             (s, dy, x, scale, mean, inverse, dx, dscale, dbias, terms));

static weft_status_t run_forward(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    forward[s->isa](s, call->inputs[0], call->inputs[1],
                    s->input_count > 2 ? call->inputs[2] : NULL, call->outputs[0],
                    s->output_count > 1 ? call->outputs[1] : NULL,
                    s->output_count > 2 ? call->outputs[2] : NULL, call->scratch);
    return WEFT_OK;
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    float *sums[2] = {NULL, NULL}; /* dScale, dBias */
    for (uint32_t i = 0; i < 2 && i + 1 < s->output_count; i++) {
        sums[i] = call->outputs[i + 1];
        if (sums[i] != NULL) {
            memset(sums[i], 0, (size_t)s->length * sizeof(float));
        }
    }
    backward[s->isa](s, call->inputs[0], call->inputs[1], call->inputs[2], call->inputs[3],
                     call->inputs[4], call->outputs[0], sums[0], sums[1], call->scratch);
    return WEFT_OK;
}

/* A tensor that may be absent, of count elements. */
static weft_status_t check(const weft_tensor_desc_t *t, const char *what, int64_t count)
{
    if (t == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_need_known(t, what, 0));
    if (t->dtype != WEFT_DTYPE_F32 || t->layout != WEFT_LAYOUT_PLAIN ||
        weft_tensor_elem_count(t) != count) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "layer normalization: a tensor is not f32 in plain layout, or does not "
                           "have the size that X and axis require");
    }
    return WEFT_OK;
}

/* x and scale: which inputs they are; the inputs after scale have one element per row (statistics)
 * or per column. */
static weft_status_t read_node(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                               uint32_t x_index, state_t *out)
{
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, x_index));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, x_index + 1));
    const weft_tensor_desc_t *x = &node->inputs[x_index];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", -1), x->rank, "axis", &axis));
    *out = (state_t){.rows = 1,
                     .length = 1,
                     .input_count = node->input_count,
                     .output_count = node->output_count,
                     .epsilon = weft_node_attr_float(node, "epsilon", 1e-5f),
                     .isa = wefti_kernel_isa(env)};
    for (uint32_t d = 0; d < x->rank; d++) {
        *(d < axis ? &out->rows : &out->length) *= x->dims[d];
    }
    if (x->layout != WEFT_LAYOUT_PLAIN || weft_node_attr_int(node, "stash_type", 1) != 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "layer normalization: X must have plain layout and stash_type be 1");
    }
    return check(&node->inputs[x_index + 1], "scale", out->length);
}

static weft_status_t keep(const state_t *made, size_t rows_of_scratch, void **out_state,
                          size_t *out_scratch_bytes)
{
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = *made;
    *out_state = state;
    *out_scratch_bytes = rows_of_scratch * (size_t)made->length * sizeof(float);
    return WEFT_OK;
}

static weft_status_t prepare_forward(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     void **out_state, size_t *out_scratch_bytes)
{
    state_t s;
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    WEFT_RETURN_IF_ERROR(read_node(node, env, 0, &s));
    WEFT_RETURN_IF_ERROR(check(wefti_infer_input(node, 2), "bias", s.length));
    WEFT_RETURN_IF_ERROR(check(wefti_node_output(node, 0), "output", s.rows * s.length));
    WEFT_RETURN_IF_ERROR(check(wefti_node_output(node, 1), "mean", s.rows));
    WEFT_RETURN_IF_ERROR(check(wefti_node_output(node, 2), "deviation", s.rows));
    return keep(&s, 1, out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t s;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 3));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 4));
    WEFT_RETURN_IF_ERROR(read_node(node, env, 1, &s));
    WEFT_RETURN_IF_ERROR(check(&node->inputs[0], "dY", s.rows * s.length));
    WEFT_RETURN_IF_ERROR(check(&node->inputs[3], "mean", s.rows));
    WEFT_RETURN_IF_ERROR(check(&node->inputs[4], "deviation", s.rows));
    WEFT_RETURN_IF_ERROR(check(wefti_node_output(node, 0), "dX", s.rows * s.length));
    WEFT_RETURN_IF_ERROR(check(wefti_node_output(node, 1), "dScale", s.length));
    WEFT_RETURN_IF_ERROR(check(wefti_node_output(node, 2), "dBias", s.length));
    return keep(&s, 2, out_state, out_scratch_bytes);
}

WEFTI_KERNEL(wefti_kernel_layer_norm, "", "LayerNormalization", prepare_forward, run_forward);
WEFTI_KERNEL(wefti_kernel_layer_norm_grad, "com.microsoft", "LayerNormalizationGrad", prepare_grad,
             run_grad);
