/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the interpreter share. */
#ifndef WEFT_RUNTIME_INTERPRETER_INTERNAL_H
#define WEFT_RUNTIME_INTERPRETER_INTERNAL_H

#include "ops/reduce/reduce.h"
#include "runtime/interpreter/interpreter.h"

typedef struct wefti_run_lane {
    uint32_t at, end; /* tasks */
    uint32_t seen;    /* WAIT: ranks that were seen */
} wefti_run_lane_t;

struct wefti_run {
    const weft_allocator_t *allocator;
    weft_algo_params_t params;
    uint32_t *users; /* runs that share the schedule, and sent */
    wefti_schedule_t schedule;
    uint32_t lanes, phases;
    /* Of scratch and staging, as many as the rank has that has most: slots of one set, and sets. */
    uint32_t slots[WEFTI_BUFFER_COUNT], sets[WEFTI_BUFFER_COUNT];
    /* Signals of one run: [lane * group_size + peer] from this rank, and to it, in one allocation;
     * NULL: none. */
    uint32_t *sent, *arrived;
    wefti_tasks_t tasks;
    bool settles_each; /* runs end when what they lent is back, and not one run later */

    /* The call at hand. */
    const wefti_run_memory_t *memory;
    wefti_run_call_t call;
    wefti_slice_t slice;
    uint64_t total, chunk;             /* elements, as slices count them */
    uint64_t sized_chunk, sized_bytes; /* asked for, and work memory: when these were found */
    bool sized;
    bool resolved;   /* tasks are for slice, but for its beginning */
    uint64_t number; /* of the run, since the last call that did not follow another */
    bool narrow;     /* sums are as wide as users' elements: copies of them, too */
    uint32_t elem_bytes[WEFTI_BUFFER_COUNT];
    uintptr_t *places; /* [buffer * group_size + rank]: address, or offset over a put link */
    wefti_run_lane_t lane[WEFTI_MAX_LANES];
    uint32_t unsettled; /* bits of lanes whose sleepers were not looked for since they posted */
    uint8_t *area;      /* own */
    wefti_signal_line_t lent[2]; /* of even and odd runs: below 0 while puts lend what they read */
    const void **sources;        /* of one reduction */
    uint8_t *wide;
    void **destinations;
};

/* lend.c: marks steps of this rank. */
weft_status_t wefti_run_find_lent(wefti_run_t *run, wefti_schedule_t *schedules);
/* bind.c: the next slice is where it belongs. */
weft_status_t wefti_run_begin(wefti_run_t *run);

static inline wefti_signal_t *wefti_run_lane_signal(uint8_t *area, uint32_t lane)
{
    return (wefti_signal_t *)(void *)(area + lane * sizeof(wefti_signal_line_t));
}

/* Where the signals of peer's lane arrive, from the start of an area. */
static inline size_t wefti_run_arrival(const wefti_run_counters_t *counters, uint32_t lane,
                                       uint32_t peer)
{
    return counters->lanes * sizeof(wefti_signal_line_t) +
           ((size_t)lane * counters->group_size + peer) * WEFTI_ARRIVAL_BYTES;
}

#endif
