/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets for buffers whose lifetimes are known: buffers alive at the same time never overlap. */
#ifndef WEFT_FUSION_MEMORY_H
#define WEFT_FUSION_MEMORY_H

#include "runtime/base/memory.h"

typedef struct wefti_memory_item {
    uint64_t size_bytes;  /* payload; memory is taken in multiples of the alignment, at least one */
    uint32_t first, last; /* alive from position first to position last, both included */
    uint64_t offset_bytes; /* the answer */
} wefti_memory_item_t;

/* An item with the keys its order needs, so that sorting needs no context. */
typedef struct wefti_memory_slot {
    uint64_t size_bytes; /* padded */
    uint64_t offset_bytes;
    uint32_t first, last;
    uint32_t item;
    uint32_t block; /* offsets_sweep.c's */
} wefti_memory_slot_t;

/* offsets_sweep.c: best fit for slots in the order of first. */
weft_status_t wefti_memory_sweep(wefti_memory_slot_t *slots, uint32_t count,
                                 const weft_allocator_t *allocator, uint64_t *out_total);

/* Assigns offsets by best fit, trying several orders and keeping the smallest total. Deterministic.
 * In O(n log n): the orders that take longer are tried for up to WEFTI_MEMORY_THOROUGH items. */
#define WEFTI_MEMORY_THOROUGH 4096u
weft_status_t wefti_memory_assign(wefti_memory_item_t *items, uint32_t count, uint64_t alignment,
                                  const weft_allocator_t *allocator, uint64_t *out_total_bytes);
/* The most bytes of payload alive at one position: no assignment needs less. */
weft_status_t wefti_memory_peak(const wefti_memory_item_t *items, uint32_t count,
                                const weft_allocator_t *allocator, uint64_t *out_peak_bytes);

#endif
