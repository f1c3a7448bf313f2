/* SPDX-License-Identifier: Apache-2.0 */
/* Poolings and their gradients. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

weft_status_t wefti_infer_pool(weft_node_desc_t *node)
{
    wefti_window_t window;
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0];
    status = wefti_window_resolve(node, x->rank, x->dims, NULL, &window);
    if (status < 0) {
        return status;
    }
    for (uint32_t d = 0; d < window.spatial; d++) {
        /* Otherwise a window could lie in padding alone: no maximum, an average over nothing. */
        int64_t extent = (window.kernel[d] - 1) * window.dilation[d] + 1;
        if (window.pad_begin[d] >= extent || window.pad_end[d] >= extent) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "padding %" PRId64 " and %" PRId64
                               " must be smaller than the window of %" PRId64,
                               window.pad_begin[d], window.pad_end[d], extent);
        }
    }
    int64_t dims[WEFT_MAX_DIMS] = {x->dims[0], x->dims[1]};
    memcpy(dims + 2, window.out, sizeof(window.out));
    wefti_infer_set(node, 0, x->dtype, x->rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_max_pool(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_pool(node);
    if (status >= 0) {
        weft_tensor_desc_t indices = node->outputs[0];
        indices.dtype = WEFT_DTYPE_I64;
        wefti_infer_set_like(node, 1, &indices);
    }
    return status;
}

static weft_status_t infer_max_pool_mask(weft_node_desc_t *node)
{
    int64_t kernel[WEFTI_MAX_SPATIAL], area = 1;
    uint32_t count;
    weft_status_t status = wefti_infer_pool(node);
    if (status < 0) {
        return status;
    }
    WEFT_TRY(status, wefti_attr_ints(node, "kernel_shape", kernel, WEFTI_MAX_SPATIAL, &count), out);
    for (uint32_t d = 0; d < count; d++) {
        if (__builtin_mul_overflow(area, kernel[d], &area) || area > 255) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "the window has more than 255 elements; the mask cannot index them");
        }
    }
    weft_tensor_desc_t mask = node->outputs[0];
    mask.dtype = WEFT_DTYPE_U8;
    wefti_infer_set_like(node, 1, &mask);
out:
    return status;
}

static weft_status_t infer_global_pool(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    weft_tensor_desc_t y = node->inputs[0];
    if (y.rank < 3) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input has %u dimensions, expected at least 3", y.rank);
    }
    for (uint32_t d = 2; d < y.rank; d++) {
        y.dims[d] = 1;
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

/* dX has input_shape; pooling that shape must give dY's. */
static weft_status_t infer_pool_grad(weft_node_desc_t *node)
{
    weft_tensor_desc_t x = {0}, y = {0};
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *dy = &node->inputs[0];
    x.dtype = dy->dtype;
    status = wefti_attr_ints(node, "input_shape", x.dims, WEFT_MAX_DIMS, &x.rank);
    if (status < 0) {
        return status;
    }
    weft_node_desc_t forward = *node;
    forward.inputs = &x;
    forward.input_count = 1;
    forward.outputs = &y;
    forward.output_count = 1;
    status = wefti_infer_pool(&forward);
    if (status < 0) {
        return wefti_error_prefix(status, "input_shape");
    }
    for (uint32_t d = 0; d < y.rank; d++) {
        int64_t merged;
        if (dy->rank != y.rank || !wefti_dim_merge(y.dims[d], dy->dims[d], &merged)) {
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT,
                "attribute input_shape: pooling it does not result in the shape of dY");
        }
    }
    wefti_infer_set_like(node, 0, &x);
    return WEFT_OK;
}

static weft_status_t infer_max_pool_grad(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 2);
    if (status < 0) {
        return status;
    }
    weft_tensor_desc_t pair[2] = {node->inputs[0], node->inputs[1]};
    if (pair[1].dtype != WEFT_DTYPE_U8) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Mask has type %s, expected u8",
                           weft_dtype_name(pair[1].dtype));
    }
    pair[1].dtype = pair[0].dtype;
    weft_node_desc_t same_type = *node;
    same_type.inputs = pair;
    WEFT_TRY(status, wefti_infer_match(&same_type, 0, 1), out);
    status = infer_pool_grad(node);
out:
    return status;
}

static void cost_pool(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    /* Every window element is looked at once: the kernel area times the smaller tensor. */
    int64_t kernel[WEFTI_MAX_SPATIAL];
    uint32_t count = 0;
    double area = 1.0, in = wefti_cost_elems(&node->inputs[0]),
           out = wefti_cost_elems(&node->outputs[0]);
    if (wefti_attr_ints(node, "kernel_shape", kernel, WEFTI_MAX_SPATIAL, &count) < 0) {
        count = 0;
    }
    for (uint32_t d = 0; d < count; d++) {
        area *= (double)kernel[d];
    }
    *out_flops = count == 0 ? in : area * (in < out ? in : out);
    *out_bytes = wefti_cost_bytes(node);
}

#define AUTO_PAD                                                                                   \
    {                                                                                              \
        .name = "auto_pad", .type = WEFT_ATTR_TYPE_STRING, .default_s = "NOTSET",                  \
        .doc = "NOTSET, VALID, SAME_UPPER or SAME_LOWER"                                           \
    }
#define KERNEL                                                                                     \
    {                                                                                              \
        .name = "kernel_shape", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "window size"   \
    }
#define PADS                                                                                       \
    {                                                                                              \
        .name = "pads", .type = WEFT_ATTR_TYPE_INTS, .default_s = "[0, ...]",                      \
        .doc = "begins, then ends"                                                                 \
    }
#define STRIDES                                                                                    \
    {                                                                                              \
        .name = "strides", .type = WEFT_ATTR_TYPE_INTS, .default_s = "[1, ...]",                   \
        .doc = "step of the window"                                                                \
    }
#define CEIL                                                                                       \
    {                                                                                              \
        .name = "ceil_mode", .type = WEFT_ATTR_TYPE_INT, .doc = "1: round the output size up"      \
    }
#define DILATIONS                                                                                  \
    {                                                                                              \
        .name = "dilations", .type = WEFT_ATTR_TYPE_INTS, .default_s = "[1, ...]",                 \
        .doc = "step in the window"                                                                \
    }
#define COUNT_PAD                                                                                  \
    {                                                                                              \
        .name = "count_include_pad", .type = WEFT_ATTR_TYPE_INT,                                   \
        .doc = "1: padding counts in the divisor"                                                  \
    }
#define ORDER                                                                                      \
    {                                                                                              \
        .name = "storage_order", .type = WEFT_ATTR_TYPE_INT, .doc = "1: Indices are column-major"  \
    }
#define SHAPE                                                                                      \
    {                                                                                              \
        .name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "shape of dX"    \
    }

static const weft_attr_def_t plain_attrs[] = {AUTO_PAD, KERNEL, PADS, STRIDES};
static const weft_attr_def_t max8_attrs[] = {AUTO_PAD, KERNEL, PADS, ORDER, STRIDES};
static const weft_attr_def_t max10_attrs[] = {AUTO_PAD, CEIL,  DILATIONS, KERNEL,
                                              PADS,     ORDER, STRIDES};
static const weft_attr_def_t mask_attrs[] = {AUTO_PAD, CEIL, DILATIONS, KERNEL, PADS, STRIDES};
static const weft_attr_def_t max_grad_attrs[] = {AUTO_PAD, CEIL, DILATIONS, SHAPE,
                                                 KERNEL,   PADS, STRIDES};
static const weft_attr_def_t avg7_attrs[] = {AUTO_PAD, COUNT_PAD, KERNEL, PADS, STRIDES};
static const weft_attr_def_t avg10_attrs[] = {AUTO_PAD, CEIL, COUNT_PAD, KERNEL, PADS, STRIDES};
static const weft_attr_def_t avg19_attrs[] = {AUTO_PAD, CEIL, COUNT_PAD, DILATIONS,
                                              KERNEL,   PADS, STRIDES};
static const weft_attr_def_t avg_grad_attrs[] = {AUTO_PAD, CEIL,   COUNT_PAD, DILATIONS,
                                                 SHAPE,    KERNEL, PADS,      STRIDES};

#define POOL(...) POOL_OF(WEFTI_BIT_FLOATS, __VA_ARGS__)
#define POOL_OF(types, space, op, version, in, outs_min, outs, list, rule, text, ...)              \
    {                                                                                              \
        .domain = space, .name = op, .since_version = version, .inputs_min = in, .inputs_max = in, \
        .outputs_min = outs_min, .outputs_max = outs, .dtypes = types,                             \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = WEFTI_COUNT(list),           \
        .infer = rule, .cost = cost_pool, .doc = text,                                             \
        WEFTI_FACTS(.cost_curve = WEFT_COST_CURVE_POOL, __VA_ARGS__)                               \
    }
#define MAXIMUM                                                                                    \
    .mixing = WEFT_MIXING_FROM_2, .gradient = WEFT_GRADIENT_WINDOW_MAXIMUM,                        \
    .expansion = WEFT_EXPANSION_VOLUME, .precision = WEFT_PRECISION_INPUTS,                        \
    .layout = {1u, 1u, 1, 2500, 600}
#define MEAN                                                                                       \
    .linear_inputs = 1u, .mixing = WEFT_MIXING_FROM_2, .gradient = WEFT_GRADIENT_WINDOW_MEAN,      \
    .expansion = WEFT_EXPANSION_VOLUME, .precision = WEFT_PRECISION_INPUTS,                        \
    .layout = {1u, 1u, 1, 2500, 600}

static const weft_op_def_t defs[] = {
    POOL("", "MaxPool", 1, 1, 1, 1, plain_attrs, infer_max_pool, "maximum of each window", MAXIMUM),
    POOL("", "MaxPool", 8, 1, 1, 2, max8_attrs, infer_max_pool, "maximum of each window, and where",
         MAXIMUM),
    POOL_OF(WEFTI_BIT_FLOATS | WEFT_DTYPE_BIT(WEFT_DTYPE_U8) | WEFT_DTYPE_BIT(WEFT_DTYPE_I8), "",
            "MaxPool", 10, 1, 1, 2, max10_attrs, infer_max_pool,
            "maximum of each window, and where", MAXIMUM),
    POOL("", "AveragePool", 1, 1, 1, 1, plain_attrs, wefti_infer_pool, "mean of each window", MEAN),
    POOL("", "AveragePool", 7, 1, 1, 1, avg7_attrs, wefti_infer_pool, "mean of each window", MEAN),
    POOL("", "AveragePool", 10, 1, 1, 1, avg10_attrs, wefti_infer_pool, "mean of each window",
         MEAN),
    POOL("", "AveragePool", 19, 1, 1, 1, avg19_attrs, wefti_infer_pool, "mean of each window",
         MEAN),
    {.domain = "",
     .name = "GlobalAveragePool",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .infer = infer_global_pool,
     .cost = cost_pool,
     .doc = "mean over all spatial dimensions",
     WEFTI_FACTS(.linear_inputs = 1u, .mixing = WEFT_MIXING_FROM_2,
                 .gradient = WEFT_GRADIENT_GLOBAL_MEAN, .precision = WEFT_PRECISION_INPUTS)},
    POOL("weft", "MaxPoolMask", 1, 1, 2, 2, mask_attrs, infer_max_pool_mask,
         "MaxPool that also keeps each maximum's index inside its window",
         .mixing = WEFT_MIXING_FROM_2, .precision = WEFT_PRECISION_INPUTS,
         .evaluation = {"", "MaxPool"}, .layout = {1u, 3u, 1, 2500, 600}),
    POOL("weft", "MaxPoolGrad", 1, 2, 1, 1, max_grad_attrs, infer_max_pool_grad,
         "gradient of MaxPoolMask from dY and Mask", .linear_inputs = 1u,
         .layout = {3u, 1u, 1, 800, 300}),
    POOL("weft", "AveragePoolGrad", 1, 1, 1, 1, avg_grad_attrs, infer_pool_grad,
         "gradient of AveragePool from dY", .linear_inputs = 1u, .layout = {1u, 1u, 1, 800, 300}),
};

wefti_op_family_t wefti_op_defs_pool(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
