/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: ordered sets of ranks that collectives run over. */
#include "python/src/group.h"

#include <stddef.h>
#include <stdio.h>

/* ---- locks ---- */
void wp_lock_init(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void wp_lock_refused(wp_state_t *state)
{
    wp_raise_text(
        state, WEFT_ERR_STATE,
        "this thread is in a call on the group already: a signal handler that runs while a "
        "call waits cannot make another one");
}

int wp_lock(wp_state_t *state, pthread_mutex_t *lock)
{
    int locked = pthread_mutex_trylock(lock);
    if (locked != 0) {
        PyThreadState *thread = PyEval_SaveThread();
        locked = pthread_mutex_lock(lock);
        PyEval_RestoreThread(thread);
    }
    if (locked != 0) {
        wp_lock_refused(state);
        return -1;
    }
    return 0;
}

/* ---- life ---- */
/* At the end of the program a thread that goes on waiting in a call would keep it from ending. */
static void end_calls(wp_group_t *self)
{
    weft_context_t *context = self->context->context;
    if (pthread_mutex_trylock(&self->lock) == 0) {
        pthread_mutex_unlock(&self->lock);
    } else if (context != NULL) {
        char text[96];
        snprintf(text, sizeof text, "rank %u ended while a thread of it was in a call",
                 (unsigned)self->context->rank);
        weft_context_abort(context, text);
    }
}

/* The context is being closed: the C group goes, this object stays. */
static void leave(wp_holder_t *holder)
{
    wp_group_t *self = (wp_group_t *)(void *)((char *)holder - offsetof(wp_group_t, holder));
    Py_INCREF((PyObject *)self);
    if (self->context->state->exiting) {
        end_calls(self);
    }
    if (wp_lock(self->context->state, &self->lock) < 0) {
        PyErr_Clear(); /* a signal handler inside a call, which needs the group to the end */
        Py_DECREF((PyObject *)self);
        return;
    }
    weft_group_t *group = self->group;
    self->group = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    weft_group_leave(group);
    PyEval_RestoreThread(thread);
    pthread_mutex_unlock(&self->lock);
    Py_DECREF((PyObject *)self);
}

wp_group_t *wp_group_new(wp_context_t *context, weft_group_t *group)
{
    PyTypeObject *type = context->state->group_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    wp_group_t *self = (wp_group_t *)alloc(type, 0);
    if (self == NULL) {
        weft_group_leave(group);
        return NULL;
    }
    self->context = (wp_context_t *)Py_NewRef((PyObject *)context);
    self->group = group;
    self->rank = weft_group_rank(group);
    self->size = weft_group_size(group);
    wp_lock_init(&self->lock);
    self->holder.lock = &self->lock;
    wp_context_hold(context, &self->holder, leave);
    return self;
}

int wp_group_traverse(PyObject *object, visitproc visit, void *arg)
{
    wp_group_t *self = (wp_group_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->context);
    Py_VISIT((PyObject *)self->stream);
    Py_VISIT(self->kept);
    return 0;
}

int wp_group_clear(PyObject *object)
{
    wp_group_t *self = (wp_group_t *)object;
    PyObject *stream = (PyObject *)self->stream; /* the context lets go of its world itself */
    self->stream = NULL;
    Py_XDECREF(stream);
    Py_CLEAR(self->kept);
    return 0;
}

/* Calls in flight have references to the group, so there are none. Not collective: rubbish is
 * collected at any time. */
void wp_group_dealloc(PyObject *object)
{
    wp_group_t *self = (wp_group_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    wp_holder_drop(&self->holder);
    wp_group_clear(object);
    if (self->group != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_group_leave(self->group);
        PyEval_RestoreThread(thread);
        self->group = NULL;
    }
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF((PyObject *)self->context);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* The lock held, or NULL with WeftStateError. */
weft_group_t *wp_group_open(wp_group_t *self)
{
    return wp_group_enter(self->context->state, self) == 0 ? self->group : NULL;
}

PyObject *wp_group_done(wp_group_t *self, PyThreadState *thread, weft_status_t status)
{
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return status < 0 ? wp_raise(self->context->state, status) : Py_NewRef(Py_None);
}

static PyObject *group_or_none(wp_group_t *parent, weft_group_t *made)
{
    return made != NULL ? (PyObject *)wp_group_new(parent->context, made) : Py_NewRef(Py_None);
}

/* ---- making others ---- */
/* Integers of 0 .. most in a sequence, on the heap (also none of them); NULL with an exception. */
uint32_t *wp_group_numbers(PyObject *object, const char *argument, uint32_t most,
                           uint32_t *out_count)
{
    PyObject *list = PySequence_List(object);
    if (list == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s must be a sequence of integers, not %R", argument,
                         (PyObject *)Py_TYPE(object));
        }
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    uint32_t *values =
        count < UINT32_MAX ? PyMem_Malloc((size_t)(count + 1) * sizeof *values) : NULL;
    if (values == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        if (wp_index(PyList_GetItem(list, i), argument, most, &values[i]) < 0) {
            PyMem_Free(values);
            values = NULL;
        }
    }
    Py_DECREF(list);
    *out_count = (uint32_t)count;
    return values;
}

/* Different ranks of a group of size, on the heap; NULL with an exception. */
static uint32_t *read_ranks(PyObject *object, uint32_t size, uint32_t *out_count)
{
    uint32_t *ranks = wp_group_numbers(object, "ranks", size - 1, out_count);
    if (ranks != NULL && *out_count == 0) {
        PyErr_SetString(PyExc_ValueError, "ranks: a group needs at least one rank");
        PyMem_Free(ranks);
        return NULL;
    }
    /* More than size are not without one twice. */
    for (uint32_t i = 0; ranks != NULL && i < *out_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                PyErr_Format(PyExc_ValueError, "ranks: duplicate rank %u", (unsigned)ranks[i]);
                PyMem_Free(ranks);
                return NULL;
            }
        }
    }
    return ranks;
}

static PyObject *new_group(PyObject *module, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    static const char *const names[] = {"ranks", "group", NULL};
    PyObject *places[2];
    wp_state_t *state = wp_state_of(module);
    if (wp_parse("new_group", args, count, keywords, names, 1, 2, places) < 0) {
        return NULL;
    }
    wp_group_t *parent = wp_group_of(state, places[1]);
    if (parent == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)parent); /* what is in ranks may end the world */
    uint32_t number = 0;
    uint32_t *ranks = read_ranks(places[0], parent->size, &number);
    PyObject *result = NULL;
    weft_group_t *group = ranks != NULL ? wp_group_open(parent) : NULL, *made = NULL;
    if (group != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = weft_group_create_ranks(group, ranks, number, &made);
        pthread_mutex_unlock(&parent->lock);
        PyEval_RestoreThread(thread);
        result = status < 0 ? wp_raise(state, status) : group_or_none(parent, made);
    }
    PyMem_Free(ranks);
    Py_DECREF((PyObject *)parent);
    return result;
}

PyObject *wp_group_split(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"color", "key", "staging_bytes", NULL};
    wp_group_t *self = (wp_group_t *)object;
    PyObject *color_object;
    long long key = self->rank;
    Py_ssize_t staging_bytes = 0;
    weft_group_params_t params = WEFT_GROUP_PARAMS_INIT;
    params.color = WEFT_COLOR_NONE;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|Ln:split", names, &color_object, &key,
                                     &staging_bytes) ||
        (color_object != Py_None &&
         wp_index(color_object, "color", INT32_MAX, &params.color) < 0)) {
        return NULL;
    }
    if (staging_bytes < 0) {
        return PyErr_Format(PyExc_ValueError, "staging_bytes must not be negative: %zd",
                            staging_bytes);
    }
    weft_group_t *made = NULL;
    params.parent = wp_group_open(self);
    if (params.parent == NULL) {
        return NULL;
    }
    params.key = key;
    params.staging_bytes = (uint64_t)staging_bytes;
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_create(weft_group_context(params.parent), &params, &made);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return status < 0 ? wp_raise(self->context->state, status) : group_or_none(self, made);
}

PyObject *wp_group_duplicate(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = wp_group_open(self), *made = NULL;
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_duplicate(group, &made);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return status < 0 ? wp_raise(self->context->state, status) : group_or_none(self, made);
}

PyObject *wp_group_destroy(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    if (self == self->context->world) {
        return wp_raise_text(self->context->state, WEFT_ERR_STATE,
                             "the world goes with its context: weft.finalize() or Context.close()");
    }
    if (wp_lock(self->context->state, &self->lock) < 0) {
        return NULL;
    }
    weft_group_t *group = self->group;
    self->group = NULL;
    wp_holder_drop(&self->holder);
    PyThreadState *thread = PyEval_SaveThread();
    weft_group_destroy(group);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

PyObject *wp_group_refuse(PyObject *object, PyObject *message)
{
    wp_group_t *self = (wp_group_t *)object;
    if (!PyUnicode_Check(message)) {
        PyErr_Format(PyExc_TypeError, "message must be a string, not %R",
                     (PyObject *)Py_TYPE(message));
        return NULL;
    }
    PyObject *bytes = PyUnicode_AsUTF8String(message);
    const char *text = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    if (text == NULL || wp_group_enter(self->context->state, self) < 0) {
        Py_XDECREF(bytes);
        return NULL;
    }
    wp_refuse_entered(self, WEFT_ERR_INVALID_ARGUMENT, text);
    wp_group_exit(self);
    Py_DECREF(bytes);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- functions ---- */
static wp_group_t *only_group(PyObject *module, const char *function, PyObject *const *args,
                              Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"group", NULL};
    PyObject *places[1];
    if (wp_parse(function, args, count, keywords, names, 0, 1, places) < 0) {
        return NULL;
    }
    return wp_group_of(wp_state_of(module), places[0]);
}

static PyObject *get_rank_of(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    wp_group_t *group = only_group(module, "get_rank", args, count, keywords);
    return group != NULL ? PyLong_FromUnsignedLong(group->rank) : NULL;
}

static PyObject *get_world_size(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    wp_group_t *group = only_group(module, "get_world_size", args, count, keywords);
    return group != NULL ? PyLong_FromUnsignedLong(group->size) : NULL;
}

static PyMethodDef functions[] = {
    {"new_group", (PyCFunction)(void (*)(void))new_group, METH_FASTCALL | METH_KEYWORDS,
     "new_group($module, ranks, group=None)\n--\n\n"
     "The Group of these ranks of group (None: the world), numbered in this order; None on\n"
     "ranks that are not in it (who must not pass that on as group=, where it is the world).\n\n"
     "Collective over group: all its ranks pass the same list. Raises ValueError (a rank\n"
     "that there is not, or twice), WeftMismatchError when lists differ, WeftNoMemoryError\n"
     "when too many groups are alive."},
    {"get_rank", (PyCFunction)(void (*)(void))get_rank_of, METH_FASTCALL | METH_KEYWORDS,
     "get_rank($module, group=None)\n--\n\n"
     "This process's number in group (None: the world)."},
    {"get_world_size", (PyCFunction)(void (*)(void))get_world_size, METH_FASTCALL | METH_KEYWORDS,
     "get_world_size($module, group=None)\n--\n\n"
     "Ranks in group (None: the world)."},
    {NULL, NULL, 0, NULL},
};

int wp_group_init(PyObject *module, wp_state_t *state)
{
    return wp_group_type_init(module, state) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
