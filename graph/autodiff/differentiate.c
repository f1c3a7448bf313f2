/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reverse differentiation: forward nodes are visited backwards, and the rule of each appends nodes
 * of the backward pass. So nodes are in the order in which gradients become ready.
 */
#include "graph/autodiff/differentiate.h"

#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static wefti_diff_fn find_rule(const weft_op_def_t *def)
{
    static const wefti_diff_fn rules[] = {
        [WEFT_GRADIENT_OF_RESULT] = wefti_diff_of_result,
        [WEFT_GRADIENT_PERMUTATION] = wefti_diff_transpose,
        [WEFT_GRADIENT_GEMM] = wefti_diff_gemm,
        [WEFT_GRADIENT_MATRIX_PRODUCT] = wefti_diff_matmul,
        [WEFT_GRADIENT_CONVOLUTION] = wefti_diff_conv,
        [WEFT_GRADIENT_WINDOW_MAXIMUM] = wefti_diff_max_pool,
        [WEFT_GRADIENT_WINDOW_MEAN] = wefti_diff_average_pool,
        [WEFT_GRADIENT_GLOBAL_MEAN] = wefti_diff_global_average_pool,
        [WEFT_GRADIENT_PADDING] = wefti_diff_pad,
        [WEFT_GRADIENT_CROSS_ENTROPY] = wefti_diff_cross_entropy,
        [WEFT_GRADIENT_DROPOUT] = wefti_diff_dropout,
        [WEFT_GRADIENT_OF_INPUTS] = wefti_diff_of_inputs,
        [WEFT_GRADIENT_SELECTED] = wefti_diff_gather,
        [WEFT_GRADIENT_RANGE] = wefti_diff_slice,
        [WEFT_GRADIENT_PARTS] = wefti_diff_split,
        [WEFT_GRADIENT_CHOICE] = wefti_diff_where,
        [WEFT_GRADIENT_REPEATED] = wefti_diff_expand,
        [WEFT_GRADIENT_CONVERSION] = wefti_diff_cast,
        [WEFT_GRADIENT_ROW_NORM] = wefti_diff_layer_norm,
        [WEFT_GRADIENT_SOFTMAX] = wefti_diff_softmax,
        [WEFT_GRADIENT_POWER] = wefti_diff_power,
        [WEFT_GRADIENT_NEGATION] = wefti_diff_negate,
        [WEFT_GRADIENT_JOIN] = wefti_diff_concat,
        [WEFT_GRADIENT_SUM] = wefti_diff_reduce_sum,
        [WEFT_GRADIENT_MEAN] = wefti_diff_reduce_mean,
        [WEFT_GRADIENT_ZERO] = wefti_diff_zero,
        [WEFT_GRADIENT_EXTREME] = wefti_diff_extreme,
        [WEFT_GRADIENT_TOTAL] = wefti_diff_total,
        [WEFT_GRADIENT_AVERAGE] = wefti_diff_average,
        [WEFT_GRADIENT_SLOPE] = wefti_diff_slope,
        [WEFT_GRADIENT_REDUCED_EXTREME] = wefti_diff_reduce_extreme,
        [WEFT_GRADIENT_REDUCED_SQUARES] = wefti_diff_reduce_squares,
        [WEFT_GRADIENT_NORM_1] = wefti_diff_norm_1,
        [WEFT_GRADIENT_NORM_2] = wefti_diff_norm_2,
        [WEFT_GRADIENT_LOG_SUM] = wefti_diff_log_sum,
        [WEFT_GRADIENT_LOG_SUM_EXP] = wefti_diff_log_sum_exp,
        [WEFT_GRADIENT_CONVOLUTION_TRANSPOSED] = wefti_diff_conv_transpose,
        [WEFT_GRADIENT_BATCH_NORM] = wefti_diff_batch_norm,
        [WEFT_GRADIENT_SELECTED_SLICES] = wefti_diff_gather_nd,
        [WEFT_GRADIENT_SELECTED_ELEMENTS] = wefti_diff_gather_elements,
        [WEFT_GRADIENT_REPLACED_SLICES] = wefti_diff_scatter_nd,
        [WEFT_GRADIENT_REPLACED_ELEMENTS] = wefti_diff_scatter_elements,
        [WEFT_GRADIENT_RUNNING_SUM] = wefti_diff_running_sum,
        [WEFT_GRADIENT_TILES] = wefti_diff_tiles,
        [WEFT_GRADIENT_LARGEST] = wefti_diff_top,
        [WEFT_GRADIENT_TRIANGLE] = wefti_diff_triangle,
        [WEFT_GRADIENT_REDUCED_PRODUCT] = wefti_diff_reduce_product,
        [WEFT_GRADIENT_SHARED] = wefti_diff_shared,
        [WEFT_GRADIENT_TRANSFER] = wefti_diff_transfer,
    };
    static const wefti_diff_fn arithmetic[] = {
        [WEFT_ARITHMETIC_ADD] = wefti_diff_add,
        [WEFT_ARITHMETIC_SUBTRACT] = wefti_diff_sub,
        [WEFT_ARITHMETIC_MULTIPLY] = wefti_diff_mul,
        [WEFT_ARITHMETIC_DIVIDE] = wefti_diff_div,
    };
    const weft_op_facts_t facts = wefti_op_facts(def);
    if (facts.gradient != WEFT_GRADIENT_DEFAULT) {
        return (size_t)facts.gradient < COUNT(rules) ? rules[facts.gradient] : NULL;
    }
    if (def->grad != NULL) {
        return wefti_diff_generic;
    }
    if (facts.arithmetic != WEFT_ARITHMETIC_NONE) {
        return (size_t)facts.arithmetic < COUNT(arithmetic) ? arithmetic[facts.arithmetic] : NULL;
    }
    return (facts.flags & WEFT_FACT_VIEW) != 0 ? wefti_diff_same_elements : NULL;
}

bool wefti_is_differentiable(const weft_op_def_t *def)
{
    return find_rule(def) != NULL || wefti_is_expanded(def);
}

/* Operators in an error. */
#define MOST_NAMED 16u

/* Each operator once, whatever its versions. */
typedef struct rule_list {
    wefti_text_t text;
    const weft_op_def_t *last;
} rule_list_t;

static int list_op(const weft_op_def_t *def, void *user)
{
    rule_list_t *list = user;
    if (find_rule(def) != NULL && (list->last == NULL || !wefti_op_same(list->last, def))) {
        wefti_text_printf(&list->text, "%s%s%s%s", list->last != NULL ? ", " : "", def->domain,
                          *def->domain ? "::" : "", def->name);
        list->last = def;
    }
    return 0;
}

/* Does the gradient of an output of a forward node depend on a rule that does not exist? */
static bool lacks_rule(const wefti_diff_t *diff, const wefti_node_t *node)
{
    bool wanted = false;
    for (uint32_t k = 0; k < node->output_count; k++) {
        wanted = wanted ||
                 (node->outputs[k] != WEFTI_NONE && node->outputs[k] < diff->forward_value_count &&
                  diff->wanted[node->outputs[k]]);
    }
    return wanted && find_rule(node->def) == NULL;
}

/* Names the node, and the other operators before it that lack a rule. */
static weft_status_t no_rule(const wefti_diff_t *diff, uint32_t position)
{
    const wefti_graph_t *graph = diff->graph;
    const wefti_node_t *node = &graph->nodes[graph->order[position]];
    rule_list_t list = {.last = NULL};
    wefti_text_t others;
    const weft_op_def_t *named[MOST_NAMED] = {node->def};
    uint32_t count = 1;
    wefti_text_init(&list.text, graph->arena.allocator);
    wefti_text_init(&others, graph->arena.allocator);
    for (uint32_t i = position; i-- > 0 && count < MOST_NAMED;) {
        const wefti_node_t *other = &graph->nodes[graph->order[i]];
        uint32_t n = 0;
        while (n < count && !wefti_op_same(named[n], other->def)) {
            n++;
        }
        if (n == count && lacks_rule(diff, other)) {
            named[count++] = other->def;
            wefti_text_printf(&others, "%snode '%s' (%s)", count == 2 ? "; nor have " : ", ",
                              other->name, other->def->name);
        }
    }
    weft_op_registry_visit(graph->registry, list_op, &list);
    weft_status_t status =
        wefti_error(WEFT_ERR_UNSUPPORTED,
                    "node '%s' (%s%s%s): operator has no gradient rule%s; operators with one: %s",
                    node->name, node->def->domain, *node->def->domain ? "::" : "", node->def->name,
                    others.data ? others.data : "", list.text.data ? list.text.data : "");
    wefti_text_deinit(&others);
    wefti_text_deinit(&list.text);
    return status;
}

/* A value needs a gradient if its type is floating and it depends on a parameter through such. */
static void mark_wanted(wefti_diff_t *diff)
{
    const wefti_graph_t *graph = diff->graph;
    for (uint32_t i = 0; i < diff->forward_value_count; i++) {
        const wefti_value_t *value = &graph->values[i];
        diff->wanted[i] =
            value->kind == WEFTI_VALUE_PARAM && wefti_dtype_is_floating(value->type.dtype);
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
                diff->wanted[value] =
                    any && wefti_dtype_is_floating(graph->values[value].type.dtype);
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
    if (weft_tensor_elem_count(&loss->type) != 1 || !wefti_dtype_is_floating(loss->type.dtype)) {
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

/* From the loss to the inputs; rules append to order[] after forward_count. */
static weft_status_t run_rules(wefti_diff_t *diff, uint32_t forward_count)
{
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
            return no_rule(diff, i);
        }
        WEFT_RETURN_IF_ERROR(rule(diff));
    }
    return WEFT_OK;
}

/* Gradients get their names, parameters' first; parameters without one become constants. */
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
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    const weft_allocator_t *allocator = graph->arena.allocator;
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
    return status;
}
