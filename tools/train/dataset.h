/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets: for each input of a plan a column, of which every sample has a row.
 *
 *   path                     columns                                            read by
 *   directory, IDX files     images / 255 and labels; t10k-* is the test set    data_idx.c
 *   directory, <input>.npy   an array per input, by its name                    data_arrays.c
 *   FILE.npz                 the same, members of one file                      data_arrays.c
 *   FILE.safetensors         the same                                           data_arrays.c
 *   FILE.bin                 tokens; labels are the tokens one place further    data_tokens.c
 */
#ifndef WEFT_TOOLS_DATASET_H
#define WEFT_TOOLS_DATASET_H

#include <stdbool.h>

#include <weft/types.h>

#include "runtime/base/file.h"

#define DATA_MAX_INPUTS 16u

/* What a plan reads of each sample. */
typedef struct data_input {
    const char *name;
    weft_dtype_t dtype;
    int64_t elems;
    bool is_label;
} data_input_t;

typedef struct data_column {
    const uint8_t *data; /* of sample 0; not aligned */
    weft_dtype_t dtype;
    size_t elems;  /* of a sample */
    size_t stride; /* elements from one sample to the next */
    bool pixels;   /* u8 that are divided by 255 */
} data_column_t;

typedef struct data_set {
    uint32_t count; /* samples */
    uint32_t column_count;
    data_column_t columns[DATA_MAX_INPUTS]; /* in the order of the inputs */
    char *sources[DATA_MAX_INPUTS];         /* their files, for messages */
    wefti_mapping_t files[DATA_MAX_INPUTS];
    uint32_t file_count;
    void *blocks[DATA_MAX_INPUTS]; /* contents that are not in files as they are */
    uint32_t block_count;
} data_set_t;

typedef struct dataset {
    data_set_t train;
    data_set_t test;  /* count 0: none */
    const char *noun; /* of a sample: "image", "sample" or "sequence" */
} dataset_t;

typedef struct data_request {
    const char *path;
    const char *test_path;    /* NULL: none, or that of the directory of IDX files */
    weft_dtype_t token_dtype; /* of a token file: U16 or U32 */
    const data_input_t *inputs;
    uint32_t input_count; /* at most DATA_MAX_INPUTS */
} data_request_t;

/*
 * WEFT_ERR_NOT_FOUND names what is missing; WEFT_ERR_FORMAT file and fault;
 * WEFT_ERR_INVALID_ARGUMENT an input that the data does not fit. On error the data set is empty.
 */
weft_status_t wefti_dataset_load(const data_request_t *request, dataset_t *out_dataset);
void wefti_dataset_free(dataset_t *dataset);

/* The order of an epoch: a permutation of count that depends on seed and epoch only. */
void wefti_dataset_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint32_t epoch);

/* Copies rows order[0..n) of a column to out, as elements of type dtype. */
void wefti_dataset_gather(const data_set_t *set, uint32_t column, const uint32_t *order, size_t n,
                          weft_dtype_t dtype, void *out);
/* The first element of a row of integers. */
int64_t wefti_dataset_integer(const data_set_t *set, uint32_t column, uint32_t sample);

#endif
