/* SPDX-License-Identifier: Apache-2.0 */
/*
 * precision: half types for weights and activations.
 *
 * Matches operators that compute in a half type (WEFT_PRECISION_HALF: products, convolutions), and
 * those that follow their inputs (WEFT_PRECISION_INPUTS: activations, sums of two branches, views).
 * Their f32 tensors become f16 or bf16. Produces a Cast where an operator of the other kind, or an
 * output of the graph, reads such a tensor, and one Cast per weight:
 *
 *   w f32 -> Cast -> w bf16 --\
 *   x f32 -> Cast -> x bf16 -> MatMul -> bf16 -> Relu -> bf16 -> Cast -> f32 -> loss
 *
 * The differentiator comes later. It makes gradients in the types of the forward pass, and the
 * gradient of the Cast of a weight is f32: reductions, updates and the weights themselves stay f32.
 * Constants, and with infer weights, are converted here. Finite numbers stay finite then: a mask of
 * the lowest f32 becomes the lowest half number.
 *
 * Weights that a model has in bf16 are f32 in training, with a Cast to bf16 before their readers, and
 * so is its loss.
 */
#include "fusion/passes/passes.h"

#include <math.h>

#include "graph/onnx/onnx.h"
#include "ops/compute/halves.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define MAX_F16 65504.0f
#define MAX_BF16 3.38953139e38f

typedef struct precision {
    wefti_graph_t *graph;
    weft_dtype_t half;
    bool infer;
    wefti_arena_t arena;
    uint32_t *casts; /* by value of the model: the same in the other type, or WEFTI_NONE */
    bool *narrowed;  /* f32 in the model, half now */
    bool *moves;     /* by node: it moves elements, and only operators in the half type read them */
    uint32_t value_count;
    uint32_t before; /* the node that a new one comes after, or WEFTI_WHEN_READY */
} precision_t;

/* Contents of a constant or weight, rounded to the half type. */
static weft_status_t convert(precision_t *p, uint32_t value, uint32_t *out_value)
{
    const wefti_value_t *from = &p->graph->values[value];
    const wefti_value_kind_t kind = from->kind;
    const float most = p->half == WEFT_DTYPE_F16 ? MAX_F16 : MAX_BF16;
    weft_tensor_desc_t type = from->type;
    const int64_t count = weft_tensor_elem_count(&type);
    const char *bytes = type.data;
    uint16_t *data = wefti_arena_array(&p->graph->arena, (size_t)count, sizeof(*data));
    const char *name = wefti_arena_printf(&p->arena, "%s", from->name);
    WEFT_RETURN_IF_NO_MEMORY(data && name);
    for (int64_t i = 0; i < count; i++) {
        float x; /* maybe unaligned */
        memcpy(&x, bytes + (size_t)i * sizeof(x), sizeof(x));
        x = isfinite(x) ? fminf(fmaxf(x, -most), most) : x;
        wefti_halves_narrow(WEFT_ISA_PORTABLE, p->half, &x, 1, &data[i]);
    }
    type.dtype = p->half;
    type.data = data;
    return wefti_graph_add_value(p->graph, name, kind, &type, out_value);
}

static weft_status_t add_cast(precision_t *p, uint32_t value, weft_dtype_t to, uint32_t *out_value)
{
    wefti_graph_t *graph = p->graph;
    uint32_t node;
    const weft_attr_t attr = {
        .name = "to", .type = WEFT_ATTR_TYPE_INT, .i = wefti_onnx_data_type(to)};
    const wefti_node_params_t params = {.domain = "",
                                        .op = "Cast",
                                        .name = wefti_arena_printf(&graph->arena, "%s/%s",
                                                                   graph->values[value].name,
                                                                   weft_dtype_name(to)),
                                        .version = graph->opset > 6 ? graph->opset : 6,
                                        .inputs = &value,
                                        .input_count = 1,
                                        .output_count = 1,
                                        .attrs = &attr,
                                        .attr_count = 1};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, p->before, &node));
    *out_value = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

/* The value in the other type. */
static weft_status_t other_type(precision_t *p, uint32_t value, uint32_t *out_value)
{
    const wefti_value_t *v = &p->graph->values[value];
    const bool to_half = v->type.dtype == WEFT_DTYPE_F32;
    const bool known = v->type.data != NULL && v->rank_bytes == 0 &&
                       (v->kind == WEFTI_VALUE_CONST || (p->infer && v->kind == WEFTI_VALUE_PARAM));
    if (p->casts[value] == WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(
            to_half && known
                ? convert(p, value, &p->casts[value])
                : add_cast(p, value, to_half ? p->half : WEFT_DTYPE_F32, &p->casts[value]));
    }
    *out_value = p->casts[value];
    return WEFT_OK;
}

static bool stays_f32(const weft_op_facts_t *facts, uint32_t input)
{
    return (facts->f32_inputs >> (input < 31 ? input : 31) & 1u) != 0;
}

static bool moves_elements(const weft_op_facts_t *facts)
{
    return (facts->flags & WEFT_FACT_VIEW) != 0 || facts->gradient == WEFT_GRADIENT_PERMUTATION ||
           facts->gradient == WEFT_GRADIENT_REPEATED;
}

/* Elements that are only read in the half type are converted before they are moved: Transpose of a
 * weight then stays next to its product. */
static weft_status_t find_moves(precision_t *p)
{
    const wefti_graph_t *graph = p->graph;
    wefti_readers_t readers;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_readers(graph, graph->order, graph->order_count, &p->arena, &readers));
    for (uint32_t i = graph->order_count; i-- > 0;) {
        const uint32_t id = graph->order[i];
        const weft_op_facts_t facts = wefti_op_facts(graph->nodes[id].def);
        if (graph->nodes[id].output_count != 1 || graph->nodes[id].outputs[0] == WEFTI_NONE) {
            continue;
        }
        const uint32_t y = graph->nodes[id].outputs[0];
        bool moves = facts.precision == WEFT_PRECISION_INPUTS && moves_elements(&facts) &&
                     graph->values[y].flags == 0 && graph->values[y].type.dtype == WEFT_DTYPE_F32 &&
                     readers.first[y] < readers.first[y + 1];
        for (uint32_t r = readers.first[y]; moves && r < readers.first[y + 1]; r++) {
            const uint32_t reader = readers.nodes[r];
            moves = p->moves[reader] ||
                    wefti_op_facts(graph->nodes[reader].def).precision == WEFT_PRECISION_HALF;
        }
        p->moves[id] = moves;
    }
    return WEFT_OK;
}

static bool computes_half(const precision_t *p, uint32_t id, const weft_op_facts_t *facts)
{
    const wefti_node_t *node = &p->graph->nodes[id];
    bool any = facts->precision == WEFT_PRECISION_HALF || p->moves[id];
    for (uint32_t i = 0; i < node->input_count && facts->precision == WEFT_PRECISION_INPUTS; i++) {
        any = any || (node->inputs[i] != WEFTI_NONE && !stays_f32(facts, i) &&
                      p->narrowed[node->inputs[i]]);
    }
    return any;
}

static weft_status_t visit(precision_t *p, uint32_t id)
{
    wefti_graph_t *graph = p->graph;
    const weft_op_facts_t facts = wefti_op_facts(graph->nodes[id].def);
    const bool half = computes_half(p, id, &facts);
    bool changed = false;
    for (uint32_t i = 0; i < graph->nodes[id].input_count; i++) {
        const uint32_t input = graph->nodes[id].inputs[i];
        uint32_t other;
        if (input == WEFTI_NONE) {
            continue;
        }
        const bool is_f32 = graph->values[input].type.dtype == WEFT_DTYPE_F32;
        const bool wants_half = half && !stays_f32(&facts, i);
        if (wants_half ? !is_f32 : !p->narrowed[input]) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(other_type(p, input, &other));
        graph->nodes[id].inputs[i] = other;
        changed = true;
    }
    if (!changed && !half) {
        return WEFT_OK;
    }
    /* Statistics, such as a mean, may stay f32. */
    const uint32_t *outputs = graph->nodes[id].outputs;
    const uint32_t count = graph->nodes[id].output_count;
    for (uint32_t k = 0; k < count; k++) {
        if (outputs[k] != WEFTI_NONE) {
            p->narrowed[outputs[k]] = graph->values[outputs[k]].type.dtype == WEFT_DTYPE_F32;
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_infer_node(graph, id));
    for (uint32_t k = 0; k < count; k++) {
        if (outputs[k] != WEFTI_NONE) {
            p->narrowed[outputs[k]] =
                p->narrowed[outputs[k]] && graph->values[outputs[k]].type.dtype == p->half;
        }
    }
    return WEFT_OK;
}

/* With infer: a weight that is only read in the half type is stored in it, under its name. */
static weft_status_t store_half(precision_t *p)
{
    wefti_graph_t *graph = p->graph;
    wefti_readers_t readers;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_readers(graph, graph->order, graph->order_count, &p->arena, &readers));
    for (uint32_t v = 0; v < p->value_count; v++) {
        const uint32_t other = p->casts[v];
        if (other == WEFTI_NONE || graph->values[v].kind != WEFTI_VALUE_PARAM ||
            graph->values[other].kind != WEFTI_VALUE_PARAM ||
            readers.first[v] < readers.first[v + 1]) {
            continue;
        }
        const char *name = graph->values[v].name;
        const char *wide = wefti_arena_printf(&graph->arena, "%s/f32", name);
        WEFT_RETURN_IF_NO_MEMORY(wide);
        graph->values[v].kind = WEFTI_VALUE_CONST; /* takes no memory */
        WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, v, wide));
        WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, other, name));
    }
    return WEFT_OK;
}

/* Values that leave the graph are f32 and keep their names. */
static weft_status_t keep_type(precision_t *p, uint32_t value, wefti_value_flags_t flag,
                               uint32_t *slot)
{
    wefti_graph_t *graph = p->graph;
    uint32_t other;
    if (value == WEFTI_NONE || value >= p->value_count || !p->narrowed[value]) {
        return WEFT_OK;
    }
    const char *name = graph->values[value].name;
    WEFT_RETURN_IF_ERROR(other_type(p, value, &other));
    *slot = other;
    graph->values[value].flags &= ~flag;
    graph->values[other].flags |= flag;
    /* once for a value that is both */
    if ((graph->values[other].flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOGITS)) == flag) {
        const char *narrow =
            wefti_arena_printf(&graph->arena, "%s/%s", name, weft_dtype_name(p->half));
        WEFT_RETURN_IF_NO_MEMORY(narrow);
        WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, value, narrow));
        WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, other, name));
    }
    return WEFT_OK;
}

static weft_status_t apply(precision_t *p)
{
    wefti_graph_t *graph = p->graph;
    const uint32_t count = graph->order_count;
    p->value_count = graph->value_count;
    p->casts = wefti_id_map(&p->arena, graph->value_count);
    p->narrowed = wefti_arena_array(&p->arena, graph->value_count, sizeof(*p->narrowed));
    p->moves = wefti_arena_array(&p->arena, graph->node_count, sizeof(*p->moves));
    uint32_t *order = wefti_arena_array(&p->arena, count, sizeof(*order));
    WEFT_RETURN_IF_NO_MEMORY(p->casts && p->narrowed && p->moves && order);
    WEFT_RETURN_IF_ERROR(find_moves(p));
    memcpy(order, graph->order, count * sizeof(*order));
    for (uint32_t i = 0; i < count; i++) {
        p->before = i > 0 ? order[i - 1] : WEFTI_WHEN_READY;
        WEFT_RETURN_IF_ERROR(visit(p, order[i]));
    }
    p->before = WEFTI_WHEN_READY;
    WEFT_RETURN_IF_ERROR(keep_type(p, graph->logits, WEFTI_VALUE_LOGITS, &graph->logits));
    for (uint32_t i = 0; i < graph->output_count; i++) {
        WEFT_RETURN_IF_ERROR(
            keep_type(p, graph->outputs[i], WEFTI_VALUE_OUTPUT, &graph->outputs[i]));
    }
    WEFT_RETURN_IF_ERROR(p->infer ? store_half(p) : WEFT_OK);
    return wefti_graph_sort(graph);
}

weft_status_t wefti_pass_precision(wefti_graph_t *graph, weft_dtype_t half, bool infer)
{
    precision_t p = {.graph = graph, .half = half, .infer = infer};
    wefti_arena_init(&p.arena, graph->arena.allocator, 0);
    weft_status_t status = apply(&p);
    wefti_arena_deinit(&p.arena);
    return status;
}

/* The contents of a weight in f32. */
static weft_status_t widen(wefti_graph_t *graph, weft_tensor_desc_t *type)
{
    const int64_t count = weft_tensor_elem_count(type);
    const char *bytes = type->data;
    float *data = NULL;
    if (bytes != NULL) {
        data = wefti_arena_array(&graph->arena, (size_t)count, sizeof(*data));
        WEFT_RETURN_IF_NO_MEMORY(data);
    }
    for (int64_t i = 0; i < count && data != NULL; i++) {
        uint16_t half; /* maybe unaligned */
        memcpy(&half, bytes + (size_t)i * sizeof(half), sizeof(half));
        wefti_halves_widen(WEFT_ISA_PORTABLE, type->dtype, &half, 1, &data[i]);
    }
    type->dtype = WEFT_DTYPE_F32;
    type->data = data;
    return WEFT_OK;
}

/* The loss of a model in bf16 is computed in f32; a loss of several nodes is converted. */
static weft_status_t widen_loss(precision_t *p)
{
    wefti_graph_t *graph = p->graph;
    const uint32_t loss = graph->loss, node = wefti_producer(graph, loss);
    uint32_t wide;
    if (node == WEFTI_NONE || !wefti_is_half(graph->values[loss].type.dtype)) {
        return WEFT_OK;
    }
    if (wefti_op_has(graph->nodes[node].def, WEFT_FACT_LOSS)) {
        for (uint32_t i = 0; i < graph->nodes[node].input_count; i++) {
            const uint32_t input = graph->nodes[node].inputs[i];
            if (input != WEFTI_NONE && wefti_is_half(graph->values[input].type.dtype)) {
                WEFT_RETURN_IF_ERROR(add_cast(p, input, WEFT_DTYPE_F32, &wide));
                graph->nodes[node].inputs[i] = wide;
            }
        }
        return wefti_graph_infer_node(graph, node);
    }
    const char *name = wefti_arena_printf(&graph->arena, "%s", graph->values[loss].name);
    const char *narrow = wefti_arena_printf(&graph->arena, "%s/bf16", name);
    WEFT_RETURN_IF_NO_MEMORY(name && narrow);
    WEFT_RETURN_IF_ERROR(add_cast(p, loss, WEFT_DTYPE_F32, &wide));
    wefti_graph_replace_uses(graph, loss, wide, graph->values[wide].producer);
    graph->values[wide].flags |= graph->values[loss].flags;
    graph->values[loss].flags = 0;
    graph->loss = wide;
    WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, loss, narrow));
    return wefti_graph_rename_value(graph, wide, name);
}

weft_status_t wefti_pass_widen_parameters(wefti_graph_t *graph)
{
    const uint32_t count = graph->value_count;
    precision_t p = {.graph = graph, .before = WEFTI_WHEN_READY};
    uint32_t *by = wefti_id_map(&graph->arena, count);
    WEFT_RETURN_IF_NO_MEMORY(by);
    for (uint32_t v = 0; v < count; v++) {
        const weft_dtype_t half = graph->values[v].type.dtype;
        uint32_t narrow;
        if (graph->values[v].kind != WEFTI_VALUE_PARAM || !wefti_is_half(half)) {
            continue;
        }
        if (half == WEFT_DTYPE_F16) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "parameter '%s' is f16: small gradients vanish in f16; train a "
                               "model of f32 or bf16",
                               graph->values[v].name);
        }
        WEFT_RETURN_IF_ERROR(widen(graph, &graph->values[v].type));
        WEFT_RETURN_IF_ERROR(add_cast(&p, v, half, &narrow));
        by[v] = narrow;
    }
    wefti_graph_replace_all(graph, by, count);
    WEFT_RETURN_IF_ERROR(widen_loss(&p));
    return wefti_graph_sort(graph);
}

weft_status_t wefti_apply_precision(wefti_compiler_t *c)
{
    const bool f16 = strcmp(c->params.precision, "f16") == 0;
    if (!c->params.infer) {
        WEFT_RETURN_IF_ERROR(wefti_pass_widen_parameters(c->graph));
    }
    if (strcmp(c->params.precision, "f32") == 0) {
        return WEFT_OK;
    }
    if (f16 && !c->params.infer) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "precision",
                                 "f16 is supported for inference only: small gradients vanish in "
                                 "f16; use bf16");
    }
    if (wefti_graph_has_gradients(c->graph)) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "precision",
                                 "must be f32: the model contains its backward pass");
    }
    return wefti_pass_precision(c->graph, f16 ? WEFT_DTYPE_F16 : WEFT_DTYPE_BF16,
                                c->params.infer != 0);
}
