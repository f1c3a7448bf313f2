/* SPDX-License-Identifier: Apache-2.0 */
/* weft.Group, as Python sees it. */
#include "python/src/group.h"

#include <stdlib.h>

/* ---- settings ---- */
static PyObject *set_order(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"order", "block_sizes", NULL};
    static const char *const words[] = {"tree", "blocks", "any"};
    wp_group_t *self = (wp_group_t *)object;
    PyObject *word, *blocks = Py_None;
    uint32_t *sizes = NULL, count = 0;
    int order = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|O:set_order", names, &word, &blocks)) {
        return NULL;
    }
    while (order < 3 && PyUnicode_CompareWithASCIIString(word, words[order]) != 0) {
        order++;
    }
    if (order == 3) {
        PyErr_Format(PyExc_ValueError, "unknown order %R: expected 'tree', 'blocks' or 'any'",
                     word);
        return NULL;
    }
    if (blocks != Py_None) {
        sizes = wp_group_numbers(blocks, "block_sizes", self->size, &count);
        if (sizes == NULL) {
            return NULL;
        }
    }
    weft_group_t *group = wp_group_open(self);
    if (group == NULL) {
        PyMem_Free(sizes);
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_set_order(group, (weft_order_t)order, sizes, count);
    PyObject *result = wp_group_done(self, thread, status);
    PyMem_Free(sizes);
    return result;
}

/* "all_reduce" is AllReduce. */
static bool is_called(const char *word, const char *name)
{
    for (; *name != '\0'; name++) {
        bool capital = *name >= 'A' && *name <= 'Z';
        word += *word == '_' && capital;
        if (*word++ != (capital ? *name - 'A' + 'a' : *name)) {
            return false;
        }
    }
    return *word == '\0';
}

static bool collective_of(const char *word, weft_collective_t *out)
{
    for (uint32_t op = 1; op < WP_OPS; op++) {
        if (is_called(word, wp_ops[op].name)) {
            *out = (weft_collective_t)op;
            return true;
        }
    }
    return false;
}

static PyObject *set_algorithm(PyObject *object, PyObject *args)
{
    wp_group_t *self = (wp_group_t *)object;
    const char *op_name, *name;
    weft_collective_t op;
    if (!PyArg_ParseTuple(args, "sz:set_algorithm", &op_name, &name)) {
        return NULL;
    }
    if (!collective_of(op_name, &op)) {
        PyErr_Format(PyExc_ValueError,
                     "op: unknown collective '%s': expected a name such as 'all_reduce'", op_name);
        return NULL;
    }
    weft_group_t *group = wp_group_open(self);
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_set_algorithm(group, op, name);
    return wp_group_done(self, thread, status);
}

static PyObject *check(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = wp_group_open(self);
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_status(group);
    return wp_group_done(self, thread, status);
}

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

static PyObject *get_context(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)((wp_group_t *)object)->context);
}

static PyObject *get_ranks(PyObject *object, void *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = wp_group_open(self);
    PyObject *list = group != NULL ? PyList_New((Py_ssize_t)self->size) : NULL;
    for (uint32_t i = 0; list != NULL && i < self->size; i++) {
        PyObject *rank = PyLong_FromUnsignedLong(weft_group_world_rank(group, i));
        if (rank == NULL || PyList_SetItem(list, (Py_ssize_t)i, rank) < 0) {
            Py_CLEAR(list);
        }
    }
    if (group != NULL) {
        pthread_mutex_unlock(&self->lock);
    }
    return list;
}

/* How the last call went: which = 0 its algorithm, else its path. */
static PyObject *get_last(PyObject *object, void *which)
{
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = wp_group_open(self);
    if (group == NULL) {
        return NULL;
    }
    const char *text =
        which == NULL ? weft_group_last_algorithm(group) : weft_group_last_path(group);
    PyObject *result = PyUnicode_FromString(text);
    pthread_mutex_unlock(&self->lock);
    return result;
}

static PyObject *repr(PyObject *object)
{
    wp_group_t *self = (wp_group_t *)object;
    return PyUnicode_FromFormat("<weft.Group rank %u of %u%s>", (unsigned)self->rank,
                                (unsigned)self->size, self->group != NULL ? "" : ", destroyed");
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
    {"duplicate", wp_group_duplicate, METH_NOARGS,
     "duplicate($self)\n--\n\n"
     "A Group of the same ranks with calls of its own, for another thread. Collective over\n"
     "the group."},
    {"split", (PyCFunction)(void (*)(void))wp_group_split, METH_VARARGS | METH_KEYWORDS,
     "split($self, color, key=None, staging_bytes=0)\n--\n\n"
     "One Group per color, of the ranks that gave it, ordered by key (None: the rank) and\n"
     "then by rank; color None: no group for this rank, which gets None. staging_bytes: of\n"
     "buffers for arrays that peers do not reach (0: WEFT_STAGING_BYTES). Collective over\n"
     "the group."},
    {"set_order", (PyCFunction)(void (*)(void))set_order, METH_VARARGS | METH_KEYWORDS,
     "set_order($self, order, block_sizes=None)\n--\n\n"
     "In which order reductions combine ranks, and so their bits, from the next call on:\n"
     "'tree' (the default), 'blocks' (of block_sizes consecutive ranks, then over blocks),\n"
     "'any' (whatever is fastest; bits then depend on the algorithm). All ranks set it\n"
     "alike, between the same calls."},
    {"set_algorithm", set_algorithm, METH_VARARGS,
     "set_algorithm($self, op, name, /)\n--\n\n"
     "Carries out op ('all_reduce', ..) by the algorithm of that name (`weft algos` lists\n"
     "them) from the next call on; None: chosen by cost. All ranks set it alike. Raises\n"
     "WeftArgumentError when there is none such."},
    {"check", check, METH_NOARGS,
     "check($self)\n--\n\n"
     "Raises the error that broke the group, which every call returns from then on; returns\n"
     "None when it is well."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"rank", get_rank, NULL, "This process's number in the group.", NULL},
    {"size", get_size, NULL, "Ranks in the group.", NULL},
    {"ranks", get_ranks, NULL, "Their numbers in the world, a list.", NULL},
    {"context", get_context, NULL, "The Context that it belongs to.", NULL},
    {"last_algorithm", get_last, NULL,
     "The algorithm of the last call here; 'none' before the first.", NULL},
    {"last_path", get_last, NULL,
     "How the last call's data went: 'posting', 'direct', 'attached', 'staged', 'schedule', "
     "'none'.",
     (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "An ordered set of ranks that collectives run over; made by new_group, split or duplicate.\n\n"
    "All ranks of a group issue its calls in the same order. Threads that issue calls at the same "
    "time use groups\n"
    "of their own (duplicate), else their order, and so who meets whom, is up to chance.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_new, wp_type_no_new},
    {Py_tp_dealloc, wp_group_dealloc},
    {Py_tp_traverse, wp_group_traverse},
    {Py_tp_clear, wp_group_clear},
    {Py_tp_repr, repr},
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
