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

/* field: the parameter that it is about, or NULL. */
static PyObject *make(const wp_state_t *state, weft_status_t status, const char *text,
                      const char *field)
{
    PyObject *name = field != NULL ? PyUnicode_FromString(field) : NULL, *error = NULL;
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (message != NULL) {
        error = PyObject_CallFunctionObjArgs(type_of(state, status), message, NULL);
    }
    if (error != NULL && name != NULL && PyObject_SetAttrString(error, "field", name) < 0) {
        Py_CLEAR(error);
    }
    Py_XDECREF(message);
    Py_XDECREF(name);
    return error;
}

static PyObject *raise_with(wp_state_t *state, weft_status_t status, const char *text,
                            const char *field)
{
    /* Ctrl-C while the call waited is what the user wants to see, not how the call ended by it. */
    if (wp_interrupt_raise(state)) {
        return NULL;
    }
    if (PyErr_Occurred() == NULL && PyErr_CheckSignals() == 0) {
        PyObject *error = make(state, status, text, field);
        if (error != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
    }
    return NULL;
}

/* What the library said on this thread, before signal handlers say something else. */
typedef struct said {
    char text[TEXT_BYTES], field[64];
} said_t;

static const char *listen(weft_status_t status, said_t *out)
{
    const char *text = weft_last_error(), *field = weft_last_error_field();
    snprintf(out->text, sizeof out->text, "%s", text[0] != '\0' ? text : weft_status_text(status));
    snprintf(out->field, sizeof out->field, "%s", field != NULL ? field : "");
    return field != NULL ? out->field : NULL;
}

PyObject *wp_error_new(wp_state_t *state, weft_status_t status)
{
    said_t said;
    const char *field = listen(status, &said);
    PyObject *error = make(state, status, said.text, field);
    if (error == NULL) {
        PyErr_Clear();
    }
    return error;
}

PyObject *wp_raise(wp_state_t *state, weft_status_t status)
{
    said_t said;
    const char *field = listen(status, &said);
    return raise_with(state, status, said.text, field);
}

PyObject *wp_raise_text(wp_state_t *state, weft_status_t status, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return raise_with(state, status, text, NULL);
}
