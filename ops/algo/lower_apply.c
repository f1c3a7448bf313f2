/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the changed schedules: superfluous signals go, the others get their numbers. For one rank
 * alone, others' schedules are what concerns it: its signals, and what is written to it. */
#include <stdlib.h>
#include <string.h>

#include "ops/algo/lower_internal.h"
#include "runtime/base/error.h"

/* Steps of the new schedules, with signals still by their identity. */
typedef struct merged {
    wefti_schedule_t *schedules; /* [rank] */
    uint32_t **signals;          /* [rank][step] */
    size_t *signal_capacity;     /* [rank] */
    uint32_t *awaited;           /* [signal]: how many wait for it */
    uint32_t *index;             /* [signal]: its number on its channel */
    struct awaiting *row;        /* of waits in a row */
    size_t row_capacity;
} merged_t;

/* A wait for a signal. */
typedef struct awaiting {
    uint32_t peer, lane_back, index;
    uint32_t step;
} awaiting_t;

static bool is_whole(const wefti_lowering_t *l, uint32_t rank)
{
    return l->only == WEFTI_NOBODY || l->only == rank;
}

static int by_place(const void *left, const void *right)
{
    const wefti_change_t *a = left, *b = right;
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    if (a->anchor != b->anchor) {
        return a->anchor < b->anchor ? -1 : 1;
    }
    if (a->place != b->place) {
        return a->place < b->place ? -1 : 1;
    }
    if (a->by != b->by) { /* any order would do, but all must find the same one */
        return a->by > b->by ? -1 : 1;
    }
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

static weft_status_t append(const wefti_lowering_t *l, merged_t *m, uint32_t rank,
                            const wefti_step_t *step, const wefti_operand_t *pool, uint32_t signal)
{
    wefti_schedule_t *out = &m->schedules[rank];
    wefti_step_t copy = *step;
    weft_status_t status =
        wefti_array_reserve(l->allocator, &m->signals[rank], &m->signal_capacity[rank],
                            out->step_count + 1, sizeof **m->signals);
    if (status >= 0 &&
        (step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE || step->op == WEFTI_DO_PUT)) {
        uint32_t count = step->move.source_count + (uint32_t)step->move.destination_count;
        status =
            wefti_schedule_add_operands(out, pool + step->move.operand, count, &copy.move.operand);
    }
    if (status < 0 || wefti_schedule_add(out, &copy) == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    m->signals[rank][out->step_count - 1] = signal;
    return WEFT_OK;
}

static weft_status_t merge_rank(const wefti_lowering_t *l, merged_t *m, uint32_t rank, size_t *next)
{
    const wefti_schedule_t *in = &l->schedules[rank];
    wefti_schedule_t *out = &m->schedules[rank];
    weft_status_t status = WEFT_OK;
    *out = (wefti_schedule_t){.allocator = l->allocator,
                              .algorithm = in->algorithm,
                              .rank = rank,
                              .resources = in->resources,
                              .stage_slots = l->slots[rank],
                              .stage_wide_slots = l->wide_slots[rank],
                              .stage_sets = l->puts ? 2 : in->stage_sets};
    for (uint32_t lane = 0; lane < in->resources.lanes; lane++) {
        out->lane_begin[lane] = (uint32_t)out->step_count;
        for (uint32_t i = in->lane_begin[lane]; i < in->lane_begin[lane + 1] && status >= 0; i++) {
            bool pending = !l->dropped[rank][i];
            for (;; (*next)++) {
                const wefti_change_t *change = *next < l->change_count ? &l->changes[*next] : NULL;
                bool mine = change != NULL && change->rank == rank && change->anchor == i;
                if (pending && (!mine || change->place > WEFTI_CHANGE_BEFORE)) {
                    pending = false;
                    status = append(l, m, rank, &in->steps[i], in->operands, 0);
                }
                if (!mine || status < 0) {
                    break;
                }
                status = append(l, m, rank, &change->step, l->operands, change->signal);
                if (status < 0) {
                    break;
                }
            }
        }
    }
    out->lane_begin[in->resources.lanes] = (uint32_t)out->step_count;
    return status;
}

/* Signals of one channel together, the one that is kept first. */
static int by_channel(const void *left, const void *right)
{
    const awaiting_t *a = left, *b = right;
    if (a->peer != b->peer) {
        return a->peer < b->peer ? -1 : 1;
    }
    if (a->lane_back != b->lane_back) {
        return a->lane_back < b->lane_back ? -1 : 1;
    }
    if (a->index != b->index) {
        return a->index > b->index ? -1 : 1;
    }
    return a->step < b->step ? -1 : a->step > b->step;
}

/* Signals on one channel arrive in order, so of several waits in a row the last number is enough.
 */
static weft_status_t prune_awaits(const wefti_lowering_t *l, merged_t *m, uint32_t rank)
{
    wefti_schedule_t *schedule = &m->schedules[rank];
    for (size_t i = 0, end; i < schedule->step_count; i = end) {
        size_t count = 0;
        for (end = i; end < schedule->step_count && schedule->steps[end].op == WEFTI_DO_AWAIT &&
                      schedule->steps[end].lane == schedule->steps[i].lane;
             end++) {
            const wefti_step_t *step = &schedule->steps[end];
            WEFT_RETURN_IF_ERROR(wefti_array_reserve(l->allocator, &m->row, &m->row_capacity,
                                                     count + 1, sizeof *m->row));
            m->row[count++] = (awaiting_t){step->signal.peer,
                                           (uint32_t)step->signal.lane << 16 | step->signal.back,
                                           m->index[m->signals[rank][end]], (uint32_t)end};
        }
        if (count > 1) {
            qsort(m->row, count, sizeof *m->row, by_channel);
        }
        for (size_t k = 1; k < count; k++) {
            if (m->row[k].peer == m->row[k - 1].peer &&
                m->row[k].lane_back == m->row[k - 1].lane_back) {
                schedule->steps[m->row[k].step].op = 0;
            }
        }
        end += end == i;
    }
    return WEFT_OK;
}

/* Numbers the signals of every channel in the order of the lane; counts only those still wanted. */
static weft_status_t number_signals(const wefti_lowering_t *l, merged_t *m, bool wanted_only)
{
    uint32_t n = l->params->group_size;
    uint32_t *counts = wefti_alloc(l->allocator, n * sizeof *counts);
    if (counts == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        wefti_schedule_t *schedule = &m->schedules[rank];
        for (uint32_t lane = 0; lane < schedule->resources.lanes; lane++) {
            for (uint32_t i = schedule->lane_begin[lane]; i < schedule->lane_begin[lane + 1]; i++) {
                wefti_step_t *step = &schedule->steps[i];
                uint32_t signal = m->signals[rank][i];
                if (step->op != WEFTI_DO_SIGNAL) {
                    continue;
                }
                if (wanted_only && m->awaited[signal] == 0) {
                    step->op = 0;
                    continue;
                }
                step->signal.index = m->index[signal] = ++counts[step->signal.peer];
            }
            for (uint32_t i = schedule->lane_begin[lane]; i < schedule->lane_begin[lane + 1]; i++) {
                if (schedule->steps[i].op == WEFTI_DO_SIGNAL) {
                    counts[schedule->steps[i].signal.peer] = 0;
                }
            }
        }
    }
    wefti_free(l->allocator, counts);
    return WEFT_OK;
}

/* Of a rank's receive buffer: [block], not NULL where it is needed. */
static uint8_t *targets_of(const wefti_lowering_t *l, uint32_t rank, uint32_t blocks)
{
    uint32_t row = l->row != NULL ? l->row[rank] : rank;
    return row == WEFTI_NOBODY ? NULL : l->put_targets + (size_t)row * blocks;
}

/* A reduction may be repeated when nothing it reads is among what it writes, and nobody puts there.
 */
static void mark_repeatable(const wefti_lowering_t *l, wefti_schedule_t *schedule)
{
    uint32_t blocks = wefti_block_count(l->params, &schedule->resources);
    for (size_t i = 0; i < schedule->step_count; i++) {
        wefti_step_t *step = &schedule->steps[i];
        if (step->op != WEFTI_DO_REDUCE) {
            continue;
        }
        const wefti_operand_t *operands = schedule->operands + step->move.operand;
        uint32_t sources = step->move.source_count;
        bool may = true;
        for (uint32_t d = sources; d < sources + step->move.destination_count; d++) {
            uint32_t buffer = operands[d].buffer;
            const uint8_t *targets = targets_of(l, operands[d].rank, blocks);
            for (uint32_t s = 0; s < sources; s++) {
                may = may && operands[s].buffer != buffer &&
                      !(l->params->in_place && buffer == WEFTI_RECV);
            }
            for (uint32_t b = 0; b < step->move.count && buffer == WEFTI_RECV; b++) {
                uint32_t block = operands[d].block + operands[d].step * b;
                may = may && operands[d].rank_count == 1 && block < blocks && targets != NULL &&
                      !targets[block];
            }
            may = may && (buffer != WEFTI_SCRATCH || operands[d].rank == schedule->rank);
        }
        step->flags |= may ? WEFTI_STEP_REPEATABLE : 0;
    }
}

static void find_put_targets(const wefti_lowering_t *l, const wefti_schedule_t *schedule)
{
    uint32_t blocks = wefti_block_count(l->params, &schedule->resources);
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        if (step->op != WEFTI_DO_PUT) {
            continue;
        }
        const wefti_operand_t *to = &schedule->operands[step->move.operand + 1];
        uint8_t *targets = targets_of(l, to->rank, blocks);
        for (uint32_t b = 0; b < step->move.count && to->buffer == WEFTI_RECV; b++) {
            uint32_t block = to->block + to->step * b;
            if (block < blocks && targets != NULL) {
                targets[block] = 1;
            }
        }
    }
}

/* Over put links nobody looks at counters: posts without a wait that could see them go. */
static weft_status_t prune_posts(const wefti_lowering_t *l, merged_t *m)
{
    uint32_t n = l->params->group_size, lanes = m->schedules[0].resources.lanes;
    uint32_t ranks = l->only == WEFTI_NOBODY ? n : 1; /* whose posts matter */
    uint8_t *seen = wefti_alloc(l->allocator, (size_t)ranks * lanes);
    if (seen == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        for (size_t i = 0; i < m->schedules[rank].step_count; i++) {
            const wefti_step_t *step = &m->schedules[rank].steps[i];
            for (uint32_t r = 0; step->op == WEFTI_DO_WAIT && r < step->wait.rank_count; r++) {
                uint32_t other = step->wait.first_rank + r;
                bool self = other == rank && step->wait.lane == step->lane;
                if (!self && is_whole(l, other)) {
                    seen[other % ranks * lanes + step->wait.lane] = 1;
                }
            }
        }
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        for (size_t i = 0; i < m->schedules[rank].step_count && is_whole(l, rank); i++) {
            wefti_step_t *step = &m->schedules[rank].steps[i];
            if (step->op == WEFTI_DO_POST && !seen[rank % ranks * lanes + step->lane]) {
                step->op = 0;
            }
        }
    }
    wefti_free(l->allocator, seen);
    return WEFT_OK;
}

/* Takes out what was pruned, and writes the numbers of signals into those who wait for them. */
static void compact(merged_t *m, uint32_t rank)
{
    wefti_schedule_t *schedule = &m->schedules[rank];
    size_t next = 0;
    for (uint32_t lane = 0; lane < schedule->resources.lanes; lane++) {
        size_t begin = schedule->lane_begin[lane], end = schedule->lane_begin[lane + 1];
        schedule->lane_begin[lane] = (uint32_t)next;
        for (size_t i = begin; i < end; i++) {
            wefti_step_t *step = &schedule->steps[i];
            if (step->op == WEFTI_DO_AWAIT) {
                step->signal.index = m->index[m->signals[rank][i]];
            }
            if (step->op != 0) {
                schedule->steps[next++] = *step;
            }
        }
    }
    schedule->step_count = next;
    schedule->lane_begin[schedule->resources.lanes] = (uint32_t)next;
}

static weft_status_t finish(wefti_lowering_t *l, merged_t *m)
{
    uint32_t n = l->params->group_size;
    WEFT_RETURN_IF_ERROR(number_signals(l, m, false));
    for (uint32_t rank = 0; rank < n; rank++) {
        WEFT_RETURN_IF_ERROR(prune_awaits(l, m, rank));
        for (size_t i = 0; i < m->schedules[rank].step_count; i++) {
            m->awaited[m->signals[rank][i]] += m->schedules[rank].steps[i].op == WEFTI_DO_AWAIT;
        }
    }
    WEFT_RETURN_IF_ERROR(number_signals(l, m, true));
    WEFT_RETURN_IF_ERROR(prune_posts(l, m));
    for (uint32_t rank = 0; rank < n; rank++) {
        compact(m, rank);
        find_put_targets(l, &m->schedules[rank]);
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        if (is_whole(l, rank)) {
            mark_repeatable(l, &m->schedules[rank]);
        }
    }
    return WEFT_OK;
}

static weft_status_t alloc_merged(wefti_lowering_t *l, merged_t *m, uint8_t **out_targets)
{
    uint32_t n = l->params->group_size;
    *m = (merged_t){.schedules = wefti_alloc(l->allocator, n * sizeof *m->schedules),
                    .signals = wefti_alloc(l->allocator, n * sizeof *m->signals),
                    .signal_capacity = wefti_alloc(l->allocator, n * sizeof *m->signal_capacity),
                    .awaited =
                        wefti_alloc(l->allocator, (l->signal_count + 1ul) * sizeof *m->awaited),
                    .index = wefti_alloc(l->allocator, (l->signal_count + 1ul) * sizeof *m->index)};
    if (l->put_targets == NULL) {
        size_t blocks = wefti_block_count(l->params, &l->schedules[0].resources) + 1ul;
        l->put_targets = *out_targets = wefti_alloc(l->allocator, n * blocks);
    }
    return m->schedules && m->signals && m->signal_capacity && m->awaited && m->index &&
                   l->put_targets
               ? WEFT_OK
               : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_lower_apply(wefti_lowering_t *l)
{
    uint32_t n = l->params->group_size;
    size_t next = 0;
    merged_t m;
    uint8_t *targets = NULL;
    weft_status_t status = alloc_merged(l, &m, &targets);
    if (l->change_count > 1) {
        qsort(l->changes, l->change_count, sizeof *l->changes, by_place);
    }
    for (uint32_t rank = 0; rank < n && status >= 0; rank++) {
        status = merge_rank(l, &m, rank, &next);
    }
    if (status >= 0) {
        status = finish(l, &m);
    }
    for (uint32_t rank = 0; rank < n && m.schedules != NULL; rank++) {
        wefti_schedule_t *gone = status >= 0 ? &l->schedules[rank] : &m.schedules[rank];
        wefti_schedule_deinit(gone);
        if (status >= 0) {
            l->schedules[rank] = m.schedules[rank];
        }
        if (m.signals != NULL) {
            wefti_free(l->allocator, m.signals[rank]);
        }
    }
    wefti_free(l->allocator, m.schedules);
    wefti_free(l->allocator, m.signals);
    wefti_free(l->allocator, m.signal_capacity);
    wefti_free(l->allocator, m.awaited);
    wefti_free(l->allocator, m.index);
    wefti_free(l->allocator, m.row);
    wefti_free(l->allocator, targets);
    return status;
}
