/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clip: the scale that keeps the global norm of all gradients below clip_norm.
 *
 * Matches nodes that produce gradients. Produces
 *
 *   collective -> SquareSum -> SquareSum of the next one ... -> ClipScale -> all updates
 *
 * Square sums are exact, so neither the order nor the partition of the gradients matters; the pass
 * that shards updates splits the chain. So does this one where ranks have parts of parameters:
 *
 *   SquareSum of parts -> AllReduce of the ranks with the parts -> SquareSum of whole gradients
 *
 * And the stages of a pipeline pass it on:
 *
 *   SquareSum of stage 0 -> Transfer -> SquareSum of stage 1 -> Transfer to all -> ClipScale
 */
#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"

#include "runtime/base/error.h"

typedef struct clipper {
    wefti_graph_t *graph;
    uint32_t *values; /* of one SquareSum: the sum so far, then gradients */
    uint32_t count;
    uint32_t sum; /* so far, or WEFTI_NONE */
    const uint32_t *statistic_of;
    bool parts; /* of what only this rank has; else of what the ranks of a batch share */
    const uint32_t *places; /* by node (wefti_graph_places), or NULL */
    uint32_t place;         /* of which gradients are collected */
} clipper_t;

static weft_status_t add_square_sum(clipper_t *c)
{
    uint32_t node;
    weft_status_t status;
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "SquareSum",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = c->values,
                                        .input_count = c->count,
                                        .output_count = 1};
    c->values[0] = c->sum;
    status = wefti_graph_add_node(c->graph, &params, &node);
    if (status >= 0) {
        c->sum = c->graph->nodes[node].outputs[0];
    }
    c->count = 1;
    return status;
}

/* The gradients among a node's outputs; statistics do not count. */
static void collect(clipper_t *c, uint32_t id)
{
    const wefti_node_t *node = &c->graph->nodes[id];
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t v = node->outputs[k];
        uint32_t param = v != WEFTI_NONE ? c->graph->values[v].grad_of : WEFTI_NONE;
        if (param != WEFTI_NONE && c->statistic_of[param] == WEFTI_NONE &&
            (c->graph->values[param].rank_bytes != 0) == c->parts) {
            c->values[c->count++] = v;
        }
    }
}

/* A SquareSum after each of the first count nodes that produces gradients. */
static weft_status_t add_square_sums(clipper_t *c, uint32_t count)
{
    c->count = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = c->graph->order[i];
        if (c->places == NULL || c->places[id] == c->place) {
            collect(c, id);
        }
        if (c->count > 1) {
            WEFT_RETURN_IF_ERROR(add_square_sum(c));
        }
    }
    return WEFT_OK;
}

static weft_status_t add_scale(clipper_t *c, const wefti_optimizer_params_t *p, uint32_t *out_scale)
{
    uint32_t node;
    const char *names[] = {"grad_scale", "grad_norm"};
    const weft_attr_t attrs[] = {
        {.name = "max_norm", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->clip_norm},
        {.name = "divisor", .type = WEFT_ATTR_TYPE_INT, .i = p->divisor > 0 ? p->divisor : 1}};
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "ClipScale",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = &c->sum,
                                        .input_count = 1,
                                        .output_names = names,
                                        .output_count = 2,
                                        .attrs = attrs,
                                        .attr_count = 2};
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(c->graph, &params, &node));
    *out_scale = c->graph->nodes[node].outputs[0];
    /* Readable after a step. */
    return wefti_graph_add_output(c->graph, c->graph->nodes[node].outputs[1]);
}

/* The sum of squares of all parts, on all ranks that have one. */
static weft_status_t add_squares_of_ranks(clipper_t *c, uint32_t group)
{
    uint32_t node;
    const weft_attr_t attrs[] = {{.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "sum"},
                                 {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = group},
                                 {.name = "reason",
                                  .type = WEFT_ATTR_TYPE_STRING,
                                  .s = "sums the squares of all parts for the global norm"}};
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "AllReduce",
                                        .name = "squares of parts",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = &c->sum,
                                        .input_count = 1,
                                        .output_count = 1,
                                        .attrs = attrs,
                                        .attr_count = 3};
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(c->graph, &params, &node));
    c->sum = c->graph->nodes[node].outputs[0];
    return WEFT_OK;
}

/* Of the gradients of all stages; without stages, of all gradients. */
static weft_status_t add_squares_of_stages(clipper_t *c, uint32_t count, uint32_t stages)
{
    for (uint32_t s = 0; s < stages; s++) {
        c->place = s + 1;
        WEFT_RETURN_IF_ERROR(add_square_sums(c, count));
        if (c->sum != WEFTI_NONE && c->places != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_stages_send(
                c->graph, c->sum, s, s + 1 < stages ? s + 1 : WEFTI_NONE, NULL, &c->sum));
        }
    }
    return WEFT_OK;
}

/* group: of the ranks that compute a batch together. stages: of a pipeline, or 1. */
static weft_status_t clip(wefti_graph_t *graph, const wefti_optimizer_params_t *params,
                          uint32_t group, uint32_t stages, uint32_t *out_scale)
{
    clipper_t c = {.graph = graph, .sum = WEFTI_NONE, .parts = true};
    uint32_t *places;
    uint32_t count = graph->order_count;
    c.values = wefti_arena_array(&graph->arena, (size_t)graph->value_count + 1, sizeof(*c.values));
    c.statistic_of = wefti_graph_statistics(graph, &graph->arena);
    WEFT_RETURN_IF_NO_MEMORY(c.values && c.statistic_of);
    WEFT_RETURN_IF_ERROR(wefti_graph_places(graph, &graph->arena, &places));
    WEFT_RETURN_IF_ERROR(add_square_sums(&c, count));
    if (c.sum != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(add_squares_of_ranks(&c, group));
    }
    c.parts = false;
    c.places = stages > 1 ? places : NULL;
    WEFT_RETURN_IF_ERROR(add_squares_of_stages(&c, count, stages));
    if (c.sum == WEFTI_NONE) {
        return wefti_error_no_gradients();
    }
    return add_scale(&c, params, out_scale);
}

weft_status_t wefti_apply_clip(wefti_compiler_t *c)
{
    return clip(c->graph, &c->optimizer, c->mesh.axis_count > 0 ? WEFTI_GROUP_TENSOR : 0,
                c->params.pipeline > 1 ? c->params.pipeline : 1, &c->clip_scale);
}
