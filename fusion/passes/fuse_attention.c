/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuse-attention: softmax(scale Q K' + bias) V, as exporters write it and as pass expand writes the
 * operators of ONNX, becomes weft::FlashAttention. Its scores are never in memory.
 *
 *   Q ---> [* c] ----------\
 *   K ---> [* c] -> ' -----> MatMul -> [* c] -> [+ bias] -> Softmax -> [rows without keys are 0]
 *   V ----------------------------------------------------------------------> MatMul -> Y
 *
 * What is in brackets may be absent. Each tensor between the products has one reader. Factors are
 * constants. A bias that depends on a parameter needs a gradient: the operators stay, in inference
 * too, so that both compute the same bits. Constant biases that hide later keys become attribute
 * causal. Transposes between heads and tokens around the operators become strides.
 *
 * Q may have the heads that share a key side by side as rows of one product (pass expand).
 */
#include <math.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "fusion/tensor/tensor.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define UNSEEN (-1e30f) /* biases below hide a key: its share is 0 */

typedef struct matcher {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    wefti_readers_t readers;
    const weft_op_def_t *softmax, *is_nan, *equal;
    bool trains;
    uint8_t *trained;     /* by value: a parameter reaches it */
    uint32_t causal_bias; /* the last one that was read */
    int64_t causal_past;
} matcher_t;

typedef struct match {
    uint32_t scores, product, result; /* nodes: Softmax, and both products */
    uint32_t q, k, v, bias, y;        /* values */
    int64_t shape[4];                 /* of the scores: batch, heads, queries, keys */
    double scale;
    bool scaled, causal; /* scaled: a factor follows */
    int64_t past, tokens_first;
} match_t;

static const weft_tensor_desc_t *type_of(const matcher_t *m, uint32_t value)
{
    return &m->graph->values[value].type;
}

static const wefti_node_t *producer_of(const matcher_t *m, uint32_t value)
{
    const uint32_t id = wefti_producer(m->graph, value);
    return id == WEFTI_NONE ? NULL : &m->graph->nodes[id];
}

static weft_gradient_t kind_of(const wefti_node_t *node)
{
    return node == NULL ? WEFT_GRADIENT_DEFAULT : wefti_op_facts(node->def).gradient;
}

static uint32_t count_readers(const matcher_t *m, uint32_t value)
{
    return m->readers.first[value + 1] - m->readers.first[value];
}

/* The only reader, or WEFTI_NONE. */
static uint32_t reader_of(const matcher_t *m, uint32_t value)
{
    return count_readers(m, value) == 1 && m->graph->values[value].flags == 0
               ? m->readers.nodes[m->readers.first[value]]
               : WEFTI_NONE;
}

static bool has_dims(const weft_tensor_desc_t *x, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return x->rank == 4 && x->dims[0] == a && x->dims[1] == b && x->dims[2] == c && x->dims[3] == d;
}

/* Not where values cross between ranks. */
static bool is_view(const wefti_node_t *node)
{
    return node != NULL && wefti_op_has(node->def, WEFT_FACT_VIEW) &&
           node->def != wefti_tensor_shared() && node->def != wefti_tensor_terms();
}

static bool has_perm(const wefti_node_t *node, const int64_t *perm, uint32_t rank)
{
    const weft_attr_t *attr =
        kind_of(node) == WEFT_GRADIENT_PERMUTATION ? wefti_node_attr(node, "perm") : NULL;
    return attr != NULL && attr->count == rank &&
           memcmp(attr->ints, perm, rank * sizeof(*perm)) == 0;
}

static bool is_number(const matcher_t *m, uint32_t value, double *out)
{
    return value != WEFTI_NONE && m->graph->values[value].kind == WEFTI_VALUE_CONST &&
           wefti_tensor_number(type_of(m, value), out);
}

/* value = input * factor, or input / factor: then *value is the input. */
static bool take_factor(const matcher_t *m, uint32_t *value, double *scale)
{
    const wefti_node_t *node = producer_of(m, *value);
    const weft_arithmetic_t kind =
        node == NULL ? WEFT_ARITHMETIC_NONE : wefti_op_facts(node->def).arithmetic;
    double number;
    if (kind != WEFT_ARITHMETIC_MULTIPLY && kind != WEFT_ARITHMETIC_DIVIDE) {
        return false;
    }
    for (uint32_t k = 2; k-- > (kind == WEFT_ARITHMETIC_DIVIDE ? 1u : 0u);) {
        if (is_number(m, node->inputs[k], &number)) {
            *scale = kind == WEFT_ARITHMETIC_DIVIDE ? *scale / number : *scale * number;
            *value = node->inputs[1 - k];
            return true;
        }
    }
    return false;
}

/* Reads what is between the product and Softmax, backwards. */
static bool match_scores(matcher_t *m, match_t *out)
{
    uint32_t value = m->graph->nodes[out->scores].inputs[0];
    bool viewed = false;
    for (int steps = 0; steps < 8; steps++) {
        const wefti_node_t *node = producer_of(m, value);
        if (node == NULL || reader_of(m, value) == WEFTI_NONE) {
            return false;
        }
        if (kind_of(node) == WEFT_GRADIENT_MATRIX_PRODUCT) {
            out->product = wefti_producer(m->graph, value);
            return true;
        }
        if (take_factor(m, &value, &out->scale)) {
            out->scaled = true;
            continue;
        }
        if (is_view(node) && !viewed) {
            viewed = true;
            value = node->inputs[0];
            continue;
        }
        if (wefti_op_facts(node->def).arithmetic != WEFT_ARITHMETIC_ADD || out->scaled || viewed ||
            out->bias != WEFTI_NONE) {
            return false;
        }
        /* The scores are computed by a product, or by what comes after it; the bias by others. */
        const wefti_node_t *left = producer_of(m, node->inputs[0]);
        const bool first = has_dims(type_of(m, node->inputs[0]), out->shape[0], out->shape[1],
                                    out->shape[2], out->shape[3]) &&
                           left != NULL && reader_of(m, node->inputs[0]) != WEFTI_NONE &&
                           (kind_of(left) == WEFT_GRADIENT_MATRIX_PRODUCT || is_view(left) ||
                            wefti_op_facts(left->def).arithmetic != WEFT_ARITHMETIC_NONE);
        out->bias = node->inputs[first ? 1 : 0];
        value = node->inputs[first ? 0 : 1];
    }
    return false;
}

/* most == -infinity, where most is the maximum of each row of the bias. */
static bool finds_unseen(const matcher_t *m, uint32_t condition, uint32_t bias)
{
    const wefti_node_t *equal = producer_of(m, condition);
    double number;
    if (equal == NULL || !wefti_op_same(equal->def, m->equal) ||
        !is_number(m, equal->inputs[1], &number) || !(number == -INFINITY)) {
        return false;
    }
    const wefti_node_t *most = producer_of(m, equal->inputs[0]);
    return kind_of(most) == WEFT_GRADIENT_REDUCED_EXTREME && most->inputs[0] == bias &&
           type_of(m, equal->inputs[0])->rank == type_of(m, bias)->rank;
}

/* Where(IsNaN(shares), 0, shares), or Where(unseen, 0, shares) with the bias Where(unseen, 0,
 * bias): rows that see no key are 0, as those of FlashAttention. */
static bool match_unseen(const matcher_t *m, const wefti_node_t *choice, uint32_t shares,
                         match_t *out)
{
    double zero;
    if (kind_of(choice) != WEFT_GRADIENT_CHOICE || choice->inputs[2] != shares ||
        !is_number(m, choice->inputs[1], &zero) || zero != 0.0) {
        return false;
    }
    const uint32_t condition = choice->inputs[0];
    const wefti_node_t *test = producer_of(m, condition);
    if (test != NULL && wefti_op_same(test->def, m->is_nan)) {
        return test->inputs[0] == shares && count_readers(m, condition) == 1 &&
               m->graph->values[condition].flags == 0;
    }
    const wefti_node_t *bias = out->bias == WEFTI_NONE ? NULL : producer_of(m, out->bias);
    if (kind_of(bias) != WEFT_GRADIENT_CHOICE || bias->inputs[0] != condition ||
        !is_number(m, bias->inputs[1], &zero) || zero != 0.0 ||
        !finds_unseen(m, condition, bias->inputs[2])) {
        return false;
    }
    out->bias = bias->inputs[2];
    return true;
}

/* Reads what is between Softmax and Y. */
static bool match_result(matcher_t *m, match_t *out)
{
    uint32_t shares = m->graph->nodes[out->scores].outputs[0], next = reader_of(m, shares);
    if (m->graph->values[shares].flags != 0) {
        return false;
    }
    for (uint32_t r = m->readers.first[shares];
         next == WEFTI_NONE && r < m->readers.first[shares + 1]; r++) {
        const uint32_t id = m->readers.nodes[r];
        next = kind_of(&m->graph->nodes[id]) == WEFT_GRADIENT_CHOICE ? id : WEFTI_NONE;
    }
    if (next == WEFTI_NONE || count_readers(m, shares) > 2) {
        return false;
    }
    if (kind_of(&m->graph->nodes[next]) == WEFT_GRADIENT_CHOICE) {
        if (!match_unseen(m, &m->graph->nodes[next], shares, out)) {
            return false;
        }
        shares = m->graph->nodes[next].outputs[0];
        next = reader_of(m, shares);
    } else if (count_readers(m, shares) > 1) {
        return false;
    }
    if (next != WEFTI_NONE && is_view(&m->graph->nodes[next])) {
        shares = m->graph->nodes[next].outputs[0];
        next = reader_of(m, shares);
    }
    if (next == WEFTI_NONE || kind_of(&m->graph->nodes[next]) != WEFT_GRADIENT_MATRIX_PRODUCT ||
        m->graph->nodes[next].inputs[0] != shares || m->graph->nodes[next].inputs[1] == shares) {
        return false;
    }
    out->result = next;
    out->v = m->graph->nodes[next].inputs[1];
    out->y = m->graph->nodes[next].outputs[0];
    return true;
}

/* The input of a view, if it has these dimensions; else value. */
static uint32_t unview(const matcher_t *m, uint32_t value, int64_t a, int64_t b, int64_t c,
                       int64_t d)
{
    const wefti_node_t *node = producer_of(m, value);
    return is_view(node) && has_dims(type_of(m, node->inputs[0]), a, b, c, d) ? node->inputs[0]
                                                                              : value;
}

/* Q from the left operand: [batch, heads, queries, width], or with queries of shared heads joined. */
static bool match_query(const matcher_t *m, match_t *out)
{
    const int64_t *s = out->shape;
    uint32_t value = m->graph->nodes[out->product].inputs[0];
    const int64_t width = type_of(m, value)->dims[3];
    take_factor(m, &value, &out->scale);
    value = unview(m, value, s[0], s[1], s[2], width);
    take_factor(m, &value, &out->scale);
    out->q = value;
    return has_dims(type_of(m, value), s[0], s[1], s[2], width);
}

/* K from the right operand, [batch, heads, width, keys]. */
static bool match_key(const matcher_t *m, match_t *out)
{
    static const int64_t turn[] = {0, 1, 3, 2}, flat[] = {0, 2, 1}, both[] = {0, 2, 3, 1};
    uint32_t value = m->graph->nodes[out->product].inputs[1];
    take_factor(m, &value, &out->scale);
    const weft_tensor_desc_t t = *type_of(m, value);
    const wefti_node_t *node = producer_of(m, value);
    if (has_perm(node, both, 4)) {
        out->k = node->inputs[0];
        out->tokens_first |= 2;
        return true;
    }
    if (is_view(node) && t.rank == 4) { /* by way of [batch x heads, keys, width] */
        const wefti_node_t *turned = producer_of(m, node->inputs[0]);
        const wefti_node_t *view =
            has_perm(turned, flat, 3) ? producer_of(m, turned->inputs[0]) : NULL;
        const weft_tensor_desc_t *rows = view == NULL ? NULL : type_of(m, turned->inputs[0]);
        if (!is_view(view) || rows->dims[1] != t.dims[3] || rows->dims[2] != t.dims[2] ||
            !has_dims(type_of(m, view->inputs[0]), t.dims[0], t.dims[1], t.dims[3], t.dims[2])) {
            return false;
        }
        value = view->inputs[0];
    } else if (has_perm(node, turn, 4)) {
        value = node->inputs[0];
    } else {
        return false;
    }
    take_factor(m, &value, &out->scale);
    out->k = value;
    return has_dims(type_of(m, value), t.dims[0], t.dims[1], t.dims[3], t.dims[2]);
}

/* A value that is computed from [batch, tokens, heads, width] by a Transpose is read there. */
static void take_tokens_first(const matcher_t *m, uint32_t *value, int64_t bit, match_t *out)
{
    static const int64_t perm[] = {0, 2, 1, 3};
    const wefti_node_t *node = producer_of(m, *value);
    if ((out->tokens_first & bit) == 0 && has_perm(node, perm, 4)) {
        *value = node->inputs[0];
        out->tokens_first |= bit;
    }
}

/* Y is what views and a Transpose make of the product, if no other node reads that. */
static bool match_output(const matcher_t *m, match_t *out)
{
    static const int64_t perm[] = {0, 2, 1, 3};
    const int64_t *s = out->shape, width = type_of(m, out->v)->dims[3];
    for (int steps = 0; steps < 2; steps++) {
        const uint32_t next = reader_of(m, out->y);
        const wefti_node_t *node = next == WEFTI_NONE ? NULL : &m->graph->nodes[next];
        if (is_view(node) && has_dims(type_of(m, node->outputs[0]), s[0], s[1], s[2], width)) {
            out->y = node->outputs[0];
        }
    }
    if (!has_dims(type_of(m, out->y), s[0], s[1], s[2], width)) {
        return false;
    }
    const uint32_t next = reader_of(m, out->y);
    if (next != WEFTI_NONE && has_perm(&m->graph->nodes[next], perm, 4)) {
        out->y = m->graph->nodes[next].outputs[0];
        out->tokens_first |= 8;
    }
    return true;
}

/* Is a constant bias 0 for keys up to i + past, and does it hide the others? All of its matrices are
 * alike. */
static bool hides_later_keys(const weft_tensor_desc_t *bias, int64_t *out_past)
{
    const int64_t count = weft_tensor_elem_count(bias);
    if (bias->rank < 2 || bias->data == NULL || count < 1 ||
        (uintptr_t)bias->data % sizeof(float) != 0) {
        return false;
    }
    const float *x = bias->data;
    const int64_t rows = bias->dims[bias->rank - 2], cols = bias->dims[bias->rank - 1];
    int64_t seen = 0;
    while (seen < cols && x[seen] == 0.0f) {
        seen++;
    }
    if (seen == 0) { /* query 0 sees the mean of all values if its biases are finite */
        return false;
    }
    for (int64_t n = 0; n < count; n++) {
        const int64_t i = n / cols % rows, j = n % cols;
        if (j < i + seen ? x[n] != 0.0f : !(x[n] <= UNSEEN)) {
            return false;
        }
    }
    *out_past = seen - 1;
    return true;
}

/* The bias fits the scores; a constant one may be an order. */
static bool match_bias(matcher_t *m, match_t *out)
{
    if (out->bias == WEFTI_NONE) {
        return true;
    }
    const wefti_value_t *bias = &m->graph->values[out->bias];
    const weft_tensor_desc_t *t = &bias->type;
    if (t->dtype != WEFT_DTYPE_F32 || t->rank > 4 || m->trained[out->bias] != 0) {
        return false;
    }
    for (uint32_t d = 0; d < t->rank; d++) {
        const int64_t size = t->dims[t->rank - 1 - d];
        if (size != 1 && size != out->shape[3 - d]) {
            return false;
        }
    }
    if (bias->kind != WEFTI_VALUE_CONST || t->rank < 2 || t->dims[t->rank - 1] != out->shape[3] ||
        t->dims[t->rank - 2] != out->shape[2]) {
        return true;
    }
    if (m->causal_bias != out->bias) {
        m->causal_bias = hides_later_keys(t, &m->causal_past) ? out->bias : WEFTI_NONE;
    }
    if (m->causal_bias == out->bias) {
        out->causal = m->causal_past + 1 < out->shape[3]; /* else query 0 sees all */
        out->past = out->causal ? m->causal_past : 0;
        out->bias = WEFTI_NONE;
    }
    return true;
}

static bool match(matcher_t *m, uint32_t id, match_t *out)
{
    const wefti_node_t *node = &m->graph->nodes[id];
    *out = (match_t){.scores = id, .bias = WEFTI_NONE, .scale = 1.0};
    if (!wefti_op_same(node->def, m->softmax)) {
        return false;
    }
    const weft_tensor_desc_t *x = type_of(m, node->inputs[0]);
    const int64_t axis = wefti_node_int(node, "axis");
    if (x->rank != 4 || x->dtype != WEFT_DTYPE_F32 || (axis != -1 && axis != 3)) {
        return false;
    }
    memcpy(out->shape, x->dims, sizeof(out->shape));
    if (!match_scores(m, out) || !match_result(m, out) || type_of(m, out->v)->rank != 4 ||
        !match_query(m, out) || !match_key(m, out) || !match_bias(m, out) ||
        !match_output(m, out)) {
        return false;
    }
    const int64_t *k = type_of(m, out->k)->dims, *v = type_of(m, out->v)->dims;
    const int64_t heads = k[(out->tokens_first & 2) != 0 ? 2 : 1];
    const int64_t keys = k[(out->tokens_first & 2) != 0 ? 1 : 2];
    if (k[0] != out->shape[0] || v[0] != k[0] || v[1] != heads || keys != out->shape[3] ||
        v[2] != keys || heads < 1 || out->shape[1] % heads != 0 ||
        k[3] != type_of(m, out->q)->dims[3]) {
        return false;
    }
    take_tokens_first(m, &out->q, 1, out);
    take_tokens_first(m, &out->k, 2, out);
    take_tokens_first(m, &out->v, 4, out);
    return !m->trains ||
           (m->trained[out->q] != 0 && m->trained[out->k] != 0 && m->trained[out->v] != 0);
}

static weft_status_t replace(matcher_t *m, const match_t *found)
{
    const uint32_t last = wefti_producer(m->graph, found->y);
    const uint32_t inputs[] = {found->q, found->k, found->v, found->bias};
    const weft_attr_t attrs[] = {
        {.name = "scale", .type = WEFT_ATTR_TYPE_FLOAT, .f = (float)found->scale},
        {.name = "causal", .type = WEFT_ATTR_TYPE_INT, .i = found->causal},
        {.name = "past", .type = WEFT_ATTR_TYPE_INT, .i = found->past},
        {.name = "tokens_first", .type = WEFT_ATTR_TYPE_INT, .i = found->tokens_first},
    };
    const bool absent[] = {true, false};
    uint32_t node;
    const wefti_node_params_t params = {
        .domain = "weft",
        .op = "FlashAttention",
        .name = wefti_arena_printf(&m->arena, "%s/attention", m->graph->nodes[last].name),
        .phase = m->graph->nodes[last].phase,
        .inputs = inputs,
        .input_count = found->bias == WEFTI_NONE && !m->trains ? 3 : 4,
        .output_count = m->trains ? 2 : 1,
        .output_absent = absent,
        .attrs = attrs,
        .attr_count = sizeof(attrs) / sizeof(attrs[0])};
    WEFT_RETURN_IF_NO_MEMORY(params.name);
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(m->graph, &params, last, &node));
    /* The last node of the old ones keeps an output, so that it can be removed. */
    uint32_t old;
    WEFT_RETURN_IF_ERROR(wefti_graph_add_value(m->graph, m->graph->nodes[last].name,
                                               WEFTI_VALUE_NODE, type_of(m, found->y), &old));
    wefti_graph_take_output(m->graph, node, 0, found->y);
    wefti_graph_take_output(m->graph, last, 0, old);
    return wefti_graph_infer_node(m->graph, node);
}

/* What parameters reach. */
static weft_status_t mark_trained(matcher_t *m)
{
    const wefti_graph_t *graph = m->graph;
    m->trained = wefti_arena_array(&m->arena, graph->value_count, sizeof(*m->trained));
    WEFT_RETURN_IF_NO_MEMORY(m->trained);
    for (uint32_t v = 0; v < graph->value_count; v++) {
        m->trained[v] = graph->values[v].kind == WEFTI_VALUE_PARAM;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        bool any = false;
        for (uint32_t k = 0; k < node->input_count; k++) {
            any = any || (node->inputs[k] != WEFTI_NONE && m->trained[node->inputs[k]] != 0);
        }
        for (uint32_t k = 0; k < node->output_count && any; k++) {
            if (node->outputs[k] != WEFTI_NONE) {
                m->trained[node->outputs[k]] =
                    wefti_dtype_is_floating(graph->values[node->outputs[k]].type.dtype);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t fuse(matcher_t *m)
{
    wefti_graph_t *graph = m->graph;
    const uint32_t count = graph->order_count;
    bool any = false;
    m->softmax = weft_registry_find_op(graph->registry, "", "Softmax", 13);
    m->is_nan = weft_registry_find_op(graph->registry, "", "IsNaN", 13);
    m->equal = weft_registry_find_op(graph->registry, "", "Equal", 13);
    if (m->softmax == NULL || m->is_nan == NULL || m->equal == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_readers(graph, graph->order, count, &m->arena, &m->readers));
    WEFT_RETURN_IF_ERROR(mark_trained(m));
    for (uint32_t i = 0; i < count; i++) {
        match_t found;
        if (match(m, graph->order[i], &found)) {
            WEFT_RETURN_IF_ERROR(replace(m, &found));
            any = true;
        }
    }
    if (!any) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_sort(graph));
    return wefti_graph_prune(graph);
}

weft_status_t wefti_pass_fuse_attention(wefti_graph_t *graph, bool trains)
{
    matcher_t m = {.graph = graph, .trains = trains, .causal_bias = WEFTI_NONE};
    wefti_arena_init(&m.arena, graph->arena.allocator, 0);
    weft_status_t status = fuse(&m);
    wefti_arena_deinit(&m.arena);
    return status;
}

weft_status_t wefti_apply_fuse_attention(wefti_compiler_t *c)
{
    return wefti_graph_has_gradients(c->graph)
               ? WEFT_OK /* its backward pass reads the scores */
               : wefti_pass_fuse_attention(c->graph, !c->params.infer);
}
