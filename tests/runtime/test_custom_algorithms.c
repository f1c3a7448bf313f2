/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and algorithms of the context's registry: good ones are run when asked for and considered
 * when not; nonsense is refused on all ranks alike, and the group goes on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "support_ranks.h"
#include "tests/ops/support_emitter.h"
#include "tests/support/support.h"

#define COUNT 300

typedef struct seat {
    weft_hub_t *hub;
    const weft_registry_t *registry;
    const weft_algorithm_t *algorithm;
    uint32_t rank, size;
    bool pure;
    weft_status_t status;
    char text[300];
    pthread_t thread;
} seat_t;

static int32_t value(uint32_t rank, uint32_t i)
{
    return (int32_t)(rank * 1000 + i);
}

static weft_status_t call(const seat_t *seat, weft_group_t *group, const int32_t *send,
                          int32_t *recv)
{
    memset(recv, 0, seat->size * COUNT * sizeof *recv);
    return seat->algorithm->op == WEFT_COLLECTIVE_ALL_GATHER
               ? weft_all_gather(send, recv, COUNT, WEFT_DTYPE_I32, group, NULL)
               : weft_all_reduce(send, recv, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group,
                                 NULL);
}

static bool is_right(const seat_t *seat, const int32_t *recv)
{
    bool gather = seat->algorithm->op == WEFT_COLLECTIVE_ALL_GATHER;
    for (uint32_t i = 0; i < (gather ? seat->size : 1) * COUNT; i++) {
        int32_t want = gather ? value(i / COUNT, i % COUNT) : 0;
        for (uint32_t r = 0; !gather && r < seat->size; r++) {
            want += value(r, i);
        }
        if (recv[i] != want) {
            return false;
        }
    }
    return true;
}

static void *run_seat(void *user)
{
    seat_t *seat = user;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    int32_t *send = NULL, *recv = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)seat->rank;
    params.world_size = (int32_t)seat->size;
    params.hub = seat->hub;
    params.registry = seat->registry;
    RANK_OK(weft_context_create(&params, &context));
    RANK_OK(weft_group_create_world(context, &group));
    RANK_OK(weft_mem_alloc(context, COUNT * sizeof *send, (void **)&send));
    RANK_OK(weft_mem_alloc(context, seat->size * COUNT * sizeof *recv, (void **)&recv));
    for (uint32_t i = 0; i < COUNT; i++) {
        send[i] = value(seat->rank, i);
    }
    RANK_OK(weft_group_set_algorithm(group, seat->algorithm->op, seat->algorithm->name));
    for (int again = 0; again < 3; again++) { /* runs that follow each other, too */
        seat->status = call(seat, group, send, recv);
        if (seat->status < 0) {
            snprintf(seat->text, sizeof seat->text, "%s", weft_last_error());
            break;
        }
        RANK_CHECK(!seat->pure || is_right(seat, recv));
    }
    if (seat->pure) { /* whatever it was, the others do it */
        RANK_OK(weft_group_set_algorithm(group, seat->algorithm->op, NULL));
        RANK_OK(call(seat, group, send, recv));
        RANK_CHECK(is_right(seat, recv));
    }
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

/* What all ranks say alike, or WEFT_ERR_INTERNAL. */
static weft_status_t run_world(const weft_algorithm_t *algorithm, uint32_t size, bool pure,
                               char *text)
{
    weft_hub_t *hub = NULL;
    weft_registry_t *registry = NULL;
    seat_t seats[16];
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    assert_int_equal(weft_registry_add_algorithm(registry, algorithm), WEFT_OK);
    assert_int_equal(weft_hub_create(size, &hub), WEFT_OK);
    for (uint32_t r = 0; r < size; r++) {
        seats[r] = (seat_t){
            .hub = hub, .registry = registry, .algorithm = algorithm, .rank = r, .size = size};
        seats[r].pure = pure;
        assert_int_equal(pthread_create(&seats[r].thread, NULL, run_seat, &seats[r]), 0);
    }
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < size; r++) {
        pthread_join(seats[r].thread, NULL);
        status = r == 0 || seats[r].status == seats[0].status ? seats[r].status : WEFT_ERR_INTERNAL;
        if (status == WEFT_ERR_INTERNAL) {
            printf("rank 0 says %d, rank %u %d: %s\n", (int)seats[0].status, r,
                   (int)seats[r].status, seats[r].text);
            break;
        }
    }
    snprintf(text, sizeof seats[0].text, "%s", seats[0].text);
    weft_hub_destroy(hub);
    weft_registry_destroy(registry);
    return status;
}

static void test_custom_mutants(void **state)
{
    (void)state;
    uint64_t seed = 31415;
    uint32_t good = 0, refused = 0;
    char text[300];
    printf("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < 150; i++) {
        emitter_t emitter;
        weft_algorithm_t algorithm;
        weft_algo_params_t params;
        emitter_init(&emitter, i % 5 == 4 ? EMITTER_RANDOM : EMITTER_MUTANT, seed + i, &algorithm,
                     &params);
        emitter_use(&emitter);
        if (algorithm.op != WEFT_COLLECTIVE_ALL_GATHER &&
            algorithm.op != WEFT_COLLECTIVE_ALL_REDUCE) {
            continue;
        }
        weft_status_t status = run_world(&algorithm, params.group_size, true, text);
        if (status != WEFT_OK && status != WEFT_ERR_UNSUPPORTED) {
            fail_msg("seed %llu: %d, %s", (unsigned long long)(seed + i), (int)status, text);
        }
        /* The message says whose it is. */
        assert_true(status == WEFT_OK || strstr(text, "nonsense") != NULL);
        good += status == WEFT_OK;
        refused += status != WEFT_OK;
    }
    printf("%u ran, %u were refused\n", good, refused);
    assert_true(good > 5 && refused > 20);
}

/* Another at every call, also after it was proved: results mean nothing, but nothing breaks. */
static void test_custom_impure(void **state)
{
    (void)state;
    char text[300];
    setenv("WEFT_TIMEOUT", "0.3", 1);
    for (uint32_t i = 0; i < 12; i++) {
        emitter_t emitter;
        weft_algorithm_t algorithm;
        weft_algo_params_t params;
        emitter_init(&emitter, EMITTER_IMPURE, 900 + i, &algorithm, &params);
        emitter_use(&emitter);
        run_world(&algorithm, params.group_size, false, text);
    }
    unsetenv("WEFT_TIMEOUT");
}

/* ---- one that is good, and better than what there is ---- */

static const char *always(const weft_algo_params_t *params)
{
    (void)params;
    return NULL;
}

static void two_phases(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 2;
}

static void build_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size, r = params->rank;
    weft_schedule_post(b, 0, 1);
    for (uint32_t i = params->in_place ? 1 : 0; i < n; i++) {
        uint32_t peer = (r + i) % n;
        weft_place_t from = {peer, 1, WEFT_ALGO_BUFFER_SEND, peer, 0},
                     to = {r, 1, WEFT_ALGO_BUFFER_RECV, peer, 0};
        weft_schedule_wait(b, 0, peer, 1, 0, 1, 0);
        weft_schedule_copy(b, 0, to, from, (weft_blocks_t){peer, 0, 1});
    }
    weft_schedule_post(b, 0, 2);
    weft_schedule_wait(b, 0, 0, n, 0, 2, 0);
}

static const weft_algorithm_t good = {WEFT_ALGO_ABI_VERSION,
                                      WEFT_COLLECTIVE_ALL_GATHER,
                                      "own",
                                      "a mesh of one's own",
                                      always,
                                      two_phases,
                                      build_gather};

static void run_unknown(rank_world_t *world)
{
    RANK_CHECK(weft_group_set_algorithm(world->group, WEFT_COLLECTIVE_ALL_GATHER, "own") ==
               WEFT_ERR_INVALID_ARGUMENT);
}

static void test_custom_good(void **state)
{
    (void)state;
    char text[300];
    for (uint32_t size = 1; size <= 9; size++) {
        assert_int_equal(run_world(&good, size, true, text), WEFT_OK);
    }
    /* A name that this registry knows is unknown to contexts without it. */
    support_rank_threads(2, run_unknown, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_custom_good),
        cmocka_unit_test(test_custom_mutants),
        cmocka_unit_test(test_custom_impure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
