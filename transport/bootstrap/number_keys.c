/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys are equal, in a time that grows with their number alone. */
#include "transport/bootstrap/bootstrap.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

#define FREE UINT32_MAX

static bool is_zero(const uint8_t *key, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && key[i] == 0) {
        i++;
    }
    return i == bytes;
}

weft_status_t wefti_number_keys(const weft_allocator_t *allocator, const void *keys, size_t stride,
                                size_t bytes, uint32_t count, uint32_t *out_numbers,
                                uint32_t *out_firsts, uint32_t *out_count)
{
    uint32_t slots = 2, known = 0;
    while (slots < 2 * count) {
        slots *= 2;
    }
    uint32_t *table = wefti_alloc(allocator, slots * sizeof *table); /* numbers by hash */
    WEFT_RETURN_IF_NO_MEMORY(table != NULL);
    memset(table, 0xff, slots * sizeof *table);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *key = (const uint8_t *)keys + i * stride;
        bool alone = is_zero(key, bytes);
        uint32_t at = (uint32_t)wefti_hash_memory(WEFTI_HASH_START, key, bytes) & (slots - 1);
        while (!alone && table[at] != FREE &&
               memcmp((const uint8_t *)keys + out_firsts[table[at]] * stride, key, bytes) != 0) {
            at = (at + 1) & (slots - 1);
        }
        out_numbers[i] = !alone && table[at] != FREE ? table[at] : known;
        if (out_numbers[i] == known) {
            out_firsts[known++] = i;
            if (!alone) {
                table[at] = out_numbers[i];
            }
        }
    }
    *out_count = known;
    wefti_free(allocator, table);
    return WEFT_OK;
}
