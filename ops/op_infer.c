/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/op_infer.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/error.h"

const weft_tensor_desc_t *wefti_infer_input(const weft_node_desc_t *node, uint32_t index)
{
    if (index >= node->input_count || node->inputs[index].dtype == WEFT_DTYPE_NONE) {
        return NULL;
    }
    return &node->inputs[index];
}

weft_status_t wefti_infer_need(const weft_node_desc_t *node, uint32_t count)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        const weft_tensor_desc_t *input = &node->inputs[i];
        if (input->dtype == WEFT_DTYPE_NONE) {
            continue;
        }
        if (weft_dtype_size_bytes(input->dtype) == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has unknown type %d", i,
                               (int)input->dtype);
        }
        if (input->rank > WEFT_MAX_DIMS) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input %u has %u dimensions, at most %d are supported", i,
                               input->rank, WEFT_MAX_DIMS);
        }
        for (uint32_t d = 0; d < input->rank; d++) {
            if (input->dims[d] < -1) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "dimension %u of input %u is %" PRId64, d, i, input->dims[d]);
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (wefti_infer_input(node, i) == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u is missing", i);
        }
    }
    return WEFT_OK;
}

void wefti_infer_set(weft_node_desc_t *node, uint32_t index, weft_dtype_t dtype, uint32_t rank,
                     const int64_t *dims)
{
    if (index >= node->output_count) {
        return;
    }
    /* dims may lie in an array of node itself; a copy also clears what rank does not cover. */
    weft_tensor_desc_t result = {.dtype = dtype, .layout = WEFT_LAYOUT_PLAIN, .rank = rank};
    for (uint32_t d = 0; d < rank && d < WEFT_MAX_DIMS; d++) {
        result.dims[d] = dims[d];
    }
    node->outputs[index] = result;
}

void wefti_infer_set_like(weft_node_desc_t *node, uint32_t index, const weft_tensor_desc_t *like)
{
    wefti_infer_set(node, index, like->dtype, like->rank, like->dims);
}

weft_status_t wefti_infer_same(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    wefti_infer_set_like(node, 0, &node->inputs[0]);
    return WEFT_OK;
}

bool wefti_dim_merge(int64_t a, int64_t b, int64_t *out)
{
    if (a == b || b < 0) {
        *out = a;
        return true;
    }
    *out = b;
    return a < 0;
}

bool wefti_infer_parameter_type(const weft_tensor_desc_t *x, weft_dtype_t dtype)
{
    const bool half = x->dtype == WEFT_DTYPE_F16 || x->dtype == WEFT_DTYPE_BF16;
    return dtype == x->dtype || (half && dtype == WEFT_DTYPE_F32);
}

weft_status_t wefti_infer_match(const weft_node_desc_t *node, uint32_t a, uint32_t b)
{
    const weft_tensor_desc_t *x = &node->inputs[a];
    const weft_tensor_desc_t *y = &node->inputs[b];
    if (x->dtype != y->dtype) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs %u and %u have types %s and %s", a, b,
                           weft_dtype_name(x->dtype), weft_dtype_name(y->dtype));
    }
    if (x->rank != y->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs %u and %u have %u and %u dimensions",
                           a, b, x->rank, y->rank);
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        int64_t merged;
        if (!wefti_dim_merge(x->dims[d], y->dims[d], &merged)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "dimension %u of inputs %u and %u is %" PRId64 " and %" PRId64, d, a,
                               b, x->dims[d], y->dims[d]);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_broadcast(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b,
                                    uint32_t *out_rank, int64_t *out_dims)
{
    uint32_t rank = a->rank > b->rank ? a->rank : b->rank;
    for (uint32_t i = 0; i < rank; i++) { /* from the last dimension */
        int64_t x = i < a->rank ? a->dims[a->rank - 1 - i] : 1;
        int64_t y = i < b->rank ? b->dims[b->rank - 1 - i] : 1;
        int64_t merged;
        if (x == 1) {
            merged = y;
        } else if (y == 1) {
            merged = x;
        } else if (!wefti_dim_merge(x, y, &merged)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "dimensions %" PRId64 " and %" PRId64
                               " (counted %u from the last) cannot be broadcast",
                               x, y, i);
        }
        out_dims[rank - 1 - i] = merged;
    }
    *out_rank = rank;
    return WEFT_OK;
}

weft_status_t wefti_infer_axis(int64_t axis, uint32_t rank, const char *what, uint32_t *out_axis)
{
    if (axis < -(int64_t)rank || axis >= (int64_t)rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s %" PRId64 " is outside [-%u, %u)", what,
                           axis, rank, rank);
    }
    *out_axis = (uint32_t)(axis < 0 ? axis + rank : axis);
    return WEFT_OK;
}

weft_status_t wefti_infer_axes(const weft_node_desc_t *node, uint32_t rank, bool from_input,
                               uint32_t *out_mask, bool *out_given)
{
    int64_t axes[WEFT_MAX_DIMS];
    uint32_t count = 0;
    weft_status_t status = WEFT_OK;
    *out_mask = 0;
    *out_given = false;
    if (!from_input) {
        *out_given = weft_node_attr(node, "axes") != NULL;
        status = wefti_attr_ints(node, "axes", axes, WEFT_MAX_DIMS, &count);
    } else if (wefti_infer_input(node, 1) != NULL) {
        *out_given = true;
        if (!wefti_const_ints(&node->inputs[1], axes, WEFT_MAX_DIMS, &count)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "axes must be a constant list of integers");
        }
    }
    for (uint32_t i = 0; status >= 0 && i < count; i++) {
        uint32_t axis = 0;
        status = wefti_infer_axis(axes[i], rank, "axis", &axis);
        if (status >= 0 && (*out_mask & (1u << axis)) != 0) {
            status = wefti_error(WEFT_ERR_INVALID_ARGUMENT, "duplicate axis %u", axis);
        }
        if (status >= 0) {
            *out_mask |= 1u << axis;
        }
    }
    return status;
}

bool wefti_const_ints(const weft_tensor_desc_t *desc, int64_t *out, uint32_t max,
                      uint32_t *out_count)
{
    if (desc == NULL || desc->data == NULL || desc->rank > 1 ||
        (desc->dtype != WEFT_DTYPE_I64 && desc->dtype != WEFT_DTYPE_I32)) {
        return false;
    }
    int64_t count = desc->rank == 0 ? 1 : desc->dims[0];
    if (count < 0 || count > max) {
        return false;
    }
    const char *bytes = desc->data; /* may be unaligned */
    for (int64_t i = 0; i < count; i++) {
        if (desc->dtype == WEFT_DTYPE_I64) {
            memcpy(&out[i], bytes + 8 * i, 8);
        } else {
            int32_t narrow;
            memcpy(&narrow, bytes + 4 * i, 4);
            out[i] = narrow;
        }
    }
    *out_count = (uint32_t)count;
    return true;
}

weft_status_t wefti_attr_ints(const weft_node_desc_t *node, const char *name, int64_t *out,
                              uint32_t max, uint32_t *out_count)
{
    const weft_attr_t *attr = weft_node_attr(node, name);
    *out_count = 0;
    if (attr == NULL) {
        return WEFT_OK;
    }
    if (attr->type != WEFT_ATTR_TYPE_INTS || attr->count > max) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute %s must be a list of at most %u integers", name, max);
    }
    for (size_t i = 0; i < attr->count; i++) {
        out[i] = attr->ints[i];
    }
    *out_count = (uint32_t)attr->count;
    return WEFT_OK;
}

double wefti_cost_elems(const weft_tensor_desc_t *desc)
{
    double product = 1.0;
    if (desc == NULL || desc->dtype == WEFT_DTYPE_NONE) {
        return 0.0;
    }
    for (uint32_t d = 0; d < desc->rank; d++) {
        product *= desc->dims[d] < 0 ? 1.0 : (double)desc->dims[d];
    }
    return product;
}

double wefti_cost_bytes(const weft_node_desc_t *node)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        const weft_tensor_desc_t *t = &node->inputs[i];
        bytes += wefti_cost_elems(t) * (double)weft_dtype_size_bytes(t->dtype);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        const weft_tensor_desc_t *t = &node->outputs[i];
        bytes += wefti_cost_elems(t) * (double)weft_dtype_size_bytes(t->dtype);
    }
    return bytes;
}

void wefti_cost_elementwise(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = node->output_count > 0 ? wefti_cost_elems(&node->outputs[0]) : 0.0;
    *out_bytes = wefti_cost_bytes(node);
}

void wefti_cost_copy(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 0.0;
    *out_bytes = wefti_cost_bytes(node);
}

void wefti_cost_free(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    (void)node;
    *out_flops = 0.0;
    *out_bytes = 0.0;
}
