/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the operators: which buffers exist where, what overlaps in place. */
#include "ops/algo/schedule.h"

#include <string.h>

typedef struct fact {
    const char *name;
    bool reduces, rooted;
} fact_t;

static const fact_t facts[] = {
#define FACT(name, value, text, reduces, rooted) [value] = {text, reduces, rooted},
    WEFT_COLLECTIVE_MAP(FACT)
#undef FACT
};

bool wefti_collective_known(weft_collective_t op)
{
    return (size_t)op < sizeof facts / sizeof *facts && facts[op].name != NULL;
}

const char *weft_collective_name(weft_collective_t op)
{
    return wefti_collective_known(op) ? facts[op].name : "unknown";
}

weft_collective_t wefti_collective_from_name(const char *name)
{
    for (size_t op = 1; op < sizeof facts / sizeof *facts; op++) {
        if (facts[op].name != NULL && strcmp(facts[op].name, name) == 0) {
            return (weft_collective_t)op;
        }
    }
    return (weft_collective_t)0;
}

bool wefti_collective_reduces(weft_collective_t op)
{
    return wefti_collective_known(op) && facts[op].reduces;
}

bool wefti_collective_rooted(weft_collective_t op)
{
    return wefti_collective_known(op) && facts[op].rooted;
}

bool wefti_collective_is_vector(weft_collective_t op)
{
    return op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE || op == WEFT_OP_BROADCAST ||
           op == WEFT_OP_SEND_RECV;
}

uint32_t wefti_block_count(const weft_algo_params_t *params, const weft_algo_resources_t *resources)
{
    if (params->op == WEFT_OP_BARRIER) {
        return 0;
    }
    return wefti_collective_is_vector(params->op) ? resources->blocks : params->group_size;
}

static bool send_blocks(const weft_algo_params_t *params, uint32_t rank, uint32_t blocks,
                        uint32_t *out_first, uint32_t *out_count)
{
    *out_first = 0;
    *out_count = blocks;
    switch (params->op) {
    case WEFT_OP_BROADCAST:
    case WEFT_OP_SCATTER:
    case WEFT_OP_SEND_RECV:
        return rank == params->root;
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_ALL_GATHER_V:
    case WEFT_OP_GATHER:
        *out_first = rank;
        *out_count = 1;
        return true;
    case WEFT_OP_BARRIER:
        return false;
    default:
        return true;
    }
}

static bool recv_blocks(const weft_algo_params_t *params, uint32_t rank, uint32_t blocks,
                        uint32_t *out_first, uint32_t *out_count)
{
    *out_first = 0;
    *out_count = blocks;
    switch (params->op) {
    case WEFT_OP_REDUCE:
    case WEFT_OP_GATHER:
        return rank == params->root;
    case WEFT_OP_SEND_RECV:
        return rank == params->peer;
    case WEFT_OP_REDUCE_SCATTER:
    case WEFT_OP_REDUCE_SCATTER_V:
    case WEFT_OP_SCATTER:
        *out_first = rank;
        *out_count = 1;
        return true;
    case WEFT_OP_BARRIER:
        return false;
    default:
        return true;
    }
}

bool wefti_buffer_blocks(const weft_algo_params_t *params, const weft_algo_resources_t *resources,
                         uint32_t rank, wefti_place_buffer_t buffer, uint32_t *out_first,
                         uint32_t *out_count)
{
    uint32_t blocks = wefti_block_count(params, resources);
    switch (buffer) {
    case WEFTI_SEND:
        return send_blocks(params, rank, blocks, out_first, out_count);
    case WEFTI_RECV:
        return recv_blocks(params, rank, blocks, out_first, out_count);
    case WEFTI_SCRATCH:
        *out_first = 0;
        *out_count = resources->scratch_slots;
        return *out_count > 0;
    default:
        return false;
    }
}

bool wefti_in_place_alias(const weft_algo_params_t *params, uint32_t rank, uint32_t send_block,
                          uint32_t *out_recv_block)
{
    *out_recv_block = send_block;
    switch (params->op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_ALL_TO_ALL:
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_ALL_GATHER_V:
        return true;
    case WEFT_OP_BROADCAST:
    case WEFT_OP_REDUCE:
    case WEFT_OP_GATHER:
        return rank == params->root;
    case WEFT_OP_REDUCE_SCATTER:
    case WEFT_OP_REDUCE_SCATTER_V:
        return send_block == rank;
    case WEFT_OP_SCATTER:
        return rank == params->root && send_block == rank;
    default:
        return false;
    }
}
