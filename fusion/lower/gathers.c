/* SPDX-License-Identifier: Apache-2.0 */
/* The plan collective of an AllGather of weights, or of a piece of it. */
#include "fusion/lower/lower.h"

#include "runtime/base/error.h"

/* Buckets are planned without them: they take no time from the reduce-scatters, but from a step. */
static void count_gather(wefti_plan_forecast_t *forecast, uint64_t ps)
{
    forecast->comm_ps += forecast->row_count > 0 ? ps : 0;
    forecast->comm_slow_ps[0] += forecast->row_count > 0 ? ps + ps / 5 : 0;
    forecast->comm_slow_ps[1] += forecast->row_count > 0 ? 2 * ps : 0;
}

weft_status_t wefti_lower_gather(wefti_lowering_t *l, uint32_t command,
                                 wefti_plan_collective_t *collective)
{
    weft_status_t status;
    uint32_t index = l->commands[command].bucket;
    wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[l->commands[command].node];
    const char *reason = wefti_node_text(node, "reason");
    wefti_arena_t *arena = &l->plan->arena;
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
        .reason = wefti_arena_printf(arena, "gathers the updated weights of bucket %u%s%s", index,
                                     reason[0] == '\0' ? "" : ", ", reason)};
    if (collective->name == NULL || members == NULL || collective->reason == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        members[i] = l->buffer_of[bucket->members[i].param];
    }
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, wefti_lower_range_bytes(bucket)),
             fail);
    wefti_lower_predict(collective,
                        l->params->shard_cost == NULL ? NULL : &l->params->shard_cost->all_gather,
                        wefti_lower_range_bytes(bucket));
    WEFT_TRY(status, wefti_lower_take_algorithms(l, node, collective), fail);
    count_gather(&l->plan->forecast, collective->algorithms[0].predicted_ps);
fail:
    return status;
}
