/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to change: found while the schedules are simulated, for then it is known at every step
 * which posts of the other ranks have been seen.
 */
#include <string.h>

#include "ops/algo/lower_internal.h"

/* What a link does not let rank do with an operand on another rank. */
static bool is_unreachable(const wefti_lowering_t *l, uint32_t rank, const wefti_operand_t *operand)
{
    if (operand->rank == rank) {
        return false;
    }
    if (l->puts) {
        return wefti_links_put(l->links, rank, operand->rank);
    }
    return operand->buffer < WEFTI_SCRATCH && l->links->hidden[operand->rank] != 0;
}

/* A part of an operand: its only rank. */
static wefti_operand_t part_of(const wefti_operand_t *operand, uint32_t i)
{
    return (wefti_operand_t){operand->rank + i, 1, operand->block, operand->step, operand->buffer};
}

static bool any_unreachable(const wefti_lowering_t *l, uint32_t rank,
                            const wefti_operand_t *operands, uint32_t count)
{
    for (uint32_t o = 0; o < count; o++) {
        for (uint32_t i = 0; i < operands[o].rank_count; i++) {
            wefti_operand_t part = part_of(&operands[o], i);
            if (is_unreachable(l, rank, &part)) {
                return true;
            }
        }
    }
    return false;
}

/* The post of rank that thread waited for last, in this run. */
static bool last_post_awaited(const wefti_sim_t *sim, uint32_t thread, uint32_t rank,
                              uint32_t *out_step, uint32_t *out_lane)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    const wefti_schedule_t *schedule = &sim->schedules[own->rank];
    for (uint32_t at = own->at; at-- > schedule->lane_begin[own->lane];) {
        const wefti_step_t *step = &schedule->steps[at];
        if (step->op != WEFTI_DO_WAIT || step->wait.back > 0 || rank < step->wait.first_rank ||
            rank - step->wait.first_rank >= step->wait.rank_count) {
            continue;
        }
        uint64_t target = (uint64_t)own->run * sim->resources.phases + step->wait.phase;
        const wefti_release_log_t *log = &sim->thread[rank * sim->lanes + step->wait.lane].posts;
        for (size_t i = log->count; i-- > 0 && log->entries[i].value >= target;) {
            *out_step = log->entries[i].step;
        }
        *out_lane = step->wait.lane;
        return true;
    }
    return false;
}

/* The last post of rank that thread has seen: its step, and its lane. Of several lanes, the one
 * that it waited for knows what the others wrote. */
static bool last_post_seen(const wefti_sim_t *sim, uint32_t thread, uint32_t rank,
                           uint32_t *out_step, uint32_t *out_lane)
{
    if (sim->lanes > 1 && last_post_awaited(sim, thread, rank, out_step, out_lane)) {
        return true;
    }
    for (uint32_t lane = 0; lane < sim->lanes; lane++) {
        uint32_t other = rank * sim->lanes + lane;
        const wefti_release_log_t *log = &sim->thread[other].posts;
        for (size_t i = log->count; i-- > 0;) {
            if (wefti_sim_knows(sim, thread, other, log->entries[i].clock)) {
                *out_step = log->entries[i].step;
                *out_lane = lane;
                return true;
            }
        }
    }
    return false;
}

static bool same_blocks(const weft_blocks_t *a, const weft_blocks_t *b)
{
    return a->first == b->first && a->count == b->count && (a->count == 1 || a->step == b->step);
}

static wefti_shown_t *find_shown(wefti_shown_list_t *list, uint32_t anchor, uint32_t peer,
                                 const wefti_operand_t *from, const weft_blocks_t *blocks)
{
    for (size_t i = list->count; i-- > 0;) {
        wefti_shown_t *item = &list->items[i];
        if (item->anchor == anchor && item->peer == peer &&
            (from == NULL || (memcmp(&item->from, from, sizeof *from) == 0 &&
                              same_blocks(&item->blocks, blocks)))) {
            return item;
        }
    }
    return NULL;
}

static wefti_shown_t *add_shown(wefti_lowering_t *l, uint32_t rank, const wefti_shown_t *item)
{
    wefti_shown_list_t *list = &l->shown[rank];
    if (wefti_array_reserve(l->allocator, &list->items, &list->capacity, list->count + 1,
                            sizeof *item) < 0) {
        return NULL;
    }
    list->items[list->count] = *item;
    return &list->items[list->count++];
}

/* A copy or a put of blocks, as a change. */
static weft_status_t add_move(wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t anchor,
                              wefti_change_place_t place, wefti_step_op_t op,
                              const wefti_operand_t *from, const wefti_operand_t *to,
                              const weft_blocks_t *blocks)
{
    wefti_step_t step = {.op = (uint8_t)op,
                         .lane = (uint16_t)lane,
                         .move = {.operand = (uint32_t)l->operand_count,
                                  .first = blocks->first,
                                  .step = blocks->step,
                                  .count = blocks->count,
                                  .source_count = 1,
                                  .destination_count = 1}};
    weft_status_t status = wefti_lower_operand(l, from);
    if (status >= 0) {
        status = wefti_lower_operand(l, to);
    }
    return status >= 0 ? wefti_lower_change(l, rank, anchor, place, 0, &step) : status;
}

/* Fresh staging slots on rank, of the kind of element that the buffer holds. */
static wefti_operand_t new_slots(wefti_lowering_t *l, uint32_t rank, bool wide, uint32_t count)
{
    uint32_t *next = wide ? &l->wide_slots[rank] : &l->slots[rank];
    wefti_operand_t slots = {rank, 1, *next, 1, wide ? WEFTI_STAGE_WIDE : WEFTI_STAGE};
    *next += count;
    return slots;
}

static bool is_wide(const wefti_lowering_t *l, uint32_t buffer)
{
    return wefti_collective_reduces(l->params->op) &&
           (buffer == WEFTI_SCRATCH || buffer == WEFTI_STAGE_WIDE);
}

/*
 * Hidden: the owner copies to a slot before the post that shows the blocks; all readers of one post
 * share it.
 */
static weft_status_t stage_read(wefti_lowering_t *l, uint32_t lane, uint32_t anchor,
                                const weft_blocks_t *blocks, wefti_operand_t *part)
{
    uint32_t owner = part->rank;
    wefti_shown_t *shown = find_shown(&l->shown[owner], anchor, owner, part, blocks);
    if (shown == NULL) {
        wefti_operand_t slots = new_slots(l, owner, false, blocks->count);
        wefti_shown_t item = {anchor, owner, slots.block, 0, *part, *blocks};
        weft_status_t status = add_move(l, owner, lane, anchor, WEFTI_CHANGE_BEFORE, WEFTI_DO_COPY,
                                        part, &slots, blocks);
        shown = status >= 0 ? add_shown(l, owner, &item) : NULL;
        if (shown == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    *part = (wefti_operand_t){owner, 1, shown->slot, 1, WEFTI_STAGE};
    return WEFT_OK;
}

/* Put link: the owner waits for the slot, puts after the post and signals; the reader answers. */
static weft_status_t put_read(wefti_lowering_t *l, const wefti_sim_t *sim, uint32_t thread,
                              uint32_t lane, uint32_t anchor, const weft_blocks_t *blocks,
                              wefti_operand_t *part)
{
    uint32_t owner = part->rank;
    uint32_t reader = sim->thread[thread].rank, reader_lane = sim->thread[thread].lane;
    uint32_t at = sim->thread[thread].at;
    wefti_operand_t slots = new_slots(l, reader, is_wide(l, part->buffer), blocks->count);
    uint32_t data = ++l->signal_count, consumed = ++l->signal_count;
    weft_status_t status =
        wefti_lower_signal(l, owner, lane, anchor, WEFTI_CHANGE_AFTER, true, reader, reader_lane,
                           WEFTI_SIGNAL_CONSUMED, consumed, 2);
    if (status >= 0) {
        status = add_move(l, owner, lane, anchor, WEFTI_CHANGE_AFTER, WEFTI_DO_PUT, part, &slots,
                          blocks);
    }
    if (status >= 0) {
        status = wefti_lower_signal(l, owner, lane, anchor, WEFTI_CHANGE_AFTER, false, reader, 0,
                                    WEFTI_SIGNAL_DATA, data, 0);
    }
    if (status >= 0) {
        status = wefti_lower_signal(l, reader, reader_lane, at, WEFTI_CHANGE_BEFORE, true, owner,
                                    lane, WEFTI_SIGNAL_DATA, data, 0);
    }
    if (status >= 0) {
        status = wefti_lower_signal(l, reader, reader_lane, at, WEFTI_CHANGE_AFTER, false, owner, 0,
                                    WEFTI_SIGNAL_CONSUMED, consumed, 0);
    }
    *part = slots;
    return status;
}

static weft_status_t lower_read(wefti_lowering_t *l, const wefti_sim_t *sim, uint32_t thread,
                                const weft_blocks_t *blocks, wefti_operand_t *part)
{
    uint32_t anchor = 0, lane = 0;
    if (!last_post_seen(sim, thread, part->rank, &anchor, &lane)) {
        return wefti_sim_error(
            sim, thread,
            "reads from rank %u without waiting for it: only shared memory allows that",
            part->rank);
    }
    return l->puts ? put_read(l, sim, thread, lane, anchor, blocks, part)
                   : stage_read(l, lane, anchor, blocks, part);
}

static weft_status_t add_pending(wefti_lowering_t *l, uint32_t rank, const wefti_pending_t *item)
{
    wefti_pending_list_t *list = &l->pending[rank];
    weft_status_t status = wefti_array_reserve(l->allocator, &list->items, &list->capacity,
                                               list->count + 1, sizeof *item);
    if (status >= 0) {
        list->items[list->count++] = *item;
    }
    return status;
}

/* The result, now at `from` on this rank, goes to where it could not be written. */
static weft_status_t lower_write(wefti_lowering_t *l, const wefti_sim_t *sim, uint32_t thread,
                                 const weft_blocks_t *blocks, const wefti_operand_t *from,
                                 const wefti_operand_t *to)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    wefti_pending_t item = {.thread = thread,
                            .clock = sim->clocks[(size_t)thread * sim->threads + thread],
                            .signal = ++l->signal_count,
                            .to = *to,
                            .blocks = *blocks};
    weft_status_t status = add_move(l, own->rank, own->lane, own->at, WEFTI_CHANGE_AFTER,
                                    WEFTI_DO_PUT, from, to, blocks);
    if (status >= 0) {
        status = wefti_lower_signal(l, own->rank, own->lane, own->at, WEFTI_CHANGE_AFTER, false,
                                    to->rank, 0, WEFTI_SIGNAL_DATA, item.signal, 0);
    }
    return status >= 0 ? add_pending(l, to->rank, &item) : status;
}

/* Where the result lies before it is put: a destination of its own, or a slot that is added. */
static weft_status_t result_place(wefti_lowering_t *l, uint32_t rank, const wefti_step_t *step,
                                  const wefti_operand_t *destinations, uint32_t count,
                                  wefti_operand_t *out, bool *out_added)
{
    for (uint32_t i = 0; i < count; i++) {
        if (destinations[i].rank <= rank &&
            rank - destinations[i].rank < destinations[i].rank_count) {
            *out = part_of(&destinations[i], rank - destinations[i].rank);
            *out_added = false;
            return WEFT_OK;
        }
    }
    *out = new_slots(l, rank, is_wide(l, destinations[0].buffer), step->move.count);
    *out_added = true;
    return WEFT_OK;
}

/* A move under change: its operands one rank each, sources first. */
typedef struct changed_move {
    wefti_lowering_t *l;
    wefti_sim_t *sim;
    uint32_t thread, rank;
    const wefti_step_t *step;
    weft_blocks_t blocks;
    wefti_operand_t *parts;
    size_t count, capacity;
    uint32_t source_count;
    wefti_operand_t result; /* what is put elsewhere */
    bool has_result, added; /* added: a slot made for it */
} changed_move_t;

static weft_status_t add_part(changed_move_t *move, const wefti_operand_t *part)
{
    weft_status_t status = wefti_array_reserve(move->l->allocator, &move->parts, &move->capacity,
                                               move->count + 1, sizeof *part);
    if (status >= 0) {
        move->parts[move->count++] = *part;
    }
    return status;
}

static weft_status_t change_sources(changed_move_t *move, const wefti_operand_t *sources)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t o = 0; o < move->step->move.source_count; o++) {
        for (uint32_t i = 0; i < sources[o].rank_count && status >= 0; i++) {
            wefti_operand_t part = part_of(&sources[o], i);
            if (is_unreachable(move->l, move->rank, &part)) {
                status = lower_read(move->l, move->sim, move->thread, &move->blocks, &part);
            }
            if (status >= 0) {
                status = add_part(move, &part);
            }
        }
    }
    move->source_count = (uint32_t)move->count;
    return status;
}

/* Put link: the result is made here, unless it is here already and only to be copied, and put. */
static weft_status_t put_result(changed_move_t *move, const wefti_operand_t *destinations,
                                const wefti_operand_t *to)
{
    weft_status_t status = WEFT_OK;
    if (!move->has_result && move->step->op == WEFTI_DO_COPY) {
        move->result = move->parts[0];
    } else if (!move->has_result) {
        status = result_place(move->l, move->rank, move->step, destinations,
                              move->step->move.destination_count, &move->result, &move->added);
    }
    move->has_result = true;
    return status >= 0
               ? lower_write(move->l, move->sim, move->thread, &move->blocks, &move->result, to)
               : status;
}

/* Hidden: the result goes to a slot on the rank, which copies it out later. */
static weft_status_t stage_result(changed_move_t *move, wefti_operand_t *part)
{
    const wefti_sim_t *sim = move->sim;
    wefti_operand_t slots = new_slots(move->l, part->rank, false, move->blocks.count);
    wefti_pending_t item = {.thread = move->thread,
                            .clock =
                                sim->clocks[(size_t)move->thread * sim->threads + move->thread],
                            .from_slot = slots.block,
                            .to = *part,
                            .blocks = move->blocks};
    weft_status_t status = add_pending(move->l, part->rank, &item);
    *part = slots;
    return status;
}

static weft_status_t change_destinations(changed_move_t *move, const wefti_operand_t *destinations)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t o = 0; o < move->step->move.destination_count; o++) {
        for (uint32_t i = 0; i < destinations[o].rank_count && status >= 0; i++) {
            wefti_operand_t part = part_of(&destinations[o], i);
            bool unreachable = is_unreachable(move->l, move->rank, &part);
            if (unreachable && move->l->puts) {
                status = put_result(move, destinations, &part);
                continue;
            }
            if (unreachable) {
                status = stage_result(move, &part);
            }
            if (status >= 0) {
                status = add_part(move, &part);
            }
        }
    }
    return status >= 0 && move->added ? add_part(move, &move->result) : status;
}

/* The move itself, if anything of it is left to do here. */
static weft_status_t add_changed(changed_move_t *move, uint32_t at)
{
    wefti_step_t changed = *move->step;
    weft_status_t status = WEFT_OK;
    if (move->count == move->source_count) {
        return WEFT_OK;
    }
    if (move->count > UINT16_MAX) {
        return wefti_sim_error(move->sim, move->thread, "more than 65535 operands in one step");
    }
    changed.move.operand = (uint32_t)move->l->operand_count;
    changed.move.source_count = (uint16_t)move->source_count;
    changed.move.destination_count = (uint16_t)(move->count - move->source_count);
    for (size_t i = 0; i < move->count && status >= 0; i++) {
        status = wefti_lower_operand(move->l, &move->parts[i]);
    }
    return status >= 0
               ? wefti_lower_change(move->l, move->rank, at, WEFTI_CHANGE_INSTEAD, 0, &changed)
               : status;
}

static weft_status_t replace_move(wefti_lowering_t *l, wefti_sim_t *sim, uint32_t thread,
                                  const wefti_step_t *step, const wefti_operand_t *operands)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    changed_move_t move = {.l = l,
                           .sim = sim,
                           .thread = thread,
                           .rank = own->rank,
                           .step = step,
                           .blocks = {step->move.first, step->move.step, step->move.count}};
    weft_status_t status = change_sources(&move, operands);
    if (status >= 0) {
        status = change_destinations(&move, operands + step->move.source_count);
    }
    if (status >= 0) {
        status = add_changed(&move, own->at);
    }
    l->dropped[own->rank][own->at] = 1;
    wefti_free(l->allocator, move.parts);
    return status;
}

/* The step of rank's lane that posts phase, or a later one in the run: the next. */
static bool find_post_step(const wefti_schedule_t *schedule, uint32_t lane, uint32_t phase,
                           uint32_t *out_step)
{
    for (uint32_t i = schedule->lane_begin[lane]; i < schedule->lane_begin[lane + 1]; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        if (step->op == WEFTI_DO_POST && step->post.phase >= phase) {
            *out_step = i;
            return true;
        }
    }
    return false;
}

/* A wait becomes waits for the ranges of ranks whose counters can be read, and for signals of the
 * others. */
static weft_status_t replace_wait(wefti_lowering_t *l, const wefti_sim_t *sim, uint32_t thread,
                                  const wefti_step_t *step)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    weft_status_t status = WEFT_OK;
    wefti_step_t range = *step;
    range.wait.rank_count = 0;
    for (uint32_t i = 0; i <= step->wait.rank_count && status >= 0; i++) {
        uint32_t peer = step->wait.first_rank + i;
        bool end = i == step->wait.rank_count;
        if (!end && !wefti_links_put(l->links, own->rank, peer)) {
            range.wait.first_rank = range.wait.rank_count == 0 ? peer : range.wait.first_rank;
            range.wait.rank_count++;
            continue;
        }
        bool only_self = range.wait.rank_count == 1 && range.wait.first_rank == own->rank &&
                         range.wait.lane == own->lane;
        if (range.wait.rank_count > 0 && !only_self) {
            status = wefti_lower_change(l, own->rank, own->at, WEFTI_CHANGE_INSTEAD, 0, &range);
        }
        range.wait.rank_count = 0;
        uint32_t anchor;
        if (end || status < 0 ||
            !find_post_step(&l->schedules[peer], step->wait.lane, step->wait.phase, &anchor)) {
            continue;
        }
        wefti_shown_t *sent = find_shown(&l->shown[peer], anchor, own->rank, NULL, NULL);
        if (sent == NULL) {
            wefti_shown_t item = {.anchor = anchor, .peer = own->rank, .signal = ++l->signal_count};
            status = wefti_lower_signal(l, peer, step->wait.lane, anchor, WEFTI_CHANGE_READY, false,
                                        own->rank, 0, WEFTI_SIGNAL_READY, item.signal, 0);
            sent = status >= 0 ? add_shown(l, peer, &item) : NULL;
        }
        if (sent == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        status =
            wefti_lower_signal(l, own->rank, own->lane, own->at, WEFTI_CHANGE_INSTEAD, true, peer,
                               step->wait.lane, WEFTI_SIGNAL_READY, sent->signal, step->wait.back);
    }
    l->dropped[own->rank][own->at] = 1;
    return status;
}

/* Writes of others that this wait told of: copied out of their slots, or waited for until they
 * landed. */
static weft_status_t settle(wefti_lowering_t *l, const wefti_sim_t *sim, uint32_t thread)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    wefti_pending_list_t *list = &l->pending[own->rank];
    weft_status_t status = WEFT_OK;
    for (size_t i = list->first; i < list->count && status >= 0; i++) {
        wefti_pending_t *item = &list->items[i];
        if (item->done || !wefti_sim_knows(sim, thread, item->thread, item->clock)) {
            continue;
        }
        item->done = true;
        if (l->puts) {
            status =
                wefti_lower_signal(l, own->rank, own->lane, own->at, WEFTI_CHANGE_AFTER, true,
                                   sim->thread[item->thread].rank, sim->thread[item->thread].lane,
                                   WEFTI_SIGNAL_DATA, item->signal, 0);
            continue;
        }
        wefti_operand_t slots = {own->rank, 1, item->from_slot, 1, WEFTI_STAGE};
        status = add_move(l, own->rank, own->lane, own->at, WEFTI_CHANGE_AFTER, WEFTI_DO_COPY,
                          &slots, &item->to, &item->blocks);
    }
    while (list->first < list->count && list->items[list->first].done) {
        list->first++;
    }
    return status;
}

static bool waits_over_put(const wefti_lowering_t *l, uint32_t rank, const wefti_step_t *step)
{
    for (uint32_t i = 0; l->puts && i < step->wait.rank_count; i++) {
        if (wefti_links_put(l->links, rank, step->wait.first_rank + i)) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_lower_visit(void *user, wefti_sim_t *sim, uint32_t thread,
                                const wefti_step_t *step)
{
    wefti_lowering_t *l = user;
    uint32_t rank = sim->thread[thread].rank;
    weft_status_t status = WEFT_OK;
    if (step->op == WEFTI_DO_WAIT) {
        if (waits_over_put(l, rank, step)) {
            status = replace_wait(l, sim, thread, step);
        }
        return status >= 0 ? settle(l, sim, thread) : status;
    }
    if (step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE) {
        const wefti_operand_t *operands = l->schedules[rank].operands + step->move.operand;
        uint32_t count = step->move.source_count + (uint32_t)step->move.destination_count;
        if (any_unreachable(l, rank, operands, count)) {
            return replace_move(l, sim, thread, step, operands);
        }
    }
    return WEFT_OK;
}
