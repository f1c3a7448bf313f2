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
    uint32_t *inputs = wefti_arena_array(&graph->arena, 4, sizeof(*inputs));
    weft_attr_t attrs[] = {{.name = "ratio", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)ratio},
                           {.name = "salt", .type = WEFT_ATTR_TYPE_INT, .i = salt}};
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    inputs[0] = graph->nodes[id].inputs[0];
    WEFT_RETURN_IF_ERROR(wefti_graph_need_scalar(graph, "seed", WEFT_DTYPE_I64, 0.0, &inputs[1]));
    WEFT_RETURN_IF_ERROR(wefti_graph_need_scalar(graph, "step", WEFT_DTYPE_F32, 1.0, &inputs[2]));
    if (fed) {
        WEFT_RETURN_IF_ERROR(
            wefti_graph_need_scalar(graph, "rank", WEFT_DTYPE_I64, 0.0, &inputs[3]));
    }
    wefti_node_t *node = &graph->nodes[id];
    node->inputs = inputs;
    node->input_count = fed ? 4 : 3;
    node->attr_count = 0;
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &attrs[0]));
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &attrs[1]));
    return wefti_graph_change_op(graph, id, "weft", "DropoutMask", 0);
}

/* salt: of the next node that drops; fed: by value, does data of this rank reach it? */
static weft_status_t expand(wefti_graph_t *graph, uint32_t id, const wefti_readers_t *readers,
                            const uint8_t *fed, uint32_t *salt)
{
    wefti_node_t *node = &graph->nodes[id];
    uint32_t mask = node->output_count > 1 ? node->outputs[1] : WEFTI_NONE;
    bool on;
    double ratio;
    WEFT_RETURN_IF_ERROR(read_form(graph, node, &on, &ratio));
    if (node->version >= 12 && (!on || ratio == 0.0)) { /* without training_mode: the identity */
        node->input_count = 1;
        return WEFT_OK;
    }
    if (mask != WEFTI_NONE &&
        (readers->first[mask] < readers->first[mask + 1] || graph->values[mask].flags != 0)) {
        return refuse(node, "readers of the mask are not supported in training");
    }
    return make_mask_node(graph, id, ratio, (*salt)++, fed[node->outputs[0]] != 0);
}

weft_status_t wefti_pass_expand_dropout(wefti_graph_t *graph, bool infer)
{
    weft_status_t status;
    uint32_t salt = 0;
    wefti_readers_t readers;
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    const uint8_t *fed = wefti_graph_spread(graph, &arena, NULL);
    WEFT_TRY(status, fed == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, done);
    WEFT_TRY(status, wefti_graph_readers(graph, graph->order, graph->order_count, &arena, &readers),
             done);
    for (uint32_t i = 0; i < graph->order_count && status >= 0; i++) {
        uint32_t id = graph->order[i];
        if (is_dropout(&graph->nodes[id])) {
            status = infer && graph->nodes[id].version < 12
                         ? make_identity(graph, id)
                         : expand(graph, id, &readers, fed, &salt);
        }
    }
done:
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_expand_dropout(wefti_compiler_t *c)
{
    return wefti_pass_expand_dropout(c->graph, c->params.infer != 0);
}
