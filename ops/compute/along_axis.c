/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on the rows along one axis: CumSum, ArgMax, ArgMin, TopK, Hardmax. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* An element and its place. A row is compared as f64, i64 or u64, which hold all types. */
typedef struct {
    double f;
    int64_t i, place;
} element_t;

typedef struct state {
    int64_t outer, length, inner, k; /* k: elements that TopK selects */
    weft_dtype_t dtype;
    bool floating, least, last, exclusive, reverse;
} state_t;

static void load(const state_t *s, const char *x, element_t *row)
{
    const size_t size = weft_dtype_size_bytes(s->dtype);
    for (int64_t i = 0; i < s->length; i++) {
        const char *from = x + (size_t)(i * s->inner) * size;
        wefti_wide_t wide;
        row[i] = (element_t){.place = i};
        if (s->dtype == WEFT_DTYPE_F64) {
            memcpy(&row[i].f, from, size);
        } else if (s->dtype == WEFT_DTYPE_F32) {
            float f;
            memcpy(&f, from, size);
            row[i].f = (double)f;
        } else if (s->dtype == WEFT_DTYPE_I64 || s->dtype == WEFT_DTYPE_U64) {
            memcpy(&row[i].i, from, size);
        } else {
            wefti_widen(WEFT_ISA_PORTABLE, s->dtype, from, 1, &wide);
            row[i].f = s->floating ? (double)wide.f32[0] : 0.0;
            row[i].i = s->floating ? 0 : wide.i64[0];
        }
    }
}

static void store(const state_t *s, const element_t *value, char *to)
{
    wefti_wide_t wide;
    if (s->dtype == WEFT_DTYPE_F64) {
        memcpy(to, &value->f, sizeof(value->f));
    } else if (s->dtype == WEFT_DTYPE_F32) {
        float f = (float)value->f;
        memcpy(to, &f, sizeof(f));
    } else if (s->dtype == WEFT_DTYPE_I64 || s->dtype == WEFT_DTYPE_U64) {
        memcpy(to, &value->i, sizeof(value->i));
    } else {
        wide.i64[0] = value->i;
        if (s->floating) {
            wide.f32[0] = (float)value->f;
        }
        wefti_narrow(WEFT_ISA_PORTABLE, s->dtype, &wide, 1, to);
    }
}

/* Does a come before b in the result? NaN is the largest number. Of equal ones the first comes
 * first, or the last with s->last. */
static bool before(const state_t *s, const element_t *a, const element_t *b)
{
    const bool an = a->f != a->f, bn = b->f != b->f;
    const uint64_t au = (uint64_t)a->i, bu = (uint64_t)b->i;
    int order = s->floating && (an || bn)    ? (int)an - (int)bn
                : s->floating                ? (a->f > b->f) - (a->f < b->f)
                : s->dtype == WEFT_DTYPE_U64 ? (au > bu) - (au < bu)
                                             : (a->i > b->i) - (a->i < b->i);
    order = s->least ? -order : order;
    return order != 0 ? order > 0 : s->last ? a->place > b->place : a->place < b->place;
}

static void run_sum(const state_t *s, element_t *row, char *y)
{
    const size_t size = weft_dtype_size_bytes(s->dtype);
    element_t sum = {0};
    for (int64_t n = 0; n < s->length; n++) {
        int64_t i = s->reverse ? s->length - 1 - n : n;
        element_t next = sum;
        next.f = sum.f + row[i].f;
        next.i = (int64_t)((uint64_t)sum.i + (uint64_t)row[i].i);
        store(s, s->exclusive ? &sum : &next, y + (size_t)(i * s->inner) * size);
        sum = next;
    }
}

static const element_t *best(const state_t *s, const element_t *row)
{
    const element_t *found = row;
    for (int64_t i = 1; i < s->length; i++) {
        found = before(s, &row[i], found) ? &row[i] : found;
    }
    return found;
}

/* The root of the heap below at comes last. */
static void sift(const state_t *s, element_t *row, int64_t at, int64_t count)
{
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && before(s, &row[child], &row[child + 1]);
        if (before(s, &row[child], &row[at])) {
            return;
        }
        element_t kept = row[at];
        row[at] = row[child];
        row[child] = kept;
    }
}

static void sort(const state_t *s, element_t *row)
{
    for (int64_t i = s->length / 2; i-- > 0;) {
        sift(s, row, i, s->length);
    }
    for (int64_t end = s->length; end-- > 1;) {
        element_t kept = row[0];
        row[0] = row[end];
        row[end] = kept;
        sift(s, row, 0, end);
    }
}

typedef void (*row_fn)(const state_t *s, element_t *row, void *const *outputs, int64_t o,
                       int64_t i);

static void sum_row(const state_t *s, element_t *row, void *const *outputs, int64_t o, int64_t i)
{
    run_sum(s, row,
            (char *)outputs[0] +
                (size_t)(o * s->length * s->inner + i) * weft_dtype_size_bytes(s->dtype));
}

static void arg_row(const state_t *s, element_t *row, void *const *outputs, int64_t o, int64_t i)
{
    ((int64_t *)outputs[0])[o * s->inner + i] = best(s, row)->place;
}

static void top_row(const state_t *s, element_t *row, void *const *outputs, int64_t o, int64_t i)
{
    sort(s, row);
    for (int64_t n = 0; n < s->k; n++) {
        int64_t at = (o * s->k + n) * s->inner + i;
        if (outputs[0] != NULL) {
            store(s, &row[n], (char *)outputs[0] + (size_t)at * weft_dtype_size_bytes(s->dtype));
        }
        if (outputs[1] != NULL) {
            ((int64_t *)outputs[1])[at] = row[n].place;
        }
    }
}

static void hard_row(const state_t *s, element_t *row, void *const *outputs, int64_t o, int64_t i)
{
    const int64_t place = best(s, row)->place;
    for (int64_t n = 0; n < s->length; n++) {
        const element_t value = {.f = n == place ? 1.0 : 0.0};
        store(s, &value,
              (char *)outputs[0] +
                  (size_t)((o * s->length + n) * s->inner + i) * weft_dtype_size_bytes(s->dtype));
    }
}

static weft_status_t each_row(const weft_kernel_call_t *call, row_fn fn)
{
    const state_t *s = call->state;
    const size_t size = weft_dtype_size_bytes(s->dtype);
    const char *x = call->inputs[0];
    for (int64_t o = 0; o < s->outer && s->length > 0; o++) {
        for (int64_t i = 0; i < s->inner; i++) {
            load(s, x + (size_t)(o * s->length * s->inner + i) * size, call->scratch);
            fn(s, call->scratch, call->outputs, o, i);
        }
    }
    return WEFT_OK;
}

/* Elements of output 0 for each row of X. */
static weft_status_t read_node(const weft_node_desc_t *node, int64_t axis, int64_t per_row,
                               state_t *s)
{
    uint32_t at;
    const weft_tensor_desc_t *x = &node->inputs[0];
    WEFT_RETURN_IF_ERROR(wefti_infer_axis(axis, x->rank, "axis", &at));
    s->dtype = x->dtype;
    s->floating = (WEFT_DTYPE_BIT(x->dtype) & WEFTI_BIT_FLOATS) != 0;
    s->length = x->dims[at];
    s->outer = s->inner = 1;
    for (uint32_t d = 0; d < x->rank; d++) {
        s->outer *= d < at ? x->dims[d] : 1;
        s->inner *= d > at ? x->dims[d] : 1;
    }
    per_row = per_row < 0 ? s->length : per_row;
    const bool wide =
        s->floating || wefti_wide_dtype(x->dtype) == WEFT_DTYPE_I64 || x->dtype == WEFT_DTYPE_U64;
    if (!wide || x->layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for type %s or this layout",
                           node->op, weft_dtype_name(x->dtype));
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        int64_t expected;
        const weft_tensor_desc_t *y = wefti_node_output(node, i);
        if (y != NULL &&
            (__builtin_mul_overflow(s->outer * s->inner, per_row, &expected) ||
             weft_tensor_elem_count(y) != expected || y->layout != WEFT_LAYOUT_PLAIN)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u has the wrong size", i);
        }
    }
    return WEFT_OK;
}

static weft_status_t need_dtype(const weft_node_desc_t *node, uint32_t output, weft_dtype_t dtype)
{
    const weft_tensor_desc_t *y = wefti_node_output(node, output);
    return y == NULL || y->dtype == dtype
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u has the wrong type", output);
}

static weft_status_t keep(const state_t *made, void **out_state, size_t *out_scratch_bytes)
{
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = *made;
    *out_state = state;
    *out_scratch_bytes = (size_t)made->length * sizeof(element_t);
    return WEFT_OK;
}

static weft_status_t need(const weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    return wefti_need_known(wefti_node_output(node, 0), "output", 0);
}

#define PREPARE(name)                                                                              \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)

PREPARE(prepare_sum)
{
    int64_t axis;
    uint32_t count;
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node));
    state_t s = {.exclusive = weft_node_attr_int(node, "exclusive", 0) != 0,
                 .reverse = weft_node_attr_int(node, "reverse", 0) != 0};
    if (!wefti_const_ints(wefti_infer_input(node, 1), &axis, 1, &count) || count != 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "CumSum: the axis must be a constant");
    }
    WEFT_RETURN_IF_ERROR(read_node(node, axis, -1, &s));
    WEFT_RETURN_IF_ERROR(need_dtype(node, 0, s.dtype));
    return keep(&s, out_state, out_scratch_bytes);
}

PREPARE(prepare_arg)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node));
    state_t s = {.least = strcmp(node->op, "ArgMin") == 0,
                 .last = weft_node_attr_int(node, "select_last_index", 0) != 0};
    WEFT_RETURN_IF_ERROR(read_node(node, weft_node_attr_int(node, "axis", 0), 1, &s));
    WEFT_RETURN_IF_ERROR(need_dtype(node, 0, WEFT_DTYPE_I64));
    if (s.length == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: an empty dimension", node->op);
    }
    return keep(&s, out_state, out_scratch_bytes);
}

PREPARE(prepare_top)
{
    uint32_t axis;
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    if (node->output_count != 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "TopK: expected two outputs");
    }
    const weft_tensor_desc_t *y = wefti_node_output(node, wefti_node_output(node, 0) == NULL);
    WEFT_RETURN_IF_ERROR(wefti_need_known(y, "output", 0));
    state_t s = {.least = weft_node_attr_int(node, "largest", 1) == 0};
    WEFT_RETURN_IF_ERROR(wefti_infer_axis(weft_node_attr_int(node, "axis", -1),
                                          node->inputs[0].rank, "axis", &axis));
    if (y->rank != node->inputs[0].rank || y->dims[axis] > node->inputs[0].dims[axis]) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "TopK: K is larger than the dimension");
    }
    s.k = y->dims[axis];
    WEFT_RETURN_IF_ERROR(read_node(node, axis, s.k, &s));
    WEFT_RETURN_IF_ERROR(need_dtype(node, 0, s.dtype));
    WEFT_RETURN_IF_ERROR(need_dtype(node, 1, WEFT_DTYPE_I64));
    return keep(&s, out_state, out_scratch_bytes);
}

PREPARE(prepare_hard)
{
    state_t s = {.k = 0};
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node));
    WEFT_RETURN_IF_ERROR(read_node(node, -1, -1, &s));
    WEFT_RETURN_IF_ERROR(wefti_softmax_axis(node, &s.outer, &s.length, &s.inner));
    WEFT_RETURN_IF_ERROR(need_dtype(node, 0, s.dtype));
    return keep(&s, out_state, out_scratch_bytes);
}

#define RUN(symbol)                                                                                \
    static weft_status_t run_##symbol(const weft_kernel_call_t *call)                              \
    {                                                                                              \
        return each_row(call, symbol##_row);                                                       \
    }
RUN(arg)
RUN(top)
RUN(hard)
static weft_status_t run_cumulative(const weft_kernel_call_t *call)
{
    return each_row(call, sum_row);
}

static const weft_kernel_t kernels[] = {
    WEFTI_KERNEL_VALUE("", "CumSum", prepare_sum, run_cumulative),
    WEFTI_KERNEL_VALUE("", "ArgMax", prepare_arg, run_arg),
    WEFTI_KERNEL_VALUE("", "ArgMin", prepare_arg, run_arg),
    WEFTI_KERNEL_VALUE("", "TopK", prepare_top, run_top),
    WEFTI_KERNEL_VALUE("", "Hardmax", prepare_hard, run_hard),
};

wefti_kernel_family_t wefti_kernels_along_axis(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
