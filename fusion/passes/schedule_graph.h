/* SPDX-License-Identifier: Apache-2.0 */
/* The graph's own order, before it is lowered: list scheduling, and the bounds that the user gave.
 */
#ifndef WEFT_FUSION_SCHEDULE_GRAPH_H
#define WEFT_FUSION_SCHEDULE_GRAPH_H

#include "fusion/compile.h"
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
    /* Where no order fits: changes the graph so that it does. NULL: an error. */
    weft_status_t (*otherwise)(void *user, const wefti_schedule_params_t *params);
    void *user;
    wefti_arena_t *arena;
    const wefti_log_t *log;
} wefti_schedule_options_t;

/* Orders the graph's operators. An arena limit that no order found keeps is an error that says how
 * much the best one needs. */
weft_status_t wefti_schedule_graph(wefti_graph_t *graph, const wefti_schedule_options_t *options);
/* The graph as a view, with times and kinds of memory of its values. */
weft_status_t wefti_schedule_describe(wefti_graph_t *graph, const wefti_schedule_options_t *options,
                                      weft_graph_view_t *out_view,
                                      wefti_schedule_params_t *out_params);
/* What the graph's present order comes to. */
weft_status_t wefti_schedule_judge_graph(wefti_graph_t *graph,
                                         const wefti_schedule_options_t *options,
                                         wefti_schedule_cost_t *out_cost);

/* The options of a compilation. */
wefti_schedule_options_t wefti_schedule_options(wefti_compiler_t *compiler);
/* The arena of the plan that the passes after the present one and lowering make of a copy of the
 * graph. */
weft_status_t wefti_compile_arena(wefti_compiler_t *compiler, uint64_t *out_bytes);
#endif
