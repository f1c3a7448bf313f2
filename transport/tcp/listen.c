/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening end. A connection is pending (transport/socket/accept.h) until the peer has proved
 * that it knows the world's key: the peer may send a few bytes within a few seconds. The number of
 * pending connections is limited. None of them is ever waited for.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define PENDING_NS 5000000000ull
#define EVENTS_AT_ONCE 32

/* Authenticated: it becomes a connection of the peer, or is closed. */
static void decide(tcp_t *tcp, wefti_pending_t *pending)
{
    wefti_handshake_t *shake = &pending->shake;
    const wefti_greeting_t *greeting = wefti_handshake_peer(shake);
    const tcp_hello_t hello = wefti_tcp_hello_of(greeting);
    tcp_peer_t *peer = hello.probe != 0 ? NULL : wefti_tcp_peer(tcp, greeting->rank);
    tcp_connection_t *connection = peer != NULL ? &peer->connections[hello.index] : NULL;
    if (hello.probe != 0) {
        (void)wefti_handshake_welcome(shake);
    } else if (connection != NULL && wefti_tcp_connectable(connection)) {
        if (!wefti_tcp_attempt_yield(connection)) {
            (void)wefti_handshake_defer(shake);
        } else if (wefti_handshake_welcome(shake) == WEFT_OK && !wefti_wire_unsent(&shake->wire)) {
            int fd = wefti_handshake_detach(shake);
            (void)epoll_ctl(tcp->pending.fd, EPOLL_CTL_DEL, fd, NULL);
            wefti_tcp_connected(connection, fd);
            return;
        }
    }
    wefti_acceptor_dismiss(&tcp->acceptor, pending);
}

static bool pending_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    struct epoll_event ready[EVENTS_AT_ONCE];
    (void)events;
    int count = epoll_wait(source->fd, ready, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        wefti_pending_t *pending;
        /* errors: no descriptor, say, and the peer tries again */
        if (wefti_acceptor_step(&tcp->acceptor, ready[i].data.u32, &pending) == WEFT_OK &&
            pending != NULL) {
            decide(tcp, pending);
        }
    }
    wefti_tcp_timer(tcp, wefti_now_ns() + PENDING_NS);
    return true;
}

static weft_status_t listen_at(tcp_t *tcp, wefti_interface_t *interface, int *listener)
{
    wefti_address_t bound;
    weft_status_t status =
        wefti_address_listen(&interface->address, 0, SOMAXCONN, listener, &bound);
    if (status == WEFT_AGAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tcp: no free port to listen on (%s)",
                           interface->name);
    }
    if (status < 0) {
        return wefti_error_prefix(WEFT_ERR_UNSUPPORTED, "tcp: %s", interface->name);
    }
    interface->address.port = bound.port;
    /* connections that are accepted inherit the options */
    if (!wefti_tcp_socket_tune(tcp, *listener)) {
        return wefti_error_errno(WEFT_ERR_INVALID_ARGUMENT, errno,
                                 "WEFT_TCP_CONGESTION=%s (see "
                                 "/proc/sys/net/ipv4/tcp_allowed_congestion_control)",
                                 tcp->params.settings->congestion);
    }
    return wefti_acceptor_listen(&tcp->acceptor, *listener);
}

weft_status_t wefti_tcp_listen(tcp_t *tcp)
{
    uint32_t kept = 0;
    weft_status_t status = WEFT_OK;
    tcp->pending = (tcp_source_t){epoll_create1(EPOLL_CLOEXEC), pending_ready};
    if (tcp->pending.fd < 0 || !wefti_tcp_watch(tcp, &tcp->pending, EPOLLIN)) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "tcp: cannot create descriptors");
    }
    tcp->acceptor =
        (wefti_acceptor_t){.listener = -1,
                           .epoll_fd = tcp->pending.fd,
                           .greeting = wefti_tcp_greeting(tcp),
                           .key = tcp->params.key,
                           .key_bytes = WEFTI_LINK_KEY_BYTES,
                           .log = tcp->params.log,
                           .allocator = tcp->params.allocator,
                           .capacity = TCP_PENDING_MAX + tcp->params.world_size * tcp->sockets,
                           .patience_ns = PENDING_NS,
                           .accepts = wefti_tcp_accepts,
                           .owner = tcp};
    WEFT_RETURN_IF_ERROR(wefti_acceptor_open(&tcp->acceptor));
    for (uint32_t i = 0; i < tcp->own.interface_count; i++) {
        wefti_interface_t interface = tcp->own.interfaces[i];
        /* one address may be unusable (still being checked for duplicates, say), others usable */
        status = listen_at(tcp, &interface, &tcp->listeners[kept]);
        if (status == WEFT_OK) {
            tcp->own.interfaces[kept++] = interface;
        } else if (tcp->listeners[kept] >= 0) {
            close(tcp->listeners[kept]);
            tcp->listeners[kept] = -1;
        }
    }
    tcp->own.interface_count = kept;
    return kept > 0 ? WEFT_OK : status;
}
