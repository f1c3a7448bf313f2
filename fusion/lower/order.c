/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs where and in which order. The compute stream runs forward, backward and then all
 * updates, so every reader of a parameter has run before it is updated; check_order proves it. The
 * comm stream runs the buckets as they become ready.
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

static weft_status_t find_readers(wefti_lowering_t *l, wefti_readers_t *out)
{
    const wefti_graph_t *graph = l->graph;
    uint32_t total = 0;
    out->first = wefti_arena_array(&l->arena, (size_t)graph->value_count + 2, sizeof(*out->first));
    if (out->first == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < l->order_count; i++) {
            const wefti_node_t *node = &graph->nodes[l->order[i]];
            for (uint32_t j = 0; j < node->input_count; j++) {
                uint32_t value = node->inputs[j];
                if (value == WEFTI_NONE) {
                    continue;
                }
                if (pass == 0) {
                    out->first[value + 2]++;
                    total++;
                } else {
                    out->nodes[out->first[value + 1]++] = l->order[i];
                }
            }
        }
        if (pass == 0) {
            for (uint32_t v = 2; v < graph->value_count + 2; v++) {
                out->first[v] += out->first[v - 1];
            }
            out->nodes = wefti_arena_array(&l->arena, total, sizeof(*out->nodes));
            if (out->nodes == NULL) {
                return WEFT_ERR_NO_MEMORY;
            }
        }
    }
    return WEFT_OK;
}

void wefti_lower_add_item(wefti_lowering_t *l, uint32_t node, uint32_t bucket)
{
    l->item_of[node] = l->item_count;
    for (uint32_t v = l->variant_of[node]; v != WEFTI_NONE; v = l->next_variant[v]) {
        l->item_of[v] = l->item_count;
    }
    l->items[l->item_count++] = (wefti_item_t){.node = node, .bucket = bucket};
}

/* How many pieces a collective is carried out in; 1 for what does not communicate, too. */
static weft_status_t parts_of(const wefti_lowering_t *l, const wefti_node_t *node,
                              uint32_t *out_parts)
{
    const weft_attr_t *attr = communicates(node) ? wefti_node_attr(node, "parts") : NULL;
    uint64_t bytes;
    *out_parts = 1;
    if (attr == NULL) {
        return WEFT_OK;
    }
    bytes = node->input_count == 1 && node->inputs[0] != WEFTI_NONE
                ? wefti_value_bytes(&l->graph->values[node->inputs[0]])
                : 0;
    uint64_t most = (bytes + WEFTI_PLAN_ALIGNMENT - 1) / WEFTI_PLAN_ALIGNMENT;
    most = most < MAX_PARTS ? most : MAX_PARTS;
    if (attr->type != WEFT_ATTR_INT || attr->i < 1 || (uint64_t)attr->i > most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): attribute 'parts' must be between 1 and %llu: %lld",
                           node->name, node->def->name, (unsigned long long)most,
                           attr->type == WEFT_ATTR_INT ? (long long)attr->i : 0);
    }
    *out_parts = (uint32_t)attr->i;
    return WEFT_OK;
}

/* A gradient is reduced in place, so no other node may read the value before the reduction. */
static weft_status_t check_member(const wefti_lowering_t *l, const wefti_readers_t *readers,
                                  const wefti_node_t *node, uint32_t value)
{
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

/* An all-reduce of gradients alone: they have regions. */
static bool reduces_gradients(const wefti_lowering_t *l, const wefti_node_t *node)
{
    weft_collective_t op;
    if (!wefti_lower_collective_op(node, &op) || op != WEFT_OP_ALL_REDUCE ||
        node->input_count != node->output_count || node->input_count == 0) {
        return false;
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] == WEFTI_NONE ||
            l->graph->values[node->outputs[i]].grad_of == WEFTI_NONE) {
            return false;
        }
    }
    return true;
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

static weft_status_t make_bucket(wefti_lowering_t *l, const wefti_readers_t *readers, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    wefti_bucket_t *bucket = &l->buckets[l->bucket_count];
    if (!reduces_gradients(l, node)) {
        return wefti_lower_activations(l, id);
    }
    *bucket = (wefti_bucket_t){.node = id,
                               .op = WEFT_OP_ALL_REDUCE,
                               .member_count = node->input_count,
                               .ready = l->item_count,
                               .parts = 1,
                               .gradients = true};
    bucket->members = wefti_arena_array(&l->arena, node->input_count, sizeof(*bucket->members));
    if (bucket->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        wefti_member_t *member = &bucket->members[i];
        uint32_t sent = node->inputs[i];
        uint32_t value = sent == WEFTI_NONE ? WEFTI_NONE : wefti_lower_unfolded(l, sent);
        WEFT_TRY(status, check_member(l, readers, node, value), fail);
        *member = (wefti_member_t){
            .value = value, .sent = sent, .reduced = node->outputs[i], .update = WEFTI_NONE};
        member->param = l->graph->values[member->reduced].grad_of;
    }
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
            if (producer != WEFTI_NONE &&
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
    wefti_readers_t readers = {0};
    size_t pieces = 0;
    size_t most = 0; /* items, or buckets: a node may become as many as it is split into */
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t parts;
        const wefti_node_t *node = &graph->nodes[l->order[i]];
        WEFT_TRY(status, parts_of(l, node, &parts), fail);
        parts =
            wefti_lower_is_fold(l, l->order[i]) ? wefti_lower_fold_parts(l, l->order[i]) : parts;
        most += communicates(node) && node->input_count > parts ? node->input_count : parts;
        pieces += parts > 1 ? parts : 0;
        if (pieces > MAX_PARTS) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "collectives split into too many pieces: limit %u", MAX_PARTS);
        }
    }
    l->items = wefti_arena_array(&l->arena, most, sizeof(*l->items));
    l->buckets = wefti_arena_array(&l->arena, most, sizeof(*l->buckets));
    l->item_of = wefti_lower_map(l, graph->node_count);
    l->bucket_of = wefti_lower_map(l, graph->node_count);
    if (l->items == NULL || l->buckets == NULL || l->item_of == NULL || l->bucket_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, find_readers(l, &readers), fail);
    WEFT_TRY(status, wefti_lower_constraints(l), fail);
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t id = l->order[i];
        if (communicates(&graph->nodes[id])) {
            WEFT_TRY(status, make_bucket(l, &readers, id), fail);
        } else if (graph->nodes[id].phase != WEFTI_PHASE_UPDATE) {
            uint32_t parts = wefti_lower_is_fold(l, id) ? wefti_lower_fold_parts(l, id) : 1;
            wefti_lower_add_item(l, id, WEFTI_NONE);
            for (uint32_t part = 1; part < parts; part++) {
                l->items[l->item_count++] = (wefti_item_t){.node = id, .bucket = WEFTI_NONE};
            }
        }
    }
    WEFT_TRY(status, wefti_lower_find_folds(l), fail);
    WEFT_TRY(status, wefti_lower_find_updates(l, &readers), fail);
    WEFT_TRY(status, wefti_lower_updates(l), fail);
    WEFT_TRY(status, check_order(l), fail);
fail:
    return status;
}
