/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items of updates. A fused update is one kernel over the bucket's range, an update of shards one
 * over a rank's shard; of a split tensor, one per piece.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

bool wefti_lower_is_view(const wefti_node_t *node)
{
    return wefti_node_range(node) == WEFT_RANGE_ROLE_SHARD;
}

/* The update that node fused, with the first of every operand that members have in turn. states:
 * how many of each state there are. */
static weft_status_t read_fused(wefti_lowering_t *l, const wefti_node_t *node, uint32_t states,
                                wefti_bucket_t *bucket)
{
    uint32_t members = bucket->member_count, at = 0, count = 0;
    const weft_op_def_t *def =
        weft_registry_find_op(l->graph->registry, "weft", wefti_node_text(node, "update"),
                              (int32_t)wefti_node_int(node, "update_version"));
    uint32_t *operands = wefti_arena_array(&l->arena, node->input_count, sizeof(*operands));
    if (operands == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t j = 0; at < node->input_count; j++, count++) {
        bool state = node->inputs[at] != WEFTI_NONE &&
                     l->graph->values[node->inputs[at]].kind == WEFTI_VALUE_STATE;
        operands[j] = node->inputs[at];
        at += j < 2 ? members : state ? states : 1;
    }
    if (def == NULL || (def->effects & WEFT_EFFECT_UPDATES) == 0 ||
        wefti_node_int(node, "members") != members || at != node->input_count ||
        count < def->inputs_min || (def->inputs_max != WEFT_VARIADIC && count > def->inputs_max)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): inputs do not match update '%.60s' of %u parameters",
                           node->name, node->def->name, wefti_node_text(node, "update"), members);
    }
    bucket->update_def = def;
    bucket->operands = operands;
    bucket->operand_count = count;
    return WEFT_OK;
}

/* State k of a sharded update lies in state region k. */
static void number_shard_states(wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    uint32_t slot = 0;
    for (uint32_t j = 0; j < bucket->operand_count; j++) {
        uint32_t v = bucket->operands[j];
        if (v != WEFTI_NONE && l->graph->values[v].kind == WEFTI_VALUE_STATE) {
            l->state_slot[v] = slot++;
        }
    }
    l->state_count = slot > l->state_count ? slot : l->state_count;
}

weft_status_t wefti_lower_fused_update(wefti_lowering_t *l, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    weft_status_t status = read_fused(l, &l->graph->nodes[bucket->node], 1, bucket);
    bucket->update = bucket->node;
    number_shard_states(l, bucket);
    return status;
}

static void use_shards(wefti_lowering_t *l, const wefti_node_t *update, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    bucket->update_def = update->def;
    bucket->operands = update->inputs;
    bucket->operand_count = update->input_count;
    l->shard_of[update->inputs[1]] = index;
    l->shard_of[update->inputs[0]] = index;
    l->shard_of[update->outputs[0]] = index;
    number_shard_states(l, bucket);
}

/* The bucket that an update updates at once, or WEFTI_NONE. */
static uint32_t find_bucket(const wefti_lowering_t *l, const wefti_node_t *update)
{
    bool fused = wefti_node_range(update) == WEFT_RANGE_ROLE_UPDATE;
    uint32_t at = fused ? (uint32_t)wefti_node_int(update, "members") : 1;
    uint32_t index =
        at < update->input_count ? wefti_lower_bucket_of(l, update->inputs[at]) : WEFTI_NONE;
    return index != WEFTI_NONE && l->buckets[index].gradients && l->buckets[index].sharded == !fused
               ? index
               : WEFTI_NONE;
}

/* Every bucket has one update, of all of its parameters. */
static weft_status_t check_update(const wefti_lowering_t *l, const wefti_node_t *update,
                                  const wefti_bucket_t *bucket)
{
    uint32_t members = bucket->member_count;
    bool same =
        bucket->update == WEFTI_NONE &&
        (bucket->sharded ? update->inputs[0] != WEFTI_NONE && update->outputs[0] != WEFTI_NONE
                         : update->input_count >= 2 * members);
    for (uint32_t i = 0; same && !bucket->sharded && i < members; i++) {
        same = update->inputs[i] == bucket->members[i].param &&
               update->inputs[members + i] == bucket->members[i].reduced;
    }
    return same ? WEFT_OK
                : wefti_error(WEFT_ERR_UNSUPPORTED,
                              "node '%s' (%s): not the update of the parameters of node '%s'",
                              update->name, update->def->name, l->graph->nodes[bucket->node].name);
}

weft_status_t wefti_lower_update(wefti_lowering_t *l, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t index = find_bucket(l, node);
    if (index == WEFTI_NONE) {
        wefti_lower_add_items(l, id, WEFTI_NONE, 1);
        return WEFT_OK;
    }
    wefti_bucket_t *bucket = &l->buckets[index];
    WEFT_TRY(status, check_update(l, node, bucket), fail);
    if (bucket->sharded) {
        use_shards(l, node, index);
    } else {
        WEFT_TRY(status, read_fused(l, node, bucket->member_count, bucket), fail);
    }
    for (uint32_t part = 0; part < bucket->parts; part++) {
        wefti_bucket_t *piece = &bucket[part];
        piece->update = id;
        piece->update_def = bucket->update_def;
        piece->operands = bucket->operands;
        piece->operand_count = bucket->operand_count;
    }
    wefti_lower_add_items(l, id, index, bucket->parts);
    return WEFT_OK;
fail:
    return status;
}
