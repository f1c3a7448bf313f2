/* SPDX-License-Identifier: Apache-2.0 */
/* The type Group: its methods that are C. The others are in weft/groups.py. */
#include "python/src/group.h"

#include <stdlib.h>

/* ---- attributes ---- */
static PyObject *get_rank(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((wp_group_t *)object)->rank);
}

static PyObject *get_size(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((wp_group_t *)object)->size);
}

static PyObject *get_destroyed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((wp_group_t *)object)->group == NULL);
}

static PyObject *get_context(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)((wp_group_t *)object)->context);
}

/* Of arrays that the next call moves as one. */
static PyObject *set_shape(PyObject *object, PyObject *shape)
{
    wp_group_t *self = (wp_group_t *)object;
    Py_ssize_t rank = PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
    if (rank < 0 || rank > INT32_MAX) {
        PyErr_SetString(PyExc_TypeError, "_set_shape: shape must be a tuple of integers");
        return NULL;
    }
    int64_t *dims = malloc(((size_t)rank + 1) * sizeof *dims);
    if (dims == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < rank && PyErr_Occurred() == NULL; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    }
    if (PyErr_Occurred() == NULL && wp_group_enter(self->context->state, self) == 0) {
        self->shaped = weft_group_set_shape(self->group, dims, (uint32_t)rank) == WEFT_OK;
        wp_group_exit(self);
    }
    free(dims);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_set_shape", set_shape, METH_O,
     "_set_shape($self, shape, /)\n--\n\n"
     "The shape that ranks compare in the next call, in place of its array's."},
    {"destroy", wp_group_destroy, METH_NOARGS,
     "destroy($self)\n--\n\n"
     "Gives the group back. Collective over it: waits until all its ranks got here. A group\n"
     "that is only dropped keeps its share of the context's memory until the end."},
    {"refuse", wp_group_refuse, METH_O,
     "refuse($self, message, /)\n--\n\n"
     "Takes the place of this rank's next call with an error, for code that finds a wrong\n"
     "argument before it calls Weft: the other ranks' call raises a WeftArgumentError with\n"
     "message, which names this rank. The group stays usable. Calls of this module do this\n"
     "with their own wrong arguments."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"rank", get_rank, NULL, "This process's number in the group.", NULL},
    {"size", get_size, NULL, "Ranks in the group.", NULL},
    {"_destroyed", get_destroyed, NULL, NULL, NULL},
    {"context", get_context, NULL, "The Context that it belongs to.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, wp_group_dealloc},
    {Py_tp_traverse, wp_group_traverse},
    {Py_tp_clear, wp_group_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Group", sizeof(wp_group_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int wp_group_type_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->group_type);
}
