/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first error of an object that several threads or processes use: the first writer wins, later
 * errors are dropped. Zero at first; all of it may lie in shared memory.
 *
 *   0 none  -->  4 * pid + 1 being written  -->  2 readable
 */
#ifndef WEFT_RUNTIME_BASE_FAULT_H
#define WEFT_RUNTIME_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/error.h"

typedef struct wefti_fault {
    _Atomic uint32_t state;
    int32_t status; /* weft_status_t */
    char text[WEFTI_ERROR_TEXT_BYTES];
} wefti_fault_t;
_Static_assert(sizeof(wefti_fault_t) == 488, "faults lie in shared memory");

/* True when this call stored the error. */
bool wefti_fault_set(wefti_fault_t *fault, weft_status_t status, const char *text);

/* The rest of wefti_fault_get, once there is an error. */
weft_status_t wefti_fault_adopt(const wefti_fault_t *fault);

/*
 * WEFT_OK, or the stored error, adopted as the calling thread's message. Nothing that another
 * process wrote is trusted, and it may have ended in the middle: WEFT_ERR_ABORTED if the record was
 * not readable for a while, which is longer if its writer lives.
 */
static inline weft_status_t wefti_fault_get(const wefti_fault_t *fault)
{
    /* acquire pairs with the release in set */
    return atomic_load_explicit(&fault->state, memory_order_acquire) == 0
               ? WEFT_OK
               : wefti_fault_adopt(fault);
}

#endif
