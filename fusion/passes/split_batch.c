/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split-batch: one batch for all ranks. Rank 0's inputs are scattered, its outputs gathered.
 *
 * Matches inputs and outputs of two graphs of one model, the first bound to a rank's share of the
 * batch, the second to all of it: what differs in its first dimension, and in nothing else, carries
 * the batch. Graphs that mix samples are refused (split_check.c). Produces
 *
 *   x [B, ..] -> Scatter -> "x.share" [B / N, ..] -> the graph -> "y.share" -> Gather -> y [B, ..]
 *   z [..]    -> Broadcast -> "z.share"              (no batch: all ranks receive rank 0's)
 */
#include "fusion/passes/passes.h"

#include <stdio.h>

#include "runtime/base/error.h"

wefti_share_t wefti_batch_share(const weft_tensor_desc_t *part, const weft_tensor_desc_t *whole,
                                uint32_t parts)
{
    bool equal = part->dtype == whole->dtype && part->rank == whole->rank;
    for (uint32_t d = 1; equal && d < part->rank; d++) {
        equal = part->dims[d] == whole->dims[d];
    }
    if (!equal) {
        return WEFTI_SHARE_OTHER;
    }
    if (part->rank == 0 || part->dims[0] == whole->dims[0]) {
        return WEFTI_SHARE_SAME;
    }
    return part->dims[0] * (int64_t)parts == whole->dims[0] ? WEFTI_SHARE_FIRST : WEFTI_SHARE_OTHER;
}

/* Adds op(value) of blocks of ranks, 0: of whole tensors. The result gets the inferred type. */
static weft_status_t add_collective(wefti_graph_t *graph, const char *op, uint32_t value,
                                    const char *output_name, uint32_t ranks, const char *reason,
                                    uint32_t *out_value)
{
    uint32_t node;
    weft_attr_t attrs[] = {{.name = "root", .type = WEFT_ATTR_TYPE_INT},
                           {.name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = reason},
                           {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = ranks}};
    char name[256];
    snprintf(name, sizeof(name), "%s of %.200s", op, graph->values[value].name);
    wefti_node_params_t params = {.domain = "weft",
                                  .op = op,
                                  .name = name,
                                  .version = 1,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_names = &output_name,
                                  .output_count = 1,
                                  .attrs = attrs,
                                  .attr_count = ranks != 0 ? 3 : 2};
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &node));
    *out_value = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

static weft_status_t split_input(wefti_graph_t *graph, const wefti_graph_t *whole, uint32_t index,
                                 uint32_t ranks)
{
    uint32_t input = graph->inputs[index], part;
    const weft_tensor_desc_t *type = &whole->values[whole->inputs[index]].type;
    wefti_share_t share = wefti_batch_share(&graph->values[input].type, type, ranks);
    char name[256];
    if ((graph->values[input].flags & WEFTI_VALUE_OUTPUT) != 0) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "split_batch",
                                 "input '%s' is also an output", graph->values[input].name);
    }
    if (share == WEFTI_SHARE_OTHER) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "split_batch",
                                 "the batch is not the first dimension of input '%s'",
                                 graph->values[input].name);
    }
    snprintf(name, sizeof(name), "%.200s.share", graph->values[input].name);
    graph->values[input].type = *type;
    WEFT_RETURN_IF_ERROR(add_collective(graph, share == WEFTI_SHARE_FIRST ? "Scatter" : "Broadcast",
                                        input, name, share == WEFTI_SHARE_FIRST ? ranks : 0,
                                        share == WEFTI_SHARE_FIRST
                                            ? "scatters rank 0's batch over the ranks"
                                            : "broadcasts the input of rank 0",
                                        &part));
    wefti_graph_replace_uses(graph, input, part, graph->values[part].producer);
    return WEFT_OK;
}

static weft_status_t gather_output(wefti_graph_t *graph, const wefti_graph_t *whole, uint32_t index,
                                   uint32_t ranks)
{
    uint32_t output = graph->outputs[index], all;
    const char *old_name = graph->values[output].name;
    const weft_tensor_desc_t *type = &whole->values[whole->outputs[index]].type;
    char name[256];
    if (wefti_batch_share(&graph->values[output].type, type, ranks) != WEFTI_SHARE_FIRST) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "split_batch",
                                 "the batch is not the first dimension of output '%s'", old_name);
    }
    snprintf(name, sizeof(name), "%.200s.share", old_name);
    WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, output, name));
    WEFT_RETURN_IF_ERROR(add_collective(graph, "Gather", output, old_name, ranks,
                                        "gathers the results on rank 0", &all));
    graph->values[output].flags &= ~WEFTI_VALUE_OUTPUT;
    graph->values[all].flags |= WEFTI_VALUE_OUTPUT;
    graph->outputs[index] = all;
    return WEFT_OK;
}

weft_status_t wefti_pass_split_batch(wefti_graph_t *graph, const wefti_graph_t *whole,
                                     uint32_t world_size)
{
    if (graph->input_count != whole->input_count || graph->output_count != whole->output_count) {
        return wefti_error_split_graph("split_batch");
    }
    if (world_size == 1) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(
        wefti_check_split(graph, whole, world_size, "split_batch", false, &graph->arena));
    for (uint32_t i = 0; i < graph->input_count; i++) {
        WEFT_RETURN_IF_ERROR(split_input(graph, whole, i, world_size));
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        WEFT_RETURN_IF_ERROR(gather_output(graph, whole, i, world_size));
    }
    return wefti_graph_sort(graph);
}

weft_status_t wefti_apply_split_batch(wefti_compiler_t *c)
{
    weft_status_t status =
        wefti_pass_split_batch(c->graph, c->models[1].graph, c->params.world_size);
    wefti_graph_destroy(c->models[1].graph);
    c->models[1].graph = NULL;
    return status;
}
