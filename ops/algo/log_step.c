/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-step with shrinking distance, for any group size: distances h1 = ceil(n/2), h2 = ceil(h1/2),
 * ..., 1.
 *
 * All-gather: a rank holds the blocks at offsets S from its own, S = {0} at first. A step at
 * distance h adds S + h, read from the rank h further. Gaps between offsets are at most h after the
 * step, so none are left after h = 1. Most data moves at the last, shortest distances, where Bruck
 * moves it at the longest. A reduce-scatter is the same backwards: its sums follow no tree, so it
 * needs order=any.
 */
#include "ops/algo/algorithms.h"

#include <string.h>

#include "ops/algo/schedule.h"

#define MAX_RANKS 4096u
#define MAX_LEVELS 12u

typedef struct offsets {
    uint32_t levels;
    uint32_t distance[MAX_LEVELS];
    uint8_t level_of[MAX_RANKS]; /* the step that adds an offset, 0 for the own block */
} offsets_t;

static const char *eligible_size(const weft_algo_params_t *params)
{
    return params->group_size > MAX_RANKS ? "it is made for up to 4096 ranks" : NULL;
}

static const char *eligible_reduction(const weft_algo_params_t *params)
{
    const char *reason = wefti_needs_any(params);
    return reason != NULL ? reason : eligible_size(params);
}

static void find_offsets(uint32_t n, offsets_t *out)
{
    out->levels = 0;
    memset(out->level_of, UINT8_MAX, n);
    out->level_of[0] = 0;
    for (uint32_t h = n; h > 1;) {
        h = (h + 1) / 2;
        uint32_t level = ++out->levels;
        out->distance[level - 1] = h;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t to = wefti_next(i, h, n);
            if (out->level_of[i] < level && out->level_of[to] == UINT8_MAX) {
                out->level_of[to] = (uint8_t)level;
            }
        }
    }
}

static void gather_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = wefti_log2_ceil(params->group_size) + 1;
    out->by_placement = 1;
}

static void all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    offsets_t offsets;
    find_offsets(n, &offsets);
    wefti_copy_own(params, b, wefti_one(r));
    weft_schedule_post(b, 0, 1);
    for (uint32_t level = 1; level <= offsets.levels; level++) {
        uint32_t from = wefti_next(r, offsets.distance[level - 1], n);
        wefti_wait(b, from, level);
        for (uint32_t i = 1; i < n; i++) {
            if (offsets.level_of[i] == level) {
                uint32_t block = wefti_next(r, i, n);
                weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_RECV, block),
                                   wefti_at(from, WEFT_ALGO_BUFFER_RECV, block), wefti_one(block));
            }
        }
        weft_schedule_post(b, 0, level + 1);
    }
    for (uint32_t level = 1; level <= offsets.levels; level++) {
        wefti_wait(b, wefti_next(r, n - offsets.distance[level - 1], n), level + 1);
    }
}

/* A sum has a slot for every step that may add to it: offset * levels + level. */
static void scatter_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    uint32_t levels = wefti_log2_ceil(params->group_size);
    out->phases = levels + 1;
    out->scratch_slots = params->group_size * levels;
    out->by_placement = 1;
}

/* Where rank has the sum for the block at this offset before step level (counted downwards) adds to
 * it. */
static weft_place_t sum_at(const offsets_t *offsets, uint32_t n, uint32_t rank, uint32_t offset,
                           uint32_t level)
{
    for (uint32_t above = level + 1; above <= offsets->levels; above++) {
        /* The last addition before: at step above, from the offset that step added. */
        uint32_t from = wefti_next(offset, offsets->distance[above - 1], n);
        if (offsets->level_of[from] == above && offsets->level_of[offset] < above) {
            return wefti_at(rank, WEFT_ALGO_BUFFER_SCRATCH, offset * offsets->levels + above - 1);
        }
    }
    return wefti_at(rank, WEFT_ALGO_BUFFER_SEND, wefti_next(rank, offset, n));
}

/* The step that adds last to the own block. */
static uint32_t last_addition(const offsets_t *offsets)
{
    for (uint32_t level = 1; level <= offsets->levels; level++) {
        if (offsets->level_of[offsets->distance[level - 1]] == level) {
            return level;
        }
    }
    return 0;
}

static void reduce_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    uint32_t phase = 1;
    offsets_t offsets;
    find_offsets(n, &offsets);
    if (n == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    weft_schedule_post(b, 0, phase);
    for (uint32_t level = offsets.levels; level > 0; level--, phase++) {
        uint32_t h = offsets.distance[level - 1];
        uint32_t from = wefti_next(r, n - h, n);
        wefti_wait(b, from, phase);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t theirs = wefti_next(i, h, n); /* the block's offset seen from there */
            if (offsets.level_of[theirs] != level || offsets.level_of[i] >= level) {
                continue;
            }
            uint32_t block = wefti_next(r, i, n);
            bool last = i == 0 && level == last_addition(&offsets);
            weft_place_t sources[2] = {sum_at(&offsets, n, r, i, level),
                                       sum_at(&offsets, n, from, theirs, level)};
            weft_place_t sum =
                last ? wefti_at(r, WEFT_ALGO_BUFFER_RECV, r)
                     : wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, i * offsets.levels + level - 1);
            weft_schedule_reduce(b, 0, &sum, 1, sources, 2, wefti_one(block), last);
        }
        weft_schedule_post(b, 0, phase + 1);
    }
    phase = 1;
    for (uint32_t level = offsets.levels; level > 0; level--, phase++) {
        wefti_wait(b, wefti_next(r, offsets.distance[level - 1], n), phase + 1);
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER, "log-step",
                    "held blocks double at shrinking distance", eligible_size, gather_resources,
                    all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER_V, "log-step",
                    "held blocks double at shrinking distance", eligible_size, gather_resources,
                    all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER, "log-step", "sums halve at growing distance",
                    eligible_reduction, scatter_resources, reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER_V, "log-step", "sums halve at growing distance",
                    eligible_reduction, scatter_resources, reduce_scatter),
};
WEFTI_ALGORITHM_LIST(wefti_log_step_algorithms, table);
