/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Python files that call the C library themselves (weft/_library.py) need from here:
 *
 *   _checked(status, ..)       errcheck of ctypes: a status to an exception
 *   _with(object, function)    function(address, ..) of a context or plan, or under the lock of a
 *                              group, stream or handle
 *   _Handle(where, address)    an object of the library that must end before its context
 *   _memory(array, ..)         address, elements and type, and what keeps them
 *   _tensor(array, name)       address, type and shape, and what keeps them
 *   _new(tensor)               a new array for a tensor, and its address
 *   _view(tensor, owner)       an array over a tensor's own memory, which keeps owner
 *   _keep(group, list)         what calls on a group that is captured use goes into list
 */
#include "python/src/array.h"
#include "python/src/context.h"
#include "python/src/device_array.h"
#include "python/src/memory.h"
#include "python/src/stream.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct handle {
    PyObject_HEAD wp_context_t *context; /* owned */
    wp_holder_t holder;
    pthread_mutex_t lock;
    PyObject *address; /* an int; NULL once it has ended */
    PyObject *release; /* called with address when the context closes or the object is dropped */
    const char *what;  /* "fuser"; in texts, as is gone */
    const char *gone;  /* what an error says once it has ended */
    PyObject *texts;   /* owned */
} handle_t;

/* ---- a status to an exception ---- */
static PyObject *checked(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    long status = count > 0 ? PyLong_AsLong(args[0]) : 0;
    if (status == -1 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    return status < 0 ? wp_raise(wp_state_of(module), (weft_status_t)status) : Py_NewRef(args[0]);
}

/* ---- handles ---- */
/* Calls release once, with the lock or without anyone who could have it. */
static void end(handle_t *self)
{
    PyObject *kind, *value, *trace, *address = self->address;
    self->address = NULL;
    if (address != NULL && self->context->process == (int64_t)getpid()) {
        PyErr_Fetch(&kind, &value, &trace);
        PyObject *done = PyObject_CallFunctionObjArgs(self->release, address, NULL);
        if (done == NULL) {
            PyErr_WriteUnraisable(self->release);
        }
        Py_XDECREF(done);
        PyErr_Restore(kind, value, trace);
    }
    Py_XDECREF(address);
}

/* The context is being closed. */
static void leave(wp_holder_t *holder)
{
    handle_t *self = (handle_t *)(void *)((char *)holder - offsetof(handle_t, holder));
    Py_INCREF((PyObject *)self);
    if (self->context->state->exiting) {
        wp_end_calls(self->context, &self->lock);
    }
    if (wp_lock_take(
            &self->lock)) { /* else a signal handler in a call, which needs it to the end */
        end(self);
        pthread_mutex_unlock(&self->lock);
    }
    Py_DECREF((PyObject *)self);
}

static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *words)
{
    wp_state_t *state = wp_state_of_type(type);
    PyObject *where, *address, *release;
    const char *what, *gone;
    if (state == NULL || words != NULL ||
        !PyArg_ParseTuple(args, "OOOss:_Handle", &where, &address, &release, &what, &gone)) {
        return NULL;
    }
    wp_context_t *context = wp_context_of(state, where);
    if (context == NULL || wp_context_open(context) == NULL) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    handle_t *self = (handle_t *)alloc(type, 0);
    if (self != NULL) {
        wp_lock_init(&self->lock);
        self->context = (wp_context_t *)Py_NewRef((PyObject *)context);
        self->address = Py_NewRef(address);
        self->release = Py_NewRef(release);
        self->texts = Py_NewRef(args);
        self->what = what;
        self->gone = gone;
        self->holder.lock = &self->lock;
        self->holder.first = true; /* before the streams, which are older, that it uses */
        wp_context_hold(context, &self->holder, leave);
    }
    return (PyObject *)self;
}

static void handle_dealloc(PyObject *object)
{
    handle_t *self = (handle_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->context != NULL) {
        wp_holder_drop(&self->holder);
        end(self);
        pthread_mutex_destroy(&self->lock);
    }
    Py_XDECREF(self->texts);
    Py_XDECREF(self->release);
    Py_XDECREF((PyObject *)self->context);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* Ends it by another function than release. */
static PyObject *handle_end(PyObject *object, PyObject *function)
{
    handle_t *self = (handle_t *)object;
    if (wp_lock(self->context->state, &self->lock) < 0) {
        return NULL;
    }
    PyObject *address = self->address, *done = Py_NewRef(Py_None);
    self->address = NULL;
    wp_holder_drop(&self->holder);
    if (address != NULL) {
        Py_DECREF(done);
        done = PyObject_CallFunctionObjArgs(function, address, NULL);
        Py_DECREF(address);
    }
    pthread_mutex_unlock(&self->lock);
    return done;
}

/* ---- function(address, ..) under a lock ---- */
typedef struct target {
    pthread_mutex_t *lock;   /* NULL: it needs none */
    PyObject *address;       /* a new reference */
    weft_context_t *context; /* retained: another thread may close it; NULL: another kind */
} target_t;

static void unlock(const target_t *target)
{
    if (target->lock != NULL) {
        pthread_mutex_unlock(target->lock);
    }
    wp_context_release(target->context);
}

static PyObject *address_of(const void *address)
{
    return address != NULL ? PyLong_FromVoidPtr((void *)(uintptr_t)address) : NULL;
}

/* A new reference to the address of a handle that was locked. */
static PyObject *address_of_handle(wp_state_t *state, const handle_t *handle)
{
    if (handle->context->process != (int64_t)getpid()) { /* which has not inherited its memory */
        return wp_raise_text(state, WEFT_ERR_STATE,
                             "this process was forked from a rank, whose %s it cannot use",
                             handle->what);
    }
    return handle->address != NULL ? Py_NewRef(handle->address)
                                   : wp_raise_text(state, WEFT_ERR_STATE, "%s", handle->gone);
}

/* Locks object, of any of the kinds. -1: an exception. */
static int enter(wp_state_t *state, PyObject *object, target_t *out)
{
    PyTypeObject *type = Py_TYPE(object);
    *out = (target_t){.lock = NULL};
    if (type == state->group_type) {
        wp_group_t *group = (wp_group_t *)object;
        out->lock = &group->lock;
        if (wp_group_enter(state, group) < 0) {
            return -1;
        }
        out->address = address_of(group->group);
    } else if (type == state->stream_type) {
        wp_stream_t *stream = (wp_stream_t *)object;
        out->lock = &stream->lock;
        if (wp_lock(state, out->lock) < 0) {
            return -1;
        }
        out->address =
            stream->stream != NULL ? address_of(stream->stream) : wp_stream_closed(state);
    } else if (type == state->handle_type) {
        handle_t *handle = (handle_t *)object;
        out->lock = &handle->lock;
        if (!wp_lock_take(out->lock)) {
            wp_raise_text(state, WEFT_ERR_STATE, "this thread is in a call of the %s already",
                          handle->what);
            return -1;
        }
        out->address = address_of_handle(state, handle);
    } else if (type == state->context_type) {
        weft_context_t *context = wp_context_open((wp_context_t *)object);
        if (context == NULL) {
            return -1;
        }
        weft_context_retain(context);
        out->context = context;
        out->address = address_of(context);
    } else { /* of Python, such as a Plan, which never changes */
        out->address = PyObject_GetAttrString(object, "_address");
        if (out->address == NULL) {
            PyErr_Format(PyExc_TypeError, "expected an object of weft, not %R", type);
        }
    }
    if (out->address == NULL) {
        unlock(out);
        return -1;
    }
    return 0;
}

static PyObject *with(PyObject *module, PyObject *args)
{
    wp_state_t *state = wp_state_of(module);
    target_t target;
    Py_ssize_t count = PyTuple_Size(args);
    if (count < 2) {
        PyErr_SetString(PyExc_TypeError, "_with() takes an object and a function");
        return NULL;
    }
    PyObject *object = PyTuple_GetItem(args, 0), *result = NULL;
    if (enter(state, object, &target) < 0) {
        return NULL;
    }
    PyObject *passed = PyTuple_New(count - 1); /* takes target.address over */
    for (Py_ssize_t i = 2; passed != NULL && i < count; i++) {
        PyTuple_SetItem(passed, i - 1, Py_NewRef(PyTuple_GetItem(args, i)));
    }
    if (passed != NULL) {
        PyTuple_SetItem(passed, 0, target.address);
        result = PyObject_CallObject(PyTuple_GetItem(args, 1), passed);
        Py_DECREF(passed);
    } else {
        Py_DECREF(target.address);
    }
    unlock(&target);
    return result;
}

/* ---- memory ---- */
static void memory_release(PyObject *capsule)
{
    wp_array_t *array = PyCapsule_GetPointer(capsule, NULL);
    wp_array_release(array);
    free(array);
}

/* An object that keeps the memory of array, which is got again. */
static PyObject *keeper(wp_state_t *state, PyObject *array, const char *argument,
                        wp_array_flags_t flags, wp_array_t **out)
{
    *out = malloc(sizeof **out);
    if (*out == NULL) {
        return PyErr_NoMemory();
    }
    if (wp_array_get(state, array, argument, flags, *out) < 0) {
        free(*out);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(*out, NULL, memory_release);
    if (capsule == NULL) {
        wp_array_release(*out);
        free(*out);
    }
    return capsule;
}

static PyObject *memory(PyObject *module, PyObject *args)
{
    const char *argument;
    int writes = 0;
    wp_array_t *array;
    PyObject *object, *group = NULL, *kept;
    if (!PyArg_ParseTuple(args, "Osp|O:_memory", &object, &argument, &writes, &group)) {
        return NULL;
    }
    wp_state_t *state = wp_state_of(module);
    wp_group_t *used = group != NULL ? wp_group_of(state, group) : NULL;
    wp_array_flags_t flags = (writes ? WP_WRITE : WP_READ) | (used != NULL ? WP_DEVICE : 0);
    if ((group != NULL && used == NULL) ||
        (kept = keeper(state, object, argument, flags, &array)) == NULL) {
        return NULL;
    }
    if (used != NULL && wp_device_array_check(array, argument, used) < 0) {
        Py_DECREF(kept);
        return NULL;
    }
    return Py_BuildValue("KKiN", (unsigned long long)(uintptr_t)array->data,
                         (unsigned long long)array->count, (int)array->dtype, kept);
}

static PyObject *tensor(PyObject *module, PyObject *args)
{
    const char *name;
    wp_array_t *array;
    PyObject *object, *kept;
    if (!PyArg_ParseTuple(args, "Os:_tensor", &object, &name) ||
        (kept = keeper(wp_state_of(module), object, name, WP_READ | WP_SHAPE, &array)) == NULL) {
        return NULL;
    }
    return Py_BuildValue("KiNN", (unsigned long long)(uintptr_t)array->data, (int)array->dtype,
                         wp_shape_object(array->rank, array->dims, false), kept);
}

/* A tensor is the address of a weft_tensor_desc_t. */
static PyObject *view(PyObject *module, PyObject *args)
{
    wp_state_t *state = wp_state_of(module);
    unsigned long long address;
    PyObject *owner, *array = NULL;
    if (!PyArg_ParseTuple(args, "KO:_view", &address, &owner)) {
        return NULL;
    }
    const weft_tensor_desc_t *desc = (const weft_tensor_desc_t *)(uintptr_t)address;
    wp_memory_t *memory = wp_memory_new(state, desc->dtype, desc->rank, desc->dims);
    if (memory != NULL) {
        memory->data = (void *)(uintptr_t)desc->data;
        memory->owner = Py_NewRef(owner);
        array = wp_memory_array(state, memory);
        Py_DECREF((PyObject *)memory);
    }
    return array;
}

static PyObject *new_array(PyObject *module, PyObject *address)
{
    const weft_tensor_desc_t *desc = PyLong_AsVoidPtr(address);
    wp_array_t array;
    if (desc == NULL) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_TypeError, "_new()");
    }
    const wp_array_t like = {.dtype = desc->dtype};
    if (wp_array_new(wp_state_of(module), &like, desc->rank, desc->dims, &array) < 0) {
        return NULL;
    }
    PyObject *made = Py_BuildValue("OK", array.object, (unsigned long long)(uintptr_t)array.data);
    wp_array_release(&array);
    return made;
}

static PyObject *reduction(PyObject *module, PyObject *op)
{
    weft_reduction_t value;
    (void)module;
    return wp_reduction(op, &value) < 0 ? NULL : PyLong_FromLong((long)value);
}

static PyObject *dtype(PyObject *module, PyObject *object)
{
    weft_dtype_t value;
    return wp_dtype(wp_state_of(module), object, &value) < 0 ? NULL : PyLong_FromLong((long)value);
}

static PyObject *dtype_name(PyObject *module, PyObject *number)
{
    (void)module;
    return PyUnicode_FromString(wp_dtype_name((weft_dtype_t)PyLong_AsLong(number)));
}

static PyObject *context_of(PyObject *module, PyObject *object)
{
    return Py_XNewRef((PyObject *)wp_context_of(wp_state_of(module), object));
}

static PyObject *group_of(PyObject *module, PyObject *object)
{
    return Py_XNewRef((PyObject *)wp_group_of(wp_state_of(module), object));
}

/* ---- what a capture uses ---- */
int wp_keep(wp_state_t *state, const wp_call_t *call)
{
    const wp_array_t *arrays[] = {&call->send, &call->recv};
    wp_array_t *again;
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++) {
        if (arrays[i]->packing != NULL) {
            PyErr_SetString(PyExc_ValueError, "a captured call needs contiguous memory");
            status = -1;
        } else if (arrays[i]->object != NULL) {
            PyObject *kept =
                keeper(state, arrays[i]->object, "tensor", WP_READ | WP_DEVICE, &again);
            status = kept != NULL ? PyList_Append(call->group->kept, kept) : -1;
            Py_XDECREF(kept);
        }
    }
    return status;
}

static PyObject *keep(PyObject *module, PyObject *args)
{
    wp_state_t *state = wp_state_of(module);
    PyObject *group, *list;
    if (!PyArg_ParseTuple(args, "OO:_keep", &group, &list) || Py_TYPE(group) != state->group_type ||
        (list != Py_None && !PyList_Check(list))) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_TypeError, "_keep()");
    }
    PyObject *before = ((wp_group_t *)group)->kept;
    ((wp_group_t *)group)->kept = list != Py_None ? Py_NewRef(list) : NULL;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* ---- the module ---- */
static PyMethodDef functions[] = {
    {"_checked", (PyCFunction)(void (*)(void))checked, METH_FASTCALL, NULL},
    {"_with", with, METH_VARARGS, NULL},
    {"_memory", memory, METH_VARARGS, NULL},
    {"_tensor", tensor, METH_VARARGS, NULL},
    {"_new", new_array, METH_O, NULL},
    {"_view", view, METH_VARARGS, NULL},
    {"_reduction", reduction, METH_O, NULL},
    {"_keep", keep, METH_VARARGS, NULL},
    {"_dtype", dtype, METH_O, NULL},
    {"_dtype_name", dtype_name, METH_O, NULL},
    {"_context_of", context_of, METH_O, NULL},
    {"_group_of", group_of, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    {"end", handle_end, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, handle_new},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"weft._core._Handle", sizeof(handle_t), 0, Py_TPFLAGS_DEFAULT, slots};

int wp_native_init(PyObject *module, wp_state_t *state)
{
    return wp_type_add(module, &spec, &state->handle_type) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
