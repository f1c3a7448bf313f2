/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: queues of calls beside the program, each in order. */
#include "python/src/stream.h"

#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 50000ull
#define PATIENCE_NAPS 10000u /* of 100 us: what calls in flight get when the program ends */

PyObject *wp_stream_closed(wp_state_t *state)
{
    return wp_raise_text(state, WEFT_ERR_STATE, "the stream's context was closed");
}

static void nap(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

int wp_pause(uint64_t ns)
{
    PyThreadState *thread = PyEval_SaveThread();
    nap(ns);
    PyEval_RestoreThread(thread);
    return PyErr_CheckSignals();
}

/* ---- events of works ---- */
weft_event_t *wp_stream_event(wp_stream_t *stream)
{
    weft_event_t *event = NULL;
    weft_context_t *context = wp_context_open(stream->context);
    if (context == NULL) {
        return NULL;
    }
    if (stream->spares > 0) {
        return stream->spare[--stream->spares];
    }
    weft_status_t status = weft_event_create(context, &event);
    if (status < 0) {
        wp_raise(stream->context->state, status);
    }
    return event;
}

void wp_stream_event_back(wp_stream_t *stream, weft_event_t *event, bool broken)
{
    size_t room = sizeof stream->spare / sizeof stream->spare[0];
    if (event != NULL && !broken && stream->stream != NULL && stream->spares < room) {
        stream->spare[stream->spares++] = event;
        return;
    }
    weft_event_destroy(event);
}

/* ---- life ---- */
/* At the end of the program nobody waits for long: calls in flight that do not end are ended, for
 * all ranks. */
static void finish_soon(const wp_context_t *context, weft_stream_t *stream)
{
    for (uint32_t i = 0; i < PATIENCE_NAPS && weft_stream_query(stream) == WEFT_IN_PROGRESS; i++) {
        nap(2 * PAUSE_NS);
    }
    if (weft_stream_query(stream) == WEFT_IN_PROGRESS && context->context != NULL) {
        char text[80];
        snprintf(text, sizeof text, "rank %u's program ended with calls in flight",
                 (unsigned)context->rank);
        weft_context_abort(context->context, text);
    }
}

/* Waits for what was enqueued, as long as that takes: until its time-out, or the world's end, or
 * Ctrl-C. */
static void destroy(wp_stream_t *self)
{
    weft_stream_t *stream = self->stream;
    bool forked = self->context->process != (int64_t)getpid();
    self->stream = NULL; /* nothing more is enqueued */
    PyThreadState *thread = PyEval_SaveThread();
    if (!forked) {
        if (pthread_mutex_lock(&self->lock) ==
            0) { /* who had it has seen the stream, and goes on */
            pthread_mutex_unlock(&self->lock);
        }
        if (self->context->state->exiting) {
            finish_soon(self->context, stream);
        } else {
            weft_stream_synchronize(stream);
        }
    }
    PyEval_RestoreThread(thread);
    while (self->users > 0 &&
           !forked) { /* what they wait for has come, or never will: they are on their way */
        thread = PyEval_SaveThread();
        nap(PAUSE_NS);
        PyEval_RestoreThread(thread);
    }
    thread = PyEval_SaveThread();
    weft_stream_destroy(stream);
    PyEval_RestoreThread(thread);
    wp_works_end(self);
    while (self->spares > 0) {
        weft_event_destroy(self->spare[--self->spares]);
    }
}

void wp_stream_use(wp_stream_t *stream, bool begins)
{
    wp_context_t *context = stream->context;
    bool main = PyThread_get_thread_ident() == context->state->main_thread;
    if (begins) {
        stream->users++;
        context->main_waits += main;
    } else {
        stream->users--;
        context->main_waits -= main;
    }
}

static void leave(wp_holder_t *holder)
{
    wp_stream_t *self = (wp_stream_t *)(void *)((char *)holder - offsetof(wp_stream_t, holder));
    Py_INCREF((PyObject *)self);
    destroy(self);
    Py_DECREF((PyObject *)self);
}

/* Works of streams that nobody looks at any more are done some time, too. -1: an exception. */
static int reap_all(wp_context_t *context)
{
    PyObject *streams =
        PyList_New(0); /* first: the context's list is another one after each look */
    int status = streams != NULL ? 0 : -1;
    for (wp_holder_t *holder = context->holders; holder != NULL && status == 0;
         holder = holder->next) {
        wp_stream_t *stream =
            (wp_stream_t *)(void *)((char *)holder - offsetof(wp_stream_t, holder));
        if (holder->leave == leave && stream->first != NULL) {
            status = PyList_Append(streams, (PyObject *)stream);
        }
    }
    Py_ssize_t count = status == 0 ? PyList_Size(streams) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        wp_works_reap((wp_stream_t *)PyList_GetItem(streams, i));
    }
    Py_XDECREF(streams);
    return status;
}

static wp_stream_t *stream_new(wp_context_t *context, const char *name, weft_stream_flags_t flags)
{
    PyTypeObject *type = context->state->stream_type;
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    params.name = name;
    params.flags = flags;
    Py_INCREF((PyObject *)context); /* works that end, and rubbish that is collected, do anything */
    int reaped = reap_all(context);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    wp_stream_t *self = reaped == 0 ? (wp_stream_t *)alloc(type, 0) : NULL;
    if (self == NULL) {
        Py_DECREF((PyObject *)context);
        return NULL;
    }
    wp_lock_init(&self->lock);
    self->context = context;
    weft_context_t *open = wp_context_open(context);
    weft_status_t status =
        open != NULL ? weft_stream_create(open, &params, &self->stream) : WEFT_OK;
    if (status < 0) {
        wp_raise(context->state, status);
    }
    if (self->stream == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    self->holder.lock = &self->lock;
    self->holder.first = true;
    wp_context_hold(context, &self->holder, leave);
    return self;
}

static PyObject *type_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"thread", "context", NULL};
    PyObject *threaded = Py_None, *context_object = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:Stream", names, &threaded,
                                     &context_object)) {
        return NULL;
    }
    wp_state_t *state = wp_state_of_type(type);
    int flag = threaded != Py_None ? PyObject_IsTrue(threaded) : 2;
    wp_context_t *context =
        state != NULL && flag >= 0 ? wp_context_of(state, context_object) : NULL;
    static const weft_stream_flags_t flags[] = {WEFT_STREAM_INLINE, WEFT_STREAM_THREAD,
                                                WEFT_STREAM_AUTO};
    return context != NULL ? (PyObject *)stream_new(context, "python", flags[flag]) : NULL;
}

/* Works in flight have references to their stream and it to them: they are no rubbish, so are not
 * shown. */
static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((wp_stream_t *)object)->context);
    return 0;
}

static void dealloc(PyObject *object)
{
    wp_stream_t *self = (wp_stream_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    wp_holder_drop(&self->holder);
    if (self->stream != NULL) {
        destroy(self);
    }
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF((PyObject *)self->context);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* ---- for others ---- */
int wp_stream_of(wp_state_t *state, PyObject *object, wp_stream_t **out)
{
    *out = NULL;
    if (object == NULL || object == Py_None) {
        return 0;
    }
    if (Py_TYPE(object) != state->stream_type) {
        PyErr_Format(PyExc_TypeError, "stream must be a weft.Stream or None, not %R",
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    *out = (wp_stream_t *)object;
    return 0;
}

wp_stream_t *wp_group_stream(wp_state_t *state, wp_group_t *group)
{
    (void)state;
    if (group->stream != NULL && group->stream->broken) { /* the group may get over the error */
        wp_stream_t *broken = group->stream;
        group->stream = NULL;
        Py_DECREF((PyObject *)broken);
    }
    if (group->stream == NULL) {
        wp_stream_t *made = stream_new(group->context, "python asynchronous", WEFT_STREAM_AUTO);
        if (group->stream != NULL) { /* another thread's, meanwhile */
            Py_XDECREF((PyObject *)made);
        } else {
            group->stream = made;
        }
    }
    return group->stream;
}

/* Calls fn without the GIL; the stream stays meanwhile. False: it is closed, and WeftStateError
 * set. */
static bool ask(wp_stream_t *self, weft_status_t (*fn)(weft_stream_t *), weft_status_t *out)
{
    weft_stream_t *stream = self->stream;
    if (stream == NULL) {
        wp_stream_closed(self->context->state);
        return false;
    }
    Py_INCREF((PyObject *)self); /* its group may get another one */
    wp_stream_use(self, true);
    PyThreadState *thread = PyEval_SaveThread();
    *out = fn(stream);
    PyEval_RestoreThread(thread);
    wp_stream_use(self, false);
    Py_DECREF((PyObject *)self);
    return true;
}

int wp_make_room(wp_state_t *state, wp_group_t *group)
{
    weft_status_t status;
    wp_stream_t *stream = wp_group_stream(state, group);
    /* All streams of the context without a thread go on when one of them is looked at. */
    return stream != NULL && ask(stream, weft_stream_query, &status) ? wp_pause(PAUSE_NS) : -1;
}

/* ---- methods ---- */
typedef weft_status_t (*enqueue_fn)(weft_stream_t *stream, weft_event_t *event);

static weft_status_t record(weft_stream_t *stream, weft_event_t *event)
{
    return weft_event_record(event, stream);
}

/* Runs fn under the lock, again while there is no room. NULL, or None. */
static PyObject *enqueue(wp_stream_t *self, enqueue_fn fn, weft_event_t *event)
{
    wp_state_t *state = self->context->state;
    for (;;) {
        weft_status_t status = WEFT_OK;
        bool open = false;
        PyThreadState *thread = PyEval_SaveThread();
        int locked = pthread_mutex_lock(&self->lock);
        if (locked == 0) {
            open = self->stream != NULL;
            status = open ? fn(self->stream, event) : WEFT_OK;
            if (status == WEFT_AGAIN) {
                weft_stream_query(self->stream);
            }
            pthread_mutex_unlock(&self->lock);
        }
        PyEval_RestoreThread(thread);
        if (locked != 0) {
            wp_lock_refused(state);
        } else if (!open) {
            wp_stream_closed(state);
        } else if (status == WEFT_OK) {
            Py_RETURN_NONE;
        } else if (status != WEFT_AGAIN) {
            wp_raise(state, status);
        } else if (wp_pause(PAUSE_NS) == 0) {
            continue;
        }
        return NULL;
    }
}

static PyObject *record_event(PyObject *object, PyObject *args)
{
    wp_stream_t *self = (wp_stream_t *)object;
    wp_state_t *state = self->context->state;
    PyObject *event = Py_None;
    if (!PyArg_ParseTuple(args, "|O:record_event", &event)) {
        return NULL;
    }
    event = event == Py_None ? wp_event_new(self->context) : Py_NewRef(event);
    weft_event_t *taken = event != NULL ? wp_event_take(state, event) : NULL;
    PyObject *done = taken != NULL ? enqueue(self, record, taken) : NULL;
    if (taken != NULL) {
        wp_event_drop(event, taken);
    }
    if (done == NULL) {
        Py_CLEAR(event);
    }
    Py_XDECREF(done);
    return event;
}

static PyObject *wait_event(PyObject *object, PyObject *event)
{
    wp_stream_t *self = (wp_stream_t *)object;
    weft_event_t *taken = wp_event_take(self->context->state, event);
    if (taken == NULL) {
        return NULL;
    }
    PyObject *done = enqueue(self, weft_stream_wait_event, taken);
    wp_event_drop(event, taken);
    return done;
}

static PyObject *synchronize(PyObject *object, PyObject *unused)
{
    wp_stream_t *self = (wp_stream_t *)object;
    weft_status_t status;
    (void)unused;
    if (!ask(self, weft_stream_synchronize, &status)) {
        return NULL;
    }
    if (status >= 0) {
        wp_works_reap(self);
    }
    return status < 0 ? wp_raise(self->context->state, status) : Py_NewRef(Py_None);
}

static PyObject *query(PyObject *object, PyObject *unused)
{
    wp_stream_t *self = (wp_stream_t *)object;
    weft_status_t status;
    (void)unused;
    if (!ask(self, weft_stream_query, &status)) {
        return NULL;
    }
    if (status == WEFT_OK) {
        wp_works_reap(self);
    }
    return status < 0 ? wp_raise(self->context->state, status) : PyBool_FromLong(status == WEFT_OK);
}

static PyObject *get_context(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)((wp_stream_t *)object)->context);
}

static PyMethodDef methods[] = {
    {"record_event", record_event, METH_VARARGS,
     "record_event($self, event=None, /)\n--\n\n"
     "Marks this point of the stream, in event or a new one, and returns it: it is reached when "
     "everything enqueued so\n"
     "far is done."},
    {"wait_event", wait_event, METH_O,
     "wait_event($self, event, /)\n--\n\n"
     "What is enqueued from now on waits until event is reached, as last recorded; nothing if it "
     "never was."},
    {"synchronize", synchronize, METH_NOARGS,
     "synchronize($self)\n--\n\n"
     "Waits until everything enqueued is done. Raises the first error of the stream, which stays: "
     "a stream that broke\n"
     "is of no more use."},
    {"query", query, METH_NOARGS,
     "query($self)\n--\n\n"
     "Whether everything enqueued is done. Raises the first error of the stream."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"context", get_context, NULL, "The Context that the stream belongs to.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "Stream(thread=None, context=None)\n--\n\n"
    "A queue of calls that run in order, beside the program and beside other streams: "
    "all_reduce(x, stream=s) returns\n"
    "at once, and x must stay untouched until s.synchronize() or an event says that it is done; "
    "async_op=True gives a\n"
    "Work instead. One stream serves any number of groups of its context.\n\n"
    "thread: True, on a thread of its own; False, inside calls that wait or query; None, as the "
    "context makes\n"
    "progress (see weft.init). What is enqueued keeps its arrays until it is done. A stream that "
    "is dropped waits.\n"
    "Raises WeftStateError without weft.init().";

static PyObject *repr(PyObject *object)
{
    wp_stream_t *self = (wp_stream_t *)object;
    const char *state = self->stream == NULL ? ", closed" : self->broken ? ", broken" : "";
    return PyUnicode_FromFormat("<weft.Stream of %R%s>", (PyObject *)self->context, state);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_repr, repr},
    {Py_tp_new, type_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Stream", sizeof(wp_stream_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int wp_stream_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->stream_type) < 0 ? -1 : wp_event_init(module, state);
}
