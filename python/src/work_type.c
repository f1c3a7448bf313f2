/* SPDX-License-Identifier: Apache-2.0 */
/* weft.Work as Python sees it. */
#include "python/src/work.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS 1000000
#define NAPS 400

/* Seconds or None; -1: an exception is set. */
static int read_timeout(PyObject *object, uint64_t *out_ns)
{
    *out_ns = UINT64_MAX;
    if (object == NULL || object == Py_None) {
        return 0;
    }
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1.0 && PyErr_Occurred() != NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "timeout must be a number of seconds or None, not %R",
                         (PyObject *)Py_TYPE(object));
        }
        return -1;
    }
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError,
                     "timeout: invalid value %R: expected a number of seconds of at least 0",
                     object);
        return -1;
    }
    if (seconds < 1e9) {
        *out_ns = (uint64_t)(seconds * 1e9);
    }
    return 0;
}

/* A wait failed, of what ended the world, maybe: then the stream's thread is about to notice, too,
 * and until it has, the work's memory may be in use. */
static weft_status_t query_failed(weft_event_t *event)
{
    const struct timespec nap = {0, PAUSE_NS};
    weft_status_t seen = weft_event_query(event);
    for (int naps = 0; seen == WEFT_IN_PROGRESS && naps < NAPS; naps++) {
        nanosleep(&nap, NULL);
        seen = weft_event_query(event);
    }
    return seen;
}

static PyObject *wait_for(wp_work_t *work, PyObject *timeout)
{
    char text[512] = "";
    uint64_t timeout_ns;
    if (read_timeout(timeout, &timeout_ns) < 0) {
        return NULL;
    }
    if (work->done) {
        return wp_work_outcome(work);
    }
    weft_event_t *event = wp_work_begin_look(work);
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_event_wait(event, timeout_ns), seen = status;
    if (status < 0) {
        strncat(text, weft_last_error(), sizeof text - 1);
        seen = query_failed(event);
    }
    PyEval_RestoreThread(thread);
    Py_INCREF((PyObject *)work);
    wp_work_end_look(work, seen);
    PyObject *result = NULL;
    if (work->done) {
        result = wp_work_outcome(work);
    } else if (status < 0) {
        wp_raise_text(work->state, status, "%s", text);
    } else {
        wp_raise_text(work->state, WEFT_ERR_TIMEOUT, "timeout: the work is not done after %.3g s",
                      (double)timeout_ns * 1e-9);
    }
    Py_DECREF((PyObject *)work);
    return result;
}

static void look(wp_work_t *work)
{
    if (!work->done) {
        weft_event_t *event = wp_work_begin_look(work);
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = weft_event_query(event);
        PyEval_RestoreThread(thread);
        wp_work_end_look(work, status);
    }
}

static PyObject *wait_method(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout;
    if (wp_parse("wait", args, count, keywords, names, 0, 1, &timeout) < 0) {
        return NULL;
    }
    return wait_for((wp_work_t *)object, timeout);
}

static PyObject *is_completed(PyObject *object, PyObject *unused)
{
    (void)unused;
    look((wp_work_t *)object);
    return PyBool_FromLong(((wp_work_t *)object)->done);
}

static PyObject *is_success(PyObject *object, PyObject *unused)
{
    wp_work_t *work = (wp_work_t *)object;
    (void)unused;
    look(work);
    return PyBool_FromLong(work->done && !work->failed);
}

static PyObject *exception(PyObject *object, PyObject *unused)
{
    wp_work_t *work = (wp_work_t *)object;
    (void)unused;
    look(work);
    return Py_NewRef(work->error != NULL ? work->error : Py_None);
}

static PyObject *result_method(PyObject *object, PyObject *unused)
{
    wp_work_t *work = (wp_work_t *)object;
    (void)unused;
    look(work);
    if (!work->done) {
        return wp_raise_text(work->state, WEFT_ERR_STATE,
                             "the work is not done yet: wait() for it");
    }
    return wp_work_outcome(work);
}

static PyObject *repr(PyObject *object)
{
    const wp_work_t *work = (const wp_work_t *)object;
    const char *how = !work->done ? "in flight" : work->failed ? "failed" : "done";
    const wp_op_t *op = &wp_ops[work->op];
    char name[32]; /* in Python, V forms are calls of the same functions */
    snprintf(name, sizeof name, "%s",
             work->op == WEFT_COLLECTIVE_SEND_RECV ? "send or recv" : op->function);
    if (op->variable) {
        name[strlen(name) - strlen("_v")] = '\0';
    }
    return PyUnicode_FromFormat("<weft.Work %s, %s>", name, how);
}

/* ---- the type ---- */
static int traverse(PyObject *object, visitproc visit, void *arg)
{
    wp_work_t *work = (wp_work_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)work->stream);
    Py_VISIT((PyObject *)work->group);
    Py_VISIT(work->result);
    Py_VISIT(work->error);
    return 0;
}

/* One in flight is the stream's, and no rubbish. */
static int clear(PyObject *object)
{
    wp_work_t *work = (wp_work_t *)object;
    Py_CLEAR(work->result);
    Py_CLEAR(work->error);
    if (work->done) { /* somebody may still ask */
        work->failed = false;
        work->result = Py_NewRef(Py_None);
    }
    return 0;
}

static void dealloc(PyObject *object)
{
    wp_work_t *work = (wp_work_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    wp_work_abandon(work);
    Py_XDECREF(work->result);
    Py_XDECREF(work->error);
    Py_XDECREF((PyObject *)work->stream);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"wait", (PyCFunction)(void (*)(void))wait_method, METH_FASTCALL | METH_KEYWORDS,
     "wait($self, timeout=None)\n--\n\n"
     "Waits until the call is done, at most timeout seconds, and returns what the call would "
     "have.\n"
     "Raises the call's error, each time; WeftTimeoutError when time is up, after which it may be "
     "waited for again."},
    {"is_completed", is_completed, METH_NOARGS,
     "is_completed($self)\n--\n\nWhether the call is done, well or not. Does not wait."},
    {"is_success", is_success, METH_NOARGS,
     "is_success($self)\n--\n\nWhether the call is done, and without an error. Does not wait."},
    {"exception", exception, METH_NOARGS,
     "exception($self)\n--\n\nThe error that the call ended with; None if it ended well or goes "
     "on. Does not wait."},
    {"result", result_method, METH_NOARGS,
     "result($self)\n--\n\n"
     "What wait() returns, without waiting. Raises the call's error; WeftStateError while it goes "
     "on."},
    /* For type checkers' sake: Work[numpy.ndarray] says what wait() returns. */
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "__class_getitem__($type, item, /)\n--\n\nWork[X]: the type of a Work whose wait() returns "
     "X."},
    {NULL, NULL, 0, NULL},
};

static const char type_doc[] = "A call that goes on while the program does, from async_op=True. "
                               "Its arrays must stay untouched until it is done;\n"
                               "they live until then, also if the Work is dropped.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Work", sizeof(wp_work_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int wp_work_type_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->work_type);
}
