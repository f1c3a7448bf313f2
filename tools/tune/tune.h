/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures a cost table: communication and kernels of this machine.
 *
 *   cmd_tune.c      options
 *   run.c      launches ranks, one group after another; writes the table
 *   measure.c  in ranks: every algorithm over sizes
 *   links.c    in ranks: memory, links and reductions by themselves
 *   kernels.c  in ranks: kernels
 *   world.c    in ranks of another launcher: algorithms
 *   levels.c   in ranks: links between hosts, and with --write-topology all levels
 *   fit.c      from times to costs
 *   print.c    prints which algorithms the table chooses
 *   calibration.c   the table that is cached for this machine
 */
#ifndef WEFT_TOOLS_TUNE_H
#define WEFT_TOOLS_TUNE_H

#include <stdatomic.h>

#include "ops/cost/cost.h"
#include "tools/bench/bench.h"

#define TUNE_ALGORITHMS 16u
#define TUNE_SIZES 16u
#define TUNE_GROUPS 8u
#define TUNE_KERNEL_POINTS 64u
#define TUNE_KERNEL_RANKS 8u /* at most this many ranks measure kernels at the same time */

/* What one launch of ranks measured: written by rank 0, read by the process that launched them. */
typedef struct tune_result {
    /* of an operator's n-th algorithm; 0: not measured */
    wefti_cost_point_t points[WEFTI_OPS][TUNE_ALGORITHMS][TUNE_SIZES];
    double self_beta, host_alpha, host_beta, gamma; /* ns; 0: not measured */
} tune_result_t;

/* One launch: a number of ranks and a kind of memory. */
typedef struct tune_run {
    bench_t bench;          /* op is set as it goes */
    weft_collective_t only; /* 0: all */
    double budget_us;       /* of a size, a round */
    uint32_t pilot_calls, min_calls, link_calls;
    double most_us; /* of all calls of a launch: after that, as few as possible; 0: no bound */
    uint32_t rounds;
    uint64_t growth; /* from one size to the next */
    bool progress;
    const uint32_t *host_of; /* [ranks]; NULL: one host */
    uint32_t host_count;
    uint32_t done, total;  /* measurements, of all launches */
    tune_result_t *result; /* shared */
} tune_run_t;

/* One launch that measures kernels; shared by its ranks. */
typedef struct tune_kernels {
    uint32_t threads, isa;
    const char *family; /* NULL: exact */
    double budget_ns;   /* of a kernel */
    size_t cache_bytes; /* of the caches that a core has for itself */
    uint64_t deadline_ns;
    bool progress;
    _Atomic uint32_t arrived, turn;
    uint32_t count;
    wefti_kernel_point_t points[TUNE_KERNEL_POINTS];
} tune_kernels_t;

typedef struct tune_command {
    const char *command; /* name of the command that measures, for its messages */
    const char *output, *name;
    const char *topology; /* description to write; NULL: none */
    uint32_t groups[TUNE_GROUPS], group_count;
    weft_collective_t only;
    uint64_t max_bytes; /* 0: the default */
    bool quick, json, ranks_given;
    uint32_t *host_of, host_count; /* [groups[0]] of ranks that were launched on several hosts */
    uint32_t done, total;
    wefti_costs_t costs;
} tune_command_t;

/* Is op measured, where only (0: all) is? */
static inline bool wefti_tune_measures(weft_collective_t only, weft_collective_t op)
{
    return wefti_collective_has_one_count(op) && (only == 0 || only == op);
}

/* The n-th algorithm of op in the table, or NULL. */
const weft_algorithm_t *wefti_tune_algorithm(weft_collective_t op, uint32_t index);
/* Number of measurements of a launch. */
uint32_t wefti_tune_count(const tune_run_t *run);

/* A rank_fn; user is a tune_run_t. */
weft_status_t wefti_tune_rank(void *user, uint32_t rank, uint32_t world_size, const char *address);
/* Collective; fills in the links of run->result. bench is self's; its op is changed. */
weft_status_t wefti_tune_links(bench_rank_t *self, bench_t *bench, const tune_run_t *run);

/* levels.c, collective: the net level of costs, between rank 0 and other on another host (0: none);
 * with path, costs per level of the ranks' cluster, which rank 0 writes there. */
weft_status_t wefti_tune_levels(weft_context_t *context, wefti_costs_t *costs, uint32_t other,
                                const char *path);
/* A rank_fn; user is a tune_command_t. */
weft_status_t wefti_tune_levels_rank(void *user, uint32_t rank, uint32_t world_size,
                                     const char *address);

/* fit.c: add the results of a launch to the table: links, then the interpreter, and every
 * algorithm. */
void wefti_tune_set_links(wefti_costs_t *costs, const tune_result_t *result);
weft_status_t wefti_tune_set_steps(wefti_costs_t *costs, const tune_run_t *run);
weft_status_t wefti_tune_add(wefti_costs_t *costs, const tune_run_t *run);

/* kernels.c: a rank_fn, user is a tune_kernels_t. */
weft_status_t wefti_tune_kernels_rank(void *user, uint32_t rank, uint32_t world_size,
                                      const char *address);

/* calibration.c: the cached table of this machine. */
typedef struct calibration {
    char name[64];        /* "AMD EPYC, 2 cores, avx512" */
    char machine[256];    /* all that a table depends on */
    char path[1024];      /* "": no place for a cache, as neither XDG_CACHE_HOME nor HOME is set */
    uint32_t cores;       /* that this process may use */
    uint64_t cache_bytes; /* of a core's own caches; 0: not known */
} calibration_t;
weft_status_t wefti_calibration_find(calibration_t *out);
/* Creates the folder of path. */
weft_status_t wefti_calibration_make_place(const calibration_t *calibration);

/* run.c */
void wefti_tune_init(tune_command_t *command);
void wefti_tune_deinit(tune_command_t *command);
uint64_t wefti_tune_max_bytes(const tune_command_t *command);
tune_run_t wefti_tune_make_run(const tune_command_t *command, uint32_t ranks, memory_kind_t memory);
/* Measures with local ranks; the result is in command->costs. Exit code. */
int wefti_tune_measure(tune_command_t *command, const calibration_t *calibration);
/* Writes command->output. */
weft_status_t wefti_tune_write(const tune_command_t *command);

/* world.c: this process is a rank of a launcher; rank 0 writes and prints. Exit code. */
int wefti_tune_launched(tune_command_t *command);
/* The hosts, in the parameters of algorithms. */
static inline void wefti_tune_place(weft_algo_params_t *params, const uint32_t *host_of,
                                    uint32_t host_count)
{
    params->host_of = host_count > 1 ? host_of : NULL;
    params->host_of_count = host_count > 1 ? host_count : 0;
}

/* print.c: prints which algorithms the table chooses, and links and kernels. */
weft_status_t wefti_tune_show(const tune_command_t *command);

#endif
