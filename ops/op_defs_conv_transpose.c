/* SPDX-License-Identifier: Apache-2.0 */
/* The transposed convolution: the gradient of a convolution's input, as an operator. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_conv_transpose(weft_node_desc_t *node)
{
    wefti_window_t window;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    const weft_tensor_desc_t *x = &node->inputs[0], *w = &node->inputs[1];
    const weft_tensor_desc_t *b = wefti_infer_input(node, 2);
    if (w->rank != x->rank || w->dtype != x->dtype) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "type or shape mismatch: X is %s with %u dimensions, W is %s with %u dimensions",
            weft_dtype_name(x->dtype), x->rank, weft_dtype_name(w->dtype), w->rank);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_window_resolve_transposed(node, x->rank, x->dims, w->dims + 2, &window));
    int64_t group = weft_node_attr_int(node, "group", 1), channels, features = w->dims[1];
    if (!wefti_dim_merge(x->dims[1], w->dims[0], &channels) || group < 1 ||
        (channels >= 0 && channels % group != 0) ||
        (features >= 0 && __builtin_mul_overflow(features, group, &features))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "channel mismatch: X has %" PRId64 ", W has %" PRId64 " in %" PRId64
                           " groups",
                           x->dims[1], w->dims[0], group);
    }
    if (b != NULL && (b->rank != 1 || !wefti_dim_merge(features, b->dims[0], &features))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "B: expected one value per output channel");
    }
    int64_t dims[WEFT_MAX_DIMS] = {x->dims[0], features};
    memcpy(dims + 2, window.out, sizeof(window.out));
    wefti_infer_set(node, 0, x->dtype, x->rank, dims);
    return WEFT_OK;
}

static void cost_conv_transpose(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_tensor_desc_t *w = &node->inputs[1];
    double channels = w->rank > 0 && w->dims[0] > 0 ? (double)w->dims[0] : 1.0;
    *out_flops = 2.0 * wefti_cost_elems(&node->inputs[0]) * wefti_cost_elems(w) / channels;
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t attrs[] = {
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
    {.name = "output_padding",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[0, ...]",
     .doc = "added to the output size, less than the stride"},
    {.name = "output_shape",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "none",
     .doc = "output size, in place of pads"},
    {.name = "pads",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[0, ...]",
     .doc = "begins, then ends, taken from the output"},
    {.name = "strides",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[1, ...]",
     .doc = "step of the window in the output"},
};

static const weft_op_def_t defs[] = {
    {.domain = "",
     .name = "ConvTranspose",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = attrs,
     .attr_count = WEFTI_COUNT(attrs),
     .infer = infer_conv_transpose,
     .cost = cost_conv_transpose,
     .doc = "transposed convolution over one to three dimensions",
     WEFTI_FACTS(.mixing = WEFT_MIXING_FROM_1, .gradient = WEFT_GRADIENT_CONVOLUTION_TRANSPOSED,
                 .expansion = WEFT_EXPANSION_VOLUME, .precision = WEFT_PRECISION_HALF,
                 .cost_curve = WEFT_COST_CURVE_CONV)},
};

wefti_op_family_t wefti_op_defs_transposed(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
