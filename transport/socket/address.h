/* SPDX-License-Identifier: Apache-2.0 */
/* TCP addresses: IPv4 and IPv6, names, interfaces; sockets that listen or connect. */
#ifndef WEFT_TRANSPORT_SOCKET_ADDRESS_H
#define WEFT_TRANSPORT_SOCKET_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <weft/types.h>

#define WEFTI_ADDRESS_TEXT 64u
#define WEFTI_ENDPOINT_ADDRESSES 5u

/* Sent between ranks. */
typedef struct wefti_address {
    uint8_t family; /* 4, 6; 0: no address */
    uint8_t loopback;
    uint16_t port;
    uint32_t scope;    /* of link-local addresses: valid only on the host that wrote it */
    uint8_t bytes[16]; /* IPv4: the first four */
} wefti_address_t;

/* An address of one of this host's interfaces. Sent between ranks. */
typedef struct wefti_interface {
    wefti_address_t address;
    uint8_t prefix_bits;
    uint8_t running; /* it has a carrier */
    char name[16];
    uint8_t zero[2];
} wefti_interface_t;
_Static_assert(sizeof(wefti_interface_t) == 44, "interfaces are sent between ranks");

/* A rank's endpoint address: where it listens. Sent between ranks. */
typedef struct wefti_endpoint_address {
    uint32_t count;
    wefti_address_t addresses[WEFTI_ENDPOINT_ADDRESSES]; /* the likeliest first */
} wefti_endpoint_address_t;
_Static_assert(sizeof(wefti_endpoint_address_t) == 124, "sent between ranks");
/* Checks what a peer sent. */
static inline bool wefti_endpoint_address_valid(const wefti_endpoint_address_t *address)
{
    return address->count > 0 && address->count <= WEFTI_ENDPOINT_ADDRESSES;
}

socklen_t wefti_address_to_socket(const wefti_address_t *address, struct sockaddr_storage *out);
bool wefti_address_from_socket(const struct sockaddr_storage *from, wefti_address_t *out);
/* "10.0.0.1:80", "[::1]:80"; without port, or where it is 0: "10.0.0.1". Returns text, which has
 * WEFTI_ADDRESS_TEXT bytes. */
const char *wefti_address_text(const wefti_address_t *address, bool with_port, char *text);
bool wefti_address_same_host(const wefti_address_t *a, const wefti_address_t *b);

/* "host:port" or "[v6]:port" into its parts; host needs as many bytes as text. */
weft_status_t wefti_address_split(const char *text, char *host, uint16_t *out_port);
/* All addresses of a host; *out_literal: host is a number, not a name. */
weft_status_t wefti_address_resolve(const char *host, uint16_t port, wefti_address_t *out,
                                    uint32_t capacity, uint32_t *out_count, bool *out_literal);
/* WEFT_IFNAME: "" (all), "eth*,ib0", or "^docker*,virbr*" (all others). */
bool wefti_interface_wanted(const char *patterns, const char *name);
/* Addresses of interfaces that are up and match patterns, loopback last; count may be 0. */
weft_status_t wefti_address_interfaces(const char *patterns, wefti_interface_t *out,
                                       uint32_t capacity, uint32_t *out_count);

/* Non-blocking, close-on-exec. at NULL: all addresses of both families. A port that another socket
 * has: WEFT_AGAIN. *out_bound: with the port. */
weft_status_t wefti_address_listen(const wefti_address_t *at, uint16_t port, int backlog,
                                   int *out_fd, wefti_address_t *out_bound);
/* Begins to connect: *out_fd. WEFT_AGAIN (no listener) and errors are with errno. */
weft_status_t wefti_address_connect(const wefti_address_t *to, int *out_fd);
/* Of a connected socket. */
bool wefti_address_local(int fd, wefti_address_t *out);
bool wefti_address_peer(int fd, wefti_address_t *out);
/*
 * When a connecting socket is writable: 0, it is connected; EINPROGRESS; or the errno of the
 * failure. A socket that connected to itself, as happens while a local port has no listener, counts
 * as refused.
 */
int wefti_address_connected(int fd);

#endif
