/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: calls in a `with` block are noted there, and made together at its end. */
#include "python/src/stream.h"

#include <stdlib.h>
#include <string.h>

/* Calls that were noted, with what they own. */
struct wp_batch {
    wp_call_t *calls;
    size_t count, capacity;
    unsigned long thread; /* which opened it */
    weft_status_t
        error; /* of the first call that was refused, of which the C batch knows nothing */
    char *why; /* NULL: none */
};

typedef struct wp_batch_object {
    PyObject_HEAD wp_state_t *state;
    wp_group_t *group;   /* owned */
    wp_stream_t *stream; /* owned, or NULL */
    bool async, open;
    PyObject *work; /* of an asynchronous one that has ended */
} wp_batch_object_t;

void wp_batch_release(wp_batch_t *batch)
{
    if (batch != NULL) {
        for (size_t i = 0; i < batch->count; i++) {
            wp_call_release(&batch->calls[i]);
        }
        free(batch->calls);
        free(batch->why);
        free(batch);
    }
}

bool wp_batch_packs(const wp_batch_t *batch)
{
    bool packs = false;
    for (size_t i = 0; i < batch->count; i++) {
        packs = packs || wp_call_packs(&batch->calls[i]);
    }
    return packs;
}

static weft_status_t pack_all(void *user)
{
    const wp_batch_t *batch = user;
    for (size_t i = 0; i < batch->count; i++) {
        wp_call_pack_in(&batch->calls[i], NULL);
    }
    return WEFT_OK;
}

weft_status_t wp_batch_pack_in(wp_batch_t *batch, weft_stream_t *stream)
{
    return stream != NULL && wp_batch_packs(batch)
               ? weft_stream_launch_host(stream, pack_all, batch)
               : pack_all(batch);
}

weft_status_t wp_batch_pack_back(const wp_batch_t *batch, weft_stream_t *stream)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < batch->count && status == WEFT_OK; i++) {
        status = wp_call_pack_back(&batch->calls[i], stream);
    }
    return status;
}

void wp_batch_note_refusal(wp_batch_t *batch, weft_status_t error, const char *text)
{
    if (batch->why == NULL && batch->thread == PyThread_get_thread_ident()) {
        batch->error = error;
        batch->why = strdup(text);
    }
}

/* ---- between begin and end ---- */
static bool is_own(wp_group_t *group)
{
    if (group->batch->thread == PyThread_get_thread_ident()) {
        return true;
    }
    wp_raise_text(group->context->state, WEFT_ERR_STATE,
                  "another thread has a batch open on this group: threads that call at once use "
                  "duplicates of it");
    return false;
}

static int reserve(wp_batch_t *batch)
{
    if (batch->count == batch->capacity) {
        size_t capacity = batch->capacity == 0 ? 16 : 2 * batch->capacity;
        wp_call_t *calls = realloc(batch->calls, capacity * sizeof *calls);
        if (calls == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        batch->calls = calls;
        batch->capacity = capacity;
    }
    return 0;
}

PyObject *wp_batch_add(wp_state_t *state, wp_call_t *call)
{
    wp_group_t *group = call->group;
    if (!is_own(group) || reserve(group->batch) < 0 || wp_group_enter(state, group) < 0) {
        wp_call_release(call);
        return NULL;
    }
    weft_status_t status = wp_call_note(call);
    wp_group_exit(group);
    if (status < 0) {
        wp_raise(state, status);
        wp_call_release(call);
        return NULL;
    }
    PyObject *result = Py_NewRef(call->result != NULL ? call->result : Py_None);
    group->batch->calls[group->batch->count++] = *call;
    memset(call, 0, sizeof *call);
    return result;
}

/* ---- begin ---- */
static PyObject *enter(PyObject *object, PyObject *unused)
{
    wp_batch_object_t *self = (wp_batch_object_t *)object;
    wp_group_t *group = self->group;
    (void)unused;
    if (group->batch != NULL) {
        return wp_raise_text(self->state, WEFT_ERR_STATE, "a batch is open on this group already");
    }
    wp_batch_t *batch = calloc(1, sizeof *batch);
    if (batch == NULL) {
        return PyErr_NoMemory();
    }
    if (wp_group_enter(self->state, group) < 0) {
        free(batch);
        return NULL;
    }
    weft_status_t status = weft_batch_begin(group->group);
    group->notes = group->notes || status >= 0;
    wp_group_exit(group);
    if (status < 0) {
        free(batch);
        return wp_raise(self->state, status);
    }
    Py_CLEAR(self->work);
    batch->thread = PyThread_get_thread_ident();
    group->batch = batch;
    self->open = true;
    return Py_NewRef(object);
}

/* ---- end ---- */
void wp_batch_drop(wp_group_t *group, wp_batch_t *batch)
{
    weft_context_t *context = group->context->context;
    if (group->group == NULL || weft_batch_cancel(group->group) >= 0) {
        group->notes = false;
        wp_batch_release(batch);
    } else if (context != NULL) { /* part of it is in flight, so its arrays stay */
        weft_context_abort(context, "a rank was interrupted in a batch");
    }
}

/* On this thread. */
static PyObject *run(wp_batch_object_t *self, wp_batch_t *batch)
{
    wp_group_t *group = self->group;
    weft_status_t status = WEFT_AGAIN;
    PyThreadState *packing = PyEval_SaveThread();
    wp_batch_pack_in(batch, NULL);
    PyEval_RestoreThread(packing);
    while (status == WEFT_AGAIN) {
        if (wp_group_enter(self->state, group) < 0) {
            wp_batch_drop(group, batch);
            return NULL;
        }
        PyThreadState *thread = PyEval_SaveThread();
        status = weft_batch_end(group->group, NULL);
        group->notes = status == WEFT_AGAIN;
        wp_group_exit(group);
        PyEval_RestoreThread(thread);
        if (status == WEFT_AGAIN && wp_make_room(self->state, group) < 0) {
            wp_batch_drop(group, batch);
            return NULL;
        }
    }
    if (status < 0) {
        wp_raise(self->state, status);
    } else {
        wp_batch_pack_back(batch, NULL);
    }
    wp_batch_release(batch);
    return status == WEFT_OK ? Py_NewRef(Py_None) : NULL;
}

/* An exception of a wrong call ends the block: the other ranks make theirs, and wait for this one. */
static void tell(wp_batch_object_t *self, wp_batch_t *batch)
{
    if (wp_group_enter(self->state, self->group) == 0) {
        weft_group_refuse(self->group->group, batch->error, batch->why, NULL);
        wp_group_exit(self->group);
    }
    PyErr_Clear();
    Py_XDECREF(run(self, batch));
    PyErr_Clear(); /* the block's own exception goes on */
}

static PyObject *leave(PyObject *object, PyObject *args)
{
    wp_batch_object_t *self = (wp_batch_object_t *)object;
    PyObject *type, *value, *trace;
    if (!PyArg_ParseTuple(args, "OOO:__exit__", &type, &value, &trace)) {
        return NULL;
    }
    wp_batch_t *batch = self->group->batch;
    if (batch == NULL || !self->open) { /* which may be another one's */
        return wp_raise_text(self->state, WEFT_ERR_STATE, "no batch is open");
    }
    if (!is_own(self->group)) {
        return NULL;
    }
    self->group->batch = NULL;
    self->open = false;
    if (type != Py_None && batch->why != NULL) {
        tell(self, batch);
        Py_RETURN_NONE;
    }
    if (type != Py_None) {
        wp_batch_drop(self->group, batch); /* this rank does not know what the others call */
        Py_RETURN_NONE;
    }
    if (!self->async && self->stream == NULL) {
        return run(self, batch);
    }
    PyObject *work = wp_work_start_batch(self->state, self->group, batch, self->stream);
    if (work == NULL) {
        return NULL;
    }
    self->work = work;
    Py_RETURN_NONE;
}

/* ---- the type ---- */
static PyObject *type_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"group", "async_op", "stream", NULL};
    PyObject *group_object = Py_None, *stream_object = Py_None;
    int async = 0;
    wp_state_t *state = wp_state_of_type(type);
    wp_stream_t *stream = NULL;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, keywords, "|O$pO:batch", names, &group_object, &async,
                                     &stream_object) ||
        wp_stream_of(state, stream_object, &stream) < 0) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    wp_batch_object_t *self = (wp_batch_object_t *)alloc(type, 0); /* collects rubbish, maybe */
    wp_group_t *group = self != NULL ? wp_group_of(state, group_object) : NULL;
    if (group == NULL) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    self->state = state;
    self->async = async != 0;
    self->group = (wp_group_t *)Py_NewRef((PyObject *)group);
    self->stream = (wp_stream_t *)Py_XNewRef((PyObject *)stream);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    wp_batch_object_t *self = (wp_batch_object_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->group);
    Py_VISIT((PyObject *)self->stream);
    Py_VISIT(self->work);
    return 0;
}

static int clear(PyObject *object)
{
    Py_CLEAR(((wp_batch_object_t *)object)->work);
    return 0;
}

static void dealloc(PyObject *object)
{
    wp_batch_object_t *self = (wp_batch_object_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->open) { /* entered by hand, and never left */
        wp_batch_drop(self->group, self->group->batch);
        self->group->batch = NULL;
    }
    clear(object);
    Py_XDECREF((PyObject *)self->stream);
    Py_XDECREF((PyObject *)self->group);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

static PyObject *get_work(PyObject *object, void *unused)
{
    const wp_batch_object_t *self = (const wp_batch_object_t *)object;
    (void)unused;
    return Py_NewRef(self->work != NULL ? self->work : Py_None);
}

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"work", get_work, NULL,
     "The Work of a batch with async_op or stream, after the block; else None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "batch(group=None, *, async_op=False, stream=None)\n--\n\n"
    "with weft.batch(): calls on group in the block are noted, and made together at its end: sends "
    "and receives first,\n"
    "side by side, so that an exchange needs no order; then collectives, small ones of one kind as "
    "one. Results may be\n"
    "used after the block; with async_op=True or stream, when its work is done: `with "
    "weft.batch(async_op=True) as b`,\n"
    "then b.work.wait().\n\n"
    "All ranks make the same calls in the same order. None may use what another one writes; "
    "all_gather needs equal\n"
    "shapes. An exception in the block drops the batch: nothing is sent, and ranks that did not "
    "drop theirs wait in\n"
    "vain. Raises WeftStateError when a batch is open on the group already.";

static PyObject *repr(PyObject *object)
{
    wp_batch_object_t *self = (wp_batch_object_t *)object;
    return PyUnicode_FromFormat("<weft.batch of %R%s>", (PyObject *)self->group,
                                self->open ? ", open" : "");
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_repr, repr},
    {Py_tp_new, type_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {"weft.batch", sizeof(wp_batch_object_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int wp_batch_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    PyTypeObject *type;
    int added = wp_type_add(module, &spec, &type);
    Py_XDECREF((PyObject *)type);
    return added;
}
