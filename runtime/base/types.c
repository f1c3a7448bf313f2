/* SPDX-License-Identifier: Apache-2.0 */
#include <weft/types.h>

#include <string.h>

#include "runtime/base/check.h"

size_t weft_dtype_size_bytes(weft_dtype_t dtype)
{
    switch (dtype) {
#define DTYPE_BYTES(name, value, bytes, text, onnx)                                                \
    case WEFT_DTYPE_##name:                                                                        \
        return bytes;
        WEFT_DTYPE_MAP(DTYPE_BYTES)
#undef DTYPE_BYTES
    case WEFT_DTYPE_NONE:
        break;
    }
    return 0;
}

const char *weft_dtype_name(weft_dtype_t dtype)
{
    switch (dtype) {
#define DTYPE_NAME(name, value, bytes, text, onnx)                                                 \
    case WEFT_DTYPE_##name:                                                                        \
        return text;
        WEFT_DTYPE_MAP(DTYPE_NAME)
#undef DTYPE_NAME
    case WEFT_DTYPE_NONE:
        break;
    }
    return "none";
}

weft_dtype_t weft_dtype_from_name(const char *name)
{
    WEFT_CHECK_ARG_OR(name, WEFT_DTYPE_NONE);
#define DTYPE_IF(dtype, value, bytes, text, onnx)                                                  \
    if (strcmp(name, text) == 0) {                                                                 \
        return WEFT_DTYPE_##dtype;                                                                 \
    }
    WEFT_DTYPE_MAP(DTYPE_IF)
#undef DTYPE_IF
    return WEFT_DTYPE_NONE;
}

const char *weft_reduction_name(weft_reduction_t reduction)
{
    switch (reduction) {
    case WEFT_REDUCTION_SUM:
        return "sum";
    case WEFT_REDUCTION_AVG:
        return "avg";
    case WEFT_REDUCTION_PROD:
        return "prod";
    case WEFT_REDUCTION_MIN:
        return "min";
    case WEFT_REDUCTION_MAX:
        return "max";
    }
    return "unknown";
}

int64_t weft_tensor_elem_count(const weft_tensor_desc_t *desc)
{
    WEFT_CHECK_ARG_OR(desc, -1);
    int64_t count = 1;
    int empty = 0;
    for (uint32_t i = 0; i < desc->rank && i < WEFT_MAX_DIMS; i++) {
        if (desc->dims[i] < 0) {
            return -1;
        }
        empty |= desc->dims[i] == 0;
    }
    if (empty) {
        return 0; /* whatever the others would multiply to */
    }
    for (uint32_t i = 0; i < desc->rank && i < WEFT_MAX_DIMS; i++) {
        if (__builtin_mul_overflow(count, desc->dims[i], &count)) {
            return -1;
        }
    }
    return count;
}

const weft_attr_t *weft_node_attr(const weft_node_desc_t *node, const char *name)
{
    WEFT_CHECK_ARG_OR(node, NULL);
    WEFT_CHECK_ARG_OR(name, NULL);
    for (uint32_t i = 0; i < node->attr_count; i++) {
        if (strcmp(node->attrs[i].name, name) == 0) {
            return &node->attrs[i];
        }
    }
    return NULL;
}

int64_t weft_node_attr_int(const weft_node_desc_t *node, const char *name, int64_t otherwise)
{
    WEFT_CHECK_ARG_OR(node, otherwise);
    WEFT_CHECK_ARG_OR(name, otherwise);
    const weft_attr_t *attr = weft_node_attr(node, name);
    return attr && attr->type == WEFT_ATTR_TYPE_INT ? attr->i : otherwise;
}

float weft_node_attr_float(const weft_node_desc_t *node, const char *name, float otherwise)
{
    WEFT_CHECK_ARG_OR(node, otherwise);
    WEFT_CHECK_ARG_OR(name, otherwise);
    const weft_attr_t *attr = weft_node_attr(node, name);
    return attr && attr->type == WEFT_ATTR_TYPE_FLOAT ? attr->f : otherwise;
}

const char *weft_node_attr_string(const weft_node_desc_t *node, const char *name,
                                  const char *otherwise)
{
    WEFT_CHECK_ARG_OR(node, otherwise);
    WEFT_CHECK_ARG_OR(name, otherwise);
    const weft_attr_t *attr = weft_node_attr(node, name);
    return attr && attr->type == WEFT_ATTR_TYPE_STRING && attr->s ? attr->s : otherwise;
}
