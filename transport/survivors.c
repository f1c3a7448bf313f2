/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Survivors of a world agree on who is left. The one with the lowest number that is not gone leads:
 *
 *   others   connect to it, prove the members' key, ARRIVED, and wait
 *   leader   waits until each member has arrived or is gone, then sends MEMBERS to those that came
 *   all      keep the connection until they are in the new world (JOINED)
 *
 * A member is gone when it no longer listens, its process has ended, or its host does not answer. If
 * the leader goes, the others turn to the next one. If anyone goes before it has joined, all give up
 * joining and meet again, at a later generation.
 */
#include "transport/survivors.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/bootstrap/rendezvous.h"
#include "transport/bootstrap/service.h"
#include "transport/hub.h"
#include "transport/shm.h"
#include "transport/socket/accept.h"

/* Of connecting to one of a member's addresses. */
#define CONNECT_NS 1000000000ull
/* A member none of whose addresses answers is gone after this time, or WEFT_LINK_TIMEOUT. */
#define SILENCE_NS 5000000000ull
#define PATIENCE_NS 5000000000ull
#define SLICE_MS 5
/* A leader that has not answered for so long may be on a host that is off. */
#define SILENT_NS 100000000ull
#define SPARE_PENDING 64u
#define EVENTS 32

typedef struct arrived {
    uint32_t number, generation;
} arrived_t;

typedef struct members {
    uint32_t generation, count;
    uint32_t tcp; /* where to meet: 0: on this host */
    uint32_t numbers[];
} members_t;

/* What this rank knows of a member. */
typedef struct peer {
    bool gone, late, arrived, connected;
    int fd, pid_fd;     /* the connection that watches it or leads to it; -1: none */
    uint32_t at;        /* which of its addresses */
    uint32_t refusals;  /* by those before it */
    uint64_t dialed_ns; /* the first attempt since it was connected last; 0: none */
    uint64_t until_ns;  /* the end of the attempt at hand */
    wefti_wire_t wire;  /* arrived here */
} peer_t;

struct wefti_meeting {
    wefti_service_t service; /* of the rendezvous in the new world */
    const wefti_membership_t *membership;
    wefti_endpoint_t *former;
    uint32_t own; /* this rank in the former world */
    uint32_t generation;
    uint64_t deadline_ns;
    peer_t *peers; /* [former world size] */

    members_t *members;
    wefti_job_t job;
    char address[64];

    pthread_mutex_t lock; /* the connections to the leader, or to all that arrived */
    wefti_wire_t *links;
    uint32_t link_count;
    bool broken;
    char notice[WEFTI_NOTICE_BYTES];
};

static size_t members_bytes(uint32_t count)
{
    return sizeof(members_t) + count * sizeof(uint32_t);
}

/* ---- reaching a member ---- */

static void hang_up(peer_t *peer)
{
    wefti_close_fd(&peer->fd);
    wefti_close_fd(&peer->pid_fd);
    peer->connected = false;
}

/* At an abstract address, by the process that listens there. */
static bool dial_here(peer_t *peer, const wefti_member_t *member)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(member->name);
    pid_t pid;
    memcpy(address.sun_path + 1, member->name, length);
    peer->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer->fd < 0 ||
        connect(peer->fd, (const struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) != 0) {
        bool later = peer->fd < 0 || errno == EAGAIN || errno == EINTR;
        hang_up(peer);
        return later;
    }
    peer->connected = true;
    if (!wefti_shm_peer_credentials(peer->fd, &pid)) {
        return false;
    }
#ifdef SYS_pidfd_open
    if (pid != getpid()) { /* a forked child may keep the socket of a process that has ended */
        peer->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
        return peer->pid_fd >= 0 || errno != ESRCH;
    }
#endif
    return true;
}

/* error: of the attempt. Only a refusal tells that no process listens. */
static void dial_next(peer_t *peer, int error)
{
    hang_up(peer);
    peer->at++;
    peer->refusals += error == ECONNREFUSED;
}

static void dial_first(peer_t *peer)
{
    peer->at = peer->refusals = 0;
}

/* After all addresses in vain. One of them may be another host's, which refuses. */
static bool is_gone(const wefti_meeting_t *meeting, const peer_t *peer)
{
    uint64_t link_ns = meeting->former->settings->link_timeout_ns;
    uint64_t patience = link_ns != 0 && link_ns < SILENCE_NS ? link_ns : SILENCE_NS;
    return (peer->at > 0 && peer->refusals == peer->at) ||
           wefti_now_ns() - peer->dialed_ns > patience;
}

static void look_at_connection(peer_t *peer)
{
    struct pollfd polls[2] = {{.fd = peer->fd, .events = POLLIN | POLLRDHUP},
                              {.fd = peer->pid_fd, .events = POLLIN}};
    if (peer->connected && poll(polls, 2, 0) > 0) {
        peer->gone = polls[1].revents != 0;
        hang_up(peer); /* refused when it is gone */
        dial_first(peer);
        peer->dialed_ns = 0;
    }
    if (peer->fd >= 0 && !peer->connected) {
        int error_number = wefti_address_connected(peer->fd);
        peer->connected = error_number == 0;
        if (error_number == EINPROGRESS ? wefti_now_ns() > peer->until_ns : error_number != 0) {
            dial_next(peer, error_number);
        }
    }
}

/* Connects, or watches what is connected; sets gone. */
static void watch(const wefti_meeting_t *meeting, uint32_t rank)
{
    const wefti_member_t *member = &meeting->membership->members[rank];
    peer_t *peer = &meeting->peers[rank];
    bool here = meeting->membership->identity->local >= 0 && member->name[0] != '\0';
    look_at_connection(peer);
    while (!peer->gone && peer->fd < 0) {
        uint64_t now = wefti_now_ns();
        peer->dialed_ns = peer->dialed_ns != 0 ? peer->dialed_ns : now;
        if (peer->at >= (here ? 1u : member->address.count)) {
            peer->gone = here || is_gone(meeting, peer);
            dial_first(peer);
            return; /* to dial again after a pause */
        }
        if (here) {
            if (dial_here(peer, member)) {
                return;
            }
            dial_next(peer, 0);
        } else {
            peer->until_ns = now + CONNECT_NS;
            if (wefti_address_connect(&member->address.addresses[peer->at], &peer->fd) == WEFT_OK) {
                return;
            }
            dial_next(peer, errno);
        }
    }
}

static weft_status_t interrupted(const wefti_meeting_t *meeting)
{
    return wefti_interrupted(&meeting->former->interrupt) ? wefti_interrupt_error(meeting->own)
                                                          : WEFT_OK;
}

/* ---- another member leads ---- */

static wefti_greeting_t greet(const wefti_meeting_t *meeting)
{
    return (wefti_greeting_t){.version = WEFTI_BOOTSTRAP_VERSION,
                              .purpose = WEFTI_PURPOSE_SURVIVORS,
                              .rank = meeting->membership->members[meeting->own].number};
}

static weft_status_t take_members(wefti_meeting_t *meeting, const wefti_frame_t *frame)
{
    uint32_t own = meeting->membership->members[meeting->own].number;
    members_t head;
    bool there = false;
    if (frame->kind != WEFTI_MEMBERS || frame->bytes < sizeof head) {
        return frame->kind == WEFTI_FAILED ? wefti_verdict_adopt(frame, UINT32_MAX)
                                           : WEFT_ERR_FORMAT;
    }
    memcpy(&head, frame->body, sizeof head);
    if (head.count > meeting->membership->count || frame->bytes != members_bytes(head.count)) {
        return WEFT_ERR_FORMAT;
    }
    memcpy(meeting->members, frame->body, frame->bytes);
    for (uint32_t i = 0; i < head.count; i++) {
        there = there || meeting->members->numbers[i] == own;
    }
    return there ? WEFT_OK : WEFT_ERR_FORMAT;
}

/* On a connection to it. WEFT_AGAIN: it closed, or is not a member. */
static weft_status_t follow_on(wefti_meeting_t *meeting, uint32_t rank, wefti_handshake_t *shake)
{
    peer_t *peer = &meeting->peers[rank];
    const arrived_t arrived = {meeting->membership->members[meeting->own].number,
                               meeting->generation};
    bool sent = false;
    for (;;) {
        wefti_frame_t frame;
        weft_status_t status =
            sent ? wefti_wire_receive(&shake->wire, &frame) : wefti_handshake_step(shake);
        if (status == WEFT_OK && sent) {
            return take_members(meeting, &frame);
        }
        if (status == WEFT_OK) {
            sent = true;
            shake->wire.in_limit = members_bytes(meeting->membership->count) +
                                   sizeof(wefti_verdict_t) + WEFTI_NOTICE_BYTES;
            status =
                wefti_wire_send(&shake->wire, WEFTI_ARRIVED, &arrived, sizeof arrived, NULL, 0);
        }
        if (status < 0) {
            return WEFT_AGAIN;
        }
        WEFT_RETURN_IF_ERROR(interrupted(meeting));
        struct pollfd polls[2] = {{.fd = shake->wire.fd, .events = POLLIN},
                                  {.fd = peer->pid_fd, .events = POLLIN}};
        if (poll(polls, 2, SLICE_MS) > 0 && polls[1].revents != 0) {
            peer->gone = true;
            return WEFT_AGAIN;
        }
        if (wefti_now_ns() >= meeting->deadline_ns) {
            peer->late = true;
            return WEFT_AGAIN;
        }
    }
}

/* Looks meanwhile at the members that would lead after a silent one, and if this rank might lead at
 * all others. A host that is off has several of them, and each would cost SILENCE_NS. */
static void watch_others(wefti_meeting_t *meeting, uint32_t leader)
{
    bool leads = true;
    for (uint32_t r = leader + 1; r < meeting->membership->count && (r != meeting->own || leads);
         r++) {
        peer_t *peer = &meeting->peers[r];
        if (r != meeting->own && !peer->gone && !peer->late) {
            watch(meeting, r);
        }
        leads = leads && !peer->connected;
    }
}

/* WEFT_AGAIN: the one at rank does not lead. */
static weft_status_t follow(wefti_meeting_t *meeting, uint32_t rank)
{
    peer_t *peer = &meeting->peers[rank];
    const wefti_greeting_t greeting = greet(meeting);
    const wefti_identity_t *identity = meeting->membership->identity;
    while (!peer->gone && !peer->late) {
        wefti_handshake_t shake;
        watch(meeting, rank);
        WEFT_RETURN_IF_ERROR(interrupted(meeting));
        if (!peer->connected) {
            uint64_t now = wefti_now_ns();
            if (peer->dialed_ns != 0 && now - peer->dialed_ns > SILENT_NS) {
                watch_others(meeting, rank);
            }
            peer->late = now >= meeting->deadline_ns;
            poll(NULL, 0, 1);
            continue;
        }
        WEFT_RETURN_IF_ERROR(wefti_handshake_init(&shake, peer->fd, true, &greeting, identity->key,
                                                  sizeof identity->key, NULL));
        peer->fd = -1;
        weft_status_t status = follow_on(meeting, rank, &shake);
        if (status == WEFT_OK) {
            hang_up(peer);
            meeting->links[0] = shake.wire;
            meeting->link_count = 1;
            return WEFT_OK;
        }
        wefti_handshake_deinit(&shake);
        if (status < 0 && status != WEFT_ERR_FORMAT) {
            return status;
        }
        /* Elsewhere if that was not a member; the same place tells whether it is gone. */
        if (status == WEFT_ERR_FORMAT) {
            dial_next(peer, ECONNREFUSED);
        } else {
            hang_up(peer);
            dial_first(peer);
            peer->dialed_ns = 0;
        }
        poll(NULL, 0, 1);
    }
    return WEFT_AGAIN;
}

/* ---- this rank leads ---- */

static void arrive(wefti_meeting_t *meeting, const arrived_t *arrived, wefti_wire_t *wire)
{
    const wefti_membership_t *membership = meeting->membership;
    for (uint32_t r = 0; r < membership->count; r++) {
        peer_t *peer = &meeting->peers[r];
        if (membership->members[r].number == arrived->number && r != meeting->own) {
            if (peer->arrived) { /* it has connected again */
                wefti_wire_deinit(&peer->wire);
            }
            hang_up(peer);
            peer->wire = *wire;
            *wire = (wefti_wire_t){.fd = -1};
            peer->arrived = true;
            peer->gone = peer->late = false;
            meeting->generation = arrived->generation > meeting->generation ? arrived->generation
                                                                            : meeting->generation;
        }
    }
}

/* Connections of members that have not named themselves yet. */
typedef struct doorway {
    wefti_acceptor_t acceptor;
    wefti_wire_t *wires;
    uint32_t count, capacity;
} doorway_t;

static void read_arrivals(wefti_meeting_t *meeting, doorway_t *doorway)
{
    for (uint32_t i = doorway->count; i-- > 0;) {
        wefti_wire_t *wire = &doorway->wires[i];
        wefti_frame_t frame;
        arrived_t arrived;
        weft_status_t status = wefti_wire_receive(wire, &frame);
        if (status == WEFT_AGAIN) {
            continue;
        }
        if (status == WEFT_OK && frame.kind == WEFTI_ARRIVED && frame.bytes == sizeof arrived) {
            memcpy(&arrived, frame.body, sizeof arrived);
            arrive(meeting, &arrived, wire);
        }
        wefti_wire_deinit(wire);
        *wire = doorway->wires[--doorway->count];
    }
}

static weft_status_t accept_members(wefti_meeting_t *meeting, doorway_t *doorway)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(doorway->acceptor.epoll_fd, events, EVENTS, SLICE_MS);
    for (int i = 0; i < count; i++) {
        wefti_pending_t *pending = NULL;
        if (events[i].data.u32 < WEFTI_ACCEPTOR_TAG) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(wefti_acceptor_step(&doorway->acceptor, events[i].data.u32, &pending));
        if (pending == NULL) {
            continue;
        }
        if (doorway->count == doorway->capacity) { /* the others have been silent */
            wefti_wire_deinit(&doorway->wires[--doorway->count]);
        }
        int fd = pending->shake.wire.fd;
        doorway->wires[doorway->count++] = wefti_pending_take(pending);
        WEFT_RETURN_IF_ERROR(
            wefti_watch(doorway->acceptor.epoll_fd, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
    }
    wefti_acceptor_expire(&doorway->acceptor);
    read_arrivals(meeting, doorway);
    return WEFT_OK;
}

/* Looks at all members; returns how many live but have not arrived. */
static uint32_t count_missing(wefti_meeting_t *meeting, bool with_late)
{
    uint32_t missing = 0;
    for (uint32_t r = 0; r < meeting->membership->count; r++) {
        peer_t *peer = &meeting->peers[r];
        wefti_frame_t frame;
        if (r == meeting->own) {
            continue;
        }
        if (peer->arrived && wefti_wire_receive(&peer->wire, &frame) != WEFT_AGAIN) {
            wefti_wire_deinit(&peer->wire);
            peer->arrived = false;
            peer->at = 0;
        }
        if (!peer->arrived && !peer->gone) {
            watch(meeting, r);
        }
        missing += !peer->arrived && !peer->gone && (with_late || !peer->late);
    }
    return missing;
}

static void name_missing(const wefti_meeting_t *meeting, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t r = 0; r < meeting->membership->count && used + 16 < capacity; r++) {
        const peer_t *peer = &meeting->peers[r];
        if (r != meeting->own && !peer->arrived && !peer->gone) {
            used += (size_t)snprintf(out + used, capacity - used, "%s%u", used > 0 ? ", " : "", r);
        }
    }
}

static weft_status_t gather(wefti_meeting_t *meeting, doorway_t *doorway)
{
    char names[160];
    uint64_t start = wefti_now_ns();
    wefti_acceptor_t *acceptor = &doorway->acceptor;
    const int listeners[] = {meeting->membership->identity->local,
                             meeting->membership->identity->tcp};
    WEFT_RETURN_IF_ERROR(wefti_acceptor_open(acceptor));
    for (uint32_t i = 0; i < 2; i++) {
        if (listeners[i] >= 0) {
            WEFT_RETURN_IF_ERROR(wefti_acceptor_listen(acceptor, listeners[i]));
        }
    }
    while (count_missing(meeting, false) > 0) {
        uint64_t now = wefti_now_ns();
        if (now >= meeting->deadline_ns) {
            break;
        }
        if (wefti_endpoint_reports_late(meeting->former, now - start)) {
            name_missing(meeting, names, sizeof names);
            wefti_log(meeting->former->log, WEFT_LOG_LEVEL_WARN,
                      "survivors of the world have waited %.0f s for ranks that live: %s",
                      (double)(now - start) * 1e-9, names);
        }
        WEFT_RETURN_IF_ERROR(interrupted(meeting));
        WEFT_RETURN_IF_ERROR(accept_members(meeting, doorway));
    }
    return WEFT_OK;
}

/* Ranks that live but did not come might agree on their own: only one part may go on. */
static weft_status_t decide(wefti_meeting_t *meeting)
{
    const wefti_membership_t *membership = meeting->membership;
    members_t *members = meeting->members;
    uint32_t missing = count_missing(meeting, true);
    bool lowest = true;
    members->count = 0;
    for (uint32_t r = 0; r < membership->count; r++) {
        const peer_t *peer = &meeting->peers[r];
        if (r == meeting->own || peer->arrived) {
            members->numbers[members->count++] = membership->members[r].number;
        } else if (r < meeting->own && !peer->gone) {
            lowest = false;
        }
    }
    members->generation = meeting->generation + 1;
    members->tcp = meeting->former->ops == &wefti_transport_hosts;
    if (missing < members->count || (missing == members->count && lowest)) {
        return WEFT_OK;
    }
    char names[160];
    name_missing(meeting, names, sizeof names);
    return wefti_error(WEFT_ERR_TIMEOUT,
                       "%u of %u ranks that live did not agree to shrink the world before the "
                       "timeout; missing ranks: %s",
                       missing, missing + members->count, names);
}

static weft_status_t lead(wefti_meeting_t *meeting)
{
    const wefti_identity_t *identity = meeting->membership->identity;
    uint32_t count = meeting->membership->count;
    doorway_t doorway = {.acceptor = {.listener = -1,
                                      .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                                      .greeting = greet(meeting),
                                      .key = identity->key,
                                      .key_bytes = sizeof identity->key,
                                      .log = meeting->former->log,
                                      .capacity = 2 * count + SPARE_PENDING,
                                      .patience_ns = PATIENCE_NS},
                         .capacity = count + SPARE_PENDING};
    doorway.wires = wefti_alloc(NULL, doorway.capacity * sizeof *doorway.wires);
    weft_status_t status = doorway.wires != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK && doorway.acceptor.epoll_fd < 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_create1 failed");
    }
    WEFT_TRY(status, status, out);
    WEFT_TRY(status, gather(meeting, &doorway), out);
    status = decide(meeting);
    wefti_verdict_t verdict = status < 0 ? wefti_verdict_of(status) : (wefti_verdict_t){0};
    for (uint32_t r = 0; r < count; r++) {
        peer_t *peer = &meeting->peers[r];
        if (!peer->arrived) {
            continue;
        }
        if (status < 0) {
            wefti_wire_send(&peer->wire, WEFTI_FAILED, &verdict, sizeof verdict, NULL, 0);
        } else {
            wefti_wire_send(&peer->wire, WEFTI_MEMBERS, meeting->members,
                            members_bytes(meeting->members->count), NULL, 0);
            meeting->links[meeting->link_count++] = peer->wire;
            peer->wire = (wefti_wire_t){.fd = -1};
            peer->arrived = false;
        }
    }
out:
    wefti_acceptor_close(&doorway.acceptor);
    for (uint32_t i = 0; i < doorway.count; i++) {
        wefti_wire_deinit(&doorway.wires[i]);
    }
    wefti_close_fd(&doorway.acceptor.epoll_fd);
    wefti_free(NULL, doorway.wires);
    return status;
}

/* ---- the meeting ---- */

static weft_status_t agree(wefti_meeting_t *meeting)
{
    for (;;) {
        uint32_t leader = 0;
        while (leader != meeting->own &&
               (meeting->peers[leader].gone || meeting->peers[leader].late)) {
            leader++;
        }
        if (leader == meeting->own) {
            return lead(meeting);
        }
        weft_status_t status = follow(meeting, leader);
        if (status != WEFT_AGAIN) {
            return status;
        }
        if (meeting->peers[leader].late) {
            meeting->deadline_ns = wefti_endpoint_deadline(meeting->former);
        }
    }
}

weft_status_t wefti_meeting_hold(const wefti_membership_t *membership, wefti_endpoint_t *former,
                                 uint32_t generation, wefti_meeting_t **out_meeting)
{
    uint32_t count = membership->count;
    wefti_meeting_t *meeting = wefti_alloc(NULL, sizeof *meeting);
    *out_meeting = meeting;
    WEFT_RETURN_IF_NO_MEMORY(meeting != NULL);
    pthread_mutex_init(&meeting->lock, NULL);
    meeting->membership = membership;
    meeting->former = former;
    meeting->own = former->rank;
    meeting->generation = generation;
    meeting->deadline_ns = wefti_endpoint_deadline(former);
    meeting->peers = wefti_alloc(NULL, count * sizeof *meeting->peers);
    meeting->links = wefti_alloc(NULL, count * sizeof *meeting->links);
    meeting->members = wefti_alloc(NULL, members_bytes(count));
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    if (meeting->peers != NULL && meeting->links != NULL && meeting->members != NULL) {
        for (uint32_t r = 0; r < count; r++) {
            meeting->peers[r] = (peer_t){.fd = -1, .pid_fd = -1, .wire.fd = -1};
        }
        status = agree(meeting);
    }
    for (uint32_t r = 0; meeting->peers != NULL && r < count; r++) {
        hang_up(&meeting->peers[r]);
        wefti_wire_deinit(&meeting->peers[r].wire);
    }
    if (status < 0) {
        wefti_meeting_leave(meeting, false);
        wefti_meeting_free(meeting);
        *out_meeting = NULL;
    }
    return status;
}

uint32_t wefti_meeting_generation(const wefti_meeting_t *meeting)
{
    return meeting->members->generation;
}

bool wefti_meeting_same(const wefti_meeting_t *a, const wefti_meeting_t *b)
{
    return a->members->count == b->members->count &&
           memcmp(a->members->numbers, b->members->numbers, a->members->count * sizeof(uint32_t)) ==
               0;
}

/* Receives what the others send until they are in the new world. Under the lock. */
static void receive(wefti_meeting_t *meeting)
{
    for (uint32_t i = 0; i < meeting->link_count; i++) {
        wefti_wire_t *link = &meeting->links[i];
        wefti_frame_t frame;
        weft_status_t status = WEFT_OK;
        while (link->fd >= 0 && status == WEFT_OK) {
            status = wefti_wire_flush(link);
            status = status >= 0 ? wefti_wire_receive(link, &frame) : status;
            if (status == WEFT_OK && frame.kind == WEFTI_JOINED) {
                wefti_wire_deinit(link);
            } else if (status == WEFT_OK && frame.kind == WEFTI_NOTICE &&
                       frame.bytes < sizeof meeting->notice) {
                memcpy(meeting->notice, frame.body, frame.bytes);
                meeting->notice[frame.bytes] = '\0';
            } else if (status != WEFT_AGAIN) {
                meeting->broken = true;
                wefti_wire_deinit(link);
            }
        }
    }
}

int wefti_meeting_broken(void *user)
{
    wefti_meeting_t *meeting = user;
    pthread_mutex_lock(&meeting->lock);
    receive(meeting);
    bool broken = meeting->broken;
    pthread_mutex_unlock(&meeting->lock);
    return broken;
}

/* ---- where the new world meets ---- */

static weft_status_t claim(wefti_service_t *service, uint32_t turn)
{
    (void)service;
    (void)turn;
    return WEFT_OK;
}

static weft_status_t publish(wefti_service_t *service, uint32_t turn, const char *text)
{
    wefti_meeting_t *meeting = (wefti_meeting_t *)service;
    (void)turn;
    pthread_mutex_lock(&meeting->lock);
    for (uint32_t i = 0; i < meeting->link_count; i++) {
        if (meeting->links[i].fd >= 0) {
            wefti_wire_send(&meeting->links[i], WEFTI_NOTICE, text, strlen(text), NULL, 0);
        }
    }
    pthread_mutex_unlock(&meeting->lock);
    return WEFT_OK;
}

static weft_status_t look_up(wefti_service_t *service, uint32_t turn, char *out, size_t capacity)
{
    wefti_meeting_t *meeting = (wefti_meeting_t *)service;
    (void)turn;
    pthread_mutex_lock(&meeting->lock);
    receive(meeting);
    snprintf(out, capacity, "%s", meeting->notice);
    pthread_mutex_unlock(&meeting->lock);
    return out[0] != '\0' ? WEFT_OK : WEFT_AGAIN;
}

static void close_service(wefti_service_t *service)
{
    (void)service; /* of the meeting */
}

static const wefti_service_ops_t service_ops = {
    .launcher = "survivors",
    .address = "survivors:",
    .claim = claim,
    .publish = publish,
    .look_up = look_up,
    .close = close_service,
};

weft_status_t wefti_meeting_params(wefti_meeting_t *meeting, wefti_endpoint_params_t *params)
{
    const wefti_identity_t *identity = meeting->membership->identity;
    const members_t *members = meeting->members;
    wefti_digest_t digest;
    char hex[65];
    params->world_size = members->count;
    params->rank = 0;
    while (members->numbers[params->rank] != meeting->membership->members[meeting->own].number) {
        params->rank++;
    }
    params->hub = NULL;
    params->job = NULL;
    params->address = meeting->address;
    if (wefti_endpoint_hub(meeting->former) != NULL) {
        return wefti_hub_successor(wefti_endpoint_hub(meeting->former), members->generation,
                                   members->count, &params->hub);
    }
    if (members->tcp != 0) {
        wefti_job_t *job = &meeting->job;
        meeting->service.ops = &service_ops;
        *job = (wefti_job_t){.rank = params->rank,
                             .world_size = members->count,
                             .delivered = true,
                             .service = &meeting->service};
        snprintf(job->launcher, sizeof job->launcher, "%s", service_ops.launcher);
        snprintf(job->address, sizeof job->address, "%s", service_ops.address);
        params->address = job->address;
        params->job = job;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_hmac(identity->key, sizeof identity->key, "weft survivors",
                                    &members->generation, sizeof members->generation, &digest));
    snprintf(meeting->address, sizeof meeting->address, "unix:@weft-%.32s",
             wefti_digest_hex(&digest, hex));
    return WEFT_OK;
}

void wefti_meeting_leave(wefti_meeting_t *meeting, bool joined)
{
    for (uint32_t i = 0; i < meeting->link_count; i++) {
        if (joined && meeting->links[i].fd >= 0) {
            wefti_wire_send(&meeting->links[i], WEFTI_JOINED, NULL, 0, NULL, 0);
        }
        wefti_wire_deinit(&meeting->links[i]);
    }
    meeting->link_count = 0;
    wefti_forget(meeting->notice, sizeof meeting->notice);
}

void wefti_meeting_free(wefti_meeting_t *meeting)
{
    if (meeting == NULL) {
        return;
    }
    pthread_mutex_destroy(&meeting->lock);
    wefti_free(NULL, meeting->members);
    wefti_free(NULL, meeting->links);
    wefti_free(NULL, meeting->peers);
    wefti_free(NULL, meeting);
}
