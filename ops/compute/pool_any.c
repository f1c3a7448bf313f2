/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaxPool without vectors: of bytes and f64, and with Indices. Elements are compared as f64, which
 * holds all values of these types. Of equal maxima the first in row-major order wins, and NaN wins
 * over everything, as in pool_max.c.
 */
#include "ops/compute/pool.h"

#include <math.h>
#include <string.h>

#include "ops/compute/vector.h"
#include "runtime/base/parallel.h"

bool wefti_pool_any_takes(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_U8 || dtype == WEFT_DTYPE_I8 || dtype == WEFT_DTYPE_F64;
}

static double element(weft_dtype_t dtype, const void *x, int64_t at)
{
    switch (dtype) {
    case WEFT_DTYPE_U8:
        return (double)((const uint8_t *)x)[at];
    case WEFT_DTYPE_I8:
        return (double)((const int8_t *)x)[at];
    case WEFT_DTYPE_F32:
        return (double)((const float *)x)[at];
    default:
        return ((const double *)x)[at];
    }
}

/* The place of the maximum in a plane whose elements are pixel apart; -1: a window of padding. */
static int64_t find(const wefti_pool_t *p, const void *x, int64_t pixel, int64_t oy, int64_t ox)
{
    int64_t found = -1;
    double best = 0;
    for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
        const int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
        for (int64_t kx = p->x.first_tap[ox]; kx < p->x.kernel && iy < p->y.in; kx++) {
            const int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
            if (ix >= p->x.in) {
                break;
            }
            const double value = element(p->dtype, x, (iy * p->x.in + ix) * pixel);
            if (found < 0 || value > best || (value != value && best == best)) {
                found = iy * p->x.in + ix;
                best = value;
            }
        }
    }
    return found;
}

/* The maximum of padding alone: what no element is smaller than. */
static void put_lowest(weft_dtype_t dtype, char *y)
{
    const float single = -INFINITY;
    const double wide = -INFINITY;
    const uint8_t byte = dtype == WEFT_DTYPE_I8 ? 0x80 : 0;
    if (dtype == WEFT_DTYPE_F32) {
        memcpy(y, &single, sizeof(single));
    } else if (dtype == WEFT_DTYPE_F64) {
        memcpy(y, &wide, sizeof(wide));
    } else {
        memcpy(y, &byte, sizeof(byte));
    }
}

/* Planes [from, to), a plane being one channel of one image. */
static void run_planes(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const wefti_pool_t *p = call->state;
    const size_t size = weft_dtype_size_bytes(p->dtype);
    const int64_t in = p->y.in * p->x.in, out = p->y.out * p->x.out;
    const int64_t pixel = p->channels_last ? p->c : 1;
    for (int64_t plane = range.from; plane < range.to; plane++) {
        const int64_t n = plane / p->c, c = plane % p->c;
        const int64_t x_at = p->channels_last ? n * p->c * in + c : plane * in;
        const int64_t y_at = p->channels_last ? n * p->c * out + c : plane * out;
        const char *x = (const char *)call->inputs[0] + (size_t)x_at * size;
        for (int64_t o = 0; o < out; o++) {
            const int64_t at = find(p, x, pixel, o / p->x.out, o % p->x.out);
            const int64_t to = y_at + o * pixel;
            if (at < 0) {
                put_lowest(p->dtype, (char *)call->outputs[0] + (size_t)to * size);
            } else {
                memcpy((char *)call->outputs[0] + (size_t)to * size,
                       x + (size_t)(at * pixel) * size, size);
            }
            if (p->indices) {
                const int64_t column_major = at % p->x.in * p->y.in + at / p->x.in;
                const int64_t place = p->indices_last ? (n * out + o) * p->c + c : plane * out + o;
                ((int64_t *)call->outputs[1])[place] =
                    at < 0 ? -1 : plane * in + (p->column_major ? column_major : at);
            }
        }
    }
}

weft_status_t wefti_pool_any_run(const weft_kernel_call_t *call)
{
    const wefti_pool_t *p = call->state;
    wefti_parallel_for(p->threads, p->n * p->c, wefti_grain_rows(p->y.in * p->x.in), run_planes,
                       call);
    return WEFT_OK;
}
