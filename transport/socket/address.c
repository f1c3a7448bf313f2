/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/socket/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

socklen_t wefti_address_to_socket(const wefti_address_t *address, struct sockaddr_storage *out)
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
    v6->sin6_scope_id = address->scope;
    memcpy(&v6->sin6_addr, address->bytes, 16);
    return sizeof *v6;
}

bool wefti_address_from_socket(const struct sockaddr_storage *from, wefti_address_t *out)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
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
        if (memcmp(out->bytes, mapped, sizeof mapped) == 0) {
            /* A socket of both families shows IPv4 this way. */
            out->family = 4;
            memmove(out->bytes, out->bytes + 12, 4);
            memset(out->bytes + 4, 0, 12);
        } else {
            out->scope = v6->sin6_scope_id;
        }
    } else {
        return false;
    }
    static const uint8_t one[16] = {[15] = 1};
    out->loopback =
        out->family == 4 ? out->bytes[0] == 127 : memcmp(out->bytes, one, sizeof one) == 0;
    return true;
}

const char *wefti_address_text(const wefti_address_t *address, bool with_port, char *text)
{
    char number[INET6_ADDRSTRLEN] = "no address";
    if (address->family != 0) {
        inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->bytes, number, sizeof number);
    }
    if (!with_port || address->port == 0) {
        snprintf(text, WEFTI_ADDRESS_TEXT, "%s", number);
    } else {
        snprintf(text, WEFTI_ADDRESS_TEXT, address->family == 4 ? "%s:%u" : "[%s]:%u", number,
                 address->port);
    }
    return text;
}

bool wefti_address_same_host(const wefti_address_t *a, const wefti_address_t *b)
{
    return a->family == b->family && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static weft_status_t bad_address(const char *text)
{
    return wefti_error(
        WEFT_ERR_INVALID_ARGUMENT,
        "invalid address '%s': expected unix:@name, unix:/path, host:port, [v6]:port "
        "or file:///path",
        text);
}

weft_status_t wefti_address_split(const char *text, char *host, uint16_t *out_port)
{
    const char *colon = strrchr(text, ':');
    const char *from = text;
    char *rest = NULL;
    if (colon == NULL || colon[1] < '0' || colon[1] > '9') {
        return bad_address(text);
    }
    unsigned long port = strtoul(colon + 1, &rest, 10);
    size_t length = (size_t)(colon - text);
    if (length > 1 && text[0] == '[' && colon[-1] == ']') {
        from = text + 1;
        length -= 2;
    } else if (memchr(text, ':', length) != NULL) {
        return bad_address(text); /* a number of IPv6 without brackets */
    }
    if (length == 0 || *rest != '\0' || port == 0 || port > 65535 ||
        memchr(from, '/', length) != NULL) {
        return bad_address(text);
    }
    memcpy(host, from, length);
    host[length] = '\0';
    *out_port = (uint16_t)port;
    return WEFT_OK;
}

weft_status_t wefti_address_resolve(const char *host, uint16_t port, wefti_address_t *out,
                                    uint32_t capacity, uint32_t *out_count, bool *out_literal)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *list = NULL;
    *out_count = 0;
    int problem = getaddrinfo(host, NULL, &hints, &list);
    *out_literal = problem == 0;
    if (problem != 0) {
        hints.ai_flags = 0;
        problem = getaddrinfo(host, NULL, &hints, &list);
    }
    if (problem != 0) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "cannot resolve host '%s': %s", host,
                           gai_strerror(problem));
    }
    for (const struct addrinfo *at = list; at != NULL && *out_count < capacity; at = at->ai_next) {
        struct sockaddr_storage storage = {0};
        if (at->ai_addrlen <= sizeof storage) {
            memcpy(&storage, at->ai_addr, at->ai_addrlen);
            if (wefti_address_from_socket(&storage, &out[*out_count])) {
                out[(*out_count)++].port = port;
            }
        }
    }
    freeaddrinfo(list);
    return *out_count > 0 ? WEFT_OK
                          : wefti_error(WEFT_ERR_NOT_FOUND,
                                        "cannot resolve host '%s': it has no address", host);
}

static bool matches_one(const char *patterns, const char *name)
{
    while (*patterns != '\0') {
        char pattern[64];
        size_t length = strcspn(patterns, ",");
        if (length > 0 && length < sizeof pattern) {
            memcpy(pattern, patterns, length);
            pattern[length] = '\0';
            if (fnmatch(pattern, name, 0) == 0) {
                return true;
            }
        }
        patterns += length + (patterns[length] == ',');
    }
    return false;
}

bool wefti_interface_wanted(const char *patterns, const char *name)
{
    if (patterns[0] == '\0') {
        return true;
    }
    return patterns[0] == '^' ? !matches_one(patterns + 1, name) : matches_one(patterns, name);
}

static bool read_socket_address(const struct sockaddr *from, wefti_address_t *out)
{
    struct sockaddr_storage storage = {0};
    if (from == NULL || (from->sa_family != AF_INET && from->sa_family != AF_INET6)) {
        return false;
    }
    memcpy(&storage, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    return wefti_address_from_socket(&storage, out);
}

static uint8_t prefix_bits(const struct ifaddrs *entry, uint8_t family)
{
    wefti_address_t mask;
    int bits = 0;
    if (!read_socket_address(entry->ifa_netmask, &mask)) {
        return family == 4 ? 32 : 128;
    }
    for (size_t i = 0; i < sizeof mask.bytes; i++) {
        bits += __builtin_popcount(mask.bytes[i]);
    }
    return (uint8_t)bits;
}

/* False: peers cannot use it. */
static bool read_interface(const struct ifaddrs *entry, wefti_interface_t *out)
{
    wefti_address_t *address = &out->address;
    *out = (wefti_interface_t){.running = (entry->ifa_flags & IFF_RUNNING) != 0};
    if ((entry->ifa_flags & IFF_UP) == 0 || !read_socket_address(entry->ifa_addr, address)) {
        return false;
    }
    address->port = 0;
    address->loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    out->prefix_bits = prefix_bits(entry, address->family);
    snprintf(out->name, sizeof out->name, "%s", entry->ifa_name);
    /* A link-local address is valid only together with an interface number of the other host. */
    return address->scope == 0 && !(address->family == 6 && address->bytes[0] == 0xfe &&
                                    (address->bytes[1] & 0xc0) == 0x80);
}

weft_status_t wefti_address_interfaces(const char *patterns, wefti_interface_t *out,
                                       uint32_t capacity, uint32_t *out_count)
{
    struct ifaddrs *list = NULL;
    *out_count = 0;
    if (getifaddrs(&list) != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "getifaddrs failed");
    }
    for (int loopback = 0; loopback < 2; loopback++) {
        for (const struct ifaddrs *at = list; at != NULL && *out_count < capacity;
             at = at->ifa_next) {
            wefti_interface_t *interface = &out[*out_count];
            *out_count += read_interface(at, interface) &&
                          interface->address.loopback == loopback &&
                          wefti_interface_wanted(patterns, at->ifa_name);
        }
    }
    freeifaddrs(list);
    return WEFT_OK;
}

static int open_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

weft_status_t wefti_address_listen(const wefti_address_t *at, uint16_t port, int backlog,
                                   int *out_fd, wefti_address_t *out_bound)
{
    wefti_address_t any = {.family = 6, .port = port};
    struct sockaddr_storage storage;
    const int yes = 1, no = 0;
    int fd = open_socket(at != NULL && at->family == 4 ? AF_INET : AF_INET6);
    if (at == NULL && fd < 0) {
        any.family = 4; /* a kernel without IPv6 */
        fd = open_socket(AF_INET);
    }
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "socket failed");
    }
    if (at == NULL && any.family == 6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    } else if (at != NULL) {
        any = *at;
        any.port = port;
    }
    /* Accepted sockets inherit it: answers of a few bytes must not wait for each other. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    /* Closed connections of an earlier job must not keep the port. */
    if (port != 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    }
    socklen_t bytes = wefti_address_to_socket(&any, &storage);
    if (bind(fd, (const struct sockaddr *)&storage, bytes) != 0 || listen(fd, backlog) != 0) {
        int error_number = errno;
        close(fd);
        if (at == NULL && any.family == 6 && error_number == EADDRNOTAVAIL) {
            const wefti_address_t v4 = {.family = 4};
            return wefti_address_listen(&v4, port, backlog, out_fd, out_bound);
        }
        errno = error_number;
        if (error_number == EADDRINUSE) {
            return WEFT_AGAIN;
        }
        char text[WEFTI_ADDRESS_TEXT];
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "cannot listen at %s",
                                 wefti_address_text(&any, true, text));
    }
    if (!wefti_address_local(fd, out_bound)) {
        int error_number = errno;
        close(fd);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "getsockname failed");
    }
    *out_fd = fd;
    return WEFT_OK;
}

weft_status_t wefti_address_connect(const wefti_address_t *to, int *out_fd)
{
    struct sockaddr_storage storage;
    const int yes = 1;
    socklen_t length = wefti_address_to_socket(to, &storage);
    int fd = open_socket(storage.ss_family);
    if (fd < 0) {
        int error_number = errno;
        weft_status_t status =
            error_number == EAFNOSUPPORT
                ? WEFT_AGAIN
                : wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "socket failed");
        errno = error_number; /* recording the error may have changed it */
        return status;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(fd, (const struct sockaddr *)&storage, length) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int error_number = errno;
        close(fd);
        errno = error_number;
        return WEFT_AGAIN;
    }
    *out_fd = fd;
    return WEFT_OK;
}

bool wefti_address_local(int fd, wefti_address_t *out)
{
    struct sockaddr_storage storage;
    socklen_t length = sizeof storage;
    return getsockname(fd, (struct sockaddr *)&storage, &length) == 0 &&
           wefti_address_from_socket(&storage, out);
}

bool wefti_address_peer(int fd, wefti_address_t *out)
{
    struct sockaddr_storage storage;
    socklen_t length = sizeof storage;
    return getpeername(fd, (struct sockaddr *)&storage, &length) == 0 &&
           wefti_address_from_socket(&storage, out);
}

int wefti_address_connected(int fd)
{
    int problem = 0;
    socklen_t length = sizeof problem;
    wefti_address_t local, peer;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &length) != 0) {
        return errno;
    }
    if (problem != 0) {
        return problem;
    }
    if (!wefti_address_local(fd, &local) || !wefti_address_peer(fd, &peer)) {
        return EINPROGRESS;
    }
    return local.port == peer.port && wefti_address_same_host(&local, &peer) ? ECONNREFUSED : 0;
}
