/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multi-device annotations of a model. Each becomes a mark, an Identity whose result is whole, or
 * split along the axis that the annotation names:
 *
 *   x -> [mark: x along 1] -> MatMul -> y -> [mark: y whole] -> readers of y
 *         W -> [mark: W along 0] /
 *
 * The splits of marks, and no others, go through the graph. Where a value comes to a mark in another
 * split, rewrite.c converts it, as for any other node: a part of a whole value, or an all-gather.
 * Then it removes the marks.
 */
#include "fusion/tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/error.h"

static weft_status_t refuse(const wefti_sharding_t *sharding, const char *what)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: sharding of '%s': %s", sharding->node,
                       sharding->tensor, what);
}

/* The axis of a split, or -1: whole. */
static weft_status_t read_axis(const wefti_splitter_t *s, const wefti_sharding_t *sharding,
                               uint32_t value, int32_t *out_axis)
{
    const weft_tensor_desc_t *type = &s->graph->values[value].type;
    const int64_t axis = sharding->axis < 0 ? sharding->axis + type->rank : sharding->axis;
    *out_axis = -1;
    if (!sharding->split) {
        return WEFT_OK;
    }
    if (axis < 0 || axis >= type->rank) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: sharding of '%s': axis %" PRId64 " is out of range: rank %u",
                           sharding->node, sharding->tensor, sharding->axis, type->rank);
    }
    const int64_t dim = type->dims[axis];
    if (sharding->dim >= 0 && sharding->dim != dim) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: sharding of '%s': dim_value %" PRId64
                           " differs from dimension %" PRId64 " of the tensor: %" PRId64,
                           sharding->node, sharding->tensor, sharding->dim, axis, dim);
    }
    if (dim <= 0 || dim % s->ranks != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: sharding of '%s': uneven shards are not supported: dimension "
                           "%" PRId64 " is %" PRId64 ", num_shards %" PRId64,
                           sharding->node, sharding->tensor, axis, dim, s->ranks);
    }
    *out_axis = (int32_t)axis;
    return WEFT_OK;
}

static weft_status_t add_mark(wefti_splitter_t *s, uint32_t value, const wefti_sharding_t *sharding,
                              int32_t axis, uint32_t reader, uint32_t *out_value)
{
    wefti_graph_t *graph = s->graph;
    const uint32_t producer = graph->values[value].producer;
    const wefti_node_params_t params = {.domain = "",
                                        .op = "Identity",
                                        .phase = WEFTI_PHASE_FORWARD,
                                        .inputs = &value,
                                        .input_count = 1};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(graph, producer != WEFTI_NONE ? producer : reader,
                                                "sharding", params, out_value));
    s->marks[s->mark_count++] =
        (wefti_mark_t){sharding, graph->values[*out_value].producer, reader, axis};
    return WEFT_OK;
}

static weft_status_t mark_input(wefti_splitter_t *s, uint32_t node, uint32_t value,
                                const wefti_sharding_t *sharding)
{
    wefti_graph_t *graph = s->graph;
    uint32_t count = 0, marked = WEFTI_NONE;
    int32_t axis;
    for (uint32_t k = 0; k < graph->nodes[node].input_count; k++) {
        count += graph->nodes[node].inputs[k] == value;
    }
    if (count == 0) {
        return sharding->split ? refuse(sharding, "the operator was replaced by others before the "
                                                  "model is divided")
                               : WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_axis(s, sharding, value, &axis));
    if (axis < 0 && graph->values[value].producer == WEFTI_NONE) {
        return WEFT_OK; /* it is whole */
    }
    WEFT_RETURN_IF_ERROR(add_mark(s, value, sharding, axis, node, &marked));
    for (uint32_t k = 0; k < graph->nodes[node].input_count; k++) {
        uint32_t *input = &graph->nodes[node].inputs[k];
        *input = *input == value ? marked : *input;
    }
    return WEFT_OK;
}

/* Outputs of the graph stay what the node computes: the rewrite makes them whole. */
static weft_status_t mark_output(wefti_splitter_t *s, uint32_t value,
                                 const wefti_sharding_t *sharding)
{
    wefti_graph_t *graph = s->graph;
    uint32_t marked;
    int32_t axis;
    WEFT_RETURN_IF_ERROR(read_axis(s, sharding, value, &axis));
    const uint32_t order_count = graph->order_count;
    WEFT_RETURN_IF_ERROR(add_mark(s, value, sharding, axis, WEFTI_NONE, &marked));
    for (uint32_t i = 0; i < order_count; i++) {
        wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            node->inputs[k] = node->inputs[k] == value ? marked : node->inputs[k];
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_split_mark(wefti_splitter_t *s)
{
    wefti_graph_t *graph = s->graph;
    s->marks = wefti_arena_array(s->arena, graph->sharding_count + 1u, sizeof(*s->marks));
    WEFT_RETURN_IF_NO_MEMORY(s->marks);
    for (uint32_t outputs = 0; outputs < 2;
         outputs++) { /* readers are found by the inputs' names */
        for (uint32_t i = 0; i < graph->sharding_count; i++) {
            const wefti_sharding_t *sharding = &graph->shardings[i];
            const uint32_t first = wefti_graph_find_value(graph, sharding->output);
            const uint32_t value = wefti_graph_find_value(graph, sharding->tensor);
            const uint32_t node = first == WEFTI_NONE ? WEFTI_NONE : graph->values[first].producer;
            if (sharding->is_output != (outputs != 0)) {
                continue;
            }
            if (node == WEFTI_NONE || graph->nodes[node].dead || value == WEFTI_NONE ||
                (outputs != 0 && graph->values[value].producer == WEFTI_NONE)) {
                if (sharding->split) {
                    return refuse(sharding,
                                  "the operator was removed, replaced or evaluated before "
                                  "the model is divided");
                }
                continue;
            }
            WEFT_RETURN_IF_ERROR(outputs != 0 ? mark_output(s, value, sharding)
                                              : mark_input(s, node, value, sharding));
        }
    }
    return wefti_graph_sort(graph);
}

weft_status_t wefti_split_index_marks(wefti_splitter_t *s)
{
    const wefti_graph_t *graph = s->graph;
    s->mark_of = wefti_arena_array(s->arena, graph->node_count + 1u, sizeof(*s->mark_of));
    s->keeps_whole = wefti_arena_array(s->arena, graph->node_count + 1u, sizeof(*s->keeps_whole));
    s->one_segment = wefti_arena_array(s->arena, graph->node_count + 1u, sizeof(*s->one_segment));
    WEFT_RETURN_IF_NO_MEMORY(s->mark_of && s->keeps_whole && s->one_segment);
    for (uint32_t n = 0; n < graph->node_count; n++) {
        s->splits_columns[n] = false;
    }
    for (uint32_t i = 0; i < s->mark_count; i++) {
        const wefti_mark_t *mark = &s->marks[i];
        const uint32_t value = graph->nodes[mark->node].inputs[0];
        const uint32_t producer = graph->values[value].producer;
        s->mark_of[mark->node] = mark;
        if (mark->reader == WEFTI_NONE && producer != WEFTI_NONE && mark->axis >= 0 &&
            wefti_split_weight(s, producer) != UINT32_MAX &&
            mark->axis + 1 == (int32_t)graph->values[value].type.rank) {
            s->splits_columns[producer] = true; /* the weight needs no annotation */
        }
    }
    return WEFT_OK;
}

/* An axis of segments, of which no all-gather puts the parts in order: the split has one segment,
 * or its producer reads whole inputs. */
bool wefti_split_unorder(wefti_splitter_t *s, uint32_t value)
{
    const wefti_split_t *split = &s->of_value[value];
    const wefti_graph_t *graph = s->graph;
    if (split->count <= 1) {
        return false;
    }
    if (s->columns[split->origin].count > 1) {
        s->columns[split->origin].count = 1;
        s->one_segment[split->origin] = true;
        return true;
    }
    uint32_t producer = graph->values[value].producer;
    while (s->mark_of[producer] != NULL) {
        producer = graph->values[graph->nodes[producer].inputs[0]].producer;
    }
    s->keeps_whole[producer] = true;
    return true;
}

weft_status_t wefti_split_check_marks(const wefti_splitter_t *s)
{
    const wefti_graph_t *graph = s->graph;
    for (uint32_t i = 0; i < s->mark_count; i++) {
        const wefti_mark_t *mark = &s->marks[i];
        if (mark->axis < 0 || mark->reader == WEFTI_NONE) {
            continue;
        }
        const wefti_node_t *node = &graph->nodes[mark->reader];
        const wefti_node_split_t *split = &s->nodes[mark->reader];
        for (uint32_t k = 0; k < node->input_count; k++) {
            if (node->inputs[k] == graph->nodes[mark->node].outputs[0] &&
                split->need[k].axis != mark->axis) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "%s: sharding of '%s': the operator cannot read parts along "
                                   "axis %d: %s",
                                   mark->sharding->node, mark->sharding->tensor, mark->axis,
                                   split->why != NULL ? split->why
                                                      : "its inputs are split in different ways");
            }
        }
    }
    return WEFT_OK;
}
