/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partial sums of micro-batches. The inputs are folded block by block, each block stays in the
 * nearest cache, so memory is read and written once whatever the number of levels.
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

#define BLOCK 1024 /* elements */

typedef struct {
    const void *const *inputs;
    void *out;
    uint32_t input_count;
    int64_t count;
    bool half; /* the result is bf16 */
} fold_t;

typedef struct {
    void (*fold)(const fold_t *f);
    uint32_t input_count;
    int64_t count;
    bool half;
} state_t;

/* Which of two NaNs an addition keeps is up to the processor: all become one. */
WEFTI_INLINE float quiet(float x)
{
    uint32_t bits = wefti_f32_bits(x);
    return wefti_f32_from_bits((bits & 0x7fffffffu) > 0x7f800000u ? WEFTI_F32_NAN : bits);
}

WEFTI_INLINE void fold_block(const fold_t *f, int64_t at, int64_t count)
{
    float sum[BLOCK];
    memcpy(sum, (const float *)f->inputs[0] + at, (size_t)count * sizeof(float));
    for (uint32_t level = 1; level < f->input_count; level++) {
        const float *x = (const float *)f->inputs[level] + at;
        for (int64_t i = 0; i < count; i++) {
            sum[i] = x[i] + sum[i];
        }
    }
    if (f->half) {
        uint16_t *out = (uint16_t *)f->out + at;
        for (int64_t i = 0; i < count; i++) {
            out[i] = wefti_bf16_from_f32(sum[i]);
        }
    } else {
        float *out = (float *)f->out + at;
        for (int64_t i = 0; i < count; i++) {
            out[i] = quiet(sum[i]);
        }
    }
}

WEFTI_INLINE void fold_body(const fold_t *f)
{
    for (int64_t at = 0; at < f->count; at += BLOCK) {
        fold_block(f, at, f->count - at < BLOCK ? f->count - at : BLOCK);
    }
}

#define PARAMS (const fold_t *f)
WEFTI_CLONES(fold, PARAMS, (f));

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    const fold_t f = {call->inputs, call->outputs[0], state->input_count, state->count,
                      state->half};
    if (state->input_count > 1 || state->half) {
        state->fold(&f);
    } else if (call->outputs[0] != call->inputs[0] && state->count > 0) {
        memcpy(call->outputs[0], call->inputs[0], (size_t)state->count * sizeof(float));
    }
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    const weft_tensor_desc_t *out = wefti_node_output(node, 0);
    for (uint32_t i = 0; i < (node->input_count == 0 ? 1 : node->input_count); i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, i));
        if (!wefti_same_shape(&node->inputs[i], &node->inputs[0])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has the wrong shape", i);
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_need_known(out, "output", 0));
    if (!wefti_same_shape(out, &node->inputs[0]) ||
        (out->dtype != WEFT_DTYPE_F32 && out->dtype != WEFT_DTYPE_BF16)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output 0 has the wrong type or shape");
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->fold = fold[wefti_kernel_isa(env)];
    state->input_count = node->input_count;
    state->count = weft_tensor_elem_count(&node->inputs[0]);
    state->half = out->dtype == WEFT_DTYPE_BF16;
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_tree_fold, "weft", "TreeFold", prepare, run);
