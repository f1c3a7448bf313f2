/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of the forward pass that run again in the backward pass. For recompute.c,
 * recompute_choose.c and their tests. */
#ifndef WEFT_FUSION_RECOMPUTE_H
#define WEFT_FUSION_RECOMPUTE_H

#include "fusion/compile.h"
#include "fusion/passes/schedule.h"

/* An execution of a node in a step. */
typedef struct wefti_run {
    uint32_t node;
    uint32_t position; /* in the graph's order; again: of the node whose inputs need it */
    bool again;
} wefti_run_t;

/* A step with a set of nodes that run again. */
typedef struct wefti_recompute {
    const wefti_graph_t *graph;
    const wefti_schedule_params_t *params; /* times and kinds of memory */
    wefti_arena_t *arena;
    bool *chosen;          /* by node: it runs again */
    struct memory *memory; /* recompute_choose.c: of the chosen set */
    struct memory *trial;
    uint32_t *stack;
    bool *marked; /* by node */
} wefti_recompute_t;

/* Nothing is chosen. graph, params and arena are borrowed. */
weft_status_t wefti_recompute_init(const wefti_graph_t *graph,
                                   const wefti_schedule_params_t *params, wefti_arena_t *arena,
                                   wefti_recompute_t *out);
/* May the node run again with the same result? */
bool wefti_recompute_can(const wefti_graph_t *graph, uint32_t node);
/* All executions of a step with the chosen set; *out_runs is valid until the next call. */
uint32_t wefti_recompute_runs(wefti_recompute_t *recompute, const wefti_run_t **out_runs);
/* Most bytes of activations alive at once. */
uint64_t wefti_recompute_peak(wefti_recompute_t *recompute);
/* Chooses nodes, from none on, until at most most_bytes are alive at once; false: the set that was
 * found needs more. */
bool wefti_recompute_choose(wefti_recompute_t *recompute, uint64_t most_bytes);
/* Views, such as Reshape, run again if what they view does; all: in any case. */
void wefti_recompute_choose_views(wefti_recompute_t *recompute, bool all);
/* Adds the chosen nodes to a graph: the one of init, or a copy with the same ids. */
weft_status_t wefti_recompute_apply(wefti_recompute_t *recompute, wefti_graph_t *graph);
/* The same to the graph of the compiler, and lists them for the plan. */
weft_status_t wefti_recompute_adopt(wefti_compiler_t *compiler, wefti_recompute_t *recompute);

#endif
