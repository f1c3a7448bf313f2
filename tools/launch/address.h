/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of hosts, and the one that all others reach rank 0's host by. */
#ifndef WEFT_TOOLS_LAUNCH_ADDRESS_H
#define WEFT_TOOLS_LAUNCH_ADDRESS_H

#include <weft/context.h>

#include "tools/launch/frames.h"

#define LAUNCH_MAX_ADDRESSES 64u

typedef struct host_address {
    int family;
    uint32_t prefix_bits;
    uint8_t raw[16];
    char text[48];
} host_address_t;

typedef struct host_addresses {
    char machine[128]; /* boot id and network namespace: equal where loopback is one */
    uint32_t count;
    host_address_t items[LAUNCH_MAX_ADDRESSES];
} host_addresses_t;

/* Of the interfaces that are up and that WEFT_IFNAME allows, without loopback and link-local ones.
 */
void wefti_addresses_put(frame_t *frame);
void wefti_addresses_get(frame_t *frame, host_addresses_t *out);
/*
 * An address of hosts[0] in the network of as many others as possible. Addresses that another host
 * has too (those of bridges for containers) lead nowhere. Loopback where all are one machine. name:
 * what hosts[0] was called, preferred where its address is as good as any. False: there is none.
 */
bool wefti_addresses_choose(const host_addresses_t *hosts, uint32_t count, const char *name,
                            char *out, size_t out_bytes);
/* Binds a port that is free on all addresses and keeps it until rank 0, which asks for reuse,
 * listens; the descriptor, or -1 with errno. */
int wefti_port_hold(uint16_t *out_port);

#endif
