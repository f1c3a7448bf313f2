/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled graphs on their way to a file and back: the parameters of the compile are properties of
 * the file, and stand in for those of the next one.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/fusion.h"
#include "fusion/compile.h"
#include "runtime/base/error.h"

typedef enum param_type { PARAM_U32, PARAM_I64, PARAM_F64, PARAM_TEXT, PARAM_FLAG } param_type_t;

/* What the plan depends on beyond the graph. */
static const struct param {
    const char *key, *field;
    param_type_t type;
    size_t offset;
} params_table[] = {
    {"world", "world_size", PARAM_U32, offsetof(weft_compile_params_t, world_size)},
    {"batch", "batch", PARAM_I64, offsetof(weft_compile_params_t, batch)},
    {"optimizer", "optimizer", PARAM_TEXT, offsetof(weft_compile_params_t, optimizer)},
    {"lr", "lr", PARAM_F64, offsetof(weft_compile_params_t, lr)},
    {"momentum", "momentum", PARAM_F64, offsetof(weft_compile_params_t, momentum)},
    {"weight_decay", "weight_decay", PARAM_F64, offsetof(weft_compile_params_t, weight_decay)},
    {"bucket", "bucket", PARAM_TEXT, offsetof(weft_compile_params_t, bucket)},
    {"shard_optimizer", "shard_optimizer", PARAM_FLAG,
     offsetof(weft_compile_params_t, shard_optimizer)},
    {"decouple", "decouple", PARAM_FLAG, offsetof(weft_compile_params_t, decouple)},
    {"accumulate", "accumulate", PARAM_U32, offsetof(weft_compile_params_t, accumulate)},
    {"global_micro_batches", "global_micro_batches", PARAM_U32,
     offsetof(weft_compile_params_t, global_micro_batches)},
    {"wire", "wire", PARAM_TEXT, offsetof(weft_compile_params_t, wire)},
    {"clip", "clip_norm", PARAM_F64, offsetof(weft_compile_params_t, clip_norm)},
    {"in_flight", "in_flight", PARAM_U32, offsetof(weft_compile_params_t, in_flight)},
    {"arena_limit", "arena_limit", PARAM_I64, offsetof(weft_compile_params_t, arena_limit)},
    {"infer", "infer", PARAM_FLAG, offsetof(weft_compile_params_t, infer)},
    {"split_batch", "split_batch", PARAM_FLAG, offsetof(weft_compile_params_t, split_batch)},
};
#define PARAM_COUNT (sizeof(params_table) / sizeof(params_table[0]))

/* The parameter as text, NULL where it is the default; in arena. */
static weft_status_t format_param(const weft_compile_params_t *params, const struct param *param,
                                  wefti_arena_t *arena, const char **out)
{
    const void *at = (const char *)params + param->offset;
    double number;
    int64_t i64;
    uint32_t u32;
    int flag;
    *out = NULL;
    switch (param->type) {
    case PARAM_U32:
        memcpy(&u32, at, sizeof(u32));
        if (u32 == 0) {
            return WEFT_OK;
        }
        *out = wefti_arena_printf(arena, "%" PRIu32, u32);
        break;
    case PARAM_I64:
        memcpy(&i64, at, sizeof(i64));
        if (i64 == 0) {
            return WEFT_OK;
        }
        *out = wefti_arena_printf(arena, "%" PRId64, i64);
        break;
    case PARAM_F64:
        memcpy(&number, at, sizeof(number));
        if (!(number > 0 || number < 0)) {
            return WEFT_OK;
        }
        *out = wefti_arena_printf(arena, "%.17g", number);
        break;
    case PARAM_TEXT:
        memcpy(out, at, sizeof(*out));
        return WEFT_OK;
    case PARAM_FLAG:
        memcpy(&flag, at, sizeof(flag));
        *out = flag ? "1" : NULL;
        return WEFT_OK;
    }
    return *out == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* The opposite; what is written is checked as any parameter is, later. */
static bool parse_param(weft_compile_params_t *params, const struct param *param, const char *text)
{
    void *at = (char *)params + param->offset;
    char *end = (char *)(uintptr_t) "";
    double number;
    int64_t i64;
    uint32_t u32;
    int flag = 1;
    switch (param->type) {
    case PARAM_U32:
        i64 = strtoll(text, &end, 10);
        u32 = i64 >= 0 && i64 <= UINT32_MAX ? (uint32_t)i64 : 0;
        memcpy(at, &u32, sizeof(u32));
        return *end == '\0' && u32 != 0;
    case PARAM_I64:
        i64 = strtoll(text, &end, 10);
        memcpy(at, &i64, sizeof(i64));
        return *end == '\0' && i64 > 0;
    case PARAM_F64:
        number = strtod(text, &end);
        memcpy(at, &number, sizeof(number));
        return *end == '\0' && number > 0;
    case PARAM_TEXT:
        memcpy(at, &text, sizeof(text));
        return true;
    case PARAM_FLAG:
        memcpy(at, &flag, sizeof(flag));
        return strcmp(text, "1") == 0;
    }
    return false;
}

static weft_status_t refuse_more(const weft_compile_params_t *params)
{
    const char *what = params->shape_count > 0        ? "shapes"
                       : params->loss != NULL         ? "loss"
                       : params->grads_path != NULL   ? "grads_path"
                       : params->rank_model_count > 0 ? "rank_models"
                                                      : NULL;
    return what == NULL
               ? WEFT_OK
               : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, what,
                                   "must not be set: %s is a compiled graph", params->model_path);
}

/* The text that the file has for a parameter, NULL: none. Files before 0.2 wrote "shards". */
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
    weft_status_t status;
    *out = (wefti_compiled_t){0};
    WEFT_TRY(status,
             wefti_onnx_properties(params->model_path, arena, &out->properties, &out->count), fail);
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
    WEFT_TRY(status, refuse_more(params), fail);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const struct param *param = &params_table[i];
        const char *has = stored_param(out, param->key), *given;
        WEFT_TRY(status, format_param(params, param, arena, &given), fail);
        if (given != NULL && (has == NULL || strcmp(given, has) != 0)) {
            return wefti_error_field(
                WEFT_ERR_INVALID_ARGUMENT, param->field,
                "%s, but the graph %s was compiled with %s and is not compiled again", given,
                params->model_path, has == NULL ? "the default" : has);
        }
        if (has != NULL && !parse_param(params, param, has)) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: metadata weft.%s: invalid value '%.60s'",
                               params->model_path, param->key, has);
        }
    }
fail:
    return status;
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
        for (uint32_t k = 0;
             (node->def->effects & WEFT_EFFECT_COMMUNICATES) != 0 && k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                reader[node->inputs[k]] = graph->order[i];
            }
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
    bool own = (producer->def->effects & WEFT_EFFECT_COMMUNICATES) != 0 &&
               strncmp(collective->name, producer->name, strlen(producer->name)) == 0;
    return own ? graph->values[value].producer : reader[value];
}

/* What the plan chose, for the nodes of the file. Where parts of a node were given different
 * algorithms, it has no list: reading it chooses them again. */
static weft_status_t write_choices(const wefti_graph_t *graph, const weft_plan_t *plan,
                                   wefti_arena_t *arena, wefti_onnx_emit_t *emit)
{
    weft_status_t status = WEFT_OK;
    uint32_t *reader = find_collectives(graph, arena);
    /* By node: the first collective, and its list while all have the same. */
    uint32_t *first = wefti_arena_array(arena, (size_t)graph->node_count + 1, sizeof(*first));
    const char **lists = wefti_arena_array(arena, (size_t)graph->node_count + 1, sizeof(*lists));
    if (reader == NULL || first == NULL || lists == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(first, 0xff, ((size_t)graph->node_count + 1) * sizeof(*first));
    for (uint32_t c = 0; c < plan->collective_count; c++) {
        uint32_t node = find_node(graph, plan, &plan->collectives[c], reader);
        if (node == WEFTI_NONE) {
            continue;
        }
        const char *names = join_names(&plan->collectives[c], arena);
        WEFT_TRY(status, names == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, fail);
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
        WEFT_TRY(status,
                 wefti_onnx_emit_choice(emit, node, first[node], lists[node],
                                        order != NULL ? order : "tree"),
                 fail);
    }
fail:
    return status;
}

weft_status_t wefti_compiled_write(const weft_compile_params_t *params, const wefti_graph_t *graph,
                                   const weft_plan_t *plan, wefti_arena_t *arena,
                                   wefti_onnx_emit_t *emit)
{
    weft_status_t status;
    wefti_onnx_property_t properties[PARAM_COUNT + 1];
    uint32_t count = 0;
    WEFT_TRY(status, write_choices(graph, plan, arena, emit), fail);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const char *text;
        WEFT_TRY(status, format_param(params, &params_table[i], arena, &text), fail);
        if (text != NULL) {
            properties[count++] = (wefti_onnx_property_t){params_table[i].key, text};
        }
    }
    weft_plan_info_t info = {.struct_size = sizeof info};
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
    weft_plan_info_t info = {.struct_size = sizeof info};
    const char *digest = wefti_onnx_property(compiled->properties, compiled->count, "structure");
    if (digest != NULL && weft_plan_get_info(plan, &info) >= 0 &&
        strcmp(digest, info.structure_digest) != 0) {
        wefti_log(
            log, WEFT_LOG_WARN,
            "plan differs from the plan that the graph was written with: digest %.16s then, %.16s "
            "now; choices by cost need the same costs_path, profile_path and topology_path",
            digest, info.structure_digest);
    }
}
