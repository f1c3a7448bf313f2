/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-reduce where ranks outnumber cores, whatever this machine has: the first rank that runs does
 * the shares of others. The same bits, in every order in which ranks come.
 */
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "runtime/collective/call.h"
#include "support_collectives.h"
#include "tests/support/support.h"

static void run_helping(rank_world_t *world)
{
    static const uint64_t counts[] = {900, 1, 5000, 0, 4097, 70001};
    one_rank_t one;
    world->context->endpoint->may_spin = false; /* as it is where cores are few */
    support_one_init(&one, world, true, world->size);
    for (uint32_t round = 0; round < 60; round++) {
        uint64_t count = counts[round % 6];
        weft_dtype_t dtype = round % 4 == 3 ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32;
        for (uint64_t i = support_mix(round * 64 + world->rank) % 4; i > 0; i--) {
            sched_yield(); /* ranks come in another order each time */
        }
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, count, dtype, (weft_reduction_t)(round % 5),
                     0, round % 2 == 0);
        if (count >= 4097) {
            RANK_CHECK(strcmp(weft_group_last_path(world->group), "direct") == 0);
        }
        /* with what comes before and after: other paths use the same counters */
        support_call(&one, WEFT_COLLECTIVE_ALL_GATHER, count / 4, dtype, WEFT_REDUCTION_SUM, 0,
                     false);
    }
    support_one_deinit(&one);
}

static void test_threads(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 6; n++) {
        support_rank_threads(n, run_helping, NULL);
    }
}

static void test_processes(void **state)
{
    (void)state;
    assert_true(support_rank_processes_too(4, run_helping, NULL));
}

/* One rank believes that there are cores enough: then nobody helps. */
static void run_one_spins(rank_world_t *world)
{
    one_rank_t one;
    world->context->endpoint->may_spin = world->rank == 1;
    support_one_init(&one, world, true, 3);
    for (uint32_t round = 0; round < 10; round++) {
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 20000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0,
                     true);
    }
    support_one_deinit(&one);
}

static void test_one_spins(void **state)
{
    (void)state;
    support_rank_threads(3, run_one_spins, NULL);
}

#define HALF_RANGE 0x80000000u

/* Half the range of the counters without a call that says done: that does not count as said. */
static void run_wraps(rank_world_t *world)
{
    one_rank_t one;
    weft_group_t *group = world->group;
    wefti_channel_t *own = group->channels[world->rank];
    uint32_t number = HALF_RANGE - 8;
    world->context->endpoint->may_spin = false;
    support_one_init(&one, world, true, 5);
    support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 20000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0,
                 true);
    RANK_OK(weft_barrier(group, NULL)); /* both postings are behind number by less than that */
    group->calls->number = number;
    while (group->calls->number < HALF_RANGE + 8) {
        RANK_OK(weft_barrier(group, NULL));
    }
    for (uint32_t r = 0; r < group->size; r++) {
        uint32_t done = atomic_load(&group->channels[r]->done.signal.value);
        RANK_CHECK((int32_t)(done - (HALF_RANGE + 9)) < 0);
    }
    RANK_CHECK((int32_t)(atomic_load(&own->claimed) - (HALF_RANGE + 9)) < 0);
    for (uint32_t round = 0; round < 10; round++) {
        support_call(&one, WEFT_COLLECTIVE_ALL_REDUCE, 20000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0,
                     true);
        RANK_CHECK(strcmp(weft_group_last_path(group), "direct") == 0);
    }
    support_one_deinit(&one);
}

static void test_wraps(void **state)
{
    (void)state;
    support_rank_threads(4, run_wraps, NULL);
    assert_true(support_rank_processes_too(3, run_wraps, NULL));
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_one_spins),
        cmocka_unit_test(test_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
