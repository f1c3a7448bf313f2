/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM, GRU and RNN, which graph/expand_recurrent.c replaces by the operators of their steps. */
#include <inttypes.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Y [T, D, B, H]; the states [D, B, H]. With layout 1 the batch comes first. */
static weft_status_t infer_recurrent(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    const weft_tensor_desc_t *x = &node->inputs[0], *w = &node->inputs[1], *r = &node->inputs[2];
    const int64_t layout = weft_node_attr_int(node, "layout", 0);
    const char *direction = weft_node_attr_string(node, "direction", "forward");
    const int64_t directions = direction[0] == 'b' ? 2 : 1;
    if (x->rank != 3 || w->rank != 3 || r->rank != 3) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "X, W and R have %u, %u and %u dimensions: expected 3", x->rank, w->rank,
                           r->rank);
    }
    const int64_t hidden = weft_node_attr_int(node, "hidden_size", r->dims[2]);
    int64_t merged;
    if (!wefti_dim_merge(r->dims[2], hidden, &merged) ||
        !wefti_dim_merge(r->dims[0], directions, &merged) ||
        !wefti_dim_merge(w->dims[0], directions, &merged) ||
        !wefti_dim_merge(w->dims[1], r->dims[1], &merged) ||
        !wefti_dim_merge(w->dims[2], x->dims[2], &merged) ||
        (hidden >= 0 && r->dims[1] >= 0 && (hidden == 0 || r->dims[1] % hidden != 0))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "W [%" PRId64 ", %" PRId64 ", %" PRId64 "] and R [%" PRId64 ", %" PRId64
                           ", %" PRId64 "] do not match %" PRId64 " directions, %" PRId64
                           " inputs and hidden_size %" PRId64,
                           w->dims[0], w->dims[1], w->dims[2], r->dims[0], r->dims[1], r->dims[2],
                           directions, x->dims[2], hidden);
    }
    const int64_t steps = x->dims[layout != 0], batch = x->dims[layout == 0];
    const int64_t y[] = {steps, directions, batch, hidden}, state[] = {directions, batch, hidden};
    const int64_t y1[] = {batch, steps, directions, hidden}, state1[] = {batch, directions, hidden};
    wefti_infer_set(node, 0, x->dtype, 4, layout != 0 ? y1 : y);
    wefti_infer_set(node, 1, x->dtype, 3, layout != 0 ? state1 : state);
    wefti_infer_set(node, 2, x->dtype, 3, layout != 0 ? state1 : state);
    return WEFT_OK;
}

/* The products of all steps. */
static void cost_recurrent(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_tensor_desc_t *w = &node->inputs[1], *x = &node->inputs[0];
    const double samples = x->rank == 3 ? wefti_cost_elems(x) / (double)x->dims[2] : 1.0;
    *out_flops = 2.0 * samples * (wefti_cost_elems(w) + wefti_cost_elems(&node->inputs[2]));
    *out_bytes = wefti_cost_bytes(node);
}

#define INT(key, text)                                                                             \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_INT, .doc = text                                       \
    }
#define COMMON                                                                                     \
    {.name = "activation_alpha", .type = WEFT_ATTR_TYPE_FLOATS, .doc = "alpha of activations"},    \
        {.name = "activation_beta", .type = WEFT_ATTR_TYPE_FLOATS, .doc = "beta of activations"},  \
        {.name = "activations",                                                                    \
         .type = WEFT_ATTR_TYPE_STRINGS,                                                           \
         .default_s = "Sigmoid, Tanh",                                                             \
         .doc = "of each direction"},                                                              \
        {.name = "clip", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "bound of what is activated"},       \
        {.name = "direction",                                                                      \
         .type = WEFT_ATTR_TYPE_STRING,                                                            \
         .default_s = "forward",                                                                   \
         .doc = "forward, reverse or bidirectional"},                                              \
        INT("hidden_size", "elements of a state"), INT("layout", "1: the batch comes first")
static const weft_attr_def_t lstm_attrs[] = {COMMON, INT("input_forget", "1: f is 1 - i")};
static const weft_attr_def_t gru_attrs[] = {
    COMMON, INT("linear_before_reset", "1: the reset gate applies to the product")};
static const weft_attr_def_t rnn_attrs[] = {COMMON};

#define ROW(op, version, most, outputs, list, kind, text)                                          \
    {                                                                                              \
        .domain = "", .name = op, .since_version = version, .inputs_min = 3, .inputs_max = most,   \
        .outputs_min = 1, .outputs_max = outputs, .dtypes = WEFTI_BIT_FLOATS,                      \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = WEFTI_COUNT(list),           \
        .infer = infer_recurrent, .cost = cost_recurrent, .doc = text,                             \
        WEFTI_FACTS(.expansion = WEFT_EXPANSION_##kind)                                            \
    }

static const weft_op_def_t defs[] = {
    ROW("GRU", 7, 6, 2, gru_attrs, GRU, "gated recurrent units over the steps of sequences"),
    ROW("LSTM", 7, 8, 3, lstm_attrs, LSTM, "long short-term memory over the steps of sequences"),
    ROW("RNN", 7, 6, 2, rnn_attrs, RNN, "h = tanh(W x + R h + B) over the steps of sequences"),
};

wefti_op_family_t wefti_op_defs_recurrent(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
