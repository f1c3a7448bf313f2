/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient rules. A rule is called for one forward node of which an output has a gradient. It
 * appends backward nodes and gives each input that needs a gradient a contribution; contributions
 * of several readers are added. Parameters come before other inputs, so that communication can
 * start early.
 */
#ifndef WEFT_GRAPH_DIFFERENTIATE_H
#define WEFT_GRAPH_DIFFERENTIATE_H

#include "graph/ir.h"

typedef struct wefti_diff {
    wefti_graph_t *graph;
    uint32_t node; /* the forward node */
    uint32_t forward_value_count;
    uint32_t *grads; /* by forward value: sum of the contributions so far, or WEFTI_NONE */
    uint8_t *wanted; /* by forward value: it depends on a parameter */
} wefti_diff_t;

typedef weft_status_t (*wefti_diff_fn)(wefti_diff_t *diff);

static inline wefti_node_t *wefti_diff_node(const wefti_diff_t *diff)
{
    return &diff->graph->nodes[diff->node];
}

/* Input or output index of the forward node, WEFTI_NONE where absent. */
uint32_t wefti_diff_input(const wefti_diff_t *diff, uint32_t index);
uint32_t wefti_diff_output(const wefti_diff_t *diff, uint32_t index);
/* The gradient of output index, or WEFTI_NONE. */
uint32_t wefti_diff_output_grad(const wefti_diff_t *diff, uint32_t index);
bool wefti_diff_wants(const wefti_diff_t *diff, uint32_t index);
/* Calls rule for each input that needs a gradient, parameters first. */
weft_status_t wefti_diff_each_input(wefti_diff_t *diff,
                                    weft_status_t (*rule)(wefti_diff_t *diff, uint32_t index));

typedef struct wefti_diff_op {
    const char *domain, *op;
    const uint32_t *inputs;
    uint32_t input_count;
    const weft_attr_t *attrs;
    uint32_t attr_count;
    const bool *output_absent;
    uint32_t output_count; /* 0: 1 */
} wefti_diff_op_t;

/* Appends a backward node with one output that is not absent: returns its value. */
weft_status_t wefti_diff_emit_value(wefti_diff_t *diff, const wefti_diff_op_t *op,
                                    uint32_t *out_value);
/* grad is a contribution to the gradient of input index; it is summed to the shape of the input if
 * that was broadcast. Nothing happens if the input needs no gradient. */
weft_status_t wefti_diff_give(wefti_diff_t *diff, uint32_t index, uint32_t grad);
/* The output of a new node is the contribution; no node if the input needs no gradient. */
weft_status_t wefti_diff_give_op(wefti_diff_t *diff, uint32_t index, const wefti_diff_op_t *op);
/* Output i of a new node is the contribution to input i, for the first op->output_count inputs. */
weft_status_t wefti_diff_give_each(wefti_diff_t *diff, wefti_diff_op_t *op);

/* Reshape of value to a shape; value itself if it has that shape. */
weft_status_t wefti_diff_reshape(wefti_diff_t *diff, uint32_t value, const int64_t *dims,
                                 uint32_t rank, uint32_t *out_value);
/* A constant list, named after the forward node. */
weft_status_t wefti_diff_ints(wefti_diff_t *diff, const char *name, const int64_t *list,
                              uint32_t count, uint32_t *out_value);
/* Sum over broadcast dimensions; value itself if it has that shape. */
weft_status_t wefti_diff_sum_to(wefti_diff_t *diff, uint32_t value, const int64_t *dims,
                                uint32_t rank, uint32_t *out_value);
/* value times a number; value itself for 1. */
weft_status_t wefti_diff_scale(wefti_diff_t *diff, uint32_t value, double factor,
                               uint32_t *out_value);
/* The result of an ONNX operator on a and b; b may be WEFTI_NONE. */
weft_status_t wefti_diff_two(wefti_diff_t *diff, const char *op, uint32_t a, uint32_t b,
                             uint32_t *out_value);
/* a where condition holds, else b. */
weft_status_t wefti_diff_choose(wefti_diff_t *diff, uint32_t condition, uint32_t a, uint32_t b,
                                uint32_t *out_value);
/* A scalar 0 of the type of value. */
weft_status_t wefti_diff_zero_like(wefti_diff_t *diff, uint32_t value, uint32_t *out_value);
/* Where a and b are equal, and 1 there, 0 elsewhere. */
weft_status_t wefti_diff_equal(wefti_diff_t *diff, uint32_t a, uint32_t b, uint32_t *out_condition,
                               uint32_t *out_one);
/* Elements of a product, some of which may be 0. */
typedef struct wefti_diff_factor {
    uint32_t other;   /* the elements, 1 where they are 0 */
    uint32_t is_zero; /* 1 there, else 0 */
} wefti_diff_factor_t;
weft_status_t wefti_diff_factor(wefti_diff_t *diff, uint32_t value, wefti_diff_factor_t *out);
/* The contribution to input index, elements of a product. grad: dY times the product of all
 * elements that are not 0; zeros: how many are. */
weft_status_t wefti_diff_give_factor(wefti_diff_t *diff, uint32_t index,
                                     const wefti_diff_factor_t *factor, uint32_t grad,
                                     uint32_t zeros);
/* A constant of a floating type; all elements are number. */
weft_status_t wefti_diff_constant(wefti_graph_t *graph, const char *name,
                                  const weft_tensor_desc_t *like, double number,
                                  uint32_t *out_value);
/* WEFT_ERR_UNSUPPORTED: the forward node has no gradient rule for what. */
weft_status_t wefti_diff_unsupported(const wefti_diff_t *diff, const char *what);
/* The forward node's attributes and one more, in the graph's arena. */
weft_status_t wefti_diff_attrs_with(wefti_diff_t *diff, const weft_attr_t *more,
                                    const weft_attr_t **out_attrs, uint32_t *out_count);
/* The forward node becomes an op with output index, which is added if absent. */
weft_status_t wefti_diff_need_output(wefti_diff_t *diff, const char *domain, const char *op,
                                     uint32_t index, uint32_t *out_value);

/* The rules; differentiate.c selects one by the facts of an operator. */
weft_status_t wefti_diff_add(wefti_diff_t *diff);
weft_status_t wefti_diff_sub(wefti_diff_t *diff);
weft_status_t wefti_diff_div(wefti_diff_t *diff);
weft_status_t wefti_diff_mul(wefti_diff_t *diff);
weft_status_t wefti_diff_of_result(wefti_diff_t *diff);
weft_status_t wefti_diff_of_inputs(wefti_diff_t *diff);
weft_status_t wefti_diff_concat(wefti_diff_t *diff);
weft_status_t wefti_diff_reduce_sum(wefti_diff_t *diff);
weft_status_t wefti_diff_reduce_mean(wefti_diff_t *diff);
weft_status_t wefti_diff_batch_norm(wefti_diff_t *diff);
weft_status_t wefti_diff_gemm(wefti_diff_t *diff);
weft_status_t wefti_diff_matmul(wefti_diff_t *diff);
weft_status_t wefti_diff_conv(wefti_diff_t *diff);
weft_status_t wefti_diff_conv_transpose(wefti_diff_t *diff);
weft_status_t wefti_diff_max_pool(wefti_diff_t *diff);
weft_status_t wefti_diff_average_pool(wefti_diff_t *diff);
weft_status_t wefti_diff_global_average_pool(wefti_diff_t *diff);
weft_status_t wefti_diff_pad(wefti_diff_t *diff);
weft_status_t wefti_diff_same_elements(wefti_diff_t *diff);
weft_status_t wefti_diff_transpose(wefti_diff_t *diff);
weft_status_t wefti_diff_cross_entropy(wefti_diff_t *diff);
weft_status_t wefti_diff_dropout(wefti_diff_t *diff);
weft_status_t wefti_diff_gather(wefti_diff_t *diff);
weft_status_t wefti_diff_slice(wefti_diff_t *diff);
weft_status_t wefti_diff_split(wefti_diff_t *diff);
weft_status_t wefti_diff_where(wefti_diff_t *diff);
weft_status_t wefti_diff_expand(wefti_diff_t *diff);
weft_status_t wefti_diff_cast(wefti_diff_t *diff);
weft_status_t wefti_diff_layer_norm(wefti_diff_t *diff);
weft_status_t wefti_diff_softmax(wefti_diff_t *diff);
weft_status_t wefti_diff_power(wefti_diff_t *diff);
weft_status_t wefti_diff_negate(wefti_diff_t *diff);
weft_status_t wefti_diff_zero(wefti_diff_t *diff);
weft_status_t wefti_diff_extreme(wefti_diff_t *diff);
weft_status_t wefti_diff_total(wefti_diff_t *diff);
weft_status_t wefti_diff_average(wefti_diff_t *diff);
weft_status_t wefti_diff_slope(wefti_diff_t *diff);
weft_status_t wefti_diff_reduce_extreme(wefti_diff_t *diff);
weft_status_t wefti_diff_reduce_product(wefti_diff_t *diff);
weft_status_t wefti_diff_reduce_squares(wefti_diff_t *diff);
weft_status_t wefti_diff_norm_1(wefti_diff_t *diff);
weft_status_t wefti_diff_norm_2(wefti_diff_t *diff);
weft_status_t wefti_diff_log_sum(wefti_diff_t *diff);
weft_status_t wefti_diff_log_sum_exp(wefti_diff_t *diff);
weft_status_t wefti_diff_gather_nd(wefti_diff_t *diff);
weft_status_t wefti_diff_gather_elements(wefti_diff_t *diff);
weft_status_t wefti_diff_scatter_nd(wefti_diff_t *diff);
weft_status_t wefti_diff_scatter_elements(wefti_diff_t *diff);
weft_status_t wefti_diff_running_sum(wefti_diff_t *diff);
weft_status_t wefti_diff_tiles(wefti_diff_t *diff);
weft_status_t wefti_diff_top(wefti_diff_t *diff);
weft_status_t wefti_diff_triangle(wefti_diff_t *diff);
weft_status_t wefti_diff_transfer(wefti_diff_t *diff);
weft_status_t wefti_diff_shared(wefti_diff_t *diff);
weft_status_t wefti_diff_generic(wefti_diff_t *diff);

#endif
