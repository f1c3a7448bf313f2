/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order of the two streams. The compute stream runs forward, backward and then all updates, so
 * every reader of a parameter has run before its update; check_order proves it. The comm stream
 * runs the buckets as they become ready.
 */
#include "fusion/lower/lower.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* Of all collectives together: ids stay far from their limits whatever a model file asks for. */
#define MAX_PARTS (1u << 20)

static bool communicates(const wefti_node_t *node)
{
    return (node->def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

uint32_t *wefti_lower_map(wefti_lowering_t *l, uint32_t count)
{
    uint32_t *map = wefti_arena_array(&l->arena, count, sizeof(*map));
    if (map != NULL) {
        memset(map, 0xff, (size_t)count * sizeof(*map)); /* WEFTI_NONE */
    }
    return map;
}

void wefti_lower_add_item(wefti_lowering_t *l, uint32_t node, uint32_t bucket)
{
    l->item_of[node] = l->item_count;
    for (uint32_t v = l->variant_of[node]; v != WEFTI_NONE; v = l->next_variant[v]) {
        l->item_of[v] = l->item_count;
    }
    l->items[l->item_count++] = (wefti_item_t){.node = node, .bucket = bucket};
}

/* A gather that completes an update belongs to the bucket of its reduce-scatter. */
static bool makes_buckets(const wefti_node_t *node)
{
    return communicates(node) && !wefti_node_is_flat_gather(node);
}

/* Tensors that the collective of a bucket reads; *out_first: the first one's input. */
static uint32_t count_members(const wefti_node_t *node, uint32_t *out_first)
{
    uint32_t members = (wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE)
                           ? (uint32_t)wefti_node_int(node, "members")
                           : 0;
    *out_first = members;
    return members > 0 ? members : node->input_count;
}

/* Number of pieces that a collective is split into; 1 for what does not communicate. */
static weft_status_t parts_of(const wefti_lowering_t *l, const wefti_node_t *node,
                              uint32_t *out_parts)
{
    const weft_attr_t *attr = makes_buckets(node) ? wefti_node_attr(node, "parts") : NULL;
    uint32_t first;
    *out_parts = 1;
    if (attr == NULL) {
        return WEFT_OK;
    }
    uint64_t bytes = count_members(node, &first) == 1 && node->inputs[first] != WEFTI_NONE
                         ? wefti_value_bytes(&l->graph->values[node->inputs[first]])
                         : 0;
    uint64_t most = (bytes + WEFTI_PLAN_ALIGNMENT - 1) / WEFTI_PLAN_ALIGNMENT;
    most = most < MAX_PARTS ? most : MAX_PARTS;
    if (attr->type != WEFT_ATTR_TYPE_INT || attr->i < 1 || (uint64_t)attr->i > most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): attribute 'parts' must be between 1 and %llu: %lld",
                           node->name, node->def->name, (unsigned long long)most,
                           attr->type == WEFT_ATTR_TYPE_INT ? (long long)attr->i : 0);
    }
    *out_parts = (uint32_t)attr->i;
    return WEFT_OK;
}

/* A gradient is reduced in place, so no other node may read the value before the reduction. */
static weft_status_t check_member(const wefti_lowering_t *l, const wefti_node_t *node,
                                  uint32_t value)
{
    const wefti_readers_t *readers = &l->readers;
    const wefti_value_t *v = value == WEFTI_NONE ? NULL : &l->graph->values[value];
    if (v == NULL || v->kind != WEFTI_VALUE_NODE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): input '%s' is not the output of a node", node->name,
                           node->def->name, v == NULL ? "" : v->name);
    }
    for (uint32_t i = readers->first[value]; i < readers->first[value + 1]; i++) {
        const wefti_node_t *reader = &l->graph->nodes[readers->nodes[i]];
        if (reader != node && !wefti_lower_is_fold(l, readers->nodes[i])) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s': collective in place on '%s', which node '%s' also reads",
                               node->name, v->name, reader->name);
        }
    }
    return WEFT_OK;
}

/* The nodes that follow a reduce-scatter of gradients: the update of its shard and the gather. */
static weft_status_t find_update(const wefti_lowering_t *l, wefti_bucket_t *bucket)
{
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    uint32_t shard = node->outputs[0];
    bucket->update_node = bucket->gather_node = WEFTI_NONE;
    for (uint32_t i = l->readers.first[shard]; i < l->readers.first[shard + 1]; i++) {
        if (l->graph->nodes[l->readers.nodes[i]].phase == WEFTI_PHASE_UPDATE) {
            bucket->update_node = l->readers.nodes[i];
        }
    }
    uint32_t updated = bucket->update_node == WEFTI_NONE
                           ? WEFTI_NONE
                           : l->graph->nodes[bucket->update_node].outputs[0];
    for (uint32_t i = updated == WEFTI_NONE ? 0 : l->readers.first[updated];
         updated != WEFTI_NONE && i < l->readers.first[updated + 1]; i++) {
        if (wefti_node_is_flat_gather(&l->graph->nodes[l->readers.nodes[i]])) {
            bucket->gather_node = l->readers.nodes[i];
        }
    }
    if (bucket->gather_node == WEFTI_NONE ||
        l->graph->nodes[bucket->gather_node].output_count != node->input_count) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "node '%s' (%s): attribute 'flat' requires an update of the shard and an "
            "AllGather of %u parameters",
            node->name, node->def->name, node->input_count);
    }
    return WEFT_OK;
}

/* A piece is ready behind its own fold, not that of all pieces. */
static void ready_with_folds(wefti_lowering_t *l, uint32_t id)
{
    uint32_t first = l->bucket_of[id], parts = l->buckets[first].parts;
    uint32_t producer = l->graph->values[l->buckets[first].members[0].sent].producer;
    if (wefti_lower_is_fold(l, producer) && wefti_lower_fold_parts(l, producer) == parts &&
        l->item_of[producer] + parts == l->item_count) {
        for (uint32_t part = 0; part < parts; part++) {
            l->buckets[first + part].ready = l->item_of[producer] + part + 1;
        }
    }
}

/* Which parameter's gradient member i is. */
static uint32_t param_of(const wefti_lowering_t *l, const wefti_bucket_t *bucket, uint32_t i)
{
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    return bucket->fused     ? node->inputs[i]
           : bucket->sharded ? l->graph->nodes[bucket->gather_node].inputs[i + 1]
                             : l->graph->values[node->outputs[i]].grad_of;
}

static weft_status_t add_members(wefti_lowering_t *l, wefti_bucket_t *bucket, uint32_t first)
{
    weft_status_t status = WEFT_OK;
    const wefti_node_t *node = &l->graph->nodes[bucket->node];
    bucket->members = wefti_arena_array(&l->arena, bucket->member_count, sizeof(*bucket->members));
    if (bucket->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        uint32_t sent = node->inputs[first + i];
        uint32_t value = sent == WEFTI_NONE ? WEFTI_NONE : wefti_lower_unfolded(l, sent);
        WEFT_TRY(status, check_member(l, node, value), fail);
        bucket->members[i] =
            (wefti_member_t){.value = value,
                             .sent = sent,
                             .reduced = bucket->sharded ? WEFTI_NONE : node->outputs[i],
                             .param = param_of(l, bucket, i),
                             .update = WEFTI_NONE};
    }
fail:
    return status;
}

static weft_status_t make_bucket(wefti_lowering_t *l, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    wefti_bucket_t *bucket = &l->buckets[l->bucket_count];
    bool fused = (wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE);
    bool sharded = fused || wefti_node_is_flat_scatter(node);
    uint32_t first;
    if (!sharded && !wefti_reduces_gradients(l->graph, node)) {
        return wefti_lower_activations(l, id);
    }
    *bucket = (wefti_bucket_t){.node = id,
                               .op = WEFT_COLLECTIVE_ALL_REDUCE,
                               .sharded = sharded,
                               .fused = fused,
                               .ready = l->item_count,
                               .parts = 1,
                               .gradients = true,
                               .gather = WEFTI_NONE,
                               .kernel = WEFTI_NONE,
                               .param_shard = WEFTI_NONE,
                               .grad_shard = WEFTI_NONE,
                               .param_range = WEFTI_NONE};
    bucket->member_count = count_members(node, &first);
    if (sharded && !fused) {
        WEFT_TRY(status, find_update(l, bucket), fail);
    }
    WEFT_TRY(status, add_members(l, bucket, first), fail);
    l->bucket_of[id] = l->bucket_count++;
    WEFT_TRY(status, parts_of(l, node, &bucket->parts), fail);
    for (uint32_t part = 1; part < bucket->parts; part++) {
        wefti_bucket_t *piece = &l->buckets[l->bucket_count++];
        *piece = *bucket;
        piece->part = part;
    }
    ready_with_folds(l, id);
    return WEFT_OK;
fail:
    return status;
}

/* Every value is made before it is read, and no parameter is read after its update. */
static weft_status_t check_order(wefti_lowering_t *l)
{
    uint32_t *updater = wefti_lower_map(l, l->graph->value_count);
    if (updater == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t n = 0; n < l->order_count; n++) {
        uint32_t id = l->order[n];
        const wefti_node_t *node = &l->graph->nodes[id];
        if (l->item_of[id] == WEFTI_NONE) {
            continue;
        }
        for (uint32_t j = 0; j < node->input_count; j++) {
            uint32_t value = node->inputs[j];
            uint32_t producer = value == WEFTI_NONE ? WEFTI_NONE : l->graph->values[value].producer;
            if (producer != WEFTI_NONE && !wefti_lower_is_view(&l->graph->nodes[producer]) &&
                (l->bucket_of[producer] != WEFTI_NONE
                     ? l->buckets[l->bucket_of[producer]].ready > l->item_of[id]
                     : l->item_of[producer] >= l->item_of[id])) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "node '%s': reads '%s', the output of an update", node->name,
                                   l->graph->values[value].name);
            }
            if (value == WEFTI_NONE || node->phase != WEFTI_PHASE_UPDATE ||
                l->graph->values[value].kind != WEFTI_VALUE_PARAM) {
                continue;
            }
            if (updater[value] != WEFTI_NONE && updater[value] != id) {
                return wefti_error(
                    WEFT_ERR_UNSUPPORTED, "node '%s': reads '%s' after its update by node '%s'",
                    node->name, l->graph->values[value].name, l->graph->nodes[updater[value]].name);
            }
            updater[value] = id;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_order(wefti_lowering_t *l)
{
    weft_status_t status;
    const wefti_graph_t *graph = l->graph;
    size_t pieces = 0;
    size_t items = 0, buckets = 0; /* at most: a node may become as many as it is split into */
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t parts;
        const wefti_node_t *node = &graph->nodes[l->order[i]];
        WEFT_TRY(status, parts_of(l, node, &parts), fail);
        parts =
            wefti_lower_is_fold(l, l->order[i]) ? wefti_lower_fold_parts(l, l->order[i]) : parts;
        size_t most = makes_buckets(node) && node->input_count > parts ? node->input_count : parts;
        items += most;
        buckets += makes_buckets(node) ? most : 0;
        pieces += parts > 1 ? parts : 0;
        if (pieces > MAX_PARTS) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "collectives split into too many pieces: limit %u", MAX_PARTS);
        }
    }
    l->items = wefti_arena_array(&l->arena, items, sizeof(*l->items));
    l->buckets = wefti_arena_array(&l->arena, buckets, sizeof(*l->buckets));
    l->item_of = wefti_lower_map(l, graph->node_count);
    l->bucket_of = wefti_lower_map(l, graph->node_count);
    if (l->items == NULL || l->buckets == NULL || l->item_of == NULL || l->bucket_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_graph_readers(graph, l->order, l->order_count, &l->arena, &l->readers),
             fail);
    WEFT_TRY(status, wefti_lower_constraints(l), fail);
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t id = l->order[i];
        if (makes_buckets(&graph->nodes[id])) {
            WEFT_TRY(status, make_bucket(l, id), fail);
        } else if (graph->nodes[id].phase != WEFTI_PHASE_UPDATE) {
            uint32_t parts = wefti_lower_is_fold(l, id) ? wefti_lower_fold_parts(l, id) : 1;
            wefti_lower_add_item(l, id, WEFTI_NONE);
            for (uint32_t part = 1; part < parts; part++) {
                l->items[l->item_count++] = (wefti_item_t){.node = id, .bucket = WEFTI_NONE};
            }
        }
    }
    WEFT_TRY(status, wefti_lower_find_folds(l), fail);
    WEFT_TRY(status, wefti_lower_find_updates(l), fail);
    WEFT_TRY(status, wefti_lower_updates(l), fail);
    WEFT_TRY(status, check_order(l), fail);
fail:
    return status;
}
