/* SPDX-License-Identifier: Apache-2.0 */
/* A plan proved as a whole, with what was looked at. */
#ifndef WEFT_OPS_PLAN_PROVE_H
#define WEFT_OPS_PLAN_PROVE_H

#include "ops/plan/plan.h"

typedef struct wefti_plan_proof {
    uint64_t steps, waits; /* of all programs */
    uint64_t accesses;     /* pieces of memory read and written by them */
    uint32_t pieces;       /* of memory */
    uint64_t shared_bytes; /* of temporaries and outputs with others of these */
    uint32_t gradients, buckets;
    uint64_t bucket_bytes;
    uint32_t simulated_ranks; /* less than the world only where there are very many */
    uint64_t meetings;        /* collectives in which these have met */
} wefti_plan_proof_t;

/* Proves what wefti_plan_verify does, and that the streams of all ranks reach their ends. The
 * schedules of the plan's algorithms are for ops/algo. */
weft_status_t wefti_plan_prove(const weft_plan_t *plan, const weft_registry_t *registry,
                               wefti_plan_proof_t *out_proof);

#endif
