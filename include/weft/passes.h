/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file passes.h Weft's compiler passes for another compiler's graph.
 *
 * A host compiler describes its graph as a weft_graph_view_t, calls a pass, applies the edits to its
 * own IR and describes the graph again for the next pass. weft_compile does the same with its own IR:
 *
 *     weft_pass_insert_collectives   an AllReduce (avg) behind every complete local gradient
 *     weft_pass_bucket               which of them travel together, from ready times and costs
 *     weft_pass_algorithms           what carries each of them out, the best first
 *     weft_pass_order                the order that all ranks keep, where values do not say it
 *     weft_pass_start_wait           where each may start and must be waited for
 *     weft_pass_schedule             which order ends earliest within bounds on memory and on what is in flight
 *
 * Passes look at nothing but their arguments and decide by content (never by pointer, hash or
 * time): ranks that describe the same graph get the same edits. None changes the view, none keeps
 * it, and all are thread safe. weft_edits_check says whether a list of edits, these or others', may
 * be applied to a view.
 *
 * Views are checked before they are used: ids out of range, operators out of order, cycles are
 * WEFT_ERR_INVALID_ARGUMENT naming the operator. (How long op_inputs, op_outputs and ready_ns are cannot be seen: that
 * is the host's word.) Definitions of collectives come from a registry
 * (weft_registry_find_op(registry, "weft", "AllReduce", 1)), those of the host's own operators from
 * the host: only domain, name and effects are looked at.
 */
#ifndef WEFT_PASSES_H
#define WEFT_PASSES_H

#include <weft/algo.h>
#include <weft/graph_view.h>

/** What a collective costs by one algorithm: alpha + beta * bytes. */
typedef struct weft_bucket_piece {
    uint64_t alpha_ps;
    uint64_t beta_ps_per_kib;
} weft_bucket_piece_t;

/** A measured point; linear in between, constant before the first, the last slope behind the last. */
typedef struct weft_bucket_point {
    uint64_t bytes, ps;
} weft_bucket_point_t;

/** Time of an all-reduce by its bytes: the least of pieces, or, where there are points, what they say. */
typedef struct weft_bucket_cost {
    const weft_bucket_piece_t *pieces;
    uint32_t piece_count;
    const weft_bucket_point_t *points; /**< bytes rise */
    uint32_t point_count;
} weft_bucket_cost_t;

/** Zero and NULL mean the default. */
typedef struct weft_bucket_params {
    size_t struct_size;
    const char *policy;       /**< as in weft_bucket_policy_check; NULL: "auto" */
    const uint64_t *ready_ns; /**< [op_count] when each op has run; NULL: all at once */
    uint32_t world_size;      /**< ranks of a group; at least 1 unless cost is given */
    const weft_bucket_cost_t *cost; /**< NULL: from costs_path */
    const char *costs_path;         /**< measured costs (`weft tune`); NULL: the defaults */
    const weft_allocator_t *allocator;
} weft_bucket_params_t;

#define WEFT_BUCKET_PARAMS_INIT {sizeof(weft_bucket_params_t), 0, 0, 0, 0, 0, 0}

/** What the buckets are predicted to come to, on one channel. */
typedef struct weft_bucket_forecast {
    size_t struct_size;
    uint32_t bucket_count;    /**< pieces of a split gradient are one each */
    uint32_t optimum_count;   /**< of buckets that reach the optimum */
    uint64_t ready_ps;        /**< the last gradient */
    uint64_t chosen_ps;       /**< these buckets are done */
    uint64_t optimum_ps;      /**< the best buckets are done */
    uint64_t lower_bound_ps;  /**< no schedule is done earlier */
    uint64_t comm_ps;         /**< all of them together */
} weft_bucket_forecast_t;

#define WEFT_BUCKET_FORECAST_INIT {sizeof(weft_bucket_forecast_t), 0, 0, 0, 0, 0, 0, 0}

/** Zero and NULL mean the default. */
typedef struct weft_algorithms_params {
    size_t struct_size;
    const uint32_t *group_sizes; /**< [group_count] ranks of each group id of the view */
    uint32_t group_count;        /**< at least 1; id 0 is the world */
    weft_order_t order;          /**< of reductions; WEFT_ORDER_BLOCKS is not supported here */
    const char *costs_path;      /**< as in weft_bucket_params_t */
    const weft_registry_t *registry; /**< its algorithms take part; NULL: the built-in ones */
    const weft_allocator_t *allocator;
} weft_algorithms_params_t;

#define WEFT_ALGORITHMS_PARAMS_INIT                                                                \
    {sizeof(weft_algorithms_params_t), 0, 0, WEFT_ORDER_TREE, 0, 0, 0}

/** Zero and NULL mean the default. */
typedef struct weft_schedule_params {
    size_t struct_size;
    const uint64_t *op_ns;    /**< [op_count] time of each op, collectives included; required */
    const uint8_t *kept;      /**< [value_count] not 0: has memory of its own, which is not counted. What no op
                               * makes is never counted. NULL: none */
    const uint8_t *to_end;    /**< [value_count] not 0: readable after the step, memory is not handed on. NULL: none */
    uint32_t in_flight;       /**< most collectives issued and not waited for; 0: no bound */
    uint64_t most_live_bytes; /**< of values alive at one time; 0: as many as the view's own order has */
    const weft_allocator_t *allocator;
} weft_schedule_params_t;

#define WEFT_SCHEDULE_PARAMS_INIT {sizeof(weft_schedule_params_t), 0, 0, 0, 0, 0, 0}

/** What an order comes to: one stream of compute, one channel of communication. */
typedef struct weft_schedule_cost {
    uint64_t finish_ps;
    uint64_t exposed_ps; /**< compute waits for communication */
    uint64_t peak_bytes; /**< most bytes of values alive at one time, unpadded */
    uint32_t in_flight;  /**< most collectives issued and not waited for */
} weft_schedule_cost_t;

typedef struct weft_schedule_report {
    size_t struct_size;
    weft_schedule_cost_t given;  /**< the view's own order */
    weft_schedule_cost_t chosen; /**< the order that the edits ask for */
    int changed;                 /**< the edits say something */
} weft_schedule_report_t;

#define WEFT_SCHEDULE_REPORT_INIT {sizeof(weft_schedule_report_t), {0, 0, 0, 0}, {0, 0, 0, 0}, 0}

WEFT_EXTERN_C_BEGIN
/**
 * Predicted time of one execution of an operator: what its definition's cost rule gives, at 100
 * GFLOP/s and 10 GB/s. For ready times where nothing was measured.
 * @param[in] node shapes known, or the time is 0
 * @return nanoseconds; 0 for collectives and operators without a cost rule
 */
WEFT_API uint64_t weft_op_predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node);
/**
 * Ready times of a single compute stream: operators run one after the other in the view's order.
 * @param[in]  op_ns    [op_count] time of each op, predicted or measured; NULL: 0 each
 * @param[out] ready_ns [op_count] when each op has run
 */
WEFT_API weft_status_t weft_pass_ready_times(const weft_graph_view_t *view, const uint64_t *op_ns,
                                             uint64_t *ready_ns);
/**
 * INSERT_COLLECTIVE edits: AllReduce with average on group 0 behind every value with grad_of that no
 * collective made.
 * @param[out] out_edits destroyed by the caller
 */
WEFT_API weft_status_t weft_pass_insert_collectives(const weft_graph_view_t *view,
                                                    const weft_allocator_t *allocator,
                                                    weft_edit_list_t **out_edits);
/**
 * FUSE edits that put every single-tensor AllReduce of a gradient (its result has grad_of) into exactly one
 * bucket, with the reason; SPLIT edits for gradients above the policy's cap. Members of a bucket share group,
 * kind, reduction and type, none depends on another, also not by way of other buckets, and no operator
 * of unknown effect lies between them.
 * @param[out] out_edits    destroyed by the caller
 * @param[out] out_forecast struct_size is set by the caller; may be NULL
 * @return WEFT_ERR_INVALID_ARGUMENT naming the policy's or the view's fault
 */
WEFT_API weft_status_t weft_pass_bucket(const weft_graph_view_t *view, const weft_bucket_params_t *params,
                                        weft_edit_list_t **out_edits, weft_bucket_forecast_t *out_forecast);
/**
 * ALGORITHM edits: for every collective of domain weft the algorithms that can carry it out, the quickest for its
 * bytes first (`weft algos` shows the times). Collectives of bytes that nobody knows (0) get those of a small one.
 */
WEFT_API weft_status_t weft_pass_algorithms(const weft_graph_view_t *view,
                                            const weft_algorithms_params_t *params,
                                            weft_edit_list_t **out_edits);
/**
 * ORDER edges from each operator of ordering WEFT_ORDERING_GROUP (or that COMMUNICATES, where the definition
 * says nothing) to the next one in the view's order, unless values or edges lead from the one to the other already.
 * Whoever issues collectives as these edges say issues them in one order on all ranks, whatever the groups.
 */
WEFT_API weft_status_t weft_pass_order(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                                       weft_edit_list_t **out_edits);
/** A START_WAIT edit for every collective: as early and as late as values and edges allow in the view's order. */
WEFT_API weft_status_t weft_pass_start_wait(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                                            weft_edit_list_t **out_edits);
/**
 * List scheduling (Graham 1969): runs, of the operators that could run next, the one with the longest path to the end
 * behind it that keeps the bound on memory. ORDER edits between operators fix the order of compute; one between two
 * collectives says that compute waits for the first before it issues the second. The view's own order stays where the
 * new one is not more than 0.1 % quicker and the old one keeps the bounds. Results are handed the memory of an input
 * that dies where the operator's in-place rule allows it; what a collective touches lives until compute has waited for
 * it or for a later one. Operators that update in place stay last. Whether the bound on memory could be kept is in
 * the report; in_flight always is.
 * @param[out] out_edits  destroyed by the caller
 * @param[out] out_report struct_size is set by the caller; may be NULL
 */
WEFT_API weft_status_t weft_pass_schedule(const weft_graph_view_t *view, const weft_schedule_params_t *params,
                                          weft_edit_list_t **out_edits, weft_schedule_report_t *out_report);
/**
 * Proves that edits may be applied to view: ids exist, inserted collectives have a value to follow, members of a
 * fusion are collectives of one group, kind, reduction and type and of one tensor each, nobody is fused
 * twice, splits are within their limits, and with all fusions and order edges done nothing depends on
 * itself (a fused operator on the way is named).
 * @return WEFT_ERR_INVALID_ARGUMENT naming edit and operator
 */
WEFT_API weft_status_t weft_edits_check(const weft_graph_view_t *view, const weft_edit_list_t *edits);
WEFT_EXTERN_C_END

#endif
