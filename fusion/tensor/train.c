/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training of a divided graph. Two operators, which exist only until it is differentiated, say how
 * gradients cross the borders between whole and split values:
 *
 *   Shared  Y = X, of which each rank computes another part; the gradient of X is a sum over ranks
 *   Terms   Y is the sum of all ranks' X, each of which gets the gradient of Y
 *
 * Then every gradient is complete on its rank: equal on all ranks for whole parameters, and that of
 * the rank's part for the others. So none of them is reduced, unless there are several batches: then
 * it is averaged over the ranks that have the same part (insert_collectives.c).
 */
#include "fusion/passes/passes.h"
#include "fusion/tensor/tensor.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_same(weft_node_desc_t *node)
{
    node->outputs[0] = node->inputs[0];
    node->outputs[0].data = NULL;
    return WEFT_OK;
}

static void cost_free(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    (void)node;
    *out_flops = *out_bytes = 0;
}

static const weft_op_facts_t shared_facts = {.struct_size = sizeof shared_facts,
                                             .flags = WEFT_FACT_VIEW,
                                             .linear_inputs = 1u,
                                             .gradient = WEFT_GRADIENT_SHARED};
static const weft_op_facts_t terms_facts = {
    .struct_size = sizeof terms_facts, .flags = WEFT_FACT_VIEW, .linear_inputs = 1u};

#define MARK(op, its_facts, text)                                                                  \
    {                                                                                              \
        .domain = "weft", .name = op, .since_version = 1, .inputs_min = 1, .inputs_max = 1,        \
        .outputs_min = 1, .outputs_max = 1, .dtypes = UINT32_MAX, .in_place = {-1, -1, -1, -1},    \
        .infer = infer_same, .cost = cost_free, .doc = text, .facts = &its_facts                   \
    }
static const weft_op_def_t shared = MARK("Shared", shared_facts, "of a value on all ranks");
static const weft_op_def_t terms = MARK("Terms", terms_facts, "the sum of all ranks' terms");

const weft_op_def_t *wefti_tensor_shared(void)
{
    return &shared;
}

const weft_op_def_t *wefti_tensor_terms(void)
{
    return &terms;
}

weft_status_t wefti_tensor_add_sum(wefti_graph_t *graph, uint32_t group, uint32_t node)
{
    const weft_attr_t attrs[] = {
        {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "sum"},
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = group},
        {.name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = "sums the terms of all ranks"}};
    for (uint32_t i = 0; i < 3; i++) {
        WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, node, &attrs[i]));
    }
    graph->nodes[node].phase = WEFTI_PHASE_COMM;
    return wefti_graph_change_op(graph, node, "weft", "AllReduce", 0);
}

weft_status_t wefti_apply_tensor_gradients(wefti_compiler_t *c)
{
    wefti_graph_t *graph = c->graph;
    bool replicas = c->mesh.axis_count > 0;
    uint32_t group = replicas ? WEFTI_GROUP_TENSOR : 0;
    uint32_t count = graph->value_count, *by = wefti_id_map(&c->arena, count);
    WEFT_RETURN_IF_NO_MEMORY(by);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        wefti_node_t *node = &graph->nodes[id];
        if (node->def == &terms) {
            WEFT_RETURN_IF_ERROR(wefti_tensor_add_sum(graph, group, id));
        } else if (node->def == &shared) {
            node->dead = true;
            by[node->outputs[0]] = node->inputs[0];
        }
    }
    wefti_graph_replace_all(graph, by, count);
    wefti_graph_compact_order(graph);
    for (uint32_t v = 0; v < graph->value_count && !replicas; v++) {
        if (graph->values[v].grad_of != WEFTI_NONE) {
            graph->values[v].flags |= WEFTI_VALUE_REDUCED;
        }
    }
    return wefti_graph_sort(graph);
}
