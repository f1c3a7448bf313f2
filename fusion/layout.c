/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels-last activations. Values that an operator wants in one layout are joined; a joined set
 * becomes channels-last when a convolution or pooling is among its operators and nothing in it must
 * be plain. Flatten and Reshape permute while they copy, so they end a set without a node of their
 * own. A graph input with one channel lies the same way in both layouts; one with more channels is
 * converted once, by a Reshape to its own shape.
 */
#include <stdio.h>
#include <string.h>

#include "fusion/fusion.h"
#include "runtime/base/error.h"

/* Which inputs and outputs of an operator are activations of one layout: a bit per index. */
typedef struct layout_rule {
    const char *name;
    uint32_t inputs, outputs;
    bool wants; /* gains by channels-last */
} layout_rule_t;

static const layout_rule_t rules[] = {
    {"Conv", 1u, 1u, true},
    {"ConvGrad", 3u, 1u, true},
    {"MaxPool", 1u, 1u, true},
    {"MaxPoolMask", 1u, 3u, true},
    {"MaxPoolGrad", 3u, 1u, true},
    {"AveragePool", 1u, 1u, true},
    {"AveragePoolGrad", 1u, 1u, true},
    {"Relu", 1u, 1u, false},
    {"ReluGrad", 3u, 1u, false},
    {"Tanh", 1u, 1u, false},
    {"TanhGrad", 3u, 1u, false},
    {"Add", 3u, 1u, false},
    {"Pad", 1u, 1u, false},
    {"PadGrad", 1u, 1u, false},
};

/* Sets of values, as a forest; facts are kept at the root. */
typedef struct layout_sets {
    uint32_t *parent;
    bool *plain; /* something in the set must be plain */
    bool *wanted;
} layout_sets_t;

static uint32_t root_of(layout_sets_t *sets, uint32_t value)
{
    while (sets->parent[value] != value) {
        sets->parent[value] = sets->parent[sets->parent[value]];
        value = sets->parent[value];
    }
    return value;
}

static void join(layout_sets_t *sets, uint32_t a, uint32_t b)
{
    a = root_of(sets, a);
    b = root_of(sets, b);
    if (a != b) {
        sets->parent[b] = a;
        sets->plain[a] |= sets->plain[b];
        sets->wanted[a] |= sets->wanted[b];
    }
}

static const layout_rule_t *find_rule(const weft_op_def_t *def)
{
    if (strcmp(def->domain, "") != 0 && strcmp(def->domain, "com.microsoft") != 0 &&
        strcmp(def->domain, "weft") != 0) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (strcmp(def->name, rules[i].name) == 0) {
            return &rules[i];
        }
    }
    return NULL;
}

static bool permutes(const weft_op_def_t *def)
{
    return strcmp(def->domain, "") == 0 &&
           (strcmp(def->name, "Flatten") == 0 || strcmp(def->name, "Reshape") == 0);
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
            sets->plain[root_of(sets, values[i])] = true;
        }
    }
}

/* Can all activations of the node be channels-last? Shapes may only differ where windows change
 * them. */
static bool fits(const wefti_graph_t *graph, const wefti_node_t *node, const layout_rule_t *rule)
{
    bool broadcasts = strcmp(rule->name, "Add") == 0;
    const weft_tensor_desc_t *out =
        node->outputs[0] == WEFTI_NONE ? NULL : &graph->values[node->outputs[0]].type;
    for (uint32_t i = 0; i < node->input_count; i++) {
        const weft_tensor_desc_t *in =
            node->inputs[i] == WEFTI_NONE ? NULL : &graph->values[node->inputs[i]].type;
        if (i < 32 && (rule->inputs >> i & 1) != 0 && in != NULL &&
            (in->rank != 4 || (broadcasts && out != NULL &&
                               memcmp(in->dims, out->dims, 4 * sizeof(in->dims[0])) != 0))) {
            return false;
        }
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] != WEFTI_NONE && (rule->outputs >> i & 1) != 0 &&
            graph->values[node->outputs[i]].type.rank != 4) {
            return false;
        }
    }
    return true;
}

static void visit_values(layout_sets_t *sets, const uint32_t *values, uint32_t count, uint32_t mask,
                         uint32_t *first)
{
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] == WEFTI_NONE) {
            continue;
        }
        if ((mask >> i & 1) == 0) {
            sets->plain[root_of(sets, values[i])] = true; /* weights, index outputs, shapes */
        } else if (*first == WEFTI_NONE) {
            *first = values[i];
        } else {
            join(sets, *first, values[i]);
        }
    }
}

static void visit_node(layout_sets_t *sets, const wefti_graph_t *graph, const wefti_node_t *node)
{
    const layout_rule_t *rule = find_rule(node->def);
    uint32_t first = WEFTI_NONE;
    if (permutes(node->def)) {
        must_be_plain(sets, node->inputs + 1, node->input_count > 1 ? node->input_count - 1 : 0);
        return;
    }
    if (rule == NULL || node->input_count > 31 || node->output_count > 31 ||
        !fits(graph, node, rule)) {
        must_be_plain(sets, node->inputs, node->input_count);
        must_be_plain(sets, node->outputs, node->output_count);
        return;
    }
    visit_values(sets, node->inputs, node->input_count, rule->inputs, &first);
    visit_values(sets, node->outputs, node->output_count, rule->outputs, &first);
    if (first != WEFTI_NONE && rule->wants) {
        sets->wanted[root_of(sets, first)] = true;
    }
}

/* Whatever is not made by a kernel for kernels only stays as the outside knows it. */
static bool fixed_plain(const wefti_graph_t *graph, uint32_t value)
{
    const wefti_value_t *v = &graph->values[value];
    if (v->kind == WEFTI_VALUE_INPUT && same_either_way(&v->type)) {
        return false;
    }
    return v->kind != WEFTI_VALUE_NODE || v->grad_of != WEFTI_NONE || v->type.rank != 4 ||
           (v->flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0;
}

/* Puts a Reshape to its own shape behind an input that a convolution reads, so that its layout is
 * free. */
static weft_status_t convert_input(wefti_graph_t *graph, uint32_t input)
{
    weft_status_t status;
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
    if (type.data == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    snprintf(name, sizeof(name), "%.100s.shape", graph->values[input].name);
    WEFT_TRY(status, wefti_graph_add_value(graph, name, WEFTI_VALUE_CONST, &type, &inputs[1]),
             fail);
    WEFT_TRY(status, wefti_graph_add_node(graph, &params, &node), fail);
    wefti_graph_replace_uses(graph, input, graph->nodes[node].outputs[0], node);
fail:
    return status;
}

static bool reads_as_window(const wefti_graph_t *graph, uint32_t value)
{
    for (uint32_t n = 0; n < graph->order_count; n++) {
        const wefti_node_t *node = &graph->nodes[graph->order[n]];
        const layout_rule_t *rule = find_rule(node->def);
        if (rule != NULL && rule->wants && node->inputs[0] == value) {
            return true;
        }
    }
    return false;
}

static weft_status_t convert_inputs(wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    bool changed = false;
    for (uint32_t i = 0; i < graph->input_count; i++) {
        uint32_t input = graph->inputs[i];
        const weft_tensor_desc_t *type = &graph->values[input].type;
        if (type->rank == 4 && weft_tensor_elem_count(type) > 0 && !same_either_way(type) &&
            reads_as_window(graph, input)) {
            WEFT_TRY(status, convert_input(graph, input), fail);
            changed = true;
        }
    }
    if (changed) {
        WEFT_TRY(status, wefti_graph_sort(graph), fail);
    }
fail:
    return status;
}

weft_status_t wefti_pass_layout(wefti_graph_t *graph)
{
    weft_status_t status;
    wefti_arena_t arena;
    layout_sets_t sets;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    WEFT_TRY(status, convert_inputs(graph), done);
    sets.parent = wefti_arena_array(&arena, graph->value_count, sizeof(*sets.parent));
    sets.plain = wefti_arena_array(&arena, graph->value_count, sizeof(*sets.plain));
    sets.wanted = wefti_arena_array(&arena, graph->value_count, sizeof(*sets.wanted));
    if (sets.parent == NULL || sets.plain == NULL || sets.wanted == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        sets.parent[v] = v;
        sets.plain[v] = fixed_plain(graph, v);
    }
    for (uint32_t n = 0; n < graph->order_count; n++) {
        visit_node(&sets, graph, &graph->nodes[graph->order[n]]);
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        uint32_t root = root_of(&sets, v);
        bool channels_last = sets.wanted[root] && !sets.plain[root];
        graph->values[v].type.layout =
            channels_last ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    }
done:
    wefti_arena_deinit(&arena);
    return status;
}
