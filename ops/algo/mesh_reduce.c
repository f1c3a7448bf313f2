/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct reductions, in place and without staging: rank r owns shard r.
 *
 *   ready | wait ready of all | reduce shard r of every copy into where it is wanted | done | wait
 *
 * Nobody touches another rank's shard, and "done of all" says both that every shard of the own copy
 * is final and that no peer still reads it. An all-reduce is thus one pass.
 */
#include "ops/algo/algorithms.h"

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = 2;
    out->blocks = params->group_size;
    out->scratch_slots = wefti_ordered_slots(params);
}

static void reduce_shard(const weft_algo_params_t *params, weft_schedule_builder_t *b,
                         weft_place_t destinations)
{
    if (params->group_size == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    weft_schedule_post(b, 0, 1);
    wefti_wait_all(b, params, 1);
    wefti_reduce_ordered(params, b, destinations, WEFT_ALGO_BUFFER_SEND, params->rank, params->rank,
                         0);
    weft_schedule_post(b, 0, 2);
    wefti_wait_all(b, params, 2);
}

static void all_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    reduce_shard(params, b,
                 wefti_at_each(0, params->group_size, WEFT_ALGO_BUFFER_RECV, params->rank));
}

static void reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    reduce_shard(params, b, wefti_at(params->root, WEFT_ALGO_BUFFER_RECV, params->rank));
}

static void reduce_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    reduce_shard(params, b, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, params->rank));
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_REDUCE, "mesh",
                    "every rank reduces its shard of all copies into all copies", wefti_any_order,
                    resources, all_reduce),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE, "mesh",
                    "every rank reduces its shard into the root's copy", wefti_any_order, resources,
                    reduce),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER, "mesh",
                    "every rank reduces its shard of all copies", wefti_any_order, resources,
                    reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER_V, "mesh",
                    "every rank reduces its shard of all copies", wefti_any_order, resources,
                    reduce_scatter),
};
WEFTI_ALGORITHM_LIST(wefti_mesh_reduce_algorithms, table);
