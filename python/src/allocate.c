/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft.empty and weft.zeros: arrays on memory that peers reach.
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
#include <string.h>

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

/* ---- arguments ---- */

static int dim_of(PyObject *object, int64_t *out)
{
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "shape must be an integer or a sequence of them, not %R",
                         object);
        }
        return -1;
    }
    *out = PyLong_AsSsize_t(number);
    Py_DECREF(number);
    if (*out == -1 && PyErr_Occurred() != NULL) {
        return -1;
    }
    if (*out < 0) {
        PyErr_Format(PyExc_ValueError, "shape: negative dimension %lld", (long long)*out);
        return -1;
    }
    return 0;
}

/* shape's dimensions, checked so that the bytes of them fit. */
static int shape_of(PyObject *shape, weft_dtype_t dtype, uint32_t *out_rank, int64_t *dims)
{
    int64_t bytes = (int64_t)weft_dtype_size_bytes(dtype);
    Py_ssize_t rank = PyIndex_Check(shape) ? -1 : PySequence_Size(shape);
    if (rank < 0) {
        PyErr_Clear();
        rank = 1;
        if (dim_of(shape, &dims[0]) < 0) {
            return -1;
        }
    } else if (rank > WP_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "shape has too many dimensions: %zd, at most %d", rank,
                     WP_MAX_DIMS);
        return -1;
    } else {
        for (Py_ssize_t i = 0; i < rank; i++) {
            PyObject *item = PySequence_GetItem(shape, i);
            int result = item != NULL ? dim_of(item, &dims[i]) : -1;
            Py_XDECREF(item);
            if (result < 0) {
                return -1;
            }
        }
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        int64_t most = dims[i] > 0 ? PY_SSIZE_T_MAX / dims[i] : PY_SSIZE_T_MAX;
        if (bytes > most) {
            PyErr_Format(PyExc_ValueError, "shape: too large for the address space");
            return -1;
        }
        bytes *= dims[i] > 0 ? dims[i] : 1;
    }
    *out_rank = (uint32_t)rank;
    return 0;
}

/* ---- the array ---- */

static bool is_torch_dtype(wp_state_t *state, PyObject *dtype)
{
    return dtype != NULL && wp_torch_find(state) && state->torch.dtypes[WEFT_DTYPE_F32] != NULL &&
           Py_TYPE(dtype) == Py_TYPE(state->torch.dtypes[WEFT_DTYPE_F32]);
}

/* torch.frombuffer(memory, dtype=dtype).reshape(shape), which keeps memory. */
static PyObject *as_tensor(wp_memory_t *memory, PyObject *dtype)
{
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *function =
        torch != NULL ? PyObject_GetAttrString(torch, memory->bytes > 0 ? "frombuffer" : "empty")
                      : NULL;
    PyObject *arguments = memory->bytes > 0 ? PyTuple_Pack(1, memory) : PyTuple_New(1);
    PyObject *keywords = Py_BuildValue("{sO}", "dtype", dtype),
             *shape = wp_shape_object(memory->rank, memory->dims, false);
    PyObject *flat = NULL, *result = NULL;
    if (function != NULL && arguments != NULL && keywords != NULL && shape != NULL) {
        if (memory->bytes == 0) { /* frombuffer does not take it */
            PyTuple_SetItem(arguments, 0, Py_NewRef(shape));
        }
        flat = PyObject_Call(function, arguments, keywords);
        result = flat != NULL ? PyObject_CallMethod(flat, "reshape", "(O)", shape) : NULL;
    }
    Py_XDECREF(flat);
    Py_XDECREF(shape);
    Py_XDECREF(keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(function);
    Py_XDECREF(torch);
    return result;
}

static PyObject *as_numpy(wp_state_t *state, wp_memory_t *memory)
{
    PyObject *array = PyObject_CallFunctionObjArgs(state->numpy.asarray, (PyObject *)memory, NULL);
    if (array != NULL && memory->dtype == WEFT_DTYPE_BF16) {
        PyObject *bits = array;
        array = PyObject_CallMethod(bits, "view", "O", state->numpy.dtypes[WEFT_DTYPE_BF16]);
        Py_DECREF(bits);
    }
    return array;
}

/* Whether name, which may be left out, is that of the context's device: "cpu", "opencl:0", or
 * "opencl", one of that plugin's. */
static int check_device(wp_context_t *context, PyObject *name)
{
    if (name == NULL || name == Py_None) {
        return 0;
    }
    const weft_device_t *device = weft_context_device(context->context);
    const char *own = device != NULL ? device->ops->name : "cpu";
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (text == NULL) {
        PyErr_Format(PyExc_TypeError, "device must be a string, not %R", (PyObject *)Py_TYPE(name));
        return -1;
    }
    size_t length = strlen(text);
    if (strncmp(own, text, length) == 0 && (own[length] == '\0' || own[length] == ':')) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "device: %R, the context is on '%s'", name, own);
    return -1;
}

static PyObject *empty_on_device(wp_context_t *context, weft_dtype_t dtype, uint32_t rank,
                                 const int64_t *dims)
{
    wp_array_t array = {.dtype = dtype, .rank = rank};
    memcpy(array.dims, dims, rank * sizeof *dims);
    return wp_device_array_make(context, &array) < 0 ? NULL : array.object;
}

static PyObject *empty(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords)
{
    static const char *const names[] = {"shape", "dtype", "context", "device", NULL};
    wp_state_t *state = wp_state_of(module);
    wp_context_t *context;
    wp_memory_t *memory;
    PyObject *places[4], *result;
    int64_t dims[WP_MAX_DIMS];
    uint32_t rank = 0;
    weft_dtype_t dtype;
    if (wp_parse("empty", args, count, keywords, names, 1, 3, places) < 0 ||
        wp_dtype(state, places[1], &dtype) < 0 || shape_of(places[0], dtype, &rank, dims) < 0) {
        return NULL;
    }
    context = wp_context_of(state, places[2]);
    if (context == NULL || wp_context_open(context) == NULL ||
        check_device(context, places[3]) < 0) {
        return NULL;
    }
    if (weft_context_device(context->context) != NULL) {
        return empty_on_device(context, dtype, rank, dims);
    }
    bool tensor = is_torch_dtype(state, places[1]), array = !tensor && wp_numpy_import(state);
    if ((array && wp_numpy_dtype(state, dtype) == NULL) || wp_memories_of(context) == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)context);
    memory = allocate(context, dtype, rank, dims);
    Py_DECREF((PyObject *)context);
    if (memory == NULL) {
        return NULL;
    }
    result = tensor  ? as_tensor(memory, places[1])
             : array ? as_numpy(state, memory)
                     : PyMemoryView_FromObject((PyObject *)memory);
    Py_DECREF((PyObject *)memory);
    return result;
}

#define ARRAY_DOC                                                                                  \
    "A numpy array of zeros on memory that peers reach: collectives on it, or on parts of it, "    \
    "read and write\n"                                                                             \
    "it in place, without copies in between.\n\n"                                                  \
    "Collective over the world of context (a Context, a Group of it, or None: weft.init's): all "  \
    "ranks ask for\n"                                                                              \
    "the same number of bytes. dtype may be a name, a numpy type, or torch's, which makes it a "   \
    "tensor. Without\n"                                                                            \
    "numpy it is a memoryview. If the context is on a device it is a DeviceArray, and the call "   \
    "is "                                                                                          \
    "not collective;\n"                                                                            \
    "device, if given, must name that device. The memory is taken back when all ranks have "       \
    "dropped their "                                                                               \
    "arrays, at the next\n"                                                                        \
    "empty or zeros; it stays valid after finalize. A forked child must not touch it.\n"           \
    "Raises TypeError, ValueError, WeftMismatchError, WeftNoMemoryError, WeftStateError."

static PyMethodDef functions[] = {
    {"empty", (PyCFunction)(void (*)(void))empty, METH_FASTCALL | METH_KEYWORDS,
     "empty($module, shape, dtype='float32', context=None, *, device=None)\n--\n\n" ARRAY_DOC},
    /* weft_mem_alloc gives zeroed memory */
    {"zeros", (PyCFunction)(void (*)(void))empty, METH_FASTCALL | METH_KEYWORDS,
     "zeros($module, shape, dtype='float32', context=None, *, device=None)\n--\n\n" ARRAY_DOC},
    {NULL, NULL, 0, NULL},
};

int wp_allocate_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
