/* SPDX-License-Identifier: Apache-2.0 */
/* Writes ONNX files byte by byte, good ones and bad ones. */
#ifndef WEFT_TESTS_GRAPH_SUPPORT_ONNX_H
#define WEFT_TESTS_GRAPH_SUPPORT_ONNX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wire {
    uint8_t *data;
    size_t size, capacity;
} wire_t;

void wire_free(wire_t *wire);
void wire_raw(wire_t *wire, const void *bytes, size_t size);
void wire_number(wire_t *wire, uint32_t field, uint64_t value);
void wire_bytes(wire_t *wire, uint32_t field, const void *bytes, size_t size);
void wire_string(wire_t *wire, uint32_t field, const char *text);
/* Appends inner as a field and frees it. */
void wire_message(wire_t *wire, uint32_t field, wire_t *inner);

/* TensorProto.DataType */
#define ONNX_FLOAT 1
#define ONNX_INT64 7

/* A TensorProto with raw_data (none if raw is NULL). */
wire_t onnx_tensor(const char *name, int type, uint32_t rank, const int64_t *dims, const void *raw,
                   size_t size);
/* Adds an input (field 11) or output (12). dims -1: "batch". */
void onnx_value(wire_t *graph, uint32_t field, const char *name, int type, uint32_t rank,
                const int64_t *dims);
/* Adds a node; inputs and outputs are separated by commas; attributes is freed, may be NULL. */
void onnx_node(wire_t *graph, const char *op, const char *name, const char *inputs,
               const char *outputs, wire_t *attributes);
void onnx_attribute_int(wire_t *attributes, const char *name, int64_t value);
/* A model around graph, which is freed. */
wire_t onnx_model(wire_t *graph, int64_t opset);
/* image [batch, 4] -> Gemm 4-3 -> Relu -> Gemm 3-2 -> loss; w1, b1, w2, b2 as raw_data. */
wire_t onnx_small_mlp(void);

/* Writes bytes as a file; fails the test if it cannot. */
void write_file(const char *path, const void *bytes, size_t size);

#endif
