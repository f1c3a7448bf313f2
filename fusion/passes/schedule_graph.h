/* SPDX-License-Identifier: Apache-2.0 */
/* The graph's own order, before it is lowered: list scheduling, and the bounds that the user gave.
 */
#ifndef WEFT_FUSION_SCHEDULE_GRAPH_H
#define WEFT_FUSION_SCHEDULE_GRAPH_H

#include "fusion/fusion.h"
#include "fusion/passes/schedule.h"
#include "runtime/base/log.h"

typedef struct wefti_schedule_options {
    const wefti_profile_t *profile;
    const wefti_rates_t *rates;      /* NULL: default rates */
    const wefti_bucket_cost_t *cost; /* of a collective, by its bytes */
    uint32_t in_flight;              /* 0: no bound */
    uint64_t arena_limit;            /* 0: no bound */
    /* With arena_limit: bytes of the arena of a plan with the graph's present order. */
    weft_status_t (*arena_of)(void *user, uint64_t *out_bytes);
    void *user;
    wefti_arena_t *arena;
    const wefti_log_t *log;
} wefti_schedule_options_t;

/* Orders the graph's operators. An arena limit that no order found keeps is an error that says how
 * much the best one needs. */
weft_status_t wefti_schedule_graph(wefti_graph_t *graph, const wefti_schedule_options_t *options);
/* What the graph's present order comes to. */
weft_status_t wefti_schedule_judge_graph(wefti_graph_t *graph,
                                         const wefti_schedule_options_t *options,
                                         wefti_schedule_cost_t *out_cost);

#endif
