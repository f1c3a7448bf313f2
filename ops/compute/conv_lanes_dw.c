/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/conv_lanes.h"

#include <string.h>

#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define LANES WEFTI_DOT_LANES

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

weft_status_t wefti_lanes_dw_plan(const wefti_conv_t *c, wefti_lanes_dw_t *dw)
{
    const int64_t area_k = c->kernel[0] * c->kernel[1];
    *dw = (wefti_lanes_dw_t){.x = wefti_lanes_input_planes(c),
                             .images = c->images,
                             .isa = c->isa,
                             .threads = c->threads};
    dw->dy = (wefti_lane_planes_t){.channels = c->out_channels, .last = c->out_last};
    for (int d = 0; d < 2; d++) {
        dw->dy.source[d] = dw->dy.size[d] = c->out[d];
    }
    dw->taps = c->in_channels * area_k + 1;
    /* Six lines of dY stay in the first-level cache beside one of X. */
    dw->lines = max_i64(1, min_i64(c->out[0], 320 / max_i64(6 * c->out[1], 1)));
    dw->scratch_elems = (c->in_channels + 1) * wefti_lane_plane_elems(&dw->x) +
                        c->out_channels * wefti_lane_plane_elems(&dw->dy) +
                        c->out_channels * dw->taps * LANES;
    dw->at = wefti_alloc(NULL, (size_t)dw->taps * sizeof *dw->at);
    if (dw->at == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (int64_t k = 0; k + 1 < dw->taps; k++) {
        const int64_t ky = k % area_k / c->kernel[1], kx = k % c->kernel[1];
        dw->at[k] = (int32_t)(k / area_k * wefti_lane_plane_elems(&dw->x) +
                              (ky * c->dilation[0] * dw->x.size[1] + kx * c->dilation[1]) * LANES);
    }
    dw->at[dw->taps - 1] =
        (int32_t)(c->in_channels * wefti_lane_plane_elems(&dw->x)); /* a plane of ones */
    return WEFT_OK;
}

/* Taps [begin, end) of all rows, of one block of images. */
static void dot_taps(const wefti_lanes_dw_t *dw, const float *xs, const float *dys, float *sums,
                     int64_t begin, int64_t end)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(dw->isa);
    const int64_t rows = dw->dy.channels;
    wefti_dot_tile_t t = {.a_row = wefti_lane_plane_elems(&dw->dy), .sums_row = dw->taps};
    t.a_image = dw->dy.size[1] * LANES;
    t.b_image = dw->x.size[1] * LANES;
    t.vectors = dw->dy.size[1];
    for (int64_t y = 0; y < dw->dy.size[0]; y += dw->lines) {
        t.b = xs + y * t.b_image;
        t.images = min_i64(dw->lines, dw->dy.size[0] - y);
        for (int64_t r = 0; r < rows; r += t.rows) {
            t.rows = (int)min_i64(rows - r, kernel->dot_rows);
            t.a = dys + r * t.a_row + y * t.a_image;
            for (int64_t j = begin; j < end; j += t.cols) {
                t.cols = (int)min_i64(end - j, kernel->dot_cols);
                t.b_at = dw->at + j;
                t.sums = sums + (r * dw->taps + j) * LANES;
                kernel->dot(&t);
            }
        }
    }
}

typedef struct taps_job {
    const wefti_lanes_dw_t *dw;
    const float *xs, *dys;
    float *sums;
    int64_t parts;
} taps_job_t;

static void dot_part(const void *context, int64_t part)
{
    const taps_job_t *job = context;
    dot_taps(job->dw, job->xs, job->dys, job->sums, job->dw->taps * part / job->parts,
             job->dw->taps * (part + 1) / job->parts);
}

static void dot_block(const wefti_lanes_dw_t *dw, const float *xs, const float *dys, float *sums)
{
    const int64_t parts = min_i64(dw->threads, dw->taps);
    const taps_job_t job = {dw, xs, dys, sums, parts > 1 ? parts : 1};
    wefti_parallel(job.parts, dot_part, &job);
}

static float sum_lanes(float *lanes)
{
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

void wefti_lanes_dw_run(const wefti_lanes_dw_t *dw, const float *x, const float *dy, float *dw_out,
                        float *db, float *scratch)
{
    const wefti_to_lanes_fn to_lanes = wefti_to_lanes(dw->isa);
    const int64_t x_elems = dw->x.channels * wefti_lane_plane_elems(&dw->x),
                  ones = wefti_lane_plane_elems(&dw->x);
    const int64_t dy_elems = dw->dy.channels * wefti_lane_plane_elems(&dw->dy);
    const int64_t x_image = dw->x.channels * dw->x.source[0] * dw->x.source[1];
    const int64_t rows = dw->dy.channels;
    float *xs = scratch, *dys = xs + x_elems + ones, *sums = dys + dy_elems;
    memset(xs, 0, (size_t)x_elems * sizeof *xs);
    for (int64_t i = 0; i < ones; i++) {
        xs[x_elems + i] = 1;
    }
    memset(sums, 0, (size_t)(rows * dw->taps * LANES) * sizeof *sums);
    for (int64_t first = 0; first < dw->images; first += LANES) {
        const int64_t images = min_i64(LANES, dw->images - first);
        wefti_lanes_fill(&dw->x, to_lanes, x + first * x_image, images, xs);
        wefti_lanes_fill(&dw->dy, to_lanes, dy + first * (dy_elems / LANES), images, dys);
        dot_block(dw, xs, dys, sums);
    }
    for (int64_t r = 0; r < rows; r++) {
        float *row = sums + r * dw->taps * LANES;
        for (int64_t k = 0; k + 1 < dw->taps; k++) {
            dw_out[r * (dw->taps - 1) + k] = sum_lanes(row + k * LANES);
        }
        if (db != NULL) {
            db[r] = sum_lanes(row + (dw->taps - 1) * LANES);
        }
    }
}
