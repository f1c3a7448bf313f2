/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs where and in which order. The compute stream runs forward, backward and then all
 * updates, so every reader of a parameter has run before it is updated; check_order proves it. The
 * comm stream runs the buckets as they become ready.
 */
#include "fusion/lower.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define MAX_PARTS (1u << 20)

static bool communicates(const wefti_node_t *node)
{
    return (node->def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

static uint32_t *new_map(wefti_lowering_t *l, uint32_t count)
{
    uint32_t *map = wefti_arena_array(&l->arena, count, sizeof(*map));
    if (map != NULL) {
        memset(map, 0xff, (size_t)count * sizeof(*map)); /* WEFTI_NONE */
    }
    return map;
}

/* For every value the nodes that read it: users of v are readers[first[v]] up to readers[first[v +
 * 1]]. */
typedef struct readers {
    uint32_t *first, *nodes;
} readers_t;

static weft_status_t find_readers(wefti_lowering_t *l, readers_t *out)
{
    const wefti_graph_t *graph = l->graph;
    uint32_t total = 0;
    out->first = wefti_arena_array(&l->arena, (size_t)graph->value_count + 2, sizeof(*out->first));
    if (out->first == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < graph->order_count; i++) {
            const wefti_node_t *node = &graph->nodes[graph->order[i]];
            for (uint32_t j = 0; j < node->input_count; j++) {
                uint32_t value = node->inputs[j];
                if (value == WEFTI_NONE) {
                    continue;
                }
                if (pass == 0) {
                    out->first[value + 2]++;
                    total++;
                } else {
                    out->nodes[out->first[value + 1]++] = graph->order[i];
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

static void add_item(wefti_lowering_t *l, uint32_t node, uint32_t bucket)
{
    l->item_of[node] = l->item_count;
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
    if (attr->type != WEFT_ATTR_INT || attr->i < 1 ||
        (uint64_t)attr->i > (bytes + WEFTI_PLAN_ALIGNMENT - 1) / WEFTI_PLAN_ALIGNMENT ||
        attr->i > MAX_PARTS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: parts is no number of pieces that its one tensor can be cut into",
                           node->name);
    }
    *out_parts = (uint32_t)attr->i;
    return WEFT_OK;
}

/* A collective works in place, so nobody else may want what was there before. */
static weft_status_t check_member(const wefti_lowering_t *l, const readers_t *readers,
                                  const wefti_node_t *node, uint32_t value)
{
    const wefti_value_t *v = value == WEFTI_NONE ? NULL : &l->graph->values[value];
    if (v == NULL || v->kind != WEFTI_VALUE_NODE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: collective on %s, which no operator of the graph makes", node->name,
                           v == NULL ? "an absent tensor" : v->name);
    }
    for (uint32_t i = readers->first[value]; i < readers->first[value + 1]; i++) {
        const wefti_node_t *reader = &l->graph->nodes[readers->nodes[i]];
        if (reader != node) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s works in place on %s, but %s reads it too",
                               node->name, v->name, reader->name);
        }
    }
    return WEFT_OK;
}

static weft_status_t make_bucket(wefti_lowering_t *l, const readers_t *readers, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    wefti_bucket_t *bucket = &l->buckets[l->bucket_count];
    if (strcmp(node->def->name, "AllReduce") != 0 || node->input_count != node->output_count ||
        node->input_count == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: %s inside a step is not supported yet (AllReduce is)", node->name,
                           node->def->name);
    }
    *bucket = (wefti_bucket_t){
        .node = id, .member_count = node->input_count, .parts = 1, .gradients = true};
    bucket->members = wefti_arena_array(&l->arena, node->input_count, sizeof(*bucket->members));
    if (bucket->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        wefti_member_t *member = &bucket->members[i];
        uint32_t producer, before;
        WEFT_TRY(status, check_member(l, readers, node, node->inputs[i]), fail);
        *member = (wefti_member_t){
            .value = node->inputs[i], .reduced = node->outputs[i], .update = WEFTI_NONE};
        member->param =
            member->reduced == WEFTI_NONE ? WEFTI_NONE : l->graph->values[member->reduced].grad_of;
        bucket->gradients &= member->param != WEFTI_NONE;
        producer = l->graph->values[member->value].producer;
        if (l->graph->nodes[producer].phase == WEFTI_PHASE_UPDATE) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: a collective on the result of an update is not supported",
                               node->name);
        }
        before = communicates(&l->graph->nodes[producer]) ? l->buckets[l->bucket_of[producer]].ready
                                                          : l->item_of[producer] + 1;
        bucket->ready = before > bucket->ready ? before : bucket->ready;
    }
    if (!bucket->gradients && bucket->member_count > 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: several tensors that are not all gradients are not supported yet",
                           node->name);
    }
    l->bucket_of[id] = l->bucket_count++;
    WEFT_TRY(status, parts_of(l, node, &bucket->parts), fail);
    if (bucket->parts > 1 && !bucket->gradients) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s is split, but its tensor is no gradient",
                           node->name);
    }
    for (uint32_t part = 1; part < bucket->parts; part++) {
        wefti_bucket_t *piece = &l->buckets[l->bucket_count++];
        *piece = *bucket;
        piece->part = part;
    }
    return WEFT_OK;
fail:
    return status;
}

static int compare_ready(const void *a, const void *b)
{
    const wefti_bucket_t *x = a, *y = b;
    if (x->ready != y->ready) {
        return x->ready < y->ready ? -1 : 1;
    }
    return 0;
}

/* Stable: buckets ready at the same time keep the graph's order, so one that reads another's result
 * follows it, and pieces stay together. */
static void sort_buckets(wefti_lowering_t *l)
{
    for (uint32_t i = 1; i < l->bucket_count; i++) {
        wefti_bucket_t moved = l->buckets[i];
        uint32_t at = i;
        while (at > 0 && compare_ready(&l->buckets[at - 1], &moved) > 0) {
            l->buckets[at] = l->buckets[at - 1];
            at--;
        }
        l->buckets[at] = moved;
    }
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        if (l->buckets[i].part == 0) {
            l->bucket_of[l->buckets[i].node] = i;
        }
    }
}

/* The one update node among the readers of a reduced gradient. */
static uint32_t find_update(const wefti_lowering_t *l, const readers_t *readers, uint32_t value)
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

/* The optimizers known to work element by element; another one may take norms over a whole tensor.
 */
static bool is_elementwise_update(const weft_op_def_t *def)
{
    return strcmp(def->domain, "weft") == 0 &&
           (strcmp(def->name, "SGD") == 0 || strcmp(def->name, "Momentum") == 0 ||
            strcmp(def->name, "Adam") == 0);
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
    l->state_slot = new_map(l, graph->value_count);
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
        if (bucket->coalesced) {
            l->items[l->item_count++] =
                (wefti_item_t){.node = bucket->members[0].update, .bucket = index};
        }
        return;
    }
    for (uint32_t j = 0; j < bucket->member_count; j++) {
        uint32_t update = bucket->members[j].update;
        if (bucket->coalesced && j > 0) {
            l->item_of[update] = l->item_count - 1;
        } else if (update != WEFTI_NONE) {
            add_item(l, update, bucket->coalesced ? index : WEFTI_NONE);
        }
    }
}

/* All updates behind everything else, by bucket; what belongs to no bucket comes last. */
static void add_updates(wefti_lowering_t *l, const readers_t *readers)
{
    for (uint32_t i = 0; i < l->bucket_count; i++) {
        wefti_bucket_t *bucket = &l->buckets[i];
        for (uint32_t j = 0; j < bucket->member_count; j++) {
            wefti_member_t *member = &bucket->members[j];
            member->update = member->reduced == WEFTI_NONE
                                 ? WEFTI_NONE
                                 : find_update(l, readers, member->reduced);
        }
        bucket->coalesced = can_coalesce(l, bucket);
        add_bucket_updates(l, i);
    }
    for (uint32_t i = 0; i < l->graph->order_count; i++) {
        uint32_t id = l->graph->order[i];
        if (l->graph->nodes[id].phase == WEFTI_PHASE_UPDATE && l->item_of[id] == WEFTI_NONE &&
            l->bucket_of[id] == WEFTI_NONE) {
            add_item(l, id, WEFTI_NONE);
        }
    }
}

/* Every value is made before it is read, and no parameter is read after its update. */
static weft_status_t check_order(wefti_lowering_t *l)
{
    uint32_t *updater = new_map(l, l->graph->value_count);
    if (updater == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t n = 0; n < l->graph->order_count; n++) {
        uint32_t id = l->graph->order[n];
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
                return wefti_error(WEFT_ERR_UNSUPPORTED, "%s reads %s, which an update makes",
                                   node->name, l->graph->values[value].name);
            }
            if (value == WEFTI_NONE || node->phase != WEFTI_PHASE_UPDATE ||
                l->graph->values[value].kind != WEFTI_VALUE_PARAM) {
                continue;
            }
            if (updater[value] != WEFTI_NONE && updater[value] != id) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "%s reads %s, which %s has updated",
                                   node->name, l->graph->values[value].name,
                                   l->graph->nodes[updater[value]].name);
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
    readers_t readers = {0};
    size_t most = 0; /* items, or buckets: a node may become as many as it is split into */
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t parts;
        WEFT_TRY(status, parts_of(l, &graph->nodes[graph->order[i]], &parts), fail);
        most += parts;
    }
    l->items = wefti_arena_array(&l->arena, most, sizeof(*l->items));
    l->buckets = wefti_arena_array(&l->arena, most, sizeof(*l->buckets));
    l->item_of = new_map(l, graph->node_count);
    l->bucket_of = new_map(l, graph->node_count);
    if (l->items == NULL || l->buckets == NULL || l->item_of == NULL || l->bucket_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, find_readers(l, &readers), fail);
    WEFT_TRY(status, number_states(l), fail);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (communicates(&graph->nodes[id])) {
            WEFT_TRY(status, make_bucket(l, &readers, id), fail);
        } else if (graph->nodes[id].phase != WEFTI_PHASE_UPDATE) {
            add_item(l, id, WEFTI_NONE);
        }
    }
    sort_buckets(l);
    add_updates(l, &readers);
    WEFT_TRY(status, check_order(l), fail);
fail:
    return status;
}
