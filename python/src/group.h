/* SPDX-License-Identifier: Apache-2.0 */
/* What group.c and group_type.c share. */
#ifndef WEFT_PYTHON_GROUP_H
#define WEFT_PYTHON_GROUP_H

#include "python/src/weft_python.h"

/* Of the type's table. */
int wp_group_traverse(PyObject *object, visitproc visit, void *arg);
int wp_group_clear(PyObject *object);
void wp_group_dealloc(PyObject *object);
PyObject *wp_group_refuse(PyObject *object, PyObject *message);
PyObject *wp_group_destroy(PyObject *object, PyObject *unused);

int wp_group_type_init(PyObject *module, wp_state_t *state);

#endif
