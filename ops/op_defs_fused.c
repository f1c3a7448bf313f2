/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that passes make of several others. */
#include <string.h>

#include "ops/compute/fused.h"
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
        if (node->inputs[i].dtype != y.dtype && weft_node_attr(node, "types") == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs have types %s and %s",
                               weft_dtype_name(y.dtype), weft_dtype_name(node->inputs[i].dtype));
        }
        WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(&y, &node->inputs[i], &wider.rank, wider.dims));
        y = wider;
    }
    for (uint32_t o = 0; o < node->output_count; o++) {
        y.dtype = wefti_fused_type(node, results->ints[o]);
        if (y.dtype == WEFT_DTYPE_NONE) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute types: expected float32, float16 or bfloat16 per step");
        }
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

/* [batch, heads, rows, columns] of a tensor that may have tokens (rows) first. */
static void head_dims(const weft_node_desc_t *node, uint32_t index, int64_t bit, int64_t *out)
{
    const weft_tensor_desc_t *x = &node->inputs[index];
    const bool first = (weft_node_attr_int(node, "tokens_first", 0) & bit) != 0;
    out[0] = x->dims[0];
    out[1] = x->dims[first ? 2 : 1];
    out[2] = x->dims[first ? 1 : 2];
    out[3] = x->dims[3];
}

static weft_status_t infer_flash_attention(weft_node_desc_t *node)
{
    int64_t q[4], v[4];
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    for (uint32_t i = 0; i < 3; i++) {
        if (node->inputs[i].rank != 4 || node->inputs[i].dtype != node->inputs[0].dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "Q, K and V must have 4 dimensions and one type");
        }
    }
    head_dims(node, 0, 1, q);
    head_dims(node, 2, 4, v);
    const bool first = (weft_node_attr_int(node, "tokens_first", 0) & 8) != 0;
    const int64_t y[] = {q[0], first ? q[2] : q[1], first ? q[1] : q[2], v[3]};
    wefti_infer_set(node, 0, node->inputs[0].dtype, 4, y);
    wefti_infer_set(node, 1, WEFT_DTYPE_F32, 3, q);
    return WEFT_OK;
}

/* dY, dL (absent), Q, K, V, bias (or absent), Y, L. */
static weft_status_t infer_flash_attention_grad(weft_node_desc_t *node)
{
    if (node->input_count != 8) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%u inputs, expected 8", node->input_count);
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (wefti_infer_input(node, 2 + i) == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u is missing", 2 + i);
        }
        wefti_infer_set_like(node, i, &node->inputs[2 + i]);
    }
    if (wefti_infer_input(node, 5) != NULL) {
        wefti_infer_set_like(node, 3, &node->inputs[5]);
    }
    return WEFT_OK;
}

/* Products of all queries and keys, of which causal attention skips half. */
static double attention_flops(const weft_node_desc_t *node, uint32_t first, double products)
{
    int64_t k[4] = {1, 1, 1, 1};
    const weft_tensor_desc_t *x = wefti_infer_input(node, first + 1);
    if (x != NULL && x->rank == 4) {
        head_dims(node, first + 1, 2, k);
    }
    const double keys = k[2] > 0 ? (double)k[2] : 1.0;
    const double flops = 2.0 * products * wefti_cost_elems(&node->inputs[first]) * keys;
    return weft_node_attr_int(node, "causal", 0) != 0 ? flops / 2.0 : flops;
}

static void cost_flash_attention(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = attention_flops(node, 0, 2.0);
    *out_bytes = wefti_cost_bytes(node);
}

static void cost_flash_attention_grad(const weft_node_desc_t *node, double *out_flops,
                                      double *out_bytes)
{
    *out_flops = attention_flops(node, 2, 5.0);
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t attention_attrs[] = {
    {.name = "scale", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1.0f, .doc = "of Q K'"},
    {.name = "causal",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "1: query i sees the keys up to i + past"},
    {.name = "past", .type = WEFT_ATTR_TYPE_INT, .doc = "keys before those of the queries"},
    {.name = "tokens_first",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "bits 0 to 3: Q, K, V, Y are [batch, tokens, heads, columns], else heads come first"},
};

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
    {.name = "types",
     .type = WEFT_ATTR_TYPE_STRINGS,
     .default_s = "float32",
     .doc = "one per step: the type to which its result is rounded"},
};

static const weft_op_def_t defs[] = {
    {.domain = "weft",
     .name = "Fused",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = WEFT_VARIADIC,
     .outputs_min = 1,
     .outputs_max = WEFT_VARIADIC,
     .dtypes = WEFTI_BIT_FLOATS & ~WEFT_DTYPE_BIT(WEFT_DTYPE_F64),
     .in_place = {0, -1, -1, -1},
     .attrs = fused_attrs,
     .attr_count = WEFTI_COUNT(fused_attrs),
     .infer = infer_fused,
     .cost = cost_fused,
     .doc = "element-wise operators with broadcasting, in one pass over the data",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .cost_curve = WEFT_COST_CURVE_FUSED,
                 .layout = {~0u, ~0u, 1, 0, 0})},
    {.domain = "weft",
     .name = "FlashAttention",
     .since_version = 1,
     .inputs_min = 3,
     .inputs_max = 4,
     .outputs_min = 1,
     .outputs_max = 2,
     .dtypes = WEFTI_BIT_FLOATS & ~WEFT_DTYPE_BIT(WEFT_DTYPE_F64),
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = attention_attrs,
     .attr_count = WEFTI_COUNT(attention_attrs),
     .infer = infer_flash_attention,
     .cost = cost_flash_attention,
     .grad = "FlashAttentionGrad",
     .doc =
         "Y = softmax(scale Q K' + bias) V by blocks, and the logarithm of each row's sum; 0 for "
         "queries that see no key",
     WEFTI_FACTS(.cost_curve = WEFT_COST_CURVE_ATTENTION, .precision = WEFT_PRECISION_INPUTS,
                 .f32_inputs = 8u)},
    {.domain = "weft",
     .name = "FlashAttentionGrad",
     .since_version = 1,
     .inputs_min = 1, /* others may be absent */
     .inputs_max = 8,
     .outputs_min = 1,
     .outputs_max = 4,
     .dtypes = WEFTI_BIT_FLOATS & ~WEFT_DTYPE_BIT(WEFT_DTYPE_F64),
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = attention_attrs,
     .attr_count = WEFTI_COUNT(attention_attrs),
     .infer = infer_flash_attention_grad,
     .cost = cost_flash_attention_grad,
     .doc = "gradients of Q, K and V; the bias has none",
     WEFTI_FACTS(.cost_curve = WEFT_COST_CURVE_ATTENTION)},
};

wefti_op_family_t wefti_op_defs_fused(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
