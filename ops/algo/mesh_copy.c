/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct: whoever needs a block reads it where it lies.
 *
  *   every rank: ready | wait for each owner and copy from it | done | wait for all readers
 *
 * Each rank starts with its neighbour, so that ranks do not all read one owner at once.
 */
#include "ops/algo/algorithms.h"

static void two_phases(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 2;
}

static void all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    weft_schedule_post(b, 0, 1);
    wefti_copy_own(params, b, wefti_one(params->rank));
    for (uint32_t i = 1; i < n; i++) {
        uint32_t peer = wefti_next(params->rank, i, n);
        wefti_wait(b, peer, 1);
        weft_schedule_copy(b, 0, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, peer),
                           wefti_at(peer, WEFT_ALGO_BUFFER_SEND, peer), wefti_one(peer));
    }
    weft_schedule_post(b, 0, 2);
    wefti_wait_all(b, params, 2);
}

static void gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    if (params->rank != params->root) {
        weft_schedule_post(b, 0, 1);
        wefti_wait(b, params->root, 2);
        return;
    }
    wefti_copy_own(params, b, wefti_one(params->rank));
    for (uint32_t i = 1; i < n; i++) {
        uint32_t peer = wefti_next(params->rank, i, n);
        wefti_wait(b, peer, 1);
        weft_schedule_copy(b, 0, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, peer),
                           wefti_at(peer, WEFT_ALGO_BUFFER_SEND, peer), wefti_one(peer));
    }
    weft_schedule_post(b, 0, 2);
}

/* Broadcast moves the only block, scatter that of the rank. */
static void from_root(const weft_algo_params_t *params, weft_schedule_builder_t *b, uint32_t block)
{
    if (params->group_size == 1) {
        wefti_copy_own(params, b, wefti_one(block));
        return;
    }
    if (params->rank == params->root) {
        weft_schedule_post(b, 0, 1);
        wefti_copy_own(params, b, wefti_one(block));
        /* Two waits, for the root itself posts no second phase. */
        weft_schedule_wait(b, 0, 0, params->root, 0, 2, 0);
        if (params->root + 1 < params->group_size) {
            weft_schedule_wait(b, 0, params->root + 1, params->group_size - params->root - 1, 0, 2,
                               0);
        }
        return;
    }
    wefti_wait(b, params->root, 1);
    weft_schedule_copy(b, 0, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, block),
                       wefti_at(params->root, WEFT_ALGO_BUFFER_SEND, block), wefti_one(block));
    weft_schedule_post(b, 0, 2);
}

static void broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    from_root(params, b, 0);
}

static void scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    from_root(params, b, params->rank);
}

/* In place every block would be overwritten before its reader came, so scratch takes a copy. */
static void all_to_all_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = 2;
    out->scratch_slots = params->in_place ? params->group_size : 0;
}

static void all_to_all(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    weft_algo_buffer_t buffer = params->in_place ? WEFT_ALGO_BUFFER_SCRATCH : WEFT_ALGO_BUFFER_SEND;
    if (params->in_place) {
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, 0),
                           wefti_at(r, WEFT_ALGO_BUFFER_SEND, 0), (weft_blocks_t){r * n, 1, n});
    }
    weft_schedule_post(b, 0, 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t peer = wefti_next(r, i, n);
        wefti_wait(b, peer, 1);
        if (i > 0 || !params->in_place) {
            weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_RECV, peer),
                               wefti_at(peer, buffer, r), wefti_one(peer * n + r));
        }
    }
    weft_schedule_post(b, 0, 2);
    wefti_wait_all(b, params, 2);
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER, "mesh", "every rank reads every rank's block",
                    wefti_always_eligible, two_phases, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER_V, "mesh", "every rank reads every rank's block",
                    wefti_always_eligible, two_phases, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_GATHER, "mesh", "the root reads every rank's block",
                    wefti_always_eligible, two_phases, gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_SCATTER, "mesh", "every rank reads its block from the root",
                    wefti_always_eligible, two_phases, scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BROADCAST, "mesh", "every rank reads from the root",
                    wefti_always_eligible, two_phases, broadcast),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_TO_ALL, "mesh",
                    "every rank reads its block from every rank", wefti_always_eligible,
                    all_to_all_resources, all_to_all),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_TO_ALL_V, "mesh",
                    "every rank reads its block from every rank", wefti_always_eligible,
                    all_to_all_resources, all_to_all),
};
WEFTI_ALGORITHM_LIST(wefti_mesh_copy_algorithms, table);
