/* SPDX-License-Identifier: Apache-2.0 */
/* What a compiled graph has beyond ONNX, as metadata_props, and the file itself. */
#include "graph/onnx/emit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

#define MAX_OWN_PROPERTIES 24u

typedef struct props {
    wefti_onnx_emit_t *emit;
    wefti_text_t text; /* of the one being made */
} props_t;

static void add_property(wefti_onnx_emit_t *emit, const char *key, const char *value)
{
    Onnx__ModelProto *model = emit->model;
    Onnx__StringStringEntryProto *entry = wefti_arena_alloc(&emit->arena, sizeof(*entry));
    char *name = wefti_arena_printf(&emit->arena, "weft.%s", key);
    char *copy = wefti_arena_strdup(&emit->arena, value);
    if (emit->arena.failed) {
        return;
    }
    onnx__string_string_entry_proto__init(entry);
    entry->key = name;
    entry->value = copy;
    model->metadata_props[model->n_metadata_props++] = entry;
}

/* The text made since the last one. */
static void flush(props_t *p, const char *key)
{
    p->emit->arena.failed = p->emit->arena.failed || p->text.failed;
    if (!p->emit->arena.failed && p->text.length > 0) {
        add_property(p->emit, key, p->text.data);
    }
    p->text.length = 0;
}

/* Runs of equal letters: "F12 C1 B3". */
typedef struct runs {
    wefti_text_t *out;
    char letter;
    uint32_t count;
} runs_t;

static void add_run(runs_t *runs, char letter)
{
    if (runs->count > 0 && runs->letter != letter) {
        wefti_text_printf(runs->out, "%s%c%" PRIu32, runs->out->length > 0 ? " " : "", runs->letter,
                          runs->count);
        runs->count = 0;
    }
    runs->letter = letter;
    runs->count++;
}

static void end_runs(runs_t *runs)
{
    add_run(runs, '\0');
    runs->count = 0;
}

static size_t file_nodes(const wefti_onnx_emit_t *emit)
{
    return emit->model->graph->n_node + emit->update_count;
}

static void add_phases(props_t *p)
{
    static const char letters[] = "FBCU";
    const wefti_onnx_emit_t *emit = p->emit;
    runs_t runs = {.out = &p->text};
    for (size_t i = 0; i < file_nodes(emit); i++) {
        uint32_t id = emit->place[i];
        add_run(&runs, id == WEFTI_NONE ? 'C' : letters[emit->graph->nodes[id].phase]);
    }
    end_runs(&runs);
    flush(p, "phases");
}

/* Kinds of the initializers of the main graph, in their order. */
static void add_kinds(props_t *p)
{
    const wefti_onnx_emit_t *emit = p->emit;
    runs_t runs = {.out = &p->text};
    for (size_t i = 0; i < emit->model->graph->n_initializer; i++) {
        uint32_t v = wefti_graph_find_value(emit->graph, emit->model->graph->initializer[i]->name);
        wefti_value_kind_t kind = v == WEFTI_NONE ? WEFTI_VALUE_CONST : emit->graph->values[v].kind;
        add_run(&runs, kind == WEFTI_VALUE_PARAM    ? 'P'
                       : kind == WEFTI_VALUE_SCALAR ? 'S'
                       : kind == WEFTI_VALUE_STATE  ? 'T'
                                                    : 'C');
    }
    end_runs(&runs);
    flush(p, "kinds");
}

static int64_t opset_of(const wefti_onnx_emit_t *emit, const char *domain)
{
    return wefti_onnx_opset(emit->model, domain);
}

/* Versions of nodes that are not the file's. */
static void add_versions(props_t *p)
{
    const wefti_onnx_emit_t *emit = p->emit;
    for (size_t i = 0; i < file_nodes(emit); i++) {
        const wefti_node_t *node =
            emit->place[i] == WEFTI_NONE ? NULL : &emit->graph->nodes[emit->place[i]];
        if (node != NULL && node->version != opset_of(emit, node->def->domain)) {
            wefti_text_printf(&p->text, "%s%zu:%" PRId32, p->text.length > 0 ? " " : "", i,
                              node->version);
        }
    }
    flush(p, "versions");
}

/* By node: its position in the file, or WEFTI_NONE: nodes that came later are not in the file. */
static uint32_t *find_positions(wefti_onnx_emit_t *emit)
{
    uint32_t *position = wefti_id_map(&emit->arena, emit->graph->node_count);
    for (size_t i = 0; position != NULL && i < file_nodes(emit); i++) {
        if (emit->place[i] != WEFTI_NONE) {
            position[emit->place[i]] = (uint32_t)i;
        }
    }
    return position;
}

static void add_pair(props_t *p, uint32_t first, uint32_t second)
{
    wefti_text_printf(&p->text, "%s%" PRIu32 ":%" PRIu32, p->text.length > 0 ? " " : "", first,
                      second);
}

/* Runs of positions, first:last. */
static void add_nodes(props_t *p, const uint32_t *nodes, uint32_t count, const uint32_t *position)
{
    uint32_t first = WEFTI_NONE, last = WEFTI_NONE;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = position[nodes[i]];
        if (at == WEFTI_NONE) {
            continue;
        }
        if (first != WEFTI_NONE && at != last + 1) {
            add_pair(p, first, last);
            first = at;
        }
        first = first == WEFTI_NONE ? at : first;
        last = at;
    }
    if (first != WEFTI_NONE) {
        add_pair(p, first, last);
    }
}

static void add_program(props_t *p, const wefti_program_t *program, const uint32_t *position)
{
    char key[64];
    snprintf(key, sizeof(key), "program.%s", program->name);
    add_nodes(p, program->nodes, program->node_count, position);
    if (p->text.length == 0) { /* it exists, without a node */
        add_property(p->emit, key, "");
    }
    flush(p, key);
}

/* Variants and the nodes of a step whose outputs theirs are; persistent outputs, node:output. */
static void add_programs(props_t *p, const uint32_t *position)
{
    const wefti_graph_t *graph = p->emit->graph;
    for (uint32_t i = 0; i < graph->program_count; i++) {
        add_program(p, &graph->programs[i], position);
    }
    for (size_t i = 0; i < file_nodes(p->emit); i++) {
        uint32_t id = p->emit->place[i];
        uint32_t of = id == WEFTI_NONE ? WEFTI_NONE : wefti_graph_variant_of(graph, id);
        if (of != WEFTI_NONE && position[of] != WEFTI_NONE) {
            add_pair(p, (uint32_t)i, position[of]);
        }
    }
    flush(p, "variants");
    for (size_t i = 0; i < file_nodes(p->emit); i++) {
        const wefti_node_t *node =
            p->emit->place[i] == WEFTI_NONE ? NULL : &graph->nodes[p->emit->place[i]];
        for (uint32_t k = 0; node != NULL && k < node->output_count; k++) {
            if (node->outputs[k] != WEFTI_NONE &&
                (graph->values[node->outputs[k]].flags & WEFTI_VALUE_PERSISTENT) != 0) {
                add_pair(p, (uint32_t)i, k);
            }
        }
    }
    flush(p, "persistent");
}

/* The order in which nodes run, where it is not that of the file: updates come last there. */
static void add_order(props_t *p, const uint32_t *position)
{
    const wefti_graph_t *graph = p->emit->graph;
    uint32_t last = 0;
    bool differs = false;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t at = position[graph->order[i]];
        differs = differs || (at != WEFTI_NONE && at < last);
        last = at != WEFTI_NONE ? at : last;
    }
    if (differs) {
        add_nodes(p, graph->order, graph->order_count, position);
        flush(p, "node_order");
    }
}

/* By value: its position among the initializers, those of updates after those of the graph, or
 * WEFTI_NONE: states that the shard pass replaced are not in the file. */
static uint32_t *find_initializers(wefti_onnx_emit_t *emit)
{
    const wefti_graph_t *graph = emit->graph;
    const Onnx__GraphProto *graphs[2] = {
        emit->model->graph,
        emit->model->n_training_info > 0 ? emit->model->training_info[0]->algorithm : NULL};
    uint32_t at = 0;
    uint32_t *initializer = wefti_id_map(&emit->arena, graph->value_count);
    for (int g = 0; g < 2 && graphs[g] != NULL && initializer != NULL; g++) {
        for (size_t i = 0; i < graphs[g]->n_initializer; i++, at++) {
            uint32_t v = wefti_graph_find_value(graph, graphs[g]->initializer[i]->name);
            if (v != WEFTI_NONE) {
                initializer[v] = at;
            }
        }
    }
    return initializer;
}

/* Gradients, node:output:parameter, and states, state:parameter. */
static void add_links(props_t *p)
{
    const wefti_onnx_emit_t *emit = p->emit;
    const wefti_graph_t *graph = emit->graph;
    const uint32_t *initializer = find_initializers(p->emit);
    for (size_t i = 0; i < file_nodes(emit) && initializer != NULL; i++) {
        const wefti_node_t *node =
            emit->place[i] == WEFTI_NONE ? NULL : &graph->nodes[emit->place[i]];
        for (uint32_t k = 0; node != NULL && k < node->output_count; k++) {
            uint32_t param = node->outputs[k] == WEFTI_NONE
                                 ? WEFTI_NONE
                                 : graph->values[node->outputs[k]].grad_of;
            if (param != WEFTI_NONE) {
                wefti_text_printf(&p->text, "%s%zu:%" PRIu32 ":%" PRIu32,
                                  p->text.length > 0 ? " " : "", i, k, initializer[param]);
            }
        }
    }
    flush(p, "gradients");
    for (uint32_t v = 0; v < graph->value_count && initializer != NULL; v++) {
        const wefti_value_t *value = &graph->values[v];
        if (value->kind == WEFTI_VALUE_STATE && initializer[v] != WEFTI_NONE) {
            add_pair(p, initializer[v], initializer[value->state_of]);
        }
    }
    flush(p, "states");
}

/* Orderings that no value shows, by position in the file. */
static void add_edges(props_t *p, const uint32_t *position)
{
    const wefti_graph_t *graph = p->emit->graph;
    for (uint32_t c = 0; c < graph->constraint_count; c++) {
        uint32_t before = wefti_graph_live_node(graph, graph->constraints[c].before);
        uint32_t after = wefti_graph_live_node(graph, graph->constraints[c].after);
        if (before != WEFTI_NONE && after != WEFTI_NONE && position[before] != WEFTI_NONE &&
            position[after] != WEFTI_NONE) {
            add_pair(p, position[before], position[after]);
        }
    }
    flush(p, "edges");
}

static void add_scalars(props_t *p)
{
    const wefti_graph_t *graph = p->emit->graph;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_SCALAR) {
            wefti_text_printf(&p->text, "%s%s:%.17g", p->text.length > 0 ? " " : "",
                              graph->values[v].name, graph->values[v].default_value);
        }
    }
    flush(p, "scalars");
}

static void add_named(props_t *p, const char *key, uint32_t value)
{
    if (value != WEFTI_NONE) {
        add_property(p->emit, key, p->emit->graph->values[value].name);
    }
}

weft_status_t wefti_onnx_emit_choice(wefti_onnx_emit_t *emit, uint32_t node, uint32_t bucket,
                                     const char *algorithm, const char *order)
{
    const weft_attr_t extra[] = {
        {.name = "algorithm", .type = WEFT_ATTR_TYPE_STRING, .s = algorithm},
        {.name = "bucket", .type = WEFT_ATTR_TYPE_INT, .i = bucket},
        {.name = "order", .type = WEFT_ATTR_TYPE_STRING, .s = order},
    };
    Onnx__NodeProto *made = emit->made[node];
    if (made == NULL) {
        return WEFT_OK;
    }
    for (size_t i = 0; i < sizeof(extra) / sizeof(extra[0]); i++) {
        weft_attr_t attr = extra[i];
        size_t at = 0;
        if (attr.type == WEFT_ATTR_TYPE_STRING && attr.s == NULL) {
            continue;
        }
        while (at < made->n_attribute && strcmp(made->attribute[at]->name, attr.name) != 0) {
            at++;
        }
        attr.s =
            attr.type == WEFT_ATTR_TYPE_STRING ? wefti_arena_strdup(&emit->arena, attr.s) : NULL;
        Onnx__AttributeProto *attribute = attr.type == WEFT_ATTR_TYPE_STRING && attr.s == NULL
                                              ? NULL
                                              : wefti_onnx_emit_attribute(emit, &attr);
        WEFT_RETURN_IF_NO_MEMORY(attribute);
        made->n_attribute += at == made->n_attribute;
        made->attribute[at] = attribute;
    }
    return WEFT_OK;
}

static weft_status_t add_all(wefti_onnx_emit_t *emit, const wefti_onnx_property_t *properties,
                             uint32_t count)
{
    props_t p = {.emit = emit};
    emit->model->metadata_props = wefti_arena_array(
        &emit->arena, (size_t)count + emit->graph->program_count + MAX_OWN_PROPERTIES,
        sizeof(Onnx__StringStringEntryProto *));
    WEFT_RETURN_IF_NO_MEMORY(emit->model->metadata_props);
    wefti_text_init(&p.text, emit->allocator);
    add_property(emit, "format", "1");
    for (uint32_t i = 0; i < count; i++) {
        add_property(emit, properties[i].key, properties[i].value);
    }
    wefti_text_printf(&p.text, "%" PRId32, emit->graph->opset);
    flush(&p, "opset");
    wefti_text_printf(&p.text, "%" PRId64, emit->graph->batch);
    flush(&p, "graph_batch");
    add_named(&p, "loss", emit->graph->loss);
    add_named(&p, "logits", emit->graph->logits);
    add_named(&p, "label", emit->graph->label);
    add_scalars(&p);
    add_kinds(&p);
    add_phases(&p);
    add_versions(&p);
    const uint32_t *position = find_positions(emit);
    if (position != NULL) {
        add_edges(&p, position);
        add_programs(&p, position);
        add_order(&p, position);
        add_links(&p);
    }
    wefti_text_deinit(&p.text);
    return emit->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_onnx_emit_write(wefti_onnx_emit_t *emit,
                                    const wefti_onnx_property_t *properties, uint32_t count,
                                    const char *path)
{
    uint8_t *bytes = NULL;
    size_t size_bytes = 0;
    weft_status_t status;
    wefti_onnx_file_t file = {.allocator = emit->allocator, .model = emit->model};
    WEFT_TRY(status, add_all(emit, properties, count), done);
    WEFT_TRY(status, wefti_onnx_pack(&file, &bytes, &size_bytes), done);
    wefti_piece_t piece = {bytes, size_bytes};
    status = wefti_file_write(path, &piece, 1);
done:
    wefti_free(emit->allocator, bytes);
    return status;
}
