/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays by the names of inputs, the samples along the first dimension. */
#include "tools/train/data.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/checkpoint/safetensors.h"

static bool is_npz(const char *path)
{
    size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".npz") == 0;
}

/* <input>.npy in a directory. */
static weft_status_t read_npy(const char *folder, const char *name, data_set_t *set,
                              data_array_t *out, char *label, size_t label_bytes)
{
    wefti_mapping_t *file = &set->files[set->file_count++];
    snprintf(label, label_bytes, "%s/%s.npy", folder, name);
    WEFT_RETURN_IF_ERROR(wefti_file_map(label, file));
    return wefti_npy_read(file->data, file->size_bytes, label, out);
}

static weft_status_t read_member(const char *path, const char *name, data_set_t *set,
                                 data_array_t *out, char *label, size_t label_bytes)
{
    char member[256];
    const uint8_t *data;
    size_t bytes;
    snprintf(member, sizeof member, "%s.npy", name);
    snprintf(label, label_bytes, "%s: array '%s'", path, name);
    WEFT_RETURN_IF_ERROR(wefti_npz_find(set->files[0].data, set->files[0].size_bytes, path, member,
                                        &data, &bytes, &set->blocks[set->block_count]));
    set->block_count += set->blocks[set->block_count] != NULL;
    return wefti_npy_read(data, bytes, label, out);
}

/* The contents stay in the mapping of the set, not in that of the reader. */
static weft_status_t read_tensor(const char *path, const wefti_safetensors_t *file,
                                 const char *name, const data_set_t *set, data_array_t *out,
                                 char *label, size_t label_bytes)
{
    snprintf(label, label_bytes, "%s: tensor '%s'", path, name);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const wefti_stored_tensor_t *tensor = &file->tensors[i];
        if (strcmp(tensor->name, name) == 0) {
            size_t before = (size_t)(file->data - file->mapping.data);
            *out = (data_array_t){.dtype = tensor->desc.dtype, .rank = tensor->desc.rank};
            for (uint32_t d = 0; d < out->rank; d++) {
                out->dims[d] = (uint64_t)tensor->desc.dims[d];
            }
            out->data = set->files[0].data + before + tensor->begin_bytes;
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_NOT_FOUND, "%s: no tensor '%s'", path, name);
}

static weft_status_t add_array(const data_input_t *input, const data_array_t *array,
                               const char *label, data_set_t *set)
{
    uint64_t elems = 1;
    for (uint32_t d = 1; d < array->rank; d++) {
        elems *= array->dims[d]; /* no more than the contents have, or one of them is 0 */
    }
    if (array->rank == 0 || array->dims[0] == 0) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: no samples: its first dimension is %s", label,
                           array->rank == 0 ? "missing" : "0");
    }
    if (elems != (uint64_t)input->elems) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: shape mismatch: %llu elements per sample, but input '%s' has %lld",
                           label, (unsigned long long)elems, input->name, (long long)input->elems);
    }
    if (!wefti_data_converts(array->dtype, input->dtype)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: type mismatch: %s, but input '%s' is %s",
                           label, weft_dtype_name(array->dtype), input->name,
                           weft_dtype_name(input->dtype));
    }
    if (array->dims[0] > UINT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: too many samples: %llu", label,
                           (unsigned long long)array->dims[0]);
    }
    if (set->column_count > 0 && array->dims[0] != set->count) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: numbers of samples differ: %llu, but %s has %u",
                           label, (unsigned long long)array->dims[0], set->sources[0], set->count);
    }
    set->count = (uint32_t)array->dims[0];
    const data_column_t column = {.data = array->data,
                                  .dtype = array->dtype,
                                  .elems = (size_t)elems,
                                  .stride = (size_t)elems};
    return wefti_data_add_column(set, label, &column);
}

static weft_status_t read_inputs(const data_request_t *request, const char *path,
                                 const wefti_safetensors_t *tensors, data_set_t *set)
{
    char label[4096 + 256];
    data_array_t array;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < request->input_count && status >= 0; i++) {
        const data_input_t *input = &request->inputs[i];
        status = tensors != NULL
                     ? read_tensor(path, tensors, input->name, set, &array, label, sizeof label)
                 : is_npz(path) ? read_member(path, input->name, set, &array, label, sizeof label)
                                : read_npy(path, input->name, set, &array, label, sizeof label);
        status = status < 0 ? status : add_array(input, &array, label, set);
    }
    return status;
}

weft_status_t wefti_data_read_arrays(const data_request_t *request, const char *path,
                                     data_set_t *set)
{
    size_t length = strlen(path);
    bool stored = length >= 12 && strcmp(path + length - 12, ".safetensors") == 0;
    wefti_safetensors_t tensors = {0};
    weft_status_t status = WEFT_OK;
    if (stored || is_npz(path)) {
        status = wefti_file_map(path, &set->files[set->file_count++]);
    }
    if (status >= 0 && stored) {
        status = wefti_safetensors_open(path, NULL, &tensors);
        if (status >= 0 && tensors.mapping.size_bytes != set->files[0].size_bytes) {
            status = wefti_error(WEFT_ERR_STATE, "%s: changed while it was read", path);
        }
    }
    status = status < 0 ? status : read_inputs(request, path, stored ? &tensors : NULL, set);
    wefti_safetensors_close(&tensors);
    return status;
}
