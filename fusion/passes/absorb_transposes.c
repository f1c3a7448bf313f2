/* SPDX-License-Identifier: Apache-2.0 */
/*
 * absorb-transposes: products read their operands, and write their results, the other way round
 * instead of a Transpose of the last two dimensions.
 *
 *   %t = Transpose(%w)  %y = MatMul(%x, %t)    ->  %y = FusedMatMul(%x, %w) {transB=1}
 *   %p = Gemm(%a, %b)   %g = Transpose(%p)     ->  %g = Gemm(%b, %a) {transA=1, transB=1}
 *
 * Exporters write the first for each linear layer of torch; the second is the gradient of its
 * weight. Both would copy the weight in every step, and keep a copy for the backward pass. Every
 * element is the same sum of the same products, so bits are equal.
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

typedef struct absorber {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    wefti_readers_t readers;
    const weft_op_def_t *fused; /* FusedMatMul */
} absorber_t;

static bool is_gemm(const wefti_node_t *node)
{
    return wefti_op_facts(node->def).gradient == WEFT_GRADIENT_GEMM;
}

static bool is_plain(const wefti_node_t *node)
{
    return wefti_op_facts(node->def).gradient == WEFT_GRADIENT_MATRIX_PRODUCT;
}

/* A product of two operands with at least two dimensions each. */
static bool is_product(const absorber_t *a, const wefti_node_t *node)
{
    bool product = is_gemm(node) || is_plain(node) || wefti_op_same(node->def, a->fused);
    for (uint32_t k = 0; k < 2 && product; k++) {
        product = node->input_count > k && node->inputs[k] != WEFTI_NONE &&
                  a->graph->values[node->inputs[k]].type.rank >= 2;
    }
    return product;
}

/* The node that computes value by exchanging the last two dimensions, or WEFTI_NONE. */
static uint32_t exchange_of(const absorber_t *a, uint32_t value)
{
    const uint32_t id = wefti_producer(a->graph, value);
    const wefti_node_t *node = id == WEFTI_NONE ? NULL : &a->graph->nodes[id];
    if (node == NULL || wefti_op_facts(node->def).gradient != WEFT_GRADIENT_PERMUTATION) {
        return WEFTI_NONE;
    }
    const weft_attr_t *perm = wefti_node_attr(node, "perm");
    const uint32_t rank = a->graph->values[value].type.rank;
    if (rank < 2 || (perm == NULL && rank != 2) || (perm != NULL && perm->count != rank)) {
        return WEFTI_NONE;
    }
    for (uint32_t d = 0; d < rank && perm != NULL; d++) {
        if (perm->ints[d] != (d + 2 < rank ? d : d + 2 == rank ? rank - 1 : rank - 2)) {
            return WEFTI_NONE;
        }
    }
    return id;
}

/* Is the value the operand of products alone? Then nothing is left of the Transpose. */
static bool feeds_products(const absorber_t *a, uint32_t value)
{
    bool only = a->graph->values[value].flags == 0;
    for (uint32_t r = a->readers.first[value]; r < a->readers.first[value + 1] && only; r++) {
        const wefti_node_t *node = &a->graph->nodes[a->readers.nodes[r]];
        only = is_product(a, node) && (node->input_count < 3 || node->inputs[2] != value);
    }
    return only;
}

static weft_status_t set_flags(absorber_t *a, uint32_t id, const bool *exchange)
{
    static const char *const names[] = {"transA", "transB"};
    for (uint32_t k = 0; k < 2; k++) {
        const weft_attr_t attr = {
            .name = names[k], .type = WEFT_ATTR_TYPE_INT, .i = exchange[k] ? 1 : 0};
        WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(a->graph, id, &attr));
    }
    return wefti_graph_infer_node(a->graph, id);
}

static void read_flags(const wefti_node_t *node, bool *out_exchange)
{
    out_exchange[0] = !is_plain(node) && wefti_node_int(node, "transA") != 0;
    out_exchange[1] = !is_plain(node) && wefti_node_int(node, "transB") != 0;
}

/* MatMul becomes FusedMatMul, which has flags. */
static weft_status_t need_flags(absorber_t *a, uint32_t id)
{
    return is_plain(&a->graph->nodes[id])
               ? wefti_graph_change_op(a->graph, id, "com.microsoft", "FusedMatMul", 0)
               : WEFT_OK;
}

static weft_status_t absorb_operands(absorber_t *a, uint32_t id)
{
    bool exchange[2], changes = false;
    uint32_t inputs[2];
    if (!is_product(a, &a->graph->nodes[id])) {
        return WEFT_OK;
    }
    read_flags(&a->graph->nodes[id], exchange);
    for (uint32_t k = 0; k < 2; k++) {
        inputs[k] = a->graph->nodes[id].inputs[k];
        const uint32_t from = exchange_of(a, inputs[k]);
        if (from != WEFTI_NONE && feeds_products(a, inputs[k])) {
            inputs[k] = a->graph->nodes[from].inputs[0];
            exchange[k] = !exchange[k];
            changes = true;
        }
    }
    if (!changes) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(need_flags(a, id));
    memcpy(a->graph->nodes[id].inputs, inputs, sizeof(inputs));
    return set_flags(a, id, exchange);
}

/* The only reader of a product without an addend exchanges its dimensions: the operands change
 * places, and the product computes what the reader did. */
static weft_status_t absorb_result(absorber_t *a, uint32_t id)
{
    wefti_graph_t *graph = a->graph;
    const wefti_node_t *node = &graph->nodes[id];
    const uint32_t result = node->output_count > 0 ? node->outputs[0] : WEFTI_NONE;
    bool exchange[2];
    if (exchange_of(a, result) != id) {
        return WEFT_OK;
    }
    const uint32_t from = node->inputs[0], product = wefti_producer(graph, from);
    const wefti_value_t *value = &graph->values[from];
    if (product == WEFTI_NONE || !is_product(a, &graph->nodes[product]) ||
        graph->nodes[product].input_count != 2 || value->flags != 0 ||
        value->grad_of != WEFTI_NONE || a->readers.first[from + 1] != a->readers.first[from] + 1) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(need_flags(a, product));
    read_flags(&graph->nodes[product], exchange);
    uint32_t *inputs = graph->nodes[product].inputs;
    const uint32_t left = inputs[0];
    const bool swapped[] = {!exchange[1], !exchange[0]};
    inputs[0] = inputs[1];
    inputs[1] = left;
    wefti_graph_take_output(graph, product, 0, result);
    wefti_graph_take_output(graph, id, 0, from);
    graph->nodes[id].dead = true;
    graph->nodes[id].replaced_by = product;
    return set_flags(a, product, swapped);
}

/* Exchanges that no node reads any more. */
static weft_status_t remove_unread(absorber_t *a)
{
    wefti_graph_t *graph = a->graph;
    wefti_graph_compact_order(graph);
    WEFT_RETURN_IF_ERROR(
        wefti_graph_readers(graph, graph->order, graph->order_count, &a->arena, &a->readers));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const uint32_t id = graph->order[i], value = graph->nodes[id].outputs[0];
        if (exchange_of(a, value) == id && graph->values[value].flags == 0 &&
            graph->values[value].grad_of == WEFTI_NONE &&
            a->readers.first[value] == a->readers.first[value + 1]) {
            graph->nodes[id].dead = true;
        }
    }
    return wefti_graph_sort(graph);
}

static weft_status_t absorb(absorber_t *a)
{
    wefti_graph_t *graph = a->graph;
    a->fused = weft_registry_find_op(graph->registry, "com.microsoft", "FusedMatMul", 1);
    if (a->fused == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(
        wefti_graph_readers(graph, graph->order, graph->order_count, &a->arena, &a->readers));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        WEFT_RETURN_IF_ERROR(absorb_operands(a, graph->order[i]));
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        WEFT_RETURN_IF_ERROR(absorb_result(a, graph->order[i]));
    }
    return remove_unread(a);
}

weft_status_t wefti_pass_absorb_transposes(wefti_graph_t *graph)
{
    absorber_t a = {.graph = graph};
    wefti_arena_init(&a.arena, graph->arena.allocator, 0);
    weft_status_t status = absorb(&a);
    wefti_arena_deinit(&a.arena);
    return status;
}

weft_status_t wefti_apply_absorb_transposes(wefti_compiler_t *c)
{
    return wefti_pass_absorb_transposes(c->graph);
}
