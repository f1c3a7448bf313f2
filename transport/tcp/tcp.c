/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp driver: sockets between hosts that have nothing better. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define EVENTS_AT_ONCE 32
#define FAULTS_AT_ONCE 4
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
 * Out of the epoll set first: close alone leaves a descriptor there for as long as a forked child
 * has a copy of it, and events would name a source that is gone.
 */
void wefti_tcp_source_close(tcp_t *tcp, tcp_source_t *source)
{
    if (source->fd >= 0) {
        (void)epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
        close(source->fd);
        source->fd = -1;
    }
}

void wefti_tcp_ring(tcp_t *tcp)
{
    uint64_t one = 1;
    ssize_t sent = write(tcp->bell.fd, &one, sizeof one);
    (void)sent; /* full: it rings already */
    if (tcp->params.wake != NULL) {
        tcp->params.wake(tcp->params.owner);
    }
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

static void on_timer(tcp_t *tcp)
{
    uint64_t next = UINT64_MAX, rings;
    ssize_t got = read(tcp->timer.fd, &rings, sizeof rings);
    (void)got;
    uint64_t now = wefti_now_ns();
    tcp->timer_ns = 0;
    wefti_tcp_strangers_expire(tcp, now, &next);
    wefti_tcp_attempts_expire(tcp, now, &next);
    if (next != UINT64_MAX) {
        wefti_tcp_timer(tcp, next);
    }
}

static void on_bell(tcp_t *tcp)
{
    uint64_t rings;
    ssize_t got = read(tcp->bell.fd, &rings, sizeof rings);
    (void)got;
    pthread_mutex_lock(&tcp->list_lock);
    tcp_peer_t *peer = tcp->wanted;
    tcp->wanted = NULL;
    pthread_mutex_unlock(&tcp->list_lock);
    while (peer != NULL) {
        tcp_peer_t *next = peer->next_wanted;
        pthread_mutex_lock(&peer->lock);
        bool linked = peer->state == TCP_PEER_LINKED;
        pthread_mutex_unlock(&peer->lock);
        if (linked) {
            wefti_tcp_connect_peer(tcp, peer, false);
        }
        peer = next;
    }
}

/* ---- progress ---- */

static bool on_connection(tcp_t *tcp, tcp_connection_t *connection, uint32_t events)
{
    bool moved = false;
    if ((events & EPOLLOUT) != 0) {
        pthread_mutex_lock(&connection->peer->lock);
        moved = connection->ready && wefti_tcp_send_queued(connection);
        pthread_mutex_unlock(&connection->peer->lock);
    }
    if ((events & ~(uint32_t)EPOLLOUT) != 0 && wefti_tcp_receive(connection)) {
        tcp->favourite = connection->hears ? connection : NULL;
        moved = true;
    }
    return moved;
}

static bool on_event(tcp_t *tcp, const struct epoll_event *event)
{
    tcp_source_t *source = event->data.ptr;
    if (source->fd < 0) {
        return false; /* closed by an event before it */
    }
    switch (source->kind) {
    case TCP_SOURCE_CONNECTION:
        return on_connection(tcp, (tcp_connection_t *)source, event->events);
    case TCP_SOURCE_LISTENER:
        wefti_tcp_listener_ready(tcp, source);
        break;
    case TCP_SOURCE_STRANGER:
        wefti_tcp_stranger_ready(tcp, (tcp_stranger_t *)source);
        break;
    case TCP_SOURCE_ATTEMPT:
        wefti_tcp_attempt_ready(tcp, (tcp_attempt_t *)source);
        break;
    case TCP_SOURCE_BELL:
        on_bell(tcp);
        break;
    case TCP_SOURCE_TIMER:
        on_timer(tcp);
        break;
    }
    return true;
}

static bool look_around(tcp_t *tcp)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    bool moved = false;
    int count = epoll_wait(tcp->epoll_fd, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        moved = on_event(tcp, &events[i]) || moved;
    }
    wefti_tcp_strangers_free(tcp);
    return moved;
}

static bool resume_paused(tcp_t *tcp)
{
    bool moved = false;
    for (uint32_t r = 0; r < tcp->params.world_size && tcp->paused_count > 0; r++) {
        tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[r], memory_order_acquire);
        for (uint32_t i = 0; peer != NULL && i < tcp->sockets; i++) {
            moved = wefti_tcp_receive_resume(&peer->connections[i]) || moved;
        }
    }
    return moved;
}

typedef struct tcp_fault {
    uint32_t rank;
    bool died;
    char text[240];
} tcp_fault_t;

/* Some of the faults to be reported; those that stay are for the next time. */
static uint32_t take_faults(tcp_t *tcp, tcp_fault_t *faults)
{
    uint32_t count = 0;
    tcp->fault_pending = false;
    for (uint32_t r = 0; r < tcp->params.world_size; r++) {
        tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[r], memory_order_acquire);
        if (peer == NULL || !peer->fault_pending) {
            continue;
        }
        if (count == FAULTS_AT_ONCE) {
            tcp->fault_pending = true;
            break;
        }
        peer->fault_pending = false;
        faults[count].rank = r;
        faults[count].died = peer->died;
        memcpy(faults[count++].text, peer->fault, sizeof faults[0].text);
    }
    return count;
}

static bool tcp_progress(void *driver)
{
    tcp_t *tcp = driver;
    tcp_fault_t faults[FAULTS_AT_ONCE];
    uint32_t fault_count = 0;
    bool moved = wefti_tcp_send_held(tcp);
    /* acquire and release: what the last one in here did */
    if (atomic_exchange_explicit(&tcp->busy, true, memory_order_acquire)) {
        return moved;
    }
    bool received = tcp->favourite != NULL && wefti_tcp_receive(tcp->favourite);
    /* where one connection has all there is, looking at it alone is half the work */
    if (tcp->favourite == NULL || (++tcp->polls & (received ? LOOK_AROUND - 1 : 1)) == 0) {
        received = look_around(tcp) || received;
    }
    if (tcp->paused_count > 0) {
        received = resume_paused(tcp) || received;
    }
    wefti_tcp_faults_look(tcp);
    if (tcp->fault_pending) {
        fault_count = take_faults(tcp, faults);
    }
    atomic_store_explicit(&tcp->busy, false, memory_order_release);
    for (uint32_t i = 0; i < fault_count; i++) {
        tcp->params.broken(tcp->params.owner, faults[i].rank, faults[i].died, faults[i].text);
    }
    return moved || received || fault_count > 0;
}

static int tcp_poll_fd(void *driver)
{
    return ((tcp_t *)driver)->epoll_fd;
}

static bool tcp_arm(void *driver)
{
    return !wefti_tcp_send_held(driver);
}

/* Until whoever is in progress is out of it, which is soon. */
static void enter(tcp_t *tcp)
{
    while (atomic_exchange_explicit(&tcp->busy, true, memory_order_acquire)) {
        sched_yield();
    }
}

static void leave(tcp_t *tcp)
{
    atomic_store_explicit(&tcp->busy, false, memory_order_release);
}

/* ---- peers ---- */

static void peer_free(tcp_t *tcp, tcp_peer_t *peer)
{
    const weft_allocator_t *allocator = tcp->params.allocator;
    if (peer == NULL) {
        return;
    }
    wefti_free(allocator, peer->stripes_sent);
    wefti_free(allocator, peer->stripes_landed);
    wefti_free(allocator, peer);
}

static tcp_peer_t *peer_make(tcp_t *tcp, uint32_t rank)
{
    const weft_allocator_t *allocator = tcp->params.allocator;
    tcp_peer_t *peer = wefti_alloc(allocator, sizeof *peer);
    if (peer == NULL) {
        return NULL;
    }
    peer->tcp = tcp;
    peer->rank = rank;
    peer->stripes_sent = wefti_alloc(allocator, WEFTI_LINK_LANES * sizeof *peer->stripes_sent);
    peer->stripes_landed = wefti_alloc(allocator, WEFTI_LINK_LANES * sizeof *peer->stripes_landed);
    if (peer->stripes_sent == NULL || peer->stripes_landed == NULL) {
        peer_free(tcp, peer);
        return NULL;
    }
    for (uint32_t i = 0; i < TCP_SOCKETS_MAX; i++) {
        peer->attempts[i].source.fd = -1;
        peer->attempts[i].peer = peer;
        peer->connections[i].source.fd = -1;
        peer->connections[i].peer = peer;
        peer->connections[i].index = i;
    }
    pthread_mutex_init(&peer->lock, NULL);
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
        atomic_store_explicit(&tcp->peers[rank], peer, memory_order_release);
    }
    pthread_mutex_unlock(&tcp->make_lock);
    return peer;
}

static bool has_left(tcp_peer_t *peer)
{
    pthread_mutex_lock(&peer->lock); /* callers that send change the state as well */
    bool left = peer->state == TCP_PEER_LEFT;
    pthread_mutex_unlock(&peer->lock);
    return left;
}

static void tcp_drop(void *driver, uint32_t rank)
{
    tcp_t *tcp = driver;
    enter(tcp);
    tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[rank], memory_order_acquire);
    if (peer == NULL) {
        peer = wefti_tcp_peer(tcp, rank); /* so that nobody connects by that name */
    }
    if (peer != NULL && !has_left(peer)) {
        wefti_tcp_peer_disconnect(peer, TCP_PEER_FORGOTTEN);
    }
    leave(tcp);
}

/* ---- opening ---- */

static bool open_source(tcp_t *tcp, tcp_source_t *source, tcp_source_kind_t kind, int fd)
{
    *source = (tcp_source_t){kind, fd};
    return fd >= 0 && wefti_tcp_watch(tcp, source, EPOLLIN);
}

static void tcp_close(void *driver, bool forked);

static weft_status_t tcp_open(const wefti_link_params_t *params, void **out_driver, void *out_card)
{
    weft_status_t status;
    *out_driver = NULL;
    tcp_t *tcp = wefti_alloc(params->allocator, sizeof *tcp);
    if (tcp == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    tcp->params = *params;
    tcp->sockets = params->settings->sockets;
    tcp->sockets = tcp->sockets < 1 ? 1 : tcp->sockets;
    tcp->sockets = tcp->sockets > TCP_SOCKETS_MAX ? TCP_SOCKETS_MAX : tcp->sockets;
    tcp->card.sockets = tcp->sockets;
    tcp->bell.fd = tcp->timer.fd = -1;
    for (uint32_t i = 0; i < TCP_ADDRESSES_MAX; i++) {
        tcp->listeners[i].fd = -1;
    }
    pthread_mutex_init(&tcp->make_lock, NULL);
    pthread_mutex_init(&tcp->list_lock, NULL);
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->peers = wefti_alloc(params->allocator, params->world_size * sizeof *tcp->peers);
    if (tcp->peers == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto fail;
    }
    if (tcp->epoll_fd < 0 ||
        !open_source(tcp, &tcp->bell, TCP_SOURCE_BELL, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) ||
        !open_source(tcp, &tcp->timer, TCP_SOURCE_TIMER,
                     timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC))) {
        status = wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "tcp: cannot create descriptors");
        goto fail;
    }
    WEFT_TRY(status, wefti_tcp_congestion_check(params->settings), fail);
    WEFT_TRY(status, wefti_tcp_addresses_find(tcp), fail);
    WEFT_TRY(status, wefti_tcp_listen(tcp), fail);
    wefti_tcp_network_name(tcp->card.network);
    memcpy(out_card, &tcp->card, sizeof tcp->card);
    *out_driver = tcp;
    return WEFT_OK;
fail:
    tcp_close(tcp, false);
    return status;
}

static weft_status_t tcp_join(void *driver, const uint8_t *cards, const bool *peers)
{
    tcp_t *tcp = driver;
    size_t bytes = tcp->params.world_size * sizeof *tcp->cards;
    enter(tcp);
    if (tcp->cards == NULL) {
        tcp->cards = wefti_alloc(tcp->params.allocator, bytes);
    }
    if (tcp->cards != NULL) {
        memcpy(tcp->cards, cards, bytes);
    }
    leave(tcp);
    if (tcp->cards == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < tcp->params.world_size; r++) {
        if (peers[r] && tcp->cards[r].sockets != tcp->sockets) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "WEFT_SOCKETS differs: %u on rank %u, %u on rank %u", tcp->sockets,
                               tcp->params.rank, tcp->cards[r].sockets, r);
        }
    }
    return WEFT_OK;
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
    /* release: base and the memory are there for whoever sees the size */
    atomic_store_explicit(&tcp->region_bytes, to, memory_order_release);
    return WEFT_OK;
}

static weft_status_t tcp_grown(void *driver, const uint8_t *keys)
{
    (void)driver;
    (void)keys;
    return WEFT_OK;
}

/* ---- telling ---- */

static const char *interface_of(const tcp_t *tcp, const wefti_address_t *address)
{
    for (uint32_t i = 0; i < tcp->card.address_count; i++) {
        if (wefti_address_same_host(&tcp->card.addresses[i].address, address)) {
            return tcp->card.addresses[i].name;
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
    uint32_t count = tcp->cards != NULL ? wefti_tcp_candidates(tcp, rank, 0, ways) : 0;
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

/* So that the end of the connections is no death. Sent where there is room; all that matters was
 * flushed before. */
static void say_goodbye(tcp_peer_t *peer)
{
    tcp_frame_t frame = {.kind = TCP_BYE};
    uint8_t rest[4096];
    pthread_mutex_lock(&peer->lock);
    for (uint32_t i = 0; i < peer->tcp->sockets; i++) {
        tcp_connection_t *connection = &peer->connections[i];
        if (connection->ready && wefti_tcp_queue_frame(connection, &frame, NULL, 0) == WEFT_OK) {
            (void)wefti_tcp_send_queued(connection);
        }
    }
    for (uint32_t i = 0; i < peer->tcp->sockets; i++) {
        tcp_connection_t *connection = &peer->connections[i];
        if (connection->ready) {
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

static void close_peer(tcp_t *tcp, tcp_peer_t *peer, bool forked)
{
    if (!forked) {
        say_goodbye(peer);
        wefti_tcp_peer_disconnect(peer, TCP_PEER_FORGOTTEN);
    }
    for (uint32_t i = 0; i < TCP_SOCKETS_MAX; i++) {
        tcp_connection_t *connection = &peer->connections[i];
        wefti_tcp_source_close(tcp, &connection->source);
        wefti_tcp_source_close(tcp, &peer->attempts[i].source);
        if (!forked) { /* a child may have been made in the middle of anything */
            wefti_tcp_queue_deinit(connection);
            wefti_free(tcp->params.allocator, connection->in);
        }
    }
    if (!forked) {
        pthread_mutex_destroy(&peer->lock);
        peer_free(tcp, peer);
    }
}

static void tcp_close(void *driver, bool forked)
{
    tcp_t *tcp = driver;
    const weft_allocator_t *allocator = tcp->params.allocator;
    if (forked) { /* the epoll set is the parent's: the child takes nothing out of it */
        close(tcp->epoll_fd);
        tcp->epoll_fd = -1;
    } else {
        enter(tcp);
        wefti_tcp_strangers_close(tcp);
    }
    for (uint32_t r = 0; tcp->peers != NULL && r < tcp->params.world_size; r++) {
        tcp_peer_t *peer = atomic_load_explicit(&tcp->peers[r], memory_order_acquire);
        if (peer != NULL) {
            close_peer(tcp, peer, forked);
        }
    }
    for (uint32_t i = 0; i < TCP_ADDRESSES_MAX; i++) {
        wefti_tcp_source_close(tcp, &tcp->listeners[i]);
    }
    for (tcp_stranger_t *stranger = tcp->strangers; stranger != NULL; stranger = stranger->next) {
        wefti_tcp_source_close(tcp, &stranger->source);
    }
    wefti_tcp_source_close(tcp, &tcp->bell);
    wefti_tcp_source_close(tcp, &tcp->timer);
    if (tcp->epoll_fd >= 0) {
        close(tcp->epoll_fd);
    }
    if (forked) {
        return; /* its memory goes with the child: locks and lists may be anyhow */
    }
    pthread_mutex_destroy(&tcp->make_lock);
    pthread_mutex_destroy(&tcp->list_lock);
    wefti_free(allocator, tcp->peers);
    wefti_free(allocator, tcp->cards);
    wefti_free(allocator, tcp);
}

const wefti_link_driver_t wefti_link_tcp = {
    .name = "tcp",
    .caps = WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL,
    .address_bytes = sizeof(tcp_card_t),
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
