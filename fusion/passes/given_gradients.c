/* SPDX-License-Identifier: Apache-2.0 */
/*
 * given-gradients: finds gradients that the model contains. Training uses them, and the pass
 * differentiate does not run.
 *
 * Matches tensors by the map of grads_path, or by name: "<param>_grad", "grad.<param>". Produces
 * grad_of on each complete gradient; if the model all-reduces it, on the result. Operators that
 * only gradients need move to the backward phase; weights without a gradient become constants;
 * gradients are no longer outputs.
 *
 * Runs before shapes are bound, because the batch of the backward pass is fixed with that of the
 * loss. A model without gradients and without a loss is an error here.
 */
#include "fusion/passes/passes.h"

#include <stdio.h>
#include <string.h>

#include <weft/types.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define NAMES_SHOWN 3

bool wefti_is_all_reduce(const wefti_node_t *node)
{
    return wefti_node_communicates(node) &&
           wefti_op_facts(node->def).collective == WEFT_COLLECTIVE_ALL_REDUCE &&
           node->input_count == node->output_count;
}

/* Does a collective give all ranks the same? */
static bool makes_equal(const wefti_node_t *node)
{
    uint32_t collective = wefti_op_facts(node->def).collective;
    return wefti_node_communicates(node) &&
           (collective == WEFT_COLLECTIVE_ALL_REDUCE || collective == WEFT_COLLECTIVE_ALL_GATHER ||
            collective == WEFT_COLLECTIVE_BROADCAST);
}

static uint8_t local_outputs(const wefti_node_t *node, uint8_t any)
{
    bool unknown = (node->def->effects & (WEFT_EFFECT_RANDOM | WEFT_EFFECT_UNKNOWN)) != 0;
    return unknown || (any && !makes_equal(node));
}

uint8_t *wefti_mark_local(const wefti_graph_t *graph, wefti_arena_t *arena)
{
    return wefti_graph_spread(graph, arena, local_outputs);
}

/* Where a local gradient is all-reduced by the graph itself, what comes out. */
static uint32_t follow_reduction(const wefti_graph_t *graph, uint32_t value, const uint32_t *reader)
{
    const wefti_node_t *node = reader[value] == WEFTI_NONE ? NULL : &graph->nodes[reader[value]];
    for (uint32_t k = 0; node != NULL && k < node->input_count; k++) {
        if (node->inputs[k] == value && node->outputs[k] != WEFTI_NONE) {
            return node->outputs[k];
        }
    }
    return value;
}

/* By value: an AllReduce that reads it, or WEFTI_NONE. */
static uint32_t *find_reductions(const wefti_graph_t *graph, wefti_arena_t *arena)
{
    uint32_t *reader = wefti_id_map(arena, graph->value_count);
    for (uint32_t i = 0; reader != NULL && i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; wefti_is_all_reduce(node) && k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                reader[node->inputs[k]] = graph->order[i];
            }
        }
    }
    return reader;
}

typedef struct finder {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    uint8_t *local;
    uint32_t *reduction;
    uint32_t found;
} finder_t;

static weft_status_t take(finder_t *f, uint32_t param, uint32_t grad)
{
    wefti_graph_t *graph = f->graph;
    const char *given = graph->values[grad].name;
    if (f->local[grad]) {
        grad = follow_reduction(graph, grad, f->reduction);
    }
    if (graph->values[grad].grad_of != WEFTI_NONE) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT, "gradient '%s' belongs to two parameters: '%s' and '%s'",
            given, graph->values[graph->values[grad].grad_of].name, graph->values[param].name);
    }
    graph->values[grad].grad_of = param;
    f->found++;
    return WEFT_OK;
}

static weft_status_t take_named(finder_t *f, const wefti_gradient_name_t *entry)
{
    const wefti_graph_t *graph = f->graph;
    uint32_t param = wefti_graph_find_value(graph, entry->param);
    uint32_t grad = wefti_graph_find_value(graph, entry->grad);
    if (param == WEFTI_NONE || graph->values[param].kind != WEFTI_VALUE_PARAM) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "grads_path",
                                 "'%s' is not %s of the model", entry->param,
                                 param == WEFTI_NONE ? "a tensor" : "a floating-point initializer");
    }
    if (grad == WEFTI_NONE || graph->values[grad].kind != WEFTI_VALUE_NODE) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "grads_path",
                                 "no node of the model produces '%s', the gradient of '%s'",
                                 entry->grad, entry->param);
    }
    return take(f, param, grad);
}

/* "<param>_grad" or "grad.<param>", if a node makes it. */
static weft_status_t take_by_name(finder_t *f, uint32_t param)
{
    wefti_graph_t *graph = f->graph;
    uint32_t grad = WEFTI_NONE;
    const char *names[] = {wefti_arena_printf(&f->arena, "%s_grad", graph->values[param].name),
                           wefti_arena_printf(&f->arena, "grad.%s", graph->values[param].name)};
    for (int i = 0; i < 2; i++) {
        uint32_t value = names[i] == NULL ? WEFTI_NONE : wefti_graph_find_value(graph, names[i]);
        if (value == WEFTI_NONE || graph->values[value].kind != WEFTI_VALUE_NODE) {
            continue;
        }
        if (grad != WEFTI_NONE) {
            return wefti_error_field(
                WEFT_ERR_INVALID_ARGUMENT, "grads_path",
                "not set, but parameter '%s' has two gradients by name: '%s' and '%s'",
                graph->values[param].name, graph->values[grad].name, graph->values[value].name);
        }
        grad = value;
    }
    return names[0] == NULL || names[1] == NULL ? WEFT_ERR_NO_MEMORY
           : grad != WEFTI_NONE                 ? take(f, param, grad)
                                                : WEFT_OK;
}

/* With gradients, running statistics have those of the step: graph/autodiff/norm.c. */
static weft_status_t take_statistics(finder_t *f)
{
    const wefti_graph_t *graph = f->graph;
    for (uint32_t i = 0; i < graph->order_count && f->found > 0; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 3; k < 5 && wefti_op_has(node->def, WEFT_FACT_STATISTICS); k++) {
            const uint32_t running = node->inputs[k];
            const uint32_t statistic =
                k - 2 < node->output_count ? node->outputs[k - 2] : WEFTI_NONE;
            if (running != WEFTI_NONE && statistic != WEFTI_NONE &&
                graph->values[running].kind == WEFTI_VALUE_PARAM) {
                WEFT_RETURN_IF_ERROR(take(f, running, statistic));
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t find_gradients(wefti_graph_t *graph, const wefti_gradient_map_t *map,
                                    uint32_t *out_found)
{
    weft_status_t status = WEFT_OK;
    finder_t f = {.graph = graph};
    wefti_arena_init(&f.arena, graph->arena.allocator, 0);
    f.local = wefti_mark_local(graph, &f.arena);
    f.reduction = find_reductions(graph, &f.arena);
    if (f.local == NULL || f.reduction == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    for (uint32_t i = 0; map != NULL && i < map->count; i++) {
        WEFT_TRY(status, take_named(&f, &map->entries[i]), done);
    }
    for (uint32_t v = 0, count = graph->value_count; map == NULL && v < count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_PARAM) {
            WEFT_TRY(status, take_by_name(&f, v), done);
        }
    }
    if (map != NULL && f.found == 0) {
        status = wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "grads_path", "map is empty");
        goto done;
    }
    WEFT_TRY(status, take_statistics(&f), done);
    *out_found = f.found;
done:
    wefti_arena_deinit(&f.arena);
    return status;
}

/* Nodes that the loss (without one, the outputs) does not need belong to the backward pass. */
static weft_status_t set_phases(wefti_graph_t *graph)
{
    bool *needed = wefti_alloc(graph->arena.allocator, (size_t)graph->value_count + 1);
    WEFT_RETURN_IF_NO_MEMORY(needed);
    if (graph->loss != WEFTI_NONE) {
        needed[graph->loss] = true;
    }
    if (graph->logits != WEFTI_NONE) {
        needed[graph->logits] = true;
    }
    for (uint32_t i = 0; graph->loss == WEFTI_NONE && i < graph->output_count; i++) {
        needed[graph->outputs[i]] = true;
    }
    for (uint32_t i = graph->order_count; i-- > 0;) {
        wefti_node_t *node = &graph->nodes[graph->order[i]];
        bool forward = false;
        for (uint32_t k = 0; k < node->output_count; k++) {
            forward = forward || (node->outputs[k] != WEFTI_NONE && needed[node->outputs[k]]);
        }
        for (uint32_t k = 0; k < node->input_count && forward; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                needed[node->inputs[k]] = true;
            }
        }
        if (node->phase == WEFTI_PHASE_FORWARD && !forward) {
            node->phase = WEFTI_PHASE_BACKWARD;
        }
    }
    wefti_free(graph->arena.allocator, needed);
    return WEFT_OK;
}

/* A gradient is reduced where it is made: it stops being an output of the graph. */
static void drop_outputs(wefti_graph_t *graph)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < graph->output_count; i++) {
        uint32_t value = graph->outputs[i];
        if (graph->values[value].grad_of != WEFTI_NONE && value != graph->loss &&
            value != graph->logits) {
            graph->values[value].flags &= ~WEFTI_VALUE_OUTPUT;
        } else {
            graph->outputs[kept++] = value;
        }
    }
    graph->output_count = kept;
}

/* What has no gradient stays as it is; who trains may not have meant that. */
static weft_status_t fix_others(wefti_graph_t *graph, const wefti_log_t *log)
{
    uint32_t fixed = 0;
    wefti_text_t names;
    bool *has = wefti_alloc(graph->arena.allocator, (size_t)graph->value_count + 1);
    WEFT_RETURN_IF_NO_MEMORY(has);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].grad_of != WEFTI_NONE) {
            has[graph->values[v].grad_of] = true;
        }
    }
    wefti_text_init(&names, graph->arena.allocator);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        wefti_value_t *value = &graph->values[v];
        if (value->kind != WEFTI_VALUE_PARAM || has[v]) {
            continue;
        }
        value->kind = WEFTI_VALUE_CONST;
        if (weft_tensor_elem_count(&value->type) > 1) { /* a single number is hardly a weight */
            if (fixed < NAMES_SHOWN) {
                wefti_text_add(&names, fixed > 0 ? ", " : "");
                wefti_text_add_printable(&names, value->name);
            }
            fixed++;
        }
    }
    if (fixed > 0 && log != NULL) {
        wefti_log(log, WEFT_LOG_LEVEL_WARN, "%u weight%s without a gradient, not trained: %s%s",
                  fixed, fixed == 1 ? "" : "s", names.data != NULL ? names.data : "",
                  fixed > NAMES_SHOWN ? ", .." : "");
    }
    wefti_text_deinit(&names);
    wefti_free(graph->arena.allocator, has);
    return WEFT_OK;
}

weft_status_t wefti_pass_given_gradients(wefti_graph_t *graph, const wefti_gradient_map_t *map,
                                         const wefti_log_t *log)
{
    uint32_t found = 0;
    WEFT_RETURN_IF_ERROR(find_gradients(graph, map, &found));
    if (found > 0) {
        drop_outputs(graph);
        WEFT_RETURN_IF_ERROR(set_phases(graph));
        WEFT_RETURN_IF_ERROR(fix_others(graph, log));
    }
    return WEFT_OK;
}

weft_status_t wefti_apply_given_gradients(wefti_compiler_t *c)
{
    weft_status_t status;
    const char *path = c->params.grads_path;
    if (path != NULL) {
        WEFT_TRY(status, wefti_grads_map_load(path, &c->arena, &c->gradients), fail);
    }
    status = wefti_pass_given_gradients(c->graph, path != NULL ? &c->gradients : NULL, &c->log);
    if (status < 0) {
        return wefti_error_prefix(status, "%s", c->model->path);
    }
    if (c->graph->loss == WEFTI_NONE && !wefti_graph_has_gradients(c->graph)) {
        return wefti_error_no_loss(c->model->path);
    }
fail:
    return status;
}
