/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the device, a row each; those that have windows are in window.c. */
#include "devices/opencl/kernels.h"

#include <string.h>

#define GEMM_WIDTH 16 /* columns of a work item */
#define FOLDED 8u     /* levels of 128 micro-batches */

static PREPARE(prepare_gemm)
{
    cl_node_t node = cl_start(3, 1);
    bool has_c = cl_has(desc->inputs, desc->input_count, 2);
    (void)env;
    TRY(cl_need_f32(desc, has_c ? 3 : 2, 1, 0));
    const weft_tensor_desc_t *a = &desc->inputs[0], *b = &desc->inputs[1], *y = &desc->outputs[0];
    bool trans_a = cl_attr_int(desc, "transA", 0) != 0,
         trans_b = cl_attr_int(desc, "transB", 0) != 0;
    if (a->rank != 2 || b->rank != 2 || y->rank != 2) {
        return cl_refuse(desc, "operands must be matrices");
    }
    int64_t m = a->dims[trans_a], k = a->dims[!trans_a], n = b->dims[!trans_b];
    int64_t c_row = 0, c_column = 0;
    float beta = cl_attr_float(desc, "beta", 1.0f);
    if (b->dims[trans_b] != k || y->dims[0] != m || y->dims[1] != n) {
        return cl_refuse(desc, "shapes do not fit");
    }
    if (has_c) {
        const weft_tensor_desc_t *c = &desc->inputs[2];
        int64_t rows = c->rank >= 2 ? c->dims[c->rank - 2] : 1;
        int64_t columns = c->rank >= 1 ? c->dims[c->rank - 1] : 1;
        if (c->rank > 2 || (rows != 1 && rows != m) || (columns != 1 && columns != n)) {
            return cl_refuse(desc, "input 2 cannot be broadcast");
        }
        c_row = rows == 1 ? 0 : columns;
        c_column = columns == 1 ? 0 : 1;
    }
    const int64_t numbers[] = {m, n, k, trans_a, trans_b, c_row, c_column, has_c && beta != 0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(&node, numbers[i]);
    }
    cl_add_factor(&node, cl_attr_float(desc, "alpha", 1.0f));
    cl_add_factor(&node, beta);
    int64_t padded = (n + GEMM_WIDTH - 1) / GEMM_WIDTH * GEMM_WIDTH;
    int64_t copied = k * padded + m * k;
    if (m < 1 || n < 1 || k < 1 || copied > INT32_MAX) {
        return cl_refuse(desc, "the matrices are empty or too large");
    }
    node.scratch_bytes = (size_t)copied * sizeof(float);
    cl_add_step(&node, cl_each("gemm_turn", copied));
    cl_add_step(&node, cl_each("gemm", m * padded / GEMM_WIDTH));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* Element by element, of inputs of the shape of the output. */
static weft_status_t prepare_each(const weft_node_desc_t *desc, const char *function,
                                  uint32_t inputs, void **out_state, size_t *out_scratch_bytes)
{
    cl_node_t node = cl_start(inputs, 1);
    TRY(cl_need_f32(desc, inputs, 1, 0));
    for (uint32_t i = 0; i < inputs; i++) {
        if (cl_elems(&desc->inputs[i]) != cl_elems(&desc->outputs[0])) {
            return cl_refuse(desc, "shapes differ");
        }
    }
    cl_add_step(&node, cl_each(function, cl_elems(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

static PREPARE(prepare_relu)
{
    (void)env;
    return prepare_each(desc, "relu", 1, out_state, out_scratch_bytes);
}

static PREPARE(prepare_relu_grad)
{
    (void)env;
    return prepare_each(desc, "relu_grad", 2, out_state, out_scratch_bytes);
}

/* Views: the same elements in another shape. */
static PREPARE(prepare_view)
{
    cl_node_t node = cl_start(1, 1);
    (void)env;
    if (!cl_has(desc->inputs, desc->input_count, 0) ||
        !cl_has(desc->outputs, desc->output_count, 0) ||
        desc->inputs[0].dtype != desc->outputs[0].dtype ||
        cl_elems(&desc->inputs[0]) != cl_elems(&desc->outputs[0]) ||
        desc->inputs[0].layout != desc->outputs[0].layout ||
        cl_elem_bytes(desc->inputs[0].dtype) % 4 != 0) {
        return cl_refuse(desc, "operands differ");
    }
    cl_add_step(&node,
                cl_each("copy_words", cl_elems(&desc->inputs[0]) *
                                          (int64_t)cl_elem_bytes(desc->inputs[0].dtype) / 4));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

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

/* Over the leading dimensions; those of the output are the last ones of the input. */
static PREPARE(prepare_sum_to)
{
    cl_node_t node = cl_start(1, 1);
    (void)env;
    TRY(cl_need_f32(desc, 1, 1, 0));
    const weft_tensor_desc_t *x = &desc->inputs[0], *y = &desc->outputs[0];
    uint32_t first = x->rank > y->rank ? x->rank - y->rank : 0;
    if (y->rank > x->rank || first == 0 ||
        memcmp(x->dims + first, y->dims, y->rank * sizeof *y->dims) != 0) {
        return cl_refuse(desc, "sums are over leading dimensions only");
    }
    int64_t columns = cl_elems(y);
    cl_add_number(&node, columns > 0 ? cl_elems(x) / columns : 0);
    cl_add_number(&node, columns);
    cl_add_step(&node, cl_each("sum_columns", columns));
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
    node->labels = node->f64 = true;
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
    node.scratch_bytes =
        (size_t)(rows + (has_log_prob ? 0 : cl_elems(&desc->inputs[0]))) * sizeof(float);
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

/* tensors of the parameter's shape, then scalars, then maybe a scale of the gradient */
static weft_status_t describe_update(const weft_node_desc_t *desc, uint32_t tensors,
                                     uint32_t scalars, cl_node_t *node)
{
    *node = cl_start(tensors + scalars + 1, tensors - 1);
    TRY(cl_need_f32(desc, tensors + scalars, tensors - 1, 0));
    for (uint32_t i = 0; i < tensors + scalars; i++) {
        if (cl_elems(&desc->inputs[i]) != (i < tensors ? cl_elems(&desc->inputs[0]) : 1)) {
            return cl_refuse(desc, "shapes do not fit");
        }
    }
    cl_add_number(node, cl_has(desc->inputs, desc->input_count, tensors + scalars));
    cl_add_factor(node, (float)cl_attr_int(desc, "divisor", 1));
    cl_add_factor(node, cl_attr_float(desc, "weight_decay", 0.0f));
    return WEFT_OK;
}

static PREPARE(prepare_sgd)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 2, 1, &node));
    cl_add_step(&node, cl_each("sgd", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

static PREPARE(prepare_momentum)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 3, 1, &node));
    cl_add_number(&node, cl_attr_int(desc, "nesterov", 0) != 0);
    cl_add_factor(&node, cl_attr_float(desc, "momentum", 0.9f));
    cl_add_step(&node, cl_each("momentum", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

static PREPARE(prepare_adagrad)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 3, 2, &node));
    cl_add_number(&node, cl_attr_int(desc, "first", 0));
    cl_add_factor(&node, cl_attr_float(desc, "lr_decay", 0.0f));
    cl_add_factor(&node, cl_attr_float(desc, "epsilon", 1e-10f));
    node.f64 = true;
    cl_add_step(&node, cl_each("adagrad", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

static PREPARE(prepare_adam)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 4, 2, &node));
    cl_add_number(&node, cl_attr_int(desc, "first", 1));
    cl_add_number(&node, cl_attr_int(desc, "scaled_epsilon", 0) != 0);
    cl_add_number(&node, cl_attr_int(desc, "decay_last", 0) != 0);
    cl_add_number(&node, strcmp(desc->op, "AdamW") == 0);
    cl_add_factor(&node, cl_attr_float(desc, "beta1", 0.9f));
    cl_add_factor(&node, cl_attr_float(desc, "beta2", 0.999f));
    cl_add_factor(&node, cl_attr_float(desc, "epsilon", 1e-8f));
    node.f64 = true;
    cl_add_step(&node, cl_each("adam", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

#define ROW(its_domain, name, function)                                                            \
    {                                                                                              \
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = its_domain, .op = name,                  \
        .since_version = 1, .prepare = function, .destroy = cl_node_destroy, .family = "opencl"    \
    }
const weft_kernel_t cl_kernels[] = {
    ROW("", "Gemm", prepare_gemm),
    ROW("", "Relu", prepare_relu),
    ROW("com.microsoft", "ReluGrad", prepare_relu_grad),
    ROW("", "Flatten", prepare_view),
    ROW("", "Identity", prepare_view),
    ROW("", "Reshape", prepare_view),
    ROW("", "Conv", cl_prepare_conv),
    ROW("com.microsoft", "ConvGrad", cl_prepare_conv_grad),
    ROW("", "MaxPool", cl_prepare_max_pool),
    ROW("weft", "MaxPoolMask", cl_prepare_max_pool),
    ROW("weft", "MaxPoolGrad", cl_prepare_max_pool_grad),
    ROW("weft", "SumTo", prepare_sum_to),
    ROW("", "SoftmaxCrossEntropyLoss", prepare_loss),
    ROW("com.microsoft", "SoftmaxCrossEntropyLossGrad", prepare_loss_grad),
    ROW("weft", "TreeFold", prepare_tree_fold),
    ROW("weft", "SGD", prepare_sgd),
    ROW("weft", "Momentum", prepare_momentum),
    ROW("weft", "Adagrad", prepare_adagrad),
    ROW("weft", "Adam", prepare_adam),
    ROW("weft", "AdamW", prepare_adam),
};
const size_t cl_kernel_count = sizeof cl_kernels / sizeof *cl_kernels;
