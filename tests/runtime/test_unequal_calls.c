/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks may do differently in one call: where the blocks of a V form are, and whether it is in
 * place. On every path: with data in call slots, direct, attached, staged and by schedules, over
 * shared memory and over put links; in every order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"
#include "tests/support/support.h"

#define MAX_RANKS 6u
#define ROOM (MAX_RANKS * 30000u)

typedef struct way {
    bool registered; /* memory that peers reach */
    bool asks;       /* for algorithms, where there are some for several hosts */
} way_t;

typedef struct buffers {
    rank_world_t *world;
    double *send, *recv;
    uint32_t round; /* ranks are in place by turns */
    uint64_t counts[MAX_RANKS], at[MAX_RANKS];
} buffers_t;

/* Of rank's contribution: element i of block b. */
static double value(uint32_t rank, uint32_t b, uint64_t i)
{
    return (double)((rank + 1) * 1000 + b * 100 + i % 97);
}

static bool is_in_place(const buffers_t *buffers)
{
    uint32_t kind = buffers->round % 4, rank = buffers->world->rank;
    return kind == 0 ? rank % 2 == 0 : kind == 1 ? rank == 0 : kind == 2 ? rank != 0 : false;
}

/* Blocks of different lengths; every rank has them in another order, with gaps of another length. */
static void place_blocks(buffers_t *buffers, uint64_t count)
{
    uint32_t n = buffers->world->size, rank = buffers->world->rank;
    uint64_t next = rank;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = (rank % 2 == 0 ? i + rank : 2 * n - 1 - i) % n;
        buffers->counts[b] = b == 1 ? count / 2 : count + b;
        buffers->at[b] = next;
        next += buffers->counts[b] + rank;
    }
}

static void check_block(const buffers_t *buffers, const char *what, const double *got,
                        uint64_t count, uint32_t b, uint32_t from)
{
    const rank_world_t *world = buffers->world;
    for (uint64_t i = 0; i < count; i++) {
        double expected = from < world->size ? value(from, b, i) : 0;
        for (uint32_t r = 0; from == world->size && r < world->size; r++) {
            expected += value(r, b, i);
        }
        if (got[i] != expected) {
            fprintf(stderr, "%s, %llu elements, round %u: rank %u of %u: %g, not %g; path %s, %s\n",
                    what, (unsigned long long)count, buffers->round, world->rank, world->size,
                    got[i], expected, weft_group_last_path(world->group),
                    weft_group_last_algorithm(world->group));
            RANK_CHECK(false);
        }
    }
}

static void fill(double *to, uint32_t rank, uint32_t b, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        to[i] = value(rank, b, i);
    }
}

/* V forms, or all blocks of count elements side by side. */
static void scatter(buffers_t *buffers, uint64_t count, bool v)
{
    rank_world_t *world = buffers->world;
    uint32_t n = world->size, rank = world->rank;
    place_blocks(buffers, count);
    for (uint32_t b = 0; b < n; b++) {
        buffers->counts[b] = v ? buffers->counts[b] : count;
        buffers->at[b] = v ? buffers->at[b] : b * count;
        fill(buffers->send + buffers->at[b], rank, b, buffers->counts[b]);
    }
    double *recv = is_in_place(buffers) ? buffers->send + buffers->at[rank] : buffers->recv;
    if (v) {
        RANK_OK(weft_reduce_scatter_v(buffers->send, recv, buffers->counts, buffers->at,
                                      WEFT_DTYPE_F64, WEFT_REDUCTION_SUM, world->group, NULL));
    } else {
        RANK_OK(weft_reduce_scatter(buffers->send, recv, count, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM,
                                    world->group, NULL));
    }
    check_block(buffers, v ? "reduce_scatter_v" : "reduce_scatter", recv, buffers->counts[rank],
                rank, n);
    for (uint32_t b = 0; b < n; b++) { /* what is not received is left alone */
        if (b != rank || recv == buffers->recv) {
            check_block(buffers, "send buffer", buffers->send + buffers->at[b], buffers->counts[b],
                        b, rank);
        }
    }
}

static void gather(buffers_t *buffers, uint64_t count, bool v)
{
    rank_world_t *world = buffers->world;
    uint32_t n = world->size, rank = world->rank;
    place_blocks(buffers, count);
    for (uint32_t b = 0; b < n && !v; b++) {
        buffers->counts[b] = count;
        buffers->at[b] = b * count;
    }
    double *send = is_in_place(buffers) ? buffers->recv + buffers->at[rank] : buffers->send;
    fill(send, rank, 0, buffers->counts[rank]);
    if (v) {
        RANK_OK(weft_all_gather_v(send, buffers->recv, buffers->counts, buffers->at, WEFT_DTYPE_F64,
                                  world->group, NULL));
    } else {
        RANK_OK(weft_all_gather(send, buffers->recv, count, WEFT_DTYPE_F64, world->group, NULL));
    }
    for (uint32_t b = 0; b < n; b++) {
        check_block(buffers, v ? "all_gather_v" : "all_gather", buffers->recv + buffers->at[b],
                    buffers->counts[b], 0, b);
    }
}

static void reduce(buffers_t *buffers, uint64_t count)
{
    rank_world_t *world = buffers->world;
    double *send = is_in_place(buffers) ? buffers->recv : buffers->send;
    fill(send, world->rank, 0, count);
    RANK_OK(weft_all_reduce(send, buffers->recv, count, WEFT_DTYPE_F64, WEFT_REDUCTION_SUM,
                            world->group, NULL));
    check_block(buffers, "all_reduce", buffers->recv, count, 0, world->size);
}

static void exchange(buffers_t *buffers, uint64_t count)
{
    rank_world_t *world = buffers->world;
    double *send = is_in_place(buffers) ? buffers->recv : buffers->send;
    for (uint32_t b = 0; b < world->size; b++) {
        fill(send + b * count, world->rank, b, count);
    }
    RANK_OK(weft_all_to_all(send, buffers->recv, count, WEFT_DTYPE_F64, world->group, NULL));
    for (uint32_t b = 0; b < world->size; b++) {
        check_block(buffers, "all_to_all", buffers->recv + b * count, count, world->rank, b);
    }
}

static void run_calls(buffers_t *buffers)
{
    static const uint64_t counts[] = {3, 400, 25000};
    for (uint32_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (buffers->round = 0; buffers->round < 4; buffers->round++) {
            for (int v = 0; v < 2; v++) {
                scatter(buffers, counts[c], v);
                gather(buffers, counts[c], v);
            }
            reduce(buffers, counts[c]);
            exchange(buffers, counts[c]);
        }
    }
}

/* By name, where it can run here. */
static void ask(weft_group_t *group, const char *name)
{
    static const weft_collective_t ops[] = {
        WEFT_COLLECTIVE_REDUCE_SCATTER, WEFT_COLLECTIVE_REDUCE_SCATTER_V,
        WEFT_COLLECTIVE_ALL_GATHER, WEFT_COLLECTIVE_ALL_GATHER_V, WEFT_COLLECTIVE_ALL_REDUCE};
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (weft_group_set_algorithm(group, ops[i], name) < 0) {
            RANK_OK(weft_group_set_algorithm(group, ops[i], NULL));
        }
    }
}

static void run_orders(rank_world_t *world)
{
    const way_t *mode = world->user;
    buffers_t buffers = {.world = world};
    double **memory[2] = {&buffers.send, &buffers.recv};
    for (int i = 0; i < 2; i++) {
        void *address = malloc(ROOM * sizeof(double));
        RANK_CHECK(address != NULL);
        if (mode->registered) {
            free(address);
            RANK_OK(weft_mem_alloc(world->context, ROOM * sizeof(double), &address));
        }
        *memory[i] = address;
    }
    uint32_t blocks[2] = {world->size / 2, world->size - world->size / 2};
    for (int order = 0; order < 3; order++) {
        weft_order_t orders[] = {WEFT_ORDER_TREE, WEFT_ORDER_BLOCKS, WEFT_ORDER_ANY};
        RANK_OK(weft_group_set_order(world->group, orders[order], blocks, 2));
        ask(world->group, NULL);
        run_calls(&buffers);
        if (mode->asks) {
            ask(world->group, "hierarchical");
            run_calls(&buffers);
        }
    }
    RANK_OK(weft_barrier(world->group, NULL)); /* nobody reads what goes away now */
    for (int i = 0; i < 2; i++) {
        if (mode->registered) {
            RANK_OK(weft_mem_free(world->context, *memory[i]));
        } else {
            free(*memory[i]);
        }
    }
}

static void test_threads(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MAX_RANKS; n += 2) {
        for (int registered = 0; registered < 2; registered++) {
            way_t mode = {registered, false};
            support_rank_threads(n, run_orders, &mode);
        }
    }
}

static void test_hosts(void **state)
{
    static const uint32_t host_of[] = {0, 0, 1, 1};
    const wefti_hub_links_t links = {.host_of = host_of, .seed = support_seed()};
    (void)state;
    for (int registered = 0; registered < 2; registered++) {
        way_t mode = {registered, true};
        support_rank_threads_over(4, run_orders, &mode, &links);
    }
}

static void test_attached(void **state)
{
    (void)state;
    way_t mode = {false, false};
    setenv("WEFT_ATTACH", "always", 1);
    assert_true(support_rank_processes_too(3, run_orders, &mode));
    unsetenv("WEFT_ATTACH");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_attached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
