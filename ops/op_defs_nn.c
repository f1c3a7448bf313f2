/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: convolution, dropout, the loss. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_conv(weft_node_desc_t *node)
{
    wefti_window_t window;
    weft_status_t status = wefti_infer_need(node, 2);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0], *w = &node->inputs[1];
    const weft_tensor_desc_t *b = wefti_infer_input(node, 2);
    if (w->rank != x->rank || w->dtype != x->dtype) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "type or shape mismatch: X is %s with %u dimensions, W is %s with %u dimensions",
            weft_dtype_name(x->dtype), x->rank, weft_dtype_name(w->dtype), w->rank);
    }
    status =
        wefti_window_resolve(node, x->rank, x->dims, x->rank > 2 ? w->dims + 2 : NULL, &window);
    if (status < 0) {
        return status;
    }
    int64_t group = weft_node_attr_int(node, "group", 1), channels = w->dims[1];
    if (group < 1 || (channels >= 0 && __builtin_mul_overflow(channels, group, &channels)) ||
        !wefti_dim_merge(x->dims[1], channels, &channels)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "channel mismatch: X has %" PRId64 ", W has %" PRId64 " in %" PRId64
                           " groups",
                           x->dims[1], w->dims[1], group);
    }
    if (w->dims[0] >= 0 && w->dims[0] % group != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%" PRId64 " output channels are not divisible by %" PRId64 " groups",
                           w->dims[0], group);
    }
    int64_t features = w->dims[0];
    if (b != NULL && (b->rank != 1 || !wefti_dim_merge(features, b->dims[0], &features))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "B: expected one value per output channel");
    }
    int64_t dims[WEFT_MAX_DIMS] = {x->dims[0], features};
    memcpy(dims + 2, window.out, sizeof(window.out));
    wefti_infer_set(node, 0, x->dtype, x->rank, dims);
    return WEFT_OK;
}

static void cost_conv(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_tensor_desc_t *w = &node->inputs[1];
    double features = w->rank > 0 && w->dims[0] > 0 ? (double)w->dims[0] : 1.0;
    *out_flops = 2.0 * wefti_cost_elems(&node->outputs[0]) * wefti_cost_elems(w) / features;
    *out_bytes = wefti_cost_bytes(node);
}

static weft_status_t infer_dropout(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_same(node);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0];
    wefti_infer_set(node, 1, node->version >= 10 ? WEFT_DTYPE_BOOL : x->dtype, x->rank, x->dims);
    return WEFT_OK;
}

static weft_status_t check_ratio(const weft_node_desc_t *node)
{
    double ratio = (double)weft_node_attr_float(node, "ratio", 0.5f);
    return ratio >= 0.0 && ratio <= 1.0
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "attribute ratio: invalid value %g: must be between 0 and 1", ratio);
}

/* X, seed, step and, where ranks draw different numbers, rank: scalars that a session sets. */
static weft_status_t infer_dropout_mask(weft_node_desc_t *node)
{
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_I64, WEFT_DTYPE_F32, WEFT_DTYPE_I64};
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    for (uint32_t i = 1; i < 4; i++) {
        const weft_tensor_desc_t *scalar = wefti_infer_input(node, i);
        int64_t count = scalar == NULL ? 1 : weft_tensor_elem_count(scalar);
        if (scalar != NULL && (scalar->dtype != dtypes[i - 1] || (count >= 0 && count != 1))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input %u: expected one element of type %s", i,
                               weft_dtype_name(dtypes[i - 1]));
        }
    }
    WEFT_RETURN_IF_ERROR(check_ratio(node));
    WEFT_RETURN_IF_ERROR(wefti_infer_same(node));
    wefti_infer_set(node, 1, WEFT_DTYPE_U8, node->inputs[0].rank, node->inputs[0].dims);
    return WEFT_OK;
}

static weft_status_t infer_dropout_grad(weft_node_desc_t *node)
{
    weft_status_t status;
    WEFT_TRY(status, wefti_infer_need(node, 2), out);
    WEFT_TRY(status, check_ratio(node), out);
    const weft_tensor_desc_t *dy = &node->inputs[0], *mask = &node->inputs[1];
    bool same = mask->dtype == WEFT_DTYPE_U8 && mask->rank == dy->rank;
    for (uint32_t d = 0; same && d < dy->rank; d++) {
        int64_t merged;
        same = wefti_dim_merge(dy->dims[d], mask->dims[d], &merged);
    }
    if (!same) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the mask must have type u8 and the shape of dY");
    }
    status = wefti_infer_same(node);
out:
    return status;
}

static void cost_dropout(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 20.0 * wefti_cost_elems(&node->inputs[0]); /* ten rounds for four elements */
    *out_bytes = wefti_cost_bytes(node);
}

static weft_status_t check_label(const weft_tensor_desc_t *x, const weft_tensor_desc_t *label)
{
    if (x->rank < 2 || label->rank + 1 != x->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "shape mismatch: scores have %u dimensions and labels %u: labels need "
                           "one less and at least 1",
                           x->rank, label->rank);
    }
    if (label->dtype != WEFT_DTYPE_I64 && label->dtype != WEFT_DTYPE_I32) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "labels have type %s, expected i64 or i32",
                           weft_dtype_name(label->dtype));
    }
    for (uint32_t d = 0; d < label->rank; d++) {
        int64_t merged;
        if (!wefti_dim_merge(label->dims[d], x->dims[d == 0 ? 0 : d + 1], &merged)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "dimension %u of the labels is %" PRId64
                               ", the scores have %" PRId64,
                               d, label->dims[d], x->dims[d == 0 ? 0 : d + 1]);
        }
    }
    return WEFT_OK;
}

static weft_status_t infer_loss(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 2);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0], *label = &node->inputs[1];
    const weft_tensor_desc_t *weights = wefti_infer_input(node, 2);
    status = check_label(x, label);
    if (status < 0) {
        return status;
    }
    int64_t classes = x->dims[1];
    if (weights != NULL && (weights->rank != 1 || weights->dtype != x->dtype ||
                            !wefti_dim_merge(classes, weights->dims[0], &classes))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "weights: expected one %s per class",
                           weft_dtype_name(x->dtype));
    }
    const char *reduction = weft_node_attr_string(node, "reduction", "mean");
    if (strcmp(reduction, "none") == 0) {
        wefti_infer_set(node, 0, x->dtype, label->rank, label->dims);
    } else if (strcmp(reduction, "mean") == 0 || strcmp(reduction, "sum") == 0) {
        wefti_infer_set(node, 0, x->dtype, 0, NULL);
    } else {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute reduction: unknown value '%s': expected mean, sum or none",
                           reduction);
    }
    wefti_infer_set_like(node, 1, x);
    return WEFT_OK;
}

static void cost_loss(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 20.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

static weft_status_t infer_loss_grad(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 3);
    if (status < 0) {
        return status;
    }
    status = check_label(&node->inputs[1], &node->inputs[2]);
    if (status < 0) {
        return status;
    }
    wefti_infer_set_like(node, 0, &node->inputs[1]);
    return WEFT_OK;
}

/* dX, dW and dB have the shapes of X, W and W's first dimension. */
static weft_status_t infer_conv_grad(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 3);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *dy = &node->inputs[0], *x = &node->inputs[1], *w = &node->inputs[2];
    weft_tensor_desc_t inputs[2] = {*x, *w}, y = {0};
    weft_node_desc_t forward = *node;
    forward.inputs = inputs;
    forward.input_count = 2;
    forward.outputs = &y;
    forward.output_count = 1;
    status = infer_conv(&forward);
    if (status < 0) {
        return status;
    }
    int64_t merged;
    for (uint32_t d = 0; d < y.rank; d++) {
        if (dy->rank != y.rank || !wefti_dim_merge(dy->dims[d], y.dims[d], &merged)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the shape of dY differs from Y");
        }
    }
    wefti_infer_set_like(node, 0, x);
    wefti_infer_set_like(node, 1, w);
    wefti_infer_set(node, 2, w->dtype, 1, w->dims);
    return WEFT_OK;
}

static void cost_conv_grad(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_tensor_desc_t *w = &node->inputs[2];
    double features = w->rank > 0 && w->dims[0] > 0 ? (double)w->dims[0] : 1.0;
    double one = 2.0 * wefti_cost_elems(&node->inputs[0]) * wefti_cost_elems(w) / features;
    bool wants_dx = node->output_count > 0 && node->outputs[0].dtype != WEFT_DTYPE_NONE;
    *out_flops = wants_dx ? 2.0 * one : one;
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t conv_attrs[] = {
    {.name = "auto_pad",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "NOTSET",
     .doc = "NOTSET, VALID, SAME_UPPER or SAME_LOWER"},
    {.name = "dilations",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[1, ...]",
     .doc = "step in the window"},
    {.name = "group", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "groups of channels"},
    {.name = "kernel_shape",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "from W",
     .doc = "window size"},
    {.name = "pads",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[0, ...]",
     .doc = "begins, then ends"},
    {.name = "strides",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[1, ...]",
     .doc = "step of the window"},
};
static const weft_attr_def_t dropout_attrs_old[] = {
    {.name = "ratio",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.5f,
     .doc = "share that is dropped"},
};
static const weft_attr_def_t dropout_attrs[] = {
    {.name = "seed", .type = WEFT_ATTR_TYPE_INT, .doc = "of the random numbers"},
};
static const weft_attr_def_t dropout_mask_attrs[] = {
    {.name = "ratio",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.5f,
     .doc = "share that is dropped"},
    {.name = "salt", .type = WEFT_ATTR_TYPE_INT, .doc = "tells the nodes of a graph apart"},
};
static const weft_attr_def_t dropout_grad_attrs[] = {
    {.name = "ratio",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.5f,
     .doc = "as the forward operator"},
};
#define LOSS_ATTRS                                                                                 \
    {.name = "ignore_index",                                                                       \
     .type = WEFT_ATTR_TYPE_INT,                                                                   \
     .default_s = "none",                                                                          \
     .doc = "label that counts for nothing"},                                                      \
    {                                                                                              \
        .name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .default_s = "mean",                   \
        .doc = "mean, sum or none"                                                                 \
    }
static const weft_attr_def_t loss_attrs[] = {LOSS_ATTRS};
static const weft_attr_def_t smooth_loss_attrs[] = {
    LOSS_ATTRS,
    {.name = "label_smoothing",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .doc = "share of each label that all classes get alike"},
};

static const weft_op_def_t defs[] = {
    {.domain = "",
     .name = "Conv",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = conv_attrs,
     .attr_count = WEFTI_COUNT(conv_attrs),
     .infer = infer_conv,
     .cost = cost_conv,
     .doc = "convolution over one to three dimensions",
     WEFTI_FACTS(.mixing = WEFT_MIXING_FROM_1, .gradient = WEFT_GRADIENT_CONVOLUTION,
                 .expansion = WEFT_EXPANSION_VOLUME, .precision = WEFT_PRECISION_HALF,
                 .cost_curve = WEFT_COST_CURVE_CONV, .layout = {1u, 1u, 0, 0, 1500})},
    {.domain = "com.microsoft",
     .name = "ConvGrad",
     .since_version = 1,
     .inputs_min = 3,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 3,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = conv_attrs,
     .attr_count = WEFTI_COUNT(conv_attrs),
     .infer = infer_conv_grad,
     .cost = cost_conv_grad,
     .doc = "dX, dW and dB of Conv from dY, X and W; each output may be absent",
     WEFTI_FACTS(.linear_inputs = 1u, .cost_curve = WEFT_COST_CURVE_CONV_GRAD,
                 .layout = {3u, 1u, 0, 0, 6000})},
    /* Up to opset 11 the node does not state whether it drops. No kernel drops: training
     * becomes DropoutMask when a graph is differentiated. */
    {.domain = "",
     .name = "Dropout",
     .since_version = 7,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 2,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {0, -1, -1, -1},
     .attrs = dropout_attrs_old,
     .attr_count = WEFTI_COUNT(dropout_attrs_old),
     .infer = infer_dropout,
     .cost = wefti_cost_copy,
     .doc = "identity outside training",
     WEFTI_FACTS(.flags = WEFT_FACT_DROPOUT, .gradient = WEFT_GRADIENT_DROPOUT,
                 .precision = WEFT_PRECISION_INPUTS, .f32_inputs = ~1u)},
    {.domain = "",
     .name = "Dropout",
     .since_version = 12,
     .inputs_min = 1,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 2,
     .dtypes = WEFTI_BIT_FLOATS,
     .effects = WEFT_EFFECT_RANDOM,
     .in_place = {0, -1, -1, -1},
     .attrs = dropout_attrs,
     .attr_count = WEFTI_COUNT(dropout_attrs),
     .infer = infer_dropout,
     .cost = wefti_cost_elementwise,
     .doc = "drops elements in training (third input true), else identity",
     WEFTI_FACTS(.flags = WEFT_FACT_DROPOUT, .gradient = WEFT_GRADIENT_DROPOUT,
                 .precision = WEFT_PRECISION_INPUTS, .f32_inputs = ~1u)},
    /* Not WEFT_EFFECT_RANDOM: the numbers are a function of the inputs, so it may run again. */
    {.domain = "weft",
     .name = "DropoutMask",
     .since_version = 1,
     .inputs_min = 3,
     .inputs_max = 4,
     .outputs_min = 1,
     .outputs_max = 2,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {0, -1, -1, -1},
     .attrs = dropout_mask_attrs,
     .attr_count = WEFTI_COUNT(dropout_mask_attrs),
     .infer = infer_dropout_mask,
     .cost = cost_dropout,
     .doc = "Dropout in training from X, seed, step and rank; second output: what was kept (u8)",
     WEFTI_FACTS(.gradient = WEFT_GRADIENT_DROPOUT, .precision = WEFT_PRECISION_INPUTS,
                 .f32_inputs = ~1u, .evaluation = {"", "Identity"})},
    {.domain = "weft",
     .name = "DropoutGrad",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 2,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {0, -1, -1, -1},
     .attrs = dropout_grad_attrs,
     .attr_count = WEFTI_COUNT(dropout_grad_attrs),
     .infer = infer_dropout_grad,
     .cost = wefti_cost_elementwise,
     .doc = "dX = dY / (1 - ratio) where Mask, else 0",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .linear_inputs = 1u)},
    {.domain = "",
     .name = "SoftmaxCrossEntropyLoss",
     .since_version = 12,
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 2,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {-1, 0, -1, -1},
     .attrs = loss_attrs,
     .attr_count = WEFTI_COUNT(loss_attrs),
     .infer = infer_loss,
     .cost = cost_loss,
     .doc = "cross entropy of softmax(scores) and labels; second output: log probabilities",
     WEFTI_FACTS(.flags = WEFT_FACT_LOSS, .gradient = WEFT_GRADIENT_CROSS_ENTROPY,
                 .cost_curve = WEFT_COST_CURVE_EXP)},
    {.domain = "weft",
     .name = "SoftmaxCrossEntropyLoss",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 2,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {-1, 0, -1, -1},
     .attrs = smooth_loss_attrs,
     .attr_count = WEFTI_COUNT(smooth_loss_attrs),
     .infer = infer_loss,
     .cost = cost_loss,
     .doc = "the same with smoothed labels, as torch.nn.CrossEntropyLoss",
     WEFTI_FACTS(.flags = WEFT_FACT_LOSS, .gradient = WEFT_GRADIENT_CROSS_ENTROPY,
                 .cost_curve = WEFT_COST_CURVE_EXP)},
    {.domain = "",
     .name = "NegativeLogLikelihoodLoss",
     .since_version = 12,
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = loss_attrs,
     .attr_count = WEFTI_COUNT(loss_attrs),
     .infer = infer_loss,
     .cost = cost_loss,
     .doc = "minus the log probabilities at the labels",
     WEFTI_FACTS(.flags = WEFT_FACT_LOSS, .gradient = WEFT_GRADIENT_OF_INPUTS,
                 .result_grad = {"weft", "NegativeLogLikelihoodLossGrad"})},
    {.domain = "weft",
     .name = "NegativeLogLikelihoodLossGrad",
     .since_version = 1,
     .inputs_min = 3,
     .inputs_max = 4,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {1, -1, -1, -1},
     .attrs = loss_attrs,
     .attr_count = WEFTI_COUNT(loss_attrs),
     .infer = infer_loss_grad,
     .cost = cost_loss,
     .doc = "gradient of the log probabilities from dLoss, these, labels and weights",
     WEFTI_FACTS(.linear_inputs = 1u)},
    {.domain = "com.microsoft",
     .name = "SoftmaxCrossEntropyLossGrad",
     .since_version = 1,
     .inputs_min = 3,
     .inputs_max = 4,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {1, -1, -1, -1},
     .attrs = smooth_loss_attrs,
     .attr_count = WEFTI_COUNT(smooth_loss_attrs),
     .infer = infer_loss_grad,
     .cost = cost_loss,
     .doc = "gradient of the scores from dLoss, log probabilities, labels and weights",
     WEFTI_FACTS(.linear_inputs = 1u)},
};

wefti_op_family_t wefti_op_defs_nn(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
