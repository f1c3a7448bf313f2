/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames out. Each connection has a queue of segments: copied bytes (in blocks) and lent data. What
 * is small waits there for the signal that makes it worth anything, so that a put and its signal
 * are one system call; whatever the kernel does not take at once waits until it does.
 *
 * Nothing bounds a queue here: what may be under way is bounded by the credits of those who put.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "runtime/base/error.h"

#define IOV_COUNT 32u
#define LENT_NOW_BYTES 262144u /* so much starts on its way before its signal */

/* ---- blocks ---- */

static void block_leave(tcp_connection_t *connection, tcp_block_t *block)
{
    if (--block->users > 0) {
        return;
    }
    if (connection->spare == NULL && block->capacity == TCP_BLOCK_BYTES) {
        connection->spare = block;
    } else {
        wefti_free(connection->peer->tcp->params.allocator, block);
    }
}

static tcp_block_t *block_take(tcp_connection_t *connection, size_t capacity)
{
    tcp_block_t *block = connection->spare;
    if (block != NULL && capacity <= block->capacity) {
        connection->spare = NULL;
    } else {
        capacity = capacity > TCP_BLOCK_BYTES ? capacity : TCP_BLOCK_BYTES;
        block = wefti_alloc(connection->peer->tcp->params.allocator, sizeof *block + capacity);
        if (block == NULL) {
            return NULL;
        }
        block->capacity = capacity;
    }
    block->users = 1;
    block->used = 0;
    return block;
}

/* ---- the queue ---- */

static bool queue_reserve(tcp_connection_t *connection, size_t more)
{
    const weft_allocator_t *allocator = connection->peer->tcp->params.allocator;
    if (connection->capacity - connection->count >= more) {
        return true;
    }
    size_t capacity = connection->capacity > 0 ? 2 * connection->capacity : 64;
    tcp_segment_t *queue = wefti_alloc(allocator, capacity * sizeof *queue);
    if (queue == NULL) {
        return false;
    }
    for (size_t i = 0; i < connection->count; i++) {
        queue[i] = connection->queue[(connection->first + i) % connection->capacity];
    }
    wefti_free(allocator, connection->queue);
    connection->queue = queue;
    connection->capacity = capacity;
    connection->first = 0;
    return true;
}

static tcp_segment_t *queue_last(tcp_connection_t *connection)
{
    return connection->count == 0
               ? NULL
               : &connection
                      ->queue[(connection->first + connection->count - 1) % connection->capacity];
}

/* There is room. */
static tcp_segment_t *queue_add(tcp_connection_t *connection, const uint8_t *data, size_t bytes)
{
    connection->count++;
    connection->queued_bytes += bytes;
    tcp_segment_t *segment = queue_last(connection);
    *segment = (tcp_segment_t){.data = data, .bytes = bytes};
    return segment;
}

static void segment_done(tcp_connection_t *connection, tcp_segment_t *segment)
{
    if (segment->block != NULL) {
        block_leave(connection, segment->block);
    }
    if (segment->lent != NULL) {
        wefti_source_release(segment->lent, 1);
    }
}

/* Takes bytes away at the front. */
static void queue_consume(tcp_connection_t *connection, size_t bytes)
{
    connection->queued_bytes -= bytes;
    while (bytes > 0) {
        tcp_segment_t *segment = &connection->queue[connection->first];
        if (bytes < segment->bytes) {
            segment->data += bytes;
            segment->bytes -= bytes;
            return;
        }
        bytes -= segment->bytes;
        segment_done(connection, segment);
        connection->first = (connection->first + 1) % connection->capacity;
        connection->count--;
    }
    if (connection->count == 0 && connection->filling != NULL && connection->filling->users == 1) {
        connection->filling->used = 0; /* all of it was sent: from the start again */
    }
}

void wefti_tcp_queue_clear(tcp_connection_t *connection)
{
    for (; connection->count > 0; connection->count--) {
        segment_done(connection, &connection->queue[connection->first]);
        connection->first = (connection->first + 1) % connection->capacity;
    }
    connection->queued_bytes = 0;
}

void wefti_tcp_queue_deinit(tcp_connection_t *connection)
{
    const weft_allocator_t *allocator = connection->peer->tcp->params.allocator;
    wefti_tcp_queue_clear(connection);
    wefti_free(allocator, connection->filling);
    wefti_free(allocator, connection->spare);
    wefti_free(allocator, connection->queue);
    connection->filling = connection->spare = NULL;
    connection->queue = NULL;
    connection->capacity = 0;
}

weft_status_t wefti_tcp_queue_frame(tcp_connection_t *connection, const tcp_frame_t *frame,
                                    const void *more, size_t more_bytes)
{
    size_t bytes = sizeof *frame + more_bytes;
    tcp_block_t *block = connection->filling;
    if (!queue_reserve(connection, 1)) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (block == NULL || block->capacity - block->used < bytes) {
        tcp_block_t *fresh = block_take(connection, bytes);
        if (fresh == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        if (block != NULL) {
            block_leave(connection, block);
        }
        connection->filling = block = fresh;
    }
    uint8_t *at = block->data + block->used;
    memcpy(at, frame, sizeof *frame);
    if (more_bytes > 0) {
        memcpy(at + sizeof *frame, more, more_bytes);
    }
    block->used += bytes;
    tcp_segment_t *last = queue_last(connection);
    if (last != NULL && last->block == block && last->data + last->bytes == at) {
        last->bytes += bytes;
        connection->queued_bytes += bytes;
    } else {
        queue_add(connection, at, bytes)->block = block;
        block->users++;
    }
    return WEFT_OK;
}

/* ---- to the kernel ---- */

/* Since when something waits, and for how long in all. */
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
        wefti_tcp_rewatch(connection->peer->tcp, &connection->source,
                          (connection->paused ? 0 : EPOLLIN) | (blocked ? EPOLLOUT : 0));
        account(connection->peer);
    }
}

static ssize_t send_once(tcp_connection_t *connection, size_t *out_bytes)
{
    struct iovec iov[IOV_COUNT];
    size_t total = 0, count = 0;
    for (; count < connection->count && count < IOV_COUNT; count++) {
        const tcp_segment_t *segment =
            &connection->queue[(connection->first + count) % connection->capacity];
        iov[count] = (struct iovec){(void *)(uintptr_t)segment->data, segment->bytes};
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
    tcp_t *tcp = connection->peer->tcp;
    bool moved = false;
    while (connection->ready && connection->count > 0) {
        size_t wanted;
        ssize_t sent = send_once(connection, &wanted);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && errno == EAGAIN) {
            set_blocked(connection, true);
            return moved;
        }
        if (sent < 0) { /* progress tells; whatever waits is lost */
            connection->send_errno = errno;
            connection->ready = false;
            wefti_tcp_queue_clear(connection);
            atomic_fetch_add_explicit(&tcp->faults_noted, 1, memory_order_relaxed);
            wefti_tcp_ring(tcp);
            return moved;
        }
        queue_consume(connection, (size_t)sent);
        moved = true;
        if ((size_t)sent < wanted) {
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

/* With the peer's lock: progress is to send what waits here. */
static void hold(tcp_peer_t *peer)
{
    tcp_t *tcp = peer->tcp;
    if (peer->dirty) {
        return;
    }
    peer->dirty = true;
    tcp_peer_t *head = atomic_load_explicit(&tcp->dirty, memory_order_relaxed);
    do {
        peer->next_dirty = head;
    } while (!atomic_compare_exchange_weak_explicit(&tcp->dirty, &head, peer, memory_order_release,
                                                    memory_order_relaxed));
}

bool wefti_tcp_send_held(tcp_t *tcp)
{
    bool moved = false;
    if (atomic_load_explicit(&tcp->dirty, memory_order_relaxed) == NULL) {
        return false;
    }
    tcp_peer_t *peer = atomic_exchange_explicit(&tcp->dirty, NULL, memory_order_acquire);
    while (peer != NULL) {
        tcp_peer_t *next = peer->next_dirty;
        pthread_mutex_lock(&peer->lock);
        peer->dirty = false;
        for (uint32_t i = 0; i < tcp->sockets; i++) {
            tcp_connection_t *connection = &peer->connections[i];
            if (connection->count > 0 && connection->ready && !connection->blocked) {
                moved = wefti_tcp_send_queued(connection) || moved;
            }
        }
        pthread_mutex_unlock(&peer->lock);
        peer = next;
    }
    return moved;
}

/* ---- put and signal ---- */

/* With the lock of a peer that things go to; WEFT_IN_PROGRESS: they would be lost, without harm. */
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

/* With the lock: there is something for a connection that may not be there yet. */
static void want(tcp_peer_t *peer, const tcp_connection_t *connection)
{
    tcp_t *tcp = peer->tcp;
    if (connection->ready || peer->wanted || peer->state > TCP_PEER_LINKED) {
        return;
    }
    peer->wanted = true;
    peer->state = TCP_PEER_LINKED;
    pthread_mutex_lock(&tcp->list_lock);
    peer->next_wanted = tcp->wanted;
    tcp->wanted = peer;
    pthread_mutex_unlock(&tcp->list_lock);
    wefti_tcp_ring(tcp);
}

/* What the kernel did not take of data that the caller wants back. */
static weft_status_t keep_rest(tcp_connection_t *connection, const void *data, size_t bytes)
{
    tcp_segment_t *last = queue_last(connection);
    const uint8_t *begin = data;
    if (last == NULL || last->data < begin || last->data >= begin + bytes) {
        return WEFT_OK;
    }
    tcp_block_t *block = block_take(connection, last->bytes);
    if (block == NULL) { /* half a frame is on its way: this connection cannot go on */
        connection->send_errno = ENOMEM;
        connection->ready = false;
        connection->queued_bytes -= last->bytes;
        connection->count--;
        wefti_tcp_queue_clear(connection);
        atomic_fetch_add_explicit(&connection->peer->tcp->faults_noted, 1, memory_order_relaxed);
        wefti_tcp_ring(connection->peer->tcp);
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(block->data, last->data, last->bytes);
    block->used = last->bytes;
    last->data = block->data;
    last->block = block;
    return WEFT_OK;
}

/* One frame on one connection, with the lock. */
static weft_status_t put_frame(tcp_connection_t *connection, const tcp_frame_t *frame,
                               const void *data, wefti_signal_t *lent)
{
    size_t bytes = frame->size;
    weft_status_t status;
    connection->frames++;
    want(connection->peer, connection);
    if (bytes <= (lent != NULL ? TCP_LENT_BYTES : TCP_HOLD_BYTES)) {
        status = wefti_tcp_queue_frame(connection, frame, data, bytes);
        if (status == WEFT_OK && connection->queued_bytes > TCP_HOLD_BYTES &&
            !connection->blocked) {
            (void)wefti_tcp_send_queued(connection);
        } else if (status == WEFT_OK) {
            hold(connection->peer);
        }
        return status;
    }
    status = queue_reserve(connection, 2) ? wefti_tcp_queue_frame(connection, frame, NULL, 0)
                                          : WEFT_ERR_NO_MEMORY;
    if (status < 0) {
        return status;
    }
    tcp_segment_t *segment = queue_add(connection, data, bytes);
    if (lent != NULL) {
        wefti_source_acquire(lent, 1);
        segment->lent = lent;
    }
    if (!connection->blocked && (lent == NULL || connection->queued_bytes >= LENT_NOW_BYTES)) {
        (void)wefti_tcp_send_queued(connection);
    } else {
        hold(connection->peer);
    }
    return lent == NULL ? keep_rest(connection, data, bytes) : WEFT_OK;
}

/* A large put in parts, one over each connection. */
static weft_status_t put_stripes(tcp_peer_t *peer, size_t offset, const uint8_t *data, size_t bytes,
                                 uint32_t lane, wefti_signal_t *lent)
{
    tcp_t *tcp = peer->tcp;
    uint32_t home = lane % tcp->sockets;
    size_t part = wefti_align_up(bytes / tcp->sockets, 4096);
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < tcp->sockets && bytes > 0 && status == WEFT_OK; i++) {
        uint32_t index = (home + i) % tcp->sockets;
        size_t now = i + 1 == tcp->sockets || bytes < part ? bytes : part;
        tcp_frame_t frame = {.kind = index == home ? TCP_PUT : TCP_STRIPE,
                             .lane = (uint8_t)lane,
                             .size = (uint32_t)now,
                             .offset = offset};
        if (index != home) {
            peer->stripes_sent[lane][index]++;
            peer->stripes_untold |= 1u << lane;
        }
        status = put_frame(&peer->connections[index], &frame, data, lent);
        offset += now;
        data += now;
        bytes -= now;
    }
    return status;
}

weft_status_t wefti_tcp_put(void *driver, uint32_t to, size_t offset, const void *data,
                            size_t bytes, uint32_t lane, wefti_signal_t *lent)
{
    tcp_t *tcp = driver;
    const uint8_t *at = data;
    tcp_peer_t *peer = wefti_tcp_peer(tcp, to);
    if (peer == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    pthread_mutex_lock(&peer->lock);
    weft_status_t status = check_peer(peer);
    if (status == WEFT_OK) {
        peer->stats.bytes_sent += bytes;
        peer->stats.messages_sent++;
    }
    while (bytes > 0 && status == WEFT_OK) {
        size_t now = bytes < TCP_FRAME_MAX ? bytes : TCP_FRAME_MAX;
        if (now >= TCP_STRIPE_BYTES && tcp->sockets > 1) {
            status = put_stripes(peer, offset, at, now, lane, lent);
        } else {
            tcp_frame_t frame = {
                .kind = TCP_PUT, .lane = (uint8_t)lane, .size = (uint32_t)now, .offset = offset};
            status = put_frame(&peer->connections[lane % tcp->sockets], &frame, at, lent);
        }
        offset += now;
        at += now;
        bytes -= now;
    }
    pthread_mutex_unlock(&peer->lock);
    return status > 0 ? WEFT_OK : status;
}

weft_status_t wefti_tcp_signal(void *driver, uint32_t to, size_t offset, uint32_t value,
                               uint32_t lane)
{
    tcp_t *tcp = driver;
    tcp_peer_t *peer = wefti_tcp_peer(tcp, to);
    if (peer == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    tcp_connection_t *connection = &peer->connections[lane % tcp->sockets];
    pthread_mutex_lock(&peer->lock);
    weft_status_t status = check_peer(peer);
    if (status == WEFT_OK) {
        bool untold = (peer->stripes_untold & 1u << lane) != 0;
        tcp_frame_t frame = {.kind = untold ? TCP_SIGNAL_AFTER : TCP_SIGNAL,
                             .lane = (uint8_t)lane,
                             .size = value,
                             .offset = offset};
        peer->stripes_untold &= ~(1u << lane);
        peer->stats.messages_sent++;
        connection->frames++;
        want(peer, connection);
        status = wefti_tcp_queue_frame(connection, &frame, untold ? peer->stripes_sent[lane] : NULL,
                                       untold ? tcp->sockets * sizeof(uint32_t) : 0);
        for (uint32_t i = 0; i < tcp->sockets && status == WEFT_OK; i++) {
            tcp_connection_t *one = &peer->connections[i];
            if ((untold || one == connection) && one->count > 0 && !one->blocked) {
                (void)wefti_tcp_send_queued(one);
            }
        }
    }
    pthread_mutex_unlock(&peer->lock);
    return status > 0 ? WEFT_OK : status;
}

/* ---- has it landed? ---- */

/* With the lock. */
static bool connection_flushed(tcp_connection_t *connection)
{
    if (connection->frames == connection->acknowledged) {
        return true;
    }
    if (!connection->sent_mark) {
        tcp_frame_t frame = {.kind = TCP_MARK, .offset = connection->frames};
        connection->sent_mark = wefti_tcp_queue_frame(connection, &frame, NULL, 0) == WEFT_OK;
    }
    if (!connection->blocked) {
        (void)wefti_tcp_send_queued(connection);
    }
    return false;
}

bool wefti_tcp_flushed(void *driver)
{
    tcp_t *tcp = driver;
    bool flushed = true;
    for (uint32_t r = 0; r < tcp->params.world_size; r++) {
        tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[r], memory_order_acquire);
        if (peer == NULL) {
            continue;
        }
        pthread_mutex_lock(&peer->lock);
        for (uint32_t i = 0; i < tcp->sockets && peer->state == TCP_PEER_LINKED; i++) {
            flushed = connection_flushed(&peer->connections[i]) && flushed;
        }
        pthread_mutex_unlock(&peer->lock);
    }
    return flushed;
}
