/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels of broken groups: given back when all ranks are through with them, and never before. A
 * context has 128; a thousand groups that break must find room, one after the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"
#include "tests/support/support.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 300
#else
#define ROUNDS 1000
#endif

/* All ranks but one call the one thing, that one another. */
static void break_group(weft_group_t *group, uint32_t who)
{
    int32_t data[4] = {1, 2, 3, 4};
    weft_reduction_t reduction =
        weft_group_rank(group) == who ? WEFT_REDUCTION_MAX : WEFT_REDUCTION_SUM;
    RANK_CHECK(weft_all_reduce(data, data, 4, WEFT_DTYPE_I32, reduction, group, NULL) ==
               WEFT_ERR_MISMATCH);
}

static void check_group(weft_group_t *group)
{
    int32_t one = 1;
    RANK_OK(weft_all_reduce(&one, &one, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_CHECK(one == (int32_t)weft_group_size(group));
}

static void run_thousand(rank_world_t *world)
{
    for (uint32_t i = 0; i < ROUNDS; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_create_world(world->context, &group));
        /* Calls before it breaks, as many as the round's number says. */
        for (uint32_t c = 0; c < i % 3; c++) {
            check_group(group);
        }
        break_group(group, i % world->size);
        weft_group_destroy(group);
    }
    check_group(world->group);
}

static void test_channels_of_a_thousand_broken_groups(void **state)
{
    (void)state;
    support_rank_threads(2, run_thousand, NULL);
    assert_true(support_rank_processes_too(3, run_thousand, NULL));
}

/* Halves of the world share a channel's number; only one of them breaks. */
static void run_halves(rank_world_t *world)
{
    for (uint32_t i = 0; i < ROUNDS / 4; i++) {
        weft_group_t *half = NULL, *next = NULL;
        RANK_OK(weft_group_split(world->group, world->rank & 1, 0, &half));
        if ((world->rank & 1) == (i & 1)) {
            break_group(half, 0);
            weft_group_destroy(half);
            half = NULL;
        }
        /* The other half goes on while the world makes groups. */
        RANK_OK(weft_group_duplicate(world->group, &next));
        check_group(next);
        if (half != NULL) {
            check_group(half);
        }
        weft_group_destroy(half);
        weft_group_destroy(next);
    }
}

static void test_channels_of_halves(void **state)
{
    (void)state;
    support_rank_threads(4, run_halves, NULL);
}

/* A rank that keeps its broken group keeps the channel, on all ranks. */
static void run_kept(rank_world_t *world)
{
    weft_group_t *kept = NULL, *others[8];
    RANK_OK(weft_group_create_world(world->context, &kept));
    break_group(kept, 0);
    if (world->rank != 0) {
        weft_group_destroy(kept);
    }
    for (uint32_t round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < 8; i++) {
            RANK_OK(weft_group_create_world(world->context, &others[i]));
            check_group(others[i]);
        }
        if (world->rank == 0) { /* its message is still there: nobody wrote over it */
            RANK_CHECK(weft_group_status(kept) == WEFT_ERR_MISMATCH);
            RANK_CHECK(strstr(weft_last_error(), "x i32 (max)") != NULL);
        }
        for (uint32_t i = 0; i < 8; i++) {
            weft_group_destroy(others[i]);
        }
    }
    if (world->rank == 0) {
        weft_group_destroy(kept);
    }
}

static void test_channels_that_are_kept(void **state)
{
    (void)state;
    support_rank_threads(3, run_kept, NULL);
}

/* The group breaks while a call of it is on a stream, which outlives it. */
static void run_streams(rank_world_t *world)
{
    for (uint32_t i = 0; i < 150; i++) {
        weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
        params.name = "s";
        params.flags = i % 2 ? WEFT_STREAM_THREAD : 0;
        weft_stream_t *stream = NULL;
        weft_group_t *group = NULL;
        int32_t data[2] = {1, 1};
        RANK_OK(weft_stream_create(world->context, &params, &stream));
        RANK_OK(weft_group_create_world(world->context, &group));
        RANK_OK(weft_all_reduce(data, data, world->rank == 0 ? 1 : 2, WEFT_DTYPE_I32,
                                WEFT_REDUCTION_SUM, group, stream));
        if (i % 3 == 0) {
            RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_MISMATCH);
        }
        weft_group_destroy(group);
        weft_stream_destroy(stream);
    }
    check_group(world->group);
}

static void test_channels_and_streams(void **state)
{
    (void)state;
    support_rank_threads(2, run_streams, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_channels_of_a_thousand_broken_groups),
        cmocka_unit_test(test_channels_of_halves),
        cmocka_unit_test(test_channels_that_are_kept),
        cmocka_unit_test(test_channels_and_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
