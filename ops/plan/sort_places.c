/* SPDX-License-Identifier: Apache-2.0 */
/* Plans have hundreds of thousands of places: sorted by digits, not by comparing. */
#include "ops/plan/plan_internal.h"

#include <string.h>

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)

/* One stable pass over the digit that begins at bit. */
static void sort_digit(const wefti_plan_place_t *from, wefti_plan_place_t *to, size_t count,
                       uint32_t bit)
{
    size_t at[DIGITS + 1] = {0};
    for (size_t i = 0; i < count; i++) {
        at[(from[i].offset_bytes >> bit) % DIGITS + 1]++;
    }
    for (size_t d = 1; d < DIGITS; d++) {
        at[d] += at[d - 1];
    }
    for (size_t i = 0; i < count; i++) {
        to[at[(from[i].offset_bytes >> bit) % DIGITS]++] = from[i];
    }
}

weft_status_t wefti_plan_sort_places(const weft_plan_t *plan, wefti_plan_place_t *places,
                                     size_t count)
{
    uint64_t bits = 0;
    wefti_plan_place_t *other, *from = places, *to;
    for (size_t i = 0; i < count; i++) {
        bits |= places[i].offset_bytes;
    }
    to = other = wefti_alloc(plan->arena.allocator, (count + 1) * sizeof *other);
    if (!other) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t bit = 0; bit < 64 && bits >> bit != 0; bit += DIGIT_BITS) {
        if ((bits >> bit) % DIGITS == 0) {
            continue; /* no digit there: offsets are multiples of 64 */
        }
        sort_digit(from, to, count, bit);
        wefti_plan_place_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != places && count > 0) {
        memcpy(places, from, count * sizeof *places);
    }
    wefti_free(plan->arena.allocator, other);
    return WEFT_OK;
}
