/* SPDX-License-Identifier: Apache-2.0 */
/* What was predicted of a step, and of other bucket policies. */
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

static void add_step(wefti_text_t *out, const char *label, const wefti_plan_forecast_t *forecast,
                     uint64_t finish_ps, uint64_t comm_ps)
{
    wefti_text_printf(out,
                      "  step %-14s %12.1f us  with communication beside compute, %.1f us inline\n",
                      label, us(wefti_plan_step_ps(forecast, finish_ps)),
                      us(wefti_plan_inline_step_ps(forecast, comm_ps)));
}

static uint64_t beyond(uint64_t ps, uint64_t limit_ps)
{
    return ps > limit_ps ? ps - limit_ps : 0;
}

void wefti_plan_explain_forecast(const wefti_plan_forecast_t *forecast, wefti_text_t *out)
{
    if (forecast->row_count == 0) {
        return;
    }
    uint64_t ready = forecast->ready_ps, chosen = forecast->chosen_ps;
    wefti_text_printf(out,
                      "\npredicted, one channel\n"
                      "  last gradient ready %12.1f us\n"
                      "  last bucket done    %12.1f us  %" PRIu32 " bucket%s, %.1f us exposed\n",
                      us(ready), us(chosen), forecast->chosen_count,
                      forecast->chosen_count == 1 ? "" : "s", us(beyond(chosen, ready)));
    wefti_text_printf(out,
                      "  optimum             %12.1f us  %" PRIu32 " bucket%s; chosen is %.2f %% "
                      "above\n"
                      "  lower bound         %12.1f us  of any schedule; chosen is %.2f %% above\n",
                      us(forecast->optimum_ps), forecast->optimum_count,
                      forecast->optimum_count == 1 ? "" : "s", gap(chosen, forecast->optimum_ps),
                      us(forecast->lower_bound_ps), gap(chosen, forecast->lower_bound_ps));
    add_step(out, "", forecast, chosen, forecast->comm_ps);
    add_step(out, "costs 20 % off", forecast, forecast->chosen_slow_ps[0],
             forecast->comm_slow_ps[0]);
    add_step(out, "costs 2x off", forecast, forecast->chosen_slow_ps[1], forecast->comm_slow_ps[1]);
}

void wefti_plan_explain_policies(const wefti_plan_forecast_t *forecast, wefti_text_t *out)
{
    if (forecast->row_count == 0) {
        wefti_text_add(out, "nothing was predicted for this plan\n");
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
