/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of parameters, the learning rate, and the norm that gradients are clipped by. */
#include "devices/opencl/kernels.h"

#include <string.h>

#define PARTS 64u /* sums of squares side by side */
#define LIMBS 24u /* of a sum */

/* tensors of the parameter's shape, then scalars, then maybe a scale of the gradient */
static weft_status_t describe_update(const weft_node_desc_t *desc, uint32_t tensors,
                                     uint32_t scalars, cl_node_t *node)
{
    *node = cl_start(tensors + scalars + 1, tensors - 1);
    TRY(cl_need_f32(desc, tensors + scalars, tensors - 1, 0));
    for (uint32_t i = 0; i < tensors + scalars; i++) {
        if (cl_elems(&desc->inputs[i]) != (i < tensors ? cl_elems(&desc->inputs[0]) : 1)) {
            return cl_refuse(desc, "shapes do not fit");
        }
    }
    cl_add_number(node, cl_has(desc->inputs, desc->input_count, tensors + scalars));
    cl_add_factor(node, (float)cl_attr_int(desc, "divisor", 1));
    cl_add_factor(node, cl_attr_float(desc, "weight_decay", 0.0f));
    return WEFT_OK;
}

PREPARE(cl_prepare_sgd)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 2, 1, &node));
    cl_add_step(&node, cl_each("sgd", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_momentum)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 3, 1, &node));
    cl_add_number(&node, cl_attr_int(desc, "nesterov", 0) != 0);
    cl_add_factor(&node, cl_attr_float(desc, "momentum", 0.9f));
    cl_add_step(&node, cl_each("momentum", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_adagrad)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 3, 2, &node));
    cl_add_number(&node, cl_attr_int(desc, "first", 0));
    cl_add_factor(&node, cl_attr_float(desc, "lr_decay", 0.0f));
    cl_add_factor(&node, cl_attr_float(desc, "epsilon", 1e-10f));
    cl_add_step(&node, cl_each("adagrad", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_adam)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 4, 2, &node));
    cl_add_number(&node, cl_attr_int(desc, "first", 1));
    cl_add_number(&node, cl_attr_int(desc, "scaled_epsilon", 0) != 0);
    cl_add_number(&node, cl_attr_int(desc, "decay_last", 0) != 0);
    cl_add_number(&node, strcmp(desc->op, "AdamW") == 0);
    cl_add_factor(&node, cl_attr_float(desc, "beta1", 0.9f));
    cl_add_factor(&node, cl_attr_float(desc, "beta2", 0.999f));
    cl_add_factor(&node, cl_attr_float(desc, "epsilon", 1e-8f));
    cl_add_step(&node, cl_each("adam", cl_elems(&desc->inputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* The rate is NaN while the scalar lr_steps, which a schedule may need, is not set. */
PREPARE(cl_prepare_learning_rate)
{
    static const char *const names[] = {"constant", "linear", "cosine", "step"};
    const weft_attr_t *attr = cl_attr(desc, "schedule");
    const char *name = attr != NULL && attr->s != NULL ? attr->s : names[0];
    int64_t schedule = 0, steps = cl_attr_int(desc, "steps", 0);
    int64_t warmup = cl_attr_int(desc, "warmup", 0);
    cl_node_t node = cl_start(3, 1);
    (void)env;
    while (schedule < 4 && strcmp(names[schedule], name) != 0) {
        schedule++;
    }
    uint32_t inputs = schedule > 0 && steps == 0 ? 3 : 2;
    TRY(cl_need_f32(desc, inputs, 1, 0));
    for (uint32_t i = 0; i < inputs; i++) {
        if (cl_elems(&desc->inputs[i]) != 1) {
            return cl_refuse(desc, "shapes do not fit");
        }
    }
    if (schedule == 4 || steps < 0 || steps > UINT32_MAX || warmup < 0 || warmup > UINT32_MAX ||
        cl_elems(&desc->outputs[0]) != 1) {
        return cl_refuse(desc, "an attribute is out of range");
    }
    cl_add_number(&node, schedule);
    cl_add_number(&node, steps);
    cl_add_number(&node, warmup);
    cl_add_factor(&node, cl_attr_float(desc, "min_lr", 0.0f));
    cl_add_factor(&node, cl_attr_float(desc, "gamma", 0.1f));
    cl_add_step(&node, cl_each("learning_rate", 1));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

static bool is_sum(const weft_tensor_desc_t *tensor)
{
    return tensor->dtype == WEFT_DTYPE_I64 && cl_elems(tensor) == LIMBS;
}

/* A sum so far, or none, then tensors. */
PREPARE(cl_prepare_square_sum)
{
    uint32_t inputs = desc->input_count;
    cl_node_t node = cl_start(inputs, 1);
    bool has_sum = cl_has(desc->inputs, inputs, 0);
    (void)env;
    TRY(cl_need_plain(desc));
    if (!cl_has(desc->outputs, desc->output_count, 0) || !is_sum(&desc->outputs[0]) ||
        (has_sum && !is_sum(&desc->inputs[0])) || inputs < 2) {
        return cl_refuse(desc, "expected a sum, and tensors");
    }
    for (uint32_t i = 1; i < inputs; i++) {
        if (desc->inputs[i].dtype != WEFT_DTYPE_F32 || cl_elems(&desc->inputs[i]) > INT32_MAX) {
            return cl_refuse(desc, "tensors must be f32 and not too large");
        }
    }
    for (uint32_t i = 1; i < inputs; i++) { /* the first one begins the sums */
        cl_step_t step = cl_each("square_add", PARTS);
        step.selected = 2;
        step.chosen[0] = i;
        step.chosen[1] = inputs + 1;
        step.table_at = node.table_count;
        cl_add_to_table(&node, cl_elems(&desc->inputs[i]));
        cl_add_to_table(&node, i == 1);
        cl_add_step(&node, step);
    }
    cl_step_t total = cl_each("square_total", 1);
    total.selected = 3;
    total.chosen[0] = 0;
    total.chosen[1] = inputs + 1;
    total.chosen[2] = inputs;
    total.table_at = node.table_count;
    cl_add_to_table(&node, has_sum);
    cl_add_to_table(&node, PARTS);
    cl_add_step(&node, total);
    node.scratch_bytes = PARTS * LIMBS * sizeof(int64_t);
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_clip_scale)
{
    cl_node_t node = cl_start(1, 2);
    bool has_norm = cl_has(desc->outputs, desc->output_count, 1);
    float most = cl_attr_float(desc, "max_norm", 0.0f);
    int64_t divisor = cl_attr_int(desc, "divisor", 1);
    (void)env;
    TRY(cl_need_f32(desc, 1, has_norm ? 2 : 1, 1u));
    if (!is_sum(&desc->inputs[0]) || !(most > 0.0f) || divisor < 1 ||
        cl_elems(&desc->outputs[0]) != 1 || (has_norm && cl_elems(&desc->outputs[1]) != 1)) {
        return cl_refuse(desc, "shapes do not fit, or an attribute is out of range");
    }
    cl_add_number(&node, divisor);
    cl_add_number(&node, has_norm);
    cl_add_factor(&node, most);
    cl_add_step(&node, cl_each("clip_scale", 1));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}
