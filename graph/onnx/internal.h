/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of graph/onnx only, the one place that uses protobuf-c types.
 *
 *   file --walk (wire.c)--> reduced bytes --protobuf-c--> ModelProto (file.c)
 *        --convert (import.c)--> graph
 *
 * The walk bounds protobuf-c's recursion and allocation, and leaves large contents out: in the
 * unpacked message, raw_data never holds bytes of the file but one wefti_onnx_ref_t, their place in
 * the file.
 */
#ifndef WEFT_GRAPH_ONNX_INTERNAL_H
#define WEFT_GRAPH_ONNX_INTERNAL_H

#include "graph/name_index.h"
#include "graph/ir.h"
#include "graph/onnx/onnx.h"

#include <onnx.pb-c.h>

#define WEFTI_ONNX_MAX_DEPTH 64u

/* The place of a tensor's contents; raw_data of every unpacked TensorProto. */
typedef struct wefti_onnx_ref {
    uint64_t
        field; /* 9 raw_data, 4 float_data, 10 double_data: little-endian elements in all three */
    uint64_t offset_bytes;
    uint64_t size_bytes;
} wefti_onnx_ref_t;

/* wire.c: checks data as a message of type descriptor, writes the reduced copy to *out (from
 * allocator). cost is an upper estimate of what unpacking allocates; above budget_bytes it fails.
 */
weft_status_t wefti_onnx_reduce(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                size_t size_bytes, size_t budget_bytes,
                                const weft_allocator_t *allocator, uint8_t **out,
                                size_t *out_size_bytes);

/* The type of a value of graph, with contents (in the arena of file) if it is constant. */
struct wefti_onnx_file;
typedef weft_status_t (*wefti_onnx_look_fn)(struct wefti_onnx_file *file,
                                            const Onnx__GraphProto *graph, const char *name,
                                            weft_tensor_desc_t *out);

/* tied.c: original is the initializer of which the tensor name was a transposed copy. */
typedef struct wefti_onnx_tie {
    const char *name, *original;
} wefti_onnx_tie_t;

/* file.c: an unpacked file. */
typedef struct wefti_onnx_file {
    const weft_allocator_t *allocator;
    const char *label;               /* for messages: the path, or "model" */
    const char *path;                /* NULL: from memory, external data is refused */
    const weft_registry_t *registry; /* of the import: facts of operators */
    wefti_onnx_look_fn look;         /* wefti_onnx_look; NULL: control flow stays as it is */
    wefti_mapping_t mapping;
    const uint8_t *data;
    size_t size_bytes;
    size_t budget_bytes;
    wefti_arena_t arena; /* holds the message and whatever is derived from it */
    ProtobufCAllocator pb;
    bool out_of_memory;                         /* while unpacking */
    bool compiled;                              /* a compiled graph: its training_info is read */
    Onnx__ModelProto *model;                    /* has a graph */
    struct wefti_onnx_external_file *externals; /* files of external data */
    size_t external_count, external_capacity;
    wefti_onnx_tie_t *ties; /* of wefti_onnx_tie */
    size_t tie_count;
} wefti_onnx_file_t;

weft_status_t wefti_onnx_file_open(const wefti_onnx_import_params_t *params,
                                   const weft_allocator_t *allocator, wefti_onnx_file_t *file);
/* Unmaps everything that was not handed over; a zeroed file is fine. */
void wefti_onnx_file_close(wefti_onnx_file_t *file);
/* Hands the mappings over to graph, whose values point into them. */
weft_status_t wefti_onnx_file_give_mappings(wefti_onnx_file_t *file, wefti_graph_t *graph);

/* external.c: a file of external data, mapped once. */
struct wefti_onnx_external_file {
    const char *location; /* as the model spells it */
    wefti_mapping_t mapping;
};
/* The contents of an external tensor of size_bytes. */
weft_status_t wefti_onnx_external(wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                  size_t size_bytes, const void **out_data);

/* tensor.c: type and contents; data points into the file or into arena. Messages name the
 * tensor. allow_empty: a tensor without contents is fine and gets data NULL. */
weft_status_t wefti_onnx_tensor(wefti_onnx_file_t *file, const Onnx__TensorProto *tensor,
                                bool allow_empty, wefti_arena_t *arena,
                                weft_tensor_desc_t *out_desc);
/* Are there contents in a typed field, such as float_data? */
bool wefti_onnx_is_typed(const Onnx__TensorProto *tensor);
weft_dtype_t wefti_onnx_dtype(int32_t data_type);

/* attribute.c: arrays come from arena, strings stay in the message. */
weft_status_t wefti_onnx_attributes(wefti_onnx_file_t *file, const Onnx__NodeProto *node,
                                    wefti_arena_t *arena, weft_attr_t **out_attrs,
                                    uint32_t *out_count);
/* NULL: the node has no such attribute. */
Onnx__AttributeProto *wefti_onnx_find_attribute(const Onnx__NodeProto *node, const char *name);
/* The tensor a Constant node holds. */
weft_status_t wefti_onnx_constant(wefti_onnx_file_t *file, const Onnx__NodeProto *node,
                                  wefti_arena_t *arena, weft_tensor_desc_t *out_desc);
/* A tensor of one integer, whose bytes may be unaligned; false: it is none. */
bool wefti_onnx_integer(const weft_tensor_desc_t *tensor, int64_t *out);

/* loss.c: which node is the loss. Everything by name, borrowed from the message. */
typedef struct wefti_onnx_loss {
    size_t node;                       /* index in the file */
    const char *loss, *logits, *label; /* label NULL if the node has one input */
} wefti_onnx_loss_t;
weft_status_t wefti_onnx_find_loss(const wefti_onnx_file_t *file, const char *wanted,
                                   wefti_onnx_loss_t *out_loss);

/* model.c */
/* The newest opset whose changes are handled: 22 to 28 add element types, attributes, operators. */
#define WEFTI_ONNX_NEWEST_OPSET 28
/* "node 3 'fc1' (Gemm)"; buffer of WEFTI_ONNX_LABEL_BYTES, returned. */
#define WEFTI_ONNX_LABEL_BYTES 192
const char *wefti_onnx_node_label(const Onnx__NodeProto *node, size_t index, char *buffer);
/* The name of a tensor, for messages. */
static inline const char *wefti_onnx_tensor_name(const Onnx__TensorProto *tensor)
{
    return tensor->name != NULL && tensor->name[0] != '\0' ? tensor->name : "(no name)";
}
/* Domain with "ai.onnx" and NULL as "". */
const char *wefti_onnx_domain(const char *domain);
/* Opset version the file imports for domain, 0 if it does not. */
int64_t wefti_onnx_opset(const Onnx__ModelProto *model, const char *domain);
/* inline.c: nodes that call functions of the model become the nodes of their bodies; then
 * sequences are replaced. */
weft_status_t wefti_onnx_inline_functions(wefti_onnx_file_t *file);
/* bags.c: loops that are nn.EmbeddingBag become operators of tensors. */
weft_status_t wefti_onnx_replace_bags(wefti_onnx_file_t *file);
/* sequences.c: SplitToSequence and SequenceAt become Split, Slice or Gather. */
weft_status_t wefti_onnx_replace_sequences(wefti_onnx_file_t *file);
/* Refuses what no part of Weft reads: sparse initializers, training info, versions. */
weft_status_t wefti_onnx_check_model(const wefti_onnx_file_t *file);
/* An error for an operator that is not in the registry, with names that are close. */
weft_status_t wefti_onnx_unknown_operator(const wefti_onnx_file_t *file,
                                          const Onnx__NodeProto *node, size_t index,
                                          const weft_registry_t *registry);
/* "; also Expand (16 nodes), CastLike (8 nodes)": all such operators of ONNX and Weft but one,
 * which may be NULL. */
void wefti_onnx_add_unknown(const wefti_onnx_file_t *file, const Onnx__NodeProto *but,
                            const weft_registry_t *registry, wefti_text_t *out);
/* Type of a graph input or output. */
weft_status_t wefti_onnx_value_type(const wefti_onnx_file_t *file, const Onnx__ValueInfoProto *info,
                                    const char *what, weft_tensor_desc_t *out_type,
                                    const char **out_dim_names);

/* wire.c: one field of a message that is not unpacked. */
typedef struct wefti_onnx_cursor {
    const uint8_t *at, *end;
} wefti_onnx_cursor_t;
typedef struct wefti_onnx_field {
    uint32_t id, wire;
    const uint8_t *payload; /* after the length, if there is one; else the value itself */
    size_t size_bytes;
    uint64_t value; /* of a varint */
} wefti_onnx_field_t;
/* The field at the cursor, which moves past it. Returns NULL, or what is wrong with it. */
const char *wefti_onnx_next_field(wefti_onnx_cursor_t *cursor, wefti_onnx_field_t *out);

/* The next field that is a message, a text or bytes; false: none, or damage. */
bool wefti_onnx_next_message(wefti_onnx_cursor_t *cursor, wefti_onnx_field_t *out);
static inline wefti_onnx_cursor_t wefti_onnx_inside(const wefti_onnx_field_t *field)
{
    return (wefti_onnx_cursor_t){field->payload, field->payload + field->size_bytes};
}

/* pack.c: editing and writing messages; everything new comes from the file's arena. */
/* A graph input or output; name is borrowed, a negative dimension has no value. NULL: no memory. */
Onnx__ValueInfoProto *wefti_onnx_make_info(wefti_arena_t *arena, const char *name,
                                           const weft_tensor_desc_t *type);
/* An attribute of one integer, or of a list of one; of a text. Names and texts are borrowed. NULL:
 * no memory. */
Onnx__AttributeProto *wefti_onnx_make_integer(wefti_arena_t *arena, const char *name, int64_t value,
                                              bool list);
Onnx__AttributeProto *wefti_onnx_make_text(wefti_arena_t *arena, const char *name,
                                           const char *text);
/* A node with one output, whose name it has; attribute may be NULL. NULL: no memory, or an input or
 * the output is NULL. */
Onnx__NodeProto *wefti_onnx_make_node(wefti_arena_t *arena, const char *op,
                                      const char *const *inputs, size_t count, const char *output,
                                      Onnx__AttributeProto *attribute);
/* Gives tensor the contents of desc (its data is borrowed), or none if data is NULL. */
void wefti_onnx_set_contents(Onnx__TensorProto *tensor, const weft_tensor_desc_t *desc);
/* Contents of every tensor that are still references become raw_data again. */
weft_status_t wefti_onnx_materialize(wefti_onnx_file_t *file);
/* Serializes the model; *out_bytes from the file's allocator. Above 2 GiB: WEFT_ERR_UNSUPPORTED. */
weft_status_t wefti_onnx_pack(wefti_onnx_file_t *file, uint8_t **out_bytes, size_t *out_size_bytes);

/* inference_form.c: training-only forms of operators become those for inference. A Reshape
 * whose constant shape begins with the batch takes it from its input instead. graph is the same
 * model, with shapes inferred and folded at the file's batch (batch 0: it is symbolic there). */
weft_status_t wefti_onnx_inference_form(wefti_onnx_file_t *file, const wefti_graph_t *graph,
                                        int64_t batch);

/* The same file: BatchNormalization and Dropout compute as in training. Adds an initializer. */
weft_status_t wefti_onnx_training_form(wefti_onnx_file_t *file);
#define WEFTI_ONNX_TRAINING_MODE "weft.training_mode"

/* foreign.c: definitions of opaque operators, by node; NULL where the registry has one. An error if
 * the file lacks types of their outputs. */
weft_status_t wefti_onnx_foreign(wefti_onnx_file_t *file, wefti_graph_t *graph,
                                 const weft_op_def_t ***out_defs, uint32_t *out_count);

/* devices.c: nodes, and the model, with configurations of several devices (ONNX 1.18). */
uint32_t wefti_onnx_count_device_configurations(const wefti_onnx_file_t *file);
/* The shardings of graph: what the nodes of the file ask of the devices. */
weft_status_t wefti_onnx_read_shardings(const wefti_onnx_file_t *file,
                                        const wefti_onnx_devices_t *devices, wefti_graph_t *graph);

/* parameters.c: floating-point initializers in file order, then parameters that the file lacks. A
 * value of an entry is the index of the initializer. In arena. */
weft_status_t wefti_onnx_parameters(wefti_onnx_file_t *file, wefti_arena_t *arena,
                                    wefti_parameter_t **out_parameters, uint32_t *out_count);

/* tied.c: an initializer that the exporter computed as the transpose of another one becomes a
 * Transpose of it, so that both are trained as one. The pairs are in file->ties. */
weft_status_t wefti_onnx_tie(wefti_onnx_file_t *file);

/* tensor_names.c: names that exporters make up for numbers of expressions and for tensors that they
 * computed: "/layer/Constant_output_0", "onnx::Mul_12", "val_12". */
bool wefti_onnx_is_made_up_name(const char *name);
bool wefti_onnx_is_module_path(const char *name);   /* "layer1.0.weight" */
const char *wefti_onnx_last_part(const char *name); /* "weight" */
/* "weight", "in_proj_bias", "cls_token", "w2": modules rarely keep buffers of such names. */
bool wefti_onnx_is_parameter_name(const char *name);
/* What modules of torch and Keras keep without training it. */
bool wefti_onnx_is_buffer_name(const char *name);
bool wefti_onnx_is_constant_name(const char *name); /* "causal_mask" */

/* unroll.c: If, Loop and Scan whose course is known become the nodes of their bodies. */
weft_status_t wefti_onnx_unroll(wefti_onnx_file_t *file);
/* import.c: what file.look is set to. */
weft_status_t wefti_onnx_look(wefti_onnx_file_t *file, const Onnx__GraphProto *graph,
                              const char *name, weft_tensor_desc_t *out);

/* What the initialization of training_info computes, by name of the initializer. */
typedef struct wefti_onnx_initials {
    const char **names;
    weft_tensor_desc_t *types; /* with contents */
    size_t count;
} wefti_onnx_initials_t;
/* training.c: NULL: the file's own contents. */
const weft_tensor_desc_t *wefti_onnx_initial(const wefti_onnx_initials_t *initials,
                                             const char *name);
/* training.c: what training_info, or an operator Gradient, states; everything from the message. */
typedef struct wefti_onnx_training {
    const char *loss;   /* NULL: the model has neither */
    const char *logits; /* the first output of the model for inference, or NULL */
    const char **trained;
    size_t trained_count;
    wefti_update_rule_t rule;
} wefti_onnx_training_t;
/* Joins graph and algorithm, and removes the nodes that compute gradients and updates. */
weft_status_t wefti_onnx_training(wefti_onnx_file_t *file, const wefti_onnx_initials_t *initials,
                                  wefti_onnx_training_t *out);
bool wefti_onnx_same_rule(const wefti_update_rule_t *a, const wefti_update_rule_t *b);
/* artifacts.c: removes what ONNX Runtime accumulates and updates by; states it in rule, which stays
 * as it is if the file states none. */
weft_status_t wefti_onnx_artifacts(wefti_onnx_file_t *file, wefti_update_rule_t *rule);

/* compiled.c: appends inputs, initializers and nodes of an algorithm to ModelProto.graph. */
weft_status_t wefti_onnx_join_algorithm(wefti_onnx_file_t *file, const Onnx__GraphProto *algorithm);
/* compiled.c: reading a compiled graph back. */
typedef struct wefti_onnx_compiled {
    size_t main_nodes, main_initializers; /* of ModelProto.graph; those of the updates follow */
    size_t node_count;
    uint32_t *ids; /* by position in the file: node of the graph, or WEFTI_NONE */
} wefti_onnx_compiled_t;
/* Joins nodes and initializers of the two graphs in ModelProto.graph. */
weft_status_t wefti_onnx_merge_training(wefti_onnx_file_t *file, wefti_onnx_compiled_t *compiled);
/* Versions of nodes where they are not the file's, else 0. */
weft_status_t wefti_onnx_compiled_versions(const wefti_onnx_import_params_t *params,
                                           wefti_onnx_file_t *file, int32_t **out_versions);
/* Applies the properties to the imported graph. */
weft_status_t wefti_onnx_compiled_apply(const wefti_onnx_import_params_t *params,
                                        wefti_onnx_file_t *file, wefti_graph_t *graph,
                                        const wefti_onnx_compiled_t *compiled);

#endif
