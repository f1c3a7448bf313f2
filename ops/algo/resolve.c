/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/resolve_internal.h"

#include "runtime/base/error.h"

typedef struct layout {
    const weft_algo_params_t *params;
    const wefti_schedule_t *schedule;
    const wefti_counts_t *counts;
    const wefti_displacements_t *displacements;
    const wefti_slice_t *slice;
    uint32_t blocks, shards;         /* shards: of the vector, or of each block */
    bool vector, variable, exchange; /* exchange: all-to-all */
    uint64_t share;                  /* elements of a full shard, unless the form is V */
    const uint64_t *rows;            /* V forms: sums of counts, [block] or [from * n + to] */
    const uint64_t *columns;         /* AllToAllV: [to * n + from] */
} layout_t;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Sums of counts, by sender and for all-to-all by receiver, in memory of the tasks. */
static weft_status_t sum_counts(layout_t *layout, wefti_tasks_t *tasks)
{
    uint32_t n = layout->params->group_size;
    size_t names = wefti_count_names(layout->params);
    weft_status_t status =
        wefti_array_reserve(tasks->allocator, &tasks->prefix, &tasks->prefix_capacity,
                            layout->exchange ? 2 * names : names, sizeof *tasks->prefix);
    if (status < 0) {
        return status;
    }
    const uint64_t *counts = layout->counts->counts;
    uint64_t *rows = tasks->prefix, *columns = tasks->prefix + names;
    for (uint32_t r = 0; r < (layout->exchange ? n : 1); r++) {
        uint64_t row = 0, column = 0;
        for (uint32_t i = 0; i < n; i++) {
            rows[(size_t)r * n + i] = row;
            row += counts[(size_t)r * n + i];
            if (layout->exchange) {
                columns[(size_t)r * n + i] = column;
                column += counts[(size_t)i * n + r];
            }
        }
    }
    layout->rows = rows;
    layout->columns = columns;
    return WEFT_OK;
}

static weft_status_t layout_init(layout_t *layout, wefti_tasks_t *tasks)
{
    const weft_algo_params_t *params = layout->params;
    layout->blocks = wefti_block_count(params, &layout->schedule->resources);
    layout->vector = wefti_collective_is_vector(params->op);
    layout->exchange = wefti_collective_exchanges(params->op);
    layout->variable = wefti_collective_is_variable(params->op);
    layout->shards = wefti_shard_count(params, &layout->schedule->resources);
    if (layout->shards > 1) {
        layout->share = wefti_shard_elems(layout->slice->elem_count, layout->counts->elem_bytes,
                                          layout->shards);
    } else {
        layout->share = layout->slice->elem_count;
    }
    return layout->variable ? sum_counts(layout, tasks) : WEFT_OK;
}

/* Elements of an operator's block in this slice. */
static uint64_t length_of(const layout_t *layout, uint32_t block)
{
    const wefti_slice_t *slice = layout->slice;
    if (layout->variable) {
        uint64_t whole = layout->counts->counts[block];
        return whole > slice->at ? least(whole - slice->at, slice->elem_count) : 0;
    }
    uint64_t begin = least(block % layout->shards * layout->share, slice->elem_count);
    return least(layout->share, slice->elem_count - begin);
}

/* Where a block of a V form begins. */
static uint64_t variable_offset(const layout_t *layout, uint32_t rank, uint32_t buffer,
                                uint32_t index, uint32_t first)
{
    uint32_t n = layout->params->group_size;
    const wefti_displacements_t *given = layout->displacements;
    const uint64_t *places = given == NULL          ? NULL
                             : buffer == WEFTI_SEND ? given->send
                                                    : given->recv;
    if (!layout->exchange) {
        /* Of a rank's only block there is nothing to displace. */
        bool only = (buffer == WEFTI_SEND) == wefti_collective_gathers(layout->params->op);
        return only             ? layout->rows[index] - layout->rows[first]
               : places != NULL ? places[(size_t)rank * given->stride + index]
                                : layout->rows[index];
    }
    if (places != NULL) {
        return places[(size_t)rank * given->stride + index];
    }
    return (buffer == WEFTI_SEND ? layout->rows : layout->columns)[(size_t)rank * n + index];
}

/* Where a user's block begins in its buffer, or this slice of it, less slice.at. */
static uint64_t user_offset(const layout_t *layout, uint32_t rank, uint32_t buffer, uint32_t index,
                            uint32_t first)
{
    if (layout->vector) {
        return least(index * layout->share, layout->slice->elem_count);
    }
    if (layout->variable) {
        return variable_offset(layout, rank, buffer, index, first);
    }
    uint32_t shards = layout->shards;
    return (uint64_t)((index - first) / shards) * layout->counts->elem_count +
           least(index % shards * layout->share, layout->slice->elem_count);
}

static uint64_t offset_of(const layout_t *layout, const wefti_operand_t *operand, uint32_t i)
{
    uint32_t index = operand->block + operand->step * i, first = 0, count;
    if (operand->buffer >= WEFTI_SCRATCH) {
        return index * layout->slice->slot_elems;
    }
    /* A range of ranks shares one layout, but that of a rank's only block. */
    wefti_buffer_blocks(layout->params, &layout->schedule->resources, operand->rank,
                        operand->buffer, &first, &count);
    return user_offset(layout, operand->rank, operand->buffer, index, first);
}

static weft_status_t add_task(wefti_tasks_t *out, const wefti_task_t *task)
{
    weft_status_t status = wefti_array_reserve(out->allocator, &out->tasks, &out->task_capacity,
                                               out->task_count + 1, sizeof *out->tasks);
    if (status >= 0) {
        out->tasks[out->task_count++] = *task;
    }
    return status;
}

static weft_status_t note_reach(const layout_t *layout, wefti_tasks_t *out,
                                const wefti_extent_t *range, uint64_t elem_count)
{
    uint64_t end;
    if (__builtin_add_overflow(range->offset, elem_count, &end) || end > WEFTI_MAX_ELEMS) {
        return wefti_sizes_too_large(layout->params);
    }
    for (uint32_t r = 0; range->buffer < WEFTI_SCRATCH && r < range->rank_count; r++) {
        uint64_t *reach = &out->reach[((size_t)range->rank + r) * 2 + range->buffer];
        *reach = end > *reach ? end : *reach;
    }
    return WEFT_OK;
}

/* A range of ranks whose blocks lie at different places on each becomes one range for each. */
static uint32_t parts_of(const layout_t *layout, const wefti_operand_t *operand)
{
    bool differs = layout->displacements != NULL && layout->displacements->stride != 0;
    return differs && operand->buffer < WEFTI_SCRATCH ? operand->rank_count : 1;
}

static weft_status_t add_ranges(const layout_t *layout, const wefti_operand_t *operand, uint32_t i,
                                uint64_t elem_count, uint32_t *added, wefti_tasks_t *out)
{
    uint32_t parts = parts_of(layout, operand);
    weft_status_t status = wefti_array_reserve(out->allocator, &out->ranges, &out->range_capacity,
                                               out->range_count + parts, sizeof *out->ranges);
    for (uint32_t p = 0; p < parts && status >= 0; p++) {
        wefti_operand_t part = *operand;
        part.rank += p;
        part.rank_count = parts > 1 ? 1 : operand->rank_count;
        wefti_extent_t *range = &out->ranges[out->range_count++];
        *range =
            (wefti_extent_t){part.rank, part.rank_count, part.buffer, offset_of(layout, &part, i)};
        status = note_reach(layout, out, range, elem_count);
    }
    *added += parts;
    return status;
}

/* Adds a move of elem_count elements from block i on; all of its operands continue from there. */
static weft_status_t add_move(const layout_t *layout, const wefti_step_t *step, uint32_t i,
                              uint64_t elem_count, wefti_tasks_t *out)
{
    const wefti_operand_t *operands = layout->schedule->operands + step->move.operand;
    uint32_t range = (uint32_t)out->range_count, sources = 0, destinations = 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t o = 0; o < step->move.source_count && status >= 0; o++) {
        status = add_ranges(layout, &operands[o], i, elem_count, &sources, out);
    }
    operands += step->move.source_count;
    for (uint32_t o = 0; o < step->move.destination_count && status >= 0; o++) {
        status = add_ranges(layout, &operands[o], i, elem_count, &destinations, out);
    }
    if (status >= 0 && (sources > UINT16_MAX || destinations > UINT16_MAX)) {
        status = wefti_sizes_too_large(layout->params);
    }
    wefti_task_t task = {.op = step->op,
                         .flags = step->flags,
                         .source_count = (uint16_t)sources,
                         .destination_count = (uint16_t)destinations,
                         .range = range,
                         .elem_count = elem_count};
    return status >= 0 ? add_task(out, &task) : status;
}

/* Whether block i follows what was begun at block begin without a gap, in every operand. */
static bool continues(const layout_t *layout, const wefti_step_t *step, uint32_t begin, uint32_t i,
                      uint64_t elems)
{
    for (uint32_t o = 0; o < step->move.source_count + (uint32_t)step->move.destination_count;
         o++) {
        const wefti_operand_t *operand = &layout->schedule->operands[step->move.operand + o];
        if (parts_of(layout, operand) > 1) {
            return false;
        }
        if (offset_of(layout, operand, i) != offset_of(layout, operand, begin) + elems) {
            return false;
        }
    }
    return true;
}

static weft_status_t resolve_move(const layout_t *layout, const wefti_step_t *step,
                                  wefti_tasks_t *out)
{
    uint32_t begin = 0;
    uint64_t elems = 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < step->move.count && status >= 0; i++) {
        uint64_t length = length_of(layout, step->move.first + step->move.step * i);
        if (length > 0 && elems > 0 && !continues(layout, step, begin, i, elems)) {
            status = add_move(layout, step, begin, elems, out);
            elems = 0;
        }
        begin = elems == 0 ? i : begin;
        elems += length;
    }
    return elems > 0 && status >= 0 ? add_move(layout, step, begin, elems, out) : status;
}

static weft_status_t resolve_step(const layout_t *layout, const wefti_step_t *step,
                                  wefti_tasks_t *out)
{
    wefti_task_t task = {.op = step->op, .flags = step->flags};
    switch (step->op) {
    case WEFTI_DO_POST:
        task.phase = step->post.phase;
        return add_task(out, &task);
    case WEFTI_DO_WAIT:
        task.wait.first_rank = step->wait.first_rank;
        task.wait.rank_count = step->wait.rank_count;
        task.wait.phase = step->wait.phase;
        task.wait.lane = step->wait.lane;
        task.wait.back = step->wait.back;
        return add_task(out, &task);
    case WEFTI_DO_SIGNAL:
    case WEFTI_DO_AWAIT:
        task.signal.peer = step->signal.peer;
        task.signal.index = step->signal.index;
        task.signal.lane = step->signal.lane;
        task.signal.back = step->signal.back;
        return add_task(out, &task);
    default:
        return resolve_move(layout, step, out);
    }
}

static void count_elems(const layout_t *layout, uint64_t *elems)
{
    const wefti_schedule_t *schedule = layout->schedule;
    uint32_t rank = schedule->rank;
    for (uint32_t buffer = WEFTI_SEND; buffer <= WEFTI_RECV; buffer++) {
        uint32_t first, count;
        elems[buffer] = 0;
        if (layout->blocks > 0 && wefti_buffer_blocks(layout->params, &schedule->resources, rank,
                                                      buffer, &first, &count)) {
            uint32_t last = first + count - 1;
            uint32_t block = last;
            if (layout->exchange && layout->variable) {
                uint32_t n = layout->params->group_size;
                block = buffer == WEFTI_SEND ? rank * n + last : last * n + rank;
            }
            elems[buffer] =
                user_offset(layout, rank, buffer, last, first) + length_of(layout, block);
        }
    }
    elems[WEFTI_SCRATCH] = schedule->resources.scratch_slots * layout->slice->slot_elems;
    elems[WEFTI_STAGE] = schedule->stage_slots * layout->slice->slot_elems;
    elems[WEFTI_STAGE_WIDE] = schedule->stage_wide_slots * layout->slice->slot_elems;
}

weft_status_t wefti_tasks_resolve(wefti_tasks_t *tasks, const weft_algo_params_t *params,
                                  const wefti_schedule_t *schedule, const wefti_counts_t *counts,
                                  const wefti_displacements_t *displacements,
                                  const wefti_slice_t *slice)
{
    layout_t layout = {.params = params,
                       .schedule = schedule,
                       .counts = counts,
                       .displacements = displacements,
                       .slice = slice};
    size_t ranks = params->group_size;
    weft_status_t status = wefti_array_reserve(
        tasks->allocator, &tasks->reach, &tasks->reach_capacity, 2 * ranks, sizeof *tasks->reach);
    for (size_t i = 0; i < 2 * ranks && status >= 0; i++) {
        tasks->reach[i] = 0;
    }
    status = status >= 0 ? layout_init(&layout, tasks) : status;
    tasks->task_count = tasks->range_count = 0;
    for (uint32_t lane = 0; lane < schedule->resources.lanes && status >= 0; lane++) {
        tasks->lane_begin[lane] = (uint32_t)tasks->task_count;
        for (uint32_t i = schedule->lane_begin[lane];
             i < schedule->lane_begin[lane + 1] && status >= 0; i++) {
            status = resolve_step(&layout, &schedule->steps[i], tasks);
        }
    }
    if (status >= 0) {
        tasks->lane_begin[schedule->resources.lanes] = (uint32_t)tasks->task_count;
        count_elems(&layout, tasks->elems);
    }
    return status;
}

weft_status_t wefti_schedule_resolve(const weft_algo_params_t *params,
                                     const wefti_schedule_t *schedule, const wefti_counts_t *counts,
                                     const weft_allocator_t *allocator, wefti_tasks_t *out)
{
    wefti_slice_t slice;
    *out = (wefti_tasks_t){.allocator = allocator};
    weft_status_t status = wefti_schedule_check(params, schedule);
    if (status >= 0) {
        status = wefti_slice_init(params, schedule, counts, &slice);
    }
    if (status >= 0) {
        status = wefti_tasks_resolve(out, params, schedule, counts, NULL, &slice);
    }
    if (status < 0) {
        wefti_tasks_deinit(out);
    }
    return status;
}

void wefti_tasks_deinit(wefti_tasks_t *tasks)
{
    wefti_free(tasks->allocator, tasks->tasks);
    wefti_free(tasks->allocator, tasks->ranges);
    wefti_free(tasks->allocator, tasks->reach);
    wefti_free(tasks->allocator, tasks->prefix);
    *tasks = (wefti_tasks_t){0};
}
