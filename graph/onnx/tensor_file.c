/* SPDX-License-Identifier: Apache-2.0 */
/* Files that hold one TensorProto. Written by hand: the message is a few numbers, and the contents
 * go to the file from where they are. */
#include <stdlib.h>
#include <string.h>

#include <weft/tensor_file.h>

#include "graph/onnx/internal.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"

enum { FIELD_DIMS = 1, FIELD_DATA_TYPE = 2, FIELD_NAME = 8, FIELD_RAW_DATA = 9 };
enum { MOST_NAME_BYTES = 2048 };
enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };

#define MOST_BYTES ((uint64_t)INT32_MAX - 4096u) /* of contents: the message stays below 2 GiB */

weft_status_t weft_tensor_read(const char *path, weft_tensor_desc_t *out_desc, void **out_data)
{
    WEFT_CHECK_OUT(out_data);
    WEFT_CHECK_ARG(path);
    WEFT_CHECK_ARG(out_desc);
    wefti_arena_t arena;
    weft_tensor_desc_t desc;
    weft_status_t status;
    wefti_arena_init(&arena, NULL, 0);
    WEFT_TRY(status, wefti_onnx_read_tensor(path, &arena, &desc), done);
    size_t bytes = (size_t)weft_tensor_elem_count(&desc) * weft_dtype_size_bytes(desc.dtype);
    *out_data = malloc(bytes + 1);
    if (*out_data == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "%s: out of memory: cannot allocate %zu bytes",
                             path, bytes);
        goto done;
    }
    if (bytes > 0) {
        memcpy(*out_data, desc.data, bytes);
    }
    desc.data = *out_data;
    *out_desc = desc;
done:
    wefti_arena_deinit(&arena);
    return status;
}

static void add_varint(wefti_text_t *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t count = 0;
    do {
        bytes[count++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    wefti_text_add_bytes(out, bytes, count);
}

static void add_key(wefti_text_t *out, uint32_t field, uint32_t wire)
{
    add_varint(out, field << 3 | wire);
}

static weft_status_t check(const char *path, const weft_tensor_desc_t *desc, uint64_t *out_bytes)
{
    int64_t count = desc != NULL && desc->rank <= WEFT_MAX_DIMS ? weft_tensor_elem_count(desc) : -1;
    size_t elem_bytes = desc != NULL ? weft_dtype_size_bytes(desc->dtype) : 0;
    if (path == NULL || desc == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s is NULL", path == NULL ? "path" : "desc");
    }
    if (count < 0 || elem_bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: desc: invalid type, rank or dimensions",
                           path);
    }
    if (desc->layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: desc: layout must be plain", path);
    }
    if (count > 0 && desc->data == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: desc: data is NULL", path);
    }
    if (__builtin_mul_overflow((uint64_t)count, (uint64_t)elem_bytes, out_bytes) ||
        *out_bytes > MOST_BYTES) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: tensor too large: a tensor file holds at most 2 GiB", path);
    }
    return WEFT_OK;
}

weft_status_t weft_tensor_write(const char *path, const char *name, const weft_tensor_desc_t *desc)
{
    WEFT_CHECK_ARG(path);
    WEFT_CHECK_ARG(desc);
    wefti_text_t head;
    uint64_t bytes = 0;
    size_t name_bytes = name != NULL ? strlen(name) : 0;
    weft_status_t status = check(path, desc, &bytes);
    if (status < 0) {
        return status;
    }
    if (name_bytes > MOST_NAME_BYTES) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: tensor name too long: %zu bytes, limit %d", path, name_bytes,
                           MOST_NAME_BYTES);
    }
    wefti_text_init(&head, NULL);
    for (uint32_t d = 0; d < desc->rank; d++) {
        add_key(&head, FIELD_DIMS, WIRE_VARINT);
        add_varint(&head, (uint64_t)desc->dims[d]);
    }
    add_key(&head, FIELD_DATA_TYPE, WIRE_VARINT);
    add_varint(&head, (uint64_t)wefti_onnx_data_type(desc->dtype));
    if (name_bytes > 0) {
        add_key(&head, FIELD_NAME, WIRE_BYTES);
        add_varint(&head, name_bytes);
        wefti_text_add_bytes(&head, name, name_bytes);
    }
    add_key(&head, FIELD_RAW_DATA, WIRE_BYTES);
    add_varint(&head, bytes);
    const wefti_piece_t pieces[] = {{head.data, head.length}, {desc->data, (size_t)bytes}};
    status = head.failed ? WEFT_ERR_NO_MEMORY : wefti_file_write(path, pieces, 2);
    wefti_text_deinit(&head);
    return status;
}
