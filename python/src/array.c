/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of any object: which kind it is, and what numpy and the buffer protocol say about it.
 * array_torch.c and array_dlpack.c do the same for their kinds.
 *
 * numpy and torch are never imported here: an object of theirs cannot come along before they are,
 * so sys.modules tells.
 */
#include "python/src/array.h"
#include "python/src/device_array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_FLAGS (PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)

/* Signed, unsigned and floating types by log2 of their bytes. */
static const weft_dtype_t signed_types[] = {WEFT_DTYPE_I8, WEFT_DTYPE_I16, WEFT_DTYPE_I32,
                                            WEFT_DTYPE_I64};
static const weft_dtype_t unsigned_types[] = {WEFT_DTYPE_U8, WEFT_DTYPE_U16, WEFT_DTYPE_U32,
                                              WEFT_DTYPE_U64};

static weft_dtype_t by_size(const weft_dtype_t *types, Py_ssize_t bytes)
{
    switch (bytes) {
    case 1:
        return types[0];
    case 2:
        return types[1];
    case 4:
        return types[2];
    case 8:
        return types[3];
    default:
        return WEFT_DTYPE_NONE;
    }
}

/* A format of the struct module, as the buffer protocol uses it; NULL is bytes. */
static weft_dtype_t dtype_of_format(const char *format, Py_ssize_t bytes)
{
    if (format == NULL) {
        return bytes == 1 ? WEFT_DTYPE_U8 : WEFT_DTYPE_NONE;
    }
    if (*format == '@' || *format == '=' || *format == '<') {
        format++; /* hosts are little-endian: native and '<' are the same but for sizes */
    }
    if (format[0] == '\0' || format[1] != '\0') {
        return WEFT_DTYPE_NONE;
    }
    switch (format[0]) {
    case 'f':
        return bytes == 4 ? WEFT_DTYPE_F32 : WEFT_DTYPE_NONE;
    case 'd':
        return bytes == 8 ? WEFT_DTYPE_F64 : WEFT_DTYPE_NONE;
    case 'e':
        return bytes == 2 ? WEFT_DTYPE_F16 : WEFT_DTYPE_NONE;
    case '?':
        return bytes == 1 ? WEFT_DTYPE_BOOL : WEFT_DTYPE_NONE;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
        return by_size(signed_types, bytes);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
        return by_size(unsigned_types, bytes);
    default:
        return WEFT_DTYPE_NONE;
    }
}

int wp_array_shape(const char *argument, wp_array_t *out, Py_ssize_t rank, const Py_ssize_t *dims)
{
    if (rank > WP_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s has too many dimensions: %zd, at most %d", argument,
                     rank, WP_MAX_DIMS);
        return -1;
    }
    out->rank = (uint32_t)rank;
    for (Py_ssize_t i = 0; i < rank; i++) {
        out->dims[i] = dims[i];
    }
    return 0;
}

static int from_buffer(PyObject *object, const char *argument, wp_array_flags_t flags,
                       wp_array_t *out);

/* -1: an exception, of the exporter. */
static int get_view(PyObject *object, wp_array_flags_t flags, Py_buffer *view)
{
    int writes = (flags & WP_WRITE) ? PyBUF_WRITABLE : 0;
    int status = PyObject_GetBuffer(object, view, BUFFER_FLAGS | writes);
    if (status < 0 && (flags & WP_PACK)) {
        PyErr_Clear();
        status = PyObject_GetBuffer(object, view, PyBUF_STRIDES | PyBUF_FORMAT | writes);
    }
    return status;
}

static int pack_view(const char *argument, wp_array_flags_t flags, wp_array_t *out,
                     const Py_buffer *view)
{
    int64_t strides[WP_MAX_DIMS];
    if (!(flags & WP_PACK) || PyBuffer_IsContiguous(view, 'C')) {
        return 0;
    }
    for (int i = 0; i < view->ndim; i++) {
        strides[i] = view->strides[i];
    }
    return wp_array_pack(argument, flags, out, strides);
}

/* What a view says, into out. */
static int from_view(const char *argument, wp_array_flags_t flags, wp_array_t *out,
                     const Py_buffer *view)
{
    out->dtype = dtype_of_format(view->format, view->itemsize);
    if (out->dtype == WEFT_DTYPE_NONE) {
        const char *format = view->format != NULL ? view->format : "";
        if (*format == '>' || *format == '!') {
            PyErr_Format(PyExc_TypeError,
                         "%s has elements of format '%s', big-endian: convert it first", argument,
                         format);
        } else {
            PyErr_Format(PyExc_TypeError,
                         "%s has elements of format '%s' and %zd bytes: " WP_TYPES_TEXT, argument,
                         format, view->itemsize);
        }
        return -1;
    }
    out->data = view->buf;
    out->count = (uint64_t)(view->len / view->itemsize);
    if (view->shape == NULL && view->ndim > 0) {
        return wp_array_shape(argument, out, 1, (Py_ssize_t[]){(Py_ssize_t)out->count});
    }
    return wp_array_shape(argument, out, view->ndim, view->shape) < 0
               ? -1
               : pack_view(argument, flags, out, view);
}

/* ---- numpy ---- */

/* Looks for numpy's array type among the modules that are imported: true once it is known. */
bool wp_numpy_find(wp_state_t *state)
{
    wp_numpy_t *numpy = &state->numpy;
    PyObject *name, *module;
    if (numpy->array_type != NULL) {
        return true;
    }
    name = PyUnicode_FromString("numpy");
    module = name != NULL ? PyImport_GetModule(name) : NULL;
    Py_XDECREF(name);
    if (module == NULL) {
        PyErr_Clear();
        return false;
    }
    /* The type comes last: another thread that sees it finds the others. */
    numpy->empty = PyObject_GetAttrString(module, "empty");
    numpy->asarray = PyObject_GetAttrString(module, "asarray");
    if (numpy->empty != NULL && numpy->asarray != NULL) {
        numpy->array_type = PyObject_GetAttrString(module, "ndarray");
    }
    PyErr_Clear(); /* half imported */
    Py_DECREF(module);
    return numpy->array_type != NULL;
}

/* "bfloat16" and so on of array.dtype.name; an empty text where there is none. */
static void dtype_text(PyObject *array, char *buffer, size_t bytes)
{
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    PyObject *text = dtype != NULL ? PyObject_Str(dtype) : NULL;
    PyObject *encoded = text != NULL ? PyUnicode_AsUTF8String(text) : NULL;
    const char *chars = encoded != NULL ? PyBytes_AsString(encoded) : NULL;
    snprintf(buffer, bytes, "%s", chars != NULL ? chars : "");
    PyErr_Clear();
    Py_XDECREF(encoded);
    Py_XDECREF(text);
    Py_XDECREF(dtype);
}

/* A flag of array.flags. */
static bool flag_is(PyObject *array, const char *name, bool otherwise)
{
    PyObject *flags = PyObject_GetAttrString(array, "flags");
    PyObject *value = flags != NULL ? PyObject_GetAttrString(flags, name) : NULL;
    int is = value != NULL ? PyObject_IsTrue(value) : -1;
    PyErr_Clear();
    Py_XDECREF(value);
    Py_XDECREF(flags);
    return is < 0 ? otherwise : is != 0;
}

/*
 * numpy's buffers leave out types that struct does not know: bfloat16 of ml_dtypes by the bits,
 * which are kept: a subclass may make them anew.
 */
static int from_bfloat16(PyObject *object, const char *argument, wp_array_flags_t flags,
                         wp_array_t *out)
{
    PyObject *bits = PyObject_CallMethod(object, "view", "s", "uint16");
    int result = bits != NULL ? from_buffer(bits, argument, flags, out) : -1;
    Py_XDECREF(bits);
    if (result == 0 && out->dtype != WEFT_DTYPE_U16) {
        wp_array_release(out);
        PyErr_Format(PyExc_TypeError, "%s of bfloat16 has no view of uint16", argument);
        return -1;
    }
    out->kind = WP_NUMPY;
    out->dtype = WEFT_DTYPE_BF16;
    return result;
}

/* Why numpy did not give a buffer; the exception that is set says it in numpy's words. */
static int numpy_refused(PyObject *object, const char *argument, wp_array_flags_t flags,
                         wp_array_t *out)
{
    char dtype[64];
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return -1;
    }
    PyErr_Clear();
    dtype_text(object, dtype, sizeof dtype);
    if ((flags & WP_WRITE) && !flag_is(object, "writeable", true)) {
        PyErr_Format(PyExc_ValueError, "%s is a numpy array that is read-only", argument);
        return -1;
    }
    if (!(flags & WP_PACK) && !flag_is(object, "c_contiguous", true)) {
        PyErr_Format(
            PyExc_ValueError,
            "%s is a numpy array whose memory is not contiguous: numpy.ascontiguousarray copies it",
            argument);
        return -1;
    }
    if (strcmp(dtype, "bfloat16") == 0) {
        return from_bfloat16(object, argument, flags, out);
    }
    PyErr_Format(PyExc_TypeError, "%s is a numpy array of %s: " WP_TYPES_TEXT, argument, dtype);
    return -1;
}

static int from_numpy(PyObject *object, const char *argument, wp_array_flags_t flags,
                      wp_array_t *out)
{
    Py_buffer view;
    out->kind = WP_NUMPY;
    if (get_view(object, flags, &view) < 0) {
        return numpy_refused(object, argument, flags, out);
    }
    out->dtype = dtype_of_format(view.format, view.itemsize);
    if (out->dtype == WEFT_DTYPE_NONE) {
        char dtype[64];
        bool swapped = view.format != NULL && view.format[0] == '>';
        PyBuffer_Release(&view);
        dtype_text(object, dtype, sizeof dtype);
        PyErr_Format(PyExc_TypeError, "%s is a numpy array of %s%s: " WP_TYPES_TEXT, argument,
                     dtype, swapped ? ", big-endian" : "");
        return -1;
    }
    out->data = view.buf;
    out->count = (uint64_t)(view.len / view.itemsize);
    if (wp_array_shape(argument, out, view.ndim, view.shape) < 0 ||
        pack_view(argument, flags, out, &view) < 0) {
        PyBuffer_Release(&view);
        return -1;
    }
    /* The array itself keeps its memory: a reference to it is enough, and cheaper to move about. */
    PyBuffer_Release(&view);
    return 0;
}

/* ---- any other buffer ---- */

/* Why there was no buffer: it cannot be written, or it has gaps. */
static int buffer_refused(PyObject *object, const char *argument)
{
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return -1;
    }
    PyErr_Clear();
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    const char *why = "read-only";
    Py_buffer view;
    if (name == NULL) {
        return -1;
    }
    if (PyObject_GetBuffer(object, &view, BUFFER_FLAGS) < 0) {
        PyErr_Clear();
        why = "not contiguous";
    } else {
        PyBuffer_Release(&view);
    }
    PyErr_Format(PyExc_ValueError, "%s is a %U whose memory is %s", argument, name, why);
    Py_DECREF(name);
    return -1;
}

static int from_buffer(PyObject *object, const char *argument, wp_array_flags_t flags,
                       wp_array_t *out)
{
    Py_buffer *view = PyMem_Malloc(sizeof *view);
    if (view == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->kind = WP_BUFFER;
    if (get_view(object, flags, view) < 0) {
        PyMem_Free(view);
        return buffer_refused(object, argument);
    }
    if (from_view(argument, flags, out, view) < 0) {
        PyBuffer_Release(view);
        PyMem_Free(view);
        return -1;
    }
    out->buffer = view;
    return 0;
}

static int not_an_array(PyObject *object, const char *argument)
{
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    const char *hint = PyList_Check(object) || PyTuple_Check(object) || PyNumber_Check(object)
                           ? ": numpy.asarray makes one"
                           : "";
    if (name != NULL) {
        PyErr_Format(
            PyExc_TypeError,
            "%s must have memory (a numpy array, a torch tensor, a buffer, or DLPack), not %U%s",
            argument, name, hint);
        Py_DECREF(name);
    }
    return -1;
}

/* 1: this kind; 0: another; -1: failed. */
static int look(wp_state_t *state, PyObject *object, const char *argument, wp_array_flags_t flags,
                wp_array_t *out)
{
    PyTypeObject *type = Py_TYPE(object);
    if ((PyObject *)type == state->numpy.array_type) {
        return from_numpy(object, argument, flags, out);
    }
    if ((PyObject *)type == state->torch.tensor_type) {
        return wp_array_from_torch(state, object, argument, flags, out);
    }
    if (wp_numpy_find(state) && PyType_IsSubtype(type, (PyTypeObject *)state->numpy.array_type)) {
        return from_numpy(object, argument, flags, out);
    }
    if (type == state->device_array_type) {
        return wp_array_from_device(object, argument, flags, out);
    }
    if (PyObject_CheckBuffer(object)) {
        return from_buffer(object, argument, flags, out);
    }
    if (wp_torch_find(state) && PyType_IsSubtype(type, (PyTypeObject *)state->torch.tensor_type)) {
        return wp_array_from_torch(state, object, argument, flags, out);
    }
    if (PyObject_HasAttrString(object, "__dlpack__")) {
        return wp_array_from_dlpack(object, argument, flags, out);
    }
    return not_an_array(object, argument);
}

/* As C wants it; numpy makes arrays anywhere (frombuffer with an offset). */
static bool aligned(const wp_array_t *array)
{
    return ((uintptr_t)array->data & (weft_dtype_size_bytes(array->dtype) - 1)) == 0 ||
           array->count == 0;
}

int wp_array_get(wp_state_t *state, PyObject *object, const char *argument, wp_array_flags_t flags,
                 wp_array_t *out)
{
    out->data = NULL;
    out->count = 0;
    out->dtype = WEFT_DTYPE_NONE;
    out->rank = 0;
    out->object = NULL;
    out->buffer = NULL;
    out->capsule = NULL;
    out->packing = NULL;
    if (look(state, object, argument, flags, out) < 0) {
        return -1;
    }
    if (!aligned(out)) {
        wp_array_release(out);
        PyErr_Format(PyExc_ValueError,
                     "%s: %s at an address that is not a multiple of %zu: copy it first", argument,
                     wp_dtype_name(out->dtype), weft_dtype_size_bytes(out->dtype));
        return -1;
    }
    out->object = Py_NewRef(object);
    return 0;
}

void wp_array_release(wp_array_t *array)
{
    PyObject *object = array->object, *capsule = array->capsule;
    Py_buffer *buffer = array->buffer;
    array->object = NULL;
    array->capsule = NULL;
    array->buffer = NULL;
    free(array->packing);
    array->packing = NULL;
    if (buffer != NULL) {
        PyBuffer_Release(buffer);
        PyMem_Free(buffer);
    }
    Py_XDECREF(capsule);
    Py_XDECREF(object);
}

const char *wp_dims_text(uint32_t rank, const int64_t *dims, char *buffer, size_t bytes)
{
    size_t used = 0;
    int written = snprintf(buffer, bytes, "(");
    for (uint32_t i = 0; i < rank && written >= 0; i++) {
        used += (size_t)written;
        if (used >= bytes) {
            return buffer;
        }
        written = snprintf(buffer + used, bytes - used, "%s%lld%s", i > 0 ? ", " : "",
                           (long long)dims[i], rank == 1 ? "," : "");
    }
    used += (size_t)written;
    if (used < bytes) {
        snprintf(buffer + used, bytes - used, ")");
    }
    return buffer;
}

int wp_arrays_init(PyObject *module, wp_state_t *state)
{
    (void)module;
    return wp_torch_names_init(state);
}
