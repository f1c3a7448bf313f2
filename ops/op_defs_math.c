/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic: element-wise operators, matrix products, softmax. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_binary(weft_node_desc_t *node)
{
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    if (node->inputs[0].dtype != node->inputs[1].dtype) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs have types %s and %s",
                           weft_dtype_name(node->inputs[0].dtype),
                           weft_dtype_name(node->inputs[1].dtype));
    }
    WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(&node->inputs[0], &node->inputs[1], &rank, dims));
    wefti_infer_set(node, 0, node->inputs[0].dtype, rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_gemm(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 2);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *a = &node->inputs[0], *b = &node->inputs[1];
    const weft_tensor_desc_t *c = wefti_infer_input(node, 2);
    if (a->rank != 2 || b->rank != 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "A and B have %u and %u dimensions, expected 2", a->rank, b->rank);
    }
    if (a->dtype != b->dtype || (c != NULL && c->dtype != a->dtype)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "A, B and C differ in type");
    }
    uint32_t ta = weft_node_attr_int(node, "transA", 0) != 0;
    uint32_t tb = weft_node_attr_int(node, "transB", 0) != 0;
    int64_t k;
    if (!wefti_dim_merge(a->dims[1 - ta], b->dims[tb], &k)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "inner dimensions differ: A has %" PRId64 ", B has %" PRId64,
                           a->dims[1 - ta], b->dims[tb]);
    }
    weft_tensor_desc_t y = {.dtype = a->dtype, .rank = 2, .dims = {a->dims[ta], b->dims[1 - tb]}};
    if (c != NULL) {
        int64_t dims[WEFT_MAX_DIMS];
        uint32_t rank;
        status = wefti_infer_broadcast(&y, c, &rank, dims);
        if (status < 0) {
            return wefti_error_prefix(status, "C");
        }
        if (rank != 2 || (y.dims[0] >= 0 && dims[0] != y.dims[0]) ||
            (y.dims[1] >= 0 && dims[1] != y.dims[1])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "C has more elements than the product");
        }
        /* C may only tell a dimension that it does not broadcast. */
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

/* One operand of MatMul: its matrix dimensions after the optional exchange; vectors get a 1. */
static weft_tensor_desc_t as_matrices(const weft_tensor_desc_t *in, bool left, bool exchange)
{
    weft_tensor_desc_t m = *in;
    if (m.rank == 1) {
        m.rank = 2;
        m.dims[left ? 1 : 0] = in->dims[0];
        m.dims[left ? 0 : 1] = 1;
    } else if (exchange) {
        m.dims[m.rank - 1] = in->dims[m.rank - 2];
        m.dims[m.rank - 2] = in->dims[m.rank - 1];
    }
    return m;
}

static weft_status_t infer_matmul(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 2);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *a = &node->inputs[0], *b = &node->inputs[1];
    if (a->rank == 0 || b->rank == 0 || a->dtype != b->dtype) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "type or shape mismatch: A is %s with %u dimensions, B is %s with %u dimensions",
            weft_dtype_name(a->dtype), a->rank, weft_dtype_name(b->dtype), b->rank);
    }
    weft_tensor_desc_t x = as_matrices(a, true, weft_node_attr_int(node, "transA", 0) != 0);
    weft_tensor_desc_t y = as_matrices(b, false, weft_node_attr_int(node, "transB", 0) != 0);
    int64_t rows = x.dims[x.rank - 2], columns = y.dims[y.rank - 1], k;
    if (!wefti_dim_merge(x.dims[x.rank - 1], y.dims[y.rank - 2], &k)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "inner dimensions differ: A has %" PRId64 ", B has %" PRId64,
                           x.dims[x.rank - 1], y.dims[y.rank - 2]);
    }
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    x.rank -= 2;
    y.rank -= 2;
    status = wefti_infer_broadcast(&x, &y, &rank, dims);
    if (status < 0) {
        return status;
    }
    /* rank + 2 <= WEFT_MAX_DIMS: both operands passed that check with their matrices. */
    if (a->rank > 1) {
        dims[rank++] = rows;
    }
    if (b->rank > 1) {
        dims[rank++] = columns;
    }
    wefti_infer_set(node, 0, a->dtype, rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_fused_matmul(weft_node_desc_t *node)
{
    static const char *const others[] = {"transBatchA", "transBatchB"};
    for (size_t i = 0; i < WEFTI_COUNT(others); i++) {
        if (weft_node_attr_int(node, others[i], 0) != 0) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "attribute %s is not supported", others[i]);
        }
    }
    return infer_matmul(node);
}

static void cost_gemm(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_tensor_desc_t *a = &node->inputs[0];
    bool ta = weft_node_attr_int(node, "transA", 0) != 0;
    int64_t k = a->rank == 0 ? 1 : a->dims[a->rank >= 2 && ta ? a->rank - 2 : a->rank - 1];
    *out_flops = 2.0 * (k < 0 ? 1.0 : (double)k) * wefti_cost_elems(&node->outputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

weft_status_t wefti_softmax_axis(const weft_node_desc_t *node, int64_t *out_outer,
                                 int64_t *out_length, int64_t *out_inner)
{
    const weft_tensor_desc_t *x = &node->inputs[0];
    bool old = node->version < 13 && node->domain[0] == '\0'; /* gradients have the new form */
    uint32_t axis;
    int64_t given = weft_node_attr_int(node, "axis", old ? 1 : -1);
    /* The old form may name the end; a negative axis counts from the last dimension in both. */
    bool may_be_end = (old && given >= 0) || x->rank == 0;
    weft_status_t status = wefti_infer_axis(given, x->rank + (may_be_end ? 1 : 0), "axis", &axis);
    if (status < 0) {
        return status;
    }
    *out_outer = *out_length = *out_inner = 1;
    for (uint32_t d = 0; d < x->rank; d++) {
        int64_t *part = d < axis ? out_outer : d == axis || old ? out_length : out_inner;
        if (x->dims[d] < 0 || __builtin_mul_overflow(*part, x->dims[d], part)) {
            *out_outer = *out_length = *out_inner = -1;
            return WEFT_OK;
        }
    }
    return WEFT_OK;
}

static weft_status_t infer_softmax(weft_node_desc_t *node)
{
    int64_t outer, length, inner;
    weft_status_t status = wefti_infer_same(node);
    return status < 0 ? status : wefti_softmax_axis(node, &outer, &length, &inner);
}

static void cost_softmax(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 20.0 * wefti_cost_elems(&node->inputs[0]); /* an exp is about 16 operations */
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t gemm_attrs[] = {
    {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1.0f, .doc = "factor of A B"},
    {.name = "beta", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1.0f, .doc = "factor of C"},
    {.name = "transA", .type = WEFT_ATTR_TYPE_INT, .doc = "1: A is given transposed"},
    {.name = "transB", .type = WEFT_ATTR_TYPE_INT, .doc = "1: B is given transposed"},
};
static const weft_attr_def_t fused_matmul_attrs[] = {
    {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1.0f, .doc = "factor of A B"},
    {.name = "transA", .type = WEFT_ATTR_TYPE_INT, .doc = "1: exchange A's last two dimensions"},
    {.name = "transB", .type = WEFT_ATTR_TYPE_INT, .doc = "1: exchange B's last two dimensions"},
};
static const weft_attr_def_t softmax_attrs_old[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "first dimension of a row"},
};
static const weft_attr_def_t softmax_attrs[] = {
    {.name = "axis",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = -1,
     .doc = "the dimension that sums to one"},
};

#define BINARY(op, text, ...)                                                                      \
    {                                                                                              \
        .domain = "", .name = op, .since_version = 7, .inputs_min = 2, .inputs_max = 2,            \
        .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_NUMBERS,                           \
        .in_place = {0, -1, -1, -1}, .infer = infer_binary, .cost = wefti_cost_elementwise,        \
        .doc = text, WEFTI_FACTS(.precision = WEFT_PRECISION_INPUTS, __VA_ARGS__)                  \
    }
#define GEMM(version, least)                                                                       \
    {                                                                                              \
        .domain = "", .name = "Gemm", .since_version = version, .inputs_min = least,               \
        .inputs_max = 3, .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_NUMBERS,          \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = gemm_attrs,                                      \
        .attr_count = WEFTI_COUNT(gemm_attrs), .infer = infer_gemm, .cost = cost_gemm,             \
        .doc = "Y = alpha A B + beta C of matrices",                                               \
        WEFTI_FACTS(.gradient = WEFT_GRADIENT_GEMM, .precision = WEFT_PRECISION_HALF,              \
                    .cost_curve = WEFT_COST_CURVE_PRODUCT)                                         \
    }
#define SOFTMAX(op, version, list, mixes, kind, text)                                              \
    {                                                                                              \
        .domain = "", .name = op, .since_version = version, .inputs_min = 1, .inputs_max = 1,      \
        .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_FLOATS,                            \
        .in_place = {0, -1, -1, -1}, .attrs = list, .attr_count = WEFTI_COUNT(list),               \
        .infer = infer_softmax, .cost = cost_softmax, .doc = text,                                 \
        WEFTI_FACTS(.mixing = mixes, .cost_curve = WEFT_COST_CURVE_EXP,                            \
                    .gradient = WEFT_GRADIENT_SOFTMAX, .precision = kind,                          \
                    .result_grad = {"weft", op "Grad"})                                            \
    }

static const weft_op_def_t defs[] = {
    BINARY("Add", "Y = A + B, broadcasting", .flags = WEFT_FACT_ELEMENTWISE | WEFT_FACT_COMMUTATIVE,
           .arithmetic = WEFT_ARITHMETIC_ADD, .layout = {3u, 1u, 1, 0, 0}),
    BINARY("Sub", "Y = A - B, broadcasting", .flags = WEFT_FACT_ELEMENTWISE,
           .arithmetic = WEFT_ARITHMETIC_SUBTRACT),
    BINARY("Mul", "Y = A B element by element, broadcasting",
           .flags = WEFT_FACT_ELEMENTWISE | WEFT_FACT_COMMUTATIVE,
           .arithmetic = WEFT_ARITHMETIC_MULTIPLY, .linear_inputs = 3u),
    BINARY("Div", "Y = A / B element by element, broadcasting", .flags = WEFT_FACT_ELEMENTWISE,
           .arithmetic = WEFT_ARITHMETIC_DIVIDE, .linear_inputs = 1u),
    GEMM(7, 3),
    GEMM(11, 2),
    {.domain = "",
     .name = "MatMul",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 2,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_NUMBERS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .infer = infer_matmul,
     .cost = cost_gemm,
     .doc = "matrix product of the last two dimensions, the others broadcast",
     WEFTI_FACTS(.linear_inputs = 3u, .gradient = WEFT_GRADIENT_MATRIX_PRODUCT,
                 .precision = WEFT_PRECISION_HALF, .cost_curve = WEFT_COST_CURVE_PRODUCT)},
    {.domain = "com.microsoft",
     .name = "FusedMatMul",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 2,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = fused_matmul_attrs,
     .attr_count = WEFTI_COUNT(fused_matmul_attrs),
     .infer = infer_fused_matmul,
     .cost = cost_gemm,
     .doc = "MatMul with the last two dimensions of an operand exchanged",
     WEFTI_FACTS(.linear_inputs = 3u, .expansion = WEFT_EXPANSION_FUSED_MATMUL,
                 .precision = WEFT_PRECISION_HALF, .cost_curve = WEFT_COST_CURVE_PRODUCT)},
    SOFTMAX("Softmax", 1, softmax_attrs_old, WEFT_MIXING_FROM_AXIS, WEFT_PRECISION_INPUTS,
            "exp(X) / sum of exp(X), the input seen as a matrix"),
    SOFTMAX("Softmax", 13, softmax_attrs, WEFT_MIXING_AXIS, WEFT_PRECISION_INPUTS,
            "exp(X) / sum of exp(X) along an axis"),
    SOFTMAX("LogSoftmax", 1, softmax_attrs_old, WEFT_MIXING_FROM_AXIS, WEFT_PRECISION_F32,
            "logarithm of Softmax, the input seen as a matrix"),
    SOFTMAX("LogSoftmax", 13, softmax_attrs, WEFT_MIXING_AXIS, WEFT_PRECISION_F32,
            "logarithm of Softmax along an axis"),
};

wefti_op_family_t wefti_op_defs_math(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
