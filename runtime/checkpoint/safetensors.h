/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of named tensors in the safetensors format:
 *
 *   | 8 bytes: length of the header, little endian | header: JSON, padded by spaces | contents |
  *   {"__metadata__": {"key": "value"},
 *    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..}
 *
 * Offsets count from the contents' begin; tensors lie one behind the other and fill the file.
 */
#ifndef WEFT_RUNTIME_SAFETENSORS_H
#define WEFT_RUNTIME_SAFETENSORS_H

#include "runtime/base/digest.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

typedef struct wefti_stored_tensor {
    const char *name;
    weft_tensor_desc_t desc; /* plain; data is NULL */
    uint64_t begin_bytes, end_bytes;
    uint32_t id; /* the writer's own */
} wefti_stored_tensor_t;

typedef struct wefti_stored_text {
    const char *key, *value;
} wefti_stored_text_t;

/* A file, checked and open. */
typedef struct wefti_safetensors {
    const weft_allocator_t *allocator;
    wefti_mapping_t mapping;
    wefti_json_tree_t json;
    wefti_stored_tensor_t *tensors; /* by name */
    uint32_t tensor_count;
    wefti_stored_text_t *texts; /* the metadata, by key */
    uint32_t text_count;
    const uint8_t *data;
    uint64_t data_bytes;
} wefti_safetensors_t;

/* WEFT_ERR_FORMAT with the file's name and what is wrong: lengths, overlaps, gaps, names twice,
 * types, shapes. */
weft_status_t wefti_safetensors_open(const char *path, const weft_allocator_t *allocator,
                                     wefti_safetensors_t *out_file);
/* Zeroed and half-open ones too. */
void wefti_safetensors_close(wefti_safetensors_t *file);
/* NULL when there is none. */
const char *wefti_safetensors_text(const wefti_safetensors_t *file, const char *key);

/*
 * Places tensors one behind the other, larger element types first so that each is aligned, and
 * writes what stands before the contents. tensors are reordered that way; begin and end are filled
 * in.
 * @return WEFT_ERR_UNSUPPORTED for names that cannot be stored: not UTF-8, reserved, twice
 */
weft_status_t wefti_safetensors_layout(wefti_stored_tensor_t *tensors, uint32_t tensor_count,
                                       const wefti_stored_text_t *texts, uint32_t text_count,
                                       wefti_text_t *out_header);
/* Bytes that type and shape ask for; false when they cannot be counted. */
bool wefti_safetensors_bytes(const weft_tensor_desc_t *desc, size_t *out_bytes);
/* For qsort: the order of structs that begin with their name. */
int wefti_safetensors_by_name(const void *a, const void *b);
/* "f32" -> "F32"; WEFT_DTYPE_NONE for what has no counterpart. */
const char *wefti_safetensors_dtype_name(weft_dtype_t dtype);
weft_dtype_t wefti_safetensors_dtype(const char *name);

#endif
