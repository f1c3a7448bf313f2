/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm executes a group's collectives, the first of the four steps (choose,
 * resources, build, submit): what the user asked for, else what the cost table says.
 *
 * Whatever goes into it is known to all ranks alike before the call (the signature, which also says
 * what was asked for) or after the call slots, so all choose the same.
 */
#ifndef WEFT_RUNTIME_SELECT_H
#define WEFT_RUNTIME_SELECT_H

#include "runtime/context/context.h"

extern const weft_algorithm_t wefti_executors; /* only its address is of use */

struct weft_group;

/* Part of a group. */
typedef struct wefti_selection {
    wefti_wanted_t wanted;
    weft_algo_params_t params; /* order and hosts; operator, root, rank and in place are a call's */
    uint32_t *order_sizes;     /* of params; WEFT_ORDER_BLOCKS */
    uint32_t *lists;           /* [4 * size] of params: host_of, host_sizes, rail_of, rack_of */
    bool executors_reduce;     /* the hand-written executors reduce in this order */
    /* What calls say of all this in their signature, per operator: bits of wefti_what(), and all of
     * it, for call slots without data. */
    uint64_t what[WEFTI_OPS];
    uint64_t digest[WEFTI_OPS];
    /* By cost: [operator][log2 of the element][log2 of the bytes][plain memory]; NULL: not chosen
     * yet; &wefti_executors stands for the executors. */
    const weft_algorithm_t *by_cost[WEFTI_OPS][4][64][2];
} wefti_selection_t;

/* Of a new group: as parent's (NULL: the settings). WEFT_ORDER that does not fit is an error. */
weft_status_t wefti_select_init(struct weft_group *group, const struct weft_group *parent);
void wefti_select_deinit(struct weft_group *group);
/* Ranks of blocks. */
static inline uint64_t wefti_select_sum(const uint32_t *sizes, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += sizes[i];
    }
    return sum;
}
/* What the program asks for; no call is in flight. */
weft_status_t wefti_select_order(struct weft_group *group, weft_order_t order,
                                 const uint32_t *sizes, uint32_t count);
void wefti_select_algorithm(struct weft_group *group, weft_collective_t op,
                            const weft_algorithm_t *algorithm);
/* The executors can do the operator at all: loads and stores, and the group's order. */
bool wefti_select_has_executors(const struct weft_group *group, weft_collective_t op);
/* Everything of a call that algorithms may look at, but for rank and in place. */
void wefti_select_params(const struct weft_group *group, weft_collective_t op, uint32_t root,
                         weft_algo_params_t *out_params);
/*
 * By cost, for blocks (or a vector) of bytes: *out_algorithm NULL: the executors. plain: some
 * rank's memory is not reached by its peers. The first time in a size class it asks the table and
 * may allocate.
 */
weft_status_t wefti_select_by_cost(struct weft_group *group, weft_collective_t op,
                                   uint32_t elem_bytes, uint64_t bytes, bool plain,
                                   const weft_algorithm_t **out_algorithm);
/* Of an algorithm's name, as the signature has it under order=tree. */
uint16_t wefti_select_hash(const char *name);
/* " by ring, order blocks" of a signature, or "". Returns buffer. */
const char *wefti_select_text(const weft_context_t *context, uint64_t what, char *buffer,
                              size_t bytes);

#endif
