/* SPDX-License-Identifier: Apache-2.0 */
/* Single records. */
#include "runtime/plan/bind.h"

#include "runtime/base/error.h"

weft_status_t wefti_bind_add(wefti_lowering_t *lowering, const wefti_record_t *record)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(lowering->session->allocator, &lowering->records,
                                             &lowering->capacity, lowering->count + 1,
                                             sizeof *record));
    lowering->records[lowering->count++] = *record;
    return WEFT_OK;
}

weft_status_t wefti_bind_kernel(wefti_lowering_t *lowering, uint32_t index)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[index];
    const wefti_bound_kernel_t *bound = &session->kernels[index];
    const void **inputs = wefti_arena_array(&session->arena, kernel->input_count, sizeof(*inputs));
    void **outputs = wefti_arena_array(&session->arena, kernel->output_count, sizeof(*outputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs && outputs);
    WEFT_RETURN_IF_ERROR(wefti_bind_use(session, index, lowering->stream));
    for (uint32_t i = 0; i < kernel->input_count; i++) {
        if (kernel->inputs[i] != WEFTI_PLAN_NONE) {
            inputs[i] = wefti_session_buffer(session, kernel->inputs[i]);
        }
    }
    for (uint32_t i = 0; i < kernel->output_count; i++) {
        if (kernel->outputs[i] != WEFTI_PLAN_NONE) {
            outputs[i] = wefti_session_buffer(session, kernel->outputs[i]);
        }
    }
    wefti_record_t record = {.kind = WEFTI_RECORD_KERNEL, .name = kernel->name};
    record.kernel.kernel = bound->kernel;
    /* scratch follows when the needs of all kernels are known */
    record.kernel.call = (weft_kernel_call_t){bound->state, inputs, outputs, NULL};
    record.kernel.input_count = kernel->input_count;
    record.kernel.output_count = kernel->output_count;
    return wefti_bind_add(lowering, &record);
}

/* The counter of the use at hand, on rank. */
static wefti_signal_t *collective_signal(const wefti_lowering_t *lowering, uint32_t rank)
{
    const weft_session_t *session = lowering->session;
    return wefti_bind_at(session, rank,
                         session->signals_offset +
                             lowering->next_collective * sizeof(wefti_signal_line_t));
}

weft_status_t wefti_bind_signal(wefti_lowering_t *lowering, uint32_t stride, uint32_t offset)
{
    uint32_t own = lowering->session->endpoint->rank;
    return wefti_bind_add(
        lowering, &(wefti_record_t){.kind = WEFTI_RECORD_SIGNAL,
                                    .signal = {collective_signal(lowering, own), stride, offset}});
}

weft_status_t wefti_bind_wait(wefti_lowering_t *lowering, const wefti_bound_group_t *group,
                              uint32_t first_rank, uint32_t rank_count, uint32_t stride,
                              uint32_t offset)
{
    wefti_signal_t **signals =
        wefti_arena_array(&lowering->session->arena, group->axis.size, sizeof(*signals));
    WEFT_RETURN_IF_NO_MEMORY(signals);
    wefti_record_t record = {
        .kind = WEFTI_RECORD_WAIT, .source = UINT16_MAX, .wait = {signals, 0, stride, offset}};
    /* Each rank starts with its neighbour, so that ranks do not all read one counter at once. */
    for (uint32_t i = 1; i < group->axis.size; i++) {
        uint32_t peer = (group->rank + i) % group->axis.size;
        if (peer - first_rank < rank_count) {
            signals[record.wait.count++] = collective_signal(lowering, group->ranks[peer]);
        }
    }
    return wefti_bind_add(lowering, &record);
}

weft_status_t wefti_bind_run(wefti_lowering_t *lowering, uint32_t i)
{
    wefti_bound_run_t *runs = &lowering->session->runs[WEFTI_USE_RUNS * lowering->next_collective];
    return wefti_bind_add(lowering, &(wefti_record_t){.kind = WEFTI_RECORD_SCHEDULE,
                                                      .source = UINT16_MAX,
                                                      .schedule.bound = &runs[i]});
}
