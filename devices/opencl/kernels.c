/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the device, a row each; losses and dropout are here. */
#include "devices/opencl/elements.h"
#include "devices/opencl/kernels.h"

#include <string.h>

#define FOLDED 8u /* levels of 128 micro-batches */

/* Partial sums of micro-batches, the latest first. */
static PREPARE(prepare_tree_fold)
{
    cl_node_t node = cl_start(FOLDED, 1);
    (void)env;
    if (desc->input_count == 0 || desc->input_count > FOLDED) {
        return cl_refuse(desc, "too many inputs");
    }
    TRY(cl_need_f32(desc, desc->input_count, 1, 0));
    for (uint32_t i = 0; i < desc->input_count; i++) {
        if (cl_elems(&desc->inputs[i]) != cl_elems(&desc->outputs[0])) {
            return cl_refuse(desc, "shapes differ");
        }
    }
    cl_add_number(&node, desc->input_count);
    cl_add_step(&node, cl_each("tree_fold", cl_elems(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* X, seed, step and maybe the rank. */
static PREPARE(prepare_dropout_mask)
{
    cl_node_t node = cl_start(4, 2);
    double ratio = (double)cl_attr_float(desc, "ratio", 0.5f);
    bool has_rank = cl_has(desc->inputs, desc->input_count, 3), all = ratio >= 1.0;
    bool has_mask = cl_has(desc->outputs, desc->output_count, 1);
    (void)env;
    TRY(cl_need_f32(desc, has_rank ? 4 : 3, 1, 1u << 1 | 1u << 3));
    const weft_tensor_desc_t *x = &desc->inputs[0];
    if (!cl_same_shape(x, &desc->outputs[0]) || x[1].dtype != WEFT_DTYPE_I64 ||
        cl_elems(&x[1]) != 1 || cl_elems(&x[2]) != 1 ||
        (has_rank && (x[3].dtype != WEFT_DTYPE_I64 || cl_elems(&x[3]) != 1)) ||
        (has_mask &&
         (desc->outputs[1].dtype != WEFT_DTYPE_U8 || !cl_same_shape(&desc->outputs[1], x))) ||
        !(ratio >= 0.0 && ratio <= 1.0)) {
        return cl_refuse(desc, "shapes do not fit, or the ratio is out of range");
    }
    cl_add_number(&node, cl_elems(x));
    cl_add_number(&node, (uint32_t)cl_attr_int(desc, "salt", 0));
    cl_add_number(&node, all ? 0 : (int64_t)(ratio * 4294967296.0));
    cl_add_number(&node, all);
    cl_add_number(&node, has_rank);
    cl_add_number(&node, has_mask);
    cl_add_factor(&node, all ? 0.0f : (float)(1.0 / (1.0 - ratio)));
    cl_add_step(&node, cl_each("dropout_mask", cl_elems(x)));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* Scores and labels at inputs scores and scores + 1. */
static weft_status_t describe_loss(const weft_node_desc_t *desc, uint32_t scores, cl_node_t *node,
                                   bool *out_mean)
{
    const weft_attr_t *reduction = cl_attr(desc, "reduction");
    const char *name = reduction != NULL && reduction->s != NULL ? reduction->s : "mean";
    const weft_tensor_desc_t *x = &desc->inputs[scores], *labels = &desc->inputs[scores + 1];
    TRY(cl_need_f32(desc, scores + 2, 1, 1u << (scores + 1)));
    if (x->rank != 2 || cl_elems(labels) != x->dims[0] || x->dims[1] < 1 ||
        x->dims[0] > INT32_MAX - 1 ||
        (labels->dtype != WEFT_DTYPE_I64 && labels->dtype != WEFT_DTYPE_I32)) {
        return cl_refuse(desc, "expected scores [rows, classes], and a label per row");
    }
    if (cl_has(desc->inputs, desc->input_count, scores + 2) || strcmp(name, "none") == 0 ||
        cl_attr_float(desc, "label_smoothing", 0.0f) != 0.0f) {
        return cl_refuse(desc, "weights, smoothing and reduction \"none\" are not supported");
    }
    cl_add_number(node, x->dims[0]);
    cl_add_number(node, x->dims[1]);
    cl_add_number(node, labels->dtype == WEFT_DTYPE_I64);
    cl_add_number(node, cl_attr(desc, "ignore_index") != NULL);
    cl_add_number(node, cl_attr_int(desc, "ignore_index", 0));
    *out_mean = strcmp(name, "sum") != 0;
    node->labels = true;
    return WEFT_OK;
}

static PREPARE(prepare_loss)
{
    cl_node_t node = cl_start(2, 2);
    bool mean, has_log_prob = cl_has(desc->outputs, desc->output_count, 1);
    (void)env;
    TRY(describe_loss(desc, 0, &node, &mean));
    int64_t rows = desc->inputs[0].dims[0];
    if (cl_elems(&desc->outputs[0]) != 1 ||
        (has_log_prob && !cl_same_shape(&desc->outputs[1], &desc->inputs[0]))) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_add_number(&node, has_log_prob);
    cl_add_number(&node, mean);
    node.scratch_bytes = /* of no rows too: the functions take it */
        (size_t)(rows + (has_log_prob ? 0 : cl_elems(&desc->inputs[0])) + 1) * sizeof(float);
    cl_add_step(&node, cl_each("loss_rows", rows));
    cl_add_step(&node, cl_each("loss_total", 1));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

static PREPARE(prepare_loss_grad)
{
    cl_node_t node = cl_start(3, 1);
    bool mean;
    (void)env;
    TRY(describe_loss(desc, 1, &node, &mean));
    if (!cl_same_shape(&desc->outputs[0], &desc->inputs[1]) || cl_elems(&desc->inputs[0]) != 1) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_add_number(&node, mean);
    cl_add_step(&node, cl_each("loss_grad", desc->inputs[1].dims[0]));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

#define ROW(its_domain, name, function)                                                            \
    {                                                                                              \
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = its_domain, .op = name,                  \
        .since_version = 1, .prepare = function, .destroy = cl_node_destroy, .family = "opencl"    \
    }
#define ELEMENT_ROW(symbol, domain, name, ...) ROW(domain, name, cl_prepare_elements),
/* The last ones need doubles. */
const weft_kernel_t cl_kernels[] = {
    ELEMENTS(ELEMENT_ROW) /* those of elements.h */
    ROW("weft", "Fused", cl_prepare_elements),
    ROW("", "Gemm", cl_prepare_gemm),
    ROW("", "MatMul", cl_prepare_matmul),
    ROW("com.microsoft", "FusedMatMul", cl_prepare_matmul),
    ROW("", "Flatten", cl_prepare_view),
    ROW("", "Identity", cl_prepare_view),
    ROW("", "Reshape", cl_prepare_view),
    ROW("", "Squeeze", cl_prepare_view),
    ROW("", "Unsqueeze", cl_prepare_view),
    ROW("", "Transpose", cl_prepare_transpose),
    ROW("", "Expand", cl_prepare_expand),
    ROW("", "Slice", cl_prepare_slice),
    ROW("weft", "SliceGrad", cl_prepare_slice_grad),
    ROW("", "Split", cl_prepare_split),
    ROW("", "Concat", cl_prepare_concat),
    ROW("", "Dropout", cl_prepare_dropout),
    ROW("", "Gather", cl_prepare_gather),
    ROW("weft", "GatherGrad", cl_prepare_gather_grad),
    ROW("", "GatherND", cl_prepare_gather_nd),
    ROW("", "Softmax", cl_prepare_softmax),
    ROW("weft", "SoftmaxGrad", cl_prepare_softmax_grad),
    ROW("weft", "LogSoftmaxGrad", cl_prepare_softmax_grad),
    ROW("", "LayerNormalization", cl_prepare_layer_norm),
    ROW("com.microsoft", "LayerNormalizationGrad", cl_prepare_layer_norm_grad),
    ROW("weft", "SumTo", cl_prepare_sum_to),
    ROW("", "ReduceSum", cl_prepare_reduce),
    ROW("", "ReduceMean", cl_prepare_reduce),
    ROW("", "Conv", cl_prepare_conv),
    ROW("com.microsoft", "ConvGrad", cl_prepare_conv_grad),
    ROW("", "MaxPool", cl_prepare_max_pool),
    ROW("weft", "MaxPoolMask", cl_prepare_max_pool),
    ROW("weft", "MaxPoolGrad", cl_prepare_max_pool_grad),
    ROW("weft", "FlashAttentionGrad", cl_prepare_attention_grad),
    ROW("weft", "TreeFold", prepare_tree_fold),
    ROW("weft", "DropoutMask", prepare_dropout_mask),
    ROW("weft", "SGD", cl_prepare_sgd),
    ROW("weft", "Momentum", cl_prepare_momentum),
    ROW("weft", "LearningRate", cl_prepare_learning_rate),
    ROW("weft", "SquareSum", cl_prepare_square_sum),
    ROW("weft", "ClipScale", cl_prepare_clip_scale),
    ROW("weft", "FlashAttention", cl_prepare_attention),
    ROW("", "LogSoftmax", cl_prepare_softmax),
    ROW("", "SoftmaxCrossEntropyLoss", prepare_loss),
    ROW("com.microsoft", "SoftmaxCrossEntropyLossGrad", prepare_loss_grad),
    ROW("weft", "Adagrad", cl_prepare_adagrad),
    ROW("weft", "Adam", cl_prepare_adam),
    ROW("weft", "AdamW", cl_prepare_adam),
};
#define OF_DOUBLES 10u
const size_t cl_kernel_count = sizeof cl_kernels / sizeof *cl_kernels;
const size_t cl_float_kernel_count = sizeof cl_kernels / sizeof *cl_kernels - OF_DOUBLES;
