/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BatchNormalization in both forms, and its gradient, of plain tensors: [N, C, S], S pixels.
 *
 * A few channels after the other, as many as fit into the cache: two passes for mean and variance,
 * one for Y. Sums have one shape: some BLOCK elements of a channel by sum_f32.h's tree in f32, these
 * in f64 in their order. Where rows are short, sums run over all channels at once, in f64.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/sum_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define BLOCK 1024
#define CACHE_BYTES (256 * 1024) /* of the rows that are visited several times */
#define SHORT_ROW 8              /* pixels: rows up to it are summed for all channels at once */

typedef struct {
    int64_t samples, channels, pixels;
    float epsilon, momentum;
    uint32_t output_count;
    bool given;    /* input 5 has the moments; of moments themselves: they are of dY */
    bool training; /* statistics are those of X */
    bool blends;   /* outputs 1 and 2 are running statistics; others the statistics of X */
    bool frozen;   /* gradient: statistics do not depend on X */
    weft_isa_t isa;
    uint32_t threads;
} state_t;

/* What is summed of element a, with element b of another tensor. */
typedef enum { SUM_OF_A, SUM_OF_SQUARES, SUM_OF_PRODUCTS } term_t;

WEFTI_INLINE float term(term_t kind, float a, float b, float mean)
{
    return kind == SUM_OF_A ? a : kind == SUM_OF_SQUARES ? (a - mean) * (a - mean) : a * (b - mean);
}

/* Adds the terms of a row, in the shape of sum_f32.h. */
WEFTI_INLINE void add_terms(term_t kind, const float *a, const float *b, float mean, int64_t count,
                            float *acc)
{
    int64_t i = 0;
    for (; i + WEFTI_SUM_LANES <= count; i += WEFTI_SUM_LANES) {
        for (int j = 0; j < WEFTI_SUM_LANES; j++) {
            acc[j] += term(kind, a[i + j], b[i + j], mean);
        }
    }
    if (i == 0) {
        for (int j = 0; j < count; j++) {
            acc[j] += term(kind, a[j], b[j], mean);
        }
    } else if (i < count) {
        float terms[WEFTI_SUM_LANES];
        const int64_t tail = count - WEFTI_SUM_LANES;
        for (int j = 0; j < WEFTI_SUM_LANES; j++) {
            terms[j] = term(kind, a[tail + j], b[tail + j], mean);
        }
        wefti_add_last_f32(acc, terms, (int)(count - i));
    }
}

/* The sum over one channel, whose first rows a and b are. */
WEFTI_INLINE double sum_channel(term_t kind, const state_t *s, const float *a, const float *b,
                                float mean)
{
    float acc[WEFTI_SUM_LANES] = {0};
    double total = 0.0;
    int64_t filled = 0;
    for (int64_t n = 0; n < s->samples; n++) {
        for (int64_t p = 0; p < s->pixels; p += BLOCK) {
            int64_t count = s->pixels - p < BLOCK ? s->pixels - p : BLOCK;
            add_terms(kind, a + p, b + p, mean, count, acc);
            filled += count;
            if (filled >= BLOCK) {
                total += (double)wefti_sum_lanes_f32(acc);
                memset(acc, 0, sizeof(acc));
                filled = 0;
            }
        }
        a += s->channels * s->pixels;
        b += s->channels * s->pixels;
    }
    return total + (double)wefti_sum_lanes_f32(acc);
}

/* out[c]: the sum over channel c, for c from first on and before end. */
WEFTI_INLINE void sum_channels(term_t kind, const state_t *s, int64_t first, int64_t end,
                               const float *a, const float *b, const float *mean, double *out)
{
    if (s->pixels > SHORT_ROW) {
        for (int64_t c = first; c < end; c++) {
            out[c] = sum_channel(kind, s, a + c * s->pixels, b + c * s->pixels, mean[c]);
        }
        return;
    }
    memset(out + first, 0, (size_t)(end - first) * sizeof(*out));
    for (int64_t n = 0; n < s->samples; n++) {
        for (int64_t p = 0; p < s->pixels; p++) {
            WEFTI_INDEPENDENT
            for (int64_t c = first; c < end; c++) {
                int64_t at = c * s->pixels + p;
                out[c] += (double)term(kind, a[at], b[at], mean[c]);
            }
        }
        a += s->channels * s->pixels;
        b += s->channels * s->pixels;
    }
}

#define SUM_PARAMS                                                                                 \
    (const state_t *s, int64_t first, int64_t end, const float *a, const float *b,                 \
     const float *mean, double *out)
#define SUM_ARGS (s, first, end, a, b, mean, out)
WEFTI_INLINE void sum_body SUM_PARAMS
{
    sum_channels(SUM_OF_A, s, first, end, a, b, mean, out);
}
WEFTI_INLINE void squares_body SUM_PARAMS
{
    sum_channels(SUM_OF_SQUARES, s, first, end, a, b, mean, out);
}
WEFTI_INLINE void products_body SUM_PARAMS
{
    sum_channels(SUM_OF_PRODUCTS, s, first, end, a, b, mean, out);
}
WEFTI_CLONES(sum, SUM_PARAMS, SUM_ARGS);
WEFTI_CLONES(squares, SUM_PARAMS, SUM_ARGS);
WEFTI_CLONES(products, SUM_PARAMS, SUM_ARGS);

/* y = (x - mean) factor + shift by channel. */
WEFTI_INLINE void normalize_body(const state_t *s, int64_t first, int64_t end, const float *x,
                                 const float *mean, const float *factor, const float *shift,
                                 float *y)
{
    for (int64_t n = 0; n < s->samples; n++) {
        for (int64_t c = first; c < end; c++) {
            const float m = mean[c], f = factor[c], b = shift[c];
            const float *from = x + (n * s->channels + c) * s->pixels;
            float *to = y + (n * s->channels + c) * s->pixels;
            WEFTI_INDEPENDENT
            for (int64_t p = 0; p < s->pixels; p++) {
                to[p] = (from[p] - m) * f + b;
            }
        }
    }
}
WEFTI_CLONES(normalize,
             (const state_t *s, int64_t first, int64_t end, const float *x, const float *mean,
              const float *factor, const float *shift, float *y),
             (s, first, end, x, mean, factor, shift, y));

/* dx = factor (dy - mean_dy - (x - mean) slope) by channel. */
WEFTI_INLINE void input_grad_body(const state_t *s, int64_t first, int64_t end, const float *dy,
                                  const float *x, const float *mean, const float *factor,
                                  const float *mean_dy, const float *slope, float *dx)
{
    for (int64_t n = 0; n < s->samples; n++) {
        for (int64_t c = first; c < end; c++) {
            const float m = mean[c], f = factor[c], d = mean_dy[c], k = slope[c];
            const int64_t at = (n * s->channels + c) * s->pixels;
            const float *g = dy + at, *from = x + at;
            float *to = dx + at;
            WEFTI_INDEPENDENT
            for (int64_t p = 0; p < s->pixels; p++) {
                to[p] = f * (g[p] - d - (from[p] - m) * k);
            }
        }
    }
}
WEFTI_CLONES(input_grad,
             (const state_t *s, int64_t first, int64_t end, const float *dy, const float *x,
              const float *mean, const float *factor, const float *mean_dy, const float *slope,
              float *dx),
             (s, first, end, dy, x, mean, factor, mean_dy, slope, dx));

/* Scratch: one f64 and four f32 per channel. */
typedef struct {
    double *sums;
    float *a, *b, *c, *d;
} scratch_t;

static size_t scratch_bytes(const state_t *s)
{
    return (size_t)s->channels * (sizeof(double) + 4 * sizeof(float));
}

static scratch_t divide(const state_t *s, void *memory)
{
    scratch_t t = {.sums = memory};
    t.a = (float *)(t.sums + s->channels);
    t.b = t.a + s->channels;
    t.c = t.b + s->channels;
    t.d = t.c + s->channels;
    return t;
}

/* Mean and mean square, by channel, of the ranks' batches as one. */
static void use_moments(const state_t *s, const double *moments, float *mean, float *var)
{
    for (int64_t c = 0; c < s->channels; c++) {
        double m = moments[c], v = moments[s->channels + c] - m * m;
        mean[c] = (float)m;
        var[c] = v > 0 ? (float)v : 0.0f;
    }
}

static void find_moments(const state_t *s, int64_t first, int64_t end, const float *x,
                         const scratch_t *t, float *mean, float *var)
{
    const double count = (double)s->samples * (double)s->pixels;
    memset(mean + first, 0, (size_t)(end - first) * sizeof(*mean));
    sum[s->isa](s, first, end, x, x, mean, t->sums);
    for (int64_t c = first; c < end; c++) {
        mean[c] = (float)(t->sums[c] / count);
    }
    squares[s->isa](s, first, end, x, x, mean, t->sums);
    for (int64_t c = first; c < end; c++) {
        var[c] = (float)(t->sums[c] / count);
    }
}

/* Calls fn for some channels after the other, on several threads. */
static void for_channels(const state_t *s, uint32_t tensors, wefti_range_fn fn,
                         const weft_kernel_call_t *call)
{
    const int64_t bytes = (s->samples * s->pixels + 1) * tensors * (int64_t)sizeof(float);
    const int64_t least = s->pixels > SHORT_ROW ? 1 : 64;
    const int64_t fit = CACHE_BYTES / bytes;
    const int64_t elements = s->samples * s->pixels * s->channels;
    wefti_parallel_steps(elements < 2 * WEFTI_GRAIN ? 1 : s->threads, s->channels,
                         fit < least ? least : fit, fn, call);
}

static void run_channels(const void *job, wefti_range_t range)
{
    const int64_t first = range.from, end = range.to;
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const float *x = call->inputs[0], *scale = call->inputs[1], *shift = call->inputs[2];
    const float *mean = call->inputs[3], *var = call->inputs[4];
    const scratch_t t = divide(s, call->scratch);
    if (s->training) {
        if (!s->given) {
            find_moments(s, first, end, x, &t, t.a, t.b);
        }
        mean = t.a;
        var = t.b;
    }
    for (int64_t c = first; c < end; c++) {
        t.c[c] = scale[c] / sqrtf(var[c] + s->epsilon);
    }
    normalize[s->isa](s, first, end, x, mean, t.c, shift, call->outputs[0]);
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const scratch_t t = divide(s, call->scratch);
    if (s->training && s->given) {
        use_moments(s, call->inputs[5], t.a, t.b);
    }
    for_channels(s, 1, run_channels, call);
    for (uint32_t i = 1; i < s->output_count && s->training; i++) {
        float *out = call->outputs[i];
        const float *now = i % 2 == 1 ? t.a : t.b;
        const float *before = s->blends && i < 3 ? call->inputs[i + 2] : NULL;
        for (int64_t c = 0; c < s->channels && out != NULL; c++) {
            out[c] =
                before != NULL ? before[c] * s->momentum + now[c] * (1.0f - s->momentum) : now[c];
        }
    }
    return WEFT_OK;
}

static void run_grad_channels(const void *job, wefti_range_t range)
{
    const int64_t first = range.from, end = range.to;
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const float *dy = call->inputs[0], *x = call->inputs[1], *scale = call->inputs[2];
    const float *mean = call->inputs[3], *var = call->inputs[4];
    const double *given = s->given ? call->inputs[5] : NULL;
    float *dx = call->outputs[0], *dscale = call->outputs[1], *db = call->outputs[2];
    const double count = (double)s->samples * (double)s->pixels;
    const scratch_t t = divide(s, call->scratch);
    sum[s->isa](s, first, end, dy, x, mean, t.sums);
    for (int64_t c = first; c < end; c++) {
        t.b[c] = s->frozen ? 0.0f : (float)(given != NULL ? given[c] : t.sums[c] / count);
        if (db != NULL) {
            db[c] = (float)t.sums[c];
        }
    }
    products[s->isa](s, first, end, dy, x, mean, t.sums);
    for (int64_t c = first; c < end; c++) {
        double inverse = 1.0 / sqrt((double)var[c] + (double)s->epsilon);
        t.a[c] = (float)((double)scale[c] * inverse);
        double slope = given != NULL ? given[s->channels + c] : t.sums[c] / count;
        t.c[c] = s->frozen ? 0.0f : (float)(slope * inverse * inverse);
        if (dscale != NULL) {
            dscale[c] = (float)(t.sums[c] * inverse);
        }
    }
    if (dx != NULL) {
        input_grad[s->isa](s, first, end, dy, x, mean, t.a, t.b, t.c, dx);
    }
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    for_channels(call->state, 2, run_grad_channels, call);
    return WEFT_OK;
}

/* The shape of X. Where X is empty, sums are over nothing, however large its other dimensions. */
static weft_status_t make_state(const weft_tensor_desc_t *in, const weft_kernel_env_t *env,
                                state_t **out_state, size_t *out_scratch_bytes)
{
    const int64_t elements = weft_tensor_elem_count(in);
    if (elements < 0 || elements > INT64_MAX / 16) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "X is too large");
    }
    state_t *s = wefti_state_alloc(sizeof(*s));
    if (s == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    s->samples = elements > 0 ? in->dims[0] : 0;
    s->channels = in->dims[1];
    s->pixels = elements > 0 ? elements / (s->samples * s->channels) : 0;
    s->isa = wefti_kernel_isa(env);
    s->threads = wefti_kernel_threads(env);
    *out_state = s;
    *out_scratch_bytes = scratch_bytes(s);
    return WEFT_OK;
}

/* x: index of X; the inputs after it are per channel, as are outputs 1 and 2. */
static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env, uint32_t x,
                             state_t **out_state, size_t *out_scratch_bytes)
{
    for (uint32_t i = 0; i < 5; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, i));
    }
    const weft_tensor_desc_t *in = &node->inputs[x];
    bool fits =
        in->rank >= 2 && in->layout == WEFT_LAYOUT_PLAIN && wefti_same_shape(in, node->inputs);
    for (uint32_t i = x + 1; i < 5 && fits; i++) {
        fits = node->inputs[i].rank == 1 && node->inputs[i].dims[0] == in->dims[1];
    }
    for (uint32_t i = 0; i < node->output_count && fits; i++) {
        const weft_tensor_desc_t *out = wefti_node_output(node, i);
        fits = out == NULL || (out->dtype == WEFT_DTYPE_F32 &&
                               wefti_same_shape(out, i == 0 ? in : &node->inputs[x + 1]));
    }
    const weft_tensor_desc_t *moments = wefti_infer_input(node, 5);
    if (moments != NULL) {
        fits = fits && moments->dtype == WEFT_DTYPE_F64 && moments->rank == 2 &&
               moments->dims[0] == 2 && moments->dims[1] == in->dims[1];
    }
    if (!fits) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "shapes, types or layouts of the tensors do not match X");
    }
    WEFT_RETURN_IF_ERROR(make_state(in, env, out_state, out_scratch_bytes));
    state_t *s = *out_state;
    s->given = moments != NULL;
    s->output_count = node->output_count;
    s->epsilon = weft_node_attr_float(node, "epsilon", 1e-5f);
    s->momentum = weft_node_attr_float(node, "momentum", 0.9f);
    return WEFT_OK;
}

static weft_status_t prepare_norm(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t *s;
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    WEFT_RETURN_IF_ERROR(prepare(node, env, 0, &s, out_scratch_bytes));
    s->training = node->version < 14 ? node->output_count > 1
                                     : weft_node_attr_int(node, "training_mode", 0) != 0;
    s->blends = true;
    *out_state = s;
    return WEFT_OK;
}

static weft_status_t prepare_training(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                      void **out_state, size_t *out_scratch_bytes)
{
    state_t *s;
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    WEFT_RETURN_IF_ERROR(prepare(node, env, 0, &s, out_scratch_bytes));
    s->training = true;
    *out_state = s;
    return WEFT_OK;
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t *s;
    WEFT_RETURN_IF_ERROR(prepare(node, env, 1, &s, out_scratch_bytes));
    s->frozen = weft_node_attr_int(node, "frozen", 0) != 0;
    *out_state = s;
    return WEFT_OK;
}

static weft_status_t prepare_moments(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     void **out_state, size_t *out_scratch_bytes)
{
    const weft_tensor_desc_t *in = &node->inputs[0], *out = wefti_node_output(node, 0);
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    const bool grad = wefti_infer_input(node, 2) != NULL;
    bool fits = in->rank >= 2 && in->layout == WEFT_LAYOUT_PLAIN && out != NULL &&
                out->dtype == WEFT_DTYPE_F64 && out->rank == 2 && out->dims[0] == 2 &&
                out->dims[1] == in->dims[1];
    if (grad) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 1));
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 2));
        fits = fits && node->inputs[1].rank == 1 && node->inputs[1].dims[0] == in->dims[1] &&
               node->inputs[2].layout == WEFT_LAYOUT_PLAIN &&
               wefti_same_shape(&node->inputs[2], in);
    }
    if (!fits) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "shapes, types or layouts of the tensors do not match X");
    }
    state_t *s;
    WEFT_RETURN_IF_ERROR(make_state(in, env, &s, out_scratch_bytes));
    s->given = grad;
    *out_state = s;
    return WEFT_OK;
}

static void run_moments_channels(const void *job, wefti_range_t range)
{
    const int64_t begin = range.from, end = range.to;
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const float *x = call->inputs[0], *dy = s->given ? call->inputs[2] : NULL;
    double *first = call->outputs[0], *second = first + s->channels;
    const double count = (double)s->samples * (double)s->pixels;
    const scratch_t t = divide(s, call->scratch);
    sum[s->isa](s, begin, end, dy != NULL ? dy : x, x, t.d, first);
    for (int64_t c = begin; c < end; c++) {
        first[c] /= count;
        t.a[c] = (float)first[c];
    }
    if (dy != NULL) {
        products[s->isa](s, begin, end, dy, x, call->inputs[1], second);
    } else {
        squares[s->isa](s, begin, end, x, x, t.a, second);
    }
    for (int64_t c = begin; c < end; c++) {
        double a = dy != NULL ? 0.0 : (double)t.a[c];
        second[c] = second[c] / count + a * (2 * first[c] - a);
    }
}

static weft_status_t run_moments(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    for_channels(s, s->given ? 2 : 1, run_moments_channels, call);
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_batch_norm_moments, "weft", "BatchNormMoments", prepare_moments,
             run_moments);
WEFTI_KERNEL(wefti_kernel_batch_norm, "", "BatchNormalization", prepare_norm, run);
WEFTI_KERNEL(wefti_kernel_batch_norm_training, "weft", "BatchNormTraining", prepare_training, run);
WEFTI_KERNEL(wefti_kernel_batch_norm_grad, "weft", "BatchNormGrad", prepare_grad, run_grad);
