/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constant folding: operators whose inputs are constants run while the graph is compiled, by their
 * kernels. Exporters write such operators around shapes and masks. Results and work are bounded;
 * what exceeds the bounds, or fails, stays in the graph. Parameters are not constants.
 */
#include <inttypes.h>

#include "graph/ir.h"
#include "ops/compute/halves.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/float_mode.h"

#define RESULT_MAX_BYTES ((size_t)4 << 20) /* of one node: a mask of 1024 x 1024 f32 */
#define NODE_MAX_FLOPS 1e7
#define DIMS_PRODUCT_MAX ((int64_t)1 << 31)
#define ALIGNMENT 64

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

/* Are all inputs constants? A conversion reads the type alone of the inputs after the first. */
static bool inputs_constant(const wefti_graph_t *graph, const wefti_node_t *node)
{
    const bool converts = wefti_op_facts(node->def).gradient == WEFT_GRADIENT_CONVERSION;
    for (uint32_t i = 0; i < (converts ? 1 : node->input_count); i++) {
        if (node->inputs[i] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *value = &graph->values[node->inputs[i]];
        if (value->kind != WEFTI_VALUE_CONST || value->type.data == NULL ||
            weft_tensor_elem_count(&value->type) < 0) {
            return false;
        }
    }
    return true;
}

static void become_constant(wefti_graph_t *graph, uint32_t value, const void *data)
{
    wefti_value_t *v = &graph->values[value];
    v->kind = WEFTI_VALUE_CONST;
    v->producer = v->producer_output = WEFTI_NONE;
    v->type.data = data;
}

static void *aligned(wefti_arena_t *arena, size_t bytes)
{
    uint8_t *memory = wefti_arena_alloc(arena, bytes + ALIGNMENT);
    return memory == NULL ? NULL : memory + (-(uintptr_t)memory & (ALIGNMENT - 1));
}

/* Runs a kernel on constants; contents may lie unaligned in a file. */
static weft_status_t run_kernel(const weft_kernel_t *kernel, const weft_node_desc_t *desc,
                                void *const *outputs, wefti_arena_t *scratch)
{
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    void *state = NULL;
    size_t scratch_bytes = 0;
    const void **inputs = wefti_arena_array(scratch, desc->input_count + 1, sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    for (uint32_t i = 0; i < desc->input_count; i++) {
        const weft_tensor_desc_t *x = &desc->inputs[i];
        inputs[i] = x->data;
        if (x->data != NULL && (uintptr_t)x->data % weft_dtype_size_bytes(x->dtype) != 0) {
            size_t bytes = (size_t)weft_tensor_elem_count(x) * weft_dtype_size_bytes(x->dtype);
            void *copy = aligned(scratch, bytes);
            WEFT_RETURN_IF_NO_MEMORY(copy);
            inputs[i] = memcpy(copy, x->data, bytes);
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_prepare_kernel(kernel, desc, &env, &kernel, &state, &scratch_bytes));
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    void *memory = scratch_bytes <= RESULT_MAX_BYTES ? aligned(scratch, scratch_bytes) : NULL;
    if (memory != NULL) {
        weft_kernel_call_t call = {state, inputs, outputs, memory};
        status = wefti_run_kernel(kernel, &call);
    }
    if (kernel->destroy != NULL) {
        kernel->destroy(state);
    }
    return status;
}

/* The bytes of all outputs, and whether they and the work are small enough to run now. */
static bool is_cheap(const wefti_graph_t *graph, const weft_node_desc_t *desc,
                     const weft_op_def_t *def, const wefti_node_t *node, size_t budget_bytes,
                     size_t *out_bytes)
{
    double flops = 0.0, moved = 0.0;
    *out_bytes = 0;
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] == WEFTI_NONE) {
            continue;
        }
        const weft_tensor_desc_t *type = &graph->values[node->outputs[i]].type;
        if (type->dtype == WEFT_DTYPE_NONE || !is_small(type)) {
            return false;
        }
        *out_bytes += (size_t)weft_tensor_elem_count(type) * weft_dtype_size_bytes(type->dtype);
        if (*out_bytes > RESULT_MAX_BYTES || *out_bytes > budget_bytes) {
            return false;
        }
    }
    bool reads_shape = wefti_op_has(def, WEFT_FACT_READS_SHAPE);
    for (uint32_t i = 0; i < desc->input_count && !reads_shape; i++) {
        if (desc->inputs[i].dtype != WEFT_DTYPE_NONE && !is_small(&desc->inputs[i])) {
            return false;
        }
    }
    wefti_op_cost(def, desc, &flops, &moved);
    return flops <= NODE_MAX_FLOPS;
}

/* One node whose types are known; results larger than *budget_bytes are not folded. */
static weft_status_t fold_node(wefti_graph_t *graph, uint32_t node, size_t *budget_bytes,
                               bool *out_folded)
{
    const wefti_node_t *at = &graph->nodes[node];
    weft_node_desc_t desc;
    size_t bytes;
    *out_folded = false;
    if (at->def->effects != WEFT_EFFECT_PURE ||
        (!wefti_op_has(at->def, WEFT_FACT_READS_SHAPE) && !inputs_constant(graph, at))) {
        return WEFT_OK;
    }
    const weft_attr_t *value = wefti_node_attr(at, "value");
    if (at->input_count == 0 && at->output_count == 1 && at->outputs[0] != WEFTI_NONE &&
        value != NULL && value->type == WEFT_ATTR_TYPE_TENSOR &&
        value->tensor->data != NULL) { /* of any size: nothing is copied */
        become_constant(graph, at->outputs[0], value->tensor->data);
        *out_folded = graph->nodes[node].dead = true;
        return WEFT_OK;
    }
    const weft_kernel_t *kernel =
        weft_registry_find_kernel(graph->registry, at->def->domain, at->def->name, at->version);
    if (kernel == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(graph, node, &desc));
    if (!is_cheap(graph, &desc, at->def, at, *budget_bytes, &bytes)) {
        return WEFT_OK;
    }
    void **outputs = wefti_arena_array(&graph->arena, at->output_count, sizeof(*outputs));
    WEFT_RETURN_IF_NO_MEMORY(outputs);
    for (uint32_t i = 0; i < at->output_count; i++) {
        if (at->outputs[i] != WEFTI_NONE) {
            outputs[i] = aligned(&graph->arena, wefti_value_bytes(&graph->values[at->outputs[i]]));
            WEFT_RETURN_IF_NO_MEMORY(outputs[i]);
        }
    }
    wefti_arena_t scratch;
    wefti_arena_init(&scratch, graph->arena.allocator, 0);
    weft_status_t status = run_kernel(kernel, &desc, outputs, &scratch);
    wefti_arena_deinit(&scratch);
    if (status < 0) { /* the kernel reports it when the plan is bound or runs */
        return WEFT_OK;
    }
    *budget_bytes -= bytes;
    for (uint32_t i = 0; i < at->output_count; i++) {
        if (at->outputs[i] != WEFTI_NONE) {
            become_constant(graph, at->outputs[i], outputs[i]);
        }
    }
    *out_folded = graph->nodes[node].dead = true;
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
