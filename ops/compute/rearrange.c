/* SPDX-License-Identifier: Apache-2.0 */
/* Tile, DepthToSpace and SpaceToDepth with gradients, OneHot, EyeLike; of any type. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef struct {
    wefti_nest_t nest; /* a: X, b: Y */
    size_t elem_bytes;
} copy_t;

static weft_status_t run_copy(const weft_kernel_call_t *call)
{
    const copy_t *s = call->state;
    wefti_nest_copy(&s->nest, call->inputs[0], call->outputs[0], s->elem_bytes);
    return WEFT_OK;
}

static weft_status_t keep(const wefti_nest_t *nest, weft_dtype_t dtype, void **out_state,
                          size_t *out_scratch_bytes)
{
    copy_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (copy_t){*nest, weft_dtype_size_bytes(dtype)};
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

/* The tensors of a copy; X is input index. */
static weft_status_t need(const weft_node_desc_t *node, uint32_t inputs)
{
    for (uint32_t i = 0; i < inputs; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
    }
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    for (uint32_t i = 0; i < inputs; i++) {
        if (node->inputs[i].layout != WEFT_LAYOUT_PLAIN ||
            node->outputs[0].layout != WEFT_LAYOUT_PLAIN) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: tensors must be plain", node->op);
        }
    }
    return WEFT_OK;
}

#define PREPARE(name)                                                                              \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)

PREPARE(prepare_tile)
{
    int64_t from[WEFT_MAX_DIMS], to[WEFT_MAX_DIMS];
    uint32_t loops = 0;
    wefti_nest_t nest;
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node, 1));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    wefti_strides(x, from);
    wefti_strides(y, to);
    wefti_nest_init(&nest);
    bool fits = x->dtype == y->dtype && x->rank == y->rank;
    for (uint32_t d = 0; d < x->rank && fits; d++) {
        fits = x->dims[d] == 0 ? y->dims[d] == 0 : y->dims[d] % x->dims[d] == 0;
        int64_t repeats = x->dims[d] == 0 || !fits ? 0 : y->dims[d] / x->dims[d];
        loops += (uint32_t)(repeats != 1) + (uint32_t)(x->dims[d] != 1);
        if (loops > WEFT_MAX_DIMS) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "Tile: too many dimensions");
        }
        wefti_nest_add(&nest, repeats, 0, to[d] * x->dims[d]);
        wefti_nest_add(&nest, x->dims[d], from[d], to[d]);
    }
    return fits ? keep(&nest, x->dtype, out_state, out_scratch_bytes)
                : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                              "Tile: the output is not made of copies of the input");
}

/* deep has the blocks in its channels, wide in its rows and columns. */
static weft_status_t prepare_blocks(const weft_node_desc_t *node, const weft_tensor_desc_t *deep,
                                    const weft_tensor_desc_t *wide, bool deep_is_input,
                                    void **out_state, size_t *out_scratch_bytes)
{
    const int64_t block = weft_node_attr_int(node, "blocksize", 0);
    const bool channels_first = strcmp(weft_node_attr_string(node, "mode", "DCR"), "CRD") == 0;
    wefti_nest_t nest;
    if (deep->rank != 4 || wide->rank != 4 || deep->dtype != wide->dtype || block < 1 ||
        block > INT32_MAX || deep->dims[0] != wide->dims[0] ||
        wide->dims[1] > INT64_MAX / (block * block) ||
        deep->dims[1] != wide->dims[1] * block * block || wide->dims[2] % block != 0 ||
        wide->dims[3] % block != 0 || deep->dims[2] != wide->dims[2] / block ||
        deep->dims[3] != wide->dims[3] / block) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: shapes and blocks do not match",
                           node->op);
    }
    int64_t plane = deep->dims[2] * deep->dims[3], columns = wide->dims[3];
    int64_t channels = wide->dims[1];
    /* Strides of the channel and of the row and column in a block, in the channels of deep. */
    int64_t channel = channels_first ? block * block * plane : plane;
    int64_t row = channels_first ? block * plane : block * channels * plane;
    int64_t column = channels_first ? plane : channels * plane;
    const int64_t loops[6][3] = {
        {deep->dims[0], deep->dims[1] * plane, deep->dims[1] * plane},
        {channels, channel, wide->dims[2] * columns},
        {deep->dims[2], deep->dims[3], block * columns},
        {block, row, columns},
        {deep->dims[3], 1, block},
        {block, column, 1},
    };
    wefti_nest_init(&nest);
    for (int i = 0; i < 6; i++) {
        wefti_nest_add(&nest, loops[i][0], loops[i][deep_is_input ? 1 : 2],
                       loops[i][deep_is_input ? 2 : 1]);
    }
    return keep(&nest, deep->dtype, out_state, out_scratch_bytes);
}

PREPARE(prepare_into_space)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node, 1));
    return prepare_blocks(node, &node->inputs[0], &node->outputs[0], true, out_state,
                          out_scratch_bytes);
}

PREPARE(prepare_into_depth)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node, 1));
    return prepare_blocks(node, &node->outputs[0], &node->inputs[0], false, out_state,
                          out_scratch_bytes);
}

typedef struct {
    int64_t outer, depth, inner;
    weft_dtype_t indices;
    size_t elem_bytes;
} one_hot_t;

static weft_status_t run_one_hot(const weft_kernel_call_t *call)
{
    const one_hot_t *s = call->state;
    const size_t size = s->elem_bytes;
    const char *off = call->inputs[2], *on = off + size;
    char *y = call->outputs[0];
    for (int64_t i = 0; i < s->outer * s->depth * s->inner; i++) {
        memcpy(y + (size_t)i * size, off, size);
    }
    for (int64_t o = 0; o < s->outer; o++) {
        for (int64_t i = 0; i < s->inner; i++) {
            wefti_wide_t wide;
            const size_t from = weft_dtype_size_bytes(s->indices);
            const char *x = (const char *)call->inputs[0] + (size_t)(o * s->inner + i) * from;
            int64_t index;
            if (s->indices == WEFT_DTYPE_F32) {
                index = (int64_t) * (const float *)x;
            } else if (s->indices == WEFT_DTYPE_I64) {
                index = *(const int64_t *)x;
            } else {
                wefti_widen(WEFT_ISA_PORTABLE, s->indices, x, 1, &wide);
                index = wide.i64[0];
            }
            index = index < 0 ? index + s->depth : index;
            if (index >= 0 && index < s->depth) { /* others: off everywhere */
                memcpy(y + (size_t)((o * s->depth + index) * s->inner + i) * size, on, size);
            }
        }
    }
    return WEFT_OK;
}

PREPARE(prepare_one_hot)
{
    uint32_t axis;
    (void)env;
    WEFT_RETURN_IF_ERROR(need(node, 3));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", -1), x->rank + 1, "axis", &axis));
    if (y->rank != x->rank + 1 || y->dtype != node->inputs[2].dtype ||
        weft_tensor_elem_count(&node->inputs[2]) != 2 ||
        (x->dtype != WEFT_DTYPE_F32 && x->dtype != WEFT_DTYPE_I64 &&
         wefti_wide_dtype(x->dtype) != WEFT_DTYPE_I64)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "OneHot: no kernel for these types or shapes");
    }
    one_hot_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (one_hot_t){.outer = 1,
                         .depth = y->dims[axis],
                         .inner = 1,
                         .indices = x->dtype,
                         .elem_bytes = weft_dtype_size_bytes(y->dtype)};
    for (uint32_t d = 0; d < x->rank; d++) {
        state->outer *= d < axis ? x->dims[d] : 1;
        state->inner *= d < axis ? 1 : x->dims[d];
    }
    if (weft_tensor_elem_count(y) != state->outer * state->depth * state->inner) {
        wefti_state_free(state);
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "OneHot: the output has the wrong size");
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

typedef struct {
    int64_t rows, columns, k;
    size_t elem_bytes;
    wefti_wide_t one;
} eye_t;

static weft_status_t run_eye(const weft_kernel_call_t *call)
{
    const eye_t *s = call->state;
    char *y = call->outputs[0];
    memset(y, 0, (size_t)(s->rows * s->columns) * s->elem_bytes);
    for (int64_t r = 0; r < s->rows; r++) {
        if (r + s->k >= 0 && r + s->k < s->columns) {
            memcpy(y + (size_t)(r * s->columns + r + s->k) * s->elem_bytes, &s->one, s->elem_bytes);
        }
    }
    return WEFT_OK;
}

PREPARE(prepare_eye)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *y = &node->outputs[0];
    const int64_t k = weft_node_attr_int(node, "k", 0);
    const wefti_wide_t whole = {.i64 = {1}};
    wefti_wide_t half = {.f32 = {1.0f}};
    if (y->rank != 2 || y->layout != WEFT_LAYOUT_PLAIN || k > INT32_MAX || k < -INT32_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "EyeLike: expected a matrix");
    }
    eye_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->rows = y->dims[0];
    state->columns = y->dims[1];
    state->k = k;
    state->elem_bytes = weft_dtype_size_bytes(y->dtype);
    if (y->dtype == WEFT_DTYPE_F64) {
        state->one.f64[0] = 1.0;
    } else if (wefti_wide_dtype(y->dtype) == WEFT_DTYPE_F32 && y->dtype != WEFT_DTYPE_F32) {
        wefti_narrow(WEFT_ISA_PORTABLE, y->dtype, &half, 1, &state->one);
    } else {
        state->one = y->dtype == WEFT_DTYPE_F32 ? half : whole; /* integers: the low bytes */
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static const weft_kernel_t kernels[] = {
    WEFTI_KERNEL_VALUE("", "Tile", prepare_tile, run_copy),
    WEFTI_KERNEL_VALUE("", "DepthToSpace", prepare_into_space, run_copy),
    WEFTI_KERNEL_VALUE("weft", "DepthToSpaceGrad", prepare_into_depth, run_copy),
    WEFTI_KERNEL_VALUE("", "SpaceToDepth", prepare_into_depth, run_copy),
    WEFTI_KERNEL_VALUE("weft", "SpaceToDepthGrad", prepare_into_space, run_copy),
    WEFTI_KERNEL_VALUE("", "OneHot", prepare_one_hot, run_one_hot),
    WEFTI_KERNEL_VALUE("", "EyeLike", prepare_eye, run_eye),
};

wefti_kernel_family_t wefti_kernels_rearrange(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
