/* SPDX-License-Identifier: Apache-2.0 */
/* Conv, ConvGrad and ConvTranspose against plain loops in double precision, bit for bit across
 * instruction sets, threads and layouts. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/compute/conv_lanes.h"
#include "ops/compute/product_kernels.h"
#include "tests/support/support.h"
#include "tests/support/support_fence.h"

static uint64_t random_state = 77003;

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)(test_next_random(&random_state) % (uint64_t)(high - low + 1));
}

/* One convolution: n images, c -> o channels. */
typedef struct shape {
    int64_t n, c, o, g, in[2], k[2], stride[2], dilation[2], pad[4], out[2];
} shape_t;

static weft_tensor_desc_t tensor(uint32_t rank, const int64_t *dims, weft_layout_t layout)
{
    weft_tensor_desc_t d = {.dtype = WEFT_DTYPE_F32, .rank = rank, .layout = layout};
    for (uint32_t i = 0; i < rank; i++) {
        d.dims[i] = dims[i];
    }
    return d;
}

static float *random_elems(int64_t count)
{
    float *data = malloc((size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++) {
        data[i] = (float)(test_next_random(&random_state) >> 40) / 8388608.0f - 1.0f;
    }
    return data;
}

/* [n, c, h, w] to [n, h, w, c], or back. */
static float *permute(const float *src, int64_t n, int64_t c, int64_t area, int to_last)
{
    float *dst = malloc((size_t)(n * c * area) * sizeof *dst);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < c; j++) {
            for (int64_t p = 0; p < area; p++) {
                const int64_t plain = (i * c + j) * area + p, last = (i * area + p) * c + j;
                dst[to_last ? last : plain] = src[to_last ? plain : last];
            }
        }
    }
    return dst;
}

typedef struct problem {
    shape_t s;
    float *x, *w, *b, *dy;
    double *y, *dx, *dw, *db;
    int64_t x_count, w_count, y_count;
} problem_t;

/* Visits every product of the convolution once. */
static void reference(problem_t *p)
{
    const shape_t *s = &p->s;
    const int64_t cg = s->c / s->g, og = s->o / s->g;
    for (int64_t i = 0; i < p->y_count; i++) {
        const int64_t x0 = i % s->out[1], y0 = i / s->out[1] % s->out[0];
        const int64_t o = i / (s->out[1] * s->out[0]) % s->o,
                      n = i / (s->out[1] * s->out[0] * s->o);
        p->y[i] = p->b[o];
        p->db[o] += p->dy[i];
        for (int64_t t = 0; t < cg * s->k[0] * s->k[1]; t++) {
            const int64_t kx = t % s->k[1], ky = t / s->k[1] % s->k[0], c = t / (s->k[1] * s->k[0]);
            const int64_t ix = x0 * s->stride[1] + kx * s->dilation[1] - s->pad[1];
            const int64_t iy = y0 * s->stride[0] + ky * s->dilation[0] - s->pad[0];
            if (ix < 0 || iy < 0 || ix >= s->in[1] || iy >= s->in[0]) {
                continue;
            }
            const int64_t xi = ((n * s->c + o / og * cg + c) * s->in[0] + iy) * s->in[1] + ix;
            const int64_t wi = o * cg * s->k[0] * s->k[1] + t;
            p->y[i] += (double)p->x[xi] * p->w[wi];
            p->dx[xi] += (double)p->dy[i] * p->w[wi];
            p->dw[wi] += (double)p->dy[i] * p->x[xi];
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

static void assert_near(const float *got, const double *expected, int64_t count, int64_t terms)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(got[i] - expected[i]) <= 2e-7 * (double)(terms + 20))) {
            fail_msg("element %lld is %g, expected %g", (long long)i, (double)got[i], expected[i]);
        }
    }
}

/* Runs a kernel with NaN in scratch and outputs; run must not allocate. */
static void run_node(const weft_kernel_t *kernel, const weft_node_desc_t *node, weft_isa_t isa,
                     uint32_t threads, const void *const *inputs, void *const *outputs)
{
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = isa;
    env.thread_count = threads;
    void *state = NULL;
    size_t bytes = 0;
    if (kernel->prepare(node, &env, &state, &bytes) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    uint8_t *scratch = aligned_alloc(64, (bytes + 191) / 64 * 64);
    memset(scratch, 0xff, bytes + 64);
    const weft_kernel_call_t call = {state, inputs, outputs, scratch};
    const struct mallinfo2 before = mallinfo2();
    assert_int_equal(test_run_fenced(kernel, node, &call), WEFT_OK);
    const struct mallinfo2 after = mallinfo2();
    if (threads == 1) { /* workers are created at first use */
        assert_true(before.uordblks == after.uordblks && before.hblks == after.hblks);
    }
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(scratch[bytes + i], 0xff);
    }
    free(scratch);
    kernel->destroy(state);
}

/* ConvTranspose of dY is the gradient of the input, plus a bias. grad: the ConvGrad node. */
static void check_transposed(const weft_node_desc_t *grad, weft_isa_t isa, uint32_t threads,
                             const void *const *inputs, weft_tensor_desc_t *y, const float *dx)
{
    const int64_t *dims = y->dims, count = weft_tensor_elem_count(y);
    const weft_tensor_desc_t *w = &grad->inputs[2];
    const int64_t *stride = grad->attrs[1].ints, *dilation = grad->attrs[2].ints;
    const int64_t *pads = grad->attrs[3].ints;
    int64_t extra[2];
    weft_attr_t attrs[6];
    memcpy(attrs, grad->attrs, 5 * sizeof *attrs);
    for (int d = 0; d < 2; d++) {
        int64_t covered = (w->dims[d + 2] - 1) * dilation[d] + 1;
        extra[d] = (dims[d + 2] + pads[d] + pads[d + 2] - covered) % stride[d];
    }
    attrs[5] = (weft_attr_t){
        .name = "output_padding", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = extra};
    weft_tensor_desc_t in[3] = {grad->inputs[0], *w,
                                tensor(1, (int64_t[]){dims[1]}, WEFT_LAYOUT_PLAIN)};
    weft_node_desc_t node = {.domain = "",
                             .op = "ConvTranspose",
                             .version = 11,
                             .name = "t",
                             .input_count = 2,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = y,
                             .attr_count = 6,
                             .attrs = attrs};
    float *got = malloc((size_t)count * sizeof *got), *bias = random_elems(dims[1]);
    run_node(&wefti_kernel_conv_transpose, &node, isa, threads, inputs, (void *[]){got});
    assert_memory_equal(got, dx, (size_t)count * sizeof *got);
    node.input_count = 3;
    run_node(&wefti_kernel_conv_transpose, &node, isa, threads,
             (const void *[]){inputs[0], inputs[1], bias}, (void *[]){got});
    const bool last = y->layout == WEFT_LAYOUT_CHANNELS_LAST;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = last ? i % dims[1] : i / (dims[2] * dims[3]) % dims[1];
        assert_true(fabsf(got[i] - dx[i] - bias[c]) <= 1e-5f * (1 + fabsf(dx[i])));
    }
    free(got);
    free(bias);
}

static void check(const problem_t *p, weft_isa_t isa, uint32_t threads, int x_last, int y_last,
                  float **bits)
{
    const shape_t *s = &p->s;
    const weft_layout_t xl = x_last ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    const weft_layout_t yl = y_last ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    weft_tensor_desc_t x = tensor(4, (int64_t[]){s->n, s->c, s->in[0], s->in[1]}, xl);
    weft_tensor_desc_t w =
        tensor(4, (int64_t[]){s->o, s->c / s->g, s->k[0], s->k[1]}, WEFT_LAYOUT_PLAIN);
    weft_tensor_desc_t b = tensor(1, (int64_t[]){s->o}, WEFT_LAYOUT_PLAIN);
    weft_tensor_desc_t y = tensor(4, (int64_t[]){s->n, s->o, s->out[0], s->out[1]}, yl);
    const weft_attr_t attrs[] = {
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = s->g},
        {.name = "strides", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = s->stride},
        {.name = "dilations", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = s->dilation},
        {.name = "pads", .type = WEFT_ATTR_TYPE_INTS, .count = 4, .ints = s->pad},
        {.name = "kernel_shape", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = s->k}};
    const int64_t in_area = s->in[0] * s->in[1], out_area = s->out[0] * s->out[1];
    float *xs = x_last ? permute(p->x, s->n, s->c, in_area, 1) : p->x;
    float *dys = y_last ? permute(p->dy, s->n, s->o, out_area, 1) : p->dy;
    float *got[4];
    const int64_t counts[4] = {p->y_count, p->x_count, p->w_count, s->o};
    for (int i = 0; i < 4; i++) {
        got[i] = malloc((size_t)counts[i] * sizeof(float));
        memset(got[i], 0xff, (size_t)counts[i] * sizeof(float));
    }
    weft_tensor_desc_t forward_in[3] = {x, w, b}, grad_in[3] = {y, x, w}, grad_out[3] = {x, w, b};
    weft_node_desc_t node = {.domain = "",
                             .op = "Conv",
                             .version = 11,
                             .name = "c",
                             .input_count = 3,
                             .inputs = forward_in,
                             .output_count = 1,
                             .outputs = &y,
                             .attr_count = 5,
                             .attrs = attrs};
    run_node(&wefti_kernel_conv, &node, isa, threads, (const void *[]){xs, p->w, p->b},
             (void *[]){got[0]});
    node.domain = "com.microsoft";
    node.op = "ConvGrad";
    node.inputs = grad_in;
    node.outputs = grad_out;
    node.output_count = 3;
    run_node(&wefti_kernel_conv_grad, &node, isa, threads, (const void *[]){dys, xs, p->w},
             (void *[]){got[1], got[2], got[3]});
    check_transposed(&node, isa, threads, (const void *[]){dys, p->w}, &x, got[1]);
    for (int i = 0; i < 2; i++) {
        if (i == 0 ? y_last : x_last) {
            float *plain =
                permute(got[i], s->n, i == 0 ? s->o : s->c, i == 0 ? out_area : in_area, 0);
            free(got[i]);
            got[i] = plain;
        }
    }
    assert_near(got[0], p->y, p->y_count, s->c / s->g * s->k[0] * s->k[1]);
    assert_near(got[1], p->dx, p->x_count, s->o / s->g * s->k[0] * s->k[1]);
    assert_near(got[2], p->dw, p->w_count, s->n * out_area);
    assert_near(got[3], p->db, s->o, s->n * out_area);
    for (int i = 0; i < 4; i++) {
        if (bits[i] == NULL) {
            bits[i] = got[i];
        } else {
            assert_memory_equal(got[i], bits[i], (size_t)counts[i] * sizeof(float));
            free(got[i]);
        }
    }
    if (x_last) {
        free(xs);
    }
    if (y_last) {
        free(dys);
    }
}

/* Checked code is thirty times slower: fewer images go through the same code. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RANDOM_SHAPES 10
#define RANDOM_IMAGES 18
#define LENET_IMAGES 32
#define PORTABLE_LAYOUTS 1
#else
#define PORTABLE_LAYOUTS 2
#define RANDOM_SHAPES 40
#define RANDOM_IMAGES 40
#define LENET_IMAGES 48
#endif

static void check_shape(shape_t s)
{
    problem_t p;
    float *bits[4] = {NULL};
    make_problem(s, &p);
    /* Products by fmaf are slow: with PORTABLE_LAYOUTS 1 one layout, by the width of the input. */
    for (int i = 0; i < PORTABLE_LAYOUTS; i++) {
        const int last = (int)(s.in[1] + i) % 2;
        check(&p, WEFT_ISA_PORTABLE, 1, last, last, bits);
    }
    for (weft_isa_t isa = WEFT_ISA_AVX2; isa <= WEFT_ISA_AVX512; isa++) {
        check(&p, isa, 1, 0, 0, bits);
        check(&p, isa, 1, 1, 1, bits);
    }
    check(&p, 2, 1, 0, 1, bits);
    check(&p, 2, 3, 1, 0, bits);
    check(&p, 1, 64, 0, 0, bits);
    for (int i = 0; i < 4; i++) {
        free(bits[i]);
    }
    free_problem(&p);
}

static void test_conv_fixed_shapes(void **state)
{
    (void)state;
    static const shape_t shapes[] = {
        {.n = 3,
         .c = 1,
         .o = 6,
         .g = 1,
         .in = {28, 28},
         .k = {5, 5},
         .stride = {1, 1},
         .dilation = {1, 1},
         .pad = {2, 2, 2, 2}},
        {.n = 9,
         .c = 6,
         .o = 16,
         .g = 1,
         .in = {14, 14},
         .k = {5, 5},
         .stride = {1, 1},
         .dilation = {1, 1}},
        {.n = 1,
         .c = 1,
         .o = 1,
         .g = 1,
         .in = {1, 1},
         .k = {1, 1},
         .stride = {1, 1},
         .dilation = {1, 1}},
        {.n = 2,
         .c = 8,
         .o = 8,
         .g = 8,
         .in = {9, 7},
         .k = {3, 3},
         .stride = {1, 1},
         .dilation = {1, 1},
         .pad = {1, 1, 1, 1}},
        {.n = 2,
         .c = 4,
         .o = 6,
         .g = 2,
         .in = {11, 12},
         .k = {3, 2},
         .stride = {2, 3},
         .dilation = {2, 1},
         .pad = {3, 0, 1, 2}},
        {.n = 2,
         .c = 40,
         .o = 5,
         .g = 1,
         .in = {8, 8},
         .k = {3, 3},
         .stride = {2, 2},
         .dilation = {1, 1},
         .pad = {1, 1, 1, 1}},
        {.n = 1,
         .c = 3,
         .o = 7,
         .g = 1,
         .in = {10, 10},
         .k = {1, 1},
         .stride = {2, 2},
         .dilation = {1, 1}},
        {.n = 1,
         .c = 2,
         .o = 2,
         .g = 1,
         .in = {3, 3},
         .k = {2, 2},
         .stride = {1, 1},
         .dilation = {1, 1},
         .pad = {4, 3, 4, 5}},
        /* more taps, outputs and rows than one panel or block has; images share panels */
        {.n = 7,
         .c = 70,
         .o = 117,
         .g = 1,
         .in = {9, 11},
         .k = {3, 3},
         .stride = {2, 1},
         .dilation = {1, 1},
         .pad = {1, 1, 1, 0}},
        {.n = 2,
         .c = 5,
         .o = 300,
         .g = 1,
         .in = {21, 23},
         .k = {1, 1},
         .stride = {1, 1},
         .dilation = {1, 1}},
        /* depthwise: strides, more taps than one chain has, two rows per group */
        {.n = 9,
         .c = 5,
         .o = 5,
         .g = 5,
         .in = {14, 13},
         .k = {5, 5},
         .stride = {2, 2},
         .dilation = {1, 1},
         .pad = {2, 2, 2, 2}},
        {.n = 2,
         .c = 2,
         .o = 2,
         .g = 2,
         .in = {20, 18},
         .k = {17, 17},
         .stride = {1, 1},
         .dilation = {1, 1},
         .pad = {8, 8, 8, 8}},
        {.n = 3,
         .c = 3,
         .o = 6,
         .g = 3,
         .in = {12, 10},
         .k = {3, 4},
         .stride = {3, 4},
         .dilation = {2, 1},
         .pad = {0, 1, 2, 0}},
        {.n = 2,
         .c = 35,
         .o = 35,
         .g = 35,
         .in = {11, 12},
         .k = {3, 7},
         .stride = {1, 2},
         .dilation = {2, 1},
         .pad = {2, 5, 1, 3}},
        {.n = 3,
         .c = 16,
         .o = 16,
         .g = 16,
         .in = {9, 10},
         .k = {2, 3},
         .stride = {3, 4},
         .dilation = {1, 3},
         .pad = {0, 1, 2, 0}},
        /* depthwise: several bands of lines */
        {.n = 1,
         .c = 9,
         .o = 9,
         .g = 9,
         .in = {97, 90},
         .k = {5, 5},
         .stride = {2, 1},
         .dilation = {1, 2},
         .pad = {2, 4, 2, 4}},
        /* inputs that no tap reaches, in front of, between and after those of taps */
        {.n = 2,
         .c = 6,
         .o = 9,
         .g = 1,
         .in = {13, 14},
         .k = {2, 2},
         .stride = {4, 3},
         .dilation = {2, 3},
         .pad = {0, 1, 0, 0}},
        {.n = 1,
         .c = 4,
         .o = 4,
         .g = 1,
         .in = {30, 1},
         .k = {2, 1},
         .stride = {4, 2},
         .dilation = {5, 1},
         .pad = {7, 0, 3, 0}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(shapes[i]);
    }
}

/* Enough small images for lanes of them; whether a shape takes that form is checked, too. */
static void test_conv_lanes_of_images(void **state)
{
    (void)state;
    static const struct {
        shape_t s;
        int forward, data_grad, dw;
    } cases[] = {
        /* LeNet's; a last block that is not full */
        {{.n = LENET_IMAGES, .c = 1, .o = 6, .in = {28, 28}, .k = {5, 5}, .pad = {2, 2, 2, 2}},
         1,
         1,
         1},
        {{.n = LENET_IMAGES - 3, .c = 6, .o = 16, .in = {14, 14}, .k = {5, 5}}, 1, 1, 1},
        /* more taps than one chain takes; rows of several tiles; a last tile of one column */
        {{.n = 16, .c = 70, .o = 15, .in = {6, 7}, .k = {3, 3}}, 1, 1, 1},
        /* padding wider than an image, and uneven */
        {{.n = 32, .c = 9, .o = 20, .in = {4, 5}, .k = {5, 7}, .pad = {4, 5, 2, 6}}, 1, 1, 1},
        {{.n = 16, .c = 8, .o = 24, .in = {9, 8}, .k = {3, 2}, .dilation = {2, 3}}, 1, 1, 1},
        /* one line, and windows that see nothing but padding */
        {{.n = 16, .c = 16, .o = 16, .in = {1, 3}, .k = {3, 1}, .pad = {2, 0, 2, 0}}, 1, 1, 1},
        /* not: too few images, strides, groups, gradients that would have to be cut */
        {{.n = 15, .c = 6, .o = 16, .in = {14, 14}, .k = {5, 5}}, 0, 0, 0},
        {{.n = 16, .c = 8, .o = 16, .in = {9, 9}, .k = {3, 3}, .stride = {2, 1}}, 0, 0, 0},
        {{.n = 16, .c = 8, .o = 16, .g = 2, .in = {9, 9}, .k = {3, 3}}, 0, 0, 0},
        {{.n = 16, .c = 8, .o = 16, .in = {5, 5}, .k = {2, 2}, .pad = {2, 2, 0, 0}}, 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shape_t s = cases[i].s;
        s.g = s.g == 0 ? 1 : s.g;
        for (int d = 0; d < 2; d++) {
            s.stride[d] = s.stride[d] == 0 ? 1 : s.stride[d];
            s.dilation[d] = s.dilation[d] == 0 ? 1 : s.dilation[d];
        }
        check_shape(s);
        wefti_conv_t c = {.images = s.n, .in_channels = s.c, .out_channels = s.o, .groups = s.g};
        for (int d = 0; d < 2; d++) {
            c.in[d] = s.in[d];
            c.kernel[d] = s.k[d];
            c.stride[d] = s.stride[d];
            c.dilation[d] = s.dilation[d];
            c.pad[d] = s.pad[d];
            c.out[d] = (s.in[d] + s.pad[d] + s.pad[d + 2] - (s.k[d] - 1) * s.dilation[d] - 1) /
                           s.stride[d] +
                       1;
        }
        assert_int_equal(wefti_conv_lanes_fit_forward(&c), cases[i].forward);
        assert_int_equal(wefti_conv_lanes_fit_data_grad(&c), cases[i].data_grad);
        assert_int_equal(wefti_conv_lanes_fit_dw(&c), cases[i].dw);
    }
}

/* Threads that share the rows of one image: scratch is enough, and bits are those of one thread. */
static void test_conv_shared_rows(void **state)
{
    (void)state;
    static const struct {
        int64_t o, c;
        uint32_t threads;
    } cases[] = {{384, 384, 2}, {384, 256, 2}, {768, 256, 4}, {576, 256, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t o = cases[i].o, c = cases[i].c, count = o * 49;
        weft_tensor_desc_t in[2] = {tensor(4, (int64_t[]){1, c, 7, 7}, WEFT_LAYOUT_PLAIN),
                                    tensor(4, (int64_t[]){o, c, 1, 1}, WEFT_LAYOUT_PLAIN)};
        weft_tensor_desc_t out = tensor(4, (int64_t[]){1, o, 7, 7}, WEFT_LAYOUT_PLAIN);
        const weft_node_desc_t node = {.domain = "",
                                       .op = "Conv",
                                       .version = 11,
                                       .name = "c",
                                       .input_count = 2,
                                       .inputs = in,
                                       .output_count = 1,
                                       .outputs = &out};
        float *x = random_elems(c * 49), *w = random_elems(o * c), *y[2];
        for (int k = 0; k < 2; k++) {
            y[k] = malloc((size_t)count * sizeof(float));
            run_node(&wefti_kernel_conv, &node, WEFT_ISA_AVX512, k == 0 ? 1 : cases[i].threads,
                     (const void *[]){x, w}, (void *[]){y[k]});
        }
        assert_memory_equal(y[0], y[1], (size_t)count * sizeof(float));
        free(x);
        free(w);
        free(y[0]);
        free(y[1]);
    }
}

static void test_conv_random_shapes(void **state)
{
    (void)state;
    print_message("seed %u\n", (uint32_t)random_state);
    for (int i = 0; i < RANDOM_SHAPES; i++) {
        shape_t s = {.n = between(1, RANDOM_IMAGES), .g = between(1, 2)};
        s.c = s.g * between(1, 9);
        s.o = s.g * between(1, 9);
        if (i % 4 == 0) { /* depthwise */
            s.g = s.o = s.c = between(8, 20);
        }
        for (int d = 0; d < 2; d++) {
            s.k[d] = between(1, 4);
            s.stride[d] = between(1, 4);
            s.dilation[d] = between(1, 3);
            s.pad[d] = between(0, 3);
            s.pad[d + 2] = between(0, 3);
            s.in[d] = (s.k[d] - 1) * s.dilation[d] + between(1, 12);
        }
        check_shape(s);
    }
}

static void test_conv_one_dimension_and_auto_pad(void **state)
{
    (void)state;
    weft_tensor_desc_t in[2] = {tensor(3, (int64_t[]){1, 1, 5}, WEFT_LAYOUT_PLAIN),
                                tensor(3, (int64_t[]){1, 1, 3}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out_desc = tensor(3, (int64_t[]){1, 1, 5}, WEFT_LAYOUT_PLAIN);
    const weft_attr_t attr = {.name = "auto_pad", .type = WEFT_ATTR_TYPE_STRING, .s = "SAME_UPPER"};
    const weft_node_desc_t node = {.domain = "",
                                   .op = "Conv",
                                   .version = 11,
                                   .name = "c",
                                   .input_count = 2,
                                   .inputs = in,
                                   .output_count = 1,
                                   .outputs = &out_desc,
                                   .attr_count = 1,
                                   .attrs = &attr};
    const float x[] = {1, 2, 3, 4, 5}, w[] = {1, 10, 100}, expected[] = {210, 321, 432, 543, 54};
    float out[5];
    run_node(&wefti_kernel_conv, &node, 2, 1, (const void *[]){x, w}, (void *[]){out});
    assert_memory_equal(out, expected, sizeof out);
}

static void test_conv_grad_without_dx_and_db(void **state)
{
    (void)state;
    weft_tensor_desc_t in[3] = {tensor(4, (int64_t[]){1, 1, 2, 2}, WEFT_LAYOUT_PLAIN),
                                tensor(4, (int64_t[]){1, 1, 3, 3}, WEFT_LAYOUT_PLAIN),
                                tensor(4, (int64_t[]){1, 1, 2, 2}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out[2] = {{.dtype = WEFT_DTYPE_NONE}, in[2]};
    const weft_node_desc_t node = {.domain = "com.microsoft",
                                   .op = "ConvGrad",
                                   .version = 1,
                                   .name = "c",
                                   .input_count = 3,
                                   .inputs = in,
                                   .output_count = 2,
                                   .outputs = out};
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, w[] = {1, 1, 1, 1}, dy[] = {1, 0, 0, 10};
    const float expected[] = {51, 62, 84, 95};
    float dw[4];
    run_node(&wefti_kernel_conv_grad, &node, 1, 1, (const void *[]){dy, x, w},
             (void *[]){NULL, dw});
    assert_memory_equal(dw, expected, sizeof dw);
}

/* Sums of -0 keep their sign in both layouts, as do outputs that no tap reaches. */
static void test_conv_negative_zero(void **state)
{
    (void)state;
    enum { CHANNELS = 16, SIZE = 9 };
    const float minus = -0.0f;
    const int64_t stride[2] = {2, 2}, count = CHANNELS * SIZE * SIZE;
    float *x = malloc((size_t)count * sizeof *x), *y = malloc((size_t)count * sizeof *y);
    float w[CHANNELS * CHANNELS], b[CHANNELS];
    for (int64_t i = 0; i < count; i++) {
        x[i] = 1e-30f; /* products with this and the weights are too small for f32 */
    }
    for (int i = 0; i < CHANNELS * CHANNELS; i++) {
        w[i] = -1e-30f;
        b[i % CHANNELS] = minus;
    }
    for (int i = 0; i < 8; i++) {
        const bool transposed = (i & 1) != 0, depthwise = (i & 2) != 0;
        const weft_layout_t layout = (i & 4) != 0 ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
        const int64_t from = transposed ? (SIZE + 1) / 2 : SIZE;
        weft_tensor_desc_t in[3] = {
            tensor(4, (int64_t[]){1, CHANNELS, from, from}, layout),
            tensor(4, (int64_t[]){CHANNELS, depthwise ? 1 : CHANNELS, 1, 1}, WEFT_LAYOUT_PLAIN),
            tensor(1, (int64_t[]){CHANNELS}, WEFT_LAYOUT_PLAIN)};
        weft_tensor_desc_t out = tensor(4, (int64_t[]){1, CHANNELS, SIZE, SIZE}, layout);
        const weft_attr_t attrs[] = {
            {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = depthwise ? CHANNELS : 1},
            {.name = "strides", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = stride}};
        const weft_node_desc_t node = {.domain = "",
                                       .op = transposed ? "ConvTranspose" : "Conv",
                                       .version = 11,
                                       .name = "c",
                                       .input_count = transposed ? 3 : 2,
                                       .inputs = in,
                                       .output_count = 1,
                                       .outputs = &out,
                                       .attr_count = transposed ? 2 : 1,
                                       .attrs = attrs};
        run_node(transposed ? &wefti_kernel_conv_transpose : &wefti_kernel_conv, &node,
                 WEFT_ISA_AVX512, 1, (const void *[]){x, w, b}, (void *[]){y});
        /* lanes of channels add products to 0, and outputs that no tap reaches are the bias */
        for (int64_t p = 0; p < SIZE * SIZE; p++) {
            const bool reached = !transposed || (p / SIZE % 2 == 0 && p % SIZE % 2 == 0);
            for (int64_t c = 0; c < CHANNELS; c++) {
                const int64_t at =
                    layout == WEFT_LAYOUT_PLAIN ? c * SIZE * SIZE + p : p * CHANNELS + c;
                assert_true(y[at] == 0.0f);
                assert_int_equal(signbit(y[at]) != 0, !(depthwise && reached));
            }
        }
    }
    free(x);
    free(y);
}

static void test_conv_refuses(void **state)
{
    (void)state;
    weft_tensor_desc_t in[2] = {tensor(4, (int64_t[]){2, 3, 8, 8}, WEFT_LAYOUT_PLAIN),
                                tensor(4, (int64_t[]){4, 3, 3, 3}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out = tensor(4, (int64_t[]){2, 4, 6, 6}, WEFT_LAYOUT_PLAIN);
    const int64_t bad[2] = {0, 1};
    weft_attr_t attr = {.name = "strides", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = bad};
    weft_node_desc_t node = {.domain = "",
                             .op = "Conv",
                             .version = 11,
                             .name = "c",
                             .input_count = 2,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out,
                             .attr_count = 1,
                             .attrs = &attr};
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = WEFT_ISA_AVX512;
    void *made = NULL;
    size_t bytes = 0;
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    node.attr_count = 0;
    in[0].dims[0] = out.dims[0] = 0;
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    in[0].dims[0] = out.dims[0] = 2;
    out.dims[3] = 7;
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes),
                     WEFT_ERR_INVALID_ARGUMENT);
    out.dims[3] = 6;
    in[1].dims[2] = 9;
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes),
                     WEFT_ERR_INVALID_ARGUMENT);
    in[1].dims[2] = 3;
    attr = (weft_attr_t){.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = 2};
    node.attr_count = 1;
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes),
                     WEFT_ERR_INVALID_ARGUMENT);
    /* depthwise, with lines that no scratch holds */
    attr.i = 8;
    in[0] = tensor(4, (int64_t[]){1, 8, 1 << 14, 1 << 14}, WEFT_LAYOUT_PLAIN);
    in[1] = tensor(4, (int64_t[]){8, 1, 1 << 14, 1}, WEFT_LAYOUT_PLAIN);
    out = tensor(4, (int64_t[]){1, 8, 1, 1 << 14}, WEFT_LAYOUT_PLAIN);
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "too large"));
    /* padding that no scratch holds, whose products would overflow */
    const int64_t dilation[2] = {1 << 20, 15728655};
    const weft_attr_t same[] = {
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = 8},
        {.name = "auto_pad", .type = WEFT_ATTR_TYPE_STRING, .s = "SAME_UPPER"},
        {.name = "dilations", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = dilation}};
    node.attrs = same;
    node.attr_count = 3;
    in[0] = out = tensor(4, (int64_t[]){1, 8, 1 << 20, 1}, WEFT_LAYOUT_PLAIN);
    in[1] = tensor(4, (int64_t[]){8, 1, 2, 69906}, WEFT_LAYOUT_PLAIN);
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "too large"));
    /* more products than lists of them are made for */
    node.attr_count = 0;
    in[0] = in[1] = tensor(4, (int64_t[]){1, 1, 1 << 14, 1 << 14}, WEFT_LAYOUT_PLAIN);
    out = tensor(4, (int64_t[]){1, 1, 1, 1}, WEFT_LAYOUT_PLAIN);
    assert_int_equal(wefti_kernel_conv.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "1 x 16384 x 16384 products are too large"));
    assert_null(made);
    wefti_kernel_conv.destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv_fixed_shapes),
        cmocka_unit_test(test_conv_lanes_of_images),
        cmocka_unit_test(test_conv_shared_rows),
        cmocka_unit_test(test_conv_random_shapes),
        cmocka_unit_test(test_conv_one_dimension_and_auto_pad),
        cmocka_unit_test(test_conv_grad_without_dx_and_db),
        cmocka_unit_test(test_conv_negative_zero),
        cmocka_unit_test(test_conv_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
