/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that cannot make a call, mostly because of an argument. Its call slot has the error instead
 * of a signature. The rank itself does not wait for the others: they are at this call before it
 * posts the next one (wefti_deferred_t). In a hosted group it does wait: it passes on what its host
 * and others know (call_meet.c).
 *
 *   rank 0   all_reduce(send = NULL)   slot: REFUSED "all_reduce: send is NULL"   returns
 *   rank 1   all_reduce(send, ..)      sees rank 0's slot                         returns it, too
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/submit.h"
#include "runtime/group/mirror.h"

weft_status_t wefti_call_end_group(weft_group_t *group, weft_status_t status, const char *text)
{
    wefti_error(status, "rank %u: %s", group->ranks[group->rank], text);
    return wefti_group_fail(group, status);
}

weft_status_t wefti_recorder_refuse(wefti_recorder_t *recorder, bool is_pair, weft_status_t status)
{
    if (recorder->refused == WEFT_OK) {
        recorder->refused = status;
        recorder->refused_pair = is_pair;
        snprintf(recorder->why, sizeof recorder->why, "%s", weft_last_error());
    }
    return status;
}

weft_status_t wefti_call_refuse(weft_group_t *group, weft_stream_t *stream, weft_status_t status)
{
    wefti_calls_t *calls = group->calls;
    wefti_call_t *call = NULL;
    char text[WEFTI_REFUSAL_BYTES] = "";
    snprintf(text, sizeof text, "%s", weft_last_error());
    if (calls->recorder != NULL) { /* nothing is submitted before its end */
        return wefti_recorder_refuse(calls->recorder, false, status);
    }
    if (group->size == 1) {
        return status;
    }
    if (group->context->device != NULL || (stream != NULL && stream->context != group->context)) {
        stream = NULL;
    }
    weft_status_t reserved = wefti_call_reserve(group, stream, &call);
    if (reserved != WEFT_OK) {
        return reserved;
    }
    if (!wefti_call_keep_refusal(call, text, sizeof text)) {
        return wefti_call_end_group(group, status, text);
    }
    call->request = (wefti_request_t){.op = WEFT_COLLECTIVE_BARRIER, .dtype = WEFT_DTYPE_U8};
    call->elem_bytes = 1;
    call->longest = call->area_bytes = 0;
    call->what = WEFTI_WHAT_REFUSED;
    call->posted_count = (uint64_t) - (int64_t)status;
    call->refuses = true;
    calls->shape.tag = 0;
    reserved = wefti_call_submit_host(call, stream);
    return reserved == WEFT_OK ? wefti_error_adopt(status, text) : reserved;
}

/*
 * Who waits for a send or receive is not known, or it may have sent already. A rank that waits for
 * this one in a receive or send of the group gets the error, unless this rank makes the right call
 * first.
 */
static weft_status_t note(weft_group_t *group, const wefti_pair_t *pair, weft_status_t status,
                          const char *text)
{
    bool known = pair->peer < group->size && pair->peer != group->rank;
    wefti_refusal_t refusal = {.kind = pair->sends ? WEFTI_WAIT_RECV : WEFTI_WAIT_SEND,
                               .channel = group->channel,
                               .peer = known ? group->ranks[pair->peer] : UINT32_MAX,
                               .status = status};
    snprintf(refusal.text, sizeof refusal.text, "%s", text);
    if (!wefti_endpoint_note_refusal(group->endpoint, &refusal)) {
        return wefti_call_end_group(group, status, text);
    }
    atomic_store_explicit(&group->calls->refused, true, memory_order_relaxed);
    return status;
}

weft_status_t wefti_pair_refuse(wefti_call_t *call, const wefti_pair_t *pair, weft_stream_t *stream,
                                weft_status_t status)
{
    weft_group_t *group = call->group;
    char text[WEFTI_REFUSAL_BYTES] = "";
    size_t room = wefti_mailbox_bytes(&group->layout);
    snprintf(text, sizeof text < room ? sizeof text : room, "%s", weft_last_error());
    if (!pair->sends || pair->peer >= group->size || pair->peer == group->rank) {
        return note(group, pair, status, text);
    }
    if (!wefti_call_keep_refusal(call, text, sizeof text)) {
        return wefti_call_end_group(group, status, text);
    }
    if (group->context->device != NULL) {
        stream = NULL;
    }
    call->pairs.single =
        (wefti_pair_t){.peer = pair->peer,
                       .tag = pair->tag,
                       .dtype = WEFT_DTYPE_U8,
                       .data = (uint8_t *)group->calls->refusals[call - group->calls->ring],
                       .count = strlen(text) + 1,
                       .bytes = strlen(text) + 1,
                       .sends = true,
                       .refused = (int8_t)status};
    wefti_pairs_fill(call, &call->pairs.single, 1);
    weft_status_t submitted = wefti_call_submit_host(call, stream);
    return submitted == WEFT_OK ? wefti_error_adopt(status, text) : submitted;
}

weft_status_t weft_group_refuse(weft_group_t *group, weft_status_t error, const char *message,
                                weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    WEFT_CHECK_ARG(message);
    if (error >= 0 || error < INT8_MIN) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "group_refuse: invalid error %d: expected a negative weft_status_t",
                           (int)error);
    }
    wefti_error_adopt(error, message);
    return wefti_call_refuse(group, stream, error);
}
