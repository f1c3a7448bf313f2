/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that one kernel can run: the same operator with the same settings, on operands of the
 * same roles. It is element-wise, or becomes so once the norms of the tensors are known. */
#include "fusion/passes/update_group.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* The one update among the readers of a reduced gradient. */
static uint32_t find_update(const wefti_graph_t *graph, const wefti_readers_t *readers,
                            uint32_t value)
{
    uint32_t found = WEFTI_NONE;
    for (uint32_t i = readers->first[value]; i < readers->first[value + 1]; i++) {
        uint32_t node = readers->nodes[i];
        if (graph->nodes[node].phase == WEFTI_PHASE_UPDATE) {
            if (found != WEFTI_NONE && found != node) {
                return WEFTI_NONE;
            }
            found = node;
        }
    }
    return found;
}

static bool same_attr(const weft_attr_t *a, const weft_attr_t *b)
{
    return strcmp(a->name, b->name) == 0 && a->type == b->type &&
           (a->type == WEFT_ATTR_TYPE_INT     ? a->i == b->i
            : a->type == WEFT_ATTR_TYPE_FLOAT ? memcmp(&a->f, &b->f, sizeof(a->f)) == 0
                                              : false);
}

/* Operands in one position of two members' updates: equal roles may be read as one range. */
static bool same_role(const wefti_graph_t *graph, const wefti_update_group_t *group,
                      const uint32_t *slots, uint32_t member, uint32_t input)
{
    const uint32_t *reduced = graph->nodes[group->node].outputs;
    uint32_t a = graph->nodes[group->updates[0]].inputs[input];
    uint32_t b = graph->nodes[group->updates[member]].inputs[input];
    uint32_t param_a = group->params[0], param_b = group->params[member];
    if (a == param_a || b == param_b) {
        return a == param_a && b == param_b;
    }
    if (a == reduced[0] || b == reduced[member]) {
        return a == reduced[0] && b == reduced[member];
    }
    if (a == b) {
        return true;
    }
    return a != WEFTI_NONE && b != WEFTI_NONE && slots[a] != WEFTI_NONE && slots[a] == slots[b] &&
           graph->values[a].state_of == param_a && graph->values[b].state_of == param_b;
}

static bool has_attr(const weft_op_def_t *def, const char *name)
{
    uint32_t k = 0;
    while (k < def->attr_count && strcmp(def->attrs[k].name, name) != 0) {
        k++;
    }
    return k < def->attr_count;
}

/* Without attribute "adapt" an update that can adapt to norms is element-wise. The parameter is
 * input 0, the gradient input 1. */
static bool is_range_update(const wefti_node_t *node)
{
    return (node->def->effects & WEFT_EFFECT_UPDATES) != 0 &&
           (wefti_op_has(node->def, WEFT_FACT_ELEMENTWISE) || has_attr(node->def, "adapt")) &&
           wefti_node_overwrites(node, 0) == 0;
}

static bool is_uniform(const wefti_graph_t *graph, const wefti_update_group_t *group,
                       const uint32_t *slots)
{
    const wefti_node_t *a =
        group->updates[0] == WEFTI_NONE ? NULL : &graph->nodes[group->updates[0]];
    if (a == NULL || !is_range_update(a) || a->inputs[0] != group->params[0]) {
        return false;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        const wefti_node_t *b =
            group->updates[i] == WEFTI_NONE ? NULL : &graph->nodes[group->updates[i]];
        if (b == NULL || a->def != b->def || a->version != b->version ||
            a->input_count != b->input_count || a->output_count != b->output_count ||
            a->attr_count != b->attr_count ||
            graph->values[group->params[0]].type.dtype !=
                graph->values[group->params[i]].type.dtype) {
            return false;
        }
        for (uint32_t j = 0; j < a->attr_count; j++) {
            if (!same_attr(&a->attrs[j], &b->attrs[j])) {
                return false;
            }
        }
        for (uint32_t j = 0; j < a->input_count; j++) {
            if (!same_role(graph, group, slots, i, j)) {
                return false;
            }
        }
    }
    return true;
}

weft_status_t wefti_state_slots(const wefti_graph_t *graph, wefti_arena_t *arena,
                                uint32_t **out_slots, uint32_t *out_slot_count)
{
    uint32_t *next = wefti_arena_array(arena, graph->value_count, sizeof(*next));
    uint32_t *slots = wefti_arena_array(arena, graph->value_count, sizeof(*slots));
    bool *read = wefti_arena_array(arena, graph->value_count, sizeof(*read));
    *out_slots = slots;
    *out_slot_count = 0;
    WEFT_RETURN_IF_NO_MEMORY(next && slots && read);
    for (uint32_t n = 0; n < graph->order_count; n++) {
        const wefti_node_t *node = &graph->nodes[graph->order[n]];
        for (uint32_t j = 0; node->phase == WEFTI_PHASE_UPDATE && j < node->input_count; j++) {
            if (node->inputs[j] != WEFTI_NONE) {
                read[node->inputs[j]] = true;
            }
        }
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        const wefti_value_t *state = &graph->values[v];
        slots[v] = WEFTI_NONE;
        if (state->kind != WEFTI_VALUE_STATE || state->state_of == WEFTI_NONE || !read[v]) {
            continue;
        }
        const wefti_value_t *param = &graph->values[state->state_of];
        if (state->type.dtype == param->type.dtype &&
            wefti_value_bytes(state) == wefti_value_bytes(param)) {
            slots[v] = next[state->state_of]++;
            *out_slot_count = slots[v] + 1 > *out_slot_count ? slots[v] + 1 : *out_slot_count;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_update_group(const wefti_graph_t *graph, const wefti_readers_t *readers,
                                 const uint32_t *slots, uint32_t node, wefti_arena_t *arena,
                                 wefti_update_group_t *out)
{
    uint32_t count = graph->nodes[node].output_count;
    *out = (wefti_update_group_t){.node = node, .count = count};
    out->params = wefti_arena_array(arena, count, sizeof(*out->params));
    out->updates = wefti_arena_array(arena, count, sizeof(*out->updates));
    WEFT_RETURN_IF_NO_MEMORY(out->params && out->updates);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t reduced = graph->nodes[node].outputs[i];
        out->params[i] = graph->values[reduced].grad_of;
        out->updates[i] = find_update(graph, readers, reduced);
    }
    out->uniform = is_uniform(graph, out, slots);
    out->norms = out->uniform && wefti_node_int(&graph->nodes[out->updates[0]], "adapt") != 0;
    return WEFT_OK;
}
