/* SPDX-License-Identifier: Apache-2.0 */
/* MatMul and FusedMatMul: the last two dimensions are matrices, the others are broadcast. */
#include <string.h>

#include "ops/compute/gemm_half.h"
#include "ops/compute/halves.h"
#include "ops/compute/kernel_check.h"
#include "ops/compute/product_kernels.h"
#include "ops/compute/support.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

typedef struct matmul_state {
    wefti_gemm_t gemm;
    wefti_gemm_half_t half; /* in place of gemm, if half.in is set */
    bool wide;              /* f64: rows of gemm, without its choices */
    int64_t batch_count;
    int64_t *a_offset; /* elements, per matrix of the output; NULL when there is one */
    int64_t *b_offset;
} matmul_state_t;

/* Operands as matrices with leading dimensions; a vector is a row on the left, a column on the
 * right. */
typedef struct operand {
    int64_t rows, cols;
    uint32_t batch_rank;
    int64_t batch[WEFT_MAX_DIMS];
} operand_t;

static operand_t operand_of(const weft_tensor_desc_t *desc, bool left)
{
    operand_t o = {1, 1, 0, {0}};
    if (desc->rank == 1) {
        *(left ? &o.cols : &o.rows) = desc->dims[0];
        return o;
    }
    o.rows = desc->dims[desc->rank - 2];
    o.cols = desc->dims[desc->rank - 1];
    o.batch_rank = desc->rank - 2;
    for (uint32_t i = 0; i < o.batch_rank; i++) {
        o.batch[i] = desc->dims[i];
    }
    return o;
}

/* Dimension i, counted from the last leading dimension. */
static int64_t batch_dim(const operand_t *o, uint32_t i)
{
    return i < o->batch_rank ? o->batch[o->batch_rank - 1 - i] : 1;
}

static weft_status_t make_offsets(matmul_state_t *state, const operand_t *a, const operand_t *b,
                                  uint32_t rank, const int64_t *dims)
{
    const size_t count = (size_t)state->batch_count;
    state->a_offset = wefti_alloc(NULL, count * sizeof *state->a_offset);
    state->b_offset = wefti_alloc(NULL, count * sizeof *state->b_offset);
    if (state->a_offset == NULL || state->b_offset == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t index = 0; index < count; index++) {
        int64_t rest = (int64_t)index;
        int64_t a_step = a->rows * a->cols, b_step = b->rows * b->cols;
        for (uint32_t i = 0; i < rank; i++) { /* from the last leading dimension to the first */
            const int64_t at = rest % dims[rank - 1 - i];
            rest /= dims[rank - 1 - i];
            state->a_offset[index] += batch_dim(a, i) == 1 ? 0 : at * a_step;
            state->b_offset[index] += batch_dim(b, i) == 1 ? 0 : at * b_step;
            a_step *= batch_dim(a, i);
            b_step *= batch_dim(b, i);
        }
    }
    return WEFT_OK;
}

/* The output's leading dimensions into dims; its whole shape is compared with what the node says.
 */
static weft_status_t check_output(const weft_node_desc_t *node, const operand_t *a,
                                  const operand_t *b, const wefti_gemm_t *g, int64_t *dims,
                                  uint32_t *out_rank)
{
    const uint32_t rank = a->batch_rank > b->batch_rank ? a->batch_rank : b->batch_rank;
    uint32_t full = rank;
    for (uint32_t i = 0; i < rank; i++) {
        const int64_t da = batch_dim(a, i), db = batch_dim(b, i);
        if (da != db && da != 1 && db != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s: leading dimensions %lld and %lld differ", node->op,
                               (long long)da, (long long)db);
        }
        dims[rank - 1 - i] = da == 1 ? db : da;
    }
    if (node->inputs[0].rank > 1) {
        dims[full++] = g->m;
    }
    if (node->inputs[1].rank > 1) {
        dims[full++] = g->n;
    }
    *out_rank = rank;
    return wefti_check_shape(node, &node->outputs[0], "output 0", full, dims);
}

static weft_status_t describe(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                              matmul_state_t *state)
{
    weft_status_t status;
    int64_t dims[WEFT_MAX_DIMS + 2] = {0};
    uint32_t rank = 0;
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: expected two inputs and one output",
                           node->op);
    }
    if (weft_node_attr_int(node, "transBatchA", 0) != 0 ||
        weft_node_attr_int(node, "transBatchB", 0) != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: transBatchA and transBatchB are not supported", node->op);
    }
    state->wide = node->inputs[0].dtype == WEFT_DTYPE_F64;
    const weft_dtype_t in = wefti_is_half(node->inputs[0].dtype) || state->wide
                                ? node->inputs[0].dtype
                                : WEFT_DTYPE_F32;
    const weft_dtype_t out =
        wefti_is_half(node->outputs[0].dtype) || state->wide ? in : WEFT_DTYPE_F32;
    WEFT_TRY(status, wefti_check_type(node, &node->inputs[0], "input 0", false, in), out);
    WEFT_TRY(status, wefti_check_type(node, &node->inputs[1], "input 1", false, in), out);
    WEFT_TRY(status, wefti_check_type(node, &node->outputs[0], "output 0", false, out), out);
    if (node->inputs[0].rank == 0 || node->inputs[1].rank == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: inputs must not be scalars", node->op);
    }
    const operand_t a = operand_of(&node->inputs[0], true), b = operand_of(&node->inputs[1], false);
    wefti_gemm_t *g = &state->gemm;
    /* A vector has nothing to exchange. */
    g->trans_a = node->inputs[0].rank > 1 && weft_node_attr_int(node, "transA", 0) != 0;
    g->trans_b = node->inputs[1].rank > 1 && weft_node_attr_int(node, "transB", 0) != 0;
    g->m = g->trans_a ? a.cols : a.rows;
    g->k = g->trans_a ? a.rows : a.cols;
    g->n = g->trans_b ? b.rows : b.cols;
    if ((g->trans_b ? b.cols : b.rows) != g->k) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: inner dimensions %lld and %lld differ",
                           node->op, (long long)g->k, (long long)(g->trans_b ? b.cols : b.rows));
    }
    WEFT_TRY(status, check_output(node, &a, &b, g, dims, &rank), out);
    g->lda = a.cols;
    g->ldb = b.cols;
    g->ldc = g->n;
    g->alpha = weft_node_attr_float(node, "alpha", 1);
    g->beta = 0;
    g->isa = env->isa;
    g->threads = env->thread_count;
    state->batch_count = weft_tensor_elem_count(&node->outputs[0]) / (g->m * g->n);
    if (b.batch_rank == 0 && !g->trans_a) {
        g->m *= state->batch_count; /* one matrix on the right: the rows of all on the left are one
                                       matrix */
        state->batch_count = 1;
    }
    if (state->batch_count > 1) {
        WEFT_TRY(status, make_offsets(state, &a, &b, rank, dims), out);
    }
    status = state->wide            ? WEFT_OK
             : in == WEFT_DTYPE_F32 ? wefti_gemm_plan(g)
                                    : wefti_gemm_half_plan(&state->half, g, in, out);
out:
    return status;
}

static void destroy(void *opaque)
{
    matmul_state_t *state = opaque;
    if (state == NULL) {
        return;
    }
    wefti_free(NULL, state->a_offset);
    wefti_free(NULL, state->b_offset);
    wefti_free(NULL, state);
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    *out_state = NULL;
    matmul_state_t *state = wefti_alloc(NULL, sizeof *state);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = describe(node, env, state);
    if (status != WEFT_OK) {
        destroy(state);
        return status;
    }
    *out_state = state;
    *out_scratch_bytes =
        state->half.in == WEFT_DTYPE_NONE ? state->gemm.scratch_bytes : state->half.scratch_bytes;
    return WEFT_OK;
}

typedef struct job {
    const wefti_gemm_t *g;
    const double *a, *b;
    double *c;
} job_t;

/* Rows of f64. Each sum is in the order of k, without fused multiply-adds. */
static void run_rows(const void *opaque, wefti_range_t range)
{
    const job_t *job = opaque;
    const wefti_gemm_t *g = job->g;
    const int64_t a_row = g->trans_a ? 1 : g->lda, a_k = g->trans_a ? g->lda : 1;
    const int64_t b_k = g->trans_b ? 1 : g->ldb, b_col = g->trans_b ? g->ldb : 1;
    for (int64_t m = range.from; m < range.to; m++) {
        double *c = job->c + m * g->ldc;
        memset(c, 0, (size_t)g->n * sizeof(*c));
        for (int64_t k = 0; k < g->k; k++) {
            const double x = job->a[m * a_row + k * a_k];
            for (int64_t n = 0; n < g->n; n++) {
                c[n] += x * job->b[k * b_k + n * b_col];
            }
        }
        for (int64_t n = 0; n < g->n && g->alpha != 1.0f; n++) {
            c[n] *= (double)g->alpha;
        }
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const matmul_state_t *state = call->state;
    const wefti_gemm_t *g = &state->gemm;
    const wefti_gemm_half_t *half = &state->half;
    const wefti_gemm_bias_t none = {NULL, 0, 0};
    const float *a = call->inputs[0], *b = call->inputs[1];
    const uint16_t *half_a = call->inputs[0], *half_b = call->inputs[1];
    const size_t size = weft_dtype_size_bytes(half->out);
    float *c = call->outputs[0];
    for (int64_t i = 0; i < state->batch_count; i++) {
        const int64_t a_at = state->batch_count > 1 ? state->a_offset[i] : 0;
        const int64_t b_at = state->batch_count > 1 ? state->b_offset[i] : 0;
        if (state->wide) {
            const job_t job = {g, (const double *)call->inputs[0] + a_at,
                               (const double *)call->inputs[1] + b_at,
                               (double *)call->outputs[0] + i * g->m * g->n};
            wefti_parallel_for(g->threads, g->m, wefti_grain_rows(g->n * g->k), run_rows, &job);
            continue;
        }
        if (half->in != WEFT_DTYPE_NONE) {
            wefti_gemm_half_run(half, half_a + a_at, half_b + b_at, &none,
                                (char *)call->outputs[0] + (size_t)(i * g->m * g->n) * size,
                                call->scratch);
            continue;
        }
        wefti_gemm_run(g, a + a_at, b + b_at, NULL, false, c + i * g->m * g->n, call->scratch);
    }
    return WEFT_OK;
}

static const char *implementation(void *state)
{
    const matmul_state_t *s = state;
    return s->wide ? "gemm:f64" : wefti_gemm_name(&s->gemm);
}

const weft_kernel_t wefti_kernel_matmul = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "",
    .op = "MatMul",
    .since_version = 1,
    .prepare = prepare,
    .run = run,
    .destroy = destroy,
    .implementation = implementation,
};

const weft_kernel_t wefti_kernel_fused_matmul = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "com.microsoft",
    .op = "FusedMatMul",
    .since_version = 1,
    .prepare = prepare,
    .run = run,
    .destroy = destroy,
    .implementation = implementation,
};
