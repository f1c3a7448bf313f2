/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp driver by itself: several instances as ranks of one process, cards exchanged by hand. */
#include "support.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/tcp/tcp.h"

#define RANKS_MAX 4u
#define REGION_BYTES (8u << 20)
#define WAIT_NS 20000000000ull

typedef struct side {
    void *driver;
    uint8_t *region;
    uint32_t rank;
    _Atomic uint32_t broken, died, broken_peer;
    char text[240];
} side_t;

typedef struct net {
    uint32_t size;
    wefti_settings_t settings;
    uint8_t keys[RANKS_MAX][WEFTI_LINK_KEY_BYTES];
    side_t sides[RANKS_MAX];
    tcp_card_t cards[RANKS_MAX];
} net_t;

static const wefti_link_driver_t *const tcp = &wefti_link_tcp;

static void on_broken(void *owner, uint32_t peer, bool died, const char *text)
{
    side_t *side = owner;
    snprintf(side->text, sizeof side->text, "%s", text);
    atomic_store(&side->died, died ? 1 : 0);
    atomic_store(&side->broken_peer, peer);
    atomic_fetch_add(&side->broken, 1);
}

static weft_status_t open_side(net_t *net, uint32_t rank)
{
    static const wefti_log_t log = {.level = WEFT_LOG_ERROR};
    side_t *side = &net->sides[rank];
    wefti_link_params_t params = {.rank = rank,
                                  .world_size = net->size,
                                  .settings = &net->settings,
                                  .log = &log,
                                  .key = net->keys[rank],
                                  .owner = side,
                                  .broken = on_broken};
    side->rank = rank;
    return tcp->open(&params, &side->driver, &net->cards[rank]);
}

static void join_side(net_t *net, uint32_t rank)
{
    bool peers[RANKS_MAX];
    side_t *side = &net->sides[rank];
    for (uint32_t r = 0; r < net->size; r++) {
        peers[r] = r != rank;
    }
    assert_int_equal(tcp->join(side->driver, (const uint8_t *)net->cards, peers), WEFT_OK);
    assert_int_equal(tcp->grow(side->driver, side->region, 0, REGION_BYTES, NULL), WEFT_OK);
}

static void open_net(net_t *net, uint32_t size, uint32_t sockets, const char *ifname)
{
    memset(net, 0, sizeof *net);
    net->size = size;
    net->settings = test_settings();
    net->settings.sockets = sockets;
    net->settings.connect_timeout_ns = 10000000000ull;
    net->settings.link_timeout_ns = 5000000000ull;
    snprintf(net->settings.ifname, sizeof net->settings.ifname, "%s", ifname);
    for (uint32_t r = 0; r < size; r++) {
        memset(net->keys[r], 7, WEFTI_LINK_KEY_BYTES);
        net->sides[r].region = aligned_alloc(4096, REGION_BYTES);
        memset(net->sides[r].region, 0, REGION_BYTES);
        assert_int_equal(open_side(net, r), WEFT_OK);
    }
    for (uint32_t r = 0; r < size; r++) {
        join_side(net, r);
    }
}

static void close_net(net_t *net)
{
    for (uint32_t r = 0; r < net->size; r++) {
        if (net->sides[r].driver != NULL) {
            tcp->close(net->sides[r].driver, false);
        }
        free(net->sides[r].region);
    }
}

static void progress_all(net_t *net)
{
    for (uint32_t r = 0; r < net->size; r++) {
        if (net->sides[r].driver != NULL) {
            tcp->progress(net->sides[r].driver);
        }
    }
}

/* Until condition, with progress everywhere; fails the test after a while. */
#define UNTIL(net, condition)                                                                      \
    do {                                                                                           \
        uint64_t end = wefti_now_ns() + WAIT_NS;                                                   \
        while (!(condition)) {                                                                     \
            progress_all(net);                                                                     \
            if (wefti_now_ns() > end) {                                                            \
                fail_msg("line %d: not in time: %s", __LINE__, #condition);                        \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static uint32_t value_at(const side_t *side, size_t offset)
{
    return atomic_load(&((wefti_signal_t *)(void *)(side->region + offset))->value);
}

static bool flushed_all(net_t *net)
{
    bool all = true;
    for (uint32_t r = 0; r < net->size; r++) {
        all = tcp->flushed(net->sides[r].driver) && all;
    }
    return all;
}

/* ---- putting and signalling ---- */

static void put_and_signal(const char *ifname, uint32_t sockets)
{
    net_t net;
    const char text[] = "across the wire";
    open_net(&net, 2, sockets, ifname);
    for (uint32_t lane = 0; lane < WEFTI_LINK_LANES; lane++) {
        size_t at = 4096 + 256 * lane;
        assert_int_equal(tcp->put(net.sides[0].driver, 1, at, text, sizeof text, lane, NULL),
                         WEFT_OK);
        assert_int_equal(tcp->signal(net.sides[0].driver, 1, 128 * lane, lane + 1, lane), WEFT_OK);
    }
    for (uint32_t lane = 0; lane < WEFTI_LINK_LANES; lane++) {
        UNTIL(&net, value_at(&net.sides[1], 128 * lane) == lane + 1);
        assert_string_equal((char *)net.sides[1].region + 4096 + 256 * lane, text);
    }
    wefti_link_stats_t stats;
    tcp->stats(net.sides[1].driver, 0, &stats);
    assert_int_equal(stats.bytes_received, WEFTI_LINK_LANES * sizeof text);
    assert_int_equal(stats.messages_received, 2 * WEFTI_LINK_LANES);
    tcp->stats(net.sides[0].driver, 1, &stats);
    assert_int_equal(stats.bytes_sent, WEFTI_LINK_LANES * sizeof text);
    UNTIL(&net, flushed_all(&net));
    close_net(&net);
}

static void test_put_and_signal_by_loopback(void **state)
{
    (void)state;
    put_and_signal("lo", 1);
    put_and_signal("lo", 8);
}

static void test_put_and_signal_by_any_interface(void **state)
{
    (void)state;
    put_and_signal("", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_signal_by_loopback),
        cmocka_unit_test(test_put_and_signal_by_any_interface),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
