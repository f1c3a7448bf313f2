/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of torch tensors: by DLPack's C functions, which torch has from 2.10 on; by attributes and
 * methods where they do not know the tensor, or what is wrong with it. __dlpack__ alone costs more
 * than all of this.
 */
#include "python/src/dlpack.h"

#include <string.h>

static const struct {
    weft_dtype_t dtype;
    const char *name;
} types[] = {
    {WEFT_DTYPE_F64, "float64"},   {WEFT_DTYPE_F32, "float32"}, {WEFT_DTYPE_F16, "float16"},
    {WEFT_DTYPE_BF16, "bfloat16"}, {WEFT_DTYPE_I64, "int64"},   {WEFT_DTYPE_I32, "int32"},
    {WEFT_DTYPE_I16, "int16"},     {WEFT_DTYPE_I8, "int8"},     {WEFT_DTYPE_U64, "uint64"},
    {WEFT_DTYPE_U32, "uint32"},    {WEFT_DTYPE_U16, "uint16"},  {WEFT_DTYPE_U8, "uint8"},
    {WEFT_DTYPE_BOOL, "bool"},
};

/* Places in wp_torch_t.names. */
enum {
    NAME_DATA_PTR,
    NAME_DTYPE,
    NAME_NUMEL,
    NAME_CONTIGUOUS,
    NAME_CPU,
    NAME_SHAPE,
    NAME_NEW_EMPTY,
    NAME_STRIDE,
    NAME_NEGATIVE,
    NAMES
};

static const char *const names[] = {"data_ptr", "dtype",     "numel",  "is_contiguous", "is_cpu",
                                    "shape",    "new_empty", "stride", "is_neg"};

int wp_torch_names_init(wp_state_t *state)
{
    static_assert(NAMES <= sizeof state->torch.names / sizeof state->torch.names[0], "names");
    for (int i = 0; i < NAMES; i++) {
        state->torch.names[i] = PyUnicode_InternFromString(names[i]);
        if (state->torch.names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

bool wp_torch_find(wp_state_t *state)
{
    wp_torch_t *torch = &state->torch;
    PyObject *name, *module;
    if (torch->tensor_type != NULL) {
        return true;
    }
    name = PyUnicode_FromString("torch");
    module = name != NULL ? PyImport_GetModule(name) : NULL;
    Py_XDECREF(name);
    if (module == NULL) {
        PyErr_Clear();
        return false;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        Py_CLEAR(torch->dtypes[types[i].dtype]);
        torch->dtypes[types[i].dtype] = PyObject_GetAttrString(module, types[i].name);
        PyErr_Clear(); /* torch 1.13 has no uint64, for one */
    }
    torch->empty_like = PyObject_GetAttrString(module, "empty_like");
    if (torch->empty_like != NULL && torch->dtypes[WEFT_DTYPE_F32] != NULL) {
        torch->tensor_type = PyObject_GetAttrString(module, "Tensor");
        torch->read = torch->tensor_type != NULL ? wp_dlpack_read_of(torch->tensor_type) : NULL;
    }
    PyErr_Clear(); /* half imported */
    Py_DECREF(module);
    return torch->tensor_type != NULL;
}

/* "sparse_coo", "cuda:0": what an attribute prints as, for a message. */
static int refuse(PyObject *tensor, const char *argument, const char *attribute, const char *why)
{
    PyObject *value;
    PyErr_Clear();
    value = PyObject_GetAttrString(tensor, attribute);
    if (value == NULL) {
        return -1;
    }
    PyErr_Format(strcmp(attribute, "dtype") == 0 ? PyExc_TypeError : PyExc_ValueError,
                 "%s is a tensor of %s %S: %s", argument, attribute, value, why);
    Py_DECREF(value);
    return -1;
}

/* The truth of tensor.name or, with call, tensor.name(). -1: failed. */
static int is_true(wp_state_t *state, PyObject *tensor, int name, bool call)
{
    PyObject *value = call ? PyObject_CallMethodObjArgs(tensor, state->torch.names[name], NULL)
                           : PyObject_GetAttr(tensor, state->torch.names[name]);
    int result = value == NULL       ? -1
                 : value == Py_True  ? 1
                 : value == Py_False ? 0
                                     : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return result;
}

static int number_of(wp_state_t *state, PyObject *tensor, int name, unsigned long long *out)
{
    PyObject *value = PyObject_CallMethodObjArgs(tensor, state->torch.names[name], NULL);
    if (value == NULL) {
        return -1;
    }
    *out = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return *out == (unsigned long long)-1 && PyErr_Occurred() != NULL ? -1 : 0;
}

static int dtype_of(wp_state_t *state, PyObject *tensor, const char *argument, weft_dtype_t *out)
{
    PyObject *dtype = PyObject_GetAttr(tensor, state->torch.names[NAME_DTYPE]);
    weft_dtype_t found = WEFT_DTYPE_F32;
    if (dtype == NULL) {
        return -1;
    }
    if (dtype != state->torch.dtypes[found]) {
        found = WEFT_DTYPE_BOOL;
        while (found != WEFT_DTYPE_NONE && dtype != state->torch.dtypes[found]) {
            found--;
        }
    }
    Py_DECREF(dtype);
    *out = found;
    return found != WEFT_DTYPE_NONE ? 0 : refuse(tensor, argument, "dtype", WP_TYPES_TEXT);
}

static int shape_of(wp_state_t *state, PyObject *tensor, const char *argument, wp_array_t *out)
{
    PyObject *shape = PyObject_GetAttr(tensor, state->torch.names[NAME_SHAPE]);
    Py_ssize_t dims[WP_MAX_DIMS], rank = shape != NULL ? PyTuple_Size(shape) : -1;
    for (Py_ssize_t i = 0; i < rank && i < WP_MAX_DIMS; i++) {
        dims[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    }
    Py_XDECREF(shape);
    return rank < 0 || PyErr_Occurred() != NULL ? -1 : wp_array_shape(argument, out, rank, dims);
}

static int pack(wp_state_t *state, PyObject *tensor, const char *argument, wp_array_flags_t flags,
                wp_array_t *out)
{
    PyObject *steps = PyObject_CallMethodObjArgs(tensor, state->torch.names[NAME_STRIDE], NULL);
    int64_t strides[WP_MAX_DIMS], bytes = (int64_t)weft_dtype_size_bytes(out->dtype);
    Py_ssize_t count = steps != NULL ? PyTuple_Size(steps) : -1;
    for (Py_ssize_t i = 0; i < count && i < WP_MAX_DIMS; i++) {
        strides[i] = PyLong_AsSsize_t(PyTuple_GetItem(steps, i)) * bytes;
    }
    Py_XDECREF(steps);
    return count != (Py_ssize_t)out->rank || PyErr_Occurred() != NULL
               ? -1
               : wp_array_pack(argument, flags, out, strides);
}

/* Views such as z.conj().imag are the memory's negative. */
static int check_sign(wp_state_t *state, PyObject *tensor, const char *argument)
{
    int is = is_true(state, tensor, NAME_NEGATIVE, true);
    if (is > 0) {
        PyErr_Format(PyExc_ValueError,
                     "%s is a view whose memory has the other sign: tensor.resolve_neg() copies it",
                     argument);
    }
    return is == 0 ? 0 : -1;
}

/* Contiguous host memory of one of our types, as most is; subclasses may have their own ways. */
static bool read_at_once(wp_state_t *state, PyObject *tensor, const char *argument,
                         wp_array_flags_t flags, wp_array_t *out)
{
    wp_dlpack_tensor_t seen;
    if (state->torch.read != NULL && (PyObject *)Py_TYPE(tensor) == state->torch.tensor_type &&
        state->torch.read(tensor, &seen) == 0 && seen.device_type == WP_DLPACK_CPU &&
        wp_dlpack_fill(&seen, true, argument, flags, out) == 0 &&
        (out->data != NULL || out->count == 0) && check_sign(state, tensor, argument) == 0) {
        return true;
    }
    PyErr_Clear();
    out->rank = 0;
    return false;
}

int wp_array_from_torch(wp_state_t *state, PyObject *tensor, const char *argument,
                        wp_array_flags_t flags, wp_array_t *out)
{
    unsigned long long address = 0, count = 0;
    out->kind = WP_TORCH;
    if (read_at_once(state, tensor, argument, flags, out)) {
        return 0;
    }
    int is = is_true(state, tensor, NAME_CPU, false);
    if (is <= 0) {
        return is < 0 ? -1 : refuse(tensor, argument, "device", "host memory is required");
    }
    is = is_true(state, tensor, NAME_CONTIGUOUS, true);
    if (is < 0) { /* torch has no answer for a sparse one */
        return refuse(tensor, argument, "layout", "a strided tensor is required");
    }
    bool packs = is == 0;
    if (check_sign(state, tensor, argument) < 0) {
        return -1;
    }
    if (packs && !(flags & WP_PACK)) {
        PyErr_Format(PyExc_ValueError,
                     "%s is a tensor whose memory is not contiguous: tensor.contiguous() copies it",
                     argument);
        return -1;
    }
    if (dtype_of(state, tensor, argument, &out->dtype) < 0 ||
        number_of(state, tensor, NAME_NUMEL, &count) < 0 ||
        (((flags & WP_SHAPE) || packs) && shape_of(state, tensor, argument, out) < 0)) {
        return -1;
    }
    if (number_of(state, tensor, NAME_DATA_PTR, &address) < 0) {
        return refuse(tensor, argument, "layout", "it has no storage");
    }
    if (address == 0 && count > 0) {
        PyErr_Format(PyExc_ValueError, "%s is a tensor without storage", argument);
        return -1;
    }
    out->data = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    out->count = count;
    return packs ? pack(state, tensor, argument, flags, out) : 0;
}

PyObject *wp_torch_new_empty(wp_state_t *state, PyObject *tensor, PyObject *shape)
{
    return PyObject_CallMethodObjArgs(tensor, state->torch.names[NAME_NEW_EMPTY], shape, NULL);
}

void *wp_torch_address(wp_state_t *state, PyObject *tensor)
{
    unsigned long long address = 0;
    if (number_of(state, tensor, NAME_DATA_PTR, &address) < 0) {
        return NULL;
    }
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}
