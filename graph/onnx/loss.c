/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the loss node: the producer of the requested output, or the only loss operator. */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <string.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define NAMES_BYTES 300

static bool is_loss_operator(const wefti_onnx_file_t *file, const Onnx__NodeProto *node)
{
    const char *domain = wefti_onnx_domain(node->domain);
    const weft_op_def_t *def =
        weft_registry_find_op(file->registry, domain, node->op_type != NULL ? node->op_type : "",
                              (int32_t)wefti_onnx_opset(file->model, domain));
    return def != NULL && wefti_op_has(def, WEFT_FACT_LOSS);
}

static bool produces(const Onnx__NodeProto *node, const char *name)
{
    for (size_t i = 0; i < node->n_output; i++) {
        if (name[0] != '\0' && strcmp(node->output[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Appends a quoted name to the list in buffer if it fits. */
static size_t add_candidate(char *buffer, size_t used, const char *name)
{
    int n =
        name == NULL || name[0] == '\0' || used + 1 >= NAMES_BYTES
            ? 0
            : snprintf(buffer + used, NAMES_BYTES - used, "%s'%.60s'", used > 0 ? ", " : "", name);
    return n > 0 ? used + (size_t)n : used;
}

/* Outputs of loss nodes, or the graph's outputs where there is no loss node. */
static const char *list_losses(const wefti_onnx_file_t *file, char *buffer)
{
    const Onnx__GraphProto *graph = file->model->graph;
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (is_loss_operator(file, node) && node->n_output > 0) {
            used = add_candidate(buffer, used, node->output[0]);
        }
    }
    for (size_t i = 0; i < graph->n_output && buffer[0] == '\0'; i++) {
        used = add_candidate(buffer, used, graph->output[i]->name);
    }
    return buffer[0] != '\0' ? buffer : "none";
}

weft_status_t wefti_error_no_loss(const char *model)
{
    return wefti_error_field(
        WEFT_ERR_NOT_FOUND, "loss",
        "not set, and %s has no loss node (SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss); "
        "export the model with its loss, or name a scalar output",
        model);
}

static weft_status_t find_node(const wefti_onnx_file_t *file, const char *wanted, size_t *out_node)
{
    const Onnx__GraphProto *graph = file->model->graph;
    size_t found = SIZE_MAX;
    char names[NAMES_BYTES];
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (wanted != NULL ? !produces(node, wanted) : !is_loss_operator(file, node)) {
            continue;
        }
        if (found != SIZE_MAX) {
            return wanted != NULL
                       ? wefti_error(WEFT_ERR_FORMAT, "%s: duplicate definition of value '%s'",
                                     file->label, wanted)
                       : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "loss",
                                           "not set, but %s has several loss nodes: %s",
                                           file->label, list_losses(file, names));
        }
        found = i;
    }
    if (found == SIZE_MAX && wanted != NULL) {
        return wefti_error_field(WEFT_ERR_NOT_FOUND, "loss",
                                 "no node of %s produces '%s'; candidates: %s", file->label, wanted,
                                 list_losses(file, names));
    }
    if (found == SIZE_MAX) {
        return wefti_error_no_loss(file->label);
    }
    *out_node = found;
    return WEFT_OK;
}

/* What the loss reads may be a part of the logits, or computed from them: weft.export, and models
 * of transformers, name them as an output. */
static bool names_logits(const wefti_onnx_file_t *file)
{
    const Onnx__GraphProto *graph = file->model->graph;
    for (size_t i = 0; i < graph->n_output; i++) {
        if (graph->output[i]->name != NULL && strcmp(graph->output[i]->name, "logits") == 0) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_onnx_find_loss(const wefti_onnx_file_t *file, const char *wanted,
                                   wefti_onnx_loss_t *out_loss)
{
    char label[WEFTI_ONNX_LABEL_BYTES];
    size_t index = 0;
    WEFT_RETURN_IF_ERROR(find_node(file, wanted, &index));
    const Onnx__NodeProto *node = file->model->graph->node[index];
    wefti_onnx_node_label(node, index, label);
    bool known = is_loss_operator(file, node);
    if (node->n_output < 1 || node->output[0][0] == '\0' || node->n_input < (known ? 2u : 1u) ||
        node->input[0][0] == '\0') {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s: loss node without an input or an output",
                           file->label, label);
    }
    for (size_t i = 0; known && i < node->n_attribute; i++) {
        const Onnx__AttributeProto *attribute = node->attribute[i];
        if (attribute->name != NULL && strcmp(attribute->name, "reduction") == 0 &&
            attribute->s.len == 4 && memcmp(attribute->s.data, "none", 4) == 0) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: %s: unsupported reduction 'none': the loss must be a scalar; "
                               "use 'mean' or 'sum'",
                               file->label, label);
        }
    }
    *out_loss = (wefti_onnx_loss_t){
        .node = index,
        .loss = wanted != NULL ? wanted : node->output[0],
        .logits = node->input[0],
        .label = node->n_input > 1 && node->input[1][0] != '\0' ? node->input[1] : NULL,
    };
    if (names_logits(file) && strcmp(out_loss->loss, "logits") != 0) {
        out_loss->logits = "logits";
        out_loss->label = known ? out_loss->label : NULL;
    }
    return WEFT_OK;
}
