/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of tensors, as torch.export writes split and unbind, become operators of tensors:
 *
 *   SplitToSequence(x, [a, b, ..])        Split; SequenceAt names its outputs
 *   SplitToSequence(x, n)                 SequenceAt(k): Slice from k n to (k + 1) n
 *   SplitToSequence(x, keepdims = 0)      SequenceAt(k): Gather of k
 *
 * Lengths and places are constants. What is of another form stays, and is refused as unknown.
 */
#include "graph/onnx/internal.h"

#include <string.h>

#include "runtime/base/error.h"

#define MOST_PARTS 255 /* of a Split */

typedef enum form { SPLIT, SLICE, GATHER } form_t;

typedef struct sequence {
    form_t form;
    Onnx__NodeProto *node; /* SPLIT: has become a Split */
    bool *taken;           /* of its outputs */
    int64_t length, axis;  /* SLICE: of a part */
    int64_t size;          /* SLICE: of the whole, along axis; -1: not known, -2: not looked up */
} sequence_t;

typedef struct rewriter {
    wefti_onnx_file_t *file;
    wefti_name_index_t constants, sequences; /* by node or, above, initializer; by position */
    sequence_t *list;
    size_t list_count;
    Onnx__NodeProto **nodes;
    size_t count;
} rewriter_t;

static bool is_op(const Onnx__NodeProto *node, const char *op)
{
    return node->op_type != NULL && strcmp(node->op_type, op) == 0 &&
           wefti_onnx_domain(node->domain)[0] == '\0';
}

/* The constant integers called name; false if there are none. */
static bool integers(rewriter_t *r, const char *name, weft_tensor_desc_t *out)
{
    const Onnx__GraphProto *graph = r->file->model->graph;
    uint32_t id = wefti_name_index_find(&r->constants, name);
    if (id == WEFTI_NONE) {
        return false;
    }
    weft_status_t status = id < graph->n_node
                               ? wefti_onnx_constant(r->file, graph->node[id], &r->file->arena, out)
                               : wefti_onnx_tensor(r->file, graph->initializer[id - graph->n_node],
                                                   false, &r->file->arena, out);
    return status == WEFT_OK && out->dtype == WEFT_DTYPE_I64 && out->rank <= 1;
}

static weft_status_t add_names(rewriter_t *r)
{
    const Onnx__GraphProto *graph = r->file->model->graph;
    const char *unique;
    for (size_t i = 0; i < graph->n_node + graph->n_initializer; i++) {
        const char *name = NULL;
        if (i >= graph->n_node) {
            name = graph->initializer[i - graph->n_node]->name;
        } else if (is_op(graph->node[i], "Constant") && graph->node[i]->n_output == 1) {
            name = graph->node[i]->output[0];
        }
        if (name != NULL && name[0] != '\0') {
            WEFT_RETURN_IF_ERROR(
                wefti_name_index_add(&r->constants, &r->file->arena, name, (uint32_t)i, &unique));
        }
    }
    return WEFT_OK;
}

static char *part_name(rewriter_t *r, const char *name, const char *part)
{
    return (char *)(uintptr_t)wefti_arena_printf(&r->file->arena, "%s/%s", name, part);
}

/* A node with room for inputs, and one output. */
static weft_status_t push_node(rewriter_t *r, const char *op, char *name, size_t input_count,
                               char *output, Onnx__NodeProto **out_node)
{
    wefti_arena_t *arena = &r->file->arena;
    Onnx__NodeProto *node = wefti_arena_alloc(arena, sizeof(*node));
    char **inputs = wefti_arena_array(arena, input_count + 1, sizeof(*inputs));
    char **outputs = wefti_arena_array(arena, 1, sizeof(*outputs));
    WEFT_RETURN_IF_NO_MEMORY(node && inputs && outputs);
    onnx__node_proto__init(node);
    node->op_type = (char *)(uintptr_t)op;
    node->name = name;
    node->input = inputs;
    node->n_input = input_count;
    node->output = outputs;
    node->n_output = 1;
    outputs[0] = output;
    r->nodes[r->count++] = node;
    *out_node = node;
    return WEFT_OK;
}

static weft_status_t set_integer(rewriter_t *r, Onnx__NodeProto *node, const char *name, bool list,
                                 int64_t value)
{
    Onnx__AttributeProto *attribute = wefti_onnx_make_integer(&r->file->arena, name, value, list);
    node->attribute = wefti_arena_array(&r->file->arena, 1, sizeof(*node->attribute));
    WEFT_RETURN_IF_NO_MEMORY(attribute && node->attribute);
    node->attribute[node->n_attribute++] = attribute;
    return WEFT_OK;
}

static weft_status_t push_constant(rewriter_t *r, char *name, bool list, int64_t value,
                                   char **out_name)
{
    Onnx__NodeProto *node;
    WEFT_RETURN_IF_NO_MEMORY(name);
    WEFT_RETURN_IF_ERROR(push_node(r, "Constant", name, 0, name, &node));
    *out_name = name;
    return set_integer(r, node, list ? "value_ints" : "value_int", list, value);
}

static int64_t axis_of(const Onnx__NodeProto *node)
{
    const Onnx__AttributeProto *axis = wefti_onnx_find_attribute(node, "axis");
    return axis != NULL ? axis->i : 0;
}

/* A Split with an output for each length. */
static weft_status_t become_split(rewriter_t *r, Onnx__NodeProto *node, size_t parts,
                                  sequence_t *out)
{
    wefti_arena_t *arena = &r->file->arena;
    Onnx__NodeProto *split;
    WEFT_RETURN_IF_ERROR(push_node(r, "Split", node->name, node->n_input, NULL, &split));
    memcpy(split->input, node->input, node->n_input * sizeof(*node->input));
    WEFT_RETURN_IF_ERROR(set_integer(r, split, "axis", false, axis_of(node)));
    split->output = wefti_arena_array(arena, parts, sizeof(*split->output));
    out->taken = wefti_arena_array(arena, parts, sizeof(*out->taken));
    WEFT_RETURN_IF_NO_MEMORY(split->output && out->taken);
    memset(out->taken, 0, parts * sizeof(*out->taken));
    split->n_output = parts;
    for (size_t i = 0; i < parts; i++) {
        split->output[i] =
            (char *)(uintptr_t)wefti_arena_printf(arena, "%s/%zu", node->output[0], i);
        WEFT_RETURN_IF_NO_MEMORY(split->output[i]);
    }
    out->node = split;
    return WEFT_OK;
}

/* *out_known: the sequence is of a form above; else the node stays. */
static weft_status_t take_sequence(rewriter_t *r, Onnx__NodeProto *node, bool *out_known)
{
    weft_tensor_desc_t lengths = {0};
    const char *unique;
    const Onnx__AttributeProto *keep = wefti_onnx_find_attribute(node, "keepdims");
    sequence_t *to = &r->list[r->list_count];
    bool given = node->n_input > 1 && node->input[1][0] != '\0';
    *out_known = node->n_output == 1 && node->n_input > 0 && node->input[0][0] != '\0' &&
                 (given ? integers(r, node->input[1], &lengths) : keep != NULL && keep->i == 0);
    if (!*out_known) {
        return WEFT_OK;
    }
    *to = (sequence_t){.form = GATHER, .node = node, .axis = axis_of(node), .size = -2};
    if (given && lengths.rank == 1) {
        to->form = SPLIT;
        *out_known = lengths.dims[0] > 0 && lengths.dims[0] <= MOST_PARTS;
        if (*out_known) {
            WEFT_RETURN_IF_ERROR(become_split(r, node, (size_t)lengths.dims[0], to));
        }
    } else if (given) {
        to->form = SLICE;
        *out_known = wefti_onnx_integer(&lengths, &to->length) && to->length > 0;
    }
    return *out_known ? wefti_name_index_add(&r->sequences, &r->file->arena, node->output[0],
                                             (uint32_t)r->list_count++, &unique)
                      : WEFT_OK;
}

/* The size of what is split, along the axis, where the file states it. */
static void find_size(rewriter_t *r, sequence_t *from)
{
    weft_tensor_desc_t whole = {.dtype = WEFT_DTYPE_NONE};
    if (from->size != -2) {
        return;
    }
    from->size = -1;
    if (r->file->look != NULL &&
        r->file->look(r->file, r->file->model->graph, from->node->input[0], &whole) >= 0 &&
        whole.dtype != WEFT_DTYPE_NONE) {
        int64_t axis = from->axis + (from->axis < 0 ? (int64_t)whole.rank : 0);
        from->size = axis >= 0 && axis < (int64_t)whole.rank ? whole.dims[axis] : -1;
    }
}

static weft_status_t push_slice(rewriter_t *r, sequence_t *from, int64_t place, char *output)
{
    static const char *const parts[] = {"starts", "ends", "axes"};
    int64_t end, begin;
    char *names[3];
    Onnx__NodeProto *slice;
    find_size(r, from);
    if (__builtin_mul_overflow(place, from->length, &begin) ||
        __builtin_add_overflow(begin, from->length, &end) ||
        (from->size >= 0 && begin >= from->size)) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: element %lld of sequence '%s' is out of range",
                           r->file->label, (long long)place, from->node->output[0]);
    }
    const int64_t values[] = {begin, end, from->axis};
    for (size_t i = 0; i < 3; i++) {
        WEFT_RETURN_IF_ERROR(
            push_constant(r, part_name(r, output, parts[i]), true, values[i], &names[i]));
    }
    WEFT_RETURN_IF_ERROR(push_node(r, "Slice", output, 4, output, &slice));
    slice->input[0] = from->node->input[0];
    memcpy(&slice->input[1], names, sizeof names);
    return WEFT_OK;
}

static weft_status_t push_gather(rewriter_t *r, const sequence_t *from, int64_t place, char *output)
{
    Onnx__NodeProto *gather;
    char *index;
    WEFT_RETURN_IF_ERROR(push_constant(r, part_name(r, output, "index"), false, place, &index));
    WEFT_RETURN_IF_ERROR(push_node(r, "Gather", output, 2, output, &gather));
    gather->input[0] = from->node->input[0];
    gather->input[1] = index;
    return set_integer(r, gather, "axis", false, from->axis);
}

/* The output of the Split gets the name that SequenceAt has for it. */
static weft_status_t take_part(rewriter_t *r, const sequence_t *from, int64_t place, char *output)
{
    Onnx__NodeProto *copy;
    int64_t count = (int64_t)from->node->n_output;
    place += place < 0 ? count : 0;
    if (place < 0 || place >= count) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: element %lld of %lld of a sequence is out of range", r->file->label,
                           (long long)place, (long long)count);
    }
    if (!from->taken[place]) {
        from->taken[place] = true;
        from->node->output[place] = output;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(push_node(r, "Identity", output, 1, output, &copy));
    copy->input[0] = from->node->output[place];
    return WEFT_OK;
}

static weft_status_t rewrite(rewriter_t *r, Onnx__NodeProto *node)
{
    bool known = false;
    if (is_op(node, "SplitToSequence")) {
        WEFT_RETURN_IF_ERROR(take_sequence(r, node, &known));
    } else if (is_op(node, "SequenceAt") && node->n_input == 2 && node->n_output == 1) {
        uint32_t id = wefti_name_index_find(&r->sequences, node->input[0]);
        weft_tensor_desc_t place = {0};
        int64_t at;
        if (id != WEFTI_NONE && integers(r, node->input[1], &place) && place.rank == 0 &&
            wefti_onnx_integer(&place, &at)) {
            sequence_t *from = &r->list[id];
            known = from->form != SLICE || at >= 0;
            if (known) {
                return from->form == SPLIT   ? take_part(r, from, at, node->output[0])
                       : from->form == SLICE ? push_slice(r, from, at, node->output[0])
                                             : push_gather(r, from, at, node->output[0]);
            }
        }
    }
    if (!known) {
        r->nodes[r->count++] = node;
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_replace_sequences(wefti_onnx_file_t *file)
{
    Onnx__GraphProto *graph = file->model->graph;
    rewriter_t r = {.file = file};
    weft_status_t status;
    size_t sequences = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        sequences += is_op(graph->node[i], "SplitToSequence") ? 1 : 0;
    }
    if (sequences == 0 || wefti_onnx_opset(file->model, "") < 13) {
        return WEFT_OK; /* lengths were attributes of Split */
    }
    wefti_name_index_init(&r.constants, file->arena.allocator);
    wefti_name_index_init(&r.sequences, file->arena.allocator);
    r.list = wefti_arena_array(&file->arena, sequences, sizeof(*r.list));
    r.nodes = wefti_arena_array(&file->arena, graph->n_node * 4, sizeof(*r.nodes));
    status = r.list == NULL || r.nodes == NULL ? WEFT_ERR_NO_MEMORY : add_names(&r);
    for (size_t i = 0; i < graph->n_node && status == WEFT_OK; i++) {
        status = rewrite(&r, graph->node[i]);
    }
    if (status == WEFT_OK) {
        graph->node = r.nodes;
        graph->n_node = r.count;
    }
    wefti_name_index_deinit(&r.constants);
    wefti_name_index_deinit(&r.sequences);
    return status;
}
