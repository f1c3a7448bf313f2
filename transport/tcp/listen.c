/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening end. A connection is pending until the peer has proved that it knows the world's
 * key: the peer may send a few bytes within a few seconds. The number of pending connections is
 * limited; the oldest is closed first. None of them is ever waited for.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define PENDING_NS 5000000000ull
#define ACCEPTS_AT_ONCE 16u

/* ---- pending connections ---- */

static void close_pending(tcp_t *tcp, tcp_pending_t *pending)
{
    wefti_tcp_source_close(tcp, &pending->source);
    (void)wefti_handshake_detach(&pending->shake);
    tcp->pending_count--;
    tcp->pending_closed = true; /* freed later: an event may still name it */
}

/* Authenticated: it becomes a connection of the peer, or is closed. */
static void decide(tcp_t *tcp, tcp_pending_t *pending)
{
    const wefti_greeting_t *greeting = wefti_handshake_peer(&pending->shake);
    const tcp_hello_t hello = wefti_tcp_hello_of(greeting);
    tcp_peer_t *peer = hello.probe != 0 ? NULL : wefti_tcp_peer(tcp, greeting->rank);
    tcp_connection_t *connection = peer != NULL ? &peer->connections[hello.index] : NULL;
    int fd = -1;
    if (hello.probe != 0) {
        (void)wefti_handshake_welcome(&pending->shake);
    } else if (connection != NULL && wefti_tcp_connectable(connection)) {
        if (!wefti_tcp_attempt_yield(connection)) {
            (void)wefti_handshake_defer(&pending->shake);
        } else if (wefti_handshake_welcome(&pending->shake) == WEFT_OK &&
                   !wefti_wire_unsent(&pending->shake.wire)) {
            fd = pending->source.fd;
            pending->source.fd = -1;
        }
    }
    close_pending(tcp, pending);
    if (fd >= 0) {
        wefti_tcp_connected(connection, fd);
    }
}

static bool pending_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    tcp_pending_t *pending = (tcp_pending_t *)source;
    (void)events;
    weft_status_t status = wefti_handshake_step(&pending->shake);
    if (status == WEFT_OK) {
        decide(tcp, pending);
    } else if (status != WEFT_AGAIN) {
        close_pending(tcp, pending);
    }
    return true;
}

static void admit(tcp_t *tcp, int fd)
{
    tcp_pending_t *pending = wefti_alloc(tcp->params.allocator, sizeof *pending);
    if (pending == NULL) {
        close(fd);
        return;
    }
    if (wefti_tcp_greet(tcp, fd, NULL, &pending->shake) < 0) {
        wefti_free(tcp->params.allocator, pending);
        return;
    }
    if (tcp->pending_count >= TCP_PENDING_MAX + tcp->params.world_size * tcp->sockets) {
        tcp_pending_t *oldest = NULL;
        for (tcp_pending_t *at = tcp->pending; at != NULL; at = at->next) {
            oldest = at->source.fd >= 0 ? at : oldest;
        }
        close_pending(tcp, oldest);
    }
    pending->source = (tcp_source_t){fd, pending_ready};
    pending->until_ns = wefti_now_ns() + PENDING_NS;
    pending->next = tcp->pending;
    tcp->pending = pending;
    tcp->pending_count++;
    wefti_tcp_timer(tcp, pending->until_ns);
    (void)wefti_tcp_socket_tune(tcp, fd);
    if (!wefti_tcp_watch(tcp, &pending->source, EPOLLIN)) {
        close_pending(tcp, pending);
    }
}

void wefti_tcp_pending_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns)
{
    for (tcp_pending_t *at = tcp->pending; at != NULL; at = at->next) {
        if (at->source.fd >= 0 && at->until_ns <= now_ns) {
            close_pending(tcp, at);
        } else if (at->source.fd >= 0 && at->until_ns < *next_ns) {
            *next_ns = at->until_ns;
        }
    }
}

void wefti_tcp_pending_free(tcp_t *tcp)
{
    for (tcp_pending_t **at = &tcp->pending; tcp->pending_closed && *at != NULL;) {
        tcp_pending_t *pending = *at;
        if (pending->source.fd >= 0) {
            at = &pending->next;
        } else {
            *at = pending->next;
            wefti_free(tcp->params.allocator, pending);
        }
    }
    tcp->pending_closed = false;
}

/* ---- listening ---- */

static bool listener_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    (void)events;
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            break; /* no further connection, or no descriptor: peers try again */
        }
        admit(tcp, fd);
    }
    return true;
}

static weft_status_t listen_at(tcp_t *tcp, wefti_interface_t *interface, tcp_source_t *listener)
{
    wefti_address_t bound;
    listener->ready = listener_ready;
    weft_status_t status =
        wefti_address_listen(&interface->address, 0, SOMAXCONN, &listener->fd, &bound);
    if (status == WEFT_AGAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tcp: no free port to listen on (%s)",
                           interface->name);
    }
    if (status < 0) {
        return wefti_error_prefix(WEFT_ERR_UNSUPPORTED, "tcp: %s", interface->name);
    }
    interface->address.port = bound.port;
    if (!wefti_tcp_socket_tune(tcp, listener->fd)) {
        return wefti_error_errno(WEFT_ERR_INVALID_ARGUMENT, errno,
                                 "WEFT_TCP_CONGESTION=%s (see "
                                 "/proc/sys/net/ipv4/tcp_allowed_congestion_control)",
                                 tcp->params.settings->congestion);
    }
    return wefti_tcp_watch(tcp, listener, EPOLLIN)
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "tcp: epoll_ctl failed");
}

weft_status_t wefti_tcp_listen(tcp_t *tcp)
{
    uint32_t kept = 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < tcp->own.interface_count; i++) {
        wefti_interface_t interface = tcp->own.interfaces[i];
        /* one address may be unusable (still being checked for duplicates, say), others usable */
        status = listen_at(tcp, &interface, &tcp->listeners[kept]);
        if (status == WEFT_OK) {
            tcp->own.interfaces[kept++] = interface;
        } else {
            wefti_tcp_source_close(tcp, &tcp->listeners[kept]);
        }
    }
    tcp->own.interface_count = kept;
    return kept > 0 ? WEFT_OK : status;
}
