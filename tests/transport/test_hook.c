/* SPDX-License-Identifier: Apache-2.0 */
/* Rules around a transport do what they say, and text becomes the rules that it describes. */
#include "support.h"

#include <string.h>

#include "runtime/base/error.h"
#include "tests/faults/hook.h"

static const uint32_t apart[] = {0, 1, 2};

static wefti_signal_t *own_signal(wefti_endpoint_t *endpoint, size_t offset)
{
    return (wefti_signal_t *)(void *)(endpoint->region_of[endpoint->rank] + offset);
}

static void test_rules_are_parsed(void **state)
{
    (void)state;
    wefti_hook_rules_t rules;
    assert_int_equal(wefti_hook_parse("delay:2-3:100us;;jitter:*-1:2ms;rate:0-*:10M;seed:77;"
                                      "drop:signal:1-0:5;fail:all_gather:2:3:link;break:0-1:9",
                                      &rules),
                     WEFT_OK);
    assert_int_equal(rules.count, 6);
    assert_int_equal(rules.seed, 77);
    const wefti_hook_rule_t *rule = rules.rules;
    assert_true(rule[0].kind == WEFTI_HOOK_DELAY && rule[0].from == 2 && rule[0].to == 3);
    assert_int_equal(rule[0].amount, 100000);
    assert_true(rule[1].kind == WEFTI_HOOK_JITTER && rule[1].from == WEFTI_HOOK_ANY);
    assert_int_equal(rule[1].amount, 2000000);
    assert_true(rule[2].kind == WEFTI_HOOK_RATE && rule[2].to == WEFTI_HOOK_ANY);
    assert_int_equal(rule[2].amount, 10000000);
    assert_true(rule[3].kind == WEFTI_HOOK_DROP && rule[3].call == WEFTI_HOOK_SIGNAL);
    assert_true(rule[3].from == 1 && rule[3].to == 0 && rule[3].amount == 5);
    assert_true(rule[4].kind == WEFTI_HOOK_FAIL && rule[4].call == WEFTI_HOOK_ALL_GATHER);
    assert_true(rule[4].from == 2 && rule[4].amount == 3 && rule[4].status == WEFT_ERR_LINK);
    assert_true(rule[5].kind == WEFTI_HOOK_BREAK && rule[5].amount == 9);
    assert_int_equal(wefti_hook_parse("", &rules), WEFT_OK);
    assert_int_equal(rules.count, 0);
}

static void test_bad_rules_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "delay",
        "delay:0-1",
        "delay:0:1us",
        "delay:0-1:1",
        "delay:0-1:1us:2",
        "delay:-1-2:1us",
        "delay:a-1:1us",
        "rate:0-1:0",
        "rate:0-1:1T",
        "drop:barrier:0-1:1",
        "drop:put:0-1:0",
        "fail:put:0:1",
        "fail:put:0:1:nice",
        "break:0-1:x",
        "slow:0-1:1us",
        "seed:x",
        "delay:0-1:1us :",
        "rate:0-1:99999999999999999999G",
        ":::::",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        wefti_hook_rules_t rules;
        char text[160];
        snprintf(text, sizeof text, "seed:3;%s", bad[i]);
        assert_int_equal(wefti_hook_parse(text, &rules), WEFT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_last_error(), bad[i]));
    }
    wefti_hook_rules_t rules;
    char many[WEFTI_HOOK_RULES * 16 + 32] = "", longer[300];
    for (uint32_t i = 0; i <= WEFTI_HOOK_RULES; i++) {
        strcat(many, "break:0-1:9;");
    }
    assert_int_equal(wefti_hook_parse(many, &rules), WEFT_ERR_INVALID_ARGUMENT);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(wefti_hook_parse(longer, &rules), WEFT_ERR_INVALID_ARGUMENT);
}

/* Signal after signal to the next rank; waits for the last one. */
static weft_status_t send_signals(wefti_endpoint_t *endpoint, size_t offset, uint32_t count)
{
    weft_status_t status = WEFT_OK;
    uint32_t next = (endpoint->rank + 1) % endpoint->world_size;
    for (uint32_t i = 1; i <= count && status == WEFT_OK; i++) {
        status = wefti_signal_peer(endpoint, next, offset, i, 0);
    }
    return status == WEFT_OK ? wefti_wait_signal(endpoint, own_signal(endpoint, offset), count,
                                                 "the last one", NULL, NULL)
                             : status;
}

static int takes_as_long(wefti_endpoint_t *endpoint, void *user)
{
    const uint64_t *least_ns = user;
    uint8_t data[100000] = {0};
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 4096 + sizeof data, &offset) == WEFT_OK);
    uint64_t start = wefti_now_ns(); /* nobody sends before all have looked at the clock */
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(wefti_put(endpoint, (endpoint->rank + 1) % endpoint->world_size, offset + 4096, data,
                     sizeof data, 0) == WEFT_OK);
    EXPECT(send_signals(endpoint, offset, 1) == WEFT_OK);
    EXPECT(wefti_now_ns() - start >= *least_ns || endpoint->rank != 1);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    return 0;
}

static void run(uint32_t size, rank_fn fn, void *user, const char *rules, bool processes)
{
    wefti_hub_links_t links = {.host_of = apart, .seed = 3};
    world_t world = {.size = size,
                     .fn = fn,
                     .user = user,
                     .settings = test_settings(),
                     .links = &links,
                     .hook = rules};
    world.settings.fallback = WEFTI_FALLBACK_TCP;
    processes ? run_processes(&world) : run_threads(&world);
}

static void test_delays_and_rates(void **state)
{
    (void)state;
    uint64_t delay_ns = 20000000, rate_ns = 50000000;
    for (int processes = 0; processes < 2; processes++) {
        run(2, takes_as_long, &delay_ns, "delay:0-1:20ms", processes);
        run(2, takes_as_long, &rate_ns, "rate:0-1:2M", processes); /* 100,000 bytes */
    }
}

static int loses_one(wefti_endpoint_t *endpoint, void *user)
{
    size_t offset;
    (void)user;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    if (endpoint->rank == 0) { /* the third is lost, the fourth is not */
        for (uint32_t i = 1; i <= 3; i++) {
            EXPECT(wefti_signal_peer(endpoint, 1, offset, i, 0) == WEFT_OK);
        }
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(endpoint->rank == 0 || atomic_load(&own_signal(endpoint, offset)->value) == 2);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(endpoint->rank != 0 || wefti_signal_peer(endpoint, 1, offset, 4, 0) == WEFT_OK);
    EXPECT(endpoint->rank == 0 || wefti_wait_signal(endpoint, own_signal(endpoint, offset), 4,
                                                    "the fourth", NULL, NULL) == WEFT_OK);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_messages_are_lost(void **state)
{
    (void)state;
    run(2, loses_one, NULL, "drop:signal:0-1:3", false);
    run(2, loses_one, NULL, "drop:signal:0-1:3;delay:*-*:1ms", true);
}

static int fails_as_told(wefti_endpoint_t *endpoint, void *user)
{
    size_t offset;
    uint8_t byte = 0, all[8];
    (void)user;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    if (endpoint->rank == 1) {
        EXPECT(wefti_put(endpoint, 0, offset, &byte, 1, 0) == WEFT_OK);
        EXPECT(wefti_put(endpoint, 0, offset, &byte, 1, 0) == WEFT_ERR_SYSTEM);
        EXPECT(strstr(weft_last_error(), "put number 2 of rank 1") != NULL);
        EXPECT(wefti_put(endpoint, 0, offset, &byte, 1, 0) == WEFT_OK);
    }
    weft_status_t status;
    do { /* one of rank 2's ends the world, for all */
        status = wefti_endpoint_all_gather(endpoint, &byte, 1, all);
    } while (status == WEFT_OK);
    EXPECT(status == WEFT_ERR_NO_MEMORY);
    EXPECT(strstr(weft_last_error(), "of rank 2") != NULL);
    return 0;
}

static void test_calls_fail(void **state)
{
    (void)state;
    run(3, fails_as_told, NULL, "fail:put:1:2:system;fail:all_gather:2:6:no_memory", false);
    run(3, fails_as_told, NULL, "fail:put:1:2:system;fail:all_gather:2:6:no_memory", true);
}

/* Everybody hears of it once, what was under way is lost, and later messages arrive. */
static int breaks(wefti_endpoint_t *endpoint, void *user)
{
    size_t offset;
    uint32_t at = 0;
    wefti_link_fault_t fault;
    (void)user;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    for (uint32_t i = 1; endpoint->rank == 0 && i <= 5; i++) {
        EXPECT(wefti_signal_peer(endpoint, 1, offset, i, 0) == WEFT_OK);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(wefti_endpoint_link_fault(endpoint, &at, &fault) && at == 1);
    EXPECT(fault.ranks[0] == 0 && fault.ranks[1] == 1);
    EXPECT(strstr(fault.text, "the link between rank 0 and rank 1 broke at message 5") != NULL);
    EXPECT(!wefti_endpoint_link_fault(endpoint, &at, &fault));
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(endpoint->rank != 1 || atomic_load(&own_signal(endpoint, offset)->value) < 5);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(endpoint->rank != 0 || wefti_signal_peer(endpoint, 1, offset, 6, 0) == WEFT_OK);
    EXPECT(endpoint->rank != 1 || wefti_wait_signal(endpoint, own_signal(endpoint, offset), 6,
                                                    "the sixth", NULL, NULL) == WEFT_OK);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_links_break(void **state)
{
    (void)state;
    run(3, breaks, NULL, "break:0-1:5", false);
    run(3, breaks, NULL, "break:0-1:5;jitter:*-*:1ms", false);
}

static int cannot_break(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    uint32_t peer = 1 - endpoint->rank;
    EXPECT(wefti_fault_break_link(endpoint, peer, "x") == WEFT_ERR_UNSUPPORTED);
    EXPECT(wefti_fault_break_link(endpoint, 7, "x") == WEFT_ERR_UNSUPPORTED);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_mapped_memory_does_not_break(void **state)
{
    (void)state;
    run(2, cannot_break, NULL, NULL, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_are_parsed),
        cmocka_unit_test(test_bad_rules_are_named),
        cmocka_unit_test(test_delays_and_rates),
        cmocka_unit_test(test_messages_are_lost),
        cmocka_unit_test(test_calls_fail),
        cmocka_unit_test(test_links_break),
        cmocka_unit_test(test_mapped_memory_does_not_break),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
