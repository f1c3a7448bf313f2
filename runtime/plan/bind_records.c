/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the plan's programs into flat arrays of records: addresses filled in, collectives lowered
 * to signals, waits and reductions, events to counters.
 */
#include "runtime/plan/bind.h"

#include "runtime/base/error.h"

#include <string.h>

uint32_t wefti_bind_count_collectives(const weft_plan_t *plan)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            const wefti_plan_stream_program_t *program = &plan->programs[p].streams[s];
            for (uint32_t i = 0; i < program->step_count; i++) {
                count += program->steps[i].kind == WEFTI_STEP_COLLECTIVE;
            }
        }
    }
    return count;
}

size_t wefti_bind_signal_bytes(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    size_t uses = wefti_bind_count_collectives(plan);
    size_t events = (size_t)plan->program_count * plan->event_count;
    session->events_offset = session->signals_offset + uses * sizeof(wefti_signal_line_t);
    return (uses + events) * sizeof(wefti_signal_line_t);
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

/* Only ranks of another place run it. */
static bool is_elsewhere(const weft_session_t *session, const wefti_plan_step_t *step)
{
    const weft_plan_t *plan = session->plan;
    uint32_t place = step->kind == WEFTI_STEP_KERNEL       ? plan->kernels[step->index].place
                     : step->kind == WEFTI_STEP_COLLECTIVE ? plan->collectives[step->index].place
                                                           : 0;
    return !wefti_plan_runs(plan, place, session->endpoint->rank);
}

/* Uses of collectives, and checks of their results, have the same numbers on all ranks. */
static weft_status_t pass_by(wefti_lowering_t *lowering, uint32_t collective)
{
    size_t count = lowering->count;
    WEFT_RETURN_IF_ERROR(wefti_bind_check_before(lowering, collective));
    WEFT_RETURN_IF_ERROR(wefti_bind_check_after(lowering));
    lowering->next_collective++;
    lowering->count = count; /* a check that is never taken is equal to others of its place */
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
        if (is_elsewhere(session, step)) {
            if (step->kind == WEFTI_STEP_COLLECTIVE) {
                WEFT_RETURN_IF_ERROR(pass_by(lowering, step->index));
            }
            continue;
        }
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
    WEFT_RETURN_IF_ERROR(wefti_bind_checks(session, wefti_bind_count_collectives(session->plan)));
    weft_status_t status = lower_programs(&lowering);
    wefti_free(session->allocator, lowering.records);
    return status;
}
