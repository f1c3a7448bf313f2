/* SPDX-License-Identifier: Apache-2.0 */
/* What the files share that turn programs into records. */
#ifndef WEFT_RUNTIME_BIND_H
#define WEFT_RUNTIME_BIND_H

#include "ops/algo/resolve.h"
#include "runtime/plan/session.h"

/* Where the lowering of one program stands. */
typedef struct wefti_lowering {
    weft_session_t *session;
    uint32_t program;
    uint32_t *recorded_by;    /* per event: the stream that records it */
    const char **event_names; /* per event: what its record and its wait are called */
    const char **record_names;
    uint32_t next_collective; /* of all programs: its number picks the counter */
    wefti_tasks_t *tasks;     /* per collective: what its algorithm has this rank do */
    uint32_t *phases;         /* per collective: how far its counters go in a run */
} wefti_lowering_t;

/* Address of rank's copy of what lies at offset of the session's memory. */
static inline void *wefti_bind_at(const weft_session_t *session, uint32_t rank, size_t offset)
{
    return session->endpoint->region_of[rank] + session->region_offset + offset;
}

/* Where a kernel of this rank finds a buffer. */
static inline uint8_t *wefti_bind_operand(const weft_session_t *session, uint32_t buffer)
{
    return session->base +
           wefti_session_offset(&session->plan->buffers[buffer], session->endpoint->rank);
}

/* bind.c: kernel number index of the plan as a record of stream. */
weft_status_t wefti_bind_kernel_record(weft_session_t *session, uint32_t stream, uint32_t index,
                                       wefti_record_t *record);
/* The counter of the use at hand, on rank. */
wefti_signal_t *wefti_bind_collective_signal(const wefti_lowering_t *lowering, uint32_t rank);
/* Makes record a wait for those counters of rank_count ranks from first_rank, except this rank. */
weft_status_t wefti_bind_peer_wait(wefti_lowering_t *lowering, uint32_t first_rank,
                                   uint32_t rank_count, wefti_record_t *record);

/* bind_kernels.c: the kernel of plan's kernel index, for what desc says. */
weft_status_t wefti_bind_prepare(weft_session_t *session, uint32_t index,
                                 const weft_node_desc_t *desc, uint32_t threads,
                                 wefti_bound_kernel_t *bound);
/* bind_update.c: collectives with an update. */
/* Whether one runs as a sweep, of the host's. */
bool wefti_bind_sweeps(const weft_session_t *session, uint32_t collective);
uint64_t wefti_bind_shard_elems(const weft_session_t *session,
                                const wefti_plan_collective_t *collective);
/* Rank's copy of the shard of rank owner, of the range in buffer. */
uint8_t *wefti_bind_shard_at(const weft_session_t *session,
                             const wefti_plan_collective_t *collective, uint32_t buffer,
                             uint32_t rank, uint32_t owner);
/* Their records, as wefti_bind_collective_records and wefti_bind_collective, but for what all
 * records of collectives have. */
size_t wefti_bind_update_records(const wefti_lowering_t *lowering, uint32_t collective);
weft_status_t wefti_bind_update(wefti_lowering_t *lowering, uint32_t stream, uint32_t collective,
                                wefti_record_t *records);

/* bind_collectives.c */
/* What a rank does of each collective. Once, before records are made. */
weft_status_t wefti_bind_tasks(wefti_lowering_t *lowering);
/* Records that one use of a collective takes. */
size_t wefti_bind_collective_records(const wefti_lowering_t *lowering, uint32_t collective);
/* Fills them in, for the next use in the order of all programs. */
weft_status_t wefti_bind_collective(wefti_lowering_t *lowering, uint32_t stream,
                                    uint32_t collective, wefti_record_t *records,
                                    uint32_t *out_count);

#endif
