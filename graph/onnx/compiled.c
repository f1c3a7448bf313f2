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

static char *copy_text(wefti_arena_t *arena, const wefti_onnx_field_t *text)
{
    char *copy = wefti_arena_alloc(arena, text->size_bytes + 1);
    if (copy != NULL && text->size_bytes > 0) {
        memcpy(copy, text->payload, text->size_bytes);
    }
    return copy;
}

/* A damaged file is left to the importer, which reports where. */
static weft_status_t read_entry(wefti_onnx_cursor_t in, wefti_arena_t *arena,
                                wefti_onnx_property_t *out, bool *out_taken)
{
    wefti_onnx_field_t key = {0}, value = {0}, field;
    size_t prefix = strlen(PREFIX);
    *out_taken = false;
    while (in.at < in.end && wefti_onnx_next_field(&in, &field) == NULL) {
        key = field.id == 1 ? field : key;
        value = field.id == 2 ? field : value;
    }
    if (key.size_bytes <= prefix || memcmp(key.payload, PREFIX, prefix) != 0) {
        return WEFT_OK;
    }
    key.payload += prefix;
    key.size_bytes -= prefix;
    out->key = copy_text(arena, &key);
    out->value = copy_text(arena, &value);
    *out_taken = true;
    return out->key == NULL || out->value == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_onnx_read_properties(const void *data, size_t size_bytes, wefti_arena_t *arena,
                                         wefti_onnx_property_t **out_properties,
                                         uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    /* An empty file has no address to count from. */
    wefti_onnx_cursor_t in = {data, size_bytes > 0 ? (const uint8_t *)data + size_bytes : data};
    wefti_onnx_field_t field;
    size_t capacity = 0;
    wefti_onnx_property_t *found = NULL;
    uint32_t count = 0;
    *out_properties = NULL;
    *out_count = 0;
    while (in.at < in.end && count < MAX_PROPERTIES && wefti_onnx_next_field(&in, &field) == NULL) {
        bool taken;
        if (field.id != FIELD_METADATA) {
            continue;
        }
        WEFT_TRY(status,
                 wefti_array_reserve(arena->allocator, &found, &capacity, (size_t)count + 1,
                                     sizeof(*found)),
                 done);
        const wefti_onnx_cursor_t entry = {field.payload, field.payload + field.size_bytes};
        WEFT_TRY(status, read_entry(entry, arena, &found[count], &taken), done);
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

weft_status_t wefti_onnx_join_algorithm(wefti_onnx_file_t *file, const Onnx__GraphProto *algorithm)
{
    Onnx__GraphProto *graph = file->model->graph;
    graph->input = (Onnx__ValueInfoProto **)concatenate(&file->arena, graph->input, graph->n_input,
                                                        algorithm->input, algorithm->n_input);
    graph->node = (Onnx__NodeProto **)concatenate(&file->arena, graph->node, graph->n_node,
                                                  algorithm->node, algorithm->n_node);
    graph->initializer =
        (Onnx__TensorProto **)concatenate(&file->arena, graph->initializer, graph->n_initializer,
                                          algorithm->initializer, algorithm->n_initializer);
    WEFT_RETURN_IF_NO_MEMORY(graph->input && graph->node && graph->initializer);
    graph->n_input += algorithm->n_input;
    graph->n_node += algorithm->n_node;
    graph->n_initializer += algorithm->n_initializer;
    return WEFT_OK;
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
    WEFT_RETURN_IF_ERROR(wefti_onnx_join_algorithm(file, algorithm));
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

/* A list of groups of numbers, "a:b a:b ..". */
typedef struct list {
    const char *key, *text;
    const char *at; /* NULL: the text is not such a list */
} list_t;

static list_t open_list(const wefti_onnx_import_params_t *params, const char *key)
{
    const char *text = property(params, key);
    return (list_t){key, text, text};
}

static weft_status_t bad_list(const list_t *list)
{
    return wefti_error(WEFT_ERR_FORMAT,
                       "metadata weft.%s: invalid list, or position out of range: '%.60s'",
                       list->key, list->text);
}

static weft_status_t close_list(const list_t *list)
{
    return list->at == NULL ? bad_list(list) : WEFT_OK;
}

/* The next count numbers, each below its limit; false: close_list. */
static bool next_numbers(list_t *list, int count, const uint64_t *limits, uint64_t *out)
{
    bool valid = true, more = *list->at != '\0';
    for (int i = 0; i < count && more && valid; i++) {
        char *end;
        valid = *list->at >= '0' && *list->at <= '9';
        out[i] = valid ? strtoull(list->at, &end, 10) : 0;
        valid = valid && out[i] < limits[i] &&
                (i < count - 1 ? *end == ':' : *end == ' ' || *end == '\0');
        list->at = !valid ? NULL : *end == '\0' ? end : end + 1;
    }
    return more && valid;
}

/* Two positions. */
static bool next_pair(list_t *list, size_t first_limit, size_t second_limit, uint64_t out[2])
{
    const uint64_t limits[] = {first_limit, second_limit};
    return next_numbers(list, 2, limits, out);
}

weft_status_t wefti_onnx_compiled_versions(const wefti_onnx_import_params_t *params,
                                           wefti_onnx_file_t *file, int32_t **out_versions)
{
    list_t list = open_list(params, "versions");
    uint64_t pair[2];
    size_t count = file->model->graph->n_node;
    int32_t *versions = wefti_arena_array(&file->arena, count + 1, sizeof(*versions));
    WEFT_RETURN_IF_NO_MEMORY(versions);
    while (next_pair(&list, count, (size_t)INT32_MAX + 1, pair)) {
        if (pair[1] < 1) {
            return bad_list(&list);
        }
        versions[pair[0]] = (int32_t)pair[1];
    }
    *out_versions = versions;
    return close_list(&list);
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

/* Initializers as parameters, constants, scalars and states. */
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
            return BAD("kinds", "initializer '%s': no kind, expected P, C, S or T", value->name);
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
    WEFT_RETURN_IF_NO_MEMORY(list);
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

/* Output index of the node at a position in the file, or WEFTI_NONE. */
static uint32_t output_at(const wefti_graph_t *graph, const wefti_onnx_compiled_t *compiled,
                          uint64_t position, uint64_t index)
{
    const wefti_node_t *node = &graph->nodes[compiled->ids[position]];
    return index < node->output_count ? node->outputs[index] : WEFTI_NONE;
}

/* Gradients and states, as the file lists them. */
static weft_status_t set_links(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               const wefti_onnx_file_t *file, const wefti_onnx_compiled_t *compiled)
{
    const Onnx__GraphProto *proto = file->model->graph;
    const size_t count = proto->n_initializer;
    const uint64_t limits[] = {compiled->node_count, UINT32_MAX, count};
    list_t gradients = open_list(params, "gradients"), states = open_list(params, "states");
    uint64_t n[3];
    while (next_numbers(&gradients, 3, limits, n)) {
        uint32_t gradient = output_at(graph, compiled, n[0], n[1]);
        if (gradient == WEFTI_NONE) {
            return bad_list(&gradients);
        }
        graph->values[gradient].grad_of =
            wefti_graph_find_value(graph, proto->initializer[n[2]]->name);
    }
    while (next_pair(&states, count, count, n)) {
        uint32_t state = wefti_graph_find_value(graph, proto->initializer[n[0]]->name);
        if (graph->values[state].kind != WEFTI_VALUE_STATE) {
            return bad_list(&states);
        }
        graph->values[state].state_of =
            wefti_graph_find_value(graph, proto->initializer[n[1]]->name);
    }
    weft_status_t status = close_list(&gradients);
    return status < 0 ? status : close_list(&states);
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
    list_t list = open_list(params, "edges");
    uint64_t pair[2];
    weft_status_t status = WEFT_OK;
    while (status >= 0 && next_pair(&list, compiled->node_count, compiled->node_count, pair)) {
        status = wefti_graph_add_constraint(graph, compiled->ids[pair[0]], compiled->ids[pair[1]]);
    }
    return status < 0 ? status : close_list(&list);
}

/* Outputs that keep their contents between programs; then outputs of variants, all others. */
static weft_status_t set_aliases(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                                 const wefti_onnx_compiled_t *compiled)
{
    const size_t count = compiled->node_count;
    list_t persistent = open_list(params, "persistent"), variants = open_list(params, "variants");
    uint64_t pair[2];
    while (next_pair(&persistent, count, UINT32_MAX, pair)) {
        uint32_t value = output_at(graph, compiled, pair[0], pair[1]);
        if (value == WEFTI_NONE) {
            return bad_list(&persistent);
        }
        graph->values[value].flags |= WEFTI_VALUE_PERSISTENT;
    }
    while (next_pair(&variants, count, count, pair)) {
        const wefti_node_t *node = &graph->nodes[compiled->ids[pair[0]]];
        for (uint32_t k = 0; k < node->output_count; k++) {
            uint32_t value = node->outputs[k], of = output_at(graph, compiled, pair[1], k);
            if (value != WEFTI_NONE && of != WEFTI_NONE &&
                (graph->values[value].flags & WEFTI_VALUE_PERSISTENT) == 0) {
                graph->values[value].alias_of = of;
            }
        }
    }
    weft_status_t status = close_list(&persistent);
    return status < 0 ? status : close_list(&variants);
}

/* Nodes as runs of positions, first:last; at most as many as nodes has room for. */
static weft_status_t read_nodes(list_t *list, const wefti_onnx_compiled_t *compiled,
                                uint32_t *nodes, uint32_t capacity, uint32_t *out_count)
{
    uint64_t pair[2];
    *out_count = 0;
    while (next_pair(list, compiled->node_count, compiled->node_count, pair)) {
        if (pair[0] > pair[1] || pair[1] - pair[0] >= capacity - *out_count) {
            return bad_list(list);
        }
        for (uint64_t i = pair[0]; i <= pair[1]; i++) {
            nodes[(*out_count)++] = compiled->ids[i];
        }
    }
    return close_list(list);
}

static weft_status_t add_program(wefti_graph_t *graph, const wefti_onnx_property_t *program,
                                 wefti_arena_t *arena, const wefti_onnx_compiled_t *compiled)
{
    list_t list = {program->key, program->value, program->value};
    uint32_t count = 0;
    uint32_t *nodes = wefti_arena_array(arena, compiled->node_count, sizeof(*nodes));
    WEFT_RETURN_IF_NO_MEMORY(nodes);
    weft_status_t status =
        read_nodes(&list, compiled, nodes, (uint32_t)compiled->node_count, &count);
    return status < 0
               ? status
               : wefti_graph_add_program(graph, program->key + strlen(PROGRAM), nodes, count);
}

/* The order in which nodes run: each once, or not at all, which the verifier finds. */
static weft_status_t set_order(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                               wefti_arena_t *arena, const wefti_onnx_compiled_t *compiled)
{
    list_t list = open_list(params, "node_order");
    uint32_t count = 0;
    uint32_t *order = wefti_arena_array(arena, graph->order_count, sizeof(*order));
    WEFT_RETURN_IF_NO_MEMORY(order);
    weft_status_t status = read_nodes(&list, compiled, order, graph->order_count, &count);
    if (status >= 0 && count > 0) {
        status = count == graph->order_count ? WEFT_OK : bad_list(&list);
        memcpy(graph->order, order, count * sizeof(*order));
    }
    return status;
}

/* Files before 0.3 have no programs: passes make them. */
static weft_status_t add_programs(const wefti_onnx_import_params_t *params, wefti_graph_t *graph,
                                  wefti_arena_t *arena, const wefti_onnx_compiled_t *compiled)
{
    for (uint32_t i = 0; i < params->compiled_count; i++) {
        WEFT_RETURN_IF_ERROR(strncmp(params->compiled[i].key, PROGRAM, strlen(PROGRAM)) == 0
                                 ? add_program(graph, &params->compiled[i], arena, compiled)
                                 : WEFT_OK);
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
