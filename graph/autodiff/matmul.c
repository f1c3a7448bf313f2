/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of matrix products. */
#include <string.h>

#include "graph/autodiff/differentiate.h"
#include "runtime/base/error.h"

/* Gemm of two matrices without C. */
static weft_status_t emit_gemm(wefti_diff_t *diff, uint32_t a, bool trans_a, uint32_t b,
                               bool trans_b, float alpha, uint32_t *out_value)
{
    uint32_t inputs[] = {a, b};
    weft_attr_t attrs[] = {
        {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .f = alpha},
        {.name = "transA", .type = WEFT_ATTR_TYPE_INT, .i = trans_a},
        {.name = "transB", .type = WEFT_ATTR_TYPE_INT, .i = trans_b},
    };
    wefti_diff_op_t op = {.domain = "",
                          .op = "Gemm",
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = attrs,
                          .attr_count = 3};
    return wefti_diff_emit_value(diff, &op, out_value);
}

/* Y = alpha A' B' + beta C, where ' transposes or not. */
static weft_status_t gemm_input(wefti_diff_t *diff, uint32_t index)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    uint32_t dy = wefti_diff_output_grad(diff, 0), grad = dy;
    uint32_t a = wefti_diff_input(diff, 0), b = wefti_diff_input(diff, 1);
    bool trans_a = wefti_node_int(node, "transA") != 0,
         trans_b = wefti_node_int(node, "transB") != 0;
    float alpha = wefti_node_float(node, "alpha");
    if (index == 0) { /* dA' = dY B'^T, and dA = dA'^T = B' dY^T where A is transposed */
        WEFT_RETURN_IF_ERROR(trans_a ? emit_gemm(diff, b, trans_b, dy, true, alpha, &grad)
                                     : emit_gemm(diff, dy, false, b, !trans_b, alpha, &grad));
    } else if (index == 1) { /* dB' = A'^T dY, and dB = dY^T A' */
        WEFT_RETURN_IF_ERROR(trans_b ? emit_gemm(diff, dy, true, a, trans_a, alpha, &grad)
                                     : emit_gemm(diff, a, !trans_a, dy, false, alpha, &grad));
    } else {
        double beta = (double)wefti_node_float(node, "beta");
        weft_tensor_desc_t type = diff->graph->values[wefti_diff_input(diff, index)].type;
        WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, dy, type.dims, type.rank, &grad));
        WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, grad, beta, &grad));
    }
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_gemm(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, gemm_input);
}

/* The operands and dY of a MatMul as matrices: vectors become one row or one column. */
typedef struct matrices {
    weft_tensor_desc_t a, b, y; /* shapes only */
} matrices_t;

static matrices_t as_matrices(const wefti_diff_t *diff)
{
    const wefti_value_t *values = diff->graph->values;
    matrices_t m = {values[wefti_diff_input(diff, 0)].type, values[wefti_diff_input(diff, 1)].type,
                    values[wefti_diff_output(diff, 0)].type};
    bool vector_a = m.a.rank == 1, vector_b = m.b.rank == 1;
    if (vector_a) {
        m.a.dims[1] = m.a.dims[0];
        m.a.dims[0] = 1;
        m.a.rank = 2;
    }
    if (vector_b) {
        m.b.dims[1] = 1;
        m.b.rank = 2;
        m.y.dims[m.y.rank++] = 1;
    }
    if (vector_a) {
        m.y.dims[m.y.rank] = m.y.rank ? m.y.dims[m.y.rank - 1] : 1;
        m.y.dims[m.y.rank - 1] = 1;
        m.y.rank++;
    }
    return m;
}

/* All leading dimensions in one. */
static weft_tensor_desc_t flat(const weft_tensor_desc_t *type)
{
    weft_tensor_desc_t two = *type;
    two.rank = 2;
    two.dims[0] = 1;
    for (uint32_t d = 0; d + 1 < type->rank; d++) {
        two.dims[0] *= type->dims[d];
    }
    two.dims[1] = type->dims[type->rank - 1];
    return two;
}

static weft_status_t emit_product(wefti_diff_t *diff, uint32_t a, bool trans_a, uint32_t b,
                                  bool trans_b, uint32_t *out_value)
{
    if (diff->graph->values[a].type.rank == 2 && diff->graph->values[b].type.rank == 2) {
        return emit_gemm(diff, a, trans_a, b, trans_b, 1.0f, out_value);
    }
    uint32_t inputs[] = {a, b};
    weft_attr_t attrs[] = {
        {.name = "transA", .type = WEFT_ATTR_TYPE_INT, .i = trans_a},
        {.name = "transB", .type = WEFT_ATTR_TYPE_INT, .i = trans_b},
    };
    wefti_diff_op_t op = {.domain = "com.microsoft",
                          .op = "FusedMatMul",
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = attrs,
                          .attr_count = 2};
    return wefti_diff_emit_value(diff, &op, out_value);
}

static weft_status_t matmul_input(wefti_diff_t *diff, uint32_t index)
{
    matrices_t m = as_matrices(diff);
    uint32_t dy = wefti_diff_output_grad(diff, 0), grad;
    uint32_t a = wefti_diff_input(diff, 0), b = wefti_diff_input(diff, 1);
    weft_tensor_desc_t own = diff->graph->values[index == 0 ? a : b].type;
    weft_tensor_desc_t matrix = index == 0 ? m.a : m.b;
    if (m.b.rank == 2) {
        /* One matrix for all of A: with the leading dimensions flat, one product sums over them
         * too. */
        m.a = flat(&m.a);
        m.y = flat(&m.y);
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, dy, m.y.dims, m.y.rank, &dy));
    if (index == 0) {
        WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, b, m.b.dims, m.b.rank, &b));
        WEFT_RETURN_IF_ERROR(emit_product(diff, dy, false, b, true, &grad));
    } else {
        WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, a, m.a.dims, m.a.rank, &a));
        WEFT_RETURN_IF_ERROR(emit_product(diff, a, true, dy, false, &grad));
    }
    if (m.b.rank != 2) {
        WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, grad, matrix.dims, matrix.rank, &grad));
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, grad, own.dims, own.rank, &grad));
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_matmul(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, matmul_input);
}
