/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that run on this host, found by the memory of their flight recorders. */
#ifndef WEFT_TOOLS_WORLDS_H
#define WEFT_TOOLS_WORLDS_H

#include <sys/types.h>

#include "runtime/flight/flight.h"

typedef struct live_rank {
    const wefti_flight_image_t *image; /* mapped read-only */
    size_t bytes;
    ino_t inode;
    pid_t pid;             /* as this process sees it */
    char state;            /* of /proc/PID/stat: 'T' is stopped */
    uint64_t memory_bytes; /* resident */
} live_rank_t;

typedef struct live_ranks {
    live_rank_t *list; /* by world, then rank */
    size_t count, capacity;
} live_ranks_t;

/* All that this user may look at. */
weft_status_t wefti_worlds_find(live_ranks_t *out);
void wefti_worlds_deinit(live_ranks_t *ranks);
/* Keeps the worlds of which some rank is wanted. */
typedef bool (*wefti_live_rank_fn)(const void *user, const live_rank_t *rank);
void wefti_worlds_keep(live_ranks_t *ranks, wefti_live_rank_fn wanted, const void *user);
/* Is the rank of the same world as the one before it in the list? */
bool wefti_worlds_continues(const live_ranks_t *ranks, size_t index);

#endif
