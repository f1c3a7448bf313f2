/* SPDX-License-Identifier: Apache-2.0 */
/* Which initializers of the model are trained, and why. */
#include "ops/plan/explain.h"

#include <inttypes.h>

static uint32_t count_trained(const wefti_plan_parameter_t *parameters, uint32_t count)
{
    uint32_t trained = 0;
    for (uint32_t i = 0; i < count; i++) {
        trained += parameters[i].trained;
    }
    return trained;
}

void wefti_plan_explain_parameters(const wefti_plan_parameter_t *parameters, uint32_t count,
                                   wefti_text_t *out)
{
    uint32_t trained = count_trained(parameters, count);
    if (count == 0) {
        return;
    }
    wefti_text_printf(out, "\nparameters: %" PRIu32 " trained, %" PRIu32 " not\n", trained,
                      count - trained);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_plan_parameter_t *parameter = &parameters[i];
        wefti_text_add(out, parameter->trained ? "  trained  " : "  -        ");
        wefti_text_add_printable(out, parameter->name);
        if (parameter->dtype != WEFT_DTYPE_NONE) {
            wefti_text_printf(out, "  %s [", weft_dtype_name(parameter->dtype));
            for (uint32_t d = 0; d < parameter->rank; d++) {
                wefti_text_printf(out, "%s%" PRId64, d > 0 ? ", " : "", parameter->dims[d]);
            }
            wefti_text_add(out, "]");
        }
        wefti_text_add(out, parameter->guess ? "  guess: " : "  ");
        wefti_text_add_printable(out, parameter->why);
        wefti_text_add(out, "\n");
    }
}

void wefti_plan_explain_parameters_json(const wefti_plan_parameter_t *parameters, uint32_t count,
                                        wefti_json_t *json)
{
    wefti_json_begin_array(json, "parameter_list");
    for (uint32_t i = 0; i < count; i++) {
        const wefti_plan_parameter_t *parameter = &parameters[i];
        bool missing = parameter->dtype == WEFT_DTYPE_NONE;
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", parameter->name);
        wefti_json_string(json, "dtype", missing ? NULL : weft_dtype_name(parameter->dtype));
        wefti_json_begin_array(json, "shape");
        for (uint32_t d = 0; d < parameter->rank; d++) {
            wefti_json_int(json, NULL, parameter->dims[d]);
        }
        wefti_json_end_array(json);
        wefti_json_bool(json, "trained", parameter->trained);
        wefti_json_bool(json, "guess", parameter->guess);
        wefti_json_string(json, "why", parameter->why);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}
