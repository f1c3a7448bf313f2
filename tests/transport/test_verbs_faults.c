/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong under the verbs driver: calls that fail, requests that fail, peers that lie. */
#include "verbs_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"

static weft_status_t put(verbs_world_t *world, uint32_t from, uint32_t to, size_t offset,
                         const void *data, size_t bytes, wefti_signal_t *in_use)
{
    return wefti_link_verbs.put(world->ranks[from].driver, to, offset, data, bytes, 0, in_use);
}

static weft_status_t signal_to(verbs_world_t *world, uint32_t from, uint32_t to, size_t offset,
                               uint32_t value)
{
    return wefti_link_verbs.signal(world->ranks[from].driver, to, offset, value, 0);
}

/* A world in which data went both ways. */
static void open_world(verbs_world_t *world, uint32_t size)
{
    verbs_world_init(world, size);
    assert_int_equal(verbs_world_open(world), WEFT_OK);
    assert_int_equal(verbs_world_grow(world, VERBS_REGION), WEFT_OK);
    assert_int_equal(signal_to(world, 0, 1, 64, 1), WEFT_OK);
    assert_int_equal(signal_to(world, 1, 0, 64, 1), WEFT_OK);
    verbs_world_flush(world);
}

/* Every call that makes something fails once: an error with a reason, and nothing is left behind.
 */
static void test_calls_fail_while_opening(void **state)
{
    static const nic_call_t calls[] = {
        NIC_GET_DEVICE_LIST, NIC_OPEN_DEVICE, NIC_QUERY_DEVICE, NIC_QUERY_PORT,
        NIC_QUERY_GID_TABLE, NIC_ALLOC_PD,    NIC_REG_MR,       NIC_CREATE_COMP_CHANNEL,
        NIC_CREATE_CQ,       NIC_MODIFY_QP,   NIC_POST_RECV};
    (void)state;
    for (uint32_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        bool failed = true;
        for (uint32_t at = 1; failed && at < 200; at++) {
            verbs_world_t world;
            verbs_world_init(&world, 2);
            nic.fail_call = calls[c];
            nic.fail_at = at;
            nic.fail_errno = ENOMEM;
            weft_status_t status = verbs_world_open(&world);
            if (status == WEFT_OK) {
                status = verbs_world_grow(&world, 65536);
            }
            failed = nic.fail_at == 0;
            if (failed && calls[c] == NIC_MODIFY_QP && status == WEFT_OK) {
                /* A peer that ibv_modify_qp failed is a broken link: told when somebody looks. */
                assert_int_equal(world.ranks[0].breaks + world.ranks[1].breaks, 1);
                assert_non_null(strstr(world.ranks[world.ranks[0].breaks ? 0 : 1].text,
                                       "ibv_modify_qp failed"));
            } else if (failed) {
                assert_true(status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_NO_MEMORY ||
                            status == WEFT_ERR_LINK);
                assert_true(strlen(weft_last_error()) > 10);
            } else {
                assert_int_equal(status, WEFT_OK);
                assert_true(at > 1);
            }
            verbs_world_close(&world);
        }
        assert_false(failed);
    }
}

/* Allocations fail one after the other. */
typedef struct counting {
    uint32_t left;
} counting_t;

static void *allocate(void *user, size_t bytes)
{
    counting_t *counting = user;
    return counting->left > 0 && counting->left-- > 0 ? malloc(bytes) : NULL;
}

static void *resize(void *user, void *pointer, size_t old_bytes, size_t bytes)
{
    counting_t *counting = user;
    (void)old_bytes;
    return counting->left > 0 && counting->left-- > 0 ? realloc(pointer, bytes) : NULL;
}

static void release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

static void test_allocations_fail_while_opening(void **state)
{
    bool failed = true;
    (void)state;
    for (uint32_t at = 0; failed && at < 200; at++) {
        verbs_world_t world;
        counting_t counting = {at};
        weft_allocator_t allocator = {allocate, resize, release, &counting};
        verbs_world_init(&world, 2);
        world.allocator = &allocator;
        weft_status_t status = verbs_world_open(&world);
        status = status == WEFT_OK ? verbs_world_grow(&world, 65536) : status;
        failed = status < 0;
        verbs_world_close(&world);
    }
    assert_false(failed);
}

/* Memory that cannot be registered is an error that says how much and what to do; what is there
 * works on, and so does a smaller growth. */
static void test_memory_is_refused(void **state)
{
    verbs_world_t world;
    (void)state;
    verbs_world_init(&world, 2);
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    assert_int_equal(verbs_world_grow(&world, 65536), WEFT_OK);
    nic.fail_call = NIC_REG_MR;
    nic.fail_at = 2; /* rank 1's: rank 0 has registered its part */
    nic.fail_errno = ENOMEM;
    assert_int_equal(verbs_world_grow(&world, 1u << 20), WEFT_ERR_NO_MEMORY);
    assert_non_null(strstr(weft_last_error(), "ibv_reg_mr failed on fake0"));
    assert_non_null(strstr(weft_last_error(), "the region"));
    assert_int_equal(verbs_world_grow(&world, 131072), WEFT_OK);
    uint64_t word = 99;
    assert_int_equal(put(&world, 0, 1, 100000, &word, sizeof word, NULL), WEFT_OK);
    assert_int_equal(signal_to(&world, 0, 1, 64, 1), WEFT_OK);
    verbs_world_flush(&world);
    assert_memory_equal(world.ranks[1].region + 100000, &word, sizeof word);
    verbs_world_close(&world);
}

/* Rank 0's link to rank 1 is broken, once told, and all sources are released; rank 2 is reached as
 * before. */
static void check_broken(verbs_world_t *world, const wefti_signal_t *in_use, const char *text)
{
    assert_int_equal(world->ranks[0].breaks, 1);
    assert_int_equal(world->ranks[0].broken_peer, 1);
    assert_non_null(strstr(world->ranks[0].text, "fake0 port 1 10.0.0.1"));
    if (text != NULL) {
        assert_non_null(strstr(world->ranks[0].text, text));
    }
    assert_int_equal(atomic_load(&in_use->value), 0);
    uint64_t word = 5;
    assert_int_equal(put(world, 0, 1, 8192, &word, sizeof word, NULL), WEFT_ERR_LINK);
    assert_int_equal(signal_to(world, 0, 1, 64, 9), WEFT_ERR_LINK);
    assert_string_equal(weft_last_error(), world->ranks[0].text);
    for (uint32_t i = 1; i < 200; i++) {
        assert_int_equal(put(world, 0, 2, 8192, &i, sizeof i, NULL), WEFT_OK);
        assert_int_equal(signal_to(world, 0, 2, 64, i), WEFT_OK);
        verbs_world_turn(world);
    }
    verbs_world_flush(world);
    assert_int_equal(atomic_load(&verbs_counter(world, 2, 64)->value), 199);
    assert_int_equal(world->ranks[0].breaks, 1);
}

static void put_much(verbs_world_t *world, wefti_signal_t *in_use)
{
    static uint8_t elsewhere[600000];
    for (uint32_t i = 1; i <= 30; i++) {
        (void)put(world, 0, 1, 8192, world->ranks[0].region + (4u << 20), 100000, in_use);
        (void)put(world, 0, 1, 8192, elsewhere, sizeof elsewhere, i % 2 == 0 ? in_use : NULL);
        (void)signal_to(world, 0, 1, 128, i);
    }
}

/* Wherever in the stream a request fails. */
static void test_requests_fail(void **state)
{
    static const enum ibv_wc_status bad[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR,
                                             IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_FATAL_ERR};
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        verbs_world_t world;
        wefti_signal_t in_use = {0};
        char text[160];
        open_world(&world, 3);
        nic.lazy = i % 2 == 1;
        nic.bad_request_at = 1 + i * i;
        nic.bad_status = bad[i % 4];
        put_much(&world, &in_use);
        for (uint32_t turn = 0; world.ranks[0].breaks == 0 && turn < 100000; turn++) {
            verbs_world_turn(&world);
        }
        snprintf(text, sizeof text, "send: %s (completion status %d, vendor error 129)",
                 ibv_wc_status_str(bad[i % 4]), (int)bad[i % 4]);
        check_broken(&world, &in_use, text);
        assert_non_null(strstr(world.ranks[0].text, "queue pair 0 (0x"));
        verbs_world_close(&world);
    }
}

/* A queue pair that is moved to the error state under requests, as a reset of the device does. */
static void test_queue_pairs_are_killed(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        verbs_world_t world;
        wefti_signal_t in_use = {0};
        open_world(&world, 2);
        nic.lazy = i % 2 == 1;
        nic.held = i % 4 >= 2;
        put_much(&world, &in_use);
        nic_kill_queue_pairs(0);
        nic.held = false;
        for (uint32_t turn = 0; world.ranks[0].breaks == 0 && turn < 1000; turn++) {
            verbs_world_turn(&world);
        }
        assert_int_equal(world.ranks[0].breaks, 1);
        assert_int_equal(atomic_load(&in_use.value), 0);
        /* The other end hears of it by its owner. */
        wefti_link_verbs.drop(world.ranks[1].driver, 0);
        verbs_world_flush(&world);
        assert_int_equal(world.ranks[1].breaks, 0);
        assert_int_equal(signal_to(&world, 1, 0, 64, 2), WEFT_ERR_LINK);
        verbs_world_close(&world);
    }
}

/* Calls that fail while data is moving. */
static void test_calls_fail_while_running(void **state)
{
    static const nic_call_t calls[] = {NIC_POST_SEND, NIC_POST_RECV, NIC_POLL_CQ,
                                       NIC_REQ_NOTIFY_CQ};
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        verbs_world_t world;
        wefti_signal_t in_use = {0};
        open_world(&world, 2);
        nic.fail_call = calls[i % 4];
        nic.fail_at = 1 + i / 4 * 7;
        nic.fail_errno = EIO;
        for (uint32_t turn = 0; turn < 50; turn++) {
            if (world.ranks[0].breaks == 0 && world.ranks[1].breaks == 0) {
                put_much(&world, &in_use);
            }
            verbs_world_turn(&world);
            (void)wefti_link_verbs.arm(world.ranks[turn % 2].driver);
        }
        assert_int_equal(nic.fail_at, 0);
        assert_true(world.ranks[0].breaks + world.ranks[1].breaks >= 1);
        wefti_link_verbs.drop(world.ranks[0].driver, 1);
        wefti_link_verbs.drop(world.ranks[1].driver, 0);
        assert_int_equal(atomic_load(&in_use.value), 0);
        verbs_world_close(&world);
    }
}

/* What a peer says is not believed: numbers, slots, places and credits that cannot be. */
static void test_peers_lie(void **state)
{
    static const uint32_t lies[] = {
        0x3fff0000u,              /* a counter that nobody announced, beyond the table */
        0x007f0001u,              /* within the table */
        1u << 30 | 64,            /* a slot that there is not */
        2u << 30 | 2,             /* a credit for what was not sent */
        3u << 30,                 /* no such kind */
        1u << 30 | 0x3fffu << 16, /* a number that there is not */
    };
    (void)state;
    for (uint32_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        verbs_world_t world;
        open_world(&world, 2);
        nic_forge_immediate(0, lies[i]);
        verbs_world_turn(&world);
        assert_int_equal(world.ranks[0].breaks, 1);
        assert_non_null(strstr(world.ranks[0].text, "protocol error: unexpected immediate"));
        verbs_world_close(&world);
    }
    /* A place outside of the region, one that is not aligned. */
    for (uint32_t i = 0; i < 2; i++) {
        verbs_world_t world;
        open_world(&world, 2);
        assert_int_equal(signal_to(&world, 1, 0, i == 0 ? VERBS_REGION : 68, 1), WEFT_OK);
        for (uint32_t turn = 0; turn < 4; turn++) {
            verbs_world_turn(&world);
        }
        assert_int_equal(world.ranks[0].breaks, 1);
        verbs_world_close(&world);
    }
}

/* A card of another version, an offer that is none. */
static void test_strange_cards(void **state)
{
    verbs_world_t world;
    wefti_verbs_address_t cards[2] = {0};
    const bool peers[2] = {false, true};
    (void)state;
    verbs_world_init(&world, 2);
    world.ranks[0].settings = world.settings;
    assert_int_equal(
        wefti_link_verbs.open(&world.ranks[0].params, &world.ranks[0].driver, &cards[0]), WEFT_OK);
    assert_int_equal(wefti_link_verbs.join(world.ranks[0].driver, (const uint8_t *)cards, peers),
                     WEFT_ERR_MISMATCH);
    verbs_world_close(&world);
    verbs_world_init(&world, 2);
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    uint8_t nothing[512] = {0};
    assert_int_equal(wefti_link_verbs.offered(world.ranks[0].driver, nothing), WEFT_ERR_MISMATCH);
    verbs_world_close(&world);
}

/* The device dies: all links do. A port that goes down is only told of. */
static void test_device_events(void **state)
{
    verbs_world_t world;
    (void)state;
    open_world(&world, 3);
    uint32_t warnings = world.warnings;
    nic_raise_event(0, IBV_EVENT_PORT_ERR);
    assert_false(wefti_link_verbs.arm(world.ranks[0].driver));
    assert_int_equal(world.ranks[0].breaks, 0);
    assert_int_equal(world.warnings, warnings + 1);
    nic_raise_event(0, IBV_EVENT_QP_FATAL);
    (void)wefti_link_verbs.arm(world.ranks[0].driver);
    assert_int_equal(world.ranks[0].breaks, 1);
    nic_raise_event(1, IBV_EVENT_DEVICE_FATAL);
    (void)wefti_link_verbs.arm(world.ranks[1].driver);
    assert_int_equal(world.ranks[1].breaks, 2);
    assert_non_null(strstr(world.ranks[1].text, "device fake0"));
    verbs_world_close(&world);
}

/* A child gives back its copies and nothing of the parent's. */
static void test_forked_children(void **state)
{
    verbs_world_t world;
    (void)state;
    open_world(&world, 2);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int before = open_fd_count();
        wefti_link_verbs.close(world.ranks[0].driver, true);
        _exit(open_fd_count() == before - 4 ? 0 : 1);
    }
    assert_int_equal(wait_for(child), 0);
    assert_int_equal(signal_to(&world, 0, 1, 64, 2), WEFT_OK);
    verbs_world_flush(&world);
    assert_int_equal(atomic_load(&verbs_counter(&world, 1, 64)->value), 2);
    verbs_world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_fail_while_opening),
        cmocka_unit_test(test_allocations_fail_while_opening),
        cmocka_unit_test(test_memory_is_refused),
        cmocka_unit_test(test_requests_fail),
        cmocka_unit_test(test_queue_pairs_are_killed),
        cmocka_unit_test(test_calls_fail_while_running),
        cmocka_unit_test(test_peers_lie),
        cmocka_unit_test(test_strange_cards),
        cmocka_unit_test(test_device_events),
        cmocka_unit_test(test_forked_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
