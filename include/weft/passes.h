/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file passes.h
 * Weft's compiler passes for another compiler's graph.
 *
 * A host compiler describes its graph as a weft_graph_view_t, calls a pass, applies the edits to
 * its IR and describes the graph again for the next pass. weft_compile does the same with its own
 * IR:
 *
 *     weft_pass_insert_collectives   an AllReduce (average) after every complete local gradient
 *     weft_pass_bucket               buckets of collectives, from ready times and costs
 *     weft_pass_algorithms           algorithms of each collective, the fastest first
 *     weft_pass_order                order of collectives that all ranks keep
 *     weft_pass_start_wait           where each collective may start and must be waited for
 *     weft_pass_schedule             the order of execution that ends earliest within bounds on
 *                                    memory and on collectives in flight
 *
 * A pass is a pure function of its arguments and decides by content, never by pointer, hash or
 * time: ranks that describe the same graph get the same edits. No pass changes or keeps the view.
 * All functions of this header are local; any thread may call them. weft_edits_check tests whether
 * edits, of these passes or others, may be applied to a view.
 *
 * Views are checked before use: ids out of range, operators out of order and cycles are
 * WEFT_ERR_INVALID_ARGUMENT naming the operator. The lengths of op_inputs, op_outputs and ready_ns
 * cannot be checked. A pass with costs_path also returns WEFT_ERR_NOT_FOUND or WEFT_ERR_FORMAT for
 * that file.
 *
 * Definitions of collectives come from a registry (weft_registry_find_op(registry, "weft",
 * "AllReduce", 1)), definitions of the host's operators from the host. Their domain and name must
 * be set; passes read ordering, in_place and facts.
 */
#ifndef WEFT_PASSES_H
#define WEFT_PASSES_H

#include <weft/graph_view.h>

/** Cost of a collective by one algorithm: alpha + beta * bytes. */
typedef struct weft_bucket_piece {
    uint64_t alpha_ps;        /**< latency, picoseconds */
    uint64_t beta_ps_per_kib; /**< picoseconds per KiB */
} weft_bucket_piece_t;

/** A measured point. Costs are linear between points, constant before the first, and follow the
 * last slope after the last. */
typedef struct weft_bucket_point {
    uint64_t bytes; /**< size */
    uint64_t ps;    /**< time, picoseconds */
} weft_bucket_point_t;

/** Time of a collective by its size: the points if there are any, else the least of the pieces. */
typedef struct weft_bucket_cost {
    const weft_bucket_piece_t *pieces; /**< [piece_count] one per algorithm */
    uint32_t piece_count;              /**< length of pieces */
    const weft_bucket_point_t *points; /**< [point_count] bytes rise */
    uint32_t point_count;              /**< length of points */
} weft_bucket_cost_t;

/** Parameters of weft_pass_bucket. Zero means the default. */
typedef struct weft_bucket_params {
    size_t struct_size;             /**< size of this struct */
    const char *policy;             /**< see weft_bucket_policy_check; NULL: "auto" */
    const uint64_t *ready_ns;       /**< [op_count] time at which each op has run; NULL: all at 0 */
    uint32_t world_size;            /**< ranks of a group; at least 1 unless cost is set */
    const weft_bucket_cost_t *cost; /**< NULL: from costs_path */
    const char *costs_path;         /**< measured costs (`weft tune`); NULL: default costs */
    const weft_allocator_t *allocator; /**< NULL: malloc */
    /** Time of a reduce-scatter by the bytes of a rank's input. NULL: half of cost, or from
     * costs_path if cost is NULL. */
    const weft_bucket_cost_t *reduce_scatter_cost;
    /** Time of an all-gather by the bytes of a rank's result. NULL: as reduce_scatter_cost. */
    const weft_bucket_cost_t *all_gather_cost;
} weft_bucket_params_t;

/** Defaults of weft_bucket_params_t. */
#define WEFT_BUCKET_PARAMS_INIT WEFT_STRUCT_INIT(weft_bucket_params_t, 0, 0, 0, 0, 0, 0, 0, 0)

/** Predicted times of the buckets, on one channel, in picoseconds from the start of the step. */
typedef struct weft_bucket_forecast {
    size_t struct_size;      /**< size of this struct */
    uint32_t bucket_count;   /**< buckets; each piece of a split gradient is one */
    uint32_t optimum_count;  /**< fewest buckets that reach the optimum */
    uint64_t ready_ps;       /**< the last gradient is ready */
    uint64_t chosen_ps;      /**< the chosen buckets are done */
    uint64_t optimum_ps;     /**< the best buckets are done */
    uint64_t lower_bound_ps; /**< no schedule is done earlier */
    uint64_t comm_ps;        /**< sum of the chosen buckets' times */
} weft_bucket_forecast_t;

/** Initial value of weft_bucket_forecast_t. */
#define WEFT_BUCKET_FORECAST_INIT WEFT_STRUCT_INIT(weft_bucket_forecast_t, 0, 0, 0, 0, 0, 0, 0)

/** Parameters of weft_pass_algorithms. Zero means the default. */
typedef struct weft_algorithms_params {
    size_t struct_size;                /**< size of this struct */
    const uint32_t *group_sizes;       /**< [group_count] ranks of each group id of the view */
    uint32_t group_count;              /**< at least 1; id 0 is the world */
    weft_order_t order;                /**< order of reductions; WEFT_ORDER_BLOCKS: unsupported */
    const char *costs_path;            /**< measured costs (`weft tune`); NULL: default costs */
    const weft_registry_t *registry;   /**< further algorithms; NULL: built-in ones only */
    const weft_allocator_t *allocator; /**< NULL: malloc */
} weft_algorithms_params_t;

/** Defaults of weft_algorithms_params_t. */
#define WEFT_ALGORITHMS_PARAMS_INIT                                                                \
    WEFT_STRUCT_INIT(weft_algorithms_params_t, 0, 0, WEFT_ORDER_TREE, 0, 0, 0)

/** Parameters of weft_pass_schedule. Zero means the default. */
typedef struct weft_schedule_params {
    size_t struct_size;    /**< size of this struct */
    const uint64_t *op_ns; /**< [op_count] time of each op, collectives included; required */
    /** [value_count] not 0: has memory of its own, which is not counted (that of values without a
     * producer never is). NULL: none. */
    const uint8_t *kept;
    /** [value_count] not 0: readable after the step, so its memory is not reused. NULL: none. */
    const uint8_t *to_end;
    uint32_t in_flight;       /**< most collectives issued and not waited for; 0: no bound */
    uint64_t most_live_bytes; /**< bytes of values alive at one time; 0: as in the view's order */
    const weft_allocator_t *allocator; /**< NULL: malloc */
} weft_schedule_params_t;

/** Defaults of weft_schedule_params_t; op_ns must be set. */
#define WEFT_SCHEDULE_PARAMS_INIT WEFT_STRUCT_INIT(weft_schedule_params_t, 0, 0, 0, 0, 0, 0)

/** Predicted cost of an order: one stream of compute, one channel of communication. */
typedef struct weft_schedule_cost {
    uint64_t finish_ps;  /**< end of the step, picoseconds from its start */
    uint64_t exposed_ps; /**< time in which compute waits for communication, picoseconds */
    uint64_t peak_bytes; /**< most bytes of values alive at one time, without padding */
    uint32_t in_flight;  /**< most collectives issued and not waited for */
} weft_schedule_cost_t;

/** Result of weft_pass_schedule. */
typedef struct weft_schedule_report {
    size_t struct_size;          /**< size of this struct */
    weft_schedule_cost_t given;  /**< the view's order */
    weft_schedule_cost_t chosen; /**< the order of the edits */
    int changed;                 /**< 1: there are edits */
} weft_schedule_report_t;

/** Initial value of weft_schedule_report_t. */
#define WEFT_SCHEDULE_REPORT_INIT                                                                  \
    WEFT_STRUCT_INIT(weft_schedule_report_t, {0, 0, 0, 0}, {0, 0, 0, 0}, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Predicts the time of one execution of an operator from its cost rule, at 100 GFLOP/s and 10 GB/s.
 * For ready times without measurements.
 * @param[in] def  definition of the operator
 * @param[in] node with known shapes, or the result is 0
 * @return nanoseconds; 0 for collectives, operators without a cost rule and NULL arguments
 */
WEFT_API uint64_t weft_op_predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node);
/**
 * Computes ready times on a single compute stream: operators run one after the other in the view's
 * order.
 * @param[in]  view     the graph
 * @param[in]  op_ns    [op_count] time of each op, predicted or measured; NULL: 0 each
 * @param[out] ready_ns [op_count] time at which each op has run
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of the view
 */
WEFT_API weft_status_t weft_pass_ready_times(const weft_graph_view_t *view, const uint64_t *op_ns,
                                             uint64_t *ready_ns);
/**
 * Inserts an AllReduce (average, group 0) after every value with grad_of that no collective
 * produced. Returns INSERT_COLLECTIVE edits.
 * @param[in]  view      the graph
 * @param[in]  allocator NULL: malloc
 * @param[out] out_edits the caller destroys them
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of the view
 */
WEFT_API weft_status_t weft_pass_insert_collectives(const weft_graph_view_t *view,
                                                    const weft_allocator_t *allocator,
                                                    weft_edit_list_t **out_edits);
/**
 * Fuses collectives of one tensor into buckets: AllReduces of gradients (their results have
 * grad_of), ReduceScatters and AllGathers. Returns FUSE edits with the reason, and SPLIT edits for
 * tensors above the policy's cap. Every AllReduce is in exactly one bucket; ReduceScatters and
 * AllGathers that stay alone have no FUSE edit. Members of a bucket share group, kind, reduction
 * and type; none depends on another, not even through other buckets; no operator of unknown effect
 * lies between them.
 *
 * AllReduces and ReduceScatters are planned by the time at which their inputs are ready, AllGathers
 * by the time at which their first reader runs: the mirror image. All inputs of a bucket of
 * ReduceScatters or AllGathers are ready before the first reader of any member. Policies index and
 * percent are about AllReduces, or about ReduceScatters where there are none, else about
 * AllGathers; other kinds stay unfused. The forecast is about the same kind; there is none of
 * AllGathers.
 * @param[in]  view         the graph
 * @param[in]  params       policy, ready times and costs
 * @param[out] out_edits    the caller destroys them
 * @param[out] out_forecast set struct_size before the call; NULL: not needed
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of the policy or the view
 */
WEFT_API weft_status_t weft_pass_bucket(const weft_graph_view_t *view,
                                        const weft_bucket_params_t *params,
                                        weft_edit_list_t **out_edits,
                                        weft_bucket_forecast_t *out_forecast);
/**
 * Chooses algorithms as a plan does. Returns an ALGORITHM edit for every collective of domain weft:
 * its eligible algorithms, the fastest for its size first (`weft algos` shows the times). A
 * collective of unknown size (0 bytes) gets the algorithms of a small one, a group of more than 64
 * ranks those of few steps.
 * @param[in]  view      the graph
 * @param[in]  params    groups, order and costs
 * @param[out] out_edits the caller destroys them
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of params or the view
 */
WEFT_API weft_status_t weft_pass_algorithms(const weft_graph_view_t *view,
                                            const weft_algorithms_params_t *params,
                                            weft_edit_list_t **out_edits);
/**
 * Orders collectives as a plan does: each is issued once the operators that it needs have run;
 * those that become ready together keep the view's order. Returns ORDER edges from each operator of
 * WEFT_ORDERING_GROUP (or with WEFT_EFFECT_COMMUNICATES, if its definition states no ordering) to
 * the next one in that order, unless values or edges already connect them. A program that issues
 * collectives in this order issues them in one order on all ranks, whatever the groups. An edge may
 * reverse two collectives of the view: sort the graph before it is described again.
 * @param[in]  view      the graph
 * @param[in]  allocator NULL: malloc
 * @param[out] out_edits the caller destroys them
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of the view
 */
WEFT_API weft_status_t weft_pass_order(const weft_graph_view_t *view,
                                       const weft_allocator_t *allocator,
                                       weft_edit_list_t **out_edits);
/**
 * Places start and wait. Returns a START_WAIT edit for every collective: as early and as late as
 * values and edges allow in the view's order.
 * @param[in]  view      the graph
 * @param[in]  allocator NULL: malloc
 * @param[out] out_edits the caller destroys them
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of the view
 */
WEFT_API weft_status_t weft_pass_start_wait(const weft_graph_view_t *view,
                                            const weft_allocator_t *allocator,
                                            weft_edit_list_t **out_edits);
/**
 * Orders operators by list scheduling (R. L. Graham, "Bounds on multiprocessing timing anomalies",
 * 1969): of the operators that could run next it runs the one with the longest path to the end that
 * keeps the bound on memory.
 *
 * ORDER edits between operators fix the order of compute. An ORDER edit between two collectives
 * states that compute waits for the first before it issues the second. The view's order stays if
 * the new one is at most 0.1 % faster and the old one keeps the bounds. A result reuses the memory
 * of an input that dies, if the operator's in-place rule allows it. Memory that a collective
 * accesses lives until compute has waited for that collective or a later one. Operators that update
 * in place stay last. The bound on collectives in flight always holds; the report states whether
 * the bound on memory does.
 * @param[in]  view       the graph
 * @param[in]  params     times and bounds
 * @param[out] out_edits  the caller destroys them
 * @param[out] out_report set struct_size before the call; NULL: not needed
 * @return WEFT_ERR_INVALID_ARGUMENT naming the fault of params or the view
 */
WEFT_API weft_status_t weft_pass_schedule(const weft_graph_view_t *view,
                                          const weft_schedule_params_t *params,
                                          weft_edit_list_t **out_edits,
                                          weft_schedule_report_t *out_report);
/**
 * Proves that edits may be applied to a view: ids exist; inserted collectives have a value to
 * follow; members of a fusion are collectives of one group, kind, reduction and type, of one tensor
 * each; no operator is fused twice; splits are within their limits; and with all fusions and order
 * edges applied no operator depends on itself (a fused operator on the cycle is named).
 * @param[in] view  the graph
 * @param[in] edits the edits
 * @return WEFT_ERR_INVALID_ARGUMENT naming edit and operator
 */
WEFT_API weft_status_t weft_edits_check(const weft_graph_view_t *view,
                                        const weft_edit_list_t *edits);
WEFT_EXTERN_C_END

#endif
