/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction orders: who can realise which, and reductions over all ranks in any of them. */
#include "ops/algo/algorithms.h"

#include <string.h>

const char *wefti_always_eligible(const weft_algo_params_t *params)
{
    (void)params;
    return NULL;
}

/* Blocks of one power of two, the last one at most as long: then both trees are the same. */
static bool blocks_are_subtrees(const weft_algo_params_t *params)
{
    uint32_t size = params->order_sizes[0];
    if (params->order_size_count == 1) {
        return true;
    }
    for (uint32_t i = 1; i < params->order_size_count; i++) {
        bool last = i + 1 == params->order_size_count;
        if (last ? params->order_sizes[i] > size : params->order_sizes[i] != size) {
            return false;
        }
    }
    return (size & (size - 1)) == 0;
}

const char *wefti_needs_tree(const weft_algo_params_t *params)
{
    if (params->order == WEFT_ORDER_BLOCKS && !blocks_are_subtrees(params)) {
        return WEFTI_REASON_ORDER;
    }
    return NULL;
}

const char *wefti_needs_any(const weft_algo_params_t *params)
{
    return params->order == WEFT_ORDER_ANY || params->group_size == 1 ? NULL : WEFTI_REASON_ORDER;
}

static bool by_blocks(const weft_algo_params_t *params)
{
    return params->order == WEFT_ORDER_BLOCKS && wefti_needs_tree(params) != NULL;
}

bool wefti_same_order(const weft_algo_params_t *a, const weft_algo_params_t *b)
{
    return a->order == b->order && a->order_size_count == b->order_size_count &&
           (a->order_size_count == 0 || memcmp(a->order_sizes, b->order_sizes,
                                               a->order_size_count * sizeof *a->order_sizes) == 0);
}

const char *wefti_any_order(const weft_algo_params_t *params)
{
    return by_blocks(params) && params->order_size_count > WEFTI_MAX_ORDER_BLOCKS
               ? "the group's order has more blocks than it can reduce at once"
               : NULL;
}

uint32_t wefti_ordered_slots(const weft_algo_params_t *params)
{
    return by_blocks(params) ? params->order_size_count : 0;
}

void wefti_reduce_ordered(const weft_algo_params_t *params, weft_schedule_builder_t *builder,
                          weft_place_t destinations, weft_algo_buffer_t buffer, uint32_t place,
                          uint32_t block, uint32_t first_slot)
{
    if (!by_blocks(params)) {
        weft_place_t all = wefti_at_each(0, params->group_size, buffer, place);
        weft_schedule_reduce(builder, 0, &destinations, 1, &all, 1, wefti_one(block), 1);
        return;
    }
    weft_place_t partial[WEFTI_MAX_ORDER_BLOCKS];
    uint32_t first = 0;
    for (uint32_t i = 0; i < params->order_size_count; i++) {
        uint32_t size = params->order_sizes[i];
        weft_place_t members = wefti_at_each(first, size, buffer, place);
        partial[i] = members;
        if (size > 1) {
            partial[i] = wefti_at(params->rank, WEFT_ALGO_BUFFER_SCRATCH, first_slot + i);
            weft_schedule_reduce(builder, 0, &partial[i], 1, &members, 1, wefti_one(block), 0);
        }
        first += size;
    }
    weft_schedule_reduce(builder, 0, &destinations, 1, partial, params->order_size_count,
                         wefti_one(block), 1);
}
