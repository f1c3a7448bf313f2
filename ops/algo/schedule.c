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
                                      builder->params->rank, builder->schedule->step_count, what);
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

/* Puts the steps of each lane together, keeping their order. */
static weft_status_t sort_by_lane(wefti_schedule_t *schedule)
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

static weft_status_t check_sizes(const weft_algo_params_t *params, const char *what,
                                 const uint32_t *sizes, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (sizes == NULL || sizes[i] == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s %u is empty", what, i);
        }
        sum += sizes[i];
    }
    if (sum != params->group_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "sizes of the %ss sum to %" PRIu64 " ranks, but the group has %u", what,
                           sum, params->group_size);
    }
    return WEFT_OK;
}

/* Ranks on hosts in any order: each host has one. */
static weft_status_t check_placement(const weft_algo_params_t *params)
{
    uint32_t hosts = params->host_of_count;
    if (hosts == 0 || hosts > params->group_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "host_of: invalid number of hosts %u for a group of %u ranks", hosts,
                           params->group_size);
    }
    uint8_t *seen = wefti_alloc(NULL, hosts);
    if (seen == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = WEFT_OK;
    uint32_t count = 0;
    for (uint32_t r = 0; r < params->group_size && status == WEFT_OK; r++) {
        if (params->host_of[r] >= hosts) {
            status =
                wefti_error(WEFT_ERR_INVALID_ARGUMENT, "host_of: rank %u: invalid host %u of %u", r,
                            params->host_of[r], hosts);
            break;
        }
        count += !seen[params->host_of[r]];
        seen[params->host_of[r]] = 1;
    }
    wefti_free(NULL, seen);
    if (status == WEFT_OK && count != hosts) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT, "host_of: only %u of %u hosts have ranks",
                             count, hosts);
    }
    return status;
}

weft_status_t wefti_algo_params_check(const weft_algo_params_t *params)
{
    if (!wefti_collective_known(params->op)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown collective operator %d",
                           (int)params->op);
    }
    if (params->group_size == 0 || params->group_size > WEFTI_MAX_GROUP) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid group size %u: must be between 1 and %u", params->group_size,
                           WEFTI_MAX_GROUP);
    }
    if (params->rank >= params->group_size || params->root >= params->group_size ||
        params->peer >= params->group_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "rank %u, root %u or peer %u is out of range for a group of %u ranks",
                           params->rank, params->root, params->peer, params->group_size);
    }
    if ((uint32_t)params->order > WEFT_ORDER_ANY) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown reduction order %d",
                           (int)params->order);
    }
    if (params->op == WEFT_COLLECTIVE_SEND_RECV && params->root == params->peer) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid send: rank %u is both sender and receiver", params->root);
    }
    if (params->in_place && params->op != WEFT_COLLECTIVE_BARRIER &&
        !wefti_collective_of(params->op)->in_place) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: in place is not supported",
                           weft_collective_name(params->op));
    }
    weft_status_t status = WEFT_OK;
    if (params->order == WEFT_ORDER_BLOCKS) {
        status = check_sizes(params, "block", params->order_sizes, params->order_size_count);
    }
    if (status >= 0 && params->host_count > 0) {
        status = check_sizes(params, "host", params->host_sizes, params->host_count);
    }
    if (status >= 0 && params->host_of != NULL) {
        status = check_placement(params);
    }
    return status;
}

static weft_status_t ask_resources(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    *out = (weft_algo_resources_t){0};
    wefti_algorithm_resources(algorithm, params, out);
    out->lanes = out->lanes > 0 ? out->lanes : 1;
    out->blocks = out->blocks > 0 ? out->blocks : 1;
    out->scratch_sets = out->scratch_sets > 0 ? out->scratch_sets : 1;
    if (out->lanes > WEFTI_MAX_LANES || out->phases > WEFTI_MAX_PHASES ||
        out->blocks > WEFTI_MAX_BLOCKS || out->scratch_slots > WEFTI_MAX_BLOCKS ||
        out->scratch_sets > 2 || (uint64_t)out->parts * params->group_size > WEFTI_MAX_BLOCKS ||
        (out->parts > 1 && wefti_collective_is_variable(params->op))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s %s: requested resources exceed the limits: %u lanes, %u phases, %u "
                           "blocks, %u scratch slots in %u sets, %u parts of a block",
                           weft_collective_name(params->op), algorithm->name, out->lanes,
                           out->phases, out->blocks, out->scratch_slots, out->scratch_sets,
                           out->parts);
    }
    return WEFT_OK;
}

weft_status_t wefti_schedule_build(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params,
                                   const weft_allocator_t *allocator, wefti_schedule_t *out)
{
    *out = (wefti_schedule_t){.allocator = allocator, .rank = params->rank, .stage_sets = 1};
    weft_status_t status = wefti_algo_params_check(params);
    if (status < 0) {
        return status;
    }
    const char *reason = wefti_algorithm_reason(algorithm, params);
    if (reason != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s %s: %s", weft_collective_name(params->op),
                           algorithm->name, reason);
    }
    status = ask_resources(algorithm, params, &out->resources);
    if (status < 0) {
        return status;
    }
    weft_algo_params_t own = *params;
    own.algorithm = algorithm;
    weft_schedule_builder_t builder = {out, &own, WEFT_OK, 0};
    algorithm->build(&own, &builder);
    status = builder.status >= 0 ? sort_by_lane(out) : builder.status;
    if (status < 0) {
        wefti_schedule_deinit(out);
        return wefti_error_prefix(status, "%s %s", weft_collective_name(params->op),
                                  algorithm->name);
    }
    return WEFT_OK;
}

void wefti_schedule_deinit(wefti_schedule_t *schedule)
{
    wefti_free(schedule->allocator, schedule->steps);
    wefti_free(schedule->allocator, schedule->operands);
    wefti_free(schedule->allocator, schedule->signal_counts);
    *schedule = (wefti_schedule_t){0};
}
