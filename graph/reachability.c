/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reachability by a search limited to the positions between the two ops. The first query of an op
 * is such a search. From the second query on, the op has a row of bits over all later ops, as long
 * as all rows fit the budget.
 */
#include <string.h>

#include "graph/ir.h"
#include "graph/successors.h"
#include "runtime/base/error.h"

#define ROWS_BUDGET_BYTES ((size_t)64 << 20)
#define NOWHERE UINT32_MAX

struct wefti_reachability {
    wefti_arena_t arena;
    uint32_t count; /* ops in order */
    uint32_t op_count;
    uint32_t *position;       /* by op: index in the order, or NOWHERE */
    wefti_successors_t after; /* positions */
    uint64_t **rows;          /* by position; bit b: position + b is reached */
    uint8_t *asked;           /* by position */
    size_t rows_bytes;
    uint32_t *visited; /* by position: number of the last search that visited it */
    uint32_t search;
    uint32_t *stack;
};

static void add_pair(void *user, uint32_t before, uint32_t after)
{
    wefti_reachability_t *reach = user;
    uint32_t from = before < reach->op_count ? reach->position[before] : NOWHERE;
    uint32_t to = after < reach->op_count ? reach->position[after] : NOWHERE;
    if (from != NOWHERE && to != NOWHERE) {
        wefti_successors_add(&reach->after, from, to);
    }
}

static weft_status_t build(wefti_reachability_t *reach, const weft_graph_view_t *view)
{
    wefti_arena_t *arena = &reach->arena;
    reach->position = wefti_id_map(arena, view->op_count);
    reach->rows = wefti_arena_array(arena, view->order_count, sizeof(*reach->rows));
    reach->asked = wefti_arena_array(arena, view->order_count, sizeof(uint8_t));
    reach->visited = wefti_arena_array(arena, view->order_count, sizeof(uint32_t));
    reach->stack = wefti_arena_array(arena, view->order_count, sizeof(uint32_t));
    WEFT_RETURN_IF_NO_MEMORY(!arena->failed);
    for (uint32_t i = 0; i < view->order_count; i++) {
        if (view->order[i] >= view->op_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "view: order[%u] is not an operator: %u",
                               i, view->order[i]);
        }
        reach->position[view->order[i]] = i;
    }
    WEFT_RETURN_IF_ERROR(wefti_successors_begin(&reach->after, view->order_count, arena));
    wefti_view_each_pair(view, add_pair, reach);
    WEFT_RETURN_IF_ERROR(wefti_successors_fill(&reach->after, arena));
    wefti_view_each_pair(view, add_pair, reach);
    return WEFT_OK;
}

weft_status_t wefti_reachability_create(const weft_graph_view_t *view,
                                        const weft_allocator_t *allocator,
                                        wefti_reachability_t **out_reachability)
{
    *out_reachability = NULL;
    wefti_reachability_t *reach = wefti_alloc(allocator, sizeof(*reach));
    WEFT_RETURN_IF_NO_MEMORY(reach);
    wefti_arena_init(&reach->arena, allocator, 0);
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
    if (reachability) {
        const weft_allocator_t *allocator = reachability->arena.allocator;
        wefti_arena_deinit(&reachability->arena);
        wefti_free(allocator, reachability);
    }
}

/* Visits all positions up to limit that from reaches. Without row: returns true when it visits
 * limit. With row: sets the bit of every visited position. */
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
        for (uint32_t k = reach->after.first[at]; k < reach->after.first[at + 1]; k++) {
            uint32_t next = reach->after.next[k];
            if (next > at && next <= limit && reach->visited[next] != reach->search) {
                reach->visited[next] = reach->search;
                reach->stack[depth++] = next;
            }
        }
    }
    return false;
}

/* The row of a position, created if it fits the budget; else NULL. */
static const uint64_t *row_of(wefti_reachability_t *reach, uint32_t from)
{
    size_t words = ((size_t)(reach->count - from) + 63) / 64, bytes = words * sizeof(uint64_t);
    if (reach->rows[from] || !reach->asked[from] || reach->rows_bytes + bytes > ROWS_BUDGET_BYTES) {
        reach->asked[from] = 1;
        return reach->rows[from];
    }
    reach->rows[from] = wefti_arena_array(&reach->arena, words, sizeof(uint64_t));
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
