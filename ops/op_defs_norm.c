/* SPDX-License-Identifier: Apache-2.0 */
/* Normalization over the batch, and its gradient. */
#include <inttypes.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Inputs first up to last have one element per channel, dimension 1 of X. */
static weft_status_t check_channels(const weft_node_desc_t *node, uint32_t x, uint32_t first,
                                    uint32_t last)
{
    const weft_tensor_desc_t *in = &node->inputs[x];
    if (in->rank < 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "X has %u dimensions, at least 2 are needed",
                           in->rank);
    }
    for (uint32_t i = first; i <= last; i++) {
        const weft_tensor_desc_t *t = &node->inputs[i];
        int64_t merged;
        if (t->rank != 1 || !wefti_infer_parameter_type(in, t->dtype) ||
            !wefti_dim_merge(t->dims[0], in->dims[1], &merged)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input %u must have the type of X and one element for each of its "
                               "%" PRId64 " channels",
                               i, in->dims[1]);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_batch_norm(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 5));
    WEFT_RETURN_IF_ERROR(check_channels(node, 0, 1, 4));
    WEFT_RETURN_IF_ERROR(wefti_infer_input(node, 5) != NULL ? wefti_infer_match(node, 0, 5)
                                                            : WEFT_OK);
    wefti_infer_set_like(node, 0, &node->inputs[0]);
    for (uint32_t i = 1; i < node->output_count; i++) {
        wefti_infer_set_like(node, i, &node->inputs[1]);
    }
    return WEFT_OK;
}

static weft_status_t infer_batch_norm_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 5));
    WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, 1));
    WEFT_RETURN_IF_ERROR(check_channels(node, 1, 2, 4));
    WEFT_RETURN_IF_ERROR(wefti_infer_input(node, 5) != NULL ? wefti_infer_match(node, 1, 5)
                                                            : WEFT_OK);
    wefti_infer_set_like(node, 0, &node->inputs[1]);
    wefti_infer_set_like(node, 1, &node->inputs[2]);
    wefti_infer_set_like(node, 2, &node->inputs[2]);
    return WEFT_OK;
}

static void cost_batch_norm(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 5.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

#define EPSILON                                                                                    \
    {                                                                                              \
        .name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1e-5f,                       \
        .doc = "added to the variance"                                                             \
    }
#define MOMENTUM                                                                                   \
    {                                                                                              \
        .name = "momentum", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 0.9f,                       \
        .doc = "share of the running statistics that stays"                                        \
    }
static const weft_attr_def_t training_attrs[] = {
    EPSILON,
    MOMENTUM,
    {.name = "activation",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "",
     .doc = "of Y, after input 5 is added: Relu, or none"},
};
static const weft_attr_def_t norm7_attrs[] = {
    EPSILON,
    MOMENTUM,
    {.name = "spatial",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "ignored: 0 has other shapes, which are refused"},
};
static const weft_attr_def_t norm14_attrs[] = {
    EPSILON,
    MOMENTUM,
    {.name = "training_mode",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "1: mean and variance are those of X"},
};
static const weft_attr_def_t grad_attrs[] = {
    EPSILON,
    {.name = "frozen", .type = WEFT_ATTR_TYPE_INT, .doc = "1: mean and variance are constants"},
};

/* Both moments of each channel; f64, because a variance is a difference of them. */
static weft_status_t infer_moments(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(check_channels(node, 0, 1, 0));
    if (wefti_infer_input(node, 1) != NULL || wefti_infer_input(node, 2) != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
        WEFT_RETURN_IF_ERROR(check_channels(node, 0, 1, 1));
        WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, 2));
    }
    const int64_t dims[] = {2, node->inputs[0].dims[1]};
    wefti_infer_set(node, 0, WEFT_DTYPE_F64, 2, dims);
    return WEFT_OK;
}

#define NORM(space, op, version, most, outputs, list, text, ...)                                   \
    {                                                                                              \
        .domain = space, .name = op, .since_version = version, .inputs_min = 5,                    \
        .inputs_max = most, .outputs_min = 1, .outputs_max = outputs, .dtypes = WEFTI_BIT_FLOATS,  \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = WEFTI_COUNT(list),           \
        .infer = wefti_infer_batch_norm, .cost = cost_batch_norm, .doc = text,                     \
        WEFTI_FACTS(__VA_ARGS__)                                                                   \
    }

static const weft_op_def_t defs[] = {
    NORM("", "BatchNormalization", 7, 5, 5, norm7_attrs,
         "Y = scale (X - mean) / sqrt(var + epsilon) + B; with 2 outputs or more: training",
         .gradient = WEFT_GRADIENT_BATCH_NORM, .precision = WEFT_PRECISION_INPUTS,
         .f32_inputs = ~1u),
    NORM("", "BatchNormalization", 14, 5, 3, norm14_attrs,
         "Y = scale (X - mean) / sqrt(var + epsilon) + B; outputs 1 and 2: running statistics",
         .gradient = WEFT_GRADIENT_BATCH_NORM, .precision = WEFT_PRECISION_INPUTS,
         .f32_inputs = ~1u),
    NORM("weft", "BatchNormTraining", 1, 7, 5, training_attrs,
         "BatchNormalization by mean and variance of X, which are outputs 1 and 2 (and 3 and 4)",
         .flags = WEFT_FACT_STATISTICS, .gradient = WEFT_GRADIENT_BATCH_NORM,
         .precision = WEFT_PRECISION_INPUTS, .f32_inputs = ~1u,
         .result_grad = {"weft", "BatchNormGrad"}, .evaluation = {"weft", "BatchNormEvaluation"}),
    NORM("weft", "BatchNormEvaluation", 1, 6, 1, training_attrs,
         "what BatchNormTraining is outside of training: by inputs 3 and 4", 0),
    {.domain = "weft",
     .name = "BatchNormMoments",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .infer = infer_moments,
     .cost = cost_batch_norm,
     .doc = "means of X and X^2 by channel; with mean and dY: of dY and dY (X - mean)"},
    {.domain = "weft",
     .name = "BatchNormGrad",
     .since_version = 1,
     .inputs_min = 5,
     .inputs_max = 7,
     .outputs_min = 1,
     .outputs_max = 3,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {0, -1, -1, -1},
     .attrs = grad_attrs,
     .attr_count = WEFTI_COUNT(grad_attrs),
     .infer = infer_batch_norm_grad,
     .cost = cost_batch_norm,
     .doc = "dX, dScale and dB from dY, X, scale, mean and variance; each output may be absent; dY "
            "counts where input 5 is above 0"},
};

wefti_op_family_t wefti_op_defs_norm(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
