/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX input and output. Users of this header need no protobuf-c. */
#ifndef WEFT_GRAPH_ONNX_H
#define WEFT_GRAPH_ONNX_H

#include <weft/compile.h>

#include "graph/ir.h"

/* One of a file's metadata_props, the key without "weft.". */
typedef struct wefti_onnx_property {
    const char *key, *value;
} wefti_onnx_property_t;

/* The devices of the multi-device annotations that are executed: a mesh of replicas and shards. */
typedef struct wefti_onnx_devices {
    uint32_t count;    /* shards, each on devices of its own; 0: there are no annotations */
    uint32_t replicas; /* devices with the same shard: device d has shard d % count */
    const char *configuration;
} wefti_onnx_devices_t;
/* devices.c: those of a file whose nodes have annotations. wanted: of several configurations, that
 * with so many devices. In arena. */
weft_status_t wefti_onnx_devices(const char *path, uint32_t wanted, wefti_arena_t *arena,
                                 wefti_onnx_devices_t *out);

typedef struct wefti_onnx_import_params {
    const char *path;  /* a file, or NULL with bytes: external data is then refused */
    const void *bytes; /* must outlive the graph */
    size_t size_bytes;
    const char *loss;    /* name of the loss output, or NULL: the output of the one loss node */
    size_t budget_bytes; /* memory for structure, 0: a multiple of the file's size */
    bool loss_optional; /* a model without a loss is fine: loss, logits and label stay WEFTI_NONE */
    bool may_lack_loss; /* a model without a loss node is fine, one with several is not */
    /* Properties of the file, where it holds a compiled graph: the graph comes out with types,
     * states and updates. */
    const wefti_onnx_property_t *compiled;
    uint32_t compiled_count;
    bool training_form; /* BatchNormalization and Dropout compute as in training */
    bool holes;         /* initializers without contents are fine: their data is NULL */
    /* Eval model: parameters whose contents are left out; NULL: every floating-point initializer.
     */
    const char *const *trained;
    size_t trained_count;
    wefti_onnx_devices_t devices; /* their annotations become the graph's shardings */
} wefti_onnx_import_params_t;

/* tensor.c: the number of ONNX. */
int32_t wefti_onnx_data_type(weft_dtype_t dtype);

/*
 * Reads a model into a graph: values, nodes, parameters pointing into the mapped file (large
 * tensors are never copied). Finds loss, logits and label. Shapes are not yet bound: call
 * wefti_graph_bind_shapes. Errors name the file and the node or tensor. Hostile files are refused,
 * never followed.
 */
weft_status_t wefti_onnx_import(const wefti_onnx_import_params_t *params,
                                const weft_allocator_t *allocator, const weft_registry_t *registry,
                                wefti_graph_t **out_graph);

/*
 * The evaluation model as one serialized ModelProto without the trained weights: the label and the
 * loss are dropped, the logits are the output, the batch is symbolic ("batch"). *out_bytes is from
 * allocator. A model that works for the batch in the file only keeps it: *out_fixed is then true,
 * and weft_last_error names what depends on it.
 */
weft_status_t wefti_onnx_eval_model(const wefti_onnx_import_params_t *params,
                                    const weft_allocator_t *allocator,
                                    const weft_registry_t *registry, void **out_bytes,
                                    size_t *out_size_bytes, bool *out_fixed);

/*
 * A compiled graph as a file: what ONNX has words for as ONNX, everything else in metadata_props,
 * "weft.<key>". Reading it gives the same graph again, ready to be lowered.
 */
typedef struct wefti_onnx_emit wefti_onnx_emit_t;
/* Takes the graph as it is now: nodes may be added to it afterwards, but it has to live on. */
weft_status_t wefti_onnx_emit_begin(const wefti_graph_t *graph, const weft_allocator_t *allocator,
                                    wefti_onnx_emit_t **out_emit);
/* What was chosen for a collective: candidates, comma-separated (NULL: not one list for all of it),
 * and the order of the reduction. */
weft_status_t wefti_onnx_emit_choice(wefti_onnx_emit_t *emit, uint32_t node, uint32_t bucket,
                                     const char *algorithm, const char *order);
/* All or nothing. Properties are the compiler's own; those of the graph are added. */
weft_status_t wefti_onnx_emit_write(wefti_onnx_emit_t *emit,
                                    const wefti_onnx_property_t *properties, uint32_t count,
                                    const char *path);
void wefti_onnx_emit_destroy(wefti_onnx_emit_t *emit); /* accepts NULL */

/* weft_model_save with entries of metadata_props: properties that the model has already are kept.
 * At most 118 characters of key and value. */
weft_status_t wefti_model_save(const weft_plan_t *plan, const weft_named_tensor_t *tensors,
                               size_t tensor_count, const wefti_onnx_property_t *properties,
                               uint32_t property_count, const char *path);

/* The properties of a file whose key begins with "weft.", without it; none: *out_count is 0. Looks
 * at the top level of the file only. In arena. */
weft_status_t wefti_onnx_properties(const char *path, wefti_arena_t *arena,
                                    wefti_onnx_property_t **out_properties, uint32_t *out_count);
weft_status_t wefti_onnx_read_properties(const void *data, size_t size_bytes, wefti_arena_t *arena,
                                         wefti_onnx_property_t **out_properties,
                                         uint32_t *out_count);
const char *wefti_onnx_property(const wefti_onnx_property_t *properties, uint32_t count,
                                const char *key); /* or NULL */

/* One operator of a model. */
typedef struct wefti_onnx_op_use {
    const char *domain, *name; /* "" is ai.onnx */
    uint32_t count;
    bool defined, differentiable, has_kernel;
    const char *first; /* "node 3 'fc1' (Gemm)" */
} wefti_onnx_op_use_t;

/* One input that is no initializer, as the file declares it. */
typedef struct wefti_onnx_input {
    const char *name;
    const char *text; /* "f32 [batch, 1, 28, 28]", or what is wrong with it */
} wefti_onnx_input_t;

/* What is in a model, without asking whether it can be compiled. */
typedef struct wefti_onnx_survey {
    int64_t ir_version, opset; /* of ai.onnx */
    uint32_t node_count, initializer_count;
    uint32_t op_count, input_count;
    wefti_onnx_op_use_t *ops; /* most used first */
    wefti_onnx_input_t *inputs;
    wefti_parameter_t *parameters; /* which initializers are trained */
    uint32_t parameter_count;
} wefti_onnx_survey_t;

/* Everything in *out lives in arena. Errors only for files that are no models. */
weft_status_t wefti_onnx_survey(const char *path, const weft_allocator_t *allocator,
                                const weft_registry_t *registry, wefti_arena_t *arena,
                                wefti_onnx_survey_t *out);

/* Reads a file holding one TensorProto; contents are copied to arena. */
weft_status_t wefti_onnx_read_tensor(const char *path, wefti_arena_t *arena,
                                     weft_tensor_desc_t *out_desc);

#endif
