/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/graph/support_layers.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>

static void add_weights(wire_t *graph, const char *name, uint32_t rank, uint32_t width)
{
    int64_t dims[2] = {width, width};
    size_t count = rank == 2 ? (size_t)width * width : width;
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((int)(i * 7 % 11) - 5) / 64.0f;
    }
    wire_t tensor = onnx_tensor(name, ONNX_FLOAT, rank, dims, values, count * sizeof *values);
    wire_message(graph, 5, &tensor);
    free(values);
}

/* Appends layer index, which reads in, and writes the name of its result over in. */
static void add_layer(wire_t *graph, const layers_shape_t *shape, uint32_t index, char in[32])
{
    char weights[32], bias[32], inputs[128], at[32], next[32];
    snprintf(weights, sizeof weights, "w%u", index);
    snprintf(bias, sizeof bias, "b%u", index);
    snprintf(inputs, sizeof inputs, "%s,%s,%s", in, weights, bias);
    snprintf(at, sizeof at, "p%u", index);
    add_weights(graph, weights, 2, shape->width);
    add_weights(graph, bias, 1, shape->width);
    onnx_node(graph, "Gemm", NULL, inputs, at, NULL);
    for (uint32_t i = 0; i < shape->tanhs; i++) {
        snprintf(next, sizeof next, "t%u_%u", index, i);
        onnx_node(graph, "Tanh", NULL, at, next, NULL);
        snprintf(at, sizeof at, "%s", next);
    }
    snprintf(inputs, sizeof inputs, "%s,%s", in, at);
    snprintf(in, 32, "h%u", index);
    onnx_node(graph, "Add", NULL, inputs, in, NULL);
}

wire_t onnx_layers(const layers_shape_t *shape)
{
    wire_t graph = {0};
    char in[32] = "image";
    for (uint32_t i = 0; i < shape->layers; i++) {
        add_layer(&graph, shape, i, in);
    }
    char inputs[64];
    snprintf(inputs, sizeof inputs, "%s,label", in);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "ce", inputs, "loss", NULL);
    wire_string(&graph, 2, "layers");
    onnx_value(&graph, 11, "image", ONNX_FLOAT, 2, (int64_t[]){-1, shape->width});
    onnx_value(&graph, 11, "label", ONNX_INT64, 1, (int64_t[]){-1});
    onnx_value(&graph, 12, "loss", ONNX_FLOAT, 0, NULL);
    return onnx_model(&graph, 13);
}
