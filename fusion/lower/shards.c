/* SPDX-License-Identifier: Apache-2.0 */
/* Plan buffers and collectives of sharded buckets (passes/shard.c): a rank's shards of parameters,
 * gradients and states. */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

uint64_t wefti_lower_unit_bytes(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    /* What is on the wire in bf16 is half as long, and whole units, too. */
    uint64_t unit = WEFTI_PLAN_ALIGNMENT * (l->params->gradients.wire == WEFT_DTYPE_BF16 ? 2u : 1u);
    return bucket->sharded ? unit * l->shards : unit;
}

uint64_t wefti_lower_range_bytes(const wefti_bucket_t *bucket)
{
    return bucket->end_bytes - bucket->begin_bytes;
}

weft_dtype_t wefti_lower_param_dtype(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return l->graph->values[bucket->members[0].param].type.dtype;
}

uint64_t wefti_lower_param_offset(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return (bucket->gathered ? WEFTI_PLAN_NOWHERE : l->param_begin) + bucket->begin_bytes;
}

/* Adds a buffer that is a rank's shard of a range: "bucket 3 gradients, a shard". */
static weft_status_t add_shard(wefti_lowering_t *l, uint32_t index, const char *what,
                               weft_dtype_t dtype, uint64_t begin, uint64_t bytes,
                               uint32_t *out_buffer)
{
    weft_status_t status = WEFT_OK;
    if (*out_buffer != WEFTI_NONE) {
        return WEFT_OK;
    }
    char *name = wefti_arena_printf(&l->arena, "bucket %u %s, a shard", index, what);
    if (name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_lower_add_range(l, name, dtype, begin, bytes, out_buffer), fail);
    l->plan->buffers[*out_buffer].rank_stride_bytes = bytes;
fail:
    return status;
}

weft_status_t wefti_lower_param_shard(wefti_lowering_t *l, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    return add_shard(l, index, "parameters", wefti_lower_param_dtype(l, bucket),
                     l->param_begin + bucket->begin_bytes,
                     wefti_lower_range_bytes(bucket) / l->shards, &bucket->param_shard);
}

/* A shard that lasts though the range that it is of does not. */
static weft_status_t add_kept_shard(wefti_lowering_t *l, uint32_t index, const char *what,
                                    weft_dtype_t dtype, uint64_t bytes, uint64_t position,
                                    uint32_t *out_buffer)
{
    weft_status_t status;
    WEFT_TRY(status, add_shard(l, index, what, dtype, l->arena_cursor, bytes, out_buffer), fail);
    l->plan->buffers[*out_buffer].kind = WEFTI_BUFFER_SHARD;
    l->plan->buffers[*out_buffer].rank_stride_bytes = 0;
    l->plan->buffers[*out_buffer].whole_offset_bytes = position;
    l->kept_bytes += bytes;
    status = wefti_lower_advance(l, bytes);
fail:
    return status;
}

weft_status_t wefti_lower_add_shards(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint64_t bytes = wefti_lower_range_bytes(bucket) / l->shards;
    l->plan->flags |= WEFTI_PLAN_SHARDED_PARAMETERS;
    WEFT_TRY(status,
             add_kept_shard(l, index, "parameters", wefti_lower_param_dtype(l, bucket), bytes,
                            wefti_lower_param_offset(l, bucket), &bucket->param_shard),
             fail);
    if (bucket->passing) {
        status = add_kept_shard(l, index, "gradients", wefti_lower_grad_dtype(l, bucket),
                                wefti_lower_grad_bytes(l, bytes), 0, &bucket->grad_shard);
    }
fail:
    return status;
}

/* Where a bucket's reduced gradient lies: in the region of gradients, where it was produced or, in
 * another type, put to be reduced. */
weft_status_t wefti_lower_grad_shard(wefti_lowering_t *l, uint32_t index, uint32_t *out_buffer)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    weft_status_t status =
        add_shard(l, index, "gradients", wefti_lower_grad_dtype(l, bucket),
                  l->grad_begin + wefti_lower_grad_bytes(l, bucket->begin_bytes),
                  wefti_lower_grad_bytes(l, wefti_lower_range_bytes(bucket)) / l->shards,
                  &bucket->grad_shard);
    *out_buffer = bucket->grad_shard;
    return status;
}

weft_status_t wefti_lower_param_range(wefti_lowering_t *l, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    char *name = wefti_arena_printf(&l->arena, "bucket %u parameters", index);
    if (name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    return bucket->param_range != WEFTI_NONE
               ? WEFT_OK
               : wefti_lower_add_range(l, name, wefti_lower_param_dtype(l, bucket),
                                       l->param_begin + bucket->begin_bytes,
                                       wefti_lower_range_bytes(bucket), &bucket->param_range);
}

/* "momentum" of the state "w_shard_momentum" of parameter "w". */
static const char *slot_name(const wefti_lowering_t *l, uint32_t state)
{
    const char *name = l->graph->values[state].name;
    const char *param = l->graph->values[l->graph->values[state].state_of].name;
    size_t skip = strlen(param);
    if (strncmp(name, param, skip) == 0 && strncmp(name + skip, "_shard_", 7) == 0) {
        name += skip + 7;
    }
    return name;
}

weft_status_t wefti_lower_add_shard_states(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint64_t bytes = wefti_lower_range_bytes(bucket) / l->shards;
    bucket->states = wefti_lower_map(l, l->state_count);
    if (bucket->states == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t j = 0; j < bucket->operand_count; j++) {
        uint32_t v = bucket->operands[j];
        uint32_t slot = v == WEFTI_NONE || l->graph->values[v].kind != WEFTI_VALUE_STATE
                            ? WEFTI_NONE
                            : l->state_slot[v];
        if (slot == WEFTI_NONE) {
            continue;
        }
        char *name = wefti_arena_printf(&l->arena, "bucket %u %s", index, slot_name(l, v));
        if (name == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        WEFT_TRY(status,
                 wefti_lower_add_range(l, name, wefti_lower_param_dtype(l, bucket),
                                       l->state_begin[slot] + bucket->state_begin_bytes, bytes,
                                       &bucket->states[slot]),
                 fail);
        l->plan->buffers[bucket->states[slot]].kind = WEFTI_BUFFER_STATE;
        l->kept_bytes += bytes;
        l->buffer_of[v] = l->buffer_of[v] == WEFTI_NONE ? bucket->states[slot] : l->buffer_of[v];
    }
fail:
    return status;
}

weft_status_t wefti_lower_shard_operand(wefti_lowering_t *l, uint32_t index, uint32_t slot,
                                        uint32_t *out_buffer)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    uint32_t value = bucket->operands[slot];
    if (slot == 0) {
        WEFT_TRY(status, wefti_lower_param_shard(l, index), fail);
        *out_buffer = bucket->param_shard;
    } else if (slot == 1) {
        WEFT_TRY(status, wefti_lower_grad_shard(l, index, out_buffer), fail);
    } else if (value != WEFTI_NONE && l->graph->values[value].kind == WEFTI_VALUE_STATE) {
        *out_buffer = bucket->states[l->state_slot[value]];
    } else {
        *out_buffer = value == WEFTI_NONE ? WEFTI_PLAN_NONE : l->buffer_of[value];
    }
fail:
    return status;
}

/* Appends how the bucket is updated to the reason. */
static weft_status_t extend_reason(wefti_lowering_t *l, wefti_plan_collective_t *collective,
                                   const char *more)
{
    if (more == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    collective->reason = wefti_arena_printf(&l->plan->arena, "%s; %s", collective->reason, more);
    return collective->reason == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

void wefti_lower_predict(wefti_plan_collective_t *collective, const wefti_bucket_cost_t *cost,
                         uint64_t bytes)
{
    double first = (double)collective->algorithms[0].predicted_ps;
    for (uint32_t i = 0; cost != NULL && i < collective->algorithm_count; i++) {
        double scale = first > 0 ? (double)collective->algorithms[i].predicted_ps / first : 1;
        collective->algorithms[i].predicted_ps =
            (uint64_t)((double)wefti_bucket_cost_ps(cost, bytes) * scale);
    }
}

/* The all-reduce gets an update, and leaves the new weights instead of the reduced gradients. */
static weft_status_t fuse(wefti_lowering_t *l, uint32_t index, wefti_plan_collective_t *collective)
{
    weft_status_t status;
    const wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    const char *why = wefti_node_text(node, "cost_reason");
    char size[32];
    wefti_format_bytes(wefti_lower_range_bytes(bucket) / l->shards, size);
    WEFT_TRY(status, wefti_lower_param_range(l, index), fail);
    collective->buffer = bucket->param_range;
    collective->update = bucket->kernel;
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, wefti_lower_range_bytes(bucket)),
             fail);
    for (uint32_t i = 0; i < collective->algorithm_count; i++) { /* the update included */
        collective->algorithms[i].predicted_ps = (uint64_t)wefti_node_int(node, "predicted_ps");
    }
    status = extend_reason(l, collective,
                           wefti_arena_printf(&l->arena,
                                              "each rank reduces, updates and sends %s of it%s%s",
                                              size, why[0] == '\0' ? "" : ": ", why));
fail:
    return status;
}

weft_status_t wefti_lower_shard_collective(wefti_lowering_t *l, uint32_t index,
                                           wefti_plan_collective_t *collective)
{
    weft_status_t status;
    wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    const char *whole = wefti_node_text(node, "shard_reason");
    const char *why = wefti_node_text(node, "cost_reason");
    char size[32];
    if (!bucket->sharded) {
        return whole[0] == '\0' ? WEFT_OK : extend_reason(l, collective, whole);
    }
    if (bucket->fused) {
        return fuse(l, index, collective);
    }
    wefti_format_bytes(wefti_lower_range_bytes(bucket) / l->shards, size);
    WEFT_TRY(status, wefti_lower_grad_shard(l, index, &collective->buffer), fail);
    collective->op = WEFT_COLLECTIVE_REDUCE_SCATTER;
    collective->elem_count /= l->shards;
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, wefti_lower_range_bytes(bucket)),
             fail);
    wefti_lower_predict(
        collective, l->params->shard_cost == NULL ? NULL : &l->params->shard_cost->reduce_scatter,
        wefti_lower_range_bytes(bucket));
    WEFT_TRY(status, wefti_lower_take_algorithms(l, node, collective), fail);
    status =
        extend_reason(l, collective,
                      wefti_arena_printf(&l->arena, "each rank reduces and updates %s of it%s%s",
                                         size, why[0] == '\0' ? "" : "; ", why));
fail:
    return status;
}
