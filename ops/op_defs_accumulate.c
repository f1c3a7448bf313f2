/* SPDX-License-Identifier: Apache-2.0 */
/* Operators between gradients and the optimizer: sums over micro-batches, the type in which
 * gradients travel, and the norm to which they are clipped. */
#include <string.h>

#include "ops/exact_sum.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Inputs are groups of as many tensors as there are outputs. */
static weft_status_t infer_tree_fold(weft_node_desc_t *node)
{
    const char *type = weft_node_attr_string(node, "type", "f32");
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count == 0 ? 1 : node->input_count));
    if (node->output_count == 0 || node->input_count % node->output_count != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%u inputs but %u outputs: expected a multiple of the outputs",
                           node->input_count, node->output_count);
    }
    for (uint32_t i = node->output_count; i < node->input_count; i++) {
        WEFT_RETURN_IF_ERROR(wefti_infer_match(node, i % node->output_count, i));
    }
    if (strcmp(type, "f32") != 0 && strcmp(type, "bf16") != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute type: unknown value '%s': expected f32 or bf16", type);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_infer_set(node, i, type[0] == 'b' ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32,
                        node->inputs[i].rank, node->inputs[i].dims);
    }
    return WEFT_OK;
}

static weft_status_t need_limbs(const weft_tensor_desc_t *desc, uint32_t index)
{
    if (desc->dtype != WEFT_DTYPE_I64 || desc->rank != 1 ||
        (desc->dims[0] >= 0 && desc->dims[0] != WEFTI_SUM_LIMBS)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u must be %d i64, an exact sum",
                           index, WEFTI_SUM_LIMBS);
    }
    return WEFT_OK;
}

static weft_status_t infer_square_sum(weft_node_desc_t *node)
{
    const int64_t dims[1] = {WEFTI_SUM_LIMBS};
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 0));
    if (wefti_infer_input(node, 0) != NULL) {
        WEFT_RETURN_IF_ERROR(need_limbs(&node->inputs[0], 0));
    }
    for (uint32_t i = 1; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = wefti_infer_input(node, i);
        if (x == NULL || (x->dtype != WEFT_DTYPE_F32 && x->dtype != WEFT_DTYPE_BF16)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u: expected type f32 or bf16", i);
        }
    }
    wefti_infer_set(node, 0, WEFT_DTYPE_I64, 1, dims);
    return WEFT_OK;
}

static weft_status_t infer_clip_scale(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(need_limbs(&node->inputs[0], 0));
    if (!(weft_node_attr_float(node, "max_norm", 0.0f) > 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute max_norm must be above 0");
    }
    if (weft_node_attr_int(node, "divisor", 1) < 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute divisor must be at least 1");
    }
    wefti_infer_set(node, 0, WEFT_DTYPE_F32, 0, NULL);
    wefti_infer_set(node, 1, WEFT_DTYPE_F32, 0, NULL);
    return WEFT_OK;
}

/* An addition for every input. */
static void cost_tree_fold(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops =
        node->input_count == 0 ? 0 : (node->input_count - 1.0) * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

static void cost_square_sum(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 0;
    for (uint32_t i = 1; i < node->input_count; i++) {
        *out_flops += 2.0 * wefti_cost_elems(&node->inputs[i]);
    }
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t tree_fold_attrs[] = {
    {.name = "type",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "f32",
     .doc = "of the result: f32, or bf16, to which the sum is rounded once"},
};
static const weft_attr_def_t clip_scale_attrs[] = {
    {.name = "max_norm",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .required = 1,
     .doc = "largest norm to keep"},
    {.name = "divisor",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "the gradients are the summed tensors divided by it"},
};

static const weft_op_def_t defs[] = {
    {.domain = "weft",
     .name = "TreeFold",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = WEFT_VARIADIC,
     .outputs_min = 1,
     .outputs_max = WEFT_VARIADIC,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
     .in_place = {0, -1, -1, -1},
     .attrs = tree_fold_attrs,
     .attr_count = WEFTI_COUNT(tree_fold_attrs),
     .infer = infer_tree_fold,
     .cost = cost_tree_fold,
     .doc = "G, L0, L1, ..: .. + (L1 + (L0 + G)), how the in-order tree continues partial sums; "
            "with n "
            "outputs each is n tensors",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE | WEFT_FACT_COMMUTATIVE)},
    {.domain = "weft",
     .name = "SquareSum",
     .since_version = 1,
     .inputs_min = 0, /* the first may be absent */
     .inputs_max = WEFT_VARIADIC,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_I64),
     .in_place = {0, -1, -1, -1},
     .infer = infer_square_sum,
     .cost = cost_square_sum,
     .doc = "S (optional), X..: S plus the squares of all X, as an exact sum (24 i64)",
     WEFTI_FACTS(.flags = WEFT_FACT_ACCUMULATES)},
    {.domain = "weft",
     .name = "ClipScale",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 2, /* the second may be absent */
     .outputs_max = 2,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_I64),
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = clip_scale_attrs,
     .attr_count = WEFTI_COUNT(clip_scale_attrs),
     .infer = infer_clip_scale,
     .cost = wefti_cost_elementwise,
     .doc = "norm = sqrt(S) / divisor; scale = min(1, max_norm / norm), NaN if a square is not "
            "finite; outputs scale, norm"},
};

wefti_op_family_t wefti_op_defs_accumulate(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
