/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert-again: the backward pass converts between f32 and half types again what the forward pass
 * converted, so that weights in a half type, and f32 copies of activations, do not live between.
 *
 *   %w/bf16 = Cast(%w)  %y = MatMul(%x, %w/bf16)          ->  ..
 *   backward %dx = MatMul(%dy, %w/bf16)                       backward %w/bf16.2 = Cast(%w)
 *                                                             backward %dx = MatMul(%dy, %w/bf16.2)
 *
 * Matches a Cast that both passes read, of a parameter, or from a half type: then what lives instead
 * lives anyway, or is half as large. The second Cast runs before its first reader. Bits are equal.
 */
#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

static bool is_matched(const wefti_graph_t *graph, const wefti_node_t *node,
                       const weft_op_def_t *cast)
{
    if (!wefti_op_same(node->def, cast) || node->phase != WEFTI_PHASE_FORWARD) {
        return false;
    }
    const wefti_value_t *from = &graph->values[node->inputs[0]];
    const weft_dtype_t to = graph->values[node->outputs[0]].type.dtype;
    const bool half = from->type.dtype == WEFT_DTYPE_F16 || from->type.dtype == WEFT_DTYPE_BF16;
    return half ? to == WEFT_DTYPE_F32
                : from->kind == WEFTI_VALUE_PARAM && from->type.dtype == WEFT_DTYPE_F32 &&
                      (to == WEFT_DTYPE_F16 || to == WEFT_DTYPE_BF16);
}

/* before: by node, the one before it in the order. */
static weft_status_t convert_again(wefti_graph_t *graph, uint32_t id,
                                   const wefti_readers_t *readers, const uint32_t *before)
{
    const uint32_t value = graph->nodes[id].outputs[0];
    uint32_t first = WEFTI_NONE, forward = 0, again;
    for (uint32_t r = readers->first[value]; r < readers->first[value + 1]; r++) {
        const bool late = graph->nodes[readers->nodes[r]].phase == WEFTI_PHASE_BACKWARD;
        first = late && first == WEFTI_NONE ? readers->nodes[r] : first;
        forward += !late;
    }
    if (first == WEFTI_NONE || forward == 0) {
        return WEFT_OK;
    }
    wefti_node_params_t params = wefti_node_params_of(&graph->nodes[id]);
    params.phase = WEFTI_PHASE_BACKWARD;
    params.name = wefti_arena_printf(&graph->arena, "%s/again", graph->nodes[id].name);
    WEFT_RETURN_IF_NO_MEMORY(params.name);
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, before[first], &again));
    for (uint32_t r = readers->first[value]; r < readers->first[value + 1]; r++) {
        wefti_node_t *reader = &graph->nodes[readers->nodes[r]];
        for (uint32_t k = 0; k < reader->input_count; k++) {
            if (reader->phase == WEFTI_PHASE_BACKWARD && reader->inputs[k] == value) {
                reader->inputs[k] = graph->nodes[again].outputs[0];
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t convert_all(wefti_graph_t *graph, wefti_arena_t *arena)
{
    const weft_op_def_t *cast = weft_registry_find_op(graph->registry, "", "Cast", INT32_MAX);
    const uint32_t count = graph->order_count;
    uint32_t *before = wefti_id_map(arena, graph->node_count);
    wefti_readers_t readers;
    WEFT_RETURN_IF_NO_MEMORY(before);
    WEFT_RETURN_IF_ERROR(wefti_graph_readers(graph, graph->order, count, arena, &readers));
    for (uint32_t i = 1; i < count; i++) {
        before[graph->order[i]] = graph->order[i - 1];
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_matched(graph, &graph->nodes[graph->order[i]], cast)) {
            WEFT_RETURN_IF_ERROR(convert_again(graph, graph->order[i], &readers, before));
        }
    }
    return graph->order_count > count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_pass_convert_again(wefti_graph_t *graph)
{
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    weft_status_t status = convert_all(graph, &arena);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_convert_again(wefti_compiler_t *c)
{
    return wefti_pass_convert_again(c->graph);
}
