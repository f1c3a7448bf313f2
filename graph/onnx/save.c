/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the evaluation model of a plan with trained weights. */
#include <weft/compile.h>

#include "graph/onnx/internal.h"

#include <stdio.h>
#include <string.h>

#include "graph/ir.h"
#include "ops/compute/halves.h"
#include "ops/plan/plan.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

typedef struct save {
    const weft_plan_t *plan;
    wefti_onnx_file_t file;
    wefti_name_index_t initializers; /* name -> index */
    bool *filled;
} save_t;

/* A hole: an initializer whose contents were left out. */
static bool is_hole(const save_t *save, uint32_t index)
{
    const Onnx__TensorProto *tensor = save->file.model->graph->initializer[index];
    return !tensor->has_raw_data && !wefti_onnx_is_typed(tensor);
}

static const wefti_plan_buffer_t *find_buffer(const weft_plan_t *plan, const char *name,
                                              wefti_buffer_kind_t kind)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        if (buffer->kind == kind && buffer->name != NULL && strcmp(buffer->name, name) == 0) {
            return buffer;
        }
    }
    return NULL;
}

static weft_status_t index_initializers(save_t *save)
{
    const Onnx__GraphProto *graph = save->file.model->graph;
    const char *unique;
    save->filled = wefti_arena_array(&save->file.arena, graph->n_initializer + 1, sizeof(bool));
    WEFT_RETURN_IF_NO_MEMORY(save->filled);
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const char *name = graph->initializer[i]->name;
        if (name == NULL || wefti_name_index_find(&save->initializers, name) != WEFTI_NONE) {
            return wefti_error(WEFT_ERR_FORMAT, "initializer %zu: missing or duplicate name", i);
        }
        WEFT_RETURN_IF_ERROR(wefti_name_index_add(&save->initializers, &save->file.arena, name,
                                                  (uint32_t)i, &unique));
    }
    return WEFT_OK;
}

static weft_status_t fill(save_t *save, uint32_t index, const weft_tensor_desc_t *desc)
{
    Onnx__TensorProto *tensor = save->file.model->graph->initializer[index];
    weft_tensor_desc_t has;
    WEFT_RETURN_IF_ERROR(wefti_onnx_tensor(&save->file, tensor, true, &save->file.arena, &has));
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    weft_tensor_desc_t rounded = *desc;
    if (wefti_is_half(has.dtype) && desc->dtype == WEFT_DTYPE_F32 && desc->data != NULL) {
        const int64_t count = weft_tensor_elem_count(desc); /* trained in f32, see pass precision */
        rounded.dtype = has.dtype;
        rounded.data = wefti_arena_array(&save->file.arena, (size_t)count, sizeof(uint16_t));
        WEFT_RETURN_IF_NO_MEMORY(rounded.data);
        wefti_halves_narrow(WEFT_ISA_PORTABLE, has.dtype, desc->data, count,
                            (void *)(uintptr_t)rounded.data);
        desc = &rounded;
    }
    if (desc->dtype != has.dtype || desc->rank != has.rank ||
        memcmp(desc->dims, has.dims, has.rank * sizeof(has.dims[0])) != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tensor '%s': type or shape does not match the model: %s, model %s",
                           tensor->name, wefti_type_text(desc, texts[0]),
                           wefti_type_text(&has, texts[1]));
    }
    if (desc->layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "tensor '%s': layout must be plain",
                           tensor->name);
    }
    if (desc->data == NULL && weft_tensor_elem_count(desc) > 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "tensor '%s': data is NULL", tensor->name);
    }
    wefti_onnx_set_contents(tensor, desc);
    save->filled[index] = true;
    return WEFT_OK;
}

static weft_status_t fill_given(save_t *save, const weft_named_tensor_t *tensors,
                                size_t tensor_count)
{
    for (size_t i = 0; i < tensor_count; i++) {
        const char *name = tensors[i].name;
        if (name == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "tensors[%zu]: name is NULL", i);
        }
        uint32_t index = wefti_name_index_find(&save->initializers, name);
        if (index == WEFTI_NONE) {
            /* trained, but not part of the evaluation model */
            if (find_buffer(save->plan, name, WEFTI_BUFFER_PARAM) != NULL) {
                continue;
            }
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "tensor '%s': not in the model", name);
        }
        if (save->filled[index]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "duplicate tensor '%s'", name);
        }
        if (!is_hole(save, index)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "tensor '%s': not a trained parameter",
                               name);
        }
        WEFT_RETURN_IF_ERROR(fill(save, index, &tensors[i].desc));
    }
    return WEFT_OK;
}

/* Holes that are constants of the plan are filled from the plan. */
static weft_status_t fill_constants(save_t *save)
{
    const Onnx__GraphProto *graph = save->file.model->graph;
    const weft_plan_t *plan = save->plan;
    for (uint32_t i = 0; i < graph->n_initializer; i++) {
        if (save->filled[i] || !is_hole(save, i)) {
            continue;
        }
        const char *name = graph->initializer[i]->name;
        const wefti_plan_buffer_t *buffer = find_buffer(plan, name, WEFTI_BUFFER_CONST);
        if (buffer == NULL || plan->weights == NULL ||
            buffer->data_offset_bytes > plan->weights_bytes ||
            buffer->size_bytes > plan->weights_bytes - buffer->data_offset_bytes) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "missing tensor for parameter '%s'",
                               name);
        }
        weft_tensor_desc_t desc = {.dtype = buffer->dtype,
                                   .layout = buffer->layout,
                                   .rank = buffer->rank,
                                   .data = plan->weights + buffer->data_offset_bytes};
        memcpy(desc.dims, buffer->dims, sizeof(desc.dims));
        int64_t count = weft_tensor_elem_count(&desc);
        size_t bytes;
        if (count < 0 ||
            !wefti_mul_size((size_t)count, weft_dtype_size_bytes(desc.dtype), &bytes) ||
            bytes > buffer->size_bytes) {
            return wefti_error(
                WEFT_ERR_FORMAT,
                "constant '%s': data of the plan is shorter than its shape: %llu bytes", name,
                (unsigned long long)buffer->size_bytes);
        }
        WEFT_RETURN_IF_ERROR(fill(save, i, &desc));
    }
    return WEFT_OK;
}

/* References of tensors that were not filled become contents; filled ones are left alone. */
static weft_status_t materialize_rest(save_t *save)
{
    Onnx__GraphProto *graph = save->file.model->graph;
    size_t n = graph->n_initializer;
    Onnx__TensorProto **all = graph->initializer;
    Onnx__TensorProto **rest =
        wefti_arena_array(&save->file.arena, n + 1, sizeof(Onnx__TensorProto *));
    WEFT_RETURN_IF_NO_MEMORY(rest);
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!save->filled[i]) {
            rest[count++] = all[i];
        }
    }
    graph->initializer = rest;
    graph->n_initializer = count;
    weft_status_t status = wefti_onnx_materialize(&save->file);
    graph->initializer = all;
    graph->n_initializer = n;
    return status;
}

static bool has_property(const save_t *save, const char *key)
{
    for (size_t i = 0; i < save->file.model->n_metadata_props; i++) {
        const char *own = save->file.model->metadata_props[i]->key;
        if (own != NULL && strncmp(own, "weft.", 5) == 0 && strcmp(own + 5, key) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * Entries of metadata_props as encoded in a file. Protobuf merges concatenated messages, so these
 * bytes follow those of the model.
 */
static weft_status_t encode_properties(const save_t *save, const wefti_onnx_property_t *properties,
                                       uint32_t count, uint8_t *out, size_t capacity,
                                       size_t *out_bytes)
{
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t key = 5 + strlen(properties[i].key), value = strlen(properties[i].value);
        if (has_property(save, properties[i].key)) {
            continue;
        }
        if (key + value + 4 > 127 || capacity - used < key + value + 7) { /* lengths of one byte */
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "metadata weft.%s: too long: %zu bytes",
                               properties[i].key, key + value);
        }
        used += (size_t)snprintf((char *)out + used, capacity - used, "\x72%c\x0a%cweft.%s\x12%c%s",
                                 (int)(key + value + 4), (int)key, properties[i].key, (int)value,
                                 properties[i].value);
    }
    *out_bytes = used;
    return WEFT_OK;
}

weft_status_t weft_model_save(const weft_plan_t *plan, const weft_named_tensor_t *tensors,
                              size_t tensor_count, const char *path)
{
    WEFT_CHECK_ARG(plan);
    WEFT_CHECK_ARG(path);
    if (tensor_count > 0) {
        WEFT_CHECK_ARG(tensors);
    }
    return wefti_model_save(plan, tensors, tensor_count, NULL, 0, path);
}

weft_status_t wefti_model_save(const weft_plan_t *plan, const weft_named_tensor_t *tensors,
                               size_t tensor_count, const wefti_onnx_property_t *properties,
                               uint32_t property_count, const char *path)
{
    uint8_t extra[512];
    size_t extra_bytes = 0;
    save_t save = {.plan = plan};
    uint8_t *bytes = NULL;
    size_t size_bytes = 0;
    weft_status_t status;
    if (plan->eval_model == NULL || plan->eval_model_bytes == 0) {
        const char *why = plan->no_eval_model;
        return wefti_error(WEFT_ERR_STATE, "plan: no evaluation model%s%s",
                           why[0] != '\0' ? ": " : "", why);
    }
    wefti_onnx_import_params_t params = {.bytes = plan->eval_model,
                                         .size_bytes = (size_t)plan->eval_model_bytes};
    status = wefti_onnx_file_open(&params, wefti_allocator_default(), &save.file);
    if (status < 0) {
        return wefti_error_prefix(status, "evaluation model of the plan");
    }
    wefti_name_index_init(&save.initializers, save.file.allocator);
    WEFT_TRY(status, wefti_onnx_check_model(&save.file), done);
    WEFT_TRY(status, index_initializers(&save), done);
    WEFT_TRY(status, fill_given(&save, tensors, tensor_count), done);
    WEFT_TRY(status, fill_constants(&save), done);
    WEFT_TRY(status, materialize_rest(&save), done);
    WEFT_TRY(status, wefti_onnx_pack(&save.file, &bytes, &size_bytes), done);
    WEFT_TRY(
        status,
        encode_properties(&save, properties, property_count, extra, sizeof extra, &extra_bytes),
        done);
    const wefti_piece_t pieces[] = {{bytes, size_bytes}, {extra, extra_bytes}};
    status = wefti_file_write(path, pieces, 2);
done:
    wefti_free(save.file.allocator, bytes);
    wefti_name_index_deinit(&save.initializers);
    wefti_onnx_file_close(&save.file);
    return status;
}
