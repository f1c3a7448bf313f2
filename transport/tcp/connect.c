/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connecting end: one attempt per socket of a peer, which goes through the peer's addresses
 * until one answers as it should or the time is over.
 *
 * Both ends may connect at once. Who listens has the last word: a lower rank that has sent its
 * proof (its connection may be made already) turns the other's down, anyone else gives up its own
 * attempt for the one that has come. So never are two taken, and never none.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define STEP_NS 3000000000ull  /* one address may take */
#define PROBE_NS 1000000000ull /* so may it when the question is whether somebody died */
#define PAUSE_NS 10000000ull   /* before the addresses are tried again; doubled up to */
#define PAUSE_MOST_NS 500000000ull
#define OTHER_WAY_NS 200000000ull

typedef enum tcp_attempt_step {
    STEP_NONE = 0,
    STEP_PAUSE,
    STEP_CONNECT,   /* until the socket can be written to */
    STEP_CHALLENGE, /* hello is said, the challenge awaited */
    STEP_WELCOME,   /* the proof is sent */
} tcp_attempt_step_t;

static void fail(tcp_t *tcp, tcp_attempt_t *attempt, int error);

void wefti_tcp_attempt_end(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->step != STEP_NONE) {
        wefti_tcp_source_close(tcp, &attempt->source);
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
    wefti_tcp_source_close(tcp, &attempt->source);
    attempt->step = STEP_PAUSE;
    set_until(tcp, attempt, span_ns);
}

static void go(tcp_t *tcp, tcp_attempt_t *attempt)
{
    const tcp_address_t *ways[TCP_ADDRESSES_MAX];
    struct sockaddr_storage to;
    uint32_t count = wefti_tcp_candidates(tcp, attempt->peer->rank, attempt->index, ways);
    if (count == 0) {
        fail(tcp, attempt, ENETUNREACH);
        return;
    }
    attempt->last = *ways[attempt->candidate % count];
    socklen_t length = wefti_tcp_address_to_sockaddr(&attempt->last, &to);
    attempt->step = STEP_CONNECT;
    attempt->in_bytes = 0;
    attempt->source.fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (attempt->source.fd < 0) {
        fail(tcp, attempt, errno);
        return;
    }
    wefti_tcp_socket_tune(tcp, attempt->source.fd);
    if (connect(attempt->source.fd, (struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS) {
        fail(tcp, attempt, errno);
        return;
    }
    if (!wefti_tcp_watch(tcp, &attempt->source, EPOLLOUT)) {
        fail(tcp, attempt, errno);
        return;
    }
    set_until(tcp, attempt, attempt->probe ? PROBE_NS : STEP_NS);
}

static void give_up(tcp_t *tcp, tcp_attempt_t *attempt, int error)
{
    char at[64], how[192];
    wefti_tcp_address_text(&attempt->last, at, sizeof at);
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
    const tcp_address_t *ways[TCP_ADDRESSES_MAX];
    uint32_t count = wefti_tcp_candidates(tcp, attempt->peer->rank, attempt->index, ways);
    uint64_t now = wefti_now_ns();
    wefti_tcp_source_close(tcp, &attempt->source);
    attempt->candidate++;
    uint32_t rounds = count > 0 ? attempt->candidate / count : 1;
    bool refused = error == ECONNREFUSED; /* nobody has that port: its process is over */
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

/* True when need bytes are there; fails the attempt when they never come. */
static bool hear(tcp_t *tcp, tcp_attempt_t *attempt, uint32_t need)
{
    while (attempt->in_bytes < need) {
        ssize_t got = recv(attempt->source.fd, attempt->in + attempt->in_bytes,
                           need - attempt->in_bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            return false;
        }
        if (got <= 0) {
            fail(tcp, attempt, got < 0 ? errno : ECONNRESET);
            return false;
        }
        attempt->in_bytes += (uint32_t)got;
    }
    attempt->in_bytes = 0;
    return true;
}

static bool say(tcp_t *tcp, tcp_attempt_t *attempt, const void *data, size_t bytes)
{
    ssize_t sent = send(attempt->source.fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != (ssize_t)bytes) {
        fail(tcp, attempt, sent < 0 ? errno : EAGAIN);
        return false;
    }
    return true;
}

static void say_hello(tcp_t *tcp, tcp_attempt_t *attempt)
{
    struct sockaddr_storage other;
    socklen_t length = sizeof other;
    int error = 0;
    socklen_t error_bytes = sizeof error;
    if (getsockopt(attempt->source.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 ||
        error != 0) {
        fail(tcp, attempt, error != 0 ? error : errno);
        return;
    }
    if (getpeername(attempt->source.fd, (struct sockaddr *)&other, &length) != 0) {
        return; /* an event of an earlier socket: not connected yet */
    }
    tcp_hello_t hello;
    wefti_tcp_hello_fill(tcp, attempt->peer->rank, attempt->index, attempt->probe, &hello);
    if (wefti_tcp_random(attempt->nonce, sizeof attempt->nonce) < 0) {
        fail(tcp, attempt, EAGAIN);
        return;
    }
    memcpy(hello.nonce, attempt->nonce, sizeof hello.nonce);
    if (say(tcp, attempt, &hello, sizeof hello)) {
        attempt->step = STEP_CHALLENGE;
        wefti_tcp_rewatch(tcp, &attempt->source, EPOLLIN);
    }
}

static void say_proof(tcp_t *tcp, tcp_attempt_t *attempt)
{
    tcp_challenge_t challenge;
    tcp_hello_t hello;
    tcp_proof_t proof;
    uint8_t expected[32];
    memcpy(&challenge, attempt->in, sizeof challenge);
    wefti_tcp_hello_fill(tcp, attempt->peer->rank, attempt->index, attempt->probe, &hello);
    memcpy(hello.nonce, attempt->nonce, sizeof hello.nonce);
    if (wefti_tcp_prove(tcp, 'l', &hello, challenge.nonce, expected) < 0 ||
        wefti_tcp_prove(tcp, 'c', &hello, challenge.nonce, proof.proof) < 0 ||
        !wefti_tcp_proof_equal(expected, challenge.proof)) {
        fail(tcp, attempt, EACCES); /* somebody else has that address */
        return;
    }
    if (attempt->probe) { /* it lives */
        wefti_tcp_attempt_end(tcp, attempt);
        wefti_tcp_peer_settle(tcp, attempt->peer, false, NULL);
        return;
    }
    if (say(tcp, attempt, &proof, sizeof proof)) {
        /* From here on the other end may have taken this connection: giving it up because the
         * answer is late (either process was stopped, say) would be a broken link over there. */
        attempt->step = STEP_WELCOME;
        attempt->until_ns = attempt->give_up_ns;
    }
}

static void be_welcome(tcp_t *tcp, tcp_attempt_t *attempt)
{
    uint32_t answer;
    memcpy(&answer, attempt->in, sizeof answer);
    if (answer == TCP_ANSWER_WELCOME) {
        int fd = attempt->source.fd;
        epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        attempt->source.fd = -1;
        wefti_tcp_attempt_end(tcp, attempt);
        wefti_tcp_connected(tcp, attempt->peer, attempt->index, fd);
    } else if (answer == TCP_ANSWER_OTHER_WAY) {
        pause_for(tcp, attempt, OTHER_WAY_NS);
    } else {
        fail(tcp, attempt, EPROTO);
    }
}

void wefti_tcp_attempt_ready(tcp_t *tcp, tcp_attempt_t *attempt)
{
    if (attempt->source.fd < 0) {
        return;
    }
    if (attempt->step == STEP_CONNECT) {
        say_hello(tcp, attempt);
    } else if (attempt->step == STEP_CHALLENGE) {
        if (hear(tcp, attempt, sizeof(tcp_challenge_t))) {
            say_proof(tcp, attempt);
        }
    } else if (attempt->step == STEP_WELCOME) {
        if (hear(tcp, attempt, sizeof(uint32_t))) {
            be_welcome(tcp, attempt);
        }
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

static void name_ends(tcp_connection_t *connection, int fd)
{
    struct sockaddr_storage end;
    socklen_t length = sizeof end;
    if (getsockname(fd, (struct sockaddr *)&end, &length) == 0) {
        wefti_tcp_address_from_sockaddr(&end, &connection->local);
    }
    length = sizeof end;
    if (getpeername(fd, (struct sockaddr *)&end, &length) == 0) {
        wefti_tcp_address_from_sockaddr(&end, &connection->remote);
    }
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
        name_ends(connection, fd);
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
