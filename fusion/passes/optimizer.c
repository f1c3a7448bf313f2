/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer: the updates of parameters as operators of the graph.
 *
 * Matches values with grad_of. Produces one update (phase UPDATE; ops/optimizers.h) per gradient, in
 * the order in which gradients become ready, with states as values and scalars "lr" and "step". The
 * gradient input is the value that has grad_of at this point: the result of a collective. Running
 * statistics get a MovingAverage.
 */
#include "fusion/passes/passes.h"

#include <stddef.h>
#include <string.h>

#include "fusion/patterns.h"
#include "runtime/base/error.h"

#define VECTORS "1d" /* in no_decay: all parameters with at most one dimension */

typedef struct updater {
    wefti_graph_t *graph;
    const wefti_optimizer_params_t *params;
    uint32_t lr, step; /* scalar inputs */
    uint32_t scale;    /* of gradients, or WEFTI_NONE */
    const weft_op_def_t *def;
    bool *undecayed;              /* by value */
    const uint32_t *statistic_of; /* by value */
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

/* Settings by the name of the attribute; an update takes those that its operator has. */
static const struct {
    const char *attr;
    size_t offset;
} settings[] = {
    {"weight_decay", offsetof(wefti_optimizer_params_t, weight_decay)},
    {"momentum", offsetof(wefti_optimizer_params_t, momentum)},
    {"beta1", offsetof(wefti_optimizer_params_t, beta1)},
    {"beta2", offsetof(wefti_optimizer_params_t, beta2)},
    {"epsilon", offsetof(wefti_optimizer_params_t, epsilon)},
};
#define DECAY 0 /* its row */
#define SETTING_COUNT (sizeof settings / sizeof *settings)

static bool has_attr(const weft_op_def_t *def, const char *name)
{
    uint32_t k = 0;
    while (k < def->attr_count && strcmp(def->attrs[k].name, name) != 0) {
        k++;
    }
    return k < def->attr_count;
}

/* What the model states, in place of the settings. */
static uint32_t add_stated(const updater_t *updater, uint32_t param, weft_attr_t *attrs)
{
    const wefti_update_rule_t *rule = updater->params->rule;
    for (uint32_t i = 0; i < rule->attr_count; i++) {
        attrs[i] = rule->attrs[i];
        if (updater->undecayed[param] && strcmp(attrs[i].name, settings[DECAY].attr) == 0) {
            attrs[i].f = 0;
        }
    }
    return rule->attr_count;
}

/* An undecayed parameter has no weight decay, and with lamb no step size of its own. */
static uint32_t add_settings(const updater_t *updater, uint32_t param, weft_attr_t *attrs)
{
    uint32_t count = updater->params->rule != NULL ? add_stated(updater, param, attrs) : 0;
    bool undecayed = updater->undecayed[param];
    for (size_t i = 0; updater->params->rule == NULL && i < SETTING_COUNT; i++) {
        double value = *(const double *)((const char *)updater->params + settings[i].offset);
        if (has_attr(updater->def, settings[i].attr)) {
            attrs[count++] = (weft_attr_t){.name = settings[i].attr,
                                           .type = WEFT_ATTR_TYPE_FLOAT,
                                           .f = undecayed && i == DECAY ? 0 : (float)value};
        }
    }
    if (undecayed && has_attr(updater->def, "adapt")) {
        attrs[count++] = (weft_attr_t){.name = "adapt", .type = WEFT_ATTR_TYPE_INT, .i = 0};
    }
    if (updater->params->divisor > 1) {
        attrs[count++] = (weft_attr_t){
            .name = "divisor", .type = WEFT_ATTR_TYPE_INT, .i = updater->params->divisor};
    }
    return count;
}

/* Inputs and attributes of one update; in and attrs have room for the largest. */
static weft_status_t describe(const updater_t *updater, uint32_t param, uint32_t grad, uint32_t *in,
                              weft_attr_t *attrs, wefti_node_params_t *node)
{
    const wefti_optimizer_row_t *row = &wefti_optimizers[updater->params->kind];
    uint32_t n = 0;
    in[n++] = param;
    in[n++] = grad;
    for (uint32_t i = 0; i < row->state_count; i++) {
        WEFT_RETURN_IF_ERROR(add_state(updater->graph, param, row->states[i], &in[n++]));
    }
    node->output_count = n - 1; /* the parameter and its states */
    in[n++] = updater->lr;
    if (updater->step != WEFTI_NONE) {
        in[n++] = updater->step;
    }
    if (updater->scale != WEFTI_NONE) {
        in[n++] = updater->scale;
    }
    node->op = row->op;
    node->inputs = in;
    node->input_count = n;
    node->attrs = attrs;
    node->attr_count = add_settings(updater, param, attrs);
    return WEFT_OK;
}

/* A running statistic takes in the statistic of the step. */
static void describe_average(const updater_t *updater, uint32_t of, uint32_t param, uint32_t grad,
                             uint32_t *in, weft_attr_t *attrs, wefti_node_params_t *node)
{
    in[0] = param;
    in[1] = grad;
    attrs[0] = (weft_attr_t){.name = "momentum",
                             .type = WEFT_ATTR_TYPE_FLOAT,
                             .f = wefti_node_float(&updater->graph->nodes[of], "momentum")};
    attrs[1] =
        (weft_attr_t){.name = "divisor", .type = WEFT_ATTR_TYPE_INT, .i = updater->params->divisor};
    node->op = "MovingAverage";
    node->inputs = in;
    node->input_count = 2;
    node->output_count = 1;
    node->attrs = attrs;
    node->attr_count = updater->params->divisor > 1 ? 2 : 1;
}

static weft_status_t add_update(const updater_t *updater, uint32_t param, uint32_t grad)
{
    wefti_graph_t *graph = updater->graph;
    uint32_t in[7], node;
    weft_attr_t attrs[SETTING_COUNT + 6];
    const char *output_names[3] = {NULL, NULL, NULL};
    wefti_node_params_t params = {
        .domain = "weft", .phase = WEFTI_PHASE_UPDATE, .output_names = output_names};
    uint32_t of = updater->statistic_of[param];
    if (of != WEFTI_NONE) {
        describe_average(updater, of, param, grad, in, attrs, &params);
    } else {
        WEFT_RETURN_IF_ERROR(describe(updater, param, grad, in, attrs, &params));
    }
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

weft_status_t wefti_find_undecayed(const wefti_graph_t *graph,
                                   const wefti_optimizer_params_t *params, wefti_arena_t *arena,
                                   bool **out_undecayed)
{
    wefti_patterns_t patterns;
    bool *undecayed = wefti_arena_array(arena, graph->value_count, sizeof *undecayed);
    *out_undecayed = undecayed;
    WEFT_RETURN_IF_NO_MEMORY(undecayed);
    WEFT_RETURN_IF_ERROR(wefti_patterns_read(params->no_decay, "no_decay", arena, &patterns));
    for (uint32_t v = 0; v < graph->value_count; v++) {
        const wefti_value_t *value = &graph->values[v];
        undecayed[v] =
            value->kind == WEFTI_VALUE_PARAM &&
            wefti_patterns_match(&patterns, value->name, value->type.rank < 2 ? VECTORS : NULL);
    }
    return wefti_patterns_check_used(&patterns, "trained parameter");
}

/* The learning rate that updates read: the scalar, or what the schedule makes of it. */
static weft_status_t add_schedule(updater_t *updater)
{
    const wefti_optimizer_params_t *p = updater->params;
    wefti_graph_t *graph = updater->graph;
    bool constant = p->schedule == NULL || strcmp(p->schedule, "constant") == 0;
    uint32_t inputs[3] = {updater->lr}, count = 2, node;
    const char *names[] = {"learning_rate"};
    if (constant && p->warmup_steps == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_need_scalar(graph, "step", WEFT_DTYPE_F32, 1.0, &inputs[1]));
    if (!constant && p->schedule_steps == 0) {
        WEFT_RETURN_IF_ERROR(
            wefti_graph_need_scalar(graph, "lr_steps", WEFT_DTYPE_F32, 0.0, &inputs[count++]));
    }
    const weft_attr_t attrs[] = {
        {.name = "schedule",
         .type = WEFT_ATTR_TYPE_STRING,
         .s = constant ? "constant" : p->schedule},
        {.name = "warmup", .type = WEFT_ATTR_TYPE_INT, .i = p->warmup_steps},
        {.name = "steps", .type = WEFT_ATTR_TYPE_INT, .i = p->schedule_steps},
        {.name = "min_lr", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->min_lr},
        {.name = "gamma", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)p->gamma}};
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "LearningRate",
                                        .name = "learning_rate",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = inputs,
                                        .input_count = count,
                                        .output_names = names,
                                        .output_count = 1,
                                        .attrs = attrs,
                                        .attr_count = sizeof attrs / sizeof *attrs};
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &node));
    updater->lr = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

static weft_status_t find_operator(updater_t *updater)
{
    const wefti_optimizer_row_t *row = &wefti_optimizers[updater->params->kind];
    updater->def = weft_registry_find_op(updater->graph->registry, "weft", row->op, 1);
    if (updater->def == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "unknown operator weft.%s", row->op);
    }
    return WEFT_OK;
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
    WEFT_RETURN_IF_ERROR(find_operator(&updater));
    WEFT_RETURN_IF_ERROR(wefti_find_undecayed(graph, params, &graph->arena, &updater.undecayed));
    updater.statistic_of = wefti_graph_statistics(graph, &graph->arena);
    WEFT_RETURN_IF_NO_MEMORY(updater.statistic_of);
    WEFT_RETURN_IF_ERROR(
        wefti_graph_need_scalar(graph, "lr", WEFT_DTYPE_F32, params->lr, &updater.lr));
    if (wefti_optimizers[params->kind].reads_step) {
        WEFT_RETURN_IF_ERROR(
            wefti_graph_need_scalar(graph, "step", WEFT_DTYPE_F32, 1.0, &updater.step));
    }
    WEFT_RETURN_IF_ERROR(add_schedule(&updater));
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
