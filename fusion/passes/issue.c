/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/passes/issue.h"

#include <stdlib.h>

#include "fusion/dependence.h"
#include "fusion/fusion.h"
#include "runtime/base/error.h"

#define NONE UINT32_MAX

typedef struct finder {
    const weft_graph_view_t *view;
    wefti_issue_t *issue;
    wefti_successors_t before; /* by op: what edges put before it */
    uint32_t *position;        /* by op */
} finder_t;

/* Definitions of other domains may declare only that they communicate. */
bool wefti_is_issued(const weft_view_op_t *op)
{
    return op->def->ordering != WEFT_ORDERING_NONE || (op->effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

/* The op at position i runs after another one. */
static void needs(finder_t *f, uint32_t before, uint32_t op, bool waits)
{
    wefti_issue_t *issue = f->issue;
    uint32_t at = f->position[before], i = f->position[op];
    issue->after[op] =
        issue->after[before] > issue->after[op] ? issue->after[before] : issue->after[op];
    if (waits && at != NONE) {
        issue->start[op] =
            issue->start[op] == NONE || issue->start[op] < at ? at : issue->start[op];
        issue->wait[before] = i < issue->wait[before] ? i : issue->wait[before];
    }
}

static void visit(finder_t *f, uint32_t op)
{
    const weft_graph_view_t *view = f->view;
    const weft_view_op_t *at = &view->ops[op];
    weft_collective_t unused;
    for (uint32_t k = 0; k < at->input_count; k++) {
        uint32_t value = view->op_inputs[at->first_input + k];
        if (value != NONE && view->values[value].producer != NONE) {
            needs(f, view->values[value].producer, op, true);
        }
    }
    for (uint32_t j = f->before.first[op]; j < f->before.first[op + 1]; j++) {
        uint32_t before = f->before.next[j];
        needs(f, before, op,
              !wefti_view_collective(&view->ops[before], &unused) ||
                  !wefti_view_collective(at, &unused));
    }
    if (!wefti_is_issued(at)) {
        f->issue->after[op] = f->position[op] + 1;
    }
}

/* Ops that may be issued at the same position keep the order of the view. */
static weft_status_t sort_ops(const finder_t *f, wefti_arena_t *arena)
{
    const weft_graph_view_t *view = f->view;
    wefti_issue_t *issue = f->issue;
    uint32_t *first = wefti_arena_array(arena, (size_t)view->order_count + 2, sizeof(*first));
    WEFT_RETURN_IF_NO_MEMORY(first);
    for (uint32_t i = 0; i < view->order_count; i++) {
        bool issued = wefti_is_issued(&view->ops[view->order[i]]);
        first[issue->after[view->order[i]] + 1] += issued;
        issue->count += issued;
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        first[i + 1] += first[i];
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t op = view->order[i];
        if (wefti_is_issued(&view->ops[op])) {
            issue->ops[first[issue->after[op]]++] = op;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_find_issue(const weft_graph_view_t *view, wefti_arena_t *arena,
                               wefti_issue_t *out)
{
    size_t ops = (size_t)view->op_count + 1;
    finder_t f = {.view = view, .issue = out};
    *out = (wefti_issue_t){.ops = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                           .after = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                           .start = wefti_arena_array(arena, ops, sizeof(uint32_t)),
                           .wait = wefti_arena_array(arena, ops, sizeof(uint32_t))};
    f.position = wefti_arena_array(arena, ops, sizeof(uint32_t));
    WEFT_RETURN_IF_NO_MEMORY(out->ops && out->after && out->start && out->wait && f.position);
    for (uint32_t i = 0; i < view->op_count; i++) {
        f.position[i] = out->start[i] = out->wait[i] = NONE;
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        f.position[view->order[i]] = i;
    }
    WEFT_RETURN_IF_ERROR(wefti_edges_before(view, arena, &f.before));
    for (uint32_t i = 0; i < view->order_count; i++) {
        visit(&f, view->order[i]);
    }
    return sort_ops(&f, arena);
}
