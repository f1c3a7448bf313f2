/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the parameters, their gradients and the state of their optimizer lie.
 *
 * A parameter is whole on every rank, or cut into shards, or each rank has a part. Update kernels tell the rest: the input
 * that output 0 is written to is (a range, or a rank's shard, of) parameters; the inputs that the
 * other outputs are written to are their states, element for element; the first other input with
 * as many elements is their gradient. So each tensor is a list of pieces, however buckets, split
 * gradients and shards cut it:
 *
 *   fc1.weight            |---------------------------------------|    as all ranks have it
 *   fc1.weight.momentum   | rank 0 |     rank 1     |   rank 0  |..    two buckets of two shards
 *   fc2.weight            | rank 0 | rank 1 | rank 0 | rank 1 | ..     rows of two parts by columns
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

/* A parameter, its gradient, or one state of its optimizer. */
typedef struct wefti_state {
    const char *name; /* "fc1.weight.momentum"; of a gradient or parameter "fc1.weight" */
    const wefti_plan_buffer_t *param;
    weft_tensor_desc_t desc; /* its layout is that of the parameter */
    uint64_t size_bytes;
    bool sharded; /* some piece is one rank's */
    bool whole;   /* pieces cover it, each byte once */
    uint32_t piece_count;
    const wefti_state_piece_t *pieces; /* by begin_bytes */
} wefti_state_t;

/* Tensors that programs address by number. */
typedef struct wefti_state_list {
    const char *kind; /* "parameter", "gradient of", "state": of one, in messages */
    wefti_state_t *tensors;
    uint32_t count;
    bool sharded; /* one of them is */
} wefti_state_list_t;

typedef struct wefti_state_map {
    wefti_state_list_t params;    /* in plan order */
    wefti_state_list_t gradients; /* of each parameter; name NULL: the plan has none */
    wefti_state_list_t states;    /* by parameter, then slot */
} wefti_state_map_t;

/* plan is verified, and stays as long as the map. Memory comes from arena. Operators unknown to
 * registry have no state. */
weft_status_t wefti_state_map_build(const weft_plan_t *plan, const weft_registry_t *registry,
                                    wefti_arena_t *arena, wefti_state_map_t *out_map);

/* For qsort: the order of pointers to tensors. */
int wefti_state_by_name(const void *a, const void *b);
/* The error of a tensor of which updates write only a part, or some elements twice. */
weft_status_t wefti_state_not_whole(const wefti_state_t *state);

#endif
