/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/autodiff/differentiate.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

weft_status_t wefti_diff_dropout(wefti_diff_t *diff)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0);
    const wefti_node_t *forward = wefti_diff_node(diff);
    if (!wefti_diff_wants(diff, 0) || grad == WEFTI_NONE) {
        return WEFT_OK;
    }
    if (wefti_op_has(forward->def, WEFT_FACT_DROPOUT)) { /* passes its input on */
        return wefti_diff_give(diff, 0, grad);
    }
    uint32_t inputs[] = {grad, WEFTI_NONE};
    const weft_attr_t *ratio = wefti_node_attr(forward, "ratio");
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "DropoutGrad",
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = ratio,
                          .attr_count = ratio == NULL ? 0 : 1};
    WEFT_RETURN_IF_ERROR(wefti_diff_need_output(diff, "weft", "DropoutMask", 1, &inputs[1]));
    return wefti_diff_give_op(diff, 0, &op);
}
