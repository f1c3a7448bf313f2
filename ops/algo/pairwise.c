/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairwise exchange: in step s ranks read from the rank s lower (a power of two of ranks: the rank
 * whose number differs in the bits of s), all in step with their partners, so that no link carries
 * two blocks at once.
 */
#include "ops/algo/algorithms.h"

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = params->group_size;
    out->scratch_slots = params->in_place ? params->group_size : 0;
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t r = params->rank;
    bool xor = (n & (n - 1)) == 0;
    weft_algo_buffer_t buffer = params->in_place ? WEFT_ALGO_BUFFER_SCRATCH : WEFT_ALGO_BUFFER_SEND;
    if (params->in_place && n > 1) {
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_SCRATCH, 0),
                           wefti_at(r, WEFT_ALGO_BUFFER_SEND, 0), (weft_blocks_t){r * n, 1, n});
    }
    if (!params->in_place) {
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_RECV, r),
                           wefti_at(r, WEFT_ALGO_BUFFER_SEND, r), wefti_one(r * n + r));
    }
    for (uint32_t s = 1; s < n; s++) {
        uint32_t from = xor? r ^ s : wefti_next(r, n - s, n);
        weft_schedule_post(b, 0, s);
        wefti_wait(b, from, s);
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_BUFFER_RECV, from),
                           wefti_at(from, buffer, r), wefti_one(from * n + r));
    }
    weft_schedule_post(b, 0, n);
    wefti_wait_all(b, params, n);
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_TO_ALL, "pairwise", "one partner after the other, in step",
                    wefti_always_eligible, resources, build),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_TO_ALL_V, "pairwise",
                    "one partner after the other, in step", wefti_always_eligible, resources,
                    build),
};
WEFTI_ALGORITHM_LIST(wefti_pairwise_algorithms, table);
