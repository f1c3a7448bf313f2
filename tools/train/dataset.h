/* SPDX-License-Identifier: Apache-2.0 */
/* Image data sets in MNIST's IDX format, gzipped or not. */
#ifndef WEFT_TOOLS_DATASET_H
#define WEFT_TOOLS_DATASET_H

#include <weft/types.h>

typedef struct image_set {
    uint8_t *pixels; /* [count, height, width], 0..255 */
    uint8_t *labels; /* [count] */
    uint32_t count, height, width;
    char *label_path; /* the file that labels are from */
} image_set_t;

typedef struct dataset {
    image_set_t train;
    image_set_t test;     /* count 0 where the directory has none */
    uint32_t class_count; /* highest label + 1 */
} dataset_t;

/*
 * Reads train-{images-idx3,labels-idx1}-ubyte[.gz], and t10k-... if present, from directory.
 * WEFT_ERR_NOT_FOUND names the file and a Debian package with such data; WEFT_ERR_FORMAT names file
 * and fault. On error the data set is empty.
 */
weft_status_t wefti_dataset_load(const char *directory, dataset_t *out_dataset);
void wefti_dataset_free(dataset_t *dataset);

/* The order of an epoch: a permutation of count that depends on seed and epoch only. */
void wefti_dataset_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint32_t epoch);

/* Copies images order[0..n) as pixel / 255 into images and their labels into labels. */
void wefti_dataset_gather(const image_set_t *set, const uint32_t *order, size_t n, float *images,
                          int64_t *labels);

#endif
