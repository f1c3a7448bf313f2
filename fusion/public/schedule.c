/* SPDX-License-Identifier: Apache-2.0 */
/* List scheduling for another compiler's graph: checks its view, then runs passes/schedule.c. */
#include <weft/passes.h>

#include <string.h>

#include "fusion/fusion.h"
#include "fusion/passes/schedule.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#define MAX_TIME_NS 1000000000000ull /* a thousand seconds for one operator: sums stay in range */

/* Times in picoseconds, and marks for what the host left out. */
static weft_status_t convert(const weft_graph_view_t *view, const weft_schedule_params_t *from,
                             wefti_arena_t *arena, wefti_schedule_params_t *out)
{
    uint64_t *ps = wefti_arena_array(arena, (size_t)view->op_count + 1, sizeof *ps);
    uint8_t *kept = wefti_arena_array(arena, (size_t)view->value_count + 1, 1);
    uint8_t *to_end = wefti_arena_array(arena, (size_t)view->value_count + 1, 1);
    WEFT_RETURN_IF_NO_MEMORY(ps && kept && to_end);
    for (uint32_t i = 0; i < view->op_count; i++) {
        ps[i] = (from->op_ns[i] < MAX_TIME_NS ? from->op_ns[i] : MAX_TIME_NS) * 1000;
    }
    for (uint32_t v = 0; v < view->value_count; v++) {
        kept[v] = view->values[v].producer == UINT32_MAX || (from->kept != NULL && from->kept[v]);
        to_end[v] = from->to_end != NULL && from->to_end[v];
    }
    *out = (wefti_schedule_params_t){.op_ps = ps,
                                     .kept = kept,
                                     .to_end = to_end,
                                     .in_flight = from->in_flight,
                                     .most_live_bytes = from->most_live_bytes};
    return WEFT_OK;
}

static weft_schedule_cost_t cost_of(const wefti_schedule_cost_t *cost)
{
    return (weft_schedule_cost_t){cost->finish_ps, cost->exposed_ps, cost->peak_bytes,
                                  cost->in_flight};
}

weft_status_t weft_pass_schedule(const weft_graph_view_t *view,
                                 const weft_schedule_params_t *params, weft_edit_list_t **out_edits,
                                 weft_schedule_report_t *out_report)
{
    WEFT_CHECK_OUT(out_edits);
    WEFT_CHECK_ARG(view);
    WEFT_CHECK_ARG(params);
    weft_status_t status;
    weft_schedule_params_t own = WEFT_SCHEDULE_PARAMS_INIT;
    wefti_schedule_params_t converted;
    wefti_schedule_report_t report;
    wefti_arena_t arena;
    status = WEFTI_PARAMS_READ(params, &own);
    status = status < 0 ? status : wefti_report_check("out_report", out_report);
    if (status >= 0 && own.op_ns == NULL) {
        status = wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "op_ns", "is NULL");
    }
    wefti_arena_init(&arena, own.allocator, 0);
    WEFT_TRY(status, status, done);
    WEFT_TRY(status, wefti_view_read(&view, &arena, NULL), done);
    WEFT_TRY(status, convert(view, &own, &arena, &converted), done);
    WEFT_TRY(status, wefti_pass_schedule(view, &converted, own.allocator, out_edits, &report),
             done);
    weft_schedule_report_t told = {.given = cost_of(&report.given),
                                   .chosen = cost_of(&report.chosen),
                                   .changed = report.changed};
    wefti_report_write(out_report, &told, sizeof told);
done:
    wefti_arena_deinit(&arena);
    return status;
}
