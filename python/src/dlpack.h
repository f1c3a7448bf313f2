/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of DLPack, and what array_dlpack.c and device_array.c share. */
#ifndef WEFT_PYTHON_DLPACK_H
#define WEFT_PYTHON_DLPACK_H

#include "python/src/array.h"

#define WP_DLPACK_CPU 1        /* a device type */
#define WP_DLPACK_READ_ONLY 1u /* flags of a versioned struct */

typedef struct wp_dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *dims, *strides; /* strides: NULL when it is contiguous */
    uint64_t byte_offset;
} wp_dlpack_tensor_t;

/* Of capsules "dltensor". */
typedef struct wp_dlpack {
    wp_dlpack_tensor_t tensor;
    void *manager;
    void (*deleter)(struct wp_dlpack *self);
} wp_dlpack_t;

/* Of capsules "dltensor_versioned". */
typedef struct wp_dlpack_versioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct wp_dlpack_versioned *self);
    uint64_t flags;
    wp_dlpack_tensor_t tensor;
} wp_dlpack_versioned_t;

/* Fills what stays valid as long as object keeps its memory. -1: an exception. */
typedef int (*wp_dlpack_read_t)(void *object, wp_dlpack_tensor_t *out);

/* Of capsules "dlpack_exchange_api", an attribute of a type: as far as it is used here. */
typedef struct wp_dlpack_exchange {
    uint32_t major, minor;
    void *older;
    void (*unused[3])(void); /* allocate; from and to objects, which own memory */
    wp_dlpack_read_t read;   /* may be NULL */
} wp_dlpack_exchange_t;

/* That of a type's objects, or NULL: then there is no exception. */
wp_dlpack_read_t wp_dlpack_read_of(PyObject *type);
void wp_dlpack_set_dtype(wp_dlpack_tensor_t *tensor, weft_dtype_t dtype);
/* The struct of a capsule, whether it may be written; NULL with an exception. */
const wp_dlpack_tensor_t *wp_dlpack_tensor_of(PyObject *capsule, bool *out_writable);
/* obj.__dlpack__(max_version=(1, 0)), which tells whether it is read-only; without where it is
 * older. */
PyObject *wp_dlpack_export_of(PyObject *object);
/* The device type of an object; -1 with an exception. */
long wp_dlpack_device_of(PyObject *object);
/* Type, dimensions and memory of tensor, which is contiguous. */
int wp_dlpack_fill(const wp_dlpack_tensor_t *tensor, bool writable, const char *argument,
                   wp_array_flags_t flags, wp_array_t *out);

#endif
