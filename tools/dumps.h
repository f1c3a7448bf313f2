/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps of flight recorders, as `weft analyze` reads them. */
#ifndef WEFT_TOOLS_DUMPS_H
#define WEFT_TOOLS_DUMPS_H

#include "runtime/base/json.h"

#define DUMP_NO_RANK UINT32_MAX
#define DUMP_NO_TIME (-1e300)

typedef enum dump_kind { DUMP_COLLECTIVE, DUMP_SEND, DUMP_RECV } dump_kind_t;

typedef struct dump_call {
    uint32_t group, seq;
    dump_kind_t kind;     /* world-wide calls count as collectives of the group "world" */
    const char *text;     /* "all_reduce with 16 x f32 (sum)" */
    uint32_t peer;        /* of sends and receives */
    uint32_t stream;      /* 0: none */
    bool done, queued;    /* done: also after an error; queued: behind another call of its group */
    const char *status;   /* of an error, else NULL */
    uint32_t awaits;      /* rank, or DUMP_NO_RANK */
    double issued, ended; /* microseconds since the origin; DUMP_NO_TIME: not, or at once */
} dump_call_t;

typedef struct dump {
    const char *path;
    wefti_json_tree_t tree;
    uint32_t rank, world_size, pid;
    const char *world, *host, *reason;
    const char *error;      /* message, or NULL */
    double created, dumped; /* microseconds since the origin */
    dump_call_t *calls;     /* the oldest first */
    uint32_t call_count;
} dump_t;

/* Dumps of one world, by rank. */
typedef struct dumps {
    dump_t *list;
    size_t count, capacity;
    uint32_t world_size;
    double origin; /* microseconds of Unix time */
} dumps_t;

/* A file, or a folder with dumps. An exit code, with one line printed for command. */
int wefti_dumps_add(dumps_t *dumps, const char *command, const char *path);
/* After all were added: sorted, the latest of each rank; all are of one world. */
int wefti_dumps_complete(dumps_t *dumps, const char *command);
void wefti_dumps_deinit(dumps_t *dumps);
/* NULL: there is none. */
const dump_t *wefti_dumps_find(const dumps_t *dumps, uint32_t rank);

/* The call did not come to a good end. */
static inline bool wefti_dump_is_open(const dump_call_t *call)
{
    return !call->done || call->status != NULL;
}
/* Ranks of a group that some dump describes; true: rank is in it. Groups that none describes have
 * the ranks that called something in them. */
bool wefti_dumps_is_member(const dumps_t *dumps, uint32_t group, uint32_t rank);
/* "the world", "the group of all 4 ranks (channel 0)", "the group of ranks 0 2 (channel 1)";
 * returns out. */
const char *wefti_dumps_group_name(const dumps_t *dumps, uint32_t group, char *out, size_t bytes);

/* A timeline for Perfetto: a process per rank, a row per group. */
weft_status_t wefti_dumps_timeline(const dumps_t *dumps, const char *path);

#endif
