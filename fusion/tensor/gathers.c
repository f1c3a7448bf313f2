/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split values that are needed whole: an all-gather, or, of a value that was joined of parts and of
 * what every rank has, an all-gather of the parts before they are joined again.
 */
#include "fusion/tensor/rewrite.h"

#include <string.h>

#include "fusion/passes/passes.h"
#include "runtime/base/error.h"

weft_status_t wefti_split_remember(rewriter_t *r, uint32_t of, const wefti_split_t *split,
                                   uint32_t value)
{
    if (r->made_count == r->made_capacity) {
        uint32_t capacity = r->made_capacity * 2 + 64;
        made_t *made = wefti_arena_array(r->s->arena, capacity, sizeof(*made));
        WEFT_RETURN_IF_NO_MEMORY(made);
        if (r->made_count > 0) {
            memcpy(made, r->made, r->made_count * sizeof(*made));
        }
        r->made = made;
        r->made_capacity = capacity;
    }
    r->made[r->made_count++] = (made_t){of, value, *split};
    return WEFT_OK;
}

static bool same_split(const wefti_split_t *a, const wefti_split_t *b)
{
    return a->axis == b->axis && a->count == b->count &&
           (a->count == 1 || memcmp(a->sizes, b->sizes, a->count * sizeof(*a->sizes)) == 0);
}

uint32_t wefti_split_find_made(const rewriter_t *r, uint32_t of, const wefti_split_t *split)
{
    for (uint32_t i = 0; i < r->made_count; i++) {
        if (r->made[i].of == of && same_split(&r->made[i].split, split)) {
            return r->made[i].value;
        }
    }
    return WEFTI_NONE;
}

/* The gathered value is read at the end of the graph: one collective can then gather those of all
 * layers (passes/bucket.c), which wait for the last of them. */
static weft_status_t gather_late(rewriter_t *r, uint32_t value, uint32_t *out_value)
{
    const weft_attr_t attrs[] = {
        {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = r->s->ranks},
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = r->s->group}};
    uint32_t axis = (uint32_t)r->s->of_value[value].axis, rank = r->graph->values[value].type.rank;
    const char *name = r->graph->values[value].name;
    uint32_t front, all;
    WEFT_RETURN_IF_ERROR(
        wefti_insert_swap(r->graph, value, rank, axis, name, "to_front", WEFTI_WHEN_READY, &front));
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "AllGather",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = &front,
                                        .input_count = 1,
                                        .attrs = attrs,
                                        .attr_count = 2};
    WEFT_RETURN_IF_ERROR(
        wefti_graph_insert_for(r->graph, r->graph->values[value].producer, "gather", params, &all));
    name = r->graph->values[all].name;
    return wefti_insert_swap(r->graph, all, rank, axis, name, "back", r->last, out_value);
}

/* All of a joined tensor: of a cache and the keys of new words, the keys alone travel. */
static weft_status_t join_again(rewriter_t *r, uint32_t value, uint32_t *out_value)
{
    uint32_t id = r->graph->values[value].producer;
    const wefti_node_t *node = &r->graph->nodes[id];
    const wefti_split_t *split = &r->s->of_value[value];
    uint32_t *inputs =
        wefti_arena_memdup(r->s->arena, r->joined[id], node->input_count * sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    for (uint32_t i = 0; i < r->graph->nodes[id].input_count; i++) {
        if (inputs[i] < r->first_new && wefti_is_split(&r->s->of_value[inputs[i]])) {
            WEFT_RETURN_IF_ERROR(wefti_split_gather(r, inputs[i], &inputs[i]));
        }
    }
    node = &r->graph->nodes[id];
    const wefti_node_params_t params = {
        .domain = node->def->domain,
        .op = node->def->name,
        .name = wefti_arena_printf(&r->graph->arena, "%s/whole", node->name),
        .phase = node->phase,
        .inputs = inputs,
        .input_count = node->input_count,
        .output_count = 1,
        .attrs = node->attrs,
        .attr_count = node->attr_count};
    /* Late: one collective can then gather the new keys of all layers (passes/bucket.c). */
    uint32_t after = r->last != WEFTI_NONE ? r->last : WEFTI_WHEN_READY;
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(r->graph, &params, after, &id));
    *out_value = r->graph->nodes[id].outputs[0];
    return wefti_split_remember(r, value, split, *out_value);
}

weft_status_t wefti_split_gather(rewriter_t *r, uint32_t value, uint32_t *out_value)
{
    const wefti_split_t *split = &r->s->of_value[value];
    uint32_t producer = r->graph->values[value].producer;
    *out_value = wefti_split_find_made(r, value, split);
    if (*out_value != WEFTI_NONE) {
        return WEFT_OK;
    }
    if (r->joined[producer] != NULL) {
        return join_again(r, value, out_value);
    }
    if (r->last != WEFTI_NONE && split->axis > 0) {
        WEFT_RETURN_IF_ERROR(gather_late(r, value, out_value));
        return wefti_split_remember(r, value, split, *out_value);
    }
    const weft_attr_t attrs[] = {
        {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = r->s->ranks},
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = r->s->group},
        {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = split->axis}};
    bool first = split->axis == 0;
    const wefti_node_params_t params = {.domain = first ? "weft" : "com.microsoft",
                                        .op = "AllGather",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = &value,
                                        .input_count = 1,
                                        .attrs = attrs,
                                        .attr_count = first ? 2 : 3};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(r->graph, producer, "gather", params, out_value));
    return wefti_split_remember(r, value, split, *out_value);
}
