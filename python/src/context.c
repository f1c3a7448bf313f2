/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the worlds that this process is a rank of, from init to finalize or the end of the
 * program. */
#include "python/src/context.h"

#include <errno.h>
#include <time.h>
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

void wp_context_delist(wp_context_t *context)
{
    if (context->link != NULL) {
        *context->link = context->next;
        if (context->next != NULL) {
            context->next->link = context->link;
        }
        context->link = NULL;
    }
}

void wp_context_release(weft_context_t *context)
{
    if (context != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_context_release(context);
        PyEval_RestoreThread(thread);
    }
}

/* Streams first: groups wait for what is in flight on them. */
static wp_holder_t *next_to_leave(const wp_context_t *context)
{
    wp_holder_t *holder = context->holders;
    while (holder != NULL && !holder->first) {
        holder = holder->next;
    }
    return holder != NULL ? holder : context->holders;
}

static bool is_own(pthread_mutex_t *lock)
{
    int error = pthread_mutex_timedlock(lock, &(struct timespec){.tv_sec = 0}); /* which is over */
    if (error == 0) {
        pthread_mutex_unlock(lock);
    }
    return error == EDEADLK;
}

/* Whether this thread is in a call, in which a signal handler runs, or what collects rubbish. */
static bool is_inside(const wp_context_t *context)
{
    bool inside =
        context->main_waits > 0 && PyThread_get_thread_ident() == context->state->main_thread;
    for (wp_holder_t *holder = context->holders; holder != NULL && !inside; holder = holder->next) {
        inside = holder->lock != NULL && is_own(holder->lock);
    }
    return inside;
}

void wp_context_close(wp_context_t *context)
{
    if (context->process != (int64_t)getpid() || is_inside(context)) {
        return; /* the call needs it all to its end: the last reference, or the program, closes it
                 */
    }
    for (wp_holder_t *holder; (holder = next_to_leave(context)) != NULL;) {
        wp_holder_drop(holder);
        holder->leave(holder);
    }
    weft_context_t *left = context->context;
    context->context = NULL;
    if (context->borrowed > 0 && left != NULL) {
        weft_mem_keep(left);
    }
    wp_context_release(left);
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
    PyErr_Format(PyExc_ValueError, "unknown progress %R: expected 'auto', 'inline' or 'thread'",
                 object);
    return -1;
}

/* The name of a device in places[4], which the argument keeps alive. */
static int read_device(PyObject *object, weft_context_params_t *params)
{
    if (object != NULL && object != Py_None) {
        if (!PyUnicode_Check(object)) {
            PyErr_Format(PyExc_TypeError, "device must be a string, not %R",
                         (PyObject *)Py_TYPE(object));
            return -1;
        }
        params->device_name = PyUnicode_AsUTF8AndSize(object, NULL);
        return params->device_name != NULL ? 0 : -1;
    }
    return 0;
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
        PyErr_Format(PyExc_ValueError, "invalid rank %d for world size %d", (int)params->rank,
                     (int)params->world_size);
        return -1;
    }
    if (places[2] != NULL && places[2] != Py_None) {
        if (!PyUnicode_Check(places[2])) {
            PyErr_Format(PyExc_TypeError, "address must be a string, not %R",
                         (PyObject *)Py_TYPE(places[2]));
            return -1;
        }
        *out_text = PyUnicode_EncodeFSDefault(places[2]);
        if (*out_text == NULL) {
            return -1;
        }
        char *address = NULL;
        int result = PyBytes_AsStringAndSize(*out_text, &address, NULL); /* no zeros inside */
        params->address = address;
        return result;
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

/* Takes over the group of all ranks. */
static int set_world(wp_context_t *context, weft_group_t *world)
{
    context->rank = weft_context_rank(context->context);
    context->size = weft_context_world_size(context->context);
    context->world = wp_group_new(context, world);
    return context->world != NULL ? 0 : -1;
}

wp_context_t *wp_context_new(wp_state_t *state, PyObject *const *places)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    PyObject *text = NULL;
    wp_context_t *context = NULL;
    if (read_params(places, &params, &text) < 0 || read_device(places[4], &params) < 0) {
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
    if (set_world(context, world) < 0) {
        Py_CLEAR(context);
    }
done:
    Py_XDECREF(text);
    return context;
}

/* The world of a context that takes the place of former's; larger: NULL, or its params. */
static PyObject *replace(wp_context_t *former, const weft_context_params_t *larger)
{
    weft_group_t *world = NULL;
    weft_context_t *before = wp_context_open(former);
    wp_context_t *context = before != NULL ? context_alloc(former->state) : NULL;
    if (context == NULL) {
        return NULL;
    }
    weft_context_retain(before); /* another thread may close it, as soon as it has the GIL */
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = larger != NULL ? weft_context_grow(before, larger, &context->context)
                                          : weft_context_shrink(before, &context->context);
    status = status < 0 ? status : weft_group_create_world(context->context, &world);
    while (larger == NULL && status == WEFT_ERR_PEER_DIED) { /* another one: once more */
        weft_context_t *broken = context->context;
        context->context = NULL;
        status = weft_context_shrink(broken, &context->context);
        weft_context_release(broken);
        status = status < 0 ? status : weft_group_create_world(context->context, &world);
    }
    weft_context_release(before);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(former->state, status);
        Py_CLEAR(context);
    } else if (set_world(context, world) < 0) {
        Py_CLEAR(context);
    }
    return (PyObject *)context;
}

PyObject *wp_context_shrink(PyObject *self, PyObject *unused)
{
    (void)unused;
    return replace((wp_context_t *)self, NULL);
}

PyObject *wp_context_grow(PyObject *self, PyObject *args)
{
    PyObject *places[4] = {NULL, NULL, NULL, NULL}, *text = NULL, *result = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    if (!PyArg_ParseTuple(args, "OO:grow", &places[1], &places[2])) {
        return NULL;
    }
    if (read_params(places, &params, &text) == 0) {
        result = replace((wp_context_t *)self, &params);
    }
    Py_XDECREF(text);
    return result;
}

int wp_context_traverse(PyObject *self, visitproc visit, void *arg)
{
    wp_context_t *context = (wp_context_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)context->world);
    return 0;
}

int wp_context_clear(PyObject *self)
{
    wp_context_t *context = (wp_context_t *)self;
    wp_group_t *world = context->world;
    context->world = NULL;
    Py_XDECREF((PyObject *)world);
    return 0;
}

void wp_context_dealloc(PyObject *self)
{
    PyObject *kind, *value, *trace;
    wp_context_t *context = (wp_context_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyErr_Fetch(&kind, &value, &trace); /* of whoever drops the context */
    wp_context_delist(context);
    wp_context_close(context);
    wp_context_clear(self);
    PyErr_Restore(kind, value, trace);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(self);
    Py_DECREF(type);
}
