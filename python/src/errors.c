/* SPDX-License-Identifier: Apache-2.0 */
/* Exceptions by status: what the caller should do decides the type, the message says what went
 * wrong. */
#include "python/src/weft_python.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 1024

/* The types are made in weft/errors.py. */
int wp_errors_init(PyObject *module, wp_state_t *state)
{
    (void)module;
    PyObject *errors = PyImport_ImportModule("weft.errors");
    PyObject *by_status = errors != NULL ? PyObject_GetAttrString(errors, "_BY_STATUS") : NULL;
    for (int i = 0; by_status != NULL && i < WP_ERRORS; i++) {
        const char *name = i > 0 ? weft_status_name((weft_status_t)-i) : "";
        state->errors[i] = Py_XNewRef(PyDict_GetItemString(by_status, name));
    }
    Py_XDECREF(by_status);
    Py_XDECREF(errors);
    return state->errors[0] != NULL ? 0 : -1;
}

static PyObject *type_of(const wp_state_t *state, weft_status_t status)
{
    int index = -(int)status;
    PyObject *type = index > 0 && index < WP_ERRORS ? state->errors[index] : NULL;
    return type != NULL ? type : state->errors[0];
}

static PyObject *raise_with(wp_state_t *state, weft_status_t status, const char *text)
{
    /* Ctrl-C while the call waited is what the user wants to see, not how the call ended by it. */
    if (wp_interrupt_raise(state)) {
        return NULL;
    }
    if (PyErr_Occurred() == NULL && PyErr_CheckSignals() == 0) {
        PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        if (message != NULL) {
            PyErr_SetObject(type_of(state, status), message);
            Py_DECREF(message);
        }
    }
    return NULL;
}

/* What the library said on this thread. */
static void last_text(weft_status_t status, char *text, size_t bytes)
{
    const char *said = weft_last_error()[0] != '\0' ? weft_last_error() : weft_status_text(status);
    snprintf(text, bytes, "%s%s", said, status == WEFT_ERR_MISMATCH ? wp_exchange_hint(said) : "");
}

PyObject *wp_error_new(wp_state_t *state, weft_status_t status)
{
    char text[TEXT_BYTES];
    last_text(status, text, sizeof text);
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *error = message != NULL
                          ? PyObject_CallFunctionObjArgs(type_of(state, status), message, NULL)
                          : NULL;
    Py_XDECREF(message);
    if (error == NULL) {
        PyErr_Clear();
    }
    return error;
}

PyObject *wp_raise(wp_state_t *state, weft_status_t status)
{
    char text[TEXT_BYTES];
    last_text(status, text, sizeof text);
    return raise_with(state, status, text);
}

PyObject *wp_raise_text(wp_state_t *state, weft_status_t status, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return raise_with(state, status, text);
}
