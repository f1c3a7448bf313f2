/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How connections end. One that ends without a goodbye takes the peer's others with it, and then
 * the question is whether the peer lives: its process is asked to authenticate itself, as if to
 * connect. A closed port or no answer is a death; an answer makes it a link fault.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void wefti_tcp_peer_disconnect(tcp_peer_t *peer, tcp_peer_state_t state)
{
    tcp_t *tcp = peer->tcp;
    pthread_mutex_lock(&peer->lock);
    peer->state = state;
    for (uint32_t i = 0; i < tcp->sockets; i++) {
        tcp_connection_t *connection = &peer->connections[i];
        wefti_tcp_queue_clear(connection);
        wefti_tcp_source_close(tcp, &connection->source);
        tcp->paused_count -= connection->paused ? 1 : 0;
        connection->ready = connection->blocked = connection->hears = connection->paused = false;
        connection->into_bytes = connection->in_from = connection->in_to = 0;
        if (tcp->favourite == connection) {
            tcp->favourite = NULL;
        }
    }
    if (peer->busy_since_ns != 0) {
        peer->stats.busy_ns += wefti_now_ns() - peer->busy_since_ns;
        peer->busy_since_ns = 0;
    }
    pthread_mutex_unlock(&peer->lock);
    for (uint32_t i = 0; i < tcp->sockets; i++) {
        wefti_tcp_attempt_end(tcp, &peer->attempts[i]);
    }
}

/* The host is not to be reached any more: nothing that could be asked. */
static bool means_gone(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == EHOSTDOWN || error == ENETDOWN;
}

void wefti_tcp_connection_broken(tcp_connection_t *connection, int error, const char *what)
{
    tcp_peer_t *peer = connection->peer;
    tcp_t *tcp = peer->tcp;
    char from[WEFTI_ADDRESS_TEXT], to[WEFTI_ADDRESS_TEXT], how[192];
    connection->local.port = 0; /* an ephemeral port tells readers nothing */
    snprintf(how, sizeof how, "%s -> %s: %s", wefti_address_text(&connection->local, true, from),
             wefti_address_text(&connection->remote, true, to),
             what != NULL ? what : strerror(error));
    pthread_mutex_lock(&peer->lock);
    bool linked = peer->state == TCP_PEER_LINKED;
    if (linked) {
        snprintf(peer->fault, sizeof peer->fault, "%s", how);
    }
    pthread_mutex_unlock(&peer->lock);
    if (!linked) {
        return;
    }
    wefti_tcp_peer_disconnect(peer, TCP_PEER_PROBED);
    if (means_gone(error)) {
        wefti_tcp_peer_settle(tcp, peer, true, NULL);
    } else {
        wefti_tcp_connect_peer(tcp, peer, true);
    }
}

void wefti_tcp_peer_settle(tcp_t *tcp, tcp_peer_t *peer, bool died, const char *how)
{
    const wefti_link_params_t *params = &tcp->params;
    const char *host = params->host_of != NULL && params->host_names != NULL
                           ? params->host_names[params->host_of[peer->rank]]
                           : NULL;
    char text[240];
    pthread_mutex_lock(&peer->lock);
    if (peer->state == TCP_PEER_PROBED || peer->state == TCP_PEER_BROKEN) {
        peer->state = TCP_PEER_BROKEN;
        peer->died = died;
        snprintf(text, sizeof text, "tcp link of rank %u to rank %u%s%s%s: %s", params->rank,
                 peer->rank, host != NULL ? " (host " : "", host != NULL ? host : "",
                 host != NULL ? ")" : "", how != NULL ? how : peer->fault);
        memcpy(peer->fault, text, sizeof text);
        peer->fault_pending = true;
        tcp->fault_pending = true;
    }
    pthread_mutex_unlock(&peer->lock);
}

void wefti_tcp_faults_look(tcp_t *tcp)
{
    if (atomic_load_explicit(&tcp->faults_noted, memory_order_relaxed) == 0 ||
        atomic_exchange_explicit(&tcp->faults_noted, 0, memory_order_acquire) == 0) {
        return;
    }
    for (uint32_t r = 0; r < tcp->params.world_size; r++) {
        tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[r], memory_order_acquire);
        for (uint32_t i = 0; peer != NULL && i < tcp->sockets; i++) {
            pthread_mutex_lock(&peer->lock);
            int error = peer->connections[i].send_errno;
            peer->connections[i].send_errno = 0;
            pthread_mutex_unlock(&peer->lock);
            if (error == 0) {
                continue;
            }
            /* what came before the end may hold a goodbye */
            if (error == EPIPE || error == ECONNRESET) {
                while (wefti_tcp_receive(&peer->connections[i])) {
                }
            }
            wefti_tcp_connection_broken(&peer->connections[i], error, NULL);
        }
    }
}
