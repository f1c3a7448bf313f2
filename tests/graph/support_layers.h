/* SPDX-License-Identifier: Apache-2.0 */
/* Models of any size: a chain of layers, each a product with weights and bias, a few element-wise
 * operators and a residual sum. */
#ifndef WEFT_TESTS_GRAPH_SUPPORT_LAYERS_H
#define WEFT_TESTS_GRAPH_SUPPORT_LAYERS_H

#include "tests/graph/support_onnx.h"

typedef struct layers_shape {
    uint32_t layers; /* two parameters each */
    uint32_t width;  /* of every activation */
    uint32_t tanhs;  /* element-wise operators of a layer */
} layers_shape_t;

/* The model as a file's bytes; free with wire_free. Weights are small numbers that depend on their
 * place only. */
wire_t onnx_layers(const layers_shape_t *shape);

#endif
