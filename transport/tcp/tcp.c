/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp driver: sockets between hosts that have nothing better. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/socket/fork.h"

#define EVENTS_AT_ONCE 32
#define LOOK_AROUND 16u /* polls of the favourite connection between looks at the others */

/* ---- descriptors ---- */

bool wefti_tcp_watch(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    return epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) == 0;
}

void wefti_tcp_rewatch(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (source->fd >= 0) {
        (void)epoll_ctl(tcp->epoll_fd, EPOLL_CTL_MOD, source->fd, &event);
    }
}

/*
 * Removed from the epoll set first: close alone leaves a descriptor there for as long as a forked
 * child has a copy of it, and events would name a source that is freed.
 */
void wefti_tcp_source_close(tcp_t *tcp, tcp_source_t *source)
{
    if (source->fd >= 0) {
        (void)epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
        wefti_socket_close(source->fd);
        source->fd = -1;
    }
}

void wefti_tcp_call(tcp_t *tcp)
{
    /* sequentially consistent, as in arm: a thread that is about to sleep sees it or is woken */
    atomic_store_explicit(&tcp->attention, true, memory_order_seq_cst);
    tcp->params.wake(tcp->params.owner);
}

void wefti_tcp_timer(tcp_t *tcp, uint64_t at_ns)
{
    if (tcp->timer_ns != 0 && tcp->timer_ns <= at_ns) {
        return;
    }
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000ull),
                                         .tv_nsec = (long)(at_ns % 1000000000ull)}};
    tcp->timer_ns = at_ns;
    (void)timerfd_settime(tcp->timer.fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static bool timer_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events)
{
    uint64_t expirations, now = wefti_now_ns(), next;
    (void)events;
    ssize_t got = read(source->fd, &expirations, sizeof expirations);
    (void)got;
    tcp->timer_ns = 0;
    next = wefti_acceptor_expire(&tcp->acceptor);
    wefti_tcp_attempts_expire(tcp, now, &next);
    if (next != UINT64_MAX) {
        wefti_tcp_timer(tcp, next);
    }
    return true;
}

/* ---- progress ---- */

static bool look_around(tcp_t *tcp)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    bool moved = false;
    int count = epoll_wait(tcp->epoll_fd, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        tcp_source_t *source = events[i].data.ptr;
        if (source->fd >= 0) { /* not closed by an event before it */
            moved = source->ready(tcp, source, events[i].events) || moved;
        }
    }
    return moved;
}

/* Connects to peers to which data is queued, and ends connections whose sender saw an error. */
static void give_attention(tcp_t *tcp)
{
    if (!atomic_load_explicit(&tcp->attention, memory_order_relaxed) ||
        !atomic_exchange_explicit(&tcp->attention, false, memory_order_acquire)) {
        return;
    }
    for (tcp_peer_t *peer = wefti_tcp_peers(tcp); peer != NULL; peer = peer->next) {
        tcp_connection_t *failed = NULL;
        int error = 0;
        pthread_mutex_lock(&peer->lock);
        bool connect = peer->wanted && peer->state == TCP_PEER_LINKED;
        for (uint32_t i = 0; i < tcp->sockets && failed == NULL; i++) {
            error = peer->connections[i].send_errno;
            failed = error != 0 ? &peer->connections[i] : NULL;
        }
        pthread_mutex_unlock(&peer->lock);
        if (failed == NULL && connect) {
            wefti_tcp_connect_peer(peer, false);
        }
        if (error == EPIPE || error == ECONNRESET) { /* a goodbye may have arrived before */
            while (wefti_tcp_receive(failed)) {
            }
        }
        if (failed != NULL) {
            wefti_tcp_connection_broken(failed, error, NULL);
        }
    }
}

/* A peer whose broken link is to be reported, or NULL. */
static tcp_peer_t *take_fault(tcp_t *tcp)
{
    tcp_peer_t *peer = tcp->fault_pending ? wefti_tcp_peers(tcp) : NULL;
    while (peer != NULL && !peer->fault_pending) {
        peer = peer->next;
    }
    tcp->fault_pending = peer != NULL;
    if (peer != NULL) {
        peer->fault_pending = false;
    }
    return peer;
}

static bool tcp_progress(void *driver)
{
    tcp_t *tcp = driver;
    bool moved = wefti_tcp_send_held(tcp);
    /* acquire and release: everything that is guarded by busy */
    if (atomic_exchange_explicit(&tcp->busy, true, memory_order_acquire)) {
        return moved;
    }
    bool received = tcp->favourite != NULL && wefti_tcp_receive(tcp->favourite);
    /* where one connection has all the data, looking at it alone is half the work */
    if (tcp->favourite == NULL || (++tcp->polls & (received ? LOOK_AROUND - 1 : 1)) == 0) {
        received = look_around(tcp) || received;
    }
    if (tcp->paused_count > 0) {
        received = wefti_tcp_receive_resume(tcp) || received;
    }
    give_attention(tcp);
    const tcp_peer_t *faulty = take_fault(tcp);
    atomic_store_explicit(&tcp->busy, false, memory_order_release);
    if (faulty != NULL) { /* what is said of it does not change any more */
        tcp->params.broken(tcp->params.owner, faulty->rank, faulty->died, faulty->fault);
    }
    return moved || received || faulty != NULL;
}

static int tcp_poll_fd(void *driver)
{
    return ((tcp_t *)driver)->epoll_fd;
}

static bool tcp_arm(void *driver)
{
    tcp_t *tcp = driver;
    return !wefti_tcp_send_held(tcp) &&
           !atomic_load_explicit(&tcp->attention, memory_order_seq_cst);
}

/* Waits for the thread that is in progress, which is brief. */
static void enter(tcp_t *tcp)
{
    while (atomic_exchange_explicit(&tcp->busy, true, memory_order_acquire)) {
        sched_yield();
    }
}

/* ---- peers ---- */

static tcp_peer_t *peer_make(tcp_t *tcp, uint32_t rank)
{
    tcp_peer_t *peer = wefti_alloc(tcp->params.allocator, sizeof *peer);
    if (peer == NULL) {
        return NULL;
    }
    peer->tcp = tcp;
    peer->rank = rank;
    for (uint32_t i = 0; i < TCP_SOCKETS_MAX; i++) {
        peer->connections[i].source.fd = -1;
        peer->connections[i].peer = peer;
        peer->connections[i].index = i;
    }
    pthread_mutex_init(&peer->lock, NULL);
    peer->next = atomic_load_explicit(&tcp->last_made, memory_order_relaxed);
    /* release: what is in it */
    atomic_store_explicit(&tcp->last_made, peer, memory_order_release);
    atomic_store_explicit(&tcp->peers[rank], peer, memory_order_release);
    return peer;
}

tcp_peer_t *wefti_tcp_peer(tcp_t *tcp, uint32_t rank)
{
    /* acquire: what is in it */
    tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[rank], memory_order_acquire);
    if (peer != NULL) {
        return peer;
    }
    pthread_mutex_lock(&tcp->make_lock);
    peer = atomic_load_explicit(&tcp->peers[rank], memory_order_relaxed);
    if (peer == NULL) {
        peer = peer_make(tcp, rank);
    }
    pthread_mutex_unlock(&tcp->make_lock);
    return peer;
}

static void tcp_drop(void *driver, uint32_t rank)
{
    tcp_t *tcp = driver;
    enter(tcp);
    tcp_peer_t *peer = wefti_tcp_peer(tcp, rank); /* made if missing: it must not connect later */
    if (peer != NULL) {
        wefti_tcp_peer_disconnect(peer, TCP_PEER_FORGOTTEN);
    }
    atomic_store_explicit(&tcp->busy, false, memory_order_release);
}

/* ---- opening ---- */

static void tcp_close(void *driver, bool forked);

static weft_status_t open_all(tcp_t *tcp)
{
    const wefti_link_params_t *params = &tcp->params;
    tcp->peers = wefti_alloc(params->allocator, params->world_size * sizeof *tcp->peers);
    WEFT_RETURN_IF_NO_MEMORY(tcp->peers);
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    tcp->timer.ready = timer_ready;
    if (tcp->epoll_fd < 0 || tcp->timer.fd < 0 || !wefti_tcp_watch(tcp, &tcp->timer, EPOLLIN)) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "tcp: cannot create descriptors");
    }
    WEFT_RETURN_IF_ERROR(wefti_tcp_addresses_find(tcp));
    return wefti_tcp_listen(tcp);
}

static weft_status_t tcp_open(const wefti_link_params_t *params, void **out_driver,
                              void *out_address)
{
    tcp_t *tcp = wefti_alloc(params->allocator, sizeof *tcp);
    *out_driver = NULL;
    WEFT_RETURN_IF_NO_MEMORY(tcp);
    tcp->params = *params;
    tcp->own.sockets = tcp->sockets = params->settings->sockets; /* 1 to TCP_SOCKETS_MAX */
    tcp->epoll_fd = tcp->timer.fd = tcp->pending.fd = -1;
    for (uint32_t i = 0; i < TCP_ADDRESSES_MAX; i++) {
        tcp->listeners[i] = -1;
    }
    pthread_mutex_init(&tcp->make_lock, NULL);
    weft_status_t status = open_all(tcp);
    if (status < 0) {
        tcp_close(tcp, false);
        return status;
    }
    memcpy(out_address, &tcp->own, sizeof tcp->own);
    *out_driver = tcp;
    return WEFT_OK;
}

static weft_status_t tcp_join(void *driver, const uint8_t *addresses, const bool *peers)
{
    tcp_t *tcp = driver;
    const tcp_address_t *all = (const void *)addresses;
    for (uint32_t r = 0; r < tcp->params.world_size; r++) {
        if (peers[r] && all[r].sockets != tcp->sockets) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "WEFT_SOCKETS differs: %u on rank %u, %u on rank %u", tcp->sockets,
                               tcp->params.rank, all[r].sockets, r);
        }
    }
    return wefti_tcp_addresses_keep(tcp, all, peers);
}

static size_t tcp_offer_bytes(const wefti_link_params_t *params)
{
    (void)params;
    return 0;
}

static weft_status_t tcp_offer(void *driver, uint8_t *out_offers)
{
    (void)driver, (void)out_offers;
    return WEFT_OK;
}

static weft_status_t tcp_offered(void *driver, const uint8_t *offers)
{
    (void)driver, (void)offers;
    return WEFT_OK;
}

static weft_status_t tcp_grow(void *driver, uint8_t *base, size_t from, size_t to, void *out_key)
{
    tcp_t *tcp = driver;
    (void)from;
    (void)out_key;
    if (tcp->base != base) { /* the first time only: others read it */
        tcp->base = base;
    }
    /* release: base and the memory, for threads that see the size */
    atomic_store_explicit(&tcp->region_bytes, to, memory_order_release);
    return WEFT_OK;
}

static weft_status_t tcp_grown(void *driver, const uint8_t *keys)
{
    (void)driver;
    (void)keys;
    return WEFT_OK;
}

/* ---- describing ---- */

static const char *interface_of(const tcp_t *tcp, const wefti_address_t *address)
{
    for (uint32_t i = 0; i < tcp->own.interface_count; i++) {
        if (wefti_address_same_host(&tcp->own.interfaces[i].address, address)) {
            return tcp->own.interfaces[i].name;
        }
    }
    return "?";
}

static void tcp_describe(void *driver, uint32_t rank, char *text, size_t bytes)
{
    tcp_t *tcp = driver;
    tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[rank], memory_order_acquire);
    wefti_address_t local = {.family = 0}, remote = {.family = 0};
    char from[WEFTI_ADDRESS_TEXT], to[WEFTI_ADDRESS_TEXT];
    uint32_t ready = 0;
    if (peer != NULL) {
        pthread_mutex_lock(&peer->lock);
        for (uint32_t i = tcp->sockets; i-- > 0;) {
            if (peer->connections[i].ready) {
                local = peer->connections[i].local;
                remote = peer->connections[i].remote;
                ready++;
            }
        }
        pthread_mutex_unlock(&peer->lock);
    }
    if (ready > 0) {
        snprintf(text, bytes, "%s %s -> %s, %u of %u sockets",
                 wefti_address_text(&local, false, from), interface_of(tcp, &local),
                 wefti_address_text(&remote, false, to), ready, tcp->sockets);
        return;
    }
    const wefti_address_t *ways[TCP_ADDRESSES_MAX];
    uint32_t count = tcp->interfaces != NULL ? wefti_tcp_candidates(tcp, rank, 0, ways) : 0;
    snprintf(text, bytes, "not connected yet; first by %s, %u sockets",
             wefti_address_text(count > 0 ? ways[0] : &remote, false, to), tcp->sockets);
}

static void tcp_stats(void *driver, uint32_t rank, wefti_link_stats_t *out)
{
    tcp_t *tcp = driver;
    tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[rank], memory_order_acquire);
    memset(out, 0, sizeof *out);
    if (peer == NULL) {
        return;
    }
    pthread_mutex_lock(&peer->lock);
    *out = peer->stats;
    if (peer->busy_since_ns != 0) {
        out->busy_ns += wefti_now_ns() - peer->busy_since_ns;
    }
    pthread_mutex_unlock(&peer->lock);
    out->bytes_received = atomic_load_explicit(&peer->bytes_received, memory_order_relaxed);
    out->messages_received = atomic_load_explicit(&peer->messages_received, memory_order_relaxed);
}

/* ---- closing ---- */

/* So that the end of the connections is no death. Sent where there is room: the data was flushed
 * before. */
static void say_goodbye(tcp_peer_t *peer)
{
    const tcp_frame_t frame = {.kind = TCP_BYE};
    uint8_t rest[4096];
    pthread_mutex_lock(&peer->lock);
    for (uint32_t i = 0; i < peer->tcp->sockets; i++) {
        tcp_connection_t *connection = &peer->connections[i];
        if (connection->ready && wefti_tcp_queue_frame(connection, &frame, NULL, 0)) {
            (void)wefti_tcp_send_queued(connection);
            shutdown(connection->source.fd, SHUT_WR);
            /* unread bytes would turn the end into a reset, which may overtake the goodbye */
            for (uint32_t k = 0; k < 64; k++) {
                if (recv(connection->source.fd, rest, sizeof rest, MSG_DONTWAIT) <= 0) {
                    break;
                }
            }
        }
    }
    pthread_mutex_unlock(&peer->lock);
}

static void peer_free(tcp_peer_t *peer)
{
    const weft_allocator_t *allocator = peer->tcp->params.allocator;
    say_goodbye(peer);
    wefti_tcp_peer_disconnect(peer, TCP_PEER_FORGOTTEN);
    for (uint32_t i = 0; i < TCP_SOCKETS_MAX; i++) {
        wefti_free(allocator, peer->connections[i].queue.bytes);
        wefti_free(allocator, peer->connections[i].copied.bytes);
        wefti_free(allocator, peer->connections[i].in);
    }
    pthread_mutex_destroy(&peer->lock);
    wefti_free(allocator, peer);
}

/* All descriptors. In a forked child this is all: the epoll set is the parent's, so nothing is
 * removed from it, and locks and lists may be in any state. */
static void close_descriptors(tcp_t *tcp)
{
    if (tcp->epoll_fd >= 0) {
        close(tcp->epoll_fd);
        tcp->epoll_fd = -1;
    }
    for (tcp_peer_t *peer = wefti_tcp_peers(tcp); peer != NULL; peer = peer->next) {
        for (uint32_t i = 0; i < tcp->sockets; i++) {
            wefti_tcp_source_close(tcp, &peer->connections[i].source);
        }
    }
    for (uint32_t i = 0; i < TCP_ADDRESSES_MAX; i++) {
        if (tcp->listeners[i] >= 0) {
            close(tcp->listeners[i]);
        }
    }
    for (uint32_t i = 0; i < tcp->acceptor.used; i++) {
        if (tcp->acceptor.pending[i].shake.wire.fd >= 0) {
            wefti_socket_close(tcp->acceptor.pending[i].shake.wire.fd);
        }
    }
    wefti_tcp_source_close(tcp, &tcp->pending);
    wefti_tcp_source_close(tcp, &tcp->timer);
}

static void tcp_close(void *driver, bool forked)
{
    tcp_t *tcp = driver;
    const weft_allocator_t *allocator = tcp->params.allocator;
    if (forked) {
        close_descriptors(tcp);
        return;
    }
    enter(tcp);
    wefti_acceptor_close(&tcp->acceptor);
    for (tcp_peer_t *peer = wefti_tcp_peers(tcp), *following; peer != NULL; peer = following) {
        following = peer->next;
        peer_free(peer);
    }
    atomic_store_explicit(&tcp->last_made, NULL, memory_order_relaxed);
    close_descriptors(tcp);
    pthread_mutex_destroy(&tcp->make_lock);
    wefti_free(allocator, tcp->peers);
    wefti_free(allocator, tcp->ways);
    wefti_free(allocator, tcp->interfaces);
    wefti_free(allocator, tcp);
}

const wefti_link_driver_t wefti_link_tcp = {
    .name = "tcp",
    .caps = WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL,
    .address_bytes = sizeof(tcp_address_t),
    .key_bytes = 0,
    .open = tcp_open,
    .join = tcp_join,
    .offer_bytes = tcp_offer_bytes,
    .offer = tcp_offer,
    .offered = tcp_offered,
    .grow = tcp_grow,
    .grown = tcp_grown,
    .put = wefti_tcp_put,
    .signal = wefti_tcp_signal,
    .progress = tcp_progress,
    .poll_fd = tcp_poll_fd,
    .arm = tcp_arm,
    .flushed = wefti_tcp_flushed,
    .drop = tcp_drop,
    .describe = tcp_describe,
    .stats = tcp_stats,
    .close = tcp_close,
};
