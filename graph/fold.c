/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constant folding, mostly of the shape arithmetic that exporters write. Definitions have the
 * functions (weft_op_facts_t.fold). Results are small, and their sum is bounded.
 */
#include <inttypes.h>

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

/* One node whose types are known; a result larger than *budget_bytes is not folded. */
static weft_status_t fold_node(wefti_graph_t *graph, uint32_t node, size_t *budget_bytes,
                               bool *out_folded)
{
    const wefti_node_t *at = &graph->nodes[node];
    const weft_op_facts_t facts = wefti_op_facts(at->def);
    *out_folded = false;
    if (facts.fold == NULL || at->output_count != 1 || at->outputs[0] == WEFTI_NONE ||
        ((facts.flags & WEFT_FACT_READS_SHAPE) == 0 && !inputs_constant(graph, at))) {
        return WEFT_OK;
    }
    const weft_tensor_desc_t *type = &graph->values[at->outputs[0]].type;
    const weft_attr_t *value = wefti_node_attr(at, "value");
    if (at->input_count == 0 && value != NULL && value->type == WEFT_ATTR_TYPE_TENSOR &&
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
    WEFT_RETURN_IF_NO_MEMORY(result);
    WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(graph, node, &desc));
    *budget_bytes -= bytes;
    if (facts.fold(&desc, result) != 0) {
        become_constant(graph, node, result);
        *out_folded = true;
    }
    return WEFT_OK;
}

/* After a fixed batch was replaced: a Reshape whose input has the new batch, but whose target shape
 * is a constant with the old one. */
static weft_status_t check_baked_batch(const wefti_graph_t *graph, const wefti_node_t *node)
{
    bool reshapes = wefti_op_facts(node->def).shape_inputs != 0 || wefti_node_attr(node, "shape");
    if (!graph->exported_batch || graph->exported_batch == graph->batch || !reshapes ||
        !wefti_op_has(node->def, WEFT_FACT_VIEW) || node->inputs[0] == WEFTI_NONE) {
        return WEFT_OK;
    }
    const weft_tensor_desc_t *x = &graph->values[node->inputs[0]].type;
    const weft_tensor_desc_t *y = &graph->values[node->outputs[0]].type;
    if (x->rank && y->rank && x->dims[0] == graph->batch && y->dims[0] == graph->exported_batch) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "node '%s' (%s): target shape holds the exported batch size: %" PRId64
            ", batch is %" PRId64
            "; export the model with a symbolic batch, or compile it for batch %" PRId64,
            node->name, node->def->name, graph->exported_batch, graph->batch,
            graph->exported_batch);
    }
    return WEFT_OK;
}

static weft_status_t check_known(const wefti_graph_t *graph, const wefti_node_t *node)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *value = &graph->values[node->outputs[i]];
        bool known = value->type.dtype != WEFT_DTYPE_NONE;
        for (uint32_t d = 0; d < value->type.rank; d++) {
            known = known && value->type.dims[d] >= 0;
        }
        if (!known) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s' (%s): cannot infer the shape of output '%s'", node->name,
                               node->def->name, value->name);
        }
        int64_t elem_count = weft_tensor_elem_count(&value->type);
        if (elem_count < 0 || elem_count > INT64_MAX / 16) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "node '%s' (%s): output '%s' is too large: number of elements overflows",
                node->name, node->def->name, value->name);
        }
    }
    return WEFT_OK;
}

/* complete: every type becomes known, or that is an error. */
static weft_status_t fold_all(wefti_graph_t *graph, bool complete)
{
    weft_status_t status = WEFT_OK;
    size_t budget_bytes = WEFTI_FOLD_BUDGET_BYTES;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        bool folded;
        uint32_t id = graph->order[i];
        WEFT_TRY(status, wefti_graph_infer_node(graph, id), done);
        WEFT_TRY(status, check_baked_batch(graph, &graph->nodes[id]), done);
        WEFT_TRY(status, fold_node(graph, id, &budget_bytes, &folded), done);
        if (!folded && complete) {
            WEFT_TRY(status, check_known(graph, &graph->nodes[id]), done);
        }
    }
done:
    wefti_graph_compact_order(graph);
    return status;
}

weft_status_t wefti_graph_fold_constants(wefti_graph_t *graph)
{
    return fold_all(graph, false);
}

weft_status_t wefti_graph_fold(wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].kind == WEFTI_VALUE_NODE) {
            graph->values[i].type = (weft_tensor_desc_t){0};
        }
    }
    weft_status_t status = fold_all(graph, true);
    return status < 0 && graph->exported_batch != 0 && graph->exported_batch != graph->batch
               ? wefti_error_prefix(status,
                                    "with batch %" PRId64 " instead of the exported %" PRId64,
                                    graph->batch, graph->exported_batch)
               : status;
}
