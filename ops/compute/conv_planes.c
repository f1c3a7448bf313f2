/* SPDX-License-Identifier: Apache-2.0 */
/* Images into padded planes, and positions of planes into panels. */
#include "ops/compute/conv_f32.h"

#include <string.h>

#include "ops/compute/halves.h"
#include "ops/compute/support.h"
#include "runtime/base/error.h"

#define VECTOR WEFTI_DOT_LANES /* positions are rounded up to this on every machine */

int64_t wefti_planes_stride(const wefti_planes_t *p)
{
    return p->size[0] * p->size[1];
}

int64_t wefti_planes_elems(const wefti_planes_t *p)
{
    const int64_t elems = p->channels * p->phases[0] * p->phases[1] * wefti_planes_stride(p);
    return (elems + VECTOR - 1) / VECTOR * VECTOR + VECTOR;
}

weft_status_t wefti_planes_check(const wefti_planes_t *p)
{
    int64_t elems;
    if (__builtin_mul_overflow(p->size[0], p->size[1], &elems) ||
        __builtin_mul_overflow(elems, p->channels, &elems) ||
        __builtin_mul_overflow(elems, p->phases[0] * p->phases[1], &elems) ||
        elems > INT32_MAX / 2 || p->channels * p->phases[0] * p->phases[1] > INT32_MAX / 64) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the padded image is too large");
    }
    return WEFT_OK;
}

wefti_planes_t wefti_planes_of_input(const wefti_conv_t *c)
{
    wefti_planes_t p = {.channels = c->in_channels / c->groups,
                        .all_channels = c->in_channels,
                        .last = c->in_last,
                        .dtype = c->dtype,
                        .isa = c->isa};
    for (int d = 0; d < 2; d++) {
        const int64_t period = wefti_conv_tap_period(c, d);
        p.source[d] = c->in[d];
        p.shift[d] = c->pad[d];
        p.phase[d] = c->stride[d];
        p.dilation[d] = c->dilation[d];
        p.phases[d] = period < c->kernel[d] ? period : c->kernel[d];
        p.size[d] = c->out[d] + (c->kernel[d] - 1) * c->dilation[d] / c->stride[d];
    }
    return p;
}

wefti_planes_t wefti_planes_of_gradient(const wefti_conv_t *c)
{
    wefti_planes_t p = {.channels = c->out_channels / c->groups,
                        .all_channels = c->out_channels,
                        .phase = {1, 1},
                        .dilation = {1, 1},
                        .phases = {1, 1},
                        .last = c->out_last,
                        .dtype = c->dtype,
                        .isa = c->isa};
    for (int d = 0; d < 2; d++) {
        const int64_t before = (c->kernel[d] - 1) * c->dilation[d] / c->stride[d];
        const int64_t low = c->pad[d] / c->stride[d];
        p.source[d] = c->out[d];
        p.shift[d] = before - low;
        p.size[d] = (c->pad[d] + c->in[d] - 1) / c->stride[d] - low + 1 + before;
    }
    return p;
}

int64_t wefti_planes_tap(const wefti_planes_t *p, int64_t channel, int64_t y, int64_t x)
{
    const int64_t plane =
        (channel * p->phases[0] + y % p->phases[0]) * p->phases[1] + x % p->phases[1];
    return plane * wefti_planes_stride(p) + y * p->dilation[0] / p->phase[0] * p->size[1] +
           x * p->dilation[1] / p->phase[1];
}

/* Source elements first, first + phase ... < end of one dimension go to positions from to on. */
typedef struct run {
    int64_t first, count, to;
} run_t;

/* What of dimension d lies in phase r. */
static run_t run_of(const wefti_planes_t *p, int d, int64_t r)
{
    const int64_t phase = p->phase[d], shift = p->shift[d];
    /* u = first + shift is the least one that is r modulo phase and not negative. */
    int64_t u = shift > r ? r + (shift - r + phase - 1) / phase * phase : r;
    const int64_t last =
        shift + p->source[d] < p->size[d] * phase ? shift + p->source[d] : p->size[d] * phase;
    return (run_t){u - shift, u < last ? (last - u + phase - 1) / phase : 0, u / phase};
}

WEFTI_INLINE void copy_step_body(const float *src, int64_t step, int64_t count, float *dst)
{
    if (step == 1) {
        for (int64_t i = 0; i < count; i++) {
            dst[i] = src[i];
        }
    } else if (step == 2) { /* a constant, so that it becomes vectors */
        for (int64_t i = 0; i < count; i++) {
            dst[i] = src[2 * i];
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            dst[i] = src[i * step];
        }
    }
}
WEFTI_CLONES(copy_step, (const float *src, int64_t step, int64_t count, float *dst),
             (src, step, count, dst));

/* Elements at a step of a line, as f32. */
static void copy_line(const wefti_planes_t *p, const void *line, int64_t step, int64_t count,
                      float *dst)
{
    enum { BUFFER = 512 };
    float wide[BUFFER];
    if (p->dtype == WEFT_DTYPE_F32) {
        copy_step[p->isa](line, step, count, dst);
        return;
    }
    if (step == 1) {
        wefti_halves_widen(p->isa, p->dtype, line, count, dst);
        return;
    }
    for (int64_t i = 0, take; i < count; i += take) {
        take = step < BUFFER ? (BUFFER - 1) / step + 1 : 1;
        take = take < count - i ? take : count - i;
        wefti_halves_widen(p->isa, p->dtype, wefti_conv_at(p->dtype, line, i * step),
                           (take - 1) * step + 1, wide);
        copy_step[p->isa](wide, step, take, dst + i);
    }
}

/* Lines ys and columns xs of one phase, of all channels; dst: of the first channel's phase. */
static void fill_phase(const wefti_planes_t *p, const void *image, int64_t first, int64_t count,
                       run_t ys, run_t xs, float *dst)
{
    const int64_t area = p->source[0] * p->source[1], width = p->source[1];
    const int64_t plane = p->phases[0] * p->phases[1] * wefti_planes_stride(p);
    if (p->phase[1] == 1 && xs.count == p->size[1] && xs.count == width && p->phase[0] == 1) {
        xs.count *= ys.count; /* lines touch in both: all are one */
        ys.count = 1;
    }
    dst += ys.to * p->size[1] + xs.to;
    for (int64_t y = 0; y < ys.count && p->last; y++) {
        const int64_t from = (ys.first + y * p->phase[0]) * width + xs.first;
        wefti_transpose_f32(p->isa, (const float *)image + from * p->all_channels + first,
                            p->phase[1] * p->all_channels, xs.count, count, dst + y * p->size[1],
                            plane);
    }
    for (int64_t c = 0; c < count && !p->last; c++) {
        const int64_t channel = (first + c) * area + xs.first;
        for (int64_t y = 0; y < ys.count; y++) {
            copy_line(
                p, wefti_conv_at(p->dtype, image, channel + (ys.first + y * p->phase[0]) * width),
                p->phase[1], xs.count, dst + c * plane + y * p->size[1]);
        }
    }
}

void wefti_planes_fill(const wefti_planes_t *p, const void *image, int64_t first, int64_t count,
                       float *dst)
{
    for (int64_t y = 0; y < p->phases[0]; y++) {
        const run_t ys = run_of(p, 0, y * p->dilation[0] % p->phase[0]);
        for (int64_t x = 0; x < p->phases[1] && ys.count > 0; x++) {
            const run_t xs = run_of(p, 1, x * p->dilation[1] % p->phase[1]);
            if (xs.count > 0) {
                fill_phase(p, image, first, count, ys, xs,
                           dst + (y * p->phases[1] + x) * wefti_planes_stride(p));
            }
        }
    }
}

/* Runs of adjacent positions of one panel. */
typedef struct panel {
    int64_t count;
    int64_t from[WEFTI_PACKED_COLS], elems[WEFTI_PACKED_COLS];
} panel_t;

/* Whole vectors: what is written after a run is overwritten by the next run, or is slack. */
WEFTI_INLINE void pack_body(const panel_t *panel, const float *filled, const int32_t *at,
                            int64_t rows, float *dst, int64_t ld)
{
    for (int64_t k = 0; k < rows; k++) {
        const float *tap = filled + at[k];
        float *to = dst + k * ld;
        for (int64_t r = 0; r < panel->count; r++) {
            const float *from = tap + panel->from[r];
            for (int64_t i = 0; i < panel->elems[r]; i += VECTOR) {
                memcpy(to + i, from + i, VECTOR * sizeof *to);
            }
            to += panel->elems[r];
        }
    }
}
WEFTI_CLONES(pack,
             (const panel_t *panel, const float *filled, const int32_t *at, int64_t rows,
              float *dst, int64_t ld),
             (panel, filled, at, rows, dst, ld));

void wefti_pack_positions(const wefti_planes_t *p, const wefti_positions_t *positions,
                          const float *filled, const int32_t *at, int64_t rows, int64_t first,
                          int64_t cols, float *dst, int64_t ld)
{
    const int64_t area = positions->count[0] * positions->count[1];
    const bool touching = positions->count[1] == p->size[1];
    const int64_t width = touching ? area : positions->count[1], lines = area / width;
    int64_t image = first / area, line = first % area / width, x = first % area % width;
    panel_t panel;
    panel.count = 0;
    for (int64_t left = cols; left > 0; panel.count++) {
        const int64_t elems = width - x < left ? width - x : left;
        panel.from[panel.count] = image * positions->image_elems +
                                  (positions->first[0] + line) * p->size[1] + positions->first[1] +
                                  x;
        panel.elems[panel.count] = elems;
        left -= elems;
        x = 0; /* the last run may end inside a line */
        line++;
        if (line == lines) {
            line = 0;
            image++;
        }
    }
    pack[p->isa](&panel, filled, at, rows, dst, ld);
}
