/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of nodes, and Constant nodes, whose attribute is the tensor. */
#include "graph/onnx/internal.h"

#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define MOST_ATTRIBUTES 1000

static const char *attribute_name(const Onnx__AttributeProto *attribute)
{
    return attribute->name != NULL ? attribute->name : "";
}

/* Files of the first format version leave the type out. */
static Onnx__AttributeProto__AttributeType type_of(const Onnx__AttributeProto *a)
{
    if (a->has_type && a->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED) {
        return a->type;
    }
    return a->has_f           ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT
           : a->has_i         ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT
           : a->has_s         ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING
           : a->t != NULL     ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR
           : a->g != NULL     ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH
           : a->n_floats > 0  ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS
           : a->n_ints > 0    ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS
           : a->n_strings > 0 ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS
                              : ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED;
}

static weft_status_t copy_string(const ProtobufCBinaryData *bytes, wefti_arena_t *arena,
                                 const char **out)
{
    if (bytes->len > 0 && memchr(bytes->data, 0, bytes->len) != NULL) {
        return wefti_error(WEFT_ERR_FORMAT, "string contains a zero byte");
    }
    char *text = wefti_arena_alloc(arena, bytes->len + 1);
    WEFT_RETURN_IF_NO_MEMORY(text);
    if (bytes->len > 0) {
        memcpy(text, bytes->data, bytes->len);
    }
    *out = text;
    return WEFT_OK;
}

static weft_status_t convert_strings(const Onnx__AttributeProto *in, wefti_arena_t *arena,
                                     weft_attr_t *out)
{
    const char **strings =
        wefti_arena_array(arena, in->n_strings > 0 ? in->n_strings : 1, sizeof(*strings));
    WEFT_RETURN_IF_NO_MEMORY(strings);
    for (size_t i = 0; i < in->n_strings; i++) {
        WEFT_RETURN_IF_ERROR(copy_string(&in->strings[i], arena, &strings[i]));
    }
    out->type = WEFT_ATTR_TYPE_STRINGS;
    out->strings = strings;
    out->count = in->n_strings;
    return WEFT_OK;
}

static weft_status_t convert_tensor(wefti_onnx_file_t *file, const Onnx__AttributeProto *in,
                                    wefti_arena_t *arena, weft_attr_t *out)
{
    weft_tensor_desc_t *desc = wefti_arena_alloc(arena, sizeof(*desc));
    WEFT_RETURN_IF_NO_MEMORY(desc);
    if (in->t == NULL) {
        return wefti_error(WEFT_ERR_FORMAT, "type is TENSOR, but there is no tensor");
    }
    out->type = WEFT_ATTR_TYPE_TENSOR;
    out->tensor = desc;
    return wefti_onnx_tensor(file, in->t, false, arena, desc);
}

static weft_status_t convert(wefti_onnx_file_t *file, const Onnx__AttributeProto *in,
                             wefti_arena_t *arena, weft_attr_t *out)
{
    *out = (weft_attr_t){.name = in->name};
    switch (type_of(in)) {
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT:
        out->type = WEFT_ATTR_TYPE_FLOAT;
        out->f = in->f;
        return WEFT_OK;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT:
        out->type = WEFT_ATTR_TYPE_INT;
        out->i = in->i;
        return WEFT_OK;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING:
        out->type = WEFT_ATTR_TYPE_STRING;
        return copy_string(&in->s, arena, &out->s);
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS:
        out->type = WEFT_ATTR_TYPE_FLOATS;
        out->floats = in->floats;
        out->count = in->n_floats;
        return WEFT_OK;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS:
        out->type = WEFT_ATTR_TYPE_INTS;
        out->ints = in->ints;
        out->count = in->n_ints;
        return WEFT_OK;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS:
        return convert_strings(in, arena, out);
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR:
        return convert_tensor(file, in, arena, out);
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH:
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPHS:
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "subgraphs (control flow such as If, Loop and Scan) are not supported");
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED:
        return wefti_error(WEFT_ERR_FORMAT, "neither type nor value is set");
    default:
        return wefti_error(WEFT_ERR_UNSUPPORTED, "unsupported attribute type %d", (int)type_of(in));
    }
}

weft_status_t wefti_onnx_attributes(wefti_onnx_file_t *file, const Onnx__NodeProto *node,
                                    wefti_arena_t *arena, weft_attr_t **out_attrs,
                                    uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    size_t count = node->n_attribute;
    if (count > MOST_ATTRIBUTES) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "too many attributes: %zu, limit %d", count,
                           MOST_ATTRIBUTES);
    }
    weft_attr_t *attrs = wefti_arena_array(arena, count > 0 ? count : 1, sizeof(*attrs));
    WEFT_RETURN_IF_NO_MEMORY(attrs);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        const Onnx__AttributeProto *in = node->attribute[i];
        const char *name = attribute_name(in);
        if (name[0] == '\0') {
            return wefti_error(WEFT_ERR_FORMAT, "attribute %zu: missing name", i);
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(attrs[j].name, name) == 0) {
                return wefti_error(WEFT_ERR_FORMAT, "duplicate attribute '%s'", name);
            }
        }
        if (in->ref_attr_name != NULL && in->ref_attr_name[0] != '\0') {
            return wefti_error(
                WEFT_ERR_FORMAT,
                "attribute '%s': reference to attribute '%s' of a function, outside a function",
                name, in->ref_attr_name);
        }
        status = convert(file, in, arena, &attrs[i]);
        if (status < 0) {
            wefti_error_prefix(status, "attribute '%s'", name);
        }
    }
    *out_attrs = attrs;
    *out_count = (uint32_t)count;
    return status;
}

static weft_status_t constant_of(const weft_attr_t *attr, wefti_arena_t *arena,
                                 weft_tensor_desc_t *out)
{
    *out = (weft_tensor_desc_t){.rank = 0};
    switch (attr->type) {
    case WEFT_ATTR_TYPE_TENSOR:
        *out = *attr->tensor;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_FLOAT:
        out->dtype = WEFT_DTYPE_F32;
        out->data = wefti_arena_memdup(arena, &attr->f, sizeof(attr->f));
        break;
    case WEFT_ATTR_TYPE_INT:
        out->dtype = WEFT_DTYPE_I64;
        out->data = wefti_arena_memdup(arena, &attr->i, sizeof(attr->i));
        break;
    case WEFT_ATTR_TYPE_FLOATS:
    case WEFT_ATTR_TYPE_INTS: {
        static const char nothing[8];
        bool ints = attr->type == WEFT_ATTR_TYPE_INTS;
        const void *source = ints ? (const void *)attr->ints : (const void *)attr->floats;
        out->dtype = ints ? WEFT_DTYPE_I64 : WEFT_DTYPE_F32;
        out->rank = 1;
        out->dims[0] = (int64_t)attr->count;
        out->data = attr->count == 0
                        ? nothing
                        : wefti_arena_memdup(arena, source, attr->count * (ints ? 8 : 4));
        break;
    }
    default:
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "unsupported attribute '%s' of a constant: expected a tensor, integers or floats",
            attr->name);
    }
    return out->data == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

Onnx__AttributeProto *wefti_onnx_find_attribute(const Onnx__NodeProto *node, const char *name)
{
    for (size_t i = 0; i < node->n_attribute; i++) {
        if (node->attribute[i]->name != NULL && strcmp(node->attribute[i]->name, name) == 0) {
            return node->attribute[i];
        }
    }
    return NULL;
}

weft_status_t wefti_onnx_constant(wefti_onnx_file_t *file, const Onnx__NodeProto *node,
                                  wefti_arena_t *arena, weft_tensor_desc_t *out_desc)
{
    weft_attr_t *attrs = NULL;
    uint32_t count = 0;
    WEFT_RETURN_IF_ERROR(wefti_onnx_attributes(file, node, arena, &attrs, &count));
    if (count != 1 || node->n_output != 1 || node->n_input != 0) {
        return wefti_error(
            WEFT_ERR_FORMAT,
            "malformed constant: %u attributes, %zu outputs, %zu inputs; expected 1, 1, 0", count,
            node->n_output, node->n_input);
    }
    return constant_of(&attrs[0], arena, out_desc);
}

bool wefti_onnx_integer(const weft_tensor_desc_t *tensor, int64_t *out)
{
    int64_t value;
    uint32_t count;
    if (!wefti_const_ints(tensor, &value, 1, &count) || count != 1) {
        return false;
    }
    *out = value;
    return true;
}
