/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: what a link cannot do becomes what it can.
 *
  *   hidden buffers  users' memory that peers cannot reach: blocks that peers read are copied to a
 *                   staging slot before the post that shows them; blocks that peers write are
 *                   copied out of one after the wait that brings them
 *   put links       no load and store: the owner of the data puts it into a staging slot of the
 *                   reader, after the post that shows it, and signals (DATA); the reader signals
 *                   back (CONSUMED), and the slot is put again only after that. Writes become puts,
 *                   posts become signals (READY) to the ranks that wait
 *
 * Every rank can compute it alone, for algorithms are pure functions: it looks at the schedules of
 * all ranks, or keeps of each what concerns it.
 */
#ifndef WEFT_OPS_ALGO_LOWER_H
#define WEFT_OPS_ALGO_LOWER_H

#include "ops/algo/schedule.h"

/* Lowers the schedules of all ranks in place; on failure they are as they were. */
weft_status_t wefti_schedules_lower(const weft_algo_params_t *params, const wefti_links_t *links,
                                    const weft_allocator_t *allocator, wefti_schedule_t *schedules);

/*
 * Builds and lowers the schedule of params->rank: *out_schedules has one schedule for each rank, of
 * which that one is whole, and stage_slots and stage_wide_slots of all are right. Of the others
 * there is at least what they do in the memory of the rank, and their signals to it. Free with
 * wefti_schedules_free.
 */
weft_status_t wefti_schedules_build_lowered(const weft_algorithm_t *algorithm,
                                            const weft_algo_params_t *params,
                                            const wefti_links_t *links,
                                            const weft_allocator_t *allocator,
                                            wefti_schedule_t **out_schedules);
/* Whether lowering needs of an exchange the schedules of its two ranks only: of built-in algorithms.
 */
bool wefti_lower_by_two(const weft_algorithm_t *algorithm);

#endif
