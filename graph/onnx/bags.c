/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch exports nn.EmbeddingBag as a Loop over the bags, whose number and sizes are data. These
 * loops, in the forms of both exporters, become operators whose shapes are known: the rows of all
 * bags are added to their bags, in their order.
 *
 *   offsets 0 4 6 | 10   ->   marks 0 0 0 0 1 0 1 0 0 0   ->   bags 0 0 0 0 1 1 2 2 2 2
 *
 * A loop of another form stays. The mean of an empty bag is 0, as in torch.
 */
#include "graph/onnx/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

#define SIGNATURE_BYTES 700

typedef struct bag {
    const char *rows; /* NULL: those of table at indices */
    const char *table, *indices, *weights;
    const char *offsets; /* of all bags, and the end of the last one */
    const char
        *sequence; /* the output of the loop that has the bags; NULL: output 0 is the result */
    bool mean;
} bag_t;

typedef struct rewriter {
    wefti_onnx_file_t *file;
    wefti_name_index_t makers;    /* name -> node or, above, initializer */
    wefti_name_index_t sequences; /* of a loop, or the empty one that it begins with -> bag */
    bag_t *bags;
    size_t bag_count;
    Onnx__NodeProto **nodes;
    size_t count, capacity;
    const char *prefix;
    uint32_t parts;
    weft_status_t status;
} rewriter_t;

static bool is_op(const Onnx__NodeProto *node, const char *op)
{
    return node->op_type != NULL && strcmp(node->op_type, op) == 0 &&
           wefti_onnx_domain(node->domain)[0] == '\0';
}

/* Names of operators but constants, with bodies in parentheses. */
static void sign(const Onnx__GraphProto *graph, char *out, size_t *used)
{
    for (size_t i = 0; i < graph->n_node && *used < SIGNATURE_BYTES; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (is_op(node, "Constant")) {
            continue;
        }
        *used += (size_t)snprintf(
            out + *used, SIGNATURE_BYTES - *used, "%.40s ",
            wefti_onnx_domain(node->domain)[0] != '\0' || !node->op_type ? "?" : node->op_type);
        for (size_t k = 0; k < node->n_attribute && *used < SIGNATURE_BYTES; k++) {
            if (node->attribute[k]->g != NULL) {
                *used += (size_t)snprintf(out + *used, SIGNATURE_BYTES - *used, "( ");
                sign(node->attribute[k]->g, out, used);
                if (*used < SIGNATURE_BYTES) {
                    *used += (size_t)snprintf(out + *used, SIGNATURE_BYTES - *used, ") ");
                }
            }
        }
    }
}

static const Onnx__GraphProto *body_of(const Onnx__NodeProto *node, const char *name)
{
    const Onnx__AttributeProto *attribute = wefti_onnx_find_attribute(node, name);
    return attribute != NULL ? attribute->g : NULL;
}

/* Node index of a body, without constants; NULL: there are fewer, or it has fewer inputs. */
static const Onnx__NodeProto *step(const Onnx__GraphProto *body, size_t index, size_t inputs)
{
    for (size_t i = 0; body != NULL && i < body->n_node; i++) {
        if (!is_op(body->node[i], "Constant") && index-- == 0) {
            return body->node[i]->n_input >= inputs ? body->node[i] : NULL;
        }
    }
    return NULL;
}

static const char *input_of(const Onnx__GraphProto *body, size_t index)
{
    const Onnx__NodeProto *node = step(body, index, 1);
    return node != NULL ? node->input[0] : NULL;
}

/* The first Slice of a body, or of a body in it. */
static const char *first_slice(const Onnx__GraphProto *body)
{
    for (size_t i = 0; body != NULL && i < body->n_node; i++) {
        const Onnx__NodeProto *node = body->node[i];
        if (is_op(node, "Slice") && node->n_input > 0) {
            return node->input[0];
        }
        const char *inside = is_op(node, "If") ? first_slice(body_of(node, "then_branch")) : NULL;
        if (inside != NULL) {
            return inside;
        }
    }
    return NULL;
}

/* TorchScript: a bag is a Slice of the indices, whose rows are gathered and reduced. */
static bool match_script(const char *signature, const Onnx__GraphProto *body, bag_t *out)
{
    static const char rows[] = "Gather Gather Unsqueeze Unsqueeze Slice Gather ";
    const char *rest = signature + sizeof(rows) - 1;
    if (strncmp(signature, rows, sizeof(rows) - 1) != 0) {
        return false;
    }
    bool weighted = strcmp(rest, "Slice Unsqueeze Mul ReduceSum Cast ") == 0;
    bool mean = strcmp(rest, "ReduceMean Cast ") == 0;
    *out = (bag_t){.offsets = input_of(body, 0),
                   .indices = input_of(body, 4),
                   .table = input_of(body, 5),
                   .weights = weighted ? input_of(body, 6) : NULL,
                   .mean = mean};
    return (weighted || mean || strcmp(rest, "ReduceSum Cast ") == 0) && out->offsets != NULL &&
           out->indices != NULL && out->table != NULL && (!weighted || out->weights != NULL);
}

#define BAG "Reshape CastLike Add Slice CastLike Add CastLike Add Slice Equal If ( "
#define AFTER ") SequenceInsert CastLike Add Less "
/* dynamo: slices of gathered rows are collected in a sequence. optimize=False keeps the branches
 * of all modes. */
static bool match_dynamo(const char *signature, const Onnx__NodeProto *loop,
                         const Onnx__GraphProto *body, bag_t *out)
{
    static const char sum[] = BAG ") ( Slice ReduceSum " AFTER;
    static const char mean[] =
        BAG ") ( Slice Equal If ( ReduceSum Sub CastLike Greater If ( Cast Div ) ( Identity ) ) "
            "( ReduceMean ) " AFTER;
    static const char any[] =
        BAG "Concat Expand ) ( Equal If ( Slice ReduceSum ) ( Equal If ( Slice CastLike Sub Equal "
            "If ( ReduceSum Shape Sub CastLike Greater If ( CastLike Div ) ( Identity ) ) "
            "( ReduceMean ) ) ( CastLike Sub Equal If ( Slice ) ( Slice ) ReduceMax ) ) " AFTER
            "Identity ";
    const Onnx__NodeProto *choice = step(body, 10, 1);
    const Onnx__GraphProto *bag = choice != NULL ? body_of(choice, "else_branch") : NULL;
    int64_t mode = strcmp(signature, sum) == 0 ? 0 : strcmp(signature, mean) == 0 ? 1 : -1;
    if (bag == NULL || loop->n_output != 2 || loop->n_input != 4) {
        return false;
    }
    if (strcmp(signature, any) == 0) {
        const Onnx__AttributeProto *value =
            is_op(bag->node[0], "Constant") ? wefti_onnx_find_attribute(bag->node[0], "value_int")
                                            : NULL;
        mode = value != NULL ? value->i : -1;
    }
    /* SequenceInsert returns what is carried on: the loop has as many outputs. */
    const Onnx__NodeProto *insert = step(body, 11, 2);
    bool first = insert != NULL && body->n_output == 3 && body->output[1]->name != NULL &&
                 strcmp(insert->output[0], body->output[1]->name) == 0;
    *out = (bag_t){.offsets = input_of(body, 3),
                   .rows = first_slice(bag),
                   .sequence = loop->output[first ? 0 : 1],
                   .mean = mode == 1};
    return (mode == 0 || mode == 1) && out->offsets != NULL && out->rows != NULL;
}

/* ---- new nodes ---- */

/* Output of a new node: op(inputs .., NULL). An attribute of it may be set. */
static const char *put(rewriter_t *r, const char *op, Onnx__AttributeProto *attribute, ...)
{
    const char *inputs[4];
    size_t count = 0;
    va_list list;
    va_start(list, attribute);
    for (const char *name = va_arg(list, const char *); name != NULL && count < 4;
         name = va_arg(list, const char *)) {
        inputs[count++] = name;
    }
    va_end(list);
    wefti_arena_t *arena = &r->file->arena;
    const char *output = wefti_arena_printf(arena, "%s/bag.%u", r->prefix, r->parts++);
    Onnx__NodeProto *node =
        r->status < 0 ? NULL : wefti_onnx_make_node(arena, op, inputs, count, output, attribute);
    if (node != NULL && output != NULL) {
        r->status = wefti_array_reserve(r->file->allocator, &r->nodes, &r->capacity, r->count + 1,
                                        sizeof(*r->nodes));
    } else if (r->status >= 0) {
        r->status = WEFT_ERR_NO_MEMORY;
    }
    if (r->status < 0) {
        return "";
    }
    r->nodes[r->count++] = node;
    return output;
}

/* A constant: an integer, or a list of one. */
static const char *number(rewriter_t *r, int64_t value, bool list)
{
    Onnx__AttributeProto *attribute =
        wefti_onnx_make_integer(&r->file->arena, list ? "value_ints" : "value_int", value, list);
    if (attribute == NULL) {
        r->status = r->status < 0 ? r->status : WEFT_ERR_NO_MEMORY;
        return "";
    }
    return put(r, "Constant", attribute, NULL);
}

static const char *all_but_last(rewriter_t *r, const char *x)
{
    return put(r, "Slice", NULL, x, number(r, 0, true), number(r, -1, true), NULL);
}

static const char *column(rewriter_t *r, const char *x)
{
    return put(r, "Unsqueeze", NULL, x, number(r, 1, true), NULL);
}

static const char *scatter_add(rewriter_t *r, const char *to, const char *places, const char *what)
{
    Onnx__AttributeProto *attribute = wefti_onnx_make_text(&r->file->arena, "reduction", "add");
    r->status = attribute == NULL && r->status >= 0 ? WEFT_ERR_NO_MEMORY : r->status;
    return put(r, "ScatterND", attribute, to, column(r, places), what, NULL);
}

static weft_status_t push_bag(rewriter_t *r, const bag_t *bag, const char *output)
{
    r->prefix = output;
    r->parts = 0;
    const char *rows = bag->rows;
    if (rows == NULL) {
        rows = put(r, "Gather", NULL, bag->table, bag->indices, NULL);
        rows =
            bag->weights == NULL ? rows : put(r, "Mul", NULL, rows, column(r, bag->weights), NULL);
    }
    const char *one = number(r, 1, true), *zero = number(r, 0, true);
    const char *shape = put(r, "Shape", NULL, rows, NULL);
    const char *height = put(r, "Gather", NULL, shape, zero, NULL);
    const char *width = put(r, "Gather", NULL, shape, one, NULL);
    const char *ends = put(r, "Slice", NULL, bag->offsets, one, number(r, INT64_MAX, true), NULL);
    const char *bags = put(r, "Shape", NULL, ends, NULL);
    const char *blank = put(r, "Expand", NULL, zero, put(r, "Add", NULL, height, one, NULL), NULL);
    const char *marks = scatter_add(r, blank, ends, put(r, "Expand", NULL, one, bags, NULL));
    const char *places = all_but_last(r, put(r, "CumSum", NULL, marks, number(r, 0, false), NULL));
    /* Rows after the end of the last bag are added to one more. */
    Onnx__AttributeProto *axis = wefti_onnx_make_integer(&r->file->arena, "axis", 0, false);
    r->status = axis == NULL && r->status >= 0 ? WEFT_ERR_NO_MEMORY : r->status;
    const char *room = put(r, "Concat", axis, put(r, "Add", NULL, bags, one, NULL), width, NULL);
    const char *base =
        put(r, "Expand", NULL, put(r, "CastLike", NULL, zero, rows, NULL), room, NULL);
    const char *y = all_but_last(r, scatter_add(r, base, places, rows));
    if (bag->mean) {
        const char *sizes = put(r, "Sub", NULL, ends, all_but_last(r, bag->offsets), NULL);
        sizes = put(r, "CastLike", NULL, put(r, "Max", NULL, sizes, one, NULL), rows, NULL);
        y = put(r, "Div", NULL, y, column(r, sizes), NULL);
    }
    put(r, "Identity", NULL, y, NULL);
    if (r->status >= 0) {
        r->nodes[r->count - 1]->output[0] = (char *)(uintptr_t)output;
    }
    return r->status;
}

/* ---- the graph ---- */

static weft_status_t add_name(rewriter_t *r, wefti_name_index_t *index, const char *name, size_t id)
{
    const char *unique;
    if (name == NULL || name[0] == '\0' || wefti_name_index_find(index, name) != WEFTI_NONE) {
        return WEFT_OK;
    }
    return wefti_name_index_add(index, &r->file->arena, name, (uint32_t)id, &unique);
}

/* Is name the constant 1, or a list of it? */
static bool is_one(const rewriter_t *r, const char *name)
{
    const Onnx__GraphProto *graph = r->file->model->graph;
    const uint32_t id = wefti_name_index_find(&r->makers, name);
    weft_tensor_desc_t type;
    int64_t value;
    if (id == WEFTI_NONE || (id < graph->n_node && !is_op(graph->node[id], "Constant"))) {
        return false;
    }
    weft_status_t status =
        id < graph->n_node ? wefti_onnx_constant(r->file, graph->node[id], &r->file->arena, &type)
                           : wefti_onnx_tensor(r->file, graph->initializer[id - graph->n_node],
                                               false, &r->file->arena, &type);
    return status >= 0 && wefti_onnx_integer(&type, &value) && value == 1;
}

/* Are the ends of the bags, which the second Gather of a body reads, offsets from 1 on? */
static bool ends_follow(const rewriter_t *r, const Onnx__GraphProto *body, const bag_t *bag)
{
    const Onnx__GraphProto *graph = r->file->model->graph;
    const char *ends = input_of(body, 1);
    uint32_t id = ends != NULL ? wefti_name_index_find(&r->makers, ends) : WEFTI_NONE;
    const Onnx__NodeProto *node = id < graph->n_node ? graph->node[id] : NULL;
    return node != NULL && is_op(node, "Slice") && node->n_input > 2 &&
           strcmp(node->input[0], bag->offsets) == 0 && is_one(r, node->input[1]);
}

static bool match(const rewriter_t *r, const Onnx__NodeProto *node, bag_t *out)
{
    char signature[SIGNATURE_BYTES + 1] = "";
    size_t used = 0;
    const Onnx__GraphProto *body = is_op(node, "Loop") ? body_of(node, "body") : NULL;
    if (body == NULL || node->n_output == 0) {
        return false;
    }
    sign(body, signature, &used);
    if (used >= SIGNATURE_BYTES) {
        return false;
    }
    return (match_script(signature, body, out) && node->n_output == 1 &&
            ends_follow(r, body, out)) ||
           match_dynamo(signature, node, body, out);
}

/* Loops, by node; the sequences that they return and begin with. */
static weft_status_t find_bags(rewriter_t *r, uint32_t *of_node)
{
    const Onnx__GraphProto *graph = r->file->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        for (size_t k = 0; k < node->n_output; k++) {
            WEFT_RETURN_IF_ERROR(add_name(r, &r->makers, node->output[k], i));
        }
    }
    for (size_t i = 0; i < graph->n_initializer; i++) {
        WEFT_RETURN_IF_ERROR(
            add_name(r, &r->makers, graph->initializer[i]->name, graph->n_node + i));
    }
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        of_node[i] = WEFTI_NONE;
        if (!match(r, node, &r->bags[r->bag_count])) {
            continue;
        }
        of_node[i] = (uint32_t)r->bag_count;
        const char *sequence = r->bags[r->bag_count].sequence;
        if (sequence != NULL) {
            WEFT_RETURN_IF_ERROR(add_name(r, &r->sequences, sequence, r->bag_count));
            size_t place = strcmp(sequence, node->output[0]) == 0 ? 2 : 3;
            WEFT_RETURN_IF_ERROR(add_name(r, &r->sequences, node->input[place], r->bag_count));
        }
        r->bag_count++;
    }
    return WEFT_OK;
}

static weft_status_t keep(rewriter_t *r, Onnx__NodeProto *node)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(r->file->allocator, &r->nodes, &r->capacity,
                                             r->count + 1, sizeof(*r->nodes)));
    r->nodes[r->count++] = node;
    return WEFT_OK;
}

static weft_status_t rewrite(rewriter_t *r)
{
    Onnx__GraphProto *graph = r->file->model->graph;
    uint32_t *of_node = wefti_arena_array(&r->file->arena, graph->n_node, sizeof(*of_node));
    WEFT_RETURN_IF_NO_MEMORY(of_node);
    WEFT_RETURN_IF_ERROR(find_bags(r, of_node));
    for (size_t i = 0; i < graph->n_node; i++) {
        Onnx__NodeProto *node = graph->node[i];
        uint32_t bag = of_node[i];
        bool ends = is_op(node, "ConcatFromSequence") && node->n_input == 1 && node->n_output == 1;
        if (bag == WEFTI_NONE && ends) {
            bag = wefti_name_index_find(&r->sequences, node->input[0]);
        } else if (bag != WEFTI_NONE && r->bags[bag].sequence != NULL) {
            continue;
        } else if (is_op(node, "SequenceEmpty") && node->n_output == 1 &&
                   wefti_name_index_find(&r->sequences, node->output[0]) != WEFTI_NONE) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(bag != WEFTI_NONE ? push_bag(r, &r->bags[bag], node->output[0])
                                               : keep(r, node));
    }
    Onnx__NodeProto **nodes = wefti_arena_array(&r->file->arena, r->count + 1, sizeof(*nodes));
    WEFT_RETURN_IF_NO_MEMORY(nodes);
    memcpy(nodes, r->nodes, r->count * sizeof(*nodes));
    graph->node = nodes;
    graph->n_node = r->count;
    return WEFT_OK;
}

weft_status_t wefti_onnx_replace_bags(wefti_onnx_file_t *file)
{
    const Onnx__GraphProto *graph = file->model->graph;
    rewriter_t r = {.file = file};
    size_t loops = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        loops += is_op(graph->node[i], "Loop") ? 1 : 0;
    }
    if (loops == 0 || wefti_onnx_opset(file->model, "") < 16) {
        return WEFT_OK; /* ScatterND does not add */
    }
    wefti_name_index_init(&r.makers, file->allocator);
    wefti_name_index_init(&r.sequences, file->allocator);
    r.bags = wefti_arena_array(&file->arena, loops, sizeof(*r.bags));
    weft_status_t status = r.bags == NULL ? WEFT_ERR_NO_MEMORY : rewrite(&r);
    wefti_free(file->allocator, r.nodes);
    wefti_name_index_deinit(&r.makers);
    wefti_name_index_deinit(&r.sequences);
    return status;
}
