/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that may be left out to C values: NULL and None leave *out as it is. */
#include "python/src/session.h"

#include <math.h>

static bool absent(const PyObject *object)
{
    return object == NULL || object == Py_None;
}

int wp_value_number(PyObject *object, const char *name, double *out)
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
    if (!isfinite(value) || value < 0) {
        PyErr_Format(PyExc_ValueError, "%s: invalid value %R: must be a number of at least 0", name,
                     object);
        return -1;
    }
    *out = value;
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
