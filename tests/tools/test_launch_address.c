/* SPDX-License-Identifier: Apache-2.0 */
/* What launcher and agents say to each other, whatever comes; where rank 0 can be reached. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/launch/address.h"
#include "tests/support/support.h"

typedef struct pair {
    int fds[2];
    frame_t frame;
    frame_reader_t reader;
} pair_t;

static pair_t *open_pair(void)
{
    pair_t *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    assert_int_equal(pipe(pair->fds), 0);
    pair->reader.fd = pair->fds[0];
    return pair;
}

static void close_pair(pair_t *pair)
{
    close(pair->fds[0]);
    if (pair->fds[1] >= 0) {
        close(pair->fds[1]);
    }
    free(pair);
}

static void say(pair_t *pair, const void *bytes, size_t count)
{
    assert_int_equal(write(pair->fds[1], bytes, count), (ssize_t)count);
}

static void test_frames_come_behind_any_greeting(void **state)
{
    pair_t *pair = open_pair();
    char text[16];
    (void)state;
    say(pair, "Last login: never\n\nno mail.", 27);
    say(pair, FRAMES_HELLO, sizeof FRAMES_HELLO - 1);
    wefti_frame_begin(&pair->frame, FRAME_ENDED);
    wefti_frame_put(&pair->frame, 0x80000001u);
    wefti_frame_put_text(&pair->frame, "what went wrong, at length");
    wefti_frame_put_bytes(&pair->frame, "rest", 4);
    assert_true(wefti_frame_send(&pair->frame, pair->fds[1]));
    assert_int_equal(wefti_frame_reader_fill(&pair->reader), 1);
    memset(&pair->frame, 0, sizeof pair->frame);
    assert_int_equal(wefti_frame_reader_next(&pair->reader, &pair->frame), 1);
    assert_int_equal(pair->frame.kind, FRAME_ENDED);
    assert_int_equal(wefti_frame_get(&pair->frame), 0x80000001u);
    wefti_frame_get_text(&pair->frame, text, sizeof text);
    assert_string_equal(text, "what went wrong"); /* cut to what there is room for */
    size_t rest = 0;
    assert_memory_equal(wefti_frame_get_rest(&pair->frame, &rest), "rest", 4);
    assert_int_equal(rest, 4);
    assert_false(pair->frame.wrong);
    assert_int_equal(wefti_frame_get(&pair->frame), 0);
    assert_true(pair->frame.wrong);
    assert_int_equal(wefti_frame_reader_next(&pair->reader, &pair->frame), 0);
    close_pair(pair);
}

static void test_what_came_instead_of_a_hello_is_kept(void **state)
{
    pair_t *pair = open_pair();
    (void)state;
    say(pair, "no entry", 8);
    close(pair->fds[1]);
    pair->fds[1] = -1;
    while (wefti_frame_reader_fill(&pair->reader) > 0) {
        assert_int_equal(wefti_frame_reader_next(&pair->reader, &pair->frame), 0);
    }
    assert_string_equal(pair->reader.noise, "no entry");
    close_pair(pair);
}

static void test_frames_that_are_too_large_are_not_sent(void **state)
{
    pair_t *pair = open_pair();
    (void)state;
    wefti_frame_begin(&pair->frame, FRAME_OUTPUT);
    for (int i = 0; i < 4; i++) {
        wefti_frame_put_bytes(&pair->frame, pair->reader.data, FRAME_MAX_BYTES / 3);
    }
    assert_true(pair->frame.wrong);
    assert_false(wefti_frame_send(&pair->frame, pair->fds[1]));
    close_pair(pair);
}

/* Whole frames whose inside is nonsense, and streams that are none: nothing is read past its end.
 */
static void test_nonsense(void **state)
{
    uint64_t seed = getenv("WEFT_TEST_SEED") != NULL ? strtoull(getenv("WEFT_TEST_SEED"), NULL, 10)
                                                     : (uint64_t)time(NULL);
    (void)state;
    print_message("WEFT_TEST_SEED=%llu\n", (unsigned long long)seed);
    srand((unsigned int)seed);
    for (int turn = 0; turn < 300; turn++) {
        pair_t *pair = open_pair();
        host_addresses_t *addresses = calloc(1, sizeof *addresses);
        uint8_t noise[512];
        for (size_t i = 0; i < sizeof noise; i++) {
            noise[i] = (uint8_t)(rand() % (turn % 2 == 0 ? 4 : 256));
        }
        pair->reader.greeted = true;
        if (turn % 3 == 0) {
            say(pair, noise, sizeof noise);
        } else {
            wefti_frame_begin(&pair->frame, FRAME_READY);
            wefti_frame_put_bytes(&pair->frame, noise, (size_t)(rand() % 512));
            assert_true(wefti_frame_send(&pair->frame, pair->fds[1]));
        }
        assert_int_equal(wefti_frame_reader_fill(&pair->reader), 1);
        while (wefti_frame_reader_next(&pair->reader, &pair->frame) > 0) {
            assert_non_null(addresses);
            wefti_addresses_get(&pair->frame, addresses);
            assert_true(addresses->count <= LAUNCH_MAX_ADDRESSES);
        }
        free(addresses);
        close_pair(pair);
    }
}

/* "machine address/bits address/bits .." */
static void make_host(const char *text, host_addresses_t *out)
{
    frame_t *frame = calloc(1, sizeof *frame);
    char copy[256], *rest = NULL, *words[8] = {NULL};
    uint32_t count = 0;
    assert_non_null(frame);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        words[count++] = word;
    }
    wefti_frame_begin(frame, FRAME_READY);
    wefti_frame_put_text(frame, words[0]);
    wefti_frame_put(frame, count - 1);
    for (uint32_t i = 1; i < count; i++) {
        char *slash = strchr(words[i], '/');
        *slash = '\0';
        wefti_frame_put_text(frame, words[i]);
        wefti_frame_put(frame, (uint32_t)strtoul(slash + 1, NULL, 10));
    }
    wefti_addresses_get(frame, out);
    assert_false(frame->wrong);
    free(frame);
}

static void expect(const char *name, const char *a, const char *b, const char *c,
                   const char *wanted)
{
    host_addresses_t *hosts = calloc(3, sizeof *hosts);
    char got[64] = "none";
    assert_non_null(hosts);
    make_host(a, &hosts[0]);
    make_host(b, &hosts[1]);
    make_host(c, &hosts[2]);
    bool found = wefti_addresses_choose(hosts, 3, name, got, sizeof got);
    assert_int_equal(found, strcmp(wanted, "none") != 0);
    assert_string_equal(got, wanted);
    free(hosts);
}

static void test_the_address_of_rank_0(void **state)
{
    (void)state;
    expect("a", "m0 10.0.0.1/24", "m1 10.0.0.2/24", "m2 10.0.0.3/24", "10.0.0.1");
    /* the bridge of containers has the same address everywhere */
    expect("a", "m0 172.17.0.1/16 10.0.0.1/24", "m1 172.17.0.1/16 10.0.0.2/24",
           "m2 172.17.0.1/16 10.0.0.3/24", "10.0.0.1");
    /* a network that only one of the others is in */
    expect("a", "m0 10.1.0.1/24 10.0.0.1/24", "m1 10.1.0.2/24 10.0.0.2/24", "m2 10.0.0.3/24",
           "10.0.0.1");
    /* what the user has called it decides between networks that all are in */
    expect("root@10.1.0.1", "m0 10.0.0.1/24 10.1.0.1/24", "m1 10.0.0.2/24 10.1.0.2/24",
           "m2 10.0.0.3/24 10.1.0.3/24", "10.1.0.1");
    /* hosts behind routers */
    expect("a", "m0 10.0.0.1/24", "m1 10.2.0.1/24", "m2 10.3.0.1/24", "10.0.0.1");
    expect("a", "m0 fd00::1/64", "m1 fd00::2/64", "m2 fd00::3/64", "[fd00::1]");
    /* one machine under three names */
    expect("a", "m0 10.0.0.1/24", "m0 10.0.0.1/24", "m0 10.0.0.1/24", "127.0.0.1");
    expect("a", "m0", "m1 10.0.0.2/24", "m2 10.0.0.3/24", "none");
}

static void test_a_held_port_is_rank_0s(void **state)
{
    uint16_t ports[2] = {0, 0};
    int fds[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        fds[i] = wefti_port_hold(&ports[i]);
        assert_true(fds[i] >= 0);
        assert_int_not_equal(ports[i], 0);
    }
    assert_int_not_equal(ports[0], ports[1]);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_come_behind_any_greeting),
        cmocka_unit_test(test_what_came_instead_of_a_hello_is_kept),
        cmocka_unit_test(test_frames_that_are_too_large_are_not_sent),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_the_address_of_rank_0),
        cmocka_unit_test(test_a_held_port_is_rank_0s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
