/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairwise reachability is not enough: with a1 -> b1 and b2 -> a2, {a1, a2} and {b1, b2} are both
 * free of inner dependence, and fusing both closes a cycle. So the closure over candidates is
 * updated with every fusion.
 */
#include "fusion/dependence.h"

#include "graph/ir.h"
#include "graph/successors.h"
#include "runtime/base/error.h"

static bool has(const wefti_dependence_t *dependence, uint32_t from, uint32_t to)
{
    return (dependence->reach[from * dependence->words + to / 64] >> (to % 64)) & 1;
}

static void add(wefti_dependence_t *dependence, uint32_t from, uint32_t to)
{
    dependence->reach[from * dependence->words + to / 64] |= 1ull << (to % 64);
}

weft_status_t wefti_edges_before(const weft_graph_view_t *view, wefti_arena_t *arena,
                                 wefti_successors_t *out_before)
{
    WEFT_RETURN_IF_ERROR(wefti_successors_begin(out_before, view->op_count, arena));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < view->edge_count; i++) {
            uint32_t before = view->edges[2 * i], after = view->edges[2 * i + 1];
            if (before >= view->op_count || after >= view->op_count) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "view: edge %zu: operator does not exist", i);
            }
            wefti_successors_add(out_before, after, before);
        }
        WEFT_RETURN_IF_ERROR(pass == 0 ? wefti_successors_fill(out_before, arena) : WEFT_OK);
    }
    return WEFT_OK;
}

/* later: the places of candidates after another one. One walk in order of execution. */
static weft_status_t find_later(const weft_graph_view_t *view, const uint32_t *ops, uint32_t count,
                                wefti_arena_t *arena, uint32_t *later, uint32_t *out_count)
{
    wefti_successors_t before = {0};
    bool *candidate = wefti_arena_array(arena, view->op_count, sizeof(*candidate));
    bool *behind =
        wefti_arena_array(arena, view->op_count, sizeof(*behind)); /* a candidate, or after one */
    bool *is_later = wefti_arena_array(arena, view->op_count, sizeof(*is_later));
    WEFT_RETURN_IF_ERROR(wefti_edges_before(view, arena, &before));
    WEFT_RETURN_IF_NO_MEMORY(candidate && behind && is_later);
    for (uint32_t i = 0; i < count; i++) {
        candidate[ops[i]] = true;
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t id = view->order[i];
        const weft_view_op_t *op = &view->ops[id];
        for (uint32_t j = 0; j < op->input_count; j++) {
            uint32_t value = view->op_inputs[op->first_input + j];
            uint32_t producer = value == UINT32_MAX ? UINT32_MAX : view->values[value].producer;
            behind[id] |= producer != UINT32_MAX && behind[producer];
        }
        for (uint32_t j = before.first[id]; j < before.first[id + 1]; j++) {
            behind[id] |= behind[before.next[j]];
        }
        is_later[id] = candidate[id] && behind[id];
        behind[id] |= candidate[id];
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_later[ops[i]]) {
            later[(*out_count)++] = i;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_dependence_init(const weft_graph_view_t *view, const uint32_t *ops,
                                    uint32_t count, wefti_arena_t *arena,
                                    wefti_dependence_t *out_dependence)
{
    weft_status_t status;
    wefti_reachability_t *reachability = NULL;
    uint32_t later_count = 0;
    uint32_t *later = wefti_arena_array(arena, count, sizeof(*later));
    *out_dependence = (wefti_dependence_t){.count = count, .words = (count + 63) / 64};
    WEFT_RETURN_IF_NO_MEMORY(later);
    WEFT_TRY(status, find_later(view, ops, count, arena, later, &later_count), done);
    if (later_count == 0) {
        goto done;
    }
    out_dependence->reach =
        wefti_arena_array(arena, count, out_dependence->words * sizeof(*out_dependence->reach));
    if (out_dependence->reach == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    WEFT_TRY(status, wefti_reachability_create(view, arena->allocator, &reachability), done);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < later_count; k++) {
            if (i != later[k] && wefti_reachable(reachability, ops[i], ops[later[k]])) {
                add(out_dependence, i, later[k]);
            }
        }
    }
done:
    wefti_reachability_destroy(reachability);
    return status;
}

bool wefti_dependence_forbids(const wefti_dependence_t *dependence, uint32_t a, uint32_t b)
{
    return dependence->reach != NULL && (has(dependence, a, b) || has(dependence, b, a));
}

void wefti_dependence_fuse(wefti_dependence_t *dependence, uint32_t a, uint32_t b)
{
    size_t words = dependence->words;
    uint64_t *row_a, *row_b;
    if (dependence->reach == NULL) {
        return;
    }
    row_a = dependence->reach + a * words;
    row_b = dependence->reach + b * words;
    for (size_t w = 0; w < words; w++) {
        row_a[w] |= row_b[w];
        row_b[w] = row_a[w];
    }
    /* Members of one fusion have equal rows, and equal bits in every row: a candidate that reaches
     * a or b reaches both, and all that they reach. */
    for (uint32_t i = 0; i < dependence->count; i++) {
        uint64_t *row = dependence->reach + i * words;
        if (has(dependence, i, a) || has(dependence, i, b)) {
            for (size_t w = 0; w < words; w++) {
                row[w] |= row_a[w];
            }
            add(dependence, i, a);
            add(dependence, i, b);
        }
    }
}
