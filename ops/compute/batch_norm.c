/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BatchNormalization in both forms, and its gradient, of plain tensors: [N, C, S], S pixels.
 *
 * A few channels after the other, as many as fit into the cache: two passes for mean and variance,
 * one for Y, which may also add another tensor and be a Relu. Sums have one shape: some BLOCK
 * elements of a channel by sum_f32.h's tree in f32, these in f64 in their order. Where rows are
 * short, sums run over all channels at once, in f64. Half types are widened block by block.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/halves.h"
#include "ops/compute/sum_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define BLOCK 1024
#define GROUP 32                 /* channels whose sums are made together */
#define CACHE_BYTES (512 * 1024) /* of the rows that are visited several times */
#define SHORT_ROW 8              /* pixels: rows up to it are summed for all channels at once */

typedef struct {
    int64_t samples, channels, pixels;
    float epsilon, momentum;
    uint32_t output_count;
    weft_dtype_t dtype; /* of tensors with pixels */
    bool given;         /* input 6 has the moments; of moments themselves: they are of dY */
    bool more;          /* input 5 is added to Y; of a gradient: dY counts where it is above 0 */
    bool relu;          /* Y is the result of a Relu */
    bool training;      /* statistics are those of X */
    bool blends;        /* outputs 1 and 2 are running statistics; others the statistics of X */
    bool frozen;        /* gradient: statistics do not depend on X */
    weft_isa_t isa;
    uint32_t threads;
} state_t;

/* Elements of a tensor as f32: in place, or in buffer. */
WEFTI_INLINE const float *load(const state_t *s, const void *x, int64_t at, int64_t count,
                               float *buffer)
{
    if (s->dtype == WEFT_DTYPE_F32) {
        return (const float *)x + at;
    }
    wefti_halves_widen(s->isa, s->dtype, (const uint16_t *)x + at, count, buffer);
    return buffer;
}

/* Where to compute elements that store puts into their place. */
WEFTI_INLINE float *destination(const state_t *s, void *y, int64_t at, float *buffer)
{
    return s->dtype == WEFT_DTYPE_F32 ? (float *)y + at : buffer;
}

WEFTI_INLINE void store(const state_t *s, const float *from, int64_t count, void *y, int64_t at)
{
    if (s->dtype != WEFT_DTYPE_F32) {
        wefti_halves_narrow(s->isa, s->dtype, from, count, (uint16_t *)y + at);
    }
}

/* Tensors with pixels: of sums x, with another one, or of a gradient dY, X and maybe Y. */
typedef struct {
    const void *a, *b, *gate;
} tensors_t;

/* Elements of dY, 0 where Y is not above 0: what ReluGrad computes. */
WEFTI_INLINE const float *load_gated(const state_t *s, const tensors_t *t, int64_t at,
                                     int64_t count, float *buffer, float *other)
{
    const float *dy = load(s, t->a, at, count, buffer);
    if (t->gate == NULL) {
        return dy;
    }
    const float *y = load(s, t->gate, at, count, other);
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        const float d = dy[i];
        buffer[i] = y[i] > 0.0f ? d : 0.0f;
    }
    return buffer;
}

/* Requests elements of a tensor; NULL: nothing. */
WEFTI_INLINE void prefetch(const state_t *s, const void *x, int64_t at, int64_t count)
{
    const int64_t elem = s->dtype == WEFT_DTYPE_F32 ? 4 : 2;
    wefti_prefetch((const void *)((uintptr_t)x + (uintptr_t)(at * elem)),
                   x == NULL ? 0 : count * elem);
}

/* Of SUMS_OF_GRADIENT both SUM_OF_A and SUM_OF_PRODUCTS. */
typedef enum { SUM_OF_A, SUM_OF_SQUARES, SUM_OF_PRODUCTS, SUMS_OF_GRADIENT } term_t;

/* Sums of one channel that is not complete: some elements by sum_f32.h's tree, all before in f64. */
typedef struct {
    float acc[WEFTI_SUM_LANES];
    double total;
} sum_t;

WEFTI_INLINE float term(term_t kind, float a, float b, float mean)
{
    return kind == SUM_OF_A ? a : kind == SUM_OF_SQUARES ? (a - mean) * (a - mean) : a * (b - mean);
}

/* Adds the terms of a row, in the shape of sum_f32.h. */
WEFTI_INLINE void add_terms(term_t kind, const float *a, const float *b, float mean, int64_t count,
                            sum_t *sum)
{
    float acc[WEFTI_SUM_LANES];
    memcpy(acc, sum->acc, sizeof(acc));
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
        wefti_add_last_f32(acc, terms, (int)(count - i), sum->acc);
        return;
    }
    memcpy(sum->acc, acc, sizeof(acc));
}

WEFTI_INLINE void end_block(sum_t *sum)
{
    sum->total += (double)wefti_sum_lanes_f32(sum->acc);
    memset(sum->acc, 0, sizeof(sum->acc));
}

/* The sums over channels first to end, at most GROUP, image after image. */
WEFTI_INLINE void sum_group(term_t kind, const state_t *s, int64_t first, int64_t end,
                            const tensors_t *t, const float *mean, double *out, double *products)
{
    const bool both = kind == SUMS_OF_GRADIENT;
    const int64_t image = s->channels * s->pixels;
    sum_t sums[GROUP] = {0}, others[GROUP] = {0};
    float buffers[3][BLOCK];
    int64_t filled = 0;
    for (int64_t n = 0; n < s->samples; n++) {
        for (int64_t p = 0, count; p < s->pixels; p += count) {
            count = s->pixels - p < BLOCK ? s->pixels - p : BLOCK;
            filled += count;
            for (int64_t c = first; c < end; c++) {
                const int64_t at = n * image + c * s->pixels + p;
                if (n + 1 < s->samples) {
                    prefetch(s, t->a, at + image, count);
                    prefetch(s, t->b, at + image, count);
                    prefetch(s, t->gate, at + image, count);
                }
                const float *a = load_gated(s, t, at, count, buffers[0], buffers[2]);
                add_terms(both ? SUM_OF_A : kind, a, a, mean[c], count, &sums[c - first]);
                if (both) {
                    const float *b = load(s, t->b, at, count, buffers[1]);
                    add_terms(SUM_OF_PRODUCTS, a, b, mean[c], count, &others[c - first]);
                }
            }
            for (int64_t c = 0; c < end - first && filled >= BLOCK; c++) {
                end_block(&sums[c]);
                if (both) {
                    end_block(&others[c]);
                }
            }
            filled = filled >= BLOCK ? 0 : filled;
        }
    }
    for (int64_t c = first; c < end; c++) {
        end_block(&sums[c - first]);
        out[c] = sums[c - first].total;
        if (both) {
            end_block(&others[c - first]);
            products[c] = others[c - first].total;
        }
    }
}

/* The same of short rows. */
WEFTI_INLINE void sum_short(term_t kind, const state_t *s, int64_t first, int64_t end,
                            const tensors_t *t, const float *mean, double *out, double *products)
{
    const bool both = kind == SUMS_OF_GRADIENT;
    float buffers[3][BLOCK];
    for (int64_t c = first; c < end; c++) {
        out[c] = 0.0;
        if (both) {
            products[c] = 0.0;
        }
    }
    for (int64_t n = 0; n < s->samples; n++) {
        const int64_t at = (n * s->channels + first) * s->pixels, count = (end - first) * s->pixels;
        const float *a = load_gated(s, t, at, count, buffers[0], buffers[2]);
        const float *b = both ? load(s, t->b, at, count, buffers[1]) : a;
        for (int64_t p = 0; p < s->pixels; p++) {
            WEFTI_INDEPENDENT
            for (int64_t c = first; c < end; c++) {
                const int64_t i = (c - first) * s->pixels + p;
                out[c] += (double)term(both ? SUM_OF_A : kind, a[i], a[i], mean[c]);
                if (both) {
                    products[c] += (double)term(SUM_OF_PRODUCTS, a[i], b[i], mean[c]);
                }
            }
        }
    }
}

/* out[c]: the sum over channel c, for c from first on and before end; products[c] as well. */
WEFTI_INLINE void sum_channels(term_t kind, const state_t *s, int64_t first, int64_t end,
                               const tensors_t *t, const float *mean, double *out, double *products)
{
    const int64_t group = s->pixels > SHORT_ROW ? GROUP : BLOCK / SHORT_ROW;
    for (int64_t c = first; c < end; c += group) {
        const int64_t last = end - c < group ? end : c + group;
        if (s->pixels > SHORT_ROW) {
            sum_group(kind, s, c, last, t, mean, out, products);
        } else {
            sum_short(kind, s, c, last, t, mean, out, products);
        }
    }
}

#define SUM_PARAMS                                                                                 \
    (const state_t *s, int64_t first, int64_t end, const tensors_t *t, const float *mean,          \
     double *out, double *products)
#define SUM_ARGS (s, first, end, t, mean, out, products)
#define SUM(name, kind)                                                                            \
    WEFTI_INLINE void name##_body SUM_PARAMS                                                       \
    {                                                                                              \
        sum_channels(kind, s, first, end, t, mean, out, products);                                 \
    }                                                                                              \
    WEFTI_CLONES(name, SUM_PARAMS, SUM_ARGS)
SUM(sum, SUM_OF_A);
SUM(squares, SUM_OF_SQUARES);
SUM(gradient, SUMS_OF_GRADIENT);

/* The rows of channels, part by part. Where rows are short, the next image's are requested: they
 * are far away, and the processor does not find them in time. */
#define FOR_PARTS(at, c, count)                                                                    \
    for (int64_t n = 0; n < s->samples; n++)                                                       \
        for (int64_t c = first; c < end; c++)                                                      \
            for (int64_t at = (n * s->channels + c) * s->pixels, stop_ = at + s->pixels, count;    \
                 count = stop_ - at < BLOCK ? stop_ - at : BLOCK, at < stop_; at += count)
WEFTI_INLINE void prefetch_short(const state_t *s, const void *x, int64_t at)
{
    prefetch(s, x, at + s->channels * s->pixels, s->pixels < BLOCK ? s->pixels : 0);
}

/* y = (x - mean) factor + shift by channel, then the addition and the Relu. */
WEFTI_INLINE void normalize_body(const state_t *s, int64_t first, int64_t end, const void *x,
                                 const float *mean, const float *factor, const float *shift,
                                 const void *addend, void *y)
{
    float buffers[3][BLOCK];
    FOR_PARTS(at, c, count)
    {
        const float m = mean[c], f = factor[c], b = shift[c];
        const float *from = load(s, x, at, count, buffers[0]);
        float *to = destination(s, y, at, buffers[1]);
        prefetch_short(s, x, at);
        prefetch_short(s, addend, at);
        prefetch_short(s, y, at);
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            to[i] = (from[i] - m) * f + b;
        }
        if (addend != NULL) {
            store(s, to, count, y, at); /* rounds as the single operator does */
            const float *v = load(s, y, at, count, buffers[1]);
            const float *r = load(s, addend, at, count, buffers[2]);
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < count; i++) {
                to[i] = v[i] + r[i];
            }
        }
        for (int64_t i = 0; i < count && s->relu; i++) {
            to[i] = to[i] <= 0.0f ? 0.0f : to[i];
        }
        store(s, to, count, y, at);
    }
}
WEFTI_CLONES(normalize,
             (const state_t *s, int64_t first, int64_t end, const void *x, const float *mean,
              const float *factor, const float *shift, const void *addend, void *y),
             (s, first, end, x, mean, factor, shift, addend, y));

/* dx = factor (dy - mean_dy - (x - mean) slope) by channel; dx may be dy. */
WEFTI_INLINE void input_grad_body(const state_t *s, int64_t first, int64_t end, const tensors_t *t,
                                  const float *mean, const float *factor, const float *mean_dy,
                                  const float *slope, void *dx)
{
    float buffers[4][BLOCK];
    FOR_PARTS(at, c, count)
    {
        const float m = mean[c], f = factor[c], d = mean_dy[c], k = slope[c];
        const float *g = load_gated(s, t, at, count, buffers[0], buffers[2]);
        const float *from = load(s, t->b, at, count, buffers[1]);
        float *to = destination(s, dx, at, buffers[3]);
        prefetch_short(s, t->a, at);
        prefetch_short(s, t->b, at);
        prefetch_short(s, t->gate, at);
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            to[i] = f * (g[i] - d - (from[i] - m) * k);
        }
        store(s, to, count, dx, at);
    }
}
WEFTI_CLONES(input_grad,
             (const state_t *s, int64_t first, int64_t end, const tensors_t *t, const float *mean,
              const float *factor, const float *mean_dy, const float *slope, void *dx),
             (s, first, end, t, mean, factor, mean_dy, slope, dx));

/* Scratch: two f64 and four f32 per channel. */
typedef struct {
    double *sums, *products;
    float *a, *b, *c, *d;
} scratch_t;

static size_t scratch_bytes(const state_t *s)
{
    return (size_t)s->channels * (2 * sizeof(double) + 4 * sizeof(float));
}

static scratch_t divide(const state_t *s, void *memory)
{
    scratch_t t = {.sums = memory};
    t.products = t.sums + s->channels;
    t.a = (float *)(t.products + s->channels);
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

static void find_moments(const state_t *s, int64_t first, int64_t end, const void *x,
                         const scratch_t *t, float *mean, float *var)
{
    const double count = (double)s->samples * (double)s->pixels;
    const tensors_t tensors = {.a = x};
    memset(mean + first, 0, (size_t)(end - first) * sizeof(*mean));
    sum[s->isa](s, first, end, &tensors, mean, t->sums, NULL);
    for (int64_t c = first; c < end; c++) {
        mean[c] = (float)(t->sums[c] / count);
    }
    squares[s->isa](s, first, end, &tensors, mean, t->sums, NULL);
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
    const void *x = call->inputs[0], *addend = s->more ? call->inputs[5] : NULL;
    const float *scale = call->inputs[1], *shift = call->inputs[2];
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
    normalize[s->isa](s, first, end, x, mean, t.c, shift, addend, call->outputs[0]);
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const scratch_t t = divide(s, call->scratch);
    if (s->training && s->given) {
        use_moments(s, call->inputs[6], t.a, t.b);
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
    const tensors_t tensors = {call->inputs[0], call->inputs[1], s->more ? call->inputs[5] : NULL};
    const float *scale = call->inputs[2], *mean = call->inputs[3], *var = call->inputs[4];
    const double *given = s->given ? call->inputs[6] : NULL;
    float *dscale = call->outputs[1], *db = call->outputs[2];
    const double count = (double)s->samples * (double)s->pixels;
    const scratch_t t = divide(s, call->scratch);
    gradient[s->isa](s, first, end, &tensors, mean, t.sums, t.products);
    for (int64_t c = first; c < end; c++) {
        t.b[c] = s->frozen ? 0.0f : (float)(given != NULL ? given[c] : t.sums[c] / count);
        if (db != NULL) {
            db[c] = (float)t.sums[c];
        }
    }
    for (int64_t c = first; c < end; c++) {
        double inverse = 1.0 / sqrt((double)var[c] + (double)s->epsilon);
        t.a[c] = (float)((double)scale[c] * inverse);
        double slope = given != NULL ? given[s->channels + c] : t.products[c] / count;
        t.c[c] = s->frozen ? 0.0f : (float)(slope * inverse * inverse);
        if (dscale != NULL) {
            dscale[c] = (float)(t.products[c] * inverse);
        }
    }
    if (call->outputs[0] != NULL) {
        input_grad[s->isa](s, first, end, &tensors, mean, t.a, t.b, t.c, call->outputs[0]);
    }
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    for_channels(call->state, 2, run_grad_channels, call);
    return WEFT_OK;
}

/* A plain tensor of f32 or a half type with the shape of X. */
static bool has_pixels(const weft_tensor_desc_t *desc, const weft_tensor_desc_t *x)
{
    return desc != NULL && desc->rank >= 2 && desc->layout == WEFT_LAYOUT_PLAIN &&
           (desc->dtype == WEFT_DTYPE_F32 || wefti_is_half(desc->dtype)) &&
           desc->dtype == x->dtype && wefti_same_shape(desc, x);
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
    s->dtype = in->dtype;
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
        WEFT_RETURN_IF_ERROR(i > x ? wefti_need_f32(node, i)
                                   : wefti_need_known(&node->inputs[i], "input", i));
    }
    const weft_tensor_desc_t *in = &node->inputs[x], *more = wefti_infer_input(node, 5);
    bool fits = has_pixels(in, in) && has_pixels(node->inputs, in) &&
                (more == NULL || has_pixels(more, in));
    for (uint32_t i = x + 1; i < 5 && fits; i++) {
        fits = node->inputs[i].rank == 1 && node->inputs[i].dims[0] == in->dims[1];
    }
    for (uint32_t i = 0; i < node->output_count && fits; i++) {
        const weft_tensor_desc_t *out = wefti_node_output(node, i);
        fits = out == NULL || (i == 0 ? has_pixels(out, in)
                                      : out->dtype == WEFT_DTYPE_F32 &&
                                            wefti_same_shape(out, &node->inputs[x + 1]));
    }
    const weft_tensor_desc_t *moments = wefti_infer_input(node, 6);
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
    s->more = more != NULL;
    s->output_count = node->output_count;
    s->epsilon = weft_node_attr_float(node, "epsilon", 1e-5f);
    s->momentum = weft_node_attr_float(node, "momentum", 0.9f);
    return WEFT_OK;
}

static weft_status_t prepare_norm(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t *s;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
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
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    WEFT_RETURN_IF_ERROR(prepare(node, env, 0, &s, out_scratch_bytes));
    s->training = strcmp(node->op, "BatchNormEvaluation") != 0;
    s->relu = strcmp(weft_node_attr_string(node, "activation", ""), "Relu") == 0;
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
    WEFT_RETURN_IF_ERROR(wefti_need_known(in, "input", 0));
    const bool grad = wefti_infer_input(node, 2) != NULL;
    bool fits = has_pixels(in, in) && out != NULL && out->dtype == WEFT_DTYPE_F64 &&
                out->rank == 2 && out->dims[0] == 2 && out->dims[1] == in->dims[1];
    if (grad) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 1));
        fits = fits && node->inputs[1].rank == 1 && node->inputs[1].dims[0] == in->dims[1] &&
               has_pixels(&node->inputs[2], in);
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
    const tensors_t of_x = {.a = call->inputs[0]};
    double *first = call->outputs[0], *second = first + s->channels;
    const double count = (double)s->samples * (double)s->pixels;
    const scratch_t t = divide(s, call->scratch);
    if (s->given) {
        const tensors_t of_dy = {.a = call->inputs[2], .b = call->inputs[0]};
        gradient[s->isa](s, begin, end, &of_dy, call->inputs[1], first, second);
    } else {
        sum[s->isa](s, begin, end, &of_x, t.d, first, NULL);
    }
    for (int64_t c = begin; c < end; c++) {
        first[c] /= count;
        t.a[c] = (float)first[c];
    }
    if (!s->given) {
        squares[s->isa](s, begin, end, &of_x, t.a, second, NULL);
    }
    for (int64_t c = begin; c < end; c++) {
        double a = s->given ? 0.0 : (double)t.a[c];
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
WEFTI_KERNEL(wefti_kernel_batch_norm_evaluation, "weft", "BatchNormEvaluation", prepare_training,
             run);
WEFTI_KERNEL(wefti_kernel_batch_norm_grad, "weft", "BatchNormGrad", prepare_grad, run_grad);
