/* SPDX-License-Identifier: Apache-2.0 */
/* Which interfaces are used and sent to peers; the order in which a peer's addresses are tried. */
#include "transport/tcp/tcp.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/machine/machine.h"

#define INTERFACES_MAX 64u

/* ---- interfaces ---- */

/* "eth0, lo": all interfaces that could be used, for error messages. */
static void name_interfaces(char *text, size_t bytes)
{
    wefti_interface_t all[INTERFACES_MAX];
    uint32_t count = 0;
    size_t used = 0;
    text[0] = 0;
    (void)wefti_address_interfaces("", all, INTERFACES_MAX, &count);
    for (uint32_t i = 0; i < count && used < bytes; i++) {
        bool known = false;
        for (uint32_t k = 0; k < i && !known; k++) {
            known = strcmp(all[k].name, all[i].name) == 0;
        }
        if (!known) {
            int added =
                snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", all[i].name);
            used += added > 0 ? (size_t)added : 0;
        }
    }
}

/* Equal on ranks of one network namespace of one machine: they share the loopback interface. */
static void name_network(uint8_t out_name[16])
{
    char machine[64], text[128];
    struct stat info = {0};
    wefti_digest_t digest = {{0}};
    wefti_machine_key(machine, sizeof machine);
    (void)stat("/proc/self/ns/net", &info);
    snprintf(text, sizeof text, "%s %llu %llu", machine, (unsigned long long)info.st_dev,
             (unsigned long long)info.st_ino);
    (void)wefti_digest_of(text, strlen(text), &digest);
    memcpy(out_name, digest.bytes, 16);
}

weft_status_t wefti_tcp_addresses_find(tcp_t *tcp)
{
    const char *patterns = tcp->params.settings->ifname;
    tcp_address_t *address = &tcp->own;
    wefti_interface_t found[INTERFACES_MAX];
    uint32_t count;
    name_network(address->network);
    if (wefti_address_interfaces(patterns, found, INTERFACES_MAX, &count) < 0) {
        return wefti_error_prefix(WEFT_ERR_UNSUPPORTED, "tcp");
    }
    /* interfaces without a carrier only if there are no others: it may appear later */
    for (int running = 1; running >= 0 && address->interface_count == 0; running--) {
        for (uint32_t i = 0; i < count && address->interface_count < TCP_ADDRESSES_MAX; i++) {
            if (found[i].running == running) {
                address->interfaces[address->interface_count++] = found[i];
            }
        }
    }
    if (address->interface_count > 0) {
        return WEFT_OK;
    }
    if (patterns[0] == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "tcp: no network interface is up and has an address");
    }
    char names[256];
    name_interfaces(names, sizeof names);
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "WEFT_IFNAME=%s matches no network interface that is up and has an "
                       "address; available: %s",
                       patterns, names);
}

/* ---- ways to a peer ---- */

static bool same_subnet(const wefti_interface_t *a, const wefti_interface_t *b)
{
    if (a->address.family != b->address.family || a->prefix_bits != b->prefix_bits) {
        return false;
    }
    uint32_t most = a->address.family == 4 ? 32 : 128;
    for (uint32_t i = 0; i < (a->prefix_bits < most ? a->prefix_bits : most); i++) {
        if (((a->address.bytes[i / 8] ^ b->address.bytes[i / 8]) >> (7 - i % 8) & 1) != 0) {
            return false;
        }
    }
    return true;
}

/* Higher is better; 0: not an address of the peer from here. */
static uint32_t score(const tcp_t *tcp, bool same_network, const wefti_interface_t *theirs)
{
    const wefti_address_t *address = &theirs->address;
    if (address->family != 4 && address->family != 6) {
        return 0;
    }
    if (address->loopback) {
        return same_network ? (address->family == 4 ? 6 : 5) : 0;
    }
    uint32_t best = address->family == 4 ? 2 : 1;
    for (uint32_t i = 0; i < tcp->own.interface_count; i++) {
        const wefti_interface_t *own = &tcp->own.interfaces[i];
        if (!same_network && wefti_address_same_host(&own->address, address)) {
            return 0; /* a bridge that every machine has: a connection would end here */
        }
        if (!own->address.loopback && same_subnet(own, theirs)) {
            best = address->family == 4 ? 4 : 3;
        }
    }
    return best;
}

weft_status_t wefti_tcp_addresses_keep(tcp_t *tcp, const tcp_address_t *addresses,
                                       const bool *peers)
{
    const weft_allocator_t *allocator = tcp->params.allocator;
    uint32_t world_size = tcp->params.world_size, total = 0;
    tcp->ways = wefti_alloc(allocator, world_size * sizeof *tcp->ways);
    WEFT_RETURN_IF_NO_MEMORY(tcp->ways);
    for (uint32_t r = 0; r < world_size; r++) {
        const tcp_address_t *address = &addresses[r];
        uint32_t sent = address->interface_count;
        tcp->ways[r] = (tcp_way_t){
            .same_network =
                memcmp(address->network, tcp->own.network, sizeof address->network) == 0,
            .count = (uint8_t)(!peers[r]                  ? 0
                               : sent < TCP_ADDRESSES_MAX ? sent
                                                          : TCP_ADDRESSES_MAX),
            .first = total,
        };
        total += tcp->ways[r].count;
    }
    tcp->interfaces = wefti_alloc(allocator, total * sizeof *tcp->interfaces);
    WEFT_RETURN_IF_NO_MEMORY(tcp->interfaces);
    for (uint32_t r = 0; r < world_size; r++) {
        memcpy(tcp->interfaces + tcp->ways[r].first, addresses[r].interfaces,
               tcp->ways[r].count * sizeof *tcp->interfaces);
    }
    return WEFT_OK;
}

uint32_t wefti_tcp_candidates(const tcp_t *tcp, uint32_t peer, uint32_t socket_index,
                              const wefti_address_t **out)
{
    const tcp_way_t *way = &tcp->ways[peer];
    const wefti_interface_t *theirs = tcp->interfaces + way->first;
    uint32_t count = 0;
    for (uint32_t wanted_score = 6; wanted_score > 0; wanted_score--) {
        const wefti_address_t *equal[TCP_ADDRESSES_MAX];
        uint32_t equals = 0;
        for (uint32_t i = 0; i < way->count; i++) {
            if (score(tcp, way->same_network, &theirs[i]) == wanted_score) {
                equal[equals++] = &theirs[i].address;
            }
        }
        /* sockets share the networks that both ends are on; other addresses are equally good */
        bool subnets = wanted_score == 4 || wanted_score == 3;
        uint32_t turn = subnets && equals > 0 ? socket_index % equals : 0;
        for (uint32_t i = 0; i < equals; i++) {
            out[count++] = equal[(i + turn) % equals];
        }
    }
    return count;
}
