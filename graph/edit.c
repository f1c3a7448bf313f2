/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applies an edit list. Each edit changes links only; one sort at the end restores the order, so a
 * list costs time proportional to the graph. A fusion of collectives that depend on each other,
 * directly or through other fusions, is found by that sort as a cycle.
 */
#include <stdio.h>
#include <string.h>

#include "graph/ir.h"
#include "ops/algo/schedule.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* One use of a value by an input of a node. Uses by dead nodes are skipped. */
typedef struct use {
    uint32_t node, input, next;
} use_t;

typedef struct editor {
    wefti_graph_t *graph;
    use_t *uses;
    size_t use_count, use_capacity;
    uint32_t *first_use; /* by value */
    size_t first_use_capacity;
} editor_t;

static weft_status_t add_use(editor_t *editor, uint32_t value, uint32_t node, uint32_t input)
{
    const weft_allocator_t *allocator = editor->graph->arena.allocator;
    if (editor->use_count >= WEFTI_NONE - 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "graph has too many edges");
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &editor->uses, &editor->use_capacity,
                                             editor->use_count + 1, sizeof(use_t)));
    /* Entries are one more than the index: new elements are zeroed. */
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &editor->first_use,
                                             &editor->first_use_capacity, (size_t)value + 1,
                                             sizeof(uint32_t)));
    editor->uses[editor->use_count] = (use_t){node, input, editor->first_use[value]};
    editor->first_use[value] = (uint32_t)++editor->use_count;
    return WEFT_OK;
}

static weft_status_t editor_init(editor_t *editor)
{
    const wefti_graph_t *graph = editor->graph;
    for (uint32_t i = graph->order_count; i-- > 0;) {
        uint32_t id = graph->order[i];
        for (uint32_t k = 0; k < graph->nodes[id].input_count; k++) {
            if (graph->nodes[id].inputs[k] != WEFTI_NONE) {
                WEFT_RETURN_IF_ERROR(add_use(editor, graph->nodes[id].inputs[k], id, k));
            }
        }
    }
    return WEFT_OK;
}

static void editor_deinit(editor_t *editor)
{
    const weft_allocator_t *allocator = editor->graph->arena.allocator;
    wefti_free(allocator, editor->uses);
    wefti_free(allocator, editor->first_use);
}

/* All users of from, but not the node except, read to instead. */
static weft_status_t move_uses(editor_t *editor, uint32_t from, uint32_t to, uint32_t except)
{
    uint32_t at = from < editor->first_use_capacity ? editor->first_use[from] : 0;
    if (at) {
        editor->first_use[from] = 0;
    }
    while (at) {
        use_t use = editor->uses[at - 1];
        wefti_node_t *node = &editor->graph->nodes[use.node];
        if (!node->dead && use.node != except && node->inputs[use.input] == from) {
            node->inputs[use.input] = to;
            WEFT_RETURN_IF_ERROR(add_use(editor, to, use.node, use.input));
        }
        at = use.next;
    }
    return WEFT_OK;
}

static void move_output(wefti_graph_t *graph, uint32_t from, uint32_t to)
{
    if (!(graph->values[from].flags & WEFTI_VALUE_OUTPUT)) {
        return;
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        if (graph->outputs[i] == from) {
            graph->outputs[i] = to;
        }
    }
    graph->values[from].flags &= ~WEFTI_VALUE_OUTPUT;
    graph->values[to].flags |= WEFTI_VALUE_OUTPUT;
}

static weft_status_t insert_collective(editor_t *editor, const weft_edit_t *edit)
{
    wefti_graph_t *graph = editor->graph;
    if (edit->value >= graph->value_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "insert: value %u does not exist",
                           edit->value);
    }
    if (!edit->op_name) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "insert: op_name is NULL");
    }
    char name[200], output[200];
    snprintf(name, sizeof(name), "%s(%.160s)", edit->op_name, graph->values[edit->value].name);
    snprintf(output, sizeof(output), "%.180s_reduced", graph->values[edit->value].name);
    const char *output_name = output;
    weft_attr_t attrs[2] = {
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = edit->group},
        {.name = "reduction",
         .type = WEFT_ATTR_TYPE_STRING,
         .s = weft_reduction_name(edit->reduction)},
    };
    const weft_op_def_t *def =
        weft_registry_find_op(graph->registry, "weft", edit->op_name, INT32_MAX);
    bool reduces =
        def && wefti_collective_reduces((weft_collective_t)wefti_op_facts(def).collective);
    wefti_node_params_t params = {.domain = "weft",
                                  .op = edit->op_name,
                                  .name = name,
                                  .phase = WEFTI_PHASE_COMM,
                                  .inputs = &edit->value,
                                  .input_count = 1,
                                  .output_names = &output_name,
                                  .output_count = 1,
                                  .attrs = attrs,
                                  .attr_count = reduces ? 2 : 1};
    uint32_t node;
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, WEFTI_WHEN_READY, &node));
    if (!wefti_node_communicates(&graph->nodes[node])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "insert: '%s' is not a collective",
                           edit->op_name);
    }
    uint32_t result = graph->nodes[node].outputs[0];
    graph->values[result].type.layout = graph->values[edit->value].type.layout;
    graph->values[result].grad_of = graph->values[edit->value].grad_of;
    graph->values[edit->value].grad_of = WEFTI_NONE;
    move_output(graph, edit->value, result);
    WEFT_RETURN_IF_ERROR(move_uses(editor, edit->value, result, node));
    return add_use(editor, edit->value, node, 0);
}

/* The live node that replaces node; what: the kind of edit, for the error. */
static weft_status_t resolve(const wefti_graph_t *graph, uint32_t node, const char *what,
                             uint32_t *out_node)
{
    *out_node = node < graph->node_count ? wefti_graph_live_node(graph, node) : WEFTI_NONE;
    return *out_node != WEFTI_NONE ? WEFT_OK
                                   : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                                 "%s: operator %u does not exist", what, node);
}

static bool same_attr(const weft_attr_t *a, const weft_attr_t *b)
{
    if (!a || !b || a->type != b->type) {
        return a == b;
    }
    return a->type == WEFT_ATTR_TYPE_STRING ? strcmp(a->s, b->s) == 0 : a->i == b->i;
}

static weft_dtype_t first_dtype(const wefti_graph_t *graph, const wefti_node_t *node)
{
    return node->input_count && node->inputs[0] != WEFTI_NONE
               ? graph->values[node->inputs[0]].type.dtype
               : WEFT_DTYPE_NONE;
}

/* Members must be live collectives of one operator, reduction, group, root and type. */
static weft_status_t check_members(const wefti_graph_t *graph, const weft_edit_t *edit)
{
    static const char *const equal[] = {"reduction", "group", "group_size", "root", "order"};
    for (uint32_t i = 0; i < edit->member_count; i++) {
        if (edit->members[i] >= graph->node_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "fuse: operator %u does not exist",
                               edit->members[i]);
        }
        if (graph->nodes[edit->members[i]].dead) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "fuse: operator %u was removed or fused before", edit->members[i]);
        }
        const wefti_node_t *first = &graph->nodes[edit->members[0]];
        const wefti_node_t *member = &graph->nodes[edit->members[i]];
        if (!wefti_node_communicates(member) || member->def->inputs_max != WEFT_VARIADIC ||
            member->def->outputs_max != WEFT_VARIADIC || wefti_node_is_flat_scatter(member) ||
            wefti_node_is_flat_gather(member)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "fuse: '%s' (%s): operator cannot be fused", member->name,
                               member->def->name);
        }
        if (wefti_node_attr(member, "parts")) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "fuse: '%s' was split before",
                               member->name);
        }
        bool same =
            member->def == first->def && first_dtype(graph, member) == first_dtype(graph, first);
        for (size_t k = 0; k < sizeof(equal) / sizeof(equal[0]); k++) {
            same = same &&
                   same_attr(wefti_node_attr(member, equal[k]), wefti_node_attr(first, equal[k]));
        }
        if (!same) {
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT,
                "fuse: '%s' and '%s' differ in operator, reduction, group, root, order or type",
                first->name, member->name);
        }
    }
    return WEFT_OK;
}

/* A node with the attributes of the first member and room for all inputs and outputs; links follow.
 */
static weft_status_t add_fused_node(wefti_graph_t *graph, const weft_edit_t *edit,
                                    uint32_t *out_node)
{
    const wefti_node_t *first = &graph->nodes[edit->members[0]];
    uint64_t input_count = 0;
    for (uint32_t i = 0; i < edit->member_count; i++) {
        input_count += graph->nodes[edit->members[i]].input_count;
        if (graph->nodes[edit->members[i]].output_count !=
            graph->nodes[edit->members[i]].input_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "fuse: '%s' must have one output per input: %u outputs, %u inputs",
                               graph->nodes[edit->members[i]].name,
                               graph->nodes[edit->members[i]].output_count,
                               graph->nodes[edit->members[i]].input_count);
        }
    }
    char name[64];
    snprintf(name, sizeof(name), "fused_%s_%u", first->def->name, graph->node_count);
    /* One absent input and output: fuse() links the values of the members. */
    bool absent = true;
    uint32_t none = WEFTI_NONE;
    wefti_node_params_t params = {.domain = first->def->domain,
                                  .op = first->def->name,
                                  .name = name,
                                  .version = first->version,
                                  .phase = first->phase,
                                  .inputs = &none,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .output_absent = &absent,
                                  .attrs = first->attrs,
                                  .attr_count = first->attr_count};
    bool deferred = graph->defer_inference;
    graph->defer_inference = true;
    weft_status_t status = wefti_graph_insert_node(graph, &params, WEFTI_AS_REPLACED, out_node);
    graph->defer_inference = deferred;
    if (status < 0) {
        return status;
    }
    wefti_node_t *node = &graph->nodes[*out_node];
    node->inputs = wefti_arena_array(&graph->arena, (size_t)input_count, sizeof(uint32_t));
    node->outputs = wefti_arena_array(&graph->arena, (size_t)input_count, sizeof(uint32_t));
    node->input_count = node->output_count = 0;
    return node->inputs && node->outputs ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t fuse(editor_t *editor, const weft_edit_t *edit)
{
    wefti_graph_t *graph = editor->graph;
    uint32_t id;
    if (edit->member_count == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "fuse: no members");
    }
    WEFT_RETURN_IF_ERROR(check_members(graph, edit));
    WEFT_RETURN_IF_ERROR(add_fused_node(graph, edit, &id));
    wefti_node_t *node = &graph->nodes[id];
    for (uint32_t i = 0; i < edit->member_count; i++) {
        wefti_node_t *member = &graph->nodes[edit->members[i]];
        if (member->dead) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "fuse: duplicate member '%s'",
                               member->name);
        }
        member->dead = true;
        member->replaced_by = id;
        for (uint32_t k = 0; k < member->input_count; k++) {
            uint32_t input = member->inputs[k], output = member->outputs[k];
            uint32_t at = node->input_count++;
            node->output_count++;
            node->inputs[at] = input;
            node->outputs[at] = output;
            if (output != WEFTI_NONE) {
                wefti_graph_take_output(graph, id, at, output);
            }
            if (input != WEFTI_NONE) {
                WEFT_RETURN_IF_ERROR(add_use(editor, input, id, at));
            }
        }
    }
    if (edit->text) {
        weft_attr_t reason = {.name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = edit->text};
        WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &reason));
    }
    return WEFT_OK;
}

static weft_status_t add_constraint(wefti_graph_t *graph, const weft_edit_t *edit)
{
    uint32_t live;
    WEFT_RETURN_IF_ERROR(resolve(graph, edit->op_a, "order", &live));
    WEFT_RETURN_IF_ERROR(resolve(graph, edit->op_b, "order", &live));
    return wefti_graph_add_constraint(graph, edit->op_a, edit->op_b);
}

static weft_status_t set_algorithm(wefti_graph_t *graph, const weft_edit_t *edit)
{
    uint32_t node;
    WEFT_RETURN_IF_ERROR(resolve(graph, edit->op_a, "algorithm", &node));
    if (!wefti_node_communicates(&graph->nodes[node])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "algorithm: '%s' is not a collective",
                           graph->nodes[node].name);
    }
    weft_attr_t attr = {
        .name = "algorithm", .type = WEFT_ATTR_TYPE_STRING, .s = edit->text ? edit->text : ""};
    return wefti_graph_set_attr(graph, node, &attr);
}

/* Lowering makes the pieces; the graph records their number. */
static weft_status_t split(wefti_graph_t *graph, const weft_edit_t *edit)
{
    uint32_t id;
    WEFT_RETURN_IF_ERROR(resolve(graph, edit->op_a, "split", &id));
    const wefti_node_t *node = &graph->nodes[id];
    if (!wefti_node_communicates(node) || node->input_count != 1 || node->output_count != 1 ||
        node->inputs[0] == WEFTI_NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "split: '%s' is not a collective on one tensor", node->name);
    }
    /* A tensor of blocks is cut in every block. */
    bool scatters = wefti_op_facts(node->def).collective == WEFT_COLLECTIVE_REDUCE_SCATTER &&
                    !wefti_node_is_flat_scatter(node) && node->outputs[0] != WEFTI_NONE;
    const wefti_value_t *value = &graph->values[scatters ? node->outputs[0] : node->inputs[0]];
    uint64_t units = wefti_value_bytes(value) / 64 + (wefti_value_bytes(value) % 64 != 0);
    if (edit->parts < 2 || edit->parts > units) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "split: parts of '%s' must be between 2 and %llu, its number of 64-byte units: %u",
            value->name, (unsigned long long)units, edit->parts);
    }
    weft_attr_t parts = {.name = "parts", .type = WEFT_ATTR_TYPE_INT, .i = edit->parts};
    weft_attr_t why = {
        .name = "split_reason", .type = WEFT_ATTR_TYPE_STRING, .s = edit->text ? edit->text : ""};
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &parts));
    return wefti_graph_set_attr(graph, id, &why);
}

static bool repeats(const wefti_node_t *a, const wefti_node_t *b)
{
    bool same = a != b && a->def == b->def && a->version == b->version &&
                !(a->def->effects & ~(weft_effects_t)WEFT_EFFECT_COMMUNICATES) &&
                a->input_count == b->input_count && a->output_count == b->output_count &&
                a->attr_count == b->attr_count &&
                memcmp(a->inputs, b->inputs, a->input_count * sizeof(*a->inputs)) == 0;
    for (uint32_t i = 0; same && i < a->attr_count; i++) {
        const weft_attr_t *attr = &a->attrs[i], *other = wefti_node_attr(b, attr->name);
        same = (attr->type == WEFT_ATTR_TYPE_INT || attr->type == WEFT_ATTR_TYPE_STRING) &&
               same_attr(attr, other);
    }
    return same;
}

static weft_status_t merge(editor_t *editor, const weft_edit_t *edit)
{
    wefti_graph_t *graph = editor->graph;
    uint32_t kept, removed;
    WEFT_RETURN_IF_ERROR(resolve(graph, edit->op_a, "merge", &kept));
    WEFT_RETURN_IF_ERROR(resolve(graph, edit->op_b, "merge", &removed));
    wefti_node_t *to = &graph->nodes[kept], *from = &graph->nodes[removed];
    if (!repeats(to, from)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "merge: '%s' does not repeat '%s'",
                           from->name, to->name);
    }
    for (uint32_t i = 0; i < from->output_count; i++) {
        uint32_t old = from->outputs[i], new = to->outputs[i];
        bool used = old != WEFTI_NONE && new != WEFTI_NONE;
        if (used && (graph->values[old].flags || graph->values[old].grad_of != WEFTI_NONE)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "merge: '%s' is an output or a gradient of the graph",
                               graph->values[old].name);
        }
        WEFT_RETURN_IF_ERROR(used ? move_uses(editor, old, new, WEFTI_NONE) : WEFT_OK);
    }
    from->dead = true;
    from->replaced_by = kept;
    return WEFT_OK;
}

static weft_status_t apply_one(editor_t *editor, const weft_edit_t *edit)
{
    uint32_t node;
    switch (edit->kind) {
    case WEFT_EDIT_KIND_INSERT_COLLECTIVE:
        return insert_collective(editor, edit);
    case WEFT_EDIT_KIND_FUSE:
        return fuse(editor, edit);
    case WEFT_EDIT_KIND_ORDER:
        return add_constraint(editor->graph, edit);
    case WEFT_EDIT_KIND_ALGORITHM:
        return set_algorithm(editor->graph, edit);
    case WEFT_EDIT_KIND_SPLIT:
        return split(editor->graph, edit);
    case WEFT_EDIT_KIND_START_WAIT: /* lowering places events itself */
        return resolve(editor->graph, edit->op_a, "start and wait", &node);
    case WEFT_EDIT_KIND_MERGE:
        return merge(editor, edit);
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown edit kind %d", (int)edit->kind);
}

weft_status_t wefti_graph_apply(wefti_graph_t *graph, const weft_edit_list_t *edits)
{
    weft_status_t status;
    editor_t editor = {.graph = graph};
    WEFT_TRY(status, editor_init(&editor), done);
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        WEFT_TRY(status, apply_one(&editor, weft_edit_list_get(edits, i)), done);
    }
    status = wefti_graph_sort(graph);
    if (status < 0) {
        wefti_error_prefix(status, "cannot apply edits");
    }
done:
    editor_deinit(&editor);
    return status;
}

weft_status_t wefti_graph_insert_for(wefti_graph_t *graph, uint32_t of, const char *suffix,
                                     wefti_node_params_t params, uint32_t *out_value)
{
    uint32_t node;
    params.name = wefti_arena_printf(&graph->arena, "%s/%s", graph->nodes[of].name, suffix);
    params.version = params.def == NULL && *params.domain == '\0' ? graph->opset : 1;
    params.output_count = 1;
    WEFT_RETURN_IF_NO_MEMORY(params.name);
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, WEFTI_WHEN_READY, &node));
    *out_value = graph->nodes[node].outputs[0];
    return WEFT_OK;
}
