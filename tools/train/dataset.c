/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/error.h"

weft_status_t wefti_data_add_column(data_set_t *set, const char *source,
                                    const data_column_t *column)
{
    char *copy = strdup(source);
    if (copy == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "%s: out of memory", source);
    }
    set->sources[set->column_count] = copy;
    set->columns[set->column_count++] = *column;
    return WEFT_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static void free_set(data_set_t *set)
{
    for (uint32_t i = 0; i < DATA_MAX_INPUTS; i++) {
        free(set->sources[i]);
        free(set->blocks[i]);
        wefti_file_unmap(&set->files[i]);
    }
    memset(set, 0, sizeof *set);
}

/* Directories without IDX files have one file per input. */
static bool has_arrays(const data_request_t *request)
{
    char path[4096];
    struct stat facts;
    for (uint32_t i = 0; i < request->input_count; i++) {
        snprintf(path, sizeof path, "%s/%s.npy", request->path, request->inputs[i].name);
        if (stat(path, &facts) == 0) {
            return true;
        }
    }
    return false;
}

static weft_status_t read_directory(const data_request_t *request, dataset_t *out)
{
    char missing[64];
    weft_status_t status =
        wefti_data_read_idx(request, "train", &out->train, missing, sizeof missing);
    if (status == WEFT_ERR_NOT_FOUND && has_arrays(request)) {
        out->noun = "sample";
        return wefti_data_read_arrays(request, request->path, &out->train);
    }
    if (status == WEFT_ERR_NOT_FOUND) {
        return wefti_error(
            status,
            "%s: no file %s or %s.gz; the Debian package dataset-fashion-mnist installs "
            "such files in /usr/share/datasets/fashion-mnist; nor a file %s.npy for the input",
            request->path, missing, missing,
            request->input_count > 0 ? request->inputs[0].name : "");
    }
    if (status < 0 || request->test_path != NULL) {
        return status;
    }
    status = wefti_data_read_idx(request, "t10k", &out->test, missing, sizeof missing);
    return status == WEFT_ERR_NOT_FOUND ? WEFT_OK : status;
}

/* By the kind of the file. */
static weft_status_t read_file(const data_request_t *request, const char *path, data_set_t *set,
                               const char **out_noun)
{
    *out_noun = "sample";
    if (ends_with(path, ".npz") || ends_with(path, ".safetensors")) {
        return wefti_data_read_arrays(request, path, set);
    }
    if (ends_with(path, ".bin")) {
        *out_noun = "sequence";
        return wefti_data_read_tokens(request, path, set);
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "%s: unknown kind of data: expected a directory, .npz, .safetensors or "
                       ".bin (tokens)",
                       path);
}

static weft_status_t read_all(const data_request_t *request, dataset_t *out)
{
    struct stat facts;
    const char *noun;
    weft_status_t status;
    if (stat(request->path, &facts) != 0) {
        return wefti_error_errno(WEFT_ERR_NOT_FOUND, errno, "cannot open %s", request->path);
    }
    status = S_ISDIR(facts.st_mode) ? read_directory(request, out)
                                    : read_file(request, request->path, &out->train, &out->noun);
    return status < 0 || request->test_path == NULL
               ? status
               : read_file(request, request->test_path, &out->test, &noun);
}

weft_status_t wefti_dataset_load(const data_request_t *request, dataset_t *out_dataset)
{
    memset(out_dataset, 0, sizeof *out_dataset);
    out_dataset->noun = "image";
    weft_status_t status = read_all(request, out_dataset);
    if (status < 0) {
        wefti_dataset_free(out_dataset);
    }
    return status;
}

void wefti_dataset_free(dataset_t *dataset)
{
    free_set(&dataset->train);
    free_set(&dataset->test);
}

/* SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void wefti_dataset_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint32_t epoch)
{
    uint64_t state = seed * 0x100000001b3u + epoch;
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = count; i > 1; i--) {
        /* Multiply and shift: the bias of 2^-32 * count does not matter for an order of samples. */
        uint32_t j = (uint32_t)(((next_random(&state) >> 32) * i) >> 32);
        uint32_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

static const uint8_t *row_of(const data_column_t *c, uint32_t sample)
{
    return c->data + (size_t)sample * c->stride * weft_dtype_size_bytes(c->dtype);
}

static void gather_pixels(const data_column_t *c, const uint32_t *order, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *restrict source = row_of(c, order[i]);
        float *restrict target = out + i * c->elems;
        if (i + 1 < n) {
            for (size_t line = 0; line < c->elems; line += 64) {
                __builtin_prefetch(row_of(c, order[i + 1]) + line);
            }
        }
        for (size_t p = 0; p < c->elems; p++) {
            target[p] = (float)source[p] * (1.0f / 255.0f);
        }
    }
}

/* X(type of the file, C type) */
#define INTEGERS(X)                                                                                \
    X(I8, int8_t)                                                                                  \
    X(U8, uint8_t)                                                                                 \
    X(BOOL, uint8_t)                                                                               \
    X(I16, int16_t)                                                                                \
    X(U16, uint16_t)                                                                               \
    X(I32, int32_t)                                                                                \
    X(U32, uint32_t)                                                                               \
    X(I64, int64_t)

static int64_t integer_at(const uint8_t *row, weft_dtype_t dtype, size_t i)
{
    int64_t number = 0;
#define LOAD(name, type)                                                                           \
    case WEFT_DTYPE_##name: {                                                                      \
        type x;                                                                                    \
        memcpy(&x, row + i * sizeof x, sizeof x);                                                  \
        number = (int64_t)x;                                                                       \
        break;                                                                                     \
    }
    switch (dtype) {
        INTEGERS(LOAD)
    default:
        break;
    }
    return number;
}

static bool is_integer(weft_dtype_t dtype)
{
#define IS(name, type) || dtype == WEFT_DTYPE_##name
    return false INTEGERS(IS);
}

bool wefti_data_converts(weft_dtype_t from, weft_dtype_t to)
{
    return from == to || (from == WEFT_DTYPE_F64 && to == WEFT_DTYPE_F32) ||
           (is_integer(from) && to == WEFT_DTYPE_I64) ||
           (is_integer(from) && to == WEFT_DTYPE_I32 && weft_dtype_size_bytes(from) < 4);
}

static void convert_row(const uint8_t *row, const data_column_t *c, weft_dtype_t dtype, void *out)
{
    for (size_t k = 0; k < c->elems; k++) {
        if (dtype == WEFT_DTYPE_F32) {
            double x;
            memcpy(&x, row + k * sizeof x, sizeof x);
            ((float *)out)[k] = (float)x;
        } else if (dtype == WEFT_DTYPE_I64) {
            ((int64_t *)out)[k] = integer_at(row, c->dtype, k);
        } else {
            ((int32_t *)out)[k] = (int32_t)integer_at(row, c->dtype, k);
        }
    }
}

void wefti_dataset_gather(const data_set_t *set, uint32_t column, const uint32_t *order, size_t n,
                          weft_dtype_t dtype, void *out)
{
    const data_column_t *c = &set->columns[column];
    size_t bytes = c->elems * weft_dtype_size_bytes(dtype);
    if (c->pixels) {
        gather_pixels(c, order, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (c->dtype == dtype) {
            memcpy((char *)out + i * bytes, row_of(c, order[i]), bytes);
        } else {
            convert_row(row_of(c, order[i]), c, dtype, (char *)out + i * bytes);
        }
    }
}

int64_t wefti_dataset_integer(const data_set_t *set, uint32_t column, uint32_t sample)
{
    const data_column_t *c = &set->columns[column];
    return integer_at(row_of(c, sample), c->dtype, 0);
}
