/* SPDX-License-Identifier: Apache-2.0 */
/* Transpose of plain tensors of any type. */
#include "ops/compute/own_kernels.h"

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef struct {
    wefti_nest_t nest; /* over the output; a: stride in the input, b: in the output */
    size_t elem_bytes;
    uint32_t threads;
} state_t;

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    wefti_nest_copy_by(s->threads, &s->nest, call->inputs[0], call->outputs[0], s->elem_bytes);
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    int64_t perm[WEFT_MAX_DIMS], from[WEFT_MAX_DIMS], to[WEFT_MAX_DIMS];
    uint32_t count, seen = 0;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "perm", perm, WEFT_MAX_DIMS, &count));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (x->layout != WEFT_LAYOUT_PLAIN || y->layout != WEFT_LAYOUT_PLAIN || x->dtype != y->dtype ||
        x->rank != y->rank || (weft_node_attr(node, "perm") != NULL && count != x->rank)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Transpose: input, output and perm do not match");
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        perm[d] = count == 0 ? (int64_t)x->rank - 1 - d : perm[d];
        if (perm[d] < 0 || perm[d] >= x->rank || (seen & (1u << perm[d])) != 0 ||
            x->dims[perm[d]] != y->dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "Transpose: perm does not match the shape of the output");
        }
        seen |= 1u << perm[d];
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_strides(x, from);
    wefti_strides(y, to);
    wefti_nest_init(&state->nest);
    for (uint32_t d = 0; d < y->rank; d++) {
        wefti_nest_add(&state->nest, y->dims[d], from[perm[d]], to[d]);
    }
    state->threads = wefti_kernel_threads(env);
    state->elem_bytes = weft_dtype_size_bytes(x->dtype);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_transpose, "", "Transpose", prepare, run);
