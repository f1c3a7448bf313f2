/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dynamic programmes behind planner.h. Times are counted in ticks of 1/1024 ps, so that a cost
 * per KiB is one of whole ticks per byte and F(i) - b S_i loses nothing.
 *
 * A layer computes, for every j, the best over i of max(before(i), r_j) + T(S_j - S_i). before
 * rises with i, so candidates fall into two runs: up to some p the channel is free when j is ready,
 * and of those the latest i sends least; behind p it is busy, and for each piece a + b m the best i
 * is the least before(i) - b S_i in a window whose two ends only move forward: a monotone deque.
 * The optimum is one layer over itself; the fewest buckets are layers over one another.
 */
#include "fusion/planner.h"

#include "runtime/base/error.h"

#define TICKS_PER_PS 1024u
#define NEVER UINT64_MAX
#define MAX_TICKS 4.0e18
#define MAX_LAYER_CELLS ((uint64_t)16 << 20) /* of 4 bytes, for going back over layers */
#define SAME_AS_BEFORE UINT32_MAX            /* a layer's origin: one bucket less is as good */

__extension__ typedef unsigned __int128 wide_t;

typedef struct deque {
    uint32_t *items;
    uint32_t first, end;
} deque_t;

typedef struct planner {
    const wefti_planner_params_t *params;
    uint32_t n;
    uint64_t *sums;     /* [n + 1] bytes */
    uint64_t *ready;    /* [n + 1] ticks, of item j - 1 at j */
    uint32_t *earliest; /* [n + 1] least i of a bucket (i, j] */
    deque_t *deques;    /* [piece] */
} planner_t;

static uint64_t piece_ticks(const wefti_bucket_piece_t *piece, uint64_t bytes)
{
    return piece->alpha_ps * TICKS_PER_PS + piece->beta_ps_per_kib * bytes;
}

/* Between two points, or on the line through them behind the second. */
static uint64_t between(const wefti_bucket_point_t *a, const wefti_bucket_point_t *b,
                        uint64_t bytes)
{
    wide_t run = b->bytes - a->bytes, at = bytes - a->bytes;
    if (b->ps >= a->ps) {
        return a->ps * TICKS_PER_PS + (uint64_t)((wide_t)(b->ps - a->ps) * TICKS_PER_PS * at / run);
    }
    wide_t fall = (wide_t)(a->ps - b->ps) * TICKS_PER_PS * (at < run ? at : run) / run;
    return a->ps * TICKS_PER_PS - (uint64_t)fall;
}

static uint64_t points_ticks(const wefti_bucket_cost_t *cost, uint64_t bytes)
{
    uint32_t low = 0, high = cost->point_count;
    if (bytes <= cost->points[0].bytes || high == 1) {
        return cost->points[0].ps * TICKS_PER_PS;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (cost->points[middle].bytes <= bytes) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low -= low == cost->point_count - 1;
    return between(&cost->points[low], &cost->points[low + 1], bytes);
}

static uint64_t cost_ticks(const wefti_bucket_cost_t *cost, uint64_t bytes)
{
    if (cost->point_count > 0) {
        return points_ticks(cost, bytes);
    }
    uint64_t least = NEVER;
    for (uint32_t k = 0; k < cost->piece_count; k++) {
        uint64_t ticks = piece_ticks(&cost->pieces[k], bytes);
        least = ticks < least ? ticks : least;
    }
    return least;
}

uint64_t wefti_bucket_cost_ps(const wefti_bucket_cost_t *cost, uint64_t bytes)
{
    return cost_ticks(cost, bytes) / TICKS_PER_PS;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What no sum of times can exceed: the last gradient's, then every one in a bucket of its own. */
static weft_status_t check_range(const wefti_planner_params_t *params)
{
    const wefti_bucket_cost_t *cost = &params->cost;
    double alpha = 0, beta = 0, bytes = 0;
    for (uint32_t k = 0; k < cost->piece_count; k++) {
        double a = (double)cost->pieces[k].alpha_ps, b = (double)cost->pieces[k].beta_ps_per_kib;
        alpha = a > alpha ? a : alpha;
        beta = b > beta ? b : beta;
    }
    for (uint32_t k = 0; k < cost->point_count; k++) {
        double a = (double)cost->points[k].ps;
        alpha = a > alpha ? a : alpha;
    }
    if (cost->point_count > 1) {
        const wefti_bucket_point_t *last = &cost->points[cost->point_count - 1];
        double rise = (double)last->ps - (double)last[-1].ps;
        beta = rise / (double)(last->bytes - last[-1].bytes) * 1024;
    }
    for (uint32_t i = 0; i < params->item_count; i++) {
        bytes += (double)params->items[i].bytes;
    }
    double ready = (double)params->items[params->item_count - 1].ready_ps;
    if ((ready + alpha * params->item_count) * TICKS_PER_PS + (beta > 0 ? beta : 0) * bytes >
            MAX_TICKS ||
        bytes > MAX_TICKS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "gradients too large to plan: bytes or times overflow");
    }
    return WEFT_OK;
}

static weft_status_t check_params(const wefti_planner_params_t *params)
{
    const wefti_bucket_cost_t *cost = &params->cost;
    for (uint32_t k = 1; k < cost->point_count; k++) {
        if (cost->points[k].bytes <= cost->points[k - 1].bytes) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "cost: bytes of points must increase: %llu follows %llu",
                               (unsigned long long)cost->points[k].bytes,
                               (unsigned long long)cost->points[k - 1].bytes);
        }
    }
    if (params->item_count == 0 || (cost->point_count == 0 && cost->piece_count == 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "nothing to plan: no gradients or no costs");
    }
    for (uint32_t i = 0; i < params->item_count; i++) {
        const wefti_plan_item_t *item = &params->items[i];
        if (params->cap_bytes != 0 && item->bytes > params->cap_bytes) {
            return wefti_error(
                WEFT_ERR_INVALID_ARGUMENT, "gradient %u: %llu bytes exceed the cap of %llu", i,
                (unsigned long long)item->bytes, (unsigned long long)params->cap_bytes);
        }
        if (i > 0 && item->ready_ps < item[-1].ready_ps) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "gradient %u: ready before gradient %u",
                               i, i - 1);
        }
    }
    return check_range(params);
}

static weft_status_t planner_init(planner_t *p, const wefti_planner_params_t *params,
                                  wefti_arena_t *arena)
{
    uint32_t n = params->item_count;
    *p = (planner_t){.params = params, .n = n};
    p->sums = wefti_arena_array(arena, (size_t)n + 1, sizeof(*p->sums));
    p->ready = wefti_arena_array(arena, (size_t)n + 1, sizeof(*p->ready));
    p->earliest = wefti_arena_array(arena, (size_t)n + 1, sizeof(*p->earliest));
    p->deques = wefti_arena_array(arena, params->cost.piece_count + 1, sizeof(*p->deques));
    if (p->sums == NULL || p->ready == NULL || p->earliest == NULL || p->deques == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t k = 0; k < params->cost.piece_count; k++) {
        p->deques[k].items = wefti_arena_array(arena, (size_t)n + 1, sizeof(uint32_t));
        if (p->deques[k].items == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    uint32_t first = 0;
    for (uint32_t j = 1; j <= n; j++) {
        p->sums[j] = p->sums[j - 1] + params->items[j - 1].bytes;
        p->ready[j] = params->items[j - 1].ready_ps * TICKS_PER_PS;
        if (params->first_with != NULL && params->first_with[j - 1] > first) {
            first = params->first_with[j - 1] < j ? params->first_with[j - 1] : j - 1;
        }
        while (params->cap_bytes != 0 && p->sums[j] - p->sums[first] > params->cap_bytes) {
            first++;
        }
        p->earliest[j] = first;
    }
    return WEFT_OK;
}

/* before(i) - b S_i, which may be below zero. */
static int64_t slack(const planner_t *p, uint32_t k, const uint64_t *before, uint32_t i)
{
    uint64_t sent = p->params->cost.pieces[k].beta_ps_per_kib * p->sums[i];
    return (int64_t)(before[i] - sent);
}

static void push(planner_t *p, uint32_t k, const uint64_t *before, uint32_t i)
{
    deque_t *deque = &p->deques[k];
    int64_t value = slack(p, k, before, i);
    while (deque->end > deque->first &&
           slack(p, k, before, deque->items[deque->end - 1]) >= value) {
        deque->end--;
    }
    deque->items[deque->end++] = i;
}

typedef struct best {
    uint64_t ticks;
    uint32_t from;
} best_t;

static void offer(best_t *best, uint64_t ticks, uint32_t from)
{
    if (ticks < best->ticks) {
        *best = (best_t){ticks, from};
    }
}

/* Buckets that start behind one that ends after j is ready: from is at least first. */
static void offer_busy(planner_t *p, const uint64_t *before, uint32_t first, uint32_t j,
                       best_t *best)
{
    for (uint32_t k = 0; k < p->params->cost.piece_count; k++) {
        deque_t *deque = &p->deques[k];
        while (deque->first < deque->end && deque->items[deque->first] < first) {
            deque->first++;
        }
        if (deque->first < deque->end) {
            uint32_t i = deque->items[deque->first];
            uint64_t bytes = p->sums[j] - p->sums[i];
            offer(best, before[i] + piece_ticks(&p->params->cost.pieces[k], bytes), i);
        }
    }
}

static const wefti_bucket_cost_t *cost_of(const wefti_planner_params_t *params, uint32_t items)
{
    return items == 1 && params->alone != NULL ? params->alone : &params->cost;
}

/* An item in a bucket of its own: it may cost less than T. */
static void offer_alone(const planner_t *p, const uint64_t *before, uint32_t j, best_t *best)
{
    if (p->params->alone != NULL && before[j - 1] != NEVER) {
        uint64_t bytes = p->sums[j] - p->sums[j - 1];
        offer(best, later(before[j - 1], p->ready[j]) + cost_ticks(p->params->alone, bytes), j - 1);
    }
}

/* One layer for pieces. before and after may be the same array: then F itself is computed. */
static void layer_pieces(planner_t *p, const uint64_t *before, uint64_t *after, uint32_t *from)
{
    uint32_t busy = 0; /* the first i that is done only after j is ready */
    for (uint32_t k = 0; k < p->params->cost.piece_count; k++) {
        p->deques[k].first = p->deques[k].end = 0;
    }
    for (uint32_t j = 1; j <= p->n; j++) {
        best_t best = {NEVER, 0};
        if (before[j - 1] != NEVER) {
            for (uint32_t k = 0; k < p->params->cost.piece_count; k++) {
                push(p, k, before, j - 1);
            }
        }
        while (busy < j && before[busy] <= p->ready[j]) {
            busy++;
        }
        if (busy > p->earliest[j]) {
            uint64_t bytes = p->sums[j] - p->sums[busy - 1];
            offer(&best, p->ready[j] + cost_ticks(&p->params->cost, bytes), busy - 1);
        }
        offer_busy(p, before, busy > p->earliest[j] ? busy : p->earliest[j], j, &best);
        offer_alone(p, before, j, &best);
        after[j] = best.ticks;
        from[j] = best.from;
    }
}

static void layer_points(planner_t *p, const uint64_t *before, uint64_t *after, uint32_t *from)
{
    for (uint32_t j = 1; j <= p->n; j++) {
        best_t best = {NEVER, 0};
        for (uint32_t i = j; i-- > p->earliest[j];) {
            if (before[i] != NEVER) {
                uint64_t bytes = p->sums[j] - p->sums[i];
                offer(&best, later(before[i], p->ready[j]) + cost_ticks(&p->params->cost, bytes),
                      i);
            }
        }
        offer_alone(p, before, j, &best);
        after[j] = best.ticks;
        from[j] = best.from;
    }
}

static void layer(planner_t *p, const uint64_t *before, uint64_t *after, uint32_t *from)
{
    if (p->params->cost.point_count > 0) {
        layer_points(p, before, after, from);
    } else {
        layer_pieces(p, before, after, from);
    }
}

/* Ends of the buckets that lead to n, by where each of them begins. */
static weft_status_t follow(const planner_t *p, const uint32_t *from, wefti_arena_t *arena,
                            uint32_t **out_ends, uint32_t *out_count)
{
    uint32_t count = 0;
    for (uint32_t j = p->n; j > 0; j = from[j]) {
        count++;
    }
    uint32_t *ends = wefti_arena_array(arena, count, sizeof(*ends));
    if (ends == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *out_count = count;
    for (uint32_t j = p->n; j > 0; j = from[j]) {
        ends[--count] = j;
    }
    *out_ends = ends;
    return WEFT_OK;
}

/* The fewest buckets done by limit: layers until one reaches it. Leaves out as it is when going
 * back over the layers would take too much memory. */
static weft_status_t fewest(planner_t *p, uint64_t limit, wefti_arena_t *arena,
                            wefti_bucket_plan_t *out)
{
    size_t width = (size_t)p->n + 1;
    uint64_t *before = wefti_arena_array(arena, width, sizeof(*before));
    uint64_t *after = wefti_arena_array(arena, width, sizeof(*after));
    uint32_t **froms = wefti_arena_array(arena, (size_t)out->optimum_count + 1, sizeof(*froms));
    if (before == NULL || after == NULL || froms == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t j = 1; j < width; j++) {
        before[j] = NEVER;
    }
    /* No more layers than the optimum has buckets, so the last one reaches the limit. */
    uint32_t count = 0;
    do {
        if ((uint64_t)(count + 1) * width > MAX_LAYER_CELLS) {
            return WEFT_OK;
        }
        uint32_t *from = wefti_arena_array(arena, width, sizeof(*from));
        if (from == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        froms[++count] = from;
        layer(p, before, after, from);
        for (size_t j = 0; j < width; j++) {
            if (j == 0 || before[j] <= after[j]) {
                after[j] = before[j];
                from[j] = SAME_AS_BEFORE;
            }
        }
        uint64_t *swapped = before;
        before = after;
        after = swapped;
    } while (before[p->n] > limit);
    uint32_t *ends = wefti_arena_array(arena, count, sizeof(*ends));
    if (ends == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    out->ends = ends;
    out->bucket_count = count;
    out->chosen_ps = before[p->n] / TICKS_PER_PS;
    for (uint32_t j = p->n, c = count; j > 0; c--) {
        if (froms[c][j] != SAME_AS_BEFORE) {
            ends[c - 1] = j;
            j = froms[c][j];
        }
    }
    return WEFT_OK;
}

/* The least that sending bytes can take, in however many buckets. */
static uint64_t least_ticks(const wefti_bucket_cost_t *cost, uint64_t bytes)
{
    if (cost->point_count == 0) {
        return cost_ticks(cost, bytes); /* concave from 0 on: splitting never helps */
    }
    /* Time per byte is least at a point, or on the slope behind the last one. */
    const wefti_bucket_point_t *last = &cost->points[cost->point_count - 1];
    wide_t least = cost_ticks(cost, bytes);
    for (uint32_t k = 0; k < cost->point_count; k++) {
        const wefti_bucket_point_t *point = &cost->points[k];
        if (point->bytes > 0) {
            wide_t ticks = (wide_t)bytes * point->ps * TICKS_PER_PS / point->bytes;
            least = ticks < least ? ticks : least;
        }
    }
    if (cost->point_count > 1) {
        wide_t rise = last->ps > last[-1].ps ? last->ps - last[-1].ps : 0;
        wide_t ticks = (wide_t)bytes * rise * TICKS_PER_PS / (last->bytes - last[-1].bytes);
        least = ticks < least ? ticks : least;
    }
    return (uint64_t)least;
}

static uint64_t lower_bound(const planner_t *p)
{
    uint64_t bound = 0;
    for (uint32_t j = 1; j <= p->n; j++) {
        uint64_t bytes = p->sums[p->n] - p->sums[j - 1];
        bound = later(bound, p->ready[j] + least_ticks(cost_of(p->params, 1), bytes));
    }
    return bound;
}

weft_status_t wefti_plan_buckets(const wefti_planner_params_t *params, wefti_arena_t *arena,
                                 wefti_bucket_plan_t *out_plan)
{
    planner_t p;
    wefti_bucket_plan_t plan = {0};
    WEFT_RETURN_IF_ERROR(check_params(params));
    WEFT_RETURN_IF_ERROR(planner_init(&p, params, arena));
    uint64_t *finish = wefti_arena_array(arena, (size_t)p.n + 1, sizeof(*finish));
    uint32_t *from = wefti_arena_array(arena, (size_t)p.n + 1, sizeof(*from));
    if (finish == NULL || from == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    layer(&p, finish, finish, from);
    plan.optimum_ps = plan.chosen_ps = finish[p.n] / TICKS_PER_PS;
    plan.lower_bound_ps = lower_bound(&p) / TICKS_PER_PS;
    WEFT_RETURN_IF_ERROR(follow(&p, from, arena, &plan.ends, &plan.bucket_count));
    plan.optimum_count = plan.bucket_count;
    if (params->alone == NULL) { /* else every bucket more costs copies, which compute runs */
        WEFT_RETURN_IF_ERROR(fewest(&p, finish[p.n] + finish[p.n] / 1000, arena, &plan));
    }
    *out_plan = plan;
    return WEFT_OK;
}

uint64_t wefti_buckets_finish_ps(const wefti_planner_params_t *params, const uint32_t *ends,
                                 uint32_t bucket_count, uint64_t *finish_ps)
{
    uint64_t ticks = 0;
    for (uint32_t b = 0; b < bucket_count; b++) {
        uint32_t first = b == 0 ? 0 : ends[b - 1];
        uint64_t bytes = 0;
        for (uint32_t i = first; i < ends[b]; i++) {
            bytes += params->items[i].bytes;
        }
        uint64_t ready = params->items[ends[b] - 1].ready_ps * TICKS_PER_PS;
        ticks = later(ticks, ready) + cost_ticks(cost_of(params, ends[b] - first), bytes);
        if (finish_ps != NULL) {
            finish_ps[b] = ticks / TICKS_PER_PS;
        }
    }
    return ticks / TICKS_PER_PS;
}

/* What a bucket costs beyond its bytes. */
static uint64_t startup_ticks(const wefti_bucket_cost_t *cost, uint64_t bytes)
{
    uint64_t least = NEVER, alpha = 0;
    for (uint32_t k = 0; k < cost->piece_count; k++) {
        uint64_t ticks = piece_ticks(&cost->pieces[k], bytes);
        if (ticks < least) {
            least = ticks;
            alpha = cost->pieces[k].alpha_ps * TICKS_PER_PS;
        }
    }
    return cost->point_count > 0 ? cost_ticks(cost, 0) : alpha;
}

uint32_t wefti_buckets_merge_rule(const wefti_planner_params_t *params, uint32_t *ends)
{
    uint32_t count = 0, first = 0;
    uint64_t free_at = 0, bytes = 0;
    for (uint32_t i = 0; i < params->item_count; i++) {
        const wefti_plan_item_t *item = &params->items[i], *next = item + 1;
        bytes += item->bytes;
        uint64_t start = later(free_at, item->ready_ps * TICKS_PER_PS);
        bool last = i + 1 == params->item_count;
        bool may = !last && (params->cap_bytes == 0 || bytes + next->bytes <= params->cap_bytes) &&
                   (params->first_with == NULL || params->first_with[i + 1] <= first);
        if (may && next->ready_ps * TICKS_PER_PS < start + startup_ticks(&params->cost, bytes)) {
            continue;
        }
        free_at = start + cost_ticks(&params->cost, bytes);
        ends[count++] = i + 1;
        first = i + 1;
        bytes = 0;
    }
    return count;
}
