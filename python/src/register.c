/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays whose memory peers reach from weft.register on, for weft/memory.py. */
#include "python/src/memory.h"

#include <stdlib.h>
#include <unistd.h>

static size_t bytes_of(const wp_array_t *array)
{
    return (size_t)array->count * weft_dtype_size_bytes(array->dtype);
}

/* In the world, which other threads of this rank are kept out of. Waits for all ranks. */
static int adopt(wp_context_t *context, const wp_array_t *array)
{
    weft_context_t *inner = wp_context_open(context);
    if (inner == NULL) {
        return -1;
    }
    weft_context_retain(inner);
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_mem_register(inner, array->data, bytes_of(array));
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(context->state, status);
    } else if (!wp_memories_open(context)) { /* another thread closes it meanwhile */
        weft_mem_unregister(inner, array->data);
        status = WEFT_ERR_STATE;
    }
    weft_context_release(inner);
    return status < 0 ? -1 : 0;
}

static PyObject *add(wp_context_t *context, wp_registration_t *registration)
{
    int result;
    if (wp_group_enter(context->state, context->world) < 0) {
        return NULL;
    }
    result = adopt(context, &registration->array);
    wp_group_exit(context->world);
    if (result < 0) {
        return NULL;
    }
    registration->next = context->memories->registrations;
    context->memories->registrations = registration;
    return Py_NewRef(Py_None);
}

/* (context, array), which the caller owns. */
static wp_context_t *read_arguments(PyObject *module, PyObject *args, wp_array_t *array)
{
    wp_state_t *state = wp_state_of(module);
    PyObject *context, *object;
    if (!PyArg_ParseTuple(args, "O!O", state->context_type, &context, &object) ||
        wp_memories_of((wp_context_t *)context) == NULL ||
        wp_array_get(state, object, "array", WP_WRITE, array) < 0) {
        return NULL;
    }
    return (wp_context_t *)context;
}

static PyObject *register_array(PyObject *module, PyObject *args)
{
    wp_registration_t *registration = calloc(1, sizeof *registration);
    if (registration == NULL) {
        return PyErr_NoMemory();
    }
    wp_context_t *context = read_arguments(module, args, &registration->array);
    if (context == NULL) {
        free(registration);
        return NULL;
    }
    PyObject *result = add(context, registration);
    if (result == NULL) {
        wp_array_release(&registration->array);
        free(registration);
    }
    return result;
}

/* Takes the registration of address out of the list; NULL: there is none. */
static wp_registration_t *take(wp_memories_t *memories, const void *address)
{
    wp_registration_t **link = &memories->registrations;
    while (*link != NULL) {
        wp_registration_t *registration = *link;
        if (registration->array.data == address) {
            *link = registration->next;
            return registration;
        }
        link = &registration->next;
    }
    return NULL;
}

static PyObject *unregister_array(PyObject *module, PyObject *args)
{
    wp_array_t array;
    wp_context_t *context = read_arguments(module, args, &array);
    if (context == NULL) {
        return NULL;
    }
    wp_state_t *state = context->state;
    void *address = array.data;
    wp_array_release(&array);
    if (context->process != (int64_t)getpid()) { /* which has not inherited the pages */
        return wp_raise_text(state, WEFT_ERR_STATE,
                             "forked child of rank %u: the parent's context cannot be used after "
                             "fork",
                             (unsigned)context->rank);
    }
    if (wp_group_enter(state, context->world) < 0) {
        return NULL;
    }
    wp_registration_t *registration =
        context->memories != NULL ? take(context->memories, address) : NULL;
    weft_status_t status =
        registration != NULL ? weft_mem_unregister(context->context, address) : WEFT_OK;
    wp_group_exit(context->world);
    if (registration == NULL) {
        PyErr_SetString(PyExc_ValueError, "array is not registered");
        return NULL;
    }
    PyObject *result = status < 0 ? wp_raise(state, status) : Py_NewRef(Py_None);
    wp_array_release(&registration->array);
    free(registration);
    return result;
}

static PyMethodDef functions[] = {
    {"_register", register_array, METH_VARARGS, NULL},
    {"_unregister", unregister_array, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int wp_register_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
