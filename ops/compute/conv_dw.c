/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient of weights and bias.
 *
 * Packed: sums[k][o] is a product of panel[k][p], as the forward pass packs it, with dY turned to
 * [p][o]; the last k is a row of ones, for the bias. Chains are pieces of the outputs of a block of
 * images. Otherwise every sum has sixteen lanes (wefti_dot_tile_t), which are added at the end.
 */
#include "ops/compute/conv_f32.h"
#include "ops/compute/halves.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define VECTOR WEFTI_DOT_LANES
#define PACKED_ROWS 4
#define BLOCK_OUTPUTS 512 /* small images share blocks, so that chains are long */
#define DOT_IMAGES 8      /* images of one chain of dot products */
#define BLOCK_TAPS 192
#define PANEL_LD (WEFTI_PACKED_COLS + VECTOR)

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t value)
{
    return (value + VECTOR - 1) / VECTOR * VECTOR;
}

static void plan_packed(const wefti_conv_t *c, wefti_conv_dw_t *dw)
{
    const int64_t area = c->out[0] * c->out[1];
    dw->block = min_i64(c->images, (BLOCK_OUTPUTS + area - 1) / area);
    const int64_t pieces = (dw->block * area + WEFTI_PACKED_COLS - 1) / WEFTI_PACKED_COLS;
    dw->piece = ((dw->block * area + pieces - 1) / pieces + 3) / 4 * 4;
    dw->lanes = round_up(dw->rows);
    dw->dy = (wefti_planes_t){.last = c->out_last};
    dw->positions = (wefti_positions_t){.count = {c->out[0], c->out[1]},
                                        .image_elems = wefti_planes_elems(&dw->x)};
    dw->planes_elems = dw->block * wefti_planes_elems(&dw->x);
    dw->sums_elems = dw->taps * dw->lanes;
    /* X's planes, dY turned, sums, and the panel of each thread. */
    dw->scratch_elems = dw->planes_elems + dw->block * area * dw->lanes + dw->sums_elems +
                        dw->threads * (BLOCK_TAPS * PANEL_LD + VECTOR);
}

static void plan_dots(const wefti_conv_t *c, wefti_conv_dw_t *dw)
{
    dw->vectors = round_up((c->out[0] - 1) * dw->x.size[1] + c->out[1]) / VECTOR;
    /* Lines as long as X's, so that one position means the same in both; whole vectors of zeros
     * after the last. */
    const int64_t lines = (dw->vectors * VECTOR + dw->x.size[1] - 1) / dw->x.size[1];
    dw->dy = (wefti_planes_t){.channels = dw->rows,
                              .all_channels = c->out_channels,
                              .source = {c->out[0], c->out[1]},
                              .phase = {1, 1},
                              .dilation = {1, 1},
                              .phases = {1, 1},
                              .size = {lines > c->out[0] ? lines : c->out[0], dw->x.size[1]},
                              .last = c->out_last,
                              .dtype = c->dtype,
                              .isa = c->isa};
    dw->block = DOT_IMAGES;
    dw->sums_elems = dw->rows * dw->taps * VECTOR;
    /* X's planes and a plane of ones, then dY's planes; then the sums. */
    dw->scratch_elems = DOT_IMAGES * (wefti_planes_elems(&dw->x) + wefti_planes_elems(&dw->dy) +
                                      dw->vectors * VECTOR) +
                        dw->sums_elems;
}

weft_status_t wefti_conv_dw_plan(const wefti_conv_t *c, wefti_conv_dw_t *dw)
{
    *dw = (wefti_conv_dw_t){.x = wefti_planes_of_input(c),
                            .images = c->images,
                            .groups = c->groups,
                            .rows = c->out_channels / c->groups,
                            .isa = c->isa,
                            .threads = c->threads};
    const int64_t k = dw->x.channels * c->kernel[0] * c->kernel[1];
    dw->taps = k + 1;
    WEFT_RETURN_IF_ERROR(wefti_planes_check(&dw->x));
    dw->packed = dw->rows >= PACKED_ROWS;
    if (dw->packed) {
        plan_packed(c, dw);
    } else {
        plan_dots(c, dw);
        WEFT_RETURN_IF_ERROR(wefti_planes_check(&dw->dy));
    }
    if (dw->sums_elems > INT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the weights are too large");
    }
    dw->at = wefti_alloc(NULL, (size_t)dw->taps * sizeof *dw->at);
    if (dw->at == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (int64_t i = 0; i < k; i++) {
        const int64_t x = i % c->kernel[1], y = i / c->kernel[1] % c->kernel[0];
        dw->at[i] = (int32_t)wefti_planes_tap(&dw->x, i / (c->kernel[0] * c->kernel[1]), y, x);
    }
    dw->at[k] = (int32_t)wefti_planes_elems(&dw->x);
    return WEFT_OK;
}

void wefti_conv_dw_deinit(wefti_conv_dw_t *dw)
{
    wefti_free(NULL, dw->at);
    dw->at = NULL;
}

/* One call of a kernel, and what its parts share. */
typedef struct dw_job {
    const wefti_conv_dw_t *dw;
    const void *x, *dy; /* of the block's first image and the group's first channel */
    float *xs, *dys, *sums, *panels;
    int64_t group, images, parts;
} dw_job_t;

/* Columns of sums that are computed together; see next_width of gemm_f32.c. */
static int64_t panel_rows(int64_t left)
{
    return left <= 64 ? left : 48;
}

/* [rows][run] of a tensor to [run][rows]. */
static void turn(const wefti_conv_dw_t *dw, const void *from, int64_t area, int64_t rows,
                 int64_t run, float *dst, int64_t ld)
{
    enum { COLS = 64, ROWS = 64 }; /* as panel_rows */
    float wide[ROWS * COLS];
    if (dw->x.dtype == WEFT_DTYPE_F32) {
        wefti_transpose_f32(dw->isa, from, area, rows, run, dst, ld);
        return;
    }
    for (int64_t at = 0, take; at < run; at += take) {
        take = min_i64(COLS, run - at);
        for (int64_t r = 0; r < rows; r++) {
            wefti_halves_widen(dw->isa, dw->x.dtype,
                               wefti_conv_at(dw->x.dtype, from, r * area + at), take,
                               wide + r * COLS);
        }
        wefti_transpose_f32(dw->isa, wide, COLS, rows, take, dst + at * ld, ld);
    }
}

/* dY of the block, piece by piece, and in each panel by panel: [outputs of the piece][lanes]. A
 * part has some of the panels. */
static void turn_dy(const dw_job_t *job, int64_t part)
{
    const wefti_conv_dw_t *dw = job->dw;
    const int64_t area = dw->positions.count[0] * dw->positions.count[1];
    const int64_t outputs = job->images * area, channels = dw->groups * dw->rows;
    int64_t rows, run;
    for (int64_t r = 0, n = 0; r < dw->rows; r += rows, n++) {
        rows = panel_rows(dw->rows - r);
        const int64_t ld = round_up(rows), channel = job->group * dw->rows + r;
        for (int64_t p = 0; p < outputs && n % job->parts == part; p += run) {
            const int64_t first = p / dw->piece * dw->piece;
            const int64_t end = min_i64(first + dw->piece, outputs);
            const int64_t image = p / area * channels * area;
            float *dst = job->dys + first * dw->lanes + (end - first) * r + (p - first) * ld;
            run = min_i64(area - p % area, end - p);
            if (!dw->dy.last) {
                turn(dw, wefti_conv_at(dw->x.dtype, job->dy, image + channel * area + p % area),
                     area, rows, run, dst, ld);
                continue;
            }
            for (int64_t i = 0; i < run; i++) {
                memcpy(dst + i * ld,
                       (const float *)job->dy + image + (p % area + i) * channels + channel,
                       (size_t)rows * sizeof *dst);
            }
        }
    }
}

/* The block's planes and dY: a part has some channels of each. */
static void fill_part(const void *context, int64_t part)
{
    const dw_job_t *job = context;
    const wefti_conv_dw_t *dw = job->dw;
    const int64_t begin = dw->x.channels * part / job->parts;
    const int64_t count = dw->x.channels * (part + 1) / job->parts - begin;
    const int64_t image = dw->x.all_channels * dw->x.source[0] * dw->x.source[1];
    const int64_t plane = dw->x.phases[0] * dw->x.phases[1] * wefti_planes_stride(&dw->x);
    for (int64_t i = 0; i < job->images; i++) {
        wefti_planes_fill(&dw->x, wefti_conv_at(dw->x.dtype, job->x, i * image),
                          job->group * dw->x.channels + begin, count,
                          job->xs + i * wefti_planes_elems(&dw->x) + begin * plane);
    }
    turn_dy(job, part);
}

/* Taps begin .. end - 1, of which the last may be the one that is always 1. */
static void pack_taps(const dw_job_t *job, int64_t begin, int64_t end, int64_t first, int64_t piece,
                      float *panel)
{
    const wefti_conv_dw_t *dw = job->dw;
    const int64_t real = min_i64(end, dw->taps - 1) - begin;
    wefti_pack_positions(&dw->x, &dw->positions, job->xs, dw->at + begin, real, first, piece, panel,
                         PANEL_LD);
    for (int64_t p = 0; p < piece && real < end - begin; p++) {
        panel[real * PANEL_LD + p] = 1;
    }
}

static void multiply_part(const void *context, int64_t part)
{
    const dw_job_t *job = context;
    const wefti_conv_dw_t *dw = job->dw;
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(dw->isa);
    const int64_t begin = dw->taps * part / job->parts, end = dw->taps * (part + 1) / job->parts;
    const int64_t outputs = job->images * dw->positions.count[0] * dw->positions.count[1];
    float *panel = job->panels + part * (BLOCK_TAPS * PANEL_LD + VECTOR);
    for (int64_t first = 0; first < outputs; first += dw->piece) {
        const int64_t piece = min_i64(dw->piece, outputs - first);
        for (int64_t k = begin; k < end; k += BLOCK_TAPS) {
            const int64_t taps = min_i64(BLOCK_TAPS, end - k);
            pack_taps(job, k, k + taps, first, piece, panel);
            wefti_gemm_tile_t t = {.a = panel, .a_row = PANEL_LD, .a_k = 1, .ldc = dw->lanes};
            t.b = job->dys + first * dw->lanes;
            t.k_count = piece;
            t.add = true;
            for (int64_t r = 0; r < dw->rows; r += panel_rows(dw->rows - r)) {
                t.b_k = round_up(panel_rows(dw->rows - r));
                t.c = job->sums + k * dw->lanes + r;
                wefti_gemm_tiles(kernel, &t, taps, t.b_k);
                t.b += piece * t.b_k;
            }
        }
    }
}

static void run_packed(const wefti_conv_dw_t *dw, const void *x, const void *dy, float *dw_out,
                       float *db, float *scratch)
{
    const int64_t area = dw->positions.count[0] * dw->positions.count[1], k = dw->taps - 1;
    const int64_t x_image = dw->x.all_channels * dw->x.source[0] * dw->x.source[1];
    const int64_t dy_image = dw->groups * dw->rows * area;
    dw_job_t job = {.dw = dw, .xs = scratch, .parts = dw->threads > 1 ? dw->threads : 1};
    job.dys = job.xs + dw->planes_elems;
    job.sums = job.dys + dw->block * area * dw->lanes;
    job.panels = job.sums + dw->sums_elems;
    memset(scratch, 0, (size_t)dw->planes_elems * sizeof *scratch);
    for (; job.group < dw->groups; job.group++) {
        memset(job.sums, 0, (size_t)dw->sums_elems * sizeof *job.sums);
        for (int64_t first = 0; first < dw->images; first += dw->block) {
            job.images = min_i64(dw->block, dw->images - first);
            job.x = wefti_conv_at(dw->x.dtype, x, first * x_image);
            job.dy = wefti_conv_at(dw->x.dtype, dy, first * dy_image);
            wefti_parallel(job.parts, fill_part, &job);
            wefti_parallel(job.parts, multiply_part, &job);
        }
        wefti_transpose_f32(dw->isa, job.sums, dw->lanes, k, dw->rows,
                            dw_out + job.group * dw->rows * k, k);
        if (db != NULL) {
            memcpy(db + job.group * dw->rows, job.sums + k * dw->lanes,
                   (size_t)dw->rows * sizeof *db);
        }
    }
}

typedef struct dot_job {
    const wefti_conv_dw_t *dw;
    const wefti_dot_tile_t *whole;
    int64_t parts;
} dot_job_t;

/* All rows of a few taps. */
static void dot_column(const wefti_conv_dw_t *dw, const wefti_gemm_kernel_t *kernel,
                       const wefti_dot_tile_t *whole, int64_t first_tap)
{
    wefti_dot_tile_t t = *whole;
    t.cols = (int)min_i64(dw->taps - first_tap, kernel->dot_cols);
    t.b_at = whole->b_at + first_tap;
    for (int64_t r = 0; r < dw->rows; r += t.rows) {
        t.rows = (int)min_i64(dw->rows - r, kernel->dot_rows);
        t.a = whole->a + r * whole->a_row;
        t.sums = whole->sums + (r * dw->taps + first_tap) * VECTOR;
        kernel->dot(&t);
    }
}

static void dot_part(const void *context, int64_t part)
{
    const dot_job_t *job = context;
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(job->dw->isa);
    const int64_t step = kernel->dot_cols, columns = (job->dw->taps + step - 1) / step;
    const int64_t end = columns * (part + 1) / job->parts;
    for (int64_t column = columns * part / job->parts; column < end; column++) {
        dot_column(job->dw, kernel, job->whole, column * step);
    }
}

/* Sixteen lanes to one, in the order of a tree. */
static float sum_lanes(float *lanes)
{
    for (int width = VECTOR / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

static void run_dots(const wefti_conv_dw_t *dw, const void *x, const void *dy, float *dw_out,
                     float *db, float *scratch)
{
    const int64_t ones = dw->vectors * VECTOR;
    const int64_t x_elems = wefti_planes_elems(&dw->x), dy_elems = wefti_planes_elems(&dw->dy);
    const int64_t x_image = dw->x.all_channels * dw->x.source[0] * dw->x.source[1];
    const int64_t dy_image = dw->dy.all_channels * dw->dy.source[0] * dw->dy.source[1];
    float *xs = scratch, *dys = xs + (x_elems + ones) * DOT_IMAGES;
    float *sums = dys + dy_elems * DOT_IMAGES;
    memset(scratch, 0, (size_t)(sums - scratch) * sizeof *scratch);
    for (int64_t i = 0; i < DOT_IMAGES; i++) {
        for (int64_t p = 0; p < ones; p++) {
            xs[i * (x_elems + ones) + x_elems + p] = 1;
        }
    }
    for (int64_t g = 0; g < dw->groups; g++) {
        memset(sums, 0, (size_t)dw->sums_elems * sizeof *sums);
        for (int64_t first = 0; first < dw->images; first += DOT_IMAGES) {
            wefti_dot_tile_t t = {.a = dys,
                                  .a_row = wefti_planes_stride(&dw->dy),
                                  .a_image = dy_elems,
                                  .b = xs,
                                  .b_image = x_elems + ones,
                                  .b_at = dw->at,
                                  .sums = sums,
                                  .sums_row = dw->taps,
                                  .vectors = dw->vectors,
                                  .images = min_i64(dw->images - first, DOT_IMAGES)};
            for (int64_t i = 0; i < t.images; i++) {
                wefti_planes_fill(&dw->x, wefti_conv_at(dw->x.dtype, x, (first + i) * x_image),
                                  g * dw->x.channels, dw->x.channels, xs + i * t.b_image);
                wefti_planes_fill(&dw->dy, wefti_conv_at(dw->x.dtype, dy, (first + i) * dy_image),
                                  g * dw->rows, dw->rows, dys + i * dy_elems);
            }
            const int64_t step = wefti_gemm_kernel(dw->isa)->dot_cols;
            const int64_t parts = min_i64((dw->taps + step - 1) / step, dw->threads);
            const dot_job_t job = {dw, &t, parts > 1 ? parts : 1};
            wefti_parallel(job.parts, dot_part, &job);
        }
        for (int64_t r = 0; r < dw->rows; r++) {
            float *row = sums + r * dw->taps * VECTOR;
            for (int64_t k = 0; k + 1 < dw->taps; k++) {
                dw_out[(g * dw->rows + r) * (dw->taps - 1) + k] = sum_lanes(row + k * VECTOR);
            }
            if (db != NULL) {
                db[g * dw->rows + r] = sum_lanes(row + (dw->taps - 1) * VECTOR);
            }
        }
    }
}

void wefti_conv_dw_run(const wefti_conv_dw_t *dw, const void *x, const void *dy, float *dw_out,
                       float *db, float *scratch)
{
    (dw->packed ? run_packed : run_dots)(dw, x, dy, dw_out, db, scratch);
}
