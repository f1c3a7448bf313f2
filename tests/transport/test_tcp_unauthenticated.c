/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp driver and unauthenticated peers, which may send anything, slowly or not at all. */
#include "support_tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/digest.h"

static const wefti_link_driver_t *const tcp = &wefti_link_tcp;

static int visit(const net_t *net, uint32_t rank)
{
    struct sockaddr_storage at;
    socklen_t length = wefti_address_to_socket(&net->addresses[rank].interfaces[0].address, &at);
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, length), 0);
    return fd;
}

static void say(int fd, const void *data, size_t bytes)
{
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* Exactly bytes, with progress meanwhile; false: the other side closed. */
static bool hear(net_t *net, int fd, void *out, size_t bytes)
{
    size_t have = 0;
    uint64_t end = wefti_now_ns() + NET_WAIT_NS;
    while (have < bytes) {
        net_progress(net);
        ssize_t got = recv(fd, (uint8_t *)out + have, bytes - have, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            return false;
        }
        have += got > 0 ? (size_t)got : 0;
        assert_true(wefti_now_ns() < end);
    }
    return true;
}

static bool closed(net_t *net, int fd)
{
    uint8_t byte;
    return !hear(net, fd, &byte, 1);
}

/* The link works, whatever else goes on. */
static void require_working(net_t *net, uint32_t value)
{
    assert_int_equal(tcp->signal(net->sides[0].driver, 1, 0, value, 0), WEFT_OK);
    assert_int_equal(tcp->signal(net->sides[1].driver, 0, 0, value, 0), WEFT_OK);
    UNTIL(net, net_value(&net->sides[0], 0) == value && net_value(&net->sides[1], 0) == value);
    assert_int_equal(atomic_load(&net->sides[0].broken), 0);
    assert_int_equal(atomic_load(&net->sides[1].broken), 0);
}

/* A greeting as rank `as` of the world would send it to rank 0; knowing the key or not. */
static void greet(const net_t *net, uint32_t as, uint32_t index, const uint8_t *key, int fd,
                  wefti_handshake_t *out)
{
    tcp_t self = {.params = {.rank = as, .world_size = net->size, .key = key},
                  .sockets = net->settings.sockets};
    const tcp_hello_t hello = {
        .to = 0, .index = (uint16_t)index, .sockets = (uint16_t)self.sockets};
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(wefti_tcp_greet(&self, fd, &hello, out), WEFT_OK);
}

static weft_status_t step(net_t *net, wefti_handshake_t *shake)
{
    weft_status_t status;
    uint64_t end = wefti_now_ns() + NET_WAIT_NS;
    while ((status = wefti_handshake_step(shake)) == WEFT_AGAIN) {
        net_progress(net);
        assert_true(wefti_now_ns() < end);
    }
    return status;
}

/* The socket; -1: turned away. */
static int shake_hands(net_t *net, uint32_t as, uint32_t index, const uint8_t *key)
{
    wefti_handshake_t shake;
    greet(net, as, index, key, visit(net, 0), &shake);
    weft_status_t status = step(net, &shake);
    int fd = wefti_handshake_detach(&shake);
    if (status != WEFT_OK) {
        close(fd);
        return -1;
    }
    return fd;
}

static uint32_t pending_count(const tcp_t *driver)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < driver->acceptor.used; i++) {
        count += driver->acceptor.pending[i].shake.wire.fd >= 0;
    }
    return count;
}

static void test_garbage_ends_the_visit_and_nothing_else(void **state)
{
    net_t net;
    uint8_t noise[4096];
    (void)state;
    unsigned seed = (unsigned)wefti_now_ns();
    print_message("seed %u\n", seed);
    srand(seed);
    net_open(&net, 2, 2, "lo");
    for (uint32_t round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof noise; i++) {
            noise[i] = (uint8_t)rand();
        }
        int fd = visit(&net, round % 2);
        say(fd, noise, 1 + (size_t)rand() % sizeof noise);
        shutdown(fd, SHUT_WR);
        assert_true(closed(&net, fd));
        close(fd);
    }
    require_working(&net, 1);
    net_close(&net);
}

/* A forked child holds a copy of a pending connection: what arrives there later raises no event. */
static void test_a_forked_child_leaves_no_event(void **state)
{
    net_t net;
    uint8_t noise[256] = {0};
    int ends[2];
    (void)state;
    net_open(&net, 2, 2, "lo");
    tcp_t *driver = net.sides[0].driver;
    int fd = visit(&net, 0);
    UNTIL(&net, pending_count(driver) == 1);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(read(ends[0], noise, 1) == 0 ? 0 : 1); /* until the parent closes its end */
    }
    close(ends[0]);
    assert_true(child > 0);
    say(fd, noise, sizeof noise);
    UNTIL(&net, pending_count(driver) == 0);
    for (uint32_t i = 0; i < 100; i++) {
        (void)send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        net_progress(&net);
    }
    require_working(&net, 1);
    net_close(&net);
    close(ends[1]);
    close(fd);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_damaged_hellos_get_no_answer(void **state)
{
    net_t net;
    (void)state;
    net_open(&net, 2, 2, "lo");
    for (uint32_t i = 0; i < 9; i++) {
        wefti_handshake_t shake;
        greet(&net, 1, 0, net.keys[1], visit(&net, 0), &shake);
        wefti_greeting_t *greeting = &shake.greeting[0];
        tcp_hello_t hello = wefti_tcp_hello_of(greeting);
        switch (i) {
        case 0:
            greeting->purpose = WEFTI_PURPOSE_LINK;
            break;
        case 1:
            greeting->version = __builtin_bswap32(greeting->version);
            break;
        case 2:
            greeting->version++;
            break;
        case 3:
            greeting->world_size = 3;
            break;
        case 4:
            greeting->rank = 2; /* no such rank */
            break;
        case 5:
            greeting->rank = 0; /* its own */
            break;
        case 6:
            hello.to = 1; /* not the listener's */
            break;
        case 7:
            hello.index = 2;
            break;
        default:
            hello.sockets = 1;
            break;
        }
        memcpy(greeting->job, &hello, sizeof hello);
        assert_int_equal(step(&net, &shake), WEFT_ERR_PEER_DIED);
        assert_int_equal(wefti_handshake_peer(&shake)->version, 0); /* no answer */
        wefti_handshake_deinit(&shake);
    }
    require_working(&net, 1);
    net_close(&net);
}

static void test_a_peer_without_the_key_is_refused(void **state)
{
    net_t net;
    uint8_t other[WEFTI_LINK_KEY_BYTES] = {1, 2, 3};
    (void)state;
    net_open(&net, 2, 2, "lo");
    assert_int_equal(shake_hands(&net, 1, 0, other), -1);
    require_working(&net, 1);
    net_close(&net);
}

static void test_a_listener_without_the_key_gets_no_data(void **state)
{
    net_t net;
    (void)state;
    net_init(&net, 2, 1, "lo");
    memset(net.keys[1], 9, sizeof net.keys[1]);
    net.settings.connect_timeout_ns = 200000000ull;
    assert_int_equal(net_open_side(&net, 0), WEFT_OK);
    assert_int_equal(net_open_side(&net, 1), WEFT_OK);
    net_join_side(&net, 0);
    net_join_side(&net, 1);
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net, atomic_load(&net.sides[0].broken) == 1);
    assert_int_equal(net_value(&net.sides[1], 0), 0);
    assert_non_null(strstr(net.sides[0].text, "cannot connect to "));
    net_close(&net);
}

static void receive(net_t *net, wefti_wire_t *wire, wefti_kind_t kind, void *out, size_t bytes)
{
    wefti_frame_t frame;
    weft_status_t status;
    while ((status = wefti_wire_receive(wire, &frame)) == WEFT_AGAIN) {
        net_progress(net);
    }
    assert_int_equal(status, WEFT_OK);
    assert_int_equal(frame.kind, kind);
    assert_true(frame.bytes >= bytes);
    memcpy(out, frame.body, bytes);
}

static void test_recorded_proofs_are_refused(void **state)
{
    net_t net;
    wefti_handshake_t shakes[2];
    wefti_greeting_t said[2], answers[2]; /* what a proof covers: the guest's, the host's */
    wefti_digest_t proof, echo;
    uint8_t byte;
    (void)state;
    net_open(&net, 2, 2, "lo");
    for (uint32_t i = 0; i < 2; i++) {
        greet(&net, 1, 0, net.keys[1], visit(&net, 0), &shakes[i]);
        wefti_wire_send(&shakes[i].wire, WEFTI_HELLO, &shakes[0].greeting[0], sizeof said[0], NULL,
                        0);
        receive(&net, &shakes[i].wire, WEFTI_ANSWER, &answers[i], sizeof answers[i]);
    }
    assert_memory_not_equal(answers[0].nonce, answers[1].nonce, sizeof answers[0].nonce);
    said[0] = shakes[0].greeting[0];
    said[1] = answers[0];
    assert_int_equal(
        wefti_hmac(net.keys[1], WEFTI_LINK_KEY_BYTES, "weft guest", said, sizeof said, &proof),
        WEFT_OK);
    assert_int_equal(
        wefti_hmac(net.keys[1], WEFTI_LINK_KEY_BYTES, "weft host", said, sizeof said, &echo),
        WEFT_OK);
    /* a proof that is good for the other connection; what the listener itself would prove */
    wefti_wire_send(&shakes[1].wire, WEFTI_PROOF, &proof, sizeof proof, NULL, 0);
    wefti_wire_send(&shakes[0].wire, WEFTI_PROOF, &echo, sizeof echo, NULL, 0);
    for (uint32_t i = 0; i < 2; i++) {
        receive(&net, &shakes[i].wire, WEFTI_REFUSED, &byte, 1);
        assert_true(closed(&net, shakes[i].wire.fd));
        wefti_handshake_deinit(&shakes[i]);
    }
    require_working(&net, 1);
    net_close(&net);
}

static void test_slow_pending_connections_take_no_room_and_no_time(void **state)
{
    net_t net;
    int visitors[300];
    (void)state;
    net_open(&net, 2, 2, "lo");
    int before = open_fd_count();
    for (uint32_t i = 0; i < 300; i++) {
        visitors[i] = visit(&net, 0);
        if (i % 3 != 0) {
            say(visitors[i], "weft", i % 3 == 1 ? 1 : 4);
        }
        net_progress(&net);
    }
    require_working(&net, 1);
    const tcp_t *driver = net.sides[0].driver;
    assert_true(pending_count(driver) <= TCP_PENDING_MAX + 4);
    assert_true(open_fd_count() <= before + 300 + (int)TCP_PENDING_MAX + 4 + 8);
    for (uint32_t i = 0; i < 300; i++) {
        close(visitors[i]);
    }
    UNTIL(&net, pending_count(driver) == 0);
    require_working(&net, 2);
    net_close(&net);
}

/* ---- peers that know the key and send invalid frames ---- */

static void say_frame(tcp_frame_t frame)
{
    net_t net;
    net_open(&net, 2, 2, "lo");
    memset(net.sides[0].region, 0x5a, NET_REGION_BYTES);
    int fd = shake_hands(&net, 1, 0, net.keys[1]);
    assert_true(fd >= 0);
    say(fd, &frame, sizeof frame);
    UNTIL(&net, atomic_load(&net.sides[0].broken) == 1);
    assert_int_equal(atomic_load(&net.sides[0].died), 0); /* rank 1 answers */
    assert_non_null(strstr(net.sides[0].text, "protocol error: invalid frame"));
    assert_true(closed(&net, fd));
    for (size_t i = 0; i < NET_REGION_BYTES; i++) {
        assert_int_equal(net.sides[0].region[i], 0x5a);
    }
    close(fd);
    net_close(&net);
}

static void test_invalid_frames_break_the_link(void **state)
{
    (void)state;
    say_frame((tcp_frame_t){.kind = 0, .size = 4});
    say_frame((tcp_frame_t){.kind = TCP_PUT, .size = 4, .offset = NET_REGION_BYTES - 3});
    say_frame((tcp_frame_t){.kind = TCP_PUT, .size = 4, .offset = UINT64_MAX - 1});
    say_frame((tcp_frame_t){.kind = TCP_PUT, .size = UINT32_MAX, .offset = 0});
    say_frame((tcp_frame_t){.kind = TCP_PUT, .size = 0, .offset = 0});
    say_frame((tcp_frame_t){.kind = TCP_STRIPE, .size = 1, .lane = WEFTI_LINK_LANES});
    say_frame((tcp_frame_t){.kind = TCP_SIGNAL, .size = 1, .offset = 4});
    say_frame((tcp_frame_t){.kind = TCP_SIGNAL, .size = 1, .offset = NET_REGION_BYTES});
    say_frame((tcp_frame_t){.kind = TCP_SIGNAL, .size = 1, .zero = 1});
}

static void test_a_second_connection_of_a_rank_is_refused(void **state)
{
    net_t net;
    (void)state;
    net_open(&net, 2, 2, "lo");
    require_working(&net, 1);
    assert_int_equal(shake_hands(&net, 1, 0, net.keys[1]), -1);
    require_working(&net, 2);
    net_close(&net);
}

static void test_a_rank_before_the_region_is_there(void **state)
{
    net_t net;
    bool peers[2] = {false, true};
    (void)state;
    net_init(&net, 2, 1, "lo");
    assert_int_equal(net_open_side(&net, 0), WEFT_OK);
    assert_int_equal(net_open_side(&net, 1), WEFT_OK);
    assert_int_equal(tcp->join(net.sides[0].driver, (const uint8_t *)net.addresses, peers),
                     WEFT_OK);
    int fd = shake_hands(&net, 1, 0, net.keys[1]);
    assert_true(fd >= 0);
    tcp_frame_t frame = {.kind = TCP_SIGNAL, .size = 1};
    say(fd, &frame, sizeof frame);
    UNTIL(&net, atomic_load(&net.sides[0].broken) == 1);
    close(fd);
    net_close(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_garbage_ends_the_visit_and_nothing_else),
        cmocka_unit_test(test_a_forked_child_leaves_no_event),
        cmocka_unit_test(test_damaged_hellos_get_no_answer),
        cmocka_unit_test(test_a_peer_without_the_key_is_refused),
        cmocka_unit_test(test_a_listener_without_the_key_gets_no_data),
        cmocka_unit_test(test_recorded_proofs_are_refused),
        cmocka_unit_test(test_slow_pending_connections_take_no_room_and_no_time),
        cmocka_unit_test(test_invalid_frames_break_the_link),
        cmocka_unit_test(test_a_second_connection_of_a_rank_is_refused),
        cmocka_unit_test(test_a_rank_before_the_region_is_there),
    };
    signal(SIGPIPE, SIG_DFL); /* nothing here may raise it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
