/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: ordered sets of ranks that collectives run over. How one comes and goes. */
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

bool wp_lock_take(pthread_mutex_t *lock)
{
    int locked = pthread_mutex_trylock(lock);
    if (locked != 0) {
        PyThreadState *thread = PyEval_SaveThread();
        locked = pthread_mutex_lock(lock);
        PyEval_RestoreThread(thread);
    }
    return locked == 0;
}

int wp_lock(wp_state_t *state, pthread_mutex_t *lock)
{
    if (!wp_lock_take(lock)) {
        wp_lock_refused(state);
        return -1;
    }
    return 0;
}

void wp_end_calls(const wp_context_t *context, pthread_mutex_t *lock)
{
    if (pthread_mutex_trylock(lock) == 0) {
        pthread_mutex_unlock(lock);
    } else if (context->context != NULL) {
        char text[96];
        snprintf(text, sizeof text, "rank %u ended while a thread of it was in a call",
                 (unsigned)context->rank);
        weft_context_abort(context->context, text);
    }
}

/* ---- life ---- */
/* The context is being closed: the C group goes, this object stays. */
static void leave(wp_holder_t *holder)
{
    wp_group_t *self = (wp_group_t *)(void *)((char *)holder - offsetof(wp_group_t, holder));
    Py_INCREF((PyObject *)self);
    if (self->context->state->exiting) {
        wp_end_calls(self->context, &self->lock);
    }
    if (!wp_lock_take(&self->lock)) { /* a signal handler in a call, which needs it to the end */
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
/* _group(parent, address): a Group of parent's context, which takes the C group over. */
static PyObject *group_of_address(PyObject *module, PyObject *args)
{
    unsigned long long address;
    PyObject *parent;
    if (!PyArg_ParseTuple(args, "O!K:_group", wp_state_of(module)->group_type, &parent, &address)) {
        return NULL;
    }
    return (PyObject *)wp_group_new(((wp_group_t *)parent)->context,
                                    (weft_group_t *)(uintptr_t)address);
}

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
    {"_group", group_of_address, METH_VARARGS, NULL},
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
