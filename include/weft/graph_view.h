/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph_view.h What compiler passes read and what they answer.
 *
 * A pass reads a flat view of somebody's graph (Weft's own IR or a host compiler's) and returns an edit list;
 * the owner of the graph applies it. No pass changes a graph by callback. Ids are indices into the arrays;
 * ops are listed in a topological order, which is also the order of execution.
 */
#ifndef WEFT_GRAPH_VIEW_H
#define WEFT_GRAPH_VIEW_H

#include <weft/registry.h>

/** A tensor: who makes it and who reads it. */
typedef struct weft_view_value {
    const char *name;
    weft_dtype_t dtype;
    uint64_t bytes;      /**< payload, unpadded */
    uint32_t producer;   /**< op id, or UINT32_MAX for inputs, parameters and constants */
    uint32_t grad_of;    /**< value id of the parameter it is the complete local gradient of, or UINT32_MAX */
    uint32_t first_user; /**< index into users[] */
    uint32_t user_count;
} weft_view_value_t;

/** An operator. */
typedef struct weft_view_op {
    const char *name;
    const weft_op_def_t *def;
    weft_effects_t effects;
    uint32_t group;        /**< collectives: group id, 0 is the world */
    uint32_t first_input;  /**< index into op_inputs[], value ids, UINT32_MAX where absent */
    uint32_t input_count;
    uint32_t first_output; /**< index into op_outputs[] */
    uint32_t output_count;
    weft_reduction_t reduction; /**< reducing collectives */
    uint32_t present;           /**< 0: a removed op, skip it */
} weft_view_op_t;

typedef struct weft_graph_view {
    size_t struct_size;
    uint32_t value_count;
    const weft_view_value_t *values;
    uint32_t op_count; /**< length of ops; ids of removed ops stay unused */
    const weft_view_op_t *ops;
    uint32_t order_count;
    const uint32_t *order;      /**< op ids in order of execution */
    const uint32_t *op_inputs;  /**< value ids */
    const uint32_t *op_outputs; /**< value ids */
    const uint32_t *users;      /**< op ids */
    uint32_t edge_count;
    const uint32_t *edges; /**< pairs of op ids: the first runs before the second though no value says so */
} weft_graph_view_t;

#define WEFT_GRAPH_VIEW_INIT {sizeof(weft_graph_view_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef enum weft_edit_kind {
    /** Insert collective op_name after value; its users (not the collective) read the new value, which
     * takes over grad_of. */
    WEFT_EDIT_INSERT_COLLECTIVE = 1,
    /** Fuse the collectives members[] (op ids, in this order) into one variadic op. */
    WEFT_EDIT_FUSE = 2,
    /** Op a must run before op b though no value connects them. */
    WEFT_EDIT_ORDER = 3,
    /** Collective op (or the fusion that holds it): candidates in order of preference, comma-separated. */
    WEFT_EDIT_ALGORITHM = 4,
    /** Collective op_a (or the fusion that holds it), of one tensor, is carried out in parts pieces: the
     * tensor's U = ceil(bytes / 64) units of 64 bytes are cut at U * i / parts, rounded down, so pieces
     * differ by at most one unit and each is a collective of its own over its range, in this order. */
    WEFT_EDIT_SPLIT = 5,
    /** Collective op_a (or the fusion that holds it) may start behind op_b (UINT32_MAX: at once), the last of those
     * that make its inputs, and is waited for before members[0], the first op that reads a result (none: before
     * the end). Says where the halves of a start and wait pair go; no order beyond that of values. */
    WEFT_EDIT_START_WAIT = 6,
} weft_edit_kind_t;

typedef struct weft_edit {
    weft_edit_kind_t kind;
    uint32_t value;       /**< INSERT_COLLECTIVE */
    const char *op_name;  /**< INSERT_COLLECTIVE: "AllReduce" of domain weft */
    weft_reduction_t reduction; /**< INSERT_COLLECTIVE */
    uint32_t group;       /**< INSERT_COLLECTIVE */
    const uint32_t *members; /**< FUSE: op ids; START_WAIT: at most one */
    uint32_t member_count;
    uint32_t op_a, op_b;  /**< ORDER, START_WAIT; ALGORITHM and SPLIT use op_a */
    const char *text;     /**< ALGORITHM: names; FUSE: the reason, one line; SPLIT: what the tensor does
                           * that it is split, as in "alone has 1.5 MiB, above the cap of 512 KiB" */
    uint32_t parts;       /**< SPLIT: at least 2, at most one per 64 bytes */
} weft_edit_t;

/** Edits are applied in order. The list owns everything its edits point to. */
typedef struct weft_edit_list weft_edit_list_t;

WEFT_EXTERN_C_BEGIN
/** @param[in] allocator NULL: malloc */
WEFT_API weft_status_t weft_edit_list_create(const weft_allocator_t *allocator, weft_edit_list_t **out_list);
WEFT_API void weft_edit_list_destroy(weft_edit_list_t *list);
/** Appends a deep copy of edit. */
WEFT_API weft_status_t weft_edit_list_add(weft_edit_list_t *list, const weft_edit_t *edit);
WEFT_API size_t weft_edit_list_count(const weft_edit_list_t *list);
/** @return edit index, borrowed; NULL when out of range. */
WEFT_API const weft_edit_t *weft_edit_list_get(const weft_edit_list_t *list, size_t index);
WEFT_EXTERN_C_END

#endif
