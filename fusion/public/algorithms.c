/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms that can run each collective, the fastest for its bytes first. */
#include <weft/passes.h>

#include <string.h>

#include "fusion/fusion.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

/* Predicting runs the schedules of all ranks; what is eligible among more is asked of these. */
#define MOST_RANKS 64u

/* Collectives of one class have one list: asking is slow beside looking it up. */
typedef struct size_class {
    weft_collective_t op;
    uint32_t ranks, elem_bytes, log2_count;
    const char *names;
} size_class_t;

typedef struct chooser {
    const weft_graph_view_t *view;
    const weft_algorithms_params_t *params;
    wefti_costs_t costs;
    wefti_arena_t arena;
    size_class_t *classes;
    size_t class_count, class_capacity;
    weft_edit_list_t *edits;
} chooser_t;

/* Elements of the vector, or of one block. */
static uint64_t elems_of(const chooser_t *c, const weft_view_op_t *op, weft_collective_t which,
                         uint32_t ranks, uint32_t *out_elem_bytes)
{
    uint64_t bytes = 0;
    weft_dtype_t dtype = WEFT_DTYPE_U8;
    for (uint32_t k = 0; k < op->input_count; k++) {
        uint32_t value = c->view->op_inputs[op->first_input + k];
        if (value != UINT32_MAX) {
            dtype = c->view->values[value].dtype;
            bytes += wefti_align_up(c->view->values[value].bytes, WEFTI_PLAN_ALIGNMENT);
        }
    }
    size_t size = weft_dtype_size_bytes(dtype);
    *out_elem_bytes = size > 0 ? (uint32_t)size : 1;
    return bytes / *out_elem_bytes / wefti_side_blocks(wefti_collective_of(which)->send, ranks);
}

static weft_status_t join_names(chooser_t *c, const wefti_candidate_t *candidates, uint32_t count,
                                const char **out_names)
{
    wefti_text_t text;
    wefti_text_init(&text, c->arena.allocator);
    for (uint32_t i = 0; i < count && candidates[i].reason == NULL; i++) {
        wefti_text_printf(&text, "%s%s", i > 0 ? "," : "", candidates[i].algorithm->name);
    }
    *out_names = text.failed ? NULL : wefti_arena_strdup(&c->arena, text.data);
    wefti_text_deinit(&text);
    return *out_names != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* The V forms are asked with equal blocks: what the counts are is known when they are called. */
static weft_status_t ask(chooser_t *c, size_class_t *class)
{
    weft_status_t status;
    uint64_t counts_v[MOST_RANKS * MOST_RANKS];
    wefti_candidate_t candidates[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    uint32_t ranks = class->ranks < MOST_RANKS ? class->ranks : MOST_RANKS;
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = class->op,
                                 .group_size = ranks,
                                 .peer = class->op == WEFT_COLLECTIVE_SEND_RECV && ranks > 1,
                                 .in_place = class->op == WEFT_COLLECTIVE_ALL_REDUCE,
                                 .order = c->params->order};
    wefti_counts_t counts = {.elem_count = (uint64_t)1 << class->log2_count,
                             .elem_bytes = class->elem_bytes};
    wefti_choice_t choice = {.planned = true, .registry = c->params->registry};
    if (wefti_collective_is_variable(class->op)) {
        for (uint32_t i = 0; i < MOST_RANKS * MOST_RANKS; i++) {
            counts_v[i] = counts.elem_count;
        }
        counts.counts = counts_v;
    }
    WEFT_TRY(status, wefti_cost_choose(&c->costs, &params, &counts, &choice, candidates, &count),
             fail);
    status = join_names(c, candidates, count, &class->names);
fail:
    return status;
}

static weft_status_t find_class(chooser_t *c, const size_class_t *wanted, const char **out_names)
{
    weft_status_t status;
    for (size_t i = 0; i < c->class_count; i++) {
        const size_class_t *class = &c->classes[i];
        if (class->op == wanted->op && class->ranks == wanted->ranks &&
            class->elem_bytes == wanted->elem_bytes && class->log2_count == wanted->log2_count) {
            *out_names = class->names;
            return WEFT_OK;
        }
    }
    size_class_t class = *wanted;
    WEFT_TRY(status, ask(c, &class), fail);
    WEFT_TRY(status,
             wefti_array_reserve(c->arena.allocator, &c->classes, &c->class_capacity,
                                 c->class_count + 1, sizeof class),
             fail);
    c->classes[c->class_count++] = class;
    *out_names = class.names;
fail:
    return status;
}

static weft_status_t choose(chooser_t *c, uint32_t id)
{
    const weft_view_op_t *op = &c->view->ops[id];
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_ALGORITHM, .op_a = id};
    size_class_t class = {0};
    if (!wefti_view_collective(op, &class.op) || class.op == WEFT_COLLECTIVE_BARRIER) {
        return WEFT_OK; /* no algorithm to choose from */
    }
    if (op->group >= c->params->group_count || c->params->group_sizes[op->group] == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "op '%s': group_sizes has no size for group %u",
                           wefti_view_op_name(c->view, id), op->group);
    }
    class.ranks = c->params->group_sizes[op->group];
    uint64_t elems = elems_of(c, op, class.op, class.ranks, &class.elem_bytes);
    while (elems > 1 && class.log2_count < 40) {
        elems /= 2;
        class.log2_count++;
    }
    weft_status_t status = find_class(c, &class, &edit.text);
    if (status < 0) {
        return wefti_error_prefix(status, "%s", wefti_view_op_name(c->view, id));
    }
    return weft_edit_list_add(c->edits, &edit);
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
    chooser_t c = {.params = params};
    if (params->group_sizes == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "group_sizes", "is NULL");
    }
    if (params->order == WEFT_ORDER_BLOCKS) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "order", "blocks are not supported");
    }
    wefti_arena_init(&c.arena, params->allocator, 0);
    WEFT_TRY(status, wefti_view_read(&view, &c.arena, NULL), done);
    c.view = view;
    if (params->costs_path != NULL) {
        WEFT_TRY(status, wefti_costs_load(&c.costs, params->costs_path, params->allocator), done);
    } else {
        wefti_costs_default(&c.costs, params->allocator);
    }
    WEFT_TRY(status, weft_edit_list_create(params->allocator, &c.edits), done);
    for (uint32_t i = 0; i < view->order_count; i++) {
        WEFT_TRY(status, choose(&c, view->order[i]), done);
    }
    *out_edits = c.edits;
    c.edits = NULL;
done:
    weft_edit_list_destroy(c.edits);
    wefti_free(params->allocator, c.classes);
    wefti_costs_deinit(&c.costs);
    wefti_arena_deinit(&c.arena);
    return status;
}
