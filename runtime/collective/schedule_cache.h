/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedules that a group's calls have run, ready to run again, and what they share: counters
 * and work memory in the group's channel. Made with the first of them.
 *
 *   choose     select.c         which algorithm
 *   resources  schedule_cache.c whether it can run here, and with what
 *   build      schedule_cache.c the schedule of this rank, lowered to links; once
 *   submit     call_schedule.c  one call's sizes and addresses; allocates nothing
 */
#ifndef WEFT_RUNTIME_SCHEDULE_CACHE_H
#define WEFT_RUNTIME_SCHEDULE_CACHE_H

#include "runtime/collective/call.h"
#include "runtime/interpreter/interpreter.h"

#define WEFTI_SCHEDULES 64u /* kept; the one that was not used for longest makes room */

/* What a schedule is built for, beside the group and its order. */
typedef struct wefti_schedule_key {
    const weft_algorithm_t *algorithm;
    uint32_t root;
    bool in_place;
    bool hidden; /* peers do not reach all ranks' buffers: none is touched by another rank */
} wefti_schedule_key_t;

typedef struct wefti_cached_schedule {
    wefti_schedule_key_t key;
    wefti_run_t *run; /* NULL: free */
    uint64_t used;    /* when, by count */
} wefti_cached_schedule_t;

typedef struct wefti_schedules {
    wefti_run_memory_t memory;
    wefti_run_counters_t counters;
    uint64_t *send, *recv; /* [size] offsets of a call */
    uint64_t *matrix;      /* all-to-all-v: counts, displacements to and from: [3 * size * size] */
    uint8_t *hidden;       /* [size] all 1 */
    uint8_t *spare; /* a block that is received, of calls that only some ranks made in place */
    size_t spare_bytes;
    uint64_t clock;
    wefti_cached_schedule_t entries[WEFTI_SCHEDULES];
} wefti_schedules_t;

/*
 * The schedule for key, built if there is none. WEFT_ERR_UNSUPPORTED with a message that names
 * operator and algorithm where it cannot run: on all ranks alike. Anything else may be this rank's
 * trouble alone.
 */
weft_status_t wefti_schedules_get(weft_group_t *group, const wefti_schedule_key_t *key,
                                  wefti_run_t **out_run);
/* The matrix, for all-to-all-v. */
weft_status_t wefti_schedules_matrix(weft_group_t *group, uint64_t **out_matrix);
/* Memory for such a block; kept, as the calls of a group follow each other. */
weft_status_t wefti_schedules_spare(weft_group_t *group, size_t bytes, uint8_t **out_spare);
/* Calls that are under way must not use any of them. */
void wefti_schedules_forget(weft_group_t *group);
void wefti_schedules_destroy(weft_group_t *group);

#endif
