/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of calls that concern several ranks: late ones, ones that left, ones that disagree. */
#ifndef WEFT_RUNTIME_CALL_LATE_H
#define WEFT_RUNTIME_CALL_LATE_H

#include "runtime/collective/call.h"

/* call_late.c: the error of a call that waited too long, for all ranks. */
weft_status_t wefti_group_late(wefti_call_t *call, weft_status_t status);
/* Others that wait for this rank follow what it waited for. */
void wefti_call_gave_up(const wefti_call_t *call);
/* An error for all ranks, when one that the call waits for has left the world without what it waits
 * for; else WEFT_OK. For polls of waits, once endpoint->departed says that some rank has left. */
weft_status_t wefti_group_departed(wefti_call_t *call, uint64_t now);
/* Whether it can go on, though not with what it waits for. */
bool wefti_call_is_ready(const wefti_call_t *call);
/* What the call waits for, for transport/waits.h; false: it may go on. */
bool wefti_call_describe(wefti_call_t *call, wefti_wait_t *out);
/* Warns of the late ranks once a call has waited for WEFT_LATE; where it is polled. */
void wefti_group_report_late(wefti_call_t *call, uint64_t now);

/* call_mismatch.c: "all_reduce with 100 x f32 (sum)"; calls of the library itself: what they are for.
 * buffer holds 160 bytes. */
const char *wefti_call_text(const wefti_call_t *call, char *buffer);
/* call_mismatch.c. One side of a disagreement: "group_split", " with 3 ranks". */
typedef struct wefti_caller {
    uint32_t rank; /* in the world */
    const char *function, *arguments;
} wefti_caller_t;
/* The error of ranks that called different things: "rank 1 called all_reduce with 4 x f32, rank 0
 * with 8 x f32". */
weft_status_t wefti_mismatch(const wefti_caller_t *high, const wefti_caller_t *low);
/* Breaks the group: the call slot of peer differs from what this rank posted. */
weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_deferred_t *own, uint32_t peer);

/* call_recover.c: ranks that a recovering call waits for: " 3 5". */
void wefti_recovery_late(const weft_group_t *group, char *text, size_t bytes);

#endif
