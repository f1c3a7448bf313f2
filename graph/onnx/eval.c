/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The evaluation model: the part of the file that computes the logits, for any batch, without the
 * weights that training replaces. The message itself is edited, so names, attributes and metadata
 * stay as the exporter wrote them.
 */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

typedef struct eval {
    const wefti_onnx_import_params_t *params;
    const weft_allocator_t *allocator;
    const weft_registry_t *registry;
    wefti_onnx_file_t file;
    wefti_graph_t *graph; /* the same file, for types */
    wefti_name_index_t needed, trained;
    const char *logits;
    int64_t batch;    /* the file's, 0: symbolic */
    bool fixed;       /* for the batch of the file only */
    bool batch_leads; /* the first dimension of the logits is the batch */
} eval_t;

/* The batch is the first dimension of the label, or else of the first input. */
static void find_batch(eval_t *eval)
{
    const wefti_graph_t *graph = eval->graph;
    uint32_t from =
        graph->label != WEFTI_NONE && graph->values[graph->label].kind == WEFTI_VALUE_INPUT
            ? graph->label
        : graph->input_count > 0 ? graph->inputs[0]
                                 : WEFTI_NONE;
    if (from != WEFTI_NONE && graph->values[from].type.rank > 0 &&
        graph->values[from].type.dims[0] > 0) {
        eval->batch = graph->values[from].type.dims[0];
    }
}

static bool has_batch(const eval_t *eval, const weft_tensor_desc_t *type)
{
    return type->rank > 0 && type->dims[0] == (eval->batch > 0 ? eval->batch : -1);
}

static weft_status_t need(eval_t *eval, const char *name)
{
    const char *unique;
    if (name[0] == '\0' || wefti_name_index_find(&eval->needed, name) != WEFTI_NONE) {
        return WEFT_OK;
    }
    return wefti_name_index_add(&eval->needed, &eval->file.arena, name, 0, &unique);
}

static bool is_needed(const eval_t *eval, const char *name)
{
    return name != NULL && wefti_name_index_find(&eval->needed, name) != WEFTI_NONE;
}

/* Where a compiled graph gathers weights before it reads them, the weights themselves are read. */
static void read_weights(eval_t *eval)
{
    const wefti_graph_t *graph = eval->graph;
    for (size_t i = 0; i < eval->file.model->graph->n_node; i++) {
        Onnx__NodeProto *node = eval->file.model->graph->node[i];
        for (size_t j = 0; j < node->n_input; j++) {
            uint32_t v = wefti_graph_find_value(graph, node->input[j]);
            uint32_t producer = wefti_producer(graph, v);
            if (producer != WEFTI_NONE && wefti_node_is_flat_gather(&graph->nodes[producer])) {
                uint32_t at = graph->values[v].producer_output + 1;
                v = graph->nodes[producer].inputs[at];
                node->input[j] = (char *)(uintptr_t)graph->values[v].name;
            }
        }
    }
}

/* The input that the labels of the loss come from, perhaps reshaped. */
static uint32_t label_input(const wefti_graph_t *graph)
{
    uint32_t at = graph->label;
    for (uint32_t producer; (producer = wefti_producer(graph, at)) != WEFTI_NONE;) {
        at = graph->nodes[producer].input_count > 0 ? graph->nodes[producer].inputs[0] : WEFTI_NONE;
    }
    return at;
}

static bool takes_first_dimension(const Onnx__NodeProto *shape)
{
    const Onnx__AttributeProto *start = wefti_onnx_find_attribute(shape, "start");
    const Onnx__AttributeProto *end = wefti_onnx_find_attribute(shape, "end");
    return (start == NULL || start->i == 0) && end != NULL && end->i == 1;
}

/* torch.export takes the batch from any input, also from the label, which this model has no use
 * for. It is taken from the first input that is not the label. */
static void read_batch_elsewhere(eval_t *eval)
{
    const wefti_graph_t *graph = eval->graph;
    uint32_t label = label_input(graph), first = WEFTI_NONE;
    for (uint32_t i = graph->input_count; i-- > 0;) {
        if (graph->inputs[i] != label && has_batch(eval, &graph->values[graph->inputs[i]].type)) {
            first = graph->inputs[i];
        }
    }
    for (size_t i = 0; i < eval->file.model->graph->n_node && first != WEFTI_NONE; i++) {
        Onnx__NodeProto *node = eval->file.model->graph->node[i];
        uint32_t from =
            node->n_input == 1 ? wefti_graph_find_value(graph, node->input[0]) : WEFTI_NONE;
        if (strcmp(node->op_type, "Shape") == 0 && takes_first_dimension(node) &&
            from != WEFTI_NONE && graph->values[from].kind == WEFTI_VALUE_INPUT &&
            has_batch(eval, &graph->values[from].type)) {
            node->input[0] = (char *)(uintptr_t)graph->values[first].name;
        }
    }
}

/* Keeps the nodes that the logits depend on: one pass from the end, as nodes are in topological
 * order. */
static weft_status_t keep_needed(eval_t *eval)
{
    Onnx__GraphProto *graph = eval->file.model->graph;
    WEFT_RETURN_IF_ERROR(need(eval, eval->logits));
    size_t kept = graph->n_node;
    for (size_t i = graph->n_node; i-- > 0;) {
        Onnx__NodeProto *node = graph->node[i];
        bool wanted = false;
        for (size_t j = 0; j < node->n_output; j++) {
            wanted = wanted || is_needed(eval, node->output[j]);
        }
        if (!wanted) {
            continue;
        }
        for (size_t j = 0; j < node->n_input; j++) {
            WEFT_RETURN_IF_ERROR(need(eval, node->input[j]));
        }
        graph->node[--kept] = node;
    }
    graph->n_node -= kept;
    graph->node += kept;
    size_t initializers = 0;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        if (is_needed(eval, graph->initializer[i]->name)) {
            graph->initializer[initializers++] = graph->initializer[i];
        }
    }
    graph->n_initializer = initializers;
    return WEFT_OK;
}

static void name_batch(Onnx__ValueInfoProto *info)
{
    Onnx__TensorShapeProto__Dimension *dim = info->type->tensor_type->shape->dim[0];
    dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
    dim->dim_param = (char *)(uintptr_t) "batch";
}

static void keep_inputs(eval_t *eval)
{
    Onnx__GraphProto *graph = eval->file.model->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->n_input; i++) {
        Onnx__ValueInfoProto *info = graph->input[i];
        if (!is_needed(eval, info->name)) {
            continue;
        }
        uint32_t value = wefti_graph_find_value(eval->graph, info->name);
        const wefti_value_t *at = &eval->graph->values[value];
        /* Old files list initializers among the inputs; these have no batch. */
        if (at->kind == WEFTI_VALUE_INPUT && has_batch(eval, &at->type)) {
            name_batch(info);
        }
        graph->input[kept++] = info;
    }
    graph->n_input = kept;
}

static weft_status_t set_output(eval_t *eval, const weft_tensor_desc_t *type)
{
    Onnx__GraphProto *graph = eval->file.model->graph;
    Onnx__ValueInfoProto **outputs =
        wefti_arena_array(&eval->file.arena, 1, sizeof(Onnx__ValueInfoProto *));
    Onnx__ValueInfoProto *info = wefti_onnx_make_info(&eval->file.arena, eval->logits, type);
    WEFT_RETURN_IF_NO_MEMORY(info && outputs);
    outputs[0] = info;
    graph->output = outputs;
    graph->n_output = 1;
    if (type->rank > 0 && type->dims[0] < 0 && eval->batch_leads) {
        name_batch(info);
    }
    return WEFT_OK;
}

/* Removes the contents of trained weights; all other contents become raw_data again. */
static weft_status_t empty_trained(eval_t *eval)
{
    Onnx__GraphProto *graph = eval->file.model->graph;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        Onnx__TensorProto *tensor = graph->initializer[i];
        weft_tensor_desc_t desc = {.dtype = wefti_onnx_dtype(tensor->data_type)};
        bool trained = eval->params->trained != NULL
                           ? wefti_name_index_find(&eval->trained, tensor->name) != WEFTI_NONE
                           : wefti_dtype_is_floating(desc.dtype);
        if (trained) {
            wefti_onnx_set_contents(tensor, &desc);
        }
    }
    return wefti_onnx_materialize(&eval->file);
}

static weft_status_t import_packed(eval_t *eval, const uint8_t *bytes, size_t size_bytes,
                                   wefti_graph_t **out_graph)
{
    wefti_onnx_import_params_t params = {
        .bytes = bytes, .size_bytes = size_bytes, .loss_optional = true, .holes = true};
    weft_status_t status = wefti_onnx_import(&params, eval->allocator, eval->registry, out_graph);
    if (status < 0) {
        wefti_error_prefix(status, "evaluation model of %s", eval->file.label);
    }
    return status;
}

/* Only first dimensions are symbolic, so the batch alone binds all shapes. */
static bool only_batch_is_open(const wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->input_count; i++) {
        const weft_tensor_desc_t *type = &graph->values[graph->inputs[i]].type;
        for (uint32_t d = 1; d < type->rank; d++) {
            if (type->dims[d] < 0) {
                return false;
            }
        }
    }
    return graph->input_count > 0;
}

static weft_status_t bind_at(eval_t *eval, wefti_graph_t *graph, int64_t batch,
                             weft_tensor_desc_t *type)
{
    weft_status_t status = !eval->fixed && only_batch_is_open(graph)
                               ? wefti_graph_bind_shapes(graph, batch, NULL, 0)
                               : wefti_graph_fold_constants(graph);
    *type = graph->values[wefti_graph_find_value(graph, eval->logits)].type;
    return status >= 0 || eval->fixed
               ? status
               : wefti_error_prefix(status, "%s: evaluation model depends on the batch size",
                                    eval->file.label);
}

/* Dimensions that depend on the batch become symbolic; there is one, or a constant holds the old
 * batch. */
static weft_status_t open_dims(const eval_t *eval, const weft_tensor_desc_t *other,
                               weft_tensor_desc_t *type)
{
    bool open = type->rank != other->rank;
    for (uint32_t d = 0; d < type->rank && type->rank == other->rank; d++) {
        open = open || type->dims[d] < 0 || type->dims[d] != other->dims[d];
        type->dims[d] = type->dims[d] == other->dims[d] ? type->dims[d] : -1;
    }
    return open && type->rank == other->rank
               ? WEFT_OK
               : wefti_error(WEFT_ERR_UNSUPPORTED,
                             "%s: logits '%s': the shape does not depend on the batch size",
                             eval->file.label, eval->logits);
}

/* Binds the model to two batch sizes: a constant that still holds the old one fails here. Sets the
 * type of the logits with symbolic dimensions. */
static weft_status_t check_batches(eval_t *eval, const uint8_t *bytes, size_t size_bytes,
                                   weft_tensor_desc_t *out_type)
{
    weft_status_t status;
    wefti_graph_t *graph = NULL, *copy = NULL;
    weft_tensor_desc_t other;
    WEFT_TRY(status, import_packed(eval, bytes, size_bytes, &graph), done);
    WEFT_TRY(status, wefti_graph_clone(graph, &copy), done);
    WEFT_TRY(status, bind_at(eval, copy, 3, &other), done);
    WEFT_TRY(status, bind_at(eval, graph, 5, out_type), done);
    eval->batch_leads = other.rank > 0 && other.dims[0] == 3;
    if (out_type->dtype == WEFT_DTYPE_NONE) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "%s: cannot infer the shape of logits '%s'",
                             eval->file.label, eval->logits);
    } else if (!eval->fixed) {
        status = open_dims(eval, &other, out_type);
    }
done:
    wefti_graph_destroy(copy);
    wefti_graph_destroy(graph);
    return status;
}

static weft_status_t pack_with_output(eval_t *eval, uint8_t **out_bytes, size_t *out_size_bytes)
{
    uint8_t *bytes = NULL;
    size_t size_bytes = 0;
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32}; /* until the shape is known */
    weft_status_t status;
    WEFT_TRY(status, set_output(eval, &type), done);
    type = (weft_tensor_desc_t){0};
    WEFT_TRY(status, wefti_onnx_pack(&eval->file, &bytes, &size_bytes), done);
    status = check_batches(eval, bytes, size_bytes, &type);
    wefti_free(eval->allocator, bytes);
    bytes = NULL;
    if (status < 0) {
        return status;
    }
    WEFT_TRY(status, set_output(eval, &type), done);
    WEFT_TRY(status, wefti_onnx_pack(&eval->file, &bytes, &size_bytes), done);
    *out_bytes = bytes;
    *out_size_bytes = size_bytes;
done:
    return status;
}

/* Properties that mark a file as a compiled graph. */
static void drop_own_properties(Onnx__ModelProto *model)
{
    size_t kept = 0;
    for (size_t i = 0; i < model->n_metadata_props; i++) {
        const char *key = model->metadata_props[i]->key;
        if (key == NULL || strncmp(key, "weft.", 5) != 0) {
            model->metadata_props[kept++] = model->metadata_props[i];
        }
    }
    model->n_metadata_props = kept;
}

static weft_status_t edit(eval_t *eval)
{
    Onnx__GraphProto *graph = eval->file.model->graph;
    weft_status_t status;
    const char *unique;
    for (size_t i = 0; i < eval->params->trained_count; i++) {
        WEFT_TRY(status,
                 wefti_name_index_add(&eval->trained, &eval->file.arena, eval->params->trained[i],
                                      0, &unique),
                 fail);
    }
    uint32_t logits = eval->graph->logits;
    eval->logits = logits == WEFTI_NONE ? "" : eval->graph->values[logits].name;
    if (logits == WEFTI_NONE || eval->graph->values[logits].kind != WEFTI_VALUE_NODE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: input '%s' of the loss is not the output of a node",
                           eval->file.label, eval->logits);
    }
    if (!eval->fixed) {
        find_batch(eval);
    }
    if (eval->batch > 0) {
        WEFT_TRY(status, wefti_graph_fold_constants(eval->graph), fail_labelled);
    }
    WEFT_TRY(status, wefti_onnx_inference_form(&eval->file, eval->graph, eval->batch), fail);
    read_weights(eval);
    read_batch_elsewhere(eval);
    WEFT_TRY(status, keep_needed(eval), fail);
    keep_inputs(eval);
    graph->n_value_info = 0; /* holds the old batch */
    eval->file.model->n_training_info = 0;
    drop_own_properties(eval->file.model);
    graph->n_quantization_annotation = 0;
    return empty_trained(eval);
fail_labelled:
    wefti_error_prefix(status, "%s", eval->file.label);
fail:
    return status;
}

static weft_status_t make(eval_t *eval, void **out_bytes, size_t *out_size_bytes)
{
    uint8_t *bytes = NULL;
    weft_status_t status;
    const wefti_onnx_import_params_t *params = eval->params;
    /* The import has checked all that the edits below rely on: names, order, attributes. */
    WEFT_TRY(status, wefti_onnx_import(params, eval->allocator, eval->registry, &eval->graph),
             fail);
    WEFT_TRY(status, wefti_onnx_file_open(params, eval->allocator, &eval->file), fail);
    eval->file.registry = eval->registry;
    eval->file.look = wefti_onnx_look;
    WEFT_TRY(status, wefti_onnx_inline_functions(&eval->file), close);
    if (params->compiled == NULL && !params->loss_optional) { /* as the import does */
        WEFT_TRY(status, wefti_onnx_tie(&eval->file), close);
        WEFT_TRY(status, wefti_onnx_artifacts(&eval->file, &(wefti_update_rule_t){0}), close);
    }
    eval->file.model->n_functions = 0;
    wefti_name_index_init(&eval->needed, eval->file.arena.allocator);
    wefti_name_index_init(&eval->trained, eval->file.arena.allocator);
    status = edit(eval);
    if (status == WEFT_OK) {
        status = pack_with_output(eval, &bytes, out_size_bytes);
    }
    *out_bytes = bytes;
    wefti_name_index_deinit(&eval->needed);
    wefti_name_index_deinit(&eval->trained);
close:
    wefti_onnx_file_close(&eval->file);
fail:
    wefti_graph_destroy(eval->graph);
    return status;
}

weft_status_t wefti_onnx_eval_model(const wefti_onnx_import_params_t *params,
                                    const weft_allocator_t *allocator,
                                    const weft_registry_t *registry, void **out_bytes,
                                    size_t *out_size_bytes, bool *out_fixed)
{
    eval_t eval = {.params = params, .allocator = allocator, .registry = registry};
    *out_bytes = NULL;
    *out_fixed = false;
    weft_status_t status = make(&eval, out_bytes, out_size_bytes);
    if (status == WEFT_OK || status == WEFT_ERR_NO_MEMORY || eval.batch == 0) {
        return status;
    }
    char why[WEFTI_ERROR_TEXT_BYTES];
    snprintf(why, sizeof why, "%s", weft_last_error());
    eval = (eval_t){.params = params, .allocator = allocator, .registry = registry, .fixed = true};
    weft_status_t again = make(&eval, out_bytes, out_size_bytes);
    *out_fixed = again == WEFT_OK;
    wefti_error(status, "%s", why);
    return again == WEFT_OK || again == WEFT_ERR_NO_MEMORY ? again : status;
}
