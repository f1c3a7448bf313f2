/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates run after all other kernels, bucket by bucket. A fused update is one kernel over the
 * bucket's range, an update of shards one over a rank's shard; of a split tensor, one per piece.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

bool wefti_lower_is_view(const wefti_node_t *node)
{
    return wefti_node_range(node) == WEFT_RANGE_ROLE_SHARD;
}

/* The one update node among the readers of a reduced gradient. */
static uint32_t find_update(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t found = WEFTI_NONE;
    for (uint32_t i = l->readers.first[value]; i < l->readers.first[value + 1]; i++) {
        uint32_t node = l->readers.nodes[i];
        if (l->graph->nodes[node].phase == WEFTI_PHASE_UPDATE) {
            if (found != WEFTI_NONE && found != node) {
                return WEFTI_NONE;
            }
            found = node;
        }
    }
    return found;
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

static weft_status_t find_shard_update(wefti_lowering_t *l, uint32_t index)
{
    weft_status_t status = WEFT_OK;
    wefti_bucket_t *bucket = &l->buckets[index];
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    if (bucket->fused) {
        WEFT_TRY(status, read_fused(l, node, 1, bucket), fail);
    } else {
        const wefti_node_t *update = &l->graph->nodes[bucket->update_node];
        bucket->update_def = update->def;
        bucket->operands = update->inputs;
        bucket->operand_count = update->input_count;
        for (uint32_t i = 0; i < bucket->member_count; i++) {
            bucket->members[i].update = bucket->update_node;
        }
        l->shard_of[node->outputs[0]] = index;
        l->shard_of[update->inputs[0]] = index;
        l->shard_of[update->outputs[0]] = index;
    }
    number_shard_states(l, bucket);
fail:
    return status;
}

static weft_status_t find_whole_update(wefti_lowering_t *l, wefti_bucket_t *bucket)
{
    for (uint32_t j = 0; j < bucket->member_count; j++) {
        wefti_member_t *member = &bucket->members[j];
        member->update =
            member->reduced == WEFTI_NONE ? WEFTI_NONE : find_update(l, member->reduced);
    }
    const wefti_node_t *update = bucket->members[0].update == WEFTI_NONE
                                     ? NULL
                                     : &l->graph->nodes[bucket->members[0].update];
    return bucket->gradients && update != NULL &&
                   (wefti_node_range(update) == WEFT_RANGE_ROLE_UPDATE)
               ? read_fused(l, update, bucket->member_count, bucket)
               : WEFT_OK;
}

weft_status_t wefti_lower_find_updates(wefti_lowering_t *l)
{
    weft_status_t status;
    WEFT_TRY(status, wefti_state_slots(l->graph, &l->arena, &l->state_slot, &l->state_count), fail);
    l->shard_of = wefti_lower_map(l, l->graph->value_count);
    if (l->shard_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        wefti_bucket_t *bucket = &l->buckets[i];
        if (bucket->gradients && bucket->part > 0) { /* pieces have the first one's member */
            uint32_t part = bucket->part, ready = bucket->ready;
            *bucket = l->buckets[i - 1];
            bucket->part = part;
            bucket->ready = ready;
            continue;
        }
        status = bucket->sharded ? find_shard_update(l, i) : find_whole_update(l, bucket);
        WEFT_TRY(status, status, fail);
    }
fail:
    return status;
}

/* Updates of the members of one bucket. Of pieces the first gets the member's item if they cannot
 * be updated one by one; else their items follow one another. */
static void add_bucket_updates(wefti_lowering_t *l, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    if (bucket->fused || (bucket->part > 0 && bucket->update_def == NULL)) {
        return;
    }
    if (bucket->part > 0) {
        l->items[l->item_count++] =
            (wefti_item_t){.node = bucket->members[0].update, .bucket = index};
    } else if (bucket->update_def != NULL) {
        wefti_lower_add_item(l, bucket->members[0].update, index);
    }
    for (uint32_t j = 0; j < bucket->member_count && bucket->update_def == NULL; j++) {
        if (bucket->members[j].update != WEFTI_NONE) {
            wefti_lower_add_item(l, bucket->members[j].update, WEFTI_NONE);
        }
    }
}

/* All updates after everything else, by bucket; what belongs to no bucket comes last. */
weft_status_t wefti_lower_updates(wefti_lowering_t *l)
{
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        add_bucket_updates(l, i);
    }
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t id = l->order[i];
        const wefti_node_t *node = &l->graph->nodes[id];
        if (node->phase == WEFTI_PHASE_UPDATE && l->item_of[id] == WEFTI_NONE &&
            l->bucket_of[id] == WEFTI_NONE && !wefti_lower_is_view(node) &&
            !wefti_node_is_flat_gather(node)) {
            wefti_lower_add_item(l, id, WEFTI_NONE);
        }
    }
    return WEFT_OK;
}
