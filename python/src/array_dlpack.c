/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory by DLPack: obj.__dlpack__() is a capsule around the struct below. The capsule is kept as
 * long as the memory is in use, and never marked as consumed: its own destructor gives the struct
 * back.
 */
#include "python/src/dlpack.h"

#define CUDA_HOST 3 /* a device type: pinned */

/* code, bits, type; codes are int, uint, float, -, bfloat, -, bool */
static const struct {
    uint8_t code, bits;
    weft_dtype_t dtype;
} types[] = {
    {0, 8, WEFT_DTYPE_I8},   {0, 16, WEFT_DTYPE_I16}, {0, 32, WEFT_DTYPE_I32},
    {0, 64, WEFT_DTYPE_I64}, {1, 8, WEFT_DTYPE_U8},   {1, 16, WEFT_DTYPE_U16},
    {1, 32, WEFT_DTYPE_U32}, {1, 64, WEFT_DTYPE_U64}, {2, 16, WEFT_DTYPE_F16},
    {2, 32, WEFT_DTYPE_F32}, {2, 64, WEFT_DTYPE_F64}, {4, 16, WEFT_DTYPE_BF16},
    {6, 8, WEFT_DTYPE_BOOL},
};

static weft_dtype_t dtype_of(const wp_dlpack_tensor_t *tensor)
{
    for (size_t i = 0; tensor->lanes == 1 && i < sizeof types / sizeof types[0]; i++) {
        if (types[i].code == tensor->code && types[i].bits == tensor->bits) {
            return types[i].dtype;
        }
    }
    return WEFT_DTYPE_NONE;
}

void wp_dlpack_set_dtype(wp_dlpack_tensor_t *tensor, weft_dtype_t dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].dtype == dtype) {
            tensor->code = types[i].code;
            tensor->bits = types[i].bits;
            tensor->lanes = 1;
        }
    }
}

const wp_dlpack_tensor_t *wp_dlpack_tensor_of(PyObject *capsule, bool *out_writable)
{
    *out_writable = true;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const wp_dlpack_versioned_t *versioned =
            PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (versioned == NULL || versioned->major != 1) {
            PyErr_SetString(PyExc_BufferError, "unsupported DLPack version");
            return NULL;
        }
        *out_writable = (versioned->flags & WP_DLPACK_READ_ONLY) == 0;
        return &versioned->tensor;
    }
    return PyCapsule_GetPointer(capsule, "dltensor");
}

wp_dlpack_read_t wp_dlpack_read_of(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const wp_dlpack_exchange_t *exchange =
        capsule != NULL ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* the struct stays for good */
    PyErr_Clear();
    return exchange != NULL && exchange->major == 1 ? exchange->read : NULL;
}

PyObject *wp_dlpack_export_of(PyObject *object)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = PyTuple_New(0), *keywords = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    PyObject *capsule = NULL;
    if (method != NULL && none != NULL && keywords != NULL) {
        capsule = PyObject_Call(method, none, keywords);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_Call(method, none, NULL);
        }
    }
    Py_XDECREF(keywords);
    Py_XDECREF(none);
    Py_XDECREF(method);
    return capsule;
}

long wp_dlpack_device_of(PyObject *object)
{
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    PyObject *type = device != NULL ? PySequence_GetItem(device, 0) : NULL;
    long code = type != NULL ? PyLong_AsLong(type) : -1;
    Py_XDECREF(type);
    Py_XDECREF(device);
    return PyErr_Occurred() != NULL ? -1 : code;
}

static int check_device(PyObject *object, const char *argument)
{
    long code = wp_dlpack_device_of(object);
    if (PyErr_Occurred() != NULL) {
        return -1;
    }
    if (code != WP_DLPACK_CPU && code != CUDA_HOST) {
        PyErr_Format(PyExc_ValueError,
                     "%s is on a device (DLPack device type %ld): host memory is required, or what "
                     "weft.from_dlpack makes of it",
                     argument, code);
        return -1;
    }
    return 0;
}

static bool contiguous(const wp_dlpack_tensor_t *tensor)
{
    int64_t expected = 1;
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->dims[i] == 0) {
            return true;
        }
    }
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->strides != NULL && tensor->dims[i] != 1 && tensor->strides[i] != expected) {
            return false;
        }
        expected *= tensor->dims[i];
    }
    return true;
}

int wp_dlpack_fill(const wp_dlpack_tensor_t *tensor, bool writable, const char *argument,
                   wp_array_flags_t flags, wp_array_t *out)
{
    out->dtype = dtype_of(tensor);
    if (out->dtype == WEFT_DTYPE_NONE) {
        PyErr_Format(PyExc_TypeError,
                     "%s has elements of DLPack's type %d of %d bits: " WP_TYPES_TEXT, argument,
                     (int)tensor->code, (int)tensor->bits);
        return -1;
    }
    if ((flags & WP_WRITE) && !writable) {
        PyErr_Format(PyExc_ValueError, "%s is read-only", argument);
        return -1;
    }
    if (tensor->rank < 0 || tensor->rank > WP_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s has too many dimensions: %d, at most %d", argument,
                     (int)tensor->rank, WP_MAX_DIMS);
        return -1;
    }
    out->rank = (uint32_t)tensor->rank;
    out->count = 1;
    for (uint32_t i = 0; i < out->rank; i++) {
        int64_t bytes;
        out->dims[i] = tensor->dims[i];
        if (tensor->dims[i] < 0 ||
            __builtin_mul_overflow(out->count, (uint64_t)tensor->dims[i], &out->count) ||
            __builtin_mul_overflow(out->count, weft_dtype_size_bytes(out->dtype), &bytes)) {
            PyErr_Format(PyExc_ValueError, "%s has invalid dimensions", argument);
            return -1;
        }
    }
    if (!contiguous(tensor)) {
        PyErr_Format(PyExc_ValueError, "%s has memory that is not contiguous", argument);
        return -1;
    }
    out->data = tensor->data != NULL ? (char *)tensor->data + tensor->byte_offset : NULL;
    return 0;
}

int wp_array_from_dlpack(PyObject *object, const char *argument, wp_array_flags_t flags,
                         wp_array_t *out)
{
    const wp_dlpack_tensor_t *tensor;
    PyObject *capsule;
    bool writable;
    if (check_device(object, argument) < 0) {
        return -1;
    }
    capsule = wp_dlpack_export_of(object);
    tensor = capsule != NULL ? wp_dlpack_tensor_of(capsule, &writable) : NULL;
    if (tensor == NULL || wp_dlpack_fill(tensor, writable, argument, flags, out) < 0) {
        Py_XDECREF(capsule);
        return -1;
    }
    out->kind = WP_DLPACK;
    out->capsule = capsule;
    return 0;
}
