/* SPDX-License-Identifier: Apache-2.0 */
/*
 * root:   ready                                  | wait done of all
 * others: wait root ready | copy from root | done
 */
#include "ops/algo/algo.h"

void wefti_broadcast_mesh(const wefti_algo_params_t *params, wefti_algo_schedule_t *out_schedule)
{
    *out_schedule = (wefti_algo_schedule_t){0};
    out_schedule->phase_count = 2;
    if (params->group_size < 2) {
        return;
    }
    wefti_algo_step_t *step = out_schedule->steps;
    if (params->rank == params->root) {
        *step++ = (wefti_algo_step_t){WEFTI_ALGO_SIGNAL, 1, 0, 0, 0};
        *step++ = (wefti_algo_step_t){WEFTI_ALGO_WAIT, 2, WEFTI_ALGO_ALL_PEERS, 0, 0};
    } else {
        *step++ = (wefti_algo_step_t){WEFTI_ALGO_WAIT, 1, params->root, 0, 0};
        *step++ = (wefti_algo_step_t){WEFTI_ALGO_COPY, 0, params->root, 0, params->elem_count};
        *step++ = (wefti_algo_step_t){WEFTI_ALGO_SIGNAL, 2, 0, 0, 0};
    }
    out_schedule->step_count = (uint32_t)(step - out_schedule->steps);
}
