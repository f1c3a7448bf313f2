/* SPDX-License-Identifier: Apache-2.0 */
/* Which node is the loss: the one that makes the output asked for, or the only loss operator there
 * is. */
#include "graph/onnx_internal.h"

#include <string.h>

#include "runtime/base/error.h"

static bool is_loss_operator(const Onnx__NodeProto *node)
{
    return node->op_type != NULL && wefti_onnx_domain(node->domain)[0] == '\0' &&
           (strcmp(node->op_type, "SoftmaxCrossEntropyLoss") == 0 ||
            strcmp(node->op_type, "NegativeLogLikelihoodLoss") == 0);
}

static bool makes(const Onnx__NodeProto *node, const char *name)
{
    for (size_t i = 0; i < node->n_output; i++) {
        if (name[0] != '\0' && strcmp(node->output[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static weft_status_t find_node(const wefti_onnx_file_t *file, const char *wanted, size_t *out_node)
{
    const Onnx__GraphProto *graph = file->model->graph;
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (wanted != NULL ? !makes(node, wanted) : !is_loss_operator(node)) {
            continue;
        }
        if (found != SIZE_MAX) {
            const Onnx__NodeProto *first = graph->node[found];
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT,
                "%s: several losses, '%s' and '%s' among them: choose one with --loss NAME",
                file->label, first->n_output > 0 ? first->output[0] : "",
                node->n_output > 0 ? node->output[0] : "");
        }
        found = i;
    }
    if (found == SIZE_MAX && wanted != NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "%s: no node makes the loss '%s'", file->label,
                           wanted);
    }
    if (found == SIZE_MAX) {
        return wefti_error(
            WEFT_ERR_NOT_FOUND,
            "%s: no loss: export the model together with its loss (a "
            "SoftmaxCrossEntropyLoss node), or name a scalar output with --loss NAME",
            file->label);
    }
    *out_node = found;
    return WEFT_OK;
}

weft_status_t wefti_onnx_find_loss(const wefti_onnx_file_t *file, const char *wanted,
                                   wefti_onnx_loss_t *out_loss)
{
    char label[WEFTI_ONNX_LABEL_BYTES];
    size_t index = 0;
    weft_status_t status = find_node(file, wanted, &index);
    if (status < 0) {
        return status;
    }
    const Onnx__NodeProto *node = file->model->graph->node[index];
    wefti_onnx_node_label(node, index, label);
    bool known = is_loss_operator(node);
    if (node->n_output < 1 || node->output[0][0] == '\0' || node->n_input < (known ? 2u : 1u) ||
        node->input[0][0] == '\0') {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s: the loss lacks an input or its output",
                           file->label, label);
    }
    for (size_t i = 0; known && i < node->n_attribute; i++) {
        const Onnx__AttributeProto *attribute = node->attribute[i];
        if (attribute->name != NULL && strcmp(attribute->name, "reduction") == 0 &&
            attribute->s.len == 4 && memcmp(attribute->s.data, "none", 4) == 0) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "%s: %s: reduction 'none' gives a loss per sample; use 'mean' or 'sum'",
                file->label, label);
        }
    }
    *out_loss = (wefti_onnx_loss_t){
        .node = index,
        .loss = wanted != NULL ? wanted : node->output[0],
        .logits = node->input[0],
        .label = node->n_input > 1 && node->input[1][0] != '\0' ? node->input[1] : NULL,
    };
    return WEFT_OK;
}
