/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs for groups that are too large to run all ranks on symbols. If the schedule of every rank
 * is the image of rank 0's, ranks that run side by side are in the same state but for their
 * numbers, so rank 0 stands for all.
 *
 *   turned       rank r -> r + d mod n     rings, Bruck, dissemination, mesh
 *   mirrored     rank r -> r xor d         recursive doubling, pairwise exchange; n a power of two
 *
 * symmetry_image.c builds the schedule of every rank once and compares it with the image, step by
 * step. symmetry.c then runs rank 0: what it does to another rank, the rank opposite does to it.
 */
#ifndef WEFT_OPS_ALGO_SYMMETRY_H
#define WEFT_OPS_ALGO_SYMMETRY_H

#include "ops/algo/schedule.h"

typedef struct wefti_symmetry {
    const weft_algo_params_t *params;
    const wefti_schedule_t *schedule; /* of rank 0 */
    uint32_t ranks, parts;
    bool mirrored;     /* else turned */
    bool moves_blocks; /* blocks have the numbers of ranks and change with them */
} wefti_symmetry_t;

/* A step, or one block of a step that moves several. */
typedef struct wefti_sym_item {
    const wefti_step_t *step;
    const wefti_operand_t *operands; /* of a move: sources, then destinations */
    uint32_t block;                  /* of a move: which of the step's */
} wefti_sym_item_t;

/* Where a walk over a schedule is; begins with zeros. */
typedef struct wefti_sym_walk {
    size_t step;
    uint32_t block;
} wefti_sym_walk_t;

static inline uint32_t wefti_sym_rank(const wefti_symmetry_t *s, uint32_t rank, uint32_t by)
{
    uint64_t turned = (uint64_t)rank + by;
    return s->mirrored ? rank ^ by : (uint32_t)(turned < s->ranks ? turned : turned - s->ranks);
}

/* The image that undoes the one by `by`. */
static inline uint32_t wefti_sym_back(const wefti_symmetry_t *s, uint32_t by)
{
    return s->mirrored || by == 0 ? by : s->ranks - by;
}

/* A block that belongs to a rank: its number in a user's buffer. */
static inline uint32_t wefti_sym_block(const wefti_symmetry_t *s, uint32_t block, uint32_t by)
{
    return s->moves_blocks ? wefti_sym_rank(s, block / s->parts, by) * s->parts + block % s->parts
                           : block;
}

/* False: there is no further item. */
bool wefti_sym_next(const wefti_schedule_t *schedule, wefti_sym_walk_t *walk,
                    wefti_sym_item_t *out);
/* symmetry_image.c: finds the symmetry and compares all ranks; WEFT_ERR_UNSUPPORTED: there is none.
 * *out_schedule is that of rank 0, *out_items how many items all ranks have. */
weft_status_t wefti_symmetry_find(const weft_algorithm_t *algorithm,
                                  const weft_algo_params_t *params,
                                  const weft_allocator_t *allocator, uint64_t most_steps,
                                  wefti_symmetry_t *out, wefti_schedule_t *out_schedule,
                                  uint64_t *out_items);
/* Proves all ranks over shared memory as wefti_schedules_verify does. WEFT_ERR_UNSUPPORTED says why
 * it cannot: the schedules may be correct. most_steps: of all ranks; 0: any number. */
weft_status_t wefti_symmetry_prove(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params,
                                   const weft_allocator_t *allocator, uint64_t most_steps,
                                   uint64_t *out_steps, uint64_t *out_accesses);

#endif
