/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline: divides a graph into stages, and the batch into micro-batches.
 *
 * Matches the operators in their order. A boundary between two stages lies where their costs are
 * equal, or near it where the fewest bytes cross. What is computed from weights alone, or from
 * inputs alone, costs little and runs where it is read first. Produces a Transfer of every value
 * that another stage reads; a weight that several stages read, as that of a tied embedding, belongs
 * to the first of them, which sends it. Gradients go back by the rule of Transfer
 * (graph/autodiff/ranks.c), so everything else follows from it: graph/places.c says where nodes run.
 */
#include <math.h>
#include <stdlib.h>

#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"
#include "runtime/base/error.h"

/* Share of a stage by which a boundary may differ from the place of equal costs. */
#define SLACK 0.15

typedef struct cutter {
    wefti_graph_t *graph;
    wefti_arena_t *arena;
    uint32_t stages;
    bool trains;
    uint32_t *heavy; /* [heavy_count] nodes that are divided, in their order */
    uint32_t heavy_count;
    uint32_t *index;  /* by node: in heavy, or WEFTI_NONE */
    double *cost;     /* by number in heavy: predicted time up to it */
    double *crossing; /* by number in heavy: bytes that cross a boundary before it */
    uint32_t *stage;  /* by node; WEFTI_NONE: nobody reads it */
    uint32_t *home;   /* by value: of a weight, the stage that has it */
    uint32_t *sent;   /* by value and stage: what arrives there, or WEFTI_NONE */
    uint64_t sent_bytes;
    uint32_t sent_count;
} cutter_t;

/* Depends on a weight, and on an input: then it costs something. */
static weft_status_t find_heavy(cutter_t *k, const uint64_t *ready_ns)
{
    const wefti_graph_t *graph = k->graph;
    uint8_t *weights = wefti_arena_array(k->arena, graph->value_count, sizeof(*weights));
    uint8_t *fed = wefti_graph_spread(graph, k->arena, NULL);
    double total = 0;
    WEFT_RETURN_IF_NO_MEMORY(weights && fed);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        const wefti_value_t *value = &graph->values[v];
        weights[v] = value->kind == WEFTI_VALUE_PARAM ||
                     (value->kind == WEFTI_VALUE_CONST && value->type.rank >= 2 &&
                      wefti_dtype_is_floating(value->type.dtype));
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        uint8_t weighs = 0, depends = 0;
        for (uint32_t j = 0; j < node->input_count; j++) {
            weighs |= node->inputs[j] != WEFTI_NONE && weights[node->inputs[j]];
            depends |= node->inputs[j] != WEFTI_NONE && fed[node->inputs[j]];
        }
        for (uint32_t j = 0; j < node->output_count; j++) {
            if (node->outputs[j] != WEFTI_NONE) {
                weights[node->outputs[j]] = weighs;
            }
        }
        if (weighs && depends) {
            total += (double)(ready_ns[id] - (i > 0 ? ready_ns[graph->order[i - 1]] : 0));
            k->cost[k->heavy_count] = total;
            k->index[id] = k->heavy_count;
            k->heavy[k->heavy_count++] = id;
        }
    }
    return WEFT_OK;
}

/* Bytes of values that heavy nodes compute and later ones read. */
static void find_crossing(cutter_t *k, const uint32_t *last_reader)
{
    const wefti_graph_t *graph = k->graph;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        uint32_t producer = graph->values[v].producer;
        uint32_t from = producer == WEFTI_NONE ? WEFTI_NONE : k->index[producer];
        if (from != WEFTI_NONE && last_reader[v] != WEFTI_NONE && last_reader[v] > from) {
            double bytes = (double)wefti_value_bytes(&graph->values[v]);
            k->crossing[from + 1] += bytes;
            k->crossing[last_reader[v] + 1] -= bytes;
        }
    }
    for (uint32_t i = 1; i <= k->heavy_count; i++) {
        k->crossing[i] += k->crossing[i - 1];
    }
}

/* The boundary before stage s: the number of its first heavy node, after least. */
static uint32_t choose(const cutter_t *k, uint32_t s, uint32_t least)
{
    double whole = k->cost[k->heavy_count - 1], share = whole / k->stages, ideal = share * s;
    uint32_t best = least, most = k->heavy_count - (k->stages - s);
    bool best_near = false;
    for (uint32_t i = least; i <= most; i++) {
        double off = fabs(k->cost[i - 1] - ideal), best_off = fabs(k->cost[best - 1] - ideal);
        bool near = off <= SLACK * share;
        bool narrower = k->crossing[i] < k->crossing[best];
        bool equal = !(k->crossing[best] < k->crossing[i]) && !narrower;
        if (near ? !best_near || narrower || (equal && off < best_off)
                 : !best_near && off < best_off) {
            best = i;
            best_near = near;
        }
    }
    return best;
}

static void assign_heavy(cutter_t *k)
{
    uint32_t begin = 0;
    for (uint32_t s = 0; s < k->stages; s++) {
        uint32_t end = s + 1 == k->stages ? k->heavy_count : choose(k, s + 1, begin + 1);
        for (uint32_t i = begin; i < end; i++) {
            k->stage[k->heavy[i]] = s;
        }
        begin = end;
    }
}

/* The others run where they are read first; what only outputs are, where their inputs come from. */
static void assign_others(cutter_t *k)
{
    const wefti_graph_t *graph = k->graph;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        k->home[v] = WEFTI_NONE;
    }
    for (uint32_t i = graph->order_count; i-- > 0;) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        for (uint32_t j = 0; j < node->output_count && k->index[id] == WEFTI_NONE; j++) {
            uint32_t value = node->outputs[j];
            uint32_t at = value == WEFTI_NONE ? WEFTI_NONE : k->home[value];
            k->stage[id] = at < k->stage[id] ? at : k->stage[id];
        }
        for (uint32_t j = 0; j < node->input_count && k->stage[id] != WEFTI_NONE; j++) {
            uint32_t value = node->inputs[j];
            if (value != WEFTI_NONE && k->stage[id] < k->home[value]) {
                k->home[value] = k->stage[id];
            }
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (k->stage[id] == WEFTI_NONE) {
            k->stage[id] = k->stages - 1;
        }
    }
}

static weft_status_t cut(cutter_t *k, const uint64_t *ready_ns)
{
    const wefti_graph_t *graph = k->graph;
    uint32_t *last_reader = wefti_id_map(k->arena, graph->value_count);
    WEFT_RETURN_IF_NO_MEMORY(last_reader);
    WEFT_RETURN_IF_ERROR(find_heavy(k, ready_ns));
    if (k->heavy_count < k->stages) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "pipeline",
                                 "too many stages: %u stages, %u operators with weights", k->stages,
                                 k->heavy_count);
    }
    for (uint32_t i = 0; i < k->heavy_count; i++) {
        const wefti_node_t *node = &graph->nodes[k->heavy[i]];
        for (uint32_t j = 0; j < node->input_count; j++) {
            if (node->inputs[j] != WEFTI_NONE) {
                last_reader[node->inputs[j]] = i;
            }
        }
    }
    find_crossing(k, last_reader);
    assign_heavy(k);
    assign_others(k);
    return WEFT_OK;
}

/* Where a value is before anything is sent; WEFTI_NONE: everywhere. */
static uint32_t place_of(const cutter_t *k, uint32_t value)
{
    const wefti_value_t *v = &k->graph->values[value];
    return v->kind == WEFTI_VALUE_NODE                 ? k->stage[v->producer]
           : v->kind == WEFTI_VALUE_PARAM && k->trains ? k->home[value]
                                                       : WEFTI_NONE;
}

/* What stage reads in place of a value of another stage. */
static weft_status_t receive(cutter_t *k, uint32_t value, uint32_t from, uint32_t stage,
                             uint32_t *out_value)
{
    uint32_t *sent = &k->sent[(size_t)value * k->stages + stage];
    if (*sent == WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(wefti_stages_send(k->graph, value, from, stage, NULL, sent));
        k->sent_bytes += wefti_value_bytes(&k->graph->values[value]);
        k->sent_count++;
    }
    *out_value = *sent;
    return WEFT_OK;
}

static weft_status_t connect(cutter_t *k)
{
    wefti_graph_t *graph = k->graph;
    uint32_t count = graph->order_count;
    uint32_t *order = wefti_arena_memdup(k->arena, graph->order, count * sizeof(*order));
    WEFT_RETURN_IF_NO_MEMORY(order);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < graph->nodes[order[i]].input_count; j++) {
            uint32_t value = graph->nodes[order[i]].inputs[j], stage = k->stage[order[i]], there;
            uint32_t from = value == WEFTI_NONE ? WEFTI_NONE : place_of(k, value);
            if (from != WEFTI_NONE && from != stage) {
                WEFT_RETURN_IF_ERROR(receive(k, value, from, stage, &there));
                graph->nodes[order[i]].inputs[j] = there;
            }
        }
    }
    return wefti_graph_sort(graph);
}

weft_status_t wefti_apply_pipeline(wefti_compiler_t *c)
{
    wefti_graph_t *graph = c->graph;
    uint64_t *ready_ns = NULL;
    cutter_t k = {.graph = graph,
                  .arena = &c->arena,
                  .stages = c->params.pipeline,
                  .trains = !c->params.infer};
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (wefti_node_communicates(node) || (node->def->effects & WEFT_EFFECT_UNKNOWN) != 0) {
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, "pipeline",
                                     "node '%s' (%s): the model has collectives, or operators of "
                                     "unknown effect",
                                     node->name, node->def->name);
        }
    }
    if (wefti_graph_has_gradients(graph)) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "pipeline",
                                 "excludes models that contain gradients");
    }
    WEFT_RETURN_IF_ERROR(wefti_predict_ready(graph, &c->profile, &c->rates, &c->arena, &ready_ns));
    k.heavy = wefti_arena_array(&c->arena, graph->order_count, sizeof(*k.heavy));
    k.cost = wefti_arena_array(&c->arena, (size_t)graph->order_count + 1, sizeof(*k.cost));
    k.crossing = wefti_arena_array(&c->arena, (size_t)graph->order_count + 2, sizeof(*k.crossing));
    k.index = wefti_id_map(&c->arena, graph->node_count);
    k.stage = wefti_id_map(&c->arena, graph->node_count);
    k.home = wefti_id_map(&c->arena, graph->value_count);
    k.sent = wefti_id_map(&c->arena, (size_t)graph->value_count * k.stages);
    WEFT_RETURN_IF_NO_MEMORY(k.heavy && k.cost && k.crossing && k.index && k.stage && k.home &&
                             k.sent);
    WEFT_RETURN_IF_ERROR(cut(&k, ready_ns));
    WEFT_RETURN_IF_ERROR(connect(&k));
    wefti_log(&c->log, WEFT_LOG_LEVEL_DEBUG, "pipeline: %u tensors of %llu bytes cross",
              k.sent_count, (unsigned long long)k.sent_bytes);
    if (c->params.pipeline_micro_batches <= 1) {
        return WEFT_OK;
    }
    const wefti_micro_batches_t micro = {.count = c->params.pipeline_micro_batches,
                                         .stages = k.stages,
                                         .trains = k.trains,
                                         .stage = k.stage,
                                         .whole = c->models[1].graph,
                                         .inputs_only = c->models[1].inputs_only};
    weft_status_t status = wefti_stages_divide_batch(graph, &micro);
    wefti_graph_destroy(c->models[1].graph);
    c->models[1].graph = NULL;
    return status;
}
