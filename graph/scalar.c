/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar plan inputs: lr, step, seed, rank; numbers in constants. */
#include <stdio.h>
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

weft_status_t wefti_graph_need_scalar(wefti_graph_t *graph, const char *name, weft_dtype_t dtype,
                                      double default_value, uint32_t *out_value)
{
    weft_tensor_desc_t type = {.dtype = dtype};
    uint32_t other = wefti_graph_find_value(graph, name);
    if (other != WEFTI_NONE && graph->values[other].kind == WEFTI_VALUE_SCALAR &&
        graph->values[other].type.dtype == dtype) {
        *out_value = other; /* all readers share one */
        return WEFT_OK;
    }
    if (other != WEFTI_NONE) { /* scalars are set by name: the tensor of the model is renamed */
        if (graph->values[other].kind != WEFTI_VALUE_NODE || graph->values[other].flags) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "tensor '%s': the name is reserved for a scalar input of the plan",
                               name);
        }
        char renamed[32];
        snprintf(renamed, sizeof(renamed), "%s.model", name);
        weft_status_t status = wefti_graph_rename_value(graph, other, renamed);
        if (status < 0) {
            return status;
        }
    }
    weft_status_t status = wefti_graph_add_value(graph, name, WEFTI_VALUE_SCALAR, &type, out_value);
    if (status >= 0) {
        graph->values[*out_value].default_value = default_value;
    }
    return status;
}

bool wefti_tensor_number(const weft_tensor_desc_t *type, double *out_number)
{
    float f32;
    uint16_t half;
    if (type->data == NULL || weft_tensor_elem_count(type) != 1) {
        return false;
    }
    switch (type->dtype) {
    case WEFT_DTYPE_F64:
        memcpy(out_number, type->data, sizeof(*out_number));
        return true;
    case WEFT_DTYPE_F32:
        memcpy(&f32, type->data, sizeof(f32));
        *out_number = (double)f32;
        return true;
    case WEFT_DTYPE_F16:
    case WEFT_DTYPE_BF16:
        memcpy(&half, type->data, sizeof(half));
        *out_number = (double)(type->dtype == WEFT_DTYPE_F16 ? wefti_f16_to_f32(half)
                                                             : wefti_bf16_to_f32(half));
        return true;
    default:
        return false;
    }
}
