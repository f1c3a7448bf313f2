/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

weft_status_t wefti_graph_infer_shapes(wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->output_count; k++) {
            if (node->outputs[k] != WEFTI_NONE) {
                weft_tensor_desc_t *type = &graph->values[node->outputs[k]].type;
                weft_layout_t layout = type->layout; /* chosen by a pass, not by a rule */
                memset(type, 0, sizeof(*type));
                type->layout = layout;
            }
        }
        WEFT_RETURN_IF_ERROR(wefti_graph_infer_node(graph, graph->order[i]));
    }
    return WEFT_OK;
}
