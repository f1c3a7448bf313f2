/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of buckets whose parameters are sharded (passes/shard_parameters.c): tensors side by side
 * as in the bucket, in memory that is reused like that of activations.
 *
 *   gathered weights    from the start of the all-gather to the last kernel that reads them
 *   gradients           from the first kernel that writes one to the end of the reduce-scatter;
 *                       what is sent in another type, from its rounding on
 *
 * Shards of the parameters and of the reduced gradients last.
 */
#include "fusion/lower/lower.h"

#include "runtime/base/error.h"

bool wefti_lower_is_copy(const wefti_lowering_t *l, const wefti_node_t *node)
{
    if (!wefti_node_is_flat_gather(node) || node->phase == WEFTI_PHASE_UPDATE) {
        return false;
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] != WEFTI_NONE &&
            (l->graph->values[node->outputs[i]].flags & WEFTI_VALUE_PERSISTENT) != 0) {
            return false;
        }
    }
    return true;
}

static uint32_t item_time(uint32_t item)
{
    return 2 * item + 1;
}

static uint32_t later(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Bytes of all pieces, in the type of the parameters. */
static uint64_t whole_bytes(const wefti_lowering_t *l, uint32_t bucket)
{
    const wefti_bucket_t *first = &l->buckets[bucket];
    return first[first->parts - 1].end_bytes - first->begin_bytes;
}

static bool is_rounded(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return wefti_lower_grad_dtype(l, bucket) != wefti_lower_param_dtype(l, bucket);
}

static wefti_range_t *add_range(wefti_lowering_t *l, uint32_t bucket, uint32_t node)
{
    wefti_range_t *range = &l->ranges[l->range_count++];
    *range = (wefti_range_t){.bucket = bucket,
                             .gather = node,
                             .size_bytes = whole_bytes(l, bucket),
                             .buffer = WEFTI_NONE};
    return range;
}

static void add_gathered(wefti_lowering_t *l, uint32_t command, const uint32_t *ends)
{
    wefti_command_t *first = &l->commands[command];
    const wefti_node_t *node = &l->graph->nodes[first->node];
    for (uint32_t part = 0; part < first->parts; part++) {
        first[part].range = l->range_count;
    }
    wefti_range_t *range = add_range(l, first->bucket, first->node);
    range->first = 2 * first->ready;
    range->last = ends[command + first->parts - 1];
    for (uint32_t i = 0; i < node->output_count; i++) {
        uint32_t value = node->outputs[i];
        if (value == WEFTI_NONE) {
            continue;
        }
        l->in_range[value] = true;
        for (uint32_t k = l->readers.first[value]; k < l->readers.first[value + 1]; k++) {
            uint32_t item = l->item_of[l->readers.nodes[k]];
            range->last = later(range->last, item == WEFTI_NONE ? 0 : item_time(item));
        }
    }
}

static void add_gradients(wefti_lowering_t *l, uint32_t command, const uint32_t *ends)
{
    const wefti_command_t *first = &l->commands[command];
    wefti_bucket_t *bucket = &l->buckets[first->bucket];
    uint32_t fold = l->graph->values[bucket->members[0].sent].producer;
    bool rounded = is_rounded(l, bucket);
    uint32_t end = ends[command + first->parts - 1];
    bucket->own_range = bucket->sent_range = l->range_count;
    wefti_range_t *own = add_range(l, first->bucket, WEFTI_NONE);
    own->first = UINT32_MAX;
    own->last = rounded ? item_time(l->item_of[fold] + bucket->parts - 1) : end;
    own->sent = !rounded;
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        uint32_t producer = l->graph->values[bucket->members[i].value].producer;
        uint32_t time = item_time(l->item_of[producer]);
        own->first = time < own->first ? time : own->first;
        l->in_range[bucket->members[i].value] = true;
        l->in_range[bucket->members[i].sent] = true;
    }
    if (rounded) {
        bucket->sent_range = l->range_count;
        wefti_range_t *sent = add_range(l, first->bucket, WEFTI_NONE);
        sent->first = item_time(l->item_of[fold]);
        sent->last = end;
        sent->sent = true;
        sent->size_bytes = wefti_lower_grad_bytes(l, sent->size_bytes);
    }
}

weft_status_t wefti_lower_find_ranges(wefti_lowering_t *l, const uint32_t *ends)
{
    l->ranges = wefti_arena_array(&l->arena, 2 * (size_t)l->command_count, sizeof(*l->ranges));
    l->in_range = wefti_arena_array(&l->arena, l->graph->value_count, sizeof(*l->in_range));
    if (l->ranges == NULL || l->in_range == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t c = 0; c < l->command_count; c++) {
        const wefti_command_t *command = &l->commands[c];
        if (command->part > 0) {
            continue;
        }
        if (wefti_lower_is_copy(l, &l->graph->nodes[command->node])) {
            add_gathered(l, c, ends);
        } else if (l->buckets[command->bucket].passing &&
                   command->node == l->buckets[command->bucket].node) {
            add_gradients(l, c, ends);
        }
    }
    return WEFT_OK;
}

/* Adds a tensor of a range. */
static weft_status_t add_member(wefti_lowering_t *l, const wefti_range_t *range, uint32_t value,
                                uint32_t param, wefti_buffer_kind_t kind)
{
    const wefti_bucket_t *bucket = &l->buckets[range->bucket];
    uint64_t place =
        l->plan->buffers[l->buffer_of[param]].offset_bytes - wefti_lower_param_offset(l, bucket);
    bool smaller = range->gather == WEFTI_NONE && range->sent;
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    weft_status_t status = wefti_lower_add_buffer(
        l, value, kind, range->offset_bytes + (smaller ? wefti_lower_grad_bytes(l, place) : place));
    buffer->range = range->buffer + 1;
    return status;
}

static weft_status_t add_weights(wefti_lowering_t *l, const wefti_range_t *range)
{
    weft_status_t status = WEFT_OK;
    const wefti_node_t *node = &l->graph->nodes[range->gather];
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] != WEFTI_NONE) {
            WEFT_TRY(status,
                     add_member(l, range, node->outputs[i], node->inputs[i + 1], WEFTI_BUFFER_TEMP),
                     fail);
        }
    }
fail:
    return status;
}

/* What kernels write, or what is reduced, which may be the same. */
static weft_status_t add_gradient(wefti_lowering_t *l, const wefti_range_t *range,
                                  const wefti_member_t *member)
{
    weft_status_t status;
    bool rounded = is_rounded(l, &l->buckets[range->bucket]);
    uint32_t value = rounded && range->sent ? member->sent : member->value;
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    WEFT_TRY(status, add_member(l, range, value, member->param, WEFTI_BUFFER_GRAD), fail);
    l->buffer_of[member->sent] = l->buffer_of[value];
    if (rounded) { /* what is sent has the name of the gradient */
        buffer->name =
            wefti_arena_printf(&l->plan->arena, "%s%s", l->graph->values[member->value].name,
                               range->sent ? "" : ", own");
    }
    return buffer->name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
fail:
    return status;
}

weft_status_t wefti_lower_place_ranges(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < l->range_count; r++) {
        wefti_range_t *range = &l->ranges[r];
        wefti_bucket_t *bucket = &l->buckets[range->bucket];
        bool gathers = range->gather != WEFTI_NONE;
        char *name = wefti_arena_printf(&l->arena, "bucket %u %s", range->bucket,
                                        gathers ? "gathered weights" : "gradients");
        if (name == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        WEFT_TRY(status,
                 wefti_lower_add_range(l, name,
                                       !gathers && range->sent ? wefti_lower_grad_dtype(l, bucket)
                                                               : wefti_lower_param_dtype(l, bucket),
                                       range->offset_bytes, range->size_bytes, &range->buffer),
                 fail);
        l->plan->buffers[range->buffer].range = range->buffer + 1;
        if (gathers) {
            WEFT_TRY(status, add_weights(l, range), fail);
        }
        for (uint32_t i = 0; i < bucket->member_count && !gathers; i++) {
            WEFT_TRY(status, add_gradient(l, range, &bucket->members[i]), fail);
        }
    }
fail:
    return status;
}

/* Adds the piece of a range that belongs to bucket index. */
static weft_status_t add_piece(wefti_lowering_t *l, const char *name, const wefti_range_t *range,
                               uint32_t index, uint32_t *out_buffer)
{
    const wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_plan_buffer_t *root = &l->plan->buffers[range->buffer];
    uint64_t begin = bucket->begin_bytes - l->buckets[range->bucket].begin_bytes;
    uint64_t bytes = wefti_lower_range_bytes(bucket);
    bool smaller = range->gather == WEFTI_NONE && range->sent;
    if (bucket->parts == 1) {
        *out_buffer = range->buffer;
        return WEFT_OK;
    }
    weft_status_t status = wefti_lower_add_range(
        l, name, root->dtype,
        root->offset_bytes + (smaller ? wefti_lower_grad_bytes(l, begin) : begin),
        smaller ? wefti_lower_grad_bytes(l, bytes) : bytes, out_buffer);
    if (status >= 0) {
        l->plan->buffers[*out_buffer].range = range->buffer + 1;
    }
    return status;
}

weft_status_t wefti_lower_gathered_range(wefti_lowering_t *l, const char *name, uint32_t command,
                                         uint32_t *out_buffer)
{
    const wefti_command_t *at = &l->commands[command];
    return add_piece(l, name, &l->ranges[at->range], at->bucket, out_buffer);
}

weft_status_t wefti_lower_grad_range(wefti_lowering_t *l, const char *name, uint32_t index,
                                     bool sent, uint32_t *out_buffer)
{
    const wefti_bucket_t *bucket = &l->buckets[index];
    uint64_t bytes = wefti_lower_range_bytes(bucket);
    if (bucket->passing) {
        const wefti_bucket_t *first = bucket - bucket->part;
        return add_piece(l, name, &l->ranges[sent ? first->sent_range : first->own_range], index,
                         out_buffer);
    }
    return sent ? wefti_lower_add_range(l, name, wefti_lower_grad_dtype(l, bucket),
                                        l->grad_begin +
                                            wefti_lower_grad_bytes(l, bucket->begin_bytes),
                                        wefti_lower_grad_bytes(l, bytes), out_buffer)
                : wefti_lower_add_range(l, name, WEFT_DTYPE_F32,
                                        l->local_begin + bucket->begin_bytes, bytes, out_buffer);
}
