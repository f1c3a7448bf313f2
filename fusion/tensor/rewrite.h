/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that write the graph of a rank share: rewrite.c, gathers.c, local_shapes.c. */
#ifndef WEFT_FUSION_TENSOR_REWRITE_H
#define WEFT_FUSION_TENSOR_REWRITE_H

#include "fusion/tensor/tensor.h"

/* A value that was made of another one: a part of an initializer, or the whole of a split value. */
typedef struct made {
    uint32_t of, value;
    wefti_split_t split;
} made_t;

typedef struct rewriter {
    wefti_splitter_t *s;
    wefti_graph_t *graph;
    made_t *made;
    uint32_t made_count, made_capacity;
    uint32_t node_count; /* of the graph that was divided */
    uint32_t first_new;  /* value: not one of the graph that was divided, and whole */
    uint32_t last;       /* node of the graph: what outputs alone need comes after it, or NONE */
    uint32_t **joined;   /* by node, of joins: the inputs before their parts took their places */
} rewriter_t;

/* gathers.c: a value that was made of another one is made once. find_made: WEFTI_NONE: not yet. */
weft_status_t wefti_split_remember(rewriter_t *r, uint32_t of, const wefti_split_t *split,
                                   uint32_t value);
uint32_t wefti_split_find_made(const rewriter_t *r, uint32_t of, const wefti_split_t *split);
/* gathers.c: the whole of a split value. */
weft_status_t wefti_split_gather(rewriter_t *r, uint32_t value, uint32_t *out_value);
/* local_shapes.c: shapes and sizes that a node reads are those of a rank. */
weft_status_t wefti_split_make_local(rewriter_t *r, uint32_t id);

#endif
