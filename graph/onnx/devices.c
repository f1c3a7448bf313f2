/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multi-device annotations (ONNX 1.18, IR 11): how each node divides its inputs and outputs over
 * the devices of a configuration. They are read from the bytes of the file. What Weft cannot
 * execute is an error that names node and tensor.
 *
 * Where all specs have the same number of shards, and there are several times as many devices, each
 * shard is on a group of devices (index_to_device_group_map): a mesh of two axes.
 */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

enum {
    MODEL_GRAPH = 7,
    MODEL_FUNCTION = 25,
    MODEL_CONFIGURATION = 26,
    GRAPH_NODE = 1,
    FUNCTION_NODE = 7,
    NODE_INPUT = 1,
    NODE_OUTPUT = 2,
    NODE_NAME = 3,
    NODE_OP = 4,
    NODE_ATTRIBUTE = 5,
    NODE_CONFIGURATION = 10,
    ATTRIBUTE_GRAPH = 6,
    ATTRIBUTE_GRAPHS = 11,
    CONFIGURATION_NAME = 1,
    CONFIGURATION_DEVICES = 2,
    USE_ID = 1, /* NodeDeviceConfigurationProto */
    USE_SPEC = 2,
    USE_STAGE = 3,
    SPEC_TENSOR = 1, /* ShardingSpecProto */
    SPEC_DEVICE = 2,
    SPEC_GROUP = 3,
    SPEC_DIM = 4,
    GROUP_KEY = 1, /* IntIntListEntryProto */
    GROUP_DEVICE = 2,
    DIM_AXIS = 1, /* ShardedDimProto */
    DIM_SIMPLE = 2,
    SIMPLE_VALUE = 1, /* SimpleShardedDimProto */
    SIMPLE_SHARDS = 3,
    WIRE_BYTES = 2
};

/* The limit of world_size. */
#define MOST_DEVICES 65536

/* More configurations than a model has uses for. */
#define MOST_CONFIGURATIONS 64u

#define NO_SHARD UINT32_MAX

static bool is_text(const wefti_onnx_field_t *field, const char *text)
{
    return field->size_bytes == strlen(text) && memcmp(field->payload, text, strlen(text)) == 0;
}

static bool same_text(const wefti_onnx_field_t *a, const wefti_onnx_field_t *b)
{
    return a->size_bytes == b->size_bytes &&
           (a->size_bytes == 0 || memcmp(a->payload, b->payload, a->size_bytes) == 0);
}

static char *copy_text(wefti_arena_t *arena, const wefti_onnx_field_t *text)
{
    char *copy = wefti_arena_alloc(arena, text->size_bytes + 1);
    if (copy != NULL) {
        memcpy(copy, text->payload, text->size_bytes);
        copy[text->size_bytes] = '\0';
    }
    return copy;
}

/* Annotated nodes of a graph, its subgraphs and functions. */
static uint32_t count_nodes(wefti_onnx_cursor_t graph, uint32_t node_id, uint32_t depth)
{
    uint32_t count = 0;
    wefti_onnx_field_t node, part, body;
    while (depth < WEFTI_ONNX_MAX_DEPTH && wefti_onnx_next_message(&graph, &node)) {
        wefti_onnx_cursor_t parts = wefti_onnx_inside(&node);
        while (node.id == node_id && wefti_onnx_next_message(&parts, &part)) {
            count += part.id == NODE_CONFIGURATION;
            wefti_onnx_cursor_t attribute = wefti_onnx_inside(&part);
            while (part.id == NODE_ATTRIBUTE && wefti_onnx_next_message(&attribute, &body)) {
                if (body.id == ATTRIBUTE_GRAPH || body.id == ATTRIBUTE_GRAPHS) {
                    count += count_nodes(wefti_onnx_inside(&body), GRAPH_NODE, depth + 1);
                }
            }
        }
    }
    return count;
}

static uint32_t count_annotations(wefti_onnx_cursor_t in, uint32_t *out_configurations)
{
    uint32_t nodes = 0;
    wefti_onnx_field_t field;
    *out_configurations = 0;
    while (wefti_onnx_next_message(&in, &field)) {
        *out_configurations += field.id == MODEL_CONFIGURATION;
        if (field.id == MODEL_GRAPH || field.id == MODEL_FUNCTION) {
            nodes += count_nodes(wefti_onnx_inside(&field),
                                 field.id == MODEL_GRAPH ? GRAPH_NODE : FUNCTION_NODE, 0);
        }
    }
    return nodes;
}

uint32_t wefti_onnx_count_device_configurations(const wefti_onnx_file_t *file)
{
    uint32_t configurations;
    const wefti_onnx_cursor_t in = {file->data, file->data + file->size_bytes};
    uint32_t nodes = count_annotations(in, &configurations);
    return configurations + nodes;
}

/* ---- the configuration that is executed ---- */

typedef struct configuration {
    wefti_onnx_field_t name;
    int64_t devices;
} configuration_t;

static weft_status_t list_configurations(wefti_onnx_cursor_t in, const char *label,
                                         configuration_t *out, uint32_t *out_count)
{
    wefti_onnx_field_t field, part;
    uint32_t count = 0;
    while (wefti_onnx_next_message(&in, &field)) {
        if (field.id != MODEL_CONFIGURATION) {
            continue;
        }
        if (count == MOST_CONFIGURATIONS) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: too many device configurations: limit %u",
                               label, MOST_CONFIGURATIONS);
        }
        configuration_t *c = &out[count++];
        *c = (configuration_t){.name = {.payload = (const uint8_t *)""}};
        wefti_onnx_cursor_t parts = wefti_onnx_inside(&field);
        while (parts.at < parts.end) {
            const char *problem = wefti_onnx_next_field(&parts, &part);
            if (problem != NULL) {
                return wefti_error(WEFT_ERR_FORMAT, "%s: configuration[%u]: %s", label, count - 1,
                                   problem);
            }
            if (part.id == CONFIGURATION_NAME && part.wire == WIRE_BYTES) {
                c->name = part;
            } else if (part.id == CONFIGURATION_DEVICES && part.wire == 0) {
                c->devices = (int32_t)part.value;
            }
        }
        const int length = (int)(c->name.size_bytes < 100 ? c->name.size_bytes : 100);
        for (uint32_t i = 0; i + 1 < count; i++) {
            if (same_text(&out[i].name, &c->name)) {
                return wefti_error(WEFT_ERR_FORMAT, "%s: duplicate device configuration '%.*s'",
                                   label, length, (const char *)c->name.payload);
            }
        }
        if (c->devices < 1 || c->devices > MOST_DEVICES) {
            return wefti_error(
                WEFT_ERR_FORMAT,
                "%s: device configuration '%.*s': num_devices must be between 1 and %d: "
                "%lld",
                label, length, (const char *)c->name.payload, MOST_DEVICES, (long long)c->devices);
        }
    }
    *out_count = count;
    return WEFT_OK;
}

/* The number of shards that all sharded dimensions of a configuration have, or 1. */
static int64_t common_shards(wefti_onnx_cursor_t in, const wefti_onnx_field_t *id, int64_t found)
{
    /* From the model to num_shards; a node's configuration has to be the chosen one. */
    static const uint32_t path[] = {MODEL_GRAPH, GRAPH_NODE, NODE_CONFIGURATION,
                                    USE_SPEC,    SPEC_DIM,   DIM_SIMPLE};
    enum { DEEPEST = sizeof path / sizeof *path };
    wefti_onnx_cursor_t at[DEEPEST + 1] = {in};
    wefti_onnx_field_t field, name;
    for (uint32_t depth = 0;;) {
        if (depth == DEEPEST) {
            while (at[depth].at < at[depth].end &&
                   wefti_onnx_next_field(&at[depth], &field) == NULL) {
                if (field.id == SIMPLE_SHARDS && field.wire == 0 && (int64_t)field.value > 1) {
                    found = found == 1 || found == (int64_t)field.value ? (int64_t)field.value : 0;
                }
            }
            depth--;
        } else if (!wefti_onnx_next_message(&at[depth], &field)) {
            if (depth-- == 0) {
                return found > 0 ? found : 1;
            }
        } else if (field.id == path[depth]) {
            bool other = false;
            wefti_onnx_cursor_t parts = wefti_onnx_inside(&field);
            while (path[depth] == NODE_CONFIGURATION && depth == 2 &&
                   wefti_onnx_next_message(&parts, &name)) {
                other = other || (name.id == USE_ID && !same_text(&name, id));
            }
            at[++depth] = wefti_onnx_inside(&field);
            depth -= other;
        }
    }
}

static weft_status_t choose(wefti_onnx_cursor_t in, const configuration_t *list, uint32_t count,
                            uint32_t wanted, const char *label, wefti_arena_t *arena,
                            wefti_onnx_devices_t *out)
{
    const configuration_t *chosen = count == 1 ? &list[0] : NULL;
    uint32_t fitting = 0;
    if (count == 0) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: nodes have device configurations, but the model has none", label);
    }
    for (uint32_t i = 0; i < count && wanted > 1; i++) {
        fitting += list[i].devices == wanted;
        chosen = list[i].devices == wanted ? &list[i] : chosen;
    }
    if (count > 1 && fitting != 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: conflicting device configurations: %u, of which %u have as many "
                           "devices as tensor_parallel %u; set it to num_devices of one of them",
                           label, count, fitting, wanted);
    }
    out->configuration = copy_text(arena, &chosen->name);
    WEFT_RETURN_IF_NO_MEMORY(out->configuration);
    const int64_t shards = common_shards(in, &chosen->name, 1);
    const bool mesh = shards > 1 && chosen->devices % shards == 0;
    out->count = (uint32_t)(mesh ? shards : chosen->devices);
    out->replicas = (uint32_t)(mesh ? chosen->devices / shards : 1);
    return WEFT_OK;
}

weft_status_t wefti_onnx_devices(const char *path, uint32_t wanted, wefti_arena_t *arena,
                                 wefti_onnx_devices_t *out)
{
    wefti_mapping_t file = {0};
    configuration_t list[MOST_CONFIGURATIONS];
    uint32_t count = 0;
    *out = (wefti_onnx_devices_t){0};
    weft_status_t status = wefti_file_map(path, &file);
    if (status < 0) {
        return status;
    }
    if (file.size_bytes > 0) {
        const uint8_t *data = file.data;
        const wefti_onnx_cursor_t in = {data, data + file.size_bytes};
        if (count_annotations(in, &count) > 0) {
            status = list_configurations(in, path, list, &count);
            status = status < 0 ? status : choose(in, list, count, wanted, path, arena, out);
        }
    }
    wefti_file_unmap(&file);
    return status;
}

/* ---- annotations of nodes ---- */

typedef struct reader {
    const wefti_onnx_file_t *file;
    const wefti_onnx_devices_t *devices;
    const configuration_t *configurations;
    uint32_t configuration_count;
    wefti_graph_t *graph;
    size_t capacity;
    int64_t devices_all;
    uint32_t *shard; /* by device; NO_SHARD: none yet */
    /* of the present node */
    wefti_onnx_cursor_t node;
    uint32_t first; /* its first sharding */
    const char *label, *output;
} reader_t;

/* One sharding_spec, as the file has it. */
typedef struct spec {
    wefti_onnx_field_t tensor, message;
    bool has_tensor, split;
    int64_t axis, shards, dim;
    uint32_t device_count, group_count;
} spec_t;

static weft_status_t refuse(const reader_t *r, const wefti_onnx_field_t *tensor, const char *what)
{
    const int length = (int)(tensor->size_bytes < 100 ? tensor->size_bytes : 100);
    return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s: sharding of '%.*s': %s", r->file->label,
                       r->label, length, (const char *)tensor->payload, what);
}

static weft_status_t refuse_numbers(const reader_t *r, const wefti_onnx_field_t *tensor,
                                    const char *what, int64_t a, const char *and, int64_t b)
{
    char text[160];
    snprintf(text, sizeof text, "%s: %lld, %s %lld", what, (long long)a, and, (long long)b);
    return refuse(r, tensor, text);
}

static weft_status_t read(const reader_t *r, wefti_onnx_cursor_t *in, wefti_onnx_field_t *out)
{
    const char *problem = wefti_onnx_next_field(in, out);
    return problem == NULL ? WEFT_OK
                           : wefti_error(WEFT_ERR_FORMAT, "%s: %s: device_configurations: %s",
                                         r->file->label, r->label, problem);
}

/* A repeated integer: one, or packed ones. */
typedef weft_status_t (*visit_t)(reader_t *r, spec_t *spec, int64_t value);

static weft_status_t visit_integers(reader_t *r, spec_t *spec, const wefti_onnx_field_t *field,
                                    visit_t visit)
{
    if (field->wire == 0) {
        return visit(r, spec, (int64_t)field->value);
    }
    const uint8_t *at = field->payload, *end = at + field->size_bytes;
    while (field->wire == WIRE_BYTES && at < end) {
        uint64_t value = 0;
        uint32_t shift = 0;
        do {
            value |= shift < 64 ? (uint64_t)(*at & 0x7f) << shift : 0;
            shift += 7;
        } while ((*at++ & 0x80) != 0 && at < end);
        WEFT_RETURN_IF_ERROR(visit(r, spec, (int64_t)value));
    }
    return WEFT_OK;
}

static weft_status_t add_device(reader_t *r, spec_t *spec, int64_t device)
{
    if (device < 0 || device >= r->devices_all) {
        return refuse_numbers(r, &spec->tensor, "no such device", device, "num_devices",
                              r->devices_all);
    }
    if (r->shard[device] != NO_SHARD) {
        return refuse_numbers(r, &spec->tensor, "a device has several shards", device,
                              "num_devices", r->devices_all);
    }
    r->shard[device] = spec->device_count - 1;
    return WEFT_OK;
}

/* The entries of index_to_device_group_map with this key. */
static weft_status_t add_group(reader_t *r, spec_t *spec, int64_t key, bool *out_found)
{
    wefti_onnx_cursor_t in = wefti_onnx_inside(&spec->message);
    wefti_onnx_field_t field, part;
    *out_found = false;
    while (in.at < in.end) {
        int64_t own = 0;
        WEFT_RETURN_IF_ERROR(read(r, &in, &field));
        if (field.id != SPEC_GROUP || field.wire != WIRE_BYTES) {
            continue;
        }
        wefti_onnx_cursor_t parts = wefti_onnx_inside(&field);
        while (parts.at < parts.end) {
            WEFT_RETURN_IF_ERROR(read(r, &parts, &part));
            own = part.id == GROUP_KEY && part.wire == 0 ? (int64_t)part.value : own;
        }
        if (own != key) {
            continue;
        }
        *out_found = true;
        for (parts = wefti_onnx_inside(&field); parts.at < parts.end;) {
            WEFT_RETURN_IF_ERROR(read(r, &parts, &part));
            if (part.id == GROUP_DEVICE) {
                WEFT_RETURN_IF_ERROR(visit_integers(r, spec, &part, add_device));
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t add_entry(reader_t *r, spec_t *spec, int64_t device)
{
    bool found = false;
    spec->device_count++;
    if (spec->group_count > 0) {
        WEFT_RETURN_IF_ERROR(add_group(r, spec, device, &found));
    }
    return found ? WEFT_OK : add_device(r, spec, device);
}

static weft_status_t read_dim(reader_t *r, spec_t *spec, const wefti_onnx_field_t *message)
{
    wefti_onnx_cursor_t in = wefti_onnx_inside(message);
    wefti_onnx_field_t field, part;
    int64_t axis = 0, shards = 1, dim = -1, product = 1;
    uint32_t count = 0;
    bool has_axis = false;
    while (in.at < in.end) {
        WEFT_RETURN_IF_ERROR(read(r, &in, &field));
        if (field.id == DIM_AXIS && field.wire == 0) {
            axis = (int64_t)field.value;
            has_axis = true;
        }
        if (field.id != DIM_SIMPLE || field.wire != WIRE_BYTES) {
            continue;
        }
        wefti_onnx_cursor_t parts = wefti_onnx_inside(&field);
        shards = 0;
        while (parts.at < parts.end) {
            WEFT_RETURN_IF_ERROR(read(r, &parts, &part));
            shards = part.id == SIMPLE_SHARDS && part.wire == 0 ? (int64_t)part.value : shards;
            dim = part.id == SIMPLE_VALUE && part.wire == 0 ? (int64_t)part.value : dim;
        }
        if (shards < 1) {
            return refuse_numbers(r, &spec->tensor, "num_shards must be at least 1", shards, "axis",
                                  axis);
        }
        product = shards > 1 ? shards : product;
        count++;
    }
    if (!has_axis || count == 0) {
        return refuse(r, &spec->tensor,
                      !has_axis ? "sharded_dim without axis"
                                : "sharded_dim without simple_sharding");
    }
    if (product == 1) {
        return WEFT_OK;
    }
    if (count > 1) {
        return refuse_numbers(r, &spec->tensor, "an axis has several entries of simple_sharding",
                              count, "axis", axis);
    }
    if (spec->split) {
        return refuse_numbers(r, &spec->tensor, "several axes are sharded, limit 1: axes",
                              spec->axis, "and", axis);
    }
    spec->split = true;
    spec->axis = axis;
    spec->shards = shards;
    spec->dim = dim;
    return WEFT_OK;
}

static bool node_has(const reader_t *r, uint32_t id, const wefti_onnx_field_t *name)
{
    wefti_onnx_cursor_t in = r->node;
    wefti_onnx_field_t field;
    while (wefti_onnx_next_message(&in, &field)) {
        if (field.id == id && same_text(&field, name)) {
            return true;
        }
    }
    return false;
}

static weft_status_t keep(reader_t *r, const spec_t *spec)
{
    wefti_graph_t *graph = r->graph;
    const bool is_output = node_has(r, NODE_OUTPUT, &spec->tensor);
    if (!is_output && !node_has(r, NODE_INPUT, &spec->tensor)) {
        return refuse(r, &spec->tensor, "not an input or output of the node");
    }
    for (uint32_t i = r->first; i < graph->sharding_count; i++) {
        if (is_text(&spec->tensor, graph->shardings[i].tensor)) {
            return refuse(r, &spec->tensor, "several sharding specs for one tensor");
        }
    }
    if (graph->sharding_count == r->capacity) {
        size_t capacity = r->capacity * 2 + 64;
        wefti_sharding_t *more = wefti_arena_array(&graph->arena, capacity, sizeof(*more));
        WEFT_RETURN_IF_NO_MEMORY(more);
        if (graph->sharding_count > 0) {
            memcpy(more, graph->shardings, graph->sharding_count * sizeof(*more));
        }
        graph->shardings = more;
        r->capacity = capacity;
    }
    char *tensor = copy_text(&graph->arena, &spec->tensor);
    WEFT_RETURN_IF_NO_MEMORY(tensor);
    graph->shardings[graph->sharding_count++] = (wefti_sharding_t){.node = r->label,
                                                                   .output = r->output,
                                                                   .tensor = tensor,
                                                                   .is_output = is_output,
                                                                   .split = spec->split,
                                                                   .axis = spec->axis,
                                                                   .dim = spec->dim};
    return WEFT_OK;
}

static weft_status_t check_devices(reader_t *r, const spec_t *spec)
{
    const int64_t shards = r->devices->count;
    int64_t count = 0;
    bool in_order = true;
    /* One of several devices for a shard needs a list. */
    if (spec->split &&
        (spec->shards != shards || (shards < r->devices_all && spec->device_count == 0))) {
        return refuse_numbers(r, &spec->tensor, "num_shards differs from num_devices", spec->shards,
                              "num_devices", r->devices_all);
    }
    for (int64_t i = 0; i < r->devices_all; i++) {
        count += r->shard[i] != NO_SHARD;
        in_order = in_order && (int64_t)r->shard[i] == i % shards;
    }
    if (spec->device_count > 0 && count != r->devices_all) {
        return refuse_numbers(r, &spec->tensor, "a subset of the devices", count, "num_devices",
                              r->devices_all);
    }
    return spec->split && spec->device_count > 0 && !in_order
               ? refuse(r, &spec->tensor,
                        r->devices->replicas == 1
                            ? "shards must be on devices 0, 1, .. in this order"
                            : "device d must have shard d % num_shards")
               : WEFT_OK;
}

static weft_status_t read_spec(reader_t *r, const wefti_onnx_field_t *message)
{
    spec_t spec = {.message = *message, .dim = -1, .tensor = {.payload = (const uint8_t *)""}};
    wefti_onnx_cursor_t in = wefti_onnx_inside(message);
    wefti_onnx_field_t field;
    while (in.at < in.end) {
        WEFT_RETURN_IF_ERROR(read(r, &in, &field));
        if (field.id == SPEC_TENSOR && field.wire == WIRE_BYTES) {
            spec.tensor = field;
            spec.has_tensor = true;
        }
        spec.group_count += field.id == SPEC_GROUP;
    }
    if (!spec.has_tensor || spec.tensor.size_bytes == 0) {
        return refuse(r, &spec.tensor, "tensor_name is empty");
    }
    memset(r->shard, 0xff, (size_t)r->devices_all * sizeof(*r->shard));
    for (in = wefti_onnx_inside(message); in.at < in.end;) {
        WEFT_RETURN_IF_ERROR(read(r, &in, &field));
        if (field.id == SPEC_DEVICE) {
            WEFT_RETURN_IF_ERROR(visit_integers(r, &spec, &field, add_entry));
        } else if (field.id == SPEC_DIM && field.wire == WIRE_BYTES) {
            WEFT_RETURN_IF_ERROR(read_dim(r, &spec, &field));
        }
    }
    WEFT_RETURN_IF_ERROR(check_devices(r, &spec));
    return keep(r, &spec);
}

static bool is_known(const reader_t *r, const wefti_onnx_field_t *id)
{
    for (uint32_t i = 0; i < r->configuration_count; i++) {
        if (same_text(&r->configurations[i].name, id)) {
            return true;
        }
    }
    return false;
}

/* One NodeDeviceConfigurationProto. Those of other configurations are alternatives. */
static weft_status_t read_use(reader_t *r, const wefti_onnx_field_t *message, bool *used)
{
    wefti_onnx_cursor_t in = wefti_onnx_inside(message);
    wefti_onnx_field_t field, id = {.payload = (const uint8_t *)""};
    int64_t stage = 0;
    while (in.at < in.end) {
        WEFT_RETURN_IF_ERROR(read(r, &in, &field));
        id = field.id == USE_ID && field.wire == WIRE_BYTES ? field : id;
        stage = field.id == USE_STAGE && field.wire == 0 ? (int32_t)field.value : stage;
    }
    const int length = (int)(id.size_bytes < 100 ? id.size_bytes : 100);
    if (!is_known(r, &id)) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s: unknown configuration_id '%.*s'",
                           r->file->label, r->label, length, (const char *)id.payload);
    }
    if (!is_text(&id, r->devices->configuration)) {
        return WEFT_OK;
    }
    if (*used) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s: duplicate configuration_id '%.*s'",
                           r->file->label, r->label, length, (const char *)id.payload);
    }
    *used = true;
    if (stage != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: %s: pipeline_stage %lld is not supported: all devices compute all "
                           "nodes; set tensor_parallel 1 and pipeline to divide by cost",
                           r->file->label, r->label, (long long)stage);
    }
    for (in = wefti_onnx_inside(message); in.at < in.end;) {
        WEFT_RETURN_IF_ERROR(read(r, &in, &field));
        if (field.id == USE_SPEC && field.wire == WIRE_BYTES) {
            WEFT_RETURN_IF_ERROR(read_spec(r, &field));
        }
    }
    return WEFT_OK;
}

static weft_status_t name_node(reader_t *r, uint32_t index)
{
    wefti_onnx_cursor_t in = r->node;
    wefti_onnx_field_t field, name = {.payload = (const uint8_t *)""}, op = name, output = name;
    while (wefti_onnx_next_message(&in, &field)) {
        name = field.id == NODE_NAME ? field : name;
        op = field.id == NODE_OP ? field : op;
        output = field.id == NODE_OUTPUT && output.size_bytes == 0 ? field : output;
    }
    const int name_length = (int)(name.size_bytes < 100 ? name.size_bytes : 100);
    const int op_length = (int)(op.size_bytes < 40 ? op.size_bytes : 40);
    r->label = name_length > 0 ? wefti_arena_printf(&r->graph->arena, "node '%.*s' (%.*s)",
                                                    name_length, (const char *)name.payload,
                                                    op_length, (const char *)op.payload)
                               : wefti_arena_printf(&r->graph->arena, "node %u (%.*s)", index,
                                                    op_length, (const char *)op.payload);
    r->output = copy_text(&r->graph->arena, &output);
    WEFT_RETURN_IF_NO_MEMORY(r->label && r->output);
    r->first = r->graph->sharding_count;
    return WEFT_OK;
}

static weft_status_t read_node(reader_t *r, const wefti_onnx_field_t *message, uint32_t index)
{
    bool used = false;
    wefti_onnx_field_t field;
    r->node = wefti_onnx_inside(message);
    r->label = NULL;
    for (wefti_onnx_cursor_t in = r->node; wefti_onnx_next_message(&in, &field);) {
        if (field.id != NODE_CONFIGURATION) {
            continue;
        }
        if (r->label == NULL) {
            WEFT_RETURN_IF_ERROR(name_node(r, index));
        }
        WEFT_RETURN_IF_ERROR(read_use(r, &field, &used));
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_read_shardings(const wefti_onnx_file_t *file,
                                        const wefti_onnx_devices_t *devices, wefti_graph_t *graph)
{
    configuration_t list[MOST_CONFIGURATIONS];
    reader_t r = {.file = file, .devices = devices, .configurations = list, .graph = graph};
    const wefti_onnx_cursor_t all = {file->data, file->data + file->size_bytes};
    wefti_onnx_field_t field, node;
    uint32_t index = 0, configurations, found = 0;
    WEFT_RETURN_IF_ERROR(list_configurations(all, file->label, list, &r.configuration_count));
    r.devices_all = (int64_t)devices->count * devices->replicas;
    r.shard = wefti_arena_array(&graph->arena, (size_t)r.devices_all, sizeof(*r.shard));
    WEFT_RETURN_IF_NO_MEMORY(r.shard);
    for (wefti_onnx_cursor_t in = all; wefti_onnx_next_message(&in, &field);) {
        wefti_onnx_cursor_t nodes = wefti_onnx_inside(&field);
        while (field.id == MODEL_GRAPH && wefti_onnx_next_message(&nodes, &node)) {
            if (node.id == GRAPH_NODE) {
                wefti_onnx_cursor_t parts = wefti_onnx_inside(&node);
                for (wefti_onnx_field_t part; wefti_onnx_next_message(&parts, &part);) {
                    found += part.id == NODE_CONFIGURATION;
                }
                WEFT_RETURN_IF_ERROR(read_node(&r, &node, index++));
            }
        }
    }
    if (count_annotations(all, &configurations) != found) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: device configurations of nodes in subgraphs or functions are not "
                           "supported",
                           file->label);
    }
    return WEFT_OK;
}
