/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which puts may lend their source instead of having it copied, and which steps must then wait
 * until everything lent is back: found once, from the schedules of all ranks.
 *
 *   a put lends      when no other task writes what it reads, but for the rank it goes to, after
 *                    the data has come there
 *   a move waits     when it writes on the own rank what a put before it, or of another lane, lends
 *   the end waits    for the run before (interpreter.c): its data is other elements of the users'
 *                    buffers and another set of slots, so two runs may be under way
 */
#include "runtime/interpreter/internal.h"

#include <string.h>

typedef struct lending {
    wefti_run_t *run;
    wefti_schedule_t *own;
    uint32_t rank;
    uint32_t base[WEFTI_BUFFER_COUNT + 1]; /* of each buffer in lanes */
    uint32_t *lanes;                       /* [place]: bits of lanes whose puts read it */
    uint8_t *before;                       /* [place]: a put of this lane read it */
} lending_t;

static bool is_move(const wefti_step_t *step)
{
    return step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE || step->op == WEFTI_DO_PUT;
}

/* Blocks of a buffer on the own rank, counted over all of them; in place, those that are the same
 * memory are the same place. */
static uint32_t place_of(const lending_t *l, const wefti_operand_t *operand, uint32_t i)
{
    uint32_t buffer = operand->buffer, block = operand->block + operand->step * i, alias;
    if (buffer == WEFTI_SEND && l->run->params.in_place &&
        wefti_in_place_alias(&l->run->params, &l->own->resources, l->rank, block, &alias)) {
        buffer = WEFTI_RECV;
        block = alias;
    }
    uint32_t place = l->base[buffer] + block;
    return place < l->base[buffer + 1] ? place : UINT32_MAX; /* checked later: an error */
}

static bool is_on(const wefti_operand_t *operand, uint32_t rank)
{
    return rank >= operand->rank && rank - operand->rank < operand->rank_count;
}

static weft_status_t begin(lending_t *l)
{
    const wefti_schedule_t *own = l->own;
    uint32_t blocks = wefti_block_count(&l->run->params, &own->resources);
    const uint32_t counts[WEFTI_BUFFER_COUNT] = {blocks, blocks, own->resources.scratch_slots,
                                                 own->stage_slots, own->stage_wide_slots};
    for (uint32_t b = 0; b < WEFTI_BUFFER_COUNT; b++) {
        l->base[b + 1] = l->base[b] + counts[b];
    }
    size_t places = l->base[WEFTI_BUFFER_COUNT] + 1ul;
    l->lanes = wefti_alloc(l->run->allocator, places * sizeof *l->lanes);
    l->before = wefti_alloc(l->run->allocator, places);
    return l->lanes != NULL && l->before != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* Sets the bits of all puts, or of those that lend. */
static void mark_sources(lending_t *l, bool only_lending)
{
    memset(l->lanes, 0, l->base[WEFTI_BUFFER_COUNT] * sizeof *l->lanes);
    for (size_t s = 0; s < l->own->step_count; s++) {
        wefti_step_t *step = &l->own->steps[s];
        if (step->op != WEFTI_DO_PUT || (only_lending && !(step->flags & WEFTI_STEP_LEND))) {
            continue;
        }
        step->flags |= WEFTI_STEP_LEND;
        for (uint32_t i = 0; i < step->move.count; i++) {
            uint32_t place = place_of(l, &l->own->operands[step->move.operand], i);
            if (place != UINT32_MAX) {
                l->lanes[place] |= 1u << step->lane;
            }
        }
    }
}

/* Whether the step of the writer's schedule comes after the signal that the put has landed there.
 */
static bool follows_landing(const lending_t *l, size_t put, const wefti_schedule_t *writer,
                            size_t at)
{
    const wefti_step_t *step = &l->own->steps[put];
    uint32_t lane = step->lane, index = 0;
    if (l->own->operands[step->move.operand + 1].rank != writer->rank) {
        return false;
    }
    for (size_t s = put + 1; s < l->own->lane_begin[lane + 1] && index == 0; s++) {
        const wefti_step_t *after = &l->own->steps[s];
        if (after->op == WEFTI_DO_SIGNAL && after->signal.peer == writer->rank) {
            index = after->signal.index;
        }
    }
    for (size_t s = writer->lane_begin[writer->steps[at].lane]; s < at && index > 0; s++) {
        const wefti_step_t *await = &writer->steps[s];
        if (await->op == WEFTI_DO_AWAIT && await->signal.peer == l->rank &&
            await->signal.lane == lane && await->signal.back == 0 && await->signal.index >= index) {
            return true;
        }
    }
    return false;
}

/* A block that another rank writes here: puts that read it may lend it only if they are over. */
static void refuse(lending_t *l, uint32_t place, const wefti_schedule_t *writer, size_t at)
{
    for (size_t s = 0; s < l->own->step_count; s++) {
        wefti_step_t *step = &l->own->steps[s];
        if (step->op != WEFTI_DO_PUT || !(step->flags & WEFTI_STEP_LEND)) {
            continue;
        }
        for (uint32_t i = 0; i < step->move.count; i++) {
            if (place_of(l, &l->own->operands[step->move.operand], i) == place) {
                if (!follows_landing(l, s, writer, at)) {
                    step->flags &= (uint8_t)~WEFTI_STEP_LEND;
                }
                break;
            }
        }
    }
}

static void look_at_writers(lending_t *l, const wefti_schedule_t *writer)
{
    for (size_t s = 0; s < writer->step_count; s++) {
        const wefti_step_t *step = &writer->steps[s];
        if (!is_move(step)) {
            continue;
        }
        const wefti_operand_t *to = writer->operands + step->move.operand + step->move.source_count;
        for (uint32_t d = 0; d < step->move.destination_count; d++) {
            for (uint32_t i = 0; i < step->move.count && is_on(&to[d], l->rank); i++) {
                uint32_t place = place_of(l, &to[d], i);
                if (place != UINT32_MAX && l->lanes[place] != 0) {
                    refuse(l, place, writer, s);
                }
            }
        }
    }
}

/* Own moves onto what may still be lent. */
static void mark_waits(lending_t *l)
{
    for (uint32_t lane = 0; lane < l->own->resources.lanes; lane++) {
        memset(l->before, 0, l->base[WEFTI_BUFFER_COUNT]);
        for (size_t s = l->own->lane_begin[lane]; s < l->own->lane_begin[lane + 1]; s++) {
            wefti_step_t *step = &l->own->steps[s];
            if (!is_move(step)) {
                continue;
            }
            bool put = step->op == WEFTI_DO_PUT;
            const wefti_operand_t *operand = l->own->operands + step->move.operand;
            operand += put ? 0 : step->move.source_count;
            for (uint32_t d = 0; d < (put ? 1u : step->move.destination_count); d++) {
                for (uint32_t i = 0; i < step->move.count && is_on(&operand[d], l->rank); i++) {
                    uint32_t place = place_of(l, &operand[d], i);
                    if (place == UINT32_MAX) {
                        continue;
                    }
                    if (put) {
                        l->before[place] |= (step->flags & WEFTI_STEP_LEND) != 0;
                    } else if (l->before[place] || (l->lanes[place] & ~(1u << lane)) != 0) {
                        step->flags |= WEFTI_STEP_AFTER_LENT;
                    }
                }
            }
        }
    }
}

/* Whether scratch that is lent is written again in the very next run. */
static bool lends_only_set(const lending_t *l)
{
    for (uint32_t i = l->base[WEFTI_SCRATCH]; i < l->base[WEFTI_SCRATCH + 1]; i++) {
        if (l->lanes[i] != 0 && l->own->resources.scratch_sets <= 1) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_run_find_lent(wefti_run_t *run, wefti_schedule_t *schedules)
{
    uint32_t rank = run->params.rank;
    lending_t l = {.run = run, .own = &schedules[rank], .rank = rank};
    weft_status_t status = begin(&l);
    if (status >= 0) {
        mark_sources(&l, false);
        for (uint32_t r = 0; r < run->params.group_size; r++) {
            if (r != rank) {
                look_at_writers(&l, &schedules[r]);
            }
        }
        mark_sources(&l, true);
        mark_waits(&l);
        run->settles_each = lends_only_set(&l);
    }
    wefti_free(run->allocator, l.lanes);
    wefti_free(run->allocator, l.before);
    return status;
}
