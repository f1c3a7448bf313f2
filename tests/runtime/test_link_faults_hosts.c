/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links that break between processes on different hosts: the best of two drivers loses a pair of
 * ranks in the middle of calls, and groups and sessions go on over the other one. Both are tcp,
 * under two names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"

#include "runtime/context/context.h"
#include "tests/faults/hook.h"
#include "transport/links.h"
#include "tests/support/support.h"

#define CALLS 14u

static wefti_link_driver_t best;
/* In place of links.c. */
const wefti_link_driver_t *const wefti_link_drivers[] = {&best, &wefti_link_tcp, NULL};

static float value_of(uint32_t call, uint32_t rank, uint64_t i)
{
    return (float)((call * 31 + rank * 7 + i) % 1000);
}

/* The status of one call; what it gave is checked. */
static weft_status_t call_one(rank_world_t *world, uint32_t call, uint64_t count, float *x)
{
    for (uint64_t i = 0; i < count; i++) {
        x[i] = value_of(call, world->rank, i);
    }
    weft_status_t status =
        weft_all_reduce(x, x, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    for (uint64_t i = 0; status == WEFT_OK && i < count; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < world->size; r++) {
            sum += value_of(call, r, i);
        }
        RANK_CHECK(x[i] == sum);
    }
    return status;
}

static bool goes_by(rank_world_t *world, uint32_t peer, const char *transport)
{
    weft_peer_info_t info = WEFT_PEER_INFO_INIT;
    RANK_OK(weft_context_peer_info(world->context, peer, &info));
    return strcmp(info.transport, transport) == 0;
}

static void run_calls(rank_world_t *world)
{
    const char *text = world->user;
    uint32_t last_failed = 0, failed = 0, all[8], other = 1 - world->rank;
    float *x = calloc(100000, sizeof *x);
    wefti_hook_rules_t rules;
    world->context->log.level = WEFT_LOG_LEVEL_ERROR; /* the warnings are expected */
    RANK_OK(wefti_hook_parse(text, &rules));
    RANK_CHECK(world->rank > 1 || world->size > 3 || goes_by(world, other, "best"));
    RANK_OK(wefti_hook_attach(world->context->endpoint, &rules));
    for (uint32_t call = 1; call <= CALLS; call++) {
        weft_status_t status = call_one(world, call, call % 3 == 0 ? 100000 : 700, x);
        if (status != WEFT_OK) {
            RANK_CHECK(status == WEFT_ERR_LINK);
            RANK_CHECK(strstr(weft_last_error(), "best link between rank") != NULL);
            RANK_CHECK(strstr(weft_last_error(), "(host ") != NULL);
            last_failed = call;
            failed++;
        }
    }
    RANK_CHECK(failed >= 1 && last_failed < CALLS);
    RANK_OK(weft_group_status(world->group));
    RANK_OK(weft_context_all_gather(world->context, &last_failed, sizeof last_failed, all));
    for (uint32_t r = 0; r < world->size; r++) {
        RANK_CHECK(all[r] == last_failed);
    }
    RANK_CHECK(world->rank > 1 || world->size > 3 || goes_by(world, other, "tcp"));
    free(x);
}

static void test_groups_go_on_over_the_next_driver(void **state)
{
    static const char *const rules[] = {"break:0-1:4", "break:1-0:9", "break:0-1:14;break:2-1:5",
                                        "break:0-1:3;jitter:*-*:300us"};
    (void)state;
    setenv("WEFT_TEST_HOSTS", "1", 1);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(support_rank_processes(3, run_calls, (void *)(uintptr_t)rules[i]));
    }
    assert_true(support_rank_processes(2, run_calls, (void *)(uintptr_t) "break:1-0:6"));
    setenv("WEFT_TEST_HOSTS", "2", 1);
    assert_true(
        support_rank_processes(4, run_calls, (void *)(uintptr_t) "break:0-2:2;break:1-3:3"));
}

static int prepare(void **state)
{
    (void)state;
    best = wefti_link_tcp;
    best.name = "best";
    setenv("WEFT_TEST_TRANSPORT", "auto", 1);
    return 0;
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_go_on_over_the_next_driver),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
