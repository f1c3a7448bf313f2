/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates of ranges. A fused update is one kernel over the bucket's range, an update of shards one
 * over a rank's shard; of a split tensor, one per piece.
 */
#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

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
    WEFT_RETURN_IF_NO_MEMORY(operands);
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
static void number_states(const wefti_lowering_t *l, const wefti_bucket_t *bucket,
                          wefti_buckets_t *b)
{
    uint32_t slot = 0;
    for (uint32_t j = 0; j < bucket->operand_count; j++) {
        uint32_t v = bucket->operands[j];
        if (v != WEFTI_NONE && l->graph->values[v].kind == WEFTI_VALUE_STATE) {
            b->state_slot[v] = slot++;
            b->state_of[v] = (uint32_t)(bucket - b->list);
        }
    }
    b->state_count = slot > b->state_count ? slot : b->state_count;
}

/* Every bucket has one update, of all of its parameters. */
static weft_status_t check_update(const wefti_lowering_t *l, const wefti_node_t *update,
                                  const wefti_bucket_t *bucket)
{
    uint32_t members = bucket->member_count;
    bool same = bucket->update == WEFTI_NONE;
    if (bucket->sharded) {
        same = same && update->inputs[0] != WEFTI_NONE && update->outputs[0] != WEFTI_NONE;
    } else {
        same = same && update->input_count >= 2 * members;
    }
    for (uint32_t i = 0; same && !bucket->sharded && i < members; i++) {
        same = update->inputs[i] == bucket->members[i].param &&
               update->inputs[members + i] == bucket->members[i].reduced;
    }
    return same ? WEFT_OK
                : wefti_error(WEFT_ERR_UNSUPPORTED,
                              "node '%s' (%s): not the update of the parameters of node '%s'",
                              update->name, update->def->name, l->graph->nodes[bucket->node].name);
}

static void use_shards(const wefti_node_t *update, wefti_bucket_t *bucket, wefti_buckets_t *b)
{
    uint32_t index = (uint32_t)(bucket - b->list);
    bucket->update_def = update->def;
    bucket->operands = update->inputs;
    bucket->operand_count = update->input_count;
    b->shard_of[update->inputs[1]] = index;
    b->shard_of[update->inputs[0]] = index;
    b->shard_of[update->outputs[0]] = index;
}

weft_status_t wefti_lower_update(wefti_lowering_t *l, uint32_t id, wefti_buckets_t *b)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t reduce = wefti_lower_range_update(l->graph, node);
    uint32_t index = b->of_node[reduce == WEFTI_NONE ? id : reduce];
    wefti_bucket_t *bucket = &b->list[index];
    if (!bucket->fused) {
        WEFT_RETURN_IF_ERROR(check_update(l, node, bucket));
    }
    if (bucket->sharded && !bucket->fused) {
        use_shards(node, bucket, b);
    } else {
        WEFT_RETURN_IF_ERROR(read_fused(l, node, bucket->fused ? 1 : bucket->member_count, bucket));
    }
    if (bucket->sharded) {
        number_states(l, bucket, b);
    }
    b->of_node[id] = index;
    for (uint32_t part = 0; part < bucket->parts; part++) {
        bucket[part].update = id;
        bucket[part].update_def = bucket->update_def;
        bucket[part].operands = bucket->operands;
        bucket[part].operand_count = bucket->operand_count;
    }
    return WEFT_OK;
}
