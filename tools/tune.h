/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring what communication costs on this machine.
 *
 *   cmd_tune.c      options; one launch of ranks after the other; writes the table
 *   tune_measure.c  the ranks: every algorithm over sizes
 *   tune_links.c    the ranks: memory, links and sums by themselves
 *   tune_world.c    the same by ranks that something else launched, and links between their hosts
 *   tune_fit.c      from times to costs
 *   tune_print.c    what the table chooses
 */
#ifndef WEFT_TOOLS_TUNE_H
#define WEFT_TOOLS_TUNE_H

#include "ops/cost/cost.h"
#include "tools/bench.h"

#define TUNE_ALGORITHMS 16u
#define TUNE_SIZES 16u
#define TUNE_GROUPS 8u

/* What one launch of ranks measured: written by rank 0, read by whoever launched them. */
typedef struct tune_result {
    /* of an operator's n-th algorithm; 0: not measured */
    wefti_cost_point_t points[BENCH_OP_COUNT][TUNE_ALGORITHMS][TUNE_SIZES];
    double self_beta, host_alpha, host_beta, gamma; /* ns; 0: not measured */
    double net_alpha, net_beta;                     /* the same */
} tune_result_t;

/* One launch: a number of ranks and a kind of memory. */
typedef struct tune_run {
    bench_t bench;          /* op is set as it goes */
    const bench_op_t *only; /* NULL: all */
    double budget_us;       /* of a size, a round */
    uint32_t rounds;
    uint64_t growth; /* from one size to the next */
    bool progress;
    const uint32_t *host_of; /* [ranks]; NULL: one host */
    uint32_t host_count;
    uint32_t done, total;  /* measurements, of all launches */
    tune_result_t *result; /* shared */
} tune_run_t;

/* The whole of it. */
typedef struct tune_command {
    const char *output, *name;
    uint32_t groups[TUNE_GROUPS], group_count;
    const bench_op_t *only;
    uint64_t max_bytes;
    bool quick, json, ranks_given;
    uint32_t *host_of, host_count; /* [groups[0]] of ranks that were launched on several hosts */
    uint32_t done, total;
    wefti_costs_t costs;
} tune_command_t;

/* The n-th algorithm of op in the table, or NULL. */
const weft_algorithm_t *wefti_tune_algorithm(weft_collective_t op, uint32_t index);
/* NULL, or why the algorithm cannot be measured over these ranks. */
const char *wefti_tune_left_out(const tune_run_t *run, const weft_algorithm_t *algorithm);
/* How many measurements a launch does. */
uint32_t wefti_tune_count(const tune_run_t *run);

/* What a rank does: a rank_fn, user is a tune_run_t. */
weft_status_t wefti_tune_rank(void *user, uint32_t rank, uint32_t world_size, const char *address);
/* Collective over ranks; fills in the links' part of the result. bench is self's, and gets another
 * operator. */
weft_status_t wefti_tune_links(bench_rank_t *self, bench_t *bench, tune_result_t *result);

/* tune_fit.c: what a launch measured goes into the table: the links, what the interpreter costs
 * (after them), and each algorithm. */
void wefti_tune_set_links(wefti_costs_t *costs, const tune_result_t *result);
weft_status_t wefti_tune_set_steps(wefti_costs_t *costs, const tune_run_t *run);
weft_status_t wefti_tune_add(wefti_costs_t *costs, const tune_run_t *run);

/* cmd_tune.c */
tune_run_t wefti_tune_make_run(const tune_command_t *command, uint32_t ranks, memory_kind_t memory);
weft_status_t wefti_tune_write(const tune_command_t *command);
/* tune_world.c: this process is a rank; rank 0 writes and prints. Exit code. */
int wefti_tune_launched(tune_command_t *command);
/* What algorithms see of the hosts. */
static inline void wefti_tune_place(weft_algo_params_t *params, const uint32_t *host_of,
                                    uint32_t host_count)
{
    params->host_of = host_count > 1 ? host_of : NULL;
    params->host_of_count = host_count > 1 ? host_count : 0;
}

/* tune_print.c: prints which algorithms the table chooses, and the links. */
weft_status_t wefti_tune_show(const tune_command_t *command);

#endif
