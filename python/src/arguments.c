/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments: words to places, names to reductions and types, numbers to ranks. */
#include "python/src/weft_python.h"

#include <string.h>

/* ---- words to places ---- */
static int place_of(PyObject *keyword, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (PyUnicode_CompareWithASCIIString(keyword, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static int by_name(const char *function, PyObject *const *values, PyObject *keywords,
                   const char *const *names, PyObject **out)
{
    Py_ssize_t count = PyTuple_Size(keywords);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *keyword = PyTuple_GetItem(keywords, k);
        if (keyword == NULL) {
            return -1;
        }
        int place = place_of(keyword, names);
        if (place < 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function,
                         keyword);
            return -1;
        }
        if (out[place] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", function,
                         names[place]);
            return -1;
        }
        out[place] = values[k];
    }
    return 0;
}

int wp_parse(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
             const char *const *names, int required, int positional, PyObject **out)
{
    if (count > positional) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d positional argument%s but %zd were given", function,
                     positional, positional == 1 ? "" : "s", count);
        return -1;
    }
    Py_ssize_t i = 0;
    for (; i < count; i++) {
        out[i] = args[i];
    }
    for (; names[i] != NULL; i++) {
        out[i] = NULL;
    }
    if (keywords != NULL && by_name(function, args + count, keywords, names, out) < 0) {
        return -1;
    }
    for (i = 0; i < required; i++) {
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", function,
                         names[i]);
            return -1;
        }
    }
    return 0;
}

/* ---- reductions and types ---- */
int wp_reduction(PyObject *object, weft_reduction_t *out)
{
    static const struct {
        const char *name;
        weft_reduction_t value;
    } words[] = {{"sum", WEFT_REDUCTION_SUM},     {"avg", WEFT_REDUCTION_AVG},
                 {"max", WEFT_REDUCTION_MAX},     {"min", WEFT_REDUCTION_MIN},
                 {"prod", WEFT_REDUCTION_PROD},   {"mean", WEFT_REDUCTION_AVG},
                 {"product", WEFT_REDUCTION_PROD}};
    if (object == NULL || object == Py_None) {
        *out = WEFT_REDUCTION_SUM;
        return 0;
    }
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "op must be a string, not %R", (PyObject *)Py_TYPE(object));
        return -1;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (PyUnicode_CompareWithASCIIString(object, words[i].name) == 0) {
            *out = words[i].value;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "op: %R is not one of 'sum', 'avg', 'max', 'min', 'prod'",
                 object);
    return -1;
}

typedef struct type_name {
    const char *name;
    weft_dtype_t dtype;
} type_name_t;

/* The first of a type is the one that is shown. No "i8" or "u8": Weft's are of 8 bits, numpy's of 8
 * bytes. */
static const type_name_t type_names[] = {
    {"float64", WEFT_DTYPE_F64},   {"float32", WEFT_DTYPE_F32},  {"float16", WEFT_DTYPE_F16},
    {"bfloat16", WEFT_DTYPE_BF16}, {"int64", WEFT_DTYPE_I64},    {"int32", WEFT_DTYPE_I32},
    {"int16", WEFT_DTYPE_I16},     {"int8", WEFT_DTYPE_I8},      {"uint64", WEFT_DTYPE_U64},
    {"uint32", WEFT_DTYPE_U32},    {"uint16", WEFT_DTYPE_U16},   {"uint8", WEFT_DTYPE_U8},
    {"bool", WEFT_DTYPE_BOOL},     {"f64", WEFT_DTYPE_F64},      {"f32", WEFT_DTYPE_F32},
    {"f16", WEFT_DTYPE_F16},       {"bf16", WEFT_DTYPE_BF16},    {"i64", WEFT_DTYPE_I64},
    {"i32", WEFT_DTYPE_I32},       {"i16", WEFT_DTYPE_I16},      {"u64", WEFT_DTYPE_U64},
    {"u32", WEFT_DTYPE_U32},       {"u16", WEFT_DTYPE_U16},      {"double", WEFT_DTYPE_F64},
    {"half", WEFT_DTYPE_F16},      {"longlong", WEFT_DTYPE_I64}, {"ulonglong", WEFT_DTYPE_U64},
    {"bool_", WEFT_DTYPE_BOOL},    {"f8", WEFT_DTYPE_F64},       {"f4", WEFT_DTYPE_F32},
    {"f2", WEFT_DTYPE_F16},        {"i4", WEFT_DTYPE_I32},       {"i2", WEFT_DTYPE_I16},
    {"i1", WEFT_DTYPE_I8},         {"u4", WEFT_DTYPE_U32},       {"u2", WEFT_DTYPE_U16},
    {"u1", WEFT_DTYPE_U8},
};

const char *wp_dtype_name(weft_dtype_t dtype)
{
    for (size_t i = 0; i < sizeof type_names / sizeof type_names[0]; i++) {
        if (type_names[i].dtype == dtype) {
            return type_names[i].name;
        }
    }
    return "no type";
}

static weft_dtype_t dtype_by_name(PyObject *name)
{
    for (size_t i = 0; i < sizeof type_names / sizeof type_names[0]; i++) {
        if (PyUnicode_CompareWithASCIIString(name, type_names[i].name) == 0) {
            return type_names[i].dtype;
        }
    }
    return WEFT_DTYPE_NONE;
}

/* numpy.dtype has name, numpy's scalar types have __name__, torch's types are "torch.float32" as
 * text. */
static PyObject *name_of_type(PyObject *object)
{
    PyObject *name;
    if (PyUnicode_Check(object)) {
        return Py_NewRef(object);
    }
    if (object == (PyObject *)&PyFloat_Type || object == (PyObject *)&PyLong_Type) {
        return PyUnicode_FromString(object == (PyObject *)&PyFloat_Type ? "float64" : "int64");
    }
    name = PyObject_GetAttrString(object, PyType_Check(object) ? "__name__" : "name");
    if (name == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        name = PyObject_Str(object);
    }
    return name;
}

static PyObject *without_torch(PyObject *name)
{
    PyObject *tail = NULL, *prefix = PyUnicode_FromString("torch.");
    Py_ssize_t match =
        prefix != NULL && name != NULL ? PyUnicode_Tailmatch(name, prefix, 0, 6, -1) : -1;
    if (match >= 0) {
        tail =
            match != 0 ? PyUnicode_Substring(name, 6, PyUnicode_GetLength(name)) : Py_NewRef(name);
    }
    Py_XDECREF(prefix);
    Py_XDECREF(name);
    return tail;
}

/* numpy.dtype(">f4") is called float32, too. */
static bool is_swapped(PyObject *object)
{
    PyObject *native = PyUnicode_Check(object) ? NULL : PyObject_GetAttrString(object, "isnative");
    if (native == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(native);
    return native == Py_False;
}

int wp_dtype(wp_state_t *state, PyObject *object, weft_dtype_t *out)
{
    if (object == NULL || object == Py_None) {
        *out = WEFT_DTYPE_F32;
        return 0;
    }
    for (int dtype = 1; dtype < 16; dtype++) { /* by identity, as callers mostly give them */
        if (object == state->numpy.dtypes[dtype] || object == state->torch.dtypes[dtype]) {
            *out = (weft_dtype_t)dtype;
            return 0;
        }
    }
    PyObject *name = name_of_type(object);
    if (name != NULL && PyUnicode_Check(name)) {
        name = without_torch(name);
    }
    if (name == NULL) {
        return -1;
    }
    *out = PyUnicode_Check(name) && !is_swapped(object) ? dtype_by_name(name) : WEFT_DTYPE_NONE;
    Py_DECREF(name);
    if (*out == WEFT_DTYPE_NONE) {
        PyErr_Format(PyExc_TypeError,
                     "unknown dtype %R: expected float64, float32, float16, bfloat16, int64 to "
                     "int8, uint64 to uint8, or bool",
                     object);
        return -1;
    }
    return 0;
}

/* ---- numbers and groups ---- */
int wp_index(PyObject *object, const char *argument, uint32_t most, uint32_t *out)
{
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s must be an integer, not %R", argument,
                         (PyObject *)Py_TYPE(object));
        }
        return -1;
    }
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow != 0 || value < 0 || value > (long long)most) {
        PyErr_Format(PyExc_ValueError, "%s: %S is out of range: must be between 0 and %u", argument,
                     number, (unsigned)most);
        Py_DECREF(number);
        return -1;
    }
    Py_DECREF(number);
    *out = (uint32_t)value;
    return 0;
}

wp_group_t *wp_group_of(wp_state_t *state, PyObject *object)
{
    if (object == NULL || object == Py_None) {
        if (state->world == NULL) {
            wp_raise_text(state, WEFT_ERR_STATE, "there is no world: call weft.init() first");
        }
        return state->world;
    }
    if (Py_TYPE(object) == state->group_type) {
        return (wp_group_t *)object;
    }
    if (Py_TYPE(object) == state->context_type) {
        wp_context_t *context = (wp_context_t *)object;
        if (context->world == NULL) {
            wp_raise_text(state, WEFT_ERR_STATE, "the context was closed");
        }
        return context->world;
    }
    PyErr_Format(PyExc_TypeError, "group must be a weft.Group or None, not %R",
                 (PyObject *)Py_TYPE(object));
    return NULL;
}
