/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/plan/plan.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

size_t weft_plan_binding_count(const weft_plan_t *plan)
{
    WEFT_CHECK_ARG_OR(plan, 0);
    return plan->binding_count;
}

weft_status_t weft_plan_get_binding(const weft_plan_t *plan, size_t index, weft_binding_t *binding)
{
    WEFT_CHECK_ARG(plan);
    WEFT_CHECK_ARG(binding);
    if (index >= plan->binding_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "index: no binding %zu in this plan", index);
    }
    if (binding->struct_size != sizeof *binding) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "weft_plan_get_binding: struct_size is %zu, should be %zu",
                           binding->struct_size, sizeof *binding);
    }
    const wefti_plan_binding_t *source = &plan->bindings[index];
    const wefti_plan_buffer_t *buffer = &plan->buffers[source->buffer];
    memset(&binding->desc, 0, sizeof binding->desc);
    binding->name = source->name;
    binding->role = source->role;
    binding->desc.dtype = buffer->dtype;
    binding->desc.layout = buffer->layout;
    binding->desc.rank = buffer->rank;
    memcpy(binding->desc.dims, buffer->dims, buffer->rank * sizeof buffer->dims[0]);
    binding->default_value = buffer->default_value;
    return WEFT_OK;
}
