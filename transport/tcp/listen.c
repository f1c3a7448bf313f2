/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening end. Whoever connects is a stranger until it has proved that it knows the world's
 * key: its words are taken as they come, a few bytes at most, within a few seconds, and there is
 * room for so many strangers only, the oldest going first. None of them is ever waited for.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define STRANGER_NS 5000000000ull
#define ACCEPTS_AT_ONCE 16u

_Static_assert(sizeof(tcp_hello_t) <= sizeof((tcp_stranger_t *)0)->hello, "hello fits");

/* ---- listening ---- */

static weft_status_t listen_at(tcp_t *tcp, tcp_address_t *address, tcp_source_t *listener)
{
    struct sockaddr_storage at;
    char text[64];
    int on = 1;
    socklen_t length = wefti_tcp_address_to_sockaddr(address, &at);
    listener->kind = TCP_SOURCE_LISTENER;
    listener->fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->fd < 0) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "tcp: socket failed");
    }
    if (address->family == 6) {
        setsockopt(listener->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    }
    if (bind(listener->fd, (struct sockaddr *)&at, length) != 0 ||
        listen(listener->fd, SOMAXCONN) != 0 ||
        getsockname(listener->fd, (struct sockaddr *)&at, &length) != 0) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "tcp: cannot listen at %s (%s)",
                                 wefti_tcp_address_text(address, text, sizeof text),
                                 address->ifname);
    }
    tcp_address_t bound;
    wefti_tcp_address_from_sockaddr(&at, &bound);
    address->port = bound.port;
    return wefti_tcp_watch(tcp, listener, EPOLLIN)
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "tcp: epoll_ctl failed");
}

weft_status_t wefti_tcp_listen(tcp_t *tcp)
{
    uint32_t kept = 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < tcp->card.address_count; i++) {
        tcp_address_t address = tcp->card.addresses[i];
        /* an address may be unusable (still being checked for duplicates, say) beside good ones */
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

/* ---- strangers ---- */

static void dismiss(tcp_t *tcp, tcp_stranger_t *stranger)
{
    wefti_tcp_source_close(tcp, &stranger->source);
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
            return; /* nobody any more, or no descriptor left: they try again */
        }
        admit(tcp, fd);
    }
}

/* A few bytes into an empty socket buffer: all of them go, or the connection is of no use. */
static bool say(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* 1: all of need is there; 0: not yet; -1: gone. */
static int hear(tcp_stranger_t *stranger, size_t need)
{
    while (stranger->in_bytes < need) {
        ssize_t got = recv(stranger->source.fd, stranger->in + stranger->in_bytes,
                           need - stranger->in_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 && errno == EAGAIN ? 0 : -1;
        }
        stranger->in_bytes += (uint32_t)got;
    }
    stranger->in_bytes = 0;
    return 1;
}

/* False: no friend. */
static bool answer_hello(tcp_t *tcp, tcp_stranger_t *stranger)
{
    tcp_hello_t hello;
    tcp_challenge_t challenge;
    memcpy(&hello, stranger->in, sizeof hello);
    memcpy(stranger->hello, &hello, sizeof hello);
    if (!wefti_tcp_hello_good(tcp, &hello) ||
        wefti_tcp_random(challenge.nonce, sizeof challenge.nonce) < 0 ||
        wefti_tcp_prove(tcp, 'l', &hello, challenge.nonce, challenge.proof) < 0) {
        return false;
    }
    memcpy(stranger->nonce, challenge.nonce, sizeof stranger->nonce);
    stranger->heard = true;
    return say(stranger->source.fd, &challenge, sizeof challenge);
}

/* The stranger is over either way. */
static void answer_proof(tcp_t *tcp, tcp_stranger_t *stranger)
{
    tcp_hello_t hello;
    uint8_t proof[32];
    uint32_t answer = TCP_ANSWER_WELCOME;
    memcpy(&hello, stranger->hello, sizeof hello);
    int fd = stranger->source.fd;
    tcp_peer_t *peer;
    if (wefti_tcp_prove(tcp, 'c', &hello, stranger->nonce, proof) < 0 ||
        !wefti_tcp_proof_equal(proof, stranger->in) || hello.probe != 0 ||
        (peer = wefti_tcp_peer(tcp, hello.from)) == NULL ||
        !wefti_tcp_connectable(peer, hello.index)) {
        dismiss(tcp, stranger);
        return;
    }
    if (!wefti_tcp_attempt_yield(tcp, &peer->attempts[hello.index])) {
        answer = TCP_ANSWER_OTHER_WAY;
        (void)say(fd, &answer, sizeof answer);
        dismiss(tcp, stranger);
        return;
    }
    if (!say(fd, &answer, sizeof answer)) {
        dismiss(tcp, stranger);
        return;
    }
    epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    stranger->source.fd = -1; /* it goes over to the peer */
    dismiss(tcp, stranger);
    wefti_tcp_connected(tcp, peer, hello.index, fd);
}

void wefti_tcp_stranger_ready(tcp_t *tcp, tcp_stranger_t *stranger)
{
    if (stranger->source.fd < 0) {
        return; /* dismissed meanwhile */
    }
    int heard = hear(stranger, stranger->heard ? sizeof(tcp_proof_t) : sizeof(tcp_hello_t));
    if (heard == 0) {
        return;
    }
    if (heard < 0) {
        dismiss(tcp, stranger);
    } else if (stranger->heard) {
        answer_proof(tcp, stranger);
    } else if (!answer_hello(tcp, stranger)) {
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
