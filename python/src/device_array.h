/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in memory of a context's device. */
#ifndef WEFT_PYTHON_DEVICE_ARRAY_H
#define WEFT_PYTHON_DEVICE_ARRAY_H

#include "python/src/array.h"

/* New memory, zeroed, for what array says of type and dimensions; object and data are set. */
int wp_device_array_make(wp_context_t *context, wp_array_t *array);
/* wp_array_get for a weft.DeviceArray. */
int wp_array_from_device(PyObject *object, const char *argument, wp_array_flags_t flags,
                         wp_array_t *out);
/* ValueError where array is on a device, but not that of group's context. */
int wp_device_array_check(const wp_array_t *array, const char *argument, const wp_group_t *group);
/* Borrowed. */
wp_context_t *wp_device_array_context(PyObject *array);
/* weft_mem_copy without the GIL; -1 with an exception. */
int wp_device_copy(wp_context_t *context, void *to, const void *from, size_t bytes);

#endif
