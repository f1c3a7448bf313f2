/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the plan's programs into flat arrays of records: addresses filled in, collectives lowered
 * to signals, waits and reductions, events to counters.
 */
#include "runtime/session.h"

#include "ops/algo/resolve.h"
#include "runtime/base/error.h"

#include <string.h>

/* Where the lowering of one program stands. */
typedef struct lowering {
    weft_session_t *session;
    uint32_t program;
    uint32_t *recorded_by;    /* per event: the stream that records it */
    const char **event_names; /* per event: what its record and its wait are called */
    const char **record_names;
    uint32_t next_collective; /* of all programs: its number picks the counter */
    wefti_tasks_t *tasks;     /* per collective: what its algorithm has this rank do */
    uint32_t *phases;         /* per collective: how far its counters go in a run */
} lowering_t;

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
    session->events_offset = session->signals_offset + count * sizeof(wefti_signal_t);
    count += (size_t)plan->program_count * plan->event_count;
    return count * sizeof(wefti_signal_t);
}

/* Address of rank's copy of what lies at offset of the session's memory. */
static void *at(const weft_session_t *session, uint32_t rank, size_t offset)
{
    return session->endpoint->region_of[rank] + session->region_offset + offset;
}

static wefti_signal_t *event_signal(const lowering_t *lowering, uint32_t event)
{
    const weft_session_t *session = lowering->session;
    size_t index = (size_t)lowering->program * session->plan->event_count + event;
    return at(session, session->endpoint->rank,
              session->events_offset + index * sizeof(wefti_signal_t));
}

static wefti_signal_t *collective_signal(const lowering_t *lowering, uint32_t rank)
{
    return at(lowering->session, rank,
              lowering->session->signals_offset +
                  lowering->next_collective * sizeof(wefti_signal_t));
}

static weft_status_t add_kernel(lowering_t *lowering, uint32_t stream, uint32_t index,
                                wefti_record_t *record)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[index];
    const void **inputs = wefti_arena_array(&session->arena, kernel->input_count, sizeof(*inputs));
    void **outputs = wefti_arena_array(&session->arena, kernel->output_count, sizeof(*outputs));
    if ((kernel->input_count > 0 && inputs == NULL) || (kernel->output_count > 0 && !outputs)) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < kernel->input_count; i++) {
        if (kernel->inputs[i] != WEFTI_PLAN_NONE) {
            inputs[i] = session->base + session->plan->buffers[kernel->inputs[i]].offset_bytes;
        }
    }
    for (uint32_t i = 0; i < kernel->output_count; i++) {
        if (kernel->outputs[i] != WEFTI_PLAN_NONE) {
            outputs[i] = session->base + session->plan->buffers[kernel->outputs[i]].offset_bytes;
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

static weft_status_t add_event(lowering_t *lowering, const wefti_plan_step_t *step,
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

static weft_status_t add_peer_wait(lowering_t *lowering, const wefti_task_t *task,
                                   wefti_record_t *record)
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
        if (peer - task->wait.first_rank < task->wait.rank_count) {
            signals[record->wait.count++] = collective_signal(lowering, peer);
        }
    }
    return WEFT_OK;
}

/* Where a range lies on its rank number i: users' buffers only, in place. */
static void *range_at(const lowering_t *lowering, const wefti_plan_collective_t *collective,
                      const wefti_extent_t *range, uint32_t i)
{
    const weft_session_t *session = lowering->session;
    size_t skip = range->offset * weft_dtype_size_bytes(collective->dtype);
    return at(session, range->rank + i,
              session->plan->buffers[collective->buffer].offset_bytes + skip);
}

/* Addresses of ranges, those of several ranks counted one by one. */
static void **addresses_of(lowering_t *lowering, const wefti_plan_collective_t *collective,
                           const wefti_extent_t *ranges, uint32_t range_count, uint32_t *out_count)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < range_count; i++) {
        count += ranges[i].rank_count;
    }
    void **addresses = wefti_arena_array(&lowering->session->arena, count, sizeof(*addresses));
    *out_count = count;
    count = 0;
    for (uint32_t i = 0; addresses != NULL && i < range_count; i++) {
        for (uint32_t r = 0; r < ranges[i].rank_count; r++) {
            addresses[count++] = range_at(lowering, collective, &ranges[i], r);
        }
    }
    return addresses;
}

static weft_status_t add_reduce(lowering_t *lowering, const wefti_plan_collective_t *collective,
                                const wefti_task_t *task, const wefti_extent_t *ranges,
                                wefti_record_t *record)
{
    record->kind = WEFTI_RECORD_REDUCE;
    record->reduce = (weft_reduce_t){.elem_count = task->elem_count,
                                     .dtype = collective->dtype,
                                     .reduction = collective->reduction};
    void **sources = addresses_of(lowering, collective, ranges, task->source_count,
                                  &record->reduce.source_count);
    record->reduce.sources = (const void *const *)sources;
    record->reduce.destinations =
        addresses_of(lowering, collective, ranges + task->source_count, task->destination_count,
                     &record->reduce.destination_count);
    return sources != NULL && record->reduce.destinations != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t make_tasks(lowering_t *lowering, uint32_t index)
{
    const weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    const weft_algo_params_t params = wefti_bind_algo_params(session, index);
    const wefti_counts_t counts = {.elem_count = collective->elem_count,
                                   .elem_bytes =
                                       (uint32_t)weft_dtype_size_bytes(collective->dtype)};
    wefti_schedule_t schedule;
    if (session->interpreted[index]) {
        return WEFT_OK;
    }
    weft_status_t status =
        wefti_schedule_build(session->algorithms[index], &params, session->allocator, &schedule);
    if (status >= 0) {
        lowering->phases[index] = schedule.resources.phases;
        status = wefti_schedule_resolve(&params, &schedule, &counts, session->allocator,
                                        &lowering->tasks[index]);
        wefti_schedule_deinit(&schedule);
    }
    return status;
}

static weft_status_t add_task(lowering_t *lowering, uint32_t index, const wefti_task_t *task,
                              wefti_record_t *record)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    const wefti_extent_t *ranges = lowering->tasks[index].ranges + task->range;
    uint32_t phases = lowering->phases[index];
    weft_status_t status = WEFT_OK;
    switch (task->op) {
    case WEFTI_DO_POST: /* (epoch - 1) * phases + phase */
        record->kind = WEFTI_RECORD_SIGNAL;
        record->signal.signal = collective_signal(lowering, session->endpoint->rank);
        record->signal.stride = phases;
        record->signal.offset = task->phase - phases;
        break;
    case WEFTI_DO_WAIT:
        status = add_peer_wait(lowering, task, record);
        record->wait.stride = phases;
        record->wait.offset = task->wait.phase - phases * (1u + task->wait.back);
        break;
    case WEFTI_DO_REDUCE:
        status = add_reduce(lowering, collective, task, ranges, record);
        break;
    case WEFTI_DO_COPY:
        record->kind = WEFTI_RECORD_COPY;
        record->copy.src = range_at(lowering, collective, &ranges[0], 0);
        record->copy.dst = range_at(lowering, collective, &ranges[1], 0);
        record->copy.size_bytes = task->elem_count * weft_dtype_size_bytes(collective->dtype);
        break;
    default:
        status = wefti_error(WEFT_ERR_INTERNAL, "%s: task %u is not for shared memory",
                             collective->name, task->op);
        break;
    }
    return status;
}

static weft_status_t add_collective(lowering_t *lowering, uint32_t index, wefti_record_t *record,
                                    uint32_t *out_count)
{
    const wefti_plan_collective_t *collective = &lowering->session->plan->collectives[index];
    const wefti_tasks_t *tasks = &lowering->tasks[index];
    weft_status_t status = WEFT_OK;
    if (lowering->session->interpreted[index]) {
        record->kind = WEFTI_RECORD_SCHEDULE;
        record->flags = WEFTI_RECORD_FIRST | WEFTI_RECORD_LAST;
        record->source = UINT16_MAX;
        record->name = collective->name;
        record->bytes = collective->elem_count * weft_dtype_size_bytes(collective->dtype);
        record->schedule.bound = &lowering->session->runs[lowering->next_collective++];
        *out_count = 1;
        return WEFT_OK;
    }
    for (size_t i = 0; i < tasks->task_count && status >= 0; i++, record++) {
        record->name = collective->name;
        record->bytes = collective->elem_count * weft_dtype_size_bytes(collective->dtype);
        record->flags = (uint8_t)((i == 0 ? WEFTI_RECORD_FIRST : 0) |
                                  (i + 1 == tasks->task_count ? WEFTI_RECORD_LAST : 0));
        status = add_task(lowering, index, &tasks->tasks[i], record);
    }
    lowering->next_collective++;
    *out_count = (uint32_t)tasks->task_count;
    return status;
}

/* Finds who records each event, and names events by the collective they start or follow. */
static weft_status_t name_events(lowering_t *lowering)
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
                &session->arena, record ? "wait for %s" : "%s: gradients", collective);
            if (!lowering->record_names[step->index] || !lowering->event_names[step->index]) {
                return WEFT_ERR_NO_MEMORY;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t lower_stream(lowering_t *lowering, uint32_t stream)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_stream_program_t *program =
        &session->plan->programs[lowering->program].streams[stream];
    wefti_stream_records_t *out = &session->programs[lowering->program].streams[stream];
    size_t capacity = 0;
    for (uint32_t i = 0; i < program->step_count; i++) {
        const wefti_plan_step_t *step = &program->steps[i];
        bool records = step->kind == WEFTI_STEP_COLLECTIVE && !session->interpreted[step->index];
        capacity += records ? lowering->tasks[step->index].task_count : 1;
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
            status = add_kernel(lowering, stream, step->index, record);
            break;
        case WEFTI_STEP_COLLECTIVE:
            status = add_collective(lowering, step->index, record, &added);
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

static weft_status_t lower_programs(lowering_t *lowering)
{
    weft_session_t *session = lowering->session;
    const weft_plan_t *plan = session->plan;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < plan->collective_count && status >= 0; i++) {
        status = make_tasks(lowering, i);
    }
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
    lowering_t lowering = {
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
        return wefti_error(WEFT_ERR_UNSUPPORTED, "the plan has %u streams", plan->stream_count);
    }
    weft_status_t status = lower_programs(&lowering);
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        wefti_tasks_deinit(&lowering.tasks[i]);
    }
    return status;
}
