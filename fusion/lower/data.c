/* SPDX-License-Identifier: Apache-2.0 */
/* The weights section, in the layout of the arena, and the named inputs and outputs of a step. */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

/* Value of every buffer that has contents; the others get WEFTI_NONE. */
static uint32_t *values_of_buffers(wefti_lowering_t *l)
{
    uint32_t *value_of = wefti_arena_array(&l->arena, l->plan->buffer_count, sizeof(*value_of));
    if (value_of == NULL) {
        return NULL;
    }
    memset(value_of, 0xff, l->plan->buffer_count * sizeof(*value_of));
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        wefti_value_kind_t kind = l->graph->values[v].kind;
        if (l->buffers->of[v] != WEFTI_NONE &&
            (kind == WEFTI_VALUE_PARAM || kind == WEFTI_VALUE_CONST)) {
            value_of[l->buffers->of[v]] = v;
        }
    }
    return value_of;
}

/* Contents of value on rank. What passes made is only in the first graph, with contents for every
 * rank or for all. */
static const uint8_t *data_on(const wefti_lowering_t *l, uint32_t value, uint32_t rank)
{
    const wefti_graph_t *graph =
        rank < l->params->rank_graph_count ? l->params->rank_graphs[rank] : NULL;
    const wefti_value_t *found = graph != NULL && value < graph->value_count
                                     ? &graph->values[value]
                                     : &l->graph->values[value];
    const uint8_t *data = found->type.data;
    return data == NULL ? NULL : data + rank * found->rank_bytes;
}

/* Ranks with contents of their own: the others have the same again. */
static uint32_t contents_count(const wefti_lowering_t *l)
{
    uint32_t group = l->params->data_group;
    return group == 0 ? l->params->world_size : l->params->mesh.axes[group - 1].stride;
}

/* Parts of a parameter may be equal at first, but not after a step. */
static bool differs(const wefti_lowering_t *l, uint32_t value)
{
    const wefti_value_t *v = &l->graph->values[value];
    size_t bytes = wefti_value_bytes(v);
    if (v->kind == WEFTI_VALUE_PARAM && v->rank_bytes != 0 && contents_count(l) > 1) {
        return bytes > 0;
    }
    const uint8_t *first = data_on(l, value, 0);
    for (uint32_t rank = 1; l->params->rank_data && rank < contents_count(l); rank++) {
        const uint8_t *data = data_on(l, value, rank);
        if (bytes > 0 && data != first && data != NULL && first != NULL &&
            memcmp(data, first, bytes) != 0) {
            return true;
        }
    }
    return false;
}

/*
 * What all ranks have once, then a block per rank of what differs. Returns the section's size, and
 * the size of a block.
 */
static weft_status_t place_weights(wefti_lowering_t *l, const uint32_t *value_of,
                                   uint64_t *out_bytes, uint64_t *out_block_bytes)
{
    weft_plan_t *plan = l->plan;
    uint64_t bytes = 0, block = 0, blocks;
    bool *own = wefti_arena_array(&l->arena, plan->buffer_count, sizeof(*own));
    WEFT_RETURN_IF_NO_MEMORY(own);
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (value_of[b] == WEFTI_NONE) {
            continue;
        }
        own[b] = differs(l, value_of[b]);
        uint64_t *cursor = own[b] ? &block : &bytes;
        plan->buffers[b].data_offset_bytes = *cursor;
        /* No overflow: the arena holds the same buffers and its size was checked. */
        *cursor += wefti_align_up(plan->buffers[b].size_bytes, WEFTI_PLAN_ALIGNMENT);
    }
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (!own[b]) {
            continue;
        }
        wefti_plan_buffer_t *buffer = &plan->buffers[b];
        const wefti_division_t *parts = &l->graph->values[value_of[b]].parts;
        buffer->data_offset_bytes += bytes;
        buffer->rank_data_stride_bytes = block;
        if (buffer->kind == WEFTI_BUFFER_PARAM && parts->count > 0) {
            buffer->parts = *parts;
            buffer->parts.sizes = wefti_arena_memdup(&plan->arena, parts->sizes,
                                                     parts->count * sizeof(*parts->sizes));
            WEFT_RETURN_IF_NO_MEMORY(buffer->parts.sizes);
        }
    }
    if (__builtin_mul_overflow(block, contents_count(l), &blocks) ||
        __builtin_add_overflow(bytes, blocks, out_bytes) || *out_bytes > INT64_MAX) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "weights of all ranks too large: size in bytes overflows");
    }
    *out_block_bytes = block;
    return WEFT_OK;
}

static weft_status_t copy_weights(const wefti_lowering_t *l, const uint32_t *value_of,
                                  uint32_t rank, uint8_t *section)
{
    for (uint32_t b = 0; b < l->plan->buffer_count; b++) {
        const wefti_plan_buffer_t *buffer = &l->plan->buffers[b];
        if (value_of[b] == WEFTI_NONE || buffer->size_bytes == 0 ||
            (rank > 0 && buffer->rank_data_stride_bytes == 0)) {
            continue;
        }
        const uint8_t *data = data_on(l, value_of[b], rank);
        if (data == NULL) {
            return wefti_error(WEFT_ERR_FORMAT, "tensor '%s': no contents",
                               l->graph->values[value_of[b]].name);
        }
        memcpy(section + buffer->data_offset_bytes + rank * buffer->rank_data_stride_bytes, data,
               buffer->size_bytes);
    }
    return WEFT_OK;
}

static weft_status_t add_weights(wefti_lowering_t *l)
{
    weft_plan_t *plan = l->plan;
    const uint32_t *value_of = values_of_buffers(l);
    uint64_t bytes = 0, block = 0;
    uint8_t *section;
    WEFT_RETURN_IF_NO_MEMORY(value_of);
    WEFT_RETURN_IF_ERROR(place_weights(l, value_of, &bytes, &block));
    /* The one copy of the weights: from the mapped model to where the file is written from. */
    section = wefti_arena_alloc(&plan->arena, bytes + WEFTI_PLAN_ALIGNMENT);
    WEFT_RETURN_IF_NO_MEMORY(section);
    section += wefti_align_up((uintptr_t)section, WEFTI_PLAN_ALIGNMENT) - (uintptr_t)section;
    for (uint32_t rank = 0; rank < (block > 0 ? contents_count(l) : 1); rank++) {
        WEFT_RETURN_IF_ERROR(copy_weights(l, value_of, rank, section));
    }
    plan->weights = section;
    plan->weights_bytes = bytes;
    return WEFT_OK;
}

/* An output that the graph only passes through is made by an Identity, and keeps its name. */
static const char *output_name(const wefti_graph_t *graph, uint32_t value)
{
    const wefti_value_t *v = &graph->values[value];
    const wefti_node_t *node = v->producer == WEFTI_NONE ? NULL : &graph->nodes[v->producer];
    const wefti_value_t *from =
        node != NULL && node->input_count == 1 && node->inputs[0] != WEFTI_NONE
            ? &graph->values[node->inputs[0]]
            : NULL;
    return from != NULL && from->kind != WEFTI_VALUE_NODE && (from->flags & WEFTI_VALUE_OUTPUT) != 0
               ? from->name
               : v->name;
}

static weft_status_t bind(wefti_lowering_t *l, uint32_t value, weft_binding_role_t role)
{
    wefti_plan_binding_t *binding = &l->plan->bindings[l->plan->binding_count];
    if (l->buffers->of[value] == WEFTI_NONE) {
        return WEFT_OK; /* an output that the graph passes through from a constant */
    }
    binding->name = wefti_arena_strdup(&l->plan->arena, role == WEFT_BINDING_ROLE_OUTPUT
                                                            ? output_name(l->graph, value)
                                                            : l->graph->values[value].name);
    binding->role = role;
    binding->buffer = l->buffers->of[value];
    l->plan->binding_count++;
    return binding->name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* Marks what a value is computed from; WEFTI_NONE: nothing. In the arena; NULL: no memory. */
static bool *mark_sources(wefti_lowering_t *l, uint32_t value)
{
    const wefti_graph_t *graph = l->graph;
    bool *marked = wefti_arena_array(&l->arena, (size_t)graph->value_count + 1, sizeof(*marked));
    if (marked == NULL || value == WEFTI_NONE) {
        return marked;
    }
    marked[value] = true;
    for (uint32_t i = graph->order_count; i-- > 0;) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        bool needed = false;
        for (uint32_t k = 0; k < node->output_count; k++) {
            needed = needed || (node->outputs[k] != WEFTI_NONE && marked[node->outputs[k]]);
        }
        for (uint32_t k = 0; needed && k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                marked[node->inputs[k]] = true;
            }
        }
    }
    return marked;
}

/* The input that the labels of the loss are computed from, by Reshape for example, if it is one and
 * the logits do not depend on it; else WEFTI_NONE. */
static weft_status_t find_label(wefti_lowering_t *l, uint32_t *out_input)
{
    const wefti_graph_t *graph = l->graph;
    const bool *of_label = mark_sources(l, graph->label),
               *of_logits = mark_sources(l, graph->logits);
    uint32_t count = 0;
    *out_input = WEFTI_NONE;
    WEFT_RETURN_IF_NO_MEMORY(of_label && of_logits);
    for (uint32_t i = 0; i < graph->input_count; i++) {
        uint32_t input = graph->inputs[i];
        if (of_label[input] && (input == graph->label || !of_logits[input])) {
            *out_input = input;
            count++;
        }
    }
    *out_input = count == 1 ? *out_input : WEFTI_NONE;
    return WEFT_OK;
}

static weft_status_t add_bindings(wefti_lowering_t *l)
{
    uint32_t label;
    const wefti_graph_t *graph = l->graph;
    size_t most = (size_t)graph->value_count + graph->output_count + 2;
    l->plan->bindings = wefti_arena_array(&l->plan->arena, most, sizeof(*l->plan->bindings));
    WEFT_RETURN_IF_NO_MEMORY(l->plan->bindings);
    WEFT_RETURN_IF_ERROR(find_label(l, &label));
    for (uint32_t i = 0; i < graph->input_count; i++) {
        WEFT_RETURN_IF_ERROR(
            bind(l, graph->inputs[i],
                 graph->inputs[i] == label ? WEFT_BINDING_ROLE_LABEL : WEFT_BINDING_ROLE_INPUT));
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_SCALAR) {
            WEFT_RETURN_IF_ERROR(bind(l, v, WEFT_BINDING_ROLE_SCALAR));
        }
    }
    if (graph->loss != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(bind(l, graph->loss, WEFT_BINDING_ROLE_LOSS));
    }
    if (graph->logits != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(bind(l, graph->logits, WEFT_BINDING_ROLE_LOGITS));
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        uint32_t v = graph->outputs[i];
        uint32_t buffer = l->buffers->of[v];
        if (v != graph->loss && v != graph->logits && buffer != WEFTI_NONE &&
            l->plan->buffers[buffer].kind == WEFTI_BUFFER_OUTPUT) {
            WEFT_RETURN_IF_ERROR(bind(l, v, WEFT_BINDING_ROLE_OUTPUT));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_data(wefti_lowering_t *l)
{
    WEFT_RETURN_IF_ERROR(add_weights(l));
    WEFT_RETURN_IF_ERROR(add_bindings(l));
    return WEFT_OK;
}
