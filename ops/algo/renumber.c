/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks by placement. An algorithm that asks for it builds its schedule over numbers in which ranks
 * of a host, and hosts of a rack, follow each other; here steps over numbers become steps over
 * ranks.
 *
 *   rank     0 1 2 3 4 5 6 7        a ring over numbers crosses hosts twice,
 *   host     a b a b a b a b        over these ranks it would do so eight times
 *   number   0 4 1 5 2 6 3 7
 */
#include "ops/algo/schedule.h"
#include "runtime/base/error.h"

/* ---- the numbers ---- */

/* Whether parts of the group, such as hosts, are runs of ranks. next: [ranks], for the first one of
 * each part, by which parts are numbered in part[] from 0. */
static bool number_parts(const uint32_t *part_of, uint32_t ranks, uint32_t *next, uint32_t *part)
{
    uint32_t count = 0;
    bool runs = true;
    for (uint32_t r = 0; r < ranks; r++) {
        next[part_of[r]] = UINT32_MAX;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t *at = &next[part_of[r]];
        *at = *at == UINT32_MAX ? count++ : *at;
        part[r] = *at;
        runs = runs && (r == 0 || part[r] >= part[r - 1]);
    }
    return runs;
}

/* Sorts ranks[] by their parts into out[]; ranks of a part stay in order. begin: [ranks + 1] */
static void sort(const uint32_t *part, const uint32_t *ranks, uint32_t count, uint32_t *begin,
                 uint32_t *out)
{
    for (uint32_t i = 0; i <= count; i++) {
        begin[i] = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        begin[part[i] + 1]++;
    }
    for (uint32_t i = 0; i < count; i++) {
        begin[i + 1] += begin[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        out[begin[part[ranks[i]]]++] = ranks[i];
    }
}

static bool in_range(const uint32_t *part_of, const weft_algo_params_t *params)
{
    bool good = true;
    for (uint32_t r = 0; r < params->group_size && part_of != NULL; r++) {
        good = good && part_of[r] < params->group_size;
    }
    return good;
}

weft_status_t wefti_rank_numbers_init(wefti_rank_numbers_t *numbers,
                                      const weft_algo_params_t *params)
{
    uint32_t n = params->group_size;
    weft_algo_params_t of_group = *params;
    of_group.rank = 0;
    *numbers = (wefti_rank_numbers_t){.checked = wefti_algo_params_check(&of_group) >= 0};
    /* What else is wrong with the parameters, building reports. */
    if (n == 0 || n > WEFTI_MAX_GROUP || params->host_of == NULL ||
        !in_range(params->host_of, params) || !in_range(params->rack_of, params)) {
        return WEFT_OK;
    }
    uint32_t *lists = wefti_alloc(NULL, (5ul * n + 1) * sizeof *lists);
    WEFT_RETURN_IF_NO_MEMORY(lists);
    uint32_t *number_of = lists + n, *part = number_of + n, *other = part + n, *begin = other + n;
    bool runs = number_parts(params->host_of, n, begin, part);
    for (uint32_t r = 0; r < n; r++) {
        number_of[r] = r;
    }
    sort(part, number_of, n, begin, lists);
    if (params->rack_of != NULL) {
        runs = number_parts(params->rack_of, n, begin, part) && runs;
        sort(part, lists, n, begin, other);
        for (uint32_t i = 0; i < n; i++) {
            lists[i] = other[i];
        }
    }
    if (runs) {
        wefti_free(NULL, lists);
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < n; i++) {
        number_of[lists[i]] = i;
        part[i] = params->host_of[lists[i]];
        other[i] = params->rack_of != NULL ? params->rack_of[lists[i]] : 0;
    }
    *numbers = (wefti_rank_numbers_t){.checked = numbers->checked,
                                      .rank_at = lists,
                                      .number_of = number_of,
                                      .host_of = part,
                                      .rack_of = params->rack_of != NULL ? other : NULL};
    return WEFT_OK;
}

void wefti_rank_numbers_deinit(wefti_rank_numbers_t *numbers)
{
    wefti_free(NULL, numbers->rank_at);
    *numbers = (wefti_rank_numbers_t){0};
}

/* ---- steps ---- */

typedef struct renumbering {
    const weft_algo_params_t *params;
    const uint32_t *rank_at;
    const wefti_schedule_t *from;
    wefti_schedule_t *to;
    wefti_operand_t *operands; /* of the step at hand, over ranks; blocks still by number */
    size_t count, capacity;
} renumbering_t;

/* A block that belongs to a rank. */
static uint32_t of_rank(const renumbering_t *n, uint32_t block)
{
    uint32_t parts = wefti_part_count(&n->from->resources), owner = block / parts;
    bool known = !wefti_collective_is_vector(n->params->op) && owner < n->params->group_size;
    return known ? n->rank_at[owner] * parts + block % parts : block;
}

/* The operator's block number i of the step: of a rank, or of a pair that exchanges it. */
static uint32_t block_at(const renumbering_t *n, const wefti_step_t *step, uint32_t i)
{
    uint32_t block = step->move.first + i * step->move.step;
    uint32_t row = n->params->group_size * wefti_part_count(&n->from->resources);
    uint32_t from = block / row;
    bool pair = wefti_collective_exchanges(n->params->op) && from < n->params->group_size;
    return pair ? n->rank_at[from] * row + of_rank(n, block % row) : of_rank(n, block);
}

/* Where an operand has it. */
static uint32_t place_at(const renumbering_t *n, const wefti_operand_t *operand, uint32_t i)
{
    uint32_t place = operand->block + i * operand->step;
    return operand->buffer == WEFTI_SCRATCH ? place : of_rank(n, place);
}

/* Ranks of successive numbers that are consecutive. */
static uint32_t run_of(const renumbering_t *n, uint32_t number, uint32_t count)
{
    uint32_t run = 1;
    while (run < count && n->rank_at[number + run] == n->rank_at[number] + run) {
        run++;
    }
    return run;
}

static weft_status_t add(renumbering_t *n, const wefti_step_t *step)
{
    return wefti_schedule_add(n->to, step) != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t renumber_wait(renumbering_t *n, wefti_step_t step)
{
    uint32_t number = step.wait.first_rank, left = step.wait.rank_count;
    if (left == n->params->group_size) {
        return add(n, &step);
    }
    while (left > 0) {
        step.wait.first_rank = n->rank_at[number];
        step.wait.rank_count = run_of(n, number, left);
        number += step.wait.rank_count;
        left -= step.wait.rank_count;
        WEFT_RETURN_IF_ERROR(add(n, &step));
    }
    return WEFT_OK;
}

/* Appends an operand's ranks, run by run: *out_runs. */
static weft_status_t spread(renumbering_t *n, const wefti_operand_t *operand, uint32_t *out_runs)
{
    for (uint32_t i = 0; i < operand->rank_count; (*out_runs)++) {
        WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &n->operands, &n->capacity, n->count + 1,
                                                 sizeof *n->operands));
        wefti_operand_t *own = &n->operands[n->count++];
        *own = *operand;
        own->rank = n->rank_at[operand->rank + i];
        own->rank_count = run_of(n, operand->rank + i, operand->rank_count - i);
        i += own->rank_count;
    }
    return WEFT_OK;
}

/* Whether blocks i and i + 1 are as far apart as first and first + 1, in every operand. */
static bool continues(const renumbering_t *n, const wefti_step_t *step, uint32_t first, uint32_t i)
{
    uint32_t distance = block_at(n, step, first + 1) - block_at(n, step, first);
    bool good =
        distance < WEFTI_MAX_BLOCKS && block_at(n, step, i + 1) - block_at(n, step, i) == distance;
    for (size_t o = 0; o < n->count && good; o++) {
        const wefti_operand_t *at = &n->operands[o];
        distance = place_at(n, at, first + 1) - place_at(n, at, first);
        good =
            distance < WEFTI_MAX_BLOCKS && place_at(n, at, i + 1) - place_at(n, at, i) == distance;
    }
    return good;
}

/* Blocks from first on, as one step. */
static weft_status_t add_blocks(renumbering_t *n, const wefti_step_t *step, uint32_t first,
                                uint32_t count)
{
    wefti_step_t own = *step;
    bool several = count > 1;
    own.move.first = block_at(n, step, first);
    own.move.step = several ? block_at(n, step, first + 1) - own.move.first : 1;
    own.move.count = count;
    WEFT_RETURN_IF_ERROR(
        wefti_schedule_add_operands(n->to, n->operands, n->count, &own.move.operand));
    for (size_t o = 0; o < n->count; o++) {
        wefti_operand_t *to = &n->to->operands[own.move.operand + o];
        to->block = place_at(n, &n->operands[o], first);
        to->step = several ? place_at(n, &n->operands[o], first + 1) - to->block : 1;
    }
    return add(n, &own);
}

static weft_status_t renumber_move(renumbering_t *n, wefti_step_t step)
{
    const wefti_operand_t *operands = n->from->operands + step.move.operand;
    uint32_t sources = 0, destinations = 0, count = step.move.count;
    n->count = 0;
    for (uint32_t i = 0; i < step.move.source_count; i++) {
        WEFT_RETURN_IF_ERROR(spread(n, &operands[i], &sources));
    }
    for (uint32_t i = 0; i < step.move.destination_count; i++) {
        WEFT_RETURN_IF_ERROR(spread(n, &operands[step.move.source_count + i], &destinations));
    }
    if (sources > UINT16_MAX || destinations > UINT16_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "by_placement: a step has %u sources and %u destinations: at most 65535",
                           sources, destinations);
    }
    step.move.source_count = (uint16_t)sources;
    step.move.destination_count = (uint16_t)destinations;
    for (uint32_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && continues(n, &step, first, end - 1); end++) {
        }
        WEFT_RETURN_IF_ERROR(add_blocks(n, &step, first, end - first));
    }
    return WEFT_OK;
}

weft_status_t wefti_schedule_renumber(wefti_schedule_t *schedule, const weft_algo_params_t *params,
                                      const wefti_rank_numbers_t *numbers)
{
    wefti_schedule_t from = *schedule;
    renumbering_t n = {
        .params = params, .rank_at = numbers->rank_at, .from = &from, .to = schedule};
    weft_status_t status = WEFT_OK;
    schedule->steps = NULL;
    schedule->operands = NULL;
    schedule->step_count = schedule->step_capacity = 0;
    schedule->operand_count = schedule->operand_capacity = 0;
    for (uint32_t lane = 0; lane < from.resources.lanes && status >= 0; lane++) {
        schedule->lane_begin[lane] = (uint32_t)schedule->step_count;
        for (size_t i = from.lane_begin[lane]; i < from.lane_begin[lane + 1] && status >= 0; i++) {
            const wefti_step_t *step = &from.steps[i];
            status = step->op == WEFTI_DO_POST   ? add(&n, step)
                     : step->op == WEFTI_DO_WAIT ? renumber_wait(&n, *step)
                                                 : renumber_move(&n, *step);
        }
    }
    schedule->lane_begin[from.resources.lanes] = (uint32_t)schedule->step_count;
    wefti_free(NULL, n.operands);
    wefti_schedule_deinit(&from);
    return status;
}
