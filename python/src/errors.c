/* SPDX-License-Identifier: Apache-2.0 */
/* Exceptions by status: what the caller should do decides the type, the message says what went
 * wrong. */
#include "python/src/weft_python.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 1024

typedef struct kind {
    weft_status_t status;
    const char *name;
    PyObject **also; /* a second base, for those who catch Python's own */
    const char *doc;
} kind_t;

static const char base_doc[] =
    "Base of Weft's errors. Attribute status names the C library's code, such as 'ERR_MISMATCH'.";

/* In the order of the states' table: index is -status. PyExc_ objects are no constants. */
static const kind_t kinds[] = {
    {WEFT_ERR_INVALID_ARGUMENT, "weft.WeftArgumentError", &PyExc_ValueError,
     "An argument is wrong: fix the call."},
    {WEFT_ERR_UNSUPPORTED, "weft.WeftUnsupportedError", NULL,
     "Not supported: choose something else."},
    {WEFT_ERR_NO_MEMORY, "weft.WeftNoMemoryError", &PyExc_MemoryError,
     "Out of memory: free some or ask for less."},
    {WEFT_ERR_NOT_FOUND, "weft.WeftNotFoundError", NULL, "Something named does not exist."},
    {WEFT_ERR_FORMAT, "weft.WeftFormatError", NULL, "A file or message is malformed."},
    {WEFT_ERR_SYSTEM, "weft.WeftSystemError", &PyExc_OSError, "A system call failed."},
    {WEFT_ERR_MISMATCH, "weft.WeftMismatchError", NULL,
     "Ranks disagree: make them call the same thing. Both sides are named."},
    {WEFT_ERR_PEER_DIED, "weft.WeftPeerDiedError", NULL,
     "A rank is gone: rebuild the group without it."},
    {WEFT_ERR_TIMEOUT, "weft.WeftTimeoutError", &PyExc_TimeoutError, "The deadline passed."},
    {WEFT_ERR_ABORTED, "weft.WeftAbortedError", NULL,
     "Another rank or the caller ended the group or the world."},
    {WEFT_ERR_STATE, "weft.WeftStateError", NULL,
     "The object is not in a state for this call, such as before init or after finalize."},
    {WEFT_ERR_INTERNAL, "weft.WeftInternalError", NULL, "A bug in Weft: please report it."},
    {WEFT_ERR_LINK, "weft.WeftLinkError", NULL,
     "A link between two live ranks broke: call again, another path is taken."},
};

static int add(PyObject *module, PyObject *error, const char *name)
{
    return PyObject_SetAttrString(module, strchr(name, '.') + 1, error);
}

int wp_errors_init(PyObject *module, wp_state_t *state)
{
    PyObject *base =
        PyErr_NewExceptionWithDoc("weft.WeftError", base_doc, PyExc_RuntimeError, NULL);
    state->errors[0] = base;
    if (base == NULL || PyObject_SetAttrString(base, "status", Py_None) < 0 ||
        add(module, base, "weft.WeftError") < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const kind_t *kind = &kinds[i];
        PyObject *bases =
            kind->also != NULL ? PyTuple_Pack(2, base, *kind->also) : PyTuple_Pack(1, base);
        if (bases == NULL) {
            return -1;
        }
        PyObject *error = PyErr_NewExceptionWithDoc(kind->name, kind->doc, bases, NULL);
        Py_DECREF(bases);
        PyObject *status =
            error != NULL ? PyUnicode_FromString(weft_status_name(kind->status)) : NULL;
        state->errors[-kind->status] = error;
        int set = status != NULL ? PyObject_SetAttrString(error, "status", status) : -1;
        Py_XDECREF(status);
        if (set < 0 || add(module, error, kind->name) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *type_of(const wp_state_t *state, weft_status_t status)
{
    int index = -(int)status;
    int known = (int)(sizeof state->errors / sizeof state->errors[0]);
    PyObject *type = index > 0 && index < known ? state->errors[index] : NULL;
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
