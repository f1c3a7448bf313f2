/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a context.
 *
 *   device.c  memory of the device that is this rank's alone; copies that wait
 *   region.c  memory that peers reach: the region, and registered pages
 */
#ifndef WEFT_RUNTIME_MEMORY_H
#define WEFT_RUNTIME_MEMORY_H

#include <weft/memory.h>

#include "runtime/context/context.h"

#define WEFTI_FILL_BYTES 4096u
#define WEFTI_ADDRESS_SPACE ((size_t)1 << 46) /* allocations above are not even tried */

/* device.c: queues bytes of pattern's [WEFTI_FILL_BYTES], which must stay until they ran. */
weft_status_t wefti_device_fill(const weft_device_ops_t *ops, weft_queue_t *queue, void *dst,
                                const void *pattern, size_t bytes);

/* A registered allocation: [begin, end) of this process is region [offset, ...). */
typedef struct wefti_registered {
    uint8_t *address; /* as passed to weft_mem_register */
    size_t bytes;
    uint8_t *begin, *end;
    size_t offset; /* SIZE_MAX: no rank has whole pages, so it has no memory of the region */
} wefti_registered_t;

/* region.c: the allocation that begins at address or, with inside, has it; false: none. A copy, as
 * another thread may unregister it. */
bool wefti_memory_registered(const weft_context_t *context, const void *address, bool inside,
                             wefti_registered_t *out);
/*
 * True when peers reach [address + *out_lead, address + bytes - *out_trail), which is at
 * *out_offset from the own region (for address itself); false when they reach nothing of it.
 */
bool wefti_memory_reach(weft_context_t *context, const void *address, size_t bytes,
                        uint64_t *out_offset, uint32_t *out_lead, uint32_t *out_trail);

#endif
