/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works: calls that go on while the program does. A stream owns its works until they are done, in
 * order, so that the memory of one that nobody waits for lives as long as it is in use.
 */
#include "python/src/work.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_NS 50000ull
#define LOOK_NS 10000000ull
/* Works looked at whether they are done when one begins: more than one, so that lists get short. */
#define HEADS 4

/* ---- the end of a work ---- */
static void let_go(wp_work_t *work)
{
    wp_group_t *group = work->group;
    work->group = NULL;
    wp_call_release(&work->call);
    wp_batch_release(work->batch);
    work->batch = NULL;
    Py_XDECREF((PyObject *)group);
}

static void give_event_back(wp_work_t *work)
{
    if (work->done && work->waiters == 0 && work->event != NULL) {
        wp_stream_event_back(work->stream, work->event, work->failed);
        work->event = NULL;
    }
}

/* Not in flight any more: its memory is free. Takes over error, of a status < 0. */
static void end(wp_work_t *work, weft_status_t status, PyObject *error)
{
    if (status < 0) {
        work->failed = true;
        work->stream->broken = true;
        work->error = error;
    } else {
        work->result = Py_NewRef(work->call.result != NULL ? work->call.result : Py_None);
    }
    work->done = true;
    let_go(work);
    give_event_back(work);
}

void wp_work_abandon(wp_work_t *work)
{
    work->done = true;
    let_go(work);
    give_event_back(work);
}

/* Takes the first work off stream's list, which owned it. */
static wp_work_t *take_first(wp_stream_t *stream)
{
    wp_work_t *work = stream->first;
    stream->first = work->next;
    work->next = NULL;
    if (stream->first == NULL) {
        stream->last = NULL;
    }
    return work;
}

/* Whoever enqueued first need not be the first to come here. */
static void enter_list(wp_work_t *work)
{
    wp_stream_t *stream = work->stream;
    wp_work_t **at = &stream->first;
    if (stream->last != NULL && stream->last->number < work->number) {
        at = &stream->last->next;
    }
    while (*at != NULL && (*at)->number < work->number) {
        at = &(*at)->next;
    }
    work->next = *at;
    *at = (wp_work_t *)Py_NewRef((PyObject *)work);
    if (work->next == NULL) {
        stream->last = work;
    }
}

/*
 * The first of stream's works is done: well, or as its event says. To ask that, and to make an
 * exception, may run other code (signals' handlers, what rubbish is collected by), which may get
 * here, too: the work is on the list until nothing can come between.
 */
static void end_first(wp_stream_t *stream, bool well)
{
    wp_work_t *work = (wp_work_t *)Py_NewRef((PyObject *)stream->first);
    work->waiters++;
    weft_status_t status = well ? WEFT_OK : weft_event_query(work->event);
    PyObject *error = status < 0 ? wp_error_new(work->state, status) : NULL;
    work->waiters--;
    if (stream->first == work) {
        Py_DECREF((PyObject *)take_first(stream));
        end(work, status, error);
    } else {
        Py_XDECREF(error);
        give_event_back(work);
    }
    Py_DECREF((PyObject *)work);
}

/* work is known to be done, with status, and so are those before it: well if it is, else each as
 * its event says. */
static void settle(wp_work_t *work, weft_status_t status)
{
    while (!work->done) {
        end_first(work->stream, status >= 0);
    }
}

void wp_works_end(wp_stream_t *stream)
{
    while (stream->first != NULL) {
        end_first(stream, false);
    }
}

/* ---- looking at it without the GIL ---- */
weft_event_t *wp_work_begin_look(wp_work_t *work)
{
    Py_INCREF((PyObject *)work);
    work->waiters++;
    wp_stream_use(work->stream, true);
    return work->event;
}

void wp_work_end_look(wp_work_t *work, weft_status_t status)
{
    work->waiters--;
    wp_stream_use(work->stream, false);
    if (status != WEFT_IN_PROGRESS) {
        settle(work, status);
    }
    give_event_back(work);
    Py_DECREF((PyObject *)work);
}

void wp_works_reap(wp_stream_t *stream)
{
    weft_status_t status = WEFT_OK;
    while (stream->first != NULL && status != WEFT_IN_PROGRESS) {
        wp_work_t *work = stream->first;
        weft_event_t *event = wp_work_begin_look(work);
        PyThreadState *thread = PyEval_SaveThread();
        status = weft_event_query(event);
        PyEval_RestoreThread(thread);
        wp_work_end_look(work, status);
    }
}

/* ---- the beginning ---- */
/* Copies what the calls of a batch pack when its turn comes, as its calls are made then. */
static weft_status_t end_batch(const wp_work_t *work, weft_stream_t *stream)
{
    weft_status_t status = wp_batch_pack_in(work->batch, stream);
    if (status < 0) { /* the stream is broken, and the batch over */
        weft_batch_cancel(work->group->group);
    }
    return status == WEFT_OK ? weft_batch_end(work->group->group, stream) : status;
}

/* Under the locks of group and stream. WEFT_AGAIN: there is no room, and no call has been made. */
static weft_status_t enqueue(wp_work_t *work)
{
    weft_stream_t *stream = work->stream->stream;
    weft_status_t status =
        work->batch != NULL ? end_batch(work, stream) : wp_call_issue(&work->call, stream);
    if (work->batch != NULL) {
        work->group->notes = status == WEFT_AGAIN;
    }
    if (status == WEFT_OK && work->batch != NULL) {
        status = wp_batch_pack_back(work->batch, stream);
    }
    if (status < 0 && work->batch != NULL) { /* part of it may be on the stream */
        weft_stream_synchronize(stream);
    }
    if (status != WEFT_OK) {
        return status;
    }
    work->number = ++work->stream->count;
    while ((status = weft_event_record(work->event, stream)) == WEFT_AGAIN) {
        weft_stream_query(stream); /* its oldest call gets done, or breaks it in time */
    }
    if (status < 0) { /* the stream broke: the call, which is on it, ends soon */
        weft_stream_synchronize(stream);
    }
    return status;
}

/* What a call needs, and is not there. */
typedef enum wp_missing { WP_NOTHING = 0, WP_GROUP, WP_STREAM, WP_LOCK } wp_missing_t;

static weft_status_t enqueue_locked(wp_work_t *work, wp_missing_t *out_missing)
{
    wp_stream_t *stream = work->stream;
    weft_status_t status = WEFT_ERR_STATE;
    if (work->group->group == NULL) {
        *out_missing = WP_GROUP;
    } else if (pthread_mutex_lock(&stream->lock) != 0) {
        *out_missing = WP_LOCK;
    } else {
        if (stream->stream == NULL) {
            *out_missing = WP_STREAM;
        } else {
            status = enqueue(work);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    return status;
}

/* One attempt, without the GIL; looks at works before it, too. */
static weft_status_t attempt(wp_work_t *work, weft_event_t *const *heads, size_t count,
                             weft_status_t *seen, wp_missing_t *out_missing)
{
    weft_status_t status = WEFT_ERR_STATE;
    *out_missing = WP_LOCK;
    if (pthread_mutex_lock(&work->group->lock) == 0) {
        *out_missing = WP_NOTHING;
        status = enqueue_locked(work, out_missing);
        pthread_mutex_unlock(&work->group->lock);
    }
    if (status < 0) {
        return status; /* and its message */
    }
    for (size_t i = 0; i < count; i++) {
        seen[i] = weft_event_query(heads[i]);
        if (seen[i] == WEFT_IN_PROGRESS) {
            break;
        }
    }
    if (status == WEFT_AGAIN && count > 0 && seen[0] == WEFT_IN_PROGRESS) {
        seen[0] = weft_event_wait(heads[0], LOOK_NS);
        if (seen[0] < 0) { /* of the world, maybe: the work may still be in flight */
            seen[0] = weft_event_query(heads[0]);
        }
    }
    return status;
}

/* Enqueues it; WEFT_AGAIN: a signal's handler raised an exception. */
static weft_status_t begin(wp_work_t *work, wp_missing_t *out_missing)
{
    for (;;) {
        wp_work_t *heads[HEADS];
        weft_event_t *events[HEADS];
        weft_status_t seen[HEADS];
        size_t count = 0;
        for (wp_work_t *head = work->stream->first; head != NULL && count < HEADS;
             head = head->next) {
            seen[count] = WEFT_IN_PROGRESS;
            heads[count] = head;
            events[count++] = wp_work_begin_look(head);
        }
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = attempt(work, events, count, seen, out_missing);
        PyEval_RestoreThread(thread);
        PyObject *error =
            status < 0 && *out_missing == WP_NOTHING ? wp_error_new(work->state, status) : NULL;
        for (size_t i = 0; i < count; i++) {
            wp_work_end_look(heads[i], seen[i]);
        }
        work->error = error;
        work->failed = status < 0;
        if (status != WEFT_AGAIN || wp_pause(count > 0 ? 0 : ROOM_NS) < 0) {
            return status;
        }
    }
}

/* Takes over stream; NULL: an exception is set. */
static PyObject *work_new(wp_state_t *state, wp_group_t *group, wp_stream_t *stream)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->work_type, Py_tp_alloc);
    wp_work_t *work = stream != NULL ? (wp_work_t *)alloc(state->work_type, 0) : NULL; /* zeroed */
    if (work == NULL) {
        Py_XDECREF((PyObject *)stream);
        return NULL;
    }
    work->state = state;
    work->group = (wp_group_t *)Py_NewRef((PyObject *)group);
    work->stream = stream;
    work->event = wp_stream_event(stream);
    if (work->event == NULL) {
        Py_DECREF((PyObject *)work);
        return NULL;
    }
    return (PyObject *)work;
}

PyObject *wp_work_outcome(wp_work_t *work)
{
    if (work->failed && work->error == NULL) {
        return PyErr_NoMemory();
    }
    if (work->error == NULL) {
        return Py_NewRef(work->result);
    }
    if (!wp_interrupt_raise(work->state)) {
        PyErr_SetObject((PyObject *)Py_TYPE(work->error), work->error);
    }
    return NULL;
}

/* The call of work is not on its stream, but what packs its arrays may be; or it was, and has failed
 * and broken the stream before its event was recorded. */
static void settle_failure(const wp_work_t *work)
{
    wp_stream_t *stream = work->stream;
    bool packs = work->batch != NULL ? wp_batch_packs(work->batch) : wp_call_packs(&work->call);
    weft_status_t status = WEFT_OK;
    PyThreadState *thread = PyEval_SaveThread();
    if (pthread_mutex_lock(&stream->lock) == 0) {
        if (stream->stream != NULL) {
            status = (packs ? weft_stream_synchronize : weft_stream_query)(stream->stream);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    PyEval_RestoreThread(thread);
    stream->broken = stream->broken || status < 0;
}

/* Takes over work. */
static PyObject *start(wp_work_t *work)
{
    wp_missing_t missing;
    weft_status_t status = begin(work, &missing);
    if (status == WEFT_OK) {
        enter_list(work);
        return (PyObject *)work;
    }
    settle_failure(work);
    if (missing == WP_GROUP) {
        wp_raise_text(work->state, WEFT_ERR_STATE,
                      "the group is gone: it was destroyed, or its context left (weft.finalize)");
    } else if (missing == WP_STREAM) {
        wp_stream_closed(work->state);
    } else if (missing == WP_LOCK) {
        wp_lock_refused(work->state);
    } else if (work->failed) {
        wp_work_outcome(work);
    }
    if (work->batch != NULL && (missing != WP_NOTHING || !work->failed)) { /* it never ended */
        wp_batch_drop(work->group, work->batch);
        work->batch = NULL;
    }
    Py_DECREF((PyObject *)work);
    return NULL;
}

/* A new reference: a group's stream may be another one soon. */
static wp_stream_t *choose(wp_state_t *state, wp_group_t *group, wp_stream_t *stream)
{
    if (stream == NULL) {
        return (wp_stream_t *)Py_XNewRef((PyObject *)wp_group_stream(state, group));
    }
    if (stream->context != group->context) {
        PyErr_SetString(PyExc_ValueError, "stream and group belong to different contexts");
        return NULL;
    }
    return (wp_stream_t *)Py_NewRef((PyObject *)stream);
}

PyObject *wp_work_start(wp_state_t *state, wp_call_t *call, wp_stream_t *stream)
{
    stream = choose(state, call->group, stream);
    wp_work_t *work = (wp_work_t *)work_new(state, call->group, stream);
    if (work == NULL) {
        wp_call_release(call);
        return NULL;
    }
    work->call = *call; /* which needs nothing of where it is */
    work->op = call->op;
    memset(call, 0, sizeof *call);
    return start(work);
}

PyObject *wp_work_start_batch(wp_state_t *state, wp_group_t *group, wp_batch_t *batch,
                              wp_stream_t *stream)
{
    stream = choose(state, group, stream);
    wp_work_t *work = (wp_work_t *)work_new(state, group, stream);
    if (work == NULL) {
        wp_batch_drop(group, batch);
        return NULL;
    }
    work->batch = batch;
    return start(work);
}

int wp_work_init(PyObject *module, wp_state_t *state)
{
    return wp_work_type_init(module, state) < 0 ? -1 : wp_batch_init(module, state);
}
