/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flat ranges that collectives reduce, each with its members and its update, and which
 * all-gathers gather the weights of which range.
 */
#include "fusion/lower/lower.h"
#include "fusion/passes/gradient_sums.h"
#include "fusion/passes/update_group.h"
#include "runtime/base/error.h"

uint32_t wefti_lower_command_bucket(const wefti_lowering_t *l, uint32_t command)
{
    const wefti_command_t *at = &l->order->commands[command];
    uint32_t first = l->buckets->of_node[at->node];
    return first == WEFTI_NONE ? WEFTI_NONE : first + at->part;
}

uint32_t wefti_lower_item_bucket(const wefti_lowering_t *l, uint32_t item)
{
    const wefti_item_t *at = &l->order->items[item];
    uint32_t first = l->buckets->of_node[at->node];
    return first == WEFTI_NONE ? WEFTI_NONE : first + at->part;
}

uint64_t wefti_lower_grad_bytes(const wefti_lowering_t *l, uint64_t bytes)
{
    return l->buckets->half ? bytes / 2 : bytes;
}

weft_dtype_t wefti_lower_grad_dtype(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return l->graph->values[bucket->members[0].sent].type.dtype;
}

bool wefti_lower_is_rounded(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return wefti_lower_grad_dtype(l, bucket) !=
           l->graph->values[bucket->members[0].value].type.dtype;
}

weft_dtype_t wefti_lower_param_dtype(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return l->graph->values[bucket->members[0].param].type.dtype;
}

uint64_t wefti_lower_param_offset(const wefti_lowering_t *l, uint32_t bucket)
{
    return l->regions->places[bucket].begin_bytes +
           (l->buckets->list[bucket].gathered ? WEFTI_PLAN_NOWHERE : l->regions->param_begin);
}

bool wefti_lower_is_copy(const wefti_graph_t *graph, const wefti_node_t *node)
{
    bool copies = wefti_node_is_flat_gather(node) && node->phase != WEFTI_PHASE_UPDATE;
    for (uint32_t i = 0; copies && i < node->output_count; i++) {
        copies = node->outputs[i] == WEFTI_NONE ||
                 (graph->values[node->outputs[i]].flags & WEFTI_VALUE_PERSISTENT) == 0;
    }
    return copies;
}

/* A gradient is reduced in place, so no other node may read the value before the reduction. */
static weft_status_t check_member(const wefti_lowering_t *l, const wefti_node_t *node,
                                  uint32_t value)
{
    const wefti_readers_t *readers = &l->order->readers;
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

/* The gradient that a value is the fold of, or value itself. */
static uint32_t unfolded(const wefti_lowering_t *l, uint32_t value)
{
    const wefti_value_t *at = &l->graph->values[value];
    return at->producer != WEFTI_NONE && wefti_lower_is_fold(l, at->producer)
               ? l->graph->nodes[at->producer].inputs[at->producer_output]
               : value;
}

/* The parameter whose memory has the weights of a value: gathered, or the parameter itself. */
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
    const wefti_readers_t *readers = &l->order->readers;
    uint32_t shard = node->outputs[0], weights = WEFTI_NONE;
    for (uint32_t i = readers->first[shard]; i < readers->first[shard + 1]; i++) {
        const wefti_node_t *update = &graph->nodes[readers->nodes[i]];
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

static weft_status_t add_members(wefti_lowering_t *l, wefti_bucket_t *bucket)
{
    const wefti_graph_t *graph = l->graph;
    const wefti_node_t *node = &graph->nodes[bucket->node], *weights = NULL;
    uint32_t first;
    bucket->member_count = wefti_lower_members(node, &first);
    bucket->members = wefti_arena_array(&l->arena, bucket->member_count, sizeof(*bucket->members));
    WEFT_RETURN_IF_NO_MEMORY(bucket->members);
    if (bucket->sharded && !bucket->fused) {
        WEFT_RETURN_IF_ERROR(find_weights(l, node, &weights));
    }
    for (uint32_t i = 0; i < bucket->member_count; i++) {
        uint32_t sent = node->inputs[first + i];
        uint32_t value = sent == WEFTI_NONE ? WEFTI_NONE : unfolded(l, sent);
        WEFT_RETURN_IF_ERROR(check_member(l, node, value));
        bucket->members[i] =
            (wefti_member_t){.value = value,
                             .sent = sent,
                             .reduced = bucket->sharded ? WEFTI_NONE : node->outputs[i],
                             .param = bucket->fused     ? node->inputs[i]
                                      : weights != NULL ? param_of(graph, weights->inputs[i])
                                                        : graph->values[node->outputs[i]].grad_of};
    }
    return WEFT_OK;
}

static weft_status_t add_bucket(wefti_lowering_t *l, wefti_buckets_t *b, uint32_t id)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t index = b->count, command = l->order->command_of[id];
    bool fused = wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE;
    wefti_bucket_t bucket = {.node = id,
                             .sharded = fused || wefti_node_is_flat_scatter(node),
                             .fused = fused,
                             .parts = l->order->commands[command].parts,
                             .update = WEFTI_NONE};
    WEFT_RETURN_IF_ERROR(add_members(l, &bucket));
    b->half = b->half || wefti_lower_is_rounded(l, &bucket);
    b->shards = bucket.sharded ? l->params->world_size : b->shards;
    b->of_node[id] = index;
    for (uint32_t part = 0; part < bucket.parts; part++) {
        bucket.part = part;
        bucket.command = command + part;
        b->list[b->count++] = bucket;
    }
    return fused ? wefti_lower_update(l, id, b) : WEFT_OK;
}

/* Are gradients of no use after their reduction: no partial sums, no norm of their shards? */
static bool is_passing(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    const wefti_graph_t *graph = l->graph;
    const wefti_readers_t *readers = &l->order->readers;
    uint32_t shard = graph->nodes[bucket->node].outputs[0];
    uint32_t fold = graph->values[bucket->members[0].sent].producer;
    const wefti_node_t *node = &graph->nodes[fold];
    return readers->first[shard + 1] - readers->first[shard] == 1 &&
           !(wefti_lower_is_fold(l, fold) && node->input_count > node->output_count);
}

/* Gathers may run before the collectives that reduce their buckets. */
static weft_status_t find_gathered(wefti_lowering_t *l, wefti_buckets_t *buckets)
{
    const wefti_graph_t *graph = l->graph;
    uint32_t *bucket_of = wefti_id_map(&l->arena, graph->value_count);
    WEFT_RETURN_IF_NO_MEMORY(bucket_of);
    for (uint32_t b = buckets->count; b-- > 0;) {
        if (buckets->list[b].sharded && !buckets->list[b].fused) {
            bucket_of[buckets->list[b].members[0].param] = b;
        }
    }
    for (uint32_t c = 0; c < l->order->command_count; c++) {
        const wefti_command_t *command = &l->order->commands[c];
        const wefti_node_t *node = &graph->nodes[command->node];
        if (!wefti_node_is_flat_gather(node)) {
            continue;
        }
        uint32_t b = node->inputs[1] == WEFTI_NONE ? WEFTI_NONE : bucket_of[node->inputs[1]];
        bool same = b != WEFTI_NONE && buckets->list[b].member_count == node->output_count &&
                    buckets->list[b].parts == command->parts;
        for (uint32_t i = 0; same && i < node->output_count; i++) {
            same = buckets->list[b].members[i].param == node->inputs[i + 1];
        }
        if (!same) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s' (%s): does not gather the weights of one ReduceScatter",
                               node->name, node->def->name);
        }
        buckets->of_node[command->node] = b;
        if (wefti_lower_is_copy(graph, node)) {
            wefti_bucket_t *bucket = &buckets->list[b + command->part];
            bucket->gathered = true;
            bucket->passing = is_passing(l, bucket);
        }
    }
    return WEFT_OK;
}

/* No parameter has two updates. */
static weft_status_t check_updates(wefti_lowering_t *l)
{
    uint32_t *updater = wefti_id_map(&l->arena, l->graph->value_count);
    WEFT_RETURN_IF_NO_MEMORY(updater);
    for (uint32_t n = 0; n < l->order->item_count; n++) {
        uint32_t id = l->order->items[n].node;
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

weft_status_t wefti_lower_buckets(wefti_lowering_t *l, wefti_buckets_t *out)
{
    const wefti_graph_t *graph = l->graph;
    out->shards = 1;
    out->list = wefti_arena_array(&l->arena, l->order->command_count, sizeof(*out->list));
    out->of_node = wefti_id_map(&l->arena, graph->node_count);
    out->shard_of = wefti_id_map(&l->arena, graph->value_count);
    out->state_of = wefti_id_map(&l->arena, graph->value_count);
    WEFT_RETURN_IF_NO_MEMORY(out->list && out->of_node && out->shard_of && out->state_of);
    WEFT_RETURN_IF_ERROR(wefti_state_slots(graph, &l->arena, &out->state_slot, &out->state_count));
    for (uint32_t i = 0; i < l->order->node_count; i++) {
        uint32_t id = l->order->nodes[i];
        const wefti_node_t *node = &graph->nodes[id];
        if (wefti_node_is_flat_scatter(node) || wefti_reduces_gradients(graph, node) ||
            wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE) {
            WEFT_RETURN_IF_ERROR(add_bucket(l, out, id));
        } else if (wefti_lower_range_update(graph, node) != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(wefti_lower_update(l, id, out));
        }
    }
    WEFT_RETURN_IF_ERROR(find_gathered(l, out));
    return check_updates(l);
}
