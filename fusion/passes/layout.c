/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: channels-last activations where they are faster.
 *
 * Matches sets of tensors that share a layout. Definitions state which tensors of an operator may
 * be channels-last, which of them share one layout, and the time per element
 * (weft_op_facts_t.layout). Produces type.layout: a set becomes channels-last if no tensor in it
 * must be plain and its operators are faster that way.
 *
 * Weights, their gradients and graph outputs are always plain. Convolutions accept any layout on
 * either side, and Flatten and Reshape permute while they copy, so sets end there. A graph input
 * with several channels is converted by a Reshape to its own shape.
 *
 * Channels-last kernels work on vectors of channels: with few channels they do less per
 * instruction. The times were measured on one AVX-512 core with the built-in kernels.
 */
#include <stdio.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "runtime/base/sets.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define VECTOR_CHANNELS 16

/* Windows of 2 x 2, stride 2, without padding: plain lines are read as pairs, whatever the
 * channels. */
#define PAIRS_PS 150.0f

/* Sets of values (runtime/base/sets.h); facts are kept at the root. */
typedef struct layout_sets {
    uint32_t *parent;
    bool *plain;     /* something in the set must be plain */
    double *gain_ps; /* what channels-last saves */
} layout_sets_t;

static void join(layout_sets_t *sets, uint32_t a, uint32_t b)
{
    if (wefti_sets_join(sets->parent, &a, &b)) {
        sets->plain[a] |= sets->plain[b];
        sets->gain_ps[a] += sets->gain_ps[b];
    }
}

static bool holds(const wefti_node_t *node, const char *name, int64_t wanted)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    bool equal = attr != NULL && attr->type == WEFT_ATTR_TYPE_INTS;
    for (size_t i = 0; equal && i < attr->count; i++) {
        equal = attr->ints[i] == wanted;
    }
    return equal;
}

static bool is_pairs(const wefti_node_t *node)
{
    return holds(node, "kernel_shape", 2) && holds(node, "strides", 2) &&
           (wefti_node_attr(node, "pads") == NULL || holds(node, "pads", 0));
}

/* Both layouts are the same bytes. */
static bool same_either_way(const weft_tensor_desc_t *type)
{
    return type->rank == 4 && (type->dims[1] == 1 || (type->dims[2] == 1 && type->dims[3] == 1));
}

static void must_be_plain(layout_sets_t *sets, const uint32_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] != WEFTI_NONE) {
            sets->plain[wefti_sets_root(sets->parent, values[i])] = true;
        }
    }
}

/* The bit of tensor index in mask; the last bit counts for all further tensors. */
static bool accepts(uint32_t mask, uint32_t index)
{
    return (mask >> (index < 32 ? index : 31) & 1) != 0;
}

/* Can all activations of the node be channels-last? Shapes may only differ where windows change
 * them. */
static bool fits(const wefti_graph_t *graph, const wefti_node_t *node,
                 const weft_layout_facts_t *rule)
{
    bool broadcasts = wefti_op_has(node->def, WEFT_FACT_ELEMENTWISE);
    const weft_tensor_desc_t *out =
        node->outputs[0] == WEFTI_NONE ? NULL : &graph->values[node->outputs[0]].type;
    for (uint32_t i = 0; i < node->input_count; i++) {
        const weft_tensor_desc_t *in =
            node->inputs[i] == WEFTI_NONE ? NULL : &graph->values[node->inputs[i]].type;
        if (accepts(rule->inputs, i) && in != NULL &&
            (in->rank != 4 || (broadcasts && out != NULL &&
                               memcmp(in->dims, out->dims, 4 * sizeof(in->dims[0])) != 0))) {
            return false;
        }
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] != WEFTI_NONE && accepts(rule->outputs, i) &&
            graph->values[node->outputs[i]].type.rank != 4) {
            return false;
        }
    }
    return true;
}

/* What channels-last saves on one activation of an operator; below zero where it costs. */
static double gain_of(const weft_layout_facts_t *rule, const weft_tensor_desc_t *type)
{
    double elems = (double)weft_tensor_elem_count(type);
    double used = type->dims[1] < VECTOR_CHANNELS ? (double)type->dims[1] / VECTOR_CHANNELS : 1.0;
    return same_either_way(type) || used <= 0
               ? 0
               : elems * ((double)rule->plain_ps - (double)rule->channels_last_ps / used);
}

static void visit_values(layout_sets_t *sets, const wefti_graph_t *graph,
                         const weft_layout_facts_t *rule, const uint32_t *values, uint32_t count,
                         uint32_t mask, uint32_t *first)
{
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] == WEFTI_NONE) {
            continue;
        }
        if (!accepts(mask, i)) {
            sets->plain[wefti_sets_root(sets->parent, values[i])] =
                true; /* weights, index outputs, shapes */
            continue;
        }
        sets->gain_ps[wefti_sets_root(sets->parent, values[i])] +=
            gain_of(rule, &graph->values[values[i]].type);
        if (rule->same && *first != WEFTI_NONE) {
            join(sets, *first, values[i]);
        }
        *first = values[i];
    }
}

static void visit_node(layout_sets_t *sets, const wefti_graph_t *graph, const wefti_node_t *node)
{
    weft_layout_facts_t rule = wefti_op_facts(node->def).layout;
    uint32_t first = WEFTI_NONE;
    bool views = wefti_op_has(node->def, WEFT_FACT_VIEW); /* a kernel copies, and may permute */
    if (rule.inputs == 0 || node->input_count > 31 || node->output_count > 31 ||
        (!views && !fits(graph, node, &rule))) {
        must_be_plain(sets, node->inputs, node->input_count);
        must_be_plain(sets, node->outputs, node->output_count);
        return;
    }
    if (rule.plain_ps > 0 && is_pairs(node)) {
        rule.plain_ps = PAIRS_PS;
    }
    visit_values(sets, graph, &rule, node->inputs, node->input_count, rule.inputs, &first);
    visit_values(sets, graph, &rule, node->outputs, node->output_count, rule.outputs, &first);
}

/* Whatever is not made by a kernel for kernels only stays as the outside knows it. */
static bool fixed_plain(const wefti_graph_t *graph, uint32_t value)
{
    const wefti_value_t *v = &graph->values[value];
    if (v->kind == WEFTI_VALUE_INPUT && v->type.rank == 4) {
        return false; /* the same bytes either way, or converted */
    }
    return v->kind != WEFTI_VALUE_NODE || v->grad_of != WEFTI_NONE || v->type.rank != 4 ||
           (v->flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS |
                        WEFTI_VALUE_PERSISTENT)) != 0;
}

/* Puts a Reshape to its own shape behind an input that a convolution reads, so that its layout is
 * free. */
static weft_status_t convert_input(wefti_graph_t *graph, uint32_t input)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {4}};
    char name[128];
    uint32_t inputs[2] = {input, WEFTI_NONE}, node;
    wefti_node_params_t params = {.domain = "",
                                  .op = "Reshape",
                                  .version = graph->opset,
                                  .inputs = inputs,
                                  .input_count = 2,
                                  .output_count = 1,
                                  .phase = WEFTI_PHASE_FORWARD};
    type.data =
        wefti_arena_memdup(&graph->arena, graph->values[input].type.dims, 4 * sizeof(int64_t));
    WEFT_RETURN_IF_NO_MEMORY(type.data);
    snprintf(name, sizeof(name), "%.100s.shape", graph->values[input].name);
    WEFT_RETURN_IF_ERROR(wefti_graph_add_value(graph, name, WEFTI_VALUE_CONST, &type, &inputs[1]));
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &node));
    wefti_graph_replace_uses(graph, input, graph->nodes[node].outputs[0], node);
    return wefti_graph_join_programs(graph, node);
}

static weft_status_t find_sets(const wefti_graph_t *graph, wefti_arena_t *arena,
                               layout_sets_t *sets)
{
    sets->parent = wefti_arena_array(arena, graph->value_count, sizeof(*sets->parent));
    sets->plain = wefti_arena_array(arena, graph->value_count, sizeof(*sets->plain));
    sets->gain_ps = wefti_arena_array(arena, graph->value_count, sizeof(*sets->gain_ps));
    WEFT_RETURN_IF_NO_MEMORY(sets->parent && sets->plain && sets->gain_ps);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        sets->parent[v] = v;
        sets->plain[v] = fixed_plain(graph, v);
    }
    for (uint32_t n = 0; n < graph->order_count; n++) { /* a variant takes what the step takes */
        if (wefti_graph_variant_of(graph, graph->order[n]) == WEFTI_NONE) {
            visit_node(sets, graph, &graph->nodes[graph->order[n]]);
        }
    }
    return WEFT_OK;
}

static bool is_channels_last(layout_sets_t *sets, uint32_t value)
{
    uint32_t root = wefti_sets_root(sets->parent, value);
    return !sets->plain[root] && sets->gain_ps[root] > 0;
}

weft_status_t wefti_pass_layout(wefti_graph_t *graph)
{
    weft_status_t status;
    wefti_arena_t arena;
    layout_sets_t sets;
    bool changed = false;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    WEFT_TRY(status, find_sets(graph, &arena, &sets), done);
    for (uint32_t i = 0; i < graph->input_count; i++) {
        uint32_t input = graph->inputs[i];
        if (is_channels_last(&sets, input) && !same_either_way(&graph->values[input].type)) {
            WEFT_TRY(status, convert_input(graph, input), done);
            changed = true;
        }
    }
    if (changed) {
        WEFT_TRY(status, wefti_graph_sort(graph), done);
        WEFT_TRY(status, wefti_graph_refresh_programs(graph), done);
        WEFT_TRY(status, find_sets(graph, &arena, &sets), done);
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        uint32_t of = graph->values[v].alias_of;
        graph->values[v].type.layout = is_channels_last(&sets, of != WEFTI_NONE ? of : v)
                                           ? WEFT_LAYOUT_CHANNELS_LAST
                                           : WEFT_LAYOUT_PLAIN;
    }
done:
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_layout(wefti_compiler_t *c)
{
    return wefti_pass_layout(c->graph);
}
