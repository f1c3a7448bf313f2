/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of our own, as an object with the buffer protocol; and what a context keeps about memory.
 */
#ifndef WEFT_PYTHON_MEMORY_H
#define WEFT_PYTHON_MEMORY_H

#include "python/src/weft_python.h"

typedef struct wp_memory {
    PyObject_HEAD wp_context_t
        *context;    /* whose weft_mem_alloc it is from; owned; NULL: from the heap, or owner's */
    PyObject *owner; /* whose memory it is; owned; NULL: its own */
    uint64_t number; /* of the allocation in context */
    void *data;
    size_t bytes;
    weft_dtype_t dtype;
    uint32_t rank;
    Py_ssize_t dims[WP_MAX_DIMS], strides[WP_MAX_DIMS];
} wp_memory_t;

typedef struct wp_allocation {
    uint64_t number;
    void *address;
    bool gone; /* no array of this rank uses it */
} wp_allocation_t;

typedef struct wp_registration {
    wp_array_t array; /* keeps the memory */
    struct wp_registration *next;
} wp_registration_t;

/*
 * What a context keeps while it is open. Allocations have the same numbers and order on all ranks,
 * as weft_mem_alloc is collective. Guarded by the GIL.
 */
typedef struct wp_memories {
    wp_holder_t holder;
    wp_context_t *context;
    wp_allocation_t *allocations; /* by number */
    size_t count, capacity;
    uint64_t next_number;
    wp_registration_t *registrations;
} wp_memories_t;

/* Those of context, made at first use; NULL with an exception, also when it was closed. */
wp_memories_t *wp_memories_of(wp_context_t *context);
/* After others had the GIL: false, and WeftStateError is set, where one of them closes context. */
bool wp_memories_open(wp_context_t *context);
/* An array of number is no more. */
void wp_memories_gone(wp_memories_t *memories, uint64_t number);

/* No memory yet; a new reference. */
wp_memory_t *wp_memory_new(wp_state_t *state, weft_dtype_t dtype, uint32_t rank,
                           const int64_t *dims);
/* Uninitialised memory of this process; a new reference. */
PyObject *wp_memory_heap(wp_state_t *state, weft_dtype_t dtype, uint32_t rank, const int64_t *dims);
/* A numpy array over it, bfloat16 as uint16; where there is no numpy a memoryview. */
PyObject *wp_memory_array(wp_state_t *state, wp_memory_t *memory);

int wp_allocate_init(PyObject *module);
int wp_register_init(PyObject *module);

#endif
