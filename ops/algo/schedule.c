/* SPDX-License-Identifier: Apache-2.0 */
/* Building a schedule: checks what an author emits against what resources promised. */
#include "ops/algo/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

static void fail(weft_schedule_builder_t *builder, const char *what)
{
    if (builder->status >= 0) {
        builder->status = wefti_error(WEFT_ERR_INVALID_ARGUMENT, "rank %u, step %zu: %s",
                                      builder->schedule->rank, builder->schedule->step_count, what);
    }
}

wefti_step_t *wefti_schedule_add(wefti_schedule_t *schedule, const wefti_step_t *step)
{
    if (wefti_array_reserve(schedule->allocator, &schedule->steps, &schedule->step_capacity,
                            schedule->step_count + 1, sizeof *step) < 0) {
        return NULL;
    }
    schedule->steps[schedule->step_count] = *step;
    return &schedule->steps[schedule->step_count++];
}

weft_status_t wefti_schedule_add_operands(wefti_schedule_t *schedule,
                                          const wefti_operand_t *operands, size_t count,
                                          uint32_t *out_first)
{
    size_t first = schedule->operand_count;
    weft_status_t status =
        wefti_array_reserve(schedule->allocator, &schedule->operands, &schedule->operand_capacity,
                            first + count, sizeof *operands);
    if (status < 0) {
        return status;
    }
    if (first + count > UINT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "schedule: more than 2^32 operands");
    }
    if (count > 0) {
        memcpy(schedule->operands + first, operands, count * sizeof *operands);
    }
    schedule->operand_count += count;
    *out_first = (uint32_t)first;
    return WEFT_OK;
}

static bool lane_known(weft_schedule_builder_t *builder, uint32_t lane)
{
    if (lane < builder->schedule->resources.lanes) {
        return builder->status >= 0;
    }
    fail(builder, "lane is out of range of the requested resources");
    return false;
}

/* One more step, that moves so many blocks; false: more than there can be. */
static bool count_moves(weft_schedule_builder_t *builder, uint64_t blocks)
{
    builder->moves += 1 + blocks;
    if (builder->moves > WEFTI_MAX_MOVES) {
        fail(builder, "too many steps and blocks for one schedule");
    }
    return builder->moves <= WEFTI_MAX_MOVES;
}

static void add(weft_schedule_builder_t *builder, const wefti_step_t *step)
{
    if (!count_moves(builder, 0)) {
        return;
    }
    if (wefti_schedule_add(builder->schedule, step) == NULL && builder->status >= 0) {
        builder->status = WEFT_ERR_NO_MEMORY;
    }
}

void weft_schedule_post(weft_schedule_builder_t *builder, uint32_t lane, uint32_t phase)
{
    WEFT_CHECK_ARG_VOID(builder);
    if (!lane_known(builder, lane)) {
        return;
    }
    if (phase == 0 || phase > builder->schedule->resources.phases) {
        fail(builder, "post: phase is out of range of the requested resources");
        return;
    }
    wefti_step_t step = {.op = WEFTI_DO_POST, .lane = (uint16_t)lane, .post = {phase}};
    add(builder, &step);
}

void weft_schedule_wait(weft_schedule_builder_t *builder, uint32_t lane, uint32_t first_rank,
                        uint32_t rank_count, uint32_t their_lane, uint32_t phase,
                        uint32_t runs_back)
{
    WEFT_CHECK_ARG_VOID(builder);
    uint32_t group = builder->params->group_size;
    if (!lane_known(builder, lane) || !lane_known(builder, their_lane)) {
        return;
    }
    if (first_rank >= group || rank_count > group - first_rank) {
        fail(builder, "wait: rank is outside the group");
        return;
    }
    if (phase == 0 || phase > builder->schedule->resources.phases || runs_back > 2) {
        fail(builder, "wait: phase or run is out of range");
        return;
    }
    bool own = lane == their_lane && first_rank == builder->params->rank;
    if (rank_count == 0 || (rank_count == 1 && own)) {
        return;
    }
    wefti_step_t step = {.op = WEFTI_DO_WAIT,
                         .lane = (uint16_t)lane,
                         .wait = {.first_rank = first_rank,
                                  .rank_count = rank_count,
                                  .phase = phase,
                                  .lane = (uint16_t)their_lane,
                                  .back = (uint16_t)runs_back}};
    add(builder, &step);
}

static bool place_known(weft_schedule_builder_t *builder, const weft_place_t *place)
{
    uint32_t group = builder->params->group_size;
    uint32_t ranks = place->rank_count > 0 ? place->rank_count : 1;
    if (place->rank >= group || ranks > group - place->rank) {
        fail(builder, "data movement: rank is outside the group");
        return false;
    }
    if ((uint32_t)place->buffer > WEFT_ALGO_BUFFER_SCRATCH) {
        fail(builder, "data movement: unknown buffer");
        return false;
    }
    return true;
}

static void move(weft_schedule_builder_t *builder, wefti_step_t *step,
                 const weft_place_t *destinations, const weft_place_t *sources,
                 weft_blocks_t blocks)
{
    if (!lane_known(builder, step->lane) || blocks.count == 0 ||
        !count_moves(builder, blocks.count)) {
        return;
    }
    uint32_t first = (uint32_t)builder->schedule->operand_count;
    for (uint32_t i = 0; i < step->move.source_count + (uint32_t)step->move.destination_count;
         i++) {
        const weft_place_t *place =
            i < step->move.source_count ? &sources[i] : &destinations[i - step->move.source_count];
        if (!place_known(builder, place)) {
            return;
        }
        wefti_operand_t operand = {place->rank, place->rank_count > 0 ? place->rank_count : 1,
                                   place->block, place->step, place->buffer};
        uint32_t ignored;
        weft_status_t status =
            wefti_schedule_add_operands(builder->schedule, &operand, 1, &ignored);
        if (status < 0) {
            builder->status = status;
            return;
        }
    }
    step->move.operand = first;
    step->move.first = blocks.first;
    step->move.step = blocks.step;
    step->move.count = blocks.count;
    add(builder, step);
}

void weft_schedule_copy(weft_schedule_builder_t *builder, uint32_t lane, weft_place_t destination,
                        weft_place_t source, weft_blocks_t blocks)
{
    WEFT_CHECK_ARG_VOID(builder);
    if (destination.rank_count > 1 || source.rank_count > 1) {
        fail(builder, "copy: expected one source and one destination");
        return;
    }
    wefti_step_t step = {.op = WEFTI_DO_COPY, .lane = (uint16_t)lane};
    step.move.source_count = step.move.destination_count = 1;
    move(builder, &step, &destination, &source, blocks);
}

void weft_schedule_reduce(weft_schedule_builder_t *builder, uint32_t lane,
                          const weft_place_t *destinations, uint32_t destination_count,
                          const weft_place_t *sources, uint32_t source_count, weft_blocks_t blocks,
                          uint32_t finish)
{
    WEFT_CHECK_ARG_VOID(builder);
    if (source_count == 0 || destination_count == 0 || source_count > UINT16_MAX ||
        destination_count > UINT16_MAX) {
        fail(builder, "reduction: expected 1 to 65535 sources and destinations");
        return;
    }
    wefti_step_t step = {
        .op = WEFTI_DO_REDUCE, .lane = (uint16_t)lane, .flags = finish ? WEFTI_STEP_FINISH : 0};
    step.move.source_count = (uint16_t)source_count;
    step.move.destination_count = (uint16_t)destination_count;
    move(builder, &step, destinations, sources, blocks);
}

weft_status_t wefti_schedule_sort(wefti_schedule_t *schedule)
{
    uint32_t lanes = schedule->resources.lanes;
    size_t next = 0;
    wefti_step_t *sorted = NULL;
    if (lanes > 1 && schedule->step_count > 0) {
        sorted = wefti_alloc(schedule->allocator, schedule->step_count * sizeof *sorted);
        if (sorted == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (uint32_t lane = 0; lane < lanes; lane++) {
            schedule->lane_begin[lane] = (uint32_t)next;
            for (size_t i = 0; i < schedule->step_count; i++) {
                if (schedule->steps[i].lane == lane) {
                    sorted[next++] = schedule->steps[i];
                }
            }
        }
        memcpy(schedule->steps, sorted, schedule->step_count * sizeof *sorted);
        wefti_free(schedule->allocator, sorted);
    }
    schedule->lane_begin[lanes] = (uint32_t)schedule->step_count;
    return WEFT_OK;
}

void wefti_schedule_deinit(wefti_schedule_t *schedule)
{
    wefti_free(schedule->allocator, schedule->steps);
    wefti_free(schedule->allocator, schedule->operands);
    wefti_free(schedule->allocator, schedule->signal_counts);
    *schedule = (wefti_schedule_t){0};
}
