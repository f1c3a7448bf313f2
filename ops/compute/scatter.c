/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GatherElements, ScatterElements, GatherND, ScatterND. An index selects one element, or a tuple of
 * indices a slice. Updates are applied in the order of the indices: the same bits in every run.
 */
#include "ops/compute/own_kernels.h"

#include <inttypes.h>
#include <string.h>

#include "ops/compute/support.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef enum { REPLACE, ADD, MULTIPLY, MAXIMUM, MINIMUM } reduction_t;

typedef struct {
    weft_tensor_desc_t x, indices; /* x: the tensor that is selected from or updated */
    int64_t strides[WEFT_MAX_DIMS];
    int64_t slice;               /* elements that are selected together */
    uint32_t axis;               /* of elements */
    uint32_t batch_dims, tuple;  /* of slices: leading dimensions, indices that select one */
    bool elements, wide_indices; /* one index for each element; i64 */
    reduction_t reduction;
} state_t;

static int64_t index_at(const state_t *s, const void *indices, int64_t at, int64_t limit)
{
    int64_t index =
        s->wide_indices ? ((const int64_t *)indices)[at] : ((const int32_t *)indices)[at];
    return index < 0 ? index + limit : index;
}

static weft_status_t outside(int64_t index, int64_t limit)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "an index is %" PRId64 ", outside [0, %" PRId64 ")", index, limit);
}

/* The places in X of selection at, in order; at counts from 0. */
static weft_status_t place_of(const state_t *s, const void *indices, int64_t at, int64_t *out_place)
{
    int64_t place = 0, rest = at;
    if (s->elements) {
        for (uint32_t d = s->indices.rank; d-- > 0;) {
            int64_t digit = rest % s->indices.dims[d], limit = s->x.dims[d];
            rest /= s->indices.dims[d];
            digit = d == s->axis ? index_at(s, indices, at, limit) : digit;
            if (digit < 0 || digit >= limit) {
                return outside(digit, limit);
            }
            place += digit * s->strides[d];
        }
        *out_place = place;
        return WEFT_OK;
    }
    int64_t tuples = 1; /* of one batch */
    for (uint32_t d = s->batch_dims; d + 1 < s->indices.rank; d++) {
        tuples *= s->indices.dims[d];
    }
    rest = at / tuples;
    for (uint32_t d = s->batch_dims; d-- > 0;) {
        place += rest % s->x.dims[d] * s->strides[d];
        rest /= s->x.dims[d];
    }
    for (uint32_t k = 0; k < s->tuple; k++) {
        uint32_t d = s->batch_dims + k;
        int64_t index = index_at(s, indices, at * s->tuple + k, s->x.dims[d]);
        if (index < 0 || index >= s->x.dims[d]) {
            return outside(index, s->x.dims[d]);
        }
        place += index * s->strides[d];
    }
    *out_place = place;
    return WEFT_OK;
}

static int64_t selections(const state_t *s)
{
    int64_t count = weft_tensor_elem_count(&s->indices);
    return s->elements ? count : s->tuple > 0 ? count / s->tuple : 0;
}

static weft_status_t run_gather(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const size_t size = weft_dtype_size_bytes(s->x.dtype), bytes = (size_t)s->slice * size;
    const char *x = call->inputs[0];
    char *y = call->outputs[0];
    for (int64_t i = 0, count = selections(s); i < count && bytes > 0; i++, y += bytes) {
        int64_t place;
        WEFT_RETURN_IF_ERROR(place_of(s, call->inputs[1], i, &place));
        memcpy(y, x + (size_t)place * size, bytes);
    }
    return WEFT_OK;
}

#define COMBINE(type)                                                                              \
    do {                                                                                           \
        type *a = y;                                                                               \
        const type *b = x;                                                                         \
        for (int64_t i = 0; i < count; i++) {                                                      \
            a[i] = reduction == ADD        ? a[i] + b[i]                                           \
                   : reduction == MULTIPLY ? a[i] * b[i]                                           \
                   : reduction == MAXIMUM  ? (b[i] > a[i] ? b[i] : a[i])                           \
                                           : (b[i] < a[i] ? b[i] : a[i]);                           \
        }                                                                                          \
    } while (0)

static void combine_wide(reduction_t reduction, weft_dtype_t dtype, void *y, const void *x,
                         int64_t count)
{
    if (dtype == WEFT_DTYPE_F32) {
        COMBINE(float);
    } else if (dtype == WEFT_DTYPE_F64) {
        COMBINE(double);
    } else {
        COMBINE(int64_t);
    }
}

static void combine(const state_t *s, char *y, const char *x, int64_t count)
{
    const weft_dtype_t dtype = s->x.dtype, wide = wefti_wide_dtype(dtype);
    const size_t size = weft_dtype_size_bytes(dtype);
    if (s->reduction == REPLACE) {
        memcpy(y, x, (size_t)count * size);
        return;
    }
    if (wide == dtype) {
        combine_wide(s->reduction, dtype, y, x, count);
        return;
    }
    for (int64_t at = 0; at < count; at += WEFTI_WIDE_BLOCK) {
        wefti_wide_t a, b;
        int64_t n = count - at < WEFTI_WIDE_BLOCK ? count - at : WEFTI_WIDE_BLOCK;
        wefti_widen(WEFT_ISA_PORTABLE, dtype, y + (size_t)at * size, n, &a);
        wefti_widen(WEFT_ISA_PORTABLE, dtype, x + (size_t)at * size, n, &b);
        combine_wide(s->reduction, wide, &a, &b, n);
        wefti_narrow(WEFT_ISA_PORTABLE, dtype, &a, n, y + (size_t)at * size);
    }
}

static weft_status_t run_scatter(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const size_t size = weft_dtype_size_bytes(s->x.dtype);
    const char *updates = call->inputs[2];
    char *y = call->outputs[0];
    if (y != call->inputs[0] && weft_tensor_elem_count(&s->x) > 0) {
        memcpy(y, call->inputs[0], (size_t)weft_tensor_elem_count(&s->x) * size);
    }
    for (int64_t i = 0, count = selections(s); i < count && s->slice > 0; i++) {
        int64_t place;
        WEFT_RETURN_IF_ERROR(place_of(s, call->inputs[1], i, &place));
        combine(s, y + (size_t)place * size, updates, s->slice);
        updates += (size_t)s->slice * size;
    }
    return WEFT_OK;
}

static weft_status_t read_reduction(const weft_node_desc_t *node, reduction_t *out)
{
    static const char *const names[] = {"none", "add", "mul", "max", "min"};
    const char *name = weft_node_attr_string(node, "reduction", "none");
    for (size_t i = 0; i < WEFTI_COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (reduction_t)i;
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute reduction: unknown value '%s'", name);
}

/* moved: the tensor that is read or written at the selections: Y of a gather, the updates. */
static weft_status_t check_moved(const state_t *s, const weft_tensor_desc_t *moved)
{
    int64_t expected;
    if (moved->dtype != s->x.dtype || moved->layout != WEFT_LAYOUT_PLAIN ||
        __builtin_mul_overflow(selections(s), s->slice, &expected) ||
        expected != weft_tensor_elem_count(moved)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "type, layout or size of the elements do not match the indices");
    }
    return WEFT_OK;
}

static weft_status_t read_elements(const weft_node_desc_t *node, state_t *s)
{
    s->elements = true;
    s->slice = 1;
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 0), s->x.rank, "axis", &s->axis));
    for (uint32_t d = 0; d < s->x.rank; d++) {
        if (s->indices.rank != s->x.rank || (d != s->axis && s->indices.dims[d] > s->x.dims[d])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "the shape of the indices does not match X");
        }
    }
    return WEFT_OK;
}

static weft_status_t read_slices(const weft_node_desc_t *node, state_t *s)
{
    int64_t batch = weft_node_attr_int(node, "batch_dims", 0);
    int64_t tuple = s->indices.rank > 0 ? s->indices.dims[s->indices.rank - 1] : 0;
    if (batch < 0 || batch >= s->indices.rank || tuple < 1 || batch + tuple > s->x.rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tuples of %" PRId64 " indices after %" PRId64
                           " batch dimensions do not match %u dimensions",
                           tuple, batch, s->x.rank);
    }
    s->batch_dims = (uint32_t)batch;
    s->tuple = (uint32_t)tuple;
    for (uint32_t d = 0; d < s->batch_dims; d++) {
        if (s->x.dims[d] != s->indices.dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "batch dimensions differ");
        }
    }
    s->slice = 1;
    for (uint32_t d = s->batch_dims + s->tuple; d < s->x.rank; d++) {
        s->slice *= s->x.dims[d];
    }
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, bool elements, bool scatters,
                             void **out_state, size_t *out_scratch_bytes)
{
    state_t s = {.slice = 0};
    for (uint32_t i = 0; i < (scatters ? 3u : 2u); i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
    }
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    s.x = node->inputs[0];
    s.indices = node->inputs[1];
    s.wide_indices = s.indices.dtype == WEFT_DTYPE_I64;
    if ((!s.wide_indices && s.indices.dtype != WEFT_DTYPE_I32) || s.x.layout != WEFT_LAYOUT_PLAIN ||
        s.indices.layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: indices must be i64 or i32, and tensors plain", node->op);
    }
    wefti_strides(&s.x, s.strides);
    WEFT_RETURN_IF_ERROR(elements ? read_elements(node, &s) : read_slices(node, &s));
    WEFT_RETURN_IF_ERROR(check_moved(&s, scatters ? &node->inputs[2] : &node->outputs[0]));
    if (scatters) {
        WEFT_RETURN_IF_ERROR(read_reduction(node, &s.reduction));
        if (!wefti_same_shape(&s.x, &node->outputs[0]) || s.x.dtype != node->outputs[0].dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output 0 is not like input 0");
        }
        const uint32_t known = (WEFTI_BIT_NUMBERS | (s.reduction == REPLACE ? WEFTI_BIT_ALL : 0)) &
                               ~(s.reduction == REPLACE ? 0 : WEFT_DTYPE_BIT(WEFT_DTYPE_U64));
        if ((WEFT_DTYPE_BIT(s.x.dtype) & known) == 0) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for type %s", node->op,
                               weft_dtype_name(s.x.dtype));
        }
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = s;
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

/* ROW(operator, symbol, one index per element, scatters, run) */
#define INDEXED(ROW)                                                                               \
    ROW("GatherElements", gather_elements, true, false, run_gather)                                \
    ROW("GatherND", gather_nd, false, false, run_gather)                                           \
    ROW("Scatter", scatter, true, true, run_scatter)                                               \
    ROW("ScatterElements", scatter_elements, true, true, run_scatter)                              \
    ROW("ScatterND", scatter_nd, false, true, run_scatter)
#define PREPARE_OF(name, symbol, elements, scatters, run)                                          \
    static weft_status_t prepare_##symbol(const weft_node_desc_t *node,                            \
                                          const weft_kernel_env_t *env, void **out_state,          \
                                          size_t *out_scratch_bytes)                               \
    {                                                                                              \
        (void)env;                                                                                 \
        return prepare(node, elements, scatters, out_state, out_scratch_bytes);                    \
    }
INDEXED(PREPARE_OF)
#define KERNEL_OF(name, symbol, elements, scatters, run)                                           \
    WEFTI_KERNEL_VALUE("", name, prepare_##symbol, run),
static const weft_kernel_t kernels[] = {INDEXED(KERNEL_OF)};

wefti_kernel_family_t wefti_kernels_scatter(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
