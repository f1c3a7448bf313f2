/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of a plan as records: what an algorithm of one lane without scratch has this rank do,
 * bound to addresses of all ranks. Alone in the world a collective is one move of its own data.
 */
#include "runtime/plan/bind.h"

#include "runtime/base/error.h"

/* Where a range lies on its rank number i: users' buffers only. */
static void *range_at(const wefti_lowering_t *lowering, const wefti_plan_collective_t *collective,
                      const wefti_extent_t *range, uint32_t i)
{
    const weft_session_t *session = lowering->session;
    uint32_t id = range->buffer == WEFTI_SEND ? collective->source : collective->buffer;
    uint32_t rank = range->rank + i;
    uint64_t skip = range->offset * weft_dtype_size_bytes(collective->dtype);
    return wefti_bind_at(session, rank,
                         wefti_session_offset(&session->plan->buffers[id], rank) + skip);
}

/* Addresses of ranges, those of several ranks counted one by one. */
static void **addresses_of(wefti_lowering_t *lowering, const wefti_plan_collective_t *collective,
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

static weft_status_t add_reduce(wefti_lowering_t *lowering,
                                const wefti_plan_collective_t *collective, const wefti_task_t *task,
                                const wefti_extent_t *ranges, wefti_record_t *record)
{
    record->kind = WEFTI_RECORD_REDUCE;
    record->reduce = (weft_reduce_t){.elem_count = task->elem_count,
                                     .dtype = collective->dtype,
                                     .reduction = collective->reduction,
                                     .divisor = collective->divisor};
    void **sources = addresses_of(lowering, collective, ranges, task->source_count,
                                  &record->reduce.source_count);
    record->reduce.sources = (const void *const *)sources;
    record->reduce.destinations =
        addresses_of(lowering, collective, ranges + task->source_count, task->destination_count,
                     &record->reduce.destination_count);
    return sources != NULL && record->reduce.destinations != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t make_tasks(wefti_lowering_t *lowering, uint32_t index)
{
    const weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    const weft_algo_params_t params = wefti_bind_algo_params(session, index);
    const wefti_counts_t counts = {.elem_count = collective->elem_count,
                                   .elem_bytes =
                                       (uint32_t)weft_dtype_size_bytes(collective->dtype)};
    wefti_schedule_t schedule;
    if (session->interpreted[index] || session->endpoint->world_size == 1 ||
        collective->update != WEFTI_PLAN_NONE) {
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

weft_status_t wefti_bind_tasks(wefti_lowering_t *lowering)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < lowering->session->plan->collective_count && status >= 0; i++) {
        status = make_tasks(lowering, i);
    }
    return status;
}

static weft_status_t add_task(wefti_lowering_t *lowering, uint32_t index, const wefti_task_t *task,
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
        record->signal.signal = wefti_bind_collective_signal(lowering, session->endpoint->rank);
        record->signal.stride = phases;
        record->signal.offset = task->phase - phases;
        break;
    case WEFTI_DO_WAIT:
        status =
            wefti_bind_peer_wait(lowering, task->wait.first_rank, task->wait.rank_count, record);
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
        status = wefti_error(WEFT_ERR_INTERNAL, "%s: task %u requires a put link", collective->name,
                             task->op);
        break;
    }
    return status;
}

/* Alone in the world: a sum of one, still divided; or a copy, where it is not in place. */
static weft_status_t add_alone(wefti_lowering_t *lowering,
                               const wefti_plan_collective_t *collective, wefti_record_t *record)
{
    const wefti_extent_t ranges[] = {{.rank_count = 1, .buffer = WEFTI_SEND},
                                     {.rank_count = 1, .buffer = WEFTI_RECV}};
    void *from = range_at(lowering, collective, &ranges[0], 0);
    void *to = range_at(lowering, collective, &ranges[1], 0);
    bool divides = collective->reduction == WEFT_REDUCTION_AVG && collective->divisor > 1 &&
                   wefti_collective_reduces(collective->op);
    if (divides) {
        const wefti_task_t task = {
            .source_count = 1, .destination_count = 1, .elem_count = collective->elem_count};
        return add_reduce(lowering, collective, &task, ranges, record);
    }
    if (from != to && collective->op != WEFT_COLLECTIVE_BARRIER) {
        record->kind = WEFTI_RECORD_COPY;
        record->copy.src = from;
        record->copy.dst = to;
        record->copy.size_bytes = collective->elem_count * weft_dtype_size_bytes(collective->dtype);
        return WEFT_OK;
    }
    record->kind = WEFTI_RECORD_SIGNAL; /* nothing is to do: only that it was there is noted */
    record->signal.signal = wefti_bind_collective_signal(lowering, 0);
    record->signal.stride = 1;
    return WEFT_OK;
}

size_t wefti_bind_collective_records(const wefti_lowering_t *lowering, uint32_t collective)
{
    const weft_session_t *session = lowering->session;
    if (session->plan->collectives[collective].update != WEFTI_PLAN_NONE) {
        return wefti_bind_update_records(lowering, collective);
    }
    return session->interpreted[collective] || session->endpoint->world_size == 1
               ? 1
               : lowering->tasks[collective].task_count;
}

static weft_status_t add_one(wefti_lowering_t *lowering, uint32_t index, size_t number,
                             wefti_record_t *record)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    if (session->interpreted[index]) {
        record->kind = WEFTI_RECORD_SCHEDULE;
        record->source = UINT16_MAX;
        record->schedule.bound = &session->runs[WEFTI_USE_RUNS * lowering->next_collective];
        return WEFT_OK;
    }
    return session->endpoint->world_size == 1
               ? add_alone(lowering, collective, record)
               : add_task(lowering, index, &lowering->tasks[index].tasks[number], record);
}

weft_status_t wefti_bind_collective(wefti_lowering_t *lowering, uint32_t stream,
                                    uint32_t collective, wefti_record_t *records,
                                    uint32_t *out_count)
{
    const wefti_plan_collective_t *planned = &lowering->session->plan->collectives[collective];
    size_t count = wefti_bind_collective_records(lowering, collective);
    bool updates = planned->update != WEFTI_PLAN_NONE;
    weft_status_t status = WEFT_OK;
    if (updates) {
        status = wefti_bind_update(lowering, stream, collective, records);
    }
    for (size_t i = 0; i < count && status >= 0; i++) {
        records[i].name = planned->name;
        records[i].bytes = planned->elem_count * weft_dtype_size_bytes(planned->dtype);
        records[i].flags =
            (uint8_t)((i == 0 ? WEFTI_RECORD_FIRST : 0) | (i + 1 == count ? WEFTI_RECORD_LAST : 0));
        status = updates ? WEFT_OK : add_one(lowering, collective, i, &records[i]);
    }
    lowering->next_collective++;
    *out_count = (uint32_t)count;
    return status;
}
