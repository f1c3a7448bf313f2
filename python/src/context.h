/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of contexts share. */
#ifndef WEFT_PYTHON_CONTEXT_H
#define WEFT_PYTHON_CONTEXT_H

#include "python/src/weft_python.h"

/* The function _join, which makes a Context. */
PyObject *wp_context_join(PyObject *module, PyObject *args);
/*
 * Leaves the world. Others need not be there; memory that arrays use stays mapped. In a forked
 * child nothing happens, and not yet in a signal handler that runs inside a call.
 */
void wp_context_close(wp_context_t *context);
/* Out of the list of all that there are. */
void wp_context_delist(wp_context_t *context);
/* A reference of the C library's, let go of without the GIL; NULL is fine. */
void wp_context_release(weft_context_t *context);
/* Of the type's table. */
int wp_context_traverse(PyObject *self, visitproc visit, void *arg);
int wp_context_clear(PyObject *self);
void wp_context_dealloc(PyObject *self);

int wp_context_type_init(PyObject *module, wp_state_t *state);

#endif
