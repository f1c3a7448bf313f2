/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets by lifetime intervals. Optimal assignment is NP-hard; best fit in the order of size is
 * close to the peak for training graphs, in the order of time, forwards or backwards, for chains of
 * similar sizes and for what is kept for the backward pass. Trying all costs microseconds; in a
 * large graph those that look at every pair are left out.
 */
#include "fusion/lower/offsets.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

static int by_item(const wefti_memory_slot_t *x, const wefti_memory_slot_t *y)
{
    return (x->item > y->item) - (x->item < y->item);
}

static int compare_size(const void *a, const void *b)
{
    const wefti_memory_slot_t *x = a, *y = b;
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
    const wefti_memory_slot_t *x = a, *y = b;
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
    const wefti_memory_slot_t *x = a, *y = b;
    uint32_t span_x = x->last - x->first, span_y = y->last - y->first;
    if (span_x != span_y) {
        return span_x > span_y ? -1 : 1;
    }
    return compare_size(a, b);
}

/* The smallest gap below the items alive at the same time that holds the slot, else the end of
 * them. */
static uint64_t best_fit(const wefti_memory_slot_t *slot, const wefti_memory_slot_t *const *placed,
                         uint32_t placed_count)
{
    uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < placed_count; i++) {
        const wefti_memory_slot_t *other = placed[i];
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
static uint64_t place_all(wefti_memory_slot_t *slots, uint32_t count,
                          const wefti_memory_slot_t **placed)
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

/* Time runs the other way: what ends last comes first. */
static void turn_round(wefti_memory_slot_t *slots, uint32_t count)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        end = slots[i].last > end ? slots[i].last : end;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = slots[i].first;
        slots[i].first = end - slots[i].last;
        slots[i].last = end - first;
    }
}

/* Keeps what the slots say if it is the best so far. */
static void keep_better(wefti_memory_item_t *items, const wefti_memory_slot_t *slots,
                        uint32_t count, uint64_t total, uint64_t *best)
{
    for (uint32_t i = 0; total < *best && i < count; i++) {
        items[slots[i].item].offset_bytes = slots[i].offset_bytes;
    }
    *best = total < *best ? total : *best;
}

static weft_status_t make_slots(const wefti_memory_item_t *items, uint32_t count,
                                uint64_t alignment, wefti_memory_slot_t *slots)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size = items[i].size_bytes == 0 ? 1 : items[i].size_bytes;
        if (size > UINT64_MAX / 2 || __builtin_add_overflow(sum, size + alignment, &sum)) {
            return wefti_error(WEFT_ERR_NO_MEMORY, "buffers too large: size in bytes overflows");
        }
        slots[i] =
            (wefti_memory_slot_t){.size_bytes = (size + alignment - 1) / alignment * alignment,
                                  .first = items[i].first,
                                  .last = items[i].last,
                                  .item = i};
    }
    return WEFT_OK;
}

weft_status_t wefti_memory_assign(wefti_memory_item_t *items, uint32_t count, uint64_t alignment,
                                  const weft_allocator_t *allocator, uint64_t *out_total_bytes)
{
    static int (*const orders[])(const void *, const void *) = {compare_size, compare_span};
    wefti_memory_slot_t *slots = wefti_alloc(allocator, (size_t)count * sizeof(*slots));
    const wefti_memory_slot_t **placed = wefti_alloc(allocator, (size_t)count * sizeof(*placed));
    uint64_t best = UINT64_MAX, total;
    weft_status_t status = slots == NULL || placed == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    WEFT_TRY(status, status, done);
    WEFT_TRY(status, make_slots(items, count, alignment, slots), done);
    for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]) && count <= WEFTI_MEMORY_THOROUGH;
         o++) {
        qsort(slots, count, sizeof(*slots), orders[o]);
        keep_better(items, slots, count, place_all(slots, count, placed), &best);
    }
    for (int backwards = 0; backwards < 2; backwards++) {
        qsort(slots, count, sizeof(*slots), compare_time);
        WEFT_TRY(status, wefti_memory_sweep(slots, count, allocator, &total), done);
        keep_better(items, slots, count, total, &best);
        turn_round(slots, count);
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
    WEFT_RETURN_IF_NO_MEMORY(change);
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
