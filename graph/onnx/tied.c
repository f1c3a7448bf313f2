/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tied weights that an exporter separated.
 *
 *   logits = MatMul(x, Transpose(wte.weight))  --constant folding-->  MatMul(x, onnx::MatMul_614)
 *
 * wte.weight, which a Gather also reads, and its transposed copy would be trained apart. A matrix
 * with a made-up name that equals the transpose of an initializer with a name of its own becomes
 * Transpose(original) again. A product reads transposed weights in place, so the node costs nothing.
 * A matrix that equals its own transpose, or has two different numbers only, proves nothing: it may
 * be the identity, also a rectangular one, or all zeros.
 */
#include "graph/onnx/internal.h"

#include <string.h>

#include "runtime/base/error.h"

#define TRAINED "weft.trained"
#define BLOCK 32

typedef struct tied {
    wefti_onnx_file_t *file;
    wefti_name_index_t inputs;    /* of the graph */
    wefti_name_index_t originals; /* type and corners -> index of the initializer */
    Onnx__NodeProto **nodes;
    size_t count;
} tied_t;

static bool is_matrix(const Onnx__TensorProto *tensor)
{
    return tensor->name != NULL && tensor->n_dims == 2 && tensor->dims[0] > 1 &&
           tensor->dims[1] > 1 && wefti_dtype_is_floating(wefti_onnx_dtype(tensor->data_type));
}

static bool is_candidate(const tied_t *t, const Onnx__TensorProto *tensor)
{
    return is_matrix(tensor) && wefti_onnx_is_made_up_name(tensor->name) &&
           wefti_name_index_find(&t->inputs, tensor->name) == WEFTI_NONE;
}

static weft_status_t add_name(tied_t *t, wefti_name_index_t *index, const char *name, uint32_t id)
{
    const char *unique;
    return wefti_name_index_find(index, name) != WEFTI_NONE
               ? WEFT_OK
               : wefti_name_index_add(index, &t->file->arena, name, id, &unique);
}

static uint64_t bits_at(const weft_tensor_desc_t *m, int64_t row, int64_t column)
{
    size_t size = weft_dtype_size_bytes(m->dtype);
    uint64_t bits = 0;
    memcpy(&bits, (const uint8_t *)m->data + (size_t)(row * m->dims[1] + column) * size, size);
    return bits;
}

/* The type and the corners of a matrix, or of its transpose. Contents that cannot be read are an
 * empty text: the import reports them. */
static weft_status_t describe(tied_t *t, const Onnx__TensorProto *tensor, bool transposed,
                              weft_tensor_desc_t *m, const char **out)
{
    weft_status_t status = wefti_onnx_tensor(t->file, tensor, true, &t->file->arena, m);
    *out = "";
    if (status < 0 || m->data == NULL) {
        return status == WEFT_ERR_NO_MEMORY ? status : WEFT_OK;
    }
    int64_t rows = m->dims[0] - 1, columns = m->dims[1] - 1;
    uint64_t right = bits_at(m, 0, columns), low = bits_at(m, rows, 0);
    *out = wefti_arena_printf(
        &t->file->arena, "%d %lld %lld %llx %llx %llx %llx", (int)m->dtype,
        (long long)(transposed ? columns : rows), (long long)(transposed ? rows : columns),
        (unsigned long long)bits_at(m, 0, 0), (unsigned long long)(transposed ? low : right),
        (unsigned long long)(transposed ? right : low),
        (unsigned long long)bits_at(m, rows, columns));
    WEFT_RETURN_IF_NO_MEMORY(*out);
    return WEFT_OK;
}

/* Is a the transpose of b? Block by block, since one of them is read across its rows. */
static bool is_transpose(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    bool equal = a->dims[0] == b->dims[1] && a->dims[1] == b->dims[0];
    for (int64_t i0 = 0; i0 < a->dims[0]; i0 += BLOCK) {
        for (int64_t j0 = 0; j0 < a->dims[1] && equal; j0 += BLOCK) {
            for (int64_t i = i0; i < a->dims[0] && i < i0 + BLOCK; i++) {
                for (int64_t j = j0; j < a->dims[1] && j < j0 + BLOCK; j++) {
                    equal = equal && bits_at(a, i, j) == bits_at(b, j, i);
                }
            }
        }
    }
    return equal;
}

/* Two numbers at most, as in a rectangular identity or a mask. */
static bool is_plain(const weft_tensor_desc_t *m)
{
    uint64_t first = bits_at(m, 0, 0), second = first;
    for (int64_t i = 0; i < m->dims[0]; i++) {
        for (int64_t j = 0; j < m->dims[1]; j++) {
            uint64_t bits = bits_at(m, i, j);
            second = second == first ? bits : second;
            if (bits != first && bits != second) {
                return false;
            }
        }
    }
    return true;
}

static weft_status_t tie(tied_t *t, Onnx__TensorProto *tensor, bool *out_tied)
{
    Onnx__GraphProto *graph = t->file->model->graph;
    weft_tensor_desc_t copy, original;
    const char *key;
    *out_tied = false;
    WEFT_RETURN_IF_ERROR(describe(t, tensor, true, &copy, &key));
    uint32_t id = wefti_name_index_find(&t->originals, key);
    if (key[0] == '\0' || id == WEFTI_NONE) {
        return WEFT_OK;
    }
    const Onnx__TensorProto *from = graph->initializer[id];
    WEFT_RETURN_IF_ERROR(wefti_onnx_tensor(t->file, from, true, &t->file->arena, &original));
    if (is_plain(&copy) || is_transpose(&copy, &copy) || !is_transpose(&copy, &original)) {
        return WEFT_OK;
    }
    const char *inputs[] = {from->name};
    t->nodes[t->count] =
        wefti_onnx_make_node(&t->file->arena, "Transpose", inputs, 1, tensor->name, NULL);
    WEFT_RETURN_IF_NO_MEMORY(t->nodes[t->count]);
    t->file->ties[t->count++] = (wefti_onnx_tie_t){tensor->name, from->name};
    *out_tied = true;
    return WEFT_OK;
}

/* The nodes come first: bodies of control flow may read their outputs. */
static weft_status_t tie_all(tied_t *t)
{
    Onnx__GraphProto *graph = t->file->model->graph;
    size_t n = graph->n_initializer, kept = 0;
    bool *tied = wefti_arena_array(&t->file->arena, n + 1, sizeof(*tied));
    t->nodes = wefti_arena_array(&t->file->arena, n + graph->n_node, sizeof(Onnx__NodeProto *));
    t->file->ties = wefti_arena_array(&t->file->arena, n, sizeof(*t->file->ties));
    WEFT_RETURN_IF_NO_MEMORY(tied && t->nodes && t->file->ties);
    for (size_t i = 0; i < n; i++) {
        if (is_candidate(t, graph->initializer[i])) {
            WEFT_RETURN_IF_ERROR(tie(t, graph->initializer[i], &tied[i]));
        }
    }
    if (t->count == 0) {
        return WEFT_OK;
    }
    t->file->tie_count = t->count;
    for (size_t i = 0; i < n; i++) {
        if (!tied[i]) {
            graph->initializer[kept++] = graph->initializer[i];
        }
    }
    graph->n_initializer = kept;
    for (size_t i = 0; i < graph->n_node; i++) {
        t->nodes[t->count + i] = graph->node[i];
    }
    graph->node = t->nodes;
    graph->n_node += t->count;
    return WEFT_OK;
}

/* False: the file states what is trained, or the exporter computed no matrix. */
static bool has_candidates(const tied_t *t)
{
    const Onnx__ModelProto *model = t->file->model;
    for (size_t i = 0; i < model->n_metadata_props; i++) {
        const char *key = model->metadata_props[i]->key;
        if (key != NULL && strcmp(key, TRAINED) == 0) {
            return false;
        }
    }
    for (size_t i = 0; i < model->graph->n_initializer; i++) {
        if (is_candidate(t, model->graph->initializer[i])) {
            return true;
        }
    }
    return false;
}

static weft_status_t find_originals(tied_t *t)
{
    const Onnx__GraphProto *graph = t->file->model->graph;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        weft_tensor_desc_t type;
        const char *key;
        if (is_matrix(graph->initializer[i]) &&
            !wefti_onnx_is_made_up_name(graph->initializer[i]->name)) {
            WEFT_RETURN_IF_ERROR(describe(t, graph->initializer[i], false, &type, &key));
            WEFT_RETURN_IF_ERROR(add_name(t, &t->originals, key, (uint32_t)i));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_tie(wefti_onnx_file_t *file)
{
    const Onnx__GraphProto *graph = file->model->graph;
    tied_t t = {.file = file};
    weft_status_t status = WEFT_OK;
    wefti_name_index_init(&t.inputs, file->arena.allocator);
    wefti_name_index_init(&t.originals, file->arena.allocator);
    for (size_t i = 0; i < graph->n_input; i++) { /* old files list initializers there */
        if (graph->input[i]->name != NULL) {
            WEFT_TRY(status, add_name(&t, &t.inputs, graph->input[i]->name, 0), done);
        }
    }
    if (has_candidates(&t)) {
        WEFT_TRY(status, find_originals(&t), done);
        status = tie_all(&t);
    }
done:
    wefti_name_index_deinit(&t.inputs);
    wefti_name_index_deinit(&t.originals);
    return status;
}
