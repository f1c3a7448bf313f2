/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded updates. A bucket's range is divided into one shard per rank. A rank reduces its shard of
 * the gradients, updates its shard of the parameters, and sends the new weights to all ranks:
 *
 *   three passes:   reduce-scatter -> update of the shard -> all-gather
 *   fused (sweep):  one all-reduce with update
 *
 * A rank stores only the states of its shard. Every element goes through the same operations as
 * without sharding, so no bit changes. A bucket that cannot be sharded is all-reduced.
 */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

uint64_t wefti_lower_unit_bytes(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    /* What is on the wire in bf16 is half as long, and whole units, too. */
    uint64_t unit = WEFTI_PLAN_ALIGNMENT * (l->params->gradients.wire == WEFT_DTYPE_BF16 ? 2u : 1u);
    return bucket->sharded ? unit * l->shards : unit;
}

/* Sharded, the reduced gradient is nowhere whole: only the update may read it. */
static const char *read_by_others(const wefti_lowering_t *l, const wefti_readers_t *readers,
                                  const wefti_member_t *member)
{
    const wefti_value_t *reduced = &l->graph->values[member->reduced];
    if ((reduced->flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0) {
        return "is an output of the graph";
    }
    for (uint32_t i = readers->first[member->reduced]; i < readers->first[member->reduced + 1];
         i++) {
        if (readers->nodes[i] != member->update &&
            !wefti_lower_is_square_sum(&l->graph->nodes[readers->nodes[i]])) {
            return "is read by more than its update";
        }
    }
    return NULL;
}

/* Of a bucket and its pieces. */
static uint64_t member_bytes(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        bytes += wefti_align_up(wefti_value_bytes(&l->graph->values[bucket->members[i].value]),
                                WEFTI_PLAN_ALIGNMENT);
    }
    return bytes;
}

/* Why a bucket cannot be sharded, or NULL. */
static const char *whole_why(wefti_lowering_t *l, const wefti_readers_t *readers,
                             const wefti_bucket_t *bucket)
{
    uint64_t bytes = member_bytes(l, bucket);
    if (!bucket->coalesced) {
        return "not sharded: its updates are not one element-wise operator with the same settings";
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_value_t *value = &l->graph->values[bucket->members[i].value];
        const char *why = read_by_others(l, readers, &bucket->members[i]);
        if (why != NULL) {
            why = wefti_arena_printf(&l->arena, "not sharded: %s %s", value->name, why);
            return why == NULL ? "not sharded" : why;
        }
    }
    uint64_t unit = WEFTI_PLAN_ALIGNMENT * (l->params->gradients.wire == WEFT_DTYPE_BF16 ? 2u : 1u);
    return bucket->parts > (bytes - 1) / (unit * l->shards) + 1
               ? "not sharded: its pieces are smaller than one shard per rank"
               : NULL;
}

static uint32_t count_states(const wefti_lowering_t *l, const wefti_node_t *update)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < update->input_count; j++) {
        count += update->inputs[j] != WEFTI_NONE &&
                 l->graph->values[update->inputs[j]].kind == WEFTI_VALUE_STATE;
    }
    return count;
}

/*
 * What a sweep saves is a second look at the shard: the reduced gradients, written and read again,
 * and the new parameters, read once more to be given away; and one of two calls. What it costs is
 * that it begins when the last reader of the parameters has run.
 */
static weft_status_t compare_sweep(wefti_lowering_t *l, wefti_bucket_t *bucket, uint64_t bytes)
{
    const wefti_shard_cost_t *cost = l->params->shard_cost;
    uint64_t shard = bytes / l->shards, sent = wefti_lower_grad_bytes(l, bytes);
    uint64_t states = 2ull * count_states(l, &l->graph->nodes[bucket->members[0].update]);
    uint64_t apart, sweep, update_bytes = shard * (3 + states), swept_bytes = shard * (1 + states);
    double ps_per_byte = wefti_update_ns_per_byte(l->params->rates, (double)update_bytes) * 1e3;
    if (cost == NULL || l->params->bucket_cost == NULL) {
        bucket->sweep = true;
        return WEFT_OK;
    }
    apart = wefti_bucket_cost_ps(&cost->reduce_scatter, sent) +
            wefti_bucket_cost_ps(&cost->all_gather, bytes) +
            (uint64_t)((double)update_bytes * ps_per_byte);
    /* half of an all-reduce moves gradients, the other half weights */
    sweep = wefti_bucket_cost_ps(l->params->bucket_cost, sent) / 2 +
            wefti_bucket_cost_ps(l->params->bucket_cost, bytes) / 2 +
            (uint64_t)((double)swept_bytes * ps_per_byte);
    bucket->sweep = sweep < apart;
    bucket->sweep_ps = sweep;
    bucket->sweep_why =
        wefti_arena_printf(&l->arena, "fused reduce-update-gather %.1f us, three passes %.1f us",
                           (double)sweep / 1e6, (double)apart / 1e6);
    return bucket->sweep_why == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* Whether a sweep may update the bucket's parameters, and then how many items must have run: it
 * writes them, so nobody may read them any more. */
static bool may_sweep(const wefti_lowering_t *l, const wefti_readers_t *readers,
                      wefti_bucket_t *bucket)
{
    const wefti_node_t *update = &l->graph->nodes[bucket->members[0].update];
    bucket->start = bucket->ready;
    for (uint32_t j = 0; j < update->input_count; j++) { /* a scale that is computed first */
        uint32_t value = update->inputs[j];
        if (value != WEFTI_NONE && value != bucket->members[0].reduced &&
            l->graph->values[value].producer != WEFTI_NONE) {
            return false;
        }
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_member_t *member = &bucket->members[i];
        if (readers->first[member->reduced + 1] - readers->first[member->reduced] != 1) {
            return false; /* somebody sums its squares: it must be there */
        }
        for (uint32_t r = readers->first[member->param]; r < readers->first[member->param + 1];
             r++) {
            uint32_t node = readers->nodes[r];
            if (node == member->update) {
                continue;
            }
            if (l->item_of[node] == WEFTI_NONE) { /* another update, or a collective */
                return false;
            }
            if (l->item_of[node] >= bucket->start) {
                bucket->start = l->item_of[node] + 1;
            }
        }
    }
    return true;
}

weft_status_t wefti_lower_choose_shards(wefti_lowering_t *l, const wefti_readers_t *readers,
                                        wefti_bucket_t *bucket)
{
    bucket->gather = WEFTI_NONE;
    bucket->kernel = WEFTI_NONE;
    bucket->param_shard = bucket->grad_shard = bucket->param_range = WEFTI_NONE;
    if (l->shards == 1 || !bucket->gradients) {
        return WEFT_OK;
    }
    bucket->whole_why = whole_why(l, readers, bucket);
    bucket->sharded = bucket->whole_why == NULL;
    if (!bucket->sharded || !l->params->sweep || !may_sweep(l, readers, bucket)) {
        return WEFT_OK;
    }
    return compare_sweep(l, bucket, member_bytes(l, bucket) / bucket->parts);
}

uint64_t wefti_lower_range_bytes(const wefti_bucket_t *bucket)
{
    return bucket->end_bytes - bucket->begin_bytes;
}

weft_dtype_t wefti_lower_param_dtype(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return l->graph->values[bucket->members[0].param].type.dtype;
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

/* Where a bucket's reduced gradient lies: in the region of gradients, where it was made or, in
 * another type, put to be reduced. */
static weft_status_t need_grad_shard(wefti_lowering_t *l, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    return add_shard(l, index, "gradients", wefti_lower_grad_dtype(l, bucket),
                     l->grad_begin + wefti_lower_grad_bytes(l, bucket->begin_bytes),
                     wefti_lower_grad_bytes(l, wefti_lower_range_bytes(bucket)) / l->shards,
                     &bucket->grad_shard);
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

/* "momentum" of the state "w_momentum" of parameter "w". */
static const char *slot_name(const wefti_lowering_t *l, uint32_t state)
{
    const char *name = l->graph->values[state].name;
    const char *param = l->graph->values[l->graph->values[state].state_of].name;
    size_t skip = strlen(param);
    if (strncmp(name, param, skip) == 0 && (name[skip] == '_' || name[skip] == '.')) {
        name += skip + 1;
    }
    return name;
}

weft_status_t wefti_lower_add_shard_states(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *update = &l->graph->nodes[bucket->members[0].update];
    uint64_t bytes = wefti_lower_range_bytes(bucket) / l->shards;
    bucket->states = wefti_lower_map(l, l->state_count);
    if (bucket->states == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t j = 0; j < update->input_count; j++) {
        uint32_t v = update->inputs[j];
        uint32_t slot = v == WEFTI_NONE || l->graph->values[v].kind != WEFTI_VALUE_STATE
                            ? WEFTI_NONE
                            : l->state_slot[v];
        if (slot == WEFTI_NONE || bucket->states[slot] != WEFTI_NONE) {
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
    }
    /* Every member's states are in the bucket's. */
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_node_t *node = &l->graph->nodes[bucket->members[i].update];
        for (uint32_t j = 0; j < node->input_count; j++) {
            uint32_t v = node->inputs[j];
            if (v != WEFTI_NONE && l->graph->values[v].kind == WEFTI_VALUE_STATE &&
                l->state_slot[v] != WEFTI_NONE && l->buffer_of[v] == WEFTI_NONE) {
                l->buffer_of[v] = bucket->states[l->state_slot[v]];
            }
        }
    }
fail:
    return status;
}

weft_status_t wefti_lower_shard_operand(wefti_lowering_t *l, uint32_t index, uint32_t value,
                                        uint32_t *out_buffer)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_member_t *first = &bucket->members[0];
    if (value == first->param) {
        WEFT_TRY(status, wefti_lower_param_shard(l, index), fail);
        *out_buffer = bucket->param_shard;
    } else if (value == first->reduced) {
        WEFT_TRY(status, need_grad_shard(l, index), fail);
        *out_buffer = bucket->grad_shard;
    } else if (value != WEFTI_NONE && l->graph->values[value].kind == WEFTI_VALUE_STATE &&
               l->state_slot[value] != WEFTI_NONE) {
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
static weft_status_t make_sweep(wefti_lowering_t *l, uint32_t index,
                                wefti_plan_collective_t *collective)
{
    weft_status_t status;
    const wefti_bucket_t *bucket = &l->buckets[index];
    char size[32];
    wefti_format_bytes(wefti_lower_range_bytes(bucket) / l->shards, size);
    WEFT_TRY(status, wefti_lower_param_range(l, index), fail);
    collective->buffer = bucket->param_range;
    collective->update = bucket->kernel;
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, wefti_lower_range_bytes(bucket)),
             fail);
    for (uint32_t i = 0; i < collective->algorithm_count; i++) {
        collective->algorithms[i].predicted_ps = bucket->sweep_ps; /* the update included */
    }
    status = extend_reason(l, collective,
                           wefti_arena_printf(&l->arena,
                                              "each rank reduces, updates and sends %s of it%s%s",
                                              size, bucket->sweep_why == NULL ? "" : ": ",
                                              bucket->sweep_why == NULL ? "" : bucket->sweep_why));
fail:
    return status;
}

weft_status_t wefti_lower_shard_collective(wefti_lowering_t *l, uint32_t index,
                                           wefti_plan_collective_t *collective)
{
    weft_status_t status;
    wefti_bucket_t *bucket = &l->buckets[index];
    char size[32];
    if (!bucket->sharded) {
        return bucket->whole_why == NULL ? WEFT_OK
                                         : extend_reason(l, collective, bucket->whole_why);
    }
    if (bucket->sweep) {
        return make_sweep(l, index, collective);
    }
    wefti_format_bytes(wefti_lower_range_bytes(bucket) / l->shards, size);
    WEFT_TRY(status, need_grad_shard(l, index), fail);
    collective->op = WEFT_OP_REDUCE_SCATTER;
    collective->buffer = bucket->grad_shard;
    collective->elem_count /= l->shards;
    WEFT_TRY(status, wefti_lower_add_algorithms(l, collective, wefti_lower_range_bytes(bucket)),
             fail);
    wefti_lower_predict(
        collective, l->params->shard_cost == NULL ? NULL : &l->params->shard_cost->reduce_scatter,
        wefti_lower_range_bytes(bucket));
    status =
        extend_reason(l, collective,
                      wefti_arena_printf(&l->arena, "each rank reduces and updates %s of it%s%s",
                                         size, bucket->sweep_why == NULL ? "" : "; ",
                                         bucket->sweep_why == NULL ? "" : bucket->sweep_why));
fail:
    return status;
}
