/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of element-wise operators share. */
#include "ops/compute/elementwise.h"

#include "runtime/base/error.h"

weft_status_t wefti_elementwise_prepare(const weft_node_desc_t *node, uint32_t tensors,
                                        const wefti_elementwise_number_t *numbers,
                                        wefti_elementwise_fn loop, void **out_state,
                                        size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    for (uint32_t i = 0; i < tensors; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, i));
        if (!wefti_same_shape(&node->inputs[i], &node->outputs[0])) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "input %u and the output differ in shape or layout", i);
        }
    }
    wefti_elementwise_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->loop = loop;
    state->count = weft_tensor_elem_count(&node->outputs[0]);
    state->tensors = tensors;
    for (int i = 0; numbers != NULL && i < 2; i++) {
        state->p[i] = weft_node_attr_float(node, numbers[i].attr, numbers[i].default_value);
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

weft_status_t wefti_elementwise_run(const weft_kernel_call_t *call)
{
    const wefti_elementwise_t *state = call->state;
    state->loop(call->inputs[0], call->inputs[state->tensors - 1], state->p, call->outputs[0],
                state->count);
    return WEFT_OK;
}
