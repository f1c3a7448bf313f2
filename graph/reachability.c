/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reachability by search limited to the topological interval between the two ops. The first
 * question about an op is answered by such a search; from the second on the op has a row of bits
 * over the ops behind it, as long as all rows fit the budget.
 */
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

#define ROWS_BUDGET_BYTES ((size_t)64 << 20)
#define NOWHERE UINT32_MAX

struct wefti_reachability {
    const weft_allocator_t *allocator;
    uint32_t count; /* ops in order */
    uint32_t op_count;
    uint32_t *position;   /* by op: where it stands in the order, or NOWHERE */
    uint32_t *first_next; /* by position: next[first_next[i] .. first_next[i + 1]), positions */
    uint32_t *next;
    uint64_t **rows; /* by position; bit b: position + b is reached */
    uint8_t *asked;  /* by position */
    size_t rows_bytes;
    uint32_t *visited; /* by position: number of the last search that met it */
    uint32_t search;
    uint32_t *stack;
};

/* Counts (fill NULL) or stores the edge between two ops. */
static void put_edge(wefti_reachability_t *reach, uint32_t from_op, uint32_t to_op, uint32_t *fill)
{
    uint32_t from = from_op < reach->op_count ? reach->position[from_op] : NOWHERE;
    uint32_t to = to_op < reach->op_count ? reach->position[to_op] : NOWHERE;
    if (from == NOWHERE || to == NOWHERE) {
        return;
    }
    if (fill) {
        reach->next[fill[from]++] = to;
    } else {
        reach->first_next[from + 1]++;
    }
}

static void visit_edges(wefti_reachability_t *reach, const weft_graph_view_t *view, uint32_t *fill)
{
    for (uint32_t i = 0; i < view->order_count; i++) {
        const weft_view_op_t *op = &view->ops[view->order[i]];
        for (uint32_t k = 0; k < op->input_count; k++) {
            uint32_t value = view->op_inputs[op->first_input + k];
            if (value < view->value_count) {
                put_edge(reach, view->values[value].producer, view->order[i], fill);
            }
        }
    }
    for (uint32_t i = 0; i < view->edge_count; i++) {
        put_edge(reach, view->edges[2 * (size_t)i], view->edges[2 * (size_t)i + 1], fill);
    }
}

static weft_status_t build(wefti_reachability_t *reach, const weft_graph_view_t *view)
{
    size_t ids_bytes = ((size_t)view->order_count + 1) * sizeof(uint32_t);
    reach->position =
        wefti_alloc(reach->allocator, ((size_t)view->op_count + 1) * sizeof(uint32_t));
    reach->first_next = wefti_alloc(reach->allocator, ids_bytes);
    reach->rows =
        wefti_alloc(reach->allocator, ((size_t)view->order_count + 1) * sizeof(*reach->rows));
    reach->asked = wefti_alloc(reach->allocator, (size_t)view->order_count + 1);
    reach->visited = wefti_alloc(reach->allocator, ids_bytes);
    reach->stack = wefti_alloc(reach->allocator, ids_bytes);
    if (!reach->position || !reach->first_next || !reach->rows || !reach->asked ||
        !reach->visited || !reach->stack) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(reach->position, 0xff, (size_t)view->op_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < view->order_count; i++) {
        if (view->order[i] >= view->op_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: order[%u] is not an operator: %u",
                               i, view->order[i]);
        }
        reach->position[view->order[i]] = i;
    }
    visit_edges(reach, view, NULL);
    for (uint32_t i = 0; i < view->order_count; i++) {
        reach->first_next[i + 1] += reach->first_next[i];
    }
    reach->next = wefti_alloc(reach->allocator, ((size_t)reach->first_next[view->order_count] + 1) *
                                                    sizeof(uint32_t));
    if (!reach->next) {
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(reach->stack, reach->first_next, view->order_count * sizeof(uint32_t));
    visit_edges(reach, view, reach->stack);
    return WEFT_OK;
}

weft_status_t wefti_reachability_create(const weft_graph_view_t *view,
                                        const weft_allocator_t *allocator,
                                        wefti_reachability_t **out_reachability)
{
    *out_reachability = NULL;
    wefti_reachability_t *reach = wefti_alloc(allocator, sizeof(*reach));
    if (!reach) {
        return WEFT_ERR_NO_MEMORY;
    }
    reach->allocator = allocator;
    reach->count = view->order_count;
    reach->op_count = view->op_count;
    weft_status_t status = build(reach, view);
    if (status < 0) {
        wefti_reachability_destroy(reach);
        return status;
    }
    *out_reachability = reach;
    return WEFT_OK;
}

void wefti_reachability_destroy(wefti_reachability_t *reachability)
{
    if (!reachability) {
        return;
    }
    for (uint32_t i = 0; reachability->rows && i < reachability->count; i++) {
        wefti_free(reachability->allocator, reachability->rows[i]);
    }
    wefti_free(reachability->allocator, reachability->position);
    wefti_free(reachability->allocator, reachability->first_next);
    wefti_free(reachability->allocator, reachability->next);
    wefti_free(reachability->allocator, reachability->rows);
    wefti_free(reachability->allocator, reachability->asked);
    wefti_free(reachability->allocator, reachability->visited);
    wefti_free(reachability->allocator, reachability->stack);
    wefti_free(reachability->allocator, reachability);
}

/* Visits what from reaches up to position limit; stops early, returning true, at the position limit
 * itself unless row is given, which then collects everything met. */
static bool search(wefti_reachability_t *reach, uint32_t from, uint32_t limit, uint64_t *row)
{
    uint32_t depth = 0;
    if (++reach->search == 0) { /* the stamp wrapped */
        memset(reach->visited, 0, (size_t)reach->count * sizeof(uint32_t));
        reach->search = 1;
    }
    reach->stack[depth++] = from;
    reach->visited[from] = reach->search;
    while (depth) {
        uint32_t at = reach->stack[--depth];
        if (row) {
            row[(at - from) / 64] |= (uint64_t)1 << ((at - from) % 64);
        } else if (at == limit) {
            return true;
        }
        for (uint32_t k = reach->first_next[at]; k < reach->first_next[at + 1]; k++) {
            uint32_t next = reach->next[k];
            if (next > at && next <= limit && reach->visited[next] != reach->search) {
                reach->visited[next] = reach->search;
                reach->stack[depth++] = next;
            }
        }
    }
    return false;
}

/* The row of a position, made if there is room; else NULL. */
static const uint64_t *row_of(wefti_reachability_t *reach, uint32_t from)
{
    size_t bytes = ((size_t)(reach->count - from) + 63) / 64 * sizeof(uint64_t);
    if (reach->rows[from] || !reach->asked[from] || reach->rows_bytes + bytes > ROWS_BUDGET_BYTES) {
        reach->asked[from] = 1;
        return reach->rows[from];
    }
    reach->rows[from] = wefti_alloc(reach->allocator, bytes);
    if (reach->rows[from]) {
        reach->rows_bytes += bytes;
        search(reach, from, reach->count - 1, reach->rows[from]);
    }
    return reach->rows[from];
}

bool wefti_reachable(wefti_reachability_t *reachability, uint32_t from_op, uint32_t to_op)
{
    if (from_op >= reachability->op_count || to_op >= reachability->op_count) {
        return false;
    }
    uint32_t from = reachability->position[from_op], to = reachability->position[to_op];
    if (from == NOWHERE || to == NOWHERE || from > to) {
        return false;
    }
    if (from == to) {
        return true;
    }
    const uint64_t *row = row_of(reachability, from);
    return row ? (row[(to - from) / 64] >> ((to - from) % 64)) & 1
               : search(reachability, from, to, NULL);
}
