/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that add up rows: Softmax, LayerNormalization, sums over dimensions, and gradients. */
#include "devices/opencl/kernels.h"

#include <string.h>

/* Rows of the last operand that is like input 0, along an axis. */
static weft_status_t prepare_softmax(const weft_node_desc_t *desc, uint32_t inputs,
                                     const char *function, void **out_state,
                                     size_t *out_scratch_bytes)
{
    cl_node_t node = cl_start(inputs, 1);
    bool old = desc->version < 13 && desc->domain[0] == '\0';
    int64_t outer = 1, length = 1, inner = 1;
    uint32_t axis = 0;
    TRY(cl_need_f32(desc, inputs, 1, 0));
    const weft_tensor_desc_t *x = &desc->inputs[0];
    for (uint32_t i = 0; i < inputs; i++) {
        if (!cl_same_shape(&desc->inputs[i], &desc->outputs[0])) {
            return cl_refuse(desc, "shapes differ");
        }
    }
    if (x->rank > 0) {
        TRY(cl_attr_axis(desc, old ? 1 : -1, x->rank, &axis));
    }
    for (uint32_t d = 0; d < x->rank; d++) { /* the old form has rows of all further dimensions */
        *(d < axis ? &outer : d == axis || old ? &length : &inner) *= x->dims[d];
    }
    cl_add_number(&node, length);
    cl_add_number(&node, inner);
    cl_add_number(&node, strncmp(desc->op, "Log", 3) == 0);
    cl_add_step(&node, cl_each(function, length > 0 ? outer * inner : 0));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_softmax)
{
    (void)env;
    return prepare_softmax(desc, 1, "softmax", out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_softmax_grad)
{
    (void)env;
    return prepare_softmax(desc, 2, "softmax_grad", out_state, out_scratch_bytes);
}

/* X at input x, then the scale; the other operands have count elements or are absent. */
static weft_status_t describe_norm(const weft_node_desc_t *desc, uint32_t x, int64_t *out_rows,
                                   int64_t *out_length)
{
    uint32_t axis;
    TRY(cl_need_f32(desc, x + 2, 0, 0));
    TRY(cl_need_plain(desc));
    TRY(cl_attr_axis(desc, -1, desc->inputs[x].rank, &axis));
    *out_rows = *out_length = 1;
    for (uint32_t d = 0; d < desc->inputs[x].rank; d++) {
        *(d < axis ? out_rows : out_length) *= desc->inputs[x].dims[d];
    }
    return cl_attr_int(desc, "stash_type", 1) == 1 && *out_length > 0
               ? WEFT_OK
               : cl_refuse(desc, "expected rows, and stash_type 1");
}

/* counts: elements of inputs, then of outputs. */
static weft_status_t check_counts(const weft_node_desc_t *desc, const int64_t *counts,
                                  uint32_t inputs, uint32_t outputs)
{
    for (uint32_t i = 0; i < inputs + outputs; i++) {
        bool in = i < inputs;
        const weft_tensor_desc_t *tensors = in ? desc->inputs : desc->outputs;
        uint32_t at = in ? i : i - inputs;
        if (cl_has(tensors, in ? desc->input_count : desc->output_count, at) &&
            (tensors[at].dtype != WEFT_DTYPE_F32 || cl_elems(&tensors[at]) != counts[i])) {
            return cl_refuse(desc, "shapes do not fit");
        }
    }
    return WEFT_OK;
}

PREPARE(cl_prepare_layer_norm)
{
    cl_node_t node = cl_start(3, 3);
    int64_t rows, length;
    (void)env;
    TRY(describe_norm(desc, 0, &rows, &length));
    TRY(cl_need_f32(desc, 2, 1, 0));
    const int64_t counts[] = {rows * length, length, length, rows * length, rows, rows};
    TRY(check_counts(desc, counts, 3, 3));
    cl_add_number(&node, length);
    cl_add_number(&node, cl_has(desc->inputs, desc->input_count, 2));
    cl_add_number(&node, cl_has(desc->outputs, desc->output_count, 1));
    cl_add_number(&node, cl_has(desc->outputs, desc->output_count, 2));
    cl_add_factor(&node, cl_attr_float(desc, "epsilon", 1e-5f));
    cl_add_step(&node, cl_each("layer_norm", rows));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_layer_norm_grad)
{
    cl_node_t node = cl_start(5, 3);
    int64_t rows, length;
    bool has_dx = cl_has(desc->outputs, desc->output_count, 0);
    bool has_dscale = cl_has(desc->outputs, desc->output_count, 1);
    bool has_dbias = cl_has(desc->outputs, desc->output_count, 2);
    (void)env;
    TRY(describe_norm(desc, 1, &rows, &length));
    TRY(cl_need_f32(desc, 5, 0, 0));
    const int64_t all = rows * length;
    const int64_t counts[] = {all, all, length, rows, rows, all, length, length};
    TRY(check_counts(desc, counts, 5, 3));
    cl_add_number(&node, length);
    cl_add_number(&node, rows);
    cl_add_number(&node, has_dscale);
    cl_add_number(&node, has_dbias);
    cl_add_step(&node, cl_each("layer_norm_columns", has_dscale || has_dbias ? length : 0));
    cl_add_step(&node, cl_each("layer_norm_rows", has_dx ? rows : 0));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* Y keeps the dimensions of X with a bit in kept. */
static weft_status_t prepare_sum(const weft_node_desc_t *desc, uint32_t kept, bool mean,
                                 void **out_state, size_t *out_scratch_bytes)
{
    const weft_tensor_desc_t *x = &desc->inputs[0];
    cl_node_t node = cl_start(1, 1);
    cl_nest_t nest = cl_nest();
    int64_t strides[DIMS], lists[4][DIMS] = {{0}}, reduced = 1; /* sizes, strides: kept, summed */
    uint32_t counts[2] = {0, 0};
    cl_strides(x, strides);
    for (uint32_t d = 0; d < x->rank; d++) {
        bool stays = (kept >> d & 1) != 0;
        cl_nest_add(&nest, x->dims[d], strides[d], stays ? strides[d] : 0); /* b: not 0 if kept */
        reduced *= stays ? 1 : x->dims[d];
    }
    uint32_t last = nest.rank - 1;
    bool rows = nest.b[last] == 0 && nest.dims[last] != 1;
    for (uint32_t i = 0; i < nest.rank - rows; i++) {
        uint32_t summed = nest.b[i] == 0;
        lists[2 * summed][counts[summed]] = nest.dims[i];
        lists[2 * summed + 1][counts[summed]++] = nest.a[i];
    }
    if (cl_elems(x) < 1 || cl_elems(x) > INT32_MAX ||
        cl_elems(x) != reduced * cl_elems(&desc->outputs[0])) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_add_to_table(&node, counts[0]);
    cl_add_to_table(&node, counts[1]);
    cl_add_to_table(&node, rows ? nest.dims[last] : 0);
    for (uint32_t i = 0; i < 4 * DIMS; i++) {
        cl_add_to_table(&node, lists[i / DIMS][i % DIMS]);
    }
    cl_add_factor(&node, mean ? (float)reduced : 1.0f);
    cl_add_step(&node, cl_each("sum_dims", cl_elems(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_sum_to)
{
    uint32_t kept = 0;
    (void)env;
    TRY(cl_need_f32(desc, 1, 1, 0));
    const weft_tensor_desc_t *x = &desc->inputs[0], *y = &desc->outputs[0];
    if (y->rank > x->rank) {
        return cl_refuse(desc, "shapes do not fit");
    }
    for (uint32_t d = x->rank - y->rank, i = 0; i < y->rank; d++, i++) {
        if (y->dims[i] != 1 && y->dims[i] != x->dims[d]) {
            return cl_refuse(desc, "shapes do not fit");
        }
        kept |= y->dims[i] == x->dims[d] ? 1u << d : 0;
    }
    return prepare_sum(desc, kept, false, out_state, out_scratch_bytes);
}

/* ReduceSum and ReduceMean; axes are an attribute, or constants of input 1. */
PREPARE(cl_prepare_reduce)
{
    const weft_attr_t *attr = cl_attr_list(desc, "axes", WEFT_ATTR_TYPE_INTS);
    bool has_input = cl_has(desc->inputs, desc->input_count, 1);
    uint32_t kept = 0;
    (void)env;
    TRY(cl_need_f32(desc, 1, 1, 0));
    uint32_t rank = desc->inputs[0].rank;
    size_t count = attr != NULL ? attr->count : 0;
    if (has_input) {
        const weft_tensor_desc_t *axes = &desc->inputs[1];
        if (axes->data == NULL || axes->dtype != WEFT_DTYPE_I64 || cl_elems(axes) > (int64_t)DIMS) {
            return cl_refuse(desc, "axes must be constant");
        }
        count = (size_t)cl_elems(axes);
    }
    if (count == 0 && cl_attr_int(desc, "noop_with_empty_axes", 0) != 0) {
        return cl_refuse(desc, "without axes");
    }
    for (size_t i = 0; i < count; i++) {
        int64_t axis = attr != NULL && !has_input ? attr->ints[i] : 0;
        if (has_input) {
            memcpy(&axis, (const char *)desc->inputs[1].data + i * sizeof axis, sizeof axis);
        }
        axis = axis < 0 ? axis + rank : axis;
        if (axis < 0 || axis >= rank) {
            return cl_refuse(desc, "an axis is out of range");
        }
        kept |= 1u << axis;
    }
    kept = count > 0 ? ~kept : 0;
    return prepare_sum(desc, kept, strcmp(desc->op, "ReduceMean") == 0, out_state,
                       out_scratch_bytes);
}
