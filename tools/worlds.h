/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that run on this host, found by the memory of their flight recorders; by them, the ranks of
 * their worlds on other hosts. */
#ifndef WEFT_TOOLS_WORLDS_H
#define WEFT_TOOLS_WORLDS_H

#include "runtime/flight/live.h"
#include "transport/bootstrap/bootstrap.h"

/* All that this user may look at, by world, then rank; wefti_live_ranks_deinit frees them. */
weft_status_t wefti_worlds_find(wefti_live_ranks_t *out);
/* Keeps the worlds of which some rank is wanted. */
typedef bool (*wefti_live_rank_fn)(const void *user, const wefti_live_rank_t *rank);
void wefti_worlds_keep(wefti_live_ranks_t *ranks, wefti_live_rank_fn wanted, const void *user);
/* Is the rank of the same world as the one before it in the list? */
bool wefti_worlds_continues(const wefti_live_ranks_t *ranks, size_t index);

/* A world, and what its ranks do. */
typedef struct live_world {
    const wefti_flight_header_t *header; /* of its first rank here */
    double seconds;                      /* since that rank was created */
    wefti_activity_t *ranks;             /* in their order */
    size_t count, here;                  /* ranks in the list; of this host */
    bool asked;     /* count is the size of the world; of some ranks nothing may be known */
    char fail[512]; /* why ranks of other hosts could not be asked, or "" */
} live_world_t;

/* The world of the ranks from first on. wait_s: for ranks on other hosts; 0: without them. */
weft_status_t wefti_world_init(const wefti_live_ranks_t *ranks, size_t first, double wait_s,
                               live_world_t *out);
void wefti_world_deinit(live_world_t *world);
/* Writes the last calls of the ranks of the world to files in folder; those of other hosts as far
 * as they answer within wait_s. */
weft_status_t wefti_world_dump(const wefti_live_ranks_t *ranks, size_t first, double wait_s,
                               const char *folder);
/* The first rank from there on of which nothing is known but its host; or count. */
size_t wefti_world_next_silent(const live_world_t *world, const char *host, size_t from);
/* Nothing is known of rank, and it is the first such rank of its host. */
bool wefti_world_first_silent(const live_world_t *world, size_t rank);

#endif
