/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames in. A small buffer takes headers and small puts, many with one call. The rest of a large
 * put goes straight to its place in the region, and the bytes that follow it into the buffer with
 * the same call.
 *
 * A signal whose lane has stripes on other connections stops its own connection until they have
 * arrived. That cannot form a cycle: all frames were queued in one order, and a signal waits only
 * for earlier ones.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "transport/endpoint.h"

#define CALLS_AT_ONCE 4u        /* of one connection; then others have their turn */
#define DIRECT_AT_ONCE 1048576u /* bytes of one call */

/* ---- what frames do ---- */

static void put_landed(tcp_connection_t *connection)
{
    tcp_peer_t *peer = connection->peer;
    if (connection->put.kind == TCP_STRIPE) {
        peer->stripes_landed[connection->put.lane][connection->index]++;
    }
    atomic_fetch_add_explicit(&peer->bytes_received, connection->put.size, memory_order_relaxed);
    atomic_fetch_add_explicit(&peer->messages_received, 1, memory_order_relaxed);
}

static void set_paused(tcp_connection_t *connection, bool paused)
{
    tcp_peer_t *peer = connection->peer;
    if (connection->paused == paused) {
        return;
    }
    pthread_mutex_lock(&peer->lock);
    connection->paused = paused;
    wefti_tcp_connection_watch(connection);
    pthread_mutex_unlock(&peer->lock);
    peer->tcp->paused_count += paused ? 1 : UINT32_MAX;
}

static bool stripes_are_here(const tcp_connection_t *connection, uint32_t lane,
                             const uint8_t *counts)
{
    const tcp_peer_t *peer = connection->peer;
    for (uint32_t i = 0; i < peer->tcp->sockets; i++) {
        uint32_t count;
        memcpy(&count, counts + i * sizeof count, sizeof count);
        if (!wefti_signal_reached(peer->stripes_landed[lane][i], count)) {
            return false;
        }
    }
    return true;
}

static void return_mark(tcp_connection_t *connection, uint64_t mark)
{
    tcp_peer_t *peer = connection->peer;
    const tcp_frame_t frame = {.kind = TCP_MARKED, .offset = mark};
    wefti_link_order(); /* all before it is here: the sender will say so */
    pthread_mutex_lock(&peer->lock);
    if (wefti_tcp_queue_frame(connection, &frame, NULL, 0) && !connection->blocked) {
        (void)wefti_tcp_send_queued(connection);
    }
    pthread_mutex_unlock(&peer->lock);
}

static void marked(tcp_connection_t *connection, uint64_t mark)
{
    tcp_peer_t *peer = connection->peer;
    pthread_mutex_lock(&peer->lock);
    if (mark <= connection->frames && mark > connection->acknowledged) {
        connection->acknowledged = mark;
    }
    connection->sent_mark = false;
    pthread_mutex_unlock(&peer->lock);
}

typedef enum tcp_outcome {
    OUTCOME_DONE,
    OUTCOME_MORE,  /* the frame is incomplete */
    OUTCOME_PAUSE, /* it waits for other connections */
    OUTCOME_WRONG, /* no rank sends such a frame */
    OUTCOME_BYE,
} tcp_outcome_t;

/* A put's header; its bytes follow. */
static tcp_outcome_t begin_put(tcp_connection_t *connection, const tcp_frame_t *frame)
{
    tcp_t *tcp = connection->peer->tcp;
    /* acquire: the memory exists */
    size_t limit = atomic_load_explicit(&tcp->region_bytes, memory_order_acquire);
    if (frame->size == 0 || frame->offset > limit || frame->size > limit - frame->offset) {
        return OUTCOME_WRONG;
    }
    connection->into = tcp->base + frame->offset;
    connection->into_bytes = frame->size;
    connection->put = *frame;
    return OUTCOME_DONE;
}

static tcp_outcome_t do_signal(tcp_connection_t *connection, const tcp_frame_t *frame,
                               const uint8_t *counts)
{
    tcp_peer_t *peer = connection->peer;
    tcp_t *tcp = peer->tcp;
    size_t limit = atomic_load_explicit(&tcp->region_bytes, memory_order_acquire);
    if (frame->offset % 8 != 0 || frame->offset > limit || limit - frame->offset < 8) {
        return OUTCOME_WRONG;
    }
    if (counts != NULL && !stripes_are_here(connection, frame->lane, counts)) {
        return OUTCOME_PAUSE;
    }
    atomic_fetch_add_explicit(&peer->messages_received, 1, memory_order_relaxed);
    wefti_link_raise((wefti_signal_t *)(void *)(tcp->base + frame->offset), frame->size);
    return OUTCOME_DONE;
}

/* Executes the frame at the front of have bytes; *out_used: how many it has. */
static tcp_outcome_t do_frame(tcp_connection_t *connection, const uint8_t *at, size_t have,
                              size_t *out_used)
{
    tcp_frame_t frame;
    if (have < sizeof frame) {
        return OUTCOME_MORE;
    }
    memcpy(&frame, at, sizeof frame);
    *out_used = sizeof frame;
    if (frame.lane >= WEFTI_LINK_LANES || frame.zero != 0) {
        return OUTCOME_WRONG;
    }
    size_t counts = connection->peer->tcp->sockets * sizeof(uint32_t);
    switch (frame.kind) {
    case TCP_PUT:
    case TCP_STRIPE:
        return begin_put(connection, &frame);
    case TCP_SIGNAL:
        return do_signal(connection, &frame, NULL);
    case TCP_SIGNAL_AFTER:
        *out_used += counts;
        return have < *out_used ? OUTCOME_MORE : do_signal(connection, &frame, at + sizeof frame);
    case TCP_MARK:
        return_mark(connection, frame.offset);
        return OUTCOME_DONE;
    case TCP_MARKED:
        marked(connection, frame.offset);
        return OUTCOME_DONE;
    case TCP_BYE:
        return OUTCOME_BYE;
    default:
        return OUTCOME_WRONG;
    }
}

/* ---- bytes ---- */

/* Bytes of the put have arrived at its destination. */
static void advance_put(tcp_connection_t *connection, size_t bytes)
{
    connection->into += bytes;
    connection->into_bytes -= bytes;
    if (connection->into_bytes == 0) {
        put_landed(connection);
    }
}

/* Copies the bytes of the put that are in the buffer. */
static void copy_put(tcp_connection_t *connection)
{
    size_t have = connection->in_to - connection->in_from;
    size_t now = have < connection->into_bytes ? have : connection->into_bytes;
    memcpy(connection->into, connection->in + connection->in_from, now);
    connection->in_from += now;
    advance_put(connection, now);
}

/* Executes the frames in the buffer. False: the connection has ended. */
static bool parse(tcp_connection_t *connection)
{
    tcp_outcome_t outcome = OUTCOME_DONE;
    wefti_link_order(); /* the sender knows that the memory is ready */
    while (outcome == OUTCOME_DONE && connection->in_from < connection->in_to) {
        size_t used = 0;
        outcome = do_frame(connection, connection->in + connection->in_from,
                           connection->in_to - connection->in_from, &used);
        if (outcome == OUTCOME_DONE) {
            connection->in_from += used;
            if (connection->into_bytes > 0) {
                copy_put(connection);
            }
        }
    }
    set_paused(connection, outcome == OUTCOME_PAUSE);
    if (connection->in_from == connection->in_to) {
        connection->in_from = connection->in_to = 0;
    } else if (outcome == OUTCOME_MORE && connection->in_from > 0) {
        memmove(connection->in, connection->in + connection->in_from,
                connection->in_to - connection->in_from);
        connection->in_to -= connection->in_from;
        connection->in_from = 0;
    }
    if (outcome == OUTCOME_WRONG) {
        wefti_tcp_connection_broken(connection, 0, "protocol error: invalid frame");
    } else if (outcome == OUTCOME_BYE) {
        const wefti_link_params_t *params = &connection->peer->tcp->params;
        wefti_tcp_peer_disconnect(connection->peer, TCP_PEER_LEFT);
        params->leaving(params->owner, connection->peer->rank);
    }
    return outcome != OUTCOME_WRONG && outcome != OUTCOME_BYE;
}

/* One call; *out_wanted: the room it had. */
static ssize_t receive_once(tcp_connection_t *connection, size_t *out_wanted)
{
    struct iovec iov[2];
    size_t count = 0, wanted = 0;
    if (connection->into_bytes > 0) {
        size_t now =
            connection->into_bytes < DIRECT_AT_ONCE ? connection->into_bytes : DIRECT_AT_ONCE;
        iov[count++] = (struct iovec){connection->into, now};
        wanted = now;
    }
    if (wanted == connection->into_bytes) {
        iov[count++] =
            (struct iovec){connection->in + connection->in_to, TCP_IN_BYTES - connection->in_to};
        wanted += TCP_IN_BYTES - connection->in_to;
    }
    *out_wanted = wanted;
    if (count == 1) {
        return recv(connection->source.fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT);
    }
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
    return recvmsg(connection->source.fd, &message, MSG_DONTWAIT);
}

bool wefti_tcp_receive(tcp_connection_t *connection)
{
    bool moved = false;
    for (uint32_t i = 0; i < CALLS_AT_ONCE && connection->step == TCP_UP && !connection->paused;
         i++) {
        size_t wanted;
        ssize_t got = receive_once(connection, &wanted);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            return moved;
        }
        if (got <= 0) {
            wefti_tcp_connection_broken(connection, got < 0 ? errno : 0,
                                        got < 0 ? NULL : "connection closed by the peer");
            return true;
        }
        moved = true;
        size_t direct = (size_t)got < connection->into_bytes ? (size_t)got : connection->into_bytes;
        if (direct > 0) {
            advance_put(connection, direct);
        }
        connection->in_to += (size_t)got - direct;
        if (!parse(connection) || (size_t)got < wanted) {
            return true;
        }
    }
    return moved;
}

void wefti_tcp_connection_watch(tcp_connection_t *connection)
{
    wefti_tcp_rewatch(connection->peer->tcp, &connection->source,
                      (connection->paused ? 0 : EPOLLIN) | (connection->blocked ? EPOLLOUT : 0));
}

bool wefti_tcp_connection_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    tcp_connection_t *connection = (tcp_connection_t *)source;
    bool moved = false;
    if ((events & EPOLLOUT) != 0) {
        pthread_mutex_lock(&connection->peer->lock);
        moved = connection->ready && wefti_tcp_send_queued(connection);
        pthread_mutex_unlock(&connection->peer->lock);
    }
    if ((events & ~(uint32_t)EPOLLOUT) != 0 && wefti_tcp_receive(connection)) {
        tcp->favourite = connection->step == TCP_UP ? connection : NULL;
        moved = true;
    }
    return moved;
}

bool wefti_tcp_receive_resume(tcp_t *tcp)
{
    bool moved = false;
    for (tcp_peer_t *peer = wefti_tcp_peers(tcp); peer != NULL; peer = peer->next) {
        for (uint32_t i = 0; i < tcp->sockets; i++) {
            tcp_connection_t *connection = &peer->connections[i];
            if (connection->paused && parse(connection) && !connection->paused) {
                (void)wefti_tcp_receive(connection);
                moved = true;
            }
        }
    }
    return moved;
}
