/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bruck: ceil(log2 n) steps for any group size.
 *
 * All-gather: after step k a rank holds the 2^k blocks from its own on; it reads the next 2^k from
 * the rank 2^k further. Blocks land in their final places, so nothing is rotated.
 *
 * All-to-all: item i of a rank goes to the rank i further. It hops 2^k ranks at every bit k of i,
 * together with all items that have that bit. The first hop reads the send buffer, the last writes
 * the receive buffer, and every hop between has a slot of its own, so nothing is overwritten before
 * its reader came.
 */
#include "ops/algo/algorithms.h"

static void gather_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = wefti_log2_ceil(params->group_size) + 1;
}

static void all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    uint32_t levels = wefti_log2_ceil(n);
    wefti_copy_own(params, b, wefti_one(r));
    weft_schedule_post(b, 0, 1);
    for (uint32_t k = 0; k < levels; k++) {
        uint32_t have = 1u << k;
        uint32_t from = wefti_next(r, have, n);
        uint32_t count = n - have < have ? n - have : have;
        wefti_wait(b, from, k + 1);
        while (count > 0) { /* one range, or two where it wraps */
            uint32_t first = wefti_next(r, have, n);
            uint32_t range = n - first < count ? n - first : count;
            weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_RECV, first),
                               wefti_at(from, WEFT_ALGO_BUFFER_RECV, first),
                               (weft_blocks_t){first, 1, range});
            have += range;
            count -= range;
        }
        weft_schedule_post(b, 0, k + 2);
    }
    for (uint32_t k = 0; k < levels; k++) {
        wefti_wait(b, wefti_next(r, n - (1u << k), n), k + 2); /* who read from here */
    }
}

/* Slots before those of item i: an item has one per hop but the last. */
static uint32_t slots_before(uint32_t item)
{
    uint32_t slots = 0;
    for (uint32_t i = 1; i < item; i++) {
        slots += (uint32_t)__builtin_popcount(i) - 1;
    }
    return slots;
}

static void exchange_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    uint32_t n = params->group_size;
    out->phases = wefti_log2_ceil(n) + 1;
    out->scratch_slots = slots_before(n) + (params->in_place ? n : 0);
}

/* Where rank has item i before the hop at bit k. */
static weft_place_t item_at(const weft_algo_params_t *params, uint32_t rank, uint32_t item,
                            uint32_t slot, uint32_t k)
{
    uint32_t n = params->group_size;
    uint32_t hops = (uint32_t)__builtin_popcount(item & ((1u << k) - 1));
    if (hops > 0) {
        return wefti_at(rank, WEFT_ALGO_BUFFER_SCRATCH, slot + hops - 1);
    }
    uint32_t to = wefti_next(rank, item, n);
    return params->in_place ? wefti_at(rank, WEFT_ALGO_BUFFER_SCRATCH, slots_before(n) + to)
                            : wefti_at(rank, WEFT_ALGO_BUFFER_SEND, to);
}

static void exchange(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    uint32_t levels = wefti_log2_ceil(n);
    if (params->in_place && n > 1) {
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, slots_before(n)),
                           wefti_at(r, WEFT_ALGO_BUFFER_SEND, 0), (weft_blocks_t){r * n, 1, n});
    }
    wefti_copy_own(params, b, wefti_one(r));
    weft_schedule_post(b, 0, 1);
    for (uint32_t k = 0; k < levels; k++) {
        uint32_t from = wefti_next(r, n - (1u << k), n);
        uint32_t slot = 0;
        wefti_wait(b, from, k + 1);
        for (uint32_t item = 1; item < n; item++) {
            uint32_t hops = (uint32_t)__builtin_popcount(item);
            if (item >> k & 1) {
                uint32_t done = (uint32_t)__builtin_popcount(item & ((2u << k) - 1));
                weft_place_t to =
                    done == hops ? wefti_at(r, WEFT_ALGO_BUFFER_RECV, wefti_next(r, n - item, n))
                                 : wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, slot + done - 1);
                weft_schedule_copy(b, 0, to, item_at(params, from, item, slot, k), wefti_one(r));
            }
            slot += hops - 1;
        }
        weft_schedule_post(b, 0, k + 2);
    }
    for (uint32_t k = 0; k < levels; k++) {
        wefti_wait(b, wefti_next(r, 1u << k, n), k + 2);
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER, "bruck", "held blocks double at growing distance",
                    wefti_always_eligible, gather_resources, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER_V, "bruck", "held blocks double at growing distance",
                    wefti_always_eligible, gather_resources, all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_TO_ALL, "bruck",
                    "blocks hop along the bits of their distance", wefti_always_eligible,
                    exchange_resources, exchange),
};
WEFTI_ALGORITHM_LIST(wefti_bruck_algorithms, table);
