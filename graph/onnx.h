/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX in and out. protobuf-c stays behind this header. */
#ifndef WEFT_GRAPH_ONNX_H
#define WEFT_GRAPH_ONNX_H

#include "graph/ir.h"

typedef struct wefti_onnx_import_params {
    const char *path;    /* a file, or NULL with bytes: external data is then refused */
    const void *bytes;   /* must outlive the graph */
    size_t size_bytes;
    const char *loss;    /* name of the loss output, or NULL: the output of the one loss node */
    size_t budget_bytes; /* memory for structure, 0: a multiple of the file's size */
    bool loss_optional;  /* a model without a loss is fine: loss, logits and label stay WEFTI_NONE */
    bool holes;          /* initializers without contents are fine: their data is NULL */
    /* Eval model: parameters whose contents are left out; NULL: every floating-point initializer. */
    const char *const *trained;
    size_t trained_count;
} wefti_onnx_import_params_t;

/*
 * Reads a model into a graph: values, nodes, parameters pointing into the mapped file (large tensors are never
 * copied). Finds loss, logits and label. Shapes are not yet bound: call wefti_graph_bind_shapes.
 * Errors name the file and the node or tensor. Hostile files are refused, never followed.
 */
weft_status_t wefti_onnx_import(const wefti_onnx_import_params_t *params, const weft_allocator_t *allocator,
                                const weft_registry_t *registry, wefti_graph_t **out_graph);

/*
 * The evaluation model as one serialized ModelProto without the trained weights: the label and the loss
 * are dropped, the logits are the output, the batch is symbolic ("batch"). *out_bytes is from allocator.
 */
weft_status_t wefti_onnx_eval_model(const wefti_onnx_import_params_t *params, const weft_allocator_t *allocator,
                                    const weft_registry_t *registry, void **out_bytes, size_t *out_size_bytes);

/* Reads a file holding one TensorProto; contents are copied to arena. */
weft_status_t wefti_onnx_read_tensor(const char *path, wefti_arena_t *arena,
                                     weft_tensor_desc_t *out_desc);

#endif
