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
    const wefti_place_t *first = &l->regions->places[bucket];
    return first[l->buckets->list[bucket].parts - 1].end_bytes - first->begin_bytes;
}

static wefti_range_t *add_range(const wefti_lowering_t *l, wefti_ranges_t *out, uint32_t bucket,
                                uint32_t node)
{
    wefti_range_t *range = &out->list[out->count++];
    *range = (wefti_range_t){.bucket = bucket,
                             .gather = node,
                             .size_bytes = whole_bytes(l, bucket),
                             .buffer = WEFTI_NONE};
    return range;
}

static void add_gathered(const wefti_lowering_t *l, uint32_t command, const uint32_t *ends,
                         wefti_ranges_t *out)
{
    const wefti_command_t *first = &l->order->commands[command];
    const wefti_node_t *node = &l->graph->nodes[first->node];
    const wefti_readers_t *readers = &l->order->readers;
    out->of_gather[first->node] = out->count;
    wefti_range_t *range = add_range(l, out, wefti_lower_command_bucket(l, command), first->node);
    range->first = 2 * first->ready;
    range->last = ends[command + first->parts - 1];
    for (uint32_t i = 0; i < node->output_count; i++) {
        uint32_t value = node->outputs[i];
        if (value == WEFTI_NONE) {
            continue;
        }
        out->has[value] = true;
        for (uint32_t k = readers->first[value]; k < readers->first[value + 1]; k++) {
            uint32_t item = l->order->item_of[readers->nodes[k]];
            range->last = later(range->last, item == WEFTI_NONE ? 0 : item_time(item));
        }
    }
}

static void add_gradients(const wefti_lowering_t *l, uint32_t index, const uint32_t *ends,
                          wefti_ranges_t *out)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    uint32_t fold = l->graph->values[bucket->members[0].sent].producer;
    bool rounded = wefti_lower_is_rounded(l, bucket);
    uint32_t end = ends[bucket->command + bucket->parts - 1];
    out->own_of[index] = out->sent_of[index] = out->count;
    wefti_range_t *own = add_range(l, out, index, WEFTI_NONE);
    own->first = UINT32_MAX;
    own->last = rounded ? item_time(l->order->item_of[fold] + bucket->parts - 1) : end;
    own->sent = !rounded;
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        uint32_t producer = l->graph->values[bucket->members[i].value].producer;
        uint32_t time = item_time(l->order->item_of[producer]);
        own->first = time < own->first ? time : own->first;
        out->has[bucket->members[i].value] = true;
        out->has[bucket->members[i].sent] = true;
    }
    if (rounded) {
        out->sent_of[index] = out->count;
        wefti_range_t *sent = add_range(l, out, index, WEFTI_NONE);
        sent->first = item_time(l->order->item_of[fold]);
        sent->last = end;
        sent->sent = true;
        sent->size_bytes = wefti_lower_grad_bytes(l, sent->size_bytes);
    }
}

weft_status_t wefti_lower_find_ranges(wefti_lowering_t *l, const uint32_t *ends,
                                      wefti_ranges_t *out)
{
    const wefti_order_t *order = l->order;
    out->list = wefti_arena_array(&l->arena, 2 * (size_t)order->command_count, sizeof(*out->list));
    out->has = wefti_arena_array(&l->arena, l->graph->value_count, sizeof(*out->has));
    out->of_gather = wefti_id_map(&l->arena, l->graph->node_count);
    out->own_of = wefti_id_map(&l->arena, l->buckets->count);
    out->sent_of = wefti_id_map(&l->arena, l->buckets->count);
    WEFT_RETURN_IF_NO_MEMORY(out->list && out->has && out->of_gather && out->own_of &&
                             out->sent_of);
    for (uint32_t c = 0; c < order->command_count; c++) {
        const wefti_command_t *command = &order->commands[c];
        uint32_t bucket = wefti_lower_command_bucket(l, c);
        if (bucket == WEFTI_NONE || command->part > 0) {
            continue;
        }
        if (wefti_lower_is_copy(l->graph, &l->graph->nodes[command->node])) {
            add_gathered(l, c, ends, out);
        } else if (l->buckets->list[bucket].passing &&
                   command->node == l->buckets->list[bucket].node) {
            add_gradients(l, bucket, ends, out);
        }
    }
    return WEFT_OK;
}

/* Adds a tensor of a range. */
static weft_status_t add_member(wefti_lowering_t *l, const wefti_range_t *range, uint32_t value,
                                uint32_t param, wefti_buffer_kind_t kind)
{
    uint64_t place = l->plan->buffers[l->buffers->of[param]].offset_bytes -
                     wefti_lower_param_offset(l, range->bucket);
    bool smaller = range->gather == WEFTI_NONE && range->sent &&
                   wefti_lower_is_rounded(l, &l->buckets->list[range->bucket]);
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    weft_status_t status = wefti_lower_add_buffer(
        l, value, kind, range->offset_bytes + (smaller ? wefti_lower_grad_bytes(l, place) : place));
    buffer->range = range->buffer + 1;
    return status;
}

static weft_status_t add_weights(wefti_lowering_t *l, const wefti_range_t *range)
{
    const wefti_node_t *node = &l->graph->nodes[range->gather];
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(
                add_member(l, range, node->outputs[i], node->inputs[i + 1], WEFTI_BUFFER_TEMP));
        }
    }
    return WEFT_OK;
}

/* What kernels write, or what is reduced, which may be the same. */
static weft_status_t add_gradient(wefti_lowering_t *l, const wefti_range_t *range,
                                  const wefti_member_t *member)
{
    bool rounded = wefti_lower_is_rounded(l, &l->buckets->list[range->bucket]);
    uint32_t value = rounded && range->sent ? member->sent : member->value;
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    WEFT_RETURN_IF_ERROR(add_member(l, range, value, member->param, WEFTI_BUFFER_GRAD));
    l->buffers->of[member->sent] = l->buffers->of[value];
    if (rounded) { /* what is sent has the name of the gradient */
        buffer->name =
            wefti_arena_printf(&l->plan->arena, "%s%s", l->graph->values[member->value].name,
                               range->sent ? "" : ", own");
    }
    return buffer->name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_lower_place_ranges(wefti_lowering_t *l, wefti_ranges_t *ranges)
{
    for (uint32_t r = 0; r < ranges->count; r++) {
        wefti_range_t *range = &ranges->list[r];
        const wefti_bucket_t *bucket = &l->buckets->list[range->bucket];
        bool gathers = range->gather != WEFTI_NONE;
        char *name = wefti_arena_printf(&l->arena, "bucket %u %s", range->bucket,
                                        gathers ? "gathered weights" : "gradients");
        WEFT_RETURN_IF_NO_MEMORY(name);
        WEFT_RETURN_IF_ERROR(
            wefti_lower_add_range(l, name,
                                  !gathers && range->sent ? wefti_lower_grad_dtype(l, bucket)
                                                          : wefti_lower_param_dtype(l, bucket),
                                  range->offset_bytes, range->size_bytes, &range->buffer));
        l->plan->buffers[range->buffer].range = range->buffer + 1;
        if (gathers) {
            WEFT_RETURN_IF_ERROR(add_weights(l, range));
        }
        for (uint32_t i = 0; i < bucket->member_count && !gathers; i++) {
            WEFT_RETURN_IF_ERROR(add_gradient(l, range, &bucket->members[i]));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_add_piece(wefti_lowering_t *l, const char *name, uint32_t index,
                                    uint32_t bucket, uint32_t *out_buffer)
{
    const wefti_range_t *range = &l->ranges->list[index];
    const wefti_plan_buffer_t *root = &l->plan->buffers[range->buffer];
    const wefti_place_t *places = l->regions->places;
    uint64_t begin = places[bucket].begin_bytes - places[range->bucket].begin_bytes;
    uint64_t bytes = places[bucket].end_bytes - places[bucket].begin_bytes;
    bool smaller = range->gather == WEFTI_NONE && range->sent &&
                   wefti_lower_is_rounded(l, &l->buckets->list[range->bucket]);
    if (l->buckets->list[bucket].parts == 1) {
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
