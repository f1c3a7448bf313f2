/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of our own, as an object with the buffer protocol. */
#ifndef WEFT_PYTHON_MEMORY_H
#define WEFT_PYTHON_MEMORY_H

#include "python/src/weft_python.h"

/* Uninitialised memory of this process; a new reference. */
PyObject *wp_memory_heap(wp_state_t *state, weft_dtype_t dtype, uint32_t rank, const int64_t *dims);

#endif
