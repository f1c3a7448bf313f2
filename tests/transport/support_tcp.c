/* SPDX-License-Identifier: Apache-2.0 */
#include "support_tcp.h"

#include <stdlib.h>
#include <string.h>

static void on_broken(void *owner, uint32_t peer, bool died, const char *text)
{
    side_t *side = owner;
    snprintf(side->text, sizeof side->text, "%s", text);
    atomic_store(&side->died, died ? 1 : 0);
    atomic_store(&side->broken_peer, peer);
    atomic_fetch_add(&side->broken, 1);
}

static void on_other(void *owner, uint32_t peer)
{
    (void)owner, (void)peer;
}

static void wake(void *owner)
{
    (void)owner;
}

weft_status_t net_open_side(net_t *net, uint32_t rank)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    side_t *side = &net->sides[rank];
    wefti_link_params_t params = {.rank = rank,
                                  .world_size = net->size,
                                  .settings = &net->settings,
                                  .log = &log,
                                  .key = net->keys[rank],
                                  .owner = side,
                                  .broken = on_broken,
                                  .arriving = on_other,
                                  .leaving = on_other,
                                  .wake = wake};
    side->rank = rank;
    return wefti_link_tcp.open(&params, &side->driver, &net->addresses[rank]);
}

void net_join_side(net_t *net, uint32_t rank)
{
    bool peers[NET_RANKS_MAX];
    side_t *side = &net->sides[rank];
    for (uint32_t r = 0; r < net->size; r++) {
        peers[r] = r != rank;
    }
    assert_int_equal(wefti_link_tcp.join(side->driver, (const uint8_t *)net->addresses, peers),
                     WEFT_OK);
    assert_int_equal(wefti_link_tcp.grow(side->driver, side->region, 0, NET_REGION_BYTES, NULL),
                     WEFT_OK);
}

void net_init(net_t *net, uint32_t size, uint32_t sockets, const char *ifname)
{
    memset(net, 0, sizeof *net);
    net->size = size;
    net->settings = test_settings();
    net->settings.sockets = sockets;
    net->settings.connect_timeout_ns = 300000000000ull;
    net->settings.link_timeout_ns = 120000000000ull;
    snprintf(net->settings.ifname, sizeof net->settings.ifname, "%s", ifname);
    for (uint32_t r = 0; r < size; r++) {
        memset(net->keys[r], 7, WEFTI_LINK_KEY_BYTES);
        net->sides[r].region = aligned_alloc(4096, NET_REGION_BYTES);
        memset(net->sides[r].region, 0, NET_REGION_BYTES);
    }
}

void net_open(net_t *net, uint32_t size, uint32_t sockets, const char *ifname)
{
    net_init(net, size, sockets, ifname);
    for (uint32_t r = 0; r < size; r++) {
        assert_int_equal(net_open_side(net, r), WEFT_OK);
    }
    for (uint32_t r = 0; r < size; r++) {
        net_join_side(net, r);
    }
}

void net_close(net_t *net)
{
    for (uint32_t r = 0; r < net->size; r++) {
        if (net->sides[r].driver != NULL) {
            wefti_link_tcp.close(net->sides[r].driver, false);
        }
        free(net->sides[r].region);
    }
}

void net_progress(net_t *net)
{
    for (uint32_t r = 0; r < net->size; r++) {
        if (net->sides[r].driver != NULL) {
            wefti_link_tcp.progress(net->sides[r].driver);
        }
    }
}

uint32_t net_value(const side_t *side, size_t offset)
{
    return atomic_load(&((wefti_signal_t *)(void *)(side->region + offset))->value);
}

bool net_flushed(net_t *net)
{
    bool all = true;
    uint32_t peer;
    for (uint32_t r = 0; r < net->size; r++) {
        all = wefti_link_tcp.flushed(net->sides[r].driver, &peer) && all;
    }
    return all;
}
