/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule: the order of execution.
 *
 * Matches the whole graph; in training it runs only if in_flight bounds the collectives
 * that are issued and not yet waited for. Produces another order where list scheduling ends earlier
 * and needs no more memory (schedule.c).
 */
#include "fusion/passes/schedule_graph.h"

#include <string.h>

#include "fusion/passes/passes.h"
#include "runtime/base/error.h"

#define MOST_TRIES 6u /* orders made for an arena limit */

/* The graph's order as it was, for the next try. */
typedef struct saved_order {
    uint32_t *order;
    uint32_t constraint_count;
} saved_order_t;

static weft_status_t save_order(const wefti_graph_t *graph, wefti_arena_t *arena,
                                saved_order_t *out_saved)
{
    out_saved->order =
        wefti_arena_memdup(arena, graph->order, graph->order_count * sizeof(*graph->order));
    out_saved->constraint_count = graph->constraint_count;
    return out_saved->order == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static void restore_order(wefti_graph_t *graph, const saved_order_t *saved)
{
    memcpy(graph->order, saved->order, graph->order_count * sizeof(*graph->order));
    graph->constraint_count = saved->constraint_count;
}

static uint64_t bytes_read(const wefti_graph_t *graph, const wefti_node_t *node)
{
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < node->input_count; j++) {
        if (node->inputs[j] != WEFTI_NONE) {
            bytes += wefti_value_bytes(&graph->values[node->inputs[j]]);
        }
    }
    return bytes;
}

/* By node. What is measured or predicted for kernels comes as sums along the order. */
static weft_status_t find_times(wefti_graph_t *graph, const wefti_schedule_options_t *options,
                                uint64_t **out_ps)
{
    uint64_t *ready_ns = NULL, before = 0;
    uint64_t *ps = wefti_arena_array(options->arena, graph->node_count, sizeof(*ps));
    WEFT_RETURN_IF_ERROR(
        wefti_predict_ready(graph, options->profile, options->rates, options->arena, &ready_ns));
    WEFT_RETURN_IF_NO_MEMORY(ps);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        uint64_t ns = ready_ns[id] - before;
        ps[id] = wefti_node_communicates(node)
                     ? wefti_bucket_cost_ps(options->cost, bytes_read(graph, node))
                     : (ns < 1000000000000ull ? ns : 1000000000000ull) * 1000;
        before = ready_ns[id];
    }
    *out_ps = ps;
    return WEFT_OK;
}

/* Memory as lowering gives it: gradients lie in regions of their own, updates write where they
 * read, outputs are readable after the step. */
static weft_status_t find_kinds(const wefti_graph_t *graph, wefti_arena_t *arena,
                                wefti_schedule_params_t *params)
{
    uint8_t *kept = wefti_arena_array(arena, graph->value_count, sizeof(*kept));
    uint8_t *to_end = wefti_arena_array(arena, graph->value_count, sizeof(*to_end));
    uint32_t *layouts = wefti_arena_array(arena, graph->value_count, sizeof(*layouts));
    WEFT_RETURN_IF_NO_MEMORY(kept && to_end && layouts);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        const wefti_value_t *value = &graph->values[v];
        const wefti_node_t *node =
            value->producer == WEFTI_NONE ? NULL : &graph->nodes[value->producer];
        bool collective = node != NULL && wefti_node_communicates(node);
        kept[v] |= node == NULL || node->phase == WEFTI_PHASE_UPDATE;
        to_end[v] =
            (value->flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0 ||
            v == graph->loss || v == graph->logits;
        layouts[v] = value->type.layout;
        if (collective && value->grad_of != WEFTI_NONE) {
            uint32_t from = node->inputs[value->producer_output];
            kept[v] = 1;
            if (from != WEFTI_NONE) {
                kept[from] = 1;
            }
        }
    }
    params->kept = kept;
    params->to_end = to_end;
    params->layouts = layouts;
    return WEFT_OK;
}

/* Views have the memory of what they view (lower/activations.c). */
static weft_status_t find_roots(const wefti_graph_t *graph, wefti_arena_t *arena,
                                wefti_schedule_params_t *params)
{
    uint32_t *roots = wefti_id_map(arena, graph->value_count);
    WEFT_RETURN_IF_NO_MEMORY(roots);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        roots[v] = v;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (wefti_node_is_view(graph, node)) {
            uint32_t from = roots[node->inputs[0]], to = node->outputs[0];
            bool own = params->kept[from] || params->kept[to] || params->to_end[from] ||
                       params->to_end[to];
            roots[to] = own ? to : from;
        }
    }
    params->roots = roots;
    return WEFT_OK;
}

static weft_status_t reorder(wefti_graph_t *graph, const weft_graph_view_t *view,
                             const wefti_schedule_params_t *params,
                             const wefti_schedule_options_t *options,
                             wefti_schedule_report_t *out_report)
{
    weft_status_t status;
    weft_edit_list_t *edits = NULL;
    WEFT_TRY(status,
             wefti_pass_schedule(view, params, options->arena->allocator, &edits, out_report),
             fail);
    if (out_report->changed) {
        status = wefti_graph_apply(graph, edits);
    }
    wefti_log(options->log, WEFT_LOG_LEVEL_DEBUG,
              "order: %.1f us and %llu bytes of activations%s (as given %.1f us, %llu)",
              (double)out_report->chosen.finish_ps * 1e-6,
              (unsigned long long)out_report->chosen.peak_bytes,
              out_report->changed ? ", list-scheduled" : "",
              (double)out_report->given.finish_ps * 1e-6,
              (unsigned long long)out_report->given.peak_bytes);
    weft_edit_list_destroy(edits);
fail:
    return status;
}

/* Tries orders with ever less for activations until the plan keeps to the limit. */
static weft_status_t fit(wefti_graph_t *graph, const weft_graph_view_t *view,
                         wefti_schedule_params_t *params, const wefti_schedule_options_t *options,
                         const saved_order_t *saved, uint64_t most_live)
{
    uint64_t limit = options->arena_limit, bytes = 0, least = UINT64_MAX;
    char text[2][32];
    for (uint32_t i = 0; i < MOST_TRIES; i++) {
        wefti_schedule_report_t report;
        WEFT_RETURN_IF_ERROR(options->arena_of(options->user, &bytes));
        if (bytes <= limit) {
            return WEFT_OK;
        }
        least = bytes < least ? bytes : least;
        uint64_t above = bytes - limit;
        most_live = most_live > above ? most_live - above : 1;
        params->most_live_bytes = most_live;
        restore_order(graph, saved);
        WEFT_RETURN_IF_ERROR(reorder(graph, view, params, options, &report));
        if (report.chosen.peak_bytes > most_live && i > 0 && most_live == 1) {
            break;
        }
    }
    WEFT_RETURN_IF_ERROR(options->arena_of(options->user, &bytes));
    if (bytes <= limit) {
        return WEFT_OK;
    }
    if (options->otherwise != NULL) {
        restore_order(graph, saved);
        return options->otherwise(options->user, params);
    }
    least = bytes < least ? bytes : least;
    wefti_format_bytes(limit, text[0]);
    wefti_format_bytes(least, text[1]);
    return wefti_error_field(
        WEFT_ERR_UNSUPPORTED, "arena_limit",
        "%s is too small: the plan needs %s (%llu bytes) in the best order found; reduce batch, or "
        "in training set recompute, shard_parameters or accumulate",
        text[0], text[1], (unsigned long long)least);
}

weft_status_t wefti_schedule_describe(wefti_graph_t *graph, const wefti_schedule_options_t *options,
                                      weft_graph_view_t *out_view,
                                      wefti_schedule_params_t *out_params)
{
    uint64_t *ps = NULL;
    *out_params = (wefti_schedule_params_t){.in_flight = options->in_flight};
    WEFT_RETURN_IF_ERROR(wefti_graph_view(graph, options->arena, out_view));
    WEFT_RETURN_IF_ERROR(find_times(graph, options, &ps));
    WEFT_RETURN_IF_ERROR(find_kinds(graph, options->arena, out_params));
    WEFT_RETURN_IF_ERROR(find_roots(graph, options->arena, out_params));
    out_params->op_ps = ps;
    return WEFT_OK;
}

weft_status_t wefti_schedule_graph(wefti_graph_t *graph, const wefti_schedule_options_t *options)
{
    weft_status_t status;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    wefti_schedule_params_t params;
    wefti_schedule_report_t report;
    saved_order_t saved;
    WEFT_TRY(status, wefti_schedule_describe(graph, options, &view, &params), fail);
    WEFT_TRY(status, save_order(graph, options->arena, &saved), fail);
    WEFT_TRY(status, reorder(graph, &view, &params, options, &report), fail);
    if (options->arena_limit > 0) {
        status = fit(graph, &view, &params, options, &saved, report.chosen.peak_bytes);
    }
fail:
    return status;
}

weft_status_t wefti_schedule_judge_graph(wefti_graph_t *graph,
                                         const wefti_schedule_options_t *options,
                                         wefti_schedule_cost_t *out_cost)
{
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    wefti_schedule_params_t params;
    WEFT_RETURN_IF_ERROR(wefti_schedule_describe(graph, options, &view, &params));
    return wefti_schedule_judge(&view, &params, options->arena->allocator, out_cost);
}

weft_status_t wefti_compile_arena(wefti_compiler_t *c, uint64_t *out_bytes)
{
    weft_status_t status;
    const weft_compile_params_t params = c->params;
    wefti_graph_t *graph = c->graph, *of_model = c->models[0].graph;
    weft_plan_t *plan = NULL;
    wefti_lower_params_t lower;
    WEFT_TRY(status, wefti_graph_clone(graph, &c->graph), done);
    c->models[0].graph = c->graph;
    c->params.emit_path = c->params.print_after = c->params.stop_after = NULL;
    c->params.on_pass = NULL;
    c->params.arena_limit = 0;
    WEFT_TRY(status, c->run_rest(c), done);
    WEFT_TRY(status, wefti_compile_lower_params(c, &lower), done);
    WEFT_TRY(status, wefti_lower(c->graph, &lower, &plan), done);
    *out_bytes = plan->arena_bytes;
done:
    weft_plan_release(plan);
    if (c->graph != graph) {
        wefti_graph_destroy(c->graph);
    }
    c->graph = graph;
    c->models[0].graph = of_model;
    c->params = params;
    return status;
}

static weft_status_t arena_of(void *user, uint64_t *out_bytes)
{
    return wefti_compile_arena(user, out_bytes);
}

wefti_schedule_options_t wefti_schedule_options(wefti_compiler_t *c)
{
    return (wefti_schedule_options_t){.profile = &c->profile,
                                      .rates = &c->rates,
                                      .cost = &c->bucket_cost,
                                      .in_flight = c->params.in_flight,
                                      .arena_limit = c->params.arena_limit,
                                      .arena_of = arena_of,
                                      .user = c,
                                      .arena = &c->arena,
                                      .log = &c->log};
}

weft_status_t wefti_apply_schedule(wefti_compiler_t *c)
{
    const wefti_schedule_options_t options = wefti_schedule_options(c);
    return wefti_schedule_graph(c->graph, &options);
}
