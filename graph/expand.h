/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the pass expand share: adding nodes in place of one. */
#ifndef WEFT_GRAPH_EXPAND_H
#define WEFT_GRAPH_EXPAND_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Nodes are appended until one fails; then nothing happens any more. */
typedef struct expander {
    wefti_graph_t *graph;
    uint32_t node; /* that is replaced */
    uint32_t last; /* that was added */
    weft_status_t status;
    struct {
        int64_t queries, keys, first, last; /* of the keys of query 0 */
        uint32_t value;                     /* NONE: no node needed one yet */
    } causal;                               /* the last mask; layers of a model have the same */
} expander_t;

#define NONE WEFTI_NONE

static inline weft_tensor_desc_t type_of(const expander_t *e, uint32_t value)
{
    return e->status < 0 ? (weft_tensor_desc_t){0} : e->graph->values[value].type;
}

static inline uint32_t input(const expander_t *e, uint32_t index)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    return index < node->input_count ? node->inputs[index] : NONE;
}

static inline int64_t int_attr(const expander_t *e, const char *name)
{
    return wefti_node_int(&e->graph->nodes[e->node], name);
}

static inline double float_attr(const expander_t *e, const char *name, double otherwise)
{
    const weft_attr_t *attr = wefti_node_attr(&e->graph->nodes[e->node], name);
    return attr != NULL && attr->type == WEFT_ATTR_TYPE_FLOAT ? (double)attr->f : otherwise;
}

/* Output 0 of a new node; its name and phase are those of the node that is replaced. */
static inline uint32_t add_node(expander_t *e, const wefti_node_params_t *given)
{
    char name[300];
    uint32_t node;
    if (e->status < 0) {
        return 0;
    }
    wefti_node_params_t params = *given;
    snprintf(name, sizeof(name), "%.240s/%.40s", e->graph->nodes[e->node].name, params.op);
    params.name = name;
    params.phase = e->graph->nodes[e->node].phase;
    e->status = wefti_graph_insert_node(e->graph, &params, e->last, &node);
    if (e->status < 0) {
        return 0;
    }
    e->last = node;
    return e->graph->nodes[node].outputs[0];
}

/* The result of an ONNX operator. */
static inline uint32_t add(expander_t *e, const char *op, const uint32_t *inputs, uint32_t count,
                           const weft_attr_t *attr)
{
    return add_node(e, &(const wefti_node_params_t){.domain = "",
                                                    .op = op,
                                                    .inputs = inputs,
                                                    .input_count = count,
                                                    .output_count = 1,
                                                    .attrs = attr,
                                                    .attr_count = attr != NULL ? 1 : 0});
}

static inline uint32_t one(expander_t *e, const char *op, uint32_t x)
{
    return add(e, op, &x, 1, NULL);
}

static inline uint32_t two(expander_t *e, const char *op, uint32_t a, uint32_t b)
{
    return add(e, op, (const uint32_t[]){a, b}, 2, NULL);
}

static inline uint32_t choose(expander_t *e, uint32_t condition, uint32_t a, uint32_t b)
{
    return add(e, "Where", (const uint32_t[]){condition, a, b}, 3, NULL);
}

/* data: of the graph's arena, or NULL without memory. */
static inline uint32_t constant_of(expander_t *e, const weft_tensor_desc_t *type, const void *data)
{
    uint32_t value = 0;
    weft_tensor_desc_t full = *type;
    if (e->status < 0) {
        return 0;
    }
    full.data = data;
    full.layout = WEFT_LAYOUT_PLAIN;
    e->status = full.data == NULL ? WEFT_ERR_NO_MEMORY
                                  : wefti_graph_add_value(e->graph, e->graph->nodes[e->node].name,
                                                          WEFTI_VALUE_CONST, &full, &value);
    return value;
}

static inline uint32_t constant(expander_t *e, const weft_tensor_desc_t *type, const void *data,
                                size_t bytes)
{
    return e->status < 0 ? 0
                         : constant_of(e, type, wefti_arena_memdup(&e->graph->arena, data, bytes));
}

static inline uint32_t ints(expander_t *e, const int64_t *list, uint32_t count)
{
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {count}};
    return constant(e, &type, list, count * sizeof(*list));
}

/* A scalar of type f32, or of the type of like. */
static inline uint32_t number(expander_t *e, double value, uint32_t like)
{
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32};
    const float f32 = (float)value;
    uint32_t scalar = constant(e, &type, &f32, sizeof(f32));
    return type_of(e, like).dtype == WEFT_DTYPE_F32 ? scalar : two(e, "CastLike", scalar, like);
}

static inline uint32_t reshape(expander_t *e, uint32_t x, const int64_t *dims, uint32_t rank)
{
    return two(e, "Reshape", x, ints(e, dims, rank));
}

static inline uint32_t transpose(expander_t *e, uint32_t x, const int64_t *perm, uint32_t rank)
{
    weft_attr_t attr = {.name = "perm", .type = WEFT_ATTR_TYPE_INTS, .ints = perm, .count = rank};
    return add(e, "Transpose", &x, 1, &attr);
}

static inline uint32_t concat(expander_t *e, uint32_t a, uint32_t b, int64_t axis)
{
    weft_attr_t attr = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = axis};
    return add(e, "Concat", (const uint32_t[]){a, b}, 2, &attr);
}

/* Elements first, first + step .. below end of the last dimension. */
static inline uint32_t slice(expander_t *e, uint32_t x, int64_t first, int64_t end, int64_t step)
{
    const int64_t axis = -1;
    return add(e, "Slice",
               (const uint32_t[]){x, ints(e, &first, 1), ints(e, &end, 1), ints(e, &axis, 1),
                                  ints(e, &step, 1)},
               5, NULL);
}

static inline uint32_t reduce(expander_t *e, const char *op, uint32_t x, const int64_t *axes,
                              uint32_t count)
{
    return two(e, op, x, ints(e, axes, count));
}

/* Output index of the node is output of a new node from now on. */
static inline void wefti_expand_take(expander_t *e, uint32_t index, uint32_t node, uint32_t output)
{
    wefti_graph_t *graph = e->graph;
    uint32_t mine = graph->nodes[e->node].outputs[index];
    uint32_t theirs = graph->nodes[node].outputs[output];
    if (mine != NONE && theirs != NONE) {
        wefti_graph_take_output(graph, node, output, mine);
        wefti_graph_take_output(graph, e->node, index, theirs);
    }
}

/* Output index of the node is value from now on; expand gives output 0 what the rule returns. */
static inline void wefti_expand_give(expander_t *e, uint32_t index, uint32_t value)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    if (e->status < 0 || value == NONE || index >= node->output_count ||
        node->outputs[index] == NONE) {
        return; /* before a node is added for it */
    }
    value = one(e, "Identity", value); /* it has further readers */
    if (e->status >= 0) {
        wefti_expand_take(e, index, e->graph->values[value].producer, 0);
    }
}

typedef uint32_t (*wefti_expand_fn)(expander_t *e);
/* expand_gradients.c: operators of ONNX Runtime's training graphs; NULL: another operator. */
wefti_expand_fn wefti_expand_gradient(weft_expansion_t expansion);
/* expand_attention.c: Attention, GroupQueryAttention, RotaryEmbedding; NULL: another operator. */
wefti_expand_fn wefti_expand_attention(weft_expansion_t expansion);
/* expand_contrib.c: other operators of com.microsoft, RMSNormalization; NULL: another operator. */
wefti_expand_fn wefti_expand_contrib(weft_expansion_t expansion);
/* expand_recurrent.c: LSTM, GRU, RNN; NULL: another operator. */
wefti_expand_fn wefti_expand_recurrent(weft_expansion_t expansion);
/* expand_volume.c: windows over three dimensions; NONE: the node stays. */
uint32_t wefti_expand_volume(expander_t *e);

#endif
