/* SPDX-License-Identifier: Apache-2.0 */
/* The ranking of algorithms that lowering uses (rankings.c), for a host compiler. */
#include <weft/passes.h>

#include "fusion/rankings.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

/* Bytes of the vector, or of one rank's block. */
static uint64_t bytes_of(const weft_graph_view_t *view, const weft_view_op_t *op,
                         weft_collective_t collective, uint32_t ranks, uint32_t *out_elem_bytes)
{
    uint64_t bytes = 0;
    size_t size = 0;
    for (uint32_t k = 0; k < op->input_count; k++) {
        uint32_t value = view->op_inputs[op->first_input + k];
        if (value != UINT32_MAX) {
            size = weft_dtype_size_bytes(view->values[value].dtype);
            bytes += wefti_align_up(view->values[value].bytes, WEFTI_PLAN_ALIGNMENT);
        }
    }
    *out_elem_bytes = size > 0 ? (uint32_t)size : 1;
    return bytes / wefti_side_blocks(wefti_collective_of(collective)->send, ranks);
}

static weft_status_t add_edit(weft_edit_list_t *edits, uint32_t op, const wefti_ranking_t *ranking)
{
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    for (uint32_t i = 0; i < ranking->count; i++) {
        wefti_text_printf(&text, "%s%s", i > 0 ? "," : "", ranking->names[i]);
    }
    if (!text.failed) {
        const weft_edit_t edit = {.kind = WEFT_EDIT_KIND_ALGORITHM, .op_a = op, .text = text.data};
        status = weft_edit_list_add(edits, &edit);
    }
    wefti_text_deinit(&text);
    return status;
}

static weft_status_t choose(const weft_graph_view_t *view, const weft_algorithms_params_t *params,
                            wefti_rankings_t *rankings, uint32_t id, weft_edit_list_t *edits)
{
    const weft_view_op_t *op = &view->ops[id];
    const wefti_ranking_t *ranking;
    weft_collective_t collective;
    uint32_t elem_bytes;
    if (!wefti_view_collective(op, &collective) || collective == WEFT_COLLECTIVE_BARRIER) {
        return WEFT_OK; /* no algorithm to choose from */
    }
    if (op->group >= params->group_count || params->group_sizes[op->group] == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "op '%s': group_sizes has no size for group %u",
                           wefti_view_op_name(view, id), op->group);
    }
    uint32_t ranks = params->group_sizes[op->group];
    uint64_t bytes = bytes_of(view, op, collective, ranks, &elem_bytes);
    weft_status_t status =
        wefti_rank_algorithms(rankings, collective, ranks, collective == WEFT_COLLECTIVE_ALL_REDUCE,
                              elem_bytes, bytes, &ranking);
    return status < 0 ? wefti_error_prefix(status, "%s", wefti_view_op_name(view, id))
                      : add_edit(edits, id, ranking);
}

weft_status_t weft_pass_algorithms(const weft_graph_view_t *view,
                                   const weft_algorithms_params_t *params,
                                   weft_edit_list_t **out_edits)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    WEFT_CHECK_ARG(params);
    weft_status_t status;
    weft_algorithms_params_t own = WEFT_ALGORITHMS_PARAMS_INIT;
    status = WEFTI_PARAMS_READ(params, &own);
    if (status < 0) {
        return status;
    }
    params = &own;
    wefti_costs_t costs = {0};
    wefti_arena_t arena;
    weft_edit_list_t *edits = NULL;
    const wefti_rules_t rules = {.order.order = params->order};
    wefti_rankings_t rankings = {
        .costs = &costs, .registry = params->registry, .rules = &rules, .arena = &arena};
    if (params->group_sizes == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "group_sizes", "is NULL");
    }
    if (params->order == WEFT_ORDER_BLOCKS) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "order", "blocks are not supported");
    }
    wefti_arena_init(&arena, params->allocator, 0);
    WEFT_TRY(status, wefti_view_read(&view, &arena, NULL), done);
    if (params->costs_path != NULL) {
        WEFT_TRY(status, wefti_costs_load(&costs, params->costs_path, params->allocator), done);
    } else {
        wefti_costs_default(&costs, params->allocator);
    }
    WEFT_TRY(status, weft_edit_list_create(params->allocator, &edits), done);
    for (uint32_t i = 0; i < view->order_count; i++) {
        WEFT_TRY(status, choose(view, params, &rankings, view->order[i], edits), done);
    }
    *out_edits = edits;
    edits = NULL;
done:
    weft_edit_list_destroy(edits);
    wefti_costs_deinit(&costs);
    wefti_arena_deinit(&arena);
    return status;
}
