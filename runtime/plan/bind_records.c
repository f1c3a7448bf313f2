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

static wefti_signal_t *event_signal(const wefti_lowering_t *lowering, uint32_t event)
{
    const weft_session_t *session = lowering->session;
    size_t index = (size_t)lowering->program * session->plan->event_count + event;
    return wefti_bind_at(session, session->endpoint->rank,
                         session->events_offset + index * sizeof(wefti_signal_line_t));
}

static weft_status_t add_event(wefti_lowering_t *lowering, const wefti_plan_step_t *step,
                               wefti_record_t *record)
{
    wefti_signal_t *signal = event_signal(lowering, step->index);
    record->flags = WEFTI_RECORD_EVENT;
    record->event = lowering->program * lowering->session->plan->event_count + step->index;
    if (step->kind == WEFTI_STEP_RECORD) {
        record->kind = WEFTI_RECORD_SIGNAL;
        record->name = lowering->record_names[step->index];
        record->signal.signal = signal;
        record->signal.stride = 1;
        return WEFT_OK;
    }
    wefti_signal_t **signals = wefti_arena_array(&lowering->session->arena, 1, sizeof(*signals));
    if (signals == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    signals[0] = signal;
    record->kind = WEFTI_RECORD_WAIT;
    record->name = lowering->event_names[step->index];
    record->source = (uint16_t)lowering->recorded_by[step->index];
    record->wait.signals = signals;
    record->wait.count = 1;
    record->wait.stride = 1;
    return WEFT_OK;
}

/* Finds who records each event, and names events by the collective they start or follow. */
static weft_status_t name_events(wefti_lowering_t *lowering)
{
    weft_session_t *session = lowering->session;
    const weft_plan_t *plan = session->plan;
    for (uint32_t e = 0; e < plan->event_count; e++) {
        lowering->recorded_by[e] = UINT16_MAX;
        lowering->event_names[e] = lowering->record_names[e] = "event";
    }
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        const wefti_plan_stream_program_t *program = &plan->programs[lowering->program].streams[s];
        for (uint32_t i = 0; i < program->step_count; i++) {
            const wefti_plan_step_t *step = &program->steps[i];
            const wefti_plan_step_t *near = NULL;
            if (step->kind == WEFTI_STEP_RECORD) {
                lowering->recorded_by[step->index] = s;
                near = i > 0 ? step - 1 : NULL;
            } else if (step->kind == WEFTI_STEP_WAIT) {
                near = i + 1 < program->step_count ? step + 1 : NULL;
            }
            if (near == NULL || near->kind != WEFTI_STEP_COLLECTIVE) {
                continue;
            }
            const char *collective = plan->collectives[near->index].name;
            bool record = step->kind == WEFTI_STEP_RECORD;
            lowering->record_names[step->index] =
                wefti_arena_printf(&session->arena, record ? "%s done" : "start %s", collective);
            lowering->event_names[step->index] = wefti_arena_printf(
                &session->arena, record ? "wait for %s" : "%s: ready", collective);
            if (!lowering->record_names[step->index] || !lowering->event_names[step->index]) {
                return WEFT_ERR_NO_MEMORY;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t lower_stream(wefti_lowering_t *lowering, uint32_t stream)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_stream_program_t *program =
        &session->plan->programs[lowering->program].streams[stream];
    wefti_stream_records_t *out = &session->programs[lowering->program].streams[stream];
    size_t capacity = 0;
    for (uint32_t i = 0; i < program->step_count; i++) {
        const wefti_plan_step_t *step = &program->steps[i];
        capacity += step->kind == WEFTI_STEP_COLLECTIVE
                        ? wefti_bind_collective_records(lowering, step->index)
                        : 1;
    }
    out->records = wefti_arena_array(&session->arena, capacity, sizeof(*out->records));
    if (out->records == NULL && capacity > 0) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < program->step_count && status >= 0; i++) {
        const wefti_plan_step_t *step = &program->steps[i];
        wefti_record_t *record = &out->records[out->count];
        uint32_t added = 1;
        switch (step->kind) {
        case WEFTI_STEP_KERNEL:
            status = wefti_bind_kernel_record(session, stream, step->index, record);
            break;
        case WEFTI_STEP_COLLECTIVE:
            status = wefti_bind_collective(lowering, stream, step->index, record, &added);
            break;
        case WEFTI_STEP_RECORD:
        case WEFTI_STEP_WAIT:
            status = add_event(lowering, step, record);
            break;
        }
        out->count += added;
    }
    return status;
}

static weft_status_t lower_programs(wefti_lowering_t *lowering)
{
    weft_session_t *session = lowering->session;
    const weft_plan_t *plan = session->plan;
    weft_status_t status = wefti_bind_tasks(lowering);
    for (uint32_t p = 0; p < plan->program_count && status >= 0; p++) {
        lowering->program = p;
        session->programs[p].streams = wefti_arena_array(&session->arena, plan->stream_count,
                                                         sizeof(*session->programs[p].streams));
        if (session->programs[p].streams == NULL && plan->stream_count > 0) {
            return WEFT_ERR_NO_MEMORY;
        }
        status = name_events(lowering);
        for (uint32_t s = 0; s < plan->stream_count && status >= 0; s++) {
            status = lower_stream(lowering, s);
        }
    }
    return status;
}

weft_status_t wefti_bind_records(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    wefti_arena_t *arena = &session->arena;
    size_t events = plan->event_count > 0 ? plan->event_count : 1;
    size_t collectives = plan->collective_count + 1u;
    wefti_lowering_t lowering = {
        .session = session,
        .recorded_by = wefti_arena_array(arena, events, sizeof(uint32_t)),
        .event_names = wefti_arena_array(arena, events, sizeof(char *)),
        .record_names = wefti_arena_array(arena, events, sizeof(char *)),
        .tasks = wefti_arena_array(arena, collectives, sizeof(wefti_tasks_t)),
        .phases = wefti_arena_array(arena, collectives, sizeof(uint32_t)),
    };
    if (!lowering.recorded_by || !lowering.event_names || !lowering.record_names ||
        !lowering.tasks || !lowering.phases) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (plan->stream_count >= UINT16_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "plan: too many streams: %u, at most %u",
                           plan->stream_count, UINT16_MAX - 1u);
    }
    weft_status_t status = lower_programs(&lowering);
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        wefti_tasks_deinit(&lowering.tasks[i]);
    }
    return status;
}
