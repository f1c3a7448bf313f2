/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the worlds that this process is a rank of, from init to finalize or the end of the
 * program. */
#include "python/src/weft_python.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- what holds a context ---- */
void wp_context_hold(wp_context_t *context, wp_holder_t *holder, void (*leave)(wp_holder_t *))
{
    holder->leave = leave;
    holder->next = context->holders;
    holder->link = &context->holders;
    if (holder->next != NULL) {
        holder->next->link = &holder->next;
    }
    context->holders = holder;
}

void wp_holder_drop(wp_holder_t *holder)
{
    if (holder->link != NULL) {
        *holder->link = holder->next;
        if (holder->next != NULL) {
            holder->next->link = holder->link;
        }
        holder->link = NULL;
        holder->next = NULL;
    }
}

static void enter_list(wp_context_t *context)
{
    wp_context_t **head = &context->state->contexts;
    context->next = *head;
    context->link = head;
    if (context->next != NULL) {
        context->next->link = &context->next;
    }
    *head = context;
}

static void leave_list(wp_context_t *context)
{
    if (context->link != NULL) {
        *context->link = context->next;
        if (context->next != NULL) {
            context->next->link = context->link;
        }
        context->link = NULL;
    }
}

static void release(weft_context_t *context)
{
    if (context != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_context_release(context);
        PyEval_RestoreThread(thread);
    }
}

/* Leaves the world. Others need not be there; memory that arrays still use stays until they are
 * gone, or at_exit. */
static void close_context(wp_context_t *context, bool at_exit)
{
    if (context->process != (int64_t)getpid()) {
        return;
    }
    while (context->holders != NULL) {
        wp_holder_t *holder = context->holders;
        wp_holder_drop(holder);
        holder->leave(holder);
    }
    weft_context_t *left = context->context != NULL ? context->context : context->kept;
    context->context = NULL;
    context->kept = NULL;
    if (context->borrowed > 0 && !at_exit) {
        context->kept = left;
        return;
    }
    release(left);
}

weft_context_t *wp_context_open(wp_context_t *context)
{
    if (context->context == NULL) {
        wp_raise_text(
            context->state, WEFT_ERR_STATE,
            "the context was closed (weft.finalize, close): this needs one that is in its world");
    }
    return context->context;
}

wp_context_t *wp_context_of(wp_state_t *state, PyObject *object)
{
    if (object != NULL && Py_TYPE(object) == state->context_type) {
        return (wp_context_t *)object;
    }
    if (object != NULL && Py_TYPE(object) == state->group_type) {
        return ((wp_group_t *)object)->context;
    }
    if (object != NULL && object != Py_None) {
        PyErr_Format(PyExc_TypeError, "context must be a weft.Context or None, not %R",
                     (PyObject *)Py_TYPE(object));
        return NULL;
    }
    if (state->context == NULL) {
        wp_raise_text(state, WEFT_ERR_STATE, "there is no world: call weft.init() first");
    }
    return state->context;
}

/* ---- making one ---- */
/* -1 where it is left to the launcher. */
static int number_or_none(PyObject *object, const char *argument, int32_t *out)
{
    uint32_t value = 0;
    *out = -1;
    if (object == NULL || object == Py_None) {
        return 0;
    }
    if (wp_index(object, argument, INT32_MAX, &value) < 0) {
        return -1;
    }
    *out = (int32_t)value;
    return 0;
}

static int progress_of(PyObject *object, weft_progress_t *out)
{
    static const char *const words[] = {"default", "auto", "inline", "thread"};
    if (object == NULL || object == Py_None) {
        return 0;
    }
    for (int i = 0; PyUnicode_Check(object) && i < 4; i++) {
        if (PyUnicode_CompareWithASCIIString(object, words[i]) == 0) {
            *out = (weft_progress_t)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "progress: %R is none of 'auto', 'inline', 'thread'", object);
    return -1;
}

/* Rank, size, address, progress in places; the address text is owned by out_text. */
static int read_params(PyObject *const *places, weft_context_params_t *params, PyObject **out_text)
{
    if (number_or_none(places[0], "rank", &params->rank) < 0 ||
        number_or_none(places[1], "size", &params->world_size) < 0 ||
        progress_of(places[3], &params->progress) < 0) {
        return -1;
    }
    if (params->world_size == 0 ||
        (params->rank >= 0 && params->world_size > 0 && params->rank >= params->world_size)) {
        PyErr_Format(PyExc_ValueError, "rank %d of a world of %d", (int)params->rank,
                     (int)params->world_size);
        return -1;
    }
    if (places[2] != NULL && places[2] != Py_None) {
        if (!PyUnicode_FSConverter(places[2], out_text)) {
            return -1;
        }
        params->address = PyBytes_AsString(*out_text);
        return params->address != NULL ? 0 : -1;
    }
    return 0;
}

static wp_context_t *context_alloc(wp_state_t *state)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->context_type, Py_tp_alloc);
    wp_context_t *context = (wp_context_t *)alloc(state->context_type, 0);
    if (context != NULL) { /* zeroed */
        context->state = state;
        context->process = (int64_t)getpid();
        enter_list(context);
    }
    return context;
}

static wp_context_t *context_new(wp_state_t *state, PyObject *const *places)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    PyObject *text = NULL;
    wp_context_t *context = NULL;
    if (read_params(places, &params, &text) < 0) {
        goto done;
    }
    context = context_alloc(state);
    if (context == NULL) {
        goto done;
    }
    params.interrupt = wp_interrupted;
    params.interrupt_user = state;
    weft_group_t *world = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_context_create(&params, &context->context);
    status = status < 0 ? status : weft_group_create_world(context->context, &world);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(state, status);
        Py_CLEAR(context);
        goto done;
    }
    context->rank = weft_context_rank(context->context);
    context->size = weft_context_world_size(context->context);
    context->world = wp_group_new(context, world);
    if (context->world == NULL) {
        Py_CLEAR(context);
    }
done:
    Py_XDECREF(text);
    return context;
}

static PyObject *context_type_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"rank", "size", "address", "progress", NULL};
    PyObject *places[4] = {NULL, NULL, NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OOO$O:Context", names, &places[0],
                                     &places[1], &places[2], &places[3])) {
        return NULL;
    }
    wp_state_t *state = wp_state_of_type(type);
    return state != NULL ? (PyObject *)context_new(state, places) : NULL;
}

static int context_traverse(PyObject *self, visitproc visit, void *arg)
{
    wp_context_t *context = (wp_context_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)context->world);
    return 0;
}

static int context_clear(PyObject *self)
{
    wp_context_t *context = (wp_context_t *)self;
    wp_group_t *world = context->world;
    context->world = NULL;
    Py_XDECREF((PyObject *)world);
    return 0;
}

static void context_dealloc(PyObject *self)
{
    wp_context_t *context = (wp_context_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    leave_list(context);
    close_context(context, true);
    context_clear(self);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(self);
    Py_DECREF(type);
}

/* ---- methods ---- */
static PyObject *context_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    close_context((wp_context_t *)self, false);
    Py_DECREF(self);
    Py_RETURN_NONE;
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
    PyThreadState *thread = PyEval_SaveThread();
    weft_context_retain(context);
    weft_status_t status = weft_context_barrier(context);
    PyEval_RestoreThread(thread);
    PyObject *result = status < 0 ? wp_raise(object->state, status) : Py_NewRef(Py_None);
    release(context);
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
    PyThreadState *thread = PyEval_SaveThread();
    weft_context_retain(context);
    weft_status_t status = weft_context_topology(context, json, width, &text);
    PyEval_RestoreThread(thread);
    PyObject *result = status < 0 ? wp_raise(object->state, status) : PyUnicode_FromString(text);
    free(text);
    release(context);
    return result;
}

static PyObject *context_peer(PyObject *self, PyObject *number)
{
    wp_context_t *object = (wp_context_t *)self;
    weft_context_t *context = wp_context_open(object);
    weft_peer_info_t info = WEFT_PEER_INFO_INIT;
    weft_link_stats_t stats = WEFT_LINK_STATS_INIT;
    uint32_t rank = 0;
    if (context == NULL || wp_index(number, "rank", object->size - 1, &rank) < 0) {
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

static PyObject *context_repr(PyObject *self)
{
    wp_context_t *context = (wp_context_t *)self;
    return PyUnicode_FromFormat("<weft.Context rank %u of %u%s%s>", context->rank, context->size,
                                context->context != NULL ? ", started by " : ", closed",
                                context->context != NULL ? weft_context_launcher(context->context)
                                                         : "");
}

static PyMethodDef methods[] = {
    {"close", context_close, METH_NOARGS,
     "close($self)\n--\n\n"
     "Leaves the world. Not collective: peers that still wait for this rank get an error. Groups, "
     "streams and\n"
     "sessions made from the context raise WeftStateError from now on; arrays of weft.empty stay "
     "usable."},
    {"abort", context_abort, METH_O,
     "abort($self, message, /)\n--\n\n"
     "Ends the world: waits of every rank end with WeftAbortedError and message."},
    {"barrier", context_barrier, METH_NOARGS,
     "barrier($self)\n--\n\n"
     "Waits for all ranks of the world: for start and end; weft.barrier is quicker."},
    {"topology", (PyCFunction)(void (*)(void))context_topology, METH_VARARGS | METH_KEYWORDS,
     "topology($self, json=False, *, width=0)\n--\n\n"
     "Describes hosts, cores, caches, cards and links of the world as text, in lines of width (0: "
     "100), or as\n"
     "JSON. Collective; all ranks get the same."},
    {"peer", context_peer, METH_O,
     "peer($self, rank, /)\n--\n\n"
     "How this rank and another one reach each other: a dict of host, host_name, transport "
     "('self', 'shm',\n"
     "'tcp', 'verbs'), reason, bytes_sent, bytes_received, busy_s (counted where messages are "
     "moved)."},
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
    {"hosts", get_hosts, NULL, "Number of hosts that the world's ranks are on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "Context(rank=None, size=None, address=None, *, progress=None)\n--\n\n"
    "A world beside the one of weft.init: this process is one rank of it. Collective: returns when "
    "all size ranks\n"
    "have made theirs. address is 'unix:@name' or 'unix:/path' on one host, 'host:port' or "
    "'file:///shared/path' on\n"
    "several; what is None is asked of the launcher's environment. progress: 'auto', 'inline' or "
    "'thread'.\n"
    "Use context.world as group=; leave with close(), or `with Context(..) as c`.\n"
    "Raises ValueError, WeftTimeoutError (naming who is missing), WeftMismatchError, "
    "WeftSystemError.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_new, context_type_new},
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_traverse, context_traverse},
    {Py_tp_clear, context_clear},
    {Py_tp_repr, context_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.Context", sizeof(wp_context_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

/* ---- the default context ---- */
static PyObject *init(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"rank", "size", "address", "progress", NULL};
    PyObject *places[4];
    wp_state_t *state = wp_state_of(module);
    if (wp_parse("init", args, count, keywords, names, 0, 3, places) < 0) {
        return NULL;
    }
    if (state->context != NULL) {
        return wp_raise_text(
            state, WEFT_ERR_STATE,
            "weft.init() was called before: weft.finalize() first, or make a weft.Context()");
    }
    wp_context_t *context = context_new(state, places);
    if (context == NULL) {
        return NULL;
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
        close_context(context, false);
        Py_XDECREF((PyObject *)world);
        Py_DECREF((PyObject *)context);
    }
    Py_RETURN_NONE;
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
    PyObject *text = PyUnicode_FromFormat("rank %u ended by %R", context->rank, value);
    PyObject *bytes = text != NULL ? PyUnicode_AsUTF8String(text) : NULL;
    const char *message = bytes != NULL ? PyBytes_AsString(bytes) : "a rank ended by an exception";
    PyErr_Clear();
    weft_context_abort(context->context, message);
    Py_XDECREF(bytes);
    Py_XDECREF(text);
}

static PyObject *leave_all(PyObject *module, PyObject *unused)
{
    (void)unused;
    wp_state_t *state = wp_state_of(module);
    state->exiting = true;
    for (wp_context_t *context = state->contexts; context != NULL; context = state->contexts) {
        leave_list(context);
        Py_INCREF((PyObject *)context);
        abort_after_exception(context);
        close_context(context, true);
        Py_DECREF((PyObject *)context);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"init", (PyCFunction)(void (*)(void))init, METH_FASTCALL | METH_KEYWORDS,
     "init($module, rank=None, size=None, address=None, *, progress=None)\n--\n\n"
     "Joins the world as one of its ranks and returns the Context, which is the default one from "
     "now on.\n\n"
     "Collective: returns when all ranks have called it. Rank, size and where they meet come from "
     "the launcher\n"
     "(weft run, mpirun, mpiexec, srun, torchrun) or WEFT_RANK, WEFT_WORLD_SIZE, WEFT_ADDRESS; "
     "arguments go first;\n"
     "with neither it is a world of one. address: 'unix:@name' on one host; 'host:port', where "
     "rank 0 listens, or\n"
     "'file:///shared/path' on several. progress: 'auto', 'inline' (calls make progress) or "
     "'thread' (a thread does).\n"
     "Raises WeftStateError when called twice, ValueError, WeftTimeoutError naming who is missing, "
     "WeftMismatchError."},
    {"finalize", finalize, METH_NOARGS,
     "finalize($module)\n--\n\n"
     "Leaves the world of weft.init; done at the end of the program anyway. Not collective. "
     "Groups, streams and\n"
     "sessions of it raise WeftStateError afterwards; init may be called again, by all ranks."},
    {"is_initialized", is_initialized, METH_NOARGS,
     "is_initialized($module)\n--\n\nWhether there is a world: after init, before finalize."},
    {"_leave_all", leave_all, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int at_exit(PyObject *module)
{
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *function = PyObject_GetAttrString(module, "_leave_all");
    PyObject *name = PyUnicode_FromString("register");
    PyObject *done = NULL;
    if (atexit != NULL && function != NULL && name != NULL) {
        done = PyObject_CallMethodObjArgs(atexit, name, function, NULL);
    }
    Py_XDECREF(atexit);
    Py_XDECREF(function);
    Py_XDECREF(name);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

int wp_context_init(PyObject *module, wp_state_t *state)
{
    state->context_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    if (state->context_type == NULL || PyModule_AddType(module, state->context_type) < 0 ||
        PyModule_AddFunctions(module, functions) < 0) {
        return -1;
    }
    return at_exit(module);
}
