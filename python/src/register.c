/* SPDX-License-Identifier: Apache-2.0 */
/* weft.register and weft.unregister: arrays whose memory peers reach from then on. */
#include "python/src/memory.h"

#include <stdlib.h>
#include <unistd.h>

/* A tensor's memory can be replaced behind its back (t.data = ..): another tensor on it keeps it.
 */
static int keep_storage(wp_array_t *array)
{
    PyObject *alias;
    if (array->kind != WP_TORCH) {
        return 0;
    }
    alias = PyObject_CallMethod(array->object, "detach", NULL);
    if (alias == NULL) {
        return -1;
    }
    Py_DECREF(array->object);
    array->object = alias;
    return 0;
}

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

/* The context is owned by the caller, as is the array. */
static int read_arguments(const char *function, PyObject *module, PyObject *const *args,
                          Py_ssize_t count, PyObject *keywords, wp_array_t *array,
                          wp_context_t **out_context)
{
    static const char *const names[] = {"array", "context", NULL};
    wp_state_t *state = wp_state_of(module);
    PyObject *places[2];
    if (wp_parse(function, args, count, keywords, names, 1, 2, places) < 0) {
        return -1;
    }
    wp_context_t *context = wp_context_of(state, places[1]);
    if (context == NULL || wp_memories_of(context) == NULL) {
        return -1;
    }
    Py_INCREF((PyObject *)context); /* an array's methods may end the world */
    if (wp_array_get(state, places[0], "array", WP_WRITE, array) < 0) {
        Py_DECREF((PyObject *)context);
        return -1;
    }
    *out_context = context;
    return 0;
}

static PyObject *register_array(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    wp_context_t *context;
    PyObject *result;
    wp_registration_t *registration = calloc(1, sizeof *registration);
    if (registration == NULL) {
        return PyErr_NoMemory();
    }
    if (read_arguments("register", module, args, count, keywords, &registration->array, &context) <
        0) {
        free(registration);
        return NULL;
    }
    result = keep_storage(&registration->array) == 0 ? add(context, registration) : NULL;
    Py_DECREF((PyObject *)context);
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

static PyObject *unregister_array(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords)
{
    wp_context_t *context;
    wp_registration_t *registration;
    wp_array_t array;
    if (read_arguments("unregister", module, args, count, keywords, &array, &context) < 0) {
        return NULL;
    }
    if (context->process != (int64_t)getpid()) { /* which has not inherited the pages */
        wp_raise_text(context->state, WEFT_ERR_STATE,
                      "forked child of rank %u: the parent's context cannot be used after fork",
                      (unsigned)context->rank);
        wp_array_release(&array);
        Py_DECREF((PyObject *)context);
        return NULL;
    }
    if (wp_group_enter(context->state, context->world) < 0) {
        wp_array_release(&array);
        Py_DECREF((PyObject *)context);
        return NULL;
    }
    registration = context->memories != NULL ? take(context->memories, array.data) : NULL;
    weft_status_t status =
        registration != NULL ? weft_mem_unregister(context->context, array.data) : WEFT_OK;
    wp_group_exit(context->world);
    wp_array_release(&array);
    Py_DECREF((PyObject *)context);
    if (registration == NULL) {
        PyErr_SetString(PyExc_ValueError, "array is not registered");
        return NULL;
    }
    PyObject *result = status < 0 ? wp_raise(wp_state_of(module), status) : Py_NewRef(Py_None);
    wp_array_release(&registration->array);
    free(registration);
    return result;
}

static PyMethodDef functions[] = {
    {"register", (PyCFunction)(void (*)(void))register_array, METH_FASTCALL | METH_KEYWORDS,
     "register($module, array, context=None)\n--\n\n"
     "Adopts array's memory in place, so that peers reach it: contents and address stay, and "
     "collectives on it\n"
     "or on parts of it go without copies in between (but for the partial pages at its ends).\n\n"
     "Collective over the world of context (a Context, a Group of it, or None: weft.init's); sizes "
     "may differ.\n"
     "Nobody may use the memory during the call, and array is kept until unregister, or until the "
     "context is\n"
     "closed. Forked children do not inherit its pages.\n"
     "Raises TypeError, ValueError, WeftArgumentError (no elements, or registered already), "
     "WeftNoMemoryError."},
    {"unregister", (PyCFunction)(void (*)(void))unregister_array, METH_FASTCALL | METH_KEYWORDS,
     "unregister($module, array, context=None)\n--\n\n"
     "Makes array's memory private again, contents kept. Not collective: each rank does it "
     "when it likes.\n"
     "Raises ValueError when it is not registered."},
    {NULL, NULL, 0, NULL},
};

int wp_register_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
