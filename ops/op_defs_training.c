/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient operators of ONNX Runtime's training graphs that Weft has under other names, or from
 * which it makes others (graph/expand_gradients.c).
 */
#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_shape_input(weft_node_desc_t *node, uint32_t shape, uint32_t like)
{
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, like + 1));
    WEFT_RETURN_IF_ERROR(wefti_shape_input(node, shape, dims, &rank));
    wefti_infer_set(node, 0, node->inputs[like].dtype, rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_by_first(weft_node_desc_t *node)
{
    return infer_shape_input(node, 0, 2);
}

static weft_status_t infer_by_second(weft_node_desc_t *node)
{
    return infer_shape_input(node, 1, 0);
}

/* The importer adds what was pooled as the last input. */
static weft_status_t infer_pool_grad(weft_node_desc_t *node, uint32_t pooled, const char *what)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    if (node->input_count <= pooled) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s, whose input has the shape of dX", what);
    }
    wefti_infer_set_like(node, 0, &node->inputs[pooled]);
    return WEFT_OK;
}

static weft_status_t infer_max_pool_grad(weft_node_desc_t *node)
{
    return infer_pool_grad(node, 2, "input Indices must be an output of MaxPool");
}

static weft_status_t infer_average_pool_grad(weft_node_desc_t *node)
{
    return infer_pool_grad(node, 1, "input dY must be '<Y>_grad' of a result Y of AveragePool");
}

static weft_status_t infer_batch_norm_internal(weft_node_desc_t *node)
{
    if (weft_node_attr_int(node, "training_mode", 0) != 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "attribute 'training_mode' must be 1");
    }
    return wefti_infer_batch_norm(node);
}

static weft_status_t infer_entropy(weft_node_desc_t *node)
{
    const char *reduction = weft_node_attr_string(node, "reduction", "mean");
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    const bool each = reduction[0] == 'n';
    wefti_infer_set(node, 0, node->inputs[0].dtype, each ? node->inputs[1].rank : 0,
                    node->inputs[1].dims);
    wefti_infer_set_like(node, 1, &node->inputs[0]);
    return WEFT_OK;
}

static void cost_rows(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 8.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

#define INT(key, value, text)                                                                      \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_INT, .default_i = value, .doc = text                   \
    }
static const weft_attr_def_t axis_attrs[] = {INT("axis", 0, "as the forward operator")};
static const weft_attr_def_t axis_1_attrs[] = {
    INT("axis", 1, "where the input is split into a matrix"),
};
static const weft_attr_def_t axis_last_attrs[] = {INT("axis", -1, "as the forward operator")};
static const weft_attr_def_t batch_attrs[] = {INT("batch_dims", 0, "as the forward operator")};
static const weft_attr_def_t norm_attrs[] = {
    {.name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1e-5f, .doc = "of the variance"},
};
static const weft_attr_def_t batch_norm_attrs[] = {
    {.name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1e-5f, .doc = "of the variance"},
    {.name = "momentum",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.9f,
     .doc = "share of the running statistics that stays"},
    INT("training_mode", 0, "must be 1"),
};
static const weft_attr_def_t sum_attrs[] = {
    INT("keepdims", 1, "1: reduced dimensions stay, with size 1"),
    INT("noop_with_empty_axes", 0, "1: without axes nothing is reduced"),
};
static const weft_attr_def_t scale_attrs[] = {INT("scale_down", 0, "1: divided")};
#define OF_POOL(key, kind)                                                                         \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_##kind, .doc = "of the forward operator"               \
    }
static const weft_attr_def_t pool_attrs[] = {
    OF_POOL("auto_pad", STRING), OF_POOL("ceil_mode", INT),
    OF_POOL("dilations", INTS),  OF_POOL("kernel_shape", INTS),
    OF_POOL("pads", INTS),       OF_POOL("storage_order", INT),
    OF_POOL("strides", INTS),    OF_POOL("count_include_pad", INT)};
#define REDUCTION                                                                                  \
    {                                                                                              \
        .name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .default_s = "mean",                   \
        .doc = "mean or sum"                                                                       \
    }
static const weft_attr_def_t reduction_attrs[] = {REDUCTION};
static const weft_attr_def_t entropy_attrs[] = {
    REDUCTION,
    {.name = "output_type", .type = WEFT_ATTR_TYPE_INT, .doc = "type of dX; ignored"},
};

/* Output i has the type of input rule i; the last one holds for further outputs. */
#define LIKE_1(a)                                                                                  \
    .rules = &(const weft_op_rules_t)                                                              \
    {                                                                                              \
        .outputs = (const weft_output_rule_t[]){{.like = a}}, .output_count = 1                    \
    }
#define LIKE_2(a, b)                                                                               \
    .rules = &(const weft_op_rules_t)                                                              \
    {                                                                                              \
        .outputs = (const weft_output_rule_t[]){{.like = a}, {.like = b}}, .output_count = 2       \
    }
#define ROW(space, op, least, most, out, text)                                                     \
    .domain = space, .name = op, .since_version = 1, .inputs_min = least, .inputs_max = most,      \
    .outputs_min = 1, .outputs_max = out, .dtypes = WEFTI_BIT_FLOATS,                              \
    .in_place = WEFTI_IN_PLACE_NONE, .cost = cost_rows, .doc = text
#define MS(...) ROW("com.microsoft", __VA_ARGS__)
#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)
#define SAME(space, op) WEFTI_FACTS(.expansion = WEFT_EXPANSION_SAME, .result_grad = {space, op})
#define BY(kind) WEFTI_FACTS(.expansion = WEFT_EXPANSION_##kind)

static const weft_op_def_t defs[] = {
    {ROW("", "AveragePoolGrad", 1, 2, 1, "dX from dY, of AveragePool"),
     .infer = infer_average_pool_grad, ATTRS(pool_attrs), BY(AVERAGE_POOL_GRAD)},
    {MS("BatchNormInternal", 5, 5, 5,
        "BatchNormalization in training form; outputs 3 and 4: mean and variance of X"),
     .infer = infer_batch_norm_internal, ATTRS(batch_norm_attrs),
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_BATCH_NORM, .flags = WEFT_FACT_STATISTICS,
                 .result_grad = {"weft", "BatchNormTraining"},
                 .evaluation = {"", "BatchNormalization"})},
    {MS("BatchNormalizationGrad", 5, 5, 3, "dX, dScale and dB from dY, X, scale, mean, variance"),
     LIKE_2(1, 2), ATTRS(norm_attrs),
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_BATCH_NORM_GRAD,
                 .result_grad = {"weft", "BatchNormGrad"})},
    {MS("BiasFastGeluGrad_dX", 3, 3, 1, "dX of Gelu(X + B) by tanh"), LIKE_1(0),
     BY(FAST_GELU_GRAD)},
    {MS("BiasGeluGrad_dX", 3, 3, 1, "dX of Gelu(X + B)"), LIKE_1(0), BY(GELU_GRAD)},
    {MS("DivGrad", 3, 3, 2, "dA and dB of A / B from dY, A and B"), LIKE_2(1, 2),
     BY(DIVISION_GRAD)},
    {MS("DropoutGrad", 2, 4, 1, "dX from dY, mask, ratio and training_mode"), LIKE_1(0),
     BY(DROPOUT_GRAD)},
    {MS("FastGeluGrad", 2, 2, 1, "dX of Gelu by tanh"), LIKE_1(0), BY(FAST_GELU_GRAD)},
    {MS("GatherElementsGrad", 3, 3, 1, "dX from dY, the shape of X and indices"),
     .infer = infer_by_second, ATTRS(axis_attrs), BY(GATHER_ELEMENTS_GRAD)},
    {MS("GatherGrad", 3, 3, 1, "dX from the shape of X, indices and dY"), .infer = infer_by_first,
     ATTRS(axis_attrs), BY(GATHER_GRAD)},
    {MS("GatherNDGrad", 3, 3, 1, "dX from the shape of X, indices and dY"), .infer = infer_by_first,
     ATTRS(batch_attrs), BY(GATHER_ND_GRAD)},
    {MS("GeluGrad", 2, 2, 1, "dX from dY and X"), LIKE_1(0), BY(GELU_GRAD)},
    {MS("InPlaceAccumulator", 2, 3, 1, "the sum of both"), LIKE_1(0), SAME("", "Sum")},
    {MS("LogSoftmaxGrad", 2, 2, 1, "dX from dY and Y, seen as matrices"), LIKE_1(0),
     ATTRS(axis_1_attrs),
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_FLAT_SOFTMAX_GRAD,
                 .result_grad = {"weft", "LogSoftmaxGrad"})},
    {MS("LogSoftmaxGrad_13", 2, 2, 1, "dX from dY and Y"), LIKE_1(0), ATTRS(axis_last_attrs),
     SAME("weft", "LogSoftmaxGrad")},
    {ROW("", "MaxPoolGrad", 2, 3, 1, "dX from dY and the indices of MaxPool"),
     .infer = infer_max_pool_grad, ATTRS(pool_attrs), BY(POOL_GRAD)},
    {MS("ReduceSumTraining", 2, 2, 1, "ReduceSum"), .infer = wefti_infer_reduce, ATTRS(sum_attrs),
     SAME("", "ReduceSum")},
    {MS("Scale", 2, 2, 1, "X times a number, or divided by it"), LIKE_1(0), ATTRS(scale_attrs),
     BY(SCALE)},
    {MS("SigmoidGrad", 2, 2, 1, "dX from dY and Y"), LIKE_1(0), SAME("weft", "SigmoidGrad")},
    {MS("SimplifiedLayerNormalizationGrad", 4, 4, 2, "dX and dScale from dY, X, scale, 1 / root"),
     LIKE_2(1, 2), ATTRS(axis_last_attrs), BY(RMS_NORM_GRAD)},
    {ROW("", "SinGrad", 2, 2, 1, "dX from dY and X"), LIKE_1(0), SAME("weft", "SinGrad")},
    {MS("SliceGrad", 4, 6, 1, "dX from dY, the shape of X, starts, ends, axes and steps"),
     .infer = infer_by_second, BY(SLICE_GRAD)},
    {MS("SoftmaxCrossEntropyGrad", 3, 3, 1, "dX from dY, log probabilities and their labels"),
     LIKE_1(1), ATTRS(reduction_attrs), BY(ONE_HOT_ENTROPY_GRAD)},
    {MS("SoftmaxCrossEntropyLossInternal", 2, 4, 2, "the loss of scores, labels, weights, ignored"),
     .infer = infer_entropy, ATTRS(entropy_attrs),
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_CROSS_ENTROPY, .flags = WEFT_FACT_LOSS)},
    {MS("SoftmaxCrossEntropyLossInternalGrad", 3, 6, 1,
        "dX from dY, log probabilities, labels, weights, ignored label, bias"),
     LIKE_1(1), ATTRS(entropy_attrs), BY(CROSS_ENTROPY_GRAD)},
    {MS("SoftmaxGrad", 2, 2, 1, "dX from dY and Y, seen as matrices"), LIKE_1(0),
     ATTRS(axis_1_attrs),
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_FLAT_SOFTMAX_GRAD,
                 .result_grad = {"weft", "SoftmaxGrad"})},
    {MS("SoftmaxGrad_13", 2, 2, 1, "dX from dY and Y"), LIKE_1(0), ATTRS(axis_last_attrs),
     SAME("weft", "SoftmaxGrad")},
    {MS("TanhGrad", 2, 2, 1, "dX from dY and Y"), LIKE_1(0), SAME("weft", "TanhGrad")},
};

wefti_op_family_t wefti_op_defs_training(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
