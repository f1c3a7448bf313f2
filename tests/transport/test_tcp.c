/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp driver: data, order, connecting from both ends, zero-copy, links that end. */
#include "support_tcp.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/error.h"

static const wefti_link_driver_t *const tcp = &wefti_link_tcp;

/* ---- putting and signalling ---- */

static void put_and_signal(const char *ifname, uint32_t sockets)
{
    net_t net;
    const char text[] = "across the wire";
    net_open(&net, 2, sockets, ifname);
    for (uint32_t lane = 0; lane < WEFTI_LINK_LANES; lane++) {
        size_t at = 4096 + 256 * lane;
        assert_int_equal(tcp->put(net.sides[0].driver, 1, at, text, sizeof text, lane, NULL),
                         WEFT_OK);
        assert_int_equal(tcp->signal(net.sides[0].driver, 1, 128 * lane, lane + 1, lane), WEFT_OK);
    }
    for (uint32_t lane = 0; lane < WEFTI_LINK_LANES; lane++) {
        UNTIL(&net, net_value(&net.sides[1], 128 * lane) == lane + 1);
        assert_string_equal((char *)net.sides[1].region + 4096 + 256 * lane, text);
    }
    wefti_link_stats_t stats;
    tcp->stats(net.sides[1].driver, 0, &stats);
    assert_int_equal(stats.bytes_received, WEFTI_LINK_LANES * sizeof text);
    assert_int_equal(stats.messages_received, 2 * WEFTI_LINK_LANES);
    tcp->stats(net.sides[0].driver, 1, &stats);
    assert_int_equal(stats.bytes_sent, WEFTI_LINK_LANES * sizeof text);
    assert_int_equal(stats.messages_sent, 2 * WEFTI_LINK_LANES);
    UNTIL(&net, net_flushed(&net));
    net_close(&net);
    assert_int_equal(atomic_load(&net.sides[0].broken) + atomic_load(&net.sides[1].broken), 0);
}

static void test_put_and_signal_over_1_to_8_sockets(void **state)
{
    (void)state;
    for (uint32_t sockets = 1; sockets <= TCP_SOCKETS_MAX; sockets++) {
        put_and_signal("lo", sockets);
    }
}

static void test_put_and_signal_over_any_interface(void **state)
{
    (void)state;
    put_and_signal("", 2);
}

static void test_a_put_alone_arrives_and_flush_knows(void **state)
{
    net_t net;
    (void)state;
    net_open(&net, 2, 2, "lo");
    assert_true(net_flushed(&net));
    assert_int_equal(tcp->put(net.sides[0].driver, 1, 64, "alone", 6, 3, NULL), WEFT_OK);
    assert_false(net_flushed(&net));
    UNTIL(&net, net_flushed(&net));
    assert_string_equal((char *)net.sides[1].region + 64, "alone");
    net_close(&net);
}

static bool has_ipv6_loopback(void)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return has;
}

static void test_ipv6(void **state)
{
    net_t net;
    (void)state;
    if (!has_ipv6_loopback()) {
        print_message("skipped: ::1 is not there\n");
        skip();
    }
    net_init(&net, 2, 2, "lo");
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t kept = 0;
        assert_int_equal(net_open_side(&net, r), WEFT_OK);
        for (uint32_t i = 0; i < net.addresses[r].interface_count; i++) {
            if (net.addresses[r].interfaces[i].address.family == 6) {
                net.addresses[r].interfaces[kept++] = net.addresses[r].interfaces[i];
            }
        }
        assert_true(kept > 0);
        net.addresses[r].interface_count = kept;
    }
    net_join_side(&net, 0);
    net_join_side(&net, 1);
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 5, 0), WEFT_OK);
    UNTIL(&net, net_value(&net.sides[1], 0) == 5);
    char text[200];
    tcp->describe(net.sides[0].driver, 1, text, sizeof text);
    assert_non_null(strstr(text, "::1 lo -> ::1"));
    net_close(&net);
}

static void test_interfaces_that_are_not_there(void **state)
{
    net_t net;
    (void)state;
    net_init(&net, 2, 2, "nosuch*,eth99");
    assert_int_equal(net_open_side(&net, 0), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(net.sides[0].driver);
    assert_non_null(strstr(weft_last_error(), "nosuch*,eth99"));
    assert_non_null(strstr(weft_last_error(), "lo"));
    snprintf(net.settings.ifname, sizeof net.settings.ifname, "^*");
    assert_int_equal(net_open_side(&net, 0), WEFT_ERR_INVALID_ARGUMENT);
    snprintf(net.settings.ifname, sizeof net.settings.ifname, "^nosuch*,lo");
    weft_status_t status = net_open_side(&net, 0); /* all but lo, if there is any */
    for (uint32_t i = 0; status == WEFT_OK && i < net.addresses[0].interface_count; i++) {
        assert_string_not_equal(net.addresses[0].interfaces[i].name, "lo");
    }
    net_close(&net);
}

/* What the connection from rank 0 to rank 1 goes by. */
static void congestion_of(const char *wanted, char *out, socklen_t bytes)
{
    net_t net;
    net_init(&net, 2, 1, "lo");
    snprintf(net.settings.congestion, sizeof net.settings.congestion, "%s", wanted);
    assert_int_equal(net_open_side(&net, 0), WEFT_OK);
    assert_int_equal(net_open_side(&net, 1), WEFT_OK);
    net_join_side(&net, 0);
    net_join_side(&net, 1);
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net, net_value(&net.sides[1], 0) == 1);
    tcp_peer_t *peer = wefti_tcp_peer(net.sides[0].driver, 1);
    memset(out, 0, bytes);
    assert_int_equal(
        getsockopt(peer->connections[0].source.fd, IPPROTO_TCP, TCP_CONGESTION, out, &bytes), 0);
    net_close(&net);
}

static void test_congestion_control(void **state)
{
    net_t net;
    char name[16], system_name[16];
    (void)state;
    congestion_of("reno", name, sizeof name); /* everybody may have it */
    assert_string_equal(name, "reno");
    congestion_of("system", system_name, sizeof system_name);
    congestion_of("auto", name, sizeof name);
    if (strncmp(system_name, "bbr", 3) != 0) {
        assert_string_equal(name, system_name);
    }
    net_init(&net, 2, 1, "lo");
    snprintf(net.settings.congestion, sizeof net.settings.congestion, "nosuch");
    assert_int_equal(net_open_side(&net, 0), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "WEFT_TCP_CONGESTION=nosuch"));
    net_close(&net);
}

/* ---- memory of the caller ---- */

static void test_zero_copy_data_comes_back_once_it_was_read(void **state)
{
    net_t net;
    wefti_signal_t in_use = {0};
    size_t bytes = 3u << 20; /* in stripes, and more than a socket holds */
    uint8_t *data = malloc(bytes);
    (void)state;
    net_open(&net, 2, 3, "lo");
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(i * 7 + i / 251);
    }
    for (uint32_t round = 1; round <= 4; round++) {
        data[17] = (uint8_t)round;
        assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, bytes, 5, &in_use), WEFT_OK);
        assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096 + bytes, data, 40000, 5, &in_use),
                         WEFT_OK);
        assert_false(wefti_signal_reached(atomic_load(&in_use.value), 0) && round == 1);
        assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, round, 5), WEFT_OK);
        UNTIL(&net, wefti_signal_reached(atomic_load(&in_use.value), 0));
        UNTIL(&net, net_value(&net.sides[1], 0) == round);
        assert_memory_equal(net.sides[1].region + 4096, data, bytes);
        assert_memory_equal(net.sides[1].region + 4096 + bytes, data, 40000);
    }
    net_close(&net);
    free(data);
}

static void test_data_is_free_when_put_returns(void **state)
{
    net_t net;
    size_t bytes = 4u << 20;
    uint8_t *data = malloc(bytes);
    (void)state;
    net_open(&net, 2, 2, "lo");
    for (uint32_t round = 1; round <= 3; round++) {
        memset(data, (int)round, bytes);
        assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, bytes, 1, NULL), WEFT_OK);
        memset(data, 0xee, bytes);
        assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, round, 1), WEFT_OK);
        UNTIL(&net, net_value(&net.sides[1], 0) == round);
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(net.sides[1].region[4096 + i], round);
        }
    }
    net_close(&net);
    free(data);
}

static void test_time_spent_waiting_for_the_link_is_counted(void **state)
{
    net_t net;
    wefti_link_stats_t stats;
    size_t bytes = NET_REGION_BYTES - 4096;
    uint8_t *data = calloc(1, bytes);
    (void)state;
    net_open(&net, 2, 1, "lo");
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net, net_flushed(&net));
    tcp->stats(net.sides[0].driver, 1, &stats);
    assert_int_equal(stats.busy_ns, 0);
    for (uint32_t i = 0; i < 8; i++) { /* more than the kernel takes while nobody receives */
        assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, bytes, 0, NULL), WEFT_OK);
    }
    UNTIL(&net, net_flushed(&net));
    tcp->stats(net.sides[0].driver, 1, &stats);
    assert_true(stats.busy_ns > 0);
    assert_int_equal(stats.bytes_sent, 8 * bytes);
    net_close(&net);
    free(data);
}

static void test_zero_copy_data_comes_back_when_the_link_is_dropped(void **state)
{
    net_t net;
    uint32_t peer;
    wefti_signal_t in_use = {0};
    uint8_t *data = calloc(1, 1 << 20);
    (void)state;
    net_open(&net, 2, 1, "lo");
    assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, 1 << 20, 0, &in_use), WEFT_OK);
    assert_false(wefti_signal_reached(atomic_load(&in_use.value), 0));
    tcp->drop(net.sides[0].driver, 1);
    assert_true(wefti_signal_reached(atomic_load(&in_use.value), 0));
    assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, 10, 0, NULL), WEFT_ERR_LINK);
    assert_true(tcp->flushed(net.sides[0].driver, &peer));
    net_close(&net);
    free(data);
}

/* ---- random traffic ---- */

#define LANES 4u
#define LARGE_SLOT 1179648u /* striped */
#define SMALL_SLOT 32768u
#define ROUNDS 10u

static size_t slot_at(uint32_t from, uint32_t lane, uint32_t parity)
{
    uint32_t slot = 2 * from + parity;
    return 65536 + (lane == 0 ? (size_t)slot * LARGE_SLOT
                              : 6 * (size_t)LARGE_SLOT + (6 * (lane - 1) + slot) * SMALL_SLOT);
}

static size_t data_counter(uint32_t from, uint32_t lane)
{
    return (from * LANES + lane) * 128;
}

static size_t ack_counter(uint32_t from, uint32_t lane)
{
    return 32768 + data_counter(from, lane);
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* What goes from one rank to another in one round of a lane. */
static size_t content(uint64_t seed, uint32_t from, uint32_t to, uint32_t lane, uint32_t round,
                      uint8_t *data)
{
    uint64_t random = mix(seed ^ mix(from + 8 * to + 64 * lane + 4096ull * round));
    size_t most = lane == 0 ? (random & 3 ? 65536 : LARGE_SLOT) : (random & 1 ? 300 : SMALL_SLOT);
    size_t bytes = 1 + (size_t)(mix(random) % most);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(random >> (i & 31)) ^ (uint8_t)i;
    }
    return bytes;
}

typedef struct talker {
    net_t *net;
    uint32_t rank;
    uint64_t seed;
    _Atomic uint32_t *stop;
    const char *wrong;
} talker_t;

static bool wait_value(talker_t *talker, size_t offset, uint32_t target)
{
    side_t *side = &talker->net->sides[talker->rank];
    uint64_t end = wefti_now_ns() + NET_WAIT_NS;
    while (!wefti_signal_reached(net_value(side, offset), target)) {
        if (!tcp->progress(side->driver)) {
            sched_yield();
        }
        if (wefti_now_ns() > end) {
            talker->wrong = "a counter was not raised in time";
            return false;
        }
    }
    return true;
}

static void send_round(talker_t *talker, uint32_t round, uint8_t *data, wefti_signal_t *in_use)
{
    net_t *net = talker->net;
    void *driver = net->sides[talker->rank].driver;
    for (uint32_t k = 0; k < LANES * net->size; k++) {
        uint32_t lane = k % LANES, to = k / LANES;
        if (to == talker->rank || !wait_value(talker, ack_counter(to, lane), round - 1)) {
            continue;
        }
        size_t bytes = content(talker->seed, talker->rank, to, lane, round, data);
        bool zero_copy = (mix(talker->seed + k + round) & 1) != 0;
        size_t cut = bytes / 3; /* two puts, one signal for both */
        size_t at = slot_at(talker->rank, lane, round & 1);
        if (tcp->put(driver, to, at, data, cut, lane, zero_copy ? in_use : NULL) != WEFT_OK ||
            tcp->put(driver, to, at + cut, data + cut, bytes - cut, lane,
                     zero_copy ? in_use : NULL) != WEFT_OK ||
            tcp->signal(driver, to, data_counter(talker->rank, lane), round, lane) != WEFT_OK) {
            talker->wrong = "put or signal failed";
        }
        while (!wefti_signal_reached(atomic_load(&in_use->value), 0)) {
            tcp->progress(driver);
        }
        memset(data, 0xaa, bytes);
    }
}

static void check_round(talker_t *talker, uint32_t round, uint8_t *data)
{
    net_t *net = talker->net;
    side_t *side = &net->sides[talker->rank];
    for (uint32_t k = 0; k < LANES * net->size; k++) {
        uint32_t lane = k % LANES, from = k / LANES;
        if (from == talker->rank || !wait_value(talker, data_counter(from, lane), round)) {
            continue;
        }
        size_t bytes = content(talker->seed, from, talker->rank, lane, round, data);
        if (memcmp(side->region + slot_at(from, lane, round & 1), data, bytes) != 0) {
            talker->wrong = "data is not what was put";
        }
        if (tcp->signal(side->driver, from, ack_counter(talker->rank, lane), round, lane) !=
            WEFT_OK) {
            talker->wrong = "signal failed";
        }
    }
}

static void *talk(void *argument)
{
    talker_t *talker = argument;
    uint8_t *data = malloc(LARGE_SLOT);
    wefti_signal_t in_use = {0};
    uint32_t peer;
    for (uint32_t round = 1; round <= ROUNDS && talker->wrong == NULL; round++) {
        send_round(talker, round, data, &in_use);
        check_round(talker, round, data);
    }
    while (talker->wrong == NULL && !tcp->flushed(talker->net->sides[talker->rank].driver, &peer)) {
        tcp->progress(talker->net->sides[talker->rank].driver);
    }
    free(data);
    return NULL;
}

/* The thread in the background: comes in whenever it can. */
static void *keep_going(void *argument)
{
    talker_t *talker = argument;
    while (atomic_load(talker->stop) == 0) {
        for (uint32_t r = 0; r < talker->net->size; r++) {
            tcp->progress(talker->net->sides[r].driver);
        }
        sched_yield();
    }
    return NULL;
}

static void random_traffic(uint32_t sockets)
{
    net_t net;
    pthread_t threads[NET_RANKS_MAX], background;
    talker_t talkers[NET_RANKS_MAX];
    _Atomic uint32_t stop = 0;
    uint64_t seed = wefti_now_ns();
    print_message("seed %llu, %u sockets\n", (unsigned long long)seed, sockets);
    net_open(&net, 3, sockets, "lo");
    for (uint32_t r = 0; r < net.size; r++) {
        talkers[r] = (talker_t){&net, r, seed, &stop, NULL};
        assert_int_equal(pthread_create(&threads[r], NULL, talk, &talkers[r]), 0);
    }
    assert_int_equal(pthread_create(&background, NULL, keep_going, &talkers[0]), 0);
    for (uint32_t r = 0; r < net.size; r++) {
        pthread_join(threads[r], NULL);
    }
    atomic_store(&stop, 1);
    pthread_join(background, NULL);
    for (uint32_t r = 0; r < net.size; r++) {
        if (talkers[r].wrong != NULL) {
            fail_msg("rank %u: %s", r, talkers[r].wrong);
        }
        assert_int_equal(atomic_load(&net.sides[r].broken), 0);
    }
    net_close(&net);
}

static void test_random_traffic_from_several_threads(void **state)
{
    (void)state;
    random_traffic(1);
    random_traffic(3);
    random_traffic(8);
}

/* ---- both ends connect ---- */

static void test_both_ends_may_connect_at_once(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 8; round++) {
        net_t net;
        net_open(&net, 4, 2, "lo");
        for (uint32_t from = 0; from < net.size; from++) {
            for (uint32_t to = 0; to < net.size; to++) {
                if (from != to) {
                    assert_int_equal(tcp->signal(net.sides[from].driver, to, 128 * from, 1, 0),
                                     WEFT_OK);
                }
            }
        }
        for (uint32_t k = 0; k < net.size * net.size; k++) {
            uint32_t from = k % net.size, to = k / net.size;
            if (from != to) {
                UNTIL(&net, net_value(&net.sides[to], 128 * from) == 1);
            }
        }
        UNTIL(&net, net_flushed(&net));
        net_close(&net);
    }
}

/* ---- ends ---- */

/* Who has sent its proof may be connected already, as far as the other end knows. */
static void test_a_proof_is_not_taken_back(void **state)
{
    net_t net;
    (void)state;
    net_open(&net, 2, 1, "lo");
    const tcp_t *other = net.sides[1].driver;
    const tcp_connection_t *attempt = &wefti_tcp_peer(net.sides[0].driver, 1)->connections[0];
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net,
          other->acceptor.used > 0 && other->acceptor.pending[0].shake.greeting[0].version != 0);
    tcp_step_t step = attempt->step;
    uint64_t end = wefti_now_ns() + NET_WAIT_NS;
    while (attempt->step == step && wefti_now_ns() < end) { /* the other one is stopped */
        tcp->progress(net.sides[0].driver);
    }
    assert_int_not_equal(attempt->step, step);
    assert_true(attempt->source.fd >= 0);
    assert_int_equal(attempt->until_ns, attempt->give_up_ns);
    UNTIL(&net, net_value(&net.sides[1], 0) == 1);
    net_close(&net);
}

static void test_leaving_is_no_fault(void **state)
{
    net_t net;
    uint32_t late;
    (void)state;
    net_open(&net, 2, 2, "lo");
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net, net_flushed(&net));
    tcp->close(net.sides[1].driver, false);
    net.sides[1].driver = NULL;
    tcp_peer_t *peer = wefti_tcp_peer(net.sides[0].driver, 1);
    UNTIL(&net, peer->state == TCP_PEER_LEFT);
    /* what goes there goes nowhere, and nobody minds */
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 2, 0), WEFT_OK);
    assert_true(tcp->flushed(net.sides[0].driver, &late));
    net_progress(&net);
    assert_int_equal(atomic_load(&net.sides[0].broken), 0);
    net_close(&net);
}

static void test_a_connection_cut_in_the_middle_is_a_link_fault(void **state)
{
    net_t net;
    wefti_signal_t in_use = {0};
    uint8_t *data = calloc(1, 4u << 20);
    (void)state;
    net_open(&net, 2, 2, "lo");
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net, net_flushed(&net));
    assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, 4u << 20, 0, &in_use), WEFT_OK);
    tcp_peer_t *peer = wefti_tcp_peer(net.sides[0].driver, 1);
    shutdown(peer->connections[1].source.fd, SHUT_RDWR);
    UNTIL(&net, atomic_load(&net.sides[0].broken) == 1 && atomic_load(&net.sides[1].broken) == 1);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(atomic_load(&net.sides[r].died), 0);
        assert_int_equal(atomic_load(&net.sides[r].broken_peer), 1 - r);
        assert_non_null(strstr(net.sides[r].text, "127.0.0.1"));
    }
    assert_true(wefti_signal_reached(atomic_load(&in_use.value), 0));
    assert_int_equal(tcp->put(net.sides[0].driver, 1, 4096, data, 8, 0, NULL), WEFT_ERR_LINK);
    net_progress(&net);
    assert_int_equal(atomic_load(&net.sides[0].broken), 1); /* said once */
    net_close(&net);
    free(data);
}

static void test_a_process_that_dies(void **state)
{
    net_t net;
    int to_parent[2], to_child[2];
    (void)state;
    net_init(&net, 2, 2, "lo");
    assert_int_equal(pipe(to_parent), 0);
    assert_int_equal(pipe(to_child), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (net_open_side(&net, 1) != WEFT_OK ||
            write(to_parent[1], &net.addresses[1], sizeof net.addresses[1]) !=
                sizeof net.addresses[1] ||
            read(to_child[0], &net.addresses[0], sizeof net.addresses[0]) !=
                sizeof net.addresses[0]) {
            _exit(1);
        }
        net_join_side(&net, 1);
        tcp->signal(net.sides[1].driver, 0, 0, 1, 0);
        for (;;) {
            tcp->progress(net.sides[1].driver);
        }
    }
    assert_int_equal(net_open_side(&net, 0), WEFT_OK);
    assert_int_equal(read(to_parent[0], &net.addresses[1], sizeof net.addresses[1]),
                     sizeof net.addresses[1]);
    assert_int_equal(write(to_child[1], &net.addresses[0], sizeof net.addresses[0]),
                     sizeof net.addresses[0]);
    net_join_side(&net, 0);
    UNTIL(&net, net_value(&net.sides[0], 0) == 1);
    kill(pid, SIGKILL);
    assert_int_equal(wait_for(pid), -SIGKILL);
    UNTIL(&net, atomic_load(&net.sides[0].broken) == 1);
    assert_int_equal(atomic_load(&net.sides[0].died), 1);
    assert_int_equal(atomic_load(&net.sides[0].broken_peer), 1);
    assert_non_null(strstr(net.sides[0].text, "rank 1"));
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_ERR_PEER_DIED);
    net_close(&net);
    for (int i = 0; i < 2; i++) {
        close(to_parent[i]);
        close(to_child[i]);
    }
}

static void test_nobody_to_connect_to(void **state)
{
    net_t net;
    wefti_signal_t in_use = {0};
    static uint8_t data[65536];
    (void)state;
    net_init(&net, 2, 2, "lo");
    net.settings.connect_timeout_ns = 100000000ull;
    assert_int_equal(net_open_side(&net, 0), WEFT_OK);
    assert_int_equal(net_open_side(&net, 1), WEFT_OK);
    tcp->close(net.sides[1].driver, false);
    net.sides[1].driver = NULL;
    net_join_side(&net, 0);
    assert_int_equal(tcp->put(net.sides[0].driver, 1, 0, data, sizeof data, 0, &in_use), WEFT_OK);
    UNTIL(&net, atomic_load(&net.sides[0].broken) == 1);
    assert_non_null(strstr(net.sides[0].text, "cannot connect to "));
    assert_true(wefti_signal_reached(atomic_load(&in_use.value), 0));
    net_close(&net);
}

static void test_a_forked_child_gives_back_its_copies_only(void **state)
{
    net_t net;
    (void)state;
    int before = open_fd_count();
    net_open(&net, 2, 2, "lo");
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 1, 0), WEFT_OK);
    UNTIL(&net, net_flushed(&net));
    pid_t pid = fork();
    if (pid == 0) {
        tcp->close(net.sides[0].driver, true);
        tcp->close(net.sides[1].driver, true);
        _exit(open_fd_count() == before ? 0 : 1);
    }
    assert_int_equal(wait_for(pid), 0);
    assert_int_equal(tcp->signal(net.sides[0].driver, 1, 0, 2, 0), WEFT_OK);
    UNTIL(&net, net_value(&net.sides[1], 0) == 2);
    assert_int_equal(atomic_load(&net.sides[0].broken) + atomic_load(&net.sides[1].broken), 0);
    net_close(&net);
    assert_int_equal(open_fd_count(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_signal_over_1_to_8_sockets),
        cmocka_unit_test(test_put_and_signal_over_any_interface),
        cmocka_unit_test(test_a_put_alone_arrives_and_flush_knows),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_interfaces_that_are_not_there),
        cmocka_unit_test(test_congestion_control),
        cmocka_unit_test(test_zero_copy_data_comes_back_once_it_was_read),
        cmocka_unit_test(test_data_is_free_when_put_returns),
        cmocka_unit_test(test_time_spent_waiting_for_the_link_is_counted),
        cmocka_unit_test(test_zero_copy_data_comes_back_when_the_link_is_dropped),
        cmocka_unit_test(test_random_traffic_from_several_threads),
        cmocka_unit_test(test_both_ends_may_connect_at_once),
        cmocka_unit_test(test_a_proof_is_not_taken_back),
        cmocka_unit_test(test_leaving_is_no_fault),
        cmocka_unit_test(test_a_connection_cut_in_the_middle_is_a_link_fault),
        cmocka_unit_test(test_a_process_that_dies),
        cmocka_unit_test(test_nobody_to_connect_to),
        cmocka_unit_test(test_a_forked_child_gives_back_its_copies_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
