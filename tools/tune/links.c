/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of links, from data movement without the library (bench/floor.c): a copy of own memory, the
 * flag that a small all-gather waits for, and a large all-gather and all-reduce, whose times are
 * reduced by the known parts.
 */
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "tools/tune/tune.h"

#define PROBE_BYTES ((uint64_t)1 << 20)

/* ns per byte read or written in own memory. */
static double time_own_copy(const bench_rank_t *self, uint32_t calls, uint64_t bytes)
{
    double best = 0;
    for (uint32_t i = 0; i < calls; i++) {
        uint64_t start = wefti_now_ns();
        memcpy(self->recv, self->send, bytes);
        double ns = (double)(wefti_now_ns() - start);
        best = i == 0 || ns < best ? ns : best;
    }
    return best / (2 * (double)bytes);
}

static weft_status_t time_floor(bench_rank_t *self, bench_t *bench, uint32_t calls,
                                weft_collective_t op, uint64_t bytes, double *out_ns)
{
    bench->op = op;
    uint64_t wrong = 0; /* not used */
    weft_status_t status =
        wefti_bench_floor_time(self, bytes, bytes <= 8 * bench->ranks, calls / 5, calls, &wrong);
    if (status == WEFT_OK) {
        status = wefti_bench_combine(self, calls);
        *out_ns = wefti_bench_quantile(self, calls, 0.25) * 1e3;
    }
    return status;
}

static double at_least(double value, double least)
{
    return value > least ? value : least;
}

weft_status_t wefti_tune_links(bench_rank_t *self, bench_t *bench, const tune_run_t *run)
{
    tune_result_t *result = run->result;
    uint32_t calls = run->link_calls;
    uint64_t probe = bench->max_bytes < PROBE_BYTES ? bench->max_bytes : PROBE_BYTES;
    double n = bench->ranks, flag, gather, reduce;
    double self_beta = time_own_copy(self, calls, probe / 2);
    WEFT_RETURN_IF_ERROR(
        time_floor(self, bench, calls, WEFT_COLLECTIVE_ALL_GATHER, 8 * bench->ranks, &flag));
    WEFT_RETURN_IF_ERROR(
        time_floor(self, bench, calls, WEFT_COLLECTIVE_ALL_GATHER, probe, &gather));
    WEFT_RETURN_IF_ERROR(
        time_floor(self, bench, calls, WEFT_COLLECTIVE_ALL_REDUCE, probe, &reduce));
    /* Every rank copies n - 1 blocks of other ranks, between two flags. */
    double block = (double)probe / n, peers = n - 1;
    double host_beta = at_least((gather - 2 * flag) / (peers * block) - self_beta, self_beta);
    /* Every rank reads and writes its shard of all copies; the rest is the reduction. */
    double moved = block * 2 * (self_beta + peers * host_beta);
    double gamma = at_least((reduce - 2 * flag - moved) / (n * block), 0);
    if (self->rank == 0) {
        result->self_beta = self_beta;
        result->host_alpha = flag;
        result->host_beta = host_beta;
        result->gamma = gamma;
    }
    return WEFT_OK;
}
