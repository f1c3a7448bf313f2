/* SPDX-License-Identifier: Apache-2.0 */
/* Gemm: Y = alpha A B + beta C, C broadcast to [M, N]. */
#include "ops/compute/gemm_half.h"
#include "ops/compute/halves.h"
#include "ops/compute/kernel_check.h"
#include "ops/compute/product_kernels.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

typedef struct gemm_state {
    wefti_gemm_t gemm;
    wefti_gemm_half_t half; /* in place of gemm, if half.in is set */
    int64_t bias_row, bias_col;
    int64_t bias_count; /* elements of a half type, which are widened first */
    bool has_bias;
} gemm_state_t;

static weft_status_t bias_strides(const weft_node_desc_t *node, gemm_state_t *state)
{
    const weft_tensor_desc_t *c = &node->inputs[2];
    const weft_dtype_t dtype = wefti_is_half(c->dtype) ? node->inputs[0].dtype : WEFT_DTYPE_F32;
    WEFT_RETURN_IF_ERROR(wefti_check_type(node, c, "input 2", false, dtype));
    const int64_t rows = c->rank >= 2 ? c->dims[c->rank - 2] : 1;
    const int64_t cols = c->rank >= 1 ? c->dims[c->rank - 1] : 1;
    if (c->rank > 2 || (rows != 1 && rows != state->gemm.m) ||
        (cols != 1 && cols != state->gemm.n)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "Gemm: input 2 cannot be broadcast to [%lld, %lld]",
                           (long long)state->gemm.m, (long long)state->gemm.n);
    }
    if (dtype != WEFT_DTYPE_F32) {
        state->bias_count = rows * cols;
        if (rows > 1 && cols > 1) { /* by copies of everything */
            return wefti_error(WEFT_ERR_UNSUPPORTED, "Gemm: input 2 is a matrix of a half type");
        }
    }
    state->bias_row = rows == 1 ? 0 : cols;
    state->bias_col = cols == 1 ? 0 : 1;
    state->has_bias = state->gemm.beta != 0;
    return WEFT_OK;
}

static weft_status_t describe(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                              gemm_state_t *state)
{
    weft_status_t status;
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Gemm: expected two inputs and one output");
    }
    const weft_tensor_desc_t *a = &node->inputs[0], *b = &node->inputs[1], *y = &node->outputs[0];
    const weft_dtype_t in = wefti_is_half(a->dtype) ? a->dtype : WEFT_DTYPE_F32;
    const weft_dtype_t out = wefti_is_half(y->dtype) ? in : WEFT_DTYPE_F32;
    WEFT_TRY(status, wefti_check_type(node, a, "input 0", false, in), out);
    WEFT_TRY(status, wefti_check_type(node, b, "input 1", false, in), out);
    WEFT_TRY(status, wefti_check_type(node, y, "output 0", false, out), out);
    if (a->rank != 2 || b->rank != 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Gemm: inputs must be matrices");
    }
    wefti_gemm_t *g = &state->gemm;
    g->trans_a = weft_node_attr_int(node, "transA", 0) != 0;
    g->trans_b = weft_node_attr_int(node, "transB", 0) != 0;
    g->m = a->dims[g->trans_a ? 1 : 0];
    g->k = a->dims[g->trans_a ? 0 : 1];
    g->n = b->dims[g->trans_b ? 0 : 1];
    if (b->dims[g->trans_b ? 1 : 0] != g->k) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Gemm: inner dimensions %lld and %lld differ",
                           (long long)g->k, (long long)b->dims[g->trans_b ? 1 : 0]);
    }
    WEFT_TRY(status, wefti_check_shape(node, y, "output 0", 2, (int64_t[]){g->m, g->n}), out);
    g->lda = a->dims[1];
    g->ldb = b->dims[1];
    g->ldc = g->n;
    g->alpha = weft_node_attr_float(node, "alpha", 1);
    g->beta = weft_node_attr_float(node, "beta", 1);
    g->isa = env->isa;
    g->threads = env->thread_count;
    if (wefti_node_has_input(node, 2)) {
        WEFT_TRY(status, bias_strides(node, state), out);
    }
    status =
        in == WEFT_DTYPE_F32 ? wefti_gemm_plan(g) : wefti_gemm_half_plan(&state->half, g, in, out);
out:
    return status;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    *out_state = NULL;
    gemm_state_t *state = wefti_alloc(NULL, sizeof *state);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = describe(node, env, state);
    if (status != WEFT_OK) {
        wefti_free(NULL, state);
        return status;
    }
    *out_state = state;
    *out_scratch_bytes =
        state->half.in == WEFT_DTYPE_NONE
            ? state->gemm.scratch_bytes
            : state->half.scratch_bytes + (size_t)state->bias_count * sizeof(float);
    return WEFT_OK;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const gemm_state_t *state = call->state;
    const wefti_gemm_half_t *half = &state->half;
    wefti_gemm_bias_t bias = {state->has_bias ? call->inputs[2] : NULL, state->bias_row,
                              state->bias_col};
    if (half->in != WEFT_DTYPE_NONE) {
        if (state->bias_count > 0 && state->has_bias) {
            float *wide = (float *)(void *)((char *)call->scratch + half->scratch_bytes);
            wefti_halves_widen(half->isa, half->in, call->inputs[2], state->bias_count, wide);
            bias.data = wide;
        }
        wefti_gemm_half_run(half, call->inputs[0], call->inputs[1], &bias, call->outputs[0],
                            call->scratch);
        return WEFT_OK;
    }
    wefti_gemm_run(&state->gemm, call->inputs[0], call->inputs[1], &bias, false, call->outputs[0],
                   call->scratch);
    return WEFT_OK;
}

static void destroy(void *state)
{
    wefti_free(NULL, state);
}

static const char *implementation(void *state)
{
    return wefti_gemm_name(&((const gemm_state_t *)state)->gemm);
}

const weft_kernel_t wefti_kernel_gemm = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "",
    .op = "Gemm",
    .since_version = 1,
    .prepare = prepare,
    .run = run,
    .destroy = destroy,
    .implementation = implementation,
};
