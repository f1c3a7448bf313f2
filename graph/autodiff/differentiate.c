/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reverse differentiation: forward nodes are visited backwards, and each one's rule appends its
 * part of the backward pass. Nodes thus stand in the order in which gradients become ready.
 */
#include "graph/autodiff/differentiate.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

static const struct diff_rule {
    const char *op; /* of ai.onnx */
    wefti_diff_fn rule;
} rules[] = {
    {"Add", wefti_diff_add},
    {"AveragePool", wefti_diff_average_pool},
    {"Conv", wefti_diff_conv},
    {"Div", wefti_diff_div},
    {"Dropout", wefti_diff_dropout},
    {"Flatten", wefti_diff_same_elements},
    {"Gemm", wefti_diff_gemm},
    {"GlobalAveragePool", wefti_diff_global_average_pool},
    {"Identity", wefti_diff_identity},
    {"MatMul", wefti_diff_matmul},
    {"MaxPool", wefti_diff_max_pool},
    {"Mul", wefti_diff_mul},
    {"Pad", wefti_diff_pad},
    {"Relu", wefti_diff_relu},
    {"Reshape", wefti_diff_same_elements},
    {"SoftmaxCrossEntropyLoss", wefti_diff_cross_entropy},
    {"Squeeze", wefti_diff_same_elements},
    {"Sub", wefti_diff_sub},
    {"Tanh", wefti_diff_tanh},
    {"Transpose", wefti_diff_transpose},
    {"Unsqueeze", wefti_diff_same_elements},
};

static wefti_diff_fn find_rule(const weft_op_def_t *def)
{
    if (strcmp(def->domain, "weft") == 0 && strcmp(def->name, "DropoutMask") == 0) {
        return wefti_diff_dropout; /* what Dropout was made into */
    }
    for (size_t i = 0; *def->domain == '\0' && i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (strcmp(rules[i].op, def->name) == 0) {
            return rules[i].rule;
        }
    }
    return def->grad ? wefti_diff_generic : NULL;
}

bool wefti_is_differentiable(const weft_op_def_t *def)
{
    return find_rule(def) != NULL || strcmp(def->name, "Dropout") == 0; /* is rewritten first */
}

static int list_op(const weft_op_def_t *def, void *user)
{
    if (def->grad) {
        wefti_text_printf(user, ", %s%s%s", def->domain, *def->domain ? "::" : "", def->name);
    }
    return 0;
}

static weft_status_t no_rule(const wefti_graph_t *graph, const wefti_node_t *node)
{
    wefti_text_t list;
    wefti_text_init(&list, graph->arena.allocator);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        wefti_text_printf(&list, "%s%s", i ? ", " : "", rules[i].op);
    }
    weft_op_registry_visit(graph->registry, list_op, &list);
    weft_status_t status =
        wefti_error(WEFT_ERR_UNSUPPORTED,
                    "node '%s' (%s%s%s): operator has no gradient rule; operators with one: %s",
                    node->name, node->def->domain, *node->def->domain ? "::" : "", node->def->name,
                    list.data ? list.data : "");
    wefti_text_deinit(&list);
    return status;
}

static bool is_floating(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_F16 ||
           dtype == WEFT_DTYPE_BF16;
}

/* A value wants a gradient when it is floating and a parameter is behind it. */
static void mark_wanted(wefti_diff_t *diff)
{
    const wefti_graph_t *graph = diff->graph;
    for (uint32_t i = 0; i < diff->forward_value_count; i++) {
        const wefti_value_t *value = &graph->values[i];
        diff->wanted[i] = value->kind == WEFTI_VALUE_PARAM && is_floating(value->type.dtype);
        diff->grads[i] = WEFTI_NONE;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        uint8_t any = 0;
        for (uint32_t k = 0; k < node->input_count; k++) {
            any |= node->inputs[k] != WEFTI_NONE && diff->wanted[node->inputs[k]];
        }
        for (uint32_t k = 0; k < node->output_count; k++) {
            uint32_t value = node->outputs[k];
            if (value != WEFTI_NONE) {
                diff->wanted[value] = any && is_floating(graph->values[value].type.dtype);
            }
        }
    }
}

static weft_status_t seed_loss(wefti_diff_t *diff)
{
    wefti_graph_t *graph = diff->graph;
    if (graph->loss == WEFTI_NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "graph has no loss");
    }
    const wefti_value_t *loss = &graph->values[graph->loss];
    char text[WEFTI_TYPE_TEXT_BYTES];
    if (weft_tensor_elem_count(&loss->type) != 1 || !is_floating(loss->type.dtype)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "loss '%s': must be one floating-point number, got %s", loss->name,
                           wefti_type_text(&loss->type, text));
    }
    if (!diff->wanted[graph->loss]) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "loss '%s': does not depend on any parameter",
                           loss->name);
    }
    weft_tensor_desc_t type = loss->type;
    return wefti_diff_constant(graph, "loss_seed", &type, 1.0, &diff->grads[graph->loss]);
}

/* Node by node from the loss to the inputs; order[] grows behind the part that is read. */
static weft_status_t run_rules(wefti_diff_t *diff, uint32_t forward_count)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = forward_count; i-- > 0;) {
        diff->node = diff->graph->order[i];
        const wefti_node_t *node = wefti_diff_node(diff);
        bool has_grad = false;
        for (uint32_t k = 0; k < node->output_count; k++) {
            has_grad = has_grad || wefti_diff_output_grad(diff, k) != WEFTI_NONE;
        }
        if (!has_grad) {
            continue;
        }
        wefti_diff_fn rule = find_rule(node->def);
        if (!rule) {
            return no_rule(diff->graph, node);
        }
        WEFT_TRY(status, rule(diff), done);
    }
done:
    return status;
}

/* Gradients get their names, parameters' first; parameters without one become constants. */
weft_status_t wefti_error_empty_param(const char *name)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "parameter '%s': no elements to train", name);
}

static weft_status_t finish(wefti_diff_t *diff)
{
    weft_status_t status = WEFT_OK;
    wefti_graph_t *graph = diff->graph;
    wefti_text_t name;
    wefti_text_init(&name, graph->arena.allocator);
    for (int params = 1; params >= 0; params--) {
        for (uint32_t i = 0; i < diff->forward_value_count; i++) {
            if ((graph->values[i].kind == WEFTI_VALUE_PARAM) != params) {
                continue;
            }
            uint32_t grad = diff->grads[i];
            if (params && grad == WEFTI_NONE) {
                graph->values[i].kind = WEFTI_VALUE_CONST;
                continue;
            }
            if (grad == WEFTI_NONE || graph->values[grad].grad_of != WEFTI_NONE) {
                continue;
            }
            if (params) {
                if (weft_tensor_elem_count(&graph->values[i].type) == 0) {
                    status = wefti_error_empty_param(graph->values[i].name);
                    goto done;
                }
                graph->values[grad].grad_of = i;
            }
            name.length = 0;
            wefti_text_printf(&name, "%s_grad", graph->values[i].name);
            if (name.failed) {
                status = WEFT_ERR_NO_MEMORY;
                goto done;
            }
            WEFT_TRY(status, wefti_graph_rename_value(graph, grad, name.data), done);
        }
    }
done:
    wefti_text_deinit(&name);
    return status;
}

weft_status_t wefti_graph_differentiate(wefti_graph_t *graph)
{
    weft_status_t status;
    const weft_allocator_t *allocator = graph->arena.allocator;
    WEFT_TRY(status, wefti_graph_resolve_dropout(graph), fail);
    if (wefti_graph_has_gradients(graph)) {
        return WEFT_OK;
    }
    status = WEFT_ERR_NO_MEMORY;
    wefti_diff_t diff = {.graph = graph, .forward_value_count = graph->value_count};
    diff.grads = wefti_alloc(allocator, ((size_t)graph->value_count + 1) * sizeof(*diff.grads));
    diff.wanted = wefti_alloc(allocator, (size_t)graph->value_count + 1);
    if (!diff.grads || !diff.wanted) {
        goto done;
    }
    mark_wanted(&diff);
    uint32_t forward_count = graph->order_count;
    WEFT_TRY(status, seed_loss(&diff), done);
    WEFT_TRY(status, run_rules(&diff, forward_count), done);
    WEFT_TRY(status, finish(&diff), done);
done:
    wefti_free(allocator, diff.grads);
    wefti_free(allocator, diff.wanted);
fail:
    return status;
}
