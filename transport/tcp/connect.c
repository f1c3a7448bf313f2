/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connecting end: one attempt per socket of a peer, which goes through the peer's addresses
 * until one of them authenticates itself or the time is over.
 *
 * Both ends may connect at once, and the listening end decides. A lower rank that has sent its proof
 * defers the other's connection, because its own may be made already; any other rank gives up its
 * own attempt for the connection that has come. So exactly one of the two is taken.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define STEP_NS 3000000000ull  /* for one address */
#define PROBE_NS 1000000000ull /* for one address, when the question is whether the peer died */
#define PAUSE_NS 10000000ull   /* before the addresses are tried again; doubled up to */
#define PAUSE_MOST_NS 500000000ull
#define OTHER_WAY_NS 200000000ull

typedef enum tcp_attempt_step {
    STEP_NONE = 0,
    STEP_PAUSE,
    STEP_CONNECT, /* until the socket can be written to */
    STEP_GREET,   /* the hello is sent, the answer awaited */
    STEP_WELCOME, /* the proof is sent */
} tcp_attempt_step_t;

static void fail(tcp_t *tcp, tcp_attempt_t *attempt, int error);

static void close_socket(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->shake != NULL) {
        (void)wefti_handshake_detach(attempt->shake); /* the descriptor is the source's */
        wefti_free(tcp->params.allocator, attempt->shake);
        attempt->shake = NULL;
    }
    wefti_tcp_source_close(tcp, &attempt->source);
}

void wefti_tcp_attempt_end(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->step != STEP_NONE) {
        close_socket(tcp, attempt);
        attempt->step = STEP_NONE;
        tcp->attempt_count--;
    }
}

static void set_until(tcp_t *tcp, tcp_attempt_t *attempt, uint64_t span_ns)
{
    attempt->until_ns = wefti_now_ns() + span_ns;
    wefti_tcp_timer(tcp, attempt->until_ns);
}

static void pause_for(tcp_t *tcp, tcp_attempt_t *attempt, uint64_t span_ns)
{
    close_socket(tcp, attempt);
    attempt->step = STEP_PAUSE;
    set_until(tcp, attempt, span_ns);
}

static void go(tcp_t *tcp, tcp_attempt_t *attempt)
{
    const wefti_address_t *ways[TCP_ADDRESSES_MAX];
    uint32_t count = wefti_tcp_candidates(tcp, attempt->peer->rank, attempt->index, ways);
    if (count == 0) {
        fail(tcp, attempt, ENETUNREACH);
        return;
    }
    attempt->last = *ways[attempt->candidate % count];
    attempt->step = STEP_CONNECT;
    if (wefti_address_connect(&attempt->last, &attempt->source.fd) != WEFT_OK) {
        fail(tcp, attempt, errno);
        return;
    }
    wefti_tcp_socket_tune(tcp, attempt->source.fd);
    if (!wefti_tcp_watch(tcp, &attempt->source, EPOLLOUT)) {
        fail(tcp, attempt, errno);
        return;
    }
    set_until(tcp, attempt, attempt->probe ? PROBE_NS : STEP_NS);
}

static void give_up(tcp_t *tcp, tcp_attempt_t *attempt, int error)
{
    char at[WEFTI_ADDRESS_TEXT], how[192];
    wefti_address_text(&attempt->last, true, at);
    wefti_tcp_attempt_end(tcp, attempt);
    if (attempt->probe) {
        wefti_tcp_peer_settle(tcp, attempt->peer, true, NULL);
        return;
    }
    snprintf(how, sizeof how, "cannot connect to %s: %s",
             attempt->last.family != 0 ? at : "any of its addresses", strerror(error));
    wefti_tcp_peer_disconnect(attempt->peer, TCP_PEER_BROKEN);
    wefti_tcp_peer_settle(tcp, attempt->peer, false, how);
}

/* This address did not work: the next one, after a pause when all were tried. */
static void fail(tcp_t *tcp, tcp_attempt_t *attempt, int error)
{
    const wefti_address_t *ways[TCP_ADDRESSES_MAX];
    uint32_t count = wefti_tcp_candidates(tcp, attempt->peer->rank, attempt->index, ways);
    uint64_t now = wefti_now_ns();
    close_socket(tcp, attempt);
    attempt->candidate++;
    uint32_t rounds = count > 0 ? attempt->candidate / count : 1;
    bool refused = error == ECONNREFUSED; /* no process has that port any more */
    if ((attempt->probe && (refused || rounds > 0)) || now >= attempt->give_up_ns || count == 0) {
        give_up(tcp, attempt, error);
        return;
    }
    uint64_t span = PAUSE_NS;
    if (attempt->candidate % count == 0) {
        uint32_t doublings = rounds < 6 ? rounds : 6;
        span <<= doublings;
        span = span < PAUSE_MOST_NS ? span : PAUSE_MOST_NS;
    } else {
        span = 0;
    }
    pause_for(tcp, attempt, span);
}

/* ---- one step after the other ---- */

/* The socket can be written to: connected, or failed. */
static bool begin_handshake(tcp_t *tcp, tcp_attempt_t *attempt)
{
    const tcp_hello_t hello = {.to = attempt->peer->rank,
                               .index = (uint16_t)attempt->index,
                               .sockets = (uint16_t)tcp->sockets,
                               .probe = attempt->probe};
    int problem = wefti_address_connected(attempt->source.fd);
    if (problem == EINPROGRESS) {
        return false; /* an event of an earlier socket */
    }
    if (problem != 0) {
        fail(tcp, attempt, problem);
        return false;
    }
    attempt->shake = wefti_alloc(tcp->params.allocator, sizeof *attempt->shake);
    if (attempt->shake == NULL) {
        fail(tcp, attempt, ENOMEM);
        return false;
    }
    if (wefti_tcp_greet(tcp, attempt->source.fd, &hello, attempt->shake) < 0) {
        attempt->source.fd = -1; /* closed */
        fail(tcp, attempt, EAGAIN);
        return false;
    }
    attempt->step = STEP_GREET;
    wefti_tcp_rewatch(tcp, &attempt->source, EPOLLIN);
    return true;
}

static void succeed(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->probe) { /* it lives */
        wefti_tcp_attempt_end(tcp, attempt);
        wefti_tcp_peer_settle(tcp, attempt->peer, false, NULL);
        return;
    }
    int fd = attempt->source.fd;
    epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    attempt->source.fd = -1;
    wefti_tcp_attempt_end(tcp, attempt);
    wefti_tcp_connected(tcp, attempt->peer, attempt->index, fd);
}

static void continue_handshake(tcp_t *tcp, tcp_attempt_t *attempt)
{
    weft_status_t status = wefti_handshake_step(attempt->shake);
    if (status == WEFT_AGAIN && attempt->step == STEP_GREET && !attempt->probe &&
        wefti_handshake_committed(attempt->shake)) {
        /* From here on the other end may have taken this connection: giving it up because the
         * answer is late (either process was stopped, say) would be a broken link over there. */
        attempt->step = STEP_WELCOME;
        attempt->until_ns = attempt->give_up_ns;
    } else if (status == WEFT_OK) {
        succeed(tcp, attempt);
    } else if (status == WEFT_ERR_STATE) {
        pause_for(tcp, attempt, OTHER_WAY_NS);
    } else if (status == WEFT_ERR_PEER_DIED) {
        int error = attempt->shake->wire.error;
        fail(tcp, attempt, error != 0 ? error : ECONNRESET);
    } else if (status == WEFT_ERR_MISMATCH) { /* another process has that address */
        fail(tcp, attempt, EACCES);
    } else if (status != WEFT_AGAIN) {
        fail(tcp, attempt, status == WEFT_ERR_NO_MEMORY ? ENOMEM : EPROTO);
    }
}

void wefti_tcp_attempt_ready(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->source.fd >= 0 &&
        (attempt->step != STEP_CONNECT || begin_handshake(tcp, attempt))) {
        continue_handshake(tcp, attempt);
    }
}

/* ---- all attempts ---- */

bool wefti_tcp_attempt_yield(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->step == STEP_WELCOME && tcp->params.rank < attempt->peer->rank) {
        return false;
    }
    wefti_tcp_attempt_end(tcp, attempt);
    return true;
}

void wefti_tcp_connect_peer(tcp_t *tcp, tcp_peer_t *peer, bool probe)
{
    uint64_t timeout_ns = tcp->params.settings->connect_timeout_ns;
    for (uint32_t i = 0; i < (probe ? 1 : tcp->sockets); i++) {
        tcp_attempt_t *attempt = &peer->attempts[i];
        if (attempt->step != STEP_NONE || peer->connections[i].hears) {
            continue;
        }
        attempt->source = (tcp_source_t){TCP_SOURCE_ATTEMPT, -1};
        attempt->peer = peer;
        attempt->index = i;
        attempt->candidate = 0;
        attempt->probe = probe;
        attempt->give_up_ns = timeout_ns != 0 ? wefti_now_ns() + timeout_ns : UINT64_MAX;
        attempt->step = STEP_PAUSE;
        tcp->attempt_count++;
        go(tcp, attempt);
    }
}

void wefti_tcp_attempts_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns)
{
    for (uint32_t r = 0; r < tcp->params.world_size && tcp->attempt_count > 0; r++) {
        tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[r], memory_order_acquire);
        for (uint32_t i = 0; peer != NULL && i < tcp->sockets; i++) {
            tcp_attempt_t *attempt = &peer->attempts[i];
            if (attempt->step == STEP_PAUSE && attempt->until_ns <= now_ns) {
                go(tcp, attempt);
            } else if (attempt->step != STEP_NONE && attempt->until_ns <= now_ns) {
                fail(tcp, attempt, ETIMEDOUT);
            }
            if (attempt->step != STEP_NONE && attempt->until_ns < *next_ns) {
                *next_ns = attempt->until_ns;
            }
        }
    }
}

bool wefti_tcp_connectable(tcp_peer_t *peer, uint32_t index)
{
    pthread_mutex_lock(&peer->lock);
    bool good = (peer->state == TCP_PEER_IDLE || peer->state == TCP_PEER_LINKED) &&
                !peer->connections[index].ready && !peer->connections[index].hears;
    pthread_mutex_unlock(&peer->lock);
    return good;
}

void wefti_tcp_connected(tcp_t *tcp, tcp_peer_t *peer, uint32_t index, int fd)
{
    tcp_connection_t *connection = &peer->connections[index];
    if (!wefti_tcp_connectable(peer, index)) {
        close(fd);
        return;
    }
    if (tcp->params.heard != NULL) {
        tcp->params.heard(tcp->params.owner, peer->rank);
    }
    pthread_mutex_lock(&peer->lock);
    if (connection->in == NULL) {
        connection->in = wefti_alloc(tcp->params.allocator, TCP_IN_BYTES);
    }
    connection->source = (tcp_source_t){TCP_SOURCE_CONNECTION, fd};
    bool good = connection->in != NULL && wefti_tcp_watch(tcp, &connection->source, EPOLLIN);
    if (good) {
        wefti_address_local(fd, &connection->local);
        wefti_address_peer(fd, &connection->remote);
        peer->state = TCP_PEER_LINKED;
        connection->ready = true;
        connection->hears = true;
        (void)wefti_tcp_send_queued(connection);
    } else {
        wefti_tcp_source_close(tcp, &connection->source);
    }
    pthread_mutex_unlock(&peer->lock);
    if (!good) {
        wefti_tcp_peer_disconnect(peer, TCP_PEER_BROKEN);
        wefti_tcp_peer_settle(tcp, peer, false, "no memory for a connection");
    }
}
