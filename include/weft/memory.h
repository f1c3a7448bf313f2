/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h Memory that peers reach directly.
 *
 * Collectives on it read and write the peers' copies in place; on any other memory they go through
 * staging buffers that the group owns. Results have the same bits either way.
 */
#ifndef WEFT_MEMORY_H
#define WEFT_MEMORY_H

#include <weft/context.h>

WEFT_EXTERN_C_BEGIN
/**
 * Zeroed memory that all ranks of the host reach, at the same offset on every rank; aligned to
 * 4096. Collective over the world: all ranks ask for the same sizes in the same order. One thread
 * of a rank at a time allocates, frees, registers and makes groups; calls in flight are not
 * disturbed.
 */
WEFT_API weft_status_t weft_mem_alloc(weft_context_t *context, size_t bytes, void **out_address);
/** NULL is fine. No call may be using it, on any rank; all ranks free in the same order. */
WEFT_API weft_status_t weft_mem_free(weft_context_t *context, void *address);
/**
 * Adopts the whole pages of an existing allocation in place: contents and address stay, and later
 * calls on it take the direct path (a partial first or last page goes through staging). Nobody may
 * use the range during the call. Collective; sizes may differ. Memory must be private, readable and
 * writable. A forked child does not inherit adopted pages.
 */
WEFT_API weft_status_t weft_mem_register(weft_context_t *context, void *address, size_t bytes);
/**
 * Gives the pages back as private memory, contents kept; before the allocation is freed. Address is
 * what was registered. Collective, in the same order everywhere.
 */
WEFT_API weft_status_t weft_mem_unregister(weft_context_t *context, void *address);
WEFT_EXTERN_C_END

#endif
