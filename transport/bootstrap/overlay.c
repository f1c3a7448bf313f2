/* SPDX-License-Identifier: Apache-2.0 */
/* The overlay as a whole: opening by way of the rendezvous, progress, closing. */
#include "transport/bootstrap/overlay.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/bootstrap/meet.h"

#define SECOND_NS 1000000000ull
/* Longest frame between ranks that have proved themselves. */
#define FRAME_BYTES ((size_t)1 << 31)
#define TIMER_TAG UINT32_MAX
/* How long closing may take to get the last words out. */
#define FAREWELL_NS (2 * SECOND_NS)

/* ---- opening ---- */

/* A host that is cut off answers no probes: the kernel gives its connections up in time. */
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

static weft_status_t watch(const wefti_overlay_t *overlay, int operation, int fd, uint32_t events,
                           uint32_t tag)
{
    struct epoll_event event = {.events = events, .data.u32 = tag};
    return epoll_ctl(overlay->epoll_fd, operation, fd, &event) == 0
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_ctl failed");
}

/* Rank 0 opens the place; while it is taken, whoever holds it may be another rank 0. */
static weft_status_t hold_place(wefti_meeting_t *meeting)
{
    for (;;) {
        weft_status_t status = wefti_place_open(&meeting->place);
        if (status != WEFT_AGAIN) {
            return status;
        }
        char why[sizeof meeting->place.why];
        memcpy(why, meeting->place.why, sizeof why);
        status = meeting->place.count > 0 ? wefti_meet_look(meeting) : WEFT_AGAIN;
        if (status < 0) {
            return status;
        }
        if (wefti_now_ns() >= meeting->deadline_ns) {
            return wefti_error(WEFT_ERR_TIMEOUT, "rank 0: cannot listen at %s: %s",
                               meeting->place.text, why);
        }
        if (wefti_interrupted(&meeting->interrupt)) {
            return wefti_interrupt_error(meeting->rank);
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static weft_status_t meet(wefti_overlay_t *overlay, wefti_meeting_t *meeting,
                          const wefti_overlay_params_t *params)
{
    WEFT_RETURN_IF_ERROR(wefti_place_init(&meeting->place, params->job, params->settings));
    WEFT_RETURN_IF_ERROR(wefti_mesh_init(&meeting->mesh, overlay->rank, overlay->world_size,
                                         overlay->log, overlay->allocator));
    if (overlay->rank == 0) {
        WEFT_RETURN_IF_ERROR(hold_place(meeting));
        WEFT_RETURN_IF_ERROR(wefti_meet_host(meeting));
    } else {
        WEFT_RETURN_IF_ERROR(wefti_meet_guest(meeting));
    }
    return WEFT_OK;
}

/* The mesh's connections become links. */
static weft_status_t take_links(wefti_overlay_t *overlay, wefti_mesh_t *mesh)
{
    memcpy(overlay->key, mesh->key, sizeof overlay->key);
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        link->rank = mesh->peers[i].rank;
        link->wire = mesh->peers[i].shake.wire;
        link->wire.in_limit = FRAME_BYTES;
        link->up = true;
        link->last = &link->first;
        mesh->peers[i].shake.wire = (wefti_wire_t){.fd = -1};
        overlay->link_count = i + 1;
        set_liveness(link->wire.fd, overlay->settings->link_timeout_ns);
        weft_status_t status = watch(overlay, EPOLL_CTL_ADD, link->wire.fd, EPOLLIN, i);
        if (status < 0) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status_t prepare(wefti_overlay_t *overlay)
{
    overlay->gone_words = (overlay->world_size + 63) / 64;
    overlay->seen = wefti_alloc(overlay->allocator, overlay->world_size * sizeof *overlay->seen);
    overlay->gone = wefti_alloc(overlay->allocator, 3 * overlay->gone_words * sizeof(uint64_t));
    overlay->links = wefti_alloc(overlay->allocator, WEFTI_MESH_PEERS_MAX * sizeof *overlay->links);
    if (overlay->seen == NULL || overlay->gone == NULL || overlay->links == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    overlay->dead = overlay->gone + overlay->gone_words;
    overlay->gone_told = overlay->dead + overlay->gone_words;
    overlay->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    overlay->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    overlay->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (overlay->epoll_fd < 0 || overlay->timer_fd < 0 || overlay->wake_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "rank %u: cannot create descriptors",
                                 overlay->rank);
    }
    return watch(overlay, EPOLL_CTL_ADD, overlay->timer_fd, EPOLLIN, TIMER_TAG);
}

static weft_status_t check_params(const wefti_overlay_params_t *params)
{
    const wefti_job_t *job = params->job;
    if (job->world_size < 2 || job->rank >= job->world_size ||
        job->world_size > 1u << (WEFTI_MESH_PEERS_MAX / 2 - 1)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid rank %u for world size %u",
                           job->rank, job->world_size);
    }
    return WEFT_OK;
}

static void overlay_free(wefti_overlay_t *overlay)
{
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        wefti_wire_deinit(&link->wire);
        while (link->first != NULL) {
            wefti_parcel_t *next = link->first->next;
            wefti_free(overlay->allocator, link->first);
            link->first = next;
        }
    }
    const int fds[3] = {overlay->epoll_fd, overlay->timer_fd, overlay->wake_fd};
    for (int i = 0; i < 3; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    wefti_free(overlay->allocator, overlay->links);
    wefti_free(overlay->allocator, overlay->seen);
    wefti_free(overlay->allocator, overlay->gone);
    wefti_forget(overlay->key, sizeof overlay->key);
    pthread_mutex_destroy(&overlay->lock);
    wefti_free(overlay->allocator, overlay);
}

weft_status_t wefti_overlay_open(const wefti_overlay_params_t *params,
                                 wefti_overlay_t **out_overlay)
{
    *out_overlay = NULL;
    weft_status_t status = check_params(params);
    if (status < 0) {
        return status;
    }
    wefti_overlay_t *overlay = wefti_alloc(params->allocator, sizeof *overlay);
    wefti_meeting_t *meeting = wefti_alloc(params->allocator, sizeof *meeting);
    if (overlay == NULL || meeting == NULL) {
        wefti_free(params->allocator, overlay);
        wefti_free(params->allocator, meeting);
        return WEFT_ERR_NO_MEMORY;
    }
    *overlay = (wefti_overlay_t){.rank = params->job->rank,
                                 .world_size = params->job->world_size,
                                 .settings = params->settings,
                                 .log = params->log,
                                 .allocator = params->allocator,
                                 .user = params->user,
                                 .told = params->told,
                                 .left = params->left,
                                 .died = params->died,
                                 .epoll_fd = -1,
                                 .timer_fd = -1,
                                 .wake_fd = -1};
    pthread_mutex_init(&overlay->lock, NULL);
    uint64_t timeout = params->settings->connect_timeout_ns, now = wefti_now_ns();
    *meeting = (wefti_meeting_t){
        .rank = overlay->rank,
        .world_size = overlay->world_size,
        .settings = params->settings,
        .log = params->log,
        .allocator = params->allocator,
        .interrupt = params->interrupt,
        .began_ns = now,
        .deadline_ns = timeout == 0 || timeout > UINT64_MAX / 2 ? UINT64_MAX : now + timeout,
        .place.listener = -1,
        .mesh = {.listener = -1, .epoll_fd = -1}};
    WEFT_TRY(status, prepare(overlay), out);
    WEFT_TRY(status, meet(overlay, meeting, params), out);
    WEFT_TRY(status, take_links(overlay, &meeting->mesh), out);
    wefti_address_text(&meeting->local, false, overlay->local_address);
    overlay->meeting_sent = meeting->sent;
    overlay->meeting_received = meeting->received;
    wefti_log(overlay->log, WEFT_LOG_LEVEL_DEBUG,
              "rank %u of %u: rendezvous at %s took %.3f s, own address %s", overlay->rank,
              overlay->world_size, meeting->place.text,
              (double)(wefti_now_ns() - meeting->began_ns) * 1e-9, overlay->local_address);
    *out_overlay = overlay;
out:
    wefti_mesh_deinit(&meeting->mesh);
    wefti_place_deinit(&meeting->place);
    wefti_free(params->allocator, meeting);
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

int wefti_overlay_poll_fd(const wefti_overlay_t *overlay)
{
    return overlay->epoll_fd;
}

void wefti_overlay_stats(const wefti_overlay_t *overlay, uint64_t *out_sent, uint64_t *out_received)
{
    *out_sent = overlay->meeting_sent;
    *out_received = overlay->meeting_received;
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        *out_sent += overlay->links[i].wire.sent;
        *out_received += overlay->links[i].wire.received;
    }
}

/* ---- progress ---- */

/* The socket took all, or not: be told when it takes more. */
static void set_writing(wefti_overlay_t *overlay, wefti_overlay_link_t *link, bool writing)
{
    if (link->up && link->writing != writing) {
        link->writing = writing;
        watch(overlay, EPOLL_CTL_MOD, link->wire.fd, EPOLLIN | (writing ? EPOLLOUT : 0u),
              (uint32_t)(link - overlay->links));
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
    switch (event->kind) {
    case WEFTI_EVENT_TOLD:
        if (overlay->told != NULL) {
            overlay->told(overlay->user, event->rank, event->what, event->data, event->bytes);
        }
        break;
    case WEFTI_EVENT_LEFT:
        if (overlay->left != NULL) {
            overlay->left(overlay->user, event->rank);
        }
        break;
    case WEFTI_EVENT_DIED:
        if (overlay->died != NULL) {
            overlay->died(overlay->user, event->rank, (const char *)event->data);
        }
        break;
    }
}

/* One frame, or the end of the link. False: nothing more to hear. */
static bool hear_frame(wefti_overlay_t *overlay, wefti_overlay_link_t *link, wefti_event_t *event,
                       bool *has_event)
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
            status = wefti_overlay_hear_flood(overlay, link, &frame, event, has_event);
            break;
        case WEFTI_GATHER:
            status = wefti_overlay_hear_parcel(overlay, link, &frame);
            break;
        case WEFTI_GONE:
        case WEFTI_BYE:
            status = wefti_overlay_hear_gone(overlay, link, &frame);
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

/* Everything that has come over a link. Calls back between frames, with the lock let go. */
static void hear_link(wefti_overlay_t *overlay, wefti_overlay_link_t *link, wefti_event_t *event)
{
    for (bool more = true; more;) {
        bool has_event = false;
        pthread_mutex_lock(&overlay->lock);
        more = hear_frame(overlay, link, event, &has_event);
        pthread_mutex_unlock(&overlay->lock);
        if (has_event) {
            call_back(overlay, event);
        }
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
        write_link(overlay, &overlay->links[tag]);
        hear_link(overlay, &overlay->links[tag], &event);
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
        wefti_overlay_tell_gone(overlay);
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

/* Gets the last words out; what still comes in is of no interest any more. */
static void take_leave(wefti_overlay_t *overlay)
{
    uint64_t until = wefti_now_ns() + FAREWELL_NS;
    wefti_overlay_say_goodbye(overlay);
    while (unsent(overlay) && wefti_now_ns() < until) {
        struct pollfd fds[WEFTI_MESH_PEERS_MAX];
        for (uint32_t i = 0; i < overlay->link_count; i++) {
            wefti_overlay_link_t *link = &overlay->links[i];
            bool wait = link->up && wefti_wire_unsent(&link->wire);
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
        /* Closing with something unread would take back what was sent last. */
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
    if (!forked) {
        take_leave(overlay);
    }
    overlay_free(overlay);
}
