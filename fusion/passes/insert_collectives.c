/* SPDX-License-Identifier: Apache-2.0 */
/*
 * insert-collectives: makes gradients global.
 *
 * Matches every complete local gradient (grad_of) that is not the output of a collective of this
 * group: graphs may have collectives of their own. Produces an AllReduce with average after it
 * (INSERT_COLLECTIVE edits), one per gradient; the next pass forms the buckets.
 */
#include "fusion/passes/passes.h"

#include "runtime/base/error.h"

weft_status_t wefti_pass_insert_collectives(const weft_graph_view_t *view, uint32_t group,
                                            const weft_allocator_t *allocator,
                                            weft_edit_list_t **out_edits)
{
    weft_status_t status;
    weft_edit_list_t *edits = NULL;
    *out_edits = NULL;
    WEFT_TRY(status, weft_edit_list_create(allocator, &edits), fail);
    /* In order of execution, so that the edit list depends on nothing but the graph's content. */
    for (uint32_t i = 0; i < view->order_count; i++) {
        const weft_view_op_t *op = &view->ops[view->order[i]];
        for (uint32_t j = 0; op->present && j < op->output_count; j++) {
            uint32_t value = view->op_outputs[op->first_output + j];
            weft_edit_t edit = {.kind = WEFT_EDIT_KIND_INSERT_COLLECTIVE,
                                .value = value,
                                .op_name = "AllReduce",
                                .reduction = WEFT_REDUCTION_AVG,
                                .group = group};
            if (value == UINT32_MAX || view->values[value].grad_of == UINT32_MAX ||
                ((op->effects & WEFT_EFFECT_COMMUNICATES) != 0 && op->group == group)) {
                continue;
            }
            WEFT_TRY(status, weft_edit_list_add(edits, &edit), fail);
        }
    }
    *out_edits = edits;
    return WEFT_OK;
fail:
    weft_edit_list_destroy(edits);
    return status;
}

weft_status_t wefti_apply_insert_collectives(wefti_compiler_t *c)
{
    weft_status_t status;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    weft_edit_list_t *edits = NULL;
    uint32_t group = c->mesh.axis_count > 0 ? WEFTI_GROUP_DATA : 0;
    WEFT_TRY(status, wefti_graph_view(c->graph, &c->arena, &view), fail);
    WEFT_TRY(status, wefti_pass_insert_collectives(&view, group, c->allocator, &edits), fail);
    status = wefti_graph_apply(c->graph, edits);
    weft_edit_list_destroy(edits);
fail:
    return status;
}
