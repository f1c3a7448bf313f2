/* SPDX-License-Identifier: Apache-2.0 */
/* Which interfaces are used, what peers are told of them, and which way to a peer is tried first.
 */
#include "transport/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/topology.h"

/* ---- addresses ---- */

static uint32_t address_bytes(const tcp_address_t *address)
{
    return address->family == 4 ? 4 : 16;
}

socklen_t wefti_tcp_address_to_sockaddr(const tcp_address_t *address, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (address->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(address->port);
        memcpy(&v4->sin_addr, address->bytes, 4);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address->port);
    memcpy(&v6->sin6_addr, address->bytes, 16);
    return sizeof *v6;
}

void wefti_tcp_address_from_sockaddr(const struct sockaddr_storage *from, tcp_address_t *out)
{
    memset(out, 0, sizeof *out);
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
        out->family = 4;
        out->port = ntohs(v4->sin_port);
        memcpy(out->bytes, &v4->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
        out->family = 6;
        out->port = ntohs(v6->sin6_port);
        memcpy(out->bytes, &v6->sin6_addr, 16);
    }
}

const char *wefti_tcp_address_text(const tcp_address_t *address, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "nowhere";
    if (address->family != 0) {
        inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->bytes, host, sizeof host);
    }
    if (address->port == 0) {
        snprintf(text, bytes, "%s", host);
    } else {
        snprintf(text, bytes, address->family == 6 ? "[%s]:%u" : "%s:%u", host, address->port);
    }
    return text;
}

/* ---- interfaces ---- */

static uint8_t bits_of_mask(const struct ifaddrs *entry, uint32_t bytes)
{
    uint8_t mask[16] = {0};
    uint8_t bits = 0;
    if (entry->ifa_netmask == NULL) {
        return (uint8_t)(8 * bytes);
    }
    if (bytes == 4) {
        memcpy(mask, &((const struct sockaddr_in *)(const void *)entry->ifa_netmask)->sin_addr, 4);
    } else {
        memcpy(mask, &((const struct sockaddr_in6 *)(const void *)entry->ifa_netmask)->sin6_addr,
               16);
    }
    for (uint32_t i = 0; i < bytes; i++) {
        bits = (uint8_t)(bits + __builtin_popcount(mask[i]));
    }
    return bits;
}

/* False: nothing that peers could use. */
static bool read_entry(const struct ifaddrs *entry, tcp_address_t *out)
{
    if (entry->ifa_addr == NULL || (entry->ifa_flags & IFF_UP) == 0) {
        return false;
    }
    int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
        return false;
    }
    struct sockaddr_storage storage = {0};
    memcpy(&storage, entry->ifa_addr,
           family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    wefti_tcp_address_from_sockaddr(&storage, out);
    out->port = 0;
    out->prefix_bits = bits_of_mask(entry, address_bytes(out));
    out->loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    snprintf(out->ifname, sizeof out->ifname, "%s", entry->ifa_name);
    /* a link-local address means nothing without the number of an interface on the other side */
    return !(out->family == 6 && out->bytes[0] == 0xfe && (out->bytes[1] & 0xc0) == 0x80);
}

/* "eth0, lo": what there is, for people who asked for something else. */
static void name_interfaces(const struct ifaddrs *list, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (const struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        tcp_address_t address;
        bool known = !read_entry(entry, &address);
        for (const struct ifaddrs *before = list; before != entry && !known;
             before = before->ifa_next) {
            tcp_address_t other;
            known = strcmp(before->ifa_name, entry->ifa_name) == 0 && read_entry(before, &other);
        }
        if (!known && used < bytes) {
            int added =
                snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", entry->ifa_name);
            used += added > 0 ? (size_t)added : 0;
        }
    }
}

weft_status_t wefti_tcp_addresses_find(tcp_t *tcp)
{
    const char *patterns = tcp->params.settings->ifname;
    struct ifaddrs *list = NULL;
    tcp_card_t *card = &tcp->card;
    if (getifaddrs(&list) != 0) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "tcp: getifaddrs failed");
    }
    /* loopback last: it is of use to ranks of this machine only. What has no carrier counts where
     * there is nothing else: it may come up at this very moment */
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 2 && card->address_count > 0) {
            break;
        }
        for (const struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
            tcp_address_t address;
            bool running = (entry->ifa_flags & IFF_RUNNING) != 0;
            if (read_entry(entry, &address) && wefti_interface_wanted(patterns, entry->ifa_name) &&
                (pass == 2 ? !running : running && address.loopback == (pass == 1)) &&
                card->address_count < TCP_ADDRESSES_MAX) {
                card->addresses[card->address_count++] = address;
            }
        }
    }
    weft_status_t status = WEFT_OK;
    if (card->address_count == 0 && patterns[0] != 0) {
        char names[256];
        name_interfaces(list, names, sizeof names);
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "WEFT_IFNAME=%s matches no network interface that is up and has an "
                             "address; available: %s",
                             patterns, names);
    } else if (card->address_count == 0) {
        status =
            wefti_error(WEFT_ERR_UNSUPPORTED, "tcp: no network interface is up and has an address");
    }
    freeifaddrs(list);
    return status;
}

/* Where loopback leads: equal for ranks of one network namespace of one boot. */
void wefti_tcp_network_name(uint8_t *out_name)
{
    struct {
        char boot_id[40];
        uint64_t device, inode;
    } where = {{0}, 0, 0};
    wefti_digest_t digest = {{0}};
    struct stat info;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, where.boot_id, sizeof where.boot_id);
        (void)got; /* without it the namespace alone has to do */
        close(fd);
    }
    if (stat("/proc/self/ns/net", &info) == 0) {
        where.device = (uint64_t)info.st_dev;
        where.inode = (uint64_t)info.st_ino;
    }
    (void)wefti_digest_of(&where, sizeof where, &digest);
    memcpy(out_name, digest.bytes, 16);
}

/* ---- ways to a peer ---- */

static bool same_subnet(const tcp_address_t *a, const tcp_address_t *b)
{
    if (a->family != b->family || a->prefix_bits != b->prefix_bits) {
        return false;
    }
    uint32_t bits = a->prefix_bits;
    uint32_t most = 8 * address_bytes(a);
    for (uint32_t i = 0; i < (bits < most ? bits : most); i++) {
        if (((a->bytes[i / 8] ^ b->bytes[i / 8]) >> (7 - i % 8) & 1) != 0) {
            return false;
        }
    }
    return true;
}

/* Higher is better; 0: leads elsewhere. */
static uint32_t score(const tcp_t *tcp, const tcp_card_t *card, const tcp_address_t *theirs)
{
    bool same_network = memcmp(card->network, tcp->card.network, sizeof card->network) == 0;
    if (theirs->family != 4 && theirs->family != 6) {
        return 0;
    }
    if (theirs->loopback) {
        return same_network ? (theirs->family == 4 ? 6 : 5) : 0;
    }
    uint32_t best = theirs->family == 4 ? 2 : 1;
    for (uint32_t i = 0; i < tcp->card.address_count; i++) {
        const tcp_address_t *own = &tcp->card.addresses[i];
        if (!same_network && own->family == theirs->family &&
            memcmp(own->bytes, theirs->bytes, address_bytes(own)) == 0) {
            return 0; /* a bridge that every machine has: it leads back here */
        }
        if (!own->loopback && same_subnet(own, theirs)) {
            best = theirs->family == 4 ? 4 : 3;
        }
    }
    return best;
}

uint32_t wefti_tcp_candidates(const tcp_t *tcp, uint32_t peer, uint32_t socket_index,
                              const tcp_address_t **out)
{
    const tcp_card_t *card = &tcp->cards[peer];
    uint32_t known =
        card->address_count < TCP_ADDRESSES_MAX ? card->address_count : TCP_ADDRESSES_MAX;
    uint32_t count = 0;
    for (uint32_t wanted_score = 6; wanted_score > 0; wanted_score--) {
        const tcp_address_t *equal[TCP_ADDRESSES_MAX];
        uint32_t equals = 0;
        for (uint32_t i = 0; i < known; i++) {
            if (score(tcp, card, &card->addresses[i]) == wanted_score) {
                equal[equals++] = &card->addresses[i];
            }
        }
        /* sockets take turns over networks that both ends are on; else one way is as good as the
         * next */
        bool subnets = wanted_score == 4 || wanted_score == 3;
        uint32_t turn = subnets && equals > 0 ? socket_index % equals : 0;
        for (uint32_t i = 0; i < equals; i++) {
            out[count++] = equal[(i + turn) % equals];
        }
    }
    return count;
}
