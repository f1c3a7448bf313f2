/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between this compiler's graph and Weft: the graph as a view, Weft's edits applied to it. A pass
 * sees nothing but the view, and changes nothing; its answer is checked before it is applied, as
 * one would with any other pass.
 */
#include "host.h"

#include <stdio.h>
#include <string.h>

/* What Weft has to know of this compiler's own operators: a name, and what they do beside their
 * values. */
static const weft_op_def_t own_defs[] = {
    [HOST_LINEAR] = {.domain = "host", .name = "Linear"},
    [HOST_RELU] = {.domain = "host", .name = "Relu"},
    [HOST_XENT] = {.domain = "host", .name = "SoftmaxCrossEntropy"},
    [HOST_RELU_GRAD] = {.domain = "host", .name = "ReluGrad"},
    [HOST_GRAD_X] = {.domain = "host", .name = "GradX"},
    [HOST_GRAD_W] = {.domain = "host", .name = "GradW"},
    [HOST_GRAD_B] = {.domain = "host", .name = "GradB"},
    [HOST_SGD] = {.domain = "host", .name = "SGD", .effects = WEFT_EFFECT_UPDATES},
};

static void show_ops(const host_graph_t *graph, host_view_t *out)
{
    uint32_t inputs = 0, outputs = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const host_node_t *node = &graph->nodes[i];
        const weft_op_def_t *def = node->op == HOST_COLLECTIVE ? node->def : &own_defs[node->op];
        out->ops[i] = (weft_view_op_t){.name = node->name,
                                       .def = def,
                                       .effects = def->effects,
                                       .first_input = inputs,
                                       .input_count = node->input_count,
                                       .first_output = outputs,
                                       .output_count = node->output_count,
                                       .reduction = node->reduction,
                                       .present = !node->removed};
        for (uint32_t k = 0; k < node->input_count; k++) {
            out->inputs[inputs++] = node->inputs[k];
        }
        for (uint32_t k = 0; k < node->output_count; k++) {
            out->outputs[outputs++] = node->outputs[k];
        }
    }
}

static void show_users(const host_graph_t *graph, host_view_t *out)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < graph->tensor_count; t++) {
        out->values[t].first_user = count;
        for (uint32_t i = 0; i < graph->order_count; i++) {
            const host_node_t *node = &graph->nodes[graph->order[i]];
            for (uint32_t k = 0; k < node->input_count; k++) {
                if (node->inputs[k] == t) {
                    out->users[count++] = graph->order[i];
                }
            }
        }
        out->values[t].user_count = count - out->values[t].first_user;
    }
}

void host_show(const host_graph_t *graph, host_view_t *out)
{
    out->view = (weft_graph_view_t)WEFT_GRAPH_VIEW_INIT;
    for (uint32_t t = 0; t < graph->tensor_count; t++) {
        const host_tensor_t *tensor = &graph->tensors[t];
        out->values[t] = (weft_view_value_t){.name = tensor->name,
                                             .dtype = WEFT_DTYPE_F32,
                                             .bytes = host_tensor_bytes(tensor),
                                             .producer = tensor->producer,
                                             .grad_of = tensor->grad_of};
    }
    show_ops(graph, out);
    show_users(graph, out);
    out->view.value_count = graph->tensor_count;
    out->view.values = out->values;
    out->view.op_count = graph->node_count;
    out->view.ops = out->ops;
    out->view.order_count = graph->order_count;
    out->view.order = graph->order;
    out->view.op_inputs = out->inputs;
    out->view.op_outputs = out->outputs;
    out->view.users = out->users;
    out->view.edge_count = graph->edge_count;
    out->view.edges = graph->edges;
}

/* ---- edits ---- */

static const host_tensor_t *tensor_of(const host_graph_t *graph, uint32_t id)
{
    return &graph->tensors[id];
}

/* Weft's own shape rule decides what comes out of a collective. */
static void infer_shape(const host_graph_t *graph, const host_node_t *node, uint32_t input,
                        uint32_t *out_rows, uint32_t *out_cols)
{
    const host_tensor_t *x = tensor_of(graph, input);
    weft_tensor_desc_t in = {.dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {x->rows, x->cols}};
    weft_tensor_desc_t out = {0};
    weft_attr_t reduction = {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING};
    weft_node_desc_t desc = {.domain = node->def->domain,
                             .op = node->def->name,
                             .version = node->def->since_version,
                             .name = node->name,
                             .input_count = 1,
                             .inputs = &in,
                             .output_count = 1,
                             .outputs = &out,
                             .attr_count = 1,
                             .attrs = &reduction};
    reduction.s = weft_reduction_name(node->reduction);
    host_check(node->def->infer(&desc));
    *out_rows = (uint32_t)out.dims[0];
    *out_cols = (uint32_t)out.dims[1];
}

/* A collective behind a tensor; whoever read the tensor reads the result. */
static uint32_t insert(host_graph_t *graph, const weft_registry_t *registry,
                       const weft_edit_t *edit)
{
    uint32_t value = edit->value, rows, cols;
    char name[48];
    snprintf(name, sizeof name, "reduce %s", graph->tensors[value].name);
    uint32_t id = host_add_node(graph, HOST_COLLECTIVE, name);
    host_node_t *node = &graph->nodes[id];
    node->def = weft_registry_find_op(registry, "weft", edit->op_name, 1);
    node->reduction = edit->reduction;
    if (node->def == NULL) {
        host_fail("Weft does not define what it inserts");
    }
    infer_shape(graph, node, value, &rows, &cols);
    snprintf(name, sizeof name, "%.20s.reduced", graph->tensors[value].name);
    uint32_t result = host_add_tensor(graph, name, rows, cols);
    for (uint32_t i = 0; i < graph->node_count; i++) {
        for (uint32_t k = 0; k < graph->nodes[i].input_count; k++) {
            if (graph->nodes[i].inputs[k] == value) {
                graph->nodes[i].inputs[k] = result;
            }
        }
    }
    host_add_input(graph, id, value);
    host_add_output(graph, id, result);
    graph->tensors[result].grad_of = graph->tensors[value].grad_of;
    graph->tensors[value].grad_of = HOST_NONE;
    if (node->def->in_place[0] == 0) { /* the definition allows it */
        graph->tensors[result].alias = value;
    }
    return id;
}

/* One node with all tensors; replaced_by says what became of the members. */
static uint32_t fuse(host_graph_t *graph, const weft_edit_t *edit, uint32_t *replaced_by)
{
    char name[48];
    snprintf(name, sizeof name, "bucket of %u", edit->member_count);
    uint32_t id = host_add_node(graph, HOST_COLLECTIVE, name);
    host_node_t *bucket = &graph->nodes[id];
    for (uint32_t i = 0; i < edit->member_count; i++) {
        host_node_t *member = &graph->nodes[edit->members[i]];
        bucket->def = member->def;
        bucket->reduction = member->reduction;
        host_add_input(graph, id, member->inputs[0]);
        host_add_output(graph, id, member->outputs[0]);
        member->removed = 1;
        replaced_by[edit->members[i]] = id;
    }
    snprintf(bucket->reason, sizeof bucket->reason, "%s", edit->text != NULL ? edit->text : "");
    return id;
}

static void add_edge(host_graph_t *graph, uint32_t from, uint32_t to)
{
    if (graph->edge_count == HOST_MAX_ORDERS) {
        host_fail("too many order edges");
    }
    graph->edges[2 * graph->edge_count] = from;
    graph->edges[2 * graph->edge_count++ + 1] = to;
}

/* Edits name ops of the view that the pass has seen; fusions before them may have replaced these.
 */
static void apply_one(host_graph_t *graph, const weft_registry_t *registry, const weft_edit_t *edit,
                      uint32_t *replaced_by, uint32_t *keys)
{
    uint32_t id, last = 0;
    switch (edit->kind) {
    case WEFT_EDIT_KIND_INSERT_COLLECTIVE:
        id = insert(graph, registry, edit);
        keys[id] = keys[graph->tensors[edit->value].producer] + 1; /* keys are even */
        replaced_by[id] = id;
        break;
    case WEFT_EDIT_KIND_FUSE:
        id = fuse(graph, edit, replaced_by);
        for (uint32_t i = 0; i < edit->member_count; i++) {
            last = keys[edit->members[i]] > last ? keys[edit->members[i]] : last;
        }
        keys[id] = last; /* where its last member stood */
        break;
    case WEFT_EDIT_KIND_ORDER:
        add_edge(graph, replaced_by[edit->op_a], replaced_by[edit->op_b]);
        break;
    case WEFT_EDIT_KIND_ALGORITHM: /* the first of the list is the best */
        snprintf(graph->nodes[replaced_by[edit->op_a]].algorithm, sizeof graph->nodes[0].algorithm,
                 "%.*s", (int)strcspn(edit->text, ","), edit->text);
        break;
    case WEFT_EDIT_KIND_SPLIT:
        graph->nodes[replaced_by[edit->op_a]].parts = edit->parts;
        break;
    case WEFT_EDIT_KIND_START_WAIT:
        graph->nodes[replaced_by[edit->op_a]].start_after = edit->op_b;
        graph->nodes[replaced_by[edit->op_a]].wait_before =
            edit->member_count > 0 ? edit->members[0] : HOST_NONE;
        break;
    case WEFT_EDIT_KIND_MERGE: /* no pass of weft/passes.h asks for it */
        break;
    }
}

void host_apply(host_graph_t *graph, const weft_registry_t *registry, const weft_edit_list_t *edits)
{
    static const uint32_t none[HOST_MAX_NODES] = {0};
    uint32_t replaced_by[HOST_MAX_NODES], keys[HOST_MAX_NODES];
    memcpy(keys, none, sizeof keys);
    for (uint32_t i = 0; i < HOST_MAX_NODES; i++) {
        replaced_by[i] = i;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        keys[graph->order[i]] = 2 * i;
    }
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        apply_one(graph, registry, weft_edit_list_get(edits, i), replaced_by, keys);
    }
    host_sort(graph, keys);
}

/* ---- passes ---- */

static void check_and_apply(host_graph_t *graph, const weft_registry_t *registry,
                            const host_view_t *view, weft_edit_list_t *edits)
{
    host_check(weft_edits_check(&view->view, edits));
    host_apply(graph, registry, edits);
    weft_edit_list_destroy(edits);
}

void host_compile_plain(host_graph_t *graph, const weft_registry_t *registry)
{
    static _Thread_local host_view_t view;
    weft_edit_list_t *edits = NULL;
    host_show(graph, &view);
    host_check(weft_pass_insert_collectives(&view.view, NULL, &edits));
    check_and_apply(graph, registry, &view, edits);
}

/* What this compiler believes of its links: 20 us a call and a byte a nanosecond. Without a cost of
 * the host's own, Weft takes that of its table, by world_size. */
static const weft_bucket_piece_t link_piece = {20000000, 1024000};
static const weft_bucket_cost_t link_cost = {&link_piece, 1, NULL, 0};

static void fuse_into_buckets(host_graph_t *graph, const weft_registry_t *registry,
                              const char *policy, int verbose)
{
    static _Thread_local host_view_t view;
    uint64_t op_ns[HOST_MAX_NODES], ready_ns[HOST_MAX_NODES];
    weft_edit_list_t *edits = NULL;
    weft_bucket_params_t params = WEFT_BUCKET_PARAMS_INIT;
    weft_bucket_forecast_t forecast = WEFT_BUCKET_FORECAST_INIT;
    host_show(graph, &view);
    for (uint32_t i = 0; i < graph->node_count; i++) {
        op_ns[i] = host_node_ns(graph, &graph->nodes[i]);
    }
    host_check(weft_pass_ready_times(&view.view, op_ns, ready_ns));
    params.policy = policy;
    params.ready_ns = ready_ns;
    params.cost = &link_cost;
    host_check(weft_pass_bucket(&view.view, &params, &edits, &forecast));
    check_and_apply(graph, registry, &view, edits);
    if (verbose) {
        printf("policy %s: %u buckets, done after %.1f us, the last gradient comes after %.1f us; "
               "no schedule ends before %.1f us\n",
               policy, forecast.bucket_count, (double)forecast.chosen_ps * 1e-6,
               (double)forecast.ready_ps * 1e-6, (double)forecast.lower_bound_ps * 1e-6);
    }
}

void host_compile(host_graph_t *graph, const weft_registry_t *registry, uint32_t ranks,
                  const char *policy, int verbose)
{
    static _Thread_local host_view_t view;
    weft_edit_list_t *edits = NULL;
    weft_algorithms_params_t params = WEFT_ALGORITHMS_PARAMS_INIT;
    host_compile_plain(graph, registry);
    fuse_into_buckets(graph, registry, policy, verbose);
    /* The rest is asked of the graph with its buckets. */
    params.group_sizes = &ranks;
    params.group_count = 1;
    host_show(graph, &view);
    host_check(weft_pass_algorithms(&view.view, &params, &edits));
    check_and_apply(graph, registry, &view, edits);
    host_show(graph, &view);
    host_check(weft_pass_order(&view.view, NULL, &edits));
    check_and_apply(graph, registry, &view, edits);
    host_show(graph, &view);
    host_check(weft_pass_start_wait(&view.view, NULL, &edits));
    check_and_apply(graph, registry, &view, edits);
}
