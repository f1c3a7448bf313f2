/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage-order: stages work at the same time.
 *
 * Matches the operators of a pipeline with micro-batches. Produces an order: a unit is what one stage
 * does in the forward or in the backward pass of one part of the batch. Each stage runs its units in
 * the order of 1F1B (D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN
 * Training", 2019): as many forward units as it takes until a gradient can be back, then one backward
 * and one forward unit in turns. So a stage keeps the activations of few parts. Units of all stages
 * are merged by the times at which they are predicted to start, because the plan has one order, of
 * which a rank runs the units of its stage: ranks then issue transfers when these are ready.
 */
#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

enum { FORWARD, BACKWARD, DIRECTIONS };

typedef struct orderer {
    wefti_graph_t *graph;
    wefti_arena_t *arena;
    const uint32_t *places;
    uint32_t stages, parts;
    bool trains;
    uint32_t *part;    /* by node */
    uint64_t *cost;    /* by unit */
    uint64_t *done;    /* by unit: when it ends */
    uint32_t *rank;    /* by unit: its number in the order; WEFTI_NONE: not yet */
    uint32_t *next;    /* by stage: how many of its units have their place */
    uint64_t *free_at; /* by stage */
} orderer_t;

static uint32_t unit_of(const orderer_t *o, uint32_t stage, uint32_t part, int direction)
{
    return (stage * o->parts + part) * DIRECTIONS + (uint32_t)direction;
}

/* The part of the batch that a Slice of an input takes; other nodes: the last one of their inputs. */
static uint32_t part_of(const orderer_t *o, const wefti_node_t *node)
{
    const wefti_graph_t *graph = o->graph;
    uint32_t part = 0;
    if (wefti_op_facts(node->def).gradient == WEFT_GRADIENT_RANGE && node->input_count > 1 &&
        node->inputs[1] != WEFTI_NONE && graph->values[node->inputs[0]].kind == WEFTI_VALUE_INPUT) {
        const weft_tensor_desc_t *begin = &graph->values[node->inputs[1]].type;
        int64_t rows = graph->values[node->outputs[0]].type.dims[0];
        int64_t at = begin->data != NULL && begin->dtype == WEFT_DTYPE_I64 && rows > 0
                         ? *(const int64_t *)begin->data / rows
                         : 0;
        return at >= 0 && at < o->parts ? (uint32_t)at : 0;
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t producer = wefti_producer(graph, node->inputs[i]);
        if (producer != WEFTI_NONE && o->part[producer] > part) {
            part = o->part[producer];
        }
    }
    return part;
}

static bool in_unit(const orderer_t *o, uint32_t id)
{
    return o->places[id] != 0 && o->graph->nodes[id].phase <= WEFTI_PHASE_BACKWARD;
}

static uint32_t unit_of_node(const orderer_t *o, uint32_t id)
{
    return unit_of(o, o->places[id] - 1, o->part[id],
                   o->graph->nodes[id].phase == WEFTI_PHASE_BACKWARD ? BACKWARD : FORWARD);
}

/* Unit number index of a stage. */
static uint32_t unit_at(const orderer_t *o, uint32_t stage, uint32_t index)
{
    uint32_t ahead = o->stages - 1 - stage;
    ahead = ahead < o->parts ? ahead : o->parts;
    if (!o->trains || index < ahead) {
        return unit_of(o, stage, index, FORWARD);
    }
    uint32_t turn = (index - ahead) / 2;
    if (ahead + turn < o->parts) {
        return (index - ahead) % 2 == 0 ? unit_of(o, stage, ahead + turn, FORWARD)
                                        : unit_of(o, stage, turn, BACKWARD);
    }
    return unit_of(o, stage, index - o->parts, BACKWARD);
}

/* When a unit's inputs are there; UINT64_MAX: not yet known. */
static uint64_t ready_at(const orderer_t *o, uint32_t unit)
{
    uint32_t part = unit / DIRECTIONS % o->parts, stage = unit / DIRECTIONS / o->parts;
    bool back = unit % DIRECTIONS == BACKWARD;
    uint64_t ready = 0;
    uint32_t before =
        back        ? stage + 1 < o->stages ? unit_of(o, stage + 1, part, BACKWARD) : WEFTI_NONE
        : stage > 0 ? unit_of(o, stage - 1, part, FORWARD)
                    : WEFTI_NONE;
    uint32_t own = back ? unit_of(o, stage, part, FORWARD) : WEFTI_NONE;
    if ((before != WEFTI_NONE && o->rank[before] == WEFTI_NONE) ||
        (own != WEFTI_NONE && o->rank[own] == WEFTI_NONE)) {
        return UINT64_MAX;
    }
    ready = before != WEFTI_NONE ? o->done[before] : 0;
    return own != WEFTI_NONE && o->done[own] > ready ? o->done[own] : ready;
}

/* Gives all units their numbers; in turns, always the one that starts first. */
static weft_status_t merge(orderer_t *o)
{
    uint32_t of_stage = o->parts * (o->trains ? 2 : 1);
    for (uint32_t number = 0; number < of_stage * o->stages; number++) {
        uint64_t best_start = UINT64_MAX;
        uint32_t best = WEFTI_NONE;
        for (uint32_t s = o->stages; s-- > 0;) {
            uint64_t ready =
                o->next[s] < of_stage ? ready_at(o, unit_at(o, s, o->next[s])) : UINT64_MAX;
            uint64_t start = ready == UINT64_MAX || ready > o->free_at[s] ? ready : o->free_at[s];
            if (start < best_start) {
                best_start = start;
                best = s;
            }
        }
        if (best == WEFTI_NONE) {
            return wefti_error(WEFT_ERR_INTERNAL, "pipeline: stages wait for each other");
        }
        uint32_t unit = unit_at(o, best, o->next[best]++);
        o->rank[unit] = number;
        o->done[unit] = o->free_at[best] = best_start + o->cost[unit];
    }
    return WEFT_OK;
}

/* What is in no unit stays behind what it reads: it has the key of that. */
static uint64_t key_after_inputs(const orderer_t *o, const wefti_node_t *node, const uint64_t *keys)
{
    uint64_t key = 0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t producer = wefti_producer(o->graph, node->inputs[i]);
        if (producer != WEFTI_NONE && keys[producer] > key) {
            key = keys[producer];
        }
    }
    return key;
}

/* No stage waits while another one sends outputs: these come after what stages need. */
static weft_status_t put_off_outputs(wefti_graph_t *graph)
{
    uint32_t last = WEFTI_NONE;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        last =
            wefti_node_transfers(node) && wefti_node_int(node, "to") != 0 ? graph->order[i] : last;
    }
    for (uint32_t i = 0; i < graph->order_count && last != WEFTI_NONE; i++) {
        uint32_t id = graph->order[i];
        if (wefti_node_transfers(&graph->nodes[id]) &&
            wefti_node_int(&graph->nodes[id], "to") == 0) {
            WEFT_RETURN_IF_ERROR(wefti_graph_add_constraint(graph, last, id));
        }
    }
    return wefti_graph_sort(graph);
}

static weft_status_t reorder(orderer_t *o)
{
    wefti_graph_t *graph = o->graph;
    uint64_t *keys = wefti_arena_array(o->arena, graph->node_count, sizeof(*keys));
    WEFT_RETURN_IF_NO_MEMORY(keys);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        keys[id] = in_unit(o, id) ? ((uint64_t)o->rank[unit_of_node(o, id)] + 1) << 32 | i
                   : node->phase == WEFTI_PHASE_UPDATE ? UINT64_MAX
                                                       : key_after_inputs(o, node, keys);
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_reorder(graph, keys));
    return put_off_outputs(graph);
}

weft_status_t wefti_apply_stage_order(wefti_compiler_t *c)
{
    wefti_graph_t *graph = c->graph;
    uint64_t *ready_ns;
    uint32_t *places;
    orderer_t o = {.graph = graph,
                   .arena = &c->arena,
                   .stages = c->params.pipeline,
                   .parts = c->params.pipeline_micro_batches,
                   .trains = !c->params.infer};
    size_t units = (size_t)o.stages * o.parts * DIRECTIONS;
    WEFT_RETURN_IF_ERROR(wefti_graph_places(graph, &c->arena, &places));
    WEFT_RETURN_IF_ERROR(wefti_predict_ready(graph, &c->profile, &c->rates, &c->arena, &ready_ns));
    o.places = places;
    o.part = wefti_arena_array(&c->arena, graph->node_count, sizeof(*o.part));
    o.cost = wefti_arena_array(&c->arena, units, sizeof(*o.cost));
    o.done = wefti_arena_array(&c->arena, units, sizeof(*o.done));
    o.rank = wefti_id_map(&c->arena, units);
    o.next = wefti_arena_array(&c->arena, o.stages, sizeof(*o.next));
    o.free_at = wefti_arena_array(&c->arena, o.stages, sizeof(*o.free_at));
    WEFT_RETURN_IF_NO_MEMORY(places && o.part && o.cost && o.done && o.rank && o.next && o.free_at);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        o.part[id] = part_of(&o, &graph->nodes[id]);
        if (in_unit(&o, id)) {
            o.cost[unit_of_node(&o, id)] +=
                ready_ns[id] - (i > 0 ? ready_ns[graph->order[i - 1]] : 0);
        }
    }
    WEFT_RETURN_IF_ERROR(merge(&o));
    return reorder(&o);
}
