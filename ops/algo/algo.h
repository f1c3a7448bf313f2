/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithms are data: a pure function turns (operator, group size, rank, range) into the steps
 * that one rank runs. The runtime binds the steps to addresses and counters once; a simulator can
 * run all ranks' steps side by side. Nothing here knows memory, devices or transports.
 *
 * Every rank owns one counter per collective. In run number e (1, 2, ...) phase p of a rank is
 * reached once its counter is at (e - 1) * phase_count + p; counters only grow, so a rank may skip
 * phases nobody waits for.
 */
#ifndef WEFT_OPS_ALGO_ALGO_H
#define WEFT_OPS_ALGO_ALGO_H

#include <weft/types.h>

#include "ops/plan/plan.h"

typedef enum wefti_algo_step_kind {
    WEFTI_ALGO_SIGNAL = 1, /* own counter reaches phase */
    WEFTI_ALGO_WAIT = 2,   /* peer's counter (or every peer's) has reached phase */
    WEFTI_ALGO_REDUCE = 3, /* all ranks' copies of the elements, into all ranks' copies */
    WEFTI_ALGO_COPY = 4,   /* the elements from peer's copy into the own */
} wefti_algo_step_kind_t;

#define WEFTI_ALGO_ALL_PEERS UINT32_MAX
#define WEFTI_ALGO_MAX_STEPS 8u

typedef struct wefti_algo_step {
    wefti_algo_step_kind_t kind;
    uint32_t phase;
    uint32_t peer;
    uint64_t elem_begin, elem_count;
} wefti_algo_step_t;

typedef struct wefti_algo_schedule {
    uint32_t phase_count;
    uint32_t step_count;
    wefti_algo_step_t steps[WEFTI_ALGO_MAX_STEPS];
} wefti_algo_schedule_t;

typedef struct wefti_algo_params {
    uint32_t rank, group_size;
    uint32_t root; /* broadcast */
    uint64_t elem_count;
    uint32_t elem_bytes;
} wefti_algo_params_t;

typedef void (*wefti_algo_fn)(const wefti_algo_params_t *params,
                              wefti_algo_schedule_t *out_schedule);

/* Each rank reduces its share of the range over all copies and writes the result to all of them. */
void wefti_all_reduce_mesh(const wefti_algo_params_t *params, wefti_algo_schedule_t *out_schedule);
/* Everybody copies from the root, which waits until all have. */
void wefti_broadcast_mesh(const wefti_algo_params_t *params, wefti_algo_schedule_t *out_schedule);

/* The algorithm called name for op, or NULL. */
wefti_algo_fn wefti_algo_find(wefti_collective_op_t op, const char *name);

#endif
