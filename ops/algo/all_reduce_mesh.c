/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank 0: ready | wait ready of all | reduce share 0 of every copy into every copy | done | wait
 * done of all rank 1: ready | wait ready of all | reduce share 1 ...
 *
 * In place and without staging: nobody touches another rank's share, and "done of all" says both
 * that every share of the own copy is final and that no peer still reads it.
 */
#include "ops/algo/algo.h"

#define SHARE_BYTES 64u /* shares start on cache lines, so ranks never write the same line */

void wefti_all_reduce_mesh(const wefti_algo_params_t *params, wefti_algo_schedule_t *out_schedule)
{
    *out_schedule = (wefti_algo_schedule_t){0};
    out_schedule->phase_count = 2;
    if (params->group_size < 2) {
        return; /* the sum over one rank is that rank's */
    }
    uint64_t unit = SHARE_BYTES / params->elem_bytes;
    uint64_t units = params->elem_count / unit + (params->elem_count % unit != 0);
    uint64_t share = (units / params->group_size + (units % params->group_size != 0)) * unit;
    uint64_t begin = share * params->rank;
    begin = begin < params->elem_count ? begin : params->elem_count;
    uint64_t left = params->elem_count - begin;

    wefti_algo_step_t *step = out_schedule->steps;
    *step++ = (wefti_algo_step_t){WEFTI_ALGO_SIGNAL, 1, 0, 0, 0};
    *step++ = (wefti_algo_step_t){WEFTI_ALGO_WAIT, 1, WEFTI_ALGO_ALL_PEERS, 0, 0};
    if (left > 0) {
        *step++ = (wefti_algo_step_t){WEFTI_ALGO_REDUCE, 0, 0, begin, left < share ? left : share};
    }
    *step++ = (wefti_algo_step_t){WEFTI_ALGO_SIGNAL, 2, 0, 0, 0};
    *step++ = (wefti_algo_step_t){WEFTI_ALGO_WAIT, 2, WEFTI_ALGO_ALL_PEERS, 0, 0};
    out_schedule->step_count = (uint32_t)(step - out_schedule->steps);
}
