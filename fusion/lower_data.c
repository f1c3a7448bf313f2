/* SPDX-License-Identifier: Apache-2.0 */
/* The weights section, as the arena will hold it, and what goes into and comes out of a step by
 * name. */
#include <string.h>

#include "fusion/lower.h"
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
        if (l->buffer_of[v] != WEFTI_NONE &&
            (kind == WEFTI_VALUE_PARAM || kind == WEFTI_VALUE_CONST)) {
            value_of[l->buffer_of[v]] = v;
        }
    }
    return value_of;
}

static weft_status_t add_weights(wefti_lowering_t *l)
{
    weft_plan_t *plan = l->plan;
    const uint32_t *value_of = values_of_buffers(l);
    uint64_t bytes = 0;
    uint8_t *section;
    if (value_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (value_of[b] != WEFTI_NONE) {
            plan->buffers[b].data_offset_bytes = bytes;
            /* No overflow: the arena holds the same buffers and its size was checked. */
            bytes += wefti_align_up(plan->buffers[b].size_bytes, WEFTI_PLAN_ALIGNMENT);
        }
    }
    /* The one copy of the weights: from the mapped model to where the file is written from. */
    section = wefti_arena_alloc(&plan->arena, bytes + WEFTI_PLAN_ALIGNMENT);
    if (section == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    section += wefti_align_up((uintptr_t)section, WEFTI_PLAN_ALIGNMENT) - (uintptr_t)section;
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        const wefti_value_t *value =
            value_of[b] == WEFTI_NONE ? NULL : &l->graph->values[value_of[b]];
        if (value == NULL || plan->buffers[b].size_bytes == 0) {
            continue;
        }
        if (value->type.data == NULL) {
            return wefti_error(WEFT_ERR_FORMAT, "%s has no contents", value->name);
        }
        memcpy(section + plan->buffers[b].data_offset_bytes, value->type.data,
               plan->buffers[b].size_bytes);
    }
    plan->weights = section;
    plan->weights_bytes = bytes;
    return WEFT_OK;
}

static weft_status_t bind(wefti_lowering_t *l, uint32_t value, weft_binding_role_t role)
{
    wefti_plan_binding_t *binding = &l->plan->bindings[l->plan->binding_count];
    if (l->buffer_of[value] == WEFTI_NONE) {
        return WEFT_OK; /* an output that the graph passes through from a constant */
    }
    binding->name = wefti_arena_strdup(&l->plan->arena, l->graph->values[value].name);
    binding->role = role;
    binding->buffer = l->buffer_of[value];
    l->plan->binding_count++;
    return binding->name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t add_bindings(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = l->graph;
    size_t most = (size_t)graph->value_count + graph->output_count + 2;
    l->plan->bindings = wefti_arena_array(&l->plan->arena, most, sizeof(*l->plan->bindings));
    if (l->plan->bindings == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < graph->input_count; i++) {
        WEFT_TRY(status,
                 bind(l, graph->inputs[i],
                      graph->inputs[i] == graph->label ? WEFT_ROLE_LABEL : WEFT_ROLE_INPUT),
                 fail);
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_SCALAR) {
            WEFT_TRY(status, bind(l, v, WEFT_ROLE_SCALAR), fail);
        }
    }
    if (graph->loss != WEFTI_NONE) {
        WEFT_TRY(status, bind(l, graph->loss, WEFT_ROLE_LOSS), fail);
    }
    if (graph->logits != WEFTI_NONE) {
        WEFT_TRY(status, bind(l, graph->logits, WEFT_ROLE_LOGITS), fail);
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        uint32_t v = graph->outputs[i];
        uint32_t buffer = l->buffer_of[v];
        if (v != graph->loss && v != graph->logits && buffer != WEFTI_NONE &&
            l->plan->buffers[buffer].kind == WEFTI_BUFFER_OUTPUT) {
            WEFT_TRY(status, bind(l, v, WEFT_ROLE_OUTPUT), fail);
        }
    }
fail:
    return status;
}

weft_status_t wefti_lower_data(wefti_lowering_t *l)
{
    weft_status_t status;
    WEFT_TRY(status, add_weights(l), fail);
    WEFT_TRY(status, add_bindings(l), fail);
fail:
    return status;
}
