/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph_view.h
 * The input and output of compiler passes: a flat view of a graph and a list of edits.
 *
 * A pass reads a view of a graph (Weft's own IR or a host compiler's) and returns an edit list. The
 * owner of the graph applies it; no pass changes a graph by callback. Ids are indices into the
 * arrays. Operators are in a topological order, which is also the order of execution.
 *
 * All functions of this header are local. One thread at a time uses a list.
 */
#ifndef WEFT_GRAPH_VIEW_H
#define WEFT_GRAPH_VIEW_H

#include <weft/registry.h>

/** A tensor with its producer and its users. */
typedef struct weft_view_value {
    const char *name;   /**< name, for messages */
    weft_dtype_t dtype; /**< type of the elements */
    uint64_t bytes;     /**< payload, without padding; 0: unknown */
    uint32_t producer;  /**< op id; UINT32_MAX: an input, parameter or constant */
    /** Parameter (value id) of which this is the complete local gradient; else UINT32_MAX. */
    uint32_t grad_of;
    uint32_t first_user; /**< index into weft_graph_view_t.users */
    uint32_t user_count; /**< number of users */
} weft_view_value_t;

/** An operator. */
typedef struct weft_view_op {
    const char *name;           /**< name, for messages */
    const weft_op_def_t *def;   /**< definition; of collectives: weft_registry_find_op */
    weft_effects_t effects;     /**< side effects */
    uint32_t group;             /**< collectives: group id; 0: the world */
    uint32_t first_input;       /**< index into weft_graph_view_t.op_inputs */
    uint32_t input_count;       /**< number of inputs */
    uint32_t first_output;      /**< index into weft_graph_view_t.op_outputs */
    uint32_t output_count;      /**< number of outputs */
    weft_reduction_t reduction; /**< reducing collectives: operation */
    uint32_t present;           /**< 0: a removed operator, to be skipped */
} weft_view_op_t;

/** A graph. All arrays are borrowed. */
typedef struct weft_graph_view {
    size_t struct_size;              /**< size of this struct */
    uint32_t value_count;            /**< length of values */
    const weft_view_value_t *values; /**< tensors */
    uint32_t op_count;               /**< length of ops; ids of removed operators stay unused */
    const weft_view_op_t *ops;       /**< operators */
    uint32_t order_count;            /**< length of order */
    const uint32_t *order;           /**< op ids in order of execution */
    const uint32_t *op_inputs;       /**< value ids of inputs; UINT32_MAX: absent */
    const uint32_t *op_outputs;      /**< value ids of outputs */
    const uint32_t *users;           /**< op ids of users */
    uint32_t edge_count;             /**< number of pairs in edges */
    /** Pairs of op ids: the first runs before the second, in addition to data dependencies. */
    const uint32_t *edges;
} weft_graph_view_t;

/** Initial value of weft_graph_view_t. */
#define WEFT_GRAPH_VIEW_INIT WEFT_STRUCT_INIT(weft_graph_view_t, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

/** Kind of an edit. */
typedef enum weft_edit_kind {
    /** Inserts collective op_name after value. The value's users (except the collective) read the
     * new value, which takes over grad_of. */
    WEFT_EDIT_KIND_INSERT_COLLECTIVE = 1,
    /** Fuses the collectives members (op ids, in this order) into one variadic operator. Of
     * ReduceScatter and AllGather each tensor keeps its blocks: to send all as one message, lay
     * rank r's blocks of all members side by side (weft::Pack). */
    WEFT_EDIT_KIND_FUSE = 2,
    /** Operator op_a must run before op_b, though no value connects them. */
    WEFT_EDIT_KIND_ORDER = 3,
    /** Collective op_a, or the fusion that contains it: candidate algorithms in order of
     * preference, separated by commas. */
    WEFT_EDIT_KIND_ALGORITHM = 4,
    /** Collective op_a of one tensor, or the fusion that contains it, runs in parts pieces. The
     * tensor's U = ceil(bytes / 64) units of 64 bytes are cut at U * i / parts, rounded down, so
     * pieces differ by at most one unit. Each piece is a collective over its range, in this order.
     * Of a ReduceScatter or AllGather the units of one rank's block are cut: a piece has that range
     * of every block. */
    WEFT_EDIT_KIND_SPLIT = 5,
    /** Collective op_a, or the fusion that contains it, may start after op_b (UINT32_MAX: at once),
     * the last producer of its inputs, and is waited for before members[0], the first operator that
     * reads a result (none: before the end). Places the halves of a start and wait pair; adds no
     * order beyond that of values. */
    WEFT_EDIT_KIND_START_WAIT = 6,
    /** Operator op_b repeats op_a: same definition, inputs and attributes, and no effect except
     * communication. The users of its results read those of op_a; op_b is removed. */
    WEFT_EDIT_KIND_MERGE = 7,
} weft_edit_kind_t;

/** One edit. Comments name the kinds that use a field. */
typedef struct weft_edit {
    weft_edit_kind_t kind;      /**< kind of the edit */
    uint32_t value;             /**< INSERT_COLLECTIVE: value id */
    const char *op_name;        /**< INSERT_COLLECTIVE: such as "AllReduce", of domain weft */
    weft_reduction_t reduction; /**< INSERT_COLLECTIVE: operation */
    uint32_t group;             /**< INSERT_COLLECTIVE: group id */
    const uint32_t *members;    /**< FUSE: op ids; START_WAIT: at most one */
    uint32_t member_count;      /**< length of members */
    uint32_t op_a;              /**< ORDER, START_WAIT, ALGORITHM, SPLIT, MERGE: op id */
    uint32_t op_b;              /**< ORDER, START_WAIT, MERGE: op id */
    /** ALGORITHM: names; FUSE: the reason, one line; SPLIT: the reason, such as "alone has 1.5 MiB,
     * above the cap of 512 KiB". */
    const char *text;
    uint32_t parts; /**< SPLIT: at least 2, at most one per 64 bytes */
} weft_edit_t;

/** A list of edits, applied in order. Owns everything that its edits point to. */
typedef struct weft_edit_list weft_edit_list_t;

WEFT_EXTERN_C_BEGIN
/**
 * Creates an empty list.
 * @param[in]  allocator must stay valid as long as the list; NULL: malloc
 * @param[out] out_list  the list; the caller destroys it
 * @return WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_edit_list_create(const weft_allocator_t *allocator,
                                             weft_edit_list_t **out_list);
/**
 * Destroys a list and everything that its edits point to.
 * @param[in] list NULL: nothing happens
 */
WEFT_API void weft_edit_list_destroy(weft_edit_list_t *list);
/**
 * Appends a deep copy of an edit.
 * @param[in] list the list
 * @param[in] edit the edit
 * @return WEFT_ERR_INVALID_ARGUMENT for an unknown kind, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_edit_list_add(weft_edit_list_t *list, const weft_edit_t *edit);
/**
 * Returns the length of a list.
 * @param[in] list the list
 * @return number of edits; 0 if list is NULL
 */
WEFT_API size_t weft_edit_list_count(const weft_edit_list_t *list);
/**
 * Returns an edit of a list.
 * @param[in] list  the list
 * @param[in] index 0 to weft_edit_list_count - 1
 * @return the edit, borrowed until the list changes; NULL if there is no such edit or list is NULL
 */
WEFT_API const weft_edit_t *weft_edit_list_get(const weft_edit_list_t *list, size_t index);
WEFT_EXTERN_C_END

#endif
