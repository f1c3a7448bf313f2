/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames in. A small buffer takes headers and small puts, many with one call; what a large put has
 * left goes straight to its place in the region, and what follows it into the buffer with the same
 * call.
 *
 * A signal whose lane has stripes on other connections stops its own connection until they have
 * come. That cannot go in circles: everything was queued in one order, and a signal waits for what
 * was queued before it only.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "transport/endpoint.h"

#define CALLS_AT_ONCE 4u        /* then others have their turn */
#define DIRECT_AT_ONCE 1048576u /* bytes of one call */

/* ---- what frames do ---- */

static void put_landed(tcp_connection_t *connection)
{
    tcp_peer_t *peer = connection->peer;
    if (connection->into_kind == TCP_STRIPE) {
        peer->stripes_landed[connection->into_lane][connection->index]++;
    }
    atomic_fetch_add_explicit(&peer->bytes_received, connection->into_size, memory_order_relaxed);
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
    wefti_tcp_rewatch(peer->tcp, &connection->source,
                      (paused ? 0 : EPOLLIN) | (connection->blocked ? EPOLLOUT : 0));
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

static void say_back(tcp_connection_t *connection, uint64_t mark)
{
    tcp_peer_t *peer = connection->peer;
    tcp_frame_t frame = {.kind = TCP_MARKED, .offset = mark};
    pthread_mutex_lock(&peer->lock);
    if (wefti_tcp_queue_frame(connection, &frame, NULL, 0) == WEFT_OK && !connection->blocked) {
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
    OUTCOME_DONE,  /* used bytes are behind us */
    OUTCOME_MORE,  /* the frame is not whole yet */
    OUTCOME_PAUSE, /* it waits for other connections */
    OUTCOME_WRONG, /* no rank says that */
    OUTCOME_BYE,
} tcp_outcome_t;

/* A put's header; its bytes follow. */
static tcp_outcome_t begin_put(tcp_connection_t *connection, const tcp_frame_t *frame)
{
    tcp_t *tcp = connection->peer->tcp;
    /* acquire: memory that is counted is there */
    size_t limit = atomic_load_explicit(&tcp->region_bytes, memory_order_acquire);
    if (frame->size == 0 || frame->offset > limit || frame->size > limit - frame->offset) {
        return OUTCOME_WRONG;
    }
    connection->into = tcp->base + frame->offset;
    connection->into_bytes = frame->size;
    connection->into_size = frame->size;
    connection->into_kind = frame->kind;
    connection->into_lane = frame->lane;
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

/* The frame at the front of have bytes; *out_used: what it takes of them. */
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
        say_back(connection, frame.offset);
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

/* What the buffer has of the put that is coming in. */
static void take_into(tcp_connection_t *connection)
{
    size_t have = connection->in_to - connection->in_from;
    size_t now = have < connection->into_bytes ? have : connection->into_bytes;
    memcpy(connection->into, connection->in + connection->in_from, now);
    connection->in_from += now;
    connection->into += now;
    connection->into_bytes -= now;
    if (connection->into_bytes == 0) {
        put_landed(connection);
    }
}

/* Everything that the buffer holds. False: the connection is over. */
static bool parse(tcp_connection_t *connection)
{
    tcp_outcome_t outcome = OUTCOME_DONE;
    while (outcome == OUTCOME_DONE && connection->in_from < connection->in_to) {
        size_t used = 0;
        outcome = do_frame(connection, connection->in + connection->in_from,
                           connection->in_to - connection->in_from, &used);
        if (outcome == OUTCOME_DONE) {
            connection->in_from += used;
            if (connection->into_bytes > 0) {
                take_into(connection);
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
        wefti_tcp_connection_broken(connection, 0, "a message that no rank sends");
    } else if (outcome == OUTCOME_BYE) {
        const wefti_link_params_t *params = &connection->peer->tcp->params;
        wefti_tcp_peer_disconnect(connection->peer, TCP_PEER_LEFT);
        if (params->left != NULL) {
            params->left(params->owner, connection->peer->rank);
        }
    }
    return outcome != OUTCOME_WRONG && outcome != OUTCOME_BYE;
}

/* One call; out_wanted: what it would have taken. */
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

/* got bytes have come where receive_once asked for them. */
static void account(tcp_connection_t *connection, size_t got)
{
    if (connection->into_bytes > 0) {
        size_t direct = got < connection->into_bytes ? got : connection->into_bytes;
        connection->into += direct;
        connection->into_bytes -= direct;
        got -= direct;
        if (connection->into_bytes == 0) {
            put_landed(connection);
        }
    }
    connection->in_to += got;
}

bool wefti_tcp_receive(tcp_connection_t *connection)
{
    bool moved = false;
    for (uint32_t i = 0; i < CALLS_AT_ONCE && connection->hears && !connection->paused; i++) {
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
                                        got < 0 ? NULL : "the other side closed it");
            return true;
        }
        moved = true;
        account(connection, (size_t)got);
        if (!parse(connection) || (size_t)got < wanted) {
            return true;
        }
    }
    return moved;
}

bool wefti_tcp_receive_resume(tcp_connection_t *connection)
{
    if (!connection->paused || !parse(connection) || connection->paused) {
        return false;
    }
    (void)wefti_tcp_receive(connection);
    return true;
}
