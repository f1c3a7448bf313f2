/* SPDX-License-Identifier: Apache-2.0 */
/* What array.c, array_torch.c, array_dlpack.c and result.c share. */
#ifndef WEFT_PYTHON_ARRAY_H
#define WEFT_PYTHON_ARRAY_H

#include "python/src/weft_python.h"

/* Ends the messages about types that Weft has not. */
#define WP_TYPES_TEXT                                                                              \
    "Weft has float64, float32, float16, bfloat16, int8 to int64, uint8 to uint64 and bool"

/* True once the array type of numpy, the tensor type of torch are known: they are imported. */
bool wp_numpy_find(wp_state_t *state);
bool wp_torch_find(wp_state_t *state);

/* Imports numpy if need be: false where there is none. */
bool wp_numpy_import(wp_state_t *state);
/* (3, 4); plain: 3 for one dimension. */
PyObject *wp_shape_object(uint32_t rank, const int64_t *dims, bool plain);
/* Borrowed; NULL with an exception. */
PyObject *wp_numpy_dtype(wp_state_t *state, weft_dtype_t dtype);
/* tensor.new_empty(shape), and the address of a tensor (NULL with an exception, or when it has no
 * elements). */
PyObject *wp_torch_new_empty(wp_state_t *state, PyObject *tensor, PyObject *shape);
void *wp_torch_address(wp_state_t *state, PyObject *tensor);

/* Method names of tensors. */
int wp_torch_names_init(wp_state_t *state);

/* out has no references yet. 0, or -1 with an exception. */
int wp_array_from_torch(wp_state_t *state, PyObject *object, const char *argument,
                        wp_array_flags_t flags, wp_array_t *out);
int wp_array_from_dlpack(PyObject *object, const char *argument, wp_array_flags_t flags,
                         wp_array_t *out);
/* array, whose elements are strides bytes apart, gets memory for a packed copy. */
int wp_array_pack(const char *argument, wp_array_flags_t flags, wp_array_t *array,
                  const int64_t *strides);
/* Dimensions into out; ValueError when there are more than WP_MAX_DIMS. */
int wp_array_shape(const char *argument, wp_array_t *out, Py_ssize_t rank, const Py_ssize_t *dims);

#endif
