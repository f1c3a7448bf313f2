/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire: gradients travel as bf16, half the bytes.
 *
 * Matches   collectives that reduce gradients.
 * Produces  a rounding to bf16 before each: attribute type of the TreeFold that sums micro-batches,
 *           or a TreeFold of the gradients alone. The collective then reduces bf16; updates and
 *           square sums read bf16.
 *
 * Running statistics (BatchNormalization) need all bits of f32: their buckets, which have no other
 * members (compile_buckets.c), stay as they are.
 *
 * A rank rounds its sum once. Weights, states and partial sums stay f32. No other node may read the
 * reduced gradient.
 */
#include <string.h>

#include "fusion/passes/gradient_sums.h"
#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Of an update, or a sum of squares. */
static bool reads_bf16(const wefti_node_t *node)
{
    return node->phase == WEFTI_PHASE_UPDATE || wefti_op_has(node->def, WEFT_FACT_ACCUMULATES);
}

/* Statistics among what a collective reduces. */
static uint32_t count_statistics(const wefti_graph_t *graph, const wefti_node_t *collective,
                                 const uint32_t *statistic_of)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < collective->output_count; i++) {
        uint32_t param = graph->values[collective->outputs[i]].grad_of;
        count += param != WEFTI_NONE && statistic_of[param] != WEFTI_NONE;
    }
    return count;
}

static weft_status_t check_readers(const wefti_graph_t *graph, const uint32_t *statistic_of)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; !reads_bf16(node) && k < node->input_count; k++) {
            const wefti_value_t *value =
                node->inputs[k] == WEFTI_NONE ? NULL : &graph->values[node->inputs[k]];
            if (value == NULL || value->producer == WEFTI_NONE ||
                !wefti_reduces_gradients(graph, &graph->nodes[value->producer])) {
                continue;
            }
            const wefti_node_t *collective = &graph->nodes[value->producer];
            if (count_statistics(graph, collective, statistic_of) == collective->output_count) {
                continue;
            }
            return wefti_error_field(
                WEFT_ERR_UNSUPPORTED, "wire",
                "bf16 is not possible: node '%s' reads gradient '%s' after its reduction",
                node->name, graph->values[collective->inputs[value->producer_output]].name);
        }
    }
    return WEFT_OK;
}

/* A node that rounds what the collective reduces. */
static weft_status_t add_rounding(wefti_graph_t *graph, wefti_arena_t *arena, uint32_t collective)
{
    uint32_t count = graph->nodes[collective].input_count, fold;
    uint32_t *gradients =
        wefti_arena_memdup(arena, graph->nodes[collective].inputs, count * sizeof(*gradients));
    const char **names = wefti_arena_array(arena, count, sizeof(*names));
    WEFT_RETURN_IF_NO_MEMORY(gradients && names);
    wefti_fold_params_t params = {.collective = collective,
                                  .group_count = 1,
                                  .groups = {gradients},
                                  .output_names = names,
                                  .what = "rounding",
                                  .bf16 = true};
    for (uint32_t i = 0; i < count; i++) {
        names[i] = wefti_arena_printf(arena, "%s.bf16", graph->values[gradients[i]].name);
        WEFT_RETURN_IF_NO_MEMORY(names[i]);
    }
    WEFT_RETURN_IF_ERROR(wefti_add_fold(graph, arena, &params, &fold));
    for (uint32_t i = 0; i < count; i++) {
        graph->nodes[collective].inputs[i] = graph->nodes[fold].outputs[i];
    }
    return WEFT_OK;
}

static weft_status_t round_reductions(wefti_graph_t *graph, wefti_arena_t *arena)
{
    weft_status_t status;
    const weft_attr_t type = {.name = "type", .type = WEFT_ATTR_TYPE_STRING, .s = "bf16"};
    uint32_t *collectives = NULL, count = 0;
    const uint32_t *statistic_of = wefti_graph_statistics(graph, arena);
    WEFT_RETURN_IF_NO_MEMORY(statistic_of);
    WEFT_TRY(status, check_readers(graph, statistic_of), fail);
    WEFT_TRY(status, wefti_find_reductions(graph, arena, &collectives, &count), fail);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *collective = &graph->nodes[collectives[i]];
        uint32_t producer = graph->values[collective->inputs[0]].producer;
        uint32_t statistics = count_statistics(graph, collective, statistic_of);
        if (statistics == collective->output_count) {
            continue;
        }
        if (statistics > 0) { /* a collective of the model */
            status = wefti_error_field(
                WEFT_ERR_UNSUPPORTED, "wire",
                "bf16 is not possible: node '%s' reduces gradients with running statistics",
                collective->name);
            goto fail;
        }
        if (wefti_graph_is_fold(graph, producer)) {
            WEFT_TRY(status, wefti_graph_set_attr(graph, producer, &type), fail);
        } else {
            WEFT_TRY(status, add_rounding(graph, arena, collectives[i]), fail);
        }
    }
    WEFT_TRY(status, wefti_graph_sort(graph), fail);
    status = wefti_graph_infer_shapes(graph); /* bf16 up to the updates */
fail:
    return status;
}

weft_status_t wefti_pass_wire(wefti_graph_t *graph)
{
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    weft_status_t status = round_reductions(graph, &arena);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_wire(wefti_compiler_t *c)
{
    return wefti_pass_wire(c->graph);
}
