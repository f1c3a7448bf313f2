/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/resolve.h"

#include <inttypes.h>

#include "runtime/base/error.h"

typedef struct layout {
    const weft_algo_params_t *params;
    const wefti_counts_t *counts;
    uint32_t blocks;
    bool vector, variable, exchange; /* exchange: all-to-all */
    uint64_t share;                  /* vectors: elements of a full shard */
    uint64_t longest;                /* of all blocks: what a slot holds */
    uint64_t *prefix;                /* V forms but all-to-all: [block + 1] */
} layout_t;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Shards of whole cache lines, the last ones shorter or empty. */
static uint64_t shard_elems(const wefti_counts_t *counts, uint32_t blocks)
{
    uint64_t unit =
        counts->elem_bytes < WEFTI_SHARD_BYTES ? WEFTI_SHARD_BYTES / counts->elem_bytes : 1;
    uint64_t units = counts->elem_count / unit + (counts->elem_count % unit != 0);
    return (units / blocks + (units % blocks != 0)) * unit;
}

static weft_status_t too_large(const layout_t *layout)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s over %u ranks: sizes overflow",
                       weft_collective_name(layout->params->op), layout->params->group_size);
}

static weft_status_t add_variable(layout_t *layout, const weft_allocator_t *allocator)
{
    uint32_t n = layout->params->group_size;
    size_t count = layout->exchange ? (size_t)n * n : n;
    uint64_t sum = 0;
    if (layout->counts->counts == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "counts is NULL");
    }
    layout->prefix = wefti_alloc(allocator, (count + 1) * sizeof *layout->prefix);
    if (layout->prefix == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        layout->prefix[i] = sum;
        layout->longest = layout->counts->counts[i] > layout->longest ? layout->counts->counts[i]
                                                                      : layout->longest;
        if (__builtin_add_overflow(sum, layout->counts->counts[i], &sum) || sum > INT64_MAX) {
            return too_large(layout);
        }
    }
    layout->prefix[count] = sum;
    return WEFT_OK;
}

static weft_status_t layout_init(layout_t *layout, const weft_algo_params_t *params,
                                 const wefti_schedule_t *schedule, const wefti_counts_t *counts,
                                 const weft_allocator_t *allocator)
{
    *layout = (layout_t){.params = params,
                         .counts = counts,
                         .blocks = wefti_block_count(params, &schedule->resources),
                         .vector = wefti_collective_is_vector(params->op)};
    layout->exchange = params->op == WEFT_OP_ALL_TO_ALL || params->op == WEFT_OP_ALL_TO_ALL_V;
    layout->variable = params->op == WEFT_OP_ALL_GATHER_V ||
                       params->op == WEFT_OP_REDUCE_SCATTER_V || params->op == WEFT_OP_ALL_TO_ALL_V;
    if (counts->elem_bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "elem_bytes is 0");
    }
    weft_status_t status = layout->variable ? add_variable(layout, allocator) : WEFT_OK;
    if (status >= 0 && layout->vector) {
        layout->share = shard_elems(counts, layout->blocks);
        layout->longest = least(layout->share, counts->elem_count);
    } else if (status >= 0 && !layout->variable) {
        layout->longest = counts->elem_count;
    }
    uint64_t slots = (uint64_t)schedule->resources.scratch_slots + schedule->stage_slots +
                     schedule->stage_wide_slots + 2ull * layout->blocks + 1;
    uint64_t bytes;
    if (status >= 0 &&
        (__builtin_mul_overflow(slots, layout->longest, &bytes) ||
         __builtin_mul_overflow(bytes, counts->elem_bytes + 8ull, &bytes) || bytes > INT64_MAX ||
         __builtin_mul_overflow(layout->share, layout->blocks + 1ull, &bytes) ||
         bytes > INT64_MAX)) {
        status = too_large(layout);
    }
    return status;
}

/* Elements of an operator's block. */
static uint64_t length_of(const layout_t *layout, uint32_t block)
{
    if (layout->variable) {
        return layout->counts->counts[block];
    }
    if (!layout->vector) {
        return layout->counts->elem_count;
    }
    uint64_t begin = least(block * layout->share, layout->counts->elem_count);
    return least(layout->share, layout->counts->elem_count - begin);
}

/* Where a user's block begins in its buffer. */
static uint64_t user_offset(const layout_t *layout, uint32_t rank, uint32_t buffer, uint32_t index,
                            uint32_t first)
{
    uint32_t n = layout->params->group_size;
    if (layout->vector) {
        return least(index * layout->share, layout->counts->elem_count);
    }
    if (!layout->variable) {
        return (uint64_t)(index - first) * layout->counts->elem_count;
    }
    if (!layout->exchange) {
        return layout->prefix[index] - layout->prefix[first];
    }
    if (buffer == WEFTI_SEND) {
        return layout->prefix[(size_t)rank * n + index] - layout->prefix[(size_t)rank * n];
    }
    uint64_t offset = 0;
    for (uint32_t from = 0; from < index; from++) {
        offset += layout->counts->counts[(size_t)from * n + rank];
    }
    return offset;
}

static uint64_t offset_of(const layout_t *layout, const wefti_schedule_t *schedule,
                          const wefti_operand_t *operand, uint32_t i)
{
    uint32_t index = operand->block + operand->step * i, first = 0, count;
    if (operand->buffer >= WEFTI_SCRATCH) {
        return index * layout->longest;
    }
    /* A range of ranks shares one layout, but that of a rank's only block. */
    wefti_buffer_blocks(layout->params, &schedule->resources, operand->rank,
                        (wefti_place_buffer_t)operand->buffer, &first, &count);
    return user_offset(layout, operand->rank, operand->buffer, index, first);
}

static weft_status_t add_task(wefti_tasks_t *out, const wefti_task_t *task)
{
    weft_status_t status = wefti_array_reserve(out->allocator, &out->tasks, &out->task_capacity,
                                               out->task_count + 1, sizeof *task);
    if (status >= 0) {
        out->tasks[out->task_count++] = *task;
    }
    return status;
}

/* Adds a move of elem_count elements from block i on; all of its operands continue from there. */
static weft_status_t add_move(const layout_t *layout, const wefti_schedule_t *schedule,
                              const wefti_step_t *step, uint32_t i, uint64_t elem_count,
                              wefti_tasks_t *out)
{
    uint32_t operand_count = step->move.source_count + (uint32_t)step->move.destination_count;
    wefti_task_t task = {.op = step->op,
                         .flags = step->flags,
                         .source_count = step->move.source_count,
                         .destination_count = step->move.destination_count,
                         .range = (uint32_t)out->range_count,
                         .elem_count = elem_count};
    weft_status_t status =
        wefti_array_reserve(out->allocator, &out->ranges, &out->range_capacity,
                            out->range_count + operand_count, sizeof *out->ranges);
    for (uint32_t o = 0; o < operand_count && status >= 0; o++) {
        const wefti_operand_t *operand = &schedule->operands[step->move.operand + o];
        out->ranges[out->range_count++] =
            (wefti_range_t){operand->rank, operand->rank_count, operand->buffer,
                            offset_of(layout, schedule, operand, i)};
    }
    return status >= 0 ? add_task(out, &task) : status;
}

/* Whether block i follows what was begun at block begin without a gap, in every operand. */
static bool continues(const layout_t *layout, const wefti_schedule_t *schedule,
                      const wefti_step_t *step, uint32_t begin, uint32_t i, uint64_t elems)
{
    for (uint32_t o = 0; o < step->move.source_count + (uint32_t)step->move.destination_count;
         o++) {
        const wefti_operand_t *operand = &schedule->operands[step->move.operand + o];
        if (offset_of(layout, schedule, operand, i) !=
            offset_of(layout, schedule, operand, begin) + elems) {
            return false;
        }
    }
    return true;
}

/* Schedules of other libraries may not have been verified: indices lie inside buffers, or nothing
 * runs. */
static bool is_inside(const layout_t *layout, const wefti_schedule_t *schedule,
                      const wefti_step_t *step)
{
    uint32_t n = layout->params->group_size;
    uint64_t more = (uint64_t)step->move.count - 1;
    uint64_t names = layout->exchange ? (uint64_t)n * n : layout->blocks;
    if (step->move.first + step->move.step * more >= names) {
        return false;
    }
    for (uint32_t o = 0; o < step->move.source_count + (uint32_t)step->move.destination_count;
         o++) {
        const wefti_operand_t *operand = &schedule->operands[step->move.operand + o];
        /* Staging slots are lowering's own. */
        for (uint32_t r = 0; r < operand->rank_count && operand->buffer < WEFTI_STAGE; r++) {
            uint32_t first = 0, count = 0;
            if (!wefti_buffer_blocks(layout->params, &schedule->resources, operand->rank + r,
                                     (wefti_place_buffer_t)operand->buffer, &first, &count)) {
                return false;
            }
            uint64_t last = operand->block + operand->step * more;
            if (operand->block < first || last - first >= count) {
                return false;
            }
        }
    }
    return true;
}

static weft_status_t resolve_move(const layout_t *layout, const wefti_schedule_t *schedule,
                                  const wefti_step_t *step, wefti_tasks_t *out)
{
    uint32_t begin = 0;
    uint64_t elems = 0;
    weft_status_t status = WEFT_OK;
    if (!is_inside(layout, schedule, step)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "rank %u, step %zu: a block outside its buffer; verify the algorithm",
                           schedule->rank, (size_t)(step - schedule->steps));
    }
    for (uint32_t i = 0; i < step->move.count && status >= 0; i++) {
        uint64_t length = length_of(layout, step->move.first + step->move.step * i);
        if (length > 0 && elems > 0 && !continues(layout, schedule, step, begin, i, elems)) {
            status = add_move(layout, schedule, step, begin, elems, out);
            elems = 0;
        }
        begin = elems == 0 ? i : begin;
        elems += length;
    }
    return elems > 0 && status >= 0 ? add_move(layout, schedule, step, begin, elems, out) : status;
}

static weft_status_t resolve_step(const layout_t *layout, const wefti_schedule_t *schedule,
                                  const wefti_step_t *step, wefti_tasks_t *out)
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
        return resolve_move(layout, schedule, step, out);
    }
}

static void count_elems(const layout_t *layout, const wefti_schedule_t *schedule, uint32_t rank,
                        uint64_t *elems)
{
    for (uint32_t buffer = WEFTI_SEND; buffer <= WEFTI_RECV; buffer++) {
        uint32_t first, count;
        if (layout->blocks > 0 &&
            wefti_buffer_blocks(layout->params, &schedule->resources, rank,
                                (wefti_place_buffer_t)buffer, &first, &count)) {
            uint32_t last = first + count - 1;
            uint32_t block = last;
            if (layout->exchange) {
                uint32_t n = layout->params->group_size;
                block = buffer == WEFTI_SEND ? rank * n + last : last * n + rank;
            }
            elems[buffer] =
                user_offset(layout, rank, buffer, last, first) + length_of(layout, block);
        }
    }
    elems[WEFTI_SCRATCH] = schedule->resources.scratch_slots * layout->longest;
    elems[WEFTI_STAGE] = schedule->stage_slots * layout->longest;
    elems[WEFTI_STAGE_WIDE] = schedule->stage_wide_slots * layout->longest;
}

weft_status_t wefti_schedule_resolve(const weft_algo_params_t *params,
                                     const wefti_schedule_t *schedule, const wefti_counts_t *counts,
                                     const weft_allocator_t *allocator, wefti_tasks_t *out)
{
    *out = (wefti_tasks_t){.allocator = allocator};
    layout_t layout;
    weft_status_t status = layout_init(&layout, params, schedule, counts, allocator);
    for (uint32_t lane = 0; lane < schedule->resources.lanes && status >= 0; lane++) {
        out->lane_begin[lane] = (uint32_t)out->task_count;
        for (uint32_t i = schedule->lane_begin[lane];
             i < schedule->lane_begin[lane + 1] && status >= 0; i++) {
            status = resolve_step(&layout, schedule, &schedule->steps[i], out);
        }
    }
    if (status >= 0) {
        out->lane_begin[schedule->resources.lanes] = (uint32_t)out->task_count;
        count_elems(&layout, schedule, schedule->rank, out->elems);
    } else {
        wefti_tasks_deinit(out);
    }
    wefti_free(allocator, layout.prefix);
    return status;
}

void wefti_tasks_deinit(wefti_tasks_t *tasks)
{
    wefti_free(tasks->allocator, tasks->tasks);
    wefti_free(tasks->allocator, tasks->ranges);
    *tasks = (wefti_tasks_t){0};
}
