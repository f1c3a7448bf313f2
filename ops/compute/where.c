/* SPDX-License-Identifier: Apache-2.0 */
/* Where: an element of X or of Y, by a condition; all three broadcast. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

typedef struct {
    wefti_nest_t nest; /* a: the condition, b: X, c: Y */
    size_t elem_bytes;
    weft_isa_t isa;
    int64_t row; /* elements of the result per index of the outermost dimension */
    uint32_t threads;
} state_t;

#define SELECT(symbol, type)                                                                       \
    WEFTI_INLINE void symbol##_body(const uint8_t *c, int64_t sc, const void *vx, int64_t sx,      \
                                    const void *vy, int64_t sy, void *vz, int64_t count)           \
    {                                                                                              \
        const type *x = vx, *y = vy;                                                               \
        type *z = vz;                                                                              \
        if (sc == 1 && sx == 1 && sy == 1) {                                                       \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                type a = x[i], b = y[i];                                                           \
                z[i] = c[i] ? a : b;                                                               \
            }                                                                                      \
        } else if (sc == 1 && sx == 1 && sy == 0) {                                                \
            type b = y[0];                                                                         \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                type a = x[i];                                                                     \
                z[i] = c[i] ? a : b;                                                               \
            }                                                                                      \
        } else if (sc == 1 && sx == 0 && sy == 1) {                                                \
            type a = x[0];                                                                         \
            WEFTI_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                type b = y[i];                                                                     \
                z[i] = c[i] ? a : b;                                                               \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < count; i++) {                                                  \
                z[i] = c[i * sc] ? x[i * sx] : y[i * sy];                                          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    WEFTI_CLONES(symbol,                                                                           \
                 (const uint8_t *c, int64_t sc, const void *vx, int64_t sx, const void *vy,        \
                  int64_t sy, void *vz, int64_t count),                                            \
                 (c, sc, vx, sx, vy, sy, vz, count))

/* By the size of an element. */
SELECT(select_4, uint32_t);
SELECT(select_2, uint16_t);

static void select_bytes(const uint8_t *c, int64_t sc, const char *x, int64_t sx, const char *y,
                         int64_t sy, char *z, int64_t count, size_t elem)
{
    for (int64_t i = 0; i < count; i++) {
        const char *from = c[i * sc] ? x + (int64_t)elem * i * sx : y + (int64_t)elem * i * sy;
        memmove(z + (int64_t)elem * i, from, elem);
    }
}

/* Indices of the outermost dimension. */
static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    wefti_nest_t n = s->nest;
    const int64_t elem = (int64_t)s->elem_bytes;
    const uint32_t last = n.rank - 1;
    wefti_nest_at_t at = {0};
    n.dims[0] = range.to - range.from;
    const uint8_t *conditions = (const uint8_t *)call->inputs[0] + range.from * n.a[0];
    const char *xs = (const char *)call->inputs[1] + elem * range.from * n.b[0];
    const char *ys = (const char *)call->inputs[2] + elem * range.from * n.c[0];
    char *z = (char *)call->outputs[0] + elem * range.from * s->row;
    do {
        const int64_t count = n.dims[last];
        const uint8_t *c = conditions + at.a;
        const char *x = xs + elem * at.b, *y = ys + elem * at.c;
        if (elem == sizeof(uint32_t)) {
            select_4[s->isa](c, n.a[last], x, n.b[last], y, n.c[last], z, count);
        } else if (elem == sizeof(uint16_t)) {
            select_2[s->isa](c, n.a[last], x, n.b[last], y, n.c[last], z, count);
        } else {
            select_bytes(c, n.a[last], x, n.b[last], y, n.c[last], z, count, s->elem_bytes);
        }
        z += elem * count;
    } while (wefti_nest_next(&n, &at));
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    if (!s->nest.empty) {
        wefti_parallel_for(s->threads, s->nest.dims[0], wefti_grain_rows(s->row), run_range, call);
    }
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    int64_t strides[3][WEFT_MAX_DIMS];
    for (uint32_t i = 0; i < 3; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
    }
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *z = &node->outputs[0];
    if (node->inputs[0].dtype != WEFT_DTYPE_BOOL || node->inputs[1].dtype != z->dtype ||
        node->inputs[2].dtype != z->dtype) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "Where: the condition must be bool, and X, Y and the result one type");
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (node->inputs[i].layout != WEFT_LAYOUT_PLAIN || z->layout != WEFT_LAYOUT_PLAIN) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "Where: all tensors must have plain layout");
        }
        WEFT_RETURN_IF_ERROR(
            wefti_broadcast_strides(&node->inputs[i], z, "an input of Where", strides[i]));
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_nest_init(&state->nest);
    for (uint32_t d = 0; d < z->rank; d++) {
        wefti_nest_add3(&state->nest, z->dims[d], strides[0][d], strides[1][d], strides[2][d]);
    }
    state->elem_bytes = weft_dtype_size_bytes(z->dtype);
    state->isa = wefti_kernel_isa(env);
    state->threads = wefti_kernel_threads(env);
    state->row = 1;
    for (uint32_t d = 1; d < state->nest.rank; d++) {
        state->row *= state->nest.dims[d];
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_where, "", "Where", prepare, run);
