/* SPDX-License-Identifier: Apache-2.0 */
/* Turns training forms of operators into those for inference, and back. */
#include "graph/onnx/internal.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Sets an integer attribute to 1; name is a literal. */
static weft_status_t set_attribute(wefti_onnx_file_t *file, Onnx__NodeProto *node, const char *name)
{
    Onnx__AttributeProto *attribute = wefti_onnx_find_attribute(node, name);
    if (attribute == NULL) {
        Onnx__AttributeProto **attributes =
            wefti_arena_array(&file->arena, node->n_attribute + 1, sizeof(Onnx__AttributeProto *));
        attribute = wefti_arena_alloc(&file->arena, sizeof(*attribute));
        WEFT_RETURN_IF_NO_MEMORY(attributes && attribute);
        if (node->n_attribute > 0) {
            memcpy(attributes, node->attribute, node->n_attribute * sizeof(void *));
        }
        onnx__attribute_proto__init(attribute);
        attribute->name = (char *)(uintptr_t)name;
        attributes[node->n_attribute++] = attribute;
        node->attribute = attributes;
    }
    attribute->has_type = 1;
    attribute->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
    attribute->has_i = 1;
    attribute->i = 1;
    return WEFT_OK;
}

static weft_status_t relax_dropout(wefti_onnx_file_t *file, Onnx__NodeProto *node, int64_t opset)
{
    if (opset < 7) {
        return set_attribute(file, node, "is_test");
    }
    /* Without its third input, training_mode, it is the identity. */
    node->n_input = node->n_input > 1 ? 1 : node->n_input;
    return WEFT_OK;
}

static weft_status_t relax_normalization(wefti_onnx_file_t *file, Onnx__NodeProto *node,
                                         int64_t opset)
{
    if (opset < 7) {
        WEFT_RETURN_IF_ERROR(set_attribute(file, node, "is_test"));
    }
    Onnx__AttributeProto *training = wefti_onnx_find_attribute(node, "training_mode");
    if (training != NULL) {
        training->i = 0;
    }
    node->n_output = node->n_output > 1 ? 1 : node->n_output; /* the rest are running statistics */
    return WEFT_OK;
}

/* The number in place of the first one of a constant shape that holds the batch: 0, which is "as in
 * the input", or -1, "what is left", if the batch was merged with other dimensions, else 1. */
static int64_t free_first(const weft_tensor_desc_t *data, const int64_t *shape, uint32_t count,
                          int64_t batch)
{
    if (shape[0] == batch && data->dims[0] == batch) {
        return 0;
    }
    bool whole = shape[0] > 0 && shape[0] % batch == 0;
    for (uint32_t i = 0; i < count; i++) {
        whole = whole && shape[i] > 0;
    }
    return whole ? -1 : 1;
}

/* The shape in the folded graph, if it is a constant list that holds the batch, with its first
 * number replaced; else NULL. In arena. */
static int64_t *batch_shape(wefti_onnx_file_t *file, const wefti_graph_t *graph,
                            const Onnx__NodeProto *node, int64_t batch, uint32_t *out_count)
{
    uint32_t output = wefti_graph_find_value(graph, node->output[0]);
    if (output == WEFTI_NONE || graph->values[output].producer == WEFTI_NONE) {
        return NULL;
    }
    const wefti_node_t *at = &graph->nodes[graph->values[output].producer];
    if (at->input_count < 2 || at->inputs[0] == WEFTI_NONE || at->inputs[1] == WEFTI_NONE) {
        return NULL;
    }
    const weft_tensor_desc_t *data = &graph->values[at->inputs[0]].type;
    const weft_tensor_desc_t *shape = &graph->values[at->inputs[1]].type;
    if (shape->data == NULL || shape->dtype != WEFT_DTYPE_I64 || shape->rank != 1 ||
        shape->dims[0] < 1 || shape->dims[0] > WEFT_MAX_DIMS || data->rank < 1) {
        return NULL;
    }
    *out_count = (uint32_t)shape->dims[0];
    int64_t *copy = wefti_arena_memdup(&file->arena, shape->data, *out_count * sizeof(*copy));
    if (copy == NULL) {
        return NULL; /* the arena has failed: the next allocation reports it */
    }
    int64_t first = free_first(data, copy, *out_count, batch);
    copy[0] = first;
    return first != 1 ? copy : NULL;
}

/* A new initializer with shape. */
static weft_status_t add_shape(wefti_onnx_file_t *file, const wefti_graph_t *graph, int64_t *shape,
                               uint32_t count, const char *output, char **out_name)
{
    Onnx__GraphProto *proto = file->model->graph;
    Onnx__TensorProto *tensor = wefti_arena_alloc(&file->arena, sizeof(*tensor));
    int64_t *dims = wefti_arena_array(&file->arena, 1, sizeof(*dims));
    char *name = wefti_arena_printf(&file->arena, "%s.shape", output);
    for (uint32_t i = 2; name != NULL && wefti_graph_find_value(graph, name) != WEFTI_NONE; i++) {
        name = wefti_arena_printf(&file->arena, "%s.shape.%u", output, i);
    }
    WEFT_RETURN_IF_NO_MEMORY(tensor && dims && name);
    onnx__tensor_proto__init(tensor);
    tensor->name = name;
    tensor->has_data_type = 1;
    tensor->data_type = wefti_onnx_data_type(WEFT_DTYPE_I64);
    tensor->n_dims = 1;
    tensor->dims = dims;
    dims[0] = count;
    tensor->n_int64_data = count;
    tensor->int64_data = shape;
    proto->initializer[proto->n_initializer++] = tensor;
    if (file->model->ir_version < 4) {
        file->model->ir_version = 4; /* older versions list every initializer as an input */
    }
    *out_name = name;
    return WEFT_OK;
}

static weft_status_t free_batch(wefti_onnx_file_t *file, const wefti_graph_t *graph,
                                Onnx__NodeProto *node, int64_t batch)
{
    Onnx__AttributeProto *allow_zero = wefti_onnx_find_attribute(node, "allowzero");
    uint32_t count = 0;
    int64_t *shape = node->n_input > 1 && node->n_output > 0
                         ? batch_shape(file, graph, node, batch, &count)
                         : NULL;
    if (shape == NULL) {
        return WEFT_OK;
    }
    if (allow_zero != NULL && allow_zero->i != 0) { /* a zero would be a dimension of size zero */
        for (uint32_t i = 1; i < count; i++) {
            if (shape[i] == 0) {
                return WEFT_OK;
            }
        }
        allow_zero->i = 0;
    }
    return add_shape(file, graph, shape, count, node->output[0], &node->input[1]);
}

/* Room for one more initializer per node. */
static weft_status_t reserve_shapes(wefti_onnx_file_t *file)
{
    Onnx__GraphProto *proto = file->model->graph;
    size_t n = proto->n_initializer;
    Onnx__TensorProto **all =
        wefti_arena_array(&file->arena, n + proto->n_node + 1, sizeof(Onnx__TensorProto *));
    WEFT_RETURN_IF_NO_MEMORY(all);
    if (n > 0) {
        memcpy(all, proto->initializer, n * sizeof(void *));
    }
    proto->initializer = all;
    return WEFT_OK;
}

/* Operators that differ in training, such as MaxPoolMask of a compiled graph. */
static void use_evaluation_form(const wefti_onnx_file_t *file, Onnx__NodeProto *node)
{
    const weft_op_def_t *def = weft_registry_find_op(
        file->registry, wefti_onnx_domain(node->domain), node->op_type, INT32_MAX);
    const weft_op_ref_t form = def != NULL ? wefti_op_facts(def).evaluation : (weft_op_ref_t){0};
    if (form.name == NULL) {
        return;
    }
    def = weft_registry_find_op(file->registry, form.domain, form.name, INT32_MAX);
    node->domain = (char *)(uintptr_t)form.domain;
    node->op_type = (char *)(uintptr_t)form.name;
    node->n_attribute = def != NULL && def->attr_count == 0 ? 0 : node->n_attribute;
    size_t most = def != NULL ? def->inputs_max : 1;
    node->n_input = node->n_input > most ? most : node->n_input;
    node->n_output = node->n_output > 1 ? 1 : node->n_output;
}

weft_status_t wefti_onnx_inference_form(wefti_onnx_file_t *file, const wefti_graph_t *graph,
                                        int64_t batch)
{
    Onnx__GraphProto *proto = file->model->graph;
    int64_t opset = wefti_onnx_opset(file->model, "");
    weft_status_t status = reserve_shapes(file);
    for (size_t i = 0; i < proto->n_node && status == WEFT_OK; i++) {
        Onnx__NodeProto *node = proto->node[i];
        use_evaluation_form(file, node);
        if (wefti_onnx_domain(node->domain)[0] != '\0') {
            continue;
        }
        if (strcmp(node->op_type, "Dropout") == 0) {
            status = relax_dropout(file, node, opset);
        } else if (strcmp(node->op_type, "BatchNormalization") == 0) {
            status = relax_normalization(file, node, opset);
        } else if (strcmp(node->op_type, "Reshape") == 0 && batch > 0) {
            status = free_batch(file, graph, node, batch);
        }
    }
    return status;
}

/* A boolean initializer that is true; *out_name is its name. */
static weft_status_t add_true(wefti_onnx_file_t *file, char **out_name)
{
    Onnx__GraphProto *proto = file->model->graph;
    Onnx__TensorProto *tensor = wefti_arena_alloc(&file->arena, sizeof(*tensor));
    int32_t *data = wefti_arena_array(&file->arena, 1, sizeof(*data));
    WEFT_RETURN_IF_ERROR(reserve_shapes(file));
    WEFT_RETURN_IF_NO_MEMORY(tensor && data);
    onnx__tensor_proto__init(tensor);
    data[0] = 1;
    *out_name = tensor->name = (char *)(uintptr_t)WEFTI_ONNX_TRAINING_MODE;
    tensor->has_data_type = 1;
    tensor->data_type = wefti_onnx_data_type(WEFT_DTYPE_BOOL);
    tensor->n_int32_data = 1;
    tensor->int32_data = data;
    proto->initializer[proto->n_initializer++] = tensor;
    return WEFT_OK;
}

/* ratio stays; training_mode is the third input. */
static weft_status_t train_dropout(wefti_onnx_file_t *file, Onnx__NodeProto *node, char *mode)
{
    char **inputs = wefti_arena_array(&file->arena, 3, sizeof(char *));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    for (size_t i = 0; i < 2; i++) {
        inputs[i] = i < node->n_input ? node->input[i] : (char *)(uintptr_t) "";
    }
    inputs[2] = mode;
    node->input = inputs;
    node->n_input = 3;
    return WEFT_OK;
}

weft_status_t wefti_onnx_training_form(wefti_onnx_file_t *file)
{
    Onnx__GraphProto *proto = file->model->graph;
    int64_t opset = wefti_onnx_opset(file->model, "");
    char *mode = NULL;
    for (size_t i = 0; i < proto->n_node; i++) {
        Onnx__NodeProto *node = proto->node[i];
        const char *op = node->op_type != NULL ? node->op_type : "";
        char label[WEFTI_ONNX_LABEL_BYTES];
        if (wefti_onnx_domain(node->domain)[0] != '\0') {
            continue;
        }
        if (strcmp(op, "BatchNormalization") == 0 && opset < 14) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: %s: the training form needs opset 14 or newer, the model "
                               "imports %lld",
                               file->label, wefti_onnx_node_label(node, i, label),
                               (long long)opset);
        }
        if (strcmp(op, "BatchNormalization") == 0) {
            WEFT_RETURN_IF_ERROR(set_attribute(file, node, "training_mode"));
        } else if (strcmp(op, "Dropout") == 0 && opset >= 12) { /* older ones drop in training */
            if (mode == NULL) {
                WEFT_RETURN_IF_ERROR(add_true(file, &mode));
            }
            WEFT_RETURN_IF_ERROR(train_dropout(file, node, mode));
        }
    }
    return WEFT_OK;
}
