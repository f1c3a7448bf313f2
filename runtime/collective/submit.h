/* SPDX-License-Identifier: Apache-2.0 */
/* From a checked request to a call in flight. */
#ifndef WEFT_RUNTIME_SUBMIT_H
#define WEFT_RUNTIME_SUBMIT_H

#include "runtime/collective/recorder.h"
#include "runtime/stream/stream.h"

/*
 * A place in the ring for the next call; WEFT_AGAIN when 64 are in flight. The caller fills it in;
 * submit gives it its number and hands it to stream (NULL: runs it to the end).
 */
weft_status_t wefti_call_reserve(weft_group_t *group, weft_stream_t *stream,
                                 wefti_call_t **out_call);
weft_status_t wefti_call_submit(wefti_call_t *call, weft_stream_t *stream);
/* The same for host memory, whatever the context's device is; stream runs on the host. */
weft_status_t wefti_call_submit_host(wefti_call_t *call, weft_stream_t *stream);

/*
 * call_refuse.c: this rank cannot make the next call of the group because of status, whose message
 * is the last error. The other ranks learn of it in that call. Returns status, or WEFT_AGAIN.
 */
weft_status_t wefti_call_refuse(weft_group_t *group, weft_stream_t *stream, weft_status_t status);
/* The same for a reserved call that would have sent or received: a receiver learns it in its call. */
weft_status_t wefti_pair_refuse(wefti_call_t *call, const wefti_pair_t *pair, weft_stream_t *stream,
                                weft_status_t status);
/* The same where others cannot tell by their calls which one it is: all calls end. */
weft_status_t wefti_call_end_group(weft_group_t *group, weft_status_t status, const char *text);

/* collective.c: into an empty call. */
void wefti_request_fill(wefti_call_t *call, const wefti_request_t *request);

#endif
