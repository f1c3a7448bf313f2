/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaxPool, MaxPoolMask and MaxPoolGrad. Of equal maxima the first in row-major order wins; NaN wins
 * over everything. Plain tensors are walked in tiles of one output row; channels-last
 * ones in tiles of channels of one output element. Either way the inner loop is a vector of
 * independent maxima.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/pool_pairs.h"
#include "ops/compute/vector.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define TILE 128
#define ROW 1024 /* input elements of a row of a tile */
#define TAPS 16  /* of a window in one direction, in tiles */

/*
 * The maxima of taps begin to end for outputs side by side, count a multiple of 16: best, and where they are;
 * first where all taps are -infinity. Tap k of output i is x[k][i], in place k, or with rows in
 * place k * factor + rows[k][i]. Written as vectors: compilers do not find them in the conditions.
 */
#define MAXIMA(n)                                                                                  \
    WEFTI_INLINE void maxima_##n(const float *const *x, const int32_t *const *rows, int64_t begin, \
                                 int64_t end, int32_t factor, bool nan, const int32_t *first,      \
                                 int64_t count, float *best, int32_t *where)                       \
    {                                                                                              \
        for (int64_t i = 0; i < count; i += (n)) {                                                 \
            wefti_f32x##n##_t most = {0};                                                          \
            wefti_i32x##n##_t place = WEFTI_I32X(n, first + i);                                    \
            most -= INFINITY;                                                                      \
            for (int32_t k = (int32_t)begin; k < (int32_t)end; k++) {                              \
                const wefti_f32x##n##_t value = WEFTI_F32X(n, x[k] + i);                           \
                wefti_i32x##n##_t wins = value > most, at = {0};                                   \
                if (nan) {                                                                         \
                    wins |= value != value;                                                        \
                }                                                                                  \
                at += k * factor;                                                                  \
                if (rows != NULL) {                                                                \
                    at += WEFTI_I32X(n, rows[k] + i);                                              \
                }                                                                                  \
                most = WEFTI_SELECT_F32X(n, wins, value, most);                                    \
                place = WEFTI_SELECT_I32(wins, at, place);                                         \
            }                                                                                      \
            WEFTI_F32X(n, best + i) = most;                                                        \
            WEFTI_I32X(n, where + i) = place;                                                      \
        }                                                                                          \
    }
MAXIMA(4)
MAXIMA(8)
MAXIMA(16)

/* lanes: what the instruction set has. */
WEFTI_INLINE void maxima(int lanes, const float *const *x, const int32_t *const *rows,
                         int64_t begin, int64_t end, int32_t factor, bool nan, const int32_t *first,
                         int64_t count, float *best, int32_t *where)
{
    if (lanes == 16) {
        maxima_16(x, rows, begin, end, factor, nan, first, count, best, where);
    } else if (lanes == 8) {
        maxima_8(x, rows, begin, end, factor, nan, first, count, best, where);
    } else {
        maxima_4(x, rows, begin, end, factor, nan, first, count, best, where);
    }
}

WEFTI_INLINE void store(const float *best, const int32_t *where, int64_t count, float *y,
                        uint8_t *mask)
{
    memcpy(y, best, (size_t)count * sizeof(*y));
    count = mask == NULL ? 0 : count;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        mask[i] = (uint8_t)where[i];
    }
}

/* Elements [start, start + count) of an input row, -infinity outside. */
WEFTI_INLINE void pad_row(const float *x, int64_t width, int64_t start, int64_t count, float *row)
{
    int64_t lo = start < 0 ? -start : 0, hi = width - start < count ? width - start : count;
    lo = lo < count ? lo : count;
    hi = hi < lo ? lo : hi;
    for (int64_t i = 0; i < lo; i++) {
        row[i] = -INFINITY;
    }
    memcpy(row + lo, x + start + lo, (size_t)(hi - lo) * sizeof(*row));
    for (int64_t i = hi; i < count; i++) {
        row[i] = -INFINITY;
    }
}

/* Parts of a row by stride: part q has elements q, q + stride, q + 2 stride ... Returns whether any
 * element is NaN. */
WEFTI_INLINE bool split_row(const float *row, int64_t stride, int64_t length, float *parts)
{
    int64_t i = 0;
    int32_t nan = 0;
    for (int64_t k = 0; k < stride * length; k++) {
        nan |= row[k] != row[k] ? -1 : 0;
    }
    for (; stride == 2 && i + 4 <= length; i += 4) {
        const wefti_f32x4_t a = WEFTI_F32X(4, row + 2 * i), b = WEFTI_F32X(4, row + 2 * i + 4);
        WEFTI_F32X(4, parts + i) = __builtin_shufflevector(a, b, 0, 2, 4, 6);
        WEFTI_F32X(4, parts + length + i) = __builtin_shufflevector(a, b, 1, 3, 5, 7);
    }
    for (; i < length && stride > 1; i++) {
        for (int64_t q = 0; q < stride; q++) {
            parts[q * length + i] = row[i * stride + q];
        }
    }
    return nan != 0;
}

/* Maxima along an input row. */
typedef struct {
    int64_t row; /* which row; -1: none */
    bool nan;
    float best[TILE];
    int32_t where[TILE];
} row_t;

/* Columns [from, from + count) of row iy. first: their first taps. */
WEFTI_INLINE void find_in_row(const wefti_pool_t *p, int lanes, const float *plane, int64_t iy,
                              int64_t from, int64_t count, const int32_t *first, row_t *out)
{
    const int64_t stride = p->x.stride;
    const int64_t length = count + (p->x.kernel - 1) * p->x.dilation / stride + 1;
    float row[ROW], split[ROW];
    const float *parts = stride == 1 ? row : split, *taps[TAPS];
    pad_row(plane + iy * p->x.in, p->x.in, from * stride - p->x.pad, length * stride, row);
    out->row = iy;
    out->nan = split_row(row, stride, length, split);
    for (int64_t k = 0; k < p->x.kernel; k++) {
        const int64_t at = k * p->x.dilation;
        taps[k] = parts + at % stride * length + at / stride;
    }
    if (out->nan) {
        maxima(lanes, taps, NULL, 0, p->x.kernel, 1, true, first, count, out->best, out->where);
    } else {
        maxima(lanes, taps, NULL, 0, p->x.kernel, 1, false, first, count, out->best, out->where);
    }
}

/*
 * Columns [from, to) of the output rows of one plane: maxima along the input rows, then over rows.
 * Windows that overlap share the former. Loops run over whole vectors, so rows are padded.
 */
WEFTI_INLINE void tile_plain(const wefti_pool_t *p, int lanes, const float *plane, int64_t from,
                             int64_t to, float *y, uint8_t *mask)
{
    const int64_t count = (to - from + 15) / 16 * 16;
    int32_t first_x[TILE] = {0}, first[TILE], where[TILE];
    float best[TILE];
    row_t rows[TAPS];
    for (int64_t i = 0; i < to - from; i++) {
        first_x[i] = (int32_t)p->x.first_tap[from + i];
    }
    for (int64_t k = 0; k < p->y.kernel; k++) {
        rows[k].row = -1;
    }
    for (int64_t oy = 0; oy < p->y.out; oy++, y += p->x.out) {
        const int64_t ky = p->y.first_tap[oy], top = oy * p->y.stride - p->y.pad;
        const float *taps[TAPS];
        const int32_t *places[TAPS];
        int64_t end = ky;
        bool nan = false;
        for (; end < p->y.kernel && top + end * p->y.dilation < p->y.in; end++) {
            const int64_t iy = top + end * p->y.dilation;
            row_t *row = &rows[iy / p->y.dilation % p->y.kernel];
            if (row->row != iy) {
                find_in_row(p, lanes, plane, iy, from, count, first_x, row);
            }
            taps[end] = row->best;
            places[end] = row->where;
            nan = nan || row->nan;
        }
        for (int64_t i = 0; i < count; i++) {
            first[i] = first_x[i] + (int32_t)(ky * p->x.kernel);
        }
        maxima(lanes, taps, places, ky, end, (int32_t)p->x.kernel, nan, first, count, best, where);
        store(best, where, to - from, y, mask);
        mask = mask == NULL ? NULL : mask + p->x.out;
    }
}

/* Outputs of a tile, so that their inputs fit into ROW. */
static int64_t tile_of(const wefti_pool_t *p)
{
    const int64_t rest = (p->x.kernel - 1) * p->x.dilation + p->x.stride;
    const int64_t fit = rest < ROW ? (ROW - rest) / p->x.stride / 16 * 16 : 0;
    return p->x.kernel > TAPS || p->y.kernel > TAPS ? 0 : fit < TILE ? fit : TILE;
}

WEFTI_INLINE void max_plain(const wefti_pool_t *p, int lanes, const float *x, float *y,
                            uint8_t *mask)
{
    const int64_t tile = tile_of(p), outs = p->y.out * p->x.out;
    for (int64_t plane = 0; plane < p->n * p->c; plane++) {
        for (int64_t from = 0; from < p->x.out; from += tile) {
            int64_t to = p->x.out - from < tile ? p->x.out : from + tile;
            tile_plain(p, lanes, x, from, to, y + from, mask == NULL ? NULL : mask + from);
        }
        y += outs;
        mask = mask == NULL ? NULL : mask + outs;
        x += p->y.in * p->x.in;
    }
}

/* Windows too wide for a tile: one output after the other. */
static void max_wide(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    for (int64_t at = 0; at < p->n * p->c * p->y.out * p->x.out; at++) {
        const int64_t ox = at % p->x.out, oy = at / p->x.out % p->y.out;
        const float *plane = x + at / (p->x.out * p->y.out) * p->y.in * p->x.in;
        int64_t where = p->y.first_tap[oy] * p->x.kernel + p->x.first_tap[ox];
        float best = -INFINITY;
        for (int64_t tap = where; tap < p->y.kernel * p->x.kernel; tap++) {
            int64_t iy = oy * p->y.stride - p->y.pad + tap / p->x.kernel * p->y.dilation;
            int64_t ix = ox * p->x.stride - p->x.pad + tap % p->x.kernel * p->x.dilation;
            if (iy < p->y.in && ix >= 0 && ix < p->x.in) {
                float value = plane[iy * p->x.in + ix];
                bool wins = value > best || value != value;
                best = wins ? value : best;
                where = wins ? tap : where;
            }
        }
        y[at] = best;
        if (mask != NULL) {
            mask[at] = (uint8_t)where;
        }
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
            const float *x = image + (iy * p->x.in + ix) * p->c + from;
            const int32_t tap = (int32_t)(ky * p->x.kernel + kx);
            WEFTI_INDEPENDENT
            for (int64_t i = 0; i < to - from; i++) {
                int wins = (x[i] > best[i]) | (x[i] != x[i]);
                best[i] = wins ? x[i] : best[i];
                where[i] = wins ? tap : where[i];
            }
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

typedef void (*max_pool_fn)(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask);
#define MAX_POOL(name, lanes)                                                                      \
    static void name(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)               \
    {                                                                                              \
        if (p->channels_last) {                                                                    \
            max_last(p, x, y, mask);                                                               \
        } else {                                                                                   \
            max_plain(p, lanes, x, y, mask);                                                       \
        }                                                                                          \
    }
MAX_POOL(max_pool_portable, 4)
WEFTI_TARGET_AVX2 MAX_POOL(max_pool_avx2, 8) WEFTI_TARGET_AVX512
    MAX_POOL(max_pool_avx512, 16) static const max_pool_fn max_pool[3] = {
        max_pool_portable, max_pool_avx2, max_pool_avx512};

static wefti_pool_t images_of(const wefti_pool_t *pool, wefti_range_t range)
{
    wefti_pool_t part = *pool;
    part.n = range.to - range.from;
    return part;
}

static void run_images(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const wefti_pool_t part = images_of(call->state, range);
    const int64_t in = part.c * part.y.in * part.x.in, out = part.c * part.y.out * part.x.out;
    const float *x = (const float *)call->inputs[0] + range.from * in;
    float *y = (float *)call->outputs[0] + range.from * out;
    uint8_t *mask =
        call->outputs[1] == NULL ? NULL : (uint8_t *)call->outputs[1] + range.from * out;
    if (wefti_pool_is_pairs(&part)) {
        wefti_pool_pairs_max(&part, x, y, mask);
    } else if (!part.channels_last && tile_of(&part) <= 0) {
        max_wide(&part, x, y, mask);
    } else {
        max_pool[part.isa](&part, x, y, mask);
    }
}

static weft_status_t run_forward(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    const weft_kernel_call_t call = {(void *)(uintptr_t)p, (const void *const[]){x},
                                     (void *const[]){y, mask}, NULL};
    wefti_parallel_for(p->threads, p->n, wefti_grain_rows(p->c * p->y.in * p->x.in), run_images,
                       &call);
    return WEFT_OK;
}

static weft_status_t run_max(const weft_kernel_call_t *call)
{
    const wefti_pool_t *p = call->state;
    return p->dtype != WEFT_DTYPE_NONE ? wefti_pool_any_run(call)
                                       : run_forward(p, call->inputs[0], call->outputs[0], NULL);
}

static weft_status_t run_mask(const weft_kernel_call_t *call)
{
    return run_forward(call->state, call->inputs[0], call->outputs[0], call->outputs[1]);
}

/* Indices may have another layout than Y. */
static weft_status_t need_any(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                              const weft_tensor_desc_t *y, const weft_tensor_desc_t *indices)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(x, "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(y, "output", 0));
    if ((x->dtype != WEFT_DTYPE_F32 && !wefti_pool_any_takes(x->dtype)) || y->dtype != x->dtype) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for type %s", node->op,
                           weft_dtype_name(x->dtype));
    }
    if (indices != NULL && (indices->dtype != WEFT_DTYPE_I64 || indices->rank != y->rank ||
                            memcmp(indices->dims, y->dims, y->rank * sizeof(y->dims[0])) != 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "MaxPool: Indices must have type i64 and the shape of Y");
    }
    return WEFT_OK;
}

static weft_status_t prepare_max(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                 void **out_state, size_t *out_scratch_bytes)
{
    wefti_pool_t *pool = NULL;
    const weft_tensor_desc_t *x = wefti_infer_input(node, 0), *y = wefti_node_output(node, 0);
    const weft_tensor_desc_t *indices = wefti_node_output(node, 1);
    const bool any = indices != NULL || (x != NULL && wefti_pool_any_takes(x->dtype));
    if (any) {
        WEFT_RETURN_IF_ERROR(need_any(node, x, y, indices));
    } else {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
        WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    }
    WEFT_RETURN_IF_ERROR(wefti_pool_create(node, env, x, y, &pool));
    pool->dtype = any ? x->dtype : WEFT_DTYPE_NONE;
    pool->indices = indices != NULL;
    pool->indices_last = indices != NULL && indices->layout == WEFT_LAYOUT_CHANNELS_LAST;
    pool->column_major = weft_node_attr_int(node, "storage_order", 0) != 0;
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
                           float *plane)
{
    int64_t ky = tap / p->x.kernel, kx = tap % p->x.kernel;
    int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
    int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
    if (ky < p->y.kernel && iy >= 0 && iy < p->y.in && ix >= 0 && ix < p->x.in) {
        plane[iy * p->x.in + ix] += dy;
    }
}

/* Elements of a part of a row of dX, for grad_row; 0: windows or rows are too large for it. */
static int64_t part_length(const wefti_pool_t *p)
{
    const int64_t taps =
        (p->x.out + 15) / 16 * 16 + (p->x.kernel - 1) * p->x.dilation / p->x.stride;
    const int64_t inside = (p->x.in + p->x.pad) / p->x.stride;
    const int64_t length = 1 + (taps > inside ? taps : inside);
    return p->x.out > TILE || p->y.kernel * p->x.kernel > TAPS || p->x.stride > (ROW - 16) / length
               ? 0
               : length;
}

/* Row iy of dX. It is made of parts by stride, as split_row's: a tap adds adjacent outputs to
 * adjacent elements of one part. The last tap comes first, so outputs add up in memory order. */
WEFTI_INLINE void grad_row(const wefti_pool_t *p, const float *dy, const uint8_t *mask, int64_t iy,
                           int64_t length, float *dx)
{
    const int64_t stride = p->x.stride, outs = p->x.out, count = (outs + 15) / 16 * 16;
    float parts[ROW], row[TILE];
    int32_t places[TILE];
    for (int64_t i = 0; i < stride * length; i += 16) {
        for (int j = 0; j < 16; j++) {
            parts[i + j] = 0.0f;
        }
    }
    for (int j = 0; j < 16; j++) {
        row[count - 16 + j] = 0.0f;
    }
    for (int64_t ky = p->y.kernel; ky-- > 0;) {
        const int64_t top = iy + p->y.pad - ky * p->y.dilation, oy = top / p->y.stride;
        if (top < 0 || top % p->y.stride != 0 || oy >= p->y.out) {
            continue;
        }
        memcpy(row, dy + oy * outs, (size_t)outs * sizeof(*row));
        for (int64_t i = 0; i < outs; i++) {
            places[i] = mask[oy * outs + i];
        }
        for (int64_t kx = p->x.kernel; kx-- > 0;) {
            const int64_t at = kx * p->x.dilation;
            const int32_t tap = (int32_t)(ky * p->x.kernel + kx);
            float *part = parts + at % stride * length + at / stride;
            for (int64_t i = 0; i < count; i += 16) {
                WEFTI_INDEPENDENT
                for (int j = 0; j < 16; j++) {
                    part[i + j] += places[i + j] == tap ? row[i + j] : 0.0f;
                }
            }
        }
    }
    const float *even = parts + p->x.pad % stride * length + p->x.pad / stride;
    const float *odd = parts + (p->x.pad + 1) % stride * length + (p->x.pad + 1) / stride;
    int64_t i = 0;
    for (; i + 16 <= p->x.in && stride == 2; i += 16) {
        const wefti_f32x8_t a = WEFTI_F32X(8, even + i / 2), b = WEFTI_F32X(8, odd + i / 2);
        WEFTI_F32X(8, dx + i) = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        WEFTI_F32X(8, dx + i + 8) = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (; i < p->x.in; i++) {
        dx[i] = parts[(i + p->x.pad) % stride * length + (i + p->x.pad) / stride];
    }
}

/* Pixels of windows, channel by channel of all. */
WEFTI_INLINE void grad_last(const wefti_pool_t *p, const float *dy, const uint8_t *mask, int64_t oy,
                            float *dx)
{
    for (int64_t ox = 0; ox < p->x.out; ox++, dy += p->c, mask += p->c) {
        for (int64_t ky = p->y.first_tap[oy]; ky < p->y.kernel; ky++) {
            const int64_t iy = oy * p->y.stride - p->y.pad + ky * p->y.dilation;
            for (int64_t kx = p->x.first_tap[ox]; kx < p->x.kernel && iy < p->y.in; kx++) {
                const int64_t ix = ox * p->x.stride - p->x.pad + kx * p->x.dilation;
                const uint8_t tap = (uint8_t)(ky * p->x.kernel + kx);
                if (ix >= p->x.in) {
                    break;
                }
                float *to = dx + (iy * p->x.in + ix) * p->c;
                WEFTI_INDEPENDENT
                for (int64_t c = 0; c < p->c; c++) {
                    to[c] += mask[c] == tap ? dy[c] : 0.0f;
                }
            }
        }
    }
}

/* An image, or a plane of one. */
WEFTI_INLINE void grad_image_body(const wefti_pool_t *p, const float *dy, const uint8_t *mask,
                                  float *dx)
{
    const int64_t pixel = p->channels_last ? p->c : 1, outs = p->x.out * pixel;
    const int64_t length = p->channels_last ? 0 : part_length(p);
    for (int64_t iy = 0; iy < p->y.in && length > 0; iy++) {
        grad_row(p, dy, mask, iy, length, dx + iy * p->x.in);
    }
    if (length > 0) {
        return;
    }
    memset(dx, 0, (size_t)(p->y.in * p->x.in * pixel) * sizeof(*dx));
    for (int64_t oy = 0; oy < p->y.out; oy++, dy += outs, mask += outs) {
        if (p->channels_last) {
            grad_last(p, dy, mask, oy, dx);
            continue;
        }
        for (int64_t ox = 0; ox < p->x.out; ox++) {
            scatter(p, oy, ox, mask[ox], dy[ox], dx);
        }
    }
}
WEFTI_CLONES(grad_image, (const wefti_pool_t *p, const float *dy, const uint8_t *mask, float *dx),
             (p, dy, mask, dx));

/* Outputs are taken in memory order, so overlapping windows add up in one order. */
static void grad_images(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const wefti_pool_t part = images_of(call->state, range), *p = &part;
    const int64_t in = p->y.in * p->x.in, out = p->y.out * p->x.out, first = range.from * p->c;
    const int64_t planes = p->channels_last ? 1 : p->c;
    const float *dy = (const float *)call->inputs[0] + first * out;
    const uint8_t *mask = (const uint8_t *)call->inputs[1] + first * out;
    float *dx = (float *)call->outputs[0] + first * in;
    if (wefti_pool_is_pairs(p)) {
        wefti_pool_pairs_max_grad(p, dy, mask, dx);
        return;
    }
    for (int64_t i = 0; i < p->n * planes; i++) {
        const int64_t at = i * p->c / planes;
        grad_image[p->isa](p, dy + at * out, mask + at * out, dx + at * in);
    }
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const wefti_pool_t *p = call->state;
    wefti_parallel_for(p->threads, p->n, wefti_grain_rows(p->c * p->y.in * p->x.in), grad_images,
                       call);
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
