/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that agree on calls by hosts: to how many ranks each one sends, results on uneven hosts,
 * and errors of one rank, which all ranks report.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "support_collectives.h"
#include "support_ranks.h"

#include "runtime/collective/call.h"
#include "tests/support/support.h"

#define RANKS 9u
#define LARGE 16u

static const uint32_t uneven[RANKS] = {0, 0, 0, 0, 0, 1, 2, 2, 2};
static const uint32_t mixed[RANKS] = {2, 0, 2, 1, 0, 0, 2, 0, 0};
static const uint32_t firsts[3] = {0, 5, 6}; /* of uneven */
static const uint32_t four_by_four[LARGE] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};

/* ---- links ---- */

/* Ranks that this one has sent anything to, in or out of the group's calls. */
static uint32_t peers_of(const rank_world_t *world)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < world->size; r++) {
        wefti_link_stats_t stats = {0};
        wefti_endpoint_link_stats(world->context->endpoint, r, &stats);
        count += stats.messages_sent > 0;
    }
    return count;
}

static void run_links(rank_world_t *world)
{
    weft_group_t *group = world->group;
    float x[LARGE * 300], y[LARGE * 300];
    bool first = world->rank % 4 == 0;
    for (uint32_t i = 0; i < 5; i++) {
        RANK_OK(weft_barrier(group, NULL));
    }
    RANK_CHECK(peers_of(world) == (first ? 2 : 0)); /* of 4 hosts: those 1 and 2 further on */
    for (uint32_t i = 0; i < LARGE * 300; i++) {
        x[i] = (float)(world->rank + i);
    }
    RANK_OK(weft_all_reduce(x, y, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_CHECK(y[0] == 120);
    RANK_OK(weft_all_reduce(x, y, 300, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_all_gather(x, y, 300, WEFT_DTYPE_F32, group, NULL));
    RANK_CHECK(y[300 * 15 + 2] == 17);
    RANK_OK(weft_reduce_scatter(x, y, 300, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint32_t root = 0; root < LARGE; root += 5) {
        RANK_OK(weft_broadcast(x, y, 300, WEFT_DTYPE_F32, root, group, NULL));
        RANK_CHECK(y[7] == (float)(root + 7));
        RANK_OK(weft_reduce(x, y, 300, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, root, group, NULL));
    }
    RANK_OK(weft_all_reduce(x, y, LARGE * 300, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, group, NULL));
    weft_group_t *next = NULL;
    RANK_OK(weft_group_duplicate(group, &next));
    weft_group_destroy(next);
    weft_group_destroy(group);
    world->group = NULL;
    /* 12 ranks are on other hosts. 3 of them have this one's place there, 2 more its host's first
     * rank sends to; trees take one or two others. */
    uint32_t peers = peers_of(world);
    if (peers > 7) {
        fprintf(stderr, "rank %u sent to %u ranks\n", world->rank, peers);
    }
    RANK_CHECK(peers <= 7);
}

static void test_few_links(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = four_by_four, .seed = 1, .max_delay_ns = 10000};
    support_rank_threads_over(LARGE, run_links, NULL, &links);
}

/* ---- results ---- */

static void run_results(rank_world_t *world)
{
    static const uint64_t counts[] = {0, 1, 700};
    one_rank_t one;
    support_one_init(&one, world, world->user != NULL, 7);
    RANK_CHECK(wefti_group_is_hosted(world->group));
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        if (op == WEFT_COLLECTIVE_SEND_RECV || op == WEFT_COLLECTIVE_BARRIER) {
            continue;
        }
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (uint32_t in_place = 0; in_place < 2; in_place++) {
                support_call(&one, (weft_collective_t)op, counts[c], WEFT_DTYPE_F32,
                             WEFT_REDUCTION_SUM, (uint32_t)(c * 4 + in_place) % RANKS,
                             in_place != 0);
                RANK_OK(weft_barrier(world->group, NULL));
                RANK_CHECK(strcmp(weft_group_last_path(world->group), "posting") == 0);
            }
        }
    }
    support_one_deinit(&one);
}

static void test_results(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = uneven, .seed = 2, .max_delay_ns = 20000};
    support_rank_threads_over(RANKS, run_results, NULL, &links);
    links.host_of = mixed;
    support_rank_threads_over(RANKS, run_results, &links, &links); /* in registered memory */
}

/* A call that is not compared has a second number, which the end of the group does not wait for. */
static void run_checked(rank_world_t *world)
{
    float x[16];
    for (uint32_t i = 0; i < 12; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_create_world(world->context, &group));
        for (uint32_t k = 0; k < 16; k++) {
            x[k] = (float)(world->rank + k);
        }
        RANK_OK(weft_all_reduce(x, x, 16, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
        RANK_CHECK(x[1] == 45);
        RANK_OK(weft_broadcast(x, x, 16, WEFT_DTYPE_F32, i % RANKS, group, NULL));
        RANK_OK(weft_barrier(group, NULL));
        RANK_CHECK(weft_all_reduce(world->rank == i % RANKS ? NULL : x, x, 16, WEFT_DTYPE_F32,
                                   WEFT_REDUCTION_SUM, group, NULL) == WEFT_ERR_INVALID_ARGUMENT);
        RANK_OK(weft_barrier(group, NULL));
        weft_group_destroy(group);
        RANK_OK(weft_group_status(world->group));
    }
}

static void test_checked_calls(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = uneven, .seed = 5, .max_delay_ns = 50000};
    setenv("WEFT_CHECK", "results", 1);
    support_rank_threads_over(RANKS, run_checked, NULL, &links);
    unsetenv("WEFT_CHECK");
}

/* ---- errors of one rank ---- */

static weft_status_t sum(weft_group_t *group, float *x, uint64_t count)
{
    return weft_all_reduce(x, x, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL);
}

/* The error that all ranks have names the rank that differs, and the first one. */
static void run_mismatch(rank_world_t *world)
{
    static const uint32_t odd[] = {3, 5, 8, 0};
    float x[16] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        weft_group_t *group = NULL;
        char expected[160];
        RANK_OK(weft_group_create_world(world->context, &group));
        RANK_OK(sum(group, x, 16));
        weft_status_t status = sum(group, x, world->rank == odd[i] ? 12 : 16);
        RANK_CHECK(status == WEFT_ERR_MISMATCH);
        snprintf(expected, sizeof expected, "rank %u called all_reduce with %u x f32",
                 odd[i] > 0 ? odd[i] : 1, odd[i] > 0 ? 12 : 16);
        RANK_CHECK(strstr(weft_last_error(), expected) != NULL);
        RANK_CHECK(strstr(weft_last_error(), ", rank 0") != NULL);
        RANK_CHECK(weft_group_status(group) == WEFT_ERR_MISMATCH);
        weft_group_destroy(group);
    }
    RANK_OK(sum(world->group, x, 16)); /* other groups go on */
}

static void run_fused_mismatch(rank_world_t *world)
{
    float x[16] = {0};
    int64_t dims[2] = {2, world->rank == 7 ? 3 : 4};
    RANK_OK(weft_batch_begin(world->group));
    RANK_OK(sum(world->group, x, 3));
    RANK_OK(weft_group_set_shape(world->group, dims, 2));
    RANK_OK(sum(world->group, x, world->rank == 7 ? 6 : 8));
    RANK_CHECK(weft_batch_end(world->group, NULL) == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "call 1 of the batch has 8 elements on rank 0, call 1 of "
                                         "the batch has 6 on rank 7") != NULL);
}

static void run_shape_mismatch(rank_world_t *world)
{
    float x[16] = {0};
    int64_t dims[2] = {world->rank == 6 ? 8 : 2, world->rank == 6 ? 2 : 8};
    RANK_OK(weft_group_set_shape(world->group, dims, 2));
    RANK_CHECK(sum(world->group, x, 16) == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "rank 6") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "of shape (8, 2)") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "of shape (2, 8)") != NULL);
}

/* The first rank of a host, another one, and all: the group stays usable. */
static void run_refusals(rank_world_t *world)
{
    float x[16];
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t refuser = i < 3 ? firsts[i] : 8;
        bool refuses = i == 4 || world->rank == refuser;
        weft_status_t status = sum(world->group, refuses ? NULL : x, 16);
        char expected[80];
        RANK_CHECK(status == WEFT_ERR_INVALID_ARGUMENT);
        snprintf(expected, sizeof expected,
                 refuses ? "AllReduce: " : "rank %u: AllReduce: ", refuser);
        RANK_CHECK(strstr(weft_last_error(), expected) == weft_last_error());
        for (uint32_t k = 0; k < 16; k++) {
            x[k] = (float)world->rank;
        }
        RANK_OK(sum(world->group, x, 16));
        RANK_CHECK(x[15] == 36);
    }
}

static void test_errors_of_one_rank(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = uneven, .seed = 3, .max_delay_ns = 20000};
    support_rank_threads_over(RANKS, run_mismatch, NULL, &links);
    support_rank_threads_over(RANKS, run_fused_mismatch, NULL, &links);
    support_rank_threads_over(RANKS, run_shape_mismatch, NULL, &links);
    support_rank_threads_over(RANKS, run_refusals, NULL, &links);
}

/* ---- ranks that do not come ---- */

/* It is named on all ranks, also on hosts that wait for it by way of others. */
static void run_late(rank_world_t *world)
{
    const uint32_t *late = world->user;
    float x = 1;
    weft_status_t status;
    if (world->rank == *late) {
        while ((status = weft_group_status(world->group)) == WEFT_OK) {
            wefti_signal_t never = {0};
            wefti_futex_wait(&never.value, 0, 1000000);
        }
    } else {
        status = sum(world->group, &x, 1);
    }
    char expected[32];
    snprintf(expected, sizeof expected, "late: rank %u", *late);
    RANK_CHECK(status == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), expected) != NULL);
}

/* It has left the world. */
static void run_gone(rank_world_t *world)
{
    const uint32_t *gone = world->user;
    float x = 1;
    RANK_OK(sum(world->group, &x, 1));
    RANK_OK(weft_context_barrier(world->context)); /* nobody is in that call any more */
    if (world->rank == *gone) {
        weft_group_leave(world->group);
        world->group = NULL;
        return;
    }
    weft_status_t status = sum(world->group, &x, 1);
    char expected[48];
    snprintf(expected, sizeof expected, "rank %u left the world", *gone);
    RANK_CHECK(status == WEFT_ERR_PEER_DIED);
    RANK_CHECK(strstr(weft_last_error(), expected) != NULL);
}

static void test_ranks_that_do_not_come(void **state)
{
    (void)state;
    static uint32_t victims[] = {4, 5, 6};
    wefti_hub_links_t links = {.host_of = uneven, .seed = 4, .max_delay_ns = 20000};
    for (size_t i = 0; i < 3; i++) {
        setenv("WEFT_TIMEOUT", "2", 1);
        support_rank_threads_over(RANKS, run_late, &victims[i], &links);
        unsetenv("WEFT_TIMEOUT");
        support_rank_threads_over(RANKS, run_gone, &victims[i], &links);
    }
}

/* Rank 4 waits for rank 8 in a receive, which waits for it in a call by way of two first ranks. */
static void run_circle(rank_world_t *world)
{
    float x = 1;
    weft_group_t *second = NULL;
    RANK_OK(weft_group_duplicate(world->group, &second));
    weft_status_t status = world->rank == 4 ? weft_recv(&x, 1, WEFT_DTYPE_F32, 8, second, NULL)
                                            : sum(world->group, &x, 1);
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "none of them can continue") != NULL);
    weft_group_destroy(second);
}

static void test_ranks_that_wait_for_each_other(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("skipped: ThreadSanitizer has a thread of its own, which never rests\n");
    skip();
#endif
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    setenv("WEFT_TEST_HOSTS", "aaaaabccc", 1);
    bool good = support_rank_processes(RANKS, run_circle, NULL);
    unsetenv("WEFT_TEST_HOSTS");
    unsetenv("WEFT_TEST_TRANSPORT");
    assert_true(good);
}

/* What the first rank of a host leaves for the others counts, although it has gone since. */
static void run_leaving(rank_world_t *world)
{
    for (uint32_t i = 0; i < 3; i++) {
        RANK_OK(weft_barrier(world->group, NULL));
    }
    weft_group_leave(world->group);
    world->group = NULL;
}

static void test_first_ranks_leave(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < (TEST_SANITIZED ? 5 : 30); i++) {
        wefti_hub_links_t links = {.host_of = uneven, .seed = 4 + i, .max_delay_ns = 1000};
        support_rank_threads_over(RANKS, run_leaving, NULL, &links);
    }
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    wefti_mesh_ranks = 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_links),
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_checked_calls),
        cmocka_unit_test(test_errors_of_one_rank),
        cmocka_unit_test(test_ranks_that_do_not_come),
        cmocka_unit_test(test_first_ranks_leave),
        cmocka_unit_test(test_ranks_that_wait_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
