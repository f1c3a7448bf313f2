/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Square sums of a sharded plan (graph/clip.c). The chain in front of the all-reduce sums a rank's
 * shards, what comes behind it the gradients that every rank has whole.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

bool wefti_lower_is_square_sum(const wefti_node_t *node)
{
    return wefti_op_has(node->def, WEFT_FACT_ACCUMULATES);
}

static bool behind_all_reduce(const wefti_lowering_t *l, const wefti_node_t *node)
{
    uint32_t producer =
        node->inputs[0] == WEFTI_NONE ? WEFTI_NONE : l->graph->values[node->inputs[0]].producer;
    return producer != WEFTI_NONE && l->bucket_of[producer] != WEFTI_NONE;
}

/* The bucket whose result value is, or WEFTI_NONE. */
static uint32_t bucket_of(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t producer = l->graph->values[value].producer;
    return producer == WEFTI_NONE ? WEFTI_NONE : l->bucket_of[producer];
}

/* The shards of all pieces that value's bucket has. */
static weft_status_t add_shards(wefti_lowering_t *l, uint32_t first, uint32_t value,
                                wefti_plan_kernel_t *kernel)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t part = 0; part < l->buckets[first].parts; part++) {
        WEFT_TRY(status,
                 wefti_lower_shard_operand(l, first + part, value,
                                           &kernel->inputs[kernel->input_count++]),
                 fail);
    }
fail:
    return status;
}

weft_status_t wefti_lower_square_sum(wefti_lowering_t *l, const wefti_node_t *node,
                                     wefti_plan_kernel_t *kernel)
{
    weft_status_t status = WEFT_OK;
    bool whole = behind_all_reduce(l, node);
    size_t most = 1;
    for (uint32_t j = 1; j < node->input_count; j++) {
        uint32_t bucket = bucket_of(l, node->inputs[j]);
        most += bucket == WEFTI_NONE ? 1 : l->buckets[bucket].parts;
    }
    kernel->inputs = wefti_arena_array(&l->plan->arena, most, sizeof(*kernel->inputs));
    if (kernel->inputs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    kernel->inputs[0] =
        node->inputs[0] == WEFTI_NONE ? WEFTI_PLAN_NONE : l->buffer_of[node->inputs[0]];
    kernel->input_count = 1;
    for (uint32_t j = 1; j < node->input_count; j++) {
        uint32_t value = node->inputs[j], bucket = bucket_of(l, value);
        bool sharded = bucket != WEFTI_NONE && l->buckets[bucket].sharded;
        if (!sharded && whole) {
            kernel->inputs[kernel->input_count++] = l->buffer_of[value];
        } else if (sharded && !whole && value == l->buckets[bucket].members[0].reduced) {
            WEFT_TRY(status, add_shards(l, bucket, value, kernel), fail); /* of all members */
        }
    }
fail:
    return status;
}
