/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/passes/gradient_sums.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

bool wefti_reduces_gradients(const wefti_graph_t *graph, const wefti_node_t *node)
{
    bool reduces = wefti_op_facts(node->def).collective == WEFT_COLLECTIVE_ALL_REDUCE &&
                   node->input_count == node->output_count && node->input_count > 0;
    for (uint32_t i = 0; reduces && i < node->output_count; i++) {
        reduces = node->outputs[i] != WEFTI_NONE && node->inputs[i] != WEFTI_NONE &&
                  graph->values[node->outputs[i]].grad_of != WEFTI_NONE &&
                  graph->values[node->inputs[i]].producer != WEFTI_NONE;
    }
    return reduces;
}

weft_status_t wefti_find_reductions(const wefti_graph_t *graph, wefti_arena_t *arena,
                                    uint32_t **out_nodes, uint32_t *out_count)
{
    uint32_t count = 0, *nodes = wefti_arena_array(arena, graph->order_count, sizeof(*nodes));
    WEFT_RETURN_IF_NO_MEMORY(nodes);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (wefti_reduces_gradients(graph, &graph->nodes[graph->order[i]])) {
            nodes[count++] = graph->order[i];
        }
    }
    *out_nodes = nodes;
    *out_count = count;
    return WEFT_OK;
}

/* Only f32 is summed and rounded. */
static weft_status_t check_types(const wefti_graph_t *graph, const uint32_t *gradients,
                                 uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const wefti_value_t *value = &graph->values[gradients[i]];
        if (value->type.dtype != WEFT_DTYPE_F32) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "gradient '%s': type must be f32 with accumulate, global_micro_batches or wire: %s",
                value->name, weft_dtype_name(value->type.dtype));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_add_fold(wefti_graph_t *graph, wefti_arena_t *arena,
                             const wefti_fold_params_t *params, uint32_t *out_node)
{
    const wefti_node_t *collective = &graph->nodes[params->collective];
    const weft_attr_t *parts = wefti_node_attr(collective, "parts");
    uint32_t count = collective->input_count, attr_count = 0;
    uint32_t *inputs =
        wefti_arena_array(arena, (size_t)params->group_count * count, sizeof(*inputs));
    char *name = wefti_arena_printf(arena, "%s, %s", collective->name, params->what);
    weft_attr_t attrs[2];
    WEFT_RETURN_IF_NO_MEMORY(inputs && name);
    WEFT_RETURN_IF_ERROR(check_types(graph, params->groups[0], count));
    for (uint32_t g = 0; g < params->group_count; g++) {
        memcpy(inputs + (size_t)g * count, params->groups[g], count * sizeof(*inputs));
    }
    if (params->bf16) {
        attrs[attr_count++] =
            (weft_attr_t){.name = "type", .type = WEFT_ATTR_TYPE_STRING, .s = "bf16"};
    }
    if (parts != NULL) { /* in the pieces that the collective sends */
        attrs[attr_count++] = *parts;
    }
    const wefti_node_params_t fold = {.domain = "weft",
                                      .op = "TreeFold",
                                      .name = name,
                                      .phase = WEFTI_PHASE_COMM,
                                      .inputs = inputs,
                                      .input_count = params->group_count * count,
                                      .output_names = params->output_names,
                                      .output_count = count,
                                      .attrs = attrs,
                                      .attr_count = attr_count};
    return wefti_graph_insert_node(graph, &fold, WEFTI_WHEN_READY, out_node);
}
