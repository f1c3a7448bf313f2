/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity and everything that only changes the shape. In place it is nothing; otherwise a copy,
 * which permutes when exactly one side is channels-last (that is how layouts are changed, too).
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef struct {
    enum { COPY, TO_PLAIN, TO_LAST, BOTH_LAST } mode;
    size_t elem_bytes, bytes;
    int64_t n, c, pixels; /* of the side that is channels-last; the input's when both are */
    int64_t out_c, out_pixels;
    uint32_t threads;
} state_t;

/* Rows and columns of n matrices are exchanged: [rows][columns] becomes [columns][rows]. */
static void exchange(const char *src, char *dst, int64_t n, int64_t rows, int64_t columns,
                     size_t elem)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < columns; c++) {
            if (elem == sizeof(float)) {
                for (int64_t r = 0; r < rows; r++) {
                    memcpy(dst + 4 * (c * rows + r), src + 4 * (r * columns + c), 4);
                }
                continue;
            }
            for (int64_t r = 0; r < rows; r++) {
                memcpy(dst + elem * (size_t)(c * rows + r), src + elem * (size_t)(r * columns + c),
                       elem);
            }
        }
        src += elem * (size_t)(rows * columns);
        dst += elem * (size_t)(rows * columns);
    }
}

/* Where element index of plain order lies in a channels-last tensor. */
static int64_t last_offset(int64_t index, int64_t c, int64_t pixels)
{
    int64_t n = index / (c * pixels), channel = index / pixels % c, pixel = index % pixels;
    return (n * pixels + pixel) * c + channel;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const char *src = call->inputs[0];
    char *dst = call->outputs[0];
    if (s->bytes == 0 || (src == dst && s->mode == COPY)) {
        return WEFT_OK;
    }
    if (src == dst) { /* in place, but every element moves */
        src = memcpy(call->scratch, src, s->bytes);
    }
    switch (s->mode) {
    case COPY:
        wefti_copy_by(s->threads, src, dst, s->bytes);
        break;
    case TO_PLAIN:
        exchange(src, dst, s->n, s->pixels, s->c, s->elem_bytes);
        break;
    case TO_LAST:
        exchange(src, dst, s->n, s->c, s->pixels, s->elem_bytes);
        break;
    case BOTH_LAST:
        for (int64_t i = 0; i < (int64_t)(s->bytes / s->elem_bytes); i++) {
            memcpy(dst + s->elem_bytes * (size_t)last_offset(i, s->out_c, s->out_pixels),
                   src + s->elem_bytes * (size_t)last_offset(i, s->c, s->pixels), s->elem_bytes);
        }
        break;
    }
    return WEFT_OK;
}

/* Channels-last differs from plain only with several channels and several pixels. */
static bool is_last(const weft_tensor_desc_t *t)
{
    return t->layout == WEFT_LAYOUT_CHANNELS_LAST && t->dims[1] != 1 &&
           t->dims[2] * t->dims[3] != 1;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (x->dtype != y->dtype || weft_tensor_elem_count(x) != weft_tensor_elem_count(y)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input 0 and output 0 differ in type or size");
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->threads = wefti_kernel_threads(env);
    state->elem_bytes = weft_dtype_size_bytes(x->dtype);
    state->bytes = state->elem_bytes * (size_t)weft_tensor_elem_count(x);
    const weft_tensor_desc_t *last = is_last(x) ? x : y;
    if (is_last(x) || is_last(y)) {
        state->mode = !is_last(y) ? TO_PLAIN : !is_last(x) ? TO_LAST : BOTH_LAST;
        state->n = last->dims[0];
        state->c = last->dims[1];
        state->pixels = last->dims[2] * last->dims[3];
    }
    if (state->mode == BOTH_LAST) {
        state->out_c = y->dims[1];
        state->out_pixels = y->dims[2] * y->dims[3];
        if (memcmp(x->dims, y->dims, 4 * sizeof(x->dims[0])) == 0) {
            state->mode = COPY;
        }
    }
    *out_state = state;
    *out_scratch_bytes = state->mode == COPY ? 0 : state->bytes;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_identity, "", "Identity", prepare, run);
WEFTI_KERNEL(wefti_kernel_reshape, "", "Reshape", prepare, run);
WEFTI_KERNEL(wefti_kernel_flatten, "", "Flatten", prepare, run);
WEFTI_KERNEL(wefti_kernel_squeeze, "", "Squeeze", prepare, run);
WEFTI_KERNEL(wefti_kernel_unsqueeze, "", "Unsqueeze", prepare, run);
