/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recompute: activations that the backward pass computes again.
 *
 *   before   a = Conv(x, w)   b = Relu(a)   ..   db = ReluGrad(dy, b)
 *   after    a = Conv(x, w)   b = Relu(a)   ..   a' = Conv(x, w)   b' = Relu(a')   ReluGrad(dy, b')
 *
 * Matches   operators of the forward pass without effects whose outputs the backward pass reads: by
 *           name (parameter recompute), or, with recompute "auto", those that recompute_choose.c
 *           chooses where no order of operators fits arena_limit.
 * Produces  a second execution of each, named NAME/recompute, just before the first operator of the
 *           backward pass that needs it; all that read it there read the second result.
 *
 * No bit changes: the same kernels read the same inputs. Dropout draws the same numbers, which are a
 * function of seed, step and place. Running statistics are updated once, by the update of a step.
 */
#include "fusion/passes/recompute.h"

#include <string.h>

#include "fusion/passes/passes.h"
#include "fusion/passes/schedule_graph.h"
#include "fusion/patterns.h"
#include "runtime/base/error.h"

/* The node that computes again what the node computes; replaced: by value, its second version. */
static weft_status_t add_again(wefti_graph_t *graph, uint32_t id, uint32_t after, uint32_t anchor,
                               uint32_t *replaced, const bool *read)
{
    const wefti_node_t node = graph->nodes[id];
    wefti_arena_t *arena = &graph->arena;
    uint32_t *inputs = wefti_arena_array(arena, node.input_count, sizeof(*inputs)), again;
    const char **names = wefti_arena_array(arena, node.output_count, sizeof(*names));
    bool *absent = wefti_arena_array(arena, node.output_count, sizeof(*absent));
    char *name = wefti_arena_printf(arena, "%s/recompute", node.name);
    WEFT_RETURN_IF_NO_MEMORY(inputs && names && absent && name);
    for (uint32_t k = 0; k < node.input_count; k++) {
        uint32_t value = node.inputs[k];
        inputs[k] = value != WEFTI_NONE && replaced[value] != WEFTI_NONE ? replaced[value] : value;
    }
    for (uint32_t k = 0; k < node.output_count; k++) {
        uint32_t value = node.outputs[k];
        absent[k] = value == WEFTI_NONE || (k >= node.def->outputs_min && !read[value]);
        names[k] =
            absent[k] ? NULL : wefti_arena_printf(arena, "%s/recompute", graph->values[value].name);
    }
    wefti_node_params_t params = wefti_node_params_of(&node);
    params.name = name;
    params.phase = WEFTI_PHASE_BACKWARD;
    params.inputs = inputs;
    params.output_names = names;
    params.output_absent = absent;
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, after, &again));
    for (uint32_t k = 0; k < node.output_count; k++) {
        if (!absent[k]) {
            replaced[node.outputs[k]] = graph->nodes[again].outputs[k];
            graph->values[graph->nodes[again].outputs[k]].type =
                graph->values[node.outputs[k]].type;
        }
    }
    return wefti_graph_add_constraint(graph, anchor, again);
}

weft_status_t wefti_recompute_apply(wefti_recompute_t *r, wefti_graph_t *graph)
{
    const wefti_run_t *runs;
    uint32_t count = wefti_recompute_runs(r, &runs), anchor = WEFTI_NONE,
             values = graph->value_count;
    uint32_t *replaced = wefti_id_map(r->arena, values);
    uint32_t *order =
        wefti_arena_memdup(r->arena, graph->order, (size_t)graph->order_count * sizeof(*order));
    bool *read = wefti_arena_array(r->arena, values, sizeof(*read));
    WEFT_RETURN_IF_NO_MEMORY(replaced && order && read);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *node = &graph->nodes[runs[i].node];
        bool late = runs[i].again || node->phase == WEFTI_PHASE_BACKWARD;
        for (uint32_t k = 0; late && k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                read[node->inputs[k]] = true;
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = runs[i].node;
        if (runs[i].again) {
            WEFT_RETURN_IF_ERROR(
                add_again(graph, id, order[runs[i].position - 1], anchor, replaced, read));
            continue;
        }
        wefti_node_t *node = &graph->nodes[id];
        for (uint32_t k = 0; node->phase == WEFTI_PHASE_BACKWARD && k < node->input_count; k++) {
            uint32_t value = node->inputs[k];
            if (value != WEFTI_NONE && replaced[value] != WEFTI_NONE) {
                node->inputs[k] = replaced[value];
            }
        }
        if (!wefti_node_communicates(node) && node->phase != WEFTI_PHASE_UPDATE) {
            anchor = id; /* what runs again stays behind it, whatever the schedule */
        }
    }
    return wefti_graph_sort(graph);
}

/* The list in the plan, for people. */
static weft_status_t describe_choice(wefti_compiler_t *c, wefti_recompute_t *r)
{
    const wefti_run_t *runs;
    uint32_t count = wefti_recompute_runs(r, &runs);
    c->recomputed = wefti_arena_array(&c->arena, count, sizeof(*c->recomputed));
    WEFT_RETURN_IF_NO_MEMORY(c->recomputed);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *node = &c->graph->nodes[runs[i].node];
        wefti_plan_recomputed_t *out = &c->recomputed[c->recomputed_count];
        if (!runs[i].again || wefti_node_is_view(c->graph, node)) {
            continue;
        }
        *out = (wefti_plan_recomputed_t){.name = node->name, .ps = r->params->op_ps[runs[i].node]};
        for (uint32_t k = 0; k < node->output_count; k++) {
            out->bytes += node->outputs[k] == WEFTI_NONE
                              ? 0
                              : wefti_value_bytes(&c->graph->values[node->outputs[k]]);
        }
        c->recomputed_count++;
    }
    return WEFT_OK;
}

weft_status_t wefti_recompute_adopt(wefti_compiler_t *c, wefti_recompute_t *r)
{
    WEFT_RETURN_IF_ERROR(describe_choice(c, r));
    wefti_log(&c->log, WEFT_LOG_LEVEL_DEBUG, "%u operators of the forward pass run again",
              c->recomputed_count);
    return wefti_recompute_apply(r, c->graph);
}

weft_status_t wefti_apply_recompute(wefti_compiler_t *c)
{
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    wefti_schedule_params_t params;
    wefti_patterns_t patterns;
    wefti_recompute_t recompute;
    const wefti_graph_t *graph = c->graph;
    const wefti_schedule_options_t options = wefti_schedule_options(c);
    WEFT_RETURN_IF_ERROR(
        wefti_patterns_read(c->params.recompute, "recompute", &c->arena, &patterns));
    WEFT_RETURN_IF_ERROR(wefti_schedule_describe(c->graph, &options, &view, &params));
    WEFT_RETURN_IF_ERROR(wefti_recompute_init(graph, &params, &c->arena, &recompute));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        const char *output = node->output_count > 0 && node->outputs[0] != WEFTI_NONE
                                 ? graph->values[node->outputs[0]].name
                                 : NULL;
        recompute.chosen[id] =
            wefti_recompute_can(graph, id) && wefti_patterns_match(&patterns, node->name, output);
    }
    wefti_recompute_choose_views(&recompute, false);
    WEFT_RETURN_IF_ERROR(
        wefti_patterns_check_used(&patterns, "operator of the forward pass that can run again"));
    WEFT_RETURN_IF_ERROR(wefti_compile_arena(c, &c->kept_arena_bytes));
    return wefti_recompute_adopt(c, &recompute);
}
