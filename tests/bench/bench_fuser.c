/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of ResNet-50 (161 tensors, 102 MB of f32) in the order of a backward pass: by a
 * fuser, tensor by tensor, and as one call over all of it; then small all-reduces in a batch and
 * one by one. Ranks are processes over shared memory; every rank rewrites its data before each
 * step, which is not timed. One line of JSON each, medians of rank 0.
 *
 * usage: bench_fuser [RANKS [STEPS]]
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "runtime/base/sync.h"

enum { TENSORS = 161, MAX_STEPS = 1000 };

typedef struct bench {
    weft_context_t *context;
    weft_group_t *group;
    uint32_t rank, size;
    int steps;
    uint64_t counts[TENSORS], total; /* elements */
    float *tensors[TENSORS];
    char names[TENSORS][16];
    uint64_t ns[MAX_STEPS], add_ns[MAX_STEPS];
} bench_t;

static void check(weft_status_t status, const char *what)
{
    if (status != WEFT_OK) {
        fprintf(stderr, "bench_fuser: %s: %s\n", what, weft_last_error());
        exit(2);
    }
}

static uint32_t add_conv(uint64_t *counts, uint32_t at, uint64_t in, uint64_t out, uint64_t side)
{
    counts[at] = in * out * side * side;
    counts[at + 1] = counts[at + 2] = out; /* of the normalisation behind it */
    return at + 3;
}

static void resnet50(bench_t *bench)
{
    static const uint32_t blocks[] = {3, 4, 6, 3};
    uint64_t in = 64;
    uint32_t at = add_conv(bench->counts, 0, 3, 64, 7);
    for (uint32_t stage = 0; stage < 4; stage++) {
        uint64_t width = (uint64_t)64 << stage;
        for (uint32_t block = 0; block < blocks[stage]; block++) {
            at = add_conv(bench->counts, at, in, width, 1);
            at = add_conv(bench->counts, at, width, width, 3);
            at = add_conv(bench->counts, at, width, 4 * width, 1);
            if (block == 0) {
                at = add_conv(bench->counts, at, in, 4 * width, 1);
            }
            in = 4 * width;
        }
    }
    bench->counts[at++] = 2048 * 1000;
    bench->counts[at++] = 1000;
    for (uint32_t i = 0; i < at; i++) {
        bench->total += bench->counts[i];
        snprintf(bench->names[i], sizeof bench->names[i], "grad%u", i);
    }
}

static int compare(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

static void report(bench_t *bench, const char *name, const char *memory, uint64_t bytes,
                   double copied)
{
    qsort(bench->ns, (size_t)bench->steps, sizeof *bench->ns, compare);
    if (bench->rank == 0) {
        uint64_t median = bench->ns[bench->steps / 2];
        printf("{\"name\": \"%s\", \"memory\": \"%s\", \"ranks\": %u, \"bytes\": %llu, \"steps\": "
               "%d, \"min_us\": %.1f, \"p50_us\": %.1f, \"gb_per_s\": %.2f, \"copied\": %.2f}\n",
               name, memory, bench->size, (unsigned long long)bytes, bench->steps,
               (double)bench->ns[0] * 1e-3, (double)median * 1e-3, (double)bytes / (double)median,
               copied);
        fflush(stdout);
    }
}

static void rewrite(bench_t *bench)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        for (uint64_t k = 0; k < bench->counts[i]; k++) {
            bench->tensors[i][k] = (float)(k & 15) + (float)bench->rank;
        }
    }
    check(weft_barrier(bench->group, NULL), "barrier");
}

static void step_single(bench_t *bench)
{
    check(weft_all_reduce(bench->tensors[0], bench->tensors[0], bench->total, WEFT_DTYPE_F32,
                          WEFT_REDUCTION_SUM, bench->group, NULL),
          "all-reduce");
}

static void step_each(bench_t *bench)
{
    for (uint32_t i = TENSORS; i-- > 0;) {
        check(weft_all_reduce(bench->tensors[i], bench->tensors[i], bench->counts[i],
                              WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, bench->group, NULL),
              "all-reduce");
    }
}

static void bench_calls(bench_t *bench, const char *name, const char *memory,
                        void (*step)(bench_t *bench))
{
    for (int i = -2; i < bench->steps; i++) {
        rewrite(bench);
        uint64_t start = wefti_now_ns();
        step(bench);
        if (i >= 0) {
            bench->ns[i] = wefti_now_ns() - start;
        }
    }
    report(bench, name, memory, bench->total * sizeof(float), 0);
}

static void bench_fused(bench_t *bench, const char *memory, weft_stream_flags_t flags)
{
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.name = "fuse";
    stream_params.flags = flags;
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_fuser_t *fuser = NULL;
    weft_fuser_stats_t stats = WEFT_FUSER_STATS_INIT;
    char name[64];
    check(weft_stream_create(bench->context, &stream_params, &params.stream), "stream");
    params.window_ns = WEFT_FUSER_WINDOW_NONE;
    check(weft_fuser_create(bench->group, &params, &fuser), "fuser");
    for (int i = -2; i < bench->steps; i++) {
        rewrite(bench);
        uint64_t start = wefti_now_ns();
        for (uint32_t t = TENSORS; t-- > 0;) {
            check(weft_fuser_add(fuser, bench->tensors[t], bench->counts[t], WEFT_DTYPE_F32,
                                 WEFT_REDUCTION_SUM, bench->names[t]),
                  "add");
        }
        uint64_t added = wefti_now_ns();
        check(weft_fuser_wait(fuser), "wait");
        if (i >= 0) {
            bench->ns[i] = wefti_now_ns() - start;
            bench->add_ns[i] = added - start;
        }
    }
    check(weft_fuser_get_stats(fuser, &stats), "stats");
    snprintf(name, sizeof name, "fused, %llu buckets, %s", (unsigned long long)stats.bucket_count,
             flags & WEFT_STREAM_THREAD ? "thread" : "inline");
    report(bench, name, memory, bench->total * sizeof(float),
           (double)stats.copied_bytes / (double)stats.reduced_bytes);
    snprintf(name, sizeof name, "of that, 161 calls of add, %s",
             flags & WEFT_STREAM_THREAD ? "thread" : "inline");
    memcpy(bench->ns, bench->add_ns, sizeof bench->ns);
    report(bench, name, memory, bench->total * sizeof(float), 0);
    weft_fuser_destroy(fuser);
    weft_stream_destroy(params.stream);
}

/* Side by side in memory that peers reach, or each on its own. */
static void place(bench_t *bench, float *range)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        bench->tensors[i] = range;
        range += bench->counts[i];
    }
}

static void place_apart(bench_t *bench)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        bench->tensors[i] = malloc(bench->counts[i] * sizeof(float));
        if (bench->tensors[i] == NULL) {
            exit(2);
        }
    }
}

static void bench_batch(bench_t *bench, uint32_t calls, uint64_t bytes, bool batched)
{
    float *x = calloc(calls, bytes);
    uint64_t count = bytes / sizeof *x;
    char name[64];
    int steps = bench->steps;
    bench->steps = MAX_STEPS;
    for (int i = -200; i < bench->steps; i++) {
        check(weft_barrier(bench->group, NULL), "barrier");
        uint64_t start = wefti_now_ns();
        check(batched ? weft_batch_begin(bench->group) : WEFT_OK, "begin");
        for (uint32_t c = 0; c < calls; c++) {
            check(weft_all_reduce(x + c * count, x + c * count, count, WEFT_DTYPE_F32,
                                  WEFT_REDUCTION_SUM, bench->group, NULL),
                  "all-reduce");
        }
        check(batched ? weft_batch_end(bench->group, NULL) : WEFT_OK, "end");
        if (i >= 0) {
            bench->ns[i] = wefti_now_ns() - start;
        }
    }
    snprintf(name, sizeof name, "%u all-reduces of %llu B, %s", calls, (unsigned long long)bytes,
             batched ? "batched" : "one by one");
    report(bench, name, "plain", calls * bytes, 0);
    bench->steps = steps;
    free(x);
}

static void run_rank(bench_t *bench, const char *address)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    void *range = NULL;
    params.rank = (int32_t)bench->rank;
    params.world_size = (int32_t)bench->size;
    params.address = address;
    check(weft_context_create(&params, &bench->context), "context");
    check(weft_group_create_world(bench->context, &bench->group), "group");
    resnet50(bench);
    check(weft_mem_alloc(bench->context, bench->total * sizeof(float), &range), "memory");
    place(bench, range);
    bench_calls(bench, "one call", "side by side, reachable", step_single);
    bench_fused(bench, "side by side, reachable", WEFT_STREAM_INLINE);
    bench_fused(bench, "side by side, reachable", WEFT_STREAM_THREAD);
    bench_calls(bench, "tensor by tensor", "side by side, reachable", step_each);
    place_apart(bench);
    bench_fused(bench, "apart, plain", WEFT_STREAM_INLINE);
    bench_fused(bench, "apart, plain", WEFT_STREAM_THREAD);
    bench_calls(bench, "tensor by tensor", "apart, plain", step_each);
    for (uint64_t bytes = 16; bytes <= 4096; bytes *= 4) {
        bench_batch(bench, 64, bytes, false);
        bench_batch(bench, 64, bytes, true);
    }
    bench_batch(bench, 1, 64, false);
    bench_batch(bench, 1, 4096, false);
    for (uint32_t i = 0; i < TENSORS; i++) {
        free(bench->tensors[i]);
    }
    check(weft_mem_free(bench->context, range), "free");
    weft_group_destroy(bench->group);
    weft_context_release(bench->context);
}

int main(int argc, char **argv)
{
    static bench_t bench;
    char address[64];
    bench.size = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    bench.steps = argc > 2 ? atoi(argv[2]) : 20;
    if (bench.size == 0 || bench.size > 64 || bench.steps < 1 || bench.steps > MAX_STEPS) {
        fputs("usage: bench_fuser [RANKS [STEPS]]\n", stderr);
        return 2;
    }
    snprintf(address, sizeof address, "unix:@weft-bench-fuser-%d", (int)getpid());
    for (uint32_t r = 0; r < bench.size; r++) {
        if (fork() == 0) {
            bench.rank = r;
            run_rank(&bench, address);
            return 0;
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0) {
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed;
}
