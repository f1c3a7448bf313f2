/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of public streams.
 *
 *   stream.c   create, enqueue, query, synchronise; the ring of slots
 *   streams.c  the streams of a context
 *   host.c     runs slots on the CPU device
 *   thread.c   the thread of a stream that has its own
 *   device.c   hands slots to a device's queue
 *   mark.c     counters that streams post
 *   event.c    events and notifies: marks on the timelines of streams
 */
#ifndef WEFT_RUNTIME_STREAM_H
#define WEFT_RUNTIME_STREAM_H

#include <weft/stream.h>

#include "runtime/context/context.h"
#include "runtime/stream/mark.h"
#include "runtime/stream/record.h"

typedef struct wefti_slot {
    wefti_record_t record; /* SIGNAL and WAIT go by mark and value instead of its fields */
    wefti_mark_t *mark;
    uint32_t value;
    const void **pointers; /* of a launch; kept for the next one */
    size_t pointer_capacity;
} wefti_slot_t;

struct weft_stream {
    wefti_signal_line_t tail; /* how many were enqueued */
    wefti_signal_line_t done; /* how many are done */
    weft_context_t *context;
    char name[48];
    uint32_t number;   /* of the streams of its context, from 1 on; for the flight recorder */
    uint32_t capacity; /* a power of two */
    wefti_slot_t *slots;
    wefti_fault_t fault;
    atomic_flag busy; /* inline: held by the thread that runs the stream */
    bool threaded;
    pthread_t thread;
    _Atomic uint32_t stop;
    weft_queue_t *queue;     /* not on the CPU device */
    wefti_blocked_t blocked; /* inline: what the opaque record at hand waits for; under busy */
};

/* WEFT_ERR_INVALID_ARGUMENT unless stream (NULL: the caller) belongs to context. */
weft_status_t wefti_stream_check_context(const weft_stream_t *stream,
                                         const weft_context_t *context);

/* stream.c: room for one more record, or WEFT_AGAIN, or the stream's error; then commit. */
weft_status_t wefti_stream_reserve(weft_stream_t *stream, wefti_slot_t **out_slot);
weft_status_t wefti_stream_commit(weft_stream_t *stream, wefti_slot_t *slot);
/* A stream that runs on the host, whatever the context's device is: inline, or on a thread where
 * that is how the context makes progress. */
weft_status_t wefti_stream_create_host(weft_context_t *context, const char *name, uint32_t capacity,
                                       weft_stream_t **out_stream);
/* Waits until mark (or, if NULL, all of stream) has reached target. stream may be NULL with a mark.
 */
weft_status_t wefti_stream_wait(weft_context_t *context, wefti_mark_t *mark, weft_stream_t *stream,
                                uint32_t target, const char *what);
/* The same for patience_ns at most, then WEFT_IN_PROGRESS. */
weft_status_t wefti_stream_wait_for(weft_context_t *context, wefti_mark_t *mark,
                                    weft_stream_t *stream, uint32_t target, const char *what,
                                    uint64_t patience_ns);

/* host.c: runs what can be run; the caller holds busy or is the thread. */
void wefti_stream_run(weft_stream_t *stream);
void *wefti_stream_main(void *stream); /* thread.c */
/* What an inline stream is blocked on, for sleeping until then. */
typedef struct wefti_stream_block {
    wefti_signal_t *signal; /* NULL: nothing */
    uint32_t target;
    wefti_mark_t *mark; /* retained; NULL: the signal is that of an opaque record */
} wefti_stream_block_t;

/*
 * Runs all inline streams of context as far as they go. True when there is any. *out_block (may be
 * NULL itself, else all zero at first) becomes what one of them is blocked on.
 */
bool wefti_streams_progress(weft_context_t *context, wefti_stream_block_t *out_block);

/* device.c */
weft_status_t wefti_stream_push(weft_stream_t *stream, const wefti_slot_t *slot);
/* Notices what the device has done. The queue's status; also WEFT_IN_PROGRESS while another thread
 * looks. */
weft_status_t wefti_stream_poll(weft_stream_t *stream);
weft_status_t wefti_stream_poll_held(weft_stream_t *stream); /* the caller holds busy */

/* streams.c */
weft_status_t wefti_streams_add(weft_context_t *context, weft_stream_t *stream);
void wefti_streams_remove(weft_context_t *context, const weft_stream_t *stream);
/* The stream ends: listeners hear of it. */
void wefti_streams_tell(const weft_stream_t *stream);
/* Called before a stream of the context is freed; no queue runs any of its records any more. */
typedef struct wefti_stream_listener wefti_stream_listener_t;
struct wefti_stream_listener {
    wefti_stream_listener_t *next; /* streams.c */
    void (*ended)(wefti_stream_listener_t *listener, const weft_stream_t *stream);
};
/* The context has a stream. */
void wefti_stream_listen(weft_context_t *context, wefti_stream_listener_t *listener);
void wefti_stream_unlisten(weft_context_t *context, const wefti_stream_listener_t *listener);

#endif
