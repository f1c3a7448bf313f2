/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare-models: the models of all ranks become one graph.
 *
 * Matches the graphs of rank_models after shapes are bound and constants folded, so that it
 * compares what runs. Changes nothing: an error names both sides of the first difference other than
 * contents of initializers, unless no model has collectives, or Send and Recv alone: then each rank
 * runs a model of its own (stages/join.c). Ids follow the order of the files and must agree, because lowering
 * finds the contents of each rank by them. Later passes change the graph of rank 0 only.
 */
#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"

#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Two graphs, their labels, and one line of text of each. */
typedef struct pair {
    const wefti_graph_t *a, *b;
    const char *label_a, *label_b;
    wefti_text_t line_a, line_b;
} pair_t;

static void begin_lines(pair_t *pair)
{
    pair->line_a.length = pair->line_b.length = 0;
}

/* WEFT_OK if both lines are equal. */
static weft_status_t end_lines(pair_t *pair)
{
    if (pair->line_a.failed || pair->line_b.failed) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (pair->line_a.length == pair->line_b.length &&
        memcmp(pair->line_a.data, pair->line_b.data, pair->line_a.length) == 0) {
        return WEFT_OK;
    }
    return wefti_error_field(
        WEFT_ERR_INVALID_ARGUMENT, "rank_models",
        "models differ in more than the contents of initializers: %s has '%.200s', %s has '%.200s'",
        pair->label_a, pair->line_a.data, pair->label_b, pair->line_b.data);
}

static weft_status_t compare_counts(pair_t *pair, const char *what, uint32_t a, uint32_t b)
{
    begin_lines(pair);
    wefti_text_printf(&pair->line_a, "%u %s", a, what);
    wefti_text_printf(&pair->line_b, "%u %s", b, what);
    return end_lines(pair);
}

static weft_status_t compare_values(pair_t *pair)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *a = pair->a, *b = pair->b;
    for (uint32_t v = 0; v < a->value_count && v < b->value_count && status >= 0; v++) {
        begin_lines(pair);
        wefti_graph_value_text(a, v, &pair->line_a);
        wefti_graph_value_text(b, v, &pair->line_b);
        status = end_lines(pair);
    }
    return status >= 0 ? compare_counts(pair, "tensors", a->value_count, b->value_count) : status;
}

/* A node's text leaves its version out. */
static void add_node_line(const wefti_graph_t *graph, uint32_t node, wefti_text_t *line)
{
    wefti_graph_node_text(graph, node, line);
    wefti_text_printf(line, " of version %d", graph->nodes[node].version);
}

static weft_status_t compare_nodes(pair_t *pair)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *a = pair->a, *b = pair->b;
    for (uint32_t n = 0; n < a->order_count && n < b->order_count && status >= 0; n++) {
        begin_lines(pair);
        add_node_line(a, a->order[n], &pair->line_a);
        add_node_line(b, b->order[n], &pair->line_b);
        status = end_lines(pair);
    }
    return status >= 0 ? compare_counts(pair, "operators", a->order_count, b->order_count) : status;
}

static weft_status_t compare_outputs(pair_t *pair)
{
    const wefti_graph_t *a = pair->a, *b = pair->b;
    WEFT_RETURN_IF_ERROR(compare_counts(pair, "outputs", a->output_count, b->output_count));
    for (uint32_t i = 0; i < a->output_count; i++) {
        begin_lines(pair);
        wefti_text_printf(&pair->line_a, "output %u %s", i, a->values[a->outputs[i]].name);
        wefti_text_printf(&pair->line_b, "output %u %s", i, b->values[b->outputs[i]].name);
        WEFT_RETURN_IF_ERROR(end_lines(pair));
    }
    return WEFT_OK;
}

static weft_status_t compare(pair_t *pair)
{
    begin_lines(pair);
    wefti_text_printf(&pair->line_a, "opset %d", pair->a->opset);
    wefti_text_printf(&pair->line_b, "opset %d", pair->b->opset);
    WEFT_RETURN_IF_ERROR(end_lines(pair));
    WEFT_RETURN_IF_ERROR(compare_nodes(pair));
    WEFT_RETURN_IF_ERROR(compare_values(pair));
    return compare_outputs(pair);
}

static bool contents_differ(const wefti_graph_t *const *graphs, uint32_t count, uint32_t value)
{
    const weft_tensor_desc_t *first = &graphs[0]->values[value].type;
    size_t bytes = wefti_value_bytes(&graphs[0]->values[value]);
    for (uint32_t r = 1; r < count; r++) {
        const void *data = graphs[r]->values[value].type.data;
        if (bytes > 0 && data != NULL && first->data != NULL && data != first->data &&
            memcmp(data, first->data, bytes) != 0) {
            return true;
        }
    }
    return false;
}

/* Do the shapes of the outputs depend on the contents of the constants that differ? */
static bool shapes_need(const wefti_graph_t *graph, uint32_t id, const bool *differs,
                        wefti_arena_t *arena, weft_status_t *status)
{
    const wefti_node_t *node = &graph->nodes[id];
    weft_node_desc_t desc;
    *status = wefti_graph_node_desc(graph, id, arena, &desc);
    weft_tensor_desc_t *inputs =
        *status < 0 ? NULL
                    : wefti_arena_memdup(arena, desc.inputs, desc.input_count * sizeof(*inputs));
    if (inputs == NULL) {
        *status = *status < 0 ? *status : WEFT_ERR_NO_MEMORY;
        return false;
    }
    for (uint32_t i = 0; i < desc.input_count; i++) {
        if (node->inputs[i] != WEFTI_NONE && differs[node->inputs[i]]) {
            inputs[i].data = NULL;
        }
    }
    desc.inputs = inputs;
    for (uint32_t i = 0; i < desc.output_count; i++) {
        desc.outputs[i] = (weft_tensor_desc_t){0};
    }
    if (wefti_op_infer(node->def, &desc) < 0) {
        return true;
    }
    for (uint32_t i = 0; i < desc.output_count; i++) {
        const weft_tensor_desc_t *made = &desc.outputs[i];
        const weft_tensor_desc_t *is =
            node->outputs[i] == WEFTI_NONE ? made : &graph->values[node->outputs[i]].type;
        if (made->rank != is->rank ||
            memcmp(made->dims, is->dims, is->rank * sizeof(is->dims[0])) != 0) {
            return true;
        }
    }
    return false;
}

/* A plan has one shape of everything, so what decides shapes is the same on all ranks. */
static weft_status_t check_shapes(const wefti_graph_t *const *graphs, uint32_t count)
{
    const wefti_graph_t *graph = graphs[0];
    weft_status_t status = WEFT_OK;
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    bool *differs = wefti_arena_array(&arena, graph->value_count, sizeof(*differs));
    if (differs == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        differs[v] =
            graph->values[v].kind == WEFTI_VALUE_CONST && contents_differ(graphs, count, v);
    }
    for (uint32_t n = 0; n < graph->order_count; n++) {
        const wefti_node_t *node = &graph->nodes[graph->order[n]];
        for (uint32_t i = 0; i < node->input_count; i++) {
            uint32_t value = node->inputs[i];
            if (value == WEFTI_NONE || !differs[value]) {
                continue;
            }
            bool needed = shapes_need(graph, graph->order[n], differs, &arena, &status);
            WEFT_TRY(status, status, done);
            if (needed) {
                status = wefti_error(WEFT_ERR_UNSUPPORTED,
                                     "node '%s' (%s): constant '%s' determines a shape and differs "
                                     "between the models of the ranks",
                                     node->name, node->def->name, graph->values[value].name);
                goto done;
            }
        }
    }
done:
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_pass_compare_models(const wefti_graph_t *const *graphs,
                                        const char *const *labels, uint32_t count)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 1; r < count && status >= 0; r++) {
        pair_t pair = {.a = graphs[0], .b = graphs[r], .label_a = labels[0], .label_b = labels[r]};
        wefti_text_init(&pair.line_a, graphs[0]->arena.allocator);
        wefti_text_init(&pair.line_b, graphs[0]->arena.allocator);
        status = compare(&pair);
        wefti_text_deinit(&pair.line_a);
        wefti_text_deinit(&pair.line_b);
    }
    return status >= 0 ? check_shapes(graphs, count) : status;
}

/* The first collective of all models, other than Send and Recv, and whether there are any of these;
 * a pair of model and node, WEFTI_NONE: there is none. */
typedef struct collectives {
    uint32_t model, node;
    bool sends;
} collectives_t;

static collectives_t find_collectives(const wefti_graph_t *const *graphs, uint32_t count)
{
    collectives_t found = {.node = WEFTI_NONE};
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t i = 0; i < graphs[r]->order_count; i++) {
            const wefti_node_t *node = &graphs[r]->nodes[graphs[r]->order[i]];
            if (wefti_node_is_sent(node)) {
                found.sends = true;
            } else if (wefti_node_communicates(node) && found.node == WEFTI_NONE) {
                found.model = r;
                found.node = graphs[r]->order[i];
            }
        }
    }
    return found;
}

weft_status_t wefti_apply_compare_models(wefti_compiler_t *c)
{
    const wefti_graph_t **graphs = wefti_arena_array(&c->arena, c->model_count, sizeof(*graphs));
    for (uint32_t r = 0; graphs != NULL && r < c->model_count; r++) {
        graphs[r] = c->models[r].graph;
    }
    WEFT_RETURN_IF_NO_MEMORY(graphs);
    const collectives_t found = find_collectives(graphs, c->model_count);
    if (found.sends && found.node != WEFTI_NONE) {
        const wefti_node_t *node = &graphs[found.model]->nodes[found.node];
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "rank_models",
                                 "%s: node '%s' (%s): models with Send and Recv cannot have other "
                                 "collectives",
                                 c->params.rank_models[found.model], node->name, node->def->name);
    }
    if (found.sends) { /* one rank sends, another one receives: never the same model */
        return wefti_stages_join(c);
    }
    weft_status_t status = wefti_pass_compare_models(graphs, c->params.rank_models, c->model_count);
    if (status != WEFT_ERR_INVALID_ARGUMENT || found.node != WEFTI_NONE) {
        return status;
    }
    wefti_log(&c->log, WEFT_LOG_LEVEL_INFO, "every rank runs a model of its own: %s",
              weft_last_error());
    return wefti_stages_join(c);
}
