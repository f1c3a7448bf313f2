/* SPDX-License-Identifier: Apache-2.0 */
/* What holds before a schedule is resolved: its steps stay inside their buffers, sizes fit, there
 * is memory for whatever it comes to. */
#include "ops/algo/resolve_internal.h"

#include "runtime/base/error.h"

weft_status_t wefti_sizes_too_large(const weft_algo_params_t *params)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s over %u ranks: sizes overflow",
                       weft_collective_name(params->op), params->group_size);
}

static bool is_inside(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                      const wefti_step_t *step)
{
    uint64_t more = (uint64_t)step->move.count - 1;
    uint64_t names = wefti_collective_exchanges(params->op)
                         ? wefti_count_names(params) * wefti_part_count(&schedule->resources)
                         : wefti_block_count(params, &schedule->resources);
    if (step->move.first + step->move.step * more >= names) {
        return false;
    }
    for (uint32_t o = 0; o < step->move.source_count + (uint32_t)step->move.destination_count;
         o++) {
        const wefti_operand_t *operand = &schedule->operands[step->move.operand + o];
        /* Staging slots are lowering's own. */
        for (uint32_t r = 0; r < operand->rank_count && operand->buffer < WEFTI_STAGE; r++) {
            uint32_t first = 0, count = 0;
            if (!wefti_buffer_blocks(params, &schedule->resources, operand->rank + r,
                                     operand->buffer, &first, &count)) {
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

/* Copies do not convert, sums that are not rounded stay in scratch: lengths in bytes depend on it.
 */
static bool is_rounded_right(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                             const wefti_step_t *step)
{
    const wefti_operand_t *operands = schedule->operands + step->move.operand;
    uint32_t sources = step->move.source_count, wide_sources = 0, wide_destinations = 0;
    for (uint32_t o = 0; o < sources + step->move.destination_count; o++) {
        bool wide = operands[o].buffer == WEFTI_STAGE_WIDE ||
                    (operands[o].buffer == WEFTI_SCRATCH && wefti_collective_reduces(params->op));
        wide_sources += wide && o < sources;
        wide_destinations += wide && o >= sources;
    }
    if (step->op == WEFTI_DO_REDUCE) {
        return wide_destinations ==
               (step->flags & WEFTI_STEP_FINISH ? 0 : step->move.destination_count);
    }
    return wide_sources == wide_destinations;
}

weft_status_t wefti_schedule_check(const weft_algo_params_t *params,
                                   const wefti_schedule_t *schedule)
{
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        if (wefti_step_is_move(step) && !is_rounded_right(params, schedule, step)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "rank %u, step %zu: unrounded partial sums are mixed with elements "
                               "of the user's buffer; verify the algorithm",
                               schedule->rank, i);
        }
        if (wefti_step_is_move(step) && !is_inside(params, schedule, step)) {
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT,
                "rank %u, step %zu: block out of range of its buffer; verify the algorithm",
                schedule->rank, i);
        }
    }
    return WEFT_OK;
}

uint32_t wefti_shard_count(const weft_algo_params_t *params, const weft_algo_resources_t *resources)
{
    return wefti_collective_is_vector(params->op) ? wefti_block_count(params, resources)
                                                  : wefti_part_count(resources);
}

uint64_t wefti_slice_slot_elems(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                                const wefti_counts_t *counts, uint64_t elem_count)
{
    uint32_t shards = wefti_shard_count(params, &schedule->resources);
    if (shards <= 1) {
        return elem_count;
    }
    uint64_t share = wefti_shard_elems(elem_count, counts->elem_bytes, shards);
    return share < elem_count ? share : elem_count;
}

/* Whether positions in users' buffers, and in slots, fit signed 64 bits in bytes. */
static bool sizes_fit(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                      const wefti_counts_t *counts, uint64_t elem_count)
{
    uint32_t blocks = wefti_block_count(params, &schedule->resources);
    if (elem_count > WEFTI_MAX_ELEMS) {
        return false;
    }
    uint64_t slot = wefti_slice_slot_elems(params, schedule, counts, elem_count);
    uint64_t slots = (uint64_t)schedule->resources.scratch_slots + schedule->stage_slots +
                     schedule->stage_wide_slots + 2ull * blocks + 1;
    uint64_t bytes;
    return !__builtin_mul_overflow(slots, slot, &bytes) &&
           !__builtin_mul_overflow(bytes, counts->elem_bytes + 8ull, &bytes) && bytes <= INT64_MAX;
}

static weft_status_t longest_of(const weft_algo_params_t *params, const wefti_counts_t *counts,
                                uint64_t *out_longest)
{
    uint64_t sum = 0, longest = 0;
    if (counts->counts == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "counts is NULL");
    }
    for (size_t i = 0; i < wefti_count_names(params); i++) {
        longest = counts->counts[i] > longest ? counts->counts[i] : longest;
        if (__builtin_add_overflow(sum, counts->counts[i], &sum) || sum > INT64_MAX) {
            return wefti_sizes_too_large(params);
        }
    }
    *out_longest = longest;
    return WEFT_OK;
}

weft_status_t wefti_slice_init(const weft_algo_params_t *params, const wefti_schedule_t *schedule,
                               const wefti_counts_t *counts, wefti_slice_t *out)
{
    *out = (wefti_slice_t){.elem_count = counts->elem_count};
    weft_status_t status = WEFT_OK;
    if (counts->elem_bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "elem_bytes is 0");
    }
    if (wefti_collective_is_variable(params->op)) {
        status = longest_of(params, counts, &out->elem_count);
    } else if (params->op == WEFT_COLLECTIVE_BARRIER) {
        out->elem_count = 0;
    }
    if (status >= 0 && !sizes_fit(params, schedule, counts, out->elem_count)) {
        status = wefti_sizes_too_large(params);
    }
    out->slot_elems = wefti_slice_slot_elems(params, schedule, counts, out->elem_count);
    return status;
}

weft_status_t wefti_tasks_reserve(wefti_tasks_t *tasks, const weft_algo_params_t *params,
                                  const wefti_schedule_t *schedule)
{
    size_t task_count = 0, range_count = 0;
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        size_t moves = wefti_step_is_move(step) ? step->move.count : 0;
        task_count += wefti_step_is_move(step) ? moves : 1;
        for (uint32_t o = 0;
             moves > 0 && o < step->move.source_count + (uint32_t)step->move.destination_count;
             o++) {
            const wefti_operand_t *operand = &schedule->operands[step->move.operand + o];
            range_count +=
                moves * (wefti_collective_is_variable(params->op) ? operand->rank_count : 1);
        }
    }
    weft_status_t status = wefti_array_reserve(
        tasks->allocator, &tasks->tasks, &tasks->task_capacity, task_count, sizeof *tasks->tasks);
    if (status >= 0) {
        status = wefti_array_reserve(tasks->allocator, &tasks->ranges, &tasks->range_capacity,
                                     range_count, sizeof *tasks->ranges);
    }
    if (status >= 0) {
        status = wefti_array_reserve(tasks->allocator, &tasks->reach, &tasks->reach_capacity,
                                     2 * (size_t)params->group_size, sizeof *tasks->reach);
    }
    if (status >= 0 && wefti_collective_is_variable(params->op)) {
        status = wefti_array_reserve(tasks->allocator, &tasks->prefix, &tasks->prefix_capacity,
                                     2 * wefti_count_names(params), sizeof *tasks->prefix);
    }
    return status;
}
