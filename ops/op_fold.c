/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on constants: mostly the shape arithmetic that exporters write. Every function reads
 * and writes single elements, so that one code serves all types.
 */
#include <math.h>
#include <string.h>

#include "ops/op_infer.h"

/* An element: integers and booleans in i, floats in f. */
typedef union number {
    int64_t i;
    double f;
} number_t;

typedef struct fold {
    const weft_node_desc_t *node;
    const weft_tensor_desc_t *y; /* output 0 */
    uint8_t *out;                /* its elements */
    int64_t count;               /* how many */
} fold_t;

static fold_t start(const weft_node_desc_t *node, void *out)
{
    return (fold_t){node, &node->outputs[0], out, weft_tensor_elem_count(&node->outputs[0])};
}

static bool is_float(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64;
}

static number_t get(const weft_tensor_desc_t *tensor, int64_t index)
{
    size_t bytes = weft_dtype_size_bytes(tensor->dtype);
    const uint8_t *at = (const uint8_t *)tensor->data + (size_t)index * bytes;
    number_t number = {0};
    float f32;
    int32_t i32;
    switch (tensor->dtype) {
    case WEFT_DTYPE_F64:
        memcpy(&number.f, at, sizeof(number.f));
        break;
    case WEFT_DTYPE_F32:
        memcpy(&f32, at, sizeof(f32));
        number.f = (double)f32;
        break;
    case WEFT_DTYPE_I64:
        memcpy(&number.i, at, sizeof(number.i));
        break;
    case WEFT_DTYPE_I32:
        memcpy(&i32, at, sizeof(i32));
        number.i = i32;
        break;
    default:
        number.i = *at != 0;
        break;
    }
    return number;
}

/* False when the number does not fit the type. */
static bool put(const fold_t *fold, int64_t index, number_t number)
{
    uint8_t *at = fold->out + (size_t)index * weft_dtype_size_bytes(fold->y->dtype);
    float f32;
    int32_t i32;
    switch (fold->y->dtype) {
    case WEFT_DTYPE_F64:
        memcpy(at, &number.f, sizeof(number.f));
        return true;
    case WEFT_DTYPE_F32:
        f32 = (float)number.f;
        memcpy(at, &f32, sizeof(f32));
        return true;
    case WEFT_DTYPE_I64:
        memcpy(at, &number.i, sizeof(number.i));
        return true;
    case WEFT_DTYPE_I32:
        i32 = (int32_t)number.i;
        memcpy(at, &i32, sizeof(i32));
        return i32 == number.i;
    default:
        *at = number.i != 0;
        return true;
    }
}

int wefti_fold_copy(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_tensor_desc_t *x = &fold->node->inputs[0];
    if (x->dtype != fold->y->dtype || weft_tensor_elem_count(x) != fold->count) {
        return false;
    }
    memcpy(fold->out, x->data, (size_t)fold->count * weft_dtype_size_bytes(x->dtype));
    return true;
}

int wefti_fold_shape(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_tensor_desc_t *x = &fold->node->inputs[0];
    int64_t start = weft_node_attr_int(fold->node, "start", 0);
    start = start < 0 ? start + x->rank : start;
    start = start < 0 ? 0 : start;
    for (int64_t i = 0; i < fold->count; i++) {
        if (start + i >= x->rank || x->dims[start + i] < 0) {
            return false;
        }
        put(fold, i, (number_t){.i = x->dims[start + i]});
    }
    return true;
}

int wefti_fold_constant(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_attr_t *attr;
    for (int64_t i = 0; i < fold->count; i++) {
        number_t number = {0};
        if ((attr = weft_node_attr(fold->node, "value_float"))) {
            number.f = (double)attr->f;
        } else if ((attr = weft_node_attr(fold->node, "value_int"))) {
            number.i = attr->i;
        } else if ((attr = weft_node_attr(fold->node, "value_floats"))) {
            number.f = (double)attr->floats[i];
        } else if ((attr = weft_node_attr(fold->node, "value_ints"))) {
            number.i = attr->ints[i];
        } else {
            return false;
        }
        put(fold, i, number);
    }
    return true;
}

int wefti_fold_cast(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_tensor_desc_t *x = &fold->node->inputs[0];
    bool from_float = is_float(x->dtype), to_float = is_float(fold->y->dtype);
    for (int64_t i = 0; i < fold->count; i++) {
        number_t from = get(x, i), to = from;
        if (from_float && !to_float) {
            if (fold->y->dtype == WEFT_DTYPE_BOOL) {
                to.i = from.f != 0.0;
            } else if (fabs(from.f) < 9e18) {
                to.i = (int64_t)from.f;
            } else {
                return false;
            }
        } else if (!from_float && to_float) {
            to.f = (double)from.i;
        }
        if (!put(fold, i, to)) {
            return false;
        }
    }
    return true;
}

/* The number of elements before, along and after an axis. */
static void split_at(const weft_tensor_desc_t *x, uint32_t axis, int64_t *outer, int64_t *length,
                     int64_t *inner)
{
    *outer = *inner = 1;
    for (uint32_t d = 0; d < x->rank; d++) {
        *outer *= d < axis ? x->dims[d] : 1;
        *inner *= d > axis ? x->dims[d] : 1;
    }
    *length = x->dims[axis];
}

int wefti_fold_gather(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_tensor_desc_t *x = &fold->node->inputs[0], *indices = &fold->node->inputs[1];
    int64_t outer, length, inner, index_count = weft_tensor_elem_count(indices);
    uint32_t axis;
    if (wefti_infer_axis(weft_node_attr_int(fold->node, "axis", 0), x->rank, "axis", &axis) < 0) {
        return false;
    }
    split_at(x, axis, &outer, &length, &inner);
    for (int64_t at = 0; at < fold->count; at++) {
        int64_t index = get(indices, at / inner % index_count).i;
        index = index < 0 ? index + length : index;
        if (index < 0 || index >= length) {
            return false; /* the kernel reports it */
        }
        int64_t block = at / inner / index_count;
        put(fold, at, get(x, (block * length + index) * inner + at % inner));
    }
    return true;
}

int wefti_fold_concat(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    uint32_t axis;
    int64_t outer, total, inner, before = 0;
    if (wefti_infer_axis(weft_node_attr_int(fold->node, "axis", 1), fold->y->rank, "axis", &axis) <
        0) {
        return false;
    }
    split_at(fold->y, axis, &outer, &total, &inner);
    for (uint32_t k = 0; k < fold->node->input_count; k++) {
        const weft_tensor_desc_t *x = &fold->node->inputs[k];
        int64_t length = x->dims[axis] * inner;
        for (int64_t i = 0; i < outer * length; i++) {
            put(fold, i / length * total * inner + before + i % length, get(x, i));
        }
        before += length;
    }
    return true;
}

/* starts, ends, axes and steps are attributes before opset 10 and inputs since. */
static bool slice_list(const fold_t *fold, uint32_t input, const char *name, int64_t *list,
                       uint32_t *count)
{
    *count = 0;
    if (fold->node->version < 10) {
        return wefti_attr_ints(fold->node, name, list, WEFT_MAX_DIMS, count) >= 0;
    }
    const weft_tensor_desc_t *given = wefti_infer_input(fold->node, input);
    return !given || wefti_const_ints(given, list, WEFT_MAX_DIMS, count);
}

int wefti_fold_slice(const weft_node_desc_t *node, void *out)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_tensor_desc_t *x = &fold->node->inputs[0];
    int64_t starts[WEFT_MAX_DIMS], axes[WEFT_MAX_DIMS], steps[WEFT_MAX_DIMS];
    int64_t first[WEFT_MAX_DIMS] = {0}, step[WEFT_MAX_DIMS];
    uint32_t start_count, axis_count, step_count;
    if (!slice_list(fold, 1, "starts", starts, &start_count) ||
        !slice_list(fold, 3, "axes", axes, &axis_count) ||
        !slice_list(fold, 4, "steps", steps, &step_count)) {
        return false;
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        step[d] = 1;
    }
    for (uint32_t i = 0; i < start_count; i++) {
        uint32_t d;
        if (wefti_infer_axis(i < axis_count ? axes[i] : (int64_t)i, x->rank, "axis", &d) < 0) {
            return false;
        }
        step[d] = i < step_count ? steps[i] : 1;
        int64_t last = step[d] < 0 ? x->dims[d] - 1 : x->dims[d];
        int64_t start = starts[i] < 0 ? starts[i] + x->dims[d] : starts[i];
        first[d] = start < 0 ? 0 : start > last ? last : start;
    }
    for (int64_t at = 0; at < fold->count; at++) {
        int64_t rest = at, from = 0, stride = 1;
        for (uint32_t d = x->rank; d-- > 0;) {
            from += (first[d] + rest % fold->y->dims[d] * step[d]) * stride;
            rest /= fold->y->dims[d];
            stride *= x->dims[d];
        }
        if (from < 0 || from >= stride) {
            return false;
        }
        put(fold, at, get(x, from));
    }
    return true;
}

/* Index into a broadcast operand for element at of the result. */
static int64_t broadcast_index(const weft_tensor_desc_t *out, const weft_tensor_desc_t *x,
                               int64_t at)
{
    int64_t index = 0, stride = 1;
    for (uint32_t i = 0; i < out->rank && i < x->rank; i++) { /* from the last dimension */
        int64_t size = x->dims[x->rank - 1 - i], out_size = out->dims[out->rank - 1 - i];
        index += size == 1 ? 0 : at % out_size * stride;
        at /= out_size;
        stride *= size;
    }
    return index;
}

/* False when the result is not defined. */
static bool integer_op(char op, int64_t a, int64_t b, int64_t *out)
{
    switch (op) {
    case '+':
        return !__builtin_add_overflow(a, b, out);
    case '-':
        return !__builtin_sub_overflow(a, b, out);
    case '*':
        return !__builtin_mul_overflow(a, b, out);
    default:
        if (b == 0 || (a == INT64_MIN && b == -1)) {
            return false;
        }
        *out = a / b;
        return true;
    }
}

static double float_op(char op, double a, double b)
{
    return op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
}

static bool arithmetic(const weft_node_desc_t *node, void *out, char op)
{
    const fold_t fold[1] = {start(node, out)};
    const weft_tensor_desc_t *a = &fold->node->inputs[0], *b = &fold->node->inputs[1];
    for (int64_t at = 0; at < fold->count; at++) {
        number_t x = get(a, broadcast_index(fold->y, a, at)),
                 y = get(b, broadcast_index(fold->y, b, at));
        number_t z = {0};
        if (is_float(fold->y->dtype)) {
            z.f = float_op(op, x.f, y.f);
        } else if (!integer_op(op, x.i, y.i, &z.i)) {
            return false;
        }
        if (!put(fold, at, z)) {
            return false;
        }
    }
    return true;
}

int wefti_fold_add(const weft_node_desc_t *node, void *out)
{
    return arithmetic(node, out, '+');
}

int wefti_fold_subtract(const weft_node_desc_t *node, void *out)
{
    return arithmetic(node, out, '-');
}

int wefti_fold_multiply(const weft_node_desc_t *node, void *out)
{
    return arithmetic(node, out, '*');
}

int wefti_fold_divide(const weft_node_desc_t *node, void *out)
{
    return arithmetic(node, out, '/');
}
