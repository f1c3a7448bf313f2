/* SPDX-License-Identifier: Apache-2.0 */
/* Views of a host compiler are checked once, so passes can rely on them. */
#include "fusion/fusion.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#define NONE UINT32_MAX

const char *wefti_view_op_name(const weft_graph_view_t *view, uint32_t op)
{
    return view->ops[op].name != NULL ? view->ops[op].name : "(no name)";
}

bool wefti_view_collective(const weft_view_op_t *op, weft_collective_t *out_collective)
{
    const weft_op_facts_t facts = wefti_op_facts(op->def);
    *out_collective = (weft_collective_t)facts.collective;
    return op->present && (op->effects & WEFT_EFFECT_COMMUNICATES) != 0 && facts.collective != 0 &&
           facts.half == WEFT_HALF_NONE && facts.imported_as == NULL;
}

static weft_status_t check_arrays(const weft_graph_view_t *view)
{
    const char *missing = view->value_count > 0 && view->values == NULL  ? "values"
                          : view->op_count > 0 && view->ops == NULL      ? "ops"
                          : view->order_count > 0 && view->order == NULL ? "order"
                          : view->edge_count > 0 && view->edges == NULL  ? "edges"
                                                                         : NULL;
    if (missing != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: %s is NULL", missing);
    }
    if (view->value_count == NONE || view->op_count == NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: too many ops or values");
    }
    return WEFT_OK;
}

/* Every op that is there stands in the order once. */
static weft_status_t check_order(const weft_graph_view_t *view, uint32_t *position)
{
    uint32_t present = 0;
    for (uint32_t i = 0; i < view->op_count; i++) {
        const weft_view_op_t *op = &view->ops[i];
        position[i] = NONE;
        present += op->present != 0;
        if (op->present && (op->def == NULL || op->def->domain == NULL || op->def->name == NULL)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: op %u (%s): missing definition", i,
                               wefti_view_op_name(view, i));
        }
        if (op->present && ((op->input_count > 0 && view->op_inputs == NULL) ||
                            (op->output_count > 0 && view->op_outputs == NULL))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: op_inputs or op_outputs is NULL");
        }
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i];
        if (id >= view->op_count || !view->ops[id].present || position[id] != NONE) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: order[%u]: op %u %s", i, id,
                               id >= view->op_count     ? "does not exist"
                               : !view->ops[id].present ? "was removed"
                                                        : "is a duplicate");
        }
        position[id] = i;
    }
    return present == view->order_count ? WEFT_OK
                                        : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                                      "view: order does not have all ops: %u of %u",
                                                      view->order_count, present);
}

static weft_status_t check_outputs(const weft_graph_view_t *view, uint32_t id, bool *made)
{
    const weft_view_op_t *op = &view->ops[id];
    for (uint32_t k = 0; k < op->output_count; k++) {
        uint32_t value = view->op_outputs[op->first_output + k];
        if (value == NONE) {
            continue;
        }
        if (value >= view->value_count || view->values[value].producer != id || made[value]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: output %u of %s: value %u %s", k,
                               wefti_view_op_name(view, id), value,
                               value >= view->value_count ? "does not exist"
                               : made[value]              ? "is already an output"
                                                          : "has another producer");
        }
        made[value] = true;
    }
    return WEFT_OK;
}

static weft_status_t check_inputs(const weft_graph_view_t *view, uint32_t id,
                                  const uint32_t *position)
{
    const weft_view_op_t *op = &view->ops[id];
    for (uint32_t k = 0; k < op->input_count; k++) {
        uint32_t value = view->op_inputs[op->first_input + k];
        if (value == NONE) {
            continue;
        }
        if (value >= view->value_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "view: input %u of %s: value %u does not exist", k,
                               wefti_view_op_name(view, id), value);
        }
        uint32_t producer = view->values[value].producer;
        if (producer != NONE && position[producer] >= position[id]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "view: %s runs before %s, which produces its input %u",
                               wefti_view_op_name(view, id), wefti_view_op_name(view, producer), k);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_values(const weft_graph_view_t *view, const bool *made)
{
    for (uint32_t i = 0; i < view->value_count; i++) {
        const weft_view_value_t *value = &view->values[i];
        if (value->producer != NONE && !made[i] &&
            (value->producer >= view->op_count || view->ops[value->producer].present)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "view: value %u: its producer op %u does not output it", i,
                               value->producer);
        }
        if (value->grad_of == NONE) {
            continue;
        }
        if (value->grad_of >= view->value_count || value->name == NULL ||
            view->values[value->grad_of].name == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "view: value %u: gradient of value %u, which %s", i, value->grad_of,
                               value->grad_of >= view->value_count
                                   ? "does not exist"
                                   : "has no name, or the gradient has no name");
        }
        if (value->bytes > UINT64_MAX / 4) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: %s: too large: %llu bytes",
                               value->name, (unsigned long long)value->bytes);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_edges(const weft_graph_view_t *view, const uint32_t *position)
{
    for (size_t i = 0; i < view->edge_count; i++) {
        uint32_t from = view->edges[2 * i], to = view->edges[2 * i + 1];
        if (from >= view->op_count || to >= view->op_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "view: edge %zu: from op %u to op %u, but there are %u ops", i, from,
                               to, view->op_count);
        }
        if (position[from] != NONE && position[to] != NONE && position[from] >= position[to]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "view: edge %zu: from %s to %s, which runs first", i,
                               wefti_view_op_name(view, from), wefti_view_op_name(view, to));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_view_read(const weft_graph_view_t **in_view, wefti_arena_t *arena,
                              uint32_t **out_position)
{
    weft_graph_view_t *view = wefti_arena_array(arena, 1, sizeof *view);
    WEFT_RETURN_IF_NO_MEMORY(view);
    *view = (weft_graph_view_t)WEFT_GRAPH_VIEW_INIT;
    WEFT_RETURN_IF_ERROR(wefti_params_read("view", *in_view, view, sizeof *view));
    *in_view = view;
    WEFT_RETURN_IF_ERROR(check_arrays(view));
    uint32_t *position = wefti_arena_array(arena, view->op_count, sizeof *position);
    bool *made = wefti_arena_array(arena, view->value_count, sizeof *made);
    WEFT_RETURN_IF_NO_MEMORY(position && made);
    WEFT_RETURN_IF_ERROR(check_order(view, position));
    for (uint32_t i = 0; i < view->order_count; i++) {
        WEFT_RETURN_IF_ERROR(check_outputs(view, view->order[i], made));
    }
    WEFT_RETURN_IF_ERROR(check_values(view, made));
    for (uint32_t i = 0; i < view->order_count; i++) {
        WEFT_RETURN_IF_ERROR(check_inputs(view, view->order[i], position));
    }
    WEFT_RETURN_IF_ERROR(check_edges(view, position));
    if (out_position != NULL) {
        *out_position = position;
    }
    return WEFT_OK;
}
