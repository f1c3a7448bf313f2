/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets by lifetime intervals. Optimal assignment is NP-hard; best fit in the order of size is
 * close to the peak for training graphs, in the order of time for chains of similar sizes. Trying
 * both costs microseconds.
 */
#include "fusion/memory.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* An item with the keys its order needs, so that sorting needs no context. */
typedef struct slot {
    uint64_t size_bytes; /* padded */
    uint64_t offset_bytes;
    uint32_t first, last;
    uint32_t item;
} slot_t;

static int by_item(const slot_t *x, const slot_t *y)
{
    return (x->item > y->item) - (x->item < y->item);
}

static int compare_size(const void *a, const void *b)
{
    const slot_t *x = a, *y = b;
    if (x->size_bytes != y->size_bytes) {
        return x->size_bytes > y->size_bytes ? -1 : 1;
    }
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return by_item(x, y);
}

static int compare_time(const void *a, const void *b)
{
    const slot_t *x = a, *y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    if (x->size_bytes != y->size_bytes) {
        return x->size_bytes > y->size_bytes ? -1 : 1;
    }
    return by_item(x, y);
}

/* The longest-lived first: they make a floor that the rest is stacked upon. */
static int compare_span(const void *a, const void *b)
{
    const slot_t *x = a, *y = b;
    uint32_t span_x = x->last - x->first, span_y = y->last - y->first;
    if (span_x != span_y) {
        return span_x > span_y ? -1 : 1;
    }
    return compare_size(a, b);
}

/* The smallest gap below the items alive at the same time that holds the slot, else the end of
 * them. */
static uint64_t best_fit(const slot_t *slot, const slot_t *const *placed, uint32_t placed_count)
{
    uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < placed_count; i++) {
        const slot_t *other = placed[i];
        if (other->last < slot->first || other->first > slot->last) {
            continue;
        }
        if (other->offset_bytes > end && other->offset_bytes - end >= slot->size_bytes &&
            other->offset_bytes - end < best_gap) {
            best = end;
            best_gap = other->offset_bytes - end;
        }
        if (other->offset_bytes + other->size_bytes > end) {
            end = other->offset_bytes + other->size_bytes;
        }
    }
    return best != UINT64_MAX ? best : end;
}

/* Places the slots in their order; placed is room for count pointers. Returns the total. */
static uint64_t place_all(slot_t *slots, uint32_t count, const slot_t **placed)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        slots[i].offset_bytes = best_fit(&slots[i], placed, i);
        while (at > 0 && placed[at - 1]->offset_bytes > slots[i].offset_bytes) {
            placed[at] = placed[at - 1];
            at--;
        }
        placed[at] = &slots[i];
        if (slots[i].offset_bytes + slots[i].size_bytes > total) {
            total = slots[i].offset_bytes + slots[i].size_bytes;
        }
    }
    return total;
}

weft_status_t wefti_memory_assign(wefti_memory_item_t *items, uint32_t count, uint64_t alignment,
                                  const weft_allocator_t *allocator, uint64_t *out_total_bytes)
{
    static int (*const orders[])(const void *, const void *) = {compare_size, compare_time,
                                                                compare_span};
    slot_t *slots = wefti_alloc(allocator, (size_t)count * sizeof(*slots));
    const slot_t **placed = wefti_alloc(allocator, (size_t)count * sizeof(*placed));
    uint64_t best = UINT64_MAX, sum = 0;
    weft_status_t status = WEFT_OK;
    if (slots == NULL || placed == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size = items[i].size_bytes == 0 ? 1 : items[i].size_bytes;
        if (size > UINT64_MAX / 2 || __builtin_add_overflow(sum, size + alignment, &sum)) {
            status =
                wefti_error(WEFT_ERR_NO_MEMORY, "the buffers have more bytes than can be counted");
            goto done;
        }
        slots[i] = (slot_t){.size_bytes = (size + alignment - 1) / alignment * alignment,
                            .first = items[i].first,
                            .last = items[i].last,
                            .item = i};
    }
    for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]); o++) {
        uint64_t total;
        qsort(slots, count, sizeof(*slots), orders[o]);
        total = place_all(slots, count, placed);
        for (uint32_t i = 0; total < best && i < count; i++) {
            items[slots[i].item].offset_bytes = slots[i].offset_bytes;
        }
        best = total < best ? total : best;
    }
    *out_total_bytes = best;
done:
    wefti_free(allocator, placed);
    wefti_free(allocator, slots);
    return status;
}

weft_status_t wefti_memory_peak(const wefti_memory_item_t *items, uint32_t count,
                                const weft_allocator_t *allocator, uint64_t *out_peak_bytes)
{
    uint32_t last = 0;
    uint64_t peak = 0, *change;
    for (uint32_t i = 0; i < count; i++) {
        last = items[i].last > last ? items[i].last : last;
    }
    /* Differences, unsigned: a sum that is not negative comes out right whatever wraps on the way.
     */
    change = wefti_alloc(allocator, ((size_t)last + 2) * sizeof(*change));
    if (change == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        change[items[i].first] += items[i].size_bytes;
        change[items[i].last + 1] -= items[i].size_bytes;
    }
    for (uint32_t t = 0; t <= last; t++) {
        change[t + 1] += change[t];
        peak = change[t] > peak ? change[t] : peak;
    }
    wefti_free(allocator, change);
    *out_peak_bytes = peak;
    return WEFT_OK;
}
