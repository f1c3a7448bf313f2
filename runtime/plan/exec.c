/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a program, and what happens when it fails. */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

#define PRINTED 12u /* records per stream printed after a failure */

/* The flight recorder: the last records of every stream. */
static void print_history(weft_session_t *session)
{
    static const char *const kinds[] = {"",           "kernel",    "collective",
                                        "waited for", "signalled", "executed"};
    const wefti_log_t *log = &session->context->log;
    wefti_log(log, WEFT_LOG_LEVEL_INFO, "rank %u: program run %llu failed: %s",
              session->endpoint->rank, (unsigned long long)session->run_count, session->fault.text);
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_cursor_t *cursor = &session->cursors[i];
        const wefti_history_t *history = &cursor->history;
        uint64_t first = history->count > PRINTED ? history->count - PRINTED : 0;
        for (uint64_t j = first; j < history->count; j++) {
            const wefti_history_entry_t *entry = wefti_history_at(history, j);
            wefti_log(log, WEFT_LOG_LEVEL_DEBUG, "rank %u stream %s: run %u %s %s, %.1f us",
                      session->endpoint->rank, session->plan->streams[i].name, entry->run,
                      kinds[entry->kind], entry->name,
                      (double)(entry->end_ns - entry->start_ns) / 1e3);
        }
        if (cursor->next < cursor->count) {
            wefti_log(log, WEFT_LOG_LEVEL_WARN,
                      "rank %u stream %s: stopped at %s (record %u of %u)", session->endpoint->rank,
                      session->plan->streams[i].name, cursor->records[cursor->next].name,
                      cursor->next + 1, cursor->count);
        }
    }
}

static weft_status_t run(weft_session_t *session, uint32_t program)
{
    wefti_bound_program_t *bound = &session->programs[program];
    weft_status_t status = wefti_session_check_links(session);
    if (status < 0) {
        return wefti_session_fail(session, status);
    }
    bound->epoch++;
    session->run_count++;
    wefti_checks_begin(session);
    status = session->context->device == NULL || session->staged
                 ? wefti_exec_host_run(session, bound)
                 : wefti_exec_device_run(session, bound);
    if (session->queue_histories != NULL) {
        wefti_exec_device_remember(session);
    }
    if (status >= 0) { /* what came may not be what was sent */
        status = wefti_session_check_links(session);
        status = status < 0 ? wefti_session_fail(session, status) : status;
    }
    if (status >= 0) {
        status = wefti_checks_compare(session, program);
        status = status < 0 ? wefti_session_fail(session, status) : status;
    }
    if (status < 0) {
        print_history(session);
        return wefti_fault_get(&session->fault);
    }
    return WEFT_OK;
}

weft_status_t wefti_exec_run(weft_session_t *session, uint32_t program)
{
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    if (!wefti_endpoint_owned(session->endpoint)) {
        return wefti_endpoint_check(session->endpoint); /* a forked child: says so */
    }
    bool in_step = session->step_now != 0;
    wefti_flight_t *flight = &session->context->flight;
    uint32_t record =
        wefti_flight_enter(flight, in_step ? WEFTI_FLIGHT_SESSION_STEP : WEFTI_FLIGHT_SESSION_RUN,
                           in_step ? session->step_now : program);
    return wefti_flight_leave(flight, record, run(session, program));
}
