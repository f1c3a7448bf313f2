/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the gradient and the optimizer state of each parameter lie.
 *
 * Update kernels tell: the input that output 0 is written to is (a range, or a rank's shard, of)
 * parameters; the inputs that the other outputs are written to are their states, element for
 * element; the first other input with as many elements is their gradient. So such a tensor is a
 * list of pieces, however buckets, split gradients and shards cut it:
 *
  *   fc1.weight            |---------------------------------------|    as all ranks have it
 *   fc1.weight.momentum   | rank 0 |     rank 1     |   rank 0  |..    two buckets of two shards
 */
#ifndef WEFT_RUNTIME_STATE_MAP_H
#define WEFT_RUNTIME_STATE_MAP_H

#include "ops/plan/plan.h"

#define WEFTI_ALL_RANKS UINT32_MAX

typedef struct wefti_state_piece {
    uint64_t begin_bytes, size_bytes; /* of the state tensor */
    uint64_t offset_bytes;            /* in the arena of rank */
    uint32_t rank;                    /* WEFTI_ALL_RANKS: every rank holds it */
} wefti_state_piece_t;

typedef struct wefti_state {
    const char *name;        /* "fc1.weight.momentum"; of a gradient or parameter "fc1.weight" */
    uint32_t param;          /* buffer */
    weft_tensor_desc_t desc; /* its layout is that of the parameter */
    uint64_t size_bytes;
    bool sharded; /* some piece is one rank's */
    bool whole;   /* pieces cover it, each byte once */
    uint32_t piece_count;
    const wefti_state_piece_t *pieces; /* by begin_bytes */
} wefti_state_t;

typedef struct wefti_state_map {
    uint32_t count, gradient_count;
    wefti_state_t *states;    /* by parameter, in plan order, then slot */
    wefti_state_t *gradients; /* by parameter */
    uint32_t param_count;
    wefti_state_t *params; /* of which each rank has a shard, by parameter */
} wefti_state_map_t;

/* plan is verified. Memory comes from arena. Operators unknown to registry have no
 * state. */
weft_status_t wefti_state_map_build(const weft_plan_t *plan, const weft_registry_t *registry,
                                    wefti_arena_t *arena, wefti_state_map_t *out_map);

/* The parameter in this buffer if each rank has a shard of it, or NULL. */
const wefti_state_t *wefti_state_map_param(const wefti_state_map_t *map, uint32_t buffer);

/* The error of a state of which updates write only a part, or some elements twice. */
weft_status_t wefti_state_not_whole(const wefti_state_t *state);

#endif
