/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream.h Streams, events and notifies.
 *
 * A stream is an ordered queue of work on the context's device. An event is a point on a stream's
 * timeline that other streams and the host wait for. The calls mirror what accelerator programmers know.
 * On the CPU device a stream runs either on a thread of its own or inline, on whichever thread waits for it, for a call
 * of a group, or for other ranks in what is collective (WEFT_STREAM_THREAD). One thread at a time may enqueue on a stream; different streams are
 * independent.
 */
#ifndef WEFT_STREAM_H
#define WEFT_STREAM_H

#include <weft/context.h>

typedef struct weft_stream weft_stream_t;
typedef struct weft_event weft_event_t;
typedef struct weft_notify weft_notify_t;

typedef uint32_t weft_stream_flags_t;
#define WEFT_STREAM_INLINE 0u        /**< progresses inside wait, query and synchronise calls */
#define WEFT_STREAM_THREAD (1u << 0) /**< progresses on a thread of its own */
#define WEFT_STREAM_AUTO (1u << 1)   /**< on a thread where the context's progress has one (WEFT_PROGRESS), else inline */

typedef struct weft_stream_params {
    size_t struct_size;
    const char *name; /**< shown in the timeline; NULL: "stream" */
    weft_stream_flags_t flags;
    uint32_t capacity; /**< work items in flight; 0: 1024 */
} weft_stream_params_t;

/** Work on the host; must not call back into the stream. An error breaks the stream. */
typedef weft_status_t (*weft_host_fn)(void *user);

WEFT_EXTERN_C_BEGIN
/** @param[in] params NULL: defaults */
WEFT_API weft_status_t weft_stream_create(weft_context_t *context, const weft_stream_params_t *params,
                                          weft_stream_t **out_stream);
/** Waits for everything enqueued, then destroys; NULL is fine. */
WEFT_API void weft_stream_destroy(weft_stream_t *stream);
/** Enqueues fn(user). WEFT_AGAIN when the stream is full. */
WEFT_API weft_status_t weft_stream_launch_host(weft_stream_t *stream, weft_host_fn fn, void *user);
/** Enqueues a prepared kernel; arrays of call are copied, memory they point to must live until it ran. */
WEFT_API weft_status_t weft_stream_launch(weft_stream_t *stream, const weft_kernel_t *kernel,
                                          const weft_kernel_call_t *call, uint32_t input_count,
                                          uint32_t output_count);
/** Enqueues a copy of bytes; dst and src are device or host addresses, not overlapping. */
WEFT_API weft_status_t weft_stream_copy(weft_stream_t *stream, void *dst, const void *src, size_t bytes);
/** @return WEFT_OK when everything enqueued is done, WEFT_IN_PROGRESS, or the error that broke the stream. */
WEFT_API weft_status_t weft_stream_query(weft_stream_t *stream);
/** Waits until everything enqueued is done. @return the first error of the stream */
WEFT_API weft_status_t weft_stream_synchronize(weft_stream_t *stream);

WEFT_API weft_status_t weft_event_create(weft_context_t *context, weft_event_t **out_event);
/** The event must not be waited for any more; NULL is fine. */
WEFT_API void weft_event_destroy(weft_event_t *event);
/** Marks this point of stream's timeline; recording again moves the event. */
WEFT_API weft_status_t weft_event_record(weft_event_t *event, weft_stream_t *stream);
/** Later work of stream waits for the latest record of event (nothing if there was none). */
WEFT_API weft_status_t weft_stream_wait_event(weft_stream_t *stream, weft_event_t *event);
/** WEFT_OK when the latest record was reached, WEFT_IN_PROGRESS, or the recording stream's error. */
WEFT_API weft_status_t weft_event_query(weft_event_t *event);
WEFT_API weft_status_t weft_event_synchronize(weft_event_t *event);
/** The same for timeout_ns at most, after which it is WEFT_IN_PROGRESS, and nothing has happened to the event. */
WEFT_API weft_status_t weft_event_wait(weft_event_t *event, uint64_t timeout_ns);
/** Nanoseconds of CLOCK_MONOTONIC at which the latest record was reached; WEFT_ERR_STATE before. */
WEFT_API weft_status_t weft_event_time_ns(weft_event_t *event, uint64_t *out_time_ns);

/**
 * A self-resetting signal from one stream to another of the same context: each wait consumes one record, so it
 * serves round after round and nothing is ever set back. For authors of algorithms, who order the main and the side
 * streams of a rank by it: one notify for each direction between two streams (samples/mesh_all_gather). Unlike an
 * event's, a notify's wait may be enqueued before its record.
 */
WEFT_API weft_status_t weft_notify_create(weft_context_t *context, weft_notify_t **out_notify);
/**
 * NULL is fine. What is enqueued keeps what it needs; a wait that is left without a record breaks its stream with
 * WEFT_ERR_ABORTED.
 */
WEFT_API void weft_notify_destroy(weft_notify_t *notify);
/** At this point of stream one more wait may go on. An error of stream goes on to all later waits. */
WEFT_API weft_status_t weft_notify_record(weft_notify_t *notify, weft_stream_t *stream);
/** Later work of stream waits for the next record that no wait has consumed. */
WEFT_API weft_status_t weft_notify_wait(weft_notify_t *notify, weft_stream_t *stream);
WEFT_EXTERN_C_END

#endif
