/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fusion/lower/offsets.h"
#include "runtime/base/error.h"
#include "tests/fusion/support_view.h"
#include "tests/support/support.h"

#define ALIGNMENT 64u

static uint64_t padded(uint64_t bytes)
{
    return bytes == 0 ? ALIGNMENT : (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The definition, by brute force: alive together means apart in memory. */
static void check_apart(const wefti_memory_item_t *items, uint32_t count, uint64_t total)
{
    for (uint32_t i = 0; i < count; i++) {
        const wefti_memory_item_t *a = &items[i];
        assert_int_equal(a->offset_bytes % ALIGNMENT, 0);
        assert_true(a->offset_bytes + padded(a->size_bytes) <= total);
        for (uint32_t j = 0; j < i; j++) {
            const wefti_memory_item_t *b = &items[j];
            bool together = a->first <= b->last && b->first <= a->last;
            bool apart = a->offset_bytes + padded(a->size_bytes) <= b->offset_bytes ||
                         b->offset_bytes + padded(b->size_bytes) <= a->offset_bytes;
            assert_true(!together || apart);
        }
    }
}

static uint64_t brute_force_peak(const wefti_memory_item_t *items, uint32_t count, uint32_t last)
{
    uint64_t peak = 0;
    for (uint32_t t = 0; t <= last; t++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            sum += items[i].first <= t && t <= items[i].last ? items[i].size_bytes : 0;
        }
        peak = sum > peak ? sum : peak;
    }
    return peak;
}

static void test_memory_never_overlaps_live_buffers(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 300; round++) {
        wefti_memory_item_t items[120];
        uint32_t count = test_draw(&random, 120), last = 1 + test_draw(&random, 100);
        uint64_t total = UINT64_MAX, peak = UINT64_MAX;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t first = test_draw(&random, last + 1);
            items[i] = (wefti_memory_item_t){
                .size_bytes = test_draw(&random, 1u << (1 + test_draw(&random, 16))),
                .first = first,
                .last = first + test_draw(&random, last + 1 - first)};
        }
        assert_int_equal(wefti_memory_assign(items, count, ALIGNMENT, NULL, &total), WEFT_OK);
        assert_int_equal(wefti_memory_peak(items, count, NULL, &peak), WEFT_OK);
        check_apart(items, count, total);
        assert_int_equal(peak, brute_force_peak(items, count, last));
        assert_true(total >= peak);
    }
}

/* What training graphs look like: activations are kept for the backward pass and die in reverse. */
static void test_memory_is_near_the_peak_for_training(void **state)
{
    uint64_t random = 88172645463325252u;
    (void)state;
    for (int round = 0; round < 100; round++) {
        wefti_memory_item_t items[90];
        uint32_t layers = 2 + test_draw(&random, 28), count = 0;
        uint64_t total, peak;
        for (uint32_t i = 0; i < layers; i++) {
            uint64_t size = 64u * (1 + test_draw(&random, 1000));
            uint32_t back = 2 * layers - 1 - i;
            items[count++] = (wefti_memory_item_t){size, i, back, 0};        /* activation */
            items[count++] = (wefti_memory_item_t){size, back, back + 1, 0}; /* its gradient */
            items[count++] = (wefti_memory_item_t){size / 2, i, i, 0};       /* what dies at once */
        }
        assert_int_equal(wefti_memory_assign(items, count, ALIGNMENT, NULL, &total), WEFT_OK);
        assert_int_equal(wefti_memory_peak(items, count, NULL, &peak), WEFT_OK);
        check_apart(items, count, total);
        assert_true((double)total <= 1.25 * (double)peak);
    }
}

/* More items than the orders that look at every pair take: nothing overlaps, and a stack of
 * lifetimes is found in one of the two sweeps. */
static void test_memory_of_many_items(void **state)
{
    uint32_t layers = WEFTI_MEMORY_THOROUGH, count = 2 * layers;
    uint64_t random = 88172645463325252u, total, peak;
    wefti_memory_item_t *items = malloc(count * sizeof *items);
    uint32_t *owner;
    (void)state;
    assert_non_null(items);
    for (uint32_t i = 0; i < layers; i++) {
        uint64_t size = 64u * (1 + test_draw(&random, 100));
        uint32_t back = 2 * layers - 1 - i;
        items[2 * i] = (wefti_memory_item_t){size, i, back, 0};
        items[2 * i + 1] = (wefti_memory_item_t){64, i, i, 0};
    }
    assert_int_equal(wefti_memory_assign(items, count, ALIGNMENT, NULL, &total), WEFT_OK);
    assert_int_equal(wefti_memory_peak(items, count, NULL, &peak), WEFT_OK);
    assert_int_equal(total, peak);
    /* Random lifetimes, replayed: who is written where until when. */
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = test_draw(&random, 1000);
        items[i] = (wefti_memory_item_t){64u * (1 + test_draw(&random, 50)), first,
                                         first + test_draw(&random, 30), 0};
    }
    assert_int_equal(wefti_memory_assign(items, count, ALIGNMENT, NULL, &total), WEFT_OK);
    assert_int_equal(wefti_memory_peak(items, count, NULL, &peak), WEFT_OK);
    assert_in_range(total, peak, 2 * peak);
    owner = calloc(total / 64, sizeof *owner);
    assert_non_null(owner);
    for (uint32_t t = 0; t < 1100; t++) {
        memset(owner, 0, total / 64 * sizeof *owner);
        for (uint32_t i = 0; i < count; i++) {
            for (uint64_t at = 0;
                 items[i].first <= t && t <= items[i].last && at < items[i].size_bytes / 64; at++) {
                assert_int_equal(owner[items[i].offset_bytes / 64 + at], 0);
                owner[items[i].offset_bytes / 64 + at] = 1;
            }
        }
    }
    free(owner);
    free(items);
}

static void test_memory_reuses_what_died(void **state)
{
    wefti_memory_item_t items[] = {
        {1000, 0, 1, 0}, {1000, 1, 2, 0}, {1000, 2, 3, 0}, {1000, 3, 4, 0}};
    uint64_t total;
    (void)state;
    assert_int_equal(wefti_memory_assign(items, 4, ALIGNMENT, NULL, &total), WEFT_OK);
    assert_int_equal(total, 2 * padded(1000));
}

static void test_memory_refuses_what_cannot_be_counted(void **state)
{
    wefti_memory_item_t items[] = {
        {UINT64_MAX / 2, 0, 1, 0}, {UINT64_MAX / 2, 0, 1, 0}, {UINT64_MAX / 2, 0, 1, 0}};
    uint64_t total = 7;
    (void)state;
    assert_int_equal(wefti_memory_assign(items, 3, ALIGNMENT, NULL, &total), WEFT_ERR_NO_MEMORY);
    assert_int_equal(total, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_never_overlaps_live_buffers),
        cmocka_unit_test(test_memory_is_near_the_peak_for_training),
        cmocka_unit_test(test_memory_of_many_items),
        cmocka_unit_test(test_memory_reuses_what_died),
        cmocka_unit_test(test_memory_refuses_what_cannot_be_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
