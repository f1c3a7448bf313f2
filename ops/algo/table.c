/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/table.h"

#include <string.h>

#include "ops/algo/algorithms.h"
#include "runtime/base/error.h"

static const wefti_algorithm_list_t *const lists[] = {
    &wefti_mesh_copy_algorithms,    &wefti_mesh_reduce_algorithms, &wefti_one_shot_algorithms,
    &wefti_doubling_algorithms,     &wefti_halving_algorithms,     &wefti_ring_algorithms,
    &wefti_bruck_algorithms,        &wefti_log_step_algorithms,    &wefti_binomial_algorithms,
    &wefti_pairwise_algorithms,     &wefti_chain_algorithms,       &wefti_direct_algorithms,
    &wefti_hierarchical_algorithms, &wefti_levels_algorithms,
};

const weft_algorithm_t *wefti_algorithm_at(size_t index)
{
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (index < lists[i]->count) {
            return &lists[i]->algorithms[index];
        }
        index -= lists[i]->count;
    }
    return NULL;
}

const weft_algorithm_t *wefti_algorithm_find(weft_collective_t op, const char *name)
{
    const weft_algorithm_t *algorithm;
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op == op && strcmp(algorithm->name, name) == 0) {
            return algorithm;
        }
    }
    return NULL;
}

const char *wefti_algorithm_order_refusal(const weft_algorithm_t *algorithm,
                                          const weft_algo_params_t *params)
{
    weft_algo_params_t any = *params;
    any.order = WEFT_ORDER_ANY;
    return wefti_algorithm_reason(algorithm, &any) == NULL
               ? wefti_algorithm_reason(algorithm, params)
               : NULL;
}

weft_status_t wefti_schedules_build(const weft_algorithm_t *algorithm,
                                    const weft_algo_params_t *params,
                                    const weft_allocator_t *allocator,
                                    wefti_schedule_t **out_schedules)
{
    weft_status_t status = WEFT_OK;
    weft_algo_params_t own = *params;
    *out_schedules = NULL;
    if (params->group_size == 0 || params->group_size > WEFTI_MAX_GROUP) {
        own.rank = 0;
        wefti_schedule_t none;
        return wefti_schedule_build(algorithm, &own, allocator, &none);
    }
    wefti_rank_numbers_t numbers;
    WEFT_RETURN_IF_ERROR(wefti_rank_numbers_init(&numbers, params));
    wefti_schedule_t *schedules = wefti_alloc(allocator, params->group_size * sizeof *schedules);
    if (schedules == NULL) {
        wefti_rank_numbers_deinit(&numbers);
        return WEFT_ERR_NO_MEMORY;
    }
    for (own.rank = 0; own.rank < params->group_size && status >= 0; own.rank++) {
        status = wefti_schedule_build_numbered(algorithm, &own, &numbers, allocator,
                                               &schedules[own.rank]);
        if (status >= 0) {
            status = wefti_schedule_same_resources(algorithm, &schedules[0], &schedules[own.rank]);
        }
    }
    wefti_rank_numbers_deinit(&numbers);
    if (status < 0) {
        wefti_schedules_free(allocator, schedules, params->group_size);
        return status;
    }
    *out_schedules = schedules;
    return WEFT_OK;
}

void wefti_schedules_free(const weft_allocator_t *allocator, wefti_schedule_t *schedules,
                          uint32_t count)
{
    for (uint32_t i = 0; schedules != NULL && i < count; i++) {
        wefti_schedule_deinit(&schedules[i]);
    }
    wefti_free(allocator, schedules);
}
