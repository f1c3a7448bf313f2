/* SPDX-License-Identifier: Apache-2.0 */
/* Which candidates of a fusion depend on which, kept up to date while they are fused. */
#ifndef WEFT_FUSION_DEPENDENCE_H
#define WEFT_FUSION_DEPENDENCE_H

#include <stdbool.h>

#include <weft/graph_view.h>

#include "graph/successors.h"
#include "runtime/base/memory.h"

/* reach is NULL when no candidate depends on another: the usual case costs one walk over the graph.
 */
typedef struct wefti_dependence {
    uint32_t count;
    size_t words; /* of one row */
    uint64_t
        *reach; /* row i: the candidates that depend on candidate i in the graph fused so far */
} wefti_dependence_t;

/* By op: the ops that order edges put before it. */
weft_status_t wefti_edges_before(const weft_graph_view_t *view, wefti_arena_t *arena,
                                 wefti_successors_t *out_before);
/* ops: the candidates' op ids. Memory comes from arena. */
weft_status_t wefti_dependence_init(const weft_graph_view_t *view, const uint32_t *ops,
                                    uint32_t count, wefti_arena_t *arena,
                                    wefti_dependence_t *out_dependence);
/* Would fusing candidates a and b (or the fusions that hold them) close a cycle? */
bool wefti_dependence_forbids(const wefti_dependence_t *dependence, uint32_t a, uint32_t b);
/* Records that a and b now run as one. */
void wefti_dependence_fuse(wefti_dependence_t *dependence, uint32_t a, uint32_t b);

#endif
