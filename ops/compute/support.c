/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/support.h"

#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

const weft_tensor_desc_t *wefti_node_output(const weft_node_desc_t *node, uint32_t index)
{
    if (index >= node->output_count || node->outputs[index].dtype == WEFT_DTYPE_NONE) {
        return NULL;
    }
    return &node->outputs[index];
}

weft_status_t wefti_need_known(const weft_tensor_desc_t *desc, const char *what, uint32_t index)
{
    if (desc == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s %u is missing", what, index);
    }
    if (desc->rank > WEFT_MAX_DIMS || weft_dtype_size_bytes(desc->dtype) == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s %u has an invalid type or rank", what,
                           index);
    }
    int64_t count = weft_tensor_elem_count(desc);
    if (count < 0 || count > INT64_MAX / 16) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s %u has an unknown size", what, index);
    }
    if (desc->layout != WEFT_LAYOUT_PLAIN &&
        (desc->layout != WEFT_LAYOUT_CHANNELS_LAST || desc->rank != 4)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s %u: a layout other than plain requires 4 dimensions", what, index);
    }
    return WEFT_OK;
}

static weft_status_t need_f32(const weft_tensor_desc_t *desc, const char *what, uint32_t index)
{
    weft_status_t status = wefti_need_known(desc, what, index);
    if (status >= 0 && desc->dtype != WEFT_DTYPE_F32) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "%s %u has type %s, expected f32", what, index,
                             weft_dtype_name(desc->dtype));
    }
    return status;
}

weft_status_t wefti_need_f32(const weft_node_desc_t *node, uint32_t input)
{
    return need_f32(wefti_infer_input(node, input), "input", input);
}

weft_status_t wefti_need_f32_output(const weft_node_desc_t *node, uint32_t output)
{
    return need_f32(wefti_node_output(node, output), "output", output);
}

bool wefti_same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    return a->rank == b->rank && a->layout == b->layout &&
           (a->rank == 0 || memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0);
}

void *wefti_state_alloc(size_t bytes)
{
    return wefti_alloc(NULL, bytes);
}

void wefti_state_free(void *state)
{
    wefti_free(NULL, state);
}

void wefti_memory_order(const weft_tensor_desc_t *desc, uint32_t *out_order)
{
    static const uint32_t channels_last[4] = {0, 2, 3, 1};
    for (uint32_t d = 0; d < desc->rank; d++) {
        out_order[d] = desc->layout == WEFT_LAYOUT_CHANNELS_LAST ? channels_last[d] : d;
    }
}

void wefti_strides(const weft_tensor_desc_t *desc, int64_t *out_strides)
{
    uint32_t order[WEFT_MAX_DIMS];
    int64_t stride = 1;
    wefti_memory_order(desc, order);
    for (uint32_t d = desc->rank; d-- > 0;) {
        out_strides[order[d]] = stride;
        stride *= desc->dims[order[d]] > 0 ? desc->dims[order[d]] : 1;
    }
}

weft_status_t wefti_broadcast_strides(const weft_tensor_desc_t *from, const weft_tensor_desc_t *to,
                                      const char *what, int64_t *out_strides)
{
    int64_t strides[WEFT_MAX_DIMS];
    if (from->rank > to->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s has more dimensions than the result",
                           what);
    }
    wefti_strides(from, strides);
    for (uint32_t d = 0; d < to->rank; d++) {
        uint32_t skipped = to->rank - from->rank;
        int64_t size = d < skipped ? 1 : from->dims[d - skipped];
        if (size != 1 && size != to->dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s cannot be broadcast to the result",
                               what);
        }
        out_strides[d] = size == 1 ? 0 : strides[d - skipped];
    }
    return WEFT_OK;
}

void wefti_nest_init(wefti_nest_t *nest)
{
    memset(nest, 0, sizeof(*nest));
    nest->rank = 1;
    nest->dims[0] = 1;
}

void wefti_nest_add(wefti_nest_t *nest, int64_t size, int64_t stride_a, int64_t stride_b)
{
    wefti_nest_add3(nest, size, stride_a, stride_b, 0);
}

void wefti_nest_add3(wefti_nest_t *nest, int64_t size, int64_t stride_a, int64_t stride_b,
                     int64_t stride_c)
{
    uint32_t last = nest->rank - 1;
    nest->empty = nest->empty || size == 0;
    if (size == 1) {
        return;
    }
    bool merges = nest->a[last] == stride_a * size && nest->b[last] == stride_b * size &&
                  nest->c[last] == stride_c * size;
    if (nest->dims[last] == 1) { /* nothing added yet */
        nest->dims[last] = size;
    } else if (merges) {
        nest->dims[last] *= size;
    } else {
        last = nest->rank++;
        nest->dims[last] = size;
    }
    nest->a[last] = stride_a;
    nest->b[last] = stride_b;
    nest->c[last] = stride_c;
}
