/* SPDX-License-Identifier: Apache-2.0 */
/* The type Context: its methods that are C. The others are in weft/world.py. */
#include "python/src/context.h"

/* ---- methods ---- */
static PyObject *context_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    wp_context_close((wp_context_t *)self);
    bool interrupted = wp_interrupt_raise(((wp_context_t *)self)->state);
    Py_DECREF(self);
    return interrupted ? NULL : Py_NewRef(Py_None);
}

static PyObject *context_abort(PyObject *self, PyObject *message)
{
    weft_context_t *context = wp_context_open((wp_context_t *)self);
    PyObject *text = context != NULL ? PyUnicode_AsUTF8String(message) : NULL;
    const char *bytes = text != NULL ? PyBytes_AsString(text) : NULL;
    if (bytes != NULL) {
        weft_context_abort(context, bytes);
    }
    Py_XDECREF(text);
    return bytes != NULL ? Py_NewRef(Py_None) : NULL;
}

/* ---- attributes ---- */
static PyObject *get_rank(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((wp_context_t *)self)->rank);
}

static PyObject *get_size(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((wp_context_t *)self)->size);
}

static PyObject *get_world(PyObject *self, void *unused)
{
    (void)unused;
    wp_context_t *context = (wp_context_t *)self;
    return wp_context_open(context) != NULL ? Py_NewRef((PyObject *)context->world) : NULL;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((wp_context_t *)self)->context == NULL);
}

static PyMethodDef methods[] = {
    {"close", context_close, METH_NOARGS,
     "close($self)\n--\n\n"
     "Leaves the world. Not collective: peers that still wait for this rank get an error.\n"
     "Groups, streams and sessions made from the context raise WeftStateError from now on;\n"
     "arrays of weft.empty stay usable."},
    {"abort", context_abort, METH_O,
     "abort($self, message, /)\n--\n\n"
     "Ends the world: waits of every rank end with WeftAbortedError and message."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"rank", get_rank, NULL, "This process's number in the world.", NULL},
    {"size", get_size, NULL, "Ranks in the world.", NULL},
    {"world", get_world, NULL, "The Group of all ranks.", NULL},
    {"closed", get_closed, NULL, "Whether it has left its world.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Context.__new__ is Python (weft/world.py), so object.__new__ comes here: without a world and without
 * the module's state. */
static PyObject *no_alloc(PyTypeObject *type, Py_ssize_t count)
{
    (void)count;
    return PyErr_Format(PyExc_TypeError, "cannot create instances of %R by object.__new__",
                        (PyObject *)type);
}

static PyType_Slot slots[] = {
    {Py_tp_alloc, no_alloc},
    {Py_tp_dealloc, wp_context_dealloc},
    {Py_tp_traverse, wp_context_traverse},
    {Py_tp_clear, wp_context_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Context", sizeof(wp_context_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int wp_context_type_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->context_type);
}
