/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and unpacks a file; the contents of its tensors stay in the mapping. */
#include "graph/onnx/internal.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define BUDGET_BASE_BYTES ((size_t)64 << 20)
/* A node of a hundred bytes unpacks to about fifteen times that. */
#define BUDGET_FACTOR 32u

static void *arena_alloc(void *user, size_t size_bytes)
{
    wefti_onnx_file_t *file = user;
    void *memory = wefti_arena_alloc(&file->arena, size_bytes);
    file->out_of_memory = file->out_of_memory || memory == NULL;
    return memory;
}

static void arena_free(void *user, void *ptr)
{
    /* Freed with the arena. */
    (void)user;
    (void)ptr;
}

static size_t default_budget(size_t size_bytes)
{
    size_t bytes;
    /* Large files consist of contents of tensors, which are not unpacked. */
    size_t counted = size_bytes < ((size_t)256 << 20) ? size_bytes : (size_t)256 << 20;
    return wefti_mul_size(counted, BUDGET_FACTOR, &bytes) ? bytes + BUDGET_BASE_BYTES : SIZE_MAX;
}

static weft_status_t unpack(wefti_onnx_file_t *file, const ProtobufCMessageDescriptor *descriptor,
                            ProtobufCMessage **out_message)
{
    uint8_t *reduced = NULL;
    size_t reduced_bytes = 0;
    weft_status_t status;
    WEFT_TRY(status,
             wefti_onnx_reduce(descriptor, file->data, file->size_bytes, file->budget_bytes,
                               file->allocator, &reduced, &reduced_bytes),
             done);
    /* The walk has bounded the cost already; the limit of the arena is a second check. */
    wefti_arena_init(&file->arena, file->allocator, 0);
    file->arena.budget_bytes = file->budget_bytes > SIZE_MAX / 4 ? 0 : file->budget_bytes * 4;
    file->pb = (ProtobufCAllocator){arena_alloc, arena_free, file};
    *out_message = protobuf_c_message_unpack(descriptor, &file->pb, reduced_bytes, reduced);
    if (*out_message == NULL && file->out_of_memory) {
        status = WEFT_ERR_NO_MEMORY; /* the arena recorded the error */
    } else if (*out_message == NULL) {
        status = wefti_error(WEFT_ERR_FORMAT, "not an ONNX model or damaged");
    }
done:
    wefti_free(file->allocator, reduced);
    return status;
}

static weft_status_t open_file(const wefti_onnx_import_params_t *params,
                               const ProtobufCMessageDescriptor *descriptor,
                               const weft_allocator_t *allocator, wefti_onnx_file_t *file,
                               ProtobufCMessage **out_message)
{
    weft_status_t status = WEFT_OK;
    memset(file, 0, sizeof(*file));
    file->allocator = allocator;
    file->path = params->path;
    file->label = params->path != NULL ? params->path : "model";
    if (params->path != NULL) {
        WEFT_TRY(status, wefti_file_map(params->path, &file->mapping), fail_plain);
        file->data = file->mapping.data;
        file->size_bytes = file->mapping.size_bytes;
    } else {
        file->data = params->bytes;
        file->size_bytes = params->size_bytes;
    }
    if (file->size_bytes == 0 || file->data == NULL) {
        status = wefti_error(WEFT_ERR_FORMAT, "file is empty");
        goto fail;
    }
    file->budget_bytes =
        params->budget_bytes != 0 ? params->budget_bytes : default_budget(file->size_bytes);
    WEFT_TRY(status, unpack(file, descriptor, out_message), fail);
    return WEFT_OK;
fail:
    wefti_error_prefix(status, "%s", file->label);
fail_plain:
    wefti_onnx_file_close(file);
    return status;
}

weft_status_t wefti_onnx_file_open(const wefti_onnx_import_params_t *params,
                                   const weft_allocator_t *allocator, wefti_onnx_file_t *file)
{
    ProtobufCMessage *message = NULL;
    weft_status_t status =
        open_file(params, &onnx__model_proto__descriptor, allocator, file, &message);
    if (status < 0) {
        return status;
    }
    file->model = (Onnx__ModelProto *)message;
    if (message == NULL || file->model->graph == NULL) {
        status = wefti_error(WEFT_ERR_FORMAT, "%s: not an ONNX model: no graph", file->label);
        wefti_onnx_file_close(file);
    }
    return status;
}

void wefti_onnx_file_close(wefti_onnx_file_t *file)
{
    if (file->arena.allocator != NULL || file->arena.chunks != NULL) {
        wefti_arena_deinit(&file->arena);
    }
    for (size_t i = 0; i < file->external_count; i++) {
        wefti_file_unmap(&file->externals[i].mapping);
    }
    wefti_free(file->allocator, file->externals);
    wefti_file_unmap(&file->mapping);
    memset(file, 0, sizeof(*file));
}

static weft_status_t give(wefti_mapping_t *mapping, wefti_graph_t *graph)
{
    weft_status_t status = wefti_graph_adopt_mapping(graph, mapping);
    if (status == WEFT_OK) {
        *mapping = (wefti_mapping_t){0};
    }
    return status;
}

weft_status_t wefti_onnx_file_give_mappings(wefti_onnx_file_t *file, wefti_graph_t *graph)
{
    WEFT_RETURN_IF_ERROR(give(&file->mapping, graph));
    for (size_t i = 0; i < file->external_count; i++) {
        WEFT_RETURN_IF_ERROR(give(&file->externals[i].mapping, graph));
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_read_tensor(const char *path, wefti_arena_t *arena,
                                     weft_tensor_desc_t *out_desc)
{
    wefti_onnx_import_params_t params = {.path = path};
    wefti_onnx_file_t file;
    ProtobufCMessage *message = NULL;
    weft_status_t status =
        open_file(&params, &onnx__tensor_proto__descriptor, arena->allocator, &file, &message);
    if (status < 0) {
        return status;
    }
    weft_tensor_desc_t desc;
    status = wefti_onnx_tensor(&file, (Onnx__TensorProto *)message, false, arena, &desc);
    if (status == WEFT_OK) {
        /* The mapping is closed below, so the contents are copied. */
        size_t bytes = (size_t)weft_tensor_elem_count(&desc) * weft_dtype_size_bytes(desc.dtype);
        desc.data = wefti_arena_memdup(arena, desc.data, bytes);
        status = desc.data == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    }
    if (status == WEFT_OK) {
        *out_desc = desc;
    } else {
        wefti_error_prefix(status, "%s", path);
    }
    wefti_onnx_file_close(&file);
    return status;
}
