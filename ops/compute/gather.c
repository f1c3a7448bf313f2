/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather and its gradient. The gradient adds rows in the order of the indices: the
 * same bits in every run.
 *
 *   X [outer, length, inner], indices [count]  ->  Y [outer, count, inner]
 */
#include "ops/compute/own_kernels.h"

#include <inttypes.h>
#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

typedef struct {
    int64_t outer, length, inner, count;
    size_t elem_bytes;
    bool wide; /* indices are i64 */
    weft_isa_t isa;
    uint32_t threads;
} state_t;

static int64_t index_at(const state_t *s, const void *indices, int64_t i)
{
    int64_t index = s->wide ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
    return index < 0 ? index + s->length : index;
}

static weft_status_t check_indices(const state_t *s, const void *indices, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t index = index_at(s, indices, i);
        if (index < 0 || index >= s->length) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "indices: element %" PRId64 " is outside [-%" PRId64 ", %" PRId64
                               ")",
                               i, s->length, s->length);
        }
    }
    return WEFT_OK;
}

/* Rows of the result. */
static void gather_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const size_t row = (size_t)s->inner * s->elem_bytes;
    for (int64_t i = range.from; i < range.to; i++) {
        const int64_t from = i / s->count * s->length + index_at(s, call->inputs[1], i % s->count);
        memcpy((char *)call->outputs[0] + (size_t)i * row,
               (const char *)call->inputs[0] + (size_t)from * row, row);
    }
}

static weft_status_t run_gather(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    WEFT_RETURN_IF_ERROR(check_indices(s, call->inputs[1], s->count));
    if (s->inner > 0) {
        wefti_parallel_for(s->threads, s->outer * s->count, wefti_grain_rows(s->inner),
                           gather_range, call);
    }
    return WEFT_OK;
}

WEFTI_INLINE void add_row_body(const float *x, float *y, int64_t count)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] += x[i];
    }
}
WEFTI_CLONES(add_row, (const float *x, float *y, int64_t count), (x, y, count));

/* Columns of all rows, which are added in the order of the indices. */
static void grad_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const int64_t width = range.to - range.from;
    const float *dy = (const float *)call->inputs[0] + range.from;
    float *dx = (float *)call->outputs[0] + range.from;
    const bool whole = width == s->inner;
    const int64_t rows = s->outer * s->length, step = whole ? rows : 1;
    for (int64_t i = 0; i < rows; i += step) {
        memset(dx + i * s->inner, 0, (size_t)(step * width) * sizeof(*dx));
    }
    for (int64_t o = 0; o < s->outer; o++) {
        for (int64_t i = 0; i < s->count; i++, dy += s->inner) {
            add_row[s->isa](dy, dx + index_at(s, call->inputs[1], i) * s->inner, width);
        }
        dx += s->length * s->inner;
    }
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const int64_t rows = s->outer * (s->length + s->count);
    WEFT_RETURN_IF_ERROR(check_indices(s, call->inputs[1], s->count));
    /* Whole lines of memory, of work that is worth a thread. */
    const int64_t grain = (wefti_grain_rows(rows) + 15) / 16 * 16;
    wefti_parallel_for(s->threads, s->inner, grain, grad_range, call);
    return WEFT_OK;
}

static weft_status_t keep(const state_t *made, void **out_state, size_t *out_scratch_bytes)
{
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = *made;
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

/* x: the tensor that indices select from; y: what they select. */
static weft_status_t read_node(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                               const weft_tensor_desc_t *x, const weft_tensor_desc_t *y,
                               state_t *out)
{
    uint32_t axis;
    const weft_tensor_desc_t *indices = wefti_infer_input(node, 1);
    WEFT_RETURN_IF_ERROR(wefti_need_known(indices, "input", 1));
    if ((indices->dtype != WEFT_DTYPE_I64 && indices->dtype != WEFT_DTYPE_I32) ||
        x->dtype != y->dtype || x->layout != WEFT_LAYOUT_PLAIN || y->layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: indices must be i64 or i32, and tensors of "
                           "one type in plain layout",
                           node->op);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 0), x->rank, "axis", &axis));
    *out = (state_t){.outer = 1,
                     .length = x->dims[axis],
                     .inner = 1,
                     .count = weft_tensor_elem_count(indices),
                     .elem_bytes = weft_dtype_size_bytes(x->dtype),
                     .wide = indices->dtype == WEFT_DTYPE_I64,
                     .isa = wefti_kernel_isa(env),
                     .threads = wefti_kernel_threads(env)};
    for (uint32_t d = 0; d < x->rank; d++) {
        out->outer *= d < axis ? x->dims[d] : 1;
        out->inner *= d > axis ? x->dims[d] : 1;
    }
    return WEFT_OK;
}

static weft_status_t check_selected(const state_t *s, const weft_tensor_desc_t *y)
{
    int64_t expected;
    if (__builtin_mul_overflow(s->outer, s->count, &expected) ||
        __builtin_mul_overflow(expected, s->inner, &expected) ||
        expected != weft_tensor_elem_count(y)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the number of selected elements does not match the indices");
    }
    return WEFT_OK;
}

static weft_status_t prepare_gather(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    void **out_state, size_t *out_scratch_bytes)
{
    state_t s;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    WEFT_RETURN_IF_ERROR(read_node(node, env, &node->inputs[0], &node->outputs[0], &s));
    WEFT_RETURN_IF_ERROR(check_selected(&s, &node->outputs[0]));
    return keep(&s, out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t s;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    WEFT_RETURN_IF_ERROR(read_node(node, env, &node->outputs[0], &node->inputs[0], &s));
    WEFT_RETURN_IF_ERROR(check_selected(&s, &node->inputs[0]));
    return keep(&s, out_state, out_scratch_bytes);
}

WEFTI_KERNEL(wefti_kernel_gather, "", "Gather", prepare_gather, run_gather);
WEFTI_KERNEL(wefti_kernel_gather_grad, "weft", "GatherGrad", prepare_grad, run_grad);
