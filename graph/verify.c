/* SPDX-License-Identifier: Apache-2.0 */
/* Every invariant of graph/ir.h, checked from the arrays alone. */
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

#define BROKEN(...) wefti_error(WEFT_ERR_INVALID_ARGUMENT, __VA_ARGS__)

static weft_status_t check_type(const wefti_value_t *value)
{
    if (value->type.dtype > WEFT_DTYPE_BOOL) {
        return BROKEN("value '%s': unknown type %d", value->name, (int)value->type.dtype);
    }
    if (value->type.rank > WEFT_MAX_DIMS) {
        return BROKEN("value '%s': too many dimensions: %u, limit %d", value->name,
                      value->type.rank, WEFT_MAX_DIMS);
    }
    for (uint32_t i = 0; i < value->type.rank; i++) {
        if (value->type.dims[i] < -1) {
            return BROKEN("value '%s': dimension %u is negative: %lld", value->name, i,
                          (long long)value->type.dims[i]);
        }
    }
    if (value->type.layout == WEFT_LAYOUT_CHANNELS_LAST && value->type.rank != 4) {
        return BROKEN("value '%s': channels-last layout requires 4 dimensions, got %u", value->name,
                      value->type.rank);
    }
    return WEFT_OK;
}

static bool same_type(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->layout == b->layout &&
           memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

static weft_status_t check_alias(const wefti_graph_t *graph, const wefti_value_t *value)
{
    const wefti_value_t *of =
        value->alias_of < graph->value_count ? &graph->values[value->alias_of] : NULL;
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    if (of == NULL || of->kind != WEFTI_VALUE_NODE || value->kind != WEFTI_VALUE_NODE ||
        of->alias_of != WEFTI_NONE) {
        return BROKEN("alias '%s': not an alias of the output of another node", value->name);
    }
    if (!same_type(&value->type, &of->type)) {
        return BROKEN("alias '%s': type does not match value '%s': %s and %s", value->name,
                      of->name, wefti_type_text(&value->type, texts[0]),
                      wefti_type_text(&of->type, texts[1]));
    }
    return WEFT_OK;
}

static weft_status_t check_links(const wefti_graph_t *graph, uint32_t id)
{
    const wefti_value_t *value = &graph->values[id];
    if (wefti_graph_find_value(graph, value->name) != id) {
        return BROKEN("value '%s': missing from the name index", value->name);
    }
    if (value->kind != WEFTI_VALUE_NODE && value->producer != WEFTI_NONE) {
        return BROKEN("value '%s': has a producer, but is not the output of a node", value->name);
    }
    if (value->kind == WEFTI_VALUE_NODE) {
        if (value->producer >= graph->node_count) {
            return BROKEN("value '%s': missing producer", value->name);
        }
        const wefti_node_t *node = &graph->nodes[value->producer];
        if (!node->dead && (value->producer_output >= node->output_count ||
                            node->outputs[value->producer_output] != id)) {
            return BROKEN("value '%s': not output %u of its producer '%s'", value->name,
                          value->producer_output, node->name);
        }
    }
    if (value->kind == WEFTI_VALUE_CONST && !value->type.data && wefti_value_bytes(value)) {
        return BROKEN("constant '%s': no contents", value->name);
    }
    if (value->alias_of != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(check_alias(graph, value));
    }
    if (value->kind == WEFTI_VALUE_STATE &&
        (value->state_of >= graph->value_count ||
         graph->values[value->state_of].kind != WEFTI_VALUE_PARAM)) {
        return BROKEN("state '%s': missing parameter", value->name);
    }
    return WEFT_OK;
}

static weft_status_t check_gradient(const wefti_graph_t *graph, uint32_t id, uint8_t *has_gradient)
{
    const wefti_value_t *value = &graph->values[id];
    if (value->grad_of == WEFTI_NONE) {
        return WEFT_OK;
    }
    if (value->grad_of >= graph->value_count ||
        graph->values[value->grad_of].kind != WEFTI_VALUE_PARAM) {
        return BROKEN("gradient '%s': missing parameter", value->name);
    }
    const wefti_value_t *param = &graph->values[value->grad_of];
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    if (has_gradient[value->grad_of]++) {
        return BROKEN("parameter '%s': duplicate gradient '%s'", param->name, value->name);
    }
    bool rounded = value->type.dtype == WEFT_DTYPE_BF16 && param->type.dtype == WEFT_DTYPE_F32;
    if (value->type.dtype != WEFT_DTYPE_NONE &&
        ((value->type.dtype != param->type.dtype && !rounded) ||
         value->type.rank != param->type.rank ||
         memcmp(value->type.dims, param->type.dims, param->type.rank * sizeof(int64_t)) != 0)) {
        return BROKEN(
            "gradient '%s': type or shape does not match parameter '%s': %s, parameter %s",
            value->name, param->name, wefti_type_text(&value->type, texts[0]),
            wefti_type_text(&param->type, texts[1]));
    }
    return WEFT_OK;
}

static weft_status_t check_values(const wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    uint8_t *has_gradient = wefti_alloc(graph->arena.allocator, (size_t)graph->value_count + 1);
    WEFT_RETURN_IF_NO_MEMORY(has_gradient);
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (!graph->values[i].name) {
            status = BROKEN("value %u: missing name", i);
            goto done;
        }
        WEFT_TRY(status, check_type(&graph->values[i]), done);
        WEFT_TRY(status, check_links(graph, i), done);
        WEFT_TRY(status, check_gradient(graph, i, has_gradient), done);
    }
done:
    wefti_free(graph->arena.allocator, has_gradient);
    return status;
}

/* place[id]: one more than its position in order[], 0 when it is not there. */
static weft_status_t check_node(const wefti_graph_t *graph, uint32_t id, const uint32_t *place)
{
    const wefti_node_t *node = &graph->nodes[id];
    const weft_op_def_t *def = node->def;
    if (!def || !node->name) {
        return BROKEN("node %u: missing name or operator", id);
    }
    if (node->dead != (place[id] == 0)) {
        return BROKEN("node '%s': %s", node->name,
                      node->dead ? "removed, but in the order" : "missing from the order");
    }
    if (node->dead) {
        return WEFT_OK;
    }
    if (node->input_count < def->inputs_min ||
        (def->inputs_max != WEFT_VARIADIC && node->input_count > def->inputs_max) ||
        node->output_count < def->outputs_min ||
        (def->outputs_max != WEFT_VARIADIC && node->output_count > def->outputs_max)) {
        return BROKEN("node '%s' (%s): wrong number of inputs or outputs: %u inputs, %u outputs",
                      node->name, def->name, node->input_count, node->output_count);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        uint32_t value = node->outputs[i];
        if (value != WEFTI_NONE &&
            (value >= graph->value_count || graph->values[value].producer != id ||
             graph->values[value].producer_output != i)) {
            return BROKEN("node '%s': output %u does not belong to it", node->name, i);
        }
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t value = node->inputs[i];
        if (value == WEFTI_NONE) { /* shape rules check which inputs are required */
            continue;
        }
        if (value >= graph->value_count) {
            return BROKEN("node '%s': input %u does not exist", node->name, i);
        }
        uint32_t producer = graph->values[value].producer;
        if (producer != WEFTI_NONE &&
            (graph->nodes[producer].dead || place[producer] >= place[id])) {
            return BROKEN("node '%s': reads '%s' before its producer runs", node->name,
                          graph->values[value].name);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_edges(const wefti_graph_t *graph, const uint32_t *place)
{
    wefti_constraint_t *edges = NULL;
    size_t count = 0;
    weft_status_t status = wefti_graph_order_edges(graph, &edges, &count);
    for (size_t i = 0; status == WEFT_OK && i < count; i++) {
        if (place[edges[i].before] >= place[edges[i].after]) {
            status = BROKEN("node '%s' must run before '%s'", graph->nodes[edges[i].before].name,
                            graph->nodes[edges[i].after].name);
        }
    }
    wefti_free(graph->arena.allocator, edges);
    return status;
}

/* A node of a program: its inputs are persistent, or outputs of nodes before it. made[value]: the
 * last program, counted from 1, with its producer. */
static weft_status_t check_program_node(const wefti_graph_t *graph, uint32_t program, uint32_t id,
                                        uint32_t *made)
{
    const wefti_node_t *node = &graph->nodes[id];
    for (uint32_t i = 0; i < node->input_count; i++) {
        const wefti_value_t *value =
            node->inputs[i] == WEFTI_NONE ? NULL : &graph->values[node->inputs[i]];
        if (value != NULL && value->producer != WEFTI_NONE &&
            (value->flags & WEFTI_VALUE_PERSISTENT) == 0 && made[node->inputs[i]] != program + 1) {
            return BROKEN(
                "program '%s': node '%s' reads '%s', which no earlier node of it produces",
                graph->programs[program].name, node->name, value->name);
        }
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        uint32_t value = node->outputs[i];
        if (value != WEFTI_NONE) {
            uint32_t alias_of = graph->values[value].alias_of;
            made[alias_of != WEFTI_NONE ? alias_of : value] = program + 1;
        }
    }
    return WEFT_OK;
}

static weft_status_t check_programs(const wefti_graph_t *graph, const uint32_t *place)
{
    weft_status_t status = WEFT_OK;
    uint32_t *made =
        wefti_alloc(graph->arena.allocator, ((size_t)graph->value_count + 1) * sizeof(*made));
    bool *listed = wefti_alloc(graph->arena.allocator, (size_t)graph->node_count + 1);
    if (!made || !listed) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    for (uint32_t p = 0; p < graph->program_count; p++) {
        const wefti_program_t *program = &graph->programs[p];
        for (uint32_t i = 0; i < program->node_count; i++) {
            uint32_t id = program->nodes[i];
            if (id >= graph->node_count || place[id] == 0 ||
                (i > 0 && place[id] <= place[program->nodes[i - 1]])) {
                status =
                    BROKEN("program '%s': node %u is not a live node in the order of the graph",
                           program->name, id);
                goto done;
            }
            WEFT_TRY(status, check_program_node(graph, p, id, made), done);
            listed[id] = true;
        }
    }
    bool complete = wefti_graph_find_program(graph, "step") != NULL; /* else passes add more */
    for (uint32_t i = 0; complete && i < graph->order_count; i++) {
        if (!listed[graph->order[i]]) {
            status = BROKEN("node '%s': in no program", graph->nodes[graph->order[i]].name);
            goto done;
        }
    }
done:
    wefti_free(graph->arena.allocator, listed);
    wefti_free(graph->arena.allocator, made);
    return status;
}

static weft_status_t check_nodes(const wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    uint32_t *place =
        wefti_alloc(graph->arena.allocator, ((size_t)graph->node_count + 1) * sizeof(*place));
    WEFT_RETURN_IF_NO_MEMORY(place);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (id >= graph->node_count || place[id]) {
            status = BROKEN("order[%u]: node %u does not exist or is a duplicate", i, id);
            goto done;
        }
        place[id] = i + 1;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        WEFT_TRY(status, check_node(graph, i, place), done);
    }
    WEFT_TRY(status, check_edges(graph, place), done);
    WEFT_TRY(status, check_programs(graph, place), done);
done:
    wefti_free(graph->arena.allocator, place);
    return status;
}

static weft_status_t check_ids(const wefti_graph_t *graph, const char *what, const uint32_t *ids,
                               uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] >= graph->value_count) {
            return BROKEN("%s %u: value %u does not exist", what, i, ids[i]);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_marked(const wefti_graph_t *graph, const char *what, uint32_t id,
                                  wefti_value_flags_t flag)
{
    if (id != WEFTI_NONE && (id >= graph->value_count || !(graph->values[id].flags & flag))) {
        return BROKEN("%s: value %u does not exist or has no such mark", what, id);
    }
    return WEFT_OK;
}

weft_status_t wefti_graph_verify(const wefti_graph_t *graph)
{
    WEFT_RETURN_IF_ERROR(check_values(graph));
    WEFT_RETURN_IF_ERROR(check_nodes(graph));
    WEFT_RETURN_IF_ERROR(check_ids(graph, "input", graph->inputs, graph->input_count));
    WEFT_RETURN_IF_ERROR(check_ids(graph, "output", graph->outputs, graph->output_count));
    WEFT_RETURN_IF_ERROR(check_marked(graph, "loss", graph->loss, WEFTI_VALUE_LOSS));
    WEFT_RETURN_IF_ERROR(check_marked(graph, "logits", graph->logits, WEFTI_VALUE_LOGITS));
    return check_marked(graph, "label", graph->label, WEFTI_VALUE_LABEL);
}
