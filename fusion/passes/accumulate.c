/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-batches: a step is K micro-batches per rank and one collective per bucket.
 *
 * Matches   collectives (avg) that reduce gradients g1..gn.
 * Produces  partial sums s(t), one persistent value per gradient and level, the sum of 2^t
 *           micro-batches; and a program per level:
 *
 *   micro_step    the kernels of gradients write s(0) instead: variants of the nodes of a step
 *   micro_step.t  s(t) = TreeFold(g, s(0) .. s(t-1))      micro-batch i has t trailing ones
 *   step          f = TreeFold(g, s(t) for each bit t of K-1); the collective sums f
 *
 * Levels count up like the digits of a binary counter. The result is the sum of the in-order tree
 * of micro-batches, split at the largest power of two. For K = 4:
 *
 *   i   0        1             2        3
 *       s0 = g   s1 = s0 + g   s0 = g   s1 + (s0 + g) -> collective
 *
 * Collectives sum in place of averaging, because updates divide once, by the number of all
 * micro-batches. A gradient that is the output of a collective is copied to s(0) by a TreeFold.
 *
 * A gradient that no collective reduces is refused: its update would see one micro-batch only.
 */
#include "fusion/passes/gradient_sums.h"
#include "fusion/passes/passes.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

typedef struct accumulator {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    uint32_t accumulate, levels;
    uint32_t *first;   /* by value, of gradients that kernels make: s(0), or WEFTI_NONE */
    uint32_t *variant; /* by node: what micro_step runs in its place, or WEFTI_NONE */
    uint32_t **folds;  /* [levels]: nodes of micro_step.t that a step does not have */
    uint32_t *fold_count;
} accumulator_t;

/* Partial sums of so many micro-batches, each of which has a program: 2^t micro-batches in sum
 * t. */
static uint32_t level_count(uint32_t accumulate)
{
    uint32_t count = 0;
    while (count < 31 && (uint32_t)1 << count < accumulate) {
        count++;
    }
    return count;
}

/* What no collective averages is in no tree. */
static weft_status_t check_updates(const wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (node->phase != WEFTI_PHASE_UPDATE || node->input_count < 2 ||
            node->inputs[1] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *gradient = &graph->values[node->inputs[1]];
        if (gradient->producer == WEFTI_NONE ||
            !wefti_reduces_gradients(graph, &graph->nodes[gradient->producer])) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "gradient '%s': must be all-reduced with accumulate, global_micro_batches or wire",
                gradient->name);
        }
    }
    return WEFT_OK;
}

static weft_status_t sum_not_average(wefti_graph_t *graph, uint32_t id)
{
    const wefti_node_t *node = &graph->nodes[id];
    const weft_attr_t *reduction = wefti_node_attr(node, "reduction");
    const weft_attr_t sum = {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "sum"};
    if (reduction == NULL || reduction->type != WEFT_ATTR_TYPE_STRING ||
        strcmp(reduction->s, "avg") != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): reduction must be avg with accumulate, "
                           "global_micro_batches or wire",
                           node->name, node->def->name);
    }
    return wefti_graph_set_attr(graph, id, &sum);
}

/* Of s(level), or, WEFTI_NONE, of what the collective sums. */
static const char *name_sum(accumulator_t *a, uint32_t gradient, uint32_t level)
{
    const char *name = a->graph->values[gradient].name;
    return level == 0            ? wefti_arena_printf(&a->arena, "%s.micro", name)
           : level == WEFTI_NONE ? wefti_arena_printf(&a->arena, "%s.sum", name)
                                 : wefti_arena_printf(&a->arena, "%s.sum%u", name, level);
}

/* The variant of a kernel that makes gradients: those go to s(0), other outputs stay what they
 * are. */
static weft_status_t add_variant(accumulator_t *a, uint32_t id, const bool *is_local)
{
    wefti_graph_t *graph = a->graph;
    const wefti_node_t node = graph->nodes[id];
    const char **names = wefti_arena_array(&a->arena, node.output_count, sizeof(*names));
    bool *absent = wefti_arena_array(&a->arena, node.output_count, sizeof(*absent));
    char *name = wefti_arena_printf(&a->arena, "%s.micro", node.name);
    for (uint32_t k = 0; k < node.output_count && !a->arena.failed; k++) {
        absent[k] = node.outputs[k] == WEFTI_NONE;
        names[k] = absent[k] ? NULL : name_sum(a, node.outputs[k], 0);
    }
    WEFT_RETURN_IF_NO_MEMORY(!a->arena.failed);
    wefti_node_params_t params = wefti_node_params_of(&node);
    params.name = name;
    params.output_names = names;
    params.output_absent = absent;
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, id, &a->variant[id]));
    for (uint32_t k = 0; k < node.output_count; k++) {
        uint32_t of = node.outputs[k], value = graph->nodes[a->variant[id]].outputs[k];
        if (absent[k]) {
            continue;
        }
        graph->values[value].type = graph->values[of].type;
        if (is_local[of]) {
            graph->values[value].flags |= WEFTI_VALUE_PERSISTENT;
            a->first[of] = value;
        } else {
            graph->values[value].alias_of = of;
        }
    }
    return WEFT_OK;
}

/* Variants of all kernels that make gradients of collectives[count]. */
static weft_status_t add_variants(accumulator_t *a, const uint32_t *collectives, uint32_t count)
{
    wefti_graph_t *graph = a->graph;
    bool *is_local = wefti_arena_array(&a->arena, graph->value_count, sizeof(*is_local));
    uint32_t order_count = graph->order_count;
    WEFT_RETURN_IF_NO_MEMORY(is_local);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *node = &graph->nodes[collectives[i]];
        bool kernels = true;
        for (uint32_t k = 0; k < node->input_count; k++) {
            kernels = kernels && !wefti_node_communicates(
                                     &graph->nodes[graph->values[node->inputs[k]].producer]);
        }
        for (uint32_t k = 0; kernels && k < node->input_count; k++) {
            is_local[node->inputs[k]] = true;
        }
    }
    for (uint32_t i = 0; i < order_count; i++) {
        uint32_t id = graph->order[i];
        bool makes = false;
        for (uint32_t k = 0; k < graph->nodes[id].output_count; k++) {
            uint32_t value = graph->nodes[id].outputs[k];
            makes = makes || (value != WEFTI_NONE && is_local[value]);
        }
        if (makes) {
            WEFT_RETURN_IF_ERROR(add_variant(a, id, is_local));
        }
    }
    return WEFT_OK;
}

/* A fold of gradients[count] and the levels of mask into level, or, WEFTI_NONE, into what the
 * collective sums. */
static weft_status_t add_fold(accumulator_t *a, uint32_t collective, const uint32_t *gradients,
                              uint32_t *const *sums, uint32_t mask, uint32_t level,
                              uint32_t *out_fold)
{
    wefti_graph_t *graph = a->graph;
    uint32_t count = graph->nodes[collective].input_count;
    wefti_fold_params_t params = {.collective = collective, .group_count = 1};
    const char **names = wefti_arena_array(&a->arena, count, sizeof(*names));
    params.groups[0] = gradients;
    params.output_names = names;
    for (uint32_t t = 0; mask >> t != 0; t++) {
        if ((mask >> t & 1) != 0) {
            params.groups[params.group_count++] = sums[t];
        }
    }
    for (uint32_t i = 0; i < count && names != NULL; i++) {
        names[i] = name_sum(a, gradients[i], level);
    }
    WEFT_RETURN_IF_NO_MEMORY(!a->arena.failed);
    params.what = level == WEFTI_NONE ? "sum" : "partial sum";
    WEFT_RETURN_IF_ERROR(wefti_add_fold(graph, &a->arena, &params, out_fold));
    for (uint32_t i = 0; i < count && level != WEFTI_NONE; i++) {
        uint32_t value = graph->nodes[*out_fold].outputs[i];
        graph->values[value].flags |= WEFTI_VALUE_PERSISTENT;
        sums[level][i] = value;
    }
    if (level != WEFTI_NONE) {
        a->folds[level][a->fold_count[level]++] = *out_fold;
    }
    return WEFT_OK;
}

/* Partial sums of the gradients of one collective, and what it sums in their place. */
static weft_status_t add_sums(accumulator_t *a, uint32_t collective)
{
    wefti_graph_t *graph = a->graph;
    uint32_t count = graph->nodes[collective].input_count, *sums[32] = {0}, fold;
    const uint32_t *gradients =
        wefti_arena_memdup(&a->arena, graph->nodes[collective].inputs, count * sizeof(*gradients));
    for (uint32_t t = 0; t < a->levels; t++) {
        sums[t] = wefti_arena_array(&a->arena, count, sizeof(**sums));
        WEFT_RETURN_IF_NO_MEMORY(gradients && sums[t]);
    }
    bool by_kernels = true;
    for (uint32_t i = 0; i < count; i++) {
        sums[0][i] = a->first[gradients[i]];
        by_kernels = by_kernels && sums[0][i] != WEFTI_NONE;
    }
    for (uint32_t t = by_kernels ? 1 : 0; t < a->levels; t++) {
        WEFT_RETURN_IF_ERROR(
            add_fold(a, collective, gradients, sums, ((uint32_t)1 << t) - 1, t, &fold));
    }
    WEFT_RETURN_IF_ERROR(
        add_fold(a, collective, gradients, sums, a->accumulate - 1, WEFTI_NONE, &fold));
    for (uint32_t i = 0; i < count; i++) {
        graph->nodes[collective].inputs[i] = graph->nodes[fold].outputs[i];
    }
    return WEFT_OK;
}

/* What a micro-batch runs: loss, logits, gradients, and the sums of its level. */
static weft_status_t add_program(accumulator_t *a, uint32_t level, const uint32_t *makers,
                                 uint32_t maker_count)
{
    wefti_graph_t *graph = a->graph;
    uint32_t count = 0;
    char name[32];
    bool *needed = wefti_arena_array(&a->arena, graph->node_count, sizeof(*needed));
    uint32_t *nodes = wefti_arena_array(&a->arena, graph->node_count, sizeof(*nodes));
    WEFT_RETURN_IF_NO_MEMORY(needed && nodes);
    const uint32_t results[] = {graph->loss, graph->logits};
    for (uint32_t i = 0; i < 2; i++) {
        if (results[i] != WEFTI_NONE && graph->values[results[i]].producer != WEFTI_NONE) {
            needed[graph->values[results[i]].producer] = true;
        }
    }
    for (uint32_t i = 0; i < maker_count; i++) {
        needed[makers[i]] = true;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_mark_needed(graph, needed, false));
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (needed[i]) {
            bool varies = level == 0 && a->variant[i] != WEFTI_NONE;
            nodes[count++] = varies ? a->variant[i] : i;
        }
    }
    for (uint32_t i = 0; i < a->fold_count[level]; i++) {
        nodes[count++] = a->folds[level][i];
    }
    snprintf(name, sizeof(name), "micro_step.%u", level);
    return wefti_graph_add_program(graph, level == 0 ? "micro_step" : name, nodes, count);
}

static weft_status_t begin(accumulator_t *a, uint32_t collective_count)
{
    const wefti_graph_t *graph = a->graph;
    a->levels = level_count(a->accumulate);
    a->first = wefti_id_map(&a->arena, graph->value_count);
    a->variant = wefti_id_map(&a->arena, graph->node_count);
    a->folds = wefti_arena_array(&a->arena, a->levels, sizeof(*a->folds));
    a->fold_count = wefti_arena_array(&a->arena, a->levels, sizeof(*a->fold_count));
    for (uint32_t t = 0; t < a->levels && a->folds != NULL; t++) {
        a->folds[t] = wefti_arena_array(&a->arena, collective_count, sizeof(**a->folds));
    }
    return a->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* Kernels that make the gradients of collectives[count], found before folds replace them. */
static weft_status_t add_micro_batches(accumulator_t *a, const uint32_t *collectives,
                                       uint32_t count)
{
    wefti_graph_t *graph = a->graph;
    uint32_t maker_count = 0;
    uint32_t *makers = wefti_arena_array(&a->arena, graph->value_count, sizeof(*makers));
    WEFT_RETURN_IF_NO_MEMORY(makers);
    WEFT_RETURN_IF_ERROR(begin(a, count));
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *node = &graph->nodes[collectives[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            makers[maker_count++] = graph->values[node->inputs[k]].producer;
        }
    }
    WEFT_RETURN_IF_ERROR(add_variants(a, collectives, count));
    for (uint32_t i = 0; i < count; i++) {
        WEFT_RETURN_IF_ERROR(add_sums(a, collectives[i]));
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_sort(graph));
    for (uint32_t t = 0; t < a->levels; t++) {
        WEFT_RETURN_IF_ERROR(add_program(a, t, makers, maker_count));
    }
    return WEFT_OK;
}

weft_status_t wefti_pass_accumulate(wefti_graph_t *graph, uint32_t accumulate)
{
    weft_status_t status;
    accumulator_t a = {.graph = graph, .accumulate = accumulate};
    uint32_t *collectives = NULL, count = 0;
    wefti_arena_init(&a.arena, graph->arena.allocator, 0);
    WEFT_TRY(status, check_updates(graph), done);
    WEFT_TRY(status, wefti_find_reductions(graph, &a.arena, &collectives, &count), done);
    for (uint32_t i = 0; i < count; i++) {
        WEFT_TRY(status, sum_not_average(graph, collectives[i]), done);
    }
    if (accumulate > 1) {
        status = add_micro_batches(&a, collectives, count);
    }
done:
    wefti_arena_deinit(&a.arena);
    return status;
}

weft_status_t wefti_apply_accumulate(wefti_compiler_t *c)
{
    return wefti_pass_accumulate(c->graph, c->gradient_params.accumulate);
}
