/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/conv_f32.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define VECTOR 16 /* positions are rounded up to this on every machine */

static int64_t round_up(int64_t value)
{
    return (value + VECTOR - 1) / VECTOR * VECTOR;
}

const char *wefti_conv_name(weft_isa_t isa)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(isa);
    return kernel == &wefti_gemm_kernel_avx512 ? "conv:avx512"
           : kernel == &wefti_gemm_kernel_avx2 ? "conv:avx2"
                                               : "conv:portable";
}

int64_t wefti_planes_elems(const wefti_planes_t *p)
{
    return round_up(p->channels * p->phase[0] * p->phase[1] * p->plane) + VECTOR;
}

/* Offsets are 32 bits wide. */
static weft_status_t check_size(const wefti_planes_t *p)
{
    int64_t elems;
    if (__builtin_mul_overflow(p->size[0], p->size[1], &elems) ||
        __builtin_mul_overflow(elems, p->channels, &elems) ||
        __builtin_mul_overflow(elems, p->phase[0] * p->phase[1], &elems) || elems > INT32_MAX / 2 ||
        p->channels * p->phase[0] * p->phase[1] > INT32_MAX / 64) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the padded image is too large");
    }
    return WEFT_OK;
}

/* One line of the source into the planes of its phase. */
static void fill_line(const wefti_planes_t *p, const float *line, int64_t step, float *dst)
{
    if (p->spread[1] == 1 && p->phase[1] == 1 && step == 1) {
        const int64_t begin = p->shift[1] < 0 ? -p->shift[1] : 0;
        int64_t end = p->size[1] - p->shift[1];
        end = end > p->source[1] ? p->source[1] : end;
        if (end > begin) {
            memcpy(dst + begin + p->shift[1], line + begin, (size_t)(end - begin) * sizeof *dst);
        }
        return;
    }
    for (int64_t x = 0; x < p->source[1]; x++) {
        const int64_t u = x * p->spread[1] + p->shift[1];
        if (u >= 0 && u / p->phase[1] < p->size[1]) {
            dst[u % p->phase[1] * p->plane + u / p->phase[1]] = line[x * step];
        }
    }
}

void wefti_planes_fill(const wefti_planes_t *p, const float *image, int64_t first_channel,
                       float *dst)
{
    const int64_t step = p->last ? p->all_channels : 1;
    const int64_t area = p->source[0] * p->source[1];
    for (int64_t c = 0; c < p->channels; c++) {
        const float *from = image + (first_channel + c) * (p->last ? 1 : area);
        float *planes = dst + c * p->phase[0] * p->phase[1] * p->plane;
        for (int64_t y = 0; y < p->source[0]; y++) {
            const int64_t u = y * p->spread[0] + p->shift[0];
            if (u < 0 || u / p->phase[0] >= p->size[0]) {
                continue;
            }
            fill_line(p, from + y * p->source[1] * step, step,
                      planes + u % p->phase[0] * p->phase[1] * p->plane +
                          u / p->phase[0] * p->size[1]);
        }
    }
}

static wefti_planes_t input_planes(const wefti_conv_t *c)
{
    wefti_planes_t p = {.channels = c->in_channels / c->groups, .all_channels = c->in_channels};
    p.last = c->in_last;
    for (int d = 0; d < 2; d++) {
        p.source[d] = c->in[d];
        p.spread[d] = 1;
        p.shift[d] = c->pad[d];
        p.phase[d] = c->stride[d];
        p.size[d] = c->out[d] + (c->kernel[d] - 1) * c->dilation[d] / c->stride[d];
    }
    p.plane = p.size[0] * p.size[1];
    return p;
}

/* Offsets of the taps (channel, ky, kx); mirrored for the gradient of the input. */
static void fill_offsets(const wefti_conv_t *c, const wefti_planes_t *p, bool mirrored, int32_t *at)
{
    for (int64_t ch = 0; ch < p->channels; ch++) {
        for (int64_t ky = 0; ky < c->kernel[0]; ky++) {
            for (int64_t kx = 0; kx < c->kernel[1]; kx++) {
                const int64_t uy = (mirrored ? c->kernel[0] - 1 - ky : ky) * c->dilation[0];
                const int64_t ux = (mirrored ? c->kernel[1] - 1 - kx : kx) * c->dilation[1];
                const int64_t plane =
                    (ch * p->phase[0] + uy % p->phase[0]) * p->phase[1] + ux % p->phase[1];
                *at++ =
                    (int32_t)(plane * p->plane + uy / p->phase[0] * p->size[1] + ux / p->phase[1]);
            }
        }
    }
}

static weft_status_t finish_pass(const wefti_conv_t *c, bool mirrored, wefti_conv_pass_t *pass)
{
    const wefti_planes_t *p = &pass->planes;
    weft_status_t status = check_size(p);
    if (status != WEFT_OK) {
        return status;
    }
    pass->images = c->images;
    pass->groups = c->groups;
    pass->isa = c->isa;
    pass->threads = c->threads;
    pass->k = p->channels * c->kernel[0] * c->kernel[1];
    pass->vectors_elems = round_up((pass->out[0] - 1) * p->size[1] + pass->out[1]);
    if (pass->rows > (INT64_C(1) << 40) / pass->vectors_elems) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the output is too large");
    }
    pass->scratch_elems = wefti_planes_elems(p) + pass->rows * pass->vectors_elems;
    pass->at = wefti_alloc(NULL, (size_t)pass->k * sizeof *pass->at);
    if (pass->at == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    fill_offsets(c, p, mirrored, pass->at);
    return WEFT_OK;
}

weft_status_t wefti_conv_pass_forward(const wefti_conv_t *c, wefti_conv_pass_t *pass)
{
    *pass = (wefti_conv_pass_t){.planes = input_planes(c)};
    pass->rows = c->out_channels / c->groups;
    pass->out_channels = c->out_channels;
    pass->out[0] = c->out[0];
    pass->out[1] = c->out[1];
    pass->out_last = c->out_last;
    return finish_pass(c, false, pass);
}

weft_status_t wefti_conv_pass_data_grad(const wefti_conv_t *c, wefti_conv_pass_t *pass)
{
    wefti_planes_t p = {.channels = c->out_channels / c->groups, .all_channels = c->out_channels};
    p.last = c->out_last;
    for (int d = 0; d < 2; d++) {
        p.source[d] = c->out[d];
        p.spread[d] = c->stride[d];
        p.shift[d] = (c->kernel[d] - 1) * c->dilation[d] - c->pad[d];
        p.phase[d] = 1;
        p.size[d] = c->in[d] + (c->kernel[d] - 1) * c->dilation[d];
    }
    p.plane = p.size[0] * p.size[1];
    *pass = (wefti_conv_pass_t){.planes = p};
    pass->rows = c->in_channels / c->groups;
    pass->out_channels = c->in_channels;
    pass->out[0] = c->in[0];
    pass->out[1] = c->in[1];
    pass->out_last = c->in_last;
    return finish_pass(c, true, pass);
}

/* Positions back into an image, with the bias. */
static void store_image(const wefti_conv_pass_t *pass, const float *sums, const float *bias,
                        int64_t first_channel, float *image)
{
    const int64_t step = pass->out_last ? pass->out_channels : 1;
    for (int64_t r = 0; r < pass->rows; r++) {
        const float add = bias == NULL ? 0 : bias[first_channel + r];
        float *to =
            image + (first_channel + r) * (pass->out_last ? 1 : pass->out[0] * pass->out[1]);
        for (int64_t y = 0; y < pass->out[0]; y++) {
            const float *from = sums + r * pass->vectors_elems + y * pass->planes.size[1];
            float *line = to + y * pass->out[1] * step;
            if (step == 1) { /* a case of its own, so that it becomes vectors */
                for (int64_t x = 0; x < pass->out[1]; x++) {
                    line[x] = from[x] + add;
                }
            } else {
                for (int64_t x = 0; x < pass->out[1]; x++) {
                    line[x * step] = from[x] + add;
                }
            }
        }
    }
}

static void run_images(const wefti_conv_pass_t *pass, const float *source, const float *weights,
                       const float *bias, float *dst, float *planes, int64_t begin, int64_t end)
{
    const wefti_planes_t *p = &pass->planes;
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(pass->isa);
    const int64_t planes_elems = wefti_planes_elems(p);
    float *sums = planes + planes_elems;
    memset(planes, 0, (size_t)planes_elems * sizeof *planes);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t g = 0; g < pass->groups; g++) {
            wefti_planes_fill(p, source + i * p->all_channels * p->source[0] * p->source[1],
                              g * p->channels, planes);
            wefti_gemm_tile_t t = {.b = planes, .a_row = pass->k, .a_k = 1, .c = sums};
            t.ldc = pass->vectors_elems;
            for (int64_t k = 0; k < pass->k; k += t.k_count) {
                t.k_count = pass->k - k < WEFTI_GEMM_K_BLOCK ? pass->k - k : WEFTI_GEMM_K_BLOCK;
                t.a = weights + g * pass->rows * pass->k + k;
                t.b_at = pass->at + k;
                t.add = k > 0;
                wefti_gemm_tiles(kernel, &t, pass->rows, pass->vectors_elems);
            }
            store_image(pass, sums, bias, g * pass->rows,
                        dst + i * pass->out_channels * pass->out[0] * pass->out[1]);
        }
    }
}

typedef struct pass_job {
    const wefti_conv_pass_t *pass;
    const float *source, *weights, *bias;
    float *dst, *scratch;
    int64_t parts;
} pass_job_t;

static void run_pass_part(const void *context, int64_t part)
{
    const pass_job_t *job = context;
    const wefti_conv_pass_t *pass = job->pass;
    run_images(pass, job->source, job->weights, job->bias, job->dst,
               job->scratch + part * pass->scratch_elems, pass->images * part / job->parts,
               pass->images * (part + 1) / job->parts);
}

void wefti_conv_pass_run(const wefti_conv_pass_t *pass, const float *source, const float *weights,
                         const float *bias, float *dst, float *scratch)
{
    const int64_t parts = pass->images < pass->threads ? pass->images : pass->threads;
    const pass_job_t job = {pass, source, weights, bias, dst, scratch, parts > 1 ? parts : 1};
    wefti_parallel(job.parts, run_pass_part, &job);
}

weft_status_t wefti_conv_dw_plan(const wefti_conv_t *c, wefti_conv_dw_t *dw)
{
    const wefti_planes_t x = input_planes(c);
    *dw = (wefti_conv_dw_t){.x = x, .images = c->images, .groups = c->groups, .isa = c->isa};
    dw->threads = c->threads;
    dw->rows = c->out_channels / c->groups;
    dw->dy = (wefti_planes_t){
        .channels = dw->rows, .all_channels = c->out_channels, .last = c->out_last};
    for (int d = 0; d < 2; d++) {
        dw->dy.source[d] = c->out[d];
        dw->dy.spread[d] = dw->dy.phase[d] = 1;
    }
    /* Lines as long as X's, so that one position means the same in both. */
    dw->dy.size[0] = c->out[0];
    dw->dy.size[1] = x.size[1];
    dw->dy.plane = round_up(c->out[0] * x.size[1]);
    weft_status_t status = check_size(&dw->x);
    status = status == WEFT_OK ? check_size(&dw->dy) : status;
    if (status != WEFT_OK) {
        return status;
    }
    const int64_t k = x.channels * c->kernel[0] * c->kernel[1];
    dw->taps = k + 1;
    dw->vectors = round_up((c->out[0] - 1) * x.size[1] + c->out[1]) / VECTOR;
    int64_t sums;
    if (__builtin_mul_overflow(dw->rows, dw->taps * VECTOR, &sums) || sums > INT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: the weights are too large");
    }
    /* X's planes and a plane of ones, then dY's planes, for a block of images; then the sums. */
    dw->scratch_elems =
        WEFTI_CONV_DW_IMAGES * (wefti_planes_elems(&dw->x) + wefti_planes_elems(&dw->dy)) +
        dw->vectors * VECTOR * WEFTI_CONV_DW_IMAGES + sums;
    dw->at = wefti_alloc(NULL, (size_t)dw->taps * sizeof *dw->at);
    if (dw->at == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    fill_offsets(c, &dw->x, false, dw->at);
    dw->at[k] = (int32_t)wefti_planes_elems(&dw->x);
    return WEFT_OK;
}

/* All rows of a few taps. */
static void dot_column(const wefti_conv_dw_t *dw, const wefti_gemm_kernel_t *kernel,
                       const wefti_dot_tile_t *whole, int64_t first_tap)
{
    const int64_t left = dw->taps - first_tap;
    wefti_dot_tile_t t = *whole;
    t.cols = (int)(left < kernel->dot_cols ? left : kernel->dot_cols);
    t.b_at = whole->b_at + first_tap;
    for (int64_t r = 0; r < dw->rows; r += t.rows) {
        t.rows = (int)(dw->rows - r < kernel->dot_rows ? dw->rows - r : kernel->dot_rows);
        t.a = whole->a + r * whole->a_row;
        t.sums = whole->sums + (r * dw->taps + first_tap) * WEFTI_DOT_LANES;
        kernel->dot(&t);
    }
}

typedef struct dot_job {
    const wefti_conv_dw_t *dw;
    const wefti_dot_tile_t *whole;
    int64_t parts;
} dot_job_t;

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

/* All tiles of one block of images. */
static void dot_block(const wefti_conv_dw_t *dw, const wefti_dot_tile_t *whole)
{
    const int64_t step = wefti_gemm_kernel(dw->isa)->dot_cols;
    const int64_t columns = (dw->taps + step - 1) / step;
    const int64_t parts = columns < dw->threads ? columns : dw->threads;
    const dot_job_t job = {dw, whole, parts > 1 ? parts : 1};
    wefti_parallel(job.parts, dot_part, &job);
}

/* Sixteen lanes to one, in the order of a tree. */
static float sum_lanes(float *lanes)
{
    for (int width = WEFTI_DOT_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

void wefti_conv_dw_run(const wefti_conv_dw_t *dw, const float *x, const float *dy, float *dw_out,
                       float *db, float *scratch)
{
    const int64_t ones = dw->vectors * VECTOR;
    const int64_t x_elems = wefti_planes_elems(&dw->x), dy_elems = wefti_planes_elems(&dw->dy);
    const int64_t x_image = dw->x.all_channels * dw->x.source[0] * dw->x.source[1];
    const int64_t dy_image = dw->dy.all_channels * dw->dy.source[0] * dw->dy.source[1];
    float *xs = scratch, *dys = xs + (x_elems + ones) * WEFTI_CONV_DW_IMAGES;
    float *sums = dys + dy_elems * WEFTI_CONV_DW_IMAGES;
    memset(scratch, 0, (size_t)(sums - scratch) * sizeof *scratch);
    for (int64_t i = 0; i < WEFTI_CONV_DW_IMAGES; i++) {
        for (int64_t p = 0; p < ones; p++) {
            xs[i * (x_elems + ones) + x_elems + p] = 1;
        }
    }
    for (int64_t g = 0; g < dw->groups; g++) {
        memset(sums, 0, (size_t)(dw->rows * dw->taps * WEFTI_DOT_LANES) * sizeof *sums);
        for (int64_t first = 0; first < dw->images; first += WEFTI_CONV_DW_IMAGES) {
            const int64_t left = dw->images - first;
            wefti_dot_tile_t t = {.a = dys, .a_row = dw->dy.plane, .a_image = dy_elems, .b = xs};
            t.b_image = x_elems + ones;
            t.b_at = dw->at;
            t.sums = sums;
            t.sums_row = dw->taps;
            t.vectors = dw->vectors;
            t.images = left < WEFTI_CONV_DW_IMAGES ? left : WEFTI_CONV_DW_IMAGES;
            for (int64_t i = 0; i < t.images; i++) {
                wefti_planes_fill(&dw->x, x + (first + i) * x_image, g * dw->x.channels,
                                  xs + i * t.b_image);
                wefti_planes_fill(&dw->dy, dy + (first + i) * dy_image, g * dw->rows,
                                  dys + i * dy_elems);
            }
            dot_block(dw, &t);
        }
        for (int64_t r = 0; r < dw->rows; r++) {
            float *row = sums + r * dw->taps * WEFTI_DOT_LANES;
            for (int64_t k = 0; k + 1 < dw->taps; k++) {
                dw_out[(g * dw->rows + r) * (dw->taps - 1) + k] =
                    sum_lanes(row + k * WEFTI_DOT_LANES);
            }
            if (db != NULL) {
                db[g * dw->rows + r] = sum_lanes(row + (dw->taps - 1) * WEFTI_DOT_LANES);
            }
        }
    }
}
