/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of groups whose context has a device: staged through the host. Nothing is copied where
 * the host reaches the device's memory and the program has wrapped none of its own.
 *
 *   user's stream S (a queue of the device)         host side H (an inline stream of the group)
 *   copy the send buffer to host memory
 *   mark := 2 use - 1   ------------------------>  wait for the mark
 *                                                  the collective, over the groups' channels
 *   wait for go = use   <------------------------  go := use
 *   copy host memory to the receive buffer
 *   mark := 2 use: the place is free
 *
 * The user's stream never waits for the host to say something that the host does not owe to a peer,
 * so other queues go on meanwhile. H runs inside whatever call of this rank waits or queries, like
 * every inline stream, or on a thread (WEFT_PROGRESS). An error of the collective breaks S:
 * work queued after it never runs.
 */
#ifndef WEFT_RUNTIME_DEVICE_CALL_H
#define WEFT_RUNTIME_DEVICE_CALL_H

#include "runtime/collective/submit.h"

#define WEFTI_DEVICE_CALLS 16u /* in flight per group */

/* A range of the user's buffers and where the host has it. */
typedef struct wefti_segment {
    uint8_t *device, *host;
    size_t bytes;
} wefti_segment_t;

typedef struct wefti_segments {
    wefti_segment_t *list;
    size_t count, capacity;
} wefti_segments_t;

/* One call in flight; places take turns. */
typedef struct wefti_device_call {
    struct wefti_device_calls *calls;
    wefti_mark_t *mark; /* 2 use - 1: copied out; 2 use: copied in */
    wefti_mark_t *go;   /* only its counter on the device: use */
    uint32_t use;
    weft_stream_t *stream; /* under lock; NULL when it is gone */
    bool ended;            /* the host's part is complete; under lock */
    uint8_t *host;         /* grows to the largest call that the place has seen */
    size_t host_bytes;
    wefti_segments_t outs, ins;
} wefti_device_call_t;

/* What a group on a device has besides its channels; made at its first call. */
typedef struct wefti_device_calls {
    wefti_stream_listener_t listener; /* member 0 */
    weft_group_t *group;
    weft_stream_t *host; /* H */
    weft_stream_t *own;  /* for calls without a stream; made at the first of them */
    weft_queue_t *queue; /* raises go; only used while H runs */
    pthread_mutex_t lock;
    uint32_t issued;
    wefti_device_call_t places[WEFTI_DEVICE_CALLS];
} wefti_device_calls_t;

/* device_stage.c: the call's buffers move to host memory of the place; segments say what to copy.
 */
weft_status_t wefti_device_call_stage(wefti_device_call_t *place, wefti_call_t *call);

/* device_call.c: instead of wefti_call_submit. */
weft_status_t wefti_device_call_submit(wefti_call_t *call, weft_stream_t *stream);
/* Waits for the device to be done with the places; ends them where the group is broken. */
void wefti_device_calls_destroy(weft_group_t *group);

#endif
