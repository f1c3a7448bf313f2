/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that passes make of several others. */
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* The inputs broadcast to the shape of every output. */
static weft_status_t infer_fused(weft_node_desc_t *node)
{
    const weft_attr_t *results = weft_node_attr(node, "results");
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    weft_tensor_desc_t y = node->inputs[0];
    if (results == NULL || results->count < node->output_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute results is missing or short");
    }
    for (uint32_t i = 1; i < node->input_count; i++) {
        weft_tensor_desc_t wider = {.dtype = y.dtype};
        if (node->inputs[i].dtype != y.dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs have types %s and %s",
                               weft_dtype_name(y.dtype), weft_dtype_name(node->inputs[i].dtype));
        }
        WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(&y, &node->inputs[i], &wider.rank, wider.dims));
        y = wider;
    }
    for (uint32_t o = 0; o < node->output_count; o++) {
        wefti_infer_set_like(node, o, &y);
    }
    return WEFT_OK;
}

static void cost_fused(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_attr_t *steps = weft_node_attr(node, "steps");
    *out_flops = wefti_cost_elems(&node->outputs[0]) * (steps == NULL ? 1.0 : (double)steps->count);
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t fused_attrs[] = {
    {.name = "steps",
     .type = WEFT_ATTR_TYPE_STRINGS,
     .required = 1,
     .doc = "operators in order, as operator or operator:form"},
    {.name = "operands",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "two per step: an input, the number of inputs plus an earlier step, or -1"},
    {.name = "numbers",
     .type = WEFT_ATTR_TYPE_FLOATS,
     .default_s = "zeros",
     .doc = "two per step: its attributes"},
    {.name = "results",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "the step of each output; the last step is output 0"},
};

static const weft_op_def_t defs[] = {
    {.domain = "weft",
     .name = "Fused",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = WEFT_VARIADIC,
     .outputs_min = 1,
     .outputs_max = WEFT_VARIADIC,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
     .in_place = {0, -1, -1, -1},
     .attrs = fused_attrs,
     .attr_count = WEFTI_COUNT(fused_attrs),
     .infer = infer_fused,
     .cost = cost_fused,
     .doc = "element-wise operators with broadcasting, in one pass over the data",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .layout = {~0u, ~0u, 1, 0, 0})},
};

wefti_op_family_t wefti_op_defs_fused(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
