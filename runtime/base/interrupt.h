/* SPDX-License-Identifier: Apache-2.0 */
/* Whether somebody wants this rank's waits to end: as weft_interrupt_fn of the context says. */
#ifndef WEFT_RUNTIME_BASE_INTERRUPT_H
#define WEFT_RUNTIME_BASE_INTERRUPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/error.h"

typedef struct wefti_interrupter {
    int (*fn)(void *user); /* NULL: none */
    void *user;
} wefti_interrupter_t;

static inline bool wefti_interrupted(const wefti_interrupter_t *interrupt)
{
    return interrupt->fn != NULL && interrupt->fn(interrupt->user) != 0;
}

/* The calling thread's error for it. */
static inline weft_status_t wefti_interrupt_error(uint32_t rank)
{
    return wefti_error(WEFT_ERR_ABORTED, "rank %u was interrupted", rank);
}

#endif
