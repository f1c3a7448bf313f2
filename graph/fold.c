/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constant folding, mostly of the shape arithmetic that exporters write. Definitions have the
 * functions (weft_op_facts_t.fold). Results are small, and their sum is bounded.
 */

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define RESULT_MAX_ELEMS 4096
#define DIMS_PRODUCT_MAX ((int64_t)1 << 31)

static bool can_read(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_I64 ||
           dtype == WEFT_DTYPE_I32 || dtype == WEFT_DTYPE_BOOL;
}

/* Products of any of the dimensions stay far from overflow, also where another one is 0. */
static bool is_small(const weft_tensor_desc_t *type)
{
    int64_t product = 1;
    for (uint32_t d = 0; d < type->rank; d++) {
        if (type->dims[d] < 0 || type->dims[d] > DIMS_PRODUCT_MAX) {
            return false;
        }
        product *= type->dims[d] ? type->dims[d] : 1;
        if (product > DIMS_PRODUCT_MAX) {
            return false;
        }
    }
    return true;
}

/* Constants of readable types. */
static bool inputs_constant(const wefti_graph_t *graph, const wefti_node_t *node)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        if (node->inputs[i] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *value = &graph->values[node->inputs[i]];
        if (value->kind != WEFTI_VALUE_CONST || value->type.data == NULL ||
            !can_read(value->type.dtype) || weft_tensor_elem_count(&value->type) < 0) {
            return false;
        }
    }
    return true;
}

static void become_constant(wefti_graph_t *graph, uint32_t node, const void *data)
{
    wefti_value_t *value = &graph->values[graph->nodes[node].outputs[0]];
    value->kind = WEFTI_VALUE_CONST;
    value->producer = value->producer_output = WEFTI_NONE;
    value->type.data = data;
    graph->nodes[node].dead = true;
}

weft_status_t wefti_graph_fold_node(wefti_graph_t *graph, uint32_t node, size_t *budget_bytes,
                                    bool *out_folded)
{
    weft_status_t status;
    const wefti_node_t *at = &graph->nodes[node];
    const weft_op_facts_t facts = wefti_op_facts(at->def);
    *out_folded = false;
    if (facts.fold == NULL || at->output_count != 1 || at->outputs[0] == WEFTI_NONE ||
        ((facts.flags & WEFT_FACT_READS_SHAPE) == 0 && !inputs_constant(graph, at))) {
        return WEFT_OK;
    }
    const weft_tensor_desc_t *type = &graph->values[at->outputs[0]].type;
    const weft_attr_t *value = wefti_node_attr(at, "value");
    if (at->input_count == 0 && value != NULL && value->type == WEFT_ATTR_TENSOR &&
        value->tensor->data != NULL) { /* of any size and type: nothing is copied */
        become_constant(graph, node, value->tensor->data);
        *out_folded = true;
        return WEFT_OK;
    }
    int64_t count = weft_tensor_elem_count(type);
    size_t bytes = count < 0 ? 0 : (size_t)count * weft_dtype_size_bytes(type->dtype);
    if (!is_small(type) || count > RESULT_MAX_ELEMS || bytes > *budget_bytes ||
        !can_read(type->dtype)) {
        return WEFT_OK;
    }
    weft_node_desc_t desc;
    void *result = wefti_arena_alloc(&graph->arena, bytes);
    WEFT_TRY(status, result == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, done);
    WEFT_TRY(status, wefti_graph_scratch_desc(graph, node, &desc), done);
    *budget_bytes -= bytes;
    if (facts.fold(&desc, result) != 0) {
        become_constant(graph, node, result);
        *out_folded = true;
    }
done:
    return status;
}

weft_status_t wefti_graph_fold_constants(wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    size_t budget_bytes = WEFTI_FOLD_BUDGET_BYTES;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        bool folded;
        WEFT_TRY(status, wefti_graph_infer_node(graph, graph->order[i]), done);
        WEFT_TRY(status, wefti_graph_fold_node(graph, graph->order[i], &budget_bytes, &folded),
                 done);
    }
done:
    wefti_graph_compact_order(graph);
    return status;
}
