/* SPDX-License-Identifier: Apache-2.0 */
/* Gemm, MatMul and FusedMatMul against double precision, and bit for bit across instruction sets.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/compute/product_kernels.h"
#include "tests/support/support.h"
#include "tests/support/support_fence.h"

enum { MAX_ELEMS = 400000, SEED = 20240511 };

static uint64_t random_state = SEED;

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)(test_next_random(&random_state) % (uint64_t)(high - low + 1));
}

static float value(void)
{
    return (float)(test_next_random(&random_state) >> 40) / 8388608.0f - 1.0f;
}

static weft_tensor_desc_t tensor(uint32_t rank, const int64_t *dims)
{
    weft_tensor_desc_t d = {.dtype = WEFT_DTYPE_F32, .rank = rank};
    for (uint32_t i = 0; i < rank; i++) {
        d.dims[i] = dims[i];
    }
    return d;
}

static weft_attr_t int_attr(const char *name, int64_t i)
{
    return (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_INT, .i = i};
}

static weft_attr_t float_attr(const char *name, float f)
{
    return (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_FLOAT, .f = f};
}

/* Runs kernel once; guard words around the output and the scratch must survive. */
static weft_status_t run_node(const weft_kernel_t *kernel, weft_node_desc_t *node, weft_isa_t isa,
                              uint32_t threads, const void *const *inputs, float *out)
{
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = isa;
    env.thread_count = threads;
    const size_t elems = (size_t)weft_tensor_elem_count(&node->outputs[0]);
    void *state = NULL;
    size_t scratch_bytes = 0;
    weft_status_t status = kernel->prepare(node, &env, &state, &scratch_bytes);
    if (status != WEFT_OK) {
        assert_null(state);
        return status;
    }
    assert_non_null(kernel->implementation(state));
    uint8_t *scratch = aligned_alloc(64, (scratch_bytes + 191) / 64 * 64);
    memset(scratch, 0xff, scratch_bytes + 64); /* NaN: whoever reads before writing shows */
    memset(out, 0xff, (elems + 1) * sizeof *out);
    void *outputs[1] = {out};
    const weft_kernel_call_t call = {state, inputs, outputs, scratch};
    assert_int_equal(test_run_fenced(kernel, node, &call), WEFT_OK);
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(scratch[scratch_bytes + i], 0xff);
    }
    assert_true(isnan(out[elems]));
    free(scratch);
    kernel->destroy(state);
    return WEFT_OK;
}

static void compare_isas(const weft_kernel_t *kernel, weft_node_desc_t *node,
                         const void *const *inputs, const float *expected)
{
    const size_t elems = (size_t)weft_tensor_elem_count(&node->outputs[0]);
    float *out = malloc((elems + 1) * sizeof *out);
    for (weft_isa_t isa = 0; isa < 3; isa++) {
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            assert_int_equal(run_node(kernel, node, isa, threads, inputs, out), WEFT_OK);
            assert_memory_equal(out, expected, elems * sizeof *out);
        }
    }
    free(out);
}

static float *random_elems(size_t count)
{
    float *data = malloc((count + 1) * sizeof *data);
    for (size_t i = 0; i < count; i++) {
        data[i] = value();
    }
    return data;
}

/* One Gemm with every attribute drawn at random. */
static void check_gemm(int64_t m, int64_t n, int64_t k)
{
    const int ta = (uint32_t)test_next_random(&random_state) & 1,
              tb = (uint32_t)test_next_random(&random_state) & 1, bias_kind = (int)between(0, 4);
    const float alpha = (uint32_t)test_next_random(&random_state) & 1 ? 1 : 0.5f,
                beta = (uint32_t)test_next_random(&random_state) & 1 ? 1 : -0.25f;
    const weft_attr_t attrs[] = {int_attr("transA", ta), int_attr("transB", tb),
                                 float_attr("alpha", alpha), float_attr("beta", beta)};
    static const uint32_t bias_rank[5] = {0, 0, 1, 2, 2};
    const int64_t bias_dims[5][2] = {{0, 0}, {0, 0}, {n, 0}, {m, 1}, {m, n}};
    weft_tensor_desc_t in[3] = {tensor(2, ta ? (int64_t[]){k, m} : (int64_t[]){m, k}),
                                tensor(2, tb ? (int64_t[]){n, k} : (int64_t[]){k, n}),
                                tensor(bias_rank[bias_kind], bias_dims[bias_kind])};
    weft_tensor_desc_t out_desc = tensor(2, (int64_t[]){m, n});
    if (bias_kind == 0) {
        in[2].dtype = WEFT_DTYPE_NONE;
    }
    weft_node_desc_t node = {.domain = "",
                             .op = "Gemm",
                             .version = 13,
                             .name = "g",
                             .input_count = 3,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out_desc,
                             .attr_count = 4,
                             .attrs = attrs};
    float *a = random_elems((size_t)(m * k)), *b = random_elems((size_t)(k * n));
    float *c = random_elems((size_t)(m * n)), *out = malloc((size_t)(m * n + 1) * sizeof *out);
    const void *inputs[3] = {a, b, c};
    assert_int_equal(run_node(&wefti_kernel_gemm, &node, 2, 1, inputs, out), WEFT_OK);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) {
                sum +=
                    (double)(ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
            }
            const double add[5] = {0, c[0], c[j], c[i], c[i * n + j]};
            const double expected = alpha * sum + (bias_kind == 0 ? 0 : beta * add[bias_kind]);
            assert_true(fabs(expected - out[i * n + j]) <= 2e-7 * (double)(k + 20));
        }
    }
    compare_isas(&wefti_kernel_gemm, &node, inputs, out);
    free(a);
    free(b);
    free(c);
    free(out);
}

static void test_gemm_matches_double_and_bits(void **state)
{
    (void)state;
    print_message("seed %u\n", (uint32_t)random_state);
    static const int64_t fixed[][3] = {{1, 1, 1},     {1, 10, 300}, {64, 10, 256},
                                       {64, 64, 257}, {7, 1, 5},    {10, 64, 64},
                                       {48, 50, 513}, {3, 129, 1},  {97, 31, 40}};
    check_gemm(131, 530, 260); /* copied in panels */
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        for (int repeat = 0; repeat < 4; repeat++) {
            check_gemm(fixed[i][0], fixed[i][1], fixed[i][2]);
        }
    }
    for (int i = 0; i < 60; i++) {
        check_gemm(between(1, 70), between(1, 70), between(1, i % 8 == 0 ? 600 : 60));
    }
}

static void test_gemm_refuses(void **state)
{
    (void)state;
    weft_tensor_desc_t in[2] = {tensor(2, (int64_t[]){4, 5}), tensor(2, (int64_t[]){5, 6})};
    weft_tensor_desc_t out = tensor(2, (int64_t[]){4, 6});
    weft_node_desc_t node = {.domain = "",
                             .op = "Gemm",
                             .version = 13,
                             .name = "g",
                             .input_count = 2,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out};
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = WEFT_ISA_AVX512;
    void *made = NULL;
    size_t bytes = 0;
    in[0].dims[0] = out.dims[0] = 0;
    assert_int_equal(wefti_kernel_gemm.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    in[0].dims[0] = out.dims[0] = 4;
    in[0].dims[1] = 7;
    assert_int_equal(wefti_kernel_gemm.prepare(&node, &env, &made, &bytes),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "inner dimensions 7 and 5"));
    in[0].dims[1] = 5;
    in[1].dtype = WEFT_DTYPE_F64;
    assert_int_equal(wefti_kernel_gemm.prepare(&node, &env, &made, &bytes), WEFT_ERR_UNSUPPORTED);
    in[1].dtype = WEFT_DTYPE_F32;
    out.dims[1] = 7;
    assert_int_equal(wefti_kernel_gemm.prepare(&node, &env, &made, &bytes),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_null(made);
    wefti_kernel_gemm.destroy(NULL);
}

/* A matrix of the broadcast operand: index of batch (i, j) of [2, 3]. */
static int64_t matrix_at(const weft_tensor_desc_t *d, int64_t i, int64_t j)
{
    if (d->rank == 2) {
        return 0;
    }
    if (d->rank == 3) {
        return d->dims[0] == 1 ? 0 : j;
    }
    return (d->dims[0] == 1 ? 0 : i) * d->dims[1] + (d->dims[1] == 1 ? 0 : j);
}

static void check_matmul(int kind_a, int kind_b, int ta, int tb, int64_t m, int64_t n, int64_t k)
{
    static const int64_t lead[5][2] = {{2, 3}, {1, 3}, {2, 1}, {0, 3}, {0, 0}};
    weft_tensor_desc_t in[2];
    for (int o = 0; o < 2; o++) {
        const int kind = o == 0 ? kind_a : kind_b, turned = o == 0 ? ta : tb;
        const int64_t rows = o == 0 ? m : k, cols = o == 0 ? k : n;
        int64_t dims[4];
        uint32_t rank = 0;
        for (int i = 0; i < 2; i++) {
            if (lead[kind][i] != 0) {
                dims[rank++] = lead[kind][i];
            }
        }
        dims[rank++] = turned ? cols : rows;
        dims[rank++] = turned ? rows : cols;
        in[o] = tensor(rank, dims);
    }
    weft_tensor_desc_t out_desc = tensor(4, (int64_t[]){2, 3, m, n});
    const weft_attr_t attrs[] = {int_attr("transA", ta), int_attr("transB", tb),
                                 float_attr("alpha", 0.5f)};
    weft_node_desc_t node = {.domain = "com.microsoft",
                             .op = "FusedMatMul",
                             .version = 1,
                             .name = "f",
                             .input_count = 2,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out_desc,
                             .attr_count = 3,
                             .attrs = attrs};
    float *a = random_elems((size_t)weft_tensor_elem_count(&in[0]));
    float *b = random_elems((size_t)weft_tensor_elem_count(&in[1]));
    float *out = malloc((size_t)(6 * m * n + 1) * sizeof *out);
    const void *inputs[2] = {a, b};
    assert_int_equal(run_node(&wefti_kernel_fused_matmul, &node, 2, 1, inputs, out), WEFT_OK);
    for (int64_t e = 0; e < 6 * m * n; e++) {
        const int64_t j = e % n, i = e / n % m, batch = e / (m * n);
        const float *am = a + matrix_at(&in[0], batch / 3, batch % 3) * m * k;
        const float *bm = b + matrix_at(&in[1], batch / 3, batch % 3) * k * n;
        double sum = 0;
        for (int64_t l = 0; l < k; l++) {
            sum +=
                (double)(ta ? am[l * m + i] : am[i * k + l]) * (tb ? bm[j * k + l] : bm[l * n + j]);
        }
        assert_true(fabs(0.5 * sum - out[e]) <= 2e-7 * (double)(k + 20));
    }
    compare_isas(&wefti_kernel_fused_matmul, &node, inputs, out);
    free(a);
    free(b);
    free(out);
}

static void test_matmul_broadcasts(void **state)
{
    (void)state;
    print_message("seed %u\n", (uint32_t)random_state);
    for (int kind = 1; kind < 5; kind++) {
        for (int trans = 0; trans < 4; trans++) {
            check_matmul(0, kind, trans & 1, trans >> 1, between(1, 20), between(1, 20),
                         between(1, 40));
            check_matmul(kind, 0, trans & 1, trans >> 1, between(1, 20), between(1, 20),
                         between(1, 40));
        }
    }
    check_matmul(1, 2, 0, 0, 5, 6, 7);
}

static void test_matmul_vectors(void **state)
{
    (void)state;
    weft_tensor_desc_t in[2] = {tensor(1, (int64_t[]){3}), tensor(3, (int64_t[]){2, 3, 2})};
    weft_tensor_desc_t out_desc = tensor(2, (int64_t[]){2, 2});
    weft_node_desc_t node = {.domain = "",
                             .op = "MatMul",
                             .version = 13,
                             .name = "m",
                             .input_count = 2,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &out_desc};
    const float a[] = {1, 2, 3}, b[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const float expected[] = {22, 28, 58, 64};
    float out[5];
    const void *inputs[2] = {a, b};
    assert_int_equal(run_node(&wefti_kernel_matmul, &node, 1, 1, inputs, out), WEFT_OK);
    assert_memory_equal(out, expected, sizeof expected);
    in[1] = tensor(1, (int64_t[]){3});
    out_desc = tensor(0, NULL);
    assert_int_equal(run_node(&wefti_kernel_matmul, &node, 2, 1, (const void *[]){a, a}, out),
                     WEFT_OK);
    assert_true(out[0] == 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm_matches_double_and_bits),
        cmocka_unit_test(test_gemm_refuses),
        cmocka_unit_test(test_matmul_broadcasts),
        cmocka_unit_test(test_matmul_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
