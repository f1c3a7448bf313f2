/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settle-gradients: each given gradient becomes a tensor of its own, as derived gradients are.
 *
 * Matches values with grad_of (given-gradients). Produces an Identity where a gradient is an output
 * or has other readers, because collectives work in place in the memory of a bucket; and the flag
 * REDUCED on a gradient that is equal on all ranks, which insert-collectives must not reduce again.
 */
#include "fusion/passes/passes.h"

#include "runtime/base/error.h"

static weft_status_t check_gradient(const wefti_graph_t *graph, uint32_t value)
{
    const wefti_value_t *grad = &graph->values[value], *param = &graph->values[grad->grad_of];
    bool same = grad->type.dtype == param->type.dtype && grad->type.rank == param->type.rank;
    char texts[2][WEFTI_TYPE_TEXT_BYTES];

    for (uint32_t d = 0; same && d < grad->type.rank; d++) {
        same = grad->type.dims[d] == param->type.dims[d];
    }

    if (!same) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "gradient '%s': type or shape does not match parameter '%s': %s, parameter %s",
            grad->name, param->name, wefti_type_text(&grad->type, texts[0]),
            wefti_type_text(&param->type, texts[1]));
    }
    if (weft_tensor_elem_count(&param->type) == 0) {
        return wefti_error_empty_param(param->name);
    }
    return WEFT_OK;
}

weft_status_t wefti_check_gradients(const wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t v = 0; v < graph->value_count && status >= 0; v++) {
        const wefti_value_t *value = &graph->values[v];
        if (value->grad_of != WEFTI_NONE && value->kind != WEFTI_VALUE_NODE) {
            /* folded: it is always the same */
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "gradient '%s' of parameter '%s' is a constant", value->name,
                               graph->values[value->grad_of].name);
        }
        status = value->grad_of != WEFTI_NONE ? check_gradient(graph, v) : WEFT_OK;
    }
    return status;
}

static uint32_t count_readers(const wefti_readers_t *readers, uint32_t value)
{
    return readers->first[value + 1] - readers->first[value];
}

static weft_status_t add_copy(wefti_graph_t *graph, uint32_t value, uint32_t *out_value)
{
    uint32_t node;
    const wefti_node_params_t params = {
        .op = "Identity",
        .name = wefti_arena_printf(&graph->arena, "%s/copy", graph->values[value].name),
        .version = graph->opset,
        .phase = WEFTI_PHASE_BACKWARD,
        .inputs = &value,
        .input_count = 1,
        .output_count = 1};
    weft_status_t status = wefti_graph_insert_node(graph, &params, WEFTI_WHEN_READY, &node);
    if (status >= 0) {
        *out_value = graph->nodes[node].outputs[0];
    }
    return status;
}

/* A collective of gradients works in place: its inputs are tensors of their own. */
static weft_status_t own_inputs(wefti_graph_t *graph, uint32_t id, const wefti_readers_t *readers)
{
    for (uint32_t k = 0; k < graph->nodes[id].input_count; k++) {
        uint32_t value = graph->nodes[id].inputs[k], copy;
        uint32_t result = graph->nodes[id].outputs[k];
        if (value == WEFTI_NONE || result == WEFTI_NONE ||
            graph->values[result].grad_of == WEFTI_NONE ||
            (graph->values[value].kind == WEFTI_VALUE_NODE && count_readers(readers, value) == 1 &&
             graph->values[value].flags == 0)) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(add_copy(graph, value, &copy));
        graph->nodes[id].inputs[k] = copy;
    }
    return WEFT_OK;
}

/* A gradient that a node computes: a tensor that no node reads, or one that is already reduced. */
static weft_status_t own_gradient(wefti_graph_t *graph, uint32_t value,
                                  const wefti_readers_t *readers, bool local)
{
    uint32_t copy;
    if (!local) {
        graph->values[value].flags |= WEFTI_VALUE_REDUCED;
        return WEFT_OK;
    }
    if (count_readers(readers, value) == 0 && graph->values[value].flags == 0) {
        return WEFT_OK;
    }
    weft_status_t status = add_copy(graph, value, &copy);
    if (status == WEFT_OK) {
        graph->values[copy].grad_of = graph->values[value].grad_of;
        graph->values[value].grad_of = WEFTI_NONE;
    }
    return status;
}

static weft_status_t settle(wefti_graph_t *graph, wefti_arena_t *arena)
{
    wefti_readers_t readers;
    uint32_t count = graph->order_count;
    WEFT_RETURN_IF_ERROR(wefti_check_gradients(graph));
    const uint8_t *local = wefti_mark_local(graph, arena);
    WEFT_RETURN_IF_NO_MEMORY(local);
    WEFT_RETURN_IF_ERROR(wefti_graph_readers(graph, graph->order, count, arena, &readers));
    for (uint32_t v = 0, values = graph->value_count; v < values; v++) {
        if (graph->values[v].grad_of != WEFTI_NONE &&
            !wefti_node_communicates(&graph->nodes[graph->values[v].producer])) {
            WEFT_RETURN_IF_ERROR(own_gradient(graph, v, &readers, local[v]));
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (wefti_is_all_reduce(&graph->nodes[graph->order[i]])) {
            WEFT_RETURN_IF_ERROR(own_inputs(graph, graph->order[i], &readers));
        }
    }
    return graph->order_count > count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_pass_settle_gradients(wefti_graph_t *graph)
{
    wefti_arena_t arena;
    if (!wefti_graph_has_gradients(graph)) {
        return WEFT_OK;
    }
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    weft_status_t status = settle(graph, &arena);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_settle_gradients(wefti_compiler_t *c)
{
    return wefti_pass_settle_gradients(c->graph);
}
