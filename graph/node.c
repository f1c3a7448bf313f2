/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of the IR: adding, changing, attributes, types of their outputs. */
#include <stdio.h>
#include <string.h>

#include <weft/types.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define MAX_NAME_SHOWN 200

static weft_status_t copy_strings(wefti_arena_t *arena, const weft_attr_t *from, weft_attr_t *to)
{
    const char **strings = wefti_arena_array(arena, from->count, sizeof(*strings));
    WEFT_RETURN_IF_NO_MEMORY(strings);
    for (size_t i = 0; i < from->count; i++) {
        strings[i] = wefti_arena_strdup(arena, from->strings[i] ? from->strings[i] : "");
        WEFT_RETURN_IF_NO_MEMORY(strings[i]);
    }
    to->strings = strings;
    return WEFT_OK;
}

static const void *copy_array(wefti_arena_t *arena, const void *data, size_t count,
                              size_t elem_bytes)
{
    void *copy = wefti_arena_array(arena, count, elem_bytes);
    if (copy && count) {
        memcpy(copy, data, count * elem_bytes);
    }
    return copy;
}

static weft_status_t copy_attr(wefti_arena_t *arena, const weft_attr_t *from, weft_attr_t *to)
{
    memset(to, 0, sizeof(*to));
    to->name = wefti_arena_strdup(arena, from->name);
    to->type = from->type;
    to->i = from->i;
    to->f = from->f;
    to->count = from->count;
    const void *copy = to->name;
    switch (from->type) {
    case WEFT_ATTR_TYPE_STRING:
        to->s = wefti_arena_strdup(arena, from->s ? from->s : "");
        copy = to->s;
        break;
    case WEFT_ATTR_TYPE_INTS:
        copy = to->ints = copy_array(arena, from->ints, from->count, sizeof(int64_t));
        break;
    case WEFT_ATTR_TYPE_FLOATS:
        copy = to->floats = copy_array(arena, from->floats, from->count, sizeof(float));
        break;
    case WEFT_ATTR_TYPE_STRINGS:
        return to->name ? copy_strings(arena, from, to) : WEFT_ERR_NO_MEMORY;
    case WEFT_ATTR_TYPE_TENSOR:
        copy = to->tensor = copy_array(arena, from->tensor, 1, sizeof(*from->tensor));
        break;
    case WEFT_ATTR_TYPE_INT:
    case WEFT_ATTR_TYPE_FLOAT:
        break;
    }
    return to->name && copy ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t find_def(const wefti_graph_t *graph, const char *domain, const char *op,
                              int32_t version, const weft_op_def_t **out_def)
{
    *out_def =
        weft_registry_find_op(graph->registry, domain, op, version > 0 ? version : INT32_MAX);
    if (!*out_def) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "unknown operator %s%s%s%s", domain,
                           *domain ? "::" : "", op, version > 0 ? " of this version" : "");
    }
    return WEFT_OK;
}

static weft_status_t wrong_count(const weft_op_def_t *def, const char *name, uint32_t count,
                                 const char *what, uint32_t least, uint32_t most)
{
    char takes[32];
    if (most == WEFT_VARIADIC) {
        snprintf(takes, sizeof(takes), "at least %u", least);
    } else if (least == most) {
        snprintf(takes, sizeof(takes), "%u", least);
    } else {
        snprintf(takes, sizeof(takes), "%u to %u", least, most);
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "node '%s' (%s): wrong number of %s: %u, expected %s", name, def->name, what,
                       count, takes);
}

static weft_status_t check_counts(const weft_op_def_t *def, const char *name, uint32_t input_count,
                                  uint32_t output_count)
{
    if (input_count < def->inputs_min ||
        (def->inputs_max != WEFT_VARIADIC && input_count > def->inputs_max)) {
        return wrong_count(def, name, input_count, "inputs", def->inputs_min, def->inputs_max);
    }
    if (output_count < def->outputs_min ||
        (def->outputs_max != WEFT_VARIADIC && output_count > def->outputs_max)) {
        return wrong_count(def, name, output_count, "outputs", def->outputs_min, def->outputs_max);
    }
    return WEFT_OK;
}

static uint8_t arity(uint32_t count)
{
    return count < WEFT_VARIADIC ? (uint8_t)count : WEFT_VARIADIC;
}

weft_status_t wefti_graph_define_opaque(wefti_graph_t *graph, const char *domain, const char *op,
                                        int32_t version, uint32_t input_count,
                                        const weft_output_rule_t *rules, uint32_t output_count,
                                        const weft_op_def_t **out_def)
{
    weft_op_def_t *def = wefti_arena_alloc(&graph->arena, sizeof(*def));
    weft_op_rules_t *types = wefti_arena_alloc(&graph->arena, sizeof(*types));
    const char *names[] = {wefti_arena_strdup(&graph->arena, domain),
                           wefti_arena_strdup(&graph->arena, op)};
    WEFT_RETURN_IF_NO_MEMORY(def && types && names[0] && names[1]);
    *types = (weft_op_rules_t){.outputs = rules, .output_count = output_count};
    *def = (weft_op_def_t){.domain = names[0],
                           .name = names[1],
                           .since_version = version,
                           .inputs_max = arity(input_count),
                           .outputs_max = arity(output_count),
                           .dtypes = WEFTI_BIT_ALL,
                           .effects = WEFT_EFFECT_UNKNOWN,
                           .in_place = WEFTI_IN_PLACE_NONE,
                           .doc = "not declared",
                           .rules = types};
    *out_def = def;
    return WEFT_OK;
}

/* Fills everything of a node but its outputs; the node is not yet part of the graph. */
static weft_status_t fill_node(wefti_graph_t *graph, const wefti_node_params_t *params,
                               const weft_op_def_t *def, uint32_t id, wefti_node_t *node)
{
    char made_up[MAX_NAME_SHOWN];
    const char *name = params->name;
    if (!name || !*name) {
        snprintf(made_up, sizeof(made_up), "%s_%u", def->name, id);
        name = made_up;
    }
    WEFT_RETURN_IF_ERROR(check_counts(def, name, params->input_count, params->output_count));
    for (uint32_t i = 0; i < params->input_count; i++) {
        if (params->inputs[i] != WEFTI_NONE && params->inputs[i] >= graph->value_count) {
            return wefti_error(WEFT_ERR_INTERNAL, "node '%s': input value %u does not exist", name,
                               params->inputs[i]);
        }
    }
    *node = (wefti_node_t){.def = def,
                           .version = params->version > 0 ? params->version : def->since_version,
                           .phase = params->phase,
                           .replaced_by = WEFTI_NONE,
                           .after = WEFTI_NONE,
                           .input_count = params->input_count,
                           .output_count = params->output_count,
                           .attr_count = params->attr_count};
    node->inputs = (uint32_t *)copy_array(&graph->arena, params->inputs, params->input_count,
                                          sizeof(uint32_t));
    node->outputs = wefti_arena_array(&graph->arena, params->output_count, sizeof(uint32_t));
    node->attrs = wefti_arena_array(&graph->arena, params->attr_count, sizeof(*node->attrs));
    WEFT_RETURN_IF_NO_MEMORY(node->inputs && node->outputs && node->attrs);
    for (uint32_t i = 0; i < params->attr_count; i++) {
        WEFT_RETURN_IF_ERROR(copy_attr(&graph->arena, &params->attrs[i], &node->attrs[i]));
    }
    return wefti_name_index_add(&graph->node_names, &graph->arena, name, id, &node->name);
}

/* Creates output index of node as a value of unknown type. */
static weft_status_t add_output_value(wefti_graph_t *graph, uint32_t node, uint32_t index,
                                      const char *wanted)
{
    char made_up[MAX_NAME_SHOWN];
    const char *name = wanted;
    if (!name || !*name) {
        snprintf(made_up, sizeof(made_up), index ? "%s_%u" : "%s", graph->nodes[node].name, index);
        name = made_up;
    }
    uint32_t value;
    weft_status_t status = wefti_graph_add_value(graph, name, WEFTI_VALUE_NODE, NULL, &value);
    if (status >= 0) {
        graph->values[value].producer = node;
        graph->values[value].producer_output = index;
        graph->nodes[node].outputs[index] = value;
    }
    return status;
}

weft_status_t wefti_graph_add_node(wefti_graph_t *graph, const wefti_node_params_t *params,
                                   uint32_t *out_node)
{
    const weft_op_def_t *def;
    const weft_allocator_t *allocator = graph->arena.allocator;
    uint32_t id = graph->node_count;
    WEFT_RETURN_IF_NO_MEMORY(!graph->arena.failed);
    def = params->def;
    if (!def) {
        WEFT_RETURN_IF_ERROR(find_def(graph, params->domain ? params->domain : "", params->op,
                                      params->version, &def));
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &graph->nodes, &graph->node_capacity,
                                             (size_t)id + 1, sizeof(*graph->nodes)));
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &graph->order, &graph->order_capacity,
                                             (size_t)graph->order_count + 1,
                                             sizeof(*graph->order)));
    WEFT_RETURN_IF_ERROR(fill_node(graph, params, def, id, &graph->nodes[id]));
    graph->node_count++;
    for (uint32_t i = 0; i < params->output_count; i++) {
        graph->nodes[id].outputs[i] = WEFTI_NONE;
        if (!params->output_absent || !params->output_absent[i]) {
            const char *wanted = params->output_names ? params->output_names[i] : NULL;
            WEFT_RETURN_IF_ERROR(add_output_value(graph, id, i, wanted));
        }
    }
    graph->order[graph->order_count++] = id;
    if (!graph->defer_inference) {
        WEFT_RETURN_IF_ERROR(wefti_graph_infer_node(graph, id));
    }
    *out_node = id;
    return WEFT_OK;
}

weft_status_t wefti_graph_insert_node(wefti_graph_t *graph, const wefti_node_params_t *params,
                                      uint32_t after, uint32_t *out_node)
{
    weft_status_t status = wefti_graph_add_node(graph, params, out_node);
    if (status >= 0) {
        graph->nodes[*out_node].after = after;
    }
    return status;
}

weft_status_t wefti_graph_change_op(wefti_graph_t *graph, uint32_t node, const char *domain,
                                    const char *op, uint32_t extra_outputs)
{
    const weft_op_def_t *def;
    uint32_t old_count = graph->nodes[node].output_count;
    int32_t version = graph->nodes[node].version;
    WEFT_RETURN_IF_ERROR(find_def(graph, domain, op, 0, &def));
    bool same_op = wefti_op_same(def, graph->nodes[node].def);
    WEFT_RETURN_IF_ERROR(find_def(graph, domain, op, same_op ? version : 0, &def));
    WEFT_RETURN_IF_ERROR(check_counts(def, graph->nodes[node].name, graph->nodes[node].input_count,
                                      old_count + extra_outputs));
    uint32_t *outputs =
        wefti_arena_array(&graph->arena, (size_t)old_count + extra_outputs, sizeof(*outputs));
    WEFT_RETURN_IF_NO_MEMORY(outputs);
    memcpy(outputs, graph->nodes[node].outputs, old_count * sizeof(*outputs));
    graph->nodes[node].outputs = outputs;
    graph->nodes[node].def = def;
    graph->nodes[node].version = same_op ? version : def->since_version;
    for (uint32_t i = 0; i < extra_outputs; i++) {
        WEFT_RETURN_IF_ERROR(add_output_value(graph, node, old_count + i, NULL));
        graph->nodes[node].output_count++;
    }
    return wefti_graph_infer_node(graph, node);
}

weft_status_t wefti_graph_set_attr(wefti_graph_t *graph, uint32_t node, const weft_attr_t *attr)
{
    wefti_node_t *at = &graph->nodes[node];
    for (uint32_t i = 0; i < at->attr_count; i++) {
        if (strcmp(at->attrs[i].name, attr->name) == 0) {
            return copy_attr(&graph->arena, attr, &at->attrs[i]);
        }
    }
    weft_attr_t *attrs =
        wefti_arena_array(&graph->arena, (size_t)at->attr_count + 1, sizeof(*attrs));
    WEFT_RETURN_IF_NO_MEMORY(attrs);
    if (at->attr_count) {
        memcpy(attrs, at->attrs, at->attr_count * sizeof(*attrs));
    }
    weft_status_t status = copy_attr(&graph->arena, attr, &attrs[at->attr_count]);
    if (status >= 0) {
        at->attrs = attrs;
        at->attr_count++;
    }
    return status;
}

const weft_attr_t *wefti_node_attr(const wefti_node_t *node, const char *name)
{
    for (uint32_t i = 0; i < node->attr_count; i++) {
        if (strcmp(node->attrs[i].name, name) == 0) {
            return &node->attrs[i];
        }
    }
    return NULL;
}

/* The attribute, or its definition where the node does not have it with that type. */
static const weft_attr_t *typed_attr(const wefti_node_t *node, const char *name,
                                     weft_attr_type_t type, const weft_attr_def_t **out_def)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    *out_def = NULL;
    for (size_t i = 0; i < node->def->attr_count; i++) {
        if (strcmp(node->def->attrs[i].name, name) == 0 && node->def->attrs[i].type == type) {
            *out_def = &node->def->attrs[i];
        }
    }
    return attr != NULL && attr->type == type ? attr : NULL;
}

int64_t wefti_node_int(const wefti_node_t *node, const char *name)
{
    const weft_attr_def_t *def;
    const weft_attr_t *attr = typed_attr(node, name, WEFT_ATTR_TYPE_INT, &def);
    return attr != NULL ? attr->i : def != NULL ? def->default_i : 0;
}

float wefti_node_float(const wefti_node_t *node, const char *name)
{
    const weft_attr_def_t *def;
    const weft_attr_t *attr = typed_attr(node, name, WEFT_ATTR_TYPE_FLOAT, &def);
    return attr != NULL ? attr->f : def != NULL ? def->default_f : 0;
}

const char *wefti_node_text(const wefti_node_t *node, const char *name)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    return attr != NULL && attr->type == WEFT_ATTR_TYPE_STRING && attr->s != NULL ? attr->s : "";
}

weft_range_role_t wefti_node_range(const wefti_node_t *node)
{
    return wefti_op_facts(node->def).range;
}

static bool is_flat(const wefti_node_t *node, weft_collective_t op)
{
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    return facts.collective == (uint32_t)op && facts.half == WEFT_HALF_NONE &&
           wefti_node_int(node, "flat") > 0;
}

bool wefti_node_is_flat_scatter(const wefti_node_t *node)
{
    return is_flat(node, WEFT_COLLECTIVE_REDUCE_SCATTER);
}

bool wefti_node_is_flat_gather(const wefti_node_t *node)
{
    return is_flat(node, WEFT_COLLECTIVE_ALL_GATHER);
}

bool wefti_node_is_view(const wefti_graph_t *graph, const wefti_node_t *node)
{
    /* Of ai.onnx: who loads the plan and verifies it may not know other operators. */
    if (node->def->domain[0] != '\0' || !wefti_op_has(node->def, WEFT_FACT_VIEW) ||
        node->def->in_place[0] != 0 || node->input_count == 0 || node->inputs[0] == WEFTI_NONE ||
        node->output_count != 1) {
        return false;
    }
    const wefti_value_t *from = &graph->values[node->inputs[0]];
    const wefti_value_t *to = &graph->values[node->outputs[0]];
    return from->type.layout == WEFT_LAYOUT_PLAIN && to->type.layout == WEFT_LAYOUT_PLAIN &&
           wefti_value_bytes(from) == wefti_value_bytes(to);
}

uint32_t wefti_node_overwrites(const wefti_node_t *node, uint32_t index)
{
    int64_t members = 0, input;
    if (wefti_node_is_flat_gather(node)) {
        input = (int64_t)index + 1;
    } else if (wefti_node_range(node) >= WEFT_RANGE_ROLE_UPDATE) {
        members = wefti_node_int(node, "members");
        input = index < members ? index : members + index; /* parameters; states after gradients */
    } else {
        input = index < sizeof(node->def->in_place) ? node->def->in_place[index] : -1;
    }
    return input >= 0 && input < node->input_count ? (uint32_t)input : WEFTI_NONE;
}

void wefti_graph_take_output(wefti_graph_t *graph, uint32_t node, uint32_t index, uint32_t value)
{
    graph->nodes[node].outputs[index] = value;
    graph->values[value].producer = node;
    graph->values[value].producer_output = index;
}

weft_status_t wefti_graph_set_input(wefti_graph_t *graph, uint32_t node, uint32_t index,
                                    uint32_t value)
{
    wefti_node_t *n = &graph->nodes[node];
    if (index >= n->input_count) {
        uint32_t *more = wefti_arena_array(&graph->arena, (size_t)index + 1, sizeof(*more));
        WEFT_RETURN_IF_NO_MEMORY(more);
        for (uint32_t i = 0; i < index; i++) {
            more[i] = i < n->input_count ? n->inputs[i] : WEFTI_NONE;
        }
        n->inputs = more;
        n->input_count = index + 1;
    }
    n->inputs[index] = value;
    return WEFT_OK;
}

weft_status_t wefti_graph_readers(const wefti_graph_t *graph, const uint32_t *order, uint32_t count,
                                  wefti_arena_t *arena, wefti_readers_t *out)
{
    size_t total = 0;
    out->first = wefti_arena_array(arena, (size_t)graph->value_count + 2, sizeof(*out->first));
    for (uint32_t i = 0; i < count; i++) {
        total += graph->nodes[order[i]].input_count;
    }
    out->nodes = wefti_arena_array(arena, total, sizeof(*out->nodes));
    WEFT_RETURN_IF_NO_MEMORY(out->first && out->nodes);
    for (uint32_t pass = 0; pass < 2; pass++) { /* counts, then places */
        for (uint32_t i = 0; i < count; i++) {
            const wefti_node_t *node = &graph->nodes[order[i]];
            for (uint32_t k = 0; k < node->input_count; k++) {
                if (node->inputs[k] != WEFTI_NONE && pass == 0) {
                    out->first[node->inputs[k] + 2]++;
                } else if (node->inputs[k] != WEFTI_NONE) {
                    out->nodes[out->first[node->inputs[k] + 1]++] = order[i];
                }
            }
        }
        for (uint32_t v = 2; pass == 0 && v < graph->value_count + 2; v++) {
            out->first[v] += out->first[v - 1];
        }
    }
    return WEFT_OK;
}

/* descs holds the inputs, then the outputs. */
static void fill_desc(const wefti_graph_t *graph, const wefti_node_t *node,
                      weft_tensor_desc_t *descs, weft_node_desc_t *out_desc)
{
    weft_tensor_desc_t *outputs = descs + node->input_count;
    for (uint32_t i = 0; i < node->input_count; i++) {
        descs[i] = node->inputs[i] == WEFTI_NONE ? (weft_tensor_desc_t){0}
                                                 : graph->values[node->inputs[i]].type;
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        outputs[i] = node->outputs[i] == WEFTI_NONE ? (weft_tensor_desc_t){0}
                                                    : graph->values[node->outputs[i]].type;
    }
    *out_desc = (weft_node_desc_t){.domain = node->def->domain,
                                   .op = node->def->name,
                                   .version = node->version,
                                   .name = node->name,
                                   .input_count = node->input_count,
                                   .inputs = descs,
                                   .output_count = node->output_count,
                                   .outputs = outputs,
                                   .attr_count = node->attr_count,
                                   .attrs = node->attrs};
}

weft_status_t wefti_graph_node_desc(const wefti_graph_t *graph, uint32_t node, wefti_arena_t *arena,
                                    weft_node_desc_t *out_desc)
{
    const wefti_node_t *at = &graph->nodes[node];
    weft_tensor_desc_t *descs =
        wefti_arena_array(arena, (size_t)at->input_count + at->output_count, sizeof(*descs));
    WEFT_RETURN_IF_NO_MEMORY(descs);
    fill_desc(graph, at, descs, out_desc);
    return WEFT_OK;
}

weft_status_t wefti_graph_scratch_desc(wefti_graph_t *graph, uint32_t node,
                                       weft_node_desc_t *out_desc)
{
    const wefti_node_t *at = &graph->nodes[node];
    weft_status_t status =
        wefti_array_reserve(graph->arena.allocator, &graph->scratch, &graph->scratch_capacity,
                            (size_t)at->input_count + at->output_count, sizeof(*graph->scratch));
    if (status >= 0) {
        fill_desc(graph, at, graph->scratch, out_desc);
    }
    return status;
}

static bool inputs_known(const wefti_graph_t *graph, const wefti_node_t *node)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        if (node->inputs[i] != WEFTI_NONE &&
            graph->values[node->inputs[i]].type.dtype == WEFT_DTYPE_NONE) {
            return false;
        }
    }
    return true;
}

/* Rules may come from plugins: a type is checked before other nodes use it. */
static weft_status_t take_output_type(wefti_value_t *value, const weft_tensor_desc_t *type)
{
    if (type->rank > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "output '%s': too many dimensions: %u, limit %d", value->name,
                           type->rank, WEFT_MAX_DIMS);
    }
    for (uint32_t i = 0; i < type->rank; i++) {
        if (type->dims[i] < -1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "output '%s': dimension %u is negative: %lld", value->name, i,
                               (long long)type->dims[i]);
        }
    }
    value->type.dtype = type->dtype;
    value->type.rank = type->rank;
    memcpy(value->type.dims, type->dims, sizeof(type->dims));
    return WEFT_OK;
}

weft_status_t wefti_graph_infer_node(wefti_graph_t *graph, uint32_t node)
{
    weft_status_t status;
    const wefti_node_t *at = &graph->nodes[node];
    weft_node_desc_t desc;
    if (!inputs_known(graph, at)) {
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_graph_scratch_desc(graph, node, &desc), fail);
    for (uint32_t i = 0; i < desc.output_count; i++) {
        desc.outputs[i] = (weft_tensor_desc_t){0};
    }
    WEFT_TRY(status, wefti_op_infer(at->def, &desc), place);
    for (uint32_t i = 0; i < at->output_count; i++) {
        if (at->outputs[i] != WEFTI_NONE) {
            WEFT_TRY(status, take_output_type(&graph->values[at->outputs[i]], &desc.outputs[i]),
                     place);
        }
    }
    return WEFT_OK;
place:
    return wefti_error_prefix(status, "node '%s' (%s)", at->name, at->def->name);
fail:
    return status;
}
