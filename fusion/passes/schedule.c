/* SPDX-License-Identifier: Apache-2.0 */
/*
 * List scheduling (Graham 1969) over one stream of compute and one channel of communication, so
 * that transfers are hidden and activations fit. Candidates are the operators that could run and
 * whose outputs fit the memory bound; the one with the longest path to the end runs. If no outputs
 * fit, the operator that needs least memory runs. The new order replaces the given one if it ends
 * more than 0.1 % earlier and needs no more memory. schedule_state.c keeps the clock and the
 * memory.
 */
#include "fusion/passes/schedule.h"

#include <string.h>

#include "fusion/passes/schedule_state.h"
#include "runtime/base/error.h"

#define LOOK_AHEAD 64u /* operators looked at for one that fits the memory */

/* Operators that may run now, the one with the longest path behind it at the root. */
typedef struct heap {
    const wefti_step_graph_t *graph;
    uint32_t *ops;
    uint32_t count;
} heap_t;

static bool goes_first(const heap_t *heap, uint32_t a, uint32_t b)
{
    const uint64_t *tail = heap->graph->tail_ps;
    return tail[a] != tail[b] ? tail[a] > tail[b]
                              : heap->graph->position[a] < heap->graph->position[b];
}

static void heap_push(heap_t *heap, uint32_t op)
{
    uint32_t at = heap->count++;
    while (at > 0 && goes_first(heap, op, heap->ops[(at - 1) / 2])) {
        heap->ops[at] = heap->ops[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->ops[at] = op;
}

static uint32_t heap_pop(heap_t *heap)
{
    uint32_t top = heap->ops[0], last = heap->ops[--heap->count], at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < heap->count && goes_first(heap, heap->ops[child + 1], heap->ops[child])) {
            child++;
        }
        if (child >= heap->count || !goes_first(heap, heap->ops[child], last)) {
            break;
        }
        heap->ops[at] = heap->ops[child];
        at = child;
    }
    heap->ops[at] = last;
    return top;
}

/* The longest of those that fit; where none does, the one that needs least. */
static uint32_t choose(heap_t *heap, const wefti_step_state_t *state, uint64_t most_bytes)
{
    uint32_t looked[LOOK_AHEAD], count = 0, best = 0;
    uint64_t least = UINT64_MAX;
    while (heap->count > 0 && count < LOOK_AHEAD) {
        uint64_t bytes;
        looked[count] = heap_pop(heap);
        bytes = wefti_step_live_with(state, looked[count]);
        if (bytes < least) {
            least = bytes;
            best = count;
        }
        count++;
        if (bytes <= most_bytes) {
            best = count - 1;
            break;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (i != best) {
            heap_push(heap, looked[i]);
        }
    }
    return looked[best];
}

/* A whole step in one order, which is kept. */
typedef struct plan_order {
    uint32_t *ops; /* that compute and update nothing, in order */
    uint32_t count;
    wefti_step_waits_t waits;
    wefti_schedule_cost_t cost;
} plan_order_t;

static weft_status_t make_order(const weft_graph_view_t *view, wefti_arena_t *arena,
                                plan_order_t *out)
{
    *out = (plan_order_t){
        .ops = wefti_arena_array(arena, (size_t)view->op_count + 1, sizeof(uint32_t)),
        .waits = {
            .pairs = wefti_arena_array(arena, 2 * ((size_t)view->op_count + 1), sizeof(uint32_t))}};
    return out->ops == NULL || out->waits.pairs == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* Updates come behind everything else, in the given order. */
static void place_updates(const wefti_step_graph_t *graph, wefti_step_state_t *state)
{
    const weft_graph_view_t *view = graph->view;
    for (uint32_t i = 0; i < view->order_count; i++) {
        if (wefti_step_comes_last(graph, view->order[i])) {
            wefti_step_place(state, view->order[i]);
        }
    }
}

/* The given order, without what updates; collectives go when they are ready. */
static weft_status_t follow(const wefti_step_graph_t *graph, wefti_arena_t *arena,
                            plan_order_t *out)
{
    const weft_graph_view_t *view = graph->view;
    wefti_step_state_t state;
    WEFT_RETURN_IF_ERROR(make_order(view, arena, out));
    WEFT_RETURN_IF_ERROR(wefti_step_begin(graph, arena, &out->waits, &state));
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t op = view->order[i];
        if (!wefti_step_communicates(graph, op) && !wefti_step_comes_last(graph, op)) {
            wefti_step_place(&state, op);
            out->ops[out->count++] = op;
        }
    }
    place_updates(graph, &state);
    wefti_step_end(&state, &out->cost);
    return WEFT_OK;
}

static weft_status_t list_schedule(const wefti_step_graph_t *graph, uint64_t most_bytes,
                                   wefti_arena_t *arena, plan_order_t *out)
{
    const weft_graph_view_t *view = graph->view;
    wefti_step_state_t state;
    heap_t heap = {.graph = graph,
                   .ops = wefti_arena_array(arena, (size_t)view->op_count + 1, sizeof(uint32_t))};
    uint32_t taken = 0;
    WEFT_RETURN_IF_ERROR(make_order(view, arena, out));
    WEFT_RETURN_IF_ERROR(wefti_step_begin(graph, arena, &out->waits, &state));
    WEFT_RETURN_IF_NO_MEMORY(heap.ops);
    for (;;) {
        for (; taken < state.ready_count; taken++) {
            if (!wefti_step_comes_last(graph, state.ready[taken])) {
                heap_push(&heap, state.ready[taken]);
            }
        }
        if (heap.count == 0) {
            break;
        }
        out->ops[out->count] = choose(&heap, &state, most_bytes);
        wefti_step_place(&state, out->ops[out->count++]);
    }
    place_updates(graph, &state);
    wefti_step_end(&state, &out->cost);
    return WEFT_OK;
}

static weft_status_t add_order(weft_edit_list_t *edits, uint32_t before, uint32_t after)
{
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_ORDER, .op_a = before, .op_b = after};
    return weft_edit_list_add(edits, &edit);
}

/* A chain of all that compute runs, and the waits that the bound asks for: those alone would let
 * the order change. */
static weft_status_t write_edits(const plan_order_t *order, bool moved, weft_edit_list_t *edits)
{
    bool chain = moved || order->waits.count > 0;
    for (uint32_t i = 1; i < order->count && chain; i++) {
        WEFT_RETURN_IF_ERROR(add_order(edits, order->ops[i - 1], order->ops[i]));
    }
    for (uint32_t i = 0; i < order->waits.count; i++) {
        const uint32_t *pair = &order->waits.pairs[2 * (size_t)i];
        WEFT_RETURN_IF_ERROR(add_order(edits, pair[0], pair[1]));
    }
    return WEFT_OK;
}

/* Does the list-scheduled order go before the given one? */
static bool is_better(const wefti_schedule_params_t *params, const wefti_schedule_cost_t *given,
                      const wefti_schedule_cost_t *listed)
{
    uint64_t most = params->most_live_bytes;
    bool given_fits = most == 0 || given->peak_bytes <= most;
    bool listed_fits = listed->peak_bytes <= (most == 0 ? given->peak_bytes : most);
    if (given_fits != listed_fits) {
        return listed_fits;
    }
    if (!given_fits) {
        return listed->peak_bytes < given->peak_bytes;
    }
    return listed->finish_ps < given->finish_ps - given->finish_ps / 1000;
}

weft_status_t wefti_pass_schedule(const weft_graph_view_t *view,
                                  const wefti_schedule_params_t *params,
                                  const weft_allocator_t *allocator, weft_edit_list_t **out_edits,
                                  wefti_schedule_report_t *out_report)
{
    weft_status_t status;
    wefti_arena_t arena;
    wefti_step_graph_t graph;
    plan_order_t given, listed;
    weft_edit_list_t *edits = NULL;
    *out_edits = NULL;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, weft_edit_list_create(allocator, &edits), done);
    WEFT_TRY(status, wefti_step_graph_init(view, params, &arena, &graph), done);
    WEFT_TRY(status, follow(&graph, &arena, &given), done);
    uint64_t most = params->most_live_bytes;
    WEFT_TRY(status,
             list_schedule(&graph, most == 0 ? given.cost.peak_bytes : most, &arena, &listed),
             done);
    bool moved = is_better(params, &given.cost, &listed.cost);
    const plan_order_t *chosen = moved ? &listed : &given;
    WEFT_TRY(status, write_edits(chosen, moved, edits), done);
    *out_report =
        (wefti_schedule_report_t){given.cost, chosen->cost, weft_edit_list_count(edits) > 0};
    *out_edits = edits;
    edits = NULL;
done:
    weft_edit_list_destroy(edits);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_schedule_judge(const weft_graph_view_t *view,
                                   const wefti_schedule_params_t *params,
                                   const weft_allocator_t *allocator,
                                   wefti_schedule_cost_t *out_cost)
{
    weft_status_t status;
    wefti_arena_t arena;
    wefti_step_graph_t graph;
    plan_order_t given;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, wefti_step_graph_init(view, params, &arena, &graph), done);
    WEFT_TRY(status, follow(&graph, &arena, &given), done);
    *out_cost = given.cost;
done:
    wefti_arena_deinit(&arena);
    return status;
}
