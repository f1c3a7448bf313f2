/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that may be left out to C values: NULL and None leave *out as it is. */
#include "python/src/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool absent(const PyObject *object)
{
    return object == NULL || object == Py_None;
}

int wp_value_path(PyObject *object, const char *name, PyObject *keep, const char **out)
{
    if (absent(object)) {
        return 0;
    }
    PyObject *path = wp_path_of(object, name);
    *out = path != NULL ? PyBytes_AsString(path) : NULL;
    int status = path != NULL ? PyList_Append(keep, path) : -1;
    Py_XDECREF(path);
    return status;
}

int wp_value_text(PyObject *object, const char *name, const char **out)
{
    if (absent(object)) {
        return 0;
    }
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be a str, not %R", name,
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    *out = PyUnicode_AsUTF8AndSize(object, NULL);
    return *out != NULL ? 0 : -1;
}

int wp_value_flag(PyObject *object, const char *name, int *out)
{
    (void)name;
    *out = absent(object) ? 0 : PyObject_IsTrue(object);
    return *out < 0 ? -1 : 0;
}

/* An integer of 1 .. most. */
int wp_value_count(PyObject *object, const char *name, uint32_t most, uint32_t *out)
{
    if (absent(object)) {
        return 0;
    }
    if (wp_index(object, name, most, out) < 0) {
        return -1;
    }
    if (*out == 0) {
        PyErr_Format(PyExc_ValueError, "%s: 0 is out of range: must be between 1 and %u", name,
                     (unsigned)most);
        return -1;
    }
    return 0;
}

/* Zero means "the default" to the library, so that it cannot be asked for, unless that is what it
 * means. */
int wp_value_number(PyObject *object, const char *name, bool zero, double *out)
{
    if (absent(object)) {
        return 0;
    }
    double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred() != NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s must be a number, not %R", name,
                         (PyObject *)Py_TYPE(object));
        }
        return -1;
    }
    if (!isfinite(value) || value < 0 || (value == 0 && !zero)) {
        PyErr_Format(PyExc_ValueError, "%s: invalid value %R: must be a number %s 0", name, object,
                     zero ? "of at least" : "above");
        return -1;
    }
    *out = value;
    return 0;
}

/* A number of bytes, or a text such as "64M". */
int wp_value_size(PyObject *object, const char *name, uint64_t *out)
{
    if (absent(object)) {
        return 0;
    }
    if (!PyUnicode_Check(object)) {
        return wp_value_u64(object, name, out);
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, NULL);
    if (text == NULL) {
        return -1;
    }
    static const char units[] = "KMG";
    char *end = NULL;
    double value = strtod(text, &end);
    const char *unit = end != text && *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        value *= (double)(UINT64_C(1) << (10 * (unit - units + 1)));
        end++;
    }
    if (end == text || *end != '\0' || !(value >= 0 && value < 1e18)) {
        PyErr_Format(PyExc_ValueError, "%s: invalid value %R: expected bytes such as 8, 4K or 64M",
                     name, object);
        return -1;
    }
    *out = (uint64_t)value;
    return 0;
}

int wp_value_u64(PyObject *object, const char *name, uint64_t *out)
{
    if (absent(object)) {
        return 0;
    }
    PyObject *number = PyNumber_Index(object);
    *out = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred() == NULL) {
        return 0;
    }
    bool type = PyErr_ExceptionMatches(PyExc_TypeError) != 0 && number == NULL;
    PyErr_Format(type ? PyExc_TypeError : PyExc_ValueError,
                 "%s: invalid value %R: expected an integer of at least 0", name, object);
    return -1;
}
