/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream.h
 * Streams, events and notifies, as CUDA has them.
 *
 * A stream is an ordered queue of work on the context's device. An event is a point on a stream's
 * timeline that other streams and the host can wait for. On the CPU device a stream runs on a
 * thread of its own (WEFT_STREAM_THREAD) or inline. An inline stream runs on the thread that waits
 * for it, for a call of a group, or for other ranks in a collective call. One thread at a time
 * enqueues on a stream. Different streams are independent.
 */
#ifndef WEFT_STREAM_H
#define WEFT_STREAM_H

#include <weft/context.h>

/** An ordered queue of work. Equivalent to: cudaStream_t, aclrtStream. */
typedef struct weft_stream weft_stream_t;
/** A point on a stream's timeline. Equivalent to: cudaEvent_t, aclrtEvent. */
typedef struct weft_event weft_event_t;
/** A self-resetting signal between two streams. Equivalent to: aclrtNotify. */
typedef struct weft_notify weft_notify_t;

/** Options of a stream: WEFT_STREAM_ bits. */
typedef uint32_t weft_stream_flags_t;
/** Progresses inside wait, query and synchronize calls. */
#define WEFT_STREAM_INLINE 0u
/** Progresses on a thread of its own. */
#define WEFT_STREAM_THREAD (1u << 0)
/** On a thread if the context's progress has one (WEFT_PROGRESS), else inline. */
#define WEFT_STREAM_AUTO (1u << 1)

/** Parameters of weft_stream_create. Zero means the default. */
typedef struct weft_stream_params {
    size_t struct_size;        /**< size of this struct */
    const char *name;          /**< name in the timeline, copied; NULL: "stream" */
    weft_stream_flags_t flags; /**< options */
    uint32_t capacity;         /**< most work items in flight; 0: 1024 */
} weft_stream_params_t;

/** Defaults of weft_stream_params_t. */
#define WEFT_STREAM_PARAMS_INIT WEFT_STRUCT_INIT(weft_stream_params_t, 0, WEFT_STREAM_INLINE, 0)

/** Work on the host. Must not call back into the stream. An error breaks the stream. */
typedef weft_status_t (*weft_host_fn)(void *user);

WEFT_EXTERN_C_BEGIN
/**
 * Creates a stream on the context's device. Local.
 * @param[in]  context    retained
 * @param[in]  params     NULL: defaults
 * @param[out] out_stream the stream; the caller destroys it
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_NO_MEMORY, WEFT_ERR_SYSTEM
 *
 * Equivalent to: cudaStreamCreate, aclrtCreateStream
 */
WEFT_API weft_status_t weft_stream_create(weft_context_t *context,
                                          const weft_stream_params_t *params,
                                          weft_stream_t **out_stream);
/**
 * Waits for all enqueued work, then destroys the stream. Blocking.
 * @param[in] stream NULL: nothing happens
 */
WEFT_API void weft_stream_destroy(weft_stream_t *stream);
/**
 * Enqueues a call of fn on the host. Non-blocking.
 * @param[in] stream the stream
 * @param[in] fn     the function
 * @param[in] user   argument of fn; must stay valid until fn has run
 * @return WEFT_AGAIN if the stream is full; WEFT_ERR_UNSUPPORTED on an accelerator; the error that
 *         broke the stream
 *
 * Equivalent to: cudaLaunchHostFunc
 */
WEFT_API weft_status_t weft_stream_launch_host(weft_stream_t *stream, weft_host_fn fn, void *user);
/**
 * Enqueues a prepared kernel. Non-blocking. Memory that call's arrays point to must stay valid
 * until the kernel has run.
 * @param[in] stream       the stream
 * @param[in] kernel       the kernel; must stay valid until it has run
 * @param[in] call         its arrays are copied
 * @param[in] input_count  length of call->inputs
 * @param[in] output_count length of call->outputs
 * @return WEFT_AGAIN if the stream is full; WEFT_ERR_INVALID_ARGUMENT for another abi_version or a
 *         missing array; WEFT_ERR_NO_MEMORY; the error that broke the stream
 *
 * Equivalent to: cudaLaunchKernel
 */
WEFT_API weft_status_t weft_stream_launch(weft_stream_t *stream, const weft_kernel_t *kernel,
                                          const weft_kernel_call_t *call, uint32_t input_count,
                                          uint32_t output_count);
/**
 * Enqueues a copy. Non-blocking; both ranges must stay valid until it has run.
 * @param[in]  stream the stream
 * @param[out] dst    device or host address; may be NULL if bytes is 0
 * @param[in]  src    device or host address, not overlapping dst; may be NULL if bytes is 0
 * @param[in]  bytes  bytes to copy
 * @return WEFT_AGAIN if the stream is full; the error that broke the stream
 *
 * Equivalent to: cudaMemcpyAsync, aclrtMemcpyAsync
 */
WEFT_API weft_status_t weft_stream_copy(weft_stream_t *stream, void *dst, const void *src,
                                        size_t bytes);
/**
 * Tests whether all enqueued work is done; makes progress. Non-blocking.
 * @param[in] stream the stream
 * @return WEFT_OK, WEFT_IN_PROGRESS, or the error that broke the stream
 *
 * Equivalent to: cudaStreamQuery
 */
WEFT_API weft_status_t weft_stream_query(weft_stream_t *stream);
/**
 * Waits until all enqueued work is done. Blocking; an inline stream runs here.
 * @param[in] stream the stream
 * @return the first error of the stream; WEFT_ERR_TIMEOUT after WEFT_TIMEOUT; the error that ended
 *         the world
 *
 * Equivalent to: cudaStreamSynchronize
 */
WEFT_API weft_status_t weft_stream_synchronize(weft_stream_t *stream);

/**
 * Creates an event without a record. Local; any thread.
 * @param[in]  context   retained
 * @param[out] out_event the event; the caller destroys it
 * @return WEFT_ERR_NO_MEMORY
 *
 * Equivalent to: cudaEventCreate
 */
WEFT_API weft_status_t weft_event_create(weft_context_t *context, weft_event_t **out_event);
/**
 * Destroys an event. Non-blocking: enqueued work keeps what it needs. No thread may be waiting for
 * it.
 * @param[in] event NULL: nothing happens
 */
WEFT_API void weft_event_destroy(weft_event_t *event);
/**
 * Marks this point of the stream's timeline. A new record replaces the old one for later calls;
 * who waits for the old one goes on waiting for it. Non-blocking.
 * @param[in] event  the event
 * @param[in] stream the stream
 * @return WEFT_AGAIN if the stream is full; WEFT_ERR_INVALID_ARGUMENT for a stream of another
 *         context; the error that broke the stream
 *
 * Equivalent to: cudaEventRecord
 */
WEFT_API weft_status_t weft_event_record(weft_event_t *event, weft_stream_t *stream);
/**
 * Makes later work of stream wait for what is the latest record of event now, whether or not event
 * is recorded again; for nothing if there is none. Non-blocking.
 * @param[in] stream the stream that waits
 * @param[in] event  the event
 * @return WEFT_AGAIN if the stream is full; WEFT_ERR_INVALID_ARGUMENT for an event of another
 *         context; the error that broke the stream
 *
 * Equivalent to: cudaStreamWaitEvent
 */
WEFT_API weft_status_t weft_stream_wait_event(weft_stream_t *stream, weft_event_t *event);
/**
 * Tests whether the latest record was reached; makes progress. Non-blocking.
 * @param[in] event the event
 * @return WEFT_OK (also without a record), WEFT_IN_PROGRESS, or the recording stream's error
 *
 * Equivalent to: cudaEventQuery
 */
WEFT_API weft_status_t weft_event_query(weft_event_t *event);
/**
 * Waits until the latest record was reached. Blocking.
 * @param[in] event the event
 * @return WEFT_OK (also without a record), the recording stream's error, or as
 *         weft_stream_synchronize
 *
 * Equivalent to: cudaEventSynchronize
 */
WEFT_API weft_status_t weft_event_synchronize(weft_event_t *event);
/**
 * Waits until the latest record was reached, for a limited time. Blocking. A timeout does
 * not change the event.
 * @param[in] event      the event
 * @param[in] timeout_ns most nanoseconds to wait
 * @return WEFT_IN_PROGRESS after timeout_ns; else as weft_event_synchronize
 */
WEFT_API weft_status_t weft_event_wait(weft_event_t *event, uint64_t timeout_ns);
/**
 * Returns when the latest record was reached. Local, non-blocking.
 * @param[in]  event       the event
 * @param[out] out_time_ns nanoseconds of CLOCK_MONOTONIC
 * @return WEFT_ERR_STATE if it was not reached yet, WEFT_ERR_UNSUPPORTED on an accelerator
 *
 * Equivalent to: cudaEventElapsedTime
 */
WEFT_API weft_status_t weft_event_time_ns(weft_event_t *event, uint64_t *out_time_ns);

/**
 * Creates a self-resetting signal between two streams of one context. Local. Each wait consumes one
 * record, so a notify serves round after round without a reset. Authors of algorithms order the
 * main and side streams of a rank with one notify per direction (samples/mesh_all_gather). Unlike
 * an event's, a notify's wait may be enqueued before its record.
 * @param[in]  context    retained
 * @param[out] out_notify the notify; the caller destroys it
 * @return WEFT_ERR_NO_MEMORY
 *
 * Equivalent to: aclrtCreateNotify
 */
WEFT_API weft_status_t weft_notify_create(weft_context_t *context, weft_notify_t **out_notify);
/**
 * Destroys a notify. Non-blocking: enqueued work keeps what it needs. A wait left without a record
 * breaks its stream with WEFT_ERR_ABORTED.
 * @param[in] notify NULL: nothing happens
 */
WEFT_API void weft_notify_destroy(weft_notify_t *notify);
/**
 * Lets one more wait proceed from this point of stream on. An error of stream passes to all later
 * waits. Non-blocking.
 * @param[in] notify the notify
 * @param[in] stream the stream
 * @return WEFT_AGAIN if the stream is full; WEFT_ERR_INVALID_ARGUMENT for a stream of another
 *         context; the error that broke the stream
 */
WEFT_API weft_status_t weft_notify_record(weft_notify_t *notify, weft_stream_t *stream);
/**
 * Makes later work of stream wait for the next record that no wait has consumed. Non-blocking.
 * @param[in] notify the notify
 * @param[in] stream the stream that waits
 * @return WEFT_AGAIN if the stream is full; WEFT_ERR_INVALID_ARGUMENT for a stream of another
 *         context; the error that broke the stream
 */
WEFT_API weft_status_t weft_notify_wait(weft_notify_t *notify, weft_stream_t *stream);
WEFT_EXTERN_C_END

#endif
