/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of weft tune: every algorithm that is eligible, over sizes. */
#include <stdio.h>
#include <string.h>

#include "tools/tune.h"

#define PILOT_CALLS 3u
#define MIN_CALLS 7u
#define MAX_CALLS 1000u

const weft_algorithm_t *wefti_tune_algorithm(weft_collective_t op, uint32_t index)
{
    const weft_algorithm_t *algorithm;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op == op && index-- == 0) {
            return algorithm;
        }
    }
    return NULL;
}

const char *wefti_tune_left_out(const tune_run_t *run, const weft_algorithm_t *algorithm)
{
    /* What runs is what the bench does: root 0, any order, so that all of them are measured. */
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = algorithm->op,
                                 .group_size = run->bench.ranks,
                                 .in_place = algorithm->op != WEFT_OP_ALL_TO_ALL,
                                 .order = WEFT_ORDER_ANY};
    wefti_tune_place(&params, run->host_of, run->host_count);
    return algorithm->eligible(&params);
}

static uint64_t next_size(const tune_run_t *run, uint64_t bytes)
{
    uint64_t most = run->bench.max_bytes;
    return bytes == most ? UINT64_MAX : bytes < most / run->growth ? bytes * run->growth : most;
}

uint32_t wefti_tune_count(const tune_run_t *run)
{
    const weft_algorithm_t *algorithm;
    uint32_t sizes = 0, algorithms = 0;
    for (uint64_t b = run->bench.min_bytes; b != UINT64_MAX && sizes < TUNE_SIZES;) {
        sizes++;
        b = next_size(run, b);
    }
    for (uint32_t o = 0; o < BENCH_OP_COUNT; o++) {
        const bench_op_t *op = &wefti_bench_ops[o];
        if (run->only != NULL && run->only != op) {
            continue;
        }
        for (uint32_t a = 0;
             a < TUNE_ALGORITHMS && (algorithm = wefti_tune_algorithm(op->op, a)) != NULL; a++) {
            algorithms += wefti_tune_left_out(run, algorithm) == NULL;
        }
    }
    return sizes * algorithms * run->rounds;
}

/* A first look says how many calls fit the budget: the same on all ranks, for times are agreed. */
static weft_status_t measure(bench_rank_t *self, bench_t *bench, const tune_run_t *run,
                             uint64_t bytes, bool *out_fits, bench_row_t *out_row)
{
    bench->iterations = PILOT_CALLS;
    weft_status_t status = wefti_bench_measure(self, bytes, out_fits, out_row);
    if (status == WEFT_OK && *out_fits) {
        double calls = out_row->p50_us > 0 ? run->budget_us / out_row->p50_us : MAX_CALLS;
        bench->iterations = calls < MIN_CALLS   ? MIN_CALLS
                            : calls > MAX_CALLS ? MAX_CALLS
                                                : (uint64_t)calls;
        status = wefti_bench_measure(self, bytes, out_fits, out_row);
    }
    return status;
}

static void show_progress(const tune_run_t *run, uint32_t done, const weft_algorithm_t *algorithm)
{
    fprintf(stderr, "\r\033[K%3u %%  %u ranks, %s memory, %s %s",
            run->total > 0 ? 100 * done / run->total : 0, run->bench.ranks,
            wefti_bench_memory_names[run->bench.memory], wefti_op_name(algorithm->op),
            algorithm->name);
}

/*
 * The quickest of the rounds, for disturbances only ever add time. Ranks with a core each take the
 * same time again and again, so the first quartile is the median without them; where ranks share
 * cores, times vary by themselves.
 */
static void keep(wefti_cost_point_t *point, const bench_row_t *row, size_t elem_bytes, bool shared)
{
    double ns = (shared ? row->p50_us : row->p25_us) * 1e3;
    if (point->ns == 0 || ns < point->ns) {
        *point = (wefti_cost_point_t){row->count * elem_bytes, ns};
    }
}

/* One algorithm over all sizes. */
static weft_status_t measure_algorithm(bench_rank_t *self, bench_t *bench, const tune_run_t *run,
                                       const weft_algorithm_t *algorithm, uint32_t *done,
                                       wefti_cost_point_t *points)
{
    weft_status_t status = wefti_bench_set_algorithm(self, algorithm->name);
    uint32_t index = 0;
    for (uint64_t bytes = bench->min_bytes;
         status == WEFT_OK && bytes != UINT64_MAX && index < TUNE_SIZES;
         bytes = next_size(run, bytes), index++) {
        bench_row_t row;
        bool fits;
        if (self->rank == 0 && run->progress) {
            show_progress(run, *done, algorithm);
        }
        status = measure(self, bench, run, bytes, &fits, &row);
        if (status == WEFT_OK && fits && self->rank == 0) {
            keep(&points[index], &row, self->elem_bytes, wefti_bench_shares_cores(bench->ranks));
        }
        ++*done;
    }
    return status;
}

/* A round takes one algorithm after the other, so that a disturbance meets different ones. */
static weft_status_t measure_op(bench_rank_t *self, bench_t *bench, const tune_run_t *run,
                                uint32_t op, uint32_t *done)
{
    const weft_algorithm_t *algorithm;
    weft_status_t status = WEFT_OK;
    bench->op = &wefti_bench_ops[op];
    for (uint32_t round = 0; round < run->rounds; round++) {
        for (uint32_t a = 0; status == WEFT_OK && a < TUNE_ALGORITHMS &&
                             (algorithm = wefti_tune_algorithm(bench->op->op, a)) != NULL;
             a++) {
            if (wefti_tune_left_out(run, algorithm) == NULL) {
                status = measure_algorithm(self, bench, run, algorithm, done,
                                           run->result->points[op][a]);
            }
        }
    }
    return status;
}

weft_status_t wefti_tune_rank(void *user, uint32_t rank, uint32_t world_size, const char *address)
{
    const tune_run_t *run = user;
    bench_t bench = run->bench;
    bench_rank_t self;
    uint32_t done = run->done;
    (void)world_size;
    bench.op = &wefti_bench_ops[0];
    weft_status_t status = wefti_bench_rank_init(&self, &bench, rank, address);
    if (status == WEFT_OK && bench.floor != NULL) {
        status = wefti_tune_links(&self, &bench, run->result);
    }
    for (uint32_t op = 0; status == WEFT_OK && op < BENCH_OP_COUNT; op++) {
        if (run->only == NULL || run->only == &wefti_bench_ops[op]) {
            status = measure_op(&self, &bench, run, op, &done);
        }
    }
    if (rank == 0 && run->progress) {
        fputs("\r\033[K", stderr);
    }
    wefti_bench_rank_deinit(&self);
    return status;
}
