/* SPDX-License-Identifier: Apache-2.0 */
/* Plan collectives: one per bucket, in the order of the comm stream, then the broadcasts of rank
 * 0's weights, unless ranks have weights of their own. */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

static const char *text_attr(const wefti_node_t *node, const char *name)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    return attr != NULL && attr->type == WEFT_ATTR_TYPE_STRING && attr->s != NULL ? attr->s : "";
}

/* Why the bucket ends where it does: the text of the pass that decided it. */
static const char *reason_of(wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    const char *reason = text_attr(node, "reason"), *split = text_attr(node, "split_reason");
    if (bucket->parts > 1 && bucket->gradients) {
        return wefti_arena_printf(&l->plan->arena, "piece %u of %u of %s%s%s", bucket->part + 1,
                                  bucket->parts, l->graph->values[bucket->members[0].value].name,
                                  split[0] != '\0' ? ", which " : "", split);
    }
    return wefti_arena_strdup(&l->plan->arena, reason[0] != '\0' ? reason : "from the graph");
}

static weft_reduction_t reduction_of(const wefti_node_t *node, weft_status_t *status)
{
    const weft_attr_t *attr = wefti_node_attr(node, "reduction");
    *status = WEFT_OK;
    if (attr == NULL) {
        return WEFT_REDUCTION_SUM;
    }
    for (int r = WEFT_REDUCTION_SUM; attr->type == WEFT_ATTR_TYPE_STRING && r <= WEFT_REDUCTION_MAX;
         r++) {
        if (strcmp(attr->s, weft_reduction_name((weft_reduction_t)r)) == 0) {
            return (weft_reduction_t)r;
        }
    }
    *status = wefti_error(
        WEFT_ERR_INVALID_ARGUMENT,
        "node '%s' (%s): attribute 'reduction' must be sum, avg, prod, min or max: '%.60s'",
        node->name, node->def->name, attr->type == WEFT_ATTR_TYPE_STRING ? attr->s : "");
    return WEFT_REDUCTION_SUM;
}

static bool has_root(weft_collective_t op)
{
    return op == WEFT_COLLECTIVE_BROADCAST || op == WEFT_COLLECTIVE_REDUCE ||
           op == WEFT_COLLECTIVE_GATHER || op == WEFT_COLLECTIVE_SCATTER;
}

/* Elements of one block. */
static uint64_t block_elems(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    const wefti_value_t *x = &l->graph->values[bucket->members[0].value];
    const wefti_value_t *y = &l->graph->values[bucket->members[0].reduced];
    uint64_t elem_bytes = weft_dtype_size_bytes(x->type.dtype);
    switch (bucket->op) {
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_SCATTER:
        return wefti_value_bytes(y) / elem_bytes;
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return wefti_value_bytes(x) / elem_bytes / l->params->world_size;
    default:
        return wefti_value_bytes(x) / elem_bytes;
    }
}

/* A collective on an activation: from one buffer to another, or in place. */
static weft_status_t add_activation(wefti_lowering_t *l, uint32_t index,
                                    wefti_plan_collective_t *collective)
{
    weft_status_t status;
    wefti_arena_t *arena = &l->plan->arena;
    const wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    const weft_attr_t *root = wefti_node_attr(node, "root");
    collective->op = bucket->op;
    collective->buffer = l->buffer_of[bucket->members[0].reduced];
    collective->source = l->buffer_of[bucket->members[0].value];
    collective->dtype = l->plan->buffers[collective->buffer].dtype;
    collective->root = root != NULL && has_root(bucket->op) ? (uint32_t)root->i : 0;
    collective->elem_count = block_elems(l, bucket);
    collective->update = WEFTI_PLAN_NONE;
    collective->reduction = reduction_of(node, &status);
    WEFT_TRY(status, status, fail);
    collective->name = bucket->parts > 1
                           ? wefti_arena_printf(arena, "%s %u", node->name, bucket->part)
                           : wefti_arena_strdup(arena, node->name);
    collective->reason = reason_of(l, bucket);
    collective->member_count = 1;
    collective->members = wefti_arena_array(arena, 1, sizeof(*collective->members));
    if (collective->name == NULL || collective->reason == NULL || collective->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    collective->members[0] = collective->buffer;
    WEFT_TRY(
        status,
        wefti_lower_add_algorithms(l, collective, l->plan->buffers[collective->buffer].size_bytes),
        fail);
    return wefti_lower_take_algorithms(l, node, collective);
fail:
    return status;
}

static weft_status_t add_bucket(wefti_lowering_t *l, uint32_t index,
                                wefti_plan_collective_t *collective)
{
    weft_status_t status;
    wefti_arena_t *arena = &l->plan->arena;
    const wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    uint32_t first = l->buffer_of[bucket->members[0].sent];
    const wefti_plan_buffer_t *buffer;
    const weft_attr_t *group = wefti_node_attr(node, "group");
    collective->op = WEFT_COLLECTIVE_ALL_REDUCE;
    collective->dtype = l->plan->buffers[first].dtype;
    collective->buffer = first;
    collective->group = group != NULL && group->type == WEFT_ATTR_TYPE_INT ? (uint32_t)group->i : 0;
    collective->reduction = reduction_of(node, &status);
    WEFT_TRY(status, status, fail);
    char *range = wefti_arena_printf(&l->arena, "bucket %u gradients", index);
    if (range == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_lower_grad_range(l, range, index, true, &collective->buffer), fail);
    collective->source = collective->buffer;
    collective->update = WEFTI_PLAN_NONE;
    buffer = &l->plan->buffers[collective->buffer];
    collective->elem_count = buffer->size_bytes / weft_dtype_size_bytes(collective->dtype);
    collective->name = wefti_arena_printf(arena, "bucket %u", index);
    collective->reason = reason_of(l, bucket);
    collective->member_count = bucket->member_count;
    collective->members =
        wefti_arena_array(arena, bucket->member_count, sizeof(*collective->members));
    if (collective->name == NULL || collective->reason == NULL || collective->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        collective->members[i] = l->buffer_of[bucket->members[i].sent];
    }
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, buffer->size_bytes), fail);
    if (!bucket->sharded) { /* else another collective is made of it */
        WEFT_TRY(status, wefti_lower_take_algorithms(l, node, collective), fail);
    }
    return wefti_lower_shard_collective(l, index, collective);
fail:
    return status;
}

/* Has parameter end the type of the one before it, and lies right behind it? Where gradients travel
 * as bf16 there may be a unit of padding between them. */
static bool continues(const wefti_lowering_t *l, uint32_t end)
{
    const wefti_plan_buffer_t *last = &l->plan->buffers[end - 1], *next = &l->plan->buffers[end];
    uint64_t unit = l->params->gradients.wire == WEFT_DTYPE_BF16 ? 2 * WEFTI_PLAN_ALIGNMENT
                                                                 : WEFTI_PLAN_ALIGNMENT;
    return next->dtype == last->dtype && last->size_bytes > 0 && next->size_bytes > 0 &&
           next->offset_bytes - l->param_begin ==
               wefti_align_up(last->offset_bytes - l->param_begin + last->size_bytes, unit);
}

/* A command of init: broadcasts a run of parameters of one type that lie side by side, in the order
 * of their buffers. */
static weft_status_t add_broadcast(wefti_lowering_t *l, uint32_t id, uint32_t begin, uint32_t end)
{
    weft_status_t status;
    wefti_arena_t *arena = &l->plan->arena;
    const wefti_node_t *node = &l->graph->nodes[id];
    const wefti_plan_buffer_t *first = &l->plan->buffers[begin], *last = &l->plan->buffers[end - 1];
    uint64_t offset = first->offset_bytes;
    uint64_t bytes =
        wefti_align_up(last->offset_bytes + last->size_bytes - offset, WEFTI_PLAN_ALIGNMENT);
    wefti_plan_collective_t *collective = &l->plan->collectives[l->plan->collective_count];
    l->commands[l->plan->collective_count++] =
        (wefti_command_t){.node = id, .parts = 1, .bucket = WEFTI_NONE};
    collective->op = WEFT_COLLECTIVE_BROADCAST;
    collective->dtype = first->dtype;
    WEFT_TRY(status,
             wefti_lower_add_range(l, "all parameters", first->dtype, offset, bytes,
                                   &collective->buffer),
             fail);
    collective->source = collective->buffer;
    collective->update = WEFTI_PLAN_NONE;
    collective->elem_count = bytes / weft_dtype_size_bytes(collective->dtype);
    collective->name = wefti_arena_strdup(arena, node->name);
    collective->reason = wefti_arena_strdup(arena, text_attr(node, "reason"));
    collective->member_count = end - begin;
    collective->members =
        wefti_arena_array(arena, collective->member_count, sizeof(*collective->members));
    if (collective->name == NULL || collective->reason == NULL || collective->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = begin; i < end; i++) {
        collective->members[i - begin] = i;
    }
    return wefti_lower_add_algorithms(l, collective, bytes);
fail:
    return status;
}

/* The collectives of init: a Broadcast of all weights. Their buffers are the first of the plan. */
static weft_status_t add_broadcasts(wefti_lowering_t *l, uint32_t param_count)
{
    weft_status_t status = WEFT_OK;
    const wefti_program_t *init = wefti_graph_find_program(l->graph, "init");
    if (init == NULL || init->node_count == 0) {
        return WEFT_OK;
    }
    weft_collective_t op = WEFT_COLLECTIVE_ALL_REDUCE;
    const wefti_node_t *node = &l->graph->nodes[init->nodes[0]];
    if (init->node_count > 1 || !wefti_lower_collective_op(node, &op) ||
        op != WEFT_COLLECTIVE_BROADCAST) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "program 'init': node '%s' (%s): only one Broadcast is supported",
                           node->name, node->def->name);
    }
    l->command_of[init->nodes[0]] = l->command_count;
    for (uint32_t begin = 0, end; begin < param_count; begin = end) {
        for (end = begin + 1; end < param_count && continues(l, end);) {
            end++;
        }
        if (l->plan->buffers[begin].size_bytes > 0 &&
            l->plan->buffers[begin].offset_bytes < WEFTI_PLAN_NOWHERE) {
            WEFT_TRY(status, add_broadcast(l, init->nodes[0], begin, end), fail);
        }
    }
fail:
    return status;
}

static weft_status_t add_command(wefti_lowering_t *l, uint32_t index)
{
    const wefti_command_t *command = &l->commands[index];
    wefti_plan_collective_t *collective = &l->plan->collectives[l->plan->collective_count++];
    return wefti_node_is_flat_gather(&l->graph->nodes[command->node])
               ? wefti_lower_gather(l, index, collective)
           : l->buckets[command->bucket].gradients ? add_bucket(l, command->bucket, collective)
                                                   : add_activation(l, command->bucket, collective);
}

weft_status_t wefti_lower_collectives(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    uint32_t param_count = 0;
    while (param_count < l->plan->buffer_count &&
           l->plan->buffers[param_count].kind == WEFTI_BUFFER_PARAM) {
        param_count++;
    }
    size_t most = (size_t)l->command_count + param_count;
    l->plan->collectives = wefti_arena_array(&l->plan->arena, most, sizeof(*l->plan->collectives));
    wefti_command_t *commands = wefti_arena_array(&l->arena, most, sizeof(*commands));
    if (l->plan->collectives == NULL || commands == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(commands, l->commands, l->command_count * sizeof(*commands));
    l->commands = commands;
    for (uint32_t c = 0; c < l->command_count; c++) {
        WEFT_TRY(status, add_command(l, c), fail);
    }
    WEFT_TRY(status, add_broadcasts(l, param_count), fail);
    l->command_count = l->plan->collective_count;
fail:
    return status;
}
