/* SPDX-License-Identifier: Apache-2.0 */
/* Transpose of plain tensors of any type; matrices go in tiles so that both sides stay in cache. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define TILE 32

typedef struct {
    wefti_nest_t nest; /* over the output; a: stride in the input, b: in the output */
    size_t elem_bytes;
} state_t;

/* y[i] = x[i * stride] */
static void copy_run(const char *x, int64_t stride, char *y, int64_t count, size_t elem)
{
    if (stride == 1) {
        memcpy(y, x, (size_t)count * elem);
    } else if (elem == 4) {
        for (int64_t i = 0; i < count; i++) {
            memcpy(y + 4 * i, x + 4 * i * stride, 4);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            memcpy(y + (int64_t)elem * i, x + (int64_t)elem * i * stride, elem);
        }
    }
}

static void copy_tiles(const wefti_nest_t *nest, const char *x, char *y, size_t elem)
{
    int64_t rows = nest->dims[0], columns = nest->dims[1], size = (int64_t)elem;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
        for (int64_t c0 = 0; c0 < columns; c0 += TILE) {
            int64_t width = columns - c0 < TILE ? columns - c0 : TILE;
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++) {
                copy_run(x + size * (r * nest->a[0] + c0 * nest->a[1]), nest->a[1],
                         y + size * (r * columns + c0), width, elem);
            }
        }
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const wefti_nest_t *nest = &s->nest;
    const char *x = call->inputs[0];
    char *y = call->outputs[0];
    wefti_nest_at_t at = {0};
    uint32_t last = nest->rank - 1;
    if (nest->empty) {
        return WEFT_OK;
    }
    if (nest->rank == 2) {
        copy_tiles(nest, x, y, s->elem_bytes);
        return WEFT_OK;
    }
    do {
        copy_run(x + (int64_t)s->elem_bytes * at.a, nest->dims[last] == 1 ? 1 : nest->a[last],
                 y + (int64_t)s->elem_bytes * at.b, nest->dims[last], s->elem_bytes);
    } while (wefti_nest_next(nest, &at));
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    int64_t perm[WEFT_MAX_DIMS], from[WEFT_MAX_DIMS], to[WEFT_MAX_DIMS];
    uint32_t count, seen = 0;
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "perm", perm, WEFT_MAX_DIMS, &count));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (x->layout != WEFT_LAYOUT_PLAIN || y->layout != WEFT_LAYOUT_PLAIN || x->dtype != y->dtype ||
        x->rank != y->rank || (weft_node_attr(node, "perm") != NULL && count != x->rank)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Transpose: input, output and perm do not match");
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        perm[d] = count == 0 ? (int64_t)x->rank - 1 - d : perm[d];
        if (perm[d] < 0 || perm[d] >= x->rank || (seen & (1u << perm[d])) != 0 ||
            x->dims[perm[d]] != y->dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "Transpose: perm does not match the shape of the output");
        }
        seen |= 1u << perm[d];
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_strides(x, from);
    wefti_strides(y, to);
    wefti_nest_init(&state->nest);
    for (uint32_t d = 0; d < y->rank; d++) {
        wefti_nest_add(&state->nest, y->dims[d], from[perm[d]], to[d]);
    }
    state->elem_bytes = weft_dtype_size_bytes(x->dtype);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_transpose, "", "Transpose", prepare, run);
