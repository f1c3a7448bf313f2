/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/conv_depthwise.h"

#include <string.h>

#include "ops/compute/lanes_transpose.h"
#include "ops/compute/support.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define LANES WEFTI_DOT_LANES
#define BAND_ELEMS                                                                                 \
    (INT64_C(1) << 17)   /* of source and outputs: they stay in the second-level cache */
#define LEAST_CHANNELS 8 /* fewer leave most lanes empty */
#define MOST_TAPS 5      /* of one line, whose gradients are computed together */
#define MOST_OUTPUTS 7   /* of one line: widths of images are often multiples of this */

/* The lanes of one pixel. */
typedef float vector_t __attribute__((vector_size(64), aligned(4), may_alias));

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Down and up, also of negative numbers. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return floor_div(a + b - 1, b);
}

bool wefti_depthwise_fits(const wefti_conv_t *c)
{
    return c->groups >= LEAST_CHANNELS && c->groups == c->in_channels &&
           c->groups == c->out_channels;
}

/* The axis of the inputs that taps tap, tap + period ... reach. */
static wefti_depthwise_axis_t axis_of_phase(const wefti_conv_t *c, int d, int64_t tap,
                                            int64_t period)
{
    const int64_t stride = c->stride[d], phase = tap * c->dilation[d] % stride;
    const int64_t first = ceil_div(c->pad[d] - phase, stride);
    const int64_t last = floor_div(c->pad[d] + c->in[d] - 1 - phase, stride);
    return (wefti_depthwise_axis_t){.count = last < first ? 0 : last - first + 1,
                                    .to = first * stride + phase - c->pad[d],
                                    .to_step = stride,
                                    .taps = (c->kernel[d] - tap + period - 1) / period,
                                    .first = first - tap * c->dilation[d] / stride,
                                    .step = -(period * c->dilation[d] / stride),
                                    .source_step = 1,
                                    .weight = tap,
                                    .weight_step = period};
}

static weft_status_t plan_axes(const wefti_conv_t *c, bool data_grad, wefti_depthwise_t *p)
{
    for (int d = 0; d < 2; d++) {
        const int64_t period = wefti_conv_tap_period(c, d);
        p->axis_count[d] = data_grad ? min_i64(period, c->kernel[d]) : 1;
        p->axes[d] = wefti_alloc(NULL, (size_t)p->axis_count[d] * sizeof **p->axes);
        if (p->axes[d] == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        p->axes[d][0] = (wefti_depthwise_axis_t){.count = c->out[d],
                                                 .to_step = 1,
                                                 .taps = c->kernel[d],
                                                 .first = -c->pad[d],
                                                 .step = c->dilation[d],
                                                 .source_step = c->stride[d],
                                                 .weight_step = 1};
        for (int64_t i = 0; i < p->axis_count[d] && data_grad; i++) {
            p->axes[d][i] = axis_of_phase(c, d, i, period);
        }
        p->whole &= !data_grad || p->axis_count[d] == c->stride[d];
    }
    return WEFT_OK;
}

/* Lines of the source that outputs y .. y + lines - 1 read, inside the image. */
typedef struct lines {
    int64_t first, count;
} lines_t;

static lines_t lines_of(const wefti_depthwise_t *p, int64_t y, int64_t lines)
{
    int64_t first = p->source[0], end = 0;
    for (int64_t i = 0; i < p->axis_count[0]; i++) {
        const wefti_depthwise_axis_t *a = &p->axes[0][i];
        const int64_t low = max_i64(0, ceil_div(y - a->to, a->to_step));
        const int64_t high = min_i64(a->count - 1, floor_div(y + lines - 1 - a->to, a->to_step));
        if (low > high) {
            continue;
        }
        const int64_t back = a->step < 0 ? (a->taps - 1) * a->step : 0;
        const int64_t forth = a->step > 0 ? (a->taps - 1) * a->step : 0;
        first = min_i64(first, a->first + low * a->source_step + back);
        end = max_i64(end, a->first + high * a->source_step + forth + 1);
    }
    first = max_i64(first, 0);
    end = min_i64(end, p->source[0]);
    return (lines_t){first, end > first ? end - first : 0};
}

weft_status_t wefti_depthwise_plan(const wefti_conv_t *c, bool data_grad, wefti_depthwise_t *p)
{
    *p = (wefti_depthwise_t){.images = c->images,
                             .channels = c->groups,
                             .source_last = data_grad ? c->out_last : c->in_last,
                             .out_last = data_grad ? c->in_last : c->out_last,
                             .whole = true,
                             .isa = c->isa,
                             .threads = c->threads};
    for (int d = 0; d < 2; d++) {
        p->kernel[d] = c->kernel[d];
        p->source[d] = data_grad ? c->out[d] : c->in[d];
        p->out[d] = data_grad ? c->in[d] : c->out[d];
    }
    WEFT_RETURN_IF_ERROR(plan_axes(c, data_grad, p));
    int64_t end = p->source[1];
    for (int64_t i = 0; i < p->axis_count[1]; i++) {
        const wefti_depthwise_axis_t *x = &p->axes[1][i];
        const int64_t last = x->first + (x->count - 1) * x->source_step;
        const int64_t span = (x->taps - 1) * x->step;
        p->zeros = max_i64(p->zeros, -(x->first + min_i64(span, 0)));
        end = max_i64(end, last + max_i64(span, 0) + 1);
    }
    p->pitch = p->zeros + end;
    /* Lines of the source per line of outputs, and what a band needs besides. No product overflows:
     * sizes and pads are at most 2^24 (wefti_conv_describe), so the pitch is below 2^28. */
    const wefti_depthwise_axis_t *a = &p->axes[0][0];
    const int64_t extra = min_i64(p->source[0], (c->kernel[0] - 1) * c->dilation[0] + 1);
    const int64_t line = (p->pitch * a->source_step + p->out[1]) * LANES;
    p->band = min_i64(p->out[0], max_i64(1, BAND_ELEMS / line - extra));
    p->source_elems = min_i64(p->source[0], p->band * a->source_step + extra) * p->pitch * LANES;
    /* Source, outputs, and weights (or their gradients) with the bias. */
    p->thread_elems =
        p->source_elems + p->band * p->out[1] * LANES + (p->kernel[0] * p->kernel[1] + 1) * LANES;
    if (p->thread_elems > INT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the padded image is too large");
    }
    p->scratch_elems = p->thread_elems * p->threads;
    return WEFT_OK;
}

void wefti_depthwise_deinit(wefti_depthwise_t *p)
{
    for (int d = 0; d < 2; d++) {
        wefti_free(NULL, p->axes[d]);
        p->axes[d] = NULL;
    }
}

/* What the threads of one call share. */
typedef struct depthwise_job {
    const wefti_depthwise_t *pass;
    const float *source, *weights, *bias; /* weights: dY for the gradient of weights */
    float *dst, *db, *scratch;
    int64_t blocks;
} depthwise_job_t;

/* Lines of an image from memory to vectors, and back; image: of the first of the channels. */
static void load_lines(weft_isa_t isa, const float *image, bool last, int64_t channels, int lanes,
                       const int64_t size[2], lines_t lines, float *dst)
{
    const int64_t begin = lines.first * size[1], count = lines.count * size[1];
    if (!last) {
        wefti_to_lanes(isa)(image + begin, size[0] * size[1], lanes, count, dst, LANES);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memset(dst + i * LANES, 0, lanes == LANES ? 0 : LANES * sizeof *dst);
        memcpy(dst + i * LANES, image + (begin + i) * channels, (size_t)lanes * sizeof *dst);
    }
}

/* Lines side by side to lines of the pitch, from the last to the first; zeros at both ends. */
static void spread_lines(const wefti_depthwise_t *p, int64_t lines, float *in)
{
    const size_t bytes = (size_t)(p->source[1] * LANES) * sizeof *in;
    const int64_t behind = p->pitch - p->zeros - p->source[1];
    for (int64_t y = lines; y-- > 0 && p->pitch != p->source[1];) {
        float *to = in + y * p->pitch * LANES;
        memmove(to + p->zeros * LANES, in + y * p->source[1] * LANES, bytes);
        memset(to, 0, (size_t)(p->zeros * LANES) * sizeof *in);
        memset(to + (p->zeros + p->source[1]) * LANES, 0, (size_t)(behind * LANES) * sizeof *in);
    }
}

static void store_lines(weft_isa_t isa, const float *src, bool last, int64_t channels, int lanes,
                        const int64_t size[2], int64_t first, int64_t lines, float *image)
{
    const int64_t area = size[0] * size[1], begin = first * size[1], count = lines * size[1];
    if (!last) {
        wefti_from_lanes(isa)(src, LANES, lanes, count, WEFTI_ADD_NOTHING, image + begin, area);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(image + (begin + i) * channels, src + i * LANES, (size_t)lanes * sizeof *src);
    }
}

/* Taps that output n of an axis finds inside a source of this size. */
static void valid_taps(const wefti_depthwise_axis_t *a, int64_t size, int64_t n, int64_t *from,
                       int64_t *to)
{
    const int64_t first = a->first + n * a->source_step;
    if (a->step > 0) {
        *from = first < 0 ? ceil_div(-first, a->step) : 0;
        *to = first < size ? (size - 1 - first) / a->step + 1 : 0;
    } else {
        *from = first >= size ? ceil_div(first - size + 1, -a->step) : 0;
        *to = first >= 0 ? first / -a->step + 1 : 0;
    }
    *to = min_i64(*to, a->taps);
    *from = min_i64(*from, *to);
}

/* The outputs of a line that belong to one axis. */
typedef struct row {
    const float *source; /* line, column and tap of output 0 */
    const float *weights, *bias;
    float *dst;
    int64_t lines, line_step, line_weights; /* taps in y: elements from one to the next */
    int64_t taps, tap_step, tap_weights;    /* in x */
    int64_t source_step, dst_step, count;
} row_t;

WEFTI_INLINE void outputs(const row_t *r, int64_t n, const int count)
{
    vector_t sums[MOST_OUTPUTS];
#pragma GCC unroll 7
    for (int u = 0; u < count; u++) {
        sums[u] = (vector_t){0};
    }
    for (int64_t y = 0; y < r->lines; y++) {
        const float *source = r->source + y * r->line_step + n * r->source_step;
        const float *weights = r->weights + y * r->line_weights;
        for (int64_t x = 0; x < r->taps; x++) {
            const vector_t w = *(const vector_t *)weights;
#pragma GCC unroll 7
            for (int u = 0; u < count; u++) {
                sums[u] += *(const vector_t *)(source + u * r->source_step) * w;
            }
            source += r->tap_step;
            weights += r->tap_weights;
        }
    }
#pragma GCC unroll 7
    for (int u = 0; u < count; u++) {
        *(vector_t *)(r->dst + (n + u) * r->dst_step) = sums[u] + *(const vector_t *)r->bias;
    }
}

WEFTI_INLINE void run_row_body(const row_t *r)
{
    int64_t n = 0;
    for (; n + MOST_OUTPUTS <= r->count; n += MOST_OUTPUTS) {
        outputs(r, n, MOST_OUTPUTS);
    }
    for (; n + 3 <= r->count; n += 3) {
        outputs(r, n, 3);
    }
    for (; n < r->count; n++) {
        outputs(r, n, 1);
    }
}
WEFTI_CLONES(run_row, (const row_t *row), (row));

/* Output line n of y for all outputs of the axis x. in: line 0 of the source; out: that line. */
static void run_line(const wefti_depthwise_t *p, const wefti_depthwise_axis_t *ay, int64_t n,
                     const wefti_depthwise_axis_t *ax, const float *in, const float *weights,
                     float *out)
{
    int64_t from, to;
    valid_taps(ay, p->source[0], n, &from, &to);
    const int64_t line = ay->first + from * ay->step + n * ay->source_step;
    const int64_t tap = (ay->weight + from * ay->weight_step) * p->kernel[1] + ax->weight;
    const row_t row = {.source = in + (line * p->pitch + p->zeros + ax->first) * LANES,
                       .weights = weights + tap * LANES,
                       .bias = weights + p->kernel[0] * p->kernel[1] * LANES,
                       .dst = out + ax->to * LANES,
                       .lines = to - from,
                       .line_step = ay->step * p->pitch * LANES,
                       .line_weights = ay->weight_step * p->kernel[1] * LANES,
                       .taps = ax->taps,
                       .tap_step = ax->step * LANES,
                       .tap_weights = ax->weight_step * LANES,
                       .source_step = ax->source_step * LANES,
                       .dst_step = ax->to_step * LANES,
                       .count = ax->count};
    run_row[p->isa](&row);
}

static void run_block(const depthwise_job_t *job, float *scratch, int64_t image, int64_t channel)
{
    const wefti_depthwise_t *p = job->pass;
    const int lanes = (int)min_i64(LANES, p->channels - channel);
    const int64_t taps = p->kernel[0] * p->kernel[1];
    const int64_t from_area = p->source[0] * p->source[1], to_area = p->out[0] * p->out[1];
    const float *from =
        job->source + image * p->channels * from_area + channel * (p->source_last ? 1 : from_area);
    float *to = job->dst + image * p->channels * to_area + channel * (p->out_last ? 1 : to_area);
    float *in = scratch, *out = in + p->source_elems, *weights = out + p->band * p->out[1] * LANES;
    wefti_to_lanes(p->isa)(job->weights + channel * taps, taps, lanes, taps, weights, LANES);
    memset(weights + taps * LANES, 0, LANES * sizeof *weights);
    if (job->bias != NULL) {
        memcpy(weights + taps * LANES, job->bias + channel, (size_t)lanes * sizeof *weights);
    }
    for (int64_t y = 0; y < p->out[0]; y += p->band) {
        const int64_t count = min_i64(p->band, p->out[0] - y);
        const lines_t lines = lines_of(p, y, count);
        load_lines(p->isa, from, p->source_last, p->channels, lanes, p->source, lines, in);
        spread_lines(p, lines.count, in);
        for (int64_t i = 0; i < count * p->out[1] && !p->whole; i++) {
            memcpy(out + i * LANES, weights + taps * LANES, LANES * sizeof *out);
        }
        for (int64_t a = 0; a < p->axis_count[0]; a++) {
            const wefti_depthwise_axis_t *ay = &p->axes[0][a];
            const int64_t end = min_i64(ay->count, ceil_div(y + count - ay->to, ay->to_step));
            for (int64_t n = max_i64(0, ceil_div(y - ay->to, ay->to_step)); n < end; n++) {
                for (int64_t b = 0; b < p->axis_count[1]; b++) {
                    run_line(p, ay, n, &p->axes[1][b], in - lines.first * p->pitch * LANES, weights,
                             out + (ay->to + n * ay->to_step - y) * p->out[1] * LANES);
                }
            }
        }
        store_lines(p->isa, out, p->out_last, p->channels, lanes, p->out, y, count, to);
    }
}

static void run_range(const void *context, wefti_range_t range)
{
    const depthwise_job_t *job = context;
    for (int64_t i = range.from; i < range.to; i++) {
        run_block(job, job->scratch + range.part * job->pass->thread_elems, i / job->blocks,
                  i % job->blocks * LANES);
    }
}

void wefti_depthwise_run(const wefti_depthwise_t *p, const float *source, const float *weights,
                         const float *bias, float *dst, float *scratch)
{
    const int64_t blocks = (p->channels + LANES - 1) / LANES;
    const depthwise_job_t job = {.pass = p,
                                 .source = source,
                                 .weights = weights,
                                 .bias = bias,
                                 .dst = dst,
                                 .scratch = scratch,
                                 .blocks = blocks};
    wefti_parallel_for(p->threads, p->images * blocks, 1, run_range, &job);
}

/* The gradients of some adjacent taps from one line of outputs. */
typedef struct taps {
    const float *source, *dy; /* of output 0; source of the first tap */
    float *sums;
    int64_t tap_step, source_step, outputs;
    int count;
} taps_t;

WEFTI_INLINE void add_taps(const taps_t *t, const int count)
{
    vector_t even[MOST_TAPS], odd[MOST_TAPS];
    int64_t n = 0;
#pragma GCC unroll 5
    for (int k = 0; k < count; k++) {
        even[k] = odd[k] = (vector_t){0};
    }
    for (; n + 2 <= t->outputs; n += 2) {
        const vector_t dy = *(const vector_t *)(t->dy + n * LANES);
        const vector_t next = *(const vector_t *)(t->dy + (n + 1) * LANES);
        const float *source = t->source + n * t->source_step;
#pragma GCC unroll 5
        for (int k = 0; k < count; k++) {
            const float *tap = source + k * t->tap_step;
            even[k] += *(const vector_t *)tap * dy;
            odd[k] += *(const vector_t *)(tap + t->source_step) * next;
        }
    }
    if (n < t->outputs) {
        const vector_t dy = *(const vector_t *)(t->dy + n * LANES);
#pragma GCC unroll 5
        for (int k = 0; k < count; k++) {
            even[k] += *(const vector_t *)(t->source + n * t->source_step + k * t->tap_step) * dy;
        }
    }
#pragma GCC unroll 5
    for (int k = 0; k < count; k++) {
        *(vector_t *)(t->sums + k * LANES) += even[k] + odd[k];
    }
}

WEFTI_INLINE void run_taps_body(const taps_t *t)
{
    switch (t->count) {
    case 1:
        add_taps(t, 1);
        break;
    case 2:
        add_taps(t, 2);
        break;
    case 3:
        add_taps(t, 3);
        break;
    case 4:
        add_taps(t, 4);
        break;
    default:
        add_taps(t, MOST_TAPS);
        break;
    }
}
WEFTI_CLONES(run_taps, (const taps_t *taps), (taps));

/* Line y of dY: adds to the gradients of all taps. */
static void add_line(const wefti_depthwise_t *p, const float *in, const float *dy, int64_t y,
                     float *sums)
{
    const wefti_depthwise_axis_t *ay = &p->axes[0][0], *ax = &p->axes[1][0];
    taps_t t = {.dy = dy, .tap_step = ax->step * LANES, .outputs = ax->count};
    int64_t from, to;
    valid_taps(ay, p->source[0], y, &from, &to);
    t.source_step = ax->source_step * LANES;
    for (int64_t ky = from; ky < to; ky++) {
        const int64_t line = ay->first + ky * ay->step + y * ay->source_step;
        const float *source = in + (line * p->pitch + p->zeros + ax->first) * LANES;
        for (int64_t kx = 0; kx < ax->taps; kx += t.count) {
            t.count = (int)min_i64(MOST_TAPS, ax->taps - kx);
            t.source = source + kx * t.tap_step;
            t.sums = sums + (ky * p->kernel[1] + kx) * LANES;
            run_taps[p->isa](&t);
        }
    }
}

static void dw_block(const depthwise_job_t *job, float *scratch, int64_t channel)
{
    const wefti_depthwise_t *p = job->pass;
    const int lanes = (int)min_i64(LANES, p->channels - channel);
    const int64_t taps = p->kernel[0] * p->kernel[1];
    const int64_t x_area = p->source[0] * p->source[1], dy_area = p->out[0] * p->out[1];
    float *in = scratch, *dys = in + p->source_elems, *sums = dys + p->band * p->out[1] * LANES;
    const vector_t one = (vector_t){0} + 1;
    memset(sums, 0, (size_t)(taps + 1) * LANES * sizeof *sums);
    for (int64_t i = 0; i < p->images; i++) {
        const float *x =
            job->source + i * p->channels * x_area + channel * (p->source_last ? 1 : x_area);
        const float *dy =
            job->weights + i * p->channels * dy_area + channel * (p->out_last ? 1 : dy_area);
        for (int64_t y = 0; y < p->out[0]; y += p->band) {
            const int64_t count = min_i64(p->band, p->out[0] - y);
            const lines_t lines = lines_of(p, y, count);
            load_lines(p->isa, x, p->source_last, p->channels, lanes, p->source, lines, in);
            spread_lines(p, lines.count, in);
            load_lines(p->isa, dy, p->out_last, p->channels, lanes, p->out, (lines_t){y, count},
                       dys);
            for (int64_t n = 0; n < count; n++) {
                const float *line = dys + n * p->out[1] * LANES;
                add_line(p, in - lines.first * p->pitch * LANES, line, y + n, sums);
                const taps_t ones = {.source = (const float *)&one,
                                     .dy = line,
                                     .sums = sums + taps * LANES,
                                     .outputs = p->out[1],
                                     .count = 1};
                run_taps[p->isa](&ones);
            }
        }
    }
    wefti_from_lanes(p->isa)(sums, LANES, lanes, taps, 0, job->dst + channel * taps, taps);
    if (job->db != NULL) {
        memcpy(job->db + channel, sums + taps * LANES, (size_t)lanes * sizeof *sums);
    }
}

static void dw_range(const void *context, wefti_range_t range)
{
    const depthwise_job_t *job = context;
    for (int64_t i = range.from; i < range.to; i++) {
        dw_block(job, job->scratch + range.part * job->pass->thread_elems, i * LANES);
    }
}

void wefti_depthwise_dw_run(const wefti_depthwise_t *p, const float *x, const float *dy, float *dw,
                            float *db, float *scratch)
{
    const int64_t blocks = (p->channels + LANES - 1) / LANES;
    const depthwise_job_t job = {.pass = p,
                                 .source = x,
                                 .weights = dy,
                                 .dst = dw,
                                 .db = db,
                                 .scratch = scratch,
                                 .blocks = blocks};
    wefti_parallel_for(p->threads, blocks, 1, dw_range, &job);
}
