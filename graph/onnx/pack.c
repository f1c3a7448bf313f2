/* SPDX-License-Identifier: Apache-2.0 */
/* From an edited message back to bytes. */
#include "graph/onnx/internal.h"

#include <string.h>

#include "runtime/base/error.h"

Onnx__ValueInfoProto *wefti_onnx_make_info(wefti_arena_t *arena, const char *name,
                                           const weft_tensor_desc_t *type)
{
    struct {
        Onnx__ValueInfoProto info;
        Onnx__TypeProto type;
        Onnx__TypeProto__Tensor tensor;
        Onnx__TensorShapeProto shape;
        Onnx__TensorShapeProto__Dimension *dims[WEFT_MAX_DIMS], dim[WEFT_MAX_DIMS];
    } *all = wefti_arena_alloc(arena, sizeof(*all));
    if (all == NULL) {
        return NULL;
    }
    onnx__value_info_proto__init(&all->info);
    onnx__type_proto__init(&all->type);
    onnx__type_proto__tensor__init(&all->tensor);
    onnx__tensor_shape_proto__init(&all->shape);
    all->info.name = (char *)(uintptr_t)name;
    all->info.type = &all->type;
    all->type.value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    all->type.tensor_type = &all->tensor;
    all->tensor.has_elem_type = 1;
    all->tensor.elem_type = wefti_onnx_data_type(type->dtype);
    all->tensor.shape = &all->shape;
    all->shape.n_dim = type->rank;
    all->shape.dim = all->dims;
    for (uint32_t i = 0; i < type->rank; i++) {
        onnx__tensor_shape_proto__dimension__init(&all->dim[i]);
        all->dims[i] = &all->dim[i];
        if (type->dims[i] >= 0) {
            all->dim[i].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            all->dim[i].dim_value = type->dims[i];
        }
    }
    return &all->info;
}

static Onnx__AttributeProto *new_attribute(wefti_arena_t *arena, const char *name, int type)
{
    Onnx__AttributeProto *attribute = wefti_arena_alloc(arena, sizeof(*attribute));
    if (attribute != NULL) {
        onnx__attribute_proto__init(attribute);
        attribute->name = (char *)(uintptr_t)name;
        attribute->has_type = 1;
        attribute->type = (Onnx__AttributeProto__AttributeType)type;
    }
    return attribute;
}

Onnx__AttributeProto *wefti_onnx_make_integer(wefti_arena_t *arena, const char *name, int64_t value,
                                              bool list)
{
    Onnx__AttributeProto *attribute =
        new_attribute(arena, name,
                      list ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS
                           : ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    if (attribute != NULL && list) {
        attribute->ints = wefti_arena_memdup(arena, &value, sizeof(value));
        attribute->n_ints = 1;
    } else if (attribute != NULL) {
        attribute->has_i = 1;
        attribute->i = value;
    }
    return attribute != NULL && list && attribute->ints == NULL ? NULL : attribute;
}

Onnx__AttributeProto *wefti_onnx_make_text(wefti_arena_t *arena, const char *name, const char *text)
{
    Onnx__AttributeProto *attribute =
        new_attribute(arena, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    if (attribute != NULL) {
        attribute->has_s = 1;
        attribute->s.len = strlen(text);
        attribute->s.data = (uint8_t *)(uintptr_t)text;
    }
    return attribute;
}

Onnx__NodeProto *wefti_onnx_make_node(wefti_arena_t *arena, const char *op,
                                      const char *const *inputs, size_t count, const char *output,
                                      Onnx__AttributeProto *attribute)
{
    Onnx__NodeProto *node = wefti_arena_alloc(arena, sizeof(*node));
    char **names = wefti_arena_array(arena, count + 1, sizeof(*names));
    Onnx__AttributeProto **attributes = wefti_arena_array(arena, 1, sizeof(*attributes));
    bool known = node != NULL && names != NULL && attributes != NULL && output != NULL;
    for (size_t i = 0; i < count && known; i++) {
        known = inputs[i] != NULL;
        names[i] = (char *)(uintptr_t)inputs[i];
    }
    if (!known) {
        return NULL;
    }
    onnx__node_proto__init(node);
    names[count] = (char *)(uintptr_t)output;
    attributes[0] = attribute;
    node->op_type = (char *)(uintptr_t)op;
    node->name = names[count];
    node->input = names;
    node->n_input = count;
    node->output = names + count;
    node->n_output = 1;
    node->attribute = attributes;
    node->n_attribute = attribute != NULL;
    return node;
}

void wefti_onnx_set_contents(Onnx__TensorProto *tensor, const weft_tensor_desc_t *desc)
{
    tensor->n_float_data = tensor->n_double_data = 0;
    tensor->n_int32_data = tensor->n_int64_data = tensor->n_uint64_data = 0;
    tensor->n_external_data = 0;
    tensor->has_data_location = 0;
    tensor->has_raw_data = desc->data != NULL;
    if (desc->data != NULL) {
        size_t count = (size_t)weft_tensor_elem_count(desc);
        tensor->raw_data.len = count * weft_dtype_size_bytes(desc->dtype);
        /* Packing only reads it. */
        tensor->raw_data.data = (uint8_t *)(uintptr_t)desc->data;
    }
}

static weft_status_t materialize_tensor(wefti_onnx_file_t *file, Onnx__TensorProto *tensor)
{
    weft_tensor_desc_t desc;
    weft_status_t status = wefti_onnx_tensor(file, tensor, true, &file->arena, &desc);
    if (status == WEFT_OK) {
        wefti_onnx_set_contents(tensor, &desc);
    }
    return status;
}

weft_status_t wefti_onnx_materialize(wefti_onnx_file_t *file)
{
    Onnx__GraphProto *graph = file->model->graph;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        WEFT_RETURN_IF_ERROR(materialize_tensor(file, graph->initializer[i]));
    }
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        for (size_t j = 0; j < node->n_attribute; j++) {
            if (node->attribute[j]->t != NULL) {
                WEFT_RETURN_IF_ERROR(materialize_tensor(file, node->attribute[j]->t));
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_pack(wefti_onnx_file_t *file, uint8_t **out_bytes, size_t *out_size_bytes)
{
    const ProtobufCMessage *message = &file->model->base;
    *out_bytes = NULL;
    size_t size_bytes = protobuf_c_message_get_packed_size(message);
    if (size_bytes > INT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "model too large: %zu bytes, an ONNX file holds at most 2 GiB",
                           size_bytes);
    }
    uint8_t *bytes = wefti_alloc(file->allocator, size_bytes);
    WEFT_RETURN_IF_NO_MEMORY(bytes);
    *out_size_bytes = protobuf_c_message_pack(message, bytes);
    *out_bytes = bytes;
    return WEFT_OK;
}
