/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels by oneDNN against loops in double precision and against the exact kernels; what they
 * decline, and that nothing runs by reference code.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/compute/onednn_kernels.h"
#include "ops/compute/product_kernels.h"
#include "runtime/base/sync.h"
#include "tests/support/support.h"

enum { GUARD = 64, TENSORS = 4 };

static uint64_t random_state = 5150;

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)(test_next_random(&random_state) % (uint64_t)(high - low + 1));
}

static float *random_elems(int64_t count)
{
    float *data = malloc((size_t)count * sizeof *data);
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++) {
        data[i] = (float)(test_next_random(&random_state) >> 40) / 8388608.0f - 1.0f;
    }
    return data;
}

static weft_tensor_desc_t tensor(uint32_t rank, const int64_t *dims, weft_layout_t layout)
{
    weft_tensor_desc_t d = {.dtype = WEFT_DTYPE_F32, .rank = rank, .layout = layout};
    memcpy(d.dims, dims, rank * sizeof *dims);
    return d;
}

static weft_kernel_env_t environment(uint32_t threads)
{
    return (weft_kernel_env_t){sizeof(weft_kernel_env_t), wefti_isa_detect(), threads};
}

/* oneDNN generates code for AVX2 at least; elsewhere everything is declined. */
static int need_vectors(void **state)
{
    (void)state;
    if (wefti_isa_detect() == WEFT_ISA_PORTABLE) {
        print_message("skipped: this processor has no AVX2\n");
        skip();
    }
    return 0;
}

/*
 * Prepares, and runs three times, the last time at other addresses; scratch and outputs hold NaN
 * before, what lies behind scratch is left alone, and all three give the same bits.
 * WEFT_ERR_UNSUPPORTED when the kernel declines.
 */
static weft_status_t run_node(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                              uint32_t threads, const void *const *inputs, void *const *outputs,
                              char name[128])
{
    const weft_kernel_env_t env = environment(threads);
    void *state = NULL, *first[TENSORS] = {NULL}, *moved[TENSORS] = {NULL};
    size_t bytes = 0, sizes[TENSORS] = {0};
    weft_status_t status = kernel->prepare(node, &env, &state, &bytes);
    if (status != WEFT_OK) {
        assert_null(state);
        return status;
    }
    snprintf(name, 128, "%s", kernel->implementation(state));
    assert_true(name[0] != '\0');
    for (int pass = 0; pass < 3; pass++) {
        uint8_t *scratch = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
        memset(scratch, 0xff, bytes + GUARD);
        void *const *to = pass == 2 ? moved : outputs;
        for (uint32_t i = 0; i < node->output_count; i++) {
            if (outputs[i] != NULL) {
                sizes[i] = (size_t)weft_tensor_elem_count(&node->outputs[i]) * sizeof(float);
                moved[i] = pass == 2 ? malloc(sizes[i]) : NULL;
                memset(to[i], 0xff, sizes[i]);
            }
        }
        const weft_kernel_call_t call = {state, inputs, to, scratch};
        assert_int_equal(kernel->run(&call), WEFT_OK);
        for (size_t i = 0; i < GUARD; i++) {
            assert_int_equal(scratch[bytes + i], 0xff);
        }
        for (uint32_t i = 0; i < node->output_count; i++) {
            if (sizes[i] > 0 && pass == 0) {
                first[i] = malloc(sizes[i]);
                memcpy(first[i], to[i], sizes[i]);
            } else if (sizes[i] > 0) {
                assert_memory_equal(first[i], to[i], sizes[i]);
            }
        }
        free(scratch);
    }
    for (uint32_t i = 0; i < TENSORS; i++) {
        free(first[i]);
        free(moved[i]);
    }
    kernel->destroy(state);
    return WEFT_OK;
}

static void assert_near(const float *got, const double *expected, int64_t count, int64_t terms,
                        const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - expected[i]) <= 2e-7 * (double)(terms + 20))) {
            fail_msg("%s: element %lld is %g, expected %g", what, (long long)i, (double)got[i],
                     expected[i]);
        }
    }
}

/* What a product node is made of: A and B stacks of batch_a and batch_b matrices (1 or batch). */
typedef struct product {
    const weft_kernel_t *kernel, *exact;
    int64_t batch, batch_a, batch_b, m, n, k;
    bool ta, tb;
    float alpha, beta;
    int c_rank; /* -1: no C */
    int64_t c_dims[2];
} product_t;

static double product_at(const product_t *p, const float *a, const float *b, int64_t at)
{
    const int64_t col = at % p->n, row = at / p->n % p->m, matrix = at / (p->n * p->m);
    const float *am = a + (p->batch_a > 1 ? matrix : 0) * p->m * p->k;
    const float *bm = b + (p->batch_b > 1 ? matrix : 0) * p->k * p->n;
    double sum = 0;
    for (int64_t i = 0; i < p->k; i++) {
        sum += (double)am[p->ta ? i * p->m + row : row * p->k + i] *
               (double)bm[p->tb ? col * p->k + i : i * p->n + col];
    }
    return sum * (double)p->alpha;
}

/* Returns what prepare said. */
static weft_status_t check_product(const product_t *p, uint32_t threads)
{
    const bool stacked = p->batch_a > 1, stacked_b = p->batch_b > 1;
    const int64_t a_dims[3] = {p->batch_a, p->ta ? p->k : p->m, p->ta ? p->m : p->k};
    const int64_t b_dims[3] = {p->batch_b, p->tb ? p->n : p->k, p->tb ? p->k : p->n};
    const int64_t y_dims[3] = {p->batch, p->m, p->n};
    weft_tensor_desc_t in[3] = {tensor(stacked ? 3 : 2, a_dims + !stacked, WEFT_LAYOUT_PLAIN),
                                tensor(stacked_b ? 3 : 2, b_dims + !stacked_b, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out =
        tensor(p->batch > 1 ? 3 : 2, y_dims + (p->batch == 1), WEFT_LAYOUT_PLAIN);
    const weft_attr_t attrs[4] = {{.name = "transA", .type = WEFT_ATTR_TYPE_INT, .i = p->ta},
                                  {.name = "transB", .type = WEFT_ATTR_TYPE_INT, .i = p->tb},
                                  {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .f = p->alpha},
                                  {.name = "beta", .type = WEFT_ATTR_TYPE_FLOAT, .f = p->beta}};
    if (p->c_rank >= 0) {
        in[2] = tensor((uint32_t)p->c_rank, p->c_dims + (2 - p->c_rank), WEFT_LAYOUT_PLAIN);
    }
    const weft_node_desc_t node = {.domain = p->kernel->domain,
                                   .op = p->kernel->op,
                                   .version = 13,
                                   .name = "product",
                                   .input_count = p->c_rank >= 0 ? 3 : 2,
                                   .inputs = in,
                                   .output_count = 1,
                                   .outputs = &out,
                                   .attr_count = 4,
                                   .attrs = attrs};
    const int64_t count = p->batch * p->m * p->n;
    float *a = random_elems(p->batch_a * p->m * p->k), *b = random_elems(p->batch_b * p->k * p->n);
    float *c = random_elems(p->c_rank >= 0 ? weft_tensor_elem_count(&in[2]) : 1);
    float *y = random_elems(count), *y_exact = random_elems(count);
    const void *inputs[3] = {a, b, c};
    char name[128] = "", exact_name[128];
    weft_status_t status = run_node(p->kernel, &node, threads, inputs, (void *[]){y}, name);
    if (status == WEFT_OK) {
        assert_null(strstr(name, "ref"));
        assert_int_equal(run_node(p->exact, &node, 1, inputs, (void *[]){y_exact}, exact_name),
                         WEFT_OK);
        double *expected = malloc((size_t)count * sizeof *expected);
        double *by_exact = malloc((size_t)count * sizeof *by_exact);
        for (int64_t i = 0; i < count; i++) {
            const int64_t col = p->c_dims[1] == 1 || p->c_rank < 1 ? 0 : i % p->n;
            const int64_t row = p->c_dims[0] == 1 || p->c_rank < 2 ? 0 : i / p->n % p->m;
            const int64_t width = p->c_rank < 1 ? 1 : p->c_dims[1];
            expected[i] = product_at(p, a, b, i) +
                          (p->c_rank >= 0 ? (double)p->beta * (double)c[row * width + col] : 0);
            by_exact[i] = (double)y_exact[i];
        }
        assert_near(y, expected, count, p->k, name);
        assert_near(y, by_exact, count, 2 * p->k, name);
        free(expected);
        free(by_exact);
    }
    void *all[] = {a, b, c, y, y_exact};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    return status;
}

static product_t gemm(int64_t m, int64_t n, int64_t k, bool ta, bool tb)
{
    return (product_t){.kernel = &wefti_onednn_gemm,
                       .exact = &wefti_kernel_gemm,
                       .batch = 1,
                       .batch_a = 1,
                       .batch_b = 1,
                       .m = m,
                       .n = n,
                       .k = k,
                       .ta = ta,
                       .tb = tb,
                       .alpha = 1,
                       .beta = 1,
                       .c_rank = -1,
                       .c_dims = {1, 1}};
}

/* Everything the models in samples/ ask for is taken by oneDNN. */
static void test_products_of_the_models_are_taken(void **state)
{
    static const int64_t layers[][2] = {{784, 512}, {512, 256}, {256, 10}, {400, 120}, {84, 10}};
    (void)state;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        product_t forward = gemm(64, layers[i][1], layers[i][0], false, true);
        product_t dx = gemm(64, layers[i][0], layers[i][1], false, false);
        product_t dw = gemm(layers[i][1], layers[i][0], 64, true, false);
        forward.c_rank = 1;
        forward.c_dims[1] = layers[i][1];
        assert_int_equal(check_product(&forward, 1), WEFT_OK);
        assert_int_equal(check_product(&dx, 1), WEFT_OK);
        assert_int_equal(check_product(&dw, 1), WEFT_OK);
    }
}

static void test_random_gemms(void **state)
{
    int taken = 0;
    (void)state;
    print_message("seed %u\n", (uint32_t)random_state);
    for (int i = 0; i < 120; i++) {
        product_t p = gemm(between(1, 70), between(1, 70), between(1, 300),
                           (uint32_t)test_next_random(&random_state) % 2,
                           (uint32_t)test_next_random(&random_state) % 2);
        p.alpha = (uint32_t)test_next_random(&random_state) % 3 == 0 ? -0.75f : 1;
        p.beta = (uint32_t)test_next_random(&random_state) % 4 == 0 ? 0 : 1;
        p.c_rank = (int)between(-1, 2);
        p.c_dims[0] = p.c_rank == 2 && (uint32_t)test_next_random(&random_state) % 2 ? p.m : 1;
        p.c_dims[1] = p.c_rank >= 1 && (uint32_t)test_next_random(&random_state) % 4 ? p.n : 1;
        weft_status_t status =
            check_product(&p, (uint32_t)test_next_random(&random_state) % 4 == 0 ? 2 : 1);
        assert_true(status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED);
        taken += status == WEFT_OK;
    }
    print_message("%d of 120 taken\n", taken);
    assert_true(taken > 60);
}

static void test_random_matmuls(void **state)
{
    int taken = 0;
    (void)state;
    print_message("seed %u\n", (uint32_t)random_state);
    for (int i = 0; i < 80; i++) {
        product_t p = gemm(between(1, 40), between(1, 40), between(1, 80), false, false);
        const bool fused = (uint32_t)test_next_random(&random_state) % 2;
        p.kernel = fused ? &wefti_onednn_fused_matmul : &wefti_onednn_matmul;
        p.exact = fused ? &wefti_kernel_fused_matmul : &wefti_kernel_matmul;
        p.batch = between(1, 5);
        p.batch_a = (uint32_t)test_next_random(&random_state) % 3 ? p.batch : 1;
        p.batch_b = p.batch_a == 1 || (uint32_t)test_next_random(&random_state) % 2 ? p.batch : 1;
        if (fused) {
            p.ta = (uint32_t)test_next_random(&random_state) % 2;
            p.tb = (uint32_t)test_next_random(&random_state) % 2;
            p.alpha = 0.125f;
        }
        weft_status_t status = check_product(&p, 1);
        assert_true(status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED);
        taken += status == WEFT_OK;
    }
    print_message("%d of 80 taken\n", taken);
    assert_true(taken > 60);
}

static void test_matmul_of_vectors(void **state)
{
    const float a[3] = {1, 2, 3}, b[6] = {1, 10, 100, 1000, 10000, 100000};
    float y[2] = {0};
    char name[128];
    weft_tensor_desc_t in[2] = {tensor(1, (int64_t[]){3}, WEFT_LAYOUT_PLAIN),
                                tensor(2, (int64_t[]){3, 2}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out = tensor(1, (int64_t[]){2}, WEFT_LAYOUT_PLAIN);
    weft_node_desc_t node = {.domain = "",
                             .op = "MatMul",
                             .version = 13,
                             .name = "m",
                             .input_count = 2,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out};
    (void)state;
    assert_int_equal(
        run_node(&wefti_onednn_matmul, &node, 1, (const void *[]){a, b}, (void *[]){y}, name),
        WEFT_OK);
    assert_true(y[0] == 30201.0f && y[1] == 302010.0f);
    in[0] = tensor(2, (int64_t[]){2, 3}, WEFT_LAYOUT_PLAIN);
    in[1] = tensor(1, (int64_t[]){3}, WEFT_LAYOUT_PLAIN);
    assert_int_equal(
        run_node(&wefti_onednn_matmul, &node, 1, (const void *[]){b, a}, (void *[]){y}, name),
        WEFT_OK);
    assert_true(y[0] == 321.0f && y[1] == 321000.0f);
}

/* One convolution: n images, c -> o channels. */
typedef struct shape {
    int64_t n, c, o, g, in[2], k[2], stride[2], dilation[2], pad[4], out[2];
} shape_t;

typedef struct problem {
    shape_t s;
    float *x, *w, *b, *dy; /* plain */
    double *y, *dx, *dw, *db;
    int64_t x_count, w_count, y_count;
} problem_t;

/* Visits every product of the convolution once. */
static void reference(problem_t *p)
{
    const shape_t *s = &p->s;
    const int64_t cg = s->c / s->g, og = s->o / s->g, taps = cg * s->k[0] * s->k[1];
    for (int64_t i = 0; i < p->y_count; i++) {
        const int64_t x0 = i % s->out[1], y0 = i / s->out[1] % s->out[0];
        const int64_t o = i / (s->out[1] * s->out[0]) % s->o;
        const int64_t n = i / (s->out[1] * s->out[0] * s->o);
        p->y[i] = (double)p->b[o];
        p->db[o] += (double)p->dy[i];
        for (int64_t t = 0; t < taps; t++) {
            const int64_t kx = t % s->k[1], ky = t / s->k[1] % s->k[0], c = t / (s->k[1] * s->k[0]);
            const int64_t ix = x0 * s->stride[1] + kx * s->dilation[1] - s->pad[1];
            const int64_t iy = y0 * s->stride[0] + ky * s->dilation[0] - s->pad[0];
            if (ix < 0 || iy < 0 || ix >= s->in[1] || iy >= s->in[0]) {
                continue;
            }
            const int64_t xi = ((n * s->c + o / og * cg + c) * s->in[0] + iy) * s->in[1] + ix;
            const int64_t wi = o * taps + t;
            p->y[i] += (double)p->x[xi] * (double)p->w[wi];
            p->dx[xi] += (double)p->dy[i] * (double)p->w[wi];
            p->dw[wi] += (double)p->dy[i] * (double)p->x[xi];
        }
    }
}

static void make_problem(shape_t s, problem_t *p)
{
    for (int d = 0; d < 2; d++) {
        s.out[d] =
            (s.in[d] + s.pad[d] + s.pad[d + 2] - (s.k[d] - 1) * s.dilation[d] - 1) / s.stride[d] +
            1;
    }
    p->s = s;
    p->x_count = s.n * s.c * s.in[0] * s.in[1];
    p->w_count = s.o * (s.c / s.g) * s.k[0] * s.k[1];
    p->y_count = s.n * s.o * s.out[0] * s.out[1];
    p->x = random_elems(p->x_count);
    p->w = random_elems(p->w_count);
    p->b = random_elems(s.o);
    p->dy = random_elems(p->y_count);
    p->y = calloc((size_t)p->y_count, sizeof(double));
    p->dx = calloc((size_t)p->x_count, sizeof(double));
    p->dw = calloc((size_t)p->w_count, sizeof(double));
    p->db = calloc((size_t)s.o, sizeof(double));
    reference(p);
}

static void free_problem(problem_t *p)
{
    void *all[] = {p->x, p->w, p->b, p->dy, p->y, p->dx, p->dw, p->db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
}

/* A copy of a [n, c, area] tensor, from plain to channels-last or back. */
static float *permuted(const float *src, int64_t n, int64_t c, int64_t area, bool to_last)
{
    float *dst = malloc((size_t)(n * c * area) * sizeof *dst);
    for (int64_t i = 0; i < n * c * area; i++) {
        const int64_t p = i % area, j = i / area % c, image = i / (area * c);
        const int64_t last = (image * area + p) * c + j;
        dst[to_last ? last : i] = src[to_last ? i : last];
    }
    return dst;
}

/* The node's activations: X and dX in layout x_last, Y and dY in y_last. */
typedef struct conv_run {
    const problem_t *p;
    bool x_last, y_last, want_bias, want_dx;
    weft_tensor_desc_t x, w, b, y;
    float *xs, *dys; /* in their layouts */
    float *got[4];   /* Y, dX, dW, db */
} conv_run_t;

static void open_run(conv_run_t *r)
{
    const shape_t *s = &r->p->s;
    const weft_layout_t xl = r->x_last ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    const weft_layout_t yl = r->y_last ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    r->x = tensor(4, (int64_t[]){s->n, s->c, s->in[0], s->in[1]}, xl);
    r->w = tensor(4, (int64_t[]){s->o, s->c / s->g, s->k[0], s->k[1]}, WEFT_LAYOUT_PLAIN);
    r->b = tensor(1, (int64_t[]){s->o}, WEFT_LAYOUT_PLAIN);
    r->y = tensor(4, (int64_t[]){s->n, s->o, s->out[0], s->out[1]}, yl);
    r->xs = r->x_last ? permuted(r->p->x, s->n, s->c, s->in[0] * s->in[1], true) : r->p->x;
    r->dys = r->y_last ? permuted(r->p->dy, s->n, s->o, s->out[0] * s->out[1], true) : r->p->dy;
    r->got[0] = random_elems(r->p->y_count);
    r->got[1] = random_elems(r->p->x_count);
    r->got[2] = random_elems(r->p->w_count);
    r->got[3] = random_elems(s->o);
}

static void close_run(conv_run_t *r)
{
    if (r->x_last) {
        free(r->xs);
    }
    if (r->y_last) {
        free(r->dys);
    }
    for (int i = 0; i < 4; i++) {
        free(r->got[i]);
    }
}

static weft_node_desc_t conv_node(const shape_t *s, weft_attr_t attrs[4])
{
    attrs[0] = (weft_attr_t){.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = s->g};
    attrs[1] = (weft_attr_t){
        .name = "strides", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = s->stride};
    attrs[2] = (weft_attr_t){
        .name = "dilations", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = s->dilation};
    attrs[3] =
        (weft_attr_t){.name = "pads", .type = WEFT_ATTR_TYPE_INTS, .count = 4, .ints = s->pad};
    return (weft_node_desc_t){
        .domain = "", .op = "Conv", .version = 11, .name = "conv", .attr_count = 4, .attrs = attrs};
}

static weft_status_t run_forward(conv_run_t *r, const weft_kernel_t *kernel, uint32_t threads,
                                 char name[128])
{
    weft_attr_t attrs[4];
    weft_node_desc_t node = conv_node(&r->p->s, attrs);
    const weft_tensor_desc_t in[3] = {r->x, r->w, r->b};
    node.input_count = r->want_bias ? 3 : 2;
    node.inputs = in;
    node.output_count = 1;
    node.outputs = &r->y;
    return run_node(kernel, &node, threads, (const void *[]){r->xs, r->p->w, r->p->b},
                    (void *[]){r->got[0]}, name);
}

static weft_status_t run_grad(conv_run_t *r, const weft_kernel_t *kernel, uint32_t threads,
                              char name[128])
{
    weft_attr_t attrs[4];
    weft_node_desc_t node = conv_node(&r->p->s, attrs);
    const weft_tensor_desc_t in[3] = {r->y, r->x, r->w};
    weft_tensor_desc_t out[3] = {r->x, r->w, r->b};
    node.domain = "com.microsoft";
    node.op = "ConvGrad";
    node.input_count = 3;
    node.inputs = in;
    node.output_count = r->want_bias ? 3 : 2;
    node.outputs = out;
    if (!r->want_dx) {
        out[0].dtype = WEFT_DTYPE_NONE;
    }
    return run_node(
        kernel, &node, threads, (const void *[]){r->dys, r->xs, r->p->w},
        (void *[]){r->want_dx ? r->got[1] : NULL, r->got[2], r->want_bias ? r->got[3] : NULL},
        name);
}

/* Compares with the loops in double precision. */
static void assert_forward(const conv_run_t *r, const char *name)
{
    const shape_t *s = &r->p->s;
    const int64_t terms = s->c / s->g * s->k[0] * s->k[1], area = s->out[0] * s->out[1];
    float *plain = permuted(r->got[0], s->n, s->o, area, false);
    double *expected = malloc((size_t)r->p->y_count * sizeof *expected);
    for (int64_t i = 0; i < r->p->y_count; i++) {
        expected[i] = r->p->y[i] - (r->want_bias ? 0 : (double)r->p->b[i / area % s->o]);
    }
    assert_near(r->y_last ? plain : r->got[0], expected, r->p->y_count, terms, name);
    free(plain);
    free(expected);
}

static void assert_grad(const conv_run_t *r, const char *name)
{
    const shape_t *s = &r->p->s;
    const int64_t sum = s->n * s->out[0] * s->out[1];
    if (r->want_dx) {
        float *plain = permuted(r->got[1], s->n, s->c, s->in[0] * s->in[1], false);
        assert_near(r->x_last ? plain : r->got[1], r->p->dx, r->p->x_count,
                    s->o / s->g * s->k[0] * s->k[1], name);
        free(plain);
    }
    assert_near(r->got[2], r->p->dw, r->p->w_count, sum, name);
    if (r->want_bias) {
        assert_near(r->got[3], r->p->db, s->o, sum, name);
    }
}

/* Exact kernels are the second oracle. */
static void assert_like_exact(const conv_run_t *r, bool grad, const char *name)
{
    conv_run_t exact = *r;
    char exact_name[128];
    const int64_t counts[4] = {r->p->y_count, r->want_dx ? r->p->x_count : 0, r->p->w_count,
                               r->want_bias ? r->p->s.o : 0};
    open_run(&exact);
    assert_int_equal(grad ? run_grad(&exact, &wefti_kernel_conv_grad, 1, exact_name)
                          : run_forward(&exact, &wefti_kernel_conv, 1, exact_name),
                     WEFT_OK);
    for (int i = grad ? 1 : 0; i < (grad ? 4 : 1); i++) {
        double *expected = malloc((size_t)counts[i] * sizeof *expected + 1);
        for (int64_t e = 0; e < counts[i]; e++) {
            expected[e] = (double)exact.got[i][e];
        }
        assert_near(r->got[i], expected, counts[i], 2000, name);
        free(expected);
    }
    close_run(&exact);
}

typedef struct taken {
    int forward, grad, of;
} taken_t;

static void check_conv(const problem_t *p, bool x_last, bool y_last, uint32_t threads,
                       taken_t *taken)
{
    conv_run_t r = {.p = p,
                    .x_last = x_last,
                    .y_last = y_last,
                    .want_bias = (uint32_t)test_next_random(&random_state) % 4 != 0,
                    .want_dx = (uint32_t)test_next_random(&random_state) % 4 != 0};
    char name[128] = "";
    open_run(&r);
    weft_status_t status = run_forward(&r, &wefti_onednn_conv, threads, name);
    assert_true(status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED);
    if (status == WEFT_OK) {
        assert_null(strstr(name, "ref"));
        assert_forward(&r, name);
        assert_like_exact(&r, false, name);
        taken->forward++;
    }
    status = run_grad(&r, &wefti_onednn_conv_grad, threads, name);
    assert_true(status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED);
    if (status == WEFT_OK) {
        assert_null(strstr(name, "ref"));
        assert_grad(&r, name);
        assert_like_exact(&r, true, name);
        taken->grad++;
    }
    taken->of++;
    close_run(&r);
}

static void check_shape(shape_t s, taken_t *taken)
{
    problem_t p;
    make_problem(s, &p);
    check_conv(&p, false, false, 1, taken);
    check_conv(&p, true, true, 1, taken);
    check_conv(&p, false, true, 1, taken);
    check_conv(&p, true, false, 2, taken);
    free_problem(&p);
}

#define SQUARE(images, from, to, groups, size, kernel, step, spread, border)                       \
    {                                                                                              \
        .n = images, .c = from, .o = to, .g = groups, .in = {size, size}, .k = {kernel, kernel},   \
        .stride = {step, step}, .dilation = {spread, spread}, .pad = {                             \
            border,                                                                                \
            border,                                                                                \
            border,                                                                                \
            border                                                                                 \
        }                                                                                          \
    }

/* LeNet's, ResNet's, groups, depthwise, strides and dilations are all taken, in any layout. */
static void test_convolutions_of_models_are_taken(void **state)
{
    static const shape_t shapes[] = {
        SQUARE(3, 1, 6, 1, 28, 5, 1, 1, 2),   SQUARE(3, 6, 16, 1, 14, 5, 1, 1, 0),
        SQUARE(1, 3, 64, 1, 30, 7, 2, 1, 3),  SQUARE(1, 64, 64, 1, 14, 3, 1, 1, 1),
        SQUARE(2, 64, 32, 1, 8, 1, 1, 1, 0),  SQUARE(2, 32, 64, 1, 9, 3, 2, 1, 1),
        SQUARE(2, 32, 32, 2, 9, 3, 1, 1, 1),  SQUARE(2, 32, 32, 32, 9, 3, 1, 1, 1),
        SQUARE(1, 16, 16, 1, 15, 3, 1, 2, 2), SQUARE(2, 16, 32, 1, 10, 1, 2, 1, 0),
    };
    taken_t taken = {0, 0, 0};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(shapes[i], &taken);
    }
    print_message("forward %d, gradients %d of %d taken\n", taken.forward, taken.grad, taken.of);
    if (wefti_isa_detect() == WEFT_ISA_AVX512) {
        assert_int_equal(taken.forward, taken.of);
        assert_int_equal(taken.grad, taken.of);
    }
}

static void test_random_convolutions(void **state)
{
    taken_t taken = {0, 0, 0};
    (void)state;
    print_message("seed %u\n", (uint32_t)random_state);
    for (int i = 0; i < 40; i++) {
        shape_t s = {.n = between(1, 4), .g = between(1, 3)};
        s.c = s.g * between(1, 20);
        s.o = s.g * between(1, 20);
        for (int d = 0; d < 2; d++) {
            s.k[d] = between(1, 4);
            s.stride[d] = between(1, 3);
            s.dilation[d] = between(1, 2);
            s.pad[d] = between(0, 3);
            s.pad[d + 2] = between(0, 3);
            s.in[d] = (s.k[d] - 1) * s.dilation[d] + between(1, 10);
        }
        check_shape(s, &taken);
    }
    print_message("forward %d, gradients %d of %d taken\n", taken.forward, taken.grad, taken.of);
    assert_true(taken.forward > 0 && taken.grad > 0);
}

/* Which nodes are declined, and why, is said. */
static void assert_declines(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                            const weft_kernel_env_t *env, weft_status_t expected, const char *why)
{
    void *state = &state;
    size_t bytes = 0;
    assert_int_equal(kernel->prepare(node, env, &state, &bytes), expected);
    assert_null(state);
    if (strstr(weft_last_error(), why) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", weft_last_error(), why);
    }
}

static void test_what_is_declined(void **state)
{
    weft_tensor_desc_t in[3] = {tensor(2, (int64_t[]){4, 5}, WEFT_LAYOUT_PLAIN),
                                tensor(2, (int64_t[]){5, 6}, WEFT_LAYOUT_PLAIN),
                                tensor(1, (int64_t[]){6}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out = tensor(2, (int64_t[]){4, 6}, WEFT_LAYOUT_PLAIN);
    const weft_attr_t beta = {.name = "beta", .type = WEFT_ATTR_TYPE_FLOAT, .f = 0.5f};
    weft_node_desc_t node = {.domain = "",
                             .op = "Gemm",
                             .version = 13,
                             .name = "g",
                             .input_count = 3,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out,
                             .attr_count = 1,
                             .attrs = &beta};
    weft_kernel_env_t env = environment(1), portable = env;
    (void)state;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_UNSUPPORTED, "beta");
    node.attr_count = 0;
    portable.isa = 0; /* oneDNN would not obey */
    assert_declines(&wefti_onednn_gemm, &node, &portable, WEFT_ERR_UNSUPPORTED, "in this process");
    in[1].dims[0] = 7;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_INVALID_ARGUMENT, "inner dimensions");
    in[1].dims[0] = 5;
    out.dims[0] = 3;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_INVALID_ARGUMENT,
                    "does not match the inputs");
    out.dims[0] = 4;
    in[2].dims[0] = 4;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_INVALID_ARGUMENT, "broadcast");
    in[0].dtype = WEFT_DTYPE_F64;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_UNSUPPORTED, "f64");
    node.input_count = 1;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_INVALID_ARGUMENT, "two inputs");
    /* Offsets of more than 31 bits. */
    in[0] = tensor(2, (int64_t[]){40000, 40000}, WEFT_LAYOUT_PLAIN);
    in[1] = tensor(2, (int64_t[]){40000, 1}, WEFT_LAYOUT_PLAIN);
    out = tensor(2, (int64_t[]){40000, 1}, WEFT_LAYOUT_PLAIN);
    node.input_count = 2;
    assert_declines(&wefti_onednn_gemm, &node, &env, WEFT_ERR_UNSUPPORTED, "too large");
}

/* Adding a column is what this library has reference code for; the exact kernel computes it. */
static void test_reference_code_is_declined(void **state)
{
    const float a[2] = {1, 2}, b[3] = {1, 10, 100}, c[2] = {0.5f, 0.25f};
    const float expected[6] = {1.5f, 10.5f, 100.5f, 2.25f, 20.25f, 200.25f};
    const weft_tensor_desc_t in[3] = {tensor(2, (int64_t[]){2, 1}, WEFT_LAYOUT_PLAIN),
                                      tensor(2, (int64_t[]){1, 3}, WEFT_LAYOUT_PLAIN),
                                      tensor(2, (int64_t[]){2, 1}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out = tensor(2, (int64_t[]){2, 3}, WEFT_LAYOUT_PLAIN);
    const weft_node_desc_t node = {.domain = "",
                                   .op = "Gemm",
                                   .version = 13,
                                   .name = "g",
                                   .input_count = 3,
                                   .inputs = in,
                                   .output_count = 1,
                                   .outputs = &out};
    const weft_kernel_env_t env = environment(1);
    weft_registry_t *registry = NULL;
    float y[6];
    char name[128];
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    const weft_kernel_t *first = weft_registry_find_kernel_of(registry, "onednn", "", "Gemm", 13);
    const weft_kernel_t *second = weft_registry_find_kernel(registry, "", "Gemm", 13);
    assert_ptr_equal(first, &wefti_onednn_gemm);
    assert_declines(first, &node, &env, WEFT_ERR_UNSUPPORTED, "reference code (ref:any)");
    assert_int_equal(run_node(second, &node, 1, (const void *[]){a, b, c}, (void *[]){y}, name),
                     WEFT_OK);
    assert_memory_equal(y, expected, sizeof y);
    assert_non_null(strstr(name, "gemm:"));
    weft_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_products_of_the_models_are_taken, need_vectors),
        cmocka_unit_test_setup(test_random_gemms, need_vectors),
        cmocka_unit_test_setup(test_random_matmuls, need_vectors),
        cmocka_unit_test_setup(test_matmul_of_vectors, need_vectors),
        cmocka_unit_test_setup(test_convolutions_of_models_are_taken, need_vectors),
        cmocka_unit_test_setup(test_random_convolutions, need_vectors),
        cmocka_unit_test_setup(test_what_is_declined, need_vectors),
        cmocka_unit_test_setup(test_reference_code_is_declined, need_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
