/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: all of them behind everything else, bucket by bucket. Members whose updates are the same
 * element-wise operator are updated by one kernel over the bucket's range; a piece of a tensor by
 * one over the piece's.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* The one update node among the readers of a reduced gradient. */
static uint32_t find_update(const wefti_lowering_t *l, const wefti_readers_t *readers,
                            uint32_t value)
{
    uint32_t found = WEFTI_NONE;
    for (uint32_t i = readers->first[value]; i < readers->first[value + 1]; i++) {
        uint32_t node = readers->nodes[i];
        if (l->graph->nodes[node].phase == WEFTI_PHASE_UPDATE) {
            if (found != WEFTI_NONE && found != node) {
                return WEFTI_NONE;
            }
            found = node;
        }
    }
    return found;
}

static bool same_attr(const weft_attr_t *a, const weft_attr_t *b)
{
    return strcmp(a->name, b->name) == 0 && a->type == b->type &&
           (a->type == WEFT_ATTR_INT     ? a->i == b->i
            : a->type == WEFT_ATTR_FLOAT ? memcmp(&a->f, &b->f, sizeof(a->f)) == 0
                                         : false);
}

/* Input slot of an update, as seen from its member: equal roles may be read as one range. */
static bool same_role(const wefti_lowering_t *l, const wefti_member_t *a, uint32_t value_a,
                      const wefti_member_t *b, uint32_t value_b)
{
    if (value_a == a->param || value_b == b->param) {
        return value_a == a->param && value_b == b->param;
    }
    if (value_a == a->reduced || value_b == b->reduced) {
        return value_a == a->reduced && value_b == b->reduced;
    }
    if (value_a == value_b) {
        return true;
    }
    if (value_a == WEFTI_NONE || value_b == WEFTI_NONE ||
        l->graph->values[value_a].kind != WEFTI_VALUE_STATE ||
        l->graph->values[value_b].kind != WEFTI_VALUE_STATE) {
        return false;
    }
    return l->graph->values[value_a].state_of == a->param &&
           l->graph->values[value_b].state_of == b->param && l->state_slot[value_a] != WEFTI_NONE &&
           l->state_slot[value_a] == l->state_slot[value_b];
}

/* Other updates may take norms over a whole tensor. */
static bool is_elementwise_update(const weft_op_def_t *def)
{
    return (def->effects & WEFT_EFFECT_UPDATES) != 0 && wefti_op_has(def, WEFT_FACT_ELEMENTWISE);
}

static bool can_coalesce(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    const wefti_member_t *first = &bucket->members[0];
    const wefti_node_t *a = first->update == WEFTI_NONE ? NULL : &l->graph->nodes[first->update];
    if (!bucket->gradients || a == NULL || !is_elementwise_update(a->def)) {
        return false;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        const wefti_member_t *member = &bucket->members[i];
        const wefti_node_t *b =
            member->update == WEFTI_NONE ? NULL : &l->graph->nodes[member->update];
        if (b == NULL || a->def != b->def || a->version != b->version ||
            a->input_count != b->input_count || a->output_count != b->output_count ||
            a->attr_count != b->attr_count ||
            l->graph->values[first->param].type.dtype !=
                l->graph->values[member->param].type.dtype) {
            return false;
        }
        for (uint32_t j = 0; j < a->attr_count; j++) {
            if (!same_attr(&a->attrs[j], &b->attrs[j])) {
                return false;
            }
        }
        for (uint32_t j = 0; j < a->input_count; j++) {
            if (!same_role(l, first, a->inputs[j], member, b->inputs[j])) {
                return false;
            }
        }
    }
    return true;
}

/* The k-th state of a parameter goes into region k if it mirrors the parameter. */
static weft_status_t number_states(wefti_lowering_t *l)
{
    const wefti_graph_t *graph = l->graph;
    uint32_t *next = wefti_arena_array(&l->arena, graph->value_count, sizeof(*next));
    l->state_slot = wefti_lower_map(l, graph->value_count);
    if (next == NULL || l->state_slot == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        const wefti_value_t *state = &graph->values[v];
        const wefti_value_t *param;
        if (state->kind != WEFTI_VALUE_STATE || state->state_of == WEFTI_NONE) {
            continue;
        }
        param = &graph->values[state->state_of];
        if (state->type.dtype == param->type.dtype &&
            wefti_value_bytes(state) == wefti_value_bytes(param)) {
            l->state_slot[v] = next[state->state_of]++;
            l->state_count =
                l->state_slot[v] + 1 > l->state_count ? l->state_slot[v] + 1 : l->state_count;
        }
    }
    return WEFT_OK;
}

/* Updates of the members of one bucket. Of pieces the first gets the member's item if they cannot
 * be updated one by one; else their items follow one another. */
static void add_bucket_updates(wefti_lowering_t *l, uint32_t index)
{
    wefti_bucket_t *bucket = &l->buckets[index];
    if (bucket->part > 0) {
        if (bucket->coalesced && !bucket->sweep) {
            l->items[l->item_count++] =
                (wefti_item_t){.node = bucket->members[0].update, .bucket = index};
        }
        return;
    }
    for (uint32_t j = 0; j < bucket->member_count && !bucket->sweep; j++) {
        uint32_t update = bucket->members[j].update;
        if (bucket->coalesced && j > 0) {
            l->item_of[update] = l->item_count - 1;
        } else if (update != WEFTI_NONE) {
            wefti_lower_add_item(l, update, bucket->coalesced ? index : WEFTI_NONE);
        }
    }
}

weft_status_t wefti_lower_find_updates(wefti_lowering_t *l, const wefti_readers_t *readers)
{
    weft_status_t status;
    WEFT_TRY(status, number_states(l), fail);
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        wefti_bucket_t *bucket = &l->buckets[i];
        if (bucket->gradients && bucket->part > 0) { /* pieces have the first one's member */
            uint32_t part = bucket->part, ready = bucket->ready;
            *bucket = l->buckets[i - 1];
            bucket->part = part;
            bucket->ready = ready;
            bucket->start = bucket->start > ready ? bucket->start : ready;
            continue;
        }
        for (uint32_t j = 0; j < bucket->member_count; j++) {
            wefti_member_t *member = &bucket->members[j];
            member->update = member->reduced == WEFTI_NONE
                                 ? WEFTI_NONE
                                 : find_update(l, readers, member->reduced);
        }
        bucket->coalesced = can_coalesce(l, bucket);
        WEFT_TRY(status, wefti_lower_choose_shards(l, readers, bucket), fail);
    }
fail:
    return status;
}

/* What a sweep runs is no item. */
static void mark_swept(const wefti_lowering_t *l, bool *swept)
{
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        const wefti_bucket_t *bucket = &l->buckets[i];
        for (uint32_t j = 0; bucket->sweep && j < bucket->member_count; j++) {
            swept[bucket->members[j].update] = true;
        }
    }
}

/* All updates behind everything else, by bucket; what belongs to no bucket comes last. */
weft_status_t wefti_lower_updates(wefti_lowering_t *l)
{
    bool *swept = wefti_arena_array(&l->arena, l->graph->node_count, sizeof(*swept));
    if (swept == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    mark_swept(l, swept);
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        add_bucket_updates(l, i);
    }
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t id = l->order[i];
        if (l->graph->nodes[id].phase == WEFTI_PHASE_UPDATE && l->item_of[id] == WEFTI_NONE &&
            l->bucket_of[id] == WEFTI_NONE && !swept[id]) {
            wefti_lower_add_item(l, id, WEFTI_NONE);
        }
    }
    return WEFT_OK;
}
