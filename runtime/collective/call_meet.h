/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of hosted groups (wefti_group_is_hosted): ranks agree on them by hosts. */
#ifndef WEFT_RUNTIME_CALL_MEET_H
#define WEFT_RUNTIME_CALL_MEET_H

#include "runtime/collective/call.h"

/* From here on this rank is in call number of its group; its call slot is published. leaves: it
 * destroys the group instead, and has said so in its channel's done. */
void wefti_meet_begin(weft_group_t *group, uint32_t number, bool leaves);
/* WEFT_OK: all ranks are in it, and wefti_meet_result is what they posted. WEFT_IN_PROGRESS:
 * blocked. */
weft_status_t wefti_meet_advance(weft_group_t *group, wefti_blocked_t *out_blocked);
const wefti_meet_record_t *wefti_meet_result(const weft_group_t *group);
bool wefti_meet_is_over(const weft_group_t *group);
/* The rank of the group that it is blocked on. */
uint32_t wefti_meet_blocks_on(const weft_group_t *group);
/* Whether it waits for rank r of the group; *out_host: for what r's host knows. */
bool wefti_meet_awaits(const weft_group_t *group, uint32_t r, bool *out_host);
/* The same for a record of waits, whose channel and text the caller fills in. */
void wefti_meet_describe(const weft_group_t *group, wefti_wait_t *out);
/* call_mismatch.c: the error of a call in which two ranks differ; WEFT_OK: all posted the same. */
weft_status_t wefti_meet_mismatch(weft_group_t *group, const wefti_meet_record_t *met);

/* Every rank needs something of every other rank's call slot. */
static inline bool wefti_call_needs_all_slots(const wefti_call_t *call)
{
    return call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

#endif
