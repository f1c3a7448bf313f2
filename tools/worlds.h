/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that run on this host, found by the memory of their flight recorders. */
#ifndef WEFT_TOOLS_WORLDS_H
#define WEFT_TOOLS_WORLDS_H

#include "runtime/flight/live.h"

/* All that this user may look at, by world, then rank; wefti_live_ranks_deinit frees them. */
weft_status_t wefti_worlds_find(wefti_live_ranks_t *out);
/* Keeps the worlds of which some rank is wanted. */
typedef bool (*wefti_live_rank_fn)(const void *user, const wefti_live_rank_t *rank);
void wefti_worlds_keep(wefti_live_ranks_t *ranks, wefti_live_rank_fn wanted, const void *user);
/* Is the rank of the same world as the one before it in the list? */
bool wefti_worlds_continues(const wefti_live_ranks_t *ranks, size_t index);

#endif
