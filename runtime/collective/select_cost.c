/* SPDX-License-Identifier: Apache-2.0 */
/* By cost: the table is asked once for each operator, type size, kind of memory and size class. */
#include <string.h>

#include "runtime/context/context.h"
#include "runtime/collective/call.h"
#include "runtime/interpreter/proof.h"
#include "runtime/collective/select.h"

const weft_algorithm_t wefti_executors = {.name = "executors"};

/* Blocks of V forms as if all were of one size. */
static weft_status_t even_counts(const weft_group_t *group, weft_collective_t op,
                                 wefti_counts_t *counts, uint64_t **out_list)
{
    size_t n = wefti_collective_exchanges(op) ? (size_t)group->size * group->size : group->size;
    *out_list = wefti_alloc(group->context->allocator, n * sizeof **out_list);
    if (*out_list == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        (*out_list)[i] = counts->elem_count;
    }
    counts->counts = *out_list;
    return WEFT_OK;
}

/* Groups of very large worlds have room for few lanes. */
static bool has_room(const weft_group_t *group, const weft_algorithm_t *algorithm,
                     const weft_algo_params_t *params)
{
    weft_algo_resources_t resources = {0};
    wefti_algorithm_resources(algorithm, params, &resources);
    return resources.lanes <= wefti_area_lanes(group->endpoint->world_size);
}

/* Hosted groups open as few links as they can. */
static wefti_peers_t least_peers(const weft_group_t *group, const wefti_candidate_t *candidates,
                                 uint32_t count, const weft_algo_params_t *params)
{
    wefti_peers_t least = WEFTI_PEERS_ALL;
    for (uint32_t i = 0; i < count && wefti_group_is_hosted(group); i++) {
        wefti_peers_t peers = wefti_cost_peers(candidates[i].algorithm, params);
        bool fits =
            candidates[i].reason == NULL && has_room(group, candidates[i].algorithm, params);
        least = fits && peers < least ? peers : least;
    }
    return least;
}

static weft_status_t ask_table(weft_group_t *group, weft_collective_t op, uint32_t elem_bytes,
                               uint64_t bytes, bool plain, const weft_algorithm_t **out_algorithm)
{
    const weft_context_t *context = group->context;
    wefti_counts_t counts = {.elem_count = bytes / elem_bytes, .elem_bytes = elem_bytes};
    wefti_choice_t choice = {.plain = plain,
                             .executors = wefti_select_has_executors(group, op),
                             .registry = context->registry};
    wefti_candidate_t candidates[WEFTI_MAX_CANDIDATES];
    uint32_t count = 0;
    uint64_t *list = NULL;
    weft_algo_params_t params;
    wefti_select_params(group, op, 0, &params);
    weft_status_t status =
        wefti_collective_is_variable(op) ? even_counts(group, op, &counts, &list) : WEFT_OK;
    if (status == WEFT_OK) {
        status = wefti_cost_choose(&context->costs, &params, &counts, &choice, candidates, &count);
    }
    wefti_free(context->allocator, list);
    count = status == WEFT_OK ? count : 0;
    wefti_peers_t peers = least_peers(group, candidates, count, &params);
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        bool fits = candidates[i].reason == NULL &&
                    has_room(group, candidates[i].algorithm, &params) &&
                    wefti_cost_peers(candidates[i].algorithm, &params) <= peers;
        weft_status_t proof =
            !fits ? WEFT_ERR_UNSUPPORTED
                  : wefti_algorithm_prove_places(group->context, candidates[i].algorithm, &params);
        if (proof == WEFT_OK) {
            *out_algorithm = candidates[i].executor ? NULL : candidates[i].algorithm;
            break;
        }
        /* Nobody asked for an algorithm that is not proved: the next one is taken. But whoever has
         * no memory to prove it must not choose another one than the others. */
        status = proof == WEFT_ERR_NO_MEMORY ? proof : WEFT_OK;
    }
    return status;
}

static weft_status_t choose(weft_group_t *group, weft_collective_t op, uint32_t elem_bytes,
                            uint64_t bytes, bool plain, const weft_algorithm_t **out_algorithm)
{
    *out_algorithm = NULL;
    if (group->size == 1 || op == WEFT_COLLECTIVE_BARRIER) { /* a barrier needs call slots only */
        return WEFT_OK;
    }
    if (group->size <= WEFTI_MAX_PREDICTED_RANKS || group->context->costs.measured_count > 0) {
        return ask_table(group, op, elem_bytes, bytes, plain, out_algorithm);
    }
    if (!wefti_select_has_executors(group, op)) {
        weft_algo_params_t params;
        wefti_select_params(group, op, 0, &params);
        *out_algorithm = wefti_group_is_hosted(group) ? wefti_cost_few_peers(&params, bytes)
                                                      : wefti_cost_few_steps(&params);
    }
    return WEFT_OK;
}

weft_status_t wefti_select_by_cost(weft_group_t *group, weft_collective_t op, uint32_t elem_bytes,
                                   uint64_t bytes, bool plain,
                                   const weft_algorithm_t **out_algorithm)
{
    uint32_t elem = (uint32_t)__builtin_ctz(elem_bytes);
    uint32_t size = 63u - (uint32_t)__builtin_clzll(bytes | elem_bytes);
    const weft_algorithm_t **chosen = &group->calls->selection.by_cost[op][elem][size][plain];
    if (*chosen == NULL) {
        const weft_algorithm_t *algorithm;
        WEFT_RETURN_IF_ERROR(choose(group, op, elem_bytes, (uint64_t)1 << size, plain, &algorithm));
        *chosen = algorithm != NULL ? algorithm : &wefti_executors;
    }
    *out_algorithm = *chosen != &wefti_executors ? *chosen : NULL;
    return WEFT_OK;
}
