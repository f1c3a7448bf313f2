/* SPDX-License-Identifier: Apache-2.0 */
/* Pad with a constant, and PadGrad, which is the same copy with the sign of the pads changed. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Output index o of a dimension is input index o - begin; outside of the input it is the fill
 * value. */
typedef struct {
    uint32_t rank; /* at least 1; dimensions in memory order */
    int64_t in[WEFT_MAX_DIMS], out[WEFT_MAX_DIMS], begin[WEFT_MAX_DIMS];
    int64_t in_stride[WEFT_MAX_DIMS];
    bool empty;
    float value; /* when there is no input with it */
    bool value_is_input;
} state_t;

static void fill(float *y, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++) {
        y[i] = value;
    }
}

/* One run along the innermost dimension; x is NULL where an outer index lies in the padding. */
static void pad_row(const state_t *s, const float *x, float value, float *y)
{
    uint32_t last = s->rank - 1;
    int64_t begin = s->begin[last], size = s->out[last];
    int64_t from = begin < 0 ? 0 : begin > size ? size : begin;
    int64_t to = begin + s->in[last];
    to = to > size ? size : to;
    if (x == NULL || to <= from) {
        fill(y, size, value);
        return;
    }
    fill(y, from, value);
    memcpy(y + from, x + (from - begin), (size_t)(to - from) * sizeof(*y));
    fill(y + to, size - to, value);
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    float value = s->value;
    int64_t index[WEFT_MAX_DIMS] = {0};
    if (s->empty) {
        return WEFT_OK;
    }
    if (s->value_is_input && call->inputs[2] != NULL) {
        value = *(const float *)call->inputs[2];
    }
    for (;;) {
        int64_t offset = 0;
        bool inside = true;
        for (uint32_t d = 0; d + 1 < s->rank; d++) {
            int64_t i = index[d] - s->begin[d];
            inside = inside && i >= 0 && i < s->in[d];
            offset += i * s->in_stride[d];
        }
        pad_row(s, inside ? x + offset : NULL, value, y);
        y += s->out[s->rank - 1];
        uint32_t d = s->rank - 1;
        while (d > 0 && ++index[d - 1] == s->out[d - 1]) {
            index[--d] = 0;
        }
        if (d == 0) {
            return WEFT_OK;
        }
    }
}

/* Dimensions without padding become part of the one outside them: longer runs. */
static void collapse(state_t *s, const weft_tensor_desc_t *x, const weft_tensor_desc_t *y,
                     const int64_t *begin)
{
    uint32_t order[WEFT_MAX_DIMS];
    wefti_memory_order(x, order);
    s->rank = 1;
    s->in[0] = s->out[0] = 1;
    for (uint32_t i = 0; i < x->rank; i++) {
        uint32_t d = order[i], last = s->rank - 1;
        s->empty = s->empty || y->dims[d] == 0;
        if (i > 0 && (begin[d] != 0 || x->dims[d] != y->dims[d])) {
            last = s->rank++;
            s->in[last] = x->dims[d];
            s->out[last] = y->dims[d];
            s->begin[last] = begin[d];
        } else {
            s->begin[last] = i == 0 ? begin[d] : s->begin[last] * x->dims[d];
            s->in[last] *= x->dims[d];
            s->out[last] *= y->dims[d];
        }
    }
    int64_t stride = 1;
    for (uint32_t d = s->rank; d-- > 0;) {
        s->in_stride[d] = stride;
        stride *= s->in[d];
    }
}

static weft_status_t prepare(const weft_node_desc_t *node, const int64_t *pads, int sign,
                             state_t **out_state, size_t *out_scratch_bytes)
{
    int64_t begin[WEFT_MAX_DIMS];
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (x->rank != y->rank || x->layout != y->layout) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "input and output differ in rank or layout");
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        int64_t size = x->dims[d];
        begin[d] = sign * pads[d];
        if (__builtin_add_overflow(size, begin[d], &size) ||
            __builtin_add_overflow(size, sign * pads[x->rank + d], &size) || size != y->dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "pads do not match dimension %u of the output", d);
        }
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    collapse(state, x, y, begin);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare_pad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                 void **out_state, size_t *out_scratch_bytes)
{
    int64_t pads[2 * WEFT_MAX_DIMS];
    bool known;
    state_t *state = NULL;
    (void)env;
    const char *mode = weft_node_attr_string(node, "mode", "constant");
    if (strcmp(mode, "constant") != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Pad: unsupported mode '%s'", mode);
    }
    WEFT_RETURN_IF_ERROR(wefti_pad_amounts(node, pads, &known));
    if (!known) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "Pad: pads must be constant");
    }
    if (node->version >= 11 && wefti_infer_input(node, 2) != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 2));
        if (weft_tensor_elem_count(&node->inputs[2]) != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Pad: input 2 must have one element");
        }
    }
    WEFT_RETURN_IF_ERROR(prepare(node, pads, 1, &state, out_scratch_bytes));
    state->value = node->version < 11 ? weft_node_attr_float(node, "value", 0.0f) : 0.0f;
    state->value_is_input = node->version >= 11 && node->input_count > 2;
    *out_state = state;
    return WEFT_OK;
}

static weft_status_t prepare_pad_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                      void **out_state, size_t *out_scratch_bytes)
{
    int64_t pads[2 * WEFT_MAX_DIMS];
    uint32_t count;
    state_t *state = NULL;
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "pads", pads, 2 * WEFT_MAX_DIMS, &count));
    for (uint32_t i = 0; i < count; i++) {
        if (count != 2 * node->inputs[0].rank || pads[i] < 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute pads has %u entries for %u dimensions, or a negative one",
                               count, node->inputs[0].rank);
        }
    }
    if (count != 2 * node->inputs[0].rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute pads is missing");
    }
    WEFT_RETURN_IF_ERROR(prepare(node, pads, -1, &state, out_scratch_bytes));
    *out_state = state;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_pad, "", "Pad", prepare_pad, run);
WEFTI_KERNEL(wefti_kernel_pad_grad, "weft", "PadGrad", prepare_pad_grad, run);
