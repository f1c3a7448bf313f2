/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How connections end. One that ends without a goodbye closes the peer's others. The driver then
 * asks the peer's process to authenticate itself, as if to connect. A closed port or no answer
 * means death; an answer means a link fault.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void wefti_tcp_peer_disconnect(tcp_peer_t *peer, tcp_peer_state_t state)
{
    tcp_t *tcp = peer->tcp;
    pthread_mutex_lock(&peer->lock);
    peer->state = peer->state == TCP_PEER_LEFT ? TCP_PEER_LEFT : state;
    for (uint32_t i = 0; i < tcp->sockets; i++) {
        tcp_connection_t *connection = &peer->connections[i];
        wefti_tcp_queue_clear(connection);
        wefti_tcp_attempt_end(connection);
        wefti_tcp_source_close(tcp, &connection->source);
        tcp->paused_count -= connection->paused ? 1 : 0;
        connection->step = TCP_IDLE;
        connection->ready = connection->blocked = connection->paused = false;
        connection->send_errno = 0;
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
}

/* The host cannot be reached any more, so a probe would not be answered. */
static bool means_gone(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == EHOSTDOWN || error == ENETDOWN;
}

void wefti_tcp_connection_broken(tcp_connection_t *connection, int error, const char *what)
{
    tcp_peer_t *peer = connection->peer;
    char from[WEFTI_ADDRESS_TEXT], to[WEFTI_ADDRESS_TEXT];
    pthread_mutex_lock(&peer->lock);
    bool linked = peer->state == TCP_PEER_LINKED;
    if (linked) { /* without the local port, which is ephemeral */
        snprintf(peer->fault, sizeof peer->fault, "%s -> %s: %s",
                 wefti_address_text(&connection->local, false, from),
                 wefti_address_text(&connection->remote, true, to),
                 what != NULL ? what : strerror(error));
    }
    pthread_mutex_unlock(&peer->lock);
    if (!linked) {
        return;
    }
    wefti_tcp_peer_disconnect(peer, TCP_PEER_PROBED);
    if (means_gone(error)) {
        wefti_tcp_peer_report(peer, true, NULL);
    } else {
        wefti_tcp_connect_peer(peer, true);
    }
}

void wefti_tcp_peer_report(tcp_peer_t *peer, bool died, const char *how)
{
    char text[sizeof peer->fault];
    pthread_mutex_lock(&peer->lock);
    snprintf(text, sizeof text, "tcp link of rank %u to rank %u: %s", peer->tcp->params.rank,
             peer->rank, how != NULL ? how : peer->fault);
    memcpy(peer->fault, text, sizeof text);
    peer->state = TCP_PEER_BROKEN;
    peer->died = died;
    peer->fault_pending = true;
    peer->tcp->fault_pending = true;
    pthread_mutex_unlock(&peer->lock);
}

void wefti_tcp_send_failed(tcp_connection_t *connection, int error)
{
    connection->send_errno = error;
    connection->ready = false;
    wefti_tcp_queue_clear(connection);
    wefti_tcp_call(connection->peer->tcp);
}
