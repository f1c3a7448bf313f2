/* SPDX-License-Identifier: Apache-2.0 */
/* In ranks of weft tune: times of every eligible algorithm, over sizes. */
#include <stdio.h>
#include <string.h>

#include "tools/tune/tune.h"

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

/* NULL, or why the algorithm cannot be measured over these ranks. */
static const char *left_out(const tune_run_t *run, const weft_algorithm_t *algorithm)
{
    /* As weft bench calls them: root 0, any order, so that all algorithms are measured. */
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = algorithm->op,
                                 .group_size = run->bench.ranks,
                                 .in_place = !wefti_collective_exchanges(algorithm->op),
                                 .order = WEFT_ORDER_ANY};
    wefti_tune_place(&params, run->host_of, run->host_count);
    return wefti_algorithm_reason(algorithm, &params);
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
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        if (!wefti_tune_measures(run->only, (weft_collective_t)op)) {
            continue;
        }
        for (uint32_t a = 0; a < TUNE_ALGORITHMS &&
                             (algorithm = wefti_tune_algorithm((weft_collective_t)op, a)) != NULL;
             a++) {
            algorithms += left_out(run, algorithm) == NULL;
        }
    }
    return sizes * algorithms * run->rounds;
}

/* Of a launch; equal on all ranks. */
typedef struct progress {
    uint32_t done;   /* measurements */
    double spent_us; /* in timed calls */
} progress_t;

/* Pilot calls tell how many calls fit the budget. Ranks agree on times, and so on the number. */
static weft_status_t measure(bench_rank_t *self, bench_t *bench, const tune_run_t *run,
                             uint64_t bytes, double *spent_us, bool *out_fits, bench_row_t *out_row)
{
    bench->iterations = run->pilot_calls;
    weft_status_t status = wefti_bench_measure(self, bytes, out_fits, out_row);
    if (status == WEFT_OK && *out_fits) {
        *spent_us += (double)bench->iterations * out_row->p50_us;
    }
    if (status == WEFT_OK && *out_fits && (run->most_us == 0 || *spent_us < run->most_us)) {
        double calls = out_row->p50_us > 0 ? run->budget_us / out_row->p50_us : MAX_CALLS;
        bench->iterations = calls < run->min_calls ? run->min_calls
                            : calls > MAX_CALLS    ? MAX_CALLS
                                                   : (uint64_t)calls;
        status = wefti_bench_measure(self, bytes, out_fits, out_row);
        *spent_us += (double)bench->iterations * out_row->p50_us;
    }
    return status;
}

static void show_progress(const tune_run_t *run, uint32_t done, const weft_algorithm_t *algorithm)
{
    fprintf(stderr, "\r\033[K%3u %%  %u rank%s, %s memory, %s %s",
            run->total > 0 ? 100 * done / run->total : 0, run->bench.ranks,
            wefti_plural(run->bench.ranks), wefti_bench_memory_names[run->bench.memory],
            wefti_collective_function(algorithm->op), algorithm->name);
}

/*
 * The fastest round, since disturbances only add time. Where every rank has a core, undisturbed
 * calls take equal times, and the first quartile is one of them. Where ranks share cores, times
 * vary by nature, and the median is kept.
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
                                       const weft_algorithm_t *algorithm, progress_t *progress,
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
            show_progress(run, progress->done, algorithm);
        }
        status = measure(self, bench, run, bytes, &progress->spent_us, &fits, &row);
        if (status == WEFT_OK && fits && self->rank == 0) {
            keep(&points[index], &row, self->elem_bytes, wefti_bench_shares_cores(bench->ranks));
        }
        progress->done++;
    }
    return status;
}

/* Rounds go over all algorithms, so that a disturbance does not hit every round of one of them. */
static weft_status_t measure_op(bench_rank_t *self, bench_t *bench, const tune_run_t *run,
                                weft_collective_t op, progress_t *progress)
{
    const weft_algorithm_t *algorithm;
    weft_status_t status = WEFT_OK;
    bench->op = op;
    for (uint32_t round = 0; round < run->rounds; round++) {
        for (uint32_t a = 0; status == WEFT_OK && a < TUNE_ALGORITHMS &&
                             (algorithm = wefti_tune_algorithm(bench->op, a)) != NULL;
             a++) {
            if (left_out(run, algorithm) == NULL) {
                status = measure_algorithm(self, bench, run, algorithm, progress,
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
    progress_t progress = {.done = run->done};
    (void)world_size;
    bench.op = WEFT_COLLECTIVE_ALL_REDUCE;
    weft_status_t status = wefti_bench_rank_init(&self, &bench, rank, address);
    if (status == WEFT_OK && bench.floor != NULL) {
        status = wefti_tune_links(&self, &bench, run);
    }
    for (uint32_t op = 1; status == WEFT_OK && op < WEFTI_OPS; op++) {
        if (wefti_tune_measures(run->only, (weft_collective_t)op)) {
            status = measure_op(&self, &bench, run, (weft_collective_t)op, &progress);
        }
    }
    if (rank == 0 && run->progress) {
        fputs("\r\033[K", stderr);
    }
    wefti_bench_rank_deinit(&self);
    return status;
}
