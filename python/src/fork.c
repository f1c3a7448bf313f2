/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forked children. The C library refuses to work in them; what they inherit of this module must let
 * it say so: locks that were held by threads which are not here any more are open.
 */
#include "python/src/weft_python.h"

static PyObject *after_fork(PyObject *module, PyObject *unused)
{
    wp_state_t *state = wp_state_of(module);
    (void)unused;
    state->main_thread = PyThread_get_thread_ident();
    Py_CLEAR(state->interrupt);
    for (wp_context_t *context = state->contexts; context != NULL; context = context->next) {
        for (wp_holder_t *holder = context->holders; holder != NULL; holder = holder->next) {
            if (holder->lock != NULL) {
                wp_lock_init(holder->lock);
            }
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_after_fork", after_fork, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int wp_fork_init(PyObject *module, wp_state_t *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
