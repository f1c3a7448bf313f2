/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/plan/plan.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

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
    weft_status_t status = wefti_report_check("binding", binding);
    if (status < 0) {
        return status;
    }
    const wefti_plan_binding_t *source = &plan->bindings[index];
    const wefti_plan_buffer_t *buffer = &plan->buffers[source->buffer];
    weft_binding_t own = {
        .name = source->name,
        .role = source->role,
        .desc = {.dtype = buffer->dtype, .layout = buffer->layout, .rank = buffer->rank},
        .default_value = buffer->default_value};
    memcpy(own.desc.dims, buffer->dims, buffer->rank * sizeof buffer->dims[0]);
    wefti_report_write(binding, &own, sizeof own);
    return WEFT_OK;
}
