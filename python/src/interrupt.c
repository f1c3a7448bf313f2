/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals while a call waits. Python runs handlers on its main thread only, and only between
 * bytecodes: a call that waits in C must let it, now and then. A handler that raises (Ctrl-C:
 * KeyboardInterrupt) ends the wait.
 */
#include "python/src/weft_python.h"

#include <time.h>

#define EVERY_NS                                                                                   \
    20000000ull /* another thread that computes gives the GIL away for this: not too often */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Runs handlers; keeps what one of them raised for wp_interrupt_raise. */
static bool run_handlers(wp_state_t *state)
{
    bool raised = false;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (PyErr_Occurred() == NULL && PyErr_CheckSignals() < 0) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        if (value != NULL && trace != NULL) {
            PyException_SetTraceback(value, trace);
        }
        Py_XDECREF(type);
        Py_XDECREF(trace);
        Py_XDECREF(state->interrupt);
        state->interrupt = value;
        raised = value != NULL;
    }
    PyGILState_Release(gil);
    return raised;
}

int wp_interrupted(void *user)
{
    wp_state_t *state = user;
    /* The library's own threads and Python's others: handlers are not for them. */
    if (PyThread_get_thread_ident() != state->main_thread) {
        return 0;
    }
    if (state->interrupt != NULL) { /* only this thread sets and takes it */
        return 1;
    }
    uint64_t now = now_ns();
    if (now < state->interrupt_next_ns) {
        return 0;
    }
    state->interrupt_next_ns = now + EVERY_NS;
    return run_handlers(state);
}

bool wp_interrupt_raise(wp_state_t *state)
{
    if (state->interrupt == NULL || PyThread_get_thread_ident() != state->main_thread) {
        return false;
    }
    PyObject *value = state->interrupt;
    state->interrupt = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(value), value);
    Py_DECREF(value);
    return true;
}
