/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call does in each of its states (call.h draws them), except moving data (call_move.h).
 * call_advance.c goes from one state to the next.
 */
#ifndef WEFT_RUNTIME_CALL_STEPS_H
#define WEFT_RUNTIME_CALL_STEPS_H

#include <string.h>

#include "runtime/collective/call.h"

/* call_advance.c. WEFT_OK: done; WEFT_IN_PROGRESS: blocked on *out_blocked (signal NULL: on an
 * earlier call). */
weft_status_t wefti_call_advance(wefti_call_t *call, wefti_blocked_t *out_blocked);

/* ---- ISSUED, POSTED: call_post.c ---- */

weft_status_t wefti_call_post(wefti_call_t *call);
weft_status_t wefti_call_see_postings(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* The call slots of the call before that this rank has not read yet (wefti_deferred_t). */
weft_status_t wefti_call_check_deferred(weft_group_t *group, wefti_blocked_t *out_blocked);

/* The call slot is filled in. */
void wefti_call_publish(wefti_call_t *call, size_t data_bytes);

/* Instead of posting: the call is done on this rank. */
void wefti_call_post_refusal(wefti_call_t *call);
/* The error of a call that rank r refused, with the count and the text of its slot; the group stays
 * usable. */
weft_status_t wefti_call_refused(wefti_call_t *call, uint32_t r, uint64_t count, const char *text);

/* call_schedule.c. Before a call is posted: what its size and the user ask for. */
weft_status_t wefti_call_consider(wefti_call_t *call, bool *out_may_post);
/* Bytes of work memory that a schedule of the call may use, from the longest block of all ranks.
 * Every rank has committed them when it posts. */
size_t wefti_call_work_bytes(const wefti_call_t *call, uint64_t longest);
/* After all call slots were read: the algorithm to run as a schedule, or none. */
weft_status_t wefti_call_settle_algorithm(wefti_call_t *call);

/* ---- CHECK, COMPARE: call_check.c ---- */

/* When a collective is issued: what WEFT_CHECK asks for. */
wefti_check_t wefti_call_choose_check(const wefti_call_t *call);
/* Such a call has two sequence numbers. */
static inline bool wefti_call_is_checked(const wefti_call_t *call)
{
    return call->check != WEFTI_CHECK_NOTHING;
}
/* Before this rank's data may change. */
void wefti_call_keep_for_check(const wefti_call_t *call);
void wefti_call_post_check(wefti_call_t *call);
/* call_pair.c. The call is issued, or has ended well, and a send or receive was refused before. */
void wefti_call_retries(const wefti_call_t *call, bool ended);
static inline void wefti_call_note_retry(const wefti_call_t *call, bool ended)
{
    /* relaxed: a thread that refused a call at the same time is not meant */
    if (atomic_load_explicit(&call->group->calls->refused, memory_order_relaxed)) {
        wefti_call_retries(call, ended);
    }
}
/* Keeps the message of a refusal with the call. False: out of memory. */
static inline bool wefti_call_keep_refusal(wefti_call_t *call, const char *text, size_t bytes)
{
    wefti_calls_t *calls = call->group->calls;
    const weft_allocator_t *allocator = call->group->context->allocator;
    char(*list)[WEFTI_REFUSAL_BYTES] = calls->refusals, (*first)[WEFTI_REFUSAL_BYTES] = NULL;
    if (list == NULL) {
        list = wefti_alloc(allocator, WEFTI_CALLS * sizeof *list);
        if (list != NULL && !atomic_compare_exchange_strong(&calls->refusals, &first, list)) {
            wefti_free(allocator, list);
            list = first; /* of another thread, meanwhile */
        }
    }
    if (list != NULL) {
        memcpy(list[call - calls->ring], text, bytes);
    }
    return list != NULL;
}
/* Of a call with a turn, but without a result that could be compared: the call is done. */
void wefti_call_skip_check(wefti_call_t *call);
/* With what the peers have posted. */
weft_status_t wefti_call_compare(wefti_call_t *call);

/* ---- RECOVERING: call_recover.c ---- */

/* Before the group is used: faults until then are the past. */
void wefti_link_init(weft_group_t *group, uint32_t fault_count);
/* A call ended with WEFT_ERR_LINK, or will never run because one did. */
void wefti_recovery_note(wefti_call_t *call);
/*
 * For a call that is to begin while a link is broken: it ends with the error if none did yet on
 * this rank; else the group is made whole again, with all its ranks (WEFT_IN_PROGRESS: blocked).
 */
weft_status_t wefti_recovery_advance(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* After that: WEFT_ERR_LINK for calls that ended so on other ranks. */
weft_status_t wefti_recovery_admit(wefti_call_t *call);
/* A call of a stream that broke with the link: true when no rank waits for it. */
bool wefti_recovery_excuses(const wefti_call_t *call);

#endif
