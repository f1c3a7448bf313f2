/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One model per rank: equal but for the contents of initializers. Compared are the graphs that came
 * of them once shapes were bound and constants folded, so what ranks run is what was compared. Ids
 * follow the order of the files and must agree, for lowering takes each rank's contents by them.
 */
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

/* Two graphs side by side, what they are called, and room for a line of each. */
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
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "the models differ in more than initializers' contents: %s has '%.200s', "
                       "%s has '%.200s'",
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
    weft_status_t status;
    const wefti_graph_t *a = pair->a, *b = pair->b;
    WEFT_TRY(status, compare_counts(pair, "outputs", a->output_count, b->output_count), fail);
    for (uint32_t i = 0; i < a->output_count; i++) {
        begin_lines(pair);
        wefti_text_printf(&pair->line_a, "output %u %s", i, a->values[a->outputs[i]].name);
        wefti_text_printf(&pair->line_b, "output %u %s", i, b->values[b->outputs[i]].name);
        WEFT_TRY(status, end_lines(pair), fail);
    }
fail:
    return status;
}

static weft_status_t compare(pair_t *pair)
{
    weft_status_t status;
    begin_lines(pair);
    wefti_text_printf(&pair->line_a, "opset %d", pair->a->opset);
    wefti_text_printf(&pair->line_b, "opset %d", pair->b->opset);
    WEFT_TRY(status, end_lines(pair), fail);
    WEFT_TRY(status, compare_nodes(pair), fail);
    WEFT_TRY(status, compare_values(pair), fail);
    WEFT_TRY(status, compare_outputs(pair), fail);
fail:
    return status;
}

weft_status_t wefti_graph_compare_ranks(const wefti_graph_t *const *graphs,
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
    return status;
}
