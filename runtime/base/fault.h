/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first error of an object that several threads or processes use: the first writer wins, later
 * errors are dropped. Zero at first; all of it may lie in shared memory.
 *
 *   0 none  --claim-->  1 being written  --publish-->  2 readable
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

/* True: the caller is the first, and publishes. */
bool wefti_fault_claim(wefti_fault_t *fault);
void wefti_fault_publish(wefti_fault_t *fault, weft_status_t status, const char *text);
/* Both; true when this call stored the error. */
bool wefti_fault_set(wefti_fault_t *fault, weft_status_t status, const char *text);

/* WEFT_OK, or the stored error, adopted as the calling thread's message. Threads of one process. */
weft_status_t wefti_fault_get(const wefti_fault_t *fault);

/*
 * Between processes: the writer may end in the middle, and nothing that it wrote is trusted. state
 * is 1 only if the record was not readable for a while. read copies text and returns a valid error.
 */
uint32_t wefti_fault_state(const wefti_fault_t *fault);
weft_status_t wefti_fault_read(const wefti_fault_t *fault, char text[WEFTI_ERROR_TEXT_BYTES]);

#endif
