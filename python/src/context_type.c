/* SPDX-License-Identifier: Apache-2.0 */
/* weft.Context, as Python sees it. */
#include "python/src/context.h"

#include <stdlib.h>

static PyObject *context_type_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"rank", "size", "address", "progress", "device", NULL};
    PyObject *places[5] = {NULL, NULL, NULL, NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OOO$OO:Context", names, &places[0],
                                     &places[1], &places[2], &places[3], &places[4])) {
        return NULL;
    }
    wp_state_t *state = wp_state_of_type(type);
    return state != NULL ? (PyObject *)wp_context_new(state, places) : NULL;
}

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

static PyObject *context_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return wp_context_open((wp_context_t *)self) != NULL ? Py_NewRef(self) : NULL;
}

static PyObject *context_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return context_close(self, NULL);
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

static PyObject *context_barrier(PyObject *self, PyObject *unused)
{
    (void)unused;
    wp_context_t *object = (wp_context_t *)self;
    weft_context_t *context = wp_context_open(object);
    if (context == NULL) {
        return NULL;
    }
    weft_context_retain(context); /* another thread may close it, as soon as it has the GIL */
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_context_barrier(context);
    PyEval_RestoreThread(thread);
    PyObject *result = status < 0 ? wp_raise(object->state, status) : Py_NewRef(Py_None);
    wp_context_release(context);
    return result;
}

static PyObject *context_topology(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"json", "width", NULL};
    int json = 0;
    unsigned int width = 0;
    char *text = NULL;
    wp_context_t *object = (wp_context_t *)self;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|p$I:topology", names, &json, &width)) {
        return NULL;
    }
    weft_context_t *context = wp_context_open(object);
    if (context == NULL) {
        return NULL;
    }
    weft_context_retain(context); /* another thread may close it, as soon as it has the GIL */
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status =
        weft_context_topology(context, json ? WEFT_FORMAT_JSON : WEFT_FORMAT_TEXT, width, &text);
    PyEval_RestoreThread(thread);
    PyObject *result = status < 0 ? wp_raise(object->state, status) : PyUnicode_FromString(text);
    free(text);
    wp_context_release(context);
    return result;
}

static PyObject *context_dump(PyObject *self, PyObject *args)
{
    PyObject *path = NULL;
    wp_context_t *object = (wp_context_t *)self;
    if (!PyArg_ParseTuple(args, "|O&:dump", PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    weft_context_t *context = wp_context_open(object);
    if (context == NULL) {
        Py_XDECREF(path);
        return NULL;
    }
    weft_context_retain(context); /* another thread may close it, as soon as it has the GIL */
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_context_dump(context, path != NULL ? PyBytes_AsString(path) : NULL);
    PyEval_RestoreThread(thread);
    PyObject *result = status < 0 ? wp_raise(object->state, status) : Py_NewRef(Py_None);
    Py_XDECREF(path);
    wp_context_release(context);
    return result;
}

static PyObject *context_peer(PyObject *self, PyObject *number)
{
    wp_context_t *object = (wp_context_t *)self;
    weft_peer_info_t info = WEFT_PEER_INFO_INIT;
    weft_link_stats_t stats = WEFT_LINK_STATS_INIT;
    uint32_t rank = 0;
    if (wp_index(number, "rank", object->size - 1, &rank) < 0) {
        return NULL;
    }
    weft_context_t *context = wp_context_open(object); /* a number's methods may have closed it */
    if (context == NULL) {
        return NULL;
    }
    weft_status_t status = weft_context_peer_info(context, rank, &info);
    status = status < 0 ? status : weft_context_link_stats(context, rank, &stats);
    if (status < 0) {
        return wp_raise(object->state, status);
    }
    return Py_BuildValue("{s:I,s:s,s:s,s:s,s:K,s:K,s:d}", "host", info.host, "host_name",
                         info.host_name, "transport", info.transport, "reason", info.reason,
                         "bytes_sent", (unsigned long long)stats.bytes_sent, "bytes_received",
                         (unsigned long long)stats.bytes_received, "busy_s", stats.busy_s);
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

static PyObject *get_launcher(PyObject *self, void *unused)
{
    (void)unused;
    weft_context_t *context = wp_context_open((wp_context_t *)self);
    return context != NULL ? PyUnicode_FromString(weft_context_launcher(context)) : NULL;
}

static PyObject *get_hosts(PyObject *self, void *unused)
{
    (void)unused;
    weft_context_t *context = wp_context_open((wp_context_t *)self);
    return context != NULL ? PyLong_FromUnsignedLong(weft_context_host_count(context)) : NULL;
}

static PyObject *get_members(PyObject *self, void *unused)
{
    (void)unused;
    wp_context_t *object = (wp_context_t *)self;
    weft_context_t *context = wp_context_open(object);
    PyObject *list = context != NULL ? PyList_New((Py_ssize_t)object->size) : NULL;
    for (uint32_t r = 0; list != NULL && r < object->size; r++) {
        PyObject *member = PyLong_FromUnsignedLong(weft_context_member(context, r));
        if (member == NULL || PyList_SetItem(list, (Py_ssize_t)r, member) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *context_repr(PyObject *self)
{
    wp_context_t *context = (wp_context_t *)self;
    return PyUnicode_FromFormat("<weft.Context rank %u of %u, %s%s>", context->rank, context->size,
                                context->context != NULL ? "launcher " : "closed",
                                context->context != NULL ? weft_context_launcher(context->context)
                                                         : "");
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
    {"barrier", context_barrier, METH_NOARGS,
     "barrier($self)\n--\n\n"
     "Waits for all ranks of the world: for start and end; weft.barrier is quicker."},
    {"shrink", wp_context_shrink, METH_NOARGS,
     "shrink($self)\n--\n\n"
     "After a rank has died: a Context of the ranks that are left, which all of them call.\n"
     "Ranks are numbered anew, in their order (members tells which is which). This one keeps\n"
     "its error, with its groups and streams: close it. Raises WeftTimeoutError naming ranks\n"
     "that live but do not come."},
    {"grow", wp_context_grow, METH_VARARGS,
     "grow($self, size, address, /)\n--\n\n"
     "A Context of size ranks: all of this one, which call it together and keep their\n"
     "numbers, and processes that join by Context(rank, size, address) with the same\n"
     "WEFT_SECRET. This one goes on working, also when it fails."},
    {"topology", (PyCFunction)(void (*)(void))context_topology, METH_VARARGS | METH_KEYWORDS,
     "topology($self, json=False, *, width=0)\n--\n\n"
     "Describes hosts, cores, caches, cards and links of the world as text, in lines of\n"
     "width (0: 100), or as JSON. Collective; all ranks get the same."},
    {"dump", context_dump, METH_VARARGS,
     "dump($self, path=..., /)\n--\n\n"
     "Writes the last calls of this rank as JSON, for weft analyze: to a file, to a folder\n"
     "(weft-rank3-HOST-PID.json), or without path to the folder that WEFT_DUMP names."},
    {"peer", context_peer, METH_O,
     "peer($self, rank, /)\n--\n\n"
     "How this rank and another one reach each other: a dict of host, host_name, transport\n"
     "('self', 'shm', 'tcp', 'verbs'), reason, bytes_sent, bytes_received, busy_s (counted\n"
     "where messages are moved)."},
    {"__enter__", context_enter, METH_NOARGS, NULL},
    {"__exit__", context_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"rank", get_rank, NULL, "This process's number in the world.", NULL},
    {"size", get_size, NULL, "Ranks in the world.", NULL},
    {"world", get_world, NULL, "The Group of all ranks.", NULL},
    {"closed", get_closed, NULL, "Whether it has left its world.", NULL},
    {"launcher", get_launcher, NULL,
     "What started the ranks: 'arguments', 'environment', 'torchrun', 'pmix', 'pmi-1', 'plain', "
     "'group', 'alone'.",
     NULL},
    {"members", get_members, NULL,
     "Of each rank the number that its process keeps when the world shrinks or grows; ranks of "
     "the first world have their own.",
     NULL},
    {"hosts", get_hosts, NULL, "Number of hosts that the world's ranks are on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "Context(rank=None, size=None, address=None, *, progress=None, device=None)\n--\n\n"
    "A world beside the one of weft.init: this process is one rank of it. Collective:\n"
    "returns when all size ranks have made theirs. address is 'unix:@name' or 'unix:/path'\n"
    "on one host, 'host:port' or 'file:///shared/path' on several; what is None is asked of\n"
    "the launcher's environment. progress: 'auto', 'inline' or 'thread'. device: 'cpu',\n"
    "'opencl:0' and others, as WEFT_DEVICE. Use context.world as group=; leave with close(),\n"
    "or `with Context(..) as c`.\n"
    "Raises ValueError, WeftTimeoutError (naming who is missing), WeftMismatchError,\n"
    "WeftSystemError.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_new, context_type_new},
    {Py_tp_dealloc, wp_context_dealloc},
    {Py_tp_traverse, wp_context_traverse},
    {Py_tp_clear, wp_context_clear},
    {Py_tp_repr, context_repr},
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
