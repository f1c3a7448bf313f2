/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of n ranks' copies, one thread: bytes read and written per second, and that of each
 * row over that of f32 in the same run. Rows of one size take turns, so that what else the machine
 * does hits all of them. Then sums as two ranks on a core each run them: both write a buffer, then
 * each reduces its half of both, a reduce-scatter or, into both, an all-reduce. One line of JSON
 * each.
 *
 * usage: bench_reduce [REPEATS [portable|avx2|avx512]]
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/reduce/reduce.h"

#define MOST 16u

/* wide: 'n' no source, 'a' all, 'f' the first, 'l' the last. */
typedef struct row {
    const char *name;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    bool in_place; /* into all sources; else into one place apart */
    char wide;
    bool finish;
} row_t;

static const row_t rows[] = {
    {"f32 sum", WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, false, 'n', true},
    {"bf16 sum", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, false, 'n', true},
    {"f16 sum", WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, false, 'n', true},
    {"f32 sum in place", WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, true, 'n', true},
    {"bf16 sum in place", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, true, 'n', true},
    {"f16 sum in place", WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, true, 'n', true},
    {"bf16 avg", WEFT_DTYPE_BF16, WEFT_REDUCTION_AVG, false, 'n', true},
    {"f16 avg", WEFT_DTYPE_F16, WEFT_REDUCTION_AVG, false, 'n', true},
    {"bf16 prod", WEFT_DTYPE_BF16, WEFT_REDUCTION_PROD, false, 'n', true},
    {"f16 prod", WEFT_DTYPE_F16, WEFT_REDUCTION_PROD, false, 'n', true},
    {"bf16 max", WEFT_DTYPE_BF16, WEFT_REDUCTION_MAX, false, 'n', true},
    {"bf16 to wide", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, false, 'n', false},
    {"bf16 first wide", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, false, 'f', false},
    {"bf16 first wide, finish", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, false, 'f', true},
    {"bf16 all wide, finish", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, false, 'a', true},
    {"bf16 all wide", WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, false, 'a', false},
    {"f16 to wide", WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, false, 'n', false},
    {"f16 first wide", WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, false, 'f', false},
    {"f16 last wide, finish", WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, false, 'l', true},
    {"f64 sum", WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, false, 'n', true},
    {"f64 avg", WEFT_DTYPE_F64, WEFT_REDUCTION_AVG, false, 'n', true},
    {"i32 sum", WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, false, 'n', true},
    {"i32 avg", WEFT_DTYPE_I32, WEFT_REDUCTION_AVG, false, 'n', true},
    {"i8 max", WEFT_DTYPE_I8, WEFT_REDUCTION_MAX, false, 'n', true},
};
#define ROWS (sizeof rows / sizeof rows[0])

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static bool is_wide(const row_t *row, uint32_t k, uint32_t n)
{
    return row->wide == 'a' || (row->wide == 'f' && k == 0) || (row->wide == 'l' && k == n - 1);
}

/* Bytes per nanosecond of rounds runs of a row on buffers of range_bytes. */
static double time_row(const row_t *row, uint8_t *const *buffers, uint32_t n, size_t range_bytes,
                       uint32_t rounds, weft_isa_t isa)
{
    const size_t narrow = weft_dtype_size_bytes(row->dtype);
    const size_t wide = wefti_accumulator_bytes(row->dtype, row->reduction);
    const void *from[MOST];
    void *to[MOST];
    uint8_t flags[MOST];
    size_t per_element = (row->finish ? narrow : wide) * (row->in_place ? n : 1);
    for (uint32_t k = 0; k < n; k++) {
        from[k] = buffers[k];
        to[k] = buffers[k];
        flags[k] = is_wide(row, k, n);
        per_element += flags[k] ? wide : narrow;
    }
    if (!row->in_place) {
        to[0] = buffers[n];
    }
    const wefti_reduce_step_t step = {
        .sources = from,
        .wide = flags,
        .source_count = n,
        .destination_count = row->in_place ? n : 1,
        .destinations = to,
        /* all rows move the same number of bytes */
        .elem_count = range_bytes * (n + (row->in_place ? n : 1)) / per_element,
        .dtype = row->dtype,
        .reduction = row->reduction,
        .divisor = n,
        .finish = row->finish,
    };
    const uint64_t begin = wefti_now_ns();
    for (uint32_t i = 0; i < rounds; i++) {
        if (wefti_reduce_step(&step, isa) != WEFT_OK) {
            fprintf(stderr, "bench_reduce: %s\n", weft_last_error());
            exit(1);
        }
    }
    return (double)(step.elem_count * per_element) * rounds / (double)(wefti_now_ns() - begin);
}

static void bench(uint32_t n, size_t range_bytes, uint32_t repeats, weft_isa_t isa)
{
    uint8_t *buffers[MOST + 1];
    double *samples = calloc(ROWS * repeats, sizeof *samples);
    const uint32_t rounds = (uint32_t)(((size_t)2 << 20) / (range_bytes * n) + 1);
    /* Wide sources make longer buffers. Each lies a little lower in its page than the one before,
     * for a load whose address ends like that of a store before it waits. */
    const size_t stride = 4 * range_bytes + 4096 - 256;
    uint32_t *words = aligned_alloc(4096, ((n + 1) * stride + 4095) / 4096 * 4096);
    if (words == NULL || samples == NULL) {
        fputs("bench_reduce: out of memory\n", stderr);
        exit(1);
    }
    for (size_t i = 0; i < (n + 1) * stride / 4; i++) {
        words[i] = 0x3f803c00u; /* ordinary numbers in every type */
    }
    for (uint32_t k = 0; k <= n; k++) {
        buffers[k] = (uint8_t *)words + k * stride;
    }
    for (uint32_t i = 0; i < repeats; i++) {
        for (size_t r = 0; r < ROWS; r++) {
            samples[r * repeats + i] = time_row(&rows[r], buffers, n, range_bytes, rounds, isa);
        }
    }
    for (size_t r = 0; r < ROWS; r++) {
        const double *f32 = samples + (rows[r].in_place ? 3 : 0) * repeats,
                     *own = samples + r * repeats;
        qsort(samples + r * repeats, repeats, sizeof *samples, compare);
        printf("{\"name\": \"%s\", \"isa\": \"%s\", \"sources\": %u, \"bytes\": %zu, "
               "\"gbs\": %.1f, \"best_gbs\": %.1f, \"over_f32\": %.2f, \"best_over_f32\": %.2f}\n",
               rows[r].name, wefti_isa_name(isa), n, range_bytes, own[repeats / 2],
               own[repeats - 1], own[repeats / 2] / f32[repeats / 2],
               own[repeats - 1] / f32[repeats - 1]);
    }
    free(words);
    free(samples);
}

/* ---- two cores ---- */

typedef struct pair {
    uint8_t *buffers[2];
    size_t bytes;
    uint32_t destination_count, rounds;
    weft_dtype_t dtype;
    weft_isa_t isa;
    double *samples; /* [rounds], bytes moved by both per nanosecond */
    struct {
        _Atomic uint32_t reached;
        uint8_t pad[124];
    } flags[2];
} pair_t;

typedef struct half {
    pair_t *pair;
    int rank;
} half_t;

static void meet(pair_t *pair, int rank, uint32_t target)
{
    atomic_store_explicit(&pair->flags[rank].reached, target, memory_order_release);
    while (atomic_load_explicit(&pair->flags[!rank].reached, memory_order_acquire) < target) {
        wefti_cpu_relax();
    }
}

static void *half_main(void *user)
{
    const half_t *half = user;
    pair_t *pair = half->pair;
    size_t at = pair->bytes / 2 * (size_t)half->rank;
    const void *from[2] = {pair->buffers[0] + at, pair->buffers[1] + at};
    void *to[2] = {pair->buffers[half->rank] + at, pair->buffers[!half->rank] + at};
    const weft_reduce_t reduce = {from,
                                  2,
                                  to,
                                  pair->destination_count,
                                  pair->bytes / 2 / weft_dtype_size_bytes(pair->dtype),
                                  pair->dtype,
                                  WEFT_REDUCTION_SUM,
                                  0};
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(half->rank, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    for (uint32_t i = 0; i < pair->rounds; i++) {
        uint32_t *words = (uint32_t *)(void *)pair->buffers[half->rank];
        for (size_t w = 0; w < pair->bytes / 4; w++) {
            words[w] = 0x3f803c00u + (i & 1u);
        }
        meet(pair, half->rank, 2 * i + 1);
        const uint64_t begin = wefti_now_ns();
        if (wefti_reduce(&reduce, pair->isa) != WEFT_OK) {
            exit(1);
        }
        meet(pair, half->rank, 2 * i + 2);
        if (half->rank == 0) {
            pair->samples[i] = (double)(pair->bytes * (2 + pair->destination_count)) /
                               (double)(wefti_now_ns() - begin);
        }
    }
    return NULL;
}

static void bench_pair(size_t bytes, uint32_t destination_count, weft_isa_t isa)
{
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_BF16, WEFT_DTYPE_F16};
    double f32 = 0;
    for (int t = 0; t < 3; t++) {
        pair_t pair = {.bytes = bytes,
                       .destination_count = destination_count,
                       .rounds = (uint32_t)(((size_t)48 << 20) / (bytes + 32768)) + 20,
                       .dtype = dtypes[t],
                       .isa = isa};
        half_t halves[2] = {{&pair, 0}, {&pair, 1}};
        pthread_t threads[2];
        pair.samples = calloc(pair.rounds, sizeof *pair.samples);
        for (int r = 0; r < 2; r++) {
            pair.buffers[r] = aligned_alloc(4096, bytes);
        }
        for (int r = 0; r < 2; r++) {
            if (!pair.samples || !pair.buffers[0] || !pair.buffers[1] ||
                pthread_create(&threads[r], NULL, half_main, &halves[r]) != 0) {
                fputs("bench_reduce: no memory or thread\n", stderr);
                exit(1);
            }
        }
        for (int r = 0; r < 2; r++) {
            pthread_join(threads[r], NULL);
            free(pair.buffers[r]);
        }
        qsort(pair.samples, pair.rounds, sizeof *pair.samples, compare);
        /* the best tenth: where both cores were this program's */
        const double rate = pair.samples[pair.rounds * 9 / 10];
        f32 = t == 0 ? rate : f32;
        printf("{\"name\": \"%s %s, two cores\", \"isa\": \"%s\", \"sources\": 2, "
               "\"bytes\": %zu, \"gbs\": %.1f, \"best_gbs\": %.1f, \"best_over_f32\": %.2f}\n",
               weft_dtype_name(dtypes[t]), destination_count == 1 ? "reduce-scatter" : "all-reduce",
               wefti_isa_name(isa), bytes, pair.samples[pair.rounds / 2], rate, rate / f32);
        free(pair.samples);
    }
}

int main(int argc, char **argv)
{
    static const size_t pair_sizes[] = {8192, 32768, 262144, 1u << 20, 2u << 20, 16u << 20};
    static const size_t sizes[] = {2048, 65536, 16u << 20};
    static const uint32_t counts[] = {2, 4, 8};
    const int repeats = argc > 1 ? atoi(argv[1]) : 21;
    weft_isa_t isa = wefti_isa_detect();
    if (repeats < 1 || (argc > 2 && wefti_isa_parse(argv[2], &isa) != WEFT_OK)) {
        fputs("usage: bench_reduce [REPEATS [portable|avx2|avx512]]\n", stderr);
        return 2;
    }
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            bench(counts[c], sizes[s], (uint32_t)repeats, isa);
        }
    }
    for (size_t s = 0; s < sizeof pair_sizes / sizeof pair_sizes[0]; s++) {
        bench_pair(pair_sizes[s], 1, isa);
        bench_pair(pair_sizes[s], 2, isa);
    }
    return 0;
}
