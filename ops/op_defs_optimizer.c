/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step: parameters and state are updated in place. */
#include <string.h>

#include "ops/exact_sum.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* The gradient has the parameter's shape, and its type or bf16, in which it may have travelled. */
static weft_status_t match_gradient(const weft_node_desc_t *node)
{
    weft_tensor_desc_t both[2] = {node->inputs[0], node->inputs[1]};
    const weft_node_desc_t pair = {.input_count = 2, .inputs = both};
    if (both[1].dtype == WEFT_DTYPE_BF16) {
        both[1].dtype = both[0].dtype;
    }
    return wefti_infer_match(&pair, 0, 1);
}

/* tensors: P, G and states of one shape; then scalars of one f32 each, the last may be absent. */
static weft_status_t infer_update(weft_node_desc_t *node, uint32_t tensors, uint32_t scalars)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, tensors + scalars));
    WEFT_RETURN_IF_ERROR(match_gradient(node));
    for (uint32_t i = 2; i < tensors; i++) {
        WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, i));
    }
    for (uint32_t i = tensors; i < node->input_count; i++) {
        const weft_tensor_desc_t *s = wefti_infer_input(node, i);
        int64_t count = s == NULL ? 1 : weft_tensor_elem_count(s);
        if (s != NULL && (s->dtype != WEFT_DTYPE_F32 || (count >= 0 && count != 1))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input %u: expected one element of type f32", i);
        }
    }
    if (weft_node_attr_int(node, "divisor", 1) < 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute divisor must be at least 1");
    }
    wefti_infer_set_like(node, 0, &node->inputs[0]);
    for (uint32_t i = 2; i < tensors; i++) {
        wefti_infer_set_like(node, i - 1, &node->inputs[i]);
    }
    return WEFT_OK;
}

static weft_status_t infer_sgd(weft_node_desc_t *node)
{
    return infer_update(node, 2, 1);
}

static weft_status_t infer_moving_average(weft_node_desc_t *node)
{
    return infer_update(node, 2, 0);
}

static weft_status_t infer_momentum(weft_node_desc_t *node)
{
    return infer_update(node, 3, 1);
}

static weft_status_t infer_adagrad(weft_node_desc_t *node)
{
    return infer_update(node, 3, 2);
}

static weft_status_t infer_adam(weft_node_desc_t *node)
{
    return infer_update(node, 4, 2);
}

/* Scalars that only an update of a shard has: what LambSquares added up, and which shard it is. */
static weft_status_t infer_lamb(weft_node_desc_t *node)
{
    weft_node_desc_t whole = *node;
    whole.input_count = node->input_count < 7 ? node->input_count : 7;
    WEFT_RETURN_IF_ERROR(infer_update(&whole, 4, 2));
    for (uint32_t i = 7; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = wefti_infer_input(node, i);
        if (x == NULL || x->dtype != WEFT_DTYPE_I64 || (i == 8 && weft_tensor_elem_count(x) != 1)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u: expected %s of type i64", i,
                               i == 8 ? "one element" : "squares");
        }
    }
    return WEFT_OK;
}

/* S, shard, step, grad_scale; then P, G, M and V, each as the same number of pieces. */
static weft_status_t infer_lamb_squares(weft_node_desc_t *node)
{
    int64_t tensors = weft_node_attr_int(node, "tensors", 1);
    int64_t dims[2] = {tensors, 2 * (int64_t)WEFTI_SUM_LIMBS};
    uint32_t pieces = node->input_count < 4 ? 0 : (node->input_count - 4) / 4;
    if (pieces == 0 || node->input_count != 4 + 4 * pieces || tensors < 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "expected P, G, M and V in equal pieces, and at least 1 tensor: %u "
                           "inputs, attribute tensors %lld",
                           node->input_count, (long long)tensors);
    }
    for (uint32_t i = 4; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = wefti_infer_input(node, i);
        if (x == NULL || (x->dtype != WEFT_DTYPE_F32 &&
                          (x->dtype != WEFT_DTYPE_BF16 || (i - 4) / pieces != 1))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u: expected type f32", i);
        }
    }
    wefti_infer_set(node, 0, WEFT_DTYPE_I64, 2, dims);
    return WEFT_OK;
}

/* As the update, of what both read. */
static void cost_lamb_squares(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 0;
    for (uint32_t i = 4; i < node->input_count; i++) {
        *out_flops += 4.0 * wefti_cost_elems(&node->inputs[i]);
    }
    *out_bytes = wefti_cost_bytes(node);
}

static void cost_update(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    /* About four operations per tensor read; divisions and roots of Adam count as several. */
    *out_flops = 4.0 * node->input_count * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

#define DECAY                                                                                      \
    {                                                                                              \
        .name = "weight_decay", .type = WEFT_ATTR_TYPE_FLOAT,                                      \
        .doc = "adds weight_decay P to the gradient"                                               \
    }
#define DIVISOR                                                                                    \
    {                                                                                              \
        .name = "divisor", .type = WEFT_ATTR_TYPE_INT, .default_i = 1,                             \
        .doc = "G is divided by it first: how many gradients it is the sum of"                     \
    }
static const weft_attr_def_t sgd_attrs[] = {DECAY, DIVISOR};
static const weft_attr_def_t momentum_attrs[] = {
    {.name = "momentum",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.9f,
     .doc = "share of M that stays"},
    {.name = "nesterov",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "1: P' = P - lr (G + weight_decay P + momentum M')"},
    DECAY,
    DIVISOR,
};
static const weft_attr_def_t adagrad_attrs[] = {
    {.name = "lr_decay", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "lr is divided by 1 + lr_decay T"},
    {.name = "epsilon",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 1e-10f,
     .doc = "added to the root"},
    {.name = "first", .type = WEFT_ATTR_TYPE_INT, .doc = "T, the count of steps, in step 1"},
    DECAY,
    DIVISOR,
};
static const weft_attr_def_t average_attrs[] = {
    {.name = "momentum",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.9f,
     .doc = "share of P that stays"},
    DIVISOR,
};
#define ADAM                                                                                       \
    {.name = "beta1",                                                                              \
     .type = WEFT_ATTR_TYPE_FLOAT,                                                                 \
     .default_f = 0.9f,                                                                            \
     .doc = "share of M that stays"},                                                              \
        {.name = "beta2",                                                                          \
         .type = WEFT_ATTR_TYPE_FLOAT,                                                             \
         .default_f = 0.999f,                                                                      \
         .doc = "share of V that stays"},                                                          \
    {                                                                                              \
        .name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1e-8f,                       \
        .doc = "added to the root"                                                                 \
    }
#define SCALED_EPSILON                                                                             \
    {                                                                                              \
        .name = "scaled_epsilon", .type = WEFT_ATTR_TYPE_INT,                                      \
        .doc = "1: epsilon is added before the root is corrected, as in ONNX"                      \
    }
static const weft_attr_def_t adam_attrs[] = {
    ADAM,
    SCALED_EPSILON,
    {.name = "first",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "count of steps in step 1; 0 as in ONNX: step 1 is not corrected"},
    DECAY,
    DIVISOR,
};
static const weft_attr_def_t adamw_attrs[] = {
    ADAM,
    {.name = "weight_decay",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .doc = "lr weight_decay P is taken from P"},
    {.name = "decay_last",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "1: it is taken from P', as transformers.AdamW does"},
    SCALED_EPSILON,
    DIVISOR,
};

#define LAMB                                                                                       \
    ADAM,                                                                                          \
        {.name = "weight_decay",                                                                   \
         .type = WEFT_ATTR_TYPE_FLOAT,                                                             \
         .doc = "adds weight_decay P to the direction"},                                           \
        {.name = "begins",                                                                         \
         .type = WEFT_ATTR_TYPE_INTS,                                                              \
         .doc = "of a shard: where each tensor begins in the range, in elements"},                 \
    {                                                                                              \
        .name = "at", .type = WEFT_ATTR_TYPE_INT,                                                  \
        .doc = "of a shard: the row of S of the range's first tensor"                              \
    }
static const weft_attr_def_t lamb_attrs[] = {
    LAMB,
    {.name = "adapt",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "0: |P| / |U| counts as 1"},
    DIVISOR,
};
static const weft_attr_def_t lamb_squares_attrs[] = {
    LAMB,
    {.name = "tensors", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "rows of S"},
    DIVISOR,
};

/* All of them take one more, optional input: grad_scale, one f32 that G / divisor is multiplied
 * by. */
#define UPDATE(op, in, out, places, list, rule, facts, text)                                       \
    {                                                                                              \
        .domain = "weft", .name = op, .since_version = 1, .inputs_min = in, .inputs_max = in + 1,  \
        .outputs_min = out, .outputs_max = out, .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),          \
        .effects = WEFT_EFFECT_UPDATES, .in_place = places, .attrs = list,                         \
        .attr_count = WEFTI_COUNT(list), .infer = rule, .cost = cost_update, .doc = text,          \
        WEFTI_FACTS(.flags = facts, .cost_curve = WEFT_COST_CURVE_UPDATE)                          \
    }
#define PLACES(...)                                                                                \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static weft_status_t infer_learning_rate(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    for (uint32_t i = 0; i < node->input_count; i++) {
        const weft_tensor_desc_t *s = wefti_infer_input(node, i);
        if (s != NULL && s->dtype != WEFT_DTYPE_F32) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u: expected type f32", i);
        }
    }
    wefti_infer_set(node, 0, WEFT_DTYPE_F32, 0, NULL);
    return WEFT_OK;
}

static const weft_attr_def_t learning_rate_attrs[] = {
    {.name = "schedule",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "constant",
     .doc = "constant, linear, cosine or step"},
    {.name = "warmup",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "steps in which the rate rises linearly to lr"},
    {.name = "steps",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "linear, cosine: of the schedule with its warm-up; step: from drop to drop; 0: input "
            "steps"},
    {.name = "min_lr", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "lowest rate after the warm-up"},
    {.name = "gamma",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 0.1f,
     .doc = "step: factor of each drop"},
};

static const weft_op_def_t defs[] = {
    {.domain = "weft",
     .name = "LearningRate",
     .since_version = 1,
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = learning_rate_attrs,
     .attr_count = WEFTI_COUNT(learning_rate_attrs),
     .infer = infer_learning_rate,
     .cost = wefti_cost_elementwise,
     .doc = "lr, step, steps?: the learning rate of step 1 and on"},
    UPDATE("SGD", 3, 1, PLACES(0, -1, -1, -1), sgd_attrs, infer_sgd, WEFT_FACT_ELEMENTWISE,
           "G = G / divisor * grad_scale; P' = P - lr (G + weight_decay P)"),
    UPDATE("Momentum", 4, 2, PLACES(0, 2, -1, -1), momentum_attrs, infer_momentum,
           WEFT_FACT_ELEMENTWISE, "M' = momentum M + G + weight_decay P; P' = P - lr M'"),
    UPDATE("MovingAverage", 2, 1, PLACES(0, -1, -1, -1), average_attrs, infer_moving_average,
           WEFT_FACT_ELEMENTWISE,
           "P' = momentum P + (1 - momentum) G / divisor, of running statistics"),
    UPDATE("Adagrad", 5, 2, PLACES(0, 2, -1, -1), adagrad_attrs, infer_adagrad,
           WEFT_FACT_ELEMENTWISE,
           "H' = H + G G, with weight decay in G; P' = P - lr / (1 + lr_decay T) G / (sqrt(H') + "
           "epsilon)"),
    UPDATE("Adam", 6, 3, PLACES(0, 2, 3, -1), adam_attrs, infer_adam, WEFT_FACT_ELEMENTWISE,
           "Adam with bias correction, weight decay added to the gradient"),
    UPDATE("AdamW", 6, 3, PLACES(0, 2, 3, -1), adamw_attrs, infer_adam, WEFT_FACT_ELEMENTWISE,
           "Adam with bias correction of P - lr weight_decay P"),
    {.domain = "weft",
     .name = "Lamb",
     .since_version = 1,
     .inputs_min = 6,
     .inputs_max = 9,
     .outputs_min = 3,
     .outputs_max = 3,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
     .effects = WEFT_EFFECT_UPDATES,
     .in_place = PLACES(0, 2, 3, -1),
     .attrs = lamb_attrs,
     .attr_count = WEFTI_COUNT(lamb_attrs),
     .infer = infer_lamb,
     .cost = cost_update,
     .doc = "U = Adam's direction with bias correction + weight_decay P; P' = P - lr |P| / |U| U, "
            "where a norm of 0 counts as |P| / |U| = 1; of a shard, the norms are those of S",
     WEFTI_FACTS(.cost_curve = WEFT_COST_CURVE_UPDATE)},
    {.domain = "weft",
     .name = "LambSquares",
     .since_version = 1,
     .inputs_min = 0, /* the first and the fourth may be absent */
     .inputs_max = WEFT_VARIADIC,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_I64),
     .in_place = PLACES(0, -1, -1, -1),
     .attrs = lamb_squares_attrs,
     .attr_count = WEFTI_COUNT(lamb_squares_attrs),
     .infer = infer_lamb_squares,
     .cost = cost_lamb_squares,
     .doc = "S (optional), shard, step, grad_scale (optional), P, G, M, V: S plus the squares of P "
            "and of Lamb's U of this rank's shard, a row per tensor with two exact sums (24 i64)"},
};

wefti_op_family_t wefti_op_defs_optimizer(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
