/* SPDX-License-Identifier: Apache-2.0 */
/* Events: points on streams' timelines that the program and other streams wait for. */
#include "python/src/stream.h"

#include <stddef.h>

typedef struct wp_event {
    PyObject_HEAD wp_context_t *context; /* owned */
    wp_holder_t holder;
    weft_event_t *event; /* NULL once the context was closed */
    uint32_t
        users; /* threads that have taken it: the last one destroys what was closed meanwhile */
} wp_event_t;

/* ---- life ---- */
static void leave(wp_holder_t *holder)
{
    wp_event_t *self = (wp_event_t *)(void *)((char *)holder - offsetof(wp_event_t, holder));
    weft_event_t *event = self->event;
    self->event = NULL;
    if (self->users == 0) {
        weft_event_destroy(event);
    }
}

PyObject *wp_event_new(wp_context_t *context)
{
    PyTypeObject *type = context->state->event_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    weft_context_t *open = wp_context_open(context);
    wp_event_t *self = open != NULL ? (wp_event_t *)alloc(type, 0) : NULL;
    if (self == NULL) {
        return NULL;
    }
    self->context = (wp_context_t *)Py_NewRef((PyObject *)context);
    weft_status_t status = weft_event_create(open, &self->event);
    if (status < 0) {
        wp_raise(context->state, status);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    wp_context_hold(context, &self->holder, leave);
    return (PyObject *)self;
}

static PyObject *type_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"context", NULL};
    PyObject *object = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:Event", names, &object)) {
        return NULL;
    }
    wp_state_t *state = wp_state_of_type(type);
    wp_context_t *context = state != NULL ? wp_context_of(state, object) : NULL;
    return context != NULL ? wp_event_new(context) : NULL;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((wp_event_t *)object)->context);
    return 0;
}

static void dealloc(PyObject *object)
{
    wp_event_t *self = (wp_event_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    wp_holder_drop(&self->holder);
    weft_event_destroy(self->event);
    Py_XDECREF((PyObject *)self->context);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* ---- taking it for a while without the GIL ---- */
weft_event_t *wp_event_take(wp_state_t *state, PyObject *object)
{
    wp_event_t *self = (wp_event_t *)object;
    if (Py_TYPE(object) != state->event_type) {
        PyErr_Format(PyExc_TypeError, "event must be a weft.Event, not %R",
                     (PyObject *)Py_TYPE(object));
        return NULL;
    }
    if (self->event == NULL) {
        wp_raise_text(state, WEFT_ERR_STATE, "the event's context was closed");
        return NULL;
    }
    Py_INCREF(object);
    self->users++;
    return self->event;
}

void wp_event_drop(PyObject *object, weft_event_t *taken)
{
    wp_event_t *self = (wp_event_t *)object;
    if (--self->users == 0 &&
        self->event == NULL) { /* its context was closed meanwhile, and may end with it */
        PyThreadState *thread = PyEval_SaveThread();
        weft_event_destroy(taken);
        PyEval_RestoreThread(thread);
    }
    Py_DECREF(object);
}

/* Calls fn without the GIL. NULL: an exception. */
static weft_event_t *ask(wp_event_t *self, weft_status_t (*fn)(weft_event_t *), weft_status_t *out)
{
    wp_state_t *state = self->context->state;
    weft_event_t *event = wp_event_take(state, (PyObject *)self);
    if (event != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        *out = fn(event);
        PyEval_RestoreThread(thread);
        if (*out < 0) {
            wp_raise(state, *out);
        }
        wp_event_drop((PyObject *)self, event);
    }
    return event != NULL && *out >= 0 ? event : NULL;
}

/* ---- methods ---- */
static PyObject *synchronize(PyObject *object, PyObject *unused)
{
    weft_status_t status = WEFT_OK;
    (void)unused;
    return ask((wp_event_t *)object, weft_event_synchronize, &status) != NULL ? Py_NewRef(Py_None)
                                                                              : NULL;
}

static PyObject *query(PyObject *object, PyObject *unused)
{
    weft_status_t status = WEFT_OK;
    (void)unused;
    return ask((wp_event_t *)object, weft_event_query, &status) != NULL
               ? PyBool_FromLong(status == WEFT_OK)
               : NULL;
}

static int time_of(wp_state_t *state, PyObject *object, uint64_t *out_ns)
{
    weft_event_t *event = wp_event_take(state, object);
    if (event == NULL) {
        return -1;
    }
    weft_status_t status = weft_event_time_ns(event, out_ns);
    if (status < 0) {
        wp_raise(state, status);
    }
    wp_event_drop(object, event);
    return status < 0 ? -1 : 0;
}

static PyObject *elapsed_time(PyObject *object, PyObject *end)
{
    wp_state_t *state = ((wp_event_t *)object)->context->state;
    uint64_t from_ns = 0, to_ns = 0;
    if (time_of(state, end, &to_ns) < 0 || time_of(state, object, &from_ns) < 0) {
        return NULL;
    }
    return PyFloat_FromDouble((double)(int64_t)(to_ns - from_ns) * 1e-6);
}

static PyMethodDef methods[] = {
    {"synchronize", synchronize, METH_NOARGS,
     "synchronize($self)\n--\n\n"
     "Waits until the event is reached, as last recorded; returns at once if it never was. Raises "
     "the error that broke\n"
     "its stream."},
    {"query", query, METH_NOARGS,
     "query($self)\n--\n\n"
     "Whether the event is reached, as last recorded. Raises the error that broke its stream."},
    {"elapsed_time", elapsed_time, METH_O,
     "elapsed_time($self, end_event, /)\n--\n\n"
     "Milliseconds from this event to end_event. Raises WeftStateError unless both are reached."},
    {NULL, NULL, 0, NULL},
};

static const char type_doc[] = "Event(context=None)\n--\n\n"
                               "A point on a stream's timeline (Stream.record_event), for the "
                               "program and for other streams to wait for.";

static PyObject *repr(PyObject *object)
{
    wp_event_t *self = (wp_event_t *)object;
    return PyUnicode_FromFormat("<weft.Event of %R>", (PyObject *)self->context);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_repr, repr},
    {Py_tp_new, type_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Event", sizeof(wp_event_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int wp_event_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->event_type);
}
