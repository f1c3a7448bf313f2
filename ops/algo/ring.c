/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring: every rank reads from its left neighbour only, N - 1 steps per direction of the data. Sums
 * start at another rank for every block, so reductions need order=any.
 */
#include "ops/algo/algorithms.h"

static uint32_t left_of(const weft_algo_params_t *params)
{
    return wefti_next(params->rank, params->group_size - 1, params->group_size);
}

static uint32_t right_of(const weft_algo_params_t *params)
{
    return wefti_next(params->rank, 1, params->group_size);
}

static void gather_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = params->group_size;
    out->by_placement = 1;
}

/* Step s brings block r - s. Phase: blocks that have arrived, the own one counted. */
static void all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t left = left_of(params);
    weft_schedule_post(b, 0, 1);
    wefti_copy_own(params, b, wefti_one(params->rank));
    for (uint32_t s = 1; s < n; s++) {
        uint32_t block = wefti_next(params->rank, n - s, n);
        weft_algo_buffer_t buffer = s == 1 ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV;
        wefti_wait(b, left, s);
        weft_schedule_copy(b, 0, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, block),
                           wefti_at(left, buffer, block), wefti_one(block));
        weft_schedule_post(b, 0, s + 1);
    }
    wefti_wait(b, right_of(params), n);
}

static void scatter_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    uint32_t n = params->group_size;
    out->blocks = n;
    out->phases = params->op == WEFT_COLLECTIVE_ALL_REDUCE ? 2 * n - 1 : n;
    out->scratch_slots = n > 2 ? n - 2 : 0;
    out->by_placement = 1;
}

/* The sum of block b starts at rank b + 1 and arrives at rank b: step s adds to block r - 1 - s. */
static void reduce_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    uint32_t left = left_of(params);
    if (n == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    weft_schedule_post(b, 0, 1);
    for (uint32_t s = 1; s < n; s++) {
        uint32_t block = wefti_next(r, n - 1 - s, n);
        weft_place_t sources[2] = {s == 1 ? wefti_at(left, WEFT_ALGO_BUFFER_SEND, block)
                                          : wefti_at(left, WEFT_ALGO_BUFFER_SCRATCH, s - 2),
                                   wefti_at(r, WEFT_ALGO_BUFFER_SEND, block)};
        weft_place_t sum = s + 1 == n ? wefti_at(r, WEFT_ALGO_BUFFER_RECV, block)
                                      : wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, s - 1);
        wefti_wait(b, left, s);
        weft_schedule_reduce(b, 0, &sum, 1, sources, 2, wefti_one(block), s + 1 == n);
        weft_schedule_post(b, 0, s + 1);
    }
    if (params->op != WEFT_COLLECTIVE_ALL_REDUCE) {
        wefti_wait(b, right_of(params), n);
    }
}

static void all_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t left = left_of(params);
    reduce_scatter(params, b);
    for (uint32_t s = 1; s < n; s++) {
        uint32_t block = wefti_next(params->rank, n - s, n);
        wefti_wait(b, left, n - 1 + s);
        weft_schedule_copy(b, 0, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, block),
                           wefti_at(left, WEFT_ALGO_BUFFER_RECV, block), wefti_one(block));
        weft_schedule_post(b, 0, n + s);
    }
    if (n > 1) {
        wefti_wait(b, right_of(params), 2 * n - 1);
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_REDUCE, "ring",
                    "shards travel round twice: summed, then copied", wefti_needs_any,
                    scatter_resources, all_reduce),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER, "ring", "shards travel round and are summed",
                    wefti_needs_any, scatter_resources, reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER_V, "ring", "shards travel round and are summed",
                    wefti_needs_any, scatter_resources, reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER, "ring", "blocks travel round",
                    wefti_always_eligible, gather_resources, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER_V, "ring", "blocks travel round",
                    wefti_always_eligible, gather_resources, all_gather),
};
WEFTI_ALGORITHM_LIST(wefti_ring_algorithms, table);
