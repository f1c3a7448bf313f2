/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a list of edits against a view. Shares no code with the passes that produce edits or with
 * the graph that applies them. */
#include <weft/passes.h>

#include <string.h>

#include "fusion/fusion.h"
#include "runtime/base/check.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define NONE UINT32_MAX

typedef struct checker {
    const weft_graph_view_t *view;
    wefti_arena_t arena;
    uint32_t *position;
    uint32_t *fused; /* by op: the first member of its fusion, else itself */
    bool *split;
    uint32_t *from, *to; /* what runs before what, by edits: ORDER */
    size_t order_count;
    size_t index; /* of the edit at hand */
} checker_t;

static weft_status_t bad(const checker_t *c, const char *what, uint32_t op, const char *why)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edit %zu (%s): '%s' %s", c->index, what,
                       op < c->view->op_count ? wefti_view_op_name(c->view, op) : "", why);
}

static weft_status_t check_op(const checker_t *c, const char *what, uint32_t op)
{
    return op < c->view->op_count && c->view->ops[op].present
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edit %zu (%s): op %u does not exist",
                             c->index, what, op);
}

static weft_status_t check_collective(const checker_t *c, const char *what, uint32_t op)
{
    weft_collective_t which;
    weft_status_t status = check_op(c, what, op);
    if (status == WEFT_OK && !wefti_view_collective(&c->view->ops[op], &which)) {
        return bad(c, what, op, "is not a collective");
    }
    return status;
}

static weft_status_t check_insert(const checker_t *c, const weft_edit_t *edit)
{
    if (edit->value >= c->view->value_count || c->view->values[edit->value].producer == NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edit %zu (insert): no op produces value %u",
                           c->index, edit->value);
    }
    if (edit->op_name == NULL || wefti_collective_from_name(edit->op_name) == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edit %zu (insert): '%s' is not a collective",
                           c->index, edit->op_name != NULL ? edit->op_name : "NULL");
    }
    return WEFT_OK;
}

static const weft_view_value_t *only_tensor(const checker_t *c, uint32_t id)
{
    const weft_view_op_t *op = &c->view->ops[id];
    bool one = op->input_count == 1 && op->output_count == 1 &&
               c->view->op_inputs[op->first_input] != NONE &&
               c->view->op_outputs[op->first_output] != NONE;
    return one ? &c->view->values[c->view->op_inputs[op->first_input]] : NULL;
}

static const char *difference(const checker_t *c, uint32_t a, uint32_t b)
{
    const weft_view_op_t *x = &c->view->ops[a], *y = &c->view->ops[b];
    return x->group != y->group                                   ? "belongs to another group"
           : !wefti_op_same(x->def, y->def)                       ? "is another kind of collective"
           : x->reduction != y->reduction                         ? "has another reduction"
           : only_tensor(c, a)->dtype != only_tensor(c, b)->dtype ? "has another element type"
                                                                  : NULL;
}

static weft_status_t check_fuse(checker_t *c, const weft_edit_t *edit)
{
    if (edit->member_count == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edit %zu (fuse): no members", c->index);
    }
    for (uint32_t i = 0; i < edit->member_count; i++) {
        uint32_t op = edit->members[i], first = edit->members[0];
        WEFT_RETURN_IF_ERROR(check_collective(c, "fuse", op));
        if (only_tensor(c, op) == NULL) {
            return bad(c, "fuse", op, "does not have one tensor");
        }
        if (c->fused[op] != NONE) {
            return bad(c, "fuse", op, "is fused twice");
        }
        const char *why = difference(c, first, op);
        if (why != NULL) {
            return bad(c, "fuse", op, why);
        }
        c->fused[op] = first;
    }
    return WEFT_OK;
}

static weft_status_t check_order(checker_t *c, const weft_edit_t *edit)
{
    WEFT_RETURN_IF_ERROR(check_op(c, "order", edit->op_a));
    WEFT_RETURN_IF_ERROR(check_op(c, "order", edit->op_b));
    c->from[c->order_count] = edit->op_a;
    c->to[c->order_count++] = edit->op_b;
    return WEFT_OK;
}

static weft_status_t check_split(checker_t *c, const weft_edit_t *edit)
{
    WEFT_RETURN_IF_ERROR(check_collective(c, "split", edit->op_a));
    const weft_view_value_t *value = only_tensor(c, edit->op_a);
    const weft_view_op_t *op = &c->view->ops[edit->op_a];
    if (value != NULL && wefti_op_facts(op->def).collective == WEFT_COLLECTIVE_REDUCE_SCATTER) {
        value = &c->view->values[c->view->op_outputs[op->first_output]]; /* one block */
    }
    uint64_t units = value != NULL ? value->bytes / 64 + (value->bytes % 64 != 0) : 0;
    if (value == NULL || c->split[edit->op_a]) {
        return bad(c, "split", edit->op_a,
                   value == NULL ? "does not have one tensor" : "is split twice");
    }
    if (edit->parts < 2 || edit->parts > units) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "edit %zu (split): parts of '%s' must be between 2 and %llu, its number "
                           "of 64-byte units: %u",
                           c->index, wefti_view_op_name(c->view, edit->op_a),
                           (unsigned long long)units, edit->parts);
    }
    c->split[edit->op_a] = true;
    return WEFT_OK;
}

static weft_status_t check_start_wait(const checker_t *c, const weft_edit_t *edit)
{
    WEFT_RETURN_IF_ERROR(check_collective(c, "start", edit->op_a));
    if (edit->op_b != NONE) {
        WEFT_RETURN_IF_ERROR(check_op(c, "start", edit->op_b));
    }
    if (edit->member_count > 0) {
        WEFT_RETURN_IF_ERROR(check_op(c, "wait", edit->members[0]));
        if (edit->op_b != NONE && c->position[edit->op_b] >= c->position[edit->members[0]]) {
            return bad(c, "wait", edit->op_a, "has its wait before its start");
        }
    }
    return WEFT_OK;
}

static weft_status_t check_merge(checker_t *c, const weft_edit_t *edit)
{
    WEFT_RETURN_IF_ERROR(check_op(c, "merge", edit->op_a));
    WEFT_RETURN_IF_ERROR(check_op(c, "merge", edit->op_b));
    const weft_view_op_t *a = &c->view->ops[edit->op_a], *b = &c->view->ops[edit->op_b];
    if (a == b || !wefti_op_same(a->def, b->def) || a->group != b->group ||
        a->reduction != b->reduction || a->input_count != b->input_count ||
        a->output_count != b->output_count ||
        memcmp(&c->view->op_inputs[a->first_input], &c->view->op_inputs[b->first_input],
               a->input_count * sizeof(uint32_t)) != 0) {
        return bad(c, "merge", edit->op_b, "does not repeat the other operator");
    }
    if (c->fused[edit->op_a] != NONE || c->fused[edit->op_b] != NONE) {
        return bad(c, "merge", edit->op_b, "is fused or merged before");
    }
    c->fused[edit->op_b] = edit->op_a;
    return WEFT_OK;
}

static weft_status_t check_one(checker_t *c, const weft_edit_t *edit)
{
    switch (edit->kind) {
    case WEFT_EDIT_KIND_INSERT_COLLECTIVE:
        return check_insert(c, edit);
    case WEFT_EDIT_KIND_FUSE:
        return check_fuse(c, edit);
    case WEFT_EDIT_KIND_ORDER:
        return check_order(c, edit);
    case WEFT_EDIT_KIND_ALGORITHM:
        return check_collective(c, "algorithm", edit->op_a);
    case WEFT_EDIT_KIND_SPLIT:
        return check_split(c, edit);
    case WEFT_EDIT_KIND_START_WAIT:
        return check_start_wait(c, edit);
    case WEFT_EDIT_KIND_MERGE:
        return check_merge(c, edit);
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edit %zu: unknown edit kind %d", c->index,
                       (int)edit->kind);
}

/* ---- nothing depends on itself ---- */

/* Fusions as single nodes. */
typedef struct links {
    const checker_t *c;
    uint32_t *first;   /* [op + 1] into next */
    uint32_t *next;    /* ops that run behind */
    uint32_t *waiting; /* by op: how many it still waits for */
    bool fill;
} links_t;

static uint32_t node_of(const checker_t *c, uint32_t op)
{
    while (c->fused[op] != NONE && c->fused[op] != op) { /* merged into a member of a fusion */
        op = c->fused[op];
    }
    return op;
}

static void link_ops(links_t *links, uint32_t from, uint32_t to)
{
    if (links->c->position[from] == NONE || links->c->position[to] == NONE) {
        return;
    }
    from = node_of(links->c, from);
    to = node_of(links->c, to);
    if (links->fill) {
        links->next[links->first[from]++] = to;
        links->waiting[to]++;
    } else {
        links->first[from + 1]++;
    }
}

static void visit_links(links_t *links)
{
    const checker_t *c = links->c;
    const weft_graph_view_t *view = c->view;
    for (uint32_t i = 0; i < view->order_count; i++) {
        const weft_view_op_t *op = &view->ops[view->order[i]];
        for (uint32_t k = 0; k < op->input_count; k++) {
            uint32_t value = view->op_inputs[op->first_input + k];
            if (value != NONE && view->values[value].producer != NONE) {
                link_ops(links, view->values[value].producer, view->order[i]);
            }
        }
    }
    for (size_t i = 0; i < view->edge_count; i++) {
        link_ops(links, view->edges[2 * i], view->edges[2 * i + 1]);
    }
    for (size_t i = 0; i < c->order_count; i++) {
        link_ops(links, c->from[i], c->to[i]);
    }
}

static size_t count_links(const checker_t *c)
{
    size_t count = c->order_count + c->view->edge_count;
    for (uint32_t i = 0; i < c->view->order_count; i++) {
        count += c->view->ops[c->view->order[i]].input_count;
    }
    return count;
}

/* An op of a cycle: from one that still waits, back over ones that wait, until one comes again. */
static uint32_t find_cycle(const links_t *links, const uint32_t *begin, uint32_t *came_from)
{
    const weft_graph_view_t *view = links->c->view;
    uint32_t at = NONE;
    for (uint32_t i = 0; i < view->op_count; i++) {
        came_from[i] = NONE;
    }
    for (uint32_t i = 0; i < view->op_count; i++) {
        for (uint32_t k = begin[i]; links->waiting[i] > 0 && k < begin[i + 1]; k++) {
            if (links->waiting[links->next[k]] > 0) {
                came_from[links->next[k]] = i;
                at = links->next[k];
            }
        }
    }
    for (uint32_t i = 0; i < view->op_count && at != NONE; i++) {
        at = came_from[at]; /* after as many steps as there are ops it is on the cycle */
    }
    return at;
}

static weft_status_t check_cycles(checker_t *c)
{
    uint32_t n = c->view->op_count, done = 0, nodes = 0;
    links_t links = {.c = c,
                     .first = wefti_arena_array(&c->arena, (size_t)n + 2, sizeof(uint32_t)),
                     .next = wefti_arena_array(&c->arena, count_links(c), sizeof(uint32_t)),
                     .waiting = wefti_arena_array(&c->arena, n, sizeof(uint32_t))};
    uint32_t *begin = wefti_arena_array(&c->arena, (size_t)n + 1, sizeof *begin);
    uint32_t *ready = wefti_arena_array(&c->arena, n, sizeof *ready);
    WEFT_RETURN_IF_NO_MEMORY(links.first && links.next && links.waiting && begin && ready);
    visit_links(&links);
    for (uint32_t i = 0; i < n; i++) {
        links.first[i + 1] += links.first[i];
    }
    memcpy(begin, links.first, ((size_t)n + 1) * sizeof *begin);
    links.fill = true;
    visit_links(&links);
    uint32_t ready_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool is_node = c->position[i] != NONE && node_of(c, i) == i;
        nodes += is_node;
        if (is_node && links.waiting[i] == 0) {
            ready[ready_count++] = i;
        }
    }
    for (; done < ready_count; done++) {
        for (uint32_t k = begin[ready[done]]; k < begin[ready[done] + 1]; k++) {
            if (--links.waiting[links.next[k]] == 0) {
                ready[ready_count++] = links.next[k];
            }
        }
    }
    if (done == nodes) {
        return WEFT_OK;
    }
    uint32_t op = find_cycle(&links, begin, ready);
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "edits make %s'%s' depend on itself",
                       c->fused[op] != NONE ? "the fusion of " : "",
                       wefti_view_op_name(c->view, op));
}

weft_status_t weft_edits_check(const weft_graph_view_t *view, const weft_edit_list_t *edits)
{
    WEFT_CHECK_ARG(view);
    WEFT_CHECK_ARG(edits);
    weft_status_t status;
    checker_t c = {0};
    size_t count = weft_edit_list_count(edits);
    wefti_arena_init(&c.arena, NULL, 0);
    WEFT_TRY(status, wefti_view_read(&view, &c.arena, &c.position), done);
    c.view = view;
    c.fused = wefti_arena_array(&c.arena, view->op_count, sizeof *c.fused);
    c.split = wefti_arena_array(&c.arena, view->op_count, sizeof *c.split);
    c.from = wefti_arena_array(&c.arena, count, sizeof *c.from);
    c.to = wefti_arena_array(&c.arena, count, sizeof *c.to);
    if (c.fused == NULL || c.split == NULL || c.from == NULL || c.to == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    memset(c.fused, 0xff, view->op_count * sizeof *c.fused);
    for (c.index = 0; c.index < count; c.index++) {
        WEFT_TRY(status, check_one(&c, weft_edit_list_get(edits, c.index)), done);
    }
    status = check_cycles(&c);
done:
    wefti_arena_deinit(&c.arena);
    return status;
}
