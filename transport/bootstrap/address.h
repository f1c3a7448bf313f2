/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the rendezvous and the overlay: IPv4 and IPv6, names, interfaces. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_ADDRESS_H
#define WEFT_TRANSPORT_BOOTSTRAP_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <weft/types.h>

#define WEFTI_ADDRESS_TEXT 64u
#define WEFTI_CARD_ADDRESSES 5u

/* As it travels. */
typedef struct wefti_address {
    uint8_t family; /* 4, 6; 0: none */
    uint8_t loopback;
    uint16_t port;
    uint32_t scope; /* of link-local addresses: only good on the host that wrote it */
    uint8_t bytes[16];
} wefti_address_t;

/* Where a rank listens, as it tells others. */
typedef struct wefti_card {
    uint32_t count;
    wefti_address_t addresses[WEFTI_CARD_ADDRESSES]; /* the likeliest first */
} wefti_card_t;
_Static_assert(sizeof(wefti_card_t) == 124, "cards travel");

socklen_t wefti_address_to_socket(const wefti_address_t *address, struct sockaddr_storage *out);
bool wefti_address_from_socket(const struct sockaddr_storage *from, wefti_address_t *out);
/* "10.0.0.1:80", "[::1]:80"; without port: "10.0.0.1". Returns text, of WEFTI_ADDRESS_TEXT bytes.
 */
const char *wefti_address_text(const wefti_address_t *address, bool with_port, char *text);
bool wefti_address_same_host(const wefti_address_t *a, const wefti_address_t *b);

/* "host:port" or "[v6]:port" into its parts; host needs as many bytes as text. */
weft_status_t wefti_address_split(const char *text, char *host, uint16_t *out_port);
/* All addresses of a host; *out_literal: host is a number, not a name. */
weft_status_t wefti_address_resolve(const char *host, uint16_t port, wefti_address_t *out,
                                    uint32_t capacity, uint32_t *out_count, bool *out_literal);
/* Of interfaces that are up and match patterns (WEFT_IFNAME), loopback last; count may be 0. */
weft_status_t wefti_address_interfaces(const char *patterns, wefti_address_t *out,
                                       uint32_t capacity, uint32_t *out_count);

/* Non-blocking, close-on-exec. at NULL: all addresses of both families where there are both. A port
 * that is taken: WEFT_AGAIN. *out_bound: with the port. */
weft_status_t wefti_address_listen(const wefti_address_t *at, uint16_t port, int backlog,
                                   int *out_fd, wefti_address_t *out_bound);
/* Begins to connect: *out_fd, or WEFT_AGAIN (nobody there) with errno. */
weft_status_t wefti_address_connect(const wefti_address_t *to, int *out_fd);
/* Of a connected socket. */
bool wefti_address_local(int fd, wefti_address_t *out);
bool wefti_address_peer(int fd, wefti_address_t *out);
/* True when a socket has connected to itself, which happens while nobody listens at a local port.
 */
bool wefti_address_own_echo(int fd);

#endif
