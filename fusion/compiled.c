/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters in compiled graphs: the parameters of the compile are properties of the file, and the
 * defaults of the next compile.
 */
#include <string.h>

#include "fusion/fusion.h"
#include "fusion/compile.h"
#include "fusion/options.h"
#include "runtime/base/error.h"

#define MAX_PROPERTIES 64u

/* The text that the file has for a parameter, NULL: none. Older files have "shards". */
static const char *stored_param(const wefti_compiled_t *compiled, const char *key)
{
    const char *text = wefti_onnx_property(compiled->properties, compiled->count, key);
    return text == NULL && strcmp(key, "global_micro_batches") == 0
               ? wefti_onnx_property(compiled->properties, compiled->count, "shards")
               : text;
}

weft_status_t wefti_compiled_params(weft_compile_params_t *params, wefti_arena_t *arena,
                                    wefti_compiled_t *out)
{
    *out = (wefti_compiled_t){0};
    WEFT_RETURN_IF_ERROR(
        wefti_onnx_properties(params->model_path, arena, &out->properties, &out->count));
    const char *format = wefti_onnx_property(out->properties, out->count, "format");
    if (format == NULL) {
        out->count = 0;
        return WEFT_OK;
    }
    if (strcmp(format, "1") != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: unsupported format of a compiled graph: '%.20s', expected '1'",
                           params->model_path, format);
    }
    out->known = true;
    const weft_compile_option_t *option;
    for (size_t i = 0; (option = weft_compile_option(i)) != NULL; i++) {
        const char *given, *has = NULL;
        if ((option->flags & WEFT_OPTION_FLAG_IN_GRAPH) != 0 &&
            wefti_option_is_set(option, params)) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, option->field,
                                     "must not be set: %s is a compiled graph", params->model_path);
        }
        if ((option->flags & WEFT_OPTION_FLAG_RECORDED) == 0) {
            continue;
        }
        has = stored_param(out, option->name);
        WEFT_RETURN_IF_ERROR(wefti_option_format(option, params, arena, &given));
        if (given != NULL && (has == NULL || strcmp(given, has) != 0)) {
            return wefti_error_field(
                WEFT_ERR_INVALID_ARGUMENT, option->field,
                "%s, but the graph %s was compiled with %s and is not compiled again", given,
                params->model_path, has == NULL ? "the default" : has);
        }
        if (has != NULL && weft_compile_option_set(params, option->name, has) < 0) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: metadata weft.%s: invalid value '%.60s'",
                               params->model_path, option->name, has);
        }
    }
    return WEFT_OK;
}

/* Per value: the collective that reads it, or WEFTI_NONE. */
static uint32_t *find_collectives(const wefti_graph_t *graph, wefti_arena_t *arena)
{
    uint32_t *reader = wefti_arena_array(arena, (size_t)graph->value_count + 1, sizeof(*reader));
    for (uint32_t v = 0; reader != NULL && v < graph->value_count; v++) {
        reader[v] = WEFTI_NONE;
    }
    for (uint32_t i = 0; reader != NULL && i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; wefti_node_communicates(node) && k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                reader[node->inputs[k]] = graph->order[i];
            }
        }
    }
    for (uint32_t i = graph->order_count; reader != NULL && i-- > 0;) { /* through folds */
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        bool folds = wefti_graph_is_fold(graph, graph->order[i]);
        for (uint32_t k = 0; folds && k < node->output_count; k++) {
            reader[node->inputs[k]] = reader[node->outputs[k]] != WEFTI_NONE
                                          ? reader[node->outputs[k]]
                                          : reader[node->inputs[k]];
        }
    }
    return reader;
}

static const char *join_names(const wefti_plan_collective_t *collective, wefti_arena_t *arena)
{
    char *text = wefti_arena_strdup(arena, "");
    for (uint32_t i = 0; text != NULL && i < collective->algorithm_count; i++) {
        text = wefti_arena_printf(arena, "%s%s%s", text, i > 0 ? "," : "",
                                  collective->algorithms[i].name);
    }
    return text;
}

/* The node that a plan's collective is, or is a part of: one that the graph has makes the member,
 * and gave its name; a bucket's reads it. */
static uint32_t find_node(const wefti_graph_t *graph, const weft_plan_t *plan,
                          const wefti_plan_collective_t *collective, const uint32_t *reader)
{
    uint32_t buffer = collective->member_count > 0 ? collective->members[0] : collective->source;
    uint32_t value = buffer < plan->buffer_count
                         ? wefti_graph_find_value(graph, plan->buffers[buffer].name)
                         : WEFTI_NONE;
    if (value == WEFTI_NONE || graph->values[value].producer == WEFTI_NONE) {
        return WEFTI_NONE; /* weights at the beginning, or gathered */
    }
    const wefti_node_t *producer = &graph->nodes[graph->values[value].producer];
    bool own = wefti_node_communicates(producer) &&
               strncmp(collective->name, producer->name, strlen(producer->name)) == 0;
    return own ? graph->values[value].producer : reader[value];
}

/* What the plan chose, for the nodes of the file. Where parts of a node were given different
 * algorithms, it has no list: reading it chooses them again. */
static weft_status_t write_choices(const wefti_graph_t *graph, const weft_plan_t *plan,
                                   wefti_arena_t *arena, wefti_onnx_emit_t *emit)
{
    uint32_t *reader = find_collectives(graph, arena);
    /* By node: the first collective, and its list while all have the same. */
    uint32_t *first = wefti_id_map(arena, graph->node_count);
    const char **lists = wefti_arena_array(arena, (size_t)graph->node_count + 1, sizeof(*lists));
    WEFT_RETURN_IF_NO_MEMORY(reader && first && lists);
    for (uint32_t c = 0; c < plan->collective_count; c++) {
        uint32_t node = find_node(graph, plan, &plan->collectives[c], reader);
        if (node == WEFTI_NONE) {
            continue;
        }
        const char *names = join_names(&plan->collectives[c], arena);
        WEFT_RETURN_IF_NO_MEMORY(names);
        if (first[node] == WEFTI_NONE) {
            first[node] = c;
            lists[node] = names;
        } else if (lists[node] != NULL && strcmp(lists[node], names) != 0) {
            lists[node] = NULL;
        }
    }
    for (uint32_t node = 0; node < graph->node_count; node++) {
        if (first[node] == WEFTI_NONE) {
            continue;
        }
        const char *order = plan->collectives[first[node]].order;
        WEFT_RETURN_IF_ERROR(wefti_onnx_emit_choice(emit, node, first[node], lists[node],
                                                    order != NULL ? order : "tree"));
    }
    return WEFT_OK;
}

weft_status_t wefti_compiled_write(const weft_compile_params_t *params, const wefti_rules_t *rules,
                                   const wefti_graph_t *graph, const weft_plan_t *plan,
                                   wefti_arena_t *arena, wefti_onnx_emit_t *emit)
{
    weft_status_t status;
    wefti_onnx_property_t properties[MAX_PROPERTIES + WEFTI_PLAN_MAX_ALGORITHM_FILES + 1];
    uint32_t count = 0;
    WEFT_TRY(status, write_choices(graph, plan, arena, emit), fail);
    const weft_compile_option_t *option;
    for (size_t i = 0; (option = weft_compile_option(i)) != NULL; i++) {
        const char *text = NULL;
        if ((option->flags & WEFT_OPTION_FLAG_RECORDED) != 0) {
            WEFT_TRY(status, wefti_option_format(option, params, arena, &text), fail);
        }
        if (text != NULL && count < MAX_PROPERTIES) {
            properties[count++] = (wefti_onnx_property_t){option->name, text};
        }
    }
    for (uint32_t i = 0; i < rules->file_count; i++) {
        const char *key =
            wefti_arena_printf(arena, WEFTI_RULES_FILE_PROPERTY "%s", rules->files[i].path);
        status = key == NULL ? WEFT_ERR_NO_MEMORY : status;
        properties[count++] = (wefti_onnx_property_t){key, rules->files[i].text};
    }
    WEFT_TRY(status, status, fail);
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    WEFT_TRY(status, weft_plan_get_info(plan, &info), fail);
    properties[count++] = (wefti_onnx_property_t){"structure", info.structure_digest};
    status = wefti_onnx_emit_write(emit, properties, count, params->emit_path);
fail:
    return status < 0 ? (wefti_error_prefix(status, "%s", params->emit_path),
                         wefti_error_under_field(status, "emit_path"))
                      : WEFT_OK;
}

void wefti_compiled_compare(const wefti_compiled_t *compiled, const weft_plan_t *plan,
                            const wefti_log_t *log)
{
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    const char *digest = wefti_onnx_property(compiled->properties, compiled->count, "structure");
    if (digest != NULL && weft_plan_get_info(plan, &info) >= 0 &&
        strcmp(digest, info.structure_digest) != 0) {
        wefti_log(
            log, WEFT_LOG_LEVEL_WARN,
            "plan differs from the plan that the graph was written with: digest %.16s then, %.16s "
            "now; choices by cost need the same costs_path, profile_path and topology_path",
            digest, info.structure_digest);
    }
}
