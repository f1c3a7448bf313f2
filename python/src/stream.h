/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stream.c and work.c share. A stream is in order, so its works are done in the order of its
 * list, which owns them until then: the memory of a work that nobody waits for lives as long as it
 * is in use.
 */
#ifndef WEFT_PYTHON_STREAM_H
#define WEFT_PYTHON_STREAM_H

#include "python/src/weft_python.h"

typedef struct wp_work wp_work_t;

/* An event for one record, not waited for; NULL with an exception. And back, once nobody looks at
 * it. */
weft_event_t *wp_stream_event(wp_stream_t *stream);
void wp_stream_event_back(wp_stream_t *stream, weft_event_t *event, bool broken);
/* With the GIL: this thread begins to wait for stream without it, and has ended that. */
void wp_stream_use(wp_stream_t *stream, bool begins);
/* WeftStateError: the stream's context was closed. NULL. */
PyObject *wp_stream_closed(wp_state_t *state);
/* With the GIL; lets it go for a moment, as somebody who is to come up with room or an end may need
 * it. -1: a signal. */
int wp_pause(uint64_t ns);

/* event.c */
int wp_event_init(PyObject *module, wp_state_t *state);
/* A new weft.Event of context. */
PyObject *wp_event_new(wp_context_t *context);
/* The event of a weft.Event for a while without the GIL, in which the object lives and its event,
 * too; and back. */
weft_event_t *wp_event_take(wp_state_t *state, PyObject *object);
void wp_event_drop(PyObject *object, weft_event_t *taken);

/* batch.c */
int wp_batch_init(PyObject *module, wp_state_t *state);
void wp_batch_release(wp_batch_t *batch); /* accepts NULL */
/* Of a call that is not noted, since it is wrong. */
void wp_batch_note_refusal(wp_batch_t *batch, weft_status_t error, const char *text);
/* wp_call_pack_in of all calls, by one command of stream; whether there is anything to copy. */
weft_status_t wp_batch_pack_in(wp_batch_t *batch, weft_stream_t *stream);
bool wp_batch_packs(const wp_batch_t *batch);
/* Its call has ended, or is on stream: wp_call_pack_back of all calls. */
weft_status_t wp_batch_pack_back(const wp_batch_t *batch, weft_stream_t *stream);
/* An exception in place of its end: nothing of it is called; where part of it was, the world ends.
 * Takes it over. */
void wp_batch_drop(wp_group_t *group, wp_batch_t *batch);
/* work.c: sends a batch off, which is taken over, also on failure. */
PyObject *wp_work_start_batch(wp_state_t *state, wp_group_t *group, wp_batch_t *batch,
                              wp_stream_t *stream);
/* Takes works that are done off stream's list; the caller has a reference to stream. */
void wp_works_reap(wp_stream_t *stream);
/* Nothing of stream is in flight any more, nor will be. */
void wp_works_end(wp_stream_t *stream);

#endif
