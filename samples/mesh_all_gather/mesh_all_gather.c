/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers the algorithm of algorithm.c, has it proved, and runs it on four ranks, which are
 * threads of this process: beside the built-in mesh, on memory that peers reach and on any other
 * memory, and beside the same steps by hand (by_hand.c).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/weft.h>

#include "algorithm.h"
#include "by_hand.h"

#define RANKS 4u
#define CALLS 50u

static const uint64_t counts[] = {1, 100, 4096, 100000}; /* elements of a block */
#define COUNTS (sizeof counts / sizeof *counts)

/* A sample stops at the first call that fails. */
static void check(weft_status_t status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "mesh_all_gather: %s: %s\n", what, weft_last_error());
        exit(2);
    }
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* ---- prove ---- */

static void prove(uint32_t size, uint32_t in_place)
{
    weft_algo_params_t params = WEFT_ALGO_PARAMS_INIT;
    params.op = WEFT_COLLECTIVE_ALL_GATHER;
    params.group_size = size;
    params.in_place = in_place;
    check(weft_algorithm_verify(&side_lanes_algorithm, &params), "verify");
}

/* Every rank count it says it can do, over memory that is shared and over links that put. */
static void prove_all(void)
{
    for (uint32_t size = 2; size <= 16; size++) {
        prove(size, 0);
        prove(size, 1);
    }
    printf("proved for 2 to 16 ranks, in place and not\n");
}

/* ---- run ---- */

typedef struct rank {
    weft_hub_t *hub;
    const weft_registry_t *registry;
    uint32_t rank;
    pthread_t thread;
} rank_t;

static float element(uint32_t rank, uint64_t i)
{
    return (float)rank * 1000000.0f + (float)(i % 1000000);
}

static void fill(const rank_t *rank, float *block, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        block[i] = element(rank->rank, i);
    }
}

static void check_result(const float *recv, uint64_t count, const char *how)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint64_t i = 0; i < count; i++) {
            if (recv[r * count + i] != element(r, i)) {
                fprintf(stderr, "mesh_all_gather: %s: block %u, element %llu is wrong\n", how, r,
                        (unsigned long long)i);
                exit(1);
            }
        }
    }
}

/* Microseconds a call; algorithm NULL: whatever the cost table finds best. */
static double time_calls(const rank_t *rank, weft_group_t *group, const char *algorithm,
                         const float *send, float *recv, uint64_t count)
{
    check(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_GATHER, algorithm), "set_algorithm");
    memset(recv, 0, RANKS * count * sizeof(float));
    check(weft_all_gather(send, recv, count, WEFT_DTYPE_F32, group, NULL), "all_gather");
    check_result(recv, count, algorithm != NULL ? algorithm : "chosen");
    const char *ran = weft_group_last_algorithm(group);
    if (algorithm != NULL && strcmp(ran, algorithm) != 0) {
        fprintf(stderr, "mesh_all_gather: %s ran instead of %s\n", ran, algorithm);
        exit(1);
    }
    double start = now_us();
    for (uint32_t i = 0; i < CALLS; i++) { /* nothing is built any more */
        check(weft_all_gather(send, recv, count, WEFT_DTYPE_F32, group, NULL), "all_gather");
    }
    double us = (now_us() - start) / CALLS;
    if (rank->rank == 0 && algorithm == NULL) {
        printf("   chosen: %s", ran);
    }
    return us;
}

static void run_count(const rank_t *rank, weft_group_t *group, const char *memory, float *send,
                      float *recv, uint64_t count)
{
    fill(rank, send, count);
    double own = time_calls(rank, group, "side-lanes", send, recv, count);
    double mesh = time_calls(rank, group, "mesh", send, recv, count);
    if (rank->rank == 0) {
        printf("%8llu floats, %-7s memory: side-lanes %8.1f us, mesh %8.1f us",
               (unsigned long long)count, memory, own, mesh);
    }
    time_calls(rank, group, NULL, send, recv, count);
    if (rank->rank == 0) {
        printf("\n");
    }
    /* In place: the own block is in recv already. */
    check(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_GATHER, "side-lanes"),
          "set_algorithm");
    memset(recv, 0, RANKS * count * sizeof(float));
    fill(rank, recv + rank->rank * count, count);
    check(weft_all_gather(recv + rank->rank * count, recv, count, WEFT_DTYPE_F32, group, NULL),
          "all_gather in place");
    check_result(recv, count, "in place");
}

static void *run_rank(void *user)
{
    rank_t *rank = user;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank->rank;
    params.world_size = RANKS;
    params.hub = rank->hub;
    params.registry = rank->registry; /* the context's groups know the algorithm */
    check(weft_context_create(&params, &context), "context");
    check(weft_group_create_world(context, &group), "group");

    uint64_t most = counts[COUNTS - 1];
    float *plain = malloc((RANKS + 1) * most * sizeof(float));
    float *send = NULL, *recv = NULL;
    if (plain == NULL) {
        check(WEFT_ERR_NO_MEMORY, "malloc");
    }
    check(weft_mem_alloc(context, most * sizeof(float), (void **)&send), "memory");
    check(weft_mem_alloc(context, RANKS * most * sizeof(float), (void **)&recv), "memory");
    for (size_t i = 0; i < COUNTS; i++) {
        run_count(rank, group, "peers'", send, recv, counts[i]);
        run_count(rank, group, "any", plain, plain + most, counts[i]);
    }
    memset(recv, 0, RANKS * most * sizeof(float));
    fill(rank, send, most);
    double start = now_us();
    check(gather_by_hand(group, (uint8_t *)send, (uint8_t *)recv, most * sizeof(float), CALLS),
          "by hand");
    check_result(recv, most, "by hand");
    if (rank->rank == 0) {
        printf("%8llu floats by hand, with notifies: %.1f us\n", (unsigned long long)most,
               (now_us() - start) / CALLS);
    }
    check(weft_mem_free(context, recv), "memory");
    check(weft_mem_free(context, send), "memory");
    free(plain);
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

int main(void)
{
    rank_t ranks[RANKS];
    weft_hub_t *hub = NULL;
    weft_registry_t *registry = NULL;

    prove_all();
    check(weft_registry_create(NULL, &registry), "registry");
    check(weft_registry_add_algorithm(registry, &side_lanes_algorithm), "add_algorithm");
    check(weft_hub_create(RANKS, &hub), "hub");
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (rank_t){.hub = hub, .registry = registry, .rank = r};
        if (pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]) != 0) {
            check(WEFT_ERR_SYSTEM, "thread");
        }
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    weft_registry_destroy(registry);
    printf("all results are right\n");
    return 0;
}
