/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When collectives are issued and waited for. One communication stream runs them in the same order
 * on all ranks, each one as soon as the operators that it needs have run. Several that are ready
 * keep the order of the view. Pass programs orders a step by this; weft_pass_order and
 * weft_pass_start_wait report it to a host compiler.
 */
#ifndef WEFT_FUSION_ISSUE_H
#define WEFT_FUSION_ISSUE_H

#include <stdbool.h>

#include <weft/graph_view.h>

#include "runtime/base/memory.h"

typedef struct wefti_issue {
    uint32_t *ops; /* [count] op ids, in the order of issue */
    uint32_t count;
    /* By op: the number of positions of the view's order before its issue. They end with the last
     * compute operator that it needs, also through other collectives. */
    uint32_t *after;
    /* By op: positions of the last op that it needs and of the first op that needs it; UINT32_MAX:
     * none. Edges between two collectives do not count: they order the begin. */
    uint32_t *start, *wait;
} wefti_issue_t;

/* All ranks issue the op in one order. */
bool wefti_is_issued(const weft_view_op_t *op);
weft_status_t wefti_find_issue(const weft_graph_view_t *view, wefti_arena_t *arena,
                               wefti_issue_t *out_issue);

#endif
