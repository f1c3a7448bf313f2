/* SPDX-License-Identifier: Apache-2.0 */
/* What resolve.c and resolve_check.c share. */
#ifndef WEFT_OPS_ALGO_RESOLVE_INTERNAL_H
#define WEFT_OPS_ALGO_RESOLVE_INTERNAL_H

#include "ops/algo/resolve.h"

#define WEFTI_MAX_ELEMS (INT64_MAX / 16) /* in bytes they fit, and two of them added do */

weft_status_t wefti_sizes_too_large(const weft_algo_params_t *params);

/* Shards of whole cache lines, the last ones shorter or empty. */
static inline uint64_t wefti_shard_elems(uint64_t elem_count, uint32_t elem_bytes, uint32_t blocks)
{
    uint64_t unit = elem_bytes < WEFTI_SHARD_BYTES ? WEFTI_SHARD_BYTES / elem_bytes : 1;
    uint64_t units = elem_count / unit + (elem_count % unit != 0);
    return (units / blocks + (units % blocks != 0)) * unit;
}

/* How many counts a V form has. */
static inline size_t wefti_count_names(const weft_algo_params_t *params)
{
    size_t n = params->group_size;
    return wefti_collective_exchanges(params->op) ? n * n : n;
}

static inline bool wefti_step_is_move(const wefti_step_t *step)
{
    return step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE || step->op == WEFTI_DO_PUT;
}

#endif
