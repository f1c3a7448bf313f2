/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass and the gradient of the input. */
#include "ops/compute/conv_f32.h"

#include <string.h>

#include "ops/compute/halves.h"
#include "ops/compute/support.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define VECTOR WEFTI_DOT_LANES
#define PACKED_ROWS 4                 /* fewer do not pay for panels */
#define BLOCK_ROWS 256                /* weights of a block stay in the second-level cache */
#define SUMS_ELEMS (INT64_C(1) << 16) /* of a block of rows and columns: likewise */
#define ROWS_OF_TILES 8
#define BLOCK_COLS 384 /* small images share blocks */

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t value)
{
    return (value + VECTOR - 1) / VECTOR * VECTOR;
}

static int64_t area_of(const wefti_conv_grid_t *grid)
{
    return grid->at.count[0] * grid->at.count[1];
}

/*
 * Dimension d of the grid whose first tap is tap: those inputs i for which u = i + pad is
 * (tap * dilation) % stride modulo stride. Output q - tap * dilation / stride, q = u / stride,
 * reaches them, and planes begin at the q of input 0.
 */
static void grid_dimension(const wefti_conv_t *c, int d, int64_t tap, wefti_conv_grid_t *grid)
{
    const int64_t stride = c->stride[d], phase = tap * c->dilation[d] % stride;
    const int64_t low = c->pad[d] / stride;
    const int64_t first = (c->pad[d] - phase + stride - 1) / stride; /* pad - phase > -stride */
    const int64_t last = c->pad[d] + c->in[d] - 1 - phase;
    grid->first_tap[d] = tap;
    grid->tap_step[d] = wefti_conv_tap_period(c, d);
    grid->taps[d] = (c->kernel[d] - tap + grid->tap_step[d] - 1) / grid->tap_step[d];
    grid->at.first[d] = first - low;
    grid->at.count[d] = last < 0 || last / stride < first ? 0 : last / stride - first + 1;
    grid->to[d] = first * stride + phase - c->pad[d];
}

static int64_t phases_with_taps(const wefti_conv_t *c, int d)
{
    return min_i64(c->kernel[d], wefti_conv_tap_period(c, d));
}

/* Grids and their products; offsets of dX run backwards from the first tap. */
static void make_grids(const wefti_conv_t *c, bool data_grad, wefti_conv_pass_t *pass)
{
    const wefti_planes_t *p = &pass->planes;
    const int64_t count[2] = {data_grad ? phases_with_taps(c, 0) : 1,
                              data_grad ? phases_with_taps(c, 1) : 1};
    int64_t offsets = 0;
    for (int64_t n = 0; n < count[0] * count[1]; n++) {
        wefti_conv_grid_t *grid = &pass->grids[pass->grid_count];
        const int64_t tap[2] = {n / count[1], n % count[1]};
        for (int d = 0; d < 2; d++) {
            if (data_grad) {
                grid_dimension(c, d, tap[d], grid);
            } else {
                grid->at.count[d] = c->out[d];
                grid->taps[d] = c->kernel[d];
                grid->tap_step[d] = 1;
            }
        }
        if (area_of(grid) == 0) {
            continue;
        }
        grid->at.image_elems = wefti_planes_elems(p);
        grid->k = p->channels * grid->taps[0] * grid->taps[1];
        grid->offsets = offsets;
        for (int64_t ch = 0; ch < p->channels; ch++) {
            for (int64_t t = 0; t < grid->taps[0] * grid->taps[1]; t++) {
                int64_t at[2] = {t / grid->taps[1], t % grid->taps[1]};
                for (int d = 0; d < 2; d++) {
                    at[d] = grid->first_tap[d] + at[d] * grid->tap_step[d];
                    if (data_grad) {
                        at[d] = (c->kernel[d] - 1) * c->dilation[d] / c->stride[d] -
                                at[d] * c->dilation[d] / c->stride[d];
                    }
                }
                pass->at[offsets++] = (int32_t)wefti_planes_tap(p, ch, at[0], at[1]);
            }
        }
        pass->grid_count++;
    }
    pass->whole = !data_grad || count[0] * count[1] == c->stride[0] * c->stride[1];
}

/* Positions of one image that are computed where panels are not packed: with those between lines.
 */
static int64_t unpacked(const wefti_conv_pass_t *pass, const wefti_conv_grid_t *grid)
{
    return round_up((grid->at.count[0] - 1) * pass->planes.size[1] + grid->at.count[1]);
}

/* Columns of a block of sums for so many rows. */
static int64_t block_cols(int64_t rows)
{
    const int64_t cols = SUMS_ELEMS / min_i64(rows, BLOCK_ROWS) / 48 * 48;
    return cols < 48 ? 48 : cols > BLOCK_COLS ? BLOCK_COLS : cols;
}

static weft_status_t plan_scratch(wefti_conv_pass_t *pass)
{
    int64_t sums = 0;
    for (int64_t i = 0; i < pass->grid_count && !pass->packed; i++) {
        const int64_t elems = unpacked(pass, &pass->grids[i]);
        sums = elems > sums ? elems : sums;
    }
    if (pass->rows > (INT64_C(1) << 40) / (pass->packed ? 1 : sums + 1)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the output is too large");
    }
    pass->sums_elems = pass->packed ? min_i64(pass->rows, BLOCK_ROWS) * block_cols(pass->rows) +
                                          WEFTI_GEMM_K_BLOCK * 64 + VECTOR /* sums, then a panel */
                                    : pass->rows * sums;
    pass->planes_elems = pass->block * wefti_planes_elems(&pass->planes);
    pass->thread_elems = pass->planes_elems + pass->sums_elems;
    pass->scratch_elems = pass->weight_elems + pass->thread_elems * pass->threads;
    return WEFT_OK;
}

weft_status_t wefti_conv_pass_plan(const wefti_conv_t *c, bool data_grad, wefti_conv_pass_t *pass)
{
    *pass = (wefti_conv_pass_t){
        .planes = data_grad ? wefti_planes_of_gradient(c) : wefti_planes_of_input(c),
        .images = c->images,
        .groups = c->groups,
        .rows = (data_grad ? c->in_channels : c->out_channels) / c->groups,
        .out_channels = data_grad ? c->in_channels : c->out_channels,
        .out_last = data_grad ? c->in_last : c->out_last,
        .turned = data_grad,
        .dtype = c->dtype,
        .kernel_elems = c->kernel[0] * c->kernel[1],
        .kernel_width = c->kernel[1],
        .isa = c->isa,
        .threads = c->threads,
    };
    int64_t area = 1, grids = 1;
    for (int d = 0; d < 2; d++) {
        pass->out[d] = data_grad ? c->in[d] : c->out[d];
        pass->step[d] = data_grad ? c->stride[d] : 1;
        area *= (pass->out[d] + pass->step[d] - 1) / pass->step[d];
        grids *= data_grad ? phases_with_taps(c, d) : 1;
    }
    WEFT_RETURN_IF_ERROR(wefti_planes_check(&pass->planes));
    const int64_t taps = pass->planes.channels * pass->kernel_elems;
    pass->packed = pass->rows >= PACKED_ROWS;
    pass->block = pass->packed ? min_i64(pass->images, (BLOCK_COLS + area - 1) / area) : 1;
    if (pass->planes.channels * (BLOCK_COLS + 1) > INT32_MAX) {
        pass->block = 1;
    }
    pass->weight_elems = data_grad ? round_up(taps * pass->rows * pass->groups) : 0;
    pass->at = wefti_alloc(NULL, (size_t)taps * sizeof *pass->at);
    pass->grids = wefti_alloc(NULL, (size_t)grids * sizeof *pass->grids);
    if (pass->at == NULL || pass->grids == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    make_grids(c, data_grad, pass);
    return plan_scratch(pass);
}

void wefti_conv_pass_deinit(wefti_conv_pass_t *pass)
{
    wefti_free(NULL, pass->at);
    wefti_free(NULL, pass->grids);
    pass->at = NULL;
    pass->grids = NULL;
}

const char *wefti_conv_name(weft_isa_t isa)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(isa);
    return kernel == &wefti_gemm_kernel_avx512 ? "conv:avx512"
           : kernel == &wefti_gemm_kernel_avx2 ? "conv:avx2"
                                               : "conv:portable";
}

/* [out, in, taps] of a group to [in, out, taps of the grid] for begin <= in < end. */
static void turn_weights(const wefti_conv_pass_t *pass, const wefti_conv_grid_t *grid,
                         const float *w, int64_t begin, int64_t end, float *dst)
{
    const int64_t out = pass->planes.channels, in = pass->rows, kernel = pass->kernel_elems;
    dst += begin * out * grid->taps[0] * grid->taps[1];
    if (kernel == 1) {
        wefti_transpose_f32(pass->isa, w + begin, in, out, end - begin, dst, out);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        for (int64_t o = 0; o < out; o++) {
            const float *from = w + (o * in + i) * kernel;
            for (int64_t y = 0; y < grid->taps[0]; y++) {
                const float *line =
                    from + (grid->first_tap[0] + y * grid->tap_step[0]) * pass->kernel_width;
                for (int64_t x = 0; x < grid->taps[1]; x++) {
                    *dst++ = line[grid->first_tap[1] + x * grid->tap_step[1]];
                }
            }
        }
    }
}

WEFTI_INLINE void store_run_body(const float *src, float add, int64_t count, float *dst,
                                 int64_t step)
{
    if (step == 1) { /* constants, so that these become vectors */
        for (int64_t i = 0; i < count; i++) {
            dst[i] = src[i] + add;
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            dst[i * step] = src[i] + add;
        }
    }
}
WEFTI_CLONES(store_run, (const float *src, float add, int64_t count, float *dst, int64_t step),
             (src, add, count, dst, step));

/* A block of sums, and where it goes. */
typedef struct block {
    const wefti_conv_grid_t *grid;
    const float *bias; /* of row 0; may be NULL */
    float *sums;
    int64_t ld, rows;
    void *dst; /* image 0, channel of row 0 */
} block_t;

static void *place(const wefti_conv_pass_t *pass, void *dst, int64_t at)
{
    return (void *)(uintptr_t)wefti_conv_at(pass->dtype, dst, at);
}

/* Sums plus add, to elements at a step. */
static void store_line(const wefti_conv_pass_t *pass, const float *sums, float add, int64_t count,
                       void *dst)
{
    float wide[BLOCK_COLS];
    uint16_t half[BLOCK_COLS];
    const int64_t step = pass->step[1];
    if (pass->dtype == WEFT_DTYPE_F32) {
        store_run[pass->isa](sums, add, count, dst, step);
        return;
    }
    for (int64_t at = 0, take; at < count; at += take) {
        uint16_t *to = place(pass, dst, at * step);
        take = min_i64(BLOCK_COLS, count - at);
        store_run[pass->isa](sums + at, add, take, wide, 1);
        wefti_halves_narrow(pass->isa, pass->dtype, wide, take, step == 1 ? to : half);
        for (int64_t i = 0; i < take && step > 1; i++) {
            to[i * step] = half[i];
        }
    }
}

/* Outputs of a line (or of lines that touch): sums from column on. */
static void store(const wefti_conv_pass_t *pass, const block_t *b, int64_t column, int64_t count,
                  int64_t image, int64_t y, int64_t x)
{
    const int64_t area = pass->out[0] * pass->out[1];
    const int64_t pixel =
        (b->grid->to[0] + y * pass->step[0]) * pass->out[1] + b->grid->to[1] + x * pass->step[1];
    const int64_t from = image * pass->out_channels * area;
    if (pass->out_last) {
        for (int64_t r = 0; r < b->rows && b->bias != NULL; r++) {
            float *sums = b->sums + r * b->ld + column;
            store_run[pass->isa](sums, b->bias[r], count, sums, 1);
        }
        wefti_transpose_f32(pass->isa, b->sums + column, b->ld, b->rows, count,
                            (float *)b->dst + from + pixel * pass->out_channels,
                            pass->step[1] * pass->out_channels);
        return;
    }
    for (int64_t r = 0; r < b->rows; r++) {
        const float add = b->bias == NULL ? WEFTI_ADD_NOTHING : b->bias[r];
        store_line(pass, b->sums + r * b->ld + column, add, count,
                   place(pass, b->dst, from + r * area + pixel));
    }
}

/* Columns first .. first + count - 1 of the positions of successive images. */
static void store_packed(const wefti_conv_pass_t *pass, const block_t *b, int64_t first,
                         int64_t count)
{
    const wefti_positions_t *at = &b->grid->at;
    const int64_t area = area_of(b->grid);
    const bool touching = at->count[1] == pass->out[1] && pass->step[0] == 1 && pass->step[1] == 1;
    const int64_t width = touching ? area : at->count[1];
    for (int64_t p = first; p < first + count;) {
        const int64_t inside = p % area, x = inside % width;
        const int64_t run = min_i64(width - x, first + count - p);
        store(pass, b, p - first, run, p / area, touching ? 0 : inside / width, x);
        p += run;
    }
}

/* Columns that are copied together: no single vector is left over, see next_width of gemm_f32.c. */
static int64_t panel_cols(int64_t left)
{
    return left <= 64 ? left : 48;
}

/* All outputs of some images in one grid; weights of group's row 0. */
static void run_packed(const wefti_conv_pass_t *pass, const float *weights, const float *planes,
                       block_t b, float *scratch, int64_t images)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(pass->isa);
    const wefti_conv_grid_t *grid = b.grid;
    /* As planned, however few rows the part has. */
    const int64_t positions = images * area_of(grid), cols = block_cols(pass->rows), all = b.rows;
    const float *bias = b.bias;
    float *panel = scratch + min_i64(all, BLOCK_ROWS) * cols;
    void *const dst = b.dst;
    const int64_t channel = pass->out_last ? 1 : pass->out[0] * pass->out[1];
    b.sums = scratch;
    b.ld = cols;
    for (int64_t first = 0; first < positions; first += cols) {
        const int64_t count = min_i64(cols, positions - first);
        for (int64_t row = 0; row < all; row += b.rows) {
            b.rows = min_i64(BLOCK_ROWS, all - row);
            b.dst = place(pass, dst, row * channel);
            b.bias = bias == NULL ? NULL : bias + row;
            wefti_gemm_tile_t t = {.a_row = grid->k, .a_k = 1, .b = panel, .ldc = cols};
            for (int64_t k = 0; k < grid->k; k += t.k_count) {
                t.k_count = min_i64(grid->k - k, WEFTI_GEMM_K_BLOCK);
                t.a = weights + row * grid->k + k;
                t.add = k > 0;
                for (int64_t p = 0; p < count; p += panel_cols(count - p)) {
                    const int64_t width = panel_cols(count - p);
                    t.b_k = round_up(width);
                    t.c = b.sums + p;
                    wefti_pack_positions(&pass->planes, &grid->at, planes,
                                         pass->at + grid->offsets + k, t.k_count, first + p, width,
                                         panel, t.b_k);
                    wefti_gemm_tiles(kernel, &t, b.rows, t.b_k);
                }
            }
            store_packed(pass, &b, first, count);
        }
    }
}

static void run_unpacked(const wefti_conv_pass_t *pass, const float *weights, const float *planes,
                         block_t b, float *scratch)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(pass->isa);
    const wefti_conv_grid_t *grid = b.grid;
    wefti_gemm_tile_t t = {.a_row = grid->k, .a_k = 1, .c = scratch};
    b.sums = scratch;
    b.ld = t.ldc = unpacked(pass, grid);
    t.b = planes + grid->at.first[0] * pass->planes.size[1] + grid->at.first[1];
    for (int64_t k = 0; k < grid->k; k += t.k_count) {
        t.k_count = min_i64(grid->k - k, WEFTI_GEMM_K_BLOCK);
        t.a = weights + k;
        t.b_at = pass->at + grid->offsets + k;
        t.add = k > 0;
        wefti_gemm_tiles(kernel, &t, b.rows, b.ld);
    }
    for (int64_t y = 0; y < grid->at.count[0]; y++) {
        store(pass, &b, y * pass->planes.size[1], grid->at.count[1], 0, y, 0);
    }
}

/* Before outputs are stored: those that no tap reaches are the bias. */
static void store_bias(const wefti_conv_pass_t *pass, const block_t *b, int64_t images)
{
    const int64_t area = pass->out[0] * pass->out[1];
    const int64_t row = pass->out_last ? 1 : area, pixel = pass->out_last ? pass->out_channels : 1;
    for (int64_t i = 0; i < images * b->rows; i++) {
        const int64_t r = i % b->rows;
        const float value = b->bias == NULL ? 0 : b->bias[r];
        void *to = place(pass, b->dst, i / b->rows * pass->out_channels * area + r * row);
        uint16_t half = 0;
        if (pass->dtype != WEFT_DTYPE_F32) {
            wefti_halves_narrow(pass->isa, pass->dtype, &value, 1, &half);
            for (int64_t p = 0; p < area; p++) {
                ((uint16_t *)to)[p] = half;
            }
            continue;
        }
        for (int64_t p = 0; p < area && pixel == 1; p++) {
            ((float *)to)[p] = value;
        }
        for (int64_t p = 0; p < area && pixel != 1; p++) {
            ((float *)to)[p * pixel] = value;
        }
    }
}

/* What the parts of one call share. A part has some images, and some rows of each group. */
typedef struct pass_job {
    const wefti_conv_pass_t *pass;
    const void *source;
    const float *weights, *bias;
    void *dst;
    float *turned, *scratch;
    int64_t image_parts, row_parts;
} pass_job_t;

static int64_t row_of_part(const pass_job_t *job, int64_t part)
{
    const int64_t rows = job->pass->rows, at = rows * part / job->row_parts;
    return at == rows ? rows : at / ROWS_OF_TILES * ROWS_OF_TILES;
}

static void run_part(const void *context, int64_t part)
{
    const pass_job_t *job = context;
    const wefti_conv_pass_t *pass = job->pass;
    const wefti_planes_t *p = &pass->planes;
    const int64_t elems = wefti_planes_elems(p), area = pass->out[0] * pass->out[1];
    const int64_t source_area = p->source[0] * p->source[1];
    const int64_t row = row_of_part(job, part % job->row_parts);
    const int64_t end = pass->images * (part / job->row_parts + 1) / job->image_parts;
    block_t b = {.rows = row_of_part(job, part % job->row_parts + 1) - row};
    float *planes = job->scratch + part * pass->thread_elems;
    float *scratch = planes + pass->planes_elems;
    int64_t images, first = pass->images * (part / job->row_parts) / job->image_parts;
    memset(planes, 0, (size_t)pass->planes_elems * sizeof *planes);
    for (; first < end; first += images) {
        images = min_i64(pass->block, end - first);
        const int64_t source = first * p->all_channels * source_area;
        for (int64_t g = 0; g < pass->groups; g++) {
            const int64_t channel = g * pass->rows + row;
            for (int64_t i = 0; i < images; i++) {
                wefti_planes_fill(p,
                                  wefti_conv_at(p->dtype, job->source,
                                                source + i * p->all_channels * source_area),
                                  g * p->channels, p->channels, planes + i * elems);
            }
            b.bias = job->bias == NULL ? NULL : job->bias + channel;
            b.dst =
                place(pass, job->dst,
                      first * pass->out_channels * area + channel * (pass->out_last ? 1 : area));
            if (!pass->whole) {
                store_bias(pass, &b, images);
            }
            for (int64_t n = 0; n < pass->grid_count; n++) {
                b.grid = &pass->grids[n];
                const float *weights = job->weights +
                                       g * pass->rows * p->channels * pass->kernel_elems +
                                       b.grid->offsets * pass->rows + row * b.grid->k;
                if (pass->packed) {
                    run_packed(pass, weights, planes, b, scratch, images);
                } else {
                    run_unpacked(pass, weights, planes, b, scratch);
                }
            }
        }
    }
}

static void turn_part(const void *context, int64_t part)
{
    const pass_job_t *job = context;
    const wefti_conv_pass_t *pass = job->pass;
    const int64_t group = pass->rows * pass->planes.channels * pass->kernel_elems;
    const int64_t parts = job->image_parts * job->row_parts;
    for (int64_t g = 0; g < pass->groups; g++) {
        for (int64_t n = 0; n < pass->grid_count; n++) {
            const wefti_conv_grid_t *grid = &pass->grids[n];
            turn_weights(pass, grid, job->weights + g * group, pass->rows * part / parts,
                         pass->rows * (part + 1) / parts,
                         job->turned + g * group + grid->offsets * pass->rows);
        }
    }
}

void wefti_conv_pass_run(const wefti_conv_pass_t *pass, const void *source, const float *weights,
                         const float *bias, void *dst, float *scratch)
{
    pass_job_t job = {.pass = pass,
                      .source = source,
                      .weights = weights,
                      .bias = bias,
                      .dst = dst,
                      .turned = scratch,
                      .scratch = scratch + pass->weight_elems};
    job.image_parts = min_i64(pass->images, pass->threads > 1 ? pass->threads : 1);
    job.row_parts = min_i64(pass->threads / job.image_parts, pass->rows / ROWS_OF_TILES);
    job.row_parts = job.row_parts > 1 ? job.row_parts : 1;
    const int64_t parts = job.image_parts * job.row_parts;
    if (pass->turned) {
        wefti_parallel(parts, turn_part, &job);
        job.weights = job.turned;
    }
    wefti_parallel(parts, run_part, &job);
}
