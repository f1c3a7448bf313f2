/* SPDX-License-Identifier: Apache-2.0 */
/* What the files share that turn programs into records. */
#ifndef WEFT_RUNTIME_BIND_H
#define WEFT_RUNTIME_BIND_H

#include "ops/algo/resolve.h"
#include "runtime/plan/session.h"

/* An event of the program at hand. */
typedef struct wefti_lowered_event {
    uint32_t recorded_by;                /* stream */
    const char *record_name, *wait_name; /* of its records */
} wefti_lowered_event_t;

/* Where the lowering of programs stands. */
typedef struct wefti_lowering {
    weft_session_t *session;
    uint32_t program, stream;
    wefti_lowered_event_t *events;
    uint32_t next_collective; /* of all programs: its number picks the counter */
    wefti_record_t *records;  /* of the stream so far */
    size_t count, capacity;
    wefti_result_check_t *checked; /* of the collective at hand: check.c */
} wefti_lowering_t;

/* Address of rank's copy of what lies at offset of the session's memory. */
static inline void *wefti_bind_at(const weft_session_t *session, uint32_t rank, size_t offset)
{
    return session->endpoint->region_of[rank] + session->region_offset + offset;
}

/* bind.c: each adds one record to the stream at hand. */
weft_status_t wefti_bind_add(wefti_lowering_t *lowering, const wefti_record_t *record);
weft_status_t wefti_bind_kernel(wefti_lowering_t *lowering, uint32_t kernel);
/* This rank's counter of the use at hand reaches epoch * stride + offset. */
weft_status_t wefti_bind_signal(wefti_lowering_t *lowering, uint32_t stride, uint32_t offset);
/* Those of rank_count ranks of the group from first_rank, except this rank, have reached it. */
weft_status_t wefti_bind_wait(wefti_lowering_t *lowering, const wefti_bound_group_t *group,
                              uint32_t first_rank, uint32_t rank_count, uint32_t stride,
                              uint32_t offset);
/* Run number i of the use at hand. */
weft_status_t wefti_bind_run(wefti_lowering_t *lowering, uint32_t i);

/* bind_kernels.c: prepares a kernel of the plan for records of stream, once. */
weft_status_t wefti_bind_use(weft_session_t *session, uint32_t index, uint32_t stream);
/* The same for what desc says. */
weft_status_t wefti_bind_prepare(weft_session_t *session, uint32_t index,
                                 const weft_node_desc_t *desc, uint32_t threads,
                                 wefti_bound_kernel_t *bound);
void wefti_unprepare(wefti_bound_kernel_t *bound);
/* bind_update.c: collectives with an update. */
/* Whether one runs as a sweep, of the host's. */
bool wefti_bind_sweeps(const weft_session_t *session, uint32_t collective);
uint64_t wefti_bind_shard_elems(const weft_session_t *session,
                                const wefti_plan_collective_t *collective);
/* Rank's copy of the shard of rank owner, of the range in buffer. */
uint8_t *wefti_bind_shard_at(const weft_session_t *session,
                             const wefti_plan_collective_t *collective, uint32_t buffer,
                             uint32_t rank, uint32_t owner);
weft_status_t wefti_bind_update(wefti_lowering_t *lowering, uint32_t collective);
/* bind_collectives.c: the next use, in the order of all programs. */
weft_status_t wefti_bind_collective(wefti_lowering_t *lowering, uint32_t collective);
/* check.c: room for the checks of as many uses of collectives; records before and after one. */
weft_status_t wefti_bind_checks(weft_session_t *session, size_t uses);
weft_status_t wefti_bind_check_before(wefti_lowering_t *lowering, uint32_t collective);
weft_status_t wefti_bind_check_after(wefti_lowering_t *lowering);

#endif
