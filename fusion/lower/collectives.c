/* SPDX-License-Identifier: Apache-2.0 */
/* Plan collectives: one per command, in the order of the comm stream, then those of init. */
#include "fusion/lower/lower.h"

#include <string.h>

#include "ops/collective.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

static const char *text_attr(const wefti_node_t *node, const char *name)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    return attr != NULL && attr->type == WEFT_ATTR_TYPE_STRING && attr->s != NULL ? attr->s : "";
}

static weft_status_t read_reduction(const wefti_node_t *node, weft_reduction_t *out)
{
    const weft_attr_t *attr = wefti_node_attr(node, "reduction");
    *out = WEFT_REDUCTION_SUM;
    if (attr == NULL) {
        return WEFT_OK;
    }
    for (int r = WEFT_REDUCTION_SUM; attr->type == WEFT_ATTR_TYPE_STRING && r <= WEFT_REDUCTION_MAX;
         r++) {
        if (strcmp(attr->s, weft_reduction_name((weft_reduction_t)r)) == 0) {
            *out = (weft_reduction_t)r;
            return WEFT_OK;
        }
    }
    return wefti_error(
        WEFT_ERR_INVALID_ARGUMENT,
        "node '%s' (%s): attribute 'reduction' must be sum, avg, prod, min or max: '%.60s'",
        node->name, node->def->name, attr->type == WEFT_ATTR_TYPE_STRING ? attr->s : "");
}

/* Buckets are planned without them: they take no time from the reduce-scatters, but from a step. */
static void count_gather(wefti_plan_forecast_t *forecast, uint64_t ps)
{
    forecast->comm_ps += forecast->row_count > 0 ? ps : 0;
    forecast->comm_slow_ps[0] += forecast->row_count > 0 ? ps + ps / 5 : 0;
    forecast->comm_slow_ps[1] += forecast->row_count > 0 ? 2 * ps : 0;
}

/* Buffers of the tensors of a range. */
static weft_status_t add_members(wefti_lowering_t *l, wefti_plan_collective_t *collective,
                                 const wefti_bucket_t *bucket, const wefti_node_t *gather)
{
    collective->members =
        wefti_arena_array(&l->plan->arena, bucket->member_count, sizeof(*collective->members));
    WEFT_RETURN_IF_NO_MEMORY(collective->members);
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_member_t *member = &bucket->members[i];
        uint32_t value = gather == NULL     ? member->sent
                         : bucket->gathered ? gather->outputs[i]
                                            : member->param;
        if (value != WEFTI_NONE) {
            collective->members[collective->member_count++] = l->buffers->of[value];
        }
    }
    return WEFT_OK;
}

/* Where the gathered weights of a bucket go: to their region, or to memory that is reused. */
static weft_status_t gathered_range(wefti_lowering_t *l, uint32_t index, uint32_t node,
                                    uint32_t *out_buffer)
{
    if (!l->buckets->list[index].gathered) {
        return wefti_lower_param_range(l, index, out_buffer);
    }
    char *name = wefti_arena_printf(&l->arena, "weights %u, gathered", index);
    return name == NULL
               ? WEFT_ERR_NO_MEMORY
               : wefti_lower_add_piece(l, name, l->ranges->of_gather[node], index, out_buffer);
}

/* Why the bucket ends where it does, which is the text of a pass; then how it is updated. */
static const char *bucket_reason(wefti_lowering_t *l, uint32_t index)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    const char *reason = text_attr(node, "reason"), *split = text_attr(node, "split_reason");
    const char *whole = text_attr(node, "shard_reason"), *cost = text_attr(node, "cost_reason");
    const char *first = reason[0] != '\0' ? reason : "from the graph";
    if (bucket->parts > 1) {
        first = wefti_arena_printf(&l->arena, "piece %u of %u of %s%s%s", bucket->part + 1,
                                   bucket->parts, l->graph->values[bucket->members[0].value].name,
                                   split[0] != '\0' ? ", which " : "", split);
    }
    if (first == NULL || !bucket->sharded) {
        return first == NULL ? NULL
                             : wefti_arena_printf(&l->plan->arena, "%s%s%s", first,
                                                  whole[0] != '\0' ? "; " : "", whole);
    }
    char size[32];
    wefti_format_bytes(wefti_lower_range_bytes(l, index) / l->buckets->shards, size);
    return wefti_arena_printf(&l->plan->arena, "%s; each rank %s %s of it%s%s%s%s", first,
                              bucket->fused ? "reduces, updates and sends" : "reduces and updates",
                              size,
                              cost[0] == '\0' ? ""
                              : bucket->fused ? ": "
                                              : "; ",
                              cost, whole[0] != '\0' ? "; " : "", whole);
}

/* What a bucket reduces: all of the range to all ranks, or to each rank its shard; fused, new
 * weights are the result. */
static weft_status_t add_bucket(wefti_lowering_t *l, uint32_t index,
                                wefti_plan_collective_t *collective)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    bool scatters = bucket->sharded && !bucket->fused;
    const wefti_bucket_cost_t *cost = l->params->bucket_cost;
    if (scatters) {
        cost = l->params->shard_cost == NULL ? NULL : &l->params->shard_cost->reduce_scatter;
    }
    collective->op = scatters ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE;
    collective->dtype = wefti_lower_grad_dtype(l, bucket);
    collective->group = (uint32_t)wefti_node_int(node, "group");
    collective->name = wefti_arena_printf(&l->plan->arena, "bucket %u", index);
    collective->reason = bucket_reason(l, index);
    WEFT_RETURN_IF_ERROR(read_reduction(node, &collective->reduction));
    char *name = wefti_arena_printf(&l->arena, "bucket %u gradients", index);
    WEFT_RETURN_IF_ERROR(name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK);
    WEFT_RETURN_IF_ERROR(wefti_lower_grad_range(l, name, index, true, &collective->source));
    uint64_t bytes = l->plan->buffers[collective->source].size_bytes;
    collective->elem_count = bytes / weft_dtype_size_bytes(collective->dtype);
    collective->buffer = collective->source;
    if (scatters) {
        WEFT_RETURN_IF_ERROR(wefti_lower_grad_shard(l, index, &collective->buffer));
        collective->elem_count /= l->buckets->shards;
    } else if (bucket->fused) {
        WEFT_RETURN_IF_ERROR(wefti_lower_param_range(l, index, &collective->buffer));
        collective->update = l->kernels->of_bucket[index];
    }
    WEFT_RETURN_IF_ERROR(add_members(l, collective, bucket, NULL));
    bytes = bucket->sharded ? wefti_lower_range_bytes(l, index) : bytes;
    WEFT_RETURN_IF_ERROR(wefti_lower_add_algorithms(l, node, collective, bytes, cost));
    for (uint32_t i = 0; bucket->fused && i < collective->algorithm_count; i++) {
        collective->algorithms[i].predicted_ps = (uint64_t)wefti_node_int(node, "predicted_ps");
    }
    return WEFT_OK;
}

/* Gathers the weights of a bucket. */
static weft_status_t add_gather(wefti_lowering_t *l, uint32_t index, uint32_t id,
                                wefti_plan_collective_t *collective)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    const wefti_node_t *node = &l->graph->nodes[id];
    const char *reason = text_attr(node, "reason");
    WEFT_RETURN_IF_ERROR(wefti_lower_param_shard(l, index, &collective->source));
    WEFT_RETURN_IF_ERROR(gathered_range(l, index, id, &collective->buffer));
    collective->op = WEFT_COLLECTIVE_ALL_GATHER;
    collective->dtype = wefti_lower_param_dtype(l, bucket);
    collective->elem_count = wefti_lower_range_bytes(l, index) / l->buckets->shards /
                             weft_dtype_size_bytes(collective->dtype);
    collective->name = wefti_arena_printf(&l->plan->arena, "weights %u", index);
    collective->reason = wefti_arena_printf(
        &l->plan->arena, "gathers the %sweights of bucket %u%s%s",
        bucket->gathered ? "" : "updated ", index, reason[0] == '\0' ? "" : ", ", reason);
    WEFT_RETURN_IF_ERROR(add_members(l, collective, bucket, node));
    WEFT_RETURN_IF_ERROR(wefti_lower_add_algorithms(
        l, node, collective, wefti_lower_range_bytes(l, index),
        l->params->shard_cost == NULL ? NULL : &l->params->shard_cost->all_gather));
    count_gather(&l->plan->forecast, collective->algorithms[0].predicted_ps);
    return WEFT_OK;
}

/* A collective on an activation: from one buffer to another, or in place. */
static weft_status_t add_activation(wefti_lowering_t *l, const wefti_command_t *command,
                                    const wefti_node_t *node, wefti_plan_collective_t *collective)
{
    wefti_arena_t *arena = &l->plan->arena;
    const char *reason = text_attr(node, "reason");
    uint32_t from = node->inputs[command->part], ranks = wefti_lower_axis(l, node).size;
    collective->group = (uint32_t)wefti_node_int(node, "group");
    collective->op = (weft_collective_t)wefti_op_facts(node->def).collective;
    collective->buffer = l->buffers->of[node->outputs[command->part]];
    collective->source = l->buffers->of[from];
    collective->dtype = l->plan->buffers[collective->buffer].dtype;
    if (wefti_collective_rooted(collective->op)) {
        collective->root = (uint32_t)wefti_node_int(node, "root");
    }
    collective->elem_count = wefti_value_bytes(&l->graph->values[from]) /
                             weft_dtype_size_bytes(l->graph->values[from].type.dtype) /
                             wefti_side_blocks(wefti_collective_of(collective->op)->send, ranks);
    WEFT_RETURN_IF_ERROR(read_reduction(node, &collective->reduction));
    collective->name = command->parts > 1
                           ? wefti_arena_printf(arena, "%s %u", node->name, command->part)
                           : wefti_arena_strdup(arena, node->name);
    collective->reason = wefti_arena_strdup(arena, reason[0] != '\0' ? reason : "from the graph");
    collective->members = wefti_arena_memdup(arena, &collective->buffer, sizeof(uint32_t));
    collective->member_count = 1;
    WEFT_RETURN_IF_ERROR(collective->members == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK);
    return wefti_lower_add_algorithms(
        l, node, collective, l->plan->buffers[collective->buffer].size_bytes,
        collective->op == WEFT_COLLECTIVE_ALL_REDUCE ? l->params->bucket_cost : NULL);
}

/* Has parameter end the type of the one before it, and lies right behind it? Where gradients travel
 * as bf16 there may be a unit of padding between them. */
static bool continues(const wefti_lowering_t *l, uint32_t end)
{
    const wefti_plan_buffer_t *last = &l->plan->buffers[end - 1], *next = &l->plan->buffers[end];
    uint64_t begin = l->regions->param_begin;
    uint64_t unit = l->buckets->half ? 2 * WEFTI_PLAN_ALIGNMENT : WEFTI_PLAN_ALIGNMENT;
    return next->dtype == last->dtype && last->size_bytes > 0 && next->size_bytes > 0 &&
           next->offset_bytes - begin ==
               wefti_align_up(last->offset_bytes - begin + last->size_bytes, unit);
}

/* Broadcasts a run of parameters of one type that lie side by side, in the order of their
 * buffers. */
static weft_status_t add_broadcast(wefti_lowering_t *l, const wefti_node_t *node, uint32_t begin,
                                   uint32_t end, wefti_plan_collective_t *collective)
{
    wefti_arena_t *arena = &l->plan->arena;
    const wefti_plan_buffer_t *first = &l->plan->buffers[begin], *last = &l->plan->buffers[end - 1];
    uint64_t offset = first->offset_bytes;
    uint64_t bytes =
        wefti_align_up(last->offset_bytes + last->size_bytes - offset, WEFTI_PLAN_ALIGNMENT);
    collective->op = WEFT_COLLECTIVE_BROADCAST;
    collective->dtype = first->dtype;
    WEFT_RETURN_IF_ERROR(wefti_lower_add_range(l, "all parameters", first->dtype, offset, bytes,
                                               &collective->buffer));
    collective->source = collective->buffer;
    collective->elem_count = bytes / weft_dtype_size_bytes(collective->dtype);
    collective->name = wefti_arena_strdup(arena, node->name);
    collective->reason = wefti_arena_strdup(arena, text_attr(node, "reason"));
    collective->member_count = end - begin;
    collective->members =
        wefti_arena_array(arena, collective->member_count, sizeof(*collective->members));
    WEFT_RETURN_IF_ERROR(collective->members == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK);
    for (uint32_t i = begin; i < end; i++) {
        collective->members[i - begin] = i;
    }
    return wefti_lower_add_algorithms(l, node, collective, bytes, NULL);
}

/* A record that the caller fills in. */
static wefti_plan_collective_t *next_collective(wefti_lowering_t *l)
{
    wefti_plan_collective_t *collective = &l->plan->collectives[l->plan->collective_count++];
    collective->update = WEFTI_PLAN_NONE;
    return collective;
}

static weft_status_t check_record(weft_status_t status, const wefti_plan_collective_t *collective)
{
    return status >= 0 && (collective->name == NULL || collective->reason == NULL)
               ? WEFT_ERR_NO_MEMORY
               : status;
}

/* The Broadcast of init for weights of this type. */
static const wefti_node_t *broadcast_of(const wefti_lowering_t *l, const wefti_program_t *init,
                                        weft_dtype_t dtype)
{
    const wefti_node_t *node = &l->graph->nodes[init->nodes[0]];
    for (uint32_t i = 0; i < init->node_count; i++) {
        const wefti_node_t *at = &l->graph->nodes[init->nodes[i]];
        if (l->graph->values[at->inputs[0]].type.dtype == dtype) {
            return at;
        }
    }
    return node;
}

/* The collectives of init: Broadcasts of all weights. Their buffers are the first of the plan. */
static weft_status_t add_broadcasts(wefti_lowering_t *l, uint32_t param_count)
{
    const wefti_program_t *init = wefti_graph_find_program(l->graph, "init");
    if (init == NULL || init->node_count == 0) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < init->node_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[init->nodes[i]];
        const weft_op_facts_t facts = wefti_op_facts(node->def);
        if (facts.collective != WEFT_COLLECTIVE_BROADCAST || facts.half == WEFT_HALF_WAIT) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "program 'init': node '%s' (%s): only Broadcast is supported",
                               node->name, node->def->name);
        }
    }
    for (uint32_t begin = 0, end; begin < param_count; begin = end) {
        for (end = begin + 1; end < param_count && continues(l, end);) {
            end++;
        }
        if (l->plan->buffers[begin].size_bytes > 0 &&
            l->plan->buffers[begin].offset_bytes < WEFTI_PLAN_NOWHERE) {
            const wefti_node_t *node = broadcast_of(l, init, l->plan->buffers[begin].dtype);
            wefti_plan_collective_t *collective = next_collective(l);
            WEFT_RETURN_IF_ERROR(
                check_record(add_broadcast(l, node, begin, end, collective), collective));
        }
    }
    return WEFT_OK;
}

static weft_status_t add_command(wefti_lowering_t *l, uint32_t index)
{
    const wefti_command_t *command = &l->order->commands[index];
    const wefti_node_t *node = &l->graph->nodes[command->node];
    uint32_t bucket = wefti_lower_command_bucket(l, index);
    wefti_plan_collective_t *collective = next_collective(l);
    weft_status_t status = bucket == WEFTI_NONE ? add_activation(l, command, node, collective)
                           : wefti_node_is_flat_gather(node)
                               ? add_gather(l, bucket, command->node, collective)
                               : add_bucket(l, bucket, collective);
    collective->place = wefti_lower_place_of(l, command->node);
    return check_record(status, collective);
}

weft_status_t wefti_lower_collectives(wefti_lowering_t *l)
{
    uint32_t param_count = 0;
    while (param_count < l->plan->buffer_count &&
           l->plan->buffers[param_count].kind == WEFTI_BUFFER_PARAM) {
        param_count++;
    }
    l->plan->collectives =
        wefti_arena_array(&l->plan->arena, (size_t)l->order->command_count + param_count,
                          sizeof(*l->plan->collectives));
    WEFT_RETURN_IF_NO_MEMORY(l->plan->collectives);
    for (uint32_t c = 0; c < l->order->command_count; c++) {
        WEFT_RETURN_IF_ERROR(add_command(l, c));
    }
    return add_broadcasts(l, param_count);
}
