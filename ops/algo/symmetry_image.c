/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the schedule of every rank is the image of rank 0's. */
#include "ops/algo/symmetry.h"

#include <string.h>

#include "ops/algo/resolve.h"
#include "runtime/base/error.h"

static bool is_move(const wefti_step_t *step)
{
    return step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE;
}

bool wefti_sym_next(const wefti_schedule_t *schedule, wefti_sym_walk_t *walk, wefti_sym_item_t *out)
{
    if (walk->step == schedule->step_count) {
        return false;
    }
    const wefti_step_t *step = &schedule->steps[walk->step];
    *out = (wefti_sym_item_t){step, NULL, walk->block};
    if (is_move(step)) {
        out->operands = &schedule->operands[step->move.operand];
    }
    if (!is_move(step) || ++walk->block == step->move.count) {
        walk->step++;
        walk->block = 0;
    }
    return true;
}

/* One rank, or all of them. */
static bool same_ranks(const wefti_symmetry_t *s, uint32_t first, uint32_t count, uint32_t of_first,
                       uint32_t of_count, uint32_t by)
{
    return count == of_count &&
           (count == s->ranks || (count == 1 && first == wefti_sym_rank(s, of_first, by)));
}

static uint32_t place_of(const wefti_operand_t *operand, uint32_t i)
{
    return operand->block + i * operand->step;
}

/* Turned, a sum over all ranks begins at another rank, so it is no image. */
static bool adds_all(const wefti_symmetry_t *s, const wefti_sym_item_t *item)
{
    bool all = false;
    for (uint32_t o = 0; item->step->op == WEFTI_DO_REDUCE && o < item->step->move.source_count;
         o++) {
        all = all || item->operands[o].rank_count > 1;
    }
    return all && !s->mirrored;
}

static bool same_operand(const wefti_symmetry_t *s, const wefti_sym_item_t *own,
                         const wefti_sym_item_t *base, uint32_t o, uint32_t of, uint32_t by)
{
    const wefti_operand_t *a = &own->operands[o], *b = &base->operands[of];
    uint32_t place = place_of(b, base->block);
    place = b->buffer == WEFTI_SCRATCH ? place : wefti_sym_block(s, place, by);
    return a->buffer == b->buffer && place_of(a, own->block) == place &&
           same_ranks(s, a->rank, a->rank_count, b->rank, b->rank_count, by);
}

/* The operator's block: of a rank, or of a pair of them. */
static bool same_block(const wefti_symmetry_t *s, const wefti_sym_item_t *own,
                       const wefti_sym_item_t *base, uint32_t by)
{
    uint32_t a = own->step->move.first + own->block * own->step->move.step;
    uint32_t b = base->step->move.first + base->block * base->step->move.step;
    if (!wefti_collective_exchanges(s->params->op)) {
        return a == wefti_sym_block(s, b, by);
    }
    if (!wefti_collective_is_variable(s->params->op)) {
        return a % s->parts == b % s->parts; /* blocks of all pairs are equal */
    }
    uint32_t from = wefti_sym_rank(s, b / s->ranks, by), to = wefti_sym_rank(s, b % s->ranks, by);
    return a / s->ranks == from && a % s->ranks == to;
}

/* Mirrored: of two sums the one of the lower ranks comes first, on every rank. */
static bool is_swapped(const wefti_symmetry_t *s, const wefti_sym_item_t *base, uint32_t by)
{
    uint32_t a = base->operands[0].rank, b = base->operands[1].rank;
    return s->mirrored && base->step->op == WEFTI_DO_REDUCE && base->step->move.source_count == 2 &&
           a < b && (a ^ by) > (b ^ by);
}

static bool same_item(const wefti_symmetry_t *s, const wefti_sym_item_t *own,
                      const wefti_sym_item_t *base, uint32_t by)
{
    const wefti_step_t *a = own->step, *b = base->step;
    if (a->op != b->op || a->flags != b->flags || a->lane != b->lane) {
        return false;
    }
    if (a->op == WEFTI_DO_POST) {
        return a->post.phase == b->post.phase;
    }
    if (a->op == WEFTI_DO_WAIT) {
        return a->wait.phase == b->wait.phase && a->wait.lane == b->wait.lane &&
               a->wait.back == b->wait.back &&
               same_ranks(s, a->wait.first_rank, a->wait.rank_count, b->wait.first_rank,
                          b->wait.rank_count, by);
    }
    if (a->move.source_count != b->move.source_count ||
        a->move.destination_count != b->move.destination_count || adds_all(s, base) ||
        !same_block(s, own, base, by)) {
        return false;
    }
    uint32_t sources = a->move.source_count, all = sources + a->move.destination_count;
    uint32_t swap = is_swapped(s, base, by) ? 1 : 0;
    bool same = true;
    for (uint32_t o = 0; o < all && same; o++) {
        same = same_operand(s, own, base, o, o < sources ? o ^ swap : o, by);
    }
    return same;
}

/* How many blocks from these on may be passed over, as they are alike: numbers rise by one in both
 * schedules until one of them wraps. */
static uint32_t alike(const wefti_symmetry_t *s, const wefti_sym_item_t *own,
                      const wefti_sym_item_t *base)
{
    if (!is_move(own->step) || s->mirrored || wefti_collective_exchanges(s->params->op)) {
        return 1;
    }
    uint32_t a = own->step->move.count - own->block, b = base->step->move.count - base->block;
    uint32_t left = a < b ? a : b, end = s->ranks * s->parts;
    uint32_t all = own->step->move.source_count + (uint32_t)own->step->move.destination_count;
    bool rise = own->step->move.step == 1 && base->step->move.step == 1;
    uint32_t name = own->step->move.first + own->block;
    left = s->moves_blocks && rise && end - name < left ? end - name : left;
    for (uint32_t o = 0; o < all && rise && left > 1; o++) {
        const wefti_operand_t *at = &own->operands[o];
        uint32_t place = at->block + own->block;
        rise = at->step == 1 && base->operands[o].step == 1;
        bool wraps = s->moves_blocks && at->buffer != WEFTI_SCRATCH;
        left = wraps && end - place < left ? end - place : left;
    }
    return rise ? left : 1;
}

static void pass(const wefti_schedule_t *schedule, wefti_sym_walk_t *walk, uint32_t blocks)
{
    if (blocks > 0 && (walk->block += blocks) == schedule->steps[walk->step].move.count) {
        walk->step++;
        walk->block = 0;
    }
}

static bool is_image(const wefti_symmetry_t *s, const wefti_schedule_t *schedule, uint32_t rank,
                     uint64_t *items)
{
    wefti_sym_walk_t own = {0}, base = {0};
    wefti_sym_item_t a, b;
    for (;; (*items)++) {
        bool more = wefti_sym_next(schedule, &own, &a);
        if (more != wefti_sym_next(s->schedule, &base, &b) ||
            (more && !same_item(s, &a, &b, rank))) {
            return false;
        }
        if (!more) {
            return true;
        }
        uint32_t blocks = alike(s, &a, &b) - 1;
        pass(schedule, &own, blocks);
        pass(s->schedule, &base, blocks);
    }
}

static weft_status_t compare_rank(const wefti_symmetry_t *s, const weft_algorithm_t *algorithm,
                                  const wefti_rank_numbers_t *numbers, uint32_t rank,
                                  bool *out_same, uint64_t *items)
{
    wefti_schedule_t schedule;
    weft_algo_params_t params = *s->params;
    params.rank = rank;
    WEFT_RETURN_IF_ERROR(wefti_schedule_build_numbered(algorithm, &params, numbers,
                                                       s->schedule->allocator, &schedule));
    *out_same =
        memcmp(&schedule.resources, &s->schedule->resources, sizeof schedule.resources) == 0 &&
        is_image(s, &schedule, rank, items);
    wefti_schedule_deinit(&schedule);
    return WEFT_OK;
}

/* The one of four under which rank 1 is an image, if any. */
static weft_status_t guess(wefti_symmetry_t *s, const weft_algorithm_t *algorithm,
                           const wefti_rank_numbers_t *numbers)
{
    bool vector = wefti_collective_is_vector(s->params->op);
    uint32_t blocks = s->schedule->resources.blocks;
    bool power = (s->ranks & (s->ranks - 1)) == 0;
    for (uint32_t which = 0; which < 4; which++) {
        bool same;
        uint64_t items = 0;
        s->mirrored = which >= 2;
        s->moves_blocks = which % 2 == 0;
        if ((s->mirrored && !power) || (vector && s->moves_blocks && blocks != s->ranks) ||
            (!vector && !s->moves_blocks)) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(compare_rank(s, algorithm, numbers, 1, &same, &items));
        if (same) {
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED, "ranks are not symmetric");
}

weft_status_t wefti_symmetry_find(const weft_algorithm_t *algorithm,
                                  const weft_algo_params_t *params,
                                  const weft_allocator_t *allocator, uint64_t most_steps,
                                  wefti_symmetry_t *out, wefti_schedule_t *out_schedule,
                                  uint64_t *out_items)
{
    static const wefti_rank_numbers_t none = {0};
    weft_algo_params_t first = *params;
    first.rank = 0;
    *out_schedule = (wefti_schedule_t){0};
    if (params->group_size < 2 || params->host_of != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "ranks are not symmetric: hosts, or one rank");
    }
    if (wefti_collective_rooted(params->op) || params->op == WEFT_COLLECTIVE_SEND_RECV) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "ranks are not symmetric: one of them is the root");
    }
    WEFT_RETURN_IF_ERROR(
        wefti_schedule_build_numbered(algorithm, &first, &none, allocator, out_schedule));
    *out = (wefti_symmetry_t){.params = params,
                              .schedule = out_schedule,
                              .ranks = params->group_size,
                              .parts = wefti_part_count(&out_schedule->resources)};
    weft_status_t status = wefti_schedule_check(&first, out_schedule);
    if (status >= 0 && out->parts > 1 && wefti_collective_is_vector(params->op)) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "it has parts of shards of a vector");
    }
    if (status >= 0 && out_schedule->resources.lanes > 1) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "it has several lanes");
    }
    if (status >= 0 && most_steps > 0 && out_schedule->step_count > most_steps / out->ranks) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "all ranks have more than %llu steps",
                             (unsigned long long)most_steps);
    }
    status = status >= 0 ? guess(out, algorithm, &none) : status;
    for (uint32_t rank = 1; rank < params->group_size && status >= 0; rank++) {
        bool same;
        status = compare_rank(out, algorithm, &none, rank, &same, out_items);
        if (status >= 0 && !same) {
            status = wefti_error(WEFT_ERR_UNSUPPORTED, "rank %u is not the image of rank 0", rank);
        }
    }
    return status;
}
