/* SPDX-License-Identifier: Apache-2.0 */
/* Many more ranks than cores, as processes: calls of the world and of small groups, a death. Over
 * hosts, the world's group agrees on calls by hosts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"
#include "tests/support/support.h"

/* Over hosts each rank lowers the schedules of all: the square of the time. */
#if defined(__SANITIZE_ADDRESS__)
#define RANKS 64u
#define RANKS_OF_HOSTS 16u
#else
#define RANKS 256u
#define RANKS_OF_HOSTS 32u
#endif
#define PER_HOST "8"
#define COLUMNS 8u

/* The sum over i of 0 .. count - 1. */
static int32_t triangle(uint32_t count)
{
    return (int32_t)(count * (count - 1) / 2);
}

/* Element i of rank r is r + i. */
static void reduce(weft_group_t *group, uint64_t count)
{
    int32_t *data = calloc(count, sizeof *data);
    uint32_t size = weft_group_size(group), rank = weft_group_rank(group);
    for (uint64_t i = 0; i < count; i++) {
        data[i] = (int32_t)(rank + i);
    }
    RANK_OK(weft_all_reduce(data, data, count, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint64_t i = 0; i < count; i++) {
        RANK_CHECK(data[i] == triangle(size) + (int32_t)(size * i));
    }
    free(data);
}

/* Block b of rank r is r * size + b. */
static void exchange(weft_group_t *group, uint64_t count)
{
    uint32_t size = weft_group_size(group), rank = weft_group_rank(group);
    int32_t *send = calloc(size * count, sizeof *send);
    int32_t *recv = calloc(size * count, sizeof *recv);
    for (uint64_t i = 0; i < size * count; i++) {
        send[i] = (int32_t)(rank * size + i / count);
    }
    RANK_OK(weft_all_to_all(send, recv, count, WEFT_DTYPE_I32, group, NULL));
    for (uint64_t i = 0; i < size * count; i++) {
        RANK_CHECK(recv[i] == (int32_t)(i / count * size + rank));
    }
    RANK_OK(
        weft_reduce_scatter(send, recv, count, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint64_t i = 0; i < count; i++) {
        RANK_CHECK(recv[i] == (int32_t)size * triangle(size) + (int32_t)(size * rank));
    }
    RANK_OK(weft_all_gather(send + rank * count, recv, count, WEFT_DTYPE_I32, group, NULL));
    for (uint64_t i = 0; i < size * count; i++) {
        RANK_CHECK(recv[i] == (int32_t)(i / count * (size + 1)));
    }
    RANK_OK(weft_broadcast(send, send, size * count, WEFT_DTYPE_I32, size / 2, group, NULL));
    for (uint64_t i = 0; i < size * count; i++) {
        RANK_CHECK(send[i] == (int32_t)(size / 2 * size + i / count));
    }
    free(send);
    free(recv);
}

static void run_calls(rank_world_t *world)
{
    weft_group_t *column = NULL;
    reduce(world->group, 1);
    reduce(world->group, 20000);
    exchange(world->group, 1);
    exchange(world->group, 33);
    RANK_OK(weft_group_split(world->group, world->rank % COLUMNS, 0, &column));
    reduce(column, 1000);
    exchange(column, 100);
    weft_group_destroy(column);
    RANK_OK(weft_barrier(world->group, NULL));
}

/* One process is gone: all others name it, and go on without it. */
static void run_death(rank_world_t *world)
{
    char name[16];
    weft_group_t *next = NULL;
    int32_t one = 1;
    uint32_t victim = world->size / 2 + 5;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK; i++) {
        if (world->rank == victim && i == 3) {
            _exit(0); /* nothing tells the others but its end */
        }
        status =
            weft_all_reduce(&one, &one, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_MAX, world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_PEER_DIED || status == WEFT_ERR_ABORTED);
    snprintf(name, sizeof name, "rank %u", victim);
    RANK_CHECK(strstr(weft_last_error(), name) != NULL);
    RANK_OK(weft_group_shrink(world->group, &next));
    RANK_CHECK(weft_group_size(next) == world->size - 1);
    reduce(next, 100);
    weft_context_t *context = weft_group_context(next);
    weft_context_retain(context);
    weft_group_destroy(world->group);
    weft_context_release(world->context);
    world->group = next;
    world->context = context;
}

static void test_calls_on_one_host(void **state)
{
    (void)state;
    assert_true(support_rank_processes(RANKS, run_calls, NULL));
}

static void test_a_death_on_one_host(void **state)
{
    (void)state;
    assert_true(support_rank_processes(RANKS, run_death, NULL));
}

static void run_on_hosts(rank_fn run)
{
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    setenv("WEFT_TEST_HOSTS", PER_HOST, 1);
    setenv("WEFT_TEST_MESH_RANKS", "8", 1);
    setenv("WEFT_LINK_TIMEOUT", "300",
           1); /* on a busy machine a process may wait for its turn for long */
    bool good = support_rank_processes(RANKS_OF_HOSTS, run, NULL);
    unsetenv("WEFT_LINK_TIMEOUT");
    unsetenv("WEFT_TEST_HOSTS");
    unsetenv("WEFT_TEST_MESH_RANKS");
    unsetenv("WEFT_TEST_TRANSPORT");
    assert_true(good);
}

static void test_calls_over_hosts(void **state)
{
    (void)state;
    run_on_hosts(run_calls);
}

static void test_a_death_over_hosts(void **state)
{
    (void)state;
    run_on_hosts(run_death);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_on_one_host),
        cmocka_unit_test(test_a_death_on_one_host),
        cmocka_unit_test(test_calls_over_hosts),
        cmocka_unit_test(test_a_death_over_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
