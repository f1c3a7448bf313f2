/* SPDX-License-Identifier: Apache-2.0 */
/* Runs all ranks' steps of an algorithm side by side in every order that a random scheduler finds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ops/algo/algo.h"

#define MAX_RANKS 9u
#define MAX_ELEMS 700u
#define RUNS 3u

typedef struct world {
    uint32_t ranks;
    uint64_t elems;
    wefti_algo_schedule_t schedules[MAX_RANKS];
    uint32_t next[MAX_RANKS], run[MAX_RANKS], counter[MAX_RANKS];
    uint64_t values[MAX_RANKS][MAX_ELEMS];
    uint32_t reduced[MAX_ELEMS]; /* how often in this run */
} world_t;

static uint32_t random_state;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % bound;
}

static int wait_is_over(const world_t *world, uint32_t rank, const wefti_algo_step_t *step)
{
    uint32_t target = world->run[rank] * world->schedules[rank].phase_count + step->phase;
    for (uint32_t peer = 0; peer < world->ranks; peer++) {
        if (peer != rank && (step->peer == WEFTI_ALGO_ALL_PEERS || step->peer == peer) &&
            world->counter[peer] < target) {
            return 0;
        }
    }
    return 1;
}

/* Runs the next step of rank; 0 when it is blocked. */
static int run_step(world_t *world, uint32_t rank)
{
    const wefti_algo_step_t *step = &world->schedules[rank].steps[world->next[rank]];
    uint64_t end = step->elem_begin + step->elem_count;
    assert_true(end <= world->elems);
    switch (step->kind) {
    case WEFTI_ALGO_SIGNAL: {
        uint32_t value = world->run[rank] * world->schedules[rank].phase_count + step->phase;
        assert_true(value > world->counter[rank]); /* counters only grow */
        world->counter[rank] = value;
        break;
    }
    case WEFTI_ALGO_WAIT:
        if (!wait_is_over(world, rank, step)) {
            return 0;
        }
        break;
    case WEFTI_ALGO_REDUCE:
        assert_int_equal(step->elem_begin * sizeof(float) % 64, 0);
        for (uint64_t i = step->elem_begin; i < end; i++) {
            uint64_t sum = 0;
            for (uint32_t peer = 0; peer < world->ranks; peer++) {
                assert_int_equal(world->run[peer], world->run[rank]); /* nobody has gone on */
                sum += world->values[peer][i];
            }
            for (uint32_t peer = 0; peer < world->ranks; peer++) {
                world->values[peer][i] = sum;
            }
            world->reduced[i]++;
        }
        break;
    case WEFTI_ALGO_COPY:
        memcpy(&world->values[rank][step->elem_begin], &world->values[step->peer][step->elem_begin],
               step->elem_count * sizeof(uint64_t));
        break;
    }
    world->next[rank]++;
    return 1;
}

static uint64_t value_of(uint32_t rank, uint64_t i, uint32_t run)
{
    return (rank + 1) * 1000 + i * 3 + run;
}

static void prepare(world_t *world, wefti_algo_fn algorithm, uint32_t root)
{
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        wefti_algo_params_t params = {rank, world->ranks, root, world->elems, sizeof(float)};
        algorithm(&params, &world->schedules[rank]);
        assert_true(world->schedules[rank].step_count <= WEFTI_ALGO_MAX_STEPS);
    }
    memset(world->counter, 0, sizeof(world->counter));
}

/* Lets ranks go on in random order until all are done; a round in which nobody can is a deadlock.
 */
static void run_all(world_t *world, uint32_t run)
{
    memset(world->next, 0, sizeof(world->next));
    memset(world->reduced, 0, sizeof(world->reduced));
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        world->run[rank] = run;
        for (uint64_t i = 0; i < world->elems; i++) {
            world->values[rank][i] = value_of(rank, i, run);
        }
    }
    for (;;) {
        uint32_t left = 0, moved = 0;
        for (uint32_t i = 0; i < 4 * world->ranks; i++) {
            uint32_t rank = random_below(world->ranks);
            if (world->next[rank] < world->schedules[rank].step_count) {
                moved += (uint32_t)run_step(world, rank);
            }
        }
        for (uint32_t rank = 0; rank < world->ranks && moved == 0; rank++) {
            if (world->next[rank] < world->schedules[rank].step_count) {
                left++;
                moved += (uint32_t)run_step(world, rank);
            }
        }
        if (moved == 0) {
            assert_int_equal(left, 0);
            return;
        }
    }
}

static void test_algo_all_reduce_mesh_is_the_sum_everywhere(void **state)
{
    static const uint64_t sizes[] = {0, 1, 15, 16, 17, 100, 255, 256, 257, 700};
    static world_t world;
    (void)state;
    wefti_algo_fn algorithm = wefti_algo_find(WEFTI_COLLECTIVE_ALL_REDUCE, "mesh");
    assert_non_null(algorithm);
    for (world.ranks = 2; world.ranks <= MAX_RANKS; world.ranks++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            world.elems = sizes[s];
            prepare(&world, algorithm, 0);
            for (uint32_t run = 0; run < RUNS; run++) {
                run_all(&world, run);
                for (uint64_t i = 0; i < world.elems; i++) {
                    uint64_t sum = 0;
                    for (uint32_t rank = 0; rank < world.ranks; rank++) {
                        sum += value_of(rank, i, run);
                    }
                    assert_int_equal(world.reduced[i], 1);
                    for (uint32_t rank = 0; rank < world.ranks; rank++) {
                        assert_int_equal(world.values[rank][i], sum);
                    }
                }
            }
        }
    }
}

static void test_algo_broadcast_mesh_reaches_everybody(void **state)
{
    static world_t world;
    (void)state;
    wefti_algo_fn algorithm = wefti_algo_find(WEFTI_COLLECTIVE_BROADCAST, "mesh");
    assert_non_null(algorithm);
    world.elems = 77;
    for (world.ranks = 2; world.ranks <= MAX_RANKS; world.ranks++) {
        for (uint32_t root = 0; root < world.ranks; root++) {
            prepare(&world, algorithm, root);
            for (uint32_t run = 0; run < RUNS; run++) {
                run_all(&world, run);
                for (uint32_t rank = 0; rank < world.ranks; rank++) {
                    for (uint64_t i = 0; i < world.elems; i++) {
                        assert_int_equal(world.values[rank][i], value_of(root, i, run));
                    }
                }
            }
        }
    }
}

static void test_algo_alone_does_nothing(void **state)
{
    wefti_algo_params_t params = {0, 1, 0, 100, 4};
    wefti_algo_schedule_t schedule;
    (void)state;
    wefti_all_reduce_mesh(&params, &schedule);
    assert_int_equal(schedule.step_count, 0);
    wefti_broadcast_mesh(&params, &schedule);
    assert_int_equal(schedule.step_count, 0);
    assert_null(wefti_algo_find(WEFTI_COLLECTIVE_ALL_REDUCE, "ring"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_algo_all_reduce_mesh_is_the_sum_everywhere),
        cmocka_unit_test(test_algo_broadcast_mesh_reaches_everybody),
        cmocka_unit_test(test_algo_alone_does_nothing),
    };
    random_state =
        (uint32_t)(getenv("WEFT_SEED") != NULL ? strtoul(getenv("WEFT_SEED"), NULL, 10) : 20240917);
    print_message("seed %u (WEFT_SEED)\n", random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
