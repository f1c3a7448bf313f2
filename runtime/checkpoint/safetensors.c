/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, and what reading and writing share. A file is not trusted in anything. */
#include "runtime/checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define LENGTH_BYTES 8u
#define MAX_EXACT 9007199254740992.0 /* 2^53: whole numbers up to here are what was written */

static const struct {
    const char *name;
    weft_dtype_t dtype;
} dtypes[] = {
    {"F64", WEFT_DTYPE_F64},   {"F32", WEFT_DTYPE_F32}, {"F16", WEFT_DTYPE_F16},
    {"BF16", WEFT_DTYPE_BF16}, {"I64", WEFT_DTYPE_I64}, {"I32", WEFT_DTYPE_I32},
    {"I16", WEFT_DTYPE_I16},   {"I8", WEFT_DTYPE_I8},   {"U64", WEFT_DTYPE_U64},
    {"U32", WEFT_DTYPE_U32},   {"U16", WEFT_DTYPE_U16}, {"U8", WEFT_DTYPE_U8},
    {"BOOL", WEFT_DTYPE_BOOL},
};

const char *wefti_safetensors_dtype_name(weft_dtype_t dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].name;
        }
    }
    return NULL;
}

weft_dtype_t wefti_safetensors_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return dtypes[i].dtype;
        }
    }
    return WEFT_DTYPE_NONE;
}

/* "tensor <name>: <what>" */
static weft_status_t bad_tensor(const char *name, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "tensor \"%.100s\": %s", name, what);
}

/* A whole number from 0. */
static bool read_count(const wefti_json_node_t *node, uint64_t *out_count)
{
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) || node->number > MAX_EXACT) {
        return false;
    }
    *out_count = (uint64_t)node->number;
    return !((double)*out_count < node->number);
}

static weft_status_t read_shape(const wefti_json_tree_t *json, const wefti_json_node_t *shape,
                                wefti_stored_tensor_t *tensor)
{
    if (shape->kind != WEFTI_JSON_ARRAY || shape->count > WEFT_MAX_DIMS) {
        return bad_tensor(tensor->name, "invalid shape: expected a list of at most 8 dimensions");
    }
    for (const wefti_json_node_t *dim = wefti_json_first(json, shape); dim != NULL;
         dim = wefti_json_after(json, dim)) {
        uint64_t count;
        if (!read_count(dim, &count)) {
            return bad_tensor(tensor->name,
                              "invalid shape: a dimension is not a whole number of at least 0");
        }
        tensor->desc.dims[tensor->desc.rank++] = (int64_t)count;
    }
    return WEFT_OK;
}

bool wefti_safetensors_bytes(const weft_tensor_desc_t *desc, size_t *out_bytes)
{
    int64_t elems = weft_tensor_elem_count(desc);
    return elems >= 0 &&
           wefti_mul_size(weft_dtype_size_bytes(desc->dtype), (size_t)elems, out_bytes);
}

static weft_status_t read_offsets(const wefti_safetensors_t *file, const wefti_json_node_t *offsets,
                                  wefti_stored_tensor_t *tensor)
{
    size_t bytes;
    const wefti_json_node_t *begin = wefti_json_first(&file->json, offsets);
    if (offsets->kind != WEFTI_JSON_ARRAY || offsets->count != 2 ||
        !read_count(begin, &tensor->begin_bytes) ||
        !read_count(wefti_json_after(&file->json, begin), &tensor->end_bytes)) {
        return bad_tensor(tensor->name,
                          "invalid data_offsets: expected two whole numbers of at least 0");
    }
    if (tensor->begin_bytes > tensor->end_bytes || tensor->end_bytes > file->data_bytes) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "tensor \"%.100s\": data_offsets out of range: bytes %llu to %llu of "
                           "%llu bytes of data",
                           tensor->name, (unsigned long long)tensor->begin_bytes,
                           (unsigned long long)tensor->end_bytes,
                           (unsigned long long)file->data_bytes);
    }
    if (!wefti_safetensors_bytes(&tensor->desc, &bytes) ||
        bytes != tensor->end_bytes - tensor->begin_bytes) {
        return bad_tensor(tensor->name, "size mismatch: dtype and shape do not match data_offsets");
    }
    return WEFT_OK;
}

static weft_status_t read_tensor(const wefti_safetensors_t *file, const wefti_json_node_t *node,
                                 wefti_stored_tensor_t *tensor)
{
    const wefti_json_node_t *dtype = wefti_json_get(&file->json, node, "dtype");
    const wefti_json_node_t *shape = wefti_json_get(&file->json, node, "shape");
    const wefti_json_node_t *offsets = wefti_json_get(&file->json, node, "data_offsets");
    tensor->name = node->key;
    if (node->kind != WEFTI_JSON_OBJECT || node->count != 3 || dtype == NULL || shape == NULL ||
        offsets == NULL || dtype->kind != WEFTI_JSON_STRING) {
        return bad_tensor(tensor->name, "expected dtype, shape and data_offsets");
    }
    tensor->desc.dtype = wefti_safetensors_dtype(dtype->string);
    if (tensor->desc.dtype == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor \"%.100s\": unknown dtype \"%.20s\"",
                           tensor->name, dtype->string);
    }
    WEFT_RETURN_IF_ERROR(read_shape(&file->json, shape, tensor));
    return read_offsets(file, offsets, tensor);
}

int wefti_safetensors_by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_place(const void *a, const void *b)
{
    const wefti_stored_tensor_t *x = a, *y = b;
    if (x->begin_bytes != y->begin_bytes) {
        return x->begin_bytes < y->begin_bytes ? -1 : 1;
    }
    return (x->end_bytes > y->end_bytes) - (x->end_bytes < y->end_bytes);
}

/* Tensors must be contiguous from the first byte to the last, with unique names. Sorts by name. */
static weft_status_t check_tensors(wefti_safetensors_t *file)
{
    wefti_stored_tensor_t *tensors = file->tensors;
    uint64_t at = 0;
    qsort(tensors, file->tensor_count, sizeof *tensors, by_place);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        if (tensors[i].begin_bytes != at) {
            return bad_tensor(tensors[i].name, tensors[i].begin_bytes < at
                                                   ? "overlaps the preceding tensor"
                                                   : "gap after the preceding tensor");
        }
        at = tensors[i].end_bytes;
    }
    if (at != file->data_bytes) {
        return wefti_error(WEFT_ERR_FORMAT, "%llu trailing bytes after the last tensor",
                           (unsigned long long)(file->data_bytes - at));
    }
    qsort(tensors, file->tensor_count, sizeof *tensors, wefti_safetensors_by_name);
    for (uint32_t i = 1; i < file->tensor_count; i++) {
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0) {
            return bad_tensor(tensors[i].name, "duplicate name");
        }
    }
    return WEFT_OK;
}

static weft_status_t read_texts(wefti_safetensors_t *file, const wefti_json_node_t *metadata)
{
    if (file->texts != NULL || metadata->kind != WEFTI_JSON_OBJECT) {
        return wefti_error(WEFT_ERR_FORMAT, "__metadata__: expected one JSON object");
    }
    file->texts = wefti_alloc(file->allocator, (metadata->count + 1u) * sizeof *file->texts);
    WEFT_RETURN_IF_NO_MEMORY(file->texts);
    for (const wefti_json_node_t *node = wefti_json_first(&file->json, metadata); node != NULL;
         node = wefti_json_after(&file->json, node)) {
        if (node->kind != WEFTI_JSON_STRING) {
            return wefti_error(WEFT_ERR_FORMAT, "__metadata__: value of \"%.100s\" is not a string",
                               node->key);
        }
        file->texts[file->text_count++] = (wefti_stored_text_t){node->key, node->string};
    }
    qsort(file->texts, file->text_count, sizeof *file->texts, wefti_safetensors_by_name);
    for (uint32_t i = 1; i < file->text_count; i++) {
        if (strcmp(file->texts[i - 1].key, file->texts[i].key) == 0) {
            return wefti_error(WEFT_ERR_FORMAT, "__metadata__: duplicate key \"%.100s\"",
                               file->texts[i].key);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_header(wefti_safetensors_t *file)
{
    const wefti_json_node_t *top = file->json.nodes;
    if (top->kind != WEFTI_JSON_OBJECT) {
        return wefti_error(WEFT_ERR_FORMAT, "header: not a JSON object");
    }
    file->tensors = wefti_alloc(file->allocator, (top->count + 1u) * sizeof *file->tensors);
    WEFT_RETURN_IF_NO_MEMORY(file->tensors);
    for (const wefti_json_node_t *node = wefti_json_first(&file->json, top); node != NULL;
         node = wefti_json_after(&file->json, node)) {
        WEFT_RETURN_IF_ERROR(strcmp(node->key, "__metadata__") == 0
                                 ? read_texts(file, node)
                                 : read_tensor(file, node, &file->tensors[file->tensor_count++]));
    }
    return check_tensors(file);
}

static weft_status_t read_file(wefti_safetensors_t *file)
{
    uint64_t length = 0;
    size_t size = file->mapping.size_bytes;
    if (size < LENGTH_BYTES) {
        return wefti_error(
            WEFT_ERR_FORMAT,
            "not a safetensors file: %zu bytes is shorter than the 8-byte header length", size);
    }
    for (uint32_t i = 0; i < LENGTH_BYTES; i++) {
        length |= (uint64_t)file->mapping.data[i] << (8 * i);
    }
    if (length > size - LENGTH_BYTES) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "truncated, or not a safetensors file: the header length is %llu bytes, "
                           "the file has %zu bytes",
                           (unsigned long long)length, size);
    }
    const char *header = (const char *)file->mapping.data + LENGTH_BYTES;
    file->data = file->mapping.data + LENGTH_BYTES + length;
    file->data_bytes = size - LENGTH_BYTES - length;
    weft_status_t status = wefti_json_parse(header, (size_t)length, file->allocator, &file->json);
    return status < 0 ? wefti_error_prefix(status, "header") : read_header(file);
}

weft_status_t wefti_safetensors_open(const char *path, const weft_allocator_t *allocator,
                                     wefti_safetensors_t *out_file)
{
    *out_file = (wefti_safetensors_t){.allocator = allocator};
    WEFT_RETURN_IF_ERROR(wefti_file_map(path, &out_file->mapping));
    weft_status_t status = read_file(out_file);
    if (status < 0) {
        wefti_safetensors_close(out_file);
        status = wefti_error_prefix(status, "%s", path);
    }
    return status;
}

void wefti_safetensors_close(wefti_safetensors_t *file)
{
    wefti_free(file->allocator, file->tensors);
    wefti_free(file->allocator, file->texts);
    wefti_json_tree_deinit(&file->json);
    wefti_file_unmap(&file->mapping);
    *file = (wefti_safetensors_t){0};
}

const char *wefti_safetensors_text(const wefti_safetensors_t *file, const char *key)
{
    const wefti_stored_text_t wanted = {.key = key};
    const wefti_stored_text_t *found =
        file->text_count == 0 ? NULL
                              : bsearch(&wanted, file->texts, file->text_count, sizeof *file->texts,
                                        wefti_safetensors_by_name);
    return found != NULL ? found->value : NULL;
}
