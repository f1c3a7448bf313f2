/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp driver alone: several instances as ranks of one process, which exchange addresses. */
#ifndef WEFT_TESTS_TRANSPORT_SUPPORT_TCP_H
#define WEFT_TESTS_TRANSPORT_SUPPORT_TCP_H

#include "support.h"

#include "transport/tcp/tcp.h"

#define NET_RANKS_MAX 4u
#define NET_REGION_BYTES (8u << 20)
#define NET_WAIT_NS 300000000000ull /* only a hang takes as long */

typedef struct side {
    void *driver;
    uint8_t *region;
    uint32_t rank;
    _Atomic uint32_t broken, died, broken_peer;
    char text[240]; /* of the last break */
} side_t;

typedef struct net {
    uint32_t size;
    wefti_settings_t settings;
    uint8_t keys[NET_RANKS_MAX][WEFTI_LINK_KEY_BYTES];
    side_t sides[NET_RANKS_MAX];
    tcp_address_t addresses[NET_RANKS_MAX];
} net_t;

/* Fills everything but the drivers. */
void net_init(net_t *net, uint32_t size, uint32_t sockets, const char *ifname);
weft_status_t net_open_side(net_t *net, uint32_t rank);
void net_join_side(net_t *net, uint32_t rank);
/* All three. */
void net_open(net_t *net, uint32_t size, uint32_t sockets, const char *ifname);
void net_close(net_t *net);
void net_progress(net_t *net);
uint32_t net_value(const side_t *side, size_t offset);
bool net_flushed(net_t *net);

/* Until condition, with progress everywhere; fails the test after a while. */
#define UNTIL(net, condition)                                                                      \
    do {                                                                                           \
        uint64_t until_end = wefti_now_ns() + NET_WAIT_NS;                                         \
        while (!(condition)) {                                                                     \
            net_progress(net);                                                                     \
            if (wefti_now_ns() > until_end) {                                                      \
                fail_msg("line %d: not in time: %s", __LINE__, #condition);                        \
            }                                                                                      \
        }                                                                                          \
    } while (0)

#endif
