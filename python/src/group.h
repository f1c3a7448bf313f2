/* SPDX-License-Identifier: Apache-2.0 */
/* What group.c and group_type.c share. */
#ifndef WEFT_PYTHON_GROUP_H
#define WEFT_PYTHON_GROUP_H

#include "python/src/weft_python.h"

/* The lock held, or NULL with WeftStateError. */
weft_group_t *wp_group_open(wp_group_t *self);
/* Unlocks, after the GIL was let go by SaveThread; None, or the exception of a call that failed. */
PyObject *wp_group_done(wp_group_t *self, PyThreadState *thread, weft_status_t status);
/* Integers of 0 .. most in a sequence, on the heap (also none of them); NULL with an exception. */
uint32_t *wp_group_numbers(PyObject *object, const char *argument, uint32_t most,
                           uint32_t *out_count);
/* Of the type's table. */
int wp_group_traverse(PyObject *object, visitproc visit, void *arg);
int wp_group_clear(PyObject *object);
void wp_group_dealloc(PyObject *object);
PyObject *wp_group_split(PyObject *object, PyObject *args, PyObject *keywords);
PyObject *wp_group_duplicate(PyObject *object, PyObject *unused);
PyObject *wp_group_refuse(PyObject *object, PyObject *message);
PyObject *wp_group_destroy(PyObject *object, PyObject *unused);

int wp_group_type_init(PyObject *module, wp_state_t *state);

#endif
