/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the changed schedules: superfluous signals go, the others get their numbers. */
#include <stdlib.h>
#include <string.h>

#include "ops/algo/lower_internal.h"

/* Steps of the new schedules, with signals still by their identity. */
typedef struct merged {
    wefti_schedule_t *schedules; /* [rank] */
    uint32_t **signals;          /* [rank][step] */
    size_t *signal_capacity;     /* [rank] */
    uint32_t *awaited;           /* [signal]: how many wait for it */
    uint32_t *index;             /* [signal]: its number on its channel */
} merged_t;

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
                const wefti_change_t *change = &l->changes[*next];
                bool mine = *next < l->change_count && change->rank == rank && change->anchor == i;
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

static bool is_covered_by(const wefti_step_t *step, uint32_t index, const wefti_step_t *other,
                          uint32_t other_index, bool other_is_earlier)
{
    return other->op == WEFTI_DO_AWAIT && other->signal.peer == step->signal.peer &&
           other->signal.lane == step->signal.lane && other->signal.back == step->signal.back &&
           (other_index > index || (other_index == index && other_is_earlier));
}

/* Signals on one channel arrive in order, so of several waits in a row the last number is enough.
 */
static void prune_awaits(merged_t *m, uint32_t rank)
{
    wefti_schedule_t *schedule = &m->schedules[rank];
    const uint32_t *signals = m->signals[rank];
    size_t begin = 0;
    for (size_t i = 0; i < schedule->step_count; i++) {
        wefti_step_t *step = &schedule->steps[i];
        if (step->op != WEFTI_DO_AWAIT && step->op != 0) {
            begin = i + 1;
            continue;
        }
        for (size_t j = begin; step->op != 0 && j < schedule->step_count; j++) {
            const wefti_step_t *other = &schedule->steps[j];
            if ((other->op != WEFTI_DO_AWAIT && other->op != 0) || other->lane != step->lane) {
                break;
            }
            if (j != i &&
                is_covered_by(step, m->index[signals[i]], other, m->index[signals[j]], j < i)) {
                step->op = 0;
            }
        }
    }
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
            memset(counts, 0, n * sizeof *counts);
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
        }
    }
    wefti_free(l->allocator, counts);
    return WEFT_OK;
}

/* A reduction may be repeated when nothing it reads is among what it writes, and nobody puts there.
 */
static void mark_repeatable(const wefti_lowering_t *l, wefti_schedule_t *schedule,
                            const uint8_t *put_targets)
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
            for (uint32_t s = 0; s < sources; s++) {
                may = may && operands[s].buffer != buffer &&
                      !(l->params->in_place && buffer == WEFTI_RECV);
            }
            for (uint32_t b = 0; b < step->move.count && buffer == WEFTI_RECV; b++) {
                uint32_t block = operands[d].block + operands[d].step * b;
                may = may && operands[d].rank_count == 1 && block < blocks &&
                      !put_targets[(size_t)operands[d].rank * blocks + block];
            }
            may = may && (buffer != WEFTI_SCRATCH || operands[d].rank == schedule->rank);
        }
        step->flags |= may ? WEFTI_STEP_REPEATABLE : 0;
    }
}

static void find_put_targets(const wefti_lowering_t *l, const wefti_schedule_t *schedule,
                             uint8_t *put_targets)
{
    uint32_t blocks = wefti_block_count(l->params, &schedule->resources);
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        if (step->op != WEFTI_DO_PUT) {
            continue;
        }
        const wefti_operand_t *to = &schedule->operands[step->move.operand + 1];
        for (uint32_t b = 0; b < step->move.count && to->buffer == WEFTI_RECV; b++) {
            uint32_t block = to->block + to->step * b;
            if (block < blocks) {
                put_targets[(size_t)to->rank * blocks + block] = 1;
            }
        }
    }
}

/* Over put links nobody looks at counters: posts without a wait that could see them go. */
static weft_status_t prune_posts(const wefti_lowering_t *l, merged_t *m)
{
    uint32_t n = l->params->group_size, lanes = m->schedules[0].resources.lanes;
    uint8_t *seen = wefti_alloc(l->allocator, (size_t)n * lanes);
    if (seen == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        for (size_t i = 0; i < m->schedules[rank].step_count; i++) {
            const wefti_step_t *step = &m->schedules[rank].steps[i];
            for (uint32_t r = 0; step->op == WEFTI_DO_WAIT && r < step->wait.rank_count; r++) {
                uint32_t other = step->wait.first_rank + r;
                bool self = other == rank && step->wait.lane == step->lane;
                seen[other * lanes + step->wait.lane] |= !self;
            }
        }
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        for (size_t i = 0; i < m->schedules[rank].step_count; i++) {
            wefti_step_t *step = &m->schedules[rank].steps[i];
            if (step->op == WEFTI_DO_POST && !seen[rank * lanes + step->lane]) {
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

static weft_status_t finish(const wefti_lowering_t *l, merged_t *m)
{
    uint32_t n = l->params->group_size;
    size_t targets = (size_t)n * (wefti_block_count(l->params, &m->schedules[0].resources) + 1);
    uint8_t *put_targets = wefti_alloc(l->allocator, targets);
    weft_status_t status = number_signals(l, m, false);
    if (status < 0 || put_targets == NULL) {
        wefti_free(l->allocator, put_targets);
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        prune_awaits(m, rank);
        for (size_t i = 0; i < m->schedules[rank].step_count; i++) {
            m->awaited[m->signals[rank][i]] += m->schedules[rank].steps[i].op == WEFTI_DO_AWAIT;
        }
    }
    status = number_signals(l, m, true);
    if (status >= 0) {
        status = prune_posts(l, m);
    }
    for (uint32_t rank = 0; rank < n && status >= 0; rank++) {
        compact(m, rank);
        find_put_targets(l, &m->schedules[rank], put_targets);
    }
    for (uint32_t rank = 0; rank < n && status >= 0; rank++) {
        mark_repeatable(l, &m->schedules[rank], put_targets);
    }
    wefti_free(l->allocator, put_targets);
    return status;
}

weft_status_t wefti_lower_apply(wefti_lowering_t *l)
{
    uint32_t n = l->params->group_size;
    size_t next = 0;
    merged_t m = {wefti_alloc(l->allocator, n * sizeof *m.schedules),
                  wefti_alloc(l->allocator, n * sizeof *m.signals),
                  wefti_alloc(l->allocator, n * sizeof *m.signal_capacity),
                  wefti_alloc(l->allocator, (l->signal_count + 1ul) * sizeof *m.awaited),
                  wefti_alloc(l->allocator, (l->signal_count + 1ul) * sizeof *m.index)};
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    if (m.schedules && m.signals && m.signal_capacity && m.awaited && m.index) {
        status = WEFT_OK;
    }
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
    return status;
}
