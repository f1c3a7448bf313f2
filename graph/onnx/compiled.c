/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a compiled graph: joins the two graphs of the file, as ONNX defines training, and applies
 * its metadata_props. Contents of the file are not trusted: a contradiction is an error, and the
 * whole graph is verified before it is used.
 */
#include "graph/onnx/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define FIELD_METADATA 14u
#define PREFIX "weft."
#define PROGRAM "program."
#define MAX_PROPERTIES 1000u

typedef struct bytes {
    const uint8_t *at, *end;
} bytes_t;

static bool read_varint(bytes_t *in, uint64_t *out)
{
    *out = 0;
    for (uint32_t shift = 0; shift < 64 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* One field: *out is its payload where it has a length, else empty. */
static bool read_field(bytes_t *in, uint64_t *out_id, bytes_t *out)
{
    uint64_t tag, length = 0;
    *out = (bytes_t){in->at, in->at};
    if (!read_varint(in, &tag)) {
        return false;
    }
    *out_id = tag >> 3;
    switch (tag & 7) {
    case 0:
        return read_varint(in, &length);
    case 1:
        length = 8;
        break;
    case 5:
        length = 4;
        break;
    case 2:
        if (!read_varint(in, &length)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (length > (uint64_t)(in->end - in->at)) {
        return false;
    }
    *out = (bytes_t){in->at, in->at + length};
    in->at += length;
    return true;
}

static char *copy_text(wefti_arena_t *arena, bytes_t text)
{
    size_t length = (size_t)(text.end - text.at);
    char *copy = wefti_arena_alloc(arena, length + 1);
    if (copy != NULL && length > 0) {
        memcpy(copy, text.at, length);
    }
    return copy;
}

/* A damaged file is left to the importer, which says where. */
static weft_status_t read_entry(bytes_t in, wefti_arena_t *arena, wefti_onnx_property_t *out,
                                bool *out_taken)
{
    bytes_t key = {0}, value = {0}, field;
    uint64_t id;
    *out_taken = false;
    while (in.at < in.end && read_field(&in, &id, &field)) {
        key = id == 1 ? field : key;
        value = id == 2 ? field : value;
    }
    size_t prefix = strlen(PREFIX);
    if (key.at == NULL || (size_t)(key.end - key.at) <= prefix ||
        memcmp(key.at, PREFIX, prefix) != 0) {
        return WEFT_OK;
    }
    key.at += prefix;
    out->key = copy_text(arena, key);
    out->value = copy_text(arena, value);
    *out_taken = true;
    return out->key == NULL || out->value == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_onnx_read_properties(const void *data, size_t size_bytes, wefti_arena_t *arena,
                                         wefti_onnx_property_t **out_properties,
                                         uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    bytes_t in = {data, (const uint8_t *)data + size_bytes}, field;
    uint64_t id;
    size_t capacity = 0;
    wefti_onnx_property_t *found = NULL;
    uint32_t count = 0;
    *out_properties = NULL;
    *out_count = 0;
    while (in.at < in.end && count < MAX_PROPERTIES && read_field(&in, &id, &field)) {
        bool taken;
        if (id != FIELD_METADATA) {
            continue;
        }
        WEFT_TRY(status,
                 wefti_array_reserve(arena->allocator, &found, &capacity, (size_t)count + 1,
                                     sizeof(*found)),
                 done);
        WEFT_TRY(status, read_entry(field, arena, &found[count], &taken), done);
        count += taken;
    }
    if (count > 0) {
        *out_properties = wefti_arena_memdup(arena, found, count * sizeof(*found));
        *out_count = count;
        status = *out_properties == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    }
done:
    wefti_free(arena->allocator, found);
    return status;
}

weft_status_t wefti_onnx_properties(const char *path, wefti_arena_t *arena,
                                    wefti_onnx_property_t **out_properties, uint32_t *out_count)
{
    wefti_mapping_t file = {0};
    weft_status_t status = wefti_file_map(path, &file);
    if (status < 0) {
        return status;
    }
    status =
        wefti_onnx_read_properties(file.data, file.size_bytes, arena, out_properties, out_count);
    wefti_file_unmap(&file);
    return status;
}

const char *wefti_onnx_property(const wefti_onnx_property_t *properties, uint32_t count,
                                const char *key)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(properties[i].key, key) == 0) {
            return properties[i].value;
        }
    }
    return NULL;
}

static void **concatenate(wefti_arena_t *arena, void *first, size_t first_count, void *second,
                          size_t second_count)
{
    void **all = wefti_arena_array(arena, first_count + second_count + 1, sizeof(void *));
    if (all != NULL && first_count > 0) {
        memcpy(all, first, first_count * sizeof(void *));
    }
    if (all != NULL && second_count > 0) {
        memcpy(all + first_count, second, second_count * sizeof(void *));
    }
    return all;
}

weft_status_t wefti_onnx_merge_training(wefti_onnx_file_t *file, wefti_onnx_compiled_t *compiled)
{
    Onnx__ModelProto *model = file->model;
    Onnx__GraphProto *graph = model->graph;
    compiled->main_nodes = graph->n_node;
    compiled->main_initializers = graph->n_initializer;
    if (model->n_training_info == 0) {
        return WEFT_OK;
    }
    const Onnx__TrainingInfoProto *info = model->training_info[0];
    const Onnx__GraphProto *algorithm = info->algorithm;
    if (model->n_training_info > 1 || algorithm == NULL || info->initialization != NULL ||
        info->n_initialization_binding > 0 || algorithm->n_input > 0 ||
        algorithm->n_sparse_initializer > 0) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: training_info does not have the form that weft writes",
                           file->label);
    }
    graph->node = (Onnx__NodeProto **)concatenate(&file->arena, graph->node, graph->n_node,
                                                  algorithm->node, algorithm->n_node);
    graph->initializer =
        (Onnx__TensorProto **)concatenate(&file->arena, graph->initializer, graph->n_initializer,
                                          algorithm->initializer, algorithm->n_initializer);
    if (graph->node == NULL || graph->initializer == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    graph->n_node += algorithm->n_node;
    graph->n_initializer += algorithm->n_initializer;
    model->n_training_info = 0;
    return WEFT_OK;
}

/* One property of a compiled graph; an absent one is empty. */
static const char *property(const wefti_onnx_import_params_t *params, const char *key)
{
    const char *value = wefti_onnx_property(params->compiled, params->compiled_count, key);
    return value != NULL ? value : "";
}

/* An error about the property weft.<key> of the file; key is a literal. */
#define BAD(key, ...) wefti_error(WEFT_ERR_FORMAT, "metadata weft." key ": " __VA_ARGS__)

/* "a:b a:b ..": the next count numbers; false at the end, *at NULL when it is no list. */
static bool next_numbers(const char **at, uint64_t *out, int count)
{
    char *end;
    if (**at == '\0') {
        return false;
    }
    for (int i = 0; i < count; i++) {
        bool last = i == count - 1;
        if (**at < '0' || **at > '9') {
            *at = NULL;
            return false;
        }
        out[i] = strtoull(*at, &end, 10);
        if ((!last && *end != ':') || (last && *end != ' ' && *end != '\0')) {
            *at = NULL;
            return false;
        }
        *at = *end == '\0' ? end : end + 1;
    }
    return true;
}

static bool next_pair(const char **at, uint64_t out[2])
{
    return next_numbers(at, out, 2);
}

weft_status_t wefti_onnx_compiled_versions(const wefti_onnx_import_params_t *params,
                                           wefti_onnx_file_t *file, int32_t **out_versions)
{
    const char *at = property(params, "versions");
    uint64_t pair[2];
    size_t count = file->model->graph->n_node;
    int32_t *versions = wefti_arena_array(&file->arena, count + 1, sizeof(*versions));
    if (versions == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    while (next_pair(&at, pair)) {
        if (pair[0] >= count || pair[1] < 1 || pair[1] > INT32_MAX) {
            return BAD("versions",
                       "node %" PRIu64 ", version %" PRIu64
                       " is out of range: the graph has %zu nodes",
                       pair[0], pair[1], count);
        }
        versions[pair[0]] = (int32_t)pair[1];
    }
    *out_versions = versions;
    return at == NULL ? BAD("versions", "expected a list of node:version, got '%.60s'",
                            property(params, "versions"))
                      : WEFT_OK;
}

/* Runs of letters, "F12 C1": one letter after the other. */
typedef struct runs {
    const char *at;
    uint64_t left;
    char letter;
} runs_t;

static char next_letter(runs_t *runs)
{
    char *end;
    while (runs->left == 0) {
        runs->letter = *runs->at;
        if (runs->letter == '\0' || runs->at[1] < '0' || runs->at[1] > '9') {
            return '\0';
        }
        runs->left = strtoull(runs->at + 1, &end, 10);
        runs->at = *end == ' ' ? end + 1 : end;
    }
    runs->left--;
    return runs->letter;
}

static weft_status_t set_phases(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                                const wefti_onnx_compiled_t *compiled)
{
    runs_t runs = {.at = property(params, "phases")};
    for (size_t i = 0; i < compiled->node_count; i++) {
        char letter = next_letter(&runs);
        if (compiled->ids[i] == WEFTI_NONE) {
            return BAD("phases", "node %zu is a constant, which a compiled graph does not have", i);
        }
        wefti_node_t *node = &graph->nodes[compiled->ids[i]];
        weft_effects_t effects = node->def->effects;
        const char *at = letter == '\0' ? NULL : strchr("FBCU", letter);
        if (at == NULL || (letter != 'U' && (effects & WEFT_EFFECT_UPDATES) != 0) ||
            (letter == 'U') != (i >= compiled->main_nodes)) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "metadata weft.phases: node '%s' (%s) cannot be in phase '%c'",
                               node->name, node->def->name, letter == '\0' ? '?' : letter);
        }
        node->phase = (wefti_phase_t)(at - "FBCU");
    }
    return WEFT_OK;
}

/* Initializers as parameters, constants and scalars. */
static weft_status_t set_kinds(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               const wefti_onnx_file_t *file, const wefti_onnx_compiled_t *compiled)
{
    runs_t runs = {.at = property(params, "kinds")};
    const Onnx__GraphProto *proto = file->model->graph;
    for (size_t i = 0; i < proto->n_initializer; i++) {
        uint32_t v = wefti_graph_find_value(graph, proto->initializer[i]->name);
        wefti_value_t *value = &graph->values[v];
        char letter = i < compiled->main_initializers ? next_letter(&runs) : 'T';
        switch (letter) {
        case 'P':
            if (value->kind != WEFTI_VALUE_PARAM) {
                return BAD("kinds", "initializer '%s': kind P requires a floating-point tensor",
                           value->name);
            }
            break;
        case 'C':
            value->kind = WEFTI_VALUE_CONST;
            break;
        case 'S':
            if (value->type.rank != 0) {
                return BAD("kinds", "initializer '%s': kind S requires a scalar, got %u dimensions",
                           value->name, value->type.rank);
            }
            value->kind = WEFTI_VALUE_SCALAR;
            value->type.data = NULL;
            break;
        case 'T':
            value->kind = WEFTI_VALUE_STATE;
            value->type.data = NULL; /* states begin at zero */
            break;
        default:
            return BAD("kinds", "initializer '%s': no kind, expected P, C or S", value->name);
        }
    }
    return WEFT_OK;
}

/* "name:number .." */
static weft_status_t set_scalars(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                                 wefti_arena_t *arena)
{
    char *list = wefti_arena_strdup(arena, property(params, "scalars"));
    char *rest = NULL;
    if (list == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (char *part = strtok_r(list, " ", &rest); part != NULL; part = strtok_r(NULL, " ", &rest)) {
        char *colon = strrchr(part, ':'), *end = NULL;
        uint32_t v = WEFTI_NONE;
        double number = colon != NULL ? strtod(colon + 1, &end) : 0;
        if (colon != NULL && end != colon + 1 && *end == '\0') {
            *colon = '\0';
            v = wefti_graph_find_value(graph, part);
        }
        if (v == WEFTI_NONE || graph->values[v].kind != WEFTI_VALUE_SCALAR) {
            return BAD("scalars", "expected a list of scalar:number, got '%.60s'",
                       property(params, "scalars"));
        }
        graph->values[v].default_value = number;
    }
    return WEFT_OK;
}

static weft_status_t bad_list(const char *key, const char *list)
{
    return wefti_error(WEFT_ERR_FORMAT,
                       "metadata weft.%s: invalid list, or position out of range: '%.60s'", key,
                       list);
}

/* Gradients and states, as the file lists them. */
static weft_status_t set_links(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               const wefti_onnx_file_t *file, const wefti_onnx_compiled_t *compiled)
{
    const Onnx__GraphProto *proto = file->model->graph;
    const char *at = property(params, "gradients");
    uint64_t n[3];
    while (next_numbers(&at, n, 3)) {
        const wefti_node_t *node =
            n[0] < compiled->node_count ? &graph->nodes[compiled->ids[n[0]]] : NULL;
        if (node == NULL || n[1] >= node->output_count || node->outputs[n[1]] == WEFTI_NONE ||
            n[2] >= proto->n_initializer) {
            return bad_list("gradients", property(params, "gradients"));
        }
        graph->values[node->outputs[n[1]]].grad_of =
            wefti_graph_find_value(graph, proto->initializer[n[2]]->name);
    }
    if (at == NULL) {
        return bad_list("gradients", property(params, "gradients"));
    }
    at = property(params, "states");
    while (next_numbers(&at, n, 2)) {
        uint32_t state = n[0] < proto->n_initializer && n[1] < proto->n_initializer
                             ? wefti_graph_find_value(graph, proto->initializer[n[0]]->name)
                             : WEFTI_NONE;
        if (state == WEFTI_NONE || graph->values[state].kind != WEFTI_VALUE_STATE) {
            return bad_list("states", property(params, "states"));
        }
        graph->values[state].state_of =
            wefti_graph_find_value(graph, proto->initializer[n[1]]->name);
    }
    return at == NULL ? bad_list("states", property(params, "states")) : WEFT_OK;
}

/* The same in files before 0.3: whose gradients and states are read by which update. */
static weft_status_t link_updates(wefti_graph_t *graph, const wefti_onnx_compiled_t *compiled)
{
    for (size_t i = compiled->main_nodes; i < compiled->node_count; i++) {
        const wefti_node_t *node = &graph->nodes[compiled->ids[i]];
        uint32_t param = node->input_count > 0 ? node->inputs[0] : WEFTI_NONE;
        uint32_t grad = node->input_count > 1 ? node->inputs[1] : WEFTI_NONE;
        if (param == WEFTI_NONE || grad == WEFTI_NONE ||
            graph->values[param].kind != WEFTI_VALUE_PARAM ||
            graph->values[grad].kind != WEFTI_VALUE_NODE ||
            graph->values[grad].grad_of != WEFTI_NONE) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "node '%s' (%s): an update needs a parameter as input 0 and its "
                               "gradient as input 1",
                               node->name, node->def->name);
        }
        graph->values[grad].grad_of = param;
        for (uint32_t k = 2; k < node->input_count; k++) {
            wefti_value_t *state =
                node->inputs[k] == WEFTI_NONE ? NULL : &graph->values[node->inputs[k]];
            if (state != NULL && state->kind == WEFTI_VALUE_STATE) {
                if (state->state_of != WEFTI_NONE && state->state_of != param) {
                    return wefti_error(WEFT_ERR_FORMAT,
                                       "state '%s' belongs to two parameters: '%s' and '%s'",
                                       state->name, graph->values[state->state_of].name,
                                       graph->values[param].name);
                }
                state->state_of = param;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t add_edges(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               const wefti_onnx_compiled_t *compiled)
{
    const char *at = property(params, "edges");
    uint64_t pair[2];
    while (next_pair(&at, pair)) {
        if (pair[0] >= compiled->node_count || pair[1] >= compiled->node_count) {
            return BAD("edges",
                       "edge %" PRIu64 ":%" PRIu64 " is out of range: the graph has %zu nodes",
                       pair[0], pair[1], (size_t)compiled->node_count);
        }
        weft_status_t status = wefti_array_reserve(
            graph->arena.allocator, &graph->constraints, &graph->constraint_capacity,
            (size_t)graph->constraint_count + 1, sizeof(*graph->constraints));
        if (status < 0) {
            return status;
        }
        graph->constraints[graph->constraint_count++] =
            (wefti_constraint_t){compiled->ids[pair[0]], compiled->ids[pair[1]]};
    }
    return at == NULL ? BAD("edges", "expected a list of node:node, got '%.60s'",
                            property(params, "edges"))
                      : WEFT_OK;
}

/* Outputs that keep their contents between programs; then outputs of variants, all others. */
static weft_status_t set_aliases(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                                 const wefti_onnx_compiled_t *compiled)
{
    const char *at = property(params, "persistent");
    uint64_t pair[2];
    while (next_pair(&at, pair)) {
        const wefti_node_t *node =
            pair[0] < compiled->node_count ? &graph->nodes[compiled->ids[pair[0]]] : NULL;
        if (node == NULL || pair[1] >= node->output_count || node->outputs[pair[1]] == WEFTI_NONE) {
            return bad_list("persistent", property(params, "persistent"));
        }
        graph->values[node->outputs[pair[1]]].flags |= WEFTI_VALUE_PERSISTENT;
    }
    if (at == NULL) {
        return bad_list("persistent", property(params, "persistent"));
    }
    at = property(params, "variants");
    while (next_pair(&at, pair)) {
        if (pair[0] >= compiled->node_count || pair[1] >= compiled->node_count) {
            return bad_list("variants", property(params, "variants"));
        }
        const wefti_node_t *node = &graph->nodes[compiled->ids[pair[0]]],
                           *of = &graph->nodes[compiled->ids[pair[1]]];
        for (uint32_t k = 0; k < node->output_count && k < of->output_count; k++) {
            uint32_t value = node->outputs[k];
            if (value != WEFTI_NONE && of->outputs[k] != WEFTI_NONE &&
                (graph->values[value].flags & WEFTI_VALUE_PERSISTENT) == 0) {
                graph->values[value].alias_of = of->outputs[k];
            }
        }
    }
    return at == NULL ? bad_list("variants", property(params, "variants")) : WEFT_OK;
}

static weft_status_t add_program(wefti_graph_t *graph, const wefti_onnx_property_t *program,
                                 wefti_arena_t *arena, const wefti_onnx_compiled_t *compiled)
{
    const char *at = program->value;
    uint64_t pair[2];
    uint32_t count = 0;
    uint32_t *nodes = wefti_arena_array(arena, compiled->node_count, sizeof(*nodes));
    if (nodes == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    while (next_pair(&at, pair)) {
        if (pair[1] >= compiled->node_count || pair[0] > pair[1] ||
            pair[1] - pair[0] >= compiled->node_count - count) {
            return bad_list(program->key, program->value);
        }
        for (uint64_t i = pair[0]; i <= pair[1]; i++) {
            nodes[count++] = compiled->ids[i];
        }
    }
    return at == NULL
               ? bad_list(program->key, program->value)
               : wefti_graph_add_program(graph, program->key + strlen(PROGRAM), nodes, count);
}

/* The order in which nodes run: each once, or not at all, which the verifier finds. */
static weft_status_t set_order(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               wefti_arena_t *arena, const wefti_onnx_compiled_t *compiled)
{
    const char *at = property(params, "order");
    uint64_t pair[2];
    uint32_t count = 0;
    uint32_t *order = wefti_arena_array(arena, graph->order_count, sizeof(*order));
    if (order == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    while (next_pair(&at, pair)) {
        if (pair[1] >= compiled->node_count || pair[0] > pair[1] ||
            pair[1] - pair[0] >= graph->order_count - count) {
            return bad_list("order", property(params, "order"));
        }
        for (uint64_t i = pair[0]; i <= pair[1]; i++) {
            order[count++] = compiled->ids[i];
        }
    }
    if (at == NULL || (count > 0 && count != graph->order_count)) {
        return bad_list("order", property(params, "order"));
    }
    if (count > 0) {
        memcpy(graph->order, order, count * sizeof(*order));
    }
    return WEFT_OK;
}

/* Files before 0.3 have no programs: passes make them. */
static weft_status_t add_programs(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                                  wefti_arena_t *arena, const wefti_onnx_compiled_t *compiled)
{
    for (uint32_t i = 0; i < params->compiled_count; i++) {
        weft_status_t status = strncmp(params->compiled[i].key, PROGRAM, strlen(PROGRAM)) == 0
                                   ? add_program(graph, &params->compiled[i], arena, compiled)
                                   : WEFT_OK;
        if (status < 0) {
            return status;
        }
    }
    return graph->program_count > 0 && wefti_graph_find_program(graph, "step") == NULL
               ? wefti_error(WEFT_ERR_FORMAT, "metadata " PREFIX PROGRAM "step: missing")
               : WEFT_OK;
}

static weft_status_t set_named(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               const char *key, wefti_value_flags_t flag, uint32_t *out_value)
{
    const char *name = property(params, key);
    if (name[0] == '\0') {
        return WEFT_OK;
    }
    *out_value = wefti_graph_find_value(graph, name);
    if (*out_value == WEFTI_NONE ||
        (graph->values[*out_value].kind != WEFTI_VALUE_NODE && flag != WEFTI_VALUE_LABEL)) {
        *out_value = WEFTI_NONE;
        return wefti_error(WEFT_ERR_FORMAT, "metadata weft.%s: '%s' is not the output of a node",
                           key, name);
    }
    graph->values[*out_value].flags |= flag;
    return WEFT_OK;
}

weft_status_t wefti_onnx_compiled_apply(const wefti_onnx_import_params_t *params,
                                        wefti_onnx_file_t *file, wefti_graph_t *graph,
                                        const wefti_onnx_compiled_t *compiled)
{
    weft_status_t status;
    WEFT_TRY(status, set_kinds(params, graph, file, compiled), fail);
    WEFT_TRY(status, set_scalars(params, graph, &file->arena), fail);
    WEFT_TRY(status, set_phases(params, graph, compiled), fail);
    WEFT_TRY(status, add_edges(params, graph, compiled), fail);
    WEFT_TRY(status, set_named(params, graph, "loss", WEFTI_VALUE_LOSS, &graph->loss), fail);
    WEFT_TRY(status, set_named(params, graph, "logits", WEFTI_VALUE_LOGITS, &graph->logits), fail);
    WEFT_TRY(status, set_named(params, graph, "label", WEFTI_VALUE_LABEL, &graph->label), fail);
    WEFT_TRY(status, wefti_graph_pair_collectives(graph, false), fail);
    bool lists =
        wefti_onnx_property(params->compiled, params->compiled_count, PROGRAM "step") != NULL;
    status = lists ? set_links(params, graph, file, compiled) : link_updates(graph, compiled);
    WEFT_TRY(status, status, fail);
    WEFT_TRY(status, set_order(params, graph, &file->arena, compiled), fail);
    WEFT_TRY(status, set_aliases(params, graph, compiled), fail);
    WEFT_TRY(status, add_programs(params, graph, &file->arena, compiled), fail);
    graph->batch = strtoll(property(params, "graph_batch"), NULL, 10);
    long long opset = strtoll(property(params, "opset"), NULL, 10);
    if (graph->batch < 0) {
        return BAD("graph_batch", "must not be negative: %" PRId64, graph->batch);
    }
    if (opset < 0 || opset > INT32_MAX) {
        return BAD("opset", "must be between 0 and %d: %lld", INT32_MAX, opset);
    }
    graph->opset = opset > 0 ? (int32_t)opset : graph->opset;
    return WEFT_OK;
fail:
    return wefti_error_prefix(status, "%s", file->label);
}
