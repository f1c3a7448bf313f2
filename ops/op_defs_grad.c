/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient operators of element-wise and data-moving operators. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_pad_grad(weft_node_desc_t *node)
{
    int64_t pads[2 * WEFT_MAX_DIMS];
    uint32_t count;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "pads", pads, 2 * WEFT_MAX_DIMS, &count));
    weft_tensor_desc_t dx = node->inputs[0];
    if (count != 2 * dx.rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute pads has %u entries for %u dimensions", count, dx.rank);
    }
    for (uint32_t d = 0; d < dx.rank; d++) {
        int64_t begin = pads[d], end = pads[dx.rank + d];
        if (begin < 0 || end < 0 ||
            (dx.dims[d] >= 0 && (begin > dx.dims[d] || end > dx.dims[d] - begin))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "pads %" PRId64 " and %" PRId64
                               " exceed dimension %u of size %" PRId64,
                               begin, end, d, dx.dims[d]);
        }
        dx.dims[d] = dx.dims[d] < 0 ? -1 : dx.dims[d] - begin - end;
    }
    wefti_infer_set_like(node, 0, &dx);
    return WEFT_OK;
}

static weft_status_t infer_sum_to(weft_node_desc_t *node)
{
    weft_tensor_desc_t dx = {0};
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    const weft_tensor_desc_t *dy = &node->inputs[0];
    if (weft_node_attr(node, "shape") == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute shape is missing");
    }
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "shape", dx.dims, WEFT_MAX_DIMS, &dx.rank));
    for (uint32_t i = 0; i < dx.rank; i++) { /* from the last dimension */
        int64_t to = dx.dims[dx.rank - 1 - i];
        int64_t from = i < dy->rank ? dy->dims[dy->rank - 1 - i] : -2;
        if (to < -1 || from < -1 || (to != 1 && to >= 0 && from >= 0 && to != from)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute shape cannot be broadcast to the shape of dY");
        }
    }
    dx.dtype = dy->dtype;
    wefti_infer_set_like(node, 0, &dx);
    return WEFT_OK;
}

static void cost_sum(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t pad_grad_attrs[] = {
    {.name = "pads",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "begins, then ends; not negative"},
};
static const weft_attr_def_t sum_to_attrs[] = {
    {.name = "shape", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "shape of dX"},
};

static const weft_op_def_t defs[] = {
    {.domain = "weft",
     .name = "PadGrad",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = pad_grad_attrs,
     .attr_count = WEFTI_COUNT(pad_grad_attrs),
     .infer = infer_pad_grad,
     .cost = wefti_cost_copy,
     .doc = "dX = dY without the padding",
     WEFTI_FACTS(.linear_inputs = 1u, .layout = {1u, 1u, 1, 0, 0})},
    {.domain = "weft",
     .name = "SumTo",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = sum_to_attrs,
     .attr_count = WEFTI_COUNT(sum_to_attrs),
     .infer = infer_sum_to,
     .cost = cost_sum,
     .doc = "sums over broadcast dimensions until shape is left",
     WEFTI_FACTS(.linear_inputs = 1u)},
};

wefti_op_family_t wefti_op_defs_grad(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
