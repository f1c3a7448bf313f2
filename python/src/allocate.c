/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft.empty: arrays on memory that peers reach.
 *
 * An array ends when the rank's last reference to it goes, on any thread and with the GIL. Only one
 * thread of a rank may allocate and free: so the end marks the allocation, and the next weft.empty,
 * which has the world's lock, frees it. Ranks need not free in the same order: memory is given out
 * again once all have.
 */
#include "python/src/array.h"
#include "python/src/device_array.h"
#include "python/src/memory.h"

#include <stdlib.h>

/* ---- giving back ---- */

static void free_gone(wp_context_t *context, wp_memories_t *memories)
{
    size_t kept = 0;
    for (size_t i = 0; i < memories->count; i++) {
        wp_allocation_t *allocation = &memories->allocations[i];
        if (allocation->gone) {
            weft_mem_free(context->context, allocation->address);
        } else {
            memories->allocations[kept++] = *allocation;
        }
    }
    memories->count = kept;
}

/* ---- taking ---- */

static int reserve(wp_memories_t *memories)
{
    size_t capacity = memories->capacity > 0 ? 2 * memories->capacity : 16;
    wp_allocation_t *larger;
    if (memories->count < memories->capacity) {
        return 0;
    }
    larger = realloc(memories->allocations, capacity * sizeof *larger);
    if (larger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memories->allocations = larger;
    memories->capacity = capacity;
    return 0;
}

static int take(wp_context_t *context, size_t bytes, void **out_address)
{
    weft_context_t *inner = context->context;
    weft_context_retain(inner);
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_mem_alloc(inner, bytes, out_address);
    weft_context_release(inner);
    PyEval_RestoreThread(thread);
    if (status < 0) {
        wp_raise(context->state, status);
        return -1;
    }
    return wp_memories_open(context) ? 0 : -1;
}

/* In the world, which other threads of this rank are kept out of. */
static int fill(wp_context_t *context, wp_memory_t *memory)
{
    wp_memories_t *memories = context->memories;
    void *address = NULL;
    free_gone(context, memories);
    if (reserve(memories) < 0 ||
        take(context, memory->bytes > 0 ? memory->bytes : 1, &address) < 0) {
        return -1; /* the library's, of a context that was closed meanwhile, goes with that */
    }
    memory->data = address;
    memory->number = memories->next_number++;
    memory->context = (wp_context_t *)Py_NewRef((PyObject *)context);
    context->borrowed++;
    memories->allocations[memories->count++] =
        (wp_allocation_t){.number = memory->number, .address = memory->data};
    return 0;
}

static wp_memory_t *allocate(wp_context_t *context, weft_dtype_t dtype, uint32_t rank,
                             const int64_t *dims)
{
    wp_state_t *state = context->state;
    wp_memory_t *memory = wp_memory_new(state, dtype, rank, dims);
    int result = -1;
    if (memory != NULL && wp_group_enter(state, context->world) == 0) {
        result = wp_memories_open(context) ? fill(context, memory) : -1;
        wp_group_exit(context->world);
    }
    if (result < 0) {
        Py_XDECREF((PyObject *)memory);
        return NULL;
    }
    return memory;
}

/* ---- for weft/memory.py ---- */

/* shape's dimensions, checked so that the bytes of them fit. */
static int dims_of(PyObject *shape, weft_dtype_t dtype, uint32_t *out_rank, int64_t *dims)
{
    int64_t bytes = (int64_t)weft_dtype_size_bytes(dtype);
    Py_ssize_t rank = PyTuple_Size(shape);
    if (rank > WP_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "shape has too many dimensions: %zd, at most %d", rank,
                     WP_MAX_DIMS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (PyErr_Occurred() != NULL) {
            return -1;
        }
        if (dims[i] < 0) {
            PyErr_Format(PyExc_ValueError, "shape: negative dimension %lld", (long long)dims[i]);
            return -1;
        }
        if (dims[i] > 0 && bytes > PY_SSIZE_T_MAX / dims[i]) {
            PyErr_Format(PyExc_ValueError, "shape: too large for the address space");
            return -1;
        }
        bytes *= dims[i] > 0 ? dims[i] : 1;
    }
    *out_rank = (uint32_t)rank;
    return 0;
}

static PyObject *as_array(wp_state_t *state, wp_memory_t *memory)
{
    PyObject *bits = wp_memory_array(state, memory);
    if (bits == NULL || memory->dtype != WEFT_DTYPE_BF16 || state->numpy.asarray == NULL) {
        return bits;
    }
    PyObject *type = wp_numpy_dtype(state, WEFT_DTYPE_BF16);
    PyObject *array = type != NULL ? PyObject_CallMethod(bits, "view", "O", type) : NULL;
    Py_DECREF(bits);
    return array;
}

/* _allocate(context, dtype, shape, plain): zeros in a DeviceArray if context is on a device; else
 * an array, or with plain the object with the buffer protocol below it. */
static PyObject *allocate_array(PyObject *module, PyObject *args)
{
    wp_state_t *state = wp_state_of(module);
    wp_array_t array = {.dtype = WEFT_DTYPE_NONE};
    PyObject *object, *shape;
    int dtype, plain;
    if (!PyArg_ParseTuple(args, "O!iO!p:_allocate", state->context_type, &object, &dtype,
                          &PyTuple_Type, &shape, &plain) ||
        dims_of(shape, (weft_dtype_t)dtype, &array.rank, array.dims) < 0) {
        return NULL;
    }
    wp_context_t *context = (wp_context_t *)object;
    array.dtype = (weft_dtype_t)dtype;
    if (wp_memories_of(context) == NULL) {
        return NULL;
    }
    if (weft_context_device(context->context) != NULL) {
        return wp_device_array_make(context, &array) < 0 ? NULL : array.object;
    }
    wp_memory_t *memory = allocate(context, array.dtype, array.rank, array.dims);
    if (memory == NULL || plain) {
        return (PyObject *)memory;
    }
    PyObject *result = as_array(state, memory);
    Py_DECREF((PyObject *)memory);
    return result;
}

/* _device(context): its device's name. */
static PyObject *device_of(PyObject *module, PyObject *object)
{
    wp_context_t *context = wp_context_of(wp_state_of(module), object);
    if (context == NULL || wp_context_open(context) == NULL) {
        return NULL;
    }
    const weft_device_t *device = weft_context_device(context->context);
    return PyUnicode_FromString(device != NULL ? device->ops->name : "cpu");
}

static PyMethodDef functions[] = {
    {"_allocate", allocate_array, METH_VARARGS, NULL},
    {"_device", device_of, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int wp_allocate_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
