/* SPDX-License-Identifier: Apache-2.0 */
/* Types of the outputs and cost of an operator, by the function of its definition or by its
 * rules. */
#include "ops/op_infer.h"

#include "runtime/base/error.h"

static weft_status_t apply_rule(const weft_output_rule_t *rule, weft_node_desc_t *node,
                                uint32_t index)
{
    const weft_tensor_desc_t *like =
        wefti_infer_input(node, rule->like < 0 ? 0u : (uint32_t)rule->like);
    weft_tensor_desc_t y = {.dtype = rule->dtype, .rank = rule->rank};
    if (like == NULL && (rule->like >= 0 || rule->dtype == WEFT_DTYPE_NONE)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "output %u has the shape of input %d, which is missing", index,
                           rule->like < 0 ? 0 : rule->like);
    }
    if (rule->like >= 0) {
        y = *like;
        y.data = NULL;
    }
    y.dtype = rule->dtype != WEFT_DTYPE_NONE ? rule->dtype : like->dtype;
    for (uint32_t d = 0; rule->like < 0 && d < rule->rank; d++) {
        y.dims[d] = rule->dims[d];
        if (rule->of_input[d] < 0) {
            continue;
        }
        const weft_tensor_desc_t *from = wefti_infer_input(node, (uint32_t)rule->of_input[d]);
        if (from == NULL || rule->dims[d] < 0 || rule->dims[d] >= from->rank) {
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT,
                "dimension %u of output %u refers to a dimension that input %d does not have", d,
                index, rule->of_input[d]);
        }
        y.dims[d] = from->dims[rule->dims[d]];
    }
    wefti_infer_set_like(node, index, &y);
    return WEFT_OK;
}

weft_status_t wefti_op_infer(const weft_op_def_t *def, weft_node_desc_t *node)
{
    weft_status_t status = WEFT_OK;
    if (def->infer != NULL) {
        return def->infer(node);
    }
    for (uint32_t i = 0; def->rules != NULL && i < node->output_count && status == WEFT_OK; i++) {
        size_t last = def->rules->output_count - 1;
        status = apply_rule(&def->rules->outputs[i < last ? i : last], node, i);
    }
    return status;
}

void wefti_op_cost(const weft_op_def_t *def, const weft_node_desc_t *node, double *out_flops,
                   double *out_bytes)
{
    *out_flops = *out_bytes = 0;
    if (def->cost != NULL) {
        def->cost(node, out_flops, out_bytes);
    } else if (def->rules != NULL) {
        *out_bytes = wefti_cost_bytes(node);
        *out_flops = node->output_count > 0
                         ? def->rules->flops_per_elem * wefti_cost_elems(&node->outputs[0])
                         : 0;
    }
}
