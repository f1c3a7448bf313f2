/* SPDX-License-Identifier: Apache-2.0 */
/*
 * External data: contents of tensors in files next to the model. A model may come from anywhere, so
 * its locations are followed only downwards from the model's own folder, one component at a time,
 * through no symbolic link.
 */
#include "graph/onnx/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"

WEFT_PRINTF(3, 4)
static weft_status_t refuse(const Onnx__TensorProto *tensor, const char *location,
                            const char *format, ...)
{
    char why[160];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    return wefti_error(WEFT_ERR_FORMAT, "tensor '%s': external data '%s': %s",
                       wefti_onnx_tensor_name(tensor), location, why);
}

/* Opens component inside folder; closes folder. */
static int step_into(int folder, const char *component, size_t length, bool last)
{
    char name[256];
    int fd = -1;
    if (length < sizeof(name)) {
        memcpy(name, component, length);
        name[length] = '\0';
        fd = openat(folder, name,
                    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (last ? O_NONBLOCK : O_DIRECTORY));
    } else {
        errno = ENAMETOOLONG;
    }
    int error_number = errno;
    close(folder);
    errno = error_number;
    return fd;
}

static int open_model_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    char *folder = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    int fd = folder == NULL ? -1 : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    return fd;
}

static weft_status_t open_location(const wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                   const char *location, int *out_fd)
{
    if (location[0] == '/') {
        return refuse(tensor, location, "absolute paths are not allowed");
    }
    int fd = open_model_folder(file->path);
    const char *at = location;
    while (fd >= 0) {
        size_t length = strcspn(at, "/");
        bool last = at[length] == '\0';
        if (length == 0 || (length == 1 && at[0] == '.') ||
            (length == 2 && at[0] == '.' && at[1] == '.')) {
            close(fd);
            return refuse(tensor, location,
                          "path must be below the model's folder, without '.' and '..'");
        }
        fd = step_into(fd, at, length, last);
        if (last) {
            break;
        }
        at += length + 1;
    }
    if (fd < 0 && (errno == ELOOP || errno == EMLINK)) {
        return refuse(tensor, location, "symbolic links are not followed");
    }
    if (fd < 0) {
        weft_status_t status =
            errno == ENOENT || errno == ENOTDIR ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM;
        return wefti_error_errno(status, errno, "tensor '%s': external data '%s': cannot open",
                                 wefti_onnx_tensor_name(tensor), location);
    }
    *out_fd = fd;
    return WEFT_OK;
}

static weft_status_t map_location(const wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                  const char *location, wefti_mapping_t *out_mapping)
{
    struct stat facts;
    int fd = -1;
    weft_status_t status = open_location(file, tensor, location, &fd);
    if (status < 0) {
        return status;
    }
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        status = refuse(tensor, location, "not a regular file");
    } else if (facts.st_size > 0) {
        void *data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = wefti_error_errno(WEFT_ERR_SYSTEM, errno,
                                       "tensor '%s': external data '%s': mmap failed",
                                       wefti_onnx_tensor_name(tensor), location);
        } else {
            *out_mapping = (wefti_mapping_t){.data = data, .size_bytes = (size_t)facts.st_size};
        }
    }
    close(fd);
    return status;
}

/* The mapping of location, made at the first use. */
static weft_status_t find_mapping(wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                  const char *location, wefti_mapping_t *out_mapping)
{
    for (size_t i = 0; i < file->external_count; i++) {
        if (strcmp(file->externals[i].location, location) == 0) {
            *out_mapping = file->externals[i].mapping;
            return WEFT_OK;
        }
    }
    wefti_mapping_t mapping = {0};
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(file->allocator, &file->externals,
                                             &file->external_capacity, file->external_count + 1,
                                             sizeof(*file->externals)));
    WEFT_RETURN_IF_ERROR(map_location(file, tensor, location, &mapping));
    file->externals[file->external_count].location = location;
    file->externals[file->external_count].mapping = mapping;
    file->external_count++;
    *out_mapping = mapping;
    return WEFT_OK;
}

static bool parse_size(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    *out = value;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

weft_status_t wefti_onnx_external(wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                  size_t size_bytes, const void **out_data)
{
    const char *location = NULL;
    uint64_t offset = 0, length = 0;
    bool has_length = false;
    for (size_t i = 0; i < tensor->n_external_data; i++) {
        const char *key = tensor->external_data[i]->key;
        const char *value = tensor->external_data[i]->value;
        if (key == NULL || value == NULL) {
            return refuse(tensor, "?", "entry without key or value");
        }
        if (strcmp(key, "location") == 0) {
            location = value;
        } else if (strcmp(key, "offset") == 0 && !parse_size(value, &offset)) {
            return refuse(tensor, value, "offset is not a number");
        } else if (strcmp(key, "length") == 0) {
            has_length = true;
            if (!parse_size(value, &length)) {
                return refuse(tensor, value, "length is not a number");
            }
        }
    }
    if (location == NULL) {
        return refuse(tensor, "?", "missing location");
    }
    if (file->path == NULL) {
        return refuse(tensor, location, "not available for a model loaded from memory");
    }
    wefti_mapping_t mapping;
    WEFT_RETURN_IF_ERROR(find_mapping(file, tensor, location, &mapping));
    if (has_length && length != size_bytes) {
        return refuse(tensor, location,
                      "length does not match type and shape: %" PRIu64 " bytes, expected %zu",
                      length, size_bytes);
    }
    if (offset > mapping.size_bytes || size_bytes > mapping.size_bytes - offset) {
        return refuse(tensor, location,
                      "offset %" PRIu64 " plus %zu bytes exceeds the file size of %zu bytes",
                      offset, size_bytes, (size_t)mapping.size_bytes);
    }
    *out_data = mapping.data == NULL ? (const void *)"" : mapping.data + offset;
    return WEFT_OK;
}
