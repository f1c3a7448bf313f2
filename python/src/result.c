/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results like an argument: a numpy array for one, a tensor for one, and for anything else a numpy
 * array where numpy can be imported, otherwise a memoryview.
 */
#include "python/src/array.h"
#include "python/src/device_array.h"
#include "python/src/memory.h"

#include <string.h>

/* numpy, imported when nothing did so yet: false where there is none. */
bool wp_numpy_import(wp_state_t *state)
{
    wp_numpy_t *numpy = &state->numpy;
    PyObject *module;
    if (numpy->array_type != NULL) {
        return true;
    }
    if (numpy->looked_for && !wp_numpy_find(state)) {
        return false;
    }
    numpy->looked_for = true;
    module = PyImport_ImportModule("numpy");
    if (module == NULL) {
        PyErr_Clear();
        return false;
    }
    Py_DECREF(module);
    return wp_numpy_find(state);
}

/* numpy.dtype(name), or that of ml_dtypes; a new reference. */
static PyObject *find_dtype(weft_dtype_t dtype)
{
    bool brain = dtype == WEFT_DTYPE_BF16;
    PyObject *module = PyImport_ImportModule(brain ? "ml_dtypes" : "numpy"), *numpy, *type, *result;
    if (!brain) {
        result =
            module != NULL ? PyObject_CallMethod(module, "dtype", "s", wp_dtype_name(dtype)) : NULL;
        Py_XDECREF(module);
        return result;
    }
    type = module != NULL ? PyObject_GetAttrString(module, "bfloat16") : NULL;
    Py_XDECREF(module);
    if (type == NULL) {
        PyErr_SetString(
            PyExc_TypeError,
            "a numpy array of bfloat16 requires the package ml_dtypes; or use a torch tensor");
        return NULL;
    }
    numpy = PyImport_ImportModule("numpy");
    result = numpy != NULL ? PyObject_CallMethod(numpy, "dtype", "O", type) : NULL;
    Py_XDECREF(numpy);
    Py_DECREF(type);
    return result;
}

PyObject *wp_numpy_dtype(wp_state_t *state, weft_dtype_t dtype)
{
    if (state->numpy.dtypes[dtype] == NULL) {
        state->numpy.dtypes[dtype] = find_dtype(dtype);
    }
    return state->numpy.dtypes[dtype];
}

PyObject *wp_shape_object(uint32_t rank, const int64_t *dims, bool plain)
{
    PyObject *shape;
    if (plain && rank == 1) {
        return PyLong_FromLongLong(dims[0]);
    }
    shape = PyTuple_New((Py_ssize_t)rank);
    for (uint32_t i = 0; shape != NULL && i < rank; i++) {
        PyObject *dim = PyLong_FromLongLong(dims[i]);
        if (dim == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, dim) < 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

static int new_numpy(wp_state_t *state, weft_dtype_t dtype, wp_array_t *out)
{
    PyObject *type = wp_numpy_dtype(state, dtype);
    PyObject *shape = type != NULL ? wp_shape_object(out->rank, out->dims, true) : NULL;
    PyObject *array =
        shape != NULL ? PyObject_CallFunctionObjArgs(state->numpy.empty, shape, type, NULL) : NULL;
    wp_array_t made;
    Py_XDECREF(shape);
    if (array == NULL) {
        return -1;
    }
    if (wp_array_get(state, array, "result", WP_WRITE, &made) < 0) {
        Py_DECREF(array);
        return -1;
    }
    Py_DECREF(array);
    *out = made;
    return 0;
}

static int new_torch(wp_state_t *state, const wp_array_t *like, bool same, wp_array_t *out)
{
    PyObject *tensor;
    if (same) {
        tensor = PyObject_CallFunctionObjArgs(state->torch.empty_like, like->object, NULL);
    } else {
        PyObject *shape = wp_shape_object(out->rank, out->dims, false);
        tensor = shape != NULL ? wp_torch_new_empty(state, like->object, shape) : NULL;
        Py_XDECREF(shape);
    }
    if (tensor == NULL) {
        return -1;
    }
    out->data = wp_torch_address(state, tensor);
    if (out->data == NULL && PyErr_Occurred() != NULL) {
        Py_DECREF(tensor);
        return -1;
    }
    out->kind = WP_TORCH;
    out->object = tensor;
    return 0;
}

/* Memory of our own, with the buffer protocol; the object is a memoryview of it. */
static int new_memory(wp_state_t *state, wp_array_t *out)
{
    wp_array_t made;
    PyObject *view, *memory = wp_memory_heap(state, out->dtype, out->rank, out->dims);
    if (memory == NULL) {
        return -1;
    }
    view = PyMemoryView_FromObject(memory);
    Py_DECREF(memory);
    if (view == NULL || wp_array_get(state, view, "result", WP_WRITE, &made) < 0) {
        Py_XDECREF(view);
        return -1;
    }
    Py_DECREF(view);
    made.dtype = out->dtype; /* a memoryview has no bfloat16 */
    *out = made;
    return 0;
}

int wp_array_new(wp_state_t *state, const wp_array_t *like, uint32_t rank, const int64_t *dims,
                 wp_array_t *out)
{
    bool same = dims == NULL;
    bool alike = same && like->packing == NULL; /* empty_like keeps an order of strides */
    memset(out, 0, sizeof *out);
    out->dtype = like->dtype;
    out->rank = same ? like->rank : rank;
    memcpy(out->dims, same ? like->dims : dims, out->rank * sizeof *out->dims);
    out->count = same ? like->count : 1;
    for (uint32_t i = 0; !same && i < rank; i++) {
        out->count *= (uint64_t)dims[i];
    }
    if (like->kind == WP_ON_DEVICE) {
        return wp_device_array_make(wp_device_array_context(like->object), out);
    }
    if (like->kind == WP_TORCH) {
        return new_torch(state, like, alike, out);
    }
    if (wp_numpy_import(state)) {
        return new_numpy(state, like->dtype, out);
    }
    return new_memory(state, out);
}
