/* SPDX-License-Identifier: Apache-2.0 */
/* The forecast of a plan: of a step, and of other bucket policies. */
#include "ops/plan/explain.h"

#include <inttypes.h>

static double us(uint64_t ps)
{
    return (double)ps * 1e-6;
}

/* By how much longer, in percent. */
static double gap(uint64_t ps, uint64_t of_ps)
{
    return of_ps != 0 ? 100.0 * ((double)ps / (double)of_ps - 1) : 0;
}

uint64_t wefti_plan_step_ps(const wefti_plan_forecast_t *forecast, uint64_t finish_ps)
{
    uint64_t ready = forecast->ready_ps, done = finish_ps > ready ? finish_ps : ready;
    return done + (forecast->compute_ps > ready ? forecast->compute_ps - ready : 0);
}

uint64_t wefti_plan_inline_step_ps(const wefti_plan_forecast_t *forecast, uint64_t comm_ps)
{
    return (forecast->compute_ps > forecast->ready_ps ? forecast->compute_ps : forecast->ready_ps) +
           comm_ps;
}

uint64_t wefti_plan_expected_step_ps(const wefti_plan_forecast_t *forecast)
{
    return forecast->progress == WEFTI_FORECAST_INLINE
               ? wefti_plan_inline_step_ps(forecast, forecast->comm_ps)
               : wefti_plan_step_ps(forecast, forecast->chosen_ps);
}

const char *wefti_plan_costs(const wefti_plan_forecast_t *forecast)
{
    return forecast->costs != NULL && forecast->costs[0] != '\0' ? forecast->costs : "default";
}

/* The expected time first. */
static void add_step(wefti_text_t *out, const char *label, const wefti_plan_forecast_t *forecast,
                     uint64_t finish_ps, uint64_t comm_ps)
{
    static const char *const ways[] = {"with communication overlapped", "inline"};
    bool is_inline = forecast->progress == WEFTI_FORECAST_INLINE;
    double times[] = {us(wefti_plan_step_ps(forecast, finish_ps)),
                      us(wefti_plan_inline_step_ps(forecast, comm_ps))};
    wefti_text_printf(out, "  step %-14s %12.1f us  %s, %.1f us %s\n", label, times[is_inline],
                      is_inline ? "with communication inline" : ways[0], times[!is_inline],
                      is_inline ? "overlapped" : ways[1]);
}

static uint64_t beyond(uint64_t ps, uint64_t limit_ps)
{
    return ps > limit_ps ? ps - limit_ps : 0;
}

static void add_costs(wefti_text_t *out, const wefti_plan_forecast_t *forecast)
{
    if (forecast->costs == NULL || forecast->costs[0] == '\0') {
        wefti_text_add(out, "default costs of a generic CPU: run weft tune");
        return;
    }
    wefti_text_add(out, "costs measured on ");
    wefti_text_add_printable(out, forecast->costs);
}

void wefti_plan_explain_forecast(const wefti_plan_forecast_t *forecast, wefti_text_t *out)
{
    if (forecast->row_count == 0) {
        return;
    }
    uint64_t ready = forecast->ready_ps, chosen = forecast->chosen_ps;
    wefti_text_add(out, "\npredicted step (");
    add_costs(out, forecast);
    wefti_text_printf(out, ")\n  last gradient ready %12.1f us\n", us(ready));
    if (forecast->update_ps > 0) {
        wefti_text_printf(out, "  updates             %12.1f us\n", us(forecast->update_ps));
    }
    add_step(out, "", forecast, chosen, forecast->comm_ps);
    add_step(out, "comm. +20 %", forecast, forecast->chosen_slow_ps[0], forecast->comm_slow_ps[0]);
    add_step(out, "comm. +100 %", forecast, forecast->chosen_slow_ps[1], forecast->comm_slow_ps[1]);
    wefti_text_printf(out,
                      "predicted communication schedule, on one channel\n"
                      "  last bucket done    %12.1f us  %" PRIu32 " bucket%s, %.1f us exposed\n",
                      us(chosen), forecast->chosen_count, forecast->chosen_count == 1 ? "" : "s",
                      us(beyond(chosen, ready)));
    wefti_text_printf(out,
                      "  best schedule       %12.1f us  %" PRIu32 " bucket%s; the chosen one ends "
                      "%.2f %% later\n"
                      "  lower bound         %12.1f us  of any schedule; the chosen one ends %.2f "
                      "%% later\n",
                      us(forecast->optimum_ps), forecast->optimum_count,
                      forecast->optimum_count == 1 ? "" : "s", gap(chosen, forecast->optimum_ps),
                      us(forecast->lower_bound_ps), gap(chosen, forecast->lower_bound_ps));
}

void wefti_plan_explain_policies(const wefti_plan_forecast_t *forecast, wefti_text_t *out)
{
    if (forecast->row_count == 0) {
        wefti_text_add(out, "the plan has no predictions\n");
        return;
    }
    wefti_text_printf(out, "%8s %14s %14s %12s  %s\n", "buckets", "done, us", "exposed, us",
                      "to optimum", "policy");
    for (uint32_t i = 0; i < forecast->row_count; i++) {
        const wefti_plan_forecast_row_t *row = &forecast->rows[i];
        wefti_text_printf(out, "%8" PRIu32 " %14.1f %14.1f %+11.2f%%  ", row->bucket_count,
                          us(row->finish_ps), us(beyond(row->finish_ps, forecast->ready_ps)),
                          gap(row->finish_ps, forecast->optimum_ps));
        wefti_text_add_printable(out, row->policy);
        wefti_text_add(out, "\n");
    }
    wefti_text_printf(out, "last gradient ready at %.1f us, lower bound of any schedule %.1f us\n",
                      us(forecast->ready_ps), us(forecast->lower_bound_ps));
}
