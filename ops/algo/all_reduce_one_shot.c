/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small all-reduce: copy into scratch | ready | wait ready of all | reduce all copies.
 *
 * One wait instead of two: scratch has two sets that runs use in turn. Who writes a set again has,
 * in the run between, waited for all others, and these had finished the run before that.
 */
#include "ops/algo/algorithms.h"

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = 1;
    out->scratch_slots = 1 + wefti_ordered_slots(params);
    out->scratch_sets = 2;
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t r = params->rank;
    if (params->group_size == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    weft_place_t own = wefti_at(r, WEFT_ALGO_BUFFER_SEND, 0);
    weft_place_t shown = wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, 0);
    weft_schedule_reduce(b, 0, &shown, 1, &own, 1, wefti_one(0), 0);
    weft_schedule_post(b, 0, 1);
    wefti_wait_all(b, params, 1);
    wefti_reduce_ordered(params, b, wefti_at(r, WEFT_ALGO_BUFFER_RECV, 0), WEFT_ALGO_BUFFER_SCRATCH,
                         0, 0, 1);
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_REDUCE, "one-shot",
                    "every rank reduces everything, after one wait", wefti_any_order, resources,
                    build),
};
WEFTI_ALGORITHM_LIST(wefti_one_shot_algorithms, table);
