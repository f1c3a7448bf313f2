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
#include "runtime/base/parallel.h"

#define ROWS 16 /* that stay in cache between both loops of the gradient */

typedef struct {
    int64_t rows, length;
    float epsilon;
    uint32_t input_count, output_count;
    weft_isa_t isa;
    uint32_t threads;
} state_t;

/* terms: scratch of length floats. mean and inverse: one element per row, or NULL. */
WEFTI_INLINE void forward_body(const state_t *s, wefti_range_t rows, const float *x,
                               const float *scale, const float *bias, float *y, float *mean,
                               float *inverse, float *terms)
{
    float count = (float)s->length;
    x += rows.from * s->length;
    y += rows.from * s->length;
    for (int64_t r = rows.from; r < rows.to; r++, x += s->length, y += s->length) {
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
             (const state_t *s, wefti_range_t rows, const float *x, const float *scale,
              const float *bias, float *y, float *mean, float *inverse, float *terms),
             (s, rows, x, scale, bias, y, mean, inverse, terms));

/* terms: scratch of 2 length floats. */
WEFTI_INLINE void backward_body(const state_t *s, wefti_range_t rows, const float *dy,
                                const float *x, const float *scale, const float *mean,
                                const float *inverse, float *dx, float *terms)
{
    float count = (float)s->length, *products = terms + s->length;
    dy += rows.from * s->length;
    x += rows.from * s->length;
    dx += rows.from * s->length;
    for (int64_t r = rows.from; r < rows.to; r++) {
        float middle = mean[r], inv = inverse[r];
        wefti_prefetch(dx + s->length, s->length * (int64_t)sizeof(float));
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < s->length; i++) {
            terms[i] = dy[i] * scale[i];
            products[i] = terms[i] * ((x[i] - middle) * inv);
        }
        float a = wefti_sum_f32(terms, s->length) / count;
        float b = wefti_sum_f32(products, s->length) / count;
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < s->length; i++) {
            dx[i] = (terms[i] - a - ((x[i] - middle) * inv) * b) * inv;
        }
        dy += s->length;
        x += s->length;
        dx += s->length;
    }
}
WEFTI_CLONES(backward,
             (const state_t *s, wefti_range_t rows, const float *dy, const float *x,
              const float *scale, const float *mean, const float *inverse, float *dx, float *terms),
             (s, rows, dy, x, scale, mean, inverse, dx, terms));

/* Adds up columns over rows in order. dscale or dbias may be NULL; they begin at 0. */
WEFTI_INLINE void add_columns_body(const state_t *s, wefti_range_t rows, int64_t from, int64_t to,
                                   const float *dy, const float *x, const float *mean,
                                   const float *inverse, float *dscale, float *dbias)
{
    dy += rows.from * s->length;
    x += rows.from * s->length;
    for (int64_t r = rows.from; r < rows.to; r++, dy += s->length, x += s->length) {
        const float middle = mean[r], inv = inverse[r];
        wefti_prefetch(dy + s->length + from, (to - from) * (int64_t)sizeof(float));
        wefti_prefetch(x + s->length + from, (to - from) * (int64_t)sizeof(float));
        if (dscale != NULL && dbias != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = from; i < to; i++) {
                dscale[i] += dy[i] * ((x[i] - middle) * inv);
                dbias[i] += dy[i];
            }
        } else if (dscale != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = from; i < to; i++) {
                dscale[i] += dy[i] * ((x[i] - middle) * inv);
            }
        } else if (dbias != NULL) {
            WEFTI_INDEPENDENT
            for (int64_t i = from; i < to; i++) {
                dbias[i] += dy[i];
            }
        }
    }
}
WEFTI_CLONES(add_columns,
             (const state_t *s, wefti_range_t rows, int64_t from, int64_t to, const float *dy,
              const float *x, const float *mean, const float *inverse, float *dscale, float *dbias),
             (s, rows, from, to, dy, x, mean, inverse, dscale, dbias));

static void forward_rows(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    forward[s->isa](s, range, call->inputs[0], call->inputs[1],
                    s->input_count > 2 ? call->inputs[2] : NULL, call->outputs[0],
                    s->output_count > 1 ? call->outputs[1] : NULL,
                    s->output_count > 2 ? call->outputs[2] : NULL,
                    (float *)call->scratch + range.part * s->length);
}

static weft_status_t run_forward(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    wefti_parallel_for(s->threads, s->rows, wefti_grain_rows(s->length), forward_rows, call);
    return WEFT_OK;
}

static void grad_rows(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    if (call->outputs[0] != NULL) {
        backward[s->isa](s, range, call->inputs[0], call->inputs[1], call->inputs[2],
                         call->inputs[3], call->inputs[4], call->outputs[0],
                         (float *)call->scratch + range.part * 2 * s->length);
    }
}

/* Some columns of some rows. */
static void grad_columns(const weft_kernel_call_t *call, wefti_range_t rows, wefti_range_t columns)
{
    const state_t *s = call->state;
    float *sums[2] = {NULL, NULL}; /* dScale, dBias */
    for (uint32_t i = 0; i < 2 && i + 1 < s->output_count; i++) {
        sums[i] = call->outputs[i + 1];
        if (sums[i] != NULL && rows.from == 0) {
            memset(sums[i] + columns.from, 0, (size_t)(columns.to - columns.from) * sizeof(float));
        }
    }
    add_columns[s->isa](s, rows, columns.from, columns.to, call->inputs[0], call->inputs[1],
                        call->inputs[3], call->inputs[4], sums[0], sums[1]);
}

static void grad_columns_of_all(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    grad_columns(call, (wefti_range_t){0, s->rows, 0}, range);
}

/* Columns come before rows, as dX may be in place of dY. */
static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const int64_t step = s->threads == 1 || s->rows == 0 ? ROWS : s->rows;
    if (step == s->rows) {
        const int64_t columns = wefti_grain_rows(s->rows); /* whole lines of memory */
        wefti_parallel_for(s->threads, s->length, columns < 64 ? 64 : columns, grad_columns_of_all,
                           call);
        wefti_parallel_for(s->threads, s->rows, wefti_grain_rows(s->length), grad_rows, call);
        return WEFT_OK;
    }
    for (int64_t r = 0; r < s->rows || r == 0; r += step) {
        const wefti_range_t rows = {r, s->rows - r < step ? s->rows : r + step, 0};
        grad_columns(call, rows, (wefti_range_t){0, s->length, 0});
        grad_rows(call, rows);
    }
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
                     .isa = wefti_kernel_isa(env),
                     .threads = wefti_kernel_threads(env)};
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
    *out_scratch_bytes = made->threads * rows_of_scratch * (size_t)made->length * sizeof(float);
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
