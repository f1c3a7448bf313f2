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
    char *name = wefti_arena_printf(&l->arena, "weights %u, gathered", index);
    if (name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_lower_param_shard(l, index), fail);
    uint32_t range;
    if (bucket->gathered) {
        WEFT_TRY(status, wefti_lower_gathered_range(l, name, command, &range), fail);
    } else {
        WEFT_TRY(status, wefti_lower_param_range(l, index), fail);
        range = bucket->param_range;
    }
    *collective = (wefti_plan_collective_t){
        .name = wefti_arena_printf(arena, "weights %u", index),
        .op = WEFT_COLLECTIVE_ALL_GATHER,
        .dtype = wefti_lower_param_dtype(l, bucket),
        .buffer = range,
        .source = bucket->param_shard,
        .elem_count = wefti_lower_range_bytes(bucket) / l->shards /
                      weft_dtype_size_bytes(wefti_lower_param_dtype(l, bucket)),
        .update = WEFTI_PLAN_NONE,
        .members = members,
        .reason = wefti_arena_printf(arena, "gathers the %sweights of bucket %u%s%s",
                                     bucket->gathered ? "" : "updated ", index,
                                     reason[0] == '\0' ? "" : ", ", reason)};
    if (collective->name == NULL || members == NULL || collective->reason == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        uint32_t value = bucket->gathered ? node->outputs[i] : bucket->members[i].param;
        if (value != WEFTI_NONE) {
            members[collective->member_count++] = l->buffer_of[value];
        }
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
