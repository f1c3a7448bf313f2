/* SPDX-License-Identifier: Apache-2.0 */
/* Send and receive between two ranks; the dissemination barrier. */
#include "ops/algo/algorithms.h"

static void two_phases(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 2;
}

static void send_recv(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    if (params->rank == params->root) {
        weft_schedule_post(b, 0, 1);
        wefti_wait(b, params->peer, 2);
    } else if (params->rank == params->peer) {
        wefti_wait(b, params->root, 1);
        weft_schedule_copy(b, 0, wefti_at(params->peer, WEFT_ALGO_BUFFER_RECV, 0),
                           wefti_at(params->root, WEFT_ALGO_BUFFER_SEND, 0), wefti_one(0));
        weft_schedule_post(b, 0, 2);
    }
}

static void barrier_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = wefti_log2_ceil(params->group_size);
}

/* After step k a rank has heard, through others, from the 2^(k+1) ranks up to its own. */
static void barrier(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    for (uint32_t k = 0; k < wefti_log2_ceil(n); k++) {
        weft_schedule_post(b, 0, k + 1);
        wefti_wait(b, wefti_next(params->rank, n - (1u << k), n), k + 1);
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_SEND_RECV, "direct", "the receiver reads from the sender",
                    wefti_always_eligible, two_phases, send_recv),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BARRIER, "dissemination", "news doubles in log2 n steps",
                    wefti_always_eligible, barrier_resources, barrier),
};
WEFTI_ALGORITHM_LIST(wefti_direct_algorithms, table);
