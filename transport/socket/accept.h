/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepts connections and authenticates their peers. A peer that sends garbage, is silent for too
 * long or does not know the key only loses its connection. If too many connections are pending, the
 * oldest one is closed: a rank connects again.
 */
#ifndef WEFT_TRANSPORT_SOCKET_ACCEPT_H
#define WEFT_TRANSPORT_SOCKET_ACCEPT_H

#include "runtime/base/log.h"
#include "transport/socket/handshake.h"

typedef struct wefti_pending {
    wefti_handshake_t shake; /* its wire is closed: this entry is free */
    wefti_address_t from;
    uint64_t since_ns;
} wefti_pending_t;

/* The first fields are the caller's. */
typedef struct wefti_acceptor {
    int listener, epoll_fd; /* both borrowed; listener -1: see wefti_acceptor_listen */
    wefti_greeting_t greeting;
    const uint8_t *key; /* borrowed */
    size_t key_bytes;
    const wefti_log_t *log;
    const weft_allocator_t *allocator;
    uint32_t capacity;
    uint64_t patience_ns;
    /* As in wefti_handshake_t; not NULL: the welcome is withheld, and the socket handed on. */
    bool (*accepts)(const void *owner, const wefti_greeting_t *greeting);
    const void *owner;

    wefti_pending_t *pending; /* [allocated], at most capacity: as many as were ever needed */
    size_t allocated;
    uint32_t used;    /* entries that were ever used */
    char failed[200]; /* the latest failed authentication, or "" */
} wefti_acceptor_t;

/* Tags of its events in the epoll set are this one and larger. */
#define WEFTI_ACCEPTOR_TAG 0x80000000u

weft_status_t wefti_acceptor_open(wefti_acceptor_t *acceptor);
/* Adds a listener. */
weft_status_t wefti_acceptor_listen(wefti_acceptor_t *acceptor, int listener);
/* For an event. *out_peer: an authenticated peer, whose wire the caller takes or closes; or NULL.
 * An error is one of this process. */
weft_status_t wefti_acceptor_step(wefti_acceptor_t *acceptor, uint32_t tag,
                                  wefti_pending_t **out_peer);
static inline wefti_wire_t wefti_pending_take(wefti_pending_t *pending)
{
    wefti_wire_t wire = pending->shake.wire;
    pending->shake.wire = (wefti_wire_t){.fd = -1};
    return wire;
}
/* Closes connections that are pending for too long. Returns when the next one will be. */
uint64_t wefti_acceptor_expire(wefti_acceptor_t *acceptor);
/* Closes one of them. */
void wefti_acceptor_dismiss(wefti_acceptor_t *acceptor, wefti_pending_t *pending);
void wefti_acceptor_close(wefti_acceptor_t *acceptor);

/* epoll_ctl with a tag; an error has a message. */
weft_status_t wefti_watch(int epoll_fd, int operation, int fd, uint32_t events, uint32_t tag);

#endif
