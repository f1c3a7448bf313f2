/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer: the updates of parameters as operators of the graph.
 *
 * Matches values with grad_of. Produces one SGD, Momentum or Adam (phase UPDATE) per gradient, in
 * the order in which gradients become ready, with states as values and scalars "lr" and "step". The
 * gradient input is the value that has grad_of at this point: the result of a collective.
 */
#include "fusion/passes/passes.h"

#include "runtime/base/error.h"

typedef struct updater {
    wefti_graph_t *graph;
    const wefti_optimizer_params_t *params;
    uint32_t lr, step; /* scalar inputs */
    uint32_t scale;    /* of gradients, or WEFTI_NONE */
} updater_t;

static weft_status_t add_state(wefti_graph_t *graph, uint32_t param, const char *suffix,
                               uint32_t *out_value)
{
    weft_tensor_desc_t type = graph->values[param].type;
    char *name = wefti_arena_printf(&graph->arena, "%s_%s", graph->values[param].name, suffix);
    WEFT_RETURN_IF_NO_MEMORY(name);
    type.data = NULL;
    weft_status_t status = wefti_graph_add_value(graph, name, WEFTI_VALUE_STATE, &type, out_value);
    if (status >= 0) {
        graph->values[*out_value].state_of = param;
    }
    return status;
}

/* Inputs and attributes of one update; in and attrs have room for the largest. */
static weft_status_t describe(const updater_t *updater, uint32_t param, uint32_t grad, uint32_t *in,
                              weft_attr_t *attrs, wefti_node_params_t *node)
{
    const wefti_optimizer_params_t *p = updater->params;
    uint32_t n = 0, a = 0;
    in[n++] = param;
    in[n++] = grad;
    attrs[a++] = (weft_attr_t){
        .name = "weight_decay", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->weight_decay};
    switch (p->kind) {
    case WEFTI_OPTIMIZER_SGD:
        node->op = "SGD";
        break;
    case WEFTI_OPTIMIZER_MOMENTUM:
        node->op = "Momentum";
        WEFT_RETURN_IF_ERROR(add_state(updater->graph, param, "momentum", &in[n++]));
        attrs[a++] = (weft_attr_t){
            .name = "momentum", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->momentum};
        break;
    case WEFTI_OPTIMIZER_ADAM:
        node->op = "Adam";
        WEFT_RETURN_IF_ERROR(add_state(updater->graph, param, "moment1", &in[n++]));
        WEFT_RETURN_IF_ERROR(add_state(updater->graph, param, "moment2", &in[n++]));
        attrs[a++] =
            (weft_attr_t){.name = "beta1", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->beta1};
        attrs[a++] =
            (weft_attr_t){.name = "beta2", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->beta2};
        attrs[a++] =
            (weft_attr_t){.name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->epsilon};
        break;
    default:
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown optimizer %d", (int)p->kind);
    }
    if (p->divisor > 1) {
        attrs[a++] = (weft_attr_t){.name = "divisor", .type = WEFT_ATTR_TYPE_INT, .i = p->divisor};
    }
    node->output_count = n - 1; /* the parameter and its states */
    in[n++] = updater->lr;
    if (p->kind == WEFTI_OPTIMIZER_ADAM) {
        in[n++] = updater->step;
    }
    if (updater->scale != WEFTI_NONE) {
        in[n++] = updater->scale;
    }
    node->inputs = in;
    node->input_count = n;
    node->attrs = attrs;
    node->attr_count = a;
    return WEFT_OK;
}

static weft_status_t add_update(const updater_t *updater, uint32_t param, uint32_t grad)
{
    wefti_graph_t *graph = updater->graph;
    uint32_t in[7], node;
    weft_attr_t attrs[5];
    const char *output_names[3] = {NULL, NULL, NULL};
    wefti_node_params_t params = {
        .domain = "weft", .phase = WEFTI_PHASE_UPDATE, .output_names = output_names};
    WEFT_RETURN_IF_ERROR(describe(updater, param, grad, in, attrs, &params));
    params.name = wefti_arena_printf(&graph->arena, "%s/update", graph->values[param].name);
    for (uint32_t i = 0; i < params.output_count; i++) {
        /* in[] without the gradient: what the output replaces */
        uint32_t replaced = i == 0 ? param : in[i + 1];
        output_names[i] = wefti_arena_printf(&graph->arena, "%s_new", graph->values[replaced].name);
        WEFT_RETURN_IF_NO_MEMORY(output_names[i]);
    }
    WEFT_RETURN_IF_NO_MEMORY(params.name);
    return wefti_graph_add_node(graph, &params, &node);
}

weft_status_t wefti_error_no_gradients(void)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "graph has no gradients to train with");
}

weft_status_t wefti_pass_optimizer(wefti_graph_t *graph, const wefti_optimizer_params_t *params,
                                   uint32_t scale)
{
    updater_t updater = {
        .graph = graph, .params = params, .lr = WEFTI_NONE, .step = WEFTI_NONE, .scale = scale};
    uint32_t node_count = graph->order_count, update_count = 0;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_need_scalar(graph, "lr", WEFT_DTYPE_F32, params->lr, &updater.lr));
    if (params->kind == WEFTI_OPTIMIZER_ADAM) {
        WEFT_RETURN_IF_ERROR(
            wefti_graph_need_scalar(graph, "step", WEFT_DTYPE_F32, 1.0, &updater.step));
    }
    for (uint32_t i = 0; i < node_count; i++) {
        uint32_t id = graph->order[i];
        for (uint32_t k = 0; k < graph->nodes[id].output_count; k++) {
            uint32_t grad = graph->nodes[id].outputs[k];
            if (grad != WEFTI_NONE && graph->values[grad].grad_of != WEFTI_NONE) {
                WEFT_RETURN_IF_ERROR(add_update(&updater, graph->values[grad].grad_of, grad));
                update_count++;
            }
        }
    }
    if (!update_count) {
        return wefti_error_no_gradients();
    }
    return WEFT_OK;
}

weft_status_t wefti_apply_optimizer(wefti_compiler_t *c)
{
    return wefti_pass_optimizer(c->graph, &c->optimizer, c->clip_scale);
}
