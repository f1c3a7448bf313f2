/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, and outputs that all ranks get. */
#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"
#include "runtime/base/error.h"

weft_status_t wefti_stages_send(wefti_graph_t *graph, uint32_t value, uint32_t from, uint32_t to,
                                const char *name, uint32_t *out_value)
{
    uint32_t node;
    const char *of = graph->values[value].name;
    const weft_attr_t attrs[] = {
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = WEFTI_GROUP_STAGE},
        {.name = "root", .type = WEFT_ATTR_TYPE_INT, .i = from},
        {.name = "to", .type = WEFT_ATTR_TYPE_INT, .i = to == WEFTI_NONE ? 0 : (int64_t)to + 1},
        {.name = "reason",
         .type = WEFT_ATTR_TYPE_STRING,
         .s = to == WEFTI_NONE ? "an output, for all ranks" : "another stage reads it"}};
    const char *output =
        name != NULL ? name : wefti_arena_printf(&graph->arena, "%s/at_%u", of, to);
    const wefti_node_params_t params = {
        .domain = "weft",
        .op = "Transfer",
        .name = wefti_arena_printf(&graph->arena, "send %s", name != NULL ? name : of),
        .phase = WEFTI_PHASE_COMM,
        .inputs = &value,
        .input_count = 1,
        .output_names = &output,
        .output_count = 1,
        .attrs = attrs,
        .attr_count = 4};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, WEFTI_WHEN_READY, &node));
    *out_value = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

weft_status_t wefti_stages_share_output(wefti_graph_t *graph, uint32_t index, uint32_t from)
{
    const wefti_value_flags_t marks = WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS;
    uint32_t value = graph->outputs[index], all;
    const char *name = graph->values[value].name;
    const wefti_node_t *node = &graph->nodes[graph->values[value].producer];
    const wefti_value_t *read = node->input_count == 1 && node->inputs[0] != WEFTI_NONE
                                    ? &graph->values[node->inputs[0]]
                                    : NULL;
    if (read != NULL && read->kind != WEFTI_VALUE_NODE &&
        (read->flags & WEFTI_VALUE_OUTPUT) != 0) { /* passed through: two tensors of one name */
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "output '%s' is an input or a weight, which every rank has", read->name);
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(
        graph, value, wefti_arena_printf(&graph->arena, "%s/at_%u", name, from)));
    WEFT_RETURN_IF_ERROR(wefti_stages_send(graph, value, from, WEFTI_NONE, name, &all));
    graph->values[all].flags |= graph->values[value].flags & marks;
    graph->values[value].flags &= ~marks;
    graph->outputs[index] = all;
    graph->loss = graph->loss == value ? all : graph->loss;
    graph->logits = graph->logits == value ? all : graph->logits;
    return WEFT_OK;
}

/*
 * stage-outputs: every rank gets the outputs.
 *
 * Matches outputs of a graph with stages. Produces a Transfer to all ranks of each.
 */
weft_status_t wefti_apply_stage_outputs(wefti_compiler_t *c)
{
    wefti_graph_t *graph = c->graph;
    uint32_t *places;
    const uint32_t results[] = {graph->loss, graph->logits};
    for (uint32_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i] != WEFTI_NONE && graph->values[results[i]].kind == WEFTI_VALUE_NODE) {
            WEFT_RETURN_IF_ERROR(wefti_graph_add_output(graph, results[i]));
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_places(graph, &c->arena, &places));
    for (uint32_t i = 0; i < graph->output_count && places != NULL; i++) {
        uint32_t producer = wefti_producer(graph, graph->outputs[i]);
        if (producer != WEFTI_NONE && places[producer] != 0) {
            WEFT_RETURN_IF_ERROR(wefti_stages_share_output(graph, i, places[producer] - 1));
        }
    }
    return wefti_graph_sort(graph);
}
