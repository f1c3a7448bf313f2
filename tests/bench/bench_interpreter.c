/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of an interpreted schedule costs: one rank, whose peers' counters are always there
 * already, moves of one element. bind is what a call of the same size costs before its first step,
 * resolve what the first call of a size costs. One line of JSON each.
 *
 * Then whole calls of two ranks, each a thread on a core of its own: all-reduce in place by the
 * mesh as the hand-written executors do it, and interpreted, in turns.
 *
 * usage: bench_interpreter [RUNS]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/collective.h>
#include <weft/memory.h>

#include "ops/algo/table.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/machine/machine.h"

#define LANES 4u
#define MOST_RANKS 64u
#define ROOM ((size_t)1 << 20)

typedef struct row {
    weft_collective_t op;
    const char *algorithm;
    uint32_t ranks;
} row_t;

static const row_t rows[] = {
    {WEFT_COLLECTIVE_BARRIER, "dissemination", 64},
    {WEFT_COLLECTIVE_ALL_GATHER, "mesh", 8},
    {WEFT_COLLECTIVE_ALL_GATHER, "mesh", 64},
    {WEFT_COLLECTIVE_ALL_GATHER, "ring", 8},
    {WEFT_COLLECTIVE_ALL_TO_ALL, "bruck", 16},
    {WEFT_COLLECTIVE_BROADCAST, "binomial", 16},
    {WEFT_COLLECTIVE_BROADCAST, "chain", 8},
    {WEFT_COLLECTIVE_ALL_REDUCE, "mesh", 2},
    {WEFT_COLLECTIVE_ALL_REDUCE, "mesh", 8},
    {WEFT_COLLECTIVE_ALL_REDUCE, "one-shot", 2},
    {WEFT_COLLECTIVE_ALL_REDUCE, "doubling", 8},
    {WEFT_COLLECTIVE_ALL_REDUCE, "halving-doubling", 8},
    {WEFT_COLLECTIVE_ALL_REDUCE, "ring", 8},
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
    if (algorithm == NULL ||
        wefti_run_create(algorithm, &params, &(wefti_links_t){0}, NULL, &bench.run) < 0 ||
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
            wefti_signal_t *signal =
                (wefti_signal_t *)(void *)(bases[r] + lane * sizeof(wefti_signal_line_t));
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
                                    .reduction = WEFT_REDUCTION_SUM,
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

/* ---- two ranks ---- */

#define MOST_CALLS 4000u

static weft_algorithm_t as_schedule;

typedef struct caller {
    weft_hub_t *hub;
    const weft_registry_t *registry;
    uint32_t rank;
    pthread_t thread;
} caller_t;

static void must(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", weft_last_error());
        exit(1);
    }
}

static double median(double *times, uint32_t count)
{
    qsort(times, count, sizeof *times, by_size);
    return times[count / 2];
}

static void compare_size(weft_group_t *group, float *data, size_t bytes, uint32_t rank)
{
    static double times[2][2][MOST_CALLS]; /* [rank][interpreted] */
    uint32_t calls = bytes > 1u << 20 ? 200 : MOST_CALLS;
    for (uint32_t i = 0; i < 2 * calls; i++) {
        must(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE,
                                      i % 2 != 0 ? as_schedule.name : "mesh"));
        for (size_t e = 0; e < bytes / sizeof *data; e++) { /* as a kernel would */
            data[e] = 1.0f;
        }
        must(weft_barrier(group, NULL));
        uint64_t begin = wefti_now_ns();
        must(weft_all_reduce(data, data, bytes / sizeof *data, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                             group, NULL));
        times[rank][i % 2][i / 2] = (double)(wefti_now_ns() - begin);
    }
    if (rank == 0) {
        printf("{\"op\": \"AllReduce\", \"algorithm\": \"mesh\", \"ranks\": 2, \"bytes\": %zu, "
               "\"executor_ns\": %.0f, \"interpreted_ns\": %.0f}\n",
               bytes, median(times[0][0], calls), median(times[0][1], calls));
        fflush(stdout);
    }
}

static void *run_caller(void *user)
{
    caller_t *caller = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context;
    weft_group_t *group;
    void *data;
    wefti_arena_t arena;
    uint32_t *cpus, count = 0;
    wefti_arena_init(&arena, NULL, 0);
    (void)wefti_binding_choose(caller->rank, 2, WEFTI_BIND_CORE, &arena, &cpus, &count);
    if (count > 0) {
        wefti_pin_thread(cpus, 1);
    }
    wefti_arena_deinit(&arena);
    params.rank = (int32_t)caller->rank;
    params.world_size = 2;
    params.hub = caller->hub;
    params.registry = caller->registry;
    must(weft_context_create(&params, &context));
    must(weft_group_create_world(context, &group));
    must(weft_mem_alloc(context, 1 << 24, &data));
    for (size_t bytes = 16384; bytes <= 1 << 24; bytes *= 4) {
        compare_size(group, data, bytes, caller->rank);
    }
    must(weft_mem_free(context, data));
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

static void compare_calls(void)
{
    caller_t callers[2];
    weft_hub_t *hub;
    weft_registry_t *registry;
    must(weft_hub_create(2, &hub));
    /* The executors take the algorithm called mesh; a copy is interpreted. */
    as_schedule = *wefti_algorithm_find(WEFT_COLLECTIVE_ALL_REDUCE, "mesh");
    as_schedule.name = "mesh as schedule";
    must(weft_registry_create(NULL, &registry));
    must(weft_registry_add_algorithm(registry, &as_schedule));
    for (uint32_t r = 0; r < 2; r++) {
        callers[r].hub = hub;
        callers[r].registry = registry;
        callers[r].rank = r;
        if (pthread_create(&callers[r].thread, NULL, run_caller, &callers[r]) != 0) {
            exit(1);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        pthread_join(callers[r].thread, NULL);
    }
    weft_registry_destroy(registry);
    weft_hub_destroy(hub);
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
    compare_calls();
    return 0;
}
