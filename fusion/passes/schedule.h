/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a step's operators run: one stream of compute, one channel of communication. Every order is
 * judged on a clock and on the bytes of activations that are alive, operator by operator.
 */
#ifndef WEFT_FUSION_SCHEDULE_H
#define WEFT_FUSION_SCHEDULE_H

#include <stdbool.h>

#include <weft/graph_view.h>

#include "runtime/base/memory.h"

typedef struct wefti_schedule_params {
    const uint64_t *op_ps;    /* per op: how long it takes, communication included */
    const uint8_t *kept;      /* per value: has memory of its own all the time; not counted */
    const uint8_t *to_end;    /* per value: counted, and needed to the end of the step */
    const uint32_t *layouts;  /* per value: memory is handed on between equal ones; NULL: all are */
    const uint32_t *roots;    /* per value: that of which it is a view, or itself; NULL: no views */
    uint32_t in_flight;       /* most collectives issued and not waited for; 0: no bound */
    uint64_t most_live_bytes; /* of activations; 0: no more than the given order needs */
} wefti_schedule_params_t;

/* What one order comes to. */
typedef struct wefti_schedule_cost {
    uint64_t finish_ps;
    uint64_t peak_bytes; /* most bytes of activations alive at one time, unpadded */
    uint32_t in_flight;  /* most collectives issued and not waited for */
    uint64_t exposed_ps; /* how long compute waits for communication */
} wefti_schedule_cost_t;

typedef struct wefti_schedule_report {
    wefti_schedule_cost_t given, chosen;
    bool changed; /* the edits say something */
} wefti_schedule_report_t;

/*
 * List scheduling (Graham 1969): of the operators that could run next the one with the longest path
 * behind it, if the bytes alive stay within the bound, else the next longest; where none fits, the
 * one that needs least. The answer is ORDER edits. It replaces the given order where it is quicker
 * by more than 0.1 %, or where only it keeps the bounds. An operator that updates in place stays
 * behind all others, in the given order.
 *
 * The bound on collectives holds by waiting: an edge from one collective to another means that
 * compute waits for the first before it issues the second.
 */
weft_status_t wefti_pass_schedule(const weft_graph_view_t *view,
                                  const wefti_schedule_params_t *params,
                                  const weft_allocator_t *allocator, weft_edit_list_t **out_edits,
                                  wefti_schedule_report_t *out_report);

/* The view's own order, judged. */
weft_status_t wefti_schedule_judge(const weft_graph_view_t *view,
                                   const wefti_schedule_params_t *params,
                                   const weft_allocator_t *allocator,
                                   wefti_schedule_cost_t *out_cost);

#endif
