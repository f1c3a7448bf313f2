/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry points of a plan: micro-batches, steps, flush, eval.
 *
 * Micro-batch i of a step folds its gradients with the partial sums of the ctz(i + 1) newest ones:
 * a binary counter, so that the sum is the in-order tree over micro-batches. The last one of a step
 * folds everything and is the program "step".
 */
#include "runtime/plan/session.h"

#include <stdio.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

static weft_status_t set_scalar(weft_session_t *session, uint32_t buffer, double value)
{
    return buffer == WEFTI_PLAN_NONE ? WEFT_OK : wefti_session_write_scalar(session, buffer, value);
}

/* Sets the scalars "step" and "rank" of a micro-batch. */
static weft_status_t set_numbers(weft_session_t *session)
{
    uint32_t accumulate = session->plan->accumulate;
    WEFT_RETURN_IF_ERROR(set_scalar(session, session->step_scalar,
                                    (double)(session->steps_before + session->steps) + 1));
    return accumulate > 1
               ? set_scalar(session, session->rank_scalar,
                            (double)wefti_plan_batch_of(session->plan, session->endpoint->rank) *
                                    accumulate +
                                session->micro_count)
               : WEFT_OK;
}

/* The others may be in the program that this rank cannot run: they get its error, unless it runs the
 * right one first. */
static weft_status_t refuse(weft_session_t *session, weft_status_t status)
{
    wefti_refusal_t refusal = {.kind = WEFTI_WAIT_STEP,
                               .channel = wefti_session_channel(session),
                               .peer = UINT32_MAX,
                               .status = status};
    snprintf(refusal.text, sizeof refusal.text, "%s", weft_last_error());
    session->refused = true;
    return wefti_endpoint_note_refusal(session->endpoint, &refusal)
               ? status
               : wefti_session_fail(session, status);
}

static void note_retry(weft_session_t *session, wefti_refusal_state_t state)
{
    if (session->refused) {
        session->refused = state != WEFTI_REFUSAL_NONE;
        wefti_endpoint_retry_refusal(session->endpoint, WEFTI_WAIT_STEP,
                                     wefti_session_channel(session), UINT32_MAX, state);
    }
}

/* Runs a program that belongs to a step, which takes as long as all of them together. The timeline
 * shows the number of the step. */
static weft_status_t run_in_step(weft_session_t *session, uint32_t program)
{
    WEFT_RETURN_IF_ERROR(set_numbers(session));
    note_retry(session, WEFTI_REFUSAL_RETRIED);
    session->step_now = session->steps_before + session->steps + 1;
    weft_status_t status = wefti_exec_run(session, program);
    session->step_now = 0;
    WEFT_RETURN_IF_ERROR(status);
    note_retry(session, WEFTI_REFUSAL_NONE);
    wefti_step_times_t *sum = &session->micro_times;
    const wefti_step_times_t *run = &session->run_times;
    sum->step_ms += run->step_ms;
    sum->compute_ms += run->compute_ms;
    sum->comm_ms += run->comm_ms;
    sum->exposed_ms += run->exposed_ms;
    return WEFT_OK;
}

weft_status_t weft_session_step(weft_session_t *session)
{
    WEFT_CHECK_ARG(session);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    const weft_plan_t *plan = session->plan;
    if (session->step_program == WEFTI_PLAN_NONE) {
        return wefti_error(WEFT_ERR_STATE, "plan: no program \"step\"");
    }
    if (session->micro_count + 1 < plan->accumulate) {
        return refuse(session,
                      wefti_error(WEFT_ERR_STATE,
                                  "session: micro-batch %u of %u is not the last of its step; call "
                                  "weft_session_micro_step for it",
                                  session->micro_count + 1, plan->accumulate));
    }
    WEFT_RETURN_IF_ERROR(run_in_step(session, session->step_program));
    session->step_ms_sum += (double)session->micro_times.step_ms;
    session->times[session->steps % WEFTI_STATS_STEPS] = session->micro_times;
    session->micro_times = (wefti_step_times_t){0};
    session->steps++;
    session->micro_count = 0;
    session->behind = (plan->flags & WEFTI_PLAN_DECOUPLED) != 0;
    return WEFT_OK;
}

weft_status_t weft_session_set_steps_done(weft_session_t *session, uint64_t steps)
{
    WEFT_CHECK_ARG(session);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    if (session->micro_count != 0) {
        return wefti_error(WEFT_ERR_STATE,
                           "session: cannot set the step count within a step: %u of %u "
                           "micro-batches are done",
                           session->micro_count, session->plan->accumulate);
    }
    session->steps_before = steps - session->steps; /* their sum counts, modulo 2^64 */
    return WEFT_OK;
}

weft_status_t weft_session_micro_step(weft_session_t *session)
{
    WEFT_CHECK_ARG(session);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    const weft_plan_t *plan = session->plan;
    if (session->micro_count + 1 >= plan->accumulate) {
        return refuse(
            session,
            wefti_error(WEFT_ERR_STATE,
                        plan->accumulate > 1
                            ? "session: the next of %u micro-batches is the last of its step; call "
                              "weft_session_step for it"
                            : "session: the plan has %u micro-batch per step; call "
                              "weft_session_step",
                        plan->accumulate));
    }
    uint32_t folds = (uint32_t)__builtin_ctz(session->micro_count + 1);
    uint32_t program = session->micro_programs[folds];
    if (program == WEFTI_PLAN_NONE) {
        return wefti_error(WEFT_ERR_STATE, "plan: no program for micro-batch %u of %u",
                           session->micro_count + 1, plan->accumulate);
    }
    /* Where the program does not gather the weights itself, they are gathered before it. */
    if (session->behind && !wefti_plan_gathers_weights(plan, &plan->programs[program])) {
        WEFT_RETURN_IF_ERROR(wefti_session_gather_weights(session));
    }
    WEFT_RETURN_IF_ERROR(run_in_step(session, program));
    session->micro_count++;
    session->behind = false;
    return WEFT_OK;
}

uint32_t weft_session_micro_count(const weft_session_t *session)
{
    WEFT_CHECK_ARG_OR(session, 0);
    return session->micro_count;
}

weft_status_t wefti_session_gather_weights(weft_session_t *session)
{
    if (!session->behind) {
        return WEFT_OK;
    }
    if (session->flush_program == WEFTI_PLAN_NONE) {
        return wefti_error(WEFT_ERR_STATE, "plan: no program \"flush\"");
    }
    weft_status_t status = wefti_exec_run(session, session->flush_program);
    session->behind = status < 0;
    return status;
}

weft_status_t weft_session_flush(weft_session_t *session)
{
    WEFT_CHECK_ARG(session);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    return wefti_session_gather_weights(session);
}

weft_status_t weft_session_eval(weft_session_t *session)
{
    WEFT_CHECK_ARG(session);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    if (session->eval_program == WEFTI_PLAN_NONE) {
        return wefti_error(WEFT_ERR_STATE, "plan: no program \"eval\"");
    }
    WEFT_RETURN_IF_ERROR(wefti_session_gather_weights(session));
    return wefti_exec_run(session, session->eval_program);
}
