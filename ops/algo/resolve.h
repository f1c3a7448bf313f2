/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submit: symbolic blocks become ranges of elements. What comes out is flat: an interpreter walks
 * the steps of each lane in order and adds offsets to base addresses; it looks nothing up and
 * allocates nothing.
 *
 * A large call runs in slices, one run of the schedule each, so that scratch and staging stay
 * small: of a vector each slice is a smaller vector; of blocks it takes the same elements of each,
 * where they are. Offsets into users' buffers do not include where the slice begins: whoever runs
 * the tasks adds slice.at. So slices of one length have the same tasks (V forms: as long as no
 * block ends).
 */
#ifndef WEFT_OPS_ALGO_RESOLVE_H
#define WEFT_OPS_ALGO_RESOLVE_H

#include "ops/algo/schedule.h"

/* The sizes of one call. */
typedef struct wefti_counts {
    uint64_t elem_count; /* vectors: of the vector; block operators: of each block */
    uint32_t elem_bytes; /* of the users' type: shards start on cache lines */
    /* V forms: [block], AllToAllV: [from * group_size + to]; blocks lie side by side. */
    const uint64_t *counts;
} wefti_counts_t;

/*
 * V forms: where block b of rank r begins in its buffers, in elements: [r * stride + b], stride 0
 * where all ranks have the same. NULL: blocks lie side by side.
 */
typedef struct wefti_displacements {
    const uint64_t *send, *recv;
    uint32_t stride;
} wefti_displacements_t;

/* What one run moves of a call. */
typedef struct wefti_slice {
    uint64_t at, elem_count; /* of the vector, or of every block; blocks may end before */
    uint64_t slot_elems;     /* of scratch and staging: as long as the longest block of any slice */
} wefti_slice_t;

/* Elements offset, ... of a buffer on each of rank_count ranks. */
typedef struct wefti_extent {
    uint32_t rank, rank_count;
    uint32_t buffer; /* wefti_place_buffer_t */
    uint64_t offset;
} wefti_extent_t;

typedef struct wefti_task {
    uint8_t op, flags; /* as in wefti_step_t */
    uint16_t source_count, destination_count;
    uint32_t range;      /* COPY, REDUCE, PUT: first of its sources, then destinations */
    uint64_t elem_count; /* the same */
    union {
        uint32_t phase; /* POST */
        struct {
            uint32_t first_rank, rank_count, phase;
            uint16_t lane, back;
        } wait;
        struct {
            uint32_t peer, index;
            uint16_t lane, back;
        } signal; /* SIGNAL, AWAIT */
    };
} wefti_task_t;

/* The tasks of one rank for one set of sizes. */
typedef struct wefti_tasks {
    const weft_allocator_t *allocator;
    uint32_t lane_begin[WEFTI_MAX_LANES + 1];
    wefti_task_t *tasks;
    size_t task_count, task_capacity;
    wefti_extent_t *ranges;
    size_t range_count, range_capacity;
    /* Elements that each buffer holds on this rank, scratch and staging in one set. */
    uint64_t elems[WEFTI_BUFFER_COUNT];
    /* [rank * 2 + buffer]: how many elements of send and recv of each rank these tasks touch, from
     * slice.at on. */
    uint64_t *reach;
    size_t reach_capacity;
    uint64_t *prefix; /* V forms: where blocks begin */
    size_t prefix_capacity;
} wefti_tasks_t;

/* Whether every step stays inside its buffers: schedules of other libraries may not have been
 * verified. Once for each schedule, before its tasks run. */
weft_status_t wefti_schedule_check(const weft_algo_params_t *params,
                                   const wefti_schedule_t *schedule);
/* The whole call as one slice; slot_elems for slices of elem_count elements. Sizes that overflow
 * are WEFT_ERR_INVALID_ARGUMENT. */
weft_status_t wefti_slice_init(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                               const wefti_counts_t *counts, wefti_slice_t *out);
/* Into how many shards a vector is cut, or each block. */
uint32_t wefti_shard_count(const weft_algo_params_t *params,
                           const weft_algo_resources_t *resources);
uint64_t wefti_slice_slot_elems(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                                const wefti_counts_t *counts, uint64_t elem_count);

/* Memory for whatever the schedule may come to, so that resolving allocates nothing. tasks is zero
 * but for its allocator. */
weft_status_t wefti_tasks_reserve(wefti_tasks_t *tasks, const weft_algo_params_t *params,
                                  const wefti_schedule_t *schedule);
/* Makes tasks (zero but for its allocator, or of an earlier call) those of a slice of a schedule
 * that was checked. displacements may be NULL. */
weft_status_t wefti_tasks_resolve(wefti_tasks_t *tasks, const weft_algo_params_t *params,
                                  const wefti_schedule_t *schedule, const wefti_counts_t *counts,
                                  const wefti_displacements_t *displacements,
                                  const wefti_slice_t *slice);
/* Check and resolve in one, for the whole call. WEFT_ERR_INVALID_ARGUMENT when the sizes overflow.
 * Moves of no elements are left out. */
weft_status_t wefti_schedule_resolve(const weft_algo_params_t *params,
                                     const wefti_schedule_t *schedule, const wefti_counts_t *counts,
                                     const weft_allocator_t *allocator, wefti_tasks_t *out);
void wefti_tasks_deinit(wefti_tasks_t *tasks);

#endif
