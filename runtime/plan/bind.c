/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/bind.h"

weft_status_t wefti_bind_kernel_record(weft_session_t *session, uint32_t stream, uint32_t index,
                                       wefti_record_t *record)
{
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[index];
    const void **inputs = wefti_arena_array(&session->arena, kernel->input_count, sizeof(*inputs));
    void **outputs = wefti_arena_array(&session->arena, kernel->output_count, sizeof(*outputs));
    if ((kernel->input_count > 0 && inputs == NULL) || (kernel->output_count > 0 && !outputs)) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < kernel->input_count; i++) {
        if (kernel->inputs[i] != WEFTI_PLAN_NONE) {
            inputs[i] = wefti_bind_operand(session, kernel->inputs[i]);
        }
    }
    for (uint32_t i = 0; i < kernel->output_count; i++) {
        if (kernel->outputs[i] != WEFTI_PLAN_NONE) {
            outputs[i] = wefti_bind_operand(session, kernel->outputs[i]);
        }
    }
    record->kind = WEFTI_RECORD_KERNEL;
    record->name = kernel->name;
    record->kernel.kernel = session->kernels[index].kernel;
    record->kernel.call = (weft_kernel_call_t){session->kernels[index].state, inputs, outputs,
                                               session->scratch[stream]};
    record->kernel.input_count = kernel->input_count;
    record->kernel.output_count = kernel->output_count;
    return WEFT_OK;
}

wefti_signal_t *wefti_bind_collective_signal(const wefti_lowering_t *lowering, uint32_t rank)
{
    const weft_session_t *session = lowering->session;
    return wefti_bind_at(session, rank,
                         session->signals_offset +
                             lowering->next_collective * sizeof(wefti_signal_line_t));
}

weft_status_t wefti_bind_peer_wait(wefti_lowering_t *lowering, uint32_t first_rank,
                                   uint32_t rank_count, wefti_record_t *record)
{
    const wefti_endpoint_t *endpoint = lowering->session->endpoint;
    wefti_signal_t **signals =
        wefti_arena_array(&lowering->session->arena, endpoint->world_size, sizeof(*signals));
    if (signals == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    record->kind = WEFTI_RECORD_WAIT;
    record->source = UINT16_MAX;
    record->wait.signals = signals;
    /* Each rank starts with its neighbour, so that ranks do not all read one counter at once. */
    for (uint32_t i = 1; i < endpoint->world_size; i++) {
        uint32_t peer = (endpoint->rank + i) % endpoint->world_size;
        if (peer - first_rank < rank_count) {
            signals[record->wait.count++] = wefti_bind_collective_signal(lowering, peer);
        }
    }
    return WEFT_OK;
}
