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

#define STRANGER_NS 5000000000ull
#define ACCEPTS_AT_ONCE 16u

/* ---- listening ---- */

static weft_status_t listen_at(tcp_t *tcp, wefti_interface_t *interface, tcp_source_t *listener)
{
    wefti_address_t bound;
    listener->kind = TCP_SOURCE_LISTENER;
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
    return wefti_tcp_watch(tcp, listener, EPOLLIN)
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "tcp: epoll_ctl failed");
}

weft_status_t wefti_tcp_listen(tcp_t *tcp)
{
    uint32_t kept = 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < tcp->card.address_count; i++) {
        wefti_interface_t address = tcp->card.addresses[i];
        /* one address may be unusable (still being checked for duplicates, say), others usable */
        status = listen_at(tcp, &address, &tcp->listeners[kept]);
        if (status == WEFT_OK) {
            tcp->card.addresses[kept++] = address;
        } else {
            wefti_tcp_source_close(tcp, &tcp->listeners[kept]);
        }
    }
    tcp->card.address_count = kept;
    return kept > 0 ? WEFT_OK : status;
}

/* ---- pending connections ---- */

static void dismiss(tcp_t *tcp, tcp_stranger_t *stranger)
{
    wefti_tcp_source_close(tcp, &stranger->source);
    (void)wefti_handshake_detach(&stranger->shake);
    *(stranger->previous != NULL ? &stranger->previous->next : &tcp->strangers) = stranger->next;
    *(stranger->next != NULL ? &stranger->next->previous : &tcp->latest_stranger) =
        stranger->previous;
    tcp->stranger_count--;
    stranger->next = tcp->dismissed; /* an event of this round may still name it */
    tcp->dismissed = stranger;
}

static void admit(tcp_t *tcp, int fd)
{
    uint32_t most = TCP_STRANGERS_MAX + tcp->params.world_size * tcp->sockets;
    tcp_stranger_t *stranger = wefti_alloc(tcp->params.allocator, sizeof *stranger);
    if (stranger == NULL) {
        close(fd);
        return;
    }
    if (wefti_tcp_greet(tcp, fd, NULL, &stranger->shake) < 0) {
        wefti_free(tcp->params.allocator, stranger);
        return;
    }
    if (tcp->stranger_count >= most) {
        dismiss(tcp, tcp->strangers);
    }
    stranger->source = (tcp_source_t){TCP_SOURCE_STRANGER, fd};
    stranger->until_ns = wefti_now_ns() + STRANGER_NS;
    wefti_tcp_timer(tcp, stranger->until_ns);
    stranger->previous = tcp->latest_stranger;
    *(tcp->latest_stranger != NULL ? &tcp->latest_stranger->next : &tcp->strangers) = stranger;
    tcp->latest_stranger = stranger;
    tcp->stranger_count++;
    wefti_tcp_socket_tune(tcp, fd);
    if (!wefti_tcp_watch(tcp, &stranger->source, EPOLLIN)) {
        dismiss(tcp, stranger);
    }
}

void wefti_tcp_listener_ready(tcp_t *tcp, tcp_source_t *listener)
{
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            return; /* no connection any more, or no descriptor left: peers try again */
        }
        admit(tcp, fd);
    }
}

/* The connection is dismissed or the peer's now. */
static void decide(tcp_t *tcp, tcp_stranger_t *stranger)
{
    const wefti_greeting_t *greeting = wefti_handshake_peer(&stranger->shake);
    const tcp_hello_t hello = wefti_tcp_hello_of(greeting);
    tcp_peer_t *peer;
    if (hello.probe != 0) {
        (void)wefti_handshake_welcome(&stranger->shake);
    } else if ((peer = wefti_tcp_peer(tcp, greeting->rank)) != NULL &&
               wefti_tcp_connectable(peer, hello.index)) {
        if (!wefti_tcp_attempt_yield(tcp, &peer->attempts[hello.index])) {
            (void)wefti_handshake_defer(&stranger->shake);
        } else if (wefti_handshake_welcome(&stranger->shake) == WEFT_OK &&
                   !wefti_wire_unsent(&stranger->shake.wire)) {
            int fd = stranger->source.fd;
            epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
            stranger->source.fd = -1;
            dismiss(tcp, stranger);
            wefti_tcp_connected(tcp, peer, hello.index, fd);
            return;
        }
    }
    dismiss(tcp, stranger);
}

void wefti_tcp_stranger_ready(tcp_t *tcp, tcp_stranger_t *stranger)
{
    if (stranger->source.fd < 0) {
        return; /* dismissed by an earlier event */
    }
    weft_status_t status = wefti_handshake_step(&stranger->shake);
    if (status == WEFT_OK) {
        decide(tcp, stranger);
    } else if (status != WEFT_AGAIN) {
        dismiss(tcp, stranger);
    }
}

void wefti_tcp_strangers_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns)
{
    while (tcp->strangers != NULL && tcp->strangers->until_ns <= now_ns) {
        dismiss(tcp, tcp->strangers);
    }
    if (tcp->strangers != NULL && tcp->strangers->until_ns < *next_ns) {
        *next_ns = tcp->strangers->until_ns;
    }
}

void wefti_tcp_strangers_close(tcp_t *tcp)
{
    while (tcp->strangers != NULL) {
        dismiss(tcp, tcp->strangers);
    }
    wefti_tcp_strangers_free(tcp);
}

void wefti_tcp_strangers_free(tcp_t *tcp)
{
    while (tcp->dismissed != NULL) {
        tcp_stranger_t *stranger = tcp->dismissed;
        tcp->dismissed = stranger->next;
        wefti_free(tcp->params.allocator, stranger);
    }
}
