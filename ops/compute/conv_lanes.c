/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/conv_lanes.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define LANES WEFTI_DOT_LANES
#define MOST_BYTES (INT64_C(1) << 20) /* of planes, so that they stay in the second-level cache */
#define CHAIN 512                     /* products of one chain at most */
/* What moving an element costs, in products: copying a line into planes, to lanes, and back. */
#define COPY 6
#define TO_LANES 8
#define FROM_LANES 9

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t value)
{
    return (value + LANES - 1) / LANES * LANES;
}

/* dims below 2^24 each (wefti_conv_describe), so three of them may overflow: in double. */
static bool fits(const wefti_conv_t *c, double planes, double sums)
{
    return c->groups == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->images >= LANES &&
           (planes + sums) * LANES * sizeof(float) <= (double)MOST_BYTES;
}

/* Products that the form of conv_f32.h computes for one that counts. */
static double waste(const int64_t out[2], const int64_t width)
{
    return (double)((out[0] - 1) * width + out[1] + LANES / 2) / ((double)out[0] * (double)out[1]);
}

wefti_lane_planes_t wefti_lanes_input_planes(const wefti_conv_t *c)
{
    wefti_lane_planes_t p = {.channels = c->in_channels, .last = c->in_last};
    for (int d = 0; d < 2; d++) {
        p.source[d] = c->in[d];
        p.size[d] = c->out[d] + (c->kernel[d] - 1) * c->dilation[d];
        p.shift[d] = c->pad[d];
    }
    return p;
}

static wefti_lane_planes_t gradient_planes(const wefti_conv_t *c)
{
    wefti_lane_planes_t p = {.channels = c->out_channels, .last = c->out_last};
    for (int d = 0; d < 2; d++) {
        p.source[d] = c->out[d];
        p.size[d] = c->in[d] + (c->kernel[d] - 1) * c->dilation[d];
        p.shift[d] = (c->kernel[d] - 1) * c->dilation[d] - c->pad[d];
    }
    return p;
}

static bool inside(const wefti_lane_planes_t *p)
{
    return p->shift[0] >= 0 && p->shift[1] >= 0 && p->shift[0] + p->source[0] <= p->size[0] &&
           p->shift[1] + p->source[1] <= p->size[1];
}

static double area(const int64_t size[2])
{
    return (double)size[0] * (double)size[1];
}

static double taps(const wefti_conv_t *c)
{
    return (double)c->kernel[0] * (double)c->kernel[1] * (double)c->in_channels *
           (double)c->out_channels;
}

/*
 * Is the work of the other form, per image, more than that of this one? products count; the other
 * form does wasted as many; used is the share that lies inside the image; in and out are elements.
 */
static bool pays(const wefti_conv_t *c, double products, double wasted, double used, double in,
                 double out)
{
    const double lanes = (double)round_up(c->images) / (double)c->images;
    return products * wasted + COPY * (in + out) >
           (products * used + TO_LANES * in + FROM_LANES * out) * lanes;
}

bool wefti_conv_lanes_fit_forward(const wefti_conv_t *c)
{
    const wefti_lane_planes_t p = wefti_lanes_input_planes(c);
    const double in = (double)c->in_channels * area(c->in), out = area(c->out);
    const double sums = (double)c->out_channels * out;
    return inside(&p) && fits(c, (double)p.channels * area(p.size), sums) &&
           pays(c, taps(c) * out, waste(c->out, p.size[1]), 1, in, sums);
}

bool wefti_conv_lanes_fit_data_grad(const wefti_conv_t *c)
{
    const wefti_lane_planes_t p = gradient_planes(c);
    const double in = area(c->in), out = (double)c->out_channels * area(c->out);
    const double sums = (double)c->in_channels * in;
    /* Taps outside are left out by line and by a few columns together. */
    const double used = c->out[0] < c->in[0] ? 1.2 * (double)c->out[0] / (double)c->in[0] : 1;
    return inside(&p) && fits(c, (double)p.channels * area(p.size), sums) &&
           pays(c, taps(c) * in, waste(c->in, p.size[1]), used < 1 ? used : 1, out, sums);
}

bool wefti_conv_lanes_fit_dw(const wefti_conv_t *c)
{
    const wefti_lane_planes_t p = wefti_lanes_input_planes(c);
    const double in = (double)c->in_channels * area(c->in);
    const double out = (double)c->out_channels * area(c->out);
    return inside(&p) && fits(c, ((double)p.channels + 1) * area(p.size), out) &&
           taps(c) + (double)c->out_channels <= (double)(MOST_BYTES / LANES) &&
           pays(c, taps(c) * area(c->out), waste(c->out, p.size[1]), 1, in + out, 0);
}

void wefti_lanes_fill(const wefti_lane_planes_t *p, wefti_to_lanes_fn to_lanes, const float *image,
                      int64_t images, float *planes)
{
    const int64_t pixels = p->source[0] * p->source[1], stride = p->channels * pixels;
    float *corner = planes + (p->shift[0] * p->size[1] + p->shift[1]) * LANES;
    if (p->last) {
        for (int64_t i = 0; i < pixels; i++) {
            to_lanes(image + i * p->channels, stride, (int)images, p->channels,
                     corner + (i / p->source[1] * p->size[1] + i % p->source[1]) * LANES,
                     wefti_lane_plane_elems(p));
        }
        return;
    }
    const bool whole = p->source[1] == p->size[1]; /* lines touch: all are one */
    const int64_t lines = whole ? 1 : p->source[0], length = whole ? pixels : p->source[1];
    for (int64_t c = 0; c < p->channels; c++) {
        for (int64_t y = 0; y < lines; y++) {
            to_lanes(image + c * pixels + y * length, stride, (int)images, length,
                     corner + c * wefti_lane_plane_elems(p) + y * p->size[1] * LANES, LANES);
        }
    }
}

/* sums[row][position][lane] to images. */
static void drain(const wefti_conv_lanes_t *pass, const float *sums, const float *bias,
                  int64_t images, float *image)
{
    const wefti_from_lanes_fn from_lanes = wefti_from_lanes(pass->isa);
    const int64_t pixels = pass->out[0] * pass->out[1], stride = pass->rows * pixels;
    for (int64_t r = 0; r < pass->rows; r++) {
        const float add = bias == NULL ? 0 : bias[r];
        if (!pass->out_last) {
            from_lanes(sums + r * pixels * LANES, LANES, (int)images, pixels, add,
                       image + r * pixels, stride);
            continue;
        }
        for (int64_t i = 0; i < pixels; i++) {
            from_lanes(sums + (r * pixels + i) * LANES, LANES, (int)images, 1, add,
                       image + i * pass->rows + r, stride);
        }
    }
}

weft_status_t wefti_conv_lanes_plan(const wefti_conv_t *c, bool data_grad, wefti_conv_lanes_t *pass)
{
    const int64_t channels = data_grad ? c->out_channels : c->in_channels;
    *pass =
        (wefti_conv_lanes_t){.planes = data_grad ? gradient_planes(c) : wefti_lanes_input_planes(c),
                             .images = c->images,
                             .rows = data_grad ? c->in_channels : c->out_channels,
                             .out_last = data_grad ? c->in_last : c->out_last,
                             .mirrored = data_grad,
                             .isa = c->isa,
                             .threads = c->threads};
    for (int d = 0; d < 2; d++) {
        pass->kernel[d] = c->kernel[d];
        pass->dilation[d] = c->dilation[d];
        pass->out[d] = data_grad ? c->in[d] : c->out[d];
    }
    const int64_t k = channels * c->kernel[0] * c->kernel[1];
    pass->weight_elems = round_up(pass->rows * k);
    pass->thread_elems = channels * wefti_lane_plane_elems(&pass->planes) +
                         pass->rows * pass->out[0] * pass->out[1] * LANES;
    pass->scratch_elems = pass->weight_elems + pass->thread_elems * pass->threads;
    pass->at = wefti_alloc(NULL, (size_t)k * sizeof *pass->at);
    if (pass->at == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    int32_t *at = pass->at;
    for (int64_t ky = 0; ky < c->kernel[0]; ky++) {
        for (int64_t kx = 0; kx < c->kernel[1]; kx++) {
            for (int64_t ch = 0; ch < channels; ch++) {
                *at++ =
                    (int32_t)(ch * wefti_lane_plane_elems(&pass->planes) +
                              (ky * c->dilation[0] * pass->planes.size[1] + kx * c->dilation[1]) *
                                  LANES);
            }
        }
    }
    return WEFT_OK;
}

/* To [row][ky][kx][channel]; from [row][channel][ky][kx], or mirrored from [channel][row][ky][kx].
 */
static void turn_weights(const wefti_conv_lanes_t *pass, const float *w, float *dst)
{
    const int64_t channels = pass->planes.channels, area_k = pass->kernel[0] * pass->kernel[1];
    for (int64_t r = 0; r < pass->rows; r++) {
        for (int64_t t = 0; t < area_k; t++) {
            for (int64_t ch = 0; ch < channels; ch++) {
                *dst++ = pass->mirrored ? w[(ch * pass->rows + r) * area_k + area_k - 1 - t]
                                        : w[(r * channels + ch) * area_k + t];
            }
        }
    }
}

/* Taps [from, to) of one direction that any of the outputs [first, last] finds inside the source.
 */
static void valid_taps(const wefti_conv_lanes_t *pass, int d, int64_t first, int64_t last,
                       int64_t *from, int64_t *to)
{
    const int64_t shift = pass->planes.shift[d], step = pass->dilation[d];
    const int64_t behind = shift + pass->planes.source[d]; /* position after the source */
    *from = last < shift ? (shift - last + step - 1) / step : 0;
    *to = first < behind ? min_i64(pass->kernel[d], (behind - first + step - 1) / step) : 0;
    *from = min_i64(*from, *to);
}

/* One tile: all rows, columns [x, x + width) of line y. */
static void run_tile(const wefti_conv_lanes_t *pass, const wefti_gemm_kernel_t *kernel,
                     const float *weights, const float *planes, int64_t y, int64_t x, int64_t width,
                     float *sums)
{
    const int64_t channels = pass->planes.channels, line = pass->kernel[1] * channels;
    int64_t ky, ky_end, kx, kx_end;
    valid_taps(pass, 0, y, y, &ky, &ky_end);
    valid_taps(pass, 1, x, x + width - 1, &kx, &kx_end);
    wefti_gemm_tile_t t = {.a_row = pass->kernel[0] * line, .a_k = 1};
    t.b = planes + (y * pass->planes.size[1] + x) * LANES;
    t.c = sums + (y * pass->out[1] + x) * LANES;
    t.ldc = pass->out[0] * pass->out[1] * LANES;
    t.rows = (int)pass->rows; /* these two are read where all is one tile */
    t.cols = (int)(width * LANES);
    const int64_t vectors = width * LANES / kernel->lanes;
    const int64_t most = vectors <= kernel->max_vectors ? kernel->max_rows[vectors] : 0;
    /* Whole lines of taps are one run. */
    const bool whole = kx == 0 && kx_end == pass->kernel[1];
    const int64_t runs = whole ? (ky < ky_end) : ky_end - ky;
    for (int64_t r = 0; r < runs; r++) {
        int64_t k = (ky + r) * line + kx * channels;
        const int64_t end = whole ? ky_end * line : (ky + r) * line + kx_end * channels;
        for (; k < end; k += t.k_count) {
            t.k_count = min_i64(end - k, CHAIN);
            t.a = weights + k;
            t.b_at = pass->at + k;
            if (pass->rows <= most) {
                kernel->run(&t);
            } else {
                wefti_gemm_tiles(kernel, &t, pass->rows, width * LANES);
            }
            t.add = true;
        }
    }
    for (int64_t r = 0; r < pass->rows && !t.add; r++) { /* nothing but padding */
        memset(t.c + r * t.ldc, 0, (size_t)(width * LANES) * sizeof *t.c);
    }
}

static void run_blocks(const wefti_conv_lanes_t *pass, const float *source, const float *weights,
                       const float *bias, float *dst, float *planes, int64_t begin, int64_t end)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(pass->isa);
    const wefti_lane_planes_t *p = &pass->planes;
    const int64_t elems = p->channels * wefti_lane_plane_elems(p), step = pass->rows <= 6 ? 4 : 3;
    float *sums = planes + elems;
    memset(planes, 0, (size_t)elems * sizeof *planes);
    for (int64_t first = begin * LANES; first < end * LANES; first += LANES) {
        const int64_t images = min_i64(LANES, pass->images - first);
        wefti_lanes_fill(p, wefti_to_lanes(pass->isa),
                         source + first * p->channels * p->source[0] * p->source[1], images,
                         planes);
        for (int64_t y = 0; y < pass->out[0]; y++) {
            for (int64_t x = 0; x < pass->out[1]; x += step) {
                run_tile(pass, kernel, weights, planes, y, x, min_i64(step, pass->out[1] - x),
                         sums);
            }
        }
        drain(pass, sums, bias, images, dst + first * pass->rows * pass->out[0] * pass->out[1]);
    }
}

typedef struct lanes_job {
    const wefti_conv_lanes_t *pass;
    const float *source, *weights, *bias;
    float *dst, *planes;
    int64_t blocks, parts;
} lanes_job_t;

static void run_lanes_part(const void *context, int64_t part)
{
    const lanes_job_t *job = context;
    run_blocks(job->pass, job->source, job->weights, job->bias, job->dst,
               job->planes + part * job->pass->thread_elems, job->blocks * part / job->parts,
               job->blocks * (part + 1) / job->parts);
}

void wefti_conv_lanes_run(const wefti_conv_lanes_t *pass, const float *source, const float *weights,
                          const float *bias, float *dst, float *scratch)
{
    const int64_t blocks = (pass->images + LANES - 1) / LANES;
    const int64_t parts = min_i64(blocks, pass->threads);
    float *planes = scratch + pass->weight_elems;
    turn_weights(pass, weights, scratch);
    const lanes_job_t job = {pass, source, scratch, bias,
                             dst,  planes, blocks,  parts > 1 ? parts : 1};
    wefti_parallel(job.parts, run_lanes_part, &job);
}
