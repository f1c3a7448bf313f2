/* SPDX-License-Identifier: Apache-2.0 */
/* One TensorProto: its type, and its contents in the plain layout wherever the file keeps them. */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ONNX contents are little-endian");

weft_dtype_t wefti_onnx_dtype(int32_t data_type)
{
    switch (data_type) {
#define CASE(name, value, bytes, text, onnx)                                                       \
    case onnx:                                                                                     \
        return WEFT_DTYPE_##name;
        WEFT_DTYPE_MAP(CASE)
#undef CASE
    default:
        return WEFT_DTYPE_NONE;
    }
}

int32_t wefti_onnx_data_type(weft_dtype_t dtype)
{
    switch (dtype) {
#define CASE(name, value, bytes, text, onnx)                                                       \
    case WEFT_DTYPE_##name:                                                                        \
        return onnx;
        WEFT_DTYPE_MAP(CASE)
#undef CASE
    default:
        return 0;
    }
}

/* Fills dtype and dims; *out_count elements in *out_bytes bytes. */
static weft_status_t read_type(const Onnx__TensorProto *tensor, weft_tensor_desc_t *desc,
                               size_t *out_count, size_t *out_bytes)
{
    const char *name = wefti_onnx_tensor_name(tensor);
    size_t count = 1;
    *desc = (weft_tensor_desc_t){.dtype = wefti_onnx_dtype(tensor->data_type)};
    if (desc->dtype == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor '%s': unsupported element type %d", name,
                           tensor->data_type);
    }
    if (tensor->n_dims > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor '%s': too many dimensions: %zu, limit %d",
                           name, tensor->n_dims, WEFT_MAX_DIMS);
    }
    desc->rank = (uint32_t)tensor->n_dims;
    bool empty = false;
    for (uint32_t i = 0; i < desc->rank; i++) {
        int64_t dim = tensor->dims[i];
        desc->dims[i] = dim;
        if (dim < 0) {
            return wefti_error(WEFT_ERR_FORMAT, "tensor '%s': dimension %u is negative: %lld", name,
                               i, (long long)dim);
        }
        empty = empty || dim == 0;
        if (!wefti_mul_size(count, dim == 0 ? 1 : (size_t)dim, &count) || count > INT64_MAX) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "tensor '%s': too large: number of elements overflows", name);
        }
    }
    count = empty ? 0 : count;
    if (!wefti_mul_size(count, weft_dtype_size_bytes(desc->dtype), out_bytes)) {
        return wefti_error(WEFT_ERR_FORMAT, "tensor '%s': too large: size in bytes overflows",
                           name);
    }
    *out_count = count;
    return WEFT_OK;
}

static weft_status_t wrong_size(const Onnx__TensorProto *tensor, const char *field, size_t has,
                                size_t needs, const char *unit)
{
    return wefti_error(
        WEFT_ERR_FORMAT,
        "tensor '%s': size of %s does not match type and shape: %zu %s, expected %zu",
        wefti_onnx_tensor_name(tensor), field, has, unit, needs);
}

/* raw_data, float_data or double_data: in the file as little-endian elements. */
static weft_status_t referenced(wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                size_t bytes, weft_tensor_desc_t *desc)
{
    wefti_onnx_ref_t ref;
    memcpy(&ref, tensor->raw_data.data, sizeof(ref));
    weft_dtype_t wanted = ref.field == 4    ? WEFT_DTYPE_F32
                          : ref.field == 10 ? WEFT_DTYPE_F64
                                            : desc->dtype;
    const char *field = ref.field == 4    ? "float_data"
                        : ref.field == 10 ? "double_data"
                                          : "raw_data";
    if (wanted != desc->dtype) {
        return wefti_error(WEFT_ERR_FORMAT, "tensor '%s': %s cannot hold elements of type %s",
                           wefti_onnx_tensor_name(tensor), field, weft_dtype_name(desc->dtype));
    }
    if (ref.size_bytes != bytes) {
        return wrong_size(tensor, field, (size_t)ref.size_bytes, bytes, "bytes");
    }
    desc->data = file->data + ref.offset_bytes;
    return WEFT_OK;
}

static bool fits(weft_dtype_t dtype, int64_t value)
{
    switch (dtype) {
    case WEFT_DTYPE_I16:
        return value >= INT16_MIN && value <= INT16_MAX;
    case WEFT_DTYPE_I8:
        return value >= INT8_MIN && value <= INT8_MAX;
    case WEFT_DTYPE_U16:
    case WEFT_DTYPE_F16:
    case WEFT_DTYPE_BF16:
        return value >= 0 && value <= UINT16_MAX;
    case WEFT_DTYPE_U8:
        return value >= 0 && value <= UINT8_MAX;
    case WEFT_DTYPE_BOOL:
        return value == 0 || value == 1;
    case WEFT_DTYPE_U32:
        return value >= 0 && value <= UINT32_MAX;
    default:
        return true;
    }
}

/* Elements that protobuf has widened, narrowed again; on a little-endian machine the low bytes. */
static weft_status_t narrow(const Onnx__TensorProto *tensor, const char *field, const void *source,
                            size_t source_bytes, size_t has, size_t count, wefti_arena_t *arena,
                            weft_tensor_desc_t *desc)
{
    size_t bytes = weft_dtype_size_bytes(desc->dtype);
    if (has != count) {
        return wrong_size(tensor, field, has, count, "elements");
    }
    uint8_t *data = wefti_arena_array(arena, count > 0 ? count : 1, bytes);
    WEFT_RETURN_IF_NO_MEMORY(data);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = (const uint8_t *)source + i * source_bytes;
        int64_t value;
        if (source_bytes == 4) {
            int32_t small;
            memcpy(&small, from, 4);
            value = small;
        } else {
            memcpy(&value, from, 8);
        }
        if (bytes < source_bytes && !fits(desc->dtype, value)) {
            return wefti_error(
                WEFT_ERR_FORMAT, "tensor '%s': element %zu is out of range for type %s: %lld",
                wefti_onnx_tensor_name(tensor), i, weft_dtype_name(desc->dtype), (long long)value);
        }
        memcpy(data + i * bytes, from, bytes);
    }
    desc->data = data;
    return WEFT_OK;
}

static weft_status_t typed(const Onnx__TensorProto *tensor, size_t count, wefti_arena_t *arena,
                           weft_tensor_desc_t *desc)
{
    switch (desc->dtype) {
    case WEFT_DTYPE_F32:
        return narrow(tensor, "float_data", tensor->float_data, 4, tensor->n_float_data, count,
                      arena, desc);
    case WEFT_DTYPE_F64:
        return narrow(tensor, "double_data", tensor->double_data, 8, tensor->n_double_data, count,
                      arena, desc);
    case WEFT_DTYPE_I64:
        return narrow(tensor, "int64_data", tensor->int64_data, 8, tensor->n_int64_data, count,
                      arena, desc);
    case WEFT_DTYPE_U64:
    case WEFT_DTYPE_U32:
        return narrow(tensor, "uint64_data", tensor->uint64_data, 8, tensor->n_uint64_data, count,
                      arena, desc);
    default:
        return narrow(tensor, "int32_data", tensor->int32_data, 4, tensor->n_int32_data, count,
                      arena, desc);
    }
}

bool wefti_onnx_is_typed(const Onnx__TensorProto *tensor)
{
    return tensor->n_float_data + tensor->n_double_data + tensor->n_int32_data +
               tensor->n_int64_data + tensor->n_uint64_data >
           0;
}

weft_status_t wefti_onnx_tensor(wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                bool allow_empty, wefti_arena_t *arena,
                                weft_tensor_desc_t *out_desc)
{
    size_t count = 0, bytes = 0;
    weft_tensor_desc_t desc;
    weft_status_t status = read_type(tensor, &desc, &count, &bytes);
    if (status < 0) {
        return status;
    }
    bool is_typed = wefti_onnx_is_typed(tensor);
    if (tensor->segment != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor '%s': segmented storage is not supported",
                           wefti_onnx_tensor_name(tensor));
    }
    if (tensor->has_data_location &&
        tensor->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
        status = wefti_onnx_external(file, tensor, bytes, &desc.data);
    } else if (tensor->has_raw_data && !is_typed) {
        status = referenced(file, tensor, bytes, &desc);
    } else if (tensor->has_raw_data) {
        status =
            wefti_error(WEFT_ERR_FORMAT, "tensor '%s': contents in both raw_data and a typed field",
                        wefti_onnx_tensor_name(tensor));
    } else if (!is_typed && count > 0 && allow_empty) {
        desc.data = NULL;
    } else if (!is_typed && count > 0) {
        status = wefti_error(WEFT_ERR_FORMAT, "tensor '%s': no contents",
                             wefti_onnx_tensor_name(tensor));
    } else {
        status = typed(tensor, count, arena, &desc);
    }
    if (status == WEFT_OK) {
        *out_desc = desc;
    }
    return status;
}
