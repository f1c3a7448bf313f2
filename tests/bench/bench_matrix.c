/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products and convolutions of the MLP and of LeNet alone: one line of JSON each, one thread.
 *
 * usage: bench_matrix [ISA]      0 portable, 1 AVX2, 2 AVX-512 (default)
 */
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/compute/conv_f32.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"

enum { REPEATS = 41, WARMUP = 3, BATCH = 64 };

/* One thing to time. */
typedef struct job {
    const wefti_gemm_t *gemm;
    const wefti_conv_pass_t *pass;
    const wefti_conv_dw_t *dw;
    float *a, *b, *c, *scratch;
} job_t;

static float *numbers(int64_t count)
{
    float *p = aligned_alloc(64, ((size_t)count * sizeof *p + 127) / 64 * 64);
    if (p == NULL) {
        fputs("bench_matrix: out of memory\n", stderr);
        exit(2);
    }
    uint32_t random = 1;
    for (int64_t i = 0; i < count; i++) {
        random = random * 1664525u + 1013904223u;
        p[i] = (float)(random >> 8) / 8388608.0f - 1.0f;
    }
    return p;
}

static void run_ours(const job_t *j)
{
    if (j->gemm != NULL) {
        wefti_gemm_run(j->gemm, j->a, j->b, NULL, false, j->c, j->scratch);
    } else if (j->pass != NULL) {
        wefti_conv_pass_run(j->pass, j->a, j->b, NULL, j->c, j->scratch);
    } else {
        wefti_conv_dw_run(j->dw, j->a, j->b, j->c, NULL, j->scratch);
    }
}

static void run_sgemm(const job_t *j)
{
    const wefti_gemm_t *g = j->gemm;
    dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', g->m, g->n, g->k, 1, j->a, g->lda,
               j->b, g->ldb, 0, j->c, g->ldc);
}

static int compare(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

static void report(const char *name, const char *by, double flops, void (*run)(const job_t *),
                   const job_t *job)
{
    uint64_t ns[REPEATS];
    for (int i = -WARMUP; i < REPEATS; i++) {
        const uint64_t begin = wefti_now_ns();
        run(job);
        if (i >= 0) {
            ns[i] = wefti_now_ns() - begin;
        }
    }
    qsort(ns, REPEATS, sizeof *ns, compare);
    printf("{\"name\": \"%s\", \"by\": \"%s\", \"dtype\": \"f32\", \"iterations\": %d, \"min_ns\": "
           "%llu, "
           "\"median_ns\": %llu, \"p90_ns\": %llu, \"gflops\": %.1f}\n",
           name, by, REPEATS, (unsigned long long)ns[0], (unsigned long long)ns[REPEATS / 2],
           (unsigned long long)ns[REPEATS * 9 / 10], flops / (double)ns[REPEATS / 2]);
}

static void bench_gemm(const char *name, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                       weft_isa_t isa)
{
    wefti_gemm_t g = {
        .m = m, .n = n, .k = k, .trans_a = ta, .trans_b = tb, .alpha = 1, .beta = 1, .isa = isa};
    g.lda = ta ? m : k;
    g.ldb = tb ? k : n;
    g.ldc = n;
    g.threads = 1;
    if (wefti_gemm_plan(&g) != WEFT_OK) {
        return;
    }
    const job_t job = {.gemm = &g,
                       .a = numbers(m * k),
                       .b = numbers(k * n),
                       .c = numbers(m * n),
                       .scratch = numbers((int64_t)(g.scratch_bytes / sizeof(float)))};
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    report(name, wefti_gemm_name(&g), flops, run_ours, &job);
    report(name, "dnnl_sgemm", flops, run_sgemm, &job);
    free(job.a);
    free(job.b);
    free(job.c);
    free(job.scratch);
}

static void bench_conv(const char *name, wefti_conv_t c, bool channels_last, weft_isa_t isa)
{
    static const char *const pass_names[3] = {"forward", "dX", "dW"};
    wefti_conv_pass_t pass[2] = {{.at = NULL}, {.at = NULL}};
    wefti_conv_dw_t dw = {.at = NULL};
    c.isa = isa;
    c.threads = 1;
    c.in_last = c.out_last = channels_last;
    const int64_t x = c.images * c.in_channels * c.in[0] * c.in[1];
    const int64_t y = c.images * c.out_channels * c.out[0] * c.out[1];
    const int64_t w = c.out_channels * c.in_channels * c.kernel[0] * c.kernel[1];
    if (wefti_conv_pass_forward(&c, &pass[0]) == WEFT_OK &&
        wefti_conv_pass_data_grad(&c, &pass[1]) == WEFT_OK &&
        wefti_conv_dw_plan(&c, &dw) == WEFT_OK) {
        float *xs = numbers(x), *ys = numbers(y), *ws = numbers(w);
        const double flops = 2.0 * (double)y * (double)w / (double)c.out_channels;
        const job_t jobs[3] = {
            {.pass = &pass[0],
             .a = xs,
             .b = ws,
             .c = ys,
             .scratch = numbers(pass[0].scratch_elems)},
            {.pass = &pass[1],
             .a = ys,
             .b = ws,
             .c = xs,
             .scratch = numbers(pass[1].scratch_elems)},
            {.dw = &dw, .a = xs, .b = ys, .c = ws, .scratch = numbers(dw.scratch_elems)}};
        for (int i = 0; i < 3; i++) {
            char label[96];
            snprintf(label, sizeof label, "%s %s %s", name, pass_names[i],
                     channels_last ? "channels-last" : "plain");
            report(label, wefti_conv_name(isa), flops, run_ours, &jobs[i]);
            free(jobs[i].scratch);
        }
        free(xs);
        free(ys);
        free(ws);
    }
    wefti_free(NULL, pass[0].at);
    wefti_free(NULL, pass[1].at);
    wefti_free(NULL, dw.at);
}

int main(int argc, char **argv)
{
    const weft_isa_t isa = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    omp_set_num_threads(1);
    bench_gemm("mlp 784->512 forward", BATCH, 512, 784, false, true, isa);
    bench_gemm("mlp 784->512 dW", 512, 784, BATCH, true, false, isa);
    bench_gemm("mlp 512->256 forward", BATCH, 256, 512, false, true, isa);
    bench_gemm("mlp 512->256 dX", BATCH, 512, 256, false, false, isa);
    bench_gemm("mlp 512->256 dW", 256, 512, BATCH, true, false, isa);
    bench_gemm("mlp 256->10 forward", BATCH, 10, 256, false, true, isa);
    bench_gemm("mlp 256->10 dX", BATCH, 256, 10, false, false, isa);
    bench_gemm("mlp 256->10 dW", 10, 256, BATCH, true, false, isa);
    const wefti_conv_t first = {.images = BATCH,
                                .in_channels = 1,
                                .out_channels = 6,
                                .groups = 1,
                                .in = {28, 28},
                                .out = {28, 28},
                                .kernel = {5, 5},
                                .stride = {1, 1},
                                .dilation = {1, 1},
                                .pad = {2, 2}};
    const wefti_conv_t second = {.images = BATCH,
                                 .in_channels = 6,
                                 .out_channels = 16,
                                 .groups = 1,
                                 .in = {14, 14},
                                 .out = {10, 10},
                                 .kernel = {5, 5},
                                 .stride = {1, 1},
                                 .dilation = {1, 1}};
    for (int last = 0; last < 2; last++) {
        bench_conv("lenet 1->6", first, last != 0, isa);
        bench_conv("lenet 6->16", second, last != 0, isa);
    }
    return 0;
}
