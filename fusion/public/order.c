/* SPDX-License-Identifier: Apache-2.0 */
/* The order of collectives (passes/issue.c) as edits for a host compiler. */
#include <weft/passes.h>

#include "fusion/fusion.h"
#include "fusion/passes/issue.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

typedef weft_status_t (*edits_fn)(const weft_graph_view_t *view, const wefti_issue_t *issue,
                                  const weft_allocator_t *allocator, weft_edit_list_t *edits);

static weft_status_t add_edges(const weft_graph_view_t *view, const wefti_issue_t *issue,
                               const weft_allocator_t *allocator, weft_edit_list_t *edits)
{
    weft_status_t status;
    wefti_reachability_t *reach = NULL;
    WEFT_TRY(status, wefti_reachability_create(view, allocator, &reach), done);
    for (uint32_t i = 1; i < issue->count; i++) {
        const weft_edit_t edit = {
            .kind = WEFT_EDIT_KIND_ORDER, .op_a = issue->ops[i - 1], .op_b = issue->ops[i]};
        if (!wefti_reachable(reach, edit.op_a, edit.op_b)) {
            WEFT_TRY(status, weft_edit_list_add(edits, &edit), done);
        }
    }
done:
    wefti_reachability_destroy(reach);
    return status;
}

static weft_status_t add_places(const weft_graph_view_t *view, const wefti_issue_t *issue,
                                const weft_allocator_t *allocator, weft_edit_list_t *edits)
{
    weft_collective_t op;
    (void)allocator;
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i], start = issue->start[id], wait = issue->wait[id];
        const weft_edit_t edit = {.kind = WEFT_EDIT_KIND_START_WAIT,
                                  .op_a = id,
                                  .op_b = start != UINT32_MAX ? view->order[start] : UINT32_MAX,
                                  .members = wait != UINT32_MAX ? &view->order[wait] : NULL,
                                  .member_count = wait != UINT32_MAX};
        if (wefti_view_collective(&view->ops[id], &op)) {
            WEFT_RETURN_IF_ERROR(weft_edit_list_add(edits, &edit));
        }
    }
    return WEFT_OK;
}

static weft_status_t make_edits(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                                edits_fn add, weft_edit_list_t **out_edits)
{
    weft_status_t status;
    wefti_arena_t arena;
    wefti_issue_t issue;
    weft_edit_list_t *edits = NULL;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, wefti_view_read(&view, &arena, NULL), done);
    WEFT_TRY(status, wefti_find_issue(view, &arena, &issue), done);
    WEFT_TRY(status, weft_edit_list_create(allocator, &edits), done);
    WEFT_TRY(status, add(view, &issue, allocator, edits), done);
    *out_edits = edits;
    edits = NULL;
done:
    weft_edit_list_destroy(edits);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t weft_pass_order(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                              weft_edit_list_t **out_edits)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    return make_edits(view, allocator, add_edges, out_edits);
}

weft_status_t weft_pass_start_wait(const weft_graph_view_t *view, const weft_allocator_t *allocator,
                                   weft_edit_list_t **out_edits)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    return make_edits(view, allocator, add_places, out_edits);
}
