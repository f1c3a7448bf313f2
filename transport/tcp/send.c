/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames out. Each connection has a queue of segments: copied bytes, or data of the caller. Small
 * frames wait there for the signal that follows them, so that a put and its signal are one system
 * call. Bytes that the kernel does not take at once wait until it does.
 *
 * Nothing limits a queue here: the credits of those who put limit the data in flight.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "runtime/base/error.h"

#define IOV_COUNT 32u
#define SEND_NOW_BYTES 262144u /* zero-copy data that does not wait for its signal */

/* ---- the queue ---- */

static void take(const weft_allocator_t *allocator, wefti_wire_buffer_t *buffer, size_t bytes)
{
    buffer->at += bytes;
    wefti_wire_buffer_trim(allocator, buffer);
}

static tcp_segment_t *first_segment(const tcp_connection_t *connection)
{
    return (tcp_segment_t *)(void *)(connection->queue.bytes + connection->queue.at);
}

static tcp_segment_t *end_segment(const tcp_connection_t *connection)
{
    return (tcp_segment_t *)(void *)(connection->queue.bytes + connection->queue.end);
}

/* There is room. */
static void add_segment(tcp_connection_t *connection, tcp_segment_t segment)
{
    *end_segment(connection) = segment;
    connection->queue.end += sizeof segment;
    connection->queued_bytes += segment.bytes;
}

/* Room for bytes to be copied, and for two segments. */
static bool reserve(tcp_connection_t *connection, size_t bytes)
{
    const weft_allocator_t *allocator = connection->peer->tcp->params.allocator;
    return wefti_wire_buffer_reserve(allocator, &connection->queue, 2 * sizeof(tcp_segment_t)) &&
           wefti_wire_buffer_reserve(allocator, &connection->copied, bytes);
}

bool wefti_tcp_queue_frame(tcp_connection_t *connection, const tcp_frame_t *frame, const void *more,
                           size_t more_bytes)
{
    size_t bytes = sizeof *frame + more_bytes;
    if (!reserve(connection, bytes)) {
        return false;
    }
    wefti_wire_buffer_append(&connection->copied, frame, sizeof *frame);
    wefti_wire_buffer_append(&connection->copied, more, more_bytes);
    if (connection->queued_bytes > 0 && end_segment(connection)[-1].data == NULL) {
        end_segment(connection)[-1].bytes += bytes;
        connection->queued_bytes += bytes;
    } else {
        add_segment(connection, (tcp_segment_t){.bytes = bytes});
    }
    return true;
}

/* Removes bytes at the front: they are sent, or lost. */
static void queue_take(tcp_connection_t *connection, size_t bytes)
{
    const weft_allocator_t *allocator = connection->peer->tcp->params.allocator;
    connection->queued_bytes -= bytes;
    while (bytes > 0) {
        tcp_segment_t *segment = first_segment(connection);
        size_t now = bytes < segment->bytes ? bytes : segment->bytes;
        bytes -= now;
        segment->bytes -= now;
        if (segment->data == NULL) {
            take(allocator, &connection->copied, now);
        } else {
            segment->data += now;
        }
        if (segment->bytes == 0) {
            wefti_signal_t *in_use = segment->in_use;
            take(allocator, &connection->queue, sizeof *segment);
            if (in_use != NULL) {
                wefti_source_release(in_use, 1);
            }
        }
    }
}

void wefti_tcp_queue_clear(tcp_connection_t *connection)
{
    queue_take(connection, connection->queued_bytes);
}

/* ---- to the kernel ---- */

/* Counts the time in which a connection of the peer is blocked. */
static void account(tcp_peer_t *peer)
{
    bool waits = false;
    for (uint32_t i = 0; i < peer->tcp->sockets; i++) {
        waits = waits || peer->connections[i].blocked;
    }
    if (waits && peer->busy_since_ns == 0) {
        peer->busy_since_ns = wefti_now_ns();
    } else if (!waits && peer->busy_since_ns != 0) {
        peer->stats.busy_ns += wefti_now_ns() - peer->busy_since_ns;
        peer->busy_since_ns = 0;
    }
}

static void set_blocked(tcp_connection_t *connection, bool blocked)
{
    if (connection->blocked != blocked) {
        connection->blocked = blocked;
        wefti_tcp_connection_watch(connection);
        account(connection->peer);
    }
}

static ssize_t send_once(tcp_connection_t *connection, size_t *out_bytes)
{
    struct iovec iov[IOV_COUNT];
    const tcp_segment_t *segment = first_segment(connection), *end = end_segment(connection);
    uint8_t *copied = connection->copied.bytes + connection->copied.at;
    size_t total = 0, count = 0;
    for (; segment < end && count < IOV_COUNT; segment++, count++) {
        bool is_copied = segment->data == NULL;
        iov[count].iov_base = is_copied ? copied : (void *)(uintptr_t)segment->data;
        iov[count].iov_len = segment->bytes;
        copied += is_copied ? segment->bytes : 0;
        total += segment->bytes;
    }
    *out_bytes = total;
    if (count == 1) {
        return send(connection->source.fd, iov[0].iov_base, iov[0].iov_len,
                    MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
    return sendmsg(connection->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool wefti_tcp_send_queued(tcp_connection_t *connection)
{
    bool moved = false;
    while (connection->ready && connection->queued_bytes > 0) {
        size_t wanted;
        ssize_t sent = send_once(connection, &wanted);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && errno != EAGAIN) {
            wefti_tcp_send_failed(connection, errno);
            return moved;
        }
        queue_take(connection, sent > 0 ? (size_t)sent : 0);
        moved = moved || sent > 0;
        if (sent < 0 || (size_t)sent < wanted) {
            set_blocked(connection, true);
            return moved;
        }
    }
    if (connection->ready) {
        set_blocked(connection, false);
    }
    return moved;
}

/* ---- held back ---- */

/* With the peer's lock: progress is to send the queues. */
static void hold(tcp_peer_t *peer)
{
    tcp_t *tcp = peer->tcp;
    if (peer->held) {
        return;
    }
    peer->held = true;
    tcp_peer_t *head = atomic_load_explicit(&tcp->held, memory_order_relaxed);
    do {
        peer->next_held = head;
    } while (!atomic_compare_exchange_weak_explicit(&tcp->held, &head, peer, memory_order_release,
                                                    memory_order_relaxed));
}

bool wefti_tcp_send_held(tcp_t *tcp)
{
    bool moved = false;
    if (atomic_load_explicit(&tcp->held, memory_order_relaxed) == NULL) {
        return false;
    }
    tcp_peer_t *peer = atomic_exchange_explicit(&tcp->held, NULL, memory_order_acquire);
    while (peer != NULL) {
        tcp_peer_t *next = peer->next_held;
        pthread_mutex_lock(&peer->lock);
        peer->held = false;
        for (uint32_t i = 0; i < tcp->sockets; i++) {
            tcp_connection_t *connection = &peer->connections[i];
            if (connection->queued_bytes > 0 && connection->ready && !connection->blocked) {
                moved = wefti_tcp_send_queued(connection) || moved;
            }
        }
        pthread_mutex_unlock(&peer->lock);
        peer = next;
    }
    return moved;
}

/* ---- put and signal ---- */

/* With the peer's lock. WEFT_IN_PROGRESS: what is sent is lost, without harm. */
static weft_status_t check_peer(tcp_peer_t *peer)
{
    if (peer->state == TCP_PEER_IDLE || peer->state == TCP_PEER_LINKED) {
        return WEFT_OK;
    }
    if (peer->state == TCP_PEER_LEFT || peer->state == TCP_PEER_PROBED) {
        return WEFT_IN_PROGRESS;
    }
    if (peer->state == TCP_PEER_BROKEN && peer->died) {
        return wefti_error(WEFT_ERR_PEER_DIED, "%s", peer->fault);
    }
    return wefti_error(WEFT_ERR_LINK, "%s",
                       peer->fault[0] != 0 ? peer->fault : "tcp: the link was closed");
}

/* With the peer's lock: something is queued on a connection that may not be up. */
static void want(const tcp_connection_t *connection)
{
    tcp_peer_t *peer = connection->peer;
    if (!connection->ready && !peer->wanted && peer->state <= TCP_PEER_LINKED) {
        peer->wanted = true;
        peer->state = TCP_PEER_LINKED;
        wefti_tcp_call(peer->tcp);
    }
}

/* Copies what the kernel did not take of a put without zero-copy: always the last segment. */
static weft_status_t keep_rest(tcp_connection_t *connection)
{
    tcp_segment_t *last = connection->queued_bytes > 0 ? end_segment(connection) - 1 : NULL;
    if (last == NULL || last->data == NULL || last->in_use != NULL) {
        return WEFT_OK;
    }
    if (!reserve(connection, last->bytes)) { /* half a frame is sent: the connection is lost */
        wefti_tcp_send_failed(connection, ENOMEM);
        return WEFT_ERR_NO_MEMORY;
    }
    last = end_segment(connection) - 1;
    wefti_wire_buffer_append(&connection->copied, last->data, last->bytes);
    last->data = NULL;
    return WEFT_OK;
}

/* One frame on one connection, with the peer's lock. */
static weft_status_t put_frame(tcp_connection_t *connection, const tcp_frame_t *frame,
                               const void *data, wefti_signal_t *in_use)
{
    size_t bytes = frame->size;
    bool copied = bytes <= (in_use != NULL ? TCP_COPY_BYTES : TCP_HOLD_BYTES);
    connection->frames++;
    want(connection);
    if (!wefti_tcp_queue_frame(connection, frame, data, copied ? bytes : 0)) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (!copied) {
        add_segment(connection, (tcp_segment_t){bytes, data, in_use});
        if (in_use != NULL) {
            wefti_source_acquire(in_use, 1);
        }
    }
    bool now = copied ? connection->queued_bytes > TCP_HOLD_BYTES
                      : in_use == NULL || connection->queued_bytes >= SEND_NOW_BYTES;
    if (now && !connection->blocked) {
        (void)wefti_tcp_send_queued(connection);
    } else {
        hold(connection->peer);
    }
    return copied ? WEFT_OK : keep_rest(connection);
}

/* A frame's worth of a put: a large one in stripes, one over each connection. */
static weft_status_t put_part(tcp_peer_t *peer, size_t offset, const uint8_t *data, size_t bytes,
                              uint32_t lane, wefti_signal_t *in_use)
{
    uint32_t sockets = peer->tcp->sockets, home = lane % sockets;
    size_t stripe = bytes >= TCP_STRIPE_BYTES ? wefti_align_up(bytes / sockets, 4096) : bytes;
    for (uint32_t i = 0; bytes > 0; i++) {
        uint32_t index = (home + i) % sockets;
        size_t now = i + 1 == sockets || bytes < stripe ? bytes : stripe;
        const tcp_frame_t frame = {.kind = index == home ? TCP_PUT : TCP_STRIPE,
                                   .lane = (uint8_t)lane,
                                   .size = (uint32_t)now,
                                   .offset = offset};
        if (index != home) {
            peer->stripes_sent[lane][index]++;
            peer->stripes_unsignalled |= 1u << lane;
        }
        WEFT_RETURN_IF_ERROR(put_frame(&peer->connections[index], &frame, data, in_use));
        offset += now;
        data += now;
        bytes -= now;
    }
    return WEFT_OK;
}

weft_status_t wefti_tcp_put(void *driver, uint32_t to, size_t offset, const void *data,
                            size_t bytes, uint32_t lane, wefti_signal_t *in_use)
{
    const uint8_t *at = data;
    tcp_peer_t *peer = wefti_tcp_peer(driver, to);
    WEFT_RETURN_IF_NO_MEMORY(peer);
    pthread_mutex_lock(&peer->lock);
    weft_status_t status = check_peer(peer);
    if (status == WEFT_OK) {
        peer->stats.bytes_sent += bytes;
        peer->stats.messages_sent++;
    }
    while (bytes > 0 && status == WEFT_OK) {
        size_t now = bytes < TCP_FRAME_MAX ? bytes : TCP_FRAME_MAX;
        status = put_part(peer, offset, at, now, lane, in_use);
        offset += now;
        at += now;
        bytes -= now;
    }
    pthread_mutex_unlock(&peer->lock);
    return status > 0 ? WEFT_OK : status;
}

/* With the peer's lock. */
static weft_status_t queue_signal(tcp_peer_t *peer, size_t offset, uint32_t value, uint32_t lane)
{
    uint32_t sockets = peer->tcp->sockets;
    tcp_connection_t *home = &peer->connections[lane % sockets];
    bool after = (peer->stripes_unsignalled & 1u << lane) != 0;
    const tcp_frame_t frame = {.kind = after ? TCP_SIGNAL_AFTER : TCP_SIGNAL,
                               .lane = (uint8_t)lane,
                               .size = value,
                               .offset = offset};
    peer->stripes_unsignalled &= ~(1u << lane);
    peer->stats.messages_sent++;
    home->frames++;
    want(home);
    if (!wefti_tcp_queue_frame(home, &frame, peer->stripes_sent[lane],
                               after ? sockets * sizeof(uint32_t) : 0)) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < sockets; i++) {
        tcp_connection_t *one = &peer->connections[i];
        if ((after || one == home) && one->queued_bytes > 0 && !one->blocked) {
            (void)wefti_tcp_send_queued(one);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_tcp_signal(void *driver, uint32_t to, size_t offset, uint32_t value,
                               uint32_t lane)
{
    tcp_peer_t *peer = wefti_tcp_peer(driver, to);
    WEFT_RETURN_IF_NO_MEMORY(peer);
    pthread_mutex_lock(&peer->lock);
    weft_status_t status = check_peer(peer);
    if (status == WEFT_OK) {
        status = queue_signal(peer, offset, value, lane);
    }
    pthread_mutex_unlock(&peer->lock);
    return status > 0 ? WEFT_OK : status;
}

/* ---- has it landed? ---- */

/* With the peer's lock. */
static bool connection_flushed(tcp_connection_t *connection)
{
    if (connection->frames == connection->acknowledged) {
        return true;
    }
    if (!connection->sent_mark) {
        const tcp_frame_t frame = {.kind = TCP_MARK, .offset = connection->frames};
        connection->sent_mark = wefti_tcp_queue_frame(connection, &frame, NULL, 0);
    }
    if (!connection->blocked) {
        (void)wefti_tcp_send_queued(connection);
    }
    return false;
}

bool wefti_tcp_flushed(void *driver, uint32_t *out_peer)
{
    tcp_t *tcp = driver;
    bool flushed = true;
    for (tcp_peer_t *peer = wefti_tcp_peers(tcp); peer != NULL; peer = peer->next) {
        pthread_mutex_lock(&peer->lock);
        for (uint32_t i = 0; i < tcp->sockets && peer->state == TCP_PEER_LINKED; i++) {
            if (!connection_flushed(&peer->connections[i])) {
                *out_peer = peer->rank;
                flushed = false;
            }
        }
        pthread_mutex_unlock(&peer->lock);
    }
    return flushed;
}
