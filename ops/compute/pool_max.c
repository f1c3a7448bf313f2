/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaxPool, MaxPoolMask and MaxPoolGrad. Of equal maxima the first in row-major order wins; NaN wins
 * over everything. Plain tensors are walked in tiles of one output row, tap by tap; channels-last
 * ones in tiles of channels of one output element. Either way the inner loop is a vector of
 * independent maxima.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/pool_pairs.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define TILE 128

/* best[i] and where it was found, against x[i * stride]. */
WEFTI_INLINE void compare(float *best, int32_t *where, const float *x, int64_t stride, int32_t tap,
                          int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float value = x[i * stride];
        int wins = (value > best[i]) | (value != value);
        best[i] = wins ? value : best[i];
        where[i] = wins ? tap : where[i];
    }
}

WEFTI_INLINE void store(const float *best, const int32_t *where, int64_t count, float *y,
                        uint8_t *mask)
{
    memcpy(y, best, (size_t)count * sizeof(*y));
    for (int64_t i = 0; mask != NULL && i < count; i++) {
        mask[i] = (uint8_t)where[i];
    }
}

/* A tile of output row oy, columns [from, to), of one plane. */
WEFTI_INLINE void tile_plain(const wefti_pool_t *p, const float *plane, int64_t oy, int64_t from,
                             int64_t to, float *y, uint8_t *mask)
{
    float best[TILE];
    int32_t where[TILE];
    for (int64_t i = 0; i < to - from; i++) {
        best[i] = -INFINITY;
        where[i] = (int32_t)(p->y.first_tap[oy] * p->x.kernel + p->x.first_tap[from + i]);
    }
    for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
        int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
        if (iy >= p->y.in) {
            break;
        }
        for (int64_t kx = 0; kx < p->x.kernel; kx++) {
            int64_t lo = p->x.ranges[kx].from, hi = p->x.ranges[kx].to;
            lo = lo < from ? from : lo;
            hi = hi > to ? to : hi;
            if (lo >= hi) {
                continue;
            }
            const float *x =
                plane + iy * p->x.in + lo * p->x.stride - p->x.pad + kx * p->x.dilation;
            int32_t tap = (int32_t)(ky * p->x.kernel + kx);
            if (p->x.stride == 2) {
                compare(best + (lo - from), where + (lo - from), x, 2, tap, hi - lo);
            } else if (p->x.stride == 1) {
                compare(best + (lo - from), where + (lo - from), x, 1, tap, hi - lo);
            } else {
                compare(best + (lo - from), where + (lo - from), x, p->x.stride, tap, hi - lo);
            }
        }
    }
    store(best, where, to - from, y, mask);
}

WEFTI_INLINE void max_plain(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    for (int64_t plane = 0; plane < p->n * p->c; plane++) {
        for (int64_t oy = 0; oy < p->y.out; oy++) {
            for (int64_t from = 0; from < p->x.out; from += TILE) {
                int64_t to = p->x.out - from < TILE ? p->x.out : from + TILE;
                tile_plain(p, x, oy, from, to, y + from, mask == NULL ? NULL : mask + from);
            }
            y += p->x.out;
            mask = mask == NULL ? NULL : mask + p->x.out;
        }
        x += p->y.in * p->x.in;
    }
}

/* Channels [from, to) of output element (oy, ox) of one image. */
WEFTI_INLINE void tile_last(const wefti_pool_t *p, const float *image, int64_t oy, int64_t ox,
                            int64_t from, int64_t to, float *y, uint8_t *mask)
{
    float best[TILE];
    int32_t where[TILE];
    int32_t first = (int32_t)(p->y.first_tap[oy] * p->x.kernel + p->x.first_tap[ox]);
    for (int64_t i = 0; i < to - from; i++) {
        best[i] = -INFINITY;
        where[i] = first;
    }
    for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
        int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
        for (int64_t kx = p->x.first_tap[ox]; kx < p->x.kernel && iy < p->y.in; kx++) {
            int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
            if (ix >= p->x.in) {
                break;
            }
            compare(best, where, image + (iy * p->x.in + ix) * p->c + from, 1,
                    (int32_t)(ky * p->x.kernel + kx), to - from);
        }
    }
    store(best, where, to - from, y, mask);
}

WEFTI_INLINE void max_last(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    for (int64_t n = 0; n < p->n; n++) {
        for (int64_t oy = 0; oy < p->y.out; oy++) {
            for (int64_t ox = 0; ox < p->x.out; ox++) {
                for (int64_t from = 0; from < p->c; from += TILE) {
                    int64_t to = p->c - from < TILE ? p->c : from + TILE;
                    tile_last(p, x, oy, ox, from, to, y + from, mask == NULL ? NULL : mask + from);
                }
                y += p->c;
                mask = mask == NULL ? NULL : mask + p->c;
            }
        }
        x += p->y.in * p->x.in * p->c;
    }
}

WEFTI_INLINE void max_pool_body(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    if (p->channels_last) {
        max_last(p, x, y, mask);
    } else {
        max_plain(p, x, y, mask);
    }
}
WEFTI_CLONES(max_pool, (const wefti_pool_t *p, const float *x, float *y, uint8_t *mask),
             (p, x, y, mask));

static void run_forward(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    if (wefti_pool_is_pairs(p)) {
        wefti_pool_pairs_max(p, x, y, mask);
    } else {
        max_pool[p->isa](p, x, y, mask);
    }
}

static weft_status_t run_max(const weft_kernel_call_t *call)
{
    run_forward(call->state, call->inputs[0], call->outputs[0], NULL);
    return WEFT_OK;
}

static weft_status_t run_mask(const weft_kernel_call_t *call)
{
    run_forward(call->state, call->inputs[0], call->outputs[0], call->outputs[1]);
    return WEFT_OK;
}

static weft_status_t prepare_max(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                 void **out_state, size_t *out_scratch_bytes)
{
    wefti_pool_t *pool = NULL;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    if (wefti_node_output(node, 1) != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "MaxPool: the output Indices is not supported");
    }
    WEFT_RETURN_IF_ERROR(wefti_pool_create(node, env, &node->inputs[0], &node->outputs[0], &pool));
    *out_state = pool;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t need_mask(const weft_tensor_desc_t *mask, const weft_tensor_desc_t *y)
{
    if (mask == NULL || mask->dtype != WEFT_DTYPE_U8 || !wefti_same_shape(mask, y)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "MaxPool: Mask must have type u8 and the shape of Y");
    }
    return WEFT_OK;
}

static weft_status_t check_area(const wefti_pool_t *pool)
{
    int64_t area;
    if (__builtin_mul_overflow(pool->y.kernel, pool->x.kernel, &area) || area > 255) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "MaxPool: the window has more than 255 elements");
    }
    return WEFT_OK;
}

static weft_status_t prepare_mask(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    wefti_pool_t *pool = NULL;
    weft_status_t status;
    WEFT_TRY(status, wefti_need_f32(node, 0), out);
    WEFT_TRY(status, wefti_need_f32_output(node, 0), out);
    WEFT_TRY(status, need_mask(wefti_node_output(node, 1), &node->outputs[0]), out);
    WEFT_TRY(status, wefti_pool_create(node, env, &node->inputs[0], &node->outputs[0], &pool), out);
    WEFT_TRY(status, check_area(pool), fail);
    *out_state = pool;
    *out_scratch_bytes = 0;
    return WEFT_OK;
fail:
    wefti_state_free(pool);
out:
    return status;
}

/* Adds one output element's gradient to where its maximum was; a mask that points outside is
 * ignored. */
static inline void scatter(const wefti_pool_t *p, int64_t oy, int64_t ox, uint8_t tap, float dy,
                           float *base, int64_t pixel)
{
    int64_t ky = tap / p->x.kernel, kx = tap % p->x.kernel;
    int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
    int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
    if (ky < p->y.kernel && iy >= 0 && iy < p->y.in && ix >= 0 && ix < p->x.in) {
        base[(iy * p->x.in + ix) * pixel] += dy;
    }
}

/* Outputs are taken in memory order, so overlapping windows add up in one order. */
static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const wefti_pool_t *p = call->state;
    const float *dy = call->inputs[0];
    const uint8_t *mask = call->inputs[1];
    float *dx = call->outputs[0];
    int64_t size = p->y.in * p->x.in, images = p->channels_last ? p->n : p->n * p->c;
    int64_t pixel = p->channels_last ? p->c : 1;
    int64_t offsets[256] = {
        0}; /* of each tap from the window's corner; garbage goes to the corner */
    for (int64_t tap = 0; tap < p->y.kernel * p->x.kernel; tap++) {
        offsets[tap] =
            (tap / p->x.kernel * p->y.dilation * p->x.in + tap % p->x.kernel * p->x.dilation) *
            pixel;
    }
    if (wefti_pool_is_pairs(p)) {
        wefti_pool_pairs_max_grad(p, dy, mask, dx);
        return WEFT_OK;
    }
    memset(dx, 0, (size_t)(p->n * p->c * size) * sizeof(*dx));
    /* Columns whose windows lie inside altogether need no checks. */
    int64_t left = p->x.ranges[0].from, right = p->x.ranges[p->x.kernel - 1].to;
    for (int64_t i = 0; i < images; i++, dx += size * pixel) {
        for (int64_t oy = 0; oy < p->y.out; oy++) {
            int64_t iy = oy * p->y.stride - p->y.pad;
            bool rows_inside = iy >= 0 && iy + (p->y.kernel - 1) * p->y.dilation < p->y.in;
            for (int64_t ox = 0; ox < p->x.out; ox++) {
                bool inside = rows_inside && ox >= left && ox < right;
                int64_t corner = (iy * p->x.in + ox * p->x.stride - p->x.pad) * pixel;
                for (int64_t c = 0; c < pixel; c++, dy++, mask++) {
                    if (inside) {
                        dx[corner + c + offsets[*mask]] += *dy;
                    } else {
                        scatter(p, oy, ox, *mask, *dy, dx + c, pixel);
                    }
                }
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    wefti_pool_t *pool = NULL;
    weft_status_t status;
    WEFT_TRY(status, wefti_need_f32(node, 0), out);
    WEFT_TRY(status, wefti_need_f32_output(node, 0), out);
    WEFT_TRY(status, need_mask(wefti_infer_input(node, 1), &node->inputs[0]), out);
    WEFT_TRY(status, wefti_pool_create(node, env, &node->outputs[0], &node->inputs[0], &pool), out);
    WEFT_TRY(status, check_area(pool), fail);
    *out_state = pool;
    *out_scratch_bytes = 0;
    return WEFT_OK;
fail:
    wefti_state_free(pool);
out:
    return status;
}

WEFTI_KERNEL(wefti_kernel_max_pool, "", "MaxPool", prepare_max, run_max);
WEFTI_KERNEL(wefti_kernel_max_pool_mask, "weft", "MaxPoolMask", prepare_mask, run_mask);
WEFTI_KERNEL(wefti_kernel_max_pool_grad, "weft", "MaxPoolGrad", prepare_grad, run_grad);
