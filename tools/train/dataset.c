/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

/* IDX: two zero bytes, a type (8: unsigned byte), the rank, then big-endian dimensions. */
#define IDX_UBYTE 0x0800u
#define MAX_ITEMS 10000000u
#define MAX_SIDE 4096u
#define MAX_RATIO 1032u /* of deflate: 258 bytes for two bits */

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Finds name or name.gz in directory; WEFT_ERR_NOT_FOUND without a message otherwise. */
static weft_status_t find_file(const char *directory, const char *name, char *path, size_t bytes)
{
    static const char *const endings[] = {".gz", ""};
    for (size_t i = 0; i < 2; i++) {
        int used = snprintf(path, bytes, "%s/%s%s", directory, name, endings[i]);
        if (used > 0 && (size_t)used < bytes && access(path, R_OK) == 0) {
            return WEFT_OK;
        }
    }
    return WEFT_ERR_NOT_FOUND;
}

/* *out_limit: what the file can hold at most, compressed or not. */
static weft_status_t open_gz(const char *path, gzFile *out_file, size_t *out_limit)
{
    struct stat facts;
    *out_limit = 0;
    /* O_NONBLOCK: opening a named pipe must not wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot open %s", path);
    }
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(fd);
        return wefti_error(WEFT_ERR_SYSTEM, "%s: not a regular file", path);
    }
    *out_limit = (size_t)facts.st_size * MAX_RATIO;
    *out_file = gzdopen(fd, "rb");
    if (*out_file == NULL) {
        close(fd);
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot read %s", path);
    }
    return WEFT_OK;
}

static weft_status_t read_exactly(gzFile file, const char *path, void *data, size_t bytes)
{
    uint8_t *out = data;
    while (bytes > 0) {
        unsigned part = bytes > (1u << 24) ? 1u << 24 : (unsigned)bytes;
        int got = gzread(file, out, part);
        if (got <= 0) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: truncated or corrupt: %zu byte%s missing",
                               path, bytes, bytes == 1 ? "" : "s");
        }
        out += got;
        bytes -= (size_t)got;
    }
    return WEFT_OK;
}

/* Reads one IDX file of unsigned bytes with the given rank; *out_data is malloc'ed. */
static weft_status_t read_idx(const char *path, uint32_t rank, uint32_t *dims, uint8_t **out_data)
{
    weft_status_t status = WEFT_OK;
    uint8_t head[16];
    size_t bytes = 1;
    *out_data = NULL;
    gzFile file = NULL;
    size_t limit;
    status = open_gz(path, &file, &limit);
    if (status < 0) {
        return status;
    }
    gzbuffer(file, 1u << 18);
    WEFT_TRY(status, read_exactly(file, path, head, 4 + 4 * (size_t)rank), done);
    if (big_endian(head) != (IDX_UBYTE | rank)) {
        status = wefti_error(WEFT_ERR_FORMAT, "%s: not an IDX file of u8 with %u dimension%s", path,
                             rank, rank == 1 ? "" : "s");
        goto done;
    }
    for (uint32_t i = 0; i < rank; i++) {
        dims[i] = big_endian(head + 4 + 4 * (size_t)i);
        if (dims[i] == 0 || dims[i] > (i == 0 ? MAX_ITEMS : MAX_SIDE) ||
            !wefti_mul_size(bytes, dims[i], &bytes) || bytes > (size_t)1 << 40) {
            status = wefti_error(WEFT_ERR_FORMAT, "%s: dimension %u is out of range: %u", path, i,
                                 dims[i]);
            goto done;
        }
    }
    if (bytes > limit) {
        status = wefti_error(WEFT_ERR_FORMAT, "%s: truncated: its header promises %zu bytes", path,
                             bytes);
        goto done;
    }
    *out_data = malloc(bytes);
    if (*out_data == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "%s: out of memory: cannot allocate %zu bytes",
                             path, bytes);
        goto done;
    }
    status = read_exactly(file, path, *out_data, bytes);
done:
    gzclose(file);
    if (status < 0) {
        free(*out_data);
        *out_data = NULL;
    }
    return status;
}

/* Reads prefix-images and prefix-labels; *out_missing names the file that is not there. */
static weft_status_t read_set(const char *directory, const char *prefix, image_set_t *set,
                              char *out_missing, size_t missing_bytes)
{
    weft_status_t status = WEFT_OK;
    char path[4096];
    uint32_t dims[3];
    uint32_t label_count = 0;
    snprintf(out_missing, missing_bytes, "%s-images-idx3-ubyte", prefix);
    status = find_file(directory, out_missing, path, sizeof path);
    if (status < 0) {
        return status;
    }
    WEFT_TRY(status, read_idx(path, 3, dims, &set->pixels), fail);
    snprintf(out_missing, missing_bytes, "%s-labels-idx1-ubyte", prefix);
    WEFT_TRY(status, find_file(directory, out_missing, path, sizeof path), fail);
    WEFT_TRY(status, read_idx(path, 1, &label_count, &set->labels), fail);
    if (label_count != dims[0]) {
        status = wefti_error(WEFT_ERR_FORMAT, "%s: numbers of labels and images differ: %u and %u",
                             path, label_count, dims[0]);
        goto fail;
    }
    set->label_path = strdup(path);
    if (set->label_path == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "%s: out of memory", path);
        goto fail;
    }
    set->count = dims[0];
    set->height = dims[1];
    set->width = dims[2];
    return WEFT_OK;
fail:
    free(set->pixels);
    free(set->labels);
    memset(set, 0, sizeof *set);
    return status;
}

weft_status_t wefti_dataset_load(const char *directory, dataset_t *out_dataset)
{
    char missing[64];
    memset(out_dataset, 0, sizeof *out_dataset);
    weft_status_t status =
        read_set(directory, "train", &out_dataset->train, missing, sizeof missing);
    if (status == WEFT_ERR_NOT_FOUND) {
        return wefti_error(
            status,
            "%s: no file %s or %s.gz; the Debian package dataset-fashion-mnist installs "
            "such files in /usr/share/datasets/fashion-mnist",
            directory, missing, missing);
    }
    if (status >= 0) {
        status = read_set(directory, "t10k", &out_dataset->test, missing, sizeof missing);
        status = status == WEFT_ERR_NOT_FOUND ? WEFT_OK : status;
    }
    if (status >= 0 && out_dataset->test.count > 0 &&
        (out_dataset->test.height != out_dataset->train.height ||
         out_dataset->test.width != out_dataset->train.width)) {
        status = wefti_error(WEFT_ERR_FORMAT,
                             "%s: sizes of test and training images differ: %ux%u and %ux%u",
                             directory, out_dataset->test.height, out_dataset->test.width,
                             out_dataset->train.height, out_dataset->train.width);
    }
    if (status < 0) {
        wefti_dataset_free(out_dataset);
        return status;
    }
    const image_set_t *sets[] = {&out_dataset->train, &out_dataset->test};
    for (size_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < sets[s]->count; i++) {
            if (sets[s]->labels[i] >= out_dataset->class_count) {
                out_dataset->class_count = sets[s]->labels[i] + 1u;
            }
        }
    }
    return WEFT_OK;
}

void wefti_dataset_free(dataset_t *dataset)
{
    free(dataset->train.pixels);
    free(dataset->train.labels);
    free(dataset->train.label_path);
    free(dataset->test.pixels);
    free(dataset->test.labels);
    free(dataset->test.label_path);
    memset(dataset, 0, sizeof *dataset);
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

void wefti_dataset_gather(const image_set_t *set, const uint32_t *order, size_t n, float *images,
                          int64_t *labels)
{
    size_t size = (size_t)set->height * set->width;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *restrict source = set->pixels + order[i] * size;
        float *restrict target = images + i * size;
        if (i + 1 < n) {
            for (size_t line = 0; line < size; line += 64) {
                __builtin_prefetch(set->pixels + order[i + 1] * size + line);
            }
        }
        for (size_t p = 0; p < size; p++) {
            target[p] = (float)source[p] * (1.0f / 255.0f);
        }
        labels[i] = set->labels[order[i]];
    }
}
