/* SPDX-License-Identifier: Apache-2.0 */
/* Gives every dimension of inputs a number: shapes set by the user, then the batch. A batch that
 * the exporter fixed is replaced; fold.c names operators that still have the old one. */
#include <inttypes.h>
#include <string.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* One symbolic dimension and its number. */
typedef struct binder {
    wefti_graph_t *graph;
    wefti_name_index_t symbols;
    int64_t *numbers; /* by id in symbols */
    size_t number_count, number_capacity;
    bool *overridden; /* by position in graph->inputs */
} binder_t;

static weft_status_t bind_symbol(binder_t *binder, const char *symbol, int64_t number)
{
    const char *name;
    if (!symbol) {
        return WEFT_OK;
    }
    uint32_t id = wefti_name_index_find(&binder->symbols, symbol);
    if (id != WEFTI_NONE && binder->numbers[id] != number) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "dimension '%s': conflicting sizes %" PRId64 " and %" PRId64, symbol,
                           binder->numbers[id], number);
    }
    if (id != WEFTI_NONE) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(binder->graph->arena.allocator, &binder->numbers,
                                             &binder->number_capacity, binder->number_count + 1,
                                             sizeof(int64_t)));
    WEFT_RETURN_IF_ERROR(wefti_name_index_add(&binder->symbols, &binder->graph->arena, symbol,
                                              (uint32_t)binder->number_count, &name));
    binder->numbers[binder->number_count++] = number;
    return WEFT_OK;
}

static weft_status_t no_such_input(const wefti_graph_t *graph, const char *name)
{
    wefti_text_t list;
    wefti_text_init(&list, graph->arena.allocator);
    for (uint32_t i = 0; i < graph->input_count; i++) {
        wefti_text_printf(&list, "%s'%s'", i > 0 ? ", " : "", graph->values[graph->inputs[i]].name);
    }
    weft_status_t status = wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                             "the model has no input '%s'; its inputs: %.400s",
                                             name, list.data != NULL ? list.data : "none");
    wefti_text_deinit(&list);
    return status;
}

static weft_status_t apply_override(binder_t *binder, const wefti_shape_override_t *override)
{
    wefti_graph_t *graph = binder->graph;
    uint32_t id = wefti_graph_find_value(graph, override->name);
    uint32_t position = 0;
    while (position < graph->input_count && graph->inputs[position] != id) {
        position++;
    }
    if (id == WEFTI_NONE || position == graph->input_count) {
        return no_such_input(graph, override->name);
    }
    wefti_value_t *value = &graph->values[id];
    if (override->rank != value->type.rank) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                 "input '%s': %u dimensions, the model has %u", value->name,
                                 override->rank, value->type.rank);
    }
    for (uint32_t d = 0; d < override->rank; d++) {
        if (override->dims[d] < 1) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                     "input '%s': dimension %u must be at least 1: %" PRId64,
                                     value->name, d, override->dims[d]);
        }
        if (value->type.dims[d] < 0) {
            WEFT_RETURN_IF_ERROR(bind_symbol(binder, value->dim_names[d], override->dims[d]));
        } else if (wefti_graph_has_gradients(binder->graph) &&
                   value->type.dims[d] != override->dims[d]) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "shapes",
                                     "input '%s': dimension %u is %" PRId64
                                     ", but fixed to %" PRId64 " in a graph with gradients",
                                     value->name, d, override->dims[d], value->type.dims[d]);
        }
        value->type.dims[d] = override->dims[d];
    }
    binder->overridden[position] = true;
    return WEFT_OK;
}

/* The input at position if its first dimension may be the batch, else NULL. */
static wefti_value_t *batch_input(const binder_t *binder, uint32_t position)
{
    wefti_value_t *value = &binder->graph->values[binder->graph->inputs[position]];
    return value->type.rank && !binder->overridden[position] ? value : NULL;
}

/* Is there a symbolic first dimension that no override has fixed or named? */
static bool batch_is_open(const binder_t *binder)
{
    for (uint32_t i = 0; i < binder->graph->input_count; i++) {
        const wefti_value_t *value = batch_input(binder, i);
        if (value && value->type.dims[0] < 0 &&
            (!value->dim_names[0] ||
             wefti_name_index_find(&binder->symbols, value->dim_names[0]) == WEFTI_NONE)) {
            return true;
        }
    }
    return false;
}

/* Symbolic first dimensions become batch. *out_found: there were any. */
static weft_status_t bind_symbolic_batch(binder_t *binder, int64_t batch, bool *out_found)
{
    const wefti_value_t *first = NULL;
    for (uint32_t i = 0; i < binder->graph->input_count; i++) {
        wefti_value_t *value = batch_input(binder, i);
        if (!value || value->type.dims[0] >= 0) {
            continue;
        }
        if (first && first->dim_names[0] && value->dim_names[0] &&
            strcmp(first->dim_names[0], value->dim_names[0]) != 0 &&
            wefti_name_index_find(&binder->symbols, value->dim_names[0]) == WEFTI_NONE) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "batch",
                                     "ambiguous: the first dimensions of inputs '%s' and '%s' are "
                                     "'%s' and '%s'; set the shape of one of them in shapes",
                                     first->name, value->name, first->dim_names[0],
                                     value->dim_names[0]);
        }
        if (!first || !value->dim_names[0]) {
            WEFT_RETURN_IF_ERROR(bind_symbol(binder, value->dim_names[0], batch));
            value->type.dims[0] = batch;
            first = first ? first : value;
        }
    }
    *out_found = first != NULL;
    return WEFT_OK;
}

/* The fixed number that is the batch: the label's if another input shares it, else the first
 * input's. */
static int64_t find_fixed_batch(const binder_t *binder)
{
    int64_t label_dim = 0, first_dim = 0;
    uint32_t sharing = 0;
    for (uint32_t i = 0; i < binder->graph->input_count; i++) {
        const wefti_value_t *value = batch_input(binder, i);
        if (value && binder->graph->inputs[i] == binder->graph->label) {
            label_dim = value->type.dims[0];
        }
    }
    for (uint32_t i = binder->graph->input_count; i-- > 0;) {
        const wefti_value_t *value = batch_input(binder, i);
        first_dim = value ? value->type.dims[0] : first_dim;
        sharing += value && value->type.dims[0] == label_dim;
    }
    return sharing > 1 ? label_dim : first_dim;
}

static weft_status_t replace_fixed_batch(binder_t *binder, int64_t batch)
{
    binder->graph->exported_batch = find_fixed_batch(binder);
    for (uint32_t i = 0; i < binder->graph->input_count; i++) {
        wefti_value_t *value = batch_input(binder, i);
        if (!value || value->type.dims[0] != binder->graph->exported_batch ||
            binder->graph->exported_batch == batch) {
            continue;
        }
        if (wefti_graph_has_gradients(binder->graph)) {
            return wefti_error_field(
                WEFT_ERR_INVALID_ARGUMENT, "batch",
                "%" PRId64 ", but the first dimension of input '%s' is fixed to %" PRId64
                " in a graph with gradients; export the graph with a symbolic batch",
                batch, value->name, value->type.dims[0]);
        }
        value->type.dims[0] = batch;
    }
    return WEFT_OK;
}

static weft_status_t bind_batch(binder_t *binder, int64_t batch)
{
    bool symbolic = false;
    if (batch == 0) {
        return WEFT_OK;
    }
    if (batch < 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "batch",
                                 "must not be negative: %" PRId64, batch);
    }
    WEFT_RETURN_IF_ERROR(bind_symbolic_batch(binder, batch, &symbolic));
    if (!symbolic) {
        WEFT_RETURN_IF_ERROR(replace_fixed_batch(binder, batch));
    }
    return WEFT_OK;
}

/* Replaces the remaining symbols by their sizes; a symbol without a size is an error. */
static weft_status_t bind_rest(binder_t *binder)
{
    for (uint32_t i = 0; i < binder->graph->input_count; i++) {
        wefti_value_t *value = &binder->graph->values[binder->graph->inputs[i]];
        for (uint32_t d = 0; d < value->type.rank; d++) {
            uint32_t id = WEFTI_NONE;
            if (value->type.dims[d] >= 0) {
                continue;
            }
            if (value->dim_names[d]) {
                id = wefti_name_index_find(&binder->symbols, value->dim_names[d]);
            }
            if (id == WEFTI_NONE) {
                return wefti_error_field(
                    WEFT_ERR_INVALID_ARGUMENT, "shapes",
                    "no size for dimension %u ('%s') of input '%s'; set the shape of the input%s",
                    d, value->dim_names[d] ? value->dim_names[d] : "?", value->name,
                    d == 0 ? ", or batch if this dimension is the batch" : "");
            }
            value->type.dims[d] = binder->numbers[id];
        }
    }
    return WEFT_OK;
}

/* Sets graph->batch; an error if no input has it as first dimension. */
static weft_status_t set_batch(wefti_graph_t *graph, int64_t batch)
{
    bool found = false;
    graph->batch = batch;
    for (uint32_t i = 0; i < graph->input_count; i++) {
        const weft_tensor_desc_t *type = &graph->values[graph->inputs[i]].type;
        if (!graph->batch && type->rank) {
            graph->batch = type->dims[0];
        }
        found = found || (type->rank && type->dims[0] == batch);
    }
    if (batch && !found) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "batch",
                                 "no input with a first dimension of %" PRId64, batch);
    }
    return WEFT_OK;
}

static weft_status_t binder_init(binder_t *binder, wefti_graph_t *graph)
{
    *binder = (binder_t){.graph = graph};
    wefti_name_index_init(&binder->symbols, graph->arena.allocator);
    binder->overridden = wefti_alloc(graph->arena.allocator, (size_t)graph->input_count + 1);
    graph->exported_batch = 0;
    return binder->overridden ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_graph_bind_inputs(wefti_graph_t *graph, int64_t batch, int64_t open_batch,
                                      const wefti_shape_override_t *overrides,
                                      uint32_t override_count, bool *out_opened)
{
    weft_status_t status;
    binder_t binder;
    WEFT_TRY(status, binder_init(&binder, graph), done);
    for (uint32_t i = 0; i < override_count; i++) {
        WEFT_TRY(status, apply_override(&binder, &overrides[i]), done);
    }
    if (batch == 0 && open_batch != 0 && batch_is_open(&binder)) {
        batch = open_batch;
        *out_opened = true;
    }
    WEFT_TRY(status, bind_batch(&binder, batch), done);
    WEFT_TRY(status, bind_rest(&binder), done);
    status = set_batch(graph, batch);
done:
    wefti_name_index_deinit(&binder.symbols);
    wefti_free(graph->arena.allocator, binder.numbers);
    wefti_free(graph->arena.allocator, binder.overridden);
    return status;
}

weft_status_t wefti_graph_bind_shapes(wefti_graph_t *graph, int64_t batch,
                                      const wefti_shape_override_t *overrides,
                                      uint32_t override_count)
{
    weft_status_t status =
        wefti_graph_bind_inputs(graph, batch, 0, overrides, override_count, NULL);
    return status < 0 ? status : wefti_graph_fold(graph);
}
