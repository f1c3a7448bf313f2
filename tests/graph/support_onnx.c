/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/graph/support_onnx.h"
#include "tests/support/support.h"

void wire_free(wire_t *wire)
{
    free(wire->data);
    *wire = (wire_t){0};
}

void wire_raw(wire_t *wire, const void *bytes, size_t size)
{
    if (wire->size + size > wire->capacity) {
        wire->capacity = (wire->size + size) * 2 + 64;
        wire->data = realloc(wire->data, wire->capacity);
        assert_non_null(wire->data);
    }
    if (size > 0) {
        memcpy(wire->data + wire->size, bytes, size);
    }
    wire->size += size;
}

static void varint(wire_t *wire, uint64_t value)
{
    do {
        uint8_t byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        wire_raw(wire, &byte, 1);
        value >>= 7;
    } while (value != 0);
}

void wire_number(wire_t *wire, uint32_t field, uint64_t value)
{
    varint(wire, (uint64_t)field << 3);
    varint(wire, value);
}

void wire_bytes(wire_t *wire, uint32_t field, const void *bytes, size_t size)
{
    varint(wire, (uint64_t)field << 3 | 2);
    varint(wire, size);
    wire_raw(wire, bytes, size);
}

void wire_string(wire_t *wire, uint32_t field, const char *text)
{
    wire_bytes(wire, field, text, strlen(text));
}

void wire_message(wire_t *wire, uint32_t field, wire_t *inner)
{
    wire_bytes(wire, field, inner->data, inner->size);
    wire_free(inner);
}

wire_t onnx_tensor(const char *name, int type, uint32_t rank, const int64_t *dims, const void *raw,
                   size_t size)
{
    wire_t tensor = {0};
    for (uint32_t i = 0; i < rank; i++) {
        wire_number(&tensor, 1, (uint64_t)dims[i]);
    }
    wire_number(&tensor, 2, (uint64_t)type);
    wire_string(&tensor, 8, name);
    if (raw != NULL) {
        wire_bytes(&tensor, 9, raw, size);
    }
    return tensor;
}

void onnx_value(wire_t *graph, uint32_t field, const char *name, int type, uint32_t rank,
                const int64_t *dims)
{
    wire_t info = {0}, outer = {0}, tensor = {0}, shape = {0};
    for (uint32_t i = 0; i < rank; i++) {
        wire_t dim = {0};
        if (dims[i] == -1) {
            wire_string(&dim, 2, "batch");
        } else {
            wire_number(&dim, 1, (uint64_t)dims[i]);
        }
        wire_message(&shape, 1, &dim);
    }
    wire_number(&tensor, 1, (uint64_t)type);
    wire_message(&tensor, 2, &shape);
    wire_message(&outer, 1, &tensor);
    wire_string(&info, 1, name);
    wire_message(&info, 2, &outer);
    wire_message(graph, field, &info);
}

static void names(wire_t *node, uint32_t field, const char *list)
{
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ",");
        wire_bytes(node, field, list, length);
        list += length + (list[length] == ',');
    }
}

void onnx_node(wire_t *graph, const char *op, const char *name, const char *inputs,
               const char *outputs, wire_t *attributes)
{
    wire_t node = {0};
    names(&node, 1, inputs);
    names(&node, 2, outputs);
    if (name != NULL) {
        wire_string(&node, 3, name);
    }
    wire_string(&node, 4, op);
    if (attributes != NULL) {
        wire_raw(&node, attributes->data, attributes->size);
        wire_free(attributes);
    }
    wire_message(graph, 1, &node);
}

void onnx_attribute_int(wire_t *attributes, const char *name, int64_t value)
{
    wire_t attribute = {0};
    wire_string(&attribute, 1, name);
    wire_number(&attribute, 3, (uint64_t)value);
    wire_number(&attribute, 20, 2);
    wire_message(attributes, 5, &attribute);
}

wire_t onnx_model(wire_t *graph, int64_t opset)
{
    wire_t model = {0}, import = {0};
    wire_number(&model, 1, 8);
    wire_string(&import, 1, "");
    wire_number(&import, 2, (uint64_t)opset);
    wire_message(&model, 8, &import);
    wire_message(&model, 7, graph);
    return model;
}

wire_t onnx_small_mlp(void)
{
    static const float weights[12] = {0.5f, -1, 2, 0.25f, 1, 1, -0.5f, 0.125f, 3, -2, 1, 0};
    wire_t graph = {0}, tensor, attributes = {0};
    onnx_attribute_int(&attributes, "transB", 1);
    onnx_node(&graph, "Gemm", "fc1", "image,w1,b1", "h1", &attributes);
    onnx_node(&graph, "Relu", "relu", "h1", "h2", NULL);
    onnx_attribute_int(&attributes, "transB", 1);
    onnx_node(&graph, "Gemm", "fc2", "h2,w2,b2", "logits", &attributes);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "ce", "logits,label", "loss", NULL);
    wire_string(&graph, 2, "small");
    tensor = onnx_tensor("w1", ONNX_FLOAT, 2, (int64_t[]){3, 4}, weights, 48);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("b1", ONNX_FLOAT, 1, (int64_t[]){3}, weights, 12);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("w2", ONNX_FLOAT, 2, (int64_t[]){2, 3}, weights + 3, 24);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("b2", ONNX_FLOAT, 1, (int64_t[]){2}, weights + 5, 8);
    wire_message(&graph, 5, &tensor);
    onnx_value(&graph, 11, "image", ONNX_FLOAT, 2, (int64_t[]){-1, 4});
    onnx_value(&graph, 11, "label", ONNX_INT64, 1, (int64_t[]){-1});
    onnx_value(&graph, 12, "loss", ONNX_FLOAT, 0, NULL);
    return onnx_model(&graph, 13);
}

void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}
