/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock and the memory of a step, operator by operator. Memory follows the rules of
 * lower/activations.c: a result takes the memory of an input that dies where the operator allows
 * it. Inputs and outputs of a collective are alive until compute has waited for it or a later one.
 */
#include "fusion/passes/schedule_state.h"

#include <string.h>

#include "runtime/base/error.h"

#define NONE UINT32_MAX

bool wefti_step_communicates(const wefti_step_graph_t *graph, uint32_t op)
{
    return (graph->view->ops[op].effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

/* A fence runs after all operators before it, and before all after it. */
static void visit_fences(const weft_graph_view_t *view, wefti_pair_fn visit, void *user)
{
    uint32_t last = NONE, since = 0;
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t op = view->order[i];
        if (last != NONE) {
            visit(user, last, op);
        }
        if ((view->ops[op].effects & WEFT_EFFECT_UNKNOWN) != 0) {
            for (uint32_t j = since; j < i; j++) {
                visit(user, view->order[j], op);
            }
            last = op;
            since = i + 1;
        }
    }
}

static void add_pair(void *user, uint32_t before, uint32_t after)
{
    wefti_step_graph_t *graph = user;
    wefti_successors_add(&graph->after, before, after);
    wefti_successors_add(&graph->before, after, before);
}

static weft_status_t add_pairs(wefti_step_graph_t *graph, wefti_arena_t *arena)
{
    WEFT_RETURN_IF_ERROR(wefti_successors_begin(&graph->after, graph->view->op_count, arena));
    WEFT_RETURN_IF_ERROR(wefti_successors_begin(&graph->before, graph->view->op_count, arena));
    for (int pass = 0; pass < 2; pass++) {
        wefti_view_each_pair(graph->view, add_pair, graph);
        visit_fences(graph->view, add_pair, graph);
        if (pass == 0) {
            WEFT_RETURN_IF_ERROR(wefti_successors_fill(&graph->after, arena));
            WEFT_RETURN_IF_ERROR(wefti_successors_fill(&graph->before, arena));
        }
    }
    return WEFT_OK;
}

static void find_tails(wefti_step_graph_t *graph)
{
    const weft_graph_view_t *view = graph->view;
    for (uint32_t i = view->order_count; i > 0; i--) {
        uint32_t op = view->order[i - 1];
        uint64_t longest = 0;
        for (uint32_t j = graph->after.first[op]; j < graph->after.first[op + 1]; j++) {
            uint64_t tail = graph->tail_ps[graph->after.next[j]];
            longest = tail > longest ? tail : longest;
        }
        graph->tail_ps[op] = longest + graph->params->op_ps[op];
    }
}

static bool updates(const weft_graph_view_t *view, uint32_t op)
{
    return (view->ops[op].effects & WEFT_EFFECT_UPDATES) != 0;
}

static bool updates_lead_nowhere(const wefti_step_graph_t *graph)
{
    const weft_graph_view_t *view = graph->view;
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t op = view->order[i];
        for (uint32_t j = graph->after.first[op]; j < graph->after.first[op + 1]; j++) {
            if (updates(view, op) && !updates(view, graph->after.next[j])) {
                return false;
            }
        }
    }
    return true;
}

static weft_status_t check_edges(const weft_graph_view_t *view)
{
    for (size_t i = 0; i < 2 * (size_t)view->edge_count; i++) {
        if (view->edges[i] >= view->op_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: edge %zu: operator does not exist",
                               i / 2);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_step_graph_init(const weft_graph_view_t *view,
                                    const wefti_schedule_params_t *params, wefti_arena_t *arena,
                                    wefti_step_graph_t *out)
{
    *out = (wefti_step_graph_t){
        .view = view,
        .params = params,
        .tail_ps = wefti_arena_array(arena, view->op_count, sizeof(uint64_t)),
        .position = wefti_arena_array(arena, view->op_count, sizeof(uint32_t))};
    WEFT_RETURN_IF_NO_MEMORY(out->tail_ps && out->position);
    WEFT_RETURN_IF_ERROR(check_edges(view));
    WEFT_RETURN_IF_ERROR(add_pairs(out, arena));
    for (uint32_t i = 0; i < view->order_count; i++) {
        out->position[view->order[i]] = i;
    }
    find_tails(out);
    out->updates_last = updates_lead_nowhere(out);
    return WEFT_OK;
}

bool wefti_step_comes_last(const wefti_step_graph_t *graph, uint32_t op)
{
    return graph->updates_last && updates(graph->view, op);
}

static bool counts(const wefti_step_state_t *s, uint32_t value)
{
    return value != NONE && !s->graph->params->kept[value];
}

/* The value whose memory a value has: views have that of what they view. */
static uint32_t root_of(const wefti_step_state_t *s, uint32_t value)
{
    const uint32_t *roots = s->graph->params->roots;
    return roots == NULL || value == NONE ? value : roots[value];
}

/* The value whose memory output index of op may take over, or NONE. */
static uint32_t handed_on(const wefti_step_state_t *s, const weft_view_op_t *op, uint32_t index)
{
    const weft_graph_view_t *view = s->graph->view;
    const wefti_schedule_params_t *params = s->graph->params;
    int from = index < sizeof(op->def->in_place) ? op->def->in_place[index] : -1;
    uint32_t to = view->op_outputs[op->first_output + index];
    uint32_t value = from < 0 || (uint32_t)from >= op->input_count
                         ? NONE
                         : root_of(s, view->op_inputs[op->first_input + (uint32_t)from]);
    if (!counts(s, value) || params->to_end[value] || params->to_end[to] ||
        view->values[value].producer == NONE || s->readers[value] != 1 ||
        view->values[value].bytes != view->values[to].bytes ||
        (params->layouts != NULL && params->layouts[value] != params->layouts[to])) {
        return NONE;
    }
    if ((op->effects & WEFT_EFFECT_COMMUNICATES) != 0 && s->comm_readers[value] != 1) {
        return NONE;
    }
    for (uint32_t j = 0; j < index; j++) {
        int other = j < sizeof(op->def->in_place) ? op->def->in_place[j] : -1;
        if (other == from && view->op_outputs[op->first_output + j] != NONE) {
            return NONE; /* an earlier result was asked first */
        }
    }
    return value;
}

/* Bytes of the results of op that need memory of their own. */
static uint64_t new_bytes(const wefti_step_state_t *s, const weft_view_op_t *op)
{
    const weft_graph_view_t *view = s->graph->view;
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < op->output_count; j++) {
        uint32_t value = view->op_outputs[op->first_output + j];
        if (counts(s, value) && root_of(s, value) == value && handed_on(s, op, j) == NONE) {
            bytes += view->values[value].bytes;
        }
    }
    return bytes;
}

static void release(wefti_step_state_t *s, uint32_t value)
{
    if (counts(s, value) && !s->graph->params->to_end[value] &&
        s->graph->view->values[value].producer != NONE) {
        s->live_bytes -= s->graph->view->values[value].bytes;
    }
}

/* What op makes is alive from here. Memory that is handed on goes with its new name. */
static void make(wefti_step_state_t *s, const weft_view_op_t *op)
{
    const weft_graph_view_t *view = s->graph->view;
    s->live_bytes += new_bytes(s, op);
    for (uint32_t j = 0; j < op->output_count; j++) {
        uint32_t value = view->op_outputs[op->first_output + j];
        uint32_t from = counts(s, value) && root_of(s, value) == value ? handed_on(s, op, j) : NONE;
        if (from != NONE) {
            s->readers[from] = 0; /* done_reading frees it no more */
        }
    }
    s->peak_bytes = s->live_bytes > s->peak_bytes ? s->live_bytes : s->peak_bytes;
}

/* What op was the last to read is dead, and so is what nobody reads. */
static void done_with(wefti_step_state_t *s, const weft_view_op_t *op)
{
    const weft_graph_view_t *view = s->graph->view;
    for (uint32_t j = 0; j < op->input_count; j++) {
        uint32_t value = root_of(s, view->op_inputs[op->first_input + j]);
        if (value != NONE && s->readers[value] > 0 && --s->readers[value] == 0) {
            release(s, value);
        }
    }
    for (uint32_t j = 0; j < op->output_count; j++) {
        uint32_t value = view->op_outputs[op->first_output + j];
        if (value != NONE && view->values[value].user_count == 0 && root_of(s, value) == value) {
            release(s, value);
        }
    }
}

/* The channel works in order: all up to the last collective asked for are over. */
static void wait_until(wefti_step_state_t *s, uint32_t out_end)
{
    for (; s->out_first < out_end; s->out_first++) {
        uint32_t collective = s->out[s->out_first];
        if (s->done_ps[collective] > s->compute_ps) {
            s->exposed_ps += s->done_ps[collective] - s->compute_ps;
            s->compute_ps = s->done_ps[collective];
        }
        done_with(s, &s->graph->view->ops[collective]);
    }
}

/* Up to and with the collective, if it is still out. */
static void wait_for(wefti_step_state_t *s, uint32_t collective)
{
    wait_until(s, s->out_at[collective]);
}

static void add_wait(wefti_step_state_t *s, uint32_t before, uint32_t after)
{
    if (s->waits != NULL) {
        s->waits->pairs[2 * (size_t)s->waits->count] = before;
        s->waits->pairs[2 * (size_t)s->waits->count + 1] = after;
        s->waits->count++;
    }
}

/* Those that could start at the same time go in the given order. */
static void enqueue(wefti_step_state_t *s, uint32_t collective)
{
    const uint32_t *position = s->graph->position;
    uint32_t at = s->queue_count++;
    for (; at > s->queue_first && position[s->queue[at - 1]] > position[collective]; at--) {
        s->queue[at] = s->queue[at - 1];
    }
    s->queue[at] = collective;
}

/* Who waited for op only: collectives go to the queue, others are ready. */
static void became_placed(wefti_step_state_t *s, uint32_t op)
{
    const wefti_step_graph_t *graph = s->graph;
    for (uint32_t j = graph->after.first[op]; j < graph->after.first[op + 1]; j++) {
        uint32_t next = graph->after.next[j];
        if (--s->pending[next] == 0) {
            if (wefti_step_communicates(graph, next)) {
                enqueue(s, next);
            } else {
                s->ready[s->ready_count++] = next;
            }
        }
    }
}

static void issue(wefti_step_state_t *s, uint32_t collective)
{
    uint64_t begin = s->compute_ps > s->channel_ps ? s->compute_ps : s->channel_ps;
    uint32_t out;
    s->channel_ps = s->done_ps[collective] = begin + s->graph->params->op_ps[collective];
    s->out[s->out_count++] = collective;
    s->out_at[collective] = s->out_count;
    out = s->out_count - s->out_first;
    s->out_most = out > s->out_most ? out : s->out_most;
    make(s, &s->graph->view->ops[collective]);
    became_placed(s, collective);
}

/* One behind the other; before one that would be too many, compute waits for the oldest. */
static void issue_queue(wefti_step_state_t *s)
{
    uint32_t bound = s->graph->params->in_flight;
    while (s->queue_first < s->queue_count) {
        uint32_t collective = s->queue[s->queue_first++];
        if (bound > 0 && s->out_count - s->out_first >= bound) {
            add_wait(s, s->out[s->out_count - bound], collective);
            wait_until(s, s->out_count - bound + 1);
        }
        issue(s, collective);
    }
}

weft_status_t wefti_step_begin(const wefti_step_graph_t *graph, wefti_arena_t *arena,
                               wefti_step_waits_t *waits, wefti_step_state_t *out)
{
    const weft_graph_view_t *view = graph->view;
    size_t ops = (size_t)view->op_count + 1, values = (size_t)view->value_count + 1;
    *out = (wefti_step_state_t){.graph = graph,
                                .waits = waits,
                                .done_ps = wefti_arena_array(arena, ops, sizeof(uint64_t)),
                                .readers = wefti_arena_array(arena, values, sizeof(uint32_t)),
                                .comm_readers = wefti_arena_array(arena, values, sizeof(uint32_t)),
                                .pending = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                                .out = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                                .out_at = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                                .queue = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                                .ready = wefti_arena_array(arena, ops, sizeof(uint32_t))};
    WEFT_RETURN_IF_NO_MEMORY(out->done_ps && out->readers && out->comm_readers && out->pending &&
                             out->out && out->out_at && out->queue && out->ready);
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i];
        const weft_view_op_t *op = &view->ops[id];
        for (uint32_t j = 0; j < op->input_count; j++) {
            uint32_t value = root_of(out, view->op_inputs[op->first_input + j]);
            if (value != NONE) {
                out->readers[value]++;
                out->comm_readers[value] += wefti_step_communicates(graph, id);
            }
        }
        out->pending[id] = graph->before.first[id + 1] - graph->before.first[id];
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i];
        if (out->pending[id] == 0 && wefti_step_communicates(graph, id)) {
            enqueue(out, id);
        } else if (out->pending[id] == 0) {
            out->ready[out->ready_count++] = id;
        }
    }
    issue_queue(out);
    return WEFT_OK;
}

uint64_t wefti_step_live_with(const wefti_step_state_t *s, uint32_t op)
{
    return s->live_bytes + new_bytes(s, &s->graph->view->ops[op]);
}

void wefti_step_place(wefti_step_state_t *s, uint32_t op)
{
    const wefti_step_graph_t *graph = s->graph;
    for (uint32_t j = graph->before.first[op]; j < graph->before.first[op + 1]; j++) {
        if (wefti_step_communicates(graph, graph->before.next[j])) {
            wait_for(s, graph->before.next[j]);
        }
    }
    s->compute_ps += graph->params->op_ps[op];
    make(s, &graph->view->ops[op]);
    done_with(s, &graph->view->ops[op]);
    became_placed(s, op);
    issue_queue(s);
}

void wefti_step_end(wefti_step_state_t *s, wefti_schedule_cost_t *out_cost)
{
    *out_cost = (wefti_schedule_cost_t){.finish_ps = s->compute_ps > s->channel_ps ? s->compute_ps
                                                                                   : s->channel_ps,
                                        .peak_bytes = s->peak_bytes,
                                        .in_flight = s->out_most,
                                        .exposed_ps = s->exposed_ps};
}
