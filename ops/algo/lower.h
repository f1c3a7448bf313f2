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
 * Every rank can compute it alone, for algorithms are pure functions: it looks at all ranks'
 * schedules.
 */
#ifndef WEFT_OPS_ALGO_LOWER_H
#define WEFT_OPS_ALGO_LOWER_H

#include "ops/algo/schedule.h"

/* Lowers the schedules of all ranks in place; on failure they are as they were. */
weft_status_t wefti_schedules_lower(const weft_algo_params_t *params, const wefti_links_t *links,
                                    const weft_allocator_t *allocator, wefti_schedule_t *schedules);

#endif
