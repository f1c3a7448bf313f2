/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of one rank, lowered alone. The schedules of the others are built one after the
 * other, and of each is kept what concerns the rank:
 *
 *   posts, waits for the rank, and moves that touch its memory   as they are
 *   all else, up to the next of these                            one step, with the slots it stages
 *   of a rank that has no such steps, nor is named by the rank   its number of slots
 *
 * So memory grows with what the rank exchanges, and time with the steps of all ranks.
 */
#include <string.h>

#include "ops/algo/lower_internal.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"

typedef struct one {
    wefti_lowering_t l;
    uint8_t *named; /* [rank] by a step of the rank that is lowered, over a put link */
    uint32_t *row;  /* [rank] of put targets: of ranks in its memory */
    wefti_schedule_t *from, *to;
    wefti_step_t others; /* not appended yet; no op: nothing */
} one_t;

static bool is_move(const wefti_step_t *step)
{
    return step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE;
}

static uint32_t operand_count(const wefti_step_t *step)
{
    return step->move.source_count + (uint32_t)step->move.destination_count;
}

static bool covers(uint32_t first, uint32_t count, uint32_t rank)
{
    return rank >= first && rank - first < count;
}

/* Whether a step waits for rank, or touches its memory. */
static bool names(const wefti_schedule_t *schedule, const wefti_step_t *step, uint32_t rank)
{
    if (step->op == WEFTI_DO_WAIT) {
        return covers(step->wait.first_rank, step->wait.rank_count, rank);
    }
    for (uint32_t o = 0; is_move(step) && o < operand_count(step); o++) {
        const wefti_operand_t *operand = &schedule->operands[step->move.operand + o];
        if (covers(operand->rank, operand->rank_count, rank)) {
            return true;
        }
    }
    return false;
}

static void mark_named(one_t *one, uint32_t first, uint32_t count)
{
    for (uint32_t rank = first; rank - first < count; rank++) {
        one->named[rank] |= wefti_links_put(one->l.links, one->l.only, rank);
    }
}

/* Of the schedule of the rank itself. */
static void find_named(one_t *one, const wefti_schedule_t *own)
{
    for (size_t i = 0; i < own->step_count; i++) {
        const wefti_step_t *step = &own->steps[i];
        if (step->op == WEFTI_DO_WAIT) {
            mark_named(one, step->wait.first_rank, step->wait.rank_count);
        }
        for (uint32_t o = 0; is_move(step) && o < operand_count(step); o++) {
            const wefti_operand_t *operand = &own->operands[step->move.operand + o];
            mark_named(one, operand->rank, operand->rank_count);
        }
    }
}

/* Blocks of receive buffers in the memory of the rank that a rank of another one writes: puts. */
static void find_targets(one_t *one, const wefti_step_t *step)
{
    const wefti_schedule_t *from = one->from;
    uint32_t blocks = wefti_block_count(one->l.params, &from->resources);
    for (uint32_t o = step->move.source_count; o < operand_count(step); o++) {
        const wefti_operand_t *to = &from->operands[step->move.operand + o];
        for (uint32_t i = 0; to->buffer == WEFTI_RECV && i < to->rank_count; i++) {
            uint32_t row = one->row[to->rank + i];
            for (uint32_t b = 0; row != WEFTI_NOBODY && b < step->move.count; b++) {
                uint32_t block = to->block + to->step * b;
                if (block < blocks && wefti_links_put(one->l.links, from->rank, to->rank + i)) {
                    one->l.put_targets[(size_t)row * blocks + block] = 1;
                }
            }
        }
    }
}

/* Whether something of a wait stays a wait: for ranks of its memory, or for itself alone. */
static bool waits_in_memory(const one_t *one, const wefti_step_t *step)
{
    uint32_t rank = one->from->rank, end = step->wait.first_rank + step->wait.rank_count;
    bool puts = false;
    for (uint32_t other = step->wait.first_rank; other < end; other++) {
        bool put = wefti_links_put(one->l.links, rank, other);
        if (!put && (other != rank || step->wait.lane != step->lane)) {
            return true;
        }
        puts = puts || put;
    }
    return !puts;
}

static weft_status_t append(one_t *one, const wefti_step_t *step)
{
    return wefti_schedule_add(one->to, step) != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t append_others(one_t *one)
{
    wefti_step_t others = one->others;
    one->others = (wefti_step_t){0};
    return others.op != 0 ? append(one, &others) : WEFT_OK;
}

static weft_status_t keep(one_t *one, const wefti_step_t *step)
{
    wefti_step_t kept = *step;
    WEFT_RETURN_IF_ERROR(append_others(one));
    if (is_move(step)) {
        WEFT_RETURN_IF_ERROR(wefti_schedule_add_operands(one->to,
                                                         one->from->operands + step->move.operand,
                                                         operand_count(step), &kept.move.operand));
    }
    return append(one, &kept);
}

static weft_status_t keep_or_count(one_t *one, const wefti_step_t *step)
{
    if (is_move(step)) {
        find_targets(one, step);
    }
    if (step->op == WEFTI_DO_POST || names(one->from, step, one->l.only)) {
        return keep(one, step);
    }
    if (is_move(step) || waits_in_memory(one, step)) {
        one->others.op = WEFTI_DO_OTHERS;
        one->others.lane = step->lane;
    }
    if (is_move(step)) {
        wefti_lower_count_slots(&one->l, one->from->rank, step,
                                one->from->operands + step->move.operand, &one->others.move.first,
                                &one->others.move.step);
    }
    return WEFT_OK;
}

/* Whether any step of a schedule names the rank, or the rank names its. */
static bool exchanges(const one_t *one, const wefti_schedule_t *from)
{
    bool found = one->named[from->rank] != 0;
    for (size_t i = 0; i < from->step_count && !found; i++) {
        found = names(from, &from->steps[i], one->l.only);
    }
    return found;
}

/* Replaces the schedule of another rank by what concerns this one. */
static weft_status_t reduce(one_t *one, wefti_schedule_t *schedule)
{
    wefti_schedule_t from = *schedule;
    weft_status_t status = WEFT_OK;
    bool kept = exchanges(one, &from);
    schedule->steps = NULL;
    schedule->operands = NULL;
    schedule->step_count = schedule->step_capacity = 0;
    schedule->operand_count = schedule->operand_capacity = 0;
    one->from = &from;
    one->to = schedule;
    for (uint32_t lane = 0; lane < from.resources.lanes && status >= 0; lane++) {
        schedule->lane_begin[lane] = (uint32_t)schedule->step_count;
        for (uint32_t i = from.lane_begin[lane]; i < from.lane_begin[lane + 1] && status >= 0;
             i++) {
            const wefti_step_t *step = &from.steps[i];
            if (kept) {
                status = keep_or_count(one, step);
            } else if (is_move(step)) {
                find_targets(one, step);
                wefti_lower_count_slots(&one->l, from.rank, step,
                                        from.operands + step->move.operand, &schedule->stage_slots,
                                        &schedule->stage_wide_slots);
            }
        }
        status = status >= 0 ? append_others(one) : status;
    }
    schedule->lane_begin[from.resources.lanes] = (uint32_t)schedule->step_count;
    wefti_schedule_deinit(&from);
    return status;
}

static weft_status_t begin(one_t *one, const wefti_schedule_t *own)
{
    uint32_t n = one->l.params->group_size, rows = 0;
    one->named = wefti_alloc(one->l.allocator, n);
    one->row = wefti_alloc(one->l.allocator, n * sizeof *one->row);
    WEFT_RETURN_IF_NO_MEMORY(one->named && one->row);
    find_named(one, own);
    for (uint32_t rank = 0; rank < n; rank++) {
        bool far = wefti_links_put(one->l.links, one->l.only, rank);
        one->row[rank] = far ? WEFTI_NOBODY : rows++;
    }
    one->l.row = one->row;
    one->l.put_targets = wefti_alloc(
        one->l.allocator, (size_t)rows * wefti_block_count(one->l.params, &own->resources) + 1);
    WEFT_RETURN_IF_NO_MEMORY(one->l.put_targets);
    return WEFT_OK;
}

static weft_status_t build_and_lower(one_t *one, const weft_algorithm_t *algorithm,
                                     const wefti_rank_numbers_t *numbers,
                                     wefti_schedule_t *schedules)
{
    weft_algo_params_t params = *one->l.params;
    const weft_allocator_t *allocator = one->l.allocator;
    uint32_t only = params.rank;
    WEFT_RETURN_IF_ERROR(
        wefti_schedule_build_numbered(algorithm, &params, numbers, allocator, &schedules[only]));
    WEFT_RETURN_IF_ERROR(begin(one, &schedules[only]));
    for (params.rank = 0; params.rank < params.group_size; params.rank++) {
        wefti_schedule_t *other = &schedules[params.rank];
        if (params.rank != only) {
            WEFT_RETURN_IF_ERROR(
                wefti_schedule_build_numbered(algorithm, &params, numbers, allocator, other));
            WEFT_RETURN_IF_ERROR(wefti_schedule_same_resources(algorithm, &schedules[only], other));
            WEFT_RETURN_IF_ERROR(reduce(one, other));
        }
    }
    return wefti_lower_pass(&one->l);
}

weft_status_t wefti_schedules_build_lowered(const weft_algorithm_t *algorithm,
                                            const weft_algo_params_t *params,
                                            const wefti_links_t *links,
                                            const weft_allocator_t *allocator,
                                            wefti_schedule_t **out_schedules)
{
    weft_status_t status;
    uint32_t n = params->group_size;
    *out_schedules = NULL;
    if (links->hidden != NULL || links->memory_of == NULL || !wefti_lower_by_two(algorithm)) {
        wefti_schedule_t *all;
        WEFT_RETURN_IF_ERROR(wefti_schedules_build(algorithm, params, allocator, &all));
        status = wefti_schedules_lower(params, links, allocator, all);
        if (status < 0) {
            wefti_schedules_free(allocator, all, n);
            return status;
        }
        *out_schedules = all;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_algo_params_check(params));
    wefti_rank_numbers_t numbers;
    WEFT_RETURN_IF_ERROR(wefti_rank_numbers_init(&numbers, params));
    wefti_schedule_t *schedules = wefti_alloc(allocator, n * sizeof *schedules);
    one_t one = {.l = {.params = params,
                       .links = links,
                       .allocator = allocator,
                       .schedules = schedules,
                       .puts = true,
                       .only = params->rank}};
    status = schedules != NULL ? build_and_lower(&one, algorithm, &numbers, schedules)
                               : WEFT_ERR_NO_MEMORY;
    wefti_rank_numbers_deinit(&numbers);
    wefti_free(allocator, one.named);
    wefti_free(allocator, one.row);
    wefti_free(allocator, one.l.put_targets);
    if (status < 0) {
        wefti_schedules_free(allocator, schedules, n);
        return status;
    }
    *out_schedules = schedules;
    return WEFT_OK;
}
