/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of data sets, for dataset.c. */
#ifndef WEFT_TOOLS_DATA_H
#define WEFT_TOOLS_DATA_H

#include "tools/train/dataset.h"

/* A named tensor of a file. */
typedef struct data_array {
    weft_dtype_t dtype;
    uint32_t rank;
    uint64_t dims[WEFT_MAX_DIMS];
    const uint8_t *data;
} data_array_t;

/* data_idx.c: prefix "train" or "t10k". WEFT_ERR_NOT_FOUND without a message: *out_missing names
 * the file. */
weft_status_t wefti_data_read_idx(const data_request_t *request, const char *prefix,
                                  data_set_t *set, char *out_missing, size_t missing_bytes);
/* data_arrays.c: <input>.npy in a directory, members of .npz or .safetensors. */
weft_status_t wefti_data_read_arrays(const data_request_t *request, const char *path,
                                     data_set_t *set);
/* data_tokens.c */
weft_status_t wefti_data_read_tokens(const data_request_t *request, const char *path,
                                     data_set_t *set);
/* npy.c: bytes of a .npy file; label names it in messages. */
weft_status_t wefti_npy_read(const uint8_t *bytes, size_t size_bytes, const char *label,
                             data_array_t *out);
/* npz.c: a member of an archive; *out_block: from malloc if it was compressed, else NULL. */
weft_status_t wefti_npz_find(const uint8_t *bytes, size_t size_bytes, const char *label,
                             const char *member, const uint8_t **out_data, size_t *out_bytes,
                             void **out_block);

/* dataset.c: the column of the next input. WEFT_ERR_NO_MEMORY. */
weft_status_t wefti_data_add_column(data_set_t *set, const char *source,
                                    const data_column_t *column);
/* Can elements of one type be read as another one without loss (f64 as f32: rounded)? */
bool wefti_data_converts(weft_dtype_t from, weft_dtype_t to);

#endif
