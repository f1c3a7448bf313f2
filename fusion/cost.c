/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Default costs, for when nothing was measured. Predictions order and close buckets and are
 * printed; they are never part of the structure digest.
 */
#include "fusion/fusion.h"

#include "runtime/base/error.h"

/* One core of a present-day server. */
#define FLOPS_PER_NS 100.0 /* 100 GFLOP/s */
#define BYTES_PER_NS 10.0  /* 10 GB/s */

weft_status_t wefti_predict_ready(const wefti_graph_t *graph, wefti_arena_t *arena,
                                  uint64_t **out_ready_ns)
{
    weft_status_t status = WEFT_OK;
    double now_ns = 0;
    uint64_t *ready = wefti_arena_array(arena, graph->node_count, sizeof(*ready));
    if (ready == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        double flops = 0, bytes = 0, cost_ns;
        if (node->def->cost != NULL && (node->def->effects & WEFT_EFFECT_COMMUNICATES) == 0) {
            weft_node_desc_t desc;
            WEFT_TRY(status, wefti_graph_node_desc(graph, graph->order[i], arena, &desc), fail);
            node->def->cost(&desc, &flops, &bytes);
        }
        cost_ns = flops / FLOPS_PER_NS > bytes / BYTES_PER_NS ? flops / FLOPS_PER_NS
                                                              : bytes / BYTES_PER_NS;
        now_ns += cost_ns > 0 ? cost_ns : 0;
        ready[graph->order[i]] = now_ns < 1e18 ? (uint64_t)now_ns : (uint64_t)1000000000000000000;
    }
    *out_ready_ns = ready;
fail:
    return status;
}
