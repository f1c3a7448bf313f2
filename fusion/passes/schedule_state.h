/* SPDX-License-Identifier: Apache-2.0 */
/* A step half placed: what is done when, and what is alive. For schedule.c and schedule_state.c. */
#ifndef WEFT_FUSION_SCHEDULE_STATE_H
#define WEFT_FUSION_SCHEDULE_STATE_H

#include "fusion/passes/schedule.h"
#include "graph/successors.h"

/* The order of ops that values, order edges and fences require. Equal for all orders. */
typedef struct wefti_step_graph {
    const weft_graph_view_t *view;
    const wefti_schedule_params_t *params;
    wefti_successors_t after, before; /* by op: those that run after it, and before it */
    uint64_t *tail_ps;  /* by op: longest path from its begin to the end of the step */
    uint32_t *position; /* by op: in the view's order */
    bool updates_last;  /* what updates in place leads to nothing else */
} wefti_step_graph_t;

/* What a placement needs that no value says: pairs of collectives; compute waits for the first
 * before it issues the second. */
typedef struct wefti_step_waits {
    uint32_t *pairs; /* room for one pair per op */
    uint32_t count;
} wefti_step_waits_t;

typedef struct wefti_step_state {
    const wefti_step_graph_t *graph;
    wefti_step_waits_t *waits;                   /* NULL: nobody wants to know */
    uint64_t compute_ps, channel_ps, exposed_ps; /* when either is free; compute's waiting */
    uint64_t *done_ps;                           /* by op: collectives */
    uint64_t live_bytes, peak_bytes;
    uint32_t *readers;             /* by value: readings to come, also of its views */
    uint32_t *comm_readers;        /* by value: of all, those by collectives */
    uint32_t *pending;             /* by op: "before, after" pairs that are not placed yet */
    uint32_t *out;                 /* collectives issued, in their order */
    uint32_t *out_at;              /* by op: how many were issued up to it, 0: it was not */
    uint32_t out_first, out_count; /* those before out_first are over */
    uint32_t out_most;             /* of those that were out at one time */
    uint32_t *queue;               /* collectives that may start, about to be issued */
    uint32_t queue_first, queue_count;
    uint32_t *ready; /* what compute could run now, for the scheduler to take */
    uint32_t ready_count;
} wefti_step_state_t;

weft_status_t wefti_step_graph_init(const weft_graph_view_t *view,
                                    const wefti_schedule_params_t *params, wefti_arena_t *arena,
                                    wefti_step_graph_t *out_graph);
/* Nothing is placed; waits (or NULL) collects what the bound on collectives asks for. */
weft_status_t wefti_step_begin(const wefti_step_graph_t *graph, wefti_arena_t *arena,
                               wefti_step_waits_t *waits, wefti_step_state_t *out_state);
/* An update, which stays behind everything else. */
bool wefti_step_comes_last(const wefti_step_graph_t *graph, uint32_t op);
bool wefti_step_communicates(const wefti_step_graph_t *graph, uint32_t op);
/* Bytes alive while op runs, if it came next. */
uint64_t wefti_step_live_with(const wefti_step_state_t *state, uint32_t op);
/* Runs op, which computes, next; then issues what it made ready. */
void wefti_step_place(wefti_step_state_t *state, uint32_t op);
/* All operators are placed. */
void wefti_step_end(wefti_step_state_t *state, wefti_schedule_cost_t *out_cost);

#endif
