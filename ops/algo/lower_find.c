/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to change, rank by rank, lane by lane: of every exchange between two ranks, the steps of
 * both.
 */
#include "ops/algo/lower_internal.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

bool wefti_lower_unreachable(const wefti_lowering_t *l, uint32_t rank,
                             const wefti_operand_t *operand)
{
    if (operand->rank == rank) {
        return false;
    }
    if (l->puts) {
        return wefti_links_put(l->links, rank, operand->rank);
    }
    return operand->buffer < WEFTI_SCRATCH && l->links->hidden[operand->rank] != 0;
}

static bool any_unreachable(const wefti_lowering_t *l, uint32_t rank,
                            const wefti_operand_t *operands, uint32_t count)
{
    for (uint32_t o = 0; o < count; o++) {
        for (uint32_t i = 0; i < operands[o].rank_count; i++) {
            wefti_operand_t part = wefti_part_of(&operands[o], i);
            if (wefti_lower_unreachable(l, rank, &part)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- what was shown already ---- */

static size_t shown_hash(const wefti_shown_t *key)
{
    const uint64_t words[] = {(uint64_t)key->rank << 32 | key->anchor,
                              (uint64_t)key->peer << 32 | key->blocks.first,
                              (uint64_t)key->from.buffer << 32 | key->from.block};
    return (size_t)wefti_hash_words(words, sizeof words / sizeof *words);
}

static bool same_shown(const wefti_shown_t *a, const wefti_shown_t *b)
{
    return a->rank == b->rank && a->anchor == b->anchor && a->peer == b->peer &&
           a->from.buffer == b->from.buffer && a->from.block == b->from.block &&
           a->from.step == b->from.step && a->blocks.first == b->blocks.first &&
           a->blocks.count == b->blocks.count &&
           (a->blocks.count <= 1 || a->blocks.step == b->blocks.step);
}

static weft_status_t grow_heads(wefti_lowering_t *l)
{
    size_t count = l->head_count > 0 ? l->head_count * 2 : 64;
    uint32_t *heads = wefti_alloc(l->allocator, count * sizeof *heads);
    WEFT_RETURN_IF_NO_MEMORY(heads);
    wefti_free(l->allocator, l->shown_heads);
    l->shown_heads = heads;
    l->head_count = count;
    for (uint32_t i = 0; i < l->shown_count; i++) {
        uint32_t *head = &heads[shown_hash(&l->shown[i]) & (count - 1)];
        l->shown[i].next = *head;
        *head = i + 1;
    }
    return WEFT_OK;
}

/* The item that is like key, added if there is none: *out_added. NULL: no memory. */
static wefti_shown_t *find_shown(wefti_lowering_t *l, const wefti_shown_t *key, bool *out_added)
{
    if (l->shown_count >= l->head_count && grow_heads(l) < 0) {
        return NULL;
    }
    uint32_t *head = &l->shown_heads[shown_hash(key) & (l->head_count - 1)];
    *out_added = false;
    for (uint32_t i = *head; i != 0; i = l->shown[i - 1].next) {
        if (same_shown(&l->shown[i - 1], key)) {
            return &l->shown[i - 1];
        }
    }
    if (wefti_array_reserve(l->allocator, &l->shown, &l->shown_capacity, l->shown_count + 1,
                            sizeof *key) < 0) {
        return NULL;
    }
    wefti_shown_t *item = &l->shown[l->shown_count++];
    *item = *key;
    item->next = *head;
    *head = (uint32_t)l->shown_count;
    *out_added = true;
    return item;
}

/* ---- changes ---- */

/* SIGNAL or AWAIT of rank, asked for by a step of `by`. back: in how many runs before the signal was
 * sent. */
static weft_status_t add_signal(wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t anchor,
                                wefti_change_place_t place, uint32_t by, wefti_step_t step)
{
    if (!wefti_lower_concerns(l, rank, step.signal.peer)) {
        return WEFT_OK;
    }
    uint32_t signal = step.signal.index; /* until they are numbered */
    step.signal.index = 0;
    step.lane = (uint16_t)lane;
    return wefti_lower_change(l, rank, anchor, place, by, signal, &step);
}

static wefti_step_t signal_step(uint32_t peer, uint32_t own_lane, wefti_signal_kind_t kind,
                                uint32_t signal)
{
    return (wefti_step_t){.op = WEFTI_DO_SIGNAL,
                          .flags = (uint8_t)kind,
                          .signal = {.peer = peer, .index = signal, .lane = (uint16_t)own_lane}};
}

static wefti_step_t await_step(uint32_t peer, uint32_t peer_lane, wefti_signal_kind_t kind,
                               uint32_t signal, uint32_t back)
{
    return (wefti_step_t){
        .op = WEFTI_DO_AWAIT,
        .flags = (uint8_t)kind,
        .signal = {
            .peer = peer, .index = signal, .lane = (uint16_t)peer_lane, .back = (uint16_t)back}};
}

/* A copy or a put of blocks, as a change. */
static weft_status_t add_move(wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t anchor,
                              wefti_change_place_t place, uint32_t by, wefti_step_op_t op,
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
    if (!wefti_lower_concerns(l, rank, to->rank)) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_lower_operand(l, from);
    if (status >= 0) {
        status = wefti_lower_operand(l, to);
    }
    return status >= 0 ? wefti_lower_change(l, rank, anchor, place, by, 0, &step) : status;
}

static bool is_wide(const wefti_lowering_t *l, uint32_t buffer)
{
    return wefti_collective_reduces(l->params->op) &&
           (buffer == WEFTI_SCRATCH || buffer == WEFTI_STAGE_WIDE);
}

/* Fresh staging slots on rank, of the kind of element that the buffer holds. */
static wefti_operand_t new_slots(wefti_lowering_t *l, uint32_t rank, bool wide, uint32_t count)
{
    uint32_t *next = wide ? &l->wide_slots[rank] : &l->slots[rank];
    wefti_operand_t slots = {rank, 1, *next, 1, wide ? WEFTI_STAGE_WIDE : WEFTI_STAGE};
    *next += count;
    return slots;
}

/* Where the result lies before it is put: a destination of its own; NULL: a slot is added. */
static const wefti_operand_t *own_destination(const wefti_operand_t *destinations, uint32_t count,
                                              uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++) {
        if (destinations[i].rank <= rank &&
            rank - destinations[i].rank < destinations[i].rank_count) {
            return &destinations[i];
        }
    }
    return NULL;
}

void wefti_lower_count_slots(const wefti_lowering_t *l, uint32_t rank, const wefti_step_t *step,
                             const wefti_operand_t *operands, uint32_t *slots, uint32_t *wide_slots)
{
    const wefti_operand_t *destinations = operands + step->move.source_count;
    uint32_t count = step->move.destination_count;
    for (uint32_t o = 0; o < step->move.source_count; o++) {
        for (uint32_t i = 0; i < operands[o].rank_count; i++) {
            wefti_operand_t part = wefti_part_of(&operands[o], i);
            if (wefti_lower_unreachable(l, rank, &part)) {
                *(is_wide(l, part.buffer) ? wide_slots : slots) += step->move.count;
            }
        }
    }
    if (step->op == WEFTI_DO_REDUCE && any_unreachable(l, rank, destinations, count) &&
        own_destination(destinations, count, rank) == NULL) {
        *(is_wide(l, destinations->buffer) ? wide_slots : slots) += step->move.count;
    }
}

/* A move under change: its operands one rank each, sources first. */
typedef struct changed_move {
    wefti_lowering_t *l;
    const wefti_site_t *site;
    weft_blocks_t blocks;
    wefti_operand_t *parts;
    size_t count, capacity;
    uint32_t source_count;
    wefti_operand_t result; /* what is put elsewhere */
    bool has_result, added; /* added: a slot made for it */
} changed_move_t;

/*
 * Hidden: the owner copies to a slot before the post that shows the blocks; all readers of one post
 * share it.
 */
static weft_status_t stage_read(changed_move_t *move, uint32_t lane, uint32_t anchor,
                                wefti_operand_t *part)
{
    wefti_lowering_t *l = move->l;
    uint32_t owner = part->rank;
    wefti_shown_t key = {
        .rank = owner, .anchor = anchor, .peer = owner, .from = *part, .blocks = move->blocks};
    bool added;
    wefti_shown_t *shown = find_shown(l, &key, &added);
    WEFT_RETURN_IF_NO_MEMORY(shown);
    if (added) {
        wefti_operand_t slots = new_slots(l, owner, false, move->blocks.count);
        shown->slot = slots.block;
        WEFT_RETURN_IF_ERROR(add_move(l, owner, lane, anchor, WEFTI_CHANGE_BEFORE, move->site->rank,
                                      WEFTI_DO_COPY, part, &slots, &move->blocks));
    }
    *part = (wefti_operand_t){owner, 1, shown->slot, 1, WEFTI_STAGE};
    return WEFT_OK;
}

/* Put link: the owner waits for the slot, puts after the post and signals; the reader answers. */
static weft_status_t put_read(changed_move_t *move, uint32_t lane, uint32_t anchor,
                              wefti_operand_t *part)
{
    wefti_lowering_t *l = move->l;
    const wefti_site_t *site = move->site;
    uint32_t owner = part->rank, reader = site->rank;
    wefti_operand_t slots = new_slots(l, reader, is_wide(l, part->buffer), move->blocks.count);
    uint32_t data = ++l->signal_count, consumed = ++l->signal_count;
    weft_status_t status =
        add_signal(l, owner, lane, anchor, WEFTI_CHANGE_AFTER, reader,
                   await_step(reader, site->lane, WEFTI_SIGNAL_CONSUMED, consumed, 2));
    if (status >= 0) {
        status = add_move(l, owner, lane, anchor, WEFTI_CHANGE_AFTER, reader, WEFTI_DO_PUT, part,
                          &slots, &move->blocks);
    }
    if (status >= 0) {
        status = add_signal(l, owner, lane, anchor, WEFTI_CHANGE_AFTER, reader,
                            signal_step(reader, lane, WEFTI_SIGNAL_DATA, data));
    }
    if (status >= 0) {
        status = add_signal(l, reader, site->lane, site->at, WEFTI_CHANGE_BEFORE, reader,
                            await_step(owner, lane, WEFTI_SIGNAL_DATA, data, 0));
    }
    if (status >= 0) {
        status = add_signal(l, reader, site->lane, site->at, WEFTI_CHANGE_AFTER, reader,
                            signal_step(owner, site->lane, WEFTI_SIGNAL_CONSUMED, consumed));
    }
    *part = slots;
    return status;
}

static weft_status_t lower_read(changed_move_t *move, wefti_operand_t *part)
{
    wefti_lowering_t *l = move->l;
    uint32_t anchor = 0, lane = 0;
    if (!wefti_lower_concerns(l, move->site->rank, part->rank)) {
        *part = new_slots(l, move->site->rank, is_wide(l, part->buffer), move->blocks.count);
        return WEFT_OK;
    }
    if (!wefti_lower_seen(l, move->site, part->rank, &anchor, &lane)) {
        return wefti_lower_error(
            l, move->site,
            "reads from rank %u without waiting for it: only shared memory allows that",
            part->rank);
    }
    return l->puts ? put_read(move, lane, anchor, part) : stage_read(move, lane, anchor, part);
}

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
    for (uint32_t o = 0; o < move->site->step->move.source_count; o++) {
        for (uint32_t i = 0; i < sources[o].rank_count && status >= 0; i++) {
            wefti_operand_t part = wefti_part_of(&sources[o], i);
            if (wefti_lower_unreachable(move->l, move->site->rank, &part)) {
                status = lower_read(move, &part);
            }
            if (status >= 0) {
                status = add_part(move, &part);
            }
        }
    }
    move->source_count = (uint32_t)move->count;
    return status;
}

/* Put link: the result is made here, unless it is here already and only to be copied, and put; the
 * rank that it goes to waits until it has landed. */
static weft_status_t put_result(changed_move_t *move, const wefti_operand_t *destinations,
                                const wefti_operand_t *to)
{
    wefti_lowering_t *l = move->l;
    const wefti_site_t *site = move->site;
    uint32_t rank = site->rank, count = site->step->move.destination_count;
    const wefti_operand_t *own = own_destination(destinations, count, rank);
    if (!move->has_result && site->step->op == WEFTI_DO_COPY) {
        move->result = move->parts[0];
    } else if (!move->has_result && own != NULL) {
        move->result = wefti_part_of(own, rank - own->rank);
    } else if (!move->has_result) {
        move->result = new_slots(l, rank, is_wide(l, destinations->buffer), move->blocks.count);
        move->added = true;
    }
    move->has_result = true;
    if (!wefti_lower_concerns(l, rank, to->rank)) {
        return WEFT_OK;
    }
    uint32_t signal = ++l->signal_count, settled = wefti_lower_settled(l, site, to->rank);
    WEFT_RETURN_IF_ERROR(add_move(l, rank, site->lane, site->at, WEFTI_CHANGE_AFTER, rank,
                                  WEFTI_DO_PUT, &move->result, to, &move->blocks));
    WEFT_RETURN_IF_ERROR(add_signal(l, rank, site->lane, site->at, WEFTI_CHANGE_AFTER, rank,
                                    signal_step(to->rank, site->lane, WEFTI_SIGNAL_DATA, signal)));
    return settled == WEFTI_NOBODY
               ? WEFT_OK
               : add_signal(l, to->rank, l->schedules[to->rank].steps[settled].lane, settled,
                            WEFTI_CHANGE_AFTER, rank,
                            await_step(rank, site->lane, WEFTI_SIGNAL_DATA, signal, 0));
}

/* Hidden: the result goes to a slot on the rank, which copies it out when it knows of it. */
static weft_status_t stage_result(changed_move_t *move, wefti_operand_t *part)
{
    wefti_lowering_t *l = move->l;
    wefti_operand_t slots = new_slots(l, part->rank, false, move->blocks.count), to = *part;
    uint32_t settled = wefti_lower_settled(l, move->site, part->rank);
    *part = slots;
    return settled == WEFTI_NOBODY ? WEFT_OK
                                   : add_move(l, to.rank, l->schedules[to.rank].steps[settled].lane,
                                              settled, WEFTI_CHANGE_AFTER, move->site->rank,
                                              WEFTI_DO_COPY, &slots, &to, &move->blocks);
}

static weft_status_t change_destinations(changed_move_t *move, const wefti_operand_t *destinations)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t o = 0; o < move->site->step->move.destination_count; o++) {
        for (uint32_t i = 0; i < destinations[o].rank_count && status >= 0; i++) {
            wefti_operand_t part = wefti_part_of(&destinations[o], i);
            bool unreachable = wefti_lower_unreachable(move->l, move->site->rank, &part);
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

/* Of a move of another rank than the one that is lowered alone: what it writes there. */
static void keep_parts(changed_move_t *move)
{
    size_t kept = 0;
    for (size_t i = move->source_count; i < move->count; i++) {
        if (move->parts[i].rank == move->l->only) {
            move->parts[kept++] = move->parts[i];
        }
    }
    move->source_count = 0;
    move->count = kept;
}

/* The move itself, if anything of it is left to do here. */
static weft_status_t add_changed(changed_move_t *move)
{
    const wefti_site_t *site = move->site;
    wefti_lowering_t *l = move->l;
    wefti_step_t changed = *site->step;
    if (move->count - move->source_count > UINT16_MAX || move->source_count > UINT16_MAX) {
        return wefti_lower_error(l, site, "more than 65535 operands in one step");
    }
    if (!wefti_lower_concerns(l, site->rank, WEFTI_NOBODY)) {
        keep_parts(move);
        changed = move->count > 0 ? changed : (wefti_step_t){.op = WEFTI_DO_OTHERS};
        changed.lane = (uint16_t)site->lane;
    } else if (move->count == move->source_count) {
        return WEFT_OK;
    }
    if (changed.op != WEFTI_DO_OTHERS) {
        changed.move.operand = (uint32_t)l->operand_count;
        changed.move.source_count = (uint16_t)move->source_count;
        changed.move.destination_count = (uint16_t)(move->count - move->source_count);
    }
    for (size_t i = 0; i < move->count; i++) {
        WEFT_RETURN_IF_ERROR(wefti_lower_operand(l, &move->parts[i]));
    }
    return wefti_lower_change(l, site->rank, site->at, WEFTI_CHANGE_INSTEAD, site->rank, 0,
                              &changed);
}

static weft_status_t replace_move(wefti_lowering_t *l, const wefti_site_t *site,
                                  const wefti_operand_t *operands)
{
    const wefti_step_t *step = site->step;
    changed_move_t move = {
        .l = l, .site = site, .blocks = {step->move.first, step->move.step, step->move.count}};
    weft_status_t status = change_sources(&move, operands);
    if (status >= 0) {
        status = change_destinations(&move, operands + step->move.source_count);
    }
    if (status >= 0) {
        status = add_changed(&move);
    }
    l->dropped[site->rank][site->at] = 1;
    wefti_free(l->allocator, move.parts);
    return status;
}

/* A rank that is waited for over a put link signals after the post. */
static weft_status_t await_post(wefti_lowering_t *l, const wefti_site_t *site, uint32_t peer)
{
    const wefti_step_t *step = site->step;
    wefti_shown_t key = {.rank = peer, .peer = site->rank};
    bool added;
    if (!wefti_lower_concerns(l, site->rank, peer) ||
        !wefti_lower_find_post(l, peer, step->wait.lane, step->wait.phase, &key.anchor)) {
        return WEFT_OK;
    }
    wefti_shown_t *sent = find_shown(l, &key, &added);
    WEFT_RETURN_IF_NO_MEMORY(sent);
    if (added) {
        sent->signal = ++l->signal_count;
        WEFT_RETURN_IF_ERROR(
            add_signal(l, peer, step->wait.lane, key.anchor, WEFTI_CHANGE_READY, site->rank,
                       signal_step(site->rank, step->wait.lane, WEFTI_SIGNAL_READY, sent->signal)));
    }
    return add_signal(
        l, site->rank, site->lane, site->at, WEFTI_CHANGE_INSTEAD, site->rank,
        await_step(peer, step->wait.lane, WEFTI_SIGNAL_READY, sent->signal, step->wait.back));
}

/* A wait becomes waits for the ranges of ranks whose counters can be read, and for signals of the
 * others. */
static weft_status_t replace_wait(wefti_lowering_t *l, const wefti_site_t *site)
{
    const wefti_step_t *step = site->step;
    weft_status_t status = WEFT_OK;
    wefti_step_t range = *step;
    range.wait.rank_count = 0;
    for (uint32_t i = 0; i <= step->wait.rank_count && status >= 0; i++) {
        uint32_t peer = step->wait.first_rank + i;
        bool end = i == step->wait.rank_count;
        if (!end && !wefti_links_put(l->links, site->rank, peer)) {
            range.wait.first_rank = range.wait.rank_count == 0 ? peer : range.wait.first_rank;
            range.wait.rank_count++;
            continue;
        }
        bool only_self = range.wait.rank_count == 1 && range.wait.first_rank == site->rank &&
                         range.wait.lane == site->lane;
        if (range.wait.rank_count > 0 && !only_self) {
            status = wefti_lower_change(l, site->rank, site->at, WEFTI_CHANGE_INSTEAD, site->rank,
                                        0, &range);
        }
        range.wait.rank_count = 0;
        if (!end && status >= 0) {
            status = await_post(l, site, peer);
        }
    }
    l->dropped[site->rank][site->at] = 1;
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

static weft_status_t visit(wefti_lowering_t *l, const wefti_site_t *site)
{
    const wefti_step_t *step = site->step;
    if (step->op == WEFTI_DO_WAIT) {
        wefti_lower_waited(l, site);
        return waits_over_put(l, site->rank, step) ? replace_wait(l, site) : WEFT_OK;
    }
    if (step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE) {
        const wefti_operand_t *operands = l->schedules[site->rank].operands + step->move.operand;
        uint32_t count = step->move.source_count + (uint32_t)step->move.destination_count;
        return any_unreachable(l, site->rank, operands, count) ? replace_move(l, site, operands)
                                                               : WEFT_OK;
    }
    if (step->op == WEFTI_DO_OTHERS) {
        l->slots[site->rank] += step->move.first;
        l->wide_slots[site->rank] += step->move.step;
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_find(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t rank = 0; rank < l->params->group_size && status >= 0; rank++) {
        const wefti_schedule_t *schedule = &l->schedules[rank];
        for (uint32_t lane = 0; lane < schedule->resources.lanes && status >= 0; lane++) {
            wefti_lower_begin_lane(l);
            for (uint32_t i = schedule->lane_begin[lane];
                 i < schedule->lane_begin[lane + 1] && status >= 0; i++) {
                wefti_site_t site = {rank, lane, i, &schedule->steps[i]};
                status = visit(l, &site);
            }
        }
    }
    return status;
}
