/* SPDX-License-Identifier: Apache-2.0 */
/* Resize and Upsample, and their gradient. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* A constant list of f32; false: not constant. */
static bool const_floats(const weft_tensor_desc_t *desc, float *out, uint32_t *out_count)
{
    int64_t count = desc == NULL ? 0 : weft_tensor_elem_count(desc);
    *out_count = 0;
    if (desc == NULL || count == 0) {
        return true;
    }
    if (desc->data == NULL || desc->dtype != WEFT_DTYPE_F32 || count < 0 || count > WEFT_MAX_DIMS) {
        return false;
    }
    memcpy(out, desc->data, (size_t)count * sizeof(*out));
    *out_count = (uint32_t)count;
    return true;
}

/* The dimension that entry i of scales or sizes is for. */
static weft_status_t axis_of(const weft_node_desc_t *node, uint32_t rank, uint32_t i,
                             uint32_t *out_axis)
{
    const weft_attr_t *axes = weft_node_attr(node, "axes");
    if (axes == NULL) {
        *out_axis = i;
        return WEFT_OK;
    }
    return wefti_infer_axis(axes->ints[i], rank, "axes", out_axis);
}

/* All dimensions that sizes are for get the least or the largest of their scales. */
static weft_status_t keep_aspect(const char *policy, const weft_tensor_desc_t *x, uint32_t mask,
                                 wefti_resize_t *out)
{
    const bool larger = strcmp(policy, "not_smaller") == 0;
    double scale = larger ? 0.0 : INFINITY;
    bool known = true;
    if (strcmp(policy, "stretch") == 0) {
        return WEFT_OK;
    }
    if (!larger && strcmp(policy, "not_larger") != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute keep_aspect_ratio_policy is \"%s\"", policy);
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        const bool taken = (mask >> d & 1) != 0 && (larger == (out->scale[d] > scale));
        scale = taken ? out->scale[d] : scale;
        known = known && ((mask >> d & 1) == 0 || out->size[d] >= 0);
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        if ((mask >> d & 1) != 0 && !known) {
            out->size[d] = -1; /* the scale comes later */
        } else if ((mask >> d & 1) != 0) {
            const double size = floor((double)x->dims[d] * scale + 0.5);
            if (!(size < 0x1p31)) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "dimension %u: invalid size", d);
            }
            out->scale[d] = scale;
            out->size[d] = (int64_t)size;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_resize_resolve(const weft_node_desc_t *node, uint32_t x_input,
                                   wefti_resize_t *out)
{
    const bool upsamples = strncmp(node->op, "Upsample", 8) == 0;
    const bool old = upsamples || (node->domain[0] == '\0' && node->version < 11);
    const weft_tensor_desc_t *x = &node->inputs[x_input];
    const weft_tensor_desc_t *scales = wefti_infer_input(node, x_input + (old ? 1 : 2));
    const weft_tensor_desc_t *sizes = old ? NULL : wefti_infer_input(node, x_input + 3);
    const weft_attr_t *attr = weft_node_attr(node, "scales"), *axes = weft_node_attr(node, "axes");
    float factors[WEFT_MAX_DIMS];
    int64_t lengths[WEFT_MAX_DIMS];
    uint32_t factor_count = 0, length_count = 0, expected = x->rank, mask = 0;
    const char *policy = weft_node_attr_string(node, "keep_aspect_ratio_policy", "stretch");
    if (axes != NULL) {
        expected = (uint32_t)axes->count;
        if (axes->type != WEFT_ATTR_TYPE_INTS || axes->count > x->rank) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute axes: expected dimensions");
        }
    }
    out->known = const_floats(scales, factors, &factor_count);
    if (attr != NULL && attr->floats != NULL && attr->count <= WEFT_MAX_DIMS) {
        factor_count = (uint32_t)attr->count;
        memcpy(factors, attr->floats, factor_count * sizeof(factors[0]));
    }
    if (out->known && factor_count == 0 && sizes != NULL) {
        out->known = wefti_const_ints(sizes, lengths, WEFT_MAX_DIMS, &length_count);
    }
    if (out->known && factor_count + length_count != expected) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%u scales and %u sizes for %u dimensions",
                           factor_count, length_count, expected);
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        out->size[d] = out->known || axes != NULL ? x->dims[d] : -1;
        out->scale[d] = 1.0;
    }
    for (uint32_t i = 0; i < expected; i++) {
        uint32_t d;
        WEFT_RETURN_IF_ERROR(axis_of(node, x->rank, i, &d));
        mask |= 1u << d;
        if (!out->known || x->dims[d] < 0) {
            out->size[d] = -1;
        } else if (length_count > 0) {
            out->size[d] = lengths[i] >= 0 && lengths[i] < 1ll << 31 ? lengths[i] : -2;
            out->scale[d] = x->dims[d] > 0 ? (double)lengths[i] / (double)x->dims[d] : 1.0;
        } else {
            double size = floor((double)x->dims[d] * (double)factors[i]);
            out->size[d] = size >= 0.0 && size < 0x1p31 ? (int64_t)size : -2;
            out->scale[d] = (double)factors[i];
        }
        if (out->size[d] < -1 || !(out->scale[d] > 0.0)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "dimension %u: invalid size or scale", d);
        }
    }
    return length_count > 0 ? keep_aspect(policy, x, mask, out) : WEFT_OK;
}

static weft_status_t infer_resize(weft_node_desc_t *node)
{
    wefti_resize_t resize;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_resize_resolve(node, 0, &resize));
    wefti_infer_set(node, 0, node->inputs[0].dtype, node->inputs[0].rank, resize.size);
    return WEFT_OK;
}

static weft_status_t infer_resize_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    wefti_infer_set_like(node, 0, &node->inputs[1]);
    return WEFT_OK;
}

#define STRING(key, value, text)                                                                   \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_STRING, .default_s = value, .doc = text                \
    }
#define INT(key, value, text)                                                                      \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_INT, .default_i = value, .doc = text                   \
    }
#define MODE STRING("mode", "nearest", "nearest, linear or cubic")
static const weft_attr_def_t upsample_attrs_7[] = {
    MODE,
    {.name = "scales", .type = WEFT_ATTR_TYPE_FLOATS, .required = 1, .doc = "of each dimension"},
};
static const weft_attr_def_t mode_attrs[] = {MODE};
#define RESIZE_ATTRS                                                                               \
    STRING("coordinate_transformation_mode", "half_pixel", "where a result lies in X"),            \
        {.name = "cubic_coeff_a",                                                                  \
         .type = WEFT_ATTR_TYPE_FLOAT,                                                             \
         .default_f = -0.75f,                                                                      \
         .doc = "of mode cubic"},                                                                  \
        INT("exclude_outside", 0, "1: weights of elements outside of X are 0"),                    \
        {.name = "extrapolation_value",                                                            \
         .type = WEFT_ATTR_TYPE_FLOAT,                                                             \
         .doc = "of tf_crop_and_resize: of results outside of X"},                                 \
        MODE, STRING("nearest_mode", "round_prefer_floor", "how mode nearest rounds")
static const weft_attr_def_t resize_attrs[] = {RESIZE_ATTRS};
static const weft_attr_def_t resize_attrs_18[] = {
    INT("antialias", 0, "1: a smaller result is a mean of all elements that it covers"),
    {.name = "axes", .type = WEFT_ATTR_TYPE_INTS, .default_s = "all", .doc = "dimensions"},
    RESIZE_ATTRS,
    STRING("keep_aspect_ratio_policy", "stretch", "or not_larger, not_smaller: one scale"),
};

#define ROW(space, op, version, least, most, list, linear, rule, text, ...)                        \
    {                                                                                              \
        .domain = space, .name = op, .since_version = version, .inputs_min = least,                \
        .inputs_max = most, .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_ALL,           \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = WEFTI_COUNT(list),           \
        .infer = rule, .cost = wefti_cost_elementwise, .doc = text,                                \
        WEFTI_FACTS(.linear_inputs = linear, __VA_ARGS__)                                          \
    }
#define FORWARD(op, version, least, most, list, linear, text, ...)                                 \
    ROW("", op, version, least, most, list, linear, infer_resize, text,                            \
        __VA_ARGS__.gradient = WEFT_GRADIENT_OF_INPUTS, .result_grad = {"weft", op "Grad"})

#define SIZES .shape_inputs = 4u | 8u,

static const weft_op_def_t defs[] = {
    FORWARD("Upsample", 7, 1, 1, upsample_attrs_7, 0u, "X with larger dimensions; scales", ),
    FORWARD("Upsample", 9, 2, 2, mode_attrs, 0u, "X with larger dimensions; scales are an input", ),
    ROW("", "Resize", 10, 2, 2, mode_attrs, 0u, infer_resize,
        "X with other sizes of its dimensions; scales", .gradient = WEFT_GRADIENT_OF_INPUTS,
        .result_grad = {"weft", "UpsampleGrad"}),
    FORWARD("Resize", 11, 1, 4, resize_attrs, 1u, "X with other sizes of its dimensions", SIZES),
    FORWARD("Resize", 18, 1, 4, resize_attrs_18, 1u, "X with other sizes of some dimensions",
            SIZES),
    ROW("weft", "UpsampleGrad", 1, 2, 3, upsample_attrs_7, 0u, infer_resize_grad,
        "dX of Upsample from dY; X gives the shape", .gradient = WEFT_GRADIENT_DEFAULT),
    ROW("weft", "ResizeGrad", 1, 2, 5, resize_attrs_18, 1u, infer_resize_grad,
        "dX of Resize from dY; X gives the shape", .gradient = WEFT_GRADIENT_DEFAULT),
};

wefti_op_family_t wefti_op_defs_resize(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
