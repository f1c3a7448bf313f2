/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan collectives that gather the weights of sharded buckets, with the pieces of their
 * reduce-scatters.
 *
 * With decouple they run at the start of the next step, in the order of first use in the forward
 * pass (program.c), and a step ends without a barrier. This is safe for two reasons: a peer writes
 * weights only after it has started its next step, when no kernel reads the old ones; and a shard
 * is updated only after all peers have sent gradients, so after they have gathered it. Program
 * flush gathers all weights for readers outside of a step. With 4 or more micro-batches, where
 * micro_step runs several times, flush runs before the first.
 */
#include "fusion/lower/lower.h"

#include "runtime/base/error.h"

/* Buckets are planned without them: they take no time from the reduce-scatters, but from a step. */
static void count_gather(wefti_plan_forecast_t *forecast, uint64_t ps)
{
    forecast->comm_ps += forecast->row_count > 0 ? ps : 0;
    forecast->comm_slow_ps[0] += forecast->row_count > 0 ? ps + ps / 5 : 0;
    forecast->comm_slow_ps[1] += forecast->row_count > 0 ? 2 * ps : 0;
}

static const char *gather_reason(wefti_lowering_t *l, uint32_t index)
{
    uint32_t due = l->buckets[index].due;
    wefti_arena_t *arena = &l->plan->arena;
    if (!l->params->decouple) {
        return wefti_arena_printf(arena, "gathers the updated weights of bucket %u", index);
    }
    return wefti_arena_printf(arena, "gathers the updated weights of bucket %u, which %s%s", index,
                              due < l->item_count ? "are read first by "
                                                  : "no kernel reads before the next update",
                              due < l->item_count ? l->graph->nodes[l->items[due].node].name : "");
}

static weft_status_t add_gather(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status;
    wefti_bucket_t *bucket = &l->buckets[index];
    wefti_arena_t *arena = &l->plan->arena;
    wefti_plan_collective_t *collective = &l->plan->collectives[l->plan->collective_count];
    uint32_t *members = wefti_arena_array(arena, bucket->member_count, sizeof(*members));
    WEFT_TRY(status, wefti_lower_param_shard(l, index), fail);
    WEFT_TRY(status, wefti_lower_param_range(l, index), fail);
    *collective = (wefti_plan_collective_t){
        .name = wefti_arena_printf(arena, "weights %u", index),
        .op = WEFT_COLLECTIVE_ALL_GATHER,
        .dtype = wefti_lower_param_dtype(l, bucket),
        .buffer = bucket->param_range,
        .source = bucket->param_shard,
        .elem_count = wefti_lower_range_bytes(bucket) / l->shards /
                      weft_dtype_size_bytes(wefti_lower_param_dtype(l, bucket)),
        .update = WEFTI_PLAN_NONE,
        .member_count = bucket->member_count,
        .members = members,
        .reason = gather_reason(l, index)};
    if (collective->name == NULL || members == NULL || collective->reason == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        members[i] = l->buffer_of[bucket->members[i].param];
    }
    bucket->gather = l->plan->collective_count++;
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, wefti_lower_range_bytes(bucket)),
             fail);
    wefti_lower_predict(collective,
                        l->params->shard_cost == NULL ? NULL : &l->params->shard_cost->all_gather,
                        wefti_lower_range_bytes(bucket));
    WEFT_TRY(status,
             wefti_lower_take_algorithms(l, &l->graph->nodes[bucket->gather_node], collective),
             fail);
    count_gather(&l->plan->forecast, collective->algorithms[0].predicted_ps);
fail:
    return status;
}

/* When weights are due that are gathered in the step behind their update. */
static weft_status_t find_due(wefti_lowering_t *l)
{
    uint32_t *first = wefti_arena_array(&l->arena, l->graph->value_count, sizeof(*first));
    if (first == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        first[v] = l->item_count;
    }
    for (uint32_t i = l->item_count; i-- > 0;) {
        const wefti_node_t *node = &l->graph->nodes[l->items[i].node];
        for (uint32_t j = 0; node->phase != WEFTI_PHASE_UPDATE && j < node->input_count; j++) {
            if (node->inputs[j] != WEFTI_NONE) {
                first[node->inputs[j]] = i;
            }
        }
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        wefti_bucket_t *bucket = &l->buckets[b];
        bucket->due = l->item_count;
        for (uint32_t i = 0; bucket->sharded && i < bucket->member_count; i++) {
            uint32_t item = first[bucket->members[i].param];
            bucket->due = item < bucket->due ? item : bucket->due;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_gathers(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    if (l->params->decouple) {
        WEFT_TRY(status, find_due(l), fail);
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (l->buckets[b].sharded && !l->buckets[b].fused) {
            WEFT_TRY(status, add_gather(l, b), fail);
        }
    }
fail:
    return status;
}
