/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of an interpreted schedule costs: one rank, whose peers' counters are always there
 * already, moves of one element. bind is what a call of the same size costs before its first step,
 * resolve what the first call of a size costs. One line of JSON each.
 *
 * usage: bench_interpreter [RUNS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/algo/table.h"
#include "runtime/interpreter.h"

#define LANES 4u
#define MOST_RANKS 64u
#define ROOM ((size_t)1 << 20)

typedef struct row {
    weft_collective_t op;
    const char *algorithm;
    uint32_t ranks;
} row_t;

static const row_t rows[] = {
    {WEFT_OP_BARRIER, "dissemination", 64}, {WEFT_OP_ALL_GATHER, "mesh", 8},
    {WEFT_OP_ALL_GATHER, "mesh", 64},       {WEFT_OP_ALL_GATHER, "ring", 8},
    {WEFT_OP_ALL_TO_ALL, "bruck", 16},      {WEFT_OP_BROADCAST, "binomial", 16},
    {WEFT_OP_BROADCAST, "chain", 8},        {WEFT_OP_ALL_REDUCE, "mesh", 2},
    {WEFT_OP_ALL_REDUCE, "mesh", 8},        {WEFT_OP_ALL_REDUCE, "one-shot", 2},
    {WEFT_OP_ALL_REDUCE, "doubling", 8},    {WEFT_OP_ALL_REDUCE, "halving-doubling", 8},
    {WEFT_OP_ALL_REDUCE, "ring", 8},
};

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

typedef struct bench {
    wefti_run_t *run;
    wefti_run_memory_t memory;
    wefti_run_call_t call;
} bench_t;

static void run_one(bench_t *bench)
{
    wefti_blocked_t blocked;
    if (wefti_run_start(bench->run, &bench->memory, &bench->call) != WEFT_OK ||
        wefti_run_advance(bench->run, &blocked) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_last_error());
        exit(1);
    }
}

/* Median of nine, nanoseconds for one run; every second call has another size where asked for. */
static double measure(bench_t *bench, uint32_t runs, uint64_t other_count)
{
    double times[9];
    uint64_t count = bench->call.counts.elem_count;
    for (uint32_t t = 0; t < 9; t++) {
        uint64_t begin = wefti_now_ns();
        for (uint32_t i = 0; i < runs; i++) {
            bench->call.counts.elem_count = i % 2 == 0 ? count : other_count;
            run_one(bench);
        }
        times[t] = (double)(wefti_now_ns() - begin) / runs;
    }
    bench->call.counts.elem_count = count;
    qsort(times, 9, sizeof *times, by_size);
    return times[4];
}

static double measure_start(bench_t *bench, uint32_t runs)
{
    double times[9];
    for (uint32_t t = 0; t < 9; t++) {
        uint64_t begin = wefti_now_ns();
        for (uint32_t i = 0; i < runs; i++) {
            wefti_run_start(bench->run, &bench->memory, &bench->call);
        }
        times[t] = (double)(wefti_now_ns() - begin) / runs;
    }
    qsort(times, 9, sizeof *times, by_size);
    return times[4];
}

static size_t steps_of(const wefti_schedule_t *schedule)
{
    size_t steps = 0;
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        /* A wait for many is as many looks. */
        steps += step->op == WEFTI_DO_WAIT ? step->wait.rank_count : 1;
    }
    return steps;
}

static void bench_row(const row_t *row, uint8_t *const *bases, wefti_endpoint_t *endpoint,
                      uint32_t runs)
{
    const weft_algorithm_t *algorithm = wefti_algorithm_find(row->op, row->algorithm);
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = row->op,
                                 .group_size = row->ranks,
                                 .rank = row->ranks / 2,
                                 .order = WEFT_ORDER_ANY};
    uint32_t ranks[MOST_RANKS];
    uint64_t send[MOST_RANKS], recv[MOST_RANKS];
    wefti_run_counters_t counters;
    bench_t bench = {0};
    if (algorithm == NULL || wefti_run_create(algorithm, &params, NULL, NULL, &bench.run) < 0 ||
        wefti_run_counters_init(&counters, row->ranks, LANES, NULL) < 0) {
        fprintf(stderr, "%s %s: %s\n", weft_collective_name(row->op), row->algorithm,
                weft_last_error());
        exit(1);
    }
    size_t area = (wefti_run_area_bytes(row->ranks, LANES) + 63) / 64 * 64;
    for (uint32_t r = 0; r < row->ranks; r++) {
        ranks[r] = r;
        send[r] = ROOM / 2;
        recv[r] = ROOM / 4 * 3;
        for (uint32_t lane = 0; lane < LANES; lane++) { /* far ahead */
            wefti_signal_t *signal = (wefti_signal_t *)(void *)(bases[r] + lane * sizeof *signal);
            atomic_store(&signal->value, r == params.rank ? 0 : 1u << 30);
        }
    }
    bench.memory = (wefti_run_memory_t){.endpoint = endpoint,
                                        .ranks = ranks,
                                        .bases = bases,
                                        .limit = ROOM,
                                        .work = area,
                                        .work_bytes = ROOM / 2 - area,
                                        .counters = &counters,
                                        .isa = wefti_isa_detect()};
    /* Of a vector, one line for each rank. */
    uint64_t count = wefti_collective_is_vector(row->op) ? 16ull * row->ranks : 1;
    bench.call = (wefti_run_call_t){.dtype = WEFT_DTYPE_F32,
                                    .reduction = WEFT_SUM,
                                    .counts = {count, 0, NULL},
                                    .send = send,
                                    .recv = recv};
    double start = measure_start(&bench, runs);
    double all = measure(&bench, runs, count), fresh = measure(&bench, runs, count + 1);
    size_t steps = steps_of(wefti_run_schedule(bench.run));
    printf("{\"op\": \"%s\", \"algorithm\": \"%s\", \"ranks\": %u, \"steps\": %zu, \"run_ns\": "
           "%.1f, \"bind_ns\": %.1f, \"step_ns\": %.1f, \"resolve_ns_per_step\": %.1f}\n",
           weft_collective_name(row->op), row->algorithm, row->ranks, steps, all, start,
           (all - start) / (double)steps, (fresh - all) / (double)steps);
    fflush(stdout);
    wefti_run_destroy(bench.run);
    wefti_run_counters_deinit(&counters);
}

int main(int argc, char **argv)
{
    uint32_t runs = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20000;
    uint8_t *bases[MOST_RANKS];
    wefti_endpoint_t endpoint = {.world_size = MOST_RANKS, .may_spin = true}; /* nobody waits */
    for (uint32_t r = 0; r < MOST_RANKS; r++) {
        bases[r] = aligned_alloc(4096, ROOM);
        if (bases[r] == NULL) {
            return 1;
        }
        memset(bases[r], 0, ROOM);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench_row(&rows[i], bases, &endpoint, runs);
    }
    for (uint32_t r = 0; r < MOST_RANKS; r++) {
        free(bases[r]);
    }
    return 0;
}
