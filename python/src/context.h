/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of contexts and plans share. */
#ifndef WEFT_PYTHON_CONTEXT_H
#define WEFT_PYTHON_CONTEXT_H

#include "python/src/weft_python.h"

/* plan.c: what weft.Plan owns. */
typedef struct wp_plan {
    PyObject_HEAD weft_plan_t *plan;
    weft_registry_t *registry; /* with operators or kernels of its own; NULL: the built-in ones */
} wp_plan_t;

/* Joins a world. places: rank, size, address, progress, device, each of which may be NULL or None. */
wp_context_t *wp_context_new(wp_state_t *state, PyObject *const *places);
/* Methods of the type's table: a Context of the survivors; of a larger world. */
PyObject *wp_context_shrink(PyObject *self, PyObject *unused);
PyObject *wp_context_grow(PyObject *self, PyObject *args);
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
