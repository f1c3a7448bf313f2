/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the plan's programs into flat arrays of records: addresses filled in, collectives lowered
 * to signals, waits and reductions, events to counters.
 */
#include "runtime/session.h"

#include "runtime/base/error.h"

#include <string.h>

/* Compilers do not include the transport: the numbers they write into plans are kept equal here. */
_Static_assert(WEFTI_PLAN_CAP_DIRECT == WEFTI_CAP_DIRECT && WEFTI_PLAN_CAP_PUT == WEFTI_CAP_PUT &&
                   WEFTI_PLAN_CAP_SIGNAL == WEFTI_CAP_SIGNAL,
               "plans speak of the transport's capabilities");

/* Where the lowering of one program stands. */
typedef struct lowering {
    weft_session_t *session;
    uint32_t program;
    uint32_t *recorded_by;    /* per event: the stream that records it */
    const char **event_names; /* per event: what its record and its wait are called */
    const char **record_names;
    uint32_t next_collective; /* of all programs: its number picks the counter */
} lowering_t;

static uint32_t count_collectives(const weft_plan_t *plan, uint32_t program, uint32_t stream)
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
            count += count_collectives(plan, p, s);
        }
    }
    session->events_offset = session->signals_offset + count * sizeof(wefti_signal_t);
    count += (size_t)plan->program_count * plan->event_count;
    return count * sizeof(wefti_signal_t);
}

weft_status_t wefti_bind_algorithms(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    wefti_endpoint_t *endpoint = session->endpoint;
    uint64_t *caps = wefti_arena_array(&session->arena, endpoint->world_size, sizeof(*caps));
    weft_status_t status =
        wefti_endpoint_agree(endpoint, caps != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status < 0) {
        return status;
    }
    status = wefti_endpoint_all_gather(endpoint, &endpoint->caps, sizeof(*caps), caps);
    if (status < 0) {
        return status;
    }
    uint64_t common = ~0ull;
    for (uint32_t rank = 0; rank < endpoint->world_size; rank++) {
        common &= caps[rank];
    }
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        for (uint32_t j = 0; j < collective->algorithm_count && !session->algorithms[i]; j++) {
            const wefti_plan_algorithm_t *algorithm = &collective->algorithms[j];
            bool able = endpoint->world_size == 1 ||
                        (algorithm->capabilities & common) == algorithm->capabilities;
            session->algorithms[i] = able ? wefti_algo_find(collective->op, algorithm->name) : NULL;
            if (session->algorithms[i] != NULL) {
                wefti_log(&session->context->log, WEFT_LOG_DEBUG, "%s: algorithm %s",
                          collective->name, algorithm->name);
            }
        }
        if (session->algorithms[i] == NULL) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: none of its %u algorithms can run over %s on all ranks",
                               collective->name, collective->algorithm_count, endpoint->ops->name);
        }
    }
    return WEFT_OK;
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

static weft_status_t add_peer_wait(lowering_t *lowering, const wefti_algo_step_t *step,
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
        if (step->peer == WEFTI_ALGO_ALL_PEERS || step->peer == peer) {
            signals[record->wait.count++] = collective_signal(lowering, peer);
        }
    }
    return WEFT_OK;
}

static weft_status_t add_reduce(lowering_t *lowering, const wefti_plan_collective_t *collective,
                                const wefti_algo_step_t *step, wefti_record_t *record)
{
    weft_session_t *session = lowering->session;
    uint32_t world = session->endpoint->world_size;
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[collective->buffer];
    void **copies = wefti_arena_array(&session->arena, world, sizeof(*copies));
    if (copies == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    size_t skip = step->elem_begin * weft_dtype_size_bytes(collective->dtype);
    for (uint32_t rank = 0; rank < world; rank++) {
        copies[rank] = at(session, rank, buffer->offset_bytes + skip);
    }
    record->kind = WEFTI_RECORD_REDUCE;
    record->reduce = (weft_reduce_t){.sources = (const void *const *)copies,
                                     .source_count = world,
                                     .destinations = copies,
                                     .destination_count = world,
                                     .elem_count = step->elem_count,
                                     .dtype = collective->dtype,
                                     .reduction = collective->reduction};
    return WEFT_OK;
}

static void schedule_of(const lowering_t *lowering, uint32_t index, wefti_algo_schedule_t *out)
{
    const wefti_plan_collective_t *collective = &lowering->session->plan->collectives[index];
    const wefti_algo_params_t params = {.rank = lowering->session->endpoint->rank,
                                        .group_size = lowering->session->endpoint->world_size,
                                        .root = collective->root,
                                        .elem_count = collective->elem_count,
                                        .elem_bytes =
                                            (uint32_t)weft_dtype_size_bytes(collective->dtype)};
    lowering->session->algorithms[index](&params, out);
}

static weft_status_t add_collective(lowering_t *lowering, uint32_t index, wefti_record_t *record,
                                    uint32_t *out_count)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    size_t elem_bytes = weft_dtype_size_bytes(collective->dtype);
    wefti_algo_schedule_t schedule;
    weft_status_t status = WEFT_OK;
    schedule_of(lowering, index, &schedule);
    for (uint32_t i = 0; i < schedule.step_count && status >= 0; i++, record++) {
        const wefti_algo_step_t *step = &schedule.steps[i];
        uint32_t offset = step->phase - schedule.phase_count; /* (epoch - 1) * count + phase */
        record->name = collective->name;
        record->bytes = collective->elem_count * elem_bytes;
        record->flags = (uint8_t)((i == 0 ? WEFTI_RECORD_FIRST : 0) |
                                  (i + 1 == schedule.step_count ? WEFTI_RECORD_LAST : 0));
        switch (step->kind) {
        case WEFTI_ALGO_SIGNAL:
            record->kind = WEFTI_RECORD_SIGNAL;
            record->signal.signal = collective_signal(lowering, session->endpoint->rank);
            record->signal.stride = schedule.phase_count;
            record->signal.offset = offset;
            break;
        case WEFTI_ALGO_WAIT:
            status = add_peer_wait(lowering, step, record);
            record->wait.stride = schedule.phase_count;
            record->wait.offset = offset;
            break;
        case WEFTI_ALGO_REDUCE:
            status = add_reduce(lowering, collective, step, record);
            break;
        case WEFTI_ALGO_COPY: {
            size_t place = session->plan->buffers[collective->buffer].offset_bytes +
                           step->elem_begin * elem_bytes;
            record->kind = WEFTI_RECORD_COPY;
            record->copy.dst = at(session, session->endpoint->rank, place);
            record->copy.src = at(session, step->peer, place);
            record->copy.size_bytes = step->elem_count * elem_bytes;
            break;
        }
        }
    }
    lowering->next_collective++;
    *out_count = schedule.step_count;
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
        capacity += program->steps[i].kind == WEFTI_STEP_COLLECTIVE ? WEFTI_ALGO_MAX_STEPS : 1;
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

weft_status_t wefti_bind_records(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    wefti_arena_t *arena = &session->arena;
    size_t events = plan->event_count > 0 ? plan->event_count : 1;
    lowering_t lowering = {.session = session,
                           .recorded_by = wefti_arena_array(arena, events, sizeof(uint32_t)),
                           .event_names = wefti_arena_array(arena, events, sizeof(char *)),
                           .record_names = wefti_arena_array(arena, events, sizeof(char *))};
    weft_status_t status = WEFT_OK;
    if (!lowering.recorded_by || !lowering.event_names || !lowering.record_names) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (plan->stream_count >= UINT16_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "the plan has %u streams", plan->stream_count);
    }
    for (uint32_t p = 0; p < plan->program_count && status >= 0; p++) {
        lowering.program = p;
        session->programs[p].streams =
            wefti_arena_array(arena, plan->stream_count, sizeof(*session->programs[p].streams));
        if (session->programs[p].streams == NULL && plan->stream_count > 0) {
            return WEFT_ERR_NO_MEMORY;
        }
        status = name_events(&lowering);
        for (uint32_t s = 0; s < plan->stream_count && status >= 0; s++) {
            status = lower_stream(&lowering, s);
        }
    }
    return status;
}
