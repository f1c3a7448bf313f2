/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settle-gradients: each given gradient becomes a tensor of its own, as derived gradients are.
 *
 * Matches values with grad_of (given-gradients). Produces an Identity where a gradient is an output
 * or has other readers, because collectives work in place in the memory of a bucket; and the flag
 * REDUCED on a gradient that is equal on all ranks, which insert-collectives must not reduce again.
 */
#include "fusion/passes/passes.h"

#include <stdio.h>

#include "runtime/base/error.h"

static weft_status_t check_gradient(const wefti_graph_t *graph, uint32_t value)
{
    const wefti_value_t *grad = &graph->values[value], *param = &graph->values[grad->grad_of];
    bool same = grad->type.dtype == param->type.dtype && grad->type.rank == param->type.rank;
    char texts[2][WEFTI_TYPE_TEXT_BYTES];

    for (uint32_t d = 0; same && d < grad->type.rank; d++) {
        same = grad->type.dims[d] == param->type.dims[d];
    }

    if (!same) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "gradient '%s': type or shape does not match parameter '%s': %s, parameter %s",
            grad->name, param->name, wefti_type_text(&grad->type, texts[0]),
            wefti_type_text(&param->type, texts[1]));
    }
    if (weft_tensor_elem_count(&param->type) == 0) {
        return wefti_error_empty_param(param->name);
    }
    return WEFT_OK;
}

weft_status_t wefti_check_gradients(const wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t v = 0; v < graph->value_count && status >= 0; v++) {
        const wefti_value_t *value = &graph->values[v];
        if (value->grad_of != WEFTI_NONE && value->kind != WEFTI_VALUE_NODE) {
            /* folded: it is always the same */
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "gradient '%s' of parameter '%s' is a constant", value->name,
                               graph->values[value->grad_of].name);
        }
        status = value->grad_of != WEFTI_NONE ? check_gradient(graph, v) : WEFT_OK;
    }
    return status;
}

/* Copies that stand behind the producers of what they copy. */
typedef struct copier {
    wefti_graph_t *graph;
    uint64_t *keys;
    size_t key_capacity;
    uint32_t added;
} copier_t;

static weft_status_t add_copy(copier_t *c, uint32_t value, uint32_t *out_value)
{
    weft_status_t status;
    wefti_graph_t *graph = c->graph;
    char name[200];
    uint32_t node, producer = graph->values[value].producer;
    snprintf(name, sizeof(name), "%.180s/copy", graph->values[value].name);
    wefti_node_params_t params = {.domain = "",
                                  .op = "Identity",
                                  .name = name,
                                  .version = graph->opset,
                                  .phase = WEFTI_PHASE_BACKWARD,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_count = 1};
    WEFT_TRY(status, wefti_graph_add_node(graph, &params, &node), done);
    WEFT_TRY(status,
             wefti_array_reserve(graph->arena.allocator, &c->keys, &c->key_capacity,
                                 (size_t)node + 1, sizeof(*c->keys)),
             done);
    c->keys[node] = (producer == WEFTI_NONE ? 0 : c->keys[producer]) + ++c->added;
    *out_value = graph->nodes[node].outputs[0];
done:
    return status;
}

/* A collective of gradients works in place: its inputs are tensors of their own. */
static weft_status_t own_inputs(copier_t *c, uint32_t id, const uint32_t *readers)
{
    weft_status_t status = WEFT_OK;
    wefti_graph_t *graph = c->graph;
    for (uint32_t k = 0; k < graph->nodes[id].input_count; k++) {
        uint32_t value = graph->nodes[id].inputs[k], copy;
        uint32_t result = graph->nodes[id].outputs[k];
        if (value == WEFTI_NONE || result == WEFTI_NONE ||
            graph->values[result].grad_of == WEFTI_NONE ||
            (graph->values[value].kind == WEFTI_VALUE_NODE && readers[value] == 1 &&
             graph->values[value].flags == 0)) {
            continue;
        }
        WEFT_TRY(status, add_copy(c, value, &copy), done);
        graph->nodes[id].inputs[k] = copy;
    }
done:
    return status;
}

/* One gradient that a node made: a tensor that nobody else reads, or one that is not to be reduced
 * again. */
static weft_status_t own_gradient(copier_t *c, uint32_t value, const uint32_t *readers,
                                  const uint8_t *local)
{
    wefti_graph_t *graph = c->graph;
    uint32_t copy;
    weft_status_t status;
    if (!local[value]) {
        graph->values[value].flags |= WEFTI_VALUE_REDUCED;
        return WEFT_OK;
    }
    if (readers[value] == 0 && graph->values[value].flags == 0) {
        return WEFT_OK;
    }
    status = add_copy(c, value, &copy);
    if (status == WEFT_OK) {
        graph->values[copy].grad_of = graph->values[value].grad_of;
        graph->values[value].grad_of = WEFTI_NONE;
    }
    return status;
}

/* Where nodes stand now, and who reads how often. */
static weft_status_t look_around(copier_t *c, uint32_t **out_readers)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = c->graph;
    uint32_t *readers =
        wefti_alloc(graph->arena.allocator, ((size_t)graph->value_count + 1) * sizeof(*readers));
    *out_readers = readers;
    if (readers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = graph->order_count; i-- > 0;) {
        uint32_t id = graph->order[i];
        WEFT_TRY(status,
                 wefti_array_reserve(graph->arena.allocator, &c->keys, &c->key_capacity,
                                     (size_t)id + 1, sizeof(*c->keys)),
                 done);
        c->keys[id] = ((uint64_t)i + 1) << 32;
        for (uint32_t k = 0; k < graph->nodes[id].input_count; k++) {
            if (graph->nodes[id].inputs[k] != WEFTI_NONE) {
                readers[graph->nodes[id].inputs[k]]++;
            }
        }
    }
done:
    return status;
}

weft_status_t wefti_pass_settle_gradients(wefti_graph_t *graph)
{
    weft_status_t status;
    copier_t c = {.graph = graph};
    uint32_t *readers = NULL, count = graph->order_count;
    if (!wefti_graph_has_gradients(graph)) {
        return WEFT_OK;
    }
    uint8_t *local = wefti_mark_local(graph);
    WEFT_TRY(status, wefti_check_gradients(graph), done);
    WEFT_TRY(status, local == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, done);
    WEFT_TRY(status, look_around(&c, &readers), done);
    for (uint32_t v = 0, values = graph->value_count; v < values; v++) {
        if (graph->values[v].grad_of == WEFTI_NONE) {
            continue;
        }
        if (!(graph->nodes[graph->values[v].producer].def->effects & WEFT_EFFECT_COMMUNICATES)) {
            WEFT_TRY(status, own_gradient(&c, v, readers, local), done);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (wefti_is_all_reduce(&graph->nodes[graph->order[i]])) {
            WEFT_TRY(status, own_inputs(&c, graph->order[i], readers), done);
        }
    }
    if (c.added > 0) {
        WEFT_TRY(status, wefti_graph_sort_by(graph, c.keys), done);
    }
done:
    wefti_free(graph->arena.allocator, readers);
    wefti_free(graph->arena.allocator, local);
    wefti_free(graph->arena.allocator, c.keys);
    return status;
}

weft_status_t wefti_apply_settle_gradients(wefti_compiler_t *c)
{
    return wefti_pass_settle_gradients(c->graph);
}
