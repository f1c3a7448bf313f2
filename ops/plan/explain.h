/* SPDX-License-Identifier: Apache-2.0 */
/* The two forms of weft_plan_explain, of a verified plan. */
#ifndef WEFT_OPS_PLAN_EXPLAIN_H
#define WEFT_OPS_PLAN_EXPLAIN_H

#include "ops/plan/plan.h"
#include "runtime/base/json.h"

weft_status_t wefti_plan_explain_text(const weft_plan_t *plan, wefti_text_t *out);
weft_status_t wefti_plan_explain_json(const weft_plan_t *plan, wefti_text_t *out);
/* explain_page.c: members of an open object, for a page about the plan. */
void wefti_plan_explain_page(const weft_plan_t *plan, wefti_json_t *json);
/* explain_forecast.c: a step with communication beside compute, or in between: which of the two
 * finish_ps and comm_ps belong to. */
uint64_t wefti_plan_step_ps(const wefti_plan_forecast_t *forecast, uint64_t finish_ps);
uint64_t wefti_plan_inline_step_ps(const wefti_plan_forecast_t *forecast, uint64_t comm_ps);
/* The step in the way in which communication is predicted to run; overlapped if that is not
 * known. */
uint64_t wefti_plan_expected_step_ps(const wefti_plan_forecast_t *forecast);
/* Name of the cost table, or "default". */
const char *wefti_plan_costs(const wefti_plan_forecast_t *forecast);
/* The chosen buckets against optimum and bound; policies side by side. */
void wefti_plan_explain_forecast(const wefti_plan_forecast_t *forecast, wefti_text_t *out);
void wefti_plan_explain_policies(const wefti_plan_forecast_t *forecast, wefti_text_t *out);
/* explain_collectives.c: those that are no buckets. */
void wefti_plan_explain_collectives(const weft_plan_t *plan, wefti_text_t *out);
void wefti_plan_explain_collectives_json(const weft_plan_t *plan, wefti_json_t *json);
/* The axis of its group, where it is not of all ranks. */
void wefti_plan_explain_group(wefti_text_t *out, const weft_plan_t *plan,
                              const wefti_plan_collective_t *collective);
/* explain_parameters.c: what is trained; nothing where the list is empty. */
void wefti_plan_explain_parameters(const wefti_plan_parameter_t *parameters, uint32_t count,
                                   wefti_text_t *out);
void wefti_plan_explain_parameters_json(const wefti_plan_parameter_t *parameters, uint32_t count,
                                        wefti_json_t *json);
/* explain_why.c: why a gradient's communication ends when it ends. WEFT_ERR_NOT_FOUND: no such
 * gradient. */
weft_status_t wefti_plan_explain_why(const weft_plan_t *plan, const char *tensor,
                                     wefti_text_t *out);

#endif
