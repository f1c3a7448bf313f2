/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/successors.h"

#include "runtime/base/error.h"

weft_status_t wefti_successors_begin(wefti_successors_t *successors, uint32_t count,
                                     wefti_arena_t *arena)
{
    uint32_t *first = wefti_arena_array(arena, (size_t)count + 2, sizeof(*first));
    *successors = (wefti_successors_t){.count = count, .first = first};
    return first != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_successors_fill(wefti_successors_t *successors, wefti_arena_t *arena)
{
    uint64_t total = 0;
    for (size_t i = 2; i < (size_t)successors->count + 2; i++) {
        total += successors->first[i];
        if (total > UINT32_MAX) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "graph has too many edges");
        }
        successors->first[i] = (uint32_t)total;
    }
    successors->next = wefti_arena_array(arena, (size_t)total + 1, sizeof(*successors->next));
    return successors->next != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

void wefti_view_each_pair(const weft_graph_view_t *view, wefti_pair_fn visit, void *user)
{
    for (uint32_t i = 0; i < view->order_count; i++) {
        const weft_view_op_t *op = &view->ops[view->order[i]];
        for (uint32_t k = 0; k < op->input_count; k++) {
            uint32_t value = view->op_inputs[op->first_input + k];
            uint32_t producer =
                value < view->value_count ? view->values[value].producer : UINT32_MAX;
            if (producer < view->op_count) {
                visit(user, producer, view->order[i]);
            }
        }
    }
    for (size_t i = 0; i < view->edge_count; i++) {
        visit(user, view->edges[2 * i], view->edges[2 * i + 1]);
    }
}
