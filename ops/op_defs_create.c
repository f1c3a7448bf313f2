/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors from shapes and numbers: Size, ConstantOfShape, Range. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

static weft_status_t infer_size(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    wefti_infer_set(node, 0, WEFT_DTYPE_I64, 0, NULL);
    return WEFT_OK;
}

weft_status_t wefti_shape_input(const weft_node_desc_t *node, uint32_t index, int64_t *out_dims,
                                uint32_t *out_rank)
{
    const weft_tensor_desc_t *shape = &node->inputs[index];
    if (wefti_const_ints(shape, out_dims, WEFT_MAX_DIMS, out_rank)) {
        for (uint32_t d = 0; d < *out_rank; d++) {
            if (out_dims[d] < 0) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "shape: invalid entry %u: %" PRId64,
                                   d, out_dims[d]);
            }
        }
        return WEFT_OK;
    }
    if (shape->rank != 1 || shape->dims[0] < 0 || shape->dims[0] > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the shape must be a list of at most %d integers", WEFT_MAX_DIMS);
    }
    *out_rank = (uint32_t)shape->dims[0];
    for (uint32_t d = 0; d < *out_rank; d++) {
        out_dims[d] = -1; /* known only once the shape is */
    }
    return WEFT_OK;
}

static weft_status_t infer_constant_of_shape(weft_node_desc_t *node)
{
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    const weft_attr_t *value = weft_node_attr(node, "value");
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_shape_input(node, 0, dims, &rank));
    if (value != NULL && (value->tensor == NULL || weft_tensor_elem_count(value->tensor) != 1)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute value: expected one element");
    }
    wefti_infer_set(node, 0, value != NULL ? value->tensor->dtype : WEFT_DTYPE_F32, rank, dims);
    return WEFT_OK;
}

/* The one number of a constant; integers exactly. */
static bool read_number(const weft_tensor_desc_t *x, double *out_f, int64_t *out_i)
{
    float f32;
    uint32_t count;
    if (x->data == NULL || weft_tensor_elem_count(x) != 1) {
        return false;
    }
    if (x->dtype == WEFT_DTYPE_F32) {
        memcpy(&f32, x->data, sizeof(f32));
        *out_f = (double)f32;
        return true;
    }
    if (x->dtype == WEFT_DTYPE_F16 || x->dtype == WEFT_DTYPE_BF16) {
        uint16_t half;
        memcpy(&half, x->data, sizeof(half));
        *out_f =
            (double)(x->dtype == WEFT_DTYPE_F16 ? wefti_f16_to_f32(half) : wefti_bf16_to_f32(half));
        return true;
    }
    if (x->dtype == WEFT_DTYPE_F64) {
        memcpy(out_f, x->data, sizeof(*out_f));
        return true;
    }
    return wefti_const_ints(x, out_i, 1, &count) && count == 1;
}

/* ceil((limit - start) / delta), at least 0; -1 if it is no number of elements. */
static int64_t range_count(bool floating, const double *f, const int64_t *i)
{
    if (floating) {
        double count = ceil((f[1] - f[0]) / f[2]);
        return !(count < 0x1p53) ? -1 : count < 0.0 ? 0 : (int64_t)count;
    }
    int64_t span;
    if (i[2] == 0 || i[2] == INT64_MIN || __builtin_sub_overflow(i[1], i[0], &span)) {
        return -1;
    }
    bool up = i[2] > 0;
    if (span == 0 || (span > 0) != up) {
        return 0;
    }
    return up ? (span - 1) / i[2] + 1 : (span + 1) / i[2] + 1;
}

static weft_status_t infer_range(weft_node_desc_t *node)
{
    double f[3] = {0};
    int64_t i[3] = {0}, count = -1;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    weft_dtype_t dtype = node->inputs[0].dtype;
    bool known = true, floating = (WEFT_DTYPE_BIT(dtype) & WEFTI_BIT_FLOATS) != 0;
    for (uint32_t k = 0; k < 3; k++) {
        if (node->inputs[k].dtype != dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "start, limit and delta differ in type");
        }
        known = read_number(&node->inputs[k], &f[k], &i[k]) && known;
    }
    if (known) {
        count = range_count(floating, f, i);
        if (count < 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "invalid start, limit and delta: no number of elements follows");
        }
    }
    wefti_infer_set(node, 0, dtype, 1, &count);
    return WEFT_OK;
}

static const weft_attr_def_t constant_of_shape_attrs[] = {
    {.name = "value",
     .type = WEFT_ATTR_TYPE_TENSOR,
     .default_s = "f32 0",
     .doc = "every element, and the type"},
};

static const weft_attr_def_t range_attrs[] = {
    {.name = "stash_type",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "ignored: f16 and bf16 are computed in f32"},
};

static const weft_op_def_t defs[] = {
    {.domain = "",
     .name = "Size",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_ALL,
     .in_place = WEFTI_IN_PLACE_NONE,
     .infer = infer_size,
     .cost = wefti_cost_free,
     .doc = "the number of elements of X",
     WEFTI_FACTS(.flags = WEFT_FACT_READS_SHAPE)},
    {.domain = "",
     .name = "ConstantOfShape",
     .since_version = 9,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_I64),
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = constant_of_shape_attrs,
     .attr_count = WEFTI_COUNT(constant_of_shape_attrs),
     .infer = infer_constant_of_shape,
     .cost = wefti_cost_copy,
     .doc = "a tensor of equal elements; the input is its shape"},
    {.domain = "",
     .name = "Range",
     .since_version = 11,
     .inputs_min = 3,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_NUMBERS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = range_attrs,
     .attr_count = WEFTI_COUNT(range_attrs),
     .infer = infer_range,
     .cost = wefti_cost_copy,
     .doc = "start, start + delta, ... up to but not including limit"},
};

wefti_op_family_t wefti_op_defs_create(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
