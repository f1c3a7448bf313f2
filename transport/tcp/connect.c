/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connecting end: each connection of a peer tries the peer's addresses until one of them
 * authenticates itself or the time is over.
 *
 * Both ends may connect at once, and the listening end decides. A lower rank that has sent its
 * proof defers the other connection, because its own may be made already; any other rank ends its
 * own attempt for the connection that arrived. So exactly one of the two is taken.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "runtime/base/error.h"

#define STEP_NS 3000000000ull  /* for one address */
#define PROBE_NS 1000000000ull /* for one address, when probing whether the peer died */
#define PAUSE_NS 10000000ull   /* before the addresses are tried again; doubled each time */
#define PAUSE_DOUBLINGS 6u
#define PAUSE_MAX_NS 500000000ull
#define DEFERRED_NS 200000000ull

static void fail(tcp_connection_t *connection, int error);

static bool is_trying(const tcp_connection_t *connection)
{
    return connection->step != TCP_IDLE && connection->step != TCP_UP;
}

static void close_socket(tcp_connection_t *connection)
{
    tcp_t *tcp = connection->peer->tcp;
    if (connection->shake != NULL) {
        (void)wefti_handshake_detach(connection->shake); /* the descriptor is the source's */
        wefti_free(tcp->params.allocator, connection->shake);
        connection->shake = NULL;
    }
    wefti_tcp_source_close(tcp, &connection->source);
}

void wefti_tcp_attempt_end(tcp_connection_t *connection)
{
    if (is_trying(connection)) {
        close_socket(connection);
        connection->step = TCP_IDLE;
    }
}

static void set_until(tcp_connection_t *connection, uint64_t span_ns)
{
    connection->until_ns = wefti_now_ns() + span_ns;
    wefti_tcp_timer(connection->peer->tcp, connection->until_ns);
}

static void pause_for(tcp_connection_t *connection, uint64_t span_ns)
{
    close_socket(connection);
    connection->step = TCP_PAUSE;
    set_until(connection, span_ns);
}

static void give_up(tcp_connection_t *connection, int error)
{
    tcp_peer_t *peer = connection->peer;
    char at[WEFTI_ADDRESS_TEXT], how[192];
    wefti_tcp_attempt_end(connection);
    if (connection->probe) {
        wefti_tcp_peer_report(peer, true, NULL);
        return;
    }
    snprintf(how, sizeof how, "cannot connect to %s: %s",
             connection->remote.family != 0 ? wefti_address_text(&connection->remote, true, at)
                                            : "any of its addresses",
             strerror(error));
    wefti_tcp_peer_disconnect(peer, TCP_PEER_BROKEN);
    wefti_tcp_peer_report(peer, false, how);
}

/* ---- one step after the other ---- */

static void succeed(tcp_connection_t *connection)
{
    if (connection->probe) { /* it lives */
        wefti_tcp_attempt_end(connection);
        wefti_tcp_peer_report(connection->peer, false, NULL);
        return;
    }
    int fd = connection->source.fd;
    (void)epoll_ctl(connection->peer->tcp->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    connection->source.fd = -1;
    wefti_tcp_attempt_end(connection);
    wefti_tcp_connected(connection, fd);
}

static bool attempt_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    tcp_connection_t *connection = (tcp_connection_t *)source;
    (void)events;
    weft_status_t status = wefti_handshake_step(connection->shake);
    if (status == WEFT_IN_PROGRESS) { /* just connected */
        wefti_tcp_rewatch(tcp, &connection->source, EPOLLIN);
        status = wefti_handshake_step(connection->shake);
    }
    if (status == WEFT_AGAIN && connection->step == TCP_TRY && !connection->probe &&
        wefti_handshake_committed(connection->shake)) {
        /* From here on the other end may have taken this connection: giving it up because the
         * answer is late (either process was stopped, say) would break the link there. */
        connection->step = TCP_WELCOME;
        connection->until_ns = connection->give_up_ns;
    } else if (status == WEFT_OK) {
        succeed(connection);
    } else if (status == WEFT_ERR_STATE) {
        pause_for(connection, DEFERRED_NS);
    } else if (status == WEFT_ERR_PEER_DIED) {
        int error = connection->shake->wire.error;
        fail(connection, error != 0 ? error : ECONNRESET);
    } else if (status == WEFT_ERR_MISMATCH) { /* another process has that address */
        fail(connection, EACCES);
    } else if (status != WEFT_AGAIN) {
        fail(connection, status == WEFT_ERR_NO_MEMORY ? ENOMEM : EPROTO);
    }
    return true;
}

/* Connects to remote. An errno, or 0. */
static int begin(tcp_connection_t *connection)
{
    tcp_t *tcp = connection->peer->tcp;
    const tcp_hello_t hello = {.to = connection->peer->rank,
                               .index = (uint16_t)connection->index,
                               .sockets = (uint16_t)tcp->sockets,
                               .probe = connection->probe};
    int *fd = &connection->source.fd;
    connection->source.ready = attempt_ready;
    if (wefti_address_connect(&connection->remote, fd) != WEFT_OK) {
        return errno;
    }
    (void)wefti_tcp_socket_tune(tcp, *fd);
    connection->shake = wefti_alloc(tcp->params.allocator, sizeof *connection->shake);
    if (connection->shake == NULL) {
        return ENOMEM;
    }
    if (wefti_tcp_greet(tcp, *fd, &hello, connection->shake) < 0) {
        *fd = -1; /* closed */
        return EAGAIN;
    }
    connection->shake->connecting = true;
    return wefti_tcp_watch(tcp, &connection->source, EPOLLOUT) ? 0 : errno;
}

static void try_address(tcp_connection_t *connection)
{
    const wefti_address_t *addresses[TCP_ADDRESSES_MAX];
    uint32_t count = wefti_tcp_candidates(connection->peer->tcp, connection->peer->rank,
                                          connection->index, addresses);
    int error = ENETUNREACH;
    connection->step = TCP_TRY;
    if (count > 0) {
        connection->remote = *addresses[connection->candidate % count];
        error = begin(connection);
    }
    if (error != 0) {
        fail(connection, error);
    } else {
        set_until(connection, connection->probe ? PROBE_NS : STEP_NS);
    }
}

/* This address failed: the next one, after a pause when all were tried. */
static void fail(tcp_connection_t *connection, int error)
{
    const wefti_address_t *addresses[TCP_ADDRESSES_MAX];
    uint32_t count = wefti_tcp_candidates(connection->peer->tcp, connection->peer->rank,
                                          connection->index, addresses);
    close_socket(connection);
    connection->candidate++;
    uint32_t rounds = count > 0 ? connection->candidate / count : 1;
    bool refused = error == ECONNREFUSED; /* no process has that port any more */
    if (count == 0 || wefti_now_ns() >= connection->give_up_ns ||
        (connection->probe && (refused || rounds > 0))) {
        give_up(connection, error);
        return;
    }
    uint64_t pause = PAUSE_NS << (rounds < PAUSE_DOUBLINGS ? rounds : PAUSE_DOUBLINGS);
    pause = pause < PAUSE_MAX_NS ? pause : PAUSE_MAX_NS;
    pause_for(connection, connection->candidate % count == 0 ? pause : 0);
}

/* ---- all attempts ---- */

bool wefti_tcp_attempt_yield(tcp_connection_t *connection)
{
    const tcp_peer_t *peer = connection->peer;
    if (connection->step == TCP_WELCOME && peer->tcp->params.rank < peer->rank) {
        return false;
    }
    wefti_tcp_attempt_end(connection);
    return true;
}

void wefti_tcp_connect_peer(tcp_peer_t *peer, bool probe)
{
    tcp_t *tcp = peer->tcp;
    uint64_t timeout_ns = tcp->params.settings->connect_timeout_ns;
    for (uint32_t i = 0; i < (probe ? 1 : tcp->sockets); i++) {
        tcp_connection_t *connection = &peer->connections[i];
        if (connection->step != TCP_IDLE) {
            continue;
        }
        connection->candidate = 0;
        connection->probe = probe;
        connection->give_up_ns = timeout_ns != 0 ? wefti_now_ns() + timeout_ns : UINT64_MAX;
        connection->step = TCP_PAUSE;
        try_address(connection);
    }
}

void wefti_tcp_attempts_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns)
{
    for (tcp_peer_t *peer = wefti_tcp_peers(tcp); peer != NULL; peer = peer->next) {
        for (uint32_t i = 0; i < tcp->sockets; i++) {
            tcp_connection_t *connection = &peer->connections[i];
            if (connection->step == TCP_PAUSE && connection->until_ns <= now_ns) {
                try_address(connection);
            } else if (is_trying(connection) && connection->until_ns <= now_ns) {
                fail(connection, ETIMEDOUT);
            }
            if (is_trying(connection) && connection->until_ns < *next_ns) {
                *next_ns = connection->until_ns;
            }
        }
    }
}

bool wefti_tcp_connectable(tcp_connection_t *connection)
{
    tcp_peer_t *peer = connection->peer;
    pthread_mutex_lock(&peer->lock);
    bool good = peer->state == TCP_PEER_IDLE || peer->state == TCP_PEER_LINKED;
    pthread_mutex_unlock(&peer->lock);
    return good && connection->step != TCP_UP;
}

void wefti_tcp_connected(tcp_connection_t *connection, int fd)
{
    tcp_peer_t *peer = connection->peer;
    tcp_t *tcp = peer->tcp;
    if (connection->in == NULL) {
        connection->in = wefti_alloc(tcp->params.allocator, TCP_IN_BYTES);
    }
    connection->source = (tcp_source_t){fd, wefti_tcp_connection_ready};
    if (connection->in == NULL || !wefti_tcp_watch(tcp, &connection->source, EPOLLIN)) {
        wefti_tcp_peer_disconnect(peer, TCP_PEER_BROKEN);
        wefti_tcp_peer_report(peer, false, "out of memory: cannot add a connection");
        return;
    }
    tcp->params.arriving(tcp->params.owner, peer->rank);
    pthread_mutex_lock(&peer->lock);
    wefti_address_local(fd, &connection->local);
    wefti_address_peer(fd, &connection->remote);
    peer->state = TCP_PEER_LINKED;
    connection->step = TCP_UP;
    connection->ready = true;
    (void)wefti_tcp_send_queued(connection);
    pthread_mutex_unlock(&peer->lock);
}
