/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of this host are doing, read from outside of their processes. */
#ifndef WEFT_RUNTIME_FLIGHT_LIVE_H
#define WEFT_RUNTIME_FLIGHT_LIVE_H

#include <sys/types.h>

#include "runtime/flight/flight.h"

typedef struct wefti_live_rank {
    const wefti_flight_image_t *image; /* mapped read-only */
    size_t bytes;
    ino_t inode;
    pid_t pid;             /* as this process sees it */
    char state;            /* of /proc/PID/stat: 'T' is stopped */
    uint64_t memory_bytes; /* resident */
} wefti_live_rank_t;

typedef struct wefti_live_ranks {
    wefti_live_rank_t *list;
    size_t count, capacity;
} wefti_live_ranks_t;

/* Adds the ranks of a process, if this one may look at it. */
weft_status_t wefti_live_ranks_add(wefti_live_ranks_t *ranks, pid_t pid);
void wefti_live_ranks_deinit(wefti_live_ranks_t *ranks);

/* What a rank is doing. */
typedef struct wefti_activity {
    uint32_t rank, pid;
    uint32_t awaits; /* or WEFTI_FLIGHT_NO_RANK */
    uint32_t in_call;
    double seconds; /* in the call, or without one */
    double calls_per_s, bytes_per_s;
    uint64_t memory_bytes;
    char state[16], host[64];
    char call[200]; /* the current call, or the last one; "" if there is none */
} wefti_activity_t;

/* calls: [WEFTI_FLIGHT_CALLS], for its own use. */
void wefti_live_rank_observe(const wefti_live_rank_t *rank, wefti_flight_record_t *calls,
                             wefti_activity_t *out);

/* False: nobody has said yet what the rank does. */
static inline bool wefti_activity_is_known(const wefti_activity_t *activity)
{
    return activity->state[0] != '\0';
}

/* The last calls of a rank: then bytes of JSON (dump.c); 0: it has no recorder. */
typedef struct wefti_dumped {
    uint32_t rank, pid;
    uint64_t bytes;
    char host[64];
} wefti_dumped_t;

/*
 * The answer to weft ps on another host (wefti_answer_fn): activities of the ranks of this host, by
 * one of them, which is another one in the next turn. A rank that relays a question answers at once
 * with all ranks of the world; the state of those on other hosts is "", or "left". With
 * WEFTI_ASK_DUMPS in turn: the dumps of all ranks of this host, each after a wefti_dumped_t.
 */
void *wefti_live_answer(const wefti_endpoint_t *endpoint, bool relays, uint32_t turn,
                        size_t *out_bytes);

#endif
