/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiled graph as a plan of Weft: this compiler's operators become definitions and kernels of
 * domain "host", its tensors buffers, its order the steps of two streams. Weft then places memory,
 * proves that streams do not race, and runs it in a session.
 */
#include "host.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- operators ---- */

/* Rows and columns of a result: dimensions of inputs, or numbers. */
#define LIKE(input)                                                                                \
    {                                                                                              \
        .like = input                                                                              \
    }
#define MATRIX(row, of_row, col, of_col)                                                           \
    {                                                                                              \
        .like = -1, .rank = 2, .dims = {row, col}, .of_input = { of_row, of_col }                  \
    }
static const weft_output_rule_t linear_outputs[] = {MATRIX(0, 0, 1, 1)};
static const weft_output_rule_t same_outputs[] = {LIKE(0)};
static const weft_output_rule_t xent_outputs[] = {MATRIX(1, -1, 1, -1), LIKE(0)};
static const weft_output_rule_t grad_x_outputs[] = {MATRIX(0, 0, 0, 1)};
static const weft_output_rule_t grad_w_outputs[] = {MATRIX(1, 0, 1, 1)};
static const weft_output_rule_t grad_b_outputs[] = {MATRIX(1, -1, 1, 0)};

static const char *const names[] = {
    [HOST_LINEAR] = "Linear",      [HOST_RELU] = "Relu",    [HOST_XENT] = "CrossEntropy",
    [HOST_RELU_GRAD] = "ReluGrad", [HOST_GRAD_X] = "GradX", [HOST_GRAD_W] = "GradW",
    [HOST_GRAD_B] = "GradB",       [HOST_SGD] = "Sgd",
};
#define OPERATORS (sizeof names / sizeof *names)

/* A graph of one node, whose tensors get their memory with each call. */
static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    host_graph_t *graph = calloc(1, sizeof *graph);
    (void)env;
    *out_state = graph;
    *out_scratch_bytes = 0;
    if (graph == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t op = 0; op < OPERATORS; op++) {
        if (strcmp(names[op], node->op) == 0) {
            host_add_node(graph, (host_op_t)op, node->name);
        }
    }
    for (uint32_t i = 0; i < node->input_count + node->output_count; i++) {
        bool is_input = i < node->input_count;
        const weft_tensor_desc_t *desc =
            is_input ? &node->inputs[i] : &node->outputs[i - node->input_count];
        uint32_t tensor =
            host_add_tensor(graph, "", (uint32_t)desc->dims[0], (uint32_t)desc->dims[1]);
        if (is_input) {
            host_add_input(graph, 0, tensor);
        } else {
            host_add_output(graph, 0, tensor);
        }
    }
    return WEFT_OK;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    host_graph_t *graph = call->state;
    const host_node_t *node = &graph->nodes[0];
    for (uint32_t i = 0; i < node->input_count; i++) {
        graph->tensors[node->inputs[i]].data = (float *)(uintptr_t)call->inputs[i];
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        graph->tensors[node->outputs[i]].data = call->outputs[i];
    }
    host_run_kernel(graph, node);
    return WEFT_OK;
}

/* place: the input that output 0 overwrites, or -1. */
#define DEFINITION(text, ins, outs, effect, place, outputs, count, flops)                          \
    {                                                                                              \
        .domain = "host", .name = text, .since_version = 1, .inputs_min = ins, .inputs_max = ins,  \
        .outputs_min = outs, .outputs_max = outs, .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),        \
        .effects = effect, .in_place = {place, -1, -1, -1}, .doc = "of the host compiler",         \
        .rules = &(const weft_op_rules_t)                                                          \
        {                                                                                          \
            outputs, count, flops                                                                  \
        }                                                                                          \
    }
#define PURE(text, ins, outs, outputs, flops)                                                      \
    DEFINITION(text, ins, outs, WEFT_EFFECT_PURE, -1, outputs, outs, flops)

/* The registry borrows them. */
static const weft_op_def_t definitions[] = {
    PURE("Linear", 3, 1, linear_outputs, 2),
    PURE("Relu", 1, 1, same_outputs, 1),
    PURE("CrossEntropy", 2, 2, xent_outputs, 20),
    PURE("ReluGrad", 2, 1, same_outputs, 1),
    PURE("GradX", 2, 1, grad_x_outputs, 2),
    PURE("GradW", 2, 1, grad_w_outputs, 2),
    PURE("GradB", 1, 1, grad_b_outputs, 1),
    DEFINITION("Sgd", 2, 1, WEFT_EFFECT_UPDATES, 0, same_outputs, 1, 2),
};

#define KERNEL(text)                                                                               \
    {                                                                                              \
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = "host", .op = text, .since_version = 1,  \
        .prepare = prepare, .run = run, .destroy = free                                            \
    }
static const weft_kernel_t kernels[] = {
    KERNEL("Linear"), KERNEL("Relu"),  KERNEL("CrossEntropy"), KERNEL("ReluGrad"),
    KERNEL("GradX"),  KERNEL("GradW"), KERNEL("GradB"),        KERNEL("Sgd"),
};

void host_register(weft_registry_t *registry)
{
    for (uint32_t op = 0; op < OPERATORS; op++) {
        host_check(weft_registry_add_op(registry, &definitions[op]));
        host_check(weft_registry_add_kernel(registry, &kernels[op]));
    }
}

/* ---- the graph ---- */

typedef struct draft {
    weft_plan_builder_t *builder;
    const host_graph_t *graph;
    uint32_t compute, comm;
    uint32_t buffers[HOST_MAX_TENSORS];
    uint32_t steps[HOST_MAX_NODES];                       /* kernel or collective of a node */
    uint32_t ready[HOST_MAX_NODES], done[HOST_MAX_NODES]; /* events of a collective */
} draft_t;

/* Gradients are what collectives take; the result lies where the gradient does. */
static weft_buffer_kind_t kind_of(const host_graph_t *graph, const host_model_t *model, uint32_t id)
{
    for (uint32_t p = 0; p < model->param_count; p++) {
        if (model->params[p] == id) {
            return WEFT_BUFFER_KIND_PARAM;
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const host_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count && node->op == HOST_COLLECTIVE; k++) {
            if (node->inputs[k] == id) {
                return WEFT_BUFFER_KIND_GRAD;
            }
        }
    }
    return id == model->input || id == model->labels ? WEFT_BUFFER_KIND_INPUT
           : id == model->loss                       ? WEFT_BUFFER_KIND_OUTPUT
                                                     : WEFT_BUFFER_KIND_TEMP;
}

static void add_buffers(draft_t *draft, const host_model_t *model)
{
    for (uint32_t t = 0; t < draft->graph->tensor_count; t++) {
        const host_tensor_t *tensor = &draft->graph->tensors[t];
        weft_plan_buffer_params_t params = WEFT_PLAN_BUFFER_PARAMS_INIT;
        if (tensor->alias != HOST_NONE) {
            draft->buffers[t] = draft->buffers[tensor->alias];
            continue;
        }
        params.name = tensor->name;
        params.kind = kind_of(draft->graph, model, t);
        params.role = t == model->loss     ? WEFT_BINDING_ROLE_LOSS
                      : t == model->labels ? WEFT_BINDING_ROLE_LABEL
                                           : params.role;
        params.desc.dtype = WEFT_DTYPE_F32;
        params.desc.rank = 2;
        params.desc.dims[0] = tensor->rows;
        params.desc.dims[1] = tensor->cols;
        params.desc.data = params.kind == WEFT_BUFFER_KIND_PARAM ? tensor->data : NULL;
        host_check(weft_plan_builder_add_buffer(draft->builder, &params, &draft->buffers[t]));
    }
}

static void add_kernel(draft_t *draft, uint32_t id)
{
    const host_node_t *node = &draft->graph->nodes[id];
    weft_plan_kernel_params_t params = WEFT_PLAN_KERNEL_PARAMS_INIT;
    uint32_t inputs[HOST_MAX_IO], outputs[HOST_MAX_IO];
    for (uint32_t i = 0; i < node->input_count; i++) {
        inputs[i] = draft->buffers[node->inputs[i]];
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        outputs[i] = draft->buffers[node->outputs[i]];
    }
    params.name = node->name;
    params.domain = "host";
    params.op = names[node->op];
    params.phase = node->op == HOST_SGD         ? WEFT_PLAN_PHASE_UPDATE
                   : node->op >= HOST_RELU_GRAD ? WEFT_PLAN_PHASE_BACKWARD
                                                : WEFT_PLAN_PHASE_FORWARD;
    params.inputs = inputs;
    params.input_count = node->input_count;
    params.outputs = node->op == HOST_SGD ? inputs : outputs; /* its weight, in place */
    params.output_count = node->op == HOST_SGD ? 1 : node->output_count;
    host_check(weft_plan_builder_add_kernel(draft->builder, &params, &draft->steps[id]));
}

static void add_collective(draft_t *draft, uint32_t id)
{
    const host_node_t *node = &draft->graph->nodes[id];
    weft_plan_collective_params_t params = WEFT_PLAN_COLLECTIVE_PARAMS_INIT;
    uint32_t sends[HOST_MAX_IO];
    for (uint32_t i = 0; i < node->input_count; i++) {
        sends[i] = draft->buffers[node->inputs[i]];
    }
    params.name = node->name;
    params.op = WEFT_COLLECTIVE_ALL_REDUCE;
    params.reduction = node->reduction;
    params.sends = sends;
    params.send_count = node->input_count;
    params.algorithms = node->algorithm[0] != '\0' ? node->algorithm : NULL;
    params.reason = node->reason;
    host_check(weft_plan_builder_add_collective(draft->builder, &params, &draft->steps[id]));
    host_check(weft_plan_builder_add_event(draft->builder, &draft->ready[id]));
    host_check(weft_plan_builder_add_event(draft->builder, &draft->done[id]));
}

/* ---- the order ---- */

/* The collective waits for what was launched before it, on its own stream. */
static void append_collective(draft_t *draft, uint32_t id)
{
    weft_plan_builder_t *builder = draft->builder;
    host_check(weft_plan_builder_append_record(builder, "step", draft->compute, draft->ready[id]));
    host_check(weft_plan_builder_append_wait(builder, "step", draft->comm, draft->ready[id]));
    host_check(weft_plan_builder_append_collective(builder, "step", draft->comm, draft->steps[id]));
    host_check(weft_plan_builder_append_record(builder, "step", draft->comm, draft->done[id]));
}

static void append_kernel(draft_t *draft, uint32_t id)
{
    const host_graph_t *graph = draft->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t other = graph->order[i];
        if (graph->nodes[other].op == HOST_COLLECTIVE && graph->nodes[other].wait_before == id) {
            host_check(weft_plan_builder_append_wait(draft->builder, "step", draft->compute,
                                                     draft->done[other]));
        }
    }
    host_check(
        weft_plan_builder_append_kernel(draft->builder, "step", draft->compute, draft->steps[id]));
}

/* As host_program_step: collectives in their order, each once the node it starts after is there. */
static void append_steps(draft_t *draft)
{
    const host_graph_t *graph = draft->graph;
    uint32_t waiting[HOST_MAX_NODES], next = 0, count = 0;
    int launched[HOST_MAX_NODES] = {0};
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (graph->nodes[graph->order[i]].op == HOST_COLLECTIVE) {
            waiting[count++] = graph->order[i];
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (graph->nodes[id].op != HOST_COLLECTIVE) {
            append_kernel(draft, id);
        }
        launched[id] = 1;
        for (; next < count; next++) {
            uint32_t after = graph->nodes[waiting[next]].start_after;
            if (after != HOST_NONE && !launched[after]) {
                break;
            }
            append_collective(draft, waiting[next]);
        }
    }
}

weft_plan_t *host_build_plan(const host_graph_t *graph, const host_model_t *model,
                             const weft_registry_t *registry, uint32_t ranks)
{
    weft_plan_builder_params_t params = WEFT_PLAN_BUILDER_PARAMS_INIT;
    weft_plan_t *plan = NULL;
    draft_t draft = {.graph = graph};
    params.name = "host";
    params.world_size = ranks;
    params.batch = graph->tensors[model->input].rows;
    params.optimizer = "sgd";
    params.registry = registry;
    host_check(weft_plan_builder_create(&params, &draft.builder));
    host_check(weft_plan_builder_add_stream(draft.builder, "compute", &draft.compute));
    host_check(weft_plan_builder_add_stream(draft.builder, "comm", &draft.comm));
    add_buffers(&draft, model);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (graph->nodes[id].op == HOST_COLLECTIVE) {
            add_collective(&draft, id);
        } else {
            add_kernel(&draft, id);
        }
    }
    append_steps(&draft);
    host_check(weft_plan_builder_finish(draft.builder, &plan));
    weft_plan_builder_destroy(draft.builder);
    return plan;
}
