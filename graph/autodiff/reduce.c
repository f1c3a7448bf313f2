/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of sums and means over dimensions. */
#include "graph/autodiff/differentiate.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* dY with its reduced dimensions, repeated along them. */
static weft_status_t repeat(wefti_diff_t *diff, bool mean)
{
    weft_node_desc_t desc;
    uint32_t mask, dy = wefti_diff_output_grad(diff, 0);
    double count = 1.0;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_node_desc(diff->graph, diff->node, &diff->graph->arena, &desc));
    WEFT_RETURN_IF_ERROR(wefti_reduce_axes(&desc, &mask));
    int64_t kept[WEFT_MAX_DIMS];
    for (uint32_t d = 0; d < x.rank; d++) {
        bool reduced = (mask >> d & 1) != 0;
        kept[d] = reduced ? 1 : x.dims[d];
        count *= reduced ? (double)x.dims[d] : 1.0;
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, dy, mean ? 1.0 / count : 1.0, &dy));
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, dy, kept, x.rank, &dy));
    uint32_t inputs[] = {dy, WEFTI_NONE};
    WEFT_RETURN_IF_ERROR(wefti_diff_ints(diff, "shape", x.dims, x.rank, &inputs[1]));
    wefti_diff_op_t op = {.domain = "", .op = "Expand", .inputs = inputs, .input_count = 2};
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_reduce_sum(wefti_diff_t *diff)
{
    return repeat(diff, false);
}

weft_status_t wefti_diff_reduce_mean(wefti_diff_t *diff)
{
    return repeat(diff, true);
}
