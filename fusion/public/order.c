/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a host compiler needs to issue collectives: one order for all ranks, and where each
 * collective may begin and must have ended. Weft's own lowering puts all of them on one stream in
 * that order.
 */
#include <weft/passes.h>

#include <string.h>

#include "fusion/fusion.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

#define NONE UINT32_MAX

/* Definitions of other domains may say that they communicate and no more. */
static bool is_ordered(const weft_view_op_t *op)
{
    return op->def->ordering != WEFT_ORDERING_NONE || (op->effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

static weft_status_t add_edges(const weft_graph_view_t *view, wefti_reachability_t *reach,
                               weft_edit_list_t *edits)
{
    weft_status_t status = WEFT_OK;
    uint32_t before = NONE;
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i];
        if (!is_ordered(&view->ops[id])) {
            continue;
        }
        /* Between neighbours the search stays between their places in the order. */
        if (before != NONE && !wefti_reachable(reach, before, id)) {
            weft_edit_t edit = {.kind = WEFT_EDIT_KIND_ORDER, .op_a = before, .op_b = id};
            WEFT_TRY(status, weft_edit_list_add(edits, &edit), fail);
        }
        before = id;
    }
fail:
    return status;
}

weft_status_t weft_pass_order(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                              weft_edit_list_t **out_edits)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    weft_status_t status;
    wefti_arena_t arena;
    wefti_reachability_t *reach = NULL;
    weft_edit_list_t *edits = NULL;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, wefti_view_read(&view, &arena, NULL), done);
    WEFT_TRY(status, wefti_reachability_create(view, allocator, &reach), done);
    WEFT_TRY(status, weft_edit_list_create(allocator, &edits), done);
    WEFT_TRY(status, add_edges(view, reach, edits), done);
    *out_edits = edits;
    edits = NULL;
done:
    weft_edit_list_destroy(edits);
    wefti_reachability_destroy(reach);
    wefti_arena_deinit(&arena);
    return status;
}

/* ---- start and wait ---- */

/* By op: the last one that it needs and the first one that needs it, as places in the order. */
typedef struct span {
    uint32_t last_needed, first_needing;
} span_t;

static void needs(span_t *spans, const uint32_t *position, uint32_t from, uint32_t to)
{
    uint32_t at = position[from], behind = position[to];
    if (at == NONE || behind == NONE) {
        return;
    }
    if (spans[to].last_needed == NONE || spans[to].last_needed < at) {
        spans[to].last_needed = at;
    }
    if (spans[from].first_needing > behind) {
        spans[from].first_needing = behind;
    }
}

static void find_spans(const weft_graph_view_t *view, const uint32_t *position, span_t *spans)
{
    for (uint32_t i = 0; i < view->op_count; i++) {
        spans[i] = (span_t){NONE, NONE};
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        const weft_view_op_t *op = &view->ops[view->order[i]];
        for (uint32_t k = 0; k < op->input_count; k++) {
            uint32_t value = view->op_inputs[op->first_input + k];
            if (value != NONE && view->values[value].producer != NONE) {
                needs(spans, position, view->values[value].producer, view->order[i]);
            }
        }
    }
    for (size_t i = 0; i < view->edge_count; i++) {
        uint32_t from = view->edges[2 * i], to = view->edges[2 * i + 1];
        weft_collective_t op;
        /* From one collective to another it is the order in which they start. */
        if (!wefti_view_collective(&view->ops[from], &op) ||
            !wefti_view_collective(&view->ops[to], &op)) {
            needs(spans, position, from, to);
        }
    }
}

static weft_status_t place(const weft_graph_view_t *view, const uint32_t *position, span_t *spans,
                           weft_edit_list_t *edits)
{
    weft_status_t status = WEFT_OK;
    weft_collective_t op;
    find_spans(view, position, spans);
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i], reader = NONE;
        weft_edit_t edit = {.kind = WEFT_EDIT_KIND_START_WAIT, .op_a = id, .op_b = NONE};
        if (!wefti_view_collective(&view->ops[id], &op)) {
            continue;
        }
        if (spans[id].last_needed != NONE) {
            edit.op_b = view->order[spans[id].last_needed];
        }
        if (spans[id].first_needing != NONE) {
            reader = view->order[spans[id].first_needing];
            edit.members = &reader;
            edit.member_count = 1;
        }
        WEFT_TRY(status, weft_edit_list_add(edits, &edit), fail);
    }
fail:
    return status;
}

weft_status_t weft_pass_start_wait(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                                   weft_edit_list_t **out_edits)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    weft_status_t status;
    wefti_arena_t arena;
    weft_edit_list_t *edits = NULL;
    uint32_t *position;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, wefti_view_read(&view, &arena, &position), done);
    span_t *spans = wefti_arena_array(&arena, view->op_count, sizeof *spans);
    if (spans == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    WEFT_TRY(status, weft_edit_list_create(allocator, &edits), done);
    WEFT_TRY(status, place(view, position, spans, edits), done);
    *out_edits = edits;
    edits = NULL;
done:
    weft_edit_list_destroy(edits);
    wefti_arena_deinit(&arena);
    return status;
}
