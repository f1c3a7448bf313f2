/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of a plan as records: what an algorithm of one lane without scratch has this rank do,
 * bound to addresses of the ranks of its group. Alone in the group a collective is one move of its own data.
 */
#include "runtime/plan/bind.h"

#include "runtime/base/error.h"

/* Where a range lies on its rank number i: users' buffers only. */
static void *range_at(const wefti_lowering_t *lowering, const wefti_plan_collective_t *collective,
                      const wefti_extent_t *range, uint32_t i)
{
    const weft_session_t *session = lowering->session;
    uint32_t id = range->buffer == WEFTI_SEND ? collective->source : collective->buffer;
    uint32_t rank = wefti_session_group(session, collective)->ranks[range->rank + i];
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
                                const wefti_extent_t *ranges)
{
    weft_reduce_t reduce = {.elem_count = task->elem_count,
                            .dtype = collective->dtype,
                            .reduction = collective->reduction,
                            .divisor = collective->divisor};
    reduce.sources = (const void *const *)addresses_of(lowering, collective, ranges,
                                                       task->source_count, &reduce.source_count);
    reduce.destinations = addresses_of(lowering, collective, ranges + task->source_count,
                                       task->destination_count, &reduce.destination_count);
    WEFT_RETURN_IF_NO_MEMORY(reduce.sources && reduce.destinations);
    return wefti_bind_add(lowering,
                          &(wefti_record_t){.kind = WEFTI_RECORD_REDUCE, .reduce = reduce});
}

static weft_status_t add_copy(wefti_lowering_t *lowering, const wefti_plan_collective_t *collective,
                              const wefti_extent_t ranges[2], uint64_t elem_count)
{
    wefti_record_t record = {.kind = WEFTI_RECORD_COPY};
    record.copy.src = range_at(lowering, collective, &ranges[0], 0);
    record.copy.dst = range_at(lowering, collective, &ranges[1], 0);
    record.copy.size_bytes = elem_count * weft_dtype_size_bytes(collective->dtype);
    return wefti_bind_add(lowering, &record);
}

static weft_status_t add_task(wefti_lowering_t *lowering, const wefti_plan_collective_t *collective,
                              const wefti_task_t *task, const wefti_extent_t *ranges,
                              uint32_t phases)
{
    switch (task->op) {
    case WEFTI_DO_POST: /* (epoch - 1) * phases + phase */
        return wefti_bind_signal(lowering, phases, task->phase - phases);
    case WEFTI_DO_WAIT:
        return wefti_bind_wait(lowering, wefti_session_group(lowering->session, collective),
                               task->wait.first_rank, task->wait.rank_count, phases,
                               task->wait.phase - phases * (1u + task->wait.back));
    case WEFTI_DO_REDUCE:
        return add_reduce(lowering, collective, task, ranges);
    case WEFTI_DO_COPY:
        return add_copy(lowering, collective, ranges, task->elem_count);
    default:
        return wefti_error(WEFT_ERR_INTERNAL, "%s: task %u requires a put link", collective->name,
                           task->op);
    }
}

static weft_status_t add_schedule(wefti_lowering_t *lowering, uint32_t index)
{
    const weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    const weft_algo_params_t params = wefti_bind_algo_params(session, index);
    const wefti_counts_t counts = {.elem_count = collective->elem_count,
                                   .elem_bytes =
                                       (uint32_t)weft_dtype_size_bytes(collective->dtype)};
    wefti_schedule_t schedule;
    wefti_tasks_t tasks = {.allocator = session->allocator};
    WEFT_RETURN_IF_ERROR(
        wefti_schedule_build(session->algorithms[index], &params, session->allocator, &schedule));
    weft_status_t status =
        wefti_schedule_resolve(&params, &schedule, &counts, session->allocator, &tasks);
    for (size_t i = 0; i < tasks.task_count && status >= 0; i++) {
        const wefti_task_t *task = &tasks.tasks[i];
        const wefti_extent_t *ranges = tasks.range_count > 0 ? tasks.ranges + task->range : NULL;
        status = add_task(lowering, collective, task, ranges, schedule.resources.phases);
    }
    wefti_tasks_deinit(&tasks);
    wefti_schedule_deinit(&schedule);
    return status;
}

/* Alone in the group: a sum of one, still divided; or a copy, where it is not in place. */
static weft_status_t add_alone(wefti_lowering_t *lowering,
                               const wefti_plan_collective_t *collective)
{
    const wefti_extent_t ranges[] = {{.rank_count = 1, .buffer = WEFTI_SEND},
                                     {.rank_count = 1, .buffer = WEFTI_RECV}};
    if (collective->reduction == WEFT_REDUCTION_AVG && collective->divisor > 1 &&
        wefti_collective_reduces(collective->op)) {
        const wefti_task_t task = {
            .source_count = 1, .destination_count = 1, .elem_count = collective->elem_count};
        return add_reduce(lowering, collective, &task, ranges);
    }
    if (range_at(lowering, collective, &ranges[0], 0) !=
            range_at(lowering, collective, &ranges[1], 0) &&
        collective->op != WEFT_COLLECTIVE_BARRIER) {
        return add_copy(lowering, collective, ranges, collective->elem_count);
    }
    return wefti_bind_signal(lowering, 1, 0); /* only that it was there is noted */
}

weft_status_t wefti_bind_collective(wefti_lowering_t *lowering, uint32_t collective)
{
    const weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    WEFT_RETURN_IF_ERROR(wefti_bind_check_before(lowering, collective));
    size_t first = lowering->count;
    WEFT_RETURN_IF_ERROR(planned->update != WEFTI_PLAN_NONE
                             ? wefti_bind_update(lowering, collective)
                         : session->interpreted[collective] ? wefti_bind_run(lowering, 0)
                         : wefti_session_group(session, planned)->axis.size == 1
                             ? add_alone(lowering, planned)
                             : add_schedule(lowering, collective));
    for (size_t i = first; i < lowering->count; i++) {
        wefti_record_t *record = &lowering->records[i];
        record->name = planned->name;
        record->bytes = planned->elem_count * weft_dtype_size_bytes(planned->dtype);
        record->flags = (uint8_t)((i == first ? WEFTI_RECORD_FIRST : 0) |
                                  (i + 1 == lowering->count ? WEFTI_RECORD_LAST : 0));
    }
    lowering->next_collective++;
    return wefti_bind_check_after(lowering);
}
