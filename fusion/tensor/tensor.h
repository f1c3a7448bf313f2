/* SPDX-License-Identifier: Apache-2.0 */
/* How values and products of a graph are divided over ranks: see README.md. */
#ifndef WEFT_FUSION_TENSOR_H
#define WEFT_FUSION_TENSOR_H

#include "graph/ir.h"

/* Of each segment of an axis, rank r has part r of N equal parts. Queries, keys and values of one
 * product are three segments; most axes are one. */
typedef struct wefti_split {
    int32_t axis;         /* -1: every rank has the whole value */
    uint32_t origin;      /* the product whose columns were split */
    uint32_t count;       /* segments; their sizes add up to the axis */
    const int64_t *sizes; /* [count]; NULL: count is 1 */
} wefti_split_t;

/* What a node does with divided inputs. */
typedef struct wefti_node_split {
    wefti_split_t *need; /* [input_count] */
    wefti_split_t out;   /* of all outputs */
    bool sums;           /* the output of a rank is one term of the sum over ranks */
    const char *why;     /* the inputs must be whole: the reason; else NULL */
} wefti_node_split_t;

/* annotations.c: a node whose result is split, or whole, because an annotation asks for it. */
typedef struct wefti_mark {
    const wefti_sharding_t *sharding;
    uint32_t node;
    uint32_t reader; /* the annotated node, of an input; of an output WEFTI_NONE */
    int32_t axis;    /* -1: whole */
} wefti_mark_t;

/* What is known while splits are propagated. */
typedef struct wefti_splitter {
    wefti_graph_t *graph;
    wefti_arena_t *arena;
    int64_t ranks;
    uint32_t value_count;      /* of the graph that is divided; later values are whole */
    uint32_t group;            /* of the ranks, in the mesh */
    bool *fixed;               /* by value: computed from initializers alone */
    wefti_split_t *of_value;   /* by value */
    wefti_split_t *columns;    /* by node, of products: segments of the columns */
    bool *splits_columns;      /* by node */
    uint32_t *parent;          /* by node: union of products that are split together, or not */
    wefti_node_split_t *nodes; /* by node */
    bool changed;              /* columns: everything is propagated again */
    bool trains;               /* no all-gathers; whole inputs of parts are Shared (train.c) */
    const uint32_t *readers;   /* by value: their number */
    wefti_mark_t *marks;       /* of annotations, or NULL: products are split by their costs */
    uint32_t mark_count;
    const wefti_mark_t **mark_of; /* by node; this and the following: only with marks */
    bool *keeps_whole;            /* by node: it needs whole inputs */
    bool *one_segment;            /* by node: the split that begins there has one segment */
} wefti_splitter_t;

static inline bool wefti_is_split(const wefti_split_t *split)
{
    return split->axis >= 0;
}

/* rules.c: fills *node_split, whose need is allocated, from of_value of the inputs. */
void wefti_split_rule(wefti_splitter_t *splitter, uint32_t node, wefti_node_split_t *node_split);
/* The weight of a product that a rank may have in part: input index, or UINT32_MAX. */
uint32_t wefti_split_weight(const wefti_splitter_t *splitter, uint32_t node);
/* Can a rank have a part of a fixed value? */
bool wefti_split_can_slice(const wefti_splitter_t *splitter, uint32_t value, uint32_t axis);
/* Elements of a constant list of integers, at most WEFT_MAX_DIMS; false: it is not known. */
bool wefti_split_ints(const wefti_graph_t *graph, uint32_t value, int64_t *out,
                      uint32_t *out_count);
/* Slice: the constant range of axis, and its place in the lists; false: not known, or with steps. */
bool wefti_split_range(const wefti_graph_t *graph, const wefti_node_t *node, int64_t axis,
                       int64_t out_range[2], uint32_t *out_place);

/* A tensor that was joined of parts and of values that every rank has, along another axis than the
 * split one: to have all of it, parts are gathered before they are joined. */
bool wefti_split_joins_again(const wefti_splitter_t *splitter, uint32_t value);

/* train.c: operators that exist until the graph is differentiated; Terms becomes an AllReduce. */
const weft_op_def_t *wefti_tensor_shared(void);
const weft_op_def_t *wefti_tensor_terms(void);
weft_status_t wefti_tensor_add_sum(wefti_graph_t *graph, uint32_t group, uint32_t node);

/* annotations.c: marks for the shardings of the graph; tables by node; what they cannot be. */
weft_status_t wefti_split_mark(wefti_splitter_t *splitter);
weft_status_t wefti_split_index_marks(wefti_splitter_t *splitter);
weft_status_t wefti_split_check_marks(const wefti_splitter_t *splitter);
/* value is gathered: returns whether its parts had no order, and splits are propagated again. */
bool wefti_split_unorder(wefti_splitter_t *splitter, uint32_t value);

/* rewrite.c: the graph of one rank, with contents for all. */
weft_status_t wefti_split_rewrite(wefti_splitter_t *splitter);

#endif
