/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipelined chain: root -> root + 1 -> ... -> root - 1, piece after piece. Each rank passes a piece
 * on while the next one is coming.
 */
#include "ops/algo/algorithms.h"

#define DEFAULT_PIECES 8u
#define MAX_PIECES 1024u

static uint32_t pieces_of(const weft_algo_params_t *params)
{
    return params->pieces > 0 ? params->pieces : DEFAULT_PIECES;
}

static const char *eligible(const weft_algo_params_t *params)
{
    return params->pieces > MAX_PIECES ? "it cuts into at most 1024 pieces" : NULL;
}

/* Phase p + 1: piece p is there; only what a rank passes on is posted. */
static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->blocks = out->phases = pieces_of(params);
    out->by_placement = 1;
}

static void broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    uint32_t pieces = pieces_of(params);
    uint32_t before = wefti_next(params->rank, n - 1, n);
    uint32_t after = wefti_next(params->rank, 1, n);
    if (params->rank == params->root) {
        weft_schedule_post(b, 0, pieces);
        wefti_copy_own(params, b, (weft_blocks_t){0, 1, pieces});
    } else {
        weft_algo_buffer_t buffer =
            before == params->root ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV;
        for (uint32_t p = 0; p < pieces; p++) {
            wefti_wait(b, before, p + 1);
            weft_schedule_copy(b, 0, wefti_at(params->rank, WEFT_ALGO_BUFFER_RECV, p),
                               wefti_at(before, buffer, p), wefti_one(p));
            weft_schedule_post(b, 0, p + 1);
        }
    }
    if (after != params->root) {
        wefti_wait(b, after, pieces);
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BROADCAST, "chain", "pieces travel from rank to rank", eligible,
                    resources, broadcast),
};
WEFTI_ALGORITHM_LIST(wefti_chain_algorithms, table);
