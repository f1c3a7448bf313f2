/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expand-dropout: decides for every Dropout of the model whether it drops.
 *
 * Matches Dropout. From opset 12 on the node has a constant training_mode; before that it drops in
 * training only. Produces DropoutMask with scalars "seed", "step" and "rank" where it drops, an
 * Identity in inference before opset 12, and elsewhere a Dropout with its first input only.
 *
 * The salt is the number of the node among those that drop, in the order of execution: the same in
 * every run and on every rank, and independent of names. "rank" is an input only where data of a
 * rank reaches the node, because equal data must be dropped equally on all ranks.
 */
#include "fusion/passes/passes.h"

#include "ops/op_facts.h"
#include "runtime/base/error.h"

static bool is_dropout(const wefti_node_t *node)
{
    return wefti_op_has(node->def, WEFT_FACT_DROPOUT);
}

static weft_status_t refuse(const wefti_node_t *node, const char *what)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (Dropout): %s", node->name, what);
}

static const weft_tensor_desc_t *input_of(const wefti_graph_t *graph, const wefti_node_t *node,
                                          uint32_t index)
{
    return index < node->input_count && node->inputs[index] != WEFTI_NONE
               ? &graph->values[node->inputs[index]].type
               : NULL;
}

/* Does the node drop, and how much? */
static weft_status_t read_form(const wefti_graph_t *graph, const wefti_node_t *node, bool *out_on,
                               double *out_ratio)
{
    const weft_tensor_desc_t *ratio = input_of(graph, node, 1), *mode = input_of(graph, node, 2);
    const weft_attr_t *attr = wefti_node_attr(node, "ratio");
    *out_on = node->version < 12;
    *out_ratio = 0.5;
    if (node->version < 12) {
        *out_ratio =
            attr != NULL && attr->type == WEFT_ATTR_TYPE_FLOAT ? (double)attr->f : *out_ratio;
    } else if (mode != NULL) {
        if (mode->data == NULL || mode->dtype != WEFT_DTYPE_BOOL ||
            weft_tensor_elem_count(mode) != 1) {
            return refuse(node, "training_mode must be a constant");
        }
        *out_on = *(const uint8_t *)mode->data != 0;
    }
    if (*out_on && ratio != NULL && !wefti_tensor_number(ratio, out_ratio)) {
        return refuse(node, "ratio must be a constant");
    }
    if (*out_on && !(*out_ratio >= 0.0 && *out_ratio < 1.0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (Dropout): ratio must be at least 0 and below 1: %g",
                           node->name, *out_ratio);
    }
    return WEFT_OK;
}

static bool has_readers(const wefti_graph_t *graph, uint32_t value)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            if (node->inputs[k] == value) {
                return true;
            }
        }
    }
    return graph->values[value].flags != 0;
}

/* Per value: does the data fed to this rank reach it? Then ranks hold different parts of it. */
static uint8_t *mark_fed(const wefti_graph_t *graph)
{
    uint8_t *fed = wefti_alloc(graph->arena.allocator, (size_t)graph->value_count + 1);
    for (uint32_t i = 0; fed != NULL && i < graph->value_count; i++) {
        fed[i] = graph->values[i].kind == WEFTI_VALUE_INPUT;
    }
    if (fed != NULL) {
        wefti_graph_spread(graph, fed, NULL);
    }
    return fed;
}

/* Before opset 12 it drops in training only. */
static weft_status_t make_identity(wefti_graph_t *graph, uint32_t id)
{
    wefti_node_t *node = &graph->nodes[id];
    if (node->output_count > 1 && node->outputs[1] != WEFTI_NONE) {
        return refuse(node, "the mask output is not supported before opset 12");
    }
    node->output_count = 1;
    node->attr_count = 0;
    return wefti_graph_change_op(graph, id, "", "Identity", 0);
}

static weft_status_t make_mask_node(wefti_graph_t *graph, uint32_t id, double ratio, uint32_t salt,
                                    bool fed)
{
    weft_status_t status;
    uint32_t *inputs = wefti_arena_array(&graph->arena, 4, sizeof(*inputs));
    weft_attr_t attrs[] = {{.name = "ratio", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)ratio},
                           {.name = "salt", .type = WEFT_ATTR_TYPE_INT, .i = salt}};
    if (inputs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    inputs[0] = graph->nodes[id].inputs[0];
    WEFT_TRY(status, wefti_graph_need_scalar(graph, "seed", WEFT_DTYPE_I64, 0.0, &inputs[1]), out);
    WEFT_TRY(status, wefti_graph_need_scalar(graph, "step", WEFT_DTYPE_F32, 1.0, &inputs[2]), out);
    if (fed) {
        WEFT_TRY(status, wefti_graph_need_scalar(graph, "rank", WEFT_DTYPE_I64, 0.0, &inputs[3]),
                 out);
    }
    wefti_node_t *node = &graph->nodes[id];
    node->inputs = inputs;
    node->input_count = fed ? 4 : 3;
    node->attr_count = 0;
    WEFT_TRY(status, wefti_graph_set_attr(graph, id, &attrs[0]), out);
    WEFT_TRY(status, wefti_graph_set_attr(graph, id, &attrs[1]), out);
    WEFT_TRY(status, wefti_graph_change_op(graph, id, "weft", "DropoutMask", 0), out);
out:
    return status;
}

weft_status_t wefti_pass_expand_dropout(wefti_graph_t *graph, bool infer)
{
    weft_status_t status = WEFT_OK;
    uint32_t salt = 0;
    uint8_t *fed = mark_fed(graph);
    if (fed == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        wefti_node_t *node = &graph->nodes[id];
        bool on;
        double ratio;
        if (!is_dropout(node)) {
            continue;
        }
        if (infer && node->version < 12) {
            WEFT_TRY(status, make_identity(graph, id), done);
            continue;
        }
        WEFT_TRY(status, read_form(graph, node, &on, &ratio), done);
        if (!on) {
            node->input_count = 1;
            continue;
        }
        if (node->output_count > 1 && node->outputs[1] != WEFTI_NONE &&
            has_readers(graph, node->outputs[1])) {
            status = refuse(node, "readers of the mask are not supported in training");
            goto done;
        }
        WEFT_TRY(status, make_mask_node(graph, id, ratio, salt++, fed[node->outputs[0]] != 0),
                 done);
    }
done:
    wefti_free(graph->arena.allocator, fed);
    return status;
}

weft_status_t wefti_apply_expand_dropout(wefti_compiler_t *c)
{
    return wefti_pass_expand_dropout(c->graph, c->params.infer != 0);
}
