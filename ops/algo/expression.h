/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symbolic contents of a block: which rank's input it is, or which reduction tree over inputs.
 * Equal expressions have equal ids, so comparing results is comparing numbers.
 */
#ifndef WEFT_OPS_ALGO_EXPRESSION_H
#define WEFT_OPS_ALGO_EXPRESSION_H

#include <stdbool.h>

#include "runtime/base/memory.h"

#define WEFTI_EXPR_UNDEFINED 0u    /* never written */
#define WEFTI_EXPR_NONE UINT32_MAX /* no memory */

typedef enum wefti_expr_kind {
    WEFTI_EXPR_INPUT = 1,    /* a: run * ranks + rank, b: block */
    WEFTI_EXPR_SUM = 2,      /* a, then b: not rounded yet */
    WEFTI_EXPR_FINISHED = 3, /* a rounded, and divided for avg */
} wefti_expr_kind_t;

typedef struct wefti_expr {
    uint32_t kind, a, b;
    uint32_t mark; /* last search that came by */
} wefti_expr_t;

typedef struct wefti_exprs {
    const weft_allocator_t *allocator;
    wefti_expr_t *nodes; /* [0] is the undefined one */
    size_t count, capacity;
    uint32_t *table; /* open addressing, 0: free */
    size_t table_size;
    uint32_t search;
} wefti_exprs_t;

weft_status_t wefti_exprs_init(wefti_exprs_t *exprs, const weft_allocator_t *allocator);
void wefti_exprs_deinit(wefti_exprs_t *exprs);
uint32_t wefti_expr_make(wefti_exprs_t *exprs, wefti_expr_kind_t kind, uint32_t a, uint32_t b);
/* In-order tree over values[0..count), split at the largest power of two. */
uint32_t wefti_expr_tree(wefti_exprs_t *exprs, const uint32_t *values, uint32_t count);
/* Whether expr is a sum, in any order, of the inputs first, first + 1, ... (count) for block, each
 * once. */
bool wefti_expr_sums_all(wefti_exprs_t *exprs, uint32_t expr, uint32_t first, uint32_t count,
                         uint32_t block);
/* "((0 + 1) + 2)", inputs as ranks; cut to the buffer. Returns buffer. */
const char *wefti_expr_text(const wefti_exprs_t *exprs, uint32_t expr, uint32_t ranks, char *buffer,
                            size_t bytes);

#endif
