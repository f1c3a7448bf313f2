/* SPDX-License-Identifier: Apache-2.0 */
/* The default context: init, finalize, and the end of the program. */
#include "python/src/context.h"

#include <unistd.h>

static PyObject *init(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"rank", "size", "address", "progress", "device", NULL};
    PyObject *places[5];
    wp_state_t *state = wp_state_of(module);
    if (wp_parse("init", args, count, keywords, names, 0, 3, places) < 0) {
        return NULL;
    }
    if (state->context != NULL) {
        return wp_raise_text(
            state, WEFT_ERR_STATE,
            "weft.init() was called before: weft.finalize() first, or make a weft.Context()");
    }
    wp_context_t *context = wp_context_new(state, places);
    if (context == NULL) {
        return NULL;
    }
    if (state->context != NULL) {
        Py_DECREF((PyObject *)context);
        return wp_raise_text(state, WEFT_ERR_STATE, "another thread called weft.init() meanwhile");
    }
    state->context = context;
    state->world = (wp_group_t *)Py_NewRef((PyObject *)context->world);
    return Py_NewRef((PyObject *)context);
}

static PyObject *finalize(PyObject *module, PyObject *unused)
{
    (void)unused;
    wp_state_t *state = wp_state_of(module);
    wp_context_t *context = state->context;
    wp_group_t *world = state->world;
    state->context = NULL;
    state->world = NULL;
    if (context != NULL) {
        wp_context_close(context);
        Py_XDECREF((PyObject *)world);
        Py_DECREF((PyObject *)context);
    }
    return wp_interrupt_raise(state) ? NULL : Py_NewRef(Py_None);
}

static PyObject *is_initialized(PyObject *module, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(wp_state_of(module)->context != NULL);
}

/* ---- the end of the program ---- */
/* An exception that ends this rank's program ends the world: others would wait for it in vain. */
static void abort_after_exception(wp_context_t *context)
{
    PyObject *value = PySys_GetObject("last_value");
    if (value == NULL || value == Py_None || PySys_GetObject("ps1") != NULL ||
        context->context == NULL || context->process != (int64_t)getpid()) {
        return; /* at a prompt an exception ends nothing */
    }
    Py_INCREF(value); /* its repr may do anything */
    PyObject *text = PyUnicode_FromFormat("rank %u ended by %R", context->rank, value);
    Py_DECREF(value);
    PyObject *bytes = text != NULL ? PyUnicode_AsUTF8String(text) : NULL;
    const char *message = bytes != NULL ? PyBytes_AsString(bytes) : "a rank ended by an exception";
    PyErr_Clear();
    if (context->context != NULL) {
        weft_context_abort(context->context, message);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(text);
}

/* Earlier than leave_all: the interpreter waits for threads first, and those may wait for other
 * ranks. */
static PyObject *before_threads_end(PyObject *module, PyObject *unused)
{
    (void)unused;
    wp_context_t *context = wp_state_of(module)->contexts;
    while (context != NULL) {
        Py_INCREF((PyObject *)context);
        abort_after_exception(context);
        wp_context_t *next = context->link != NULL ? context->next : NULL;
        Py_DECREF((PyObject *)context);
        context = next;
    }
    Py_RETURN_NONE;
}

static PyObject *leave_all(PyObject *module, PyObject *unused)
{
    (void)unused;
    wp_state_t *state = wp_state_of(module);
    state->exiting = true;
    for (wp_context_t *context = state->contexts; context != NULL; context = state->contexts) {
        wp_context_delist(context);
        Py_INCREF((PyObject *)context);
        abort_after_exception(context);
        wp_context_close(context);
        Py_DECREF((PyObject *)context);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"init", (PyCFunction)(void (*)(void))init, METH_FASTCALL | METH_KEYWORDS,
     "init($module, rank=None, size=None, address=None, *, progress=None, device=None)\n--\n\n"
     "Joins the world as one of its ranks and returns the Context, which is the default one\n"
     "from now on.\n\n"
     "Collective: returns when all ranks have called it. Rank, size and where they meet come\n"
     "from the launcher (weft run, mpirun, mpiexec, srun, torchrun) or WEFT_RANK,\n"
     "WEFT_WORLD_SIZE, WEFT_ADDRESS; arguments go first; with neither it is a world of one.\n"
     "address: 'unix:@name' on one host; 'host:port', where rank 0 listens, or\n"
     "'file:///shared/path' on several. progress: 'auto', 'inline' (calls make progress) or\n"
     "'thread' (a thread does). device: 'cpu', or a device of a plugin, such as 'opencl:0';\n"
     "None is the setting WEFT_DEVICE.\n"
     "Raises WeftStateError when called twice, ValueError, WeftTimeoutError naming who is\n"
     "missing, WeftMismatchError."},
    {"finalize", finalize, METH_NOARGS,
     "finalize($module)\n--\n\n"
     "Leaves the world of weft.init; done at the end of the program anyway. Not collective.\n"
     "Groups, streams and sessions of it raise WeftStateError afterwards; init may be called\n"
     "again, by all ranks. In a signal handler that runs inside a call of it, the world is\n"
     "left when the call has ended and its objects are dropped, or the program ends."},
    {"is_initialized", is_initialized, METH_NOARGS,
     "is_initialized($module)\n--\n\n"
     "Whether there is a world: after init, before finalize."},
    {"_before_threads_end", before_threads_end, METH_NOARGS, NULL},
    {"_leave_all", leave_all, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* -1: an exception. */
static int enlist(PyObject *module, const char *where, const char *by, const char *what)
{
    PyObject *place = PyImport_ImportModule(where);
    PyObject *method = place != NULL ? PyObject_GetAttrString(place, by) : NULL;
    PyObject *function = method != NULL ? PyObject_GetAttrString(module, what) : NULL;
    PyObject *done = function != NULL ? PyObject_CallFunctionObjArgs(method, function, NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(function);
    Py_XDECREF(method);
    Py_XDECREF(place);
    return done != NULL ? 0 : -1;
}

static int at_exit(PyObject *module)
{
    if (enlist(module, "threading", "_register_atexit", "_before_threads_end") < 0) {
        PyErr_Clear(); /* Python does not promise it: threads then have until their time-out */
    }
    return enlist(module, "atexit", "register", "_leave_all");
}

int wp_context_init(PyObject *module, wp_state_t *state)
{
    if (wp_context_type_init(module, state) < 0 || PyModule_AddFunctions(module, functions) < 0) {
        return -1;
    }
    return at_exit(module);
}
