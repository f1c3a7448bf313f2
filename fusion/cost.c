/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Default costs, for when nothing was measured. Predictions order and close buckets and are
 * printed; they are never part of the structure digest.
 */
#include "fusion/fusion.h"

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* One core of a present-day server. */
#define FLOPS_PER_NS 100.0 /* 100 GFLOP/s */
#define BYTES_PER_NS 10.0  /* 10 GB/s */

double wefti_op_predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node)
{
    double flops = 0, bytes = 0;
    if ((def->effects & WEFT_EFFECT_COMMUNICATES) == 0) {
        wefti_op_cost(def, node, &flops, &bytes);
    }
    double compute = flops / FLOPS_PER_NS, move = bytes / BYTES_PER_NS;
    return compute > move ? compute : move;
}

/* Predicted from the operator's flops and bytes. */
static weft_status_t predict_op(const wefti_graph_t *graph, uint32_t id, wefti_arena_t *arena,
                                double *out_ns)
{
    weft_node_desc_t desc;
    weft_status_t status = wefti_graph_node_desc(graph, id, arena, &desc);
    if (status >= 0) {
        *out_ns = wefti_op_predict_ns(graph->nodes[id].def, &desc);
    }
    return status;
}

weft_status_t wefti_predict_ready(const wefti_graph_t *graph, const wefti_profile_t *profile,
                                  wefti_arena_t *arena, uint64_t **out_ready_ns)
{
    weft_status_t status = WEFT_OK;
    double now_ns = 0;
    uint64_t *ready = wefti_arena_array(arena, graph->node_count, sizeof(*ready));
    if (ready == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        double cost_ns = 0;
        if (!wefti_profile_kernel_ns(profile, graph->nodes[id].name, &cost_ns)) {
            WEFT_TRY(status, predict_op(graph, id, arena, &cost_ns), fail);
        }
        now_ns += cost_ns > 0 ? cost_ns : 0;
        ready[id] = now_ns < 1e18 ? (uint64_t)now_ns : (uint64_t)1000000000000000000;
    }
    *out_ready_ns = ready;
fail:
    return status;
}
