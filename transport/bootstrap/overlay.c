/* SPDX-License-Identifier: Apache-2.0 */
/* The overlay as a whole: opening by a rendezvous, progress, closing. */
#include "transport/bootstrap/overlay.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/bootstrap/rendezvous.h"

#define SECOND_NS 1000000000ull
/* Longest frame between authenticated ranks. */
#define FRAME_BYTES ((size_t)1 << 31)
#define TIMER_TAG UINT32_MAX
#define PROCESS_TAG 0x40000000u /* and the link */
/* How long closing may take to send what is queued. */
#define FAREWELL_NS SECOND_NS

/* ---- opening ---- */

/* An unreachable host answers no probes: the kernel ends its connections in time. */
static void set_liveness(int fd, uint64_t timeout_ns)
{
    const int yes = 1;
    if (timeout_ns == 0) {
        return;
    }
    uint64_t ms = timeout_ns / 1000000;
    int seconds = (int)(timeout_ns / SECOND_NS < 32000 ? timeout_ns / SECOND_NS : 32000);
    int idle = seconds / 4 > 0 ? seconds / 4 : 1;
    int interval = seconds / 8 > 0 ? seconds / 8 : 1;
    int count = 3;
    /* Checked when a probe is due, so a little earlier than the time allowed. */
    uint64_t user_ms = ms * 3 / 4;
    unsigned int user = (unsigned int)(user_ms < 86400000u ? user_ms : 86400000u);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof user);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* Rank 0 listens. If its port is in use, that may be another rank 0. */
static weft_status_t hold_place(wefti_rendezvous_t *rendezvous)
{
    wefti_place_t *place = &rendezvous->place;
    for (;;) {
        weft_status_t status = wefti_place_open(place);
        if (status != WEFT_AGAIN) {
            return status;
        }
        char why[sizeof place->why];
        memcpy(why, place->why, sizeof why);
        WEFT_RETURN_IF_ERROR(place->count > 0 ? wefti_rendezvous_try(rendezvous) : WEFT_AGAIN);
        if (wefti_now_ns() >= rendezvous->deadline_ns) {
            return wefti_error(WEFT_ERR_TIMEOUT, "rank 0: cannot listen at %s: %s", place->text,
                               why);
        }
        if (wefti_interrupted(&rendezvous->params->interrupt)) {
            return wefti_interrupt_error(0);
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static weft_status_t meet(wefti_rendezvous_t *rendezvous)
{
    const wefti_overlay_params_t *params = rendezvous->params;
    WEFT_RETURN_IF_ERROR(wefti_place_init(&rendezvous->place, params->job, params->settings));
    if (params->job->rank != 0) {
        return wefti_rendezvous_join(rendezvous);
    }
    WEFT_RETURN_IF_ERROR(hold_place(rendezvous));
    return wefti_rendezvous_lead(rendezvous);
}

/* The mesh's connections become links. */
static weft_status_t take_links(wefti_overlay_t *overlay, wefti_mesh_t *mesh)
{
    memcpy(overlay->key, mesh->key, sizeof overlay->key);
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        link->rank = mesh->peers[i].rank;
        link->wire = mesh->peers[i].wire;
        link->wire.in_limit = FRAME_BYTES;
        link->pid_fd = -1;
        link->up = true;
        mesh->peers[i].wire = (wefti_wire_t){.fd = -1};
        overlay->link_count = i + 1;
        set_liveness(link->wire.fd, overlay->params.settings->link_timeout_ns);
        WEFT_RETURN_IF_ERROR(
            wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, link->wire.fd, EPOLLIN, i));
    }
    return WEFT_OK;
}

static weft_status_t prepare(wefti_overlay_t *overlay)
{
    overlay->gone_words = (overlay->world_size + 63) / 64;
    overlay->seen =
        wefti_alloc(overlay->params.allocator, overlay->world_size * sizeof *overlay->seen);
    overlay->gone =
        wefti_alloc(overlay->params.allocator, 3 * overlay->gone_words * sizeof(uint64_t));
    overlay->links =
        wefti_alloc(overlay->params.allocator, WEFTI_MESH_PEERS_MAX * sizeof *overlay->links);
    if (overlay->seen == NULL || overlay->gone == NULL || overlay->links == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    overlay->dead = overlay->gone + overlay->gone_words;
    overlay->gone_reported = overlay->dead + overlay->gone_words;
    overlay->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    overlay->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    overlay->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (overlay->epoll_fd < 0 || overlay->timer_fd < 0 || overlay->wake_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "rank %u: cannot create descriptors",
                                 overlay->rank);
    }
    return wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, overlay->timer_fd, EPOLLIN, TIMER_TAG);
}

static weft_status_t check_params(const wefti_overlay_params_t *params)
{
    const wefti_job_t *job = params->job;
    if (job->world_size < 2 || job->rank >= job->world_size ||
        job->world_size > WEFTI_MESH_RANKS_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid rank %u for world size %u",
                           job->rank, job->world_size);
    }
    return WEFT_OK;
}

static void overlay_free(wefti_overlay_t *overlay)
{
    const weft_allocator_t *allocator = overlay->params.allocator;
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        wefti_wire_deinit(&link->wire);
        if (link->pid_fd >= 0) {
            close(link->pid_fd);
        }
        while (link->parcels != NULL) {
            wefti_parcel_t *next = link->parcels->next;
            wefti_free(allocator, link->parcels);
            link->parcels = next;
        }
    }
    wefti_overlay_stop_serving(overlay);
    const int fds[3] = {overlay->epoll_fd, overlay->timer_fd, overlay->wake_fd};
    for (int i = 0; i < 3; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    wefti_free(allocator, overlay->links);
    wefti_free(allocator, overlay->seen);
    wefti_free(allocator, overlay->gone);
    wefti_forget(overlay->key, sizeof overlay->key);
    pthread_mutex_destroy(&overlay->lock);
    wefti_free(allocator, overlay);
}

weft_status_t wefti_overlay_open(const wefti_overlay_params_t *params,
                                 wefti_overlay_t **out_overlay)
{
    *out_overlay = NULL;
    WEFT_RETURN_IF_ERROR(check_params(params));
    wefti_overlay_t *overlay = wefti_alloc(params->allocator, sizeof *overlay);
    wefti_rendezvous_t *rendezvous = wefti_alloc(params->allocator, sizeof *rendezvous);
    if (overlay == NULL || rendezvous == NULL) {
        wefti_free(params->allocator, overlay);
        wefti_free(params->allocator, rendezvous);
        return WEFT_ERR_NO_MEMORY;
    }
    *overlay = (wefti_overlay_t){.rank = params->job->rank,
                                 .world_size = params->job->world_size,
                                 .params = *params,
                                 .epoll_fd = -1,
                                 .timer_fd = -1,
                                 .wake_fd = -1,
                                 .ask_fd = -1};
    for (uint32_t i = 0; i < WEFTI_ASKERS; i++) {
        overlay->askers[i].wire.fd = -1;
    }
    overlay->params.job = NULL;
    pthread_mutex_init(&overlay->lock, NULL);
    wefti_helper_init(&overlay->answering, wefti_overlay_answer, overlay);
    uint64_t timeout = params->settings->connect_timeout_ns, now = wefti_now_ns();
    *rendezvous = (wefti_rendezvous_t){
        .params = params,
        .deadline_ns = timeout == 0 || timeout > UINT64_MAX / 2 ? UINT64_MAX : now + timeout,
        .place.listener = -1,
        .mesh = {.listener = -1, .epoll_fd = -1}};
    weft_status_t status;
    WEFT_TRY(status, prepare(overlay), out);
    WEFT_TRY(status, meet(rendezvous), out);
    WEFT_TRY(status, take_links(overlay, &rendezvous->mesh), out);
    overlay->address = rendezvous->address;
    wefti_address_text(&overlay->address.addresses[0], false, overlay->local_address);
    wefti_log(params->log, WEFT_LOG_LEVEL_DEBUG,
              "rank %u of %u: rendezvous at %s took %.3f s, own address %s", overlay->rank,
              overlay->world_size, rendezvous->place.text, (double)(wefti_now_ns() - now) * 1e-9,
              overlay->local_address);
    *out_overlay = overlay;
out:
    wefti_mesh_deinit(&rendezvous->mesh);
    wefti_place_deinit(&rendezvous->place);
    wefti_free(params->allocator, rendezvous);
    if (status < 0) {
        overlay_free(overlay);
    }
    return status;
}

const uint8_t *wefti_overlay_key(const wefti_overlay_t *overlay)
{
    return overlay->key;
}

const char *wefti_overlay_local_address(const wefti_overlay_t *overlay)
{
    return overlay->local_address;
}

const wefti_endpoint_address_t *wefti_overlay_address(const wefti_overlay_t *overlay)
{
    return &overlay->address;
}

void wefti_overlay_watch_process(wefti_overlay_t *overlay, uint32_t rank, pid_t pid)
{
#ifdef SYS_pidfd_open
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        if (link->rank == rank && link->pid_fd < 0) {
            link->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
            if (link->pid_fd >= 0) { /* else its connection is all there is */
                (void)wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, link->pid_fd, EPOLLIN,
                                  PROCESS_TAG | i);
            }
        }
    }
#else
    (void)overlay, (void)rank, (void)pid;
#endif
}

int wefti_overlay_poll_fd(const wefti_overlay_t *overlay)
{
    return overlay->epoll_fd;
}

/* ---- progress ---- */

/* Whether to watch for the socket to take more. */
static void set_writing(wefti_overlay_t *overlay, wefti_overlay_link_t *link, bool writing)
{
    if (link->up && link->writing != writing) {
        link->writing = writing;
        wefti_watch(overlay->epoll_fd, EPOLL_CTL_MOD, link->wire.fd,
                    EPOLLIN | (writing ? EPOLLOUT : 0u), (uint32_t)(link - overlay->links));
    }
}

void wefti_overlay_send(wefti_overlay_t *overlay, wefti_overlay_link_t *link, uint32_t kind,
                        const void *head, size_t head_bytes, const void *data, size_t bytes)
{
    if (link->up) {
        weft_status_t status = wefti_wire_send(&link->wire, kind, head, head_bytes, data, bytes);
        set_writing(overlay, link, status == WEFT_AGAIN);
    }
}

static void call_back(wefti_overlay_t *overlay, const wefti_event_t *event)
{
    const wefti_overlay_params_t *params = &overlay->params;
    uint32_t turn;
    switch (event->kind) {
    case WEFTI_EVENT_FLOOD:
        params->received(params->user, event->rank, event->flood_kind, event->data, event->bytes);
        break;
    case WEFTI_EVENT_LEFT:
        params->left(params->user, event->rank);
        break;
    case WEFTI_EVENT_DIED:
        params->died(params->user, event->rank, (const char *)event->data);
        break;
    case WEFTI_EVENT_ASKED:
        memcpy(&turn, event->data, sizeof turn);
        wefti_overlay_asked(overlay, event->rank, event->sequence, turn);
        break;
    }
}

/* One frame, or the end of the link. False: nothing more to receive. */
static bool receive_frame(wefti_overlay_t *overlay, wefti_overlay_link_t *link,
                          wefti_event_t *event, bool *has_event)
{
    wefti_frame_t frame;
    if (!link->up) {
        return false;
    }
    weft_status_t status = wefti_wire_receive(&link->wire, &frame);
    if (status == WEFT_AGAIN) {
        return false;
    }
    if (status == WEFT_OK) {
        switch (frame.kind) {
        case WEFTI_FLOOD:
            status = wefti_overlay_receive_flood(overlay, link, &frame, event, has_event);
            break;
        case WEFTI_GATHER:
            status = wefti_overlay_receive_parcel(overlay, link, &frame);
            break;
        case WEFTI_GONE:
        case WEFTI_BYE:
            status = wefti_overlay_receive_gone(overlay, link, &frame);
            break;
        case WEFTI_MOVED:
            status = wefti_overlay_receive_moved(overlay, link, &frame);
            break;
        case WEFTI_REPLY:
            status = wefti_overlay_receive_answer(overlay, &frame);
            break;
        default:
            status = WEFT_ERR_FORMAT;
        }
    }
    if (status < 0) {
        *has_event = wefti_overlay_lost(overlay, link, event);
    }
    return link->up || *has_event;
}

/* Everything that has arrived over a link. Calls back between frames, without the lock. */
static void receive_link(wefti_overlay_t *overlay, wefti_overlay_link_t *link, wefti_event_t *event)
{
    for (bool more = true; more;) {
        bool has_event = false;
        pthread_mutex_lock(&overlay->lock);
        more = receive_frame(overlay, link, event, &has_event);
        pthread_mutex_unlock(&overlay->lock);
        if (has_event) {
            call_back(overlay, event);
        }
    }
}

/* The link's process has ended, and all that it sent has been received: without a goodbye it died,
 * although a forked child of it may keep the connection. */
static void process_ended(wefti_overlay_t *overlay, wefti_overlay_link_t *link,
                          wefti_event_t *event)
{
    pthread_mutex_lock(&overlay->lock);
    /* closing is not enough: a forked child of this process has a copy */
    (void)epoll_ctl(overlay->epoll_fd, EPOLL_CTL_DEL, link->pid_fd, NULL);
    close(link->pid_fd);
    link->pid_fd = -1;
    bool has_event = link->up && wefti_overlay_lost(overlay, link, event);
    pthread_mutex_unlock(&overlay->lock);
    if (has_event) {
        call_back(overlay, event);
    }
}

static void write_link(wefti_overlay_t *overlay, wefti_overlay_link_t *link)
{
    pthread_mutex_lock(&overlay->lock);
    if (link->up && link->writing) {
        set_writing(overlay, link, wefti_wire_flush(&link->wire) == WEFT_AGAIN);
    }
    pthread_mutex_unlock(&overlay->lock);
}

void wefti_overlay_progress(wefti_overlay_t *overlay)
{
    struct epoll_event events[WEFTI_MESH_PEERS_MAX];
    wefti_event_t event;
    /* acquire and release: what the last one did here is seen by the next */
    if (atomic_exchange_explicit(&overlay->busy, 1, memory_order_acquire) != 0) {
        return;
    }
    int count = epoll_wait(overlay->epoll_fd, events, WEFTI_MESH_PEERS_MAX, 0);
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        if (tag == TIMER_TAG) {
            uint64_t expirations;
            ssize_t got = read(overlay->timer_fd, &expirations, sizeof expirations);
            (void)got;
            continue;
        }
        if ((tag & WEFTI_ASK_TAG) != 0) {
            wefti_overlay_serve(overlay, tag & ~WEFTI_ASK_TAG);
            continue;
        }
        wefti_overlay_link_t *link = &overlay->links[tag & ~PROCESS_TAG];
        write_link(overlay, link);
        receive_link(overlay, link, &event);
        if ((tag & PROCESS_TAG) != 0) {
            process_ended(overlay, link, &event);
        }
    }
    if (count > 0) {
        bool more = true;
        while (more) {
            pthread_mutex_lock(&overlay->lock);
            more = wefti_overlay_next_gone(overlay, &event);
            pthread_mutex_unlock(&overlay->lock);
            if (more) {
                call_back(overlay, &event);
            }
        }
        pthread_mutex_lock(&overlay->lock);
        wefti_overlay_send_gone(overlay);
        pthread_mutex_unlock(&overlay->lock);
    }
    atomic_store_explicit(&overlay->busy, 0, memory_order_release);
}

/* ---- closing ---- */

static bool unsent(const wefti_overlay_t *overlay)
{
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        if (overlay->links[i].up && wefti_wire_unsent(&overlay->links[i].wire)) {
            return true;
        }
    }
    return false;
}

/* Sends what is queued, and the goodbye. What still arrives is dropped. */
static void take_leave(wefti_overlay_t *overlay)
{
    uint64_t until = wefti_now_ns() + FAREWELL_NS;
    wefti_overlay_send_goodbye(overlay);
    while (unsent(overlay) && wefti_now_ns() < until) {
        struct pollfd fds[WEFTI_MESH_PEERS_MAX];
        for (uint32_t i = 0; i < overlay->link_count; i++) {
            wefti_overlay_link_t *link = &overlay->links[i];
            bool wait = link->up && wefti_wire_unsent(&link->wire);
            if (wait && wefti_bit(overlay->dead, link->rank)) { /* its sockets may live on */
                link->up = wait = false;
            }
            if (wait && wefti_wire_flush(&link->wire) < 0) {
                link->up = wait = false;
            }
            fds[i] = (struct pollfd){.fd = wait ? link->wire.fd : -1, .events = POLLOUT};
        }
        poll(fds, overlay->link_count, 20);
    }
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        uint8_t rest[4096];
        int fd = overlay->links[i].wire.fd;
        if (fd < 0) {
            continue;
        }
        /* Closing with unread data would discard what was sent last. */
        shutdown(fd, SHUT_WR);
        while (recv(fd, rest, sizeof rest, 0) > 0) {
        }
    }
}

void wefti_overlay_close(wefti_overlay_t *overlay, bool forked)
{
    if (overlay == NULL) {
        return;
    }
    wefti_helper_deinit(&overlay->answering, forked);
    if (!forked) {
        take_leave(overlay);
    }
    overlay_free(overlay);
}
