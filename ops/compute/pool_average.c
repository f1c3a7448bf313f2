/* SPDX-License-Identifier: Apache-2.0 */
/* AveragePool, its gradient and GlobalAveragePool: taps are added in row-major order, then one
 * division. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/pool_pairs.h"
#include "ops/compute/sum_f32.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define TILE 128

WEFTI_INLINE void add_strided(float *sum, const float *x, int64_t stride, int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        sum[i] += x[i * stride];
    }
}

/* A tile of output row oy, columns [from, to), of one plane. */
WEFTI_INLINE void mean_tile(const wefti_pool_t *p, const float *plane, int64_t oy, int64_t from,
                            int64_t to, float *y)
{
    float sum[TILE] = {0};
    for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
        int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
        for (int64_t kx = 0; kx < p->x.kernel && iy < p->y.in; kx++) {
            int64_t lo = p->x.ranges[kx].from, hi = p->x.ranges[kx].to;
            lo = lo < from ? from : lo;
            hi = hi > to ? to : hi;
            if (lo >= hi) {
                continue;
            }
            const float *x =
                plane + iy * p->x.in + lo * p->x.stride - p->x.pad + kx * p->x.dilation;
            if (p->x.stride == 2) {
                add_strided(sum + (lo - from), x, 2, hi - lo);
            } else if (p->x.stride == 1) {
                add_strided(sum + (lo - from), x, 1, hi - lo);
            } else {
                add_strided(sum + (lo - from), x, p->x.stride, hi - lo);
            }
        }
    }
    for (int64_t i = 0; i < to - from; i++) {
        y[i] = sum[i] / (p->y.counted[oy] * p->x.counted[from + i]);
    }
}

WEFTI_INLINE void mean_plain(const wefti_pool_t *p, const float *x, float *y)
{
    for (int64_t plane = 0; plane < p->n * p->c; plane++, x += p->y.in * p->x.in) {
        for (int64_t oy = 0; oy < p->y.out; oy++, y += p->x.out) {
            for (int64_t from = 0; from < p->x.out; from += TILE) {
                int64_t to = p->x.out - from < TILE ? p->x.out : from + TILE;
                mean_tile(p, x, oy, from, to, y + from);
            }
        }
    }
}

WEFTI_INLINE void mean_last(const wefti_pool_t *p, const float *x, float *y)
{
    for (int64_t n = 0; n < p->n; n++, x += p->y.in * p->x.in * p->c) {
        for (int64_t oy = 0; oy < p->y.out; oy++) {
            for (int64_t ox = 0; ox < p->x.out; ox++, y += p->c) {
                float divisor = p->y.counted[oy] * p->x.counted[ox];
                memset(y, 0, (size_t)p->c * sizeof(*y));
                for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
                    int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
                    for (int64_t kx = p->x.first_tap[ox]; kx < p->x.kernel && iy < p->y.in; kx++) {
                        int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
                        if (ix < p->x.in) {
                            add_strided(y, x + (iy * p->x.in + ix) * p->c, 1, p->c);
                        }
                    }
                }
                for (int64_t c = 0; c < p->c; c++) {
                    y[c] /= divisor;
                }
            }
        }
    }
}

WEFTI_INLINE void mean_body(const wefti_pool_t *p, const float *x, float *y)
{
    if (p->channels_last) {
        mean_last(p, x, y);
    } else {
        mean_plain(p, x, y);
    }
}

/* One tap spreads share[i] to dx[i * stride]; the taps of one row are in order. */
WEFTI_INLINE void spread(float *dx, int64_t stride, const float *share, int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        dx[i * stride] += share[i];
    }
}

WEFTI_INLINE void grad_plain(const wefti_pool_t *p, const float *dy, float *dx)
{
    float share[TILE];
    for (int64_t plane = 0; plane < p->n * p->c; plane++, dx += p->y.in * p->x.in) {
        for (int64_t oy = 0; oy < p->y.out; oy++, dy += p->x.out) {
            for (int64_t from = 0; from < p->x.out; from += TILE) {
                int64_t to = p->x.out - from < TILE ? p->x.out : from + TILE;
                for (int64_t i = from; i < to; i++) {
                    share[i - from] = dy[i] / (p->y.counted[oy] * p->x.counted[i]);
                }
                for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
                    int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
                    for (int64_t kx = 0; kx < p->x.kernel && iy < p->y.in; kx++) {
                        int64_t lo = p->x.ranges[kx].from, hi = p->x.ranges[kx].to;
                        lo = lo < from ? from : lo;
                        hi = hi > to ? to : hi;
                        if (lo < hi) {
                            spread(dx + iy * p->x.in + lo * p->x.stride - p->x.pad +
                                       kx * p->x.dilation,
                                   p->x.stride, share + (lo - from), hi - lo);
                        }
                    }
                }
            }
        }
    }
}

WEFTI_INLINE void add_share(float *dx, const float *dy, float divisor, int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        dx[i] += dy[i] / divisor;
    }
}

WEFTI_INLINE void grad_last(const wefti_pool_t *p, const float *dy, float *dx)
{
    for (int64_t n = 0; n < p->n; n++, dx += p->y.in * p->x.in * p->c) {
        for (int64_t oy = 0; oy < p->y.out; oy++) {
            for (int64_t ox = 0; ox < p->x.out; ox++, dy += p->c) {
                float divisor = p->y.counted[oy] * p->x.counted[ox];
                for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
                    int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
                    for (int64_t kx = p->x.first_tap[ox]; kx < p->x.kernel && iy < p->y.in; kx++) {
                        int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
                        if (ix < p->x.in) {
                            add_share(dx + (iy * p->x.in + ix) * p->c, dy, divisor, p->c);
                        }
                    }
                }
            }
        }
    }
}

WEFTI_INLINE void mean_grad_body(const wefti_pool_t *p, const float *dy, float *dx)
{
    memset(dx, 0, (size_t)(p->n * p->c * p->y.in * p->x.in) * sizeof(*dx));
    if (p->channels_last) {
        grad_last(p, dy, dx);
    } else {
        grad_plain(p, dy, dx);
    }
}

#define PARAMS (const wefti_pool_t *p, const float *x, float *y)
WEFTI_CLONES(mean, PARAMS, (p, x, y));
WEFTI_CLONES(mean_grad, PARAMS, (p, x, y));

/* Some images. */
static void mean_images(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    wefti_pool_t part = *(const wefti_pool_t *)call->state;
    const int64_t first = range.from * part.c;
    const float *x = (const float *)call->inputs[0] + first * part.y.in * part.x.in;
    float *y = (float *)call->outputs[0] + first * part.y.out * part.x.out;
    part.n = range.to - range.from;
    if (wefti_pool_is_pairs(&part)) {
        wefti_pool_pairs_mean(&part, x, y);
    } else {
        mean[part.isa](&part, x, y);
    }
}

static weft_status_t run_mean(const weft_kernel_call_t *call)
{
    const wefti_pool_t *p = call->state;
    wefti_parallel_for(p->threads, p->n, wefti_grain_rows(p->c * p->y.in * p->x.in), mean_images,
                       call);
    return WEFT_OK;
}

static void grad_images(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    wefti_pool_t part = *(const wefti_pool_t *)call->state;
    const int64_t first = range.from * part.c;
    const float *dy = (const float *)call->inputs[0] + first * part.y.out * part.x.out;
    float *dx = (float *)call->outputs[0] + first * part.y.in * part.x.in;
    part.n = range.to - range.from;
    if (wefti_pool_is_pairs(&part)) {
        wefti_pool_pairs_mean_grad(&part, dy, dx);
    } else {
        mean_grad[part.isa](&part, dy, dx);
    }
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const wefti_pool_t *p = call->state;
    wefti_parallel_for(p->threads, p->n, wefti_grain_rows(p->c * p->y.in * p->x.in), grad_images,
                       call);
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env, bool grad,
                             void **out_state, size_t *out_scratch_bytes)
{
    wefti_pool_t *pool = NULL;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    const weft_tensor_desc_t *in = &node->inputs[0], *result = &node->outputs[0];
    WEFT_RETURN_IF_ERROR(
        wefti_pool_create(node, env, grad ? result : in, grad ? in : result, &pool));
    *out_state = pool;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare_mean(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, false, out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, true, out_state, out_scratch_bytes);
}

typedef struct {
    int64_t n, c, pixels;
    bool channels_last;
    weft_isa_t isa;
} global_t;

WEFTI_INLINE void global_mean_body(const global_t *g, const float *x, float *y)
{
    float pixels = (float)g->pixels;
    if (!g->channels_last) {
        for (int64_t i = 0; i < g->n * g->c; i++) {
            y[i] = wefti_sum_f32(x + i * g->pixels, g->pixels) / pixels;
        }
        return;
    }
    for (int64_t n = 0; n < g->n; n++, y += g->c) {
        memset(y, 0, (size_t)g->c * sizeof(*y));
        for (int64_t i = 0; i < g->pixels; i++, x += g->c) {
            add_strided(y, x, 1, g->c);
        }
        for (int64_t c = 0; c < g->c; c++) {
            y[c] /= pixels;
        }
    }
}
WEFTI_CLONES(global_mean, (const global_t *g, const float *x, float *y), (g, x, y));

static weft_status_t run_global(const weft_kernel_call_t *call)
{
    const global_t *g = call->state;
    global_mean[g->isa](g, call->inputs[0], call->outputs[0]);
    return WEFT_OK;
}

static weft_status_t prepare_global(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    void **out_state, size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (x->rank < 3 || y->rank != x->rank || y->layout != x->layout ||
        weft_tensor_elem_count(y) != x->dims[0] * x->dims[1]) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "average pooling: the shapes of input and output do not match");
    }
    global_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->n = x->dims[0];
    state->c = x->dims[1];
    state->pixels = 1;
    for (uint32_t d = 2; d < x->rank; d++) {
        state->pixels *= x->dims[d];
    }
    state->channels_last = x->layout == WEFT_LAYOUT_CHANNELS_LAST;
    state->isa = wefti_kernel_isa(env);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_average_pool, "", "AveragePool", prepare_mean, run_mean);
WEFTI_KERNEL(wefti_kernel_average_pool_grad, "weft", "AveragePoolGrad", prepare_grad, run_grad);
WEFTI_KERNEL(wefti_kernel_global_average_pool, "", "GlobalAveragePool", prepare_global, run_global);
