/* SPDX-License-Identifier: Apache-2.0 */
/* Copying what another core has just written. */
#ifndef WEFT_RUNTIME_BASE_COPY_H
#define WEFT_RUNTIME_BASE_COPY_H

#include <stddef.h>

/*
 * memmove that asks for lines of from well before it needs them: those in another core's cache are
 * twice as far away as memory's prefetchers reckon with.
 */
void wefti_copy(void *to, const void *from, size_t bytes);

#endif
