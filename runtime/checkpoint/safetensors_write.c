/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define LENGTH_BYTES 8u
#define DATA_ALIGNMENT 64u /* of the contents in the file, for programs that map it */

static bool is_utf8(const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    while (*at != '\0') {
        size_t length = wefti_utf8_length(at);
        if (length == 0) {
            return false;
        }
        at += length;
    }
    return true;
}

/* Larger element types first, then by name. */
static int by_type(const void *a, const void *b)
{
    size_t x = weft_dtype_size_bytes(((const wefti_stored_tensor_t *)a)->desc.dtype);
    size_t y = weft_dtype_size_bytes(((const wefti_stored_tensor_t *)b)->desc.dtype);
    return x != y ? (x < y) - (x > y) : wefti_safetensors_by_name(a, b);
}

static weft_status_t check_names(const wefti_stored_tensor_t *tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *name = tensors[i].name;
        const char *what = !is_utf8(name)                                    ? "is not UTF-8"
                           : strcmp(name, "__metadata__") == 0               ? "is reserved"
                           : i > 0 && strcmp(tensors[i - 1].name, name) == 0 ? "is a duplicate"
                                                                             : NULL;
        if (what != NULL) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor \"%.100s\": the name %s", name, what);
        }
        if (wefti_safetensors_dtype_name(tensors[i].desc.dtype) == NULL) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "tensor \"%.100s\": dtype %s cannot be stored in a safetensors file",
                               name, weft_dtype_name(tensors[i].desc.dtype));
        }
    }
    return WEFT_OK;
}

static weft_status_t place(wefti_stored_tensor_t *tensors, uint32_t count)
{
    size_t at = 0, bytes;
    for (uint32_t i = 0; i < count; i++) {
        tensors[i].begin_bytes = at;
        if (!wefti_safetensors_bytes(&tensors[i].desc, &bytes) || !wefti_add_size(at, bytes, &at)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor \"%.100s\": too large to store",
                               tensors[i].name);
        }
        tensors[i].end_bytes = at;
    }
    return WEFT_OK;
}

static void write_tensor(wefti_json_t *json, const wefti_stored_tensor_t *tensor)
{
    wefti_json_begin_object(json, tensor->name);
    wefti_json_string(json, "dtype", wefti_safetensors_dtype_name(tensor->desc.dtype));
    wefti_json_begin_array(json, "shape");
    for (uint32_t i = 0; i < tensor->desc.rank; i++) {
        wefti_json_int(json, NULL, tensor->desc.dims[i]);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "data_offsets");
    wefti_json_int(json, NULL, (int64_t)tensor->begin_bytes);
    wefti_json_int(json, NULL, (int64_t)tensor->end_bytes);
    wefti_json_end_array(json);
    wefti_json_end_object(json);
}

weft_status_t wefti_safetensors_layout(wefti_stored_tensor_t *tensors, uint32_t tensor_count,
                                       const wefti_stored_text_t *texts, uint32_t text_count,
                                       wefti_text_t *out_header)
{
    wefti_json_t json;
    uint8_t length_bytes[LENGTH_BYTES] = {0};
    if (tensor_count > 0) {
        qsort(tensors, tensor_count, sizeof *tensors, wefti_safetensors_by_name);
    }
    WEFT_RETURN_IF_ERROR(check_names(tensors, tensor_count));
    if (tensor_count > 0) {
        qsort(tensors, tensor_count, sizeof *tensors, by_type);
    }
    WEFT_RETURN_IF_ERROR(place(tensors, tensor_count));
    wefti_text_add_bytes(out_header, length_bytes, LENGTH_BYTES); /* known at the end */
    wefti_json_init(&json, out_header, false);
    wefti_json_begin_object(&json, NULL);
    wefti_json_begin_object(&json, "__metadata__");
    for (uint32_t i = 0; i < text_count; i++) {
        wefti_json_string(&json, texts[i].key, texts[i].value);
    }
    wefti_json_end_object(&json);
    for (uint32_t i = 0; i < tensor_count; i++) {
        write_tensor(&json, &tensors[i]);
    }
    wefti_json_end_object(&json);
    while (out_header->length % DATA_ALIGNMENT != 0 && !out_header->failed) {
        wefti_text_add(out_header, " ");
    }
    if (out_header->failed) {
        return WEFT_ERR_NO_MEMORY;
    }
    uint64_t length = out_header->length - LENGTH_BYTES;
    for (uint32_t i = 0; i < LENGTH_BYTES; i++) {
        out_header->data[i] = (char)(uint8_t)(length >> (8 * i));
    }
    return WEFT_OK;
}
