/* SPDX-License-Identifier: Apache-2.0 */
/* Images and labels in MNIST's IDX format, gzipped or not. */
#include "tools/train/data.h"

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

typedef struct {
    uint8_t *pixels, *labels;
    uint32_t count, height, width;
} images_t;

/* Reads prefix-images and prefix-labels; *out_missing names the file that is not there. */
static weft_status_t read_files(const char *directory, const char *prefix, data_set_t *set,
                                images_t *out, char *label_path, char *out_missing,
                                size_t missing_bytes)
{
    char path[4096];
    uint32_t dims[3], label_count = 0;
    snprintf(out_missing, missing_bytes, "%s-images-idx3-ubyte", prefix);
    WEFT_RETURN_IF_ERROR(find_file(directory, out_missing, path, sizeof path));
    WEFT_RETURN_IF_ERROR(read_idx(path, 3, dims, &out->pixels));
    set->blocks[set->block_count++] = out->pixels;
    snprintf(out_missing, missing_bytes, "%s-labels-idx1-ubyte", prefix);
    WEFT_RETURN_IF_ERROR(find_file(directory, out_missing, label_path, sizeof path));
    WEFT_RETURN_IF_ERROR(read_idx(label_path, 1, &label_count, &out->labels));
    set->blocks[set->block_count++] = out->labels;
    *out = (images_t){out->pixels, out->labels, dims[0], dims[1], dims[2]};
    return label_count == dims[0]
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "%s: numbers of labels and images differ: %u and %u",
                             label_path, label_count, dims[0]);
}

static weft_status_t check_input(const data_input_t *input, const images_t *images,
                                 const char *image_name)
{
    int64_t wanted = input->is_label ? 1 : (int64_t)images->height * images->width;
    if (image_name != NULL && !input->is_label) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input '%s': the data set has one input: '%s' takes its images",
                           input->name, image_name);
    }
    if (input->is_label &&
        (!wefti_data_converts(WEFT_DTYPE_U8, input->dtype) || input->elems != wanted)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "label input '%s': type mismatch: %lld %s per sample, but labels "
                           "of the data set are one i64",
                           input->name, (long long)input->elems, weft_dtype_name(input->dtype));
    }
    if (!input->is_label && (input->dtype != WEFT_DTYPE_F32 || input->elems != wanted)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input '%s': type mismatch: %lld %s per sample, but images of the data "
                           "set are %ux%u f32",
                           input->name, (long long)input->elems, weft_dtype_name(input->dtype),
                           images->height, images->width);
    }
    return WEFT_OK;
}

weft_status_t wefti_data_read_idx(const data_request_t *request, const char *prefix,
                                  data_set_t *set, char *out_missing, size_t missing_bytes)
{
    images_t images = {0};
    char label_path[4096];
    const char *image_name = NULL, *label_name = NULL;
    WEFT_RETURN_IF_ERROR(
        read_files(request->path, prefix, set, &images, label_path, out_missing, missing_bytes));
    for (uint32_t i = 0; i < request->input_count; i++) {
        const data_input_t *input = &request->inputs[i];
        WEFT_RETURN_IF_ERROR(check_input(input, &images, image_name));
        *(input->is_label ? &label_name : &image_name) = input->name;
        size_t elems = (size_t)input->elems;
        const data_column_t column = {.data = input->is_label ? images.labels : images.pixels,
                                      .dtype = WEFT_DTYPE_U8,
                                      .elems = elems,
                                      .stride = elems,
                                      .pixels = !input->is_label};
        WEFT_RETURN_IF_ERROR(wefti_data_add_column(set, label_path, &column));
    }
    set->count = images.count;
    return image_name != NULL && label_name != NULL
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the plan has no %s input",
                             image_name == NULL ? "image" : "label");
}
