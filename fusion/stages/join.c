/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several models in one plan: the graphs of the others are added to that of rank 0, and every rank
 * gets all outputs. Rank r computes what leads to outputs of model r, or to what it sends
 * (graph/places.c).
 *
 * A name of an input or output that several models have gets the model in front, without the ending
 * of its file: "text.input".
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"
#include "runtime/base/error.h"

/* "image" of "models/image.onnx". */
static const char *stem_of(wefti_arena_t *arena, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    const char *dot = strrchr(name, '.');
    return dot == NULL || dot == name ? name
                                      : wefti_arena_printf(arena, "%.*s", (int)(dot - name), name);
}

/* Inputs and outputs of a graph that have this name. */
static uint32_t count_named(const wefti_graph_t *graph, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->input_count; i++) {
        count += strcmp(graph->values[graph->inputs[i]].name, name) == 0;
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        count += strcmp(graph->values[graph->outputs[i]].name, name) == 0;
    }
    return count;
}

/* Renames those of a model that another one has as well. */
static weft_status_t separate(wefti_compiler_t *c, uint32_t model, const uint32_t *ids,
                              uint32_t count, const char **names)
{
    wefti_graph_t *graph = c->models[model].graph;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = graph->values[ids[i]].name;
        bool shared = false;
        for (uint32_t m = 0; m < c->model_count; m++) {
            shared = shared || (m != model && count_named(c->models[m].graph, name) > 0);
        }
        names[i] = shared ? wefti_arena_printf(&c->arena, "%s.%s",
                                               stem_of(&c->arena, c->models[model].path), name)
                          : NULL;
        WEFT_RETURN_IF_NO_MEMORY(!shared || names[i] != NULL);
    }
    return WEFT_OK;
}

static weft_status_t rename_all(wefti_graph_t *graph, const uint32_t *ids, uint32_t count,
                                const char *const *names)
{
    for (uint32_t i = 0; i < count; i++) {
        if (names[i] != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, ids[i], names[i]));
        }
    }
    return WEFT_OK;
}

/* All names are found before any changes. */
static weft_status_t separate_names(wefti_compiler_t *c)
{
    const char ***inputs = wefti_arena_array(&c->arena, c->model_count, sizeof(*inputs));
    const char ***outputs = wefti_arena_array(&c->arena, c->model_count, sizeof(*outputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs && outputs);
    for (uint32_t m = 0; m < c->model_count; m++) {
        const wefti_graph_t *graph = c->models[m].graph;
        inputs[m] = wefti_arena_array(&c->arena, graph->input_count, sizeof(char *));
        outputs[m] = wefti_arena_array(&c->arena, graph->output_count, sizeof(char *));
        WEFT_RETURN_IF_NO_MEMORY(inputs[m] && outputs[m]);
        WEFT_RETURN_IF_ERROR(separate(c, m, graph->inputs, graph->input_count, inputs[m]));
        WEFT_RETURN_IF_ERROR(separate(c, m, graph->outputs, graph->output_count, outputs[m]));
    }
    for (uint32_t m = 0; m < c->model_count; m++) {
        wefti_graph_t *graph = c->models[m].graph;
        WEFT_RETURN_IF_ERROR(rename_all(graph, graph->inputs, graph->input_count, inputs[m]));
        WEFT_RETURN_IF_ERROR(rename_all(graph, graph->outputs, graph->output_count, outputs[m]));
    }
    return WEFT_OK;
}

/* Values that no node computes; then map[v] is the value in graph. */
static weft_status_t add_values(wefti_graph_t *graph, const wefti_graph_t *other, uint32_t *map)
{
    for (uint32_t v = 0; v < other->value_count; v++) {
        const wefti_value_t *value = &other->values[v];
        if (value->kind == WEFTI_VALUE_NODE) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(
            wefti_graph_add_value(graph, value->name, value->kind, &value->type, &map[v]));
        graph->values[map[v]].default_value = value->default_value;
        graph->values[map[v]].flags = value->flags; /* may be an output as well */
    }
    return WEFT_OK;
}

static weft_status_t add_node(wefti_graph_t *graph, const wefti_graph_t *other, uint32_t id,
                              uint32_t *map, wefti_arena_t *arena)
{
    const wefti_node_t *node = &other->nodes[id];
    wefti_node_params_t params = wefti_node_params_of(node);
    uint32_t added;
    uint32_t *inputs = wefti_arena_array(arena, node->input_count, sizeof(*inputs));
    const char **names = wefti_arena_array(arena, node->output_count, sizeof(*names));
    bool *absent = wefti_arena_array(arena, node->output_count, sizeof(*absent));
    WEFT_RETURN_IF_NO_MEMORY(inputs && names && absent);
    for (uint32_t i = 0; i < node->input_count; i++) {
        inputs[i] = node->inputs[i] == WEFTI_NONE ? WEFTI_NONE : map[node->inputs[i]];
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        absent[i] = node->outputs[i] == WEFTI_NONE;
        names[i] = absent[i] ? NULL : other->values[node->outputs[i]].name;
    }
    params.name = node->name;
    params.inputs = inputs;
    params.output_names = names;
    params.output_absent = absent;
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &added));
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (!absent[i]) {
            map[node->outputs[i]] = graph->nodes[added].outputs[i];
        }
    }
    return WEFT_OK;
}

static weft_status_t add_graph(wefti_graph_t *graph, const wefti_graph_t *other, uint32_t rank,
                               wefti_arena_t *arena)
{
    uint32_t *map = wefti_id_map(arena, other->value_count);
    WEFT_RETURN_IF_NO_MEMORY(map);
    WEFT_RETURN_IF_ERROR(add_values(graph, other, map));
    for (uint32_t i = 0; i < other->order_count; i++) {
        WEFT_RETURN_IF_ERROR(add_node(graph, other, other->order[i], map, arena));
    }
    for (uint32_t i = 0; i < other->output_count; i++) {
        WEFT_RETURN_IF_ERROR(wefti_graph_add_output(graph, map[other->outputs[i]]));
        WEFT_RETURN_IF_ERROR(wefti_stages_share_output(graph, graph->output_count - 1, rank));
    }
    return WEFT_OK;
}

weft_status_t wefti_stages_join(wefti_compiler_t *c)
{
    wefti_graph_t *graph = c->models[0].graph;
    uint32_t own = graph->output_count;
    uint32_t *first_node = wefti_arena_array(&c->arena, c->model_count, sizeof(*first_node));
    WEFT_RETURN_IF_NO_MEMORY(first_node);
    WEFT_RETURN_IF_ERROR(separate_names(c));
    for (uint32_t i = 0; i < own; i++) {
        WEFT_RETURN_IF_ERROR(wefti_stages_share_output(graph, i, 0));
    }
    for (uint32_t m = 1; m < c->model_count; m++) {
        first_node[m] = graph->node_count;
        WEFT_RETURN_IF_ERROR(add_graph(graph, c->models[m].graph, m, &c->arena));
    }
    WEFT_RETURN_IF_ERROR(wefti_stages_pair(c, first_node));
    wefti_compile_set_mesh(c, "model", c->model_count);
    c->place_group = WEFTI_GROUP_STAGE;
    return wefti_graph_sort(graph);
}
