/* SPDX-License-Identifier: Apache-2.0 */
/*
 * label-smoothing: the loss of torch.nn.CrossEntropyLoss(label_smoothing=E).
 *
 * Matches losses of ONNX. Produces the operator of the same name in domain weft, whose attribute
 * label_smoothing the operator of the gradient takes over.
 */
#include "fusion/passes/passes.h"

#include "ops/op_facts.h"
#include "runtime/base/error.h"

weft_status_t wefti_pass_label_smoothing(wefti_graph_t *graph, double smoothing)
{
    const weft_attr_t attr = {
        .name = "label_smoothing", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)smoothing};
    uint32_t count = 0;
    if (wefti_graph_has_gradients(graph)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "label_smoothing",
                                 "must not be set: the model contains the gradients of its loss");
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const weft_op_def_t *def = graph->nodes[id].def;
        if (wefti_op_has(def, WEFT_FACT_LOSS) &&
            weft_registry_find_op(graph->registry, "weft", def->name, INT32_MAX) != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_graph_change_op(graph, id, "weft", def->name, 0));
            WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &attr));
            count++;
        }
    }
    return count > 0 ? WEFT_OK
                     : wefti_error_field(WEFT_ERR_UNSUPPORTED, "label_smoothing",
                                         "the model has no SoftmaxCrossEntropyLoss");
}

weft_status_t wefti_apply_label_smoothing(wefti_compiler_t *c)
{
    return wefti_pass_label_smoothing(c->graph, c->params.label_smoothing);
}
