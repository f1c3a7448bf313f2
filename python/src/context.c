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
static wp_context_t *context_alloc(wp_state_t *state)
{
    wp_context_t *context = (wp_context_t *)PyType_GenericAlloc(state->context_type, 0);
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

/* Without the GIL: joins a world, or one that takes the place of before's: of its survivors, or
 * larger. */
static weft_status_t join(weft_context_t *before, bool larger, const weft_context_params_t *params,
                          weft_context_t **out, weft_group_t **out_world)
{
    weft_status_t status = before == NULL ? weft_context_create(params, out)
                           : larger       ? weft_context_grow(before, params, out)
                                          : weft_context_shrink(before, out);
    status = status < 0 ? status : weft_group_create_world(*out, out_world);
    while (before != NULL && !larger && *out != NULL && status == WEFT_ERR_PEER_DIED) {
        weft_context_t *broken = *out; /* another rank has died: once more */
        *out = NULL;
        status = weft_context_shrink(broken, out);
        weft_context_release(broken);
        status = status < 0 ? status : weft_group_create_world(*out, out_world);
    }
    return status;
}

/* _join(former, larger, rank, size, address, progress, device): a Context; former: one of the former
 * world, or () where there is none. What the numbers mean is known in weft/world.py. */
PyObject *wp_context_join(PyObject *module, PyObject *args)
{
    wp_state_t *state = wp_state_of(module);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *before = NULL;
    weft_group_t *world = NULL;
    PyObject *object;
    Py_ssize_t address_bytes, device_bytes;
    int larger, progress;
    if (!PyArg_ParseTuple(args, "Opiiz#iz#:_join", &object, &larger, &params.rank,
                          &params.world_size, &params.address, &address_bytes, &progress,
                          &params.device_name, &device_bytes)) {
        return NULL;
    }
    params.progress = (weft_progress_t)progress;
    params.interrupt = wp_interrupted;
    params.interrupt_user = state;
    if (!PyTuple_Check(object)) {
        if (Py_TYPE(object) != state->context_type) {
            return PyErr_Format(PyExc_TypeError, "expected a weft.Context, not %R",
                                (PyObject *)Py_TYPE(object));
        }
        before = wp_context_open((wp_context_t *)object);
        if (before == NULL) {
            return NULL;
        }
        weft_context_retain(before); /* another thread may close it, as soon as it has the GIL */
    }
    wp_context_t *context = context_alloc(state);
    if (context == NULL) {
        wp_context_release(before);
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = join(before, larger, &params, &context->context, &world);
    weft_context_release(before);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(state, status);
        Py_CLEAR(context);
    } else if (set_world(context, world) < 0) {
        Py_CLEAR(context);
    }
    return (PyObject *)context;
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
