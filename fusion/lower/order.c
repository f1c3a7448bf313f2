/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two streams, in the order of the graph: items are what the compute stream runs, commands the
 * collectives. A command starts after the items in front of it.
 */
#include "fusion/lower/lower.h"

#include <string.h>

#include "runtime/base/error.h"

/* Of all collectives together: ids stay far from their limits whatever a model file asks for. */
#define MAX_PARTS (1u << 20)

uint32_t *wefti_lower_map(wefti_lowering_t *l, uint32_t count)
{
    uint32_t *map = wefti_arena_array(&l->arena, count, sizeof(*map));
    if (map != NULL) {
        memset(map, 0xff, (size_t)count * sizeof(*map)); /* WEFTI_NONE */
    }
    return map;
}

void wefti_lower_add_items(wefti_lowering_t *l, uint32_t node, uint32_t bucket, uint32_t count)
{
    l->item_of[node] = l->item_count;
    for (uint32_t v = l->variant_of[node]; v != WEFTI_NONE; v = l->next_variant[v]) {
        l->item_of[v] = l->item_count;
    }
    for (uint32_t part = 0; part < count; part++) {
        l->items[l->item_count++] = (wefti_item_t){
            .node = node, .bucket = bucket == WEFTI_NONE ? WEFTI_NONE : bucket + part};
    }
}

uint32_t wefti_lower_bucket_of(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t producer = wefti_producer(l->graph, value);
    uint32_t command = producer == WEFTI_NONE ? WEFTI_NONE : l->command_of[producer];
    return command == WEFTI_NONE ? WEFTI_NONE : l->commands[command].bucket;
}

/* Tensors of the flat range of a collective; *out_first: the first one's input. */
static uint32_t count_members(const wefti_node_t *node, uint32_t *out_first)
{
    uint32_t members = (wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE)
                           ? (uint32_t)wefti_node_int(node, "members")
                           : 0;
    *out_first = wefti_node_is_flat_gather(node) ? 1 : members;
    return members > 0 ? members : node->input_count - *out_first;
}

/* Number of pieces that a collective is split into; 1 for what does not communicate. */
static weft_status_t parts_of(const wefti_lowering_t *l, const wefti_node_t *node,
                              uint32_t *out_parts)
{
    const weft_attr_t *attr = wefti_node_communicates(node) ? wefti_node_attr(node, "parts") : NULL;
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

/* The weights that a value is, in the memory of a parameter: gathered, or the parameter itself. */
static uint32_t param_of(const wefti_graph_t *graph, uint32_t value)
{
    const wefti_value_t *at = &graph->values[value];
    return at->producer != WEFTI_NONE && wefti_node_is_flat_gather(&graph->nodes[at->producer])
               ? graph->nodes[at->producer].inputs[at->producer_output + 1]
               : value;
}

/* The shard of weights that the update of a reduce-scattered shard of gradients overwrites. */
static weft_status_t find_weights(const wefti_lowering_t *l, const wefti_node_t *node,
                                  const wefti_node_t **out_weights)
{
    const wefti_graph_t *graph = l->graph;
    uint32_t shard = node->outputs[0], weights = WEFTI_NONE;
    for (uint32_t i = l->readers.first[shard]; i < l->readers.first[shard + 1]; i++) {
        const wefti_node_t *update = &graph->nodes[l->readers.nodes[i]];
        if (update->phase == WEFTI_PHASE_UPDATE && update->inputs[0] != WEFTI_NONE) {
            weights = graph->values[update->inputs[0]].producer;
        }
    }
    *out_weights = weights == WEFTI_NONE ? NULL : &graph->nodes[weights];
    return weights != WEFTI_NONE && wefti_lower_is_view(*out_weights) &&
                   (*out_weights)->input_count == node->input_count
               ? WEFT_OK
               : wefti_error(WEFT_ERR_UNSUPPORTED,
                             "node '%s' (%s): attribute 'flat' requires an update of a Shard of %u "
                             "parameters",
                             node->name, node->def->name, node->input_count);
}

static weft_status_t add_members(wefti_lowering_t *l, wefti_bucket_t *bucket, uint32_t first)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = l->graph;
    const wefti_node_t *node = &graph->nodes[bucket->node], *weights = NULL;
    bucket->members = wefti_arena_array(&l->arena, bucket->member_count, sizeof(*bucket->members));
    if (bucket->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (bucket->sharded && !bucket->fused) {
        WEFT_TRY(status, find_weights(l, node, &weights), fail);
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        uint32_t sent = node->inputs[first + i];
        uint32_t value = sent == WEFTI_NONE ? WEFTI_NONE : wefti_lower_unfolded(l, sent);
        WEFT_TRY(status, check_member(l, node, value), fail);
        bucket->members[i] =
            (wefti_member_t){.value = value,
                             .sent = sent,
                             .reduced = bucket->sharded ? WEFTI_NONE : node->outputs[i],
                             .param = bucket->fused     ? node->inputs[i]
                                      : weights != NULL ? param_of(graph, weights->inputs[i])
                                                        : graph->values[node->outputs[i]].grad_of};
    }
fail:
    return status;
}

/* Commands of a node, whose first input is written by producer. A piece is ready after its own item
 * of the producer, not after that of all pieces. */
static void add_commands(wefti_lowering_t *l, uint32_t node, uint32_t producer, uint32_t bucket,
                         uint32_t parts)
{
    uint32_t from = producer == WEFTI_NONE ? WEFTI_NONE : l->item_of[producer];
    bool by_piece = from != WEFTI_NONE && from + parts == l->item_count &&
                    l->items[from + parts - 1].node == producer;
    l->command_of[node] = l->command_count;
    for (uint32_t part = 0; part < parts; part++) {
        l->commands[l->command_count++] =
            (wefti_command_t){.node = node,
                              .part = part,
                              .parts = parts,
                              .ready = by_piece ? from + part + 1 : l->item_count,
                              .bucket = bucket == WEFTI_NONE ? WEFTI_NONE : bucket + part};
    }
}

static weft_status_t make_bucket(wefti_lowering_t *l, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t index = l->bucket_count, first;
    wefti_bucket_t *bucket = &l->buckets[index];
    bool fused = (wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE);
    bool sharded = fused || wefti_node_is_flat_scatter(node);
    if (!sharded && !wefti_reduces_gradients(l->graph, node)) {
        WEFT_TRY(status, wefti_lower_activations(l, id), fail);
        add_commands(l, id, WEFTI_NONE, index, l->bucket_count - index);
        return WEFT_OK;
    }
    *bucket = (wefti_bucket_t){.node = id,
                               .op = WEFT_COLLECTIVE_ALL_REDUCE,
                               .command = l->command_count,
                               .sharded = sharded,
                               .fused = fused,
                               .parts = 1,
                               .gradients = true,
                               .update = WEFTI_NONE,
                               .kernel = WEFTI_NONE,
                               .param_shard = WEFTI_NONE,
                               .grad_shard = WEFTI_NONE,
                               .param_range = WEFTI_NONE};
    bucket->member_count = count_members(node, &first);
    WEFT_TRY(status, add_members(l, bucket, first), fail);
    WEFT_TRY(status, parts_of(l, node, &bucket->parts), fail);
    if (fused) {
        WEFT_TRY(status, wefti_lower_fused_update(l, index), fail);
    }
    for (uint32_t part = 0; part < bucket->parts; part++) {
        l->buckets[index + part] = *bucket;
        l->buckets[index + part].part = part;
        l->buckets[index + part].command = l->command_count + part;
    }
    l->bucket_count += bucket->parts;
    add_commands(l, id, l->graph->values[bucket->members[0].sent].producer, index, bucket->parts);
fail:
    return status;
}

/* Gathers may run before the collectives that reduce their buckets. */
static weft_status_t find_gathered(wefti_lowering_t *l)
{
    const wefti_graph_t *graph = l->graph;
    uint32_t *bucket_of = wefti_lower_map(l, graph->value_count);
    if (bucket_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t b = l->bucket_count; b-- > 0;) {
        if (l->buckets[b].sharded && !l->buckets[b].fused) {
            bucket_of[l->buckets[b].members[0].param] = b;
        }
    }
    for (uint32_t c = 0; c < l->command_count; c++) {
        wefti_command_t *command = &l->commands[c];
        const wefti_node_t *node = &graph->nodes[command->node];
        if (!wefti_node_is_flat_gather(node)) {
            continue;
        }
        uint32_t b = node->inputs[1] == WEFTI_NONE ? WEFTI_NONE : bucket_of[node->inputs[1]];
        bool same = b != WEFTI_NONE && l->buckets[b].member_count == node->output_count &&
                    l->buckets[b].parts == command->parts;
        for (uint32_t i = 0; same && i < node->output_count; i++) {
            same = l->buckets[b].members[i].param == node->inputs[i + 1];
        }
        if (!same) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s' (%s): does not gather the weights of one ReduceScatter",
                               node->name, node->def->name);
        }
        command->bucket = b + command->part;
        if (wefti_lower_is_copy(l, node)) {
            l->buckets[command->bucket].gathered = true;
            l->buckets[command->bucket].passing =
                l->params->gradients.accumulate <= 1 && l->params->gradients.clip_norm == 0;
        }
    }
    return WEFT_OK;
}

/* No parameter has two updates. */
static weft_status_t check_updates(wefti_lowering_t *l)
{
    uint32_t *updater = wefti_lower_map(l, l->graph->value_count);
    if (updater == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t n = 0; n < l->item_count; n++) {
        uint32_t id = l->items[n].node;
        const wefti_node_t *node = &l->graph->nodes[id];
        for (uint32_t j = 0; node->phase == WEFTI_PHASE_UPDATE && j < node->input_count; j++) {
            uint32_t value = node->inputs[j];
            if (value == WEFTI_NONE || l->graph->values[value].kind != WEFTI_VALUE_PARAM) {
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

/* Room for items, buckets and commands: a node may become as many as it is split into. */
static weft_status_t begin(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = l->graph;
    size_t pieces = 0, items = 0, commands = 0;
    for (uint32_t i = 0; i < l->order_count; i++) {
        uint32_t parts;
        const wefti_node_t *node = &graph->nodes[l->order[i]];
        WEFT_TRY(status, parts_of(l, node, &parts), fail);
        parts =
            wefti_lower_is_fold(l, l->order[i]) ? wefti_lower_fold_parts(l, l->order[i]) : parts;
        size_t most =
            wefti_node_communicates(node) && node->input_count > parts ? node->input_count : parts;
        items += most;
        commands += wefti_node_communicates(node) ? most : 0;
        pieces += parts > 1 ? parts : 0;
        if (pieces > MAX_PARTS) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "collectives split into too many pieces: limit %u", MAX_PARTS);
        }
    }
    l->items = wefti_arena_array(&l->arena, items, sizeof(*l->items));
    l->buckets = wefti_arena_array(&l->arena, commands, sizeof(*l->buckets));
    l->commands = wefti_arena_array(&l->arena, commands, sizeof(*l->commands));
    l->item_of = wefti_lower_map(l, graph->node_count);
    l->command_of = wefti_lower_map(l, graph->node_count);
    l->shard_of = wefti_lower_map(l, graph->value_count);
    if (l->items == NULL || l->buckets == NULL || l->commands == NULL || l->item_of == NULL ||
        l->command_of == NULL || l->shard_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_graph_readers(graph, l->order, l->order_count, &l->arena, &l->readers),
             fail);
    WEFT_TRY(status, wefti_state_slots(graph, &l->arena, &l->state_slot, &l->state_count), fail);
    status = wefti_lower_constraints(l);
fail:
    return status;
}

static weft_status_t visit(wefti_lowering_t *l, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t parts = 1;
    if (wefti_lower_is_view(node)) {
        return WEFT_OK;
    }
    if (wefti_node_is_flat_gather(node)) {
        WEFT_TRY(status, parts_of(l, node, &parts), fail);
        add_commands(l, id, l->graph->values[node->inputs[0]].producer, WEFTI_NONE, parts);
        return WEFT_OK;
    }
    if (wefti_node_communicates(node)) {
        return make_bucket(l, id);
    }
    if (node->phase == WEFTI_PHASE_UPDATE) {
        return wefti_lower_update(l, id);
    }
    wefti_lower_add_items(l, id, WEFTI_NONE,
                          wefti_lower_is_fold(l, id) ? wefti_lower_fold_parts(l, id) : 1);
    return WEFT_OK;
fail:
    return status;
}

weft_status_t wefti_lower_order(wefti_lowering_t *l)
{
    weft_status_t status;
    WEFT_TRY(status, begin(l), fail);
    for (uint32_t i = 0; i < l->order_count; i++) {
        WEFT_TRY(status, visit(l, l->order[i]), fail);
    }
    WEFT_TRY(status, find_gathered(l), fail);
    WEFT_TRY(status, wefti_lower_find_folds(l), fail);
    WEFT_TRY(status, check_updates(l), fail);
fail:
    return status;
}
