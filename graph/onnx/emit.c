/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compiled graph as an ONNX message: forward, backward and collectives in ModelProto.graph, the
 * updates in TrainingInfoProto.algorithm with update_binding, and what ONNX has no words for in
 * metadata_props (compiled.c reads it). Strings and contents are borrowed from the graph.
 */
#include "graph/onnx/emit.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/error.h"

#define IR_VERSION 8 /* the first with what is used here */

static char *unconst(const char *text)
{
    return (char *)(uintptr_t)text; /* packing only reads */
}

static void *message(wefti_onnx_emit_t *emit, size_t bytes)
{
    return wefti_arena_alloc(&emit->arena, bytes);
}

static void **list(wefti_onnx_emit_t *emit, size_t count)
{
    return wefti_arena_array(&emit->arena, count, sizeof(void *));
}

static const char *value_name(const wefti_graph_t *graph, uint32_t value)
{
    return value == WEFTI_NONE ? "" : graph->values[value].name;
}

static Onnx__TensorProto *make_tensor(wefti_onnx_emit_t *emit, const weft_tensor_desc_t *desc,
                                      const char *name)
{
    Onnx__TensorProto *tensor = message(emit, sizeof(*tensor));
    int64_t *dims = wefti_arena_memdup(&emit->arena, desc->dims, sizeof(desc->dims));
    if (emit->arena.failed) {
        return NULL;
    }
    onnx__tensor_proto__init(tensor);
    tensor->name = unconst(name);
    tensor->has_data_type = 1;
    tensor->data_type = wefti_onnx_data_type(desc->dtype);
    tensor->n_dims = desc->rank;
    tensor->dims = dims;
    wefti_onnx_set_contents(tensor, desc);
    return tensor;
}

Onnx__AttributeProto *wefti_onnx_emit_attribute(wefti_onnx_emit_t *emit, const weft_attr_t *attr)
{
    Onnx__AttributeProto *out = message(emit, sizeof(*out));
    if (out == NULL) {
        return NULL;
    }
    onnx__attribute_proto__init(out);
    out->name = unconst(attr->name);
    out->has_type = 1;
    switch (attr->type) {
    case WEFT_ATTR_TYPE_INT:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        out->has_i = 1;
        out->i = attr->i;
        break;
    case WEFT_ATTR_TYPE_FLOAT:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
        out->has_f = 1;
        out->f = attr->f;
        break;
    case WEFT_ATTR_TYPE_STRING:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
        out->has_s = 1;
        out->s = (ProtobufCBinaryData){strlen(attr->s), (uint8_t *)unconst(attr->s)};
        break;
    case WEFT_ATTR_TYPE_INTS:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
        out->n_ints = attr->count;
        out->ints = (int64_t *)(uintptr_t)attr->ints;
        break;
    case WEFT_ATTR_TYPE_FLOATS:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS;
        out->n_floats = attr->count;
        out->floats = (float *)(uintptr_t)attr->floats;
        break;
    case WEFT_ATTR_TYPE_STRINGS:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS;
        out->strings = wefti_arena_array(&emit->arena, attr->count, sizeof(*out->strings));
        for (size_t i = 0; out->strings != NULL && i < attr->count; i++) {
            out->strings[i] = (ProtobufCBinaryData){strlen(attr->strings[i]),
                                                    (uint8_t *)unconst(attr->strings[i])};
        }
        out->n_strings = attr->count;
        break;
    case WEFT_ATTR_TYPE_TENSOR:
        out->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
        out->t = make_tensor(emit, attr->tensor, "");
        break;
    }
    return out;
}

static Onnx__ValueInfoProto *make_info(wefti_onnx_emit_t *emit, const wefti_value_t *value)
{
    return wefti_onnx_make_info(&emit->arena, value->name, &value->type);
}

/* "y" of a start is "y.in_flight"; the wait makes "y". */
static const char *flying_name(wefti_onnx_emit_t *emit, uint32_t value)
{
    const wefti_graph_t *graph = emit->graph;
    const char *name = wefti_arena_printf(&emit->arena, "%s.in_flight", value_name(graph, value));
    for (uint32_t i = 2; name != NULL && wefti_graph_find_value(graph, name) != WEFTI_NONE; i++) {
        name = wefti_arena_printf(&emit->arena, "%s.in_flight.%u", value_name(graph, value), i);
    }
    return name;
}

static Onnx__NodeProto *make_node(wefti_onnx_emit_t *emit, const wefti_node_t *node)
{
    const wefti_graph_t *graph = emit->graph;
    Onnx__NodeProto *out = message(emit, sizeof(*out));
    char **inputs = (char **)list(emit, node->input_count);
    char **outputs = (char **)list(emit, node->output_count);
    /* Room for what collectives are given in addition. */
    Onnx__AttributeProto **attributes = (Onnx__AttributeProto **)list(
        emit, (size_t)node->attr_count + WEFTI_ONNX_EMIT_EXTRA_ATTRIBUTES);
    if (emit->arena.failed) {
        return NULL;
    }
    onnx__node_proto__init(out);
    out->name = unconst(node->name);
    out->op_type = unconst(node->def->name);
    out->domain = unconst(node->def->domain);
    out->n_input = node->input_count;
    out->input = inputs;
    out->n_output = node->output_count;
    out->output = outputs;
    out->attribute = attributes;
    for (uint32_t i = 0; i < node->input_count; i++) {
        inputs[i] = unconst(value_name(graph, node->inputs[i]));
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        outputs[i] = unconst(value_name(graph, node->outputs[i]));
    }
    for (uint32_t i = 0; i < node->attr_count; i++) {
        attributes[out->n_attribute++] = wefti_onnx_emit_attribute(emit, &node->attrs[i]);
    }
    return out;
}

/* May the node be written for that version of ai.onnx? */
static bool valid_at(const wefti_graph_t *graph, const wefti_node_t *node, int32_t opset)
{
    const weft_op_def_t *def = weft_registry_find_op(graph->registry, "", node->def->name, opset);
    if (def == node->def) {
        return true;
    }
    if (def == NULL || node->input_count < def->inputs_min ||
        (def->inputs_max != WEFT_VARIADIC && node->input_count > def->inputs_max) ||
        node->output_count < def->outputs_min ||
        (def->outputs_max != WEFT_VARIADIC && node->output_count > def->outputs_max)) {
        return false;
    }
    for (uint32_t i = 0; i < node->attr_count; i++) {
        bool known = false;
        for (size_t j = 0; j < def->attr_count; j++) {
            known = known || strcmp(def->attrs[j].name, node->attrs[i].name) == 0;
        }
        if (!known) {
            return false;
        }
    }
    for (size_t j = 0; j < def->attr_count; j++) {
        if (def->attrs[j].required && wefti_node_attr(node, def->attrs[j].name) == NULL) {
            return false;
        }
    }
    return true;
}

/* Version of ai.onnx in which all nodes can be written; node versions themselves are metadata. */
static weft_status_t choose_opset(const wefti_graph_t *graph, int32_t *out_opset)
{
    const wefti_node_t *odd = NULL;
    int32_t first = graph->opset > 0 ? graph->opset : 1;
    for (int32_t opset = first; opset <= WEFTI_ONNX_NEWEST_OPSET; opset++) {
        bool valid = true;
        for (uint32_t i = 0; i < graph->order_count && valid; i++) {
            const wefti_node_t *node = &graph->nodes[graph->order[i]];
            valid = node->def->domain[0] != '\0' || valid_at(graph, node, opset);
            odd = !valid && odd == NULL ? node : odd;
        }
        if (valid) {
            *out_opset = opset;
            return WEFT_OK;
        }
    }
    if (odd == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "unsupported opset %d: the newest that can be written is %d", first,
                           WEFTI_ONNX_NEWEST_OPSET);
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "node '%s' (%s): not expressible in opset %d, and no opset up to %d has all "
                       "operators of the graph in their versions",
                       odd->name, odd->def->name, first, WEFTI_ONNX_NEWEST_OPSET);
}

static void add_opset(wefti_onnx_emit_t *emit, const char *domain, int64_t version)
{
    Onnx__ModelProto *model = emit->model;
    for (size_t i = 0; i < model->n_opset_import; i++) {
        Onnx__OperatorSetIdProto *set = model->opset_import[i];
        if (strcmp(set->domain, domain) == 0) {
            set->version = domain[0] != '\0' && version > set->version ? version : set->version;
            return;
        }
    }
    Onnx__OperatorSetIdProto *set = message(emit, sizeof(*set));
    if (emit->arena.failed) {
        return;
    }
    onnx__operator_set_id_proto__init(set);
    set->domain = unconst(domain);
    set->has_version = 1;
    set->version = version;
    model->opset_import[model->n_opset_import++] = set;
}

static bool is_start(const wefti_node_t *node)
{
    size_t length = strlen(node->def->name);
    return strcmp(node->def->domain, "weft") == 0 && length > 5 &&
           strcmp(node->def->name + length - 5, "Start") == 0;
}

/* The second half of a start, in front of what waits for it. */
static Onnx__NodeProto *make_wait(wefti_onnx_emit_t *emit, uint32_t start)
{
    const wefti_graph_t *graph = emit->graph;
    const wefti_node_t *node = &graph->nodes[start];
    Onnx__NodeProto *made = emit->made[start];
    Onnx__NodeProto *out = message(emit, sizeof(*out));
    char **inputs = (char **)list(emit, node->output_count);
    if (emit->arena.failed) {
        return NULL;
    }
    onnx__node_proto__init(out);
    out->name = wefti_arena_printf(&emit->arena, "%s/wait", node->name);
    out->op_type = wefti_arena_printf(&emit->arena, "%.*sWait", (int)strlen(node->def->name) - 5,
                                      node->def->name);
    out->domain = unconst("weft");
    out->n_input = out->n_output = node->output_count;
    out->output = made->output;
    out->input = inputs;
    for (uint32_t i = 0; i < node->output_count; i++) {
        inputs[i] = unconst(flying_name(emit, node->outputs[i]));
    }
    made->output = inputs;
    return out;
}

/* Where the second halves go: by node, the start that is waited for in front of it, as a chain. */
typedef struct waits {
    uint32_t *first, *next; /* by node; starts that no node waits for stand at the end */
    uint32_t at_end;
} waits_t;

static bool reads(const wefti_node_t *node, const wefti_node_t *start)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        for (uint32_t k = 0; k < start->output_count; k++) {
            if (node->inputs[i] != WEFTI_NONE && node->inputs[i] == start->outputs[k]) {
                return true;
            }
        }
    }
    return false;
}

/* The first node of the order that a constraint or a value lets wait. */
static weft_status_t place_waits(wefti_onnx_emit_t *emit, waits_t *w)
{
    const wefti_graph_t *graph = emit->graph;
    w->first = wefti_id_map(&emit->arena, graph->node_count);
    w->next = wefti_id_map(&emit->arena, graph->node_count);
    uint32_t *position = message(emit, ((size_t)graph->node_count + 1) * sizeof(uint32_t));
    WEFT_RETURN_IF_NO_MEMORY(!emit->arena.failed);
    w->at_end = WEFTI_NONE;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        position[graph->order[i]] = i;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i], at = graph->order_count;
        if (!is_start(&graph->nodes[id])) {
            continue;
        }
        for (uint32_t c = 0; c < graph->constraint_count; c++) {
            uint32_t before = wefti_graph_live_node(graph, graph->constraints[c].before);
            uint32_t after = wefti_graph_live_node(graph, graph->constraints[c].after);
            if (before == id && after != WEFTI_NONE && position[after] < at) {
                at = position[after];
            }
        }
        for (uint32_t j = i + 1; j < at; j++) {
            at = reads(&graph->nodes[graph->order[j]], &graph->nodes[id]) ? j : at;
        }
        uint32_t *head =
            at < graph->order_count && graph->nodes[graph->order[at]].phase != WEFTI_PHASE_UPDATE
                ? &w->first[graph->order[at]]
                : &w->at_end;
        w->next[id] = *head;
        *head = id;
    }
    return WEFT_OK;
}

static void add_waits(wefti_onnx_emit_t *emit, const waits_t *w, uint32_t head)
{
    Onnx__GraphProto *main = emit->model->graph;
    for (; head != WEFTI_NONE && !emit->arena.failed; head = w->next[head]) {
        emit->place[main->n_node] = WEFTI_NONE;
        main->node[main->n_node++] = make_wait(emit, head);
    }
}

static weft_status_t add_nodes(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    Onnx__GraphProto *main = emit->model->graph;
    waits_t waits;
    WEFT_RETURN_IF_ERROR(place_waits(emit, &waits));
    for (uint32_t i = 0; i < graph->order_count && !emit->arena.failed; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        if (node->phase == WEFTI_PHASE_UPDATE) {
            emit->update_count++;
            continue;
        }
        add_waits(emit, &waits, waits.first[id]);
        emit->made[id] = make_node(emit, node);
        emit->place[main->n_node] = id;
        main->node[main->n_node++] = emit->made[id];
        add_opset(emit, node->def->domain, node->version);
    }
    add_waits(emit, &waits, waits.at_end);
    return emit->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* Which constants are read at all. */
static bool *find_used(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    bool *used = message(emit, (size_t)graph->value_count + 1);
    for (uint32_t i = 0; used != NULL && i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                used[node->inputs[k]] = true;
            }
        }
    }
    for (uint32_t i = 0; used != NULL && i < graph->output_count; i++) {
        used[graph->outputs[i]] = true;
    }
    return used;
}

/* By value: states that are read before the updates, which are in the graph of the model. */
static bool *find_early_states(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    bool *early = message(emit, (size_t)graph->value_count + 1);
    for (uint32_t i = 0; early != NULL && i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; node->phase != WEFTI_PHASE_UPDATE && k < node->input_count; k++) {
            uint32_t v = node->inputs[k];
            if (v != WEFTI_NONE && graph->values[v].kind == WEFTI_VALUE_STATE) {
                early[v] = true;
            }
        }
    }
    return early;
}

static const void *scalar_contents(wefti_onnx_emit_t *emit, const wefti_value_t *value)
{
    int64_t i = (int64_t)value->default_value;
    float f = (float)value->default_value;
    return value->type.dtype == WEFT_DTYPE_I64 ? wefti_arena_memdup(&emit->arena, &i, sizeof(i))
                                               : wefti_arena_memdup(&emit->arena, &f, sizeof(f));
}

static void add_initializer(wefti_onnx_emit_t *emit, Onnx__GraphProto *to,
                            const weft_tensor_desc_t *desc, const char *name)
{
    to->initializer[to->n_initializer++] = make_tensor(emit, desc, name);
}

/* In the order of nodes, so that writing a graph that was read gives the same file. */
static void add_infos(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    Onnx__GraphProto *main = emit->model->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; node->phase != WEFTI_PHASE_UPDATE && k < node->output_count; k++) {
            const wefti_value_t *value =
                node->outputs[k] == WEFTI_NONE ? NULL : &graph->values[node->outputs[k]];
            if (value != NULL && !(value->flags & WEFTI_VALUE_OUTPUT) &&
                value->type.dtype != WEFT_DTYPE_NONE && !emit->arena.failed) {
                main->value_info[main->n_value_info++] = make_info(emit, value);
            }
        }
    }
}

static weft_status_t add_values(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    Onnx__GraphProto *main = emit->model->graph;
    bool *used = find_used(emit);
    for (uint32_t v = 0; v < graph->value_count && !emit->arena.failed; v++) {
        const wefti_value_t *value = &graph->values[v];
        weft_tensor_desc_t desc = value->type;
        switch (value->kind) {
        case WEFTI_VALUE_INPUT:
            main->input[main->n_input++] = make_info(emit, value);
            break;
        case WEFTI_VALUE_SCALAR: /* an input with a default value, listed behind the others */
            desc.data = scalar_contents(emit, value);
            add_initializer(emit, main, &desc, value->name);
            break;
        case WEFTI_VALUE_PARAM:
            add_initializer(emit, main, &desc, value->name);
            break;
        case WEFTI_VALUE_CONST:
            if (used[v]) {
                add_initializer(emit, main, &desc, value->name);
            }
            break;
        case WEFTI_VALUE_NODE:
        case WEFTI_VALUE_STATE:
            break;
        }
    }
    add_infos(emit);
    for (uint32_t v = 0; v < graph->value_count && !emit->arena.failed; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_SCALAR) {
            main->input[main->n_input++] = make_info(emit, &graph->values[v]);
        }
    }
    for (uint32_t i = 0; i < graph->output_count && !emit->arena.failed; i++) {
        main->output[main->n_output++] = make_info(emit, &graph->values[graph->outputs[i]]);
    }
    return emit->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static Onnx__GraphProto *make_graph(wefti_onnx_emit_t *emit, const char *name, size_t nodes)
{
    size_t values = emit->graph->value_count;
    Onnx__GraphProto *graph = message(emit, sizeof(*graph));
    if (graph == NULL) {
        return NULL;
    }
    onnx__graph_proto__init(graph);
    graph->name = unconst(name);
    graph->node = (Onnx__NodeProto **)list(emit, nodes);
    graph->initializer = (Onnx__TensorProto **)list(emit, values);
    graph->input = (Onnx__ValueInfoProto **)list(emit, values);
    graph->output = (Onnx__ValueInfoProto **)list(emit, values);
    graph->value_info = (Onnx__ValueInfoProto **)list(emit, values);
    return graph;
}

static void bind(wefti_onnx_emit_t *emit, Onnx__TrainingInfoProto *info, const char *key,
                 const char *value)
{
    Onnx__StringStringEntryProto *entry = message(emit, sizeof(*entry));
    if (entry != NULL) {
        onnx__string_string_entry_proto__init(entry);
        entry->key = unconst(key);
        entry->value = unconst(value);
        info->update_binding[info->n_update_binding++] = entry;
    }
}

/* Output k of an update replaces the initializer that it overwrites; a shard is none, its gather
 * replaces the parameters. */
static void bind_outputs(wefti_onnx_emit_t *emit, Onnx__TrainingInfoProto *info,
                         const wefti_node_t *node)
{
    const wefti_graph_t *graph = emit->graph;
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t at = wefti_node_overwrites(node, k);
        uint32_t value = at == WEFTI_NONE ? WEFTI_NONE : node->inputs[at];
        if (value != WEFTI_NONE && graph->values[value].kind != WEFTI_VALUE_NODE &&
            node->outputs[k] != WEFTI_NONE) {
            Onnx__GraphProto *algorithm = info->algorithm;
            algorithm->output[algorithm->n_output++] =
                make_info(emit, &graph->values[node->outputs[k]]);
            bind(emit, info, graph->values[value].name, graph->values[node->outputs[k]].name);
        }
    }
}

/* One block of zeros is every state's beginning. */
static weft_status_t add_states(wefti_onnx_emit_t *emit, Onnx__GraphProto *main,
                                Onnx__GraphProto *algorithm)
{
    const wefti_graph_t *graph = emit->graph;
    size_t most = 0;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        size_t bytes = wefti_value_bytes(&graph->values[v]);
        most = graph->values[v].kind == WEFTI_VALUE_STATE && bytes > most ? bytes : most;
    }
    const void *zeros = message(emit, most + 1);
    const bool *used = find_used(emit), *early = find_early_states(emit);
    WEFT_RETURN_IF_NO_MEMORY(!emit->arena.failed);
    for (uint32_t v = 0; v < graph->value_count && !emit->arena.failed; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_STATE && used[v]) {
            weft_tensor_desc_t desc = graph->values[v].type;
            desc.data = zeros;
            add_initializer(emit, early[v] ? main : algorithm, &desc, graph->values[v].name);
        }
    }
    return emit->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t add_training(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    Onnx__TrainingInfoProto *info = message(emit, sizeof(*info));
    if (info == NULL || emit->update_count == 0) {
        return emit->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    }
    onnx__training_info_proto__init(info);
    info->algorithm = make_graph(emit, "update", emit->update_count);
    info->update_binding = (Onnx__StringStringEntryProto **)list(emit, graph->value_count);
    emit->model->training_info = (Onnx__TrainingInfoProto **)list(emit, 1);
    WEFT_RETURN_IF_NO_MEMORY(!emit->arena.failed);
    emit->model->training_info[0] = info;
    emit->model->n_training_info = 1;
    for (uint32_t i = 0; i < graph->order_count && !emit->arena.failed; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (node->phase == WEFTI_PHASE_UPDATE) {
            emit->place[emit->model->graph->n_node + info->algorithm->n_node] = graph->order[i];
            info->algorithm->node[info->algorithm->n_node++] = make_node(emit, node);
            add_opset(emit, node->def->domain, node->version);
            bind_outputs(emit, info, node);
        }
    }
    return add_states(emit, emit->model->graph, info->algorithm);
}

static weft_status_t make_model(wefti_onnx_emit_t *emit)
{
    int32_t opset = 0;
    const wefti_graph_t *graph = emit->graph;
    size_t nodes = 2 * (size_t)graph->order_count; /* and as many waits */
    WEFT_RETURN_IF_ERROR(choose_opset(graph, &opset));
    emit->model = message(emit, sizeof(*emit->model));
    emit->made = (Onnx__NodeProto **)list(emit, graph->node_count);
    emit->place = message(emit, (nodes + 1) * sizeof(*emit->place));
    WEFT_RETURN_IF_NO_MEMORY(!emit->arena.failed);
    onnx__model_proto__init(emit->model);
    emit->model->has_ir_version = 1;
    emit->model->ir_version = opset > 18 ? IR_VERSION + 2 : IR_VERSION;
    emit->model->producer_name = unconst("weft");
    emit->model->producer_version = unconst(WEFT_VERSION_STRING);
    emit->model->doc_string =
        unconst("a graph compiled by weft: one rank's part of a step; updates are training_info");
    emit->model->graph = make_graph(emit, graph->name[0] != '\0' ? graph->name : "graph", nodes);
    emit->model->opset_import =
        (Onnx__OperatorSetIdProto **)list(emit, (size_t)graph->order_count + 1);
    WEFT_RETURN_IF_NO_MEMORY(!emit->arena.failed);
    add_opset(emit, "", opset);
    WEFT_RETURN_IF_ERROR(add_nodes(emit));
    WEFT_RETURN_IF_ERROR(add_values(emit));
    WEFT_RETURN_IF_ERROR(add_training(emit));
    emit->opset = opset;
    return WEFT_OK;
}

weft_status_t wefti_onnx_emit_begin(const wefti_graph_t *graph, const weft_allocator_t *allocator,
                                    wefti_onnx_emit_t **out_emit)
{
    weft_status_t status;
    wefti_onnx_emit_t *emit = wefti_alloc(allocator, sizeof(*emit));
    *out_emit = NULL;
    WEFT_RETURN_IF_NO_MEMORY(emit);
    emit->graph = graph;
    emit->allocator = allocator;
    wefti_arena_init(&emit->arena, allocator, 0);
    status = make_model(emit);
    if (status < 0) {
        wefti_onnx_emit_destroy(emit);
        return status;
    }
    *out_emit = emit;
    return WEFT_OK;
}

void wefti_onnx_emit_destroy(wefti_onnx_emit_t *emit)
{
    if (emit != NULL) {
        wefti_arena_deinit(&emit->arena);
        wefti_free(emit->allocator, emit);
    }
}
