/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what this host has ---- */

/* WEFT_IFNAME: patterns with commas between; a leading ^ takes all others. */
static bool interface_allowed(const char *name)
{
    const char *setting = getenv("WEFT_IFNAME");
    char patterns[256], *rest = NULL;
    if (setting == NULL || *setting == '\0') {
        return true;
    }
    bool others = *setting == '^', found = false;
    snprintf(patterns, sizeof patterns, "%s", setting + (others ? 1 : 0));
    for (char *at = strtok_r(patterns, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) {
        found = found || fnmatch(at, name, 0) == 0;
    }
    return found != others;
}

static uint32_t count_bits(const uint8_t *mask, size_t bytes)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < bytes; i++) {
        for (uint8_t rest = mask[i]; rest != 0; rest = (uint8_t)(rest << 1)) {
            bits++;
        }
    }
    return bits;
}

static bool read_address(const struct ifaddrs *at, host_address_t *out)
{
    memset(out, 0, sizeof *out);
    if (at->ifa_addr == NULL || at->ifa_netmask == NULL || (at->ifa_flags & IFF_UP) == 0 ||
        (at->ifa_flags & IFF_LOOPBACK) != 0 || !interface_allowed(at->ifa_name)) {
        return false;
    }
    out->family = at->ifa_addr->sa_family;
    if (out->family == AF_INET) {
        memcpy(out->raw, &((const struct sockaddr_in *)at->ifa_addr)->sin_addr, 4);
        out->prefix_bits = count_bits(
            (const uint8_t *)&((const struct sockaddr_in *)at->ifa_netmask)->sin_addr, 4);
    } else if (out->family == AF_INET6) {
        const struct in6_addr *address = &((const struct sockaddr_in6 *)at->ifa_addr)->sin6_addr;
        memcpy(out->raw, address, 16);
        out->prefix_bits = count_bits(
            (const uint8_t *)&((const struct sockaddr_in6 *)at->ifa_netmask)->sin6_addr, 16);
        if (IN6_IS_ADDR_LINKLOCAL(address)) {
            return false;
        }
    }
    return inet_ntop(out->family, out->raw, out->text, sizeof out->text) != NULL;
}

static void name_machine(char *out, size_t bytes)
{
    char boot[64] = "";
    struct stat net = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        if (fgets(boot, sizeof boot, file) == NULL) {
            boot[0] = '\0';
        }
        boot[strcspn(boot, "\n")] = '\0';
        fclose(file);
    }
    (void)stat("/proc/self/ns/net", &net);
    snprintf(out, bytes, "%s/%llu", boot, (unsigned long long)net.st_ino);
}

void wefti_addresses_put(frame_t *frame)
{
    host_addresses_t own = {.count = 0};
    struct ifaddrs *all = NULL;
    name_machine(own.machine, sizeof own.machine);
    if (getifaddrs(&all) == 0) {
        for (const struct ifaddrs *at = all; at != NULL && own.count < LAUNCH_MAX_ADDRESSES;
             at = at->ifa_next) {
            own.count += read_address(at, &own.items[own.count]);
        }
        freeifaddrs(all);
    }
    wefti_frame_put_text(frame, own.machine);
    wefti_frame_put(frame, own.count);
    for (uint32_t i = 0; i < own.count; i++) {
        wefti_frame_put_text(frame, own.items[i].text);
        wefti_frame_put(frame, own.items[i].prefix_bits);
    }
}

void wefti_addresses_get(frame_t *frame, host_addresses_t *out)
{
    memset(out, 0, sizeof *out);
    wefti_frame_get_text(frame, out->machine, sizeof out->machine);
    uint32_t count = wefti_frame_get(frame);
    for (uint32_t i = 0; i < count && i < LAUNCH_MAX_ADDRESSES; i++) {
        host_address_t *item = &out->items[out->count];
        wefti_frame_get_text(frame, item->text, sizeof item->text);
        item->prefix_bits = wefti_frame_get(frame);
        item->family = strchr(item->text, ':') != NULL ? AF_INET6 : AF_INET;
        uint32_t most = item->family == AF_INET ? 32 : 128;
        out->count += inet_pton(item->family, item->text, item->raw) == 1 &&
                      item->prefix_bits <= most && !frame->wrong;
    }
}

/* ---- choosing ---- */

static bool same_address(const host_address_t *a, const host_address_t *b)
{
    return a->family == b->family && memcmp(a->raw, b->raw, sizeof a->raw) == 0;
}

static bool same_network(const host_address_t *a, const host_address_t *b)
{
    if (a->family != b->family || a->prefix_bits != b->prefix_bits) {
        return false;
    }
    for (uint32_t bit = 0; bit < a->prefix_bits; bit++) {
        uint8_t mask = (uint8_t)(0x80u >> (bit % 8));
        if ((a->raw[bit / 8] & mask) != (b->raw[bit / 8] & mask)) {
            return false;
        }
    }
    return true;
}

static bool is_called(const host_address_t *address, const struct addrinfo *names)
{
    for (const struct addrinfo *at = names; at != NULL; at = at->ai_next) {
        const void *raw =
            at->ai_family == AF_INET
                ? (const void *)&((const struct sockaddr_in *)at->ai_addr)->sin_addr
                : (const void *)&((const struct sockaddr_in6 *)at->ai_addr)->sin6_addr;
        if (at->ai_family == address->family &&
            memcmp(raw, address->raw, address->family == AF_INET ? 4 : 16) == 0) {
            return true;
        }
    }
    return false;
}

/* Others in the address's network first, then what the user called it, then IPv4; 0: useless. */
static uint32_t score(const host_addresses_t *hosts, uint32_t count, const host_address_t *address,
                      const struct addrinfo *names)
{
    uint32_t near = 0;
    for (uint32_t h = 1; h < count; h++) {
        bool in_network = false, taken = false;
        for (uint32_t i = 0; i < hosts[h].count; i++) {
            taken = taken || same_address(address, &hosts[h].items[i]);
            in_network = in_network || same_network(address, &hosts[h].items[i]);
        }
        /* The same machine under two names has the same addresses, and reaches itself. */
        if (taken && strcmp(hosts[h].machine, hosts[0].machine) != 0) {
            return 0;
        }
        near += in_network;
    }
    return 1 + (address->family == AF_INET) + 2 * (uint32_t)is_called(address, names) + 4 * near;
}

bool wefti_addresses_choose(const host_addresses_t *hosts, uint32_t count, const char *name,
                            char *out, size_t out_bytes)
{
    struct addrinfo *names = NULL;
    const host_address_t *best = NULL;
    uint32_t best_score = 0;
    bool one_machine = true;
    for (uint32_t h = 1; h < count; h++) {
        one_machine = one_machine && strcmp(hosts[h].machine, hosts[0].machine) == 0;
    }
    if (one_machine) {
        snprintf(out, out_bytes, "127.0.0.1");
        return true;
    }
    const char *at = strrchr(name, '@'); /* user@host */
    if (getaddrinfo(at != NULL ? at + 1 : name, NULL, NULL, &names) != 0) {
        names = NULL; /* ssh may know it by another name */
    }
    for (uint32_t i = 0; i < hosts[0].count; i++) {
        uint32_t now = score(hosts, count, &hosts[0].items[i], names);
        if (now > best_score) {
            best = &hosts[0].items[i];
            best_score = now;
        }
    }
    if (names != NULL) {
        freeaddrinfo(names);
    }
    if (best != NULL) {
        snprintf(out, out_bytes, best->family == AF_INET6 ? "[%s]" : "%s", best->text);
    }
    return best != NULL;
}

/* ---- a port ---- */

static int hold(int family, uint16_t *out_port)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    socklen_t bytes = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int yes = 1, no = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if ((family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) ||
        bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *out_port = ntohs(family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                         : ((struct sockaddr_in *)&address)->sin_port);
    return fd;
}

int wefti_port_hold(uint16_t *out_port)
{
    int fd = hold(AF_INET6, out_port);
    return fd >= 0 ? fd : hold(AF_INET, out_port);
}
