/* SPDX-License-Identifier: Apache-2.0 */
/* Slice, its gradient, Split, Concat, Expand and Trilu: copies with strides, of any type. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* One copy: from a strided place of one tensor to one of another. */
typedef struct {
    wefti_nest_t nest;
    size_t a_offset, b_offset, elem_bytes;
    size_t clear_bytes; /* of the output, before the copy */
    uint32_t threads;
} state_t;

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    if (s->clear_bytes > 0) {
        memset(call->outputs[0], 0, s->clear_bytes);
    }
    if (!s->nest.empty) {
        wefti_nest_copy_by(s->threads, &s->nest, (const char *)call->inputs[0] + s->a_offset,
                           (char *)call->outputs[0] + s->b_offset, s->elem_bytes);
    }
    return WEFT_OK;
}

static weft_status_t need_plain(const weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (x->dtype != y->dtype || x->layout != WEFT_LAYOUT_PLAIN || y->layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: input and output must have one type and plain layout", node->op);
    }
    return WEFT_OK;
}

/* Element i of dimension d of part is element first[d] + i * step[d] of whole. */
static weft_status_t fill_slice(state_t *s, const weft_tensor_desc_t *whole,
                                const weft_tensor_desc_t *part, const wefti_slice_range_t *slice,
                                bool part_is_a)
{
    int64_t large[WEFT_MAX_DIMS], small[WEFT_MAX_DIMS], offset = 0;
    wefti_strides(whole, large);
    wefti_strides(part, small);
    wefti_nest_init(&s->nest);
    for (uint32_t d = 0; d < whole->rank; d++) {
        int64_t size = part->dims[d], first = slice->first[d], stride = 0, last = 0;
        if (size > 0 && (__builtin_mul_overflow(slice->step[d], size - 1, &last) ||
                         __builtin_add_overflow(first, last, &last) || first < 0 ||
                         first >= whole->dims[d] || last < 0 || last >= whole->dims[d])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the slice leaves dimension %u", d);
        }
        stride = size > 1 ? large[d] * slice->step[d] : 0;
        offset += size > 0 ? first * large[d] : 0;
        wefti_nest_add(&s->nest, size, part_is_a ? small[d] : stride,
                       part_is_a ? stride : small[d]);
    }
    s->elem_bytes = weft_dtype_size_bytes(whole->dtype);
    *(part_is_a ? &s->b_offset : &s->a_offset) = s->nest.empty ? 0 : (size_t)offset * s->elem_bytes;
    return WEFT_OK;
}

static weft_status_t keep(weft_status_t status, state_t *state, void **out_state,
                          size_t *out_scratch_bytes)
{
    if (status < 0) {
        wefti_state_free(state);
        return status;
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare_slice(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes)
{
    wefti_slice_range_t slice;
    WEFT_RETURN_IF_ERROR(need_plain(node));
    WEFT_RETURN_IF_ERROR(wefti_slice_resolve(node, &slice));
    if (!slice.known || node->inputs[0].rank != node->outputs[0].rank) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Slice: starts, ends, axes and steps must be "
                                                 "constants that match the output");
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->threads = wefti_kernel_threads(env);
    return keep(fill_slice(state, &node->inputs[0], &node->outputs[0], &slice, false), state,
                out_state, out_scratch_bytes);
}

static weft_status_t prepare_slice_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                        void **out_state, size_t *out_scratch_bytes)
{
    wefti_slice_range_t slice;
    uint32_t starts, steps;
    WEFT_RETURN_IF_ERROR(need_plain(node));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "starts", slice.first, WEFT_MAX_DIMS, &starts));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "steps", slice.step, WEFT_MAX_DIMS, &steps));
    const weft_tensor_desc_t *dy = &node->inputs[0], *dx = &node->outputs[0];
    if (dy->rank != dx->rank || starts != dx->rank || steps != dx->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attributes starts and steps need one entry per dimension");
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->threads = wefti_kernel_threads(env);
    state->clear_bytes = (size_t)weft_tensor_elem_count(dx) * weft_dtype_size_bytes(dx->dtype);
    return keep(fill_slice(state, dx, dy, &slice, true), state, out_state, out_scratch_bytes);
}

static weft_status_t prepare_expand(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    void **out_state, size_t *out_scratch_bytes)
{
    int64_t from[WEFT_MAX_DIMS], to[WEFT_MAX_DIMS];
    WEFT_RETURN_IF_ERROR(need_plain(node));
    const weft_tensor_desc_t *y = &node->outputs[0];
    WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(&node->inputs[0], y, "input 0", from));
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_strides(y, to);
    wefti_nest_init(&state->nest);
    for (uint32_t d = 0; d < y->rank; d++) {
        wefti_nest_add(&state->nest, y->dims[d], from[d], to[d]);
    }
    state->threads = wefti_kernel_threads(env);
    state->elem_bytes = weft_dtype_size_bytes(y->dtype);
    return keep(WEFT_OK, state, out_state, out_scratch_bytes);
}

/* A whole tensor in outer blocks; each holds a row of every part, one after the other. */
typedef struct {
    size_t outer, total; /* bytes of a block */
    uint32_t count, threads;
    size_t bytes[]; /* of a row of each part */
} parts_t;

/* Part k of all blocks. */
static wefti_nest_t nest_of(const parts_t *s, uint32_t k, bool from_whole)
{
    wefti_nest_t nest;
    const int64_t whole = (int64_t)s->total, part = (int64_t)s->bytes[k];
    wefti_nest_init(&nest);
    wefti_nest_add(&nest, (int64_t)s->outer, from_whole ? whole : part, from_whole ? part : whole);
    wefti_nest_add(&nest, part, 1, 1);
    return nest;
}

static weft_status_t run_split(const weft_kernel_call_t *call)
{
    const parts_t *s = call->state;
    const char *x = call->inputs[0];
    for (uint32_t k = 0; k < s->count; x += s->bytes[k++]) {
        const wefti_nest_t nest = nest_of(s, k, true);
        if (call->outputs[k] != NULL) {
            wefti_nest_copy_by(s->threads, &nest, x, call->outputs[k], 1);
        }
    }
    return WEFT_OK;
}

static weft_status_t run_concat(const weft_kernel_call_t *call)
{
    const parts_t *s = call->state;
    char *y = call->outputs[0];
    for (uint32_t k = 0; k < s->count; y += s->bytes[k++]) {
        const wefti_nest_t nest = nest_of(s, k, false);
        wefti_nest_copy_by(s->threads, &nest, call->inputs[k], y, 1);
    }
    return WEFT_OK;
}

/* sizes: of the parts along axis; a part may be absent. */
static weft_status_t keep_parts(const weft_kernel_env_t *env, const weft_tensor_desc_t *whole,
                                uint32_t axis, const weft_tensor_desc_t *parts,
                                const int64_t *sizes, uint32_t count, void **out_state,
                                size_t *out_scratch_bytes)
{
    size_t inner = weft_dtype_size_bytes(whole->dtype), outer = 1, total = 0;
    parts_t *state = wefti_state_alloc(sizeof(*state) + count * sizeof(state->bytes[0]));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t d = 0; d < whole->rank; d++) {
        *(d < axis ? &outer : &inner) *= d == axis ? 1 : (size_t)whole->dims[d];
    }
    *state = (parts_t){outer, inner * (size_t)whole->dims[axis], count, wefti_kernel_threads(env)};
    bool fits = whole->layout == WEFT_LAYOUT_PLAIN;
    for (uint32_t k = 0; k < count && fits; k++) {
        const weft_tensor_desc_t *part = &parts[k];
        fits = sizes[k] >= 0 && sizes[k] <= whole->dims[axis];
        state->bytes[k] = fits ? inner * (size_t)sizes[k] : 0;
        total += state->bytes[k];
        fits =
            fits && (part->dtype == WEFT_DTYPE_NONE ||
                     (part->dtype == whole->dtype && part->layout == WEFT_LAYOUT_PLAIN &&
                      (size_t)weft_tensor_elem_count(part) * weft_dtype_size_bytes(part->dtype) ==
                          outer * state->bytes[k]));
    }
    if (!fits || total != state->total) {
        wefti_state_free(state);
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "the parts do not match the whole tensor in type, size or layout");
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare_split(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes)
{
    int64_t sizes[WEFTI_SPLIT_MAX];
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_split_sizes(node, &axis, sizes));
    return keep_parts(env, &node->inputs[0], axis, node->outputs, sizes, node->output_count,
                      out_state, out_scratch_bytes);
}

static weft_status_t prepare_concat(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    void **out_state, size_t *out_scratch_bytes)
{
    int64_t sizes[WEFTI_SPLIT_MAX];
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *y = &node->outputs[0];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 1), y->rank, "axis", &axis));
    if (node->input_count > WEFTI_SPLIT_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%u inputs: at most %d", node->input_count,
                           WEFTI_SPLIT_MAX);
    }
    for (uint32_t k = 0; k < node->input_count; k++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, k), "input", k));
        sizes[k] = axis < node->inputs[k].rank ? node->inputs[k].dims[axis] : -1;
    }
    return keep_parts(env, y, axis, node->inputs, sizes, node->input_count, out_state,
                      out_scratch_bytes);
}

/* Trilu: rows [rows, columns] of elements, those above or below a diagonal are 0. */
typedef struct {
    int64_t matrices, rows, columns, elem, diagonal;
    bool upper, has_diagonal;
} trilu_t;

static weft_status_t run_trilu(const weft_kernel_call_t *call)
{
    const trilu_t *s = call->state;
    const char *x = call->inputs[0];
    char *y = call->outputs[0];
    int64_t diagonal = s->has_diagonal ? *(const int64_t *)call->inputs[1] : 0;
    for (int64_t m = 0; m < s->matrices; m++) {
        for (int64_t r = 0; r < s->rows;
             r++, x += s->columns * s->elem, y += s->columns * s->elem) {
            /* Columns from r + diagonal on are kept (upper), or up to it (lower). */
            int64_t at = diagonal > s->columns ? s->columns
                         : diagonal < -s->rows ? -s->rows
                                               : diagonal;
            at += r + (s->upper ? 0 : 1);
            at = (at < 0 ? 0 : at > s->columns ? s->columns : at) * s->elem;
            int64_t size = s->columns * s->elem;
            memmove(y, x, (size_t)size);
            memset(s->upper ? y : y + at, 0, (size_t)(s->upper ? at : size - at));
        }
    }
    return WEFT_OK;
}

static weft_status_t prepare_trilu(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(need_plain(node));
    const weft_tensor_desc_t *x = &node->inputs[0], *k = wefti_infer_input(node, 1);
    if (x->rank < 2 || !wefti_same_shape(x, &node->outputs[0]) ||
        (k != NULL && (k->dtype != WEFT_DTYPE_I64 || weft_tensor_elem_count(k) != 1))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Trilu: X must be matrices and k one i64");
    }
    trilu_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->rows = x->dims[x->rank - 2];
    state->columns = x->dims[x->rank - 1];
    state->matrices = state->rows * state->columns == 0
                          ? 0
                          : weft_tensor_elem_count(x) / (state->rows * state->columns);
    state->elem = (int64_t)weft_dtype_size_bytes(x->dtype);
    state->upper = weft_node_attr_int(node, "upper", 1) != 0;
    state->has_diagonal = k != NULL;
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_slice, "", "Slice", prepare_slice, run);
WEFTI_KERNEL(wefti_kernel_slice_grad, "weft", "SliceGrad", prepare_slice_grad, run);
WEFTI_KERNEL(wefti_kernel_expand, "", "Expand", prepare_expand, run);
WEFTI_KERNEL(wefti_kernel_split, "", "Split", prepare_split, run_split);
WEFTI_KERNEL(wefti_kernel_concat, "", "Concat", prepare_concat, run_concat);
WEFTI_KERNEL(wefti_kernel_trilu, "", "Trilu", prepare_trilu, run_trilu);
