/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move elements of any type: by strides, and by index. */
#include "devices/opencl/kernels.h"

#include <stdio.h>
#include <string.h>

#define RUN 16 /* elements of a work item */

enum { COPIES, FILLS, GATHERS, GATHERS_ND };

/* The function for elements of a size; NULL: there is none. */
static const char *function_of(int kind, size_t bytes)
{
    static const char *const names[4][4] = {
        {"copy_1", "copy_2", "copy_4", "copy_8"},
        {"fill_1", "fill_2", "fill_4", "fill_8"},
        {"gather_1", NULL, "gather_4", "gather_8"},
        {"gather_nd_1", NULL, "gather_nd_4", "gather_nd_8"},
    };
    return names[kind][bytes == 8 ? 3 : bytes == 4 ? 2 : bytes == 2 ? 1 : 0];
}

/* A copy from an operand to another one, a: strides of the first, b: of the second. */
static void add_copy(cl_node_t *node, const uint32_t operands[2], const cl_nest_t *nest,
                     const int64_t offsets[2], size_t bytes)
{
    int64_t items = (nest->dims[nest->rank - 1] + RUN - 1) / RUN;
    cl_step_t step = {.function = function_of(COPIES, bytes),
                      .selected = 2,
                      .chosen = {operands[0], operands[1]},
                      .table_at = node->table_count};
    for (uint32_t d = 0; d + 1 < nest->rank; d++) {
        items *= nest->dims[d];
    }
    step.count = (size_t)items;
    if (items == 0) {
        return;
    }
    cl_add_to_table(node, nest->rank);
    cl_add_to_table(node, offsets[0]);
    cl_add_to_table(node, offsets[1]);
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(node, nest->dims[d]);
    }
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(node, nest->a[d]);
    }
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(node, nest->b[d]);
    }
    cl_add_step(node, step);
}

static void add_fill(cl_node_t *node, uint32_t operand, int64_t count, size_t bytes, int64_t value)
{
    cl_step_t step = cl_each(function_of(FILLS, bytes), count);
    step.selected = 1;
    step.chosen[0] = operand;
    step.table_at = node->table_count;
    cl_add_to_table(node, value);
    cl_add_step(node, step);
}

/* Input 0 and output 0 have one type. */
static weft_status_t need_like(const weft_node_desc_t *desc)
{
    TRY(cl_need_plain(desc));
    return cl_has(desc->inputs, desc->input_count, 0) &&
                   cl_has(desc->outputs, desc->output_count, 0) &&
                   desc->inputs[0].dtype == desc->outputs[0].dtype &&
                   cl_elems(&desc->inputs[0]) <= INT32_MAX &&
                   cl_elems(&desc->outputs[0]) <= INT32_MAX
               ? WEFT_OK
               : cl_refuse(desc, "operands differ, or are too large");
}

/* The only copy of a node. */
static weft_status_t keep_copy(const weft_node_desc_t *desc, const cl_nest_t *nest, bool view,
                               void **out_state, size_t *out_scratch_bytes)
{
    cl_node_t node = cl_start(1, 1);
    node.view = view;
    add_copy(&node, (const uint32_t[]){0, 1}, nest, (const int64_t[]){0, 0},
             cl_elem_bytes(desc->inputs[0].dtype));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* The same elements in another shape; without a copy where the plan gave both one memory. */
PREPARE(cl_prepare_view)
{
    cl_nest_t nest = cl_nest();
    (void)env;
    TRY(need_like(desc));
    if (cl_elems(&desc->inputs[0]) != cl_elems(&desc->outputs[0])) {
        return cl_refuse(desc, "operands differ");
    }
    cl_nest_add(&nest, cl_elems(&desc->inputs[0]), 1, 1);
    return keep_copy(desc, &nest, true, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_transpose)
{
    const weft_attr_t *perm = cl_attr_list(desc, "perm", WEFT_ATTR_TYPE_INTS);
    int64_t from[DIMS], to[DIMS];
    cl_nest_t nest = cl_nest();
    uint32_t seen = 0;
    (void)env;
    TRY(need_like(desc));
    const weft_tensor_desc_t *x = &desc->inputs[0], *y = &desc->outputs[0];
    if (x->rank != y->rank || (perm != NULL && perm->count != x->rank)) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_strides(x, from);
    cl_strides(y, to);
    for (uint32_t d = 0; d < x->rank; d++) {
        int64_t source = perm != NULL ? perm->ints[d] : (int64_t)(x->rank - 1 - d);
        if (source < 0 || source >= x->rank || (seen >> source & 1) != 0 ||
            x->dims[source] != y->dims[d]) {
            return cl_refuse(desc, "shapes do not fit");
        }
        seen |= 1u << source;
        cl_nest_add(&nest, y->dims[d], from[source], to[d]);
    }
    return keep_copy(desc, &nest, false, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_expand)
{
    int64_t from[DIMS], to[DIMS];
    cl_nest_t nest = cl_nest();
    (void)env;
    TRY(need_like(desc));
    if (!cl_broadcast(&desc->inputs[0], &desc->outputs[0], from)) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_strides(&desc->outputs[0], to);
    for (uint32_t d = 0; d < desc->outputs[0].rank; d++) {
        cl_nest_add(&nest, desc->outputs[0].dims[d], from[d], to[d]);
    }
    return keep_copy(desc, &nest, false, out_state, out_scratch_bytes);
}

/* ---- parts of a tensor ---- */

typedef struct slice {
    int64_t first[DIMS], step[DIMS];
} slice_t;

/* The copy between a tensor and a part of it, which is operand 1 if a gradient adds it again. */
static weft_status_t add_slice(const weft_node_desc_t *desc, const weft_tensor_desc_t *whole,
                               const weft_tensor_desc_t *part, const slice_t *slice, bool gradient,
                               cl_node_t *node)
{
    int64_t large[DIMS], small[DIMS], offset = 0;
    cl_nest_t nest = cl_nest();
    cl_strides(whole, large);
    cl_strides(part, small);
    for (uint32_t d = 0; d < whole->rank; d++) {
        int64_t size = part->dims[d], first = slice->first[d], step = slice->step[d], last = 0;
        if (size > 0 && (__builtin_mul_overflow(step, size - 1, &last) ||
                         __builtin_add_overflow(first, last, &last) || first < 0 ||
                         first >= whole->dims[d] || last < 0 || last >= whole->dims[d])) {
            return cl_drop(desc, node, "the slice is out of range");
        }
        int64_t stride = size > 1 ? large[d] * step : 0;
        offset += size > 0 ? first * large[d] : 0;
        cl_nest_add(&nest, size, gradient ? small[d] : stride, gradient ? stride : small[d]);
    }
    const int64_t offsets[2] = {gradient ? 0 : offset, gradient ? offset : 0};
    add_copy(node, (const uint32_t[]){0, 1}, &nest, offsets, cl_elem_bytes(whole->dtype));
    return WEFT_OK;
}

/* The constant integers of an input. */
static bool read_ints(const weft_node_desc_t *desc, uint32_t index, int64_t *out, int64_t *count)
{
    const weft_tensor_desc_t *tensor = &desc->inputs[index];
    if (tensor->data == NULL || cl_elems(tensor) > (int64_t)DIMS ||
        (tensor->dtype != WEFT_DTYPE_I64 && tensor->dtype != WEFT_DTYPE_I32)) {
        return false;
    }
    *count = cl_elems(tensor);
    for (int64_t i = 0; i < *count; i++) {
        int32_t narrow;
        const char *at = (const char *)tensor->data + (size_t)i * cl_elem_bytes(tensor->dtype);
        if (tensor->dtype == WEFT_DTYPE_I64) {
            memcpy(&out[i], at, sizeof *out);
        } else {
            memcpy(&narrow, at, sizeof narrow);
            out[i] = narrow;
        }
    }
    return true;
}

/* The start of a slice, as in numpy; its end is known by the output. */
static int64_t first_of(int64_t start, int64_t size, int64_t step)
{
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    start = start < 0 && start >= -size ? start + size : start;
    return start < low ? low : start > high ? high : start;
}

PREPARE(cl_prepare_slice)
{
    int64_t starts[DIMS], axes[DIMS], steps[DIMS], count = 0, axis_count = 0, step_count = 0;
    slice_t slice = {.step = {1, 1, 1, 1, 1, 1, 1, 1}};
    cl_node_t node = cl_start(1, 1);
    (void)env;
    TRY(need_like(desc));
    const weft_tensor_desc_t *x = &desc->inputs[0];
    bool has_axes = cl_has(desc->inputs, desc->input_count, 3);
    bool has_steps = cl_has(desc->inputs, desc->input_count, 4);
    if (desc->version < 10 || x->rank != desc->outputs[0].rank || desc->input_count < 3 ||
        !read_ints(desc, 1, starts, &count) ||
        (has_axes && (!read_ints(desc, 3, axes, &axis_count) || axis_count != count)) ||
        (has_steps && (!read_ints(desc, 4, steps, &step_count) || step_count != count))) {
        return cl_refuse(desc, "starts, axes and steps must be constants that fit");
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t axis = has_axes ? axes[i] : i, step = has_steps ? steps[i] : 1;
        axis = axis < 0 ? axis + x->rank : axis;
        if (axis < 0 || axis >= x->rank || step == 0) {
            return cl_refuse(desc, "an axis or a step is out of range");
        }
        slice.step[axis] = step;
        slice.first[axis] = first_of(starts[i], x->dims[axis], step);
    }
    TRY(add_slice(desc, x, &desc->outputs[0], &slice, false, &node));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_slice_grad)
{
    const weft_attr_t *starts = cl_attr_list(desc, "starts", WEFT_ATTR_TYPE_INTS);
    const weft_attr_t *steps = cl_attr_list(desc, "steps", WEFT_ATTR_TYPE_INTS);
    slice_t slice;
    cl_node_t node = cl_start(1, 1);
    (void)env;
    TRY(need_like(desc));
    const weft_tensor_desc_t *dx = &desc->outputs[0];
    if (starts == NULL || steps == NULL || starts->count != dx->rank || steps->count != dx->rank ||
        desc->inputs[0].rank != dx->rank) {
        return cl_refuse(desc, "starts and steps need one entry per dimension");
    }
    memcpy(slice.first, starts->ints, dx->rank * sizeof *slice.first);
    memcpy(slice.step, steps->ints, dx->rank * sizeof *slice.step);
    add_fill(&node, 1, cl_elems(dx), cl_elem_bytes(dx->dtype), 0);
    TRY(add_slice(desc, dx, &desc->inputs[0], &slice, true, &node));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* Copies between a whole tensor and parts that lie one after the other along an axis. */
static weft_status_t prepare_parts(const weft_node_desc_t *desc, bool split, int64_t otherwise,
                                   void **out_state, size_t *out_scratch_bytes)
{
    uint32_t axis, count = split ? desc->output_count : desc->input_count;
    const weft_tensor_desc_t *whole = split ? &desc->inputs[0] : &desc->outputs[0];
    const weft_tensor_desc_t *parts = split ? desc->outputs : desc->inputs;
    cl_node_t node = split ? cl_start(1, count) : cl_start(count, 1);
    int64_t at = 0, inner = 1, outer = 1;
    TRY(need_like(desc));
    TRY(cl_attr_axis(desc, otherwise, whole->rank, &axis));
    for (uint32_t d = 0; d < whole->rank; d++) {
        outer *= d < axis ? whole->dims[d] : 1;
        inner *= d > axis ? whole->dims[d] : 1;
    }
    for (uint32_t k = 0; k < count; k++) {
        const weft_tensor_desc_t *part = &parts[k];
        if (part->dtype != whole->dtype || part->rank != whole->rank) {
            return cl_drop(desc, &node, "a part is absent or differs");
        }
        int64_t row = part->dims[axis] * inner, line = whole->dims[axis] * inner;
        cl_nest_t nest = cl_nest();
        cl_nest_add(&nest, outer, split ? line : row, split ? row : line);
        cl_nest_add(&nest, row, 1, 1);
        if (at + row > line || cl_elems(part) != outer * row) {
            return cl_drop(desc, &node, "parts do not fit");
        }
        const uint32_t operands[2] = {split ? 0 : k, split ? 1 + k : count};
        const int64_t offsets[2] = {split ? at : 0, split ? 0 : at};
        add_copy(&node, operands, &nest, offsets, cl_elem_bytes(whole->dtype));
        at += row;
    }
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_split)
{
    (void)env;
    return prepare_parts(desc, true, 0, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_concat)
{
    (void)env;
    return prepare_parts(desc, false, 1, out_state, out_scratch_bytes);
}

/* What comes, and a mask of ones: in training the compiler has put DropoutMask in its place. */
PREPARE(cl_prepare_dropout)
{
    cl_nest_t nest = cl_nest();
    cl_node_t node = cl_start(1, 2);
    bool has_mask = cl_has(desc->outputs, desc->output_count, 1);
    (void)env;
    TRY(need_like(desc));
    if (cl_elems(&desc->inputs[0]) != cl_elems(&desc->outputs[0]) ||
        (has_mask && cl_elem_bytes(desc->outputs[1].dtype) != 1)) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_nest_add(&nest, cl_elems(&desc->inputs[0]), 1, 1);
    add_copy(&node, (const uint32_t[]){0, 1}, &nest, (const int64_t[]){0, 0},
             cl_elem_bytes(desc->inputs[0].dtype));
    if (has_mask) {
        add_fill(&node, 2, cl_elems(&desc->outputs[1]), 1, 1);
    }
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* ---- by index ---- */

static bool are_indices(const weft_node_desc_t *desc)
{
    return cl_has(desc->inputs, desc->input_count, 1) &&
           (desc->inputs[1].dtype == WEFT_DTYPE_I64 || desc->inputs[1].dtype == WEFT_DTYPE_I32) &&
           cl_elems(&desc->inputs[1]) <= INT32_MAX;
}

/* x: what indices select from; y: what they select. */
static weft_status_t describe_gather(const weft_node_desc_t *desc, const weft_tensor_desc_t *x,
                                     const weft_tensor_desc_t *y, cl_node_t *node,
                                     int64_t *out_outer, int64_t *out_inner)
{
    uint32_t axis;
    int64_t expected;
    TRY(need_like(desc));
    TRY(cl_attr_axis(desc, 0, x->rank, &axis));
    if (!are_indices(desc)) {
        return cl_refuse(desc, "indices must be i64 or i32");
    }
    *out_outer = *out_inner = 1;
    for (uint32_t d = 0; d < x->rank; d++) {
        *out_outer *= d < axis ? x->dims[d] : 1;
        *out_inner *= d > axis ? x->dims[d] : 1;
    }
    int64_t count = cl_elems(&desc->inputs[1]);
    if (__builtin_mul_overflow(*out_outer * *out_inner, count, &expected) ||
        expected != cl_elems(y) || x->dims[axis] < 1) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_add_number(node, x->dims[axis]);
    cl_add_number(node, *out_inner);
    cl_add_number(node, count);
    cl_add_number(node, desc->inputs[1].dtype == WEFT_DTYPE_I64);
    node->labels = true;
    return WEFT_OK;
}

PREPARE(cl_prepare_gather)
{
    cl_node_t node = cl_start(2, 1);
    int64_t outer, inner;
    (void)env;
    TRY(describe_gather(desc, &desc->inputs[0], &desc->outputs[0], &node, &outer, &inner));
    const char *function = function_of(GATHERS, cl_elem_bytes(desc->inputs[0].dtype));
    if (function == NULL) {
        return cl_refuse(desc, "no function for elements of this size");
    }
    cl_add_step(&node, cl_each(function, cl_elems(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_gather_grad)
{
    cl_node_t node = cl_start(2, 1);
    int64_t outer, inner;
    (void)env;
    TRY(cl_need_f32(desc, 1, 1, 0));
    TRY(describe_gather(desc, &desc->outputs[0], &desc->inputs[0], &node, &outer, &inner));
    cl_add_step(&node, cl_each("gather_grad", outer * inner));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_gather_nd)
{
    cl_node_t node = cl_start(2, 1);
    int64_t strides[DIMS], inner = 1;
    (void)env;
    TRY(need_like(desc));
    const weft_tensor_desc_t *x = &desc->inputs[0], *indices = x + 1;
    const char *function = function_of(GATHERS_ND, cl_elem_bytes(x->dtype));
    int64_t tuple = are_indices(desc) && indices->rank > 0 ? indices->dims[indices->rank - 1] : 0;
    if (function == NULL || tuple < 1 || tuple > x->rank || cl_elems(x) == 0 ||
        cl_attr_int(desc, "batch_dims", 0) != 0) {
        return cl_refuse(desc, "expected tuples of indices without batch dimensions");
    }
    for (uint32_t d = (uint32_t)tuple; d < x->rank; d++) {
        inner *= x->dims[d];
    }
    if (cl_elems(&desc->outputs[0]) != cl_elems(indices) / tuple * inner) {
        return cl_refuse(desc, "shapes do not fit");
    }
    cl_strides(x, strides);
    cl_add_to_table(&node, tuple);
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(&node, d < x->rank ? x->dims[d] : 1);
    }
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(&node, d < x->rank ? strides[d] : 0);
    }
    cl_add_number(&node, inner);
    cl_add_number(&node, indices->dtype == WEFT_DTYPE_I64);
    node.labels = true;
    cl_add_step(&node, cl_each(function, cl_elems(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}
