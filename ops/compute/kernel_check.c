/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/kernel_check.h"

#include "runtime/base/error.h"

bool wefti_node_has_input(const weft_node_desc_t *node, uint32_t index)
{
    return index < node->input_count && node->inputs[index].dtype != WEFT_DTYPE_NONE;
}

bool wefti_node_has_output(const weft_node_desc_t *node, uint32_t index)
{
    return index < node->output_count && node->outputs[index].dtype != WEFT_DTYPE_NONE;
}

weft_status_t wefti_check_f32(const weft_node_desc_t *node, const weft_tensor_desc_t *desc,
                              const char *what, bool channels_last_allowed)
{
    return wefti_check_type(node, desc, what, channels_last_allowed, WEFT_DTYPE_F32);
}

weft_status_t wefti_check_type(const weft_node_desc_t *node, const weft_tensor_desc_t *desc,
                               const char *what, bool channels_last_allowed, weft_dtype_t dtype)
{
    if (desc->dtype != dtype) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s has unsupported type %s: expected %s",
                           node->op, what, weft_dtype_name(desc->dtype), weft_dtype_name(dtype));
    }
    if (desc->rank > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: %s has an unsupported number of dimensions: %u", node->op, what,
                           desc->rank);
    }
    if (desc->layout != WEFT_LAYOUT_PLAIN && !(channels_last_allowed && desc->rank == 4)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s must be in plain layout", node->op, what);
    }
    int64_t count = 1;
    for (uint32_t i = 0; i < desc->rank; i++) {
        if (desc->dims[i] <= 0) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: dimension %u of %s is %lld, must be at least 1", node->op, i,
                               what, (long long)desc->dims[i]);
        }
        /* Room for bytes, and for a few tensors' sum, in 63 bits. */
        if (__builtin_mul_overflow(count, desc->dims[i], &count) || count > INT64_MAX / 64) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s is too large", node->op, what);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_check_shape(const weft_node_desc_t *node, const weft_tensor_desc_t *desc,
                                const char *what, uint32_t rank, const int64_t *dims)
{
    bool equal = desc->rank == rank;
    for (uint32_t i = 0; equal && i < rank; i++) {
        equal = desc->dims[i] == dims[i];
    }
    if (!equal) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: the shape of %s does not match the inputs", node->op, what);
    }
    return WEFT_OK;
}
