/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the plan's programs into flat arrays of records: addresses filled in, collectives lowered
 * to signals, waits and reductions, events to counters.
 */
#include "runtime/plan/bind.h"

#include "runtime/base/error.h"

#include <string.h>

uint32_t wefti_bind_count_collectives(const weft_plan_t *plan, uint32_t program, uint32_t stream)
{
    const wefti_plan_stream_program_t *steps = &plan->programs[program].streams[stream];
    uint32_t count = 0;
    for (uint32_t i = 0; i < steps->step_count; i++) {
        count += steps->steps[i].kind == WEFTI_STEP_COLLECTIVE;
    }
    return count;
}

size_t wefti_bind_signal_bytes(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    size_t count = 0;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            count += wefti_bind_count_collectives(plan, p, s);
        }
    }
    session->events_offset = session->signals_offset + count * sizeof(wefti_signal_line_t);
    count += (size_t)plan->program_count * plan->event_count;
    return count * sizeof(wefti_signal_line_t);
}

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
    record.kernel.call =
        (weft_kernel_call_t){bound->state, inputs, outputs, session->scratch[lowering->stream]};
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

weft_status_t wefti_bind_wait(wefti_lowering_t *lowering, uint32_t first_rank, uint32_t rank_count,
                              uint32_t stride, uint32_t offset)
{
    const wefti_endpoint_t *endpoint = lowering->session->endpoint;
    wefti_signal_t **signals =
        wefti_arena_array(&lowering->session->arena, endpoint->world_size, sizeof(*signals));
    WEFT_RETURN_IF_NO_MEMORY(signals);
    wefti_record_t record = {
        .kind = WEFTI_RECORD_WAIT, .source = UINT16_MAX, .wait = {signals, 0, stride, offset}};
    /* Each rank starts with its neighbour, so that ranks do not all read one counter at once. */
    for (uint32_t i = 1; i < endpoint->world_size; i++) {
        uint32_t peer = (endpoint->rank + i) % endpoint->world_size;
        if (peer - first_rank < rank_count) {
            signals[record.wait.count++] = collective_signal(lowering, peer);
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

static weft_status_t add_event(wefti_lowering_t *lowering, const wefti_plan_step_t *step)
{
    weft_session_t *session = lowering->session;
    const wefti_lowered_event_t *event = &lowering->events[step->index];
    uint32_t number = lowering->program * session->plan->event_count + step->index;
    wefti_signal_t *signal =
        wefti_bind_at(session, session->endpoint->rank,
                      session->events_offset + number * sizeof(wefti_signal_line_t));
    wefti_record_t record = {.flags = WEFTI_RECORD_EVENT, .event = number};
    if (step->kind == WEFTI_STEP_RECORD) {
        record.kind = WEFTI_RECORD_SIGNAL;
        record.name = event->record_name;
        record.signal.signal = signal;
        record.signal.stride = 1;
        return wefti_bind_add(lowering, &record);
    }
    wefti_signal_t **signals = wefti_arena_memdup(&session->arena, &signal, sizeof(signal));
    WEFT_RETURN_IF_NO_MEMORY(signals);
    record.kind = WEFTI_RECORD_WAIT;
    record.name = event->wait_name;
    record.source = (uint16_t)event->recorded_by;
    record.wait.signals = signals;
    record.wait.count = 1;
    record.wait.stride = 1;
    return wefti_bind_add(lowering, &record);
}

/* Finds who records each event, and names events by the collective that follows their wait, or that
 * their record follows. */
static weft_status_t name_events(wefti_lowering_t *lowering)
{
    wefti_arena_t *arena = &lowering->session->arena;
    const weft_plan_t *plan = lowering->session->plan;
    for (uint32_t e = 0; e < plan->event_count; e++) {
        lowering->events[e] = (wefti_lowered_event_t){UINT16_MAX, "event", "event"};
    }
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        const wefti_plan_stream_program_t *program = &plan->programs[lowering->program].streams[s];
        for (uint32_t i = 0; i < program->step_count; i++) {
            const wefti_plan_step_t *step = &program->steps[i];
            bool record = step->kind == WEFTI_STEP_RECORD;
            if (!record && step->kind != WEFTI_STEP_WAIT) {
                continue;
            }
            wefti_lowered_event_t *event = &lowering->events[step->index];
            event->recorded_by = record ? s : event->recorded_by;
            if (record ? i == 0 : i + 1 == program->step_count) {
                continue;
            }
            const wefti_plan_step_t *near = record ? step - 1 : step + 1;
            if (near->kind == WEFTI_STEP_COLLECTIVE) {
                const char *name = plan->collectives[near->index].name;
                event->record_name =
                    wefti_arena_printf(arena, record ? "%s done" : "start %s", name);
                event->wait_name =
                    wefti_arena_printf(arena, record ? "wait for %s" : "%s: ready", name);
            }
        }
    }
    WEFT_RETURN_IF_NO_MEMORY(!arena->failed);
    return WEFT_OK;
}

static weft_status_t lower_stream(wefti_lowering_t *lowering, wefti_stream_records_t *out)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_stream_program_t *program =
        &session->plan->programs[lowering->program].streams[lowering->stream];
    lowering->count = 0;
    for (uint32_t i = 0; i < program->step_count; i++) {
        const wefti_plan_step_t *step = &program->steps[i];
        WEFT_RETURN_IF_ERROR(
            step->kind == WEFTI_STEP_KERNEL       ? wefti_bind_kernel(lowering, step->index)
            : step->kind == WEFTI_STEP_COLLECTIVE ? wefti_bind_collective(lowering, step->index)
                                                  : add_event(lowering, step));
    }
    out->count = (uint32_t)lowering->count;
    out->records = wefti_arena_memdup(&session->arena, lowering->records,
                                      lowering->count * sizeof(*out->records));
    WEFT_RETURN_IF_NO_MEMORY(out->records);
    return WEFT_OK;
}

static weft_status_t lower_programs(wefti_lowering_t *lowering)
{
    weft_session_t *session = lowering->session;
    const weft_plan_t *plan = session->plan;
    lowering->events =
        wefti_arena_array(&session->arena, plan->event_count, sizeof(*lowering->events));
    WEFT_RETURN_IF_NO_MEMORY(lowering->events);
    for (uint32_t p = 0; p < plan->program_count; p++) {
        wefti_bound_program_t *program = &session->programs[p];
        program->streams =
            wefti_arena_array(&session->arena, plan->stream_count, sizeof(*program->streams));
        WEFT_RETURN_IF_NO_MEMORY(program->streams);
        lowering->program = p;
        WEFT_RETURN_IF_ERROR(name_events(lowering));
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            lowering->stream = s;
            WEFT_RETURN_IF_ERROR(lower_stream(lowering, &program->streams[s]));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_bind_records(weft_session_t *session)
{
    if (session->plan->stream_count >= UINT16_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "plan: too many streams: %u, at most %u",
                           session->plan->stream_count, UINT16_MAX - 1u);
    }
    wefti_lowering_t lowering = {.session = session};
    weft_status_t status = lower_programs(&lowering);
    wefti_free(session->allocator, lowering.records);
    return status;
}
