/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors from attributes, shapes and numbers: Constant, Shape, Size, ConstantOfShape, Range. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

/* Contents that are known at bind, or one element that fills the output. */
typedef struct {
    size_t bytes, elem_bytes; /* of the output, of an element of data */
    _Alignas(8) unsigned char data[];
} state_t;

static weft_status_t keep(const weft_tensor_desc_t *y, const void *data, size_t data_bytes,
                          void **out_state, size_t *out_scratch_bytes)
{
    state_t *state = wefti_state_alloc(sizeof(*state) + data_bytes);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->bytes = (size_t)weft_tensor_elem_count(y) * weft_dtype_size_bytes(y->dtype);
    state->elem_bytes = data_bytes;
    if (data_bytes > 0) {
        memcpy(state->data, data, data_bytes);
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

/* Repeats data up to the end of the output. */
static weft_status_t run_fill(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    char *y = call->outputs[0];
    size_t filled = s->elem_bytes < s->bytes ? s->elem_bytes : s->bytes;
    if (filled > 0) {
        memcpy(y, s->data, filled);
    }
    while (filled > 0 && filled < s->bytes) {
        size_t more = s->bytes - filled < filled ? s->bytes - filled : filled;
        memcpy(y + filled, y, more);
        filled += more;
    }
    return WEFT_OK;
}

static weft_status_t bad_output(const weft_node_desc_t *node)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: output 0 has the wrong type or size",
                       node->op);
}

static weft_status_t prepare_constant(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                      void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    const weft_attr_t *attr;
    const void *data = NULL;
    int64_t count = 1;
    weft_dtype_t dtype = WEFT_DTYPE_F32;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    if ((attr = weft_node_attr(node, "value")) != NULL && attr->tensor != NULL) {
        dtype = attr->tensor->dtype;
        data = attr->tensor->data;
        count = weft_tensor_elem_count(attr->tensor);
    } else if ((attr = weft_node_attr(node, "value_float")) != NULL) {
        data = &attr->f;
    } else if ((attr = weft_node_attr(node, "value_int")) != NULL) {
        dtype = WEFT_DTYPE_I64;
        data = &attr->i;
    } else if ((attr = weft_node_attr(node, "value_floats")) != NULL) {
        data = attr->floats;
        count = (int64_t)attr->count;
    } else if ((attr = weft_node_attr(node, "value_ints")) != NULL) {
        dtype = WEFT_DTYPE_I64;
        data = attr->ints;
        count = (int64_t)attr->count;
    }
    const weft_tensor_desc_t *y = &node->outputs[0];
    if (y->dtype != dtype || weft_tensor_elem_count(y) != count || (data == NULL && count > 0)) {
        return bad_output(node);
    }
    return keep(y, data, (size_t)count * weft_dtype_size_bytes(dtype), out_state,
                out_scratch_bytes);
}

static weft_status_t prepare_shape(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    int64_t count = weft_tensor_elem_count(y), start = weft_node_attr_int(node, "start", 0);
    start = start < 0 ? start + x->rank : start;
    start = start < 0 ? 0 : start > x->rank ? x->rank : start;
    if (y->dtype != WEFT_DTYPE_I64 || count > x->rank - start) {
        return bad_output(node);
    }
    return keep(y, x->dims + start, (size_t)count * sizeof(int64_t), out_state, out_scratch_bytes);
}

static weft_status_t prepare_size(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    int64_t count = weft_tensor_elem_count(&node->inputs[0]);
    if (node->outputs[0].dtype != WEFT_DTYPE_I64 ||
        weft_tensor_elem_count(&node->outputs[0]) != 1) {
        return bad_output(node);
    }
    return keep(&node->outputs[0], &count, sizeof(count), out_state, out_scratch_bytes);
}

static weft_status_t prepare_constant_of_shape(const weft_node_desc_t *node,
                                               const weft_kernel_env_t *env, void **out_state,
                                               size_t *out_scratch_bytes)
{
    static const float zero = 0.0f;
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *y = &node->outputs[0];
    const weft_attr_t *value = weft_node_attr(node, "value");
    weft_dtype_t dtype = value != NULL ? value->tensor->dtype : WEFT_DTYPE_F32;
    const void *data = value != NULL ? value->tensor->data : &zero;
    if (y->dtype != dtype || data == NULL) {
        return bad_output(node);
    }
    return keep(y, data, weft_dtype_size_bytes(dtype), out_state, out_scratch_bytes);
}

typedef struct {
    weft_dtype_t dtype;
    int64_t count;
} range_t;

/* In f32. */
static void range_of_halves(const range_t *s, const uint16_t *start, const uint16_t *delta,
                            uint16_t *y)
{
    const bool f16 = s->dtype == WEFT_DTYPE_F16;
    float first = f16 ? wefti_f16_to_f32(*start) : wefti_bf16_to_f32(*start);
    float step = f16 ? wefti_f16_to_f32(*delta) : wefti_bf16_to_f32(*delta);
    for (int64_t i = 0; i < s->count; i++) {
        float value = first + (float)i * step;
        y[i] = f16 ? wefti_f16_from_f32(value) : wefti_bf16_from_f32(value);
    }
}

#define RANGE(name, type)                                                                          \
    case WEFT_DTYPE_##name: {                                                                      \
        type start = *(const type *)call->inputs[0], delta = *(const type *)call->inputs[2];       \
        for (int64_t i = 0; i < s->count; i++) {                                                   \
            ((type *)call->outputs[0])[i] = start + (type)i * delta;                               \
        }                                                                                          \
        break;                                                                                     \
    }
static weft_status_t run_range(const weft_kernel_call_t *call)
{
    const range_t *s = call->state;
    switch (s->dtype) {
        RANGE(F64, double)
        RANGE(F32, float)
        RANGE(I64, uint64_t)
        RANGE(I32, uint32_t)
    case WEFT_DTYPE_F16:
    case WEFT_DTYPE_BF16:
        range_of_halves(s, call->inputs[0], call->inputs[2], call->outputs[0]);
        break;
    default:
        break;
    }
    return WEFT_OK;
}

static weft_status_t prepare_range(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    const weft_tensor_desc_t *y = wefti_node_output(node, 0);
    WEFT_RETURN_IF_ERROR(wefti_need_known(y, "output", 0));
    for (uint32_t i = 0; i < 3; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
        if (node->inputs[i].dtype != y->dtype || weft_tensor_elem_count(&node->inputs[i]) != 1) {
            return bad_output(node);
        }
    }
    if ((WEFT_DTYPE_BIT(y->dtype) & (WEFTI_BIT_FLOATS | WEFT_DTYPE_BIT(WEFT_DTYPE_I64) |
                                     WEFT_DTYPE_BIT(WEFT_DTYPE_I32))) == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "operator Range has no kernel for type %s",
                           weft_dtype_name(y->dtype));
    }
    range_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (range_t){y->dtype, weft_tensor_elem_count(y)};
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_constant, "", "Constant", prepare_constant, run_fill);
WEFTI_KERNEL(wefti_kernel_shape, "", "Shape", prepare_shape, run_fill);
WEFTI_KERNEL(wefti_kernel_size, "", "Size", prepare_size, run_fill);
WEFTI_KERNEL(wefti_kernel_constant_of_shape, "", "ConstantOfShape", prepare_constant_of_shape,
             run_fill);
WEFTI_KERNEL(wefti_kernel_range, "", "Range", prepare_range, run_range);
