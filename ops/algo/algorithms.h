/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of algorithms share, and the tables they fill. */
#ifndef WEFT_OPS_ALGO_ALGORITHMS_H
#define WEFT_OPS_ALGO_ALGORITHMS_H

#include <stdbool.h>

#include <weft/algo.h>

#define WEFTI_MAX_ORDER_BLOCKS 256u
#define WEFTI_REASON_ORDER "it cannot realise the group's reduction order"

static inline weft_place_t wefti_at(uint32_t rank, weft_algo_buffer_t buffer, uint32_t block)
{
    return (weft_place_t){rank, 1, buffer, block, 1};
}

static inline weft_place_t wefti_at_each(uint32_t rank, uint32_t ranks, weft_algo_buffer_t buffer,
                                         uint32_t block)
{
    return (weft_place_t){rank, ranks, buffer, block, 1};
}

static inline weft_blocks_t wefti_one(uint32_t block)
{
    return (weft_blocks_t){block, 1, 1};
}

/* Smallest k with 2^k >= n. */
static inline uint32_t wefti_log2_ceil(uint32_t n)
{
    uint32_t k = 0;
    while ((uint64_t)1 << k < n) {
        k++;
    }
    return k;
}

/* (rank + offset) mod size, offset below size */
static inline uint32_t wefti_next(uint32_t rank, uint32_t offset, uint32_t size)
{
    return (uint32_t)(((uint64_t)rank + offset) % size);
}

static inline void wefti_wait(weft_schedule_builder_t *builder, uint32_t rank, uint32_t phase)
{
    weft_schedule_wait(builder, 0, rank, 1, 0, phase, 0);
}

static inline void wefti_wait_all(weft_schedule_builder_t *builder,
                                  const weft_algo_params_t *params, uint32_t phase)
{
    weft_schedule_wait(builder, 0, 0, params->group_size, 0, phase, 0);
}

/* Own blocks from the send to the receive buffer, where these are not the same. */
static inline void wefti_copy_own(const weft_algo_params_t *params,
                                  weft_schedule_builder_t *builder, weft_blocks_t blocks)
{
    if (!params->in_place) {
        weft_place_t from = {params->rank, 1, WEFT_ALGO_BUFFER_SEND, blocks.first, blocks.step};
        weft_place_t to = {params->rank, 1, WEFT_ALGO_BUFFER_RECV, blocks.first, blocks.step};
        weft_schedule_copy(builder, 0, to, from, blocks);
    }
}

const char *wefti_always_eligible(const weft_algo_params_t *params);
/* NULL when the group's order is the in-order tree, or is left open. */
const char *wefti_needs_tree(const weft_algo_params_t *params);
/* NULL for every order that wefti_reduce_ordered can realise. */
const char *wefti_any_order(const weft_algo_params_t *params);
bool wefti_same_order(const weft_algo_params_t *a, const weft_algo_params_t *b);
/* NULL when the order is left open. */
const char *wefti_needs_any(const weft_algo_params_t *params);

/*
 * Reduces block of buffer over all ranks in the group's order, into destinations of users' buffers.
 * Orders by blocks need wefti_ordered_slots() slots of scratch from first_slot.
 */
void wefti_reduce_ordered(const weft_algo_params_t *params, weft_schedule_builder_t *builder,
                          weft_place_t destinations, weft_algo_buffer_t buffer, uint32_t place,
                          uint32_t block, uint32_t first_slot);
uint32_t wefti_ordered_slots(const weft_algo_params_t *params);

/* All built-in algorithms, in the order in which ties are decided. */
typedef struct wefti_algorithm_list {
    const weft_algorithm_t *algorithms;
    size_t count;
} wefti_algorithm_list_t;

extern const wefti_algorithm_list_t wefti_mesh_copy_algorithms;
extern const wefti_algorithm_list_t wefti_mesh_reduce_algorithms;
extern const wefti_algorithm_list_t wefti_one_shot_algorithms;
extern const wefti_algorithm_list_t wefti_ring_algorithms;
extern const wefti_algorithm_list_t wefti_doubling_algorithms;
extern const wefti_algorithm_list_t wefti_halving_algorithms;
extern const wefti_algorithm_list_t wefti_bruck_algorithms;
extern const wefti_algorithm_list_t wefti_log_step_algorithms;
extern const wefti_algorithm_list_t wefti_binomial_algorithms;
extern const wefti_algorithm_list_t wefti_pairwise_algorithms;
extern const wefti_algorithm_list_t wefti_chain_algorithms;
extern const wefti_algorithm_list_t wefti_direct_algorithms;
extern const wefti_algorithm_list_t wefti_hierarchical_algorithms;
extern const wefti_algorithm_list_t wefti_levels_algorithms;

#define WEFTI_ALGORITHM(op_, name_, doc_, eligible_, resources_, build_)                           \
    {                                                                                              \
        WEFT_ALGO_ABI_VERSION, op_, name_, doc_, eligible_, resources_, build_                     \
    }
#define WEFTI_ALGORITHM_LIST(list, table)                                                          \
    const wefti_algorithm_list_t list = {table, sizeof(table) / sizeof(*(table))}

#endif
