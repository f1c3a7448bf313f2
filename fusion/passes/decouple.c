/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decouple: gathers updated weights at the start of the next step instead of at the end of this
 * one, in the order of first use, so that the transfers overlap with the forward pass.
 *
 * Matches   the end of a sharded update, in program step (shard.c):
 *
 *   w1..wn -> readers      Shard(w1..wn) -> update of the shard -> AllGather -> w1'..wn'
 *
 * Produces  the gather in front, of the shard that the step before it left:
 *
 *   Shard(w1..wn) -> AllGather -> w1'..wn' -> readers      Shard(w1'..wn') -> update of the shard
 *
 * The gathered weights are persistent values in the memory of w1..wn. Program flush has the gathers
 * alone, for readers outside of a step. The gathers are in the first program of a step: micro_step,
 * or step. Where micro_step runs more than once per step, they are in flush alone, which the
 * session runs first.
 *
 * A step then ends without a barrier. This is safe for two reasons: a peer writes weights only
 * after it has started its next step, when no kernel reads the old ones; and a shard is updated
 * only after all peers have sent gradients, so after they have gathered it.
 */
#include <stdlib.h>
#include <string.h>

#include "fusion/passes/passes.h"

#define ONCE_PER_STEP 3u /* micro-batches of a step, at most: micro_step runs once */

/* A gather with the position of the first node that reads what it produces. */
typedef struct gather {
    uint32_t node, shard, index;
    uint32_t due; /* WEFTI_NONE: no node before the updates */
} gather_t;

typedef struct decoupler {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    gather_t *gathers;
    uint32_t count;
    uint32_t *nodes;                /* [2 * count]: shards and gathers */
    uint32_t *gather_of, *gathered; /* by value, of weights: an entry of gathers, and what it
                                      * produces, or WEFTI_NONE */
    bool *outside;                  /* by node: gathers, or runs before all steps */
} decoupler_t;

static weft_status_t begin(decoupler_t *d)
{
    const wefti_graph_t *graph = d->graph;
    const wefti_program_t *init = wefti_graph_find_program(graph, "init");
    d->gathers = wefti_arena_array(&d->arena, graph->order_count, sizeof(*d->gathers));
    d->nodes = wefti_arena_array(&d->arena, 2 * (size_t)graph->order_count, sizeof(*d->nodes));
    d->gather_of = wefti_id_map(&d->arena, graph->value_count);
    d->gathered = wefti_id_map(&d->arena, graph->value_count);
    d->outside = wefti_arena_array(&d->arena, graph->node_count, sizeof(*d->outside));
    WEFT_RETURN_IF_NO_MEMORY(d->gathers && d->nodes && d->gather_of && d->gathered && d->outside);
    for (uint32_t i = 0; init != NULL && i < init->node_count; i++) {
        d->outside[init->nodes[i]] = true;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (!wefti_node_is_flat_gather(node)) {
            continue;
        }
        d->outside[graph->order[i]] = true;
        for (uint32_t k = 0; k < node->output_count; k++) {
            d->gather_of[node->inputs[k + 1]] = d->count;
            d->gathered[node->inputs[k + 1]] = node->outputs[k];
        }
        d->gathers[d->count] = (gather_t){graph->order[i], WEFTI_NONE, d->count, WEFTI_NONE};
        d->count++;
    }
    return WEFT_OK;
}

/* Readers of weights read what the gather produces; notes the first one before the updates. */
static void redirect_readers(decoupler_t *d)
{
    const wefti_graph_t *graph = d->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count && !d->outside[graph->order[i]]; k++) {
            uint32_t value = node->inputs[k];
            if (value == WEFTI_NONE || d->gathered[value] == WEFTI_NONE) {
                continue;
            }
            gather_t *gather = &d->gathers[d->gather_of[value]];
            if (node->phase != WEFTI_PHASE_UPDATE && gather->due == WEFTI_NONE) {
                gather->due = i;
            }
            node->inputs[k] = d->gathered[value];
        }
    }
}

static int compare_due(const void *a, const void *b)
{
    const gather_t *x = a, *y = b;
    uint32_t first = x->due != y->due ? x->due : x->index,
             second = x->due != y->due ? y->due : y->index;
    return (first > second) - (first < second);
}

/* The gather reads a shard of the weights instead of the result of the update. */
static weft_status_t add_shard(decoupler_t *d, gather_t *gather)
{
    wefti_graph_t *graph = d->graph;
    wefti_node_t *node = &graph->nodes[gather->node];
    const wefti_node_t *first =
        gather->due == WEFTI_NONE ? NULL : &graph->nodes[graph->order[gather->due]];
    const wefti_node_params_t params = {
        .domain = "weft",
        .op = "Shard",
        .name = wefti_arena_printf(&graph->arena, "%s/shard", node->name),
        .phase = WEFTI_PHASE_COMM,
        .inputs = node->inputs + 1,
        .input_count = node->input_count - 1,
        .output_count = 1,
        .attrs = node->attrs,
        .attr_count = node->attr_count};
    const weft_attr_t reason = {
        .name = "reason",
        .type = WEFT_ATTR_TYPE_STRING,
        .s = first == NULL
                 ? "which no kernel reads before the next update"
                 : wefti_arena_printf(&d->arena, "which are read first by %s", first->name)};
    WEFT_RETURN_IF_NO_MEMORY(reason.s);
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, WEFTI_WHEN_READY, &gather->shard));
    node = &graph->nodes[gather->node]; /* nodes may have moved */
    node->inputs[0] = graph->nodes[gather->shard].outputs[0];
    node->phase = WEFTI_PHASE_COMM;
    node->after = gather->shard;
    for (uint32_t k = 0; k < node->output_count; k++) {
        if (node->outputs[k] != WEFTI_NONE) {
            graph->values[node->outputs[k]].flags |= WEFTI_VALUE_PERSISTENT;
        }
    }
    return wefti_graph_set_attr(graph, gather->node, &reason);
}

/* Gathers leave a program, or join it. */
static weft_status_t move_gathers(decoupler_t *d, wefti_program_t *program, bool join)
{
    uint32_t count = 0;
    uint32_t *nodes = wefti_arena_array(
        &d->graph->arena, (size_t)program->node_count + 2 * (size_t)d->count, sizeof(*nodes));
    WEFT_RETURN_IF_NO_MEMORY(nodes);
    for (uint32_t i = 0; i < program->node_count; i++) {
        if (!wefti_node_is_flat_gather(&d->graph->nodes[program->nodes[i]])) {
            nodes[count++] = program->nodes[i];
        }
    }
    if (join) {
        memcpy(nodes + count, d->nodes, 2 * (size_t)d->count * sizeof(*nodes));
    }
    program->nodes = nodes;
    program->node_count = count + (join ? 2 * d->count : 0);
    return WEFT_OK;
}

static weft_status_t set_programs(decoupler_t *d, uint32_t accumulate)
{
    wefti_graph_t *graph = d->graph;
    bool micro = wefti_graph_find_program(graph, "micro_step") != NULL;
    const char *first = !micro ? "step" : accumulate <= ONCE_PER_STEP ? "micro_step" : "";
    for (uint32_t i = 0; i < graph->program_count; i++) {
        bool joins = strcmp(graph->programs[i].name, first) == 0;
        if (joins || strcmp(graph->programs[i].name, "step") == 0) {
            WEFT_RETURN_IF_ERROR(move_gathers(d, &graph->programs[i], joins));
        }
    }
    return wefti_graph_add_program(graph, "flush", d->nodes, 2 * d->count);
}

static weft_status_t decouple(decoupler_t *d, uint32_t accumulate)
{
    WEFT_RETURN_IF_ERROR(begin(d));
    if (d->count == 0) { /* no bucket is sharded */
        return WEFT_OK;
    }
    redirect_readers(d);
    qsort(d->gathers, d->count, sizeof(*d->gathers), compare_due);
    for (uint32_t i = 0; i < d->count; i++) {
        WEFT_RETURN_IF_ERROR(add_shard(d, &d->gathers[i]));
        d->nodes[2 * i] = d->gathers[i].shard;
        d->nodes[2 * i + 1] = d->gathers[i].node;
    }
    WEFT_RETURN_IF_ERROR(set_programs(d, accumulate));
    return wefti_graph_sort(d->graph);
}

weft_status_t wefti_pass_decouple(wefti_graph_t *graph, uint32_t accumulate)
{
    decoupler_t d = {.graph = graph};
    wefti_arena_init(&d.arena, graph->arena.allocator, 0);
    weft_status_t status = decouple(&d, accumulate);
    wefti_arena_deinit(&d.arena);
    return status;
}

weft_status_t wefti_apply_decouple(wefti_compiler_t *c)
{
    return wefti_pass_decouple(c->graph, c->gradient_params.accumulate);
}
