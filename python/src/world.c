/* SPDX-License-Identifier: Apache-2.0 */
/* The default context, and all that there are, for weft/world.py. */
#include "python/src/context.h"

#include <unistd.h>

/* _default(): the default context or None. _default(context): makes it that where there is none;
 * _default(None): leaves none. What it was before. */
static PyObject *default_context(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    wp_state_t *state = wp_state_of(module);
    PyObject *next = count > 0 ? args[0] : NULL, *before = (PyObject *)state->context;
    bool is_context = next != NULL && Py_TYPE(next) == state->context_type;
    if (next != NULL && next != Py_None && !is_context) {
        return PyErr_Format(PyExc_TypeError, "_default()");
    }
    Py_INCREF(before != NULL ? before : Py_None);
    if (is_context && before == NULL) {
        state->context = (wp_context_t *)Py_NewRef(next);
        state->world = (wp_group_t *)Py_XNewRef((PyObject *)state->context->world);
    } else if (next == Py_None) {
        PyObject *world = (PyObject *)state->world;
        state->context = NULL;
        state->world = NULL;
        Py_XDECREF(world);
        Py_XDECREF(before);
    }
    return before != NULL ? before : Py_None;
}

/* _contexts(exiting): a list of those that this process has made. */
static PyObject *contexts(PyObject *module, PyObject *exiting)
{
    wp_state_t *state = wp_state_of(module);
    PyObject *list = PyList_New(0);
    state->exiting = state->exiting || exiting == Py_True;
    for (wp_context_t *context = state->contexts; list != NULL && context != NULL;
         context = context->next) {
        if (context->process == (int64_t)getpid() && PyList_Append(list, (PyObject *)context) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* _main_thread(ident): of this process, at its start or as a forked child. The C library refuses to
 * work in children; what they inherit of this module must let it say so: locks that were held by
 * threads which are not here any more are open. */
static PyObject *main_thread(PyObject *module, PyObject *ident)
{
    wp_state_t *state = wp_state_of(module);
    state->main_thread = PyLong_AsUnsignedLong(ident);
    Py_CLEAR(state->interrupt);
    for (wp_context_t *context = state->contexts; context != NULL; context = context->next) {
        for (wp_holder_t *holder = context->holders; holder != NULL; holder = holder->next) {
            if (holder->lock != NULL) {
                wp_lock_init(holder->lock);
            }
        }
    }
    return PyErr_Occurred() != NULL ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_default", (PyCFunction)(void (*)(void))default_context, METH_FASTCALL, NULL},
    {"_contexts", contexts, METH_O, NULL},
    {"_join", wp_context_join, METH_VARARGS, NULL},
    {"_main_thread", main_thread, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int wp_context_init(PyObject *module, wp_state_t *state)
{
    return wp_context_type_init(module, state) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
