/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemm, MatMul and FusedMatMul by oneDNN's matmul primitive, on the arena's own matrices: B is
 * weights that change every step, so there is no format worth a reorder.
 */
#include "ops/compute/kernel_check.h"
#include "ops/compute/onednn_kernels.h"
#include "ops/compute/onednn_program.h"
#include "runtime/base/error.h"

/* Y = alpha A B (+ C), all with the same number of dimensions; stride 0 is never used. */
typedef struct product {
    int rank;
    dnnl_dims_t a, a_stride, b, b_stride, y, y_stride, c, c_stride;
    float alpha;
    bool has_c, c_is_row; /* a row is what oneDNN calls bias */
} product_t;

/* A stack of row-major matrices, its last two dimensions exchanged where turned. */
static void set_matrix(int rank, const int64_t *dims, bool turned, int64_t *out, int64_t *stride)
{
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        out[i] = dims[i];
        stride[i] = step;
        step *= dims[i];
    }
    if (turned) {
        const int64_t dim = out[rank - 1], by = stride[rank - 1];
        out[rank - 1] = out[rank - 2];
        stride[rank - 1] = stride[rank - 2];
        out[rank - 2] = dim;
        stride[rank - 2] = by;
    }
}

static weft_status_t tensor_of(wefti_onednn_program_t *program, int rank, const int64_t *dims,
                               const int64_t *stride, wefti_onednn_place_t place, size_t index,
                               uint32_t *out_tensor)
{
    dnnl_memory_desc_t desc;
    weft_status_t status = wefti_onednn_status(
        dnnl_memory_desc_init_by_strides(&desc, rank, dims, dnnl_f32, stride), "a matrix");
    return status == WEFT_OK ? wefti_onednn_tensor(program, &desc, place, index, out_tensor)
                             : status;
}

static weft_status_t set_attributes(const product_t *p, const dnnl_memory_desc_t *c,
                                    dnnl_primitive_attr_t attr)
{
    weft_status_t status = WEFT_OK;
    dnnl_post_ops_t ops = NULL;
    if (p->alpha != 1) {
        WEFT_TRY(status,
                 wefti_onednn_status(dnnl_primitive_attr_set_output_scales(attr, 1, 0, &p->alpha),
                                     "alpha"),
                 out);
    }
    if (c != NULL) { /* added after alpha is multiplied in */
        WEFT_TRY(status, wefti_onednn_status(dnnl_post_ops_create(&ops), "an addition"), out);
        WEFT_TRY(status,
                 wefti_onednn_status(dnnl_post_ops_append_binary(ops, dnnl_binary_add, c),
                                     "an addition"),
                 out);
        status = wefti_onednn_status(dnnl_primitive_attr_set_post_ops(attr, ops), "an addition");
    }
out:
    dnnl_post_ops_destroy(ops);
    return status;
}

static weft_status_t add_product(const product_t *p, wefti_onednn_program_t *program)
{
    weft_status_t status;
    dnnl_matmul_desc_t op;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    uint32_t a, b, c = 0, y;
    const dnnl_memory_desc_t *added = NULL;
    WEFT_TRY(status, tensor_of(program, p->rank, p->a, p->a_stride, WEFTI_ONEDNN_INPUT, 0, &a),
             out);
    WEFT_TRY(status, tensor_of(program, p->rank, p->b, p->b_stride, WEFTI_ONEDNN_INPUT, 1, &b),
             out);
    WEFT_TRY(status, tensor_of(program, p->rank, p->y, p->y_stride, WEFTI_ONEDNN_OUTPUT, 0, &y),
             out);
    if (p->has_c) {
        WEFT_TRY(status, tensor_of(program, p->rank, p->c, p->c_stride, WEFTI_ONEDNN_INPUT, 2, &c),
                 out);
        added = &program->tensors[c].desc;
    }
    const bool bias = p->has_c && p->c_is_row && p->alpha == 1; /* alpha would scale it, too */
    WEFT_TRY(status, wefti_onednn_status(dnnl_primitive_attr_create(&attr), "attributes"), out);
    WEFT_TRY(status, set_attributes(p, bias ? NULL : added, attr), out);
    WEFT_TRY(status,
             wefti_onednn_status(
                 dnnl_matmul_desc_init(&op, &program->tensors[a].desc, &program->tensors[b].desc,
                                       bias ? added : NULL, &program->tensors[y].desc),
                 "a product"),
             out);
    WEFT_TRY(status, wefti_onednn_choose(program, &op, attr, NULL, "", &desc), out);
    const wefti_onednn_arg_t args[4] = {
        {DNNL_ARG_SRC, a},
        {DNNL_ARG_WEIGHTS, b},
        {DNNL_ARG_DST, y},
        {bias ? DNNL_ARG_BIAS : DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, c}};
    status = wefti_onednn_step(program, desc, args, p->has_c ? 4 : 3);
out:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static weft_status_t check_operands(const weft_node_desc_t *node)
{
    weft_status_t status;
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: expected two inputs and one output",
                           node->op);
    }
    WEFT_TRY(status, wefti_check_f32(node, &node->inputs[0], "input 0", false), out);
    WEFT_TRY(status, wefti_check_f32(node, &node->inputs[1], "input 1", false), out);
    status = wefti_check_f32(node, &node->outputs[0], "output 0", false);
out:
    return status;
}

static weft_status_t check_inner(const weft_node_desc_t *node, const product_t *p)
{
    const int64_t left = p->a[p->rank - 1], right = p->b[p->rank - 2];
    return left == right
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: inner dimensions %lld and %lld differ",
                             node->op, (long long)left, (long long)right);
}

static weft_status_t read_c(const weft_node_desc_t *node, product_t *p)
{
    const weft_tensor_desc_t *c = &node->inputs[2];
    const float beta = weft_node_attr_float(node, "beta", 1);
    weft_status_t status = wefti_check_f32(node, c, "input 2", false);
    if (status != WEFT_OK) {
        return status;
    }
    const int64_t dims[2] = {c->rank >= 2 ? c->dims[c->rank - 2] : 1,
                             c->rank >= 1 ? c->dims[c->rank - 1] : 1};
    if (c->rank > 2 || (dims[0] != 1 && dims[0] != p->y[0]) ||
        (dims[1] != 1 && dims[1] != p->y[1])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "Gemm: input 2 cannot be broadcast to [%lld, %lld]", (long long)p->y[0],
                           (long long)p->y[1]);
    }
    if (beta != 0 && beta != 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "oneDNN: scaling input 2 by beta is not supported");
    }
    set_matrix(2, dims, false, p->c, p->c_stride);
    p->has_c = beta != 0;
    p->c_is_row = dims[0] == 1 && dims[1] == p->y[1];
    return WEFT_OK;
}

static weft_status_t describe_gemm(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   wefti_onednn_program_t *program)
{
    weft_status_t status;
    product_t p = {.rank = 2, .alpha = weft_node_attr_float(node, "alpha", 1)};
    (void)env;
    WEFT_TRY(status, check_operands(node), out);
    if (node->inputs[0].rank != 2 || node->inputs[1].rank != 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Gemm: inputs must be matrices");
    }
    set_matrix(2, node->inputs[0].dims, weft_node_attr_int(node, "transA", 0) != 0, p.a,
               p.a_stride);
    set_matrix(2, node->inputs[1].dims, weft_node_attr_int(node, "transB", 0) != 0, p.b,
               p.b_stride);
    WEFT_TRY(status, check_inner(node, &p), out);
    const int64_t y[2] = {p.a[0], p.b[1]};
    WEFT_TRY(status, wefti_check_shape(node, &node->outputs[0], "output 0", 2, y), out);
    set_matrix(2, y, false, p.y, p.y_stride);
    if (wefti_node_has_input(node, 2)) {
        WEFT_TRY(status, read_c(node, &p), out);
    }
    status = add_product(&p, program);
out:
    return status;
}

/* desc with leading dimensions of 1 up to rank; a vector is a row on the left, a column on the
 * right. */
static void widen(const weft_tensor_desc_t *desc, bool left, int rank, int64_t *out_dims)
{
    int at = rank;
    for (int i = 0; i < rank; i++) {
        out_dims[i] = 1;
    }
    if (desc->rank == 1) {
        out_dims[left ? rank - 1 : rank - 2] = desc->dims[0];
        return;
    }
    for (uint32_t i = desc->rank; i-- > 0;) {
        out_dims[--at] = desc->dims[i];
    }
}

/* Leading dimensions of Y, and Y compared with what the node says. */
static weft_status_t read_output(const weft_node_desc_t *node, product_t *p)
{
    int64_t full[WEFT_MAX_DIMS + 2] = {0}, y[WEFT_MAX_DIMS + 2] = {0};
    uint32_t rank = 0;
    for (int i = 0; i < p->rank - 2; i++) {
        if (p->a[i] != p->b[i] && p->a[i] != 1 && p->b[i] != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s: leading dimensions %lld and %lld differ", node->op,
                               (long long)p->a[i], (long long)p->b[i]);
        }
        full[i] = y[rank++] = p->a[i] == 1 ? p->b[i] : p->a[i];
    }
    full[p->rank - 2] = p->a[p->rank - 2];
    full[p->rank - 1] = p->b[p->rank - 1];
    if (node->inputs[0].rank > 1) {
        y[rank++] = full[p->rank - 2];
    }
    if (node->inputs[1].rank > 1) {
        y[rank++] = full[p->rank - 1];
    }
    set_matrix(p->rank, full, false, p->y, p->y_stride);
    return wefti_check_shape(node, &node->outputs[0], "output 0", rank, y);
}

/* One matrix on the right: the rows of all on the left are one matrix. */
static void join_rows(product_t *p)
{
    int64_t rows = 1;
    for (int i = 0; i < p->rank - 1; i++) {
        rows *= p->a[i];
    }
    const int64_t a[2] = {rows, p->a[p->rank - 1]}, y[2] = {rows, p->y[p->rank - 1]};
    for (int i = 0; i < 2; i++) { /* the rest of B's dimensions are 1 */
        p->b[i] = p->b[p->rank - 2 + i];
        p->b_stride[i] = p->b_stride[p->rank - 2 + i];
    }
    p->rank = 2;
    set_matrix(2, a, false, p->a, p->a_stride);
    set_matrix(2, y, false, p->y, p->y_stride);
}

static weft_status_t describe_matmul(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     wefti_onednn_program_t *program)
{
    weft_status_t status;
    product_t p = {.alpha = weft_node_attr_float(node, "alpha", 1)};
    int64_t a[WEFT_MAX_DIMS + 2], b[WEFT_MAX_DIMS + 2];
    (void)env;
    WEFT_TRY(status, check_operands(node), out);
    const uint32_t ra = node->inputs[0].rank, rb = node->inputs[1].rank;
    if (ra == 0 || rb == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: inputs must not be scalars", node->op);
    }
    if (weft_node_attr_int(node, "transBatchA", 0) != 0 ||
        weft_node_attr_int(node, "transBatchB", 0) != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: transBatchA and transBatchB are not supported", node->op);
    }
    p.rank = (int)(ra > rb ? ra : rb);
    p.rank = p.rank < 2 ? 2 : p.rank;
    const bool trans_a = ra > 1 && weft_node_attr_int(node, "transA", 0) != 0;
    const bool trans_b = rb > 1 && weft_node_attr_int(node, "transB", 0) != 0;
    widen(&node->inputs[0], true, p.rank, a);
    widen(&node->inputs[1], false, p.rank, b);
    set_matrix(p.rank, a, trans_a, p.a, p.a_stride);
    set_matrix(p.rank, b, trans_b, p.b, p.b_stride);
    WEFT_TRY(status, check_inner(node, &p), out);
    WEFT_TRY(status, read_output(node, &p), out);
    if (rb <= 2 && !trans_a) {
        join_rows(&p);
    }
    status = add_product(&p, program);
out:
    return status;
}

static weft_status_t prepare_gemm(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return wefti_onednn_prepare(node, env, describe_gemm, out_state, out_scratch_bytes);
}

static weft_status_t prepare_matmul(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    void **out_state, size_t *out_scratch_bytes)
{
    return wefti_onednn_prepare(node, env, describe_matmul, out_state, out_scratch_bytes);
}

#define ONEDNN_PRODUCT(symbol, space, operator, prepare_fn)                                        \
    const weft_kernel_t symbol = {.abi_version = WEFT_KERNEL_ABI_VERSION,                          \
                                  .domain = space,                                                 \
                                  .op = operator,                                                  \
                                  .since_version = 1,                                              \
                                  .prepare = prepare_fn,                                           \
                                  .run = wefti_onednn_run,                                         \
                                  .destroy = wefti_onednn_destroy,                                 \
                                  .implementation = wefti_onednn_implementation,                   \
                                  .family = "onednn"}

ONEDNN_PRODUCT(wefti_onednn_gemm, "", "Gemm", prepare_gemm);
ONEDNN_PRODUCT(wefti_onednn_matmul, "", "MatMul", prepare_matmul);
ONEDNN_PRODUCT(wefti_onednn_fused_matmul, "com.microsoft", "FusedMatMul", prepare_matmul);
